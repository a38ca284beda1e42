//! How far the calls are that move data of a transaction: what `vos status` shows of it; and how they
//! are stopped.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Data in a packet of Rx without extensions.
const PACKET_BYTES: u64 = 1412;

/// Packets of the calls that move a transaction's data, and when the last one was moved. Packets are
/// those that Rx would fill with the bytes that were moved; one more, the next, is what is shown.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    received: AtomicU32,
    sent: AtomicU32,
    /// Either way: what one side sends the other acknowledges.
    last: AtomicU32,
    stopped: AtomicBool,
    stop: Notify,
}

impl Progress {
    /// Of calls of which the first has just come.
    pub(super) fn new(now: u32) -> Self {
        Self {
            last: AtomicU32::new(now),
            ..Self::default()
        }
    }

    /// Somebody has ended the transaction: its calls give up.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify_waiters();
    }

    /// Whether the calls have to give up.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until the calls have to give up.
    pub(super) async fn stopped(&self) {
        let told = self.stop.notified();
        if !self.is_stopped() {
            told.await;
        }
    }

    /// Bytes have come, at `now` in seconds since 1970.
    pub(super) fn received(&self, bytes: usize, now: u32) {
        self.moved(&self.received, bytes, now);
    }

    /// Bytes were sent, at `now` in seconds since 1970.
    pub(super) fn sent(&self, bytes: usize, now: u32) {
        self.moved(&self.sent, bytes, now);
    }

    fn moved(&self, direction: &AtomicU32, bytes: usize, now: u32) {
        let packets = (bytes as u64).div_ceil(PACKET_BYTES) as u32;
        // Numbers of packets have 32 bits and start again.
        direction.fetch_add(packets, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }

    /// The next packet to read, the next to send, and when one was last moved.
    pub(super) fn shown(&self) -> (i32, i32, i32) {
        let next = |direction: &AtomicU32| direction.load(Ordering::Relaxed).wrapping_add(1) as i32;
        let last = self.last.load(Ordering::Relaxed) as i32;
        (next(&self.received), next(&self.sent), last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_from_one() {
        let progress = Progress::new(5);
        assert_eq!(progress.shown(), (1, 1, 5));
        progress.sent(1413, 7);
        assert_eq!(progress.shown(), (1, 3, 7));
        progress.received(1412, 8);
        assert_eq!(progress.shown(), (2, 3, 8));
    }
}
