//! The log of administrative acts: who did what, as one JSON object per line.
//!
//! 1. A record goes to a writer thread through a bounded queue. If the queue is full, the record is
//!    dropped and counted: a call never waits for the log. The next written line tells how many
//!    records are missing.
//! 2. The file has mode 0600, and lines are appended. Before each batch the writer checks whether
//!    the name still leads to the open file, and opens a new file if not. So log rotation needs
//!    only a rename. A symbolic link is not followed.
//! 3. Refused acts of anonymous callers are recorded at a bounded rate, since every host on the
//!    network can cause them. The rate is a hundred at once, one per second over time. The next
//!    line tells how many are missing.
//! 4. When the last clone of an [`Audit`] is dropped, it waits until all queued records are
//!    written.

mod detail;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use cellar_wire::AfsTime;
use chrono::{DateTime, SecondsFormat};
use parking_lot::Mutex;
use serde_json::{Map, Value};

pub use detail::{Address, Detail, Details};

use crate::{Error, Identity, Result};

/// The most records that wait for the writer.
const QUEUE_MAX: usize = 4096;
/// The most bytes of one write.
const BATCH_BYTES: usize = 64 << 10;
/// Refused acts of anonymous callers that may be recorded at once. The allowance grows by one each
/// second.
const REFUSALS_AT_ONCE: u32 = 100;

/// One administrative act.
#[derive(Clone, Debug)]
pub struct Record {
    time: AfsTime,
    act: &'static str,
    who: String,
    anonymous: bool,
    peer: Option<SocketAddr>,
    code: i32,
    details: Details,
}

impl Record {
    /// `act` is the procedure's name (`PR_NewEntry`). `peer` is `None` for a call over the local
    /// administrator's socket. `code` 0 means success; else it is the abort code of an act that was
    /// refused or failed.
    #[must_use]
    pub fn new(
        time: AfsTime,
        act: &'static str,
        who: &Identity,
        peer: Option<SocketAddr>,
        code: i32,
    ) -> Self {
        Self {
            time,
            act,
            who: who.who(),
            anonymous: matches!(who, Identity::Anonymous),
            peer,
            code,
            details: Vec::new(),
        }
    }

    /// Adds a detail of the act.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Detail) -> Self {
        self.details.push((key, value.json()));
        self
    }

    /// Adds details of the act.
    #[must_use]
    pub fn with_all(mut self, details: Details) -> Self {
        self.details.extend(details);
        self
    }

    fn line(&self, out: &mut Vec<u8>) {
        let mut object = Map::new();
        object.insert("time".into(), when(self.time).into());
        object.insert("act".into(), self.act.into());
        object.insert("who".into(), self.who.as_str().into());
        let peer = self.peer.map(|peer| peer.to_string());
        object.insert("peer".into(), peer.map_or(Value::Null, Value::String));
        object.insert("allowed".into(), (self.code == 0).into());
        object.insert("code".into(), self.code.into());
        if !self.details.is_empty() {
            let mut details = Map::new();
            for (key, value) in &self.details {
                // A detail that occurs several times is a list.
                match details.get_mut(*key) {
                    None => drop(details.insert((*key).to_owned(), value.clone())),
                    Some(Value::Array(list)) => list.push(value.clone()),
                    Some(first) => *first = vec![first.take(), value.clone()].into(),
                }
            }
            object.insert("details".into(), Value::Object(details));
        }
        append(out, object);
    }
}

fn when(time: AfsTime) -> String {
    DateTime::from_timestamp(i64::from(time.0), 0)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
        .unwrap_or_default()
}

fn append(out: &mut Vec<u8>, object: Map<String, Value>) {
    out.extend_from_slice(Value::Object(object).to_string().as_bytes());
    out.push(b'\n');
}

/// The log of administrative acts. Clones share the log.
#[derive(Clone)]
pub struct Audit(Option<Arc<Queue>>);

struct Queue {
    sender: Option<SyncSender<Record>>,
    lost: Arc<Lost>,
    refusals: Mutex<Refusals>,
    writer: Option<JoinHandle<()>>,
}

/// The number of refused acts of anonymous callers that may still be recorded.
struct Refusals {
    left: u32,
    /// The time of the last recomputation.
    at: AfsTime,
}

