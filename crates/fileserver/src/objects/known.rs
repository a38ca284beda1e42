//! Whether this server knows the cell's devices and policies yet.
//!
//! 1. After a start it knows neither: a file that a policy sends to devices must not lie on the
//!    local disk because of that. Its store waits for [`STATES_PATIENCE`]; then the client is told
//!    to come again (VBUSY), and from [`STATES_DEADLINE`] after the start on that it failed (EIO).
//! 2. Volumes without a policy wait for nothing.
//! 3. What was known once counts until something newer is heard, however long the database is
//!    away.
//! 4. A cell whose database has no object storage has no devices and no policies: that is known
//!    too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::AbortCode;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::abort_map::Refusal;
use crate::limits::{STATES_DEADLINE, STATES_INTERVAL, STATES_PATIENCE};

/// What has been heard since the start.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Object storage is used, or will be in a moment.
    expected: AtomicBool,
    devices: AtomicBool,
    policies: AtomicBool,
    since: Mutex<Option<Instant>>,
    heard: Notify,
}

impl Known {
    /// From now on stores under a policy wait for what is not known.
    pub(crate) fn expect(&self) {
        self.expected.store(true, Ordering::Release);
        self.since.lock().get_or_insert_with(Instant::now);
    }

    /// Whether object storage is used.
    pub(crate) fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Acquire)
    }

    /// The list of devices is there.
    pub(crate) fn has_devices(&self) {
        self.devices.store(true, Ordering::Release);
        self.heard.notify_waiters();
    }

    /// The policies are there.
    pub(crate) fn has_policies(&self) {
        self.policies.store(true, Ordering::Release);
        self.heard.notify_waiters();
    }

    /// How long to wait before the list or the policies are asked for again; `usual` when all is
    /// known.
    pub(crate) fn pause(&self, usual: Duration) -> Duration {
        match self.is_all() {
            true => usual,
            false => STATES_INTERVAL.min(usual),
        }
    }

    fn is_all(&self) -> bool {
        self.devices.load(Ordering::Acquire) && self.policies.load(Ordering::Acquire)
    }

    /// That a file can be placed.
    ///
    /// # Errors
    /// [`Refusal::NotKnownYet`], for which [`when_known`] waits; EIO when that has lasted too
    /// long.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.is_expected() || self.is_all() {
            return Ok(());
        }
        let since = *self.since.lock();
        match since.is_some_and(|since| since.elapsed() >= STATES_DEADLINE) {
            true => Err(Refusal::Objects(AbortCode::EIO)),
            false => Err(Refusal::NotKnownYet),
        }
    }

    async fn wait(&self) {
        let deadline = Instant::now() + STATES_PATIENCE;
        loop {
            let heard = self.heard.notified();
            if self.is_all() || timeout_at(deadline, heard).await.is_err() {
                return;
            }
        }
    }
}

/// Tries; where it is not known yet what is needed, waits for it and tries once more.
pub(crate) async fn when_known<T>(
    known: &Known,
    attempt: impl AsyncFn() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    match attempt().await {
        Err(Refusal::NotKnownYet) => {}
        outcome => return outcome,
    }
    known.wait().await;
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

    fn code(known: &Known) -> i32 {
        known
            .check()
            .map_or_else(|refusal| refusal.code(false).0, |()| 0)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_known_is_waited_for_then_busy_then_a_failure() {
        let known = Known::default();
        assert_eq!(code(&known), 0, "a server without object storage");
        known.expect();
        let begun = Instant::now();
        let attempt = async || known.check();
        let told = when_known(&known, attempt).await;
        assert_eq!(told.unwrap_err().code(false), AbortCode::VBUSY);
        assert_eq!(begun.elapsed(), STATES_PATIENCE);
        known.has_devices();
        let waits = when_known(&known, async || known.check());
        let heard = async {
            tokio::time::sleep(STATES_PATIENCE / 2).await;
            known.has_policies();
        };
        let (told, ()) = tokio::join!(waits, heard);
        told.unwrap();
        assert_eq!(begun.elapsed(), STATES_PATIENCE + STATES_PATIENCE / 2);
        // What was known once is known.
        tokio::time::advance(STATES_DEADLINE).await;
        assert_eq!(code(&known), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_never_answers_is_an_error_in_the_end() {
        let known = Known::default();
        known.expect();
        tokio::time::advance(STATES_DEADLINE - Duration::from_secs(1)).await;
        assert_eq!(code(&known), AbortCode::VBUSY.0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(code(&known), AbortCode::EIO.0);
    }
}
