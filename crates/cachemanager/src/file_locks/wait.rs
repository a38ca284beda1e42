//! Waits for locks. A program that waits for a lock asks again every [`ASK_TIME`], and at once when
//! a lock is released on this machine. It gives up at a signal, also while a server is asked.
//!
//! Each attempt is a task of its own. Program and task race for one decision:
//!
//! | decision | taken by | consequence |
//! | --- | --- | --- |
//! | granted | the task, when the server has granted the lock | the program awaits the result |
//! | refused | the task, before it releases the lock to upgrade | the program awaits the release |
//! | given up | the program, at a signal | `EINTR` at once; the task releases a later lock |
//!
//! An attempt can take seconds: OpenAFS's servers delay refusals by 3 s if a client gets more than
//! ten in a row (`rx_SetCallAbortThreshold`; observed with 1.8.9).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_client::errno::errno;
use cellar_client::error::{Error, Result};
use cellar_wire::abort::AbortCode;
use tokio::task::JoinError;

use super::lock_table::Lock;
use super::{EAGAIN, FileLocks};
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;

/// The interval at which a program that waits for a lock asks again.
const ASK_TIME: Duration = Duration::from_millis(500);
const EINTR: i32 = 4;

/// The decision of one attempt: the first of the two sides takes it.
#[derive(Clone, Debug, Default)]
struct Decision(Arc<AtomicBool>);

impl Decision {
    /// Whether the caller is the first.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// The error of a program that gave up.
pub(super) fn interrupted() -> Error {
    refused("waiting for a lock", AbortCode::from_errno(EINTR))
}

/// The result of an attempt. An attempt is never aborted, so its task can only fail by a panic.
fn finished(outcome: std::result::Result<Result<()>, JoinError>) -> Result<()> {
    outcome.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

impl FileLocks {
    /// Sets a lock as soon as no other lock conflicts. The wait ends when `gave_up` is done, unless
    /// the server has just granted the lock.
    ///
    /// # Errors
    /// As [`FileLocks::set_lock`]; `EINTR`: the program gave up.
    pub async fn wait_for_lock(
        self: &Arc<Self>,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
        gave_up: impl Future<Output = ()>,
    ) -> Result<()> {
        let mut gave_up = std::pin::pin!(gave_up);
        loop {
            let mut freed = std::pin::pin!(vnode.locks.freed.notified());
            freed.as_mut().enable();
            let decision = Decision::default();
            let mut attempt = {
                let (locks, user, vnode) = (self.clone(), user.clone(), vnode.clone());
                let decision = decision.clone();
                tokio::spawn(async move {
                    let is_wanted = || decision.take();
                    locks.set_lock_if(&user, &vnode, lock, is_wanted).await
                })
            };
            let outcome = tokio::select! {
                biased;
                () = &mut gave_up => {
                    return match decision.take() {
                        true => Err(interrupted()),
                        false => match finished(attempt.await) {
                            Err(error) if errno(&error) == EAGAIN => Err(interrupted()),
                            other => other,
                        },
                    };
                }
                outcome = &mut attempt => finished(outcome),
            };
            match outcome {
                Err(error) if errno(&error) == EAGAIN => {}
                other => return other,
            }
            tokio::select! {
                biased;
                () = &mut gave_up => return Err(interrupted()),
                _ = tokio::time::timeout(ASK_TIME, freed) => {}
            }
        }
    }
}
