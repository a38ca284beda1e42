//! Names of a directory that another machine changes: which of them the kernel is told.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_cachemanager::{Before, NewAttributes, Notice, Vnode, Watcher};
use cellar_wire::rxafs::FetchData64;
use parking_lot::Mutex;

use crate::bench::{Bench, Client};

/// Keeps the last notice about a directory.
#[derive(Default)]
struct Last(Mutex<Option<Notice>>);

impl Last {
    fn take(&self) -> Notice {
        self.0.lock().take().expect("a notice")
    }

    fn names(&self) -> Before {
        match self.take() {
            Notice::Names(before) => before,
            other => panic!("all names: {other:?}"),
        }
    }
}

impl Watcher for Last {
    fn changed(&self, vnode: &Arc<Vnode>, notice: Notice) {
        if vnode.is_directory() {
            *self.0.lock() = Some(notice);
        }
    }

    fn has_notices(&self, _vnode: &Vnode) -> bool {
        false
    }

    fn notified<'a>(&'a self, _vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }

    fn all_delivered(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// Two clients; the kernel of the second holds names of the root.
async fn two(bench: &Bench) -> (Client, Client, Arc<Last>) {
    let (a, b) = (bench.client().await, bench.client().await);
    let last = Arc::new(Last::default());
    b.cache.watch(last.clone());
    a.make("old").await;
    hold(&b).await;
    (a, b, last)
}

async fn hold(client: &Client) {
    client.find("old").await;
    client.root.attributes_with_names().expect("known");
}

#[tokio::test]
async fn only_names_that_changed_are_told() {
    let bench = Bench::start();
    let (a, b, last) = two(&bench).await;
    a.make("new").await;
    let changed = b.cache.names().changed_names(&last.names()).await;
    assert_eq!(changed.expect("compared"), ["new"]);
    assert!(
        !b.root.attributes().expect("known").valid.is_zero(),
        "promised again"
    );
    // The kernel holds the other names still: they are told of the next change, all of them so
    // soon.
    a.make("newer").await;
    assert!(matches!(last.take(), Notice::Contents));
    // Nothing is held since, and nothing is owed.
    a.make("newest").await;
    assert!(last.0.lock().is_none());
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    hold(&b).await;
    a.cache
        .names()
        .remove_file(&a.user, &a.root, b"new")
        .await
        .expect("removed");
    let changed = b.cache.names().changed_names(&last.names()).await;
    assert_eq!(changed.expect("compared"), ["new"]);
    bench.end();
}

#[tokio::test]
async fn a_change_of_access_has_all_names_told() {
    let bench = Bench::start();
    let (a, b, last) = two(&bench).await;
    let wanted = NewAttributes {
        mode: Some(0o700),
        ..NewAttributes::default()
    };
    let (cache, user) = (&a.cache, &a.user);
    let changed = cache.set_attributes(user, &a.root, wanted, false).await;
    changed.expect("changed");
    assert!(b.cache.names().changed_names(&last.names()).await.is_none());
    bench.end();
}

#[tokio::test]
async fn another_break_before_the_end_has_all_names_told() {
    let bench = Bench::start();
    let (a, b, last) = two(&bench).await;
    a.make("new").await;
    let before = last.names();
    hold(&b).await;
    a.make("newer").await;
    assert!(matches!(last.take(), Notice::Contents));
    assert!(b.cache.names().changed_names(&before).await.is_none());
    bench.end();
}

#[tokio::test]
async fn a_slow_server_is_waited_for_once() {
    let bench = Bench::start();
    let (a, b, last) = two(&bench).await;
    let held = bench.hold::<FetchData64>();
    a.make("new").await;
    assert!(b.cache.names().changed_names(&last.names()).await.is_none());
    drop(held);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    hold(&b).await;
    a.make("newer").await;
    assert!(
        b.cache.names().changed_names(&last.names()).await.is_none(),
        "not asked again"
    );
    bench.end();
}
