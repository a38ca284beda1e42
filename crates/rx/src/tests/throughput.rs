//! Long and lossy paths must be kept full. Times are virtual.

use std::time::Duration;

use super::harness::{Answer, Link, Seed, World, pattern};
use crate::{Config, ConnectionId};

/// Runs one bulk reply; returns the used part of the path's capacity.
fn utilisation(seed: u64, link: Link, bytes: usize, config: Config) -> f64 {
    let rate = link.rate as f64;
    let mut world = World::with_configs(seed, link, config.clone(), config);
    let connection = world.connect();
    world.nodes[1].answer = Answer::Bytes(bytes);
    let start = world.now;
    let call = world.call(connection, b"x");
    let reply = world.finish(Duration::from_secs(600), call).unwrap();
    assert!(reply == pattern(bytes));
    let seconds = world.now.since(start).as_secs_f64();
    let used = bytes as f64 * 8.0 / seconds / rate;
    let s = world.nodes[1].endpoint.statistics();
    eprintln!(
        "{bytes} bytes in {seconds:.2} s: {used:.3} of the path; {} resent of {}, {} dropped",
        s.data_resent, s.data_sent, world.dropped
    );
    used
}

fn long_path(loss: u64) -> Link {
    Link {
        delay: Duration::from_millis(50),
        loss,
        rate: 100_000_000,
        queue: 600_000,
        ..Link::default()
    }
}

#[test]
fn hundred_milliseconds_without_loss() {
    let seed = Seed::from_environment(11);
    assert!(utilisation(seed.0, long_path(0), 40_000_000, Config::default()) > 0.75);
}

#[test]
fn hundred_milliseconds_and_one_percent_loss() {
    let seed = Seed::from_environment(12);
    assert!(utilisation(seed.0, long_path(10), 100_000_000, Config::default()) > 0.83);
}

#[test]
fn hundred_milliseconds_five_percent_loss_and_reordering() {
    let seed = Seed::from_environment(13);
    let link = Link {
        jitter: Duration::from_millis(5),
        ..long_path(50)
    };
    assert!(utilisation(seed.0, link, 30_000_000, Config::default()) > 0.55);
}

#[test]
fn shallow_queue_does_not_collapse() {
    let seed = Seed::from_environment(14);
    let link = Link {
        queue: 30_000,
        ..long_path(0)
    };
    assert!(utilisation(seed.0, link, 30_000_000, Config::default()) > 0.65);
}

/// The same towards the server, whose application reads as data arrives.
#[test]
fn long_requests_too() {
    let seed = Seed::from_environment(16);
    let link = long_path(10);
    let rate = link.rate as f64;
    let mut world = World::new(seed.0, link);
    let connection = world.connect();
    let request = pattern(30_000_000);
    world.nodes[1].answer = Answer::Count;
    let start = world.now;
    let call = world.call(connection, &request);
    let reply = world.finish(Duration::from_secs(600), call);
    assert_eq!(reply, Ok(30_000_000u32.to_be_bytes().to_vec()));
    let seconds = world.now.since(start).as_secs_f64();
    let used = 30_000_000.0 * 8.0 / seconds / rate;
    eprintln!("requests: {seconds:.2} s: {used:.3} of the path");
    assert!(used > 0.65);
}

/// Packets larger than the burst of pacing are sent too (once they were not).
#[test]
fn large_packets_on_a_slow_path() {
    let seed = Seed::from_environment(17);
    let link = Link {
        mtu: 20_000,
        rate: 8_000_000,
        ..long_path(5)
    };
    assert!(utilisation(seed.0, link, 10_000_000, Config::default()) > 0.75);
}

