//! Draining a file server: every volume that the VLDB has there goes to other servers.
//!
//! 1. The plan reads the VLDB, the volumes of the server and the space of all other servers. It
//!    changes nothing.
//! 2. A read-write volume is moved by the job of `vos move`. A read-only volume is copied as it is,
//!    so that a drain releases no change ([`sites`]). If every other server has a copy already, the
//!    site is given up.
//! 3. The steps of one volume group run in order, read-write volume first; groups run in parallel.
//!
//! The VLDB alone says which steps are left, so the next drain continues an interrupted one. Of a
//! move that was interrupted after its commit, only the old copy is left: off line, and not in the
//! VLDB. The plan finds it and the move job removes it.
//!
//! A destination is the partition with the most free space after the steps before. A server has at
//! most one read-only volume of a group, and it is on the partition of the read-write volume if
//! both are on one server.

mod choice;
mod sites;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use cellar_wire::ids::{PartitionId, VolumeId};
use serde::Serialize;

use super::job::JobContext;
use super::{
    Entry, EntryFilter, Location, MoveOptions, ServerAddresses, Site, VolumeInfo, VolumeType,
    Volumes, site_flags,
};
use crate::error::{Error, Result};
use choice::Room;

/// A destination that the administrator names: a server, or one of its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTarget {
    /// The server.
    pub server: Ipv4Addr,
    /// The partition; none for every partition of the server.
    pub partition: Option<PartitionId>,
}

/// A step of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum DrainAction {
    /// The read-write volume moves.
    Move {
        /// Its place on the server.
        from: Location,
        /// Its destination.
        to: Location,
    },
    /// The read-only volume gets another site.
    MoveSite {
        /// Its place on the server.
        from: Location,
        /// Its destination.
        to: Location,
    },
    /// The read-only site is given up, because every other server has a copy.
    DropSite {
        /// Its place on the server.
        from: Location,
    },
}

/// A step with its volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainStep {
    /// The name of the volume group.
    pub name: String,
    /// The read-write id of the group.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// The size of the volume, in KiB; 0 if the server does not say.
    pub size_kib: u64,
    /// The change.
    #[serde(flatten)]
    pub action: DrainAction,
}

/// A volume that the drain leaves on the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remaining {
    /// The volume's name.
    pub name: String,
    /// Its id.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// Its place.
    pub at: Location,
    /// The cause, and the remedy.
    pub reason: String,
}

/// The steps that empty a server.
#[derive(Clone, Debug, Serialize)]
pub struct DrainPlan {
    /// The server.
    pub server: ServerAddresses,
    /// The steps of each volume group, in order.
    pub groups: Vec<Vec<DrainStep>>,
    /// Volumes of the VLDB without a destination.
    pub stuck: Vec<Remaining>,
    /// Volumes on the server that the VLDB does not name there.
    pub unlisted: Vec<Remaining>,
    /// Servers that do not answer and can take nothing.
    pub silent: Vec<IpAddr>,
}

impl DrainPlan {
    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }
}

/// The volumes of the drained server, by place and id.
type Held = BTreeMap<(Location, VolumeId), VolumeInfo>;

