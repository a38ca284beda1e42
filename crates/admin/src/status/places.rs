//! The volumes on the servers beside the sites of the VLDB.
//!
//! 1. The program holds a row of 12 bytes for each volume of a server and each site of the VLDB,
//!    at most [`ROWS_MAX`] of either.
//! 2. A site is compared if the list of its partition is whole, and a volume if the list of the
//!    VLDB is whole.
//! 3. The lists are read at different moments. So the VLDB and the server are asked again for each
//!    difference, up to [`CHECKED_MAX`] of a kind and for at most [`Limits::listing`].
//!
//! Operations leave differences for a time, which need no attention: the entry is locked, or the
//! volume is busy, off line or temporary. Backup volumes are not compared, nor are clones beside
//! their read-write volume (`vos clone`).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::{AbortCode, afsvol, vl};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Counted, FileServer, LISTED_MAX, Limits, VolumeProblem};
use crate::error::{Error, Result};
use crate::vos::{
    Entry, Site, VolumeState, VolumeType, Volumes, entry_flags, is_missing, site_flags,
};

/// The most volumes of a partition, and the most sites of the VLDB, that are compared: 48 MB.
const ROWS_MAX: usize = 4_000_000;

/// The most differences of a kind that are asked for again. The others are counted as they are.
const CHECKED_MAX: usize = 1_000;

/// The differences that are asked for at a time.
const CHECKED_AT_ONCE: usize = 16;

/// The state of a volume on a server, as far as a comparison needs it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A read-write volume on line.
    ReadWrite,
    /// A read-only volume on line.
    ReadOnly,
    /// A backup volume, or a volume that is busy, off line, damaged or temporary.
    Other,
}

/// A volume on a server.
#[derive(Clone, Copy)]
struct Row {
    id: VolumeId,
    parent: VolumeId,
    kind: Kind,
}

/// The volumes of a partition.
#[derive(Default)]
pub(super) struct PartitionList {
    rows: Vec<Row>,
    /// The list has all volumes of the partition.
    pub(super) is_whole: bool,
}

impl PartitionList {
    pub(super) fn add(&mut self, info: &afsvol::VolumeInfo) {
        if self.rows.len() >= ROWS_MAX {
            return;
        }
        let is_steady = info.status == afsvol::STATUS_OK
            && info.needs_salvaged == 0
            && info.in_use != 0
            && info.destroy_me != afsvol::DESTROY_ME;
        let kind = match info.volume_type {
            _ if !is_steady => Kind::Other,
            vl::RWVOL => Kind::ReadWrite,
            vl::ROVOL => Kind::ReadOnly,
            _ => Kind::Other,
        };
        self.rows.push(Row {
            id: info.volume,
            parent: info.parent,
            kind,
        });
    }
}

/// The volumes of a server that has listed its partitions.
pub(super) struct ServerList {
    pub(super) address: IpAddr,
    pub(super) partitions: HashMap<PartitionId, PartitionList>,
}

/// A site of the VLDB.
#[derive(Clone, Copy)]
struct Named {
    id: VolumeId,
    server: Ipv4Addr,
    partition: PartitionId,
    /// The volume must be there.
    is_expected: bool,
}

/// The sites of the VLDB.
#[derive(Default)]
pub(super) struct Sites {
    named: Vec<Named>,
    /// There are more than [`ROWS_MAX`].
    is_cut: bool,
}

impl Sites {
    pub(super) fn add(&mut self, entry: &Entry) {
        for site in &entry.sites {
            let IpAddr::V4(server) = site.server else {
                continue;
            };
            if self.named.len() >= ROWS_MAX {
                self.is_cut = true;
                return;
            }
            self.named.push(Named {
                id: id_at(entry, site),
                server,
                partition: site.partition,
                is_expected: is_expected(entry, site),
            });
        }
    }

    fn of(&self, id: VolumeId) -> &[Named] {
        let from = self.named.partition_point(|named| named.id < id);
        let rest = self.named.get(from..).unwrap_or_default();
        let count = rest.partition_point(|named| named.id == id);
        rest.get(..count).unwrap_or_default()
    }
}

/// The volume that an entry names at one of its sites.
fn id_at(entry: &Entry, site: &Site) -> VolumeId {
    match site.flags & site_flags::READ_WRITE {
        0 => entry.read_only,
        _ => entry.read_write,
    }
}

/// Whether the volume of a site must be there. A site of an unfinished release counts as out of
/// date instead.
fn is_expected(entry: &Entry, site: &Site) -> bool {
    let has = |flag| site.flags & flag != 0;
    let is_releasing = |site: &Site| site.flags & site_flags::NEW_RELEASE != 0;
    let exists = match has(site_flags::READ_WRITE) {
        true => entry.flags & entry_flags::RW_EXISTS != 0,
        false => {
            entry.flags & entry_flags::RO_EXISTS != 0
                && !has(site_flags::DONT_USE)
                && (is_releasing(site) || !entry.sites.iter().any(is_releasing))
        }
    };
    exists && !entry.is_locked()
}

