//! Versions of objects that are being made, and that no record names yet: by stores and by repairs.
//!
//! Who collects garbage has the turns of the RW volume's files only where that is; a read-only volume that is
//! repaired elsewhere, or a shadow that is stored into, is on servers that collect nothing. So what is being
//! made is told with the references: whoever asks sees it here until the record names it.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_volume::Referenced;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

/// All that are being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Makings(Arc<Mutex<HashMap<u64, Vec<Referenced>>>>);

/// Some of them; ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Making {
    makings: Makings,
    number: u64,
}

impl Makings {
    /// A version of these objects is needed from now on. To be called before a device hears of it.
    pub(crate) fn begin(&self, made: Vec<Referenced>) -> Making {
        let mut all = self.0.lock();
        let mut number = rand::random();
        while all.contains_key(&number) {
            number = rand::random();
        }
        all.insert(number, made);
        Making {
            makings: self.clone(),
            number,
        }
    }

    /// A store makes the version of that layout, of any of its objects.
    pub(crate) fn store(&self, fid: Fid, next: &Layout) -> Making {
        let made = next.objects.iter().map(|placed| Referenced {
            object: next.object(fid.vnode, fid.uniquifier, placed),
            version: next.version,
            osd: placed.osd,
            owner: ViceId::default(),
        });
        self.begin(made.collect())
    }

    /// Those in the name of a volume (0: of all).
    pub(crate) fn of(&self, owner: VolumeId) -> Vec<Referenced> {
        let all = self.0.lock();
        let of_owner = |made: &&Referenced| owner.0 == 0 || made.object.volume == owner;
        all.values().flatten().filter(of_owner).copied().collect()
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.makings.0.lock().remove(&self.number);
    }
}
