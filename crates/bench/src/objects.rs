//! `cellar bench objects`: many clients write and read whole files at the same time, on object
//! storage devices or through a file server. Some operations measure the limits of the machine
//! itself.
//!
//! 1. Each client simulates a machine: a UDP port, a client library, one file. All start at the
//!    same time. The rate is that of all bytes from the first start to the last end.
//! 2. Data comes from memory and is discarded, in records as a program would write them. The
//!    beginning of every piece read is compared with what was written.
//! 3. Processor time is that of both ends: this process and those named with `--server-pid`.

mod ceiling;
mod stream;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_client::{Cell, CellName, Client, Config, Ports};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig, Spread};
use cellar_wire::object::{Scheme, Shape};
use rand::RngCore;
use serde_json::json;
use tokio::sync::Barrier;

use self::stream::{Stream, Streamed};
use crate::cpu::Reading;

/// Options of `cellar bench objects`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar bench objects --server 10.77.0.2 --volume big --operations write,read --stripes 4 --server-pid $(pidof cellar)
  cellar bench objects --server 10.77.0.2 --volume big --operations store,fetch --clients 8
  cellar bench objects --operations udp,disk --path /var/tmp

Anonymous clients need all rights in the root directory of the volume. The files are removed at the end.")]
pub struct Options {
    /// Address of a database server of the cell.
    #[arg(long)]
    pub server: Option<IpAddr>,
    /// The cell's name.
    #[arg(long, default_value = "test.cell")]
    pub cell: String,
    /// Port of the cell's file servers, from which the ports of its databases follow.
    #[arg(long, default_value_t = 7000)]
    pub fileserver_port: u16,
    /// Volume to work in.
    #[arg(long, default_value = "scratch")]
    pub volume: String,
    /// Operations to measure, in this order.
    #[arg(long, value_delimiter = ',', value_enum, required = true)]
    pub operations: Vec<Operation>,
    /// Client machines.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Size of each client's file, MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub mebibytes: u64,
    /// Size of a client's writes, KiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub record: u64,
    /// Size of each call of `store` and `fetch`, KiB. The calls are made in sequence, as by stock
    /// clients. Default: as our client, which requests 64 MiB and stores 8.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub call: Option<u64>,
    /// Stripes of new files; 0: according to the policies.
    #[arg(long, default_value_t = 1)]
    pub stripes: u32,
    /// Copies of each stripe.
    #[arg(long, default_value_t = 1)]
    pub copies: u32,
    /// Parity objects, for an erasure code.
    #[arg(long, default_value_t = 0)]
    pub parity: u32,
    /// Size of a stripe unit, KiB.
    #[arg(long, default_value_t = 1024)]
    pub unit: u32,
    /// Measurements of each operation; the median is shown.
    #[arg(long, default_value_t = 1)]
    pub runs: u16,
    /// Processes of the servers on this machine, for their processor time.
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Process to kill when half of all bytes have been moved, in the first measurement of the last
    /// operation. That measurement is shown separately; the others are without the process.
    #[arg(long, value_name = "PID")]
    pub kill: Option<u32>,
    /// Directory of the disk that `disk` measures.
    #[arg(long, default_value = ".")]
    pub path: PathBuf,
    /// Network threads of the clients; default: one per processor.
    #[arg(long)]
    pub shards: Option<usize>,
    /// Keep the files.
    #[arg(long)]
    pub keep: bool,
    /// One JSON object per line instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// Operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Files written to the devices, in objects according to the layout.
    Write,
    /// Files read from the devices.
    Read,
    /// Files written through the file server (`StoreData64`), which chooses their location.
    Store,
    /// Files read through the file server (`FetchData64`).
    Fetch,
    /// No server: the same number of bytes from one thread to another by segmented UDP datagrams.
    Udp,
    /// No server: the same number of bytes written to a file and synced.
    Disk,
    /// No server: parity computed for the same number of bytes.
    Encode,
    /// No server: the same number of bytes reconstructed without two of the data objects.
    Decode,
}

impl Operation {
    fn has_servers(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::Store | Self::Fetch)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Store => "store",
            Self::Fetch => "fetch",
            Self::Udp => "udp",
            Self::Disk => "disk",
            Self::Encode => "encode",
            Self::Decode => "decode",
        }
    }
}

/// State of the process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs.
    Well,
    /// It is killed half-way.
    Killed(u32),
    /// It is gone.
    Without(u32),
}

impl State {
    fn label(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Killed(_) => "killed",
            Self::Without(_) => "without",
        }
    }
}

/// Reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The servers refused.
    #[error("{0}; anonymous clients need all rights in the volume's root directory")]
    Client(#[from] cellar_client::Error),
    /// An option is invalid.
    #[error("{0}")]
    Option(String),
    /// Data read differs from data written.
    #[error("the data differs from the written data from byte {0} on")]
    Differs(u64),
    /// The thread of a client ended.
    #[error("a client ended early")]
    Ended,
    /// A failure of this machine.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Length of the data that all files repeat: more than a processor's caches hold.
const PAYLOAD_BYTES: usize = 16 << 20;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Bytes of all clients.
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    /// Processor time of both ends.
    pub(crate) cpu: Duration,
    /// The longest time without progress of any client.
    pub(crate) silence: Duration,
}

