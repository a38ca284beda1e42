//! Real sockets over a bad path: everything arrives unchanged.

#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "../../rpc/tests/all/common.rs"]
mod common;

use std::time::Duration;

use cellar_bench::relay::{Path, Relay};
use cellar_rpc::{Runtime, Security};
use common::{PACKAGE, Server, fetch, run, store};

const MEGABYTES: u64 = 3;

/// Seed of the path's decisions.
const SEED: u64 = 0x5eed_0bad_9a70_0001;

/// Moves 3 MB in each direction, four calls at a time, and checks every byte.
fn passes(name: &str, path: Path) {
    run(async {
        let server = Server::start(2);
        let listen = "127.0.0.1:0".parse().unwrap();
        let relay = Relay::start(listen, server.address(), path, path, SEED).unwrap();
        let client = Runtime::client_only().unwrap();
        let connection = client
            .connect(relay.address(), PACKAGE.service_id, Security::null())
            .unwrap();
        // Each call moves a quarter, and the position pattern of `common` from its beginning.
        let len = MEGABYTES * 1_000_000 / 4;
        let pair = || async {
            let stored = store(&connection, len).await.unwrap();
            let fetched = fetch(&connection, len).await.unwrap();
            assert_eq!((stored.len, stored.sum), (len, fetched));
        };
        tokio::join!(pair(), pair(), pair(), pair());
        let [there, back] = relay.counts();
        println!("{name}: {there:?}, {back:?}");
        let packets = MEGABYTES * 1_000_000 / 1472;
        assert!(there.arrived > packets && back.arrived > packets);
        let impaired = path.loss + path.duplicate + path.reorder > 0.0;
        let seen = |counts: cellar_bench::relay::Counts| {
            counts.lost + counts.duplicated + counts.reordered + counts.overflowed
        };
        assert_eq!(
            impaired || path.rate.is_some(),
            seen(there) + seen(back) > 0
        );
        client.shutdown();
        server.runtime.shutdown();
    });
}

#[test]
fn a_long_path_that_loses_and_reorders() {
    let path = Path {
        delay: Duration::from_millis(20),
        jitter: Duration::from_millis(2),
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.01,
        rate: Some(100_000_000),
        ..Path::default()
    };
    passes("long", path);
}

#[test]
fn a_path_that_loses_a_tenth() {
    let path = Path {
        delay: Duration::from_millis(3),
        loss: 0.1,
        ..Path::default()
    };
    passes("lossy", path);
}

#[test]
fn a_slow_line_with_a_short_queue() {
    let path = Path {
        delay: Duration::from_millis(10),
        rate: Some(30_000_000),
        queue_bytes: 30_000,
        ..Path::default()
    };
    passes("shallow", path);
}

#[test]
fn small_packets_only() {
    let path = Path {
        delay: Duration::from_millis(1),
        duplicate: 0.05,
        mtu: 1472,
        ..Path::default()
    };
    passes("small", path);
}
