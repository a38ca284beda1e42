//! The tables of the location database, in a transaction.
//!
//! `vl.entry` has the entries by number; `vl.name` and `vl.id` refer to them. `vl.server` has the
//! servers by number. `vl.meta` has the reserved entry numbers and volume ids. Every change
//! of an entry goes through [`Tables::insert`], [`Tables::replace`] or [`Tables::remove`], which
//! keep the first three tables consistent.

use std::ops::Bound;

use cellar_celldb::{Error as DatabaseError, Table, Transaction, View};
use cellar_wire::{AbortCode, VolumeId};

use super::entry::{Entry, EntryRow, Holder, base_name};
use super::limits::{FIRST_VOLUME_ID, SERVERS_MAX};
use super::server::Server;
use crate::{Error, row};

pub(crate) const ENTRY: Table = Table::new("vl.entry");
pub(crate) const NAME: Table = Table::new("vl.name");
pub(crate) const ID: Table = Table::new("vl.id");
pub(crate) const SERVER: Table = Table::new("vl.server");
pub(crate) const META: Table = Table::new("vl.meta");
/// Lock holders by the entry's number; see [`super::lock`].
const LOCK: Table = Table::new("vl.lock");

/// Key in `vl.meta`: the first volume id that no server has reserved.
pub(crate) const MAX_VOLUME_ID: &[u8] = b"max_volume_id";
const NEXT_ENTRY: &[u8] = b"next_entry";

/// The last holder of the lock of the entry with that number.
pub(crate) fn lock_holder(view: &dyn View, entry: u32) -> Result<Option<Holder>, DatabaseError> {
    view.get(LOCK, &entry.to_be_bytes())?
        .map(|bytes| row::decode(LOCK, &bytes))
        .transpose()
}

/// The tables, read and changed through a transaction.
pub(crate) struct Tables<'a, 'b>(pub(crate) &'a mut Transaction<'b>);

fn id_key(voltype: usize, id: VolumeId) -> [u8; 5] {
    let [a, b, c, d] = id.0.to_be_bytes();
    [voltype as u8, a, b, c, d]
}

impl Tables<'_, '_> {
    fn number_at(&self, table: Table, key: &[u8]) -> Result<Option<u32>, DatabaseError> {
        self.0
            .get(table, key)?
            .map(|bytes| row::number(table, &bytes))
            .transpose()
    }

    fn put_number(&mut self, table: Table, key: &[u8], number: u32) {
        self.0
            .put(table, key.to_vec(), number.to_be_bytes().to_vec());
    }

    fn entry(&self, number: u32) -> Result<Entry, DatabaseError> {
        let bytes = self.0.get(ENTRY, &number.to_be_bytes())?;
        let bytes = bytes.ok_or(DatabaseError::BadRow {
            table: NAME.name(),
            len: 4,
            reason: "it refers to a missing entry",
        })?;
        Ok(Entry::from_row(
            number,
            row::decode::<EntryRow>(ENTRY, &bytes)?,
        ))
    }

    /// The entry that has `id` as the volume of that type, or -1 for any type.
    ///
    /// # Errors
    /// VL_NOENT.
    pub(crate) fn find(&self, id: VolumeId, voltype: i32) -> Result<Entry, Error> {
        if id.0 == 0 {
            return Err(AbortCode::VL_NOENT.into());
        }
        let types = match usize::try_from(voltype) {
            Ok(voltype) => voltype..voltype + 1,
            Err(_) => 0..3,
        };
        for voltype in types {
            if let Some(number) = self.number_at(ID, &id_key(voltype, id))? {
                return Ok(self.entry(number)?);
            }
        }
        Err(AbortCode::VL_NOENT.into())
    }

    /// The entry of a volume's group, by the name of the volume.
    ///
    /// # Errors
    /// VL_NOENT.
    pub(crate) fn find_by_name(&self, name: &[u8]) -> Result<Entry, Error> {
        match self.number_at(NAME, base_name(name))? {
            Some(number) => Ok(self.entry(number)?),
            None => Err(AbortCode::VL_NOENT.into()),
        }
    }

