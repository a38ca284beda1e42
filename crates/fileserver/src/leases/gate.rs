//! A gate that waits for all work that has begun, without a lock that the work would wait for.
//!
//! Work is counted in one of two columns, with a stripe for each thread. To wait for all earlier
//! work, a task switches to the other column, and then waits until the first one is empty. Work may
//! read the column before the switch and count itself after it. It notices this and begins again.
//! So no work is counted in a column for which no task waits any longer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::stripe;

/// The number of stripes for threads.
const STRIPES: usize = 16;
/// How often the columns are polled.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Counts work.
#[derive(Default)]
pub(super) struct Gate {
    column: AtomicUsize,
    stripes: [Stripe; STRIPES],
    /// Held by the waiting task, so that the column is not switched back in the meantime.
    waiting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe([AtomicUsize; 2]);

/// Work that has begun; it ends when this is dropped.
pub(crate) struct GateGuard<'a>(&'a AtomicUsize);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    /// Begins a piece of work.
    pub(super) fn enter(&self) -> GateGuard<'_> {
        let stripe = &self.stripes[stripe::of_this_thread(STRIPES)];
        loop {
            let column = self.column.load(Ordering::SeqCst);
            let inside = &stripe.0[column % 2];
            inside.fetch_add(1, Ordering::SeqCst);
            let inside = GateGuard(inside);
            if self.column.load(Ordering::SeqCst) == column {
                return inside;
            }
        }
    }

    /// Waits until all work that began before has ended.
    pub(super) async fn passed(&self) {
        let _waiting = self.waiting.lock().await;
        let column = self.column.load(Ordering::SeqCst) % 2;
        // Work left in the other column by a waiter that gave up.
        self.empty(1 - column).await;
        self.column.fetch_add(1, Ordering::SeqCst);
        self.empty(column).await;
    }

    async fn empty(&self, column: usize) {
        let of = |stripe: &Stripe| stripe.0[column].load(Ordering::SeqCst);
        while self.stripes.iter().any(|stripe| of(stripe) > 0) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn earlier_requests_are_awaited_and_later_ones_are_not() {
        let gate = Gate::default();
        gate.passed().await;
        let before = gate.enter();
        let second = Duration::from_secs(1);
        assert!(timeout(second, gate.passed()).await.is_err());
        // The waiter that gave up has switched the column, so the next one waits for both.
        assert!(timeout(second, gate.passed()).await.is_err());
        let later = gate.enter();
        assert!(timeout(second, gate.passed()).await.is_err());
        drop(before);
        assert!(timeout(second, gate.passed()).await.is_err());
        drop(later);
        timeout(second, gate.passed()).await.unwrap();
        let waits = async {
            let inside = gate.enter();
            tokio::time::sleep(second / 2).await;
            let later = gate.enter();
            drop(inside);
            later
        };
        let passed = timeout(second, gate.passed());
        let (later, passed) = tokio::join!(waits, passed);
        passed.unwrap();
        drop(later);
    }

    #[test]
    fn threads_that_come_and_go_are_all_seen() {
        let gate = Gate::default();
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while stop.load(Ordering::SeqCst) == 0 {
                        let _inside = gate.enter();
                        begun.fetch_add(1, Ordering::SeqCst);
                        std::hint::spin_loop();
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            runtime.block_on(async {
                for _ in 0..200 {
                    let before = begun.load(Ordering::SeqCst);
                    timeout(Duration::from_secs(10), gate.passed())
                        .await
                        .unwrap();
                    // Of the work begun since, at most three pieces may have ended in place of
                    // earlier ones.
                    let after = begun.load(Ordering::SeqCst);
                    let under_way = after - ended.load(Ordering::SeqCst).min(after);
                    assert!(under_way <= 3 && after >= before);
                }
            });
            stop.store(1, Ordering::SeqCst);
        });
        let counts = gate.stripes.iter().flat_map(|stripe| &stripe.0);
        assert!(
            counts
                .map(|count| count.load(Ordering::SeqCst))
                .all(|count| count == 0)
        );
    }
}
