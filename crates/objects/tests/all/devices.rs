//! The same files on real devices: the server of `cellar osd` over object stores on disks in
//! memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cellar_auth::capability::CapabilityKeys;
use cellar_auth::{Authority, Enctype, SecretKey};
use cellar_objects::arithmetic::length_at;
use cellar_objects::repair::{Pace, RebuildTarget, rebuild};
use cellar_objects::{
    Capabilities, Devices, ObjectSet, ReadOptions, Reader, Result, WriteOptions, Writer, words_of,
};
use cellar_osd::{Config, OsdServer};
use cellar_rpc::{Port, PortConfig, Runtime, RuntimeConfig};
use cellar_volume::Options;
use cellar_volume::disk::SimDisk;
use cellar_volume::objects::ObjectStore;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{
    CapabilityBody, Layout, MAY_ALL, MAY_READ, MAY_WRITE, Placed, Scheme, Shape,
};
use cellar_wire::osddb::{OsdEntry, OsdListed, OsdState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const DEVICES: u32 = 7;

struct Cell {
    runtime: Runtime,
    servers: Vec<OsdServer>,
    ports: Vec<Port>,
    devices: Devices,
    keys: Arc<CapabilityKeys>,
    _directory: tempfile::TempDir,
}

fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

impl Cell {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open(directory.path(), "example.org").unwrap();
        let key = SecretKey::new(Enctype::Aes256Sha1, &[7; 32]).unwrap();
        authority.keys().add(1, &key).unwrap();
        let keys = Arc::new(CapabilityKeys::open(directory.path(), &authority).unwrap());
        let runtime = Runtime::start(RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        })
        .unwrap();
        let (mut servers, mut ports, mut list) = (Vec::new(), Vec::new(), Vec::new());
        for id in 2..2 + DEVICES {
            let disk = Arc::new(SimDisk::new(256 << 20));
            let store = ObjectStore::open(disk, Options::default()).unwrap();
            let config = Config::new(authority.clone(), keys.clone(), clock);
            let server = OsdServer::new(config, vec![(id, store)]);
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let port = runtime
                .open(PortConfig::new(any).service(server.service()))
                .unwrap();
            server.start(&runtime, &port);
            let address = port.local_address();
            let entry = OsdEntry {
                id,
                addresses: vec![words_of(address.ip())].try_into().unwrap(),
                port: u32::from(address.port()),
                ..OsdEntry::default()
            };
            list.push(OsdListed {
                entry,
                state: OsdState::default(),
                dead: false,
            });
            servers.push(server);
            ports.push(port);
        }
        let devices = Devices::new(runtime.client_port().unwrap());
        devices.update(&list);
        Self {
            runtime,
            servers,
            ports,
            devices,
            keys,
            _directory: directory,
        }
    }

    fn set(&self, layout: &Layout, vnode: u32) -> ObjectSet {
        let keys = self.keys.clone();
        let seal = move |osd| {
            keys.seal(&CapabilityBody {
                cell: Default::default(),
                osd,
                object: Default::default(),
                rights: MAY_ALL,
                base: 0,
                version: 0,
                begin: 0,
                end: u64::MAX,
                expires: clock().as_secs() + 600,
                clients: Default::default(),
                user: 0,
            })
            .unwrap()
        };
        ObjectSet {
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(7),
            layout: layout.clone(),
            capabilities: Capabilities::Made(Arc::new(seal)),
        }
    }
}

/// A file and its expected contents.
struct File<'a> {
    cell: &'a Cell,
    vnode: u32,
    layout: Layout,
    model: Vec<u8>,
}

impl File<'_> {
    fn writer(&mut self) -> Writer {
        self.layout.version += 1;
        let set = self.cell.set(&self.layout, self.vnode);
        let (devices, length) = (self.cell.devices.clone(), self.model.len() as u64);
        Writer::new(devices, set, length, WriteOptions::default()).unwrap()
    }

    async fn write(&mut self, position: usize, bytes: Vec<u8>) {
        let mut writer = self.writer();
        let stored = async {
            writer.begin(position as u64, bytes.len() as u64).await?;
            writer.push(Bytes::copy_from_slice(&bytes)).await?;
            writer.finish().await
        };
        self.layout = stored.await.unwrap().layout;
        let end = position + bytes.len();
        let longer = self.model.len().max(end);
        self.model.resize(longer, 0);
        self.model[position..end].copy_from_slice(&bytes);
    }

    async fn truncate(&mut self, length: usize) {
        let mut writer = self.writer();
        writer.truncate(length as u64).await.unwrap();
        self.layout = writer.finish().await.unwrap().layout;
        self.model.resize(length, 0);
    }

    async fn read(&self) -> Result<Vec<u8>> {
        let set = self.cell.set(&self.layout, self.vnode);
        let range = 0..self.model.len() as u64;
        let devices = self.cell.devices.clone();
        let mut reader = Reader::new(devices, set, range, ReadOptions::default())?;
        Ok(reader.rest().await?.concat())
    }

    async fn compare(&self) {
        assert!(
            self.read().await.unwrap() == self.model,
            "{:?}",
            self.layout
        );
    }
}

