//! The power fails at the n-th operation on the disk, for every n, while jobs are submitted, run
//! and are cancelled. After the next open:
//!
//! 1. Each acknowledged job is there. One whose submission was not acknowledged is absent or whole.
//! 2. A job whose end was acknowledged runs no step again.
//! 3. Another job goes on with the step that ran last, or with the next one, and ends.
//! 4. Progress and items of a finished job count each step once, although steps may run twice.
//! 5. An acknowledged cancellation is obeyed: the job is cancelled, and its step does not run.
//! 6. If the kind cleans up, a cancelled job that began a step is cleaned up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellar_celldb::{CellDb, Embedded};
use cellar_jobs::{
    Clock, Ended, Engine, Error, Filter, JobId, JobKind, Limits, NewJob, Next, Settings, State,
    StepContext, StepError, Time,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::simulated_disk::SimulatedDisk;

const KIND: &str = "crash";
const STEPS: [&str; 3] = ["one", "two", "three"];

/// A kind with three steps, each of which adds an item and some bytes. A job with the argument
/// `hang` stays in its first step until it is cancelled.
#[derive(Default)]
struct Steps {
    cleans_up: bool,
    /// The jobs that were cleaned up.
    undone: Mutex<BTreeSet<JobId>>,
    /// The steps that each job has begun, by number.
    begun: Mutex<BTreeMap<JobId, Vec<usize>>>,
}

impl Steps {
    fn begun(&self, id: JobId) -> Vec<usize> {
        self.begun
            .lock()
            .unwrap()
            .get(&id)
            .cloned()
            .unwrap_or_default()
    }
}

impl JobKind for Steps {
    fn name(&self) -> &'static str {
        KIND
    }

    fn steps(&self) -> &'static [&'static str] {
        &STEPS
    }

    fn cleanup(&self) -> Option<&'static str> {
        self.cleans_up.then_some("undo")
    }

    fn limits(&self) -> Limits {
        Limits {
            stopping: Duration::from_millis(1),
            ..Limits::default()
        }
    }

    fn step<'a>(
        &'a self,
        step: &'a str,
        context: &'a dyn StepContext,
    ) -> BoxFuture<'a, Result<Next, StepError>> {
        Box::pin(async move {
            if step == "undo" {
                self.undone.lock().unwrap().insert(context.job().id);
                return Ok(Next::Done(Value::Null));
            }
            let number = STEPS.iter().position(|name| *name == step).unwrap();
            let job = context.job();
            self.begun
                .lock()
                .unwrap()
                .entry(job.id)
                .or_default()
                .push(number);
            assert_eq!(
                job.data.as_u64().unwrap_or(0),
                number as u64,
                "the data of the step before"
            );
            if job.arguments == "hang" {
                context.cancelled().await;
                return Err(StepError::Cancelled);
            }
            context.add_bytes(10);
            context.add_item(step, Ok(()));
            let data = Value::from(number as u64 + 1);
            Ok(match STEPS.get(number + 1) {
                Some(next) => Next::Step(next, data),
                None => Next::Done(data),
            })
        })
    }
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(1_700_000_000_000)
    }
}

async fn open(disk: SimulatedDisk, kind: &Arc<Steps>) -> Result<Engine, Error> {
    let db: Arc<dyn CellDb> = Arc::new(Embedded::with_backend(disk)?);
    let kinds: Vec<Arc<dyn JobKind>> = vec![kind.clone()];
    Engine::open(db, kinds, Arc::new(Still), Settings::default()).await
}

/// The answers that the engine gave before the power failed.
#[derive(Debug, Default)]
struct Acknowledged {
    submitted: Vec<JobId>,
    ended: Vec<JobId>,
    cancelled: Vec<JobId>,
}

fn job(name: &str, arguments: Value) -> NewJob {
    NewJob {
        kind: KIND.to_owned(),
        user: "a".to_owned(),
        unique: Some(name.to_owned()),
        arguments,
        ..NewJob::default()
    }
}

/// Submits two jobs and awaits the first, cancels a third, and awaits the rest.
async fn work(engine: &Engine, kind: &Steps, answers: &mut Acknowledged) -> Result<(), Error> {
    let first = engine.submit(job("first", Value::Null)).await?;
    answers.submitted.push(first);
    let two = engine.submit_all(vec![
        job("second", Value::Null),
        job("third", json!("hang")),
    ]);
    let two = two.await?;
    answers.submitted.extend(&two);
    engine.wait(first).await?;
    answers.ended.push(first);
    while kind.begun(two[1]).is_empty() && engine.failed().is_none() {
        tokio::task::yield_now().await;
    }
    engine.cancel(two[1]).await?;
    answers.cancelled.push(two[1]);
    for id in two {
        engine.wait(id).await?;
        answers.ended.push(id);
    }
    Ok(())
}

