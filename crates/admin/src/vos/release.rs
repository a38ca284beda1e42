//! Releasing a volume: every read-only site gets the present state of the read-write volume.
//!
//! The job, step by step. Brackets show the marks in the VLDB after the step.
//!
//! 1. `locked`: the entry is locked for a release.
//! 2. `cleaned`: the remains of an earlier release beside the read-write volume are removed.
//! 3. `cloned`: the image to release exists. If a site is on the read-write volume's partition, the
//!    image is that site's read-only volume. Else it is a temporary clone.
//! 4. `marked`, only in the first case: that site has the release. [that site NEW, the others
//!    DONTUSE]
//! 5. For each other site, all at once: `opened`, `sent`, `finished`. Clients of a site see either
//!    its old volume or its new one.
//! 6. `recorded`, whenever sites have finished: clients use these sites, and no old one. [NEW on
//!    them, DONTUSE on the rest]
//! 7. `tidied`: the temporary clone is removed.
//! 8. The marks and the lock are removed. If a site could not be reached, the marks stay and tell a
//!    later run what to do. [NEW on the updated sites, DONTUSE on the others] They also stay while
//!    a temporary clone could not be removed.
//!
//! [`ReleaseOptions::resume`] continues a release after any of these steps. It sends the same
//! image, from the clone or from an updated site, to the other sites. If no site has the release
//! yet, it starts again from step 2. A plain release always does.
//!
//! The marks are those of OpenAFS's `vos release`, so each program continues the other's releases.

mod image;
mod site;

use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{VLF_ROEXISTS, VLOP_RELEASE, VLSF_DONTUSE, VLSF_NEWREPSITE};
use serde::Serialize;

use super::draft::{Draft, UNLOCK};
use super::job::JobContext;
use super::{Entry, Location, VOLUME_NAME_BYTES_MAX, Volumes};
use crate::error::{Error, Result};
use image::Image;
pub(super) use image::MOVE_TEMPORARY;

/// Options of [`Volumes::release`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReleaseOptions {
    /// Send all data, even if the sites should have it already (`-force`).
    pub full: bool,
    /// Continue a release that did not reach every site (`--resume`).
    pub resume: bool,
}

/// The result for one site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteOutcome {
    /// The site.
    pub at: Location,
    /// The reason why it does not have the release; none if it has.
    pub error: Option<String>,
}

/// The result of a release.
#[derive(Clone, Debug, Serialize)]
pub struct Released {
    /// The volume.
    pub name: String,
    /// Whether this run continued an earlier release.
    pub resumed: bool,
    /// The sites that this run was for, in the order of the entry. Empty if there was no release to
    /// continue.
    pub sites: Vec<SiteOutcome>,
    /// Whether the VLDB says that `--resume` still has work to do.
    pub unfinished: bool,
}

impl Released {
    /// Whether every site has the release.
    pub fn is_complete(&self) -> bool {
        self.sites.iter().all(|site| site.error.is_none())
    }
}

impl Volumes<'_> {
    /// Releases a volume to its read-only sites. An unreachable site does not delay the others; the
    /// result names it.
    ///
    /// # Errors
    /// Nothing was released, because the volume has no sites, is locked, or its server cannot clone
    /// it. Or the VLDB does not take the record of what was released.
    pub async fn release(
        &self,
        volume: &str,
        options: ReleaseOptions,
        context: JobContext<'_>,
    ) -> Result<Released> {
        let draft = self.draft_of(volume).await?;
        check(&draft)?;
        if options.resume && !needs_resuming(&draft) {
            return Ok(Released {
                name: draft.name,
                resumed: true,
                sites: Vec::new(),
                unfinished: false,
            });
        }
        let read_write = draft.read_write;
        if options.resume {
            self.lock_or_take_over(&draft, VLOP_RELEASE, "release --resume", &[], context)
                .await?;
        } else {
            self.lock_for(read_write, VLOP_RELEASE, "release").await?;
        }
        let draft = self.draft(read_write).await.and_then(|draft| {
            check(&draft)?;
            Ok(draft)
        });
        let draft = self.unlock_after(read_write, "release", draft).await?;
        let mut job = Job {
            volumes: *self,
            context,
            options,
            before: draft.clone(),
            draft,
            written: false,
            spoilt: Vec::new(),
        };
        job.run().await
    }

    /// The volumes whose last release is incomplete or was interrupted.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn unfinished_releases(&self) -> Result<Vec<Entry>> {
        let entries = self.entries(super::EntryFilter::default()).await?;
        let unfinished = |entry: &Entry| {
            let new = |site: &super::Site| site.flags & VLSF_NEWREPSITE != 0;
            entry.flags & VLOP_RELEASE != 0 || entry.sites.iter().any(new)
        };
        Ok(entries.into_iter().filter(unfinished).collect())
    }
}

