//! Work that blocks: disks, and long computations.

use std::panic::resume_unwind;

/// Runs `work` on the shard's pool of threads for blocking work and waits for its result without
/// holding the shard.
///
/// The pool is bounded ([`crate::RuntimeConfig::blocking_threads`]); work beyond that waits in
/// order. Admission control bounds how many calls can be waiting there. Work that has begun is
/// finished even when nobody waits for it any more.
///
/// # Panics
/// When `work` panics (which ends only the call it was for), and outside of an event loop.
pub async fn blocking<T, F>(work: F) -> T
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    begin_blocking(work).await
}

/// [`blocking`] that begins now, not when its result is first asked for.
///
/// # Panics
/// As there.
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
                // Only at shutdown: nobody is left to hear of it. Waiting ends with the task.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
