//! The cache manager: all parts of a mounted name space except the interface to the kernel.
//!
//! A [`Cache`] holds vnodes ([`Vnode`]) and the promises that servers made about them. While a
//! promise holds, the cache answers requests for status, names and bytes itself. When the promise
//! is broken or has run out, the cache asks the server again. Cached data of the same data version
//! then stays valid. The cache keeps the bytes that programs write. It stores them on close, on
//! `fsync`, when there are many of them, and after a while.
//!
//! 1. *A break that races an answer wins*: the cache counts breaks. If a break arrives while an
//!    answer is under way, that answer gives no promise (`promises.rs`).
//! 2. *The kernel receives a notice* when something that it may hold is no longer true
//!    ([`Watcher`]). The server's break is answered after the notice has taken effect, or after
//!    [`NOTICE_TIMEOUT`]. The wait is limited because the kernel may hold a lock that only an
//!    answer of the same server releases. `coherence.rs` has the rule and its argument.
//! 3. *Dirty bytes are never dropped* while the file exists: after a failed store they stay dirty,
//!    and the store is retried.
//! 4. *A cache directory outlives the process* (crate `cellar_cachestore`). The next process uses
//!    the cached bytes whose version the server still has. It stores the bytes that were not stored
//!    yet (`recovery.rs`).
//! 5. *Bounded*: bytes by `Options::size`, vnodes by `Options::vnodes_max`. The least recently used
//!    are dropped first. A vnode that the kernel was shown counts as in use, so the cache asks the
//!    kernel to release some of them (`Watcher::crowded`).

//!
//! The work is divided by owner of state. Each owner holds only owners that stand above it in this
//! table, so the arrows of the code have one direction:
//!
//! | owner | state | task |
//! | --- | --- | --- |
//! | `Environment` | settings, users, cells, paths to servers, figures | what all owners need |
//! | `VnodeTable` | the vnodes, and those that are not stored | finds vnodes, drops old ones |
//! | [`Promises`] | breaks, servers with promises | applies answers, sends notices to the kernel |
//! | [`Creates`] | leases, queues of pending creates | creates files locally |
//! | [`Statuses`] | the callback service | asks servers for statuses, names and bytes |
//! | [`Changes`] | none | calls that change names and attributes |
//! | [`Reads`] | chunks that are being fetched, a full disk | reads of programs, read-ahead |
//! | [`WriteBack`] | the queue of stores, volumes that refuse them | changes of bytes, stores |
//! | [`FileLocks`] | locked vnodes, our number at servers | locks of programs |
//! | [`Names`] | names of removed files, slow servers | the name space and its changes |
//!
//! [`Cache`] is their sum. It makes them, starts and ends the work, and opens files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cellar_cachestore::Index;
use cellar_rpc::Port;
use cellar_wire::ids::{AfsTime, AfsUuid};

use cellar_client::cell::{Cell, CellName, Dns};
use cellar_client::client::own_address;
use cellar_client::error::{Error, Result};
use cellar_client::rxafscb::CallbackService;

mod breaks;
mod broken_directory;
mod cache_directory;
mod changes;
mod creates;
mod environment;
mod file_locks;
mod files;
mod life;
mod loans;
mod lock_order;
mod management;
mod metrics;
mod names;
mod owner_refusals;
mod periodic;
mod promises;
mod reads;
mod request;
mod statuses;
mod user;
mod vnode;
mod vnode_table;
mod watcher;
mod write_back;

use breaks::Breaks;
pub use broken_directory::Before;
use cache_directory::{own_uuid, prepare, this_boot};
pub use cellar_cachestore::{Unstored, unstored_in};
pub use changes::Changes;
pub use creates::Creates;
use environment::Environment;
pub use environment::{SIZE_MIN, SYSNAMES_MAX};
pub use file_locks::FileLocks;
pub use file_locks::lock_table::{Lock, LockFamily, LockKind, LockOwner};
pub use files::{Handle, NewAttributes, Usage};
pub use loans::Loan;
pub use management::{Management, UnstoredFile};
pub use names::{Lookup, Names, Root};
pub use promises::Promises;
pub use reads::Reads;
pub use statuses::Statuses;
pub use statuses::cached_names::Listing;
pub use user::{Anonymous, Identities, User};
pub use vnode::{Attributes, Key, Vnode};
use vnode_table::VnodeTable;
pub use watcher::{Length, NOTICE_TIMEOUT, Notice, Watcher};
pub use write_back::WriteBack;

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

