//! Files with copies in archives: copied, wiped, and recalled for clients that know nothing of it.

use std::time::Duration;

use crate::common::osds::{KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use crate::common::volser::Volser;
use crate::common::{CLONE, Cell, Machine, OPEN, run};
use crate::common::{plain_code as code, store_within as store};
use cellar_objects::fake::Fault;
use cellar_rpc::Connection;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{Archive, ListCopies, ListCopiesReply, Recall, Wipe};
use cellar_wire::afsvol::Traverse;
use cellar_wire::ids::Fid;
use cellar_wire::object::ArchiveCopy;
use cellar_wire::osddb::OSD_ARCHIVAL;

const BIG: usize = 5 * THRESHOLD as usize + 777;
/// The archives; devices 2 and 3 hold the files.
const ARCHIVES: [u32; 2] = [4, 5];

pub(crate) struct World {
    pub(crate) cell: Cell,
    pub(crate) osds: Osds,
    pub(crate) admin: Connection,
    pub(crate) machine: Machine,
}

impl World {
    /// Two devices for files of two stripes, and two archives.
    async fn start(cell: Cell) -> Self {
        Self::start_with(cell, "=> osd, stripes=2, ssize=12;").await
    }

    /// The same with another policy.
    pub(crate) async fn start_with(cell: Cell, policy: &str) -> Self {
        let osds = Osds::start(&cell, 4, &[(2, policy)]).await;
        for listed in osds.database.listed.lock().iter_mut() {
            if ARCHIVES.contains(&listed.entry.id) {
                listed.entry.flags |= OSD_ARCHIVAL;
            }
        }
        let devices = osds.devices.clone();
        devices.update(&osds.database.listed.lock());
        set_policy(&cell, OPEN, 2);
        let admin = cell.admin().await;
        let machine = Machine::new(&cell, 1);
        Self {
            cell,
            osds,
            admin,
            machine,
        }
    }

    /// A new file with these bytes.
    pub(crate) async fn file(&self, name: &str, bytes: &[u8]) -> Fid {
        let fid = self.machine.create(Fid::root(OPEN), name).await;
        store(&self.machine, fid, 0, bytes, KEEP).await.unwrap();
        assert_eq!(layout(&self.cell, fid).unwrap().objects.len(), 2);
        fid
    }

    /// Stores a part of a file.
    pub(crate) async fn store(&self, fid: Fid, position: u64, bytes: &[u8]) {
        let stored = store(&self.machine, fid, position, bytes, KEEP).await;
        stored.unwrap();
    }

    pub(crate) async fn archive(&self, fid: Fid, osd: u32) -> ArchiveCopy {
        self.admin.call(&Archive { fid, osd }).await.unwrap().copy
    }

    pub(crate) async fn wipe(&self, fid: Fid, copies: u32) -> u64 {
        let wiped = self.admin.call(&Wipe { fid, copies }).await;
        wiped.unwrap().length
    }

    pub(crate) async fn copies(&self, fid: Fid) -> ListCopiesReply {
        self.admin.call(&ListCopies { fid }).await.unwrap()
    }

    fn count(&self, osds: std::ops::Range<u32>) -> usize {
        let fakes = self.osds.fakes.iter();
        let fakes = fakes.filter(|fake| osds.contains(&fake.listed().entry.id));
        fakes
            .map(|fake| fake.objects(|objects| objects.len()))
            .sum()
    }

    /// Waits until the online devices have that many objects.
    async fn online_objects(&self, count: usize) {
        until("the objects on the online devices", async || {
            self.count(2..4) == count
        })
        .await;
    }

    /// Damages all copies of an archive.
    pub(crate) fn damage(&self, osd: u32) {
        self.osds.fakes[osd as usize - 2].objects(|objects| {
            for bytes in objects
                .values_mut()
                .flat_map(|versions| versions.values_mut())
            {
                bytes[1000] ^= 1;
            }
        });
    }
}

#[test]
fn a_file_is_copied_wiped_and_read_again_by_a_client_that_knows_nothing() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        let before = world.machine.status(fid).await.status;
        let copy = world.archive(fid, 4).await;
        assert_eq!((copy.osd, copy.length), (4, BIG as u64));
        assert_eq!(world.archive(fid, 4).await, copy, "it is there already");
        assert_eq!((world.count(2..4), world.count(4..6)), (2, 1));
        assert_eq!(world.wipe(fid, 1).await, BIG as u64);
        assert_eq!(world.wipe(fid, 1).await, 0, "it is wiped");
        world.online_objects(0).await;
        let listed = world.copies(fid).await;
        assert!(!listed.online && listed.copies[..] == [copy]);
        assert_eq!(world.machine.take_breaks(), [], "the bytes are the same");
        // The status needs no recall.
        assert_eq!(world.machine.status(fid).await.status, before);
        assert!(!world.copies(fid).await.online);
        let part = world.machine.fetch(fid, 70_000, 10).await.unwrap();
        assert_eq!(part, bytes[70_000..70_010]);
        assert_eq!(read(&world.machine, fid).await, bytes);
        assert_eq!(world.machine.status(fid).await.status, before);
        let listed = world.copies(fid).await;
        assert!(listed.online && listed.copies[..] == [copy]);
        assert_eq!((world.count(2..4), world.count(4..6)), (2, 1));
        // It has a good copy, so it is wiped again without another.
        assert_eq!(world.wipe(fid, 1).await, BIG as u64);
        world.online_objects(0).await;
        assert_eq!(read(&world.machine, fid).await, bytes);
    });
}

