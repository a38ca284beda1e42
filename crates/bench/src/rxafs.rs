//! `cellar bench rxafs`: load on a file server (and its location and protection servers).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_auth::{Authority, Level};
use cellar_rpc::{CallError, Security};
use cellar_wire::ids::VolumeId;
use cellar_wire::vl;

use crate::client::{Client, Servers};
use crate::load::{self, Shape, Watched};
pub use crate::operation::Operation;
use crate::operation::Worker;
use crate::report::Row;
use crate::workspace::Workspace;

/// Options of `cellar bench rxafs`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar bench rxafs --server 10.77.0.2 --volume scratch
  cellar bench rxafs --server 10.77.0.2 --volume scratch --clients 4 --threads 4 \\
      --operations fetch-status,store4k --seconds 5 --runs 3 --server-pid $(pidof dafileserver)
  cellar bench rxafs --server 10.77.0.2 --volume scratch --clients 200 --operations mixed --pause-ms 20 --flood 64

Anonymous clients need the rights rlidwk in the root directory of the volume. The files are removed at the end.")]
pub struct Options {
    /// Address of the file server, and of the database servers unless given; default port 7000.
    #[arg(long)]
    pub server: String,
    /// Location server, if elsewhere: ADDRESS or ADDRESS:7003.
    #[arg(long)]
    pub vlserver: Option<String>,
    /// Protection server, if elsewhere: ADDRESS or ADDRESS:7002.
    #[arg(long)]
    pub ptserver: Option<String>,
    /// Volume to work in: name, or number (then the location server is not used).
    #[arg(long, default_value = "scratch")]
    pub volume: String,
    /// Operations to measure; default: each of them.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub operations: Vec<Operation>,
    /// Client machines: each has its own UDP port, UUID and callback service.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Concurrent calls of each client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Length of each measurement after the warm-up, seconds.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Warm-up before each measurement, seconds.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Measurements of each operation; the median is shown.
    #[arg(long, default_value_t = 1)]
    pub runs: u16,
    /// Pause of each thread between calls, milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub pause_ms: f64,
    /// Concurrent calls of an additional client that floods without pauses.
    #[arg(long, default_value_t = 0)]
    pub flood: u16,
    /// Processes of the server on this machine, for their processor time and memory.
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Address that the clients bind to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// Authenticate with a ticket, and protect packets at this level; default: anonymous.
    #[arg(long, value_enum, requires = "server_etc")]
    pub level: Option<Protection>,
    /// Directory with the cell's key (KeyFileExt or rxkad.keytab) and ThisCell, for the ticket.
    #[arg(long, value_name = "DIR", requires = "level")]
    pub server_etc: Option<PathBuf>,
    /// Keep the files.
    #[arg(long)]
    pub keep: bool,
    /// One JSON object per line instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// Protection of packets (rxkad's levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protection {
    /// Authenticated caller, unprotected packets.
    Clear,
    /// Lengths and numbers of packets sealed.
    Auth,
    /// Everything encrypted.
    Crypt,
}

impl From<Protection> for Level {
    fn from(protection: Protection) -> Self {
        match protection {
            Protection::Clear => Self::Clear,
            Protection::Auth => Self::Auth,
            Protection::Crypt => Self::Crypt,
        }
    }
}

/// Reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The name of a server does not resolve.
    #[error("no address for the server {0}: {1}")]
    Address(String, io::Error),
    /// The location server does not know the volume or does not answer.
    #[error("cannot find the volume {0}: {1}; give its number with --volume, or --vlserver")]
    Volume(String, CallError),
    /// The test files could not be created.
    #[error(
        "cannot make the test files: {0}; anonymous clients need rlidwk in the volume's root \
         directory"
    )]
    Setup(CallError),
    /// No ticket could be made.
    #[error("no ticket from the key in {0}: {1}")]
    Key(PathBuf, cellar_auth::Error),
    /// A failure of this machine: no sockets, or no such server process.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs the measurements, and prints a line for each finished operation. Returns the number of
