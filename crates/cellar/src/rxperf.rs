//! `cellar rxperf`: measures the throughput of Rx. The other end may be another cellar or OpenAFS's
//! rxperf.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use cellar_rpc::rxperf::{ClientOptions, Command, Figures, Server, client};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig};
use cellar_wire::List;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::output::outln;

/// The customary port of rxperf.
const PORT: u16 = 7009;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar rxperf server
  cellar rxperf client --server 192.0.2.1 --command recv --bytes 10000000
  cellar rxperf client --server 192.0.2.1 --command rpc --bytes 100 --times 10000 --threads 4
OpenAFS's 'rxperf server -p 7009' and 'rxperf client -s HOST -p 7009 -c recv -b BYTES' work at either end.")]
pub(crate) struct Options {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, clap::Subcommand)]
enum End {
    /// Answer calls until Ctrl-C.
    ///
    /// Example: cellar rxperf server --port 7009
    Server {
        /// UDP port to answer on.
        #[arg(long, default_value_t = PORT)]
        port: u16,
        /// Address to answer on.
        #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "ADDRESS")]
        bind: IpAddr,
        /// Number of network threads. Default: one for each processor.
        #[arg(long, value_name = "N")]
        shards: Option<usize>,
        /// Let each call find the rate of a long path by itself, for the comparison in
        /// 'bench/path'.
        #[arg(long)]
        no_path_share: bool,
    },
    /// Call a server and print the throughput.
    ///
    /// Example: cellar rxperf client --server 192.0.2.1 --command recv --bytes 10000000
    Client(ClientArguments),
}

#[derive(Debug, clap::Args)]
struct ClientArguments {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS")]
    server: String,
    /// UDP port of the server.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// The data that each call transfers.
    #[arg(long, value_enum, default_value_t = Measure::Send)]
    command: Measure,
    /// Bytes of each call, in each direction that the command uses.
    #[arg(long, value_name = "N", default_value_t = 1_048_576)]
    bytes: u32,
    /// With 'file': a file of numbers. Each number transfers four times as many bytes; 0 changes
    /// the direction.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of calls of each thread.
    #[arg(long, value_name = "N", default_value_t = 100)]
    times: u32,
    /// Number of calls at the same time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Let each call find the rate of a long path by itself, for the comparison in 'bench/path'.
    #[arg(long)]
    no_path_share: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Measure {
    /// The client sends.
    Send,
    /// The server sends.
    Recv,
    /// The client sends, then the server sends.
    Rpc,
    /// Bytes and directions from a file of numbers.
    File,
}

pub(crate) async fn run(options: Options) -> Outcome {
    match options.end {
        End::Server {
            port,
            bind,
            shards,
            no_path_share,
        } => serve(SocketAddr::new(bind, port), shards, !no_path_share).await,
        End::Client(arguments) => call(arguments).await,
    }
}

async fn serve(address: SocketAddr, shards: Option<usize>, path_share: bool) -> Outcome {
    let mut config = RuntimeConfig {
        path_share,
        ..RuntimeConfig::default()
    };
    if let Some(shards) = shards {
        config.shards = shards.max(1);
    }
    let runtime = Runtime::start(config)?;
    let port = runtime.open(PortConfig::new(address).service(Arc::new(Server)))?;
    outln!(
        "rxperf answers on UDP {}; Ctrl-C stops it",
        port.local_address()
    );
    tokio::signal::ctrl_c().await?;
    runtime.shutdown();
    Ok(())
}

async fn call(arguments: ClientArguments) -> Outcome {
    let command = match arguments.command {
        Measure::Send => Command::Send {
            bytes: arguments.bytes,
        },
        Measure::Recv => Command::Receive {
            bytes: arguments.bytes,
        },
        Measure::Rpc => Command::Rpc {
            send: arguments.bytes,
            receive: arguments.bytes,
        },
        Measure::File => Command::File {
            words: words(arguments.file.as_deref())?,
        },
    };
    let server = (arguments.server.as_str(), arguments.port)
        .to_socket_addrs()
        .map_err(|cause| Failure::new(format!("{}: {cause}", arguments.server)))?
        .next()
        .ok_or_else(|| Failure::new(format!("{} has no address", arguments.server)))?;
    let shards = RuntimeConfig::default()
        .shards
        .min(arguments.threads.div_ceil(4).max(1) as usize);
    let runtime = Runtime::start(RuntimeConfig {
        shards,
        path_share: !arguments.no_path_share,
        ..RuntimeConfig::default()
    })?;
    let options = ClientOptions {
        command,
        times: arguments.times,
        callers: arguments.threads,
        ..ClientOptions::default()
    };
    let figures = client(&runtime, server, &options).await?;
    runtime.shutdown();
    print(&figures, &arguments);
    Ok(())
}

fn print(figures: &Figures, arguments: &ClientArguments) {
    let seconds = figures.elapsed.as_secs_f64();
    if arguments.json {
        let value = json!({
            "calls": figures.calls,
            "bytes_sent": figures.bytes_sent,
            "bytes_received": figures.bytes_received,
            "seconds": seconds,
            "calls_per_second": figures.calls_per_second(),
            "megabytes_per_second": figures.megabytes_per_second(),
        });
        outln!("{value:#}");
        return;
    }
    outln!(
        "{} calls in {seconds:.3} s: {:.0} calls/s, {:.1} MB/s ({} bytes sent, {} received)",
        figures.calls,
        figures.calls_per_second(),
        figures.megabytes_per_second(),
        figures.bytes_sent,
        figures.bytes_received
    );
}

fn words(
    file: Option<&std::path::Path>,
) -> Outcome<List<u32, { cellar_wire::rxperf::FILE_WORDS_MAX }>> {
    let file = file.ok_or_else(|| Failure::usage("--command file needs --file"))?;
    let text = std::fs::read_to_string(file)
        .map_err(|cause| Failure::new(format!("{}: {cause}", file.display())))?;
    let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers =
        numbers.map_err(|_| Failure::new(format!("{}: not a list of numbers", file.display())))?;
    Ok(List::try_from(numbers)?)
}
