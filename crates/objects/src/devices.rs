//! The cell's devices as this process sees them: the list of the database, failures that it noticed
//! itself, and connections to the servers.
//!
//! 1. The list comes from the OSD database every few seconds ([`Devices::keep_fresh`]) or with each
//!    answer of a file server ([`Devices::merge`]). It marks devices as dead after some seconds of
//!    silence.
//! 2. A process that calls a device learns of failures sooner. After a failure the device is
//!    *suspect* for [`SUSPECT_TIME`]. Suspects are used last, and are retried when no other device
//!    is left. If a file server stands in for devices ([`Devices::with_fallback`]), a device that
//!    was silent counts as dead for [`SILENT_TIME`]. The reason is that detecting silence takes
//!    longer than asking the file server. Readers pass such a device over for the same time before
//!    this is certain, unless it sends something after all. Stores ignore that, as a copy that a
//!    store leaves out must be repaired.
//! 3. Each shard of the runtime has its own connection to a device, so that callers there enter the
//!    protocol directly. Connections last until the device's addresses change, a call fails, or
//!    this machine's address changes.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{CallError, Connection, ConnectionOptions, Port, Security};
use cellar_wire::abort::AbortCode;
use cellar_wire::osd;
use cellar_wire::osddb::{ListOsds, OsdListed};
use parking_lot::RwLock;
use tokio::time::Instant;

/// Time for which a device that failed is used only after all others.
pub const SUSPECT_TIME: Duration = Duration::from_secs(5);

/// Time for which a silent device is not used if a file server stands in for it.
const SILENT_TIME: Duration = Duration::from_secs(60);

/// Silence that ends a call if a file server stands in.
const STOOD_IN_DEAD_TIME: Duration = Duration::from_secs(6);

/// Silence after which a device's server counts as dead for a call in progress.
pub const DEAD_TIME: Duration = Duration::from_secs(10);

/// Idle time of a living server after which a call fails: its disk hangs.
pub const IDLE_TIME: Duration = Duration::from_secs(30);

/// The `silence` of a device from which the database has received nothing since its start.
const NEVER_REPORTED: u32 = u32::MAX;

/// Most calls in progress to one device from one shard.
const CALLS_MAX: usize = 128;

/// Presumed condition of a device; better ones are smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// No known problem.
    Well,
    /// A call failed recently.
    Suspect,
    /// The list marks its server as silent, or lacks the device; or it was silent, and a file
    /// server stands in for it.
    Dead,
}

/// Source of the list of devices.
pub trait DeviceList: Send + Sync + 'static {
    /// Returns all devices of the cell.
    fn list<'a>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<OsdListed>, CallError>> + Send + 'a>>;
}

/// Uses a connection to an OSD database.
impl DeviceList for Connection {
    fn list<'a>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<OsdListed>, CallError>> + Send + 'a>> {
        Box::pin(async move { Ok(self.call(&ListOsds {}).await?.osds.into_vec()) })
    }
}

/// The devices of a cell. Cheap to clone; clones share all state.
#[derive(Clone)]
pub struct Devices(Arc<Shared>);

struct Shared {
    port: Port,
    has_fallback: bool,
    idle_time: RwLock<Duration>,
    devices: RwLock<HashMap<u32, Device>>,
}

/// Meaning of a long idle time of a living server.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Silence {
    /// After [`IDLE_TIME`] the call fails.
    Fails,
    /// No failure: the server works, or this process sends nothing.
    Works,
}

struct Device {
    listed: OsdListed,
    addresses: Vec<SocketAddr>,
    /// Index of the address in use.
    current: usize,
    /// Connections by shard (`None`: callers on other threads), and whether idle time ends their
    /// calls.
    connections: HashMap<(Option<usize>, Silence), Connection>,
    suspect_until: Option<Instant>,
    /// End of the silent time of rule 2.
    silent_until: Option<Instant>,
    /// End of the silent time of rule 2 for readers.
    passed_over_until: Option<Instant>,
}

impl Device {
    /// Clears all suspicions.
    fn clear(&mut self) {
        self.suspect_until = None;
        self.silent_until = None;
        self.passed_over_until = None;
    }

    /// Whether it counted as silent, at least for readers.
    fn is_silent(&self) -> bool {
        self.silent_until.or(self.passed_over_until).is_some()
    }
}

impl Devices {
    /// Creates an empty list; calls go out from `port`.
    #[must_use]
    pub fn new(port: Port) -> Self {
        Self::make(port, false)
    }

    /// The same for a client, which can always use a file server instead.
    #[must_use]
    pub fn with_fallback(port: Port) -> Self {
        Self::make(port, true)
    }

    fn make(port: Port, has_fallback: bool) -> Self {
        Self(Arc::new(Shared {
            port,
            has_fallback,
            idle_time: RwLock::new(IDLE_TIME),
            devices: RwLock::default(),
        }))
    }

