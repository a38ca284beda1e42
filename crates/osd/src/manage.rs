//! The calls that carry no data.

use cellar_auth::capability::Act;
use cellar_rpc::IncomingCall;
use cellar_volume::objects::ObjectReader;
use cellar_wire::List;
use cellar_wire::osd::{
    Checksum, ChecksumReply, Examine, ExamineReply, Figure, GetSpace, GetSpaceReply, GetStatistics,
    GetStatisticsReply, LIST_REMOVED, ListObjects, ListObjectsReply, Prune, PruneReply, Purge,
    PurgeReply, REMOVE_HARD, REMOVE_SOFT, Remove, RemoveReply, SUM_CRC32C, SUM_MD5, SUM_SHA256,
    Scrub, ScrubReply, ScrubStatus, ScrubStatusReply, Undelete, UndeleteReply,
};
use cellar_wire::serve::Handle;
use md5::Md5;
use sha2::{Digest, Sha256};

use crate::limits::{LIST_MAX, READ_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::server::Server;
use crate::service::{OsdService, on_disk};
use crate::statistics::{add, figure};

impl Handle<Examine, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Examine,
    ) -> Result<ExamineReply, Refusal> {
        let server = &self.0;
        let Examine { capability, object } = arguments;
        let device = server.admit(call, &capability, object, Act::Examine)?;
        if let Some(archive) = device.archive() {
            return archive.examine(object).await;
        }
        let store = device.disk()?;
        let info = on_disk(move || store.examine(object)).await?;
        Ok(ExamineReply { info })
    }
}

impl Handle<Checksum, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Checksum,
    ) -> Result<ChecksumReply, Refusal> {
        let server = &self.0;
        let Checksum {
            ref capability,
            object,
            version,
            sums,
        } = arguments;
        let act = |end| Act::Read {
            version,
            begin: 0,
            end,
        };
        let device = server.admit(call, capability, object, act(0))?;
        if let Some(archive) = device.archive() {
            return archive.checksum(&arguments).await;
        }
        let client = call.peer().address.ip();
        let _stream = server
            .streams
            .begin(client)
            .ok_or(crate::refusal::Refusal::Busy)?;
        let store = device.disk()?;
        let reader = on_disk(move || store.reader(object, version, 0, u64::MAX)).await?;
        let length = reader.remaining();
        // The sums reveal something of each of these bytes.
        server.admit(call, capability, object, act(length))?;
        let mut summing = Summing {
            reader,
            crc32c: (sums & SUM_CRC32C != 0).then_some(0),
            sha256: (sums & SUM_SHA256 != 0).then(Sha256::new),
            md5: (sums & SUM_MD5 != 0).then(Md5::new),
        };
        while summing.reader.remaining() > 0 {
            // Only short steps on one thread, since other work waits for it.
            summing = on_disk(move || summing.more()).await?;
        }
        let sha256 = summing.sha256.map(|sum| words(&sum.finalize()));
        let md5 = summing.md5.map(|sum| words(&sum.finalize()));
        Ok(ChecksumReply {
            length,
            crc32c: summing.crc32c.unwrap_or_default(),
            sha256: sha256.unwrap_or_default(),
            md5: md5.unwrap_or_default(),
        })
    }
}

impl Handle<ListObjects, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListObjects,
    ) -> Result<ListObjectsReply, Refusal> {
        let server = &self.0;
        let ListObjects {
            capability,
            volume,
            after,
            limit,
            flags,
        } = arguments;
        let device = server.admit_all(call, &capability)?;
        let limit = (limit as usize).clamp(1, LIST_MAX);
        let removed = flags & LIST_REMOVED != 0;
        if let Some(archive) = device.archive() {
            return archive.list(volume, after, limit, removed).await;
        }
        let store = device.disk()?;
        let (objects, more) = on_disk(move || store.list(volume, after, limit, removed)).await?;
        let objects = List::from_iter_cut(objects);
        Ok(ListObjectsReply { objects, more })
    }
}

impl Handle<Prune, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Prune) -> Result<PruneReply, Refusal> {
        let server = &self.0;
        let Prune { capability, needed } = arguments;
        let device = server.admit_all(call, &capability)?;
        if let Some(archive) = device.archive() {
            let freed = archive.prune(&needed).await?;
            return Ok(PruneReply { freed });
        }
        let store = device.disk()?;
        let (freed, durable) = on_disk(move || store.prune(&needed)).await?;
        durable.await?;
        Ok(PruneReply { freed })
    }
}

impl Handle<Remove, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Remove) -> Result<RemoveReply, Refusal> {
        let server = &self.0;
        let Remove {
            capability,
            objects,
            flags,
        } = arguments;
        let device = server.admit_all(call, &capability)?;
        let keeps = flags & REMOVE_HARD == 0 && device.deletes_softly();
        let soft = flags & REMOVE_SOFT != 0 || keeps;
        if let Some(archive) = device.archive() {
            let removed = match soft {
                true => archive.remove_softly(objects, server.now()).await?,
                false => archive.remove_hard(&objects).await?,
            };
            return Ok(RemoveReply { removed });
        }
        let store = device.disk()?;
        let (removed, durable) = on_disk(move || store.remove(&objects, soft)).await?;
        durable.await?;
        Ok(RemoveReply { removed })
    }
}

