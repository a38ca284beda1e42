//! Files that are made in leased directories without asking, and told of later.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cellar_cachemanager::{Lock, LockKind, LockOwner, NewAttributes, Vnode};
use cellar_client::errno;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{
    CreateFile, FileType, LeaseDirectory, MakeDir, MakeMany, ReserveVnodes, ReturnDirectories,
    StoreData64, StoreStatus, Symlink,
};

use crate::bench::{Bench, Client, held};

const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const EDQUOT: i32 = 122;

async fn make_in(client: &Client, directory: &Arc<Vnode>, name: &str) -> Arc<Vnode> {
    let (cache, user) = (&client.cache, &client.user);
    let made = cache
        .names()
        .create_file(user, directory, name.as_bytes(), 0o644);
    made.await.expect(name)
}

async fn make_dir(client: &Client, directory: &Arc<Vnode>, name: &str) -> Arc<Vnode> {
    let (cache, user) = (&client.cache, &client.user);
    let made = cache
        .names()
        .make_dir(user, directory, name.as_bytes(), 0o755);
    made.await.expect(name)
}

async fn find_in(client: &Client, directory: &Arc<Vnode>, name: &str) -> Arc<Vnode> {
    let found = client
        .cache
        .names()
        .lookup(&client.user, directory, name.as_bytes());
    found.await.expect(name).vnode
}

/// One that has the lease of its root: what it makes there from now on it does not ask for.
async fn with_lease(bench: &Bench) -> Client {
    let a = bench.leasing(None).await;
    assert!(a.names().await.is_empty());
    for name in ["asked for", "leased"] {
        let file = a.make(name).await;
        a.put(&file, name.as_bytes()).await.expect("stored");
    }
    assert_eq!(bench.calls::<LeaseDirectory>(), 1);
    assert_eq!(bench.calls::<CreateFile>(), 1);
    a
}

/// Has more blocks reserved than a volume remembers: the server knows the client's first ones no
/// more, as when the volume was moved.
async fn forget_numbers(client: &Client) {
    let root = &client.root;
    for _ in 0..70 {
        let reserve = ReserveVnodes {
            dir_fid: root.fid(),
            files: 1,
            directories: 1,
        };
        let of = client.user.client();
        let reserved = of.call_volume(root.volume(), &"numbers", &reserve);
        reserved.await.expect("reserved");
    }
}

/// These were put aside, with their bytes, if there are any.
fn are_aside(aside: &[PathBuf], expected: &[(&str, Option<&[u8]>)]) {
    assert_eq!(aside.len(), expected.len(), "{aside:?}");
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("text");
    for (name, bytes) in expected {
        let made = format!("made as {name} in ");
        let about = aside.iter().find(|path| read(path).contains(&made));
        let about = about.unwrap_or_else(|| panic!("{name} is not among {aside:?}"));
        let found = std::fs::read(about.with_extension("")).unwrap_or_default();
        assert_eq!(found, bytes.unwrap_or_default(), "{name}");
    }
}

