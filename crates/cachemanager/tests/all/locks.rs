//! Locks of two cache managers on one file server in this process.

use std::future::{pending, poll_fn, ready};
use std::sync::Arc;
use std::task::Poll;

use crate::bench::{Bench, Client, NOW, held};
use cellar_cachemanager::{Lock, LockKind, LockOwner, Vnode};
use cellar_client::errno;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{HoldRanges, StoreData64};

fn lock(owner: u64, kind: LockKind) -> Lock {
    Lock {
        owner: LockOwner::record(owner),
        open_file: owner,
        pid: 1,
        first: 0,
        last: i64::MAX as u64,
        kind,
    }
}

impl Client {
    /// Sets a lock. Returns 0 or an errno.
    async fn lock(&self, vnode: &Arc<Vnode>, owner: u64, kind: LockKind) -> i32 {
        let set = self
            .cache
            .locks()
            .set_lock(&self.user, vnode, lock(owner, kind));
        set.await.map_or_else(|error| errno(&error), |()| 0)
    }

    async fn unlock(&self, vnode: &Arc<Vnode>, owner: u64) {
        let owner = LockOwner::record(owner);
        self.cache.locks().unlock(vnode, owner, 0, u64::MAX).await;
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
    let test = b
        .cache
        .locks()
        .test_lock(&b.user, &seen, lock(1, Read))
        .await;
    assert_eq!(test.expect("asked").expect("in the way").kind, Write);
    a.unlock(&file, 1).await;
    let test = b
        .cache
        .locks()
        .test_lock(&b.user, &seen, lock(1, Write))
        .await;
    assert_eq!(test.expect("asked"), None);
    // Readers share; neither of them gets more, and neither loses what he has.
    assert_eq!(a.lock(&file, 1, Read).await, 0);
    assert_eq!(a.lock(&file, 2, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Write).await, EAGAIN);
    for (kind, found) in [(Read, None), (Write, Some(Read))] {
        let test = b
            .cache
            .locks()
            .test_lock(&b.user, &seen, lock(1, kind))
            .await;
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
    // A waiting program gets the lock at its release, and sees the bytes written under it.
    let handle = b.open(&seen, Rights::WRITE).await;
    handle.write(0, b"under the lock").await.expect("write");
    let reading = a.open(&file, Rights::READ).await;
    let wait = a
        .cache
        .locks()
        .wait_for_lock(&a.user, &file, lock(1, Read), pending());
    let (waited, ()) = tokio::join!(wait, b.unlock(&seen, 1));
    waited.expect("locked");
    let read = reading.read(0, 100).await.expect("read");
    assert_eq!(read, b"under the lock");
    let wait = b
        .cache
        .locks()
        .wait_for_lock(&b.user, &seen, lock(1, Write), ready(()));
    assert_eq!(errno(&wait.await.expect_err("gave up")), 4);
    // The last close gives back what is left.
    reading.close().await;
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    b.unlock(&seen, 1).await;
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_program_that_locks_by_flock_and_fcntl_has_both() {
    use LockKind::{Read, Write};
    let bench = Bench::start();
    // A server that knows ranges, and one that has one lock for a file and client.
    for knows_ranges in [true, false] {
        if !knows_ranges {
            bench.refuse::<HoldRanges>(AbortCode::RXGEN_OPCODE, 2);
        }
        let name = if knows_ranges { "one" } else { "other" };
        let (a, b) = (bench.client().await, bench.client().await);
        let (file, seen) = (a.make(name).await, b.find(name).await);
        let flock = |number, kind| Lock {
            owner: LockOwner::flock(number),
            ..lock(number, kind)
        };
        assert_eq!(a.range(&file, flock(1, Read)).await, 0);
        assert_eq!(b.lock(&seen, 9, Read).await, 0);
        b.unlock(&seen, 9).await;
        assert_eq!(a.range(&file, lock(1, Write)).await, 0);
        assert_eq!(a.range(&file, flock(2, Read)).await, 0);
        assert_eq!(a.range(&file, lock(2, Read)).await, 11);
        // The strongest of both is kept on the server, until it is given back.
        assert_eq!(b.lock(&seen, 9, Read).await, 11);
        // Neither of two readers waits for the other for ever: who is refused has nothing left.
        assert_eq!(a.range(&file, flock(1, Write)).await, 11);
        assert_eq!(a.range(&file, flock(2, Write)).await, 0);
        a.unlock(&file, 1).await;
        assert_eq!(b.lock(&seen, 9, Read).await, 11);
        // The open file goes, and the lock with it.
        a.cache.locks().unlock_open_file(&file, 1).await;
        assert_eq!(b.lock(&seen, 9, Read).await, 11);
        a.cache.locks().unlock_open_file(&file, 2).await;
        assert_eq!(b.lock(&seen, 9, Read).await, 0);
    }
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
        a.cache.locks().extend_locks(NOW).await;
        assert_eq!(b.lock(&seen, 1, Write).await, 11);
    }
    // The server forgot it, as when it is started again: it is set again.
    bench.later(400);
    a.cache.locks().extend_locks(NOW).await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    // Another client was faster: our lock is lost, and the other one stays.
    bench.later(400);
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    let slept = AfsTime(NOW.0 + 400);
    a.cache.locks().extend_locks(slept).await;
    a.unlock(&file, 1).await;
    assert_eq!(a.lock(&file, 2, Write).await, 11);
    b.unlock(&seen, 1).await;
    // One that was lost is set again when the other's is gone.
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    bench.later(400);
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    a.cache.locks().extend_locks(slept).await;
    b.unlock(&seen, 1).await;
    a.cache.locks().extend_locks(slept).await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    bench.end();
}

#[tokio::test]
async fn an_open_during_a_close_keeps_its_lock() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"to be stored").await.expect("write");
    // It waits for the server, which does not answer yet.
    let stores = bench.hold::<StoreData64>();
    let mut closing = Box::pin(handle.close());
    let begun = poll_fn(|context| Poll::Ready(closing.as_mut().poll(context).is_pending()));
    assert!(begun.await);
    let again = a.open(&file, Rights::WRITE).await;
    assert_eq!(a.lock(&file, 1, Write).await, 0);
    drop(stores);
    closing.await;
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    again.close().await;
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    bench.end();
}