/// Refuses an entry that cannot be released.
fn check(draft: &Draft) -> Result<()> {
    let name = &draft.name;
    if name.len() > VOLUME_NAME_BYTES_MAX {
        return Err(Error::Usage(format!(
            "Volume name {name} is too long, rename before releasing"
        )));
    }
    if draft.read_write_at().is_none() {
        return Err(Error::Usage(format!(
            "Volume {name} has no read-write site to release from"
        )));
    }
    if !draft.has_read_only() {
        return Err(Error::Usage(format!(
            "Volume {} has no replicas - release operation is meaningless! 'vos addsite' adds one. VOLSER: illegal \
             operation",
            draft.read_write
        )));
    }
    Ok(())
}

/// Whether a release of the volume is incomplete.
fn needs_resuming(draft: &Draft) -> bool {
    let marked = |site: &cellar_wire::vl::Site| site.flags & VLSF_NEWREPSITE != 0;
    draft.sites.iter().any(marked) || draft.operation() & VLOP_RELEASE != 0
}

/// A release under way.
struct Job<'a> {
    volumes: Volumes<'a>,
    context: JobContext<'a>,
    options: ReleaseOptions,
    /// The entry before this run.
    before: Draft,
    /// The entry with the changes of this run.
    draft: Draft,
    /// Whether the VLDB has any of these changes.
    written: bool,
    /// Sites whose old volumes are no longer usable.
    spoilt: Vec<usize>,
}

/// The work of a run: the image, and the sites that need it.
struct Plan {
    image: Image,
    /// Indexes of sites in the entry.
    sites: Vec<usize>,
    /// Whether this continues an earlier release.
    resumed: bool,
}

