//! The engine for one server: a redb file, with group commit.
//!
//! How a write becomes durable:
//!
//! 1. A writer takes the `State` lock and runs its body against three layers. These are the newest
//!    durable state in redb, the changes that a leader is writing now, and the waiting changes.
//!    Bodies run one after the other, each on the result of the previous one: they are
//!    serialisable.
//! 2. Its changes get the next revision and join the waiting changes.
//! 3. It waits until that revision is durable. A writer that finds no leader becomes the leader. It
//!    takes all waiting changes, releases the lock, and writes them to redb as one transaction with
//!    one commit. Then it takes the lock again, publishes the revisions to the watches and wakes
//!    the other writers.
//! 4. A body that wrote nothing waits until the state that it read is durable. So no caller acts on
//!    a state that a crash could undo.
//!
//! If a commit fails, it is unknown whether it reached the disk. The engine then accepts no later
//! write (`failed`), because that write would build on an uncertain state. Reads go on from the
//! durable state. When the file is opened again, redb shows the last whole commit.

mod durable;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    TableError,
};

use durable::Durable;

use crate::backend::{LockedFile, Shared};
use crate::guard::guarded;
use crate::history::{Committed, History};
use crate::id::DatabaseId;
use crate::revision_file::RevisionFile;
use crate::text::Row;
use crate::transaction::{Overlay, Transaction, run};
use crate::verify::{Summary, verify};
use crate::{CellDb, Error, Revision, Table, Verdict, View, Watch, sealed};

/// The engine's own table.
const META: TableDefinition<'static, &str, u64> = TableDefinition::new(META_NAME);
pub(crate) const META_NAME: &str = "_celldb";
const REVISION: &str = "revision";
const FORMAT: &str = "format";
/// The halves of the id.
const ID: [&str; 2] = ["id.high", "id.low"];
/// Layout of rows below: one redb table a table, values with a checksum ([`sealed`]).
pub(crate) const FORMAT_VERSION: u64 = 2;
/// The layout before: values as they are.
const FORMAT_UNSEALED: u64 = 1;
/// Bytes of pages that redb may keep; the servers above hold what they need in memory themselves.
const CACHE_BYTES: usize = 16 << 20;

/// The redb table of a name.
pub(crate) fn definition_of(name: &str) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

fn definition(table: Table) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    definition_of(table.name())
}

/// Changes on their way to the disk.
#[derive(Default)]
struct State {
    /// The changes that the leader is writing.
    committing: Arc<Overlay>,
    /// The changes that wait for the next leader, merged and transaction by transaction.
    waiting: Overlay,
    waiting_transactions: Vec<Arc<Committed>>,
    /// The last revision given out.
    given: u64,
    durable: u64,
    has_leader: bool,
    failed: Option<Arc<str>>,
}

/// A cell database in one file, for one server.
///
/// Every commit saves what redb needs to open the file at once after a crash, so a restart takes no
/// longer for a larger database.
pub struct Embedded {
    database: Database,
    state: Mutex<State>,
    progress: Condvar,
    history: Arc<History>,
    id: DatabaseId,
    /// The file that holds the newest revision, if the database is a file.
    newest: Option<RevisionFile>,
}

/// How a database is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening {
    /// Creates a database if there is none.
    pub create: bool,
    /// Accepts a database that has been newer: a copy that was restored on purpose.
    pub older: bool,
}

