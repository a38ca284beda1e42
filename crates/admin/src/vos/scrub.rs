//! Verifying what a volume server stores, while it is in use.
//!
//! Only Cellar's servers keep checksums; another says that it does not know the call. The server
//! goes on as long as its caller listens, and stops when the caller goes away.

use cellar_rpc::OutgoingCall;
use cellar_wire::afsvol::{
    self, SCRUB_DAMAGE, SCRUB_END, SCRUB_PROGRESS, ScrubDamage, ScrubProgress,
};
use cellar_wire::ids::VolumeId;
use serde::Serialize;

use super::job::Course;
use super::{Location, Volumes};
use crate::error::{Error, Result};

/// Damages kept of one scrub; more are counted.
const DAMAGES_MAX: usize = 10_000;

/// Something that is not what was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The volume.
    pub volume: u32,
    /// The file's vnode; 0: a record of the volume.
    pub vnode: u32,
    /// Its uniquifier.
    pub uniquifier: u32,
    /// Its path in the volume, as far as it is known.
    pub path: String,
    /// The data version of the damaged bytes; 0 if the record cannot be read.
    pub data_version: u64,
    /// The length of the file.
    pub length: u64,
    /// Ranges of bytes, first and length; none: the file's record.
    pub places: Vec<(u64, u64)>,
    /// What is wrong.
    pub cause: String,
}

/// What was looked at and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scrubbed {
    /// Volumes looked at.
    pub volumes: u64,
    /// Files and directories looked at.
    pub vnodes: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damages found.
    pub damaged: u64,
    /// The first of them.
    pub damages: Vec<Damage>,
    /// It was ended before everything was looked at.
    pub partial: bool,
}

impl Volumes<'_> {
    /// Verifies a volume, or with id 0 every volume of a partition, at up to `rate_kib` KiB a
    /// second (0: as fast as it goes). `seen` is told of bytes read so far.
    ///
    /// # Errors
    /// There is no such volume there, the partition is being scrubbed already, the server is not
    /// Cellar's, or the caller has no permission.
    pub async fn scrub(
        &self,
        at: Location,
        volume: VolumeId,
        rate_kib: u32,
        course: Course<'_>,
        mut seen: impl FnMut(u64),
    ) -> Result<Scrubbed> {
        let what = match volume {
            VolumeId(0) => format!("Failed to scrub {at}"),
            volume => format!("Failed to scrub volume {volume} on {at}"),
        };
        let refused = |cause| Error::refused(what.clone(), cause);
        let arguments = afsvol::Scrub {
            partition: at.partition.number(),
            volume,
            rate_kib,
        };
        let connection = self.connection(at.server.into());
        let mut call: OutgoingCall = connection.open(&arguments).await.map_err(refused)?;
        call.finish();
        let mut scrubbed = Scrubbed::default();
        loop {
            let next = async { call.read::<u32>().await.map_err(refused) };
            match course.or_stop(next).await? {
                SCRUB_PROGRESS => {
                    let progress: ScrubProgress = call.read().await.map_err(refused)?;
                    scrubbed.volumes = progress.volumes;
                    scrubbed.vnodes = progress.vnodes;
                    scrubbed.bytes = progress.bytes;
                    scrubbed.damaged = progress.damaged;
                    seen(progress.bytes);
                }
                SCRUB_DAMAGE => {
                    let damage: ScrubDamage = call.read().await.map_err(refused)?;
                    if scrubbed.damages.len() < DAMAGES_MAX {
                        scrubbed.damages.push(from_wire(&damage));
                    }
                }
                SCRUB_END => break,
                _ => {
                    let reply =
                        cellar_rpc::CallError::BadReply(cellar_wire::DecodeError::Truncated);
                    return Err(refused(reply));
                }
            }
        }
        let reply: afsvol::ScrubReply = call.results().await.map_err(refused)?;
        scrubbed.partial = reply.partial;
        Ok(scrubbed)
    }
}

fn from_wire(damage: &ScrubDamage) -> Damage {
    Damage {
        volume: damage.volume.0,
        vnode: damage.vnode.0,
        uniquifier: damage.uniquifier.0,
        path: damage.path.to_string(),
        data_version: damage.data_version,
        length: damage.length,
        places: damage
            .places
            .iter()
            .map(|place| (place.at, place.length))
            .collect(),
        cause: damage.cause.to_string(),
    }
}
