//! Notices to the kernel: what it keeps and must not use any more.
//!
//! 1. They are written by a thread of their own. A notice about a name waits in the kernel for the lock of
//!    its directory, which a request of ours may hold that waits for a server; so nobody waits for the
//!    thread longer than [`SETTLE_TIME`].
//! 2. What is waiting is a set of vnodes: a vnode that changes often is told once.
//! 3. Names *expire* where the kernel can do that (Linux 6.2): they are looked up again, and who stands in
//!    such a directory stays there. Older kernels drop them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_client::cache::{Key, Vnode, Watcher};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::inodes::Inodes;

/// How long a file server waits for the kernel to have acted on a break.
const SETTLE_TIME: Duration = Duration::from_millis(250);

/// `FUSE_NOTIFY_INVAL_INODE` and `FUSE_NOTIFY_INVAL_ENTRY`. Source: linux/fuse.h.
const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// Flag of an entry: expire it.
const EXPIRE_ONLY: u32 = 1;
/// The header of what is written to the kernel: length, code, 0.
const HEADER: usize = 16;

/// What waits to be told.
#[derive(Debug, Default)]
struct Waiting {
    /// Whether contents changed too.
    vnodes: HashMap<Key, (bool, bool)>,
    /// How many were ever put in.
    told: u64,
    ended: bool,
}

/// The kernel's notices.
#[derive(Debug)]
pub(crate) struct Notices {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Up to which count everything has been written.
    done: watch::Sender<u64>,
}

impl Notices {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            more: Condvar::new(),
            done: watch::Sender::new(0),
        })
    }

    /// Writes notices to `device` until [`Notices::end`]. Blocks: a thread of its own.
    pub(crate) fn run(&self, device: OwnedFd, inodes: &Inodes, can_expire: bool) {
        let mut kernel = Kernel {
            device: device.into(),
            entry_flags: if can_expire { EXPIRE_ONLY } else { 0 },
        };
        loop {
            let (vnodes, told) = {
                let mut waiting = self.waiting.lock();
                while waiting.vnodes.is_empty() && !waiting.ended {
                    self.more.wait(&mut waiting);
                }
                if waiting.ended {
                    return;
                }
                (std::mem::take(&mut waiting.vnodes), waiting.told)
            };
            for (key, (contents, directory)) in vnodes {
                for number in inodes.of(key) {
                    kernel.inode(number, contents && !directory);
                    if directory {
                        for name in inodes.take_names(number) {
                            kernel.entry(number, &name);
                        }
                    }
                }
            }
            self.done.send_replace(told);
        }
    }

    /// The thread ends, and nobody waits for it any more.
    pub(crate) fn end(&self) {
        self.waiting.lock().ended = true;
        self.more.notify_all();
        self.done.send_replace(u64::MAX);
    }
}

impl Watcher for Notices {
    fn changed(&self, vnode: &Arc<Vnode>, contents: bool) {
        let mut waiting = self.waiting.lock();
        if waiting.ended {
            return;
        }
        waiting.told += 1;
        let entry = waiting
            .vnodes
            .entry(vnode.key())
            .or_insert((false, vnode.is_directory()));
        entry.0 |= contents;
        self.more.notify_one();
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let told = self.waiting.lock().told;
        let mut done = self.done.subscribe();
        Box::pin(async move {
            let all = done.wait_for(|done| *done >= told);
            // Either way the server is answered: the argument is at the top.
            let _late = tokio::time::timeout(SETTLE_TIME, all).await;
        })
    }
}

/// The device, as far as notices go.
struct Kernel {
    device: File,
    entry_flags: u32,
}

impl Kernel {
    /// Attributes, and with `contents` the pages.
    fn inode(&mut self, number: u64, contents: bool) {
        let from: i64 = if contents { 0 } else { -1 };
        let mut body = [0; 24];
        body[..8].copy_from_slice(&number.to_ne_bytes());
        body[8..16].copy_from_slice(&from.to_ne_bytes());
        self.write(INVALIDATE_INODE, &body, None);
    }

    fn entry(&mut self, parent: u64, name: &Bytes) {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&parent.to_ne_bytes());
        body[8..12].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        body[12..].copy_from_slice(&self.entry_flags.to_ne_bytes());
        self.write(INVALIDATE_ENTRY, &body, Some(name));
    }

    fn write(&mut self, code: i32, body: &[u8], name: Option<&Bytes>) {
        let name = name.map_or(&[][..], |name| name);
        let end: &[u8] = if name.is_empty() { &[] } else { &[0] };
        let length = HEADER + body.len() + name.len() + end.len();
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let parts = [&header[..], body, name, end].map(IoSlice::new);
        match self.device.write_vectored(&parts) {
            Ok(_) => {}
            // It has forgotten it already, or the mount has gone.
            Err(cause) if matches!(cause.raw_os_error(), Some(2 | 19 | 107)) => {}
            Err(cause) => tracing::debug!(%cause, code, "a notice to the kernel"),
        }
    }
}
