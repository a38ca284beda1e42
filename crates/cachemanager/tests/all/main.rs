//! The cache manager against a real file server in this process: two caches, one volume, no kernel.
//!
//! `cargo test -p cellar-cachemanager --test all MODULE` runs one module.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod bench;
mod calls;
mod compare;
mod crowd;
mod direct;
mod full_disk;
mod gone;
mod lengths;
mod local_create;
mod locks;
mod metrics;
mod network;
mod posix;
mod read_ahead;
mod restarts;
mod unstored;
mod users;
mod walks;
mod write_back;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs;

use bench::{Bench, NoticeCounter, Tokens};

#[tokio::test]
async fn a_close_on_one_machine_is_visible_on_the_other() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"one").await;
    let notices = Arc::new(NoticeCounter::default());
    b.cache.watch(notices.clone());
    assert_eq!(b.get(&seen).await, b"one");
    // The attributes are in the cache: no answer of the server is needed.
    assert!(seen.attributes().expect("known").valid > Duration::from_secs(60));
    let before = notices.0.load(Ordering::SeqCst);
    a.put(&file, b"another").await.expect("stored");
    assert!(
        notices.0.load(Ordering::SeqCst) > before,
        "the break comes before the answer"
    );
    assert!(seen.attributes().expect("known").valid.is_zero());
    assert_eq!(b.get(&seen).await, b"another");
    // The same in the other direction, with a name that did not exist.
    let missing = b.cache.names().lookup(&b.user, &b.root, b"new").await;
    assert_eq!(errno(&missing.expect_err("not there")), 2);
    a.make("new").await;
    b.find("new").await;
    bench.end();
}

/// The kernel would ignore the shorter length of the answer to a read if a notice crossed it.
#[tokio::test]
async fn a_read_that_finds_another_version_sends_no_notice() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"a long file").await;
    let notices = Arc::new(NoticeCounter::default());
    b.cache.watch(notices.clone());
    let handle = b.open(&seen, Rights::READ).await;
    assert_eq!(handle.read(0, 100).await.expect("read"), b"a long file");
    let held = notices.0.load(Ordering::SeqCst);
    a.put(&file, b"short").await.expect("stored");
    let broken = notices.0.load(Ordering::SeqCst);
    assert!(broken > held, "the kernel held the long file");
    assert_eq!(handle.read(0, 100).await.expect("read"), b"short");
    assert_eq!(notices.0.load(Ordering::SeqCst), broken);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_small_file_is_given_away_only_as_it_is() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"one").await;
    let handle = b.open(&seen, Rights::READ).await;
    let give = |most| {
        let mut given = None;
        let good = handle.give_small(most, |bytes| given = Some(bytes.to_vec()));
        (good, given)
    };
    assert_eq!(give(100), (false, None), "nothing of it is here");
    assert_eq!(b.get(&seen).await, b"one");
    assert_eq!(give(100), (true, Some(b"one".to_vec())));
    assert_eq!(give(2), (false, None), "it is too large");
    // If the promise ends while bytes are given out, the watcher is notified afterwards.
    let notices = Arc::new(NoticeCounter::default());
    b.cache.watch(notices.clone());
    // The promise ends in another thread, because this one holds the bytes meanwhile.
    let volume = seen.volume().id;
    let end =
        || std::thread::scope(|scope| scope.spawn(|| b.cache.statuses().distrust(volume)).join());
    let good = handle.give_small(100, |_| end().expect("ended"));
    assert!(!good && notices.0.load(Ordering::SeqCst) >= 2);
    assert_eq!(give(100), (false, None), "nothing is promised");
    a.put(&file, b"two").await.expect("stored");
    assert_eq!(b.get(&seen).await, b"two");
    assert_eq!(give(100), (true, Some(b"two".to_vec())));
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn names_change_here_as_on_the_server() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client().await);
    assert_eq!(a.names().await, Vec::<String>::new());
    for name in ["c", "a", "b", "d"] {
        a.make(name).await;
    }
    let (cache, user, root) = (&a.cache, &a.user, &a.root);
    let directory = cache
        .names()
        .make_dir(user, root, b"dir", 0o755)
        .await
        .expect("mkdir");
    cache
        .names()
        .remove_file(user, root, b"a")
        .await
        .expect("remove");
    cache
        .names()
        .rename(user, (root, b"b"), (root, b"c"))
        .await
        .expect("replace");
    cache
        .names()
        .rename(user, (root, b"d"), (&directory, b"d"))
        .await
        .expect("move");
    let file = a.find("c").await;
    cache
        .names()
        .link(user, root, b"second", &file)
        .await
        .expect("link");
    assert_eq!(
        cache
            .reads()
            .attributes(user, &file)
            .await
            .expect("status")
            .status
            .link_count,
        2
    );
    let other = cache.names().link(user, &directory, b"third", &file).await;
    assert_eq!(errno(&other.expect_err("another directory")), 18);
    cache
        .names()
        .symlink(user, root, b"link", b"c")
        .await
        .expect("symlink");
    let full = cache.names().remove_dir(user, root, b"dir").await;
    assert!(matches!(errno(&full.expect_err("not empty")), 17 | 39));
    assert_eq!(a.names().await, ["c", "dir", "link", "second"]);
    assert_eq!(b.names().await, a.names().await);
    let link = b.find("link").await;
    assert_eq!(
        b.cache
            .statuses()
            .link_text(&b.user, &link)
            .await
            .expect("text"),
        "c"
    );
    // A system name.
    a.make("bin.amd64_linux26").await;
    let by_sysname = b
        .cache
        .names()
        .lookup(&b.user, &b.root, b"bin.@sys")
        .await
        .expect("found");
    assert_eq!(
        by_sysname.vnode.fid(),
        b.find("bin.amd64_linux26").await.fid()
    );
    bench.end();
}

