//! The location database in memory, from which every lookup is answered.
//!
//! It is built from `vl.entry`, `vl.server` and `vl.meta`, with indexes by name and id. With
//! 170,000 volumes it takes about 50 MB, and a lookup computes one hash of the name.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::{Bound, Range};
use std::sync::Arc;

use cellar_celldb::{Error as DatabaseError, Table};
use cellar_wire::vl::{
    NvldbEntry, OLD_SITES_MAX, Site, UuidSite, UvldbEntry, VLSF_UUID, VldbEntry,
};
use cellar_wire::{AbortCode, AfsUuid, List, VolumeId};

use super::entry::{Entry, EntryRow, EntrySite, base_name, check_name, check_type, name_as_id};
use super::limits::{FIRST_VOLUME_ID, SERVERS_MAX};
use super::server::Server;
use super::tables;
use crate::replica::Model;
use crate::row;

/// An entry in the set of names.
struct ByName(Arc<Entry>);

impl Borrow<[u8]> for ByName {
    fn borrow(&self) -> &[u8] {
        &self.0.name
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let name: &[u8] = self.borrow();
        name.hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

/// All entries and servers.
pub(crate) struct Locations {
    entries: BTreeMap<u32, Arc<Entry>>,
    names: HashSet<ByName>,
    ids: [HashMap<VolumeId, Arc<Entry>>; 3],
    servers: Vec<Option<Server>>,
    max_volume_id: u32,
}

impl Default for Locations {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            names: HashSet::new(),
            ids: Default::default(),
            servers: vec![None; SERVERS_MAX],
            max_volume_id: FIRST_VOLUME_ID,
        }
    }
}

impl Model for Locations {
    const TABLES: &'static [Table] = &[tables::ENTRY, tables::SERVER, tables::META];
    const INDEXED: Table = tables::ENTRY;

    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError> {
        if table == tables::ENTRY {
            let number = row::number(table, key)?;
            if let Some(bytes) = value {
                let row = row::decode::<EntryRow>(table, bytes)?;
                self.insert_entry(Arc::new(Entry::from_row(number, row)));
            }
        } else if table == tables::SERVER {
            let slot = key
                .first()
                .and_then(|&number| self.servers.get_mut(usize::from(number)));
            let slot = slot.ok_or(DatabaseError::BadRow {
                table: table.name(),
                len: key.len(),
                reason: "its key is not the number of a server",
            })?;
            *slot = value.map(|bytes| row::decode(table, bytes)).transpose()?;
        } else if key == tables::MAX_VOLUME_ID {
            let id = value.map(|bytes| row::number(table, bytes)).transpose()?;
            self.max_volume_id = id.unwrap_or(FIRST_VOLUME_ID);
        }
        Ok(())
    }

    fn remove(&mut self, number: u32) {
        if let Some(entry) = self.entries.remove(&number) {
            for (index, id) in self.ids.iter_mut().zip(entry.ids) {
                index.remove(&id);
            }
            self.names.remove::<[u8]>(&entry.name);
        }
    }
}

impl Locations {
    fn insert_entry(&mut self, entry: Arc<Entry>) {
        for (index, id) in self.ids.iter_mut().zip(entry.ids) {
            if id.0 != 0 {
                index.insert(id, Arc::clone(&entry));
            }
        }
        self.names.insert(ByName(Arc::clone(&entry)));
        self.entries.insert(entry.number, entry);
    }

    /// The entry that has `id` as its volume of that type; -1 is any type.
    ///
    /// # Errors
    /// VL_BADVOLTYPE, VL_NOENT.
    pub(crate) fn by_id(&self, id: VolumeId, voltype: i32) -> Result<&Arc<Entry>, AbortCode> {
        check_type(voltype)?;
        let found = match usize::try_from(voltype) {
            Ok(voltype) => self.ids[voltype].get(&id),
            Err(_) => self.ids.iter().find_map(|index| index.get(&id)),
        };
        found.ok_or(AbortCode::VL_NOENT)
    }

