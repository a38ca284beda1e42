//! The files of a file server whose bytes are in objects. The server knows their layouts; the crate
//! `objects` writes and reads the devices.
//!
//! The file server keeps what is RPC handling: callers, rights and promises. It has one [`Objects`]
//! and calls it for:
//!
//! | operation | entry |
//! | --- | --- |
//! | whether the bytes of a file go to objects | [`Objects::place`] |
//! | reading for clients without support for objects | [`Objects::hold`], then [`Fetching`] |
//! | storing for them | [`Objects::write`], then [`Stored::commit`] |
//! | clients that read and write directly | [`Objects::grant`], [`Objects::lend`], [`Objects::begin_direct`] |
//! | old versions of a changed or removed file | [`Objects::forget`] |
//! | copies in archives | [`Objects::archive`], [`Objects::wipe`], [`Objects::recall`] |
//! | comparison of copies | [`Objects::verify`] |
//! | layouts and copies that leave or arrive with a volume | [`Lender`], [`Borrower`] |
//! | bytes for receivers that cannot read the objects or archives | [`ElsewhereBytes`] |
//! | copies and wipes by policies, jobs | [`Objects::start_hsm`], [`Objects::jobs`] |
//! | pins | [`Objects::pin`], [`Objects::unpin`] |
//! | repair and garbage collection | [`Objects::start_upkeep`], [`Objects::collect_garbage`] |
//!
//! A store writes new versions and takes effect by one change of the vnode, so readers see all or
//! nothing of it. `store_locks` serialises the writers of one file; `open_reads` knows the versions
//! in use; `prune` removes versions that are no longer needed. `ownership` decides which volume may
//! write to the objects that came with it.
//!
//! `served` has the traits for the needed parts of the server: its volumes, and their entries in
//! the location database. The clock is an argument. Without [`Objects::start`] a server has no
//! objects: its files stay on the local disk, whatever the policies say.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellar_objects::Devices;
use cellar_policy::Policies;
use cellar_rpc::{Port, Runtime};
use cellar_volume::Volume;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::Repairing;
use cellar_wire::ids::{AfsTime, AfsUuid, Fid};
use cellar_wire::object::Layout;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

mod apart;
mod archive;
mod cell;
mod collect;
mod direct;
mod direct_stores;
mod elsewhere;
mod failure;
mod fetch;
mod figures;
mod garbage;
mod grants;
mod hsm;
mod layouts;
mod lending;
mod limits;
mod liveness;
mod loaded_lists;
mod open_reads;
mod ownership;
mod pending_versions;
mod policies;
mod prune;
mod references;
mod repair;
mod retained;
mod served;
mod storage;
mod store;
mod store_locks;
mod whole_file;

pub use archive::{ArchivedBytes, InArchives, Verified};
pub use cell::{BoxFuture, CellServer, CellServers, Family, FamilySite, Upkeep};
pub use cellar_policy::RecallMode;
pub use direct::{BegunStore, DirectRequest};
pub use elsewhere::{Elsewhere, ElsewhereBytes};
pub use failure::Failure;
pub use fetch::Fetching;
pub use figures::ObjectFigures;
pub use grants::{Grant, Grantee};
pub use hsm::{
    ArchiveCensus, COPY, Candidate, Census, Day, DeviceCensus, DeviceUse, HsmConfig, OlderBytes,
    PinAnswer, PinTable, RECALL, Tally, VERIFY, WIPE, recalled_file,
};
pub use lending::{Borrower, Lender};
pub use limits::{OBJECT_MOVE_MAX, OBJECT_REPLAY_MAX};
pub use open_reads::ReadGuard;
pub use policies::{ObjectSpec, StorageDecision, file_path};
pub use served::{Attached, RwSites, ServedVolumes};
pub use storage::{ObjectConfig, PolicyAnswer, PolicyList, Seal};
pub use store::{CommitOutcome, Source, Stored, WriteOutcome};
pub use store_locks::StoreLock;
pub use whole_file::{InObjects, ObjectBytes};

use archive::Recalls;
use direct_stores::DirectStores;
use figures::Counters;
use hsm::{Hsm, LastUses, Pins};
use limits::{CLIENT_CAPABILITY_LIFE, DEVICES_INTERVAL, OLDER_READS_MAX};
use liveness::DeviceLiveness;
use loaded_lists::{LoadedLists, has_none};
use open_reads::OpenReads;
use ownership::Claims;
use pending_versions::PendingVersions;
use policies::PolicyBook;
use prune::Prunes;
use repair::Repairs;
use storage::{LOCAL_DISK, Storage};
use store_locks::StoreLocks;

