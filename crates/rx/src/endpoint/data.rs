//! Processing of DATA packets: their call, their effect on it, and the acknowledgement.
//!
//! Rules for new calls at the server (rx-wire facts 2.7): a higher number ends the channel's former
//! call. If that call only waits for its last acknowledgement, the new call acknowledges it. If the
//! driver still works on it, it fails with -1 and the new call gets BUSY; its retransmission
//! succeeds.
//!
//! Rules for acknowledgements (2.2). These packets are acknowledged at once: those that request it,
//! duplicates, those out of order or beyond the window, those that fill a hole, and every second
//! packet. A Cellar sender requests an ACK at the end of each burst, so for it every 32nd packet
//! suffices. All others are acknowledged within 100 ms. A complete, short request is left to the
//! reply. The code here only records what is wanted. The ACK is built when the driver asks for
//! packets, so one ACK covers a whole batch.

use bytes::Bytes;

use super::Endpoint;
use crate::call::{Call, CallState};
use crate::code;
use crate::event::Event;
use crate::id::{CallId, ConnectionId};
use crate::packet::{AckReason, Flags, Header, JumboSplit, PacketType, SubPacket};
use crate::receive::{Insert, Received};
use crate::time::Time;

/// Longest delay of soft acknowledgements, microseconds.
const ACK_DELAY: u64 = 100_000;
/// Packets in order after which a stock sender gets an ACK.
const STOCK_ACK_EVERY: u32 = 2;
/// The same for a Cellar sender.
const CELLAR_ACK_EVERY: u32 = 32;
/// The reply acknowledges a complete request of at most this many packets. With 8, a store of 4
/// KiB, which waits for the disk before it is answered, costs no ACK.
const SHORT_REQUEST: u32 = 8;

impl Endpoint {
    pub(super) fn take_data(&mut self, now: Time, slot: u32, header: &Header, datagram: &Bytes) {
        if header.seq == 0 {
            return;
        }
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(channel) = connection.channels.get(header.channel()).copied() else {
            return;
        };
        let server = connection.server;
        let call = if server && header.call_number > channel.number {
            match self.begin_server_call(now, slot, header) {
                Some(call) => call,
                None => return,
            }
        } else if let Some(call) = self.current_call(slot, header) {
            call
        } else {
            self.statistics.spurious = self.statistics.spurious.wrapping_add(1);
            return;
        };
        self.statistics.data_read = self.statistics.data_read.wrapping_add(1);
        if self.answer_finished(now, call, header) {
            return;
        }
        if !server {
            self.reply_began(now, call);
        }
        if header.flags.has(Flags::JUMBO_PACKET) {
            for packet in JumboSplit::new(*header, datagram) {
                self.take_packet(now, call, &packet, datagram);
            }
        } else {
            let end = datagram.len();
            let packet = SubPacket {
                header: *header,
                start: crate::packet::HEADER_SIZE,
                end,
            };
            self.take_packet(now, call, &packet, datagram);
        }
        self.after_data(now, slot, call);
    }

    /// Begins a new call of a server connection; `None` if it cannot start now.
    fn begin_server_call(&mut self, now: Time, slot: u32, header: &Header) -> Option<u32> {
        let connection = self.connections.get(slot)?;
        let (address, local, peer) = (connection.address, connection.local, connection.peer);
        let window = self.receive_window_of(slot);
        if header.seq > window.0 {
            return None;
        }
        let existing = connection.channels.get(header.channel())?.call;
        let state = self.calls.get(existing).map(|call| call.state);
        if matches!(state, Some(CallState::Waiting | CallState::Active)) {
            self.fail_call(now, existing, code::CALL_DEAD);
            self.send_busy(slot, header.channel() as u8, header.call_number);
            return None;
        }
        let host = self.peers.get(peer)?.host;
        let host_calls = self.hosts.get(host).map_or(0, |host| host.calls);
        let unverified = connection.unverified;
        if !unverified && !self.counts.calls.has_room() {
            self.statistics.overload_aborts = self.statistics.overload_aborts.wrapping_add(1);
            self.raw_abort(address, local, header, code::BUSY);
            return None;
        }
        if !unverified && host_calls >= self.config.limits.calls_per_host {
            self.statistics.overload_aborts = self.statistics.overload_aborts.wrapping_add(1);
            self.send_busy(slot, header.channel() as u8, header.call_number);
            return None;
        }
        if state == Some(CallState::Hold) {
            self.end_call(now, existing);
        }
        let connection = self.connections.get_mut(slot)?;
        let send_window = match connection.cellar {
            Some(cellar) => u32::from(cellar.initial_window).max(UNTOLD_WINDOW),
            None => UNTOLD_WINDOW.min(self.config.send_window),
        };
        let channel = connection.channels.get_mut(header.channel())?;
        if self.calls.get(channel.call).is_none() {
            let number = header.channel() as u8;
            channel.call = self.calls.insert(Call::new(slot, number, true));
        }
        channel.number = header.call_number;
        let call_slot = channel.call;
        let call = self.calls.get_mut(call_slot)?;
        call.begin(now, header.call_number, window, send_window);
        call.state = CallState::Waiting;
        // Calls of unverified connections are bounded through these connections, four for each.
        call.unverified = unverified;
        call.admitted = !unverified;
        if !unverified {
            self.counts.calls.add(1);
            if let Some(host) = self.hosts.get_mut(host) {
                host.calls += 1;
            }
        }
        Some(call_slot)
    }

