//! redb panics on some damaged pages. Every call of it goes through here, so that a panic is an
//! error.

use std::fmt::Display;

/// Does `work`; `Err` with a reason if it fails or panics.
pub(crate) fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match cellar_guarded::guarded(work) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("a page of the file is damaged: {panic}")),
    }
}
