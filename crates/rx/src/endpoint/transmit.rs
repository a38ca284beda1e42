//! Building of packets, only on request of the driver: one run to one destination at a time.
//!
//! 1. Complete packets (aborts, challenges, answers) go first.
//! 2. Calls follow in the turns of hosts and peers (see [`crate::ready`]). Each sends its answer to
//!    a ping, its ACK, its own ping, or one run of data. Runs of data are built in `run`.

use super::Endpoint;
use crate::call::Call;
use crate::packet::{
    Ack, AckReason, Cellar, Flags, HEADER_SIZE, JUMBO_PAYLOAD, PacketType, Trailer,
};
use crate::time::Time;
use crate::transmit::TransmitBuffer;

impl Endpoint {
    /// Fills `out` with one run of datagrams to one destination; returns false if there is nothing
    /// to send now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut TransmitBuffer) -> bool {
        let now = self.advance(now);
        if self.transmit_control(out) {
            return true;
        }
        while let Some(slot) = self.ready.pop() {
            let Some(call) = self.calls.get_mut(slot) else {
                continue;
            };
            call.queued = false;
            let sent = self.transmit_call(now, slot, out);
            self.arm_call(slot);
            if sent {
                self.ready.sent(out.bytes.len());
                if self.calls.get(slot).is_some_and(has_more) {
                    self.queue(slot);
                }
                return true;
            }
        }
        false
    }

    fn transmit_control(&mut self, out: &mut TransmitBuffer) -> bool {
        let Some(packet) = self.control.pop_front() else {
            return false;
        };
        out.start(packet.to, packet.local);
        out.segment_size = packet.bytes.len();
        let kind = packet.bytes.get(20).map_or(0, |kind| usize::from(*kind));
        if let Some(count) = self.statistics.packets_sent.get_mut(kind.wrapping_sub(1)) {
            *count = count.wrapping_add(1);
        }
        out.bytes.extend_from_slice(&packet.bytes);
        true
    }

    fn transmit_call(&mut self, now: Time, slot: u32, out: &mut TransmitBuffer) -> bool {
        let Some(call) = self.calls.get(slot) else {
            return false;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return false;
        };
        out.start(connection.address, connection.local);
        if connection.server && !self.is_verified(now, connection.peer) {
            return self.transmit_unverified(now, slot, out);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        if let Some(serial) = call.ack.pong.take() {
            self.put_ack(now, slot, AckReason::PING_RESPONSE, serial, None, out);
            return true;
        }
        // Sent before a reply, which would end the round trip that the peer wants to measure.
        if let Some((AckReason::REQUESTED, serial)) = call.ack.now {
            self.put_ack(now, slot, AckReason::REQUESTED, serial, None, out);
            return true;
        }
        if call.expects_answer()
            && call.send.has_work()
            && self.put_data(now, slot, usize::MAX, out)
        {
            return true;
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        if let Some((reason, serial)) = call.ack.now {
            let copies = if reason == AckReason::OUT_OF_SEQUENCE {
                call.ack.repeat.max(1)
            } else {
                1
            };
            for _ in 0..copies.min(out.max_segments as u8) {
                self.put_ack(now, slot, reason, serial, None, out);
            }
            return true;
        }
        if call.expects_answer() && (call.ping_wanted || call.probe_wanted.is_some()) {
            call.ping_wanted = false;
            let size = call.probe_wanted.take();
            self.put_ack(now, slot, AckReason::PING, 0, size, out);
            return true;
        }
        false
    }

    /// Acknowledges the end of a reply when its client connection is closed.
    pub(super) fn send_final_ack(&mut self, slot: u32) {
        let mut buffer = TransmitBuffer::new(1);
        self.put_ack(self.now, slot, AckReason::DELAY, 0, None, &mut buffer);
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return;
        };
        self.control.push_back(super::ControlPacket {
            to: connection.address,
            local: connection.local,
            bytes: buffer.bytes,
        });
    }

    /// Appends an ACK. `size`: total size to pad to, bytes.
    pub(super) fn put_ack(
        &mut self,
        now: Time,
        slot: u32,
        reason: AckReason,
        serial: u32,
        size: Option<u16>,
        out: &mut TransmitBuffer,
    ) {
        let (window, extended) = self.windows();
        let initial = self.initial_window();
        let config = &self.config;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(call.connection) else {
            return;
        };
        let mut header = connection.header(PacketType::ACK, call.channel, call.number);
        header.flags.0 |= Flags::SLOW_START_OK;
        let peer = self.peers.get(connection.peer);
        let near = |window: u32| peer.map_or(window, |peer| peer.receive_window(window));
        let (extended, initial) = (extended.map(near), near(initial));
        if reason == AckReason::PING {
            header.flags.0 |= Flags::REQUEST_ACK;
            call.ping = Some(crate::call::Ping {
                serial: header.serial,
                sent_at: now,
            });
            self.statistics.pings_sent = self.statistics.pings_sent.wrapping_add(1);
            if let Some(size) = size
                && let Some(peer) = self.peers.get_mut(connection.peer)
            {
                peer.mtu
                    .probe_sent(now, size, call.connection, header.serial);
            }
        }
        let offered = call.receive.offer(window.max(extended.unwrap_or(0)));
        self.scratch.clear();
        call.receive.acknowledgements(&mut self.scratch);
        let cellar = extended.map(|_| Cellar {
            window: offered,
            initial_window: u16::try_from(initial).unwrap_or(u16::MAX),
            max_datagram: config.max_datagram,
            ranges: if call.receive.held() > 255 {
                call.receive.ranges()
            } else {
                Vec::new()
            },
        });
        let mtu = u32::from(config.mtu);
        let jumbo = u32::from(config.jumbo_receive.max(1));
        let ack = Ack {
            first_packet: call.receive.first(),
            previous_packet: call.receive.previous(),
            serial,
            reason,
            acks: &self.scratch,
            trailer: Some(Trailer {
                max_datagram: if jumbo > 1 {
                    jumbo_size(jumbo).max(mtu)
                } else {
                    mtu
                },
                interface_mtu: Some(mtu),
                window: Some(window),
                jumbo_max: Some(jumbo),
            }),
            cellar,
        };
        let start = out.bytes.len();
        out.bytes.extend_from_slice(&header.encode());
        ack.encode(&mut out.bytes);
        if let Some(size) = size {
            out.bytes
                .resize((start + usize::from(size)).max(out.bytes.len()), 0);
        }
        let length = out.bytes.len() - start;
        if out.segment_size == 0 {
            out.segment_size = length;
        }
        if reason != AckReason::PING_RESPONSE || call.ack.now.is_none() {
            call.ack.sent();
        }
        call.sent_at = now;
        connection.used_at = now;
        self.statistics.acks_sent = self.statistics.acks_sent.wrapping_add(1);
        if let Some(count) = self.statistics.packets_sent.get_mut(1) {
            *count = count.wrapping_add(1);
        }
        connection.traffic[1] = connection.traffic[1].wrapping_add(1);
        connection.traffic[3] = connection.traffic[3].wrapping_add(length as u32);
    }

    /// Receive windows to offer now, to stock peers and to Cellar peers. They shrink as the common
    /// buffer of all calls fills up.
    fn windows(&self) -> (u32, Option<u32>) {
        let limit = self.config.limits.receive_buffer.max(1);
        let free = limit.saturating_sub(self.buffered.received);
        let scale = |window: u32| {
            if free >= limit / 2 {
                window
            } else {
                let part = u64::from(window) * free as u64 * 2 / limit as u64;
                u32::try_from(part).unwrap_or(window).max(1)
            }
        };
        let extended = self.config.extended_window;
        (
            scale(self.config.receive_window),
            (extended > 255).then(|| scale(extended)),
        )
    }
}

/// Whether a call has more to send right away.
fn has_more(call: &Call) -> bool {
    call.ack.now.is_some()
        || call.ack.pong.is_some()
        || (call.expects_answer()
            && (call.ping_wanted
                || call.probe_wanted.is_some()
                || (call.pace_at.is_none() && call.send.has_work())))
}

/// Size of a jumbogram of `packets`.
pub(super) const fn jumbo_size(packets: u32) -> u32 {
    HEADER_SIZE as u32 + packets * JUMBO_PAYLOAD as u32 + (packets - 1) * 4
}
