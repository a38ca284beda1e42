//! Makes a copy of a file in an archive.

use std::sync::Arc;

use cellar_rpc::{CallError, Connection, blocking};
use cellar_volume::{ArchiveState, Referenced, VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::{ArchiveCopy, Layout};
use cellar_wire::osd::{Digest, DigestReply, REMOVE_HARD, Write, WriteReply};
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE};
use tracing::{info, warn};

use super::super::Objects;
use super::super::apart::run_apart;
use super::super::failure::Failure;
use super::super::figures::Counters;
use super::super::prune::remove;
use super::super::storage::Storage;
use super::super::whole_file::{InObjects, ObjectBytes};
use super::sums::Sums;

/// A file that is to be copied.
struct Present {
    status: VnodeStatus,
    layout: Arc<Layout>,
    archive: ArchiveState,
}

impl Objects {
    /// Copies the present bytes of a file to an archive. If the archive has a good copy of them
    /// already, that is the result, and nothing is sent.
    ///
    /// # Errors
    /// `Invalid`: the device is no archive, or the file is not in objects. `Volume(Archived)`: the
    /// file is wiped. `Busy`: the file changed meanwhile. `Devices`: the archive or a device of the
    /// file failed.
    pub async fn archive(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        osd: u32,
    ) -> Result<ArchiveCopy, Failure> {
        let storage = self.needed()?;
        check_archive(storage, osd)?;
        let present = present(volume, fid).await?;
        if let Some(copy) = present.archive.current().find(|copy| copy.osd == osd) {
            return Ok(*copy);
        }
        // No reader: a copy is no use of the file.
        let read_guard = self.open_reads.begin(fid, &present.layout);
        let unchanged = {
            let volume = volume.clone();
            run_apart(move || Ok(volume.layout(fid)?)).await?
        };
        if unchanged.as_ref() != Some(&present.layout) {
            return Err(Failure::Busy);
        }
        let mut copy = begun(&present, osd);
        let object = copy.object(fid.vnode, fid.uniquifier);
        let _pending = self.pending_versions.begin(vec![Referenced {
            object,
            version: copy.version,
            osd,
            owner: ViceId::default(),
        }]);
        let sent = self.send_copy(storage, fid, &present, &copy).await;
        drop(read_guard);
        let summed = match sent {
            Ok(summed) => summed,
            Err(failure) => {
                Counters::count(&self.counters.copies_failed);
                let name = self.device_name(osd);
                warn!(%fid, osd, name, %failure, "a file could not be copied to an archive");
                remove(storage, osd, &[(object, 0)], REMOVE_HARD).await;
                return Err(failure);
            }
        };
        copy.length = summed.length;
        (copy.blake3, copy.md5) = (summed.blake3, summed.md5);
        copy.made = self.wall().as_secs();
        let entered = {
            let volume = volume.clone();
            blocking(move || volume.add_archive_copy(fid.vnode, fid.uniquifier, &copy)).await
        };
        let entered = match entered {
            Ok(entered) => {
                entered.durable.await?;
                entered.outcome
            }
            Err(cellar_volume::Error::Busy(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        if entered == 0 {
            remove(storage, osd, &[(object, 0)], REMOVE_HARD).await;
            return Err(Failure::Busy);
        }
        Counters::count(&self.counters.copies_made);
        Counters::add(&self.counters.copied_bytes, copy.length);
        info!(%fid, osd, length = copy.length, "a file was copied to an archive");
        Ok(copy)
    }

    /// Sends the bytes, and compares the BLAKE3 that the archive computed with our own.
    async fn send_copy(
        self: &Arc<Self>,
        storage: &Storage,
        fid: Fid,
        present: &Present,
        copy: &ArchiveCopy,
    ) -> Result<DigestReply, Failure> {
        let connection = connection(storage, copy.osd)?;
        let (capability, length) = (storage.capability(copy.osd), present.status.length);
        let object = copy.object(fid.vnode, fid.uniquifier);
        let file = InObjects {
            fid,
            layout: present.layout.clone(),
            length,
        };
        let mut bytes = ObjectBytes::begin(self, file).map_err(Failure::Devices)?;
        let arguments = Write {
            capability: capability.clone(),
            object,
            base: 0,
            version: copy.version,
            position: 0,
            length,
        };
        let failed = |cause: CallError| Failure::Devices(cause.code());
        let mut call = connection.open(&arguments).await.map_err(failed)?;
        let (mut sums, mut left) = (Sums::default(), length);
        while left > 0 {
            let piece = bytes.next().await.map_err(Failure::Devices)?;
            left = left.saturating_sub(piece.len() as u64);
            sums.add(piece.clone()).await;
            match call.write(piece).await {
                // The archive has already answered; its answer has the reason.
                Err(CallError::AnsweredEarly) => break,
                sent => sent.map_err(failed)?,
            }
        }
        call.finish();
        call.results::<WriteReply>().await.map_err(failed)?;
        let summed = sums.finish().await;
        let arguments = Digest {
            capability,
            object,
            version: copy.version,
        };
        let there = connection.call(&arguments).await.map_err(failed)?;
        if (there.length, there.blake3) != summed {
            let name = self.device_name(copy.osd);
            warn!(%fid, osd = copy.osd, name, "an archive has other bytes than were sent");
            return Err(Failure::Devices(AbortCode::EIO));
        }
        Ok(there)
    }
}

/// Checks that a device is an archive that takes copies.
fn check_archive(storage: &Storage, osd: u32) -> Result<(), Failure> {
    let listed = storage.devices.get(osd).ok_or(Failure::Invalid)?;
    let flags = listed.entry.flags;
    let takes = flags & OSD_ARCHIVAL != 0 && flags & (OSD_OBSOLETE | OSD_DRAINING) == 0;
    takes.then_some(()).ok_or(Failure::Invalid)
}

/// A connection to an archive that is not known to be dead.
pub(super) fn connection(storage: &Storage, osd: u32) -> Result<Connection, Failure> {
    let connection = storage.devices.connection_for_work(osd);
    connection.ok_or(Failure::Devices(AbortCode::EIO))
}

async fn present(volume: &Arc<Volume>, fid: Fid) -> Result<Present, Failure> {
    let volume = volume.clone();
    run_apart(move || {
        let (status, layout) = volume.status_and_layout(fid)?;
        let archive = volume.archive_state(fid)?;
        let layout = match (layout, &archive.wiped) {
            (Some(layout), _) => layout,
            (None, Some(_)) => return Err(cellar_volume::Error::Archived(fid).into()),
            (None, None) => return Err(Failure::Invalid),
        };
        Ok(Present {
            status,
            layout,
            archive,
        })
    })
    .await
}

/// The record of a copy that is not made yet.
fn begun(present: &Present, osd: u32) -> ArchiveCopy {
    let contents = present.layout.contents();
    ArchiveCopy {
        osd,
        volume: contents.volume,
        serial: upper_serial(),
        version: contents.version,
        data_version: present.status.data_version,
        ..ArchiveCopy::default()
    }
}

/// A serial number that stores do not use.
pub(super) fn upper_serial() -> u32 {
    rand::random::<u32>() | 1 << 31
}
