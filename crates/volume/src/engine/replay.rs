//! Opening a partition: the base, and the groups of the journal that it lacks.
//!
//! These groups are whole (checksum) and without a gap (numbers). Their changes go into a table,
//! which the flusher carries into the base while the partition is in use. So opening costs the
//! reading of the journal, no matter how large the base is and where in it the changes lie.
//!
//! A partition whose journal is damaged is refused; `found` describes the evidence for damage.

use std::sync::Arc;

use super::base::{Applied, Base, Mark, View};
use super::journal::{self, JournalFile};
use super::journal_scan::{self, JournalScan};
use super::room::Room;
use super::space::Space;
use super::table::Table;
use super::{FILES_NUMBERED_MAX, Opening};
use crate::disk::{Disk, is_full};
use crate::error::{Error, Result};
use crate::options::Options;

/// The message that is logged after a kill or a power cut.
const UNCLEAN: &str = "the partition was not stopped cleanly";
/// Name of the base table's file.
const BASE_FILE: &str = "base";
/// Name of the file with the checksums of the base table's blocks.
pub(super) const SUMS_FILE: &str = "base.sums";
/// Name of the base table's file until it is complete.
const NEW_BASE_FILE: &str = "base.new";

/// The base, the block map after the journal's last group, and the changes that the base lacks.
pub(super) struct Opened {
    pub(super) base: Base,
    pub(super) view: View,
    pub(super) space: Arc<Space>,
    /// The journal files that hold nothing of `replayed`.
    pub(super) files: Vec<JournalFile>,
    /// Number of the last group.
    pub(super) last: u64,
    /// The changes of the groups that the base does not hold, and the journal files that hold these
    /// groups.
    pub(super) replayed: Option<(Arc<Table>, Vec<JournalFile>)>,
    pub(super) opening: Opening,
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::Partition(format!("opening {what}: {error}"))
}

impl Opened {
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        options: &Options,
        ledger: &Arc<Room>,
    ) -> Result<Self> {
        let names = disk.list().map_err(|error| failed("the disk", &error))?;
        let base = open_base(disk.as_ref(), &names, options)?;
        let mut view = base.view()?;
        let (mut files, files_lost) = open_journal(disk.as_ref(), &names, options, &view)?;
        let journal = view.mark.map_or(0, |mark| mark.journal);
        let found = journal_scan::find(&files, journal, view.applied)?;
        let mut last = view.applied + found.groups.len() as u64;
        let opening = Opening {
            files_lost,
            ..describe(&found, &files, &view)
        };
        if !found.after_gap.is_empty() {
            give_up(&found, &files, &opening, options)?;
        }
        if view.partial > last {
            return Err(Error::Damaged(format!(
                "the base table has a part of the changes up to group {}, of which the journal \
                 holds those up to {last} only: restore the partition's volumes elsewhere",
                view.partial
            )));
        }
        if found.was_clean && last == view.applied + 1 {
            // The partition counts as in use from now on.
            base.apply(std::iter::empty(), Applied::UpTo(last))?;
            view = base.view()?;
        }
        last = last.max(view.applied);
        let room = Arc::clone(ledger);
        let space = Arc::new(Space::open(Arc::clone(disk), room, &|key| view.get(key))?);
        let table = Table::default();
        let mut used = Vec::new();
        if let Some(group) = found.groups.last() {
            // The process that wrote this last group may have been killed before its sync, or the
            // sync failed. From now on later groups build on it, so it is written again durably.
            files[group.file].rewrite(group.offset, group.bytes())?;
        }
        for group in &found.groups {
            if group.header.number <= view.applied {
                continue;
            }
            if !used.contains(&group.file) {
                files[group.file].sync()?;
                used.push(group.file);
            }
            for batch in journal::batches_of(group.header.number, &group.payload)? {
                space.apply(&batch.taken, &batch.released, &|key| view.get(key))?;
                ledger.enter_table(&table, batch.entries);
            }
        }
        let mut replayed = None;
        if last > view.applied {
            ledger.enter_table(&table, space.freeze());
            space.end_replay();
            table.set_last_group(last);
            tracing::info!(groups = last - view.applied, "replayed the journal");
            let (holding, free) = (files.into_iter().enumerate())
                .partition::<Vec<_>, _>(|(index, _)| used.contains(index));
            files = free.into_iter().map(|(_, file)| file).collect();
            let holding = holding.into_iter().map(|(_, file)| file).collect();
            replayed = Some((Arc::new(table), holding));
        }
        Ok(Self {
            base,
            view,
            space,
            files,
            last,
            replayed,
            opening,
        })
    }
}

