//! `cellar bench recalls`: reads every file of a volume from the beginning to the end, in the order
//! of its directories, and measures the time until the bytes of each are complete. For files that
//! are in archives only: a call that is refused with VBUSY is repeated, as by a client.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cellar_client::FetchCall;
use cellar_rpc::{CallError, Security};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use serde_json::json;

use crate::client::{Client, Servers};
use crate::latency::Latencies;
use crate::rxafs::{BenchError, Protection, find_volume, localauth, resolve};
use crate::walk::all_fids;

/// Pause before a refused call is repeated.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Bytes that are asked for; longer files are not complete.
const BYTES_MAX: u64 = 1 << 30;

/// Options of `cellar bench recalls`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench recalls --server 10.77.0.2 --volume data --parallel 64
  cellar bench recalls --server 10.77.0.2 --volume other --parallel 1 --server-etc cell-data/server-etc

Anonymous clients need the rights rl in every directory of the volume.")]
pub struct Options {
    /// Address of the file server, and of the location server unless given; default port 7000.
    #[arg(long)]
    pub server: String,
    /// Location server, if elsewhere: ADDRESS or ADDRESS:7003.
    #[arg(long)]
    pub vlserver: Option<String>,
    /// Volume: name, or number (then the location server is not used).
    #[arg(long)]
    pub volume: String,
    /// Files that are read at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parallel: u16,
    /// Files to leave out at the beginning.
    #[arg(long, default_value_t = 0)]
    pub skip: usize,
    /// Files to read at most; default: all.
    #[arg(long)]
    pub files: Option<usize>,
    /// Call as a superuser, by the key of this configuration directory of a server. Default:
    /// anonymous.
    #[arg(long)]
    pub server_etc: Option<PathBuf>,
    /// Address that the client binds to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
}

/// Reads the files, and prints one line of JSON. Returns the number of failed files.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let file = resolve(&options.server, 7000)?;
    let location = resolve(options.vlserver.as_ref().unwrap_or(&options.server), 7003)?;
    let servers = Servers {
        file,
        location,
        protection: location,
    };
    let security = match &options.server_etc {
        Some(directory) => localauth(directory, Protection::Clear)?,
        None => Security::null(),
    };
    // A connection has four calls at a time.
    let count = usize::from(options.parallel).div_ceil(4);
    let clients = Client::start_all(options.bind, &[servers], &security, count)?;
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let failed = waiter.block_on(measure(options, &clients))?;
    clients[0].shutdown();
    Ok(failed)
}

/// The share of one reader.
struct Share {
    latencies: Latencies,
    failed: u64,
    busy: u64,
}

async fn measure(options: &Options, clients: &[Client]) -> Result<u64, BenchError> {
    let volume = find_volume(&clients[0], &options.volume).await?;
    let (mut files, unread) = all_fids(&clients[0], Fid::root(volume)).await;
    files.retain(|fid| fid.vnode.0 % 2 == 0);
    let files = files.into_iter().skip(options.skip);
    let files: Arc<Vec<Fid>> = Arc::new(files.take(options.files.unwrap_or(usize::MAX)).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..usize::from(options.parallel) {
        let client = clients[number / 4].clone();
        readers.spawn(read_some(client, files.clone(), next.clone()));
    }
    let mut all = Share {
        latencies: Latencies::new(),
        failed: unread,
        busy: 0,
    };
    while let Some(share) = readers.join_next().await {
        let share = share.map_err(std::io::Error::other)?;
        all.latencies.add(&share.latencies);
        all.failed += share.failed;
        all.busy += share.busy;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let millis = |latency: Duration| latency.as_secs_f64() * 1e3;
    let line = json!({
        "files": all.latencies.count(), "seconds": seconds, "failed": all.failed, "busy": all.busy,
        "p50_ms": millis(all.latencies.quantile(0.5)), "p99_ms": millis(all.latencies.quantile(0.99)),
        "max_ms": millis(all.latencies.max()),
    });
    println!("{line}");
    Ok(all.failed)
}

/// Reads files until none is left.
async fn read_some(client: Client, files: Arc<Vec<Fid>>, next: Arc<AtomicUsize>) -> Share {
    let mut share = Share {
        latencies: Latencies::new(),
        failed: 0,
        busy: 0,
    };
    while let Some(&fid) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
        let begun = Instant::now();
        loop {
            match fetch(&client, fid).await {
                Ok(()) => share.latencies.record(begun.elapsed()),
                Err(CallError::Aborted(AbortCode::VBUSY)) => {
                    share.busy += 1;
                    tokio::time::sleep(BUSY_PAUSE).await;
                    continue;
                }
                Err(error) => {
                    if share.failed == 0 {
                        eprintln!("{fid:?}: {error}");
                    }
                    share.failed += 1;
                }
            }
            break;
        }
    }
    share
}

async fn fetch(client: &Client, fid: Fid) -> Result<(), CallError> {
    let mut call = FetchCall::open(&client.file, fid, 0, BYTES_MAX).await?;
    call.read(BYTES_MAX, |_| ()).await?;
    call.finish().await?;
    Ok(())
}
