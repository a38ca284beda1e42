//! The state of each file of a cache directory, as the records of the index define it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId};
use cellar_wire::rxafs::AfsStoreStatus;

use crate::byte_ranges::Ranges;
use crate::index_record::{Damaged, NONE, Record, decode, may_begin};

/// The first bytes of an index.
pub(crate) const MAGIC: &[u8] = b"cellar cache index 1\n";
/// The begin of [`MAGIC`], before the number of the format.
const TITLE: &[u8] = b"cellar cache index ";
/// The number of the format that this program writes.
const FORMAT: u64 = 1;

/// The identity of a cached file: the name of the cell, and the fid.
pub type FileKey = (Arc<str>, Fid);

/// Parts with checksums: end and sum by start.
pub(crate) type Sums = BTreeMap<u64, (u64, u32)>;

/// The parts that overlap a range. A file may have hundreds of thousands of parts, which do not
/// overlap each other.
pub(crate) fn overlapping(sums: &Sums, start: u64, end: u64) -> Vec<(u64, u64, u32)> {
    let before = sums.range(..end).rev();
    before
        .take_while(|(_, (to, _))| *to > start)
        .map(|(from, (to, sum))| (*from, *to, *sum))
        .collect()
}

/// The unstored changes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// The data version over which the changes were made.
    pub(crate) version: u64,
    /// The user that wrote last.
    pub(crate) writer: u32,
    pub(crate) ranges: Ranges,
    pub(crate) length: u64,
    pub(crate) cut: Option<u64>,
    pub(crate) modified: AfsTime,
    /// Whether bytes or a length changed, not only attributes.
    pub(crate) contents: bool,
    /// Attributes that programs set.
    pub(crate) set: AfsStoreStatus,
    /// The piece that was being stored. After a replay it is in `ranges` too.
    pub(crate) storing: Option<(u64, u64, Option<u64>)>,
    /// Whether index and data were synced after the last change.
    pub(crate) synced: bool,
    /// Whether the bytes may be damaged: rules 3 and 4 of `cache_index.rs`.
    pub(crate) torn: bool,
}

/// A local create: how a program of this machine made a file that no server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCreate {
    /// The directory, in the same volume.
    pub directory: (VnodeId, Uniquifier),
    /// The permission bits.
    pub mode: u32,
    /// The name in the directory.
    pub name: Arc<[u8]>,
}

impl LocalCreate {
    pub(crate) fn record(&self, number: u64) -> Record {
        let (directory, uniquifier) = self.directory;
        Record::LocalCreate {
            number,
            directory: directory.0.into(),
            uniquifier: uniquifier.0.into(),
            mode: self.mode.into(),
            name: self.name.clone(),
        }
    }
}

/// The state of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) place: FileKey,
    pub(crate) version: u64,
    pub(crate) sums: Sums,
    pub(crate) dirty: Option<Dirty>,
    pub(crate) local_create: Option<LocalCreate>,
    /// The tick of the last use; 0 while a vnode in memory uses the file.
    pub(crate) rests: u64,
    /// Whether the bytes have a separate file instead of a slot; valid while the file rests.
    pub(crate) own_file: bool,
}

impl Entry {
    pub(crate) fn bytes(&self) -> u64 {
        self.sums.iter().map(|(start, (end, _))| end - start).sum()
    }

    /// Drops each checksum over one of these bytes.
    fn void(&mut self, start: u64, end: u64) {
        for (from, ..) in overlapping(&self.sums, start, end) {
            self.sums.remove(&from);
        }
    }

    fn dirty(&mut self, version: u64, writer: u64, length: u64, modified: u64) -> &mut Dirty {
        let dirty = self.dirty.get_or_insert_default();
        dirty.version = version;
        dirty.writer = writer as u32;
        dirty.length = length;
        dirty.modified = AfsTime(modified as u32);
        dirty.synced = false;
        dirty
    }

