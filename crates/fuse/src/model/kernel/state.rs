//! The state of a simulated kernel: inodes with their attributes and pages, and names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fuser::FileAttr;

/// Bytes of a page.
pub(in super::super) const PAGE: u64 = 64;

#[derive(Debug)]
pub(super) struct Page {
    pub(super) bytes: [u8; PAGE as usize],
    pub(super) whole: bool,
    pub(super) locked: bool,
}

impl Page {
    pub(super) fn empty(locked: bool) -> Self {
        Self {
            bytes: [0; PAGE as usize],
            whole: false,
            locked,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Inode {
    /// The state that its attributes belong to.
    pub(super) version: u64,
    pub(super) valid: bool,
    pub(super) size: u64,
    /// Writes and truncations under way that change the size.
    pub(super) unstable: u32,
    pub(super) pages: BTreeMap<u64, Page>,
    pub(super) alone: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    /// `None`: the name is absent.
    pub(super) inode: Option<u64>,
    pub(super) valid: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) version: u64,
    pub(super) inodes: HashMap<u64, Inode>,
    pub(super) names: HashMap<Vec<u8>, Name>,
}

impl State {
    pub(super) fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.entry(number).or_default()
    }

    /// Applies the attributes of an answer. Returns whether all pages are dropped.
    pub(super) fn apply(
        &mut self,
        number: u64,
        attr: &FileAttr,
        time: Duration,
        asked: u64,
    ) -> bool {
        let next = self.version + 1;
        let inode = self.inode(number);
        if inode.version > asked || inode.unstable > 0 {
            return false;
        }
        inode.version = next;
        inode.valid = !time.is_zero();
        let differs = inode.size != attr.size;
        inode.size = attr.size;
        self.version = next;
        differs
    }
}
