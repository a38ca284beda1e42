//! One endpoint against hand-made packets: what stock peers do, and what they must see.
//!
//! Numbers in the names of tests are those of rx-wire facts, section 8.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::codec::hex;
use super::harness::{SERVICE, address, null_service};
use crate::packet::*;
use crate::*;

pub(super) const EPOCH: u32 = 0x8be5_4e16;
pub(super) const CID: u32 = 0x6e09_1198;

/// An endpoint and somebody at a desk with a hex editor.
pub(super) struct Desk {
    pub(super) endpoint: Endpoint,
    pub(super) now: Time,
    pub(super) from: SocketAddr,
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) to: SocketAddr,
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

impl Seen {
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

    pub(super) fn put(&mut self, header: Header, payload: &[u8]) -> Vec<Seen> {
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(payload);
        self.endpoint
            .handle_datagram(self.now, self.from, None, Bytes::from(bytes));
        self.seen()
    }

    pub(super) fn data(&mut self, call: u32, seq: u32, serial: u32, flags: u8) -> Vec<Seen> {
        let mut header = Self::header(PacketType::DATA, call, seq, serial);
        header.flags.0 |= flags;
        self.put(header, b"data")
    }

    pub(super) fn ack(&mut self, call: u32, serial: u32, ack: &Ack<'_>, flags: u8) -> Vec<Seen> {
        let mut header = Self::header(PacketType::ACK, call, 0, serial);
        header.flags.0 |= flags;
        // What OpenAFS leaves there.
        header.checksum = 0xee23;
        let mut payload = Vec::new();
        ack.encode(&mut payload);
        self.put(header, &payload)
    }

    pub(super) fn seen(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut out = TransmitBuffer::new(64);
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push(event);
        }
        while self.endpoint.poll_transmit(self.now, &mut out) {
            for bytes in out.segments() {
                let header = Header::decode(bytes).unwrap();
                seen.push(Seen {
                    to: out.destination(),
                    header,
                    payload: bytes[28..].to_vec(),
                });
            }
        }
        seen
    }

    /// Lets time pass, to each timer in turn.
    pub(super) fn pass(&mut self, time: Duration) -> Vec<Seen> {
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
    pub(super) fn answer(&mut self, call: CallId, reply: &[u8]) -> Vec<Seen> {
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
    let mut endpoint = Endpoint::new(Config::default(), 1);
    let now = Time::from_micros(1);
    let security = Box::new(NullSecurity);
    let connection = endpoint.connect(now, address(2), 999, security, ConnectionOptions::default());
    let call = endpoint.start_call(now, connection).unwrap();
    endpoint.write(now, call, Bytes::from_static(b"x")).unwrap();
    endpoint.finish(now, call);
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
    // On a connection that does not exist, nothing is kept.
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
            "no call is there: {kind}"
        );
    }
    assert_eq!(desk.endpoint.statistics().server_connections, 0);
    // On one that exists: an unknown type for a call ends the call, for the connection all of it.
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
    // As the first of a call: nothing is begun.
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
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let mut seen = desk.answer(call, &[7; 3000]);
    seen.extend(desk.pass(Duration::from_secs(20)));
    let data: Vec<&Seen> = seen
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
    let mut endpoint = Endpoint::new(Config::default(), 1);
    let now = Time::from_micros(1);
    let security = Box::new(NullSecurity);
    let connection = endpoint.connect(
        now,
        address(2),
        SERVICE,
        security,
        ConnectionOptions::default(),
    );
    let call = endpoint.start_call(now, connection).unwrap();
    endpoint
        .write(now, call, Bytes::from(vec![1; 100_000]))
        .unwrap();
    endpoint.finish(now, call);
    let mut desk = Desk {
        endpoint,
        now,
        from: address(2),
        events: Vec::new(),
    };
    let sent = desk.seen();
    assert_eq!(sent.len(), 16, "what a stock receiver is sure to take");
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
    // A repeated reply is answered from the finished slot; the next call takes the channel.
    let seen = desk.put(Header { serial: 2, ..reply }, b"enough");
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().first_packet),
        (AckReason::DUPLICATE, 2)
    );
}

