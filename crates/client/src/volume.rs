//! A volume as clients use it: which one, in which cell. Where it is may change under way.

use cellar_wire::ids::VolumeId;

use crate::cell::CellName;
use crate::mount_point::VolumeKind;

/// One volume of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The cell.
    pub cell: CellName,
    /// The family's name, without suffix.
    pub name: String,
    /// Which volume of the family.
    pub kind: VolumeKind,
    /// Its id.
    pub id: VolumeId,
}

impl Volume {
    /// Whether nothing in it can be changed.
    pub fn is_read_only(&self) -> bool {
        self.kind != VolumeKind::ReadWrite
    }

    /// The name with its suffix.
    pub fn full_name(&self) -> String {
        match self.kind {
            VolumeKind::ReadWrite => self.name.clone(),
            VolumeKind::ReadOnly => format!("{}.readonly", self.name),
            VolumeKind::Backup => format!("{}.backup", self.name),
        }
    }
}
