//! Objects that are rebuilt: lost with a device, damaged, or moved away from a device that is
//! emptied.

use crate::common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::osds::{KEEP, THRESHOLD, layout, pattern, read, set_policy};
use crate::common::real::{RealOsds, keeps_on, knows_policies, patiently, store_patiently};
use crate::common::volser::Volser;
use crate::common::{CLONE, Cell, Machine, OPEN, name};
use cellar_fileserver::Upkeep;
use cellar_rpc::{CallError, Connection};
use cellar_until::until;
use cellar_volume::Holder;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{
    CollectGarbage, Collected, ListOnDevice, MoveObject, RepairStatus, Repairing,
};
use cellar_wire::afsvol::IT_BUSY;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;
use cellar_wire::osddb::OSD_DRAINING;
use cellar_wire::rxafs;

const BIG: usize = 3 * THRESHOLD as usize + 777;

/// A file server with devices, and a client machine.
struct World {
    osds: RealOsds,
    cell: Cell,
    machine: Machine,
    admin: Connection,
}

impl World {
    /// `policy` is that of the scratch volume.
    async fn new(devices: u32, policy: &str, change: impl FnOnce(&mut Upkeep)) -> Self {
        let osds = RealOsds::start(devices, &[(2, policy)]);
        let (cell, machine, admin) = keeps_on(&osds, change);
        let world = Self {
            osds,
            cell,
            machine,
            admin,
        };
        world.know_policies().await;
        world
    }

    /// Waits until the server has loaded the policies.
    async fn know_policies(&self) {
        knows_policies(&self.cell, &self.machine).await;
        self.remove("probe").await;
        until("a removed file gives its objects back", async || {
            self.osds.counts().0 == 0
        })
        .await;
    }

    async fn store(
        &self,
        fid: Fid,
        position: u64,
        bytes: &[u8],
        file_length: u64,
    ) -> Result<(), CallError> {
        store_patiently(&self.machine, fid, position, bytes, file_length).await
    }

    /// Creates a file with these bytes, in objects.
    async fn file(&self, title: &str, bytes: &[u8]) -> Fid {
        let fid = self.machine.create(Fid::root(OPEN), title).await;
        self.store(fid, 0, bytes, KEEP).await.unwrap();
        assert!(self.layout(fid).is_some(), "{title}");
        fid
    }

    async fn remove(&self, title: &str) {
        let call = rxafs::RemoveFile {
            dir_fid: Fid::root(OPEN),
            name: name(title),
        };
        self.machine.ok(&call).await;
    }

    /// Another name for a file.
    async fn link(&self, fid: Fid, title: &str) {
        let call = rxafs::Link {
            dir_fid: Fid::root(OPEN),
            name: name(title),
            existing_fid: fid,
        };
        self.machine.ok(&call).await;
    }

    async fn rename(&self, title: &str, new: &str) {
        let call = rxafs::Rename {
            old_dir_fid: Fid::root(OPEN),
            old_name: name(title),
            new_dir_fid: Fid::root(OPEN),
            new_name: name(new),
        };
        self.machine.ok(&call).await;
    }

    async fn read(&self, fid: Fid) -> Vec<u8> {
        read(&self.machine, fid).await
    }

    fn layout(&self, fid: Fid) -> Option<Layout> {
        layout(&self.cell, fid)
    }

    /// All visible versions of files.
    fn holders(&self) -> Vec<Holder> {
        let (found, more) = self.cell.partition.holders(0, 1 << 20, |_| true).unwrap();
        assert_eq!(more, None);
        found
    }

    /// The devices that files need, and whether any object lacks a store.
    fn needed(&self) -> (BTreeSet<u32>, bool) {
        let holders = self.holders();
        let placed = holders
            .iter()
            .flat_map(|holder| holder.layout.objects.iter());
        let stale = placed.clone().any(|placed| placed.stale);
        (placed.map(|placed| placed.osd).collect(), stale)
    }

    async fn status(&self) -> Repairing {
        self.admin.call(&RepairStatus {}).await.unwrap().status
    }

    async fn collect(&self) -> Collected {
        let call = CollectGarbage {
            volume: OPEN.0,
            after: 0,
            grace: 0,
            flags: 0,
        };
        self.admin.call(&call).await.unwrap().collected
    }
}

