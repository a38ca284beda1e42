//! Bounds, refusals, time-outs, and the dropping of unused state.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Answer, Link, SERVICE, World, address, pattern};
use super::stock::{Desk, plain_ack};
use crate::packet::{AckReason, Flags, Header, PacketType, Trailer};
use crate::*;

const LIMIT: Duration = Duration::from_secs(200);

#[test]
fn four_channels_and_an_event_when_one_is_free() {
    let mut world = World::new(1, Link::default());
    let connection = world.connect();
    let calls: Vec<CallId> = (0..4).map(|_| world.call(connection, b"x")).collect();
    let now = world.now;
    let client = &mut world.nodes[0].endpoint;
    assert_eq!(
        client.start_call(now, connection),
        Err(StartCallError::NoChannel)
    );
    for call in calls {
        world.finish(LIMIT, call).unwrap();
    }
    let call = world.call(connection, b"again");
    assert_eq!(world.finish(LIMIT, call), Ok(b"again".to_vec()));
}

#[test]
fn refusals_reach_the_client() {
    let mut world = World::new(2, Link::default());
    let connection = world.connect();
    world.nodes[1].answer = Answer::Refuse(Refusal::Abort(code::BUSY));
    let call = world.call(connection, b"x");
    assert_eq!(world.finish(LIMIT, call), Err(110));
    // BUSY: the client retries, and succeeds when the server can accept.
    world.nodes[1].answer = Answer::Refuse(Refusal::Busy);
    let call = world.call(connection, b"y");
    world.run_for(Duration::from_secs(3));
    assert!(world.nodes[0].results.is_empty());
    assert!(world.nodes[1].served >= 2);
    world.nodes[1].answer = Answer::Echo;
    assert_eq!(world.finish(LIMIT, call), Ok(b"y".to_vec()));
    world.nodes[1].answer = Answer::Abort(-455);
    let call = world.call(connection, &pattern(100_000));
    assert_eq!(world.finish(LIMIT, call), Err(-455));
}

#[test]
fn calls_and_connections_are_bounded() {
    let limits = Limits {
        calls: 3,
        calls_per_host: 2,
        connections: 6,
        ..Limits::default()
    };
    let mut desk = Desk::server(Config {
        limits,
        ..Config::default()
    });
    let cid = |n: u32| Header {
        cid: n << 2,
        ..Desk::header(PacketType::DATA, 1, 1, 1)
    };
    // The addresses prove that they receive, since other bounds apply to unverified ones.
    let prove = |desk: &mut Desk, n: u32| {
        let mut data = cid(n);
        data.flags.0 |= Flags::REQUEST_ACK;
        let seen = desk.put(data, b"x");
        let mut payload = Vec::new();
        plain_ack(1, 0, seen[0].header.serial, AckReason::PING_RESPONSE).encode(&mut payload);
        let answer = Header {
            packet_type: PacketType::ACK,
            seq: 0,
            ..cid(n)
        };
        assert!(desk.put(answer, &payload).is_empty());
    };
    let finish = |desk: &mut Desk| {
        let call = desk.new_call();
        while let ReadOutcome::Chunk(_) = desk.endpoint.read(desk.now, call) {}
        desk.endpoint.finish(desk.now, call);
        desk.seen();
    };
    desk.from = address(4);
    prove(&mut desk, 8);
    finish(&mut desk);
    desk.from = address(1);
    prove(&mut desk, 1);
    assert!(desk.put(cid(2), b"x").is_empty());
    let seen = desk.put(cid(3), b"x");
    assert_eq!(
        seen[0].header.packet_type,
        PacketType::BUSY,
        "two calls of one host"
    );
    desk.from = address(3);
    prove(&mut desk, 4);
    desk.from = address(4);
    assert_eq!(
        desk.put(cid(5), b"x")[0].code(),
        code::BUSY,
        "three calls in all"
    );
    assert_eq!(
        desk.put(cid(6), b"x")[0].code(),
        code::BUSY,
        "six connections"
    );
    // A finished call makes room, and a connection that was idle for a while too.
    finish(&mut desk);
    assert!(desk.put(cid(5), b"x").is_empty());
    desk.pass(Duration::from_secs(15));
    desk.put(cid(7), b"x");
    assert!(
        desk.events
            .iter()
            .any(|e| matches!(e, Event::ConnectionClosed { .. }))
    );
    assert_eq!(desk.endpoint.statistics().server_connections, 6);
}

