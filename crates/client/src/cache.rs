//! The cache manager: everything that a mounted name space needs but the kernel.
//!
//! A [`Cache`] knows vnodes ([`Vnode`]) and what servers promised about them. As long as a promise holds,
//! status, names and bytes are answered from here; when it is broken (or has run out) the server is asked
//! again, and what is still of the same data version is still good. Programs' writes are kept here and
//! stored on close, on `fsync`, when there are many, and after a while.
//!
//! 1. *A break that races an answer wins*: breaks are counted, and an answer that was under way when one
//!    came promises nothing (`Vnode::heard`).
//! 2. *The kernel is told* what it may hold and is no longer true ([`Watcher`]), and the server's
//!    break is answered after that, or a moment later: the kernel may hold a lock that only an
//!    answer of the same server releases. `coherence.rs` has the rule and its argument.
//! 3. *Dirty bytes are never dropped* while the file exists: a store that fails leaves them dirty, and they
//!    are tried again.
//! 4. *A directory's cache outlives the process* (`index.rs`): bytes of a version that the server still has are
//!    used again, and what had not been stored is stored (`leftover.rs`).
//! 5. *Bounded*: bytes by `Options::size`, vnodes by `Options::vnodes_max`; what is used least goes first. A kernel that is
//!    shown files counts as using them: it is asked to let go of some (`Watcher::crowded`).

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cellar_rpc::Port;
use cellar_wire::ids::{AfsTime, AfsUuid, Fid, Uniquifier, VnodeId, VolumeId};
use tokio::sync::Notify;

use crate::cell::{Cell, CellName, Dns, KnownCells};
use crate::client::own_address;
use crate::error::{Error, Result};
use crate::reach::Reach;
use crate::rxafscb::{CallbackService, Promises, Settled};
use crate::volume::Volume;

mod alive;
mod attributes;
mod backing;
mod behind;
mod body;
mod brim;
mod change;
mod coherence;
mod compare;
#[cfg(test)]
mod crashes;
mod direct;
mod early;
mod entry;
mod far;
mod files;
mod full;
mod gone;
mod index;
mod kept;
mod leases;
mod leftover;
mod life;
mod loans;
mod lock_order;
mod locks;
mod manage;
mod metrics;
mod names;
mod neighbours;
mod pending;
mod range_locks;
mod ranges;
mod read;
mod record;
mod renew;
mod settings;
mod silly_rename;
mod slots;
mod status;
mod store;
mod user;
mod verify;
mod vnode;

use alive::Alive;
use backing::Backing;
use behind::Behind;
use body::{Body, Space};
use brim::Brim;
use coherence::Audience;
pub use coherence::{Length, Notice, SETTLE_TIME, Watcher};
pub use compare::Before;
use early::Early;
pub use files::{Handle, Usage, Wanted};
use full::Full;
use index::Index;
pub use index::{Unstored, unstored_in};
pub use loans::Loan;
use lock_order::{Ordered, TABLE, VNODES};
pub use locks::{Lock, LockFamily, LockKind, LockOwner};
pub use manage::Waiting;
use metrics::Counts;
pub use names::{Found, Root};
use range_locks::RangeLocks;
use renew::Renewals;
use settings::Settings;
pub use settings::{SIZE_MIN, SYSNAMES_MAX};
use user::Users;
pub use user::{Anonymous, Identities, User};
pub use vnode::{Attributes, Key, Listing, Vnode};

/// What a cache is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cells that are known; the first is the home cell.
    pub cells: Vec<Cell>,
    /// What `/` of the name space is.
    pub root: Root,
    /// A directory for bytes, for this cache alone; without, they are in memory.
    pub directory: Option<PathBuf>,
    /// Bytes that are kept at most. Dirty ones make writers wait before they exceed half of it.
    pub size: u64,
    /// Vnodes that are remembered at most, but for those in use.
    pub vnodes_max: usize,
    /// What `@sys` stands for: the first of these that is there.
    pub sysnames: Vec<String>,
    /// How long a server may take before a program is told `ETIMEDOUT`.
    pub patience: Duration,
    /// How often something goes to each file server that has promised to call back, where nothing else does, so that
    /// address translators on the way let its calls through. `None`: never.
    pub nat_ping: Option<Duration>,
    /// What is made without asking in directories that a server leases to us.
    pub leases: Leases,
}

