//! Work that may have to wait for the disk.

use cellar_rpc::blocking;
use cellar_volume::{Error, nonblocking};

use super::failure::Failure;

/// Runs `work` on this thread if it does not have to wait, and otherwise on a thread of the pool.
/// `work` may start twice.
pub(super) async fn run_apart<T, F>(work: F) -> Result<T, Failure>
where
    F: Fn() -> Result<T, Failure> + Send + 'static,
    T: Send + 'static,
{
    match nonblocking(|| Ok(work())) {
        Ok(Err(Failure::Volume(Error::WouldBlock))) => blocking(work).await,
        Ok(answer) => answer,
        Err(error) => Err(error.into()),
    }
}
