//! The notes of one body in the index, and the checksums of bytes that an earlier process left.

use std::io;
use std::sync::Arc;

use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::AfsStoreStatus;

use crate::backing_store::Backing;
use crate::byte_ranges::Ranges;
use crate::cache_index::{Index, IndexedFile};
use crate::index_entry::{FileKey, LocalCreate, Sums, overlapping};
use crate::index_record::{NONE, Record};

/// The most bytes under one checksum: all of them are read before any of them is used.
const PART: usize = 1 << 20;

/// Unstored changes of an earlier process, about which the server was not asked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredChanges {
    /// The bytes may be damaged by a crash of the machine.
    pub torn: bool,
    /// The piece that was being stored (start, end, cut), which the server may have.
    pub in_doubt: Option<(u64, u64, Option<u64>)>,
    /// The server is being asked whether it has that piece. Until then its version decides nothing.
    pub postponed: bool,
}

/// The notes of one body.
#[derive(Debug)]
pub(crate) struct BodyNotes {
    index: Arc<Index>,
    place: FileKey,
    number: u64,
    /// Whether the index has the record with the identity of the file.
    named: bool,
    /// The number of changes by programs, and the number of the last synced change.
    changes: u64,
    synced: u64,
    unchecked: Sums,
    /// The local create that no server knows.
    local_create: Option<LocalCreate>,
}

impl BodyNotes {
    /// The notes of a body, and the clean bytes that an earlier process left.
    pub(crate) fn new(
        index: &Arc<Index>,
        place: FileKey,
        left: Option<&IndexedFile>,
    ) -> (Self, Ranges) {
        let mut clean = Ranges::default();
        let mut unchecked = Sums::new();
        if let Some(left) = left {
            let over = left.dirty.as_ref().map(|dirty| dirty.version);
            if over.is_none_or(|version| version == left.version) {
                unchecked = left.sums.clone();
            }
        }
        for (start, (end, _)) in &unchecked {
            clean.insert(*start, *end);
        }
        let dirty = left.and_then(|left| left.dirty.as_ref());
        let notes = Self {
            number: left.map_or_else(|| index.new_number(), |left| left.number),
            named: left.is_some(),
            index: index.clone(),
            place,
            // All changes of the earlier process count as one.
            changes: dirty.map_or(0, |_| 1),
            synced: dirty.map_or(0, |dirty| dirty.synced.into()),
            unchecked,
            local_create: left.and_then(|left| left.local_create.clone()),
        };
        (notes, clean)
    }

    /// The local create, if no server knows it.
    pub(crate) fn local_create(&self) -> Option<&LocalCreate> {
        self.local_create.as_ref()
    }

    /// Sets the local create. It is noted with the first bytes, or by [`Self::record_create`].
    pub(crate) fn set_local_create(&mut self, create: LocalCreate) {
        self.local_create = Some(create);
    }

    /// Notes a local create of a file that was closed empty, so that it outlives the process.
    pub(crate) fn record_create(&mut self, over: (u64, u32), now: AfsTime) {
        if self.local_create.is_some() && !self.named {
            let nothing = AfsStoreStatus::default();
            self.note([Record::attributes(self.number, over, 0, now, &nothing)]);
        }
    }

