//! Whole files of the cache directory that somebody else reads by himself: the kernel, without a request for each read.
//!
//! 1. Lent is what programs here cannot change: files of read-only and backup volumes. A release gives such a file another version;
//!    its bytes go into a file of their own, and what was lent stays what it was for as long as somebody has it. So a program that
//!    has a file open goes on with the release that it has opened, and whoever opens it later gets the new one.
//! 2. What is lent is not forgotten to make room: the disk would not have it back. At most half of the cache is lent.
//! 3. Bytes that an earlier process left are compared with their checksums first, where they are few; the others are when they
//!    are read in the usual way, and can be lent after that.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_cachestore::Space;

use super::files::Handle;
use super::vnode::Attributes;

/// Of a file that is lent, as long as it is.
#[derive(Debug)]
pub struct Loan {
    contents: u64,
    attributes: Attributes,
    space: Arc<Space>,
    _lent: Arc<()>,
}

impl Loan {
    /// The number that [`Vnode::contents`](super::Vnode::contents) had then: with another one the file is not this any more.
    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// What `stat` told of it then.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let length = self.attributes.status.length;
        self.space.lent.fetch_sub(length, Ordering::Relaxed);
    }
}

impl Handle {
    /// The cache's own file with all of this one's bytes, of at least `least`, as long as the loan is kept. `None` where that cannot
    /// be: the rules are at the top of `loans.rs`.
    pub fn lend(&self, least: u64) -> Option<(File, Loan)> {
        let (cache, vnode) = (self.cache(), self.vnode());
        if !vnode.volume().is_read_only() {
            return None;
        }
        vnode.hold_contents();
        let attributes = vnode.attributes()?;
        let length = attributes.status.length;
        let space = cache.space.clone();
        if length < least || space.lent.load(Ordering::Relaxed) + length > cache.size() / 2 {
            return None;
        }
        let mut body = vnode.body.lock();
        if (body.version(), body.length()) != (attributes.status.data_version, length) {
            return None;
        }
        let (file, lent) = body.lend()?;
        space.lent.fetch_add(length, Ordering::Relaxed);
        let loan = Loan {
            contents: body.contents(),
            attributes,
            space,
            _lent: lent,
        };
        drop(body);
        cache.counts.lent.fetch_add(1, Ordering::Relaxed);
        cache.read_all(self.user(), vnode, &attributes.status);
        Some((file, loan))
    }
}
