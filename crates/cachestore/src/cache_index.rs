//! The index of a cache directory: the state of its files, with which the next process continues.
//!
//! The index is one file of records. Records are appended as things happen. The file is rewritten
//! when it has grown. The state to which the records lead is also in memory. Why no crash makes the
//! cache serve or store wrong bytes:
//!
//! 1. *Clean bytes have a checksum* ([`Record::Valid`]). It is made from the bytes that came from
//!    the server, and compared before the bytes are first used again. So the order in which a
//!    crashed machine wrote data and index does not matter: bytes that differ are fetched again.
//!    Bytes that agree are of the version in the record. They are used only if the server still has
//!    that version.
//! 2. *Dirty bytes have none*. They are written before their record, and the record before the
//!    program gets its answer. A killed process loses nothing that the kernel has. So all answered
//!    writes are here; unanswered ones may be here in part. Only a shortening is noted before it is
//!    done. It is repeated when the file is recovered.
//! 3. *After a crash of the machine* (another boot than in [`Record::Boot`]) dirty bytes count
//!    under two conditions. Both files were synced since ([`Record::Synced`]), and the file has the
//!    length in the log. A shortened file may be on the disk without its record. Other dirty bytes
//!    are put aside and reported.
//! 4. *A truncated record at the end* was never answered, and is ignored. Damage anywhere else
//!    means that nothing is certain. Clean bytes are dropped and dirty ones are put aside,
//!    including those that only records behind the damage name.
//! 5. A file without a record is removed, and a record without a file is ignored.
//!
//! Small files share files; `pack_slots.rs` explains why the rules hold for them too.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_wire::ids::Fid;
use parking_lot::Mutex;

use crate::backing_store::{Backing, syncs, writes_reach_disk};
use crate::body::Space;
use crate::index_entry::{Dirty, Entry, FileKey, LocalCreate, MAGIC, Replayed, Sums, overlapping};
use crate::index_record::{NONE, Record, encode};
use crate::pack_slots::Slots;

mod aside;
mod sweep;

pub use aside::{aside_in, unstored_in};
use sweep::sweep;

/// The number of directories over which files are spread.
const PARTS: u64 = if cfg!(test) { 4 } else { 256 };
/// The most files at rest (without a vnode in memory): they need about 100 MB of memory.
const RESTING_MAX: usize = 200_000;
/// The log is rewritten when it has this many bytes and `REWRITE_TIMES` its size after the last
/// rewrite.
const REWRITE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 16 << 20 };
const REWRITE_TIMES: u64 = 4;
/// After a failed write, the log is tried again after this many records.
const RETRY_NOTES: u64 = 1_024;
/// The name of the log, and of the next log during a rewrite.
const LOG: &str = "index";
const NEXT_LOG: &str = "index.new";
/// The directory for dirty bytes that cannot be stored.
const ASIDE: &str = "aside";

/// The state of a file that is taken into use.
#[derive(Debug)]
pub(crate) struct IndexedFile {
    pub(crate) number: u64,
    pub(crate) version: u64,
    pub(crate) sums: Sums,
    pub(crate) dirty: Option<Dirty>,
    pub(crate) local_create: Option<LocalCreate>,
    /// The bytes have a separate file instead of a slot.
    pub(crate) own_file: bool,
    /// An earlier process left it.
    pub(crate) earlier: bool,
}

/// Bytes of a user that no server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// The cell.
    pub cell: String,
    /// The file.
    pub fid: Fid,
    /// The user of this machine that wrote them; `u32::MAX` for users without tokens.
    pub writer: u32,
    /// The number of bytes.
    pub bytes: u64,
    /// The data version over which they were written.
    pub version: u64,
    /// Whether a crash of the machine may have damaged them.
    pub torn: bool,
}

