//! Listing and examining objects.

use cellar_wire::List;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{ObjectInfo, VersionInfo};

use super::{ObjectStore, key_of, name_of};
use crate::engine::key::{Key, Kind};
use crate::engine::space::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::record::{ObjectRecord, VersionRecord};

impl ObjectStore {
    /// Returns the record of an object, also of one that was removed softly.
    ///
    /// `NoObject`.
    pub fn examine(&self, id: ObjectId) -> Result<ObjectInfo> {
        let shared = self.shared();
        let slot = shared.slots.of(id);
        let state = slot.read(shared)?;
        let record = state.any().ok_or(Error::NoObject(id))?;
        Ok(info(id, record))
    }

    /// Up to `limit` objects of a volume (0: of all) behind `after`, in ascending order. Lists the
    /// present objects, or with `removed` those that were removed softly. Also returns whether
    /// there may be more.
    pub fn list(
        &self,
        volume: u32,
        after: ObjectId,
        limit: usize,
        removed: bool,
    ) -> Result<(Vec<ObjectInfo>, bool)> {
        let prefix = match volume {
            0 => Key::of_kind(Kind::Object),
            volume => Key::objects_of(volume),
        };
        let from = key_of(after).successor().max(prefix);
        let mut walk = self.shared().engine.walk(&from, &prefix);
        let mut found = Vec::new();
        while let Some((key, value)) = walk.next()? {
            let Ok(record) = ObjectRecord::decode(&value) else {
                // A request for this object gets the error; the others are listed.
                self.shared()
                    .damaged(name_of(&key), "its record is damaged");
                continue;
            };
            if (record.removed != 0) != removed {
                continue;
            }
            if found.len() == limit {
                return Ok((found, true));
            }
            found.push(info(name_of(&key), &record));
        }
        Ok((found, false))
    }
}

fn info(object: ObjectId, record: &ObjectRecord) -> ObjectInfo {
    let seen = record.versions.iter().filter(|known| !known.ending);
    let version = |known: &VersionRecord| VersionInfo {
        version: known.version,
        length: known.length,
        written: known.written,
    };
    ObjectInfo {
        object,
        created: record.created,
        accessed: record.accessed,
        removed: record.removed,
        allocated: record.blocks * BLOCK_BYTES,
        // As many as a record can hold.
        versions: List::from_iter_cut(seen.map(version)),
    }
}
