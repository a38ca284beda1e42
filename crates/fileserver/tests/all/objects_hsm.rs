//! Copies and wipes that a file server makes by itself, and the jobs that make them.

use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::Embedded;
use cellar_fileserver::HsmConfig;
use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{
    self, ArchiveCensus, ChangeJob, GetCensus, JOB_CANCEL, JOB_RETRY, JobView, ListCandidates,
    ListJobs, ShowJob, VerifyCopies,
};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::{OSD_WIPEABLE, OsdListed};

use crate::common::osds::{KEEP, THRESHOLD, pattern, read};
use crate::common::plain_code as code;
use crate::common::volser::Volser;
use crate::common::{CLONE, Cell, Machine, OPEN, run, stated, store_within as store};
use crate::objects_archived::World;

const BIG: usize = 3 * THRESHOLD as usize;
const PLAIN: &str = "=> osd, stripes=2, ssize=12";
/// The archives of the world, and its other devices.
const ARCHIVES: [u32; 2] = [4, 5];

/// A world whose file server copies and wipes by itself.
pub(crate) struct Kept {
    pub(crate) world: World,
    _jobs: tempfile::TempDir,
}

impl Kept {
    pub(crate) async fn start(cell: Cell, archiving: &str, interval: Duration) -> Self {
        Self::start_with(cell, archiving, interval, Duration::ZERO).await
    }

    /// The same, and each copy is verified at intervals.
    async fn start_with(
        cell: Cell,
        archiving: &str,
        interval: Duration,
        verify_interval: Duration,
    ) -> Self {
        let world = World::start_with(cell, &format!("{PLAIN}{archiving};")).await;
        let jobs = tempfile::tempdir().unwrap();
        let database = Embedded::open(&jobs.path().join("jobs.redb")).unwrap();
        let config = HsmConfig {
            jobs: Arc::new(database),
            pins: world.osds.database.clone(),
            interval,
            copy_rate: 0,
            verify_interval,
            verify_rate: 0,
        };
        world.cell.server.keep_archives(&world.cell.runtime, config);
        let kept = Self { world, _jobs: jobs };
        until("the first census", async || kept.census().await.taken > 0).await;
        kept
    }

    async fn census(&self) -> ArchiveCensus {
        let asked = GetCensus { look: true };
        self.world.admin.call(&asked).await.unwrap().census
    }

    pub(crate) async fn jobs(&self, unfinished: bool) -> Vec<JobView> {
        let asked = ListJobs {
            after: 0,
            limit: 100,
            unfinished,
            kind: Default::default(),
            user: Default::default(),
        };
        let listed = self.world.admin.call(&asked).await;
        listed.map_or_else(|_| Vec::new(), |listed| listed.jobs.into_vec())
    }

    /// The archives with a good copy of a file.
    pub(crate) async fn archives_of(&self, fid: Fid) -> Vec<u32> {
        let copies = self.world.copies(fid).await.copies;
        let mut archives: Vec<u32> = copies.iter().filter(|c| !c.bad).map(|c| c.osd).collect();
        archives.sort_unstable();
        archives
    }

    /// Changes the entries of devices that are no archives.
    fn change_devices(&self, change: impl Fn(&mut OsdListed)) {
        let osds = &self.world.osds;
        let mut listed = osds.database.listed.lock();
        for listed in listed.iter_mut() {
            if listed.entry.id != 1 && !ARCHIVES.contains(&listed.entry.id) {
                change(listed);
            }
        }
        osds.devices.update(&listed);
    }
}

/// The archive has no room.
const FULL: Fault = Fault::Abort(AbortCode::ENOSPC);

pub(crate) const OFTEN: Duration = Duration::from_millis(100);

