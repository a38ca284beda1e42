//! Comparison of embedded key-value engines under the load of a file server.
//!
//! `cargo run --release -- DIR [VNODES] [LOAD_SECONDS] [MIX_SECONDS] [ENGINE...]`
//!
//! For each engine, in its own process:
//!
//! 1. *load*: vnode records of 170,000 volumes, one volume after another as in moves, in durable
//!    commits of 50,000, until VNODES are stored or the time is up;
//! 2. *lookup*: random vnodes of all, and of the 1 % of volumes that are busy;
//! 3. *mix*: 60 % creates and lookups of small files (30 % each), 20 % status reads, 20 % status
//!    changes, nine of ten in the busy volumes; sizes from the RZG histogram (half of all files at
//!    most 4 KiB, kept inline; larger ones have a record of blocks). A durable commit every 32
//!    changes, as when 64 callers share a sync;
//! 4. the process aborts, and another opens the store, to measure the cost of a crash.
//!
//! CPU and memory are the kernel's figures for the process.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;
type Entry = (Vec<u8>, Vec<u8>);

const VOLUMES: u32 = 170_000;
const CACHE_BYTES: usize = 64 << 20;
const LOAD_BATCH: usize = 50_000;
const MIX_BATCH: usize = 32;

/// Operations that the store needs from an engine.
trait Engine {
    /// Puts entries in one durable commit.
    fn commit(&mut self, entries: &[Entry]) -> Result<()>;
    /// Returns the length of a value.
    fn get(&mut self, key: &[u8]) -> Result<Option<usize>>;
}

struct Redb(redb::Database);

const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("t");

impl Engine for Redb {
    fn commit(&mut self, entries: &[Entry]) -> Result<()> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in entries {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<usize>> {
        use redb::ReadableDatabase;
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|value| value.value().len()))
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Engine for Fjall {
    fn commit(&mut self, entries: &[Entry]) -> Result<()> {
        let mut batch = self.0.batch().durability(Some(fjall::PersistMode::SyncData));
        for (key, value) in entries {
            batch.insert(&self.1, key.as_slice(), value.as_slice());
        }
        Ok(batch.commit()?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.1.get(key)?.map(|value| value.len()))
    }
}

type Bytes = heed::types::Bytes;

/// The environment lives as long as the process.
struct Lmdb(&'static heed::Env, heed::Database<'static, Bytes, Bytes>);

impl Engine for Lmdb {
    fn commit(&mut self, entries: &[Entry]) -> Result<()> {
        let mut transaction = self.0.write_txn()?;
        for (key, value) in entries {
            self.1.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<usize>> {
        let transaction = self.0.read_txn()?;
        Ok(self.1.get(&transaction, key)?.map(<[u8]>::len))
    }
}

fn open(name: &str, folder: &Path) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(folder)?;
    match name {
        "redb" => {
            let mut builder = redb::Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let mut engine = Redb(builder.create(folder.join("redb"))?);
            engine.commit(&[])?;
            Ok(Box::new(engine))
        }
        "fjall" => {
            let database =
                fjall::Database::builder(folder).cache_size(CACHE_BYTES as u64).open()?;
            let table = database.keyspace("t", fjall::KeyspaceCreateOptions::default)?;
            Ok(Box::new(Fjall(database, table)))
        }
        "lmdb" => {
            let mut options = heed::EnvOpenOptions::new();
            options.map_size(64 << 30).max_dbs(1);
            // SAFETY: nothing else opens or changes the files while this process runs.
            let env: &'static heed::Env = Box::leak(Box::new(unsafe { options.open(folder)? }));
            let transaction = env.write_txn()?;
            let database = env
                .create_databases_and_commit(transaction, |creator, transaction| {
                    let made = creator.create_database(transaction, Some("t"));
                    made.map(heed::CommitOrAbort::<_, ()>::Commit)
                })?
                .unwrap_commit();
            Ok(Box::new(Lmdb(env, database)))
        }
        other => Err(format!("no engine is called {other}").into()),
    }
}

fn key(kind: u8, volume: u32, vnode: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(kind);
    key.extend_from_slice(&volume.to_be_bytes());
    key.extend_from_slice(&vnode.to_be_bytes());
    key.extend_from_slice(&(!1u64).to_be_bytes());
    key
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit.max(1))) as u32
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(length).collect()
    }

    /// A body's record. 50.31 % of files are at most 4 KiB, with a mean of 1,250 bytes. A larger
    /// one is a record of 24 to 300 bytes that lists blocks.
    fn body(&mut self) -> Vec<u8> {
        let length = if self.below(10_000) < 5031 {
            (self.below(50) * self.below(50) * 5 / 3).min(4096)
        } else {
            24 + self.below(276)
        };
        self.bytes(length as usize)
    }
}

/// CPU seconds and resident bytes that are not file pages.
fn process() -> Result<(f64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap_or("RssAnon: 0");
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap_or("0").parse()?;
    Ok((ticks / 100.0, kilobytes << 10))
}

fn disk_bytes(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}

