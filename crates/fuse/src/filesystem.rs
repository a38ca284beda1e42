//! Decodes the kernel's requests. Answers them at once if possible, otherwise in the background.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use cellar_cachemanager::{Cache, NewAttributes};
use cellar_wire::ids::{AfsTime, ViceId};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle;

use crate::caller::Caller;
use crate::inodes::Inodes;
use crate::mount::Options;
use crate::requests::{O_APPEND, Requests};

mod attributes;
mod capabilities;
mod locks;
mod open_files;
mod replies;

/// The type bits of a mode, and those of a regular file.
const TYPE_BITS: u32 = 0o170_000;
const PLAIN_FILE: u32 = 0o100_000;

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
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

impl fuser::Filesystem for Filesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.look_up(request, parent, bytes(name), reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        self.requests.inodes.forget(number.0, lookups);
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) {
        self.requests.interrupts.interrupt(unique.0);
    }

    fn getattr(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.send_attributes(request, number, reply);
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
        // chown(-1, -1), which removes set-id bits. Linux 6.18 does not set the flag for it.
        let changes_nothing = wanted == NewAttributes::default() && atime.is_none();
        let kills = kills_set_id || changes_nothing;
        self.set_attributes(request, number, (wanted, handle, kills), reply);
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        self.send_link_text(request, number, reply);
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
        self.open_file(request, number, (flags.0, kills_set_id), reply);
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
        let flags = (flags, kills_set_id);
        self.create_file(request, (parent, bytes(name)), mode, flags, reply);
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
        self.read_bytes(request, handle, (offset, size), reply);
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
        // Pages that the kernel writes back have their own offsets.
        let of_pages = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let appends = flags.0 & O_APPEND != 0 && !of_pages;
        self.write_bytes(
            request,
            handle,
            (offset, data.to_vec()),
            (appends, kills),
            reply,
        );
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
        self.open_dir(request, number, reply);
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
        self.send_room(request, number, reply);
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
        self.send_xattr(request, number, (bytes(name), size), reply);
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