#[test]
fn files_get_the_copies_that_their_policy_asks_for() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=2, archive_after=0s";
        let kept = Kept::start(cell, archiving, OFTEN).await;
        let bytes = pattern(BIG, 1);
        let fid = kept.world.file("f", &bytes).await;
        until("both copies", async || {
            kept.archives_of(fid).await == ARCHIVES
        })
        .await;
        until("the jobs end", async || kept.jobs(true).await.is_empty()).await;
        let jobs = kept.jobs(false).await;
        for archive in &jobs {
            assert_eq!(archive.state, *"done");
            assert_eq!(archive.kind, *"archive-copy");
            assert_eq!((archive.items, archive.failed), (1, 0));
            assert_eq!(archive.bytes, BIG as u64);
        }
        assert_eq!(jobs.len(), 2, "no further job follows");
        let shown = ShowJob {
            job: jobs[0].id,
            from: 0,
        };
        let shown = kept.world.admin.call(&shown).await.unwrap();
        assert_eq!(shown.items[0].name.to_string(), fid.to_string());
        assert!(shown.items[0].error.is_empty());
        until("a census counts it", async || {
            let census = kept.census().await;
            (census.copied.files, census.lacking.files) == (1, 0)
        })
        .await;
        // A changed file gets new copies.
        kept.world.store(fid, 100, b"new").await;
        until("the new bytes have copies", async || {
            let listed = kept.world.copies(fid).await;
            let new = listed.copies.iter().filter(|c| c.version == listed.version);
            new.count() == 2
        })
        .await;
    });
}

#[test]
fn a_file_is_copied_after_the_delay_of_its_policy_only() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=1, archive_after=1h";
        let kept = Kept::start(cell, archiving, OFTEN).await;
        let fid = kept.world.file("f", &pattern(BIG, 2)).await;
        until("a census finds the file", async || {
            kept.census().await.lacking.files == 1
        })
        .await;
        let census = kept.census().await;
        assert_eq!((census.online.files, census.due.files), (1, 0));
        assert!(kept.jobs(false).await.is_empty());
        assert!(kept.archives_of(fid).await.is_empty());
    });
}

#[test]
fn a_device_above_its_mark_is_wiped_of_copied_files() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=1, archive_after=0s";
        let kept = Kept::start(cell, archiving, OFTEN).await;
        let large = kept.world.file("large", &pattern(BIG, 3)).await;
        let small = kept.world.file("small", &pattern(BIG / 2, 4)).await;
        until("both have a copy", async || {
            !kept.archives_of(large).await.is_empty() && !kept.archives_of(small).await.is_empty()
        })
        .await;
        // Not wipeable: nothing happens.
        kept.change_devices(|listed| {
            listed.entry.marks.high = 500;
            listed.entry.min_wipe_size = BIG as u64;
            (listed.state.total, listed.state.free) = (400_000, 100_000);
        });
        let census = kept.census().await;
        assert_eq!(census.wiped.files, 0);
        kept.change_devices(|listed| listed.entry.flags |= OSD_WIPEABLE);
        until("the large file is wiped", async || {
            !kept.world.copies(large).await.online
        })
        .await;
        assert!(kept.world.copies(small).await.online, "too small");
        let jobs = kept.jobs(false).await;
        assert!(jobs.iter().any(|job| job.kind == *"archive-wipe"));
        until("a census counts it", async || {
            kept.census().await.wiped.files == 1
        })
        .await;
        // A reader brings it back, and it stays while the device has room.
        kept.change_devices(|listed| listed.state.free = 300_000);
        let read = kept.world.machine.fetch(large, 0, BIG as i64).await;
        assert_eq!(read.unwrap(), pattern(BIG, 3));
        assert!(kept.world.copies(large).await.online);
    });
}

#[test]
fn an_archive_that_is_down_delays_its_own_copies_only() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=2, archive_after=0s";
        let kept = Kept::start(cell, archiving, OFTEN).await;
        kept.world.osds.fakes[2].set_fault(FULL);
        let fid = kept.world.file("f", &pattern(BIG, 5)).await;
        until("the other archive has its copy", async || {
            kept.archives_of(fid).await == [5]
        })
        .await;
        until("the job of the first says why it waits", async || {
            let jobs = kept.jobs(true).await;
            jobs.len() == 1 && !jobs[0].error.is_empty()
        })
        .await;
        kept.world.osds.fakes[2].set_fault(Fault::None);
        until("it is copied to the first, too", async || {
            // The pause of the archive ends.
            kept.world.cell.wait_secs(10);
            kept.archives_of(fid).await == ARCHIVES
        })
        .await;
    });
}