fn range(owner: u64, first: u64, last: u64, kind: LockKind) -> Lock {
    Lock {
        first,
        last,
        ..lock(owner, kind)
    }
}

impl Client {
    /// Sets a lock on a range. Returns 0 or an errno.
    async fn range(&self, vnode: &Arc<Vnode>, lock: Lock) -> i32 {
        let set = self.cache.locks().set_lock(&self.user, vnode, lock);
        set.await.map_or_else(|error| errno(&error), |()| 0)
    }

    /// Tests for a lock that conflicts.
    async fn test(&self, vnode: &Arc<Vnode>, lock: Lock) -> Option<(u64, u64, LockKind)> {
        let found = self.cache.locks().test_lock(&self.user, vnode, lock).await;
        let found = found.expect("asked")?;
        Some((found.first, found.last, found.kind))
    }
}

#[tokio::test]
async fn ranges_keep_programs_of_two_machines_apart() {
    use LockKind::{Read, Write};
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    assert_eq!(a.range(&file, range(1, 0, 99, Write)).await, 0);
    assert_eq!(b.range(&seen, range(1, 100, 199, Write)).await, 0, "beside");
    assert_eq!(b.range(&seen, range(2, 99, 99, Read)).await, 11, "over");
    assert_eq!(a.range(&file, range(1, 0, 100, Write)).await, 11);
    let found = b.test(&seen, range(2, 50, 300, Read)).await;
    assert_eq!(found, Some((100, 199, Write)), "on the same machine first");
    let found = b.test(&seen, range(1, 50, 300, Read)).await;
    assert_eq!(found, Some((0, 99, Write)));
    // A refused lock leaves nothing behind.
    assert_eq!(a.range(&file, range(2, 500, 600, Read)).await, 0);
    assert_eq!(b.range(&seen, range(1, 150, 550, Write)).await, 11);
    assert_eq!(a.test(&file, range(1, 300, 400, Write)).await, None);
    // A part is given back, and a part becomes shared.
    let one = LockOwner::record(1);
    a.cache.locks().unlock(&file, one, 0, 49).await;
    assert_eq!(a.range(&file, range(1, 50, 59, Read)).await, 0);
    assert_eq!(b.range(&seen, range(3, 0, 49, Write)).await, 0);
    assert_eq!(b.range(&seen, range(3, 50, 59, Read)).await, 0);
    assert_eq!(b.range(&seen, range(3, 60, 60, Read)).await, 11);
    assert_eq!(a.range(&file, range(1, 55, 55, Write)).await, 11);
    // A waiting program gets it.
    let (user, wanted) = (&b.user, range(4, 60, 99, Write));
    let wait = b
        .cache
        .locks()
        .wait_for_lock(user, &seen, wanted, pending());
    let (waited, ()) = tokio::join!(wait, a.cache.locks().unlock(&file, one, 0, 99));
    waited.expect("locked");
    a.unlock(&file, 2).await;
    for owner in 1..5 {
        b.unlock(&seen, owner).await;
    }
    assert_eq!(a.lock(&file, 1, Write).await, 0, "all of it is free");
    bench.end();
}