impl Embedded {
    /// Opens or creates the database at `path`.
    ///
    /// # Errors
    /// As [`Embedded::open_as`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_as(
            path,
            Opening {
                create: true,
                older: false,
            },
        )
    }

    /// Verifies the whole database at `path` and opens it.
    ///
    /// A new database is created under the name with `.new` appended, and renamed when it is whole
    /// and synced. A crash in between leaves nothing at `path`.
    ///
    /// # Errors
    /// [`Error::Missing`] when it is not there and must not be made, [`Error::InUse`] when another
    /// process has it open, [`Error::Damaged`] when anything in it is not as it was written,
    /// [`Error::Older`] when it has been newer, [`Error::Format`] when a newer program wrote it,
    /// [`Error::Failed`] when the file system refuses.
    pub fn open_as(path: &Path, opening: Opening) -> Result<Self, Error> {
        if !path.try_exists().map_err(failed)? {
            if !opening.create {
                return Err(Error::Missing(path.to_path_buf()));
            }
            make(path, |storage| Self::start(storage, path, true).map(drop))?;
        }
        let storage = Shared(Arc::new(LockedFile::open(path, false)?));
        let mut database = Self::start(storage, path, false)?;
        let revision = database.state.get_mut().durable;
        match RevisionFile::read(path, database.id) {
            Some(newest) if newest > revision && !opening.older => {
                return Err(Error::Older {
                    path: path.to_path_buf(),
                    revision,
                    newest,
                });
            }
            _ => {}
        }
        let newest = RevisionFile::open(path, database.id).map_err(failed)?;
        newest.note(revision);
        database.newest = Some(newest);
        Ok(database)
    }

    /// Opens or creates a database on a disk of the caller; tests use one that fails. A crash
    /// during the creation leaves a disk that is refused.
    ///
    /// # Errors
    /// As [`Embedded::open_as`].
    pub fn with_backend(disk: impl StorageBackend) -> Result<Self, Error> {
        Self::on_disk(disk, CACHE_BYTES)
    }

    /// The same without any page in memory: each read goes to the disk. Tests damage pages while
    /// the database is open.
    ///
    /// # Errors
    /// As [`Embedded::open_as`].
    pub fn with_uncached_backend(disk: impl StorageBackend) -> Result<Self, Error> {
        Self::on_disk(disk, 0)
    }

    fn on_disk(disk: impl StorageBackend, cache: usize) -> Result<Self, Error> {
        let is_new = disk.len().map_err(failed)? == 0;
        Self::start_with(Shared(Arc::new(disk)), Path::new("(disk)"), is_new, cache)
    }

    fn start(storage: Shared, path: &Path, is_new: bool) -> Result<Self, Error> {
        Self::start_with(storage, path, is_new, CACHE_BYTES)
    }

    fn start_with(storage: Shared, path: &Path, is_new: bool, cache: usize) -> Result<Self, Error> {
        let damaged = |reason| Error::Damaged {
            path: path.to_path_buf(),
            reason,
        };
        let found = match is_new {
            true => None,
            false => Some(verify(&storage).map_err(damaged)?),
        };
        if let Some(found) = found.as_ref().filter(|found| found.format > FORMAT_VERSION) {
            return Err(Error::Format {
                path: path.to_path_buf(),
                format: found.format,
            });
        }
        let opened = guarded(|| {
            Database::builder()
                .set_cache_size(cache)
                .create_with_backend(storage)
        });
        let database = opened.map_err(damaged)?;
        let (revision, id) = match &found {
            Some(Summary {
                format: FORMAT_VERSION,
                revision,
                id: Some(id),
                ..
            }) => (*revision, *id),
            // New, or of an older release.
            other => {
                let revision = other.as_ref().map_or(0, |found| found.revision);
                let id = other.as_ref().and_then(|found| found.id);
                let id = id.unwrap_or_else(DatabaseId::random);
                guarded(|| init_meta(&database, other.as_ref(), revision, id)).map_err(failed)?;
                (revision, id)
            }
        };
        let state = State {
            given: revision,
            durable: revision,
            ..State::default()
        };
        let history = Arc::new(History::new(Revision(revision)));
        Ok(Self {
            database,
            state: Mutex::new(state),
            progress: Condvar::new(),
            history,
            id,
            newest: None,
        })
    }

    /// Identifies the database.
    pub fn id(&self) -> DatabaseId {
        self.id
    }

    /// The durable state as it is now.
    pub(crate) fn read(&self) -> Result<ReadTransaction, Error> {
        guarded(|| self.database.begin_read()).map_err(unreadable)
    }

    /// The revision of a durable state.
    pub(crate) fn revision_of(&self, transaction: &ReadTransaction) -> Result<u64, Error> {
        let revision = guarded(|| {
            let meta = transaction.open_table(META)?;
            let value = meta.get(REVISION)?;
            Ok::<_, redb::Error>(value.map_or(0, |value| value.value()))
        });
        revision.map_err(unreadable)
    }

    /// Runs a body on the newest state; its writes join the waiting changes. Returns the revision
    /// to wait for.
    fn enqueue(
        &self,
        state: &mut State,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<u64, Error> {
        let base = Durable(self.read()?);
        let layers = [&*state.committing, &state.waiting];
        let changes = match run(&base, &layers, body)? {
            Some(changes) if !changes.is_empty() => changes,
            _ => return Ok(state.given),
        };
        state.given += 1;
        let committed = Committed::new(Revision(state.given), &changes);
        state.waiting_transactions.push(Arc::new(committed));
        state.waiting.absorb(&changes);
        Ok(state.given)
    }

    /// Writes the waiting changes to the disk. The lock is free meanwhile.
    fn write_waiting(&self, state: &mut parking_lot::MutexGuard<'_, State>) {
        let changes = Arc::new(std::mem::take(&mut state.waiting));
        let transactions = std::mem::take(&mut state.waiting_transactions);
        let revision = state.given;
        state.committing = Arc::clone(&changes);
        state.has_leader = true;
        let outcome = parking_lot::MutexGuard::unlocked(state, || {
            // A panic below must not leave the others waiting for this leader for ever.
            guarded(|| write_out(&self.database, &changes, revision))
        });
        state.has_leader = false;
        match outcome {
            Ok(()) => {
                state.committing = Arc::default();
                state.durable = revision;
                if let Some(newest) = &self.newest {
                    newest.note(revision);
                }
                self.history.publish(transactions);
            }
            Err(error) => {
                let reason: Arc<str> = error.into();
                tracing::error!(%reason, revision, "the cell database failed; no more writes");
                state.failed = Some(reason);
            }
        }
        self.progress.notify_all();
    }
}