#[test]
fn jobs_are_changed_by_superusers_only() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=1, archive_after=0s";
        let kept = Kept::start(cell, archiving, OFTEN).await;
        for archive in [2, 3] {
            kept.world.osds.fakes[archive].set_fault(FULL);
        }
        let fid = kept.world.file("f", &pattern(BIG, 6)).await;
        let waits = async || {
            let jobs = kept.jobs(true).await;
            jobs.iter().any(|job| !job.error.is_empty())
        };
        until("a job waits for its archive", waits).await;
        let job = kept.jobs(true).await[0].id;
        let cancel = ChangeJob {
            job,
            change: JOB_CANCEL,
        };
        let user = stated::user("alice");
        let machine = &kept.world.machine;
        let user = machine.principal(user, afsosd::PACKAGE.service_id);
        for refused in [
            code(user.call(&cancel).await),
            code(user.call(&ShowJob { job, from: 0 }).await),
            code(user.call(&GetCensus { look: true }).await),
            code(user.call(&ListCandidates { osd: 4, limit: 9 }).await),
            code(user.call(&VerifyCopies { fid, osd: 4 }).await),
        ] {
            assert_eq!(refused, AbortCode::EPERM.0);
        }
        kept.world.admin.call(&cancel).await.unwrap();
        until("it is cancelled", async || {
            let jobs = kept.jobs(false).await;
            jobs.iter()
                .any(|seen| seen.id == job && seen.state == *"cancelled")
        })
        .await;
        let missing = ChangeJob {
            job: 99_999,
            change: JOB_RETRY,
        };
        let missing = kept.world.admin.call(&missing).await;
        assert_eq!(code(missing), AbortCode::ENOENT.0);
        assert!(kept.archives_of(fid).await.is_empty());
    });
}

#[test]
fn recalls_are_jobs_of_the_users_who_open_files() {
    let cell = Cell::start();
    run(async {
        let kept = Kept::start(cell, ", archives=1, archive_after=0s", OFTEN).await;
        let bytes = pattern(BIG, 7);
        let fid = kept.world.file("f", &bytes).await;
        until("it has a copy", async || {
            !kept.archives_of(fid).await.is_empty()
        })
        .await;
        until("the jobs end", async || kept.jobs(true).await.is_empty()).await;
        kept.world.wipe(fid, 1).await;
        let readers = [2, 3].map(|n| Machine::new(&kept.world.cell, n));
        let reads = readers.iter().map(|reader| read(reader, fid));
        for read in futures_util::future::join_all(reads).await {
            assert_eq!(read, bytes);
        }
        let jobs = kept.jobs(false).await;
        let recalls: Vec<_> = jobs.iter().filter(|job| job.kind == *"recall").collect();
        assert_eq!(recalls.len(), 1, "both readers wait for one");
        assert_eq!(recalls[0].state, *"done");
        assert_eq!(recalls[0].user.to_string(), ViceId::ANONYMOUS.0.to_string());
        assert_eq!(recalls[0].bytes, BIG as u64);
        // Every copy is bad: the reader gets the error, and the job says why.
        kept.world.wipe(fid, 1).await;
        kept.world.damage(kept.archives_of(fid).await[0]);
        let failed = kept.world.machine.fetch(fid, 0, 10).await;
        assert_eq!(code(failed), AbortCode::EIO.0);
        let jobs = kept.jobs(false).await;
        let failed = jobs.iter().rfind(|job| job.kind == *"recall").unwrap();
        assert_eq!(failed.state, *"failed");
        assert!(failed.error.to_string().contains("good copy"), "{failed:?}");
    });
}

