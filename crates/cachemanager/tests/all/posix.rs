//! Errors and results that POSIX demands: names that cannot be, links and times of files.

use std::sync::Arc;

use crate::bench::{Bench, Client, NOW};
use cellar_cachemanager::Vnode;
use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::AfsFetchStatus;

fn shown_status(vnode: &Vnode) -> AfsFetchStatus {
    vnode.attributes().expect("known").status
}

impl Client {
    /// stat(2).
    async fn stat(&self, vnode: &std::sync::Arc<Vnode>) -> AfsFetchStatus {
        let attributes = self.cache.reads().attributes(&self.user, vnode).await;
        attributes.expect("attributes").status
    }
}

#[tokio::test]
async fn a_name_that_is_too_long_is_called_so() {
    let bench = Bench::start();
    let a = bench.client().await;
    for (bytes, expected) in [(255, 2), (256, 36), (1_000, 36)] {
        let found = a
            .cache
            .names()
            .lookup(&a.user, &a.root, &vec![b'n'; bytes])
            .await;
        assert_eq!(errno(&found.expect_err("not there")), expected, "{bytes}");
    }
    bench.end();
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_open_has_no_names() {
    let bench = Bench::start();
    let a = bench.client().await;
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::READ).await;
    assert_eq!(a.stat(&file).await.link_count, 1);
    let removed = a.cache.names().remove_file(&a.user, &a.root, b"file").await;
    removed.expect("removed");
    assert_eq!(a.stat(&file).await.link_count, 0);
    assert_eq!(shown_status(&file).link_count, 0);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_directory_that_is_removed_while_it_is_open_has_no_links() {
    let bench = Bench::start();
    let a = bench.client().await;
    let make = async |name: &[u8]| {
        let made = a
            .cache
            .names()
            .make_dir(&a.user, &a.root, name, 0o755)
            .await;
        made.expect("made")
    };
    let (removed, old, replaced) = (make(b"a").await, make(b"b").await, make(b"c").await);
    a.stat(&removed).await;
    let gone = a.cache.names().remove_dir(&a.user, &a.root, b"a").await;
    gone.expect("removed");
    let (from, to) = ((&a.root, &b"b"[..]), (&a.root, &b"c"[..]));
    a.cache
        .names()
        .rename(&a.user, from, to)
        .await
        .expect("renamed");
    for directory in [&removed, &replaced] {
        for _ in 0..2 {
            assert_eq!(a.stat(directory).await.link_count, 0);
        }
        let made = a
            .cache
            .names()
            .make_dir(&a.user, directory, b"in", 0o755)
            .await;
        assert_eq!(errno(&made.expect_err("it is gone")), 2);
    }
    assert_eq!(a.stat(&old).await.link_count, 2);
    // Another machine removes one: nothing is made up for it.
    let b = bench.client().await;
    let gone = b.cache.names().remove_dir(&b.user, &b.root, b"c").await;
    gone.expect("removed");
    a.cache.statuses().distrust(old.fid().volume);
    let stat = a.cache.reads().attributes(&a.user, &old).await;
    assert_eq!(errno(&stat.expect_err("gone")), 2);
    bench.end();
}

#[tokio::test]
async fn a_name_that_goes_changes_the_file_s_time() {
    let bench = Bench::start();
    let a = bench.client().await;
    let (first, second) = (a.make("first").await, a.make("second").await);
    for (name, file) in [(b"another 1", &first), (b"another 2", &second)] {
        let linked = a.cache.names().link(&a.user, &a.root, name, file).await;
        linked.expect("linked");
    }
    let before = a.stat(&first).await.server_mod_time;
    bench.later(10);
    let removed = a
        .cache
        .names()
        .remove_file(&a.user, &a.root, b"first")
        .await;
    removed.expect("removed");
    let status = a.stat(&first).await;
    assert_eq!(status.link_count, 1);
    assert_eq!(status.server_mod_time.0, before.0 + 10);
    // Replaced by another.
    a.make("new").await;
    bench.later(10);
    let (from, to) = ((&a.root, &b"new"[..]), (&a.root, &b"second"[..]));
    a.cache
        .names()
        .rename(&a.user, from, to)
        .await
        .expect("renamed");
    let status = a.stat(&second).await;
    assert_eq!(status.link_count, 1);
    assert_eq!(status.server_mod_time.0, before.0 + 20);
    // And it is what the server says.
    let b = bench.client().await;
    let seen = b.find("another 2").await;
    assert_eq!(b.stat(&seen).await.server_mod_time, status.server_mod_time);
    bench.end();
}

#[tokio::test]
async fn dirty_bytes_count_as_a_change() {
    let bench = Bench::start();
    bench.set_clock(u64::from(NOW.0) - 100);
    let a = bench.client().await;
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    assert_eq!(a.stat(&file).await.server_mod_time.0, NOW.0 - 100);
    a.cut(&file, 10).await.expect("longer");
    let status = a.stat(&file).await;
    assert_eq!((status.length, status.server_mod_time), (10, NOW));
    // The server knows better when it knows.
    handle.store(false).await.expect("stored");
    assert_eq!(a.stat(&file).await.server_mod_time.0, NOW.0 - 100);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn appended_bytes_follow_the_bytes_of_another_client() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"0 ").await;
    let one = a.open(&file, Rights::WRITE).await;
    let other = b.open(&seen, Rights::WRITE).await;
    assert_eq!(one.append(b"one ").await.expect("appended"), 2);
    one.store(false).await.expect("stored");
    assert_eq!(other.append(b"other ").await.expect("appended"), 6);
    // Also what is not stored yet.
    assert_eq!(other.append(b"again ").await.expect("appended"), 12);
    other.store(true).await.expect("stored");
    assert_eq!(one.append(b"last").await.expect("appended"), 18);
    one.close().await;
    other.close().await;
    assert_eq!(b.contents("file").await, b"0 one other again last");
    bench.end();
}

