//! Volumes with files in objects that are moved, copied as shadows or made from RO volumes. The
//! tests show which volume may write which objects, and that no acknowledged data is lost.

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::osds::{KEEP, Osds, layout, pattern, read, set_policy};
use crate::common::shared::{
    BIG, Here, SHAPES, check, fill, one_cell, ro_site, store, without_files,
};
use crate::common::volser::{RO, Volser, cookie, move_volume, one_more, release, taken, two};
use crate::common::{Cell, Machine, NOW, OPEN, plain_code as code, run};
use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{self, IT_BUSY, READWRITE};
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, ObjectId};
use cellar_wire::rxafs;

#[test]
fn a_moved_volume_goes_on_with_its_objects() {
    let (here, there, client, after, port) = two();
    run(async {
        let (osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        let before: Vec<_> = files.iter().map(|(fid, _)| layout(&here, *fid)).collect();
        let root = Fid::root(OPEN);
        let dir = client.make_dir(root, "dir").await;
        {
            let volume = here.partition.volume(OPEN).unwrap().unwrap();
            let context = cellar_volume::Context {
                author: cellar_wire::ViceId(1),
                now: cellar_wire::AfsTime(NOW as u32),
            };
            volume.set_policy(dir, 3, context).unwrap().wait().unwrap();
        }
        target.delete(OPEN).await;
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        let bytes = taken(&port);
        move_volume(&source, &target, &port).await;
        let sent = taken(&port) - bytes;
        assert!(sent < 20_000, "{sent} bytes for files in objects");
        osds.set_fault(Fault::None);
        check(&after, OPEN, &files).await;
        let volume = there.partition.volume(OPEN).unwrap().unwrap();
        assert_eq!(volume.policies(dir).unwrap(), (3, 1));
        // The database lists the volume here, and no version is newer: written in place.
        Here::of(&there, true);
        for (turn, (fid, bytes)) in files.iter_mut().enumerate() {
            store(&after, *fid, 50, b"moved").await.unwrap();
            bytes[50..55].copy_from_slice(b"moved");
            let Some(old) = &before[turn] else { continue };
            let new = layout(&there, *fid).unwrap();
            let serials = |layout: &Layout| {
                let placed = layout.objects.iter();
                placed.map(|placed| placed.serial).collect::<Vec<_>>()
            };
            assert_eq!(serials(&new), serials(old), "{fid}");
            assert!(new.version > old.version);
        }
        check(&after, OPEN, &files).await;
        let again = after.create(dir, "again").await;
        store(&after, again, 0, b"two copies").await.unwrap();
        assert_eq!(layout(&there, again).unwrap().objects.len(), 4);
    });
}

#[test]
fn a_moved_volume_asks_soon_again_where_it_is() {
    let (here, there, client, after, port) = two();
    run(async {
        let (_osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        target.delete(OPEN).await;
        move_volume(&source, &target, &port).await;
        let database = Here::of(&there, true);
        database.is_away.store(true, Ordering::Relaxed);
        let mut is_copied = async |number: usize| {
            let (fid, bytes) = &mut files[number];
            let before = layout(&there, *fid).unwrap().objects[0].serial;
            store(&after, *fid, 50, b"moved").await.unwrap();
            bytes[50..55].copy_from_slice(b"moved");
            assert!(read(&after, *fid).await == *bytes);
            layout(&there, *fid).unwrap().objects[0].serial != before
        };
        assert!(is_copied(0).await, "no database lists it here");
        database.is_away.store(false, Ordering::Relaxed);
        assert!(is_copied(1).await, "not asked at once again");
        there.wait_secs(15);
        assert!(!is_copied(2).await);
        assert!(!is_copied(3).await);
    });
}

#[test]
fn a_shadow_never_writes_what_the_volume_has() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        target.delete(OPEN).await;
        let to = target.create("scratch", READWRITE, OPEN, OPEN).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let ids = cookie("scratch", READWRITE, OPEN);
        source.forward(from, 0, (&port, to), ids).await.unwrap();
        source.end(from).await;
        target.flags(to, 0).await;
        target.end(to).await;
        // The same id on two servers; the database lists the other one.
        let database = Here::of(&there, false);
        let fid = files[0].0;
        let common = layout(&here, fid).unwrap();
        let placed = common.objects[0];
        let object: ObjectId = common.object(fid.vnode, fid.uniquifier, &placed);
        store(&client, fid, 10, b"the volume").await.unwrap();
        store(&other, fid, 10, b"the shadow").await.unwrap();
        let own = layout(&there, fid).unwrap();
        assert_ne!(own.objects[0].serial, placed.serial);
        assert_eq!(&read(&client, fid).await[10..20], b"the volume");
        assert_eq!(&read(&other, fid).await[10..20], b"the shadow");
        // If the shadow became the volume, a file that the other one has changed would still be
        // copied.
        database.is_here.store(true, Ordering::Relaxed);
        let second = files[1].0;
        store(&client, second, 10, b"the volume").await.unwrap();
        let newest = layout(&here, second).unwrap();
        store(&other, second, 10, b"the shadow").await.unwrap();
        assert_ne!(
            layout(&there, second).unwrap().objects[0].serial,
            newest.objects[0].serial
        );
        assert_eq!(&read(&client, second).await[10..20], b"the volume");
        assert_eq!(&read(&other, second).await[10..20], b"the shadow");
        // The objects that the shadow no longer names were not its own to remove.
        store(&other, fid, 10, b"the shadow").await.unwrap();
        let own = layout(&there, fid).unwrap();
        let newer = own.object(fid.vnode, fid.uniquifier, &own.objects[0]);
        let (osd, last) = (own.objects[0].osd, own.objects[0].version);
        until("the older version is removed", async || {
            osds.versions(osd, newer) == [last]
        })
        .await;
        assert!(osds.versions(placed.osd, object).contains(&placed.version));
        assert_eq!(&read(&client, fid).await[10..20], b"the volume");
        check(&client, OPEN, &files[2..]).await;
    });
}

