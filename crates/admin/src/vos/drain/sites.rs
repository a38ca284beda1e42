//! Moving a read-only volume from one server to another without a release.
//!
//! 1. The entry is locked.
//! 2. The volume is copied with its id, name and dates. Its clients read on.
//! 3. The entry names the new site in the place of the old one, and is unlocked.
//! 4. The old volume is deleted. Its clients ask the VLDB and go to another site.
//!
//! An interruption before step 3 leaves a volume that the VLDB does not name; the next run replaces
//! it. An interruption after step 3 leaves the old volume, which a drain reports.

use cellar_wire::afsvol::{self, RestoreCookie};
use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{Site, VLOP_DELETE, VLSF_DONTUSE, VLSF_ROVOL};

use super::super::draft::{Draft, UNLOCK};
use super::super::job::JobContext;
use super::super::transaction::name_record;
use super::super::{Location, Volumes};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Moves a read-only volume of a group. A site without a volume (never released) is changed in
    /// the VLDB only.
    ///
    /// # Errors
    /// There is no such site, the entry is locked, the destination refuses, or the caller has no
    /// permission. The volume is then at its old place.
    pub async fn move_site(
        &self,
        read_write: VolumeId,
        from: Location,
        to: Location,
        context: JobContext<'_>,
    ) -> Result<()> {
        self.check_partition(to).await?;
        let draft = self.draft(read_write).await?;
        let why = format!("move of a read-only site to {to}");
        self.lock_or_take_over(&draft, VLOP_DELETE, &why, &[from, to], context)
            .await?;
        let changed = async {
            let draft = self.draft(read_write).await?;
            self.move_locked_site(draft, from, to, context).await
        }
        .await;
        let read_only = self.unlock_after(read_write, &why, changed).await?;
        context.passed("named", Some(to)).await;
        self.delete_from(from, read_only).await?;
        context.passed("deleted", Some(from)).await;
        Ok(())
    }

    /// Steps 2 and 3. Returns the id of the read-only volume.
    async fn move_locked_site(
        &self,
        mut draft: Draft,
        from: Location,
        to: Location,
        context: JobContext<'_>,
    ) -> Result<VolumeId> {
        let listed = self.listed(from, &draft.sites).await?;
        let index = draft.read_only_site_at(listed).ok_or_else(|| {
            Error::Usage(format!(
                "volume {} has no read-only site on {from}",
                draft.name
            ))
        })?;
        let read_only = draft.read_only;
        let copied = match self.is_there(from, read_only).await? {
            Some(_) => {
                self.copy_site(&draft, from, to, context).await?;
                true
            }
            None => false,
        };
        let old = draft.sites.remove(index);
        let flags = match copied {
            true => old.flags & VLSF_DONTUSE,
            false => VLSF_DONTUSE,
        };
        draft.sites.push(Site {
            server: to.server.into(),
            partition: to.partition.number(),
            flags: VLSF_ROVOL | flags,
        });
        draft.update_ro_exists();
        self.replace(&draft, UNLOCK).await?;
        Ok(read_only)
    }

    /// Step 2.
    async fn copy_site(
        &self,
        draft: &Draft,
        from: Location,
        to: Location,
        context: JobContext<'_>,
    ) -> Result<()> {
        let (read_only, parent) = (draft.read_only, draft.read_write);
        let name = format!("{}.readonly", draft.name);
        // A part of a copy that was interrupted.
        self.delete_if(to, read_only, async |_, status| {
            Ok(status.volume_type == afsvol::READONLY && status.parent == parent)
        })
        .await?;
        context.check()?;
        let source = self.begin(from, read_only, afsvol::IT_BUSY).await?;
        let sent = async {
            let made = self.begin_new(to, read_only, &name, afsvol::READONLY, parent);
            let made = made.await?;
            let cookie = RestoreCookie {
                name: name_record(&name)?,
                volume_type: afsvol::READONLY,
                clone: VolumeId(0),
                parent,
            };
            let filled = async {
                context.done_at("created", Some(to)).await?;
                context.or_stop(source.forward(0, &made, &cookie)).await?;
                made.set_ids(&name, afsvol::READONLY, parent, VolumeId(0), VolumeId(0))
                    .await?;
                made.set_flags(0).await
            }
            .await;
            if filled.is_err() {
                let _deleted = made.delete().await;
            }
            made.finish(filled).await
        }
        .await;
        source.finish(sent).await?;
        context.passed("sent", Some(to)).await;
        Ok(())
    }
}
