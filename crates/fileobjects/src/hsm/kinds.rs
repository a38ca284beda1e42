//! The kinds of jobs of hierarchical storage.
//!
//! | kind | resource | item |
//! | --- | --- | --- |
//! | [`COPY`] | the name of the archive | a file to copy |
//! | [`WIPE`] | the name of the device | a file to wipe |
//! | [`VERIFY`] | the name of the archive | a file whose copies are read back |
//! | [`RECALL`] | the name of the archive that is asked first | the file to recall |
//!
//! All have one step, `files`. Its data are the number of files that are finished. A crash repeats
//! at most the files since the last checkpoint. That changes nothing: a copy that exists is not
//! made again, a wiped file is not wiped, an online file is not recalled. A copy may be
//! read back twice.
//!
//! Copies, wipes and verifications belong to the server. A recall has one file and belongs to the
//! user who opened it. The queue serves the n-th recall of each user before any next one. So
//! recalls of many files by one user do not delay another user's. A recall that fails is not
//! repeated, because its callers have the error; the next open begins another one.

use std::time::Duration;

use cellar_jobs::{Job, JobKind, Limits, NewJob, Next, Progress, Retry, StepContext, StepError};
use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::osddb::OsdEntry;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::cell::BoxFuture;
use super::census::Candidate;
use super::work::{Operation, Worked, Worker};

/// The kind that copies files to an archive.
pub const COPY: &str = "archive-copy";
/// The kind that wipes files.
pub const WIPE: &str = "archive-wipe";
/// The kind that reads copies back and compares them.
pub const VERIFY: &str = "archive-verify";
/// The kind that recalls a file.
pub const RECALL: &str = "recall";
/// The only step.
const FILES: &str = "files";

/// The user of jobs that the server submits by itself.
pub(super) const SYSTEM: &str = "system";
/// Files of one job, at most. Several jobs of an archive run at a time.
pub(super) const FILES_PER_JOB: usize = 128;
/// Files that fail one after the other before the archive counts as down.
const FAILED_IN_A_ROW_MAX: u32 = 8;
/// Recalls of a server that run at a time.
const RECALLS_AT_A_TIME: usize = 16;
/// Recalls of an archive that run at a time.
const RECALLS_OF_AN_ARCHIVE: usize = 8;
/// Recalls of a user that run at a time: an archive keeps two places for other users, who then wait
/// for no recall of the first one.
const RUNNING_RECALLS_OF_A_USER: usize = RECALLS_OF_AN_ARCHIVE - 2;
/// Recalls of a user that wait. Further ones are told to come back.
const RECALLS_OF_A_USER: usize = 10_000;
/// Files between two checkpoints.
const CHECKPOINT_FILES: usize = 16;

/// The arguments of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Arguments {
    /// The archive to copy to or to read from, or the device that is to be freed.
    pub(super) osd: u32,
    /// The files.
    pub(super) files: Vec<FileArgument>,
}

/// A file of a job: volume, vnode, uniquifier, number of copies, length.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct FileArgument(u32, u32, u32, u32, u64);

impl From<&Candidate> for FileArgument {
    fn from(file: &Candidate) -> Self {
        let fid = file.fid;
        Self(
            fid.volume.0,
            fid.vnode.0,
            fid.uniquifier.0,
            file.copies,
            file.length,
        )
    }
}

impl FileArgument {
    fn fid(&self) -> Fid {
        Fid {
            volume: VolumeId(self.0),
            vnode: VnodeId(self.1),
            uniquifier: Uniquifier(self.2),
        }
    }
}

/// Copies, wipes, verifies or recalls files.
pub(super) struct FilesKind {
    pub(super) name: &'static str,
    pub(super) worker: Worker,
}

impl JobKind for FilesKind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn steps(&self) -> &'static [&'static str] {
        &[FILES]
    }

    fn limits(&self) -> Limits {
        if self.name == RECALL {
            return Limits {
                running: RECALLS_AT_A_TIME,
                running_per_resource: RECALLS_OF_AN_ARCHIVE,
                running_per_user: RUNNING_RECALLS_OF_A_USER,
                unfinished_per_user: RECALLS_OF_A_USER,
                ..Limits::default()
            };
        }
        Limits {
            running: 32,
            running_per_resource: match self.name {
                VERIFY => 1,
                _ => 4,
            },
            retry: Retry {
                attempts: 0,
                first: Duration::from_secs(5),
                longest: Duration::from_secs(600),
            },
            ..Limits::default()
        }
    }

    fn step<'a>(
        &'a self,
        _: &'a str,
        context: &'a dyn StepContext,
    ) -> BoxFuture<'a, Result<Next, StepError>> {
        Box::pin(self.files(context))
    }
}