#[tokio::test]
async fn a_removed_file_lives_until_it_is_closed() {
    let bench = Bench::start();
    let (a, file) = bench.one_with_a_file(b"contents").await;
    let handle = a.open(&file, Rights::READ.union(Rights::WRITE)).await;
    a.cache
        .names()
        .remove_file(&a.user, &a.root, b"file")
        .await
        .expect("remove");
    let missing = a.cache.names().lookup(&a.user, &a.root, b"file").await;
    assert_eq!(errno(&missing.expect_err("removed")), 2);
    handle.write(8, b" and more").await.expect("write");
    assert_eq!(
        handle.read(0, 100).await.expect("read"),
        b"contents and more"
    );
    assert_eq!(a.names().await.len(), 1, "it has a name that nobody knows");
    handle.close().await;
    assert_eq!(a.names().await, Vec::<String>::new());
    bench.end();
}

#[tokio::test]
async fn large_files_pass_through_a_small_cache() {
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("directory");
    let a = bench
        .client_with(8 << 20, Some(directory.path().join("cache")))
        .await;
    let b = bench.client_with(8 << 20, None).await;
    let bytes: Vec<u8> = (0..30_000_000u32)
        .map(|i| (i / 7) as u8 ^ (i >> 16) as u8)
        .collect();
    let file = a.make("large").await;
    let handle = a.open(&file, Rights::WRITE).await;
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        handle
            .write((number as u64) << 20, part)
            .await
            .expect("write");
    }
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert!(a.cache.write_back().unstored().is_empty());
    let seen = b.find("large").await;
    assert!(b.get(&seen).await == bytes);
    assert!(a.get(&file).await == bytes);
    let cut = b.cut(&seen, 1_000_001).await.expect("cut");
    assert_eq!(cut.status.length, 1_000_001);
    assert!(a.get(&file).await == bytes[..1_000_001]);
    bench.end();
}

#[tokio::test]
async fn bytes_that_cannot_be_stored_stay_in_the_cache() {
    let bench = Bench::start();
    let a = bench.client().await;
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    handle.write(0, b"kept").await.expect("write");
    let refused = handle.store(false).await.expect_err("no right");
    assert_eq!(errno(&refused), 13);
    handle.close().await;
    let unstored = a.cache.write_back().unstored();
    assert_eq!(unstored.len(), 1);
    assert_eq!(unstored[0].1, Some(13));
    assert_eq!(a.get(&file).await, b"kept");
    bench.allow(Rights::ALL);
    a.cache
        .write_back()
        .store(&file, false)
        .await
        .expect("stored now");
    assert!(a.cache.write_back().unstored().is_empty());
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"kept");
    bench.end();
}

