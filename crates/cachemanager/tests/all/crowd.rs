//! More vnodes than the cache remembers.

use super::bench::{Bench, Client};

fn remembered(client: &Client) -> usize {
    let text = client.cache.metrics();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("cellar_cache_vnodes "));
    line.expect("a line").parse().expect("a number")
}

/// The kernel releases vnodes after the cache has asked it to. No new one may come then.
#[tokio::test(flavor = "multi_thread")]
async fn vnodes_that_are_released_late_are_dropped_without_new_ones() {
    const MOST: usize = 16;
    let bench = Bench::start();
    let client = bench.remembering(MOST).await;
    let mut held = Vec::new();
    for number in 0..40 {
        held.push(client.make(&format!("f{number}")).await);
    }
    assert!(remembered(&client) >= held.len());
    drop(held);
    for _ in 0..40 {
        client.find("f39").await;
    }
    let now = remembered(&client);
    assert!(now <= MOST + MOST / 8, "{now}");
    bench.end();
}
