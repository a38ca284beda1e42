//! Reserved numbers, and making vnodes under them.

use std::sync::Arc;

use crate::common::{VOLUME, World, at, create_volume, new, options};
use bytes::Bytes;
use cellar_volume::disk::{Fault, SimDisk};
use cellar_volume::{
    Changed, Error, FileType, MadeVnodes, Make, Partition, Reservation, StoreSpec, VnodeContents,
    Volume, VolumeKind, nonblocking,
};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};

const ME: u64 = 7;

fn reserve(volume: &Volume, files: u32, directories: u32) -> Reservation {
    let reserved = volume.reserve(ME, files, directories).unwrap();
    reserved.durable.wait().unwrap();
    reserved.outcome
}

/// The file with this index in a block.
fn file<'a>(block: &Reservation, place: u32, name: &'a str, bytes: &'a [Bytes]) -> Make<'a> {
    Make {
        name: name.as_bytes(),
        vnode: VnodeId(block.first_file.0 + 2 * place),
        uniquifier: Uniquifier(block.first_uniquifier.0 + place),
        what: VnodeContents::File(bytes),
        new: new(),
    }
}

fn link<'a>(block: &Reservation, place: u32, name: &'a str) -> Make<'a> {
    Make {
        what: VnodeContents::Symlink(b"target"),
        ..file(block, place, name, &[])
    }
}

fn directory<'a>(block: &Reservation, place: u32, name: &'a str) -> Make<'a> {
    Make {
        name: name.as_bytes(),
        vnode: VnodeId(block.first_directory.0 + 2 * place),
        uniquifier: Uniquifier(block.first_uniquifier.0 + block.files + place),
        what: VnodeContents::Directory,
        new: new(),
    }
}

fn fid(make: &Make<'_>) -> Fid {
    Fid {
        volume: VOLUME,
        vnode: make.vnode,
        uniquifier: make.uniquifier,
    }
}

