//! The object storage of the cell: its devices, its policies, and the key for capabilities.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_objects::{Capabilities, DeviceList, Devices, ObjectSet};
use cellar_rpc::{CallError, Connection};
use cellar_wire::AfsString;
use cellar_wire::ids::Fid;
use cellar_wire::object::{Capability, CapabilityBody, Layout, MAY_ALL};
use cellar_wire::osddb::{GetRevisions, ListPolicies, PolicyEntry};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::WallClock;
use super::cell::BoxFuture;
use super::limits::{
    LOCAL_SIZE_DEFAULT, SERVER_CAPABILITY_LIFE, STATES_ASK_PATIENCE, STATES_INTERVAL,
};

/// The number of the device that stands for the file servers' own disks.
pub(super) const LOCAL_DISK: u32 = 1;

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

/// The object storage of the cell.
pub(crate) struct Storage {
    pub(crate) config: ObjectConfig,
    pub(crate) devices: Devices,
    /// Capabilities for every operation, one for each device, with the end of their lifetime.
    own: Arc<Mutex<HashMap<u32, (Capability, u64)>>>,
    clock: WallClock,
    /// When the list of devices was last loaded.
    listed: Mutex<Option<Instant>>,
}

impl Storage {
    pub(super) fn new(config: ObjectConfig, devices: Devices, clock: WallClock) -> Self {
        Self {
            config,
            devices,
            own: Arc::default(),
            clock,
            listed: Mutex::default(),
        }
    }

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
    pub(super) async fn load_devices(&self) -> Result<(), CallError> {
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
    own: &Mutex<HashMap<u32, (Capability, u64)>>,
    clock: &WallClock,
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