/// Runs eight concurrent calls of `bytes` each. Returns the used part of the path, the end of each
/// call, and the numbers of packets sent and retransmitted.
fn eight_calls(seed: u64, link: Link, bytes: usize) -> (f64, Vec<f64>, [u32; 2]) {
    let rate = link.rate as f64;
    let mut world = World::new(seed, link);
    world.nodes[1].answer = Answer::Bytes(bytes);
    let start = world.now;
    let mut calls = Vec::new();
    for _ in 0..2 {
        let connection = world.connect();
        calls.extend((0..4).map(|_| world.call(connection, b"x")));
    }
    let mut ends = Vec::new();
    for n in 1..=calls.len() {
        world.run_until(Duration::from_secs(600), |w| w.nodes[0].results.len() >= n);
        ends.push(world.now.since(start).as_secs_f64());
    }
    let used = 8.0 * bytes as f64 * 8.0 / ends[7] / rate;
    let s = world.nodes[1].endpoint.statistics();
    let sent = [s.data_sent, s.data_resent];
    eprintln!(
        "eight calls: {used:.3} of the path, ends {ends:.1?}, sent and retransmitted {sent:?}"
    );
    (used, ends, sent)
}

/// Concurrent calls on one path: it is full, and none is starved.
#[test]
fn parallel_calls_share_the_path() {
    let seed = Seed::from_environment(18);
    let link = Link {
        delay: Duration::from_millis(10),
        queue: 250_000,
        ..long_path(1)
    };
    let (used, ends, _) = eight_calls(seed.0, link, 20_000_000);
    assert!(used > 0.8);
    assert!(ends[0] > 0.35 * ends[7], "the first one starved the others");
}

/// A stock window allows 32 packets per round trip; the path must carry exactly that.
#[test]
fn stock_window_is_used_fully() {
    let seed = Seed::from_environment(15);
    let config = Config {
        receive_window: 32,
        extended_window: 0,
        ..Config::default()
    };
    let used = utilisation(seed.0, long_path(0), 2_000_000, config);
    let most = 32.0 * 1416.0 * 8.0 / 0.1 / 100e6;
    assert!(used > 0.85 * most && used <= most, "{used} of {most}");
}

/// Calls of near peers have smaller windows, which do not limit such a short path.
#[test]
fn a_near_path_is_filled() {
    let seed = Seed::from_environment(16);
    let link = Link {
        delay: Duration::from_micros(700),
        rate: 10_000_000_000,
        queue: 4_000_000,
        ..Link::default()
    };
    assert!(utilisation(seed.0, link, 50_000_000, Config::default()) > 0.8);
}

/// Transfers of MiBs over one path, one after the other.
struct WarmPath {
    world: World,
    connections: Vec<ConnectionId>,
    round_trip: f64,
}

impl WarmPath {
    fn new(seed: u64, link: Link) -> Self {
        Self::with(seed, link, &Config::default())
    }

    fn with(seed: u64, link: Link, config: &Config) -> Self {
        let round_trip = link.delay.as_secs_f64() * 2.0;
        let mut world = World::with_configs(seed, link, config.clone(), config.clone());
        world.nodes[1].answer = Answer::Bytes(1 << 20);
        let connections = (0..4).map(|_| world.connect()).collect();
        Self {
            world,
            connections,
            round_trip,
        }
    }

    /// Fetches `calls` MiBs at once. Returns the round trips until the last one is complete, and
    /// the retransmitted packets of each 1000.
    fn fetch(&mut self, calls: usize) -> (f64, u64) {
        let sent = |world: &World| {
            let s = world.nodes[1].endpoint.statistics();
            [s.data_sent, s.data_resent].map(u64::from)
        };
        let world = &mut self.world;
        let before = sent(world);
        let start = world.now;
        let results = world.nodes[0].results.len() + calls;
        for n in 0..calls {
            world.call(self.connections[n / 4], b"x");
        }
        world.run_until(Duration::from_secs(600), |w| {
            w.nodes[0].results.len() >= results
        });
        let all = &world.nodes[0].results;
        let whole = |r: &Result<Vec<u8>, i32>| r.as_ref().is_ok_and(|r| r.len() == 1 << 20);
        assert!(all.values().all(whole));
        let after = sent(world);
        let trips = world.now.since(start).as_secs_f64() / self.round_trip;
        let again = (after[1] - before[1]) * 1000 / (after[0] - before[0]).max(1);
        eprintln!("{calls} MiB: {trips:.1} round trips, {again} of 1000 again");
        (trips, again)
    }
}

