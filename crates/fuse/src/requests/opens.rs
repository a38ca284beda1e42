//! Open files: how the kernel may read each, and which handles belong to them.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_cachemanager::Handle;
use cellar_wire::acl::Rights;
use fuser::{BackingId, Errno, FopenFlags, INodeNo};

use super::{Answer, O_TRUNC, Requests, code};
use crate::inodes::Pages;
use crate::notices::Kernel;
use crate::passthrough::{Backing, LEAST, Opening};

/// Does not match any contents.
const NO_CONTENTS: u64 = u64::MAX;
/// The longest file that is given to the kernel when it is opened.
const GIVEN_MAX: u64 = LEAST - 1;

/// A file that a program has open.
#[derive(Debug)]
pub(super) struct OpenFile {
    handle: Arc<Handle>,
    /// The inode, if its opens are counted.
    counted: Option<u64>,
}

/// The result of an open.
pub(crate) struct Open {
    pub(crate) handle: u64,
    /// The backing file, if the kernel reads the file directly.
    pub(crate) backing: Option<Arc<Backing>>,
    /// Whether the kernel's pages are those of the present contents.
    pub(crate) pages_are_right: bool,
}

impl Open {
    pub(crate) fn flags(&self) -> FopenFlags {
        match self.pages_are_right {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::empty(),
        }
    }
}

impl Requests {
    pub(super) fn keep(&self, handle: Handle, counted: Option<u64>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let handle = Arc::new(handle);
        let file = OpenFile { handle, counted };
        self.files.lock().insert(number, file);
        number
    }

    pub(super) fn handle(&self, number: u64) -> Answer<Arc<Handle>> {
        let files = self.files.lock();
        let file = files.get(&number).ok_or(Errno::EBADF)?;
        Ok(file.handle.clone())
    }

    /// Opens a file. `register` registers one of the cache's files with the kernel.
    pub(crate) async fn open(
        &self,
        uid: u32,
        number: INodeNo,
        (flags, kills_set_id): (i32, bool),
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Answer<Open> {
        let vnode = self.vnode(number)?;
        let user = self.user(uid).await?;
        let wanted = match flags & 3 {
            0 => Rights::READ,
            1 => Rights::WRITE,
            _ => Rights::READ.union(Rights::WRITE),
        };
        let cut = flags & O_TRUNC != 0;
        let handle = self
            .cache
            .open(&user, &vnode, wanted, cut)
            .await
            .map_err(code)?;
        if kills_set_id {
            self.kill_set_id(&user, &vnode).await;
        }
        let is_read = wanted == Rights::READ && !cut;
        // Files of other volumes are never lent.
        let is_counted = self.passthrough.is_possible() && vnode.volume().is_read_only();
        let counted = is_counted.then_some(number.0);
        let backing = match counted {
            Some(inode) => match self.open_through(inode, &handle, register) {
                Ok(backing) => backing,
                Err(stale) => {
                    handle.close().await;
                    return Err(stale);
                }
            },
            None => None,
        };
        let pages_are_right = match &backing {
            Some(_) => false,
            None => self.pages_are_right(number, &handle, is_read) && !cut,
        };
        let handle = self.keep(handle, counted);
        Ok(Open {
            handle,
            backing,
            pages_are_right,
        })
    }

    /// Counts an open of a file that this machine cannot change. Returns the backing file if the
    /// kernel reads it directly.
    fn open_through(
        &self,
        inode: u64,
        handle: &Handle,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Answer<Option<Arc<Backing>>> {
        let (vnode, breaks) = (handle.vnode(), handle.vnode().breaks());
        let backing = match self.passthrough.open(inode, handle, register) {
            Opening::ByRequests => return Ok(None),
            Opening::Passthrough(backing) => backing,
            Opening::Stale if self.inodes.has_name(inode) => return Err(Errno::ESTALE),
            Opening::Stale => self.passthrough.open_old(inode).ok_or(Errno::ESTALE)?,
        };
        // Notices from before the file was lent did not make the kernel look up its names again.
        if vnode.breaks() != breaks
            || self
                .passthrough
                .attributes_at_open(inode, Some(vnode.content_generation()))
                .is_some()
        {
            self.cache.promises().invalidate(vnode);
        }
        // The kernel drops the pages that it has.
        self.inodes.pages_are(inode, NO_CONTENTS);
        Ok(Some(backing))
    }

    /// Returns whether the kernel's pages of a file that is being opened are valid. A small cached
    /// file that will be read is given to the kernel completely, so that reading it makes no
    /// request.
    ///
    /// Only one open of an inode at a time comes here, and the first gives the contents. No program
    /// reads the file yet, so the kernel waits for no page. The rest of the last page after the
    /// file's end is zero. Nothing in between waits.
    fn pages_are_right(&self, number: INodeNo, handle: &Handle, is_read: bool) -> bool {
        let _alone = self.giving.lock();
        let contents = handle.vnode().content_generation();
        match (self.inodes.pages_are(number.0, contents), self.kernel.get()) {
            (Pages::Right, _) => true,
            (Pages::None, Some(kernel)) if is_read => {
                handle.give_small(GIVEN_MAX, |bytes| kernel.give(number.0, bytes))
            }
            _ => false,
        }
    }

    /// Sets the kernel that gets contents.
    pub(crate) fn set_kernel(&self, kernel: Arc<Kernel>) {
        let _once = self.kernel.set(kernel);
    }

    pub(crate) async fn release(&self, handle: u64) {
        let Some(file) = self.files.lock().remove(&handle) else {
            return;
        };
        // Release the locks by flock(2) and those of the open file (F_OFD_SETLK). The kernel does
        // not tell their owner.
        let back = self
            .cache
            .locks()
            .unlock_open_file(file.handle.vnode(), handle);
        back.await;
        if let Some(inode) = file.counted {
            self.passthrough.close(inode);
        }
        // Reads that are under way end first; the last of them closes.
        if let Some(handle) = Arc::into_inner(file.handle) {
            handle.close().await;
        }
    }
}