#[tokio::test]
async fn writes_of_two_machines_into_their_ranges_all_survive() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"0123456789").await;
    let open = Rights::READ.union(Rights::WRITE);
    let (of_a, of_b) = (a.open(&file, open).await, b.open(&seen, open).await);
    assert_eq!(a.range(&file, range(1, 0, 9, Write)).await, 0);
    assert_eq!(b.range(&seen, range(1, 10, 29, Write)).await, 0);
    of_a.write(2, b"AA").await.expect("write");
    of_b.write(20, b"BBBBBBBBBB").await.expect("write");
    b.unlock(&seen, 1).await;
    // Bytes that are not stored here yet truncate nothing of it, even before the break arrives.
    a.unlock(&file, 1).await;
    let expected = b"01AA456789\0\0\0\0\0\0\0\0\0\0BBBBBBBBBB";
    assert_eq!(of_a.read(0, 100).await.expect("read"), expected);
    assert_eq!(of_b.read(0, 100).await.expect("read"), expected);
    let c = bench.client().await;
    assert_eq!(c.get(&c.find("file").await).await, expected);
    // And what one has not stored yet leaves him the rest of what the other has.
    assert_eq!(a.range(&file, range(1, 0, 0, Write)).await, 0);
    of_a.write(0, b"a").await.expect("write");
    assert_eq!(b.range(&seen, range(1, 30, 39, Write)).await, 0);
    of_b.write(30, b"more").await.expect("write");
    b.unlock(&seen, 1).await;
    assert_eq!(a.range(&file, range(1, 30, 39, Write)).await, 0);
    let read = of_a.read(28, 100).await.expect("read");
    assert_eq!(read, b"BBmore");
    of_a.close().await;
    of_b.close().await;
    bench.end();
}

#[tokio::test]
async fn ranges_last_as_long_as_they_are_extended() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    let (mine, others) = (range(1, 0, 9, Write), range(1, 5, 14, Write));
    assert_eq!(a.range(&file, mine).await, 0);
    for _ in 0..3 {
        bench.later(200);
        a.cache.locks().extend_locks(NOW).await;
        assert_eq!(b.range(&seen, others).await, 11);
    }
    // The server forgot them, as when it is started again: they are set again, also after a sleep.
    bench.later(400);
    a.cache.locks().extend_locks(AfsTime(NOW.0 + 400)).await;
    assert_eq!(b.range(&seen, others).await, 11);
    // Another client was faster. A client that lost its lock does not release the other one's.
    bench.later(400);
    assert_eq!(b.range(&seen, others).await, 0);
    a.cache.locks().extend_locks(NOW).await;
    a.unlock(&file, 1).await;
    assert_eq!(a.range(&file, range(2, 14, 14, Write)).await, 11);
    // One that was lost is set again when the other's is gone.
    assert_eq!(a.range(&file, range(1, 0, 4, Write)).await, 0);
    bench.later(400);
    assert_eq!(b.range(&seen, range(1, 0, 9, Write)).await, 0);
    a.cache.locks().extend_locks(NOW).await;
    b.unlock(&seen, 1).await;
    a.cache.locks().extend_locks(NOW).await;
    assert_eq!(b.range(&seen, range(1, 4, 4, Write)).await, 11);
    bench.end();
}