#[test]
fn objects_of_a_dead_device_are_rebuilt_elsewhere_and_are_garbage_at_its_return() {
    patiently(async {
        let world = World::new(4, "=> osd, copies=2;", |_| {}).await;
        let mut files = Vec::new();
        for n in 0..6 {
            let bytes = pattern(BIG, n);
            files.push((world.file(&format!("f{n}"), &bytes).await, bytes));
        }
        let dead = world.layout(files[0].0).unwrap().objects[0].osd;
        world.osds.stop_device(dead, true);
        until("nothing needs the dead device", async || {
            let (needed, stale) = world.needed();
            !needed.contains(&dead) && !stale
        })
        .await;
        for (fid, bytes) in &files {
            let layout = world.layout(*fid).unwrap();
            let on: BTreeSet<u32> = layout.objects.iter().map(|placed| placed.osd).collect();
            assert_eq!(on.len(), 2, "two copies on two devices");
            assert!(world.read(*fid).await == *bytes);
        }
        let status = world.status().await;
        assert!(
            status.repaired > 0 && status.bytes >= BIG as u64,
            "{status:?}"
        );
        // The device returns with its objects, which have no references any more.
        world.osds.start_device(dead);
        let left = world.osds.objects(dead).len();
        assert!(left > 0);
        until("the device is reconciled", async || {
            world.collect().await;
            world.osds.objects(dead).is_empty()
        })
        .await;
        for (fid, bytes) in &files {
            assert!(world.read(*fid).await == *bytes);
        }
    });
}

#[test]
fn a_device_that_is_down_for_a_while_gets_what_it_missed() {
    patiently(async {
        let world = World::new(3, "=> osd, copies=2;", |upkeep| {
            upkeep.repair_delay = Duration::from_secs(1 << 20);
        })
        .await;
        let fid = world.file("f", &pattern(BIG, 1)).await;
        let down = world.layout(fid).unwrap().objects[1];
        world.osds.stop_device(down.osd, true);
        // A store continues without the device, and a new file gets its copies on other devices.
        let bytes = pattern(BIG, 2);
        world.store(fid, 0, &bytes, KEEP).await.unwrap();
        assert!(world.layout(fid).unwrap().objects[1].stale);
        let other = world.file("g", &bytes).await;
        let layout = world.layout(other).unwrap();
        assert!(layout.objects.iter().all(|p| p.osd != down.osd && !p.stale));
        until("it waits to be repaired", async || {
            world.status().await.waiting == 1
        })
        .await;
        let repaired = world.status().await.repaired;
        assert!(world.read(fid).await == bytes);
        world.osds.start_device(down.osd);
        until("it has what it missed", async || !world.needed().1).await;
        let mended = world.layout(fid).unwrap().objects[1];
        assert_eq!(mended.osd, down.osd, "where it was");
        assert_ne!(mended.serial, down.serial);
        assert_eq!(world.status().await.repaired, repaired + 1);
        // The object holds all data.
        let first = world.layout(fid).unwrap().objects[0].osd;
        world.osds.stop_device(first, true);
        assert!(world.read(fid).await == bytes);
    });
}

#[test]
fn an_erasure_code_gets_its_objects_back_twice() {
    patiently(async {
        let world = World::new(7, "=> osd, ec=3+2, ssize=12;", |_| {}).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        for _ in 0..2 {
            let layout = world.layout(fid).unwrap();
            let dead = layout.objects[1].osd;
            world.osds.stop_device(dead, true);
            until("nothing needs the dead device", async || {
                !world.needed().0.contains(&dead)
            })
            .await;
            assert!(world.read(fid).await == bytes);
        }
        // Any two of the other devices may fail now.
        let layout = world.layout(fid).unwrap();
        for place in [0, 4] {
            world.osds.stop_device(layout.objects[place].osd, true);
        }
        assert!(world.read(fid).await == bytes);
    });
}

