//! An entry of the VLDB during a change: in its wire form, with its sites in a vector.

use cellar_wire::ids::VolumeId;
use cellar_wire::vl::{
    NvldbEntry, SITES_MAX, Site, VLF_BACKEXISTS, VLF_ROEXISTS, VLF_RWEXISTS, VLOP_ALLOPERS,
    VLSF_DONTUSE, VLSF_NEWREPSITE, VLSF_ROVOL, VLSF_RWVOL,
};
use cellar_wire::{List, vl};

use super::{Entry, Location, Volumes, entry_from_wire};
use crate::error::{Error, Result};

/// Releases every part of a lock.
pub(super) const UNLOCK: i32 = vl::LOCKREL_TIMESTAMP | vl::LOCKREL_OPCODE | vl::LOCKREL_AFSID;

/// An entry that is being changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) read_write: VolumeId,
    pub(super) read_only: VolumeId,
    pub(super) backup: VolumeId,
    pub(super) clone: VolumeId,
    pub(super) flags: u32,
    pub(super) sites: Vec<Site>,
}

impl Draft {
    pub(super) fn new(entry: &NvldbEntry) -> Self {
        let [read_write, read_only, backup] = entry.volume_ids;
        Self {
            name: entry.name.to_string(),
            read_write,
            read_only,
            backup,
            clone: entry.clone_id,
            flags: entry.flags,
            sites: entry.sites.to_vec(),
        }
    }

    /// An entry without volumes.
    pub(super) fn empty(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            read_write: VolumeId(0),
            read_only: VolumeId(0),
            backup: VolumeId(0),
            clone: VolumeId(0),
            flags: 0,
            sites: Vec::new(),
        }
    }

    pub(super) fn to_wire(&self) -> Result<NvldbEntry> {
        if self.sites.len() > SITES_MAX {
            return Err(Error::Usage(format!(
                "Volume {} would have {} sites; an entry has room for {SITES_MAX}",
                self.name,
                self.sites.len()
            )));
        }
        Ok(NvldbEntry {
            name: vl::EntryName::try_from(self.name.as_str())
                .map_err(|_| Error::Usage(format!("{}: too long", self.name)))?,
            sites: List::from_iter_cut(self.sites.iter().copied()),
            volume_ids: [self.read_write, self.read_only, self.backup],
            clone_id: self.clone,
            flags: self.flags,
            match_index: 0,
        })
    }

    /// The entry in the form for display.
    pub(super) fn entry(&self) -> Result<Entry> {
        Ok(entry_from_wire(&self.to_wire()?))
    }

    /// The location of the read-write volume.
    pub(super) fn read_write_at(&self) -> Option<Location> {
        Location::of(self.sites.get(self.read_write_site()?)?)
    }

    /// The index of the read-write volume's site.
    pub(super) fn read_write_site(&self) -> Option<usize> {
        self.sites
            .iter()
            .position(|site| site.flags & VLSF_RWVOL != 0)
    }

    /// The read-only sites with their indexes in the entry.
    pub(super) fn read_only_sites(&self) -> impl Iterator<Item = (usize, &Site)> {
        let sites = self.sites.iter().enumerate();
        sites.filter(|(_, site)| site.flags & VLSF_ROVOL != 0)
    }

    /// The index of the read-only site at a location.
    pub(super) fn read_only_site_at(&self, at: Location) -> Option<usize> {
        self.read_only_sites()
            .find(|(_, site)| at.is(site))
            .map(|(index, _)| index)
    }

    pub(super) fn has_read_only(&self) -> bool {
        self.read_only_sites().next().is_some()
    }

    /// Whether the entry says that any volume of the group exists.
    pub(super) fn exists(&self) -> bool {
        self.flags & (VLF_RWEXISTS | VLF_ROEXISTS | VLF_BACKEXISTS) != 0
    }

    /// The operation that the entry is locked for, `VLOP_*`, or 0.
    pub(super) fn operation(&self) -> u32 {
        self.flags & VLOP_ALLOPERS
    }

    pub(super) fn is_new(site: &Site) -> bool {
        site.flags & VLSF_NEWREPSITE != 0 && site.flags & VLSF_DONTUSE == 0
    }

    pub(super) fn set(&mut self, site: usize, add: u32, remove: u32) {
        if let Some(site) = self.sites.get_mut(site) {
            site.flags = site.flags & !remove | add;
        }
    }

    /// Sets ROEXISTS if there is a read-only site that clients may use, else clears it.
    pub(super) fn update_ro_exists(&mut self) {
        let usable = self
            .read_only_sites()
            .any(|(_, site)| site.flags & VLSF_DONTUSE == 0);
        if usable {
            self.flags |= VLF_ROEXISTS;
        } else {
            self.flags &= !VLF_ROEXISTS;
        }
    }
}

