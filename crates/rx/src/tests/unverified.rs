//! Packets to unverified addresses: hand-made cases, and storms of forged datagrams.

use std::time::Duration;

use bytes::Bytes;

use super::harness::{Answer, Link, Seed, World, address, null_service, pattern};
use super::stock::{Desk, SentPacket, plain_ack};
use crate::packet::{AckReason, Flags, Header, PacketType};
use crate::random::Random;
use crate::*;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns everything that is sent within ten minutes in response to the input so far.
fn all(desk: &mut Desk, mut seen: Vec<SentPacket>) -> Vec<SentPacket> {
    seen.extend(desk.pass(Duration::from_secs(600)));
    seen
}

fn data_of(seen: &[SentPacket]) -> Vec<u32> {
    let data = seen
        .iter()
        .filter(|seen| seen.header.packet_type == PacketType::DATA);
    data.map(|seen| seen.header.seq).collect()
}

#[test]
fn a_long_reply_sends_one_packet_and_a_ping_until_it_is_acknowledged() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, &pattern(500_000)[..65_536]);
    assert_eq!(data_of(&seen), [1]);
    assert!(seen[0].header.flags.has(Flags::REQUEST_ACK));
    let serial = seen[0].header.serial;
    let later = all(&mut desk, Vec::new());
    assert_eq!(later.len(), 1, "{later:?}");
    assert_eq!(later[0].ack().reason, AckReason::PING);
    assert!(later[0].payload.len() + 28 <= 3 * (28 + 4), "{later:?}");
    assert!(serial < later[0].header.serial);
    assert!(desk.endpoint.statistics().withheld > 0);
}

#[test]
fn the_first_acknowledgement_lets_the_rest_go() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, &pattern(1416 * 10));
    assert_eq!(data_of(&seen), [1]);
    let ack = plain_ack(1, 1, seen[0].header.serial, AckReason::REQUESTED);
    let ack = packet::Ack { acks: &[1], ..ack };
    let seen = desk.ack(1, 2, &ack, 0);
    assert_eq!(data_of(&seen), (2..=10).collect::<Vec<_>>());
    // The next call of the address, on another connection too, gets its whole answer at once.
    let other = Header {
        cid: 4,
        flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
        ..Desk::header(PacketType::DATA, 1, 1, 1)
    };
    desk.put(other, b"x");
    let call = desk.new_call();
    let seen = desk.answer(call, &pattern(1416 * 10));
    assert_eq!(data_of(&seen), (1..=10).collect::<Vec<_>>());
}

/// Serials begin at random: an ACK with an invented serial proves nothing.
#[test]
fn guessed_serials_prove_nothing() {
    for seed in 0..20 {
        let mut endpoint = Endpoint::new(Config::default(), seed);
        endpoint.add_service(null_service(false));
        let mut desk = Desk {
            endpoint,
            ..Desk::server(Config::default())
        };
        desk.data(1, 1, 1, Flags::LAST_PACKET);
        let call = desk.new_call();
        let first = desk.answer(call, &pattern(60_000));
        assert_eq!(data_of(&first), [1]);
        let mut packets = 0;
        for serial in 0..200 {
            let ack = plain_ack(1, 0, serial, AckReason::PING_RESPONSE);
            packets += desk.ack(1, 2 + serial, &ack, 0).len();
        }
        // Nothing is lost yet, and no more than one packet each may leave.
        assert!(packets <= 200, "{packets}");
        let sent = desk.endpoint.statistics();
        assert!(sent.data_sent <= 201, "{}", sent.data_sent);
    }
}

#[test]
fn a_short_reply_leaves_at_once_and_is_pinged_for_once() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.answer(call, &[7; 1416]);
    assert_eq!(data_of(&seen), [1]);
    assert!(seen[0].header.flags.has(Flags::LAST_PACKET));
    let later = all(&mut desk, Vec::new());
    assert_eq!((later.len(), later[0].ack().reason), (1, AckReason::PING));
}

