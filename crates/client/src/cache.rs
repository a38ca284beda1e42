//! The cache manager: all parts of a mounted name space except the interface to the kernel.
//!
//! A [`Cache`] holds vnodes ([`Vnode`]) and the promises that servers made about them. While a
//! promise holds, the cache answers requests for status, names and bytes itself. When the promise
//! is broken or has run out, the cache asks the server again. Cached data of the same data version
//! then stays valid. The cache keeps the bytes that programs write. It stores them on close, on
//! `fsync`, when there are many of them, and after a while.
//!
//! 1. *A break that races an answer wins*: the cache counts breaks. If a break arrives while an
//!    answer is under way, that answer gives no promise (`Vnode::apply_status`).
//! 2. *The kernel receives a notice* when something that it may hold is no longer true
//!    ([`Watcher`]). The server's break is answered after the notice has taken effect, or after
//!    [`SETTLE_TIME`]. The wait is limited because the kernel may hold a lock that only an answer
//!    of the same server releases. `coherence.rs` has the rule and its argument.
//! 3. *Dirty bytes are never dropped* while the file exists: after a failed store they stay dirty,
//!    and the store is retried.
//! 4. *A cache directory outlives the process* (crate `cellar_cachestore`). The next process uses
//!    the cached bytes whose version the server still has. It stores the bytes that were not stored
//!    yet (`recovery.rs`).
//! 5. *Bounded*: bytes by `Options::size`, vnodes by `Options::vnodes_max`. The least recently used
//!    are dropped first. A vnode that the kernel was shown counts as in use, so the cache asks the
//!    kernel to release some of them (`Watcher::crowded`).

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cellar_cachestore::{Body, Index, Space};
use cellar_rpc::Port;
use cellar_wire::ids::{AfsTime, AfsUuid, Fid, Uniquifier, VnodeId, VolumeId};
use tokio::sync::Notify;

use crate::cell::{Cell, CellName, Dns, KnownCells};
use crate::client::own_address;
use crate::error::{Error, Result};
use crate::reach::Reach;
use crate::rxafscb::CallbackService;
use crate::volume::Volume;

mod access;
mod attributes;
mod breaks;
mod cache_directory;
mod change;
mod coherence;
mod compare;
mod create_queue;
mod device_locations;
mod direct;
mod dirty_limit;
mod files;
mod full_disk;
mod given_up;
mod keep_alive;
mod kernel_state;
mod lease;
mod leases;
mod life;
mod loans;
mod local_create;
mod lock_order;
mod lock_table;
mod locks;
mod long_path;
mod manage;
mod metrics;
mod namespace;
mod owner_refusals;
mod pending_create;
mod range_locks;
mod read;
mod read_ahead;
mod reader;
mod recovery;
mod renew;
mod request;
mod settings;
mod silly_rename;
mod status;
mod store;
mod user;
mod verify;
mod vnode;
mod write_back;

use breaks::Breaks;
use cache_directory::{own_uuid, prepare, this_boot};
pub use cellar_cachestore::{Unstored, unstored_in};
use coherence::Audience;
pub use coherence::{Length, Notice, SETTLE_TIME, Watcher};
pub use compare::Before;
use dirty_limit::Brim;
pub use files::{Handle, Usage, Wanted};
use full_disk::Full;
use keep_alive::Alive;
pub use loans::Loan;
use local_create::Early;
use lock_order::{Ordered, TABLE, VNODES};
pub use lock_table::{Lock, LockFamily, LockKind, LockOwner};
pub use manage::Waiting;
use metrics::Counts;
pub use namespace::{Lookup, Root};
use range_locks::RangeLocks;
use settings::Settings;
pub use settings::{SIZE_MIN, SYSNAMES_MAX};
use user::Users;
pub use user::{Anonymous, Identities, User};
pub use vnode::{Attributes, Key, Listing, Vnode};
use write_back::Behind;

