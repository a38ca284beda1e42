//! One endpoint against hand-made packets: input as stock peers send it, output as they must see
//! it.
//!
//! Numbers in the names of tests are those of rx-wire facts, section 8.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::codec::hex;
use super::harness::{SERVICE, address, null_service};
use crate::packet::*;
use crate::*;

mod endings;

pub(super) const EPOCH: u32 = 0x8be5_4e16;
pub(super) const CID: u32 = 0x6e09_1198;

/// An endpoint whose peer is played by hand-made packets.
pub(super) struct Desk {
    pub(super) endpoint: Endpoint,
    pub(super) now: Time,
    pub(super) from: SocketAddr,
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Clone)]
pub(super) struct SentPacket {
    pub(super) to: SocketAddr,
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

impl SentPacket {
    pub(super) fn ack(&self) -> Ack<'_> {
        assert_eq!(self.header.packet_type, PacketType::ACK, "{self:?}");
        Ack::decode(&self.payload).unwrap()
    }

    pub(super) fn code(&self) -> i32 {
        assert_eq!(self.header.packet_type, PacketType::ABORT, "{self:?}");
        i32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}

impl Desk {
    pub(super) fn server(config: Config) -> Self {
        let mut endpoint = Endpoint::new(config, 1);
        endpoint.add_service(null_service(false));
        Self {
            endpoint,
            now: Time::from_micros(5),
            from: address(1),
            events: Vec::new(),
        }
    }

    /// A client that has sent a request to a server.
    pub(super) fn client(service: u16, request: impl Into<Bytes>) -> (Self, CallId) {
        let mut endpoint = Endpoint::new(Config::default(), 1);
        let (now, from) = (Time::from_micros(1), address(2));
        let security = Box::new(NullSecurity);
        let options = ConnectionOptions::default();
        let connection = endpoint.connect(now, from, service, security, options);
        let call = endpoint.start_call(now, connection).unwrap();
        let outcome = endpoint.write(now, call, request.into()).unwrap();
        assert_eq!(outcome, WriteOutcome::Accepted);
        endpoint.finish(now, call);
        let desk = Self {
            endpoint,
            now,
            from,
            events: Vec::new(),
        };
        (desk, call)
    }

    pub(super) fn header(kind: PacketType, call_number: u32, seq: u32, serial: u32) -> Header {
        Header {
            epoch: EPOCH,
            cid: CID,
            call_number,
            seq,
            serial,
            packet_type: kind,
            flags: Flags(Flags::CLIENT_INITIATED),
            user_status: 0,
            security_index: 0,
            checksum: 0,
            service: SERVICE,
        }
    }

    pub(super) fn put(&mut self, header: Header, payload: &[u8]) -> Vec<SentPacket> {
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(payload);
        self.endpoint
            .handle_datagram(self.now, self.from, None, Bytes::from(bytes));
        self.seen()
    }

    pub(super) fn data(&mut self, call: u32, seq: u32, serial: u32, flags: u8) -> Vec<SentPacket> {
        let mut header = Self::header(PacketType::DATA, call, seq, serial);
        header.flags.0 |= flags;
        self.put(header, b"data")
    }

    /// Sends the first and only packet of call 1, from an address that proves that it receives.
    pub(super) fn proven_data(&mut self) {
        let seen = self.data(1, 1, 1, Flags::LAST_PACKET | Flags::REQUEST_ACK);
        let answer = plain_ack(1, 0, seen[0].header.serial, AckReason::PING_RESPONSE);
        assert!(self.ack(1, 1, &answer, 0).is_empty());
    }

    pub(super) fn ack(
        &mut self,
        call: u32,
        serial: u32,
        ack: &Ack<'_>,
        flags: u8,
    ) -> Vec<SentPacket> {
        let mut header = Self::header(PacketType::ACK, call, 0, serial);
        header.flags.0 |= flags;
        // The stale bytes that OpenAFS leaves there.
        header.checksum = 0xee23;
        let mut payload = Vec::new();
        ack.encode(&mut payload);
        self.put(header, &payload)
    }

    pub(super) fn seen(&mut self) -> Vec<SentPacket> {
        let mut seen = Vec::new();
        let mut out = TransmitBuffer::new(64);
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push(event);
        }
        while self.endpoint.poll_transmit(self.now, &mut out) {
            for bytes in out.segments() {
                let header = Header::decode(bytes).unwrap();
                seen.push(SentPacket {
                    to: out.destination(),
                    header,
                    payload: bytes[28..].to_vec(),
                });
            }
        }
        seen
    }

