//! The verification of a whole database before its use: redb's checksums of all pages, then every
//! row.
//!
//! Pages of redb hold the checksums of the pages below them, from the root on. So a changed bit in
//! any reachable page is found, also one that would make rows disappear. redb itself looks at them
//! only on request. Repairs meanwhile stay in memory ([`Layer`]): a database that needs more than
//! the replay of a crash is refused as it is.

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableHandle};

use crate::DatabaseId;
use crate::backend::{Layer, Shared};
use crate::embedded::{FORMAT_VERSION, META_NAME, definition_of, stored};
use crate::guard::guarded;
use crate::sealed;

/// The contents of a database, summarised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Layout of its rows.
    pub format: u64,
    /// The last transaction.
    pub revision: u64,
    /// Its id, which distinguishes it from others; databases of an older release have none.
    pub id: Option<DatabaseId>,
    /// Its tables, by name, with the number of rows.
    pub tables: Vec<(String, u64)>,
}

impl Summary {
    /// Rows in all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|(_, rows)| rows).sum()
    }
}

/// Shows `each` the stored rows of a table, by name of the table, until it fails.
pub(crate) fn rows(
    transaction: &ReadTransaction,
    table: &str,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let open = guarded(|| transaction.open_table(definition_of(table)))?;
    let mut range = guarded(|| ReadableTable::range::<&[u8]>(&open, ..))?;
    while let Some(row) = guarded(|| range.next().transpose())? {
        guarded(|| each(row.0.value(), row.1.value()))?;
    }
    Ok(())
}

/// Names of the tables of rows.
pub(crate) fn tables(transaction: &ReadTransaction) -> Result<Vec<String>, String> {
    let mut names: Vec<_> = guarded(|| transaction.list_tables())?
        .map(|table| table.name().to_owned())
        .filter(|name| name != META_NAME)
        .collect();
    names.sort();
    Ok(names)
}

/// Opens a copy in memory of what is stored.
pub(crate) fn open_copy(storage: &Shared) -> Result<Database, String> {
    let layer = Layer::over(storage.clone()).map_err(|error| error.to_string())?;
    if redb::StorageBackend::len(storage).is_ok_and(|length| length == 0) {
        return Err("the file is empty".to_owned());
    }
    guarded(|| Database::builder().create_with_backend(layer))
}

/// Verifies all that is stored.
///
/// # Errors
/// A sentence about the first fault.
pub(crate) fn verify(storage: &Shared) -> Result<Summary, String> {
    // Closing it can panic, too.
    guarded(|| verify_all(storage))
}

fn verify_all(storage: &Shared) -> Result<Summary, String> {
    let mut database = open_copy(storage)?;
    if !guarded(|| database.check_integrity())? {
        return Err("its pages do not match their checksums".to_owned());
    }
    let (format, revision, id) = match guarded(|| stored(&database))? {
        Some(found) => found,
        None => return Err("it does not say which form it has".to_owned()),
    };
    let transaction = guarded(|| database.begin_read())?;
    let mut summary = Summary {
        format,
        revision,
        id,
        tables: Vec::new(),
    };
    if format > FORMAT_VERSION {
        return Ok(summary);
    }
    for table in tables(&transaction)? {
        let mut count = 0;
        rows(&transaction, &table, |key, value| {
            count += 1;
            match format {
                FORMAT_VERSION => sealed::open(&table, key, value)
                    .map(drop)
                    .map_err(|reason| format!("a row of table {table}: {reason}")),
                _ => Ok(()),
            }
        })?;
        summary.tables.push((table, count));
    }
    Ok(summary)
}
