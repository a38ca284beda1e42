//! Operations of the driver on calls.

use bytes::Bytes;

use super::data::UNTOLD_WINDOW;
use super::{CallError, Endpoint, ReadOutcome, Refusal, StartCallError, WriteOutcome};
use crate::call::{Call, CallState};
use crate::code;
use crate::connection::SecurityState;
use crate::event::Event;
use crate::id::{CallId, ConnectionId};
use crate::packet::{AckReason, PacketType};
use crate::receive::Received;
use crate::table::NONE;
use crate::time::Time;

/// A client acknowledges the end of a reply after this time, unless its next call has done so;
/// microseconds.
const FINAL_ACK_DELAY: u64 = 20_000;
/// Bytes that any call may hold unacknowledged, however little is free: the smallest send buffer.
const LEAST_SEND_SHARE: usize = 65_536;
/// Inverse of the part of a window whose consumption is announced at once.
const CONSUMED_SHARE: u32 = 8;
/// Consumed packets that are announced at once, however large the window is.
const CONSUMED_MAX: u32 = 256;
/// Consumed packets that are announced to a stock peer at once.
const STOCK_CONSUMED: u32 = 8;
/// Delay before fewer consumed packets are announced, microseconds.
const CONSUMED_DELAY: u64 = 100_000;
/// Shortest time between two aborts of one call, microseconds.
const ABORT_REPEAT: u64 = 10_000;
/// The end of a reply longer than this many packets is acknowledged at once.
const SHORT_REPLY: u32 = 2;

/// Bounds of the bytes that one call may hold written and unacknowledged.
pub(super) struct SendBounds {
    /// Bytes that all calls together may still take.
    free: usize,
    /// Bound on any path.
    least: usize,
    /// Bound on a long path.
    most: usize,
}

impl SendBounds {
    /// Bound for `call`. Twice its congestion window keeps the path busy while its writer sleeps.
    pub(super) fn of(&self, call: &Call) -> usize {
        let window = call
            .congestion
            .as_ref()
            .map_or(0, |congestion| congestion.window());
        let path = usize::try_from(window.saturating_mul(2)).unwrap_or(usize::MAX);
        let wanted = path.min(self.most).max(self.least);
        wanted.min(self.free).max(LEAST_SEND_SHARE)
    }
}

impl Endpoint {
    /// Starts a call on a free channel.
    ///
    /// # Errors
    /// No channel is free, or the connection failed or is gone.
    pub fn start_call(
        &mut self,
        now: Time,
        connection: ConnectionId,
    ) -> Result<CallId, StartCallError> {
        let now = self.advance(now);
        let slot = connection.slot;
        let window = self.receive_window_of(slot);
        if self.connections.generation(slot) != connection.generation {
            return Err(StartCallError::Gone);
        }
        let record = self.connections.get_mut(slot).ok_or(StartCallError::Gone)?;
        if record.server {
            return Err(StartCallError::Gone);
        }
        if let Some(code) = record.error {
            return Err(StartCallError::Failed(code));
        }
        let calls = &self.calls;
        let free = |call: u32| {
            calls
                .get(call)
                .is_none_or(|call| call.state == CallState::Dally)
        };
        // The lowest free channel, so that the next call of a channel soon acknowledges the last
        // reply.
        let candidates = record
            .channels
            .iter()
            .enumerate()
            .filter(|(_, channel)| free(channel.call) && channel.number < LAST_CALL_NUMBER);
        let Some((index, _)) = candidates.min_by_key(|(_, channel)| channel.busy_until > now)
        else {
            record.wants_channel = true;
            return Err(StartCallError::NoChannel);
        };
        let send_window = match record.cellar {
            Some(cellar) => u32::from(cellar.initial_window).max(UNTOLD_WINDOW),
            None => UNTOLD_WINDOW.min(self.config.send_window),
        };
        record.used_at = now;
        let Some(channel) = record.channels.get_mut(index) else {
            return Err(StartCallError::NoChannel);
        };
        if channel.call == NONE {
            channel.call = self.calls.insert(Call::new(slot, index as u8, false));
        }
        channel.number += 1;
        let call_slot = channel.call;
        let Some(call) = self.calls.get_mut(call_slot) else {
            return Err(StartCallError::Gone);
        };
        call.begin(now, channel.number, window, send_window);
        self.next_generation = self.next_generation.wrapping_add(1);
        call.generation = self.next_generation;
        call.attached = true;
        call.state = CallState::Active;
        Ok(CallId {
            slot: call_slot,
            generation: self.next_generation,
        })
    }

