//! Volumes with files in objects: dumped, restored, released and copied, also while devices are
//! missing.

use crate::common;

use crate::common::osds::{Osds, layout, pattern, read, set_policy};
use crate::common::shared::{
    BIG, Here, SHAPES, check, fill, of, one_cell, ro_site, store, without_files,
};
use crate::common::volser::{
    NEW, RO, Volser, clone_for_release, cookie, items, release, taken, two,
};
use crate::common::{CLONE, Cell, Machine, NOW, OPEN, plain_code as code, run};
use cellar_objects::fake::Fault;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{
    self, DUMP_OSD_METADATA, GetSize, IT_BUSY, IT_OFFLINE, READWRITE, Traverse,
};
use cellar_wire::dump::Item;
use cellar_wire::ids::{Fid, VnodeId, VolumeId};

/// The contents of files in a dump, by vnode.
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
        // One device fails in the middle. Files with copies or parity arrive complete; for others
        // the dump ends, and no wrong data is sent.
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
        // On a server without object storage, the contents become local files.
        let (there, client) = (Volser(elsewhere.admin().await), Machine::new(&elsewhere, 2));
        there.volume_of("copy", NEW, &dump).await;
        check(&client, NEW, &files).await;
        // On this server they stay local until they are stored again, whatever the policy is.
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
        // The destination knows deltas; first it uses no objects, then those of another cell.
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
        // A failing device ends the transfer, and the old contents stay.
        store(&client, files[0].0, 0, b"newer").await.unwrap();
        let osd = layout(&here, files[0].0).unwrap().objects[0].osd;
        osds.fakes[osd as usize - 2].set_fault(Fault::Midway(AbortCode::EIO));
        let from = source.begin(OPEN, IT_BUSY).await;
        let to = target.begin(NEW, IT_OFFLINE).await;
        let refused = source.forward(from, 0, (&port, to), copy()).await;
        assert_eq!(code(refused), 5);
        target.end(to).await;
        source.end(from).await;
        // The other side notices after a while.
        until("the old contents are served", async || {
            after.fetch(of(NEW, files[0].0), 0, 1).await.is_ok()
        })
        .await;
        check(&after, NEW, &files).await;
    });
}

#[test]
fn a_release_asks_no_device_and_its_versions_stay() {
    let (here, there, client, reader, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        let plain = files[0].0;
        ro_site(&source, &target).await;
        // All devices fail.
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
        // Released versions stay; later versions without references are removed.
        let object = released.object(plain.vnode, plain.uniquifier, &released.objects[0]);
        let osd = released.objects[0].osd;
        for turn in 0..3 {
            store(&client, plain, turn * 10, b"change").await.unwrap();
        }
        let last = layout(&here, plain).unwrap().objects[0].version;
        let kept = [released.objects[0].version, last];
        until("old versions are removed", async || {
            osds.versions(osd, object) == kept
        })
        .await;
        check(&reader, RO, &files).await;
        // The next release sends exactly the changes.
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

#[test]
fn copies_read_and_store_in_objects_of_their_own() {
    let (here, there, client, other, port) = two();
    run(async {
        let (osds, source, target, files) = one_cell(&here, &there, &client).await;
        // `vos copy` to another server, and `vos clone -readwrite` beside it, while devices are
        // missing.
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
        // Versions that the volume no longer names are still named by a copy that has not stored
        // since.
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
        until("old versions are removed", async || {
            osds.versions(old.objects[0].osd, object) == kept
        })
        .await;
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
        // A server without object storage, one of another cell, and one that lacks a device.
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
        assert_eq!(items_of(&target, NEW).await, 0, "no vnode");
        target.delete(NEW).await;
        osds.attach(&there, "other.cell").await;
        assert_eq!(code(restore(&target).await), AbortCode::ENODEV.0);
        let _few = Osds::start(&lacking, 1, &[]).await;
        let third = Volser(lacking.admin().await);
        assert_eq!(code(restore(&third).await), AbortCode::ENODEV.0);
        // On this server under another id: the objects are read, and never written.
        restore(&source).await.unwrap();
        check(&client, NEW, &files).await;
        let copy = of(NEW, files[0].0);
        store(&client, copy, 0, b"copied").await.unwrap();
        assert_eq!(layout(&here, copy).unwrap().volume, NEW);
        // Restored over the volume itself, which has changed since: its clone's objects stay
        // untouched.
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

/// The number of vnodes of a volume.
async fn items_of(volser: &Volser, volume: VolumeId) -> usize {
    let items = volser.items(volume).await;
    let vnodes = items.iter().filter(|item| matches!(item, Item::Vnode(_)));
    vnodes.count()
}

#[test]
fn departures_are_noted_before_the_first_read() {
    let (here, there, client, _, port) = two();
    run(async {
        let (_osds, source, target) = without_files(&here, &there).await;
        let fid = client.create(Fid::root(OPEN), "small").await;
        store(&client, fid, 0, b"here").await.unwrap();
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        // The volume has no file in objects. If it had, a repair could have replaced objects since
        // their records were read. The objects that the other side names could then be removed
        // here.
        let volume = here.partition.volume(OPEN).unwrap().unwrap();
        assert_ne!(volume.info().shared, 0);
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
        assert_eq!(
            used() - before,
            sum,
            "counted once, for any number of copies"
        );
        let listed = afsvol::ListOneVolume {
            partition: 0,
            volume: OPEN,
        };
        let listed = volser.0.call(&listed).await.unwrap();
        assert_eq!(u64::try_from(listed.entries[0].size).unwrap(), used());
        // The quota applies to them.
        let admin = cell.admin().await;
        admin
            .call(&common::quota(used() as i32 + 10))
            .await
            .unwrap();
        let fid = machine.create(Fid::root(OPEN), "more").await;
        let refused = store(&machine, fid, 0, &pattern(2 << 20, 5)).await;
        assert_eq!(code(refused), AbortCode::VOVERQUOTA.0);
        // The sums of `vos traverse`.
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
        // Plain, three stripes, two stripes in two copies, two data and one parity object.
        assert_eq!((objects, single), (1 + 3 + 4 + 3, 1 + 3));
    });
}