/// The cache manager.
pub struct Cache {
    env: Arc<Environment>,
    vnodes: Arc<VnodeTable>,
    promises: Arc<Promises>,
    creates: Arc<Creates>,
    statuses: Arc<Statuses>,
    reads: Arc<Reads>,
    write_back: Arc<WriteBack>,
    locks: Arc<FileLocks>,
    names: Arc<Names>,
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
        let env = Arc::new(Environment::new(port, options, identities, clock));
        let prepare = |directory: &PathBuf| {
            let opened = prepare(directory).and_then(|lock| {
                let index = Index::open(directory, this_boot()?, env.space.clone())?;
                Ok(((lock, own_uuid(directory)?), Arc::new(index)))
            });
            opened.map_err(|cause| Error::Local {
                what: format!("cache directory {}", directory.display()),
                cause,
            })
        };
        let directory = env.options.directory.as_ref().map(prepare).transpose()?;
        let (own, index) = directory.unzip();
        let (lock, uuid) = own.unzip();
        let vnodes = Arc::new(VnodeTable::new(env.clone(), index, lock));
        let promises = Arc::new(Promises::new(env.clone(), vnodes.clone()));
        let creates = Creates::new(env.clone(), vnodes.clone(), promises.clone());
        let statuses = Statuses::new(
            env.clone(),
            vnodes.clone(),
            promises.clone(),
            creates.clone(),
        );
        let statuses = Arc::new(statuses);
        let changes = Arc::new(Changes::new(&statuses));
        let reads = Reads::new(&statuses);
        let write_back = WriteBack::new(&reads, changes);
        let cache = Arc::new(Self {
            locks: Arc::new(FileLocks::new(&write_back)),
            names: Names::new(&write_back),
            env,
            vnodes,
            promises,
            creates,
            statuses,
            reads,
            write_back,
        });
        let uuid = AfsUuid(uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes()));
        cache.answer_servers(uuid);
        Ok(cache)
    }

    /// Starts the callback service, and listens to servers that return.
    fn answer_servers(self: &Arc<Self>, uuid: AfsUuid) {
        let cells = &self.env.options.cells;
        let first = cells.iter().find_map(|cell| cell.location_servers().next());
        let addresses = first.and_then(own_address).into_iter().collect();
        let promises = Arc::new(Breaks(Arc::downgrade(self)));
        let service = Arc::new(CallbackService::new(uuid, addresses, promises));
        self.statuses.answer_by(service.clone());
        self.env
            .port
            .add_service(&(service as Arc<dyn cellar_rpc::Service>));
        let reach = &self.env.reach;
        reach.set_longest_idle(self.env.options.patience * HANG_TIMES);
        reach.set_patience(self.env.options.patience);
        let listener = Arc::downgrade(self);
        reach.on_return(Box::new(move |server| {
            if let Some(cache) = listener.upgrade() {
                cache.statuses.promises_end(Some(server));
                cache.locks.may_be_lost();
            }
        }));
    }

    /// Sets the watcher, which receives the notices. Only the first call has an effect.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.env.audience.set(watcher);
    }

    /// The cells that are known now.
    pub fn cells(&self) -> Vec<Cell> {
        self.env.cells.all()
    }

    /// Makes the cache ask `dns` from now on for an unknown cell that the root or a mount point
    /// names.
    pub fn discover(&self, dns: Dns) {
        self.env.cells.discover(dns);
    }

    /// Adds other names of cells, which are valid from now on, in the root too.
    pub fn alias(&self, aliases: std::collections::HashMap<CellName, CellName>) {
        self.env.cells.alias(aliases);
    }

    /// The reachability and the names of servers.
    pub fn reach(&self) -> &Arc<cellar_client::reach::Reach> {
        &self.env.reach
    }

    /// The options with which the cache was created.
    pub fn options(&self) -> &Options {
        &self.env.options
    }

    /// Returns the identity with which servers are called for a user of this machine.
    ///
    /// # Errors
    /// No cell is known.
    pub async fn user(&self, uid: u32) -> Result<Arc<User>> {
        self.env.user(uid).await
    }

    /// Notes that a user of this machine has logged in or out. The user's next request reads its
    /// tokens.
    pub fn look_again(&self, uid: u32) {
        self.env.look_again(uid);
    }

    /// The promises, and the notices to the kernel.
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// Files that the servers do not know yet.
    pub fn creates(&self) -> &Creates {
        &self.creates
    }

    /// Statuses, names and rights.
    pub fn statuses(&self) -> &Statuses {
        &self.statuses
    }

    /// Attributes and bytes.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Stores.
    pub fn write_back(&self) -> &WriteBack {
        &self.write_back
    }

    /// Locks.
    pub fn locks(&self) -> &Arc<FileLocks> {
        &self.locks
    }

    /// The name space.
    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Requests of an administrator.
    pub fn management(&self) -> Management<'_> {
        Management(self)
    }

    /// Stores all dirty vnodes if the servers take them, returns locks, and says goodbye to the
    /// file servers. Returns the vnodes that could not be stored, with the errors.
    pub async fn close(&self) -> Vec<(Arc<Vnode>, Error)> {
        self.names.remove_silly_names().await;
        let mut failed = self.write_back.store_all(self.vnodes.unstored()).await;
        for (vnode, error) in self.creates.flush_creates().await {
            if !failed.iter().any(|(known, _)| Arc::ptr_eq(known, &vnode)) {
                failed.push((vnode, error));
            }
        }
        for (vnode, _) in &failed {
            self.write_back.sync(vnode).await;
        }
        self.locks.release_all().await;
        for user in self.env.users.all() {
            user.client().goodbye().await;
        }
        if let Some(index) = self.vnodes.index() {
            let all = self.vnodes.by_age(|_| true);
            let numbers = all.iter().filter_map(|vnode| vnode.body.lock().number());
            index.close(&numbers.collect::<Vec<_>>());
        }
        failed
    }
}
