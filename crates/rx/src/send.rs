//! Send half of a call: the next packet, packets in flight, lost packets.
//!
//! 1. A packet is a range of the stream, fixed when it is first sent. A retransmission must carry
//!    the same bytes under the same sequence number, because the peer may have the first one.
//! 2. `first` is the lowest sequence number that is not hard-acknowledged; `first..next` are kept
//!    in `sent`. Nothing from `first + window` on is sent. Soft-acknowledged packets are kept, as a
//!    peer may take that acknowledgement back.
//! 3. `order` lists transmissions in the order of sending. A packet is lost when one sent later has
//!    arrived and either of two conditions holds. Either three later ones have arrived and this
//!    path never reordered. Or the newest one's round trip plus a tolerance for reordering has
//!    passed (RACK, RFC 8985 §6.2). Retransmissions enter `order` again, so their loss is detected
//!    in the same way.
//! 4. Each transmission records the bytes delivered until then; its acknowledgement gives a rate
//!    sample.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::congestion::{RateSample, rate};
use crate::packet::{Ack, AckReason, HEADER_SIZE};
use crate::stream::SendStream;
use crate::time::Time;

const ACKED: u8 = 1;
const LOST: u8 = 2;
const RESENT: u8 = 4;
const LAST: u8 = 8;
const LIMITED: u8 = 16;

/// One packet that is not hard-acknowledged.
#[derive(Clone, Copy, Debug)]
struct UnackedPacket {
    offset: u64,
    sent_at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    serial: u32,
    length: u16,
    flags: u8,
}

/// The next packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) seq: u32,
    pub(crate) offset: u64,
    pub(crate) length: u16,
    pub(crate) last: bool,
    pub(crate) resend: bool,
}

/// The effects of an ACK.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    pub(crate) sample: RateSample,
    /// Whether it newly acknowledged a packet.
    pub(crate) progress: bool,
    /// Round trip for the peer's estimate, if the ACK named the packet; microseconds.
    pub(crate) rtt: Option<u64>,
    /// Whether the window advanced.
    pub(crate) advanced: bool,
}

#[derive(Debug, Default)]
pub(crate) struct SendWindow {
    stream: SendStream,
    /// First byte not yet in a packet.
    offset: u64,
    first: u32,
    next: u32,
    sent: VecDeque<UnackedPacket>,
    order: VecDeque<(u32, u32)>,
    lost: VecDeque<u32>,
    finished: bool,
    flush: u64,
    last_sent: bool,
    /// The peer's window, packets.
    window: u32,
    /// Highest previousPacket that came with `first`.
    previous: u32,
    in_flight: u64,
    in_flight_packets: u32,
    acked_packets: u32,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    newest_serial: u32,
    newest_rtt: u64,
    reordering: bool,
    limited_until: u64,
    /// Sequence number of the newest packet that requested an acknowledgement.
    asked: u32,
}

impl SendWindow {
    /// Resets for a new call that may send `window` packets until the peer announces its window.
    pub(crate) fn reset(&mut self, window: u32) {
        self.drop_packets();
        self.offset = 0;
        self.first = 1;
        self.next = 1;
        self.finished = false;
        self.flush = 0;
        self.last_sent = false;
        self.window = window;
        self.previous = 0;
        self.delivered = 0;
        self.delivered_at = Time::ZERO;
        self.first_sent_at = Time::ZERO;
        self.newest_serial = 0;
        self.newest_rtt = 0;
        self.limited_until = 0;
        self.asked = 0;
    }

    /// Drops all packets and bytes.
    fn drop_packets(&mut self) {
        self.stream.clear();
        self.sent.clear();
        self.order.clear();
        self.lost.clear();
        if self.sent.capacity().max(self.order.capacity()) > KEPT_CAPACITY {
            (self.sent, self.order, self.lost) = Default::default();
        }
        self.in_flight = 0;
        self.in_flight_packets = 0;
        self.acked_packets = 0;
    }

    pub(crate) fn write(&mut self, data: Bytes) {
        self.stream.push(data);
    }

    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    pub(crate) fn flush(&mut self) {
        self.flush = self.stream.end();
    }

    pub(crate) const fn finished(&self) -> bool {
        self.finished
    }

    /// Whether the last packet was ever sent.
    pub(crate) const fn last_sent(&self) -> bool {
        self.last_sent
    }

