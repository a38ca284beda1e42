//! Files whose bytes are in objects. This server knows their layouts.
//!
//! * For clients without support for objects, it reads and writes the objects ([`fetch`],
//!   [`store`]). A store writes new versions and takes effect by one change of the vnode, so
//!   readers see all or nothing of it.
//! * For clients with support, it hands out layouts and capabilities ([`crate::afsosd`]).
//! * [`policies`] decides which files are in objects; [`layouts`] makes new layouts.
//!   [`store_locks`] serialises the writers of one file; [`open_reads`] knows the versions in use;
//!   [`prune`] removes versions that are no longer needed.
//! * Volumes take their layouts with them ([`lending`]). [`ownership`] decides which volume may
//!   write to the objects.
//! * [`repair`] repairs objects that are lost, damaged or to be moved. [`collect`] removes objects
//!   that no volume of the cell names.
//!
//! Without [`ObjectConfig`] a server has no objects: its files stay on the local disk, whatever the
//! policies say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellar_objects::{Capabilities, DeviceList, Devices, ObjectSet};
use cellar_policy::Policies;
use cellar_rpc::{CallError, Connection, Port, Runtime};
use cellar_wire::AfsString;
use cellar_wire::ids::Fid;
use cellar_wire::object::{Capability, CapabilityBody, Layout, MAY_ALL};
use cellar_wire::osddb::{GetRevisions, ListPolicies, PolicyEntry};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::abort_map::Refusal;
use crate::afsosd::leases::Leases;
use crate::limits::{
    DEVICES_INTERVAL, LOCAL_SIZE_DEFAULT, SERVER_CAPABILITY_LIFE, STATES_ASK_PATIENCE,
    STATES_INTERVAL, STORE_LEASES_INTERVAL,
};
use crate::protection::BoxFuture;
use crate::server::Server;

pub(crate) mod cell;
mod collect;
pub(crate) mod fetch;
mod garbage;
pub(crate) mod layouts;
pub(crate) mod lending;
pub(crate) mod liveness;
pub(crate) mod loaded_lists;
pub(crate) mod open_reads;
pub(crate) mod ownership;
pub(crate) mod pending_versions;
pub(crate) mod policies;
pub(crate) mod prune;
pub(crate) mod repair;
pub(crate) mod store;
pub(crate) mod store_locks;

use cell::Upkeep;
use liveness::DeviceLiveness;
use loaded_lists::{LoadedLists, has_none};
use open_reads::OpenReads;
use ownership::Claims;
use pending_versions::PendingVersions;
use policies::PolicyBook;
use prune::Prunes;
use repair::Repairs;
use store_locks::StoreLocks;

/// The number of the device that stands for the file servers' own disks.
const LOCAL_DISK: u32 = 1;

/// Seals capabilities with the cell's key.
pub type Seal = Arc<dyn Fn(&CapabilityBody) -> Capability + Send + Sync>;

/// The revision of the cell's policies and the full list; `None` if nothing has changed.
pub type PolicyAnswer = Result<Option<(u64, Vec<PolicyEntry>)>, CallError>;

/// The source of the cell's policies.
pub trait PolicyList: Send + Sync + 'static {
    /// The policies and their revision; `None` if the revision is still `known`.
    fn policies(&self, known: u64) -> BoxFuture<'_, PolicyAnswer>;
}

/// An OSD database across the network.
impl PolicyList for Connection {
    fn policies(&self, known: u64) -> BoxFuture<'_, PolicyAnswer> {
        Box::pin(async move {
            if self.call(&GetRevisions {}).await?.policies == known {
                return Ok(None);
            }
            let reply = self.call(&ListPolicies {}).await?;
            Ok(Some((reply.revision, reply.policies.into_vec())))
        })
    }
}

