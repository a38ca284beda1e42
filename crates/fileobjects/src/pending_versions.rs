//! Versions of objects that stores and repairs are making, and that no record names yet.
//!
//! Store locks protect against garbage collection only on the server of the RW volume. A read-only
//! volume that is repaired on another server, or a shadow that is stored into, is not protected by
//! them. So each server includes the versions in the making in its references, until a
//! record names them.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_volume::Referenced;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

/// All versions in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingVersions(Arc<Mutex<HashMap<u64, Vec<Referenced>>>>);

/// Some versions in the making. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct VersionGuard {
    pending_versions: PendingVersions,
    number: u64,
}

impl PendingVersions {
    /// Registers versions of objects that are needed from now on. Call this before a device learns
    /// of them.
    pub(crate) fn begin(&self, made: Vec<Referenced>) -> VersionGuard {
        let mut all = self.0.lock();
        let mut number = rand::random();
        while all.contains_key(&number) {
            number = rand::random();
        }
        all.insert(number, made);
        VersionGuard {
            pending_versions: self.clone(),
            number,
        }
    }

    /// Registers the new version of a store, for all objects of its layout.
    pub(crate) fn store(&self, fid: Fid, next: &Layout) -> VersionGuard {
        let made = next.objects.iter().map(|placed| Referenced {
            object: next.object(fid.vnode, fid.uniquifier, placed),
            version: next.version,
            osd: placed.osd,
            owner: ViceId::default(),
        });
        self.begin(made.collect())
    }

    /// The versions in the making in the name of a volume (0: of all volumes).
    pub(crate) fn of(&self, owner: VolumeId) -> Vec<Referenced> {
        let all = self.0.lock();
        let of_owner = |made: &&Referenced| owner.0 == 0 || made.object.volume == owner;
        all.values().flatten().filter(of_owner).copied().collect()
    }
}

impl Drop for VersionGuard {
    fn drop(&mut self) {
        self.pending_versions.0.lock().remove(&self.number);
    }
}