    /// Returns the call, if the id is still valid.
    fn held(&mut self, id: CallId) -> Result<&mut Call, CallError> {
        match self.calls.get_mut(id.slot) {
            Some(call) if call.generation == id.generation => {
                if call.attached {
                    Ok(call)
                } else if call.code != 0 {
                    Err(CallError::Failed(call.code))
                } else {
                    Err(CallError::Gone)
                }
            }
            _ => Err(CallError::Gone),
        }
    }

    /// Appends data to send to the peer. Whole packets leave with the next `poll_transmit`; the
    /// rest waits for more data, `flush` or `finish`.
    ///
    /// # Errors
    /// The call is over, or not in its writing phase.
    pub fn write(
        &mut self,
        now: Time,
        call: CallId,
        data: Bytes,
    ) -> Result<WriteOutcome, CallError> {
        let now = self.advance(now);
        self.drop_excess(now);
        let slot = call.slot;
        let bounds = self.send_bounds(slot);
        let call = self.held(call)?;
        let limit = bounds.of(call);
        if call.send.finished() || (!call.server && call.turned) {
            return Err(CallError::NotWriting);
        }
        if call.send.buffered() >= limit {
            call.want_write = true;
            return Ok(WriteOutcome::Full(data));
        }
        call.progress_at = now;
        self.statistics.bytes_sent += data.len() as u64;
        let Some(call) = self.calls.get_mut(slot) else {
            return Err(CallError::Gone);
        };
        if call.send.buffered() == 0 {
            call.taken_at = now;
        }
        self.buffered.add_sent(call, data.len());
        call.send.write(data);
        self.server_turns(slot);
        self.queue(slot);
        Ok(WriteOutcome::Accepted)
    }

    /// Returns the current bounds of the bytes that a call may hold unacknowledged.
    pub(super) fn send_bounds(&self, call: u32) -> SendBounds {
        let limits = &self.config.limits;
        let free = limits.send_buffers.saturating_sub(self.buffered.sent);
        let connection = self
            .calls
            .get(call)
            .and_then(|call| self.connections.get(call.connection));
        let held_back = connection.is_some_and(|connection| {
            connection.server && !self.is_verified(self.now, connection.peer)
        });
        SendBounds {
            // Until its address is verified, most of a reply waits in its handler.
            free: if held_back { 0 } else { free },
            least: limits.send_buffer,
            most: limits.send_buffer_long_path,
        }
    }

    /// A server that begins to write drops the rest of the request.
    fn server_turns(&mut self, slot: u32) {
        if let Some(call) = self.calls.get_mut(slot)
            && call.server
            && !call.turned
        {
            call.turned = true;
            call.deaf = true;
            let discarded = call.receive.discard();
            self.buffered.sub_received(call, discarded);
        }
    }

    /// Sends the bytes written so far without waiting for a full packet.
    pub fn flush(&mut self, now: Time, call: CallId) {
        self.advance(now);
        if let Ok(held) = self.held(call) {
            held.send.flush();
            self.queue(call.slot);
        }
    }

    /// Declares that nothing more will be written. At the server end this ends the driver's
    /// interest in the call: written data is still delivered, and the id is invalid from now on.
    pub fn finish(&mut self, now: Time, call: CallId) {
        let now = self.advance(now);
        let Ok(held) = self.held(call) else { return };
        held.send.finish();
        held.progress_at = now;
        if held.server {
            held.attached = false;
            held.state = CallState::Hold;
            held.want_read = false;
            held.want_write = false;
            self.server_turns(call.slot);
            self.release_admission(call.slot);
        }
        self.queue(call.slot);
        self.arm_call(call.slot);
    }

