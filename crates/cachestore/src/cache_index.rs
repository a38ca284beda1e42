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
//! 3. *After a crash of the machine* (another boot than in [`Record::Boot`]) dirty bytes count only
//!    if both files were synced since ([`Record::Synced`]), and if the file has the length in the
//!    log: a shortened file may be on the disk without its record. Other dirty bytes are put aside
//!    and reported.
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

use crate::backing_store::{Backing, alive, syncs};
use crate::body::Space;
use crate::index_entry::{Dirty, Entry, MAGIC, MadeHere, Place, Replayed, Sums, overlapping};
use crate::index_record::{NONE, Record, encode};
use crate::pack_slots::Slots;

mod aside;
mod sweep;

pub use aside::{aside_in, unstored_in};
use sweep::sweep;

/// Directories that files are spread over.
const PARTS: u64 = if cfg!(test) { 4 } else { 256 };
/// Files at rest, that is, of no vnode in memory, at most: about 100 MB of memory.
const RESTING_MAX: usize = 200_000;
/// The log is written anew when it is this large, and several times what it was then.
const REWRITE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 16 << 20 };
const REWRITE_TIMES: u64 = 4;
/// After a failure it is tried again after this many records.
const RETRY_NOTES: u64 = 1_024;
/// The log's name, and that of the next one.
const LOG: &str = "index";
const NEXT_LOG: &str = "index.new";
/// Where dirty bytes are put that cannot be stored.
const ASIDE: &str = "aside";

/// What a file that is taken up has.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) number: u64,
    pub(crate) version: u64,
    pub(crate) sums: Sums,
    pub(crate) dirty: Option<Dirty>,
    pub(crate) made: Option<MadeHere>,
    /// It has a file of its own.
    pub(crate) own_file: bool,
    /// An earlier process left it.
    pub(crate) earlier: bool,
}

/// Somebody's bytes that the server has not got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstored {
    /// The cell.
    pub cell: String,
    /// The file.
    pub fid: Fid,
    /// The user of this machine who wrote it; `u32::MAX` for those without tokens.
    pub writer: u32,
    /// How many bytes.
    pub bytes: u64,
    /// The data version they were written over.
    pub version: u64,
    /// Whether a crash of the machine may have damaged them.
    pub torn: bool,
}

#[derive(Debug)]
struct State {
    log: File,
    bytes: u64,
    rewrite_at: u64,
    /// Records until a log that failed is written anew.
    failing: Option<u64>,
    entries: HashMap<u64, Entry>,
    numbers: HashMap<Place, u64>,
    resting: BTreeMap<u64, u64>,
    ticks: u64,
    next: u64,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    directory: PathBuf,
    boot: [u8; 16],
    space: Arc<Space>,
    slots: Arc<Slots>,
    state: Mutex<State>,
    /// When this process began, in ticks.
    began: u64,
    /// There may be dirty bytes of an earlier cache manager that nobody has taken up.
    left: AtomicBool,
}

impl Index {
    /// The index of `directory`, which is for us alone; what it knew is at rest. `boot`: the
    /// machine's number for the time since it was started.
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
        let mut replayed = Replayed::read(&bytes);
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

    /// The file of a number.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        path(&self.directory, number)
    }

    /// Where the bytes of a number are. `own_file`: in a file of its own, if there are any.
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

    /// A number that no file has.
    pub(crate) fn new_number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next - 1
    }

    /// What there is of a place: it is in use from now on.
    pub(crate) fn take(&self, place: &Place) -> Option<Left> {
        let mut state = self.state.lock();
        let number = *state.numbers.get(place)?;
        let entry = state.entries.get_mut(&number)?;
        if entry.rests == 0 {
            return None;
        }
        let rests = std::mem::take(&mut entry.rests);
        self.space.used.fetch_sub(entry.bytes(), Ordering::Relaxed);
        let left = Left {
            number,
            version: entry.version,
            sums: entry.sums.clone(),
            dirty: entry.dirty.clone(),
            made: entry.made.clone(),
            own_file: entry.own_file,
            earlier: rests <= self.began,
        };
        state.resting.remove(&rests);
        Some(left)
    }

    /// Nobody uses a file any more: it stays, if there is something in it. Answers whether it does.
    /// `own_file`: it has one.
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

    /// Removes files at rest, those used least first, until no more than `goal` bytes are used.
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

    /// Notes what happened to files in use. It cannot fail: the head says what records are missed
    /// for.
    pub(crate) fn note(&self, records: &[Record]) {
        self.write(&mut self.state.lock(), records);
    }

    /// There may be room for records again.
    pub fn try_again(&self) {
        let mut state = self.state.lock();
        if state.failing.is_some() {
            state.failing = Some(0);
            self.write(&mut state, &[]);
        }
    }

    /// Whether there is anything to forget about these bytes of a file.
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
        if state.failing.is_none() && alive() {
            match state.log.write_all(&bytes) {
                Ok(()) => state.bytes += bytes.len() as u64,
                Err(cause) => {
                    // What is half there would hide what comes after it.
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
                    tracing::warn!(%cause, "the index of the cache cannot be written anew");
                    // One that has only grown is as good as it was.
                    state.rewrite_at = state.bytes + REWRITE_BYTES;
                    state.failing = state.failing.map(|_| RETRY_NOTES);
                }
            }
        }
    }

    /// Writes the log anew: what is so now, those used least first.
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
        if !alive() {
            return Ok(());
        }
        let next = self.directory.join(NEXT_LOG);
        let mut file = cellar_private::create(&next)?;
        file.write_all(&bytes)?;
        // Tests of crashes say themselves what came to the disk.
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

    /// What to sync so that dirty bytes survive a crash of the machine, after the file itself.
    pub fn sync(&self) -> io::Result<()> {
        let log = self.state.lock().log.try_clone()?;
        syncs()?;
        log.sync_data()
    }

    /// The files in use by age, so that what is used least goes first next time too.
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
            tracing::warn!(%cause, "the index of the cache cannot be written anew");
        }
        for (number, rests) in before {
            if let Some(entry) = state.entries.get_mut(&number) {
                entry.rests = rests;
            }
        }
    }

    /// Files at rest with bytes that were not stored: cell and fid, and who wrote them.
    pub fn left_dirty(&self) -> Vec<Place> {
        if !self.left.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state.lock();
        let dirty = state
            .entries
            .values()
            .filter(|entry| entry.rests != 0 && entry.dirty.is_some());
        let places: Vec<_> = dirty.map(|entry| entry.place.clone()).collect();
        // Those of this process do not rest before it ends.
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
                    made: None,
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