/// The differences between the volumes and the VLDB.
#[derive(Default)]
pub(super) struct Differences {
    /// Volumes that the VLDB names at a place without them.
    pub(super) missing: Counted<VolumeProblem>,
    /// Volumes that the VLDB does not name.
    pub(super) unlisted: Counted<VolumeProblem>,
    /// Volumes that the VLDB names at other places only.
    pub(super) copies: Counted<VolumeProblem>,
    /// The parts that were not compared, one sentence each.
    pub(super) not_known: Vec<String>,
}

impl Differences {
    fn add(&mut self, difference: Difference) {
        match difference {
            Difference::Missing(problem) => self.missing.add(problem),
            Difference::Unlisted(problem) => self.unlisted.add(problem),
            Difference::Copy(problem) => self.copies.add(problem),
        }
    }

    /// Whether a list of that side is full.
    fn is_enough(&self, side: Side) -> bool {
        let is_full = |list: &Counted<VolumeProblem>| list.listed.len() >= LISTED_MAX;
        match side {
            Side::Database => is_full(&self.missing),
            Side::Server => is_full(&self.unlisted),
        }
    }
}

/// A volume at a place.
#[derive(Clone, Copy)]
struct Place<'a> {
    id: VolumeId,
    server: &'a ServerList,
    partition: PartitionId,
}

impl Place<'_> {
    fn problem(&self, name: String) -> VolumeProblem {
        VolumeProblem {
            name,
            id: self.id,
            server: self.server.address,
            partition: self.partition,
            size_kib: 0,
            quota_kib: 0,
        }
    }
}

/// The volume lists of all file servers, under each of their addresses.
struct Cell<'a> {
    servers: Vec<&'a ServerList>,
    by_address: HashMap<IpAddr, usize>,
}

impl<'a> Cell<'a> {
    /// Two registrations with a common address are one server.
    fn of(file_servers: &[FileServer], lists: &'a [ServerList]) -> Self {
        let (mut servers, mut by_address) = (Vec::new(), HashMap::new());
        for server in file_servers {
            let mut addresses = server.addresses.iter();
            let Some(list) = lists
                .iter()
                .find(|list| server.addresses.contains(&list.address))
            else {
                continue;
            };
            let known = addresses.find_map(|address| by_address.get(address).copied());
            let index = known.unwrap_or_else(|| {
                servers.push(list);
                servers.len() - 1
            });
            by_address.extend(server.addresses.iter().map(|address| (*address, index)));
        }
        Self {
            servers,
            by_address,
        }
    }

    fn server(&self, address: IpAddr) -> Option<&'a ServerList> {
        let index = self.by_address.get(&address)?;
        self.servers.get(*index).copied()
    }

    fn is_at(&self, address: IpAddr, partition: PartitionId, place: &Place<'_>) -> bool {
        partition == place.partition
            && self
                .server(address)
                .is_some_and(|server| std::ptr::eq(server, place.server))
    }
}

/// The list that has a volume which the other one lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The VLDB names the volume.
    Database,
    /// The server has the volume.
    Server,
}

/// A confirmed difference.
enum Difference {
    Missing(VolumeProblem),
    Unlisted(VolumeProblem),
    Copy(VolumeProblem),
}

/// Compares the volumes of the servers with the sites of the VLDB, whose list is whole or not.
pub(super) async fn compare(
    file_servers: &[FileServer],
    mut lists: Vec<ServerList>,
    mut sites: Sites,
    is_whole: bool,
    volumes: Volumes<'_>,
    limits: Limits,
) -> Differences {
    let partitions = lists
        .iter_mut()
        .flat_map(|list| list.partitions.values_mut());
    for list in partitions {
        list.is_whole &= list.rows.len() < ROWS_MAX;
        list.rows.sort_unstable_by_key(|row| row.id);
    }
    sites.named.sort_unstable_by_key(|named| named.id);
    let cell = Cell::of(file_servers, &lists);
    let end = Instant::now() + limits.listing;
    let mut checks = Checks {
        cell: &cell,
        volumes,
        answer: limits.answer,
        end,
        found: Differences::default(),
        without_answer: 0,
    };
    let missing = missing(&cell, &sites);
    let rest = checks.ask_again(&missing, Side::Database).await;
    checks.found.missing.count += rest;
    if is_whole && !sites.is_cut {
        let extra = extra(&cell, &sites);
        checks.without_answer += checks.ask_again(&extra, Side::Server).await;
    } else {
        let line = "volumes that the VLDB does not name: its list is not whole";
        checks.found.not_known.push(line.to_owned());
    }
    let Checks {
        mut found,
        without_answer,
        ..
    } = checks;
    if without_answer > 0 {
        found.not_known.push(format!(
            "{without_answer} differences between the VLDB and the servers: not confirmed in time"
        ));
    }
    found
}

