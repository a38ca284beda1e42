//! The kernel's device, and the form of each notice. Source: linux/fuse.h.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

/// `FUSE_NOTIFY_INVAL_INODE` and `FUSE_NOTIFY_INVAL_ENTRY`. Source: linux/fuse.h.
const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_STORE`.
const STORE: i32 = 4;
/// `FUSE_NOTIFY_PRUNE`, of protocol 7.45.
const PRUNE: i32 = 9;
/// Flag of an entry: expire it.
const EXPIRE_ONLY: u32 = 1;
/// `EINVAL`: an older kernel does not know the notice.
const INVALID: i32 = 22;
/// The header of a message to the kernel: length, code, 0.
const HEADER: usize = 16;

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
    pub(super) fn inode(&self, number: u64, contents: bool) {
        let from: i64 = if contents { 0 } else { -1 };
        self.invalidate(number, from, 0);
    }

    /// Invalidates attributes, and the page that holds that byte.
    pub(super) fn page(&self, number: u64, at: u64) {
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
    pub(super) fn give_at(&self, number: u64, at: u64, bytes: &[u8]) {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&number.to_ne_bytes());
        body[8..16].copy_from_slice(&at.to_ne_bytes());
        body[16..20].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        self.write_parts(STORE, &body, bytes, &[]);
    }

    /// Invalidates a name, which may lead elsewhere now.
    pub(super) fn entry(&self, parent: u64, name: &Bytes) {
        self.invalidate_entry(parent, name, self.entry_flags);
    }

    pub(super) fn drop_entry(&self, parent: u64, name: &Bytes) {
        self.invalidate_entry(parent, name, 0);
    }

    /// Drops the names of inodes that nothing in the kernel uses, one after the other.
    pub(super) fn prune(&self, numbers: &[u64]) {
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
