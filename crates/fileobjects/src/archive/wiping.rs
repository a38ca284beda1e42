//! Takes files that archives have off their online devices.

use std::sync::Arc;

use cellar_rpc::blocking;
use cellar_volume::{ArchiveState, VnodeStatus, Volume};
use cellar_wire::ids::Fid;
use cellar_wire::object::ArchiveCopy;
use cellar_wire::osd::Examine;
use tracing::{debug, info};

use super::super::Objects;
use super::super::apart::run_apart;
use super::super::failure::Failure;
use super::super::figures::Counters;
use super::copying::connection;

impl Objects {
    /// Wipes a file if at least `needed` archives confirm that they have good copies of its present
    /// bytes. Returns the bytes that its versions here no longer need, as clients see the length;
    /// 0: the file is not in objects, is wiped, or changed meanwhile.
    ///
    /// # Errors
    /// `TooFewCopies`. `Pinned`. `NotKnownYet`: the pins are not known since the start. `Busy`:
    /// clones of the volume are made or removed. The errors of the volume.
    pub async fn wipe(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        needed: usize,
    ) -> Result<u64, Failure> {
        let (status, archive) = {
            let volume = volume.clone();
            run_apart(move || Ok((volume.status(fid)?, volume.archive_state(fid)?))).await?
        };
        let Some(contents) = archive.contents.filter(|_| archive.wiped.is_none()) else {
            return Ok(0);
        };
        self.check_pins(volume, &status).await?;
        let confirmed = self.confirmed_copies(fid, &status, &archive).await?;
        if confirmed < needed.max(1) {
            debug!(%fid, confirmed, needed, "too few archives confirm their copies");
            return Err(Failure::TooFewCopies);
        }
        // A store that is in progress names the objects that it writes on.
        let store_lock = self.store_locks.wait(fid).await.ok_or(Failure::Busy)?;
        let wiped = {
            let volume = volume.clone();
            blocking(move || volume.wipe(fid.vnode, fid.uniquifier, contents, needed)).await
        };
        let wiped = match wiped {
            Err(cellar_volume::Error::Busy(_)) => return Err(Failure::Busy),
            wiped => wiped?,
        };
        wiped.durable.await?;
        drop(store_lock);
        let layouts = wiped.outcome.layouts;
        if layouts.is_empty() {
            return Ok(0);
        }
        for layout in layouts {
            self.forget(volume, fid, layout);
        }
        Counters::count(&self.counters.wiped);
        Counters::add(&self.counters.wiped_bytes, status.length);
        info!(%fid, length = status.length, "a file was wiped; archives have its bytes");
        Ok(status.length)
    }

    /// Refuses a file that is pinned. Without hierarchical storage a server has no pins.
    async fn check_pins(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        status: &VnodeStatus,
    ) -> Result<(), Failure> {
        if self.jobs().is_none() {
            return Ok(());
        }
        if !self.pins.are_known() {
            return Err(Failure::NotKnownYet);
        }
        let (objects, volume, status) = (self.clone(), volume.clone(), *status);
        let now = self.wall().as_secs();
        let covered = run_apart(move || {
            // A clone shares the bytes with its RW volume, whose pins hold for both.
            let owner = volume.info().parent;
            Ok(objects.pins.cover(&volume, owner, &status, now)?)
        });
        let covered = covered.await?;
        match covered {
            true => Err(Failure::Pinned),
            false => Ok(()),
        }
    }

    /// The number of archives that confirm a good copy of the present bytes.
    async fn confirmed_copies(
        &self,
        fid: Fid,
        status: &VnodeStatus,
        archive: &ArchiveState,
    ) -> Result<usize, Failure> {
        let mut confirmed = 0;
        for copy in archive.current() {
            match self.confirms(fid, status, copy).await {
                Ok(true) => confirmed += 1,
                Ok(false) => {
                    let name = self.device_name(copy.osd);
                    tracing::warn!(%fid, osd = copy.osd, name, "an archive lacks a copy that it took");
                }
                Err(failure) => {
                    debug!(%fid, osd = copy.osd, %failure, "an archive does not answer")
                }
            }
        }
        Ok(confirmed)
    }

    /// Whether an archive has the object of a copy, in its version and length.
    async fn confirms(
        &self,
        fid: Fid,
        status: &VnodeStatus,
        copy: &ArchiveCopy,
    ) -> Result<bool, Failure> {
        let storage = self.needed()?;
        let connection = connection(storage, copy.osd)?;
        let asked = Examine {
            capability: storage.capability(copy.osd),
            object: copy.object(fid.vnode, fid.uniquifier),
        };
        let info = match connection.call(&asked).await {
            Err(cause) if cause.code() == cellar_wire::AbortCode::ENOENT => return Ok(false),
            info => info.map_err(|cause| Failure::Devices(cause.code()))?.info,
        };
        let mut versions = info.versions.iter();
        Ok(versions.any(|known| (known.version, known.length) == (copy.version, status.length)))
    }
}
