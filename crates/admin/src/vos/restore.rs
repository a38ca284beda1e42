//! Restoring a volume from a stream.
//!
//! 1. The head of the dump is read before anything changes. A stream that is no dump does no harm,
//!    and a dump of changes does not replace a volume.
//! 2. If a copy at another place has to be deleted, its server must answer.
//! 3. An incremental restore opens the existing volume. A full restore does so too if the server
//!    reads the whole dump before it replaces anything, so that a damaged dump does no harm. A
//!    Cellar server does that, unless the volume is a clone. In the other cases a full restore
//!    deletes the existing volume and creates a new one.
//! 4. The stream goes into the volume, which is off line during that time.
//! 5. The volume gets its name, ids and dates, and goes on line.
//! 6. The VLDB gets an entry or the new place. A copy at another place is deleted.
//!
//! After an interruption before the end of step 5, a new volume is deleted with its transaction,
//! and an existing one stays off line.

use bytes::Bytes;
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{self, RestoreCookie, VolserStatus};
use cellar_wire::dump::{DumpHeader, Item, Reader};
use cellar_wire::ids::{AfsTime, VolumeId};
use cellar_wire::vl::{Site, VLF_ROEXISTS, VLF_RWEXISTS, VLOP_DUMP, VLSF_ROVOL, VLSF_RWVOL};
use serde::Serialize;

use super::draft::Draft;
use super::job::JobContext;
use super::servers::unchanged;
use super::transaction::{Trans, name_record};
use super::{Location, VOLUME_NAME_BYTES_MAX, Volumes, has_suffix};
use crate::date::ctime;
use crate::error::{Error, Result};

/// The date that a restored volume gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DateChoice {
    /// The date in the dump.
    Dump,
    /// The date of the existing volume.
    Keep,
    /// The current time.
    #[default]
    New,
}

impl DateChoice {
    fn of(self, dump: AfsTime, old: AfsTime, now: AfsTime) -> AfsTime {
        match self {
            Self::Dump => dump,
            Self::Keep if old.0 != 0 => old,
            _ => now,
        }
    }
}

/// Options of [`Volumes::restore`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions {
    /// The id of the volume; default: the id in the entry, or a new one.
    pub id: Option<VolumeId>,
    /// The dump is applied to the existing volume instead of replacing it.
    pub incremental: bool,
    /// The volume stays off line.
    pub off_line: bool,
    /// The volume becomes a read-only volume.
    pub read_only: bool,
    /// Its creation date.
    pub creation: DateChoice,
    /// The date of its last update.
    pub last_update: DateChoice,
    /// A copy at another place in the VLDB is kept.
    pub keep_elsewhere: bool,
}

/// The volume that a restore creates or changes.
#[derive(Clone, Debug, Serialize)]
pub struct Restored {
    /// Its name on its server.
    pub name: String,
    /// Its id.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
}

/// The destination of a restore.
struct RestoreTarget {
    at: Location,
    volume: VolumeId,
    parent: VolumeId,
    /// The name in the volume's header.
    name: String,
    volume_type: i32,
}

/// The first pieces of a stream, up to the head of the dump.
struct Beginning {
    pieces: Vec<Bytes>,
    head: DumpHeader,
}

impl Beginning {
    async fn read(
        context: JobContext<'_>,
        source: &mut impl AsyncFnMut() -> std::io::Result<Option<Bytes>>,
    ) -> Result<Self> {
        let no_dump = |why: &str| Error::Usage(format!("This is no dump of a volume: {why}"));
        let mut reader = Reader::new();
        let mut pieces = Vec::new();
        while let Some(piece) = next(context, source).await? {
            reader.feed(&piece);
            pieces.push(piece);
            match reader.next_item() {
                Ok(Some(Item::Dump(head))) => return Ok(Self { pieces, head }),
                // The head is the first item.
                Ok(_) => {}
                Err(error) => return Err(no_dump(&error.to_string())),
            }
        }
        Err(no_dump("it ends too early"))
    }

