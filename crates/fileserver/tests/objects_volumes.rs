//! Volumes with files in objects: dumped, restored, released, moved, copied and converted, also while
//! devices are away.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cellar_fileserver::Locations;
use cellar_fileserver::protection::BoxFuture;
use cellar_objects::fake::Fault;
use cellar_rpc::CallError;
use cellar_wire::afsvol::{
    self, DUMP_OSD_METADATA, GetSize, IT_BUSY, IT_OFFLINE, READONLY, READWRITE, Traverse,
};
use cellar_wire::dump::Item;
use cellar_wire::ids::{Fid, VnodeId, VolumeId};
use cellar_wire::object::{Layout, ObjectId};
use cellar_wire::rxafs::{self, AfsFetchStatus};
use cellar_wire::vl::{Site, VLSF_RWVOL, VldbEntry, VolumeNameArgument};
use cellar_wire::{AbortCode, List};
use common::osds::{KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use common::volser::{
    NEW, RO, Volser, clone_for_release, cookie, items, one_more, release, taken, two,
};
use common::{CLONE, Cell, Machine, NOW, OPEN, plain_code as code, run, store_within};

const BIG: usize = 3 * THRESHOLD as usize + 777;

/// The rest of the file stays.
async fn store(
    machine: &Machine,
    fid: Fid,
    position: u64,
    bytes: &[u8],
) -> Result<AfsFetchStatus, CallError> {
    store_within(machine, fid, position, bytes, KEEP).await
}

fn of(volume: VolumeId, fid: Fid) -> Fid {
    Fid { volume, ..fid }
}

/// What a location database says to one server: whether RW volumes are here.
struct Here {
    is_here: AtomicBool,
    /// It does not answer.
    is_away: AtomicBool,
}

impl Here {
    fn of(cell: &Cell, is_here: bool) -> Arc<Self> {
        let here = Arc::new(Self {
            is_here: is_here.into(),
            is_away: AtomicBool::new(false),
        });
        cell.server.use_locations(here.clone());
        here
    }
}

impl Locations for Here {
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> BoxFuture<'a, Result<VldbEntry, AbortCode>> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(AbortCode::RX_CALL_DEAD)));
        }
        let number = name.to_string().parse().unwrap();
        let server = match self.is_here.load(Ordering::Relaxed) {
            true => 0x7f00_0001,
            false => 0xc000_0201,
        };
        let entry = VldbEntry {
            volume_ids: [VolumeId(number), VolumeId(0), VolumeId(0)],
            sites: List::from_iter_cut([Site {
                server,
                partition: 0,
                flags: VLSF_RWVOL,
            }]),
            ..VldbEntry::default()
        };
        Box::pin(std::future::ready(Ok(entry)))
    }
}

/// Files of all shapes in the scratch volume, with their contents: the last one is not in objects.
async fn fill(cell: &Cell, machine: &Machine) -> Vec<(Fid, Vec<u8>)> {
    let mut files = Vec::new();
    for policy in [1, 2, 3, 4] {
        set_policy(cell, OPEN, policy);
        let fid = machine
            .create(Fid::root(OPEN), &format!("file{policy}"))
            .await;
        let bytes = pattern(BIG + policy as usize, policy.into());
        store(machine, fid, 0, &bytes).await.unwrap();
        assert!(layout(cell, fid).is_some());
        files.push((fid, bytes));
    }
    set_policy(cell, OPEN, 1);
    let fid = machine.create(Fid::root(OPEN), "small").await;
    let bytes = pattern(5000, 9);
    store(machine, fid, 0, &bytes).await.unwrap();
    files.push((fid, bytes));
    files
}

/// Devices that both servers use, an administrator at each, and the first one's files.
async fn one_cell(
    here: &Cell,
    there: &Cell,
    client: &Machine,
) -> (Osds, Volser, Volser, Vec<(Fid, Vec<u8>)>) {
    let osds = Osds::start(here, 4, SHAPES).await;
    osds.attach(there, "test.cell").await;
    let (source, target) = (Volser(here.admin().await), Volser(there.admin().await));
    let files = fill(here, client).await;
    (osds, source, target, files)
}

const SHAPES: &[(u32, &str)] = &[
    (2, "=> osd, stripes=3, ssize=12;"),
    (3, "=> osd, stripes=2, copies=2, ssize=13;"),
    (4, "=> osd, ec=2+1, ssize=12;"),
];

