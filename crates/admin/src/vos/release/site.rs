//! One site of a release: it gets the image as its volume.

use std::sync::Mutex;

use cellar_wire::AbortCode;
use cellar_wire::afsvol::{self, RestoreCookie};
use cellar_wire::ids::{AfsTime, VolumeId};
use cellar_wire::vl::{Site, VLSF_DONTUSE};

use super::super::job::JobContext;
use super::super::transaction::{Trans, is_missing, name_record, with_margin};
use super::super::{Location, Volumes};
use super::{Job, Plan};
use crate::error::{Error, Result};

/// The state that every site should reach.
pub(super) struct ReleaseTarget<'a> {
    volumes: Volumes<'a>,
    context: JobContext<'a>,
    name: String,
    volume: VolumeId,
    parent: VolumeId,
    sites: Vec<Site>,
    full: bool,
    resumed: bool,
    read_write_created: AfsTime,
    read_write_updated: AfsTime,
    /// Indexes of sites whose volumes were taken out of service and are incomplete, because their
    /// replacement on an OpenAFS server was interrupted.
    pub(super) spoilt: Mutex<Vec<usize>>,
}

impl<'a> ReleaseTarget<'a> {
    pub(super) fn new(job: &Job<'a>, plan: &Plan) -> Self {
        Self {
            volumes: job.volumes,
            context: job.context,
            name: format!("{}.readonly", job.draft.name),
            volume: job.draft.read_only,
            parent: job.draft.read_write,
            sites: job.before.sites.clone(),
            full: job.options.full,
            resumed: plan.resumed,
            read_write_created: plan.image.read_write_created,
            read_write_updated: plan.image.read_write_updated,
            spoilt: Mutex::default(),
        }
    }

    /// Step 5 for the site with that index.
    pub(super) async fn update(&self, index: usize, source: &Trans<'_>) -> Result<()> {
        let site = self.sites.get(index).copied().unwrap_or_default();
        let at = Location::of(&site)
            .ok_or_else(|| Error::Usage(format!("{} is not a partition", site.partition)))?;
        let cellar = self.volumes.is_cellar(at.server).await;
        // The call that opens the transaction is not interrupted: that would leave a transaction
        // whose number is unknown.
        self.context.check()?;
        let opened = self.open(at, cellar).await?;
        let (trans, from_date) = match opened {
            None => (self.create(at).await?, None),
            Some(trans) => match self.base(&trans, &site, cellar).await {
                Ok(date) => (trans, Some(date)),
                Err(error) => return trans.finish(Err(error)).await,
            },
        };
        let filled = self.fill(source, &trans, from_date, cellar, at).await;
        match (filled, from_date) {
            (Ok(()), _) => self.finished(trans, at).await,
            (Err(error), Some(_)) if is_wrong_base(&error) => {
                self.context.say(&format!(
                    "the volume on {at} cannot be brought up to date and is replaced: {error}"
                ));
                let deleted = trans.delete().await;
                trans.finish(deleted).await?;
                let trans = self.create(at).await?;
                match self.fill(source, &trans, None, cellar, at).await {
                    Ok(()) => self.finished(trans, at).await,
                    Err(error) => self.take_back(trans, error).await,
                }
            }
            (Err(error), Some(_)) => {
                if !cellar && let Ok(mut spoilt) = self.spoilt.lock() {
                    spoilt.push(index);
                }
                trans.finish(Err(error)).await
            }
            (Err(error), None) => self.take_back(trans, error).await,
        }
    }

    async fn create(&self, at: Location) -> Result<Trans<'a>> {
        let (name, parent) = (&self.name, self.parent);
        self.volumes
            .begin_new(at, self.volume, name, afsvol::READONLY, parent)
            .await
    }

    async fn finished(&self, trans: Trans<'_>, at: Location) -> Result<()> {
        trans.end().await?;
        self.context.passed("finished", Some(at)).await;
        Ok(())
    }

    /// Deletes the volume that was created for this release.
    async fn take_back(&self, trans: Trans<'_>, error: Error) -> Result<()> {
        let _deleted = trans.delete().await;
        trans.finish(Err(error)).await
    }

    /// Opens the site's volume. On a Cellar server its clients read on until it is replaced.
    async fn open(&self, at: Location, cellar: bool) -> Result<Option<Trans<'a>>> {
        let flags = if cellar {
            afsvol::IT_BUSY
        } else {
            afsvol::IT_OFFLINE
        };
        match self.volumes.begin(at, self.volume, flags).await {
            Ok(trans) => Ok(Some(trans)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The date of the oldest change that the site's volume may lack; 0 for everything.
    async fn base(&self, trans: &Trans<'_>, site: &Site, cellar: bool) -> Result<u32> {
        let status = trans.status().await?;
        if status.volume_type != afsvol::READONLY || status.parent != self.parent {
            return Err(Error::Usage(format!(
                "{} has a volume {} that is not the read-only one; 'vos zap' removes it",
                trans.at, self.volume
            )));
        }
        // An OpenAFS server that was interrupted while it replaced a volume has a mixed volume with
        // the old date.
        let known = cellar || !self.resumed && site.flags & VLSF_DONTUSE == 0;
        let same_volume =
            self.read_write_created.0 != 0 && self.read_write_created <= status.creation_date;
        // After a restore to an older state, new changes may have older dates.
        let went_back = self.read_write_updated < status.update_date;
        if self.full || !known || !same_volume || went_back {
            return Ok(0);
        }
        Ok(with_margin(status.update_date))
    }

    async fn fill(
        &self,
        source: &Trans<'_>,
        trans: &Trans<'_>,
        from_date: Option<u32>,
        cellar: bool,
        at: Location,
    ) -> Result<()> {
        if from_date.is_some() && !cellar {
            // If the client or a server dies now, no client must read an incomplete volume.
            trans.set_flags(afsvol::VT_OUT_OF_SERVICE).await?;
        }
        self.context.done_at("opened", Some(at)).await?;
        let cookie = RestoreCookie {
            name: name_record(&self.name)?,
            volume_type: afsvol::READONLY,
            clone: VolumeId(0),
            parent: self.parent,
        };
        let sent = source.forward(from_date.unwrap_or(0), trans, &cookie);
        self.context.or_stop(sent).await?;
        self.context.done_at("sent", Some(at)).await?;
        trans
            .set_ids(
                &self.name,
                afsvol::READONLY,
                self.parent,
                VolumeId(0),
                VolumeId(0),
            )
            .await?;
        trans.set_flags(0).await
    }
}

/// Whether the server refused a dump of changes because its volume is not the base of that dump.
/// The volume was changed on its own, or beside a read-write volume that was left there.
fn is_wrong_base(error: &Error) -> bool {
    let code = error.code();
    code == Some(afsvol::WRONG_BASE) || code == Some(AbortCode::VOLSERREAD_DUMPERROR)
}