/// Access of a file server to the object storage of its cell.
#[derive(Clone)]
pub struct ObjectConfig {
    /// The cell's name in capabilities.
    pub cell: AfsString<256>,
    /// The list of devices.
    pub devices: Arc<dyn DeviceList>,
    /// The policies.
    pub policies: Arc<dyn PolicyList>,
    /// The cell's key for capabilities.
    pub seal: Seal,
    /// The location of this server, `site/room/rack/host` or a prefix of it; empty if not known.
    pub location: String,
    /// The owner of this server, for the placement of objects; empty for none.
    pub owner: String,
}

impl std::fmt::Debug for ObjectConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectConfig({:?})", self.cell)
    }
}

/// The state of object storage on a file server.
#[derive(Default)]
pub(crate) struct Objects {
    storage: OnceLock<Storage>,
    pub(crate) loaded_lists: LoadedLists,
    pub(crate) policies: PolicyBook,
    pub(crate) store_locks: StoreLocks,
    pub(crate) open_reads: OpenReads,
    pub(crate) prunes: Prunes,
    pub(crate) pending_versions: PendingVersions,
    pub(crate) liveness: DeviceLiveness,
    pub(crate) repairs: Repairs,
    pub(crate) upkeep: OnceLock<Upkeep>,
    pub(crate) leases: Leases,
    pub(crate) claims: Claims,
    pub(crate) figures: ObjectFigures,
    version: AtomicU64,
}

/// Counters of object storage.
#[derive(Debug, Default)]
pub(crate) struct ObjectFigures {
    /// Stores into objects by this server, and those that failed.
    pub(crate) stored: AtomicU64,
    pub(crate) stores_failed: AtomicU64,
    /// Reads from objects by this server, and those that failed.
    pub(crate) fetched: AtomicU64,
    pub(crate) fetches_failed: AtomicU64,
    /// Files whose bytes were moved from this server to objects.
    pub(crate) moved_out: AtomicU64,
    /// Objects that could not be used and were skipped.
    pub(crate) problems: AtomicU64,
    /// How often old versions were removed.
    pub(crate) pruned: AtomicU64,
    /// How often garbage was removed.
    pub(crate) collections: AtomicU64,
}

impl ObjectFigures {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The object storage of the cell.
pub(crate) struct Storage {
    pub(crate) config: ObjectConfig,
    pub(crate) devices: Devices,
    /// Capabilities for every operation, one for each device, with the end of their lifetime.
    own: Arc<Mutex<std::collections::HashMap<u32, (Capability, u64)>>>,
    clock: crate::config::WallClock,
    /// When the list of devices was last loaded.
    listed: Mutex<Option<Instant>>,
}

impl Storage {
    /// This server's own capability for every operation on a device.
    pub(crate) fn capability(&self, osd: u32) -> Capability {
        own_capability(&self.config, &self.own, &self.clock, osd)
    }

    /// The objects of a file, with this server's own capabilities.
    pub(crate) fn set(&self, fid: Fid, layout: Layout) -> ObjectSet {
        let (config, own, clock) = (self.config.clone(), self.own.clone(), self.clock.clone());
        ObjectSet {
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            layout,
            capabilities: Capabilities::Made(Arc::new(move |osd| {
                own_capability(&config, &own, &clock, osd)
            })),
        }
    }

    /// Loads the list of devices.
    async fn load_devices(&self) -> Result<(), CallError> {
        self.devices.refresh(&*self.config.devices).await?;
        *self.listed.lock() = Some(Instant::now());
        Ok(())
    }

    /// Loads the list of devices, with a short timeout, unless it is recent. Without an answer the
    /// old list stays.
    pub(crate) async fn refresh_devices(&self) {
        let listed = *self.listed.lock();
        if listed.is_some_and(|listed| listed.elapsed() < STATES_INTERVAL) {
            return;
        }
        match tokio::time::timeout(STATES_ASK_PATIENCE, self.load_devices()).await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => debug!(%cause, "cannot load the list of devices"),
            Err(_) => debug!("the list of devices did not arrive in time"),
        }
    }

    /// The size up to which files are kept on file servers, in bytes.
    pub(crate) fn threshold(&self) -> u64 {
        let local = self.devices.get(LOCAL_DISK);
        local
            .map(|listed| listed.entry.max_size)
            .filter(|size| *size > 0)
            .unwrap_or(LOCAL_SIZE_DEFAULT)
    }
}