#[tokio::test]
async fn files_are_made_with_their_bytes_by_one_call_each() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let stores = bench.calls::<StoreData64>();
    let before = bench.calls::<MakeMany>();
    for number in 0..20_u8 {
        let file = a.make(&format!("file{number}")).await;
        a.put(&file, &[number; 5_000]).await.expect("stored");
        let status = file.attributes().expect("known").status;
        assert_eq!(
            (status.file_type, status.length, status.unix_mode & 0o777),
            (FileType::File, 5_000, 0o644)
        );
        // Once more: as every file.
        if number == 7 {
            a.put(&file, b"another").await.expect("stored");
        }
    }
    assert_eq!(bench.calls::<CreateFile>(), 1);
    assert_eq!(bench.calls::<MakeMany>() - before, 20, "close waits");
    assert_eq!(bench.calls::<StoreData64>() - stores, 1, "cut and stored");
    let b = bench.client().await;
    assert_eq!(b.names().await.len(), 22);
    for number in (0..20_u8).filter(|number| *number != 7) {
        let contents = b.contents(&format!("file{number}")).await;
        assert!(contents == [number; 5_000], "file {number}");
    }
    assert_eq!(b.contents("file7").await, b"another");
    assert_eq!(b.contents("leased").await, b"leased");
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_creates_are_sent_many_at_a_time() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    a.cache.management().set_store_behind(1 << 20);
    let before = bench.calls::<MakeMany>();
    let mut parent = a.root.clone();
    for number in 0..200_u32 {
        if number % 20 == 0 {
            parent = make_dir(&a, &a.root.clone(), &format!("dir{number}")).await;
        }
        let file = make_in(&a, &parent, &format!("file{number}")).await;
        a.put(&file, format!("{number}").as_bytes())
            .await
            .expect("closed");
    }
    let failed = a.cache.close().await;
    assert!(failed.is_empty(), "{failed:?}");
    let calls = bench.calls::<MakeMany>() - before;
    assert!((4..60).contains(&calls), "{calls} calls");
    // The first of each directory is asked for, and of the first directory the one that shows a
    // status.
    assert!(bench.calls::<CreateFile>() <= 1 + 10 + 1);
    let b = bench.client().await;
    for number in (0..200_u32).step_by(20) {
        let directory = b.find(&format!("dir{number}")).await;
        let listing = b
            .cache
            .statuses()
            .listing(&b.user, &directory)
            .await
            .expect("names");
        assert_eq!(listing.len(), 20);
        for number in number..number + 20 {
            let file = find_in(&b, &directory, &format!("file{number}")).await;
            assert_eq!(b.get(&file).await, format!("{number}").as_bytes());
        }
    }
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_sees_earlier_creates() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let b = bench.client().await;
    // Open, not closed: nothing of it was told before the directory was made.
    let file = a.make("open").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"half").await.expect("write");
    let sub = make_dir(&a, &a.root.clone(), "sub").await;
    let before = bench.calls::<ReturnDirectories>();
    let mut names = b.names().await;
    names.retain(|name| name != "asked for" && name != "leased");
    assert_eq!(names, ["open", "sub"]);
    assert_eq!(bench.calls::<ReturnDirectories>() - before, 1);
    let seen = b.find("open").await;
    assert!(b.get(&seen).await.is_empty());
    handle.write(4, b" and half").await.expect("write");
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert_eq!(b.get(&seen).await, b"half and half");
    // It was given back: asked for again, and the other sees that, too.
    let asked = bench.calls::<CreateFile>();
    a.make("later").await;
    assert_eq!(bench.calls::<CreateFile>(), asked + 1);
    assert!(b.names().await.contains(&"later".to_owned()));
    // A directory within is another lease, which goes back when the other looks.
    for name in ["asked for", "leased", "within"] {
        make_in(&a, &sub, name).await;
    }
    let sub = b.find("sub").await;
    find_in(&b, &sub, "within").await;
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_given_once() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let b = bench.client().await;
    a.make("mine").await;
    let (cache, user, root) = (&a.cache, &a.user, &a.root);
    let again = cache.names().create_file(user, root, b"mine", 0o644).await;
    assert_eq!(errno(&again.expect_err("there is one")), EEXIST);
    let made = b
        .cache
        .names()
        .create_file(&b.user, &b.root, b"mine", 0o644)
        .await;
    assert_eq!(errno(&made.expect_err("there is one")), EEXIST);
    b.make("theirs").await;
    let again = cache
        .names()
        .create_file(user, root, b"theirs", 0o644)
        .await;
    assert_eq!(errno(&again.expect_err("there is one")), EEXIST);
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_local_create_reach_the_server() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let (cache, user, root) = (&a.cache, &a.user, &a.root);
    for name in ["removed", "renamed", "linked", "moved"] {
        a.make(name).await;
    }
    let sub = make_dir(&a, root, "sub").await;
    let gone = make_dir(&a, root, "gone").await;
    let within = make_in(&a, &sub, "within").await;
    assert!(cache.names().remove_dir(user, root, b"sub").await.is_err());
    cache
        .names()
        .remove_dir(user, root, b"gone")
        .await
        .expect("empty");
    drop(gone);
    let removed = cache.names().remove_file(user, root, b"removed").await;
    removed.expect("removed");
    let renamed = cache
        .names()
        .rename(user, (root, b"renamed"), (root, b"new"))
        .await;
    renamed.expect("renamed");
    let moved = cache
        .names()
        .rename(user, (root, b"moved"), (&sub, b"here"))
        .await;
    moved.expect("moved");
    let linked = a.find("linked").await;
    let done = cache.names().link(user, root, b"another", &linked).await;
    done.expect("linked");
    let wanted = NewAttributes {
        mode: Some(0o600),
        modified: Some(AfsTime(77)),
        ..NewAttributes::default()
    };
    for vnode in [&within, &sub] {
        let set = cache.set_attributes(user, vnode, wanted, false).await;
        set.expect("set");
    }
    let b = bench.client().await;
    let mut names = b.names().await;
    names.retain(|name| name != "asked for" && name != "leased");
    assert_eq!(names, ["another", "linked", "new", "sub"]);
    assert_eq!(a.names().await, b.names().await);
    let seen = b.find("sub").await;
    find_in(&b, &seen, "here").await;
    for vnode in [find_in(&b, &seen, "within").await, seen] {
        let status = b
            .cache
            .statuses()
            .status(&b.user, &vnode)
            .await
            .expect("status");
        let mode = status.unix_mode & 0o777;
        assert_eq!((mode, status.client_mod_time), (0o600, AfsTime(77)));
    }
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_and_time_go_with_the_bytes() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let before = bench.calls::<MakeMany>();
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"bytes").await.expect("write");
    let wanted = NewAttributes {
        mode: Some(0o444),
        modified: Some(AfsTime(99)),
        ..NewAttributes::default()
    };
    let set = a.cache.set_attributes(&a.user, &file, wanted, true).await;
    set.expect("set");
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert_eq!(bench.calls::<MakeMany>() - before, 1);
    let b = bench.client().await;
    let seen = b.find("file").await;
    let status = b
        .cache
        .statuses()
        .status(&b.user, &seen)
        .await
        .expect("status");
    let mode = status.unix_mode & 0o777;
    assert_eq!((mode, status.client_mod_time), (0o444, AfsTime(99)));
    assert_eq!(b.get(&seen).await, b"bytes");
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_created_before_they_are_stored() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let file = a.make("large").await;
    a.put(&file, &bytes).await.expect("stored");
    // With a hole, and a length alone.
    let holed = a.make("holed").await;
    let handle = a.open(&holed, Rights::WRITE).await;
    handle.write(10_000, b"end").await.expect("write");
    handle.store(false).await.expect("stored");
    handle.close().await;
    let long = a.make("long").await;
    a.cut(&long, 5_000).await.expect("extended");
    let empty = a.make("empty").await;
    a.put(&empty, b"").await.expect("stored");
    let b = bench.client().await;
    assert!(b.contents("large").await == bytes);
    let holed = b.contents("holed").await;
    assert!(holed[..10_000].iter().all(|byte| *byte == 0) && holed[10_000..] == *b"end");
    assert_eq!(b.contents("long").await, [0; 5_000]);
    assert!(b.contents("empty").await.is_empty());
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_told_by_close_and_tried_again() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    // Of two programs: one that closes, and the end of the last handle.
    bench.refuse::<MakeMany>(AbortCode::from_errno(EDQUOT), 2);
    let file = a.make("file").await;
    let refused = a.put(&file, b"bytes").await.expect_err("no room");
    assert_eq!(errno(&refused), EDQUOT);
    assert_eq!(a.cache.write_back().unstored().len(), 1, "it is kept");
    assert_eq!(a.get(&file).await, b"bytes");
    a.cache
        .write_back()
        .store(&file, false)
        .await
        .expect("stored");
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"bytes");
    assert!(a.cache.close().await.is_empty());
    bench.end();
}

