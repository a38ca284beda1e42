//! Older bytes of files that archives still have: retired files, and superseded copies.
//!
//! | bytes | kept in | from | until |
//! | --- | --- | --- | --- |
//! | removed file | a *retired file*, kind 15 | the removal of the last name | [`Partition::expire`] |
//! | superseded copy | the record of the file | the store of other bytes | [`Partition::expire`] |
//!
//! 1. The retired file is in the same batch as the removal. So after a crash there is the file, or
//!    the retired file; garbage collection finds the copies named in either.
//! 2. [`Partition::references`] reads the files first, then the retired files. A file that is
//!    removed in between is in both lists.
//! 3. A retired file has no bytes here, no name and no promise. Nothing but its end changes it. A
//!    volume that a restore has set to an older state may have the file again; both name the
//!    copies.
//! 4. The table has a bound. At [`RETIRED_MAX`] a removal keeps no copies. Expiry first removes the
//!    oldest entries down to [`RETIRED_LEFT`].
//! 5. A volume that moves takes its retired files along: [`Frozen::retired_files`] lists them, and
//!    [`Restore::retire`](super::restore::Restore::retire) enters them.
//! 6. The record has no time of a supersession. The time of a later copy counts, or else the last
//!    change of the file. Both are later than the store that superseded the bytes, so no copy goes
//!    too early.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId};
use cellar_wire::object::ArchiveCopy;

use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::operations::archive::{copies_of, set_copies};
use crate::operations::frozen::Frozen;
use crate::operations::txn::Txn;
use crate::partition::Partition;
use crate::record::{RetiredRecord, VnodeRecord};
use crate::state::core::{Core, Group};
use crate::state::retired_count::RETIRED_MAX;
use crate::types::RetiredFile;
use crate::volume::Volume;

/// Expiry leaves so many, so that there is room for the next removals.
const RETIRED_LEFT: usize = RETIRED_MAX / 10 * 9;
/// Entries that one change removes.
const STEP: usize = 256;
/// Entries in one page of a frozen volume's list.
const PAGE: usize = 256;
/// Records that one walk examines.
const LOOKS: usize = 4096;

/// The place of a retired file in the list of its volume.
pub type RetiredPlace = (VnodeId, Uniquifier);

/// The result of [`Partition::expire`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Retired files whose time has passed.
    pub files: usize,
    /// Retired files that made room for later ones.
    pub crowded_out: usize,
    /// Versions of files that lost superseded copies.
    pub versions: usize,
}

impl Partition {
    /// Whether removals keep the copies of files from now on. At first they do not.
    pub fn keep_removed(&self, keep: bool) {
        self.core.keeps_removed.store(keep, Ordering::Release);
    }

    /// Ends the time of files that were removed at `before` or earlier, and of copies that were
    /// superseded by then. Reads all records of files. Stops early, without an error, when
    /// `go_on` returns false.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn expire(&self, before: AfsTime, go_on: &mut dyn FnMut() -> bool) -> Result<Expired> {
        let mut expired = Expired::default();
        for group in self.core.all_groups()? {
            if !go_on() {
                break;
            }
            let bounds = (RETIRED_MAX, RETIRED_LEFT);
            self.core
                .expire_retired(&group, before, bounds, &mut expired)?;
        }
        let mut from = Some(0);
        while let Some(place) = from.filter(|_| go_on()) {
            let (files, next) = self.superseded(place, before)?;
            for fid in files {
                expired.versions += match self.core.volume(fid.volume)? {
                    Some(volume) => volume.expire_copies(fid, before)?,
                    None => 0,
                };
            }
            from = next;
        }
        Ok(expired)
    }

    /// Files with copies whose time has passed, from a place of [`Partition::holders`] on.
    fn superseded(&self, from: u64, before: AfsTime) -> Result<(Vec<Fid>, Option<u64>)> {
        let found = self.walk_files(
            from,
            LOOKS,
            |_| true,
            |group, vnode, record, _| {
                let mut copies = record.copies.iter().flat_map(|copies| copies.iter());
                if !copies.any(|copy| is_expired(record, copy, before)) {
                    return None;
                }
                // Every volume of the group reaches all versions.
                let state = group.state.read();
                let clones = || state.record.clones.iter().map(|clone| clone.id);
                let head = state.record.has_head().then_some(state.record.head);
                Some(Fid {
                    volume: head.or_else(|| clones().next())?,
                    vnode,
                    uniquifier: record.uniquifier,
                })
            },
        );
        let (mut files, next) = found?;
        files.dedup();
        Ok((files, next))
    }
}