impl FilesKind {
    async fn files(&self, context: &dyn StepContext) -> Result<Next, StepError> {
        let job = context.job();
        let Arguments { osd, files } = serde_json::from_value(job.arguments.clone())
            .map_err(|error| StepError::Permanent(format!("the arguments: {error}")))?;
        let finished = job.data.get("finished").and_then(Value::as_u64);
        let finished = usize::try_from(finished.unwrap_or_default()).unwrap_or(usize::MAX);
        let mut failed_in_a_row = 0;
        for (index, file) in files.iter().enumerate().skip(finished) {
            let (fid, operation) = (file.fid(), self.operation(osd, file));
            let worked = tokio::select! {
                biased;
                () = context.cancelled() => return Err(StepError::Cancelled),
                worked = self.worker.run(fid, operation) => worked,
            };
            match worked {
                Worked::Done(bytes) => {
                    context.add_bytes(bytes);
                    context.add_item(&fid.to_string(), Ok(()));
                    failed_in_a_row = 0;
                }
                Worked::Failed(reason) | Worked::Down(reason) if self.name == RECALL => {
                    return Err(StepError::Permanent(reason));
                }
                Worked::Nothing => {}
                Worked::Bad(reason) => {
                    context.add_item(&fid.to_string(), Err(reason));
                    failed_in_a_row = 0;
                }
                Worked::Failed(reason) => {
                    failed_in_a_row += 1;
                    if failed_in_a_row >= FAILED_IN_A_ROW_MAX {
                        context.checkpoint(data(index)).await?;
                        return Err(StepError::Unavailable(reason));
                    }
                    context.add_item(&fid.to_string(), Err(reason));
                }
                Worked::Down(reason) => {
                    context.checkpoint(data(index)).await?;
                    return Err(StepError::Unavailable(reason));
                }
            }
            if (index + 1).is_multiple_of(CHECKPOINT_FILES) {
                context.checkpoint(data(index + 1)).await?;
            }
        }
        Ok(Next::Done(data(files.len())))
    }

    fn operation(&self, osd: u32, file: &FileArgument) -> Operation {
        match self.name {
            RECALL => Operation::Recall,
            WIPE => Operation::Wipe { copies: file.3 },
            VERIFY => Operation::Verify {
                osd,
                length: file.4,
            },
            _ => Operation::Copy {
                osd,
                length: file.4,
            },
        }
    }
}

/// The name of a device as the resource of jobs: its name, or its number if it has none.
pub(crate) fn resource_of(entry: &OsdEntry) -> String {
    match entry.name.is_empty() {
        true => entry.id.to_string(),
        false => entry.name.to_string(),
    }
}

/// The job that recalls a file. `archive` is the name of the archive that is asked first.
pub(crate) fn recall_of(fid: Fid, length: u64, archive: String, user: Option<ViceId>) -> NewJob {
    let file = FileArgument(fid.volume.0, fid.vnode.0, fid.uniquifier.0, 0, length);
    NewJob {
        kind: RECALL.to_owned(),
        user: user.map_or_else(|| SYSTEM.to_owned(), |id| id.0.to_string()),
        resource: archive,
        unique: Some(fid.to_string()),
        arguments: json!(Arguments {
            osd: 0,
            files: vec![file],
        }),
        expected: Progress {
            bytes: length,
            items: 1,
            failed: 0,
        },
        ..NewJob::default()
    }
}

/// The file of a job that recalls one, with its length in bytes. `None`: it is another job.
pub fn recalled_file(job: &Job) -> Option<(Fid, u64)> {
    let arguments: Arguments = serde_json::from_value(job.arguments.clone()).ok()?;
    let file = arguments.files.first().filter(|_| job.kind == RECALL)?;
    Some((file.fid(), file.4))
}

fn data(finished: usize) -> Value {
    json!({ "finished": finished })
}
