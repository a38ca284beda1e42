//! The recent transactions, for the watches that follow them.
//!
//! All watches share one bounded list; a watch is a position in it. A watch that falls behind the
//! list receives [`Error::Compacted`] and reads its tables again. So a follower that hangs delays
//! only itself.
//!
//! Revisions rise. They are consecutive in a database with one server. An engine over a cluster
//! shares its numbers with other users of the cluster, and leaves gaps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The changes of a transaction at its revision.
    pub fn new(revision: Revision, changes: &Overlay) -> Self {
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
    /// Transactions with rising revisions, the last of which is `newest`.
    transactions: VecDeque<Arc<Committed>>,
    bytes: usize,
    newest: Revision,
    /// Changes after this revision are kept.
    oldest: Revision,
}

/// The recent transactions of one database. Engines publish to it; watches read it.
pub struct History {
    recent: Mutex<Recent>,
    /// The same as in `recent`, for readers that ask often.
    newest: AtomicU64,
    grown: Condvar,
}

impl History {
    /// Makes a history without the transactions up to `newest`.
    pub fn new(newest: Revision) -> Self {
        let recent = Recent {
            transactions: VecDeque::new(),
            bytes: 0,
            newest,
            oldest: newest,
        };
        Self {
            recent: Mutex::new(recent),
            newest: AtomicU64::new(newest.0),
            grown: Condvar::new(),
        }
    }

    /// The revision of the last transaction.
    pub fn newest(&self) -> Revision {
        Revision(self.newest.load(Ordering::Acquire))
    }

    /// Adds transactions, which must follow each other and the newest.
    ///
    /// # Panics
    /// When a revision is not above the one before: watches would miss it.
    pub fn publish(&self, transactions: impl IntoIterator<Item = Arc<Committed>>) {
        let mut recent = self.recent.lock();
        for transaction in transactions {
            assert!(transaction.revision > recent.newest, "revisions rise");
            recent.newest = transaction.revision;
            recent.bytes += transaction.bytes();
            recent.transactions.push_back(transaction);
        }
        self.newest.store(recent.newest.0, Ordering::Release);
        while recent.transactions.len() > limits::HISTORY_TRANSACTIONS_MAX
            || recent.bytes > limits::HISTORY_BYTES_MAX
        {
            let Some(dropped) = recent.transactions.pop_front() else {
                break;
            };
            recent.bytes -= dropped.bytes();
            recent.oldest = dropped.revision;
        }
        self.grown.notify_all();
    }

    /// Follows the changes of `tables` in transactions after `from`.
    pub fn watch(self: &Arc<Self>, tables: &[Table], from: Revision) -> Watch {
        Watch {
            history: Arc::clone(self),
            tables: tables.into(),
            seen: from,
        }
    }
}

/// Follows the changes of some tables, one transaction after the other.
pub struct Watch {
    history: Arc<History>,
    tables: Box<[Table]>,
    seen: Revision,
}

impl Watch {
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
                let oldest = recent.oldest;
                if self.seen < oldest {
                    return Err(Error::Compacted { oldest });
                }
                let next = recent
                    .transactions
                    .partition_point(|transaction| transaction.revision <= self.seen);
                match recent.transactions.get(next) {
                    Some(transaction) => Arc::clone(transaction),
                    None => return Ok(None),
                }
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