impl Volume {
    /// Retired files behind `after` by vnodes and uniquifiers. Returns at most `limit` of them, and
    /// examines at most `looks`. `wanted` picks them. Skips files that are there again. The second
    /// result is the place to go on behind, if there is more. Clones have none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn retired_files(
        &self,
        after: RetiredPlace,
        (limit, looks): (usize, usize),
        mut wanted: impl FnMut(&RetiredFile) -> bool,
    ) -> Result<(Vec<RetiredFile>, Option<RetiredPlace>)> {
        let mut files = Vec::new();
        if !self.is_head() {
            return Ok((files, None));
        }
        let from = Key::retired(self.group.id.0, after.0.0, after.1.0).successor();
        let prefix = Key::of_group(Kind::Retired, self.group.id.0);
        let mut scan = self.core.engine.scan(&from, &prefix)?;
        let (mut looked, mut last) = (0, after);
        while let Some((key, value)) = scan.next()? {
            if files.len() >= limit || looked >= looks {
                return Ok((files, Some(last)));
            }
            looked += 1;
            last = key.retired_parts();
            let file = RetiredRecord::decode(&value)?.file(self.id(), last.0, last.1);
            if wanted(&file) && !self.has(file.fid)? {
                files.push(file);
            }
        }
        Ok((files, None))
    }

    /// The retired file with this fid; `None`: its time has passed, or it never was one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn retired_file(&self, fid: Fid) -> Result<Option<RetiredFile>> {
        let key = Key::retired(self.group.id.0, fid.vnode.0, fid.uniquifier.0);
        let value = match self.is_head() && fid.volume == self.id() {
            true => self.core.engine.get(&key)?,
            false => None,
        };
        let record = value
            .map(|value| RetiredRecord::decode(&value))
            .transpose()?;
        Ok(record.map(|record| record.file(self.id(), fid.vnode, fid.uniquifier)))
    }

    /// The copies of a file that have older bytes, each with the time, in seconds since 1970, from
    /// which its retention counts.
    ///
    /// # Errors
    /// As for [`Volume::archive_state`].
    pub fn superseded_copies(&self, fid: Fid) -> Result<Vec<(ArchiveCopy, u64)>> {
        self.with(fid, |loaded| {
            let record = &loaded.record;
            let copies = record.copies.iter().flat_map(|copies| copies.iter());
            let dated = copies.filter_map(|copy| Some((*copy, superseded_at(record, copy)?)));
            Ok(dated.collect())
        })
    }

    fn has(&self, fid: Fid) -> Result<bool> {
        match self.status(fid) {
            Ok(_) => Ok(true),
            Err(Error::NoVnode(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the superseded copies of a file whose time has passed, from each version by its own
    /// record. Returns the number of versions.
    fn expire_copies(&self, fid: Fid, before: AfsTime) -> Result<usize> {
        let changed = self.edit_versions(fid.vnode, |record| {
            if record.uniquifier != fid.uniquifier {
                return false;
            }
            let all = copies_of(record);
            let mut left = all.clone();
            left.retain(|copy| !is_expired(record, copy, before));
            let is_changed = left.len() < all.len();
            if is_changed {
                set_copies(record, left);
            }
            is_changed
        });
        match changed {
            // Clones are made or removed, or the volume is restored. The next run finds the file.
            Err(Error::Busy(_)) => Ok(0),
            changed => Ok(changed?.outcome),
        }
    }
}

impl Frozen {
    /// Retired files behind `after`, as for [`Volume::retired_files`]: those of now, not of the
    /// frozen moment. A clone has none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn retired_files(
        &self,
        after: RetiredPlace,
    ) -> Result<(Vec<RetiredFile>, Option<RetiredPlace>)> {
        let volume = &self.inner.volume;
        let head = match self.is_of_head() {
            true => volume.core.head_of(&volume.group)?,
            false => None,
        };
        match head {
            Some(head) => head.retired_files(after, (PAGE, LOOKS), |_| true),
            None => Ok((Vec::new(), None)),
        }
    }
}

impl Volume {
    /// Stages the retired file for a file that a change removes: `name` in `dir` was its last name.
    pub(crate) fn stage_retired(
        &self,
        txn: &mut Txn<'_>,
        record: &VnodeRecord,
        vnode: VnodeId,
        (dir, name): (Fid, &[u8]),
        now: AfsTime,
    ) -> Result<()> {
        if !self.core.keeps_removed.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(file) = RetiredRecord::of(record, dir, name, now) else {
            return Ok(());
        };
        let counted = || self.core.count_retired(&self.group);
        if self.group.retired.take_place(counted)? {
            txn.retire(vnode.0, record.uniquifier.0, file.encode());
        } else {
            tracing::warn!(volume = %self.id(), vnode = vnode.0,
                "the copies of a removed file are not kept: the volume has too many removed files");
        }
        Ok(())
    }
}

impl Core {
    pub(crate) fn count_retired(&self, group: &Group) -> Result<usize> {
        let prefix = Key::of_group(Kind::Retired, group.id.0);
        let mut scan = self.engine.scan(&prefix, &prefix)?;
        let mut count = 0;
        while scan.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    fn expire_retired(
        &self,
        group: &Arc<Group>,
        before: AfsTime,
        (most, left): (usize, usize),
        expired: &mut Expired,
    ) -> Result<()> {
        let prefix = Key::of_group(Kind::Retired, group.id.0);
        let mut scan = self.engine.scan(&prefix, &prefix)?;
        let (mut ended, mut kept) = (Vec::new(), Vec::new());
        while let Some((key, value)) = scan.next()? {
            let removed = RetiredRecord::decode(&value)?.removed;
            match removed <= before {
                true => ended.push(key),
                false => kept.push((removed, key)),
            }
        }
        drop(scan);
        if ended.is_empty() && kept.len() < most {
            return Ok(());
        }
        expired.files += ended.len();
        if kept.len() >= most {
            kept.sort_unstable();
            let oldest = &kept[..kept.len().saturating_sub(left)];
            let keys: Vec<Key> = oldest.iter().map(|(_, key)| *key).collect();
            expired.crowded_out += keys.len();
            ended.extend(keys);
        }
        for keys in ended.chunks(STEP) {
            let _room = self.engine.admit(0)?;
            let mut batch = Batch::new();
            for key in keys {
                batch.delete(*key);
            }
            self.engine.commit(batch)?;
        }
        group.retired.count_again();
        Ok(())
    }
}

/// Whether a copy has other bytes than the file, for longer than it is kept.
fn is_expired(record: &VnodeRecord, copy: &ArchiveCopy, before: AfsTime) -> bool {
    superseded_at(record, copy).is_some_and(|time| time <= u64::from(before.0))
}

/// The time, in seconds since 1970, from which a copy certainly has older bytes; `None` for a copy
/// of the present bytes.
fn superseded_at(record: &VnodeRecord, copy: &ArchiveCopy) -> Option<u64> {
    let is_present = |contents| copy.has(contents);
    if record.contents().is_some_and(is_present) {
        return None;
    }
    let changed = u64::from(record.server_time.0).max(copy.made);
    let all = record.copies.iter().flat_map(|copies| copies.iter());
    let later = all.filter(|later| later.version > copy.version && later.made >= copy.made);
    Some(later.map(|later| later.made).fold(changed, u64::min))
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::{ViceId, VolumeId};

    use super::*;
    use crate::disk::SimDisk;
    use crate::options::Options;
    use crate::types::VolumeSpec;

    #[test]
    fn the_oldest_removed_files_make_room() {
        let disk = Arc::new(SimDisk::new(64 << 20));
        let partition = Partition::open(disk, Options::default()).unwrap();
        let spec = VolumeSpec::new(VolumeId(10), "vol", ViceId(1), AfsTime(1));
        let volume = partition.create_volume(&spec).unwrap().wait().unwrap();
        let group = volume.group.clone();
        for vnode in [2, 4, 6, 8] {
            let record = RetiredRecord {
                // The vnodes with higher numbers were removed earlier.
                removed: AfsTime(100 - vnode),
                parent: VnodeId(1),
                parent_uniquifier: Uniquifier(1),
                name: "f".into(),
                mode: 0o644,
                owner: ViceId(1),
                group: ViceId(1),
                client_time: AfsTime(1),
                length: 1,
                data_version: 1,
                copies: Arc::default(),
            };
            let mut batch = Batch::new();
            batch.put(Key::retired(group.id.0, vnode, 1), record.encode());
            partition.core.engine.commit(batch).unwrap();
        }
        let expire = |before, bounds| {
            let mut expired = Expired::default();
            let core = &partition.core;
            core.expire_retired(&group, AfsTime(before), bounds, &mut expired)
                .unwrap();
            let all = (VnodeId(0), Uniquifier(0));
            let (left, _) = volume.retired_files(all, (10, 10), |_| true).unwrap();
            let left: Vec<u32> = left.iter().map(|file| file.fid.vnode.0).collect();
            (expired.files, expired.crowded_out, left)
        };
        assert_eq!(expire(0, (5, 2)), (0, 0, vec![2, 4, 6, 8]));
        assert_eq!(expire(92, (3, 2)), (1, 1, vec![2, 4]));
        assert_eq!(expire(0, (2, 1)), (0, 1, vec![2]));
    }
}
