//! The recent transactions, for the watches that follow them.
//!
//! All watches share one bounded list; a watch is a position in it. A watch that falls behind the
//! list receives [`Error::Compacted`] and reads its tables again. So a follower that hangs delays
//! only itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::table::limits;
use crate::transaction::Overlay;
use crate::{Error, Revision, Table};

/// One row that a transaction changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The row's key.
    pub key: Bytes,
    /// Its new value, or `None` when it was deleted.
    pub value: Option<Bytes>,
}

/// The changes of one committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its number.
    pub revision: Revision,
    /// Its changes, by table and key.
    pub changes: Vec<Change>,
}

impl Committed {
    pub(crate) fn new(revision: Revision, changes: &Overlay) -> Self {
        let changes = changes
            .iter()
            .map(|(table, key, value)| Change {
                table,
                key: key.clone(),
                value: value.clone(),
            })
            .collect();
        Self { revision, changes }
    }

    fn bytes(&self) -> usize {
        let row = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Bytes::len);
        self.changes.iter().map(row).sum()
    }
}

struct Recent {
    /// Transactions with consecutive revisions, the last of which is `newest`.
    transactions: VecDeque<Arc<Committed>>,
    bytes: usize,
    newest: Revision,
}

impl Recent {
    fn oldest(&self) -> Revision {
        Revision(self.newest.0 - self.transactions.len() as u64)
    }
}

/// The recent transactions of one database.
pub(crate) struct History {
    recent: Mutex<Recent>,
    grown: Condvar,
}

impl History {
    /// Makes a history without the transactions up to `newest`.
    pub(crate) fn new(newest: Revision) -> Self {
        let recent = Recent {
            transactions: VecDeque::new(),
            bytes: 0,
            newest,
        };
        Self {
            recent: Mutex::new(recent),
            grown: Condvar::new(),
        }
    }

    pub(crate) fn newest(&self) -> Revision {
        self.recent.lock().newest
    }

    /// Adds transactions, which must follow each other and the newest.
    pub(crate) fn publish(&self, transactions: impl IntoIterator<Item = Arc<Committed>>) {
        let mut recent = self.recent.lock();
        for transaction in transactions {
            assert_eq!(
                transaction.revision.0,
                recent.newest.0 + 1,
                "revisions are consecutive"
            );
            recent.newest = transaction.revision;
            recent.bytes += transaction.bytes();
            recent.transactions.push_back(transaction);
        }
        while recent.transactions.len() > limits::HISTORY_TRANSACTIONS_MAX
            || recent.bytes > limits::HISTORY_BYTES_MAX
        {
            let Some(dropped) = recent.transactions.pop_front() else {
                break;
            };
            recent.bytes -= dropped.bytes();
        }
        self.grown.notify_all();
    }
}

/// Follows the changes of some tables, one transaction after the other.
pub struct Watch {
    history: Arc<History>,
    tables: Box<[Table]>,
    seen: Revision,
}

impl Watch {
    pub(crate) fn new(history: Arc<History>, tables: &[Table], from: Revision) -> Self {
        Self {
            history,
            tables: tables.into(),
            seen: from,
        }
    }

    /// The revision up to which this watch has delivered everything.
    pub fn delivered(&self) -> Revision {
        self.seen
    }

    /// Returns the next transaction that changed one of the tables, if there is one already.
    /// Changes of other tables are left out.
    ///
    /// # Errors
    /// [`Error::Compacted`] when changes were missed; it stays so.
    pub fn try_next(&mut self) -> Result<Option<Committed>, Error> {
        self.next_within(None)
    }

    /// As [`Watch::try_next`], waiting for at most `patience`.
    ///
    /// # Errors
    /// As [`Watch::try_next`].
    pub fn wait(&mut self, patience: Duration) -> Result<Option<Committed>, Error> {
        self.next_within(Some(patience))
    }

    fn next_within(&mut self, mut patience: Option<Duration>) -> Result<Option<Committed>, Error> {
        loop {
            let transaction = {
                let mut recent = self.history.recent.lock();
                if self.seen >= recent.newest
                    && let Some(patience) = patience.take()
                {
                    self.history.grown.wait_for(&mut recent, patience);
                }
                if self.seen >= recent.newest {
                    return Ok(None);
                }
                let oldest = recent.oldest();
                if self.seen < oldest {
                    return Err(Error::Compacted { oldest });
                }
                Arc::clone(&recent.transactions[(self.seen.0 - oldest.0) as usize])
            };
            self.seen = transaction.revision;
            let ours = |change: &&Change| self.tables.contains(&change.table);
            let changes: Vec<_> = transaction.changes.iter().filter(ours).cloned().collect();
            if !changes.is_empty() {
                return Ok(Some(Committed {
                    revision: transaction.revision,
                    changes,
                }));
            }
        }
    }
}
