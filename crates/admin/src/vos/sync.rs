//! Bringing the VLDB in line with the volume servers: `syncvldb` starts from the volumes,
//! `syncserv` from the entries.
//!
//! 1. Each entry is first compared without a lock. If it has to change, it is locked, read again
//!    and compared again.
//! 2. The place in the VLDB is the valid one. If a volume also exists at another place, the copy
//!    there is an orphan. It is reported, and nothing is changed.
//! 3. Of two ids for the same read-only or backup volume, the higher one is newer.
//! 4. A volume that is not on line anywhere proves nothing and is skipped.
//!
//! Unlike in OpenAFS's `vos`, sites that were added and never released stay. They describe the next
//! release, not the present state.

use std::net::Ipv4Addr;

use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl::{
    Site, VLF_BACKEXISTS, VLF_ROEXISTS, VLF_RWEXISTS, VLOP_DELETE, VLSF_DONTUSE, VLSF_ROVOL,
    VLSF_RWVOL,
};
use serde::Serialize;

use super::draft::{Draft, UNLOCK};
use super::{
    Entry, EntryFilter, Location, VolumeInfo, VolumeState, VolumeType, Volumes, entry_from_wire,
};
use crate::error::{Error, Result};

/// The result for one entry.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    /// The checked volume or entry.
    pub name: String,
    /// The entry before; none if there was none.
    pub before: Option<Entry>,
    /// The entry after the change, or the proposed one; none if it is deleted.
    pub after: Option<Entry>,
    /// Whether it changed, or would change.
    pub changed: bool,
    /// Volumes at places that the VLDB does not name.
    pub warnings: Vec<String>,
}

/// The result for all entries.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SyncReport {
    /// Number of checked volumes or entries.
    pub total: usize,
    /// Each entry that changed, would change, or has warnings.
    pub repairs: Vec<Repair>,
    /// The errors of volumes or entries that could not be checked.
    pub failures: Vec<String>,
}

impl SyncReport {
    /// Number of entries that changed, or would change.
    pub fn changed(&self) -> usize {
        self.repairs.iter().filter(|repair| repair.changed).count()
    }

    fn take(&mut self, name: &str, outcome: Result<Repair>) {
        self.total += 1;
        match outcome {
            Ok(repair) if repair.changed || !repair.warnings.is_empty() => {
                self.repairs.push(repair);
            }
            Ok(_) => {}
            Err(error) => self.failures.push(format!("{name}: {error}")),
        }
    }
}