    fn check_name_is_free(&self, name: &[u8]) -> Result<(), Error> {
        match self.number_at(NAME, base_name(name))? {
            Some(_) => Err(AbortCode::VL_NAMEEXIST.into()),
            None => Ok(()),
        }
    }

    /// Checks that no volume of any type has this id.
    fn check_id_is_free(&self, id: VolumeId) -> Result<(), Error> {
        for voltype in 0..3 {
            if id.0 != 0 && self.number_at(ID, &id_key(voltype, id))?.is_some() {
                return Err(AbortCode::VL_IDEXIST.into());
            }
        }
        Ok(())
    }

    fn put_entry(&mut self, entry: &Entry) {
        let key = entry.number.to_be_bytes().to_vec();
        self.0.put(ENTRY, key, row::encode(&entry.to_row()));
    }

    /// Adds an entry under its number, which no other one has.
    ///
    /// # Errors
    /// VL_IDEXIST, VL_NAMEEXIST.
    pub(crate) fn insert(&mut self, entry: &Entry) -> Result<(), Error> {
        for id in entry.ids {
            self.check_id_is_free(id)?;
        }
        self.check_name_is_free(&entry.name)?;
        let number = entry.number;
        self.put_number(NAME, &entry.name, number);
        for (voltype, id) in entry
            .ids
            .into_iter()
            .enumerate()
            .filter(|(_, id)| id.0 != 0)
        {
            self.put_number(ID, &id_key(voltype, id), number);
        }
        self.put_entry(entry);
        Ok(())
    }

    /// The first entry number that no server has reserved.
    pub(crate) fn next_entry(&self) -> Result<u32, DatabaseError> {
        Ok(self.number_at(META, NEXT_ENTRY)?.unwrap_or(1))
    }

    /// Reserves all entry numbers below `number`.
    pub(crate) fn set_next_entry(&mut self, number: u32) {
        self.put_number(META, NEXT_ENTRY, number);
    }

    /// Replaces `old`, which is the stored entry, by `new`.
    ///
    /// # Errors
    /// VL_IDEXIST, VL_NAMEEXIST if a new id or name belongs to another entry.
    pub(crate) fn replace(&mut self, old: &Entry, mut new: Entry) -> Result<(), Error> {
        new.number = old.number;
        let changed = |voltype: &usize| old.ids[*voltype] != new.ids[*voltype];
        for voltype in (0..3).filter(changed) {
            self.check_id_is_free(new.ids[voltype])?;
        }
        if new.name != old.name {
            self.check_name_is_free(&new.name)?;
            self.0.delete(NAME, old.name.to_vec());
            self.put_number(NAME, &new.name, new.number);
        }
        for voltype in (0..3).filter(changed) {
            if old.ids[voltype].0 != 0 {
                self.0
                    .delete(ID, id_key(voltype, old.ids[voltype]).to_vec());
            }
            if new.ids[voltype].0 != 0 {
                self.put_number(ID, &id_key(voltype, new.ids[voltype]), new.number);
            }
        }
        self.put_entry(&new);
        Ok(())
    }

    /// Stores the holder of the lock of the entry with that number.
    pub(crate) fn put_lock_holder(&mut self, entry: u32, holder: &Holder) {
        let key = entry.to_be_bytes().to_vec();
        self.0.put(LOCK, key, row::encode(holder));
    }

    /// Removes an entry and its lock holder.
    pub(crate) fn remove(&mut self, entry: &Entry) {
        self.0.delete(LOCK, entry.number.to_be_bytes().to_vec());
        self.0.delete(NAME, entry.name.to_vec());
        for (voltype, id) in entry
            .ids
            .into_iter()
            .enumerate()
            .filter(|(_, id)| id.0 != 0)
        {
            self.0.delete(ID, id_key(voltype, id).to_vec());
        }
        self.0.delete(ENTRY, entry.number.to_be_bytes().to_vec());
    }

