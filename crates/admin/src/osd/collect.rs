//! Collecting garbage: what devices have and no volume of the cell names.
//!
//! The file server that has the RW volume does it, or only lists it; here it is found and asked, part by part.

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

/// Calls made for one volume: bounds a server that never says "end".
const PARTS_MAX: usize = 1_000_000;

/// Something that nobody needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GarbageView {
    /// On which device.
    pub osd: u32,
    /// `volume.vnode.uniquifier.serial`
    pub object: String,
    /// Which version; 0: all of the object.
    pub version: u64,
    /// Bytes: what the object takes, how long the version is.
    pub bytes: u64,
    /// When it was written last, in seconds since 1970.
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

/// What came of collecting the garbage of one RW volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectedView {
    /// The RW volume in whose name the objects are.
    pub volume: u32,
    /// Objects that were looked at.
    pub looked: u64,
    /// What nobody needs.
    pub garbage: Vec<GarbageView>,
    /// What nobody names, but is younger than the time of grace.
    pub young: u64,
    /// Files that somebody stored into: left for the next time.
    pub busy: u64,
    /// Bytes that devices gave back.
    pub freed: u64,
    /// File servers that did not say what they need: nothing was collected.
    pub silent: Vec<IpAddr>,
    /// The volume is being moved, released or restored: nothing was collected.
    pub changing: bool,
    /// Devices that could not be asked.
    pub away: Vec<u32>,
}

impl Osds<'_> {
    /// The RW volumes in whose names there are objects on any device that answers.
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

    /// Collects, or with `dry` lists, what nobody needs of the objects of an RW volume and was not written for
    /// `grace` seconds.
    ///
    /// # Errors
    /// No file server does it, or the caller may not.
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
                 server that knows no objects?"
            )));
        }
        Ok(CollectedView {
            volume: volume.0,
            silent,
            ..CollectedView::default()
        })
    }

    /// `None`: another server has to do it.
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
