//! Leases of directories: which calls wait for their holders, and when they end.

use crate::common;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::making::{Block, codes, made, make_many};
use crate::common::{ANYUSER, CLONE, Cell, Machine, OPEN, list, mode, name, run};
use cellar_fileserver::Config;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, Fids, LeaseDirectory, ReturnDirectories};

const EAGAIN: i32 = 11;
/// Long enough for a call that does not wait.
const SOON: Duration = Duration::from_millis(300);

async fn lease(machine: &Machine, dir_fid: Fid) -> rxafs::LeaseDirectoryReply {
    machine.ok(&LeaseDirectory { dir_fid }).await
}

async fn refused(machine: &Machine, dir_fid: Fid) {
    assert_eq!(machine.code(&LeaseDirectory { dir_fid }).await, EAGAIN);
}

async fn give_back(machine: &Machine, dir: Fid) {
    let fids = Fids::from_iter_cut([dir]);
    machine.ok(&ReturnDirectories { fids }).await;
}

/// Asserts that a call waits until the holder of the lease received the recall and returned the
/// directory.
async fn waits<T>(holder: &Machine, dir: Fid, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    let waited = tokio::time::timeout(SOON, &mut call).await;
    assert!(waited.is_err(), "it did not wait");
    assert_eq!(holder.take_breaks(), [dir]);
    give_back(holder, dir).await;
    match tokio::time::timeout(Duration::from_secs(5), call).await {
        Ok(answer) => answer,
        Err(_) => panic!("it waits on"),
    }
}

fn create_f(dir_fid: Fid) -> rxafs::CreateFile {
    rxafs::CreateFile {
        dir_fid,
        name: name("f"),
        in_status: mode(0o644),
    }
}

/// A cell with leases of that duration.
fn cell_of(secs: u64) -> Cell {
    Cell::start_with(|config| Config {
        lease: Duration::from_secs(secs),
        ..config
    })
}

/// A new directory with a lease of the given machine.
async fn leased(one: &Machine, what: &str) -> Fid {
    let dir = one.make_dir(Fid::root(OPEN), what).await;
    let reply = lease(one, dir).await;
    assert_eq!(reply.lease_secs, 15);
    assert!(reply.callback.expires_in_secs > 0);
    assert_eq!(
        reply.status.data_version,
        one.status(dir).await.status.data_version
    );
    dir
}

#[test]
fn a_host_that_looks_at_or_changes_a_leased_directory_waits_until_it_is_given_back() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let file = two.create(root, "file").await;
        let other = two.make_dir(root, "other").await;
        let admin = cell.admin().await;
        macro_rules! each {
            ($($what:literal => |$dir:ident| $call:expr;)*) => {$(
                let $dir = leased(&one, $what).await;
                one.take_breaks();
                waits(&one, $dir, async { $call }).await;
                assert_eq!(cell.server.figures().leases, 0, $what);
            )*};
        }
        let fids = |dir| Fids::from_iter_cut([root, dir]);
        let acl = || rxafs::AfsOpaque::try_from("1\n0\nsystem:anyuser\t127\n\0").unwrap();
        each! {
            "FetchStatus" => |fid| two.ok(&rxafs::FetchStatus { fid }).await;
            "FetchData" => |fid| two.fetch(fid, 0, 9999).await.unwrap();
            "FetchACL" => |fid| two.ok(&rxafs::FetchACL { fid }).await;
            "BulkStatus" => |fid| two.ok(&rxafs::BulkStatus { fids: fids(fid) }).await;
            "InlineBulkStatus" => |fid| {
                let found = two.ok(&rxafs::InlineBulkStatus { fids: fids(fid) }).await;
                assert_eq!(found.statuses[1].error_code.0, 0);
            };
            "CreateFile" => |dir| two.create(dir, "f").await;
            "MakeDir" => |dir| two.make_dir(dir, "d").await;
            "Symlink" => |dir_fid| two.ok(&rxafs::Symlink {
                dir_fid, name: name("l"), link_contents: rxafs::AfsPath::try_from("t").unwrap(), in_status: mode(0o755),
            }).await;
            "Link" => |dir_fid| two.code(&rxafs::Link { dir_fid, name: name("l"), existing_fid: file }).await;
            "RemoveFile" => |dir_fid| two.code(&rxafs::RemoveFile { dir_fid, name: name("x") }).await;
            "RemoveDir" => |dir_fid| two.code(&rxafs::RemoveDir { dir_fid, name: name("x") }).await;
            "Rename from" => |dir| two.code(&rxafs::Rename {
                old_dir_fid: dir, old_name: name("x"), new_dir_fid: other, new_name: name("x"),
            }).await;
            "Rename to" => |dir| two.code(&rxafs::Rename {
                old_dir_fid: other, old_name: name("x"), new_dir_fid: dir, new_name: name("x"),
            }).await;
            "StoreACL" => |fid| two.ok(&rxafs::StoreACL { fid, access_list: acl() }).await;
            "StoreStatus" => |fid| two.ok(&rxafs::StoreStatus { fid, in_status: mode(0o700) }).await;
            "SetLock" => |fid| two.ok(&rxafs::SetLock { fid, lock_type: 0 }).await;
            "MakeMany" => |dir| {
                let mut block = Block::reserve(&two, dir).await;
                made(&two, &[block.file(dir, "f", b"x")]).await
            };
            "the local administrator" => |fid| admin.call(&rxafs::FetchStatus { fid }).await.unwrap();
        }
        // The state of the directory itself matters here: whether it is empty, and its parent.
        let dir = leased(&one, "gone").await;
        let call = rxafs::RemoveDir {
            dir_fid: root,
            name: name("gone"),
        };
        waits(&one, dir, two.ok(&call)).await;
        let dir = leased(&one, "moved").await;
        let call = rxafs::Rename {
            old_dir_fid: root,
            old_name: name("moved"),
            new_dir_fid: other,
            new_name: name("moved"),
        };
        waits(&one, dir, two.ok(&call)).await;
    });
}