/// The reply is lost: the answer to the ping causes its retransmission.
#[test]
fn a_lost_reply_is_repeated_when_the_ping_is_answered() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, &[7; 1416]);
    let ping = desk.pass(Duration::from_secs(10)).remove(0);
    let ack = plain_ack(1, 0, ping.header.serial, AckReason::PING_RESPONSE);
    let seen = desk.ack(1, 2, &ack, 0);
    assert_eq!(data_of(&seen), [1]);
}

/// A client that repeats its request gets the reply again each time, without a timer of ours.
#[test]
fn a_repeated_request_draws_the_reply_again() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    desk.answer(call, &[7; 1416]);
    for serial in 2..6 {
        desk.pass(Duration::from_secs(1));
        let seen = desk.data(1, 1, serial, Flags::LAST_PACKET);
        assert_eq!(data_of(&seen), [1]);
        assert!(seen.len() <= 2, "{seen:?}");
    }
}

/// A long-running call requests the proof while it runs.
#[test]
fn a_slow_call_verifies_its_client_before_it_replies() {
    let mut desk = Desk::server(Config::default());
    desk.data(1, 1, 1, Flags::LAST_PACKET);
    let call = desk.new_call();
    let seen = desk.pass(Duration::from_millis(101));
    assert_eq!((seen.len(), seen[0].ack().reason), (1, AckReason::PING));
    let ack = plain_ack(1, 0, seen[0].header.serial, AckReason::PING_RESPONSE);
    assert!(desk.ack(1, 2, &ack, 0).is_empty());
    let seen = desk.answer(call, &pattern(1416 * 10));
    assert_eq!(data_of(&seen), (1..=10).collect::<Vec<_>>());
}

#[test]
fn a_proof_is_forgotten_after_ten_minutes_and_renewed_by_use() {
    let mut desk = Desk::server(Config {
        connection_idle: Duration::from_secs(100_000),
        ..Config::default()
    });
    let mut serial = 1;
    let mut reply = |desk: &mut Desk, number: u32, acknowledge: bool| {
        serial += 2;
        desk.data(number, 1, serial, Flags::LAST_PACKET);
        let call = desk.new_call();
        let mut seen = desk.answer(call, &pattern(1416 * 3));
        let at_once = data_of(&seen).len();
        if acknowledge {
            let first = seen.remove(0).header.serial;
            let ack = plain_ack(2, 1, first, AckReason::REQUESTED);
            desk.ack(number, serial + 1, &ack, 0);
            let ack = plain_ack(4, 3, first, AckReason::IDLE);
            desk.ack(number, serial + 1, &ack, 0);
        }
        at_once
    };
    assert_eq!(reply(&mut desk, 1, true), 1);
    for number in 2..6 {
        desk.pass(Duration::from_secs(500));
        assert_eq!(reply(&mut desk, number, true), 3, "{number}");
    }
    desk.pass(Duration::from_secs(601));
    assert_eq!(reply(&mut desk, 6, true), 1, "nothing was saved up");
}

