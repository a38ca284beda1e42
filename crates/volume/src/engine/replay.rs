//! Opening: the base, and the journal's groups that it lacks.
//!
//! These are whole (checksum) and without a gap (numbers). Their changes become a table, which the
//! flusher carries into the base while the partition is in use: an opening costs the reading of
//! the journal, however large the base is and wherever in it the changes lie.

use std::sync::Arc;

use super::base::{Base, View};
use super::journal::JournalFile;
use super::room::Room;
use super::space::Space;
use super::table::Table;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::options::Options;

/// The base, the block map after the journal's last group, and what the base lacks.
pub(super) struct Opened {
    pub(super) base: Base,
    pub(super) view: View,
    pub(super) space: Arc<Space>,
    /// Number of the last group.
    pub(super) last: u64,
    /// The changes of the groups that the base does not hold, and which journal files have them.
    pub(super) replayed: Option<(Arc<Table>, Vec<usize>)>,
}

impl Opened {
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        options: &Options,
        files: &[JournalFile],
        ledger: &Arc<Room>,
    ) -> Result<Self> {
        let file = disk
            .open("base")
            .and_then(|file| disk.sync_names().map(|()| file))
            .map_err(|error| Error::Partition(format!("opening the base table: {error}")))?;
        let base = Base::open(file, options.base_cache_bytes)?;
        let view = base.view()?;
        let room = Arc::clone(ledger);
        let space = Arc::new(Space::open(Arc::clone(disk), room, &|key| view.get(key))?);
        let mut groups = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let read = file.read(view.applied)?;
            groups.extend(read.into_iter().map(|group| (index, group)));
        }
        groups.sort_by_key(|(_, group)| group.number);
        let table = Table::default();
        let mut last = view.applied;
        let mut used = Vec::new();
        for (index, group) in groups {
            if group.number != last + 1 {
                break;
            }
            last = group.number;
            if !used.contains(&index) {
                // A process that was killed may have written what it did not sync. From now on
                // later groups build on it.
                files[index].sync()?;
                used.push(index);
            }
            for batch in group.batches()? {
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
            replayed = Some((Arc::new(table), used));
        }
        Ok(Self {
            base,
            view,
            space,
            last,
            replayed,
        })
    }
}