async fn check(machine: &Machine, volume: VolumeId, files: &[(Fid, Vec<u8>)]) {
    for (fid, bytes) in files {
        assert!(
            read(machine, of(volume, *fid)).await == *bytes,
            "{fid} in {volume}"
        );
    }
}

/// Contents of files in a dump, by vnode.
fn data(items: &[Item]) -> Vec<(VnodeId, Vec<u8>)> {
    let mut files: Vec<(VnodeId, Vec<u8>)> = Vec::new();
    for item in items {
        match item {
            Item::Vnode(record) => files.push((record.vnode, Vec::new())),
            Item::Data(bytes) => files.last_mut().unwrap().1.extend_from_slice(bytes),
            _ => {}
        }
    }
    files
}

#[test]
fn a_dump_has_the_bytes_and_its_exact_size() {
    let (cell, elsewhere) = (Cell::start(), Cell::start());
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 4, SHAPES).await;
        let volser = Volser(cell.admin().await);
        let files = fill(&cell, &machine).await;
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let dump = volser.dump(trans, 0).await;
        let size = GetSize {
            trans,
            from_date: 0,
        };
        let size = volser.0.call(&size).await.unwrap().size.dump_size;
        assert_eq!(size, dump.len() as u64);
        let found = data(&items(&dump));
        for (fid, bytes) in &files {
            let (_, dumped) = found.iter().find(|(vnode, _)| *vnode == fid.vnode).unwrap();
            assert!(dumped == bytes, "{fid}");
        }
        // One device fails in the middle: of files with copies or parity all comes, else nothing wrong does.
        let plain = layout(&cell, files[0].0).unwrap().objects[0].osd;
        osds.fakes[plain as usize - 2].set_fault(Fault::Midway(AbortCode::EIO));
        let call = afsvol::Dump {
            trans,
            from_date: 0,
        };
        let mut call = volser.0.open(&call).await.unwrap();
        let mut sent = Vec::new();
        let failed = loop {
            match call.read_chunk().await {
                Ok(Some(bytes)) => sent.extend_from_slice(&bytes),
                Ok(None) => panic!("a dump with bytes that are not to be had"),
                Err(error) => break error,
            }
        };
        assert_eq!(code(Err::<(), _>(failed)), 5);
        assert!(sent.len() < dump.len() && dump.starts_with(&sent));
        osds.set_fault(Fault::None);
        volser.end(trans).await;
        // It becomes files of a server that knows no objects.
        let (there, client) = (Volser(elsewhere.admin().await), Machine::new(&elsewhere, 2));
        there.volume_of("copy", NEW, &dump).await;
        check(&client, NEW, &files).await;
        // And here: local until they are stored, whatever the policy is.
        volser.volume_of("copy", NEW, &dump).await;
        set_policy(&cell, NEW, 1);
        check(&machine, NEW, &files).await;
        let first = of(NEW, files[0].0);
        assert_eq!(layout(&cell, first), None);
        store(&machine, first, 3, b"changed").await.unwrap();
        assert_eq!(layout(&cell, first).unwrap().volume, NEW);
    });
}

#[test]
fn an_incremental_dump_has_what_changed() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let _osds = Osds::start(&cell, 4, SHAPES).await;
        let volser = Volser(cell.admin().await);
        let mut files = fill(&cell, &machine).await;
        let whole = {
            let trans = volser.begin(OPEN, IT_BUSY).await;
            let dump = volser.dump(trans, 0).await;
            volser.end(trans).await;
            dump
        };
        cell.wait_secs(100);
        store(&machine, files[1].0, 1000, b"later").await.unwrap();
        files[1].1[1000..1005].copy_from_slice(b"later");
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let change = volser.dump(trans, (NOW + 50) as i32).await;
        volser.end(trans).await;
        assert!(change.len() > BIG && change.len() < 2 * BIG);
        volser.volume_of("copy", NEW, &whole).await;
        let trans = volser.begin(NEW, IT_OFFLINE).await;
        let copy = cookie("copy", READWRITE, NEW);
        volser.restore(trans, copy, &change, 5000).await.unwrap();
        volser.end(trans).await;
        check(&machine, NEW, &files).await;
    });
}

