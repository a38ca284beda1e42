//! Thread numbers: threads that update the same counters use different stripes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The stripe of this thread, out of `stripes`. Threads get consecutive stripes in the order of
/// their first call.
pub(crate) fn of_this_thread(stripes: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut number = NUMBER.get();
    if number == usize::MAX {
        number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(number);
    }
    number % stripes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_stripe() {
        let stripes = || (0..4).map(|_| of_this_thread(16)).collect::<Vec<_>>();
        let here = stripes();
        assert!(here.iter().all(|stripe| *stripe == here[0] && *stripe < 16));
        let there = std::thread::spawn(stripes).join().unwrap();
        assert!(there.iter().all(|stripe| *stripe == there[0]));
    }
}