#[tokio::test]
async fn a_user_without_write_right_truncates_nothing() {
    let bench = Bench::start();
    let (_a, _file) = bench.one_with_a_file(b"kept").await;
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    let b = bench.client().await;
    let seen = b.find("file").await;
    // open(2) with O_RDONLY and O_TRUNC.
    let cut = b.cache.open(&b.user, &seen, Rights::READ, true).await;
    assert_eq!(errno(&cut.expect_err("no right")), 13);
    // truncate(2), while the file is open.
    let handle = b.open(&seen, Rights::READ).await;
    let cut = b.cut(&seen, 0).await;
    assert_eq!(errno(&cut.expect_err("no right")), 13);
    assert!(b.cache.write_back().unstored().is_empty());
    assert_eq!(handle.read(0, 10).await.expect("read"), b"kept");
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_file_that_others_cut_below_what_is_dirty_can_be_read() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(&[7; 100]).await;
    let handle = a.open(&file, Rights::READ.union(Rights::WRITE)).await;
    handle.write(90, b"0123456789").await.expect("write");
    b.cut(&seen, 50).await.expect("cut");
    let expected = [&[7; 50][..], &[0; 40], b"0123456789"].concat();
    assert_eq!(handle.read(0, 200).await.expect("read"), expected);
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert_eq!(b.get(&seen).await, expected);
    bench.end();
}

#[tokio::test]
async fn a_change_with_an_abandoned_answer_is_seen() {
    let bench = Bench::start();
    let a = bench.client().await;
    let root = bench.volume.root();
    for number in 0..20 {
        let name = format!("file{number}");
        a.names().await;
        let create = a
            .cache
            .names()
            .create_file(&a.user, &a.root, name.as_bytes(), 0o644);
        let there = async {
            while bench.volume.lookup(root, name.as_bytes()).is_err() {
                tokio::task::yield_now().await;
            }
        };
        // The caller is cancelled as soon as the server has created the file.
        tokio::select! {
            biased;
            () = there => {}
            made = create => drop(made.expect("made")),
        }
        assert!(a.names().await.contains(&name));
    }
    bench.end();
}

#[tokio::test]
async fn a_directory_s_new_list_counts_for_files_that_are_known() {
    let bench = Bench::start();
    let [(a, _), (b, seen)] = bench.two_with_a_file(b"secret").await;
    assert_eq!(b.get(&seen).await, b"secret");
    let list = b"1\n0\nsystem:anyuser 8\n\0".to_vec();
    let set = rxafs::StoreACL {
        fid: a.root.fid(),
        access_list: rxafs::AfsOpaque::new(list).expect("short"),
    };
    let volume = a.root.volume();
    let reply = a.user.client().call_volume(volume, &"list", &set).await;
    reply.expect("list");
    let open = b
        .cache
        .open(&b.user, &seen, Rights::READ, false)
        .await
        .map(|_| ());
    assert_eq!(errno(&open.expect_err("no right")), 13);
    bench.end();
}

#[tokio::test]
async fn a_name_that_leads_to_another_file_by_now_is_found() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client().await);
    a.make("name").await;
    let new = a.make("new").await;
    assert_eq!(b.names().await, ["name", "new"]);
    // No client receives a break, as if the breaks were still under way.
    bench.rename("new", "name");
    assert_eq!(b.find("name").await.fid(), new.fid());
    bench.end();
}

