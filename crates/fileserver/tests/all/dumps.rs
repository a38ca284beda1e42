//! Dump, DumpV2, GetSize and Restore, compared with dumps that OpenAFS wrote.

use crate::common::volser::{NEW, Volser, assert_same, contents, cookie, items, sample};
use crate::common::{Cell, Machine, NOW, OPEN, run};
use bytes::Bytes;
use cellar_wire::List;
use cellar_wire::afsvol::{
    self, GetSize, IT_BUSY, IT_OFFLINE, ListOneVolume, READWRITE, ScrubDamage, ScrubProgress,
};
use cellar_wire::dump::Item;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

const BAD_DUMP: i32 = 1_492_325_122;

/// The offsets at which the items of a dump begin, and the end.
fn boundaries(dump: &[u8]) -> Vec<usize> {
    // Feeds byte by byte: each prefix with one more item is a boundary.
    let mut reader = cellar_wire::dump::Reader::new();
    let mut boundaries = vec![0];
    for (at, byte) in dump.iter().enumerate() {
        reader.feed(&[*byte]);
        while let Some(item) = reader.next_item().unwrap() {
            if !matches!(item, Item::Data(_)) {
                boundaries.push(at);
            }
        }
    }
    boundaries
}

#[test]
fn a_dump_of_openafs_is_restored_and_dumped_the_same() {
    let cell = Cell::start();
    run(async {
        let volser = Volser(cell.admin().await);
        for name in ["full", "mountpoint", "readonly", "backup"] {
            let dump = sample(name);
            volser.volume_of("samp", NEW, &dump).await;
            let again = volser.items(NEW).await;
            let before = items(&dump);
            assert_same(&contents(&again), &contents(&before), name);
            let (Item::Volume(old), Item::Volume(new)) = (&before[1], &again[1]) else {
                panic!("no head")
            };
            assert_eq!(
                (new.creation_date, new.update_date, new.max_quota, new.owner),
                (old.creation_date, old.update_date, old.max_quota, old.owner)
            );
            assert_eq!(
                (new.disk_used, new.uniquifier),
                (old.disk_used, old.uniquifier),
                "{name}"
            );
            assert_eq!((new.volume, new.parent, new.volume_type), (NEW, NEW, 0));
            volser.delete(NEW).await;
        }
    });
}

#[test]
fn an_incremental_dump_brings_a_volume_up_to_date() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        volser.volume_of("samp", NEW, &sample("full")).await;
        let hello = Fid {
            volume: NEW,
            vnode: VnodeId(2),
            uniquifier: Uniquifier(4),
        };
        let old = machine.fetch(hello, 0, 100).await.unwrap();
        assert_eq!(old, b"hello world\n");
        let trans = volser.begin(NEW, IT_OFFLINE).await;
        let incremental = sample("incremental");
        let as_before = || cookie("samp", READWRITE, NEW);
        volser
            .restore(trans, as_before(), &incremental, usize::MAX)
            .await
            .unwrap();
        volser.flags(trans, 0).await;
        volser.end(trans).await;
        assert_eq!(machine.take_breaks(), [Fid::whole_volume(NEW)]);
        let new = machine.fetch(hello, 0, 100).await.unwrap();
        assert_eq!(new, b"hello world\nchanged\n");
        let now = contents(&volser.items(NEW).await);
        for item in contents(&items(&incremental)) {
            match item {
                Item::Vnode(record) if record.attributes.is_none() => {}
                item => assert!(now.contains(&item), "{item:?}"),
            }
        }
        // It can be changed as before.
        machine.store(hello, 0, b"own").await.unwrap();
        assert_eq!(machine.fetch(hello, 0, 100).await.unwrap(), b"own");
        // Restoring it over a different volume changes nothing.
        let trans = volser
            .create("other", READWRITE, VolumeId(0), OPEN_OTHER)
            .await;
        let wrong = volser
            .restore(
                trans,
                cookie("other", READWRITE, OPEN_OTHER),
                &incremental,
                100,
            )
            .await;
        assert_eq!(wrong.unwrap_err().code(), afsvol::WRONG_BASE);
        volser.flags(trans, 0).await;
        volser.end(trans).await;
        assert_eq!(volser.items(OPEN_OTHER).await.len(), 5, "heads, root, end");
    });
}

const OPEN_OTHER: VolumeId = VolumeId(536_870_940);

