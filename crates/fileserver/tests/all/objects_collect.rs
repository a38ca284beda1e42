//! Garbage of objects: versions without references are collected, and versions with references
//! never are.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::osds::{KEEP, THRESHOLD, pattern, set_policy};
use crate::common::real::{
    RealOsds, Servers, knows_policies, patiently, store_patiently, superuser, upkeep,
};
use crate::common::{CLONE, Cell, Machine, NOW, OPEN, name, uuid};
use bytes::Bytes;
use cellar_rpc::{CallError, Connection, ConnectionOptions, Security};
use cellar_until::until;
use cellar_volume::{RestoreMode, RestoredInfo, Since, SnapshotSpec, VolumeKind, VolumeSpec};
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{self, COLLECT_DRY, CollectGarbage, Collected};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_DRAINING};
use cellar_wire::rxafs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BIG: usize = 2 * THRESHOLD as usize + 777;
const BACKUP: VolumeId = VolumeId(OPEN.0 + 2);

type Contents = BTreeMap<String, (Fid, Vec<u8>)>;

/// Two file servers of a cell and their devices. The first has the RW volume and its clones on its
/// own partition. The second may have a read-only volume.
struct World {
    osds: RealOsds,
    servers: Arc<Servers>,
    here: Cell,
    there: Cell,
    machine: Machine,
    other: Machine,
    admin: Connection,
}

impl World {
    async fn new(devices: u32, policy: &str) -> Self {
        let osds = RealOsds::start(devices, &[(2, policy)]);
        let here = Cell::start();
        let there = Cell::start_with(|mut config| {
            config.uuid = uuid(0xfd);
            config
        });
        there.partition.delete_volume(OPEN).unwrap().wait().unwrap();
        let servers = Arc::new(Servers::default());
        let admin = superuser(&here);
        servers.add(1, uuid(0xfe), admin.clone());
        servers.add(2, uuid(0xfd), superuser(&there));
        for cell in [&here, &there] {
            osds.serve(cell);
            cell.server.keep_objects(&cell.runtime, upkeep(&servers));
        }
        set_policy(&here, OPEN, 2);
        let world = Self {
            machine: Machine::new(&here, 1),
            other: Machine::new(&there, 2),
            osds,
            servers,
            here,
            there,
            admin,
        };
        world.place(false, false);
        knows_policies(&world.here, &world.machine).await;
        world.remove("probe").await;
        until("nothing is left", async || world.osds.counts().0 == 0).await;
        world
    }

    /// Sets the sites of the volumes in the location database.
    fn place(&self, clone: bool, released: bool) {
        let mut sites = vec![(1, OPEN)];
        sites.extend(clone.then_some((1, CLONE)));
        sites.extend(released.then_some((2, CLONE)));
        self.servers.place(OPEN, &sites);
    }

    async fn create(&self, title: &str) -> Fid {
        self.machine.create(Fid::root(OPEN), title).await
    }

    async fn store(&self, fid: Fid, position: u64, bytes: &[u8], file_length: u64) {
        let stored = store_patiently(&self.machine, fid, position, bytes, file_length);
        stored.await.unwrap();
    }

    async fn remove(&self, title: &str) {
        let call = rxafs::RemoveFile {
            dir_fid: Fid::root(OPEN),
            name: name(title),
        };
        self.machine.ok(&call).await;
    }

    fn snapshot(&self, id: VolumeId, kind: VolumeKind) {
        let now = AfsTime(NOW as u32);
        let spec = SnapshotSpec::new(OPEN, id, format!("scratch.{}", id.0), kind, now);
        self.here.partition.snapshot(&spec).unwrap().wait().unwrap();
    }

    fn delete(&self, cell: &Cell, id: VolumeId) {
        if cell.partition.volume(id).unwrap().is_some() {
            cell.partition.delete_volume(id).unwrap().wait().unwrap();
        }
    }

