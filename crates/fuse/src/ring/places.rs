//! Places of those who wait for another program.
//!
//! A program that waits for a lock keeps an entry of its processor's queue for as long as another program likes. Would
//! such have all of them, that other one's unlock, or its `close(2)`, waited in the kernel for an entry: for ever. So
//! they have half of a queue's, and whoever comes then is refused.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

thread_local! {
    /// Of the queue whose thread this is.
    static HERE: RefCell<Option<Arc<Places>>> = const { RefCell::new(None) };
}

/// The places of one queue.
#[derive(Debug)]
pub(super) struct Places(AtomicUsize);

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self(AtomicUsize::new(count))
    }

    /// Whose requests this thread dispatches from now on.
    pub(super) fn are_here(self: &Arc<Self>) {
        HERE.set(Some(self.clone()));
    }

    fn take(self: &Arc<Self>) -> Option<Place> {
        let less = |free: usize| free.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.ok().map(|_| Place(Some(self.clone())))
    }
}

/// One of them, as long as it is kept.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Places>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = &self.0 {
            places.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A place for the request that this thread dispatches; `None`: all are taken. What came through the device needs none,
/// and always gets one.
pub(crate) fn place() -> Option<Place> {
    static SAID: Once = Once::new();
    let place = HERE.with_borrow(|here| match here {
        Some(places) => places.take(),
        None => Some(Place(None)),
    });
    if place.is_none() {
        SAID.call_once(|| {
            tracing::warn!(
                "so many programs of one processor wait for locks that others are told ENOLCK; \
                 --io-uring never has no such limit"
            );
        });
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_wait_and_no_more() {
        let places = Arc::new(Places::new(2));
        std::thread::spawn(move || {
            places.are_here();
            let (first, second) = (place(), place());
            assert!(first.is_some() && second.is_some());
            assert!(place().is_none());
            // Whoever has waited goes elsewhere, as a rule.
            std::thread::spawn(move || drop(first)).join().expect("end");
            let third = place();
            assert!(third.is_some() && place().is_none());
        })
        .join()
        .expect("end");
    }

    #[test]
    fn through_the_device_all_may_wait() {
        let all: Vec<_> = (0..1_000).map(|_| place()).collect();
        assert!(all.iter().all(Option::is_some));
    }
}
