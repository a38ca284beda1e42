//! Building of runs: DATA packets of one call.
//!
//! 1. A run consists of datagrams of one size, so that the buffer can be sent with segmentation
//!    offload. A packet larger than the first ends the run before it; a smaller one ends the run
//!    after it. The congestion window and pacing limit the run.
//! 2. REQUEST_ACK is set on retransmissions and while the round trip is unknown. It is also set on
//!    the last packet before the sender must stop, and on the last of a run to a Cellar peer. It is
//!    not set while the answer to an earlier request is due. It is never set on the last packet of
//!    a reply, since a stock client could then only soft-acknowledge that packet (rx-wire facts
//!    2.2).
//! 3. If the peer accepts jumbograms and the path has proved large enough, a run is one jumbogram.
//!    Its packets are sent for the first time and have consecutive serials. Each but the last has
//!    exactly 1412 bytes including security.

use super::Endpoint;
use super::transmit::jumbo_size;
use crate::call::Call;
use crate::config::Config;
use crate::congestion::{Congestion, Start};
use crate::connection::{Connection, SecurityState};
use crate::packet::{Flags, HEADER_SIZE, JUMBO_PAYLOAD, PacketType};
use crate::peer::Peer;
use crate::security::Overhead;
use crate::send::{Outgoing, wire_size};
use crate::share;
use crate::statistics::Statistics;
use crate::time::Time;
use crate::transmit::TransmitBuffer;

/// Window while there is no model of the path, packets.
const INITIAL_PACKETS: u64 = 16;
/// Window after a timeout without a model, packets.
const TIMEOUT_PACKETS: u64 = 4;
/// After this many packets a call gets a congestion controller.
const SHORT_SENDING: u32 = 8;
/// Packets sent before larger ones are probed.
const PROBE_AFTER: u32 = 64;

/// The state needed to build a run.
struct Run<'a> {
    now: Time,
    unix_seconds: u64,
    call: &'a mut Call,
    connection: &'a mut Connection,
    peer: &'a mut Peer,
    statistics: &'a mut Statistics,
    out: &'a mut TransmitBuffer,
    overhead: Overhead,
    /// User data in a full packet, bytes.
    most: u16,
    /// Packets in a datagram.
    jumbo: usize,
    /// Congestion window; below, pacing allowance; bytes.
    window: u64,
    allowance: u64,
    /// Most datagrams; limited for an unverified address.
    most_datagrams: usize,
    /// Datagrams so far; below, packets in the current one.
    datagrams: usize,
    packets: usize,
    /// User data of the first packet, the most for any packet; bytes.
    first_length: u16,
    /// Offset of the last packet's flags; below, the length of its payload.
    last_flags: usize,
    last_payload: usize,
    /// Whether the last packet ends a server's reply.
    reply_ended: bool,
    /// Whether the peer's window or the congestion window ended the run.
    stopped: bool,
}

impl Endpoint {
    /// Fills `out` with a run of at most `most` datagrams of DATA packets. Returns false if nothing
    /// may be sent now. If `most` is less than `usize::MAX`, each packet requests an
    /// acknowledgement.
    pub(super) fn put_data(
        &mut self,
        now: Time,
        slot: u32,
        most: usize,
        out: &mut TransmitBuffer,
    ) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let connection_slot = call.connection;
        let Some(connection) = self.connections.get_mut(connection_slot) else {
            return false;
        };
        let Some(peer) = self.peers.get_mut(connection.peer) else {
            return false;
        };
        let mut run = Run::new(
            now,
            &self.config,
            call,
            connection,
            peer,
            &mut self.statistics,
            out,
        );
        run.most_datagrams = most;
        let filled = run.fill();
        run.seal();
        if let Err(code) = filled {
            self.fail_connection(now, connection_slot, code, true);
            return !out.bytes.is_empty();
        }
        run.conclude(&self.config)
    }
}