#[test]
fn dumps_by_date_hold_what_changed() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let root = Fid::root(OPEN);
        let dir = machine.make_dir(root, "dir").await;
        let old = machine.create(root, "old").await;
        machine.store(old, 0, b"old").await.unwrap();
        cell.wait_secs(1000);
        let new = machine.create(root, "new").await;
        machine.store(new, 0, &[7; 100_000]).await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let with_attributes = |dump: &[u8]| {
            let mut changed = Vec::new();
            let mut all = 0;
            for item in items(dump) {
                if let Item::Vnode(record) = item {
                    all += 1;
                    if record.attributes.is_some() {
                        changed.push(record.vnode);
                    }
                }
            }
            (all, changed)
        };
        let from = (NOW + 500) as i32;
        let dump = volser.dump(trans, from).await;
        let (all, changed) = with_attributes(&dump);
        assert_eq!(all, 4);
        assert_eq!(changed, [root.vnode, dir.vnode, new.vnode]);
        let short = volser.dump_v2(trans, from, 1).await;
        let (all, changed) = with_attributes(&short);
        assert_eq!((all, &changed[..]), (4, &[root.vnode, new.vnode][..]));
        assert!(short.len() < dump.len());
        assert_eq!(volser.dump_v2(trans, from, 0).await, dump);
        let none = volser.dump_v2(trans, from + 1000, 1).await;
        assert_eq!(with_attributes(&none), (4, vec![]));
        for (from_date, length) in [(0, volser.dump(trans, 0).await.len()), (from, dump.len())] {
            let size = volser.0.call(&GetSize { trans, from_date }).await.unwrap();
            assert_eq!(size.size.dump_size, length as u64);
        }
        volser.end(trans).await;
    });
}

#[test]
fn bad_dumps_leave_the_volume_as_it_was() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        volser.volume_of("samp", NEW, &sample("full")).await;
        let before = volser.items(NEW).await;
        let hello = Fid {
            volume: NEW,
            vnode: VnodeId(2),
            uniquifier: Uniquifier(4),
        };
        let incremental = sample("incremental");
        let mut bad: Vec<Vec<u8>> = Vec::new();
        for boundary in boundaries(&incremental) {
            bad.push(incremental[..boundary].to_vec());
            bad.push(incremental[..(boundary + 3).min(incremental.len() - 1)].to_vec());
        }
        bad.push([&incremental[..], b"!"].concat());
        // Lengths of contents that no dump has.
        let short = b"f\0\0\0\x14hello";
        let at = incremental
            .windows(short.len())
            .position(|window| window == short)
            .unwrap();
        for length in [
            &b"f\xff\xff\xff\xff"[..],
            b"h\xff\xff\xff\xff\xff\xff\xff\xff",
            b"h\x7f\xff\xff\xff\xff\xff\xff\xff",
        ] {
            bad.push([&incremental[..at], length, &incremental[at + 5..]].concat());
        }
        let trans = volser.begin(NEW, IT_OFFLINE).await;
        for (index, dump) in bad.iter().enumerate() {
            let cookie = cookie("samp", READWRITE, NEW);
            let outcome = volser.restore(trans, cookie, dump, 1 << 20).await;
            assert_eq!(outcome.unwrap_err().code().0, BAD_DUMP, "{index}");
        }
        volser.end(trans).await;
        let after = contents(&volser.items(NEW).await);
        assert_same(&after, &contents(&before), "after");
        let old = machine.fetch(hello, 0, 100).await.unwrap();
        assert_eq!(old, b"hello world\n");
    });
}

/// OpenAFS's servers accept such a dump, and serve the volume only after a salvage has made a root
/// directory.
#[test]
fn a_dump_without_a_root_directory_is_refused() {
    let cell = Cell::start();
    run(async {
        let volser = Volser(cell.admin().await);
        let sound = sample("full");
        let is_root =
            |item: &Item| matches!(item, Item::Vnode(record) if record.vnode == VnodeId::ROOT);
        let place = items(&sound)
            .iter()
            .filter(|item| !matches!(item, Item::Data(_)))
            .position(is_root)
            .unwrap();
        let places = boundaries(&sound);
        // The item is recognised only after the length of its contents, which follows their tag.
        let (from, to) = (places[place], places[place + 1] - 4);
        assert_eq!((sound[from], sound[to]), (3, b'f'));
        let length = u32::from_be_bytes(sound[to + 1..to + 5].try_into().unwrap());
        let rest = &sound[to + 5 + length as usize..];
        let rootless = [&sound[..from], rest].concat();
        assert_eq!(
            items(&rootless).iter().filter(|item| is_root(item)).count(),
            0
        );
        let trans = volser.create("samp", READWRITE, NEW, NEW).await;
        let cookie = cookie("samp", READWRITE, NEW);
        let refused = volser.restore(trans, cookie, &rootless, 4096).await;
        assert_eq!(refused.unwrap_err().code().0, BAD_DUMP);
        volser.end(trans).await;
    });
    assert_eq!(cell.partition.check().unwrap().faults, [""; 0]);
}

