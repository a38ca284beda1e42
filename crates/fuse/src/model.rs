//! Two machines, a file server, and programs that randomly open, read, write, truncate, append and
//! lock. Each program must see what the other machine has closed, or stored before it released a
//! lock.
//!
//! The server and both cache managers are real. The kernels are simulated ([`kernel`]), and delay
//! requests, answers and notices by a seed, which is printed. `COHERENCE_SEED=n` runs one seed,
//! `COHERENCE_SEEDS=n` that many from 1 on.
//!
//! 1. A file that is read while no change is under way is exactly what was closed last. That holds
//!    for a new open and for a descriptor that was open before, by every [`ReadMethod`].
//! 2. A file that is read under a lock is exactly what the last holder left. All programs lock.
//!
//! A run on a machine so slow that a server or a kernel was late proves nothing. It does not count,
//! and another seed is tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cellar_cachemanager::{Anonymous, Cache, Lock, LockFamily, LockKind, LockOwner};
use cellar_testcell::{NOW, TestCell};
use cellar_wire::acl::Rights;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::inodes::{Inodes, Node};
use crate::mount::Options;
use crate::notices::{Kernel, Notices};
use crate::requests::Requests;

mod chance;
mod kernel;

use chance::Chance;
use kernel::{Descriptor, ReadMethod, SimulatedDevice, SimulatedKernel};

const OPTIONS: Options = Options {
    all_users: true,
    threads: 1,
    suid: false,
};
/// Threads of one machine that write notices.
const WRITERS: usize = 4;
/// Number of seeds of a run.
const SEEDS: u64 = 6;
/// The number of discarded runs that are allowed for each that counts.
const SLOW: u64 = 4;
/// Steps of each program.
const STEPS: u64 = 25;
/// The longest file.
const LONGEST: u64 = 1_000;
const ALL: (u64, u64) = (0, u64::MAX);

/// One of the two machines.
struct Machine {
    name: char,
    requests: Arc<Requests>,
    paper: Arc<SimulatedKernel>,
    notices: Arc<Notices>,
    threads: Vec<std::thread::JoinHandle<()>>,
    keeping: tokio::task::JoinHandle<()>,
}

impl Machine {
    async fn start(
        name: char,
        cell: &TestCell,
        chance: &Arc<Chance>,
        late: &Arc<AtomicBool>,
    ) -> Self {
        let options = cell.cache_options();
        let identities = Arc::new(Anonymous);
        let cache = Cache::new(cell.port(), options, identities, || NOW).expect("cache");
        let user = cache.user(0).await.expect("user");
        let root = cache
            .names()
            .root(&user)
            .await
            .expect("root")
            .expect("a volume");
        let inodes = Arc::new(Inodes::new(Node::Vnode(root)));
        let notices = Notices::new();
        cache.watch(notices.clone());
        let keeping = tokio::spawn(cache.clone().keep());
        let requests = Arc::new(Requests::new(cache, inodes.clone(), &OPTIONS));
        let paper = SimulatedKernel::new(chance.clone(), late.clone());
        let kernel = Arc::new(Kernel::new(SimulatedDevice(paper.clone()), true));
        requests.set_kernel(kernel.clone());
        let write = |_| {
            let (notices, kernel, inodes) = (notices.clone(), kernel.clone(), inodes.clone());
            std::thread::spawn(move || notices.run(&kernel, &inodes, |_| None))
        };
        let threads = (0..WRITERS).map(write).collect();
        Self {
            name,
            requests,
            paper,
            notices,
            threads,
            keeping,
        }
    }

    fn end(self) {
        self.keeping.abort();
        self.notices.end();
        for thread in self.threads {
            thread.join().expect("a thread that writes notices");
        }
    }
}

/// The versions of a file from the first on. The last one may be about to be closed.
struct History {
    name: &'static str,
    versions: Mutex<(Vec<Vec<u8>>, usize)>,
    /// The machine that wrote each version.
    writers: Mutex<Vec<char>>,
    /// Held by the program that changes the file.
    turn: tokio::sync::Mutex<()>,
    exact: AtomicU64,
}

