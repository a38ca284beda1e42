//! Who did what administrative act: one JSON object a line.
//!
//! 1. A record is handed to a writer thread through a bounded queue. A full queue drops the record and
//!    counts it: a call never waits for the log. The next line that is written says how many are missing.
//! 2. The file is appended to, mode 0600. Before each batch the writer looks whether the name still leads
//!    to the open file, and opens a new one if not: renaming is all that rotation needs.
//! 3. The last clone of an [`Audit`] that goes away waits until what is queued has been written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use cellar_rpc::IncomingCall;
use cellar_wire::AfsTime;
use chrono::{DateTime, SecondsFormat};
use serde_json::{Map, Value};

use crate::{Error, Identity, Result};

/// Records that may wait for the writer.
const QUEUE_MAX: usize = 4096;
/// Bytes that are written at a time.
const BATCH_BYTES: usize = 64 << 10;

/// One administrative act.
#[derive(Clone, Debug)]
pub struct Record {
    time: AfsTime,
    act: &'static str,
    who: String,
    peer: Option<SocketAddr>,
    code: i32,
    details: Vec<(&'static str, String)>,
}

impl Record {
    /// `act` is the procedure's name (`PR_NewEntry`); `peer` is `None` on the local administrator's socket.
    /// `code` 0: done. Else the abort code; the act was refused or failed.
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
            peer,
            code,
            details: Vec::new(),
        }
    }

    /// Of a call to a server, by whoever made it; where it came from is known but on the local administrator's
    /// socket.
    #[must_use]
    pub fn of_call(
        call: &IncomingCall,
        time: AfsTime,
        act: &'static str,
        who: &Identity,
        code: i32,
    ) -> Self {
        let peer = call.port().map(|_| call.peer().address);
        Self::new(time, act, who, peer, code)
    }

    /// Adds what the act was about.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.details.push((key, value.to_string()));
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
            let details = self.details.iter();
            let details = details.map(|(key, value)| ((*key).to_owned(), value.as_str().into()));
            object.insert("details".into(), Value::Object(details.collect()));
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

/// The log of administrative acts. Clones share it.
#[derive(Clone)]
pub struct Audit(Option<Arc<Queue>>);

struct Queue {
    sender: Option<SyncSender<Record>>,
    lost: Arc<Lost>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Lost {
    /// Since the start.
    all: AtomicU64,
    /// Not yet told in the file.
    untold: AtomicU64,
}

impl Lost {
    fn count(&self, records: u64) {
        self.all.fetch_add(records, Ordering::Relaxed);
        self.untold.fetch_add(records, Ordering::Relaxed);
    }
}

impl Audit {
    /// A log that keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Appends to `path`, which is made with mode 0600 if it is missing.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be opened, or no thread started.
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
            writer: Some(writer),
        }))))
    }

    /// Queues a record. Never waits.
    pub fn record(&self, record: Record) {
        let Some(queue) = &self.0 else { return };
        let Some(sender) = &queue.sender else { return };
        match sender.try_send(record) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => queue.lost.count(1),
        }
    }

    /// Records that could not be written since the start.
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
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
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
        let here = match fs::metadata(&self.path) {
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