impl Job<'_> {
    async fn run(&mut self) -> Result<Released> {
        let plan = match self.prepare().await {
            Ok(plan) => plan,
            Err(error) => return Err(self.undo(error).await),
        };
        let sites = self.push(&plan).await;
        let name = self.draft.name.clone();
        let tidy = self.volumes.dismiss(&plan.image).await;
        if let Err(error) = &tidy {
            self.context.say(&format!(
                "the temporary clone {} could not be removed: {error}. 'vos release {name} --resume' \
                 removes it",
                plan.image.volume
            ));
        }
        self.context.passed("tidied", None).await;
        match self.finish(&plan, tidy.is_ok()).await {
            Ok(()) => Ok(Released {
                name,
                resumed: plan.resumed,
                sites,
                unfinished: needs_resuming(&Draft {
                    flags: 0,
                    ..self.draft.clone()
                }),
            }),
            Err(error) => Err(Error::Partial {
                what: format!("Release of volume {name}"),
                cause: Box::new(error),
                left: format!(
                    "Its entry is locked and does not show yet what was released; 'vos release {name} \
                     --resume' continues"
                ),
            }),
        }
    }

    /// Steps 1 to 4.
    async fn prepare(&mut self) -> Result<Plan> {
        self.context.done("locked").await?;
        if self.options.resume
            && let Some(plan) = self.plan_to_resume().await?
        {
            return Ok(plan);
        }
        let image = self
            .volumes
            .make_image(&mut self.draft, self.context)
            .await?;
        let rest = self.mark(&image).await;
        match rest {
            Ok(()) => {}
            Err(error) => {
                // If the removal fails, the next run finds the image.
                let _gone = self.volumes.dismiss(&image).await;
                return Err(error);
            }
        }
        let mine = image.site;
        let sites = self.draft.read_only_sites();
        let sites = sites
            .map(|(index, _)| index)
            .filter(|index| Some(*index) != mine);
        Ok(Plan {
            sites: sites.collect(),
            image,
            resumed: false,
        })
    }

    /// Marks all old sites as not to be used, for the time when the first new one is.
    async fn mark(&mut self, image: &Image) -> Result<()> {
        let sites: Vec<_> = self
            .draft
            .read_only_sites()
            .map(|(index, _)| index)
            .collect();
        for index in sites {
            self.draft.set(index, VLSF_DONTUSE, VLSF_NEWREPSITE);
        }
        if let Some(read_write) = self.draft.read_write_site() {
            self.draft.set(read_write, VLSF_NEWREPSITE, VLSF_DONTUSE);
        }
        if let Some(index) = image.site {
            self.draft.set(index, VLSF_NEWREPSITE, VLSF_DONTUSE);
            self.draft.clone = image.volume;
            self.write().await?;
            self.context.done("marked").await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        self.draft.update_ro_exists();
        self.written = true;
        self.volumes.replace(&self.draft, 0).await
    }

    /// Steps 5 and 6. If the VLDB cannot record a site at once, step 8 does.
    async fn push(&mut self, plan: &Plan) -> Vec<SiteOutcome> {
        // IT_BUSY lets the clients of the image continue to read.
        let (at, volume) = (plan.image.at, plan.image.volume);
        let source = match self.volumes.begin(at, volume, afsvol::IT_BUSY).await {
            Ok(source) => source,
            Err(error) => {
                let outcomes = plan.sites.iter().filter_map(|index| {
                    Some(SiteOutcome {
                        at: Location::of(self.draft.sites.get(*index)?)?,
                        error: Some(error.to_string()),
                    })
                });
                return outcomes.collect();
            }
        };
        let target = site::ReleaseTarget::new(self, plan);
        let (sender, mut finished) = tokio::sync::mpsc::channel(plan.sites.len().max(1));
        let updates = plan.sites.iter().map(|index| {
            let (sender, target, source) = (sender.clone(), &target, &source);
            async move {
                let done = target.update(*index, source).await;
                // The receiver waits until all senders are gone.
                let _sent = sender.send((*index, done)).await;
            }
        });
        let updates = futures_util::future::join_all(updates.collect::<Vec<_>>());
        drop(sender);
        let mut outcomes = Vec::new();
        let record = async {
            while let Some(first) = finished.recv().await {
                let mut batch = vec![first];
                while let Ok(next) = finished.try_recv() {
                    batch.push(next);
                }
                let mut any = false;
                for (index, done) in batch {
                    if done.is_ok() {
                        self.draft.set(index, VLSF_NEWREPSITE, VLSF_DONTUSE);
                        self.draft.flags |= VLF_ROEXISTS;
                        any = true;
                    }
                    let error = done.err().map(|error| error.to_string());
                    outcomes.push((index, error));
                }
                if any {
                    if let Err(error) = self.write().await {
                        self.context.say(&format!(
                            "the VLDB does not know yet which sites have the release: {error}"
                        ));
                    }
                    self.context.passed("recorded", None).await;
                }
            }
        };
        tokio::join!(updates, record);
        // The sites have the image, whether or not this transaction ends well.
        let _ended = source.end().await;
        self.spoilt = target.spoilt.into_inner().unwrap_or_default();
        outcomes.sort_by_key(|(index, _)| *index);
        let outcome = |(index, error): (usize, Option<String>)| {
            Some(SiteOutcome {
                at: Location::of(self.draft.sites.get(index)?)?,
                error,
            })
        };
        outcomes.into_iter().filter_map(outcome).collect()
    }

    /// Step 8.
    async fn finish(&mut self, plan: &Plan, tidy: bool) -> Result<()> {
        let done = self
            .draft
            .read_only_sites()
            .filter(|(_, site)| Draft::is_new(site))
            .count();
        let all = self.draft.read_only_sites().count();
        if done == 0 && self.spoilt.is_empty() {
            return self.restore().await;
        }
        if done == 0 {
            // No site has the release, and at least one has lost its old volume. The mark of the
            // read-write site records that.
            self.draft.sites.clone_from(&self.before.sites);
            if let Some(read_write) = self.draft.read_write_site() {
                self.draft.set(read_write, VLSF_NEWREPSITE, VLSF_DONTUSE);
            }
            for index in std::mem::take(&mut self.spoilt) {
                self.draft.set(index, VLSF_DONTUSE, VLSF_NEWREPSITE);
            }
        }
        if done == all && tidy {
            for index in 0..self.draft.sites.len() {
                self.draft.set(index, 0, VLSF_NEWREPSITE | VLSF_DONTUSE);
            }
        }
        // A clone that is kept is the volume of a site.
        self.draft.clone = match plan.image.site {
            Some(_) if done < all => plan.image.volume,
            None if !tidy => plan.image.volume,
            _ => VolumeId(0),
        };
        self.draft.update_ro_exists();
        self.volumes.replace(&self.draft, UNLOCK).await
    }

    /// Restores the old entry and releases the lock.
    async fn restore(&mut self) -> Result<()> {
        let before = Draft {
            read_only: self.draft.read_only,
            ..self.before.clone()
        };
        if !self.written && self.draft.read_only == self.before.read_only {
            self.volumes.unlock(self.draft.read_write).await?;
        } else {
            self.volumes.replace(&before, UNLOCK).await?;
        }
        self.draft = before;
        Ok(())
    }

    /// Ends a run that released nothing: releases the lock. If that fails, the error says what to
    /// do.
    async fn undo(&mut self, error: Error) -> Error {
        // A site on the read-write volume's partition may already have the new image.
        let undone = if self.written {
            self.volumes.unlock(self.draft.read_write).await
        } else {
            self.restore().await
        };
        match undone {
            Ok(()) => error,
            Err(_) => Error::Partial {
                what: format!("Release of volume {}", self.draft.name),
                cause: Box::new(error),
                left: format!(
                    "Its VLDB entry stays locked; 'vos release {} --resume' continues",
                    self.draft.name
                ),
            },
        }
    }
}