#[test]
fn t13_call_abort_and_connection_abort() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, 0);
    let first = desk.new_call();
    let other = Header {
        cid: CID | 1,
        ..Desk::header(PacketType::DATA, 1, 1, 2)
    };
    desk.put(other, b"x");
    let second = desk.new_call();
    assert!(
        desk.put(Desk::header(PacketType::ABORT, 1, 0, 3), &[0, 0, 0])
            .is_empty(),
        "short"
    );
    desk.put(Desk::header(PacketType::ABORT, 1, 0, 3), &[0, 0, 0, 42]);
    assert_eq!(
        desk.events.pop(),
        Some(Event::CallFailed {
            call: first,
            code: 42
        })
    );
    assert!(desk.events.is_empty(), "the other channel lives");
    desk.put(Desk::header(PacketType::ABORT, 0, 0, 4), &[0, 0, 0, 43]);
    assert_eq!(
        desk.events[0],
        Event::CallFailed {
            call: second,
            code: 43
        }
    );
    assert!(matches!(
        desk.events[1],
        Event::ConnectionFailed { code: 43, .. }
    ));
}

#[test]
fn t14_what_was_soft_acknowledged_can_be_asked_for_again() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, &[7; 1416 * 4]);
    assert_eq!(seen.len(), 4);
    let mut ack = plain_ack(1, 4, 0, AckReason::OUT_OF_SEQUENCE);
    ack.acks = &[1, 1, 0, 1];
    desk.ack(1, 2, &ack, 0);
    ack.previous_packet = 5;
    ack.acks = &[1, 0, 1, 1];
    let seen = desk.ack(1, 3, &ack, 0);
    assert!(
        seen.iter()
            .any(|s| s.header.seq == 2 && s.payload == [7; 1416]),
        "{seen:?}"
    );
    ack.acks = &[1, 1, 1, 1];
    desk.ack(1, 4, &ack, 0);
    // Soft acknowledgement of all ends a server call (rx-wire facts 2.1).
    assert!(desk.pass(Duration::from_secs(5)).is_empty());
}

#[test]
fn acks_that_must_change_nothing() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, &[7; 1416 * 4]);
    // Beyond what was sent; for another call; from before.
    desk.ack(1, 2, &plain_ack(9, 8, 0, AckReason::DELAY), 0);
    desk.ack(2, 3, &plain_ack(5, 4, 0, AckReason::DELAY), 0);
    desk.ack(1, 4, &plain_ack(3, 2, 0, AckReason::DELAY), 0);
    let ignored = desk.endpoint.statistics().acks_ignored;
    desk.ack(1, 5, &plain_ack(2, 1, 0, AckReason::DELAY), 0);
    let mut ack = plain_ack(3, 1, 0, AckReason::DELAY);
    ack.acks = &[1, 1];
    desk.ack(1, 6, &ack, 0);
    assert_eq!(desk.endpoint.statistics().acks_ignored, ignored + 2);
    // Truncated ACK payloads are ignored.
    for length in 0..18 {
        desk.put(Desk::header(PacketType::ACK, 1, 0, 7), &vec![1; length]);
    }
    // Still unacknowledged: 3 and 4 are sent again.
    let seen = desk.pass(Duration::from_secs(2));
    assert!(seen.iter().any(|s| s.header.seq == 3) && seen.iter().all(|s| s.header.seq != 2));
    // ACKALL ends it.
    desk.put(Desk::header(PacketType::ACKALL, 1, 0, 8), b"");
    assert!(desk.pass(Duration::from_secs(20)).is_empty());
}

#[test]
fn t16_retransmission_doubles_and_the_call_dies() {
    let mut endpoint = Endpoint::new(Config::default(), 1);
    let now = Time::from_micros(1);
    let security = Box::new(NullSecurity);
    let connection = endpoint.connect(now, address(2), 1, security, ConnectionOptions::default());
    let call = endpoint.start_call(now, connection).unwrap();
    endpoint.write(now, call, Bytes::from_static(b"x")).unwrap();
    endpoint.finish(now, call);
    let mut desk = Desk {
        endpoint,
        now,
        from: address(2),
        events: Vec::new(),
    };
    let mut times = vec![];
    let mut serials = vec![];
    let start = desk.now;
    while !desk.events.contains(&Event::CallFailed { call, code: -1 }) {
        for seen in desk.seen() {
            if seen.header.packet_type == PacketType::DATA {
                times.push(desk.now.since(start).as_millis());
                serials.push(seen.header.serial);
                assert_eq!(seen.header.seq, 1);
            }
        }
        desk.now = desk.endpoint.poll_timeout().unwrap();
        desk.endpoint.handle_timeout(desk.now);
        while let Some(event) = desk.endpoint.poll_event() {
            desk.events.push(event);
        }
    }
    assert_eq!(times, [0, 1000, 3000, 7000, 15_000]);
    assert!(serials.windows(2).all(|w| w[0] < w[1]));
    let dead = desk.now.since(start);
    assert!(
        dead >= Duration::from_secs(29) && dead <= Duration::from_secs(31),
        "{dead:?}"
    );
}