/// A layout of that shape, of which nothing is written yet.
fn layout_of(shape: Shape) -> Layout {
    let objects: Vec<Placed> = (0..shape.objects() as u32)
        .map(|place| Placed {
            osd: 2 + place,
            serial: 1 + place,
            version: 0,
            stale: false,
        })
        .collect();
    Layout {
        shape,
        version: 0,
        serial: objects.len() as u32,
        volume: VolumeId(536_870_912),
        objects: objects.try_into().unwrap(),
    }
}

#[tokio::test]
async fn files_on_real_devices_are_files() {
    let cell = Cell::start();
    let mut rng = StdRng::seed_from_u64(5);
    let shape = |scheme, stripes, copies| Shape {
        scheme,
        stripes,
        copies,
        unit: 4096,
    };
    let shapes = [
        shape(Scheme::Striped, 1, 1),
        shape(Scheme::Striped, 4, 1),
        shape(Scheme::Striped, 2, 3),
        shape(Scheme::Erasure, 4, 2),
    ];
    let mut files = Vec::new();
    for (number, shape) in shapes.into_iter().enumerate() {
        let mut file = File {
            cell: &cell,
            vnode: 2 + 2 * number as u32,
            layout: layout_of(shape),
            model: Vec::new(),
        };
        for _ in 0..12 {
            let length = file.model.len();
            match rng.random_range(0..4) {
                0 => file.truncate(rng.random_range(0..length + 9000)).await,
                1 => {
                    // An abandoned store, which the next one replaces.
                    let mut writer = file.writer();
                    writer.begin(0, 50_000).await.unwrap();
                    writer.push(vec![1; 30_000].into()).await.unwrap();
                }
                _ => {
                    let position = rng.random_range(0..=length + 5000);
                    let mut bytes = vec![0; rng.random_range(1..60_000)];
                    rng.fill(&mut bytes[..]);
                    file.write(position, bytes).await;
                }
            }
            file.compare().await;
        }
        file.write(0, vec![9; 70_000]).await;
        files.push(file);
    }
    // One device is gone: files with copies or parity are read, stored and repaired.
    cell.ports[1].close();
    for file in &mut files[2..] {
        file.compare().await;
        file.write(10_000, vec![5; 30_000]).await;
        assert!(file.layout.objects[1].stale);
        file.compare().await;
        let set = cell.set(&file.layout, file.vnode);
        let target = RebuildTarget { osd: 8, serial: 77 };
        let (length, pace) = (file.model.len() as u64, Pace::new(0));
        let made = rebuild(&cell.devices, &set, 1, target, length, &pace).await;
        file.layout.objects.as_mut_slice()[1] = made.unwrap();
        file.layout.serial = 77;
        file.compare().await;
    }
    assert!(files[1].read().await.is_err());
    // A second device is gone: the rebuilt objects replace its data.
    cell.ports[0].close();
    for file in &files[2..] {
        file.compare().await;
    }
    cell.runtime.shutdown();
    for server in &cell.servers {
        server.stop().unwrap();
    }
}

/// Capabilities as a file server issues them: for the versions of this store, and for no byte after
/// the file's end.
fn of_a_store(cell: &Cell, layout: &Layout, vnode: u32, length: u64) -> Capabilities {
    let set = cell.set(layout, vnode);
    let seal = |(place, placed): (usize, &Placed)| {
        let body = CapabilityBody {
            cell: Default::default(),
            osd: placed.osd,
            object: layout.object(set.vnode, set.uniquifier, placed),
            rights: MAY_READ | MAY_WRITE,
            base: placed.version,
            version: layout.version,
            begin: 0,
            end: length_at(&layout.shape, place, length),
            expires: clock().as_secs() + 600,
            clients: Default::default(),
            user: 0,
        };
        cell.keys.seal(&body).unwrap()
    };
    let all: Vec<_> = layout.objects.iter().enumerate().map(seal).collect();
    Capabilities::Listed(Arc::new(all.try_into().unwrap()))
}

#[tokio::test]
async fn a_store_without_a_device_asks_for_no_more_than_it_may() {
    let cell = Cell::start();
    let shape = Shape {
        scheme: Scheme::Erasure,
        stripes: 4,
        copies: 2,
        unit: 4096,
    };
    let mut file = File {
        cell: &cell,
        vnode: 2,
        layout: layout_of(shape),
        model: Vec::new(),
    };
    // The last row ends within its first unit.
    file.write(0, vec![3; 4 * 4096 + 100]).await;
    cell.ports[0].close();
    file.compare().await;
    file.layout.version += 1;
    let end = file.model.len() as u64 + 50;
    let capabilities = of_a_store(&cell, &file.layout, 2, end);
    let set = ObjectSet {
        capabilities,
        ..cell.set(&file.layout, 2)
    };
    let (devices, options) = (cell.devices.clone(), WriteOptions::default());
    let mut writer = Writer::new(devices, set, end - 50, options).unwrap();
    writer.begin(end - 50, 50).await.unwrap();
    writer.push(vec![4; 50].into()).await.unwrap();
    file.layout = writer.finish().await.unwrap().layout;
    assert!(file.layout.objects[0].stale);
    file.model.resize(end as usize, 4);
    file.compare().await;
    cell.runtime.shutdown();
}
