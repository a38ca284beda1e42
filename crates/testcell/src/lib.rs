//! A cell of one volume in this process, for the tests of clients: a real file server over a disk in memory, and a location
//! server that knows the volume. No ports of its own, no root, no files. Only tests depend on it.
//!
//! What cannot be set up panics: that is the test's failure.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_client::cache::{Options, Root};
use cellar_client::{Cell, CellName, Ports};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{Config, Cps, FileServer, Protection, ProtectionError};
use cellar_rpc::{IncomingCall, Port, PortConfig, Runtime, only};
use cellar_volume::disk::SimDisk;
use cellar_volume::{Context, Partition, Volume, VolumeSpec};
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::{AccessList, AclEntry, Rights};
use cellar_wire::ids::{AfsTime, AfsUuid, PartitionId, ViceId, VolumeId};
use cellar_wire::package::Procedure;
use cellar_wire::vl;

/// The volume's number. Its name is `root.cell`.
pub const VOLUME: VolumeId = VolumeId(536_870_912);
/// When it is made, and what the server's clock says at first.
pub const NOW: AfsTime = AfsTime(1_800_000_000);

/// What is done behind the server's back.
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

/// Knows the one volume, by name and by number.
async fn locate(call: &mut IncomingCall, arguments: vl::GetEntryByNameN) -> Result<(), AbortCode> {
    let name = arguments.volumename.as_bytes();
    if name != b"root.cell" && name != VOLUME.0.to_string().as_bytes() {
        return Err(AbortCode::VL_NOENT);
    }
    let site = vl::Site {
        server: u32::from(Ipv4Addr::LOCALHOST),
        partition: 0,
        flags: vl::VLSF_RWVOL,
    };
    let entry = vl::NvldbEntry {
        name: vl::EntryName::try_from("root.cell").expect("name"),
        sites: cellar_wire::List::from_iter_cut([site]),
        volume_ids: [VOLUME, VolumeId(0), VolumeId(0)],
        flags: vl::VLF_RWEXISTS,
        ..Default::default()
    };
    call.reply(&vl::GetEntryByNameNReply { entry });
    Ok(())
}

/// The cell `test.cell`, whose clock stands still. Ends with [`TestCell::end`].
pub struct TestCell {
    /// What its servers run on, and its clients may.
    pub runtime: Runtime,
    /// The volume behind the server's back.
    pub volume: Arc<Volume>,
    /// As clients are told of it.
    pub cell: Cell,
    server: FileServer,
    files: Port,
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
        let spec = VolumeSpec::new(VOLUME, "root.cell", ViceId(1), NOW);
        let volume = partition.create_volume(&spec).expect("volume").wait();
        let volume = volume.expect("volume");
        let clock = Arc::new(AtomicU64::new(NOW.0.into()));
        let now = clock.clone();
        let wall = Arc::new(move || Duration::from_secs(now.load(Ordering::SeqCst)));
        let server = FileServer::new(Config::new(AfsUuid([7; 16]), wall), Arc::new(Nobody));
        server.add_partition(PartitionId::new(0).expect("a"), partition);
        let files = PortConfig::new(any)
            .service(server.file_service())
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
            server,
            files,
            clock,
        };
        cell.allow(rights);
        cell
    }

    /// What everybody may do, from now on; nobody is told.
    pub fn allow(&self, rights: Rights) {
        let everybody = AclEntry {
            id: ViceId::ANYUSER,
            rights,
        };
        let list = AccessList::new(vec![everybody], Vec::new()).expect("list");
        let set = self.volume.set_acl(self.volume.root(), list, CHANGE);
        set.expect("list").wait().expect("list");
    }

    /// A name in the root becomes another; nobody is told.
    pub fn rename(&self, old: &str, new: &str) {
        let (volume, root) = (&self.volume, self.volume.root());
        let renamed = volume.rename(root, old.as_bytes(), root, new.as_bytes(), CHANGE);
        renamed.expect("rename").wait().expect("rename");
    }

    /// A file in the root gets another name; nobody is told.
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

    /// What the server's clock says, in seconds.
    pub fn set_clock(&self, seconds: u64) {
        self.clock.store(seconds, Ordering::SeqCst);
    }

    /// The file server answers nobody from now on.
    pub fn silence(&self) {
        self.files.close();
    }

    /// How often the file server was asked for one thing since it started.
    pub fn calls<P: Procedure>(&self) -> u64 {
        let procedures = self.files.statistics().procedures();
        let named = procedures.iter().find(|figures| {
            figures.package.service_id == P::package().service_id
                && figures.package.procedures[figures.index].opcode == P::OPCODE
        });
        named.map_or(0, |figures| figures.invocations)
    }

    /// A port for a client.
    pub fn port(&self) -> Port {
        let any = "127.0.0.1:0".parse().expect("address");
        self.runtime.open(PortConfig::new(any)).expect("port")
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
        }
    }

    /// Ends it, and the clients on its runtime.
    pub fn end(self) {
        self.files.close();
        self.server.stop();
        self.runtime.shutdown();
    }
}