impl History {
    fn new(name: &'static str, first: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            name,
            versions: Mutex::new((vec![first], 0)),
            writers: Mutex::new(vec!['A']),
            turn: tokio::sync::Mutex::default(),
            exact: AtomicU64::new(0),
        })
    }

    fn newest(&self) -> Vec<u8> {
        self.versions.lock().0.last().expect("a version").clone()
    }

    fn begins(&self, writer: char, version: Vec<u8>) {
        self.versions.lock().0.push(version);
        self.writers.lock().push(writer);
    }

    fn is_done(&self) {
        let mut versions = self.versions.lock();
        versions.1 = versions.0.len() - 1;
    }

    /// Returns whether the file became shorter from one version to another.
    fn shrank(&self, from: usize, to: usize) -> bool {
        let lengths = &self.versions.lock().0;
        let mut pairs = lengths.windows(2).take(to).skip(from);
        pairs.any(|pair| pair[1].len() < pair[0].len())
    }

    /// The last version that was closed.
    fn closed(&self) -> usize {
        self.versions.lock().1
    }

    /// Checks what was read since `closed` was the last version. Rule 1.
    fn check(&self, closed: usize, found: &[u8], what: &str) -> Option<String> {
        let versions = self.versions.lock();
        if versions.0.len() - 1 != closed {
            return None;
        }
        self.exact.fetch_add(1, Ordering::Relaxed);
        let expected = &versions.0[closed];
        (expected != found).then(|| {
            let which = versions.0.iter().rposition(|version| version == found);
            let differ = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            let first = found.iter().zip(expected).position(|(a, b)| a != b);
            // The version of each run of bytes.
            let of = |at: usize| versions.0.iter().rposition(|v| v.get(at) == Some(&found[at]));
            let from = first.map(|at| (at, found[at], of(at)));
            let writer = self.writers.lock()[closed];
            let (found, expected) = (found.len(), expected.len());
            format!(
                "{what} {}: {found} bytes instead of {expected}; it was so in version {which:?} of {closed}, which machine {writer} wrote; {differ} differ, the first at {from:?}",
                self.name
            )
        })
    }
}

/// The shared state of all programs of a run.
struct World {
    chance: Arc<Chance>,
    plain: Arc<History>,
    /// The contents of the file under locks.
    locked: tokio::sync::Mutex<Vec<u8>>,
    changes: AtomicU64,
    problems: Mutex<Vec<String>>,
}

impl World {
    fn problem(&self, problem: Option<String>) {
        self.problems.lock().extend(problem);
    }

    /// Bytes that never occurred before.
    fn text(&self, length: u64) -> Vec<u8> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        let byte = |at: u64| 33 + ((number * 31 + at * 7) % 90) as u8;
        (0..length).map(byte).collect()
    }

    fn way(&self) -> ReadMethod {
        [
            ReadMethod::Read,
            ReadMethod::Seek,
            ReadMethod::Stat,
            ReadMethod::Send,
        ][self.chance.below(4) as usize]
    }

    /// Another length, and the position from which the bytes differ.
    fn next(&self, old: &[u8]) -> (Vec<u8>, u64) {
        let old_length = old.len() as u64;
        let length = match self.chance.below(3) {
            0 => old_length + 1 + self.chance.below(200),
            1 => 1 + self.chance.below(old_length.max(1)),
            _ => old_length,
        };
        let length = if length > LONGEST { 10 } else { length };
        let from = match self.chance.below(2) {
            0 => 0,
            _ => old_length.min(length),
        };
        let text = self.text(length);
        let kept = &old[..from as usize];
        (
            kept.iter()
                .copied()
                .chain(text)
                .take(length as usize)
                .collect(),
            from,
        )
    }
}

