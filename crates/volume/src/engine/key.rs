//! Keys of the ordered table: short byte strings kept inline, so that a change allocates none.
//!
//! Numbers in keys are big-endian, so that bytes sort in the order of the numbers. Epochs are
//! complemented, so that the newest version comes first. `docs/format/volume.md` has the layout of
//! each kind; in the code, only the constructors here know it.

use std::cmp::Ordering;

use cellar_wire::ids::{Uniquifier, VnodeId};

/// Longest key in bytes.
pub(crate) const KEY_MAX: usize = 31;

/// A key.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    length: u8,
    bytes: [u8; KEY_MAX],
}

/// The first byte of a key: its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The partition's own record.
    Partition = 0x00,
    /// A volume: its id.
    Volume = 0x01,
    /// A volume group: its number.
    Group = 0x03,
    /// The counters of a group's head, which change with every operation.
    Counters = 0x04,
    /// Reserved numbers: group.
    Reserved = 0x05,
    /// A vnode version: group, vnode, complemented epoch.
    Vnode = 0x10,
    /// A version of a piece of a body: group, vnode, body, piece, complemented epoch.
    Body = 0x11,
    /// A changed vnode: group, epoch, vnode.
    Change = 0x12,
    /// A removed vnode: group, epoch, vnode.
    Removed = 0x13,
    /// A removed file whose copies in archives are kept: group, vnode, uniquifier.
    Retired = 0x15,
    /// The bitmap of a region of blocks.
    Region = 0x20,
    /// Free blocks of 512 regions.
    RegionCounts = 0x21,
    /// Background work on one vnode: group, vnode.
    ReapVnode = 0x30,
    /// Background work after a clone was removed: group, first epoch, last epoch.
    ReapEpochs = 0x31,
    /// Background work after the last volume of a group was removed: group.
    ReapGroup = 0x32,
    /// A restore into the head of a group was begun: group.
    Restoring = 0x33,
    /// An object of a device: volume, vnode, uniquifier, serial.
    Object = 0x40,
    /// A version of a piece of an object: its number, piece, complemented version.
    ObjectPiece = 0x41,
    /// Background removal of everything that an object had: its number.
    ReapObject = 0x42,
}