#[test]
fn a_server_without_these_objects_is_sent_the_bytes() {
    let (here, there, client, after, port) = two();
    run(async {
        let osds = Osds::start(&here, 4, SHAPES).await;
        let (source, target) = (Volser(here.admin().await), Volser(there.admin().await));
        let mut files = fill(&here, &client).await;
        let copy = || cookie("copy", READWRITE, NEW);
        let mut to = target.create("copy", READWRITE, NEW, NEW).await;
        // It knows deltas; first it uses no objects, then those of another cell.
        for date in [0, NOW as i32 - 2] {
            let from = source.begin(OPEN, IT_BUSY).await;
            source
                .forward(from, date, (&port, to), copy())
                .await
                .unwrap();
            source.end(from).await;
            target.flags(to, 0).await;
            target.end(to).await;
            check(&after, NEW, &files).await;
            assert_eq!(layout(&there, of(NEW, files[0].0)), None);
            if date == 0 {
                osds.attach(&there, "other.cell").await;
                for (fid, bytes) in &mut files[1..3] {
                    store(&client, *fid, 70_000, b"change").await.unwrap();
                    bytes[70_000..70_006].copy_from_slice(b"change");
                }
                to = target.begin(NEW, IT_OFFLINE).await;
            }
        }
        // A device that fails breaks it off, and leaves what was there.
        store(&client, files[0].0, 0, b"newer").await.unwrap();
        let osd = layout(&here, files[0].0).unwrap().objects[0].osd;
        osds.fakes[osd as usize - 2].set_fault(Fault::Midway(AbortCode::EIO));
        let from = source.begin(OPEN, IT_BUSY).await;
        let to = target.begin(NEW, IT_OFFLINE).await;
        let refused = source.forward(from, 0, (&port, to), copy()).await;
        assert_eq!(code(refused), 5);
        target.end(to).await;
        source.end(from).await;
        // The other side notices by and by.
        while after.fetch(of(NEW, files[0].0), 0, 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        check(&after, NEW, &files).await;
    });
}

#[test]
fn a_release_asks_no_device_and_its_versions_stay() {
    let (here, there, client, reader, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        let plain = files[0].0;
        clone_for_release(&source, true).await;
        let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
        target.flags(to, 3).await;
        target.end(to).await;
        // All devices are away.
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        let (calls, bytes) = (osds.calls(), taken(&port));
        release(&source, &target, &port, 0).await;
        assert_eq!(osds.calls(), calls);
        let sent = taken(&port) - bytes;
        assert!(sent < 20_000, "{sent} bytes for files in objects");
        osds.set_fault(Fault::None);
        check(&reader, RO, &files).await;
        let released = layout(&there, of(RO, plain)).unwrap();
        assert_eq!(Some(&released), layout(&here, plain).as_ref());
        // What is released stays; what came after it and is nobody's goes.
        let object = released.object(plain.vnode, plain.uniquifier, &released.objects[0]);
        let osd = released.objects[0].osd;
        for turn in 0..3 {
            store(&client, plain, turn * 10, b"change").await.unwrap();
        }
        let last = layout(&here, plain).unwrap().objects[0].version;
        let kept = [released.objects[0].version, last];
        until(|| osds.versions(osd, object) == kept).await;
        check(&reader, RO, &files).await;
        // Only what changed is released next, and it is all that changed.
        let bytes = taken(&port);
        clone_for_release(&source, false).await;
        release(&source, &target, &port, (NOW - 2) as i32).await;
        let sent = taken(&port) - bytes;
        assert!(sent < 4096, "{sent} bytes for one layout");
        assert_eq!(
            read(&reader, of(RO, plain)).await,
            read(&client, plain).await
        );
        check(&reader, RO, &files[1..]).await;
    });
    for cell in [&here, &there] {
        assert_eq!(cell.partition.check().unwrap().faults, [""; 0]);
    }
}

/// Waits for what happens in the background.
async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The steps of `vos move` of the scratch volume.
async fn move_volume(source: &Volser, target: &Volser, port: &cellar_rpc::Port) {
    let ids = || cookie("scratch", READWRITE, OPEN);
    let trans = source.begin(OPEN, IT_BUSY).await;
    source
        .clone_of(trans, READONLY, "move-clone-temp", NEW)
        .await;
    source.end(trans).await;
    let clone = source.begin(NEW, IT_OFFLINE).await;
    let to = target.create("scratch", READWRITE, OPEN, OPEN).await;
    target.flags(to, 3).await;
    source.forward(clone, 0, (port, to), ids()).await.unwrap();
    source.end(clone).await;
    let trans = source.begin(OPEN, IT_BUSY).await;
    let from = (NOW - 2) as i32;
    source
        .forward(trans, from, (port, to), ids())
        .await
        .unwrap();
    source.flags(trans, 2).await;
    target.flags(to, 0).await;
    target.end(to).await;
    let delete = afsvol::DeleteVolume { trans };
    source.0.call(&delete).await.unwrap();
    source.end(trans).await;
    source.delete(NEW).await;
}