#[test]
fn connections_of_the_same_numbers_are_few() {
    let mut desk = Desk::server(Config::default());
    let numbers = |cid| Header {
        // Without the bit that permits address changes.
        epoch: 0x0be5_4e16,
        cid,
        ..Desk::header(PacketType::DATA, 1, 1, 1)
    };
    let mut refused = 0;
    for port in 1000..1100 {
        desk.from.set_port(port);
        let seen = desk.put(numbers(8), b"x");
        refused += usize::from(seen.iter().any(|seen| seen.code() == code::BUSY));
    }
    assert_eq!(desk.endpoint.statistics().server_connections, 32);
    assert_eq!(refused, 68);
    // Existing connections continue, and others are accepted.
    desk.from.set_port(1000);
    assert!(
        desk.put(numbers(8), b"x")
            .iter()
            .all(|seen| seen.header.packet_type != PacketType::ABORT)
    );
    desk.put(numbers(12), b"x");
    assert_eq!(desk.endpoint.statistics().server_connections, 33);
}

/// A connection that was used once takes little memory, even after authentication.
#[test]
fn idle_connections_used_last_are_kept() {
    const KEPT: usize = 10;
    let mut desk = Desk::server(Config {
        limits: Limits {
            idle_connections: KEPT,
            ..Limits::default()
        },
        ..Config::default()
    });
    let call_on = |desk: &mut Desk, n: u32, number: u32| {
        let of = |kind, seq| Header {
            cid: n << 2,
            ..Desk::header(kind, number, seq, number)
        };
        let mut request = of(PacketType::DATA, 1);
        request.flags.0 |= Flags::LAST_PACKET;
        desk.put(request, b"x");
        let call = desk.new_call();
        let reply = desk.answer(call, b"y");
        let mut payload = Vec::new();
        plain_ack(2, 1, reply[0].header.serial, AckReason::IDLE).encode(&mut payload);
        desk.put(of(PacketType::ACK, 0), &payload);
    };
    for n in 0..30 {
        call_on(&mut desk, n, 1);
        desk.pass(Duration::from_secs(1));
    }
    call_on(&mut desk, 3, 2);
    let left = |desk: &Desk| desk.endpoint.statistics().server_connections as usize;
    desk.pass(Duration::from_secs(40));
    assert_eq!(left(&desk), 30, "no connection is idle for long");
    desk.pass(Duration::from_secs(80));
    assert_eq!(left(&desk), KEPT);
    // The nine newest connections, and the one that was used again, continue.
    desk.events.clear();
    for n in (21..30).chain([3]) {
        call_on(&mut desk, n, 3);
    }
    assert_eq!(left(&desk), KEPT);
    // A dropped connection is created again.
    call_on(&mut desk, 4, 2);
    assert_eq!(left(&desk), KEPT + 1);
    desk.pass(Duration::from_secs(800));
    assert_eq!(left(&desk), 0);
}

#[test]
fn the_send_buffer_is_bounded() {
    let mut world = World::new(3, Link::default());
    let limits = Limits {
        send_buffer: 100_000,
        ..Limits::default()
    };
    world.nodes[1].endpoint = Endpoint::new(
        Config {
            limits,
            ..Config::default()
        },
        1,
    );
    world.nodes[1]
        .endpoint
        .add_service(super::harness::null_service(false));
    world.nodes[1].answer = Answer::Bytes(5_000_000);
    let connection = world.connect();
    let call = world.call(connection, b"x");
    assert!(world.finish(LIMIT, call) == Ok(pattern(5_000_000)));
}

/// Peers that accept nothing share a bound, however many there are; each still gets its least
/// share.
#[test]
fn send_buffers_are_bounded_over_all_calls() {
    const CALLS: u32 = 200;
    const WRITE: usize = 16_384;
    let limits = Limits {
        send_buffer: 1 << 20,
        send_buffers: 4 << 20,
        ..Limits::default()
    };
    let mut desk = Desk::server(Config {
        limits,
        ..Config::default()
    });
    let mut calls = Vec::new();
    for n in 0..CALLS {
        let first = Header {
            cid: n << 2,
            ..Desk::header(PacketType::DATA, 1, 1, 1)
        };
        desk.put(first, b"x");
        let call = desk.new_call();
        let mut held = 0;
        let data = Bytes::from(vec![1; WRITE]);
        let now = desk.now;
        while desk.endpoint.write(now, call, data.clone()).unwrap() == WriteOutcome::Accepted {
            held += WRITE;
        }
        assert!(held >= 65_536, "call {n} has {held}");
        calls.push(call);
    }
    let held = |desk: &Desk| desk.endpoint.statistics().send_buffered;
    let least = u64::from(CALLS) * 65_536;
    let most = (4 << 20) + u64::from(CALLS) * (65_536 + WRITE as u64);
    assert!((least..=most).contains(&held(&desk)), "{}", held(&desk));
    // The memory is free again when the calls are over.
    for call in calls {
        let now = desk.now;
        desk.endpoint.abort(now, call, 1);
    }
    assert_eq!(held(&desk), 0);
}

