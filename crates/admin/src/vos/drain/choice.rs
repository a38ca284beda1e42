//! The choice of destinations: the space of the other servers, less the space that earlier steps of
//! the plan take.

use std::net::IpAddr;

use futures_util::future::join_all;

use super::super::{Location, ServerAddresses, Volumes};
use super::{DrainTarget, first};
use crate::error::Result;

/// A destination, or the reason why there is none.
type Choice<T> = std::result::Result<T, String>;

/// The share of a partition, in percent, that a chosen destination keeps free. A partition with
/// less free space needs attention (`cellar status`). A named destination may be filled.
const FREE_PERCENT: i64 = 10;

/// One partition with its space, in KiB.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub(super) at: Location,
    /// All addresses of its server.
    pub(super) addresses: Vec<IpAddr>,
    /// Free space after the steps that are planned already, less the share to keep.
    pub(super) free: i64,
}

/// The space of all destinations.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    pub(super) spaces: Vec<Space>,
}

impl Room {
    /// A destination for a read-write volume. `beside` has the read-only sites of its group: on
    /// their servers only their partitions are allowed.
    pub(super) fn for_read_write(&mut self, size: u64, beside: &[Location]) -> Choice<Location> {
        let fits = |space: &Space| {
            let mut there = beside
                .iter()
                .filter(|site| space.addresses.contains(&site.server.into()));
            there.all(|site| site.partition == space.at.partition)
        };
        self.take(size, fits)
    }

    /// A destination for a read-only volume; `None` if every destination has a copy already.
    /// `home` is the place of the read-write volume, and `others` the servers with copies.
    pub(super) fn for_read_only(
        &mut self,
        size: u64,
        home: Option<Location>,
        with_read_write: bool,
        others: &[IpAddr],
    ) -> Choice<Option<Location>> {
        let has_copy = |space: &Space| space.addresses.iter().any(|own| others.contains(own));
        let at_home =
            |space: &Space| home.is_some_and(|home| space.addresses.contains(&home.server.into()));
        let is_home = |space: &Space| {
            at_home(space) && home.is_some_and(|home| home.partition == space.at.partition)
        };
        let fits = |space: &Space| !has_copy(space) && (!at_home(space) || is_home(space));
        // A clone beside the read-write volume shares its blocks after the next release.
        if with_read_write
            && let Ok(to) = self.take(size, |space: &Space| is_home(space) && fits(space))
        {
            return Ok(Some(to));
        }
        if !self.spaces.is_empty() && !self.spaces.iter().any(fits) && !others.is_empty() {
            return Ok(None);
        }
        self.take(size, fits).map(Some)
    }

    /// Takes space on the partition with the most of it.
    fn take(&mut self, size: u64, fits: impl Fn(&Space) -> bool) -> Choice<Location> {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        if self.spaces.is_empty() {
            return Err("no other file server answers that could take it; \
                        'cellar status' shows the servers"
                .to_owned());
        }
        let allowed = self.spaces.iter_mut().filter(|space| fits(space));
        // Of equal partitions the first one is chosen.
        let best = allowed.reduce(|one, other| if other.free > one.free { other } else { one });
        match best {
            Some(space) if space.free >= size => {
                space.free -= size;
                Ok(space.at)
            }
            Some(space) => Err(format!(
                "it has {size} KiB, and no partition has that much to spare: {} has {} KiB above the {FREE_PERCENT} % \
                 that stay free. --to names a partition that may be filled",
                space.at,
                space.free.max(0)
            )),
            None => Err(
                "every destination has a volume of its group on another partition; \
                         --to names another server"
                    .to_owned(),
            ),
        }
    }
}