/// The options with which a cache is created.
#[derive(Clone, Debug)]
pub struct Options {
    /// The known cells. The first one is the home cell.
    pub cells: Vec<Cell>,
    /// The root directory of the name space.
    pub root: Root,
    /// The directory for cached bytes, used by this cache alone. `None`: the bytes are in memory.
    pub directory: Option<PathBuf>,
    /// The most bytes that the cache keeps. Writers wait before dirty bytes exceed half of it.
    pub size: u64,
    /// The most vnodes that the cache keeps, not counting those in use.
    pub vnodes_max: usize,
    /// The names that replace `@sys`. The cache takes the first one that exists.
    pub sysnames: Vec<String>,
    /// The time after which a program receives `ETIMEDOUT` while a server does not answer.
    pub patience: Duration,
    /// The interval between packets to each file server that has given a promise and receives
    /// nothing else. The packets make address translators on the path keep letting the server's
    /// calls through. `None`: no such packets.
    pub nat_ping: Option<Duration>,
    /// The local creates that are allowed in leased directories.
    pub leases: Leases,
}

/// The local creates that are allowed in leased directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leases {
    /// None. The cache asks for no lease.
    None,
    /// Files. The cache tells the server of a new file, together with its bytes, when the file is
    /// closed, or one second after its creation. Everything else is created by a call to the
    /// server.
    #[default]
    Files,
}

/// The clock for the times that are stored with files.
pub type Clock = fn() -> AfsTime;

/// The lock that a task holds while it fetches a chunk.
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
    /// The number of vnodes at which the cache drops some.
    crowd: AtomicUsize,
    /// Vnodes with dirty bytes or attributes.
    unstored: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    /// Vnodes on which a program of this machine has a lock.
    locked: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    range_locks: RangeLocks,
    /// Notified when a server that may keep locks for us was restarted.
    locks_lost: Arc<Notify>,
    /// Names of removed files that could not be removed at the last close.
    silly_names: Ordered<TABLE, Vec<life::SillyRename>>,
    /// Chunks that are being fetched, each with its lock.
    fetching: Ordered<TABLE, HashMap<(Key, u64), Turn>>,
    prefetches: Arc<tokio::sync::Semaphore>,
    /// Limits the fetches of small files ahead of requests for them.
    ahead: Arc<tokio::sync::Semaphore>,
    space: Arc<Space>,
    counts: Counts,
    behind: Behind,
    brim: Brim,
    full: Full,
    early: Early,
    reach: Arc<Reach>,
    alive: Alive,
    /// Servers that are too slow for a comparison of names.
    slow: compare::Slow,
    callbacks: OnceLock<Arc<CallbackService>>,
    /// The number of breaks of unknown vnodes. An answer that was under way at such a break may be
    /// about one of these vnodes.
    strays: AtomicU64,
    ticks: AtomicU64,
    /// The index of the files in the cache directory.
    index: Option<Arc<Index>>,
    audience: Audience,
    /// The lock of the cache directory, held for the life of the cache.
    _lock: Option<File>,
    me: Weak<Self>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// How long a call may hang while the host of the file server answers, in units of
/// [`Options::patience`]. The file server may itself have to wait for silent peers (clients with
/// promises to break, devices) before it goes on.
const HANG_TIMES: u32 = 4;

/// The most concurrent fetches ahead of readers.
const PREFETCHES_MAX: usize = 64;

impl Cache {
    /// Creates a cache that calls servers from `port`. Its callback service answers on that port
    /// from now on.
    ///
    /// # Errors
    /// `options` names no cell, or the directory cannot be used.
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
            ahead: Arc::new(tokio::sync::Semaphore::new(read_ahead::FETCHES_MAX)),
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

