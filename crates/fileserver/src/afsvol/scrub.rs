//! Scrub: reads and verifies the stored data at a limited rate, while the volumes are in use. A
//! call of this project.
//!
//! A scrub may take days. It runs on a separate thread of the pool, one for each partition, and
//! ends when its caller hangs up. Progress reports are dropped when the caller is slow.

use std::ops::ControlFlow;

use bytes::{BufMut, BytesMut};
use cellar_rpc::IncomingCall;
use cellar_volume::{Damage, ScrubReport};
use cellar_wire::afsvol::{
    SCRUB_DAMAGE, SCRUB_END, SCRUB_PROGRESS, Scrub, ScrubDamage, ScrubPlace, ScrubProgress,
    ScrubReply,
};
use cellar_wire::ids::PartitionId;
use cellar_wire::serve::HandleStream;
use cellar_wire::{AbortCode, AfsString, Encode, Encoder, List};
use tokio::sync::mpsc;

use super::VolumeService;
use super::list::partition_of;
use super::scrubs::{Scrubs, log};
use super::{code, superuser};
use crate::audit;

/// Records of progress that wait to be sent.
const QUEUE: usize = 4;

impl HandleStream<Scrub, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Scrub,
    ) -> Result<ScrubReply, AbortCode> {
        let services = &self.services;
        let Scrub {
            partition,
            volume,
            rate_kib,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("partition", partition);
        audit::add_detail("volume", volume);
        let (place, partition) = partition_of(&services.volumes, partition)?;
        let scrubbing = Scrubs::begin(services, place)?;
        let rate = u64::from(rate_kib) * 1024;
        let (sender, mut progress) = mpsc::channel(QUEUE);
        let stopping = services.stopping.clone();
        let work = cellar_rpc::blocking(move || {
            let mut tell = |sent: &cellar_volume::ScrubProgress| {
                scrubbing.progress(*sent);
                let gone = matches!(
                    sender.try_send(*sent),
                    Err(mpsc::error::TrySendError::Closed(_))
                );
                if gone || stopping.has_begun() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let report = if volume.0 == 0 {
                let report = partition.scrub(rate, &mut tell);
                if let Ok(report) = &report {
                    scrubbing.end(report);
                }
                report
            } else {
                match partition.volume(volume) {
                    Ok(Some(volume)) => volume.scrub(rate, &mut tell),
                    Ok(None) => return Err(AbortCode::VNOVOL),
                    Err(error) => Err(error),
                }
            };
            report.map_err(code)
        });
        let tell = async {
            while let Some(sent) = progress.recv().await {
                call.write(record(SCRUB_PROGRESS, &shown(sent))).await?;
            }
            Ok::<_, AbortCode>(())
        };
        // When the caller is gone, the receiver is dropped, which ends the work.
        let mut work = std::pin::pin!(work);
        let report = tokio::select! {
            biased;
            sent = tell => {
                sent?;
                work.await
            }
            report = &mut work => report,
        }?;
        finish(call, place, &report).await
    }
}

async fn finish(
    call: &mut IncomingCall,
    place: PartitionId,
    report: &ScrubReport,
) -> Result<ScrubReply, AbortCode> {
    log(place, report);
    for damage in &report.damaged {
        call.write(record(SCRUB_DAMAGE, &described(damage))).await?;
    }
    let last = record(SCRUB_PROGRESS, &shown(report.progress));
    call.write(last).await?;
    call.reply(&SCRUB_END);
    Ok(ScrubReply {
        partial: report.is_partial,
    })
}

fn record(kind: u32, record: &impl Encode) -> bytes::Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u32(kind);
    record.encode(&mut Encoder::new(&mut bytes));
    bytes.freeze()
}

pub(super) fn shown(progress: cellar_volume::ScrubProgress) -> ScrubProgress {
    ScrubProgress {
        volumes: progress.volumes,
        volumes_total: progress.volumes_total,
        vnodes: progress.vnodes,
        bytes: progress.bytes,
        damaged: progress.damaged,
    }
}

fn described(damage: &Damage) -> ScrubDamage {
    let places = damage.places.iter().map(|place| ScrubPlace {
        at: place.start,
        length: place.end.saturating_sub(place.start),
    });
    let path = damage.path.clone().unwrap_or_default();
    let mut cause = damage.cause.clone();
    cause.truncate(cause.floor_char_boundary(255));
    ScrubDamage {
        volume: damage.fid.volume,
        vnode: damage.fid.vnode,
        uniquifier: damage.fid.uniquifier,
        volumes: List::from_iter_cut(damage.volumes.iter().copied()),
        path: AfsString::new(path).unwrap_or_default(),
        data_version: damage.data_version,
        length: damage.length,
        places: List::from_iter_cut(places),
        cause: AfsString::new(cause).unwrap_or_default(),
    }
}
