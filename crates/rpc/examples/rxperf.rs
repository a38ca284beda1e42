//! rxperf as two processes, to measure this crate alone.
//!
//! ```text
//! rxperf server ADDRESS:PORT SHARDS
//! rxperf client ADDRESS:PORT SHARDS send|recv BYTES    TIMES CALLERS
//! rxperf client ADDRESS:PORT SHARDS rpc       BYTES    TIMES CALLERS    both ways
//! ```
//!
//! The client prints its results and its own processor time. The server prints its processor time
//! and system calls when a client has been quiet for a second.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::rxperf::{self, ClientOptions, Command};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address, shards, rest @ ..] = arguments.as_slice() else {
        return Err("see the head of this program for its arguments".into());
    };
    let address: SocketAddr = address.parse()?;
    let config = RuntimeConfig {
        shards: shards.parse()?,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config)?;
    match role.as_str() {
        "server" => serve(&runtime, address),
        "client" => measure(&runtime, address, rest),
        _ => Err("server or client?".into()),
    }
}

fn serve(runtime: &Runtime, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let port = runtime.open(PortConfig::new(address).service(Arc::new(rxperf::Server)))?;
    println!("listening on {}", port.local_address());
    let mut reported = processor_time();
    let mut figures = port.statistics().port();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = port.statistics().port();
        let busy = now.datagrams_received != figures.datagrams_received;
        if !busy && processor_time() > reported + Duration::from_millis(20) {
            println!("processor time {:?}; {now:?}", processor_time() - reported);
            reported = processor_time();
        }
        figures = now;
    }
}

fn measure(runtime: &Runtime, server: SocketAddr, rest: &[String]) -> Result<(), Box<dyn Error>> {
    let [command, bytes, times, callers] = rest else {
        return Err("see the head of this program for its arguments".into());
    };
    let bytes: u32 = bytes.parse()?;
    let command = match command.as_str() {
        "send" => Command::Send { bytes },
        "recv" => Command::Receive { bytes },
        "rpc" => Command::Rpc {
            send: bytes,
            receive: bytes,
        },
        _ => return Err("send, recv or rpc?".into()),
    };
    let options = ClientOptions {
        command,
        times: times.parse()?,
        callers: callers.parse()?,
        ..ClientOptions::default()
    };
    let waiting = tokio::runtime::Builder::new_current_thread().build()?;
    let figures = waiting.block_on(rxperf::client(runtime, server, &options))?;
    println!(
        "{:.0} calls/s, {:.1} MB/s, {} calls in {:?}; our processor time {:?}; {:?}",
        figures.calls_per_second(),
        figures.megabytes_per_second(),
        figures.calls,
        figures.elapsed,
        processor_time(),
        runtime.client_port()?.statistics().port(),
    );
    Ok(())
}

/// User and system time of this process, from /proc in units of 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}
