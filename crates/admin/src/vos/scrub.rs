//! Verifying the data of a volume server while it is in use.
//!
//! Only Cellar's servers keep checksums; other servers do not know the call. The server continues
//! while its caller listens, and stops when the caller disconnects.

use cellar_rpc::OutgoingCall;
use cellar_wire::afsvol::{
    self, SCRUB_DAMAGE, SCRUB_END, SCRUB_PROGRESS, ScrubDamage, ScrubProgress, ScrubStatusReply,
};
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde::Serialize;

use super::job::JobContext;
use super::{Location, Volumes};
use crate::error::{Error, Result};

/// The number of damages of one scrub that are kept; further ones are only counted.
const DAMAGES_MAX: usize = 10_000;

/// A difference between stored data and its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The volume.
    pub volume: u32,
    /// The file's vnode; 0 stands for a record of the volume.
    pub vnode: u32,
    /// Its uniquifier.
    pub uniquifier: u32,
    /// Its path in the volume, as far as it is known.
    pub path: String,
    /// The data version of the damaged bytes; 0 if the record cannot be read.
    pub data_version: u64,
    /// The length of the file.
    pub length: u64,
    /// Damaged ranges of bytes, as start and length; empty if the file's record is damaged.
    pub places: Vec<(u64, u64)>,
    /// Description of the damage.
    pub cause: String,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scrubbed {
    /// Number of checked volumes.
    pub volumes: u64,
    /// Number of checked files and directories.
    pub vnodes: u64,
    /// Number of read bytes.
    pub bytes: u64,
    /// Number of damages.
    pub damaged: u64,
    /// The first damages.
    pub damages: Vec<Damage>,
    /// The scrub ended before everything was checked.
    pub partial: bool,
}

/// The scrubs of a partition since the start of its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionScrub {
    /// The partition.
    #[serde(serialize_with = "crate::json::display")]
    pub partition: PartitionId,
    /// Seconds between two regular scrubs; 0 for none.
    pub every_seconds: u32,
    /// The rate of the regular scrubs, in KiB a second.
    pub rate_kib: u32,
    /// A scrub runs.
    pub running: bool,
    /// The start of the running or the last scrub.
    #[serde(serialize_with = "crate::json::time")]
    pub started: AfsTime,
    /// Number of bytes that the running scrub has verified.
    pub bytes: u64,
    /// Number of volumes that the running scrub has verified.
    pub volumes: u64,
    /// Number of volumes that it verifies.
    pub volumes_total: u64,
    /// The result of the last scrub of the whole partition.
    pub last: Option<LastScrub>,
}

/// The result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastScrub {
    /// Its end.
    #[serde(serialize_with = "crate::json::time")]
    pub ended: AfsTime,
    /// It ended before everything was verified.
    pub partial: bool,
    /// Number of verified volumes.
    pub volumes: u64,
    /// Number of verified bytes.
    pub bytes: u64,
    /// Number of damaged files.
    pub damaged: u64,
}

impl PartitionScrub {
    /// The reply of a server.
    pub(crate) fn of(partition: PartitionId, reply: &ScrubStatusReply) -> Self {
        let last = (reply.ended.0 != 0).then_some(LastScrub {
            ended: reply.ended,
            partial: reply.partial,
            volumes: reply.last.volumes,
            bytes: reply.last.bytes,
            damaged: reply.last.damaged,
        });
        Self {
            partition,
            every_seconds: reply.every,
            rate_kib: reply.rate_kib,
            running: reply.running,
            started: reply.started,
            bytes: reply.progress.bytes,
            volumes: reply.progress.volumes,
            volumes_total: reply.progress.volumes_total,
            last,
        }
    }
}

impl Volumes<'_> {
    /// The scrubs of a partition since the start of its server.
    ///
    /// # Errors
    /// There is no such partition, or the server is not Cellar's or does not answer.
    pub async fn scrub_status(&self, at: Location) -> Result<PartitionScrub> {
        let arguments = afsvol::ScrubStatus {
            partition: at.partition.number(),
        };
        let what = format!("cannot ask for the scrubs of {at}");
        let reply = self.server(at.server.into(), &arguments, &what).await?;
        Ok(PartitionScrub::of(at.partition, &reply))
    }

    /// Verifies a volume, or with id 0 every volume of a partition, at up to `rate_kib` KiB per
    /// second (0: as fast as possible). `seen` receives the number of bytes read so far.
    ///
    /// # Errors
    /// There is no such volume there, the partition is being scrubbed already, the server is not
    /// Cellar's, or the caller has no permission.
    pub async fn scrub(
        &self,
        at: Location,
        volume: VolumeId,
        rate_kib: u32,
        context: JobContext<'_>,
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
            match context.or_stop(next).await? {
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