    /// The entry of the group with a volume of that name, or of that id if it is all digits.
    ///
    /// # Errors
    /// VL_BADNAME, VL_NOENT.
    pub(crate) fn by_name(&self, name: &[u8]) -> Result<&Arc<Entry>, AbortCode> {
        check_name(name)?;
        if let Some(id) = name_as_id(name) {
            return self.by_id(id, cellar_wire::vl::ANYVOL);
        }
        self.names
            .get(base_name(name))
            .map(|found| &found.0)
            .ok_or(AbortCode::VL_NOENT)
    }

    /// At most `limit` entries with numbers above `number`.
    pub(crate) fn after(&self, number: u32, limit: usize) -> Vec<Arc<Entry>> {
        let range = (Bound::Excluded(number), Bound::Unbounded);
        self.entries
            .range(range)
            .take(limit)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// For each type, the number of groups that list a volume of it.
    pub(crate) fn volumes_by_type(&self) -> [usize; 3] {
        [self.ids[0].len(), self.ids[1].len(), self.ids[2].len()]
    }

    /// The first volume id that no server has reserved.
    pub(crate) fn max_volume_id(&self) -> VolumeId {
        VolumeId(self.max_volume_id)
    }

    /// The highest of these ids that an entry has. Looks up each one.
    pub(crate) fn highest_used_id(&self, mut ids: Range<u32>) -> Option<u32> {
        let is_used = |id: &u32| {
            let mut indexes = self.ids.iter();
            indexes.any(|index| index.contains_key(&VolumeId(*id)))
        };
        ids.rfind(is_used)
    }

    /// The servers in the order of their numbers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (usize, &Server)> {
        let numbered = self.servers.iter().enumerate();
        numbered.filter_map(|(number, server)| Some((number, server.as_ref()?)))
    }

    /// The server of that number.
    pub(crate) fn server(&self, number: usize) -> Option<&Server> {
        self.servers.get(number)?.as_ref()
    }

    /// The number of the server with that address.
    pub(crate) fn server_with_address(&self, address: u32) -> Option<u8> {
        let found = self
            .servers()
            .find(|(_, server)| server.addresses.contains(&address));
        found.map(|(number, _)| number as u8)
    }

    fn site(&self, place: &EntrySite) -> Site {
        let server = self.server(usize::from(place.server));
        Site {
            server: server.map_or(0, Server::address),
            partition: i32::from(place.partition),
            flags: u32::from(place.flags),
        }
    }

    /// An entry in the form with 8 sites; further sites are left out.
    pub(crate) fn to_old(&self, entry: &Entry) -> VldbEntry {
        let sites = entry
            .places
            .iter()
            .take(OLD_SITES_MAX)
            .map(|place| self.site(place));
        VldbEntry {
            name: entry.name.clone(),
            sites: List::from_iter_cut(sites),
            volume_ids: entry.ids,
            clone_id: entry.clone_id,
            flags: entry.flags,
        }
    }

    /// An entry in the form with 13 sites.
    pub(crate) fn to_n(&self, entry: &Entry) -> NvldbEntry {
        NvldbEntry {
            name: entry.name.clone(),
            sites: List::from_iter_cut(entry.places.iter().map(|place| self.site(place))),
            volume_ids: entry.ids,
            clone_id: entry.clone_id,
            flags: entry.flags,
            match_index: 0,
        }
    }

    /// An entry in the form that names servers by UUID.
    pub(crate) fn to_u(&self, entry: &Entry) -> UvldbEntry {
        let site = |place: &EntrySite| {
            let (partition, flags) = (i32::from(place.partition), u32::from(place.flags));
            match self.server(usize::from(place.server)) {
                Some(server) if server.is_registered() => UuidSite {
                    server: server.uuid,
                    uniquifier: server.uniquifier,
                    partition,
                    flags: flags | VLSF_UUID,
                },
                server => UuidSite {
                    server: AfsUuid::from_address(server.map_or(0, Server::address)),
                    uniquifier: 0,
                    partition,
                    flags,
                },
            }
        };
        UvldbEntry {
            name: entry.name.clone(),
            sites: List::from_iter_cut(entry.places.iter().map(site)),
            volume_ids: entry.ids,
            clone_id: entry.clone_id,
            flags: entry.flags,
            match_index: 0,
        }
    }
}