#[test]
fn a_moved_volume_goes_on_with_its_objects() {
    let (here, there, client, after, port) = two();
    run(async {
        let (osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        let before: Vec<_> = files.iter().map(|(fid, _)| layout(&here, *fid)).collect();
        let root = Fid::root(OPEN);
        let dir = client.make_dir(root, "dir").await;
        {
            let volume = here.partition.volume(OPEN).unwrap().unwrap();
            let context = cellar_volume::Context {
                author: cellar_wire::ViceId(1),
                now: cellar_wire::AfsTime(NOW as u32),
            };
            volume.set_policy(dir, 3, context).unwrap().wait().unwrap();
        }
        target.delete(OPEN).await;
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        let bytes = taken(&port);
        move_volume(&source, &target, &port).await;
        let sent = taken(&port) - bytes;
        assert!(sent < 20_000, "{sent} bytes for files in objects");
        osds.set_fault(Fault::None);
        check(&after, OPEN, &files).await;
        let volume = there.partition.volume(OPEN).unwrap().unwrap();
        assert_eq!(volume.policies(dir).unwrap(), (3, 1));
        // The database says that it is here, and nothing is newer: written in place.
        Here::of(&there, true);
        for (turn, (fid, bytes)) in files.iter_mut().enumerate() {
            store(&after, *fid, 50, b"moved").await.unwrap();
            bytes[50..55].copy_from_slice(b"moved");
            let Some(old) = &before[turn] else { continue };
            let new = layout(&there, *fid).unwrap();
            let serials = |layout: &Layout| {
                let placed = layout.objects.iter();
                placed.map(|placed| placed.serial).collect::<Vec<_>>()
            };
            assert_eq!(serials(&new), serials(old), "{fid}");
            assert!(new.version > old.version);
        }
        check(&after, OPEN, &files).await;
        let again = after.create(dir, "again").await;
        store(&after, again, 0, b"two copies").await.unwrap();
        assert_eq!(layout(&there, again).unwrap().objects.len(), 4);
    });
}

#[test]
fn a_moved_volume_asks_soon_again_where_it_is() {
    let (here, there, client, after, port) = two();
    run(async {
        let (_osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        target.delete(OPEN).await;
        move_volume(&source, &target, &port).await;
        let database = Here::of(&there, true);
        database.is_away.store(true, Ordering::Relaxed);
        let mut is_copied = async |number: usize| {
            let (fid, bytes) = &mut files[number];
            let before = layout(&there, *fid).unwrap().objects[0].serial;
            store(&after, *fid, 50, b"moved").await.unwrap();
            bytes[50..55].copy_from_slice(b"moved");
            assert!(read(&after, *fid).await == *bytes);
            layout(&there, *fid).unwrap().objects[0].serial != before
        };
        assert!(is_copied(0).await, "nobody says that it is here");
        database.is_away.store(false, Ordering::Relaxed);
        assert!(is_copied(1).await, "not asked at once again");
        there.wait_secs(15);
        assert!(!is_copied(2).await);
        assert!(!is_copied(3).await);
    });
}

#[test]
fn a_shadow_never_writes_what_the_volume_has() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        target.delete(OPEN).await;
        let to = target.create("scratch", READWRITE, OPEN, OPEN).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let ids = cookie("scratch", READWRITE, OPEN);
        source.forward(from, 0, (&port, to), ids).await.unwrap();
        source.end(from).await;
        target.flags(to, 0).await;
        target.end(to).await;
        // The same id on two servers; the database has the other one.
        let database = Here::of(&there, false);
        let fid = files[0].0;
        let common = layout(&here, fid).unwrap();
        let placed = common.objects[0];
        let object: ObjectId = common.object(fid.vnode, fid.uniquifier, &placed);
        store(&client, fid, 10, b"the volume").await.unwrap();
        store(&other, fid, 10, b"the shadow").await.unwrap();
        let own = layout(&there, fid).unwrap();
        assert_ne!(own.objects[0].serial, placed.serial);
        assert_eq!(&read(&client, fid).await[10..20], b"the volume");
        assert_eq!(&read(&other, fid).await[10..20], b"the shadow");
        // Should it become the volume: where the other one went on, a file is copied all the same.
        database.is_here.store(true, Ordering::Relaxed);
        let second = files[1].0;
        store(&client, second, 10, b"the volume").await.unwrap();
        let newest = layout(&here, second).unwrap();
        store(&other, second, 10, b"the shadow").await.unwrap();
        assert_ne!(
            layout(&there, second).unwrap().objects[0].serial,
            newest.objects[0].serial
        );
        assert_eq!(&read(&client, second).await[10..20], b"the volume");
        assert_eq!(&read(&other, second).await[10..20], b"the shadow");
        // What the shadow gave up was not its to remove.
        store(&other, fid, 10, b"the shadow").await.unwrap();
        let own = layout(&there, fid).unwrap();
        let newer = own.object(fid.vnode, fid.uniquifier, &own.objects[0]);
        let (osd, last) = (own.objects[0].osd, own.objects[0].version);
        until(|| osds.versions(osd, newer) == [last]).await;
        assert!(osds.versions(placed.osd, object).contains(&placed.version));
        assert_eq!(&read(&client, fid).await[10..20], b"the volume");
        check(&client, OPEN, &files[2..]).await;
    });
}