    /// Whether any entry has a site on that server. Reads every entry.
    pub(crate) fn server_is_used(&self, server: u8) -> Result<bool, DatabaseError> {
        let mut outcome = Ok(false);
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.0.visit(ENTRY, all, &mut |_, bytes| {
            outcome = row::decode::<EntryRow>(ENTRY, bytes).map(|row| {
                Entry::from_row(0, row)
                    .places
                    .iter()
                    .any(|place| place.server == server)
            });
            matches!(outcome, Ok(false))
        })?;
        outcome
    }

    /// All servers by their numbers.
    pub(crate) fn servers(&self) -> Result<Vec<(u8, Server)>, DatabaseError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let rows = self.0.view().scan(SERVER, all, SERVERS_MAX)?;
        let server = |(key, bytes): (bytes::Bytes, bytes::Bytes)| {
            let number = key.first().copied().unwrap_or_default();
            Ok((number, row::decode(SERVER, &bytes)?))
        };
        rows.into_iter().map(server).collect()
    }

    /// Stores a server under its number.
    pub(crate) fn put_server(&mut self, number: u8, server: &Server) {
        self.0.put(SERVER, vec![number], row::encode(server));
    }

    /// Removes a server.
    pub(crate) fn delete_server(&mut self, number: u8) {
        self.0.delete(SERVER, vec![number]);
    }

    /// The number of the server with that address. An unknown server gets the lowest free number.
    ///
    /// # Errors
    /// VL_BADSERVER if there are already 255 servers, or if no server can have that address.
    pub(crate) fn server_for(&mut self, address: u32) -> Result<u8, Error> {
        let servers = self.servers()?;
        let has_it = |(_, server): &&(u8, Server)| server.addresses.contains(&address);
        if let Some((number, _)) = servers.iter().find(has_it) {
            return Ok(*number);
        }
        if address == 0 || address >= 0xff00_0000 {
            return Err(AbortCode::VL_BADSERVER.into());
        }
        let number = self.free_server_number(&servers)?;
        self.put_server(number, &Server::unregistered(address));
        Ok(number)
    }

    /// The lowest free server number.
    ///
    /// # Errors
    /// VL_BADSERVER if all numbers are taken.
    pub(crate) fn free_server_number(&self, servers: &[(u8, Server)]) -> Result<u8, Error> {
        let taken = |number: &u8| servers.iter().any(|(other, _)| other == number);
        let free = (0..SERVERS_MAX as u8).find(|number| !taken(number));
        free.ok_or(AbortCode::VL_BADSERVER.into())
    }

    /// The first volume id that no server has reserved.
    pub(crate) fn max_volume_id(&self) -> Result<u32, DatabaseError> {
        Ok(self
            .number_at(META, MAX_VOLUME_ID)?
            .unwrap_or(FIRST_VOLUME_ID))
    }

    /// Reserves all volume ids below `id`.
    pub(crate) fn set_max_volume_id(&mut self, id: u32) {
        self.put_number(META, MAX_VOLUME_ID, id);
    }

    /// The highest used id from `first` to `last`, both inclusive.
    pub(crate) fn highest_used_id(
        &self,
        first: u32,
        last: u32,
    ) -> Result<Option<u32>, DatabaseError> {
        let mut highest = None;
        for voltype in 0..3 {
            let (low, high) = (
                id_key(voltype, VolumeId(first)),
                id_key(voltype, VolumeId(last)),
            );
            let range = (Bound::Included(&low[..]), Bound::Included(&high[..]));
            self.0.visit(ID, range, &mut |key, _| {
                let id = key.last_chunk::<4>().map(|id| u32::from_be_bytes(*id));
                highest = highest.max(id);
                true
            })?;
        }
        Ok(highest)
    }
}