    /// Advances the time, from timer to timer.
    pub(super) fn pass(&mut self, time: Duration) -> Vec<SentPacket> {
        let end = self.now + time;
        let mut seen = Vec::new();
        while let Some(at) = self.endpoint.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            seen.extend(self.seen());
        }
        self.now = end;
        seen
    }

    pub(super) fn new_call(&mut self) -> CallId {
        let found = self
            .events
            .iter()
            .position(|e| matches!(e, Event::NewCall { .. }));
        match self.events.remove(found.expect("a call")) {
            Event::NewCall { call, .. } => call,
            _ => unreachable!(),
        }
    }

    /// Reads everything and answers.
    pub(super) fn answer(&mut self, call: CallId, reply: &[u8]) -> Vec<SentPacket> {
        while let ReadOutcome::Chunk(_) = self.endpoint.read(self.now, call) {}
        let reply = Bytes::copy_from_slice(reply);
        self.endpoint.write(self.now, call, reply).unwrap();
        self.endpoint.finish(self.now, call);
        self.seen()
    }
}

pub(super) fn plain_ack(first: u32, previous: u32, serial: u32, reason: AckReason) -> Ack<'static> {
    Ack {
        first_packet: first,
        previous_packet: previous,
        serial,
        reason,
        acks: &[],
        trailer: Some(Trailer {
            max_datagram: 1444,
            interface_mtu: Some(1444),
            window: Some(32),
            jumbo_max: Some(1),
        }),
        cellar: None,
    }
}

#[test]
fn t02_raw_abort_with_swapped_fields_ends_the_call() {
    let (
        Desk {
            mut endpoint, now, ..
        },
        call,
    ) = Desk::client(999, "x");
    let mut out = TransmitBuffer::new(1);
    assert!(endpoint.poll_transmit(now, &mut out));
    let mut abort = out.bytes()[..20].to_vec();
    abort[12..20].fill(0);
    abort.extend_from_slice(&hex("04 00 00 00 03e7 0000 fffffffe"));
    // From another address of the server, same port.
    let elsewhere = SocketAddr::from(([10, 9, 9, 9], address(2).port()));
    endpoint.handle_datagram(now, elsewhere, None, Bytes::from(abort));
    assert_eq!(
        endpoint.poll_event(),
        Some(Event::CallFailed { call, code: -2 })
    );
    assert_eq!(endpoint.read(now, call), ReadOutcome::Failed(-2));
}

#[test]
fn t03_short_and_strange_packets() {
    let mut desk = Desk::server(Config::default());
    for length in 0..28 {
        desk.endpoint
            .handle_datagram(desk.now, desk.from, None, Bytes::from(vec![1; length]));
        assert!(desk.seen().is_empty());
    }
    // For a connection that does not exist, no state is kept.
    for kind in [0, 12, 14, 99, 255] {
        let seen = desk.put(Desk::header(PacketType(kind), 0, 0, 1), b"");
        assert_eq!(
            (seen.len(), seen[0].code(), seen[0].header.call_number),
            (1, -5, 0),
            "{kind}"
        );
        assert!(!seen[0].header.from_client());
    }
    for kind in [2, 3, 5, 6, 7, 9, 10, 11] {
        assert!(
            desk.put(Desk::header(PacketType(kind), 0, 0, 1), &[0; 40])
                .is_empty(),
            "{kind}"
        );
        assert!(
            desk.put(Desk::header(PacketType(kind), 1, 0, 1), &[0; 40])
                .is_empty(),
            "there is no call: {kind}"
        );
    }
    assert_eq!(desk.endpoint.statistics().server_connections, 0);
    // For an existing one, an unknown type with a call number ends that call; without one, the
    // connection.
    desk.data(1, 1, 1, 0);
    let call = desk.new_call();
    let seen = desk.put(Desk::header(PacketType(77), 1, 0, 2), b"");
    assert_eq!((seen[0].code(), seen[0].header.call_number), (-5, 1));
    assert_eq!(
        desk.events.pop(),
        Some(Event::CallFailed { call, code: -5 })
    );
    assert!(
        desk.put(Desk::header(PacketType(10), 0, 0, 3), b"")
            .is_empty()
    );
    let seen = desk.put(Desk::header(PacketType(12), 0, 0, 3), b"");
    assert_eq!((seen[0].code(), seen[0].header.call_number), (-5, 0));
    let seen = desk.data(2, 1, 4, 0);
    assert_eq!(
        (seen[0].code(), seen[0].header.call_number),
        (-5, 0),
        "repeated"
    );
    assert!(
        desk.put(Desk::header(PacketType::ABORT, 0, 0, 5), &[0, 0, 0, 1])
            .is_empty()
    );
}

