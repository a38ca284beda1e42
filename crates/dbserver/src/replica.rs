//! A typed copy of some tables in memory that follows the database.
//!
//! 1. At the start, the model is loaded from one view, and a watch starts at the revision of that
//!    view.
//! 2. Reads lock the model for reading and never touch the database.
//! 3. A write is a transaction on the database. It reads through the transaction, never through the
//!    model. It is therefore serialisable even if other servers write. When it is durable, the
//!    watch is read up to its revision and applied to the model. Only then does the writer get its
//!    answer. A caller that got the answer therefore sees the change.
//! 4. Changes by other servers arrive through the same watch. A read applies them first, if the
//!    lock is soon free. If the watch has lost changes, the model is loaded again.
//!
//! Lock order: the watch, then the model.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_celldb::{
    CellDb, Committed, Error as DatabaseError, Revision, Table, Transaction, View, Watch,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::{Error, row};

/// The longest time for which a writer waits until its own change arrives through the watch.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(50);
/// The longest time for which a read waits to apply changes of other servers.
const SOON: Duration = Duration::from_millis(2);

/// The copy of some tables in memory, built row by row from an empty state.
pub(crate) trait Model: Default + Send + Sync + 'static {
    /// The tables that it is built from.
    const TABLES: &'static [Table];
    /// The table whose rows have numbers as keys and are also found by other fields.
    const INDEXED: Table;

    /// Applies a row, or its deletion. The old form of a row of [`Model::INDEXED`] has already been
    /// removed.
    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError>;

    /// Removes a row of [`Model::INDEXED`], if the model has it.
    fn remove(&mut self, number: u32);

    /// Builds the model from all rows.
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

    /// Applies one transaction. The old forms of rows are removed first, because a name may pass
    /// from one row to another in one transaction.
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
    /// Revision up to which the watch has been applied.
    delivered: AtomicU64,
}

impl<M: Model> Replica<M> {
    /// Runs `prepare`, which may fill an empty database, and then loads the model.
    pub(crate) fn open(
        db: Arc<dyn CellDb>,
        prepare: impl FnMut(&mut Transaction<'_>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        db.write(prepare)?;
        let (model, watch) = Self::load(&*db)?;
        let from = watch.delivered().0;
        Ok(Self {
            db,
            model: RwLock::new(model),
            watch: Mutex::new(watch),
            changed: AtomicU64::new(from),
            delivered: AtomicU64::new(from),
        })
    }

    fn load(db: &dyn CellDb) -> Result<(M, Watch), DatabaseError> {
        db.read(|view, revision| Ok((M::load(view)?, db.watch(M::TABLES, revision))))
    }

    /// Locks the model for reading. The lock must be held only briefly, because writers wait for
    /// it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, M> {
        self.follow();
        self.model.read()
    }

    /// Applies the changes that have arrived. Does not wait for more of them, nor long for a lock:
    /// the caller may hold the model for another read.
    fn follow(&self) {
        if self.db.revision().0 <= self.delivered.load(Ordering::Acquire) {
            return;
        }
        let Some(mut watch) = self.watch.try_lock() else {
            return;
        };
        loop {
            let Some(mut model) = self.model.try_write_for(SOON) else {
                return;
            };
            let applied = match watch.try_next() {
                Ok(None) => break,
                Ok(Some(committed)) => {
                    let applied = model.apply(&committed);
                    self.changed.store(committed.revision.0, Ordering::Release);
                    applied
                }
                Err(DatabaseError::Compacted { .. }) => {
                    Self::load(&*self.db).map(|(loaded, fresh)| {
                        *model = loaded;
                        self.changed.store(fresh.delivered().0, Ordering::Release);
                        *watch = fresh;
                    })
                }
                Err(cause) => Err(cause),
            };
            if let Err(cause) = applied {
                tracing::error!(%cause, "changes of another database server cannot be applied");
                break;
            }
        }
        self.delivered.store(watch.delivered().0, Ordering::Release);
    }

    /// Reads data from the database that the model does not have. Blocks.
    pub(crate) fn view<T>(
        &self,
        mut body: impl FnMut(&dyn View) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.db.read(|view, _| body(view))
    }

    /// The revision of the last change to these tables that is in the model.
    pub(crate) fn version(&self) -> u64 {
        self.follow();
        self.changed.load(Ordering::Acquire)
    }

    /// Runs a transaction. On return, the change is durable and in the model.
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

    /// Applies the changes of the database up to `revision`.
    pub(crate) fn catch_up(&self, revision: Revision) -> Result<(), DatabaseError> {
        let mut watch = self.watch.lock();
        let mut waited = Duration::ZERO;
        while watch.delivered() < revision {
            match watch.wait(STEP) {
                Ok(Some(committed)) => {
                    self.model.write().apply(&committed)?;
                    self.changed.store(committed.revision.0, Ordering::Release);
                }
                Ok(None) if watch.delivered() >= revision => break,
                Ok(None) => {
                    waited += STEP;
                    if waited >= PATIENCE {
                        return Err(DatabaseError::Read(
                            "the change did not arrive through the watch".into(),
                        ));
                    }
                }
                Err(DatabaseError::Compacted { .. }) => {
                    let (model, fresh) = Self::load(&*self.db)?;
                    *self.model.write() = model;
                    self.changed.store(fresh.delivered().0, Ordering::Release);
                    *watch = fresh;
                }
                Err(error) => return Err(error),
            }
        }
        self.delivered.store(watch.delivered().0, Ordering::Release);
        Ok(())
    }
}
