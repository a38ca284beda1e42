//! The small replicated tables under VL and PR: ordered, transactional, watched.
//!
//! A cell database is a set of named [`Table`]s, each an ordered map from bytes to bytes. The
//! servers above decide what the tables contain. Three promises hold for every engine:
//!
//! 1. **Transactions are serialisable.** [`CellDb::transact`] runs a body that sees one consistent
//!    state and its own writes; either all of its writes take effect or none.
//! 2. **Acknowledged changes are durable.** When `transact` returns a [`Revision`], the change
//!    survives power loss (one server) or the loss of a minority (many).
//! 3. **Changes are numbered and can be followed.** Every committed transaction has a higher
//!    revision. A [`Watch`] delivers the changes of each in order, none before it is durable. This
//!    is how servers keep typed copies in memory and answer reads without a database.
//!
//! ## Why the interface blocks
//!
//! The body of a transaction is synchronous and may run more than once. That serves both kinds of
//! engine. An embedded one runs it under its writers' lock. One over etcd runs it against its
//! watched copy, and sends the puts on condition that nothing read has changed. Otherwise it runs
//! the body again. Only the commit waits, for a disk or for a network, once a transaction. Reads do
//! not come here in the steady state at all (promise 3). So the price of a blocking call is one
//! parked thread of the blocking pool per write in flight. In return, the engines, the models above
//! and their crash tests need no executor. Writers that wait together share one sync.
//!
//! [`Embedded`] is the engine for one server. The crate `etcd` has the one for several.

mod admin;
mod backend;
mod embedded;
mod error;
mod guard;
mod history;
mod id;
mod revision_file;
pub mod sealed;
mod table;
mod text;
mod transaction;
mod verify;

pub use admin::{Exported, check, check_export, export, export_rows, import, read_export};
pub use embedded::{Embedded, Opening};
pub use error::Error;
pub use history::{Change, Committed, History, Watch};
pub use id::DatabaseId;
pub use redb::StorageBackend;
pub use table::{Table, limits};
pub use transaction::{Overlay, Rows, Transaction, View, run};
pub use verify::Summary;

/// The number of a committed transaction: each has a higher one. 0 is the empty database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// Whether a transaction's writes shall take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them.
    Commit,
    /// None of them.
    Cancel,
}

/// A cell database. See the head of this crate for what every engine promises.
pub trait CellDb: Send + Sync + 'static {
    /// The newest durable revision.
    fn revision(&self) -> Revision;

    /// A view of one durable state, and which it is.
    ///
    /// # Errors
    /// The engine cannot read.
    fn snapshot(&self) -> Result<(Box<dyn View>, Revision), Error>;

    /// Runs `body` as one transaction; waits until what it wrote, and all that it read, is durable.
    ///
    /// `body` may run more than once; only its last run counts. It must not call this database. The
    /// result is the revision at which the writes are visible, which is an older one for a body
    /// that wrote nothing or cancelled.
    ///
    /// # Errors
    /// The engine cannot read or write, or a limit of [`limits`] is exceeded. After an error the
    /// writes are absent or whole, but it may be unknown which ([`Error::Failed`]).
    fn transact(
        &self,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<Revision, Error>;

    /// Follows the changes of `tables` in transactions after `from`.
    fn watch(&self, tables: &[Table], from: Revision) -> Watch;
}

impl dyn CellDb {
    /// Runs `body` on one durable state.
    ///
    /// # Errors
    /// Those of the engine and of `body`.
    pub fn read<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&dyn View, Revision) -> Result<T, E>,
    ) -> Result<T, E> {
        let (view, revision) = self.snapshot()?;
        body(&*view, revision)
    }

    /// Runs `body` as one transaction; its writes take effect if it returns `Ok`.
    ///
    /// # Errors
    /// Those of [`CellDb::transact`] and of `body`.
    pub fn write<T, E: From<Error>>(
        &self,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<(T, Revision), E> {
        let mut outcome = None;
        let revision = self.transact(&mut |transaction| {
            let result = body(transaction);
            let verdict = if result.is_ok() {
                Verdict::Commit
            } else {
                Verdict::Cancel
            };
            outcome = Some(result);
            verdict
        })?;
        match outcome {
            Some(Ok(value)) => Ok((value, revision)),
            Some(Err(error)) => Err(error),
            None => Err(E::from(Error::Failed(
                "the engine did not run the transaction".into(),
            ))),
        }
    }
}