#[tokio::test]
async fn a_late_store_after_its_range_was_released_truncates_nothing() {
    use LockKind::Write;
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"0123456789").await;
    let open = Rights::READ.union(Rights::WRITE);
    let (of_a, of_b) = (a.open(&file, open).await, b.open(&seen, open).await);
    assert_eq!(a.range(&file, range(1, 0, 9, Write)).await, 0);
    of_a.write(0, b"ABCDE").await.expect("write");
    bench.refuse::<StoreData64>(AbortCode::EACCES, 1);
    a.unlock(&file, 1).await;
    assert_eq!(a.cache.write_back().unstored()[0].1, Some(13));
    // Another machine appends meanwhile.
    assert_eq!(b.range(&seen, range(1, 10, 19, Write)).await, 0);
    of_b.write(10, b" and more").await.expect("write");
    b.unlock(&seen, 1).await;
    a.cache
        .write_back()
        .store(&file, false)
        .await
        .expect("stored now");
    let c = bench.client().await;
    assert_eq!(c.contents("file").await, b"ABCDE56789 and more");
    of_a.close().await;
    of_b.close().await;
    bench.end();
}

#[tokio::test]
async fn locks_in_one_volume_do_not_wait_for_those_in_another() {
    use LockKind::Write;
    let bench = Bench::start();
    bench.add_other();
    let a = bench.client().await;
    let mount = a
        .cache
        .names()
        .symlink(&a.user, &a.root, b"mount", b"#other.");
    mount.await.expect("mounted");
    let other = a.find("mount").await;
    let inside = a.cache.names().create_file(&a.user, &other, b"file", 0o644);
    for file in [a.make("file").await, inside.await.expect("made")] {
        assert_eq!(a.range(&file, range(1, 0, 9, Write)).await, 0);
    }
    let extended = bench.hold::<HoldRanges>();
    let all = a.cache.locks().extend_locks(NOW);
    tokio::select! {
        () = all => panic!("it does not wait"),
        () = held(&extended, 2) => {}
    }
    drop(extended);
    bench.end();
}

#[tokio::test]
async fn a_signal_ends_a_wait_while_the_server_is_asked() {
    use LockKind::{Read, Write};
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    assert_eq!(a.lock(&file, 1, Read).await, 0);
    let asked = bench.hold::<HoldRanges>();
    let wait = a
        .cache
        .locks()
        .wait_for_lock(&a.user, &file, lock(1, Write), held(&asked, 1));
    assert_eq!(errno(&wait.await.expect_err("interrupted")), 4);
    // The server grants the lock now. The program keeps the lock that it had before.
    drop(asked);
    // This call waits for the task that asked the server.
    assert_eq!(a.lock(&file, 2, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Read).await, 0);
    assert_eq!(b.lock(&seen, 1, Write).await, 11);
    a.unlock(&file, 1).await;
    a.unlock(&file, 2).await;
    assert_eq!(b.lock(&seen, 1, Write).await, 0);
    bench.end();
}

#[tokio::test]
async fn a_late_refusal_of_an_abandoned_upgrade_releases_no_lock() {
    use LockKind::{Read, Write};
    let bench = Bench::start();
    let [(a, file), (b, seen)] = bench.two_with_a_file(b"").await;
    let flock = |kind| Lock {
        owner: LockOwner::flock(1),
        ..lock(1, kind)
    };
    let set = a.cache.locks().set_lock(&a.user, &file, flock(Read));
    set.await.expect("shared");
    assert_eq!(b.lock(&seen, 2, Read).await, 0);
    // The server refuses the upgrade after the program has given up.
    let asked = bench.hold::<HoldRanges>();
    let wait = a
        .cache
        .locks()
        .wait_for_lock(&a.user, &file, flock(Write), held(&asked, 1));
    assert_eq!(errno(&wait.await.expect_err("interrupted")), 4);
    drop(asked);
    assert_eq!(a.lock(&file, 3, Read).await, 0);
    a.unlock(&file, 3).await;
    b.unlock(&seen, 2).await;
    assert_eq!(b.lock(&seen, 2, Write).await, 11, "the shared lock is left");
    bench.end();
}
