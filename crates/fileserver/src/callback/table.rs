//! The table of promises: for each host and file, the time until which the server will notify the
//! host of changes.
//!
//! The table is compact, because a server holds a million promises. A promise is 28 bytes and
//! belongs to two lists: that of its file and that of its host. A file is 20 bytes. Both are found
//! by open hash tables of 32-bit indices. A promise takes about 64 bytes in all. The table is
//! divided into shards by fid. A host has a list in each shard, found by its dense slot number.
//!
//! Why no break is lost (the argument is at the head of `callback`): a shard counts its collections
//! in its *stamp*. A promise is given only if the stamp has not changed since before the status was
//! read. So a change between reading and promising is detected.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cellar_wire::ids::{Fid, VolumeId};
use hashbrown::HashTable;
use parking_lot::Mutex;

use super::lifetime::lifetime_secs;
use crate::host::HostSlot;
use crate::limits::{PROMISE_MARGIN_SECS, TABLE_SHARDS};

/// The value of a shard's stamp before the status of a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

/// Why no promise was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPromise {
    /// A change collected promises in this shard since the stamp was taken: read the status again.
    Changed,
    /// The table is full. The status may be sent without a promise.
    Full,
}

/// Counts since the start, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Promises given or extended.
    pub promised: u64,
    /// Promises that hosts gave up, one by one.
    pub given_up: u64,
    /// Promises that expired.
    pub timed_out: u64,
}

/// All promises held.
pub struct CallbackTable {
    shards: Box<[Shard]>,
    held: AtomicUsize,
    capacity: usize,
    seed: u64,
}

struct Shard {
    stamp: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    seed: u64,
    counts: TableCounts,
    files: Vec<FileEntry>,
    free_file: u32,
    promises: Vec<PromiseEntry>,
    free_promise: u32,
    by_key: HashTable<u32>,
    by_pair: HashTable<u32>,
    host_heads: Vec<u32>,
}

#[derive(Clone, Copy)]
struct FileEntry {
    key: Fid,
    /// First promise of the file; of a free entry, the next free entry.
    head: u32,
    holders: u32,
}

#[derive(Clone, Copy)]
struct PromiseEntry {
    /// Index of the file; of a free entry, the next free entry.
    file: u32,
    host: u32,
    file_next: u32,
    file_prev: u32,
    host_next: u32,
    host_prev: u32,
    /// Server's seconds; `FREE` marks a free entry.
    expires: u32,
}

const NONE: u32 = u32::MAX;
const FREE: u32 = u32::MAX;

impl Inner {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            counts: TableCounts::default(),
            files: Vec::new(),
            free_file: NONE,
            promises: Vec::new(),
            free_promise: NONE,
            by_key: HashTable::new(),
            by_pair: HashTable::new(),
            host_heads: Vec::new(),
        }
    }
}

