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
//!    ([`Notices::let_go`]). These are names of files that no program has open, and directories
//!    without children in the kernel that no program uses, the deepest first. The kernel forgets an
//!    inode with its last name, and reports that. Only the kernel knows which directories are in
//!    use, and checks that since Linux 6.18 (FUSE_NOTIFY_PRUNE). If a directory were dropped by
//!    name, a process would lose its working directory. A thread of its own does all this, since no
//!    request waits for it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use bytes::Bytes;
use cellar_cachemanager::{Before, Key, Length, NOTICE_TIMEOUT, Notice, Vnode, Watcher};
use cellar_wire::ids::VolumeId;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::inodes::{CELLS, Inodes};

/// Number of threads that write notices.
pub(crate) const WRITERS: usize = 16;
/// The number of these for one volume and step.
const WRITERS_PER_STEP: usize = 2;

/// Number of names in the kernel from which on a directory's names are compared. For fewer names,
/// notices cost less than a call to a server.
const COMPARED_MIN: usize = 64;

/// `FUSE_NOTIFY_INVAL_INODE` and `FUSE_NOTIFY_INVAL_ENTRY`. Source: linux/fuse.h.
const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_STORE`.
const STORE: i32 = 4;
/// `FUSE_NOTIFY_PRUNE`, of protocol 7.45.
const PRUNE: i32 = 9;
/// The largest number of inodes in one such notice.
const PRUNED_MAX: usize = 256;
/// Flag of an entry: expire it.
const EXPIRE_ONLY: u32 = 1;
/// `EINVAL`: an older kernel does not know the notice.
const INVALID: i32 = 22;
/// The header of a message to the kernel: length, code, 0.
const HEADER: usize = 16;

/// The pending notice of a vnode.
#[derive(Clone, Debug)]
struct Change {
    contents: bool,
    directory: bool,
    /// If set, only names that changed since then are invalid.
    before: Option<Before>,
    /// The length to give to the kernel afterwards.
    length: Option<Length>,
    /// The sequence number of the change.
    number: u64,
}

impl Change {
    fn add(&mut self, notice: Notice) {
        match notice {
            Notice::Attributes => {}
            Notice::Contents => {
                self.contents = true;
                // A length of the earlier contents is out of date.
                self.length = None;
            }
            Notice::Names(before) => {
                self.contents = true;
                self.before = Some(before);
            }
            Notice::Length(length) => self.length = Some(length),
        }
    }

    /// Merges a later change into this one.
    fn join(&mut self, later: Self) {
        if later.contents {
            // The kernel may have got names between the two.
            self.before = later.before.filter(|_| !self.contents);
            self.contents = true;
            self.length = None;
        }
        self.length = later.length.or(self.length.take());
    }
}

/// The step of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Attributes, pages and length.
    Inode,
    /// The names in a directory, or the names of the vnode itself.
    Names,
}

/// A vnode whose notice is being written.
#[derive(Clone, Copy, Debug)]
struct Busy {
    key: Key,
    step: Step,
    number: u64,
    since: Instant,
}

impl Busy {
    /// Returns whether waiters have given up on it.
    fn is_stuck(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= NOTICE_TIMEOUT
    }
}

/// Vnodes that wait for a step.
#[derive(Debug, Default)]
struct Line {
    changes: HashMap<Key, Change>,
    /// Their sequence numbers.
    order: BTreeMap<u64, Key>,
}

impl Line {
    fn put(&mut self, key: Key, change: Change) {
        match self.changes.entry(key) {
            Entry::Vacant(place) => {
                self.order.insert(change.number, key);
                place.insert(change);
            }
            Entry::Occupied(place) => place.into_mut().join(change),
        }
    }

    fn take(&mut self, key: Key) -> Option<Change> {
        let change = self.changes.remove(&key)?;
        self.order.remove(&change.number);
        Some(change)
    }
}

#[derive(Debug, Default)]
struct Volume {
    inodes: Line,
    names: Line,
    busy: Vec<Busy>,
}

impl Volume {
    fn line(&mut self, step: Step) -> &mut Line {
        match step {
            Step::Inode => &mut self.inodes,
            Step::Names => &mut self.names,
        }
    }

    /// The next vnode for a step.
    fn next(&self, step: Step) -> Option<Key> {
        let busy = || self.busy.iter().filter(|busy| busy.step == step);
        if busy().count() >= WRITERS_PER_STEP {
            return None;
        }
        let line = match step {
            Step::Inode => &self.inodes,
            Step::Names => &self.names,
        };
        let is_busy = |key: &Key| busy().any(|busy| busy.key == *key);
        line.order.values().find(|key| !is_busy(key)).copied()
    }

    /// Returns whether a notice up to that number will be written soon.
    fn owes(&self, queued: u64, now: Instant) -> bool {
        let stuck = |busy: &Busy| busy.is_stuck(now);
        let steps = [(Step::Inode, &self.inodes), (Step::Names, &self.names)];
        let waits = steps.into_iter().any(|(step, line)| {
            let waits = line.order.range(..=queued).next().is_some();
            let mut busy = self.busy.iter().filter(|busy| busy.step == step);
            let late = busy.all(stuck) && self.next(step).is_none();
            waits && !late
        });
        let mut busy = self.busy.iter();
        waits || busy.any(|busy| busy.number <= queued && !stuck(busy))
    }

    fn is_empty(&self) -> bool {
        let waits = |line: &Line| !line.changes.is_empty();
        self.busy.is_empty() && !waits(&self.inodes) && !waits(&self.names)
    }
}

/// The pending notices.
#[derive(Debug, Default)]
struct PendingNotices {
    volumes: HashMap<(u32, VolumeId), Volume>,
    /// The number of notices that were ever queued.
    queued: u64,
    ended: bool,
}

impl PendingNotices {
    fn put(&mut self, key: Key, directory: bool, notice: Notice) {
        self.queued += 1;
        let number = self.queued;
        let volume = self.volumes.entry((key.0, key.1.volume)).or_default();
        let mut change = Change {
            contents: false,
            directory,
            before: None,
            length: None,
            number,
        };
        change.add(notice);
        volume.inodes.put(key, change);
    }

    /// Takes the next step.
    fn take(&mut self) -> Option<(Key, Step, Change)> {
        let mut volumes = self.volumes.values_mut();
        let next = |volume: &Volume| {
            let steps = [Step::Inode, Step::Names].into_iter();
            let mut next = steps.filter_map(|step| Some((volume.next(step)?, step)));
            next.next()
        };
        let (volume, (key, step)) =
            volumes.find_map(|volume| next(volume).map(|next| (volume, next)))?;
        let change = volume.line(step).take(key)?;
        let number = change.number;
        let since = Instant::now();
        volume.busy.push(Busy {
            key,
            step,
            number,
            since,
        });
        Some((key, step, change))
    }

    /// Returns whether a notice about a vnode up to that number is unfinished, except its names.
    fn has_notices(&self, key: Key, queued: u64) -> bool {
        let Some(volume) = self.volumes.get(&(key.0, key.1.volume)) else {
            return false;
        };
        let waits = volume.inodes.changes.get(&key);
        let is_told =
            |busy: &Busy| busy.key == key && busy.number <= queued && busy.step == Step::Inode;
        !self.ended
            && (waits.is_some_and(|change| change.number <= queued)
                || volume.busy.iter().any(is_told))
    }

    /// Records that a step is finished; the next step is due.
    fn done(&mut self, key: Key, step: Step, change: Change) {
        let number = (key.0, key.1.volume);
        if let Some(volume) = self.volumes.get_mut(&number) {
            volume
                .busy
                .retain(|busy| (busy.key, busy.step) != (key, step));
            if step == Step::Inode {
                volume.names.put(key, change);
            }
            if volume.is_empty() {
                self.volumes.remove(&number);
            }
        }
    }

    /// Returns whether all notices up to that number are written. Notices that waiters have given
    /// up on do not count, nor do those that wait for them.
    fn is_settled(&self, queued: u64, now: Instant) -> bool {
        self.ended || !self.volumes.values().any(|volume| volume.owes(queued, now))
    }
}

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
    pub(crate) fn let_go(&self, crowds: &Receiver<Crowd>, kernel: &Kernel, inodes: &Inodes) {
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
        self.tell(inode, names);
    }

    fn tell(&self, inode: impl Fn(Key, &Change), names: impl Fn(Key, &Change)) {
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
                while !self.waiting.lock().is_settled(queued, Instant::now()) {
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

/// The device that notices are written to. A write returns when the notice has taken effect.
pub(crate) trait Device: std::fmt::Debug + Send + Sync {
    fn notice(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}

impl Device for File {
    fn notice(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut file = self;
        file.write_vectored(parts).map(drop)
    }
}

/// The kernel's device, for notices.
#[derive(Debug)]
pub(crate) struct Kernel {
    device: Box<dyn Device>,
    entry_flags: u32,
    /// Whether the kernel supports FUSE_NOTIFY_PRUNE, as far as known.
    prunes: AtomicBool,
}

impl Kernel {
    pub(crate) fn new(device: impl Device + 'static, can_expire: bool) -> Self {
        Self {
            device: Box::new(device),
            entry_flags: if can_expire { EXPIRE_ONLY } else { 0 },
            prunes: AtomicBool::new(true),
        }
    }

    /// Invalidates attributes, and with `contents` the pages.
    fn inode(&self, number: u64, contents: bool) {
        let from: i64 = if contents { 0 } else { -1 };
        self.invalidate(number, from, 0);
    }

    /// Invalidates attributes, and the page that holds that byte.
    fn page(&self, number: u64, at: u64) {
        self.invalidate(number, i64::try_from(at).unwrap_or(0), 1);
    }

    /// Without a count it goes to the end. A negative start means no pages.
    fn invalidate(&self, number: u64, from: i64, count: i64) {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&number.to_ne_bytes());
        body[8..16].copy_from_slice(&from.to_ne_bytes());
        body[16..].copy_from_slice(&count.to_ne_bytes());
        self.write(INVALIDATE_INODE, &body, None);
    }

    /// Gives the kernel the first bytes of a file. Never waits if the kernel has no pages of the
    /// file.
    pub(crate) fn give(&self, number: u64, bytes: &[u8]) {
        self.give_at(number, 0, bytes);
    }

    /// Gives the kernel bytes of a file, which has at least that length from then on. Waits for the
    /// pages that hold them.
    fn give_at(&self, number: u64, at: u64, bytes: &[u8]) {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&number.to_ne_bytes());
        body[8..16].copy_from_slice(&at.to_ne_bytes());
        body[16..20].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        self.write_parts(STORE, &body, bytes, &[]);
    }

    /// Invalidates a name, which may lead elsewhere now.
    fn entry(&self, parent: u64, name: &Bytes) {
        self.invalidate_entry(parent, name, self.entry_flags);
    }

    fn drop_entry(&self, parent: u64, name: &Bytes) {
        self.invalidate_entry(parent, name, 0);
    }

    /// Drops the names of inodes that nothing in the kernel uses, one after the other.
    fn prune(&self, numbers: &[u64]) {
        if !self.prunes.load(Ordering::Relaxed) {
            return;
        }
        let mut body = vec![0; 16];
        body[..4].copy_from_slice(&(numbers.len() as u32).to_ne_bytes());
        for number in numbers {
            body.extend_from_slice(&number.to_ne_bytes());
        }
        match self.write_whole(PRUNE, [&body, &[], &[]]) {
            Err(cause) if cause.raw_os_error() == Some(INVALID) => {
                self.prunes.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn invalidate_entry(&self, parent: u64, name: &Bytes, flags: u32) {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&parent.to_ne_bytes());
        body[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        body[12..].copy_from_slice(&flags.to_ne_bytes());
        self.write(INVALIDATE_ENTRY, &body, Some(name));
    }

    fn write(&self, code: i32, body: &[u8], name: Option<&Bytes>) {
        let name = name.map_or(&[][..], |name| name);
        let end: &[u8] = if name.is_empty() { &[] } else { &[0] };
        self.write_parts(code, body, name, end);
    }

    fn write_parts(&self, code: i32, body: &[u8], name: &[u8], end: &[u8]) {
        match self.write_whole(code, [body, name, end]) {
            Ok(()) => {}
            // The kernel has forgotten the inode already, or the mount is gone.
            Err(cause) if matches!(cause.raw_os_error(), Some(2 | 19 | 107)) => {}
            Err(cause) => tracing::debug!(%cause, code, "a notice to the kernel failed"),
        }
    }

    fn write_whole(&self, code: i32, [body, name, end]: [&[u8]; 3]) -> io::Result<()> {
        let length = HEADER + body.len() + name.len() + end.len();
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let parts = [&header[..], body, name, end].map(IoSlice::new);
        self.device.notice(&parts)
    }
}

#[cfg(test)]
mod tests {
    use cellar_until::{until, until_blocking};
    use cellar_wire::ids::Fid;

    use super::*;

    fn key(volume: u32, vnode: u32) -> Key {
        (0, Fid::new(volume, vnode, 1))
    }

    /// A mount's notices, with a kernel that blocks notices about volume 1 while `held` is set.
    struct Bench {
        notices: Arc<Notices>,
        queued: Arc<Mutex<Vec<(Key, bool)>>>,
        held: Arc<AtomicBool>,
        /// Blocks the notices about names.
        names_held: Arc<AtomicBool>,
        writers: Vec<std::thread::JoinHandle<()>>,
    }

    impl Bench {
        fn start() -> Self {
            let mut bench = Self {
                notices: Notices::new(),
                queued: Arc::default(),
                held: Arc::default(),
                names_held: Arc::default(),
                writers: Vec::new(),
            };
            for _ in 0..WRITERS {
                let (notices, queued) = (bench.notices.clone(), bench.queued.clone());
                let (held, names_held) = (bench.held.clone(), bench.names_held.clone());
                bench.writers.push(std::thread::spawn(move || {
                    let inode = |key: Key, change: &Change| {
                        if key.1.volume.0 == 1 {
                            until_blocking("not held", || !held.load(Ordering::Acquire));
                        }
                        queued.lock().push((key, change.contents));
                    };
                    let names = |_: Key, _: &Change| {
                        until_blocking("not held", || !names_held.load(Ordering::Acquire));
                    };
                    notices.tell(inode, names);
                }));
            }
            bench
        }

        fn queued(&self, key: Key) -> Vec<bool> {
            let queued = self.queued.lock();
            let of = queued.iter().filter(|(of, _)| *of == key);
            of.map(|(_, contents)| *contents).collect()
        }

        fn end(self) {
            self.notices.end();
            for writer in self.writers {
                writer.join().expect("a writer");
            }
        }
    }

    #[tokio::test]
    async fn a_silent_server_s_files_delay_no_others() {
        let bench = Bench::start();
        bench.held.store(true, Ordering::Release);
        for vnode in 1..100 {
            bench.notices.put(key(1, vnode), false, Notice::Contents);
        }
        // Wait until everything that may block is blocked.
        tokio::time::sleep(NOTICE_TIMEOUT * 2).await;
        let begun = Instant::now();
        for vnode in 1..100 {
            bench.notices.put(key(2, vnode), false, Notice::Contents);
            bench.notices.all_delivered().await;
            assert_eq!(bench.queued(key(2, vnode)), [true]);
        }
        assert!(
            begun.elapsed() < NOTICE_TIMEOUT * 4,
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(bench.queued.lock().len(), 99);
        bench.held.store(false, Ordering::Release);
        bench.notices.put(key(2, 1), false, Notice::Attributes);
        bench.notices.all_delivered().await;
        bench.end();
    }

    /// Checks whether a request about a vnode would wait, until all notices queued so far are
    /// written.
    #[tokio::test]
    async fn a_question_waits_for_its_vnode_s_notices_and_not_for_names() {
        let bench = Bench::start();
        bench.held.store(true, Ordering::Release);
        bench.names_held.store(true, Ordering::Release);
        let waits = |key| {
            let waiting = bench.notices.waiting.lock();
            waiting.has_notices(key, u64::MAX)
        };
        bench.notices.put(key(1, 1), false, Notice::Attributes);
        assert!(waits(key(1, 1)) && !waits(key(1, 3)) && !waits(key(2, 1)));
        // A notice that the kernel blocks does not end by itself.
        std::thread::sleep(NOTICE_TIMEOUT);
        assert!(waits(key(1, 1)), "it has begun, and is not done");
        bench.held.store(false, Ordering::Release);
        until("the notice is written", async || !waits(key(1, 1))).await;
        assert_eq!(bench.queued(key(1, 1)), [false]);
        let begun = !bench.notices.waiting.lock().volumes.is_empty();
        assert!(begun, "notices about names are still under way");
        bench.names_held.store(false, Ordering::Release);
        bench.notices.all_delivered().await;
        bench.end();
    }

    /// The request that holds a directory's lock may itself wait for a notice about a file.
    #[tokio::test]
    async fn names_that_wait_for_directories_delay_no_question() {
        let bench = Bench::start();
        bench.names_held.store(true, Ordering::Release);
        for vnode in [1, 3, 5, 7] {
            bench.notices.put(key(1, vnode), true, Notice::Contents);
        }
        bench.notices.all_delivered().await;
        // This includes a directory whose names are being written.
        for vnode in [1, 2, 4, 7, 100] {
            bench.notices.put(key(1, vnode), false, Notice::Contents);
        }
        let queued = |vnode| {
            let waiting = bench.notices.waiting.lock();
            !waiting.has_notices(key(1, vnode), u64::MAX)
        };
        for vnode in [1, 2, 4, 7, 100] {
            until("its notice is written", async || queued(vnode)).await;
        }
        bench.names_held.store(false, Ordering::Release);
        bench.notices.all_delivered().await;
        bench.end();
    }

    #[tokio::test]
    async fn what_changes_while_it_is_told_is_told_again_afterwards() {
        let bench = Bench::start();
        bench.held.store(true, Ordering::Release);
        bench.notices.put(key(1, 1), false, Notice::Contents);
        let begun = Instant::now();
        bench.notices.all_delivered().await;
        assert!(begun.elapsed() >= NOTICE_TIMEOUT, "the wait lasts");
        // Only one thread writes about the vnode, so nothing else is written meanwhile.
        bench.notices.put(key(1, 1), false, Notice::Attributes);
        bench.notices.put(key(1, 1), false, Notice::Attributes);
        std::thread::sleep(NOTICE_TIMEOUT / 5);
        assert_eq!(bench.queued(key(1, 1)), [false; 0]);
        bench.held.store(false, Ordering::Release);
        // Nothing waits for notices that are so late.
        until("all are written", async || {
            bench.notices.waiting.lock().volumes.is_empty()
        })
        .await;
        assert_eq!(
            bench.queued(key(1, 1)),
            [true, false],
            "two changes are one notice"
        );
        bench.end();
    }
}
