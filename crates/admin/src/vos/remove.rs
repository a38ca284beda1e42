//! Removing a volume from a site.
//!
//! 1. The entry is locked, so that nobody moves or releases the volume meanwhile.
//! 2. The volume server deletes the volume; for a read-write volume its backup volume too, which
//!    lives beside it.
//! 3. The entry loses the site, or is deleted with the last one. Either releases the lock.
//!
//! Interrupted between, the entry stays locked and names a volume that may be gone: removing it
//! once more, after `vos unlock`, finishes. A volume that the VLDB has where it is not is taken out of
//! the VLDB.

use std::net::IpAddr;

use cellar_wire::AbortCode;
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl::{VLF_BACKEXISTS, VLF_RWEXISTS, VLOP_DELETE};

use super::draft::Draft;
use super::{Location, Volumes};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Removes a volume from a server and partition, and from the VLDB.
    ///
    /// # Errors
    /// It is neither there nor listed there, its entry is locked, or the caller may not.
    pub async fn remove(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
    ) -> Result<()> {
        let at = Location::new(server, partition)?;
        match self.raw_entry(volume).await {
            Ok(_) => {}
            Err(Error::NoSuchEntry(_)) => return self.zap(at, volume, false).await,
            Err(error) => return Err(error),
        }
        self.edit_entry(volume, VLOP_DELETE, "remove", async |draft| {
            let listed = self.listed(at, &draft.sites).await?;
            if volume == draft.read_write {
                if draft.read_write_at() != Some(listed) {
                    return Err(wrong_site(draft, at));
                }
                self.delete_from(at, volume).await?;
                if draft.flags & VLF_BACKEXISTS != 0 {
                    self.delete_from(at, draft.backup).await?;
                }
                draft.sites.retain(|site| {
                    !listed.is(site) || site.flags & cellar_wire::vl::VLSF_RWVOL == 0
                });
                draft.flags &= !(VLF_RWEXISTS | VLF_BACKEXISTS);
            } else if volume == draft.read_only {
                let index = draft
                    .read_only_site_at(listed)
                    .ok_or_else(|| wrong_site(draft, at))?;
                self.delete_from(at, volume).await?;
                draft.sites.remove(index);
                draft.settle_read_only();
            } else {
                if self.delete_from(at, volume).await?.is_none() {
                    return Err(Error::refused(
                        format!("Failed to delete volume {volume} on {at}"),
                        cellar_rpc::CallError::Aborted(AbortCode::VNOVOL),
                    ));
                }
                draft.flags &= !VLF_BACKEXISTS;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}

fn wrong_site(draft: &Draft, at: Location) -> Error {
    let sites: Vec<_> = draft
        .sites
        .iter()
        .filter_map(|site| Location::of(site).map(|at| at.to_string()))
        .collect();
    Error::Usage(format!(
        "Volume {} is not on {at} there; the VLDB lists it on {}",
        draft.name,
        sites.join(", ")
    ))
}