#[test]
fn a_device_is_emptied_while_it_is_used() {
    patiently(async {
        let world = World::new(3, "=> osd, stripes=2, ssize=12;", |_| {}).await;
        let mut files = Vec::new();
        for n in 0..8 {
            let bytes = pattern(BIG, n);
            files.push((world.file(&format!("f{n}"), &bytes).await, bytes));
        }
        let before: Vec<Vec<u8>> = files.iter().map(|(_, bytes)| bytes.clone()).collect();
        world.cell.make_clone();
        // Both volumes see the object of the first file; only the clone sees that of the second.
        let (fid, bytes) = &mut files[0];
        world.store(*fid, 5, b"changed", KEEP).await.unwrap();
        bytes[5..12].copy_from_slice(b"changed");
        let leaving = world.layout(files[0].0).unwrap().objects[0].osd;
        assert!(!world.osds.objects(leaving).is_empty());
        let stop = AtomicBool::new(false);
        let busy = async {
            let mut turn = 0u8;
            let (fid, mut bytes) = files[1].clone();
            while !stop.load(Ordering::Relaxed) {
                let at = usize::from(turn) * 700;
                world
                    .store(fid, at as u64, &[turn; 900], KEEP)
                    .await
                    .unwrap();
                bytes[at..at + 900].fill(turn);
                assert!(world.read(fid).await == bytes);
                turn = turn.wrapping_add(1);
            }
            bytes
        };
        let drain = async {
            world.osds.mark(leaving, OSD_DRAINING);
            until("no file has objects there", async || {
                let call = ListOnDevice {
                    osd: leaving,
                    after: Fid::default(),
                    limit: 10,
                };
                world.admin.call(&call).await.unwrap().files.is_empty()
            })
            .await;
            stop.store(true, Ordering::Relaxed);
        };
        let (stored, ()) = tokio::join!(busy, drain);
        files[1].1 = stored;
        assert!(!world.needed().0.contains(&leaving), "nor do the clones");
        until("the device is empty", async || {
            world.collect().await;
            world.osds.objects(leaving).is_empty()
        })
        .await;
        world.osds.stop_device(leaving, true);
        for ((fid, bytes), before) in files.iter().zip(before) {
            assert!(world.read(*fid).await == *bytes);
            let cloned = Fid {
                volume: CLONE,
                ..*fid
            };
            assert!(world.read(cloned).await == before, "{fid}");
        }
    });
}

#[test]
fn a_drain_that_is_stopped_moves_no_more() {
    patiently(async {
        let slow = |upkeep: &mut Upkeep| upkeep.repair_rate = 1;
        let world = World::new(3, "=> osd, stripes=2, ssize=12;", slow).await;
        for n in 0..30 {
            world.file(&format!("f{n}"), &pattern(20_000, n)).await;
        }
        world.osds.mark(2, OSD_DRAINING);
        until("it has begun", async || world.status().await.waiting > 4).await;
        world.osds.mark(2, 0);
        until("the queue is forgotten", async || {
            world.status().await.waiting <= 4
        })
        .await;
        assert!(world.needed().0.contains(&2));
    });
}

/// Damages the bytes of a pattern on a device's disk.
fn spoil(world: &World, osd: u32, bytes: &[u8]) {
    let disk = world.osds.disk(osd);
    let contents = disk.contents("blocks.0");
    let piece = &bytes[..64];
    let found = contents
        .windows(piece.len())
        .position(|window| window == piece);
    disk.flip_bit("blocks.0", found.unwrap() as u64 + 3, 1);
}

#[test]
fn a_damaged_block_is_healed_when_it_is_read_and_when_it_is_scrubbed() {
    patiently(async {
        let world = World::new(2, "=> osd, copies=2;", |_| {}).await;
        for (turn, place) in [0usize, 1, 1].into_iter().enumerate() {
            let bytes = pattern(BIG, turn as u64);
            let fid = world.file(&format!("f{turn}"), &bytes).await;
            let osd = world.layout(fid).unwrap().objects[place].osd;
            spoil(&world, osd, &bytes);
            let healed = world.status().await.healed;
            let begun = world.layout(fid).unwrap().objects[place];
            if turn == 0 {
                // The first copy is the one that is read.
                assert!(world.read(fid).await == bytes);
            } else {
                // The server may find the damage in the device's list before the scrub has ended.
                world.osds.with(osd, |store| {
                    let mut go_on = |_: &_| std::ops::ControlFlow::Continue(());
                    let report = store.scrub(0, &mut go_on).unwrap();
                    assert_eq!(report.damaged.len(), 1, "{report:?}");
                });
            }
            until("it is healed", async || {
                world.layout(fid).unwrap().objects[place].serial != begun.serial
            })
            .await;
            until("it is counted", async || {
                world.status().await.healed > healed
            })
            .await;
            until("the damaged object is gone", async || {
                let objects = world.osds.objects(osd);
                !objects
                    .iter()
                    .any(|info| info.object.serial == begun.serial)
            })
            .await;
            // This object alone has all bytes.
            let other = world.layout(fid).unwrap().objects[1 - place].osd;
            world.osds.stop_device(other, true);
            assert!(world.read(fid).await == bytes);
            world.osds.start_device(other);
            world.remove(&format!("f{turn}")).await;
        }
    });
}