/// A living peer that accepts none of the reply loses its call; one that accepts a little does not.
#[test]
fn a_reply_that_is_not_taken_is_given_up() {
    let mut desk = Desk::server(Config {
        connection_idle: Duration::from_secs(100_000),
        ..Config::default()
    });
    desk.put(Desk::header(PacketType::DATA, 1, 1, 1), b"x");
    let call = desk.new_call();
    let now = desk.now;
    let outcome = desk
        .endpoint
        .write(now, call, Bytes::from(vec![1; 60_000]))
        .unwrap();
    assert_eq!(outcome, WriteOutcome::Accepted);
    desk.seen();
    let mut serial = 1;
    let mut next = 1;
    let mut lives = |desk: &mut Desk, next: u32| {
        desk.pass(Duration::from_secs(1));
        serial += 1;
        let ack = plain_ack(next, next - 1, 0, AckReason::PING);
        desk.ack(1, serial, &ack, 0);
        desk.events.iter().any(|event| {
            matches!(
                event,
                Event::CallFailed {
                    code: code::CALL_TIMEOUT,
                    ..
                }
            )
        })
    };
    for n in 0..400 {
        next += u32::from(n % 50 == 49);
        assert!(!lives(&mut desk, next), "second {n}");
    }
    let after = (0..400).find(|_| lives(&mut desk, next)).expect("an end");
    // The last packet was acknowledged in second 399 of the first loop.
    assert!((58..=61).contains(&after), "{after}");
    assert_eq!(desk.endpoint.statistics().send_buffered, 0);
}

#[test]
fn received_data_is_bounded_and_windows_shrink() {
    let limits = Limits {
        receive_buffer: 200_000,
        ..Limits::default()
    };
    let mut desk = Desk::server(Config {
        limits,
        ..Config::default()
    });
    let payload = vec![3; 1416];
    let mut windows = Vec::new();
    for channel in 0..2 {
        for seq in 1..=250 {
            let header = Desk::header(PacketType::DATA, 1, seq, seq);
            let header = Header {
                cid: header.cid | channel,
                ..header
            };
            for seen in desk.put(header, &payload) {
                windows.push(seen.ack().trailer.unwrap().window.unwrap());
            }
        }
    }
    assert!(desk.endpoint.statistics().receive_buffered < 1_000_000);
    assert!(
        windows[0] == 255 && *windows.last().unwrap() <= 8,
        "{windows:?}"
    );
}

#[test]
fn idle_and_hard_dead_times() {
    let config = Config {
        idle_dead_time: Some(Duration::from_secs(40)),
        hard_dead_time: Some(Duration::from_secs(100)),
        ..Config::default()
    };
    let mut world = World::with_configs(4, Link::default(), config, Config::default());
    let connection = world.connect();
    world.nodes[1].answer = Answer::Silence;
    let start = world.now;
    let call = world.call(connection, b"x");
    assert_eq!(world.finish(LIMIT, call), Err(code::CALL_TIMEOUT));
    let took = world.now.since(start).as_secs();
    assert_eq!(took, 40);
    world.run_for(Duration::from_secs(1));
    assert!(
        world.nodes[1]
            .results
            .values()
            .all(|r| *r == Err(code::CALL_TIMEOUT))
    );
    let to = world.nodes[1].address;
    let now = world.now;
    let options = ConnectionOptions {
        hard_dead_time: Some(Duration::from_secs(7)),
        ..ConnectionOptions::default()
    };
    let connection =
        world.nodes[0]
            .endpoint
            .connect(now, to, SERVICE, Box::new(NullSecurity), options);
    let call = world.call(connection, b"x");
    assert_eq!(world.finish(LIMIT, call), Err(code::CALL_TIMEOUT));
    assert_eq!(world.now.since(now).as_secs(), 7);
}

#[test]
fn a_slow_answer_is_waited_for() {
    let mut world = World::new(5, Link::default());
    let connection = world.connect();
    world.nodes[1].answer = Answer::Late(Duration::from_secs(3_600));
    let call = world.call(connection, b"x");
    assert_eq!(
        world.finish(Duration::from_secs(4_000), call),
        Ok(Vec::new())
    );
}