    /// Bytes written and not yet hard-acknowledged.
    pub(crate) fn buffered(&self) -> usize {
        usize::try_from(self.stream.held()).unwrap_or(usize::MAX)
    }

    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) const fn in_flight_packets(&self) -> u32 {
        self.in_flight_packets
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    pub(crate) fn set_window(&mut self, window: u32) {
        self.window = window.max(1);
    }

    /// Number of packets sent (without retransmissions).
    pub(crate) const fn packets(&self) -> u32 {
        self.next - 1
    }

    /// Whether packets are unacknowledged.
    pub(crate) fn outstanding(&self) -> bool {
        (self.acked_packets as usize) < self.sent.len()
    }

    /// Whether everything, including the last packet, is at least soft-acknowledged.
    pub(crate) fn all_acked(&self) -> bool {
        self.last_sent && !self.outstanding()
    }

    /// Ends sending: the peer has everything it wants, or the call is over. Returns the number of
    /// bytes dropped.
    pub(crate) fn acknowledge_all(&mut self) -> usize {
        let held = self.buffered();
        self.drop_packets();
        self.first = self.next;
        self.offset = 0;
        self.finished = true;
        self.last_sent = true;
        held
    }

    /// Chooses the next packet: lost ones first, then new data, in packets of `most` user bytes.
    pub(crate) fn next_packet(&mut self, most: u16) -> Option<Outgoing> {
        while let Some(&seq) = self.lost.front() {
            if let Some(sent) = self.get(seq)
                && sent.flags & (LOST | ACKED) == LOST
            {
                let UnackedPacket {
                    offset,
                    length,
                    flags,
                    ..
                } = *sent;
                return Some(Outgoing {
                    seq,
                    offset,
                    length,
                    last: flags & LAST != 0,
                    resend: true,
                });
            }
            self.lost.pop_front();
        }
        if self.last_sent || self.next - self.first >= self.window {
            return None;
        }
        let left = self.stream.end() - self.offset;
        let full = u64::from(most);
        // A packet that might be the last one waits until that is certain.
        if !(left > full || self.finished || (left > 0 && self.offset < self.flush)) {
            return None;
        }
        let length = left.min(full);
        let last = self.finished && left == length;
        Some(Outgoing {
            seq: self.next,
            offset: self.offset,
            length: u16::try_from(length).unwrap_or(u16::MAX),
            last,
            resend: false,
        })
    }

    /// Whether there is anything to send or retransmit.
    pub(crate) fn has_work(&self) -> bool {
        !self.lost.is_empty()
            || (!self.last_sent && (self.finished || self.stream.end() > self.offset))
    }

    /// Whether only the peer's window prevents sending new data.
    pub(crate) const fn window_full(&self) -> bool {
        self.next - self.first >= self.window
    }

    /// Appends the packet's bytes to `out`.
    #[inline]
    pub(crate) fn copy(&mut self, packet: &Outgoing, out: &mut Vec<u8>) {
        self.stream
            .copy(packet.offset, usize::from(packet.length), out);
    }

    /// Records that the packet from `next_packet` is sent with this serial.
    pub(crate) fn mark_sent(&mut self, now: Time, packet: &Outgoing, serial: u32) {
        if self.in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let mut record = UnackedPacket {
            offset: packet.offset,
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            serial,
            length: packet.length,
            flags: if packet.last { LAST } else { 0 },
        };
        if self.limited_until > self.delivered {
            record.flags |= LIMITED;
        }
        self.in_flight += wire_size(packet.length);
        self.in_flight_packets += 1;
        self.order.push_back((packet.seq, serial));
        if packet.resend {
            record.flags |= RESENT;
            self.lost.pop_front();
            if let Some(place) = self.get_mut(packet.seq) {
                *place = record;
            }
        } else {
            self.sent.push_back(record);
            self.next += 1;
            self.offset += u64::from(packet.length);
            self.last_sent = packet.last;
        }
    }

    /// Whether the next packet should request an acknowledgement; records the request. About eight
    /// are requested per window, and always one if none is pending.
    pub(crate) fn request_ack(&mut self) -> bool {
        let share = (self.in_flight_packets / 8).clamp(1, MAX_UNASKED);
        let out =
            self.asked >= self.first && self.get(self.asked).is_some_and(|s| s.flags & ACKED == 0);
        if out && self.next - 1 - self.asked < share {
            return false;
        }
        self.asked = self.next - 1;
        true
    }

    /// Records that something other than the path limited the sender. Rate samples of what is in
    /// flight now are marked as limited.
    pub(crate) fn mark_limited(&mut self) {
        self.limited_until = self.delivered + self.in_flight + 1;
    }

    fn get(&self, seq: u32) -> Option<&UnackedPacket> {
        self.sent.get(seq.checked_sub(self.first)? as usize)
    }

    fn get_mut(&mut self, seq: u32) -> Option<&mut UnackedPacket> {
        self.sent.get_mut(seq.checked_sub(self.first)? as usize)
    }

    /// Whether an earlier ACK has hard-acknowledged more.
    pub(crate) fn is_older_ack(&self, ack: &Ack<'_>) -> bool {
        ack.first_packet < self.first
    }

    /// Whether an ACK is old or impossible and must change nothing (rx-wire facts 2.3).
    pub(crate) fn ignores(&self, ack: &Ack<'_>) -> bool {
        if ack.first_packet < self.first || ack.first_packet > self.next {
            return true;
        }
        ack.first_packet == self.first
            && ack.previous_packet < self.previous
            && ack.previous_packet < self.first.saturating_add(self.window)
    }

    /// Processes an ACK. `least_rtt`: an acknowledgement that follows a retransmission sooner than
    /// this is for the first copy.
    pub(crate) fn on_ack(&mut self, now: Time, ack: &Ack<'_>, least_rtt: u64) -> AckOutcome {
        let mut step = AckStep {
            outcome: AckOutcome::default(),
            newest: None,
            now,
            ack_serial: ack.serial,
            provoked_by: ack.serial,
            least_rtt,
        };
        if ack.reason == AckReason::DELAY || ack.reason == AckReason::PING_RESPONSE {
            step.ack_serial = 0;
        }
        if ack.first_packet > self.first {
            self.previous = 0;
            step.outcome.advanced = true;
        }
        // A previousPacket beyond the window is a serial (libafs before 1.6.23) and cannot be
        // compared.
        if ack.previous_packet < self.next {
            self.previous = self.previous.max(ack.previous_packet);
        }
        while self.first < ack.first_packet {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            if sent.flags & ACKED == 0 {
                self.account(&sent, &mut step);
            } else {
                self.acked_packets -= 1;
            }
            self.first += 1;
        }
        let held = self.sent.front().map_or(self.offset, |sent| sent.offset);
        self.stream.free(held);
        for (i, byte) in ack.acks.iter().enumerate() {
            if byte & 1 == 1 {
                self.soft_ack(i, &mut step);
            } else {
                self.soft_nack(i);
            }
        }
        if let Some(cellar) = &ack.cellar {
            for &(start, length) in &cellar.ranges {
                let end = (usize::from(start) + usize::from(length)).min(self.sent.len());
                for i in usize::from(start)..end {
                    self.soft_ack(i, &mut step);
                }
            }
        }
        self.finish_step(step)
    }

    fn soft_ack(&mut self, at: usize, step: &mut AckStep) {
        let Some(place) = self.sent.get_mut(at) else {
            return;
        };
        if place.flags & ACKED == 0 {
            let sent = *place;
            place.flags |= ACKED;
            self.acked_packets += 1;
            self.account(&sent, step);
        }
    }

    /// The peer dropped a packet that it had acknowledged: marks it for retransmission.
    fn soft_nack(&mut self, at: usize) {
        let Some(place) = self.sent.get_mut(at) else {
            return;
        };
        if place.flags & ACKED != 0 {
            place.flags = (place.flags & !ACKED) | LOST;
            self.acked_packets -= 1;
            self.lost.push_back(self.first + at as u32);
        }
    }

    /// Counts a packet as delivered.
    fn account(&mut self, sent: &UnackedPacket, step: &mut AckStep) {
        let size = wire_size(sent.length);
        step.outcome.progress = true;
        step.outcome.sample.acked += size;
        self.delivered += size;
        let age = step.now.micros_since(sent.sent_at);
        if sent.flags & LOST == 0 {
            self.in_flight = self.in_flight.saturating_sub(size);
            self.in_flight_packets = self.in_flight_packets.saturating_sub(1);
        } else {
            step.outcome.sample.found += size;
            self.reordering = true;
        }
        if sent.flags & RESENT != 0 && step.before(sent.serial, age) {
            // The first copy arrived: it was late, not lost. Counting it as the second would mark
            // everything sent between the two as lost.
            step.outcome.sample.found += size;
            self.reordering = true;
            return;
        }
        if sent.serial == step.ack_serial {
            step.outcome.rtt = Some(age.max(1));
        }
        if step.newest.is_none_or(|newest| newest.serial < sent.serial) {
            step.newest = Some(*sent);
        }
    }

    fn finish_step(&mut self, step: AckStep) -> AckOutcome {
        let AckStep {
            mut outcome,
            newest,
            now,
            ..
        } = step;
        let sample = &mut outcome.sample;
        sample.delivered = self.delivered;
        sample.in_flight = self.in_flight;
        let Some(newest) = newest else { return outcome };
        self.delivered_at = now;
        if newest.serial > self.newest_serial {
            self.newest_serial = newest.serial;
            self.newest_rtt = now.micros_since(newest.sent_at);
            self.first_sent_at = newest.sent_at;
        }
        sample.prior_delivered = newest.delivered;
        sample.limited = newest.flags & LIMITED != 0;
        sample.rtt = outcome.rtt.unwrap_or(0);
        let sending = newest.sent_at.micros_since(newest.first_sent_at);
        let acking = now.micros_since(newest.delivered_at);
        let interval = sending.max(acking);
        if interval > 0 {
            sample.rate = rate(self.delivered - newest.delivered, interval);
        }
        outcome
    }

    /// Marks packets lost that are overdue; returns their bytes, and when to check again.
    pub(crate) fn detect_losses(&mut self, now: Time, smoothed_rtt: u64) -> (u64, Option<Time>) {
        let tolerance = (smoothed_rtt / 4).max(1_000);
        let mut lost = 0;
        while let Some(&(seq, serial)) = self.order.front() {
            let current = self.get(seq).copied();
            let Some(sent) =
                current.filter(|s| s.serial == serial && s.flags & (ACKED | LOST) == 0)
            else {
                self.order.pop_front();
                continue;
            };
            if serial >= self.newest_serial {
                break;
            }
            let deadline = sent
                .sent_at
                .plus_micros(self.newest_rtt.max(smoothed_rtt) + tolerance);
            let passed_by_three = !self.reordering && serial + 3 <= self.newest_serial;
            if now < deadline && !passed_by_three {
                return (lost, Some(deadline));
            }
            self.order.pop_front();
            lost += self.mark_lost(seq);
        }
        (lost, None)
    }

    fn mark_lost(&mut self, seq: u32) -> u64 {
        let Some(place) = self.get_mut(seq) else {
            return 0;
        };
        if place.flags & (ACKED | LOST) != 0 {
            return 0;
        }
        place.flags |= LOST;
        let size = wire_size(place.length);
        self.in_flight = self.in_flight.saturating_sub(size);
        self.in_flight_packets = self.in_flight_packets.saturating_sub(1);
        self.lost.push_back(seq);
        size
    }

    /// Marks everything unacknowledged as lost, since the retransmission timeout expired.
    pub(crate) fn mark_all_lost(&mut self) {
        self.order.clear();
        for seq in self.first..self.next {
            self.mark_lost(seq);
        }
    }

    /// Marks the first unacknowledged packet as lost if it was sent at least `age` ago; the peer
    /// shows that it lacks it.
    pub(crate) fn mark_first_lost(&mut self, now: Time, age: u64) {
        let due =
            |s: &UnackedPacket| s.flags & (ACKED | LOST) == 0 && now.micros_since(s.sent_at) >= age;
        if let Some(at) = self.sent.iter().position(|s| s.flags & ACKED == 0)
            && self.sent.get(at).is_some_and(due)
        {
            self.mark_lost(self.first + at as u32);
        }
    }

    /// Marks the newest unacknowledged packet for retransmission; its acknowledgement shows which
    /// packets before it are missing.
    pub(crate) fn mark_tail_lost(&mut self) {
        if let Some(at) = self
            .sent
            .iter()
            .rposition(|s| s.flags & (ACKED | LOST) == 0)
        {
            self.mark_lost(self.first + at as u32);
        }
    }

    /// Whether packets wait for retransmission.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// User bytes in the largest packet not hard-acknowledged.
    pub(crate) fn largest_outstanding(&self) -> u16 {
        self.sent.iter().map(|s| s.length).max().unwrap_or(0)
    }
}

struct AckStep {
    outcome: AckOutcome,
    newest: Option<UnackedPacket>,
    now: Time,
    /// Serial of the packet for which a round trip may be measured.
    ack_serial: u32,
    /// Serial of the packet that caused the ACK; 0: none.
    provoked_by: u32,
    least_rtt: u64,
}

impl AckStep {
    /// Whether the peer sent the ACK before a transmission with this serial and age can have
    /// arrived.
    fn before(&self, serial: u32, age: u64) -> bool {
        age < self.least_rtt || (self.provoked_by != 0 && self.provoked_by < serial)
    }
}

/// Size of a packet in the count of bytes in flight.
pub(crate) fn wire_size(user_bytes: u16) -> u64 {
    u64::from(user_bytes) + HEADER_SIZE as u64
}

/// Most packets between two requests for an acknowledgement.
const MAX_UNASKED: u32 = 32;
/// Queue capacity kept between calls of a channel, packets.
const KEPT_CAPACITY: usize = 64;