#[derive(Debug)]
struct State {
    log: File,
    bytes: u64,
    rewrite_at: u64,
    /// Records until the next attempt to rewrite a log that failed.
    failing: Option<u64>,
    entries: HashMap<u64, Entry>,
    numbers: HashMap<FileKey, u64>,
    resting: BTreeMap<u64, u64>,
    ticks: u64,
    next: u64,
}

/// The index of a cache directory.
#[derive(Debug)]
pub struct Index {
    directory: PathBuf,
    boot: [u8; 16],
    space: Arc<Space>,
    slots: Arc<Slots>,
    state: Mutex<State>,
    /// The tick at which this process started.
    began: u64,
    /// Whether dirty bytes of an earlier process may still be at rest.
    left: AtomicBool,
}

impl Index {
    /// Opens the index of `directory`, which no other process may use. All its files are at rest.
    /// `boot` identifies the current boot of the machine.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn open(directory: &Path, boot: [u8; 16], space: Arc<Space>) -> io::Result<Self> {
        for number in 0..PARTS {
            cellar_private::directory(&directory.join(format!("{number:02x}")))?;
        }
        cellar_private::directory(&directory.join(ASIDE))?;
        let mut bytes = Vec::new();
        match File::open(directory.join(LOG)) {
            Ok(mut file) => {
                file.read_to_end(&mut bytes)?;
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
        }
        let mut replayed = Replayed::of_cache(directory, &bytes)?;
        drop(bytes);
        replayed.another_boot(boot);
        if replayed.damaged {
            tracing::error!(
                directory = %directory.display(),
                "the index of the cache is damaged: the cache starts empty, and what had not been stored is put aside"
            );
            for entry in replayed.entries.values_mut() {
                entry.sums.clear();
                if let Some(dirty) = &mut entry.dirty {
                    dirty.torn = true;
                }
            }
        }
        for entry in replayed.entries.values_mut() {
            if let Some(dirty) = &mut entry.dirty {
                dirty.put_back();
            }
        }
        let slots = Slots::open(directory)?;
        let next = sweep(directory, &slots, &mut replayed.entries)?;
        let mut state = State {
            log: cellar_private::options()
                .append(true)
                .create(true)
                .open(directory.join(LOG))?,
            bytes: 0,
            rewrite_at: 0,
            failing: None,
            entries: HashMap::new(),
            numbers: HashMap::new(),
            resting: BTreeMap::new(),
            ticks: 0,
            next,
        };
        for number in replayed.order {
            let Some(mut entry) = replayed.entries.remove(&number) else {
                continue;
            };
            state.ticks += 1;
            entry.rests = state.ticks;
            space.used.fetch_add(entry.bytes(), Ordering::Relaxed);
            state.resting.insert(state.ticks, number);
            state.numbers.insert(entry.place.clone(), number);
            state.entries.insert(number, entry);
        }
        let index = Self {
            directory: directory.to_owned(),
            boot,
            space,
            slots: Arc::new(slots),
            began: state.ticks,
            state: Mutex::new(state),
            left: AtomicBool::new(true),
        };
        index.rewrite(&mut index.state.lock())?;
        Ok(index)
    }

