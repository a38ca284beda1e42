//! The progress of calls that transfer data of a transaction, as `vos status` shows it, and the
//! request to stop them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Data in a packet of Rx without extensions.
const PACKET_BYTES: u64 = 1412;

/// Packets of the calls that transfer a transaction's data, and the time of the last transfer. The
/// number of packets is computed from the transferred bytes, as Rx would fill them. The number
/// shown is that of the next packet.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    received: AtomicU32,
    sent: AtomicU32,
    /// The last transfer in either direction, because one side acknowledges what the other sends.
    last: AtomicU32,
    stopped: AtomicBool,
    stop: Notify,
}

impl Progress {
    /// The progress at the start of the first call.
    pub(super) fn new(now: u32) -> Self {
        Self {
            last: AtomicU32::new(now),
            ..Self::default()
        }
    }

    /// Makes the calls give up, because the transaction was ended.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify_waiters();
    }

    /// Whether the calls must give up.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until the calls must give up.
    pub(super) async fn stopped(&self) {
        let stopped = self.stop.notified();
        if !self.is_stopped() {
            stopped.await;
        }
    }

    /// Notes that bytes have arrived, at `now` in seconds since 1970.
    pub(super) fn received(&self, bytes: usize, now: u32) {
        self.moved(&self.received, bytes, now);
    }

    /// Notes that bytes were sent, at `now` in seconds since 1970.
    pub(super) fn sent(&self, bytes: usize, now: u32) {
        self.moved(&self.sent, bytes, now);
    }

    fn moved(&self, direction: &AtomicU32, bytes: usize, now: u32) {
        let packets = (bytes as u64).div_ceil(PACKET_BYTES) as u32;
        // Packet numbers have 32 bits and wrap.
        direction.fetch_add(packets, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }

    /// The number of the next packet to read, of the next to send, and the time of the last
    /// transfer.
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