    pub(super) fn send_busy(&mut self, slot: u32, channel: u8, call_number: u32) {
        self.statistics.busies_sent = self.statistics.busies_sent.wrapping_add(1);
        self.send_ready(slot, PacketType::BUSY, channel, call_number, &[]);
    }

    /// Handles data for a finished call: it is acknowledged, or its abort is repeated.
    fn answer_finished(&mut self, now: Time, slot: u32, header: &Header) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return true;
        };
        if call.state != CallState::Dally {
            return false;
        }
        self.statistics.ignored_in_dally = self.statistics.ignored_in_dally.wrapping_add(1);
        if call.abort != 0 {
            self.repeat_abort(now, slot);
            return true;
        }
        call.ack.request(AckReason::DUPLICATE, header.serial);
        self.queue(slot);
        true
    }

    /// The first packet of a reply acknowledges the whole request and ends the client's writing.
    fn reply_began(&mut self, now: Time, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.turned {
            return;
        }
        call.turned = true;
        let sent = call.send.acknowledge_all();
        self.buffered.sub_sent(call, sent);
        call.stops_sending();
        call.progress_at = now;
        if call.want_write && call.attached {
            call.want_write = false;
            let id = CallId {
                slot,
                generation: call.generation,
            };
            self.events.push_back(Event::Writable(id));
        }
    }

    fn take_packet(&mut self, now: Time, slot: u32, packet: &SubPacket, datagram: &Bytes) {
        let limit = self.config.limits.receive_buffer;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.received_at = now;
        let SubPacket { header, start, end } = *packet;
        if self.buffered.received >= limit && !call.receive.is_next(header.seq) {
            return;
        }
        let payload = datagram.slice(start.min(end)..end);
        let length = payload.len();
        let last = header.flags.has(Flags::LAST_PACKET);
        let received = Received {
            payload,
            checksum: header.checksum,
        };
        let insert = call.receive.insert(header.seq, received, last);
        if matches!(
            insert,
            Insert::InOrder | Insert::FilledHole | Insert::OutOfOrder
        ) {
            self.buffered.add_received(call, length);
            self.statistics.bytes_received += length as u64;
            call.progress_at = now;
        }
        let requested = header.flags.has(Flags::REQUEST_ACK);
        match insert {
            Insert::Nonsense => {}
            Insert::Exceeds => {
                if call.receive.started() {
                    call.ack.request(AckReason::EXCEEDS_WINDOW, header.serial);
                }
                self.statistics.spurious = self.statistics.spurious.wrapping_add(1);
            }
            Insert::Duplicate => {
                call.ack.request(AckReason::DUPLICATE, header.serial);
                self.statistics.duplicates = self.statistics.duplicates.wrapping_add(1);
                resend_reply(now, call);
            }
            _ if requested => call.ack.request(AckReason::REQUESTED, header.serial),
            Insert::OutOfOrder => call.ack.request(AckReason::OUT_OF_SEQUENCE, header.serial),
            Insert::FilledHole => call.ack.request(AckReason::IDLE, header.serial),
            Insert::InOrder => self.in_order(now, slot, &header),
        }
    }

    fn in_order(&mut self, now: Time, slot: u32, header: &Header) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.ack.unacked += 1;
        let short =
            call.server && call.receive.complete() && call.receive.previous() <= SHORT_REQUEST;
        let cellar = self
            .connections
            .get(call.connection)
            .is_some_and(|c| c.cellar.is_some());
        let every = if cellar {
            CELLAR_ACK_EVERY
        } else {
            STOCK_ACK_EVERY
        };
        let finished =
            call.receive.complete() && call.receive.previous() > SHORT_REQUEST && call.server;
        if (call.ack.unacked >= every && !short) || finished {
            call.ack.request(AckReason::IDLE, header.serial);
        } else {
            call.ack.request_by(now.plus_micros(ACK_DELAY));
        }
    }

    /// Acts on the packets of one datagram.
    fn after_data(&mut self, now: Time, connection_slot: u32, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.deaf {
            let unread = call.receive.discard();
            self.buffered.sub_received(call, unread);
        }
        let wants_ack = call.ack.now.is_some() || call.send.has_lost();
        match call.state {
            CallState::Waiting if call.receive.readable() => {
                self.try_present(now, connection_slot, slot);
            }
            CallState::Active if call.want_read && call.receive.readable() => {
                call.want_read = false;
                let id = CallId {
                    slot,
                    generation: call.generation,
                };
                self.events.push_back(Event::Readable(id));
            }
            _ => {}
        }
        if wants_ack {
            self.queue(slot);
        }
        self.arm_call(slot);
    }

    /// Gives a waiting call to the driver, if nothing is missing any more.
    pub(super) fn try_present(&mut self, now: Time, connection_slot: u32, slot: u32) {
        let Some(connection) = self.connections.get_mut(connection_slot) else {
            return;
        };
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.state != CallState::Waiting || !call.receive.readable() {
            return;
        }
        if !connection.authenticated {
            self.statistics.calls_waited = self.statistics.calls_waited.wrapping_add(1);
            self.challenge(now, connection_slot);
            return;
        }
        let crowded = call.unverified && !self.counts.early_calls.has_room();
        if (connection.reach_check || crowded)
            && let Some(peer) = self.peers.get_mut(connection.peer)
            && !peer.proof.holds(now)
        {
            if call.reach_at.is_none() {
                self.statistics.calls_waited = self.statistics.calls_waited.wrapping_add(1);
                peer.awaits_proof(slot, call.number);
                call.ping_wanted = true;
                call.reach_at = Some(now.plus_micros(REACH_REPEAT));
                self.queue(slot);
            }
            return;
        }
        self.next_generation = self.next_generation.wrapping_add(1);
        if call.unverified {
            call.early = true;
            self.counts.early_calls.add(1);
        }
        call.reach_at = None;
        call.generation = self.next_generation;
        call.attached = true;
        call.state = CallState::Active;
        call.progress_at = now;
        self.statistics.calls_started += 1;
        let generation = self.connections.generation(connection_slot);
        let service = self
            .connections
            .get(connection_slot)
            .map_or(0, |c| c.service);
        self.events.push_back(Event::NewCall {
            call: CallId {
                slot,
                generation: self.next_generation,
            },
            connection: ConnectionId {
                slot: connection_slot,
                generation,
            },
            service,
        });
    }

    /// Receive window of a new call of a connection, and the window offered to its peer.
    pub(super) fn receive_window_of(&self, connection: u32) -> (u32, u32) {
        let window = self.initial_window();
        let connection = self.connections.get(connection);
        let peer = connection.and_then(|connection| self.peers.get(connection.peer));
        let offered = peer.map_or(window, |peer| peer.receive_window(window));
        (window, offered)
    }

    /// Window with which any new call may start, as announced to peers.
    pub(super) fn initial_window(&self) -> u32 {
        if self.config.extended_window > 255 {
            self.config.extended_window.min(CELLAR_INITIAL_WINDOW)
        } else {
            self.config.receive_window
        }
    }
}

/// Retransmits the reply, since a client that repeats its request has not received it.
fn resend_reply(now: Time, call: &mut Call) {
    if call.server && call.send.outstanding() {
        call.send.mark_first_lost(now, REPLY_AGE);
    }
}

/// Send window until the peer announces its own (rx-wire facts 2.4).
pub(super) const UNTOLD_WINDOW: u32 = 16;
/// Window that a Cellar peer may use in a new call.
const CELLAR_INITIAL_WINDOW: u32 = 512;
/// Interval of reachability pings, microseconds.
pub(super) const REACH_REPEAT: u64 = 2_000_000;
/// A reply packet younger than this is not retransmitted for a repeated request, microseconds.
const REPLY_AGE: u64 = 100_000;