/// What is made without asking in directories that a server leases to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leases {
    /// Nothing; no lease is asked for.
    None,
    /// Files. The server is told of one, with its bytes, when it is closed, or a second after it
    /// was made. Everything else is
    /// made by asking.
    #[default]
    Files,
}

/// The clock for times that are stored with files.
pub type Clock = fn() -> AfsTime;

/// Whose turn it is to fetch a chunk.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// The cache manager.
pub struct Cache {
    options: Options,
    settings: Settings,
    cells: Arc<KnownCells>,
    port: Port,
    clock: Clock,
    identities: Arc<dyn Identities>,
    users: Users,
    vnodes: Ordered<VNODES, HashMap<Key, Arc<Vnode>>>,
    /// At how many vnodes some are forgotten.
    crowd: AtomicUsize,
    /// Those with something to store.
    unstored: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    /// Those that somebody here has a lock on.
    locked: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    range_locks: RangeLocks,
    /// A server that may keep locks for us was started again.
    locks_lost: Arc<Notify>,
    /// Names of removed files that could not be removed at the last close.
    silly_names: Ordered<TABLE, Vec<life::SillyRename>>,
    /// Chunks that are being fetched.
    fetching: Ordered<TABLE, HashMap<(Key, u64), Turn>>,
    prefetches: Arc<tokio::sync::Semaphore>,
    /// Small files that are fetched before they are asked for.
    ahead: Arc<tokio::sync::Semaphore>,
    space: Arc<Space>,
    counts: Counts,
    behind: Behind,
    brim: Brim,
    full: Full,
    early: Early,
    reach: Arc<Reach>,
    alive: Alive,
    /// Servers that are too slow for names to be compared.
    slow: compare::Slow,
    callbacks: OnceLock<Arc<CallbackService>>,
    /// Breaks of vnodes that were not known: answers under way then may be about them.
    strays: AtomicU64,
    ticks: AtomicU64,
    /// Of the directory's files.
    index: Option<Arc<Index>>,
    audience: Audience,
    /// Of the directory, for as long as this lives.
    _lock: Option<File>,
    me: Weak<Self>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// How long a file server whose host answers may hang, in units of [`Options::patience`]: it may have to wait for others that
/// are silent (clients to be called back, devices) before it goes on.
const HANG_TIMES: u32 = 4;

/// Fetches ahead of readers at a time.
const PREFETCHES_MAX: usize = 64;

impl Cache {
    /// A cache that calls servers from `port`, on which its callback service answers from now on.
    ///
    /// # Errors
    /// No cell is given, or the directory cannot be used.
    pub fn new(
        port: Port,
        options: Options,
        identities: Arc<dyn Identities>,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        if options.cells.is_empty() {
            return Err(Error::Local {
                what: "cache".to_owned(),
                cause: std::io::Error::new(std::io::ErrorKind::InvalidInput, "no cell is known"),
            });
        }
        let space = Arc::<Space>::default();
        let prepare = |directory: &PathBuf| {
            let opened = prepare(directory).and_then(|lock| {
                let index = Index::open(directory, this_boot()?, space.clone())?;
                Ok(((lock, own_uuid(directory)?), Arc::new(index)))
            });
            opened.map_err(|cause| Error::Local {
                what: format!("cache directory {}", directory.display()),
                cause,
            })
        };
        let directory = options.directory.as_ref().map(prepare).transpose()?;
        let (own, index) = directory.unzip();
        let (lock, uuid) = own.unzip();
        let cells = KnownCells::new(options.cells.clone());
        let settings = Settings::new(options.size, &options.sysnames);
        let crowd = AtomicUsize::new(options.vnodes_max);
        let first_server = options
            .cells
            .iter()
            .find_map(|cell| cell.location_servers().next());
        let cache = Arc::new_cyclic(|me| Self {
            options,
            settings,
            cells,
            port,
            clock,
            identities,
            users: Users::default(),
            vnodes: Ordered::default(),
            crowd,
            unstored: Ordered::default(),
            locked: Ordered::default(),
            range_locks: RangeLocks::default(),
            locks_lost: Arc::default(),
            silly_names: Ordered::default(),
            fetching: Ordered::default(),
            prefetches: Arc::new(tokio::sync::Semaphore::new(PREFETCHES_MAX)),
            ahead: Arc::new(tokio::sync::Semaphore::new(neighbours::FETCHES_MAX)),
            space,
            counts: Counts::default(),
            behind: Behind::default(),
            brim: Brim::default(),
            full: Full::default(),
            early: Early::default(),
            reach: Arc::default(),
            alive: Alive::default(),
            slow: compare::Slow::default(),
            callbacks: OnceLock::new(),
            strays: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            index,
            audience: Audience::default(),
            _lock: lock,
            me: me.clone(),
        });
        let uuid = AfsUuid(uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes()));
        let addresses = first_server.and_then(own_address).into_iter().collect();
        let promises = Arc::new(Breaks(Arc::downgrade(&cache)));
        let service = Arc::new(CallbackService::new(uuid, addresses, promises));
        let _first = cache.callbacks.set(service.clone());
        cache
            .port
            .add_service(&(service as Arc<dyn cellar_rpc::Service>));
        let listener = Arc::downgrade(&cache);
        (cache.reach).set_longest_idle(cache.options.patience * HANG_TIMES);
        cache.reach.set_patience(cache.options.patience);
        cache.reach.on_return(Box::new(move |server| {
            if let Some(cache) = listener.upgrade() {
                cache.promises_end(Some(server));
                cache.locks_lost.notify_one();
            }
        }));
        Ok(cache)
    }

