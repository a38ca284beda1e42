//! redb panics on some damaged pages. Every call of it goes through here, so that a panic is an
//! error.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `work`; `Err` with a reason if it fails or panics. The process's panic hook has logged it
/// then.
pub(crate) fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a page of the file is damaged".to_owned()),
    }
}