impl Figures {
    fn rate(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn cpu_per_gibibyte(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / f64::from(1 << 30))
    }

    /// The median by rate.
    fn median(mut all: Vec<Self>) -> Option<Self> {
        all.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        all.get(all.len() / 2).copied()
    }
}

/// Runs the measurements, and prints a line for each finished operation.
///
/// # Errors
/// [`ObjectsError`].
pub fn run(options: &Options) -> Result<(), ObjectsError> {
    let mut payload = vec![0; PAYLOAD_BYTES];
    rand::rng().fill_bytes(&mut payload);
    let payload = Bytes::from(payload);
    let mut clients: Option<Clients> = None;
    for (place, &operation) in options.operations.iter().enumerate() {
        let last = place + 1 == options.operations.len();
        let kill = options.kill.filter(|_| last && operation.has_servers());
        let mut state = State::Well;
        let mut all = Vec::new();
        for number in 0..options.runs.max(1) {
            state = match (kill, number) {
                (None, _) => State::Well,
                (Some(pid), 0) => State::Killed(pid),
                (Some(pid), _) => State::Without(pid),
            };
            let figures = if operation.has_servers() {
                let clients = match &mut clients {
                    Some(clients) => clients,
                    none => none.insert(Clients::start(options, &payload)?),
                };
                clients.measure(operation, options, state)?
            } else {
                alone(operation, options, &payload)?
            };
            match state {
                State::Killed(_) => show(options, operation, state, &figures),
                _ => all.push(figures),
            }
        }
        if let Some(median) = Figures::median(all) {
            show(options, operation, state, &median);
        }
    }
    if let Some(clients) = clients {
        clients.end(options.keep)?;
    }
    Ok(())
}

/// Runs an operation without a server.
fn alone(
    operation: Operation,
    options: &Options,
    payload: &Bytes,
) -> Result<Figures, ObjectsError> {
    let bytes = options.mebibytes << 20;
    match operation {
        Operation::Udp => ceiling::udp(bytes),
        Operation::Disk => ceiling::disk(bytes, &options.path, payload),
        _ => {
            let shape = shape(options)?.unwrap_or_default();
            ceiling::erasure(bytes, &shape, payload, operation == Operation::Decode)
        }
    }
}

fn show(options: &Options, operation: Operation, state: State, figures: &Figures) {
    let (rate, cpu) = (figures.rate(), figures.cpu_per_gibibyte());
    let Options {
        clients,
        stripes,
        copies,
        parity,
        ..
    } = options;
    if options.json {
        let line = json!({
            "operation": operation.label(), "clients": clients, "stripes": stripes, "copies": copies,
            "parity": parity, "state": state.label(), "mebibytes": figures.bytes >> 20, "mebibytes_per_second": rate,
            "cpu_seconds_per_gibibyte": cpu, "silence_seconds": figures.silence.as_secs_f64(),
        });
        println!("{line}");
        return;
    }
    let layout = match parity {
        0 => format!("{stripes} x {copies}"),
        _ => format!("{stripes}+{parity}"),
    };
    println!(
        "{:<8} {:<7} {clients:>3} clients {layout:>7} {rate:>9.0} MiB/s {cpu:>7.2} CPU s/GiB  longest silence {:.2} s",
        operation.label(),
        state.label(),
        figures.silence.as_secs_f64(),
    );
}

/// Layout of new files; `None`: according to the policies.
fn shape(options: &Options) -> Result<Option<Shape>, ObjectsError> {
    if options.stripes == 0 {
        return Ok(None);
    }
    let (scheme, copies) = match options.parity {
        0 => (Scheme::Striped, options.copies),
        parity => (Scheme::Erasure, parity),
    };
    let shape = Shape {
        scheme,
        stripes: options.stripes,
        copies,
        unit: options.unit.saturating_mul(1024),
    };
    let wrong = |wrong: cellar_wire::DecodeError| ObjectsError::Option(wrong.to_string());
    shape.check().map_err(wrong)?;
    Ok(Some(shape))
}

/// All client machines.
struct Clients {
    runtime: Runtime,
    streams: Vec<Stream>,
}