#[test]
fn a_damaged_block_is_healed_in_every_version_that_has_it() {
    patiently(async {
        let world = World::new(2, "=> osd, copies=2;", |_| {}).await;
        let before = pattern(BIG, 1);
        let fid = world.file("f", &before).await;
        world.cell.make_clone();
        let mut bytes = before.clone();
        bytes[100_000..100_007].copy_from_slice(b"changed");
        world.store(fid, 100_000, b"changed", KEEP).await.unwrap();
        let cloned = Fid {
            volume: CLONE,
            ..fid
        };
        let (new, old) = (world.layout(fid).unwrap(), world.layout(cloned).unwrap());
        let damaged = new.objects[0];
        assert_eq!(damaged.serial, old.objects[0].serial);
        assert_ne!(damaged.version, old.objects[0].version);
        spoil(&world, damaged.osd, &bytes);
        assert!(world.read(fid).await == bytes);
        until("both versions are healed", async || {
            [fid, cloned].iter().all(|fid| {
                let layout = world.layout(*fid).unwrap();
                layout.objects[0].serial != damaged.serial
            })
        })
        .await;
        world.osds.stop_device(new.objects[1].osd, true);
        assert!(world.read(fid).await == bytes);
        assert!(world.read(cloned).await == before);
    });
}

#[test]
fn damage_that_a_dump_finds_is_healed() {
    patiently(async {
        let unasked = |upkeep: &mut Upkeep| upkeep.damage_interval = Duration::from_secs(3600);
        let world = World::new(2, "=> osd, copies=2;", unasked).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        let damaged = world.layout(fid).unwrap().objects[0];
        spoil(&world, damaged.osd, &bytes);
        let volser = Volser(world.cell.admin().await);
        let trans = volser.begin(OPEN, IT_BUSY).await;
        assert!(volser.dump(trans, 0).await.len() > BIG);
        volser.end(trans).await;
        until("it is healed", async || {
            world.layout(fid).unwrap().objects[0].serial != damaged.serial
        })
        .await;
    });
}

#[test]
fn an_object_is_moved_on_demand() {
    patiently(async {
        let world = World::new(3, "=> osd, stripes=2, ssize=12;", |_| {}).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        let before = world.layout(fid).unwrap();
        let version = world.machine.status(fid).await.status.data_version;
        let others: Vec<u32> = (2..5)
            .filter(|osd| before.objects.iter().all(|placed| placed.osd != *osd))
            .collect();
        let call = |place, osd| MoveObject { fid, place, osd };
        let moved = world.admin.call(&call(1, others[0])).await.unwrap();
        assert_eq!(moved.osd, others[0]);
        let after = world.layout(fid).unwrap();
        assert_eq!(after.objects[0], before.objects[0]);
        assert_eq!(after.objects[1].osd, others[0]);
        assert!(world.read(fid).await == bytes);
        let now = world.machine.status(fid).await.status.data_version;
        assert_eq!(now, version, "the file is the same");
        // Refused: two stripes on one device, a place that does not exist, a caller without rights.
        let refused = world.admin.call(&call(1, before.objects[0].osd)).await;
        assert_eq!(common::code(refused, "one device"), AbortCode::EIO.0);
        let refused = world.admin.call(&call(2, 0)).await;
        assert_eq!(common::code(refused, "no place"), AbortCode::EINVAL.0);
        let anybody = world.machine.port.connect(
            world.cell.address(),
            cellar_wire::afsosd::PACKAGE.service_id,
            cellar_rpc::Security::null(),
        );
        let refused = anybody.call(&call(0, 0)).await;
        assert_eq!(common::code(refused, "anybody"), AbortCode::EPERM.0);
        // To the best place: the original device is free again.
        let moved = world.admin.call(&call(0, 0)).await.unwrap();
        assert_eq!(moved.osd, before.objects[1].osd);
        assert!(world.read(fid).await == bytes);
        // Stores continue from there.
        world.store(fid, 10, b"more", KEEP).await.unwrap();
        let mut bytes = bytes;
        bytes[10..14].copy_from_slice(b"more");
        assert!(world.read(fid).await == bytes);
    });
}

