//! Bad networks with many seeds: every call ends with the right bytes.

use std::time::Duration;

use super::harness::{Answer, Link, Seed, World, address, pattern};
use crate::random::Random;
use crate::*;

const LIMIT: Duration = Duration::from_secs(1_000);

fn storm(seed: u64, link: Link, calls: usize) -> World {
    let seed = Seed::from_environment(seed);
    let mut random = Random::new(seed.0 ^ 0x5eed);
    let mut world = World::new(seed.0, link);
    let connections: Vec<ConnectionId> = (0..4).map(|_| world.connect()).collect();
    let mut open: Vec<(ConnectionId, CallId, Vec<u8>)> = Vec::new();
    let mut started = 0;
    while started < calls || !open.is_empty() {
        for connection in &connections {
            let running = open.iter().filter(|(c, ..)| c == connection).count();
            if started < calls && running < 4 {
                started += 1;
                let size = match random.next() % 10 {
                    0 => random.next() % 400_000,
                    1..4 => random.next() % 20_000,
                    _ => random.next() % 600,
                };
                let request = pattern(size as usize);
                let call = world.call(*connection, &request);
                open.push((*connection, call, request));
            }
        }
        world.run_until(LIMIT, |w| {
            open.iter()
                .any(|(_, call, _)| w.nodes[0].results.contains_key(call))
        });
        open.retain(
            |(_, call, request)| match world.nodes[0].results.remove(call) {
                None => true,
                Some(result) => {
                    assert!(
                        result.as_ref() == Ok(request),
                        "call {call:?}: {:?}",
                        result.map(|r| r.len())
                    );
                    false
                }
            },
        );
    }
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[1].endpoint.statistics().receive_buffered, 0);
    assert_eq!(world.nodes[0].endpoint.statistics().receive_buffered, 0);
    world
}

#[test]
fn loss_reorder_and_duplicates() {
    for seed in 100..110 {
        let link = Link {
            delay: Duration::from_millis(5),
            jitter: Duration::from_millis(3),
            loss: 50,
            duplicate: 50,
            ..Link::default()
        };
        storm(seed, link, 200);
    }
}

#[test]
fn heavy_loss() {
    for seed in 120..124 {
        let link = Link {
            delay: Duration::from_millis(20),
            loss: 250,
            ..Link::default()
        };
        storm(seed, link, 60);
    }
}

#[test]
fn replayed_packets_change_nothing() {
    for seed in 130..136 {
        let link = Link {
            delay: Duration::from_millis(2),
            jitter: Duration::from_millis(4),
            loss: 20,
            duplicate: 100,
            replay: 300,
            ..Link::default()
        };
        storm(seed, link, 200);
    }
}

#[test]
fn thin_bottleneck_with_many_calls() {
    for seed in 140..143 {
        let link = Link {
            delay: Duration::from_millis(10),
            rate: 10_000_000,
            queue: 20_000,
            ..Link::default()
        };
        storm(seed, link, 100);
    }
}

#[test]
fn narrow_path_and_large_packets() {
    for (seed, mtu) in [(150, 1444), (151, 1472), (152, 9000), (153, 20_000)] {
        let link = Link {
            mtu,
            loss: 10,
            ..Link::default()
        };
        let world = storm(seed, link, 300);
        let proven = world.nodes[0].endpoint.debug_peer(0).unwrap().mtu;
        assert!(
            usize::from(proven) <= mtu && proven >= 1444,
            "{proven} of {mtu}"
        );
    }
}

/// Null security has no checksum (UDP has one), so results may be wrong. Nothing may panic, hang or
/// keep memory.
#[test]
fn corrupted_packets_do_no_harm_to_the_endpoints() {
    for seed in 160..170 {
        let seed = Seed::from_environment(seed);
        let link = Link {
            corrupt: 100,
            loss: 10,
            ..Link::default()
        };
        let mut world = World::new(seed.0, link);
        for _ in 0..30 {
            let connection = world.connect();
            let call = world.call(connection, &pattern(20_000));
            world.run_for(Duration::from_secs(40));
            let now = world.now;
            world.nodes[0].endpoint.abort(now, call, 1);
            world.nodes[0].endpoint.close(now, connection);
        }
        world.run_for(Duration::from_secs(3_000));
        for node in &world.nodes {
            let s = node.endpoint.statistics();
            assert_eq!(s.receive_buffered, 0);
            assert_eq!(
                (s.server_connections, s.client_connections, s.calls),
                (0, 0, 0)
            );
        }
    }
}

/// Random bytes, and random headers with a valid epoch and cid, do not affect the real call.
#[test]
fn garbage_datagrams() {
    let seed = Seed::from_environment(180);
    let mut random = Random::new(seed.0);
    let mut world = World::new(seed.0, Link::default());
    for _ in 0..20_000 {
        let length = (random.next() % 200) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        if length > 28 && random.next().is_multiple_of(2) {
            bytes[20] = (random.next() % 15) as u8;
            bytes[22..24].copy_from_slice(&[0, 0]);
            bytes[26..28].copy_from_slice(&147u16.to_be_bytes());
        }
        let (from, to) = (
            address((random.next() % 200) as u8 + 3),
            address(random.next() as u8 % 2 + 1),
        );
        world.inject(from, to, bytes);
    }
    let connection = world.connect();
    let call = world.call(connection, b"still here");
    assert_eq!(world.finish(LIMIT, call), Ok(b"still here".to_vec()));
    world.run_for(Duration::from_secs(3_000));
    let s = world.nodes[1].endpoint.statistics();
    assert_eq!((s.server_connections, s.receive_buffered), (0, 0));
}

/// One call of 100 MB, 5 % loss, 10 % reordering, 5 % duplicates (rx-wire facts 8, test 15).
#[test]
fn a_long_call_through_a_bad_network() {
    let seed = Seed::from_environment(190);
    let link = Link {
        delay: Duration::from_millis(1),
        jitter: Duration::from_micros(300),
        loss: 50,
        duplicate: 50,
        ..Link::default()
    };
    let mut world = World::new(seed.0, link);
    let connection = world.connect();
    world.nodes[1].answer = Answer::Bytes(100_000_000);
    let call = world.call(connection, b"x");
    let reply = world.finish(LIMIT, call).unwrap();
    assert!(reply == pattern(100_000_000));
}