#[test]
fn a_converted_copy_leaves_the_volume_its_objects() {
    let (here, there, client, other, port) = two();
    run(async {
        let (_osds, source, target, files) = one_cell(&here, &there, &client).await;
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        // The volume's server is believed to be lost, and is not.
        target.delete(OPEN).await;
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        target.0.call(&convert).await.unwrap();
        Here::of(&there, true);
        for (fid, bytes) in &files {
            store(&client, *fid, 20, b"the old one").await.unwrap();
            store(&other, *fid, 20, b"the new one").await.unwrap();
            store(&client, *fid, 40, b"goes on").await.unwrap();
            for (machine, with) in [(&client, b"the old one"), (&other, b"the new one")] {
                let mut expected = bytes.clone();
                expected[20..31].copy_from_slice(with);
                if with == b"the old one" {
                    expected[40..47].copy_from_slice(b"goes on");
                }
                assert!(read(machine, *fid).await == expected, "{fid}");
            }
        }
    });
}

#[test]
fn a_converted_volume_that_moves_on_leaves_the_volume_its_objects_too() {
    let (lost, there, _client, _other, port) = two();
    let beyond = one_more(&there);
    let last = common::volser::secured(&beyond);
    let (client, after) = (Machine::new(&lost, 1), Machine::new(&beyond, 3));
    run(async {
        let (osds, source, target, files) = one_cell(&lost, &there, &client).await;
        osds.attach(&beyond, "test.cell").await;
        let third = Volser(beyond.admin().await);
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        target.delete(OPEN).await;
        third.delete(OPEN).await;
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        target.0.call(&convert).await.unwrap();
        move_volume(&target, &third, &last).await;
        Here::of(&beyond, true);
        // The lost server returns, with a clock later than all stores of the meantime.
        lost.wait_secs(1000);
        for (fid, bytes) in &files {
            store(&after, *fid, 20, b"the new one").await.unwrap();
            store(&client, *fid, 20, b"the old one").await.unwrap();
            store(&client, *fid, 40, b"goes on").await.unwrap();
            let mut expected = bytes.clone();
            expected[20..31].copy_from_slice(b"the new one");
            assert!(read(&after, *fid).await == expected, "{fid}");
        }
    });
}

#[test]
fn a_store_whose_bytes_come_when_the_volume_has_gone_harms_nothing() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        Here::of(&there, true);
        target.delete(OPEN).await;
        let late = pattern(BIG, 7);
        let mut calls = Vec::new();
        for (fid, _) in &files[..4] {
            let call = rxafs::StoreData64 {
                fid: *fid,
                in_status: rxafs::AfsStoreStatus::default(),
                position: 500,
                length: BIG as u64,
                file_length: KEEP,
            };
            let mut call = client.connection.open(&call).await.unwrap();
            call.write(late[..100_000].to_vec().into()).await.unwrap();
            calls.push(call);
        }
        // Long enough for the stores to be permitted.
        tokio::time::sleep(Duration::from_millis(300)).await;
        move_volume(&source, &target, &port).await;
        // The versions of this server are now above those of the next one.
        here.wait_secs(1000);
        for (fid, bytes) in &mut files[..4] {
            let before = layout(&there, *fid).unwrap();
            store(&other, *fid, 10, b"there").await.unwrap();
            bytes[10..15].copy_from_slice(b"there");
            let now = layout(&there, *fid).unwrap();
            assert_eq!(now.serial, before.serial, "not in place");
        }
        // The data of those stores is removed soon after.
        let mut devices = 0;
        while devices != osds.calls() {
            devices = osds.calls();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for mut call in calls {
            // It may have been refused before all bytes arrived.
            let _refused = call.write(late[100_000..].to_vec().into()).await;
            call.finish();
            let reply: Result<rxafs::StoreData64Reply, _> = call.results().await;
            assert_eq!(code(reply), AbortCode::VNOVOL.0);
        }
        // Nothing happens for some time.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(osds.calls(), devices, "no byte went to a device");
        check(&other, OPEN, &files).await;
    });
}

