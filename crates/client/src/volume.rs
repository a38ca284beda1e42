//! A volume as clients use it: its identity and cell. Its location may change during an operation.

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
    /// Whether the volume cannot be changed.
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
