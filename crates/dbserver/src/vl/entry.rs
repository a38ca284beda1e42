//! An entry of the volume location database: one volume group, its ids and its sites.
//!
//! There is one internal form. Calls with 8 sites, 13 sites or UUIDs convert it, with the table of
//! servers.

use cellar_wire::vl::{EntryName, LockText, Site, VLOP_ALLOPERS};
use cellar_wire::{AbortCode, AfsTime, List, VolumeId};
use cellar_xdr::xdr_struct;

use super::limits::SITE_FLAGS_MAX;

/// The place of a volume: a server, by its number in the table of servers, and a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntrySite {
    pub(crate) server: u8,
    pub(crate) partition: u8,
    pub(crate) flags: u8,
}

/// One volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Key of the row; listings have this order.
    pub(crate) number: u32,
    /// The name without `.readonly` or `.backup`.
    pub(crate) name: EntryName,
    /// Ids of the read-write, read-only and backup volume; 0 for none.
    pub(crate) ids: [VolumeId; 3],
    pub(crate) clone_id: VolumeId,
    /// `VLF_*`, and `VLOP_*` during an operation or after an unfinished one.
    pub(crate) flags: u32,
    /// Time of locking; 0 if it is not locked. Locks do not expire.
    pub(crate) lock_time: AfsTime,
    pub(crate) lock_id: i32,
    pub(crate) places: Box<[EntrySite]>,
}

xdr_struct! {
    /// An entry as stored, under its number.
    pub(crate) struct EntryRow {
        name: EntryName,
        ids: [VolumeId; 3],
        clone_id: VolumeId,
        flags: u32,
        lock_time: AfsTime,
        lock_id: i32,
        places: List<u32, 13>,
    }
}

xdr_struct! {
    /// The holder of an entry's lock, stored under the entry's number.
    #[derive(Default)]
    pub(crate) struct Holder {
        /// Time of the lock. A lock with another time is another lock.
        pub(crate) since: AfsTime,
        /// The identity that the caller proved; empty if unknown.
        pub(crate) who: LockText,
        /// The caller's address; 0 for the local administrator.
        pub(crate) from: u32,
        /// The text that the caller gave.
        pub(crate) note: LockText,
    }
}

impl Entry {
    pub(crate) fn to_row(&self) -> EntryRow {
        let word = |p: &EntrySite| u32::from_be_bytes([0, p.server, p.partition, p.flags]);
        EntryRow {
            name: self.name.clone(),
            ids: self.ids,
            clone_id: self.clone_id,
            flags: self.flags,
            lock_time: self.lock_time,
            lock_id: self.lock_id,
            places: List::from_iter_cut(self.places.iter().map(word)),
        }
    }

    pub(crate) fn from_row(number: u32, row: EntryRow) -> Self {
        let place = |word: &u32| {
            let [_, server, partition, flags] = word.to_be_bytes();
            EntrySite {
                server,
                partition,
                flags,
            }
        };
        Self {
            number,
            name: row.name,
            ids: row.ids,
            clone_id: row.clone_id,
            flags: row.flags,
            lock_time: row.lock_time,
            lock_id: row.lock_id,
            places: row.places.iter().map(place).collect(),
        }
    }

    /// Releases the parts of a lock that `releasetype` names: a sum of `LOCKREL_*`.
    pub(crate) fn release(&mut self, releasetype: i32) {
        use cellar_wire::vl::{LOCKREL_AFSID, LOCKREL_OPCODE, LOCKREL_TIMESTAMP};
        if releasetype & LOCKREL_TIMESTAMP != 0 {
            self.lock_time = AfsTime(0);
        }
        if releasetype & LOCKREL_OPCODE != 0 {
            self.flags &= !VLOP_ALLOPERS;
        }
        if releasetype & LOCKREL_AFSID != 0 {
            self.lock_id = 0;
        }
    }
}

/// Checks whether a text can be the name of a volume in the database.
///
/// # Errors
/// VL_BADNAME: empty, over 64 bytes, or with other characters than `A-Z a-z 0-9 . - _`.
pub(crate) fn check_name(name: &[u8]) -> Result<(), AbortCode> {
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > EntryName::LIMIT || !name.iter().all(legal) {
        return Err(AbortCode::VL_BADNAME);
    }
    Ok(())
}