    /// The path of the separate file of a number.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        path(&self.directory, number)
    }

    /// The place of the bytes of a number. `own_file`: bytes that exist are in a separate file.
    pub(crate) fn backing(&self, number: u64, own_file: bool) -> Backing {
        let path = self.path(number);
        match own_file || !(self.slots.work() || self.slots.has(number)) {
            true => Backing::disk(path),
            false => Backing::Slot {
                slots: self.slots.clone(),
                number,
                path,
            },
        }
    }

    /// A new number for a file.
    pub(crate) fn new_number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next - 1
    }

    /// Takes a file at rest into use; `None` if the index does not have it.
    pub(crate) fn take(&self, place: &FileKey) -> Option<IndexedFile> {
        let mut state = self.state.lock();
        let number = *state.numbers.get(place)?;
        let entry = state.entries.get_mut(&number)?;
        if entry.rests == 0 {
            return None;
        }
        let rests = std::mem::take(&mut entry.rests);
        self.space.used.fetch_sub(entry.bytes(), Ordering::Relaxed);
        let left = IndexedFile {
            number,
            version: entry.version,
            sums: entry.sums.clone(),
            dirty: entry.dirty.clone(),
            local_create: entry.local_create.clone(),
            own_file: entry.own_file,
            earlier: rests <= self.began,
        };
        state.resting.remove(&rests);
        Some(left)
    }

    /// Puts a file to rest that is no longer in use. Returns whether it stays; a file without bytes
    /// is removed. `own_file`: the bytes have a separate file.
    pub(crate) fn rest(&self, number: u64, own_file: bool) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.ticks += 1;
        let Some(entry) = state.entries.get_mut(&number) else {
            return false;
        };
        let latest = state.numbers.get(&entry.place) == Some(&number);
        if entry.dirty.is_none() && (entry.sums.is_empty() || !latest) {
            self.write(state, &[Record::Gone { number }]);
            return false;
        }
        entry.rests = state.ticks;
        entry.own_file = own_file;
        self.space.used.fetch_add(entry.bytes(), Ordering::Relaxed);
        state.resting.insert(state.ticks, number);
        true
    }

    /// Removes files at rest, the least recently used first, until at most `goal` bytes are used.
    pub fn evict(&self, goal: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut kept = Vec::new();
        while self.space.used.load(Ordering::Relaxed) > goal || state.resting.len() > RESTING_MAX {
            let Some((tick, number)) = state.resting.pop_first() else {
                break;
            };
            let Some(entry) = state.entries.get(&number) else {
                continue;
            };
            if entry.dirty.is_some() {
                kept.push((tick, number));
                continue;
            }
            self.space.used.fetch_sub(entry.bytes(), Ordering::Relaxed);
            let own_file = entry.own_file;
            self.write(state, &[Record::Gone { number }]);
            self.backing(number, own_file).remove();
        }
        state.resting.extend(kept);
    }

    /// Notes events of files in use. It cannot fail: the rules of the head comment hold without the
    /// records.
    pub(crate) fn note(&self, records: &[Record]) {
        self.write(&mut self.state.lock(), records);
    }

    /// Tries to write a failed log again, because the disk may have room now.
    pub fn retry_log(&self) {
        let mut state = self.state.lock();
        if state.failing.is_some() {
            state.failing = Some(0);
            self.write(&mut state, &[]);
        }
    }

    /// Whether the index has a checksum over one of these bytes.
    pub(crate) fn has(&self, number: u64, start: u64, end: u64) -> bool {
        let state = self.state.lock();
        let entry = state.entries.get(&number);
        entry.is_some_and(|entry| !overlapping(&entry.sums, start, end).is_empty())
    }

    fn write(&self, state: &mut State, records: &[Record]) {
        let mut bytes = Vec::new();
        for record in records {
            encode(record, &mut bytes);
        }
        if state.failing.is_none() && writes_reach_disk() {
            match state.log.write_all(&bytes) {
                Ok(()) => state.bytes += bytes.len() as u64,
                Err(cause) => {
                    // A half-written record would hide the records after it.
                    let _also = state.log.set_len(state.bytes);
                    state.failing = Some(RETRY_NOTES);
                    tracing::error!(%cause, "the index of the cache cannot be written: what is not \
                        stored does not survive a crash");
                }
            }
        }
        for record in records {
            state.apply(record);
        }
        let due = match &mut state.failing {
            Some(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            None => state.bytes > state.rewrite_at,
        };
        if due {
            match self.rewrite(state) {
                Ok(()) if state.failing.take().is_some() => {
                    tracing::info!("the index of the cache can be written again");
                }
                Ok(()) => {}
                Err(cause) => {
                    tracing::warn!(%cause, "the index of the cache cannot be rewritten");
                    // The old log is still valid, only long.
                    state.rewrite_at = state.bytes + REWRITE_BYTES;
                    state.failing = state.failing.map(|_| RETRY_NOTES);
                }
            }
        }
    }

    /// Rewrites the log with the current state, the least recently used files first.
    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        let mut numbers: Vec<(u64, u64)> = state
            .entries
            .iter()
            .map(|(number, entry)| {
                let used = if entry.rests == 0 {
                    u64::MAX
                } else {
                    entry.rests
                };
                (used, *number)
            })
            .collect();
        numbers.sort_unstable();
        let mut bytes = MAGIC.to_vec();
        encode(&Record::Boot { id: self.boot }, &mut bytes);
        for (_, number) in numbers {
            if let Some(entry) = state.entries.get(&number) {
                entry.records(number, &mut |record| encode(&record, &mut bytes));
            }
        }
        if !writes_reach_disk() {
            return Ok(());
        }
        let next = self.directory.join(NEXT_LOG);
        let mut file = cellar_private::create(&next)?;
        file.write_all(&bytes)?;
        // Tests of crashes decide themselves which bytes are on the disk.
        if !cfg!(test) {
            file.sync_data()?;
        }
        std::fs::rename(&next, self.directory.join(LOG))?;
        state.log = file;
        state.bytes = bytes.len() as u64;
        state.rewrite_at = REWRITE_BYTES.max(state.bytes * REWRITE_TIMES);
        if !cfg!(test)
            && let Err(cause) = sync_all(&self.directory)
        {
            tracing::warn!(%cause, "a crash of the machine may bring an older index of the cache back");
        }
        Ok(())
    }

    /// Syncs the log. After a sync of the data this makes dirty bytes survive a crash of the
    /// machine.
    ///
    /// # Errors
    /// The log cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        let log = self.state.lock().log.try_clone()?;
        syncs()?;
        log.sync_data()
    }

    /// Rewrites the log at the end of the process. `numbers` are the files in use, the least
    /// recently used first, so that the next process evicts in this order.
    pub fn close(&self, numbers: &[u64]) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let before: Vec<_> = numbers
            .iter()
            .filter_map(|number| {
                state.ticks += 1;
                let entry = state.entries.get_mut(number)?;
                let before = std::mem::replace(&mut entry.rests, state.ticks);
                Some((*number, before))
            })
            .collect();
        if let Err(cause) = self.rewrite(state) {
            tracing::warn!(%cause, "the index of the cache cannot be rewritten");
        }
        for (number, rests) in before {
            if let Some(entry) = state.entries.get_mut(&number) {
                entry.rests = rests;
            }
        }
    }

    /// The files at rest with unstored changes.
    pub fn dirty_files(&self) -> Vec<FileKey> {
        if !self.left.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state.lock();
        let dirty = state
            .entries
            .values()
            .filter(|entry| entry.rests != 0 && entry.dirty.is_some());
        let places: Vec<_> = dirty.map(|entry| entry.place.clone()).collect();
        // Files of this process with unstored changes do not rest before its end.
        self.left.store(!places.is_empty(), Ordering::Relaxed);
        places
    }
}

impl State {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::File { number, cell, fid } => {
                let place = (cell.clone(), *fid);
                self.numbers.insert(place.clone(), *number);
                let entry = Entry {
                    place,
                    version: NONE,
                    sums: Sums::new(),
                    dirty: None,
                    local_create: None,
                    rests: 0,
                    own_file: false,
                };
                self.entries.insert(*number, entry);
            }
            Record::Gone { number } => {
                if let Some(entry) = self.entries.remove(number)
                    && self.numbers.get(&entry.place) == Some(number)
                {
                    self.numbers.remove(&entry.place);
                }
            }
            other => {
                if let Some(entry) = self.entries.get_mut(&other.number()) {
                    entry.apply(other);
                }
            }
        }
    }
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory
        .join(format!("{:02x}", number % PARTS))
        .join(number.to_string())
}

fn sync_all(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %cause, "a file of the cache stays");
        }
        _ => {}
    }
}