impl<'a> Run<'a> {
    fn new(
        now: Time,
        config: &Config,
        call: &'a mut Call,
        connection: &'a mut Connection,
        peer: &'a mut Peer,
        statistics: &'a mut Statistics,
        out: &'a mut TransmitBuffer,
    ) -> Self {
        let overhead = connection.overhead();
        let room = usize::from(overhead.header) + usize::from(overhead.trailer);
        let size = usize::from(peer.packet_size());
        let jumbo = if config.jumbo_send && peer.jumbo_max > 1 {
            jumbo_count(peer)
        } else {
            1
        };
        let payload = if jumbo > 1 {
            JUMBO_PAYLOAD
        } else {
            size.saturating_sub(HEADER_SIZE)
        };
        let most = u16::try_from(payload.saturating_sub(room))
            .unwrap_or(u16::MAX)
            .max(1);
        let size = size as u64;
        if call.congestion.is_none() {
            call.congestion = begin(config, now, call, connection, peer, size).map(Box::new);
        }
        let (window, allowance) = match &mut call.congestion {
            Some(congestion) => {
                congestion.set_packet(size);
                (congestion.window(), congestion.allowance(now))
            }
            None if call.backoff > 0 => (TIMEOUT_PACKETS * size, u64::MAX),
            None => (INITIAL_PACKETS * size, u64::MAX),
        };
        call.pace_at = None;
        peer.window_packets = u16::try_from(window / size.max(1)).unwrap_or(u16::MAX);
        Self {
            now,
            unix_seconds: config.unix_seconds(now),
            call,
            connection,
            peer,
            statistics,
            out,
            overhead,
            most,
            jumbo,
            window,
            allowance,
            most_datagrams: usize::MAX,
            datagrams: 0,
            packets: 0,
            first_length: 0,
            last_flags: 0,
            last_payload: 0,
            reply_ended: false,
            stopped: false,
        }
    }

    /// Appends packets until something ends the run.
    fn fill(&mut self) -> Result<(), i32> {
        loop {
            let Some(packet) = self.call.send.next_packet(self.most) else {
                self.call.send.mark_limited();
                self.stopped = self.call.send.window_full();
                return Ok(());
            };
            let join = self.joins(&packet);
            if !join && !self.fits(&packet) {
                return Ok(());
            }
            let counted = wire_size(packet.length);
            let in_flight = self.call.send.in_flight();
            if in_flight > 0 && in_flight + counted > self.window {
                self.stopped = true;
                return Ok(());
            }
            // Pacing may be overdrawn by one packet; otherwise a packet larger than the burst would
            // wait forever.
            if self.allowance == 0 {
                if let Some(congestion) = &self.call.congestion {
                    self.call.pace_at = Some(congestion.next_burst(self.now));
                }
                return Ok(());
            }
            self.allowance = self.allowance.saturating_sub(counted);
            self.append(&packet, join)?;
            if let Some(congestion) = &mut self.call.congestion {
                congestion.spend(counted);
            }
            // A short datagram must be the last one of its run.
            let length = self.last_payload + HEADER_SIZE;
            if self.jumbo == 1 && length < self.out.segment_size {
                return Ok(());
            }
        }
    }

    /// Whether a packet is appended to the current datagram.
    fn joins(&self, packet: &Outgoing) -> bool {
        self.packets > 0
            && self.packets < self.jumbo
            && !packet.resend
            && self.last_payload == JUMBO_PAYLOAD
    }

    /// Whether another datagram with this packet fits into the run.
    fn fits(&self, packet: &Outgoing) -> bool {
        if self.datagrams == 0 {
            return true;
        }
        let room = usize::from(self.overhead.header) + usize::from(self.overhead.trailer);
        let size = HEADER_SIZE + room + usize::from(packet.length);
        self.jumbo == 1
            && self.datagrams < self.out.max_segments.min(self.most_datagrams)
            && packet.length <= self.first_length
            && self.out.bytes.len() + size <= self.out.max_bytes
    }

    fn append(&mut self, packet: &Outgoing, join: bool) -> Result<(), i32> {
        let call = &mut *self.call;
        let mut header = self
            .connection
            .header(PacketType::DATA, call.channel, call.number);
        header.seq = packet.seq;
        let ends_reply = packet.last && call.server;
        if packet.last {
            header.flags.0 |= Flags::LAST_PACKET;
        }
        let asks = packet.resend || self.peer.rtt.samples == 0 || self.most_datagrams < usize::MAX;
        if !ends_reply && asks {
            header.flags.0 |= Flags::REQUEST_ACK;
        }
        let bytes = &mut self.out.bytes;
        let start = bytes.len();
        let (flags, checksum_at) = if join {
            if let Some(flags) = bytes.get_mut(self.last_flags) {
                *flags |= Flags::JUMBO_PACKET;
            }
            bytes.extend_from_slice(&[header.flags.0 & !Flags::CLIENT_INITIATED, 0, 0, 0]);
            (start, start + 2)
        } else {
            bytes.extend_from_slice(&header.encode());
            (start + 21, start + 24)
        };
        let body = bytes.len();
        bytes.resize(body + usize::from(self.overhead.header), 0);
        call.send.copy(packet, bytes);
        if !self.connection.plain {
            let connection = &mut *self.connection;
            let identity = connection.packet_identity(
                call.channel,
                call.number,
                packet.seq,
                true,
                self.unix_seconds,
            );
            let checksum = match &mut connection.security {
                SecurityState::Client(class) => class.protect(&identity, bytes, body),
                SecurityState::Server(class) => class.protect(&identity, bytes, body),
            };
            let checksum = match checksum {
                Ok(checksum) => checksum,
                Err(code) => {
                    bytes.truncate(start);
                    return Err(code);
                }
            };
            if let Some(field) = bytes.get_mut(checksum_at..checksum_at + 2) {
                field.copy_from_slice(&checksum.to_be_bytes());
            }
            self.out.unsealed.push(body..bytes.len());
        }
        call.send.mark_sent(self.now, packet, header.serial);
        self.last_flags = flags;
        self.last_payload = bytes.len() - body;
        self.reply_ended = ends_reply;
        if join {
            self.packets += 1;
        } else {
            self.packets = 1;
            self.datagrams += 1;
        }
        if self.datagrams == 1 {
            self.out.segment_size = self.out.bytes.len();
            self.first_length = self.first_length.max(packet.length);
        }
        self.note_sent(packet);
        Ok(())
    }