impl CallbackTable {
    /// A table for at most `capacity` promises. `seed` should be random: it keeps clients from
    /// choosing fids that collide.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        let shards = (0..TABLE_SHARDS)
            .map(|_| Shard {
                stamp: AtomicU64::new(0),
                inner: Mutex::new(Inner::new(seed)),
            })
            .collect();
        Self {
            shards,
            held: AtomicUsize::new(0),
            capacity,
            seed,
        }
    }

    /// Number of promises held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Largest number of promises.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of files with at least one promise, and bytes of memory used.
    #[must_use]
    pub fn files_and_bytes(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(files, bytes), shard| {
            let inner = shard.inner.lock();
            let mine = inner.files.capacity() * size_of::<FileEntry>()
                + inner.promises.capacity() * size_of::<PromiseEntry>()
                + inner.by_key.allocation_size()
                + inner.by_pair.allocation_size()
                + inner.host_heads.capacity() * size_of::<u32>();
            (files + inner.by_key.len(), bytes + mine)
        })
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        let mut all = TableCounts::default();
        for shard in &self.shards {
            let counts = shard.inner.lock().counts;
            all.promised += counts.promised;
            all.given_up += counts.given_up;
            all.timed_out += counts.timed_out;
        }
        all
    }

    /// The stamp of the file's shard. Take it before the status of the file is read.
    #[must_use]
    pub fn stamp(&self, key: Fid) -> Stamp {
        Stamp(self.shard(key).stamp.load(Ordering::Acquire))
    }

    /// Promises `host` to notify it when the file changes. Returns the lifetime in seconds. With
    /// `stamp`, the promise is given only if nothing was collected since; without, always.
    ///
    /// `lifetime` says how long the promise lasts.
    pub fn promise(
        &self,
        key: Fid,
        host: HostSlot,
        now: u32,
        lifetime: Lifetime,
        stamp: Option<Stamp>,
    ) -> Result<u32, NoPromise> {
        let shard = self.shard(key);
        let key_hash = self.hash(key);
        let mut inner = shard.inner.lock();
        if stamp.is_some_and(|stamp| stamp.0 != shard.stamp.load(Ordering::Relaxed)) {
            return Err(NoPromise::Changed);
        }
        let file = inner.find_file(key, key_hash);
        let existing = file.and_then(|file| inner.find_promise(file, host));
        let holders = file.map_or(0, |file| inner.files[file as usize].holders)
            - u32::from(existing.is_some());
        let secs = match lifetime {
            Lifetime::Fixed(secs) => secs,
            Lifetime::Shared { extra_holders } => lifetime_secs(holders + extra_holders),
        };
        let expires = now
            .saturating_add(secs)
            .saturating_add(PROMISE_MARGIN_SECS)
            .min(FREE - 1);
        if let Some(promise) = existing {
            let entry = &mut inner.promises[promise as usize];
            entry.expires = entry.expires.max(expires);
            inner.counts.promised += 1;
            return Ok(secs);
        }
        if self.held.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return Err(NoPromise::Full);
        }
        inner.insert(key, key_hash, host, expires);
        inner.counts.promised += 1;
        Ok(secs)
    }

    /// Removes the promises of one changed file, and appends to `hosts` the hosts to notify. The
    /// promise of `except`, which made the change, stays. Expired promises are dropped silently.
    ///
    /// Call this after readers can see the change, and before it is answered.
    pub fn collect(&self, key: Fid, except: Option<HostSlot>, now: u32, hosts: &mut Vec<HostSlot>) {
        let shard = self.shard(key);
        let hash = self.hash(key);
        let mut inner = shard.inner.lock();
        shard.stamp.fetch_add(1, Ordering::Release);
        let Some(file) = inner.find_file(key, hash) else {
            return;
        };
        let mut at = inner.files[file as usize].head;
        let mut gone = 0;
        while at != NONE {
            let entry = inner.promises[at as usize];
            if Some(HostSlot(entry.host)) != except {
                if entry.expires > now {
                    hosts.push(HostSlot(entry.host));
                }
                inner.remove_promise(at);
                gone += 1;
            }
            at = entry.file_next;
        }
        self.held.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Removes all promises for anything in a volume, and appends each affected host once.
    pub fn collect_volume(&self, volume: VolumeId, now: u32, hosts: &mut Vec<HostSlot>) {
        for shard in &self.shards {
            let mut inner = shard.inner.lock();
            shard.stamp.fetch_add(1, Ordering::Release);
            let mut gone = 0;
            for at in 0..inner.promises.len() as u32 {
                let entry = inner.promises[at as usize];
                if entry.expires == FREE || inner.key_of(&entry).volume != volume {
                    continue;
                }
                if entry.expires > now {
                    hosts.push(HostSlot(entry.host));
                }
                inner.remove_promise(at);
                gone += 1;
            }
            self.held.fetch_sub(gone, Ordering::Relaxed);
        }
        hosts.sort_unstable();
        hosts.dedup();
    }

    /// Removes a host's promise for a file. Returns whether it had one.
    pub fn give_up(&self, key: Fid, host: HostSlot) -> bool {
        let hash = self.hash(key);
        let mut inner = self.shard(key).inner.lock();
        let promise = inner
            .find_file(key, hash)
            .and_then(|file| inner.find_promise(file, host));
        let Some(promise) = promise else { return false };
        inner.remove_promise(promise);
        inner.counts.given_up += 1;
        self.held.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Removes all promises of a host. Returns their number.
    pub fn give_up_all(&self, host: HostSlot) -> usize {
        let mut all = 0;
        for shard in &self.shards {
            let mut inner = shard.inner.lock();
            let mut gone = 0;
            while let Some(first) = inner.host_head(host) {
                inner.remove_promise(first);
                gone += 1;
            }
            self.held.fetch_sub(gone, Ordering::Relaxed);
            all += gone;
        }
        all
    }

    /// Whether a host holds any promise.
    #[must_use]
    pub fn holds_any(&self, host: HostSlot) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.inner.lock().host_head(host).is_some())
    }

    /// Drops expired promises. Returns their number.
    pub fn sweep(&self, now: u32) -> usize {
        let mut all = 0;
        for shard in &self.shards {
            let mut inner = shard.inner.lock();
            let mut gone = 0;
            for at in 0..inner.promises.len() as u32 {
                let expires = inner.promises[at as usize].expires;
                if expires != FREE && expires <= now {
                    inner.remove_promise(at);
                    gone += 1;
                }
            }
            inner.counts.timed_out += gone as u64;
            self.held.fetch_sub(gone, Ordering::Relaxed);
            all += gone;
        }
        all
    }

    /// Visits every promise, to save it over a restart.
    pub fn for_each(&self, mut visit: impl FnMut(Fid, HostSlot, u32)) {
        for shard in &self.shards {
            let inner = shard.inner.lock();
            for entry in inner.promises.iter().filter(|entry| entry.expires != FREE) {
                visit(inner.key_of(entry), HostSlot(entry.host), entry.expires);
            }
        }
    }

    /// Restores a saved promise. Returns whether there was room.
    pub fn restore(&self, key: Fid, host: HostSlot, expires: u32) -> bool {
        let hash = self.hash(key);
        let mut inner = self.shard(key).inner.lock();
        let known = inner
            .find_file(key, hash)
            .and_then(|file| inner.find_promise(file, host));
        if known.is_some() || self.held.load(Ordering::Relaxed) >= self.capacity {
            return known.is_some();
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        inner.insert(key, hash, host, expires.min(FREE - 1));
        true
    }

    fn hash(&self, key: Fid) -> u64 {
        fid_hash(key, self.seed)
    }

    fn shard(&self, key: Fid) -> &Shard {
        // The top bits: the hash tables use the low and the topmost seven.
        &self.shards[(self.hash(key) >> 40) as usize % self.shards.len()]
    }
}

