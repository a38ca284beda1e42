//! The image that a release sends: a clone of the read-write volume as it was at one moment.

use cellar_wire::afsvol::{self, VolserStatus};
use cellar_wire::ids::{AfsTime, VolumeId};
use cellar_wire::vl::VLSF_NEWREPSITE;

use super::super::draft::Draft;
use super::super::job::JobContext;
use super::super::transaction::Trans;
use super::super::{Location, VolumeInfo, VolumeState, Volumes};
use super::{Job, Plan};
use crate::error::{Error, Result};

/// The name of a release's temporary clone. Source: `vos release`, which removes it too.
const TEMPORARY: &str = "readonly-clone-temp";
/// The name of a move's temporary clone.
pub(in super::super) const MOVE_TEMPORARY: &str = "move-clone-temp";

/// The image of a release.
pub(super) struct Image {
    pub(super) at: Location,
    pub(super) volume: VolumeId,
    /// The index of the site whose volume it is.
    pub(super) site: Option<usize>,
    /// The image is removed at the end of the release.
    pub(super) temporary: bool,
    /// Creation date of the read-write volume. A site whose volume is older has another volume's
    /// contents.
    pub(super) read_write_created: AfsTime,
    /// Date of the last change of the read-write volume. A site whose volume has a later change has
    /// another history.
    pub(super) read_write_updated: AfsTime,
}

impl Volumes<'_> {
    /// Steps 2 and 3: clones the read-write volume.
    pub(super) async fn make_image(
        &self,
        draft: &mut Draft,
        context: JobContext<'_>,
    ) -> Result<Image> {
        let at = draft
            .read_write_at()
            .ok_or_else(|| Error::Usage(format!("Volume {} has no read-write site", draft.name)))?;
        if draft.read_only.0 == 0 {
            draft.read_only = self.new_volume_ids(1).await?;
            self.replace(draft, 0).await?;
        }
        let site = draft.read_only_site_at(at);
        let of_header = self
            .is_there(at, draft.read_write)
            .await?
            .map_or(VolumeId(0), |info| info.clone);
        self.remove_temporaries(draft, at, of_header).await?;
        context.done("cleaned").await?;
        // A temporary clone can use the read-only id, unless the server has the read-only volume on
        // another partition.
        let same_server = |(_, site): (usize, &cellar_wire::vl::Site)| {
            Location::of(site).is_some_and(|there| there.server == at.server)
        };
        let volume = match site {
            None if draft.read_only_sites().any(same_server) => self.new_volume_ids(1).await?,
            _ => draft.read_only,
        };
        let mut image = Image {
            at,
            volume,
            site,
            temporary: site.is_none(),
            read_write_created: AfsTime(0),
            read_write_updated: AfsTime(0),
        };
        let trans = self.begin(at, draft.read_write, afsvol::IT_BUSY).await?;
        let name = match site {
            Some(_) => format!("{}.readonly", draft.name),
            None => TEMPORARY.to_owned(),
        };
        let cloned = async {
            let status = trans.status().await?;
            if site.is_some() {
                self.renew_clone(&trans, &name, volume).await?;
            } else {
                trans.clone_to(afsvol::READONLY, &name, volume).await?;
            }
            Ok(status)
        }
        .await;
        let status = trans.finish(cloned).await?;
        image.read_write_created = status.creation_date;
        image.read_write_updated = status.update_date;
        let next = async {
            if site.is_some() {
                self.set_service(at, volume, true).await?;
            }
            context.done("cloned").await
        }
        .await;
        match next {
            Ok(()) => Ok(image),
            Err(error) => {
                // If the removal fails, the next run finds the image.
                let _gone = self.dismiss(&image).await;
                Err(error)
            }
        }
    }

    /// Makes the read-only volume beside the read-write volume a clone of its present state. It
    /// need not exist before.
    async fn renew_clone(&self, trans: &Trans<'_>, name: &str, clone: VolumeId) -> Result<()> {
        if self.is_there(trans.at, clone).await?.is_some() {
            match trans.reclone(clone).await {
                Err(Error::Refused {
                    cause: cellar_rpc::CallError::Aborted(_),
                    ..
                }) => {
                    // It is no clone of this volume. This happens if the read-write volume came
                    // here later than the read-only volume.
                    self.delete_from(trans.at, clone).await?;
                }
                done => return done,
            }
        }
        trans.clone_to(afsvol::READONLY, name, clone).await
    }

    /// Information about a volume, if the server has it.
    pub(in super::super) async fn is_there(
        &self,
        at: Location,
        volume: VolumeId,
    ) -> Result<Option<VolumeInfo>> {
        match self
            .volume_on(at.server.into(), at.partition, volume, false)
            .await
        {
            Ok(info) => Ok(Some(info)),
            Err(error) if super::super::transaction::is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes temporary clones that an earlier release or move left beside the read-write volume.
    /// `of_header` is the clone that the volume's header names.
    pub(in super::super) async fn remove_temporaries(
        &self,
        draft: &Draft,
        at: Location,
        of_header: VolumeId,
    ) -> Result<()> {
        let mut tried = vec![VolumeId(0), draft.read_write, draft.backup];
        if draft.read_only_site_at(at).is_some() {
            tried.push(draft.read_only);
        }
        for candidate in [draft.clone, draft.read_only, of_header] {
            if tried.contains(&candidate) {
                continue;
            }
            tried.push(candidate);
            self.remove_if_temporary(draft, at, candidate).await?;
        }
        Ok(())
    }

    /// Removes a volume if it is a temporary clone of the read-write volume. The list of volumes
    /// says little about a clone that was never on line. Therefore this function reads its header.
    async fn remove_if_temporary(
        &self,
        draft: &Draft,
        at: Location,
        volume: VolumeId,
    ) -> Result<()> {
        let Some(info) = self.is_there(at, volume).await? else {
            return Ok(());
        };
        let temporary = |name: &str| name == TEMPORARY || name == MOVE_TEMPORARY;
        if info.state == VolumeState::Ok && !temporary(&info.name) {
            return Ok(());
        }
        let is_one = async |trans: &Trans<'_>, status: &VolserStatus| {
            let is_clone =
                status.volume_type == afsvol::READONLY && status.parent == draft.read_write;
            Ok(is_clone && temporary(&trans.name().await?))
        };
        self.delete_if(at, volume, is_one).await
    }

    /// Step 7: removes a temporary image.
    pub(super) async fn dismiss(&self, image: &Image) -> Result<()> {
        if image.temporary {
            self.delete_from(image.at, image.volume).await?;
        }
        Ok(())
    }
}

