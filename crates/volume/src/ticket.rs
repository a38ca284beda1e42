//! The promise that a change will be durable, and the wish not to wait.
//!
//! All changes that travel to the journal with one sync share one `Flight`; a [`Ticket`] is a
//! reference to it. It can be awaited (it is a future, of no particular runtime) or waited for on a
//! thread. A dropped ticket changes nothing: the change becomes durable all the same.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Resolves when a change is durable, or with the reason why it may not be.
///
/// An error means that the partition has stopped taking writes; whether the change survives a
/// crash is then unknown (as a whole: never a part of it).
#[derive(Debug, Clone)]
pub struct Ticket(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Ready,
    Flight(Arc<Flight>),
}

/// The state that all tickets of one journal write share.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    landed: AtomicBool,
    inner: Mutex<FlightState>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct FlightState {
    result: Option<Result<()>>,
    wakers: Vec<Waker>,
    sleepers: usize,
}

impl Flight {
    /// Ends the flight: every ticket resolves to `result`.
    pub(crate) fn land(&self, result: Result<()>) {
        let wakers = {
            let mut inner = self.inner.lock();
            inner.result = Some(result);
            self.landed.store(true, Ordering::Release);
            if inner.sleepers > 0 {
                self.condvar.notify_all();
            }
            std::mem::take(&mut inner.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

impl Ticket {
    /// A ticket of something that needs no more waiting.
    pub fn ready() -> Self {
        Self(Kind::Ready)
    }

    pub(crate) fn of(flight: Arc<Flight>) -> Self {
        Self(Kind::Flight(flight))
    }

    /// Whether waiting would return at once.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Kind::Ready => true,
            Kind::Flight(flight) => flight.landed.load(Ordering::Acquire),
        }
    }

    /// Blocks this thread until the change is durable.
    pub fn wait(&self) -> Result<()> {
        let Kind::Flight(flight) = &self.0 else {
            return Ok(());
        };
        let mut inner = flight.inner.lock();
        loop {
            if let Some(result) = &inner.result {
                return result.clone();
            }
            inner.sleepers += 1;
            flight.condvar.wait(&mut inner);
            inner.sleepers -= 1;
        }
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Kind::Flight(flight) = &self.0 else {
            return Poll::Ready(Ok(()));
        };
        let mut inner = flight.inner.lock();
        if let Some(result) = &inner.result {
            return Poll::Ready(result.clone());
        }
        let waker = context.waker();
        if !inner.wakers.iter().any(|known| known.will_wake(waker)) {
            inner.wakers.push(waker.clone());
        }
        Poll::Pending
    }
}

thread_local! {
    static NONBLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` so that nothing in it waits for the disk or for another holder of a lock: what
/// would have to returns [`Error::WouldBlock`] instead, before anything was changed.
///
/// For threads that serve many clients: try inline, and on `WouldBlock` call again from a thread
/// that may wait.
pub fn nonblocking<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            NONBLOCKING.set(self.0);
        }
    }
    let _restore = Restore(NONBLOCKING.replace(true));
    work()
}

/// Refuses to go on where waiting is not allowed.
pub(crate) fn may_block() -> Result<()> {
    if NONBLOCKING.get() {
        Err(Error::WouldBlock)
    } else {
        Ok(())
    }
}

/// Whether this thread may not wait.
pub(crate) fn is_nonblocking() -> bool {
    NONBLOCKING.get()
}
