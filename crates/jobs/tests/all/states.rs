//! Each transition of the table of states.

use std::sync::Arc;
use std::time::Duration;

use cellar_jobs::{Ended, Engine, Error, JobId, NewJob, State, Time};
use serde_json::{Value, json};

use crate::script::{LIMITS, Script, database, job, open};

struct Bench {
    _home: tempfile::TempDir,
    db: Arc<dyn cellar_celldb::CellDb>,
    kind: Arc<Script>,
    engine: Engine,
}

async fn bench() -> Bench {
    bench_of(Script::new(LIMITS)).await
}

async fn bench_of(kind: Arc<Script>) -> Bench {
    let home = tempfile::tempdir().unwrap();
    let db = database(&home);
    let engine = open(&db, &kind).await;
    Bench {
        _home: home,
        db,
        kind,
        engine,
    }
}

impl Bench {
    async fn submit(&self, steps: Value) -> JobId {
        self.engine.submit(job("a", steps)).await.unwrap()
    }

    async fn until_state(&self, id: JobId, wanted: fn(State) -> bool) {
        cellar_until::until("the job has the state", async || {
            wanted(self.engine.show(id).await.unwrap().state)
        })
        .await;
    }

    async fn until_started(&self, count: usize) {
        cellar_until::until("steps have started", async || {
            self.kind.started().len() >= count
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_its_steps_in_order_with_the_data_of_the_step_before() {
    let bench = bench().await;
    let id = bench.submit(json!({ "one": ["items"] })).await;
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Done);
    let log = bench.kind.log.lock().unwrap().clone();
    assert_eq!(
        log,
        [
            (id, "one".to_owned(), Value::Null),
            (id, "two".to_owned(), json!({ "from": "one" })),
        ]
    );
    let shown = bench.engine.show(id).await.unwrap();
    assert_eq!(shown.data, json!({ "last": "two" }));
    assert_eq!(
        (
            shown.progress.bytes,
            shown.progress.items,
            shown.progress.failed
        ),
        (100, 2, 1)
    );
    assert!(shown.started.is_some() && shown.ended.is_some() && shown.error.is_none());
    let items = bench.engine.items(id, 0, 10).await.unwrap();
    assert_eq!(items[0].error, None);
    assert_eq!(items[1].name, "/afs/b");
    assert_eq!(items[1].error.as_deref(), Some("no such file"));
    assert_eq!(
        bench.engine.wait(id).await.unwrap(),
        Ended::Done,
        "also later"
    );
}

#[tokio::test(start_paused = true)]
async fn a_transient_error_is_retried_after_longer_and_longer_pauses() {
    let bench = bench().await;
    let begun = tokio::time::Instant::now();
    let id = bench.submit(json!({ "two": ["busy", "busy", "ok"] })).await;
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Done);
    assert_eq!(begun.elapsed().as_secs(), 15, "5 and 10 seconds");
    let wanted = ["one", "two", "two", "two"].map(|step| format!("{id} {step}"));
    assert_eq!(bench.kind.started(), wanted, "only the step that failed");

    let begun = tokio::time::Instant::now();
    let id = bench.submit(json!({ "one": ["panic", "busy"] })).await;
    assert_eq!(
        bench.engine.wait(id).await.unwrap(),
        Ended::Failed,
        "three attempts"
    );
    assert_eq!(begun.elapsed().as_secs(), 15);
    let shown = bench.engine.show(id).await.unwrap();
    assert_eq!(shown.error.as_deref(), Some("busy"));
    assert_eq!(shown.data, json!({ "last": "undo" }), "it cleaned up");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_error_of_its_job_only() {
    let bench = bench().await;
    let id = bench.submit(json!({ "one": ["panic", "wait"] })).await;
    bench
        .until_state(id, |state| matches!(state, State::Waiting(_)))
        .await;
    let shown = bench.engine.show(id).await.unwrap();
    assert_eq!(
        shown.error.as_deref(),
        Some("the step panicked: as the script says")
    );
    let other = bench.submit(json!({})).await;
    assert_eq!(bench.engine.wait(other).await.unwrap(), Ended::Done);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_cleans_up_and_fails() {
    let bench = bench().await;
    let id = bench.submit(json!({ "two": ["bad"], "undo": ["bad", "busy", "busy", "busy", "ok"] }));
    let id = id.await;
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Failed);
    let steps = ["one", "two", "undo", "undo", "undo", "undo", "undo"];
    assert_eq!(
        bench.kind.started(),
        steps.map(|step| format!("{id} {step}"))
    );
    let shown = bench.engine.show(id).await.unwrap();
    assert_eq!(shown.state, State::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_down_delays_its_jobs_and_costs_no_attempts() {
    let bench = bench().await;
    let begun = tokio::time::Instant::now();
    let first = bench
        .submit(json!({ "one": ["down", "down", "down", "down", "ok"] }))
        .await;
    bench.until_started(1).await;
    bench
        .until_state(first, |state| state == State::Queued)
        .await;
    let second = bench.submit(json!({})).await;
    let elsewhere = NewJob {
        resource: "other".to_owned(),
        ..job("a", json!({}))
    };
    let elsewhere = bench.engine.submit(elsewhere).await.unwrap();
    assert_eq!(bench.engine.wait(elsewhere).await.unwrap(), Ended::Done);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(bench.engine.wait(first).await.unwrap(), Ended::Done);
    assert_eq!(bench.engine.wait(second).await.unwrap(), Ended::Done);
    let waited = begun.elapsed().as_secs();
    assert!(
        (5..=75).contains(&waited),
        "{waited} s: pauses of 5, 10, 20 and 40 s"
    );
    assert_eq!(bench.engine.show(first).await.unwrap().attempts, 0);
}

/// Two jobs that run at the same time report one outage: the pause is the first, not the second.
#[tokio::test(start_paused = true)]
async fn an_outage_counts_once_for_all_jobs_that_notice_it() {
    let bench = bench().await;
    let begun = tokio::time::Instant::now();
    let down = || job("a", json!({ "one": ["down", "ok"] }));
    let both = bench.engine.submit_all(vec![down(), down()]).await.unwrap();
    for id in &both {
        assert_eq!(bench.engine.wait(*id).await.unwrap(), Ended::Done);
    }
    assert_eq!(begun.elapsed().as_secs(), LIMITS.retry.first.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_queued_and_a_waiting_job_are_cancelled_at_once() {
    let bench = bench().await;
    let running = [
        bench.submit(json!({"one": ["hang"]})).await,
        bench.submit(json!({"one": ["hang"]})).await,
    ];
    bench.until_started(2).await;
    let queued = bench.submit(json!({})).await;
    bench.engine.cancel(queued).await.unwrap();
    assert_eq!(bench.engine.wait(queued).await.unwrap(), Ended::Cancelled);
    let again = bench.engine.cancel(queued).await.unwrap_err();
    assert!(
        matches!(
            again,
            Error::WrongState {
                state: "cancelled",
                ..
            }
        ),
        "{again}"
    );
    for id in running {
        bench.engine.cancel(id).await.unwrap();
        assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Cancelled);
    }
    let waiting = bench.submit(json!({ "one": ["busy"] })).await;
    bench
        .until_state(waiting, |state| matches!(state, State::Waiting(_)))
        .await;
    bench.engine.cancel(waiting).await.unwrap();
    assert_eq!(bench.engine.wait(waiting).await.unwrap(), Ended::Cancelled);
    assert!(
        !bench.kind.started().contains(&format!("{queued} undo")),
        "it never started"
    );
    assert!(bench.kind.started().contains(&format!("{waiting} undo")));
    let none = bench.engine.cancel(JobId(999)).await.unwrap_err();
    assert!(matches!(none, Error::NoSuchJob(JobId(999))), "{none}");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_ignores_its_cancellation_is_dropped() {
    let bench = bench().await;
    let id = bench.submit(json!({ "one": ["deaf"] })).await;
    bench.until_started(1).await;
    let begun = tokio::time::Instant::now();
    bench.engine.cancel(id).await.unwrap();
    assert!(bench.engine.show(id).await.unwrap().cancelling);
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Cancelled);
    assert_eq!(begun.elapsed().as_secs(), LIMITS.stopping.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_queued_waiting_and_running_jobs() {
    let bench = bench().await;
    let now = bench
        .engine
        .show(bench.submit(json!({})).await)
        .await
        .unwrap()
        .created;
    let limited = |seconds, steps| NewJob {
        deadline: Some(now.after(Duration::from_secs(seconds))),
        ..job("a", steps)
    };
    let mut jobs = Vec::new();
    for steps in [
        json!({"one": ["hang"]}),
        json!({"one": ["deaf"]}),
        json!({}),
    ] {
        jobs.push(bench.engine.submit(limited(60, steps)).await.unwrap());
    }
    let mut later = limited(60, json!({}));
    later.not_before = Some(now.after(Duration::from_secs(3600)));
    later.resource = "other".to_owned();
    jobs.push(bench.engine.submit(later).await.unwrap());
    for id in &jobs {
        assert_eq!(bench.engine.wait(*id).await.unwrap(), Ended::Failed);
        let shown = bench.engine.show(*id).await.unwrap();
        assert_eq!(
            shown.error.as_deref(),
            Some("the deadline has passed"),
            "{id}"
        );
        let after = shown.ended.unwrap().since(now).as_secs();
        assert!((60..=71).contains(&after), "{after}");
    }
    assert!(
        !bench.kind.started().contains(&format!("{} one", jobs[2])),
        "it never started"
    );
    // A retried job has no deadline any more.
    bench.engine.retry(jobs[2]).await.unwrap();
    assert_eq!(bench.engine.wait(jobs[2]).await.unwrap(), Ended::Done);
    let done = bench.engine.retry(jobs[2]).await.unwrap_err();
    assert!(
        matches!(done, Error::WrongState { state: "done", .. }),
        "{done}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_for_its_time() {
    let bench = bench().await;
    let begun = tokio::time::Instant::now();
    let first = bench.submit(json!({})).await;
    let created = bench.engine.show(first).await.unwrap().created;
    let later = NewJob {
        not_before: Some(created.after(Duration::from_secs(100))),
        ..job("a", json!({}))
    };
    let id = bench.engine.submit(later).await.unwrap();
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Done);
    assert_eq!(begun.elapsed().as_secs(), 100);
    let started = bench.engine.show(id).await.unwrap().started.unwrap();
    assert!(started >= Time(created.0 + 100_000));
}

/// A stop leaves the running step. The next open runs it again, with the data of its checkpoint,
/// and counts each item once.
#[tokio::test(start_paused = true)]
async fn an_interrupted_step_runs_again_after_a_restart() {
    let bench = bench().await;
    let hangs = bench.submit(json!({ "two": ["hang", "items"] })).await;
    let point = bench
        .submit(json!({ "two": ["point", "hang", "ok"] }))
        .await;
    let waits = NewJob {
        resource: "third".to_owned(),
        ..job("a", json!({ "one": ["busy", "ok"] }))
    };
    let waits = bench.engine.submit(waits).await.unwrap();
    bench.until_started(7).await;
    bench.engine.stop().await;
    assert!(matches!(
        bench.engine.submit(job("a", json!({}))).await,
        Err(Error::Stopped)
    ));
    assert!(matches!(
        bench.engine.wait(hangs).await,
        Err(Error::Stopped)
    ));
    let before = bench.kind.started().len();
    let engine = open(&bench.db, &bench.kind).await;
    for id in [hangs, point, waits] {
        assert_eq!(engine.wait(id).await.unwrap(), Ended::Done);
    }
    let after = bench.kind.started().split_off(before);
    assert_eq!(
        after.iter().filter(|line| line.ends_with("one")).count(),
        0,
        "{after:?}"
    );
    let data: Vec<_> = {
        let log = bench.kind.log.lock().unwrap();
        let of_point = log
            .iter()
            .filter(|(id, step, _)| *id == point && step == "two");
        of_point.map(|(_, _, data)| data.clone()).collect()
    };
    let at = json!({ "at": "point" });
    assert_eq!(data, [json!({ "from": "one" }), at.clone(), at]);
    for id in [hangs, point] {
        let shown = engine.show(id).await.unwrap();
        assert_eq!(
            (shown.progress.items, shown.progress.bytes),
            (2, 100),
            "{id}"
        );
        assert_eq!(engine.items(id, 0, 10).await.unwrap().len(), 2);
    }
    engine.stop().await;
}

/// A cancellation that is recorded when the process dies is obeyed by the next one.
#[tokio::test(start_paused = true)]
async fn a_cancellation_survives_a_restart() {
    let bench = bench().await;
    let id = bench.submit(json!({ "one": ["deaf"] })).await;
    bench.until_started(1).await;
    bench.engine.cancel(id).await.unwrap();
    bench.engine.stop().await;
    let shown = bench.engine.show(id).await.unwrap();
    let engine = open(&bench.db, &bench.kind).await;
    assert_eq!(
        engine.wait(id).await.unwrap(),
        Ended::Cancelled,
        "{shown:?}"
    );
    let ones = bench
        .kind
        .started()
        .iter()
        .filter(|line| line.ends_with("one"))
        .count();
    assert_eq!(ones, 1, "the step did not run again");
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_cleanup_ends_at_once() {
    let kind = Arc::new(Script {
        cleans_up: false,
        limits: LIMITS,
        log: Default::default(),
        gate: Default::default(),
    });
    let bench = bench_of(kind).await;
    let id = bench.submit(json!({ "one": ["bad"] })).await;
    assert_eq!(bench.engine.wait(id).await.unwrap(), Ended::Failed);
    assert_eq!(bench.kind.started(), [format!("{id} one")]);
}
