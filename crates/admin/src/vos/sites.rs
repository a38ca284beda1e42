//! The sites of an entry: adding, removing and changing them, and making a read-only volume the
//! read-write one.
//!
//! Only the conversion changes a volume. The other operations change the VLDB, to correct it or to
//! prepare the next release.

use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{
    SITES_MAX, Site, VLF_BACKEXISTS, VLF_ROEXISTS, VLF_RWEXISTS, VLOP_DELETE, VLOP_MOVE,
    VLSF_DONTUSE, VLSF_NEWREPSITE, VLSF_ROVOL, VLSF_RWVOL,
};

use super::{Location, Volumes};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Adds a read-only site for the next release to fill. `valid` says that the site already has
    /// the volume. Returns a warning for the administrator, if there is one.
    ///
    /// # Errors
    /// The server has one, the entry is full or locked, or the caller has no permission.
    pub async fn add_site(
        &self,
        volume: &str,
        at: Location,
        read_only: Option<VolumeId>,
        valid: bool,
    ) -> Result<Option<String>> {
        self.check_partition(at).await?;
        let id = self.draft_of(volume).await?.read_write;
        let mut warning = None;
        self.edit_entry(id, VLOP_DELETE, "addsite", async |draft| {
            let at = self.listed(at, &draft.sites).await?;
            if draft.sites.len() >= SITES_MAX {
                return Err(Error::Usage(format!(
                    "Volume {volume} already has {SITES_MAX} sites, the maximum"
                )));
            }
            let same_server = draft
                .read_only_sites()
                .filter_map(|(_, site)| Location::of(site))
                .find(|there| there.server == at.server);
            if let Some(there) = same_server {
                return Err(Error::Usage(format!(
                    "RO already exists on partition {}. Multiple ROs on a single server aren't allowed: VOLSER: \
                     illegal operation",
                    there.partition
                )));
            }
            match read_only {
                Some(id) if draft.read_only.0 == 0 => {
                    if self.raw_entry(id).await.is_ok() {
                        return Err(Error::Usage(format!("Volume ID {id} already exists")));
                    }
                    draft.read_only = id;
                }
                Some(id) if id != draft.read_only => {
                    warning = Some(format!(
                        "Ignoring given RO id {id}, since volume already has RO id {}",
                        draft.read_only
                    ));
                }
                _ => {}
            }
            let flags = if valid {
                VLSF_ROVOL
            } else {
                VLSF_ROVOL | VLSF_DONTUSE
            };
            draft.sites.push(Site {
                server: at.server.into(),
                partition: at.partition.number(),
                flags,
            });
            if valid {
                draft.flags |= VLF_ROEXISTS;
            }
            Ok(())
        })
        .await?;
        Ok(warning)
    }

    /// Removes a read-only site. The volume stays on its server. Returns the read-write id.
    ///
    /// # Errors
    /// There is no such site, the entry is locked, or the caller has no permission.
    pub async fn remove_site(&self, volume: &str, at: Location) -> Result<VolumeId> {
        let id = self.draft_of(volume).await?.read_write;
        self.edit_entry(id, VLOP_DELETE, "remsite", async |draft| {
            let at = self.listed(at, &draft.sites).await?;
            let index = draft.read_only_site_at(at).ok_or_else(|| {
                Error::Usage(format!(
                    "This site is not a replication site ({at} of volume {volume}): VOLSER: illegal operation"
                ))
            })?;
            draft.sites.remove(index);
            draft.update_ro_exists();
            Ok(())
        })
        .await?;
        Ok(id)
    }

    /// Changes the location of the read-write volume in the VLDB.
    ///
    /// # Errors
    /// The entry has none, is locked, or the caller has no permission.
    pub async fn change_location(&self, volume: &str, at: Location) -> Result<()> {
        let id = self.draft_of(volume).await?.read_write;
        self.edit_entry(id, VLOP_DELETE, "changeloc", async |draft| {
            let index = draft.read_write_site().ok_or_else(|| {
                Error::Usage(format!(
                    "VLDB entry for volume {volume} does not contain a RW volume"
                ))
            })?;
            if let Some(site) = draft.sites.get_mut(index) {
                site.server = at.server.into();
                site.partition = at.partition.number();
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// The location of a group's read-write volume in the VLDB, which a conversion would replace.
    ///
    /// # Errors
    /// There is no such entry.
    pub async fn read_write_at(&self, volume: &str) -> Result<Option<Location>> {
        Ok(self.draft_of(volume).await?.read_write_at())
    }

    /// Makes the read-only volume at a place the read-write volume of its group. The VLDB forgets
    /// the old read-write volume. If that still exists, it is not deleted.
    ///
    /// # Errors
    /// There is no such volume, it is busy, the entry is locked, or the caller has no permission.
    pub async fn convert_to_read_write(&self, volume: &str, at: Location) -> Result<()> {
        let draft = self.draft_of(volume).await?;
        let (id, read_only) = (draft.read_write, draft.read_only);
        let listed = self.listed(at, &draft.sites).await?;
        self.edit_entry(id, VLOP_MOVE, "convertROtoRW", async |draft| {
            let what = format!("Converting RO volume {read_only} to RW volume on {at} failed");
            let arguments = afsvol::ConvertROtoRWvolume {
                partition: at.partition.number(),
                volume: read_only,
            };
            self.server(at.server.into(), &arguments, &what).await?;
            let old = draft.read_write_site();
            match draft.read_only_site_at(listed) {
                Some(index) => draft.set(index, VLSF_RWVOL, !VLSF_RWVOL),
                None => draft.sites.push(Site {
                    server: listed.server.into(),
                    partition: listed.partition.number(),
                    flags: VLSF_RWVOL,
                }),
            }
            if let Some(old) = old {
                draft.sites.swap_remove(old);
            }
            draft.flags |= VLF_RWEXISTS;
            draft.flags &= !(VLF_BACKEXISTS | VLF_ROEXISTS);
            let released = draft
                .read_only_sites()
                .any(|(_, site)| site.flags & (VLSF_DONTUSE | VLSF_NEWREPSITE) == 0);
            if released {
                draft.flags |= VLF_ROEXISTS;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}