    /// Who is told what is no longer true. The first call counts.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.audience.set(watcher);
    }

    /// The cells that are known by now.
    pub fn cells(&self) -> Vec<Cell> {
        self.cells.all()
    }

    /// The home cell.
    pub(crate) fn home(&self) -> &Cell {
        // There is one: `Cache::new` asks for it.
        &self.options.cells[0]
    }

    /// Cells that are not known are asked of `dns` from now on, where the root or a mount point names one.
    pub fn discover(&self, dns: Dns) {
        self.cells.discover(dns);
    }

    /// These are other names of cells, in the root too, from now on.
    pub fn alias(&self, aliases: HashMap<CellName, CellName>) {
        self.cells.alias(aliases);
    }

    pub(crate) fn known_cells(&self) -> &Arc<KnownCells> {
        &self.cells
    }

    /// What it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    pub(crate) fn identities(&self) -> &dyn Identities {
        &*self.identities
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) fn now(&self) -> AfsTime {
        (self.clock)()
    }

    /// This cache, for work in the background.
    pub(crate) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// The vnode of that fid, known or new.
    pub(crate) fn vnode(&self, volume: &Arc<Volume>, fid: Fid) -> Result<Arc<Vnode>> {
        let cell = self.cells.number(&volume.cell);
        let (cell, name) = cell.ok_or_else(|| Error::UnknownCell(volume.cell.clone()))?;
        let key = (cell, fid);
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        let mut vnodes = self.vnodes.lock();
        if let Some(vnode) = vnodes.get(&key) {
            vnode.used.store(tick, Ordering::Relaxed);
            return Ok(vnode.clone());
        }
        if vnodes.len() >= self.crowd.load(Ordering::Relaxed) {
            self.forget_vnodes(&mut vnodes);
        }
        let space = self.space.clone();
        let body = match &self.index {
            Some(index) => Body::of_disk(index, (name, fid), space),
            None => Body::new(Backing::memory(), space),
        };
        let left_over = body.left_over().is_some();
        let vnode = Vnode::new(key, volume.clone(), body);
        vnode.used.store(tick, Ordering::Relaxed);
        let vnode = Arc::new(vnode);
        vnodes.insert(key, vnode.clone());
        if left_over {
            self.unstored.lock().insert(key, vnode.clone());
        }
        Ok(vnode)
    }

    /// Drops the quarter that was used least, of those that nobody else holds. Where that are not enough, whoever shows the
    /// others is asked to let go of some; they are looked at again when there are some more.
    fn forget_vnodes(&self, vnodes: &mut HashMap<Key, Arc<Vnode>>) {
        let mut ages: Vec<u64> = vnodes
            .values()
            .map(|vnode| vnode.used.load(Ordering::Relaxed))
            .collect();
        let quarter = ages.len() / 4;
        if ages.is_empty() {
            return;
        }
        let (_, limit, _) = ages.select_nth_unstable(quarter);
        let limit = *limit;
        let mut held = Vec::new();
        vnodes.retain(|_, vnode| {
            if vnode.used.load(Ordering::Relaxed) > limit {
                return true;
            }
            let is_held = Arc::strong_count(vnode) > 1;
            if is_held {
                held.push(vnode.clone());
            }
            is_held
        });
        let (most, few) = (self.options.vnodes_max, self.options.vnodes_max / 8);
        let crowd = most.max(vnodes.len() + few);
        self.crowd.store(crowd, Ordering::Relaxed);
        if vnodes.len() + few > most {
            self.audience.crowded(held);
        }
        if let Some(index) = &self.index {
            // Their files rest; there may be too many of them.
            index.evict(u64::MAX);
        }
    }

    /// Makes room when there is more than may be: whole files, those used least first; dirty bytes stay.
    pub(crate) fn make_room(&self, reading: Option<(&Vnode, Range<u64>)>) {
        let size = self.size();
        if self.used() <= size {
            return;
        }
        // What was read of a file that alone is larger than the cache, and where that is read backwards what lies
        // farther on.
        let around = reading.map(|(vnode, range)| {
            let ahead = (self.ahead_max() + 1) * read::CHUNK;
            let ahead = range.end.saturating_add(ahead);
            (vnode, [0..range.start, ahead..u64::MAX])
        });
        self.shrink(size - size / 10, size, around);
    }

    /// The same, to `goal`. Of one file nothing goes but these ranges, as the last, until it is `enough`.
    fn shrink(&self, goal: u64, enough: u64, around: Option<(&Vnode, [Range<u64>; 2])>) {
        let used = || self.used();
        // What has not been asked for since it was left comes first.
        if let Some(index) = &self.index {
            index.evict(goal);
        }
        let mut all: Vec<_> = {
            let vnodes = self.vnodes.lock();
            let with_bytes = vnodes.values().filter(|v| !v.is_directory());
            with_bytes.cloned().collect()
        };
        all.sort_by_key(|vnode| vnode.used.load(Ordering::Relaxed));
        let current = around.as_ref().map(|(vnode, _)| vnode.key);
        for vnode in &all {
            if used() <= goal {
                return;
            }
            if current != Some(vnode.key) {
                let mut body = vnode.body.lock();
                if body.valid_bytes() > 0 && !body.is_lent() {
                    body.forget_clean();
                }
            }
        }
        let Some((vnode, ranges)) = around else {
            return;
        };
        for range in ranges {
            if used() <= enough {
                return;
            }
            if let Err(cause) = vnode.body.lock().forget_range(range) {
                tracing::warn!(%cause, "the cache cannot make room");
            }
        }
    }

    /// Bytes that are kept now.
    pub fn used(&self) -> u64 {
        self.space.used.load(Ordering::Relaxed)
    }

    /// What was promised about these may no longer be true, without anybody telling.
    pub(crate) fn doubt(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            let owed = vnode.broken();
            self.pay(vnode, owed);
        }
    }

    /// Nothing that is known of a volume is believed any more: its files are asked about again.
    pub fn distrust(&self, volume: VolumeId) {
        let all = Fid {
            volume,
            vnode: VnodeId(0),
            uniquifier: Uniquifier(0),
        };
        let _broken = self.break_promises(all);
    }

    /// What names lead to is asked for again.
    pub(crate) fn distrust_directories(&self) {
        let all = self.vnodes.lock();
        let directories = all.values().filter(|vnode| vnode.is_directory());
        let directories: Vec<_> = directories.cloned().collect();
        drop(all);
        self.doubt(&directories.iter().collect::<Vec<_>>());
    }

    /// Ends what was promised about a vnode, or about all of a volume. Answers those that are known.
    fn break_promises(&self, fid: Fid) -> Vec<Arc<Vnode>> {
        self.counts.breaks.fetch_add(1, Ordering::Relaxed);
        let broken: Vec<_> = {
            let vnodes = self.vnodes.lock();
            if fid.vnode == VnodeId(0) {
                let of_it = vnodes.values().filter(|v| v.key.1.volume == fid.volume);
                of_it.cloned().collect()
            } else {
                let cells = 0..self.cells.len() as u32;
                cells
                    .filter_map(|cell| vnodes.get(&(cell, fid)).cloned())
                    .collect()
            }
        };
        if broken.is_empty() {
            self.strays.fetch_add(1, Ordering::AcqRel);
        }
        for vnode in &broken {
            let (owed, before) = match fid.vnode == VnodeId(0) {
                true => (vnode.broken(), None),
                false => vnode.broken_by_server(),
            };
            self.lease_ends(vnode);
            match before {
                Some(before) => self.tell_names(vnode, before),
                None => self.pay(vnode, owed),
            }
        }
        broken
    }

    /// Stores what is dirty, as long as that works, gives back locks, and takes leave of the file servers.
    /// Answers what could not be stored.
    pub async fn close(&self) -> Vec<(Arc<Vnode>, Error)> {
        self.remove_silly_names().await;
        let unstored: Vec<_> = self.unstored.lock().values().cloned().collect();
        let mut failed = self.store_all(unstored).await;
        for (vnode, error) in self.tell_all().await {
            if !failed.iter().any(|(known, _)| Arc::ptr_eq(known, &vnode)) {
                failed.push((vnode, error));
            }
        }
        for (vnode, _) in &failed {
            self.sync(vnode).await;
        }
        let locked: Vec<_> = self.locked.lock().values().cloned().collect();
        for vnode in locked {
            self.forget_locks(&vnode, true).await;
        }
        for user in self.users.all() {
            user.client().goodbye().await;
        }
        if let Some(index) = &self.index {
            let mut all: Vec<_> = self.vnodes.lock().values().cloned().collect();
            all.sort_by_key(|vnode| vnode.used.load(Ordering::Relaxed));
            let numbers = all.iter().filter_map(|vnode| vnode.body.lock().number());
            index.close(&numbers.collect::<Vec<_>>());
        }
        failed
    }
}

