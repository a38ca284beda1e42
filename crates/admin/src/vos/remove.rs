//! Removing a volume from a site.
//!
//! 1. The entry is locked, so that nobody moves or releases the volume meanwhile.
//! 2. The volume server deletes the volume; for a read-write volume its backup volume too, which
//!    lives beside it.
//! 3. The entry loses the site, or is deleted with the last one. Either releases the lock.
//!
//! Interrupted between, the entry stays locked and names a volume that may be gone: removing it
//! once more, after `vos unlock`, finishes.

use std::net::IpAddr;

use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::{AbortCode, afsvol, vl};

use super::{Volumes, entry_from_wire};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Removes a volume from a server and partition, and from the VLDB.
    ///
    /// # Errors
    /// It is not there, its entry is locked, or the caller may not.
    pub async fn remove(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
    ) -> Result<()> {
        let IpAddr::V4(address) = server else {
            return Err(Error::Usage(format!(
                "{server}: file servers have IPv4 addresses"
            )));
        };
        let entry = match self.raw_entry(volume).await {
            Ok(entry) => entry,
            // Only the server knows it.
            Err(Error::NoSuchEntry(_)) => {
                return self.delete_on_server(server, partition, volume).await;
            }
            Err(error) => return Err(error),
        };
        let [read_write, read_only, backup] = entry.volume_ids;
        self.lock(volume, vl::VLOP_DELETE).await?;
        let removed = async {
            let site_of = |wanted: u32| {
                entry.sites.iter().position(|site| {
                    site.server == u32::from(address)
                        && site.partition == partition.number()
                        && site.flags & wanted != 0
                })
            };
            let mut changed = entry.clone();
            let mut sites = entry.sites.to_vec();
            if volume == read_write {
                let site = site_of(vl::VLSF_RWVOL).ok_or_else(|| wrong_site(&entry, server))?;
                self.delete_on_server(server, partition, read_write).await?;
                if entry.flags & vl::VLF_BACKEXISTS != 0 {
                    self.delete_if_there(server, partition, backup).await?;
                }
                sites.remove(site);
                changed.flags &= !(vl::VLF_RWEXISTS | vl::VLF_BACKEXISTS);
            } else if volume == read_only {
                let site = site_of(vl::VLSF_ROVOL).ok_or_else(|| wrong_site(&entry, server))?;
                self.delete_if_there(server, partition, read_only).await?;
                sites.remove(site);
                if !sites.iter().any(|site| site.flags & vl::VLSF_ROVOL != 0) {
                    changed.flags &= !vl::VLF_ROEXISTS;
                }
            } else {
                self.delete_on_server(server, partition, backup).await?;
                changed.flags &= !vl::VLF_BACKEXISTS;
            }
            changed.sites = cellar_wire::List::from_iter_cut(sites);
            Ok(changed)
        }
        .await;
        let changed = match removed {
            Ok(changed) => changed,
            Err(error) => {
                self.unlock(volume).await?;
                return Err(error);
            }
        };
        let exist = vl::VLF_RWEXISTS | vl::VLF_ROEXISTS | vl::VLF_BACKEXISTS;
        let what = format!("Could not update the VLDB entry of volume {volume}");
        let voltype = vl::ANYVOL;
        let written = if changed.flags & exist == 0 {
            self.vl(
                &vl::DeleteEntry {
                    volid: volume,
                    voltype,
                },
                &what,
            )
            .await
            .map(|_| ())
        } else {
            let releasetype = vl::LOCKREL_TIMESTAMP | vl::LOCKREL_OPCODE | vl::LOCKREL_AFSID;
            let arguments = vl::ReplaceEntryN {
                volid: read_write,
                voltype: vl::RWVOL,
                newentry: changed,
                releasetype,
            };
            self.vl(&arguments, &what).await.map(|_| ())
        };
        written.map_err(|error| Error::Partial {
            what,
            cause: Box::new(error),
            left: format!(
                "The volume is gone from {server} {partition}; 'vos unlock {volume}' and removing \
                 it once more take it out of the VLDB"
            ),
        })
    }

    async fn delete_if_there(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
    ) -> Result<()> {
        match self.delete_on_server(server, partition, volume).await {
            Err(error) if is_missing(&error) => Ok(()),
            other => other,
        }
    }

    async fn delete_on_server(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
    ) -> Result<()> {
        let what = format!("Failed to delete volume {volume} on {server} {partition}");
        let arguments = afsvol::TransCreate {
            volume,
            partition: partition.number(),
            flags: afsvol::IT_OFFLINE,
        };
        let trans = self.server(server, &arguments, &what).await?.trans;
        let deleted = async {
            let flags = afsvol::VT_DELETE_ON_SALVAGE | afsvol::VT_OUT_OF_SERVICE;
            self.server(server, &afsvol::SetFlags { trans, flags }, &what)
                .await?;
            self.server(server, &afsvol::DeleteVolume { trans }, &what)
                .await?;
            Ok(())
        }
        .await;
        self.end(server, trans, &what).await?;
        deleted
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.code(), Some(AbortCode::VNOVOL | AbortCode::ENODEV))
}

fn wrong_site(entry: &vl::NvldbEntry, server: IpAddr) -> Error {
    let entry = entry_from_wire(entry);
    let sites: Vec<_> = entry
        .sites
        .iter()
        .map(|site| format!("{} {}", site.server, site.partition))
        .collect();
    Error::Usage(format!(
        "Volume {} is not on {server} there; the VLDB lists it on {}",
        entry.name,
        sites.join(", ")
    ))
}
