//! Receive half of a call: received packets, what the application read, what to acknowledge.
//!
//! 1. `first` is the lowest sequence number that the application has not read; all below are
//!    hard-acknowledged. Packets from `first` on are kept until read. None is ever dropped again,
//!    so our soft acknowledgements are never taken back.
//! 2. `next` is the lowest missing sequence number; `first..next` can be read.
//! 3. `previous`, which ACKs report, is the highest sequence number ever seen, even if that packet
//!    was refused. It never falls, since OpenAFS ignores ACKs in which it does. It is never 0 in an
//!    ACK that a DATA packet caused, since kAFS ends the call on some of those. Rx-wire facts 2.3.
//! 4. The right edge of the window, once offered, is kept even if memory gets scarce. A new call
//!    accepts as many packets as any peer may have been offered for new calls, even if this peer
//!    was offered fewer.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::packet::MAX_ACKS;

/// A packet as received, before the security class processed it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) payload: Bytes,
    pub(crate) checksum: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insert {
    /// It was the next packet.
    InOrder,
    /// It was the next packet, and later ones had already arrived.
    FilledHole,
    /// A predecessor is missing.
    OutOfOrder,
    /// It had arrived before.
    Duplicate,
    /// It is beyond the window.
    Exceeds,
    /// It contradicts an earlier packet about which packet is the last.
    Nonsense,
}

#[derive(Debug, Default)]
pub(crate) struct ReceiveWindow {
    first: u32,
    next: u32,
    previous: u32,
    /// First sequence number that is not accepted.
    edge: u32,
    /// First sequence number beyond the window offered to the peer; at most `edge`.
    offered: u32,
    last: Option<u32>,
    packets: VecDeque<Option<Received>>,
    bytes: usize,
}

impl ReceiveWindow {
    /// Resets the window for a new call that accepts `window` packets; the peer is offered
    /// `offered` of them.
    pub(crate) fn reset(&mut self, window: u32, offered: u32) {
        self.packets.clear();
        if self.packets.capacity() > KEPT_CAPACITY {
            self.packets = VecDeque::new();
        }
        self.first = 1;
        self.next = 1;
        self.previous = 0;
        self.edge = 1 + window;
        self.offered = 1 + offered.min(window);
        self.last = None;
        self.bytes = 0;
    }

    pub(crate) const fn first(&self) -> u32 {
        self.first
    }

    pub(crate) const fn previous(&self) -> u32 {
        self.previous
    }

    /// Bytes of received, unread packets.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets received but not read.
    pub(crate) fn held(&self) -> usize {
        self.packets.len()
    }

    /// Whether any packet arrived.
    pub(crate) const fn started(&self) -> bool {
        self.previous != 0
    }

    /// Whether a packet can be read.
    pub(crate) const fn readable(&self) -> bool {
        self.first < self.next
    }

    /// Whether every packet up to the last has arrived.
    pub(crate) const fn complete(&self) -> bool {
        matches!(self.last, Some(last) if self.next > last)
    }

    /// Whether every packet up to the last has been read.
    pub(crate) const fn consumed(&self) -> bool {
        matches!(self.last, Some(last) if self.first > last)
    }

    /// Widens the window to `window` packets from what the application has read; never narrows it.
    /// Returns the window to announce to the peer.
    pub(crate) fn offer(&mut self, window: u32) -> u32 {
        self.offered = self.offered.max(self.first.saturating_add(window));
        self.edge = self.edge.max(self.offered);
        self.offered - self.first
    }

    /// The window announced to the peer last.
    pub(crate) const fn offered(&self) -> u32 {
        self.offered.saturating_sub(self.first)
    }

    /// Whether `seq` is the next one in order.
    pub(crate) const fn is_next(&self, seq: u32) -> bool {
        seq == self.next
    }

    pub(crate) fn insert(&mut self, seq: u32, received: Received, last: bool) -> Insert {
        if seq < self.first {
            return Insert::Duplicate;
        }
        if seq >= self.edge {
            if seq - self.first < MAX_SEEN {
                self.previous = self.previous.max(seq);
            }
            return Insert::Exceeds;
        }
        let at = (seq - self.first) as usize;
        if self.packets.get(at).is_some_and(Option::is_some) {
            return Insert::Duplicate;
        }
        if self.last.is_some_and(|end| seq > end) || (last && at + 1 < self.packets.len()) {
            return Insert::Nonsense;
        }
        if last {
            self.last = Some(seq);
        }
        self.previous = self.previous.max(seq);
        self.bytes += received.payload.len();
        if at == self.packets.len() {
            self.packets.push_back(Some(received));
        } else {
            if at > self.packets.len() {
                self.packets.resize_with(at + 1, || None);
            }
            if let Some(place) = self.packets.get_mut(at) {
                *place = Some(received);
            }
        }
        if seq != self.next {
            return Insert::OutOfOrder;
        }
        self.next += 1;
        let mut filled = false;
        while self
            .packets
            .get((self.next - self.first) as usize)
            .is_some_and(Option::is_some)
        {
            self.next += 1;
            filled = true;
        }
        if filled {
            Insert::FilledHole
        } else {
            Insert::InOrder
        }
    }

    /// Removes and returns the next packet in order, with its sequence number.
    pub(crate) fn take(&mut self) -> Option<(u32, Received)> {
        if !self.readable() {
            return None;
        }
        let received = self.packets.pop_front()??;
        let seq = self.first;
        self.first += 1;
        self.bytes -= received.payload.len();
        Some((seq, received))
    }

    /// Drops all held packets; returns their bytes.
    pub(crate) fn discard(&mut self) -> usize {
        let bytes = self.bytes;
        self.packets.clear();
        self.first = self.next;
        self.bytes = 0;
        bytes
    }

    /// Appends one byte for each packet from `first` on, at most 255.
    pub(crate) fn acknowledgements(&self, out: &mut Vec<u8>) {
        let arrived = ((self.next - self.first) as usize).min(MAX_ACKS);
        let end = self.packets.len().min(MAX_ACKS);
        out.resize(out.len() + arrived, 1);
        out.extend(
            self.packets
                .range(arrived..end)
                .map(|p| u8::from(p.is_some())),
        );
    }

    /// Returns the runs of received packets beyond the first 255, for the extension.
    pub(crate) fn ranges(&self) -> Vec<(u16, u16)> {
        let mut runs = Vec::new();
        let mut at = MAX_ACKS;
        let mut known = (self.next - self.first) as usize;
        while at < self.packets.len() {
            let start = at;
            at = at.max(known);
            while self.packets.get(at).is_some_and(Option::is_some) {
                at += 1;
            }
            known = 0;
            if at > start {
                let (Ok(from), Ok(length)) = (u16::try_from(start), u16::try_from(at - start))
                else {
                    break;
                };
                runs.push((from, length));
            }
            while self.packets.get(at).is_some_and(Option::is_none) {
                at += 1;
            }
        }
        runs
    }
}

/// Queue capacity kept between calls of a channel, packets.
const KEPT_CAPACITY: usize = 64;
/// A sequence number further ahead than this is not recorded as seen.
const MAX_SEEN: u32 = 1 << 16;
