//! Files in objects, for clients without support for objects: the file server reads and writes
//! them.

use crate::common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::osds::{KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use crate::common::volser::Volser;
use crate::common::{ANYUSER, CLONE, Cell, Machine, NOW, OPEN, SHUT, list, name, run};
use crate::common::{plain_code as code, store_within as store};
use cellar_objects::fake::Fault;
use cellar_rpc::{Connection, Security};
use cellar_wire::afsosd::{
    self, Access, BeginFetch, BeginStore, EndStore, ExtendStore, ListOnDevice, STORE_LEASE,
};
use cellar_wire::ids::Fid;
use cellar_wire::object::{CapabilityBody, Scheme};
use cellar_wire::osddb::OSD_DRAINING;
use cellar_wire::rxafs;
use cellar_wire::{AbortCode, AfsTime, Decode, List};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BIG: usize = 3 * THRESHOLD as usize + 777;

#[test]
fn a_file_goes_to_objects_by_its_size_and_changes_there() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let other = Machine::new(&cell, 2);
    run(async {
        let osds = Osds::start(&cell, 3, &[]).await;
        let root = Fid::root(OPEN);
        let fid = machine.create(root, "f").await;
        // A volume that uses no objects.
        store(&machine, fid, 0, &pattern(BIG, 1), KEEP)
            .await
            .unwrap();
        assert_eq!((layout(&cell, fid), osds.objects()), (None, 0));
        set_policy(&cell, OPEN, 1);
        // Small files stay on the server.
        let fid = machine.create(root, "g").await;
        let mut bytes = pattern(50_000, 2);
        store(&machine, fid, 0, &bytes, KEEP).await.unwrap();
        assert_eq!(layout(&cell, fid), None);
        // The file grows by a piece that does not touch the old bytes, and a promise is broken.
        assert_eq!(read(&other, fid).await, bytes);
        let before = machine.status(fid).await.status.data_version;
        let more = pattern(20_000, 3);
        let status = store(&machine, fid, 60_000, &more, KEEP).await.unwrap();
        bytes.resize(60_000, 0);
        bytes.extend_from_slice(&more);
        assert_eq!(status.length, 80_000);
        assert_eq!(status.data_version, before + 1);
        assert_eq!(other.take_breaks(), [fid]);
        let first = layout(&cell, fid).unwrap();
        assert_eq!((first.objects.len(), osds.objects()), (1, 1));
        assert_eq!(read(&other, fid).await, bytes);
        // Small and large stores, in the middle and at the end.
        for (position, length, seed) in [(5, 100, 4), (79_990, 70_000, 5), (1000, BIG, 6)] {
            let new = pattern(length, seed);
            store(&machine, fid, position as u64, &new, KEEP)
                .await
                .unwrap();
            bytes.resize(bytes.len().max(position + length), 0);
            bytes[position..position + length].copy_from_slice(&new);
            assert_eq!(read(&other, fid).await, bytes);
            assert_eq!(
                other.fetch(fid, 70_001, 33).await.unwrap(),
                bytes[70_001..70_034]
            );
        }
        let last = layout(&cell, fid).unwrap();
        assert!(last.version > first.version);
        assert_eq!(last.objects[0].serial, first.objects[0].serial);
        // Truncated, with and without new bytes; a hole at the end.
        store(&machine, fid, 10, &[], 70_000).await.unwrap();
        bytes.truncate(70_000);
        assert_eq!(read(&other, fid).await, bytes);
        store(&machine, fid, 90_000, &[], KEEP).await.unwrap();
        bytes.resize(90_000, 0);
        assert_eq!(read(&other, fid).await, bytes);
        store(&machine, fid, 100, &[1, 2, 3], 30_000).await.unwrap();
        bytes.truncate(30_000);
        bytes[100..103].copy_from_slice(&[1, 2, 3]);
        assert_eq!(read(&other, fid).await, bytes);
        assert!(
            layout(&cell, fid).is_some(),
            "a file in objects stays there"
        );
        // No old byte is kept, and the file is small: it is on this server again.
        store(&machine, fid, 0, b"small", 0).await.unwrap();
        assert_eq!(read(&other, fid).await, b"small");
        assert_eq!(layout(&cell, fid), None);
        store(&machine, fid, 2, &pattern(BIG, 7), KEEP)
            .await
            .unwrap();
        let again = layout(&cell, fid).unwrap();
        assert!(again.objects[0].serial > last.serial, "no number is reused");
        // Attributes, links and names work as for any file; then it is removed.
        let call = rxafs::RemoveFile {
            dir_fid: root,
            name: name("g"),
        };
        machine.ok(&call).await;
        assert_eq!(machine.code(&rxafs::FetchStatus { fid }).await, 102);
    });
}