#[test]
fn a_dead_server_ends_the_call_and_a_returned_one_is_used() {
    let mut world = World::new(6, Link::default());
    let connection = world.connect();
    let call = world.call(connection, b"x");
    world.finish(LIMIT, call).unwrap();
    world.link.loss = 1000;
    let start = world.now;
    let call = world.call(connection, b"y");
    assert_eq!(world.finish(LIMIT, call), Err(code::CALL_DEAD));
    let took = world.now.since(start).as_secs();
    assert!((29..=31).contains(&took), "{took}");
    // The server has lost all state; the same connection continues.
    world.link.loss = 0;
    world.nodes[1].endpoint = Endpoint::new(Config::default(), 9);
    world.nodes[1]
        .endpoint
        .add_service(super::harness::null_service(false));
    let call = world.call(connection, b"z");
    assert_eq!(world.finish(LIMIT, call), Ok(b"z".to_vec()));
}

#[test]
fn unreachable_addresses_fail_waiting_calls_only() {
    let mut world = World::new(7, Link::default());
    let connection = world.connect();
    let first = world.call(connection, b"x");
    world.finish(LIMIT, first).unwrap();
    world.link.loss = 1000;
    let call = world.call(connection, b"y");
    world.run_for(Duration::from_millis(10));
    let (now, to) = (world.now, world.nodes[1].address);
    world.nodes[0].endpoint.handle_unreachable(now, address(77));
    world.nodes[0].endpoint.handle_unreachable(now, to);
    assert_eq!(world.finish(LIMIT, call), Err(code::CALL_DEAD));
    assert_eq!(world.now, now);
}

#[test]
fn another_address_fails_calls_out_that_were_begun_before() {
    let mut world = World::new(7, Link::default());
    let connection = world.connect();
    let first = world.call(connection, b"x");
    world.finish(LIMIT, first).unwrap();
    let early = world.call(connection, b"y");
    world.run_for(Duration::from_micros(1));
    let now = world.now;
    let late = world.call(connection, b"z");
    // The server's end of the same call continues.
    world.nodes[1].endpoint.handle_new_address(now, now);
    world.nodes[0].endpoint.handle_new_address(now, now);
    assert_eq!(world.finish(LIMIT, early), Err(code::CALL_DEAD));
    assert_eq!(world.now, now);
    assert_eq!(world.finish(LIMIT, late), Ok(b"z".to_vec()));
}

#[test]
fn keep_alive_packets_are_sent_and_not_answered() {
    let mut world = World::new(7, Link::default());
    let to = world.nodes[1].address;
    let sent = |world: &World| world.nodes[1].endpoint.statistics().packets_sent;
    let before = sent(&world);
    world.nodes[0].endpoint.keep_mapping(to);
    world.run_for(Duration::from_secs(1));
    let read = world.nodes[1].endpoint.statistics().packets_read;
    assert_eq!(read[usize::from(PacketType::VERSION.0) - 1], 1);
    assert_eq!(sent(&world), before);
}

#[test]
fn idle_things_are_forgotten() {
    let mut world = World::new(8, Link::default());
    let connection = world.connect();
    // A reply of more than one packet proves the client's address.
    let call = world.call(connection, &pattern(5_000));
    world.finish(LIMIT, call).unwrap();
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.nodes[1].endpoint.statistics().server_connections, 1);
    assert_eq!(
        world.nodes[1].endpoint.statistics().calls,
        0,
        "only the number is kept"
    );
    let call = world.call(connection, b"y");
    assert_eq!(world.finish(LIMIT, call), Ok(b"y".to_vec()));
    world.run_for(Duration::from_secs(900));
    let server = &world.nodes[1];
    let s = server.endpoint.statistics();
    assert_eq!(
        (s.server_connections, s.peers, s.calls, server.closed),
        (0, 0, 0, 1)
    );
    let now = world.now;
    world.nodes[0].endpoint.close(now, connection);
    let gone = world.nodes[0].endpoint.start_call(now, connection);
    assert_eq!(gone, Err(StartCallError::Gone));
    world.run_for(Duration::from_secs(200));
    let s = world.nodes[0].endpoint.statistics();
    assert_eq!((s.client_connections, s.peers, s.calls), (0, 0, 0));
}

#[test]
fn idle_connections_of_unverified_addresses_are_forgotten_soon() {
    let mut desk = Desk::server(Config::default());
    for n in 0..40 {
        desk.from = address(n);
        desk.data(1, 1, 1, Flags::LAST_PACKET);
        desk.put(
            Header {
                cid: u32::from(n) << 2,
                flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
                ..Desk::header(PacketType::DATA, 1, 1, 1)
            },
            b"x",
        );
    }
    while desk
        .events
        .iter()
        .any(|e| matches!(e, Event::NewCall { .. }))
    {
        let call = desk.new_call();
        desk.answer(call, b"y");
    }
    assert_eq!(desk.endpoint.statistics().unverified, 41);
    // The replies are given up after half a minute.
    desk.pass(Duration::from_secs(180));
    let s = desk.endpoint.statistics();
    assert_eq!(
        (s.server_connections, s.unverified, s.peers, s.calls),
        (0, 0, 0, 0)
    );
}

