//! Volumes with wiped files: moved, released, dumped and restored. Servers of the cell get the
//! copies, and all others the bytes.

use std::time::Duration;

use crate::common;

use crate::common::osds::{KEEP, Osds, THRESHOLD, pattern, read, set_policy};
use crate::common::shared::{Here, check, of, ro_site};
use crate::common::volser::{NEW, RO, Volser, cookie, items, move_volume, release, taken, two};
use crate::common::{CLONE, Cell, Machine, NOW, OPEN, name, plain_code as code, run, store_within};
use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::{
    Archive, ListCopies, ListCopiesReply, ListOlder, ListReferences, OlderFile, ReadOlder, Wipe,
};
use cellar_wire::afsvol::{self, GetSize, IT_BUSY, READWRITE};
use cellar_wire::dump::Item;
use cellar_wire::ids::Fid;
use cellar_wire::osddb::OSD_ARCHIVAL;
use cellar_wire::rxafs::RemoveFile;

const BIG: usize = 5 * THRESHOLD as usize + 777;
/// More than a stream holds back until the file was compared.
const LONG: usize = 20 << 20;
const POLICY: &[(u32, &str)] = &[(2, "=> osd, stripes=2, ssize=12;")];

/// Devices 2 and 3 hold the files of the cell, 4 and 5 are archives.
async fn archives(cell: &Cell) -> (Osds, Volser) {
    let osds = Osds::start(cell, 4, POLICY).await;
    for listed in osds.database.listed.lock().iter_mut() {
        if [4, 5].contains(&listed.entry.id) {
            listed.entry.flags |= OSD_ARCHIVAL;
        }
    }
    osds.devices.update(&osds.database.listed.lock());
    set_policy(cell, OPEN, 2);
    (osds, Volser(cell.admin().await))
}

async fn file(machine: &Machine, name: &str, bytes: &[u8]) -> Fid {
    let fid = machine.create(Fid::root(OPEN), name).await;
    store_within(machine, fid, 0, bytes, KEEP).await.unwrap();
    fid
}

async fn archive(volser: &Volser, fid: Fid, osds: &[u32]) {
    for &osd in osds {
        volser.0.call(&Archive { fid, osd }).await.unwrap();
    }
}

/// A new file that only these archives have.
async fn wiped(volser: &Volser, machine: &Machine, name: &str, bytes: &[u8], osds: &[u32]) -> Fid {
    let fid = file(machine, name, bytes).await;
    archive(volser, fid, osds).await;
    wipe(volser, fid, bytes.len()).await;
    fid
}

async fn wipe(volser: &Volser, fid: Fid, length: usize) {
    let wiped = volser.0.call(&Wipe { fid, copies: 1 }).await;
    assert_eq!(wiped.unwrap().length, length as u64);
}

async fn copies(volser: &Volser, fid: Fid) -> ListCopiesReply {
    volser.0.call(&ListCopies { fid }).await.unwrap()
}

/// The number of calls to the devices, when the removals that wipes and stores left have ended.
async fn settled_calls(osds: &Osds) -> usize {
    let quiet = Duration::from_millis(300);
    let mut calls = osds.calls();
    until("no device is called", async || {
        tokio::time::sleep(quiet).await;
        std::mem::replace(&mut calls, osds.calls()) == osds.calls()
    })
    .await;
    calls
}

/// Damages all copies of an archive.
fn damage(osds: &Osds, osd: u32) {
    osds.fakes[osd as usize - 2].objects(|objects| {
        let copies = objects.values_mut().flat_map(|copies| copies.values_mut());
        copies.for_each(|bytes| bytes[1000] ^= 1);
    });
}

/// The bytes of the dump of a volume, and the code with which it ended.
async fn dump(volser: &Volser, trans: i32) -> (Vec<u8>, Option<i32>) {
    let from_date = 0;
    let call = afsvol::Dump { trans, from_date };
    let mut call = volser.0.open(&call).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        match call.read_chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(code(Err::<(), _>(error)))),
        }
    }
}

/// The contents of a file in a dump.
fn contents(dump: &[u8], fid: Fid) -> Vec<u8> {
    let (mut found, mut is_wanted) = (Vec::new(), false);
    for item in items(dump) {
        match item {
            Item::Vnode(record) => is_wanted = record.vnode == fid.vnode,
            Item::Data(bytes) if is_wanted => found.extend_from_slice(&bytes),
            _ => {}
        }
    }
    found
}

