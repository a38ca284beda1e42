//! Files that the kernel reads by itself, from the cache's own files (FUSE passthrough, Linux 6.9).
//!
//! 1. Linux has each inode in one of two states while it is open: either it asks us for the bytes and keeps them as its own pages,
//!    or every open of it has the same backing file. So it is counted which inodes are open, and how; what is open in the one way
//!    is opened in the same way until the last of them is closed. Source: linux/fs/fuse/iomode.c.
//! 2. It is done where what is lent never changes: for files of read-only and backup volumes (`cache/loans.rs`). When a release
//!    gives such a file another version while the old one is open so, the name leads to another inode from then on
//!    (`Inodes::enter`), which programs are shown as the same; for that, what breaks a promise about the file also makes the
//!    kernel ask for its names again. The old inode stays what it was, for those who have it open.
//! 3. An open that was on its way to the old inode is told ESTALE: the kernel then looks the name up again, and comes back with the
//!    new one. Where no name leads there any more it is /proc/PID/fd that is opened: that gets the old one.
//! 4. Where the kernel refuses (we are not root, the cache lies on a file system that is itself on top of another) it is not asked
//!    again, unless it only has no memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_client::cache::{Attributes, Handle, Loan};
use fuser::BackingId;
use parking_lot::Mutex;

use crate::inodes::Inodes;

/// Shorter files are given to the kernel as they are opened, or read in a request or two.
pub(crate) const LEAST: u64 = (64 << 10) + 1;

/// A file that the kernel has.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    loan: Loan,
}

/// How an inode is open, and how often.
#[derive(Debug)]
enum How {
    /// We are asked for its bytes.
    Asked(u64),
    Through(Arc<Backing>, u64),
}

/// How an inode was opened.
#[derive(Debug)]
pub(crate) enum Opening {
    Asked,
    Through(Arc<Backing>),
    /// It is open as something that it is not any more: rule 3. Not counted.
    Stale,
}

/// The open files of volumes that nobody writes to.
#[derive(Debug)]
pub(crate) struct Passthrough {
    /// It may be done in this mount.
    possible: AtomicBool,
    works: AtomicBool,
    /// Told of each change while `open` is held.
    inodes: Arc<Inodes>,
    open: Mutex<HashMap<u64, How>>,
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

    /// The kernel can do it.
    pub(crate) fn works(&self) {
        self.possible.store(true, Ordering::Release);
        self.works.store(true, Ordering::Release);
    }

    /// Whether it may be done at all: else opens need not be counted.
    pub(crate) fn is_possible(&self) -> bool {
        self.possible.load(Ordering::Acquire)
    }

    /// An inode is opened. `register`: gives the kernel a file.
    pub(crate) fn open(
        &self,
        inode: u64,
        handle: &Handle,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Opening {
        let is_open = self.open.lock().contains_key(&inode);
        let can = !is_open && self.works.load(Ordering::Acquire);
        // Comparing checksums takes a while: others go on meanwhile.
        let lent = can.then(|| handle.lend(LEAST)).flatten();
        let contents = handle.vnode().contents();
        let mut open = self.open.lock();
        match open.entry(inode) {
            Entry::Occupied(mut known) => match known.get_mut() {
                How::Asked(opens) => {
                    *opens += 1;
                    Opening::Asked
                }
                How::Through(backing, opens) if backing.loan.contents() == contents => {
                    *opens += 1;
                    Opening::Through(backing.clone())
                }
                How::Through(..) => Opening::Stale,
            },
            Entry::Vacant(new) => {
                let backing = lent.and_then(|(file, loan)| match register(&file) {
                    Ok(id) => Some(Arc::new(Backing { id, loan })),
                    Err(cause) => {
                        tracing::info!(%cause, "a file is not read past us: the kernel refuses");
                        let passes = cause.kind() == io::ErrorKind::OutOfMemory;
                        self.works.store(passes, Ordering::Release);
                        None
                    }
                });
                match backing {
                    Some(backing) => {
                        self.inodes.lent(inode, Some(backing.loan.contents()));
                        new.insert(How::Through(backing.clone(), 1));
                        Opening::Through(backing)
                    }
                    None => {
                        new.insert(How::Asked(1));
                        Opening::Asked
                    }
                }
            }
        }
    }

    /// An inode is opened as what it was, if it is open so.
    pub(crate) fn open_old(&self, inode: u64) -> Option<Arc<Backing>> {
        match self.open.lock().get_mut(&inode)? {
            How::Asked(_) => None,
            How::Through(backing, opens) => {
                *opens += 1;
                Some(backing.clone())
            }
        }
    }

    /// An inode is open once less.
    pub(crate) fn close(&self, inode: u64) {
        let mut open = self.open.lock();
        let Entry::Occupied(mut known) = open.entry(inode) else {
            return;
        };
        let (How::Asked(opens) | How::Through(_, opens)) = known.get_mut();
        *opens -= 1;
        if *opens == 0 {
            self.inodes.lent(inode, None);
            // The kernel is told to let the file go by whoever drops it last.
            known.remove();
        }
    }

    /// What an inode was when it was opened, if the kernel reads it by itself and that is not `contents`.
    pub(crate) fn was(&self, inode: u64, contents: Option<u64>) -> Option<Attributes> {
        match self.open.lock().get(&inode)? {
            How::Through(backing, _) if Some(backing.loan.contents()) != contents => {
                Some(backing.loan.attributes())
            }
            _ => None,
        }
    }
}
