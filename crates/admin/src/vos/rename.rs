//! Renaming a volume: first the entry, then each volume of its group at its place.
//!
//! The name in the VLDB is the valid one. If a server does not answer, its volume keeps the old
//! name in its header until the next release, backup or `vos rename`.

use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{VLF_BACKEXISTS, VLOP_DELETE, VLSF_DONTUSE};

use super::draft::Draft;
use super::{Location, Volumes, check_volume_name};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Renames a volume and its read-only and backup volumes. Returns the errors of servers that
    /// did not rename their volume.
    ///
    /// # Errors
    /// There is no such volume, the new name is taken or not valid, the entry is locked, or the
    /// caller has no permission.
    pub async fn rename(&self, old: &str, new: &str) -> Result<Vec<Error>> {
        let draft = self.draft_of(old).await.map_err(|error| match error {
            Error::NoSuchEntry(_) => {
                Error::Usage(format!("Could not find entry for volume {old}: {error}"))
            }
            other => other,
        })?;
        check_volume_name("the new volume name", new)?;
        if old.parse::<u32>().is_err() && old != draft.name {
            return Err(Error::Usage(format!(
                "Illegal volume name {old}, should not end in .readonly or .backup"
            )));
        }
        if let Ok(other) = self.draft_of(new).await
            && other.read_write != draft.read_write
        {
            return Err(Error::Usage(format!(
                "Cannot rename volume {old} ({}) to {new}; volume {new} ({}) already exists",
                draft.read_write, other.read_write
            )));
        }
        let renamed = self
            .edit_entry(draft.read_write, VLOP_DELETE, "rename", async |draft| {
                draft.name = new.to_owned();
                Ok(())
            })
            .await?;
        Ok(self.rename_volumes(&renamed).await)
    }

    async fn rename_volumes(&self, draft: &Draft) -> Vec<Error> {
        let mut failed = Vec::new();
        if let Some(at) = draft.read_write_at() {
            let name = draft.name.clone();
            failed.extend(self.name_volume(at, draft.read_write, &name).await.err());
            if draft.flags & VLF_BACKEXISTS != 0 {
                let name = format!("{}.backup", draft.name);
                failed.extend(self.name_volume(at, draft.backup, &name).await.err());
            }
        }
        let sites = draft.read_only_sites();
        for (_, site) in sites.filter(|(_, site)| site.flags & VLSF_DONTUSE == 0) {
            if let Some(at) = Location::of(site) {
                let name = format!("{}.readonly", draft.name);
                failed.extend(self.name_volume(at, draft.read_only, &name).await.err());
            }
        }
        failed
    }

    async fn name_volume(&self, at: Location, volume: VolumeId, name: &str) -> Result<()> {
        let Some(trans) = self.begin_if_there(at, volume, afsvol::IT_OFFLINE).await? else {
            return Ok(());
        };
        let named = async {
            let status = trans.status().await?;
            trans
                .set_ids(
                    name,
                    status.volume_type,
                    status.parent,
                    status.clone,
                    status.backup,
                )
                .await
        }
        .await;
        trans.finish(named).await
    }
}