    fn dirty_contents(
        &mut self,
        version: u64,
        writer: u64,
        length: u64,
        modified: u64,
    ) -> &mut Dirty {
        let dirty = self.dirty(version, writer, length, modified);
        dirty.contents = true;
        // A time that a program set belonged to the contents before.
        dirty.set.client_mod_time = None;
        dirty
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        match *record {
            Record::Valid {
                version,
                start,
                end,
                sum,
                ..
            } => {
                if self.version != version {
                    self.sums.clear();
                    self.version = version;
                }
                self.void(start, end);
                self.sums.insert(start, (end, sum));
            }
            Record::Void { start, end, .. } => self.void(start, end),
            Record::Dirty {
                version,
                writer,
                start,
                end,
                length,
                modified,
                ..
            } => {
                self.void(start, end);
                let dirty = self.dirty_contents(version, writer, length, modified);
                dirty.ranges.insert(start, end);
            }
            Record::Length {
                version,
                writer,
                length,
                cut,
                modified,
                ..
            } => {
                self.void(length, u64::MAX);
                let dirty = self.dirty_contents(version, writer, length, modified);
                dirty.ranges.cut(length);
                dirty.cut = (cut != NONE).then_some(cut);
            }
            Record::Attributes {
                version,
                writer,
                length,
                modified,
                mode,
                owner,
                group,
                time,
                ..
            } => {
                let dirty = self.dirty(version, writer, length, modified);
                // `NONE` is no number of 32 bits.
                let given = |number: u64| u32::try_from(number).ok();
                dirty.set = AfsStoreStatus {
                    client_mod_time: given(time).map(AfsTime),
                    owner: given(owner).map(|id| ViceId(id as i32)),
                    group: given(group).map(|id| ViceId(id as i32)),
                    unix_mode: given(mode),
                    ..AfsStoreStatus::default()
                };
            }
            Record::Storing {
                start, end, cut, ..
            } => {
                if let Some(dirty) = &mut self.dirty {
                    let cut = (cut != NONE).then_some(cut);
                    dirty.ranges.remove(start, end);
                    dirty.cut = dirty.cut.filter(|_| cut.is_none());
                    dirty.storing = Some((start, end, cut));
                }
            }
            Record::Failed { .. } => {
                if let Some(dirty) = &mut self.dirty {
                    dirty.put_back();
                    dirty.storing = None;
                }
            }
            Record::Stored {
                before, version, ..
            } => {
                if version == before.wrapping_add(1) && self.version == before {
                    self.version = version;
                } else {
                    self.sums.clear();
                    self.version = version;
                }
                if let Some(dirty) = &mut self.dirty {
                    dirty.storing = None;
                    dirty.version = version;
                }
            }
            Record::Clean { .. } => self.dirty = None,
            Record::Synced { .. } => {
                if let Some(dirty) = &mut self.dirty {
                    dirty.synced = true;
                }
            }
            Record::Torn { .. } => {
                if let Some(dirty) = &mut self.dirty {
                    dirty.torn = true;
                }
            }
            Record::LocalCreate {
                directory,
                uniquifier,
                mode,
                ref name,
                ..
            } => {
                let number = |number: u64| u32::try_from(number).unwrap_or(0);
                self.local_create = Some(LocalCreate {
                    directory: (VnodeId(number(directory)), Uniquifier(number(uniquifier))),
                    mode: number(mode),
                    name: name.clone(),
                });
            }
            Record::Created { .. } => self.local_create = None,
            Record::File { .. } | Record::Gone { .. } | Record::Boot { .. } => {}
        }
    }
}

impl Dirty {
    /// Makes the piece that was being stored dirty again.
    pub(crate) fn put_back(&mut self) {
        if let Some((start, end, cut)) = self.storing {
            self.ranges.insert(start, end.min(self.length));
            if let Some(cut) = cut {
                self.cut = Some(self.cut.map_or(cut, |later| later.min(cut)));
            }
        }
    }
}

/// The bytes from the next valid record on. Each offset is tried, but a checksum is computed only
/// where a record may begin. So this takes no longer than to read an undamaged log.
fn after_damage(bytes: &[u8]) -> &[u8] {
    let starts = (1..bytes.len()).map(|at| &bytes[at..]);
    let mut starts = starts.filter(|rest| may_begin(rest));
    starts
        .find(|rest| matches!(decode(rest), Ok(Some(_))))
        .unwrap_or_default()
}

