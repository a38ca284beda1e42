//! The contents of a device: objects, the files that need them, counters, repairs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use cellar_client::Cell;
use cellar_policy::bytes;
use cellar_rpc::CallError;
use cellar_wire::afsosd::{ListOnDevice, RepairStatus, RepairStatusReply};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{Examine, GetStatistics, LIST_REMOVED, ListObjects, NAMED_MAX, ObjectInfo};
use cellar_wire::{AbortCode, Procedure, afsosd};
use serde::Serialize;

use super::{Osds, refused_by_server};
use crate::date::ctime_or_never;
use crate::error::{Error, Result, is_unknown_there};
use crate::table::short_size;
use crate::vos::Volumes;

/// The most calls for one listing, in case a server never says "end".
const PAGES_MAX: usize = 1_000_000;
/// The number of files per call.
const FILES_AT_ONCE: u32 = 4096;

/// A version of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VersionView {
    /// The version number.
    pub version: u64,
    /// Bytes.
    pub length: u64,
    /// Time of the last write, in seconds since 1970.
    pub written: u64,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectView {
    /// `volume.vnode.uniquifier.serial`
    pub object: String,
    /// The volume, from the object's name.
    pub volume: u32,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Approximate time of the last read.
    pub accessed: u64,
    /// Time of removal; 0 if the object exists.
    pub removed: u64,
    /// Space on the device, in bytes.
    pub allocated: u64,
    /// Its versions, oldest first.
    pub versions: Vec<VersionView>,
}

impl ObjectView {
    fn of(info: &ObjectInfo) -> Self {
        let versions = info.versions.iter().map(|version| VersionView {
            version: version.version,
            length: version.length,
            written: version.written,
        });
        Self {
            object: object_name(&info.object),
            volume: info.object.volume.0,
            created: info.created,
            accessed: info.accessed,
            removed: info.removed,
            allocated: info.allocated,
            versions: versions.collect(),
        }
    }

    /// The fields and versions, one per line.
    pub fn examined(&self) -> String {
        let mut text = format!("Object {}\n", self.object);
        let lines = [
            ("Created", date(self.created)),
            ("Read", date(self.accessed)),
            ("Removed", date(self.removed)),
            ("Takes", bytes(self.allocated)),
        ];
        for (name, value) in lines {
            text.push_str(&format!("    {name:<9} {value}\n"));
        }
        for version in &self.versions {
            text.push_str(&format!(
                "    Version   {}: {}, written {}\n",
                version.version,
                bytes(version.length),
                date(version.written)
            ));
        }
        text
    }
}

fn date(seconds: u64) -> String {
    match u32::try_from(seconds) {
        Ok(seconds) => ctime_or_never(AfsTime(seconds)),
        Err(_) => format!("{seconds} seconds after 1970"),
    }
}

/// The head of `osd objects`. Its columns have fixed widths, because the list is too long to be
/// held for a table.
pub fn objects_head() -> String {
    object_row("Object", "Versions", "Length", "Takes", "Written")
}

fn object_row(object: &str, versions: &str, length: &str, takes: &str, written: &str) -> String {
    format!("{object:<32} {versions:>8} {length:>16} {takes:>11}  {written}\n")
}

impl ObjectView {
    /// The row of this object below [`objects_head`].
    pub fn row(&self) -> String {
        let newest = self.versions.last();
        let length = newest.map_or(0, |version| version.length);
        let written = newest.map_or(0, |version| version.written);
        object_row(
            &self.object,
            &self.versions.len().to_string(),
            &length.to_string(),
            &short_size(self.allocated),
            &date(written),
        )
    }
}

/// `volume.vnode.uniquifier.serial`
pub(crate) fn object_name(id: &ObjectId) -> String {
    format!("{}.{}.{}.{}", id.volume, id.vnode, id.uniquifier, id.serial)
}

/// Parses the name of an object.
pub(super) fn parse_object(text: &str) -> Result<ObjectId> {
    let parts: Vec<Option<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    match parts[..] {
        [Some(volume), Some(vnode), Some(uniquifier), Some(serial)] => Ok(ObjectId {
            volume: VolumeId(volume),
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(uniquifier),
            serial,
        }),
        _ => Err(Error::Usage(format!(
            "'{text}' is not an object; write VOLUME.VNODE.UNIQUIFIER.SERIAL, as 'cellar osd objects' does"
        ))),
    }
}