/// Opens the base table. If there is none and no journal is in use, makes one, completely or not at
/// all.
fn open_base(disk: &dyn Disk, names: &[String], options: &Options) -> Result<Base> {
    let failed = |error| failed("the base table", &error);
    let is_there = names.iter().any(|name| name == BASE_FILE);
    if is_there {
        let file = disk.open(BASE_FILE).map_err(failed)?;
        if file.length().map_err(failed)? > 0 {
            let sums = disk.open(SUMS_FILE).map_err(failed)?;
            let base = Base::open(file, sums, options.base_cache_bytes)?;
            disk.sync_names().map_err(failed)?;
            return Ok(base);
        }
    }
    for number in journal_numbers(names) {
        let file = JournalFile::open(disk, number, 0).map_err(failed)?;
        if journal_scan::is_used(&file)? {
            let state = if is_there { "empty" } else { "missing" };
            return Err(Error::Damaged(format!(
                "its file '{BASE_FILE}' is {state}, and {} is in use: restore that file, or the \
                 partition's volumes elsewhere",
                file.name
            )));
        }
    }
    let file = disk.open(NEW_BASE_FILE).map_err(failed)?;
    file.set_length(0).map_err(failed)?;
    let sums = disk.open(SUMS_FILE).map_err(failed)?;
    sums.set_length(0).map_err(failed)?;
    let base = Base::open(file, sums, options.base_cache_bytes)?;
    disk.rename(NEW_BASE_FILE, BASE_FILE).map_err(failed)?;
    disk.sync_names().map_err(failed)?;
    Ok(base)
}

fn journal_numbers(names: &[String]) -> impl Iterator<Item = u32> {
    let numbers = names.iter().filter_map(|name| {
        name.strip_prefix("journal.")
            .and_then(|number| number.parse::<u32>().ok())
    });
    numbers.filter(|&number| number < FILES_NUMBERED_MAX)
}

/// Opens the journal's files. If the base has a mark, its files must be there with their full size;
/// otherwise two are made. The returned names are those of missing files that were made again.
fn open_journal(
    disk: &dyn Disk,
    names: &[String],
    options: &Options,
    view: &View,
) -> Result<(Vec<JournalFile>, Vec<String>)> {
    let mark = view.mark;
    let mut lost = match mark {
        Some(_) => Vec::new(),
        None => check_unmarked(disk, names, view.applied, options)?,
    };
    let in_use = |number: &u32| mark.is_some_and(|mark| mark.files >> number & 1 == 1);
    let wanted: Vec<u32> = match mark {
        Some(_) => (0..FILES_NUMBERED_MAX).filter(in_use).collect(),
        None => {
            let count = journal_numbers(names).max().map_or(2, |last| last + 1);
            (0..count.max(2)).collect()
        }
    };
    let mut files: Vec<JournalFile> = Vec::new();
    for number in wanted {
        if let Some(mark) = mark {
            lost.extend(check_file(disk, names, number, mark, options)?);
        }
        match JournalFile::open(disk, number, options.journal_bytes) {
            Ok(file) => files.push(file),
            // The file was never filled, so it holds nothing. Two files are enough.
            Err(error) if is_full(&error) && files.len() >= 2 && mark.is_none() => {}
            Err(error) => return Err(failed("the journal", &error)),
        }
    }
    disk.sync_names()
        .map_err(|error| failed("the journal", &error))?;
    if let Some(mark) = mark {
        (files.iter()).try_for_each(|file| journal_scan::check_owner(file, mark.journal))?;
    }
    Ok((files, lost))
}

