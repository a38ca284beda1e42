//! ListJobs, ShowJob, ChangeJob, GetCensus, ListCandidates, ListDays: the jobs of hierarchical
//! storage, the census that finds their files, and the statistics of days.

use cellar_fileobjects::{Candidate, Census, Day, Tally};
use cellar_jobs::{Engine, Error, Filter, Job, JobId, Position, State, Time};
use cellar_rpc::IncomingCall;
use cellar_wire::afsosd::{
    ArchiveCandidate, ArchiveCensus, ChangeJob, ChangeJobReply, DAYS_MAX, DayView, DeviceTally,
    DeviceUse, FileTally, GetCensus, GetCensusReply, JOB_CANCEL, JOB_FIRST, JOB_LAST, JOB_RETRY,
    JOB_TEXT_MAX, JOBS_AT_ONCE_MAX, JobItem, JobText, JobView, ListCandidates, ListCandidatesReply,
    ListDays, ListDaysReply, ListJobs, ListJobsReply, ShowJob, ShowJobReply,
};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, AfsString, List};

use super::{ObjectService, superuser};
use crate::abort_map::Refusal;

/// Items of one ShowJob, at most.
const ITEMS_AT_ONCE: usize = 1024;

impl Handle<ListJobs, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListJobs,
    ) -> Result<ListJobsReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let most = (arguments.limit as usize).clamp(1, JOBS_AT_ONCE_MAX);
        let filter = Filter {
            kind: named(&arguments.kind),
            user: named(&arguments.user),
            resource: None,
            unfinished: arguments.unfinished,
            after: Some(JobId(arguments.after)),
        };
        let mut jobs = self
            .engine()?
            .list(filter, most + 1)
            .await
            .map_err(refusal)?;
        let more = jobs.len() > most;
        jobs.truncate(most);
        let jobs = List::from_iter_cut(jobs.iter().map(view));
        Ok(ListJobsReply { jobs, more })
    }
}

impl Handle<ShowJob, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ShowJob,
    ) -> Result<ShowJobReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let (id, engine) = (JobId(arguments.job), self.engine()?);
        let job = engine.show(id).await.map_err(refusal)?;
        let items = engine.items(id, arguments.from, ITEMS_AT_ONCE + 1);
        let mut items = items.await.map_err(refusal)?;
        let more = items.len() > ITEMS_AT_ONCE;
        items.truncate(ITEMS_AT_ONCE);
        let items = items.iter().map(|item| JobItem {
            name: text(&item.name),
            error: text(item.error.as_deref().unwrap_or_default()),
        });
        Ok(ShowJobReply {
            view: view(&job),
            // The engine's limit is that of the reply.
            arguments: AfsString::new(job.arguments.to_string()).unwrap_or_default(),
            items: List::from_iter_cut(items),
            more,
        })
    }
}

impl Handle<ChangeJob, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ChangeJob,
    ) -> Result<ChangeJobReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let (id, engine) = (JobId(arguments.job), self.engine()?);
        let changed = match arguments.change {
            JOB_CANCEL => engine.cancel(id).await,
            JOB_RETRY => engine.retry(id).await,
            JOB_FIRST => engine.reorder(id, Position::First).await,
            JOB_LAST => engine.reorder(id, Position::Last).await,
            _ => return Err(Refusal::Invalid),
        };
        changed.map(|()| ChangeJobReply {}).map_err(refusal)
    }
}

impl Handle<GetCensus, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetCensus,
    ) -> Result<GetCensusReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let objects = &self.services.objects;
        if arguments.look {
            objects.look_for_candidates();
        }
        let census = objects.census();
        let census = census
            .map(|census| census_view(&census))
            .unwrap_or_default();
        Ok(GetCensusReply { census })
    }
}

impl Handle<ListCandidates, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListCandidates,
    ) -> Result<ListCandidatesReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let census = self.services.objects.census();
        let found: Vec<Candidate> = census.map_or_else(Vec::new, |census| {
            let copies = census.copies.get(&arguments.osd);
            let wipes = census.devices.get(&arguments.osd);
            let wipes = wipes.map(|device| &device.candidates);
            copies.into_iter().chain(wipes).flatten().copied().collect()
        });
        let files = found.iter().take(arguments.limit as usize);
        let files = files.map(|file| ArchiveCandidate {
            fid: file.fid,
            length: file.length,
            age: file.age,
            frees: file.frees,
        });
        let files = List::from_iter_cut(files);
        Ok(ListCandidatesReply { files })
    }
}

