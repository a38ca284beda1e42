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
    ListJobs, ShowJob,
};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::{OSD_WIPEABLE, OsdListed};

use crate::common::osds::{THRESHOLD, pattern, read};
use crate::common::plain_code as code;
use crate::common::{Cell, Machine, run, stated};
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
        let world = World::start_with(cell, &format!("{PLAIN}{archiving};")).await;
        let jobs = tempfile::tempdir().unwrap();
        let database = Embedded::open(&jobs.path().join("jobs.redb")).unwrap();
        let config = HsmConfig {
            jobs: Arc::new(database),
            interval,
            copy_rate: 0,
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
            listed.entry.high_water_mark = 500;
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