#[test]
fn many_readers_share_one_recall() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let bytes = pattern(BIG, 2);
        let fid = world.file("f", &bytes).await;
        world.archive(fid, 4).await;
        world.wipe(fid, 1).await;
        let archive = &world.osds.fakes[2];
        archive.set_fault(Fault::Slow(Duration::from_millis(300)));
        let before = archive.calls();
        let machines: Vec<Machine> = (2..8).map(|n| Machine::new(&world.cell, n)).collect();
        let readers = machines.iter().map(|machine| read(machine, fid));
        for read in futures_util::future::join_all(readers).await {
            assert_eq!(read, bytes);
        }
        assert_eq!(archive.calls() - before, 1);
        // While one file waits, others are served.
        let other = world.file("other", &bytes).await;
        world.wipe(fid, 1).await;
        archive.set_fault(Fault::Slow(Duration::from_secs(2)));
        let late = read(&world.machine, fid);
        let soon = async {
            let begun = tokio::time::Instant::now();
            assert_eq!(read(&machines[0], other).await, bytes);
            begun.elapsed()
        };
        let (late, soon) = futures_util::future::join(late, soon).await;
        assert_eq!(late, bytes);
        assert!(soon < Duration::from_secs(1), "{soon:?}");
    });
}

#[test]
fn a_store_that_keeps_bytes_recalls_them_and_one_that_keeps_none_does_not() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let mut bytes = pattern(BIG, 3);
        let fid = world.file("f", &bytes).await;
        let copy = world.archive(fid, 4).await;
        world.wipe(fid, 1).await;
        for (position, length) in [(100, 50), (BIG, 200_000)] {
            let new = pattern(length, position as u64);
            store(&world.machine, fid, position as u64, &new, KEEP)
                .await
                .unwrap();
            bytes.resize(bytes.len().max(position + length), 0);
            bytes[position..position + length].copy_from_slice(&new);
            assert_eq!(read(&world.machine, fid).await, bytes);
        }
        let listed = world.copies(fid).await;
        assert!(listed.online && listed.version != copy.version);
        assert_eq!(listed.copies[..], [copy], "of the older bytes");
        let refused = world.admin.call(&Wipe { fid, copies: 1 }).await;
        assert_eq!(
            code(refused),
            AbortCode::EAGAIN.0,
            "the new bytes have no copy"
        );
        world.archive(fid, 5).await;
        world.wipe(fid, 1).await;
        world.online_objects(0).await;
        let calls = world.osds.fakes[3].calls();
        let all = pattern(BIG, 9);
        store(&world.machine, fid, 0, &all, 0).await.unwrap();
        assert_eq!(world.osds.fakes[3].calls(), calls, "nothing was recalled");
        assert_eq!(read(&world.machine, fid).await, all);
    });
}

#[test]
fn a_bad_copy_is_not_used_and_the_other_archive_is_asked() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let bytes = pattern(BIG, 4);
        let fid = world.file("f", &bytes).await;
        for archive in ARCHIVES {
            world.archive(fid, archive).await;
        }
        assert_eq!(world.wipe(fid, 2).await, BIG as u64);
        world.online_objects(0).await;
        world.damage(4);
        world.damage(5);
        // Both are bad. It is an error that is not repeated for ever, and nothing wrong is read.
        let refused = world.machine.fetch(fid, 0, 1 << 30).await;
        assert_eq!(code(refused), AbortCode::EIO.0);
        let listed = world.copies(fid).await;
        assert!(listed.copies.iter().all(|copy| copy.bad) && !listed.online);
        world.online_objects(0).await;
        world.damage(5);
        // The second one is good again: the same bit is changed back.
        let again = world.file("again", &bytes).await;
        for archive in ARCHIVES {
            world.archive(again, archive).await;
        }
        assert_eq!(world.wipe(again, 2).await, BIG as u64);
        world.damage(4);
        assert_eq!(read(&world.machine, again).await, bytes);
        let listed = world.copies(again).await;
        let bad: Vec<u32> = listed
            .copies
            .iter()
            .filter(|copy| copy.bad)
            .map(|c| c.osd)
            .collect();
        assert_eq!(bad, [4], "it was asked first");
    });
}

