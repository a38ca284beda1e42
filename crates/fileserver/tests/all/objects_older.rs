//! Older bytes that archives keep: of removed files, and superseded ones.

use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::Embedded;
use cellar_fileserver::HsmConfig;
use cellar_objects::fake::Fault;
use cellar_rpc::{CallError, Connection};
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{
    self, ListOlder, ListReferences, OlderFile, OlderVersion, ReadOlder, ReadOlderReply,
};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::rxafs;

use crate::common::osds::{KEEP, THRESHOLD, pattern};
use crate::common::plain_code as code;
use crate::common::{ALICE, Cell, NOW, OPEN, list, mode, name, run, stated, store_within as store};
use crate::objects_archived::World;

const BIG: usize = 5 * THRESHOLD as usize + 777;
const DAY: Duration = Duration::from_secs(86_400);

/// A world in which older bytes are kept for that time.
async fn keeping(cell: Cell, time: Duration) -> World {
    let world = World::start_with(cell, "=> osd, stripes=2, ssize=12;").await;
    world.cell.server.keep_older(time);
    world
}

async fn remove(world: &World, dir: Fid, title: &str) {
    let call = rxafs::RemoveFile {
        dir_fid: dir,
        name: name(title),
    };
    world.machine.ok(&call).await;
}

/// Older bytes as the caller of this connection sees them.
async fn older(caller: &Connection, fid: Fid) -> Result<Vec<OlderFile>, CallError> {
    let (mut files, mut after) = (Vec::new(), Fid::default());
    loop {
        let all = false;
        let page = caller.call(&ListOlder { fid, all, after }).await?;
        files.extend(page.files.into_vec());
        if !page.more {
            return Ok(files);
        }
        after = page.next;
    }
}

async fn read(caller: &Connection, fid: Fid, version: &OlderVersion) -> Result<Vec<u8>, CallError> {
    let asked = ReadOlder {
        fid,
        volume: version.volume,
        version: version.version,
    };
    let mut call = caller.open(&asked).await?;
    call.finish();
    let length: u64 = call.read().await?;
    let mut bytes = Vec::new();
    call.read_exact(length, |chunk| bytes.extend_from_slice(&chunk))
        .await?;
    call.results::<ReadOlderReply>().await?;
    Ok(bytes)
}

/// The archives that files of this server need objects on.
async fn needed(world: &World) -> Vec<u32> {
    let asked = ListReferences {
        volume: OPEN.0,
        after: Fid::default(),
        limit: 1000,
    };
    let listed = world.admin.call(&asked).await.unwrap().references;
    let osds = listed.iter().map(|reference| reference.osd);
    let mut archives: Vec<u32> = osds.filter(|osd| *osd > 3).collect();
    archives.sort_unstable();
    archives
}

#[test]
fn a_removed_file_is_listed_and_its_bytes_are_read() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, DAY).await;
        let root = Fid::root(OPEN);
        let bytes = pattern(BIG, 1);
        let fid = world.file("f", &bytes).await;
        let copy = world.archive(fid, 4).await;
        assert_eq!(world.archive(fid, 5).await.contents(), copy.contents());
        let before = world.machine.status(fid).await.status;
        world.wipe(fid, 2).await;
        assert_eq!(older(&world.admin, root).await.unwrap(), []);
        world.cell.wait_secs(100);
        remove(&world, root, "f").await;
        let files = older(&world.admin, root).await.unwrap();
        let [file] = &files[..] else {
            panic!("{files:?}");
        };
        let version = OlderVersion {
            volume: OPEN.0,
            version: copy.version,
            data_version: before.data_version,
            length: BIG as u64,
            made: NOW,
            until: NOW + 100 + DAY.as_secs(),
            archives: vec![4, 5].try_into().unwrap(),
        };
        let wanted = OlderFile {
            fid,
            removed: NOW + 100,
            name: name("f"),
            parent: root,
            mode: before.unix_mode & 0o7777,
            owner: before.owner,
            length: BIG as u64,
            data_version: before.data_version,
            modified: before.client_mod_time,
            versions: vec![version.clone()].try_into().unwrap(),
        };
        assert_eq!(*file, wanted);
        assert_eq!(needed(&world).await, [4, 5]);
        assert_eq!(read(&world.admin, fid, &version).await.unwrap(), bytes);
        // The first archive has other bytes: the second one is read.
        world.damage(4);
        assert_eq!(read(&world.admin, fid, &version).await.unwrap(), bytes);
        world.damage(5);
        let refused = read(&world.admin, fid, &version).await;
        assert_eq!(code(refused), AbortCode::EIO.0);
        let other = OlderVersion {
            version: 1,
            ..version
        };
        let refused = read(&world.admin, fid, &other).await;
        assert_eq!(code(refused), AbortCode::ENOENT.0);
    });
}