impl Volumes<'_> {
    /// The server that an address names, as the VLDB knows it.
    ///
    /// # Errors
    /// The VLDB knows no server of that address, or does not answer.
    pub async fn known_server(&self, address: IpAddr) -> Result<ServerAddresses> {
        let servers = self.addresses().await?;
        let found = servers
            .into_iter()
            .find(|server| server.addresses.contains(&address));
        found.ok_or_else(|| {
            Error::Usage(format!(
                "the VLDB has no file server {address}; 'cellar vos listaddrs' lists all"
            ))
        })
    }

    /// The entries with a site on a server.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn entries_at(&self, server: &ServerAddresses) -> Result<Vec<Entry>> {
        let filter = EntryFilter {
            server: server.addresses.first().copied(),
            ..EntryFilter::default()
        };
        self.entries(filter).await
    }

    /// Plans the drain of a server. `to` restricts the destinations; empty for every other server.
    ///
    /// # Errors
    /// The server or a named destination does not answer or is not in the VLDB; or a destination is
    /// the server itself.
    pub async fn plan_drain(
        &self,
        server: &ServerAddresses,
        to: &[DrainTarget],
    ) -> Result<DrainPlan> {
        let own = |address: IpAddr| server.addresses.contains(&address);
        if let Some(target) = to.iter().find(|target| own(target.server.into())) {
            return Err(Error::Usage(format!(
                "{} is the server to drain; --to names another one",
                target.server
            )));
        }
        let held = self.held(server).await?;
        let entries = self.entries_at(server).await?;
        let (mut room, silent) = self.room(server, to).await?;
        let mut plan = DrainPlan {
            server: server.clone(),
            groups: Vec::new(),
            stuck: Vec::new(),
            unlisted: Vec::new(),
            silent,
        };
        // The largest volumes choose first.
        let mut sized: Vec<(u64, &Entry)> = entries
            .iter()
            .map(|entry| (size_of(&held, server, entry), entry))
            .collect();
        sized.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.name.cmp(&other.1.name)));
        for (_, entry) in sized {
            plan.add(entry, &held, &mut room);
        }
        self.add_unlisted(&mut plan, &held, &entries).await?;
        Ok(plan)
    }

    /// Runs one step.
    ///
    /// # Errors
    /// As [`Volumes::move_volume`], [`Volumes::move_site`] or [`Volumes::remove`].
    pub async fn drain_step(&self, step: &DrainStep, context: JobContext<'_>) -> Result<()> {
        match step.action {
            DrainAction::Move { from, to } => {
                let options = MoveOptions::default();
                self.move_volume(&step.name, from, to, options, context)
                    .await?;
            }
            DrainAction::MoveSite { from, to } => {
                self.move_site(step.volume, from, to, context).await?;
            }
            DrainAction::DropSite { from } => {
                context.check()?;
                let read_only = self.draft(step.volume).await?.read_only;
                self.remove(from.server.into(), from.partition, read_only)
                    .await?;
            }
        }
        Ok(())
    }

    /// All volumes on a server.
    async fn held(&self, server: &ServerAddresses) -> Result<Held> {
        let address = first(server)?;
        let partitions = self.partitions(address.into()).await.map_err(|error| {
            Error::Usage(format!(
                "{error}. A drain needs the server's volumes; of a server that is lost, 'cellar vos remsite' and \
                 'cellar vos convertROtoRW' correct the VLDB"
            ))
        })?;
        let mut held = Held::new();
        for partition in partitions {
            let at = Location {
                server: address,
                partition,
            };
            for info in self.volumes_on(address.into(), partition, false).await? {
                held.insert((at, info.id), info);
            }
        }
        Ok(held)
    }

    /// Adds the volumes that the VLDB does not name on the server. The old copy of an interrupted
    /// move gets a step.
    async fn add_unlisted(
        &self,
        plan: &mut DrainPlan,
        held: &Held,
        entries: &[Entry],
    ) -> Result<()> {
        let listed = |at: Location, id: VolumeId| {
            entries.iter().any(|entry| {
                let wanted = match id {
                    id if id == entry.read_only => site_flags::READ_ONLY,
                    id if id == entry.read_write || id == entry.backup => site_flags::READ_WRITE,
                    _ => return false,
                };
                entry.sites.iter().any(|site| {
                    site.flags & wanted != 0
                        && site.partition == at.partition
                        && plan.server.addresses.contains(&site.server)
                })
            })
        };
        let strays: Vec<_> = held
            .iter()
            .filter(|((at, id), _)| !listed(*at, *id))
            .collect();
        for ((at, id), info) in strays {
            let entry = match self.entry(&id.to_string()).await {
                Ok(entry) => Some(entry),
                Err(Error::NoSuchEntry(_)) => None,
                Err(error) => return Err(error),
            };
            let elsewhere = entry
                .as_ref()
                .filter(|entry| entry.read_write == *id && !info.in_use)
                .and_then(|entry| Some((entry, place(entry.read_write_site()?)?)));
            if let Some((entry, to)) = elsewhere {
                let action = DrainAction::Move { from: *at, to };
                plan.groups.push(vec![step(entry, 0, action)]);
                continue;
            }
            let remedy = match info.r#type {
                VolumeType::ReadWrite if entry.is_none() => "'cellar vos syncvldb' enters it",
                _ => "'cellar vos zap' deletes it",
            };
            plan.unlisted.push(Remaining {
                name: info.name.clone(),
                volume: *id,
                at: *at,
                reason: format!("the VLDB does not name it there; {remedy}"),
            });
        }
        Ok(())
    }
}

