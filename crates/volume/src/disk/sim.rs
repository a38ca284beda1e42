//! A disk in memory for crash tests, which loses unsynced data as real disks do.
//!
//! Each file has a *live* image, which reads see, and a *durable* one, which a power cut leaves.
//! Between them is a list of writes. [`SimDisk::power_cut`] makes the disk that a machine would
//! find after the cut: the durable images plus any subset of the unsynced writes. A seed chooses
//! which writes survive, each completely or torn.
//!
//! Faults make the n-th write or sync fail, or everything from the n-th change on (the moment
//! before the cut). Room is limited, so that full disks can be tested too.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, Space};

const PAGE: usize = 4096;

/// The fault to inject. Changes are counted from 1 when the fault is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The n-th write fails; later ones succeed.
    Write(u64),
    /// The n-th sync fails, and a power cut loses the data it should have made durable. Later syncs
    /// succeed.
    Sync(u64),
    /// The n-th change (write, sync, new length, name) and all after it fail.
    Dead(u64),
}

/// A disk in memory.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimDisk")
    }
}

struct State {
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: Vec<Image>,
    capacity_pages: usize,
    fault: Fault,
    writes: u64,
    syncs: u64,
    changes: u64,
}

#[derive(Clone, Default)]
struct Image {
    live: Content,
    durable: Content,
    pending: Vec<Change>,
}

#[derive(Clone, Default)]
struct Content {
    length: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
    Punch(u64, u64),
    Allocate(u64, u64),
}

impl SimDisk {
    /// An empty disk with room for `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            files: Vec::new(),
            capacity_pages: (capacity as usize) / PAGE,
            fault: Fault::None,
            writes: 0,
            syncs: 0,
            changes: 0,
        })))
    }

    /// Sets the fault to inject, and restarts the counters.
    pub fn set_fault(&self, fault: Fault) {
        let mut state = self.0.lock();
        state.fault = fault;
        state.writes = 0;
        state.syncs = 0;
        state.changes = 0;
    }

    /// Writes, syncs and changes of any kind since the fault was set.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.0.lock();
        (state.writes, state.syncs, state.changes)
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, capacity: u64) {
        self.0.lock().capacity_pages = (capacity as usize) / PAGE;
    }

    /// Returns the disk as it is found after a power cut at this moment.
    ///
    /// With a seed, each unsynced write survives completely, torn or not at all; without a seed,
    /// none survives.
    pub fn power_cut(&self, seed: Option<u64>) -> Self {
        let state = self.0.lock();
        let mut random = seed.map(SplitMix);
        let mut files = Vec::with_capacity(state.files.len());
        for image in &state.files {
            let mut content = image.durable.clone();
            if let Some(random) = &mut random {
                for change in &image.pending {
                    match random.below(4) {
                        0 | 1 => {}
                        2 => content.apply(change),
                        _ => {
                            if let Change::Write(offset, bytes) = change {
                                // Devices tear writes at sector boundaries.
                                let sectors = bytes.len() / 512;
                                let kept = random.below(sectors as u64 + 1) as usize * 512;
                                content.write(*offset, &bytes[..kept]);
                            }
                        }
                    }
                }
            }
            files.push(Image {
                live: content.clone(),
                durable: content,
                pending: Vec::new(),
            });
        }
        let names = state.durable_names.clone();
        Self(Arc::new(Mutex::new(State {
            durable_names: names.clone(),
            names,
            files,
            capacity_pages: state.capacity_pages,
            fault: Fault::None,
            writes: 0,
            syncs: 0,
            changes: 0,
        })))
    }

    /// Flips one bit of a file, live and durable.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) {
        let mut state = self.0.lock();
        let Some(&index) = state.names.get(name) else {
            return;
        };
        let image = &mut state.files[index];
        for content in [&mut image.live, &mut image.durable] {
            if let Some(page) = content.pages.get_mut(&(offset / PAGE as u64)) {
                page[offset as usize % PAGE] ^= 1 << (bit & 7);
            }
        }
    }

    /// All bytes of the live image of a file; empty if it does not exist.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        let state = self.0.lock();
        let Some(&index) = state.names.get(name) else {
            return Vec::new();
        };
        let content = &state.files[index].live;
        let mut bytes = vec![0; content.length as usize];
        content.read(0, &mut bytes);
        bytes
    }
}

impl Content {
    fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let inside = at as usize % PAGE;
            let count = (PAGE - inside).min(buffer.len() - done);
            let target = &mut buffer[done..done + count];
            match self.pages.get(&(at / PAGE as u64)) {
                Some(page) => target.copy_from_slice(&page[inside..inside + count]),
                None => target.fill(0),
            }
            done += count;
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let inside = at as usize % PAGE;
            let count = (PAGE - inside).min(bytes.len() - done);
            let page = self
                .pages
                .entry(at / PAGE as u64)
                .or_insert_with(|| Box::new([0; PAGE]));
            page[inside..inside + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        self.length = self.length.max(offset + bytes.len() as u64);
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(offset, bytes) => self.write(*offset, bytes),
            Change::Length(length) => {
                if *length < self.length {
                    self.punch(*length, self.length - *length);
                }
                self.length = *length;
            }
            Change::Punch(offset, length) => self.punch(*offset, *length),
            Change::Allocate(offset, length) => self.allocate(*offset, *length),
        }
    }

    fn allocate(&mut self, offset: u64, length: u64) {
        for page in offset / PAGE as u64..(offset + length).div_ceil(PAGE as u64) {
            self.pages
                .entry(page)
                .or_insert_with(|| Box::new([0; PAGE]));
        }
        self.length = self.length.max(offset + length);
    }

    fn punch(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let pages: Vec<u64> = self
            .pages
            .range(offset / PAGE as u64..end.div_ceil(PAGE as u64))
            .map(|(&page, _)| page)
            .collect();
        for page in pages {
            let start = page * PAGE as u64;
            if start >= offset && start + PAGE as u64 <= end {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                let from = offset.max(start) - start;
                let to = end.min(start + PAGE as u64) - start;
                bytes[from as usize..to as usize].fill(0);
            }
        }
    }
}

