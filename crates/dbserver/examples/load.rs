//! A load test of the database servers, as two processes.
//!
//! ```text
//! load server DIRECTORY ADDRESS:PORT VOLUMES       VL and PR with that many volumes and users
//! load client ADDRESS:PORT vl|pr VOLUMES CLIENTS CALLS SECONDS
//! ```
//!
//! Each of the CLIENTS has its own port and CALLS calls in flight. The client prints the rate. The
//! server prints its processor time per call, in microseconds, as the scheduler counts it.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellar_celldb::{CellDb, Embedded};
use cellar_dbserver::{Clock, Identity, Pr, PrService, Vl, VlService};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig, Security};
use cellar_wire::vl::{CreateEntryN, GetEntryByNameU, NvldbEntry, Site, VLF_RWEXISTS, VLSF_RWVOL};
use cellar_wire::{AfsTime, List, ViceId, VolumeId, pr, vl};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", directory, address, volumes] => {
            serve(Path::new(directory), address.parse()?, volumes.parse()?)
        }
        ["client", address, what, volumes, clients, calls, seconds] => load(
            address.parse()?,
            what == "vl",
            volumes.parse()?,
            clients.parse()?,
            calls.parse()?,
            Duration::from_secs(seconds.parse()?),
        ),
        _ => Err("see the head of this program for its arguments".into()),
    }
}

fn name(n: u32) -> String {
    format!("user.u{n:06}")
}

fn serve(directory: &Path, address: SocketAddr, volumes: u32) -> Outcome {
    let start = Instant::now();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&directory.join("cell.db"))?);
    let clock: Clock = Arc::new(|| AfsTime(1));
    let vl = Arc::new(Vl::open(db.clone(), clock.clone())?);
    let pr = Arc::new(Pr::open(db, clock, "test.cell")?);
    println!("opened in {:?}", start.elapsed());
    fill(&vl, &pr, volumes);
    println!("filled after {:?}", start.elapsed());
    let runtime = Runtime::start(RuntimeConfig::default())?;
    let port = PortConfig::new(address)
        .service(Arc::new(VlService::new(vl)))
        .service(Arc::new(PrService::new(pr)));
    let port = runtime.open(port)?;
    println!(
        "listening on {}; {} kB resident",
        port.local_address(),
        resident_kb()
    );
    let mut last = (processor_time(), 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let figures = port.statistics().port();
        let calls = figures.calls_inline + figures.calls_pending;
        let now = processor_time();
        if calls > last.1 {
            let each = (now - last.0).as_secs_f64() * 1e6 / (calls - last.1) as f64;
            println!(
                "{} calls, {each:.2} us of processor time each",
                calls - last.1
            );
        }
        last = (now, calls);
    }
}

/// Creates the missing entries, many at a time so that they share commits.
fn fill(vl: &Vl, pr: &Pr, volumes: u32) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as u32;
                    if n >= volumes {
                        break;
                    }
                    let server = 0x0a00_0001 + n % 50;
                    let site = Site {
                        server,
                        partition: 0,
                        flags: VLSF_RWVOL,
                    };
                    let (Ok(volume), Ok(user)) = (name(n).as_str().try_into(), name(n).try_into())
                    else {
                        continue;
                    };
                    let newentry = NvldbEntry {
                        name: volume,
                        sites: List::from_iter_cut([site]),
                        volume_ids: [n * 3 + 1, n * 3 + 2, n * 3 + 3].map(VolumeId),
                        flags: VLF_RWEXISTS,
                        ..NvldbEntry::default()
                    };
                    let new = pr::NewEntry {
                        name: user,
                        flag: 0,
                        owner: ViceId(0),
                    };
                    // An entry from an earlier run is refused, and stays.
                    let _there = vl.ask(Identity::Superuser, CreateEntryN { newentry });
                    let _there = pr.ask(Identity::Superuser, new);
                }
            });
        }
    });
}

fn load(
    address: SocketAddr,
    is_vl: bool,
    volumes: u32,
    clients: u32,
    calls: u32,
    patience: Duration,
) -> Outcome {
    let done = Arc::new(AtomicU64::new(0));
    let failed = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut runtimes = Vec::new();
    let start = Instant::now();
    for client in 0..clients {
        let runtime = Runtime::client_only()?;
        let service = if is_vl {
            vl::PACKAGE.service_id
        } else {
            pr::PACKAGE.service_id
        };
        for call in 0..calls {
            let connection = runtime.connect(address, service, Security::null())?;
            let (done, failed, stop) = (done.clone(), failed.clone(), stop.clone());
            runtime.spawn(0, move || async move {
                let mut n = client.wrapping_mul(7919).wrapping_add(call * 104_729);
                while !stop.load(Ordering::Relaxed) {
                    n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let name = name((n >> 8) % volumes);
                    let outcome = if is_vl {
                        let volumename = name.try_into().unwrap_or_default();
                        connection
                            .call(&GetEntryByNameU { volumename })
                            .await
                            .map(drop)
                    } else {
                        let names = name.as_str().try_into().into_iter();
                        let names = List::from_iter_cut(names);
                        connection.call(&pr::NameToID { names }).await.map(drop)
                    };
                    let counter = if outcome.is_ok() { &done } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        runtimes.push(runtime);
    }
    std::thread::sleep(patience);
    let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    println!(
        "{rate:.0} calls/s, {} failed",
        failed.load(Ordering::Relaxed)
    );
    Ok(())
}

/// The processor time that the scheduler has given to this process.
fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let nanoseconds = |path: &Path| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split(' ')
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or(0)
    };
    Duration::from_nanos(tasks.map(|task| nanoseconds(&task.path())).sum())
}

fn resident_kb() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap_or("?")
        .trim()
        .trim_end_matches(" kB")
        .to_owned()
}