impl Refusals {
    /// Whether one more act may be recorded. Counts it if so.
    fn admit(&mut self, now: AfsTime) -> bool {
        let passed = now.0.saturating_sub(self.at.0);
        self.left = self.left.saturating_add(passed).min(REFUSALS_AT_ONCE);
        self.at = self.at.max(now);
        let admitted = self.left > 0;
        self.left -= u32::from(admitted);
        admitted
    }
}

#[derive(Default)]
struct Lost {
    /// The number of lost records since the start.
    all: AtomicU64,
    /// Those that no line of the file has reported yet.
    untold: AtomicU64,
}

impl Lost {
    fn count(&self, records: u64) {
        self.all.fetch_add(records, Ordering::Relaxed);
        self.untold.fetch_add(records, Ordering::Relaxed);
    }
}

impl Audit {
    /// A log that keeps no records.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Opens a log that appends to `path`. A missing file is created with mode 0600.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be opened or the thread does not start.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::file(path, error);
        let mut log = LogFile::open(path).map_err(failed)?;
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let lost = Arc::new(Lost::default());
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn({
                let lost = lost.clone();
                move || log.run(&receiver, &lost)
            })
            .map_err(failed)?;
        Ok(Self(Some(Arc::new(Queue {
            sender: Some(sender),
            lost,
            refusals: Mutex::new(Refusals {
                left: REFUSALS_AT_ONCE,
                at: AfsTime(0),
            }),
            writer: Some(writer),
        }))))
    }

    /// Queues a record. Never waits.
    pub fn record(&self, record: Record) {
        let Some(queue) = &self.0 else { return };
        let Some(sender) = &queue.sender else { return };
        if record.anonymous && record.code != 0 && !queue.refusals.lock().admit(record.time) {
            queue.lost.count(1);
            return;
        }
        match sender.try_send(record) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => queue.lost.count(1),
        }
    }

    /// The number of lost records since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |queue| queue.lost.all.load(Ordering::Relaxed))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    /// Device and inode of `file`.
    identity: (u64, u64),
    failing: bool,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = cellar_private::log(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: (metadata.dev(), metadata.ino()),
            failing: false,
        })
    }

    fn run(&mut self, receiver: &Receiver<Record>, lost: &Lost) {
        let mut batch = Vec::new();
        while let Ok(first) = receiver.recv() {
            batch.clear();
            let untold = lost.untold.swap(0, Ordering::Relaxed);
            if untold > 0 {
                let mut object = Map::new();
                object.insert("time".into(), when(first.time).into());
                object.insert("act".into(), "records lost".into());
                object.insert("count".into(), untold.into());
                append(&mut batch, object);
            }
            first.line(&mut batch);
            let mut records = 1;
            while batch.len() < BATCH_BYTES {
                let Ok(next) = receiver.try_recv() else { break };
                next.line(&mut batch);
                records += 1;
            }
            match self.write(&batch) {
                Ok(()) => self.failing = false,
                Err(error) => {
                    lost.count(records);
                    lost.untold.fetch_add(untold, Ordering::Relaxed);
                    if !self.failing {
                        tracing::error!(path = %self.path.display(), %error, "the audit log cannot be written");
                    }
                    self.failing = true;
                }
            }
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let here = match fs::symlink_metadata(&self.path) {
            Ok(metadata) => Some((metadata.dev(), metadata.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if here != Some(self.identity) {
            *self = Self {
                failing: self.failing,
                ..Self::open(&self.path)?
            };
        }
        self.file.write_all(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_recorded_in_part() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        let boss = Identity::Superuser("boss".into());
        let act = |who, time, code| {
            audit.record(Record::new(AfsTime(time), "NukeVolume", who, None, code));
        };
        for _ in 0..1000 {
            act(&Identity::Anonymous, 1_800_000_000, 1);
            act(&boss, 1_800_000_000, 1);
        }
        for second in 1..=10 {
            act(&Identity::Anonymous, 1_800_000_000 + second, 1);
            act(&Identity::Anonymous, 1_800_000_000 + second, 1);
        }
        assert_eq!(audit.lost(), 910);
        act(&boss, 1_800_000_011, 0);
        drop(audit);
        let log = fs::read_to_string(&path).unwrap();
        let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
        assert_eq!(count("anonymous"), 110);
        assert_eq!(count("boss"), 1001);
        let missing: u64 = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["count"].as_u64())
            .sum();
        assert_eq!(missing, 910);
    }
}