    /// The date from which on the dump has changes; 0 if it is a full dump.
    fn since(&self) -> AfsTime {
        self.head.dates.first().map_or(AfsTime(0), |dates| dates.0)
    }
}

/// Refuses a text that cannot be the name of a restored volume.
///
/// # Errors
/// It is too long, or is the name of a read-only or backup volume.
pub fn check_restored_name(name: &str) -> Result<()> {
    if name.len() > VOLUME_NAME_BYTES_MAX {
        return Err(Error::Usage(format!(
            "the name of the volume {name} exceeds the size limit of {VOLUME_NAME_BYTES_MAX}"
        )));
    }
    if has_suffix(name) {
        return Err(Error::Usage(format!(
            "Illegal volume name {name}, should not end in .readonly or .backup"
        )));
    }
    Ok(())
}

/// The next piece of a stream.
async fn next(
    context: JobContext<'_>,
    source: &mut impl AsyncFnMut() -> std::io::Result<Option<Bytes>>,
) -> Result<Option<Bytes>> {
    context
        .or_stop(async { source().await.map_err(Error::Local) })
        .await
}

impl Volumes<'_> {
    /// The volume that a restore would create or change: its name with suffix, and its id.
    ///
    /// # Errors
    /// The name is not valid, or the entry has no volume of that type.
    pub async fn plan_restore(
        &self,
        name: &str,
        options: RestoreOptions,
    ) -> Result<(Restored, VolumeId)> {
        check_restored_name(name)?;
        let entry = match self.draft_of(name).await {
            Ok(draft) => Some(draft),
            Err(Error::NoSuchEntry(_)) => None,
            Err(error) => return Err(error),
        };
        // Otherwise the restore would replace the contents of another volume, under a name that its
        // entry does not have.
        if let Some(id) = options.id
            && entry.as_ref().is_none_or(|draft| {
                ![draft.read_write, draft.read_only, draft.backup].contains(&id)
            })
        {
            match self.raw_entry(id).await {
                Err(Error::NoSuchEntry(_)) => {}
                Err(error) => return Err(error),
                Ok(other) => {
                    return Err(Error::Usage(format!(
                        "Volume ID {id} is that of {}, and not of {name}",
                        other.name
                    )));
                }
            }
        }
        let (volume, parent) = match (&entry, options.read_only) {
            (None, _) => {
                let id = match options.id {
                    Some(id) => id,
                    None => {
                        let what = format!("Could not get an Id for the volume {name}");
                        self.new_volume_ids_for(1, &what).await?
                    }
                };
                (id, id)
            }
            (Some(draft), false) => {
                let id = options.id.unwrap_or(draft.read_write);
                (id, id)
            }
            (Some(draft), true) => {
                let id = match (options.id, draft.read_only) {
                    (Some(id), _) => id,
                    (None, VolumeId(0)) => {
                        return Err(Error::Usage(format!(
                            "Existing entry for volume {name} has no ReadOnly ID; -id gives one"
                        )));
                    }
                    (None, id) => id,
                };
                (id, draft.read_write)
            }
        };
        let name = if parent != volume && options.read_only {
            format!("{name}.readonly")
        } else {
            name.to_owned()
        };
        Ok((Restored { name, volume }, parent))
    }

    /// Restores the volume of [`Volumes::plan_restore`]. `source` returns the stream piece by
    /// piece, and `None` at its end.
    ///
    /// # Errors
    /// The stream is no dump, does not fit, or has only changes where a full dump is needed. The
    /// volume is busy, there is no space, the caller has no permission, or the source failed.
    pub async fn restore(
        &self,
        at: Location,
        plan: &(Restored, VolumeId),
        options: RestoreOptions,
        context: JobContext<'_>,
        mut source: impl AsyncFnMut() -> std::io::Result<Option<Bytes>>,
    ) -> Result<()> {
        let (Restored { name, volume }, parent) = plan;
        let target = RestoreTarget {
            at,
            volume: *volume,
            parent: *parent,
            name: name.clone(),
            volume_type: if options.read_only {
                afsvol::READONLY
            } else {
                afsvol::READWRITE
            },
        };
        let beginning = Beginning::read(context, &mut source).await?;
        let since = beginning.since();
        if since.0 != 0 && !options.incremental && self.is_there(at, *volume).await?.is_some() {
            return Err(Error::Usage(format!(
                "The dump has only the changes since {} and cannot replace {name}; '-overwrite \
                 incremental' applies it to a volume with the state of that date",
                ctime(since)
            )));
        }
        self.check_old_server(&target, options).await?;
        let (trans, old) = self.open_target(&target, options).await?;
        let mut first = beginning.pieces.into_iter();
        let whole = async || match first.next() {
            Some(piece) => Ok(Some(piece)),
            None => source().await,
        };
        let restored = self
            .fill(&trans, &target, &old, options, context, whole)
            .await;
        if restored.is_err() && old.volume.0 == 0 {
            let _deleted = trans.delete().await;
        }
        trans.finish(restored).await?;
        self.list_restored(&target, options).await
    }

    /// Refuses a restore that has to delete a copy at a server that does not answer. Otherwise the
    /// restored volume would have no entry, because step 6 would fail. OpenAFS's `vos` fails there.
    async fn check_old_server(
        &self,
        target: &RestoreTarget,
        options: RestoreOptions,
    ) -> Result<()> {
        if options.read_only || options.keep_elsewhere {
            return Ok(());
        }
        let draft = match self.draft(target.volume).await {
            Ok(draft) => draft,
            Err(Error::NoSuchEntry(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let listed = self.listed(target.at, &draft.sites).await?;
        let Some(old) = draft.read_write_at().filter(|old| *old != listed) else {
            return Ok(());
        };
        match self.is_there(old, target.volume).await {
            Err(Error::Refused { cause, .. }) if cause.is_unreachable() => {
                Err(Error::Usage(format!(
                    "{} has volume {} in the VLDB and does not answer, so the copy there cannot be deleted. \
                     Nothing was changed. If that server is lost, '-nodelete' restores the volume without it",
                    old.server, target.volume
                )))
            }
            // The deletion itself reports other errors.
            _ => Ok(()),
        }
    }

    /// Opens the volume to fill, and returns the status of the earlier volume. A volume number of 0
    /// means that the opened volume is new.
    async fn open_target(
        &self,
        target: &RestoreTarget,
        options: RestoreOptions,
    ) -> Result<(Trans<'_>, VolserStatus)> {
        let mut old = VolserStatus::default();
        if options.incremental || self.is_cellar(target.at.server).await {
            let there = self
                .begin_if_there(target.at, target.volume, afsvol::IT_OFFLINE)
                .await?;
            if let Some(trans) = there {
                let status = match trans.status().await {
                    Ok(status) => status,
                    Err(error) => return trans.finish(Err(error)).await,
                };
                if options.incremental || status.volume_type == afsvol::READWRITE {
                    return Ok((trans, status));
                }
                trans.finish(Ok(())).await?;
            }
        }
        if let Some(status) = self.delete_from(target.at, target.volume).await? {
            old = VolserStatus {
                volume: VolumeId(0),
                ..status
            };
        }
        let trans = self
            .begin_new(
                target.at,
                target.volume,
                &target.name,
                target.volume_type,
                target.parent,
            )
            .await?;
        Ok((trans, old))
    }

    async fn fill(
        &self,
        trans: &Trans<'_>,
        target: &RestoreTarget,
        old: &VolserStatus,
        options: RestoreOptions,
        context: JobContext<'_>,
        mut source: impl AsyncFnMut() -> std::io::Result<Option<Bytes>>,
    ) -> Result<()> {
        let what = format!("Failed to restore volume {}", target.volume);
        let refused = |cause: cellar_rpc::CallError| match cause.code().to_plain() {
            AbortCode::ENODEV => Error::Usage(format!(
                "{what}: the dump names objects that are not in the cell of {}, or that server uses no object \
                 storage. A dump that has the bytes can be restored there ('vos dump' without -metadataonly)",
                target.at.server
            )),
            _ => Error::refused(what.clone(), cause),
        };
        let arguments = afsvol::Restore {
            trans: trans.number,
            flags: 1,
            cookie: RestoreCookie {
                name: name_record(&target.name)?,
                volume_type: target.volume_type,
                clone: VolumeId(0),
                parent: target.parent,
            },
        };
        let connection = self.connection(target.at.server.into());
        let mut call = connection.open(&arguments).await.map_err(refused)?;
        while let Some(bytes) = next(context, &mut source).await? {
            let written = context
                .or_stop(async { call.write(bytes).await.map_err(refused) })
                .await;
            match written {
                Ok(()) => {}
                // The server has already answered; its answer is the error.
                Err(Error::Refused {
                    cause: cellar_rpc::CallError::AnsweredEarly,
                    ..
                }) => break,
                Err(error) => return Err(error),
            }
        }
        call.finish();
        let _reply: afsvol::RestoreReply = context
            .or_stop(async { call.results().await.map_err(refused) })
            .await?;
        let status = trans.status().await?;
        trans
            .set_ids(
                &target.name,
                target.volume_type,
                target.parent,
                old.clone,
                old.backup,
            )
            .await?;
        let now = AfsTime::from(std::time::SystemTime::now());
        let created = options
            .creation
            .of(status.creation_date, old.creation_date, now);
        let updated = options
            .last_update
            .of(status.update_date, old.update_date, now);
        let what = format!("Could not set the dates of volume {}", target.volume);
        let date = afsvol::SetDate {
            trans: trans.number,
            new_date: created.0 as i32,
        };
        trans.call(&date, &what).await?;
        let info = afsvol::SetInfo {
            trans: trans.number,
            info: afsvol::VolumeInfo {
                creation_date: created,
                update_date: updated,
                ..unchanged()
            },
        };
        trans.call(&info, &what).await?;
        let flags = if options.off_line {
            afsvol::VT_OUT_OF_SERVICE
        } else {
            0
        };
        trans.set_flags(flags).await
    }

    /// Step 6.
    async fn list_restored(&self, target: &RestoreTarget, options: RestoreOptions) -> Result<()> {
        let (exists, site) = if options.read_only {
            (VLF_ROEXISTS, VLSF_ROVOL)
        } else {
            (VLF_RWEXISTS, VLSF_RWVOL)
        };
        let own = Site {
            server: target.at.server.into(),
            partition: target.at.partition.number(),
            flags: site,
        };
        match self.draft(target.volume).await {
            Err(Error::NoSuchEntry(_)) => {
                let name = target
                    .name
                    .strip_suffix(".readonly")
                    .unwrap_or(&target.name);
                let mut entry = Draft::empty(name);
                entry.read_write = target.parent;
                if options.read_only {
                    entry.read_only = target.volume;
                }
                entry.flags = exists;
                entry.sites.push(own);
                return self.create_entry(&entry).await;
            }
            Err(error) => return Err(error),
            Ok(draft) => {
                let there = draft
                    .sites
                    .iter()
                    .any(|listed| target.at.is(listed) && listed.flags & site != 0);
                if there && draft.flags & exists != 0 {
                    return Ok(());
                }
            }
        }
        self.edit_entry(target.volume, VLOP_DUMP, "restore", async |draft| {
            let listed = self.listed(target.at, &draft.sites).await?;
            let index = if options.read_only {
                draft.read_only_site_at(listed)
            } else {
                draft.read_write_site()
            };
            draft.flags |= exists;
            match index.and_then(|index| draft.sites.get_mut(index)) {
                None => draft.sites.push(Site {
                    server: listed.server.into(),
                    ..own
                }),
                Some(site) => {
                    if let Some(old) = Location::of(site)
                        && old != listed
                        && !options.keep_elsewhere
                    {
                        self.delete_from(old, target.volume).await?;
                    }
                    site.server = listed.server.into();
                    site.partition = listed.partition.number();
                }
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}
