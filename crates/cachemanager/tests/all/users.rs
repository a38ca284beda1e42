//! Users who come, get other tokens, and are too many to be remembered.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_cachemanager::{Cache, Identities};
use cellar_client::{CellName, Renewal};
use cellar_rpc::Security;

use crate::bench::{Bench, NOW, securities};

/// Users of low numbers have tokens, which are others when the number is another.
struct Changing(AtomicU64);

impl Identities for Changing {
    fn stamp(&self, uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>> {
        let stamp = self.0.load(Ordering::Relaxed);
        Box::pin(std::future::ready((uid < 10).then_some(stamp)))
    }

    fn securities<'a>(
        &'a self,
        _uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>> {
        Box::pin(std::future::ready(securities()))
    }

    fn renewal(&self, _uid: u32) -> Option<Arc<dyn Renewal>> {
        None
    }
}

/// How many answers there were.
fn answers(cache: &Arc<Cache>) -> u64 {
    let text = cache.metrics();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("cellar_rpc_seconds_count"));
    let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_outlive_tokens_and_many_users_leave_room() {
    let bench = Bench::start();
    let tokens = Arc::new(Changing(AtomicU64::new(1)));
    let port = bench.port();
    let cache = Cache::new(port, bench.cache_options(), tokens.clone(), || NOW).expect("cache");
    let user = cache.user(7).await.expect("user");
    let root = cache
        .names()
        .root(&user)
        .await
        .expect("root")
        .expect("a volume");
    cache
        .reads()
        .attributes(&user, &root)
        .await
        .expect("attributes");
    let before = answers(&cache);
    assert!(before > 0, "{}", cache.metrics());

    // More users than are remembered, all without tokens; a user with a token comes after them.
    let mut anybody = String::new();
    for uid in 1_000..6_000 {
        anybody = format!("{:?}", cache.user(uid).await.expect("user"));
    }
    let late = cache.user(8).await.expect("user");
    assert_ne!(format!("{late:?}"), anybody, "he is taken for nobody");
    let same = cache.user(7).await.expect("user");
    assert_eq!(format!("{same:?}"), format!("{user:?}"), "he was forgotten");

    tokens.0.store(2, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    let renewed = cache.user(7).await.expect("user");
    assert_ne!(format!("{renewed:?}"), format!("{user:?}"));
    // A login tells, and is not waited for.
    tokens.0.store(3, Ordering::Relaxed);
    let same = cache.user(7).await.expect("user");
    assert_eq!(format!("{same:?}"), format!("{renewed:?}"));
    cache.look_again(7);
    let told = cache.user(7).await.expect("user");
    assert_ne!(format!("{told:?}"), format!("{renewed:?}"));
    assert!(answers(&cache) >= before, "{} answers", answers(&cache));
    bench.end();
}
