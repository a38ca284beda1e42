//! Background work of a server, and retention of removed objects.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Cell, body, capability_for, id, pattern};
use cellar_rpc::CallError;
use cellar_until::until;
use cellar_wire::List;
use cellar_wire::object::{Capability, MAY_ALL, ObjectId, device_only};
use cellar_wire::osd::{
    GetStatistics, LIST_REMOVED, ListObjects, REMOVE_HARD, REMOVE_SOFT, Remove, Scrub, ScrubStatus,
    Undelete,
};

/// A capability for everything on the first device.
fn everything(cell: &Cell) -> Capability {
    capability_for(&cell.keys, &body(1, id(1), MAY_ALL))
}

/// Serial numbers of the objects on the first device, or of removed ones that can be restored.
async fn serials(cell: &Cell, flags: u32) -> Vec<u32> {
    let asked = ListObjects {
        capability: everything(cell),
        volume: 0,
        after: ObjectId::default(),
        limit: 100,
        flags,
    };
    let reply = cell.osd.call(&asked).await.unwrap();
    reply
        .objects
        .iter()
        .map(|info| info.object.serial)
        .collect()
}

async fn remove(cell: &Cell, serial: u32, flags: u32) {
    let call = Remove {
        capability: everything(cell),
        objects: List::from_iter_cut([id(serial)]),
        flags,
    };
    assert_eq!(cell.osd.call(&call).await.unwrap().removed, 1);
}

async fn write(cell: &Cell, serial: u32, bytes: &[u8]) -> Result<(), CallError> {
    let all = capability_for(&cell.keys, &body(1, id(serial), MAY_ALL));
    cell.write(&all, id(serial), 0, 3, 0, bytes).await
}

/// Seconds by which the clock of the retention test is ahead.
static AHEAD: AtomicU64 = AtomicU64::new(0);

fn clock_ahead() -> Duration {
    common::clock() + Duration::from_secs(AHEAD.load(Ordering::Relaxed))
}

#[test]
fn softly_removed_objects_stay_for_the_set_time() {
    let cell = Cell::start_as(|config| {
        config.clock = clock_ahead;
        config.retention = Duration::from_secs(100_000);
        config.purge_interval = Duration::from_millis(20);
    });
    cell.run(async |cell| {
        // Capabilities expire by that clock, but superusers need none.
        let device = device_only(1);
        write(cell, 1, b"bytes").await.unwrap();
        remove(cell, 1, REMOVE_SOFT).await;
        let list = async || {
            let asked = ListObjects {
                capability: device.clone(),
                volume: 0,
                after: ObjectId::default(),
                limit: 100,
                flags: LIST_REMOVED,
            };
            cell.superuser.call(&asked).await.unwrap().objects.len()
        };
        AHEAD.store(90_000, Ordering::Relaxed);
        // Nothing is to happen in many rounds of the check.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(list().await, 1, "it can be restored");
        AHEAD.store(100_010, Ordering::Relaxed);
        until("the retention is over", async || list().await == 0).await;
        let statistics = cell.osd.call(&GetStatistics {}).await.unwrap();
        let mut figures = statistics.figures.iter();
        let purged = figures.find(|figure| figure.name.as_bytes() == b"objects_purged");
        assert_eq!(purged.unwrap().value, 1);
    });
}

#[test]
fn a_full_device_ends_the_oldest_soft_deletes_and_no_more_than_it_needs() {
    let cell = Cell::start();
    cell.run(async |cell| {
        // As much as fits on 256 MiB.
        let bytes = pattern(30 << 20, 1);
        let mut last = 0;
        while write(cell, last + 1, &bytes).await.is_ok() {
            last += 1;
        }
        assert!(last >= 5, "{last}");
        // The remains of the last write must not occupy space.
        let call = Remove {
            capability: everything(cell),
            objects: List::from_iter_cut([id(last + 1)]),
            flags: REMOVE_HARD,
        };
        cell.osd.call(&call).await.unwrap();
        // By removal time, not in the order of their names. That time has a resolution of a second.
        for serial in [4, 2, 3] {
            remove(cell, serial, REMOVE_SOFT).await;
            let removed = common::clock().as_secs();
            let is_over = async || common::clock().as_secs() > removed;
            until("the next second", is_over).await;
        }
        until("there is room", async || {
            write(cell, 100, &bytes).await.is_ok()
        })
        .await;
        let left = serials(cell, LIST_REMOVED).await;
        assert!(left == [2, 3] || left == [3], "{left:?}");
        let undelete = Undelete {
            capability: everything(cell),
            objects: List::from_iter_cut([id(3)]),
        };
        assert_eq!(cell.osd.call(&undelete).await.unwrap().restored, 1);
        let all = capability_for(&cell.keys, &body(1, id(3), MAY_ALL));
        assert!(cell.read(&all, id(3), 3, 0, u64::MAX).await.unwrap() == bytes);
        let all = capability_for(&cell.keys, &body(1, id(100), MAY_ALL));
        assert!(cell.read(&all, id(100), 3, 0, u64::MAX).await.unwrap() == bytes);
        // Objects that were not removed stay.
        until("no soft delete is left", async || {
            let _full = write(cell, 101, &bytes).await;
            let _full = write(cell, 102, &bytes).await;
            serials(cell, LIST_REMOVED).await.is_empty()
        })
        .await;
        assert!(serials(cell, 0).await.contains(&1));
    });
}

#[test]
fn unfinished_objects_are_removed_for_good_despite_soft_removal() {
    // No database answers at this address, so removals are soft.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let cell = Cell::start_with(vec![silent.local_addr().unwrap()]);
    cell.run(async |cell| {
        for serial in [1, 2, 3] {
            write(cell, serial, b"bytes").await.unwrap();
        }
        remove(cell, 1, 0).await;
        remove(cell, 2, REMOVE_HARD).await;
        // Including objects that were softly removed before.
        remove(cell, 3, REMOVE_SOFT).await;
        remove(cell, 3, REMOVE_HARD).await;
        assert_eq!(serials(cell, LIST_REMOVED).await, [1]);
        assert!(serials(cell, 0).await.is_empty());
    });
}

#[test]
fn a_scrub_takes_as_long_as_its_rate_says() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let bytes = pattern(3 << 20, 1);
        for serial in 1..=2 {
            write(cell, serial, &bytes).await.unwrap();
        }
        let scrub = async |rate_kib| {
            let capability = everything(cell);
            let begun = Instant::now();
            let call = Scrub {
                capability: capability.clone(),
                rate_kib,
            };
            cell.osd.call(&call).await.unwrap();
            until("the scrub ends", async || {
                let capability = capability.clone();
                let status = cell.osd.call(&ScrubStatus { capability }).await.unwrap();
                !status.running && status.bytes >= 6 << 20
            })
            .await;
            begun.elapsed()
        };
        scrub(0).await;
        // 6 MiB at 2 MiB per second; the pause after the last read may be missing.
        let slow = scrub(2 << 10).await;
        assert!(slow >= Duration::from_millis(1500), "{slow:?}");
    });
}
