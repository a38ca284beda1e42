//! Timers: retransmission, acknowledgement, keep-alive, and giving up.
//!
//! 1. Unacknowledged data: if several packets are out, the newest is first retransmitted after two
//!    round trips and a margin. Its acknowledgement shows which others are missing. After the
//!    retransmission timeout, everything counts as lost, and the timeout doubles up to a minute.
//! 2. If nothing was sent for a sixth of the dead time while a call exists, a ping is sent. If the
//!    server has received the whole request, this happens after a second.
//! 3. If nothing was received for the dead time, the call fails with -1. It fails with -8 if
//!    packets that are too large for the path may be the cause. That happens at once if the peer is
//!    heard but acknowledges none of them. After the idle dead time or the hard dead time it fails
//!    with -3, and the peer gets an abort. The same applies to a server's call whose peer is alive
//!    but accepts none of the reply, since the reply occupies memory.
//! 4. A server answers pings for every call that it knows, and a restart loses all calls. Suppose
//!    that it has received the whole request, and other packets of it arrive while [`PINGS_LOST`]
//!    pings in a row stay unanswered. The call then fails with [`code::GONE`]. From the second ping
//!    on it also gets a version query, which every server answers. A server that acknowledges less
//!    than it did seconds ago has lost the call as well (`acknowledge.rs`).

use std::time::Duration;

use super::Endpoint;
use super::data::REACH_REPEAT;
use crate::call::{Call, CallState};
use crate::code;
use crate::connection::Connection;
use crate::packet::{AckReason, HEADER_SIZE};
use crate::peer::Peer;
use crate::rtt::MAX_RTO;
use crate::time::Time;
use crate::timers::TimerOwner;

/// Added to two round trips before the newest packet is retransmitted, microseconds.
const TAIL_MARGIN: u64 = 20_000;
/// Added to the retransmission timeout while only the last packet of a reply is out, since stock
/// clients delay its acknowledgement; microseconds.
const REPLY_MARGIN: u64 = 400_000;
/// Failed retransmissions after which the packet size counts as the cause.
const BLAME_SIZE: u8 = 3;
/// Failed retransmissions after which a call with large packets ends, if the peer is heard.
const GIVE_UP_SIZE: u8 = 4;
/// A peer counts as heard if a packet arrived within this time, microseconds.
const RECEIVED_LATELY: u64 = 6_000_000;
/// Longest interval of pings for a request that the server has received, microseconds.
const CLIENT_PING: u64 = 1_000_000;
/// The same while the last ping is unanswered, for the first [`PINGS_SOON`] pings.
const REPEATED_PING: u64 = 300_000;
const PINGS_SOON: u8 = PINGS_LOST + 2;
/// Rule 4. If a tenth of all packets is lost, the probability to lose this many pings in a row is
/// less than one in ten million.
const PINGS_LOST: u8 = 10;

/// Time limits of a call, microseconds.
struct Limits {
    dead: u64,
    idle: Option<u64>,
    hard: Option<u64>,
    stall: u64,
}

impl Endpoint {
    /// Returns the time at which `handle_timeout` should be called; it may be too early.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        while let Some((at, target)) = self.timers.peek() {
            let valid = match target {
                TimerOwner::Sweep => true,
                TimerOwner::Call(slot) => self.calls.get(slot).is_some_and(|call| call.armed == at),
                TimerOwner::Connection(slot) => self
                    .connections
                    .get(slot)
                    .is_some_and(|connection| connection.armed == at),
            };
            if valid {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Handles all expired timers.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.advance(now);
        while let Some((at, target)) = self.timers.pop_due(now) {
            match target {
                TimerOwner::Call(slot) => self.call_due(now, slot, at),
                TimerOwner::Connection(slot) => self.connection_due(now, slot, at),
                TimerOwner::Sweep => {
                    self.sweep(now);
                    self.timers
                        .push(now + super::SWEEP_INTERVAL, TimerOwner::Sweep);
                }
            }
        }
    }

