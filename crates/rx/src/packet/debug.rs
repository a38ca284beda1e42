//! Queries and answers of `rxdebug`: DEBUG and VERSION payloads.
//!
//! The stock client requires the exact sizes of 56, 176, 132, 284 and 65 bytes. Fields without a
//! meaning here are zero. Source: rx-wire facts 4.

use super::header::{Flags, Header, PacketType};

/// A decoded query, with the header that the answer must echo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DebugQuery {
    /// Header as received.
    pub header: Header,
    /// The question.
    pub question: DebugQuestion,
}

/// Kind of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebugQuestion {
    /// The version text.
    Version,
    /// [`BasicStatistics`].
    Basic,
    /// The n-th active connection.
    Connection(u32),
    /// The n-th connection.
    AnyConnection(u32),
    /// [`crate::Statistics`].
    Statistics,
    /// The n-th peer.
    Peer(u32),
    /// An unknown type, answered with an error record.
    Unknown,
}

/// Decodes a DEBUG or VERSION packet from a client. `None` if it is something else or gets no
/// answer: it is too short or lacks the CLIENT bit, like NAT keep-alives.
#[must_use]
pub fn decode_debug_query(header: &Header, payload: &[u8]) -> Option<DebugQuery> {
    if !header.from_client() {
        return None;
    }
    let question = match header.packet_type {
        PacketType::VERSION => DebugQuestion::Version,
        PacketType::DEBUG => {
            let (kind, rest) = payload.split_first_chunk::<4>()?;
            let index = u32::from_be_bytes(*rest.first_chunk::<4>()?);
            match u32::from_be_bytes(*kind) {
                1 => DebugQuestion::Basic,
                2 => DebugQuestion::Connection(index),
                3 => DebugQuestion::AnyConnection(index),
                4 => DebugQuestion::Statistics,
                5 => DebugQuestion::Peer(index),
                _ => DebugQuestion::Unknown,
            }
        }
        _ => return None,
    };
    Some(DebugQuery {
        header: *header,
        question,
    })
}

impl DebugQuery {
    /// Header of the answer: that of the query without the CLIENT bit.
    #[must_use]
    pub fn answer_header(&self) -> Header {
        let flags = Flags(self.header.flags.0 & !Flags::CLIENT_INITIATED);
        Header {
            flags,
            ..self.header
        }
    }
}

/// The header of a VERSION packet. With [`Flags::CLIENT_INITIATED`] it is a question; its payload
/// begins with a zero.
#[must_use]
pub const fn version_header(epoch: u32, flags: Flags) -> Header {
    Header {
        epoch,
        cid: 0,
        call_number: 0,
        seq: 0,
        serial: 0,
        packet_type: PacketType::VERSION,
        flags,
        user_status: 0,
        security_index: 0,
        checksum: 0,
        service: 0,
    }
}

/// The VERSION answer: text in 65 bytes, zero padded.
#[must_use]
pub fn version_answer(text: &str) -> Vec<u8> {
    let mut out: Vec<u8> = text.bytes().take(64).collect();
    out.resize(65, 0);
    out
}

/// The answer to an unknown type.
#[must_use]
pub fn bad_debug_type() -> Vec<u8> {
    [0xffff_fff8_u32.to_be_bytes(), 0xffff_fff8_u32.to_be_bytes()].concat()
}

/// The record that ends a list of connections.
#[must_use]
pub fn end_of_connections() -> Vec<u8> {
    let record = ConnectionRecord {
        cid: u32::MAX,
        ..ConnectionRecord::default()
    };
    record.encode()
}

/// The record that ends a list of peers.
#[must_use]
pub fn end_of_peers() -> Vec<u8> {
    PeerRecord {
        address: [0xff; 4],
        ..PeerRecord::default()
    }
    .encode()
}

/// The 56-byte answer to GETSTATS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BasicStatistics {
    /// Packets that the receive budget still permits.
    pub free_packets: u32,
    /// Packet reclaims.
    pub reclaims: u32,
    /// Calls executed.
    pub calls: u32,
    /// Sockets in use.
    pub sockets: u8,
    /// Calls waiting for a thread now.
    pub waiting: u32,
    /// Idle threads.
    pub idle_threads: u32,
    /// Calls that ever had to wait.
    pub waited: u32,
    /// Total packets.
    pub packets: u32,
}

impl BasicStatistics {
    /// Encodes the 56 bytes, with version letter `S`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56);
        put(&mut out, &[self.free_packets, self.reclaims, self.calls]);
        out.extend_from_slice(&[0, self.sockets, b'S', 0]);
        put(
            &mut out,
            &[self.waiting, self.idle_threads, self.waited, self.packets],
        );
        out.resize(56, 0);
        out
    }
}

