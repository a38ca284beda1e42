//! The operations of the console: moves, releases and backups that administrators start on its
//! pages.
//!
//! [`Operations`] owns the state of each operation. A state changes by these events only
//! ([`State::after`]):
//!
//! | state | cancel | ended well | ended with an error | ended by the request to stop |
//! | --- | --- | --- | --- | --- |
//! | running | cancelling | done | failed | cancelled |
//! | cancelling | cancelling | done: its last step had begun | failed | cancelled |
//! | done, failed, cancelled | unchanged | unchanged | unchanged | unchanged |
//!
//! The work itself runs in a task ([`crate::cell`]). It reports to its [`Progress`], and ends with
//! [`Operations::ended`]. The operations live in memory: a stop of the console cancels them.

mod progress;

use std::sync::Arc;
use std::time::Duration;

use cellar_admin::vos::Location;
use cellar_admin::vos::job::Stop;
use cellar_wire::ids::{AfsTime, VolumeId};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use progress::{Progress, ProgressView};

/// Operations that run at one time. Further ones are refused.
pub(crate) const RUNNING_MAX: usize = 16;
/// Ended operations that are kept. A further one replaces the oldest.
pub(crate) const ENDED_MAX: usize = 100;

/// The kind of an operation, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Moves the read-write volume.
    Move { from: Location, to: Location },
    /// Sends the read-write volume to its read-only sites. `resume`: only to those that lack the
    /// last release.
    Release { resume: bool },
    /// Makes the backup volume.
    Backup,
}

impl Kind {
    /// The kind in a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Move { .. } => "move",
            Self::Release { .. } => "release",
            Self::Backup => "backup",
        }
    }
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its task works.
    Running,
    /// Its task was asked to stop, and cleans up.
    Cancelling,
    /// It ended well.
    Done,
    /// It ended with an error.
    Failed,
    /// It stopped because it was asked to.
    Cancelled,
}

/// A change of the state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An administrator, or the stop of the console, cancels it.
    Cancel,
    /// Its task has ended.
    Ended(Ending),
}

/// The end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Well,
    Failed,
    Stopped,
}

impl State {
    /// The state after an event.
    pub(crate) fn after(self, event: Event) -> Self {
        match (self, event) {
            (Self::Running | Self::Cancelling, Event::Cancel) => Self::Cancelling,
            (Self::Running | Self::Cancelling, Event::Ended(ending)) => match ending {
                Ending::Well => Self::Done,
                Ending::Failed => Self::Failed,
                Ending::Stopped => Self::Cancelled,
            },
            (Self::Done | Self::Failed | Self::Cancelled, _) => self,
        }
    }

    /// Whether the task has ended.
    pub(crate) fn is_ended(self) -> bool {
        match self {
            Self::Running | Self::Cancelling => false,
            Self::Done | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The state in a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An operation to begin.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    /// The name of the volume.
    pub(crate) name: String,
    /// The read-write volume.
    pub(crate) volume: VolumeId,
    /// The number of the session that starts it.
    pub(crate) session: u64,
    pub(crate) started: AfsTime,
}

/// An operation, as pages show it.
#[derive(Clone, Debug)]
pub(crate) struct OperationView {
    pub(crate) id: u64,
    pub(crate) order: Order,
    pub(crate) state: State,
    pub(crate) progress: ProgressView,
    pub(crate) ended: Option<AfsTime>,
    /// The result, the error, or the state that a cancelled operation leaves.
    pub(crate) sentence: String,
}

struct Record {
    id: u64,
    order: Order,
    state: State,
    stop: Stop,
    progress: Arc<Progress>,
    ended: Option<AfsTime>,
    sentence: String,
}

impl Record {
    fn view(&self) -> OperationView {
        OperationView {
            id: self.id,
            order: self.order.clone(),
            state: self.state,
            progress: self.progress.view(),
            ended: self.ended,
            sentence: self.sentence.clone(),
        }
    }
}

#[derive(Default)]
struct Inner {
    /// In the order of their numbers.
    records: Vec<Record>,
    last: u64,
    /// The console stops, and begins no operation any more.
    is_closed: bool,
}

impl Inner {
    fn running(&self) -> impl Iterator<Item = &Record> {
        self.records
            .iter()
            .filter(|record| !record.state.is_ended())
    }
}

/// An operation that has begun, for its task.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: u64,
    pub(crate) stop: Stop,
    pub(crate) progress: Arc<Progress>,
}

/// The operations of a console.
#[derive(Default)]
pub(crate) struct Operations {
    inner: Mutex<Inner>,
    /// An operation has ended.
    ended: Notify,
}

impl Operations {
    /// Begins an operation. A volume has one at a time.
    ///
    /// # Errors
    /// A sentence for the page.
    pub(crate) fn begin(&self, order: Order) -> Result<Begun, String> {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err("The console stops, and begins nothing any more.".to_owned());
        }
        if let Some(other) = inner.running().find(|one| one.order.volume == order.volume) {
            return Err(format!(
                "Operation {} of this console works on volume {}. Wait until it ends, or cancel it.",
                other.id, order.name
            ));
        }
        if inner.running().count() >= RUNNING_MAX {
            return Err(format!(
                "{RUNNING_MAX} operations of this console run. Wait until one of them ends."
            ));
        }
        inner.last += 1;
        let begun = Begun {
            id: inner.last,
            stop: Stop::default(),
            progress: Arc::default(),
        };
        inner.records.push(Record {
            id: begun.id,
            order,
            state: State::Running,
            stop: begun.stop.clone(),
            progress: begun.progress.clone(),
            ended: None,
            sentence: String::new(),
        });
        Ok(begun)
    }