/// The lifetime of a promise.
#[derive(Clone, Copy, Debug)]
pub enum Lifetime {
    /// Depends on the number of hosts that hold a promise for the file, plus `extra_holders`.
    Shared {
        /// Holders counted in addition.
        extra_holders: u32,
    },
    /// A fixed number of seconds (whole volumes).
    Fixed(u32),
}

/// Spreads a fid over 64 bits. `seed` keeps clients from choosing fids that collide.
pub(crate) fn fid_hash(fid: Fid, seed: u64) -> u64 {
    let high = (u64::from(fid.volume.0) << 32 | u64::from(fid.vnode.0)) ^ seed;
    let low = u64::from(fid.uniquifier.0) ^ 0xa076_1d64_78bd_642f ^ seed.rotate_left(32);
    let mixed = u128::from(high ^ 0x9e37_79b9_7f4a_7c15) * u128::from(low | 1 << 63);
    let mixed = (mixed >> 64) as u64 ^ mixed as u64;
    mixed ^ (mixed >> 29)
}

fn pair_hash(file: u32, host: u32) -> u64 {
    let both = (u64::from(file) << 32) | u64::from(host);
    let mixed = u128::from(both ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (mixed >> 64) as u64 ^ mixed as u64
}

impl Inner {
    fn key_of(&self, entry: &PromiseEntry) -> Fid {
        self.files[entry.file as usize].key
    }

    fn find_file(&self, key: Fid, hash: u64) -> Option<u32> {
        self.by_key
            .find(hash, |&at| self.files[at as usize].key == key)
            .copied()
    }

    fn find_promise(&self, file: u32, host: HostSlot) -> Option<u32> {
        let same = |&at: &u32| {
            let entry = &self.promises[at as usize];
            entry.file == file && entry.host == host.0
        };
        self.by_pair.find(pair_hash(file, host.0), same).copied()
    }

    fn host_head(&self, host: HostSlot) -> Option<u32> {
        self.host_heads
            .get(host.0 as usize)
            .copied()
            .filter(|&head| head != NONE)
    }

    fn insert(&mut self, key: Fid, hash: u64, host: HostSlot, expires: u32) {
        let file = self
            .find_file(key, hash)
            .unwrap_or_else(|| self.new_file(key, hash));
        if self.host_heads.len() <= host.0 as usize {
            self.host_heads.resize(host.0 as usize + 1, NONE);
        }
        let entry = PromiseEntry {
            file,
            host: host.0,
            file_next: self.files[file as usize].head,
            file_prev: NONE,
            host_next: self.host_heads[host.0 as usize],
            host_prev: NONE,
            expires,
        };
        let at = if self.free_promise == NONE {
            self.promises.push(entry);
            self.promises.len() as u32 - 1
        } else {
            let at = self.free_promise;
            self.free_promise = self.promises[at as usize].file;
            self.promises[at as usize] = entry;
            at
        };
        if entry.file_next != NONE {
            self.promises[entry.file_next as usize].file_prev = at;
        }
        if entry.host_next != NONE {
            self.promises[entry.host_next as usize].host_prev = at;
        }
        self.files[file as usize].head = at;
        self.files[file as usize].holders += 1;
        self.host_heads[host.0 as usize] = at;
        let promises = &self.promises;
        self.by_pair
            .insert_unique(pair_hash(file, host.0), at, |&at| {
                let entry = &promises[at as usize];
                pair_hash(entry.file, entry.host)
            });
    }

    fn new_file(&mut self, key: Fid, hash: u64) -> u32 {
        let entry = FileEntry {
            key,
            head: NONE,
            holders: 0,
        };
        let at = if self.free_file == NONE {
            self.files.push(entry);
            self.files.len() as u32 - 1
        } else {
            let at = self.free_file;
            self.free_file = self.files[at as usize].head;
            self.files[at as usize] = entry;
            at
        };
        let seed = self.seed;
        let files = &self.files;
        self.by_key
            .insert_unique(hash, at, |&at| fid_hash(files[at as usize].key, seed));
        at
    }

    fn remove_promise(&mut self, at: u32) {
        let entry = self.promises[at as usize];
        match entry.file_prev {
            NONE => self.files[entry.file as usize].head = entry.file_next,
            before => self.promises[before as usize].file_next = entry.file_next,
        }
        if entry.file_next != NONE {
            self.promises[entry.file_next as usize].file_prev = entry.file_prev;
        }
        match entry.host_prev {
            NONE => self.host_heads[entry.host as usize] = entry.host_next,
            before => self.promises[before as usize].host_next = entry.host_next,
        }
        if entry.host_next != NONE {
            self.promises[entry.host_next as usize].host_prev = entry.host_prev;
        }
        let found = self
            .by_pair
            .find_entry(pair_hash(entry.file, entry.host), |&other| other == at);
        if let Ok(found) = found {
            found.remove();
        }
        let freed = &mut self.promises[at as usize];
        freed.expires = FREE;
        freed.file = self.free_promise;
        self.free_promise = at;
        self.drop_holder(entry.file);
    }

    fn drop_holder(&mut self, file: u32) {
        let entry = &mut self.files[file as usize];
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        let hash = fid_hash(entry.key, self.seed);
        if let Ok(found) = self.by_key.find_entry(hash, |&other| other == file) {
            found.remove();
        }
        self.files[file as usize].head = self.free_file;
        self.free_file = file;
    }
}

#[cfg(test)]
mod tests;
