//! Moving a read-write volume to another server or partition, while clients use it.
//!
//! The job, step by step:
//!
//! 1. `locked`: the entry is locked for a move.
//! 2. `cleaned`: what an earlier move left is gone (see below).
//! 3. A large volume is sent from a temporary clone first, so that writers wait only for what they
//!    changed meanwhile: `cloned`, `created`, `copied`. A small one is sent as it is: `created`.
//! 4. `sent`: the destination has everything. From step 3 or here on clients of the source wait (VBUSY).
//! 5. `closed`: both copies are complete and out of service, whoever dies now.
//! 6. `committed`: the VLDB names the destination and is unlocked. Before this the source is the volume,
//!    after it the destination; at no moment are both in service.
//! 7. `opened`: the destination is on line. At the same time
//! 8. `deleted`: the source, its backup volume and the temporary clone are gone.
//!
//! The next run of the same move reads which copy the VLDB names. If it is the source, the other one is
//! removed, the source brought on line and the move begun anew; if it is the destination, steps 7 and
//! 8 are done. An error and a request to stop take the same way back.

use cellar_wire::afsvol::{self, RestoreCookie, VolserStatus};
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{VLF_BACKEXISTS, VLOP_MOVE};
use serde::Serialize;

use super::draft::{Draft, UNLOCK};
use super::job::Course;
use super::release::MOVE_TEMPORARY;
use super::transaction::{Trans, name_record, with_margin};
use super::{Location, VolumeState, VolumeType, Volumes};
use crate::error::{Error, Result};

/// A volume of at most so many KiB is sent without cloning it first: its writers wait some tenths of a
/// second.
const SMALL_KIB: u32 = 8 * 1024;

/// How to move.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveOptions {
    /// Never clone (`-live`): writers wait all the while.
    pub live: bool,
}

/// What came of a move.
#[derive(Clone, Debug, Serialize)]
pub struct Moved {
    /// The volume.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Where it was.
    pub from: Location,
    /// Where it is.
    pub to: Location,
    /// Whether an earlier move was only finished.
    pub finished: bool,
}

impl<'a> Volumes<'a> {
    /// Moves a read-write volume from one place to another.
    ///
    /// # Errors
    /// It is not there, somebody has it locked, or the destination has no room or refuses; the volume
    /// is where it was then. [`Error::Partial`] if a server was lost on the way: the same move once more
    /// finishes.
    pub async fn move_volume(
        &self,
        volume: &str,
        from: Location,
        to: Location,
        options: MoveOptions,
        course: Course<'_>,
    ) -> Result<Moved> {
        let draft = self.draft_of(volume).await?;
        let read_write = draft.read_write;
        self.check_move(&draft, from, to).await?;
        let why = format!("move to {to}");
        self.lock_or_take_over(&draft, VLOP_MOVE, &why, &[from, to], course)
            .await?;
        let draft = self.draft(read_write).await;
        let job = Job {
            volumes: *self,
            course,
            options,
            draft: self.unlock_after(read_write, &why, draft).await?,
            from,
            to,
        };
        job.run().await
    }
}

