//! Failures of devices stay invisible to a caller, if other devices have the bytes, and cost little
//! time.

use std::time::{Duration, Instant};

use crate::cell::{Cell, File, erasure, striped};
use cellar_objects::fake::Fault;
use cellar_objects::placement::{PlacementRequest, choose, choose_degraded};
use cellar_objects::repair::{Pace, RebuildTarget, rebuild};
use cellar_objects::{Condition, DEAD_TIME, Error, ReadOptions, Reader};
use cellar_until::until;
use cellar_wire::abort::AbortCode;
use cellar_wire::object::{Scheme, Shape};

const PATIENCE: Duration = Duration::from_secs(1);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4096) as u8).collect()
}

/// Creates a file of some rows, with the usual patience of readers.
async fn file(cell: &Cell, shape: Shape, length: usize) -> (File, Vec<u8>) {
    for osd in &cell.osds {
        osd.objects(|objects| objects.clear());
    }
    let mut file = File::new(cell, shape);
    let bytes = pattern(length);
    file.write(cell, 0, &bytes).await.unwrap();
    file.patience = PATIENCE;
    (file, bytes)
}

async fn compare(cell: &Cell, file: &File, bytes: &[u8]) {
    let read = file.read(cell, 0..bytes.len() as u64).await;
    assert!(read.unwrap() == bytes, "other bytes");
}

/// The numbers of calls show the waits, since times depend on the machine's other load.
#[tokio::test]
async fn devices_that_fall_silent_together_cost_one_wait() {
    let cell = Cell::start(8);
    for shape in [striped(2, 2, 65536), erasure(4, 2, 65536)] {
        let (file, bytes) = file(&cell, shape, 1_000_000).await;
        // Devices of the first stripes.
        let silent: &[u32] = if shape.stripes == 4 { &[2, 3] } else { &[2] };
        for osd in silent {
            cell.osd(*osd).set_fault(Fault::Silent);
        }
        let calls = || -> Vec<usize> { silent.iter().map(|osd| cell.osd(*osd).calls()).collect() };
        let before = calls();
        compare(&cell, &file, &bytes).await;
        let asked: Vec<usize> = before.iter().map(|calls| calls + 1).collect();
        assert_eq!(calls(), asked, "called again after others were silent too");
        // A reader that knows of the failure does not call them.
        compare(&cell, &file, &bytes).await;
        if cell.devices.condition(2) == Condition::Suspect {
            assert_eq!(calls(), asked, "called while suspect");
        }
        for osd in &cell.osds {
            osd.set_fault(Fault::None);
        }
        cell.devices.succeeded(2);
        cell.devices.succeeded(3);
    }
}

/// Budget of a reader with [`PATIENCE`] if a file server stands in; below, tolerance for slow
/// machines.
const BUDGET: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test]
async fn silence_of_a_file_server_has_one_time_budget() {
    let mut cell = Cell::start(8);
    for shape in [
        striped(1, 1, 65536),
        striped(1, 2, 65536),
        striped(1, 3, 65536),
        striped(4, 1, 65536),
        striped(4, 2, 65536),
        erasure(4, 2, 65536),
    ] {
        let (file, bytes) = file(&cell, shape, 1_000_000).await;
        cell.stand_in();
        for osd in &cell.osds {
            osd.set_fault(Fault::Silent);
        }
        let calls = || -> Vec<usize> { cell.osds.iter().map(|osd| osd.calls()).collect() };
        let before = calls();
        let began = Instant::now();
        let failure = file.read(&cell, 0..bytes.len() as u64).await;
        let waited = began.elapsed();
        assert!(failure.is_err());
        assert!(waited < BUDGET + SLACK, "{shape:?}: {waited:?}");
        let asked = calls();
        for (asked, before) in asked.iter().zip(before) {
            assert!(*asked <= before + 1, "{shape:?}: a device is called again");
        }
        // Other readers fail at once, even for pieces on devices that this reader did not wait for.
        let began = Instant::now();
        for start in (0..bytes.len() as u64).step_by(65536) {
            let range = start..bytes.len().min(start as usize + 65536) as u64;
            assert!(file.read(&cell, range).await.is_err());
        }
        let waited = began.elapsed();
        assert!(waited < PATIENCE, "{shape:?}: {waited:?}");
        for osd in &cell.osds {
            osd.set_fault(Fault::None);
        }
        cell.stand_in();
    }
}

