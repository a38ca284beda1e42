//! Reads copies back from their archives, and compares them with their records.

use std::sync::Arc;

use cellar_volume::Volume;
use cellar_wire::ids::Fid;
use cellar_wire::object::ArchiveCopy;
use tracing::warn;

use super::super::Objects;
use super::super::apart::run_apart;
use super::super::failure::Failure;
use super::super::figures::Counters;
use super::super::storage::Storage;
use super::copy_reader::{self, NotRead};

/// The result of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Copies that have the recorded bytes.
    pub good: u32,
    /// Copies that were found to be bad just now.
    pub bad: u32,
    /// Bytes that were compared.
    pub bytes: u64,
}

impl Objects {
    /// Reads the copies of a file in an archive back, also those of older bytes, and compares them
    /// with the record. The record gets the time of the comparison, or the mark that the copy is
    /// bad. Copies that are known to be bad are not read.
    ///
    /// # Errors
    /// `Devices`: the archive does not answer, or failed. Then nothing is known about the copy. The
    /// errors of the volume.
    pub async fn verify(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        osd: u32,
    ) -> Result<Verified, Failure> {
        let storage = self.needed()?;
        let archive = {
            let volume = volume.clone();
            run_apart(move || Ok(volume.archive_state(fid)?)).await?
        };
        let mut verified = Verified::default();
        let known = archive.copies.into_iter();
        for copy in known.filter(|copy| copy.osd == osd && !copy.bad) {
            match read_back(storage, fid, &copy).await {
                Ok(()) => {
                    verified.good += 1;
                    verified.bytes += copy.length;
                    Counters::count(&self.counters.copies_verified);
                    Counters::add(&self.counters.verified_bytes, copy.length);
                    let now = self.wall().as_secs();
                    self.edit_copy(volume, fid, copy, move |copy| copy.verified = now)
                        .await?;
                }
                Err(NotRead::Failed(failure)) => return Err(failure),
                // The copy may have been removed meanwhile, because no record names it any more.
                Err(NotRead::WrongBytes(reason)) => {
                    if self.mark_bad(volume, fid, copy).await? {
                        let name = self.device_name(osd);
                        warn!(%fid, osd, name, reason,
                            "a copy in an archive is bad and is not used any more");
                        verified.bad += 1;
                    }
                }
            }
        }
        Ok(verified)
    }
}

async fn read_back(storage: &Storage, fid: Fid, copy: &ArchiveCopy) -> Result<(), NotRead> {
    let call = copy_reader::open(storage, fid, copy, copy.length, 0).await?;
    copy_reader::read_compared(call, copy, async |_| Ok(())).await
}
