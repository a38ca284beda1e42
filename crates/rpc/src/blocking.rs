//! Blocking work: disk accesses and long computations.

use std::panic::resume_unwind;

/// Runs `work` on the shard's pool of threads for blocking work, and waits for its result without
/// blocking the shard.
///
/// The pool is bounded ([`crate::RuntimeConfig::blocking_threads`]); further work waits in order.
/// Admission control bounds the number of calls that can wait there. Started work is completed even
/// if its future is dropped.
///
/// # Panics
/// If `work` panics (which ends only its own call), and outside of an event loop.
pub async fn blocking<T, F>(work: F) -> T
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    begin_blocking(work).await
}

/// Like [`blocking`], but starts at once instead of at the first poll.
///
/// # Panics
/// Like [`blocking`].
pub fn begin_blocking<T, F>(work: F) -> impl Future<Output = T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let begun = tokio::task::spawn_blocking(work);
    async move {
        match begun.await {
            Ok(result) => result,
            Err(failure) => match failure.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Only at shutdown, when the result has no receiver. The wait ends with the task.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
