//! ListEntry, ListEntryN: the entries one after the other. Index 0 is the start; next index 0 is
//! the end.

use std::sync::Arc;

use cellar_wire::vl::{ListEntry, ListEntryN, ListEntryNReply, ListEntryReply};

use super::Vl;
use super::entry::Entry;
use super::model::Locations;
use crate::{Answer, Error, Identity, Kind};

/// The entry after `previous`, if there is one. A negative cursor, which no call returns, starts
/// from the beginning.
fn next(model: &Locations, previous: i32) -> Option<Arc<Entry>> {
    model.after(previous.max(0) as u32, 1).pop()
}

impl Answer<Vl> for ListEntry {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, vl: &Vl, _: Identity) -> Result<ListEntryReply, Error> {
        let model = vl.replica.read();
        let count = model.len() as i32;
        Ok(match next(&model, self.previous_index) {
            Some(entry) => {
                let next_index = entry.number as i32;
                ListEntryReply {
                    count,
                    next_index,
                    entry: model.to_old(&entry),
                }
            }
            None => ListEntryReply {
                count: 0,
                next_index: 0,
                entry: Default::default(),
            },
        })
    }
}

impl Answer<Vl> for ListEntryN {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, vl: &Vl, _: Identity) -> Result<ListEntryNReply, Error> {
        let model = vl.replica.read();
        let count = model.len() as i32;
        Ok(match next(&model, self.previous_index) {
            Some(entry) => {
                let next_index = entry.number as i32;
                ListEntryNReply {
                    count,
                    next_index,
                    entry: model.to_n(&entry),
                }
            }
            None => ListEntryNReply {
                count: 0,
                next_index: 0,
                entry: Default::default(),
            },
        })
    }
}