/// failed calls.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let servers = Servers {
        file: resolve(&options.server, 7000)?,
        location: resolve(options.vlserver.as_ref().unwrap_or(&options.server), 7003)?,
        protection: resolve(options.ptserver.as_ref().unwrap_or(&options.server), 7002)?,
    };
    let shape = Shape {
        clients: usize::from(options.clients),
        threads: usize::from(options.threads),
        warm_up: seconds(options.warm_up),
        measure: seconds(options.seconds),
        pause: seconds(options.pause_ms / 1e3),
        flood: usize::from(options.flood),
    };
    let operations = if options.operations.is_empty() {
        Operation::ALL.to_vec()
    } else {
        options.operations.clone()
    };
    let security = security(options)?;
    let mut clients = Client::start_all(options.bind, &[servers], &security, shape.clients)?;
    if shape.flood > 0 {
        // On its own thread, so that the other clients wait only for the server.
        clients.extend(Client::start_all(options.bind, &[servers], &security, 1)?);
    }
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let volume = waiter.block_on(find_volume(&clients[0], &options.volume))?;
    let workers = shape.clients * shape.threads + shape.flood;
    let workspace = waiter
        .block_on(Workspace::make(
            &clients[0],
            volume,
            &options.volume,
            workers,
            &operations,
        ))
        .map_err(BenchError::Setup)?;
    let workspace = Arc::new(workspace);
    let created = Arc::new(AtomicU64::new(0));
    let mut errors = 0;
    for operation in operations {
        let mut rows = Vec::new();
        for _ in 0..options.runs.max(1) {
            let watched = Watched {
                servers: &options.server_pid,
                store: &[],
            };
            let figures = load::run(&clients, &shape, watched, |client, number| {
                Worker::new(
                    operation,
                    client.clone(),
                    workspace.clone(),
                    number,
                    created.clone(),
                )
            })?;
            let row = Row::new(&operation.kind(), &figures);
            errors += row.errors;
            rows.push(row);
        }
        let Some(row) = Row::median(rows) else {
            continue;
        };
        if options.json {
            println!("{}", row.json(&operation.kind(), &shape));
        } else {
            println!(
                "{:>3} x {:<3} {}",
                shape.clients,
                shape.threads,
                row.line(&operation.kind())
            );
        }
    }
    if !options.json {
        let (broken, reset) = clients.iter().fold((0, 0), |(broken, reset), client| {
            let (b, r) = client.breaks.counts();
            (broken + b, reset + r)
        });
        println!("promises broken: {broken}; callback states reset: {reset}");
    }
    if !options.keep {
        waiter.block_on(workspace.remove(&clients, created.load(Ordering::Relaxed)));
    }
    for client in &clients {
        client.shutdown();
    }
    Ok(errors)
}

fn security(options: &Options) -> Result<Security, BenchError> {
    match (options.level, &options.server_etc) {
        (Some(level), Some(directory)) => localauth(directory, level),
        _ => Ok(Security::null()),
    }
}

/// Creates a ticket for a superuser from the cell's key.
pub(crate) fn localauth(directory: &Path, level: Protection) -> Result<Security, BenchError> {
    let cell = std::fs::read_to_string(directory.join("ThisCell"))?;
    Authority::open(directory, cell.trim())
        .and_then(|authority| authority.localauth(level.into()))
        .map_err(|error| BenchError::Key(directory.to_owned(), error))
}

pub(crate) async fn find_volume(client: &Client, text: &str) -> Result<VolumeId, BenchError> {
    if let Ok(number) = text.parse() {
        return Ok(VolumeId(number));
    }
    let volumename = vl::VolumeNameArgument::new(text.as_bytes().to_vec()).unwrap_or_default();
    let reply = client
        .location
        .call(&vl::GetEntryByNameU { volumename })
        .await;
    let entry = reply
        .map_err(|error| BenchError::Volume(text.to_owned(), error))?
        .entry;
    Ok(entry.volume_ids[0])
}

pub(crate) fn resolve(text: &str, port: u16) -> Result<SocketAddr, BenchError> {
    let resolved = match text.parse::<IpAddr>() {
        Ok(address) => return Ok(SocketAddr::new(address, port)),
        Err(_) if text.contains(':') => text.to_socket_addrs(),
        Err(_) => (text, port).to_socket_addrs(),
    };
    resolved
        .and_then(|mut addresses| addresses.next().ok_or(io::ErrorKind::NotFound.into()))
        .map_err(|error| BenchError::Address(text.to_owned(), error))
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
