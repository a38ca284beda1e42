//! Dirty bytes that no server takes: the file is gone, the server hangs, everything is full of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::{Bench, Client, NOW, Tokens};
use cellar_cachemanager::Cache;
use cellar_client::errno;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::StoreData64;

/// The files put aside in a cache directory, without the texts beside them.
fn aside(directory: &std::path::Path) -> Vec<Vec<u8>> {
    let Ok(all) = std::fs::read_dir(directory.join("aside")) else {
        return Vec::new();
    };
    all.map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_none_or(|end| end != "txt"))
        .map(|path| std::fs::read(path).expect("read"))
        .collect()
}

#[tokio::test]
async fn bytes_of_a_file_that_others_removed_are_put_aside_and_reported() {
    for with_directory in [false, true] {
        let bench = Bench::start();
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("cache");
        let a = bench
            .client_with(64 << 20, with_directory.then(|| directory.clone()))
            .await;
        let file = a.make("file").await;
        a.put(&file, b"before").await.expect("stored");
        let b = bench.client().await;
        let handle = a.open(&file, Rights::WRITE).await;
        handle.write(0, b"after!").await.expect("write");
        let removed = b.cache.names().remove_file(&b.user, &b.root, b"file").await;
        removed.expect("removed");
        // By itself, as it is behind a close that did not wait.
        let stored = a.cache.write_back().store(&file, false).await;
        assert_eq!(errno(&stored.expect_err("it is gone")), 2);
        assert!(a.cache.write_back().unstored().is_empty(), "it is given up");
        let told = handle.store(false).await;
        assert_eq!(errno(&told.expect_err("close says so")), 2);
        handle.store(false).await.expect("once");
        // Bytes written after that error are kept, too.
        handle.write(0, b"later!").await.expect("write");
        let stored = handle.store(false).await;
        assert_eq!(errno(&stored.expect_err("it is gone")), 2);
        handle.close().await;
        let mut kept = aside(&directory);
        kept.sort();
        match with_directory {
            true => assert_eq!(kept, [&b"after!"[..], b"later!"]),
            false => assert!(kept.is_empty()),
        }
        bench.end();
    }
}

#[tokio::test]
async fn own_removals_put_nothing_aside() {
    let bench = Bench::start();
    let parent = tempfile::tempdir().expect("directory");
    let directory = parent.path().join("cache");
    let a = bench.client_with(64 << 20, Some(directory.clone())).await;
    for replaced in [false, true] {
        let file = a.make("file").await;
        a.make("other").await;
        bench.refuse::<StoreData64>(AbortCode::EIO, 2);
        let stored = a.put(&file, b"waits").await;
        assert_eq!(errno(&stored.expect_err("refused")), 5);
        assert_eq!(a.cache.write_back().unstored().len(), 1);
        // It is stored in the same moment as it is removed.
        let stores = bench.hold::<StoreData64>();
        let (cache, waits) = (a.cache.clone(), file.clone());
        let storing = tokio::spawn(async move { cache.write_back().store(&waits, false).await });
        crate::bench::held(&stores, 1).await;
        let done = match replaced {
            false => a.cache.names().remove_file(&a.user, &a.root, b"file").await,
            true => {
                let (from, to) = ((&a.root, &b"other"[..]), (&a.root, &b"file"[..]));
                a.cache.names().rename(&a.user, from, to).await
            }
        };
        done.expect("removed");
        drop(stores);
        let stored = storing.await.expect("no panic");
        assert_eq!(errno(&stored.expect_err("it is gone")), 2);
        assert!(a.cache.write_back().unstored().is_empty());
        assert!(aside(&directory).is_empty());
        for name in a.names().await {
            let removed = a
                .cache
                .names()
                .remove_file(&a.user, &a.root, name.as_bytes())
                .await;
            removed.expect("removed");
        }
    }
    bench.end();
}

/// Its machine answers, the server does not.
#[tokio::test]
async fn a_server_that_hangs_ends_a_store_and_is_told() {
    let bench = Bench::start();
    let options = cellar_cachemanager::Options {
        patience: Duration::from_millis(750),
        ..bench.cache_options()
    };
    let cache = Cache::new(bench.port(), options, Arc::new(Tokens(None)), || NOW).expect("cache");
    let user = cache.user(0).await.expect("user");
    let root = cache
        .names()
        .root(&user)
        .await
        .expect("root")
        .expect("a volume");
    let a = Client { cache, user, root };
    let file = a.make("file").await;
    let stores = bench.hold::<StoreData64>();
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"bytes").await.expect("write");
    let begun = Instant::now();
    let stored = handle.store(false).await;
    let took = begun.elapsed();
    assert_eq!(errno(&stored.expect_err("no answer")), 110);
    assert!(took >= Duration::from_secs(3), "{took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(a.cache.write_back().unstored().len(), 1, "kept");
    drop(stores);
    handle.store(false).await.expect("stored");
    handle.close().await;
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"bytes");
    bench.end();
}

#[tokio::test]
async fn a_cache_that_is_full_of_what_is_refused_takes_no_more() {
    const SIZE: u64 = 2 << 20;
    let bench = Bench::start();
    let a = bench.client_with(SIZE, None).await;
    bench.refuse::<StoreData64>(AbortCode::VOVERQUOTA, 1_000_000);
    let bytes = vec![7; 100_000];
    let mut told = Vec::new();
    for number in 0..100 {
        let file = a.make(&format!("file{number}")).await;
        let handle = a.open(&file, Rights::WRITE).await;
        let written = handle.write(0, &bytes).await;
        told.push(written.map_err(|error| errno(&error)));
        let _refused = handle.store(false).await;
        handle.close().await;
    }
    assert!(told[..5].iter().all(Result::is_ok), "{told:?}");
    assert_eq!(told[99], Err(122), "over quota");
    let kept = a.cache.write_back().unstored();
    let most = SIZE / bytes.len() as u64 + 2;
    assert!((10..=most).contains(&(kept.len() as u64)), "{}", kept.len());
    drop(bench.hold::<StoreData64>());
    for (file, _why) in kept {
        a.cache
            .write_back()
            .store(&file, false)
            .await
            .expect("stored now");
        assert_eq!(a.get(&file).await, bytes);
    }
    let handle = a.open(&a.find("file99").await, Rights::WRITE).await;
    handle.write(0, &bytes).await.expect("there is room");
    handle.store(false).await.expect("stored");
    handle.close().await;
    bench.end();
}

/// The grace period for requests that a stalled server may have received runs once, not once a
/// file.
#[tokio::test]
async fn many_stores_that_were_given_up_are_soon_stored() {
    const FILES: usize = 8;
    let bench = Bench::start();
    let a = Arc::new(bench.client().await);
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(a.make(&format!("file{number}")).await);
    }
    let stores = bench.hold::<StoreData64>();
    let mut given_up = Vec::new();
    for file in &files {
        let (a, file) = (a.clone(), file.clone());
        given_up.push(tokio::spawn(async move { a.put(&file, b"given up").await }));
    }
    crate::bench::held(&stores, FILES).await;
    for one in given_up {
        one.abort();
        assert!(one.await.expect_err("given up").is_cancelled());
    }
    drop(stores);
    assert_eq!(a.cache.write_back().unstored().len(), FILES);
    let begun = Instant::now();
    for file in &files {
        a.cache
            .write_back()
            .store(file, false)
            .await
            .expect("stored");
    }
    let took = begun.elapsed();
    // Two seconds each would be 16.
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(a.cache.write_back().unstored().is_empty());
    bench.end();
}
