//! Volumes are restored, cloned and undone while others read. A reader that has a volume open reads
//! one state of it to the end, even if the volume is replaced many times meanwhile.

use crate::common::restoring;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{World, at, new};
use bytes::Bytes;
use cellar_volume::{
    Error, Partition, RestoreMode, SnapshotSpec, StoreSpec, VnodeImage, Volume, VolumeKind,
};
use cellar_wire::ids::{AfsTime, VolumeId};
use restoring::*;

const TARGET: VolumeId = VolumeId(90);
const CLONE: VolumeId = VolumeId(91);
const FILES: usize = 12;
const ROUNDS: u8 = 60;

/// Bytes that identify their state; some files are small, some in blocks.
fn bytes(state: u8, file: usize) -> Bytes {
    Bytes::from(vec![state; 1 + file * 3000])
}

/// The state of all files of a volume, or `None` if it was deleted.
fn state_of(volume: &Volume) -> Option<u8> {
    let mut states = Vec::new();
    for file in 0..FILES {
        let name = format!("file{file}");
        let read = volume
            .lookup(volume.root(), name.as_bytes())
            .and_then(|fid| volume.read(fid, 0, 1 << 20));
        match read {
            Ok(read) => {
                assert_eq!(read.len(), 1 + file * 3000);
                states.push(read[0]);
                assert!(read.iter().all(|&byte| byte == states[0]), "{volume:?}");
            }
            Err(Error::NoVolume(_)) => return None,
            Err(other) => panic!("{volume:?}: {other}"),
        }
    }
    assert!(states.iter().all(|&state| state == states[0]), "{states:?}");
    Some(states[0])
}

/// A reader that panics stops the others, and the threads that wait for them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read_on(partition: &Partition, id: VolumeId, stop: &AtomicBool, looks: &AtomicU64) {
    let _ends = Ends(stop);
    while !stop.load(Ordering::Relaxed) {
        let Some(volume) = partition.volume(id).unwrap() else {
            continue;
        };
        let state = state_of(&volume);
        for _ in 0..4 {
            let again = state_of(&volume);
            // The clone is deleted now and then. It is gone at once, and permanently.
            let deleted = again.is_none() && id == CLONE;
            assert!(
                again == state || deleted,
                "{volume:?}: {state:?}, {again:?}"
            );
        }
        looks.fetch_add(1, Ordering::Relaxed);
    }
}

/// Restores the next state, partly as changes of the present one.
fn restore(partition: &Partition, wanted: &Contents, state: u8, commit: bool) {
    let mut restore = loop {
        match partition.begin_restore(TARGET, RestoreMode::Incremental) {
            Ok(restore) => break restore,
            Err(Error::Busy(_)) => partition.reap_now().unwrap(),
            Err(other) => panic!("{other}"),
        }
    };
    for item in in_order(wanted) {
        if item.image.vnode.is_directory() {
            put(&mut restore, item).unwrap();
            continue;
        }
        let image = VnodeImage {
            data_version: u64::from(state),
            ..item.image.clone()
        };
        match state % 2 {
            0 => restore.put(&image).unwrap(),
            _ => restore.patch(&image).unwrap(),
        }
        let file = (image.length as usize - 1) / 3000;
        restore.push(bytes(state, file)).unwrap();
    }
    if commit {
        let info = info_of(restore.volume());
        let _ = restore.commit(info).unwrap();
    }
}

#[test]
fn readers_read_one_state() {
    let world = World::with_capacity(256 << 20);
    let partition = &world.partition;
    let volume = world.volume();
    for file in 0..FILES {
        let name = format!("file{file}");
        let made = volume.create_file(volume.root(), name.as_bytes(), &new(), at(1));
        let fid = made.unwrap().outcome.status.fid;
        let stored = volume.store(fid, &StoreSpec::at(0), &[bytes(0, file)], at(2));
        let _ = stored.unwrap();
    }
    let wanted = contents(&volume);
    empty_volume(partition, TARGET, VolumeKind::ReadWrite);
    restore_over(partition, TARGET, &Contents::new(), &wanted).unwrap();
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for id in [TARGET, TARGET, CLONE] {
            let (stop, looks) = (&stop, &looks);
            scope.spawn(move || read_on(partition, id, stop, looks));
        }
        for state in 1..ROUNDS {
            restore(partition, &wanted, state, state % 5 != 0);
            if state % 3 == 0 {
                let kind = VolumeKind::ReadOnly;
                let spec = SnapshotSpec::new(TARGET, CLONE, "clone", kind, AfsTime(9));
                let _ = partition.snapshot(&spec).unwrap();
            }
            if state % 10 == 7 {
                let _ = partition.delete_volume(CLONE).unwrap();
            }
            // Slow readers must also see most states.
            let seen = looks.load(Ordering::Relaxed);
            while looks.load(Ordering::Relaxed) < seen + 2 && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let target = partition.volume(TARGET).unwrap().unwrap();
    assert_eq!(state_of(&target), Some(ROUNDS - 1));
    drop((target, volume));
    partition.reap_now().unwrap();
    world.check_clean();
}