/// At most two datagrams leave for each forged one, and one of these is small.
#[test]
fn storms_of_forged_datagrams_are_not_multiplied() {
    for seed in 200..206 {
        let seed = Seed::from_environment(seed);
        let mut random = Random::new(seed.0);
        let victim = address(77);
        let mut desk = Desk::server(Config::default());
        desk.endpoint
            .add_service(null_service(seed.0.is_multiple_of(2)));
        desk.from = victim;
        let (mut came, mut came_bytes) = (0, 0);
        let (mut left, mut extra_bytes, mut replies) = (0, 0, 0);
        let mut count = |seen: Vec<SentPacket>| {
            for seen in seen {
                assert_eq!(seen.to, victim);
                left += 1;
                let length = seen.payload.len() as u64 + 56;
                match seen.header.packet_type {
                    PacketType::ACK => extra_bytes += length,
                    _ => replies += 1,
                }
            }
        };
        for round in 0..3_000u32 {
            let kinds = [
                PacketType::DATA,
                PacketType::DATA,
                PacketType::DATA,
                PacketType::ACK,
                PacketType::ACK,
                PacketType::ACKALL,
                PacketType::RESPONSE,
                PacketType(77),
                PacketType::BUSY,
            ];
            let kind = kinds[(random.next() % kinds.len() as u64) as usize];
            let number = 1 + (random.next() % 3) as u32 + round / 100;
            let mut header = Desk::header(kind, number, 1 + (random.next() % 3) as u32, round);
            header.cid = (random.next() % 24) as u32;
            header.flags.0 |= [0, Flags::LAST_PACKET, Flags::REQUEST_ACK, 6][round as usize % 4];
            if random.next().is_multiple_of(50) {
                header.call_number = 0;
            }
            let mut payload = Vec::new();
            if kind == PacketType::ACK {
                let guess = random.next() as u32;
                plain_ack(
                    1 + guess % 5,
                    guess % 5,
                    guess % 300,
                    AckReason(1 + guess as u8 % 9),
                )
                .encode(&mut payload);
            } else {
                payload = vec![7; (random.next() % 90) as usize];
            }
            came += 1;
            came_bytes += payload.len() as u64 + 56;
            let seen = desk.put(header, &payload);
            count(seen);
            while let Some(at) = desk
                .events
                .iter()
                .position(|event| matches!(event, Event::NewCall { .. }))
            {
                let Event::NewCall { call, .. } = desk.events.remove(at) else {
                    continue;
                };
                while let ReadOutcome::Chunk(_) = desk.endpoint.read(desk.now, call) {}
                match random.next() % 3 {
                    0 => desk.endpoint.abort(desk.now, call, 5),
                    n => {
                        let reply = Bytes::from(pattern(if n == 1 { 1_000 } else { 100_000 }));
                        let _full = desk.endpoint.write(desk.now, call, reply);
                        desk.endpoint.finish(desk.now, call);
                    }
                }
                let seen = desk.seen();
                count(seen);
            }
            desk.events.clear();
            let pause = Duration::from_millis(random.next() % 3_000);
            let seen = desk.pass(pause);
            count(seen);
        }
        let seen = desk.pass(Duration::from_secs(600));
        count(seen);
        assert!(left > 1_000, "{left} of {came}");
        assert!(
            left <= 2 * came && replies <= came,
            "{left}, {replies} of {came}"
        );
        assert!(
            extra_bytes <= 3 * came_bytes,
            "{extra_bytes} of {came_bytes}"
        );
    }
}

/// An honest client needs one extra round trip for its first long reply, and none for a short one.
#[test]
fn the_cost_of_an_honest_client() {
    let link = Link {
        delay: Duration::from_millis(50),
        ..Link::default()
    };
    let trip = Duration::from_millis(100);
    let mut took = Vec::new();
    for sizes in [[100, 1_416, 5_000], [5_000, 5_000, 100]] {
        let mut world = World::new(1, link.clone());
        let connection = world.connect();
        for size in sizes {
            world.nodes[1].answer = Answer::Bytes(size);
            let start = world.now;
            let call = world.call(connection, b"x");
            assert_eq!(world.finish(LIMIT, call), Ok(pattern(size)));
            took.push((world.now.since(start).as_micros() + 500) / trip.as_micros());
        }
    }
    assert_eq!(took, [1, 1, 2, 2, 1, 1]);
}

/// With packet loss from the first packet on, every call ends with the right bytes.
#[test]
fn first_calls_through_a_bad_network() {
    for seed in 210..260 {
        let seed = Seed::from_environment(seed);
        let link = Link {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            loss: 300,
            duplicate: 50,
            ..Link::default()
        };
        let mut world = World::new(seed.0, link);
        world.nodes[1]
            .endpoint
            .add_service(null_service(seed.0.is_multiple_of(2)));
        let size = [10, 1_416, 3_000, 40_000][seed.0 as usize % 4];
        world.nodes[1].answer = Answer::Bytes(size);
        let connection = world.connect();
        let call = world.call(connection, b"x");
        assert_eq!(world.finish(LIMIT, call), Ok(pattern(size)), "{size}");
    }
}

#[test]
fn an_address_that_does_not_answer_is_pinged_twice() {
    let mut desk = Desk::server(Config::default());
    desk.endpoint.add_service(null_service(true));
    let first = desk.data(1, 1, 1, Flags::LAST_PACKET);
    let seen = all(&mut desk, first);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|seen| seen.ack().reason == AckReason::PING));
}
