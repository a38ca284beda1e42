//! How far the calls are that move data of a transaction: what `vos status` shows of it; and how they
//! are stopped.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Data in a packet of Rx without extensions.
const PACKET_BYTES: u64 = 1412;

/// Packets and times of the calls that move a transaction's data. Packets are those that Rx would
/// fill with the bytes that were moved; one more, the next, is what is shown.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    received: Direction,
    sent: Direction,
    stopped: AtomicBool,
    stop: Notify,
}

#[derive(Debug, Default)]
struct Direction {
    packets: AtomicU32,
    last: AtomicU32,
}

impl Direction {
    fn moved(&self, bytes: usize, now: u32) {
        let packets = (bytes as u64).div_ceil(PACKET_BYTES) as u32;
        // Numbers of packets have 32 bits and start again.
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }

    /// The next packet, and when the last one was moved.
    fn shown(&self) -> (i32, i32) {
        let next = self.packets.load(Ordering::Relaxed).wrapping_add(1);
        (next as i32, self.last.load(Ordering::Relaxed) as i32)
    }
}

impl Progress {
    /// Somebody has ended the transaction: its calls give up.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify_waiters();
    }

    /// Waits until the calls have to give up.
    pub(super) async fn stopped(&self) {
        let told = self.stop.notified();
        if !self.stopped.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// Bytes have come, at `now` in seconds since 1970.
    pub(super) fn received(&self, bytes: usize, now: u32) {
        self.received.moved(bytes, now);
    }

    /// Bytes were sent, at `now` in seconds since 1970.
    pub(super) fn sent(&self, bytes: usize, now: u32) {
        self.sent.moved(bytes, now);
    }

    /// The next packet to read and when one last came.
    pub(super) fn shown_received(&self) -> (i32, i32) {
        self.received.shown()
    }

    /// The next packet to send and when one last went.
    pub(super) fn shown_sent(&self) -> (i32, i32) {
        self.sent.shown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_from_one() {
        let progress = Progress::default();
        assert_eq!(progress.shown_sent(), (1, 0));
        progress.sent(1413, 7);
        assert_eq!(progress.shown_sent(), (3, 7));
        assert_eq!(progress.shown_received(), (1, 0));
    }
}
