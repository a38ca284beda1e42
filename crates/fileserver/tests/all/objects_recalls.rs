//! Recalls by user: their limits, and their queue.

use std::time::Duration;

use cellar_fileserver::{RecallLimit, RecallSubject};
use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{self, ChangeJob, JOB_CANCEL, ListRecalls, Recall, RecallView};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::FetchData64;
use futures_util::future::join_all;

use crate::common::osds::{THRESHOLD, pattern, read};
use crate::common::plain_code as code;
use crate::common::{Cell, Machine, run, stated};
use crate::objects_archived::World;
use crate::objects_hsm::{Kept, OFTEN};

const BIG: usize = 3 * THRESHOLD as usize;
const PLAIN: &str = "=> osd, stripes=2, ssize=12;";

fn limit(subject: RecallSubject, files: u64) -> RecallLimit {
    RecallLimit {
        text: format!("{subject:?}={files}files/1h"),
        subject,
        bytes: Some(files * BIG as u64),
        files: None,
        per: Duration::from_secs(3600),
    }
}

/// The code of a fetch by a user; 0: it succeeded.
async fn fetched(machine: &Machine, name: &str, fid: Fid) -> i32 {
    let connection = machine.user(name);
    let asked = FetchData64 {
        fid,
        position: 0,
        length: 10,
    };
    let outcome = async {
        let mut call = connection.open(&asked).await?;
        let length: u64 = call.read().await?;
        call.read_exact(length, |_| ()).await
    };
    match outcome.await {
        Ok(()) => 0,
        refused => code(refused),
    }
}

#[test]
fn users_groups_and_volumes_have_limits_and_administrators_have_none() {
    let cell = Cell::start();
    cell.names.join(7, -300);
    cell.names.join(8, -300);
    run(async {
        let world = World::start_with(cell, PLAIN).await;
        let limits = |more: &[RecallLimit]| {
            let own = [limit(RecallSubject::User("alice".into()), 1)];
            world.cell.server.set_recall_limits([&own, more].concat());
        };
        limits(&[limit(RecallSubject::EachUser, 9)]);
        let mut files = Vec::new();
        for number in 0..6 {
            let fid = world
                .file(&format!("f{number}"), &pattern(BIG, number))
                .await;
            world.archive(fid, 4).await;
            world.wipe(fid, 1).await;
            files.push(fid);
        }
        let machine = &world.machine;
        assert_eq!(fetched(machine, "alice", files[0]).await, 0);
        let before = world.osds.fakes[2].calls();
        let refused = fetched(machine, "alice", files[1]).await;
        assert_eq!(refused, AbortCode::ENOMEDIUM.0);
        // A user who asks for a recall learns the reason.
        let asks = machine.principal(stated::user("alice"), afsosd::PACKAGE.service_id);
        let refused = asks.call(&Recall { fid: files[1] }).await;
        assert_eq!(code(refused), AbortCode::EDQUOT.0);
        assert_eq!(world.osds.fakes[2].calls(), before, "nothing was recalled");
        // An online file is no recall, and other users have other accounts.
        assert_eq!(fetched(machine, "alice", files[0]).await, 0);
        assert_eq!(fetched(machine, "bob", files[1]).await, 0);
        assert_eq!(fetched(machine, "alice", files[1]).await, 0, "it is online");
        // The members of a group share an account; the volume has one for all.
        limits(&[limit(RecallSubject::Group("friends".into()), 1)]);
        assert_eq!(fetched(machine, "bob", files[2]).await, 0);
        assert_eq!(
            fetched(machine, "bob", files[3]).await,
            AbortCode::ENOMEDIUM.0
        );
        assert_eq!(fetched(machine, "carol", files[3]).await, 0);
        limits(&[limit(RecallSubject::Volumes("*".into()), 1)]);
        assert_eq!(fetched(machine, "carol", files[4]).await, 0);
        assert_eq!(
            fetched(machine, "bob", files[5]).await,
            AbortCode::ENOMEDIUM.0
        );
        // An hour later the account is empty again, and administrators need none.
        world.admin.call(&Recall { fid: files[5] }).await.unwrap();
        world.wipe(files[5], 1).await;
        world.cell.wait_secs(3601);
        assert_eq!(fetched(machine, "bob", files[5]).await, 0);
    });
}

