//! What looking at many files costs in calls, over a real file server in this process.

use std::sync::Arc;

use cellar_client::cache::{Anonymous, Cache, User, Vnode};
use cellar_testcell::{NOW, TestCell};
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::{FetchStatus, InlineBulkStatus};

struct Client {
    cache: Arc<Cache>,
    user: Arc<User>,
    root: Arc<Vnode>,
}

impl Client {
    async fn new(cell: &TestCell) -> Self {
        let (port, options) = (cell.port(), cell.cache_options());
        let cache = Cache::new(port, options, Arc::new(Anonymous), || NOW).expect("cache");
        let user = cache.user(0).await.expect("user");
        let root = cache.root(&user).await.expect("root").expect("a volume");
        Self { cache, user, root }
    }

    async fn look_up(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            let found = self.cache.lookup(&self.user, &self.root, name.as_bytes());
            let vnode = found.await.expect("found").vnode;
            self.cache
                .attributes(&self.user, &vnode)
                .await
                .expect("known");
        }
    }
}

fn name(number: usize) -> String {
    format!("file{number:03}")
}

/// A cell with 400 files, and a client that knows none of them.
async fn start() -> (TestCell, Client) {
    let cell = TestCell::start(Rights::ALL);
    let writer = Client::new(&cell).await;
    for number in 0..400 {
        let name = name(number);
        let made = writer
            .cache
            .create_file(&writer.user, &writer.root, name.as_bytes(), 0o644);
        made.await.expect("made");
    }
    let reader = Client::new(&cell).await;
    (cell, reader)
}

/// Calls for one status, and for many.
fn asked(cell: &TestCell) -> (u64, u64) {
    (
        cell.calls::<FetchStatus>(),
        cell.calls::<InlineBulkStatus>(),
    )
}

#[tokio::test]
async fn files_looked_up_in_their_order_are_asked_for_many_at_a_time() {
    let (cell, reader) = start().await;
    let (one, many) = asked(&cell);
    // The first says nothing yet; in the second one's call are 49 more, and so on.
    reader.look_up((0..400).map(name)).await;
    let (one_now, many_now) = asked(&cell);
    assert!(one_now - one <= 2, "{} for one", one_now - one);
    assert_eq!(many_now - many, 8);
    cell.end();
}

#[tokio::test]
async fn files_looked_up_here_and_there_are_asked_for_one_by_one() {
    let (cell, reader) = start().await;
    let (one, many) = asked(&cell);
    reader.look_up((0..40).map(|i| name(i * 177 % 400))).await;
    let (one_now, many_now) = asked(&cell);
    assert_eq!(many_now, many);
    assert!(one_now - one >= 40);
    cell.end();
}
