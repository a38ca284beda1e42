//! Garbage collection: removes objects on devices that no volume of the cell refers to.
//!
//! The file server of the RW volume does the work, or only lists the garbage. This module finds
//! that server and calls it part by part.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cellar_wire::AbortCode;
use cellar_wire::afsosd::{COLLECT_DRY, CollectGarbage, Garbage};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::ListObjects;
use cellar_wire::osddb::OSD_OBSOLETE;
use serde::Serialize;

use super::{Osds, address_of, object_name};
use crate::error::{Error, Result, is_unknown_there};

/// The most calls for one volume, in case a server never says "end".
const PARTS_MAX: usize = 1_000_000;

/// An object, or a version of one, that no file needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GarbageView {
    /// The device.
    pub osd: u32,
    /// `volume.vnode.uniquifier.serial`
    pub object: String,
    /// The version; 0: the whole object.
    pub version: u64,
    /// Bytes: the space of the object, or the length of the version.
    pub bytes: u64,
    /// Time of the last write, in seconds since 1970.
    pub written: u64,
}

impl GarbageView {
    fn of(garbage: &Garbage) -> Self {
        Self {
            osd: garbage.osd,
            object: object_name(&garbage.object),
            version: garbage.version,
            bytes: garbage.bytes,
            written: garbage.written,
        }
    }
}

/// The result of the collection for one RW volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectedView {
    /// The RW volume whose id the objects carry.
    pub volume: u32,
    /// Number of objects that were checked.
    pub looked: u64,
    /// The objects and versions that no file needs.
    pub garbage: Vec<GarbageView>,
    /// Number of objects without a reference that are younger than the grace period.
    pub young: u64,
    /// Number of files with a store under way; the next collection checks them.
    pub busy: u64,
    /// Bytes that became free on devices.
    pub freed: u64,
    /// File servers that did not report what they need. If there are any, nothing was collected.
    pub silent: Vec<IpAddr>,
    /// The volume is being moved, released or restored; nothing was collected.
    pub changing: bool,
    /// Devices that did not answer.
    pub away: Vec<u32>,
}

impl Osds<'_> {
    /// The RW volumes that have objects on any device that answers.
    ///
    /// # Errors
    /// The OSD database does not answer.
    pub async fn volumes_with_objects(&self) -> Result<BTreeSet<u32>> {
        let mut volumes = BTreeSet::new();
        for listed in self.listed().await?.1 {
            let entry = &listed.entry;
            if listed.dead || entry.flags & OSD_OBSOLETE != 0 || entry.addresses.is_empty() {
                continue;
            }
            let connection = self.server(entry)?;
            let mut after = ObjectId::default();
            loop {
                let page = ListObjects {
                    capability: Self::superuser(entry),
                    volume: 0,
                    after,
                    limit: 1,
                    flags: 0,
                };
                let what = format!("cannot list the objects of device {}", entry.id);
                let page = connection.call(&page).await;
                let page = page.map_err(|cause| Error::refused(what, cause))?;
                let Some(first) = page.objects.first() else {
                    break;
                };
                volumes.insert(first.object.volume.0);
                after = ObjectId {
                    volume: first.object.volume,
                    vnode: VnodeId(u32::MAX),
                    uniquifier: Uniquifier(u32::MAX),
                    serial: u32::MAX,
                };
            }
        }
        Ok(volumes)
    }

    /// Collects, or with `dry` only lists, the garbage among the objects of an RW volume. Only
    /// objects that were not written for `grace` seconds count.
    ///
    /// # Errors
    /// No file server collects for this volume, or the caller has no permission.
    pub async fn collect(&self, volume: VolumeId, grace: u32, dry: bool) -> Result<CollectedView> {
        let mut silent = Vec::new();
        for server in self.file_servers().await? {
            match self.collect_at(server, volume, grace, dry).await {
                Ok(Some(collected)) => return Ok(collected),
                Ok(None) => {}
                Err(error) => match error {
                    Error::Refused { ref cause, .. } if cause.is_unreachable() => {
                        silent.push(server);
                    }
                    error => return Err(error),
                },
            }
        }
        if silent.is_empty() {
            return Err(Error::Usage(format!(
                "no file server of the cell collects the garbage of volume {volume}: is its RW volume on a \
                 server without object storage?"
            )));
        }
        Ok(CollectedView {
            volume: volume.0,
            silent,
            ..CollectedView::default()
        })
    }

    /// Collects at one server; `None` if that server is not responsible for the volume.
    async fn collect_at(
        &self,
        server: IpAddr,
        volume: VolumeId,
        grace: u32,
        dry: bool,
    ) -> Result<Option<CollectedView>> {
        let mut all = CollectedView {
            volume: volume.0,
            ..CollectedView::default()
        };
        let mut after = 0;
        for _ in 0..PARTS_MAX {
            let asked = CollectGarbage {
                volume: volume.0,
                after,
                grace,
                flags: if dry { COLLECT_DRY } else { 0 },
            };
            let part = match self.file_server(server, &asked).await {
                Ok(reply) => reply.collected,
                Err(cause) if cause.code().to_plain() == AbortCode::EXDEV => return Ok(None),
                Err(cause) if is_unknown_there(cause.code()) => return Ok(None),
                Err(cause) => {
                    let what = format!("cannot collect the garbage of volume {volume}");
                    return Err(Error::refused(what, cause));
                }
            };
            all.looked = all.looked.saturating_add(part.looked);
            all.garbage.extend(part.garbage.iter().map(GarbageView::of));
            all.young = all.young.saturating_add(part.young);
            all.busy = all.busy.saturating_add(part.busy);
            all.freed = all.freed.saturating_add(part.freed);
            all.silent = part.silent.iter().copied().map(address_of).collect();
            all.changing |= part.changing;
            let new = part.away.iter().filter(|osd| !all.away.contains(osd));
            let new: Vec<u32> = new.copied().collect();
            all.away.extend(new);
            if part.next <= after || all.changing || !all.silent.is_empty() {
                break;
            }
            after = part.next;
        }
        Ok(Some(all))
    }
}
