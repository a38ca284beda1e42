//! Read-only volumes follow the wipes of their RW volume on another server.
//!
//! A clone beside its RW volume shares the records of files with it: a wipe changes both. A
//! read-only volume of another server has records of its own, and would keep the bytes on the
//! devices.
//!
//! 1. The server of the read-only volume asks the server of the RW volume for its wiped files
//!    ([`ListWiped`]). It does so every hour, and when a census is requested.
//! 2. A file whose bytes have the same name there is wiped here. It receives the records of the
//!    copies first, and all of these archives must confirm them again.
//! 3. A file that was read here during the last day stays. Otherwise a recall by a reader of the
//!    read-only volume would not last.
//! 4. A newer RW volume names other bytes. Then the files stay, and the next release replaces them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{Connection, blocking};
use cellar_volume::ReplicaFile;
use cellar_wire::List;
use cellar_wire::afsosd::{ListWiped, ListWipedReply, WIPED_FILES_MAX, WipedFile};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Contents, Layout};
use cellar_wire::osddb::OSD_ARCHIVAL;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::super::Objects;
use super::super::failure::Failure;

/// Time between two rounds without a request.
pub(super) const INTERVAL: Duration = Duration::from_secs(3600);
/// Records that are read at a time.
const RECORDS_AT_A_TIME: usize = 16 << 10;
/// Time for the answer of another file server.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// Seconds for which a file stays after it was read here.
const USED_STAYS: u64 = 86_400;

/// Names the bytes of a file in all volumes of a family.
type BytesKey = (VnodeId, Uniquifier, Contents);

impl Objects {
    /// The wiped files of an RW volume of this server, with vnode numbers above `after`.
    ///
    /// # Errors
    /// `NoVolume`: the RW volume is not here. The store cannot be read.
    pub fn list_wiped(&self, volume: VolumeId, after: VnodeId) -> Result<ListWipedReply, Failure> {
        let (_, attached) = self.volumes.find(volume)?.ok_or(Failure::NoVolume)?;
        let first = attached.volume.place_of(VnodeId(0));
        let mut from = attached.volume.place_of(after) + 1;
        let mut files: Vec<WipedFile> = Vec::new();
        loop {
            let partition = &attached.partition;
            let (found, next) = partition.archivable_files(from, RECORDS_AT_A_TIME, |file| {
                file.status.fid.volume == volume && file.layout.is_none()
            })?;
            let wiped = found.iter().map(|file| WipedFile {
                vnode: file.status.fid.vnode,
                uniquifier: file.status.fid.uniquifier,
                owner: file.contents.volume,
                version: file.contents.version,
                copies: List::from_iter_cut(
                    file.copies()
                        .iter()
                        .filter(|copy| copy.has(file.contents) && !copy.bad)
                        .copied(),
                ),
            });
            files.extend(wiped);
            // Places of later groups are higher.
            let next = next.filter(|next| *next <= first + u64::from(u32::MAX));
            if files.len() > WIPED_FILES_MAX {
                files.truncate(WIPED_FILES_MAX);
                return Ok(page(files, true));
            }
            match next {
                Some(next) => from = next,
                None => return Ok(page(files, false)),
            }
        }
    }

    /// Wipes files of read-only volumes whose RW volume, on another server, has the same bytes in
    /// archives only. Returns their number and bytes.
    ///
    /// # Errors
    /// The store cannot be read. `Busy`: the server stops. Silent servers are skipped.
    pub(super) async fn follow_wipes(self: &Arc<Self>) -> Result<(u64, u64), Failure> {
        let storage = self.needed()?;
        let listed = storage.devices.list();
        let has_archives = listed.iter().any(|d| d.entry.flags & OSD_ARCHIVAL != 0);
        if !has_archives || self.upkeep.get().is_none() {
            return Ok((0, 0));
        }
        let mut wiped = (0, 0);
        for (_, partition) in self.volumes.partitions() {
            let mut from = Some(0);
            while let Some(place) = from {
                if self.is_stopping() {
                    return Err(Failure::Busy);
                }
                let part = partition.clone();
                let looked = blocking(move || part.replica_files(place, RECORDS_AT_A_TIME));
                let (files, next) = looked.await?;
                from = next;
                let mut families: BTreeMap<VolumeId, Vec<ReplicaFile>> = BTreeMap::new();
                for file in files {
                    families.entry(file.parent).or_default().push(file);
                }
                for (parent, files) in families {
                    let (count, bytes) = self.follow_family(parent, &files).await;
                    wiped = (wiped.0 + count, wiped.1 + bytes);
                }
            }
        }
        if wiped.0 > 0 {
            info!(
                files = wiped.0,
                bytes = wiped.1,
                "files of read-only volumes were wiped like those of their RW volumes"
            );
        }
        Ok(wiped)
    }