#[test]
fn a_removal_frees_room_unless_a_clone_needs_it() {
    patiently(async {
        let world = World::new(2, "=> osd, stripes=2, ssize=12;", |_| {}).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        world.file("g", &bytes).await;
        world.file("h", &bytes).await;
        assert_eq!(world.osds.counts(), (6, 6));
        world.remove("g").await;
        until("a removed file", async || world.osds.counts().0 == 4).await;
        world.rename("f", "h").await;
        until("a name that another file got", async || {
            world.osds.counts().0 == 2
        })
        .await;
        world.cell.make_clone();
        world.remove("h").await;
        let other = world.file("i", &bytes).await;
        set_policy(&world.cell, OPEN, 0);
        world.store(other, 0, b"small", 0).await.unwrap();
        assert_eq!(world.layout(other), None);
        until("a file that is here again", async || {
            world.osds.counts().0 == 2
        })
        .await;
        let cloned = Fid {
            volume: CLONE,
            ..fid
        };
        assert!(world.read(cloned).await == bytes, "the clone has it all");
    });
}

#[test]
fn a_file_on_a_dead_device_fails_at_once_and_new_ones_do_not_go_there() {
    patiently(async {
        let world = World::new(2, "=> osd;", |_| {}).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        let dead = world.layout(fid).unwrap().objects[0].osd;
        world.osds.stop_device(dead, true);
        let begun = Instant::now();
        let read = world.machine.fetch(fid, 0, 100).await;
        assert_eq!(common::code(read, "read"), AbortCode::EIO.0);
        let stored = world.store(fid, 0, b"new", KEEP).await;
        assert_eq!(common::code(stored, "store"), AbortCode::EIO.0);
        assert!(begun.elapsed() < Duration::from_secs(8), "at once");
        for n in 0..4 {
            let new = world.file(&format!("n{n}"), &bytes).await;
            assert_ne!(world.layout(new).unwrap().objects[0].osd, dead);
        }
        // Also before the database has noticed: the store finds it.
        let other = dead ^ 1;
        world.osds.add(4);
        until("the third device is used", async || {
            let title = format!("t{}", rand::random::<u32>());
            let new = world.file(&title, &bytes).await;
            world.layout(new).unwrap().objects[0].osd == 4
        })
        .await;
        world.osds.stop_device(other, false);
        // A device that answered within the last second is not asked.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        for n in 0..6 {
            let new = world.file(&format!("u{n}"), &bytes).await;
            assert_eq!(world.layout(new).unwrap().objects[0].osd, 4);
        }
        // The object cannot be rebuilt from anything; the queue reports that, and does not retry at
        // once.
        until("it is known to have failed", async || {
            world.status().await.failed > 0
        })
        .await;
        world.osds.start_device(other);
        world.osds.start_device(dead);
        assert!(
            world.read(fid).await == bytes,
            "it comes back with its device"
        );
        until("nothing waits", async || world.status().await.waiting == 0).await;
    });
}

