//! What `close` does not wait for.

use std::time::Duration;

use cellar_client::cache::{self, Handle};
use cellar_client::errno;
use cellar_wire::acl::Rights;

use crate::bench::{Bench, Client};

const KIB: u64 = 1 << 10;

/// Until nothing is left to be stored.
async fn all_stored(client: &Client) {
    for _ in 0..500 {
        if client.cache.unstored().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not stored: {:?}", client.cache.unstored());
}

/// What close(2) does.
async fn close(handle: Handle) -> cellar_client::Result<()> {
    let stored = handle.store(false).await;
    handle.close().await;
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_close_leaves_is_stored_soon() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.set_store_behind(64 * KIB);
    let b = bench.client().await;
    let mut files = Vec::new();
    for number in 0..50_u8 {
        let file = a.make(&format!("file{number}")).await;
        a.put(&file, &[number; 5_000]).await.expect("closed");
        files.push(file);
    }
    all_stored(&a).await;
    for number in 0..50_u8 {
        let seen = b.find(&format!("file{number}")).await;
        assert!(b.get(&seen).await == [number; 5_000], "file {number}");
    }
    bench.end();
}

/// What the server has of a file: a client that knows nothing asks.
async fn at_server(bench: &Bench, name: &str) -> usize {
    let other = bench.client().await;
    let seen = other.find(name).await;
    other.get(&seen).await.len()
}

#[tokio::test]
async fn no_more_is_left_than_may_wait_and_fsync_leaves_nothing() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.set_store_behind(64 * KIB);
    let unstored = || a.cache.unstored().len();
    // Of one thread: what is stored behind has not begun when `store` returns.
    let file = a.make("small").await;
    let small = a.open(&file, Rights::WRITE).await;
    small.write(0, &[1; 64 << 10]).await.expect("write");
    small.store(false).await.expect("closed");
    assert_eq!(unstored(), 1);
    assert_eq!(file.unstored_bytes(), 64 * KIB);
    small.store(true).await.expect("fsync");
    assert_eq!((unstored(), file.unstored_bytes()), (0, 0));
    // More than may wait is stored before close returns.
    let file = a.make("large").await;
    let large = a.open(&file, Rights::WRITE).await;
    large.write(0, &[2; 65 << 10]).await.expect("write");
    large.store(false).await.expect("closed");
    assert_eq!(file.unstored_bytes(), 0);
    assert_eq!(at_server(&bench, "large").await, 65 << 10);
    // A file may have a value of its own.
    let file = a.make("own").await;
    a.cache.set_store_behind_of(&file, Some(0));
    let own = a.open(&file, Rights::WRITE).await;
    own.write(0, b"at once").await.expect("write");
    own.store(false).await.expect("closed");
    assert_eq!((unstored(), file.unstored_bytes()), (0, 0));
    a.cache.set_store_behind_of(&file, None);
    own.write(0, b"later").await.expect("write");
    own.store(false).await.expect("closed");
    assert_eq!(file.unstored_bytes(), 5);
    // The end stores all.
    assert!(a.cache.close().await.is_empty());
    assert_eq!((unstored(), at_server(&bench, "own").await), (0, 7));
    for handle in [small, large, own] {
        handle.close().await;
    }
    bench.end();
}

#[tokio::test]
async fn a_store_that_fails_behind_close_is_kept_and_told_by_the_next_close() {
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_owned();
    let a = bench.client_with(64 << 20, Some(path)).await;
    a.cache.set_store_behind(64 * KIB);
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    handle.write(0, b"kept").await.expect("write");
    close(handle).await.expect("it need not be stored yet");
    for _ in 0..500 {
        if a.cache
            .unstored()
            .first()
            .is_some_and(|one| one.1.is_some())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(a.cache.unstored()[0].1, Some(13));
    let (left, _) = cache::unstored_in(directory.path()).expect("a cache");
    assert_eq!(left.len(), 1);
    // Whoever closes it next hears of it.
    let handle = a.open(&file, Rights::READ).await;
    let refused = close(handle).await.expect_err("no right");
    assert_eq!(errno(&refused), 13);
    bench.allow(Rights::ALL);
    a.cache.store(&file, false).await.expect("stored now");
    let b = bench.client().await;
    let seen = b.find("file").await;
    assert_eq!(b.get(&seen).await, b"kept");
    bench.end();
}
