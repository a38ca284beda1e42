//! Addresses that have not proved that they receive: what proves it, what is sent to them before.
//!
//! [`crate::allowance`] has the rule and its reason. This file applies it to all that leaves for a
//! server connection:
//!
//! | packet | to an unverified address |
//! | --- | --- |
//! | ABORT, BUSY, CHALLENGE | a reply; dropped when none is left |
//! | DATA | a reply, with REQUEST_ACK unless it is the last; the rest waits for the proof |
//! | ACK, answer to a ping | an extra packet; waits for the next datagram when none is left |
//! | delayed ACK | the same, made a ping: a slow call verifies its client while it runs |
//! | ping | an extra packet, or the reply of a call that waits for the proof itself |
//! | repetition of DATA | a reply if one is left, otherwise a ping, whose answer allows it |
//!
//! Raw aborts and answers to DEBUG and VERSION need no connection: each is one packet for one
//! datagram.

use super::Endpoint;
use crate::allowance::{Allowance, PROOF_WINDOW, RENEWAL_WINDOW};
use crate::call::CallState;
use crate::packet::{AckReason, PacketType};
use crate::time::Time;
use crate::transmit::TransmitBuffer;

impl Endpoint {
    /// The serial before the first one of a new server connection.
    pub(super) fn serial_base(&mut self) -> u32 {
        let base = match self.config.serial_base {
            Some(random) => random(),
            None => self.random.next() as u32,
        };
        // Below 2^31: Linux compares serials by their signed difference from 0 at first.
        base & 0x7fff_ffff
    }

    /// Whether an address is known to receive what is sent to it.
    pub(super) fn is_verified(&self, now: Time, peer: u32) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|peer| peer.proof.holds(now))
    }

    /// An ACK named `serial`: a proof, if it is that of a late packet of ours.
    pub(super) fn look_for_proof(&mut self, now: Time, slot: u32, serial: u32) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        // The serials of our client connections begin at 1, and can be guessed.
        if serial == 0 || !connection.server {
            return;
        }
        let peer = connection.peer;
        let window = if self.is_verified(now, peer) {
            RENEWAL_WINDOW
        } else {
            PROOF_WINDOW
        };
        if connection.sent_serial(serial, window) {
            self.proven(now, peer);
        }
    }

    /// An address has proved that it receives: what waited for that goes on.
    pub(super) fn proven(&mut self, now: Time, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot) else {
            return;
        };
        peer.proof.renew(now);
        peer.allowance = Allowance::default();
        for (call, number) in std::mem::take(&mut peer.waiting) {
            if let Some(waiting) = self.calls.get(call)
                && waiting.number == number
            {
                self.try_present(now, waiting.connection, call);
                self.queue(call);
            }
        }
    }

    /// Queues a packet of a connection that is complete as it is, unless too much has been sent to
    /// an unverified address.
    pub(super) fn send_ready(
        &mut self,
        slot: u32,
        packet_type: PacketType,
        channel: u8,
        call_number: u32,
        payload: &[u8],
    ) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let header = connection.header(packet_type, channel, call_number);
        let (to, local) = (connection.address, connection.local);
        let length = crate::packet::HEADER_SIZE + payload.len();
        if connection.server
            && let Some(peer) = self.peers.get_mut(connection.peer)
            && !peer.proof.holds(now)
            && !peer.allowance.take(length)
        {
            self.statistics.withheld = self.statistics.withheld.wrapping_add(1);
            return;
        }
        self.send_control(to, local, &header, payload);
    }

    /// What [`Endpoint::poll_transmit`] sends for a call of an unverified address.
    pub(super) fn transmit_unverified(
        &mut self,
        now: Time,
        slot: u32,
        out: &mut TransmitBuffer,
    ) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return false;
        };
        let peer_slot = connection.peer;
        let Some(peer) = self.peers.get_mut(peer_slot) else {
            return false;
        };
        let extra = peer.allowance.has_extra();
        if extra && let Some(serial) = call.ack.pong.take() {
            return self.put_extra(now, slot, AckReason::PING_RESPONSE, serial, out);
        }
        // Before a reply, which would end the round trip that the peer wants to measure.
        if extra && let Some((AckReason::REQUESTED, serial)) = call.ack.now {
            return self.put_extra(now, slot, AckReason::REQUESTED, serial, out);
        }
        if call.alive() && call.send.has_work() {
            let replies = usize::from(peer.allowance.replies());
            if replies > 0 && self.put_data(now, slot, replies, out) {
                let packets = out.bytes.len().div_ceil(out.segment_size.max(1));
                if let Some(peer) = self.peers.get_mut(peer_slot) {
                    peer.allowance.sent_replies(packets);
                }
                return true;
            }
            if replies == 0 {
                self.statistics.withheld = self.statistics.withheld.wrapping_add(1);
                if let (Some(call), Some(peer)) =
                    (self.calls.get(slot), self.peers.get_mut(peer_slot))
                {
                    peer.awaits_proof(slot, call.number);
                }
            }
        }
        self.acknowledge_unverified(now, slot, peer_slot, out)
    }

    /// The ACK or ping that is due.
    fn acknowledge_unverified(
        &mut self,
        now: Time,
        slot: u32,
        peer_slot: u32,
        out: &mut TransmitBuffer,
    ) -> bool {
        let (Some(call), Some(peer)) = (self.calls.get_mut(slot), self.peers.get_mut(peer_slot))
        else {
            return false;
        };
        let extra = peer.allowance.has_extra();
        let asks = call.alive()
            && (call.ping_wanted || matches!(call.ack.now, Some((AckReason::DELAY, _))));
        if asks {
            let instead = call.state == CallState::Waiting && peer.allowance.replies() > 0;
            if !extra && !instead {
                return false;
            }
            call.ping_wanted = false;
            if extra {
                return self.put_extra(now, slot, AckReason::PING, 0, out);
            }
            peer.allowance.sent_replies(1);
            self.put_ack(now, slot, AckReason::PING, 0, None, out);
            return true;
        }
        if extra && let Some((reason, serial)) = call.ack.now {
            return self.put_extra(now, slot, reason, serial, out);
        }
        false
    }

    fn put_extra(
        &mut self,
        now: Time,
        slot: u32,
        reason: AckReason,
        serial: u32,
        out: &mut TransmitBuffer,
    ) -> bool {
        self.put_ack(now, slot, reason, serial, None, out);
        let peer = self
            .calls
            .get(slot)
            .and_then(|call| self.connections.get(call.connection))
            .map(|connection| connection.peer);
        if let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer)) {
            peer.allowance.sent_extra(out.bytes.len());
        }
        true
    }
}
