//! The scrubs of the partitions: at most one for each at a time, started by a call or at regular
//! intervals, and their results.
//!
//! | state of a partition | event | next state |
//! | --- | --- | --- |
//! | idle | [`Scrubs::begin`] | running |
//! | running | `begin` | running; the second caller is refused |
//! | running | the [`Scrubbing`] is dropped | idle; has a result after [`Scrubbing::end`] |
//!
//! The result of the last scrub of a whole partition is kept in memory, beside the progress of the
//! next one. A restart forgets it. A scrub of one volume leaves no result.
//!
//! The first regular scrub begins a 64th of the interval after the start, so a server that restarts
//! often scrubs too.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::IncomingCall;
use cellar_volume::{Partition, ScrubProgress, ScrubReport};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{ScrubStatus, ScrubStatusReply};
use cellar_wire::ids::{AfsTime, PartitionId};
use cellar_wire::serve::Handle;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{error, info, warn};

use super::VolumeService;
use super::list::partition_of;
use super::scrub::shown;
use crate::figures::ScrubFigures;
use crate::services::VolumeServices;

/// The least time between two regular scrubs.
const INTERVAL_LEAST: Duration = Duration::from_secs(1);
/// The part of the interval after which the first regular scrub begins.
const FIRST_AFTER: u32 = 64;

/// The regular scrubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Schedule {
    /// Zero: none.
    every: Duration,
    /// Bytes a second for each partition.
    rate: u64,
}

/// The scrubs of one partition.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The progress of the running scrub.
    running: Option<ScrubProgress>,
    /// The start of the running or the last scrub.
    started: AfsTime,
    last: Option<Ended>,
}

/// The result of a scrub of a whole partition.
#[derive(Clone, Copy, Debug)]
struct Ended {
    at: AfsTime,
    progress: ScrubProgress,
    is_partial: bool,
}

/// The scrubs of all partitions.
#[derive(Default)]
pub(crate) struct Scrubs {
    states: Mutex<BTreeMap<PartitionId, State>>,
    schedule: Mutex<Schedule>,
}

/// A running scrub.
pub(super) struct Scrubbing {
    services: Arc<VolumeServices>,
    place: PartitionId,
}

impl Scrubs {
    /// Begins a scrub of a partition.
    ///
    /// # Errors
    /// `VOLSERVOLBUSY`: one is running.
    pub(super) fn begin(
        services: &Arc<VolumeServices>,
        place: PartitionId,
    ) -> Result<Scrubbing, AbortCode> {
        let mut states = services.scrubs.states.lock();
        let state = states.entry(place).or_default();
        if state.running.is_some() {
            return Err(AbortCode::VOLSERVOLBUSY);
        }
        state.running = Some(ScrubProgress::default());
        state.started = services.now();
        Ok(Scrubbing {
            services: services.clone(),
            place,
        })
    }

    /// The figures of every partition that was scrubbed since the start.
    pub(crate) fn figures(&self) -> Vec<ScrubFigures> {
        let states = self.states.lock();
        let figures = states.iter().map(|(partition, state)| ScrubFigures {
            partition: *partition,
            is_running: state.running.is_some(),
            bytes: state.running.map_or(0, |progress| progress.bytes),
            ended: state.last.map_or(0, |last| last.at.0),
            damaged: state.last.map_or(0, |last| last.progress.damaged),
        });
        figures.collect()
    }
}

impl Scrubbing {
    /// Records the progress.
    pub(super) fn progress(&self, progress: ScrubProgress) {
        let mut states = self.services.scrubs.states.lock();
        if let Some(state) = states.get_mut(&self.place) {
            state.running = Some(progress);
        }
    }

    /// Records the result of a scrub of the whole partition.
    pub(super) fn end(&self, report: &ScrubReport) {
        let mut states = self.services.scrubs.states.lock();
        if let Some(state) = states.get_mut(&self.place) {
            state.last = Some(Ended {
                at: self.services.now(),
                progress: report.progress,
                is_partial: report.is_partial,
            });
        }
    }
}

impl Drop for Scrubbing {
    fn drop(&mut self) {
        let mut states = self.services.scrubs.states.lock();
        if let Some(state) = states.get_mut(&self.place) {
            state.running = None;
        }
    }
}

impl VolumeServices {
    /// Scrubs every partition at regular intervals, until the server stops. `every` zero: never.
    pub(crate) async fn scrub_regularly(self: Arc<Self>, every: Duration, rate: u64) {
        if every.is_zero() || rate == 0 {
            return;
        }
        *self.scrubs.schedule.lock() = Schedule { every, rate };
        let first = Instant::now() + every / FIRST_AFTER;
        let mut ticks = tokio::time::interval_at(first, every.max(INTERVAL_LEAST));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stopping.has_begun() {
            ticks.tick().await;
            for (place, partition) in self.volumes.partitions() {
                self.begin_regular(place, partition, rate);
            }
        }
    }

    /// Scrubs a partition on a thread of its own, unless a scrub runs there: it takes days, and the
    /// pool's threads are for calls.
    fn begin_regular(self: &Arc<Self>, place: PartitionId, partition: Arc<Partition>, rate: u64) {
        let Ok(scrubbing) = Scrubs::begin(self, place) else {
            return;
        };
        let stopping = self.stopping.clone();
        let work = move || {
            let outcome = partition.scrub(rate, &mut |progress| {
                scrubbing.progress(*progress);
                match stopping.has_begun() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            match outcome {
                Ok(report) => {
                    log(place, &report);
                    scrubbing.end(&report);
                }
                // A partition that is closed refuses further reads.
                Err(_) if stopping.has_begun() => {}
                Err(error) => error!(partition = %place, %error, "the scrub ended early"),
            }
        };
        let thread = std::thread::Builder::new().name("scrub".to_owned());
        if let Err(error) = thread.spawn(work) {
            error!(partition = %place, %error, "cannot start a scrub");
        }
    }
}

/// Logs the damage and the end of a scrub.
pub(super) fn log(place: PartitionId, report: &ScrubReport) {
    for damage in &report.damaged {
        warn!(fid = %damage.fid, partition = %place, cause = damage.cause, "damaged");
    }
    info!(partition = %place, progress = ?report.progress, partial = report.is_partial, "scrubbed");
}

impl Handle<ScrubStatus, IncomingCall> for VolumeService {
    /// For every caller: the reply has numbers only.
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: ScrubStatus,
    ) -> Result<ScrubStatusReply, AbortCode> {
        let services = &self.services;
        let (place, _) = partition_of(&services.volumes, arguments.partition)?;
        let state = services.scrubs.states.lock().get(&place).copied();
        let state = state.unwrap_or_default();
        let schedule = *services.scrubs.schedule.lock();
        let last = state.last;
        Ok(ScrubStatusReply {
            every: u32::try_from(schedule.every.as_secs()).unwrap_or(u32::MAX),
            rate_kib: u32::try_from(schedule.rate >> 10).unwrap_or(u32::MAX),
            running: state.running.is_some(),
            started: state.started,
            progress: shown(state.running.unwrap_or_default()),
            ended: last.map_or(AfsTime(0), |last| last.at),
            partial: last.is_some_and(|last| last.is_partial),
            last: shown(last.map_or_else(ScrubProgress::default, |last| last.progress)),
        })
    }
}
