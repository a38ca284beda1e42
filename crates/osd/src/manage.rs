//! The calls that carry no data.

use cellar_auth::capability::Act;
use cellar_rpc::IncomingCall;
use cellar_wire::List;
use cellar_wire::osd::{
    Examine, ExamineReply, Figure, GetSpace, GetSpaceReply, GetStatistics, GetStatisticsReply,
    LIST_REMOVED, ListObjects, ListObjectsReply, Prune, PruneReply, Purge, PurgeReply, REMOVE_HARD,
    REMOVE_SOFT, Remove, RemoveReply, Scrub, ScrubReply, ScrubStatus, ScrubStatusReply, Undelete,
    UndeleteReply,
};
use cellar_wire::serve::Handle;

use crate::limits::LIST_MAX;
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
