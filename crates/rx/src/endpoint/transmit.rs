//! Packets out: made only when the driver asks, one run to one destination at a time.
//!
//! 1. Packets that are ready as they are (aborts, challenges, answers) go first.
//! 2. Then calls in turn. Each gives its answer to a ping, its ACK, its own ping, or one run of data.
//! 3. A run is packets of one size: the buffer can be sent with segmentation offload. A packet larger than
//!    the first ends the run before it, a smaller one ends it after it. The congestion window and pacing bound it.
//! 4. REQUEST_ACK is set on retransmissions, on the last packet before the sender must stop, on the last of a run
//!    to a Cellar peer, and while the round trip is not known; never on the last packet of a reply
//!    (a stock client could then only soft-acknowledge it: rx-wire facts 2.2).

use super::Endpoint;
use crate::call::Call;
use crate::congestion::Congestion;
use crate::connection::Security;
use crate::packet::{
    Ack, AckReason, Cellar, Flags, HEADER_SIZE, JUMBO_PAYLOAD, PacketType, Trailer,
};
use crate::send::Outgoing;
use crate::time::Time;
use crate::transmit::TransmitBuffer;

/// Window before there is a model of the path, packets.
const INITIAL_PACKETS: u64 = 16;
/// After a timeout without a model, packets.
const TIMEOUT_PACKETS: u64 = 4;
/// A call that sent this many packets gets a congestion controller.
const SHORT_SENDING: u32 = 8;
/// A path model older than this does not help the next call, microseconds.
const PATH_LIFE: u64 = 60_000_000;
/// Packets sent before larger ones are tried.
const PROBE_AFTER: u32 = 64;