#[test]
fn a_moved_volume_keeps_its_copies_and_wiped_files_and_recalls_nothing() {
    let (here, there, client, after, port) = two();
    run(async {
        let (osds, source) = archives(&here).await;
        osds.attach(&there, "test.cell").await;
        let target = Volser(there.admin().await);
        let bytes = [pattern(BIG, 1), pattern(BIG, 2), pattern(BIG, 3)];
        let gone = wiped(&source, &client, "wiped", &bytes[0], &[4, 5]).await;
        let online = file(&client, "online", &bytes[1]).await;
        archive(&source, online, &[5]).await;
        // A small file that was stored again has a copy of its older bytes.
        let other = file(&client, "other", &bytes[2]).await;
        archive(&source, other, &[4]).await;
        store_within(&client, other, 0, b"new", KEEP).await.unwrap();
        let files = [gone, online, other];
        let mut before = Vec::new();
        for fid in files {
            before.push(copies(&source, fid).await);
        }
        assert_eq!(before.iter().map(|b| b.copies.len()).sum::<usize>(), 4);
        target.delete(OPEN).await;
        let calls = settled_calls(&osds).await;
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        let received = taken(&port);
        move_volume(&source, &target, &port).await;
        assert_eq!(osds.calls(), calls, "no device and no archive was asked");
        assert!(taken(&port) - received < 20_000);
        osds.set_fault(Fault::None);
        for (fid, before) in files.into_iter().zip(&before) {
            assert_eq!(copies(&target, fid).await, *before, "{fid}");
        }
        assert!(!copies(&target, gone).await.online);
        assert!(read(&after, gone).await == bytes[0]);
        assert!(read(&after, online).await == bytes[1]);
        // The volume goes on here: wiped with the copies that came, recalled, stored.
        Here::of(&there, true);
        for (fid, bytes) in [(gone, &bytes[0]), (online, &bytes[1])] {
            wipe(&target, fid, bytes.len()).await;
            let mut expected = bytes.clone();
            store_within(&after, fid, 70_000, b"here", KEEP)
                .await
                .unwrap();
            expected[70_000..70_004].copy_from_slice(b"here");
            assert!(read(&after, fid).await == expected);
            let refused = target.0.call(&Wipe { fid, copies: 1 }).await;
            assert_eq!(code(refused), AbortCode::EAGAIN.0, "copies of older bytes");
        }
    });
}

#[test]
fn removed_files_move_with_their_volume_and_are_not_released() {
    let (here, there, client, _, port) = two();
    run(async {
        let (osds, source) = archives(&here).await;
        osds.attach(&there, "test.cell").await;
        let target = Volser(there.admin().await);
        for cell in [&here, &there] {
            cell.server.keep_older(Duration::from_secs(86_400));
        }
        let (bytes, root) = (pattern(BIG, 1), Fid::root(OPEN));
        let gone = wiped(&source, &client, "gone", &bytes, &[4, 5]).await;
        let call = RemoveFile {
            dir_fid: root,
            name: name("gone"),
        };
        client.ok(&call).await;
        let listed = older(&source, root).await;
        assert_eq!(listed.len(), 1);
        let archives = named(&source).await;
        assert_eq!(archives, [4, 5]);
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        assert!(
            named(&target).await.is_empty(),
            "a released volume has none"
        );
        source.delete(RO).await;
        target.delete(RO).await;
        target.delete(OPEN).await;
        move_volume(&source, &target, &port).await;
        assert_eq!(older(&target, root).await, listed);
        assert_eq!(named(&target).await, archives);
        here.partition.reap_now().unwrap();
        assert!(named(&source).await.is_empty());
        let read = ReadOlder {
            fid: gone,
            volume: listed[0].versions.to_vec()[0].volume,
            version: listed[0].versions.to_vec()[0].version,
        };
        let mut reading = target.0.open(&read).await.unwrap();
        reading.finish();
        let length: u64 = reading.read().await.unwrap();
        assert_eq!(length, BIG as u64);
        let mut found = Vec::new();
        let taken = reading.read_exact(length, |chunk| found.extend_from_slice(&chunk));
        taken.await.unwrap();
        assert!(found == bytes, "the new server reads them from an archive");
    });
}