#[test]
fn copies_read_and_store_in_objects_of_their_own() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        // vos copy to another server, and vos clone -readwrite beside it; devices are away.
        osds.set_fault(Fault::Abort(AbortCode::EIO));
        let to = target.create("copy", READWRITE, NEW, NEW).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let copy = cookie("copy", READWRITE, NEW);
        source.forward(from, 0, (&port, to), copy).await.unwrap();
        target.flags(to, 0).await;
        target.end(to).await;
        source.clone_of(from, READWRITE, "twin", RO).await;
        source.end(from).await;
        source.online(RO).await;
        osds.set_fault(Fault::None);
        for (machine, cell, volume) in [(&other, &there, NEW), (&client, &here, RO)] {
            Here::of(cell, true);
            check(machine, volume, &files).await;
            for (number, (fid, bytes)) in files.iter().enumerate() {
                let fid = of(volume, *fid);
                store(machine, fid, 1234, b"own").await.unwrap();
                let mut expected = bytes.clone();
                expected[1234..1237].copy_from_slice(b"own");
                assert!(read(machine, fid).await == expected);
                if number < 4 {
                    assert_eq!(layout(cell, fid).unwrap().volume, volume);
                }
            }
            check(&client, OPEN, &files).await;
        }
        // What the volume gives up, a copy that has not stored since still has.
        let again = source.begin(OPEN, IT_BUSY).await;
        source.clone_of(again, READWRITE, "third", CLONE).await;
        source.end(again).await;
        source.online(CLONE).await;
        for _ in 0..3 {
            store(&client, files[0].0, 0, b"gone on").await.unwrap();
        }
        let old = layout(&here, of(CLONE, files[0].0)).unwrap();
        let new = layout(&here, files[0].0).unwrap().objects[0].version;
        let fid = files[0].0;
        let object = old.object(fid.vnode, fid.uniquifier, &old.objects[0]);
        let kept = [old.objects[0].version, new];
        until(|| osds.versions(old.objects[0].osd, object) == kept).await;
        check(&client, CLONE, &files).await;
    });
}

