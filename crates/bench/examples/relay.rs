//! Simulates a bad path between any two programs that use UDP, until Ctrl-C; then prints the
//! counters of the datagrams.
//!
//! ```text
//! relay --listen 127.0.0.1:7110 --to 127.0.0.1:7009 --mbit 100 --delay-ms 50 --loss-percent 1
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use cellar_bench::relay::{Path, Relay};
use clap::Parser;

/// Relays UDP over a simulated bad path, the same in both directions.
#[derive(Parser)]
struct Options {
    /// Address for clients; port 0 selects any free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Address of the server.
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Millions of bits per second; 0: no limit.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    mbit: f64,
    /// Size of the queue before the limit, bytes.
    #[arg(long, default_value_t = 512 * 1024, value_name = "N")]
    queue_bytes: u64,
    /// Delay in each direction: half of the round trip.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    delay_ms: f64,
    /// Largest additional delay; the order is kept.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    jitter_ms: f64,
    /// Random loss.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    loss_percent: f64,
    /// Datagrams that arrive twice.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    duplicate_percent: f64,
    /// Datagrams that are overtaken.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    reorder_percent: f64,
    /// Largest IP packet.
    #[arg(long, default_value_t = 1500, value_name = "N")]
    mtu: usize,
    /// Seed for reproducible losses; default: random.
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