    /// A release that sends layouts: the other server's read-only volume names the same objects.
    fn release(&self) {
        let volume = self.here.partition.volume(OPEN).unwrap().unwrap();
        if self.there.partition.volume(CLONE).unwrap().is_none() {
            let spec = VolumeSpec {
                kind: VolumeKind::ReadOnly,
                parent: OPEN,
                root: false,
                ..VolumeSpec::new(CLONE, "scratch.readonly", ViceId(1), AfsTime(NOW as u32))
            };
            let made = self.there.partition.create_volume(&spec).unwrap();
            made.wait().unwrap();
        }
        let (holders, _) = self.here.partition.holders(0, 1 << 20, |_| true).unwrap();
        let versions = holders.iter().map(|holder| holder.layout.version);
        let shared = versions.max().unwrap_or(1);
        let edited = volume.update_info(AfsTime(NOW as u32), |info| {
            info.shared = info.shared.max(shared);
        });
        edited.unwrap().wait().unwrap();
        let frozen = volume.freeze().unwrap();
        let mut restore = self
            .there
            .partition
            .begin_restore(CLONE, RestoreMode::Full)
            .unwrap();
        let mut vnodes = frozen.vnodes(Since::Everything).unwrap();
        while let Some(listed) = vnodes.next().unwrap() {
            let image = listed.image.clone().unwrap();
            restore.put(&image).unwrap();
            if image.layout.is_some() || image.wiped.is_some() {
                continue;
            }
            let (mut body, mut at) = (frozen.body(&listed, None).unwrap(), 0);
            while let Some(part) = body.next(1 << 20).unwrap() {
                restore.zeros(part.at - at).unwrap();
                at = part.at + part.length();
                match part.content {
                    cellar_volume::Content::Bytes(bytes) => restore.push(bytes).unwrap(),
                    cellar_volume::Content::Hole(length) => restore.zeros(length).unwrap(),
                }
            }
            restore.zeros(image.length - at).unwrap();
        }
        let mut info = frozen.info().clone();
        info.kind = VolumeKind::ReadOnly;
        info.in_service = true;
        let restored = RestoredInfo {
            info,
            next_uniquifier: frozen.next_uniquifier().0,
            received: None,
        };
        restore.commit(restored).unwrap().wait().unwrap();
    }

    async fn call(&self, grace: u32, flags: u32) -> Result<Collected, CallError> {
        let call = CollectGarbage {
            volume: OPEN.0,
            after: 0,
            grace,
            flags,
        };
        Ok(self.admin.call(&call).await?.collected)
    }

    /// Collects all present garbage.
    async fn collect(&self) -> Collected {
        let collected = self.call(0, 0).await.unwrap();
        assert!(
            collected.silent.is_empty() && !collected.changing,
            "{collected:?}"
        );
        assert_eq!(collected.next, 0);
        collected
    }

    async fn check(&self, machine: &Machine, volume: VolumeId, contents: &Contents, what: &str) {
        for (title, (fid, bytes)) in contents {
            let fid = Fid { volume, ..*fid };
            let read = machine.fetch(fid, 0, 1 << 30).await;
            let read = read.unwrap_or_else(|cause| panic!("{what}: {title} {fid}: {cause}"));
            assert!(read == *bytes, "{what}: {title} {fid} has other bytes");
        }
    }
}

/// The expected contents of each volume of the family.
#[derive(Default)]
struct Model {
    head: Contents,
    clone: Option<Contents>,
    backup: Option<Contents>,
    released: Option<Contents>,
    names: u32,
}

impl Model {
    async fn check(&self, world: &World, what: &str) {
        world.check(&world.machine, OPEN, &self.head, what).await;
        for (machine, volume, contents) in [
            (&world.machine, CLONE, &self.clone),
            (&world.machine, BACKUP, &self.backup),
            (&world.other, CLONE, &self.released),
        ] {
            if let Some(contents) = contents {
                world.check(machine, volume, contents, what).await;
            }
        }
    }