impl Endpoint {
    /// Fills `out` with one run of datagrams to one destination; false: nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut TransmitBuffer) -> bool {
        let now = self.advance(now);
        if self.transmit_control(out) {
            return true;
        }
        while let Some(slot) = self.ready.pop_front() {
            let Some(call) = self.calls.get_mut(slot) else {
                continue;
            };
            call.queued = false;
            let sent = self.transmit_call(now, slot, out);
            self.arm_call(slot);
            if sent {
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
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let Some(connection) = self.connections.get(call.connection) else {
            return false;
        };
        out.start(connection.address, connection.local);
        if let Some(serial) = call.ack.pong.take() {
            self.put_ack(now, slot, AckReason::PING_RESPONSE, serial, None, out);
            return true;
        }
        // Before a reply, which would end the round trip that the peer wants to measure.
        if let Some((AckReason::REQUESTED, serial)) = call.ack.now {
            self.put_ack(now, slot, AckReason::REQUESTED, serial, None, out);
            return true;
        }
        if call.alive() && call.send.has_work() && self.put_data(now, slot, out) {
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
        if call.alive() && (call.ping_wanted || call.probe_wanted.is_some()) {
            call.ping_wanted = false;
            let size = call.probe_wanted.take();
            self.put_ack(now, slot, AckReason::PING, 0, size, out);
            return true;
        }
        false
    }

    /// A client connection is closed while the end of a reply is unacknowledged.
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

    /// Appends an ACK. `size`: pad to this many bytes in all.
    fn put_ack(
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

    /// Receive windows to offer now: to stock peers, and to Cellar peers. They shrink as the buffer
    /// for all calls fills up.
    fn windows(&self) -> (u32, Option<u32>) {
        let limit = self.config.limits.receive_buffer.max(1);
        let free = limit.saturating_sub(self.receive_buffered);
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

    /// Appends a run of DATA packets.
    fn put_data(&mut self, now: Time, slot: u32, out: &mut TransmitBuffer) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let Some(connection) = self.connections.get_mut(call.connection) else {
            return false;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return false;
        };
        let overhead = connection.overhead();
        let room = usize::from(overhead.header) + usize::from(overhead.trailer);
        let packet_size = usize::from(peer.packet_size());
        let jumbo = if self.config.jumbo_send {
            jumbo_count(peer)
        } else {
            1
        };
        let payload = if jumbo > 1 {
            JUMBO_PAYLOAD
        } else {
            packet_size - HEADER_SIZE
        };
        let most = u16::try_from(payload.saturating_sub(room))
            .unwrap_or(u16::MAX)
            .max(1);
        let bulk = call.send.packets() >= SHORT_SENDING;
        if bulk && call.congestion.is_none() {
            let path = peer
                .path
                .filter(|path| now.micros_since(path.at) < PATH_LIFE);
            let size = packet_size as u64;
            let controller = Congestion::new(now, INITIAL_PACKETS * size, size, path);
            call.congestion = Some(Box::new(controller));
        }
        let window = match &call.congestion {
            Some(congestion) => congestion.window(),
            None if call.backoff > 0 => TIMEOUT_PACKETS * packet_size as u64,
            None => INITIAL_PACKETS * packet_size as u64,
        };
        let mut allowance = match &mut call.congestion {
            Some(congestion) => congestion.allowance(now),
            None => u64::MAX,
        };
        call.pace_at = None;
        let mut last_flags = None;
        let mut stopped = false;
        let mut ended_by_reply = false;
        let mut segments = 0;
        let mut in_datagram = 0;
        while segments < out.max_segments {
            let Some(packet) = call.send.next_packet(most) else {
                call.send.mark_limited();
                stopped = call.send.window_full();
                break;
            };
            let size = HEADER_SIZE + room + usize::from(packet.length);
            if segments > 0 && (size > out.segment_size || out.bytes.len() + size > out.max_bytes) {
                break;
            }
            let counted = crate::send::wire_size(packet.length);
            if call.send.in_flight() + counted > window && call.send.in_flight() > 0 {
                stopped = true;
                break;
            }
            if allowance < counted {
                if let Some(congestion) = &call.congestion {
                    call.pace_at = Some(congestion.next_burst(now));
                }
                break;
            }
            allowance -= counted;
            let start = out.bytes.len();
            let mut header = connection.header(PacketType::DATA, call.channel, call.number);
            header.seq = packet.seq;
            ended_by_reply = packet.last && call.server;
            if packet.last {
                header.flags.0 |= Flags::LAST_PACKET;
            }
            if !ended_by_reply && (packet.resend || peer.rtt.samples == 0) {
                header.flags.0 |= Flags::REQUEST_ACK;
            }
            out.bytes.extend_from_slice(&header.encode());
            let at = out.bytes.len();
            out.bytes.resize(at + usize::from(overhead.header), 0);
            call.send.copy(&packet, &mut out.bytes);
            if !connection.plain {
                let identity =
                    connection.packet_identity(call.channel, call.number, packet.seq, true);
                let protected = match &mut connection.security {
                    Security::Client(class) => class.protect(&identity, &mut out.bytes, at),
                    Security::Server(class) => class.protect(&identity, &mut out.bytes, at),
                };
                match protected {
                    Ok(checksum) => {
                        if let Some(field) = out.bytes.get_mut(start + 24..start + 26) {
                            field.copy_from_slice(&checksum.to_be_bytes());
                        }
                    }
                    Err(code) => {
                        out.bytes.truncate(start);
                        let connection = call.connection;
                        self.fail_connection(now, connection, code, true);
                        return segments > 0;
                    }
                }
            }
            call.send.mark_sent(now, &packet, header.serial);
            note_sent(&mut self.statistics, peer, &packet);
            if let Some(congestion) = &mut call.congestion {
                congestion.spend(counted);
            }
            segments += 1;
            in_datagram += 1;
            last_flags = Some(start + 21);
            let length = out.bytes.len() - start;
            if segments == 1 {
                out.segment_size = length;
            }
            connection.traffic[1] = connection.traffic[1].wrapping_add(1);
            connection.traffic[3] = connection.traffic[3].wrapping_add(length as u32);
            if length < out.segment_size {
                break;
            }
        }
        let _ = in_datagram;
        let Some(flags) = last_flags else {
            return false;
        };
        let cellar = connection.cellar.is_some();
        if !ended_by_reply
            && (stopped || (cellar && bulk))
            && let Some(flags) = out.bytes.get_mut(flags)
        {
            *flags |= Flags::REQUEST_ACK;
        }
        call.sent_at = now;
        call.resend_base = now;
        // A reply says that the request has arrived.
        if call.server && call.receive.complete() {
            call.ack.implied();
        }
        connection.used_at = now;
        if self.config.probe_mtu && call.send.packets() > PROBE_AFTER && call.probe_wanted.is_none()
        {
            let limit = peer.probe_limit.min(self.config.max_datagram);
            call.probe_wanted = peer.mtu.wanted(now, limit, peer.rtt.rto());
        }
        peer.window_packets = u16::try_from(window / packet_size.max(1) as u64).unwrap_or(u16::MAX);
        true
    }
}

/// Whether a call has something else to send right away.
fn has_more(call: &Call) -> bool {
    call.ack.now.is_some()
        || call.ack.pong.is_some()
        || (call.alive()
            && (call.ping_wanted
                || call.probe_wanted.is_some()
                || (call.pace_at.is_none() && call.send.has_work())))
}

fn note_sent(
    statistics: &mut crate::statistics::Statistics,
    peer: &mut crate::peer::Peer,
    packet: &Outgoing,
) {
    let counter = if packet.resend {
        peer.packets_resent = peer.packets_resent.wrapping_add(1);
        &mut statistics.data_resent
    } else {
        &mut statistics.data_sent
    };
    *counter = counter.wrapping_add(1);
    if let Some(count) = statistics.packets_sent.get_mut(0) {
        *count = count.wrapping_add(1);
    }
    peer.packets_sent = peer.packets_sent.wrapping_add(1);
    peer.bytes_sent += u64::from(packet.length);
}

/// Size of a jumbogram of `packets`.
const fn jumbo_size(packets: u32) -> u32 {
    HEADER_SIZE as u32 + packets * JUMBO_PAYLOAD as u32 + (packets - 1) * 4
}

/// How many packets a jumbogram to this peer may carry on the path as proven.
fn jumbo_count(peer: &crate::peer::Peer) -> usize {
    let most = peer.mtu.proven();
    (1..=u32::from(peer.jumbo_max))
        .rev()
        .find(|&packets| jumbo_size(packets) <= u32::from(most))
        .unwrap_or(1) as usize
}