#[test]
fn a_dump_of_metadata_is_restored_in_its_cell_only() {
    let (here, there, client, ..) = two();
    let lacking = Cell::start();
    run(async {
        let osds = Osds::start(&here, 4, SHAPES).await;
        let source = Volser(here.admin().await);
        let mut files = fill(&here, &client).await;
        let trans = source.begin(OPEN, IT_BUSY).await;
        let dump = source.dump_v2(trans, 0, DUMP_OSD_METADATA).await;
        source.end(trans).await;
        assert!(dump.len() < 20_000, "{} bytes", dump.len());
        // A server without object storage, one of another cell, one that lacks a device.
        let target = Volser(there.admin().await);
        let restore = async |volser: &Volser| {
            let trans = volser.create("copy", READWRITE, NEW, NEW).await;
            let copy = cookie("copy", READWRITE, NEW);
            let restored = volser.restore(trans, copy, &dump, dump.len()).await;
            volser.flags(trans, 0).await;
            volser.end(trans).await;
            restored
        };
        assert_eq!(code(restore(&target).await), AbortCode::ENODEV.0);
        assert_eq!(items_of(&target, NEW).await, 0, "nothing of it");
        target.delete(NEW).await;
        osds.attach(&there, "other.cell").await;
        assert_eq!(code(restore(&target).await), AbortCode::ENODEV.0);
        let _few = Osds::start(&lacking, 1, &[]).await;
        let third = Volser(lacking.admin().await);
        assert_eq!(code(restore(&third).await), AbortCode::ENODEV.0);
        // Here, under another id: read as it is, and never written.
        restore(&source).await.unwrap();
        check(&client, NEW, &files).await;
        let copy = of(NEW, files[0].0);
        store(&client, copy, 0, b"copied").await.unwrap();
        assert_eq!(layout(&here, copy).unwrap().volume, NEW);
        // Over the volume itself, which went on: what its clone has is not touched.
        store(&client, files[0].0, 7, b"newer").await.unwrap();
        here.make_clone();
        let newer = read(&client, files[0].0).await;
        Here::of(&here, true);
        let trans = source.begin(OPEN, IT_OFFLINE).await;
        let ids = cookie("scratch", READWRITE, OPEN);
        source.restore(trans, ids, &dump, 700).await.unwrap();
        source.end(trans).await;
        check(&client, OPEN, &files).await;
        let (fid, bytes) = &mut files[0];
        store(&client, *fid, 9, b"older").await.unwrap();
        bytes[9..14].copy_from_slice(b"older");
        check(&client, OPEN, &files).await;
        assert!(read(&client, of(CLONE, files[0].0)).await == newer);
    });
    assert_eq!(here.partition.check().unwrap().faults, [""; 0]);
}

/// How many vnodes a volume has.
async fn items_of(volser: &Volser, volume: VolumeId) -> usize {
    let items = volser.items(volume).await;
    let vnodes = items.iter().filter(|item| matches!(item, Item::Vnode(_)));
    vnodes.count()
}

#[test]
fn a_converted_copy_leaves_the_volume_its_objects() {
    let (here, there, client, other, port) = two();
    run(async {
        let (_osds, source, target, files) = one_cell(&here, &there, &client).await;
        clone_for_release(&source, true).await;
        let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
        target.flags(to, 3).await;
        target.end(to).await;
        release(&source, &target, &port, 0).await;
        // The server of the volume is taken for lost, and is not.
        target.delete(OPEN).await;
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        target.0.call(&convert).await.unwrap();
        Here::of(&there, true);
        for (fid, bytes) in &files {
            store(&client, *fid, 20, b"the old one").await.unwrap();
            store(&other, *fid, 20, b"the new one").await.unwrap();
            store(&client, *fid, 40, b"goes on").await.unwrap();
            for (machine, with) in [(&client, b"the old one"), (&other, b"the new one")] {
                let mut expected = bytes.clone();
                expected[20..31].copy_from_slice(with);
                if with == b"the old one" {
                    expected[40..47].copy_from_slice(b"goes on");
                }
                assert!(read(machine, *fid).await == expected, "{fid}");
            }
        }
    });
}

#[test]
fn a_converted_volume_that_moves_on_leaves_the_volume_its_objects_too() {
    let (lost, there, _client, _other, port) = two();
    let beyond = one_more(&there);
    let last = common::volser::secured(&beyond);
    let (client, after) = (Machine::new(&lost, 1), Machine::new(&beyond, 3));
    run(async {
        let (osds, source, target, files) = one_cell(&lost, &there, &client).await;
        osds.attach(&beyond, "test.cell").await;
        let third = Volser(beyond.admin().await);
        clone_for_release(&source, true).await;
        let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
        target.flags(to, 3).await;
        target.end(to).await;
        release(&source, &target, &port, 0).await;
        target.delete(OPEN).await;
        third.delete(OPEN).await;
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        target.0.call(&convert).await.unwrap();
        move_volume(&target, &third, &last).await;
        Here::of(&beyond, true);
        // The lost server comes back later than anything that was stored in the meantime.
        lost.wait_secs(1000);
        for (fid, bytes) in &files {
            store(&after, *fid, 20, b"the new one").await.unwrap();
            store(&client, *fid, 20, b"the old one").await.unwrap();
            store(&client, *fid, 40, b"goes on").await.unwrap();
            let mut expected = bytes.clone();
            expected[20..31].copy_from_slice(b"the new one");
            assert!(read(&after, *fid).await == expected, "{fid}");
        }
    });
}