#[test]
fn t19_reachability_check() {
    let mut desk = Desk::server(Config::default());
    desk.endpoint.add_service(null_service(true));
    let seen = desk.data(1, 1, 1, Flags::LAST_PACKET);
    assert!(desk.events.is_empty());
    let ping = seen
        .iter()
        .find(|s| s.ack().reason == AckReason::PING)
        .unwrap();
    assert!(ping.header.flags.has(Flags::REQUEST_ACK));
    let serial = ping.header.serial;
    // A second channel waits too; an answer to nothing proves nothing.
    let other = Header {
        cid: CID | 1,
        ..Desk::header(PacketType::DATA, 1, 1, 2)
    };
    desk.put(other, b"x");
    desk.ack(
        1,
        3,
        &plain_ack(1, 0, serial + 40, AckReason::PING_RESPONSE),
        0,
    );
    assert!(desk.events.is_empty());
    let again = desk.pass(Duration::from_millis(2_100));
    let ping = again
        .iter()
        .rev()
        .find(|s| s.header.cid == CID && s.ack().reason == AckReason::PING);
    let serial = ping.unwrap().header.serial;
    desk.ack(1, 4, &plain_ack(1, 0, serial, AckReason::PING_RESPONSE), 0);
    desk.new_call();
    desk.new_call();
    // Proven for a minute.
    let header = Header {
        cid: CID | 2,
        ..Desk::header(PacketType::DATA, 1, 1, 5)
    };
    desk.put(header, b"x");
    desk.new_call();
    // A NAT keep-alive is not answered.
    let mut header = Header::decode(&hex(
        "000003e7 00000000 00000000 00000000 00000000 0d 04 00 00 0000 0000",
    ))
    .unwrap();
    assert!(desk.put(header, &[0]).is_empty());
    header.flags.0 |= Flags::CLIENT_INITIATED;
    let seen = desk.put(header, &[0]);
    assert_eq!((seen[0].payload.len(), seen[0].header.flags.0), (65, 4));
}

#[test]
fn t20_a_client_that_changes_its_port() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, b"x");
    let first = desk.from;
    desk.from = SocketAddr::from(([10, 0, 0, 77], 12_345));
    desk.data(2, 1, 2, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, b"y");
    assert_eq!(
        seen[0].to, first,
        "replies go where the connection was created from"
    );
    assert_eq!(desk.endpoint.statistics().server_connections, 1);
    // With a low epoch it is another connection.
    for port in [1, 2] {
        desk.from = SocketAddr::from(([10, 0, 0, 77], port));
        let header = Header {
            epoch: 77,
            ..Desk::header(PacketType::DATA, 1, 1, 1)
        };
        desk.put(header, b"x");
        desk.new_call();
    }
    assert_eq!(desk.endpoint.statistics().server_connections, 3);
}

#[test]
fn t21_jumbograms_are_taken() {
    let mut desk = Desk::server(Config::default());
    let mut header = Desk::header(PacketType::DATA, 1, 1, 1);
    header.flags.0 |= Flags::JUMBO_PACKET;
    let mut payload = vec![1; 1412];
    payload.extend_from_slice(&[Flags::JUMBO_PACKET, 0, 0, 0]);
    payload.extend_from_slice(&[2; 1412]);
    payload.extend_from_slice(&[Flags::LAST_PACKET | Flags::REQUEST_ACK, 0, 0, 0]);
    payload.extend_from_slice(b"end");
    let seen = desk.put(header, &payload);
    let ack = seen[0].ack();
    assert_eq!(
        (seen.len(), ack.reason, ack.serial),
        (1, AckReason::REQUESTED, 3)
    );
    assert_eq!((ack.previous_packet, ack.acks), (3, &[1, 1, 1][..]));
    let call = desk.new_call();
    let mut sizes = Vec::new();
    while let ReadOutcome::Chunk(bytes) = desk.endpoint.read(desk.now, call) {
        sizes.push(bytes.len());
    }
    assert_eq!(sizes, [1412, 1412, 3]);
}

