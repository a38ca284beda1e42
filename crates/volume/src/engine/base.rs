//! The base table: one redb database in one file, behind the few calls that the store needs.
//!
//! Only this module names redb. It reads at a fixed state ([`View`], one for each flush). It takes
//! changes in large sorted batches. Each batch is one durable transaction, which also records the
//! number of the last journal group that it holds. Quick-repair is on, so that opening after a
//! crash reads the allocator state instead of scanning. The decision record says why redb was
//! chosen.
//!
//! redb does not verify its pages on ordinary reads. So every block that it reads is compared with
//! a checksum of our own (`page_sums`). In place of a damaged block redb gets zeros. Zeros are no
//! valid page, so redb panics; the panic is caught here, and the read fails with an error. If redb
//! got an I/O error instead, it would refuse all further use of the table.

mod disk_table;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};

use super::key::Key;
use super::page_sums::PageSums;
use crate::disk::DiskFile;
use crate::error::{Error, Result};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("store");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const APPLIED: &str = "applied";
const LIVE: &str = "live";
/// Number of the last group of a table that the base holds only in part.
const PARTIAL: &str = "partial";
/// Rows of a [`Mark`].
const JOURNAL: &str = "journal";
const FILES: &str = "files";
const FILE_BYTES: &str = "file bytes";
/// About the bytes that an entry takes beside its value, rounded up.
const ENTRY_BYTES: u64 = 48;
/// Pages are at least this full (one third). redb merges emptier pages with others.
const FULL_PART: u64 = 3;
/// About the room that redb takes for its own tables.
const OWN_BYTES: u64 = 512 << 10;

/// The open base table.
pub(crate) struct Base {
    /// `None` only while the value is dropped.
    database: Option<Database>,
    file: Arc<dyn DiskFile>,
    sums: Arc<PageSums>,
    is_sealed: Arc<AtomicBool>,
    no_room: NoRoom,
}

/// Set when a write of the table finds no room. From then on redb fails every call with another
/// error, until the table is opened again.
#[derive(Clone, Debug, Default)]
struct NoRoom(Arc<AtomicBool>);

impl NoRoom {
    fn note<T>(&self, result: Result<T, io::Error>) -> Result<T, io::Error> {
        result.inspect_err(|error| {
            if crate::disk::is_full(error) {
                self.0.store(true, Ordering::Release);
            }
        })
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Translates an error of redb.
    fn failed(&self, error: &redb::Error) -> Error {
        match error {
            redb::Error::Corrupted(_) => failed(error),
            _ if self.is_set() => Error::DiskFull,
            _ => failed(error),
        }
    }
}

/// The journal that belongs to the base table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The journal's id: random, not 0. Each group of the journal carries it.
    pub(crate) journal: u64,
    /// One bit for each number of a journal file that may hold groups.
    pub(crate) files: u64,
    /// The length that each of these files has at least.
    pub(crate) file_bytes: u64,
}

/// The base table as it was at one moment.
pub(crate) struct View {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
    /// Number of the last journal group that the view holds.
    pub(crate) applied: u64,
    /// Number of the last group of a table that the view holds only in part. The rest may be in the
    /// journal only.
    pub(crate) partial: u64,
    /// `None` in a new store, and in one of an earlier version of this program.
    pub(crate) mark: Option<Mark>,
    /// Bytes of all entries. `None` if they were not counted from the first one on.
    live: Option<u64>,
    no_room: NoRoom,
}

/// How far the base is after a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It has all changes up to this group.
    UpTo(u64),
    /// It has a part of the changes of a table whose last group is this one.
    PartOf(u64),
}

