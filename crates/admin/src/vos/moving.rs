//! Moving a read-write volume to another server or partition, while clients use it.
//!
//! The job, step by step:
//!
//! 1. `locked`: the entry is locked for a move.
//! 2. `cleaned`: the remains of an earlier move are removed (see below).
//! 3. A large volume is first sent from a temporary clone, so that writers wait only while the
//!    changes since are sent: `cloned`, `created`, `copied`. A small volume is sent directly:
//!    `created`.
//! 4. `sent`: the destination is complete. Clients of the source wait (VBUSY) from here, or from
//!    step 3 on.
//! 5. `closed`: both copies are complete and out of service, even if any party dies now.
//! 6. `committed`: the VLDB names the destination and is unlocked. Before this step the source is
//!    the volume, after it the destination. The two are never in service at the same time.
//! 7. `opened`: the destination is on line. At the same time:
//! 8. `deleted`: the source, its backup volume and the temporary clone are removed.
//!
//! The next run of the same move reads which copy the VLDB names. If that is the source, it removes
//! the other copy, brings the source on line and starts the move again. If it is the destination,
//! it does steps 7 and 8. After an error or a request to stop, the job also removes the other copy
//! and brings the source on line.

use cellar_wire::afsvol::{self, RestoreCookie, VolserStatus};
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{VLF_BACKEXISTS, VLOP_MOVE};
use serde::Serialize;

use super::draft::{Draft, UNLOCK};
use super::job::JobContext;
use super::release::MOVE_TEMPORARY;
use super::transaction::{Trans, name_record, with_margin};
use super::{Location, VolumeState, VolumeType, Volumes};
use crate::error::{Error, Result};

/// A volume of at most this many KiB is sent without a clone: its writers wait some tenths of a
/// second.
const SMALL_KIB: u32 = 8 * 1024;

/// Options of [`Volumes::move_volume`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveOptions {
    /// Never clone (`-live`): writers wait during the whole move.
    pub live: bool,
}

/// The result of a move.
#[derive(Clone, Debug, Serialize)]
pub struct Moved {
    /// The volume.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// The source.
    pub from: Location,
    /// The destination.
    pub to: Location,
    /// Whether this run only finished an earlier move.
    pub finished: bool,
    /// The backup volume at the source, which a move removes; none if there was none.
    #[serde(serialize_with = "crate::json::volume_id_if_any")]
    pub backup_removed: Option<VolumeId>,
}

impl<'a> Volumes<'a> {
    /// Moves a read-write volume from one place to another.
    ///
    /// # Errors
    /// The volume is not there, its entry is locked, or the destination has no space or refuses.
    /// The volume is then at its old place. [`Error::Partial`] if a server became unreachable
    /// during the move: the same move, run again, finishes it.
    pub async fn move_volume(
        &self,
        volume: &str,
        from: Location,
        to: Location,
        options: MoveOptions,
        context: JobContext<'_>,
    ) -> Result<Moved> {
        let draft = self.draft_of(volume).await?;
        let read_write = draft.read_write;
        self.check_move(&draft, from, to).await?;
        let why = format!("move to {to}");
        self.lock_or_take_over(&draft, VLOP_MOVE, &why, &[from, to], context)
            .await?;
        let draft = self.draft(read_write).await;
        let draft = self.unlock_after(read_write, &why, draft).await?;
        let backup = match draft.backup {
            VolumeId(0) => None,
            backup => self.is_there(from, backup).await.ok().flatten(),
        };
        let job = Job {
            volumes: *self,
            context,
            options,
            draft,
            from,
            to,
        };
        let mut moved = job.run().await?;
        moved.backup_removed = backup.map(|backup| backup.id);
        Ok(moved)
    }
}