#[test]
fn copies_are_read_back_at_intervals_and_bad_ones_are_found() {
    let cell = Cell::start();
    run(async {
        let archiving = ", archives=2, archive_after=0s";
        let kept = Kept::start_with(cell, archiving, OFTEN, Duration::from_secs(100)).await;
        let bytes = pattern(BIG, 9);
        let fid = kept.world.file("f", &bytes).await;
        let copy_in = async |osd: u32| {
            let copies = kept.world.copies(fid).await.copies;
            copies.iter().find(|copy| copy.osd == osd).copied()
        };
        let verified_in = async |osd: u32| copy_in(osd).await.map_or(0, |copy| copy.verified);
        until("both copies are made", async || {
            kept.archives_of(fid).await == ARCHIVES
        })
        .await;
        assert_eq!(verified_in(4).await, 0);
        kept.world.cell.wait_secs(100);
        until("both copies are verified", async || {
            verified_in(4).await > 0 && verified_in(5).await > 0
        })
        .await;
        let (first, made) = (verified_in(4).await, copy_in(4).await.unwrap().made);
        assert!(first >= made + 100, "not before its time");
        kept.world.cell.wait_secs(100);
        until("again", async || verified_in(4).await > first).await;
        let jobs = kept.jobs(false).await;
        let job = jobs.iter().find(|job| job.kind == *"archive-verify");
        let job = job.expect("a job");
        assert_eq!((job.items, job.bytes), (1, BIG as u64));
        // An archive that does not answer: the copy is neither good nor bad.
        kept.world.osds.fakes[3].set_fault(Fault::Abort(AbortCode::EIO));
        kept.world.cell.wait_secs(100);
        until("a file of a job fails", async || {
            let jobs = kept.jobs(false).await;
            let mut jobs = jobs.iter().filter(|job| job.kind == *"archive-verify");
            jobs.any(|job| job.failed > 0)
        })
        .await;
        assert!(!copy_in(5).await.unwrap().bad);
        let before = verified_in(5).await;
        kept.world.osds.fakes[3].set_fault(Fault::None);
        until("it is verified", async || verified_in(5).await > before).await;
        // Other bytes: the copy is bad, and the census counts it.
        kept.world.damage(4);
        until("the damage is found", async || {
            kept.world.cell.wait_secs(100);
            let copies = kept.world.copies(fid).await.copies;
            copies.iter().any(|copy| copy.osd == 4 && copy.bad)
        })
        .await;
        until("the file has another copy", async || {
            kept.archives_of(fid).await == ARCHIVES
        })
        .await;
        until("a census counts its good copies", async || {
            let census = kept.census().await;
            let archive = census.devices.iter().find(|device| device.osd == 4);
            archive
                .is_some_and(|all| (all.archived.files, all.bad.files) == (1, 0) && all.oldest > 0)
        })
        .await;
    });
}

#[test]
fn a_verification_by_command_reads_the_copies_of_one_archive() {
    let cell = Cell::start();
    run(async {
        let kept = Kept::start(cell, "", Duration::ZERO).await;
        let bytes = pattern(BIG, 10);
        let fid = kept.world.file("f", &bytes).await;
        let archive = afsosd::Archive { fid, osd: 4 };
        kept.world.admin.call(&archive).await.unwrap();
        let verify = async |osd: u32| {
            let asked = VerifyCopies { fid, osd };
            let verified = kept.world.admin.call(&asked).await;
            verified.map(|found| (found.good, found.bad, found.bytes))
        };
        assert_eq!(verify(4).await.unwrap(), (1, 0, BIG as u64));
        assert_eq!(verify(5).await.unwrap(), (0, 0, 0), "there is no copy");
        // The copy of older bytes is read too.
        kept.world.store(fid, 7, b"changed").await;
        kept.world.admin.call(&archive).await.unwrap();
        assert_eq!(verify(4).await.unwrap(), (2, 0, 2 * BIG as u64));
        kept.world.damage(4);
        assert_eq!(verify(4).await.unwrap(), (0, 2, 0));
        assert_eq!(
            verify(4).await.unwrap(),
            (0, 0, 0),
            "they are known to be bad"
        );
        let census = kept.census().await;
        assert_eq!(census.bad, 0, "the last census was before the damage");
        until("a census counts them", async || {
            kept.census().await.bad == 2
        })
        .await;
    });
}