#[test]
fn superseded_bytes_are_listed_and_read() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, DAY).await;
        let bytes = pattern(BIG, 2);
        let fid = world.file("f", &bytes).await;
        let first = world.archive(fid, 4).await;
        let files = older(&world.admin, fid).await.unwrap();
        assert!(files[0].versions.is_empty(), "these are the present bytes");
        world.cell.wait_secs(100);
        world.store(fid, 0, b"other bytes").await;
        let files = older(&world.admin, fid).await.unwrap();
        assert_eq!((files[0].removed, files.len()), (0, 1));
        assert_eq!((files[0].fid, files[0].parent), (fid, Fid::root(OPEN)));
        let versions = files[0].versions.to_vec();
        assert_eq!(versions.len(), 1);
        let version = &versions[0];
        assert_eq!(
            (version.version, version.until),
            (first.version, NOW + 100 + DAY.as_secs())
        );
        assert!(version.data_version < files[0].data_version);
        assert_eq!(read(&world.admin, fid, version).await.unwrap(), bytes);
        // An archive that does not answer is an error, and nothing is marked.
        world.osds.fakes[2].set_fault(Fault::Abort(AbortCode::EIO));
        let refused = read(&world.admin, fid, version).await;
        assert_eq!(code(refused), AbortCode::EIO.0);
        world.osds.fakes[2].set_fault(Fault::None);
        assert_eq!(read(&world.admin, fid, version).await.unwrap(), bytes);
        // A removal keeps all of them.
        world.archive(fid, 5).await;
        remove(&world, Fid::root(OPEN), "f").await;
        let files = older(&world.admin, Fid::root(OPEN)).await.unwrap();
        assert_eq!(files[0].versions.len(), 2);
        assert_eq!(read(&world.admin, fid, version).await.unwrap(), bytes);
    });
}

#[test]
fn a_removed_file_has_the_rights_of_its_directory() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, DAY).await;
        let dir = world.machine.make_dir(Fid::root(OPEN), "d").await;
        let bytes = pattern(BIG, 3);
        let fid = world.machine.create(dir, "f").await;
        store(&world.machine, fid, 0, &bytes, KEEP).await.unwrap();
        world.archive(fid, 4).await;
        let secret = world.machine.create(dir, "secret").await;
        store(&world.machine, secret, 0, &bytes, KEEP)
            .await
            .unwrap();
        world.archive(secret, 4).await;
        let only_written = rxafs::StoreStatus {
            fid: secret,
            in_status: mode(0o200),
        };
        world.machine.ok(&only_written).await;
        remove(&world, dir, "f").await;
        remove(&world, dir, "secret").await;
        let service = afsosd::PACKAGE.service_id;
        let alice = world.machine.principal(stated::user("alice"), service);
        let files = older(&alice, dir).await.unwrap();
        assert_ne!(files[0].owner, ViceId(ALICE));
        let version = files[0].versions[0].clone();
        let refused = read(&alice, secret, &files[1].versions[0]).await;
        assert_eq!(code(refused), AbortCode::EACCES.0, "its mode forbids it");
        for (rights, lists, reads) in [
            ("rl", true, true),
            ("l", false, false),
            ("r", false, false),
            ("idwk", false, false),
        ] {
            world.cell.set_list(dir, list(&[(ALICE, rights)]));
            let listed = older(&alice, dir).await;
            assert_eq!(listed.is_ok(), lists, "{rights}");
            let read = read(&alice, fid, &version).await;
            assert_eq!(read.is_ok(), reads, "{rights}");
            if let Err(cause) = read {
                assert_eq!(cause.code(), AbortCode::EACCES, "{rights}");
            }
        }
        let whole = ListOlder {
            fid: dir,
            all: true,
            after: Fid::default(),
        };
        assert_eq!(code(alice.call(&whole).await), AbortCode::EPERM.0);
    });
}