#[tokio::test]
async fn an_empty_file_that_is_refused_behind_close_is_listed() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    a.cache.management().set_store_behind(1 << 20);
    bench.refuse::<MakeMany>(AbortCode::from_errno(EDQUOT), 100);
    let file = a.make("file").await;
    a.open(&file, Rights::WRITE).await.close().await;
    assert!(
        a.cache.management().waiting(None).is_empty(),
        "the server was not asked"
    );
    assert_eq!(a.cache.close().await.len(), 1);
    let listed = a.cache.management().waiting(None);
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].0.fid, listed[0].1), (file.fid(), Some(EDQUOT)));
    assert!(a.cache.management().aside(None).is_empty());
    bench.end();
}

#[tokio::test]
async fn directories_and_links_exist_before_the_answer() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let (cache, user) = (&a.cache, &a.user);
    let root = a.root.clone();
    let asked = || {
        (
            bench.calls::<MakeDir>(),
            bench.calls::<Symlink>(),
            bench.calls::<CreateFile>(),
            bench.calls::<MakeMany>(),
        )
    };
    let before = asked();
    let sub = make_dir(&a, &root, "sub").await;
    let link = cache.names().symlink(user, &root, b"link", b"where");
    link.await.expect("link");
    let node = cache.names().make_node(user, &root, b"node", 0o644);
    node.await.expect("node");
    let expected = (before.0 + 1, before.1 + 1, before.2 + 1, before.3);
    assert_eq!(asked(), expected);
    // Attributes of a directory are sent at once, too.
    let statuses = bench.calls::<StoreStatus>();
    let mode = NewAttributes {
        mode: Some(0o700),
        ..NewAttributes::default()
    };
    let set = cache.set_attributes(user, &sub, mode, true).await;
    set.expect("set");
    assert_eq!(bench.calls::<StoreStatus>() - statuses, 1);
    // They do not end the lease.
    make_in(&a, &root, "early").await;
    assert_eq!(asked(), expected);
    let b = bench.client().await;
    let seen = b.find("sub").await;
    let status = seen.attributes().expect("known").status;
    assert_eq!(status.unix_mode & 0o777, 0o700);
    let names = ["asked for", "early", "leased", "link", "node", "sub"];
    assert_eq!(b.names().await, names);
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_the_server_delays_no_other() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    a.cache.management().set_store_behind(1 << 20);
    let calls = bench.hold::<MakeMany>();
    for number in 0..100 {
        let file = a.make(&format!("file{number}")).await;
        a.put(&file, b"bytes").await.expect("closed");
        assert_eq!(a.get(&file).await, b"bytes");
    }
    held(&calls, 1).await;
    assert_eq!(a.names().await.len(), 102);
    drop(calls);
    assert!(a.cache.close().await.is_empty());
    let b = bench.client().await;
    assert_eq!(b.names().await.len(), 102);
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_creates_survive_a_crash() {
    let bench = Bench::start();
    let place = tempfile::tempdir().expect("directory");
    {
        let a = bench.leasing(Some(place.path().to_owned())).await;
        assert!(a.names().await.is_empty());
        for name in ["one", "two"] {
            let file = a.make(name).await;
            a.put(&file, b"stored").await.expect("stored");
        }
        let told = bench.calls::<MakeMany>();
        for name in ["three", "four", "taken"] {
            let file = a.make(name).await;
            let handle = a.open(&file, Rights::WRITE).await;
            handle.write(0, name.as_bytes()).await.expect("write");
            // It ends without a close, as a program does whose mount was killed.
        }
        a.cache.management().set_store_behind(1 << 20);
        for name in ["empty", "taken empty"] {
            let file = a.make(name).await;
            let handle = a.open(&file, Rights::WRITE).await;
            handle.close().await;
        }
        assert_eq!(bench.calls::<MakeMany>(), told);
    }
    let b = bench.client().await;
    let other = b.make("taken").await;
    b.put(&other, b"another's").await.expect("stored");
    let other = b.make("taken empty").await;
    b.put(&other, b"another's").await.expect("stored");
    let again = bench.leasing(Some(place.path().to_owned())).await;
    again.cache.write_back().recover().await;
    for name in ["three", "four"] {
        assert_eq!(b.contents(name).await, name.as_bytes());
    }
    for name in ["taken", "taken empty"] {
        assert_eq!(b.contents(name).await, b"another's");
    }
    assert_eq!(b.contents("empty").await, b"");
    assert!(again.cache.close().await.is_empty());
    let (_, aside) = cellar_cachemanager::unstored_in(place.path()).expect("a cache");
    let expected = [("taken", Some(&b"taken"[..])), ("taken empty", None)];
    are_aside(&aside, &expected);
    bench.end();
}

