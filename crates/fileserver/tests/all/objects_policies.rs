//! Settings of administrators for files in objects: the conditions of policies on files and
//! callers, and the choice of devices. Also the copy that is read, and the largest layouts.

use crate::common;

use crate::common::osds::{KEEP, Osds, layout, pattern, read, set_policy};
use crate::common::{
    ALICE, ANYUSER, Cell, Machine, NOW, OPEN, SHUT, list, name, run, store_within,
};
use cellar_rpc::Connection;
use cellar_volume::{Context, SetStatus};
use cellar_wire::AfsTime;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::Scheme;
use cellar_wire::osddb::{OsdListed, OsdName};

const BOB: i32 = 8;
const FRIENDS: i32 = -300;

/// A cell with these devices and policies, in which every user has all rights.
struct World {
    osds: Osds,
    cell: Cell,
    machine: Machine,
    alice: Connection,
    bob: Connection,
}

impl World {
    async fn new(devices: u32, policies: &[(u32, &str)]) -> Self {
        let cell = Cell::start();
        let machine = Machine::new(&cell, 1);
        cell.set_list(Fid::root(SHUT), list(&[(ANYUSER, "rlidwka")]));
        cell.names.join(ALICE, FRIENDS);
        Self {
            osds: Osds::start(&cell, devices, policies).await,
            alice: machine.user("alice"),
            bob: machine.user("bob"),
            cell,
            machine,
        }
    }

    /// Stores a small file of an owner and a group as `who`. Returns the number of its objects.
    async fn stored_by(&self, who: &Connection, dir: Fid, owner: i32, group: i32) -> usize {
        let title = format!("f{}", rand::random::<u32>());
        let fid = self.machine.create(dir, &title).await;
        let set = SetStatus {
            owner: Some(ViceId(owner)),
            group: Some(ViceId(group)),
            ..SetStatus::default()
        };
        let volume = self.cell.partition.volume(fid.volume).unwrap().unwrap();
        let context = Context {
            author: ViceId(1),
            now: AfsTime(NOW as u32),
        };
        let changed = volume.set_status(fid, &set, context).unwrap();
        changed.durable.wait().unwrap();
        common::store(who, fid, 0, b"small").await.unwrap();
        assert_eq!(read(&self.machine, fid).await, b"small");
        layout(&self.cell, fid).map_or(0, |layout| layout.objects.len())
    }

    /// Changes the database's entries of the devices.
    fn change(&self, change: impl FnOnce(&mut [OsdListed])) {
        let mut listed = self.osds.database.listed.lock();
        change(&mut listed);
        self.osds.devices.update(&listed);
    }
}

#[test]
fn policies_are_told_who_stores_whose_file_and_where_it_is() {
    let policies = [
        (2, "uid=7 => osd;"),
        (3, "gid=-300 => osd;"),
        (4, "owner=7 => osd;"),
        (5, "group=55 => osd;"),
        (6, "dir~'/dir/sub' => osd;"),
        (7, "volume~'scr*' => osd;"),
        (8, "gid=-101 & !uid=7 => osd;"),
    ];
    run(async {
        let world = World::new(2, &policies).await;
        let (alice, bob) = (&world.alice, &world.bob);
        let (root, shut) = (Fid::root(OPEN), Fid::root(SHUT));
        let dir = world.machine.make_dir(root, "dir").await;
        let sub = world.machine.make_dir(dir, "sub").await;
        for (policy, who, dir, owner, group, expected) in [
            (2, alice, root, BOB, 1, 1),
            (2, bob, root, ALICE, 1, 0),
            (3, alice, root, BOB, 1, 1),
            (3, bob, root, ALICE, FRIENDS, 0),
            (4, bob, root, ALICE, 1, 1),
            (4, alice, root, BOB, 1, 0),
            (5, bob, root, BOB, 55, 1),
            (5, bob, root, 55, 56, 0),
            (6, bob, sub, BOB, 1, 1),
            (6, bob, dir, BOB, 1, 0),
            (7, bob, sub, BOB, 1, 1),
            (7, bob, shut, BOB, 1, 0),
            (8, bob, root, BOB, 1, 1),
            (8, alice, root, BOB, 1, 0),
        ] {
            set_policy(&world.cell, OPEN, policy);
            set_policy(&world.cell, SHUT, policy);
            let objects = world.stored_by(who, dir, owner, group).await;
            assert_eq!(objects, expected, "{policy} {dir} {owner} {group}");
        }
        // A user that was added to a group is in it at the next store.
        set_policy(&world.cell, OPEN, 3);
        world.cell.names.join(BOB, FRIENDS);
        assert_eq!(world.stored_by(bob, root, BOB, 1).await, 1);
        // A renamed directory counts as another directory.
        set_policy(&world.cell, OPEN, 6);
        let rename = cellar_wire::rxafs::Rename {
            old_dir_fid: root,
            old_name: name("dir"),
            new_dir_fid: root,
            new_name: name("other"),
        };
        world.machine.ok(&rename).await;
        assert_eq!(world.stored_by(bob, sub, BOB, 1).await, 0);
    });
}