#[test]
fn every_shape_holds_what_was_stored() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let policies = [
        (2, "=> osd, stripes=3, ssize=12;"),
        (3, "=> osd, stripes=2, copies=2, ssize=13;"),
        (4, "=> osd, ec=3+2, ssize=12;"),
    ];
    run(async {
        let osds = Osds::start(&cell, 6, &policies).await;
        for (policy, objects) in [(2, 3), (3, 4), (4, 5)] {
            set_policy(&cell, OPEN, policy);
            let mut random = StdRng::seed_from_u64(policy.into());
            let fid = machine.create(Fid::root(OPEN), &format!("f{policy}")).await;
            let mut bytes = Vec::new();
            for turn in 0..40u64 {
                let position = random.random_range(0..bytes.len() + 9000);
                let length = match turn % 4 {
                    0 => random.random_range(0..150_000),
                    _ => random.random_range(0..9000),
                };
                let kept = match random.random_range(0..5) {
                    0 => random.random_range(1..bytes.len().max(1) + 1),
                    _ => usize::MAX,
                };
                let new = pattern(length, turn);
                let file_length = kept.min(KEEP as usize) as u64;
                store(&machine, fid, position as u64, &new, file_length)
                    .await
                    .unwrap();
                bytes.truncate(kept);
                bytes.resize(bytes.len().max(position + length), 0);
                bytes[position..position + length].copy_from_slice(&new);
                assert!(read(&machine, fid).await == bytes, "{policy}: turn {turn}");
            }
            assert_eq!(layout(&cell, fid).unwrap().objects.len(), objects);
            // If any one device is silent, the bytes are still available, by copies or parity.
            if policy == 2 {
                continue;
            }
            for fake in &osds.fakes {
                fake.set_fault(Fault::Abort(AbortCode::EIO));
                assert!(read(&machine, fid).await == bytes, "{policy} without one");
                fake.set_fault(Fault::None);
            }
        }
        let shape = layout(&cell, machine.lookup(Fid::root(OPEN), "f4").await);
        assert_eq!(shape.unwrap().shape.scheme, Scheme::Erasure);
    });
}

#[test]
fn a_clone_costs_nothing_and_sees_the_old_bytes() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 2, &[]).await;
        set_policy(&cell, OPEN, 1);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        let old = pattern(BIG, 1);
        store(&machine, fid, 0, &old, KEEP).await.unwrap();
        let volser = Volser(cell.admin().await);
        let calls = osds.calls();
        volser.read_only_clone().await;
        assert_eq!(osds.calls(), calls, "no device is asked");
        let mut new = old.clone();
        new[70_000..70_100].fill(9);
        store(&machine, fid, 70_000, &[9; 100], KEEP).await.unwrap();
        store(&machine, fid, new.len() as u64, b"end", KEEP)
            .await
            .unwrap();
        new.extend_from_slice(b"end");
        let cloned = Fid {
            volume: CLONE,
            ..fid
        };
        // Also after unneeded versions were removed.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(read(&machine, fid).await == new);
        assert!(read(&machine, cloned).await == old);
    });
}

