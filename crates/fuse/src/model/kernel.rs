//! A simulated kernel: what Linux does with answers and notices of FUSE, as far as lengths, pages
//! and names are concerned. `interop/programs/kernel-rules.py` checks each of these rules on a real
//! kernel.
//!
//! Left out: the expiry of attributes by time; locks within this kernel; more than one directory.
//! An answer with a name is applied when it is written, so that a later notice finds the name.
//! Answers with attributes or bytes are applied later, by the task that asked.

mod state;

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cellar_cachemanager::NewAttributes;
use fuser::{Errno, INodeNo};
use parking_lot::Mutex;

pub(super) use state::PAGE;
use state::{Name, Page, State};

use super::chance::Chance;
use crate::inodes::ROOT;
use crate::notices::device::Device;
use crate::requests::{Answer, Requests};

const PARENT: INodeNo = INodeNo(ROOT);
const READ_WRITE: i32 = 2;
const CREATE: i32 = 0o100;
/// A notice that takes longer is late: the machine is too slow for the test.
const LATE: Duration = Duration::from_millis(100);
const NOT_FOUND: i32 = 2;

/// The result of an open.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) inode: u64,
    pub(super) handle: u64,
}

/// The way in which a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMethod {
    /// read(2): asks for the length if it reads past it.
    Read,
    /// lseek(2) to the end first.
    Seek,
    /// fstat(2) first.
    Stat,
    /// sendfile(2): uses the length that the kernel has.
    Send,
}

/// The kernel of one machine.
#[derive(Debug)]
pub(super) struct SimulatedKernel {
    state: Mutex<State>,
    /// Shared by look-ups of unknown names; a notice about a name holds it exclusively.
    directory: tokio::sync::RwLock<()>,
    chance: Arc<Chance>,
    late: Arc<AtomicBool>,
}