    async fn store(&mut self, world: &World, random: &mut StdRng) {
        let title = match self.head.len() {
            0..3 => None,
            8.. => self.some(random),
            _ if random.random() => self.some(random),
            _ => None,
        };
        let title = match title {
            Some(title) => title,
            None => {
                self.names += 1;
                let title = format!("f{}", self.names);
                let fid = world.create(&title).await;
                self.head.insert(title.clone(), (fid, Vec::new()));
                title
            }
        };
        let (fid, bytes) = self.head.get_mut(&title).unwrap();
        let position = random.random_range(0..bytes.len() + 5000);
        let length = random.random_range(1..BIG);
        let new = pattern(length, random.random());
        world.store(*fid, position as u64, &new, KEEP).await;
        bytes.resize(bytes.len().max(position + length), 0);
        bytes[position..position + length].copy_from_slice(&new);
    }

    fn some(&self, random: &mut StdRng) -> Option<String> {
        if self.head.is_empty() {
            return None;
        }
        let place = random.random_range(0..self.head.len());
        self.head.keys().nth(place).cloned()
    }

    async fn step(&mut self, world: &World, random: &mut StdRng) -> &'static str {
        match random.random_range(0..20) {
            0..7 => {
                self.store(world, random).await;
                "store"
            }
            7 => {
                if let Some(title) = self.some(random) {
                    let (fid, bytes) = self.head.get_mut(&title).unwrap();
                    let length = random.random_range(0..bytes.len() + 1);
                    world.store(*fid, length as u64, &[], length as u64).await;
                    bytes.truncate(length);
                }
                "truncate"
            }
            8..10 => {
                if let Some(title) = self.some(random) {
                    world.remove(&title).await;
                    self.head.remove(&title);
                }
                "remove"
            }
            10 => {
                world.snapshot(CLONE, VolumeKind::ReadOnly);
                self.clone = Some(self.head.clone());
                "clone"
            }
            11 => {
                world.snapshot(BACKUP, VolumeKind::Backup);
                self.backup = Some(self.head.clone());
                "backup"
            }
            12 => {
                world.release();
                self.released = Some(self.head.clone());
                "release"
            }
            13 => {
                let id = if random.random() { CLONE } else { BACKUP };
                world.delete(&world.here, id);
                match id {
                    CLONE => self.clone = None,
                    _ => self.backup = None,
                }
                "delete a clone"
            }
            14 => {
                let ids = world.osds.ids();
                let id = ids[random.random_range(0..ids.len())];
                world.osds.crash_device(id, random.random());
                "a power cut of a device"
            }
            15 => {
                let ids = world.osds.ids();
                let id = ids[random.random_range(0..ids.len())];
                world.osds.mark(id, OSD_DRAINING);
                until("a drain", async || {
                    let cells = [&world.here, &world.there];
                    cells.iter().all(|cell| {
                        let on = |layout: &cellar_wire::object::Layout| {
                            layout.objects.iter().any(|placed| placed.osd == id)
                        };
                        cell.partition.holders(0, 1 << 20, on).unwrap().0.is_empty()
                    })
                })
                .await;
                world.osds.mark(id, 0);
                "a drain"
            }
            _ => {
                // During a store.
                tokio::join!(world.collect(), self.store(world, random));
                self.check(world, "after a collection").await;
                "collect"
            }
        }
    }
}