impl Volumes<'_> {
    /// The entry of a volume, for a change.
    pub(super) async fn draft(&self, volume: VolumeId) -> Result<Draft> {
        Ok(Draft::new(&self.raw_entry(volume).await?))
    }

    /// [`Volumes::draft`] by name or number.
    pub(super) async fn draft_of(&self, volume: &str) -> Result<Draft> {
        let volumename = vl::VolumeNameArgument::try_from(volume)
            .map_err(|_| Error::NoSuchEntry(volume.to_owned()))?;
        let reply = self.vl(&vl::GetEntryByNameN { volumename }, volume).await?;
        Ok(Draft::new(&reply.entry))
    }

    /// Replaces the entry that has the same read-write id, and releases the parts of its lock that
    /// `release` names (`LOCKREL_*`, 0 for none).
    pub(super) async fn replace(&self, draft: &Draft, release: i32) -> Result<()> {
        let what = format!("Could not update the VLDB entry of volume {}", draft.name);
        let mut draft = draft.clone();
        if release & vl::LOCKREL_OPCODE != 0 {
            draft.flags &= !VLOP_ALLOPERS;
        }
        let arguments = vl::ReplaceEntryN {
            volid: draft.read_write,
            voltype: vl::RWVOL,
            newentry: draft.to_wire()?,
            releasetype: release,
        };
        self.vl(&arguments, &what).await?;
        Ok(())
    }

    /// Creates an entry.
    pub(super) async fn create_entry(&self, draft: &Draft) -> Result<()> {
        let what = format!(
            "Could not create a VLDB entry for the volume {}",
            draft.name
        );
        let newentry = draft.to_wire()?;
        self.vl(&vl::CreateEntryN { newentry }, &what).await?;
        Ok(())
    }

    /// Deletes the entry of a volume, even a locked one.
    pub(super) async fn delete_entry_of(&self, volume: VolumeId) -> Result<()> {
        let what = format!("Could not delete the VLDB entry of volume {volume}");
        let arguments = vl::DeleteEntry {
            volid: volume,
            voltype: vl::ANYVOL,
        };
        self.vl(&arguments, &what).await?;
        Ok(())
    }

    /// Locks the entry of a volume, runs `change` on it and writes the result. After a failure the
    /// entry is unchanged and unlocked. Returns the result, unlocked.
    pub(super) async fn edit_entry(
        &self,
        volume: VolumeId,
        operation: u32,
        why: &str,
        change: impl AsyncFnOnce(&mut Draft) -> Result<()>,
    ) -> Result<Draft> {
        self.lock_for(volume, operation, why).await?;
        let changed = async {
            let mut draft = self.draft(volume).await?;
            let before = draft.clone();
            change(&mut draft).await?;
            Ok((before, draft))
        }
        .await;
        let written = match changed {
            Ok((before, draft)) if draft.sites.is_empty() || !draft.exists() && before.exists() => {
                self.delete_entry_of(volume).await.map(|()| draft)
            }
            Ok((_, draft)) => self.replace(&draft, UNLOCK).await.map(|()| draft),
            Err(error) => Err(error),
        };
        let mut draft = self.unlock_after(volume, why, written).await?;
        draft.flags &= !VLOP_ALLOPERS;
        Ok(draft)
    }
}
