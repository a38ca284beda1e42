//! Measures the cost of very many volumes on one partition: making, reading for the first time,
//! keeping open and closing. It also measures opening the partition after a clean close and after a
//! kill.
//!
//! `cargo run -p cellar-volume --example volume_count --profile dist -- DIR COUNT...`
//!
//! For each COUNT, ascending, DIR is filled up to that many volumes and everything is measured.
//! Every opening is in a new process, timed from before its start. The page cache is dropped first
//! if that is allowed (root). The killed process has changed volumes as fast as it could, so that
//! its journal is as full as it gets. With COUNT 0 the present contents of DIR are measured.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::{Context, NewVnode, Options, Partition, StoreSpec, Ticket, Volume, VolumeSpec};
use cellar_wire::ids::{AfsTime, ViceId, VolumeId};

type Outcome<T> = Result<T, Box<dyn Error>>;

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
/// Volumes made before the program waits for the journal.
const AHEAD: u32 = 1000;
/// Volumes that stay open when they are not in use.
const IDLE: u32 = 20_000;
/// Volumes that are changed: spread over all, and soon in memory.
const HOT: u32 = 2000;
/// How long volumes are changed before the kill.
const BUSY: Duration = Duration::from_secs(8);

fn open(folder: &Path) -> Outcome<Arc<Partition>> {
    Ok(Partition::open(
        FileDisk::open(folder)?,
        Options::default(),
    )?)
}

fn volume(partition: &Partition, id: u32) -> Outcome<Arc<Volume>> {
    let found = partition.volume(VolumeId(id))?;
    found.ok_or_else(|| format!("volume {id} is missing").into())
}

/// Numbers that visit every volume once before any is repeated, out of order.
fn scattered(n: u32, count: u32) -> u32 {
    (u64::from(n) * 0x9e37_79b1 % u64::from(count)) as u32 + 1
}

fn count(partition: &Partition) -> Outcome<u32> {
    // Volumes are numbered from 1 on without a gap.
    let (mut there, mut beyond) = (0, u32::MAX / 2);
    while beyond - there > 1 {
        let middle = there + (beyond - there) / 2;
        match partition.volume(VolumeId(middle))? {
            Some(_) => there = middle,
            None => beyond = middle,
        }
    }
    Ok(there)
}

