//! Reserved numbers, and the entries that MakeMany creates under them: as by single calls, once, or
//! not at all.

use crate::common;

use crate::common::making::{Block, Item, MADE, codes, made, make_many};
use crate::common::osds::{Osds, layout, set_policy};
use crate::common::{
    ANYUSER, CLONE, Cell, Machine, OPEN, SHUT, list, mode, plain_code, quota, run,
};
use cellar_objects::fake::Fault;
use cellar_wire::AbortCode;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::rxafs::{self, FileType, MAKE_MANY_BYTES_MAX, RESERVE_MAX};

const NO_VNODE: i32 = 102;
const NO_VOLUME: i32 = 103;
const OVER_QUOTA: i32 = 109;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;
const DISK_FULL: i32 = 108;
const EROFS: i32 = 30;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 3) as u8).collect()
}

async fn code_of(machine: &Machine, items: &[Item]) -> i32 {
    plain_code(make_many(machine, items).await)
}

#[test]
fn reserved_numbers_are_no_other_hosts_also_after_a_restart() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    let root = Fid::root(OPEN);
    let (mut block, mut other) = run(async {
        let call = rxafs::ReserveVnodes {
            dir_fid: root,
            files: u32::MAX,
            directories: 0,
        };
        let many = one.ok(&call).await;
        assert_eq!((many.files, many.directories), (RESERVE_MAX, 0));
        let block = Block::reserve(&one, root).await;
        assert!(block.numbers.first_file.0 >= many.first_file.0 + 2 * RESERVE_MAX);
        let other = Block::reserve(&two, root).await;
        assert!(other.numbers.first_uniquifier.0 >= block.numbers.first_uniquifier.0 + 200);
        let fresh = two.create(root, "fresh").await;
        assert!(fresh.vnode.0 >= other.numbers.first_file.0 + 200);
        (block, other)
    });
    let cell = cell.restart(false);
    run(async {
        let fresh = two.create(root, "again").await;
        assert!(fresh.vnode.0 >= other.numbers.first_file.0 + 200);
        // The numbers still belong to the first machine, and not to the other.
        let (mine, its) = (
            block.file(root, "mine", b"x"),
            other.file(root, "its", b"y"),
        );
        let reply = make_many(&two, &[mine.clone(), its]).await.unwrap();
        assert_eq!(codes(&reply), [NO_VNODE, 0]);
        made(&one, &[mine]).await;
        drop(cell);
    });
}

#[test]
fn a_tree_is_made_as_by_single_calls() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        two.status(root).await;
        let mut block = Block::reserve(&one, root).await;
        let top = block.dir(root, "top");
        let below = block.dir(top.fid, "below");
        let mut items = vec![
            top.clone(),
            below.clone(),
            block.link(top.fid, "link", "to/there"),
        ];
        for length in [0, 1, 4096, 5000, 100_000, 300_000] {
            items.push(block.file(below.fid, &format!("f{length}"), &pattern(length)));
        }
        items.push(block.file(root, "last", b"bytes"));
        let reply = made(&one, &items).await;
        assert_eq!(two.take_breaks(), [root], "once, and before the answer");
        for (item, made) in items.iter().zip(&reply.results) {
            let now = one.status(item.fid).await;
            assert_eq!(now.status, made.status);
            assert!(made.callback.expires_in_secs > 0);
            assert_eq!(one.lookup(dir_of(item), &text(item)).await, item.fid);
            assert_eq!(made.status.file_type, item.making.kind);
            match item.making.kind {
                FileType::File => {
                    assert_eq!(one.fetch(item.fid, 0, 1 << 20).await.unwrap(), item.bytes);
                    assert_eq!(made.status.length, item.bytes.len() as u64);
                    assert_eq!(made.status.data_version, u64::from(!item.bytes.is_empty()));
                    assert_eq!(made.status.client_mod_time, MADE);
                    assert_eq!(made.status.unix_mode, 0o644);
                }
                FileType::Symlink => {
                    assert_eq!(one.fetch(item.fid, 0, 100).await.unwrap(), b"to/there");
                }
                _ => {}
            }
        }
        let dirs = [root, top.fid, below.fid];
        assert_eq!(reply.directories.len(), 3);
        for (dir, shown) in dirs.iter().zip(&reply.directories) {
            assert_eq!((shown.vnode, shown.uniquifier), (dir.vnode, dir.uniquifier));
            assert_eq!(one.status(*dir).await.status, shown.status);
        }
        // The promises are valid.
        one.take_breaks();
        two.store(items[5].fid, 0, b"other").await.unwrap();
        assert_eq!(one.take_breaks(), [items[5].fid]);
        let report = cell.partition.check().unwrap();
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
        let figures = cell.server.figures();
        assert_eq!(
            figures.stored.succeeded,
            5 + 1 + 1,
            "including the earlier one"
        );
    });
}

fn dir_of(item: &Item) -> Fid {
    Fid {
        volume: item.fid.volume,
        vnode: item.making.dir_vnode,
        uniquifier: item.making.dir_uniquifier,
    }
}

