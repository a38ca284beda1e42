//! A cell of one or two volumes in this process, for tests of clients. It has a real file server
//! over a disk in memory, and a location server that knows the volumes. It needs no fixed ports, no
//! root and no files. Only tests depend on it.
//!
//! A failure of the setup panics, which fails the test.

mod gate;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_cachemanager::{Leases, Options, Root};
use cellar_client::{Cell, CellName, Ports};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{Config, Cps, FileServer, Protection, ProtectionError};
use cellar_rpc::{IncomingCall, PortConfig, RuntimeConfig, only};
pub use cellar_rpc::{Port, Runtime};
use cellar_volume::disk::SimDisk;
use cellar_volume::{Context, Partition, Volume, VolumeSpec};
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::{AccessList, AclEntry, Rights};
use cellar_wire::ids::{AfsTime, AfsUuid, PartitionId, ViceId, VolumeId};
use cellar_wire::package::Procedure;
use cellar_wire::vl;

pub use gate::Held;
use gate::{Gate, Rules};

/// The volume's number. Its name is `root.cell`.
pub const VOLUME: VolumeId = VolumeId(536_870_912);
/// When it is made, and what the server's clock says at first.
pub const NOW: AfsTime = AfsTime(1_800_000_000);

/// Changes of the volume without the server's knowledge.
const CHANGE: Context = Context {
    author: ViceId(1),
    now: NOW,
};

/// Everybody is a member of nothing else; `system:anyuser` is the one name.
struct Nobody;

impl Protection for Nobody {
    fn version(&self) -> u64 {
        1
    }

    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async move { Ok([id, ViceId::ANYUSER].into_iter().collect()) })
    }

    fn host_cps(&self, _address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async { Ok(Cps::new(Vec::new())) })
    }

    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>> {
        let id = |name: &Bytes| (name == "system:anyuser").then_some(ViceId::ANYUSER);
        Box::pin(async move { Ok(names.iter().map(id).collect()) })
    }

    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>> {
        Box::pin(async { Ok(vec![None; ids.len()]) })
    }
}

/// Another volume's number. Its name is `other`; see [`TestCell::add_other`].
pub const OTHER: VolumeId = VolumeId(536_870_915);

/// Knows the volumes, by name and by number.
async fn locate(call: &mut IncomingCall, arguments: vl::GetEntryByNameN) -> Result<(), AbortCode> {
    let asked = arguments.volumename.as_bytes();
    let is_it = |(id, name): &(VolumeId, &str)| {
        asked == name.as_bytes() || asked == id.0.to_string().as_bytes()
    };
    let all = [(VOLUME, "root.cell"), (OTHER, "other")];
    let (id, name) = all.into_iter().find(is_it).ok_or(AbortCode::VL_NOENT)?;
    let site = vl::Site {
        server: u32::from(Ipv4Addr::LOCALHOST),
        partition: 0,
        flags: vl::VLSF_RWVOL,
    };
    let entry = vl::NvldbEntry {
        name: vl::EntryName::try_from(name).expect("name"),
        sites: cellar_wire::List::from_iter_cut([site]),
        volume_ids: [id, VolumeId(0), VolumeId(0)],
        flags: vl::VLF_RWEXISTS,
        ..Default::default()
    };
    call.reply(&vl::GetEntryByNameNReply { entry });
    Ok(())
}

fn make_volume(partition: &Partition, id: VolumeId, name: &str) -> Arc<Volume> {
    let spec = VolumeSpec::new(id, name, ViceId(1), NOW);
    let made = partition.create_volume(&spec).expect("volume").wait();
    made.expect("volume")
}

fn allow(volume: &Volume, rights: Rights) {
    let everybody = AclEntry {
        id: ViceId::ANYUSER,
        rights,
    };
    let list = AccessList::new(vec![everybody], Vec::new()).expect("list");
    let set = volume.set_acl(volume.root(), list, CHANGE);
    set.expect("list").wait().expect("list");
}

/// The cell `test.cell`, whose clock stands still. Ends with [`TestCell::end`].
pub struct TestCell {
    /// The runtime of its servers. Clients may use it, too.
    pub runtime: Runtime,
    /// The volume behind the server's back.
    pub volume: Arc<Volume>,
    /// As clients are told of it.
    pub cell: Cell,
    partition: Arc<Partition>,
    server: FileServer,
    files: Port,
    rules: Arc<Rules>,
    clock: Arc<AtomicU64>,
}

