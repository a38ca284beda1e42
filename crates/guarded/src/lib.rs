//! Turns a panic of a library into an error.
//!
//! redb, the library of the tables, panics on some damaged pages. A panic in [`guarded`] is caught,
//! and its message becomes the error. The caller reports that error, so the process's panic hook
//! stays silent while [`is_guarded`] holds. One page can panic many times: redb keeps damaged pages
//! in its cache, and a scrub meets them hundreds of times.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// The number of calls of [`guarded`] in which this thread is.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether a panic of this thread would be caught by [`guarded`] and reported by its
/// caller.
#[must_use]
pub fn is_guarded() -> bool {
    DEPTH.get() > 0
}

/// Does `work`.
///
/// # Errors
/// The message of the panic, if `work` panics. Values that `work` has changed may then be
/// inconsistent: the caller must close the table, or use it for reads only.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|payload| message(payload.as_ref()))
}

/// Returns the message of a panic in one line: the message of an assertion has several.
#[must_use]
pub fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let escaped = text.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    escaped.collect()
}

/// For tests: counts, from now on, the panics in files whose path contains `library`, apart from
/// panics in [`guarded`]. It also silences those in [`guarded`], as the program does.
#[must_use]
pub fn count_unguarded(library: &'static str) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if is_guarded() {
            return;
        }
        let is_counted = panic
            .location()
            .is_some_and(|at| at.file().contains(library));
        counted.fetch_add(usize::from(is_counted), Ordering::Relaxed);
        next(panic);
    }));
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(guarded(is_guarded), Ok(true));
        assert_eq!(
            guarded(|| panic!("page {}", 7)),
            Err::<(), _>("page 7".into())
        );
        let inner = guarded(|| {
            let inner = guarded(|| panic!("inner"));
            (inner, is_guarded())
        });
        assert_eq!(inner, Ok((Err::<(), _>("inner".into()), true)));
        assert!(!is_guarded());
    }
}
