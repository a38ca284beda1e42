//! The times at which files in objects were last read through this server, or lent to a client.
//!
//! They are in memory only. After a restart a file counts as last used when it was last changed.
//! So it may be wiped once too early. It is then recalled once more.
//!
//! Nothing is noted while no device is wipeable, so that reads do not share a lock for nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

/// Files whose last use is remembered. The oldest half is forgotten when there are more.
const FILES_MAX: usize = 1 << 20;

/// Names a file in all volumes of a family.
type FileKey = (VolumeId, VnodeId, Uniquifier);

/// The last uses, in seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct LastUses {
    /// A device is wipeable.
    needed: AtomicBool,
    uses: Mutex<HashMap<FileKey, u32>>,
}

impl LastUses {
    /// Says whether uses are needed: some device is wipeable. They are not at first.
    pub(crate) fn set_needed(&self, needed: bool) {
        self.needed.store(needed, Ordering::Relaxed);
    }

    /// Notes a use.
    pub(crate) fn note(&self, fid: Fid, layout: &Layout, now: u32) {
        if !self.needed.load(Ordering::Relaxed) {
            return;
        }
        let mut uses = self.uses.lock();
        if uses.len() >= FILES_MAX {
            forget_older_half(&mut uses);
        }
        uses.insert((layout.volume, fid.vnode, fid.uniquifier), now);
    }

    /// The last use of a file of the family of the RW volume `owner`; 0 if it is not known.
    pub(crate) fn of(&self, owner: VolumeId, fid: Fid) -> u32 {
        let uses = self.uses.lock();
        let known = uses.get(&(owner, fid.vnode, fid.uniquifier));
        known.copied().unwrap_or_default()
    }
}

fn forget_older_half(uses: &mut HashMap<FileKey, u32>) {
    let mut times: Vec<u32> = uses.values().copied().collect();
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    let median = *median;
    uses.retain(|_, time| *time > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_forgets_its_oldest_half() {
        let mut uses: HashMap<FileKey, u32> = (0..100)
            .map(|n| ((VolumeId(1), VnodeId(n), Uniquifier(1)), n))
            .collect();
        forget_older_half(&mut uses);
        let mut left: Vec<u32> = uses.into_values().collect();
        left.sort_unstable();
        assert_eq!(left, (51..100).collect::<Vec<_>>());
    }

    #[test]
    fn uses_are_noted_only_while_they_are_needed() {
        let (uses, fid) = (LastUses::default(), Fid::default());
        let layout = Layout {
            shape: Default::default(),
            version: 1,
            serial: 1,
            volume: VolumeId(7),
            objects: Default::default(),
        };
        uses.note(fid, &layout, 100);
        assert_eq!(uses.of(VolumeId(7), fid), 0);
        uses.set_needed(true);
        uses.note(fid, &layout, 200);
        assert_eq!(uses.of(VolumeId(7), fid), 200);
        assert_eq!(uses.of(VolumeId(8), fid), 0, "another family");
    }
}
