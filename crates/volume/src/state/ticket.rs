//! Tickets, which resolve when a change is durable, and the mode in which nothing may wait.
//!
//! All changes that reach the journal with one sync share one `Flight`; a [`Ticket`] is a reference
//! to it. A ticket can be awaited (it is a future, independent of the runtime) or waited for on a
//! thread. Dropping a ticket changes nothing: the change becomes durable all the same.
//!
//! When a flight ends, it wakes one task on each thread that has waiting tasks. That task wakes the
//! others of its thread. Waking a task from another thread costs a lock and a system call. Also, an
//! event loop whose tasks are woken one by one sends their replies one by one, instead of the
//! replies of a group together. If a woken ticket is dropped before it has woken the others, its
//! drop does that.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Resolves when a change is durable, or with the reason why it may not be.
///
/// An error means that the partition has stopped accepting writes. Then it is unknown whether the
/// change survives a crash; it survives either completely or not at all.
///
/// A ticket that was polled must be polled again after its wake-up, or dropped: others on its
/// thread may wait for that.
#[derive(Debug)]
pub struct Ticket {
    kind: Kind,
    /// Its index among the flight's waiters, once it was polled.
    place: Option<usize>,
}

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
    /// The waiters, each with its thread; `None` once woken or dropped.
    waiters: Vec<(ThreadId, Option<Waker>)>,
    sleepers: usize,
}

impl Flight {
    /// Ends the flight: every ticket resolves to `result`.
    pub(crate) fn resolve(&self, result: Result<()>) {
        let mut first: Vec<(ThreadId, Waker)> = Vec::new();
        {
            let mut inner = self.inner.lock();
            inner.result = Some(result);
            self.landed.store(true, Ordering::Release);
            if inner.sleepers > 0 {
                self.condvar.notify_all();
            }
            for (thread, waker) in &mut inner.waiters {
                if !first.iter().any(|(known, _)| known == thread)
                    && let Some(waker) = waker.take()
                {
                    first.push((*thread, waker));
                }
            }
        }
        for (_, waker) in first {
            waker.wake();
        }
    }

    /// After the end of the flight, wakes the waiters on the thread of the ticket at `place`.
    fn wake_others(&self, place: usize) {
        let others: Vec<Waker> = {
            let mut inner = self.inner.lock();
            let thread = inner.waiters[place].0;
            let of_thread = |waiter: &&mut (ThreadId, Option<Waker>)| waiter.0 == thread;
            let waiters = inner.waiters.iter_mut().filter(of_thread);
            waiters.filter_map(|(_, waker)| waker.take()).collect()
        };
        for waker in others {
            waker.wake();
        }
    }
}

impl Ticket {
    /// A ticket that is ready.
    pub fn ready() -> Self {
        Self {
            kind: Kind::Ready,
            place: None,
        }
    }

    pub(crate) fn of(flight: Arc<Flight>) -> Self {
        Self {
            kind: Kind::Flight(flight),
            place: None,
        }
    }

    /// Returns whether a wait would return at once.
    pub fn is_ready(&self) -> bool {
        match &self.kind {
            Kind::Ready => true,
            Kind::Flight(flight) => flight.landed.load(Ordering::Acquire),
        }
    }