impl State {
    fn change(&mut self, write: bool) -> io::Result<()> {
        self.changes += 1;
        if write {
            self.writes += 1;
        }
        match self.fault {
            Fault::Dead(n) if self.changes >= n => Err(injected("the disk is dead")),
            Fault::Write(n) if write && self.writes == n => Err(injected("write failed")),
            _ => Ok(()),
        }
    }

    fn pages_used(&self) -> usize {
        self.files.iter().map(|image| image.live.pages.len()).sum()
    }

    /// Checks that `length` bytes at `offset` of a file fit.
    fn fits(&self, file: usize, offset: u64, length: u64) -> io::Result<()> {
        let image = &self.files[file];
        let range = offset / PAGE as u64..(offset + length).div_ceil(PAGE as u64);
        let wanted = (range.end - range.start) as usize;
        let there = image.live.pages.range(range).count();
        if self.pages_used() + wanted - there > self.capacity_pages {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

fn injected(what: &str) -> io::Error {
    io::Error::other(format!("injected: {what}"))
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        let index = match state.names.get(name) {
            Some(&index) => index,
            None => {
                state.change(false)?;
                let index = state.files.len();
                state.files.push(Image::default());
                state.names.insert(name.to_string(), index);
                index
            }
        };
        drop(state);
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            index,
        }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change(false)?;
        state
            .names
            .remove(name)
            .map(drop)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change(false)?;
        let Some(index) = state.names.remove(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        state.names.insert(to.to_string(), index);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change(false)?;
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.0.lock();
        let free = state.capacity_pages.saturating_sub(state.pages_used());
        Ok(Space {
            total: (state.capacity_pages * PAGE) as u64,
            free: (free * PAGE) as u64,
        })
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    index: usize,
}

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[self.index].live.length)
    }

    fn used(&self) -> io::Result<u64> {
        let state = self.disk.0.lock();
        Ok((state.files[self.index].live.pages.len() * PAGE) as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.0.lock();
        let content = &state.files[self.index].live;
        if offset + buffer.len() as u64 > content.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.read(offset, buffer);
        Ok(())
    }

    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.change(true)?;
        state.fits(self.index, offset, bytes.len() as u64)?;
        let image = &mut state.files[self.index];
        image.live.write(offset, bytes);
        image.pending.push(Change::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.change(false)?;
        state.syncs += 1;
        let failed = state.fault == Fault::Sync(state.syncs);
        let image = &mut state.files[self.index];
        if failed {
            // Like Linux: the pages count as clean now, and no later sync saves them.
            image.pending.clear();
            return Err(injected("sync failed"));
        }
        for change in std::mem::take(&mut image.pending) {
            image.durable.apply(&change);
        }
        Ok(())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.change(false)?;
        let image = &mut state.files[self.index];
        let change = Change::Length(length);
        image.live.apply(&change);
        image.pending.push(change);
        Ok(())
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.change(false)?;
        state.fits(self.index, offset, length)?;
        let image = &mut state.files[self.index];
        let change = Change::Allocate(offset, length);
        image.live.apply(&change);
        image.pending.push(change);
        Ok(())
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.change(false)?;
        let image = &mut state.files[self.index];
        let change = Change::Punch(offset, length);
        image.live.apply(&change);
        image.pending.push(change);
        Ok(())
    }
}

/// The generator of Steele, Lea and Flood (2014): small, seeded, good enough to choose faults.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_no_more() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.open("a").unwrap();
        disk.sync_names().unwrap();
        file.write_at(b"first", 0).unwrap();
        file.sync().unwrap();
        file.write_at(b"second", 0).unwrap();
        assert_eq!(disk.contents("a"), b"second");
        assert_eq!(disk.power_cut(None).contents("a"), b"first");
    }

    #[test]
    fn a_full_disk_refuses_and_takes_again_after_a_punch() {
        let disk = SimDisk::new(2 * PAGE as u64);
        let file = disk.open("a").unwrap();
        file.write_at(&[1; 2 * PAGE], 0).unwrap();
        let error = file.write_at(&[1], 2 * PAGE as u64).unwrap_err();
        assert!(super::super::is_full(&error));
        file.punch_hole(0, PAGE as u64).unwrap();
        file.write_at(&[1], 2 * PAGE as u64).unwrap();
        assert_eq!(disk.space().unwrap().free, 0);
    }

    #[test]
    fn a_failed_sync_loses_what_it_should_have_saved() {
        let disk = SimDisk::new(1 << 20);
        let file = disk.open("a").unwrap();
        disk.sync_names().unwrap();
        disk.set_fault(Fault::Sync(1));
        file.write_at(b"x", 0).unwrap();
        assert!(file.sync().is_err());
        file.sync().unwrap();
        assert_eq!(disk.power_cut(None).contents("a"), b"");
    }
}