/// With any bits changed, the volume is either unchanged, or as in the dump and sound.
#[test]
fn damaged_dumps_are_refused_or_make_a_sound_volume() {
    let cell = Cell::start();
    run(async {
        let volser = Volser(cell.admin().await);
        volser.volume_of("samp", NEW, &sample("full")).await;
        let mut before = contents(&volser.items(NEW).await);
        let sound = sample("full");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut refused, mut taken) = (0, 0);
        for _ in 0..150 {
            let mut dump = sound.clone();
            let at = random(dump.len());
            dump[at] ^= 1 << random(8);
            let trans = volser.begin(NEW, IT_OFFLINE).await;
            let cookie = cookie("samp", READWRITE, NEW);
            let outcome = volser.restore(trans, cookie, &dump, 4096).await;
            volser.end(trans).await;
            let after = contents(&volser.items(NEW).await);
            match outcome {
                Ok(()) => {
                    taken += 1;
                    before = after;
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.code().0, BAD_DUMP, "bit in byte {at}");
                    assert_same(&after, &before, "damaged");
                }
            }
        }
        assert!(
            refused > 10 && taken > 10,
            "{refused} refused, {taken} taken"
        );
    });
    assert_eq!(cell.partition.check().unwrap().faults, [""; 0]);
}

#[test]
fn a_full_partition_refuses_a_dump_and_keeps_what_it_has() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let file = machine.create(Fid::root(OPEN), "file").await;
        let data: Vec<u8> = (0..3_000_000_u32)
            .map(|n| (n.wrapping_mul(n) >> 7) as u8)
            .collect();
        machine.store(file, 0, &data).await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let dump = volser.dump(trans, 0).await;
        volser.end(trans).await;
        let target = volser.create("new", READWRITE, NEW, NEW).await;
        let usage = cell.partition.usage().unwrap();
        let used = (usage.total_blocks - usage.free_blocks) * 1024;
        cell.disk.set_capacity(used + (2 << 20));
        let outcome = volser
            .restore(target, cookie("new", READWRITE, NEW), &dump, 1 << 20)
            .await;
        assert_eq!(outcome.unwrap_err().code().0, 108, "VDISKFULL");
        volser.end(target).await;
        assert_eq!(machine.fetch(file, 0, 10).await.unwrap(), data[..10]);
    });
}

#[test]
fn only_superusers_dump_and_restore() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let volser = machine
        .port
        .connect(cell.address(), 4, cellar_rpc::Security::null());
    run(async {
        let refused = 1_492_325_127;
        let code = |error: cellar_rpc::CallError| error.code().0;
        let admin = Volser(cell.admin().await);
        let trans = admin.begin(OPEN, IT_BUSY).await;
        let size = GetSize {
            trans,
            from_date: 0,
        };
        assert_eq!(code(volser.call(&size).await.unwrap_err()), refused);
        let state = afsvol::GetState { trans };
        assert_eq!(code(volser.call(&state).await.unwrap_err()), refused);
        let refill = afsvol::Refill {
            partition: 0,
            fid: Fid::root(OPEN),
            length: 2048,
            data_version: 1,
            places: List::default(),
        };
        assert_eq!(code(volser.call(&refill).await.unwrap_err()), refused);
        let split = afsvol::SplitVolume {
            volume: OPEN,
            new_volume: NEW,
            vnode: 1,
            verbose: 0,
        };
        assert_eq!(code(volser.call(&split).await.unwrap_err()), 1);
        assert_eq!(code(admin.0.call(&split).await.unwrap_err()), 1_492_325_131);
        let other = Volser(volser.clone());
        let cookie = cookie("scratch", READWRITE, OPEN);
        let outcome = other.restore(trans, cookie, &sample("full"), 1000).await;
        assert_eq!(code(outcome.unwrap_err()), refused);
        let can = volser.call(&afsvol::GetCapabilities {}).await.unwrap();
        // Deltas, and removed files in them.
        assert_eq!((can.version, can.capabilities), (1, 3));
        let one = ListOneVolume {
            partition: 0,
            volume: OPEN,
        };
        let busy = volser.call(&one).await.unwrap().entries;
        assert_eq!((busy[0].status, busy[0].name.len()), (110, 0));
    });
}