#[test]
fn a_dead_device_fails_the_file_at_once_and_it_comes_back() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 1, &[(2, "=> osd;")]).await;
        set_policy(&cell, OPEN, 2);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        let bytes = pattern(BIG, 1);
        store(&machine, fid, 0, &bytes, KEEP).await.unwrap();
        let dead = |is_dead| {
            let mut listed = osds.database.listed.lock();
            listed[0].dead = is_dead;
            osds.devices.update(&listed);
            osds.fakes[0].set_fault(if is_dead {
                Fault::Abort(AbortCode::EIO)
            } else {
                Fault::None
            });
        };
        dead(true);
        let calls = osds.fakes[0].calls();
        assert_eq!(code(machine.fetch(fid, 0, 1 << 30).await), 5);
        assert_eq!(code(store(&machine, fid, 5, b"new", KEEP).await), 5);
        // There is no place for another file either.
        let other = machine.create(Fid::root(OPEN), "other").await;
        assert_eq!(code(store(&machine, other, 0, &bytes, KEEP).await), 5);
        assert_eq!(osds.fakes[0].calls(), calls, "a dead device is not asked");
        dead(false);
        assert!(read(&machine, fid).await == bytes);
        osds.fakes[0].set_fault(Fault::Writes(AbortCode::ENOSPC));
        assert_eq!(
            code(store(&machine, fid, 5, b"new", KEEP).await),
            AbortCode::VDISKFULL.0
        );
        osds.fakes[0].set_fault(Fault::None);
        assert!(read(&machine, fid).await == bytes, "nothing has changed");
        store(&machine, fid, 5, b"new", KEEP).await.unwrap();
    });
}

#[test]
fn a_file_that_a_client_s_store_moves_goes_to_devices_that_answer() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 2, &[(2, "=> osd;")]).await;
        let mut files = Vec::new();
        for number in 0..4 {
            let file = machine.create(Fid::root(OPEN), &format!("f{number}")).await;
            store(&machine, file, 0, b"kept by the server", KEEP)
                .await
                .unwrap();
            files.push(file);
        }
        set_policy(&cell, OPEN, 2);
        // The database has not noticed it yet.
        osds.fakes[0].set_fault(Fault::Silent);
        let client = direct(&cell, &machine);
        for fid in files {
            let begun = client.call(&begin(fid)).await.unwrap();
            let placed = begun.access.layout.objects.iter();
            let osds: Vec<_> = placed.map(|placed| placed.osd).collect();
            assert_eq!(osds, [3]);
        }
    });
}

#[test]
fn a_file_is_emptied_and_rewritten_with_the_devices_that_are_left() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 5, &[(2, "=> osd, ec=2+2, ssize=12;")]).await;
        set_policy(&cell, OPEN, 2);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        store(&machine, fid, 0, &pattern(BIG, 1), KEEP)
            .await
            .unwrap();
        let first = layout(&cell, fid).unwrap();
        let leaving = [first.objects[0].osd, first.objects[3].osd];
        let set_draining = |flags| {
            let mut listed = osds.database.listed.lock();
            for osd in leaving {
                listed[osd as usize - 2].entry.flags = flags;
            }
            osds.devices.update(&listed);
        };
        set_draining(OSD_DRAINING);
        // A new file has no place: devices that are being emptied do not count as missing.
        let other = machine.create(Fid::root(OPEN), "other").await;
        let full = code(store(&machine, other, 0, b"new", KEEP).await);
        assert_eq!(full, AbortCode::VDISKFULL.0);
        // The two ways in which programs rewrite a file: in one store, and in two.
        let serials = |layout: &cellar_wire::object::Layout| {
            let placed = layout.objects.iter();
            placed.map(|placed| placed.serial).collect::<Vec<_>>()
        };
        for (turn, empties) in [(2, false), (3, true), (4, true)] {
            if empties {
                store(&machine, fid, 0, &[], 0).await.unwrap();
                assert!(read(&machine, fid).await.is_empty());
            }
            let bytes = pattern(BIG / turn as usize, turn);
            store(&machine, fid, 0, &bytes, 0).await.unwrap();
            assert!(read(&machine, fid).await == bytes, "turn {turn}");
            assert_eq!(serials(&layout(&cell, fid).unwrap()), serials(&first));
        }
        // With all devices it gets new objects again.
        set_draining(0);
        let bytes = pattern(BIG, 5);
        store(&machine, fid, 0, &bytes, 0).await.unwrap();
        assert!(read(&machine, fid).await == bytes);
        let last = layout(&cell, fid).unwrap();
        assert!(last.objects.iter().all(|placed| !placed.stale));
        assert_ne!(serials(&last), serials(&first));
    });
}