/// The wall clock: time since 1970.
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The state of object storage on a file server.
pub struct Objects {
    uuid: AfsUuid,
    clock: WallClock,
    volumes: Arc<dyn ServedVolumes>,
    sites: Arc<dyn RwSites>,
    stopping: AtomicBool,
    storage: OnceLock<Storage>,
    loaded_lists: LoadedLists,
    policies: PolicyBook,
    store_locks: StoreLocks,
    open_reads: OpenReads,
    prunes: Prunes,
    pending_versions: PendingVersions,
    liveness: DeviceLiveness,
    repairs: Repairs,
    recalls: Recalls,
    hsm: OnceLock<Hsm>,
    last_uses: LastUses,
    pins: Pins,
    /// How long older bytes are kept; unset: nothing ends them.
    keep_older: OnceLock<Duration>,
    older_reads: Arc<Semaphore>,
    upkeep: OnceLock<Upkeep>,
    direct_stores: DirectStores,
    claims: Claims,
    counters: Counters,
    version: AtomicU64,
}

impl Objects {
    /// The objects of a file server with that UUID, those volumes and that clock. Without
    /// [`Objects::start`] it has no objects.
    pub fn new(
        uuid: AfsUuid,
        clock: WallClock,
        volumes: Arc<dyn ServedVolumes>,
        sites: Arc<dyn RwSites>,
    ) -> Self {
        Self {
            uuid,
            clock,
            volumes,
            sites,
            stopping: AtomicBool::new(false),
            storage: OnceLock::new(),
            loaded_lists: LoadedLists::default(),
            policies: PolicyBook::default(),
            store_locks: StoreLocks::default(),
            open_reads: OpenReads::default(),
            prunes: Prunes::default(),
            pending_versions: PendingVersions::default(),
            liveness: DeviceLiveness::default(),
            repairs: Repairs::default(),
            recalls: Recalls::default(),
            hsm: OnceLock::new(),
            last_uses: LastUses::default(),
            pins: Pins::default(),
            keep_older: OnceLock::new(),
            older_reads: Arc::new(Semaphore::new(OLDER_READS_MAX)),
            upkeep: OnceLock::new(),
            direct_stores: DirectStores::default(),
            claims: Claims::default(),
            counters: Counters::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Ends the background work.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The current time of the wall clock.
    fn wall(&self) -> Duration {
        (self.clock)()
    }

    /// The current time in the seconds of the wire.
    fn now(&self) -> AfsTime {
        AfsTime::after_1970(self.wall())
    }

    fn now_secs(&self) -> u32 {
        self.now().0
    }

    /// Announces that [`Objects::start`] will follow soon.
    pub fn expect(&self) {
        self.loaded_lists.expect();
    }

    /// Whether this server has objects, or will have soon.
    pub fn is_expected(&self) -> bool {
        self.loaded_lists.is_expected()
    }

    /// Whether this server has objects.
    pub fn is_used(&self) -> bool {
        self.storage().is_some()
    }

    /// Keeps the objects of a layout for a reader, until the returned value is dropped.
    pub fn hold(&self, fid: Fid, layout: &Arc<Layout>) -> ReadGuard {
        self.last_uses.note(fid, layout, self.now_secs());
        self.open_reads.begin(fid, layout)
    }

    /// Keeps the objects of a layout for a client that reads directly, as long as its capabilities
    /// are valid. Returns `false` if too many files are kept already.
    pub fn lend(&self, fid: Fid, layout: &Arc<Layout>) -> bool {
        self.last_uses.note(fid, layout, self.now_secs());
        let until = self.wall().as_secs() + CLIENT_CAPABILITY_LIFE.as_secs();
        self.open_reads.lend(fid, layout, until)
    }

    /// Removes objects of a layout that a file in a writable volume had, as far as they are not
    /// needed any more. Returns at once.
    pub fn forget(&self, volume: &Arc<Volume>, fid: Fid, former: Arc<Layout>) {
        self.prunes.queue(volume, fid, former);
    }

    /// Forgets readers whose capabilities have expired.
    pub fn sweep(&self) {
        self.open_reads.sweep(self.wall().as_secs());
    }

    /// The present figures.
    pub fn figures(&self) -> ObjectFigures {
        ObjectFigures {
            recalls_running: self.recalls_in_progress() as u64,
            ..self.counters.figures()
        }
    }

    /// The progress of the repairs.
    pub fn repair_status(&self) -> Repairing {
        self.repairs.status()
    }

    /// The cell's object storage, if this server uses any.
    fn storage(&self) -> Option<&Storage> {
        self.storage.get()
    }

    /// The name of a device, for the log; `None` if the cell's table has no such device.
    fn device_name(&self, osd: u32) -> Option<String> {
        let listed = self.storage()?.devices.get(osd)?;
        Some(listed.entry.name.to_string())
    }

    /// The cell's object storage, for a call that needs it.
    fn needed(&self) -> Result<&Storage, Failure> {
        self.storage().ok_or(Failure::Devices(AbortCode::EIO))
    }

    /// A version number that no object has had. It is higher than `last`, and normally the time in
    /// microseconds since 1970.
    fn next_version(&self, now: Duration, last: u64) -> u64 {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let above = |before: u64| {
            now.max(last.saturating_add(1))
                .max(before.saturating_add(1))
        };
        let mut before = self.version.load(Ordering::Relaxed);
        loop {
            let next = above(before);
            match self.version.compare_exchange_weak(
                before,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return next,
                Err(other) => before = other,
            }
        }
    }

    /// Uses object storage from now on. Only the first call has an effect. Returns the devices, for
    /// callers that want to change the list.
    pub fn start(
        self: &Arc<Self>,
        runtime: &Runtime,
        port: &Port,
        config: ObjectConfig,
    ) -> Devices {
        let devices = Devices::new(port.clone());
        let policies = config.policies.clone();
        let storage = Storage::new(config, devices.clone(), self.clock.clone());
        self.loaded_lists.expect();
        if self.storage.set(storage).is_err() {
            return devices;
        }
        let kept = self.clone();
        runtime.spawn(0, || async move { kept.keep_devices().await });
        let kept = self.clone();
        runtime.spawn(0, || async move { kept.keep_policies(&*policies).await });
        let kept = self.clone();
        runtime.spawn(0, || async move { kept.expire_direct_stores().await });
        let kept = self.clone();
        runtime.spawn(0, || async move { kept.prune_in_background().await });
        devices
    }

    /// Collects garbage and repairs from now on. Only the first call has an effect.
    pub fn start_upkeep(self: &Arc<Self>, runtime: &Runtime, upkeep: Upkeep) {
        if self.upkeep.set(upkeep.clone()).is_err() {
            return;
        }
        self.start_repairs(runtime, &upkeep);
        let kept = self.clone();
        runtime.spawn(
            0,
            || async move { kept.collect_in_background(upkeep).await },
        );
    }

    async fn keep_devices(self: Arc<Self>) {
        let lists = &self.loaded_lists;
        while let Some(storage) = self.storage().filter(|_| !self.is_stopping()) {
            match storage.load_devices().await {
                Ok(()) => lists.note_devices(),
                Err(cause) => {
                    debug!(%cause, "cannot load the list of object storage devices");
                    if has_none(&cause) {
                        lists.note_devices();
                    }
                }
            }
            tokio::time::sleep(lists.pause(DEVICES_INTERVAL)).await;
        }
    }

    async fn keep_policies(self: Arc<Self>, list: &dyn PolicyList) {
        let lists = &self.loaded_lists;
        let mut known = u64::MAX;
        while !self.is_stopping() {
            match list.policies(known).await {
                Ok(Some((revision, entries))) => match Policies::compile(&entries) {
                    Ok(policies) => {
                        self.policies.set(policies);
                        known = revision;
                        lists.note_policies();
                    }
                    // The database has checked the policies, so its format is older or newer than
                    // that of this server.
                    Err(cause) => {
                        warn!(%cause, "the cell's policies cannot be parsed; the old ones stay in force");
                        known = revision;
                    }
                },
                Ok(None) => {}
                Err(cause) => {
                    debug!(%cause, "cannot load the cell's policies");
                    if has_none(&cause) {
                        lists.note_policies();
                    }
                }
            }
            tokio::time::sleep(lists.pause(DEVICES_INTERVAL)).await;
        }
    }
}