    /// Replaces [`IDLE_TIME`] for new connections.
    #[cfg(feature = "fake")]
    pub fn set_idle_time(&self, time: Duration) {
        *self.0.idle_time.write() = time;
    }

    /// Whether a file server can be used instead of a device.
    pub(crate) fn has_fallback(&self) -> bool {
        self.0.has_fallback
    }

    /// Idle time of a living server after which a call fails.
    pub(crate) fn idle_time(&self) -> Duration {
        *self.0.idle_time.read()
    }

    /// Replaces the whole list.
    pub fn update(&self, list: &[OsdListed]) {
        let mut devices = self.0.devices.write();
        devices.retain(|id, _| list.iter().any(|listed| listed.entry.id == *id));
        for listed in list {
            put(&mut devices, listed);
        }
    }

    /// Updates or adds some devices.
    pub fn merge(&self, list: &[OsdListed]) {
        let mut devices = self.0.devices.write();
        for listed in list {
            put(&mut devices, listed);
        }
    }

    /// Fetches the list now.
    ///
    /// # Errors
    /// The call failed; the list stays unchanged.
    pub async fn refresh(&self, source: &dyn DeviceList) -> Result<(), CallError> {
        self.update(&source.list().await?);
        Ok(())
    }

    /// Fetches the list every `period`, forever; runs in a task of its own. On failure the list
    /// stays unchanged.
    pub async fn keep_fresh(self, source: Arc<dyn DeviceList>, period: Duration) {
        loop {
            if let Err(cause) = self.refresh(&*source).await {
                tracing::debug!(%cause, "cannot fetch the list of object storage devices");
            }
            tokio::time::sleep(period).await;
        }
    }

