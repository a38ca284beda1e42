//! Measures durable creates and stores, statuses and lookups per second, with the CPU time of each.
//!
//! ```text
//! cargo run -p cellar-volume --example store_bench --profile dist --
//!     [DIR] [SECONDS] [VNODES [BODY_BYTES [INLINE_BYTES]]]
//! ```
//!
//! With VNODES, only that many files are made and read, and memory and disk are printed. The files
//! have BODY_BYTES bytes, default 1,000. INLINE_BYTES is the option of that name.
//!
//! "n x d callers" are n threads with d running changes each, as a server's threads have: the next
//! begins when the oldest is durable. CPU time is that of the whole process, callers included, so
//! it is an upper bound of the store's own cost.

use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::{
    Context, Durability, NewVnode, Options, Partition, StoreSpec, Ticket, Volume, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VolumeId};

const CONTEXT: Context = Context {
    author: ViceId(1),
    now: AfsTime(1_700_000_000),
};
const NEW: NewVnode = NewVnode {
    owner: ViceId(1),
    group: None,
    mode: Some(0o644),
    client_time: None,
};

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Number of threads, and of running changes on each.
#[derive(Clone, Copy)]
struct Callers(usize, usize);

/// Runs `work` on some threads for a while and prints the results. Each call gets the number of the
/// caller and of its calls so far.
fn measure(
    name: &str,
    callers: Callers,
    time: Duration,
    partition: &Partition,
    work: impl Fn(usize, u64) -> cellar_volume::Result<Ticket> + Sync,
) -> cellar_volume::Result<()> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let before = partition.counters();
    let (start, cpu_start) = (Instant::now(), cpu());
    let result = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers.0)
            .map(|caller| {
                let (stop, done, work) = (&stop, &done, &work);
                scope.spawn(move || {
                    let mut count = 0;
                    let mut under_way = VecDeque::with_capacity(callers.1);
                    while !stop.load(Ordering::Relaxed) {
                        under_way.push_back(work(caller, count)?);
                        if under_way.len() == callers.1
                            && let Some(oldest) = under_way.pop_front()
                        {
                            oldest.wait()?;
                        }
                        count += 1;
                    }
                    under_way.iter().try_for_each(Ticket::wait)?;
                    done.fetch_add(count, Ordering::Relaxed);
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err(cellar_volume::Error::Stopped("a caller panicked".into())),
            })
    });
    result?;
    let (elapsed, used) = (start.elapsed(), cpu() - cpu_start);
    let after = partition.counters();
    let done = done.load(Ordering::Relaxed).max(1);
    let groups = (after.groups - before.groups).max(1);
    println!(
        "{name:<40} {:>3} x {:<2} callers {:>9.0} /s {:>8.2} us CPU {:>7.1} per sync, {} flushes",
        callers.0,
        callers.1,
        done as f64 / elapsed.as_secs_f64(),
        used.as_secs_f64() * 1e6 / done as f64,
        (after.commits - before.commits) as f64 / groups as f64,
        after.flushes - before.flushes,
    );
    Ok(())
}

fn volume(partition: &Partition, id: u32) -> cellar_volume::Result<Arc<Volume>> {
    let spec = VolumeSpec::new(VolumeId(id), format!("bench{id}"), ViceId(1), AfsTime(1));
    partition.create_volume(&spec)?.wait()
}

fn files(volume: &Volume, dir: Fid, count: usize) -> cellar_volume::Result<Vec<Fid>> {
    let mut files = Vec::new();
    let mut last = Ticket::ready();
    for n in 0..count {
        let name = format!("f{n}");
        let created = volume.create_file(dir, name.as_bytes(), &NEW, CONTEXT)?;
        files.push(created.outcome.status.fid);
        last = created.durable;
    }
    last.wait()?;
    Ok(files)
}

fn run(
    partition: &Partition,
    first: u32,
    callers: Callers,
    time: Duration,
    label: &str,
) -> Result<(), Box<dyn Error>> {
    let volumes: Vec<_> = (0..callers.0)
        .map(|n| volume(partition, first + n as u32))
        .collect::<Result<_, _>>()?;
    measure(
        &format!("{label}create, own volume each"),
        callers,
        time,
        partition,
        |c, n| {
            let volume = &volumes[c];
            // A directory of 500 names is large for most users.
            let dir = if n % 500 == 0 {
                let name = format!("d{}", n / 500);
                volume
                    .make_dir(volume.root(), name.as_bytes(), &NEW, CONTEXT)?
                    .wait()?
                    .status
                    .fid
            } else {
                volume.lookup(volume.root(), format!("d{}", n / 500).as_bytes())?
            };
            let name = format!("f{n}");
            Ok(volume
                .create_file(dir, name.as_bytes(), &NEW, CONTEXT)?
                .durable)
        },
    )?;
    let shared = volume(partition, first + 1000)?;
    measure(
        &format!("{label}create, one directory for all"),
        callers,
        time,
        partition,
        |c, n| {
            let name = format!("f{c}.{n}");
            match shared.create_file(shared.root(), name.as_bytes(), &NEW, CONTEXT) {
                Ok(created) => Ok(created.durable),
                Err(cellar_volume::Error::DirectoryFull) => Ok(Ticket::ready()),
                Err(error) => Err(error),
            }
        },
    )?;
    let shared = volume(partition, first + 1001)?;
    let mine = files(&shared, shared.root(), callers.0 * 16)?;
    for length in [512, 4096, 64 << 10] {
        let data = [Bytes::from(vec![5; length])];
        let name = format!("{label}store {length} bytes");
        measure(&name, callers, time, partition, |c, n| {
            let fid = mine[c * 16 + n as usize % 16];
            Ok(shared
                .store(fid, &StoreSpec::at(0), &data, CONTEXT)?
                .durable)
        })?;
    }
    Ok(())
}