/// Opens the disk again, and checks the rules at the head.
async fn check(image: Vec<u8>, kind: &Arc<Steps>, answers: &Acknowledged, case: &str) {
    let before = kind.begun.lock().unwrap().clone();
    let engine = open(SimulatedDisk::of(image, None), kind).await.unwrap();
    let found = engine.list(Filter::default(), 10).await.unwrap();
    let ids: Vec<_> = found.iter().map(|job| job.id).collect();
    for id in &answers.submitted {
        assert!(ids.contains(id), "{case}: job {id} is lost: {ids:?}");
    }
    assert!(
        found.len() != 2,
        "{case}: the second and third job are one submission: {ids:?}"
    );
    for id in ids {
        let hangs = engine.show(id).await.unwrap().arguments == "hang";
        if hangs && !answers.cancelled.contains(&id) {
            // The cancellation may be recorded without an answer: then the job ends by itself.
            let _ = engine.cancel(id).await;
        }
        let ended = tokio::time::timeout(cellar_until::PATIENCE, engine.wait(id)).await;
        let ended = ended
            .unwrap_or_else(|_| panic!("{case}: job {id} does not end"))
            .unwrap();
        let wanted = if hangs { Ended::Cancelled } else { Ended::Done };
        assert_eq!(ended, wanted, "{case}: job {id}");
        let was = before.get(&id).cloned().unwrap_or_default();
        let more = kind.begun(id).split_off(was.len());
        if answers.ended.contains(&id) || (hangs && answers.cancelled.contains(&id)) {
            assert_eq!(more, [0; 0], "{case}: job {id} runs again after {was:?}");
        }
        if let (Some(last), Some(next)) = (was.last(), more.first()) {
            assert!(
                next == last || *next == last + 1,
                "{case}: {was:?}, then {more:?}"
            );
        }
        assert!(
            more.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{case}: {more:?}"
        );
        let job = engine.show(id).await.unwrap();
        let items = engine.items(id, 0, 10).await.unwrap().len();
        let counted = if hangs { (0, 0, 0) } else { (30, 3, 3) };
        assert_eq!(
            (job.progress.bytes, job.progress.items, items),
            counted,
            "{case}: job {id}"
        );
        assert_ne!(job.state, State::Running);
        let undone = kind.undone.lock().unwrap().contains(&id);
        let is_cleaned = kind.cleans_up && hangs;
        // The record of a start may be there without a step.
        let must = is_cleaned && !kind.begun(id).is_empty();
        assert!(undone || !must, "{case}: job {id} is not cleaned up");
        assert!(is_cleaned || !undone, "{case}: job {id} is cleaned up");
    }
    // The unique names are free again, and numbers go on.
    let again = engine.submit(job("first", Value::Null)).await.unwrap();
    assert!(
        answers.submitted.iter().all(|id| *id < again),
        "{case}: {again}"
    );
    assert_eq!(engine.wait(again).await.unwrap(), Ended::Done);
    engine.stop().await;
}

#[tokio::test]
async fn power_loss_at_every_operation_loses_no_job() {
    power_fails(false).await;
}

#[tokio::test]
async fn power_loss_at_every_operation_leaves_no_job_without_cleanup() {
    power_fails(true).await;
}

async fn power_fails(cleans_up: bool) {
    let empty = SimulatedDisk::default();
    drop(Embedded::with_backend(empty.clone()).unwrap());
    let image = empty.after_power_loss(0);
    let mut least = u64::MAX;
    for n in 1.. {
        // Number 1 counts the operations; the others fail at the n-th.
        let disk = SimulatedDisk::of(image.clone(), (n > 1).then_some(n));
        let kind = Arc::new(Steps {
            cleans_up,
            ..Steps::default()
        });
        let mut answers = Acknowledged::default();
        let is_whole = match open(disk.clone(), &kind).await {
            Err(_) => false,
            Ok(engine) => {
                let worked = work(&engine, &kind, &mut answers).await;
                engine.stop().await;
                worked.is_ok()
            }
        };
        if n == 1 {
            assert!(
                is_whole && disk.operations() > 60,
                "{} operations",
                disk.operations()
            );
        }
        if is_whole && n > 1 {
            // The disk lasted for the whole work.
            least = least.min(n);
            if n > least + 20 {
                break;
            }
        }
        for fate in [0, 1, 2 * n, 2 * n + 1] {
            let kind = Arc::new(Steps {
                cleans_up,
                undone: Mutex::new(kind.undone.lock().unwrap().clone()),
                begun: Mutex::new(kind.begun.lock().unwrap().clone()),
            });
            let case = format!("operation {n}, fate {fate}");
            check(disk.after_power_loss(fate), &kind, &answers, &case).await;
        }
    }
    assert!(least > 60, "the power failed at {least} operations");
}