/// The other machine finds the entries that the holder created and sent after the recall.
#[test]
fn creates_under_a_lease_reach_the_server_before_others_look() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let dir = leased(&one, "dir").await;
        let mut block = Block::reserve(&one, dir).await;
        let items = [block.file(dir, "f", b"bytes")];
        one.take_breaks();
        let call = create_f(dir);
        let mut create = std::pin::pin!(two.call(&call));
        assert!(tokio::time::timeout(SOON, &mut create).await.is_err());
        let reply = made(&one, &items).await;
        assert_eq!(reply.directories[0].lease_secs, 0, "it was recalled");
        assert!(tokio::time::timeout(SOON, &mut create).await.is_err());
        give_back(&one, dir).await;
        assert_eq!(common::plain_code(create.await), 17);
        assert_eq!(two.fetch(items[0].fid, 0, 9).await.unwrap(), b"bytes");
    });
}

#[test]
fn the_holders_own_calls_pass_and_make_it_last_longer() {
    let cell = cell_of(1);
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let dir = one.make_dir(root, "dir").await;
        assert_eq!(lease(&one, dir).await.lease_secs, 1);
        let mut block = Block::reserve(&one, dir).await;
        // The margin is a second; four of these rounds are longer.
        for n in 0..4 {
            one.status(dir).await;
            one.create(dir, &format!("own{n}")).await;
            let reply = made(&one, &[block.file(dir, &format!("many{n}"), b"x")]).await;
            assert_eq!(reply.directories[0].lease_secs, 1);
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        assert_eq!(lease(&one, dir).await.lease_secs, 1, "a request extends it");
        assert_eq!(one.take_breaks(), []);
        // It expires.
        let begun = Instant::now();
        two.status(dir).await;
        assert!(
            begun.elapsed() > Duration::from_millis(1500),
            "{:?}",
            begun.elapsed()
        );
        assert!(
            begun.elapsed() < Duration::from_millis(3000),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(one.take_breaks(), [dir]);
        let reply = made(&one, &[block.file(dir, "late", b"x")]).await;
        assert_eq!(reply.directories[0].lease_secs, 0);
        // Other directories are not affected.
        two.status(root).await;
    });
}

