//! The list itself and its binary form.

use super::Rights;
use crate::ids::ViceId;

/// Bytes of the binary form.
pub const ACL_SIZE: usize = 192;
/// Entries, positive and negative together.
pub const ENTRIES_MAX: usize = 20;

const HEAD_SIZE: usize = 20;
const ENTRY_SIZE: usize = 8;
const VERSION: i32 = 1;

const _: () = assert!(HEAD_SIZE + ENTRIES_MAX * ENTRY_SIZE <= ACL_SIZE);

/// Rights of one user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclEntry {
    /// The user or group.
    pub id: ViceId,
    /// The rights.
    pub rights: Rights,
}

/// An access list: at most 20 entries, both kinds sorted by id.
///
/// An id may occur more than once; its rights then add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessList {
    positive: Vec<AclEntry>,
    negative: Vec<AclEntry>,
}

/// A list with more than 20 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an access list has at most 20 entries, not {0}")]
pub struct AclFull(pub usize);

/// Bytes that are not an access list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an access list: size {size}, {total} entries, {positive} positive, {negative} negative"
)]
pub struct BadAcl {
    /// The size in the head.
    pub size: i32,
    /// The number of all entries in the head.
    pub total: i32,
    /// The number of positive entries in the head.
    pub positive: i32,
    /// The number of negative entries in the head.
    pub negative: i32,
}

/// The byte order of the words of a binary list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The order in dumps.
    Network,
    /// The order in vnode indexes that a little-endian file server wrote.
    LittleEndian,
}

/// A caller's current protection subdomain: the ids whose rights the caller has, sorted and without
/// duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cps(Vec<ViceId>);

impl Cps {
    /// A CPS of ids in any order.
    pub fn new(mut ids: Vec<ViceId>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }

    /// The CPS of every caller: `system:anyuser`.
    pub fn anonymous() -> Self {
        Self(vec![ViceId::ANYUSER])
    }

    /// Whether `id` is in the CPS.
    pub fn contains(&self, id: ViceId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// The CPS of the local administrator and of holders of the cell's key: `system:administrators`
    /// and nothing else. No user has this CPS.
    pub fn superuser() -> Self {
        Self(vec![ViceId::ADMINISTRATORS])
    }

    /// Whether the caller is a member of `system:administrators`.
    pub fn is_administrator(&self) -> bool {
        self.contains(ViceId::ADMINISTRATORS)
    }

    /// Whether the CPS has every right everywhere, like [`Cps::superuser`]: no id in it is above
    /// `system:administrators`.
    ///
    /// The CPS of a user is never like that, because the user's own id is in it. A user in
    /// `system:administrators` has the rights that lists grant, and those that the file server adds
    /// for administrators.
    pub fn is_superuser(&self) -> bool {
        self.0.last() == Some(&ViceId::ADMINISTRATORS)
    }

    /// The ids, ascending.
    pub fn ids(&self) -> &[ViceId] {
        &self.0
    }
}

impl FromIterator<ViceId> for Cps {
    fn from_iter<I: IntoIterator<Item = ViceId>>(ids: I) -> Self {
        Self::new(ids.into_iter().collect())
    }
}

impl AccessList {
    /// A list of these entries, in any order.
    ///
    /// # Errors
    /// [`AclFull`] when there are more than 20 together.
    pub fn new(mut positive: Vec<AclEntry>, mut negative: Vec<AclEntry>) -> Result<Self, AclFull> {
        let total = positive.len() + negative.len();
        if total > ENTRIES_MAX {
            return Err(AclFull(total));
        }
        // A stable sort: entries of the same id keep their order, so a list that was read is
        // written back unchanged.
        positive.sort_by_key(|entry| entry.id);
        negative.sort_by_key(|entry| entry.id);
        Ok(Self { positive, negative })
    }

    /// The list of a new volume's root: administrators have `rlidwka`.
    pub fn administrators_only() -> Self {
        let entry = AclEntry {
            id: ViceId::ADMINISTRATORS,
            rights: Rights::ALL,
        };
        Self {
            positive: vec![entry],
            negative: Vec::new(),
        }
    }

    /// Entries that grant, by ascending id.
    pub fn positive(&self) -> &[AclEntry] {
        &self.positive
    }

    /// Entries that take away, by ascending id.
    pub fn negative(&self) -> &[AclEntry] {
        &self.negative
    }

    /// Every id in the list, for looking up the names.
    pub fn ids(&self) -> impl Iterator<Item = ViceId> + '_ {
        self.positive
            .iter()
            .chain(&self.negative)
            .map(|entry| entry.id)
    }

    /// The rights of a caller with this CPS.
    ///
    /// The file server adds the rights of owners and hosts. It also adds the rights that members of
    /// `system:administrators` have everywhere (by default lookup).
    pub fn rights(&self, cps: &Cps) -> Rights {
        if cps.is_superuser() {
            return Rights::EVERYTHING;
        }
        let union = |entries: &[AclEntry]| {
            entries
                .iter()
                .filter(|entry| cps.contains(entry.id))
                .fold(Rights::NONE, |rights, entry| rights | entry.rights)
        };
        union(&self.positive).difference(union(&self.negative))
    }

    /// The rights of a caller who is only `system:anyuser`.
    pub fn anonymous_rights(&self) -> Rights {
        self.rights(&Cps::anonymous())
    }

