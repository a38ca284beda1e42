//! Finds the groups in the journal files when a partition is opened.
//!
//! 1. A group is written only after the sync of the group before it has succeeded, in both modes of
//!    durability.
//! 2. So a crash of the process or of the machine tears at most the last group. A whole group
//!    behind one that is missing, or does not match its checksum, proves damage.
//! 3. Groups are looked for at every place where one can begin. So whether groups follow a damaged
//!    place does not depend on what that place says.
//! 4. Stale groups of a recycled file have numbers that the base holds already. Stale parts of
//!    groups may be data that users wrote; they do not carry the journal's id.
//!
//! A clean stop leaves exactly one group more than the base holds, at the start of a file. This
//! group says that no other follows. If it is found, nothing else is searched.

use bytes::Bytes;

use super::journal::{BLOCK, HEADER, Header, JournalFile, padded};
use crate::error::{Error, Result};

/// Bytes of a journal file that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// A group that is whole.
pub(super) struct Group {
    /// Index of its file among the files that were read.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) header: Header,
    pub(super) payload: Bytes,
}

impl Group {
    fn end(&self) -> u64 {
        self.offset + self.bytes()
    }

    /// Bytes that the group takes in its file.
    pub(super) fn bytes(&self) -> u64 {
        padded(HEADER as u64 + u64::from(self.header.payload))
    }
}

/// The header of a group of this journal whose checksum is wrong, or that is cut off.
struct BrokenGroup {
    file: usize,
    offset: u64,
    number: u64,
}

/// The groups that the base lacks.
pub(super) struct JournalScan {
    /// The groups that follow the base without a gap.
    pub(super) groups: Vec<Group>,
    /// File and offset where the next group would be, if anything shows that.
    pub(super) end: Option<(usize, u64)>,
    /// The last group was begun and is not whole; it lies at `end`.
    pub(super) is_torn: bool,
    /// Whole groups that lie behind a gap.
    pub(super) after_gap: Vec<Group>,
    /// File and offset of everything that must not be taken for part of the journal if `after_gap`
    /// is given up.
    rejected: Vec<(usize, u64)>,
    /// The last group is the one of a clean stop.
    pub(super) was_clean: bool,
}

/// Reads the groups of a journal that follow number `applied`.
pub(super) fn find(files: &[JournalFile], journal: u64, applied: u64) -> Result<JournalScan> {
    if let Some(found) = clean_stop(files, journal, applied)? {
        return Ok(found);
    }
    let (mut groups, mut broken) = (Vec::new(), Vec::new());
    for index in 0..files.len() {
        scan(files, index, journal, applied, &mut groups, &mut broken)?;
    }
    groups.sort_by_key(|group: &Group| group.header.number);
    groups.dedup_by_key(|group| group.header.number);
    let follow = (applied + 1..).zip(&groups);
    let chain = follow.take_while(|(number, group)| group.header.number == *number);
    let count = chain.count();
    let after_gap = groups.split_off(count);
    let last = applied + count as u64;
    broken.retain(|broken: &BrokenGroup| broken.number > last);
    let rejected = after_gap.iter().map(|group| (group.file, group.offset));
    let rejected = rejected.chain(broken.iter().map(|at| (at.file, at.offset)));
    let rejected = rejected.collect();
    let torn = broken.iter().find(|broken| broken.number == last + 1);
    let mut torn = torn.map(|broken| (broken.file, broken.offset));
    let after = groups.last().map(|group| (group.file, group.end()));
    if torn.is_none() && after_gap.is_empty() {
        torn = resembling(files, journal, last + 1, after)?;
    }
    let end = match (torn, after_gap.first()) {
        (Some(torn), _) => Some(torn),
        (None, Some(next)) => Some(gap_before(next, after)),
        (None, None) => after,
    };
    Ok(JournalScan {
        groups,
        end,
        is_torn: torn.is_some() && after_gap.is_empty(),
        after_gap,
        rejected,
        was_clean: false,
    })
}

/// The place where a group with this number was begun whose header is damaged. It is right behind
/// the last group, or at the start of a file. A recycled file has stale bytes there, whose numbers
/// are smaller.
fn resembling(
    files: &[JournalFile],
    journal: u64,
    number: u64,
    after: Option<(usize, u64)>,
) -> Result<Option<(usize, u64)>> {
    let starts = (0..files.len()).map(|file| (file, 0));
    for (file, offset) in after.into_iter().chain(starts) {
        let mut header = [0; HEADER];
        if offset + HEADER as u64 > files[file].length()? {
            continue;
        }
        files[file].read(&mut header, offset)?;
        let may_be = Header::resembles(&header, journal, number);
        // A stale group is whole: only the part of the file before it was overwritten.
        if may_be && read_group(&files[file], file, offset)?.is_err() {
            return Ok(Some((file, offset)));
        }
    }
    Ok(None)
}