/// Like [`check_file`], for a store that has no record about its journal: it is of an earlier
/// version, or was not made completely. The first two files were made in their order, and are never
/// removed.
fn check_unmarked(
    disk: &dyn Disk,
    names: &[String],
    applied: u64,
    options: &Options,
) -> Result<Vec<String>> {
    let [first, second] = [0, 1].map(journal::name_of);
    let [has_first, has_second] = [&first, &second].map(|name| names.contains(name));
    let in_use = applied > 0
        || match (has_first, has_second) {
            (true, false) => {
                let file = JournalFile::open(disk, 0, 0);
                journal_scan::is_used(&file.map_err(|error| failed("the journal", &error))?)?
            }
            (false, there) => there,
            (true, true) => false,
        };
    let lost = [(first, has_first), (second, has_second)];
    let lost = lost.into_iter().filter(|(_, is_there)| in_use && !is_there);
    lost.map(|(name, _)| {
        lose(format!("{name} is missing"), options)?;
        Ok(name)
    })
    .collect()
}

/// Refuses a journal that lacks one of its files, or goes on without the file if the options say
/// so.
fn lose(fault: String, options: &Options) -> Result<()> {
    if options.drop_damaged_journal {
        tracing::warn!("{fault}: changes that it held are dropped");
        return Ok(());
    }
    Err(Error::LostJournal(format!(
        "{fault}: acknowledged changes may be lost"
    )))
}

/// Checks that a journal file in use is there with its full size. If it is not, and is to be made
/// again, returns its name.
fn check_file(
    disk: &dyn Disk,
    names: &[String],
    number: u32,
    mark: Mark,
    options: &Options,
) -> Result<Option<String>> {
    let name = journal::name_of(number);
    let length = match names.contains(&name) {
        true => Some(
            disk.open(&name)
                .and_then(|file| file.length())
                .map_err(|error| failed("the journal", &error))?,
        ),
        false => None,
    };
    let fault = match length {
        None => format!("{name} is missing"),
        Some(length) if length < mark.file_bytes => {
            format!("{name} has {length} of {} bytes", mark.file_bytes)
        }
        Some(_) => return Ok(None),
    };
    lose(fault, options)?;
    Ok(Some(name))
}

/// Refuses the groups behind a gap, or drops them if the options say so.
fn give_up(
    found: &JournalScan,
    files: &[JournalFile],
    opening: &Opening,
    options: &Options,
) -> Result<()> {
    let (file, offset) = opening.end.clone().unwrap_or_default();
    let (groups, bytes) = (opening.groups_behind, opening.bytes_behind);
    if !options.drop_damaged_journal {
        return Err(Error::DamagedJournal {
            file,
            offset,
            groups,
            bytes,
        });
    }
    found.erase_rejected(files)?;
    tracing::warn!(
        file,
        offset,
        groups,
        bytes,
        "dropped what follows the damage in the journal; files may be unreadable: scrub them"
    );
    Ok(())
}

/// Describes an opening for the caller. Logs the place at which a kill may have cut the journal
/// off.
fn describe(found: &JournalScan, files: &[JournalFile], view: &View) -> Opening {
    let named = |(file, offset): (usize, u64)| (files[file].name.clone(), offset);
    let opening = Opening {
        was_stopped_cleanly: found.was_clean,
        replayed: found
            .groups
            .iter()
            .filter(|group| !group.header.ends)
            .count() as u64,
        end: found.end.map(named),
        is_torn: found.is_torn,
        groups_behind: found.after_gap.len() as u64,
        bytes_behind: found.after_gap.iter().map(journal_scan::Group::bytes).sum(),
        files_lost: Vec::new(),
    };
    let (file, offset) = opening.end.clone().unwrap_or_default();
    if opening.is_torn {
        tracing::warn!(
            file,
            offset,
            "dropped the journal's last group, which is not whole: the partition was not stopped \
             cleanly while it was written"
        );
    } else if !opening.was_stopped_cleanly && view.mark.is_some() && found.after_gap.is_empty() {
        let groups = opening.replayed;
        match opening.end {
            Some(_) => tracing::info!(groups, file, offset, "{UNCLEAN}: the journal ends here"),
            None => tracing::info!("{UNCLEAN}: the journal has no more than the base table"),
        }
    }
    opening
}
