//! Notices to the kernel, which invalidate names, attributes and pages.
//!
//! `cellar_client::cache`, `coherence.rs`, decides when a notice is due. This module delivers it.
//!
//! 1. Threads of their own write the notices. In the kernel a notice about a name waits for the
//!    lock of its directory, and a notice about pages waits for the pages. Both may be held by a
//!    request of ours that waits for a server. So in total no server waits longer than
//!    [`NOTICE_TIMEOUT`] for notices.
//! 2. The queue is a set of vnodes: a vnode that changes often gets one notice, in two steps
//!    ([`Step`]). One thread at a time takes a step for a vnode, so that its last notice describes
//!    the last state. The order is: attributes and pages, then the length, then names.
//! 3. There are [`WRITERS`], and one volume occupies [`WRITERS_PER_STEP`] of them with each step.
//!    So notices about files of a silent server delay one another, but not those about other files.
//!    A request for attributes may wait for the first step ([`Watcher::notified`]) while it holds
//!    the lock of a directory that names wait for. So the first step never waits for the second, of
//!    any vnode.
//! 4. Names *expire* where the kernel supports that (Linux 6.2). They are looked up again, and a
//!    process whose working directory is such a directory stays there. Older kernels drop them. If
//!    a server breaks the promise of a directory with many names, notices name only the changed
//!    ones. A writer compares the names before it writes (`cellar_client::cache`, `compare.rs`).
//! 5. Contents are given to the kernel ([`Kernel::give`]) only for files of which it has no pages,
//!    so the call never waits.
//! 6. When too much is remembered, the least recently used objects are dropped
//!    ([`Notices::drop_crowds`]). These are names of files that no program has open, and
//!    directories without children in the kernel that no program uses, the deepest first. The
//!    kernel forgets an inode with its last name, and reports that. Only the kernel knows which
//!    directories are in use, and checks that since Linux 6.18 (FUSE_NOTIFY_PRUNE). If a directory
//!    were dropped by name, a process would lose its working directory. A thread of its own does
//!    all this, since no request waits for it.

pub(crate) mod device;
mod pending;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use bytes::Bytes;
use cellar_cachemanager::{Before, Key, Length, NOTICE_TIMEOUT, Notice, Vnode, Watcher};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

pub(crate) use device::Kernel;
use pending::{Change, PendingNotices, Step};

use crate::inodes::{CELLS, Inodes};

/// Number of threads that write notices.
pub(crate) const WRITERS: usize = 16;

/// Number of names in the kernel from which on a directory's names are compared. For fewer names,
/// notices cost less than a call to a server.
const COMPARED_MIN: usize = 64;

/// The largest number of inodes in one notice that drops their names.
const PRUNED_MAX: usize = 256;

/// The notices to the kernel.
#[derive(Debug)]
pub(crate) struct Notices {
    waiting: Mutex<PendingNotices>,
    more: Condvar,
    /// Signals that a notice was written.
    done: watch::Sender<()>,
    /// The channel to the thread that drops names.
    crowds: Mutex<Option<SyncSender<Crowd>>>,
}

/// Vnodes that exceed the number to remember.
pub(crate) type Crowd = Vec<Arc<Vnode>>;

