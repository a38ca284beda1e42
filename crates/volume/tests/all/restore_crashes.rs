//! Every write and every sync fails once, and the power fails at every point, while volumes are
//! restored and converted. Afterwards there are the old contents or the new ones, complete.

use crate::common::crashing;
use crate::common::restoring;

use std::sync::Arc;

use crate::common::faults::everywhere;
use crate::common::{VOLUME, at, new};
use cellar_volume::disk::SimDisk;
use cellar_volume::{
    IdsSpec, Partition, RestoreMode, Result, RetiredFile, SetStatus, SnapshotSpec, StateId,
    StoreSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopies, ArchiveCopy};
use crashing::*;
use restoring::*;

const TARGET: VolumeId = VolumeId(90);
const RO: VolumeId = VolumeId(11);
const STATE: StateId = StateId {
    lineage: [3; 16],
    epoch: 1,
};

/// A target with the contents that the volume had before it changed.
fn restored(kind: VolumeKind) -> SimDisk {
    let disk = start();
    let partition = open(&disk).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    empty_volume(&partition, TARGET, kind);
    let wanted = contents(&volume);
    let mut restore = partition.begin_restore(TARGET, RestoreMode::Full).unwrap();
    for item in in_order(&wanted) {
        put(&mut restore, item).unwrap();
    }
    let mut info = info_of(restore.volume());
    info.received = Some(STATE);
    restore.commit(info).unwrap().wait().unwrap();
    let root = volume.root();
    let large = volume.lookup(root, b"large").unwrap();
    let spec = StoreSpec::at(250_001);
    let _ = volume
        .store(large, &spec, &[pattern(20_000, 7)], at(20))
        .unwrap();
    let _ = volume.remove_file(root, b"small", at(21)).unwrap();
    let made = volume.create_file(root, b"new", &new(), at(22)).unwrap();
    let fid = made.outcome.status.fid;
    let _ = volume
        .store(fid, &StoreSpec::at(0), &[pattern(300_000, 8)], at(23))
        .unwrap();
    let dir = volume.lookup(root, b"dir").unwrap();
    let empty = volume.lookup(root, b"empty").unwrap();
    let _ = volume
        .rename(root, b"dir", empty, b"below", at(24))
        .unwrap();
    let set = SetStatus {
        mode: Some(0o700),
        ..SetStatus::default()
    };
    let _ = volume.set_status(dir, &set, at(25)).unwrap();
    partition.close().unwrap();
    disk.power_cut(None)
}

fn both(partition: &Partition, volume: &Volume) -> (Arc<Volume>, Contents, Contents) {
    let target = partition.volume(TARGET).unwrap().unwrap();
    let (old, new) = (contents(&target), contents(volume));
    (target, old, new)
}

#[test]
fn a_full_restore() {
    let disk = start();
    let partition = open(&disk).unwrap();
    // A restored volume needs a root, so that its contents can be compared.
    let kind = VolumeKind::ReadOnly;
    let spec = VolumeSpec {
        kind,
        ..VolumeSpec::new(TARGET, "target", ViceId(1), AfsTime(1))
    };
    partition.create_volume(&spec).unwrap().wait().unwrap();
    partition.close().unwrap();
    crash_everywhere_from(
        &disk.power_cut(None),
        |partition, volume| {
            let wanted = contents(volume);
            restore_over(partition, TARGET, &Contents::new(), &wanted).map(drop)
        },
        true,
    );
}

#[test]
fn an_incremental_restore() {
    crash_everywhere_from(
        &restored(VolumeKind::ReadWrite),
        |partition, volume| {
            let (_, old, new) = both(partition, volume);
            restore_over(partition, TARGET, &old, &new).map(drop)
        },
        true,
    );
}

#[test]
fn a_delta() {
    crash_everywhere_from(
        &restored(VolumeKind::ReadOnly),
        |partition, volume| {
            let (_, old, new) = both(partition, volume);
            let base = STATE;
            let mut restore = partition.begin_restore(TARGET, RestoreMode::Delta { base })?;
            for vnode in old.keys().filter(|vnode| !new.contains_key(vnode)) {
                restore.remove(cellar_wire::ids::VnodeId(*vnode))?;
            }
            for (vnode, item) in &new {
                match old.get(vnode) {
                    None => put(&mut restore, item)?,
                    Some(before) if before == item => {}
                    Some(before) => patch(&mut restore, before, item)?,
                }
            }
            finish(restore).map(drop)
        },
        true,
    );
}

/// Pushes those parts of 2048 bytes that differ.
fn patch(restore: &mut cellar_volume::Restore, before: &Item, item: &Item) -> Result<()> {
    restore.patch(&item.image)?;
    let mut rest = item.bytes.clone();
    let mut at = 0;
    while !rest.is_empty() {
        let count = rest.len().min(2048);
        let part = rest.split_to(count);
        if before.bytes.get(at..at + count) == Some(&part[..]) {
            restore.skip(count as u64)?;
        } else {
            restore.push(part)?;
        }
        at += count;
    }
    Ok(())
}

