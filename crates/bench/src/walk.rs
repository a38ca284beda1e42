//! `cellar bench walk`: requests every vnode of a volume and holds promises, to measure the memory
//! of a server.
//!
//! 1. One client reads every directory from the root down and collects all fids.
//! 2. All clients together request the status of a part of them, fifty at a time. Each gives up its
//!    promises after every thousand, as a cache manager with a small cache would.
//! 3. They request as many different files as promises are wanted, one by one, and hold the
//!    promises.
//!
//! The server's resident memory is shown after each step. It includes everything: code, shared
//! pages, and memory that the allocator keeps.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cellar_client::FetchCall;
use cellar_rpc::{CallError, Security};
use cellar_wire::dir::{Directory, PAGE_SIZE, PAGES_MAX};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs;
use serde_json::json;

use crate::client::{Client, Servers};
use crate::cpu;
use crate::rxafs::{BenchError, find_volume, resolve};

/// Options of `cellar bench walk`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench walk --server 10.77.0.2 --volume scratch --promises 10000 --server-pid $(pidof cellar)

Anonymous clients need the rights rl in every directory of the volume.")]
pub struct Options {
    /// Address of the file server, and of the location server unless given; default port 7000.
    #[arg(long)]
    pub server: String,
    /// Location server, if elsewhere: ADDRESS or ADDRESS:7003.
    #[arg(long)]
    pub vlserver: Option<String>,
    /// Volume to walk: name, or number (then the location server is not used).
    #[arg(long, default_value = "scratch")]
    pub volume: String,
    /// Client machines, each with its own UDP port, UUID and callback service.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Part of the vnodes to request, percent.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub percent: u8,
    /// Number of promises to hold in the end.
    #[arg(long, default_value_t = 10_000)]
    pub promises: usize,
    /// Time to hold them, seconds.
    #[arg(long, default_value_t = 5.0)]
    pub hold: f64,
    /// Processes of the server on this machine, for their memory.
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Address that the clients bind to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// One JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Walks the volume, and prints a line for each step. Returns the number of failed vnodes.
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
    let clients = Client::start_all(
        options.bind,
        &[servers],
        &Security::null(),
        options.clients.into(),
    )?;
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let failed = waiter.block_on(walk(options, &clients))?;
    clients[0].shutdown();
    Ok(failed)
}

async fn walk(options: &Options, clients: &[Client]) -> Result<u64, BenchError> {
    let show = |step: &str, count: usize, start: Instant| -> io::Result<()> {
        let seconds = start.elapsed().as_secs_f64();
        let resident = match options.server_pid.as_slice() {
            [] => None,
            pids => Some(cpu::resident_bytes(pids)?),
        };
        if options.json {
            let line = json!({
                "step": step, "count": count, "seconds": seconds, "server_resident_bytes": resident,
            });
            println!("{line}");
        } else {
            let resident = resident.map_or_else(String::new, |bytes| {
                format!("  server resident {:.1} MB", bytes as f64 / 1e6)
            });
            println!("{step:<24} {count:>9} in {seconds:>6.1} s{resident}");
        }
        Ok(())
    };
    show("before", 0, Instant::now())?;
    let volume = find_volume(&clients[0], &options.volume).await?;
    let start = Instant::now();
    let (fids, mut failed) = all_fids(&clients[0], Fid::root(volume)).await;
    show("vnodes named", fids.len(), start)?;

    let fids = Arc::new(fids);
    let wanted = fids.len() * usize::from(options.percent) / 100;
    let start = Instant::now();
    let step = rxafs::BULK_MAX;
    failed += in_parallel(clients, fids.clone(), wanted, step, bulk).await;
    show("vnodes looked at", wanted, start)?;

    for client in clients {
        let _done = client.file.call(&rxafs::GiveUpAllCallBacks {}).await;
    }
    let start = Instant::now();
    let promises = options.promises.min(fids.len());
    failed += in_parallel(clients, fids, promises, 1, single).await;
    show("promises held", promises, start)?;
    tokio::time::sleep(Duration::try_from_secs_f64(options.hold).unwrap_or_default()).await;
    show("after holding", promises, Instant::now())?;
    for client in clients {
        let _done = client.file.call(&rxafs::GiveUpAllCallBacks {}).await;
    }
    Ok(failed)
}

/// Returns every fid below `root`, and the number of directories that could not be read.
pub(crate) async fn all_fids(client: &Client, root: Fid) -> (Vec<Fid>, u64) {
    let mut fids = vec![root];
    let mut failed = 0;
    // Directories have odd vnode numbers; they are found in `fids` itself.
    let mut next = 0;
    while let Some(fid) = fids.get(next).copied() {
        next += 1;
        if fid.vnode.0 % 2 == 0 {
            continue;
        }
        match fetch(client, fid).await {
            Ok(bytes) => {
                let (pages, _rest) = bytes.as_chunks::<PAGE_SIZE>();
                let Ok(entries) = Directory::new(pages).entries() else {
                    failed += 1;
                    continue;
                };
                let named = entries
                    .into_iter()
                    .filter(|(name, _)| name != b"." && name != b"..");
                fids.extend(named.map(|(_, target)| Fid {
                    volume: root.volume,
                    vnode: target.vnode,
                    uniquifier: target.uniquifier,
                }));
            }
            Err(_) => failed += 1,
        }
    }
    (fids, failed)
}

async fn fetch(client: &Client, fid: Fid) -> Result<Vec<u8>, CallError> {
    let length = (PAGE_SIZE * PAGES_MAX) as u64;
    let mut call = FetchCall::open(&client.file, fid, 0, length).await?;
    let mut bytes = Vec::new();
    call.read(length, |piece| bytes.extend_from_slice(&piece))
        .await?;
    call.finish().await?;
    Ok(bytes)
}

/// Number of files after which a client of the walk gives up its promises.
const GIVE_UP_AFTER: usize = 1000;

/// Lets all clients work on the first `count` of `fids`, `step` at a time; returns the number of
/// failures.
async fn in_parallel<F>(
    clients: &[Client],
    fids: Arc<Vec<Fid>>,
    count: usize,
    step: usize,
    work: fn(Client, Vec<Fid>) -> F,
) -> u64
where
    F: Future<Output = u64> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients {
        let (client, fids) = (client.clone(), fids.clone());
        let (next, failed) = (next.clone(), failed.clone());
        tasks.spawn(async move {
            let mut looked_at = 0;
            loop {
                let from = next.fetch_add(step, Ordering::Relaxed);
                let to = (from + step).min(count);
                if from >= to {
                    return;
                }
                looked_at += to - from;
                if step > 1 && looked_at >= GIVE_UP_AFTER {
                    looked_at = 0;
                    let _done = client.file.call(&rxafs::GiveUpAllCallBacks {}).await;
                }
                let part = fids[from..to].to_vec();
                failed.fetch_add(work(client.clone(), part).await, Ordering::Relaxed);
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    failed.load(Ordering::Relaxed)
}

async fn bulk(client: Client, fids: Vec<Fid>) -> u64 {
    let count = fids.len() as u64;
    let fids = rxafs::Fids::from_iter_cut(fids);
    match client.file.call(&rxafs::InlineBulkStatus { fids }).await {
        Ok(reply) => {
            let bad = reply.statuses.iter().filter(|s| s.error_code.0 != 0);
            bad.count() as u64
        }
        Err(_) => count,
    }
}

async fn single(client: Client, fids: Vec<Fid>) -> u64 {
    let mut failed = 0;
    for fid in fids {
        let status = client.file.call(&rxafs::FetchStatus { fid }).await;
        failed += u64::from(status.is_err());
    }
    failed
}