    /// Lets the security class finish what [`Self::append`] left, for all packets at once.
    fn seal(&mut self) {
        let out = &mut *self.out;
        if out.unsealed.is_empty() {
            return;
        }
        match &mut self.connection.security {
            SecurityState::Client(class) => class.seal(&mut out.bytes, &out.unsealed),
            SecurityState::Server(class) => class.seal(&mut out.bytes, &out.unsealed),
        }
        out.unsealed.clear();
    }

    fn note_sent(&mut self, packet: &Outgoing) {
        self.call.resent |= packet.resend;
        let counter = if packet.resend {
            self.peer.packets_resent = self.peer.packets_resent.wrapping_add(1);
            &mut self.statistics.data_resent
        } else {
            &mut self.statistics.data_sent
        };
        *counter = counter.wrapping_add(1);
        if let Some(count) = self.statistics.packets_sent.get_mut(0) {
            *count = count.wrapping_add(1);
        }
        self.peer.packets_sent = self.peer.packets_sent.wrapping_add(1);
        self.peer.bytes_sent += u64::from(packet.length);
        self.connection.traffic[1] = self.connection.traffic[1].wrapping_add(1);
        self.connection.traffic[3] =
            self.connection.traffic[3].wrapping_add(wire_size(packet.length) as u32);
    }

    /// Finishes the run; returns false if it is empty.
    fn conclude(self, config: &Config) -> bool {
        if self.datagrams == 0 {
            return false;
        }
        let call = self.call;
        let bulk = call.send.packets() > SHORT_SENDING;
        let asks = self.stopped || (bulk && self.connection.cellar.is_some());
        if !self.reply_ended
            && asks
            && call.send.request_ack()
            && let Some(flags) = self.out.bytes.get_mut(self.last_flags)
        {
            *flags |= Flags::REQUEST_ACK;
        }
        call.sent_at = self.now;
        call.resend_base = self.now;
        self.connection.used_at = self.now;
        // A reply implies that the request has arrived.
        if call.server && call.receive.complete() {
            call.ack.implied();
        }
        if config.probe_mtu && call.send.packets() > PROBE_AFTER && call.probe_wanted.is_none() {
            let limit = self.peer.probe_limit.min(config.max_datagram);
            call.probe_wanted = self
                .peer
                .mtu
                .next_probe(self.now, limit, self.peer.rtt.rto());
        }
        true
    }
}

/// Creates the controller of a call that is not short, with packets of `size`. `None`: it is not
/// known yet whether the call is short.
fn begin(
    config: &Config,
    now: Time,
    call: &mut Call,
    connection: &Connection,
    peer: &mut Peer,
    size: u64,
) -> Option<Congestion> {
    // The initial window that the peer announced.
    let takes = connection.cellar.map_or(0, |cellar| cellar.initial_window);
    let worth = INITIAL_PACKETS * size..u64::from(takes) * size;
    let rtt = peer.rtt.least;
    if config.path_share
        && connection.shares_path(rtt)
        && call.send.buffered() as u64 > worth.start
        && let Some(window) = peer.share.start(now, rtt, worth, &mut call.counted)
    {
        return Some(Congestion::with_share(now, size, Start { window, rtt }));
    }
    if call.send.packets() < SHORT_SENDING {
        return None;
    }
    let path = peer
        .path
        .filter(|path| now.micros_since(path.at) < share::LIFE);
    Some(Congestion::new(now, INITIAL_PACKETS * size, size, path))
}

/// Returns how many packets a jumbogram to this peer may carry on the path as proved.
fn jumbo_count(peer: &Peer) -> usize {
    let most = u32::from(peer.mtu.proven());
    let fits = |packets: &u32| jumbo_size(*packets) <= most;
    (1..=u32::from(peer.jumbo_max))
        .rev()
        .find(fits)
        .unwrap_or(1) as usize
}