impl Notices {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            more: Condvar::new(),
            done: watch::Sender::new(()),
            crowds: Mutex::default(),
        })
    }

    /// The receiver of vnodes to drop, for one thread.
    pub(crate) fn crowds(&self) -> Receiver<Crowd> {
        // While one list is processed the next one may wait. The cache repeats further ones.
        let (sender, receiver) = sync_channel(1);
        *self.crowds.lock() = Some(sender);
        receiver
    }

    /// Applies rule 6 until [`Notices::end`]. Blocks.
    pub(crate) fn drop_crowds(&self, crowds: &Receiver<Crowd>, kernel: &Kernel, inodes: &Inodes) {
        for crowd in crowds {
            let (directories, files): (Crowd, Crowd) =
                crowd.into_iter().partition(|vnode| vnode.is_directory());
            for vnode in files {
                if self.crowds.lock().is_none() {
                    return;
                }
                if vnode.is_open() {
                    continue;
                }
                for number in inodes.of(vnode.key()) {
                    for (parent, name) in inodes.names_of(number) {
                        kernel.drop_entry(parent, &name);
                    }
                }
            }
            let numbers = directories.iter().flat_map(|vnode| inodes.of(vnode.key()));
            let mut by_depth: Vec<_> = numbers
                .map(|number| (std::cmp::Reverse(inodes.depth(number)), number))
                .collect();
            by_depth.sort_unstable();
            let numbers: Vec<u64> = by_depth.into_iter().map(|(_, number)| number).collect();
            for some in numbers.chunks(PRUNED_MAX) {
                kernel.prune(some);
            }
        }
    }

    /// Writes notices until [`Notices::end`]. Blocks: run by each of [`WRITERS`] threads.
    /// `changed_names` compares the names of a directory and may take [`NOTICE_TIMEOUT`].
    pub(crate) fn run(
        &self,
        kernel: &Kernel,
        inodes: &Inodes,
        changed_names: impl Fn(&Before) -> Option<Vec<Bytes>>,
    ) {
        let inode = |key, change: &Change| {
            for number in inodes.of(key) {
                inodes.listings_are_old(number);
                kernel.inode(number, change.contents && !change.directory);
                let last = change.length.as_ref().and_then(Length::last);
                if let Some((at, byte)) = last {
                    kernel.give_at(number, at, &[byte]);
                    // A program may write that byte at this moment, so the page is invalidated and
                    // read again.
                    kernel.page(number, at);
                }
            }
        };
        let names = |key, change: &Change| {
            let numbers = inodes.of(key);
            let before = change.before.as_ref().filter(|_| {
                let known = numbers.iter().map(|number| inodes.names_known(*number));
                known.sum::<usize>() >= COMPARED_MIN
            });
            let changed = before.and_then(&changed_names);
            for number in numbers {
                if change.directory && change.contents {
                    // The numbers of cells' names stay: programs may have working directories below
                    // them.
                    let names = match &changed {
                        Some(changed) => inodes.take_these_names(number, changed),
                        None if key == CELLS => inodes.names_in(number),
                        None => inodes.take_names(number),
                    };
                    for name in names {
                        kernel.entry(number, &name);
                    }
                } else if inodes.is_lent(number) {
                    // The names may lead to another inode now.
                    for (parent, name) in inodes.names_of(number) {
                        kernel.entry(parent, &name);
                    }
                }
            }
        };
        self.write_all(inode, names);
    }

    fn write_all(&self, inode: impl Fn(Key, &Change), names: impl Fn(Key, &Change)) {
        let mut waiting = self.waiting.lock();
        while !waiting.ended {
            let Some((key, step, change)) = waiting.take() else {
                self.more.wait(&mut waiting);
                continue;
            };
            drop(waiting);
            match step {
                Step::Inode => inode(key, &change),
                Step::Names => names(key, &change),
            }
            waiting = self.waiting.lock();
            waiting.done(key, step, change);
            // Another vnode of that volume may be next, and this one's next step is due.
            self.more.notify_one();
            self.more.notify_one();
            self.done.send_replace(());
        }
    }

    fn put(&self, key: Key, directory: bool, notice: Notice) {
        let mut waiting = self.waiting.lock();
        if !waiting.ended {
            waiting.put(key, directory, notice);
            self.more.notify_one();
        }
    }

    /// Ends the threads and all waits for them.
    pub(crate) fn end(&self) {
        self.waiting.lock().ended = true;
        *self.crowds.lock() = None;
        self.more.notify_all();
        self.done.send_replace(());
    }
}

impl Watcher for Notices {
    fn crowded(&self, vnodes: Crowd) {
        if let Some(crowds) = &*self.crowds.lock() {
            let _busy = crowds.try_send(vnodes);
        }
    }

    fn changed(&self, vnode: &Arc<Vnode>, notice: Notice) {
        self.put(vnode.key(), vnode.is_directory(), notice);
    }

    fn cells_changed(&self) {
        self.put(CELLS, true, Notice::Contents);
    }

    fn has_notices(&self, vnode: &Vnode) -> bool {
        self.waiting.lock().has_notices(vnode.key(), u64::MAX)
    }

    fn notified<'a>(&'a self, vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let queued = self.waiting.lock().queued;
        let mut done = self.done.subscribe();
        Box::pin(async move {
            while self.waiting.lock().has_notices(vnode.key(), queued) {
                if done.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    fn all_delivered(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let queued = self.waiting.lock().queued;
        let mut done = self.done.subscribe();
        Box::pin(async move {
            let all = async {
                while !self.waiting.lock().is_written(queued, Instant::now()) {
                    if done.changed().await.is_err() {
                        return;
                    }
                }
            };
            // The server gets its answer in either case; rule 1 gives the reason.
            let _late = tokio::time::timeout(NOTICE_TIMEOUT, all).await;
        })
    }
}

#[cfg(test)]
mod tests;