#[test]
fn unknown_services_and_indexes() {
    let mut desk = Desk::server(Config::default());
    let header = Header {
        service: 999,
        ..Desk::header(PacketType::DATA, 7, 1, 1)
    };
    let seen = desk.put(header, b"x");
    assert_eq!(
        (
            seen[0].code(),
            seen[0].header.serial,
            seen[0].header.call_number
        ),
        (-2, 0, 7)
    );
    assert_eq!(
        (seen[0].header.service, seen[0].header.from_client()),
        (999, false)
    );
    let header = Header {
        security_index: 2,
        ..Desk::header(PacketType::DATA, 7, 1, 1)
    };
    assert_eq!(desk.put(header, b"x")[0].code(), -2);
    let header = Header {
        service: 999,
        ..Desk::header(PacketType::ABORT, 7, 1, 1)
    };
    assert!(
        desk.put(header, &[0; 4]).is_empty(),
        "aborts are not answered"
    );
    assert_eq!(desk.endpoint.statistics().server_connections, 0);
}

#[test]
fn t05_second_packet_first() {
    let mut desk = Desk::server(Config::default());
    let seen = desk.data(1, 2, 1, Flags::LAST_PACKET);
    let ack = seen[0].ack();
    assert_eq!(
        (ack.first_packet, ack.previous_packet, ack.serial),
        (1, 2, 1)
    );
    assert_eq!(
        (ack.reason, ack.acks),
        (AckReason::OUT_OF_SEQUENCE, &[0, 1][..])
    );
    assert_eq!(ack.trailer.unwrap().window, Some(255));
    assert_eq!(seen[0].header.checksum, 0);
    assert_eq!(seen[0].header.flags.0, Flags::SLOW_START_OK);
    assert!(desk.events.is_empty(), "nothing to read yet");
    desk.data(1, 1, 2, 0);
    let call = desk.new_call();
    assert_eq!(
        desk.endpoint.read(desk.now, call),
        ReadOutcome::Chunk(Bytes::from_static(b"data"))
    );
    assert_eq!(
        desk.endpoint.read(desk.now, call),
        ReadOutcome::Chunk(Bytes::from_static(b"data"))
    );
    assert_eq!(desk.endpoint.read(desk.now, call), ReadOutcome::End);
}

#[test]
fn t06_duplicates_and_beyond_the_window() {
    let config = Config {
        receive_window: 32,
        extended_window: 0,
        ..Config::default()
    };
    let mut desk = Desk::server(config);
    desk.data(1, 1, 1, 0);
    let seen = desk.data(1, 1, 2, 0);
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::DUPLICATE, 2)
    );
    let seen = desk.data(1, 33, 3, 0);
    let ack = seen[0].ack();
    assert_eq!(
        (ack.reason, ack.first_packet, ack.previous_packet),
        (AckReason::EXCEEDS_WINDOW, 1, 33)
    );
    // previousPacket never falls.
    let seen = desk.data(1, 2, 4, Flags::REQUEST_ACK);
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().previous_packet),
        (AckReason::REQUESTED, 33)
    );
    // As the first packet of a call: no call begins.
    assert!(desk.data(2, 40, 5, 0).is_empty());
}

#[test]
fn t07_asked_for_acks() {
    let mut desk = Desk::server(Config::default());
    let seen = desk.data(1, 1, 9, Flags::REQUEST_ACK);
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::REQUESTED, 9)
    );
    let seen = desk.ack(
        1,
        10,
        &plain_ack(1, 0, 0, AckReason::PING),
        Flags::REQUEST_ACK,
    );
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::PING_RESPONSE, 10)
    );
    desk.data(1, 2, 11, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, b"reply");
    desk.ack(1, 12, &plain_ack(2, 1, 0, AckReason::DELAY), 0);
    let seen = desk.ack(
        1,
        13,
        &plain_ack(2, 1, 0, AckReason::PING),
        Flags::REQUEST_ACK,
    );
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::PING_RESPONSE, 13)
    );
    let seen = desk.data(1, 2, 14, Flags::LAST_PACKET);
    let ack = seen[0].ack();
    assert_eq!(
        (ack.reason, ack.first_packet, ack.serial),
        (AckReason::DUPLICATE, 3, 14)
    );
}