fn own_capability(
    config: &ObjectConfig,
    own: &Mutex<std::collections::HashMap<u32, (Capability, u64)>>,
    clock: &crate::config::WallClock,
    osd: u32,
) -> Capability {
    let now = clock().as_secs();
    let life = SERVER_CAPABILITY_LIFE.as_secs();
    if let Some((capability, expires)) = own.lock().get(&osd)
        && (now + life / 2..=now + life).contains(expires)
    {
        return capability.clone();
    }
    let expires = now + life;
    let capability = (config.seal)(&CapabilityBody {
        cell: config.cell.clone(),
        osd,
        object: cellar_wire::object::ObjectId::default(),
        rights: MAY_ALL,
        base: 0,
        version: 0,
        begin: 0,
        end: u64::MAX,
        expires,
        clients: cellar_wire::List::default(),
        user: cellar_wire::ViceId::ADMINISTRATORS.0,
    });
    own.lock().insert(osd, (capability.clone(), expires));
    capability
}

impl Objects {
    /// The cell's object storage, if this server uses any.
    pub(crate) fn storage(&self) -> Option<&Storage> {
        self.storage.get()
    }

    /// The cell's object storage, for a call that needs it.
    pub(crate) fn needed(&self) -> Result<&Storage, Refusal> {
        self.storage()
            .ok_or(Refusal::Objects(cellar_wire::AbortCode::EIO))
    }

    /// A version number that no object has had. It is higher than `last`, and normally the time in
    /// microseconds since 1970.
    pub(crate) fn next_version(&self, now: Duration, last: u64) -> u64 {
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
    pub(crate) fn start(
        server: &Arc<Server>,
        runtime: &Runtime,
        port: &Port,
        config: ObjectConfig,
    ) -> Devices {
        let devices = Devices::new(port.clone());
        let storage = Storage {
            devices: devices.clone(),
            own: Arc::default(),
            clock: server.config.clock.clone(),
            listed: Mutex::default(),
            config,
        };
        server.objects.loaded_lists.expect();
        let policies = storage.config.policies.clone();
        if server.objects.storage.set(storage).is_err() {
            return devices;
        }
        {
            let server = server.clone();
            runtime.spawn(0, || async move { server.keep_devices().await });
        }
        let kept = server.clone();
        runtime.spawn(0, || async move { kept.keep_policies(&*policies).await });
        let kept = server.clone();
        runtime.spawn(0, || async move {
            while !kept.is_stopping() {
                tokio::time::sleep(STORE_LEASES_INTERVAL).await;
                for lease in kept.objects.leases.sweep(kept.wall().as_secs()) {
                    kept.remove_failed_store(
                        &lease.volume,
                        lease.fid,
                        lease.next,
                        (lease.store_lock, lease.version_guard),
                    );
                }
            }
        });
        let kept = server.clone();
        runtime.spawn(0, || async move { kept.prune_in_background().await });
        devices
    }
}

impl Objects {
    /// Collects garbage and repairs from now on. Only the first call has an effect.
    pub(crate) fn start_upkeep(server: &Arc<Server>, runtime: &Runtime, upkeep: Upkeep) {
        if server.objects.upkeep.set(upkeep.clone()).is_err() {
            return;
        }
        server.start_repairs(runtime, &upkeep);
        let kept = server.clone();
        runtime.spawn(
            0,
            || async move { kept.collect_in_background(upkeep).await },
        );
    }
}

impl Server {
    async fn keep_devices(self: Arc<Self>) {
        let lists = &self.objects.loaded_lists;
        while let Some(storage) = self.objects.storage().filter(|_| !self.is_stopping()) {
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
        let lists = &self.objects.loaded_lists;
        let mut known = u64::MAX;
        while !self.is_stopping() {
            match list.policies(known).await {
                Ok(Some((revision, entries))) => match Policies::compile(&entries) {
                    Ok(policies) => {
                        self.objects.policies.set(policies);
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
