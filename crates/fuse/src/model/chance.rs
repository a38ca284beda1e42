//! Random numbers from a seed.

use std::time::Duration;

use parking_lot::Mutex;

/// The numbers of a seed (splitmix64).
#[derive(Debug)]
pub(super) struct Chance(Mutex<u64>);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// A number from `0..count`.
    pub(super) fn below(&self, count: u64) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % count.max(1)
    }

    /// The duration of a delay.
    fn delay(&self) -> Duration {
        match self.below(4) {
            0 => Duration::from_micros(self.below(3_000)),
            _ => Duration::ZERO,
        }
    }

    pub(super) async fn pause(&self) {
        let delay = self.delay();
        if delay.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
    }

    pub(super) fn pause_thread(&self) {
        let delay = self.delay();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}
