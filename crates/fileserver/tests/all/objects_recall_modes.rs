//! The modes of recalls that policies choose: wait, retry, refuse.

use std::time::{Duration, Instant};

use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{Recall, SetPolicy};
use cellar_wire::ids::Fid;

use crate::common::osds::{KEEP, THRESHOLD, pattern, read};
use crate::common::{Cell, OPEN, plain_code as code, run, store_within as store};
use crate::objects_archived::World;

const BIG: usize = 3 * THRESHOLD as usize;
const PLAIN: &str = "=> osd, stripes=2, ssize=12";
/// Far below the time for which a call waits for a recall, and above the time of a slow machine.
const AT_ONCE: Duration = Duration::from_secs(15);

/// A file of that policy with a copy in the first archive, wiped.
async fn wiped(world: &World, name: &str) -> (Fid, Vec<u8>) {
    let bytes = pattern(BIG, name.len() as u64);
    let fid = world.file(name, &bytes).await;
    world.archive(fid, 4).await;
    world.wipe(fid, 1).await;
    (fid, bytes)
}

#[test]
fn retry_begins_the_recall_and_does_not_wait() {
    let cell = Cell::start();
    run(async {
        let world = World::start_with(cell, &format!("{PLAIN}, recall=retry;")).await;
        let (fid, bytes) = wiped(&world, "f").await;
        let archive = &world.osds.fakes[2];
        archive.set_fault(Fault::Slow(Duration::from_secs(4)));
        let before = archive.calls();
        let begun = Instant::now();
        for _ in 0..3 {
            let told = world.machine.fetch(fid, 0, 10).await;
            assert_eq!(code(told), AbortCode::VBUSY.0);
        }
        let stored = store(&world.machine, fid, 5, b"part", KEEP).await;
        assert_eq!(code(stored), AbortCode::VBUSY.0);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        until("the recall ends", async || world.copies(fid).await.online).await;
        assert_eq!(archive.calls() - before, 1, "all share one recall");
        assert_eq!(read(&world.machine, fid).await, bytes);
    });
}

#[test]
fn retry_reports_a_recall_that_failed() {
    let cell = Cell::start();
    run(async {
        let world = World::start_with(cell, &format!("{PLAIN}, recall=retry;")).await;
        let (fid, _) = wiped(&world, "f").await;
        world.damage(4);
        let told = world.machine.fetch(fid, 0, 10).await;
        assert_eq!(code(told), AbortCode::VBUSY.0);
        until("the failure is reported", async || {
            code(world.machine.fetch(fid, 0, 10).await) == AbortCode::EIO.0
        })
        .await;
        // It is remembered: the archive is not asked again by each call.
        let before = world.osds.fakes[2].calls();
        let told = world.machine.fetch(fid, 0, 10).await;
        assert_eq!(code(told), AbortCode::EIO.0);
        assert_eq!(world.osds.fakes[2].calls(), before);
    });
}

#[test]
fn refuse_recalls_nothing_unless_a_user_asks_for_it() {
    let cell = Cell::start();
    run(async {
        let world = World::start_with(cell, &format!("{PLAIN}, recall=refuse;")).await;
        let (fid, mut bytes) = wiped(&world, "f").await;
        let before = world.osds.fakes[2].calls();
        let begun = Instant::now();
        let told = world.machine.fetch(fid, 0, 10).await;
        assert_eq!(code(told), AbortCode::ENOMEDIUM.0);
        let told = store(&world.machine, fid, 5, b"part", KEEP).await;
        assert_eq!(code(told), AbortCode::ENOMEDIUM.0);
        assert!(begun.elapsed() < AT_ONCE);
        assert_eq!(world.osds.fakes[2].calls(), before, "no recall began");
        assert!(!world.copies(fid).await.online);
        // The status needs no bytes.
        assert_eq!(world.machine.status(fid).await.status.length, BIG as u64);
        world.admin.call(&Recall { fid }).await.unwrap();
        assert!(world.copies(fid).await.online);
        store(&world.machine, fid, 5, b"part", KEEP).await.unwrap();
        bytes[5..9].copy_from_slice(b"part");
        assert_eq!(read(&world.machine, fid).await, bytes);
        // A store of all bytes needs none of the old ones.
        let (fid, _) = wiped(&world, "other").await;
        let all = pattern(BIG, 77);
        store(&world.machine, fid, 0, &all, 0).await.unwrap();
        assert_eq!(read(&world.machine, fid).await, all);
    });
}

#[test]
fn rules_on_names_and_directories_choose_the_mode() {
    let cell = Cell::start();
    run(async {
        let policies = format!("{PLAIN}; ~'*.raw' => recall=refuse;");
        let world = World::start_with(cell, &policies).await;
        let (waits, bytes) = wiped(&world, "f").await;
        assert_eq!(read(&world.machine, waits).await, bytes);
        let (refused, _) = wiped(&world, "f.raw").await;
        let told = world.machine.fetch(refused, 0, 10).await;
        assert_eq!(code(told), AbortCode::ENOMEDIUM.0);
        // The policy of a directory comes after that of the volume.
        let texts = [
            (2, policies.as_str()),
            (3, "=> recall=retry;"),
            (4, "~'*.raw' => recall=wait;"),
        ];
        world.osds.database.set_policies(&texts);
        let set = async |policy| {
            let fid = Fid::root(OPEN);
            until("the file server has the policy", async || {
                let set = SetPolicy { fid, policy };
                world.admin.call(&set).await.is_ok()
            })
            .await;
        };
        set(3).await;
        let told = world.machine.fetch(refused, 0, 10).await;
        assert_eq!(code(told), AbortCode::VBUSY.0);
        until("the recall ends", async || {
            world.copies(refused).await.online
        })
        .await;
        world.wipe(refused, 1).await;
        set(4).await;
        assert_eq!(read(&world.machine, refused).await.len(), BIG);
    });
}
