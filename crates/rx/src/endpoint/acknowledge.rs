//! Processing of ACK, ACKALL, BUSY and ABORT packets.

use super::Endpoint;
use super::data::UNTOLD_WINDOW;
use crate::call::CallState;
use crate::code;
use crate::connection::CellarPeer;
use crate::event::Event;
use crate::id::CallId;
use crate::packet::{Ack, AckReason, Flags, Header};
use crate::statistics::ROUND_TRIP_BOUNDS_MICROS;
use crate::time::Time;

/// Time for which a channel is avoided after BUSY, microseconds.
const BUSY_TIME: u64 = 2_000_000;
/// A reordered acknowledgement arrives at most this much later, microseconds.
const OVERTAKEN_TIME: u64 = 2_000_000;

impl Endpoint {
    pub(super) fn take_ack(&mut self, now: Time, slot: u32, header: &Header, payload: &[u8]) {
        let Some(ack) = Ack::decode(payload) else {
            return;
        };
        self.look_for_proof(now, slot, ack.serial);
        let Some(call_slot) = self.current_call(slot, header) else {
            return;
        };
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        self.statistics.acks_read = self.statistics.acks_read.wrapping_add(1);
        if call.state == CallState::Dally {
            if call.abort != 0 {
                self.repeat_abort(now, call_slot);
            } else if header.flags.has(Flags::REQUEST_ACK) {
                call.ack.pong = Some(header.serial);
                self.queue(call_slot);
            }
            return;
        }
        if call.send.ignores(&ack) {
            self.statistics.acks_ignored = self.statistics.acks_ignored.wrapping_add(1);
            // This ACK was not merely reordered: the server was restarted and has only a part of
            // the request.
            let overtaken = now.micros_since(call.received_at) <= OVERTAKEN_TIME;
            if !call.server && !overtaken && call.send.is_older_ack(&ack) {
                self.fail_call(now, call_slot, code::GONE);
            }
            return;
        }
        call.received_at = now;
        call.ack_serial = header.serial;
        if header.flags.has(Flags::REQUEST_ACK) {
            call.ack.pong = Some(header.serial);
        }
        self.learn(slot, call_slot, &ack);
        if ack.reason == AckReason::PING_RESPONSE {
            self.take_pong(now, slot, call_slot, ack.serial);
        }
        self.take_progress(now, call_slot, &ack);
        self.arm_call(call_slot);
    }

    /// Applies the windows and sizes of an ACK.
    fn learn(&mut self, slot: u32, call_slot: u32, ack: &Ack<'_>) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        let own_max = self.config.max_datagram;
        if let Some(peer) = self.peers.get_mut(connection.peer) {
            let max = ack
                .cellar
                .as_ref()
                .map(|cellar| cellar.max_datagram.min(own_max));
            peer.learn_sizes(ack.trailer.as_ref(), max);
        }
        if let Some(cellar) = &ack.cellar {
            connection.cellar = Some(CellarPeer::new(cellar));
            call.send
                .set_window(cellar.window.clamp(1, crate::config::MAX_EXTENDED_WINDOW));
        } else {
            let announced = ack.trailer.and_then(|trailer| trailer.window);
            if let Some(window) = announced {
                call.send
                    .set_window(window.clamp(1, self.config.send_window));
            } else if call.send.window() > self.config.send_window {
                call.send.set_window(UNTOLD_WINDOW);
            }
        }
    }