#[test]
fn a_store_whose_bytes_come_when_the_volume_has_gone_harms_nothing() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, mut files) = one_cell(&here, &there, &client).await;
        Here::of(&there, true);
        target.delete(OPEN).await;
        let late = pattern(BIG, 7);
        let mut calls = Vec::new();
        for (fid, _) in &files[..4] {
            let call = rxafs::StoreData64 {
                fid: *fid,
                in_status: rxafs::AfsStoreStatus::default(),
                position: 500,
                length: BIG as u64,
                file_length: KEEP,
            };
            let mut call = client.connection.open(&call).await.unwrap();
            call.write(late[..100_000].to_vec().into()).await.unwrap();
            calls.push(call);
        }
        // Long enough for them to be allowed.
        tokio::time::sleep(Duration::from_millis(300)).await;
        move_volume(&source, &target, &port).await;
        // Versions of this server are above those of the next one now.
        here.wait_secs(1000);
        for (fid, bytes) in &mut files[..4] {
            let before = layout(&there, *fid).unwrap();
            store(&other, *fid, 10, b"there").await.unwrap();
            bytes[10..15].copy_from_slice(b"there");
            let now = layout(&there, *fid).unwrap();
            assert_eq!(now.serial, before.serial, "not in place");
        }
        // What those stores left is given up a moment later.
        let mut devices = 0;
        while devices != osds.calls() {
            devices = osds.calls();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for mut call in calls {
            // It may have been refused before all has come.
            let _refused = call.write(late[100_000..].to_vec().into()).await;
            call.finish();
            let reply: Result<rxafs::StoreData64Reply, _> = call.results().await;
            assert_eq!(code(reply), AbortCode::VNOVOL.0);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(osds.calls(), devices, "nothing of it went to a device");
        check(&other, OPEN, &files).await;
    });
}

#[test]
fn what_leaves_is_noted_before_the_first_of_it_is_read() {
    let (here, there, client, _, port) = two();
    run(async {
        let osds = Osds::start(&here, 4, SHAPES).await;
        osds.attach(&there, "test.cell").await;
        let (source, target) = (Volser(here.admin().await), Volser(there.admin().await));
        let fid = client.create(Fid::root(OPEN), "small").await;
        store(&client, fid, 0, b"here").await.unwrap();
        clone_for_release(&source, true).await;
        let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
        target.flags(to, 3).await;
        target.end(to).await;
        release(&source, &target, &port, 0).await;
        // Nothing of it is in objects. Had it been, a repair could have replaced them since their records were read,
        // and what the other side names then be given up here.
        let volume = here.partition.volume(OPEN).unwrap().unwrap();
        assert_ne!(volume.info().shared, 0);
    });
}

