//! Repairing damaged files from another copy.
//!
//! The other sites of a volume have the same file under the same vnode and uniquifier. If data
//! version and length are the same too, the bytes are the same. They are fetched there as a client
//! fetches them, and streamed to the server of the damaged file. That server checks each block
//! against its stored checksum. The other sites may be OpenAFS's. The server of the damaged file is
//! always Cellar's, because only Cellar finds damage.

use std::net::SocketAddr;

use cellar_client::FetchCall;
use cellar_rpc::{CallError, Connection, OutgoingCall};
use cellar_wire::afsvol::{self, ScrubPlace};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::{List, rxafs};
use serde::Serialize;

use super::job::JobContext;
use super::{Damage, Entry, Location, Volumes, site_flags};
use crate::error::{Error, Result};

/// The most bytes of a place that one call fetches.
const FETCH_BYTES: u64 = 4 << 20;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refilled {
    /// Number of repaired blocks, and pages of directories.
    pub restored: u64,
    /// Number of these that the server found in other versions of the file.
    pub from_here: u64,
    /// Number of blocks and pages that are still damaged.
    pub missing: u64,
    /// The sites from which bytes came.
    pub sources: Vec<Location>,
}

/// A copy of a file at another site.
struct Copy {
    at: Location,
    connection: Connection,
    fid: Fid,
}

