//! A bad path between any two programs that speak UDP, until Ctrl-C; then what became of the datagrams.
//!
//! ```text
//! relay --listen 127.0.0.1:7110 --to 127.0.0.1:7009 --mbit 100 --delay-ms 50 --loss-percent 1
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use cellar_bench::relay::{Path, Relay};
use clap::Parser;

/// Relays UDP over a path made bad on purpose; the same in both directions.
#[derive(Parser)]
struct Options {
    /// Where clients send to; port 0 takes any.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The server.
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Millions of bits a second; 0: no limit.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    mbit: f64,
    /// Bytes that may wait before that.
    #[arg(long, default_value_t = 512 * 1024, value_name = "N")]
    queue_bytes: u64,
    /// Each way: half of the round trip.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    delay_ms: f64,
    /// Up to so much more; the order is kept.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    jitter_ms: f64,
    /// Lost at random.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    loss_percent: f64,
    /// Arrive twice.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    duplicate_percent: f64,
    /// Are overtaken by others.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    reorder_percent: f64,
    /// Largest IP packet.
    #[arg(long, default_value_t = 1500, value_name = "N")]
    mtu: usize,
    /// For the same losses again; random unless given.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let millis = |ms: f64| Duration::try_from_secs_f64(ms / 1e3);
    let path = Path {
        delay: millis(options.delay_ms)?,
        jitter: millis(options.jitter_ms)?,
        loss: options.loss_percent / 100.0,
        duplicate: options.duplicate_percent / 100.0,
        reorder: options.reorder_percent / 100.0,
        rate: (options.mbit > 0.0).then_some((options.mbit * 1e6) as u64),
        queue_bytes: options.queue_bytes,
        mtu: options.mtu,
    };
    let seed = options.seed.unwrap_or_else(rand::random);
    let relay = Relay::start(options.listen, options.to, path, path, seed)?;
    println!(
        "relaying {} to {}, seed {seed}",
        relay.address(),
        options.to
    );
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    waiter.block_on(tokio::signal::ctrl_c())?;
    let [there, back] = relay.counts();
    println!("to the server: {there:?}\nback: {back:?}");
    Ok(())
}
