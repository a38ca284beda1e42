//! Jobs of file servers, and their censuses of files in archives. The operations of `cellar jobs`
//! and of `cellar hsm status` and `report`.

mod report;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use cellar_client::{Cell, Client};
use cellar_rpc::CallError;
use cellar_wire::afsosd::{
    self, ArchiveCandidate, ArchiveCensus, ChangeJob, FileTally, GetCensus, JobText, JobView,
    ListCandidates, ListJobs, ShowJob,
};
use cellar_wire::{AbortCode, Procedure};
use serde::Serialize;

pub use report::{DayWork, Forecast, Report, Reports};

use crate::error::{Error, Result, is_unknown_there};
use crate::osd::Device;
use crate::vos::Volumes;

/// Jobs of one call.
const JOBS_AT_ONCE: u32 = 256;
/// Files of one call.
const FILES_AT_ONCE: u32 = 4096;

/// A job. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// The file server that runs it.
    pub server: IpAddr,
    /// Its number on that server.
    pub id: u64,
    /// Its kind.
    pub kind: String,
    /// The user on whose behalf it runs; `system`: the server itself.
    pub user: String,
    /// The archive or device that it uses.
    pub resource: String,
    /// Jobs of a higher priority start first.
    pub priority: i32,
    /// `queued`, `running`, `waiting`, `done`, `failed`, `cancelled`.
    pub state: String,
    /// The step that runs or will run next.
    pub step: String,
    /// Failed attempts of this step.
    pub attempts: u32,
    /// The last error.
    pub error: Option<String>,
    /// Finished bytes.
    pub bytes: u64,
    /// Finished files, also those that failed.
    pub files: u64,
    /// Files that failed.
    pub failed: u64,
    /// Bytes to process.
    pub expected_bytes: u64,
    /// Files to process.
    pub expected_files: u64,
    /// The submission.
    pub created: u64,
    /// The first start.
    pub started: Option<u64>,
    /// The end.
    pub ended: Option<u64>,
    /// The time until which a waiting job waits.
    pub until: Option<u64>,
    /// A user has cancelled it, and it has not stopped yet.
    pub cancelling: bool,
}

impl Job {
    pub(crate) fn of(server: IpAddr, view: &JobView) -> Self {
        let some = |time: u64| Some(time).filter(|time| *time > 0);
        Self {
            server,
            id: view.id,
            kind: view.kind.to_string(),
            user: view.user.to_string(),
            resource: view.resource.to_string(),
            priority: view.priority,
            state: view.state.to_string(),
            step: view.step.to_string(),
            attempts: view.attempts,
            error: Some(view.error.to_string()).filter(|error| !error.is_empty()),
            bytes: view.bytes,
            files: view.items,
            failed: view.failed,
            expected_bytes: view.expected_bytes,
            expected_files: view.expected_items,
            created: view.created,
            started: some(view.started),
            ended: some(view.ended),
            until: some(view.until),
            cancelling: view.cancelling,
        }
    }
}

/// The result of a file of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The fid of the file.
    pub file: String,
    /// The error; `None`: it succeeded.
    pub error: Option<String>,
}

/// A job with its files.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// Its arguments.
    pub arguments: serde_json::Value,
    /// The results of its files so far.
    pub items: Vec<Item>,
}

/// A change of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// End it.
    Cancel,
    /// Run a failed or cancelled job again.
    Retry,
    /// Put it before all others of its user.
    First,
    /// Put it behind all others of its user.
    Last,
}

/// Which jobs are listed.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Jobs of this kind only.
    pub kind: Option<String>,
    /// Jobs of this user only.
    pub user: Option<String>,
    /// Also jobs that have ended.
    pub ended: bool,
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<FileTally> for Tally {
    fn from(tally: FileTally) -> Self {
        Self {
            files: tally.files,
            bytes: tally.bytes,
        }
    }
}

/// An archive or device in a census.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceCount {
    /// Its number.
    pub osd: u32,
    /// Its name; empty if the cell has no such device any more.
    pub name: String,
    /// Whether it is an archive.
    pub archive: bool,
    /// Objects of files of the server.
    pub online: Tally,
    /// Those that could be wiped now.
    pub wipeable: Tally,
    /// Those that could be wiped if they were not pinned.
    pub pinned: Tally,
    /// Files that are to be copied to it. A census lists up to 4096.
    pub copies_due: u32,
    /// Copies that it has, without the bad ones.
    pub archived: Tally,
    /// Copies that are known to be bad.
    pub bad: Tally,
    /// Copies that were not compared for longer than the interval of verification.
    pub unverified: Tally,
    /// The earliest time at which one of the copies was last compared, in seconds since 1970;
    /// `None`: there are no copies.
    pub oldest_comparison: Option<u64>,
}