#[tokio::test]
async fn a_file_read_backwards_stays_within_the_cache() {
    let bench = Bench::start();
    let (a, b) = (bench.client().await, bench.client_with(8 << 20, None).await);
    let bytes: Vec<u8> = (0..20_000_000u32).map(|i| (i >> 8) as u8).collect();
    let file = a.make("large").await;
    a.put(&file, &bytes).await.expect("stored");
    let seen = b.find("large").await;
    let handle = b.open(&seen, Rights::READ).await;
    for start in (0..bytes.len()).step_by(500_000).rev() {
        let read = handle.read(start as u64, 500_000).await.expect("read");
        assert!(read == bytes[start..start + 500_000], "at {start}");
        // The bytes of the last fetch may exceed the limit of the cache.
        let used = b.cache.management().used();
        assert!(used <= 12 << 20, "{used} bytes are kept at {start}");
    }
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn programs_with_an_open_file_get_a_notice_when_its_promise_ends() {
    let bench = Bench::start();
    let a = bench.client().await;
    let notices = Arc::new(NoticeCounter::default());
    a.cache.watch(notices.clone());
    let (open, closed) = (a.make("open").await, a.make("closed").await);
    // The statuses are fetched again, because the server's first call to a new client ends its
    // promises so far.
    for name in ["open", "closed"] {
        a.find(name).await;
    }
    let handle = a.cache.opened(&a.user, &open);
    let count = || notices.0.load(Ordering::SeqCst);
    let before = count();
    let now = tokio::time::Instant::now();
    a.cache.promises().end_expired(now);
    assert_eq!(count(), before);
    // Attributes that the kernel may keep: without any there would be no notice.
    for file in [&open, &closed] {
        assert!(!file.attributes().expect("known").valid.is_zero());
    }
    let later = now + Duration::from_secs(1_000_000);
    a.cache.promises().end_expired(later);
    a.cache.promises().end_expired(later);
    assert_eq!(count(), before + 1, "once, and of the open file only");
    assert!(open.attributes().expect("known").valid.is_zero());
    assert!(!closed.attributes().expect("known").valid.is_zero());
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_cache_directory_outlives_its_process() {
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("a directory");
    let disk = || Some(directory.path().to_owned());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let first = bench.client_with(64 << 20, disk()).await;
    for name in ["read", "written", "changed"] {
        first
            .put(&first.make(name).await, &bytes)
            .await
            .expect("stored");
    }
    let read = first.find("read").await;
    assert_eq!(first.get(&read).await, bytes);
    drop((first, read));
    let other = bench.client().await;
    let changed = other.find("changed").await;
    other
        .put(&changed, b"by somebody else")
        .await
        .expect("stored");
    let second = bench.client_with(64 << 20, disk()).await;
    let mut files = Vec::new();
    for name in ["read", "written", "changed"] {
        files.push(second.find(name).await);
    }
    assert_eq!(second.get(&files[2]).await, b"by somebody else");
    // The fetched files are under a promise, so the server is not called again.
    bench.silence();
    assert!(second.get(&files[0]).await == bytes);
    assert!(second.get(&files[1]).await == bytes);
    bench.end();
}

#[tokio::test]
async fn dirty_bytes_from_before_a_crash_are_stored_after_it() {
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("a directory");
    let disk = || Some(directory.path().to_owned());
    let first = bench.client_with(64 << 20, disk()).await;
    let names = ["kept", "changed", "gone"];
    for name in names {
        let file = first.make(name).await;
        first.put(&file, b"what was there").await.expect("stored");
        let handle = first.open(&file, Rights::WRITE).await;
        handle.write(9, b"is here!").await.expect("write");
        // The handle ends without a close, as that of a program whose mount was killed.
    }
    drop(first);
    let (unstored, _) = cellar_cachemanager::unstored_in(directory.path()).expect("a cache");
    assert_eq!(unstored.len(), names.len());
    let other = bench.client().await;
    let changed = other.find("changed").await;
    other
        .put(&changed, b"by somebody else")
        .await
        .expect("stored");
    let removed = other
        .cache
        .names()
        .remove_file(&other.user, &other.root, b"gone")
        .await;
    removed.expect("removed");
    let second = bench.client_with(64 << 20, disk()).await;
    second.cache.write_back().recover().await;
    let kept = other.find("kept").await;
    assert_eq!(other.get(&kept).await, b"what was is here!");
    assert_eq!(
        second.get(&second.find("kept").await).await,
        b"what was is here!"
    );
    assert_eq!(
        second.get(&second.find("changed").await).await,
        b"by somebody else"
    );
    let (unstored, aside) = cellar_cachemanager::unstored_in(directory.path()).expect("a cache");
    assert_eq!((unstored.len(), aside.len()), (0, 2));
    for about in aside {
        let bytes = std::fs::read(about.with_extension("")).expect("bytes");
        assert_eq!(&bytes[9..], b"is here!", "{}", about.display());
    }
    bench.end();
}

#[tokio::test]
async fn dirty_bytes_are_stored_as_their_writer() {
    const USER: u32 = 1_000;
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("a directory");
    let disk = || Some(directory.path().to_owned());
    let writers = || {
        let (unstored, _) = cellar_cachemanager::unstored_in(directory.path()).expect("a cache");
        unstored.iter().map(|one| one.writer).collect::<Vec<_>>()
    };
    let tokens = || Tokens(Some(USER));
    let first = bench.client_of(tokens(), USER, 64 << 20, disk()).await;
    let file = first.make("file").await;
    first.put(&file, b"what was there").await.expect("stored");
    let handle = first.open(&file, Rights::WRITE).await;
    handle.write(9, b"is here!").await.expect("write");
    drop((first, file, handle));
    assert_eq!(writers(), [USER]);
    // As long as the user has no tokens, no other user's tokens are used for the store.
    let second = bench.client_with(64 << 20, disk()).await;
    second.cache.write_back().recover().await;
    assert_eq!(writers(), [USER]);
    drop(second);
    let third = bench.client_of(tokens(), 0, 64 << 20, disk()).await;
    third.cache.write_back().recover().await;
    assert_eq!(writers(), [0; 0]);
    let other = bench.client().await;
    assert_eq!(
        other.get(&other.find("file").await).await,
        b"what was is here!"
    );
    bench.end();
}
