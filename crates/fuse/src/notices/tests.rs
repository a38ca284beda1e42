//! Tests of the order of notices and of the waits for them.

use std::sync::atomic::{AtomicBool, Ordering};

use cellar_until::{until, until_blocking};
use cellar_wire::ids::Fid;

use super::*;

fn key(volume: u32, vnode: u32) -> Key {
    (0, Fid::new(volume, vnode, 1))
}

/// A mount's notices, with a kernel that blocks notices about volume 1 while `held` is set.
struct Bench {
    notices: Arc<Notices>,
    queued: Arc<Mutex<Vec<(Key, bool)>>>,
    held: Arc<AtomicBool>,
    /// Blocks the notices about names.
    names_held: Arc<AtomicBool>,
    writers: Vec<std::thread::JoinHandle<()>>,
}

impl Bench {
    fn start() -> Self {
        let mut bench = Self {
            notices: Notices::new(),
            queued: Arc::default(),
            held: Arc::default(),
            names_held: Arc::default(),
            writers: Vec::new(),
        };
        for _ in 0..WRITERS {
            let (notices, queued) = (bench.notices.clone(), bench.queued.clone());
            let (held, names_held) = (bench.held.clone(), bench.names_held.clone());
            bench.writers.push(std::thread::spawn(move || {
                let inode = |key: Key, change: &Change| {
                    if key.1.volume.0 == 1 {
                        until_blocking("not held", || !held.load(Ordering::Acquire));
                    }
                    queued.lock().push((key, change.contents));
                };
                let names = |_: Key, _: &Change| {
                    until_blocking("not held", || !names_held.load(Ordering::Acquire));
                };
                notices.write_all(inode, names);
            }));
        }
        bench
    }

    fn queued(&self, key: Key) -> Vec<bool> {
        let queued = self.queued.lock();
        let of = queued.iter().filter(|(of, _)| *of == key);
        of.map(|(_, contents)| *contents).collect()
    }

    fn end(self) {
        self.notices.end();
        for writer in self.writers {
            writer.join().expect("a writer");
        }
    }
}

#[tokio::test]
async fn a_silent_server_s_files_delay_no_others() {
    let bench = Bench::start();
    bench.held.store(true, Ordering::Release);
    for vnode in 1..100 {
        bench.notices.put(key(1, vnode), false, Notice::Contents);
    }
    // Wait until everything that may block is blocked.
    tokio::time::sleep(NOTICE_TIMEOUT * 2).await;
    let begun = Instant::now();
    for vnode in 1..100 {
        bench.notices.put(key(2, vnode), false, Notice::Contents);
        bench.notices.all_delivered().await;
        assert_eq!(bench.queued(key(2, vnode)), [true]);
    }
    assert!(
        begun.elapsed() < NOTICE_TIMEOUT * 4,
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(bench.queued.lock().len(), 99);
    bench.held.store(false, Ordering::Release);
    bench.notices.put(key(2, 1), false, Notice::Attributes);
    bench.notices.all_delivered().await;
    bench.end();
}

/// Checks whether a request about a vnode would wait, until all notices queued so far are
/// written.
#[tokio::test]
async fn a_question_waits_for_its_vnode_s_notices_and_not_for_names() {
    let bench = Bench::start();
    bench.held.store(true, Ordering::Release);
    bench.names_held.store(true, Ordering::Release);
    let waits = |key| {
        let waiting = bench.notices.waiting.lock();
        waiting.has_notices(key, u64::MAX)
    };
    bench.notices.put(key(1, 1), false, Notice::Attributes);
    assert!(waits(key(1, 1)) && !waits(key(1, 3)) && !waits(key(2, 1)));
    // A notice that the kernel blocks does not end by itself.
    std::thread::sleep(NOTICE_TIMEOUT);
    assert!(waits(key(1, 1)), "it has begun, and is not done");
    bench.held.store(false, Ordering::Release);
    until("the notice is written", async || !waits(key(1, 1))).await;
    assert_eq!(bench.queued(key(1, 1)), [false]);
    let begun = !bench.notices.waiting.lock().is_empty();
    assert!(begun, "notices about names are still under way");
    bench.names_held.store(false, Ordering::Release);
    bench.notices.all_delivered().await;
    bench.end();
}

/// The request that holds a directory's lock may itself wait for a notice about a file.
#[tokio::test]
async fn names_that_wait_for_directories_delay_no_question() {
    let bench = Bench::start();
    bench.names_held.store(true, Ordering::Release);
    for vnode in [1, 3, 5, 7] {
        bench.notices.put(key(1, vnode), true, Notice::Contents);
    }
    bench.notices.all_delivered().await;
    // This includes a directory whose names are being written.
    for vnode in [1, 2, 4, 7, 100] {
        bench.notices.put(key(1, vnode), false, Notice::Contents);
    }
    let queued = |vnode| {
        let waiting = bench.notices.waiting.lock();
        !waiting.has_notices(key(1, vnode), u64::MAX)
    };
    for vnode in [1, 2, 4, 7, 100] {
        until("its notice is written", async || queued(vnode)).await;
    }
    bench.names_held.store(false, Ordering::Release);
    bench.notices.all_delivered().await;
    bench.end();
}

#[tokio::test]
async fn a_change_during_a_notice_causes_another_notice() {
    let bench = Bench::start();
    bench.held.store(true, Ordering::Release);
    bench.notices.put(key(1, 1), false, Notice::Contents);
    let begun = Instant::now();
    bench.notices.all_delivered().await;
    assert!(begun.elapsed() >= NOTICE_TIMEOUT, "the wait lasts");
    // Only one thread writes about the vnode, so nothing else is written meanwhile.
    bench.notices.put(key(1, 1), false, Notice::Attributes);
    bench.notices.put(key(1, 1), false, Notice::Attributes);
    std::thread::sleep(NOTICE_TIMEOUT / 5);
    assert_eq!(bench.queued(key(1, 1)), [false; 0]);
    bench.held.store(false, Ordering::Release);
    // Nothing waits for notices that are so late.
    until("all are written", async || {
        bench.notices.waiting.lock().is_empty()
    })
    .await;
    assert_eq!(
        bench.queued(key(1, 1)),
        [true, false],
        "two changes are one notice"
    );
    bench.end();
}