/// Stores, clones, releases, removals, drains, power failures of devices and collections, in any
/// order.
fn model(seed: u64, steps: usize, policy: &str) {
    println!("seed {seed}");
    patiently(async {
        let world = World::new(4, policy).await;
        let mut random = StdRng::seed_from_u64(seed);
        let mut model = Model::default();
        for step in 0..steps {
            world.place(model.clone.is_some(), model.released.is_some());
            let done = model.step(&world, &mut random).await;
            if step % 10 == 9 {
                let what = format!("seed {seed}, step {step}, after {done}");
                model.check(&world, &what).await;
            }
        }
        world.place(model.clone.is_some(), model.released.is_some());
        world.collect().await;
        model
            .check(&world, &format!("seed {seed}, at the end"))
            .await;
        // After the removal of the volumes one by one, their objects must disappear.
        for title in model.head.keys() {
            world.remove(title).await;
        }
        model.head.clear();
        world.collect().await;
        model
            .check(&world, &format!("seed {seed}, without the files"))
            .await;
        world.delete(&world.here, BACKUP);
        model.backup = None;
        world.collect().await;
        model
            .check(&world, &format!("seed {seed}, without the backup"))
            .await;
        world.delete(&world.here, CLONE);
        model.clone = None;
        world.place(false, model.released.is_some());
        world.collect().await;
        model
            .check(&world, &format!("seed {seed}, only released"))
            .await;
        world.delete(&world.there, CLONE);
        world.place(false, false);
        until("all of it is collected", async || {
            world.collect().await;
            world.osds.counts() == (0, 0)
        })
        .await;
    });
}

/// `CELLAR_SEED`, or a fixed seed for repeatable results: the one that found the most faults.
fn seed() -> u64 {
    let chosen = std::env::var("CELLAR_SEED").ok();
    chosen.and_then(|text| text.parse().ok()).unwrap_or(5)
}

#[test]
fn named_objects_are_never_collected_and_all_others_are() {
    model(seed(), 120, "=> osd, copies=2;");
}

#[test]
fn the_same_with_stripes() {
    model(seed(), 120, "=> osd, stripes=2, ssize=12;");
}

#[test]
fn the_same_with_a_code() {
    model(seed(), 120, "=> osd, ec=2+1, ssize=12;");
}

/// Puts an object without references on a device.
fn litter(world: &World, osd: u32, serial: u32) {
    let object = ObjectId {
        volume: OPEN,
        vnode: VnodeId(4),
        uniquifier: Uniquifier(5),
        serial,
    };
    world.osds.with(osd, |store| {
        let version = NOW * 1_000_000;
        let bytes = [Bytes::from_static(b"garbage")];
        let written = store.write(object, 0, version, 0, &bytes).unwrap();
        written.wait().unwrap();
    });
}

#[test]
fn nothing_is_collected_unless_all_have_answered() {
    patiently(async {
        let world = World::new(2, "=> osd;").await;
        litter(&world, 2, 1);
        let untouched = |collected: &Collected| {
            assert_eq!(world.osds.counts(), (1, 1));
            assert!(collected.garbage.is_empty(), "{collected:?}");
        };
        // A missing server that has no volume of the family.
        let gone = Cell::start();
        let options = ConnectionOptions {
            dead_time: Some(Duration::from_secs(1)),
            ..ConnectionOptions::default()
        };
        let service = afsosd::PACKAGE.service_id;
        let there = gone.address();
        gone.port.close();
        let dead = world
            .here
            .port
            .connect_with(there, service, Security::null(), options);
        world.servers.add(3, uuid(0xfc), dead);
        let collected = world.call(0, 0).await.unwrap();
        let silent: Vec<_> = collected
            .silent
            .iter()
            .map(cellar_objects::address_of)
            .collect();
        assert_eq!(silent, [Servers::address(3)]);
        untouched(&collected);
        world.servers.replace(3, superuser(&world.there));
        // A volume is missing at the site in the database: its partition may be missing.
        world.place(false, true);
        let collected = world.call(0, 0).await.unwrap();
        assert_eq!(collected.silent.len(), 1);
        untouched(&collected);
        // A site of an unknown server.
        world.servers.place(OPEN, &[(1, OPEN), (9, CLONE)]);
        let collected = world.call(0, 0).await.unwrap();
        assert_eq!(collected.silent.len(), 1);
        untouched(&collected);
        // The volume is being moved, released or restored.
        world.place(false, false);
        world.servers.locked.store(true, Ordering::Relaxed);
        let collected = world.call(0, 0).await.unwrap();
        assert!(collected.changing);
        untouched(&collected);
        world.servers.locked.store(false, Ordering::Relaxed);
        // Another server is responsible for the collection.
        world.servers.place(OPEN, &[(2, OPEN)]);
        let refused = world.call(0, 0).await;
        assert_eq!(common::code(refused, "another's"), AbortCode::EXDEV.0);
        world.place(false, false);
        // A missing device is skipped.
        world.osds.stop_device(2, true);
        let collected = world.call(0, 0).await.unwrap();
        assert_eq!(collected.away.to_vec(), [2]);
        world.osds.start_device(2);
        let collected = world.collect().await;
        assert_eq!((collected.looked, collected.garbage.len()), (1, 1));
        assert_eq!(world.osds.counts(), (0, 0));
    });
}