impl Handle<Undelete, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Undelete,
    ) -> Result<UndeleteReply, Refusal> {
        let server = &self.0;
        let Undelete {
            capability,
            objects,
        } = arguments;
        let device = server.admit_all(call, &capability)?;
        if let Some(archive) = device.archive() {
            let restored = archive.undelete(objects).await?;
            return Ok(UndeleteReply { restored });
        }
        let store = device.disk()?;
        let (restored, durable) = on_disk(move || store.undelete(&objects)).await?;
        durable.await?;
        Ok(UndeleteReply { restored })
    }
}

impl Handle<Purge, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Purge) -> Result<PurgeReply, Refusal> {
        let server = &self.0;
        let Purge { capability, before } = arguments;
        let device = server.admit_all(call, &capability)?;
        if let Some(archive) = device.archive() {
            let purged = archive.purge(before).await?;
            add(&server.statistics.purged, purged.into());
            return Ok(PurgeReply { purged });
        }
        let store = device.disk()?;
        let (purged, durable) = on_disk(move || store.purge(before)).await?;
        durable.await?;
        add(&server.statistics.purged, purged.into());
        Ok(PurgeReply { purged })
    }
}

impl Handle<GetSpace, IncomingCall> for OsdService {
    async fn handle(&self, _: &IncomingCall, _: GetSpace) -> Result<GetSpaceReply, Refusal> {
        let server = &self.0;

        let server = server.clone();
        let devices = cellar_rpc::blocking(move || {
            let spaces = server.devices.iter().map(|device| device.space());
            spaces.collect::<Result<Vec<_>, _>>()
        })
        .await?;
        let devices = List::from_iter_cut(devices);
        Ok(GetSpaceReply { devices })
    }
}

impl Handle<GetStatistics, IncomingCall> for OsdService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: GetStatistics,
    ) -> Result<GetStatisticsReply, Refusal> {
        let server = &self.0;

        let figures = List::from_iter_cut(server.figures());
        Ok(GetStatisticsReply { figures })
    }
}

impl Server {
    /// Returns all counters.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let mut figures = self.statistics.figures();
        figures.push(figure("streams", self.streams.count() as u64));
        let refused = self.config.keys.refused();
        figures.extend(refused.map(|(_, name, count)| figure(name, count)));
        for device in &self.devices {
            let damaged = device.damaged().len() as u64;
            figures.push(figure(&format!("damaged_objects_{}", device.id), damaged));
        }
        figures
    }
}

impl Handle<Scrub, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Scrub) -> Result<ScrubReply, Refusal> {
        let server = &self.0;
        let Scrub {
            capability,
            rate_kib,
        } = arguments;
        let device = server.admit_all(call, &capability)?;
        // Archives are verified by file servers, at the pace of the archive.
        device.disk()?;
        server.begin_scrub(&device, u64::from(rate_kib) << 10);
        Ok(ScrubReply {})
    }
}

impl Handle<ScrubStatus, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ScrubStatus,
    ) -> Result<ScrubStatusReply, Refusal> {
        let server = &self.0;
        let ScrubStatus { capability } = arguments;
        let device = server.admit_all(call, &capability)?;
        let mut damaged = device.damaged();
        let scrub = device.scrub.lock();
        let report = &scrub.report;
        damaged.extend(
            report
                .damaged
                .iter()
                .filter(|id| !damaged.contains(id))
                .copied()
                .collect::<Vec<_>>(),
        );
        Ok(ScrubStatusReply {
            running: scrub.running,
            bytes: report.bytes,
            total: report.total,
            damaged: List::from_iter_cut(damaged),
        })
    }
}

/// A version that is being read, and the requested sums.
struct Summing {
    reader: ObjectReader,
    crc32c: Option<u32>,
    sha256: Option<Sha256>,
    md5: Option<Md5>,
}

impl Summing {
    /// Adds some more bytes.
    fn more(mut self) -> cellar_volume::Result<Self> {
        for _ in 0..16 {
            let Some(piece) = self.reader.next(READ_PIECE_BYTES)? else {
                break;
            };
            if let Some(sum) = &mut self.crc32c {
                *sum = crc32c::crc32c_append(*sum, &piece);
            }
            if let Some(sum) = &mut self.sha256 {
                sum.update(&piece);
            }
            if let Some(sum) = &mut self.md5 {
                sum.update(&piece);
            }
        }
        Ok(self)
    }
}

/// Converts a sum into words of the wire format.
fn words<const N: usize>(sum: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(sum.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}
