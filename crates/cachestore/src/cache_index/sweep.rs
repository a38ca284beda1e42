//! The start of a cache: its files are compared with its index (rule 5 of `cache_index.rs`).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::{ASIDE, PARTS, path, remove, sync_all};
use crate::index_entry::Entry;
use crate::pack_slots::Slots;

/// Applies rule 5. Returns a number that is above all used numbers.
pub(super) fn sweep(
    directory: &Path,
    slots: &Slots,
    entries: &mut HashMap<u64, Entry>,
) -> io::Result<u64> {
    let mut next = entries.keys().max().map_or(0, |number| number + 1);
    let mut there = HashMap::new();
    for part in 0..PARTS {
        for file in std::fs::read_dir(directory.join(format!("{part:02x}")))? {
            let file = file?;
            let number = file.file_name().to_str().and_then(|name| name.parse().ok());
            let known = number.filter(|number| {
                entries.contains_key(number) && path(directory, *number) == file.path()
            });
            match known {
                Some(number) => {
                    there.insert(number, file.metadata()?.len());
                }
                None => remove(&file.path()),
            }
            next = next.max(number.map_or(0, |number| number.saturating_add(1)));
        }
    }
    // A file that is put aside must not take the name of an older one.
    for file in std::fs::read_dir(directory.join(ASIDE))? {
        let name = PathBuf::from(file?.file_name()).with_extension("");
        let number = name
            .to_str()
            .and_then(|name| name.rsplit('-').next()?.parse().ok());
        next = next.max(number.map_or(0, |number: u64| number.saturating_add(1)));
    }
    for number in slots.numbers() {
        let own = there.contains_key(&number).then(|| path(directory, number));
        // The name of the separate file must be on the disk before the slot is freed. Otherwise
        // both stay.
        let named =
            own.is_none_or(|own| own.parent().is_some_and(|parent| sync_all(parent).is_ok()));
        if !entries.contains_key(&number) || (there.contains_key(&number) && named) {
            slots.free(number);
        }
        next = next.max(number + 1);
    }
    entries.retain(|number, entry| {
        let length = there.get(number).copied();
        entry.own_file = length.is_some();
        if !entry.own_file && slots.has(*number) {
            return in_slot(slots, *number, entry);
        }
        if let Some(dirty) = entry.dirty.as_mut().filter(|dirty| dirty.contents) {
            // Missing bytes must not be taken for zeros.
            let end = dirty.ranges.iter().last().map_or(0, |(_, end)| end);
            dirty.torn |= length.unwrap_or(0) < end;
        } else if let Some(length) = length {
            let end = entry.sums.last_key_value().map_or(0, |(_, (end, _))| *end);
            // Bytes of a write that was never answered must not be taken for zeros.
            if end == 0 || (length > end && cut(&path(directory, *number), end).is_err()) {
                remove(&path(directory, *number));
                entry.sums.clear();
            }
        }
        if length.is_none() {
            entry.sums.clear();
        }
        !entry.sums.is_empty() || entry.dirty.is_some()
    });
    Ok(next)
}

fn cut(path: &Path, end: u64) -> io::Result<()> {
    let file = File::options().write(true).open(path);
    file.and_then(|file| file.set_len(end))
}

/// Does the same for bytes in a slot. Bytes beyond the end are cut when the file is recovered.
fn in_slot(slots: &Slots, number: u64, entry: &mut Entry) -> bool {
    if let Some(dirty) = entry.dirty.as_mut().filter(|dirty| dirty.contents) {
        let mut ranges = dirty.ranges.iter();
        let written = |(start, end)| slots.are_written(number, start, end).unwrap_or(false);
        dirty.torn |= !ranges.all(written);
    } else if entry.sums.is_empty() {
        slots.free(number);
        return entry.dirty.is_some();
    }
    true
}
