//! What may leave towards an address that has not shown that it receives: design D13.
//!
//! A datagram's sender address proves nothing, and a reply to a forged one goes to a stranger.
//! Until an address is verified, each datagram from it therefore buys
//!
//! 1. one reply packet of any size: DATA, ABORT, BUSY or CHALLENGE. A reply of one packet so needs
//!    no further round trip; of a longer one the first packet leaves, and asks for an
//!    acknowledgement;
//! 2. one extra packet of at most three times the datagram: an ACK, a ping, a repetition.
//!
//! Nothing else leaves, however often timers run out. An address is verified by what it cannot know
//! without having received a packet: the serial of a packet of ours in an ACK (serials of a server
//! connection begin at a random number), or the answer to a challenge. The proof lasts
//! [`PROOF_LIFE`] and each further one renews it, so a peer that is in use never falls back.
//!
//! A sender that forges the address *and port* of a verified peer gets what that peer gets.

use crate::packet::HEADER_SIZE;
use crate::time::Time;

/// A proof that an address receives is good for this long, microseconds.
pub(crate) const PROOF_LIFE: u64 = 600_000_000;
/// How far back the serial in an ACK may lie to prove an address, packets. One in 2^31 guesses names
/// a certain packet.
pub(crate) const PROOF_WINDOW: u32 = 256;
/// The same for an address that is verified and has a large window open.
pub(crate) const RENEWAL_WINDOW: u32 = 65_536;

/// IP and UDP headers of a datagram: both directions are counted as the network carries them.
const DATAGRAM_HEADERS: u32 = 28;
/// Least size of an ACK with its headers: less is not worth an extra packet.
const EXTRA_LEAST: u32 = DATAGRAM_HEADERS + HEADER_SIZE as u32 + 37;
/// Bytes of extra packets for each byte received.
const EXTRA_FACTOR: u32 = 3;
/// Packets of either kind that may be saved up.
const SAVED_MAX: u16 = 64;
/// Bytes that may be saved up for extra packets.
const SAVED_BYTES_MAX: u32 = 16_384;

/// What one address has left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    replies: u16,
    extras: u16,
    bytes: u32,
}

impl Allowance {
    /// A datagram with `length` bytes of UDP payload came.
    pub(crate) fn received(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let wire = length.saturating_add(DATAGRAM_HEADERS);
        self.replies = self.replies.saturating_add(1).min(SAVED_MAX);
        self.extras = self.extras.saturating_add(1).min(SAVED_MAX);
        let bytes = wire.saturating_mul(EXTRA_FACTOR);
        self.bytes = self.bytes.saturating_add(bytes).min(SAVED_BYTES_MAX);
    }

    /// Reply packets that may leave.
    pub(crate) const fn replies(&self) -> u16 {
        self.replies
    }

    /// So many reply packets left.
    pub(crate) fn sent_replies(&mut self, packets: usize) {
        let packets = u16::try_from(packets).unwrap_or(u16::MAX);
        self.replies = self.replies.saturating_sub(packets);
    }

    /// Whether an extra packet may leave.
    pub(crate) const fn has_extra(&self) -> bool {
        self.extras > 0 && self.bytes >= EXTRA_LEAST
    }

    /// An extra packet of `length` bytes left.
    pub(crate) fn sent_extra(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.extras = self.extras.saturating_sub(1);
        let wire = length.saturating_add(DATAGRAM_HEADERS);
        self.bytes = self.bytes.saturating_sub(wire);
    }

    /// Takes what a packet of `length` bytes costs that is complete as it is; false: it must not leave.
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

/// When an address last proved that it receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof(Option<Time>);

impl Proof {
    /// The address has just proved it.
    pub(crate) fn renew(&mut self, now: Time) {
        self.0 = Some(now.plus_micros(PROOF_LIFE));
    }

    /// Whether it is known to receive.
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
        // 29 bytes with headers of 28: 171 on the wire.
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
