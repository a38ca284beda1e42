//! The stores of one file: whose they are, how the last one ended, and whose turn it is.
//!
//! [`StoreState`] is part of the state of a vnode. [`StoreTurn`] is outside of its lock, because
//! tasks hold it during calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_client::store::Unanswered;
use cellar_wire::abort::AbortCode;
use tokio::sync::MutexGuard;

use crate::user::User;

/// The writer, the results and the settings of stores.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    /// The user who wrote last. Stores are made as this user.
    writer: Option<Arc<User>>,
    /// The error of the last store, if it failed (an errno). The store is retried.
    failed: Option<i32>,
    /// The server refused attributes or bytes, for good. The next close or `fsync` returns this
    /// error.
    refused: Option<AbortCode>,
    /// The number of bytes that may stay dirty at close, if the file has a value of its own.
    store_behind: Option<u64>,
}

impl StoreState {
    /// The user who wrote last.
    pub(crate) fn writer(&self) -> Option<&Arc<User>> {
        self.writer.as_ref()
    }

    /// A user has written.
    pub(crate) fn set_writer(&mut self, user: &Arc<User>) {
        self.writer = Some(user.clone());
    }

    /// The error of the last store, if it failed (an errno).
    pub(crate) fn failed(&self) -> Option<i32> {
        self.failed
    }

    /// Notes the result of a store.
    pub(crate) fn set_failed(&mut self, errno: Option<i32>) {
        self.failed = errno;
    }

    /// Whether the next close or `fsync` returns an error.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The server refused attributes or bytes, for good.
    pub(crate) fn set_refused(&mut self, code: Option<AbortCode>) {
        self.refused = code;
    }

    /// Takes the error for the next close or `fsync`.
    pub(crate) fn take_refused(&mut self) -> Option<AbortCode> {
        self.refused.take()
    }

    /// The number of bytes that may stay dirty at close. `None`: the value for all files.
    pub(crate) fn store_behind(&self) -> Option<u64> {
        self.store_behind
    }

    /// Sets that number.
    pub(crate) fn set_store_behind(&mut self, bytes: Option<u64>) {
        self.store_behind = bytes;
    }
}

/// The turns of the stores of one file.
#[derive(Debug, Default)]
pub(crate) struct StoreTurn {
    /// Held during a store; serialises the stores of one file.
    turn: tokio::sync::Mutex<()>,
    /// Stores without an answer. Used by the task that has the turn.
    unanswered: Unanswered,
    /// It is in the queue of files to store (`write_back/queue.rs`).
    is_queued: AtomicBool,
    /// No program waits for the store that is under way.
    is_background: AtomicBool,
    /// A server keeps locks on ranges for us. Other clients may store other bytes while ours are
    /// not stored.
    is_shared: AtomicBool,
}

impl StoreTurn {
    /// Waits for the turn.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether a store is under way.
    pub(crate) fn is_taken(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    /// Stores without an answer. The caller has the turn.
    pub(super) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// Whether it is in the queue.
    pub(super) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Acquire)
    }

    /// Enters the queue. Returns `false` if it was there.
    pub(super) fn enter_queue(&self) -> bool {
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Leaves the queue.
    pub(super) fn leave_queue(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Whether no program waits for the store that is under way.
    pub(super) fn is_background(&self) -> bool {
        self.is_background.load(Ordering::Acquire)
    }

    /// Notes whether a program waits for the next store.
    pub(super) fn set_background(&self, is_background: bool) {
        self.is_background.store(is_background, Ordering::Release);
    }

    /// Whether other clients may store other bytes while ours are not stored.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// Notes whether a server keeps locks on ranges for us.
    pub(crate) fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Release);
    }
}