#[test]
fn t22_packets_are_never_larger_than_the_peer_says() {
    for (max, mtu, jumbo, largest) in [
        (576, 576, 1, 576),
        (1444, 1000, 1, 1000),
        (16_384, 16_384, 0, 1444),
        (5692, 1444, 1, 1444),
        (10, 10, 1, 520),
    ] {
        let mut desk = Desk::server(Config::default());
        desk.data(1, 1, 1, 0);
        let call = desk.new_call();
        let mut ack = plain_ack(1, 0, 0, AckReason::PING);
        ack.trailer = Some(Trailer {
            max_datagram: max,
            interface_mtu: Some(mtu),
            window: Some(32),
            jumbo_max: Some(jumbo),
        });
        desk.ack(1, 2, &ack, Flags::REQUEST_ACK);
        desk.data(1, 2, 3, Flags::LAST_PACKET);
        let seen = desk.answer(call, &[1; 20_000]);
        let size = seen
            .iter()
            .filter(|s| s.header.packet_type == PacketType::DATA)
            .map(|s| s.payload.len() + 28)
            .max();
        assert_eq!(size, Some(largest), "{max} {mtu}");
        assert!(
            seen.iter().all(|s| !s.header.flags.has(Flags::JUMBO_PACKET)
                || s.header.packet_type == PacketType::ACK)
        );
    }
}

#[test]
fn t23_the_service_upgrade_byte_is_ignored() {
    let mut desk = Desk::server(Config::default());
    let mut header = Desk::header(PacketType::DATA, 1, 1, 1);
    header.user_status = 1;
    header.flags.0 |= Flags::LAST_PACKET;
    desk.put(header, b"x");
    let call = desk.new_call();
    let seen = desk.answer(call, b"y");
    assert_eq!(
        (seen[0].header.service, seen[0].header.user_status),
        (SERVICE, 0)
    );
}

#[test]
fn a_security_index_other_than_the_connections_is_ignored() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, 0);
    let header = Header {
        security_index: 2,
        ..Desk::header(PacketType::ABORT, 1, 0, 2)
    };
    assert!(desk.put(header, &[0, 0, 0, 9]).is_empty());
    desk.new_call();
    assert!(desk.events.is_empty());
}

#[test]
fn in_order_packets_are_acknowledged_in_pairs_and_late_ones_by_timer() {
    let config = Config {
        extended_window: 0,
        ..Config::default()
    };
    let mut desk = Desk::server(config);
    assert!(desk.data(1, 1, 1, 0).is_empty());
    let seen = desk.data(1, 2, 2, 0);
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::IDLE, 2)
    );
    assert!(desk.data(1, 3, 3, 0).is_empty());
    assert!(desk.pass(Duration::from_millis(99)).is_empty());
    let seen = desk.pass(Duration::from_millis(2));
    assert_eq!(
        (seen[0].ack().reason, seen[0].ack().serial),
        (AckReason::DELAY, 0)
    );
    assert_eq!(seen[0].payload.len(), 37 + 3, "no extension is offered");
}

#[test]
fn t17_a_long_computation_is_kept_alive_and_t18_a_dead_client_ends() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let mut pings = 0;
    for i in 0..120 {
        for seen in desk.pass(Duration::from_secs(5)) {
            pings += u32::from(seen.ack().reason == AckReason::PING);
        }
        let seen = desk.ack(
            1,
            10 + i,
            &plain_ack(1, 0, 0, AckReason::PING),
            Flags::REQUEST_ACK,
        );
        assert_eq!(seen[0].ack().reason, AckReason::PING_RESPONSE);
    }
    assert!(pings < 130, "{pings}");
    assert!(desk.events.is_empty());
    desk.pass(Duration::from_secs(32));
    assert_eq!(desk.events, [Event::CallFailed { call, code: -1 }]);
}

#[test]
fn debug_packets_are_answered() {
    let mut desk = Desk::server(Config {
        version: String::from("Cellar test"),
        ..Config::default()
    });
    desk.data(1, 1, 1, 0);
    let mut ask = |kind: u32, index: u32| {
        let mut header = Desk::header(PacketType::DEBUG, 101, 0, 0);
        header.epoch = 999;
        header.cid = 0;
        header.flags.0 = 5;
        let payload = [kind.to_be_bytes(), index.to_be_bytes()].concat();
        let seen = desk.put(header, &payload);
        assert_eq!(
            (
                seen.len(),
                seen[0].header.call_number,
                seen[0].header.flags.0
            ),
            (1, 101, 4)
        );
        seen[0].payload.clone()
    };
    assert_eq!(ask(1, 0).len(), 56);
    let connection = ask(3, 0);
    assert_eq!(
        (connection.len(), &connection[..4], &connection[4..8]),
        (176, &[10, 0, 0, 1][..], &CID.to_be_bytes()[..])
    );
    assert_eq!(ask(2, 0), connection);
    assert_eq!(ask(3, 1)[4..8], [255; 4]);
    assert_eq!(ask(4, 0).len(), 284);
    assert_eq!(ask(5, 0).len(), 132);
    assert_eq!(ask(5, 1)[..4], [255; 4]);
    assert_eq!(ask(9, 0), hex("fffffff8 fffffff8"));
}
