//! Copying a volume under another name, and keeping a shadow of it. Neither changes the original.
//!
//! 1. The source is cloned, so that its writers wait only for the clone. `-live` omits the clone.
//! 2. The destination is created, or an existing shadow is opened.
//! 3. The clone is sent, then the changes to the source since.
//! 4. The clone is removed. A copy gets an entry, a shadow does not.
//!
//! A failure before the end removes the clone and the new volume at the destination.

use cellar_wire::afsvol::{self, RestoreCookie};
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{Site, VLF_ROEXISTS, VLF_RWEXISTS, VLSF_ROVOL, VLSF_RWVOL};

use super::draft::Draft;
use super::job::JobContext;
use super::transaction::{Trans, name_record, with_margin};
use super::{Location, NEW_NAME, Volumes, check_volume_name};
use crate::error::{Error, Result};

/// The name of the temporary clone. Source: `vos copy`.
const TEMPORARY: &str = "copy-clone-temp";

/// Options of [`Volumes::clone_volume`].
#[derive(Clone, Debug)]
pub struct CloneOptions {
    /// The clone's name; default: the volume's with `.clone`.
    pub name: Option<String>,
    /// Its id; default: a new one.
    pub id: Option<VolumeId>,
    /// Its type: `READWRITE`, `READONLY` or `BACKUP`.
    pub volume_type: i32,
    /// The clone stays off line.
    pub off_line: bool,
}

/// Options of [`Volumes::copy_volume`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// The copy stays off line.
    pub off_line: bool,
    /// The copy is read-only.
    pub read_only: bool,
    /// The source is not cloned first.
    pub live: bool,
}

/// Options of [`Volumes::shadow_volume`].
#[derive(Clone, Debug, Default)]
pub struct ShadowOptions {
    /// The options of a copy.
    pub copy: CopyOptions,
    /// The shadow's name; default: the source's.
    pub name: Option<String>,
    /// Its id; default: the source's.
    pub id: Option<VolumeId>,
    /// An existing shadow gets only the changes since its last update.
    pub incremental: bool,
}

/// The volume to fill at the destination.
struct CopyTarget<'a> {
    at: Location,
    volume: VolumeId,
    name: &'a str,
    options: CopyOptions,
    incremental: bool,
}

