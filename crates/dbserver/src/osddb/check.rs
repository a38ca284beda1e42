//! Checks of a device's entry.

use cellar_wire::AbortCode;
use cellar_wire::osddb::{
    OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE, OSD_SOFT_DELETE, OSD_WIPEABLE, OsdEntry,
};

use super::tables::LOCAL_DISK;

const FLAGS: u32 = OSD_ARCHIVAL | OSD_WIPEABLE | OSD_DRAINING | OSD_OBSOLETE | OSD_SOFT_DELETE;
/// The highest partition number: `/vicepa` to `/vicepiu`.
const PARTITION_MAX: u32 = 254;
/// The highest weight. The code that chooses devices adds weights up.
const PRIORITY_MAX: u32 = 1_000_000;
/// The highest mark, in thousandths.
const MARK_MAX: u16 = 1000;
/// The default port of OSD servers.
const PORT: u32 = 7006;

/// Checks an entry and fills in the defaults of omitted fields.
///
/// # Errors
/// EINVAL.
pub(super) fn checked(mut entry: OsdEntry) -> Result<OsdEntry, AbortCode> {
    let texts = [
        (entry.name.as_str(), true),
        (entry.owner.as_str(), false),
        (entry.class.as_str(), false),
        (entry.location.as_str(), false),
    ];
    let words = texts.into_iter().all(|(text, needed)| {
        text.is_some_and(|text| is_word(text) && !(needed && text.is_empty()))
    });
    // A name that looks like a number would be read as one.
    let named = entry
        .name
        .as_str()
        .is_some_and(|name| !name.contains('/') && !name.bytes().all(|byte| byte.is_ascii_digit()));
    let of_use = match entry.id {
        LOCAL_DISK => entry.flags == 0,
        _ => entry.flags & (OSD_ARCHIVAL | OSD_WIPEABLE) != OSD_ARCHIVAL | OSD_WIPEABLE,
    };
    let in_range = entry.flags & !FLAGS == 0
        && entry.port <= u32::from(u16::MAX)
        && entry.partition <= PARTITION_MAX
        && (entry.max_size == 0 || entry.min_size <= entry.max_size)
        && entry.allocation_priority <= PRIORITY_MAX
        && entry.read_priority <= PRIORITY_MAX
        && entry.marks.high <= MARK_MAX
        && (entry.marks.low == 0 || entry.marks.low < entry.marks.high);
    if !(words && named && of_use && in_range) {
        return Err(AbortCode::EINVAL);
    }
    if entry.port == 0 && entry.id != LOCAL_DISK {
        entry.port = PORT;
    }
    Ok(entry)
}

/// Whether a text can be shown in a table and typed: it has only visible characters.
pub(super) fn is_word(text: &str) -> bool {
    !text.chars().any(|c| c.is_whitespace() || c.is_control())
}