    fn limits(&self, connection: &Connection) -> Limits {
        let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        let options = &connection.options;
        Limits {
            dead: micros(options.dead_time.unwrap_or(self.config.dead_time)).max(1_000),
            idle: options
                .idle_dead_time
                .or(self.config.idle_dead_time)
                .map(micros),
            hard: options
                .hard_dead_time
                .or(self.config.hard_dead_time)
                .map(micros),
            stall: micros(self.config.stall_dead_time),
        }
    }

    /// Arms the timer of a call for its next deadline.
    pub(super) fn arm_call(&mut self, slot: u32) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return;
        };
        let Some(peer) = self.peers.get(connection.peer) else {
            return;
        };
        let mut deadline = call.ack.deadline.unwrap_or(Time::NEVER);
        if call.expects_answer() {
            let limits = self.limits(connection);
            deadline = deadline
                .min(resend_at(call, peer))
                .min(call.rack_at.unwrap_or(Time::NEVER))
                .min(call.pace_at.unwrap_or(Time::NEVER))
                .min(call.reach_at.unwrap_or(Time::NEVER))
                .min(ping_at(call, &limits))
                .min(death_at(call, &limits).0);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if deadline < call.armed {
            call.armed = deadline;
            self.timers.push(deadline, TimerOwner::Call(slot));
        }
    }

    fn call_due(&mut self, now: Time, slot: u32, at: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.armed != at {
            return;
        }
        call.armed = Time::NEVER;
        if call.ack.deadline.is_some_and(|deadline| deadline <= now) {
            call.ack.deadline = None;
            call.ack.request(AckReason::DELAY, 0);
            self.queue(slot);
        }
        if self.calls.get(slot).is_some_and(Call::expects_answer) && !self.give_up(now, slot) {
            self.due_sending(now, slot);
        }
        self.arm_call(slot);
    }

    /// Ends a call that exceeded a time limit; returns whether it did.
    fn give_up(&mut self, now: Time, slot: u32) -> bool {
        let Some(call) = self.calls.get(slot) else {
            return true;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return true;
        };
        let (at, code) = death_at(call, &self.limits(connection));
        let received_lately = now.micros_since(call.received_at) < RECEIVED_LATELY;
        if call.blackholed && call.backoff > GIVE_UP_SIZE && received_lately {
            self.abort_call(now, slot, code::MESSAGE_SIZE, true);
            return true;
        }
        if now < at {
            return false;
        }
        if code == code::CALL_TIMEOUT {
            self.abort_call(now, slot, code, true);
        } else if code == code::GONE {
            self.fail_call(now, slot, code);
        } else if call.blackholed {
            self.fail_call(now, slot, code::MESSAGE_SIZE);
        } else if call.server {
            self.fail_call(now, slot, code);
        } else {
            // A server that was only stalled must not start the call, as it may be repeated.
            self.abort_call(now, slot, code, true);
        }
        true
    }

    fn due_sending(&mut self, now: Time, slot: u32) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return;
        };
        let mut wanted = false;
        if call.rack_at.is_some_and(|at| at <= now) {
            let (_, again) = call.send.detect_losses(now, peer.rtt.smoothed);
            call.rack_at = again;
            wanted = true;
        }
        if call.pace_at.is_some_and(|at| at <= now) {
            call.pace_at = None;
            wanted = true;
        }
        if resend_at(call, peer) <= now {
            if resend_due(now, call, peer) {
                self.statistics.mtu_shrinks += 1;
            }
            // Packets to an unverified address may not be repeated; an answer to this ping permits
            // it.
            call.ping_wanted |= call.server && !peer.proof.holds(now);
            wanted = true;
        }
        if call.reach_at.is_some_and(|at| at <= now) {
            call.reach_at = Some(now.plus_micros(REACH_REPEAT));
            call.ping_wanted = true;
            wanted = true;
        }
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return;
        };
        let Some(peer) = self.peers.get(connection.peer) else {
            return;
        };
        if ping_at(call, &self.limits(connection)) <= now {
            wanted = true;
            // Rule 4.
            let missed = is_done_sending(call) && call.is_missed();
            let lost = missed && peer.received_at > call.pinged_at;
            if missed {
                let address = connection.address;
                self.ask_version(now, address);
            }
            if let Some(call) = self.calls.get_mut(slot) {
                let count = |count: u8, more: bool| match missed {
                    true => count.saturating_add(more.into()),
                    false => 0,
                };
                call.pings_missed = count(call.pings_missed, true);
                call.pings_lost = count(call.pings_lost, lost);
                call.pinged_at = now;
                call.ping_wanted = true;
                // The next ping waits until this one had its chance to leave.
                call.sent_at = now;
            }
        }
        if wanted {
            self.queue(slot);
        }
    }
}

