//! Calls between two endpoints: the plain cases.

use std::time::Duration;

use super::harness::{Answer, Link, Seed, World, pattern};
use crate::packet::{Header, PacketType};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn one_small_call_costs_two_packets_once_the_round_trip_is_known() {
    let mut world = World::new(1, Link::default());
    let connection = world.connect();
    let call = world.call(connection, b"hello");
    assert_eq!(world.finish(LIMIT, call), Ok(b"hello".to_vec()));
    world.log = Some(Vec::new());
    for i in 0..100u32 {
        let call = world.call(connection, &i.to_be_bytes());
        assert_eq!(world.finish(LIMIT, call), Ok(i.to_be_bytes().to_vec()));
    }
    let log = world.log.take().unwrap();
    let acks = log
        .iter()
        .filter(|(_, _, p)| Header::decode(p).unwrap().packet_type == PacketType::ACK)
        .count();
    assert_eq!((log.len(), acks), (200, 0));
}

#[test]
fn empty_request_and_empty_reply() {
    let mut world = World::new(2, Link::default());
    let connection = world.connect();
    let call = world.call(connection, b"");
    assert_eq!(world.finish(LIMIT, call), Ok(Vec::new()));
}

#[test]
fn sizes_around_packet_boundaries() {
    let mut world = World::new(3, Link::default());
    let connection = world.connect();
    for size in [1, 1415, 1416, 1417, 2831, 2832, 2833, 65_536, 100_000] {
        let request = pattern(size);
        let call = world.call(connection, &request);
        assert_eq!(world.finish(LIMIT, call), Ok(request), "{size}");
    }
}

#[test]
fn bulk_both_ways() {
    let seed = Seed::from_environment(4);
    let mut world = World::new(seed.0, Link::default());
    let connection = world.connect();
    let request = pattern(20_000_000);
    let call = world.call(connection, &request);
    let reply = world.finish(LIMIT, call).unwrap();
    assert!(reply == request);
    world.nodes[1].answer = Answer::Bytes(20_000_000);
    let call = world.call(connection, b"x");
    let reply = world.finish(LIMIT, call).unwrap();
    assert!(reply == request);
}
