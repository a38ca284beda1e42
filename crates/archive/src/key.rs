//! Names of cells, archives and copies.

use std::fmt;
use std::str::FromStr;

use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of a cell, which stays when the cell gets another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CellId(pub Uuid);

/// The id of an archive, given when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArchiveId(pub Uuid);

impl ArchiveId {
    /// A new id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ArchiveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a copy: one version of one object of one cell.
///
/// The name in the archive is
/// `CELL/VOLUME/LL/VNODE.UNIQUIFIER.SERIAL.VERSION` below `objects/`. `LL` are the low eight bits
/// of the vnode in hexadecimal digits. They divide a large volume over 256 directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The cell.
    pub cell: CellId,
    /// The object, which names its volume and file.
    pub object: ObjectId,
    /// The version of the object.
    pub version: u64,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectId {
            volume,
            vnode,
            uniquifier,
            serial,
        } = self.object;
        let (volume, vnode, uniquifier) = (volume.0, vnode.0, uniquifier.0);
        let (cell, version, low) = (self.cell, self.version, vnode & 0xff);
        write!(
            f,
            "{cell}/{volume}/{low:02x}/{vnode}.{uniquifier}.{serial}.{version}"
        )
    }
}

/// A name that is no name of a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a copy")]
pub struct NotAKey(String);

impl FromStr for ObjectKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let key = parse(text).filter(|key| key.to_string() == text);
        key.ok_or_else(|| NotAKey(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<ObjectKey> {
    let mut parts = text.split('/');
    let cell = CellId(parts.next()?.parse().ok()?);
    let volume = VolumeId(parts.next()?.parse().ok()?);
    parts.next()?;
    let mut numbers = parts.next()?.split('.');
    let object = ObjectId {
        volume,
        vnode: VnodeId(numbers.next()?.parse().ok()?),
        uniquifier: Uniquifier(numbers.next()?.parse().ok()?),
        serial: numbers.next()?.parse().ok()?,
    };
    let version = numbers.next()?.parse().ok()?;
    Some(ObjectKey {
        cell,
        object,
        version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_text_and_other_texts_are_refused() {
        let key = ObjectKey {
            cell: CellId(Uuid::from_u128(7)),
            object: ObjectId {
                volume: VolumeId(536_870_912),
                vnode: VnodeId(258),
                uniquifier: Uniquifier(3),
                serial: 1,
            },
            version: 1_700_000_000_000_000,
        };
        let text = "00000000-0000-0000-0000-000000000007/536870912/02/258.3.1.1700000000000000";
        assert_eq!(key.to_string(), text);
        assert_eq!(text.parse(), Ok(key));
        for wrong in [
            "",
            "00000000-0000-0000-0000-000000000007/536870912/03/258.3.1.1700000000000000",
            "00000000-0000-0000-0000-000000000007/536870912/02/258.3.1.01",
            "00000000-0000-0000-0000-000000000007/536870912/02/258.3.1",
            "00000000-0000-0000-0000-000000000007/536870912/02/258.3.1.1.1",
            "00000000-0000-0000-0000-000000000007/536870912/02/258.3.1.1/2",
        ] {
            assert!(wrong.parse::<ObjectKey>().is_err(), "{wrong}");
        }
    }
}