#[test]
fn the_young_are_spared_and_a_dry_run_only_lists() {
    patiently(async {
        let world = World::new(2, "=> osd;").await;
        litter(&world, 2, 1);
        litter(&world, 3, 2);
        let fid = world.create("f").await;
        world.store(fid, 0, &pattern(BIG, 1), KEEP).await;
        let collected = world.call(3600, 0).await.unwrap();
        assert_eq!((collected.looked, collected.young), (3, 2));
        assert!(collected.garbage.is_empty());
        world.here.wait_secs(3601);
        let collected = world.call(3600, COLLECT_DRY).await.unwrap();
        let listed: Vec<_> = collected
            .garbage
            .iter()
            .map(|one| (one.osd, one.object.serial, one.version))
            .collect();
        assert_eq!(listed, [(2, 1, 0), (3, 2, 0)]);
        assert_eq!(world.osds.counts().0, 3);
        let collected = world.call(3600, 0).await.unwrap();
        assert_eq!(collected.garbage.len(), 2);
        assert!(collected.freed >= 2 * 4096, "{collected:?}");
        assert_eq!(world.osds.counts(), (1, 1));
    });
}

#[test]
fn objects_of_a_deleted_volume_are_collected_by_the_first_server() {
    patiently(async {
        let world = World::new(2, "=> osd, copies=2;").await;
        let fid = world.create("f").await;
        world.store(fid, 0, &pattern(BIG, 1), KEEP).await;
        world.delete(&world.here, OPEN);
        world.servers.forget(OPEN);
        assert_eq!(world.osds.counts().0, 2);
        let second = superuser(&world.there);
        let call = CollectGarbage {
            volume: OPEN.0,
            after: 0,
            grace: 0,
            flags: 0,
        };
        let refused = second.call(&call).await;
        assert_eq!(common::code(refused, "the second"), AbortCode::EXDEV.0);
        world.collect().await;
        assert_eq!(world.osds.counts(), (0, 0));
    });
}

#[test]
fn a_copy_in_an_archive_stays_while_a_volume_of_any_server_names_it() {
    patiently(async {
        let world = World::new(2, "=> osd;").await;
        world.osds.add(4);
        world.osds.mark(4, OSD_ARCHIVAL);
        let fid = world.create("f").await;
        let bytes = pattern(BIG, 1);
        world.store(fid, 0, &bytes, KEEP).await;
        let archive = afsosd::Archive { fid, osd: 4 };
        until("the archive is known", async || {
            world.admin.call(&archive).await.is_ok()
        })
        .await;
        let wiped = world.admin.call(&afsosd::Wipe { fid, copies: 1 }).await;
        assert_eq!(wiped.unwrap().length, BIG as u64);
        world.release();
        world.place(false, true);
        world.remove("f").await;
        world.collect().await;
        assert_eq!(world.osds.counts().0, 1, "the copy alone");
        let there = Fid {
            volume: CLONE,
            ..fid
        };
        assert!(world.other.fetch(there, 0, 1 << 30).await.unwrap() == bytes);
        world.delete(&world.there, CLONE);
        world.place(false, false);
        world.collect().await;
        assert_eq!(world.osds.counts(), (0, 0));
    });
}