    /// Returns all known devices, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<OsdListed> {
        let devices = self.0.devices.read();
        devices
            .values()
            .map(|device| device.listed.clone())
            .collect()
    }

    /// Returns the entry of one device.
    #[must_use]
    pub fn get(&self, osd: u32) -> Option<OsdListed> {
        let devices = self.0.devices.read();
        devices.get(&osd).map(|device| device.listed.clone())
    }

    /// Returns the current address of a device's server.
    #[must_use]
    pub fn address(&self, osd: u32) -> Option<SocketAddr> {
        let devices = self.0.devices.read();
        let device = devices.get(&osd)?;
        device.addresses.get(device.current).copied()
    }

    /// Returns the presumed condition of a device. One that is not listed is dead.
    #[must_use]
    pub fn condition(&self, osd: u32) -> Condition {
        match self.0.devices.read().get(&osd) {
            None => Condition::Dead,
            Some(device) if device.listed.dead || device.addresses.is_empty() => Condition::Dead,
            Some(device) if device.silent_until.is_some_and(|t| t > Instant::now()) => {
                Condition::Dead
            }
            Some(device) if device.suspect_until.is_some_and(|t| t > Instant::now()) => {
                Condition::Suspect
            }
            Some(_) => Condition::Well,
        }
    }

    /// Returns the weight of a device in the choice of a copy to read.
    #[must_use]
    pub fn read_priority(&self, osd: u32) -> u32 {
        let devices = self.0.devices.read();
        devices
            .get(&osd)
            .map_or(0, |device| device.listed.entry.read_priority)
    }

    /// Returns a connection to a device's server; `None` if it is not listed or has no address.
    #[must_use]
    pub fn connection(&self, osd: u32) -> Option<Connection> {
        self.connected(osd, Silence::Fails)
    }

    /// The same for calls in which a long idle time is no failure. The server may have much to do,
    /// or the caller may have nothing to send yet. The caller limits its own waits for the server.
    #[must_use]
    pub fn connection_for_work(&self, osd: u32) -> Option<Connection> {
        self.connected(osd, Silence::Works)
    }

    fn connected(&self, osd: u32, silence: Silence) -> Option<Connection> {
        let key = (self.0.port.shard_here(), silence);
        {
            let devices = self.0.devices.read();
            if let Some(connection) = devices.get(&osd)?.connections.get(&key) {
                return Some(connection.clone());
            }
        }
        let mut devices = self.0.devices.write();
        let device = devices.get_mut(&osd)?;
        let address = *device.addresses.get(device.current)?;
        let make = || {
            let options = ConnectionOptions {
                dead_time: Some(match self.0.has_fallback {
                    true => STOOD_IN_DEAD_TIME,
                    false => DEAD_TIME,
                }),
                idle_dead_time: match silence {
                    Silence::Fails => Some(self.idle_time()),
                    Silence::Works => None,
                },
                calls_max: Some(CALLS_MAX),
                ..ConnectionOptions::default()
            };
            // Capabilities prove the permissions.
            let port = &self.0.port;
            port.connect_with(address, osd::PACKAGE.service_id, Security::null(), options)
        };
        Some(device.connections.entry(key).or_insert_with(make).clone())
    }

    /// Records a failed call to a device. A missing object or wrong bytes are no failure of the
    /// device.
    pub fn failed(&self, osd: u32, cause: &CallError) {
        let busy = matches!(cause, CallError::Aborted(code) if code.to_plain() == AbortCode::VBUSY);
        if !busy && matches!(cause, CallError::Aborted(_)) {
            return;
        }
        if let Some(device) = self.0.devices.write().get_mut(&osd) {
            tracing::debug!(osd, %cause, "device is suspect");
            let now = Instant::now();
            device.suspect_until = Some(now + SUSPECT_TIME);
            if busy {
                return;
            }
            if self.0.has_fallback && matches!(cause, CallError::Dead | CallError::Gone) {
                device.silent_until = Some(now + SILENT_TIME);
            }
            if device.addresses.len() > 1 {
                device.current = (device.current + 1) % device.addresses.len();
            }
            // A server answers to the address of a connection's first packet, which may no longer
            // be ours.
            device.connections.clear();
        }
    }

    /// Marks a device as suspect that answers but cannot be used now.
    pub fn suspect(&self, osd: u32) {
        if let Some(device) = self.0.devices.write().get_mut(&osd) {
            device.suspect_until = Some(Instant::now() + SUSPECT_TIME);
        }
    }

    /// Makes readers pass over a device whose silence [`Self::failed`] has recorded. Returns
    /// whether this is new. A device with another address is tried there first.
    pub(crate) fn pass_over(&self, osd: u32) -> bool {
        let mut devices = self.0.devices.write();
        let Some(device) = devices.get_mut(&osd).filter(|device| device.current == 0) else {
            return false;
        };
        let now = Instant::now();
        let news = device.passed_over_until.is_none_or(|until| until <= now);
        device.passed_over_until = Some(now + SILENT_TIME);
        news
    }

    /// Whether readers pass over a device.
    pub(crate) fn is_passed_over(&self, osd: u32) -> bool {
        let devices = self.0.devices.read();
        let until = devices
            .get(&osd)
            .and_then(|device| device.passed_over_until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// Records that a device sent something: it may be slow, but is not silent.
    pub(crate) fn clear_silence(&self, osd: u32) {
        let counts_as_silent = {
            let devices = self.0.devices.read();
            devices.get(&osd).is_some_and(Device::is_silent)
        };
        if counts_as_silent && let Some(device) = self.0.devices.write().get_mut(&osd) {
            device.silent_until = None;
            device.passed_over_until = None;
        }
    }

    /// Drops all connections and clears all suspicions: this machine has a new address, or has
    /// slept. Connections are created again on demand.
    pub fn renew(&self) {
        for device in self.0.devices.write().values_mut() {
            device.clear();
            device.connections.clear();
        }
    }

    /// Records a successful call to a device.
    pub fn succeeded(&self, osd: u32) {
        let suspect = {
            let devices = self.0.devices.read();
            devices
                .get(&osd)
                .is_some_and(|device| device.suspect_until.is_some() || device.is_silent())
        };
        if suspect && let Some(device) = self.0.devices.write().get_mut(&osd) {
            device.clear();
        }
    }
}

fn put(devices: &mut HashMap<u32, Device>, listed: &OsdListed) {
    let port = u16::try_from(listed.entry.port).unwrap_or(0);
    let addresses: Vec<SocketAddr> = listed
        .entry
        .addresses
        .iter()
        .map(|words| SocketAddr::new(address_of(words), port))
        .collect();
    match devices.get_mut(&listed.entry.id) {
        Some(device) => {
            if device.addresses != addresses {
                device.addresses = addresses;
                device.current = 0;
                device.connections.clear();
                device.clear();
            }
            let has_reported =
                |listed: &OsdListed| !listed.dead && listed.state.silence != NEVER_REPORTED;
            // The database was just started. The earlier state counts until the database has heard
            // from the device again, or marks it as dead.
            let state = match !listed.dead && !has_reported(listed) && has_reported(&device.listed)
            {
                true => device.listed.state,
                false => listed.state,
            };
            device.listed = OsdListed {
                state,
                ..listed.clone()
            };
        }
        None => {
            let device = Device {
                listed: listed.clone(),
                addresses,
                current: 0,
                connections: HashMap::new(),
                suspect_until: None,
                silent_until: None,
                passed_over_until: None,
            };
            devices.insert(listed.entry.id, device);
        }
    }
}

/// Converts an address from the form of object storage packages.
#[must_use]
pub fn address_of(words: &[u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (place, word) in octets.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    Ipv6Addr::from(octets).to_canonical()
}

/// Converts an address into four words, IPv4 mapped.
#[must_use]
pub fn words_of(address: IpAddr) -> [u32; 4] {
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let octets = mapped.octets();
    std::array::from_fn(|word| {
        let at = word * 4;
        u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    })
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.0.devices.read();
        f.debug_list().entries(devices.keys()).finish()
    }
}