    /// Blocks this thread until the change is durable.
    pub fn wait(&self) -> Result<()> {
        let Kind::Flight(flight) = &self.kind else {
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

impl Clone for Ticket {
    fn clone(&self) -> Self {
        Self {
            kind: self.kind.clone(),
            place: None,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (Kind::Flight(flight), Some(place)) = (&self.kind, self.place) else {
            return;
        };
        let landed = {
            let mut inner = flight.inner.lock();
            inner.waiters[place].1 = None;
            inner.result.is_some()
        };
        if landed {
            flight.wake_others(place);
        }
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let Kind::Flight(flight) = &this.kind else {
            return Poll::Ready(Ok(()));
        };
        let mut inner = flight.inner.lock();
        if let Some(result) = &inner.result {
            let result = result.clone();
            drop(inner);
            if let Some(place) = this.place.take() {
                flight.wake_others(place);
            }
            return Poll::Ready(result);
        }
        let waker = context.waker();
        let place = *this.place.get_or_insert_with(|| {
            inner.waiters.push((std::thread::current().id(), None));
            inner.waiters.len() - 1
        });
        match &mut inner.waiters[place].1 {
            Some(known) if known.will_wake(waker) => {}
            slot => *slot = Some(waker.clone()),
        }
        Poll::Pending
    }
}

/// How long work in `nonblocking` still waits for the lock of a vnode. A change in memory holds the
/// lock for some 15 microseconds. Passing the work to another thread and back costs more than that,
/// and many clients that make files in one directory would all do it.
pub(crate) const PATIENCE: Duration = Duration::from_micros(50);

thread_local! {
    static NONBLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` so that nothing in it waits for the disk, or more than 50 microseconds for a lock.
/// An operation that would have to wait returns [`Error::WouldBlock`] instead, before it has
/// changed anything.
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

/// Returns `WouldBlock` if this thread must not wait.
pub(crate) fn may_block() -> Result<()> {
    if NONBLOCKING.get() {
        Err(Error::WouldBlock)
    } else {
        Ok(())
    }
}

/// Returns whether this thread must not wait.
pub(crate) fn is_nonblocking() -> bool {
    NONBLOCKING.get()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiter {
        ticket: Option<Ticket>,
        woken: Arc<Count>,
    }

    impl Waiter {
        fn of(flight: &Arc<Flight>) -> Self {
            let mut waiter = Self {
                ticket: Some(Ticket::of(Arc::clone(flight))),
                woken: Arc::default(),
            };
            assert_eq!(waiter.poll(), Poll::Pending);
            waiter
        }

        fn poll(&mut self) -> Poll<Result<()>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            let ticket = self.ticket.as_mut().unwrap();
            Pin::new(ticket).poll(&mut Context::from_waker(&waker))
        }

        fn wakes(&self) -> usize {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    fn wakes(waiters: &[Waiter]) -> Vec<usize> {
        waiters.iter().map(Waiter::wakes).collect()
    }

    #[test]
    fn one_of_a_thread_is_woken_and_wakes_the_others() {
        let flight: Arc<Flight> = Arc::default();
        let mut here: Vec<_> = (0..3).map(|_| Waiter::of(&flight)).collect();
        let there = std::thread::scope(|scope| {
            let made = || (0..2).map(|_| Waiter::of(&flight)).collect::<Vec<_>>();
            scope.spawn(made).join().unwrap()
        });
        flight.resolve(Ok(()));
        assert_eq!(wakes(&here), [1, 0, 0]);
        assert_eq!(wakes(&there), [1, 0]);
        assert_eq!(here[0].poll(), Poll::Ready(Ok(())));
        assert_eq!(wakes(&here), [1, 1, 1]);
        assert_eq!(wakes(&there), [1, 0]);
        assert_eq!(here[2].poll(), Poll::Ready(Ok(())));
        drop(there);
        assert_eq!(wakes(&here), [1, 1, 1]);
    }

    #[test]
    fn a_dropped_ticket_keeps_no_thread_waiting() {
        let flight: Arc<Flight> = Arc::default();
        let mut waiters: Vec<_> = (0..4).map(|_| Waiter::of(&flight)).collect();
        // Dropped before the end of the flight: the next ticket is the first.
        waiters[0].ticket = None;
        flight.resolve(Ok(()));
        assert_eq!(wakes(&waiters), [0, 1, 0, 0]);
        // Dropped after it, woken and not polled: the drop wakes the others.
        waiters[1].ticket = None;
        assert_eq!(wakes(&waiters), [0, 1, 1, 1]);
        let mut late = Ticket::of(Arc::clone(&flight));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut late).poll(&mut context), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_flight_that_failed_tells_everybody_why() {
        let flight: Arc<Flight> = Arc::default();
        let mut waiters: Vec<_> = (0..2).map(|_| Waiter::of(&flight)).collect();
        let failed = Err(Error::Stopped("no disk".into()));
        flight.resolve(failed.clone());
        for waiter in &mut waiters {
            assert_eq!(waiter.poll(), Poll::Ready(failed.clone()));
            assert_eq!(waiter.wakes(), 1);
        }
    }
}