/// Checks whether a text can be the name of a new entry. It must not end like the name of a clone:
/// lookups cut that suffix off and would not find the entry.
///
/// # Errors
/// VL_BADNAME.
pub(crate) fn check_new_name(name: &[u8]) -> Result<(), AbortCode> {
    check_name(name)?;
    if base_name(name) != name {
        Err(AbortCode::VL_BADNAME)
    } else {
        Ok(())
    }
}

/// The name of a volume's group, from the name of the volume.
pub(crate) fn base_name(name: &[u8]) -> &[u8] {
    let base = name
        .strip_suffix(b".readonly")
        .or_else(|| name.strip_suffix(b".backup"));
    base.unwrap_or(name)
}

/// The id that a name stands for, if it has digits only.
pub(crate) fn name_as_id(name: &[u8]) -> Option<VolumeId> {
    if name.is_empty() || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok().map(VolumeId)
}

/// # Errors
/// VL_BADVOLTYPE for all but the three types and -1, which stands for any.
pub(crate) fn check_type(voltype: i32) -> Result<(), AbortCode> {
    if (-1..=2).contains(&voltype) {
        Ok(())
    } else {
        Err(AbortCode::VL_BADVOLTYPE)
    }
}

/// # Errors
/// VL_BADRELLOCKTYPE for a value that is not 0 and has no known bit.
pub(crate) fn check_release_type(releasetype: i32) -> Result<(), AbortCode> {
    if releasetype != 0 && releasetype & 7 == 0 {
        return Err(AbortCode::VL_BADRELLOCKTYPE);
    }
    Ok(())
}

/// # Errors
/// VL_BADPARTITION for a number above 255 or below 0.
pub(crate) fn check_partition(partition: i32) -> Result<u8, AbortCode> {
    u8::try_from(partition).map_err(|_| AbortCode::VL_BADPARTITION)
}

/// # Errors
/// VL_BADSERVERFLAG for flags that do not fit.
pub(crate) fn check_site_flags(flags: u32) -> Result<u8, AbortCode> {
    match u8::try_from(flags) {
        Ok(flags) if flags <= SITE_FLAGS_MAX => Ok(flags),
        _ => Err(AbortCode::VL_BADSERVERFLAG),
    }
}

/// Checks the sites of an entry from a caller, before any lookup.
///
/// # Errors
/// VL_BADSERVER without sites; VL_BADPARTITION; VL_BADSERVERFLAG.
pub(crate) fn check_sites(sites: &[Site]) -> Result<(), AbortCode> {
    if sites.is_empty() {
        return Err(AbortCode::VL_BADSERVER);
    }
    for site in sites {
        check_partition(site.partition)?;
        check_site_flags(site.flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_cut() {
        assert!(check_name(b"user.jane-2_x").is_ok());
        assert!(check_name(&[b'a'; 64]).is_ok());
        for wrong in [
            &b""[..],
            b"a b",
            b"a/b",
            b"a\0",
            "ä".as_bytes(),
            &[b'a'; 65],
        ] {
            assert_eq!(check_name(wrong), Err(AbortCode::VL_BADNAME), "{wrong:?}");
        }
        assert_eq!(check_new_name(b"a.readonly"), Err(AbortCode::VL_BADNAME));
        assert_eq!(base_name(b"a.readonly"), b"a");
        assert_eq!(base_name(b"a.backup"), b"a");
        assert_eq!(base_name(b"a.readonly.backup"), b"a.readonly");
        assert_eq!(name_as_id(b"536870912"), Some(VolumeId(536870912)));
        assert_eq!(name_as_id(b"99999999999"), None);
        assert_eq!(name_as_id(b"1a"), None);
        assert_eq!(name_as_id(b""), None);
    }

    #[test]
    fn arguments_out_of_range_have_their_codes() {
        assert_eq!(check_type(3), Err(AbortCode::VL_BADVOLTYPE));
        assert_eq!(check_type(-2), Err(AbortCode::VL_BADVOLTYPE));
        assert!(check_type(-1).is_ok());
        assert_eq!(check_release_type(8), Err(AbortCode::VL_BADRELLOCKTYPE));
        assert!(check_release_type(0).is_ok() && check_release_type(7).is_ok());
        assert_eq!(check_partition(256), Err(AbortCode::VL_BADPARTITION));
        assert_eq!(check_partition(-1), Err(AbortCode::VL_BADPARTITION));
        assert_eq!(check_site_flags(0x81), Err(AbortCode::VL_BADSERVERFLAG));
    }
}
