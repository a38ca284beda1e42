//! Decodes the kernel's requests. Answers them at once if possible, otherwise in the background.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::SystemTime;

use cellar_cachemanager::{Cache, NewAttributes};
use cellar_wire::ids::{AfsTime, ViceId};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle;

use crate::caller::Caller;
use crate::directories::DirectoryReply;
use crate::inodes::Inodes;
use crate::mount::Options;
use crate::requests::{Answer, Entry, O_APPEND, Requests};
use crate::xattr;

mod locks;

/// Bytes of one write.
pub(crate) const WRITE_BYTES: u32 = 1 << 20;
/// The most requests for read-ahead and write-back. Requests to a silent server leave room.
const BACKGROUND: u16 = 512;
/// The type bits of a mode, and those of a regular file.
const TYPE_BITS: u32 = 0o170_000;
const PLAIN_FILE: u32 = 0o100_000;
/// The block size of `statfs`.
const BLOCK: u32 = 1024;

/// The implementation that the session calls.
pub(crate) struct Filesystem {
    requests: Arc<Requests>,
    runtime: Handle,
    can_expire: Arc<AtomicBool>,
}

impl Filesystem {
    pub(crate) fn new(
        cache: Arc<Cache>,
        inodes: Arc<Inodes>,
        runtime: Handle,
        options: &Options,
    ) -> Self {
        Self {
            requests: Arc::new(Requests::new(cache, inodes, options)),
            runtime,
            can_expire: Arc::default(),
        }
    }