/// The place where the group before `next` is missing. `after` is the end of the last group that is
/// there.
fn gap_before(next: &Group, after: Option<(usize, u64)>) -> (usize, u64) {
    match after {
        Some((file, offset)) if file == next.file && offset < next.offset => (file, offset),
        // `next` begins its file, so the missing group lies at the end of the file before.
        Some(after) if next.offset == 0 => after,
        _ => (next.file, 0),
    }
}

/// Returns the group of a clean stop, if there is one. Nothing was written after it.
fn clean_stop(files: &[JournalFile], journal: u64, applied: u64) -> Result<Option<JournalScan>> {
    for (index, file) in files.iter().enumerate() {
        if let Ok(group) = read_group(file, index, 0)?
            && group.header.journal == journal
            && group.header.number == applied + 1
            && group.header.ends
        {
            return Ok(Some(JournalScan {
                end: Some((index, group.end())),
                groups: vec![group],
                is_torn: false,
                after_gap: Vec::new(),
                rejected: Vec::new(),
                was_clean: true,
            }));
        }
    }
    Ok(None)
}

/// Refuses a file that begins with a whole group of another journal.
pub(super) fn check_owner(file: &JournalFile, journal: u64) -> Result<()> {
    match read_group(file, 0, 0)? {
        Ok(group) if ![0, journal].contains(&group.header.journal) => Err(Error::Damaged(format!(
            "{} holds changes of another partition than the table 'base' does",
            file.name
        ))),
        _ => Ok(()),
    }
}

/// Returns whether a file begins with a whole group of any journal.
pub(super) fn is_used(file: &JournalFile) -> Result<bool> {
    Ok(read_group(file, 0, 0)?.is_ok())
}

/// Looks for groups of the journal with numbers above `applied` at every place of a file.
fn scan(
    files: &[JournalFile],
    index: usize,
    journal: u64,
    applied: u64,
    groups: &mut Vec<Group>,
    broken: &mut Vec<BrokenGroup>,
) -> Result<()> {
    let file = &files[index];
    let length = file.length()?;
    let (mut at, mut skip_to) = (0, 0);
    while at < length {
        let mut bytes = vec![0; READ_BYTES.min(length - at) as usize];
        file.read(&mut bytes, at)?;
        for (block, offset) in bytes
            .chunks(BLOCK as usize)
            .zip((at..).step_by(BLOCK as usize))
        {
            let Some((header, _)) = Header::parse(block) else {
                continue;
            };
            if offset < skip_to || header.journal != journal || header.number <= applied {
                continue;
            }
            match read_group(file, index, offset)? {
                Ok(group) => {
                    skip_to = group.end();
                    groups.push(group);
                }
                Err(NoGroup) => broken.push(BrokenGroup {
                    file: index,
                    offset,
                    number: header.number,
                }),
            }
        }
        at += READ_BYTES;
    }
    Ok(())
}

/// There is no whole group at that place.
struct NoGroup;

fn read_group(file: &JournalFile, index: usize, offset: u64) -> Result<Result<Group, NoGroup>> {
    let mut bytes = [0; HEADER];
    let length = file.length()?;
    if offset + HEADER as u64 > length {
        return Ok(Err(NoGroup));
    }
    file.read(&mut bytes, offset)?;
    let Some((header, checksum)) = Header::parse(&bytes) else {
        return Ok(Err(NoGroup));
    };
    let start = offset + HEADER as u64;
    if start + u64::from(header.payload) > length {
        return Ok(Err(NoGroup));
    }
    let mut payload = vec![0; header.payload as usize];
    file.read(&mut payload, start)?;
    if !Header::is_whole(&bytes, &payload, checksum) {
        return Ok(Err(NoGroup));
    }
    Ok(Ok(Group {
        file: index,
        offset,
        header,
        payload: payload.into(),
    }))
}

impl JournalScan {
    /// Overwrites the starts of all groups behind the gap. Otherwise they would be taken for part
    /// of the journal once the journal has reached their numbers.
    pub(super) fn erase_rejected(&self, files: &[JournalFile]) -> Result<()> {
        let zeros = [0; BLOCK as usize];
        for (file, offset) in &self.rejected {
            files[*file].write(&zeros, *offset)?;
        }
        files.iter().try_for_each(JournalFile::sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Aligned, SimDisk};
    use crate::engine::batch::{Batch, Batches};
    use crate::engine::journal::{batches_of, seal};
    use crate::engine::key::Key;

    const JOURNAL: u64 = 77;

    fn group_of(journal: u64, number: u64, value: Vec<u8>) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.put(Key::volume(number as u32), value.into());
        let mut batches = Batches::default();
        batches.add(&batch);
        let mut sheet = Aligned::default();
        let header = Header {
            journal,
            number,
            payload: 0,
            ends: false,
        };
        seal(&batches, header, &mut sheet);
        sheet.bytes().to_vec()
    }

