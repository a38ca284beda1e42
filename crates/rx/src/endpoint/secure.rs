//! Authentication and failure of connections.
//!
//! 1. An unauthenticated server connection sends CHALLENGE when a call arrives, and repeats it
//!    every two seconds, fifty times. Then its waiting calls fail with -1.
//! 2. A RESPONSE is checked only while a challenge is pending. On success the waiting calls are
//!    presented, except those that are over according to the call numbers in it. On failure the
//!    connection fails at once, but the ABORT is sent one second later.
//! 3. A client answers a CHALLENGE only while the connection has an active call; otherwise it would
//!    be an oracle.
//! 4. A server process has one challenge for a connection. Another one therefore comes from a
//!    process that was started since. A call is lost if the earlier process has acknowledged its
//!    whole request, and fails with [`code::GONE`]. The new process may have acknowledged it too,
//!    and only its first challenge may be lost. The serials of one process are close together.
//! 5. A failed connection answers each further packet with its ABORT (after the first one was
//!    sent).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::Endpoint;
use crate::call::CallState;
use crate::code;
use crate::connection::{Challenge, SecurityState};
use crate::event::Event;
use crate::id::ConnectionId;
use crate::packet::{Header, PacketType};
use crate::time::Time;
use crate::timers::TimerOwner;

/// The most packets of a server process between two of its packets on a connection that a client
/// compares. The serials of a process begin at a random number.
const ONE_PROCESS: u32 = 1 << 16;
/// Interval of challenges, microseconds.
const CHALLENGE_REPEAT: u64 = 2_000_000;
const CHALLENGES: u8 = 50;
/// Delay of the ABORT after a failed authentication, microseconds.
const ABORT_DELAY: u64 = 1_000_000;

impl Endpoint {
    /// Sends the CHALLENGE unless one is pending.
    pub(super) fn challenge(&mut self, now: Time, slot: u32) {
        let unix = self.unix_seconds(now);
        let random = self.random.next();
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection
            .challenge
            .is_some_and(|challenge| now < challenge.next_at)
        {
            return;
        }
        let (sent, out) = connection
            .challenge
            .map_or((0, false), |challenge| (challenge.sent, challenge.out));
        if sent >= CHALLENGES {
            connection.challenge = None;
            self.fail_channels(now, slot, code::CALL_DEAD);
            return;
        }
        let identity = connection.identity(unix);
        let SecurityState::Server(class) = &mut connection.security else {
            return;
        };
        let payload = class.challenge(&identity, random);
        connection.challenge = Some(Challenge {
            sent: sent + 1,
            out: out || !payload.is_empty(),
            next_at: now.plus_micros(CHALLENGE_REPEAT),
        });
        if !payload.is_empty() {
            self.send_ready(slot, PacketType::CHALLENGE, 0, 0, &payload);
        }
        self.arm_connection(slot);
    }

    pub(super) fn take_challenge(&mut self, now: Time, slot: u32, header: &Header, payload: &[u8]) {
        let unix = self.unix_seconds(now);
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection.server || header.call_number != 0 {
            return;
        }
        let mut hasher = DefaultHasher::new();
        payload.hash(&mut hasher);
        let mark = hasher.finish();
        if connection.answered.is_some_and(|answered| answered != mark) {
            self.fail_acknowledged(now, slot, header.serial);
        }
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let calls = &self.calls;
        let under_way = connection.channels.iter().any(|channel| {
            calls
                .get(channel.call)
                .is_some_and(|call| call.state == CallState::Active)
        });
        if !under_way {
            return;
        }
        let mut identity = connection.identity(unix);
        let channels = identity.call_numbers.iter_mut().zip(connection.channels);
        for (number, channel) in channels {
            let over = calls
                .get(channel.call)
                .is_none_or(|call| call.state != CallState::Active);
            // A finished call must not be accepted again from an attacker that recorded its
            // packets.
            *number += u32::from(over && *number > 0);
        }
        let SecurityState::Client(class) = &mut connection.security else {
            return;
        };
        match class.respond(&identity, payload) {
            Ok(response) => {
                connection.answered = Some(mark);
                self.send_ready(slot, PacketType::RESPONSE, 0, 0, &response);
            }
            Err(code) => self.fail_connection(now, slot, code, true),
        }
    }