impl Job<'_> {
    /// The remaining work of an earlier release, if any site has the release.
    pub(super) async fn plan_to_resume(&mut self) -> Result<Option<Plan>> {
        let (done, todo): (Vec<_>, Vec<_>) = self
            .draft
            .read_only_sites()
            .partition(|(_, site)| Draft::is_new(site));
        let sites: Vec<_> = todo.into_iter().map(|(index, _)| index).collect();
        // The places that have the image, and its creation date.
        let mut have = Vec::new();
        for (index, site) in &done {
            if let Some(at) = Location::of(site)
                && let Ok(Some(info)) = self.volumes.is_there(at, self.draft.read_only).await
            {
                have.push((*index, at, info.created));
            }
        }
        let Some((index, at, created)) = have.first().copied() else {
            if done.is_empty() {
                return Ok(None);
            }
            return Err(Error::Usage(format!(
                "no site that has the last release of volume {} answers; 'vos release {0}' makes \
                 a new release",
                self.draft.name
            )));
        };
        let read_write = self.draft.read_write_at();
        let mut image = Image {
            at,
            volume: self.draft.read_only,
            site: Some(index),
            temporary: false,
            read_write_created: AfsTime(0),
            read_write_updated: AfsTime(0),
        };
        if let Some(there) = read_write {
            let mut of_header = VolumeId(0);
            if let Ok(Some(info)) = self.volumes.is_there(there, self.draft.read_write).await {
                of_header = info.clone;
                image.read_write_created = info.created;
                image.read_write_updated = info.updated;
            }
            // The clone that the earlier run sent. It is used if it is still the same image, else
            // removed.
            let clone = match self.draft.clone {
                VolumeId(0) => self.draft.read_only,
                clone => clone,
            };
            if self.draft.read_only_site_at(there).is_none()
                && let Ok(Some(info)) = self.volumes.is_there(there, clone).await
                && info.name == TEMPORARY
                && info.created == created
            {
                image = Image {
                    at: there,
                    volume: clone,
                    site: None,
                    temporary: true,
                    ..image
                };
            } else if let Err(error) = self
                .volumes
                .remove_temporaries(&self.draft, there, of_header)
                .await
            {
                self.context
                    .say(&format!("temporary clones were not removed: {error}"));
            }
        }
        if let Some(read_write) = self.draft.read_write_site() {
            self.draft.set(read_write, VLSF_NEWREPSITE, 0);
        }
        Ok(Some(Plan {
            image,
            sites,
            resumed: true,
        }))
    }
}
