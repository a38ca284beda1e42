//! The calls that carry no data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

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
use md5::Md5;
use sha2::{Digest, Sha256};

use crate::limits::{LIST_MAX, READ_PIECE_BYTES};
use crate::server::Server;
use crate::service::{CallResult, on_disk};
use crate::statistics::{add, figure};

impl Server {
    pub(crate) async fn examine(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Examine { capability, object } = call.arguments().await?;
        let device = self.admit(call, &capability, object, Act::Examine)?;
        let store = device.store.clone();
        let info = on_disk(move || store.examine(object)).await?;
        call.reply(&ExamineReply { info });
        Ok(())
    }

    pub(crate) async fn checksum(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Checksum {
            capability,
            object,
            version,
            sums,
        } = call.arguments().await?;
        let act = |end| Act::Read {
            version,
            begin: 0,
            end,
        };
        let device = self.admit(call, &capability, object, act(0))?;
        let client = call.peer().address.ip();
        let _stream = self
            .streams
            .begin(client)
            .ok_or(crate::refusal::Refusal::Busy)?;
        let store = device.store.clone();
        let reader = on_disk(move || store.reader(object, version, 0, u64::MAX)).await?;
        let length = reader.remaining();
        // The sums reveal something of each of these bytes.
        self.admit(call, &capability, object, act(length))?;
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
        call.reply(&ChecksumReply {
            length,
            crc32c: summing.crc32c.unwrap_or_default(),
            sha256: sha256.unwrap_or_default(),
            md5: md5.unwrap_or_default(),
        });
        Ok(())
    }

    pub(crate) async fn list_objects(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let ListObjects {
            capability,
            volume,
            after,
            limit,
            flags,
        } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let store = device.store.clone();
        let limit = (limit as usize).clamp(1, LIST_MAX);
        let removed = flags & LIST_REMOVED != 0;
        let (objects, more) = on_disk(move || store.list(volume, after, limit, removed)).await?;
        let objects = List::from_iter_cut(objects);
        call.reply(&ListObjectsReply { objects, more });
        Ok(())
    }

    pub(crate) async fn prune(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Prune { capability, needed } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let store = device.store.clone();
        let (freed, durable) = on_disk(move || store.prune(&needed)).await?;
        durable.await?;
        call.reply(&PruneReply { freed });
        Ok(())
    }

    pub(crate) async fn remove(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Remove {
            capability,
            objects,
            flags,
        } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let keeps = flags & REMOVE_HARD == 0 && device.deletes_softly();
        let soft = flags & REMOVE_SOFT != 0 || keeps;
        let store = device.store.clone();
        let (removed, durable) = on_disk(move || store.remove(&objects, soft)).await?;
        durable.await?;
        call.reply(&RemoveReply { removed });
        Ok(())
    }

    pub(crate) async fn undelete(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Undelete {
            capability,
            objects,
        } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let store = device.store.clone();
        let (restored, durable) = on_disk(move || store.undelete(&objects)).await?;
        durable.await?;
        call.reply(&UndeleteReply { restored });
        Ok(())
    }

    pub(crate) async fn purge(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Purge { capability, before } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let store = device.store.clone();
        let (purged, durable) = on_disk(move || store.purge(before)).await?;
        durable.await?;
        add(&self.statistics.purged, purged.into());
        call.reply(&PurgeReply { purged });
        Ok(())
    }

    pub(crate) async fn get_space(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let GetSpace {} = call.arguments().await?;
        let server = self.clone();
        let devices = cellar_rpc::blocking(move || {
            let spaces = server.devices.iter().map(|device| device.space());
            spaces.collect::<Result<Vec<_>, _>>()
        })
        .await?;
        let devices = List::from_iter_cut(devices);
        call.reply(&GetSpaceReply { devices });
        Ok(())
    }

    pub(crate) async fn get_statistics(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let GetStatistics {} = call.arguments().await?;
        let figures = List::from_iter_cut(self.figures());
        call.reply(&GetStatisticsReply { figures });
        Ok(())
    }

    /// Returns all counters.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let mut figures = self.statistics.figures();
        figures.push(figure("streams", self.streams.count() as u64));
        let refused = self.config.keys.refused();
        figures.extend(refused.map(|(_, name, count)| figure(name, count)));
        for device in &self.devices {
            let damaged = device.store.damaged().len() as u64;
            figures.push(figure(&format!("damaged_objects_{}", device.id), damaged));
        }
        figures
    }

    pub(crate) async fn scrub(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let Scrub {
            capability,
            rate_kib,
        } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        self.begin_scrub(&device, u64::from(rate_kib) << 10);
        call.reply(&ScrubReply {});
        Ok(())
    }

    pub(crate) async fn scrub_status(self: &Arc<Self>, call: &mut IncomingCall) -> CallResult {
        let ScrubStatus { capability } = call.arguments().await?;
        let device = self.admit_all(call, &capability)?;
        let mut damaged = device.store.damaged();
        let reply = {
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
            ScrubStatusReply {
                running: scrub.running,
                bytes: report.bytes,
                total: report.total,
                damaged: List::from_iter_cut(damaged),
            }
        };
        call.reply(&reply);
        Ok(())
    }

    /// Applies a change of a device's entry in the cell's database.
    pub(crate) fn set_soft_delete(&self, id: u32, soft: bool) {
        if let Some(device) = self.device(id) {
            device.soft_delete.store(soft, Ordering::Relaxed);
        }
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