impl Volumes<'_> {
    /// Refuses what cannot be moved, before anything is begun.
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

    /// A volume that is not where it is to be moved from: only an earlier move that was cut off is
    /// a reason to go on, and one leaves a lock, a copy that is off line, or a transaction.
    async fn check_finished(&self, draft: &Draft, from: Location, to: Location) -> Result<()> {
        let volume = draft.read_write;
        let error = match self.needed(from, volume).await {
            // It came meanwhile.
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
    course: Course<'a>,
    options: MoveOptions,
    draft: Draft,
    from: Location,
    to: Location,
}

/// The two copies, each in its transaction.
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
            Ok(()) => self.course.passed("committed", None).await,
            Err(error) => {
                let _ended = copies.destination.end().await;
                let _ended = copies.source.end().await;
                // What was not acknowledged may still come true: the entry is written as it was, and
                // only when that is acknowledged is the destination none.
                if let Err(second) = self.volumes.replace(&self.draft, 0).await {
                    return Err(self.stuck(error, &second));
                }
                return Err(self.back(error, clone).await);
            }
        }
        self.settle(copies, clone)
            .await
            .map_err(|error| Error::Partial {
                what: format!("Move of volume {volume} to {}", self.to),
                cause: Box::new(error),
                left:
                    "The volume is moved in the VLDB; the same command once more brings it on line \
                   and removes what is left of the old copy"
                        .to_owned(),
            })?;
        Ok(self.moved(false))
    }

    /// Steps 1 and 2. Answers the id of the clone to make, if one is wanted.
    async fn prepare(&mut self) -> Result<Option<VolumeId>> {
        self.course.done("locked").await?;
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
            // An earlier move closed it; the VLDB says that it is the volume.
            self.volumes.set_service(from, volume, true).await?;
        }
        self.volumes
            .remove_temporaries(&self.draft, from, info.clone)
            .await?;
        self.course.done("cleaned").await?;
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
                self.course.done("created").await?;
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
        self.course.done("cloned").await?;
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
            self.course.done("created").await?;
            let sent = image.forward(0, &destination, &cookie);
            self.course.or_stop(sent).await?;
            self.course.done("copied").await
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
        self.course.or_stop(sent).await?;
        self.course.done("sent").await
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
        self.course.done("closed").await
    }

    /// Step 6. When the VLDB does not answer, what it says now decides.
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
    async fn settle(&self, copies: Copies<'_>, clone: Option<VolumeId>) -> Result<()> {
        let Copies {
            source,
            destination,
        } = copies;
        // Both are complete, and the VLDB names one: neither has to wait for the other.
        let open = async {
            let on_line = destination.set_flags(0).await;
            destination.finish(on_line).await?;
            self.course.passed("opened", None).await;
            Ok(())
        };
        // The old volume goes last: its header leads to what else is to go.
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
            self.course.passed("deleted", None).await;
            Ok(())
        };
        let (opened, deleted) = tokio::join!(open, delete);
        opened.and(deleted)
    }

    /// Tells clients that ask the old server where the volume is.
    async fn forward_clients(&self, source: &Trans<'_>) -> Result<()> {
        let what = format!("Failed to set the forwarding of volume {}", source.volume);
        let arguments = afsvol::SetForwarding {
            trans: source.number,
            new_site: u32::from(self.to.server),
        };
        source.call(&arguments, &what).await?;
        Ok(())
    }

    /// Removes the backup volume beside the source, and the temporary clone.
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

    /// Removes a backup volume if it is one of the volume. Lists of OpenAFS's servers say nothing of one
    /// that a dead client marked for removal and did not remove: its header is looked at.
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

    /// The VLDB names the destination: an earlier move came so far. Steps 7 and 8.
    async fn finish_earlier(&self) -> Result<Moved> {
        let volume = self.draft.read_write;
        let finished = async {
            self.course.done("locked").await?;
            let there = self
                .volumes
                .volume_on(self.to.server.into(), self.to.partition, volume, false)
                .await?;
            let old = self.volumes.is_there(self.from, volume).await?;
            // Also where both are as they should be: who died before it ended its last transaction
            // would keep everybody from the volume for minutes.
            let both = [self.from, self.to];
            self.volumes
                .end_orphans(&self.draft, &both, self.course)
                .await?;
            if !there.in_use {
                self.volumes.set_service(self.to, volume, true).await?;
            }
            self.course.passed("opened", None).await;
            let clone = old.as_ref().map_or(VolumeId(0), |old| old.clone);
            self.volumes
                .remove_temporaries(&self.draft, self.from, clone)
                .await?;
            let backup = old.as_ref().map_or(VolumeId(0), |old| old.backup);
            self.remove_rest(backup, None).await?;
            if old.is_some() {
                self.volumes.remove_stray(self.from, volume).await?;
            }
            self.course.passed("deleted", None).await;
            Ok(())
        }
        .await;
        let unlocked = self.volumes.unlock(volume).await;
        finished.and(unlocked)?;
        Ok(self.moved(true))
    }

    /// The VLDB names the source: it is brought back, and everything else removed.
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
            // Whatever the destination says, the source comes back.
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
            Err(second) => self.stuck(error, &second),
        }
    }

    fn stuck(&self, error: Error, second: &Error) -> Error {
        let volume = self.draft.read_write;
        Error::Partial {
            what: format!("Move of volume {volume} from {} to {}", self.from, self.to),
            cause: Box::new(error),
            left: format!(
                "It could not be undone wholly ({second}). The copy that the VLDB names is the volume; \
                 the same command once more goes on, and 'vos examine {volume}' shows it"
            ),
        }
    }
}

impl Volumes<'_> {
    /// Removes a read-write volume from where the VLDB does not have it, if a copy is there.
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