/// A call on a path that others have measured starts with its share: alone, among others, and among
/// more than before. Without shares a MiB takes 6.8 round trips.
#[test]
fn calls_on_a_known_path_start_with_their_share() {
    let seed = Seed::from_environment(19);
    let fast = Link {
        rate: 400_000_000,
        queue: 2_000_000,
        ..long_path(0)
    };
    let mut path = WarmPath::new(seed.0, fast);
    // The first calls measure the path. 16 MiB are 3.4 round trips of its capacity.
    for (calls, most) in [(1, 4.0), (4, 6.0), (16, 9.0)] {
        path.fetch(calls);
        path.fetch(calls);
        let (trips, again) = path.fetch(calls);
        assert!(trips < most && again == 0);
    }
    // The path now carries a tenth, of which 4 MiB are 8.4 round trips.
    path.world.link.rate = 40_000_000;
    let (trips, again) = path.fetch(4);
    assert!(trips < 20.0 && again < 400);
    let (trips, again) = path.fetch(4);
    assert!(trips < 20.0 && again < 200);
}

/// Without shares, a call on a known path begins like the first one.
#[test]
fn calls_that_share_nothing_look_for_the_rate_alone() {
    let seed = Seed::from_environment(19);
    let fast = || Link {
        rate: 400_000_000,
        queue: 2_000_000,
        ..long_path(0)
    };
    let trips = |path_share: bool| {
        let config = Config {
            path_share,
            ..Config::default()
        };
        let mut path = WarmPath::with(seed.0, fast(), &config);
        path.fetch(1);
        path.fetch(1);
        path.fetch(1).0
    };
    let (shared, alone) = (trips(true), trips(false));
    assert!(shared + 2.0 < alone, "{shared} and {alone} round trips");
}

/// Sixteen at a time on a path with a short queue, which they together do not overrun. 16 MiB are
/// 13.4 round trips of its capacity.
#[test]
fn calls_side_by_side_do_not_overrun_a_known_path() {
    let seed = Seed::from_environment(20);
    let mut path = WarmPath::new(seed.0, long_path(0));
    for _ in 0..3 {
        path.fetch(4);
    }
    for _ in 0..4 {
        let (trips, again) = path.fetch(16);
        assert!(trips < 20.0 && again < 60);
    }
}

/// A large call on a full path gets the capacity that small calls beside it leave. 20 MB in both
/// directions among 32 calls at a time took 30 s when each had an equal part of the path. Without
/// sharing it takes 7.5 s.
#[test]
fn a_large_call_among_small_ones_has_what_they_leave() {
    const SMALL: usize = 32;
    let seed = Seed::from_environment(21);
    let mut world = World::new(seed.0, long_path(0));
    world.nodes[1].answer = Answer::Echo;
    let connections: Vec<_> = (0..=SMALL / 4).map(|_| world.connect()).collect();
    // The path is measured as full.
    for n in 0..8 {
        world.call(connections[n / 4], &pattern(1_000_000));
    }
    world.run_until(Duration::from_secs(60), |w| w.nodes[0].results.len() >= 8);
    let start = world.now;
    let large = world.call(connections[SMALL / 4], &pattern(20_000_000));
    let small = pattern(40_000);
    let mut calls: Vec<_> = (0..SMALL)
        .map(|n| world.call(connections[n / 4], &small))
        .collect();
    while !world.nodes[0].results.contains_key(&large) {
        for (n, call) in calls.iter_mut().enumerate() {
            if world.nodes[0].results.contains_key(call) {
                *call = world.call(connections[n / 4], &small);
            }
        }
        let ended = world.nodes[0].results.len();
        world.run_until(Duration::from_secs(600), |w| {
            w.nodes[0].results.len() > ended
        });
    }
    let seconds = world.now.since(start).as_secs_f64();
    let small = world.nodes[0].results.len() - 9;
    eprintln!("20 MB in both directions in {seconds:.2} s, beside {small} small calls");
    assert!(seconds < 15.0 && small > 500);
}

/// Eight calls on a path with much loss and reordering. When each measured for itself, a third was
/// retransmitted.
#[test]
fn calls_side_by_side_on_a_bad_path() {
    let seed = Seed::from_environment(22);
    let link = Link {
        jitter: Duration::from_millis(5),
        ..long_path(50)
    };
    let (used, _, [sent, again]) = eight_calls(seed.0, link, 6_000_000);
    assert!(used > 0.6 && again * 4 < sent);
}
