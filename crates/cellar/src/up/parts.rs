//! The parts of a running daemon, for the modules that report about them: `cellar statistics` and
//! the metrics.

use std::sync::Arc;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_etcd::Etcd;
use cellar_fileserver::FileServer;
use cellar_osd::OsdServer;
use cellar_rpc::Port;
use cellar_volume::Partition;
use cellar_wire::ids::PartitionId;

use super::probe::Probes;

/// The running parts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Parts {
    /// The file server with its partitions; `None` in a daemon of devices only.
    pub(crate) fileserver: Option<FileServer>,
    pub(crate) partitions: Vec<(PartitionId, Arc<Partition>)>,
    pub(crate) authority: Authority,
    pub(crate) audit: Audit,
    /// The probes of the partitions' disks, if they run.
    pub(crate) probes: Option<Arc<Probes>>,
    /// The object storage devices of this process.
    pub(crate) osds: Option<OsdServer>,
    /// The databases of this process, if they are in etcd.
    pub(crate) etcd: Option<Arc<Etcd>>,
    /// The open ports, each with the name of its role.
    pub(crate) ports: Vec<(&'static str, Port)>,
}
