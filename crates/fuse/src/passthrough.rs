//! Files that the kernel reads directly, from the cache's own files (FUSE passthrough, Linux 6.9).
//!
//! 1. In Linux each open inode is in one of two states. Either the kernel requests the bytes and
//!    keeps them as its own pages, or every open has the same backing file. So the open inodes are
//!    counted with their state. An inode that is open in one state is opened in that state until
//!    its last close. Source: linux/fs/fuse/iomode.c.
//! 2. Only contents that never change are lent: files of read-only and backup volumes
//!    (`cache/loans.rs`). A release may give such a file another version while the old one is open
//!    this way. Then the name leads to another inode from then on (`Inodes::enter`), which programs
//!    see under the same number. For that, a break of the file's promise also makes the kernel look
//!    up its names again. The old inode keeps its contents for the programs that have it open.
//! 3. An open that is on its way to the old inode fails with ESTALE. The kernel then looks up the
//!    name again, and opens the new inode. If no name leads to the inode any more, the path was
//!    /proc/PID/fd; that open gets the old contents.
//! 4. The kernel refuses a backing file if we are not root, or if the cache is on a stacked file
//!    system. Then it is not asked again, unless it only lacked memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_cachemanager::{Attributes, Handle, Loan};
use fuser::BackingId;
use parking_lot::Mutex;

use crate::inodes::Inodes;

/// Shorter files are given to the kernel when they are opened, or read by a request or two.
pub(crate) const LEAST: u64 = (64 << 10) + 1;

/// A backing file that is registered with the kernel.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    loan: Loan,
}

/// The state of an open inode, and the number of its opens.
#[derive(Debug)]
enum OpenState {
    /// The kernel requests the bytes.
    ByRequests(u64),
    Passthrough(Arc<Backing>, u64),
}

/// The result of an open.
#[derive(Debug)]
pub(crate) enum Opening {
    ByRequests,
    Passthrough(Arc<Backing>),
    /// The inode is open with older contents: rule 3. Not counted.
    Stale,
}

/// The open files of read-only and backup volumes.
#[derive(Debug)]
pub(crate) struct Passthrough {
    /// Whether this mount may use passthrough.
    possible: AtomicBool,
    works: AtomicBool,
    /// Receives each change while `open` is held.
    inodes: Arc<Inodes>,
    open: Mutex<HashMap<u64, OpenState>>,
}

impl Passthrough {
    pub(crate) fn new(inodes: Arc<Inodes>) -> Self {
        Self {
            possible: AtomicBool::new(false),
            works: AtomicBool::new(false),
            inodes,
            open: Mutex::default(),
        }
    }

    /// Notes that the kernel supports it.
    pub(crate) fn works(&self) {
        self.possible.store(true, Ordering::Release);
        self.works.store(true, Ordering::Release);
    }

    /// Returns whether passthrough is possible. Otherwise opens need not be counted.
    pub(crate) fn is_possible(&self) -> bool {
        self.possible.load(Ordering::Acquire)
    }

    /// Opens an inode. `register` registers a file with the kernel.
    pub(crate) fn open(
        &self,
        inode: u64,
        handle: &Handle,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Opening {
        let is_open = self.open.lock().contains_key(&inode);
        let can = !is_open && self.works.load(Ordering::Acquire);
        // Verifying checksums takes a while. Do it before the lock, so that other opens can
        // proceed.
        let lent = can.then(|| handle.lend(LEAST)).flatten();
        let contents = handle.vnode().content_generation();
        let mut open = self.open.lock();
        match open.entry(inode) {
            Entry::Occupied(mut known) => match known.get_mut() {
                OpenState::ByRequests(opens) => {
                    *opens += 1;
                    Opening::ByRequests
                }
                OpenState::Passthrough(backing, opens)
                    if backing.loan.content_generation() == contents =>
                {
                    *opens += 1;
                    Opening::Passthrough(backing.clone())
                }
                OpenState::Passthrough(..) => Opening::Stale,
            },
            Entry::Vacant(new) => {
                let backing = lent.and_then(|(file, loan)| match register(&file) {
                    Ok(id) => Some(Arc::new(Backing { id, loan })),
                    Err(cause) => {
                        tracing::info!(%cause, "the kernel refuses a backing file");
                        let passes = cause.kind() == io::ErrorKind::OutOfMemory;
                        self.works.store(passes, Ordering::Release);
                        None
                    }
                });
                match backing {
                    Some(backing) => {
                        self.inodes
                            .lent(inode, Some(backing.loan.content_generation()));
                        new.insert(OpenState::Passthrough(backing.clone(), 1));
                        Opening::Passthrough(backing)
                    }
                    None => {
                        new.insert(OpenState::ByRequests(1));
                        Opening::ByRequests
                    }
                }
            }
        }
    }

    /// Opens an inode with its old contents, if it is open with these.
    pub(crate) fn open_old(&self, inode: u64) -> Option<Arc<Backing>> {
        match self.open.lock().get_mut(&inode)? {
            OpenState::ByRequests(_) => None,
            OpenState::Passthrough(backing, opens) => {
                *opens += 1;
                Some(backing.clone())
            }
        }
    }

    /// Counts a close of an inode.
    pub(crate) fn close(&self, inode: u64) {
        let mut open = self.open.lock();
        let Entry::Occupied(mut known) = open.entry(inode) else {
            return;
        };
        let (OpenState::ByRequests(opens) | OpenState::Passthrough(_, opens)) = known.get_mut();
        *opens -= 1;
        if *opens == 0 {
            self.inodes.lent(inode, None);
            // The last owner of the backing drops it, and that closes the file in the kernel.
            known.remove();
        }
    }

    /// The attributes of an inode at its open, if the kernel reads it directly and its contents
    /// differ from `contents`.
    pub(crate) fn attributes_at_open(
        &self,
        inode: u64,
        contents: Option<u64>,
    ) -> Option<Attributes> {
        match self.open.lock().get(&inode)? {
            OpenState::Passthrough(backing, _)
                if Some(backing.loan.content_generation()) != contents =>
            {
                Some(backing.loan.attributes())
            }
            _ => None,
        }
    }
}