/// Resident memory in MB: all of it, and the part that is not file pages.
fn memory() -> Result<String, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        number.unwrap_or(0) >> 10
    };
    Ok(format!(
        "{} MB resident, at most {} MB",
        of("VmRSS:"),
        of("VmHWM:")
    ))
}

/// Room of a directory's files on the disk in MB, without the reserve.
fn disk(folder: &Path) -> Result<u64, Box<dyn Error>> {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "base" || name.to_string_lossy().starts_with("blocks") {
            blocks += entry.metadata()?.blocks();
        }
    }
    Ok(blocks / 2048)
}

/// Makes `vnodes` files of `length` bytes, 2,000 in a volume, and reads them at random.
fn many(
    folder: &Path,
    vnodes: u64,
    length: usize,
    options: &Options,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let partition = Partition::open(FileDisk::open(folder)?, options.clone())?;
    let data = [Bytes::from(vec![5; length])];
    let (start, cpu_start) = (Instant::now(), cpu());
    let mut fids = Vec::new();
    for n in 0..vnodes / 2000 {
        let volume = volume(&partition, n as u32 + 1)?;
        for fid in files(&volume, volume.root(), 2000)? {
            let _ = volume.store(fid, &StoreSpec::at(0), &data, CONTEXT)?;
            fids.push(fid);
        }
    }
    partition.flush()?;
    println!(
        "{} files of {length} bytes made in {:.1} s, {:.1} us CPU each: {} MB on disk, {}",
        fids.len(),
        start.elapsed().as_secs_f64(),
        (cpu() - cpu_start).as_secs_f64() * 1e6 / fids.len().max(1) as f64,
        disk(folder)?,
        memory()?
    );
    measure(
        "status of any file",
        Callers(2, 1),
        time,
        &partition,
        |c, n| {
            let at = (n.wrapping_mul(0x9e37_79b9) + c as u64 * 77) % fids.len() as u64;
            let fid = fids[at as usize];
            if let Some(volume) = partition.volume(fid.volume)? {
                volume.status_and_acl(fid)?;
            }
            Ok(Ticket::ready())
        },
    )?;
    println!("{}", memory()?);
    drop(partition);
    let start = Instant::now();
    let partition = Partition::open(FileDisk::open(folder)?, Options::default())?;
    println!("opened again in {:.3} s", start.elapsed().as_secs_f64());
    drop(partition);
    Ok(std::fs::remove_dir_all(folder)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    let time = Duration::from_secs(seconds);
    let folder = folder.join("store_bench");
    let _ = std::fs::remove_dir_all(&folder);
    if let Some(vnodes) = arguments.next().and_then(|text| text.parse().ok()) {
        let mut number = |default| {
            let given = arguments.next().and_then(|text| text.parse().ok());
            given.unwrap_or(default)
        };
        let length = number(1000);
        let options = Options {
            inline_bytes: number(Options::default().inline_bytes),
            ..Options::default()
        };
        return many(&folder, vnodes, length, &options, time);
    }
    {
        let partition = Partition::open(FileDisk::open(&folder)?, Options::default())?;
        for (round, callers) in [Callers(1, 1), Callers(8, 1), Callers(64, 1), Callers(4, 16)]
            .into_iter()
            .enumerate()
        {
            run(&partition, 1 + round as u32 * 10_000, callers, time, "")?;
        }
        let bulk = volume(&partition, 900_000)?;
        let mine = files(&bulk, bulk.root(), 64)?;
        let data = [Bytes::from(vec![5; 1 << 20])];
        for callers in [Callers(1, 1), Callers(4, 1)] {
            measure("store 1 MiB", callers, time, &partition, |c, n| {
                let fid = mine[c * 16 + n as usize % 16];
                Ok(bulk.store(fid, &StoreSpec::at(0), &data, CONTEXT)?.durable)
            })?;
            measure("read 1 MiB", callers, time, &partition, |c, _| {
                bulk.read(mine[c * 16], 0, 1 << 20).map(|_| Ticket::ready())
            })?;
        }
        let small = [Bytes::from(vec![5; 4096])];
        let spec = StoreSpec {
            file_length: 0,
            ..StoreSpec::at(0)
        };
        for fid in &mine {
            bulk.store(*fid, &spec, &small, CONTEXT)?.wait()?;
        }
        for callers in [Callers(1, 1), Callers(4, 1)] {
            measure("read 4 KiB", callers, time, &partition, |_, n| {
                bulk.read(mine[n as usize % 64], 0, 4096)
                    .map(|_| Ticket::ready())
            })?;
            measure(
                "status and access list",
                callers,
                time,
                &partition,
                |_, n| {
                    bulk.status_and_acl(mine[n as usize % 64])
                        .map(|_| Ticket::ready())
                },
            )?;
            measure("lookup of 64 names", callers, time, &partition, |_, n| {
                bulk.lookup(bulk.root(), format!("f{}", n % 64).as_bytes())
                    .map(|_| Ticket::ready())
            })?;
        }
        println!("{:?}", partition.counters());
    }
    let options = Options {
        durability: Durability::Relaxed(Duration::from_millis(100)),
        ..Options::default()
    };
    let partition = Partition::open(FileDisk::open(&folder)?, options)?;
    run(&partition, 500_000, Callers(4, 16), time, "relaxed: ")?;
    drop(partition);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
