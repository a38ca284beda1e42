//! ListRecalls: the queue of recalls, with the files and their places in it.

use std::collections::HashMap;

use cellar_fileobjects::{RECALL, file_path, recalled_file};
use cellar_jobs::{Filter, Job, JobId, State};
use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::List;
use cellar_wire::afsosd::{
    ListRecalls, ListRecallsReply, RECALLS_AT_ONCE_MAX, RecallPath, RecallView,
};
use cellar_wire::serve::Handle;

use super::jobs::{refusal, text, view};
use super::{ObjectService, superuser};
use crate::abort_map::Refusal;
use crate::services::FileServices;

/// Recalls that get a place, at most. Those behind them have place 0.
const PLACES_MAX: usize = 64 << 10;

impl Handle<ListRecalls, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListRecalls,
    ) -> Result<ListRecallsReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let engine = self.engine()?;
        let most = (arguments.limit as usize).clamp(1, RECALLS_AT_ONCE_MAX);
        let filter = Filter {
            kind: Some(RECALL.to_owned()),
            unfinished: true,
            after: Some(JobId(arguments.after)),
            ..Filter::default()
        };
        let mut jobs = engine.list(filter, most + 1).await.map_err(refusal)?;
        let more = jobs.len() > most;
        jobs.truncate(most);
        let places = places(&engine.order(PLACES_MAX));
        let services = self.services.clone();
        let recalls = blocking(move || {
            let recalls = jobs.iter().map(|job| {
                let place = match job.state {
                    State::Queued => places.get(&job.id).copied().unwrap_or_default(),
                    _ => 0,
                };
                recall_view(&services, job, place)
            });
            List::from_iter_cut(recalls)
        })
        .await;
        Ok(ListRecallsReply { recalls, more })
    }
}

/// The places of queued jobs, from 1.
fn places(order: &[JobId]) -> HashMap<JobId, u64> {
    order.iter().copied().zip(1..).collect()
}

/// A recall with its file. A file that was removed meanwhile has no path.
fn recall_view(services: &FileServices, job: &Job, place: u64) -> RecallView {
    let (fid, length) = recalled_file(job).unwrap_or_default();
    let found = services.volumes.find(fid.volume).ok().flatten();
    let volume = found.map(|(_, attached)| attached.volume);
    let path = volume
        .as_ref()
        .and_then(|volume| file_path(volume, fid).ok())
        .and_then(|path| RecallPath::new(path).ok());
    RecallView {
        job: view(job),
        fid,
        length,
        place,
        volume: volume.map_or_else(Default::default, |volume| text(&volume.info().name)),
        path: path.unwrap_or_default(),
    }
}
