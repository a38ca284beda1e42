//! A typed copy of some tables in memory, kept in step with the database.
//!
//! 1. At the start the model is loaded from one view, and a watch begins at that view's revision.
//! 2. Reads take the model's lock for reading and never touch the database.
//! 3. A write is a transaction on the database. It reads through the transaction, never through the
//!    model, so that it is serialisable whoever else writes. When it is durable, the watch is read
//!    up to its revision and applied to the model, and only then is the writer answered: who was
//!    told of a change sees it.
//! 4. Changes of other servers arrive by the same watch. A watch that missed some means: load anew.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_celldb::{
    CellDb, Committed, Error as DatabaseError, Revision, Table, Transaction, View, Watch,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::{Error, row};

/// How long a writer waits for its own change to come back by the watch, in all.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(50);

/// What is kept in memory of some tables, made row by row from nothing.
pub(crate) trait Model: Default + Send + Sync + 'static {
    /// The tables it is made from.
    const TABLES: &'static [Table];
    /// The one of them whose rows have numbers as keys and are found by other fields, too.
    const INDEXED: Table;

    /// Takes up a row, or its end. A row of [`Model::INDEXED`] is new here: its old form has been
    /// removed.
    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError>;

    /// Removes a row of [`Model::INDEXED`], if it is there.
    fn remove(&mut self, number: u32);

    /// Reads all of it.
    fn load(view: &dyn View) -> Result<Self, DatabaseError> {
        let mut model = Self::default();
        let all = (Bound::Unbounded, Bound::Unbounded);
        for &table in Self::TABLES {
            let mut outcome = Ok(());
            view.visit(table, all, &mut |key, value| {
                outcome = model.set(table, key, Some(value));
                outcome.is_ok()
            })?;
            outcome?;
        }
        Ok(model)
    }

    /// Follows one transaction. Old forms go first: within one transaction a name may pass from one
    /// row to another.
    fn apply(&mut self, committed: &Committed) -> Result<(), DatabaseError> {
        let changes = &committed.changes;
        for change in changes
            .iter()
            .filter(|change| change.table == Self::INDEXED)
        {
            self.remove(row::number(Self::INDEXED, &change.key)?);
        }
        for change in changes {
            self.set(change.table, &change.key, change.value.as_deref())?;
        }
        Ok(())
    }
}

/// A database and the model of some of its tables.
pub(crate) struct Replica<M> {
    db: Arc<dyn CellDb>,
    model: RwLock<M>,
    watch: Mutex<Watch>,
    /// Revision of the last change to the model.
    changed: AtomicU64,
}

impl<M: Model> Replica<M> {
    /// Runs `prepare`, which may fill an empty database, and loads the model.
    pub(crate) fn open(
        db: Arc<dyn CellDb>,
        prepare: impl FnMut(&mut Transaction<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        db.write(prepare)?;
        let (model, watch) = Self::load(&*db)?;
        let changed = AtomicU64::new(watch.seen().0);
        Ok(Self {
            db,
            model: RwLock::new(model),
            watch: Mutex::new(watch),
            changed,
        })
    }

    fn load(db: &dyn CellDb) -> Result<(M, Watch), DatabaseError> {
        db.read(|view, revision| Ok((M::load(view)?, db.watch(M::TABLES, revision))))
    }

    /// The model as it is now. Not to be held for long: writers wait for it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, M> {
        self.model.read()
    }

    /// What the database itself says, of what the model does not have. Blocks.
    pub(crate) fn view<T>(
        &self,
        mut body: impl FnMut(&dyn View) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.db.read(|view, _| body(view))
    }

    /// The revision of the last change to these tables that the model has.
    pub(crate) fn version(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// Runs a transaction; when this returns it is durable and the model has it.
    ///
    /// Blocks. `body` may run more than once.
    pub(crate) fn write<T>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (value, revision) = self.db.write(body)?;
        self.catch_up(revision)?;
        Ok(value)
    }

    /// Applies what the database has up to `revision`.
    pub(crate) fn catch_up(&self, revision: Revision) -> Result<(), DatabaseError> {
        let mut watch = self.watch.lock();
        let mut waited = Duration::ZERO;
        while watch.seen() < revision {
            match watch.wait(STEP) {
                Ok(Some(committed)) => {
                    self.model.write().apply(&committed)?;
                    self.changed.store(committed.revision.0, Ordering::Release);
                }
                Ok(None) if watch.seen() >= revision => break,
                Ok(None) => {
                    waited += STEP;
                    if waited >= PATIENCE {
                        return Err(DatabaseError::Read(
                            "the change did not come back by the watch".into(),
                        ));
                    }
                }
                Err(DatabaseError::Compacted { .. }) => {
                    let (model, fresh) = Self::load(&*self.db)?;
                    *self.model.write() = model;
                    self.changed.store(fresh.seen().0, Ordering::Release);
                    *watch = fresh;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