    fn group(number: u64) -> Vec<u8> {
        group_of(JOURNAL, number, vec![1])
    }

    /// A disk with two files, each with these bytes at these blocks.
    fn files(contents: [&[(u64, Vec<u8>)]; 2]) -> (SimDisk, Vec<JournalFile>) {
        let disk = SimDisk::new(8 << 20);
        let mut files = Vec::new();
        for (number, groups) in contents.into_iter().enumerate() {
            let file = JournalFile::open(&disk, number as u32, 2 << 20).unwrap();
            for (block, bytes) in groups {
                file.write(bytes, block * BLOCK).unwrap();
            }
            files.push(file);
        }
        (disk, files)
    }

    fn numbers(groups: &[Group]) -> Vec<u64> {
        groups.iter().map(|group| group.header.number).collect()
    }

    fn found(files: &[JournalFile], applied: u64) -> JournalScan {
        find(files, JOURNAL, applied).unwrap()
    }

    #[test]
    fn stale_groups_end_the_journal_and_a_torn_one_is_told() {
        // The last group spans two blocks. Before it lies more than is read at a time.
        let large = group_of(JOURNAL, 9, vec![7; 5000]);
        let stale = [(0, group(7)), (1, group(8)), (2, group(3))];
        let (disk, files) = files([&stale, &[(400, large)]]);
        let all = found(&files, 6);
        assert_eq!(numbers(&all.groups), [7, 8, 9]);
        assert_eq!(all.end, Some((1, 402 * BLOCK)));
        let first = &all.groups[0];
        assert_eq!(batches_of(7, &first.payload).unwrap().len(), 1);
        assert_eq!(numbers(&found(&files, 8).groups), [9]);
        // Stale groups lie where the next one would be.
        let tail = found(&files[..1], 6);
        assert_eq!((numbers(&tail.groups), tail.is_torn), (vec![7, 8], false));
        assert_eq!(tail.end, Some((0, 2 * BLOCK)));
        disk.flip_bit("journal.1", 401 * BLOCK + 40, 3);
        let torn = found(&files, 6);
        assert_eq!(numbers(&torn.groups), [7, 8]);
        assert!(torn.is_torn && torn.after_gap.is_empty());
        assert_eq!(torn.end, Some((1, 400 * BLOCK)));
    }

    #[test]
    fn a_whole_group_behind_a_gap_is_damage_wherever_it_lies() {
        let here = [7, 8, 9, 10].map(|number| (number - 7, group(number)));
        let (disk, both) = files([&here, &[]]);
        disk.flip_bit("journal.0", 2 * BLOCK + 20, 0);
        let gap = found(&both, 6);
        assert_eq!(numbers(&gap.groups), [7, 8]);
        assert_eq!(numbers(&gap.after_gap), [10]);
        // The id is damaged; the place follows from the groups around it.
        assert_eq!((gap.end, gap.is_torn), (Some((0, 2 * BLOCK)), false));
        gap.erase_rejected(&both).unwrap();
        assert!(found(&both, 6).after_gap.is_empty());

        let elsewhere = |blocks: [&[(u64, Vec<u8>)]; 2]| {
            let gap = found(&files(blocks).1, 6);
            (numbers(&gap.after_gap), gap.end)
        };
        let end = Some((0, 2 * BLOCK));
        let next = [(0, group(10))];
        assert_eq!(elsewhere([&here[..2], &next]), (vec![10], end));
        let next = [(5, group(10))];
        assert_eq!(elsewhere([&[], &next]), (vec![10], Some((1, 0))));
    }

    #[test]
    fn the_store_of_a_user_makes_no_group() {
        // A group whose data looks like a later group, at a place where a group could begin.
        let before = BLOCK as usize - (HEADER + 12 + 6 + 5);
        let mut value = vec![0; before];
        value.extend_from_slice(&group_of(0, 99, vec![1]));
        let mut outer = group_of(JOURNAL, 7, value);
        assert!(Header::parse(&outer[BLOCK as usize..]).is_some());
        let (_, both) = files([&[(0, outer.clone())], &[]]);
        let sound = found(&both, 6);
        assert_eq!(
            (numbers(&sound.groups), sound.after_gap.len()),
            (vec![7], 0)
        );
        outer[50] ^= 1;
        let (_, both) = files([&[(0, outer)], &[]]);
        let torn = found(&both, 6);
        assert!(torn.groups.is_empty() && torn.after_gap.is_empty() && torn.is_torn);
    }
}
