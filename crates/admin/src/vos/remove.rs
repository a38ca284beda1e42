//! Removing a volume from a site.
//!
//! 1. The entry is locked, so that no other operation moves or releases the volume meanwhile.
//! 2. The volume server deletes the volume. With a read-write volume it deletes the backup volume,
//!    which is on the same partition.
//! 3. The site is removed from the entry, or with the last site the entry is deleted. Both release
//!    the lock.
//!
//! After an interruption the entry is locked and may name a volume that is gone. `vos unlock` and
//! another removal finish the work. A volume that exists only in the VLDB is removed from there. A
//! volume that exists only on the server is deleted there, with a warning.

use std::net::IpAddr;

use cellar_rpc::CallError;
use cellar_wire::AbortCode;
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl::{VLF_BACKEXISTS, VLF_RWEXISTS, VLOP_DELETE, VLSF_RWVOL};

use super::{Location, Volumes};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Removes a volume from a server and partition, and from the VLDB. Returns warnings for the
    /// administrator.
    ///
    /// # Errors
    /// It is neither there nor listed there, its entry is locked, or the caller has no permission.
    pub async fn remove(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
    ) -> Result<Vec<String>> {
        let at = Location::new(server, partition)?;
        let mut warnings = Vec::new();
        match self.raw_entry(volume).await {
            Ok(_) => {}
            Err(Error::NoSuchEntry(_)) => {
                return match self.delete_from(at, volume).await? {
                    Some(_) => Ok(warnings),
                    None => Err(not_there(&format!("Volume {volume} does not exist"))),
                };
            }
            Err(error) => return Err(error),
        }
        let missing = || {
            not_there(&format!(
                "Volume {volume} does not exist on server and partition"
            ))
        };
        let unlisted =
            format!("WARNING: Volume {volume} does not exist in VLDB on server and partition");
        self.edit_entry(volume, VLOP_DELETE, "remove", async |draft| {
            let listed = self.listed(at, &draft.sites).await?;
            if volume == draft.read_write {
                if draft.read_write_at() != Some(listed) {
                    self.delete_from(at, volume).await?.ok_or_else(missing)?;
                    warnings.push(unlisted);
                    return Ok(());
                }
                self.delete_from(at, volume).await?;
                if draft.flags & VLF_BACKEXISTS != 0 {
                    self.delete_from(at, draft.backup).await?;
                }
                draft
                    .sites
                    .retain(|site| !listed.is(site) || site.flags & VLSF_RWVOL == 0);
                draft.flags &= !(VLF_RWEXISTS | VLF_BACKEXISTS);
                if draft.has_read_only() {
                    warnings.push("WARNING: ReadOnly copy(s) may still exist".to_owned());
                }
            } else if volume == draft.read_only {
                let Some(index) = draft.read_only_site_at(listed) else {
                    self.delete_from(at, volume).await?.ok_or_else(missing)?;
                    warnings.push(unlisted);
                    return Ok(());
                };
                self.delete_from(at, volume).await?;
                draft.sites.remove(index);
                draft.update_ro_exists();
            } else {
                self.delete_from(at, volume).await?.ok_or_else(missing)?;
                draft.flags &= !VLF_BACKEXISTS;
            }
            Ok(())
        })
        .await?;
        Ok(warnings)
    }
}

/// The error for a volume that is not at the given place.
fn not_there(what: &str) -> Error {
    Error::refused(what, CallError::Aborted(AbortCode::VOLSERNOVOL))
}