/// Changes a file from `old` to `new`, whose bytes differ from `from` on.
async fn change(
    machine: &Machine,
    world: &World,
    file: &Descriptor,
    (old, new): (&[u8], &[u8]),
    from: u64,
) {
    let (paper, requests) = (&machine.paper, &machine.requests);
    let length = new.len() as u64;
    let cuts = (new.len() < old.len()).then_some(length);
    let first = world.chance.below(2) == 0;
    if let Some(length) = cuts.filter(|_| first) {
        paper.truncate(requests, file, length).await;
    }
    let data = &new[from as usize..];
    let appends = from == old.len() as u64 && world.chance.below(2) == 0;
    if !data.is_empty() {
        paper.write(requests, file, from, data, appends).await;
    }
    if let Some(length) = cuts.filter(|_| !first) {
        paper.truncate(requests, file, length).await;
    }
}

/// Opens, changes and closes a file.
async fn writes(machine: Arc<Machine>, world: Arc<World>) {
    for _ in 0..STEPS {
        tokio::time::sleep(Duration::from_millis(world.chance.below(30))).await;
        let history = &world.plain;
        let _alone = history.turn.lock().await;
        let old = history.newest();
        let (new, from) = world.next(&old);
        let opened = machine.paper.open(&machine.requests, b"plain").await;
        let file = opened.expect("the file is there");
        history.begins(machine.name, new.clone());
        change(&machine, &world, &file, (&old, &new), from).await;
        machine.paper.close(&machine.requests, file).await;
        history.is_done();
    }
}

/// Reads through new opens, and through one that stays open.
async fn reads(machine: Arc<Machine>, world: Arc<World>) {
    let (paper, requests, history) = (&machine.paper, &machine.requests, &world.plain);
    let kept = paper
        .open(requests, b"plain")
        .await
        .expect("the file is there");
    let mut looked = 0;
    for _ in 0..STEPS * 3 {
        tokio::time::sleep(Duration::from_millis(world.chance.below(12))).await;
        let closed = history.closed();
        let mut way = world.way();
        if world.chance.below(10) == 0 {
            paper.evict(kept.inode);
        }
        if world.chance.below(2) == 0 {
            // If nothing asks about a file, the kernel does not learn its length for ever. And two
            // reads at a time past the end of a shortened file may leave zeros after its end.
            if closed > looked + 2 || history.shrank(looked, closed) {
                way = ReadMethod::Stat;
            }
            let found = paper.read(requests, &kept, way).await.expect("read");
            let what = format!(
                "machine {}, a descriptor that stays, {way:?},",
                machine.name
            );
            world.problem(history.check(closed, &found, &what));
            looked = closed;
        } else {
            let file = paper.open(requests, b"plain").await;
            let file = file.expect("it is there");
            if way == ReadMethod::Send && history.shrank(looked, closed) {
                way = ReadMethod::Stat;
            }
            let found = paper.read(requests, &file, way).await.expect("read");
            let what = format!("machine {}, a new open, {way:?},", machine.name);
            world.problem(history.check(closed, &found, &what));
            paper.close(requests, file).await;
        }
    }
    paper.close(requests, kept).await;
}