impl SimulatedKernel {
    pub(super) fn new(chance: Arc<Chance>, late: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            directory: tokio::sync::RwLock::default(),
            chance,
            late,
        })
    }

    /// Removes the pages that are not locked. Returns whether those were all.
    fn drop_some(&self, number: u64, left: &mut Vec<u64>) -> bool {
        let mut state = self.state.lock();
        let pages = &mut state.inode(number).pages;
        left.retain(|at| match pages.get(at) {
            Some(page) if page.locked => true,
            _ => {
                pages.remove(at);
                false
            }
        });
        left.is_empty()
    }

    fn all_pages(&self, number: u64) -> Vec<u64> {
        let mut state = self.state.lock();
        state.inode(number).pages.keys().copied().collect()
    }

    async fn drop_pages(&self, number: u64) {
        let mut left = self.all_pages(number);
        // Short pauses here and below: the kernel wakes a waiter as soon as the page is unlocked.
        while !self.drop_some(number, &mut left) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Drops pages as under a shortage of memory.
    pub(super) fn evict(&self, number: u64) {
        let mut left = self.all_pages(number);
        let _some = self.drop_some(number, &mut left);
    }

    // ---- notices

    fn inode_notice(&self, number: u64, from: i64, count: i64) -> bool {
        {
            let mut state = self.state.lock();
            if !state.inodes.contains_key(&number) {
                return false;
            }
            let next = state.next();
            let inode = state.inode(number);
            inode.version = next;
            inode.valid = false;
        }
        if from >= 0 {
            let last = match count {
                0 => u64::MAX,
                count => (from + count - 1) as u64 / PAGE,
            };
            let range = from as u64 / PAGE..=last;
            let mut left = self.all_pages(number);
            left.retain(|index| range.contains(index));
            while !self.drop_some(number, &mut left) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        true
    }

    fn store_notice(&self, number: u64, offset: u64, bytes: &[u8]) -> bool {
        let end = offset + bytes.len() as u64;
        let size = {
            let mut state = self.state.lock();
            if !state.inodes.contains_key(&number) {
                return false;
            }
            let next = state.next();
            let inode = state.inode(number);
            if end > inode.size {
                inode.version = next;
                inode.valid = false;
                inode.size = end;
            }
            inode.size
        };
        let mut at = offset;
        while at < end {
            let index = at / PAGE;
            let until = ((index + 1) * PAGE).min(end);
            let part = &bytes[(at - offset) as usize..(until - offset) as usize];
            let start = (at % PAGE) as usize;
            loop {
                let mut state = self.state.lock();
                let pages = &mut state.inode(number).pages;
                let page = pages.entry(index).or_insert(Page::empty(false));
                if !page.locked {
                    page.bytes[start..start + part.len()].copy_from_slice(part);
                    page.whole |= start == 0 && (part.len() as u64 == PAGE || end == size);
                    break;
                }
                drop(state);
                std::thread::sleep(Duration::from_micros(200));
            }
            at = until;
        }
        true
    }

    fn name_notice(&self, name: &[u8]) -> bool {
        // Called by a thread outside of the runtime.
        let _alone = self.directory.blocking_write();
        let mut state = self.state.lock();
        match state.names.get_mut(name) {
            Some(known) => {
                known.valid = false;
                true
            }
            None => false,
        }
    }

    // ---- requests

    async fn pause(&self) {
        self.chance.pause().await;
    }

    /// Looks up a name.
    pub(super) async fn look_up(&self, requests: &Requests, name: &[u8]) -> Option<u64> {
        let known = self.state.lock().names.get(name).copied();
        if let Some(known) = known.filter(|known| known.valid) {
            return known.inode;
        }
        // A known name is looked up without the lock.
        let _shared = match known {
            Some(_) => None,
            None => Some(self.directory.read().await),
        };
        let asked = self.state.lock().version;
        self.pause().await;
        let seen = requests.seen(PARENT).expect("the root");
        let answer = requests.lookup(0, PARENT, name, &seen).await;
        let (found, gone) = match &answer {
            Ok(entry) => {
                let number = entry.attr.ino.0;
                let mut state = self.state.lock();
                let gone = state.apply(number, &entry.attr, entry.attr_time, asked);
                let valid = !entry.entry_time.is_zero();
                let inode = Some(number);
                state.names.insert(name.to_vec(), Name { inode, valid });
                (inode, gone)
            }
            Err(errno) => {
                assert_eq!(errno.code(), Errno::ENOENT.code(), "looking up {name:?}");
                let time = requests.absent(PARENT, name, &seen);
                let valid = time.is_some();
                let mut state = self.state.lock();
                state
                    .names
                    .insert(name.to_vec(), Name { inode: None, valid });
                (None, false)
            }
        };
        if let Ok(entry) = &answer {
            requests.entered(entry);
        }
        requests.answered(&seen);
        if let Some(number) = found.filter(|_| gone) {
            self.drop_pages(number).await;
        }
        found
    }

    /// Opens an existing file.
    pub(super) async fn open(&self, requests: &Requests, name: &[u8]) -> Option<Descriptor> {
        for _ in 0..20 {
            let inode = self.look_up(requests, name).await?;
            self.pause().await;
            let none = |_: &std::fs::File| Err(io::ErrorKind::Unsupported.into());
            let opened = requests
                .open(0, INodeNo(inode), (READ_WRITE, false), none)
                .await;
            self.pause().await;
            match opened {
                Ok(open) => {
                    if !open.pages_are_right {
                        self.drop_pages(inode).await;
                    }
                    let handle = open.handle;
                    return Some(Descriptor { inode, handle });
                }
                // Another file has the name by now: the kernel looks it up again.
                Err(errno) => {
                    let again = [Errno::ESTALE.code(), NOT_FOUND];
                    assert!(again.contains(&errno.code()), "open: {errno:?}");
                    if let Some(known) = self.state.lock().names.get_mut(name) {
                        known.valid = false;
                    }
                }
            }
        }
        panic!("every open of the name failed");
    }

    pub(super) async fn create(&self, requests: &Requests, name: &[u8]) -> Descriptor {
        let _alone = self.directory.write().await;
        let asked = self.state.lock().version;
        self.pause().await;
        let flags = READ_WRITE | CREATE;
        let created = requests
            .create(0, PARENT, name, 0o644, (flags, false))
            .await;
        let (entry, open) = created.expect("create");
        let inode = entry.attr.ino.0;
        {
            let mut state = self.state.lock();
            let _new = state.apply(inode, &entry.attr, entry.attr_time, asked);
            let valid = !entry.entry_time.is_zero();
            let inode = Some(inode);
            state.names.insert(name.to_vec(), Name { inode, valid });
        }
        requests.entered(&entry);
        let handle = open.handle;
        Descriptor { inode, handle }
    }

    /// fstat(2).
    pub(super) async fn stat(&self, requests: &Requests, file: &Descriptor) -> Answer<u64> {
        match self.known_size(file.inode) {
            Some(size) => Ok(size),
            None => self.ask(requests, file.inode).await,
        }
    }

    fn known_size(&self, number: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let inode = state.inode(number);
        inode.valid.then_some(inode.size)
    }

    /// GETATTR. The result of stat(2) comes from the answer, even if the answer is otherwise
    /// ignored.
    async fn ask(&self, requests: &Requests, number: u64) -> Answer<u64> {
        let asked = self.state.lock().version;
        self.pause().await;
        let answer = requests.attributes(0, INodeNo(number)).await;
        let (attr, time) = answer?;
        self.pause().await;
        let gone = self.state.lock().apply(number, &attr, time, asked);
        if gone {
            self.drop_pages(number).await;
        }
        Ok(attr.size)
    }

    /// Reads a whole file.
    pub(super) async fn read(
        &self,
        requests: &Requests,
        file: &Descriptor,
        way: ReadMethod,
    ) -> Answer<Vec<u8>> {
        match way {
            ReadMethod::Stat => {
                let _size = self.stat(requests, file).await?;
            }
            ReadMethod::Seek if self.known_size(file.inode).is_none() => {
                let _size = self.ask(requests, file.inode).await?;
            }
            // Past the end, wherever that is.
            ReadMethod::Read if self.known_size(file.inode).is_none() => {
                let _size = self.ask(requests, file.inode).await?;
            }
            _ => {}
        }
        let mut data = Vec::new();
        loop {
            let at = data.len() as u64;
            let size = self.state.lock().inode(file.inode).size;
            if at >= size {
                return Ok(data);
            }
            let index = at / PAGE;
            if !self.read_page(requests, file, index, size).await? {
                continue;
            }
            let mut state = self.state.lock();
            let inode = state.inode(file.inode);
            // The length at the time of the page counts.
            let end = ((index + 1) * PAGE).min(inode.size);
            if at < end
                && let Some(page) = inode.pages.get(&index)
            {
                let range = (at % PAGE) as usize..(end - index * PAGE) as usize;
                data.extend_from_slice(&page.bytes[range]);
            }
        }
    }

    /// Ensures that a page is there. Returns false if it must be checked again.
    async fn read_page(
        &self,
        requests: &Requests,
        file: &Descriptor,
        index: u64,
        size: u64,
    ) -> Answer<bool> {
        let (asked, last) = {
            let mut state = self.state.lock();
            let asked = state.version;
            let pages = &mut state.inode(file.inode).pages;
            match pages.get(&index) {
                Some(page) if page.locked => (asked, None),
                Some(page) if page.whole => return Ok(true),
                _ => {
                    // The pages after it are read with it.
                    let most = size.div_ceil(PAGE).min(index + 1 + self.chance.below(4));
                    let mut last = index;
                    for next in index..most {
                        let is_free = pages.get(&next).is_none_or(|p| !p.whole && !p.locked);
                        if !is_free {
                            break;
                        }
                        pages.insert(next, Page::empty(true));
                        last = next;
                    }
                    (asked, Some(last))
                }
            }
        };
        let Some(last) = last else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Ok(false);
        };
        self.pause().await;
        let (start, end) = (index * PAGE, (last + 1) * PAGE);
        let answer = requests
            .read(file.handle, start, (end - start) as u32)
            .await;
        self.pause().await;
        let mut state = self.state.lock();
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(errno) => {
                let pages = &mut state.inode(file.inode).pages;
                pages.retain(|at, _| !(index..=last).contains(at));
                return Err(errno);
            }
        };
        let next = state.version + 1;
        let inode = state.inode(file.inode);
        let real_end = start + bytes.len() as u64;
        let is_short = real_end < end && real_end < inode.size;
        if is_short && asked >= inode.version && inode.unstable == 0 {
            inode.version = next;
            inode.size = real_end;
        }
        for at in index..=last {
            let Some(page) = inode.pages.get_mut(&at) else {
                continue;
            };
            let from = ((at - index) * PAGE) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let count = part.len().min(PAGE as usize);
            page.bytes = [0; PAGE as usize];
            page.bytes[..count].copy_from_slice(&part[..count]);
            page.whole = true;
            page.locked = false;
        }
        state.version = next;
        Ok(true)
    }

    /// write(2). With `appends` it writes at the end, where this kernel believes it to be.
    pub(super) async fn write(
        &self,
        requests: &Requests,
        file: &Descriptor,
        at: u64,
        data: &[u8],
        appends: bool,
    ) {
        let alone = self.state.lock().inode(file.inode).alone.clone();
        let _alone = alone.lock().await;
        let at = match appends {
            true => self.state.lock().inode(file.inode).size,
            false => at,
        };
        let end = at + data.len() as u64;
        let grows = {
            let mut state = self.state.lock();
            let inode = state.inode(file.inode);
            let grows = end > inode.size;
            inode.unstable += u32::from(grows);
            grows
        };
        let indexes = at / PAGE..end.div_ceil(PAGE);
        // Pages are locked until the server of the file system has the bytes. Linux unlocks
        // complete pages earlier, so that a page may be dropped and read again before; this is not
        // simulated.
        let mut held = Vec::new();
        for index in indexes {
            let (from, until) = ((index * PAGE).max(at), ((index + 1) * PAGE).min(end));
            let part = &data[(from - at) as usize..(until - at) as usize];
            let mut put = || {
                let mut state = self.state.lock();
                let pages = &mut state.inode(file.inode).pages;
                match pages.get_mut(&index) {
                    Some(page) if page.locked => return false,
                    Some(page) if page.whole => {
                        let place = (from - index * PAGE) as usize;
                        page.bytes[place..place + part.len()].copy_from_slice(part);
                        page.locked = true;
                    }
                    _ => {
                        pages.insert(index, Page::empty(true));
                    }
                }
                held.push(index);
                true
            };
            while !put() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        self.pause().await;
        let answer = match appends {
            true => requests.append(file.handle, at, data).await,
            false => requests.write(file.handle, at, data).await,
        };
        answer.expect("write");
        self.pause().await;
        let mut state = self.state.lock();
        let next = state.next();
        let inode = state.inode(file.inode);
        inode.version = next;
        inode.valid = false;
        inode.size = inode.size.max(end);
        inode.unstable -= u32::from(grows);
        for index in held {
            match inode.pages.get_mut(&index) {
                Some(page) if page.whole => page.locked = false,
                _ => {
                    inode.pages.remove(&index);
                }
            }
        }
    }

    /// ftruncate(2).
    pub(super) async fn truncate(&self, requests: &Requests, file: &Descriptor, length: u64) {
        let alone = self.state.lock().inode(file.inode).alone.clone();
        let _alone = alone.lock().await;
        let asked = {
            let mut state = self.state.lock();
            state.inode(file.inode).unstable += 1;
            state.version
        };
        self.pause().await;
        let wanted = NewAttributes {
            length: Some(length),
            ..NewAttributes::default()
        };
        let set = requests.set_attributes(0, INodeNo(file.inode), wanted, Some(file.handle), false);
        let (attr, time) = set.await.expect("truncate");
        self.pause().await;
        {
            let mut state = self.state.lock();
            let next = state.next();
            let inode = state.inode(file.inode);
            // An answer that was overtaken counts, and the attributes are requested again.
            inode.valid = !time.is_zero() && inode.version <= asked;
            inode.version = next;
            inode.size = attr.size;
            inode.unstable -= 1;
        }
        self.drop_pages(file.inode).await;
    }

    /// close(2) of the only descriptor.
    pub(super) async fn close(&self, requests: &Requests, file: Descriptor) {
        self.pause().await;
        requests.store(file.handle, false).await.expect("close");
        self.pause().await;
        requests.release(file.handle).await;
    }
}

/// The device of a simulated kernel.
#[derive(Debug)]
pub(super) struct SimulatedDevice(pub(super) Arc<SimulatedKernel>);

impl Device for SimulatedDevice {
    fn notice(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let number = |at: usize| u64::from_ne_bytes(all[at..at + 8].try_into().expect("8 bytes"));
        let code = i32::from_ne_bytes(all[4..8].try_into().expect("4 bytes"));
        let paper = &self.0;
        let begun = Instant::now();
        // The notice for the page of a last byte follows directly after the byte.
        let of_page = code == 2 && number(32) != 0;
        if !of_page {
            paper.chance.pause_thread();
        }
        let known = match code {
            2 => paper.inode_notice(number(16), number(24) as i64, number(32) as i64),
            3 => paper.name_notice(&all[32..all.len() - 1]),
            4 => paper.store_notice(number(16), number(24), &all[40..]),
            _ => panic!("a notice {code}"),
        };
        if begun.elapsed() > LATE {
            paper.late.store(true, Ordering::Release);
        }
        match known {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(NOT_FOUND)),
        }
    }
}