#[test]
fn a_copy_that_lacks_a_store_is_not_read() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 2, &[(2, "=> osd, copies=2;")]).await;
        set_policy(&cell, OPEN, 2);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        store(&machine, fid, 0, &pattern(BIG, 1), KEEP)
            .await
            .unwrap();
        let first = layout(&cell, fid).unwrap().objects[0].osd;
        let fake = &osds.fakes[first as usize - 2];
        fake.set_fault(Fault::Writes(AbortCode::ENOSPC));
        let bytes = pattern(BIG, 2);
        store(&machine, fid, 0, &bytes, KEEP).await.unwrap();
        fake.set_fault(Fault::None);
        let after = layout(&cell, fid).unwrap();
        assert_eq!(after.objects.iter().filter(|o| o.stale).count(), 1);
        for _ in 0..5 {
            assert!(read(&machine, fid).await == bytes);
        }
    });
}

#[test]
fn stores_of_many_at_the_same_time_lose_nothing() {
    let cell = Cell::start();
    let machines: Vec<Machine> = (1..5).map(|n| Machine::new(&cell, n)).collect();
    run(async {
        let _osds = Osds::start(&cell, 3, &[]).await;
        set_policy(&cell, OPEN, 1);
        let fid = machines[0].create(Fid::root(OPEN), "f").await;
        // Each machine writes its own part; the file moves to objects meanwhile.
        let part = 40_000u64;
        let each = |n: u64, machine| async move {
            for turn in 0..10u64 {
                let bytes = pattern(4000, n * 100 + turn);
                let position = n * part + turn * 4000;
                store(machine, fid, position, &bytes, KEEP).await.unwrap();
            }
        };
        let (a, b, c, d) = (&machines[0], &machines[1], &machines[2], &machines[3]);
        tokio::join!(each(0, a), each(1, b), each(2, c), each(3, d));
        let bytes = read(&machines[0], fid).await;
        assert_eq!(bytes.len() as u64, 4 * part);
        for n in 0..4u64 {
            for turn in 0..10u64 {
                let at = (n * part + turn * 4000) as usize;
                let expected = pattern(4000, n * 100 + turn);
                assert!(bytes[at..at + 4000] == expected, "{n} {turn}");
            }
        }
        assert!(layout(&cell, fid).is_some());
    });
}

/// A client with support for objects, at the object service.
fn direct(cell: &Cell, machine: &Machine) -> Connection {
    let service = afsosd::PACKAGE.service_id;
    let port = &machine.port;
    port.connect(cell.address(), service, Security::null())
}

/// A store of the first bytes of a file.
fn begin(fid: Fid) -> BeginStore {
    BeginStore {
        fid,
        position: 0,
        length: 1000,
        file_length: 1000,
        shape: List::default(),
    }
}

/// The remaining lifetimes of capabilities, by the devices' clock.
fn lives(cell: &Cell, access: &Access) -> Vec<u64> {
    let now = cell.clock.load(Ordering::Relaxed);
    let bodies = access.capabilities.iter();
    let bodies = bodies.map(|sealed| CapabilityBody::from_xdr(sealed).unwrap());
    bodies.map(|body| body.expires - now).collect()
}

