//! Tests of the map of blocks.

use super::*;
use crate::disk::SimDisk;

fn space() -> Arc<Space> {
    space_on(1 << 30, 0)
}

fn space_on(bytes: u64, reserve: u64) -> Arc<Space> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(bytes));
    let room = Arc::new(Room::new(Arc::clone(&disk), reserve, 0).unwrap());
    Arc::new(Space::open(disk, room, &|_| Ok(None)).unwrap())
}

#[test]
fn blocks_are_handed_out_once_and_go_back_after_durability_and_readers() {
    let space = space();
    let load: Load<'_> = &|_| Ok(None);
    let first = space.allocate(10, load).unwrap();
    let second = space.allocate(5, load).unwrap();
    assert_eq!(
        first.runs(),
        [Run {
            start: 0,
            count: 10
        }]
    );
    assert_eq!(
        second.runs(),
        [Run {
            start: 10,
            count: 5
        }]
    );
    drop(second);
    let runs = first.hand_over();
    space.apply(&runs, &[], load).unwrap();
    assert_eq!(space.image_blocks(load).unwrap(), runs);
    space.apply(&[], &runs, load).unwrap();
    let pin = space.pin();
    assert_eq!(space.allocate(1, load).unwrap().runs()[0].start, 10);
    space.released(runs);
    assert_eq!(
        space.allocate(1, load).unwrap().runs()[0].start,
        10,
        "a reader is there"
    );
    drop(pin);
    assert_eq!(space.allocate(1, load).unwrap().runs()[0].start, 0);
    assert_eq!(space.image_blocks(load).unwrap(), []);
}

#[test]
fn a_large_allocation_spans_regions() {
    let space = space();
    let load: Load<'_> = &|_| Ok(None);
    let all = space.allocate(40_000, load).unwrap();
    let mut blocks = 0;
    for run in all.runs() {
        assert_eq!(region_of(run.start).0, region_of(run.end() - 1).0);
        blocks += run.count;
    }
    assert_eq!(blocks, 40_000);
}

#[test]
fn a_full_disk_gives_nothing_and_keeps_nothing() {
    let space = space_on(1 << 20, 0);
    let load: Load<'_> = &|_| Ok(None);
    assert!(matches!(space.allocate(1000, load), Err(Error::DiskFull)));
    assert_eq!(space.allocate(100, load).unwrap().runs()[0].start, 0);
}

#[test]
fn blocks_given_back_on_a_full_disk_are_found() {
    // Several regions, of which the last is only partly backed by the disk.
    let space = space_on(200 << 20, 4 << 20);
    let load: Load<'_> = &|_| Ok(None);
    let mut kept = Vec::new();
    while let Ok(allocation) = space.allocate(128, load) {
        let runs = allocation.hand_over();
        space.apply(&runs, &[], load).unwrap();
        kept.push(runs);
    }
    assert!(kept.len() > 380, "{}", kept.len());
    let regions = space.inner.lock().free.len();
    let freed: Vec<_> = kept.iter().step_by(2).cloned().collect();
    for runs in &freed {
        space.apply(&[], runs, load).unwrap();
        space.released(runs.clone());
    }
    for round in 0..freed.len() {
        let allocation = space.allocate(128, load);
        let allocation = allocation.unwrap_or_else(|error| panic!("{round}: {error}"));
        space.apply(&allocation.hand_over(), &[], load).unwrap();
    }
    assert_eq!(space.inner.lock().free.len(), regions, "the map grew");
}
