//! The arithmetic of limits, and the choice of rules. The test is the clock.

use std::sync::atomic::{AtomicUsize, Ordering};

use cellar_wire::acl::{Cps, Rights};

use super::*;
use crate::protection::BoxFuture;

const DAY: u64 = 24 * 3600;
const ALICE: ViceId = ViceId(7);
const BOB: ViceId = ViceId(8);
const STUDENTS: ViceId = ViceId(-20);

/// A protection database of three names.
#[derive(Default)]
struct Names {
    calls: AtomicUsize,
}

impl Protection for Names {
    fn cps(&self, _: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async { Ok(Cps::anonymous()) })
    }

    fn host_cps(&self, _: std::net::IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async { Ok(Cps::anonymous()) })
    }

    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let id = |name: &Bytes| match &name[..] {
            b"alice" => Some(ALICE),
            b"bob" => Some(BOB),
            b"students" => Some(STUDENTS),
            _ => None,
        };
        Box::pin(async move { Ok(names.iter().map(id).collect()) })
    }

    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>> {
        Box::pin(async move { Ok(vec![None; ids.len()]) })
    }
}

fn rule(subject: RecallSubject, bytes: Option<u64>, files: Option<u64>) -> RecallLimit {
    RecallLimit {
        text: format!("{subject:?} {bytes:?} {files:?}"),
        subject,
        bytes,
        files,
        per: Duration::from_secs(DAY),
    }
}

fn user(name: &str, bytes: u64) -> RecallLimit {
    rule(RecallSubject::User(name.to_owned()), Some(bytes), None)
}

fn volumes(pattern: &str, bytes: u64) -> RecallLimit {
    rule(
        RecallSubject::Volumes(pattern.to_owned()),
        Some(bytes),
        None,
    )
}

async fn limits(rules: Vec<RecallLimit>) -> RecallLimits {
    let limits = RecallLimits::default();
    limits.set(rules);
    let loaded = limits.load_names(&Names::default(), secs(0)).await;
    loaded.expect("ids");
    limits
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(1_700_000_000 + seconds)
}

fn caller(id: ViceId, groups: &[ViceId]) -> Identity {
    let ids = [&[id], groups].concat();
    Identity::new(id, Cps::new(ids), None, Rights::NONE)
}

/// Whether a recall of a user without groups is permitted.
fn takes(limits: &RecallLimits, id: ViceId, volume: &str, bytes: u64, at: u64) -> bool {
    let taken = limits.take(&caller(id, &[]), volume, bytes, secs(at));
    taken.is_ok()
}

#[tokio::test]
async fn an_account_fills_and_empties_evenly() {
    let limits = limits(vec![user("alice", 1000)]).await;
    assert!(takes(&limits, ALICE, "v", 600, 0));
    assert!(takes(&limits, ALICE, "v", 400, 0));
    let over = limits.take(&caller(ALICE, &[]), "v", 100, secs(0));
    let over = over.unwrap_err();
    assert_eq!(over.rule, user("alice", 1000).text);
    let tenth = over.again.expect("a time");
    assert!((DAY / 10..=DAY / 10 + 1).contains(&tenth.as_secs()));
    assert!(!takes(&limits, ALICE, "v", 100, DAY / 10 - 1));
    assert!(takes(&limits, ALICE, "v", 100, DAY / 10 + 1));
    assert!(!takes(&limits, ALICE, "v", 100, DAY / 10 + 1), "full again");
    // After the whole time nothing is left of it.
    assert!(takes(&limits, ALICE, "v", 1000, 3 * DAY));
    // A clock that goes back empties nothing.
    assert!(!takes(&limits, ALICE, "v", 1, 2 * DAY));
    // Others have no rule.
    assert!(takes(&limits, BOB, "v", u64::MAX, 0));
}

#[tokio::test]
async fn a_file_larger_than_the_limit_needs_an_empty_account() {
    let limits = limits(vec![user("alice", 1000)]).await;
    assert!(takes(&limits, ALICE, "v", 1, 0));
    assert!(!takes(&limits, ALICE, "v", 5000, 0));
    assert!(takes(&limits, ALICE, "v", 5000, DAY));
    assert!(!takes(&limits, ALICE, "v", 1, DAY));
    assert!(
        takes(&limits, ALICE, "v", 1, DAY + DAY / 500),
        "not in debt"
    );
}

#[tokio::test]
async fn files_are_counted_and_a_limit_of_zero_permits_none() {
    let files = |count| rule(RecallSubject::EachUser, None, Some(count));
    let two = limits(vec![files(2)]).await;
    for id in [ALICE, BOB] {
        assert!(takes(&two, id, "v", u64::MAX, 0));
        assert!(takes(&two, id, "v", 0, 1));
        assert!(!takes(&two, id, "v", 0, 2));
        // Frequent refusals do not change the pace.
        for second in 0..100 {
            assert!(!takes(&two, id, "v", 0, 3 + second));
        }
        assert!(takes(&two, id, "v", 0, DAY / 2 + 2));
        assert!(!takes(&two, id, "v", 0, DAY / 2 + 3));
    }
    let none = limits(vec![files(0)]).await;
    let over = none.take(&caller(ALICE, &[]), "v", 1, secs(5 * DAY));
    assert_eq!(over.unwrap_err().again, None);
}