#[test]
fn an_archive_that_fails_changes_nothing() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let bytes = pattern(BIG, 5);
        let fid = world.file("f", &bytes).await;
        let archive = &world.osds.fakes[2];
        for (fault, wanted) in [
            (Fault::Writes(AbortCode::ENOSPC), AbortCode::VDISKFULL),
            (Fault::Midway(AbortCode::EIO), AbortCode::EIO),
            (Fault::Abort(AbortCode::EACCES), AbortCode::EACCES),
        ] {
            archive.set_fault(fault);
            let refused = world.admin.call(&Archive { fid, osd: 4 }).await;
            assert_eq!(code(refused), wanted.0, "{fault:?}");
            assert!(world.copies(fid).await.copies.is_empty());
        }
        archive.set_fault(Fault::None);
        for osd in [2, 77] {
            let refused = world.admin.call(&Archive { fid, osd }).await;
            assert_eq!(code(refused), AbortCode::EINVAL.0, "{osd} is no archive");
        }
        world.archive(fid, 4).await;
        // The archive loses the copy, or does not answer: the file is not wiped.
        archive.set_fault(Fault::Abort(AbortCode::EIO));
        let refused = world.admin.call(&Wipe { fid, copies: 1 }).await;
        assert_eq!(code(refused), AbortCode::EAGAIN.0);
        archive.set_fault(Fault::None);
        let lost = archive.objects(std::mem::take);
        let refused = world.admin.call(&Wipe { fid, copies: 1 }).await;
        assert_eq!(code(refused), AbortCode::EAGAIN.0);
        archive.objects(|objects| *objects = lost);
        assert_eq!(read(&world.machine, fid).await, bytes);
        assert_eq!(world.wipe(fid, 1).await, BIG as u64);
        // The archive is away: an error, and the file comes back with the archive.
        archive.set_fault(Fault::Abort(AbortCode::EIO));
        let refused = world.machine.fetch(fid, 0, 10).await;
        assert_eq!(code(refused), AbortCode::EIO.0);
        assert!(!world.copies(fid).await.copies[0].bad);
        archive.set_fault(Fault::None);
        assert_eq!(read(&world.machine, fid).await, bytes);
    });
}

#[test]
fn a_store_during_the_copy_leaves_no_copy() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let fid = world.file("f", &pattern(BIG, 6)).await;
        let archive = &world.osds.fakes[2];
        archive.set_fault(Fault::SlowWrites(Duration::from_millis(500)));
        let copying = Archive { fid, osd: 4 };
        let copying = world.admin.call(&copying);
        let storing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            store(&world.machine, fid, 0, b"other bytes", KEEP)
                .await
                .unwrap();
        };
        let (copied, ()) = futures_util::future::join(copying, storing).await;
        assert_eq!(code(copied), AbortCode::VBUSY.0);
        assert!(world.copies(fid).await.copies.is_empty());
        assert_eq!(world.count(4..6), 0);
    });
}

#[test]
fn read_only_volumes_do_not_keep_wiped_bytes_and_recall_them_as_well() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let bytes = pattern(BIG, 7);
        let fid = world.file("f", &bytes).await;
        world.archive(fid, 4).await;
        let volser = Volser(world.cell.admin().await);
        volser.read_only_clone().await;
        assert_eq!(world.wipe(fid, 1).await, BIG as u64);
        world.online_objects(0).await;
        let there = Fid {
            volume: CLONE,
            ..fid
        };
        assert_eq!(read(&world.machine, there).await, bytes);
        assert!(world.copies(fid).await.online, "both have the same objects");
        assert_eq!(world.count(2..4), 2);
        world.admin.call(&Recall { fid }).await.unwrap();
    });
}

#[test]
fn copies_count_in_the_sums_of_vos_traverse() {
    let cell = Cell::start();
    run(async {
        let world = World::start(cell).await;
        let volser = Volser(world.cell.admin().await);
        let bytes = pattern(BIG, 8);
        let mut files = Vec::new();
        for name in ["plain", "copied", "wiped", "twice"] {
            files.push(world.file(name, &bytes).await);
        }
        let [_, copied, wiped, twice] = files[..] else {
            panic!("four files");
        };
        for (fid, osd) in [(copied, 4), (wiped, 4), (twice, 4), (twice, 5)] {
            world.archive(fid, osd).await;
        }
        for fid in [wiped, twice] {
            world.wipe(fid, 1).await;
        }
        let asked = Traverse {
            partition: 0,
            volume: OPEN,
        };
        let usage = volser.0.call(&asked).await.unwrap().usage;
        let counts = (usage.in_objects.count, usage.wiped.count, usage.here.count);
        assert_eq!(counts, (2, 2, 0));
        let of = |osd: u32| {
            let found = usage.devices.iter().find(|device| device.osd == osd);
            let found = found.copied().unwrap_or_default();
            (found.objects.count, found.single.count)
        };
        // Two objects of each online file; only those of the file without a copy are single.
        let online = [of(2), of(3)];
        assert_eq!(online.iter().map(|(objects, _)| objects).sum::<u64>(), 4);
        assert_eq!(online.iter().map(|(_, single)| single).sum::<u64>(), 2);
        assert_eq!([of(4), of(5)], [(3, 1), (1, 0)]);
    });
}
