//! The scheduler: starts jobs, ends pauses and holds, and observes deadlines.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Interrupt, Phase, Running, Shared, run};
use crate::error::Error;
use crate::job::{Ended, JobId, State, Time};
use crate::store;

/// Jobs are removed from the history when it is over its bound by this part of it.
const SLACK: usize = 16;
/// The longest sleep of the scheduler: the history is looked at afterwards.
const SLEEP_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Runs until the engine stops or the database fails.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut stopping = shared.stopping.subscribe();
    let mut looked_at_history = Time(0);
    let mut pruning: Option<JoinHandle<()>> = None;
    while !shared.is_stopping() {
        let now = shared.clock.now();
        let late = wake_up(&shared, now);
        for id in late {
            spawn(&shared, end_late(Arc::clone(&shared), id));
        }
        while let Some(start) = start_next(&shared, now) {
            spawn(&shared, run::run(Arc::clone(&shared), start));
        }
        if shared.inner.lock().failed.is_some() {
            break;
        }
        let due = now.since(looked_at_history) >= SLEEP_MAX;
        let (most, ended) = (shared.settings.history_max, shared.inner.lock().ended);
        let is_pruning = pruning.as_ref().is_some_and(|task| !task.is_finished());
        if (due || ended > most + most / SLACK) && !is_pruning {
            looked_at_history = now;
            // Jobs start meanwhile: a long history takes seconds to prune.
            pruning = Some(tokio::spawn(prune(Arc::clone(&shared), now)));
        }
        let sleep = next_event(&shared).map_or(SLEEP_MAX, |at| at.since(shared.clock.now()));
        tokio::select! {
            () = shared.wake.notified() => {}
            () = tokio::time::sleep(sleep.min(SLEEP_MAX)) => {}
            _ = stopping.changed() => {}
        }
    }
    if let Some(task) = pruning {
        let _ended = task.await;
    }
}

/// Spawns a task that [`super::Engine::stop`] awaits.
fn spawn(shared: &Shared, task: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(task);
    let mut inner = shared.inner.lock();
    if inner.tasks.len() >= 2 * shared.settings.running {
        inner.tasks.retain(|task| !task.is_finished());
    }
    inner.tasks.push(task);
}

/// Ends pauses and holds that are over. Returns the jobs whose deadline has passed and that do not
/// run; running ones are interrupted.
fn wake_up(shared: &Shared, now: Time) -> Vec<JobId> {
    let mut inner = shared.inner.lock();
    while let Some((until, id)) = inner.waiting.first().copied()
        && until <= now
    {
        inner.waiting.pop_first();
        // The row stays `Waiting` until the job starts: its time has come, so both are the same.
        inner.put_back(id, State::Queued, shared.kinds.len());
    }
    while let Some((until, pool)) = inner.held.first().copied()
        && until <= now
    {
        inner.held.pop_first();
        inner.queue.release(pool, now);
    }
    let mut late = Vec::new();
    while let Some((deadline, id)) = inner.deadlines.first().copied()
        && deadline <= now
    {
        inner.deadlines.pop_first();
        let Some(entry) = inner.jobs.get_mut(&id) else {
            continue;
        };
        entry.deadline = None;
        match &entry.phase {
            Phase::Running(running) => interrupt_with(&running.interrupt, Interrupt::Deadline),
            _ => late.extend(inner.take(id).map(|()| id)),
        }
    }
    late
}

/// Interrupts a step, unless it is interrupted already.
pub(super) fn interrupt_with(sender: &watch::Sender<Option<Interrupt>>, why: Interrupt) {
    sender.send_if_modified(|now| {
        let is_first = now.is_none();
        now.get_or_insert(why);
        is_first
    });
}

/// Marks the next job as running.
fn start_next(shared: &Shared, now: Time) -> Option<run::Start> {
    let mut inner = shared.inner.lock();
    if inner.failed.is_some() {
        return None;
    }
    let id = inner.queue.next()?;
    let (interrupt, interrupted) = watch::channel(None);
    let entry = inner.jobs.get_mut(&id)?;
    entry.phase = Phase::Running(Running {
        interrupt,
        started: now,
    });
    let kind = shared.kinds.get(entry.placement.kind)?;
    Some(run::Start {
        id,
        kind: Arc::clone(kind),
        at: now,
        interrupted,
    })
}

fn next_event(shared: &Shared) -> Option<Time> {
    let inner = shared.inner.lock();
    let waiting = inner.waiting.first().map(|(at, _)| *at);
    let held = inner.held.first().map(|(at, _)| *at);
    let deadline = inner.deadlines.first().map(|(at, _)| *at);
    [waiting, held, deadline].into_iter().flatten().min()
}

/// Ends a job that did not start, or pauses, at its deadline.
async fn end_late(shared: Arc<Shared>, id: JobId) {
    let error = "the deadline has passed";
    let _ = run::end_idle(&shared, id, Ended::Failed, Some(error)).await;
}

/// Removes ended jobs from the history.
async fn prune(shared: Arc<Shared>, now: Time) {
    let most = shared.settings.history_max;
    let age = u64::try_from(shared.settings.history_age.as_millis()).unwrap_or(u64::MAX);
    let before = Time(now.0.saturating_sub(age));
    while !shared.is_stopping() {
        let present = shared.inner.lock().ended;
        let pruned: Result<usize, Error> = shared
            .transact(move |db| store::prune(db, present, most, before))
            .await;
        match pruned {
            Ok(0) | Err(_) => return,
            Ok(removed) => {
                let mut inner = shared.inner.lock();
                inner.ended = inner.ended.saturating_sub(removed);
            }
        }
    }
}
