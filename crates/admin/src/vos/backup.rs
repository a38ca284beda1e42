//! Backup volumes, and clones that have no entry.

use cellar_wire::AbortCode;
use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{VLF_BACKEXISTS, VLOP_BACKUP};

use super::draft::{Draft, UNLOCK};
use super::job::{JobContext, Stop, Unwatched};
use super::transaction::{NAME_BYTES_MAX, Trans};
use super::{CloneOptions, Location, Volumes, is_number};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Creates the backup volume of a read-write volume, or replaces its contents. Returns its id.
    ///
    /// # Errors
    /// There is no such volume, the entry is locked, or the caller has no permission.
    pub async fn backup(&self, volume: &str) -> Result<VolumeId> {
        let stop = Stop::default();
        self.backup_in(volume, JobContext::new(&Unwatched, &stop))
            .await
    }

    /// [`Volumes::backup`] as a job. Its steps are `locked`, for a volume that had no backup
    /// volume, `cloned` and `opened`. It stops before the clone. The clone itself is one call of
    /// the server.
    ///
    /// # Errors
    /// As [`Volumes::backup`].
    pub async fn backup_in(&self, volume: &str, context: JobContext<'_>) -> Result<VolumeId> {
        let draft = self.draft_of(volume).await?;
        context.check()?;
        self.backup_of(draft, context).await
    }

    /// [`Volumes::backup`] of a volume whose entry is already known. This saves one call per
    /// volume.
    ///
    /// # Errors
    /// As [`Volumes::backup`].
    pub async fn backup_entry(&self, entry: &super::Entry) -> Result<VolumeId> {
        let draft = Draft {
            name: entry.name.clone(),
            read_write: entry.read_write,
            read_only: entry.read_only,
            backup: entry.backup,
            clone: entry.clone,
            flags: entry.flags,
            sites: entry
                .sites
                .iter()
                .filter_map(|site| {
                    let at = Location::new(site.server, site.partition).ok()?;
                    Some(cellar_wire::vl::Site {
                        server: at.server.into(),
                        partition: at.partition.number(),
                        flags: site.flags,
                    })
                })
                .collect(),
        };
        let stop = Stop::default();
        self.backup_of(draft, JobContext::new(&Unwatched, &stop))
            .await
    }

    async fn backup_of(&self, draft: Draft, context: JobContext<'_>) -> Result<VolumeId> {
        let name = &draft.name;
        let at = draft
            .read_write_at()
            .ok_or_else(|| Error::Usage(format!("Volume {name} has no RW volume to back up")))?;
        // If the entry already names the backup volume, it does not change and needs no lock. The
        // transaction on the volume excludes other operations.
        let listed =
            draft.flags & VLF_BACKEXISTS != 0 && draft.backup.0 != 0 && draft.operation() == 0;
        if listed {
            self.make_backup(at, &draft, context).await?;
            return Ok(draft.backup);
        }
        self.lock_for(draft.read_write, VLOP_BACKUP, "backup")
            .await?;
        let made = async {
            context.done("locked").await?;
            let mut draft = self.draft(draft.read_write).await?;
            if draft.backup.0 == 0 {
                draft.backup = self.new_volume_ids(1).await?;
            }
            let at = draft.read_write_at().unwrap_or(at);
            self.make_backup(at, &draft, context).await?;
            draft.flags |= VLF_BACKEXISTS;
            self.replace(&draft, UNLOCK).await?;
            Ok(draft.backup)
        }
        .await;
        self.unlock_after(draft.read_write, "backup", made).await
    }

    async fn make_backup(
        &self,
        at: Location,
        draft: &Draft,
        context: JobContext<'_>,
    ) -> Result<()> {
        let name = format!("{}.backup", draft.name);
        let backup = draft.backup;
        let trans = self.begin(at, draft.read_write, afsvol::IT_BUSY).await?;
        let cloned = match context.check() {
            Ok(()) => self.clone_or_renew(&trans, &name, backup).await,
            Err(stopped) => Err(stopped),
        };
        trans.finish(cloned).await?;
        context.passed("cloned", None).await;
        self.set_service(at, backup, true).await?;
        context.passed("opened", None).await;
        Ok(())
    }

    async fn clone_or_renew(&self, trans: &Trans<'_>, name: &str, backup: VolumeId) -> Result<()> {
        if self.is_there(trans.at, backup).await?.is_none() {
            trans.clone_to(afsvol::BACKUP, name, backup).await
        } else {
            trans.reclone(backup).await
        }
    }

    /// Clones a volume on its partition, without an entry. Returns the id of the clone.
    ///
    /// # Errors
    /// There is no such volume there, the id is taken, or the caller has no permission.
    pub async fn clone_volume(
        &self,
        at: Location,
        volume: VolumeId,
        options: &CloneOptions,
    ) -> Result<VolumeId> {
        let name = match &options.name {
            Some(name) => {
                check_clone_name(name)?;
                name.clone()
            }
            None => {
                let info = self
                    .volume_on(at.server.into(), at.partition, volume, false)
                    .await?;
                let mut name = info.name;
                name.truncate(NAME_BYTES_MAX - ".clone".len());
                format!("{name}.clone")
            }
        };
        let clone = match options.id {
            Some(id) => id,
            None => self.new_volume_ids(1).await?,
        };
        let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
        // If the clone exists, it gets the new contents.
        let there = match options.id {
            Some(id) => self.is_there(at, id).await,
            None => Ok(None),
        };
        let cloned = match there {
            Ok(Some(_)) => trans.reclone(clone).await,
            Ok(None) => trans.clone_to(options.volume_type, &name, clone).await,
            Err(error) => Err(error),
        };
        let cloned = cloned.map_err(|error| match error.code() {
            Some(AbortCode::EXDEV) => Error::Usage(format!(
                "{error}. Clone volume is not in the same partition as the read-write volume."
            )),
            _ => error,
        });
        trans.finish(cloned).await?;
        if !options.off_line {
            self.set_service(at, clone, true).await?;
        }
        Ok(clone)
    }
}

/// Refuses a text that cannot be the name of a clone.
fn check_clone_name(name: &str) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::Usage(format!(
            "the name of the root volume {name} exceeds the size limit of {NAME_BYTES_MAX}"
        )));
    }
    if is_number(name) {
        return Err(Error::Usage(format!(
            "Illegal volume name {name}, should not be a number"
        )));
    }
    Ok(())
}