/// The entries of a view in key order.
pub(crate) struct Entries(redb::Range<'static, &'static [u8], &'static [u8]>);

#[derive(Debug)]
struct Backend {
    file: Arc<dyn DiskFile>,
    sums: Arc<PageSums>,
    is_sealed: Arc<AtomicBool>,
    no_room: NoRoom,
}

impl Backend {
    fn check_open(&self) -> Result<(), io::Error> {
        match self.is_sealed.load(Ordering::Acquire) {
            true => Err(io::Error::other("the base table is closed")),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read_at(out, offset)?;
        if let Some(at) = self.sums.damaged(offset, out) {
            out.fill(0);
            DAMAGED.set(Some(at));
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        self.check_open()?;
        self.no_room.note(self.file.set_length(length))
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.check_open()?;
        let saved = self.sums.save();
        self.no_room.note(saved.and_then(|()| self.file.sync()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check_open()?;
        self.no_room.note(self.file.write_at(data, offset))?;
        self.sums.written(offset, data);
        Ok(())
    }
}

thread_local! {
    /// The offset of the damaged block that this thread has found.
    static DAMAGED: Cell<Option<u64>> = const { Cell::new(None) };
}

fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    DAMAGED.set(None);
    let result = cellar_guarded::guarded(work);
    if let Some(at) = DAMAGED.take() {
        return Err(redb::Error::Corrupted(format!(
            "the block at offset {at} does not match its checksum"
        )));
    }
    result.unwrap_or_else(|panic| {
        Err(redb::Error::Corrupted(format!(
            "a page is damaged: {panic}"
        )))
    })
}

fn failed(error: &redb::Error) -> Error {
    if let redb::Error::Io(cause) = error
        && crate::disk::is_full(cause)
    {
        return Error::DiskFull;
    }
    Error::Partition(format!("base table: {error}"))
}

impl Base {
    /// Opens the table in `file`, and makes it if the file is empty. `sums` is the file of its
    /// blocks' checksums. If checksums are missing, all of the table is verified and they are made.
    pub(crate) fn open(
        file: Arc<dyn DiskFile>,
        sums: Arc<dyn DiskFile>,
        cache_bytes: usize,
    ) -> Result<Self> {
        let io = |error| failed(&redb::Error::Io(error));
        let length = file.length().map_err(io)?;
        let sums = Arc::new(PageSums::open(sums).map_err(io)?);
        let is_covered = sums.cover(length);
        let is_sealed = Arc::new(AtomicBool::new(false));
        let no_room = NoRoom::default();
        let backend = Backend {
            file: Arc::clone(&file),
            sums: Arc::clone(&sums),
            is_sealed: Arc::clone(&is_sealed),
            no_room: no_room.clone(),
        };
        // After a crash there can be sums for a growth of the table that never became durable. No
        // durable page lies there then.
        let is_cut = length > 0 && sums.reach_behind(length);
        let database = guarded(|| {
            let mut database = Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(backend)?;
            if length > 0 && !is_covered {
                let is_sound = database.check_integrity()?;
                tracing::info!(
                    is_sound,
                    length,
                    "checked the base table: it has no checksums yet"
                );
                sums.make(file.as_ref())?;
            }
            let there = database.begin_read()?;
            let found = match (there.open_table(TABLE), there.open_table(META)) {
                (Err(redb::TableError::TableDoesNotExist(_)), _)
                | (_, Err(redb::TableError::TableDoesNotExist(_))) => false,
                (table, meta) => {
                    table?;
                    meta?;
                    true
                }
            };
            drop(there);
            if found {
                return Ok(database);
            }
            let mut transaction = database.begin_write()?;
            transaction.set_quick_repair(true);
            transaction.open_table(TABLE)?;
            transaction.open_table(META)?;
            transaction.commit()?;
            Ok(database)
        });
        let database = database.map_err(|error| match is_cut && !no_room.is_set() {
            true => Error::Damaged(format!(
                "its file 'base' ends at byte {length}, and more of it was written: restore that \
                 file, or what it held elsewhere"
            )),
            false => no_room.failed(&error),
        })?;
        Ok(Self {
            database: Some(database),
            file,
            sums,
            is_sealed,
            no_room,
        })
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        let closed = || redb::Error::Corrupted("the table is closed".into());
        self.database.as_ref().ok_or_else(closed)
    }

    /// Prevents all further writes, even those of the final drop. The next opening finds the table
    /// as after a crash; with quick-repair that is as fast as any other opening.
    pub(crate) fn seal(&self) {
        self.is_sealed.store(true, Ordering::Release);
    }

    /// Returns the table as it is now.
    pub(crate) fn view(&self) -> Result<View> {
        guarded(|| {
            let transaction = self.database()?.begin_read()?;
            let meta = transaction.open_table(META)?;
            let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map(|v| v.value()));
            let mark = match (number(JOURNAL)?, number(FILES)?, number(FILE_BYTES)?) {
                (None, None, None) => None,
                (Some(journal), Some(files), Some(file_bytes)) if journal != 0 => Some(Mark {
                    journal,
                    files,
                    file_bytes,
                }),
                _ => {
                    return Err(redb::Error::Corrupted(
                        "no sound mark of the journal".into(),
                    ));
                }
            };
            Ok(View {
                table: transaction.open_table(TABLE)?,
                applied: number(APPLIED)?.unwrap_or(0),
                partial: number(PARTIAL)?.unwrap_or(0),
                mark,
                live: number(LIVE)?,
                no_room: self.no_room.clone(),
            })
        })
        .map_err(|error| failed(&error))
    }

    /// Records durably which journal belongs to the table.
    ///
    /// After an error the base must be opened again.
    pub(crate) fn set_mark(&self, mark: Mark) -> Result<()> {
        guarded(|| {
            let transaction = self.begin()?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert(JOURNAL, mark.journal)?;
                meta.insert(FILES, mark.files)?;
                meta.insert(FILE_BYTES, mark.file_bytes)?;
            }
            transaction.commit()?;
            Ok(())
        })
        .map_err(|error| self.no_room.failed(&error))
    }

    /// Begins a durable transaction.
    fn begin(&self) -> Result<redb::WriteTransaction, redb::Error> {
        let mut transaction = self.database()?.begin_write()?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(redb::Error::from)?;
        transaction.set_quick_repair(true);
        Ok(transaction)
    }

    /// Bytes of the file that no entry needs. The table can grow by at least this much without more
    /// room of the file system.
    pub(crate) fn unused(&self, view: &View) -> u64 {
        let (Some(live), Ok(used)) = (view.live, self.file.used()) else {
            return 0;
        };
        used.saturating_sub(live.saturating_mul(FULL_PART) + OWN_BYTES)
    }

    /// Applies changes in key order in one durable transaction. The last transaction of a table
    /// also records the number of its last group.
    ///
    /// After `DiskFull` nothing has changed, but the base must be opened again.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl Iterator<Item = (&'a Key, &'a Option<Bytes>)>,
        applied: Applied,
    ) -> Result<()> {
        // Outside of the guard: a panic of the iterator is not one of the library.
        let changes: Vec<_> = changes.collect();
        guarded(|| {
            let transaction = self.begin()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                let mut meta = transaction.open_table(META)?;
                let counted = meta.get(LIVE)?.map(|v| v.value());
                let counts = counted.is_some() || meta.get(APPLIED)?.is_none();
                let mut live = counted.unwrap_or(0);
                for (key, value) in changes {
                    let old = match value {
                        Some(value) => {
                            live += value.len() as u64 + ENTRY_BYTES;
                            table.insert(key.as_slice(), value.as_ref())?
                        }
                        None => table.remove(key.as_slice())?,
                    };
                    if let Some(old) = old {
                        live = live.saturating_sub(old.value().len() as u64 + ENTRY_BYTES);
                    }
                }
                if counts {
                    meta.insert(LIVE, live)?;
                }
                match applied {
                    Applied::UpTo(group) => meta.insert(APPLIED, group)?,
                    Applied::PartOf(group) => meta.insert(PARTIAL, group)?,
                };
            }
            transaction.commit()?;
            Ok(())
        })
        .map_err(|error| self.no_room.failed(&error))
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // The drop of the database may read damaged pages.
        let _ = guarded(|| {
            drop(self.database.take());
            Ok(())
        });
    }
}