#[tokio::test]
async fn the_most_specific_rule_of_each_subject_counts() {
    let each = rule(RecallSubject::EachUser, Some(100), None);
    let group = rule(RecallSubject::Group("students".into()), Some(500), None);
    let limits = limits(vec![
        each,
        user("alice", 1000),
        group,
        volumes("*", 2000),
        volumes("data.*", 300),
        volumes("data.raw", 50_000),
        user("dave", 1),
    ])
    .await;
    // The user's own rule, and not that of each user.
    assert!(takes(&limits, ALICE, "home", 900, 0));
    assert!(takes(&limits, BOB, "home", 60, 0));
    assert!(!takes(&limits, BOB, "home", 60, 0));
    // The pattern with more characters.
    assert!(takes(&limits, ALICE, "data.a", 100, 0));
    assert!(takes(&limits, ViceId(9), "data.a", 100, 0));
    assert!(takes(&limits, ViceId(10), "data.a", 100, 0));
    let over = limits.take(&caller(ViceId(11), &[]), "data.a", 1, secs(0));
    assert!(over.unwrap_err().rule.contains("data.*"));
    // The members of a group share its account.
    let member = |id| caller(id, &[STUDENTS]);
    assert!(
        limits
            .take(&member(ALICE), "data.raw", 450, secs(DAY))
            .is_ok()
    );
    let over = limits.take(&member(BOB), "data.raw", 60, secs(DAY));
    assert!(over.unwrap_err().rule.contains("students"));
    assert!(limits.take(&member(BOB), "data.raw", 50, secs(DAY)).is_ok());
}

#[tokio::test]
async fn volumes_have_accounts_of_their_own_and_share_them_with_their_clones() {
    let limits = limits(vec![volumes("data.*", 300), volumes("data.raw", 5000)]).await;
    assert!(takes(&limits, ALICE, "data.a", 300, 0));
    assert!(!takes(&limits, BOB, "data.a.readonly", 1, 0));
    assert!(!takes(&limits, BOB, "data.a.backup", 1, 0));
    assert!(takes(&limits, BOB, "data.b", 300, 0), "another volume");
    assert!(takes(&limits, BOB, "data.raw", 4000, 0), "the exact name");
    assert!(takes(&limits, BOB, "other", u64::MAX, 0));
}

#[tokio::test]
async fn a_refused_recall_changes_no_account() {
    let limits = limits(vec![user("alice", 1000), volumes("v", 10)]).await;
    assert!(takes(&limits, ALICE, "v", 10, 0));
    for _ in 0..10 {
        assert!(!takes(&limits, ALICE, "v", 500, 0));
    }
    assert!(takes(&limits, ALICE, "w", 990, 0));
    assert!(!takes(&limits, ALICE, "w", 1, 0));
}

#[tokio::test]
async fn administrators_have_no_limits_and_refusals_are_news_once_a_minute() {
    let limits = limits(vec![rule(RecallSubject::EachUser, Some(0), None)]).await;
    let admin = Identity::superuser();
    assert!(limits.take(&admin, "v", u64::MAX, secs(0)).is_ok());
    let is_news = |at| {
        let over = limits.take(&caller(ALICE, &[]), "v", 1, secs(at));
        over.unwrap_err().is_news
    };
    assert!(is_news(0));
    assert!(!is_news(59));
    assert!(is_news(60));
}

#[tokio::test]
async fn accounts_outlive_a_reload_if_their_rule_does() {
    let limits = limits(vec![user("alice", 100), user("bob", 100)]).await;
    assert!(takes(&limits, ALICE, "v", 100, 0));
    assert!(takes(&limits, BOB, "v", 100, 0));
    limits.set(vec![user("alice", 100), user("bob", 200)]);
    let names = Names::default();
    for at in [0, 1, 600, 601] {
        limits.load_names(&names, secs(at)).await.expect("ids");
    }
    assert_eq!(names.calls.load(Ordering::Relaxed), 2, "not at each recall");
    assert!(!takes(&limits, ALICE, "v", 50, 0));
    assert!(takes(&limits, BOB, "v", 200, 0));
}

#[tokio::test]
async fn the_number_of_accounts_is_bounded() {
    let limits = limits(vec![rule(RecallSubject::EachUser, Some(10), None)]).await;
    for id in 0..RECALL_ACCOUNTS_MAX as i32 + 50 {
        assert!(takes(&limits, ViceId(1000 + id), "v", 10, id as u64));
    }
    assert_eq!(limits.0.lock().accounts.len(), RECALL_ACCOUNTS_MAX);
    let last = ViceId(1000 + RECALL_ACCOUNTS_MAX as i32 + 49);
    assert!(!takes(&limits, last, "v", 10, RECALL_ACCOUNTS_MAX as u64));
}

#[test]
fn patterns_match_names() {
    for (pattern, name, wanted) in [
        ("*", "", true),
        ("data.*", "data.", true),
        ("data.*", "data", false),
        ("*.raw", "a.raw.raw", true),
        ("a*b*c", "aXbYbZc", true),
        ("a*b*c", "aXbYbZ", false),
        ("?", "x", true),
        ("?", "", false),
        ("data", "data2", false),
    ] {
        let matched = matches(pattern.as_bytes(), name.as_bytes());
        assert_eq!(matched, wanted, "{pattern} {name}");
    }
}