    /// Notes that the server knows the local create. `changed`: other changes are still to be
    /// stored.
    pub(crate) fn create_done(&mut self, changed: bool) {
        let was_local = self.local_create.take().is_some();
        if was_local && self.named {
            let number = self.number;
            let clean = (!changed).then_some(Record::Clean { number });
            self.note([Record::Created { number }].into_iter().chain(clean));
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The place of the bytes.
    pub(crate) fn backing(&self, own_file: bool) -> Backing {
        self.index.backing(self.number, own_file)
    }

    /// Whether a change was synced. Then the index on the disk may contain it, without the later
    /// changes.
    pub(crate) fn was_synced(&self) -> bool {
        self.synced > 0
    }

    /// Notes that the bytes were moved and are not synced there. A sync under way does not cover
    /// that.
    pub(crate) fn moved(&mut self) {
        self.changes += 1;
    }

    fn note(&mut self, records: impl IntoIterator<Item = Record>) {
        let mut all = Vec::new();
        if !self.named {
            let (cell, fid) = self.place.clone();
            let number = self.number;
            all.push(Record::File { number, cell, fid });
            all.extend(
                self.local_create
                    .as_ref()
                    .map(|create| create.record(number)),
            );
            self.named = true;
        }
        all.extend(records);
        self.index.note(&all);
    }

    /// The number of bytes that must be compared with their checksums before use.
    pub(crate) fn unchecked_bytes(&self) -> u64 {
        self.unchecked
            .iter()
            .map(|(start, (end, _))| end - start)
            .sum()
    }

    /// Compares the parts that overlap a range with their checksums. Returns the damaged parts.
    pub(crate) fn damaged(
        &mut self,
        start: u64,
        end: u64,
        backing: &mut Backing,
    ) -> Vec<(u64, u64)> {
        let overlapping = overlapping(&self.unchecked, start, end);
        let mut damaged = Vec::new();
        for (from, to, sum) in overlapping {
            self.unchecked.remove(&from);
            let bytes = backing.read(from, (to - from) as usize);
            if bytes.is_ok_and(|bytes| checksum(from, &bytes) == sum) {
                continue;
            }
            tracing::info!(
                file = self.number,
                from,
                "cached bytes are not what they were"
            );
            damaged.push((from, to));
            self.void(from, to);
        }
        damaged
    }

    /// Voids the checksums over these bytes. Returns parts that were not compared yet; they can no
    /// longer be checked and must be dropped.
    pub(crate) fn void(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let overlapping = overlapping(&self.unchecked, start, end);
        for (from, ..) in &overlapping {
            self.unchecked.remove(from);
        }
        if self.named && self.index.has(self.number, start, end) {
            let number = self.number;
            self.note([Record::Void { number, start, end }]);
        }
        overlapping.into_iter().map(|(s, e, _)| (s, e)).collect()
    }

    /// Notes that these bytes are of `version`.
    pub(crate) fn valid(&mut self, version: u64, parts: impl IntoIterator<Item = (u64, u64, u32)>) {
        let records = valid(self.number, version, parts);
        if !records.is_empty() {
            self.note(records);
        }
    }

    pub(crate) fn written(
        &mut self,
        version: u64,
        writer: u32,
        (start, end): (u64, u64),
        length: u64,
        now: AfsTime,
    ) {
        self.changes += 1;
        self.note([Record::Dirty {
            number: self.number,
            version,
            writer: writer.into(),
            start,
            end,
            length,
            modified: now.0.into(),
        }]);
    }

    pub(crate) fn length(
        &mut self,
        version: u64,
        writer: u32,
        length: u64,
        cut: Option<u64>,
        now: AfsTime,
    ) {
        let was_synced = self.was_synced();
        self.changes += 1;
        self.unchecked.retain(|start, _| *start < length);
        self.note([Record::Length {
            number: self.number,
            version,
            writer: writer.into(),
            length,
            cut: cut.unwrap_or(NONE),
            modified: now.0.into(),
        }]);
        if was_synced && let Err(cause) = self.index.sync() {
            // After a crash of the machine, zeros may be where the index on the disk has bytes.
            tracing::warn!(%cause, "the index of the cache cannot be synced");
        }
    }

    pub(crate) fn attributes(
        &mut self,
        over: (u64, u32),
        length: u64,
        modified: AfsTime,
        set: &AfsStoreStatus,
    ) {
        self.changes += 1;
        self.note([Record::attributes(self.number, over, length, modified, set)]);
    }

    pub(crate) fn storing(&mut self, start: u64, end: u64, cut: Option<u64>) {
        self.note([Record::Storing {
            number: self.number,
            start,
            end,
            cut: cut.unwrap_or(NONE),
        }]);
    }

    pub(crate) fn not_stored(&mut self) {
        self.note([Record::Failed {
            number: self.number,
        }]);
    }

    pub(crate) fn stored(&mut self, before: u64, version: u64, parts: &[(u64, u64, u32)]) {
        let number = self.number;
        let stored = Record::Stored {
            number,
            before,
            version,
        };
        if version != before.wrapping_add(1) {
            self.unchecked.clear();
        }
        let valid = valid(number, version, parts.iter().copied());
        self.note([stored].into_iter().chain(valid));
    }

    /// As [`BodyNotes::stored`], for a piece that the replayed log has as dirty.
    pub(crate) fn stored_after_all(
        &mut self,
        (start, end, cut): (u64, u64, Option<u64>),
        before: u64,
        version: u64,
    ) {
        let number = self.number;
        let cut = cut.unwrap_or(NONE);
        self.note([
            Record::Storing {
                number,
                start,
                end,
                cut,
            },
            Record::Stored {
                number,
                before,
                version,
            },
        ]);
    }

    pub(crate) fn clean(&mut self) {
        self.note([Record::Clean {
            number: self.number,
        }]);
    }

    /// Notes that only these attributes are left to store. One step does both: a kill in between
    /// would lose the attributes.
    pub(crate) fn clean_but(
        &mut self,
        over: (u64, u32),
        length: u64,
        modified: AfsTime,
        set: &AfsStoreStatus,
    ) {
        let number = self.number;
        let left = Record::attributes(number, over, length, modified, set);
        self.changes += 1;
        self.note([Record::Clean { number }, left]);
    }

    pub(crate) fn note_removal(&mut self) {
        self.unchecked.clear();
        if self.named {
            self.index.note(&[Record::Gone {
                number: self.number,
            }]);
            self.named = false;
        }
    }

    /// Puts the file to rest. Returns whether its bytes stay.
    pub(crate) fn rest(&mut self, backing: &Backing) -> bool {
        self.named && self.index.rest(self.number, backing.has_own_file())
    }

    /// The index and the number of changes to sync; `None` if all are synced.
    pub(crate) fn to_sync(&self) -> Option<(Arc<Index>, u64)> {
        (self.synced != self.changes).then(|| (self.index.clone(), self.changes))
    }

    /// Notes that this many changes are synced.
    pub(crate) fn synced(&mut self, changes: u64) {
        self.synced = changes;
        if changes == self.changes {
            let number = self.number;
            self.note([Record::Synced { number }]);
        }
    }

    /// Puts the file with its dirty bytes aside if `own` is no error: then the bytes are in a
    /// separate file. The body gets another number.
    pub(crate) fn put_aside(&mut self, why: &str, own: io::Result<()>) -> Backing {
        let (cell, fid) = &self.place;
        match own.and_then(|()| self.index.put_aside(self.number, why)) {
            Ok(path) => {
                tracing::error!(%cell, %fid, path = %path.display(), why, "what was not stored is kept aside");
            }
            Err(cause) => {
                tracing::error!(%cell, %fid, %cause, why, "what was not stored cannot be put aside; it stays in the cache");
            }
        }
        self.unchecked.clear();
        self.local_create = None;
        self.named = false;
        self.number = self.index.new_number();
        self.backing(false)
    }
}

fn valid(
    number: u64,
    version: u64,
    parts: impl IntoIterator<Item = (u64, u64, u32)>,
) -> Vec<Record> {
    let record = |(start, end, sum)| Record::Valid {
        number,
        version,
        start,
        end,
        sum,
    };
    parts.into_iter().map(record).collect()
}

/// The checksum of bytes at an offset of a file.
fn checksum(start: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed(start), bytes)
}

/// The start value. With it, zeros do not have the checksum 0, and the same bytes at another offset
/// have another checksum.
fn seed(start: u64) -> u32 {
    crc32c::crc32c(&start.to_le_bytes())
}

/// The checksums of consecutive bytes from `start`: start, end and sum of each part.
pub fn checksums(start: u64, bytes: &[u8]) -> Vec<(u64, u64, u32)> {
    let mut at = start;
    let parts = bytes.chunks(PART).map(|part| {
        let from = at;
        at += part.len() as u64;
        (from, at, checksum(from, part))
    });
    parts.collect()
}

/// Collects the checksums of consecutive bytes.
#[derive(Debug, Default)]
pub(crate) struct Filled(Vec<(u64, u64, u32)>);

impl Filled {
    pub(crate) fn add(&mut self, start: u64, bytes: &[u8]) {
        for (from, part) in (start..).step_by(PART).zip(bytes.chunks(PART)) {
            let to = from + part.len() as u64;
            match self.0.last_mut() {
                Some((first, end, sum)) if *end == from && to - *first <= PART as u64 => {
                    *end = to;
                    *sum = crc32c::crc32c_append(*sum, part);
                }
                _ => self.0.push((from, to, checksum(from, part))),
            }
        }
    }

    pub(crate) fn parts(self) -> Vec<(u64, u64, u32)> {
        self.0
    }
}