    /// The part that answers requests.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        self.requests.clone()
    }

    /// Whether the kernel can expire names; known once it is mounted.
    pub(crate) fn can_expire(&self) -> Arc<AtomicBool> {
        self.can_expire.clone()
    }

    /// The thread that sent a request.
    fn caller(&self, request: &Request) -> Caller {
        Caller::of(request, &self.requests.interrupts)
    }

    /// Runs `work` here if it need not wait, otherwise in the background.
    fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        let _inside = self.runtime.enter();
        let mut here = Context::from_waker(Waker::noop());
        if work.as_mut().poll(&mut here).is_pending() {
            // The runtime polls it again first, with a working waker.
            self.runtime.spawn(work);
        }
    }

    /// Answers a request with an entry.
    fn entry<F>(&self, request: &Request, reply: ReplyEntry, work: impl FnOnce(Arc<Requests>) -> F)
    where
        F: Future<Output = Answer<Entry>> + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let work = work(requests.clone());
        self.run(async move {
            match requests.within(&caller, work).await {
                Ok(entry) => {
                    give(reply, &entry);
                    requests.entered(&entry);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers a request with an empty reply.
    fn empty<F>(&self, request: &Request, reply: ReplyEmpty, work: impl FnOnce(Arc<Requests>) -> F)
    where
        F: Future<Output = Answer<()>> + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let work = work(requests.clone());
        self.run(async move {
            match requests.within(&caller, work).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers a request for names of an open directory, from `offset` on.
    fn page<P>(&self, request: &Request, (number, handle): (INodeNo, u64), offset: u64, mut page: P)
    where
        P: DirectoryReply + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let uid = request.uid();
        self.run(async move {
            let read = requests.read_dir(uid, number, handle, offset, &mut page);
            match requests.within(&caller, read).await {
                Ok(given) => {
                    page.send();
                    given.sent();
                }
                Err(errno) => page.refuse(errno),
            }
        });
    }
}

/// Sends the entry of a name.
fn give(reply: ReplyEntry, entry: &Entry) {
    reply.entry_with_ttls(
        &entry.attr_time,
        &entry.entry_time,
        &entry.attr,
        Generation(entry.generation),
    );
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

impl fuser::Filesystem for Filesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            // Always: if the kernel keeps a listing, nothing else would deliver the attributes.
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            // Otherwise each write(2) first asks for the extended attribute of capabilities.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // An older kernel lacks some of these, and sends more requests then.
        let _lacking = config.add_capabilities(wanted & config.capabilities());
        let through = InitFlags::FUSE_PASSTHROUGH & config.capabilities();
        let is_kept = self.requests.cache.options().directory.is_some();
        if is_kept && !through.is_empty() && config.set_max_stack_depth(1).is_ok() {
            let _lacking = config.add_capabilities(through);
            self.requests.passthrough.works();
        }
        let _largest = config.set_max_write(WRITE_BYTES);
        let _largest = config.set_max_readahead(WRITE_BYTES);
        let _largest = config.set_max_background(BACKGROUND);
        let can = config
            .capabilities()
            .contains(InitFlags::FUSE_HAS_EXPIRE_ONLY);
        self.can_expire.store(can, Ordering::Release);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (uid, name) = (request.uid(), bytes(name));
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            let root = requests.find_root(uid, parent);
            let found = requests.within(&caller, root).await;
            let seen = match found.and_then(|()| requests.seen(parent)) {
                Ok(seen) => seen,
                Err(errno) => return reply.error(errno),
            };
            let lookup = requests.lookup(uid, parent, &name, &seen);
            match requests.within(&caller, lookup).await {
                Ok(entry) => {
                    give(reply, &entry);
                    requests.entered(&entry);
                }
                Err(errno) => {
                    let is_absent = errno.code() == Errno::ENOENT.code();
                    let time = is_absent.then(|| requests.absent(parent, &name, &seen));
                    match time.flatten() {
                        Some(time) => {
                            reply.entry(&time, &crate::requests::nothing(), Generation(0));
                        }
                        None => reply.error(errno),
                    }
                }
            }
            requests.answered(&seen);
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        self.requests.inodes.forget(number.0, lookups);
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) {
        self.requests.interrupts.came(unique.0);
    }

    fn getattr(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.attributes(uid, number))
                .await
            {
                Ok((attr, time)) => reply.attr(&time, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        kills_set_id: bool,
        reply: ReplyAttr,
    ) {
        // chown(-1, -1), which removes set-id bits. Linux 6.18 does not set the flag for it.
        let times = atime.is_some() || mtime.is_some();
        let changes_nothing =
            [mode, uid, gid].iter().all(Option::is_none) && size.is_none() && !times;
        let wanted = NewAttributes {
            mode,
            owner: uid.map(|uid| ViceId(uid as i32)),
            group: gid.map(|gid| ViceId(gid as i32)),
            length: size,
            modified: mtime.map(|time| match time {
                TimeOrNow::SpecificTime(time) => AfsTime::from(time),
                TimeOrNow::Now => AfsTime::from(SystemTime::now()),
            }),
        };
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            let handle = handle.map(|handle| handle.0);
            let kills = kills_set_id || changes_nothing;
            let set = requests.set_attributes(uid, number, wanted, handle, kills);
            match requests.within(&caller, set).await {
                Ok((attr, time)) => reply.attr(&time, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.link_text(uid, number))
                .await
            {
                Ok(text) => reply.data(&text),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if mode & TYPE_BITS != PLAIN_FILE {
            // AFS has no such vnodes.
            reply.error(Errno::EPERM);
            return;
        }
        let (uid, name) = (request.uid(), bytes(name));
        self.entry(request, reply, |requests| async move {
            requests.make(uid, parent, &name, mode, false).await
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (uid, name) = (request.uid(), bytes(name));
        self.entry(request, reply, |requests| async move {
            requests.make(uid, parent, &name, mode, true).await
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (uid, name) = (request.uid(), bytes(name));
        self.empty(request, reply, |requests| async move {
            requests.unlink(uid, parent, &name).await
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (uid, name) = (request.uid(), bytes(name));
        self.empty(request, reply, |requests| async move {
            requests.remove_dir(uid, parent, &name).await
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (uid, name, text) = (request.uid(), bytes(name), bytes(target.as_os_str()));
        self.entry(request, reply, |requests| async move {
            requests.symlink(uid, parent, &name, &text).await
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (uid, name, new_name) = (request.uid(), bytes(name), bytes(new_name));
        self.empty(request, reply, |requests| async move {
            let (from, to) = ((parent, &name[..]), (new_parent, &new_name[..]));
            requests.rename(uid, from, to, flags).await
        });
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (uid, name) = (request.uid(), bytes(new_name));
        self.entry(request, reply, |requests| async move {
            requests.link(uid, number, new_parent, &name).await
        });
    }

    fn open(
        &self,
        request: &Request,
        number: INodeNo,
        flags: OpenFlags,
        kills_set_id: bool,
        reply: ReplyOpen,
    ) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            let register = |file: &File| reply.open_backing(file);
            let open = requests.open(uid, number, (flags.0, kills_set_id), register);
            let opened = requests.within(&caller, open).await;
            match opened {
                Ok(open) => {
                    let (handle, flags) = (FileHandle(open.handle), open.flags());
                    match &open.backing {
                        Some(backing) => reply.opened_passthrough(handle, flags, &backing.id),
                        None => reply.opened(handle, flags),
                    }
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        kills_set_id: bool,
        reply: ReplyCreate,
    ) {
        let (requests, uid, name) = (self.requests.clone(), request.uid(), bytes(name));
        let caller = self.caller(request);
        self.run(async move {
            let created = requests.create(uid, parent, &name, mode, (flags, kills_set_id));
            match requests.within(&caller, created).await {
                Ok((entry, open)) => {
                    reply.created(
                        &entry.entry_time.min(entry.attr_time),
                        &entry.attr,
                        Generation(entry.generation),
                        FileHandle(open.handle),
                        open.flags(),
                    );
                    requests.entered(&entry);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            match requests
                .within(&caller, requests.read(handle.0, offset, size))
                .await
            {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (requests, data) = (self.requests.clone(), data.to_vec());
        // Pages that the kernel writes back have their own offsets.
        let of_pages = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let appends = flags.0 & O_APPEND != 0 && !of_pages;
        let caller = self.caller(request);
        self.run(async move {
            // No time limit: a write may wait until bytes are stored, which makes progress.
            let write = async {
                if kills {
                    requests.kill_set_id_of(handle.0).await?;
                }
                match appends {
                    true => requests.append(handle.0, offset, &data).await,
                    false => requests.write(handle.0, offset, &data).await,
                }
            };
            let let_go = |reply: ReplyWrite| reply.error(Errno::EINTR);
            match caller.outlived_by(write, reply, let_go).await {
                None => {}
                Some((reply, Ok(count))) => reply.written(count),
                Some((reply, Err(errno))) => reply.error(errno),
            }
        });
    }

    fn flush(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.store(request, handle, false, Some(owner), reply);
    }

    fn fsync(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.store(request, handle, true, None, reply);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let requests = self.requests.clone();
        self.run(async move {
            requests.release(handle.0).await;
            reply.ok();
        });
    }

    fn opendir(&self, request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.open_dir(uid, number))
                .await
            {
                Ok(open) => reply.opened(FileHandle(open.handle), open.flags()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.page(request, (number, handle.0), offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.page(request, (number, handle.0), offset, reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.requests.release_dir(number, handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(request, reply, |requests| async move {
            requests.sync_dir(number).await
        });
    }

    fn statfs(&self, request: &Request, number: INodeNo, reply: ReplyStatfs) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests.within(&caller, requests.room(uid, number)).await {
                Ok((all, free)) => reply.statfs(all, free, free, 0, 0, BLOCK, 255, BLOCK),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn getlk(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let asked = locks::LockRequest {
            handle,
            owner,
            range: (start, end),
            kind,
            pid,
            flock: false,
        };
        self.get_lock(request, asked, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        flock: bool,
        reply: ReplyEmpty,
    ) {
        let asked = locks::LockRequest {
            handle,
            owner,
            range: (start, end),
            kind,
            pid,
            flock,
        };
        self.set_lock(request, asked, sleep, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if !xattr::is_ours(name.as_bytes()) {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        let (requests, uid, name) = (self.requests.clone(), request.uid(), bytes(name));
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.xattr(uid, number, &name))
                .await
            {
                Ok(value) if size == 0 => reply.size(value.len() as u32),
                Ok(value) if value.len() <= size as usize => reply.data(&value),
                Ok(_) => reply.error(Errno::ERANGE),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (uid, name, value) = (request.uid(), bytes(name), value.to_vec());
        self.empty(request, reply, |requests| async move {
            requests.set_xattr(uid, number, &name, &value, flags).await
        });
    }

    fn listxattr(&self, _request: &Request, _number: INodeNo, size: u32, reply: ReplyXattr) {
        match size {
            0 => reply.size(0),
            _ => reply.data(&[]),
        }
    }

    fn removexattr(&self, _request: &Request, _number: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EOPNOTSUPP);
    }

    // Requests that are not offered. Without these methods `fuser` would write a log line for each.

    /// isatty(3) and similar calls: AFS has no ioctl(2).
    fn ioctl(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// The kernel asks once, and then takes files to be always ready.
    fn poll(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Programs get `EOPNOTSUPP` from then on: a server reserves no space for bytes that are not
    /// stored.
    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// `SEEK_DATA` and `SEEK_HOLE`: the kernel takes the whole file as data from then on.
    fn lseek(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// The kernel copies by reads and writes from then on.
    fn copy_file_range(
        &self,
        _request: &Request,
        _from: INodeNo,
        _from_handle: FileHandle,
        _from_offset: u64,
        _to: INodeNo,
        _to_handle: FileHandle,
        _to_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// AFS files have no blocks on a device.
    fn bmap(
        &self,
        _request: &Request,
        _number: INodeNo,
        _block_size: u32,
        _block: u64,
        reply: ReplyBmap,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, request: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (uid, mask) = (request.uid(), mask.bits());
        self.empty(request, reply, |requests| async move {
            requests.access(uid, number, mask).await
        });
    }
}

impl Filesystem {
    /// Stores a file. If `owner` is given, a descriptor is closed, and the process loses its
    /// fcntl(2) locks on the file.
    fn store(
        &self,
        request: &Request,
        handle: FileHandle,
        durable: bool,
        owner: Option<LockOwner>,
        reply: ReplyEmpty,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let caller = match owner {
            Some(_) => caller.closing(),
            None => caller,
        };
        self.run(async move {
            // No time limit: a large store takes long, and a silent server ends it.
            let store = async {
                let stored = requests.store(handle.0, durable).await;
                if let Some(owner) = owner {
                    requests.descriptor_closed(handle.0, owner.0).await;
                }
                stored
            };
            let let_go = |reply: ReplyEmpty| reply.error(Errno::EINTR);
            match caller.outlived_by(store, reply, let_go).await {
                None => {}
                Some((reply, Ok(()))) => reply.ok(),
                Some((reply, Err(errno))) => reply.error(errno),
            }
        });
    }
}