/// Says that a directory is a cache's, and is locked by whoever uses it.
const MARK: &str = "cellar-cache";

/// The machine's number for the time since it was started. Source: Linux, random(4).
fn this_boot() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let number = uuid::Uuid::parse_str(text.trim()).map_err(std::io::Error::other)?;
    Ok(*number.as_bytes())
}

/// As whom servers know the cache in a directory. The next one has it too: numbers that were reserved for this one, under which it
/// made files that no server was told of, are that one's.
fn own_uuid(directory: &Path) -> std::io::Result<[u8; 16]> {
    let path = directory.join("uuid");
    if let Ok(bytes) = std::fs::read(&path)
        && let Ok(uuid) = bytes.try_into()
    {
        return Ok(uuid);
    }
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    cellar_private::replace(&path, &uuid)?;
    Ok(uuid)
}

/// Makes a directory usable, for us alone. One that holds something else is left as it is.
fn prepare(directory: &Path) -> std::io::Result<File> {
    cellar_private::directory(directory)?;
    let mark = directory.join(MARK);
    let refuse = |why: &str| Err(std::io::Error::other(why));
    if !mark.exists() && std::fs::read_dir(directory)?.next().is_some() {
        return refuse("it is not empty, and not the cache of a mount");
    }
    // Not before it is known that the directory is ours.
    if let Some(found) = cellar_private::narrow(directory)? {
        tracing::warn!(
            directory = %directory.display(), %found,
            "other accounts could use this; their rights are taken away"
        );
    }
    let lock = cellar_private::create(&mark)?;
    if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return refuse("another mount uses it");
    }
    Ok(lock)
}

/// What file servers tell of promises.
struct Breaks(Weak<Cache>);

impl Breaks {
    async fn settled(&self) {
        if let Some(cache) = self.0.upgrade() {
            cache.audience.settled().await;
        }
    }
}

impl Promises for Breaks {
    fn broken(&self, fids: &[Fid]) -> Settled<'_> {
        let mut renewals = Renewals::default();
        if let Some(cache) = self.0.upgrade() {
            for fid in fids {
                for vnode in cache.break_promises(*fid) {
                    renewals.renew(&cache, &vnode);
                }
            }
        }
        Box::pin(async move {
            tokio::join!(self.settled(), renewals.done());
        })
    }

    fn all_broken(&self, _server: SocketAddr) -> Settled<'_> {
        if let Some(cache) = self.0.upgrade() {
            cache.reach.was_forgotten();
            cache.locks_lost.notify_one();
            // It may call from another of its addresses than those that we call: all are asked again.
            cache.promises_end(None);
        }
        Box::pin(self.settled())
    }
}