/// Expected volumes that are not in the list of their partition.
fn missing<'a>(cell: &Cell<'a>, sites: &Sites) -> Vec<Place<'a>> {
    let mut missing = Vec::new();
    for named in sites.named.iter().filter(|named| named.is_expected) {
        let Some(server) = cell.server(named.server.into()) else {
            continue;
        };
        let lacks = match server.partitions.get(&named.partition) {
            None => true,
            Some(list) => {
                let place = list.rows.binary_search_by_key(&named.id, |row| row.id);
                list.is_whole && place.is_err()
            }
        };
        if lacks {
            missing.push(Place {
                id: named.id,
                server,
                partition: named.partition,
            });
        }
    }
    missing
}

/// Volumes on line that the VLDB does not name at their place.
fn extra<'a>(cell: &Cell<'a>, sites: &Sites) -> Vec<Place<'a>> {
    let mut extra = Vec::new();
    for server in &cell.servers {
        for (partition, list) in &server.partitions {
            for row in list.rows.iter().filter(|row| row.kind != Kind::Other) {
                let place = Place {
                    id: row.id,
                    server,
                    partition: *partition,
                };
                let is_named = |id| {
                    let mut named = sites.of(id).iter();
                    named.any(|named| cell.is_at(named.server.into(), named.partition, &place))
                };
                let is_clone = || row.kind == Kind::ReadOnly && is_named(row.parent);
                if !is_named(row.id) && !is_clone() {
                    extra.push(place);
                }
            }
        }
    }
    extra.sort_unstable_by_key(|place| (place.server.address, place.partition, place.id));
    extra
}

/// The second questions.
struct Checks<'a> {
    cell: &'a Cell<'a>,
    volumes: Volumes<'a>,
    answer: Duration,
    end: Instant,
    found: Differences,
    /// Differences that were not confirmed and not refuted.
    without_answer: u64,
}

impl Checks<'_> {
    /// Asks for differences again, and returns the number of those that were not asked for.
    async fn ask_again(&mut self, places: &[Place<'_>], side: Side) -> u64 {
        let mut checked = 0;
        let most = places.len().min(CHECKED_MAX);
        let checked_places = places.get(..most).unwrap_or_default();
        for places in checked_places.chunks(CHECKED_AT_ONCE) {
            let asked = places.iter();
            let asked = asked.map(|place| confirm(self.cell, *place, side, self.volumes));
            let asked = asked.map(|asked| timeout(self.answer, asked));
            let Ok(answers) = timeout_at(self.end, join_all(asked)).await else {
                break;
            };
            checked += answers.len();
            for answer in answers {
                match answer {
                    Ok(Ok(Some(difference))) => self.found.add(difference),
                    Ok(Ok(None)) => {}
                    Ok(Err(_)) | Err(_) => self.without_answer += 1,
                }
            }
            if self.found.is_enough(side) {
                break;
            }
        }
        places.len().saturating_sub(checked) as u64
    }
}

/// Asks the VLDB and the server for one volume. `None` if nothing needs attention.
async fn confirm(
    cell: &Cell<'_>,
    place: Place<'_>,
    side: Side,
    volumes: Volumes<'_>,
) -> Result<Option<Difference>> {
    let there = volumes.volume_on(place.server.address, place.partition, place.id, false);
    let there = match there.await {
        Ok(info) => Some(info),
        Err(error) if is_missing(&error) => None,
        // The whole partition is missing.
        Err(error) if error.code() == Some(AbortCode::VOLSERILLEGAL_PARTITION) => None,
        Err(error) => return Err(error),
    };
    let entry = match volumes.entry(&place.id.to_string()).await {
        Ok(entry) => Some(entry),
        Err(Error::NoSuchEntry(_)) => None,
        Err(error) => return Err(error),
    };
    let site = entry.as_ref().and_then(|entry| {
        let mut sites = entry.sites.iter();
        sites.find(|site| {
            cell.is_at(site.server, site.partition, &place) && id_at(entry, site) == place.id
        })
    });
    match (side, there, entry.as_ref(), site) {
        (Side::Database, None, Some(entry), Some(site)) if is_expected(entry, site) => {
            let suffix = match entry.read_only == place.id {
                true => ".readonly",
                false => "",
            };
            let name = format!("{}{suffix}", entry.name);
            Ok(Some(Difference::Missing(place.problem(name))))
        }
        (Side::Server, Some(info), entry, None) => {
            let is_steady = info.state == VolumeState::Ok && info.in_use && !info.destroy_me;
            let is_locked = entry.is_some_and(Entry::is_locked);
            let is_compared = matches!(info.r#type, VolumeType::ReadWrite | VolumeType::ReadOnly);
            if !is_steady || is_locked || !is_compared {
                return Ok(None);
            }
            let problem = place.problem(info.name);
            Ok(Some(match entry {
                Some(_) => Difference::Copy(problem),
                None => Difference::Unlisted(problem),
            }))
        }
        _ => Ok(None),
    }
}