impl Key {
    /// The key made of `bytes`, if it is short enough.
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut key = Self {
            length: u8::try_from(bytes.len()).ok()?,
            bytes: [0; KEY_MAX],
        };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }

    fn new(kind: Kind) -> Self {
        let mut bytes = [0; KEY_MAX];
        bytes[0] = kind as u8;
        Self { length: 1, bytes }
    }

    fn u32(mut self, number: u32) -> Self {
        let at = self.length as usize;
        self.bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
        self.length += 4;
        self
    }

    fn u64(mut self, number: u64) -> Self {
        let at = self.length as usize;
        self.bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        self.length += 8;
        self
    }

    /// The smallest key.
    pub(crate) fn first() -> Self {
        Self::partition()
    }

    /// Returns whether the key belongs to the block map.
    pub(crate) fn is_of_map(&self) -> bool {
        [Kind::Region as u8, Kind::RegionCounts as u8].contains(&self.bytes[0])
    }

    pub(crate) fn partition() -> Self {
        Self::new(Kind::Partition)
    }

    pub(crate) fn volume(id: u32) -> Self {
        Self::new(Kind::Volume).u32(id)
    }

    pub(crate) fn group(group: u32) -> Self {
        Self::new(Kind::Group).u32(group)
    }

    pub(crate) fn counters(group: u32) -> Self {
        Self::new(Kind::Counters).u32(group)
    }

    pub(crate) fn reserved(group: u32) -> Self {
        Self::new(Kind::Reserved).u32(group)
    }

    /// All versions of a vnode.
    pub(crate) fn vnode_prefix(group: u32, vnode: u32) -> Self {
        Self::new(Kind::Vnode).u32(group).u32(vnode)
    }

    pub(crate) fn vnode(group: u32, vnode: u32, epoch: u64) -> Self {
        Self::vnode_prefix(group, vnode).u64(!epoch)
    }

    /// All versions of all bodies of a vnode.
    pub(crate) fn bodies_prefix(group: u32, vnode: u32) -> Self {
        Self::new(Kind::Body).u32(group).u32(vnode)
    }

    /// All versions of all pieces of one body.
    pub(crate) fn body_prefix(group: u32, vnode: u32, body: u32) -> Self {
        Self::bodies_prefix(group, vnode).u32(body)
    }

    /// All versions of one piece.
    pub(crate) fn piece_prefix(group: u32, vnode: u32, body: u32, piece: u64) -> Self {
        Self::body_prefix(group, vnode, body).u64(piece)
    }

    pub(crate) fn piece(group: u32, vnode: u32, body: u32, piece: u64, epoch: u64) -> Self {
        Self::piece_prefix(group, vnode, body, piece).u64(!epoch)
    }

    /// All changes of a group in one epoch.
    pub(crate) fn change_prefix(group: u32, epoch: u64) -> Self {
        Self::new(Kind::Change).u32(group).u64(epoch)
    }

    pub(crate) fn change(group: u32, epoch: u64, vnode: u32) -> Self {
        Self::change_prefix(group, epoch).u32(vnode)
    }

    /// All removals from a group in one epoch.
    pub(crate) fn removed_prefix(group: u32, epoch: u64) -> Self {
        Self::new(Kind::Removed).u32(group).u64(epoch)
    }

    pub(crate) fn removed(group: u32, epoch: u64, vnode: u32) -> Self {
        Self::removed_prefix(group, epoch).u32(vnode)
    }

    pub(crate) fn retired(group: u32, vnode: u32, uniquifier: u32) -> Self {
        let of_group = Self::of_group(Kind::Retired, group);
        of_group.u32(vnode).u32(uniquifier)
    }

    pub(crate) fn region(region: u32) -> Self {
        Self::new(Kind::Region).u32(region)
    }

    pub(crate) fn region_counts(index: u32) -> Self {
        Self::new(Kind::RegionCounts).u32(index)
    }

    pub(crate) fn reap_vnode(group: u32, vnode: u32) -> Self {
        Self::new(Kind::ReapVnode).u32(group).u32(vnode)
    }

    pub(crate) fn reap_epochs(group: u32, first: u64, last: u64) -> Self {
        Self::new(Kind::ReapEpochs).u32(group).u64(first).u64(last)
    }

    pub(crate) fn reap_group(group: u32) -> Self {
        Self::new(Kind::ReapGroup).u32(group)
    }

    pub(crate) fn restoring(group: u32) -> Self {
        Self::new(Kind::Restoring).u32(group)
    }

    /// The objects of a volume.
    pub(crate) fn objects_of(volume: u32) -> Self {
        Self::new(Kind::Object).u32(volume)
    }

    pub(crate) fn object(volume: u32, vnode: u32, uniquifier: u32, serial: u32) -> Self {
        let of_file = Self::objects_of(volume).u32(vnode).u32(uniquifier);
        of_file.u32(serial)
    }

    /// All versions of all pieces of an object.
    pub(crate) fn object_pieces(number: u64) -> Self {
        Self::new(Kind::ObjectPiece).u64(number)
    }

    /// All versions of one piece of an object.
    pub(crate) fn object_piece_prefix(number: u64, piece: u64) -> Self {
        Self::object_pieces(number).u64(piece)
    }

    pub(crate) fn object_piece(number: u64, piece: u64, version: u64) -> Self {
        Self::object_piece_prefix(number, piece).u64(!version)
    }

    pub(crate) fn reap_object(number: u64) -> Self {
        Self::new(Kind::ReapObject).u64(number)
    }

    /// The prefix of all keys of a kind.
    pub(crate) fn of_kind(kind: Kind) -> Self {
        Self::new(kind)
    }

    /// The prefix of all keys of a kind and a group.
    pub(crate) fn of_group(kind: Kind, group: u32) -> Self {
        Self::new(kind).u32(group)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    pub(crate) fn starts_with(&self, prefix: &Self) -> bool {
        self.as_slice().starts_with(prefix.as_slice())
    }

    /// The number at a byte offset, or 0 if the key is too short.
    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        match self.as_slice().get(at..at + 4) {
            Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
            _ => 0,
        }
    }

    /// The number at a byte offset, or 0 if the key is too short.
    pub(crate) fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }

    /// The epoch and vnode of a key of kind [`Kind::Change`] or [`Kind::Removed`].
    pub(crate) fn change_parts(&self) -> (u64, u32) {
        (self.u64_at(5), self.u32_at(13))
    }

    /// The vnode and uniquifier of a key of kind [`Kind::Retired`].
    pub(crate) fn retired_parts(&self) -> (VnodeId, Uniquifier) {
        (VnodeId(self.u32_at(5)), Uniquifier(self.u32_at(9)))
    }

    /// The prefix that all versions of a vnode or piece share.
    pub(crate) fn of_all_versions(mut self) -> Self {
        self.length = self.length.saturating_sub(8);
        self
    }

    /// The epoch of a vnode or piece key.
    pub(crate) fn epoch(&self) -> u64 {
        !self.u64_at((self.length as usize).saturating_sub(8))
    }

    /// The piece number of a piece key.
    pub(crate) fn piece_number(&self) -> u64 {
        self.u64_at(13)
    }

    /// The body number of a piece key.
    pub(crate) fn body_number(&self) -> u32 {
        self.u32_at(9)
    }

    /// The smallest key that is greater than this one.
    pub(crate) fn successor(mut self) -> Self {
        if (self.length as usize) < KEY_MAX {
            self.bytes[self.length as usize] = 0;
            self.length += 1;
            return self;
        }
        self.after_prefix()
    }

    /// The key of full length that is greater by 2^`power`, if both are read as numbers. `None` if
    /// there is none.
    pub(crate) fn plus_power(mut self, power: u32) -> Option<Self> {
        self.bytes[self.length as usize..].fill(0);
        self.length = KEY_MAX as u8;
        let mut at = (KEY_MAX - 1).checked_sub(power as usize / 8)?;
        let (sum, mut carry) = self.bytes[at].overflowing_add(1 << (power % 8));
        self.bytes[at] = sum;
        while carry {
            at = at.checked_sub(1)?;
            (self.bytes[at], carry) = self.bytes[at].overflowing_add(1);
        }
        Some(self)
    }

    /// The smallest key that is greater than every key with this prefix.
    pub(crate) fn after_prefix(mut self) -> Self {
        while self.length > 0 {
            let last = self.length as usize - 1;
            if self.bytes[last] < 0xff {
                self.bytes[last] += 1;
                return self;
            }
            self.length -= 1;
        }
        Self {
            length: KEY_MAX as u8,
            bytes: [0xff; KEY_MAX],
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first_and_prefixes_hold_together() {
        assert!(Key::vnode(1, 2, 7) < Key::vnode(1, 2, 6));
        assert!(Key::vnode(1, 2, 0) < Key::vnode(1, 3, u64::MAX));
        let key = Key::piece(5, 4, 3, 2, 1);
        assert_eq!(
            (key.epoch(), key.piece_number(), key.body_number()),
            (1, 2, 3)
        );
        assert!(key.starts_with(&Key::piece_prefix(5, 4, 3, 2)));
        assert_eq!(key.of_all_versions(), Key::piece_prefix(5, 4, 3, 2));
        assert_eq!(Key::change(5, 1 << 40, 3).change_parts(), (1 << 40, 3));
        assert!(key < Key::piece_prefix(5, 4, 3, 2).after_prefix());
        assert!(key < key.successor());
        assert!(key.as_slice().len() <= KEY_MAX);
        assert_eq!(
            Key::retired(5, 4, 3).retired_parts(),
            (VnodeId(4), Uniquifier(3))
        );
        let key = Key::object_piece(5, 2, 1);
        assert_eq!((key.epoch(), key.u64_at(9)), (1, 2));
        assert_eq!(key.of_all_versions(), Key::object_piece_prefix(5, 2));
        assert!(Key::object(1, 2, 3, 4).starts_with(&Key::objects_of(1)));
    }
}
