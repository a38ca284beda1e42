//! Loans: whole files of the cache directory that the kernel reads by itself, without a request for
//! each read.
//!
//! 1. Only files of read-only and backup volumes are lent: programs cannot change them. A release
//!    gives such a file another version, whose bytes go into another file of the cache. The lent
//!    file stays as it is while a program has it open. So that program goes on reading the old
//!    release, and a program that opens the file later reads the new one.
//! 2. A lent file is not dropped to make room: the disk would not get the space back. At most half
//!    of the cache is lent.
//! 3. Bytes from an earlier process are compared with their checksums before the loan, if they are
//!    few. If they are many, ordinary reads compare them, and the file can be lent after that.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_cachestore::Space;

use crate::files::Handle;
use crate::vnode::Attributes;

/// A file that is lent, until this is dropped.
#[derive(Debug)]
pub struct Loan {
    contents: u64,
    attributes: Attributes,
    space: Arc<Space>,
    _lent: Arc<()>,
}

impl Loan {
    /// [`Vnode::content_generation`](crate::Vnode::content_generation) at the loan. Another number
    /// means other contents.
    pub fn content_generation(&self) -> u64 {
        self.contents
    }

    /// The attributes at the time of the loan.
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
    /// Lends the cache's own file with all bytes of this one, of which there must be at least
    /// `least`. `None`: the rules at the head of `loans.rs` do not allow it.
    pub fn lend(&self, least: u64) -> Option<(File, Loan)> {
        let (cache, vnode) = (self.cache(), self.vnode());
        if !vnode.volume().is_read_only() {
            return None;
        }
        vnode.hold_contents();
        let attributes = vnode.attributes()?;
        let length = attributes.status.length;
        let space = cache.env.space.clone();
        if length < least || space.lent.load(Ordering::Relaxed) + length > cache.env.size() / 2 {
            return None;
        }
        let mut body = vnode.body.lock();
        if (body.version(), body.length()) != (attributes.status.data_version, length) {
            return None;
        }
        let (file, lent) = body.lend()?;
        space.lent.fetch_add(length, Ordering::Relaxed);
        let loan = Loan {
            contents: body.content_generation(),
            attributes,
            space,
            _lent: lent,
        };
        drop(body);
        cache.env.counts.lent.fetch_add(1, Ordering::Relaxed);
        cache.reads.read_all(self.user(), vnode, &attributes.status);
        Some((file, loan))
    }
}
