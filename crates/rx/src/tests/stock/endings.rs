//! Endings of calls, packets that arrive meanwhile, and errors of the network.

use super::*;

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
    desk.proven_data();
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
    // A soft acknowledgement of everything ends a server call (rx-wire facts 2.1).
    assert!(desk.pass(Duration::from_secs(5)).is_empty());
}

#[test]
fn acks_that_must_change_nothing() {
    let mut desk = Desk::server(Config::default());
    desk.proven_data();
    let call = desk.new_call();
    desk.answer(call, &[7; 1416 * 4]);
    // Beyond what was sent; for another call; older than the last one.
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
    // Packets 3 and 4 are still unacknowledged and are retransmitted.
    let seen = desk.pass(Duration::from_secs(2));
    assert!(seen.iter().any(|s| s.header.seq == 3) && seen.iter().all(|s| s.header.seq != 2));
    // ACKALL ends it.
    desk.put(Desk::header(PacketType::ACKALL, 1, 0, 8), b"");
    assert!(desk.pass(Duration::from_secs(20)).is_empty());
}

#[test]
fn t16_retransmission_doubles_and_the_call_dies() {
    let (mut desk, call) = Desk::client(1, "x");
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
    // A second channel waits too; an answer that names no ping proves nothing.
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
    // The proof is still valid.
    let header = Header {
        cid: CID | 2,
        ..Desk::header(PacketType::DATA, 1, 1, 5)
    };
    desk.put(header, b"x");
    desk.new_call();
    // A NAT keep-alive gets no answer.
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
    // Until then the delayed ACK is a ping.
    let answer = plain_ack(1, 0, seen[0].header.serial, AckReason::PING_RESPONSE);
    desk.ack(1, 3, &answer, 0);
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