/// The last census of a file server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerCensus {
    /// The file server.
    pub server: IpAddr,
    /// When it began, in seconds since 1970; `None`: there was none since the server's start.
    pub taken: Option<u64>,
    /// How long it took, in milliseconds.
    pub millis: u64,
    /// Files in objects that are online.
    pub online: Tally,
    /// Files in archives only.
    pub wiped: Tally,
    /// Online files with a good copy.
    pub copied: Tally,
    /// Files for which policies ask for more copies than there are.
    pub lacking: Tally,
    /// Those of them whose delay has passed.
    pub due: Tally,
    /// Copies that are known to be bad.
    pub bad_copies: u64,
    /// Archives and devices.
    pub devices: Vec<DeviceCount>,
    /// Unfinished jobs by kind.
    pub unfinished_jobs: BTreeMap<String, u64>,
    /// Errors of unfinished jobs, such as an archive that is down.
    pub errors: Vec<String>,
}

/// A file that is to be copied or wiped next.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateFile {
    /// The file server.
    pub server: IpAddr,
    /// The fid, in the RW volume.
    pub fid: String,
    /// Length in bytes.
    pub length: u64,
    /// Seconds since the last change; for wiping, since the last change or use.
    pub age: u64,
    /// Bytes that wiping frees on the device; 0 for a copy.
    pub frees: u64,
}

/// Jobs of the file servers of a cell.
#[derive(Clone, Copy)]
pub struct Jobs<'a> {
    client: &'a Client,
    cell: &'a Cell,
}

impl<'a> Jobs<'a> {
    /// The jobs of `cell`.
    pub fn new(client: &'a Client, cell: &'a Cell) -> Self {
        Self { client, cell }
    }