    /// The binary form in network order. The bytes after the entries are zero.
    pub fn to_bytes(&self) -> [u8; ACL_SIZE] {
        let (positive, negative) = (self.positive.len(), self.negative.len());
        let total = positive + negative;
        let size = HEAD_SIZE + ENTRY_SIZE * total;
        let mut bytes = [0; ACL_SIZE];
        let head = [
            size as i32,
            VERSION,
            total as i32,
            positive as i32,
            negative as i32,
        ];
        let entries = self.positive.iter().chain(self.negative.iter().rev());
        let words = head
            .into_iter()
            .chain(entries.flat_map(|entry| [entry.id.0, entry.rights.0 as i32]));
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Reads the binary form. The version and the bytes after the entries are ignored.
    ///
    /// Entries are sorted here: evaluation by merging relies on the order, and not every tool keeps
    /// it.
    ///
    /// # Errors
    /// [`BadAcl`] when the counts and the size in the head contradict each other or do not fit 192
    /// bytes.
    pub fn from_bytes(bytes: &[u8; ACL_SIZE], order: ByteOrder) -> Result<Self, BadAcl> {
        let (words, _) = bytes.as_chunks::<4>();
        #[expect(clippy::indexing_slicing, reason = "192 bytes are 48 words")]
        let word = |index: usize| match order {
            ByteOrder::Network => i32::from_be_bytes(words[index]),
            ByteOrder::LittleEndian => i32::from_le_bytes(words[index]),
        };
        let (size, total, positive, negative) = (word(0), word(2), word(3), word(4));
        let bad = BadAcl {
            size,
            total,
            positive,
            negative,
        };
        let count = usize::try_from(total)
            .ok()
            .filter(|&count| count <= ENTRIES_MAX)
            .ok_or(bad)?;
        let front = usize::try_from(positive).map_err(|_| bad)?;
        let fits = usize::try_from(negative)
            .is_ok_and(|back| front.checked_add(back) == Some(count))
            && usize::try_from(size)
                .is_ok_and(|size| (HEAD_SIZE + ENTRY_SIZE * count..=ACL_SIZE).contains(&size));
        if !fits {
            return Err(bad);
        }
        let entry = |index: usize| AclEntry {
            id: ViceId(word(HEAD_SIZE / 4 + 2 * index)),
            rights: Rights(word(HEAD_SIZE / 4 + 2 * index + 1) as u32),
        };
        let positive = (0..front).map(entry).collect();
        let negative = (front..count).rev().map(entry).collect();
        Self::new(positive, negative).map_err(|_| bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i32, rights: u32) -> AclEntry {
        AclEntry {
            id: ViceId(id),
            rights: Rights(rights),
        }
    }

    fn cps(ids: &[i32]) -> Cps {
        ids.iter().copied().map(ViceId).collect()
    }

    #[test]
    fn negative_entries_take_away_and_ascend_from_the_back() {
        let acl = AccessList::new(
            vec![entry(1000, 0x3f), entry(-101, 0x09)],
            vec![entry(7, 0x06), entry(-5, 0x01), entry(3, 0x40)],
        )
        .unwrap();
        assert_eq!(acl.rights(&cps(&[-101])), Rights(0x09));
        assert_eq!(acl.rights(&cps(&[-101, -5])), Rights(0x08));
        assert_eq!(acl.rights(&cps(&[1000, 7, -101])), Rights(0x39));
        assert_eq!(acl.rights(&cps(&[32766])), Rights::NONE);
        assert_eq!(acl.rights(&cps(&[-204, -101, 1000])), Rights(0x3f));
        assert_eq!(acl.rights(&Cps::superuser()), Rights::EVERYTHING);
        let bytes = acl.to_bytes();
        let stored: Vec<i32> = bytes[20..60]
            .chunks_exact(8)
            .map(|pair| i32::from_be_bytes(pair[..4].try_into().unwrap()))
            .collect();
        assert_eq!(stored, [-101, 1000, 7, 3, -5]);
        assert_eq!(AccessList::from_bytes(&bytes, ByteOrder::Network), Ok(acl));
    }

    #[test]
    fn golden_bytes_of_a_new_root() {
        let bytes = AccessList::administrators_only().to_bytes();
        let golden: [u8; 28] = [
            0, 0, 0, 28, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x34, 0,
            0, 0, 0x7f,
        ];
        assert_eq!(bytes[..28], golden);
        assert!(bytes[28..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn impossible_heads_are_refused() {
        let good = AccessList::administrators_only().to_bytes();
        for (word, value) in [
            (0, 27),
            (0, 193),
            (0, -1),
            (2, 21),
            (2, -1),
            (2, 2),
            (3, 2),
            (3, -1),
            (4, 1),
            (4, -1),
            (4, i32::MAX),
            (3, i32::MAX),
        ] {
            let mut bytes = good;
            bytes[word * 4..word * 4 + 4].copy_from_slice(&i32::to_be_bytes(value));
            assert!(
                AccessList::from_bytes(&bytes, ByteOrder::Network).is_err(),
                "{word} {value}"
            );
        }
        let entries: Vec<_> = (0..21).map(|id| entry(id, 1)).collect();
        assert_eq!(
            AccessList::new(entries[..20].to_vec(), entries[20..].to_vec()),
            Err(AclFull(21))
        );
        let full = AccessList::new(entries[..20].to_vec(), vec![]).unwrap();
        assert_eq!(
            AccessList::from_bytes(&full.to_bytes(), ByteOrder::Network),
            Ok(full)
        );
    }
}
