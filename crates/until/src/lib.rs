//! Waits in tests until a condition holds.
//!
//! A test of threads, processes or servers often has no event to await: another thread or program
//! changes the state. These functions look at it until it is as wanted. A wait ends shortly after
//! the change, on any machine, and fails with its name after [`PATIENCE`].
//!
//! A condition that a test awaits to *stay* needs a fixed time. Such a test sleeps by itself.

use std::time::{Duration, Instant};

/// The longest wait for a condition: many times the need of any step on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The pause after the first look. Each further pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// The longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The pauses between the looks of one wait.
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSE_FIRST), |pause| Some((*pause * 2).min(PAUSE_MAX)))
}

/// Waits until `is_so` returns true. With a paused clock, the wait takes no time.
///
/// # Panics
/// The condition does not hold within [`PATIENCE`]. `what` is the name of the condition.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    until_some(what, async || is_so().await.then_some(())).await;
}

/// Waits until `look` returns a value, and returns that value.
///
/// # Panics
/// As [`until`].
pub async fn until_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = tokio::time::Instant::now();
    for pause in pauses() {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(pause).await;
    }
    unreachable!("the pauses have no end")
}

/// As [`until`], for threads without a runtime.
///
/// # Panics
/// As [`until`].
pub fn until_blocking(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some_blocking(what, || is_so().then_some(()));
}

/// As [`until_some`], for threads without a runtime.
///
/// # Panics
/// As [`until`].
pub fn until_some_blocking<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    for pause in pauses() {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(pause);
    }
    unreachable!("the pauses have no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_its_condition() {
        let begun = tokio::time::Instant::now();
        let late = Duration::from_secs(1);
        let found = until_some("a second", async || {
            (begun.elapsed() >= late).then_some(begun.elapsed())
        });
        let found = found.await;
        assert!((late..late + 2 * PAUSE_MAX).contains(&found), "{found:?}");
        until("at once", async || true).await;
        assert!(begun.elapsed() < late + 2 * PAUSE_MAX);
        let mut looks = 0;
        until_blocking("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "never: a condition")]
    async fn a_wait_that_lasts_too_long_fails_with_its_name() {
        until("a condition", async || false).await;
    }
}