#[test]
fn the_queue_of_recalls_is_listed_with_files_and_places() {
    let cell = Cell::start();
    run(async {
        let kept = Kept::start(cell, ", archives=1, archive_after=0s", OFTEN).await;
        let world = &kept.world;
        let mut files = Vec::new();
        for number in 0..10 {
            let fid = world
                .file(&format!("q{number}"), &pattern(BIG, number))
                .await;
            files.push(fid);
        }
        for fid in &files {
            until("it has a copy", async || {
                !kept.archives_of(*fid).await.is_empty()
            })
            .await;
        }
        until("the jobs end", async || kept.jobs(true).await.is_empty()).await;
        for fid in &files {
            world.wipe(*fid, 1).await;
        }
        // All copies are in one archive, from which six recalls of one user run at a time.
        let archive = kept.archives_of(files[0]).await[0];
        let archive = &world.osds.fakes[archive as usize - 2];
        archive.set_fault(Fault::Slow(Duration::from_secs(8)));
        let recalls = async || -> Vec<RecallView> {
            let asked = ListRecalls {
                after: 0,
                limit: 100,
            };
            let listed = world.admin.call(&asked).await.unwrap();
            assert!(!listed.more);
            listed.recalls.into_vec()
        };
        assert!(recalls().await.is_empty());
        let reads = join_all(files.iter().map(|fid| read_or_code(&world.machine, *fid)));
        let looks = async {
            let is_running = |recall: &&RecallView| recall.job.state == *"running";
            until("six run and four wait", async || {
                let listed = recalls().await;
                let running = listed.iter().filter(is_running).count();
                (listed.len(), running) == (10, 6)
            })
            .await;
            let listed = recalls().await;
            for recall in &listed {
                let number = files.iter().position(|fid| *fid == recall.fid).unwrap();
                assert_eq!(recall.path, *format!("/q{number}"));
                assert_eq!(recall.length, BIG as u64);
                assert!(!recall.volume.is_empty());
            }
            let mut waiting: Vec<_> = listed.iter().filter(|r| !is_running(r)).collect();
            waiting.sort_by_key(|recall| recall.place);
            let places: Vec<u64> = waiting.iter().map(|recall| recall.place).collect();
            assert_eq!(places, [1, 2, 3, 4]);
            let page = ListRecalls {
                after: listed[3].job.id,
                limit: 2,
            };
            let page = world.admin.call(&page).await.unwrap();
            assert!(page.more);
            assert_eq!(page.recalls[0], listed[4]);
            let cancel = ChangeJob {
                job: waiting[1].job.id,
                change: JOB_CANCEL,
            };
            world.admin.call(&cancel).await.unwrap();
            waiting[1].fid
        };
        let (ended, cancelled) = futures_util::future::join(reads, looks).await;
        for ((number, fid), outcome) in files.iter().enumerate().zip(ended) {
            match *fid == cancelled {
                true => assert_eq!(outcome, Err(AbortCode::EIO.0)),
                false => assert_eq!(outcome, Ok(pattern(BIG, number as u64))),
            }
        }
        assert!(recalls().await.is_empty());
        archive.set_fault(Fault::None);
        assert_eq!(read(&world.machine, cancelled).await.len(), BIG);
        // Users have no list.
        let user = stated::user("alice");
        let user = world.machine.principal(user, afsosd::PACKAGE.service_id);
        let refused = user.call(&ListRecalls { after: 0, limit: 1 }).await;
        assert_eq!(code(refused), AbortCode::EPERM.0);
    });
}

async fn read_or_code(machine: &Machine, fid: Fid) -> Result<Vec<u8>, i32> {
    let fetched = machine.fetch(fid, 0, 1 << 30).await;
    fetched.map_err(|cause| code(Err::<(), _>(cause)))
}
