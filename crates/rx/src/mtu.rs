//! Packet size towards a peer: the proven size and the next size to probe.
//!
//! The size starts at 1444, which every Ethernet carries. PING ACKs padded with zeros probe larger
//! sizes: a response that names the serial of the ping proves the path (rx-wire facts 2.8). If
//! retransmissions of larger packets fail, the size falls back to the base. Such packets cannot be
//! split, since a sequence number keeps its bytes once sent. The call that hit the problem may
//! therefore fail with -8, and the next one works.

use crate::time::Time;

/// UDP payloads to probe: IPv6 and IPv4 on Ethernet, jumbograms of two to four packets, IPv6 and
/// IPv4 on 9000-byte Ethernet, and a quarter of the largest segmented send.
const CANDIDATES: [u16; 9] = [1452, 1472, 2856, 4272, 5688, 8192, 8952, 8972, 16_376];
/// Time before a size that failed is probed again, microseconds.
const RETRY: u64 = 600_000_000;
/// Unanswered probes of one size before it counts as too large.
const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    connection: u32,
    serial: u32,
    sent_at: Time,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMtu {
    base: u16,
    proven: u16,
    /// Smallest size known to be lost.
    too_big: u16,
    probe: Option<Probe>,
    tries: u8,
    next_at: Time,
}

impl PathMtu {
    pub(crate) const fn new(base: u16) -> Self {
        Self {
            base,
            proven: base,
            too_big: u16::MAX,
            probe: None,
            tries: 0,
            next_at: Time::ZERO,
        }
    }

    /// Largest datagram known to arrive.
    pub(crate) const fn proven(&self) -> u16 {
        self.proven
    }

    pub(crate) const fn base(&self) -> u16 {
        self.base
    }

    /// Returns the size to probe now, if any, for a peer that accepts `limit`.
    pub(crate) fn next_probe(&mut self, now: Time, limit: u16, rto: u64) -> Option<u16> {
        if let Some(probe) = self.probe {
            if now.micros_since(probe.sent_at) < rto {
                return None;
            }
            self.probe = None;
            self.tries += 1;
            if self.tries >= TRIES {
                self.tries = 0;
                self.too_big = self.too_big.min(probe.size);
                self.next_at = now.plus_micros(RETRY);
            }
        }
        if self.too_big != u16::MAX && now >= self.next_at && self.tries == 0 {
            self.too_big = u16::MAX;
        }
        let fits = |size: &&u16| **size > self.proven && **size <= limit && **size < self.too_big;
        let count = CANDIDATES.iter().filter(fits).count();
        CANDIDATES.iter().filter(fits).nth(count / 2).copied()
    }

    pub(crate) fn probe_sent(&mut self, now: Time, size: u16, connection: u32, serial: u32) {
        self.probe = Some(Probe {
            size,
            connection,
            serial,
            sent_at: now,
        });
    }

    /// Processes a PING_RESPONSE; returns true if it proved a larger size.
    pub(crate) fn answered(&mut self, connection: u32, serial: u32) -> bool {
        match self.probe {
            Some(probe) if probe.connection == connection && probe.serial == serial => {
                self.probe = None;
                self.tries = 0;
                self.proven = self.proven.max(probe.size);
                true
            }
            _ => false,
        }
    }

    /// Records that datagrams of `size` are lost; returns true if the proven size fell.
    pub(crate) fn shrink(&mut self, now: Time, size: u16) -> bool {
        if size <= self.base {
            return false;
        }
        self.too_big = self.too_big.min(size);
        self.next_at = now.plus_micros(RETRY);
        self.probe = None;
        self.tries = 0;
        let news = self.proven >= size;
        if news {
            self.proven = self.base;
        }
        news
    }
}