    /// Fails the calls of a client connection whose request another process has acknowledged as a
    /// whole than that which sent a packet with this serial. The other calls go to the new process.
    fn fail_acknowledged(&mut self, now: Time, slot: u32, serial: u32) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        for channel in connection.channels {
            let is_lost = self.calls.get(channel.call).is_some_and(|call| {
                let distance = serial.wrapping_sub(call.ack_serial) as i32;
                call.state == CallState::Active
                    && call.send.all_acked()
                    && distance.unsigned_abs() > ONE_PROCESS
            });
            if is_lost {
                self.fail_call(now, channel.call, code::GONE);
            }
        }
    }

    pub(super) fn take_response(&mut self, now: Time, slot: u32, header: &Header, payload: &[u8]) {
        let unix = self.unix_seconds(now);
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let is_asked = connection.challenge.is_some_and(|challenge| challenge.out);
        if !connection.server || connection.authenticated || !is_asked {
            return;
        }
        let identity = connection.identity(unix);
        let SecurityState::Server(class) = &mut connection.security else {
            return;
        };
        let claimed = match class.response(&identity, header.checksum, payload) {
            Ok(claimed) => claimed,
            Err(code) => {
                self.refuse_authentication(now, slot, code);
                return;
            }
        };
        connection.authenticated = true;
        connection.challenge = None;
        for (channel, number) in connection.channels.iter_mut().zip(claimed) {
            // The call of that number may be active, and its packets may still arrive.
            channel.number = channel.number.max(number.saturating_sub(1));
        }
        let waiting = connection.channels.map(|channel| channel.call);
        let peer = connection.peer;
        for (slot_of_call, oldest) in waiting.into_iter().zip(claimed) {
            let call = self.calls.get(slot_of_call);
            if call.is_some_and(|call| call.number < oldest) {
                // The client has finished this call: its packets are a replay.
                self.fail_call(now, slot_of_call, code::CALL_DEAD);
            } else {
                self.try_present(now, slot, slot_of_call);
            }
        }
        self.proven(now, peer);
    }

    fn refuse_authentication(&mut self, now: Time, slot: u32, code: i32) {
        self.fail_connection(now, slot, code, false);
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.abort_at = Some(now.plus_micros(ABORT_DELAY));
        }
        self.arm_connection(slot);
    }

    /// Fails a connection permanently; `tell`: sends the abort now.
    pub(super) fn fail_connection(&mut self, now: Time, slot: u32, code: i32, tell: bool) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection.error.is_some() {
            return;
        }
        connection.error = Some(code);
        connection.challenge = None;
        self.fail_channels(now, slot, code);
        let generation = self.connections.generation(slot);
        let connection = ConnectionId { slot, generation };
        self.events
            .push_back(Event::ConnectionFailed { connection, code });
        if tell {
            self.send_connection_abort(slot);
        }
    }

    /// Fails all calls of a connection.
    pub(super) fn fail_channels(&mut self, now: Time, slot: u32, code: i32) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        for channel in connection.channels {
            self.fail_call(now, channel.call, code);
        }
    }

    fn send_connection_abort(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Some(code) = connection.error else { return };
        self.statistics.aborts_sent = self.statistics.aborts_sent.wrapping_add(1);
        self.send_ready(slot, PacketType::ABORT, 0, 0, &code.to_be_bytes());
    }

    /// Repeats the abort for a packet on a failed connection.
    pub(super) fn repeat_connection_abort(&mut self, now: Time, slot: u32) {
        if self.connections.get(slot).is_some_and(|connection| {
            connection.server && connection.abort_at.is_none_or(|at| at <= now)
        }) {
            self.send_connection_abort(slot);
        }
    }

    /// Arms the timer of a connection (not of its calls).
    pub(super) fn arm_connection(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let challenge = connection
            .challenge
            .map_or(Time::NEVER, |challenge| challenge.next_at);
        let deadline = challenge.min(connection.abort_at.unwrap_or(Time::NEVER));
        if deadline < connection.armed {
            connection.armed = deadline;
            self.timers.push(deadline, TimerOwner::Connection(slot));
        }
    }

    /// Handles the timer of a connection.
    pub(super) fn connection_due(&mut self, now: Time, slot: u32, at: Time) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection.armed != at {
            return;
        }
        connection.armed = Time::NEVER;
        if connection.abort_at.is_some_and(|at| at <= now) {
            connection.abort_at = None;
            self.send_connection_abort(slot);
        } else if connection
            .challenge
            .is_some_and(|challenge| challenge.next_at <= now)
        {
            self.challenge(now, slot);
        }
        self.arm_connection(slot);
    }
}