fn text(item: &Item) -> String {
    String::from_utf8(item.making.name.as_bytes().to_vec()).unwrap()
}

#[test]
fn said_twice_it_is_made_once() {
    let cell = Cell::start();
    let (one, two) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let mut block = Block::reserve(&one, root).await;
        let dir = block.dir(root, "d");
        let items = [
            dir.clone(),
            block.file(dir.fid, "f", b"bytes"),
            block.link(dir.fid, "l", "t"),
        ];
        let first = made(&one, &items).await;
        let again = made(&one, &items).await;
        assert_eq!(first, again);
        // Later changes stay.
        two.store(items[1].fid, 0, b"other bytes").await.unwrap();
        let again = made(&one, &items).await;
        assert_eq!(again.results[1].status.length, 11);
        // A removed entry is not created again.
        let call = rxafs::RemoveFile {
            dir_fid: dir.fid,
            name: common::name("f"),
        };
        one.ok(&call).await;
        let reply = make_many(&one, &items).await.unwrap();
        assert_eq!(codes(&reply), [0, NO_VNODE, 0]);
    });
}

#[test]
fn one_that_fails_leaves_the_others() {
    let cell = Cell::start();
    let one = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        one.create(root, "taken").await;
        let mut block = Block::reserve(&one, root).await;
        let file = block.file(root, "file", b"1");
        let dir = block.dir(root, "taken");
        let mut not_mine = block.file(root, "x", b"2");
        not_mine.making.uniquifier.0 += 1000;
        let mut wrong_kind = block.dir(root, "y");
        wrong_kind.making.kind = FileType::File;
        let items = [
            file.clone(),
            dir.clone(),
            block.file(dir.fid, "child", b"3"),
            not_mine,
            block.file(root, "a/b", b"4"),
            block.file(file.fid, "in a file", b"5"),
            block.file(root, "file", b"6"),
            wrong_kind,
            block.link(root, "empty", ""),
            block.file(Fid::root(VolumeId(0)), "z", b"7"),
            block.file(root, "last", b"8"),
        ];
        let mut items = items;
        items[9].making.dir_vnode.0 = 0;
        let reply = make_many(&one, &items).await.unwrap();
        let expected = [
            0, EEXIST, NO_VNODE, NO_VNODE, EINVAL, ENOTDIR, EEXIST, NO_VNODE, EINVAL, EINVAL, 0,
        ];
        assert_eq!(codes(&reply), expected);
        assert_eq!(one.fetch(items[10].fid, 0, 10).await.unwrap(), b"8");
        assert_eq!(one.fetch(file.fid, 0, 10).await.unwrap(), b"1");
        assert_eq!(reply.directories[1].status.error_code.0, NO_VNODE);
        let report = cell.partition.check().unwrap();
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
    });
}

#[test]
fn rights_are_those_of_making_in_each_directory() {
    let cell = Cell::start();
    let one = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let (shut, open) = (
            one.make_dir(root, "shut").await,
            one.make_dir(root, "open").await,
        );
        let mut block = Block::reserve(&one, root).await;
        cell.set_list(shut, list(&[(ANYUSER, "rlwdk")]));
        cell.set_list(open, list(&[(ANYUSER, "li")]));
        let refused = rxafs::ReserveVnodes {
            dir_fid: shut,
            files: 1,
            directories: 1,
        };
        assert_eq!(one.code(&refused).await, EACCES);
        // The insert right is enough, for the bytes and for a mode without write bits; but not for
        // a mount point.
        let mut file = block.file(open, "f", b"bytes");
        file.making.in_status = mode(0o4400);
        let mut mount_point = block.link(open, "m", "#root.cell.");
        mount_point.making.in_status = mode(0o644);
        let items = [
            block.file(shut, "no", b"x"),
            file,
            mount_point,
            block.link(open, "l", "t"),
        ];
        let reply = make_many(&one, &items).await.unwrap();
        assert_eq!(codes(&reply), [EACCES, 0, EACCES, 0]);
        let made = &reply.results[1].status;
        assert_eq!((made.length, made.unix_mode), (5, 0o400));
        assert_eq!(made.owner, ViceId::ANONYMOUS);
        assert_eq!(cell.server.figures().stored.succeeded, 1);
        // On repetition the entry exists, for its creator. Other users with only the insert right
        // do not see it.
        let two = Machine::new(&cell, 2);
        let again = make_many(&one, &items[1..2]).await.unwrap();
        assert_eq!(codes(&again), [0]);
        let of_another = make_many(&two, &items[1..2]).await.unwrap();
        assert_eq!(codes(&of_another), [EEXIST]);
    });
}