impl Volumes<'_> {
    /// Refuses an impossible move, before it changes anything.
    async fn check_move(&self, draft: &Draft, from: Location, to: Location) -> Result<()> {
        self.check_partition(from).await?;
        self.check_partition(to).await?;
        let volume = draft.read_write;
        if self.is_there(from, volume).await?.is_none() {
            return self.check_finished(draft, from, to).await;
        }
        if from == to {
            return Err(Error::Usage(format!(
                "Warning: Moving volume {volume} to its home partition ignored! VOLSER: volume has moved"
            )));
        }
        let there = self.on_other_partition(to, volume).await;
        match there.filter(|there| *there != from) {
            Some(there) => Err(Error::Usage(format!(
                "Volume {volume} cannot be moved to {to}: a volume of that id is on {there} already, and a server \
                 has one; 'vos zap {} {} {volume}' removes it",
                there.server, there.partition
            ))),
            None => Ok(()),
        }
    }

    /// Checks a move whose source does not exist. The only reason to continue is an earlier move
    /// that was interrupted: it leaves a lock, a copy that is off line, or a transaction.
    async fn check_finished(&self, draft: &Draft, from: Location, to: Location) -> Result<()> {
        let volume = draft.read_write;
        let error = match self.needed(from, volume).await {
            // The volume arrived since the first check.
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if draft.read_write_at() != Some(to) || from == to {
            let at = draft.read_write_at();
            let at = at.map_or("nowhere".to_owned(), |at| at.to_string());
            return Err(Error::Usage(format!("{error}; the VLDB has it on {at}")));
        }
        let whole = self
            .is_there(to, volume)
            .await?
            .is_some_and(|info| info.in_use);
        let servers = [from.server, to.server];
        if whole
            && draft.operation() & VLOP_MOVE == 0
            && !self.has_transactions(&servers, volume).await
        {
            return Err(Error::Usage(format!("{error}; it is on {to} already")));
        }
        Ok(())
    }
}

struct Job<'a> {
    volumes: Volumes<'a>,
    context: JobContext<'a>,
    options: MoveOptions,
    draft: Draft,
    from: Location,
    to: Location,
}

/// The two copies, each with its transaction.
struct Copies<'a> {
    source: Trans<'a>,
    destination: Trans<'a>,
}

