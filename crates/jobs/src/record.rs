//! The rows of a job in the database.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `jobs.spec` | job | [`Spec`]: never changes |
//! | `jobs.live` | job | [`Live`]: state, step, progress |
//! | `jobs.item` | job, number | [`Item`] |
//! | `jobs.ended` | time of the end, job | empty: the history in order |
//! | `jobs.unique` | kind, 0, unique name | the unfinished job of that name |
//! | `jobs.meta` | `next` | the next job number |
//!
//! Numbers in keys have eight bytes, the highest first. Values are JSON, so that an older job can
//! be read by a newer program: new fields have defaults.

use cellar_celldb::Table;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::job::{Ended, Item, Job, JobId, Priority, Progress, State, Time};

pub(crate) const SPEC: Table = Table::new("jobs.spec");
pub(crate) const LIVE: Table = Table::new("jobs.live");
pub(crate) const ITEM: Table = Table::new("jobs.item");
pub(crate) const ENDED: Table = Table::new("jobs.ended");
pub(crate) const UNIQUE: Table = Table::new("jobs.unique");
pub(crate) const META: Table = Table::new("jobs.meta");
pub(crate) const NEXT: &[u8] = b"next";

/// The part of a job that never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) kind: String,
    pub(crate) user: String,
    #[serde(default)]
    pub(crate) resource: String,
    #[serde(default)]
    pub(crate) group: String,
    #[serde(default)]
    pub(crate) arguments: Value,
    #[serde(default)]
    pub(crate) unique: Option<String>,
    #[serde(default)]
    pub(crate) expected: Progress,
    pub(crate) created: Time,
    #[serde(default)]
    pub(crate) deadline: Option<Time>,
}

/// The part of a job that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Live {
    pub(crate) state: State,
    pub(crate) step: String,
    #[serde(default)]
    pub(crate) data: Value,
    #[serde(default)]
    pub(crate) attempts: u32,
    #[serde(default)]
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) progress: Progress,
    /// Recorded items.
    #[serde(default)]
    pub(crate) items: u64,
    #[serde(default)]
    pub(crate) started: Option<Time>,
    #[serde(default)]
    pub(crate) ended: Option<Time>,
    pub(crate) priority: Priority,
    pub(crate) order: i64,
    /// A user has cancelled the job.
    #[serde(default)]
    pub(crate) cancel: bool,
    /// The job cleans up, and ends in this way.
    #[serde(default)]
    pub(crate) cleaning: Option<Ended>,
    /// A user has retried the job: the deadline of its submission no longer counts.
    #[serde(default)]
    pub(crate) no_deadline: bool,
}

/// The job that both parts make.
pub(crate) fn job(id: JobId, spec: Spec, live: Live) -> Job {
    Job {
        id,
        kind: spec.kind,
        user: spec.user,
        resource: spec.resource,
        group: spec.group,
        priority: live.priority,
        arguments: spec.arguments,
        state: live.state,
        step: live.step,
        data: live.data,
        attempts: live.attempts,
        error: live.error,
        progress: live.progress,
        expected: spec.expected,
        created: spec.created,
        started: live.started,
        ended: live.ended,
        deadline: spec.deadline.filter(|_| !live.no_deadline),
        cancelling: live.cancel && !live.state.is_ended(),
    }
}

/// The key of a job.
pub(crate) fn key(id: JobId) -> Vec<u8> {
    id.0.to_be_bytes().to_vec()
}

/// The key of an item, or of an end: two numbers.
pub(crate) fn key_of_two(first: u64, second: u64) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

/// The key of a unique name.
pub(crate) fn unique_key(kind: &str, name: &str) -> Vec<u8> {
    [kind.as_bytes(), name.as_bytes()].join(&0)
}

/// The number at a place of a key.
pub(crate) fn number_at(key: &[u8], at: usize) -> Option<u64> {
    let bytes = key.get(at..at + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// A row as JSON.
pub(crate) fn to_row(id: JobId, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| bad_row(id, &error))
}

/// A row from JSON.
pub(crate) fn from_row<T: DeserializeOwned>(id: JobId, row: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(row).map_err(|error| bad_row(id, &error))
}

pub(crate) fn bad_row(id: JobId, reason: &dyn std::fmt::Display) -> Error {
    Error::BadRow {
        id,
        reason: reason.to_string(),
    }
}

/// The row of an item.
pub(crate) fn item_row(id: JobId, number: u64, item: &Item) -> Result<(Vec<u8>, Vec<u8>), Error> {
    Ok((key_of_two(id.0, number), to_row(id, item)?))
}
