//! Fake object storage devices for a file server of a test, and policies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{ObjectConfig, PinAnswer, PinTable, PolicyList};
use cellar_objects::fake::{FakeOsd, Fault};
use cellar_objects::{DeviceList, Devices};
use cellar_rpc::CallError;
use cellar_until::until;
use cellar_wire::afsosd::SetVolumePolicy;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::object::{Capability, CapabilityBody, Layout, ObjectId};
use cellar_wire::osddb::{self, OsdEntry, OsdListed, PolicyEntry};
use cellar_wire::{AbortCode, AfsString, Encode};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Cell, Machine};

/// Files up to this size stay on the file server in these tests.
pub(crate) const THRESHOLD: u64 = 64 << 10;

/// The file length for a store that keeps the whole file.
pub(crate) const KEEP: u64 = i64::MAX as u64;

/// Bytes without repeated runs.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    bytes
}

/// The layout of a file; `None` if it is not in objects.
pub(crate) fn layout(cell: &Cell, fid: Fid) -> Option<Layout> {
    let volume = cell.partition.volume(fid.volume).unwrap().unwrap();
    volume.layout(fid).unwrap().map(|layout| (*layout).clone())
}

/// All bytes of a file.
pub(crate) async fn read(machine: &Machine, fid: Fid) -> Vec<u8> {
    machine.fetch(fid, 0, 1 << 30).await.unwrap()
}

/// The OSD database of a test.
#[derive(Default)]
pub(crate) struct Database {
    pub(crate) listed: Mutex<Vec<OsdListed>>,
    policies: Mutex<Vec<PolicyEntry>>,
    revision: AtomicU64,
    /// The pins and their revision.
    pub(crate) pins: Mutex<(u64, Vec<osddb::Pin>)>,
}

impl Database {
    /// Sets the policies, by number and text.
    pub(crate) fn set_policies(&self, policies: &[(u32, &str)]) {
        let entry = |(id, text): &(u32, &str)| PolicyEntry {
            id: *id,
            name: AfsString::new(format!("policy{id}")).unwrap(),
            text: AfsString::new(text.as_bytes().to_vec()).unwrap(),
            revision: 1,
        };
        *self.policies.lock() = policies.iter().map(entry).collect();
        self.revision.fetch_add(1, Ordering::Release);
    }
}

impl DeviceList for Database {
    fn list<'a>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<OsdListed>, CallError>> + Send + 'a>> {
        Box::pin(async move { Ok(self.listed.lock().clone()) })
    }
}

impl PolicyList for Database {
    fn policies(
        &self,
        known: u64,
    ) -> BoxFuture<'_, Result<Option<(u64, Vec<PolicyEntry>)>, CallError>> {
        Box::pin(async move {
            let revision = self.revision.load(Ordering::Acquire);
            Ok((revision != known).then(|| (revision, self.policies.lock().clone())))
        })
    }
}

impl PinTable for Database {
    fn pins(&self, known: u64) -> BoxFuture<'_, PinAnswer> {
        Box::pin(async move {
            let (revision, pins) = &*self.pins.lock();
            let changed = pins.iter().filter(|_| *revision != known);
            Ok((*revision, changed.cloned().collect()))
        })
    }

    fn set(&self, pin: osddb::Pin) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move {
            let (revision, pins) = &mut *self.pins.lock();
            *revision += 1;
            pins.push(pin);
            Ok(())
        })
    }

    fn delete(&self, fid: Fid, owner: ViceId) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move {
            let (revision, pins) = &mut *self.pins.lock();
            let before = pins.len();
            *revision += 1;
            pins.retain(|pin| (pin.fid, pin.owner) != (fid, owner));
            match pins.len() < before {
                true => Ok(()),
                false => Err(CallError::Aborted(AbortCode::ENOENT)),
            }
        })
    }
}