    /// Asks an operation to stop. One that has ended stays as it is.
    ///
    /// # Errors
    /// A sentence for the page: there is no such operation.
    pub(crate) fn cancel(&self, id: u64) -> Result<(), String> {
        let mut inner = self.inner.lock();
        let record = inner.records.iter_mut().find(|record| record.id == id);
        let record = record.ok_or_else(|| format!("The console has no operation {id}."))?;
        record.state = record.state.after(Event::Cancel);
        record.stop.ask();
        Ok(())
    }

    /// Notes the end of an operation's task.
    pub(crate) fn ended(&self, id: u64, ending: Ending, sentence: String, now: AfsTime) {
        let mut inner = self.inner.lock();
        let record = inner.records.iter_mut().find(|record| record.id == id);
        if let Some(record) = record.filter(|record| !record.state.is_ended()) {
            record.state = record.state.after(Event::Ended(ending));
            record.ended = Some(now);
            record.sentence = sentence;
        }
        let kept = inner.records.iter().filter(|one| one.state.is_ended());
        if kept.count() > ENDED_MAX
            && let Some(oldest) = inner.records.iter().position(|one| one.state.is_ended())
        {
            inner.records.remove(oldest);
        }
        drop(inner);
        self.ended.notify_waiters();
    }

    /// All operations, the newest first.
    pub(crate) fn all(&self) -> Vec<OperationView> {
        let inner = self.inner.lock();
        inner.records.iter().rev().map(Record::view).collect()
    }

    /// An operation by its number.
    pub(crate) fn get(&self, id: u64) -> Option<OperationView> {
        let inner = self.inner.lock();
        let found = inner.records.iter().find(|record| record.id == id);
        found.map(Record::view)
    }

    /// The running operation of a volume.
    pub(crate) fn of_volume(&self, volume: VolumeId) -> Option<OperationView> {
        let inner = self.inner.lock();
        let found = inner.running().find(|one| one.order.volume == volume);
        found.map(Record::view)
    }

    /// Cancels all operations and waits until they have ended, at most for `limit`. No further one
    /// begins. Returns those that still run.
    pub(crate) async fn close(&self, limit: Duration) -> Vec<OperationView> {
        {
            let mut inner = self.inner.lock();
            inner.is_closed = true;
            for record in &mut inner.records {
                record.state = record.state.after(Event::Cancel);
                record.stop.ask();
            }
        }
        let all_ended = async {
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                // Registered before the check, so that no end is missed.
                ended.as_mut().enable();
                if self.inner.lock().running().next().is_none() {
                    return;
                }
                ended.await;
            }
        };
        let _late = tokio::time::timeout(limit, all_ended).await;
        self.inner.lock().running().map(Record::view).collect()
    }
}

#[cfg(test)]
mod tests;