/// Removed files of the volume that a restore brings.
fn removed_files() -> Vec<RetiredFile> {
    let file = |vnode| RetiredFile {
        fid: Fid {
            volume: TARGET,
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(1),
        },
        removed: AfsTime(9),
        parent: Fid {
            volume: TARGET,
            vnode: VnodeId::ROOT,
            uniquifier: Uniquifier(1),
        },
        name: "gone".into(),
        mode: 0o644,
        owner: ViceId(1),
        group: ViceId(1),
        client_time: AfsTime(8),
        length: 1,
        data_version: 2,
        copies: Arc::new(ArchiveCopies::from_iter_cut([ArchiveCopy {
            osd: 70,
            version: 3,
            length: 1,
            ..ArchiveCopy::default()
        }])),
    };
    (1000..1010).map(|number| file(2 * number)).collect()
}

/// The visible state without removed files. These are all there if the restored contents are.
fn state_with_removed_files(disk: &SimDisk, what: &str) -> State {
    let mut state = checked_state(disk, what);
    let retired = state.remove(&format!("retired {TARGET}"));
    let info = &state[&format!("info {TARGET}")];
    if info.contains("updated: AfsTime(777)") {
        let all = format!("({:?}, None)", removed_files());
        assert_eq!(retired, Some(all), "{what}");
    }
    state
}

#[test]
fn a_restore_with_removed_files() {
    let disk = start();
    let partition = open(&disk).unwrap();
    let spec = VolumeSpec::new(TARGET, "target", ViceId(1), AfsTime(1));
    partition.create_volume(&spec).unwrap().wait().unwrap();
    partition.close().unwrap();
    let operation: Operation = |partition, volume| {
        let mut restore = partition.begin_restore(TARGET, RestoreMode::Full)?;
        for item in in_order(&contents(volume)) {
            put(&mut restore, item)?;
        }
        // The second time replaces the first.
        for file in removed_files().iter().chain(&removed_files()) {
            restore.retire(file)?;
        }
        finish(restore).map(drop)
    };
    let attempt = |disk: &SimDisk, flush, fault| run(disk, operation, flush, fault);
    everywhere(
        &disk.power_cut(None),
        true,
        attempt,
        state_with_removed_files,
    );
}

#[test]
fn a_restore_that_is_undone() {
    crash_everywhere_from(
        &restored(VolumeKind::ReadWrite),
        |partition, volume| {
            let (_, old, new) = both(partition, volume);
            let mode = RestoreMode::Incremental;
            let mut restore = partition.begin_restore(TARGET, mode)?;
            for item in in_order(&new) {
                if old.get(&item.image.vnode.0) == Some(item) {
                    restore.keep(item.image.vnode, item.image.uniquifier)?;
                } else {
                    put(&mut restore, item)?;
                }
            }
            restore.abort()
        },
        false,
    );
}

#[test]
fn a_clone_in_place_of_a_restored_volume() {
    let disk = start();
    let partition = open(&disk).unwrap();
    let spec = VolumeSpec {
        kind: VolumeKind::ReadOnly,
        parent: VOLUME,
        ..VolumeSpec::new(RO, "vol.readonly", ViceId(1), AfsTime(1))
    };
    partition.create_volume(&spec).unwrap().wait().unwrap();
    partition.close().unwrap();
    crash_everywhere_from(
        &disk.power_cut(None),
        |partition, _| release(partition),
        true,
    );
}

fn release(partition: &Partition) -> Result<()> {
    let kind = VolumeKind::ReadOnly;
    let spec = SnapshotSpec::new(VOLUME, RO, "vol.readonly", kind, AfsTime(30));
    partition.snapshot(&spec)?.wait().map(drop)
}

/// A clone, and a volume that was changed since.
fn released() -> SimDisk {
    let disk = start();
    let partition = open(&disk).unwrap();
    release(&partition).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let large = volume.lookup(volume.root(), b"large").unwrap();
    let spec = StoreSpec::at(1000);
    let _ = volume
        .store(large, &spec, &[pattern(9000, 7)], at(20))
        .unwrap();
    partition.close().unwrap();
    disk.power_cut(None)
}

#[test]
fn a_clone_made_again() {
    crash_everywhere_from(&released(), |partition, _| release(partition), true);
}

#[test]
fn ids_and_kind() {
    crash_everywhere_from(
        &released(),
        |partition, _| partition.set_ids(VOLUME, &ids())?.wait().map(drop),
        true,
    );
}

#[test]
fn a_read_only_volume_becomes_read_write() {
    // The versions that only the RW volume saw are still being removed.
    let disk = released();
    let partition = Partition::open(Arc::new(disk.clone()), slow()).unwrap();
    partition.delete_volume(VOLUME).unwrap().wait().unwrap();
    let disk = disk.power_cut(None);
    drop(partition);
    crash_everywhere_from(
        &disk,
        |partition, _| match partition.volume(RO)? {
            Some(_) => partition.convert_to_rw(RO, 0)?.wait().map(drop),
            None => Ok(()),
        },
        true,
    );
}

/// So slow that nothing is removed during a test.
fn slow() -> cellar_volume::Options {
    cellar_volume::Options {
        reap_rate: 1,
        ..options()
    }
}

fn ids() -> IdsSpec {
    IdsSpec {
        name: "renamed".into(),
        kind: VolumeKind::Backup,
        parent: VolumeId(77),
        clone: VolumeId(0),
        backup: VolumeId(5),
    }
}