#[test]
fn a_file_with_two_names_keeps_its_objects_until_the_last_goes() {
    patiently(async {
        let world = World::new(2, "=> osd, copies=2;", |_| {}).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        world.link(fid, "second").await;
        world.file("other", &bytes).await;
        assert_eq!(world.osds.counts().0, 4);
        world.remove("f").await;
        // Later removals are executed: the first file has been examined.
        world.remove("other").await;
        until("the other is gone", async || world.osds.counts().0 <= 2).await;
        world.collect().await;
        assert_eq!(world.osds.counts().0, 2, "one name is left");
        assert!(world.read(fid).await == bytes);
        world.store(fid, 5, b"more", KEEP).await.unwrap();
        assert!(world.read(fid).await[5..9] == *b"more");
        world.remove("second").await;
        until("the last name is gone", async || world.osds.counts().0 == 0).await;
    });
}

/// Truncations, names, clones and dumps of files during and after the failure of a device that all
/// of them use.
fn all_is_right_without_a_device(devices: u32, policy: &str) {
    patiently(async {
        let world = World::new(devices, policy, |upkeep| {
            upkeep.repair_delay = Duration::from_secs(1 << 20);
        })
        .await;
        let mut files = Vec::new();
        for (n, title) in ["cut", "under", "over", "gone", "two", "changed"]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(BIG, n as u64);
            files.push((world.file(title, &bytes).await, bytes));
        }
        world.link(files[4].0, "names").await;
        let removed = [files[2].0, files[3].0];
        let dead = world.layout(files[0].0).unwrap().objects[0].osd;
        world.osds.stop_device(dead, true);
        // Truncated within the existing data, not at a boundary.
        let (fid, bytes) = &mut files[0];
        world.store(*fid, 0, &[], 70_001).await.unwrap();
        bytes.truncate(70_001);
        assert!(world.read(*fid).await == *bytes);
        world.store(*fid, 75_000, b"end", KEEP).await.unwrap();
        bytes.resize(75_000, 0);
        bytes.extend_from_slice(b"end");
        world.rename("under", "over").await;
        world.remove("gone").await;
        world.remove("two").await;
        for fid in removed {
            assert_eq!(world.machine.code(&rxafs::FetchStatus { fid }).await, 102);
        }
        assert_eq!(
            world.machine.lookup(Fid::root(OPEN), "over").await,
            files[1].0
        );
        files.drain(2..4);
        // A clone of files that changed without the device, and of files that will change.
        let volser = Volser(world.cell.admin().await);
        volser.read_only_clone().await;
        let before = files.clone();
        let (fid, bytes) = &mut files[3];
        world.store(*fid, 100_000, b"changed", KEEP).await.unwrap();
        bytes[100_000..100_007].copy_from_slice(b"changed");
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let dump = volser.dump(trans, 0).await;
        volser.end(trans).await;
        let is_right = async |what: &str| {
            for ((fid, bytes), (_, cloned)) in files.iter().zip(&before) {
                assert!(world.read(*fid).await == *bytes, "{what}: {fid}");
                let fid = Fid {
                    volume: CLONE,
                    ..*fid
                };
                assert!(world.read(fid).await == *cloned, "{what}: {fid}");
            }
        };
        is_right("without the device").await;
        for (fid, bytes) in &files {
            let mut found = dump.windows(bytes.len());
            assert!(found.any(|window| window == bytes), "{fid} in the dump");
        }
        assert!(world.needed().1, "it lacks stores");
        world.osds.start_device(dead);
        until("it has what it missed", async || !world.needed().1).await;
        // Objects that only this device still had are garbage.
        until("nothing else is left there", async || {
            world.collect().await;
            let holders = world.holders();
            let named: BTreeSet<u32> = holders
                .iter()
                .flat_map(|holder| holder.layout.objects.iter())
                .filter(|placed| placed.osd == dead)
                .map(|placed| placed.serial)
                .collect();
            let objects = world.osds.objects(dead);
            objects
                .iter()
                .all(|info| named.contains(&info.object.serial))
        })
        .await;
        // The device is as good as the others now.
        let other = (2..).find(|osd| *osd != dead).unwrap();
        world.osds.stop_device(other, true);
        is_right("without another").await;
    });
}

#[test]
fn cuts_names_clones_and_dumps_are_right_while_a_copy_is_dead() {
    all_is_right_without_a_device(2, "=> osd, copies=2;");
}

#[test]
fn cuts_names_clones_and_dumps_are_right_while_a_part_of_a_code_is_dead() {
    all_is_right_without_a_device(3, "=> osd, ec=2+1, ssize=12;");
}
