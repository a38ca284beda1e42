//! Whether this server knows the cell's devices and policies yet.
//!
//! 1. After a start it knows neither. A file that a policy sends to devices must not go to the
//!    local disk for that reason. Its store waits for [`STATES_PATIENCE`]. After that the client
//!    must retry (VBUSY); from [`STATES_DEADLINE`] after the start, the store fails (EIO).
//! 2. Volumes without a policy do not wait.
//! 3. A list that was loaded once is used until a newer one arrives, however long the database is
//!    away.
//! 4. A cell whose database has no object storage has no devices and no policies. That also counts
//!    as known.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::AbortCode;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Objects;
use super::failure::Failure;
use super::limits::{STATES_DEADLINE, STATES_INTERVAL, STATES_PATIENCE};

/// The lists that were loaded since the start.
#[derive(Debug, Default)]
pub(crate) struct LoadedLists {
    /// Object storage is used, or will be soon.
    expected: AtomicBool,
    devices: AtomicBool,
    policies: AtomicBool,
    since: Mutex<Option<Instant>>,
    loaded: Notify,
}

impl LoadedLists {
    /// Makes stores under a policy wait, from now on, until devices and policies are known.
    pub(crate) fn expect(&self) {
        self.expected.store(true, Ordering::Release);
        self.since.lock().get_or_insert_with(Instant::now);
    }

    /// Whether object storage is used.
    pub(crate) fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Acquire)
    }

    /// Notes that the list of devices was loaded.
    pub(crate) fn note_devices(&self) {
        self.devices.store(true, Ordering::Release);
        self.loaded.notify_waiters();
    }

    /// Notes that the policies were loaded.
    pub(crate) fn note_policies(&self) {
        self.policies.store(true, Ordering::Release);
        self.loaded.notify_waiters();
    }

    /// The time before the list or the policies are loaded again; `usual` if both are known.
    pub(crate) fn pause(&self, usual: Duration) -> Duration {
        match self.is_complete() {
            true => usual,
            false => STATES_INTERVAL.min(usual),
        }
    }

    /// Whether devices and policies are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.devices.load(Ordering::Acquire) && self.policies.load(Ordering::Acquire)
    }

    /// Checks that devices and policies are known, so that a file can be placed.
    ///
    /// # Errors
    /// [`Failure::NotKnownYet`], for which [`Objects::when_loaded`] waits. EIO if that has lasted
    /// too long.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.is_expected() || self.is_complete() {
            return Ok(());
        }
        let since = *self.since.lock();
        match since.is_some_and(|since| since.elapsed() >= STATES_DEADLINE) {
            true => Err(Failure::Devices(AbortCode::EIO)),
            false => Err(Failure::NotKnownYet),
        }
    }

    async fn wait(&self) {
        let deadline = Instant::now() + STATES_PATIENCE;
        loop {
            let loaded = self.loaded.notified();
            if self.is_complete() || timeout_at(deadline, loaded).await.is_err() {
                return;
            }
        }
    }
}

impl Objects {
    /// Makes an attempt. If devices or policies are not known yet, waits for them and tries once
    /// more. `is_not_known` recognises [`Failure::NotKnownYet`] in the errors of the attempt.
    pub async fn when_loaded<T, E>(
        &self,
        is_not_known: fn(&E) -> bool,
        attempt: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        retry_when_loaded(&self.loaded_lists, is_not_known, attempt).await
    }
}

async fn retry_when_loaded<T, E>(
    lists: &LoadedLists,
    is_not_known: fn(&E) -> bool,
    attempt: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    match attempt().await {
        Err(error) if is_not_known(&error) => {}
        outcome => return outcome,
    }
    lists.wait().await;
    attempt().await
}

/// Whether a database answered that it has no object storage at all.
pub(crate) fn has_none(cause: &CallError) -> bool {
    matches!(
        cause,
        CallError::Aborted(AbortCode::RXGEN_OPCODE | AbortCode::RX_INVALID_OPERATION)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_not_known(failure: &Failure) -> bool {
        matches!(failure, Failure::NotKnownYet)
    }

    fn is_busy(lists: &LoadedLists) -> bool {
        lists.check().is_err_and(|failure| is_not_known(&failure))
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_devices_cause_a_wait_then_busy_then_a_failure() {
        let lists = LoadedLists::default();
        assert!(lists.check().is_ok(), "a server without object storage");
        lists.expect();
        let begun = Instant::now();
        let attempt = async || lists.check();
        let outcome = retry_when_loaded(&lists, is_not_known, attempt).await;
        assert!(is_not_known(&outcome.unwrap_err()));
        assert_eq!(begun.elapsed(), STATES_PATIENCE);
        lists.note_devices();
        let waits = retry_when_loaded(&lists, is_not_known, async || lists.check());
        let loaded = async {
            tokio::time::sleep(STATES_PATIENCE / 2).await;
            lists.note_policies();
        };
        let (outcome, ()) = tokio::join!(waits, loaded);
        outcome.unwrap();
        assert_eq!(begun.elapsed(), STATES_PATIENCE + STATES_PATIENCE / 2);
        // Known lists stay known.
        tokio::time::advance(STATES_DEADLINE).await;
        assert!(lists.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_never_answers_is_an_error_in_the_end() {
        let lists = LoadedLists::default();
        lists.expect();
        tokio::time::advance(STATES_DEADLINE - Duration::from_secs(1)).await;
        assert!(is_busy(&lists));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(
            lists.check(),
            Err(Failure::Devices(AbortCode::EIO))
        ));
    }
}