/// The result of a replay of the log.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) entries: HashMap<u64, Entry>,
    /// The numbers of files, in the order of their first records.
    pub(crate) order: Vec<u64>,
    boot: [u8; 16],
    pub(crate) damaged: bool,
}

/// The format of an index that a newer release wrote.
fn newer_format(bytes: &[u8]) -> Option<u64> {
    let line = bytes.strip_prefix(TITLE)?;
    let end = line.iter().position(|&byte| byte == b'\n')?;
    let number = std::str::from_utf8(line.get(..end)?).ok()?;
    number.parse().ok().filter(|&format| format > FORMAT)
}

impl Replayed {
    /// Replays the log of a cache directory. Damage is repaired. The log of a newer release is
    /// refused, because it may name files that no server has.
    pub(crate) fn of_cache(directory: &Path, bytes: &[u8]) -> io::Result<Self> {
        if let Some(format) = newer_format(bytes) {
            let message = format!(
                "{}: a newer release wrote this cache (format {format}): use that release, or \
                 another directory for the cache",
                directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        Ok(Self::read(bytes))
    }

    fn read(bytes: &[u8]) -> Self {
        let mut replayed = Self::default();
        let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_else(|| {
            replayed.damaged = !bytes.is_empty();
            after_damage(bytes)
        });
        loop {
            match decode(rest) {
                Ok(Some((record, after))) => {
                    rest = after;
                    replayed.take(&record);
                }
                cut_short @ (Ok(None) | Err(Damaged)) => {
                    rest = after_damage(rest);
                    // Nothing can follow a truncated record. If something follows, its length is
                    // damaged.
                    if cut_short.is_ok() && rest.is_empty() {
                        return replayed;
                    }
                    replayed.damaged = true;
                }
            }
        }
    }

    fn take(&mut self, record: &Record) {
        match record {
            Record::Boot { id } => {
                self.another_boot(*id);
                self.boot = *id;
            }
            Record::File { number, cell, fid } => {
                let entry = Entry {
                    place: (cell.clone(), *fid),
                    version: NONE,
                    sums: Sums::new(),
                    dirty: None,
                    local_create: None,
                    rests: 0,
                    own_file: false,
                };
                if self.entries.insert(*number, entry).is_none() {
                    self.order.push(*number);
                }
            }
            Record::Gone { number } => {
                self.entries.remove(number);
            }
            other => {
                if let Some(entry) = self.entries.get_mut(&other.number()) {
                    entry.apply(other);
                }
            }
        }
    }

    /// Applies rule 3 of `cache_index.rs` if the boot is another one.
    pub(crate) fn another_boot(&mut self, id: [u8; 16]) {
        if id == self.boot {
            return;
        }
        for entry in self.entries.values_mut() {
            if let Some(dirty) = &mut entry.dirty {
                dirty.torn |= !dirty.synced;
            }
        }
    }
}

impl Entry {
    /// The records that produce this entry.
    pub(crate) fn records(&self, number: u64, take: &mut dyn FnMut(Record)) {
        let (cell, fid) = self.place.clone();
        take(Record::File { number, cell, fid });
        if let Some(made) = &self.local_create {
            take(made.record(number));
        }
        let version = self.version;
        for (&start, &(end, sum)) in &self.sums {
            take(Record::Valid {
                number,
                version,
                start,
                end,
                sum,
            });
        }
        let Some(dirty) = &self.dirty else {
            return;
        };
        if dirty.contents {
            dirty.records(number, take);
        }
        if dirty.set != AfsStoreStatus::default() {
            let over = (dirty.version, dirty.writer);
            take(Record::attributes(
                number,
                over,
                dirty.length,
                dirty.modified,
                &dirty.set,
            ));
        }
        if dirty.synced {
            take(Record::Synced { number });
        }
        if dirty.torn {
            take(Record::Torn { number });
        }
    }
}

impl Dirty {
    /// The records that produce these changes.
    fn records(&self, number: u64, take: &mut dyn FnMut(Record)) {
        let dirty = self;
        let (version, writer, length) = (dirty.version, dirty.writer.into(), dirty.length);
        let modified = dirty.modified.0.into();
        // A shortening would cut later ranges, so it comes first, with the piece that is being
        // stored beyond it.
        let stored_to = dirty.storing.map_or(0, |(_, end, _)| end);
        take(Record::Length {
            number,
            version,
            writer,
            length: length.max(stored_to),
            cut: NONE,
            modified,
        });
        if let Some((start, end, cut)) = dirty.storing {
            let cut = cut.unwrap_or(NONE);
            take(Record::Storing {
                number,
                start,
                end,
                cut,
            });
        }
        take(Record::Length {
            number,
            version,
            writer,
            length,
            cut: dirty.cut.unwrap_or(NONE),
            modified,
        });
        for (start, end) in dirty.ranges.iter() {
            take(Record::Dirty {
                number,
                version,
                writer,
                start,
                end,
                length,
                modified,
            });
        }
    }
}

/// Merges attributes that were set later into `set`.
pub(crate) fn merge(set: &mut AfsStoreStatus, later: &AfsStoreStatus) {
    set.client_mod_time = later.client_mod_time.or(set.client_mod_time);
    set.owner = later.owner.or(set.owner);
    set.group = later.group.or(set.group);
    set.unix_mode = later.unix_mode.or(set.unix_mode);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};

    use super::*;
    use crate::index_record::{SUMMED, encode};

    /// The log of a file whose parts were fetched one after the other.
    fn log(parts: u64) -> Vec<u8> {
        let fid = Fid {
            volume: VolumeId(768),
            vnode: VnodeId(512),
            uniquifier: Uniquifier(256),
        };
        let (number, cell) = (700, "test.cell".into());
        let mut bytes = MAGIC.to_vec();
        encode(&Record::File { number, cell, fid }, &mut bytes);
        for part in 0..parts {
            let valid = Record::Valid {
                number,
                version: 800,
                start: part << 20,
                end: (part + 1) << 20,
                sum: 7,
            };
            encode(&valid, &mut bytes);
        }
        bytes
    }

    #[test]
    fn a_file_of_many_parts_is_read_as_fast_as_many_of_one() {
        let bytes = log(100_000);
        let begun = Instant::now();
        let replayed = Replayed::read(&bytes);
        // It takes minutes where all parts are looked at for each.
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(replayed.entries[&700].bytes(), 100_000 << 20);
    }

    #[test]
    fn only_a_whole_title_with_a_larger_number_is_newer() {
        assert_eq!(newer_format(b"cellar cache index 2\nrecords"), Some(2));
        assert_eq!(newer_format(b"cellar cache index 17\n"), Some(17));
        for other in [
            MAGIC,
            b"",
            b"cellar cache index 2",
            b"cellar cache index x\n",
        ] {
            assert_eq!(newer_format(other), None);
        }
    }

    #[test]
    fn a_damaged_length_near_the_end_hides_no_records() {
        let mut bytes = log(3);
        let (number, start) = (700, 3 << 20);
        let dirty = Record::Dirty {
            number,
            version: 800,
            writer: 5,
            start,
            end: start + 10,
            length: start + 10,
            modified: 9,
        };
        let at = bytes.len();
        for _ in 0..2 {
            encode(&dirty, &mut bytes);
        }
        assert!(!Replayed::read(&bytes).damaged);
        // Longer than all that follows.
        bytes[at + 1] = 1;
        let replayed = Replayed::read(&bytes);
        assert!(replayed.damaged);
        let dirty = replayed.entries[&number].dirty.as_ref();
        assert_eq!(dirty.expect("dirty").ranges.bytes(), 10);
    }

    #[test]
    fn a_log_of_nothing_but_damage_is_read_once() {
        for damage in [0xff, 0x01] {
            let mut bytes = log(20_000);
            let first = log(0).len();
            let record = log(1).len() - first;
            for at in (first..bytes.len()).step_by(record) {
                bytes[at + record - 1] ^= damage;
            }
            SUMMED.set(0);
            let replayed = Replayed::read(&bytes);
            assert!(replayed.damaged);
            let summed = SUMMED.get();
            assert!(summed <= 2 * bytes.len(), "{summed} of {}", bytes.len());
        }
    }
}
