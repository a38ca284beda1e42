//! Locks of two cache managers on one file server in this process.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::bench::{Bench, Client, NOW};
use cellar_client::cache::{Lock, LockKind, Vnode};
use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::ids::AfsTime;

fn lock(owner: u64, kind: LockKind) -> Lock {
    Lock {
        owner,
        pid: 1,
        first: 0,
        last: i64::MAX as u64,
        kind,
    }
}

impl Client {
    /// What a program that asks for a lock is told: 0 or an errno.
    async fn lock(&self, vnode: &Arc<Vnode>, owner: u64, kind: LockKind) -> i32 {
        let set = self.cache.set_lock(&self.user, vnode, lock(owner, kind));
        set.await.map_or_else(|error| errno(&error), |()| 0)
    }

    async fn unlock(&self, vnode: &Arc<Vnode>, owner: u64) {
        self.cache.unlock(vnode, owner, 0, u64::MAX).await;
    }
}

#[tokio::test]
async fn locks_keep_programs_of_two_machines_apart() {
    use LockKind::{Read, Write};
    const EAGAIN: i32 = 11;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    assert_eq!(a.lock(&file, 2, Read).await, EAGAIN, "on the same machine");
    assert_eq!(b.lock(&seen, 1, Read).await, EAGAIN, "on another");
    let test = b.cache.test_lock(&b.user, &seen, lock(1, Read)).await;
    assert_eq!(test.expect("asked").expect("in the way").kind, Write);
    a.unlock(&file, 1).await;
    let test = b.cache.test_lock(&b.user, &seen, lock(1, Write)).await;
    assert_eq!(test.expect("asked"), None);
    // Readers share; neither of them gets more, and neither loses what he has.
    assert_eq!(a.lock(&file, 1, Read).await, 0);
    assert_eq!(a.lock(&file, 2, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Write).await, EAGAIN);
    for (kind, found) in [(Read, None), (Write, Some(Read))] {
        let test = b.cache.test_lock(&b.user, &seen, lock(1, kind)).await;
        assert_eq!(test.expect("asked").map(|lock| lock.kind), found);
    }
    a.unlock(&file, 1).await;
    assert_eq!(b.lock(&seen, 1, Write).await, EAGAIN, "one is left");
    a.unlock(&file, 2).await;
    assert_eq!(
        a.lock(&file, 1, Write).await,
        EAGAIN,
        "the other is left, too"
    );
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    // Who waits has it when it is given back, with what was written under it.
    let handle = b.open(&seen, Rights::WRITE).await;
    handle.write(0, b"under the lock").await.expect("write");
    let reading = a.open(&file, Rights::READ).await;
    let wait = a
        .cache
        .wait_for_lock(&a.user, &file, lock(1, Read), || false);
    let (waited, ()) = tokio::join!(wait, b.unlock(&seen, 1));
    waited.expect("locked");
    let read = reading.read(0, 100).await.expect("read");
    assert_eq!(read, b"under the lock");
    let wait = b
        .cache
        .wait_for_lock(&b.user, &seen, lock(1, Write), || true);
    assert_eq!(errno(&wait.await.expect_err("gave up")), 4);
    // The last close gives back what is left.
    reading.close().await;
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    b.unlock(&seen, 1).await;
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn locks_last_as_long_as_they_are_extended() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    for _ in 0..3 {
        bench.later(200);
        a.cache.extend_locks(NOW).await;
        assert_eq!(b.lock(&seen, 1, Write).await, 11);
    }
    // The server forgot it, as when it is started again: it is set again.
    bench.later(400);
    a.cache.extend_locks(NOW).await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    // Somebody else was faster: it is lost, and what he has stays.
    bench.later(400);
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    let slept = AfsTime(NOW.0 + 400);
    a.cache.extend_locks(slept).await;
    a.unlock(&file, 1).await;
    assert_eq!(a.lock(&file, 2, Write).await, 11);
    b.unlock(&seen, 1).await;
    // One that was lost is set again when the other's is gone.
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    bench.later(400);
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    a.cache.extend_locks(slept).await;
    b.unlock(&seen, 1).await;
    a.cache.extend_locks(slept).await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    bench.end();
}

#[tokio::test]
async fn who_opens_a_file_while_it_is_closed_keeps_his_lock() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"to be stored").await.expect("write");
    let mut closing = Box::pin(handle.close());
    // It waits for the server until it is polled again.
    let begun = poll_fn(|context| Poll::Ready(closing.as_mut().poll(context).is_pending()));
    assert!(begun.await);
    let again = a.open(&file, Rights::WRITE).await;
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    closing.await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    again.close().await;
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    bench.end();
}