#[test]
fn the_right_to_store_lasts_no_longer_than_an_unattended_store() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let _osds = Osds::start(&cell, 2, &[(2, "=> osd, copies=2;")]).await;
        set_policy(&cell, OPEN, 2);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        let client = direct(&cell, &machine);
        let begun = client.call(&begin(fid)).await.unwrap();
        let lease = u64::from(STORE_LEASE);
        assert_eq!(lives(&cell, &begun.access), [lease; 2]);
        cell.wait_secs(40);
        let extend = ExtendStore {
            fid,
            store: begun.store,
            position: 0,
            length: 2000,
        };
        let extended = client.call(&extend).await.unwrap();
        assert_eq!(lives(&cell, &extended.access), [lease; 2]);
        let end = EndStore {
            fid,
            store: begun.store,
            length: 1000,
            modified: AfsTime(NOW as u32),
            failed: List::default(),
        };
        client.call(&end).await.unwrap();
        let fetch = BeginFetch {
            fid,
            position: 0,
            length: 1000,
        };
        let fetched = client.call(&fetch).await.unwrap();
        assert!(
            lives(&cell, &fetched.access)
                .iter()
                .all(|life| *life > lease)
        );
    });
}

#[test]
fn policies_decide_by_name_and_directory() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let policies = [
        (
            2,
            "~'*.root' => osd, stripes=2, stop; ~'*.log' => local, stop;",
        ),
        (3, "=> osd, copies=2;"),
    ];
    run(async {
        let _osds = Osds::start(&cell, 4, &policies).await;
        set_policy(&cell, OPEN, 2);
        let root = Fid::root(OPEN);
        let dir = machine.make_dir(root, "dir").await;
        {
            let volume = cell.partition.volume(OPEN).unwrap().unwrap();
            let context = cellar_volume::Context {
                author: cellar_wire::ViceId(1),
                now: cellar_wire::AfsTime(common::NOW as u32),
            };
            let set = volume.set_policy(dir, 3, context).unwrap();
            set.wait().unwrap();
        }
        let (small, big) = (pattern(10, 1), pattern(BIG, 1));
        for (dir, file, bytes, expected) in [
            (root, "a.root", &small, 2),
            (root, "a.log", &big, 0),
            (root, "a.txt", &small, 0),
            (root, "b.txt", &big, 1),
            (dir, "c.txt", &small, 2),
            (dir, "c.root", &small, 4),
        ] {
            let fid = machine.create(dir, file).await;
            store(&machine, fid, 0, bytes, KEEP).await.unwrap();
            let objects = layout(&cell, fid).map_or(0, |layout| layout.objects.len());
            assert_eq!(objects, expected, "{file}");
            assert!(read(&machine, fid).await == *bytes);
        }
    });
}

#[test]
fn a_policy_asks_for_the_name_that_a_file_has_now() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let _osds = Osds::start(&cell, 1, &[(2, "~'*.root' => osd;")]).await;
        set_policy(&cell, OPEN, 2);
        let root = Fid::root(OPEN);
        let fid = machine.create(root, "f.part").await;
        let rename = rxafs::Rename {
            old_dir_fid: root,
            old_name: name("f.part"),
            new_dir_fid: root,
            new_name: name("f.root"),
        };
        machine.ok(&rename).await;
        store(&machine, fid, 0, b"bytes", KEEP).await.unwrap();
        assert!(layout(&cell, fid).is_some());
    });
}

#[test]
fn files_on_a_device_are_listed_of_every_volume() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let _osds = Osds::start(&cell, 1, &[(2, "=> osd;")]).await;
        let mut expected = Vec::new();
        for volume in [OPEN, SHUT] {
            cell.set_list(Fid::root(volume), list(&[(ANYUSER, "rlidwka")]));
            set_policy(&cell, volume, 2);
            let fid = machine.create(Fid::root(volume), "f").await;
            store(&machine, fid, 0, b"bytes", KEEP).await.unwrap();
            expected.push(fid);
        }
        // The numbers are the same in both.
        assert_eq!(expected[0].vnode, expected[1].vnode);
        assert_eq!(expected[0].uniquifier, expected[1].uniquifier);
        let call = ListOnDevice {
            osd: 2,
            after: Fid::new(0, 0, 0),
            limit: 100,
        };
        let reply = cell.admin().await.call(&call).await.unwrap();
        assert_eq!(reply.files.into_vec(), expected);
    });
}
