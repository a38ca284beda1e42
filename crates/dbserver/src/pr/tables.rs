//! The tables of the protection database, in a transaction.
//!
//! `pr.entry` has the records by place, and `pr.name` refers to them. `pr.member` has a row for
//! each member of each group, and `pr.group` has the reverse rows. `pr.owned` has a row for each
//! group and its owner (0 for groups whose owner was deleted). `pr.meta` has the last assigned ids.

use cellar_celldb::{Error as DatabaseError, Table, Transaction, View};
use cellar_wire::pr::PR_MAXLIST;
use cellar_wire::{AbortCode, ViceId};

use super::access::Memberships;
use super::limits::{LIST_MAX, TRIES_MAX};
use super::record::{Record, id_at, is_valid_id, place};
use crate::{Error, row};

pub(crate) const ENTRY: Table = Table::new("pr.entry");
pub(crate) const NAME: Table = Table::new("pr.name");
pub(crate) const MEMBER: Table = Table::new("pr.member");
pub(crate) const GROUP: Table = Table::new("pr.group");
pub(crate) const OWNED: Table = Table::new("pr.owned");
pub(crate) const META: Table = Table::new("pr.meta");

/// Keys in `pr.meta`: the highest assigned id of a user, and the lowest of a group.
pub(crate) const MAX_USER: &[u8] = b"max_user";
pub(crate) const MAX_GROUP: &[u8] = b"max_group";
/// Key in `pr.meta`: how often a call has set one of these ids. Absent: never.
const IDS_SET: &[u8] = b"ids_set";

/// The key of the last assigned id of groups or of users, and the step to the next one.
pub(crate) fn last_id(is_group: bool) -> (&'static [u8], i32) {
    match is_group {
        true => (MAX_GROUP, -1),
        false => (MAX_USER, 1),
    }
}

/// The most rows that a scan of one list reads. Lists are kept below [`LIST_MAX`], ownership is
/// not.
const SCAN_MAX: usize = 1 << 20;
const _: () = assert!(LIST_MAX <= PR_MAXLIST && PR_MAXLIST < SCAN_MAX);

/// The tables, read and changed through a transaction.
pub(crate) struct Tables<'a, 'b>(pub(crate) &'a mut Transaction<'b>);

fn key(id: ViceId) -> [u8; 4] {
    place(id).to_be_bytes()
}

/// Makes a key of two ids.
pub(crate) fn pair(first: ViceId, second: ViceId) -> Vec<u8> {
    [key(first), key(second)].concat()
}

/// The two ids of a key.
pub(crate) fn split_pair(table: Table, key: &[u8]) -> Result<(ViceId, ViceId), DatabaseError> {
    let (first, second) = key.split_at(key.len() / 2);
    Ok((
        id_at(row::number(table, first)?),
        id_at(row::number(table, second)?),
    ))
}

impl Tables<'_, '_> {
    /// The record of `id`.
    pub(crate) fn get(&self, id: ViceId) -> Result<Option<Record>, DatabaseError> {
        let bytes = self.0.get(ENTRY, &key(id))?;
        bytes.map(|bytes| row::decode(ENTRY, &bytes)).transpose()
    }

    /// The record of `id`.
    ///
    /// # Errors
    /// PRNOENT.
    pub(crate) fn find(&self, id: ViceId) -> Result<Record, Error> {
        self.get(id)?.ok_or(AbortCode::PRNOENT.into())
    }

    /// The id of a name.
    pub(crate) fn id_of(&self, name: &[u8]) -> Result<Option<ViceId>, DatabaseError> {
        let bytes = self.0.get(NAME, name)?;
        let place = bytes.map(|bytes| row::number(NAME, &bytes)).transpose()?;
        Ok(place.map(id_at))
    }

    /// Stores a record whose name and owner are unchanged.
    pub(crate) fn put(&mut self, record: &Record) {
        self.0
            .put(ENTRY, key(record.id).to_vec(), row::encode(record));
    }

    /// Adds a record.
    ///
    /// # Errors
    /// PRIDEXIST, PREXIST.
    pub(crate) fn insert(&mut self, record: &Record) -> Result<(), Error> {
        if !is_valid_id(record.id) {
            return Err(AbortCode::PRBADARG.into());
        }
        if self.get(record.id)?.is_some() {
            return Err(AbortCode::PRIDEXIST.into());
        }
        if self.id_of(&record.name)?.is_some() {
            return Err(AbortCode::PREXIST.into());
        }
        self.put_name(record);
        if record.is_group() {
            self.0.put(OWNED, pair(record.owner, record.id), "");
        }
        self.put(record);
        Ok(())
    }

    /// Makes the name refer to the record.
    pub(crate) fn put_name(&mut self, record: &Record) {
        self.0
            .put(NAME, record.name.to_vec(), key(record.id).to_vec());
    }

    /// Replaces `old` by `new`. The name and the owner may differ, the id must not.
    ///
    /// # Errors
    /// PREXIST.
    pub(crate) fn replace(&mut self, old: &Record, new: &Record) -> Result<(), Error> {
        if new.name != old.name {
            if self.id_of(&new.name)?.is_some() {
                return Err(AbortCode::PREXIST.into());
            }
            self.0.delete(NAME, old.name.to_vec());
            self.put_name(new);
        }
        if new.owner != old.owner && new.is_group() {
            self.0.delete(OWNED, pair(old.owner, old.id));
            self.0.put(OWNED, pair(new.owner, new.id), "");
        }
        self.put(new);
        Ok(())
    }