impl Clients {
    /// Starts the clients, and creates an empty file for each.
    fn start(options: &Options, payload: &Bytes) -> Result<Self, ObjectsError> {
        let missing = || ObjectsError::Option("--server is needed".to_owned());
        let server = options.server.ok_or_else(missing)?;
        let wrong = |cause: &dyn std::fmt::Display| ObjectsError::Option(cause.to_string());
        let cell = Cell {
            name: CellName::new(&options.cell).map_err(|cause| wrong(&cause))?,
            database_servers: vec![server],
            ports: Ports::based_at(options.fileserver_port)
                .ok_or_else(|| wrong(&"choose another --fileserver-port"))?,
        };
        let count = usize::from(options.clients);
        let processors = std::thread::available_parallelism()?.get();
        let shards = options.shards.unwrap_or(processors).clamp(1, count);
        let runtime = Runtime::start(RuntimeConfig {
            shards,
            blocking_threads: 1,
            name: "load".to_owned(),
            ..RuntimeConfig::default()
        })?;
        let shape = shape(options)?;
        let mut streams = Vec::with_capacity(count);
        for number in 0..count {
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            let shard = number % shards;
            let port = PortConfig::new(any).spread(Spread::OneShard(shard));
            let config = Config {
                cells: vec![cell.clone()],
                administrator: None,
                security: std::collections::HashMap::new(),
                renewal: None,
            };
            streams.push(Stream {
                client: Arc::new(Client::new(runtime.open(port)?, config)?),
                shard,
                name: format!("bench-{:08x}-{number}", rand::random::<u32>()),
                volume: options.volume.clone(),
                length: options.mebibytes << 20,
                record: options.record << 10,
                call: options.call.map(|kibibytes| kibibytes << 10),
                shape,
                payload: payload.clone(),
                file: None,
            });
        }
        let mut clients = Self { runtime, streams };
        clients.each(|mut stream| async move {
            let made = stream.make().await;
            (stream, made)
        })?;
        Ok(clients)
    }

    /// Runs `work` for every client on its own thread; returns the first failure.
    fn each<T, F, W>(&mut self, work: W) -> Result<Vec<T>, ObjectsError>
    where
        T: Send + 'static,
        F: Future<Output = (Stream, Result<T, ObjectsError>)> + 'static,
        W: Fn(Stream) -> F + Clone + Send + 'static,
    {
        let (sender, receiver) = std::sync::mpsc::sync_channel(self.streams.len());
        let count = self.streams.len();
        for (number, stream) in self.streams.drain(..).enumerate() {
            let (sender, work) = (sender.clone(), work.clone());
            self.runtime.spawn(stream.shard, move || async move {
                let done = work(stream).await;
                let _nobody_waits = sender.send((number, done));
            });
        }
        drop(sender);
        let mut all: Vec<_> = receiver.iter().collect();
        if all.len() < count {
            return Err(ObjectsError::Ended);
        }
        all.sort_by_key(|(number, _)| *number);
        let mut outcomes = Vec::with_capacity(count);
        let mut failed = None;
        for (_, (stream, outcome)) in all {
            self.streams.push(stream);
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(cause) => failed = failed.or(Some(cause)),
            }
        }
        failed.map_or(Ok(outcomes), Err)
    }

    fn measure(
        &mut self,
        operation: Operation,
        options: &Options,
        state: State,
    ) -> Result<Figures, ObjectsError> {
        let mut pids = options.server_pid.clone();
        pids.push(std::process::id());
        let all = (options.mebibytes << 20) * self.streams.len() as u64;
        let half = match state {
            State::Killed(pid) => Some(stream::Half::new(pid, all / 2)),
            State::Well | State::Without(_) => None,
        };
        if let State::Killed(gone) | State::Without(gone) = state {
            // Its accounts are gone: its part is lost.
            pids.retain(|pid| *pid != gone);
        }
        let half = Arc::new(half);
        let together = Arc::new(Barrier::new(self.streams.len()));
        let before = Reading::take(&pids)?;
        let done: Vec<Streamed> = self.each(move |mut stream| {
            let (together, half) = (together.clone(), half.clone());
            async move {
                together.wait().await;
                let begun = Instant::now();
                let moved = stream.run(operation, &half).await;
                let moved = moved.map(|silence| Streamed {
                    begun,
                    ended: Instant::now(),
                    silence,
                });
                (stream, moved)
            }
        })?;
        let cpu = Reading::take(&pids)?.since(&before);
        let begun = done.iter().map(|one| one.begun).min();
        let ended = done.iter().map(|one| one.ended).max();
        Ok(Figures {
            bytes: all,
            elapsed: ended.zip(begun).map_or(Duration::ZERO, |(e, b)| e - b),
            cpu,
            silence: done.iter().map(|one| one.silence).max().unwrap_or_default(),
        })
    }

    /// Removes the files and disconnects from the servers.
    fn end(mut self, keep: bool) -> Result<(), ObjectsError> {
        let removed = self.each(move |stream| async move {
            let removed = match keep {
                true => Ok(()),
                false => stream.remove().await,
            };
            stream.client.goodbye().await;
            (stream, removed)
        });
        self.runtime.shutdown();
        removed.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_is_shown() {
        let run = |seconds| Figures {
            bytes: 1 << 30,
            elapsed: Duration::from_secs(seconds),
            cpu: Duration::from_secs(3),
            silence: Duration::ZERO,
        };
        let median = Figures::median(vec![run(4), run(1), run(2)]).unwrap();
        assert_eq!((median.rate(), median.cpu_per_gibibyte()), (512.0, 3.0));
    }
}
