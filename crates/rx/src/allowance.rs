//! Limits what is sent to an address that has not proved that it receives: design D13.
//!
//! The sender address of a datagram may be forged, and a reply to a forged address hits a third
//! party. Until an address is verified, each datagram from it therefore permits
//!
//! 1. one reply packet of any size: DATA, ABORT, BUSY or CHALLENGE. A reply of one packet therefore
//!    needs no further round trip. Of a longer reply the first packet is sent, and it requests an
//!    acknowledgement;
//! 2. one extra packet of at most three times the size of the datagram: an ACK, a ping or a
//!    retransmission.
//!
//! Nothing else is sent, however many timers expire. An address is verified when it presents a
//! value from a packet that it received. That value is the serial of one of our packets in an ACK,
//! or the answer to a challenge. The serials of a server connection begin at a random number. The
//! proof is valid for [`PROOF_LIFE`] and each further proof renews it, so a peer in use stays
//! verified.
//!
//! A sender that forges the address *and port* of a verified peer causes as many packets as that
//! peer.

use crate::packet::HEADER_SIZE;
use crate::time::Time;

/// Lifetime of a proof that an address receives, microseconds.
pub(crate) const PROOF_LIFE: u64 = 600_000_000;
/// The serial in an ACK proves an address if it is at most this many packets old. One in 2^31
/// guesses hits a given packet.
pub(crate) const PROOF_WINDOW: u32 = 256;
/// The same limit for an address that is already verified, which may have a large window open.
pub(crate) const RENEWAL_WINDOW: u32 = 65_536;

/// Size of the IP and UDP headers of a datagram; sizes are counted as on the wire, in both
/// directions.
const DATAGRAM_HEADERS: u32 = 28;
/// Smallest ACK with its headers. With fewer bytes left, no extra packet is sent.
const EXTRA_LEAST: u32 = DATAGRAM_HEADERS + HEADER_SIZE as u32 + 37;
/// Bytes of extra packets permitted for each received byte.
const EXTRA_FACTOR: u32 = 3;
/// Most packets of each kind that may accumulate.
const SAVED_MAX: u16 = 64;
/// Most bytes that may accumulate for extra packets.
const SAVED_BYTES_MAX: u32 = 16_384;

/// The remaining allowance of one address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    replies: u16,
    extras: u16,
    bytes: u32,
}

impl Allowance {
    /// Records a received datagram with `length` bytes of UDP payload.
    pub(crate) fn received(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let wire = length.saturating_add(DATAGRAM_HEADERS);
        self.replies = self.replies.saturating_add(1).min(SAVED_MAX);
        self.extras = self.extras.saturating_add(1).min(SAVED_MAX);
        let bytes = wire.saturating_mul(EXTRA_FACTOR);
        self.bytes = self.bytes.saturating_add(bytes).min(SAVED_BYTES_MAX);
    }

    /// Number of reply packets that may be sent.
    pub(crate) const fn replies(&self) -> u16 {
        self.replies
    }

    /// Deducts sent reply packets.
    pub(crate) fn sent_replies(&mut self, packets: usize) {
        let packets = u16::try_from(packets).unwrap_or(u16::MAX);
        self.replies = self.replies.saturating_sub(packets);
    }

    /// Whether an extra packet may be sent.
    pub(crate) const fn has_extra(&self) -> bool {
        self.extras > 0 && self.bytes >= EXTRA_LEAST
    }

    /// Deducts a sent extra packet of `length` bytes.
    pub(crate) fn sent_extra(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.extras = self.extras.saturating_sub(1);
        let wire = length.saturating_add(DATAGRAM_HEADERS);
        self.bytes = self.bytes.saturating_sub(wire);
    }

    /// Deducts the cost of a complete packet of `length` bytes. Returns false if the packet must
    /// not be sent.
    pub(crate) fn take(&mut self, length: usize) -> bool {
        if self.replies > 0 {
            self.sent_replies(1);
            return true;
        }
        let wire = u32::try_from(length)
            .unwrap_or(u32::MAX)
            .saturating_add(DATAGRAM_HEADERS);
        let fits = self.extras > 0 && self.bytes >= wire;
        if fits {
            self.sent_extra(length);
        }
        fits
    }
}

/// End of validity of the last proof that an address receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof(Option<Time>);

impl Proof {
    /// Records a proof at `now`.
    pub(crate) fn renew(&mut self, now: Time) {
        self.0 = Some(now.plus_micros(PROOF_LIFE));
    }

    /// Whether the proof is still valid at `now`.
    pub(crate) fn holds(self, now: Time) -> bool {
        self.0.is_some_and(|until| now <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_buys_one_reply_and_one_extra() {
        let mut allowance = Allowance::default();
        assert!(!allowance.take(32) && !allowance.has_extra());
        allowance.received(60);
        assert!(allowance.has_extra());
        allowance.sent_extra(65);
        assert!(!allowance.has_extra());
        assert!(allowance.take(1444), "a reply of any size");
        assert!(!allowance.take(32));
    }

    #[test]
    fn an_extra_packet_is_at_most_three_times_what_came() {
        let mut allowance = Allowance::default();
        // 29 bytes plus 28 of headers, times three: 171 bytes on the wire.
        allowance.received(29);
        assert!(allowance.take(1444));
        assert!(!allowance.take(144));
        assert!(allowance.take(143));
        assert!(!allowance.take(0));
    }

    #[test]
    fn little_is_saved_up() {
        let mut allowance = Allowance::default();
        for _ in 0..10_000 {
            allowance.received(1444);
        }
        let packets = (0..10_000).filter(|_| allowance.take(32)).count();
        assert_eq!(packets, 2 * usize::from(SAVED_MAX));
    }

    #[test]
    fn a_proof_ends() {
        let mut proof = Proof::default();
        let now = Time::from_micros(5);
        assert!(!proof.holds(now));
        proof.renew(now);
        assert!(proof.holds(now) && proof.holds(now.plus_micros(PROOF_LIFE)));
        assert!(!proof.holds(now.plus_micros(PROOF_LIFE + 1)));
    }
}
