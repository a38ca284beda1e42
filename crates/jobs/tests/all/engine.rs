//! Submission, limits, order, lists and the history.

use std::sync::Arc;
use std::time::Duration;

use cellar_jobs::{
    Ended, Engine, Error, Filter, JobId, JobKind, Limits, NewJob, Position, Priority, Settings,
    State,
};
use serde_json::{Value, json};

use crate::script::{KIND, LIMITS, Paused, Script, database, job, open, open_with};

/// One job at a time, so that the order of starts is visible.
const ONE: Limits = Limits {
    running_per_resource: 1,
    ..LIMITS
};

fn numbers(started: &[String]) -> Vec<u64> {
    let first_steps = started.iter().filter_map(|line| line.strip_suffix(" one"));
    first_steps.map(|number| number.parse().unwrap()).collect()
}

async fn until_started(kind: &Script, count: usize) {
    cellar_until::until("steps have started", async || kind.started().len() >= count).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_refused_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    let kind = Script::new(Limits {
        unfinished_per_user: 2,
        ..LIMITS
    });
    let engine = open(&database(&home), &kind).await;
    let wrong = NewJob {
        kind: "other".to_owned(),
        ..job("a", json!({}))
    };
    let refused = engine
        .submit_all(vec![job("a", json!({})), wrong])
        .await
        .unwrap_err();
    assert!(matches!(&refused, Error::UnknownKind(name) if name == "other"));
    let long = job(
        "a",
        json!("x".repeat(cellar_jobs::limits::ARGUMENTS_BYTES_MAX)),
    );
    assert!(matches!(
        engine.submit(long).await,
        Err(Error::TooLong {
            what: "the arguments",
            ..
        })
    ));
    let long = job(
        &"u".repeat(cellar_jobs::limits::NAME_BYTES_MAX + 1),
        json!({}),
    );
    assert!(matches!(
        engine.submit(long).await,
        Err(Error::TooLong {
            what: "the user",
            ..
        })
    ));
    let hang = || job("a", json!({ "one": ["hang"] }));
    let three = engine
        .submit_all(vec![hang(), hang(), hang()])
        .await
        .unwrap_err();
    assert!(
        matches!(three, Error::TooMany { unfinished: 2, .. }),
        "{three}"
    );
    assert_eq!(engine.list(Filter::default(), 10).await.unwrap(), []);
    // The places of the refused submission are free again, and those of ended jobs, too.
    let two = engine.submit_all(vec![hang(), hang()]).await.unwrap();
    assert!(matches!(
        engine.submit(hang()).await,
        Err(Error::TooMany { .. })
    ));
    engine.submit(job("b", json!({}))).await.unwrap();
    engine.cancel(two[0]).await.unwrap();
    engine.wait(two[0]).await.unwrap();
    engine.submit(hang()).await.unwrap();
    assert!(matches!(
        engine.submit(hang()).await,
        Err(Error::TooMany { .. })
    ));
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_unique_name_means_one_unfinished_job() {
    let home = tempfile::tempdir().unwrap();
    let db = database(&home);
    let kind = Script::new(LIMITS);
    let engine = open(&db, &kind).await;
    let named = |user: &str, steps: Value| NewJob {
        unique: Some("536870912.2.1".to_owned()),
        ..job(user, steps)
    };
    let hang = json!({ "one": ["hang", "ok"] });
    let both = engine
        .submit_all(vec![named("a", hang.clone()), named("b", hang)])
        .await
        .unwrap();
    assert_eq!(both[0], both[1]);
    until_started(&kind, 1).await;
    engine.stop().await;
    let engine = open(&db, &kind).await;
    let again = engine.submit(named("c", json!({}))).await.unwrap();
    assert_eq!(again, both[0], "also after a restart");
    assert_eq!(engine.wait(again).await.unwrap(), Ended::Done);
    let next = engine
        .submit(named("c", json!({ "one": ["bad", "hang"] })))
        .await
        .unwrap();
    assert_ne!(next, both[0]);
    assert_eq!(engine.wait(next).await.unwrap(), Ended::Failed);
    let third = engine
        .submit(named("c", json!({ "one": ["hang"] })))
        .await
        .unwrap();
    let refused = engine.retry(next).await.unwrap_err();
    assert!(matches!(refused, Error::WrongState { .. }), "{refused}");
    engine.cancel(third).await.unwrap();
    engine.wait(third).await.unwrap();
    engine.retry(next).await.unwrap();
    assert_eq!(engine.submit(named("d", json!({}))).await.unwrap(), next);
    engine.stop().await;
}

/// The order of the fetch queue, through the engine, and after a restart.
#[tokio::test(start_paused = true)]
async fn starts_are_fair_and_a_queue_can_be_moved() {
    let home = tempfile::tempdir().unwrap();
    let db = database(&home);
    let kind = Script::new(ONE);
    let engine = open(&db, &kind).await;
    let gate = engine
        .submit(job("x", json!({ "one": ["hang"] })))
        .await
        .unwrap();
    until_started(&kind, 1).await;
    let users = ["a", "a", "a", "a", "b", "c", "c"];
    let jobs: Vec<_> = users.iter().map(|user| job(user, json!({}))).collect();
    let ids = engine.submit_all(jobs).await.unwrap();
    let at = |order: [usize; 7]| order.map(|n| ids[n - 1]);
    assert_eq!(engine.order(100), at([1, 5, 6, 2, 7, 3, 4]));
    engine.reorder(ids[3], Position::First).await.unwrap();
    assert_eq!(engine.order(100), at([4, 5, 6, 1, 7, 2, 3]));
    engine.reorder(ids[3], Position::Last).await.unwrap();
    engine.set_priority(ids[6], Priority(1)).await.unwrap();
    let order = engine.order(100);
    assert_eq!(order[0], ids[6], "a higher priority is first");
    assert!(matches!(
        engine.reorder(gate, Position::First).await,
        Err(Error::WrongState { .. })
    ));
    let counts = engine.counts()[KIND];
    assert_eq!((counts.queued, counts.waiting, counts.running), (7, 0, 1));
    engine.stop().await;

    let engine = open(&db, &kind).await;
    assert_eq!(engine.show(ids[6]).await.unwrap().priority, Priority(1));
    engine.cancel(gate).await.unwrap();
    for id in &ids {
        assert_eq!(engine.wait(*id).await.unwrap(), Ended::Done);
    }
    let started = numbers(&kind.started());
    let order: Vec<_> = started.into_iter().filter(|n| *n != gate.0).collect();
    assert_eq!(order.len(), 7);
    assert_eq!(order[0], ids[6].0);
    let of_a: Vec<_> = order
        .iter()
        .filter(|n| ids[..4].contains(&JobId(**n)))
        .collect();
    assert_eq!(of_a, [&ids[0].0, &ids[1].0, &ids[2].0, &ids[3].0]);
    engine.stop().await;
}

/// One user has 100,000 queued jobs. The single job of another user is the next that starts.
#[tokio::test(start_paused = true)]
async fn another_users_single_job_is_started_next() {
    let home = tempfile::tempdir().unwrap();
    let kind = Script::new(ONE);
    let engine = open(&database(&home), &kind).await;
    let many = vec![job("many", json!({ "one": ["wait"] })); 100_000];
    let many = engine.submit_all(many).await.unwrap();
    until_started(&kind, 1).await;
    let other = engine.submit(job("other", json!({}))).await.unwrap();
    kind.gate.notify_one();
    assert_eq!(engine.wait(other).await.unwrap(), Ended::Done);
    let started = numbers(&kind.started());
    assert_eq!(started[..2], [many[0].0, other.0], "second of 100,001");
    assert_eq!(
        engine.counts()[KIND].queued + engine.counts()[KIND].running,
        99_999
    );
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lists_are_filtered_and_paged() {
    let home = tempfile::tempdir().unwrap();
    let kind = Script::new(LIMITS);
    let engine = open(&database(&home), &kind).await;
    let mut jobs = Vec::new();
    for n in 0..50 {
        let steps = json!({ "one": [if n % 2 == 0 { "ok" } else { "hang" }] });
        jobs.push(NewJob {
            resource: format!("archive{}", n % 5),
            ..job(["a", "b"][n / 25], steps)
        });
    }
    let ids = engine.submit_all(jobs).await.unwrap();
    let list = async |filter, most| -> Vec<JobId> {
        let jobs = engine.list(filter, most).await.unwrap();
        jobs.into_iter().map(|job| job.id).collect()
    };
    assert_eq!(list(Filter::default(), 100).await, ids);
    let page = Filter {
        after: Some(ids[19]),
        ..Filter::default()
    };
    assert_eq!(list(page, 10).await, ids[20..30]);
    let of_b = Filter {
        user: Some("b".to_owned()),
        resource: Some("archive3".to_owned()),
        kind: Some(KIND.to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        list(of_b, 100).await,
        [28, 33, 38, 43, 48].map(|n: usize| ids[n])
    );
    for id in &ids {
        let _ = engine.cancel(*id).await;
    }
    let unfinished = Filter {
        unfinished: true,
        ..Filter::default()
    };
    cellar_until::until("all have ended", async || {
        list(unfinished.clone(), 100).await.is_empty()
    })
    .await;
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_history_is_bounded_in_number_and_age() {
    let home = tempfile::tempdir().unwrap();
    let db = database(&home);
    let kind = Script::new(LIMITS);
    let settings = Settings {
        history_max: 20,
        history_age: Duration::from_secs(24 * 3600),
        ..Settings::default()
    };
    let engine = open_with(&db, &kind, settings).await;
    let jobs = vec![job("a", json!({ "one": ["items"] })); 60];
    let ids = engine.submit_all(jobs).await.unwrap();
    for id in &ids {
        // An early job may be out of the history already.
        let _ = engine.wait(*id).await;
    }
    let present = async || engine.list(Filter::default(), 100).await.unwrap();
    cellar_until::until("the oldest are removed", async || {
        present().await.len() <= 21
    })
    .await;
    assert_eq!(
        present().await.last().unwrap().id,
        ids[59],
        "the newest stay"
    );
    assert!(matches!(
        engine.show(ids[0]).await,
        Err(Error::NoSuchJob(_))
    ));
    assert_eq!(engine.items(ids[0], 0, 10).await.unwrap(), []);
    let kept = present().await.len();
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    assert_eq!(present().await.len(), kept, "younger than a day");
    tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
    cellar_until::until("all are removed", async || present().await.is_empty()).await;
    let next = engine.submit(job("a", json!({}))).await.unwrap();
    assert_eq!(next.0, 61, "numbers are never used twice");
    engine.stop().await;
}

/// A job of a kind that the program does not know stays, and runs when the program knows it.
#[tokio::test(start_paused = true)]
async fn a_job_of_an_unknown_kind_waits_for_a_program_that_knows_it() {
    let home = tempfile::tempdir().unwrap();
    let db = database(&home);
    let kind = Script::new(LIMITS);
    let engine = open(&db, &kind).await;
    let hang = || job("a", json!({ "one": ["hang", "ok"] }));
    let ids = engine.submit_all(vec![hang(), hang()]).await.unwrap();
    until_started(&kind, 2).await;
    engine.stop().await;
    let clock = Arc::new(Paused::now());
    let none: Vec<Arc<dyn JobKind>> = Vec::new();
    let older = Engine::open(Arc::clone(&db), none, clock, Settings::default())
        .await
        .unwrap();
    assert_eq!(older.show(ids[0]).await.unwrap().state, State::Queued);
    assert_eq!(older.counts()["unknown"].queued, 2);
    older.cancel(ids[1]).await.unwrap();
    assert_eq!(older.wait(ids[1]).await.unwrap(), Ended::Cancelled);
    older.stop().await;
    let engine = open(&db, &kind).await;
    assert_eq!(engine.wait(ids[0]).await.unwrap(), Ended::Done);
    engine.stop().await;
}