impl Volumes<'_> {
    /// Brings the VLDB in line with the volumes of a server, or of one of its partitions. `seen`
    /// receives each volume and the number of volumes on its partition.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn sync_vldb(
        &self,
        server: Ipv4Addr,
        partition: Option<PartitionId>,
        dry_run: bool,
        mut seen: impl FnMut(&VolumeInfo, usize),
    ) -> Result<SyncReport> {
        let partitions = match partition {
            Some(partition) => vec![partition],
            None => self.partitions(server.into()).await?,
        };
        let mut report = SyncReport::default();
        let mut highest = VolumeId(0);
        for partition in partitions {
            let at = Location { server, partition };
            let mut volumes = self.volumes_on(server.into(), partition, false).await?;
            volumes.retain(|info| info.state == VolumeState::Ok);
            volumes.sort_by_key(order);
            for info in &volumes {
                seen(info, volumes.len());
                let outcome = self.check_volume(info, at, dry_run, &mut highest).await;
                report.take(&info.name, outcome);
            }
        }
        if !dry_run {
            self.raise_highest(highest).await?;
        }
        Ok(report)
    }

    /// Brings the entry of one volume in line with the volumes at its places. If `server` is given,
    /// the volumes of the group there count too.
    ///
    /// # Errors
    /// A server does not answer.
    pub async fn sync_volume(
        &self,
        volume: &str,
        server: Option<Ipv4Addr>,
        partition: Option<PartitionId>,
        dry_run: bool,
    ) -> Result<SyncReport> {
        let mut report = SyncReport::default();
        let mut highest = VolumeId(0);
        let mut ids: Vec<VolumeId> = volume.parse().map(VolumeId).into_iter().collect();
        match self.draft_of(volume).await {
            Ok(draft) => {
                ids.extend([draft.read_write, draft.read_only, draft.backup]);
                let outcome = self.check_entry(draft, dry_run).await;
                report.take(volume, outcome);
            }
            Err(Error::NoSuchEntry(_)) => {}
            Err(error) => return Err(error),
        }
        ids.retain(|id| id.0 != 0);
        ids.dedup();
        if let Some(server) = server {
            for id in &ids {
                for (at, info) in self.find_on(server, *id).await? {
                    if partition.is_none_or(|partition| partition == at.partition) {
                        let outcome = self.check_volume(&info, at, dry_run, &mut highest).await;
                        report.take(volume, outcome);
                    }
                }
            }
        }
        if !dry_run {
            self.raise_highest(highest).await?;
        }
        Ok(report)
    }

    /// Brings the entries with sites on a server, or on one partition of it, in line with the
    /// volumes there. `seen` receives each entry and the number of entries.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn sync_server(
        &self,
        server: Ipv4Addr,
        partition: Option<PartitionId>,
        dry_run: bool,
        mut seen: impl FnMut(&str, usize),
    ) -> Result<SyncReport> {
        let filter = EntryFilter {
            server: Some(server.into()),
            partition,
            locked: false,
        };
        let entries = self.entries(filter).await?;
        let mut report = SyncReport::default();
        for entry in &entries {
            seen(&entry.name, entries.len());
            let outcome = async {
                let draft = self.draft(entry.read_write).await?;
                self.check_entry(draft, dry_run).await
            }
            .await;
            report.take(&entry.name, outcome);
        }
        Ok(report)
    }

    /// Compares an entry with the volumes at its places, and corrects it.
    async fn check_entry(&self, draft: Draft, dry_run: bool) -> Result<Repair> {
        let before = Some(draft.entry()?);
        let mut after = draft.clone();
        self.verify(&mut after).await?;
        if after != draft && !dry_run {
            after = self
                .edit_entry(draft.read_write, VLOP_DELETE, "syncserv", async |draft| {
                    self.verify(draft).await
                })
                .await?;
        }
        let changed = after != draft;
        Ok(Repair {
            name: draft.name.clone(),
            before,
            after: match after.exists() || !changed {
                true => Some(entry_from_wire(&after.to_wire()?)),
                false => None,
            },
            changed,
            warnings: Vec::new(),
        })
    }

    /// Corrects the flags and sites of an entry to those volumes that exist.
    async fn verify(&self, draft: &mut Draft) -> Result<()> {
        self.verify_read_write(draft).await?;
        self.verify_read_only(draft).await
    }

    async fn verify_read_write(&self, draft: &mut Draft) -> Result<()> {
        let Some(index) = draft.read_write_site() else {
            draft.flags &= !(VLF_RWEXISTS | VLF_BACKEXISTS);
            return Ok(());
        };
        let at = draft.read_write_at();
        for (id, flag) in [
            (draft.read_write, VLF_RWEXISTS),
            (draft.backup, VLF_BACKEXISTS),
        ] {
            let there = match at {
                Some(at) if id.0 != 0 => self.is_there(at, id).await?.is_some(),
                _ => false,
            };
            if there {
                draft.flags |= flag;
            } else {
                draft.flags &= !flag;
            }
        }
        if draft.flags & (VLF_RWEXISTS | VLF_BACKEXISTS) == 0 {
            draft.sites.remove(index);
        }
        Ok(())
    }

    async fn verify_read_only(&self, draft: &mut Draft) -> Result<()> {
        let mut kept = Vec::new();
        let mut released = false;
        for site in draft.sites.iter().copied() {
            if site.flags & VLSF_ROVOL == 0 {
                kept.push(site);
                continue;
            }
            let there = match Location::of(&site) {
                Some(at) => self.is_there(at, draft.read_only).await?.is_some(),
                None => false,
            };
            released |= there;
            if there || site.flags & VLSF_DONTUSE != 0 {
                kept.push(site);
            }
        }
        draft.sites = kept;
        if released {
            draft.flags |= VLF_ROEXISTS;
        } else {
            draft.flags &= !VLF_ROEXISTS;
        }
        Ok(())
    }

    /// Compares a volume with its entry, and corrects the entry.
    async fn check_volume(
        &self,
        info: &VolumeInfo,
        at: Location,
        dry_run: bool,
        highest: &mut VolumeId,
    ) -> Result<Repair> {
        let group = match info.r#type {
            VolumeType::ReadWrite => info.id,
            _ => info.parent,
        };
        let old = match self.draft(group).await {
            Ok(draft) if draft.read_write == group => Some(draft),
            Ok(_) | Err(Error::NoSuchEntry(_)) => None,
            Err(error) => return Err(error),
        };
        let base = info
            .name
            .strip_suffix(".readonly")
            .or_else(|| info.name.strip_suffix(".backup"))
            .unwrap_or(&info.name);
        let mut warnings = Vec::new();
        let mut new = old.clone().unwrap_or_else(|| Draft::empty(base));
        new.read_write = group;
        self.adopt(&mut new, info, at, &mut warnings).await?;
        let changed = old.as_ref() != Some(&new);
        if changed && !dry_run {
            match &old {
                None => self.create_entry(&new).await?,
                Some(_) => {
                    self.lock_for(group, VLOP_DELETE, "syncvldb").await?;
                    let written = async {
                        new = self.draft(group).await?;
                        let mut again = Vec::new();
                        self.adopt(&mut new, info, at, &mut again).await?;
                        self.replace(&new, UNLOCK).await
                    }
                    .await;
                    self.unlock_after(group, "syncvldb", written).await?;
                }
            }
        }
        for id in [new.read_write, new.read_only, new.backup] {
            *highest = (*highest).max(id);
        }
        Ok(Repair {
            name: info.name.clone(),
            before: old.map(|old| old.entry()).transpose()?,
            after: Some(new.entry()?),
            changed,
            warnings,
        })
    }

    /// Puts the place of a found volume into an entry, unless the entry has a better one.
    async fn adopt(
        &self,
        draft: &mut Draft,
        info: &VolumeInfo,
        at: Location,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let at = self.listed(at, &draft.sites).await?;
        match info.r#type {
            VolumeType::ReadWrite | VolumeType::Backup => {
                if !draft.sites.is_empty() {
                    self.verify_read_write(draft).await?;
                }
                if let Some(there) = draft.read_write_at()
                    && there != at
                    && (draft.flags & VLF_RWEXISTS != 0 || info.r#type == VolumeType::Backup)
                {
                    warnings.push(orphan(info, at, &format!("is on {there}")));
                    return Ok(());
                }
                let later = info.id > draft.backup;
                if info.r#type == VolumeType::ReadWrite {
                    draft.name.clone_from(&info.name);
                    draft.flags |= VLF_RWEXISTS;
                    if draft.backup.0 == 0 {
                        draft.backup = info.backup;
                    }
                    if draft.read_only.0 == 0 {
                        draft.read_only = info.clone;
                    }
                } else if draft.flags & VLF_BACKEXISTS != 0 && draft.backup != info.id && !later {
                    warnings.push(orphan(info, at, &format!("has the id {}", draft.backup)));
                    return Ok(());
                } else {
                    draft.backup = info.id;
                    draft.flags |= VLF_BACKEXISTS;
                }
                place(draft, at, VLSF_RWVOL);
                self.verify_read_write(draft).await
            }
            VolumeType::ReadOnly => {
                if draft.read_only == info.id && draft.read_only_site_at(at).is_some() {
                    draft.flags |= VLF_ROEXISTS;
                    return Ok(());
                }
                if draft.read_only != info.id {
                    self.verify_read_only(draft).await?;
                    if draft.flags & VLF_ROEXISTS != 0 && info.id < draft.read_only {
                        let known = format!("has the id {}", draft.read_only);
                        warnings.push(orphan(info, at, &known));
                        return Ok(());
                    }
                    draft.sites.retain(|site| site.flags & VLSF_ROVOL == 0);
                }
                draft.read_only = info.id;
                draft.flags |= VLF_ROEXISTS;
                if draft.read_only_site_at(at).is_none() {
                    place(draft, at, VLSF_ROVOL);
                }
                Ok(())
            }
            VolumeType::Unknown => Err(Error::Usage(format!(
                "volume {} on {at} has an unknown type",
                info.id
            ))),
        }
    }

    /// Makes sure that ids in use are not assigned again.
    async fn raise_highest(&self, highest: VolumeId) -> Result<()> {
        if highest.0 == 0 {
            return Ok(());
        }
        let next = self.new_volume_ids(0).await?;
        if highest >= next {
            self.new_volume_ids(highest.0 - next.0 + 1).await?;
        }
        Ok(())
    }
}

