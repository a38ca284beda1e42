//! Errors, sorted by blame.

use std::path::PathBuf;
use std::sync::Arc;

use crate::Revision;

/// The reason why a database operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The machine: the disk or the file system refused, and the database takes no more writes
    /// until it is opened again. Reads go on. A write that got this answer is absent or whole.
    #[error("the cell database takes no more writes: {0}")]
    Failed(Arc<str>),
    /// The cluster: no write is possible now, and later ones may be. Reads go on. A write that got
    /// this answer is absent or whole.
    #[error("the cell database takes no writes now: {0}")]
    Unavailable(Arc<str>),
    /// The machine: a read failed.
    #[error("the cell database cannot be read: {0}")]
    Read(Arc<str>),
    /// Another process has the file open.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// There is no file, and a new one was not asked for.
    #[error("{} is missing", .0.display())]
    Missing(PathBuf),
    /// A newer program wrote the file.
    #[error("{} has form {format}, which this program does not know: use a newer one", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its form.
        format: u64,
    },
    /// The file is not as it was written, or is no cell database.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first fault.
        reason: String,
    },
    /// The database has been newer: transactions have disappeared from it.
    #[error("{} ends with transaction {revision}, and had transaction {newest} before", path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// The last transaction in it.
        revision: u64,
        /// The last one that it has had.
        newest: u64,
    },
    /// The caller: a key, a value or a transaction is over one of [`crate::limits`].
    #[error("{what} of {size} is over the limit of {limit}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The caller: a watch asked for changes that are no longer kept. Read the tables again and
    /// watch from the revision of that view.
    #[error("changes before revision {} are no longer kept", oldest.0)]
    Compacted {
        /// Changes after this one are kept.
        oldest: Revision,
    },
    /// The bytes in a table do not parse: the database was written by something else, or damaged.
    #[error("table {table}: a row of {len} bytes does not parse: {reason}")]
    BadRow {
        /// The table.
        table: &'static str,
        /// Length of the value.
        len: usize,
        /// The fault.
        reason: &'static str,
    },
}
