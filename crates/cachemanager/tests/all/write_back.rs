//! Stores that `close` does not wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_cachemanager::Handle;
use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::StoreData64;

use crate::bench::{Bench, Client, held};

const KIB: u64 = 1 << 10;
/// Until nothing is left to be stored.
async fn all_stored(client: &Client) {
    for _ in 0..500 {
        if client.cache.write_back().unstored().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not stored: {:?}", client.cache.write_back().unstored());
}

/// Closes as close(2) does.
async fn close(handle: Handle) -> cellar_client::Result<()> {
    let stored = handle.store(false).await;
    handle.close().await;
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_left_by_close_are_stored_soon() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.management().set_store_behind(64 * KIB);
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

/// The contents on the server, as a new client reads them.
async fn at_server(bench: &Bench, name: &str) -> usize {
    let other = bench.client().await;
    let seen = other.find(name).await;
    other.get(&seen).await.len()
}

#[tokio::test]
async fn no_more_is_left_than_may_wait_and_fsync_leaves_nothing() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.management().set_store_behind(64 * KIB);
    let unstored = || a.cache.write_back().unstored().len();
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
    a.cache.write_back().set_store_behind_of(&file, Some(0));
    let own = a.open(&file, Rights::WRITE).await;
    own.write(0, b"at once").await.expect("write");
    own.store(false).await.expect("closed");
    assert_eq!((unstored(), file.unstored_bytes()), (0, 0));
    a.cache.write_back().set_store_behind_of(&file, None);
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
    a.cache.management().set_store_behind(64 * KIB);
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    handle.write(0, b"kept").await.expect("write");
    close(handle).await.expect("it need not be stored yet");
    for _ in 0..500 {
        if a.cache
            .write_back()
            .unstored()
            .first()
            .is_some_and(|one| one.1.is_some())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(a.cache.write_back().unstored()[0].1, Some(13));
    let (left, _) = cellar_cachemanager::unstored_in(directory.path()).expect("a cache");
    assert_eq!(left.len(), 1);
    // The next close returns the error.
    let handle = a.open(&file, Rights::READ).await;
    let refused = close(handle).await.expect_err("no right");
    assert_eq!(errno(&refused), 13);
    bench.allow(Rights::ALL);
    a.cache
        .write_back()
        .store(&file, false)
        .await
        .expect("stored now");
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"kept");
    bench.end();
}

#[tokio::test]
async fn dirty_bytes_of_a_file_with_another_name_are_stored_after_a_removal() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client().await);
    a.cache.management().set_store_behind(64 * KIB);
    let file = a.make("one").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"kept").await.expect("write");
    // A user with the right to insert may store into files of its own.
    bench.allow(Rights::READ.union(Rights::LOOKUP).union(Rights::DELETE));
    close(handle).await.expect("closed");
    bench.link("one", "two");
    let removed = a.cache.names().remove_file(&a.user, &a.root, b"one").await;
    removed.expect("removed");
    bench.allow(Rights::ALL);
    a.cache
        .write_back()
        .store(&file, false)
        .await
        .expect("stored");
    assert_eq!(b.contents("two").await, b"kept");
    bench.end();
}

#[tokio::test]
async fn a_file_is_stored_before_it_replaces_another() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client().await);
    let old = a.make("file").await;
    a.put(&old, b"old").await.expect("stored");
    a.cache.management().set_store_behind(u64::MAX);
    let new = a.make("new").await;
    let bytes = vec![7; 24 << 20];
    a.put(&new, &bytes).await.expect("closed");
    let (from, to) = ((&a.root, &b"new"[..]), (&a.root, &b"file"[..]));
    let renamed = a.cache.names().rename(&a.user, from, to).await;
    assert_eq!((renamed.is_ok(), new.unstored_bytes()), (true, 0));
    let seen = b.find("file").await;
    assert!(b.get(&seen).await == bytes);
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mode_that_is_set_during_a_store_is_not_the_older_one_after_it() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.management().set_store_behind(64 << 20);
    let b = bench.client().await;
    for round in 0..20_u32 {
        let file = a.make(&format!("file{round}")).await;
        let handle = a.open(&file, Rights::WRITE).await;
        handle.write(0, &[7; 4 << 20]).await.expect("write");
        let mode = |mode| cellar_cachemanager::NewAttributes {
            mode: Some(mode),
            modified: Some(cellar_wire::ids::AfsTime(1_000_000_000 + mode)),
            ..cellar_cachemanager::NewAttributes::default()
        };
        let set = a.cache.set_attributes(&a.user, &file, mode(0o640), false);
        set.await.expect("with the bytes");
        close(handle).await.expect("closed");
        tokio::time::sleep(Duration::from_millis(u64::from(round % 5))).await;
        let set = a.cache.set_attributes(&a.user, &file, mode(0o600), false);
        set.await.expect("later");
        all_stored(&a).await;
        let seen = b.find(&format!("file{round}")).await;
        let status = b
            .cache
            .reads()
            .attributes(&b.user, &seen)
            .await
            .expect("known");
        let (mode, time) = (status.status.unix_mode, status.status.client_mod_time.0);
        assert_eq!((mode & 0o777, time), (0o600, 1_000_000_384), "{round}");
    }
    bench.end();
}