fn orphan(info: &VolumeInfo, at: Location, known: &str) -> String {
    let kind = info.r#type.letters();
    format!(
        "Orphaned {kind} volume {} exists on {at}: VLDB reports that the {kind} volume {known}",
        info.id
    )
}

/// Puts a site into an entry. A read-write site replaces the old one.
fn place(draft: &mut Draft, at: Location, flags: u32) {
    let site = Site {
        server: at.server.into(),
        partition: at.partition.number(),
        flags,
    };
    let old = match flags {
        VLSF_RWVOL => draft.read_write_site(),
        _ => None,
    };
    match old.and_then(|index| draft.sites.get_mut(index)) {
        Some(old) => *old = site,
        None => draft.sites.push(site),
    }
}

/// The order of the checks: group by group. In each group the read-write volume is first, then the
/// backup volumes, then the read-only volumes. Higher ids come first.
fn order(info: &VolumeInfo) -> (std::cmp::Reverse<u32>, u8, std::cmp::Reverse<u32>) {
    let (group, kind) = match info.r#type {
        VolumeType::ReadWrite => (info.id, 0),
        VolumeType::Backup => (info.parent, 1),
        _ => (info.parent, 2),
    };
    (
        std::cmp::Reverse(group.0),
        kind,
        std::cmp::Reverse(info.id.0),
    )
}