    /// The same for files of one family.
    async fn follow_family(
        self: &Arc<Self>,
        parent: VolumeId,
        files: &[ReplicaFile],
    ) -> (u64, u64) {
        let Some(server) = self.read_write_site(parent).await else {
            return (0, 0);
        };
        let Some(upkeep) = self.upkeep.get() else {
            return (0, 0);
        };
        let connection = upkeep.servers.connection(server);
        let known = match wiped_there(&connection, parent, files).await {
            Some(known) => known,
            None => {
                debug!(%parent, %server, "a file server does not list the wiped files of a volume");
                return (0, 0);
            }
        };
        let mut wiped = (0, 0);
        for file in files {
            let key = key_of(file.fid, &file.layout);
            let Some(there) = known.get(&key) else {
                continue;
            };
            match self.follow_file(file, there).await {
                Ok(0) => {}
                Ok(bytes) => wiped = (wiped.0 + 1, wiped.1 + bytes),
                Err(failure) => {
                    debug!(fid = %file.fid, %failure, "a file does not follow the wipe of its RW volume");
                }
            }
        }
        wiped
    }

    /// Wipes one file. Returns its bytes; 0: it changed, or was read lately.
    async fn follow_file(
        self: &Arc<Self>,
        file: &ReplicaFile,
        there: &WipedFile,
    ) -> Result<u64, Failure> {
        let used = u64::from(self.last_uses.of(file.layout.volume, file.fid));
        if used != 0 && self.wall().as_secs().saturating_sub(used) < USED_STAYS {
            return Ok(0);
        }
        let id = file.fid.volume;
        let objects = self.clone();
        let found = blocking(move || objects.volumes.find(id)).await?;
        let Some((_, attached)) = found else {
            return Ok(0);
        };
        for &copy in there.copies.iter() {
            let (volume, fid) = (attached.volume.clone(), file.fid);
            let entered =
                blocking(move || volume.add_archive_copy(fid.vnode, fid.uniquifier, &copy)).await;
            entered?.durable.await?;
        }
        self.wipe(&attached.volume, file.fid, there.copies.len())
            .await
    }

    /// The server that has the RW volume of a family.
    async fn read_write_site(&self, parent: VolumeId) -> Option<IpAddr> {
        let upkeep = self.upkeep.get()?;
        match upkeep.servers.family(parent).await {
            Ok(family) => {
                let family = family?;
                let site = family.sites.iter().find(|site| site.read_write)?;
                Some(site.server)
            }
            Err(error) => {
                warn!(%parent, %error, "the location database does not tell the site of a volume");
                None
            }
        }
    }
}

fn page(files: Vec<WipedFile>, more: bool) -> ListWipedReply {
    let next = files.last().map(|file| file.vnode).unwrap_or_default();
    ListWipedReply {
        files: List::from_iter_cut(files),
        more,
        next,
    }
}

fn key_of(fid: Fid, layout: &Layout) -> BytesKey {
    (fid.vnode, fid.uniquifier, layout.contents())
}

/// The wiped files of an RW volume among the vnodes of `files`. `None`: its server does not answer,
/// or is too old to have the call.
async fn wiped_there(
    connection: &Connection,
    parent: VolumeId,
    files: &[ReplicaFile],
) -> Option<HashMap<BytesKey, WipedFile>> {
    let vnodes = files.iter().map(|file| file.fid.vnode);
    let (first, last) = (vnodes.clone().min()?, vnodes.max()?);
    let mut known = HashMap::new();
    let mut after = VnodeId(first.0.saturating_sub(1));
    loop {
        let asked = ListWiped {
            volume: parent,
            after,
        };
        let answer = timeout(ANSWER_PATIENCE, connection.call(&asked)).await;
        let listed = answer.ok()?.ok()?;
        let (more, next) = (listed.more, listed.next);
        for file in listed.files {
            let contents = Contents {
                volume: file.owner,
                version: file.version,
            };
            known.insert((file.vnode, file.uniquifier, contents), file);
        }
        if !more || next >= last || next <= after {
            return Some(known);
        }
        after = next;
    }
}
