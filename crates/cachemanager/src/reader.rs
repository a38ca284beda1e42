//! The last reader of the files of a directory. The rules of the read-ahead are in
//! `reads/read_ahead.rs`.

use std::ops::Bound;

use bytes::Bytes;
use cellar_wire::ids::Fid;

use crate::user::User;
use crate::vnode::Listing;

/// The number of files in a row that show an order.
pub(super) const RUN: u32 = 3;
/// The number of files beyond the last one that are fetched ahead.
pub(super) const WINDOW: usize = 16;
/// The number of names that are searched for these files.
pub(super) const NAMES_MAX: usize = 4 * WINDOW;

/// The last reader of files of a directory.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(super) user: u32,
    pub(super) last: Bytes,
    /// Files read in a row.
    pub(super) run: u32,
    /// The number of files beyond the last one that were checked.
    pub(super) ahead: usize,
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