fn report(name: &str, phase: &str, done: u64, start: Instant, cpu: f64) -> Result<()> {
    let (now, resident) = process()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name:<6} {phase:<28} {:>10.0} /s  {:>7.2} us CPU  {:>5} MB anonymous  ({done} in {seconds:.1} s)",
        done as f64 / seconds,
        (now - cpu) * 1e6 / done.max(1) as f64,
        resident >> 20,
    );
    Ok(())
}

fn run(name: &str, folder: &Path, vnodes: u32, load: Duration, mix: Duration) -> Result<()> {
    let mut engine = open(name, folder)?;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let per_volume = vnodes.div_ceil(VOLUMES);
    let (start, cpu) = (Instant::now(), process()?.0);
    let mut batch = Vec::with_capacity(LOAD_BATCH);
    let mut volumes = 0;
    while volumes < VOLUMES && start.elapsed() < load {
        for vnode in 0..per_volume {
            batch.push((key(0x10, volumes, vnode), random.bytes(104)));
        }
        volumes += 1;
        if batch.len() >= LOAD_BATCH {
            engine.commit(&batch)?;
            batch.clear();
        }
    }
    engine.commit(&batch)?;
    let loaded = u64::from(volumes) * u64::from(per_volume);
    report(name, "load, by volume", loaded, start, cpu)?;
    println!("{name:<6} {:<28} {:>10} MB", "on disk", disk_bytes(folder)? >> 20);
    let busy = (volumes / 100).max(1);
    for (phase, among) in [("lookup, any volume", volumes), ("lookup, busy volumes", busy)] {
        let (start, cpu) = (Instant::now(), process()?.0);
        let mut done = 0;
        while start.elapsed() < mix / 3 {
            for _ in 0..100 {
                let key = key(0x10, random.below(among), random.below(per_volume));
                if engine.get(&key)?.is_none() {
                    return Err("a record is missing".into());
                }
                done += 1;
            }
        }
        report(name, phase, done, start, cpu)?;
    }
    let (start, cpu) = (Instant::now(), process()?.0);
    let (mut done, mut next) = (0u64, per_volume);
    let mut changes: Vec<Entry> = Vec::new();
    let mut pending = 0;
    while start.elapsed() < mix {
        let among = if random.below(10) < 9 { busy } else { volumes };
        let (volume, vnode) = (random.below(among), random.below(per_volume));
        match random.below(10) {
            0..3 => {
                next += 1;
                changes.push((key(0x10, volume, next), random.bytes(104)));
                changes.push((key(0x11, volume, next), random.body()));
                changes.push((key(0x11, volume, 1), random.bytes(1400)));
                changes.push((key(0x04, volume, 0), random.bytes(41)));
                pending += 1;
            }
            3..6 => {
                engine.get(&key(0x11, volume, 1))?;
                engine.get(&key(0x10, volume, vnode))?;
                engine.get(&key(0x11, volume, vnode))?;
            }
            6..8 => {
                engine.get(&key(0x10, volume, vnode))?;
            }
            _ => {
                changes.push((key(0x10, volume, vnode), random.bytes(104)));
                changes.push((key(0x04, volume, 0), random.bytes(41)));
                pending += 1;
            }
        }
        done += 1;
        if pending == MIX_BATCH {
            engine.commit(&changes)?;
            changes.clear();
            pending = 0;
        }
    }
    report(name, "mix, commit every 32 changes", done, start, cpu)?;
    println!("{name:<6} {:<28} {:>10} MB", "on disk", disk_bytes(folder)? >> 20);
    // Like a crash: nothing is closed.
    std::process::exit(0)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("a folder is needed")?;
    let number = |index: usize, default: u64| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (vnodes, load, mix) = (number(1, 20_000_000), number(2, 300), number(3, 30));
    if let Ok(engine) = std::env::var("KV_ENGINE") {
        let folder = Path::new(folder);
        if std::env::var_os("KV_OPEN").is_none() {
            let (load, mix) = (Duration::from_secs(load), Duration::from_secs(mix));
            return run(&engine, folder, vnodes as u32, load, mix);
        }
        let (start, cpu) = (Instant::now(), process()?.0);
        let mut store = open(&engine, folder)?;
        store.get(&key(0x10, 1, 1))?;
        let (now, resident) = process()?;
        println!(
            "{engine:<6} {:<28} {:>10.3} s {:>9.2} s CPU {:>8} MB anonymous",
            "open after a crash",
            start.elapsed().as_secs_f64(),
            now - cpu,
            resident >> 20
        );
        return Ok(());
    }
    let given: Vec<String> = arguments.iter().skip(4).cloned().collect();
    let engines = if given.is_empty() {
        ["redb", "fjall", "lmdb"].map(String::from).to_vec()
    } else {
        given
    };
    for engine in engines {
        let place = Path::new(folder).join(&engine);
        let _ = std::fs::remove_dir_all(&place);
        for phase in ["KV_RUN", "KV_OPEN"] {
            let mut arguments = arguments.clone();
            arguments[0] = place.display().to_string();
            std::process::Command::new(std::env::current_exe()?)
                .args(&arguments)
                .env("KV_ENGINE", &engine)
                .env(phase, "1")
                .status()?;
        }
        std::fs::remove_dir_all(&place)?;
    }
    Ok(())
}