/// Reads and changes a file under locks, through one descriptor.
async fn locks(machine: Arc<Machine>, world: Arc<World>) {
    let (paper, requests) = (&machine.paper, &machine.requests);
    let file = paper.open(requests, b"locked").await.expect("it is there");
    let owner = LockOwner {
        family: LockFamily::Flock,
        number: u64::from(u32::from(machine.name)),
    };
    let pid = std::process::id();
    let caller = Caller::new(pid, 0, &requests.interrupts);
    for _ in 0..STEPS {
        tokio::time::sleep(Duration::from_millis(world.chance.below(15))).await;
        // One after the other: a program that waits for a lock of another machine asks only twice a
        // second.
        let mut contents = world.locked.lock().await;
        let lock = Lock {
            owner,
            pid,
            first: ALL.0,
            last: ALL.1,
            kind: LockKind::Write,
            open_file: file.handle,
        };
        let locked = requests.set_lock(file.handle, lock, Some(&caller)).await;
        locked.expect("a lock");
        let way = world.way();
        let found = paper.read(requests, &file, way).await.expect("read");
        if found != *contents {
            let problem = format!(
                "machine {}, under a lock, {way:?}: {} bytes instead of {}",
                machine.name,
                found.len(),
                contents.len()
            );
            world.problem(Some(problem));
        }
        if world.chance.below(4) != 0 {
            let (new, from) = world.next(&contents);
            change(&machine, &world, &file, (&contents, &new), from).await;
            *contents = new;
        }
        let unlocked = requests.unlock(file.handle, owner, ALL).await;
        unlocked.expect("a release of the lock");
    }
    paper.close(requests, file).await;
}

/// The result of a seed.
#[derive(Debug)]
enum Outcome {
    /// This many reads were compared.
    Right(u64),
    /// The machine is too slow.
    Late,
    Wrong(Vec<String>),
}

async fn run(seed: u64) -> Outcome {
    let cell = TestCell::start(Rights::ALL);
    let (chance, late) = (
        Arc::new(Chance::new(seed)),
        Arc::new(AtomicBool::new(false)),
    );
    let first = b"the first".to_vec();
    let world = Arc::new(World {
        chance: chance.clone(),
        plain: History::new("plain", first.clone()),
        locked: tokio::sync::Mutex::new(first.clone()),
        changes: AtomicU64::new(0),
        problems: Mutex::default(),
    });
    let mut machines = Vec::new();
    for name in ['A', 'B'] {
        machines.push(Arc::new(Machine::start(name, &cell, &chance, &late).await));
    }
    for name in ["plain", "locked"] {
        let Machine {
            paper, requests, ..
        } = &*machines[0];
        let file = paper.create(requests, name.as_bytes()).await;
        paper.write(requests, &file, 0, &first, false).await;
        paper.close(requests, file).await;
    }
    let mut programs = JoinSet::new();
    for machine in &machines {
        programs.spawn(writes(machine.clone(), world.clone()));
        programs.spawn(reads(machine.clone(), world.clone()));
        programs.spawn(reads(machine.clone(), world.clone()));
        programs.spawn(locks(machine.clone(), world.clone()));
    }
    while let Some(ended) = programs.join_next().await {
        ended.expect("a program");
    }
    let late = late.load(Ordering::Acquire) || cell.late_breaks() > 0;
    for machine in machines {
        let machine = Arc::into_inner(machine).expect("the programs have ended");
        tokio::task::spawn_blocking(|| machine.end())
            .await
            .expect("a machine");
    }
    cell.end();
    let problems = std::mem::take(&mut *world.problems.lock());
    let compared = world.plain.exact.load(Ordering::Relaxed);
    match problems {
        _ if late => Outcome::Late,
        problems if problems.is_empty() => Outcome::Right(compared),
        problems => Outcome::Wrong(problems),
    }
}

#[test]
fn each_machine_sees_what_the_other_has_closed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, wanted) = match number("COHERENCE_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("COHERENCE_SEEDS").unwrap_or(SEEDS)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime");
    let (mut right, mut compared) = (0, 0);
    for seed in first..first + wanted * (SLOW + 1) {
        match runtime.block_on(run(seed)) {
            Outcome::Right(exact) => (right, compared) = (right + 1, compared + exact),
            Outcome::Late => println!("seed {seed}: this machine is too slow, it does not count"),
            Outcome::Wrong(problems) => {
                panic!(
                    "COHERENCE_SEED={seed}: {} wrong: {problems:#?}",
                    problems.len()
                );
            }
        }
        if right == wanted {
            break;
        }
    }
    println!("{right} seeds, {compared} reads while nothing was changed");
    assert!(right > 0 && compared > 0, "no run counts");
}
