//! Restarts of a server during calls to it.

use std::time::Duration;

use super::harness::{Answer, Link, World, pattern};
use crate::*;

const SECOND: Duration = Duration::from_secs(1);

/// Creates a world whose server was already called once.
fn world() -> (World, ConnectionId) {
    let mut world = World::new(7, Link::default());
    let connection = world.connect();
    let first = world.call(connection, b"x");
    assert_eq!(world.finish(SECOND, first), Ok(b"x".to_vec()));
    (world, connection)
}

#[test]
fn a_port_without_a_process_ends_all_calls_out() {
    let (mut world, connection) = world();
    world.nodes[1].answer = Answer::Silence;
    let acknowledged = world.call(connection, b"y");
    world.run_for(SECOND);
    world.link.loss = 1000;
    let sent = world.call(connection, b"z");
    world.run_for(Duration::from_millis(10));
    let (now, to) = (world.now, world.nodes[1].address);
    world.nodes[0].endpoint.handle_refused(now, to);
    for call in [acknowledged, sent] {
        assert_eq!(world.finish(SECOND, call), Err(code::GONE));
    }
    // The server's end of a call is not affected by the port that it sends to.
    let from = world.nodes[0].address;
    world.nodes[1].endpoint.handle_refused(now, from);
    world.link.loss = 0;
    world.nodes[1].answer = Answer::Echo;
    let call = world.call(connection, b"again");
    assert_eq!(world.finish(SECOND, call), Ok(b"again".to_vec()));
}

#[test]
fn a_call_that_a_server_has_forgotten_ends_in_seconds() {
    for others in [false, true] {
        let (mut world, connection) = world();
        world.nodes[1].answer = Answer::Silence;
        let call = world.call(connection, b"y");
        world.run_for(SECOND);
        world.restart_server();
        world.nodes[1].answer = Answer::Echo;
        let begun = world.now;
        // Also if it receives no other packets.
        while others && !world.nodes[0].results.contains_key(&call) {
            let other = world.call(connection, b"z");
            let answer = world.finish(SECOND, other);
            assert_eq!(answer, Ok(b"z".to_vec()), "by the new process");
            world.run_for(SECOND);
        }
        assert_eq!(world.finish(10 * SECOND, call), Err(code::GONE));
        let took = world.now.since(begun);
        assert!(took > 2 * SECOND && took < 6 * SECOND, "{took:?}");
    }
}

#[test]
fn a_server_that_takes_its_time_is_waited_for() {
    let (mut world, connection) = world();
    world.nodes[1].answer = Answer::Late(100 * SECOND);
    // One ping in five gets no answer, while the server answers other calls.
    world.link.loss = 100;
    let slow = world.call(connection, b"y");
    world.run_for(SECOND);
    for _ in 0..98 {
        world.nodes[1].answer = Answer::Echo;
        let other = world.call(connection, b"z");
        world.finish(30 * SECOND, other).expect("an answer");
        world.run_for(SECOND);
    }
    world.run_for(10 * SECOND);
    assert_eq!(world.nodes[0].results.get(&slow), Some(&Ok(Vec::new())));
}

#[test]
fn a_request_of_which_a_new_process_gets_the_rest_ends() {
    let (mut world, connection) = world();
    world.nodes[1].answer = Answer::Count;
    world.link.rate = 10_000_000;
    let call = world.call(connection, &pattern(1 << 20));
    world.run_for(Duration::from_millis(300));
    assert!(!world.nodes[0].results.contains_key(&call));
    world.link.loss = 1000;
    world.run_for(Duration::from_millis(100));
    world.restart_server();
    world.link.loss = 0;
    let begun = world.now;
    assert_eq!(world.finish(30 * SECOND, call), Err(code::GONE));
    assert!(world.now.since(begun) < 10 * SECOND);
}

#[test]
fn a_way_that_is_cut_for_a_while_is_no_restart() {
    for cut in [3, 8, 20] {
        let (mut world, connection) = world();
        world.nodes[1].answer = Answer::Late(60 * SECOND);
        let slow = world.call(connection, b"y");
        world.run_for(SECOND);
        world.link.loss = 1000;
        world.run_for(cut * SECOND);
        world.link.loss = 0;
        world.nodes[1].answer = Answer::Echo;
        let other = world.call(connection, b"z");
        world.finish(SECOND, other).expect("an answer");
        assert_eq!(world.finish(60 * SECOND, slow), Ok(Vec::new()));
    }
}