/// The 176-byte record of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectionRecord {
    /// IPv4 address of the peer (zero for IPv6, which the record cannot represent).
    pub address: [u8; 4],
    /// Connection id; all ones ends the list.
    pub cid: u32,
    /// Last serial sent.
    pub serial: u32,
    /// Number of the last call of each channel.
    pub call_numbers: [u32; 4],
    /// Abort code of the connection; 0: none.
    pub error: i32,
    /// Port of the peer.
    pub port: u16,
    /// 1 waits for a channel, 2 destroyed, 4 uses header checksum, 8 window known, 32 busy, 64
    /// attach wait.
    pub flags: u8,
    /// Whether this is the server end.
    pub server: bool,
    /// Security index.
    pub security_index: u8,
    /// 0 none, 1 precall, 2 active, 3 dally, 4 hold, 5 reset.
    pub call_states: [u8; 4],
    /// 1 sending, 2 receiving, 3 error, 4 end of file.
    pub call_modes: [u8; 4],
    /// Low byte of the call flags.
    pub call_flags: [u8; 4],
    /// 1 receive queue not empty, 2 send queue not empty.
    pub call_other: [u8; 4],
    /// Security state.
    pub security: crate::security::SecurityDetails,
    /// Packets received, packets sent, bytes received, bytes sent.
    pub traffic: [u32; 4],
    /// Epoch.
    pub epoch: u32,
}

impl ConnectionRecord {
    /// Encodes the 176 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(176);
        out.extend_from_slice(&self.address);
        put(&mut out, &[self.cid, self.serial]);
        put(&mut out, &self.call_numbers);
        out.extend_from_slice(&self.error.to_be_bytes());
        out.extend_from_slice(&self.port.to_be_bytes());
        out.extend_from_slice(&[
            self.flags,
            u8::from(self.server),
            self.security_index,
            0,
            0,
            0,
        ]);
        for four in [
            self.call_states,
            self.call_modes,
            self.call_flags,
            self.call_other,
        ] {
            out.extend_from_slice(&four);
        }
        out.extend_from_slice(&[self.security.kind, self.security.level]);
        out.resize(68, 0);
        put(&mut out, &[self.security.flags, self.security.expires]);
        put(&mut out, &self.traffic);
        out.resize(132, 0);
        put(&mut out, &[self.epoch]);
        out.resize(176, 0);
        out
    }
}

/// The 132-byte record of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerRecord {
    /// IPv4 address; all ones ends the list.
    pub address: [u8; 4],
    /// Port.
    pub port: u16,
    /// Interface MTU.
    pub interface_mtu: u16,
    /// Unix time of the last received packet.
    pub idle_since: u32,
    /// Connections.
    pub references: u16,
    /// Smoothed round trip, 1/8 ms.
    pub srtt: u32,
    /// Mean deviation, 1/4 ms.
    pub deviation: u32,
    /// Retransmission timeout, microseconds.
    pub rto_micros: u64,
    /// Packets sent.
    pub sent: u32,
    /// The number of these that are retransmissions.
    pub resent: u32,
    /// Largest packet that the peer accepts.
    pub max_mtu: u16,
    /// Most packets in a jumbogram to it.
    pub max_jumbo: u16,
    /// Packet size in use.
    pub mtu: u16,
    /// Congestion window, packets.
    pub congestion_window: u16,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

impl PeerRecord {
    /// Encodes the 132 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(132);
        out.extend_from_slice(&self.address);
        put_short(&mut out, &[self.port, self.interface_mtu]);
        put(&mut out, &[self.idle_since]);
        put_short(&mut out, &[self.references, 0]);
        put(&mut out, &[0, 0, self.srtt, self.deviation]);
        let micros = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        put(
            &mut out,
            &[
                micros(self.rto_micros / 1_000_000),
                micros(self.rto_micros % 1_000_000),
            ],
        );
        put(&mut out, &[self.sent, self.resent, 0, 0, 0]);
        put_short(&mut out, &[0, self.max_mtu, self.max_jumbo, self.max_jumbo]);
        put_short(&mut out, &[self.mtu, self.congestion_window, 1, 0]);
        for n in [self.bytes_sent, self.bytes_received] {
            out.extend_from_slice(&n.to_be_bytes());
        }
        out.resize(132, 0);
        out
    }
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

fn put_short(out: &mut Vec<u8>, shorts: &[u16]) {
    for short in shorts {
        out.extend_from_slice(&short.to_be_bytes());
    }
}
