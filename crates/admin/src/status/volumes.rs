//! The volumes of a cell: damage, quotas, and read-only sites.
//!
//! Lists arrive as streams, and each volume is dropped when it is examined. Only the dates of
//! released volumes are held, for their comparison, and the numbers of all (`places`).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use cellar_rpc::{CallError, CallOptions};
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use cellar_wire::{afsvol, vl};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::places::{self, Differences, PartitionList, ServerList, Sites};
use super::servers::VolumeServer;
use super::{Counted, FileServer, Limits, VolumeProblem};
use crate::vos::{Volumes, site_flags};

/// The most released volumes of a partition whose dates are compared: 24 MB.
const COMPARED_MAX: usize = 1_000_000;

/// The share of a quota, in percent, from which the quota counts as full.
const QUOTA_FULL_PERCENT: u64 = 99;

/// The volumes of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VolumesStatus {
    /// Volumes examined, on all partitions together.
    pub examined: u64,
    /// Volumes that a volume operation holds. They are not examined.
    pub busy: u64,
    /// Entries of the VLDB that were read; `None` if it does not list them.
    pub entries: Option<u64>,
    /// Locked entries of the VLDB.
    pub locked: u64,
    /// Volumes that cannot be attached, or need a salvage.
    pub damaged: Counted<VolumeProblem>,
    /// Volumes that are off line.
    pub off_line: Counted<VolumeProblem>,
    /// Read-write volumes that use at least 99 % of their quota.
    pub quota_full: Counted<VolumeProblem>,
    /// Read-only sites with an older image than another site, or without one.
    pub outdated_sites: Counted<VolumeProblem>,
    /// Volumes that the VLDB names at a place that does not have them.
    pub missing: Counted<VolumeProblem>,
    /// Read-write and read-only volumes on line that the VLDB does not name.
    pub unlisted: Counted<VolumeProblem>,
    /// The same, if the VLDB names the volume at other places. They need no attention: copies may
    /// be shadows (`vos shadow`).
    pub copies: Counted<VolumeProblem>,
    /// Read-write volumes that changed after their last release. They need no attention.
    pub unreleased: Counted<VolumeProblem>,
    /// Facts that no server reported.
    #[serde(skip)]
    pub(super) not_known: Vec<String>,
}

/// A released volume on a server, or the read-write volume of one.
#[derive(Clone, Copy)]
struct Released {
    id: VolumeId,
    /// The date of the image, or the last change of the read-write volume.
    date: AfsTime,
    server: IpAddr,
    partition: PartitionId,
}

/// The result of examining the volumes of some servers.
#[derive(Default)]
pub(super) struct Found {
    status: VolumesStatus,
    pub(super) not_known: Vec<String>,
    read_only: Vec<Released>,
    /// Read-write volumes, under the ids of their read-only volumes.
    read_write: Vec<(VolumeId, Released)>,
    /// The volumes of each server that has listed its partitions.
    pub(super) lists: Vec<ServerList>,
}

/// The entries of the VLDB that need attention.
#[derive(Default)]
pub(super) struct Entries {
    read: u64,
    locked: u64,
    not_released: Counted<VolumeProblem>,
    sites: Sites,
    /// The list ended early, for this reason.
    incomplete: Option<String>,
}

impl Found {
    pub(super) fn append(&mut self, other: Self) {
        let (own, more) = (&mut self.status, other.status);
        own.examined += more.examined;
        own.busy += more.busy;
        own.damaged.append(more.damaged);
        own.off_line.append(more.off_line);
        own.quota_full.append(more.quota_full);
        self.not_known.extend(other.not_known);
        self.read_only.extend(other.read_only);
        self.read_write.extend(other.read_write);
        self.lists.extend(other.lists);
    }

    fn add(&mut self, info: &afsvol::VolumeInfo, server: IpAddr, partition: PartitionId) {
        let count = |number: i32| number.max(0) as u32;
        let problem = || VolumeProblem {
            name: info.name.to_string(),
            id: info.volume,
            server,
            partition,
            size_kib: count(info.size),
            quota_kib: count(info.max_quota),
        };
        let status = &mut self.status;
        if info.status == afsvol::STATUS_BUSY {
            status.busy += 1;
            return;
        }
        status.examined += 1;
        if info.status != afsvol::STATUS_OK || info.needs_salvaged != 0 {
            status.damaged.add(problem());
            return;
        }
        if info.in_use == 0 {
            status.off_line.add(problem());
        }
        let (size, quota) = (count(info.size), count(info.max_quota));
        let is_full = u64::from(size) * 100 >= u64::from(quota) * QUOTA_FULL_PERCENT;
        if info.volume_type == vl::RWVOL && quota > 0 && is_full {
            status.quota_full.add(problem());
        }
        let released = |date| Released {
            id: info.volume,
            date,
            server,
            partition,
        };
        if self.read_only.len() + self.read_write.len() >= COMPARED_MAX {
            return;
        }
        if info.volume_type == vl::ROVOL {
            self.read_only.push(released(info.creation_date));
        } else if info.volume_type == vl::RWVOL && info.clone.0 != 0 {
            let pair = (info.clone, released(info.update_date));
            self.read_write.push(pair);
        }
    }

