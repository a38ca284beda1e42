//! A kind of job whose steps do what the arguments say, and an engine for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellar_celldb::{CellDb, Embedded};
use cellar_jobs::{
    Clock, Engine, JobId, JobKind, Limits, NewJob, Next, Retry, Settings, StepContext, StepError,
    Time,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

/// tokio's clock, which tests pause.
pub(crate) struct Paused(Instant);

impl Paused {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Paused {
    fn now(&self) -> Time {
        Time(1_700_000_000_000).after(self.0.elapsed())
    }
}

/// The name of the kind.
pub(crate) const KIND: &str = "script";

pub(crate) const LIMITS: Limits = Limits {
    running: 8,
    running_per_resource: 2,
    running_per_user: usize::MAX,
    unfinished_per_user: usize::MAX,
    group_run: 0,
    stopping: Duration::from_secs(10),
    retry: Retry {
        attempts: 3,
        first: Duration::from_secs(5),
        longest: Duration::from_secs(60),
    },
};

/// A kind with the steps `one`, `two` and `undo`. The arguments have, for each step, the list of
/// its results in this order:
///
/// | word | result |
/// | --- | --- |
/// | `ok` | the next step; the job is done after `two` and `undo` |
/// | `wait` | ends when the test opens the gate |
/// | `hang` | ends when it is cancelled |
/// | `deaf` | never ends |
/// | `busy`, `down`, `bad` | a transient error, a resource that is down, a permanent error |
/// | `panic` | a panic |
/// | `items` | two items, one of them failed, and 100 bytes; then as `ok` |
/// | `point` | as `items`, then a checkpoint, then a transient error |
///
/// The last word repeats.
pub(crate) struct Script {
    pub(crate) limits: Limits,
    pub(crate) cleans_up: bool,
    /// Each started step: job, step, and the data that it got.
    pub(crate) log: Mutex<Vec<(JobId, String, Value)>>,
    pub(crate) gate: Notify,
}

impl Script {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            cleans_up: true,
            log: Mutex::default(),
            gate: Notify::new(),
        })
    }

    /// The steps that have started, as `JOB STEP`.
    pub(crate) fn started(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        log.iter()
            .map(|(id, step, _)| format!("{id} {step}"))
            .collect()
    }

    fn word(&self, step: &str, context: &dyn StepContext) -> String {
        let job = context.job();
        let mut log = self.log.lock().unwrap();
        let before = log
            .iter()
            .filter(|(id, name, _)| *id == job.id && name == step)
            .count();
        log.push((job.id, step.to_owned(), job.data.clone()));
        let words = job.arguments.get(step).and_then(Value::as_array);
        let word = words.and_then(|words| words.get(before).or(words.last()));
        word.and_then(Value::as_str).unwrap_or("ok").to_owned()
    }
}

impl JobKind for Script {
    fn name(&self) -> &'static str {
        KIND
    }

    fn steps(&self) -> &'static [&'static str] {
        &["one", "two"]
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn cleanup(&self) -> Option<&'static str> {
        self.cleans_up.then_some("undo")
    }

    fn step<'a>(
        &'a self,
        step: &'a str,
        context: &'a dyn StepContext,
    ) -> BoxFuture<'a, Result<Next, StepError>> {
        Box::pin(async move {
            let word = self.word(step, context);
            if matches!(word.as_str(), "items" | "point") {
                context.add_bytes(100);
                context.add_item("/afs/a", Ok(()));
                context.add_item("/afs/b", Err("no such file".to_owned()));
            }
            match word.as_str() {
                "ok" | "items" => {}
                "wait" => self.gate.notified().await,
                "hang" => {
                    context.cancelled().await;
                    return Err(StepError::Cancelled);
                }
                "deaf" => std::future::pending().await,
                "busy" => return Err(StepError::Transient("busy".to_owned())),
                "down" => return Err(StepError::Unavailable("down".to_owned())),
                "bad" => return Err(StepError::Permanent("bad".to_owned())),
                "panic" => panic!("as the script says"),
                "point" => {
                    context.checkpoint(json!({ "at": "point" })).await?;
                    return Err(StepError::Transient("after the checkpoint".to_owned()));
                }
                word => return Err(StepError::Permanent(format!("no word: {word}"))),
            }
            Ok(match step {
                "one" => Next::Step("two", json!({ "from": "one" })),
                _ => Next::Done(json!({ "last": step })),
            })
        })
    }
}

/// A job of the script.
pub(crate) fn job(user: &str, steps: Value) -> NewJob {
    NewJob {
        kind: KIND.to_owned(),
        user: user.to_owned(),
        resource: "archive".to_owned(),
        arguments: steps,
        ..NewJob::default()
    }
}

pub(crate) fn database(home: &tempfile::TempDir) -> Arc<dyn CellDb> {
    Arc::new(Embedded::open(&home.path().join("jobs.redb")).unwrap())
}

pub(crate) async fn open(db: &Arc<dyn CellDb>, kind: &Arc<Script>) -> Engine {
    open_with(db, kind, Settings::default()).await
}

pub(crate) async fn open_with(
    db: &Arc<dyn CellDb>,
    kind: &Arc<Script>,
    settings: Settings,
) -> Engine {
    let kinds: Vec<Arc<dyn JobKind>> = vec![kind.clone()];
    let clock = Arc::new(Paused::now());
    Engine::open(Arc::clone(db), kinds, clock, settings)
        .await
        .unwrap()
}
