//! Addresses that have not proved that they receive: the proof, and what may be sent before it.
//!
//! [`crate::allowance`] explains the rule. This file applies it to everything that is sent on a
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

use std::net::SocketAddr;

use super::Endpoint;
use crate::allowance::{Allowance, PROOF_WINDOW, RENEWAL_WINDOW};
use crate::call::CallState;
use crate::code;
use crate::connection::Connection;
use crate::packet::{AckReason, PacketType};
use crate::table::Slots;
use crate::time::Time;
use crate::transmit::TransmitBuffer;

impl Endpoint {
    /// The serial before the first one of a new server connection.
    pub(super) fn serial_base(&mut self) -> u32 {
        let base = match self.config.serial_base {
            Some(random) => random(),
            None => self.random.next() as u32,
        };
        // Below 2^31, since Linux compares the first serial with 0 by signed difference.
        base & 0x7fff_ffff
    }

    /// Whether an address is known to receive what is sent to it.
    pub(super) fn is_verified(&self, now: Time, peer: u32) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|peer| peer.proof.holds(now))
    }

    /// Checks whether `serial`, named by an ACK, is that of a recent packet of ours, which is a
    /// proof.
    pub(super) fn look_for_proof(&mut self, now: Time, slot: u32, serial: u32) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        // The serials of our client connections begin at 1 and can be guessed.
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

    /// Records the proof of an address and continues what waited for it.
    pub(super) fn proven(&mut self, now: Time, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot) else {
            return;
        };
        peer.proof.renew(now);
        peer.allowance = Allowance::default();
        if peer.unverified > 0 {
            for connection in self.unverified_of(slot) {
                self.end_unverified(connection);
            }
        }
        let Some(peer) = self.peers.get_mut(slot) else {
            return;
        };
        for (call, number) in std::mem::take(&mut peer.waiting) {
            if let Some(waiting) = self.calls.get(call)
                && waiting.number == number
            {
                self.try_present(now, waiting.connection, call);
                self.queue(call);
            }
        }
    }

    /// Makes room for a new connection from `from`, if necessary; returns whether there is room.
    pub(super) fn has_place(&mut self, now: Time, from: SocketAddr) -> bool {
        let verified = self
            .by_address
            .get(&from)
            .is_some_and(|&peer| self.is_verified(now, peer));
        if !verified {
            let host = self.by_host.get(&from.ip()).copied();
            while let Some(host) = host.and_then(|host| self.hosts.get_mut(host))
                && host.unverified.count() >= self.config.limits.unverified_per_host
                && let Some(slot) = host.unverified.oldest(unverified_in(&self.connections))
            {
                self.evict(now, slot);
            }
            while !self.counts.unverified_connections.has_room() {
                if !self.evict_oldest(now) {
                    return false;
                }
            }
        }
        while !self.counts.connections.has_room() {
            if !self.evict_oldest(now) && !self.make_room(now) {
                return false;
            }
        }
        true
    }

    /// Drops connections while too many bytes are held for unverified addresses.
    pub(super) fn drop_excess(&mut self, now: Time) {
        let holding = |endpoint: &Self| endpoint.buffered.unverified.own_count() > 0;
        while holding(self) && !self.buffered.unverified.has_room() && self.evict_oldest(now) {}
    }

    /// Removes the oldest connection of an unverified address; returns false if there is none.
    fn evict_oldest(&mut self, now: Time) -> bool {
        let oldest = self.unverified.oldest(unverified_in(&self.connections));
        if let Some(slot) = oldest {
            self.evict(now, slot);
        }
        oldest.is_some()
    }

    /// Removes all connections of an address if all of them are unverified. Returns false if it has
    /// others, or none. A flood of forged addresses causes as many ICMP errors.
    pub(super) fn forget_unverified(&mut self, now: Time, peer: u32) -> bool {
        let only = self
            .peers
            .get(peer)
            .is_some_and(|peer| peer.unverified > 0 && peer.unverified == peer.connections);
        if only {
            for slot in self.unverified_of(peer) {
                self.evict(now, slot);
            }
        }
        only
    }

    /// Returns the connections of an address that count as unverified.
    fn unverified_of(&self, peer: u32) -> Vec<u32> {
        let host = self
            .peers
            .get(peer)
            .and_then(|peer| self.hosts.get(peer.host));
        let Some(host) = host else { return Vec::new() };
        let its = |slot: &u32| {
            self.connections
                .get(*slot)
                .is_some_and(|connection| connection.unverified && connection.peer == peer)
        };
        host.unverified.slots().filter(its).collect()
    }

    /// Drops a connection: its calls fail here, and nothing is sent. A client that exists repeats
    /// its request, which creates the connection again.
    fn evict(&mut self, now: Time, slot: u32) {
        self.statistics.evicted = self.statistics.evicted.wrapping_add(1);
        self.fail_channels(now, slot, code::CALL_DEAD);
        self.forget_connection(slot);
    }

    /// Counts a new server connection if its address is unverified.
    pub(super) fn begin_unverified(&mut self, now: Time, slot: u32) {
        let generation = self.connections.generation(slot);
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return;
        };
        if peer.proof.holds(now) {
            return;
        }
        connection.unverified = true;
        peer.unverified += 1;
        let host = peer.host;
        self.counts.unverified_connections.add(1);
        let is_there = unverified_in(&self.connections);
        self.unverified.push(slot, generation, is_there);
        if let Some(host) = self.hosts.get_mut(host) {
            host.unverified.push(slot, generation, is_there);
        }
    }

    /// Stops counting a connection as unverified: its address is verified, or it is removed.
    pub(super) fn end_unverified(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if !std::mem::take(&mut connection.unverified) {
            return;
        }
        self.counts.unverified_connections.sub(1);
        self.unverified.note_removed();
        let host = self.peers.get_mut(connection.peer).map(|peer| {
            peer.unverified = peer.unverified.saturating_sub(1);
            peer.host
        });
        let mut host = host.and_then(|host| self.hosts.get_mut(host));
        if let Some(host) = &mut host {
            host.unverified.note_removed();
        }
        for channel in connection.channels {
            let Some(call) = self.calls.get_mut(channel.call) else {
                continue;
            };
            let in_progress =
                call.unverified && matches!(call.state, CallState::Waiting | CallState::Active);
            self.buffered.verified(call);
            if std::mem::take(&mut call.early) {
                self.counts.early_calls.sub(1);
            }
            if in_progress {
                call.admitted = true;
                self.counts.calls.add(1);
                if let Some(host) = &mut host {
                    host.calls += 1;
                }
            }
        }
    }

    /// Queues a complete packet of a connection, unless the allowance of an unverified address is
    /// used up.
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

    /// Implements [`Endpoint::poll_transmit`] for a call of an unverified address.
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
        // Sent before a reply, which would end the round trip that the peer wants to measure.
        if extra && let Some((AckReason::REQUESTED, serial)) = call.ack.now {
            return self.put_extra(now, slot, AckReason::REQUESTED, serial, out);
        }
        if call.expects_answer() && call.send.has_work() {
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

    /// Sends the pending ACK or ping.
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
        let asks = call.expects_answer()
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

/// Whether a slot still holds the connection of that generation, and it counts as unverified.
fn unverified_in(connections: &Slots<Connection>) -> impl Fn(u32, u32) -> bool + Copy {
    |slot, generation| {
        connections.generation(slot) == generation
            && connections.get(slot).is_some_and(|c| c.unverified)
    }
}
