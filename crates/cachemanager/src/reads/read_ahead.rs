//! Read-ahead of small files: if a user reads the files of a directory in order, the following ones
//! are fetched ahead.
//!
//! 1. A directory remembers the last reader of its files, the last file, and how many files were
//!    read in a row. The order is that of the names in the listing; directories between files do
//!    not count.
//! 2. From the `RUN`th file in a row on, the missing ones of the next
//!    `WINDOW` files are fetched. The next check follows when half of them
//!    were read. A reader that skips a file begins a new row.
//! 3. A file is fetched ahead only if its status and that of its directory are promised to this
//!    user, and the user may read it. It must have at most [`SMALL`] bytes, and no changes by
//!    programs of this machine. It is fetched as this user, as in an ordinary read. Later reads
//!    check bytes and rights as always.
//! 4. No program waits for such a fetch. There are at most [`FETCHES_MAX`] at a time, and none that
//!    would make the cache drop something. A program that reads a file during its fetch waits for
//!    that fetch (`read.rs`).

use std::sync::Arc;

use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use tokio::sync::OwnedSemaphorePermit;

use crate::reads::Reads;
use crate::reads::reader::{WINDOW, files_after};
use crate::statuses::rights_to_file;
use crate::user::User;
use crate::vnode::Vnode;

/// The most fetches ahead at a time. This is half of the possible calls to a server, so that
/// programs' own calls find room.
pub(crate) const FETCHES_MAX: usize = 32;
/// The largest file that is fetched ahead.
const SMALL: u64 = 64 << 10;

/// The decision about one of the next files.
enum Verdict {
    Fetch(Arc<Vnode>, OwnedSemaphorePermit),
    /// It is cached, or must not be fetched ahead.
    Leave,
    /// Its status is not known, or there is no room now.
    Wait,
}

impl Reads {
    /// Fetches the following files if necessary when a user begins to read a file with this status.
    pub(crate) fn fetch_neighbours(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
    ) {
        let parent = Fid {
            volume: vnode.fid().volume,
            vnode: status.parent_vnode,
            uniquifier: status.parent_uniquifier,
        };
        let Some(directory) = self.vnodes.known(vnode.key().0, parent) else {
            return;
        };
        let listing = directory.state.lock().contents.latest_listing();
        let name = vnode.state.lock().names.found_as().cloned();
        let (Some(listing), Some(name)) = (listing, name) else {
            return;
        };
        if status.file_type != FileType::File || listing.get(&name) != Some(&vnode.fid()) {
            return;
        }
        let mut reader = directory.read_ahead.reader();
        if !reader.reads(user, &listing, &name) {
            return;
        }
        let Some(rights) = directory.promised(user).map(|status| status.caller_access) else {
            return;
        };
        reader.restart();
        for (_, fid) in files_after(&listing, &name).take(WINDOW) {
            match self.judge(user, rights, (vnode.key().0, fid), status.length) {
                Verdict::Fetch(vnode, permit) => self.fetch_ahead(user.clone(), vnode, permit),
                Verdict::Leave => {}
                Verdict::Wait => return,
            }
            reader.checked();
        }
    }

    /// Applies rules 3 and 4. `wanted`: the length of another file that is about to be fetched.
    fn judge(
        &self,
        user: &User,
        of_directory: Rights,
        (cell, fid): (u32, Fid),
        wanted: u64,
    ) -> Verdict {
        let Some(vnode) = self.vnodes.known(cell, fid) else {
            return Verdict::Wait;
        };
        let Some(status) = vnode.promised(user) else {
            return Verdict::Wait;
        };
        let is_small_file = status.file_type == FileType::File && status.length <= SMALL;
        let rights = rights_to_file(status.caller_access, of_directory);
        let of_mode = status.unix_mode & 0o500 != 0 || rights.contains(Rights::ADMINISTER);
        let may = rights.contains(Rights::READ) && of_mode;
        // If the bytes are in use now, the file is skipped.
        let body = vnode.body.try_lock();
        let missing = body.is_some_and(|body| !body.is_changed() && body.lacks(0, status.length));
        if !is_small_file || !may || !missing || self.is_fetched(&vnode, 0) {
            return Verdict::Leave;
        }
        let under_way = FETCHES_MAX - self.ahead.available_permits().min(FETCHES_MAX);
        let coming = wanted + status.length + under_way as u64 * SMALL;
        if self.env.used() + coming > self.env.size() {
            return Verdict::Wait;
        }
        match self.ahead.clone().try_acquire_owned() {
            Ok(permit) => Verdict::Fetch(vnode, permit),
            Err(_) => Verdict::Wait,
        }
    }

    fn fetch_ahead(&self, user: Arc<User>, vnode: Arc<Vnode>, permit: OwnedSemaphorePermit) {
        let Some(this) = self.me() else {
            return;
        };
        self.vnodes.touch(&vnode);
        tokio::spawn(async move {
            if let Err(error) = this.fetch_chunk(&user, &vnode, 0, true).await {
                tracing::debug!(%error, "fetching a file that may be read next");
            }
            vnode.rest();
            drop(permit);
        });
    }
}