    fn take_pong(&mut self, now: Time, slot: u32, call_slot: u32, serial: u32) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return;
        };
        if peer.mtu.answered(slot, serial) {
            self.statistics.mtu_growths += 1;
        }
        let Some(ping) = call.ping.filter(|ping| ping.serial == serial) else {
            return;
        };
        call.ping = None;
        let rtt = now.micros_since(ping.sent_at);
        peer.rtt.sample(rtt);
        self.count_rtt(rtt);
    }

    fn count_rtt(&mut self, micros: u64) {
        let statistics = &mut self.statistics;
        statistics.rtt_samples = statistics.rtt_samples.wrapping_add(1);
        statistics.rtt_sum_micros += micros;
        let slot = ROUND_TRIP_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        if let Some(count) = statistics.rtt_counts.get_mut(slot) {
            *count = count.wrapping_add(1);
        }
        statistics.rtt_max_micros = statistics.rtt_max_micros.max(micros);
        if statistics.rtt_min_micros == 0 || micros < statistics.rtt_min_micros {
            statistics.rtt_min_micros = micros;
        }
    }

    /// Applies the acknowledgements of our packets.
    fn take_progress(&mut self, now: Time, call_slot: u32, ack: &Ack<'_>) {
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return;
        };
        let held = call.send.buffered();
        let mut outcome = call.send.on_ack(now, ack, peer.rtt.least);
        self.buffered.sub_sent(call, held - call.send.buffered());
        if let Some(rtt) = outcome.rtt {
            peer.rtt.sample(rtt);
        }
        if outcome.progress {
            call.backoff = 0;
            call.blackholed = false;
            call.tail_probed = false;
            call.resend_base = now;
            call.progress_at = now;
            call.taken_at = now;
        }
        let (lost, again) = call.send.detect_losses(now, peer.rtt.smoothed);
        call.rack_at = again;
        if let Some(congestion) = &mut call.congestion
            && (outcome.progress || lost > 0)
        {
            outcome.sample.lost = lost;
            outcome.sample.in_flight = call.send.in_flight();
            let least = peer.rtt.least;
            if self.config.path_share && connection.shares_path(least) {
                let counted = &mut call.counted;
                peer.share.on_ack(now, least, &outcome.sample, counted);
                congestion.shares(now, peer.share.bound(least, counted));
            }
            congestion.on_ack(now, &outcome.sample);
        }
        let finished = call.send.all_acked();
        if finished && let Some(congestion) = &call.congestion {
            peer.path = congestion.model(now).or(peer.path);
        }
        if let Some(rtt) = outcome.rtt {
            self.count_rtt(rtt);
        }
        self.after_progress(now, call_slot, finished);
    }

    fn after_progress(&mut self, now: Time, slot: u32, finished: bool) {
        let bounds = self.send_bounds(slot);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let limit = bounds.of(call);
        if call.want_write && call.attached && call.send.buffered() < limit / 4 * 3 {
            call.want_write = false;
            let id = CallId {
                slot,
                generation: call.generation,
            };
            self.events.push_back(Event::Writable(id));
        }
        if finished && call.state == CallState::Hold {
            self.end_call(now, slot);
            return;
        }
        self.queue(slot);
    }

    pub(super) fn take_ack_all(&mut self, now: Time, slot: u32, header: &Header) {
        let Some(call_slot) = self.current_call(slot, header) else {
            return;
        };
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        if call.state == CallState::Dally || !call.send.last_sent() {
            return;
        }
        call.received_at = now;
        let sent = call.send.acknowledge_all();
        self.buffered.sub_sent(call, sent);
        call.stops_sending();
        self.after_progress(now, call_slot, true);
    }

    pub(super) fn take_busy(&mut self, now: Time, slot: u32, header: &Header) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection.server {
            return;
        }
        if let Some(channel) = connection.channels.get_mut(header.channel())
            && channel.number == header.call_number
        {
            channel.busy_until = now.plus_micros(BUSY_TIME);
        }
        if let Some(call_slot) = self.current_call(slot, header)
            && let Some(call) = self.calls.get_mut(call_slot)
            && call.state == CallState::Active
        {
            call.received_at = now;
        }
    }

    pub(super) fn take_abort(&mut self, now: Time, slot: u32, header: &Header, payload: &[u8]) {
        let Some(bytes) = payload.first_chunk::<4>() else {
            return;
        };
        // OpenAFS takes 0 for success, but the sender of an abort wants to end the call.
        let code = match i32::from_be_bytes(*bytes) {
            0 => code::USER_ABORT,
            code => code,
        };
        if header.call_number == 0 {
            self.fail_connection(now, slot, code, false);
            return;
        }
        let Some(call_slot) = self.current_call(slot, header) else {
            return;
        };
        let Some(call) = self.calls.get_mut(call_slot) else {
            return;
        };
        if call.state == CallState::Dally {
            return;
        }
        self.fail_call(now, call_slot, code);
    }
}