#[test]
fn a_pinned_file_is_not_wiped_until_its_pin_ends_or_is_removed() {
    let cell = Cell::start();
    run(async {
        let kept = Kept::start(cell, "", Duration::ZERO).await;
        let (world, admin) = (&kept.world, &kept.world.admin);
        let bytes = pattern(BIG, 11);
        let dir = world.machine.make_dir(Fid::root(OPEN), "dir").await;
        let inner = world.machine.make_dir(dir, "inner").await;
        let below = world.machine.create(inner, "below").await;
        store(&world.machine, below, 0, &bytes, KEEP).await.unwrap();
        let beside = world.file("beside", &bytes).await;
        for fid in [below, beside] {
            let archive = afsosd::Archive { fid, osd: 4 };
            admin.call(&archive).await.unwrap();
        }
        let wipe = async |fid: Fid| {
            let wiped = admin.call(&afsosd::Wipe { fid, copies: 1 }).await;
            wiped.map(|wiped| wiped.length)
        };
        let user = stated::user("alice");
        let alice = world.machine.principal(user, afsosd::PACKAGE.service_id);
        let pin = |fid, until| afsosd::PinFile {
            fid,
            until,
            reason: "a course".try_into().unwrap(),
        };
        let now = kept.census().await.taken;
        // A user's pin of a directory holds for all files below it, and for no others.
        alice.call(&pin(dir, now + 100)).await.unwrap();
        assert_eq!(code(wipe(below).await), AbortCode::EBUSY.0);
        assert_eq!(wipe(beside).await.unwrap(), BIG as u64);
        // It has an owner and an end.
        let set = world.osds.database.pins.lock().1.clone();
        assert_eq!((set[0].fid, set[0].until), (dir, now + 100));
        let owner = set[0].owner;
        for (refused, wanted) in [
            (code(alice.call(&pin(dir, 0)).await), AbortCode::EINVAL),
            (code(alice.call(&pin(dir, now)).await), AbortCode::EINVAL),
            (
                code(alice.call(&pin(dir, now + 400 * 86_400)).await),
                AbortCode::EINVAL,
            ),
        ] {
            assert_eq!(refused, wanted.0);
        }
        let anonymous = world.machine.anonymous(afsosd::PACKAGE.service_id);
        assert_eq!(
            code(anonymous.call(&pin(dir, now + 9)).await),
            AbortCode::EACCES.0
        );
        world.cell.wait_secs(101);
        assert_eq!(wipe(below).await.unwrap(), BIG as u64);
        world.machine.fetch(below, 0, 10).await.unwrap();
        // An administrator's pin of the file without an end, until it is removed.
        admin.call(&pin(below, 0)).await.unwrap();
        assert_eq!(code(wipe(below).await), AbortCode::EBUSY.0);
        // The clones have the same bytes.
        let volser = Volser(world.cell.admin().await);
        volser.read_only_clone().await;
        let there = Fid {
            volume: CLONE,
            ..below
        };
        assert_eq!(code(wipe(there).await), AbortCode::EBUSY.0);
        let unpin = |fid, owner| afsosd::UnpinFile { fid, owner };
        let own = world.osds.database.pins.lock().1.last().unwrap().owner;
        assert_eq!(
            code(alice.call(&unpin(below, own)).await),
            AbortCode::EPERM.0
        );
        assert_eq!(
            code(admin.call(&unpin(beside, own)).await),
            AbortCode::ENOENT.0
        );
        admin.call(&unpin(below, own)).await.unwrap();
        assert_eq!(wipe(below).await.unwrap(), BIG as u64);
        alice.call(&unpin(dir, owner)).await.unwrap();
        assert_eq!(
            code(alice.call(&unpin(dir, owner)).await),
            AbortCode::ENOENT.0
        );
    });
}