    /// Returns the next bytes from the peer.
    pub fn read(&mut self, now: Time, call: CallId) -> ReadOutcome {
        let now = self.advance(now);
        loop {
            let held = match self.held(call) {
                Ok(held) => held,
                Err(CallError::Failed(code)) => return ReadOutcome::Failed(code),
                Err(_) => return ReadOutcome::Failed(code::INVALID_OPERATION),
            };
            let Some((seq, received)) = held.receive.take() else {
                return self.nothing_to_read(now, call.slot);
            };
            held.ack.consumed += 1;
            held.progress_at = now;
            let (connection, channel, number) = (held.connection, held.channel, held.number);
            if let Some(call) = self.calls.get(call.slot) {
                self.buffered.sub_received(call, received.payload.len());
            }
            self.note_consumption(now, call.slot);
            match self.open(now, connection, channel, number, seq, received) {
                Ok(payload) if payload.is_empty() => {}
                Ok(payload) => return ReadOutcome::Chunk(payload),
                Err(code) => {
                    self.detach(call.slot, code);
                    self.fail_connection(now, connection, code, true);
                    return ReadOutcome::Failed(code);
                }
            }
        }
    }

    /// Passes a received packet through the security class.
    fn open(
        &mut self,
        now: Time,
        connection: u32,
        channel: u8,
        number: u32,
        seq: u32,
        received: Received,
    ) -> Result<Bytes, i32> {
        let unix = self.unix_seconds(now);
        let connection = self
            .connections
            .get_mut(connection)
            .ok_or(code::INVALID_OPERATION)?;
        if connection.plain {
            return Ok(received.payload);
        }
        let identity = connection.packet_identity(channel, number, seq, false, unix);
        let Received { payload, checksum } = received;
        match &mut connection.security {
            SecurityState::Client(class) => class.unprotect(&identity, checksum, payload),
            SecurityState::Server(class) => class.unprotect(&identity, checksum, payload),
        }
    }

    /// Handles a `read` without a packet in order: the end, or no data yet.
    fn nothing_to_read(&mut self, now: Time, slot: u32) -> ReadOutcome {
        let Some(call) = self.calls.get_mut(slot) else {
            return ReadOutcome::Failed(code::INVALID_OPERATION);
        };
        if !call.receive.consumed() {
            call.want_read = true;
            return ReadOutcome::Pending;
        }
        if !call.server {
            call.attached = false;
            let packets = call.receive.previous();
            self.end_call(now, slot);
            if let Some(call) = self.calls.get_mut(slot) {
                if packets > SHORT_REPLY {
                    call.ack.request(AckReason::DELAY, 0);
                } else {
                    call.ack.deadline = None;
                    call.ack.request_by(now.plus_micros(FINAL_ACK_DELAY));
                }
            }
            if packets > SHORT_REPLY {
                self.queue(slot);
            }
            self.arm_call(slot);
        }
        ReadOutcome::End
    }

    /// Announces the moved window to the sender when enough was read.
    fn note_consumption(&mut self, now: Time, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.receive.complete() {
            return;
        }
        let cellar = self
            .connections
            .get(call.connection)
            .is_some_and(|c| c.cellar.is_some());
        let threshold = if cellar {
            (call.receive.offered() / CONSUMED_SHARE).clamp(STOCK_CONSUMED, CONSUMED_MAX)
        } else {
            STOCK_CONSUMED
        };
        if call.ack.consumed >= threshold {
            call.ack.request(AckReason::DELAY, 0);
            self.queue(slot);
        } else if call.ack.deadline.is_none() {
            call.ack.request_by(now.plus_micros(CONSUMED_DELAY));
            self.arm_call(slot);
        }
    }

    /// Ends a call with a code that is sent to the peer (0 is sent as -6). The id is invalid from
    /// now on, and no event follows.
    pub fn abort(&mut self, now: Time, call: CallId, code: i32) {
        let now = self.advance(now);
        if self.held(call).is_ok() {
            self.detach(call.slot, 0);
            self.abort_call(
                now,
                call.slot,
                if code == 0 { code::USER_ABORT } else { code },
                false,
            );
        }
    }