#[test]
fn a_class_and_steps_of_size_choose_devices_and_shapes() {
    let policies = [
        (2, "=> osd, class=fast;"),
        (3, "=> steps { 1k: osd; 10k: osd, stripes=2, ssize=12 };"),
    ];
    run(async {
        let world = World::new(5, &policies).await;
        set_policy(&world.cell, OPEN, 2);
        let mut used = std::collections::BTreeSet::new();
        for (round, fast) in [4, 2].into_iter().enumerate() {
            world.change(|listed| {
                for device in listed {
                    let class = if device.entry.id == fast { "fast" } else { "" };
                    device.entry.class = OsdName::new(class).unwrap();
                }
            });
            for n in 0..6 {
                let title = format!("c{round}.{n}");
                let fid = world.machine.create(Fid::root(OPEN), &title).await;
                let stored = store_within(&world.machine, fid, 0, b"bytes", KEEP).await;
                stored.unwrap();
                let placed = layout(&world.cell, fid).unwrap().objects[0];
                assert_eq!(placed.osd, fast, "{title}");
                used.insert(placed.osd);
            }
        }
        assert_eq!(used.len(), 2);
        set_policy(&world.cell, OPEN, 3);
        for (length, expected) in [(1000, 0), (1024, 1), (10_239, 1), (10_240, 2)] {
            let title = format!("s{length}");
            let fid = world.machine.create(Fid::root(OPEN), &title).await;
            let bytes = pattern(length, 1);
            let stored = store_within(&world.machine, fid, 0, &bytes, KEEP).await;
            stored.unwrap();
            let objects = layout(&world.cell, fid).map_or(0, |layout| layout.objects.len());
            assert_eq!(objects, expected, "{length} bytes");
        }
    });
}

#[test]
fn the_copy_of_the_highest_read_priority_is_read() {
    run(async {
        let world = World::new(3, &[(2, "=> osd, copies=3;")]).await;
        set_policy(&world.cell, OPEN, 2);
        let fid = world.machine.create(Fid::root(OPEN), "f").await;
        let bytes = pattern(300_000, 1);
        let stored = store_within(&world.machine, fid, 0, &bytes, KEEP).await;
        stored.unwrap();
        for best in [3, 2, 4] {
            world.change(|listed| {
                for device in listed {
                    device.entry.read_priority = if device.entry.id == best { 80 } else { 64 };
                }
            });
            let calls = || world.osds.fakes.iter().map(|fake| fake.calls());
            let before: Vec<usize> = calls().collect();
            for _ in 0..4 {
                assert!(read(&world.machine, fid).await == bytes);
            }
            for ((id, before), now) in (2..).zip(before).zip(calls()) {
                assert_eq!(now > before, id == best, "device {id}, {best} is preferred");
            }
        }
    });
}

#[test]
fn the_largest_shapes_hold_what_was_stored() {
    let policies = [
        (2, "=> osd, stripes=32, ssize=12;"),
        (3, "=> osd, stripes=8, copies=4, ssize=12;"),
        (4, "=> osd, stripes=2, ssize=24;"),
    ];
    run(async {
        let world = World::new(32, &policies).await;
        for (policy, scheme, objects, unit, length) in [
            (2, Scheme::Striped, 32, 4096, 300_000),
            (3, Scheme::Striped, 32, 4096, 100_000),
            (4, Scheme::Striped, 2, 16 << 20, 34 << 20),
        ] {
            set_policy(&world.cell, OPEN, policy);
            let title = format!("f{policy}");
            let fid = world.machine.create(Fid::root(OPEN), &title).await;
            let mut bytes = pattern(length, policy.into());
            let stored = store_within(&world.machine, fid, 0, &bytes, KEEP).await;
            stored.unwrap();
            // Across a boundary of stripe units, and at the end.
            for at in [unit - 3, length - 1] {
                let stored = store_within(&world.machine, fid, at as u64, b"across", KEEP).await;
                stored.unwrap();
                bytes.resize(bytes.len().max(at + 6), 0);
                bytes[at..at + 6].copy_from_slice(b"across");
            }
            assert!(read(&world.machine, fid).await == bytes, "policy {policy}");
            let layout = layout(&world.cell, fid).unwrap();
            assert_eq!(layout.shape.scheme, scheme);
            assert_eq!(layout.shape.unit as usize, unit);
            let on: std::collections::BTreeSet<u32> =
                layout.objects.iter().map(|placed| placed.osd).collect();
            assert_eq!((layout.objects.len(), on.len()), (objects, objects));
            // One of four copies is enough.
            if policy == 3 {
                let all = &layout.objects;
                for copy in 0..4 {
                    for placed in all.iter().enumerate().filter(|(at, _)| at / 8 != copy) {
                        let fake = &world.osds.fakes[placed.1.osd as usize - 2];
                        fake.set_fault(cellar_objects::fake::Fault::Abort(
                            cellar_wire::AbortCode::EIO,
                        ));
                    }
                    assert!(
                        read(&world.machine, fid).await == bytes,
                        "copy {copy} alone"
                    );
                    world.osds.set_fault(cellar_objects::fake::Fault::None);
                }
            }
        }
    });
}
