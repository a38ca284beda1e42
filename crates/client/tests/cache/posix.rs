//! What programs are told that POSIX asks for: names that cannot be, links and times of files.

use crate::bench::{Bench, Client, NOW};
use cellar_client::cache::Vnode;
use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::AfsFetchStatus;

fn told(vnode: &Vnode) -> AfsFetchStatus {
    vnode.attributes().expect("known").status
}

impl Client {
    /// stat(2).
    async fn stat(&self, vnode: &std::sync::Arc<Vnode>) -> AfsFetchStatus {
        let attributes = self.cache.attributes(&self.user, vnode).await;
        attributes.expect("attributes").status
    }
}

#[tokio::test]
async fn a_name_that_is_too_long_is_called_so() {
    let bench = Bench::start();
    let a = bench.client().await;
    for (bytes, expected) in [(255, 2), (256, 36), (1_000, 36)] {
        let found = a.cache.lookup(&a.user, &a.root, &vec![b'n'; bytes]).await;
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
    let removed = a.cache.remove_file(&a.user, &a.root, b"file").await;
    removed.expect("removed");
    assert_eq!(a.stat(&file).await.link_count, 0);
    assert_eq!(told(&file).link_count, 0);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_name_that_goes_changes_the_file_s_time() {
    let bench = Bench::start();
    let a = bench.client().await;
    let (first, second) = (a.make("first").await, a.make("second").await);
    for (name, file) in [(b"another 1", &first), (b"another 2", &second)] {
        let linked = a.cache.link(&a.user, &a.root, name, file).await;
        linked.expect("linked");
    }
    let before = a.stat(&first).await.server_mod_time;
    bench.later(10);
    let removed = a.cache.remove_file(&a.user, &a.root, b"first").await;
    removed.expect("removed");
    let status = a.stat(&first).await;
    assert_eq!(status.link_count, 1);
    assert_eq!(status.server_mod_time.0, before.0 + 10);
    // Replaced by another.
    a.make("new").await;
    bench.later(10);
    let (from, to) = ((&a.root, &b"new"[..]), (&a.root, &b"second"[..]));
    a.cache.rename(&a.user, from, to).await.expect("renamed");
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
async fn what_is_not_stored_yet_has_changed_already() {
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
async fn what_is_appended_follows_what_another_client_stored() {
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