/// The removed files of a directory.
async fn older(volser: &Volser, fid: Fid) -> Vec<OlderFile> {
    let (all, after) = (false, Fid::default());
    let page = volser.0.call(&ListOlder { fid, all, after }).await.unwrap();
    page.files.into_vec()
}

/// The archives on which this server needs objects.
async fn named(volser: &Volser) -> Vec<u32> {
    let asked = ListReferences {
        volume: OPEN.0,
        after: Fid::default(),
        limit: 1000,
    };
    let listed = volser.0.call(&asked).await.unwrap().references;
    let archives = listed.iter().map(|reference| reference.osd);
    let mut archives: Vec<u32> = archives.filter(|osd| *osd > 3).collect();
    archives.sort_unstable();
    archives
}

#[test]
fn a_release_sends_copies_and_each_server_recalls_for_itself() {
    let (here, there, client, reader, port) = two();
    run(async {
        let (osds, source) = archives(&here).await;
        osds.attach(&there, "test.cell").await;
        let target = Volser(there.admin().await);
        let (first, second) = (pattern(BIG, 1), pattern(BIG, 2));
        let one = wiped(&source, &client, "one", &first, &[4]).await;
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        let before = copies(&source, one).await;
        assert_eq!(copies(&target, of(RO, one)).await, before);
        // The next release sends what changed: a file that is wiped now, and no other.
        here.wait_secs(10);
        let two = wiped(&source, &client, "two", &second, &[5]).await;
        common::volser::clone_for_release(&source, false).await;
        let calls = settled_calls(&osds).await;
        release(&source, &target, &port, (NOW + 5) as i32).await;
        assert_eq!(osds.calls(), calls, "nothing is recalled");
        let files = [(one, first), (two, second)];
        for (fid, _) in &files {
            assert!(!copies(&target, of(RO, *fid)).await.online, "{fid}");
        }
        check(&reader, RO, &files).await;
        for (fid, _) in &files {
            assert!(copies(&target, of(RO, *fid)).await.online, "{fid}");
            assert!(!copies(&source, *fid).await.online, "{fid}");
        }
        check(&client, OPEN, &files).await;
    });
}

#[test]
fn a_dump_has_the_bytes_of_wiped_files_and_leaves_them_wiped() {
    let (cell, elsewhere) = (Cell::start(), Cell::start());
    let machine = Machine::new(&cell, 1);
    run(async {
        let (osds, volser) = archives(&cell).await;
        let (short, long) = (pattern(BIG, 1), pattern(LONG, 2));
        let files = [
            (wiped(&volser, &machine, "s", &short, &[4]).await, short),
            (wiped(&volser, &machine, "l", &long, &[4, 5]).await, long),
        ];
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let (dumped, refused) = dump(&volser, trans).await;
        assert_eq!(refused, None);
        let from_date = 0;
        let size = volser.0.call(&GetSize { trans, from_date }).await;
        assert_eq!(size.unwrap().size.dump_size, dumped.len() as u64);
        volser.end(trans).await;
        for (fid, bytes) in &files {
            assert!(contents(&dumped, *fid) == *bytes, "{fid}");
            assert!(!copies(&volser, *fid).await.online, "{fid}");
        }
        // A server without object storage takes it, and this one under another id.
        let (there, client) = (Volser(elsewhere.admin().await), Machine::new(&elsewhere, 2));
        there.volume_of("copy", NEW, &dumped).await;
        check(&client, NEW, &files).await;
        volser.volume_of("copy", NEW, &dumped).await;
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        check(&machine, NEW, &files).await;
    });
}