#[test]
fn closing_aborts_what_runs() {
    let mut world = World::new(9, Link::default());
    let connection = world.connect();
    world.nodes[1].answer = Answer::Silence;
    let _ = world.call(connection, b"x");
    world.run_for(Duration::from_secs(1));
    let now = world.now;
    world.nodes[0].endpoint.close(now, connection);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.nodes[1].endpoint.debug_connection_count(true), 0);
}

#[test]
fn client_ids_lead_back_to_their_shard() {
    for shard in 0..3 {
        let config = Config {
            cid_shard: shard,
            cid_shards: 3,
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(config, u64::from(shard));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let security = Box::new(NullSecurity);
            let id = endpoint.connect(
                Time::ZERO,
                address(2),
                1,
                security,
                ConnectionOptions::default(),
            );
            let cid = endpoint.connection(id).unwrap().cid;
            assert_eq!((cid & 3, (cid >> 2) % 3), (0, shard));
            assert!(seen.insert(cid));
        }
    }
}

/// A stock peer that accepts jumbograms, on a path that proves large enough.
#[test]
fn jumbograms_are_sent_where_asked_for() {
    let mut desk = Desk::server(Config::default());
    let trailer = Trailer {
        max_datagram: 5692,
        interface_mtu: Some(1444),
        window: Some(32),
        jumbo_max: Some(4),
    };
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let data = pattern(600_000);
    let mut received = Vec::new();
    let mut next = 1;
    let mut largest = 0;
    let mut serial = 10;
    let mut seen = desk.answer(call, &data);
    while received.len() < data.len() {
        assert!(!seen.is_empty());
        let mut answers = Vec::new();
        for packet in seen {
            let bytes = [packet.header.encode().to_vec(), packet.payload.clone()].concat();
            largest = largest.max(bytes.len());
            match packet.header.packet_type {
                PacketType::ACK => answers.push((packet.header.serial, AckReason::PING_RESPONSE)),
                _ => {
                    for part in packet::JumboSplit::new(packet.header, &bytes) {
                        assert_eq!(part.header.seq, next, "in order");
                        next += 1;
                        received.extend_from_slice(&bytes[part.start..part.end]);
                        answers.push((part.header.serial, AckReason::IDLE));
                    }
                }
            }
        }
        desk.now = desk.now + Duration::from_micros(100);
        seen = Vec::new();
        for (answered, reason) in answers {
            serial += 1;
            let mut ack = plain_ack(next, next - 1, answered, reason);
            ack.trailer = Some(trailer);
            seen.extend(desk.ack(1, serial, &ack, 0));
        }
    }
    assert!(received == data);
    assert_eq!(largest, 5688, "four packets in one");
}

#[test]
fn large_packets_that_stop_passing_are_given_up() {
    let config = Config {
        dead_time: Duration::from_secs(20),
        ..Config::default()
    };
    let link = Link {
        mtu: 9_000,
        ..Link::default()
    };
    let mut world = World::with_configs(10, link, config.clone(), config);
    let connection = world.connect();
    world.nodes[1].answer = Answer::Bytes(3_000_000);
    let call = world.call(connection, b"x");
    world.finish(LIMIT, call).unwrap();
    let mtu = |world: &World| world.nodes[1].endpoint.debug_peer(0).unwrap().mtu;
    assert!(mtu(&world) > 8_000);
    // The route changes: only small packets pass. This call fails; the next one works.
    world.link.mtu = 1_472;
    let call = world.call(connection, b"x");
    assert!(world.finish(LIMIT, call).is_err());
    assert_eq!(mtu(&world), 1444);
    let call = world.call(connection, b"x");
    assert!(world.finish(LIMIT, call) == Ok(pattern(3_000_000)));
}

#[test]
fn time_going_backwards_is_harmless() {
    let mut world = World::new(11, Link::default());
    let connection = world.connect();
    world.run_for(Duration::from_secs(10));
    let back = Time::from_micros(3);
    let client = &mut world.nodes[0].endpoint;
    let call = client.start_call(back, connection).unwrap();
    client.write(back, call, Bytes::from_static(b"x")).unwrap();
    client.handle_timeout(back);
    client.abort(back, call, 5);
    world.run_for(Duration::from_secs(10));
}