impl View {
    /// Returns whether the table is about to be opened again because a write found no room. From
    /// now on, an error of this view may say nothing about the entries.
    pub(crate) fn is_replaced(&self) -> bool {
        self.no_room.is_set()
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        guarded(|| {
            let found = self.table.get(key.as_slice())?;
            Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
        })
        .map_err(|error| failed(&error))
    }

    /// Returns the entries from `from` on.
    pub(crate) fn entries(&self, from: &Key) -> Result<Entries> {
        guarded(|| Ok(Entries(self.table.range(from.as_slice()..)?)))
            .map_err(|error| failed(&error))
    }
}

impl Entries {
    /// The next entry.
    pub(crate) fn next(&mut self) -> Result<Option<(Key, Bytes)>> {
        guarded(|| {
            let Some(entry) = self.0.next() else {
                return Ok(None);
            };
            let (key, value) = entry?;
            let key = Key::from_slice(key.value())
                .ok_or_else(|| redb::Error::Corrupted("a key is too long".into()))?;
            Ok(Some((key, Bytes::copy_from_slice(value.value()))))
        })
        .map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, SimDisk};

    #[test]
    #[should_panic(expected = "our own")]
    fn a_panic_of_the_caller_is_not_reported_as_damage() {
        let disk = SimDisk::new(64 << 20);
        let open = |name| disk.open(name).unwrap();
        let base = Base::open(open("base"), open("base.sums"), 1 << 20).unwrap();
        let changes = std::iter::from_fn(|| panic!("our own"));
        let _never = base.apply(changes, Applied::UpTo(1));
    }
}