fn make(folder: &Path, wanted: u32) -> Outcome<()> {
    let partition = open(folder)?;
    let there = count(&partition)?;
    let begun = Instant::now();
    let mut last = Ticket::ready();
    for id in there + 1..=wanted {
        let name = format!("count.{id}");
        let spec = VolumeSpec {
            max_quota: 5000,
            ..VolumeSpec::new(VolumeId(id), name, ViceId(1), CONTEXT.now)
        };
        last = partition.create_volume(&spec)?.durable;
        if id.is_multiple_of(AHEAD) {
            last.wait()?;
        }
    }
    last.wait()?;
    let (made, took) = (wanted.saturating_sub(there), begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    partition.close()?;
    println!(
        "{made} volumes made in {took:.1} s, {:.0} a second; closed in {:.2} s; {} MB resident at most",
        f64::from(made) / took,
        begun.elapsed().as_secs_f64(),
        memory("VmHWM:") >> 10,
    );
    Ok(())
}

/// The work of a measured process: it opens the partition, answers one operation, and waits for a
/// command.
fn serve(folder: &Path, work: &str) -> Outcome<()> {
    let begun = Instant::now();
    let partition = open(folder)?;
    let opened = begun.elapsed();
    let mut lines = std::io::stdin().lines();
    let count: u32 = lines.next().ok_or("no count")??.parse()?;
    let first = volume(&partition, scattered(count / 3, count))?;
    first.status_and_acl(first.root())?;
    first.entries(first.root())?;
    println!("{:.3}", opened.as_secs_f64());
    std::io::stdout().flush()?;
    match work {
        "busy" => {
            let mut n = 0;
            let data = [Bytes::from(vec![7; 1000])];
            while begun.elapsed() < BUSY {
                let volume = volume(&partition, scattered(n % HOT, count))?;
                let name = format!("f{n}.{}", std::process::id());
                let made = volume.create_file(volume.root(), name.as_bytes(), &NEW, CONTEXT)?;
                let fid = made.outcome.status.fid;
                let stored = volume.store(fid, &StoreSpec::at(0), &data, CONTEXT)?;
                if n.is_multiple_of(64) {
                    stored.wait()?;
                }
                n += 1;
            }
            println!("{n}");
        }
        _ => {
            let before = memory("VmRSS:");
            let begun = Instant::now();
            let idle = IDLE.min(count);
            for n in 0..idle {
                volume(&partition, scattered(n, count))?;
            }
            let took = begun.elapsed().as_secs_f64();
            let opened = memory("VmRSS:");
            for n in 0..2 * idle.min(count) {
                volume(&partition, scattered(n, count))?;
            }
            println!(
                "{idle} volumes opened in {took:.2} s: {before} KiB resident before, {opened} after, {} bytes each; {} KiB after twice as many",
                (opened.saturating_sub(before) << 10) / u64::from(idle.max(1)),
                memory("VmRSS:"),
            );
        }
    }
    std::io::stdout().flush()?;
    lines.next();
    let begun = Instant::now();
    partition.close()?;
    println!("{:.3}", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A line of `/proc/self/status`, in KiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.unwrap_or(0)
}

/// Room of a directory's files in MB, without the journal and the reserve.
fn disk(folder: &Path) -> Outcome<f64> {
    let mut blocks = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "base" || name.to_string_lossy().starts_with("blocks") {
            blocks += entry.metadata()?.blocks();
        }
    }
    Ok(blocks as f64 / 2048.0)
}

/// Another process that has the partition open.
struct Server {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Server {
    /// Starts a process with an empty page cache, and prints the time until its first answer.
    fn start(folder: &Path, work: &str, count: u32, label: &str) -> Outcome<Self> {
        rustix::fs::sync();
        let cold = std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok();
        let begun = Instant::now();
        let mut child = Command::new(std::env::current_exe()?)
            .arg(folder)
            .args(["--serve", work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        writeln!(child.stdin.as_mut().ok_or("no input")?, "{count}")?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut server = Self {
            child,
            lines: BufReader::new(output).lines(),
        };
        let opened = server.line()?;
        println!(
            "{label}: first answer {:.3} s after the start of the process, opened in {opened} s ({})",
            begun.elapsed().as_secs_f64(),
            if cold {
                "cold"
            } else {
                "the cache not dropped"
            },
        );
        Ok(server)
    }

    fn line(&mut self) -> Outcome<String> {
        Ok(self.lines.next().ok_or("the process ended")??)
    }

    fn close(mut self, label: &str) -> Outcome<()> {
        let begun = Instant::now();
        writeln!(self.child.stdin.as_mut().ok_or("no input")?)?;
        let closed = self.line()?;
        self.child.wait()?;
        println!(
            "{label}: closed in {closed} s, process ended after {:.3} s",
            begun.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn kill(mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

fn measure(folder: &Path, count: u32) -> Outcome<()> {
    println!(
        "{count} volumes: {:.0} MB on the disk, {:.0} bytes each",
        disk(folder)?,
        disk(folder)? * 1_048_576.0 / f64::from(count.max(1))
    );
    let mut clean = Server::start(folder, "idle", count, "after a clean close")?;
    println!("{}", clean.line()?);
    clean.close("idle")?;
    let mut busy = Server::start(folder, "busy", count, "after a clean close")?;
    let changes = busy.line()?;
    println!("{changes} files made in {HOT} volumes, then killed");
    busy.kill()?;
    let mut killed = Server::start(folder, "busy", count, "after kill -9")?;
    killed.line()?;
    killed.close("busy")
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: volume_count DIR COUNT...";
    let folder = PathBuf::from(arguments.next().ok_or(usage)?);
    let rest: Vec<String> = arguments.collect();
    if let [flag, work] = &rest[..]
        && flag == "--serve"
    {
        return serve(&folder, work);
    }
    if rest.is_empty() {
        return Err(usage.into());
    }
    for wanted in &rest {
        match wanted.parse()? {
            0 => {}
            wanted => make(&folder, wanted)?,
        }
        let there = count(&*open(&folder)?)?;
        measure(&folder, there)?;
    }
    Ok(())
}