#[test]
fn t08_the_last_packet_of_a_reply_never_asks_for_an_ack() {
    let mut desk = Desk::server(Config::default());
    desk.proven_data();
    let call = desk.new_call();
    let mut seen = desk.answer(call, &[7; 3000]);
    seen.extend(desk.pass(Duration::from_secs(20)));
    let data: Vec<&SentPacket> = seen
        .iter()
        .filter(|s| s.header.packet_type == PacketType::DATA)
        .collect();
    assert!(data.len() > 6, "repeated: {}", data.len());
    let mut last = 0;
    for packet in data {
        let flags = packet.header.flags;
        last += u32::from(packet.header.seq == 3);
        assert_eq!(flags.has(Flags::LAST_PACKET), packet.header.seq == 3);
        assert!(!(flags.has(Flags::REQUEST_ACK) && flags.has(Flags::LAST_PACKET)));
    }
    assert!(last > 1);
}

#[test]
fn t09_the_next_call_acknowledges_the_reply() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, b"one");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].payload, b"one");
    desk.data(2, 1, 2, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, b"two");
    let again = desk.pass(Duration::from_secs(3));
    assert!(
        again.iter().all(|s| s.header.call_number == 2),
        "the first is not repeated"
    );
}

#[test]
fn t10_call_numbers_may_jump_but_not_fall() {
    let mut desk = Desk::server(Config::default());
    for number in [1, 100] {
        desk.data(number, 1, number, Flags::LAST_PACKET);
        let call = desk.new_call();
        desk.answer(call, b"x");
    }
    assert!(desk.data(50, 1, 101, Flags::LAST_PACKET).is_empty());
    assert!(desk.events.is_empty());
}

#[test]
fn t11_a_new_call_while_the_old_one_runs() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let old = desk.new_call();
    let seen = desk.data(2, 1, 2, Flags::LAST_PACKET);
    assert_eq!(seen[0].header.packet_type, PacketType::BUSY);
    assert_eq!(seen[0].header.call_number, 2);
    assert_eq!(
        desk.events.pop(),
        Some(Event::CallFailed {
            call: old,
            code: -1
        })
    );
    desk.data(2, 1, 3, Flags::LAST_PACKET);
    let call = desk.new_call();
    assert_eq!(desk.answer(call, b"two")[0].payload, b"two");
    assert_eq!(desk.endpoint.read(desk.now, old), ReadOutcome::Failed(-2));
}

#[test]
fn t12_a_reply_that_begins_early_stops_the_client() {
    let (mut desk, call) = Desk::client(SERVICE, vec![1; 100_000]);
    let now = desk.now;
    let sent = desk.seen();
    assert_eq!(sent.len(), 16, "every stock receiver accepts this many");
    let reply = Header {
        packet_type: PacketType::DATA,
        flags: Flags(Flags::LAST_PACKET),
        seq: 1,
        serial: 1,
        ..sent[0].header
    };
    let seen = desk.put(reply, b"enough");
    assert!(
        seen.iter().all(|s| s.header.packet_type == PacketType::ACK),
        "{seen:?}"
    );
    assert_eq!(
        desk.endpoint.write(now, call, Bytes::new()),
        Err(CallError::NotWriting)
    );
    assert_eq!(
        desk.endpoint.read(now, call),
        ReadOutcome::Chunk(Bytes::from_static(b"enough"))
    );
    assert_eq!(desk.endpoint.read(now, call), ReadOutcome::End);
    let later = desk.pass(Duration::from_secs(5));
    assert_eq!(later.len(), 1, "the final ACK: {later:?}");
    assert_eq!(
        (later[0].ack().first_packet, later[0].ack().reason),
        (2, AckReason::DELAY)
    );
    // A repeated reply is answered from the finished slot; the next call uses the channel.
    let seen = desk.put(Header { serial: 2, ..reply }, b"enough");
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().first_packet),
        (AckReason::DUPLICATE, 2)
    );
}
