//! Every write and every sync fails once, and the power fails at every point, while a file with
//! copies in archives changes its state. Afterwards there is the old state or the new one,
//! complete.

use crate::common::crashing::*;
use crate::common::faults::everywhere;
use crate::common::{VOLUME, at, layout};

use cellar_volume::disk::SimDisk;
use cellar_volume::{LayoutChange, Result, SnapshotSpec, Volume, VolumeKind};
use cellar_wire::ids::{AfsTime, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopy, Contents};

const COPY: ArchiveCopy = ArchiveCopy {
    osd: 70,
    volume: VOLUME,
    serial: 1 << 31,
    version: 5,
    data_version: 1,
    length: 700_000,
    blake3: [7; 8],
    md5: [8; 4],
    made: 100,
    verified: 0,
    bad: false,
};

const CONTENTS: Contents = Contents {
    volume: VOLUME,
    version: 5,
};

/// An RO clone that sees the file too.
const CLONE: VolumeId = VolumeId(11);

type Step = fn(&Volume) -> Result<()>;

fn to_objects(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let expected = volume.status(fid)?.data_version;
    let change = LayoutChange::new(layout(5), 700_000);
    volume
        .set_layout(fid, expected, &change, at(5))?
        .wait()
        .map(drop)
}

fn copied(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let added = volume.add_archive_copy(fid.vnode, fid.uniquifier, &COPY)?;
    added.wait().map(drop)
}

fn wiped(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let wiped = volume.wipe(fid.vnode, fid.uniquifier, CONTENTS, 1)?;
    assert_eq!(wiped.outcome.versions, 1);
    wiped.wait().map(drop)
}

fn recalled(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let mut online = layout(5);
    online.objects.as_mut_slice()[0].osd = 33;
    let online = volume.restore_online(fid.vnode, fid.uniquifier, &online)?;
    assert_eq!(online.outcome, 1);
    online.wait().map(drop)
}

fn forgotten(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let edited = volume.edit_archive_copies(fid.vnode, fid.uniquifier, |_| false)?;
    assert_eq!(edited.outcome, 1);
    edited.wait().map(drop)
}

/// A disk on which a file has gone through these states; an RO clone sees it too.
fn after(steps: &[Step]) -> SimDisk {
    let disk = start();
    let partition = open(&disk).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    for (place, step) in steps.iter().enumerate() {
        step(&volume).unwrap();
        if place == 0 {
            let name = "vol.readonly".to_string();
            let spec = SnapshotSpec::new(VOLUME, CLONE, name, VolumeKind::ReadOnly, AfsTime(9));
            partition.snapshot(&spec).unwrap().wait().unwrap();
        }
    }
    partition.close().unwrap();
    disk.power_cut(None)
}

fn crash_at(before: &[Step], operation: Operation) {
    crash_everywhere_from(&after(before), operation, true);
}

#[test]
fn a_copy_is_entered() {
    crash_at(&[to_objects], |_, volume| copied(volume));
}

#[test]
fn a_file_is_wiped() {
    crash_at(&[to_objects, copied], |_, volume| wiped(volume));
}

#[test]
fn a_file_is_recalled() {
    crash_at(&[to_objects, copied, wiped], |_, volume| recalled(volume));
}

#[test]
fn a_copy_is_forgotten() {
    crash_at(&[to_objects, copied], |_, volume| forgotten(volume));
}

fn removed(volume: &Volume) -> Result<()> {
    let removed = volume.remove_file(volume.root(), b"large", at(9))?;
    removed.wait().map(drop)
}

/// There is the file with its copies, or the retired file with the same copies. The references
/// name the copies in either state.
fn copies_stay(before: &[Step], operation: Operation) {
    let start = after(before);
    let archived = |disk: &SimDisk| {
        let partition = open(disk).unwrap();
        let (named, _) = partition.references(VOLUME, VnodeId(0), 100).unwrap();
        named.iter().filter(|one| one.osd == COPY.osd).count()
    };
    assert_eq!(archived(&start.power_cut(None)), 1);
    let attempt = |disk: &SimDisk, flush, fault| run(disk, operation, flush, fault);
    everywhere(&start, true, attempt, |disk, what| {
        assert_eq!(archived(disk), 1, "{what}: the copy has no reference");
        checked_state(disk, what)
    });
}

#[test]
fn a_file_with_copies_is_removed() {
    copies_stay(&[to_objects, copied], |_, volume| removed(volume));
}

#[test]
fn a_wiped_file_is_removed() {
    copies_stay(&[to_objects, copied, wiped], |_, volume| removed(volume));
}

#[test]
fn a_wiped_file_is_replaced_by_a_rename() {
    copies_stay(&[to_objects, copied, wiped], |_, volume| {
        let root = volume.root();
        let renamed = volume.rename(root, b"small", root, b"large", at(9))?;
        renamed.wait().map(drop)
    });
}

#[test]
fn the_bytes_of_a_file_with_copies_are_superseded() {
    copies_stay(&[to_objects, copied], |_, volume| stored(volume));
}

#[test]
fn a_removed_file_expires() {
    crash_at(&[to_objects, copied, removed], |partition, _| {
        let expired = partition.expire(AfsTime(9), &mut || true)?;
        assert_eq!(expired.files, 1);
        // The expiry does not wait for the disk.
        partition.flush()
    });
}

#[test]
fn superseded_copies_expire() {
    crash_at(&[to_objects, copied, stored], |partition, _| {
        // In the head; the clone sees the earlier bytes.
        let expired = partition.expire(AfsTime(200), &mut || true)?;
        assert_eq!(expired.versions, 1);
        partition.flush()
    });
}

fn stored(volume: &Volume) -> Result<()> {
    let fid = volume.lookup(volume.root(), b"large")?;
    let expected = volume.status(fid)?.data_version;
    let change = LayoutChange::new(layout(6), 100);
    let stored = volume.set_layout(fid, expected, &change, at(200))?;
    stored.wait().map(drop)
}

#[test]
fn a_wiped_file_is_stored() {
    crash_at(&[to_objects, copied, wiped], |_, volume| {
        let fid = volume.lookup(volume.root(), b"large")?;
        let expected = volume.status(fid)?.data_version;
        let change = LayoutChange::new(layout(6), 100);
        volume
            .set_layout(fid, expected, &change, at(9))?
            .wait()
            .map(drop)
    });
}
