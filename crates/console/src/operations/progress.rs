//! The progress of an operation: its last step, its bytes, and its messages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_admin::vos::job::{Step, Watched, Watcher};
use parking_lot::Mutex;

/// Messages of an operation that are kept. A further one replaces the oldest.
const MESSAGES_MAX: usize = 20;

/// The progress that the task of an operation reports.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Sent bytes.
    sent: AtomicU64,
    /// Bytes to send; 0 if they are not known.
    whole: AtomicU64,
    reports: Mutex<Reports>,
}

#[derive(Debug, Default)]
struct Reports {
    step: String,
    messages: VecDeque<String>,
}

/// The progress at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgressView {
    pub(crate) sent: u64,
    /// 0 if it is not known.
    pub(crate) whole: u64,
    /// The last step; empty before the first one.
    pub(crate) step: String,
    /// The last messages.
    pub(crate) messages: Vec<String>,
}

impl Progress {
    /// Sets the bytes to send.
    pub(crate) fn set_whole(&self, bytes: u64) {
        self.whole.store(bytes, Ordering::Relaxed);
    }

    /// Notes sent bytes. Of two transfers, the larger one counts: the second sends the changes
    /// since the first.
    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn view(&self) -> ProgressView {
        let reports = self.reports.lock();
        ProgressView {
            sent: self.sent.load(Ordering::Relaxed),
            whole: self.whole.load(Ordering::Relaxed),
            step: reports.step.clone(),
            messages: reports.messages.iter().cloned().collect(),
        }
    }
}

impl Watcher for Progress {
    fn done(&self, step: Step) -> Watched<'_> {
        let text = match step.at {
            Some(at) => format!("{} {at}", step.name),
            None => step.name.to_owned(),
        };
        self.reports.lock().step = text;
        Box::pin(std::future::ready(()))
    }

    fn say(&self, line: &str) {
        let messages = &mut self.reports.lock().messages;
        if messages.len() >= MESSAGES_MAX {
            messages.pop_front();
        }
        messages.push_back(line.to_owned());
    }
}
