//! The protection database in memory, from which every lookup is answered.
//!
//! It is built from `pr.entry`, `pr.member` and `pr.meta`, with the other lists as indexes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cellar_celldb::{Error as DatabaseError, Table};
use cellar_wire::pr::{PrEntry, PrName};
use cellar_wire::{AbortCode, ViceId};

use super::access::Memberships;
use super::record::{Record, place};
use super::tables;
use crate::replica::Model;
use crate::row;

/// All users and groups.
#[derive(Default)]
pub(crate) struct Protection {
    records: BTreeMap<u32, Arc<Record>>,
    names: HashMap<PrName, ViceId>,
    /// By group.
    members: HashMap<ViceId, BTreeSet<ViceId>>,
    /// By member.
    groups: HashMap<ViceId, BTreeSet<ViceId>>,
    /// By owner; 0 for groups without one.
    owned: HashMap<ViceId, BTreeSet<ViceId>>,
    max_user: ViceId,
    max_group: ViceId,
}

static NONE: BTreeSet<ViceId> = BTreeSet::new();

fn put(lists: &mut HashMap<ViceId, BTreeSet<ViceId>>, of: ViceId, id: ViceId) {
    lists.entry(of).or_default().insert(id);
}

fn take(lists: &mut HashMap<ViceId, BTreeSet<ViceId>>, of: ViceId, id: ViceId) {
    if let Some(list) = lists.get_mut(&of) {
        list.remove(&id);
        if list.is_empty() {
            lists.remove(&of);
        }
    }
}

impl Model for Protection {
    const TABLES: &'static [Table] = &[tables::ENTRY, tables::MEMBER, tables::META];
    const INDEXED: Table = tables::ENTRY;

    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError> {
        if table == tables::ENTRY {
            let place = row::number(table, key)?;
            if let Some(bytes) = value {
                self.insert(place, row::decode(table, bytes)?);
            }
        } else if table == tables::MEMBER {
            let (group, member) = tables::split_pair(table, key)?;
            let change = if value.is_some() { put } else { take };
            change(&mut self.members, group, member);
            change(&mut self.groups, member, group);
        } else {
            let id = value.map(|bytes| row::number(table, bytes)).transpose()?;
            let id = ViceId(id.unwrap_or_default() as i32);
            if key == tables::MAX_USER {
                self.max_user = id;
            } else if key == tables::MAX_GROUP {
                self.max_group = id;
            }
        }
        Ok(())
    }

    fn remove(&mut self, place: u32) {
        if let Some(record) = self.records.remove(&place) {
            self.names.remove(&record.name);
            if record.is_group() {
                take(&mut self.owned, record.owner, record.id);
            }
        }
    }
}

impl Protection {
    fn insert(&mut self, place: u32, record: Record) {
        self.names.insert(record.name.clone(), record.id);
        if record.is_group() {
            put(&mut self.owned, record.owner, record.id);
        }
        self.records.insert(place, Arc::new(record));
    }

    /// The record of `id`.
    pub(crate) fn get(&self, id: ViceId) -> Option<&Arc<Record>> {
        self.records.get(&place(id))
    }

    /// The record of `id`.
    ///
    /// # Errors
    /// PRNOENT.
    pub(crate) fn find(&self, id: ViceId) -> Result<&Arc<Record>, AbortCode> {
        self.get(id).ok_or(AbortCode::PRNOENT)
    }

    /// The id of a name.
    pub(crate) fn id_of(&self, name: &PrName) -> Option<ViceId> {
        self.names.get(name).copied()
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: ViceId) -> &BTreeSet<ViceId> {
        self.members.get(&group).unwrap_or(&NONE)
    }

    /// The groups that have `id` as a member.
    pub(crate) fn groups(&self, id: ViceId) -> &BTreeSet<ViceId> {
        self.groups.get(&id).unwrap_or(&NONE)
    }

    /// The groups that `owner` owns.
    pub(crate) fn owned(&self, owner: ViceId) -> &BTreeSet<ViceId> {
        self.owned.get(&owner).unwrap_or(&NONE)
    }

    /// The membership list of an entry: the members of a group, or the groups of a user.
    pub(crate) fn elements(&self, record: &Record) -> &BTreeSet<ViceId> {
        if record.is_group() {
            self.members(record.id)
        } else {
            self.groups(record.id)
        }
    }

    /// An entry in the form for listings.
    pub(crate) fn to_entry(&self, record: &Record) -> PrEntry {
        record.to_entry(self.elements(record).len())
    }

    /// The records from a place on, with their places.
    pub(crate) fn from(&self, place: u32) -> impl Iterator<Item = (u32, &Arc<Record>)> {
        self.records
            .range(place..)
            .map(|(place, record)| (*place, record))
    }

    /// The last assigned ids, of users and of groups.
    pub(crate) fn max(&self) -> (ViceId, ViceId) {
        (self.max_user, self.max_group)
    }
}

impl Memberships for Protection {
    fn groups_of(&self, id: ViceId, each: &mut dyn FnMut(ViceId)) -> Result<(), DatabaseError> {
        self.groups(id).iter().copied().for_each(each);
        Ok(())
    }
}
