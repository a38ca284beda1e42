//! Decides whether the objects of a file may be written, or only read. Decision 0013.
//!
//! A store in place makes a new version from the one that the file names. The device then removes
//! newer versions, which it takes for the remains of stores that never ended. That is right only
//! for the one volume whose files have the newest versions. So a volume that came from another
//! server reads its objects and copies a file at its first store, unless all of these are certain:
//!
//! 1. The volume came from the RW volume of its own id, to replace it, as in a move. A restore from
//!    a file does not count, because the file may be of any age. Nor does a conversion of an RO
//!    volume, because the RW volume may come back.
//! 2. The location database lists the RW volume on this server. A shadow is in no entry.
//! 3. The devices have no newer version of any object of the file.
//!
//! If any of these is not known, the file is copied. That is always right, and does not touch the
//! borrowed objects.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_volume::{Volume, VolumeInfo};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::Layout;
use cellar_wire::osd::Examine;
use parking_lot::Mutex;
use tracing::{debug, info};

use super::Objects;
use super::Storage;
use super::limits::CLAIMS_MAX;

/// RW volumes from other servers that are known to be on this server now, with their `borrowed`
/// version at that time. A forgotten entry is looked up again.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<VolumeId, u64>>);

impl Claims {
    fn has(&self, info: &VolumeInfo) -> bool {
        self.0.lock().get(&info.id) == Some(&info.borrowed)
    }

    fn add(&self, volume: VolumeId, borrowed: u64) {
        let mut claims = self.0.lock();
        if claims.len() >= CLAIMS_MAX && !claims.contains_key(&volume) {
            claims.clear();
        }
        claims.insert(volume, borrowed);
    }
}

impl Objects {
    /// Whether a store into a file may write new versions of its present objects.
    pub(crate) async fn writes_in_place(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        layout: &Layout,
    ) -> bool {
        let info = volume.info();
        if !Objects::are_own(layout, info.id) {
            return false;
        }
        if layout.version > info.borrowed {
            return true;
        }
        let Some(storage) = self.storage().filter(|_| info.takes_over) else {
            return false;
        };
        let is_own =
            self.is_listed_here(volume, &info).await && is_newest(storage, fid, layout).await;
        info!(%fid, is_own, "first store into a file of a volume from another server");
        is_own
    }

    /// Whether the location database lists an RW volume on this server.
    async fn is_listed_here(&self, volume: &Arc<Volume>, info: &VolumeInfo) -> bool {
        if self.claims.has(info) {
            return true;
        }
        let partitions = self.volumes.partitions();
        let place = partitions.iter().find(|(_, partition)| {
            let found = partition.volume(info.id);
            found.is_ok_and(|found| found.is_some_and(|found| Arc::ptr_eq(&found, volume)))
        });
        let Some((place, _)) = place else {
            return false;
        };
        let is_here = match self.sites.is_here(info.id, *place).await {
            Ok(is_here) => is_here,
            Err(code) => {
                debug!(volume = %info.id, %code, "cannot look up the server of the RW volume");
                false
            }
        };
        if is_here {
            self.claims.add(info.id, info.borrowed);
        }
        is_here
    }
}

/// Whether the devices have no version of any object of a layout that is newer than the one in the
/// layout.
async fn is_newest(storage: &Storage, fid: Fid, layout: &Layout) -> bool {
    for placed in layout.objects.iter().filter(|placed| placed.version > 0) {
        let Some(connection) = storage.devices.connection(placed.osd) else {
            return false;
        };
        let call = Examine {
            capability: storage.capability(placed.osd),
            object: layout.object(fid.vnode, fid.uniquifier, placed),
        };
        let Ok(reply) = connection.call(&call).await else {
            return false;
        };
        let newest = reply.info.versions.iter().map(|known| known.version).max();
        if newest != Some(placed.version) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_bounded() {
        let claims = Claims::default();
        for volume in 0..=CLAIMS_MAX as u32 {
            claims.add(VolumeId(volume), 7);
        }
        assert!(claims.0.lock().len() <= CLAIMS_MAX);
        let last = claims.0.lock().get(&VolumeId(CLAIMS_MAX as u32)).copied();
        assert_eq!(last, Some(7));
    }
}