/// A client that stores numbers into a file in objects, each after the answer to the one before,
/// and follows the volume.
async fn write_on(
    sides: [&Machine; 2],
    fid: Fid,
    stored: &AtomicU64,
    stop: &AtomicBool,
) -> (u64, u32) {
    let (mut side, mut refused) = (0, 0);
    let mut last = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        stored.store(last, Ordering::Relaxed);
        let bytes = (last + 1).to_be_bytes();
        let position = (last + 1) * 8;
        match store(sides[side], fid, position, &bytes).await {
            Ok(_) => last += 1,
            Err(error) => {
                refused += 1;
                // After the pause of a client before it repeats a call.
                match error.code().0 {
                    110 => tokio::time::sleep(Duration::from_millis(2)).await,
                    111 | 103 => {
                        side = 1 - side;
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
    (last, refused)
}

#[test]
fn nothing_is_lost_while_a_volume_moves_to_and_fro() {
    let (here, there, client, other, port) = two();
    let back = common::volser::secured(&here);
    run(async {
        let (_osds, source, target) = without_files(&here, &there).await;
        let sides = [source, target];
        let databases = [Here::of(&here, true), Here::of(&there, false)];
        let ports = [&back, &port];
        set_policy(&here, OPEN, 3);
        let fid = client.create(Fid::root(OPEN), "file").await;
        store(&client, fid, 0, &pattern(BIG, 1)).await.unwrap();
        sides[1].delete(OPEN).await;
        let (stored, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let moves = async {
            for round in 0..6 {
                let before = stored.load(Ordering::Relaxed);
                let (from, to) = (round % 2, (round + 1) % 2);
                move_volume(&sides[from], &sides[to], ports[to]).await;
                databases[from].is_here.store(false, Ordering::Relaxed);
                databases[to].is_here.store(true, Ordering::Relaxed);
                until("stores", async || {
                    stored.load(Ordering::Relaxed) > before + 5
                })
                .await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        let writer = write_on([&client, &other], fid, &stored, &stop);
        let ((last, refused), ()) = tokio::join!(writer, moves);
        assert!(last > 30 && refused > 0, "{last} stored, {refused} refused");
        let mut expected = pattern(BIG, 1);
        expected.resize(expected.len().max(8 * (last as usize + 1)), 0);
        for number in 1..=last {
            let at = number as usize * 8;
            expected[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        assert!(read(&client, fid).await == expected);
    });
    assert_eq!(here.partition.check().unwrap().faults, [""; 0]);
}

#[test]
fn a_volume_that_is_to_come_back_gives_up_nothing_of_the_former_one() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 4, SHAPES).await;
        let volser = Volser(cell.admin().await);
        let files = fill(&cell, &machine).await;
        // The devices are removing the first file's old version while the second file's waits.
        let late = Duration::from_secs(8);
        osds.set_fault(Fault::SlowPrunes(late));
        let begun = std::time::Instant::now();
        for (fid, _) in &files[..2] {
            store(&machine, *fid, 0, b"change").await.unwrap();
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        let last = layout(&cell, files[1].0).unwrap();
        // The volume was moved away; the new volume for its return has no files yet.
        volser.delete(OPEN).await;
        let trans = volser.create("scratch", READWRITE, OPEN, OPEN).await;
        assert!(begun.elapsed() < late, "the test was too slow");
        volser.flags(trans, 0).await;
        volser.end(trans).await;
        // Longer than the devices take.
        tokio::time::sleep(late + Duration::from_secs(1)).await;
        let fid = files[1].0;
        for placed in last.objects.iter().filter(|placed| placed.version > 0) {
            let object = last.object(fid.vnode, fid.uniquifier, placed);
            let versions = osds.versions(placed.osd, object);
            assert!(
                versions.contains(&placed.version),
                "{placed:?}: {versions:?}"
            );
        }
    });
}
