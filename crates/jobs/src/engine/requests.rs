//! The engine's methods for commands and other crates.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::schedule::interrupt_with;
use super::{Engine, Inner, Interrupt, Phase, run};
use crate::error::Error;
use crate::job::{Ended, Item, Job, JobId, NewJob, Position, Priority, State, Time};
use crate::limits::{ARGUMENTS_BYTES_MAX, NAME_BYTES_MAX, ROWS_AT_A_TIME_MAX};
use crate::record::{Live, Spec};
use crate::store;

/// Rows of one job in a submission: spec, state and unique name.
const ROWS_OF_A_JOB: usize = 3;

/// The jobs that a list shows. An empty filter shows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Jobs of this kind.
    pub kind: Option<String>,
    /// Jobs of this user.
    pub user: Option<String>,
    /// Jobs of this resource.
    pub resource: Option<String>,
    /// Unfinished jobs only.
    pub unfinished: bool,
    /// Jobs with a higher number than this: the last one of the list before.
    pub after: Option<JobId>,
}

/// Numbers of unfinished jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs in the queue.
    pub queued: usize,
    /// Jobs that pause after an error, or until their first start.
    pub waiting: usize,
    /// Running jobs.
    pub running: usize,
}

impl Engine {
    /// Submits a job. It is durable when this returns.
    ///
    /// # Errors
    /// As [`Engine::submit_all`].
    pub async fn submit(&self, job: NewJob) -> Result<JobId, Error> {
        let submitted = self.submit_all(vec![job]).await?;
        submitted.first().copied().ok_or(Error::Stopped)
    }