#[test]
fn a_directory_that_others_want_is_not_leased() {
    let cell = Cell::start();
    let (one, two, three) = (
        Machine::new(&cell, 1),
        Machine::new(&cell, 2),
        Machine::new(&cell, 3),
    );
    run(async {
        let root = Fid::root(OPEN);
        let dir = leased(&one, "dir").await;
        refused(&two, dir).await;
        assert_eq!(one.take_breaks(), [], "asking for it recalls nothing");
        give_back(&one, dir).await;
        for machine in [&one, &two] {
            refused(machine, dir).await;
        }
        let recalled = leased(&one, "recalled").await;
        waits(&one, recalled, two.status(recalled)).await;
        for machine in [&one, &two] {
            refused(machine, recalled).await;
        }
        // A recalled lease is not extended.
        let held = leased(&one, "held").await;
        let mut look = std::pin::pin!(two.status(held));
        assert!(tokio::time::timeout(SOON, &mut look).await.is_err());
        refused(&one, held).await;
        give_back(&three, held).await;
        assert!(
            tokio::time::timeout(SOON, &mut look).await.is_err(),
            "not his"
        );
        give_back(&one, held).await;
        look.await;
        // A machine that may not create entries, or cannot be called back, gets no lease.
        let shut = one.make_dir(root, "shut").await;
        cell.set_list(shut, list(&[(ANYUSER, "rlwdk")]));
        assert_eq!(one.code(&LeaseDirectory { dir_fid: shut }).await, 13);
        let deaf = Machine::new(&cell, 4);
        deaf.service.deaf.store(true, Ordering::Relaxed);
        refused(&deaf, root).await;
        let file = one.create(root, "file").await;
        assert_eq!(one.code(&LeaseDirectory { dir_fid: file }).await, 20);
        cell.make_clone();
        let dir_fid = Fid::root(CLONE);
        assert_eq!(one.code(&LeaseDirectory { dir_fid }).await, 30);
    });
}

#[test]
fn others_are_notified_before_a_lease_is_granted() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let dir = one.make_dir(Fid::root(OPEN), "dir").await;
        two.status(dir).await;
        lease(&one, dir).await;
        assert_eq!(two.take_breaks(), [dir]);
        assert_eq!(one.take_breaks(), []);
    });
}

#[test]
fn a_lease_ends_with_the_promises_of_its_host() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let dir = leased(&one, "given up").await;
        one.ok(&rxafs::GiveUpAllCallBacks {}).await;
        assert_eq!(cell.server.figures().leases, 0);
        let begun = Instant::now();
        two.status(dir).await;
        assert!(begun.elapsed() < Duration::from_secs(3));
        // Another process at the same address, with the UUID of the same client.
        let dir = leased(&one, "another").await;
        let address = one.port.local_address();
        let service = one.service.clone();
        drop(one);
        let again = Machine::at(cell.address(), address, service);
        assert_eq!(cell.server.figures().leases, 1);
        again.status(Fid::root(OPEN)).await;
        assert_eq!(cell.server.figures().leases, 0);
        two.status(dir).await;
    });
}

#[test]
fn directories_that_are_made_are_leased_from_birth() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let mut block = Block::reserve(&one, root).await;
        let dir = block.dir(root, "d");
        let items = [
            dir.clone(),
            block.file(dir.fid, "f", b"x"),
            block.dir(root, "d"),
        ];
        let reply = make_many(&one, &items).await.unwrap();
        assert_eq!(codes(&reply), [0, 0, 17]);
        assert_eq!(reply.results[0].lease_secs, 15);
        let leases = reply.directories.iter().map(|dir| dir.lease_secs);
        assert_eq!(leases.collect::<Vec<_>>(), [0, 15]);
        assert_eq!(
            cell.server.figures().leases,
            1,
            "no lease without a directory"
        );
        one.take_breaks();
        waits(&one, dir.fid, two.status(dir.fid)).await;
        // A host that gets no promises gets no leases.
        let deaf = Machine::new(&cell, 4);
        deaf.service.deaf.store(true, Ordering::Relaxed);
        let mut block = Block::reserve(&deaf, root).await;
        let reply = made(&deaf, &[block.dir(root, "e")]).await;
        assert_eq!(reply.results[0].lease_secs, 0);
        assert_eq!(cell.server.figures().leases, 0);
    });
}

/// Two machines create files in one directory, each under a lease if it gets one: no name is
/// created twice.
#[test]
fn a_name_is_made_once_for_any_holder_of_the_lease() {
    let cell = cell_of(2);
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let dirs: Vec<Fid> = {
            let mut dirs = Vec::new();
            for n in 0..20 {
                dirs.push(one.make_dir(Fid::root(OPEN), &format!("d{n}")).await);
            }
            dirs
        };
        for dir in dirs {
            let leaser = async {
                let Ok(granted) = one.call(&LeaseDirectory { dir_fid: dir }).await else {
                    return None;
                };
                // The holder sees all earlier entries, and from now on no other host creates any.
                Some(granted.status.data_version)
            };
            let call = create_f(dir);
            let creator = two.call(&call);
            let holder = async {
                let version = leaser.await;
                if let Some(version) = version {
                    // The creator does not get in while the lease lasts.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    assert_eq!(one.status(dir).await.status.data_version, version);
                    give_back(&one, dir).await;
                }
            };
            let ((), created) = tokio::join!(holder, creator);
            created.unwrap();
        }
    });
}