/// A client that stores numbers into a file in objects, each when the one before was answered, and
/// follows the volume.
async fn write_on(
    sides: [&Machine; 2],
    fid: Fid,
    stored: &AtomicU64,
    stop: &AtomicBool,
) -> (u64, u32) {
    let (mut side, mut refused) = (0, 0);
    let mut last = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        stored.store(last, Ordering::Relaxed);
        let bytes = (last + 1).to_be_bytes();
        let position = (last + 1) * 8;
        match store(sides[side], fid, position, &bytes).await {
            Ok(_) => last += 1,
            Err(error) => {
                refused += 1;
                match error.code().0 {
                    110 => tokio::time::sleep(Duration::from_millis(2)).await,
                    111 | 103 => {
                        side = 1 - side;
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
    (last, refused)
}

#[test]
fn nothing_is_lost_while_a_volume_moves_to_and_fro() {
    let (here, there, client, other, port) = two();
    let back = common::volser::secured(&here);
    run(async {
        let osds = Osds::start(&here, 4, SHAPES).await;
        osds.attach(&there, "test.cell").await;
        let sides = [Volser(here.admin().await), Volser(there.admin().await)];
        let databases = [Here::of(&here, true), Here::of(&there, false)];
        let ports = [&back, &port];
        set_policy(&here, OPEN, 3);
        let fid = client.create(Fid::root(OPEN), "file").await;
        store(&client, fid, 0, &pattern(BIG, 1)).await.unwrap();
        sides[1].delete(OPEN).await;
        let (stored, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let moves = async {
            for round in 0..6 {
                let before = stored.load(Ordering::Relaxed);
                let (from, to) = (round % 2, (round + 1) % 2);
                move_volume(&sides[from], &sides[to], ports[to]).await;
                databases[from].is_here.store(false, Ordering::Relaxed);
                databases[to].is_here.store(true, Ordering::Relaxed);
                until(|| stored.load(Ordering::Relaxed) > before + 5).await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        let writer = write_on([&client, &other], fid, &stored, &stop);
        let ((last, refused), ()) = tokio::join!(writer, moves);
        assert!(last > 30 && refused > 0, "{last} stored, {refused} refused");
        let mut expected = pattern(BIG, 1);
        expected.resize(expected.len().max(8 * (last as usize + 1)), 0);
        for number in 1..=last {
            let at = number as usize * 8;
            expected[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        assert!(read(&client, fid).await == expected);
    });
    assert_eq!(here.partition.check().unwrap().faults, [""; 0]);
}

#[test]
fn a_volume_that_is_to_come_back_gives_up_nothing_of_the_former_one() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 4, SHAPES).await;
        let volser = Volser(cell.admin().await);
        let files = fill(&cell, &machine).await;
        // The devices are at the first file's old version while the second file's waits.
        let late = Duration::from_secs(8);
        osds.set_fault(Fault::SlowPrunes(late));
        let begun = std::time::Instant::now();
        for (fid, _) in &files[..2] {
            store(&machine, *fid, 0, b"change").await.unwrap();
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        let last = layout(&cell, files[1].0).unwrap();
        // It moved away; what is made for its way back has no files yet.
        volser.delete(OPEN).await;
        let trans = volser.create("scratch", READWRITE, OPEN, OPEN).await;
        assert!(begun.elapsed() < late, "the test was too slow");
        volser.flags(trans, 0).await;
        volser.end(trans).await;
        tokio::time::sleep(late + Duration::from_secs(1)).await;
        let fid = files[1].0;
        for placed in last.objects.iter().filter(|placed| placed.version > 0) {
            let object = last.object(fid.vnode, fid.uniquifier, placed);
            let versions = osds.versions(placed.osd, object);
            assert!(
                versions.contains(&placed.version),
                "{placed:?}: {versions:?}"
            );
        }
    });
}

#[test]
fn bytes_in_objects_count_as_those_of_files() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let _osds = Osds::start(&cell, 4, SHAPES).await;
        let volser = Volser(cell.admin().await);
        let used = || {
            let volume = cell.partition.volume(OPEN).unwrap().unwrap();
            volume.info().blocks_used
        };
        let before = used();
        let files = fill(&cell, &machine).await;
        let blocks = |bytes: &[u8]| (bytes.len() as u64).div_ceil(1024);
        let sum: u64 = files.iter().map(|(_, bytes)| blocks(bytes)).sum();
        assert_eq!(used() - before, sum, "once, whatever the copies");
        let listed = afsvol::ListOneVolume {
            partition: 0,
            volume: OPEN,
        };
        let listed = volser.0.call(&listed).await.unwrap();
        assert_eq!(u64::try_from(listed.entries[0].size).unwrap(), used());
        // The quota holds for them.
        let admin = cell.admin().await;
        admin
            .call(&common::quota(used() as i32 + 10))
            .await
            .unwrap();
        let fid = machine.create(Fid::root(OPEN), "more").await;
        let refused = store(&machine, fid, 0, &pattern(2 << 20, 5)).await;
        assert_eq!(code(refused), AbortCode::VOVERQUOTA.0);
        // What `vos traverse` adds up.
        let usage = Traverse {
            partition: 0,
            volume: OPEN,
        };
        let usage = volser.0.call(&usage).await.unwrap().usage;
        assert_eq!((usage.in_objects.count, usage.here.count), (4, 2));
        let bytes: usize = files[..4].iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(usage.in_objects.bytes, bytes as u64);
        assert_eq!(usage.here.bytes, 5000);
        let files_in = |class: usize| usage.sizes[class].count;
        assert_eq!((files_in(0), files_in(1), files_in(6)), (1, 1, 4));
        let objects: u64 = usage.devices.iter().map(|one| one.objects.count).sum();
        let single: u64 = usage.devices.iter().map(|one| one.single.count).sum();
        // Plain, three stripes, two in two copies, two of data and one of parity.
        assert_eq!((objects, single), (1 + 3 + 4 + 3, 1 + 3));
    });
}
