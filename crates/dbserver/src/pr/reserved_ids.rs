//! Ids for new users and groups.
//!
//! A new id raises the row `max_user`, or lowers `max_group`. Two servers that need the same row
//! cannot commit at the same time. So a creation that ran again and again reserves some ids for the
//! next creations of its server. A server without conflicts reserves none: its ids follow each
//! other, as OpenAFS's do.
//!
//! | reserved ids of a kind | event | next |
//! |---|---|---|
//! | none | a creation runs for the [`RUNS_MIN`]-th time | [`RESERVED_IDS`] |
//! | some | a creation takes one | fewer |
//! | some | a call has set the last id (`pts setmax`, `createuser -id`) | that one is dropped |
//!
//! A restart skips the rest, and so does a creation that finds its id in use.

use std::collections::VecDeque;

use cellar_wire::ViceId;
use parking_lot::Mutex;

use super::limits::{RESERVED_IDS, RUNS_MIN};
use super::record::is_valid_id;
use super::tables::{Tables, last_id};
use crate::Error;

/// The reserved ids of a server.
#[derive(Default)]
pub(crate) struct ReservedIds {
    users: Mutex<VecDeque<ReservedId>>,
    groups: Mutex<VecDeque<ReservedId>>,
}

/// A reserved id.
#[derive(Clone, Copy, Debug)]
struct ReservedId {
    id: ViceId,
    /// [`Tables::ids_set`] at its reservation.
    ids_set: u32,
}

impl ReservedIds {
    fn of(&self, is_group: bool) -> &Mutex<VecDeque<ReservedId>> {
        match is_group {
            true => &self.groups,
            false => &self.users,
        }
    }

    /// The source of the id of one new entry.
    pub(crate) fn source(&self, is_group: bool) -> IdSource<'_> {
        IdSource {
            all: self,
            is_group,
            reserved: self.of(is_group).lock().pop_front(),
            is_used: false,
            runs: 0,
            more: Vec::new(),
        }
    }
}

/// The source of the id of one new entry, for all runs of its transaction.
pub(crate) struct IdSource<'a> {
    all: &'a ReservedIds,
    is_group: bool,
    reserved: Option<ReservedId>,
    /// The last run took the reserved id.
    is_used: bool,
    runs: u32,
    /// The ids that the last run reserved.
    more: Vec<ReservedId>,
}

impl IdSource<'_> {
    /// The transaction runs, for the first time or again.
    pub(crate) fn begin_run(&mut self) {
        self.runs += 1;
        self.is_used = false;
        self.more.clear();
    }

    /// An id that no entry has.
    ///
    /// # Errors
    /// PRNOIDS, as [`Tables::new_id`].
    pub(crate) fn next(&mut self, tables: &mut Tables<'_, '_>) -> Result<ViceId, Error> {
        if let Some(ReservedId { id, ids_set }) = self.reserved {
            if tables.ids_set()? == ids_set && tables.get(id)?.is_none() {
                self.is_used = true;
                return Ok(id);
            }
            self.reserved = None;
        }
        let first = tables.new_id(self.is_group)?;
        if self.runs >= RUNS_MIN && self.all.of(self.is_group).lock().is_empty() {
            self.reserve_after(first, tables)?;
        }
        Ok(first)
    }

    fn reserve_after(&mut self, first: ViceId, tables: &mut Tables<'_, '_>) -> Result<(), Error> {
        let (name, step) = last_id(self.is_group);
        let ids_set = tables.ids_set()?;
        let ids = (1..=RESERVED_IDS).map_while(|n| first.0.checked_add(n * step));
        let ids = ids.map(ViceId).filter(|id| is_valid_id(*id));
        self.more = ids.map(|id| ReservedId { id, ids_set }).collect();
        if let Some(last) = self.more.last() {
            tables.set_max(name, last.id.0);
        }
        Ok(())
    }

    /// The transaction has ended. An id that it did not use is left to the next entry.
    pub(crate) fn end(self, is_committed: bool) {
        let mut all = self.all.of(self.is_group).lock();
        if is_committed {
            all.extend(self.more);
        }
        if let Some(reserved) = self.reserved
            && !(is_committed && self.is_used)
        {
            all.push_front(reserved);
        }
    }
}