impl CellDb for Embedded {
    fn revision(&self) -> Revision {
        self.history.newest()
    }

    fn snapshot(&self) -> Result<(Box<dyn View>, Revision), Error> {
        let transaction = self.read()?;
        let revision = self.revision_of(&transaction)?;
        Ok((Box::new(Durable(transaction)), Revision(revision)))
    }

    fn transact(
        &self,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<Revision, Error> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.failed {
            return Err(Error::Failed(Arc::clone(reason)));
        }
        let wanted = self.enqueue(&mut state, body)?;
        while state.durable < wanted {
            if let Some(reason) = &state.failed {
                return Err(Error::Failed(Arc::clone(reason)));
            }
            if state.has_leader {
                self.progress.wait(&mut state);
            } else {
                self.write_waiting(&mut state);
            }
        }
        Ok(Revision(wanted))
    }

    fn watch(&self, tables: &[Table], from: Revision) -> Watch {
        self.history.watch(tables, from)
    }
}

/// Creates a file, whole or not at all: `fill` receives it under another name.
pub(crate) fn make(
    path: &Path,
    fill: impl FnOnce(Shared) -> Result<(), Error>,
) -> Result<(), Error> {
    let unfinished = appended(path, ".new");
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fill(Shared(Arc::new(LockedFile::open(&unfinished, true)?)))?;
    std::fs::rename(&unfinished, path).map_err(failed)?;
    cellar_private::sync_name(path).map_err(failed)
}

/// Appends a suffix to the last name of a path.
pub(crate) fn appended(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// Format, revision and id in the file; nothing in a new one.
pub(crate) fn stored(
    database: &Database,
) -> Result<Option<(u64, u64, Option<DatabaseId>)>, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let number = |name| -> Result<Option<u64>, redb::Error> {
        Ok(meta.get(name)?.map(|value| value.value()))
    };
    let halves = number(ID[0])?.zip(number(ID[1])?);
    let id = halves.map(|(high, low)| DatabaseId::of_halves(high, low));
    let format = number(FORMAT)?.unwrap_or(0);
    Ok(Some((format, number(REVISION)?.unwrap_or(0), id)))
}

/// Writes what a database of this form has in one transaction: its format, revision and id. The
/// rows of one in the form before get their checksums; all of it was verified.
fn init_meta(
    database: &Database,
    found: Option<&Summary>,
    revision: u64,
    id: DatabaseId,
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let unsealed = found.filter(|found| found.format == FORMAT_UNSEALED);
    for (name, _) in unsealed.iter().flat_map(|found| &found.tables) {
        let mut table = transaction.open_table(definition_of(name))?;
        let mut rows = Vec::new();
        for row in table.iter()? {
            let (key, value) = row?;
            let sealed = sealed::seal(name, key.value(), value.value());
            rows.push((key.value().to_vec(), sealed));
        }
        for (key, value) in rows {
            table.insert(&key[..], &value[..])?;
        }
    }
    write_meta(&transaction, revision, Some(id))?;
    transaction.commit()?;
    Ok(())
}

fn write_meta(
    transaction: &redb::WriteTransaction,
    revision: u64,
    id: Option<DatabaseId>,
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(FORMAT, FORMAT_VERSION)?;
    meta.insert(REVISION, revision)?;
    if let Some(id) = id {
        let (high, low) = id.halves();
        meta.insert(ID[0], high)?;
        meta.insert(ID[1], low)?;
    }
    Ok(())
}

/// Fills a new database with rows, in the order of their tables.
pub(crate) fn fill(
    storage: Shared,
    rows: &[Row],
    revision: u64,
    id: DatabaseId,
) -> Result<(), redb::Error> {
    let database = Database::builder().create_with_backend(storage)?;
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for rows in rows.chunk_by(|one, other| one.0 == other.0) {
        let name = &rows[0].0;
        let mut table = transaction.open_table(definition_of(name))?;
        for (_, key, value) in rows {
            table.insert(&key[..], &sealed::seal(name, key, value)[..])?;
        }
    }
    write_meta(&transaction, revision, Some(id))?;
    transaction.commit()?;
    Ok(())
}

/// Writes changes and the revision they lead to as one redb transaction.
fn write_out(database: &Database, changes: &Overlay, revision: u64) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for (table, rows) in changes.tables() {
        let mut open = transaction.open_table(definition(table))?;
        for (key, value) in rows {
            match value {
                Some(value) => {
                    let sealed = sealed::seal(table.name(), key, value);
                    drop(open.insert(&key[..], &sealed[..])?);
                }
                None => drop(open.remove(&key[..])?),
            }
        }
    }
    write_meta(&transaction, revision, None)?;
    transaction.commit()?;
    Ok(())
}

fn unreadable(reason: String) -> Error {
    Error::Read(reason.into())
}

pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string().into())
}