/// The directory is removed, too: superusers find the file in the list of the volume.
#[test]
fn a_file_of_a_removed_directory_is_for_superusers() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, DAY).await;
        let root = Fid::root(OPEN);
        let dir = world.machine.make_dir(root, "d").await;
        let fid = world.machine.create(dir, "f").await;
        let bytes = pattern(BIG, 4);
        store(&world.machine, fid, 0, &bytes, KEEP).await.unwrap();
        world.archive(fid, 4).await;
        remove(&world, dir, "f").await;
        let gone = rxafs::RemoveDir {
            dir_fid: root,
            name: name("d"),
        };
        world.machine.ok(&gone).await;
        assert_eq!(older(&world.admin, root).await.unwrap(), []);
        let refused = older(&world.admin, dir).await;
        assert_eq!(code(refused), AbortCode::VNOVNODE.0);
        let whole = ListOlder {
            fid: root,
            all: true,
            after: Fid::default(),
        };
        let listed = world.admin.call(&whole).await.unwrap();
        assert_eq!((listed.files.len(), listed.more), (1, false));
        let version = &listed.files[0].versions[0];
        assert_eq!(read(&world.admin, fid, version).await.unwrap(), bytes);
        let service = afsosd::PACKAGE.service_id;
        let alice = world.machine.principal(stated::user("alice"), service);
        let refused = read(&alice, fid, version).await;
        assert_eq!(code(refused), AbortCode::VNOVNODE.0);
    });
}

#[test]
fn older_bytes_end_when_their_time_has_passed() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, Duration::from_secs(8)).await;
        let jobs = tempfile::tempdir().unwrap();
        let database = Embedded::open(&jobs.path().join("jobs.redb")).unwrap();
        let config = HsmConfig {
            jobs: Arc::new(database),
            pins: world.osds.database.clone(),
            interval: Duration::ZERO,
            copy_rate: 0,
            verify_interval: Duration::ZERO,
            verify_rate: 0,
        };
        world.cell.server.keep_archives(&world.cell.runtime, config);
        let root = Fid::root(OPEN);
        let removed = world.file("removed", &pattern(BIG, 5)).await;
        world.archive(removed, 4).await;
        let changed = world.file("changed", &pattern(BIG, 6)).await;
        world.archive(changed, 5).await;
        remove(&world, root, "removed").await;
        world.store(changed, 0, b"other bytes").await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(needed(&world).await, [4, 5], "the clock stands still");
        world.cell.wait_secs(8);
        until("the end of the time", async || {
            needed(&world).await.is_empty()
        })
        .await;
        assert_eq!(older(&world.admin, root).await.unwrap(), []);
        let files = older(&world.admin, changed).await.unwrap();
        assert!(files[0].versions.is_empty());
    });
}

#[test]
fn without_a_time_a_removed_file_keeps_no_copies() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, Duration::ZERO).await;
        let fid = world.file("f", &pattern(BIG, 7)).await;
        world.archive(fid, 4).await;
        assert_eq!(needed(&world).await, [4]);
        remove(&world, Fid::root(OPEN), "f").await;
        assert!(needed(&world).await.is_empty());
        assert_eq!(older(&world.admin, Fid::root(OPEN)).await.unwrap(), []);
    });
}

#[test]
fn only_some_reads_of_older_bytes_run_at_a_time() {
    let cell = Cell::start();
    run(async {
        let world = keeping(cell, DAY).await;
        let bytes = pattern(BIG, 8);
        let fid = world.file("f", &bytes).await;
        world.archive(fid, 4).await;
        world.store(fid, 0, b"other bytes").await;
        let files = older(&world.admin, fid).await.unwrap();
        let version = &files[0].versions[0];
        world.osds.fakes[2].set_fault(Fault::Slow(Duration::from_secs(2)));
        let service = afsosd::PACKAGE.service_id;
        // A connection has four calls at a time.
        let users = ["alice", "bob", "carol", "alice", "bob"];
        let users = users.map(|user| world.machine.principal(stated::user(user), service));
        let calls = users.iter().flat_map(|user| [user; 4]);
        let calls = calls.map(|user| read(user, fid, version));
        let ended = futures_util::future::join_all(calls).await;
        let (served, refused): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
        assert_eq!((served.len(), refused.len()), (16, 4));
        assert!(served.into_iter().all(|read| read.unwrap() == bytes));
        for refused in refused {
            assert_eq!(code(refused), AbortCode::VBUSY.0);
        }
        world.osds.fakes[2].set_fault(Fault::None);
        assert_eq!(read(&world.admin, fid, version).await.unwrap(), bytes);
    });
}
