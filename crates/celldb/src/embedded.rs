//! The engine for one server: a redb file, with group commit.
//!
//! How a write becomes durable:
//!
//! 1. A writer takes the `State` lock and runs its body against three layers: the newest durable
//!    state in redb, the changes that a leader is writing at the moment, and the changes that wait.
//!    Bodies run one after the other, each on the result of the one before: serialisable.
//! 2. Its changes get the next revision and join those that wait.
//! 3. It waits until that revision is durable. Whoever finds no leader becomes it: takes all that
//!    waits, lets go of the lock, writes it to redb as one transaction with one commit, takes the
//!    lock again, publishes the revisions to the watches and wakes the others.
//! 4. A body that wrote nothing waits for what it may have read, so that nobody acts on a state
//!    that a crash could take back.
//!
//! When a commit fails, it is unknown whether it reached the disk. No later write is accepted then
//! (`failed`), because it would build on something uncertain; reads go on from the durable state.
//! Opening the file again decides: redb shows the last commit that is whole.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend,
    StorageError, TableDefinition, TableError,
};

use crate::history::{Committed, History};
use crate::transaction::{Layered, Overlay, Transaction};
use crate::{CellDb, Error, Revision, Table, Verdict, View, Watch};

/// The engine's own table.
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("_celldb");
const REVISION: &str = "revision";
const FORMAT: &str = "format";
/// The halves of the id.
const ID: [&str; 2] = ["id.high", "id.low"];
/// Layout of rows below: one redb table a table, keys and values as they are.
const FORMAT_VERSION: u64 = 1;
/// Bytes of pages that redb may keep; the servers above hold what they need in memory themselves.
const CACHE_BYTES: usize = 16 << 20;

fn definition(table: Table) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(table.name())
}

/// Changes on their way to the disk.
#[derive(Default)]
struct State {
    /// What the leader is writing.
    committing: Arc<Overlay>,
    /// What waits for the next leader, merged and transaction by transaction.
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
}

/// Identifies one database: made at random with the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseId(u128);

impl fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for DatabaseId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_one
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        id.map(Self).ok_or("not 32 hexadecimal digits")
    }
}