    /// Sets the watcher, which receives the notices. Only the first call has an effect.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.audience.set(watcher);
    }

    /// The cells that are known now.
    pub fn cells(&self) -> Vec<Cell> {
        self.cells.all()
    }

    /// The home cell.
    pub(crate) fn home(&self) -> &Cell {
        // The list is not empty: `Cache::new` checks it.
        &self.options.cells[0]
    }

    /// Makes the cache ask `dns` from now on for an unknown cell that the root or a mount point
    /// names.
    pub fn discover(&self, dns: Dns) {
        self.cells.discover(dns);
    }

    /// Adds other names of cells, which are valid from now on, in the root too.
    pub fn alias(&self, aliases: HashMap<CellName, CellName>) {
        self.cells.alias(aliases);
    }

    pub(crate) fn known_cells(&self) -> &Arc<KnownCells> {
        &self.cells
    }

    /// The options with which the cache was created.
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

    /// A reference to this cache for background tasks.
    pub(crate) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Returns the vnode of a fid. Creates it if the cache does not have it.
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
            None => Body::in_memory(space),
        };
        let left_over = body.recovered().is_some();
        let vnode = Vnode::new(key, volume.clone(), body);
        vnode.used.store(tick, Ordering::Relaxed);
        let vnode = Arc::new(vnode);
        vnodes.insert(key, vnode.clone());
        if left_over {
            self.unstored.lock().insert(key, vnode.clone());
        }
        Ok(vnode)
    }

    /// Drops the least recently used quarter of the vnodes, except those that other parts of the
    /// program still refer to. If these exceptions leave too many vnodes, the watcher is asked to
    /// release some of them. The next attempt follows when the number has grown by an eighth of the
    /// limit.
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
            // The files of the dropped vnodes are at rest now. There may be too many of them.
            index.evict(u64::MAX);
        }
    }

    /// Makes room when the cache exceeds its size. Drops the clean bytes of whole files, least
    /// recently used files first. Dirty bytes stay.
    pub(crate) fn make_room(&self, reading: Option<(&Vnode, Range<u64>)>) {
        let size = self.size();
        if self.used() <= size {
            return;
        }
        // One file alone may be larger than the cache. Then the bytes before the current range go,
        // and for backward reads the bytes far behind it.
        let around = reading.map(|(vnode, range)| {
            let ahead = (self.ahead_max() + 1) * read::CHUNK;
            let ahead = range.end.saturating_add(ahead);
            (vnode, [0..range.start, ahead..u64::MAX])
        });
        self.shrink(size - size / 10, size, around);
    }

    /// Drops bytes until the cache uses at most `goal`. Of the file in `around` only the given
    /// ranges are dropped, last of all, and only until `enough` is reached.
    fn shrink(&self, goal: u64, enough: u64, around: Option<(&Vnode, [Range<u64>; 2])>) {
        let used = || self.used();
        // Files at rest, whose vnodes are not in memory, are dropped first.
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

    /// The bytes that the cache keeps now.
    pub fn used(&self) -> u64 {
        self.space.used.load(Ordering::Relaxed)
    }

    /// Gives up the promises about these vnodes, which may no longer be true although no server
    /// broke them.
    pub(crate) fn end_promises(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            let owed = vnode.broken();
            self.send_notices(vnode, owed);
        }
    }

    /// Gives up all promises about a volume. The next use of each of its vnodes asks the server.
    pub fn distrust(&self, volume: VolumeId) {
        let all = Fid {
            volume,
            vnode: VnodeId(0),
            uniquifier: Uniquifier(0),
        };
        let _broken = self.break_promises(all);
    }

    /// Gives up the promises about all directories, so that names are looked up at the servers
    /// again.
    pub(crate) fn distrust_directories(&self) {
        let all = self.vnodes.lock();
        let directories = all.values().filter(|vnode| vnode.is_directory());
        let directories: Vec<_> = directories.cloned().collect();
        drop(all);
        self.end_promises(&directories.iter().collect::<Vec<_>>());
    }

    /// Ends the promise about a vnode, or the promises about all vnodes of a volume. Returns those
    /// that the cache has.
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
                None => self.send_notices(vnode, owed),
            }
        }
        broken
    }

    /// Stores all dirty vnodes if the servers take them, returns locks, and says goodbye to the
    /// file servers. Returns the vnodes that could not be stored, with the errors.
    pub async fn close(&self) -> Vec<(Arc<Vnode>, Error)> {
        self.remove_silly_names().await;
        let unstored: Vec<_> = self.unstored.lock().values().cloned().collect();
        let mut failed = self.store_all(unstored).await;
        for (vnode, error) in self.flush_creates().await {
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