/// One record of a cache's index.
fn record(kind: u8, numbers: &[u64], rest: &[u8]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
    let body: Vec<u8> = [kind]
        .into_iter()
        .chain(numbers)
        .chain(rest.to_vec())
        .collect();
    let frame = [body.len() as u32, crc32c::crc32c(&body)].map(u32::to_le_bytes);
    [frame.as_flattened(), &body].concat()
}

/// The cache directory of a killed mount with `--leases=all`, as older versions had. It had created
/// the directory `volume.5.69`, and files in it and in the root. No server knew them.
fn killed_with_all(place: &Path, volume: u64) {
    const NONE: u64 = u64::MAX;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let boot = uuid::Uuid::parse_str(boot.trim()).expect("an id");
    let mut index = b"cellar cache index 1\n".to_vec();
    index.extend(record(1, &[], boot.as_bytes()));
    let writer = u64::from(u32::MAX);
    let (root, unknown) = ((1, 1), (5, 69));
    let made = [
        (9, (10, 7), root, "beside", "beside"),
        (10, (12, 8), unknown, "within", "within"),
        (11, (14, 9), root, "empty beside", ""),
        (12, (16, 10), unknown, "empty within", ""),
    ];
    let pack = place.join("small");
    for directory in [&pack, &place.join("aside")] {
        std::fs::create_dir(directory).expect("a directory");
    }
    let pack = std::fs::File::create(pack.join("0")).expect("a pack");
    for (number, fid, directory, name, bytes) in made {
        index.extend(record(2, &[number, volume, fid.0, fid.1], b"test.cell"));
        let made = [number, directory.0, directory.1, 0o644];
        index.extend(record(15, &made, name.as_bytes()));
        let (length, modified) = (bytes.len() as u64, 1_800_000_000);
        let changed = match length {
            0 => record(
                14,
                &[number, 0, writer, 0, modified, NONE, NONE, NONE, NONE],
                b"",
            ),
            _ => record(5, &[number, 0, writer, 0, length, length, modified], b""),
        };
        index.extend(changed);
        let written = pack.write_at(bytes.as_bytes(), number << 16);
        assert_eq!(written.expect("written"), bytes.len());
    }
    std::fs::write(place.join("index"), index).expect("an index");
    std::fs::write(place.join("cellar-cache"), b"").expect("a mark");
}