/// Totals of one volume's objects on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// Number of objects.
    pub objects: u64,
    /// Space on the device, in bytes.
    pub allocated: u64,
    /// Sum of the lengths of the newest versions.
    pub length: u64,
}

/// The files that have objects on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FilesOn {
    /// File server and fid.
    pub files: Vec<(IpAddr, String)>,
    /// File servers that did not answer.
    pub silent: Vec<IpAddr>,
}

/// State of the repair queue of a file server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RepairView {
    /// The file server.
    pub server: IpAddr,
    /// Number of waiting objects.
    pub waiting: u64,
    /// Their approximate size in bytes.
    pub waiting_bytes: u64,
    /// Number of objects that are being repaired.
    pub running: u64,
    /// Number of repaired objects.
    pub repaired: u64,
    /// Number of those that had been damaged.
    pub healed: u64,
    /// Number of waiting objects whose last repair failed.
    pub failed: u64,
    /// Number of copied bytes.
    pub bytes: u64,
    /// The recent rate, in bytes per second.
    pub rate: u64,
    /// The server is searching its files for more objects to repair.
    pub looking: bool,
}

impl Osds<'_> {
    /// Calls `each` for the objects of a device in ascending order, until it returns `false`. With
    /// `volume`, only the objects of that volume; with `removed`, the removed objects that can
    /// still be restored.
    ///
    /// # Errors
    /// There is no such device, or its server does not answer, or the caller has no permission.
    pub async fn objects(
        &self,
        name_or_id: &str,
        volume: Option<VolumeId>,
        removed: bool,
        mut each: impl FnMut(ObjectView) -> bool,
    ) -> Result<()> {
        let (_, listed) = self.find(name_or_id).await?;
        let connection = self.server(&listed.entry)?;
        let what = format!("cannot list the objects of device {}", listed.entry.id);
        let mut after = ObjectId::default();
        for _ in 0..PAGES_MAX {
            let page = ListObjects {
                capability: Self::superuser(&listed.entry),
                volume: volume.unwrap_or_default().0,
                after,
                limit: NAMED_MAX as u32,
                flags: if removed { LIST_REMOVED } else { 0 },
            };
            let page = connection
                .call(&page)
                .await
                .map_err(|cause| refused_by_server(&listed.entry, &what, cause))?;
            for info in &page.objects {
                if !each(ObjectView::of(info)) {
                    return Ok(());
                }
            }
            match page.objects.last() {
                Some(last) if page.more && last.object > after => after = last.object,
                _ => break,
            }
        }
        Ok(())
    }

    /// The objects of each volume on a device.
    ///
    /// # Errors
    /// As [`Osds::objects`].
    pub async fn volumes(&self, name_or_id: &str) -> Result<BTreeMap<u32, Contents>> {
        let mut volumes: BTreeMap<u32, Contents> = BTreeMap::new();
        self.objects(name_or_id, None, false, |object| {
            let of_volume = volumes.entry(object.volume).or_default();
            of_volume.objects += 1;
            of_volume.allocated += object.allocated;
            of_volume.length += object.versions.last().map_or(0, |version| version.length);
            true
        })
        .await?;
        Ok(volumes)
    }

    /// One object of a device.
    ///
    /// # Errors
    /// It is not there, or as [`Osds::objects`].
    pub async fn object(&self, name_or_id: &str, object: &str) -> Result<ObjectView> {
        let (_, listed) = self.find(name_or_id).await?;
        let asked = Examine {
            capability: Self::superuser(&listed.entry),
            object: parse_object(object)?,
        };
        let answer = self.server(&listed.entry)?.call(&asked).await;
        match answer {
            Ok(reply) => Ok(ObjectView::of(&reply.info)),
            Err(cause) if cause.code().to_plain() == AbortCode::ENOENT => Err(Error::Usage(
                format!("object {object} is not on device {}", listed.entry.id),
            )),
            Err(cause) => Err(Error::refused(
                format!("cannot examine object {object}"),
                cause,
            )),
        }
    }

    /// The counters of a device's server.
    ///
    /// # Errors
    /// There is no such device, or its server does not answer.
    pub async fn statistics(&self, name_or_id: &str) -> Result<Vec<(String, u64)>> {
        let (_, listed) = self.find(name_or_id).await?;
        let what = format!("cannot get the counters of device {}", listed.entry.id);
        let reply = self.server(&listed.entry)?.call(&GetStatistics {}).await;
        let figures = reply
            .map_err(|cause| refused_by_server(&listed.entry, what, cause))?
            .figures;
        let figures = figures.iter();
        Ok(figures
            .map(|figure| (figure.name.to_string(), figure.value))
            .collect())
    }

    /// The file servers of the cell. If a server has several addresses, the first one is used.
    pub(super) async fn file_servers(&self) -> Result<Vec<IpAddr>> {
        let servers = Volumes::new(self.client, self.cell).addresses().await?;
        let first = servers.iter().filter_map(|server| server.addresses.first());
        Ok(first.copied().collect())
    }

    pub(super) async fn file_server<P: Procedure>(
        &self,
        server: IpAddr,
        arguments: &P,
    ) -> std::result::Result<P::Reply, CallError> {
        let cell: &Cell = self.cell;
        let peer = SocketAddr::new(server, cell.ports.fileserver);
        let servers = self.client.servers();
        let connection = servers.connection(&cell.name, peer, &afsosd::PACKAGE);
        connection.call(arguments).await
    }

    /// The files that have objects on a device, at most `limit` from each file server.
    ///
    /// # Errors
    /// The VLDB does not answer, or the caller has no permission.
    pub async fn files_on(&self, osd: u32, limit: usize) -> Result<FilesOn> {
        let mut found = FilesOn::default();
        for server in self.file_servers().await? {
            let mut after = Fid::default();
            let mut left = limit;
            while left > 0 {
                let ask = FILES_AT_ONCE.min(u32::try_from(left).unwrap_or(u32::MAX));
                let page = ListOnDevice {
                    osd,
                    after,
                    limit: ask,
                };
                let page = match self.file_server(server, &page).await {
                    Ok(page) => page,
                    // A server without object storage has no such files.
                    Err(cause) if is_unknown_there(cause.code()) => break,
                    Err(cause) if cause.is_unreachable() => {
                        found.silent.push(server);
                        break;
                    }
                    Err(cause) => {
                        let what = format!("cannot ask file server {server} for its files");
                        return Err(Error::refused(what, cause));
                    }
                };
                left -= page.files.len().min(left);
                let files = page.files.iter().map(|fid| (server, fid.to_string()));
                found.files.extend(files);
                match page.files.last() {
                    Some(last) if page.more => after = *last,
                    _ => break,
                }
            }
        }
        Ok(found)
    }

    /// The repair queues of all file servers, and the servers that did not answer.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn repairs(&self) -> Result<(Vec<RepairView>, Vec<IpAddr>)> {
        let (mut queues, mut silent) = (Vec::new(), Vec::new());
        for server in self.file_servers().await? {
            match self.repairs_of(server).await {
                Ok(Some(queue)) => queues.push(queue),
                Ok(None) => {}
                Err(_) => silent.push(server),
            }
        }
        Ok((queues, silent))
    }

    /// The repair queue of a file server; `None` for one without object storage.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn repairs_of(&self, server: IpAddr) -> Result<Option<RepairView>> {
        let status = match self.file_server(server, &RepairStatus {}).await {
            Ok(RepairStatusReply { status }) => status,
            Err(cause) if is_unknown_there(cause.code()) => return Ok(None),
            Err(cause) => {
                let what = format!("cannot ask file server {server} for its repairs");
                return Err(Error::refused(what, cause));
            }
        };
        Ok(Some(RepairView {
            server,
            waiting: status.waiting,
            waiting_bytes: status.waiting_bytes,
            running: status.running,
            repaired: status.repaired,
            healed: status.healed,
            failed: status.failed,
            bytes: status.bytes,
            rate: status.rate,
            looking: status.looking,
        }))
    }
}