impl Handle<ListDays, IncomingCall> for ObjectService {
    async fn handle(&self, call: &IncomingCall, _: ListDays) -> Result<ListDaysReply, Refusal> {
        superuser(&self.services.sessions, call)?;
        let days = self.services.objects.days().await?;
        // The newest ones, if there are more than a reply holds.
        let begin = days.len().saturating_sub(DAYS_MAX);
        let days = days.iter().skip(begin).map(day_view);
        Ok(ListDaysReply {
            days: List::from_iter_cut(days),
        })
    }
}

impl ObjectService {
    /// The job engine. A server without it has no jobs.
    pub(super) fn engine(&self) -> Result<&Engine, Refusal> {
        let engine = self.services.objects.jobs();
        engine.ok_or(Refusal::Code(AbortCode::ENODATA))
    }
}

fn named(text: &JobText) -> Option<String> {
    Some(text.to_string()).filter(|text| !text.is_empty())
}

/// The text, or as much of it as a reply has room for.
pub(super) fn text(text: &str) -> JobText {
    let end = text.floor_char_boundary(JOB_TEXT_MAX);
    text.get(..end)
        .and_then(|text| JobText::try_from(text).ok())
        .unwrap_or_default()
}

pub(super) fn view(job: &Job) -> JobView {
    let millis = |time: Option<Time>| time.map_or(0, |time| time.0);
    let until = match job.state {
        State::Waiting(until) => until.0,
        _ => 0,
    };
    JobView {
        id: job.id.0,
        kind: text(&job.kind),
        user: text(&job.user),
        resource: text(&job.resource),
        priority: job.priority.0.into(),
        state: text(job.state.word()),
        step: text(&job.step),
        attempts: job.attempts,
        error: text(job.error.as_deref().unwrap_or_default()),
        bytes: job.progress.bytes,
        items: job.progress.items,
        failed: job.progress.failed,
        expected_bytes: job.expected.bytes,
        expected_items: job.expected.items,
        created: job.created.0,
        started: millis(job.started),
        ended: millis(job.ended),
        until,
        cancelling: job.cancelling,
    }
}

fn tally(tally: Tally) -> FileTally {
    FileTally {
        files: tally.files,
        bytes: tally.bytes,
    }
}

fn day_view(day: &Day) -> DayView {
    let devices = day.devices.iter().map(|(osd, used)| DeviceUse {
        osd: *osd,
        used: used.used,
        total: used.total,
    });
    DayView {
        day: day.day,
        copied: tally(day.copied),
        wiped: tally(day.wiped),
        recalled: tally(day.recalled),
        verified: tally(day.verified),
        failed: day.failed,
        devices: List::from_iter_cut(devices),
    }
}

fn census_view(census: &Census) -> ArchiveCensus {
    let mut all: Vec<u32> = census
        .devices
        .keys()
        .chain(census.copies.keys())
        .chain(census.archives.keys())
        .copied()
        .collect();
    all.sort_unstable();
    all.dedup();
    let devices = all.into_iter().map(|osd| {
        let device = census.devices.get(&osd);
        let archive = census.archives.get(&osd);
        DeviceTally {
            osd,
            online: device
                .map(|device| tally(device.online))
                .unwrap_or_default(),
            wipeable: device
                .map(|device| tally(device.wipeable))
                .unwrap_or_default(),
            pinned: device
                .map(|device| tally(device.pinned))
                .unwrap_or_default(),
            copies: census
                .copies
                .get(&osd)
                .map_or(0, |files| files.len() as u32),
            archived: archive.map(|all| tally(all.copies)).unwrap_or_default(),
            bad: archive.map(|all| tally(all.bad)).unwrap_or_default(),
            unverified: archive.map(|all| tally(all.unverified)).unwrap_or_default(),
            oldest: archive.map_or(0, |all| all.oldest),
        }
    });
    ArchiveCensus {
        taken: census.taken,
        millis: census.millis,
        online: tally(census.online),
        wiped: tally(census.wiped),
        copied: tally(census.copied),
        lacking: tally(census.lacking),
        due: tally(census.due),
        bad: census.bad,
        devices: List::from_iter_cut(devices),
    }
}

pub(super) fn refusal(error: Error) -> Refusal {
    match error {
        Error::NoSuchJob(_) => Refusal::Code(AbortCode::ENOENT),
        Error::WrongState { .. } | Error::UnknownKind(_) | Error::TooLong { .. } => {
            Refusal::Invalid
        }
        Error::TooMany { .. } => Refusal::Code(AbortCode::EAGAIN),
        Error::Stopped => Refusal::Busy,
        Error::Database(_) | Error::BadRow { .. } => Refusal::Code(AbortCode::EIO),
    }
}