    /// Compares the read-only sites, and the volumes with the VLDB; adds the facts of the VLDB.
    pub(super) async fn compared(
        mut self,
        file_servers: &[FileServer],
        entries: Entries,
        volumes: Volumes<'_>,
        limits: Limits,
    ) -> VolumesStatus {
        let mut newest: HashMap<VolumeId, AfsTime> = HashMap::new();
        for copy in &self.read_only {
            let date = newest.entry(copy.id).or_insert(copy.date);
            *date = (*date).max(copy.date);
        }
        let problem = |copy: &Released| VolumeProblem {
            name: String::new(),
            id: copy.id,
            server: copy.server,
            partition: copy.partition,
            size_kib: 0,
            quota_kib: 0,
        };
        let (mut outdated, mut unreleased) = (Counted::default(), Counted::default());
        let known = entries.not_released.listed.iter();
        let known: BTreeSet<_> = known.map(|site| (site.id, site.server)).collect();
        for copy in &self.read_only {
            let is_old = newest.get(&copy.id).is_some_and(|date| *date > copy.date);
            if is_old && !known.contains(&(copy.id, copy.server)) {
                outdated.add(problem(copy));
            }
        }
        for (read_only, own) in &self.read_write {
            if newest.get(read_only).is_some_and(|date| *date < own.date) {
                unreleased.add(problem(own));
            }
        }
        name(volumes, &mut outdated.listed, limits).await;
        name(volumes, &mut unreleased.listed, limits).await;
        outdated.append(entries.not_released);
        let is_whole = entries.incomplete.is_none();
        self.not_known.extend(entries.incomplete);
        let Differences {
            missing,
            unlisted,
            copies,
            not_known,
        } = match limits.volumes {
            true => {
                let (lists, sites) = (self.lists, entries.sites);
                places::compare(file_servers, lists, sites, is_whole, volumes, limits).await
            }
            false => Differences::default(),
        };
        self.not_known.extend(not_known);
        VolumesStatus {
            entries: (entries.read > 0).then_some(entries.read),
            locked: entries.locked,
            outdated_sites: outdated,
            missing,
            unlisted,
            copies,
            unreleased,
            not_known: self.not_known,
            ..self.status
        }
    }
}

/// Looks up the names of volumes in the VLDB. A volume without an entry has no name.
async fn name(volumes: Volumes<'_>, problems: &mut [VolumeProblem], limits: Limits) {
    let named = problems.iter_mut().map(async |problem| {
        let id = problem.id.to_string();
        let entry = tokio::time::timeout(limits.answer, volumes.entry(&id)).await;
        if let Ok(Ok(entry)) = entry {
            let suffix = if entry.read_only == problem.id {
                ".readonly"
            } else {
                ""
            };
            problem.name = format!("{}{suffix}", entry.name);
        }
    });
    join_all(named).await;
}

/// Examines the volumes of a partition, as far as the time permits.
pub(super) async fn examine(
    server: &VolumeServer<'_>,
    partition: PartitionId,
) -> (Found, PartitionList) {
    let mut found = Found::default();
    let mut volumes = PartitionList::default();
    let end = Instant::now() + server.limits.listing;
    let listed = timeout_at(end, list(server, partition, &mut found, &mut volumes)).await;
    let reason = match listed {
        Ok(Ok(())) => {
            volumes.is_whole = true;
            return (found, volumes);
        }
        Ok(Err(cause)) => cause.to_string(),
        Err(_) => format!(
            "the list takes longer than {} s",
            server.limits.listing.as_secs()
        ),
    };
    let examined = found.status.examined + found.status.busy;
    found.not_known.push(format!(
        "volumes of {partition} of {} beyond the first {examined}: {reason}",
        server.address
    ));
    (found, volumes)
}

async fn list(
    server: &VolumeServer<'_>,
    partition: PartitionId,
    found: &mut Found,
    volumes: &mut PartitionList,
) -> Result<(), CallError> {
    let arguments = afsvol::ListVolumes {
        partition: partition.number(),
        flags: 1,
    };
    let options = CallOptions {
        timeout: Some(server.limits.listing),
    };
    let mut call = server.volumes().open_with(&arguments, options).await?;
    call.finish();
    let count: u32 = call.read().await?;
    for _ in 0..count {
        let info: afsvol::VolumeInfo = call.read().await?;
        found.add(&info, server.address, partition);
        volumes.add(&info);
    }
    Ok(())
}

/// Reads the entries of the VLDB, as far as the time permits.
pub(super) async fn entries(volumes: Volumes<'_>, limits: Limits) -> Entries {
    let mut entries = Entries::default();
    let read = volumes.each_page(|page| {
        for entry in page {
            entries.read += 1;
            entries.locked += u64::from(entry.is_locked());
            entries.sites.add(&entry);
            let has = |flag| move |site: &&crate::vos::Site| site.flags & flag != 0;
            let is_releasing = entry
                .sites
                .iter()
                .any(|site| has(site_flags::NEW_RELEASE)(&site));
            for site in entry.sites.iter().filter(has(site_flags::READ_ONLY)) {
                let is_new = site.flags & site_flags::NEW_RELEASE != 0;
                let is_unused = site.flags & site_flags::DONT_USE != 0;
                if is_unused || is_releasing && !is_new {
                    entries.not_released.add(VolumeProblem {
                        name: format!("{}.readonly", entry.name),
                        id: entry.read_only,
                        server: site.server,
                        partition: site.partition,
                        size_kib: 0,
                        quota_kib: 0,
                    });
                }
            }
        }
    });
    let read = tokio::time::timeout(limits.listing, read).await;
    let reason = match read {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!(
            "the list takes longer than {} s",
            limits.listing.as_secs()
        )),
    };
    let first = entries.read;
    entries.incomplete =
        reason.map(|reason| format!("entries of the VLDB beyond the first {first}: {reason}"));
    entries
}