#[test]
fn a_server_that_cannot_read_the_archives_is_sent_the_bytes() {
    let (here, there, client, after, port) = two();
    run(async {
        let (osds, source) = archives(&here).await;
        let target = Volser(there.admin().await);
        let bytes = pattern(LONG, 1);
        let fid = wiped(&source, &client, "f", &bytes, &[4, 5]).await;
        let files = [(fid, bytes)];
        let to = target.create("copy", READWRITE, NEW, NEW).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let send = || source.forward(from, 0, (&port, to), cookie("copy", READWRITE, NEW));
        // One archive fails in the middle, and the other one continues.
        osds.fakes[2].set_fault(Fault::Midway(AbortCode::EIO));
        send().await.unwrap();
        target.flags(to, 0).await;
        target.end(to).await;
        source.end(from).await;
        check(&after, NEW, &files).await;
        assert!(!copies(&source, fid).await.online);
        assert!(
            copies(&source, fid)
                .await
                .copies
                .iter()
                .all(|copy| !copy.bad)
        );
    });
}

#[test]
fn a_dump_waits_for_a_slow_archive_and_others_do_not() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let (osds, volser) = archives(&cell).await;
        let bytes = pattern(BIG, 1);
        let fid = wiped(&volser, &machine, "f", &bytes, &[4]).await;
        let other = file(&machine, "other", &bytes).await;
        volser.read_only_clone().await;
        let trans = volser.begin(CLONE, IT_BUSY).await;
        let slow = Duration::from_secs(4);
        osds.fakes[2].set_fault(Fault::Slow(slow));
        let begun = tokio::time::Instant::now();
        let dumping = async {
            let dumped = dump(&volser, trans).await;
            (dumped, begun.elapsed())
        };
        let working = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(read(&machine, other).await == bytes);
            assert!(read(&machine, of(CLONE, other)).await == bytes);
            store_within(&machine, other, 0, b"new", KEEP)
                .await
                .unwrap();
            file(&machine, "new", b"new").await;
            begun.elapsed()
        };
        let (((dumped, refused), late), soon) = futures_util::future::join(dumping, working).await;
        assert_eq!(refused, None);
        assert!(contents(&dumped, fid) == bytes);
        assert!(late >= slow && soon < slow, "{late:?} {soon:?}");
        volser.end(trans).await;
    });
}

#[test]
fn a_bad_copy_is_never_dumped_and_the_next_one_is() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let (osds, volser) = archives(&cell).await;
        let bytes = pattern(BIG, 1);
        let fid = wiped(&volser, &machine, "f", &bytes, &[4, 5]).await;
        let trans = volser.begin(OPEN, IT_BUSY).await;
        // The volume is in a transaction, so it is looked at directly.
        let bad = |fid: Fid| {
            let volume = cell.partition.volume(OPEN).unwrap().unwrap();
            let copies = volume.archive_state(fid).unwrap().copies;
            let bad = copies.iter().filter(|copy| copy.bad);
            bad.map(|copy| copy.osd).collect::<Vec<_>>()
        };
        damage(&osds, 4);
        let (dumped, refused) = dump(&volser, trans).await;
        assert_eq!(refused, None);
        assert!(contents(&dumped, fid) == bytes);
        assert_eq!(bad(fid), [4]);
        // The beginning of a long file was sent before it was compared. The dump ends, and the next
        // one has the other copy.
        volser.end(trans).await;
        let long = pattern(LONG, 2);
        let second = wiped(&volser, &machine, "long", &long, &[4, 5]).await;
        let trans = volser.begin(OPEN, IT_BUSY).await;
        damage(&osds, 4);
        let (part, refused) = dump(&volser, trans).await;
        assert_eq!(refused, Some(AbortCode::EIO.0));
        assert!(part.len() < BIG + LONG);
        assert_eq!(bad(second), [4]);
        let (dumped, refused) = dump(&volser, trans).await;
        assert_eq!(refused, None);
        assert!(contents(&dumped, second) == long);
        // No archive, then no good copy: an error, and nothing of the file is sent.
        osds.fakes[3].set_fault(Fault::Abort(AbortCode::EIO));
        let (part, refused) = dump(&volser, trans).await;
        assert_eq!(refused, Some(AbortCode::EIO.0));
        assert!(part.len() < BIG);
        assert_eq!(bad(fid), [4], "an archive that fails is not a bad copy");
        osds.fakes[3].set_fault(Fault::None);
        damage(&osds, 5);
        for _ in 0..2 {
            let (part, refused) = dump(&volser, trans).await;
            assert_eq!(refused, Some(AbortCode::EIO.0));
            assert!(part.len() < BIG);
        }
        assert_eq!(bad(fid), [4, 5]);
        volser.end(trans).await;
    });
}