/// Devices, with their database and list.
pub(crate) struct Osds {
    pub(crate) fakes: Vec<FakeOsd>,
    pub(crate) database: Arc<Database>,
    pub(crate) devices: Devices,
}

impl Osds {
    /// Starts `count` devices, with numbers from 2, and sets policies by number and text.
    pub(crate) async fn start(cell: &Cell, count: u32, policies: &[(u32, &str)]) -> Self {
        let fakes: Vec<FakeOsd> = (2..2 + count)
            .map(|id| FakeOsd::start(&cell.runtime, id).unwrap())
            .collect();
        let database = Arc::new(Database::default());
        let mut listed: Vec<OsdListed> = fakes.iter().map(FakeOsd::listed).collect();
        listed.push(OsdListed {
            entry: OsdEntry {
                id: 1,
                max_size: THRESHOLD,
                ..OsdEntry::default()
            },
            ..OsdListed::default()
        });
        *database.listed.lock() = listed;
        database.set_policies(policies);
        let devices = attach(&database, cell, "test.cell").await;
        Self {
            fakes,
            database,
            devices,
        }
    }

    /// Makes another server use these devices, as a member of the cell with that name.
    pub(crate) async fn attach(&self, cell: &Cell, name: &str) -> Devices {
        attach(&self.database, cell, name).await
    }

    /// Makes all devices fail in that way from now on.
    pub(crate) fn set_fault(&self, fault: Fault) {
        self.fakes.iter().for_each(|fake| fake.set_fault(fault));
    }

    /// The number of calls to all devices.
    pub(crate) fn calls(&self) -> usize {
        self.fakes.iter().map(FakeOsd::calls).sum()
    }

    /// The versions of an object that its device has.
    pub(crate) fn versions(&self, osd: u32, object: ObjectId) -> Vec<u64> {
        let fake = &self.fakes[osd as usize - 2];
        fake.objects(|objects| {
            let versions = objects.get(&object);
            versions.map_or_else(Vec::new, |versions| versions.keys().copied().collect())
        })
    }

    /// The number of objects on all devices.
    pub(crate) fn objects(&self) -> usize {
        self.fakes
            .iter()
            .map(|fake| fake.objects(|objects| objects.len()))
            .sum()
    }
}

/// Waits until the file server has the policies: before that, no volume can get one.
async fn know_policy(cell: &Cell, policy: u32) {
    let admin = cell.admin().await;
    let set = |policy| SetVolumePolicy {
        fid: Fid::root(super::OPEN),
        policy,
    };
    until("the file server has the policies", async || {
        admin.call(&set(policy)).await.is_ok()
    })
    .await;
    admin.call(&set(0)).await.unwrap();
}

/// Makes a server use the devices of a database, and waits until it knows them.
async fn attach(database: &Arc<Database>, cell: &Cell, name: &str) -> Devices {
    let config = ObjectConfig {
        cell: AfsString::new(name.to_owned()).unwrap(),
        devices: database.clone(),
        policies: database.clone(),
        seal: Arc::new(|body: &CapabilityBody| Capability::new(body.to_xdr()).unwrap()),
        location: String::new(),
        owner: String::new(),
    };
    let devices = cell.server.use_objects(&cell.runtime, &cell.port, config);
    let count = database.listed.lock().len();
    // The tasks load the lists at once.
    until("the list of devices", async || {
        devices.list().len() == count
    })
    .await;
    let policy = database.policies.lock().first().map(|policy| policy.id);
    if let Some(policy) = policy {
        know_policy(cell, policy).await;
    }
    devices
}

/// Sets the policy of a volume.
pub(crate) fn set_policy(cell: &Cell, volume: VolumeId, policy: u32) {
    let volume = cell.partition.volume(volume).unwrap().unwrap();
    let now = cellar_wire::ids::AfsTime(super::NOW as u32);
    let edited = volume.update_info(now, |info| info.policy = policy);
    edited.unwrap().wait().unwrap();
}