impl TestCell {
    /// Starts it; everybody may do `rights` in the volume.
    pub fn start(rights: Rights) -> Self {
        let runtime = Runtime::client_only().expect("runtime");
        let any = "127.0.0.1:0".parse().expect("address");
        let disk = Arc::new(SimDisk::new(1 << 28));
        let options = cellar_volume::Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Default::default()
        };
        let partition = Partition::open(disk, options).expect("partition");
        let volume = make_volume(&partition, VOLUME, "root.cell");
        let clock = Arc::new(AtomicU64::new(NOW.0.into()));
        let now = clock.clone();
        let wall = Arc::new(move || Duration::from_secs(now.load(Ordering::SeqCst)));
        let server = FileServer::new(Config::new(AfsUuid([7; 16]), wall), Arc::new(Nobody));
        server.add_partition(PartitionId::new(0).expect("a"), partition.clone());
        let rules = Arc::new(Rules::default());
        let gate = Gate {
            service: server.file_service(),
            rules: rules.clone(),
        };
        let files = PortConfig::new(any)
            .service(Arc::new(gate))
            .service(server.object_service());
        let files = runtime.open(files).expect("port");
        server.start(&runtime, &files);
        let locations = PortConfig::new(any).service(only(locate));
        let locations = runtime.open(locations).expect("port");
        let cell = Cell {
            name: CellName::new("test.cell").expect("name"),
            database_servers: vec![Ipv4Addr::LOCALHOST.into()],
            ports: Ports {
                fileserver: files.local_address().port(),
                location: locations.local_address().port(),
                ..Ports::default()
            },
        };
        let cell = Self {
            runtime,
            volume,
            cell,
            partition,
            server,
            files,
            rules,
            clock,
        };
        cell.allow(rights);
        cell
    }

    /// Sets the rights of all users. No client is notified.
    pub fn allow(&self, rights: Rights) {
        allow(&self.volume, rights);
    }

    /// Makes the volume `other`, in which everybody may do everything; no name leads to it.
    pub fn add_other(&self) {
        allow(&make_volume(&self.partition, OTHER, "other"), Rights::ALL);
    }

    /// Makes a name in the root lead elsewhere. No client is notified.
    pub fn rename(&self, old: &str, new: &str) {
        let (volume, root) = (&self.volume, self.volume.root());
        let renamed = volume.rename(root, old.as_bytes(), root, new.as_bytes(), CHANGE);
        renamed.expect("rename").wait().expect("rename");
    }

    /// Renames a file in the root. No client is notified.
    pub fn link(&self, name: &str, another: &str) {
        let (volume, root) = (&self.volume, self.volume.root());
        let file = volume.lookup(root, name.as_bytes()).expect(name);
        let linked = volume.link(root, another.as_bytes(), file, CHANGE);
        linked.expect("link").wait().expect("link");
    }

    /// The server's clock goes on by so many seconds.
    pub fn later(&self, seconds: u64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
    }

    /// The server's time, in seconds.
    pub fn set_clock(&self, seconds: u64) {
        self.clock.store(seconds, Ordering::SeqCst);
    }

    /// Makes the file server silent.
    pub fn silence(&self) {
        self.files.close();
    }

    /// The number of calls of one procedure since the file server started.
    pub fn calls<P: Procedure>(&self) -> u64 {
        let procedures = self.files.statistics().procedures();
        let named = procedures.iter().find(|figures| {
            figures.package.service_id == P::package().service_id
                && figures.package.procedures[figures.index].opcode == P::OPCODE
        });
        named.map_or(0, |figures| figures.invocations)
    }

    /// The number of breaks that a client answered too late, after the answer to the change.
    pub fn late_breaks(&self) -> u64 {
        self.server.figures().callbacks.late
    }

    /// Makes the file server hold calls of one procedure until the returned value is dropped, and
    /// then execute them.
    pub fn hold<P: Procedure>(&self) -> Held {
        self.rules.hold(P::OPCODE)
    }

    /// The file server answers the next so many such calls with that code.
    pub fn refuse<P: Procedure>(&self, code: AbortCode, calls: usize) {
        self.rules.refuse(P::OPCODE, code, calls);
    }

    /// The file server does the next so many such calls, and says that code instead of what came of
    /// them.
    pub fn lose<P: Procedure>(&self, code: AbortCode, calls: usize) {
        self.rules.lose(P::OPCODE, code, calls);
    }

    /// A port for a client.
    pub fn port(&self) -> Port {
        let any = "127.0.0.1:0".parse().expect("address");
        self.runtime.open(PortConfig::new(any)).expect("port")
    }

    /// Makes a port for a client that waits for a silent server no longer than this. Its runtime
    /// ends by itself.
    pub fn hasty_port(patience: Duration) -> (Runtime, Port) {
        let config = RuntimeConfig {
            shards: 1,
            dead_time: patience,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).expect("runtime");
        let any = "127.0.0.1:0".parse().expect("address");
        let port = runtime.open(PortConfig::new(any)).expect("port");
        (runtime, port)
    }

    /// A cache whose root is the volume, of 64 MiB in memory.
    pub fn cache_options(&self) -> Options {
        Options {
            cells: vec![self.cell.clone()],
            root: Root::Volume("root.cell".to_owned()),
            directory: None,
            size: 64 << 20,
            vnodes_max: 10_000,
            sysnames: Vec::new(),
            patience: Duration::from_secs(30),
            nat_ping: None,
            leases: Leases::None,
        }
    }

    /// Ends it, and the clients on its runtime.
    pub fn end(self) {
        self.files.close();
        self.server.stop();
        self.runtime.shutdown();
    }
}
