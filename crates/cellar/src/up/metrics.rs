//! The metrics of a server daemon, gathered at each scrape.
//!
//! | file | metrics |
//! | --- | --- |
//! | `calls.rs` | calls by procedure, and the queue of each port |
//! | `transport.rs` | Rx and the sockets below it |
//! | `../file_figures.rs` | callbacks, hosts, transfers, files in objects |
//! | `stores.rs` | partitions and object storage devices |
//! | `etcd.rs` | databases in an etcd cluster |
//! | `access.rs` | authentication and the audit log |
//! | `volumes.rs` | the busiest volumes, on a page of their own |

mod access;
mod calls;
mod etcd;
mod stores;
mod transport;
mod volumes;

use futures_util::future::BoxFuture;

use super::file_figures;
use super::parts::Parts;
use crate::metrics::snapshot::Snapshot;
use crate::metrics::{Pages, process};

impl Pages for Parts {
    fn metrics(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async {
            let mut snapshot = Snapshot::default();
            process::add(&mut snapshot);
            calls::add(&mut snapshot, &self.ports);
            transport::add(&mut snapshot, &self.ports).await;
            if let Some(fileserver) = &self.fileserver {
                file_figures::add(&mut snapshot, &fileserver.figures());
                stores::add_scrubs(&mut snapshot, &fileserver.scrub_figures());
            }
            stores::add_partitions(&mut snapshot, &self.partitions);
            if let Some(probes) = &self.probes {
                probes.add(&mut snapshot);
            }
            if let Some(osds) = &self.osds {
                stores::add_devices(&mut snapshot, osds);
            }
            if let Some(etcd) = &self.etcd {
                etcd::add(&mut snapshot, &etcd.status());
            }
            access::add(&mut snapshot, &self.authority, &self.audit);
            snapshot.text().ok()
        })
    }

    fn volumes(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async {
            self.fileserver.as_ref()?;
            let mut snapshot = Snapshot::default();
            volumes::add(&mut snapshot, &self.partitions);
            snapshot.text().ok()
        })
    }

    fn problems(&self) -> Vec<String> {
        let stopped = self.partitions.iter().filter_map(|(id, partition)| {
            let cause = partition.stopped()?;
            Some(format!("partition {id} accepts no changes: {cause}"))
        });
        let devices = self.osds.iter().flat_map(|osds| osds.device_figures());
        let failed = devices.filter(|device| !device.accepts_changes);
        let failed = failed.map(|device| format!("device {} accepts no changes", device.id));
        let etcd = self.etcd.as_ref().map(|etcd| etcd.status());
        let silent = etcd.filter(|status| !status.is_reachable);
        let silent =
            silent.map(|_| "the databases take no writes: etcd does not answer".to_owned());
        stopped.chain(failed).chain(silent).collect()
    }
}