    /// Submits jobs, and returns their numbers in the same order. A job with the unique name of an
    /// unfinished job of its kind is that job.
    ///
    /// After an error of the database, it is unknown how many of the jobs exist. Jobs with unique
    /// names can be submitted again.
    ///
    /// # Errors
    /// Before anything is written: [`Error::UnknownKind`], [`Error::TooLong`], [`Error::TooMany`].
    /// [`Error::Stopped`], [`Error::Database`].
    pub async fn submit_all(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, Error> {
        let shared = &self.shared;
        if shared.is_stopping() {
            return Err(Error::Stopped);
        }
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let now = shared.clock.now();
        let mut rows = Vec::with_capacity(jobs.len());
        for job in jobs {
            let kind = self.kind_index(&job.kind)?;
            rows.push((kind, self.rows_of(kind, job, now)?));
        }
        let mut reserved = Reserved::new(self);
        for (kind, (spec, _)) in &rows {
            reserved.add(*kind, spec)?;
        }
        let mut ids = Vec::with_capacity(rows.len());
        for chunk in rows.chunks(ROWS_AT_A_TIME_MAX / ROWS_OF_A_JOB) {
            let some: Arc<[(Spec, Live)]> = chunk.iter().map(|(_, row)| row.clone()).collect();
            let submitted = shared.transact(move |db| store::submit(db, &some)).await?;
            let mut inner = shared.inner.lock();
            for ((kind, (spec, _)), submitted) in chunk.iter().zip(submitted) {
                reserved.release(&mut inner, *kind, spec);
                if let Some(live) = submitted.new {
                    inner.add(submitted.id, Some(*kind), spec, &live);
                }
                ids.push(submitted.id);
            }
            shared.wake.notify_one();
        }
        Ok(ids)
    }

    fn kind_index(&self, name: &str) -> Result<usize, Error> {
        let found = self
            .shared
            .kinds
            .iter()
            .position(|kind| kind.name() == name);
        found.ok_or_else(|| Error::UnknownKind(name.to_owned()))
    }

    /// The rows of a new job.
    fn rows_of(&self, kind: usize, job: NewJob, now: Time) -> Result<(Spec, Live), Error> {
        let arguments = job.arguments.to_string().len();
        let unique = job.unique.as_ref().map_or(0, String::len);
        for (what, size, most) in [
            ("the arguments", arguments, ARGUMENTS_BYTES_MAX),
            ("the user", job.user.len(), NAME_BYTES_MAX),
            ("the resource", job.resource.len(), NAME_BYTES_MAX),
            ("the group", job.group.len(), NAME_BYTES_MAX),
            ("the unique name", unique, NAME_BYTES_MAX),
        ] {
            if size > most {
                return Err(Error::TooLong { what, size, most });
            }
        }
        let state = match job.not_before {
            Some(time) if time > now => State::Waiting(time),
            _ => State::Queued,
        };
        let steps = self.shared.kinds[kind].steps();
        let live = Live {
            state,
            step: steps.first().copied().unwrap_or_default().to_owned(),
            data: serde_json::Value::Null,
            attempts: 0,
            error: None,
            progress: Default::default(),
            items: 0,
            started: None,
            ended: None,
            priority: job.priority,
            order: 0,
            cancel: false,
            cleaning: None,
            no_deadline: false,
        };
        let spec = Spec {
            kind: job.kind,
            user: job.user,
            resource: job.resource,
            group: job.group,
            arguments: job.arguments,
            unique: job.unique,
            expected: job.expected,
            created: now,
            deadline: job.deadline,
        };
        Ok((spec, live))
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`], [`Error::Database`].
    pub async fn show(&self, id: JobId) -> Result<Job, Error> {
        let mut job = self.shared.transact(move |db| store::read(db, id)).await?;
        self.shared.inner.lock().enter_running(&mut job);
        Ok(job)
    }

    /// Jobs in the order of their numbers, at most `most`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn list(&self, filter: Filter, most: usize) -> Result<Vec<Job>, Error> {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let wanted = move |job: &Job| {
            is(&filter.kind, &job.kind)
                && is(&filter.user, &job.user)
                && is(&filter.resource, &job.resource)
                && !(filter.unfinished && job.state.is_ended())
        };
        let after = filter.after.unwrap_or(JobId(0));
        let listed = self
            .shared
            .transact(move |db| store::list(db, after, most, wanted));
        let mut listed = listed.await?;
        let inner = self.shared.inner.lock();
        listed.iter_mut().for_each(|job| inner.enter_running(job));
        Ok(listed)
    }

    /// Items of a job from a number on, at most `most`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn items(&self, id: JobId, from: u64, most: usize) -> Result<Vec<Item>, Error> {
        self.shared
            .transact(move |db| store::items(db, id, from, most))
            .await
    }

    /// The queued jobs in the order in which they will start, at most `most`, if no other job
    /// arrives and no limit is in the way.
    pub fn order(&self, most: usize) -> Vec<JobId> {
        self.shared.inner.lock().queue.preview(most)
    }

    /// The numbers of jobs by kind, for metrics. Jobs of kinds that this program does not know have
    /// the kind `unknown`.
    pub fn counts(&self) -> BTreeMap<&'static str, Counts> {
        let mut counts = BTreeMap::<_, Counts>::new();
        for kind in &self.shared.kinds {
            counts.entry(kind.name()).or_default();
        }
        for entry in self.shared.inner.lock().jobs.values() {
            let kind = self.shared.kinds.get(entry.placement.kind);
            let of_kind = counts
                .entry(kind.map_or("unknown", |kind| kind.name()))
                .or_default();
            match entry.phase {
                Phase::Queued | Phase::Changing | Phase::Unknown => of_kind.queued += 1,
                Phase::Waiting(_) => of_kind.waiting += 1,
                Phase::Running(_) => of_kind.running += 1,
            }
        }
        counts
    }

    /// Waits for the end of a job.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`]; [`Error::Stopped`] if the engine stops first; [`Error::Database`].
    pub async fn wait(&self, id: JobId) -> Result<Ended, Error> {
        let waiter = {
            let mut inner = self.shared.inner.lock();
            if let Some(error) = &inner.failed {
                return Err(error.clone());
            }
            inner.jobs.contains_key(&id).then(|| {
                let (sender, waiter) = oneshot::channel();
                inner.waiters.entry(id).or_default().push(sender);
                waiter
            })
        };
        let Some(waiter) = waiter else {
            let job = self.show(id).await?;
            return job.state.ended().ok_or(Error::Stopped);
        };
        let mut stopping = self.shared.stopping.subscribe();
        tokio::select! {
            biased;
            ended = waiter => ended.map_err(|_| Error::Stopped),
            _ = stopping.wait_for(|stopping| *stopping) => Err(Error::Stopped),
        }
    }

    /// Cancels a job. A running one gets the request, and ends when its step has stopped. A job
    /// that has ended or cleans up stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`], [`Error::WrongState`] for a job that has ended, [`Error::Database`].
    pub async fn cancel(&self, id: JobId) -> Result<(), Error> {
        let shared = &self.shared;
        let is_idle = shared.inner.lock().take(id).is_some();
        if is_idle {
            return run::end_idle(shared, id, Ended::Cancelled, None)
                .await
                .map(drop);
        }
        // It runs, is being changed, or has ended. The record comes before the interruption.
        shared
            .transact(move |db| {
                store::modify(db, id, &[], |_, live| {
                    require(id, live.state, !live.state.is_ended(), "it has ended")?;
                    live.cancel = true;
                    Ok(())
                })
            })
            .await?;
        let is_idle = {
            let mut inner = shared.inner.lock();
            match inner.jobs.get(&id).map(|entry| &entry.phase) {
                Some(Phase::Running(running)) => {
                    interrupt_with(&running.interrupt, Interrupt::Cancel);
                    false
                }
                // It has left its step meanwhile. If it is being changed, the record ends it when
                // it starts.
                _ => inner.take(id).is_some(),
            }
        };
        match is_idle {
            true => run::end_idle(shared, id, Ended::Cancelled, None)
                .await
                .map(drop),
            false => Ok(()),
        }
    }

    /// Queues a job again that failed or was cancelled, from its first step.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`], [`Error::WrongState`], [`Error::UnknownKind`], [`Error::Database`].
    pub async fn retry(&self, id: JobId) -> Result<(), Error> {
        let shared = &self.shared;
        let kind = self.kind_index(&self.show(id).await?.kind)?;
        let first = shared.kinds[kind]
            .steps()
            .first()
            .copied()
            .unwrap_or_default();
        let (live, spec) = shared
            .transact(move |db| {
                store::modify(db, id, &[], |spec, live| {
                    let may = matches!(live.state, State::Failed | State::Cancelled);
                    require(
                        id,
                        live.state,
                        may,
                        "only a failed or cancelled job is retried",
                    )?;
                    live.state = State::Queued;
                    live.step = first.to_owned();
                    live.data = serde_json::Value::Null;
                    live.attempts = 0;
                    live.cancel = false;
                    live.ended = None;
                    live.started = None;
                    live.progress = Default::default();
                    live.no_deadline = true;
                    Ok(spec.clone())
                })
            })
            .await?;
        let mut inner = shared.inner.lock();
        inner.ended = inner.ended.saturating_sub(1);
        inner.add(
            id,
            Some(kind),
            &Spec {
                deadline: None,
                ..spec
            },
            &live,
        );
        shared.wake.notify_one();
        Ok(())
    }

    /// Moves a queued job among the jobs of its user. Fairness towards others does not change.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`], [`Error::WrongState`] for a job that runs or has ended,
    /// [`Error::Database`].
    pub async fn reorder(&self, id: JobId, position: Position) -> Result<(), Error> {
        self.change_place(id, move |order, live| {
            live.order = match position {
                Position::First => order.0,
                Position::Last => order.1,
            };
        })
        .await
    }

    /// Changes the priority of a queued job.
    ///
    /// # Errors
    /// As [`Engine::reorder`].
    pub async fn set_priority(&self, id: JobId, priority: Priority) -> Result<(), Error> {
        self.change_place(id, move |_, live| live.priority = priority)
            .await
    }

    /// Changes the place of a job that does not run. `change` gets the orders before and after all
    /// others of the same user.
    async fn change_place(
        &self,
        id: JobId,
        change: impl Fn((i64, i64), &mut Live) + Send + 'static,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let ends = {
            let mut inner = shared.inner.lock();
            let taken = inner.take(id);
            taken.and_then(|()| inner.jobs.get(&id)).map(|entry| {
                let order = |first| inner.queue.order_at(&entry.placement, first);
                (order(true), order(false))
            })
        };
        let Some(ends) = ends else {
            let state = self.show(id).await?.state;
            require(id, state, false, "only a queued job can be moved")?;
            return Ok(());
        };
        let changed = shared
            .transact(move |db| {
                store::modify(db, id, &[], |_, live| {
                    change(ends, live);
                    Ok(())
                })
            })
            .await;
        let mut inner = shared.inner.lock();
        let mut state = State::Queued;
        if let (Ok((live, ())), Some(entry)) = (&changed, inner.jobs.get_mut(&id)) {
            entry.placement.order = live.order;
            entry.placement.priority = live.priority;
            state = live.state;
        }
        inner.put_back(id, state, shared.kinds.len());
        shared.wake.notify_one();
        changed.map(drop)
    }
}