#[tokio::test]
async fn each_copy_is_asked_before_the_file_server_is() {
    let mut cell = Cell::start(6);
    for (shape, silent) in [
        (striped(1, 3, 65536), &[2, 3][..]),
        (striped(2, 2, 65536), &[2, 5]),
        (erasure(4, 2, 65536), &[2, 7]),
    ] {
        let (mut file, bytes) = file(&cell, shape, 1_000_000).await;
        cell.stand_in();
        // The last device has time to answer too.
        file.patience = 2 * PATIENCE;
        for osd in &cell.osds {
            osd.set_fault(Fault::Slow(PATIENCE / 8));
        }
        for osd in silent {
            cell.osd(*osd).set_fault(Fault::Silent);
        }
        let began = Instant::now();
        compare(&cell, &file, &bytes).await;
        let waited = began.elapsed();
        assert!(waited < 2 * BUDGET + SLACK, "{shape:?}: {waited:?}");
        for osd in &cell.osds {
            osd.set_fault(Fault::None);
        }
        cell.stand_in();
    }
}

#[tokio::test]
async fn a_device_that_was_only_slow_is_asked_again() {
    let mut cell = Cell::start(1);
    let (mut file, bytes) = file(&cell, striped(1, 1, 65536), 300_000).await;
    cell.stand_in();
    file.patience = Duration::from_millis(200);
    cell.osd(2).set_fault(Fault::Slow(Duration::from_secs(4)));
    let before = cell.osd(2).calls();
    let all = 0..bytes.len() as u64;
    for _ in 0..2 {
        assert!(file.read(&cell, all.clone()).await.is_err());
    }
    assert_eq!(cell.osd(2).calls(), before + 1);
    assert_ne!(cell.devices.condition(2), Condition::Dead, "stores wait");
    cell.osd(2).set_fault(Fault::None);
    // It recovers as soon as it answers the abandoned calls.
    until("a read", async || {
        file.read(&cell, all.clone()).await.is_ok()
    })
    .await;
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn a_store_waits_for_what_it_has_to_read() {
    let mut cell = Cell::start(6);
    let (mut file, mut bytes) = file(&cell, erasure(4, 2, 65536), 1_000_000).await;
    cell.stand_in();
    for osd in &cell.osds[..3] {
        osd.set_fault(Fault::Slow(BUDGET + PATIENCE));
    }
    // A part of a row: the rest of it must be read for the parity, and no other source has it.
    let new = pattern(5000);
    file.patience = 10 * PATIENCE;
    file.write(&cell, 1000, &new).await.unwrap();
    bytes[1000..6000].copy_from_slice(&new);
    for osd in &cell.osds {
        osd.set_fault(Fault::None);
    }
    cell.stand_in();
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn silence_towards_one_reader_does_not_end_another() {
    let mut cell = Cell::start(1);
    let (mut file, bytes) = file(&cell, striped(1, 1, 65536), 1_000_000).await;
    cell.stand_in();
    file.patience = Duration::from_millis(500);
    let all = 0..bytes.len() as u64;
    let options = ReadOptions {
        call_bytes: 65536,
        window_bytes: 0,
        ..ReadOptions::default()
    };
    let set = file.set(file.layout.clone());
    let mut other = Reader::new(cell.devices.clone(), set, all.clone(), options).unwrap();
    let mut read = other.next().await.unwrap().unwrap().to_vec();
    cell.osd(2).set_fault(Fault::Silent);
    assert!(file.read(&cell, all.clone()).await.is_err());
    cell.osd(2).set_fault(Fault::None);
    let before = cell.osd(2).calls();
    assert!(file.read(&cell, all).await.is_err());
    assert_eq!(cell.osd(2).calls(), before, "it is passed over");
    read.extend(other.rest().await.unwrap().concat());
    assert!(read == bytes);
    // A reader that learns of its recovery uses it again.
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn devices_that_were_never_reached_are_dead_in_the_end() {
    let mut cell = Cell::start(2);
    let (file, bytes) = file(&cell, striped(1, 2, 65536), 300_000).await;
    cell.stand_in();
    // A socket that receives everything and never answers.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = u32::from(nobody.local_addr().unwrap().port());
    for osd in &cell.osds {
        let mut listed = osd.listed();
        listed.entry.port = port;
        cell.devices.merge(&[listed]);
    }
    let began = Instant::now();
    let all = 0..bytes.len() as u64;
    assert!(file.read(&cell, all).await.is_err());
    let waited = began.elapsed();
    assert!(waited < BUDGET + SLACK, "{waited:?}");
    let condition = |osd| cell.devices.condition(osd);
    until("both are dead", async || {
        [2, 3].map(condition) == [Condition::Dead; 2]
    })
    .await;
    assert!(began.elapsed() < 3 * DEAD_TIME, "{:?}", cell.devices);
}

#[tokio::test]
async fn a_device_that_dies_while_it_is_read_is_replaced() {
    let cell = Cell::start(6);
    for shape in [
        striped(1, 2, 4096),
        striped(3, 2, 4096),
        erasure(4, 2, 4096),
    ] {
        let (file, bytes) = file(&cell, shape, 500_000).await;
        for fault in [
            Fault::Midway(AbortCode::EIO),
            Fault::Abort(AbortCode::VBUSY),
        ] {
            cell.osd(2).set_fault(fault);
            let mut reader = file.reader(&cell, 0..500_000);
            assert!(reader.rest().await.unwrap().concat() == bytes);
            let problem = &reader.problems()[0];
            assert_eq!((problem.place, problem.placed.osd), (0, 2));
            assert_eq!(
                problem.is_damage(),
                fault == Fault::Midway(AbortCode::EIO),
                "wrong bytes are to be repaired, a busy server is not"
            );
            cell.osd(2).set_fault(Fault::None);
            cell.devices.succeeded(2);
        }
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_noticed() {
    let cell = Cell::start(6);
    let (file, bytes) = file(&cell, erasure(4, 2, 4096), 300_000).await;
    cell.osd(3).kill();
    cell.osd(5).kill();
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn without_another_copy_the_failure_is_clear_and_comes_at_once() {
    let cell = Cell::start(3);
    let (file, _) = file(&cell, striped(3, 1, 4096), 50_000).await;
    let mut dead = cell.osd(3).listed();
    dead.dead = true;
    cell.devices.merge(&[dead]);
    let begin = Instant::now();
    let failure = file.read(&cell, 0..50_000).await.unwrap_err();
    assert!(
        matches!(failure, Error::Unavailable { osd: 3 }),
        "{failure}"
    );
    assert_eq!(failure.code(), AbortCode::EIO);
    assert!(begin.elapsed() < DEAD_TIME);
    // Data on other devices can be read.
    assert_eq!(file.read(&cell, 0..4096).await.unwrap(), pattern(4096));
    // The data is available again with its device.
    cell.devices.merge(&[cell.osd(3).listed()]);
    assert_eq!(file.read(&cell, 0..50_000).await.unwrap(), pattern(50_000));
    cell.osd(2).objects(|objects| objects.clear());
    let failure = file.read(&cell, 0..50_000).await.unwrap_err();
    assert!(matches!(failure, Error::Device { osd: 2, .. }), "{failure}");
}

#[tokio::test]
async fn stores_go_on_without_a_device_and_say_so() {
    let cell = Cell::start(8);
    for shape in [striped(2, 2, 4096), erasure(3, 2, 4096)] {
        let (mut file, mut bytes) = file(&cell, shape, 100_000).await;
        cell.osd(2).set_fault(Fault::Writes(AbortCode::ENOSPC));
        let mut writer = file.writer(&cell);
        writer.begin(5000, 20_000).await.unwrap();
        writer.push(vec![7; 20_000].into()).await.unwrap();
        let written = writer.finish().await.unwrap();
        bytes[5000..25_000].fill(7);
        assert!(written.layout.objects[0].stale);
        let failed = written.failed();
        assert_eq!(failed[0].place, 0);
        assert_eq!(failed[0].code, AbortCode::ENOSPC.0);
        file.take(written);
        cell.osd(2).set_fault(Fault::None);
        assert!(file.read(&cell, 0..100_000).await.unwrap() == bytes);
        // A repair restores the redundancy: then other objects may be lost.
        let set = file.set(file.layout.clone());
        let target = RebuildTarget { osd: 9, serial: 99 };
        let pace = Pace::new(0);
        let made = rebuild(&cell.devices, &set, 0, target, file.length, &pace)
            .await
            .unwrap();
        file.layout.objects.as_mut_slice()[0] = made;
        // The other copy; or two data objects.
        let lost: &[usize] = if shape.copies == 2 && shape.stripes == 2 {
            &[2]
        } else {
            &[1, 2]
        };
        for place in lost {
            let osd = file.layout.objects[*place].osd;
            cell.osd(osd).objects(|objects| objects.clear());
        }
        assert!(file.read(&cell, 0..100_000).await.unwrap() == bytes);
    }
}

#[tokio::test]
async fn a_store_without_another_copy_fails_as_a_whole() {
    let cell = Cell::start(3);
    let (mut file, bytes) = file(&cell, striped(3, 1, 4096), 60_000).await;
    cell.osd(4).set_fault(Fault::Writes(AbortCode::ENOSPC));
    let failure = file.write(&cell, 0, &[1; 60_000]).await.unwrap_err();
    assert_eq!(failure.code(), AbortCode::ENOSPC);
    assert!(file.read(&cell, 0..60_000).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_small_store_touches_only_what_it_must() {
    let cell = Cell::start(6);
    let (mut file, _) = file(&cell, erasure(4, 2, 4096), 100_000).await;
    let before: Vec<u64> = file.layout.objects.iter().map(|o| o.version).collect();
    let mut writer = file.writer(&cell);
    writer.begin(4096 + 10, 5).await.unwrap();
    writer.push(vec![9; 5].into()).await.unwrap();
    let written = writer.finish().await.unwrap();
    assert_eq!(
        written.touched,
        [false, true, false, false, true, true],
        "one unit and the parity"
    );
    let untouched: Vec<u32> = written.failed().iter().map(|failed| failed.place).collect();
    assert_eq!(untouched, [0, 2, 3]);
    assert!(written.failed().iter().all(|failed| failed.code == 0));
    for (place, placed) in written.layout.objects.iter().enumerate() {
        let same = placed.version == before[place];
        assert_eq!(same, !written.touched[place]);
    }
}

#[tokio::test]
async fn a_run_reads_no_version_that_its_device_has_yet_to_make() {
    let cell = Cell::start(3);
    let (mut file, mut bytes) = file(&cell, erasure(2, 1, 4096), 100_000).await;
    for osd in &cell.osds {
        osd.set_fault(Fault::SlowWrites(Duration::from_millis(300)));
    }
    file.patience = Duration::from_secs(60);
    let mut writer = file.writer(&cell);
    for position in [10, 50_000] {
        writer.begin(position, 100).await.unwrap();
        writer.push(vec![7; 100].into()).await.unwrap();
        bytes[position as usize..][..100].fill(7);
    }
    let written = writer.finish().await.unwrap();
    assert!(written.problems.is_empty(), "{:?}", written.problems);
    file.take(written);
    compare(&cell, &file, &bytes).await;
    // The parity too.
    cell.osd(2).objects(|objects| objects.clear());
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn a_copy_may_take_longer_than_a_device_may_be_silent() {
    let cell = Cell::start(3);
    let (mut file, bytes) = file(&cell, striped(1, 2, 4096), 50_000).await;
    // On existing connections the idle time is longer.
    cell.devices.set_idle_time(Duration::from_millis(100));
    cell.osd(4).set_fault(Fault::Slow(Duration::from_secs(2)));
    let set = file.set(file.layout.clone());
    let (target, pace) = (RebuildTarget { osd: 4, serial: 9 }, Pace::new(0));
    let made = rebuild(&cell.devices, &set, 0, target, file.length, &pace).await;
    file.layout.objects.as_mut_slice()[0] = made.unwrap();
    cell.osd(4).set_fault(Fault::None);
    cell.osd(3).objects(|objects| objects.clear());
    compare(&cell, &file, &bytes).await;
}

#[tokio::test]
async fn a_slow_reader_reads_to_the_end() {
    let cell = Cell::start(1);
    let idle = Duration::from_secs(4);
    cell.devices.set_idle_time(idle);
    let length = 12 << 20;
    let (mut file, bytes) = file(&cell, striped(1, 1, 65536), length).await;
    file.patience = Duration::from_secs(60);
    let mut reader = file.reader(&cell, 0..length as u64);
    let mut read = reader.next().await.unwrap().unwrap().to_vec();
    // The calls hold a part of the requested data and are idle.
    tokio::time::sleep(idle + Duration::from_secs(1)).await;
    read.extend(reader.rest().await.unwrap().concat());
    assert!(read == bytes);
    assert!(reader.problems().is_empty(), "{:?}", reader.problems());
}

#[tokio::test]
async fn a_client_with_long_pauses_stores_all_bytes() {
    let cell = Cell::start(2);
    let idle = Duration::from_secs(4);
    cell.devices.set_idle_time(idle);
    let (mut file, mut bytes) = file(&cell, striped(2, 1, 65536), 1).await;
    bytes = [bytes, pattern(400_000)].concat();
    file.patience = Duration::from_secs(60);
    let mut writer = file.writer(&cell);
    writer.begin(1, 400_000).await.unwrap();
    let part = |range: std::ops::Range<usize>| bytes::Bytes::copy_from_slice(&bytes[range]);
    writer.push(part(1..70_000)).await.unwrap();
    // Both objects have received a part of the announced data.
    tokio::time::sleep(idle + Duration::from_secs(1)).await;
    writer.push(part(70_000..400_001)).await.unwrap();
    let written = writer.finish().await.unwrap();
    file.take(written);
    compare(&cell, &file, &bytes).await;
}

/// A new file while a device of its layout is dead: stored on the others, complete after a repair,
/// and safe against the next failure.
#[tokio::test]
async fn a_new_file_is_stored_without_a_dead_device_and_repaired_later() {
    for shape in [
        striped(3, 1, 4096),
        striped(2, 2, 4096),
        erasure(2, 1, 4096),
    ] {
        let objects = shape.objects() as u32;
        for dead in 2..2 + objects {
            let cell = Cell::start(objects);
            let mut listed: Vec<_> = cell.osds.iter().map(|osd| osd.listed()).collect();
            listed[dead as usize - 2].dead = true;
            cell.devices.update(&listed);
            let wish = PlacementRequest {
                shape,
                ..PlacementRequest::default()
            };
            choose(&listed, &wish, &mut rand::rng()).unwrap_err();
            let made = choose_degraded(&listed, &wish, &mut rand::rng()).unwrap();
            let mut file = File::new(&cell, made.shape);
            for (placed, osd) in file
                .layout
                .objects
                .as_mut_slice()
                .iter_mut()
                .zip(&made.devices)
            {
                placed.osd = *osd;
            }
            let bytes = pattern(50_000);
            file.write(&cell, 0, &bytes).await.unwrap();
            compare(&cell, &file, &bytes).await;
            assert_eq!(cell.osd(dead).calls(), 0, "a dead device is not called");
            let stale = |file: &File| file.layout.objects.iter().position(|placed| placed.stale);
            let alone = shape.scheme == Scheme::Striped && shape.copies == 1;
            assert_eq!(stale(&file).is_none(), alone);
            let Some(place) = stale(&file) else { continue };
            listed[dead as usize - 2].dead = false;
            cell.devices.update(&listed);
            let set = file.set(file.layout.clone());
            let (target, pace) = (
                RebuildTarget {
                    osd: dead,
                    serial: 99,
                },
                Pace::new(0),
            );
            let made = rebuild(&cell.devices, &set, place, target, file.length, &pace).await;
            file.layout.objects.as_mut_slice()[place] = made.unwrap();
            // Now any other device may fail.
            let other = file.layout.objects[(place + 1) % objects as usize].osd;
            cell.osd(other).kill();
            compare(&cell, &file, &bytes).await;
        }
    }
}