impl Volumes<'_> {
    /// Copies a volume to another name. Returns the id of the copy.
    ///
    /// # Errors
    /// The name is taken or not valid, the volume is not there, the destination refuses, or the
    /// caller has no permission.
    pub async fn copy_volume(
        &self,
        volume: VolumeId,
        from: Location,
        to: Location,
        name: &str,
        options: CopyOptions,
        context: JobContext<'_>,
    ) -> Result<VolumeId> {
        self.check_new_name(name).await?;
        self.check_partition(from).await?;
        self.check_partition(to).await?;
        self.needed(from, volume).await?;
        let copy = self.new_volume_ids(1).await?;
        let target = CopyTarget {
            at: to,
            volume: copy,
            name,
            options,
            incremental: false,
        };
        self.send_copy(volume, from, &target, context).await?;
        let (flags, site) = if options.read_only {
            (VLF_ROEXISTS, VLSF_ROVOL)
        } else {
            (VLF_RWEXISTS, VLSF_RWVOL)
        };
        let mut entry = Draft::empty(name);
        entry.read_write = copy;
        if options.read_only {
            entry.read_only = copy;
        }
        entry.flags = flags;
        entry.sites.push(Site {
            server: to.server.into(),
            partition: to.partition.number(),
            flags: site,
        });
        match self.create_entry(&entry).await {
            Ok(()) => Ok(copy),
            Err(error) => {
                self.delete_from(to, copy).await?;
                Err(error)
            }
        }
    }

    /// Creates or updates a shadow of a volume: a copy with an id of its own and without an entry.
    /// Returns its id.
    ///
    /// # Errors
    /// The volume is not there, the destination refuses, or the caller has no permission.
    pub async fn shadow_volume(
        &self,
        volume: VolumeId,
        from: Location,
        to: Location,
        options: &ShadowOptions,
        context: JobContext<'_>,
    ) -> Result<VolumeId> {
        self.check_partition(from).await?;
        self.check_partition(to).await?;
        let own = self.needed(from, volume).await?.name;
        let name = match &options.name {
            Some(name) => {
                check_volume_name(NEW_NAME, name)?;
                name.clone()
            }
            None => own,
        };
        let shadow = options.id.unwrap_or(volume);
        if from == to && shadow == volume {
            return Err(Error::Usage(format!(
                "a shadow of volume {volume} beside it needs an id of its own: -toid"
            )));
        }
        let target = CopyTarget {
            at: to,
            volume: shadow,
            name: &name,
            options: options.copy,
            incremental: options.incremental,
        };
        self.send_copy(volume, from, &target, context).await?;
        Ok(shadow)
    }

    async fn send_copy(
        &self,
        volume: VolumeId,
        from: Location,
        target: &CopyTarget<'_>,
        context: JobContext<'_>,
    ) -> Result<()> {
        let clone = if target.options.live {
            None
        } else {
            let clone = self.new_volume_ids(1).await?;
            let source = self.begin(from, volume, afsvol::IT_BUSY).await?;
            let cloned = source.clone_to(afsvol::READONLY, TEMPORARY, clone).await;
            source.finish(cloned).await?;
            Some(clone)
        };
        let sent = self.fill_copy(volume, from, clone, target, context).await;
        if let Some(clone) = clone {
            let removed = self.delete_from(from, clone).await;
            return sent.and(removed.map(|_| ()));
        }
        sent
    }

    async fn fill_copy(
        &self,
        volume: VolumeId,
        from: Location,
        clone: Option<VolumeId>,
        target: &CopyTarget<'_>,
        context: JobContext<'_>,
    ) -> Result<()> {
        let (destination, base) = self.open_copy(target).await?;
        let made = base == 0;
        let filled = async {
            let cookie = RestoreCookie {
                name: name_record(target.name)?,
                volume_type: type_of(target.options),
                clone: VolumeId(0),
                parent: VolumeId(0),
            };
            let mut since = base;
            if let Some(clone) = clone {
                let image = self.begin(from, clone, afsvol::IT_OFFLINE).await?;
                let sent = async {
                    since = with_margin(image.status().await?.creation_date);
                    context
                        .or_stop(image.forward(base, &destination, &cookie))
                        .await
                }
                .await;
                image.finish(sent).await?;
            }
            let source = self.begin(from, volume, afsvol::IT_BUSY).await?;
            let sent = context
                .or_stop(source.forward(since, &destination, &cookie))
                .await;
            source.finish(sent).await?;
            let flags = if target.options.off_line {
                afsvol::VT_OUT_OF_SERVICE
            } else {
                0
            };
            destination.set_flags(flags).await
        }
        .await;
        if filled.is_err() && made {
            // The new volume is removed.
            let _deleted = destination.delete().await;
        }
        destination.finish(filled).await
    }

    /// Opens the destination. The date is that of its oldest missing change; 0 stands for
    /// everything.
    async fn open_copy(&self, target: &CopyTarget<'_>) -> Result<(Trans<'_>, u32)> {
        let existing = self
            .begin_if_there(target.at, target.volume, afsvol::IT_OFFLINE)
            .await?;
        if let Some(trans) = existing {
            if target.incremental {
                let status = trans.status().await;
                return match status {
                    Ok(status) => Ok((trans, with_margin(status.update_date).max(1))),
                    Err(error) => trans.finish(Err(error)).await,
                };
            }
            let deleted = trans.delete().await;
            trans.finish(deleted).await?;
        }
        let trans = self
            .begin_new(
                target.at,
                target.volume,
                target.name,
                type_of(target.options),
                target.volume,
            )
            .await?;
        Ok((trans, 0))
    }
}

fn type_of(options: CopyOptions) -> i32 {
    if options.read_only {
        afsvol::READONLY
    } else {
        afsvol::READWRITE
    }
}