/// A file that a program has open is given another name before something replaces it: a refusal
/// must not cost it its own.
#[tokio::test]
async fn a_rename_that_is_refused_leaves_an_open_file_where_it_was() {
    let bench = Bench::start();
    let (a, moved) = bench.one_with_a_file(b"new").await;
    let made = a
        .cache
        .names()
        .make_dir(&a.user, &a.root, b"sub", 0o755)
        .await;
    let sub = made.expect("directory");
    let made = a
        .cache
        .names()
        .create_file(&a.user, &sub, b"target", 0o644)
        .await;
    let target = made.expect("target");
    a.put(&target, b"old").await.expect("stored");
    let handle = a.open(&target, Rights::READ).await;
    // The list of the root is another than that of what is in it.
    bench.allow(Rights::ALL.difference(Rights::DELETE));
    let to = (&sub, b"target".as_slice());
    let renamed = a
        .cache
        .names()
        .rename(&a.user, (&a.root, b"file"), to)
        .await;
    assert_eq!(errno(&renamed.expect_err("no right")), 13);
    handle.close().await;
    for client in [&a, &bench.client().await] {
        let names = |directory: Arc<Vnode>| async move {
            let listing = client
                .cache
                .statuses()
                .listing(&client.user, &directory)
                .await;
            let listing = listing.expect("names");
            listing.keys().cloned().collect::<Vec<_>>()
        };
        let seen = client.find("sub").await;
        assert_eq!(names(seen.clone()).await, [&b"target"[..]]);
        let found = client
            .cache
            .names()
            .lookup(&client.user, &seen, b"target")
            .await;
        assert_eq!(client.get(&found.expect("target").vnode).await, b"old");
        assert_eq!(client.contents("file").await, b"new");
    }
    // The same, where it is allowed: what was replaced goes when it is closed.
    bench.allow(Rights::ALL);
    let handle = a.open(&target, Rights::READ).await;
    let to = (&sub, b"target".as_slice());
    let renamed = a
        .cache
        .names()
        .rename(&a.user, (&a.root, b"file"), to)
        .await;
    renamed.expect("renamed");
    assert_eq!(handle.read(0, 10).await.expect("read"), b"old");
    let listing = a
        .cache
        .statuses()
        .listing(&a.user, &sub)
        .await
        .expect("names");
    assert_eq!(listing.len(), 2, "it has a name that nobody knows");
    handle.close().await;
    let listing = a
        .cache
        .statuses()
        .listing(&a.user, &sub)
        .await
        .expect("names");
    assert_eq!(listing.len(), 1);
    assert_eq!(a.get(&moved).await, b"new");
    bench.end();
}