impl Job<'_> {
    fn moved(&self, finished: bool) -> Moved {
        Moved {
            volume: self.draft.read_write,
            name: self.draft.name.clone(),
            from: self.from,
            to: self.to,
            finished,
            backup_removed: None,
        }
    }

    async fn run(mut self) -> Result<Moved> {
        let volume = self.draft.read_write;
        match self.draft.read_write_at() {
            Some(at) if at == self.to => return self.finish_earlier().await,
            Some(at) if at == self.from => {}
            other => {
                self.volumes.unlock(volume).await?;
                let at = other.map_or("nowhere".to_owned(), |at| at.to_string());
                return Err(Error::Usage(format!(
                    "Volume {} is not on {}; the VLDB has it on {at}",
                    self.draft.name, self.from
                )));
            }
        }
        let clone = match self.prepare().await {
            Ok(clone) => clone,
            Err(error) => return Err(self.back(error, None).await),
        };
        let copies = match self.copy(clone).await {
            Ok(copies) => copies,
            Err(error) => return Err(self.back(error, clone).await),
        };
        if let Err(error) = self.close(&copies).await {
            let _ended = copies.destination.end().await;
            let _ended = copies.source.end().await;
            return Err(self.back(error, clone).await);
        }
        match self.commit().await {
            Ok(()) => self.context.passed("committed", None).await,
            Err(error) => {
                let _ended = copies.destination.end().await;
                let _ended = copies.source.end().await;
                // An unacknowledged change may still take effect later. Therefore the old entry is
                // written once more. Only its acknowledgement makes sure that the destination is
                // not the volume.
                if let Err(second) = self.volumes.replace(&self.draft, 0).await {
                    return Err(self.partial_move(error, &second));
                }
                return Err(self.back(error, clone).await);
            }
        }
        self.finish_move(copies, clone)
            .await
            .map_err(|error| Error::Partial {
                what: format!("Move of volume {volume} to {}", self.to),
                cause: Box::new(error),
                left:
                    "The VLDB names the new place. Repeat the command: it brings the volume on line \
                   there and removes the rest of the old copy"
                        .to_owned(),
            })?;
        Ok(self.moved(false))
    }

    /// Steps 1 and 2. Returns the id for the clone, if one is needed.
    async fn prepare(&mut self) -> Result<Option<VolumeId>> {
        self.context.done("locked").await?;
        let (volume, from, to) = (self.draft.read_write, self.from, self.to);
        let (info, space, stray) = tokio::join!(
            self.volumes
                .volume_on(from.server.into(), from.partition, volume, false),
            self.volumes.partition_space(to.server.into(), to.partition),
            self.volumes.remove_stray(to, volume),
        );
        let (info, space) = (info?, space?);
        stray?;
        if space.free_kib <= i64::from(info.size_kib) {
            return Err(Error::Usage(format!(
                "no space on target partition {to} to move volume {volume}: it needs {} KiB and {} are \
                 free",
                info.size_kib, space.free_kib
            )));
        }
        if !info.in_use {
            // An earlier move took the source out of service; the VLDB says that it is the volume.
            self.volumes.set_service(from, volume, true).await?;
        }
        self.volumes
            .remove_temporaries(&self.draft, from, info.clone)
            .await?;
        self.context.done("cleaned").await?;
        if self.options.live || info.size_kib <= SMALL_KIB {
            return Ok(None);
        }
        self.volumes.new_volume_ids(1).await.map(Some)
    }

    /// Steps 3 and 4.
    async fn copy(&self, clone: Option<VolumeId>) -> Result<Copies<'_>> {
        let (volume, from, to) = (self.draft.read_write, self.from, self.to);
        let cookie = RestoreCookie {
            name: name_record(&self.draft.name)?,
            volume_type: afsvol::READWRITE,
            clone: VolumeId(0),
            parent: volume,
        };
        let create = || {
            self.volumes
                .begin_new(to, volume, &self.draft.name, afsvol::READWRITE, volume)
        };
        let Some(clone) = clone else {
            let source = self.volumes.begin(from, volume, afsvol::IT_BUSY).await?;
            let destination = match create().await {
                Ok(destination) => destination,
                Err(error) => return source.finish(Err(error)).await,
            };
            let copies = Copies {
                source,
                destination,
            };
            let sent = async {
                self.context.done("created").await?;
                self.send(&copies, 0, &cookie).await
            }
            .await;
            return self.opened(copies, sent).await;
        };
        let source = self.volumes.begin(from, volume, afsvol::IT_BUSY).await?;
        let cloned = source
            .clone_to(afsvol::READONLY, MOVE_TEMPORARY, clone)
            .await;
        source.finish(cloned).await?;
        self.context.done("cloned").await?;
        let image = self.volumes.begin(from, clone, afsvol::IT_OFFLINE).await?;
        let created = async {
            let since = with_margin(image.status().await?.creation_date);
            Ok((since, create().await?))
        }
        .await;
        let (since, destination) = match created {
            Ok(created) => created,
            Err(error) => return image.finish(Err(error)).await,
        };
        let copied = async {
            self.context.done("created").await?;
            let sent = image.forward(0, &destination, &cookie);
            self.context.or_stop(sent).await?;
            self.context.done("copied").await
        }
        .await;
        let source = match image.finish(copied).await {
            Ok(()) => self.volumes.begin(from, volume, afsvol::IT_BUSY).await,
            Err(error) => Err(error),
        };
        let source = match source {
            Ok(source) => source,
            Err(error) => return destination.finish(Err(error)).await,
        };
        let copies = Copies {
            source,
            destination,
        };
        let sent = self.send(&copies, since, &cookie).await;
        self.opened(copies, sent).await
    }

    async fn send(&self, copies: &Copies<'_>, since: u32, cookie: &RestoreCookie) -> Result<()> {
        let sent = copies.source.forward(since, &copies.destination, cookie);
        self.context.or_stop(sent).await?;
        self.context.done("sent").await
    }

    async fn opened<'c>(&self, copies: Copies<'c>, sent: Result<()>) -> Result<Copies<'c>> {
        match sent {
            Ok(()) => Ok(copies),
            Err(error) => {
                let _ended = copies.destination.end().await;
                copies.source.finish(Err(error)).await
            }
        }
    }

    /// Step 5.
    async fn close(&self, copies: &Copies<'_>) -> Result<()> {
        let (destination, source) = tokio::join!(
            copies.destination.set_flags(afsvol::VT_OUT_OF_SERVICE),
            copies.source.set_flags(afsvol::VT_OUT_OF_SERVICE),
        );
        destination.and(source)?;
        self.context.done("closed").await
    }

    /// Step 6. If the call fails, the entry that the VLDB now has decides.
    async fn commit(&self) -> Result<()> {
        let mut moved = self.draft.clone();
        if let Some(index) = moved.read_write_site()
            && let Some(site) = moved.sites.get_mut(index)
        {
            site.server = self.to.server.into();
            site.partition = self.to.partition.number();
        }
        moved.flags &= !VLF_BACKEXISTS;
        let Err(error) = self.volumes.replace(&moved, UNLOCK).await else {
            return Ok(());
        };
        match self.volumes.draft(self.draft.read_write).await {
            Ok(now) if now.read_write_at() == Some(self.to) => Ok(()),
            _ => Err(error),
        }
    }

    /// Steps 7 and 8.
    async fn finish_move(&self, copies: Copies<'_>, clone: Option<VolumeId>) -> Result<()> {
        let Copies {
            source,
            destination,
        } = copies;
        // Both copies are complete, and the VLDB names one: the two tasks are independent.
        let open = async {
            let on_line = destination.set_flags(0).await;
            destination.finish(on_line).await?;
            self.context.passed("opened", None).await;
            Ok(())
        };
        // The old volume is deleted last, because its header names the other volumes to delete.
        let delete = async {
            let deleted = async {
                let status = source.status().await?;
                if self.from.server != self.to.server {
                    self.forward_clients(&source).await?;
                }
                self.remove_rest(status.backup, clone).await?;
                source.delete_closed().await
            }
            .await;
            source.finish(deleted).await?;
            self.context.passed("deleted", None).await;
            Ok(())
        };
        let (opened, deleted) = tokio::join!(open, delete);
        opened.and(deleted)
    }

    /// Tells the old server the new place, for clients that still ask it.
    async fn forward_clients(&self, source: &Trans<'_>) -> Result<()> {
        let what = format!("Failed to set the forwarding of volume {}", source.volume);
        let arguments = afsvol::SetForwarding {
            trans: source.number,
            // In the order of OpenAFS's vos on little-endian machines.
            new_site: u32::from(self.to.server).swap_bytes(),
        };
        source.call(&arguments, &what).await?;
        Ok(())
    }

    /// Removes the source's backup volume and the temporary clone.
    async fn remove_rest(&self, backup: VolumeId, clone: Option<VolumeId>) -> Result<()> {
        let mut backups = vec![backup, self.draft.backup];
        backups.dedup();
        for backup in backups.into_iter().filter(|backup| backup.0 != 0) {
            self.remove_backup(backup).await?;
        }
        if let Some(clone) = clone {
            self.volumes.delete_from(self.from, clone).await?;
        }
        Ok(())
    }

    /// Removes a backup volume if it belongs to the moved volume. An OpenAFS server does not list a
    /// backup volume that a dead client marked for removal but did not remove. Therefore this
    /// function reads its header.
    async fn remove_backup(&self, backup: VolumeId) -> Result<()> {
        let Some(info) = self.volumes.is_there(self.from, backup).await? else {
            return Ok(());
        };
        let volume = self.draft.read_write;
        if info.state == VolumeState::Ok && info.parent != volume {
            return Ok(());
        }
        let ours = async |_: &Trans<'_>, status: &VolserStatus| {
            Ok(status.volume_type == afsvol::BACKUP && status.parent == volume)
        };
        self.volumes.delete_if(self.from, backup, ours).await
    }

    /// Steps 7 and 8 of an earlier move, after which the VLDB names the destination.
    async fn finish_earlier(&self) -> Result<Moved> {
        let volume = self.draft.read_write;
        let finished = async {
            self.context.done("locked").await?;
            let there = self
                .volumes
                .volume_on(self.to.server.into(), self.to.partition, volume, false)
                .await?;
            let old = self.volumes.is_there(self.from, volume).await?;
            // This happens even if both copies are as they should be. A client that died before it
            // ended its last transaction would otherwise block the volume for minutes.
            let both = [self.from, self.to];
            self.volumes
                .end_orphans(&self.draft, &both, self.context)
                .await?;
            if !there.in_use {
                self.volumes.set_service(self.to, volume, true).await?;
            }
            self.context.passed("opened", None).await;
            let clone = old.as_ref().map_or(VolumeId(0), |old| old.clone);
            self.volumes
                .remove_temporaries(&self.draft, self.from, clone)
                .await?;
            let backup = old.as_ref().map_or(VolumeId(0), |old| old.backup);
            self.remove_rest(backup, None).await?;
            if old.is_some() {
                self.volumes.remove_stray(self.from, volume).await?;
            }
            self.context.passed("deleted", None).await;
            Ok(())
        }
        .await;
        let unlocked = self.volumes.unlock(volume).await;
        finished.and(unlocked)?;
        Ok(self.moved(true))
    }

    /// Goes back, if the VLDB names the source: brings it on line, and removes everything else.
    async fn back(&self, error: Error, clone: Option<VolumeId>) -> Error {
        let volume = self.draft.read_write;
        let undone = async {
            let named = self.volumes.draft(volume).await?.read_write_at();
            if named != Some(self.from) {
                return Err(Error::Usage(format!(
                    "the VLDB has the volume on {} now",
                    named.map_or("no server".to_owned(), |at| at.to_string())
                )));
            }
            // The source comes back even if the destination refuses.
            let removed = self.volumes.remove_stray(self.to, volume).await;
            let info = self.volumes.is_there(self.from, volume).await?;
            if info.is_some_and(|info| !info.in_use) {
                self.volumes.set_service(self.from, volume, true).await?;
            }
            if let Some(clone) = clone {
                self.volumes.delete_from(self.from, clone).await?;
            }
            self.volumes.unlock(volume).await?;
            removed
        }
        .await;
        match undone {
            Ok(()) => error,
            Err(second) => self.partial_move(error, &second),
        }
    }

    fn partial_move(&self, error: Error, second: &Error) -> Error {
        let volume = self.draft.read_write;
        Error::Partial {
            what: format!("Move of volume {volume} from {} to {}", self.from, self.to),
            cause: Box::new(error),
            left: format!(
                "The move could not be undone completely ({second}). The copy that the VLDB names is \
                 the valid one; 'vos examine {volume}' shows it. Repeat the command to continue"
            ),
        }
    }
}

impl Volumes<'_> {
    /// Removes the copy of a read-write volume at a place that the VLDB does not name, if there is
    /// one.
    async fn remove_stray(&self, at: Location, volume: VolumeId) -> Result<()> {
        match self.is_there(at, volume).await? {
            None => Ok(()),
            Some(info)
                if info.r#type == VolumeType::ReadWrite || info.r#type == VolumeType::Unknown =>
            {
                self.delete_from(at, volume).await.map(|_| ())
            }
            Some(info) => Err(Error::Usage(format!(
                "{at} has a volume {volume} named {} that is no read-write volume; 'vos zap' removes it",
                info.name
            ))),
        }
    }
}