fn tail_probe_due(call: &Call, peer: &Peer) -> bool {
    call.backoff == 0
        && !call.tail_probed
        && peer.rtt.samples > 0
        && call.send.in_flight_packets() > 1
}

/// Returns the time of the next retransmission.
fn resend_at(call: &Call, peer: &Peer) -> Time {
    if !call.send.outstanding() || call.send.in_flight() == 0 {
        return Time::NEVER;
    }
    if tail_probe_due(call, peer) {
        return call
            .resend_base
            .plus_micros(2 * peer.rtt.smoothed + TAIL_MARGIN);
    }
    let single = call.server && call.send.last_sent() && call.send.in_flight_packets() == 1;
    let margin = if single { REPLY_MARGIN } else { 0 };
    let rto = (peer.rtt.rto() + margin) << call.backoff.min(8);
    call.resend_base.plus_micros(rto.min(MAX_RTO))
}

/// Handles the retransmission timeout. Returns true if the path size was reduced.
fn resend_due(now: Time, call: &mut Call, peer: &mut Peer) -> bool {
    call.resend_base = now;
    if tail_probe_due(call, peer) {
        call.tail_probed = true;
        call.send.mark_tail_lost();
        return false;
    }
    call.backoff = call.backoff.saturating_add(1);
    call.send.mark_all_lost();
    call.rack_at = None;
    if let Some(congestion) = &mut call.congestion {
        congestion.on_timeout();
        peer.share.on_timeout();
    }
    let size = call
        .send
        .largest_outstanding()
        .saturating_add(HEADER_SIZE as u16);
    if call.backoff >= BLAME_SIZE && size > peer.mtu.base() {
        call.blackholed = true;
        return peer.mtu.shrink(now, size);
    }
    false
}

/// Returns the time of the next ping.
fn ping_at(call: &Call, limits: &Limits) -> Time {
    if !call.known_to_peer() {
        return Time::NEVER;
    }
    let time = limits.dead / 6;
    let time = match is_done_sending(call) {
        false => time,
        true if call.is_missed() && call.pings_missed < PINGS_SOON => time.min(REPEATED_PING),
        true => time.min(CLIENT_PING),
    };
    call.sent_at.plus_micros(time)
}

/// Whether it is a client's call whose whole request the server has received.
fn is_done_sending(call: &Call) -> bool {
    !call.server && call.send.all_acked()
}

/// Returns the time at which the call fails, and the code.
fn death_at(call: &Call, limits: &Limits) -> (Time, i32) {
    let mut death = (Time::NEVER, code::CALL_DEAD);
    if call.known_to_peer() {
        death.0 = call.received_at.plus_micros(limits.dead);
    }
    // Rule 4.
    if is_done_sending(call) && call.is_missed() && call.pings_lost >= PINGS_LOST {
        death = (call.pinged_at, code::GONE);
    }
    let idle = limits.idle.filter(|_| call.state != CallState::Waiting);
    let stall = (call.server && call.send.buffered() > 0).then_some(limits.stall);
    for (from, limit) in [
        (call.progress_at, idle),
        (call.started_at, limits.hard),
        (call.taken_at, stall),
    ] {
        if let Some(limit) = limit {
            let at = from.plus_micros(limit);
            if at < death.0 {
                death = (at, code::CALL_TIMEOUT);
            }
        }
    }
    death
}