#[tokio::test]
async fn pending_creates_of_an_older_version_are_stored_or_put_aside() {
    let bench = Bench::start();
    let place = tempfile::tempdir().expect("directory");
    let b = bench.client().await;
    killed_with_all(place.path(), b.root.fid().volume.0.into());
    let (unstored, aside) = cellar_cachemanager::unstored_in(place.path()).expect("a cache");
    assert_eq!((unstored.len(), aside.len()), (4, 0));
    let again = bench.leasing(Some(place.path().to_owned())).await;
    again.cache.write_back().recover().await;
    assert_eq!(b.names().await, ["beside", "empty beside"]);
    assert_eq!(b.contents("beside").await, b"beside");
    assert_eq!(b.contents("empty beside").await, b"");
    assert!(again.cache.close().await.is_empty());
    let (unstored, aside) = cellar_cachemanager::unstored_in(place.path()).expect("a cache");
    assert!(unstored.is_empty(), "{unstored:?}");
    let expected = [("within", Some(&b"within"[..])), ("empty within", None)];
    are_aside(&aside, &expected);
    bench.end();
}

/// A mount is killed between the server's change and its answer: the server's version is ours.
#[tokio::test]
async fn a_create_with_bytes_before_a_crash_is_our_own() {
    let bench = Bench::start();
    let places = tempfile::tempdir().expect("directory");
    let (place, at_the_kill) = (places.path().join("a"), places.path().join("b"));
    let a = bench.leasing(Some(place.clone())).await;
    assert!(a.names().await.is_empty());
    for name in ["one", "two"] {
        let file = a.make(name).await;
        a.put(&file, b"stored").await.expect("stored");
    }
    let file = a.make("file").await;
    let handle = a.open(&file, Rights::WRITE).await;
    handle.write(0, b"bytes").await.expect("write");
    let held_calls = bench.hold::<MakeMany>();
    let putting = tokio::spawn(async move { handle.store(false).await });
    held(&held_calls, 1).await;
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg("-r").args([&place, &at_the_kill]).status();
    assert!(copied.expect("cp").success());
    drop(held_calls);
    putting.await.expect("no panic").expect("stored");
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"bytes");
    assert!(a.cache.close().await.is_empty());
    drop((a, file));
    let again = bench.leasing(Some(at_the_kill.clone())).await;
    assert_eq!(again.cache.management().waiting(None).len(), 0,);
    again.cache.write_back().recover().await;
    assert!(again.cache.write_back().unstored().is_empty());
    assert!(again.cache.close().await.is_empty());
    let (_, aside) = cellar_cachemanager::unstored_in(&at_the_kill).expect("a cache");
    assert!(aside.is_empty(), "{aside:?}");
    assert_eq!(b.contents("file").await, b"bytes");
    bench.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_the_server_has_forgotten_cost_nothing_but_others() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let (cache, root) = (&a.cache, &a.root);
    let sub = make_dir(&a, root, "sub").await;
    for name in ["asked for", "asked for, too", "leased"] {
        make_in(&a, &sub, name).await;
    }
    cache.creates().flush_pending(&sub).await.expect("told");
    forget_numbers(&a).await;
    let before = bench.calls::<CreateFile>();
    let open = a.make("open").await;
    let handle = a.open(&open, Rights::WRITE).await;
    cache.management().set_store_behind(1 << 20);
    let within = make_in(&a, &sub, "within").await;
    a.put(&within, b"within").await.expect("closed");
    handle.write(0, b"open").await.expect("write");
    handle.store(true).await.expect("stored");
    handle.close().await;
    assert_eq!(a.get(&within).await, b"within");
    cache.creates().flush_pending(root).await.expect("told");
    for vnode in [&open, &within] {
        cache
            .write_back()
            .store(vnode, false)
            .await
            .expect("stored");
    }
    assert_eq!(bench.calls::<CreateFile>(), before + 2);
    let b = bench.client().await;
    assert_eq!(b.contents("open").await, b"open");
    let seen = b.find("sub").await;
    let seen = find_in(&b, &seen, "within").await;
    assert_eq!(b.get(&seen).await, b"within");
    assert_eq!(
        (seen.fid(), a.find("open").await.key()),
        (within.fid(), open.key())
    );
    // This client sees stores of other clients under either number.
    b.put(&seen, b"by another").await.expect("stored");
    assert_eq!(a.get(&within).await, b"by another");
    bench.end();
}