impl DrainPlan {
    /// Adds the steps of one entry.
    fn add(&mut self, entry: &Entry, held: &Held, room: &mut Room) {
        let own = |site: &&Site| self.server.addresses.contains(&site.server);
        let read_only = |site: &&Site| site.flags & site_flags::READ_ONLY != 0;
        let mut steps = Vec::new();
        let mut stuck = Vec::new();
        let others: Vec<IpAddr> = entry
            .sites
            .iter()
            .filter(|site| read_only(site) && !own(site))
            .map(|site| site.server)
            .collect();
        let read_write = entry.read_write_site();
        // The place of the read-write volume after its move.
        let mut home = read_write.and_then(place);
        let moves = read_write.filter(own).and_then(place);
        if let Some(from) = moves {
            let size = size_at(held, from, entry.read_write);
            let beside = entry
                .sites
                .iter()
                .filter(|site| read_only(site) && !own(site));
            let beside: Vec<Location> = beside.filter_map(place).collect();
            match room.for_read_write(size, &beside) {
                Ok(to) => {
                    home = Some(to);
                    let action = DrainAction::Move { from, to };
                    steps.push(step(entry, size, action));
                }
                Err(reason) => stuck.push((from, entry.read_write, reason)),
            }
        }
        for from in entry.sites.iter().filter(read_only).filter(own) {
            let Some(from) = place(from) else { continue };
            let size = size_at(held, from, entry.read_only);
            let with_read_write = moves.is_some() && stuck.is_empty();
            let home = home.filter(|home| !self.server.addresses.contains(&home.server.into()));
            match room.for_read_only(size, home, with_read_write, &others) {
                Ok(Some(to)) => {
                    let action = DrainAction::MoveSite { from, to };
                    steps.push(step(entry, size, action));
                }
                Ok(None) => steps.push(step(entry, size, DrainAction::DropSite { from })),
                Err(reason) => stuck.push((from, entry.read_only, reason)),
            }
        }
        self.stuck
            .extend(stuck.into_iter().map(|(at, volume, reason)| Remaining {
                name: entry.name.clone(),
                volume,
                at,
                reason,
            }));
        if !steps.is_empty() {
            self.groups.push(steps);
        }
    }
}

fn step(entry: &Entry, size_kib: u64, action: DrainAction) -> DrainStep {
    DrainStep {
        name: entry.name.clone(),
        volume: entry.read_write,
        size_kib,
        action,
    }
}

fn place(site: &Site) -> Option<Location> {
    Location::new(site.server, site.partition).ok()
}

/// The address at which a server is called.
fn first(server: &ServerAddresses) -> Result<Ipv4Addr> {
    let found = server.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    found.ok_or_else(|| Error::Usage("the server has no IPv4 address".to_owned()))
}

/// The size of a volume in KiB. The VLDB may use another address of the server than the listing.
fn size_at(held: &Held, at: Location, volume: VolumeId) -> u64 {
    let found = held
        .iter()
        .find(|((there, id), _)| there.partition == at.partition && *id == volume);
    found.map_or(0, |(_, info)| info.size_kib.into())
}

/// The largest size of a group's volumes on the server.
fn size_of(held: &Held, server: &ServerAddresses, entry: &Entry) -> u64 {
    let here = entry
        .sites
        .iter()
        .filter(|site| server.addresses.contains(&site.server));
    let sizes = here
        .filter_map(place)
        .flat_map(|at| [entry.read_write, entry.read_only].map(|volume| size_at(held, at, volume)));
    sizes.max().unwrap_or(0)
}
