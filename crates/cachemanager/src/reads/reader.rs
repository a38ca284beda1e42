//! The read-ahead of one vnode: the last reader of the files of a directory, and whether the bytes
//! of a file were fetched ahead. The rules of the read-ahead are in `read_ahead.rs`.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cellar_wire::ids::Fid;
use parking_lot::{Mutex, MutexGuard};

use crate::statuses::cached_names::Listing;
use crate::user::User;

/// The number of files in a row that show an order.
const RUN: u32 = 3;
/// The number of files beyond the last one that are fetched ahead.
pub(super) const WINDOW: usize = 16;
/// The number of names that are searched for these files.
const NAMES_MAX: usize = 4 * WINDOW;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct ReadAheadState {
    /// Directories: the last reader of a file in it.
    reader: Mutex<Reader>,
    /// Files: the bytes were fetched ahead, and no program has read them yet.
    is_ahead: AtomicBool,
}

impl ReadAheadState {
    /// The last reader of a file in the directory.
    pub(super) fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock()
    }

    /// Notes whether the bytes were fetched ahead.
    pub(super) fn set_ahead(&self, is_ahead: bool) {
        self.is_ahead.store(is_ahead, Ordering::Relaxed);
    }

    /// A program reads the bytes. Returns whether they were fetched ahead, once.
    pub(super) fn take_ahead(&self) -> bool {
        self.is_ahead.swap(false, Ordering::Relaxed)
    }
}

/// The last reader of files of a directory.
#[derive(Debug, Default)]
pub(super) struct Reader {
    user: u32,
    last: Bytes,
    /// Files read in a row.
    run: u32,
    /// The number of files beyond the last one that were checked.
    ahead: usize,
}

impl Reader {
    /// Notes that a user reads a file. Returns whether the next files must be checked.
    pub(super) fn reads(&mut self, user: &User, listing: &Listing, name: &Bytes) -> bool {
        let same_user = self.user == user.id();
        if same_user && self.last == *name {
            return false;
        }
        let next = files_after(listing, &self.last).next();
        if same_user && next.is_some_and(|(next, _)| next == name) {
            self.run = self.run.saturating_add(1);
            self.ahead = self.ahead.saturating_sub(1);
        } else {
            (self.user, self.run, self.ahead) = (user.id(), 1, 0);
        }
        self.last = name.clone();
        self.run >= RUN && self.ahead <= WINDOW / 2
    }

    /// The files beyond the last one are about to be checked.
    pub(super) fn restart(&mut self) {
        self.ahead = 0;
    }

    /// One of these files was checked.
    pub(super) fn checked(&mut self) {
        self.ahead += 1;
    }
}

/// Returns the files among the next [`NAMES_MAX`] names after a name.
pub(super) fn files_after<'a>(
    listing: &'a Listing,
    name: &[u8],
) -> impl Iterator<Item = (&'a Bytes, Fid)> {
    let after = (Bound::Excluded(name), Bound::Unbounded);
    let names = listing.range::<[u8], _>(after).take(NAMES_MAX);
    let names = names.map(|(name, fid)| (name, *fid));
    names.filter(|(_, fid)| !fid.vnode.is_directory())
}