impl Volumes<'_> {
    /// Repairs a damaged file. The bytes come from other versions on its server, and from other
    /// sites that have the same data version and length. Places that no copy has are counted in
    /// [`missing`](Refilled).
    ///
    /// # Errors
    /// The file's record is damaged, the file has changed since, its server is not Cellar's, or the
    /// caller has no permission.
    pub async fn refill(
        &self,
        at: Location,
        damage: &Damage,
        context: JobContext<'_>,
    ) -> Result<Refilled> {
        let fid = Fid {
            volume: VolumeId(damage.volume),
            vnode: VnodeId(damage.vnode),
            uniquifier: Uniquifier(damage.uniquifier),
        };
        if damage.vnode == 0 || damage.uniquifier == 0 {
            let what = "its record is damaged; restore the volume or the file";
            return Err(Error::Usage(format!("{}: {what}", damage.name())));
        }
        // A volume without an entry has no other sites.
        let candidates = match self.entry(&damage.volume.to_string()).await {
            Ok(entry) => other_sites(&entry, at),
            Err(Error::NoSuchEntry(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut refilled = Refilled::default();
        // First the server repairs what it can from its own disk, without another copy.
        context
            .or_stop(self.stream(at, fid, damage, None, &mut refilled, context))
            .await?;
        for (site, volume) in candidates {
            if refilled.missing == 0 {
                break;
            }
            let copy = self.copy_at(site, Fid { volume, ..fid }, damage, context);
            let copy = context.or_stop(async { Ok(copy.await) }).await?;
            if copy.is_some() {
                let stream = self.stream(at, fid, damage, copy.as_ref(), &mut refilled, context);
                context.or_stop(stream).await?;
            }
        }
        Ok(refilled)
    }

    /// Finds the same version of the file at another site. If there is none, reports the reason.
    async fn copy_at(
        &self,
        at: Location,
        fid: Fid,
        damage: &Damage,
        context: JobContext<'_>,
    ) -> Option<Copy> {
        let peer = SocketAddr::new(at.server.into(), self.cell.ports.fileserver);
        let servers = self.client.servers();
        let connection = servers.connection(&self.cell.name, peer, &rxafs::PACKAGE);
        let why = match connection.call(&rxafs::FetchStatus { fid }).await {
            Ok(rxafs::FetchStatusReply { status, .. }) => {
                let version = (status.data_version, status.length);
                if version == (damage.data_version, damage.length) {
                    return Some(Copy {
                        at,
                        connection,
                        fid,
                    });
                }
                "it has another version".to_owned()
            }
            Err(error) => error.to_string(),
        };
        context.say(&format!("{at} has no copy of {}: {why}", damage.name()));
        None
    }

    /// Streams the damaged places from a copy to the server of the damaged file.
    async fn stream(
        &self,
        at: Location,
        fid: Fid,
        damage: &Damage,
        copy: Option<&Copy>,
        refilled: &mut Refilled,
        context: JobContext<'_>,
    ) -> Result<()> {
        let refused = |cause| Error::refused(format!("Failed to refill {}", damage.name()), cause);
        let mut places: Vec<ScrubPlace> = match copy {
            Some(_) => damage.places_in_file().collect(),
            None => Vec::new(),
        };
        loop {
            let arguments = afsvol::Refill {
                partition: at.partition.number(),
                fid,
                length: damage.length,
                data_version: damage.data_version,
                places: List::from_iter_cut(places.iter().copied()),
            };
            let connection = self.connection(at.server.into());
            let mut call: OutgoingCall = connection.open(&arguments).await.map_err(refused)?;
            let mut sent = 0;
            for place in &places {
                sent += 1;
                if let Some(copy) = copy
                    && let Err(error) = copy.send(place, &mut call).await
                {
                    context.say(&format!("{} of {}: {error}", copy.at, damage.name()));
                    break;
                }
            }
            call.finish();
            let done: afsvol::RefillReply = call.results().await.map_err(refused)?;
            refilled.missing = done.missing;
            refilled.from_here += done.from_here;
            refilled.restored += done.restored;
            if let Some(copy) = copy
                && done.restored > done.from_here
                && refilled.sources.last() != Some(&copy.at)
            {
                refilled.sources.push(copy.at);
            }
            // The copy may be damaged too. After such a place, the remaining places need another
            // call.
            places.drain(..sent);
            if places.is_empty() || done.missing == 0 {
                return Ok(());
            }
        }
    }
}

impl Copy {
    /// Fetches one place and passes it on.
    async fn send(
        &self,
        place: &ScrubPlace,
        to: &mut OutgoingCall,
    ) -> std::result::Result<(), CallError> {
        let mut sent = 0;
        while sent < place.length {
            let asked = (place.length - sent).min(FETCH_BYTES);
            let position = place.at + sent;
            let mut call = FetchCall::open(&self.connection, self.fid, position, asked).await?;
            if call.is_short() {
                // The file was truncated since.
                return Err(CallError::BadReply(cellar_wire::DecodeError::Truncated));
            }
            // The reply is not needed: the status of the file was compared before.
            while let Some(bytes) = call.next().await? {
                to.write(bytes).await?;
            }
            sent += asked;
        }
        Ok(())
    }
}

impl Damage {
    /// The file's name for messages.
    fn name(&self) -> String {
        let fid = format!("{}.{}.{}", self.volume, self.vnode, self.uniquifier);
        match self.path.as_str() {
            "" => fid,
            path => format!("{path} ({fid})"),
        }
    }

    /// The damaged places, up to the end of the file.
    fn places_in_file(&self) -> impl Iterator<Item = ScrubPlace> {
        self.places.iter().filter_map(|&(at, length)| {
            let length = self.length.checked_sub(at)?.min(length);
            (length > 0).then_some(ScrubPlace { at, length })
        })
    }
}

/// The other sites of a family, with the read-only ones first, because these do not change.
fn other_sites(entry: &Entry, than: Location) -> Vec<(Location, VolumeId)> {
    let sites = |kind: u32, volume: VolumeId| {
        entry.sites.iter().filter_map(move |site| {
            let usable = site.flags & kind != 0 && site.flags & site_flags::DONT_USE == 0;
            let at = Location::new(site.server, site.partition).ok()?;
            (usable && at != than && volume.0 != 0).then_some((at, volume))
        })
    };
    let read_only = sites(site_flags::READ_ONLY, entry.read_only);
    let read_write = sites(site_flags::READ_WRITE, entry.read_write);
    let backup = sites(site_flags::READ_WRITE, entry.backup);
    read_only.chain(read_write).chain(backup).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use cellar_wire::ids::PartitionId;

    use super::super::Site;
    use super::*;

    #[test]
    fn copies_are_at_the_other_sites_that_may_be_used() {
        let site = |last: u8, flags| Site {
            server: Ipv4Addr::new(10, 0, 0, last).into(),
            partition: PartitionId::new(0).unwrap(),
            flags,
        };
        let entry = Entry {
            name: "v".into(),
            read_write: VolumeId(1),
            read_only: VolumeId(2),
            backup: VolumeId(3),
            clone: VolumeId(0),
            flags: 0,
            sites: vec![
                site(1, site_flags::READ_WRITE),
                site(1, site_flags::READ_ONLY),
                site(2, site_flags::READ_ONLY),
                site(3, site_flags::READ_ONLY | site_flags::DONT_USE),
            ],
        };
        let other = |than: u8| -> Vec<(u8, u32)> {
            let than = Location::new(site(than, 0).server, site(than, 0).partition).unwrap();
            let sites = other_sites(&entry, than).into_iter();
            sites
                .map(|(at, volume)| (at.server.octets()[3], volume.0))
                .collect()
        };
        assert_eq!(other(1), [(2, 2)]);
        assert_eq!(other(2), [(1, 2), (1, 1), (1, 3)]);
    }

    #[test]
    fn places_end_with_the_file() {
        let damage = Damage {
            volume: 1,
            vnode: 2,
            uniquifier: 3,
            path: String::new(),
            data_version: 1,
            length: 5000,
            places: vec![(0, 4096), (4096, 4096), (8192, 4096)],
            cause: String::new(),
        };
        let places: Vec<_> = damage.places_in_file().collect();
        assert_eq!(places.len(), 2);
        assert_eq!((places[1].at, places[1].length), (4096, 904));
        assert_eq!(damage.name(), "1.2.3");
    }
}