#[tokio::test]
async fn a_mode_does_not_wait_for_a_store_of_the_file() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client().await);
    a.cache.management().set_store_behind(64 * KIB);
    a.names().await;
    let file = a.make("file").await;
    let stores = bench.hold::<StoreData64>();
    a.put(&file, b"bytes").await.expect("closed");
    held(&stores, 1).await;
    for mode in [0o640, 0o600] {
        let wanted = cellar_cachemanager::NewAttributes {
            mode: Some(mode),
            ..cellar_cachemanager::NewAttributes::default()
        };
        let set = a.cache.set_attributes(&a.user, &file, wanted, false);
        let set = tokio::time::timeout(Duration::from_secs(30), set).await;
        let shown = set.expect("no wait").expect("set");
        assert_eq!(shown.status.unix_mode & 0o777, mode);
    }
    drop(stores);
    all_stored(&a).await;
    let seen = b.find("file").await;
    assert_eq!(b.get(&seen).await, b"bytes");
    for (client, file) in [(&a, &file), (&b, &seen)] {
        let known = client.cache.reads().attributes(&client.user, file).await;
        assert_eq!(known.expect("known").status.unix_mode & 0o777, 0o600);
    }
    bench.end();
}

#[tokio::test]
async fn a_file_that_is_stored_for_long_takes_the_turns_of_no_others() {
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.management().set_store_behind(64 * KIB);
    let stores = bench.hold::<StoreData64>();
    a.put(&a.make("first").await, b"bytes")
        .await
        .expect("closed");
    held(&stores, 1).await;
    for _ in 0..10 {
        a.cache.write_back().store_old();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // All that a server has are five.
    for number in 0..4 {
        let file = a.make(&format!("file{number}")).await;
        a.put(&file, b"bytes").await.expect("closed");
    }
    held(&stores, 5).await;
    drop(stores);
    all_stored(&a).await;
    bench.end();
}

#[tokio::test]
async fn many_files_that_are_stored_at_the_end_are_few_tasks() {
    const FILES: usize = 100;
    let bench = Bench::start();
    let a = bench.client().await;
    a.cache.management().set_store_behind(64 * KIB);
    let mut handles = Vec::new();
    for number in 0..FILES {
        let file = a.make(&format!("file{number}")).await;
        let handle = a.open(&file, Rights::WRITE).await;
        handle.write(0, b"bytes").await.expect("write");
        handles.push(handle);
    }
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let (stores, before) = (bench.hold::<StoreData64>(), tasks());
    let mut end = Box::pin(a.cache.close());
    tokio::select! {
        _ = &mut end => panic!("it does not wait"),
        () = held(&stores, 5) => {}
    }
    let begun = tasks().saturating_sub(before);
    assert!(begun <= 10, "{begun} tasks");
    drop(stores);
    assert!(end.await.is_empty());
    assert!(a.cache.write_back().unstored().is_empty());
    assert_eq!(bench.calls::<StoreData64>(), FILES as u64);
    assert_eq!(bench.client().await.contents("file99").await, b"bytes");
    bench.end();
}

/// A question about the length at the end of a store is answered with the written length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_grows_is_never_shorter_than_it_was() {
    const APPENDS: u64 = 200;
    let bench = Bench::start();
    let (a, file) = bench.one_with_a_file(b"begin").await;
    let ended = Arc::new(AtomicBool::new(false));
    let lookers: Vec<_> = (0..2)
        .map(|_| {
            let (file, ended) = (file.clone(), ended.clone());
            std::thread::spawn(move || {
                let mut longest = 0;
                while !ended.load(Ordering::Relaxed) {
                    let length = file.attributes().expect("known").status.length;
                    assert!(length >= longest, "{length} bytes after {longest}");
                    longest = length;
                }
            })
        })
        .collect();
    let handle = a.open(&file, Rights::READ.union(Rights::WRITE)).await;
    for number in 0..APPENDS {
        assert_eq!(handle.append(b"x").await.expect("append"), 5 + number);
        handle.store(false).await.expect("stored");
    }
    ended.store(true, Ordering::Relaxed);
    handle.close().await;
    for looker in lookers {
        looker.join().expect("never shorter");
    }
    bench.end();
}

/// A server may answer a question at the end of a store with the status from before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_cut_is_not_longer_for_who_asks_meanwhile() {
    let bench = Bench::start();
    let (a, file) = bench.one_with_a_file(&[b'x'; 100]).await;
    let ended = Arc::new(AtomicBool::new(false));
    let askers: Vec<_> = (0..4)
        .map(|_| {
            let (cache, user) = (a.cache.clone(), a.user.clone());
            let (file, ended) = (file.clone(), ended.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    cache.management().flush(&user, &file).await.expect("flush");
                    cache
                        .reads()
                        .attributes(&user, &file)
                        .await
                        .expect("attributes");
                }
            })
        })
        .collect();
    let handle = a.open(&file, Rights::READ.union(Rights::WRITE)).await;
    for number in 0..300 {
        let (long, short) = (1_000 + number, 1 + number);
        handle.write(0, &vec![b'y'; long]).await.expect("write");
        handle.store(false).await.expect("stored");
        a.cut(&file, short as u64).await.expect("cut");
        handle.store(false).await.expect("stored");
        let shown = a
            .cache
            .reads()
            .attributes(&a.user, &file)
            .await
            .expect("status");
        assert_eq!(shown.status.length, short as u64);
    }
    ended.store(true, Ordering::Relaxed);
    handle.close().await;
    for asker in askers {
        asker.await.expect("no panic");
    }
    let b = bench.client().await;
    assert_eq!(b.contents("file").await.len(), 300);
    bench.end();
}