#[test]
fn contents_of_4_gib_and_more_have_a_64_bit_length() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let file = machine.create(Fid::root(OPEN), "large").await;
        machine.store(file, 1 << 32, b"end").await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let size = GetSize {
            trans,
            from_date: 0,
        };
        let size = volser.0.call(&size).await.unwrap().size.dump_size;
        assert!(
            ((1 << 32) + 2400..(1 << 32) + 2700).contains(&size),
            "{size}"
        );
        let call = afsvol::Dump {
            trans,
            from_date: 0,
        };
        let mut call = volser.0.open(&call).await.unwrap();
        let mut head = Vec::new();
        while head.len() < 100_000 {
            head.extend_from_slice(&call.read_chunk().await.unwrap().unwrap());
        }
        let tag = b"h\0\0\0\x01\0\0\0\x03\0\0\0";
        assert!(head.windows(tag.len()).any(|window| window == tag));
        // Abandoned in the middle.
        drop(call);
        volser.end(trans).await;
    });
}

/// The result of a scrub: the damage, and the last progress report.
async fn scrub(
    volser: &Volser,
    volume: VolumeId,
) -> Result<(Vec<ScrubDamage>, ScrubProgress), i32> {
    let call = afsvol::Scrub {
        partition: 0,
        volume,
        rate_kib: 0,
    };
    let mut call = volser.0.open(&call).await.unwrap();
    let (mut damage, mut progress) = (Vec::new(), ScrubProgress::default());
    loop {
        match call.read::<u32>().await.map_err(|error| error.code().0)? {
            afsvol::SCRUB_PROGRESS => progress = call.read().await.unwrap(),
            afsvol::SCRUB_DAMAGE => damage.push(call.read().await.unwrap()),
            _ => break,
        }
    }
    let reply: afsvol::ScrubReply = call.results().await.unwrap();
    assert!(!reply.partial);
    Ok((damage, progress))
}

#[test]
fn a_scrub_names_what_is_damaged() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let dir = machine.make_dir(Fid::root(OPEN), "dir").await;
        let file = machine.create(dir, "file").await;
        machine.store(file, 0, &[0xa5; 200_000]).await.unwrap();
        let (damage, progress) = scrub(&volser, VolumeId(0)).await.unwrap();
        assert_eq!(damage, []);
        assert_eq!((progress.volumes, progress.volumes_total), (2, 2));
        assert!(progress.bytes >= 200_000);
        let blocks = cell.disk.contents("blocks.0");
        let at = blocks
            .windows(64)
            .position(|window| window == [0xa5; 64])
            .unwrap();
        cell.disk.flip_bit("blocks.0", at as u64 + 50_000, 3);
        let (damage, progress) = scrub(&volser, OPEN).await.unwrap();
        assert_eq!((damage.len(), progress.damaged), (1, 1));
        assert_eq!((damage[0].vnode, damage[0].volume), (file.vnode, OPEN));
        assert_eq!(&damage[0].path[..], b"dir/file");
        assert_eq!(damage[0].length, 200_000);
        assert_eq!(damage[0].places.len(), 1);
        assert_eq!(scrub(&volser, NEW).await.unwrap_err(), 103);
        // Bytes of another version are not accepted.
        let refill = async |volume, data_version: u64, bytes: &[u8]| {
            let call = afsvol::Refill {
                partition: 0,
                fid: Fid { volume, ..file },
                length: 200_000,
                data_version,
                places: damage[0].places.clone(),
            };
            let mut call = volser.0.open(&call).await.unwrap();
            // Bytes beyond the places do no harm.
            for _ in 0..3 {
                let piece = Bytes::copy_from_slice(bytes);
                if call.write(piece).await.is_err() {
                    break;
                }
            }
            call.finish();
            let reply: Result<afsvol::RefillReply, _> = call.results().await;
            reply
                .map(|done| (done.restored, done.from_here, done.missing))
                .map_err(|error| error.code().0)
        };
        let version = damage[0].data_version;
        assert_eq!(refill(NEW, version, &[0xa5; 4096]).await, Err(103));
        assert_eq!(refill(OPEN, version + 1, &[0xa5; 4096]).await, Err(22));
        assert_eq!(refill(OPEN, version, &[]).await, Ok((0, 0, 1)));
        assert_eq!(refill(OPEN, version, &[0xa4; 4096]).await, Ok((0, 0, 1)));
        // A dump stops instead of sending wrong data.
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let call = afsvol::Dump {
            trans,
            from_date: 0,
        };
        let mut call = volser.0.open(&call).await.unwrap();
        let code = loop {
            match call.read_chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a whole dump"),
                Err(error) => break error.code().0,
            }
        };
        assert_eq!(code, 1_492_325_123, "VOLSERDUMPERROR");
        volser.end(trans).await;
        assert_eq!(refill(OPEN, version, &[0xa5; 4096]).await, Ok((1, 0, 0)));
        assert_eq!(
            machine.fetch(file, 0, 200_000).await.unwrap(),
            [0xa5; 200_000]
        );
        assert_eq!(scrub(&volser, VolumeId(0)).await.unwrap().0, []);
    });
}