fn require(id: JobId, state: State, may: bool, reason: &'static str) -> Result<(), Error> {
    match may {
        true => Ok(()),
        false => Err(Error::WrongState {
            id,
            state: state.word(),
            reason,
        }),
    }
}

/// Places among the unfinished jobs of users, for a submission that is under way. Dropping it gives
/// back those that were not used.
struct Reserved<'a> {
    engine: &'a Engine,
    places: HashMap<(usize, Arc<str>), usize>,
}

impl<'a> Reserved<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            places: HashMap::new(),
        }
    }

    fn add(&mut self, kind: usize, spec: &Spec) -> Result<(), Error> {
        let shared = &self.engine.shared;
        let most = shared.kinds[kind].limits().unfinished_per_user;
        let key = (kind, Arc::from(spec.user.as_str()));
        let mut inner = shared.inner.lock();
        let unfinished = inner.unfinished.entry(key.clone()).or_default();
        if *unfinished >= most {
            return Err(Error::TooMany {
                user: spec.user.clone(),
                kind: spec.kind.clone(),
                unfinished: *unfinished,
            });
        }
        *unfinished += 1;
        *self.places.entry(key).or_default() += 1;
        Ok(())
    }

    /// Gives back the place of a job that is now counted itself, or was there before.
    fn release(&mut self, inner: &mut Inner, kind: usize, spec: &Spec) {
        let key = (kind, Arc::from(spec.user.as_str()));
        if let Some(places) = self.places.get_mut(&key).filter(|places| **places > 0) {
            *places -= 1;
            give_back(inner, &key, 1);
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut inner = self.engine.shared.inner.lock();
        self.places
            .drain()
            .for_each(|(key, places)| give_back(&mut inner, &key, places));
    }
}

fn give_back(inner: &mut Inner, key: &(usize, Arc<str>), places: usize) {
    if let Some(unfinished) = inner.unfinished.get_mut(key) {
        *unfinished = unfinished.saturating_sub(places);
        if *unfinished == 0 {
            inner.unfinished.remove(key);
        }
    }
}