impl Volumes<'_> {
    /// The space of all destinations, and the servers that do not answer.
    pub(super) async fn room(
        &self,
        drained: &ServerAddresses,
        to: &[DrainTarget],
    ) -> Result<(Room, Vec<IpAddr>)> {
        let servers = self.addresses().await?;
        let is_target = |server: &ServerAddresses, target: &DrainTarget| {
            server.addresses.contains(&target.server.into())
        };
        for target in to {
            if !servers.iter().any(|server| is_target(server, target)) {
                self.known_server(target.server.into()).await?;
            }
            if let Some(partition) = target.partition {
                let server = target.server;
                self.check_partition(Location { server, partition }).await?;
            }
        }
        let others = servers
            .iter()
            .filter(|server| server.addresses != drained.addresses)
            .filter(|server| to.is_empty() || to.iter().any(|target| is_target(server, target)));
        let asked = join_all(others.map(async |server| (server, self.spaces_of(server).await)));
        let (mut room, mut silent) = (Room::default(), Vec::new());
        for (server, spaces) in asked.await {
            match spaces {
                Ok(spaces) => {
                    let mut named = to.iter().filter(|target| is_target(server, target));
                    let any = to.is_empty() || named.clone().any(|one| one.partition.is_none());
                    for (mut space, total) in spaces {
                        if any || named.any(|one| one.partition == Some(space.at.partition)) {
                            if to.is_empty() {
                                space.free -= total / 100 * FREE_PERCENT;
                            }
                            room.spaces.push(space);
                        }
                    }
                }
                Err(_) if to.is_empty() => silent.extend(server.addresses.first()),
                Err(error) => return Err(error),
            }
        }
        Ok((room, silent))
    }

    /// The partitions of a server, each with its total space.
    async fn spaces_of(&self, server: &ServerAddresses) -> Result<Vec<(Space, i64)>> {
        let address = first(server)?;
        let mut spaces = Vec::new();
        for partition in self.partitions(address.into()).await? {
            let space = self.partition_space(address.into(), partition).await?;
            let at = Location {
                server: address,
                partition,
            };
            let addresses = server.addresses.clone();
            let free = space.free_kib;
            spaces.push((
                Space {
                    at,
                    addresses,
                    free,
                },
                space.total_kib,
            ));
        }
        Ok(spaces)
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::PartitionId;

    use super::*;

    fn at(host: u8, partition: u8) -> Location {
        Location {
            server: [192, 0, 2, host].into(),
            partition: PartitionId::try_from(i32::from(partition)).expect("a partition"),
        }
    }

    /// Destinations, as host, partition and free KiB.
    fn room(of: &[(u8, u8, i64)]) -> Room {
        let spaces = of.iter().map(|(host, partition, free)| Space {
            at: at(*host, *partition),
            addresses: vec![IpAddr::from([192, 0, 2, *host])],
            free: *free,
        });
        Room {
            spaces: spaces.collect(),
        }
    }

    #[test]
    fn the_emptiest_partition_is_chosen_and_fills() {
        let mut room = room(&[(1, 0, 100), (2, 0, 150)]);
        assert_eq!(room.for_read_write(80, &[]), Ok(at(2, 0)));
        assert_eq!(room.for_read_write(80, &[]), Ok(at(1, 0)));
        let refused = room.for_read_write(80, &[]).expect_err("full");
        assert!(refused.contains("it has 80 KiB"), "{refused}");
    }

    #[test]
    fn a_server_has_the_volumes_of_a_group_on_one_partition() {
        let beside = [at(1, 1)];
        let mut spaces = room(&[(1, 0, 100), (1, 1, 10)]);
        assert_eq!(spaces.for_read_write(1, &beside), Ok(at(1, 1)));
        let home = Some(at(1, 1));
        assert_eq!(
            spaces.for_read_only(1, home, false, &[]),
            Ok(Some(at(1, 1)))
        );
    }

    #[test]
    fn a_copy_follows_its_read_write_volume_if_that_moves() {
        let mut spaces = room(&[(1, 0, 100), (2, 0, 900)]);
        let home = Some(at(1, 0));
        assert_eq!(spaces.for_read_only(1, home, true, &[]), Ok(Some(at(1, 0))));
        assert_eq!(
            spaces.for_read_only(1, home, false, &[]),
            Ok(Some(at(2, 0)))
        );
    }

    #[test]
    fn a_site_is_given_up_only_if_all_others_have_a_copy() {
        let others = [IpAddr::from([192, 0, 2, 1])];
        let mut one = room(&[(1, 0, 100)]);
        assert_eq!(one.for_read_only(1, None, false, &others), Ok(None));
        let mut two = room(&[(1, 0, 100), (2, 0, 100)]);
        assert_eq!(
            two.for_read_only(1, None, false, &others),
            Ok(Some(at(2, 0)))
        );
        let mut full = room(&[(1, 0, 100), (2, 0, 0)]);
        assert!(full.for_read_only(1, None, false, &others).is_err());
        assert!(
            Room::default()
                .for_read_only(1, None, false, &others)
                .is_err()
        );
    }
}
