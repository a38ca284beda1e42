//! The length of a file that another machine made longer: when the kernel gets it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cellar_cachemanager::{Notice, Vnode, Watcher};
use cellar_until::until;
use cellar_wire::acl::Rights;
use tokio::sync::watch;

use crate::bench::Bench;

/// The changes after which the cache asks no server by itself (`UNASKED_MAX`).
const CHANGES: usize = 8;

/// A kernel whose notices about lengths wait while it is closed, as for a page that a read holds.
struct Gate {
    lengths: AtomicUsize,
    is_open: watch::Sender<bool>,
}

impl Gate {
    fn lengths(&self) -> usize {
        self.lengths.load(Ordering::SeqCst)
    }
}

impl Watcher for Gate {
    fn changed(&self, _vnode: &Arc<Vnode>, notice: Notice) {
        if matches!(notice, Notice::Length(_)) {
            self.lengths.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn has_notices(&self, _vnode: &Vnode) -> bool {
        !*self.is_open.borrow()
    }

    fn notified<'a>(&'a self, _vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let mut is_open = self.is_open.subscribe();
        Box::pin(async move {
            is_open.wait_for(|is_open| *is_open).await.expect("a gate");
        })
    }

    fn all_delivered(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// splice(2) uses the length that the kernel has after the read.
#[tokio::test]
async fn a_read_sends_the_length_of_a_file_that_grew_once() {
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"1").await;
    let gate = Arc::new(Gate {
        lengths: AtomicUsize::new(0),
        is_open: watch::Sender::new(true),
    });
    b.cache.watch(gate.clone());
    let handle = b.open(&seen, Rights::READ).await;
    assert_eq!(handle.read(0, 100).await.expect("read"), b"1");
    seen.attributes().expect("known");
    for length in 2..=1 + CHANGES {
        a.put(&file, &vec![b'x'; length]).await.expect("stored");
    }
    until("the lengths are sent", async || gate.lengths() == CHANGES).await;
    // No request is made by itself any more, so the read finds the new length.
    gate.is_open.send_replace(false);
    a.put(&file, b"much longer").await.expect("stored");
    assert_eq!(gate.lengths(), CHANGES);
    // The read does not wait for a notice that waits for the read.
    let read = tokio::time::timeout(Duration::from_secs(30), handle.read(0, 100)).await;
    assert_eq!(read.expect("in time").expect("read"), b"much longer");
    assert_eq!(gate.lengths(), CHANGES + 1, "sent before the answer");
    // The notice takes effect after the answer, and further reads send none. The task that waits
    // for it runs on this thread.
    gate.is_open.send_replace(true);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    handle.read(0, 100).await.expect("read");
    assert_eq!(gate.lengths(), CHANGES + 1);
    handle.close().await;
    bench.end();
}