fn make(volume: &Volume, dir: Fid, makes: &[Make<'_>]) -> cellar_volume::Result<MadeVnodes> {
    let Changed { outcome, durable } = volume.make(dir, ME, makes, 1024, at(20))?;
    durable.wait()?;
    Ok(outcome)
}

fn refused(volume: &Volume, dir: Fid, makes: &[Make<'_>]) -> Error {
    make(volume, dir, makes).unwrap_err()
}

fn pattern(length: usize) -> Bytes {
    (0..length)
        .map(|n| (n / 7) as u8)
        .collect::<Vec<_>>()
        .into()
}

fn create(volume: &Volume, name: &str) -> Fid {
    let made = volume.create_file(volume.root(), name.as_bytes(), &new(), at(5));
    made.unwrap().wait().unwrap().status.fid
}

#[test]
fn no_other_holder_gets_reserved_numbers() {
    let world = World::new();
    let volume = world.volume();
    let before = create(&volume, "before");
    let block = reserve(&volume, 100, 10);
    assert_eq!((block.files, block.directories), (100, 10));
    assert_eq!(block.first_file.0, before.vnode.0 + 2);
    let after = create(&volume, "after");
    assert_eq!(after.vnode.0, block.first_file.0 + 200);
    assert_eq!(after.uniquifier.0, block.first_uniquifier.0 + 110);
    let other = reserve(&volume, 1, 1);
    assert_eq!(other.first_directory.0, block.first_directory.0 + 20);
    drop(volume);
    let world = world.reopen();
    let volume = world.volume();
    assert_eq!(create(&volume, "again").vnode.0, after.vnode.0 + 4);
    world.check();
    // The numbers still belong to their holder.
    make(&volume, volume.root(), &[file(&block, 99, "last", &[])]).unwrap();
    make(&volume, volume.root(), &[directory(&block, 9, "dir")]).unwrap();
    world.check();
}

/// Files of all sizes, directories and links, several in one change, some of them in directories
/// just made.
#[test]
fn a_combined_create_and_store_equals_both_calls() {
    let world = World::new();
    let volume = world.volume();
    let block = reserve(&volume, 100, 10);
    let lengths = [0, 1, 4096, 4097, 8192, 300_000];
    let bodies: Vec<[Bytes; 2]> = lengths
        .map(|length| {
            let mut first = pattern(length);
            let second = first.split_off(length / 3);
            [first, second]
        })
        .into();
    let names: Vec<String> = lengths.map(|length| format!("f{length}")).into();
    let dir = directory(&block, 0, "dir");
    let made = make(&volume, volume.root(), &[dir, link(&block, 50, "link")]).unwrap();
    assert_eq!(made.dir.data_version, 3);
    assert_eq!(made.dir.link_count, 3);
    let files: Vec<Make<'_>> = (0..lengths.len())
        .map(|n| file(&block, n as u32, &names[n], &bodies[n]))
        .collect();
    let made = make(&volume, fid(&dir), &files).unwrap();
    assert_eq!(made.dir.data_version, lengths.len() as u64);
    // The same in the ordinary way.
    let there = volume.make_dir(volume.root(), b"there", &new(), at(20));
    let there = there.unwrap().wait().unwrap().status.fid;
    let look = |volume: &Volume| {
        for (n, length) in lengths.into_iter().enumerate() {
            let mine = fid(&files[n]);
            assert_eq!(volume.lookup(fid(&dir), names[n].as_bytes()).unwrap(), mine);
            assert_eq!(volume.read(mine, 0, 1 << 20).unwrap(), pattern(length));
            let its = volume.lookup(there, names[n].as_bytes()).unwrap();
            let (mine, its) = (volume.status(mine).unwrap(), volume.status(its).unwrap());
            let seen = |s: &cellar_volume::VnodeStatus| {
                (
                    s.length,
                    s.data_version,
                    s.mode,
                    s.link_count,
                    s.kind,
                    s.owner,
                )
            };
            assert_eq!(seen(&mine), seen(&its), "{length}");
            assert_eq!(mine.server_time, AfsTime(20));
        }
        let target = volume.lookup(volume.root(), b"link").unwrap();
        assert_eq!(volume.read(target, 0, 100).unwrap(), "target");
        assert_eq!(volume.status(target).unwrap().kind, FileType::Symlink);
        let entries = volume.entries(fid(&dir)).unwrap();
        assert_eq!(entries.len(), 2 + lengths.len());
    };
    for n in 0..lengths.len() {
        let made = volume.create_file(there, names[n].as_bytes(), &new(), at(20));
        let its = made.unwrap().wait().unwrap().status.fid;
        if lengths[n] > 0 {
            let stored = volume.store(its, &StoreSpec::at(0), &bodies[n], at(20));
            stored.unwrap().wait().unwrap();
        }
    }
    for (made, make) in made.made.iter().zip(&files) {
        assert_eq!(*made, volume.status(fid(make)).unwrap());
    }
    look(&volume);
    world.check_clean();
    drop(volume);
    let world = world.reopen();
    look(&world.volume());
    world.check_clean();
}

#[test]
fn a_number_is_used_once_also_after_a_restart() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let block = reserve(&volume, 10, 10);
    make(&volume, root, &[file(&block, 0, "a", &[])]).unwrap();
    let again = |volume: &Volume| {
        let twice = [file(&block, 0, "b", &[])];
        assert!(matches!(
            refused(volume, root, &twice),
            Error::NotReserved(_)
        ));
        let one = [file(&block, 1, "b", &[]), file(&block, 1, "c", &[])];
        assert!(matches!(refused(volume, root, &one), Error::NotReserved(_)));
        assert!(matches!(volume.lookup(root, b"b"), Err(Error::NotFound)));
    };
    again(&volume);
    drop(volume);
    let world = world.reopen();
    again(&world.volume());
    make(&world.volume(), root, &[file(&block, 1, "b", &[])]).unwrap();
    world.check();
}

#[test]
fn only_what_was_reserved_can_be_made_and_by_whom() {
    let world = World::new();
    let volume = world.volume();
    let (root, block) = (volume.root(), reserve(&volume, 10, 10));
    let good = file(&block, 0, "a", &[]);
    let bad = [
        file(&block, 10, "a", &[]),
        directory(&block, 10, "a"),
        Make {
            uniquifier: Uniquifier(good.uniquifier.0 + 1),
            ..good
        },
        Make {
            what: VnodeContents::Directory,
            ..good
        },
        Make {
            what: VnodeContents::Symlink(b"x"),
            ..directory(&block, 0, "a")
        },
        Make {
            vnode: VnodeId::ROOT,
            uniquifier: Uniquifier::ROOT,
            ..directory(&block, 0, "a")
        },
    ];
    for bad in bad {
        let error = refused(&volume, root, &[bad]);
        assert!(matches!(error, Error::NotReserved(_)), "{bad:?}: {error}");
    }
    let others = volume.make(root, ME + 1, &[good], 0, at(20));
    assert!(matches!(others, Err(Error::NotReserved(_))));
    make(&volume, root, &[good]).unwrap();
}

/// A change that fails leaves nothing, and its numbers can be used.
#[test]
fn all_or_none_is_made() {
    let world = World::new();
    let volume = world.volume();
    let (root, block) = (volume.root(), reserve(&volume, 10, 10));
    create(&volume, "taken");
    let before = (volume.info(), volume.status(root).unwrap());
    let bytes = [pattern(200_000)];
    let good = [file(&block, 0, "a", &bytes), directory(&block, 0, "d")];
    for (name, expected) in [
        ("taken", Error::Exists),
        ("a", Error::Exists),
        (".", Error::Invalid("an empty name, . or ..")),
    ] {
        let makes = [good[0], good[1], file(&block, 1, name, &[])];
        assert_eq!(refused(&volume, root, &makes), expected);
    }
    volume
        .update_info(AfsTime(9), |info| info.max_quota = 100)
        .unwrap()
        .wait()
        .unwrap();
    let over = volume.make(root, ME, &good, 50, at(20));
    assert_eq!(over.unwrap_err(), Error::OverQuota);
    volume
        .update_info(AfsTime(9), |info| info.max_quota = before.0.max_quota)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!((volume.info(), volume.status(root).unwrap()), before);
    world.check_clean();
    make(&volume, root, &good).unwrap();
    world.check_clean();
}

#[test]
fn a_clone_does_not_see_what_is_made_later() {
    let world = World::new();
    let volume = world.volume();
    let block = reserve(&volume, 10, 10);
    let bytes = [pattern(10_000)];
    make(&volume, volume.root(), &[file(&block, 0, "old", &bytes)]).unwrap();
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    make(&volume, volume.root(), &[file(&block, 1, "new", &bytes)]).unwrap();
    assert!(matches!(
        clone.lookup(clone.root(), b"new"),
        Err(Error::NotFound)
    ));
    world.check();
}

#[test]
fn other_contents_have_no_reserved_numbers() {
    let world = World::new();
    let volume = world.volume();
    let block = reserve(&volume, 10, 10);
    world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    drop(volume);
    world
        .partition
        .delete_volume(VOLUME)
        .unwrap()
        .wait()
        .unwrap();
    let volume = world.partition.convert_to_rw(VolumeId(11), 0).unwrap();
    let volume = volume.wait().unwrap();
    world.partition.reap_now().unwrap();
    let error = refused(&volume, volume.root(), &[file(&block, 0, "a", &[])]);
    assert!(matches!(error, Error::NotReserved(_)), "{error}");
    drop(volume);
    let world = world.reopen();
    let volume = world.volume();
    let error = refused(&volume, volume.root(), &[file(&block, 0, "a", &[])]);
    assert!(matches!(error, Error::NotReserved(_)), "{error}");
    assert!(reserve(&volume, 1, 1).first_uniquifier > block.first_uniquifier);
}

/// A change of data in memory needs no disk access.
#[test]
fn small_things_are_made_without_waiting() {
    let world = World::new();
    let volume = world.volume();
    let block = reserve(&volume, 10, 10);
    create(&volume, "first");
    let bytes = [pattern(2000)];
    let makes = [file(&block, 0, "a", &bytes), directory(&block, 0, "d")];
    let made = nonblocking(|| volume.make(volume.root(), ME, &makes, 0, at(20)));
    made.unwrap().wait().unwrap();
}

/// Whatever fails, numbers that were given out are not given out again, and can be used.
#[test]
fn a_reservation_that_was_acknowledged_survives() {
    let mut acknowledged = 0;
    for relaxed in [false, true] {
        for n in 1.. {
            let disk = SimDisk::new(64 << 20);
            let open = |disk: &SimDisk| {
                let mut options = options();
                if relaxed {
                    let late = std::time::Duration::from_secs(3600);
                    options.durability = cellar_volume::Durability::Relaxed(late);
                }
                Partition::open(Arc::new(disk.clone()), options).unwrap()
            };
            let block = {
                let partition = open(&disk);
                create_volume(&partition);
                partition.flush().unwrap();
                let volume = partition.volume(VOLUME).unwrap().unwrap();
                disk.set_fault(Fault::Dead(n));
                let reserved = volume.reserve(ME, 10, 10);
                reserved.and_then(|reserved| {
                    reserved.durable.wait()?;
                    Ok(reserved.outcome)
                })
            };
            let partition = open(&disk.power_cut(Some(n)));
            let volume = partition.volume(VOLUME).unwrap().unwrap();
            let fresh = create(&volume, "fresh");
            if let Ok(block) = block {
                acknowledged += 1;
                assert_eq!(fresh.vnode.0, block.first_file.0 + 20);
                make(&volume, volume.root(), &[file(&block, 0, "mine", &[])]).unwrap();
            }
            let report = partition.check().unwrap();
            assert!(report.faults.is_empty(), "{:#?}", report.faults);
            if block.is_ok() {
                break;
            }
        }
    }
    assert_eq!(acknowledged, 2);
}