    /// The file servers of the cell. If a server has several addresses, the first one is used.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn servers(&self) -> Result<Vec<IpAddr>> {
        let servers = Volumes::new(self.client, self.cell).addresses().await?;
        let first = servers.iter().filter_map(|server| server.addresses.first());
        Ok(first.copied().collect())
    }

    /// The jobs of a file server, in the order of their numbers.
    ///
    /// # Errors
    /// The server does not answer, has no job engine, or the caller has no permission.
    pub async fn list(&self, server: IpAddr, selection: &Selection) -> Result<Vec<Job>> {
        self.first(server, selection, usize::MAX).await
    }

    /// The first jobs of that list, `most` or a few more.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn first(
        &self,
        server: IpAddr,
        selection: &Selection,
        most: usize,
    ) -> Result<Vec<Job>> {
        let text = |text: &Option<String>| {
            JobText::new(text.clone().unwrap_or_default())
                .map_err(|_| Error::Usage("the name is too long".to_owned()))
        };
        let (mut jobs, mut after) = (Vec::new(), 0);
        loop {
            let asked = ListJobs {
                after,
                limit: JOBS_AT_ONCE,
                unfinished: !selection.ended,
                kind: text(&selection.kind)?,
                user: text(&selection.user)?,
            };
            let page = self.call(server, &asked).await?;
            jobs.extend(page.jobs.iter().map(|view| Job::of(server, view)));
            match page.jobs.last() {
                Some(last) if page.more && last.id > after && jobs.len() < most => after = last.id,
                _ => return Ok(jobs),
            }
        }
    }

    /// A job with its files.
    ///
    /// # Errors
    /// As [`Self::list`]; there is no such job.
    pub async fn show(&self, server: IpAddr, id: u64) -> Result<Details> {
        let (mut items, mut found) = (Vec::new(), None);
        loop {
            let asked = ShowJob {
                job: id,
                from: items.len() as u64,
            };
            let page = self.call(server, &asked).await;
            let page = page.map_err(|error| of_job(error, server, id))?;
            let before = items.len();
            items.extend(page.items.iter().map(|item| Item {
                file: item.name.to_string(),
                error: Some(item.error.to_string()).filter(|error| !error.is_empty()),
            }));
            let more = page.more && items.len() > before;
            let (view, arguments) = found.get_or_insert((page.view, page.arguments));
            if !more {
                return Ok(Details {
                    job: Job::of(server, view),
                    arguments: serde_json::from_slice(arguments).unwrap_or_default(),
                    items,
                });
            }
        }
    }

    /// Changes a job.
    ///
    /// # Errors
    /// As [`Self::show`]; the state of the job does not permit the change.
    pub async fn change(&self, server: IpAddr, id: u64, change: Change) -> Result<()> {
        let change = match change {
            Change::Cancel => afsosd::JOB_CANCEL,
            Change::Retry => afsosd::JOB_RETRY,
            Change::First => afsosd::JOB_FIRST,
            Change::Last => afsosd::JOB_LAST,
        };
        let changed = self.call(server, &ChangeJob { job: id, change }).await;
        changed.map(drop).map_err(|error| of_job(error, server, id))
    }

    /// The last census of a file server. With `look`, the server begins another one; this call does
    /// not wait for it. `devices` have the names.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn census(
        &self,
        server: IpAddr,
        look: bool,
        devices: &[Device],
    ) -> Result<ServerCensus> {
        let census = self.call(server, &GetCensus { look }).await?.census;
        let jobs = match self.list(server, &Selection::default()).await {
            // The engine of the server has not started yet.
            Err(error) if error.code() == Some(AbortCode::ENODATA) => Vec::new(),
            jobs => jobs?,
        };
        let mut unfinished_jobs = BTreeMap::new();
        let mut errors: Vec<String> = Vec::new();
        for job in jobs {
            *unfinished_jobs.entry(job.kind).or_default() += 1;
            errors.extend(job.error);
        }
        errors.sort();
        errors.dedup();
        let ArchiveCensus {
            taken,
            millis,
            online,
            wiped,
            copied,
            lacking,
            due,
            bad,
            devices: counts,
        } = census;
        let count = |count: &afsosd::DeviceTally| {
            let device = devices.iter().find(|device| device.id == count.osd);
            DeviceCount {
                osd: count.osd,
                name: device.map_or_else(String::new, |device| device.name.clone()),
                archive: device.is_some_and(|device| device.archival),
                online: count.online.into(),
                wipeable: count.wipeable.into(),
                pinned: count.pinned.into(),
                copies_due: count.copies,
                archived: count.archived.into(),
                bad: count.bad.into(),
                unverified: count.unverified.into(),
                oldest_comparison: Some(count.oldest).filter(|time| *time > 0),
            }
        };
        Ok(ServerCensus {
            server,
            taken: Some(taken).filter(|taken| *taken > 0),
            millis,
            online: online.into(),
            wiped: wiped.into(),
            copied: copied.into(),
            lacking: lacking.into(),
            due: due.into(),
            bad_copies: bad,
            devices: counts.iter().map(count).collect(),
            unfinished_jobs,
            errors,
        })
    }

    /// The files that a server's last census found to be copied to an archive, or to be wiped from
    /// a device.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn candidates(&self, server: IpAddr, osd: u32) -> Result<Vec<CandidateFile>> {
        let asked = ListCandidates {
            osd,
            limit: FILES_AT_ONCE,
        };
        let found = self.call(server, &asked).await?;
        let file = |file: &ArchiveCandidate| CandidateFile {
            server,
            fid: file.fid.to_string(),
            length: file.length,
            age: file.age,
            frees: file.frees,
        };
        Ok(found.files.iter().map(file).collect())
    }

    pub(crate) async fn call<P: Procedure>(
        &self,
        server: IpAddr,
        arguments: &P,
    ) -> Result<P::Reply> {
        let peer = SocketAddr::new(server, self.cell.ports.fileserver);
        let servers = self.client.servers();
        let connection = servers.connection(&self.cell.name, peer, &afsosd::PACKAGE);
        let answer = connection.call(arguments).await;
        answer.map_err(|cause: CallError| match cause.code() {
            code if is_unknown_there(code) => Error::Usage(format!(
                "file server {server} has no jobs; it is older, or not Cellar's"
            )),
            AbortCode::EPERM => Error::Usage(
                "only administrators of the cell may do this (--localauth, or --admin on the server)"
                    .to_owned(),
            ),
            _ => Error::refused(format!("cannot ask file server {server} for its jobs"), cause),
        })
    }
}

/// The error of a call about one job.
fn of_job(error: Error, server: IpAddr, id: u64) -> Error {
    match error.code() {
        Some(AbortCode::ENOENT) => Error::Usage(format!(
            "file server {server} has no job {id}; 'cellar jobs list --all' lists them"
        )),
        Some(AbortCode::EINVAL) => Error::Usage(format!(
            "the state of job {id} does not permit this; 'cellar jobs show {id}' shows it"
        )),
        _ => error,
    }
}