#[tokio::test]
async fn a_renumbered_file_is_closed_linked_and_locked() {
    let bench = Bench::start();
    let a = with_lease(&bench).await;
    let (cache, user, root) = (&a.cache, &a.user, &a.root);
    let asked = bench.calls::<CreateFile>();
    forget_numbers(&a).await;
    let closed = a.make("closed").await;
    a.put(&closed, b"bytes").await.expect("stored");
    a.make("numbered").await;
    forget_numbers(&a).await;
    let linked = a.make("linked").await;
    let link = cache.names().link(user, root, b"too", &linked).await;
    link.expect("linked");
    a.make("numbered again").await;
    forget_numbers(&a).await;
    let locked = a.make("locked").await;
    let lock = Lock {
        owner: LockOwner::record(1),
        open_file: 1,
        pid: 1,
        first: 0,
        last: 7,
        kind: LockKind::Write,
    };
    cache
        .locks()
        .set_lock(user, &locked, lock)
        .await
        .expect("locked");
    // With the one in the directory that used a number which was forgotten before it was told.
    assert_eq!(bench.calls::<CreateFile>(), asked + 4);
    let b = bench.client().await;
    assert_eq!(b.contents("closed").await, b"bytes");
    assert_eq!(b.find("too").await.fid(), linked.fid());
    let seen = b.find("locked").await;
    let refused = b.cache.locks().set_lock(&b.user, &seen, lock).await;
    assert_eq!(errno(&refused.expect_err("held")), EAGAIN);
    bench.end();
}