    /// Rejects a new call. After [`Refusal::Busy`] the client repeats it under the same number; an
    /// abort uses up the number. No event follows.
    pub fn refuse(&mut self, now: Time, call: CallId, how: Refusal) {
        let now = self.advance(now);
        let Ok(held) = self.held(call) else { return };
        if !held.server {
            return;
        }
        let (slot, channel, number) = (held.connection, held.channel, held.number);
        self.detach(call.slot, 0);
        match how {
            Refusal::Busy => {
                self.end_call(now, call.slot);
                self.send_busy(slot, channel, number);
                if let Some(connection) = self.connections.get_mut(slot)
                    && let Some(channel) = connection.channels.get_mut(usize::from(channel))
                {
                    channel.number = number - 1;
                    if let Some(call) = self.calls.get_mut(call.slot) {
                        call.number = number - 1;
                    }
                }
            }
            Refusal::Abort(code) => {
                self.statistics.overload_aborts = self.statistics.overload_aborts.wrapping_add(1);
                self.abort_call(now, call.slot, code, false);
            }
        }
    }

    /// Ends the driver's interest; later uses of the id return `code`.
    fn detach(&mut self, slot: u32, code: i32) {
        if let Some(call) = self.calls.get_mut(slot) {
            call.attached = false;
            call.code = code;
        }
    }

    /// Fails a call and informs the driver, but not the peer.
    pub(super) fn fail_call(&mut self, now: Time, slot: u32, code: i32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.state == CallState::Dally {
            return;
        }
        call.code = code;
        if call.attached {
            call.attached = false;
            let call = CallId {
                slot,
                generation: call.generation,
            };
            self.events.push_back(Event::CallFailed { call, code });
        }
        self.end_call(now, slot);
    }

    /// Ends a call and informs the peer. `inform`: the driver too.
    pub(super) fn abort_call(&mut self, now: Time, slot: u32, code: i32, inform: bool) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        if call.state == CallState::Dally {
            return;
        }
        if inform {
            self.fail_call(now, slot, code);
        } else {
            self.end_call(now, slot);
        }
        if let Some(call) = self.calls.get_mut(slot) {
            call.abort = code;
            // If a client sent nothing, the server knows nothing of the call.
            if call.server || call.send.packets() > 0 {
                self.send_call_abort(now, slot);
            }
        }
    }

    fn send_call_abort(&mut self, now: Time, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.aborted_at = now;
        let (connection, channel, number) = (call.connection, call.channel, call.number);
        let code = call.abort.to_be_bytes();
        self.statistics.aborts_sent = self.statistics.aborts_sent.wrapping_add(1);
        self.send_ready(connection, PacketType::ABORT, channel, number, &code);
    }

    /// Repeats the abort, since the peer continues a call that we aborted.
    pub(super) fn repeat_abort(&mut self, now: Time, slot: u32) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        if now.micros_since(call.aborted_at) >= ABORT_REPEAT {
            self.send_call_abort(now, slot);
        }
    }

    /// Ends the call; its slot waits for the next call of the channel.
    pub(super) fn end_call(&mut self, _now: Time, slot: u32) {
        self.release_admission(slot);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.state == CallState::Dally {
            return;
        }
        call.state = CallState::Dally;
        let unsent = call.send.acknowledge_all();
        self.buffered.sub_sent(call, unsent);
        call.stops_sending();
        call.congestion = None;
        call.ack.pong = None;
        call.ping_wanted = false;
        call.probe_wanted = None;
        let unread = call.receive.discard();
        self.buffered.sub_received(call, unread);
        let (connection_slot, server) = (call.connection, call.server);
        if server {
            return;
        }
        if let Some(connection) = self.connections.get_mut(connection_slot)
            && connection.wants_channel
        {
            connection.wants_channel = false;
            let generation = self.connections.generation(connection_slot);
            let connection = ConnectionId {
                slot: connection_slot,
                generation,
            };
            self.events.push_back(Event::ChannelFree(connection));
        }
    }

    fn release_admission(&mut self, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if std::mem::take(&mut call.early) {
            self.counts.early_calls.sub(1);
        }
        if !call.admitted {
            return;
        }
        call.admitted = false;
        self.counts.calls.sub(1);
        let host = self
            .connections
            .get(call.connection)
            .and_then(|connection| self.peers.get(connection.peer))
            .map(|peer| peer.host);
        if let Some(host) = host.and_then(|host| self.hosts.get_mut(host)) {
            host.calls = host.calls.saturating_sub(1);
        }
    }
}

/// Largest call number of a channel (kAFS treats call numbers as signed).
const LAST_CALL_NUMBER: u32 = 0x7fff_ffff;