impl Embedded {
    /// Opens the database at `path`, which must be there.
    ///
    /// # Errors
    /// [`Error::Missing`] when it is not; else as [`Embedded::open`].
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        match path.try_exists().map_err(failed)? {
            true => Self::open(path),
            false => Err(Error::Missing(path.to_path_buf())),
        }
    }

    /// Opens or creates the database at `path`.
    ///
    /// A new one is made under the name with `.new` appended and renamed when it is whole and
    /// synced: a crash in between leaves nothing at `path`.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has it open, [`Error::Format`] when it is something
    /// else, [`Error::Failed`] when the file system refuses.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !path.try_exists().map_err(failed)? {
            Self::create(path)?;
        }
        Self::start(
            Database::builder().set_cache_size(CACHE_BYTES).open(path),
            path,
        )
    }

    fn create(path: &Path) -> Result<(), Error> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        drop(Self::start(
            cellar_private::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&unfinished)
                .map_err(DatabaseError::from)
                .and_then(FileBackend::new)
                .and_then(|file| Database::builder().create_with_backend(file)),
            Path::new(&unfinished),
        )?);
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        fs::rename(&unfinished, path).map_err(failed)?;
        let directory = fs::File::open(directory.unwrap_or(Path::new("."))).map_err(failed)?;
        directory.sync_all().map_err(failed)
    }

    /// Opens or creates a database on a disk of the caller's: tests use one that fails. A crash
    /// while a new one is made leaves a disk that is refused.
    ///
    /// # Errors
    /// As [`Embedded::open`].
    pub fn with_backend(disk: impl StorageBackend) -> Result<Self, Error> {
        let opened = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(disk);
        Self::start(opened, Path::new("(disk)"))
    }

    fn start(opened: Result<Database, DatabaseError>, path: &Path) -> Result<Self, Error> {
        let format = |reason: String| Error::Format {
            path: path.to_path_buf(),
            reason,
        };
        let database = opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => Error::InUse(path.to_path_buf()),
            DatabaseError::Storage(StorageError::Io(error)) => failed(error),
            other => format(other.to_string()),
        })?;
        let (revision, id) = match Self::stored(&database)? {
            Some((FORMAT_VERSION, revision, id)) => (revision, id),
            Some((version, ..)) => return Err(format(format!("format {version}"))),
            None => {
                write_out(&database, &Overlay::default(), 0).map_err(failed)?;
                (0, None)
            }
        };
        // An older release made none.
        let id = match id {
            Some(id) => id,
            None => write_id(&database).map_err(failed)?,
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
        })
    }

    /// Identifies the database.
    pub fn id(&self) -> DatabaseId {
        self.id
    }

    /// Format, revision and id in the file; nothing in a new one.
    fn stored(database: &Database) -> Result<Option<(u64, u64, Option<DatabaseId>)>, Error> {
        let transaction = database.begin_read().map_err(unreadable)?;
        let meta = match transaction.open_table(META) {
            Ok(meta) => meta,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let number = |name| -> Result<Option<u64>, Error> {
            let value = meta.get(name).map_err(unreadable)?;
            Ok(value.map(|value| value.value()))
        };
        let halves = number(ID[0])?.zip(number(ID[1])?);
        let id = halves.map(|(high, low)| DatabaseId(u128::from(high) << 64 | u128::from(low)));
        let format = number(FORMAT)?.unwrap_or(0);
        Ok(Some((format, number(REVISION)?.unwrap_or(0), id)))
    }

    /// Runs a body on the newest state; what it wrote joins what waits. The revision to wait for.
    fn enqueue(
        &self,
        state: &mut State,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<u64, Error> {
        let base = Durable(self.database.begin_read().map_err(unreadable)?);
        let layers = [&*state.committing, &state.waiting];
        let mut transaction = Transaction::new(Layered {
            base: &base,
            layers: &layers,
        });
        if body(&mut transaction) == Verdict::Cancel {
            return Ok(state.given);
        }
        let changes = transaction.into_changes()?;
        if changes.is_empty() {
            return Ok(state.given);
        }
        state.given += 1;
        let committed = Committed::new(Revision(state.given), &changes);
        state.waiting_transactions.push(Arc::new(committed));
        state.waiting.absorb(&changes);
        Ok(state.given)
    }

    /// Takes what waits to the disk. The lock is free meanwhile.
    fn lead(&self, state: &mut parking_lot::MutexGuard<'_, State>) {
        let changes = Arc::new(std::mem::take(&mut state.waiting));
        let transactions = std::mem::take(&mut state.waiting_transactions);
        let revision = state.given;
        state.committing = Arc::clone(&changes);
        state.has_leader = true;
        let outcome = parking_lot::MutexGuard::unlocked(state, || {
            // A panic below must not leave the others waiting for this leader for ever.
            let write = || write_out(&self.database, &changes, revision);
            catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
                Err(redb::Error::Corrupted(
                    "the engine panicked in a commit".to_owned(),
                ))
            })
        });
        state.has_leader = false;
        match outcome {
            Ok(()) => {
                state.committing = Arc::default();
                state.durable = revision;
                self.history.publish(transactions);
            }
            Err(error) => {
                let reason: Arc<str> = error.to_string().into();
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
        let transaction = self.database.begin_read().map_err(unreadable)?;
        let revision = {
            let meta = transaction.open_table(META).map_err(unreadable)?;
            let value = meta.get(REVISION).map_err(unreadable)?;
            Revision(value.map_or(0, |value| value.value()))
        };
        Ok((Box::new(Durable(transaction)), revision))
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
                self.lead(&mut state);
            }
        }
        Ok(Revision(wanted))
    }

    fn watch(&self, tables: &[Table], from: Revision) -> Watch {
        Watch::new(Arc::clone(&self.history), tables, from)
    }
}

/// Gives the database an id.
fn write_id(database: &Database) -> Result<DatabaseId, redb::Error> {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(ID[0], high)?;
        meta.insert(ID[1], low)?;
    }
    transaction.commit()?;
    Ok(DatabaseId(u128::from(high) << 64 | u128::from(low)))
}

/// Writes changes and the revision they lead to as one redb transaction.
fn write_out(database: &Database, changes: &Overlay, revision: u64) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for (table, rows) in changes.tables() {
        let mut open = transaction.open_table(definition(table))?;
        for (key, value) in rows {
            match value {
                Some(value) => drop(open.insert(&key[..], &value[..])?),
                None => drop(open.remove(&key[..])?),
            }
        }
    }
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT, FORMAT_VERSION)?;
        meta.insert(REVISION, revision)?;
    }
    transaction.commit()?;
    Ok(())
}

/// A durable state, as redb shows it.
struct Durable(ReadTransaction);

impl View for Durable {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self.0.open_table(definition(table)) {
            Ok(open) => {
                let value = open.get(key).map_err(unreadable)?;
                Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
            }
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(unreadable(error)),
        }
    }

    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let open = match self.0.open_table(definition(table)) {
            Ok(open) => open,
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        for row in ReadableTable::range::<&[u8]>(&open, range).map_err(unreadable)? {
            let (key, value) = row.map_err(unreadable)?;
            if !each(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Read(error.to_string().into())
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string().into())
}
