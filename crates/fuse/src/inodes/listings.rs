//! Listings of directories that the kernel keeps (`FOPEN_CACHE_DIR`).
//!
//! The kernel puts the lines that it reads into pages of the directory's inode. The next program
//! that opens the directory reads them there, if the answer to its open allows that. Each open is a
//! request, which looks at the user's rights. So only an open decides. Nothing that happens between
//! two opens can show an old listing to a program that opens later.
//!
//! 1. The pages hold lines of one [`Listing`] in memory. A change of the directory, by this mount
//!    or by another machine, makes another listing. The kernel drops its pages at the next open.
//! 2. An open handle reads the listing of its own open, and its lines go into the pages. As long as
//!    one is open with lines that differ, the others read past the pages.
//! 3. The kernel drops its pages some time after the answer to the open was written: when the task
//!    that opened the directory runs again. Until then the pages may have lines of an earlier
//!    listing. The first request of the handle proves that they are dropped. Until that request,
//!    other handles read past the pages.
//! 4. With its lines the kernel was given what the names lead to. After a notice has invalidated a
//!    part of that, the directory is read again. That brings all attributes with a few requests;
//!    kept lines would cost one request for each.
//! 5. A handle that reads past the pages does not drop them. The kernel does not fill the pages
//!    again if they are dropped while a handle fills them. Source: `fs/fuse/readdir.c` of Linux
//!    6.18.

use std::sync::{Arc, Weak};

use cellar_cachemanager::Listing;

use super::Inodes;

/// How the kernel may read a directory that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingMode {
    /// The pages that the kernel has are its lines.
    Kept,
    /// The kernel drops its pages, and puts the lines that it reads into new ones.
    Keep,
    /// The kernel reads past its pages, and does not change them.
    Pass,
}

/// The listing of an inode in the kernel's pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The listing whose lines are in them, or are put there by open handles.
    listing: Option<Weak<Listing>>,
    /// Whether the kernel has dropped the lines of earlier listings. Rule 3.
    is_dropped: bool,
    /// Whether a notice took back what went with the lines.
    is_old: bool,
    /// Handles whose lines are put there.
    open: usize,
}

impl Pages {
    fn open(&mut self, listing: &Arc<Listing>) -> ListingMode {
        // A listing that is changed in place gets another address, because this reference exists.
        let is_same = self
            .listing
            .as_ref()
            .is_some_and(|kept| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(listing)));
        let mode = match self.open {
            _ if is_same && self.is_dropped && !self.is_old => ListingMode::Kept,
            0 => ListingMode::Keep,
            _ => return ListingMode::Pass,
        };
        if mode == ListingMode::Keep {
            self.listing = Some(Arc::downgrade(listing));
            self.is_dropped = false;
            self.is_old = false;
        }
        self.open += 1;
        mode
    }
}

impl Inodes {
    /// A directory is opened to be read. Unless the lines pass, [`Inodes::listing_closed`] must
    /// follow.
    pub(crate) fn listing_opened(&self, number: u64, listing: &Arc<Listing>) -> ListingMode {
        let mut table = self.0.lock();
        let inode = table.inodes.get_mut(&number);
        inode.map_or(ListingMode::Pass, |inode| inode.listed.open(listing))
    }

    /// A handle that was opened with [`ListingMode::Keep`] makes its first request. Rule 3.
    pub(crate) fn listing_dropped(&self, number: u64) {
        let mut table = self.0.lock();
        if let Some(inode) = table.inodes.get_mut(&number) {
            inode.listed.is_dropped = true;
        }
    }

    /// A handle whose lines the kernel kept is closed.
    pub(crate) fn listing_closed(&self, number: u64) {
        let mut table = self.0.lock();
        if let Some(inode) = table.inodes.get_mut(&number) {
            inode.listed.open = inode.listed.open.saturating_sub(1);
        }
    }

    /// A notice takes back what the kernel has of an inode. Rule 4.
    pub(crate) fn listings_are_old(&self, number: u64) {
        let mut table = self.0.lock();
        let table = &mut *table;
        let Some(inode) = table.inodes.get_mut(&number) else {
            return;
        };
        inode.listed.is_old = true;
        let parents: Vec<u64> = inode.parents.iter().map(|(parent, _)| *parent).collect();
        for parent in parents {
            if let Some(directory) = table.inodes.get_mut(&parent) {
                directory.listed.is_old = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cellar_wire::ids::Fid;

    use super::*;

    fn listing(names: &[&'static str]) -> Arc<Listing> {
        let line = |name: &&'static str| (Bytes::from_static(name.as_bytes()), Fid::new(1, 2, 3));
        Arc::new(names.iter().map(line).collect())
    }

    /// Opens the listing, and reads a line or closes, as a kernel that drops its pages at once.
    fn open_and_read(pages: &mut Pages, listing: &Arc<Listing>) -> ListingMode {
        let mode = pages.open(listing);
        pages.is_dropped |= mode == ListingMode::Keep;
        mode
    }

    #[test]
    fn lines_are_kept_until_the_listing_is_another() {
        let (mut pages, mut names) = (Pages::default(), listing(&["a"]));
        assert_eq!(open_and_read(&mut pages, &names), ListingMode::Keep);
        assert_eq!(pages.open(&names), ListingMode::Kept);
        pages.open = 0;
        assert_eq!(pages.open(&names), ListingMode::Kept);
        pages.open = 0;
        // In place, since there is no other reference.
        Arc::make_mut(&mut names).clear();
        assert_eq!(pages.open(&names), ListingMode::Keep);
        pages.open = 0;
        drop(names);
        assert_eq!(pages.open(&listing(&[])), ListingMode::Keep);
    }

    #[test]
    fn lines_of_two_listings_do_not_meet() {
        let mut pages = Pages::default();
        let (first, second) = (listing(&["a"]), listing(&["b"]));
        assert_eq!(open_and_read(&mut pages, &first), ListingMode::Keep);
        assert_eq!(pages.open(&second), ListingMode::Pass);
        assert_eq!(pages.open(&second), ListingMode::Pass);
        pages.open = 0;
        assert_eq!(open_and_read(&mut pages, &second), ListingMode::Keep);
        assert_eq!(pages.open(&second), ListingMode::Kept);
    }

    #[test]
    fn lines_are_read_past_the_pages_until_old_ones_are_dropped() {
        let mut pages = Pages::default();
        let (first, second) = (listing(&["a"]), listing(&["b"]));
        assert_eq!(open_and_read(&mut pages, &first), ListingMode::Keep);
        pages.open = 0;
        assert_eq!(pages.open(&second), ListingMode::Keep);
        // The kernel may still have the lines of the first listing.
        assert_eq!(pages.open(&second), ListingMode::Pass);
        pages.is_dropped = true;
        assert_eq!(pages.open(&second), ListingMode::Kept);
    }

    #[test]
    fn after_a_notice_the_directory_is_read_again() {
        let (mut pages, names) = (Pages::default(), listing(&["a"]));
        assert_eq!(open_and_read(&mut pages, &names), ListingMode::Keep);
        pages.is_old = true;
        // The first handle may still fill the pages.
        assert_eq!(pages.open(&names), ListingMode::Pass);
        pages.open = 0;
        assert_eq!(open_and_read(&mut pages, &names), ListingMode::Keep);
        assert_eq!(pages.open(&names), ListingMode::Kept);
    }
}