    /// Removes a record without members, memberships or owned groups.
    pub(crate) fn remove(&mut self, record: &Record) {
        self.0.delete(NAME, record.name.to_vec());
        self.0.delete(ENTRY, key(record.id).to_vec());
        if record.is_group() {
            self.0.delete(OWNED, pair(record.owner, record.id));
        }
    }

    fn list(&self, table: Table, first: ViceId, limit: usize) -> Result<Vec<ViceId>, Error> {
        let rows = self.0.view().scan_prefix(table, &key(first), limit)?;
        let ids = rows.iter().map(|(key, _)| Ok(split_pair(table, key)?.1));
        ids.collect()
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: ViceId) -> Result<Vec<ViceId>, Error> {
        self.list(MEMBER, group, SCAN_MAX)
    }

    /// The groups that have `id` as a member.
    pub(crate) fn groups(&self, id: ViceId) -> Result<Vec<ViceId>, Error> {
        self.list(GROUP, id, SCAN_MAX)
    }

    /// The groups that `owner` owns.
    pub(crate) fn owned(&self, owner: ViceId) -> Result<Vec<ViceId>, Error> {
        self.list(OWNED, owner, SCAN_MAX)
    }

    /// Whether a group has any member.
    pub(crate) fn has_members(&self, group: ViceId) -> Result<bool, Error> {
        Ok(!self.list(MEMBER, group, 1)?.is_empty())
    }

    /// Makes `id` a member of `group`.
    ///
    /// # Errors
    /// PRINCONSISTENT for itself, PRIDEXIST if it is a member already, PRTOOMANY if one of the two
    /// lists is full.
    pub(crate) fn add_member(&mut self, group: ViceId, id: ViceId) -> Result<(), Error> {
        if group == id {
            return Err(AbortCode::PRINCONSISTENT.into());
        }
        if self.0.get(MEMBER, &pair(group, id))?.is_some() {
            return Err(AbortCode::PRIDEXIST.into());
        }
        let is_full =
            |table, first| Ok::<_, Error>(self.list(table, first, LIST_MAX)?.len() >= LIST_MAX);
        if is_full(MEMBER, group)? || is_full(GROUP, id)? {
            return Err(AbortCode::PRTOOMANY.into());
        }
        self.0.put(MEMBER, pair(group, id), "");
        self.0.put(GROUP, pair(id, group), "");
        Ok(())
    }

    /// Removes `id` from `group`.
    ///
    /// # Errors
    /// PRNOENT if it is not a member.
    pub(crate) fn remove_member(&mut self, group: ViceId, id: ViceId) -> Result<(), Error> {
        if self.0.get(MEMBER, &pair(group, id))?.is_none() {
            return Err(AbortCode::PRNOENT.into());
        }
        self.0.delete(MEMBER, pair(group, id));
        self.0.delete(GROUP, pair(id, group));
        Ok(())
    }

    /// The last assigned id, of users or of groups.
    pub(crate) fn max(&self, name: &[u8]) -> Result<i32, DatabaseError> {
        let bytes = self.0.get(META, name)?;
        let number = bytes.map(|bytes| row::number(META, &bytes)).transpose()?;
        Ok(number.unwrap_or_default() as i32)
    }

    /// How often a call has set the last assigned id of users or of groups.
    pub(crate) fn ids_set(&self) -> Result<u32, DatabaseError> {
        let bytes = self.0.get(META, IDS_SET)?;
        let number = bytes.map(|bytes| row::number(META, &bytes)).transpose()?;
        Ok(number.unwrap_or_default())
    }

    /// Sets the last assigned id to one that a call demands. Ids that servers have reserved before
    /// are not used any more.
    pub(crate) fn choose_max(&mut self, name: &[u8], id: i32) -> Result<(), DatabaseError> {
        let number = self.ids_set()?.wrapping_add(1);
        self.0
            .put(META, IDS_SET.to_vec(), number.to_be_bytes().to_vec());
        self.set_max(name, id);
        Ok(())
    }

    /// Sets the last assigned id.
    pub(crate) fn set_max(&mut self, name: &[u8], id: i32) {
        self.0.put(META, name.to_vec(), id.to_be_bytes().to_vec());
    }

    /// A free id, after the last assigned one.
    ///
    /// # Errors
    /// PRNOIDS if too many ids in a row are taken, or no valid id is left.
    pub(crate) fn new_id(&mut self, is_group: bool) -> Result<ViceId, Error> {
        let (name, step) = last_id(is_group);
        let mut id = self.max(name)?;
        for _ in 0..TRIES_MAX {
            let next = id
                .checked_add(step)
                .map(ViceId)
                .filter(|id| is_valid_id(*id));
            let next = next.ok_or(AbortCode::PRNOIDS)?;
            id = next.0;
            if self.get(next)?.is_none() {
                self.set_max(name, id);
                return Ok(next);
            }
        }
        Err(AbortCode::PRNOIDS.into())
    }
}

impl Memberships for Tables<'_, '_> {
    fn groups_of(&self, id: ViceId, each: &mut dyn FnMut(ViceId)) -> Result<(), DatabaseError> {
        for (key, _) in self.0.view().scan_prefix(GROUP, &key(id), SCAN_MAX)? {
            each(split_pair(GROUP, &key)?.1);
        }
        Ok(())
    }
}
