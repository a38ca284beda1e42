//! The part of a scrub that checks the table: its file on the disk, the order of its keys, and how
//! records belong together. It finds names without a vnode, and wrong counters of a group.

use std::ops::ControlFlow;

use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

use super::orphans::Orphans;
use super::{Damage, Scrub, ScrubStopped, Viewers, VisibleVersion};
use crate::background::block_map;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::record::{CountersRecord, VnodeRecord};
use crate::state::core::Group;
use crate::types::FileType;

/// The contents of a group's head, and its counters when the counting began.
pub(super) struct Count {
    before: CountersRecord,
    files: u64,
    blocks: u64,
}

/// The message for a record that is damaged on the disk.
const ON_DISK: &str = "its records in the table do not match their checksums on the disk";

impl Scrub<'_> {
    /// Verifies the table on the disk. Damage outside of vnodes' records is reported here.
    pub(super) fn table(&mut self) -> Result<ControlFlow<ScrubStopped>> {
        let engine = std::sync::Arc::clone(&self.core.engine);
        let mut ended = ControlFlow::Continue(());
        let faults = engine.verify_table(&mut |bytes| {
            ended = self.verified(bytes);
            match ended {
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
                ControlFlow::Break(_) => ControlFlow::Break(()),
            }
        })?;
        for other in &faults.others {
            self.damage_of_volume(VolumeId(0), &Error::Format(other.clone()));
        }
        faults.log();
        let mut rest = faults.unnamed;
        for key in &faults.lost {
            let is_kind = |kind: Kind| key.starts_with(&Key::of_kind(kind));
            if is_kind(Kind::Vnode) || is_kind(Kind::Body) {
                let vnodes = self.lost.entry(key.u32_at(1)).or_default();
                vnodes.insert(key.u32_at(5), ON_DISK.to_owned());
            } else if is_kind(Kind::Volume) {
                let error = Error::Format(ON_DISK.to_owned());
                self.damage_of_volume(VolumeId(key.u32_at(1)), &error);
            } else {
                rest += 1;
            }
        }
        if rest > 0 {
            let error = Error::Format(format!(
                "{rest} more records of the table do not match their checksums on the disk"
            ));
            self.damage_of_volume(VolumeId(0), &error);
        }
        Ok(ended)
    }

    /// Compares the map of blocks with the pieces. Faults of vnodes are reported with their group.
    pub(super) fn block_map(&mut self) -> Result<ControlFlow<ScrubStopped>> {
        let core = std::sync::Arc::clone(&self.core);
        let mut is_ended = false;
        let mut go_on = || {
            is_ended = core.reaper.stopping() || (self.tell)(&self.report.progress).is_break();
            match is_ended {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let faults = block_map::compare(&core.engine, Kind::Body, &mut go_on)?;
        if is_ended {
            return Ok(ControlFlow::Break(ScrubStopped));
        }
        if faults.is_partial {
            tracing::warn!("scrub: no room to compare the map of blocks with the pieces");
        }
        for other in faults.of_unnamed().iter().chain(&faults.others) {
            self.damage_of_volume(VolumeId(0), &Error::Format(other.clone()));
        }
        for (key, cause) in &faults.pieces {
            let vnodes = self.lost.entry(key.u32_at(1)).or_default();
            vnodes.insert(key.u32_at(5), cause.clone());
        }
        Ok(self.verified(faults.bytes))
    }

    /// Reports vnodes of a group with records that are damaged on the disk, or with blocks that do
    /// not belong to them alone. Skips those that were reported since `reported_before`.
    pub(super) fn lost_vnodes(&mut self, group: &Group, viewers: &Viewers, reported_before: usize) {
        let Some(vnodes) = self.lost.remove(&group.id.0) else {
            return;
        };
        let Some(&volume) = viewers.volumes(&(0..1)).first() else {
            return;
        };
        for (vnode, cause) in vnodes {
            let reported = self.report.damaged.iter().skip(reported_before);
            if reported
                .into_iter()
                .any(|damage| damage.fid.vnode.0 == vnode)
            {
                continue;
            }
            let prefix = Key::vnode_prefix(group.id.0, vnode);
            let newest = self.core.engine.first_version(&prefix, &prefix);
            let record = newest.ok().flatten().map(|(_, value)| value);
            let record = record.and_then(|value| VnodeRecord::decode(&value).ok()?.ok());
            let fid = Fid {
                volume,
                vnode: VnodeId(vnode),
                uniquifier: record.map_or(Uniquifier(0), |record| record.uniquifier),
            };
            self.enter(Damage {
                fid,
                volumes: viewers.volumes(&(0..viewers.epochs.len())),
                path: self.core.path_of(fid),
                data_version: 0,
                length: 0,
                places: Vec::new(),
                cause,
            });
        }
    }

    /// Begins to count the contents of a group's head.
    pub(super) fn begin_count(&self, group: &Group, viewers: &Viewers) -> Option<Count> {
        let is_counted = viewers.epochs.first() == Some(&crate::record::EPOCH_MAX);
        let before = self.counters(group).filter(|_| is_counted)?;
        Some(Count {
            before,
            files: 0,
            blocks: 0,
        })
    }

    fn counters(&self, group: &Group) -> Option<CountersRecord> {
        let value = self.core.engine.get(&Key::counters(group.id.0)).ok()??;
        CountersRecord::decode(&value).ok()
    }

    /// Compares the counters of a group with the counted contents, if it has not changed meanwhile.
    pub(super) fn end_count(&mut self, group: &Group, viewers: &Viewers, count: &Count) {
        let Some(now) = self.counters(group) else {
            return;
        };
        let counted = (count.files, count.blocks);
        if now != count.before || counted == (now.files, now.blocks_used) {
            return;
        }
        let volumes = viewers.volumes(&(0..1));
        let Some(&volume) = volumes.first() else {
            return;
        };
        let error = Error::Format(format!(
            "{} files with {} blocks are there; the volume's counters say {} and {}",
            count.files, count.blocks, now.files, now.blocks_used
        ));
        self.damage_of_volume(volume, &error);
    }

    /// Checks whether all names of a directory lead to a vnode.
    pub(super) fn names(
        &mut self,
        group: &Group,
        viewers: &Viewers,
        vnode: u32,
        visible: &VisibleVersion,
        orphans: &mut Orphans,
    ) {
        if visible.record.kind != FileType::Directory {
            return;
        }
        let epoch = viewers.epochs[visible.seen_by.start];
        let volumes = viewers.volumes(&(visible.seen_by.start..visible.seen_by.start + 1));
        let Some(&id) = volumes.first() else {
            return;
        };
        let dir = Fid {
            volume: id,
            vnode: VnodeId(vnode),
            uniquifier: visible.record.uniquifier,
        };
        // An unreadable directory is reported where it is read.
        let Ok(Some(volume)) = self.core.volume(id) else {
            orphans.unreadable();
            return;
        };
        let Ok(entries) = volume.entries(dir) else {
            orphans.unreadable();
            return;
        };
        for entry in entries {
            let child = entry.vnode.0;
            if visible.seen_by.contains(&0) && entry.name != "." && entry.name != ".." {
                orphans.note_named(entry.vnode);
            }
            if self.has_vnode(group, child, entry.uniquifier, epoch) {
                continue;
            }
            // It may have been removed meanwhile.
            let still = volume.lookup(dir, &entry.name);
            let fid = Fid {
                volume: id,
                vnode: entry.vnode,
                uniquifier: entry.uniquifier,
            };
            if still != Ok(fid) || self.has_vnode(group, child, entry.uniquifier, epoch) {
                continue;
            }
            let path = self.core.path_of(dir).map(|path| {
                let name = String::from_utf8_lossy(&entry.name);
                match path.is_empty() {
                    true => name.into_owned(),
                    false => format!("{path}/{name}"),
                }
            });
            self.enter(Damage {
                fid,
                volumes: volumes.clone(),
                path,
                data_version: 0,
                length: 0,
                places: Vec::new(),
                cause: "its name is there, its record is missing".to_owned(),
            });
        }
    }

    /// Returns whether a vnode exists. An unreadable one counts as existing; it is reported where
    /// it is read.
    fn has_vnode(&self, group: &Group, vnode: u32, uniquifier: Uniquifier, epoch: u64) -> bool {
        let prefix = Key::vnode_prefix(group.id.0, vnode);
        let from = Key::vnode(group.id.0, vnode, epoch);
        match self.core.engine.first_version(&from, &prefix) {
            Ok(Some((_, value))) => match VnodeRecord::decode(&value) {
                Ok(Ok(record)) => record.uniquifier == uniquifier,
                Ok(Err(_)) => false,
                Err(_) => true,
            },
            Ok(None) => false,
            Err(_) => true,
        }
    }
}

impl Count {
    /// Counts a version if the head sees it.
    pub(super) fn add(&mut self, visible: &VisibleVersion) {
        if visible.seen_by.contains(&0) {
            self.files += 1;
            self.blocks += visible.record.blocks();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use cellar_wire::ids::{AfsTime, ViceId, VolumeId};

    use super::*;
    use crate::disk::{Disk, SimDisk};
    use crate::engine::batch::Batch;
    use crate::{Context, NewVnode, Options, Partition, Volume, VolumeSpec};

    const AT: Context = Context {
        author: ViceId(1),
        now: AfsTime(5),
    };

    fn found(partition: &Partition) -> Vec<Damage> {
        let report = partition.scrub(0, &mut |_| ControlFlow::Continue(()));
        report.unwrap().damaged
    }

    fn make(volume: &Volume, name: &[u8]) -> Fid {
        let new = NewVnode {
            owner: ViceId(1),
            group: None,
            mode: None,
            client_time: None,
        };
        let made = volume.create_file(volume.root(), name, &new, AT);
        made.unwrap().wait().unwrap().status.fid
    }

    /// A partition with the files `one` and `other`, of which `one` has no record.
    fn without_a_record() -> (Arc<Partition>, Fid) {
        let disk = SimDisk::new(64 << 20);
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Options::default()
        };
        let open = || Partition::open(Arc::new(disk.clone()), options.clone()).unwrap();
        let partition = open();
        let spec = VolumeSpec::new(VolumeId(10), "vol", ViceId(1), AfsTime(1));
        let volume = partition.create_volume(&spec).unwrap().outcome;
        let (one, _) = (make(&volume, b"one"), make(&volume, b"other"));
        assert_eq!(found(&partition), []);
        let mut batch = Batch::new();
        batch.delete(Key::vnode(volume.group.id.0, one.vnode.0, 1));
        let removed = partition.core.engine.commit(batch);
        removed.unwrap().wait().unwrap();
        drop(volume);
        partition.close().unwrap();
        drop(partition);
        (open(), one)
    }

    #[test]
    fn a_name_without_a_record_and_wrong_counters_are_named() {
        let (partition, one) = without_a_record();
        let damaged = found(&partition);
        let named: Vec<_> = damaged
            .iter()
            .map(|damage| (damage.fid.vnode, &damage.path))
            .collect();
        let path = Some("one".to_owned());
        assert_eq!(named, [(one.vnode, &path), (VnodeId(0), &None)]);
        let counts = &damaged[1].cause;
        assert!(
            counts.contains("2 files") && counts.contains("say 3"),
            "{counts}"
        );
    }

    #[test]
    fn a_vnode_without_a_name_is_reported() {
        let disk = SimDisk::new(64 << 20);
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Options::default()
        };
        let partition = Partition::open(Arc::new(disk), options).unwrap();
        let spec = VolumeSpec::new(VolumeId(10), "vol", ViceId(1), AfsTime(1));
        let volume = partition.create_volume(&spec).unwrap().outcome;
        let one = make(&volume, b"one");
        assert_eq!(found(&partition), []);
        let engine = &partition.core.engine;
        let group = volume.group.id.0;
        let record = engine.get(&Key::vnode(group, one.vnode.0, 1)).unwrap();
        let mut batch = Batch::new();
        batch.put(Key::vnode(group, 1000, 1), record.unwrap());
        engine.commit(batch).unwrap().wait().unwrap();
        let damaged = found(&partition);
        let orphan = damaged
            .iter()
            .find(|damage| damage.fid.vnode == VnodeId(1000));
        let orphan = orphan.unwrap();
        assert_eq!(
            (&*orphan.cause, &orphan.path),
            ("no name leads to it", &None)
        );
    }

    #[test]
    fn a_name_without_a_record_is_an_error_and_not_absence() {
        let (partition, _) = without_a_record();
        let volume = partition.volume(VolumeId(10)).unwrap().unwrap();
        let root = volume.root();
        let is_error = |error: Error| matches!(error, Error::Io { fid, .. } if fid == root);
        assert!(is_error(volume.remove_file(root, b"one", AT).unwrap_err()));
        assert!(is_error(
            volume.rename(root, b"one", root, b"new", AT).unwrap_err()
        ));
        assert!(is_error(
            volume.rename(root, b"other", root, b"one", AT).unwrap_err()
        ));
        assert_eq!(volume.lookup(root, b"three"), Err(Error::NotFound));
        assert!(partition.counters().damaged >= 3);
    }

    /// A key behind greater keys, under a checksum that is right.
    #[test]
    fn keys_out_of_order_are_reported() {
        let disk = SimDisk::new(64 << 20);
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Options::default()
        };
        let open = || Partition::open(Arc::new(disk.clone()), options.clone()).unwrap();
        let partition = open();
        let spec = VolumeSpec::new(VolumeId(10), "vol", ViceId(1), AfsTime(1));
        let volume = partition.create_volume(&spec).unwrap().outcome;
        let one = make(&volume, b"one");
        let key = Key::vnode(volume.group.id.0, one.vnode.0, 1);
        drop(volume);
        partition.close().unwrap();
        drop(partition);
        let base = disk.contents("base");
        let wanted = key.as_slice();
        let places = (0..base.len() - wanted.len()).filter(|&at| base[at..].starts_with(wanted));
        let places: Vec<usize> = places.collect();
        assert!(!places.is_empty());
        for place in places {
            disk.flip_bit("base", place as u64, 6);
        }
        // The sums are made of the present bytes.
        let base = disk.contents("base");
        let sums = base.chunks(4096).zip(0..).flat_map(|(bytes, block)| {
            crate::engine::page_sums::sum_of(block, bytes).to_be_bytes()
        });
        let sums: Vec<u8> = sums.collect();
        disk.open("base.sums").unwrap().write_at(&sums, 0).unwrap();
        let partition = open();
        let damaged = found(&partition);
        let of_order = |damage: &Damage| damage.cause.contains("not behind the one before it");
        assert!(damaged.iter().any(of_order), "{damaged:?}");
    }
}