#[test]
fn a_file_over_quota_is_not_left_half_made() {
    let cell = Cell::start();
    let one = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let admin = cell.admin().await;
        let volume = cell.partition.volume(OPEN).unwrap().unwrap();
        let leave = async |blocks: u64| {
            let most = volume.info().blocks_used + blocks;
            admin.call(&quota(most as i32)).await.unwrap();
        };
        leave(2).await;
        let mut block = Block::reserve(&one, root).await;
        // Bytes may exceed the quota by a mebibyte, as those of StoreData. Over that, no entry is
        // created, as by CreateFile.
        let items = [
            block.file(root, "fits", b"x"),
            block.file(root, "over", &pattern(300_000)),
            block.file(root, "more", b"x"),
            block.dir(root, "dir"),
        ];
        let reply = make_many(&one, &items).await.unwrap();
        assert_eq!(codes(&reply), [0, 0, OVER_QUOTA, OVER_QUOTA]);
        assert_eq!(make_many(&one, &items).await.unwrap(), reply);
        let pages = one.fetch(root, 0, 1 << 20).await.unwrap();
        assert!(
            !pages
                .windows(4)
                .any(|part| part == b"more" || part == b"dir\0")
        );
        // The numbers are still usable.
        leave(2).await;
        made(&one, &items).await;
        let report = cell.partition.check().unwrap();
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
    });
}

#[test]
fn calls_that_cannot_be_are_refused_whole() {
    let cell = Cell::start();
    let one = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let mut block = Block::reserve(&one, root).await;
        let good = block.file(root, "good", b"x");
        let mut bytes_of_a_dir = block.dir(root, "d");
        bytes_of_a_dir.making.length = 1;
        let mut text_of_a_file = block.file(root, "t", b"");
        text_of_a_file.making.text = rxafs::AfsPath::try_from("to").unwrap();
        let mut nothing = block.file(root, "n", b"");
        nothing.making.kind = FileType::Invalid;
        let too_many = block.file(root, "m", &vec![0; MAKE_MANY_BYTES_MAX as usize]);
        for bad in [bytes_of_a_dir, text_of_a_file, nothing, too_many] {
            assert_eq!(code_of(&one, &[good.clone(), bad]).await, EINVAL);
        }
        let elsewhere = |volume| Item {
            fid: Fid { volume, ..good.fid },
            ..good.clone()
        };
        cell.make_clone();
        assert_eq!(code_of(&one, &[elsewhere(CLONE)]).await, EROFS);
        assert_eq!(code_of(&one, &[elsewhere(VolumeId(99))]).await, NO_VOLUME);
        let reply = make_many(&one, &[elsewhere(SHUT)]).await.unwrap();
        assert_eq!(codes(&reply), [EACCES]);
        // A client that stops sending.
        let mut cut = good.clone();
        cut.bytes = bytes::Bytes::new();
        assert_eq!(code_of(&one, &[cut]).await, -32);
        let pages = one.fetch(root, 0, 1 << 20).await.unwrap();
        assert!(!pages.windows(4).any(|part| part == b"good"));
        // The largest number of bytes, and an empty call.
        let most = block.file(root, "most", &pattern(MAKE_MANY_BYTES_MAX as usize));
        made(&one, &[most]).await;
        assert!(make_many(&one, &[]).await.unwrap().results.is_empty());
    });
}

/// Bytes that go to objects are stored after the creation. If that fails, no file remains.
#[test]
fn bytes_go_where_the_policies_say() {
    let cell = Cell::start();
    let one = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let osds = Osds::start(&cell, 2, &[(2, "~'*.o' => osd;")]).await;
        set_policy(&cell, OPEN, 2);
        let mut block = Block::reserve(&one, root).await;
        let items = [
            block.file(root, "a.o", &pattern(5000)),
            block.file(root, "b", &pattern(5000)),
            block.file(root, "c.o", b""),
        ];
        let reply = made(&one, &items).await;
        for (item, made) in items.iter().zip(&reply.results) {
            assert_eq!(one.fetch(item.fid, 0, 1 << 20).await.unwrap(), item.bytes);
            assert_eq!(one.status(item.fid).await.status, made.status);
            assert_eq!(made.status.client_mod_time, MADE);
            assert_eq!(made.status.data_version, u64::from(!item.bytes.is_empty()));
        }
        let in_objects = items
            .each_ref()
            .map(|item| layout(&cell, item.fid).is_some());
        assert_eq!(in_objects, [true, false, false]);
        assert_eq!(made(&one, &items).await, reply);
        // The state after a crash between creation and store.
        let mut late = block.file(root, "late.o", b"");
        made(&one, &[late.clone()]).await;
        late.bytes = pattern(100).into();
        late.making.length = 100;
        made(&one, &[late.clone()]).await;
        assert_eq!(one.fetch(late.fid, 0, 1 << 20).await.unwrap(), late.bytes);
        assert_eq!(osds.objects(), 2);
        osds.set_fault(Fault::Writes(AbortCode::ENOSPC));
        let over = block.file(root, "over.o", &pattern(5000));
        let reply = make_many(&one, &[over]).await.unwrap();
        assert_eq!(codes(&reply), [DISK_FULL]);
        let pages = one.fetch(root, 0, 1 << 20).await.unwrap();
        assert!(!pages.windows(4).any(|part| part == b"over"));
    });
}
