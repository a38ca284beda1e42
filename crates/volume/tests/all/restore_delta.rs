//! A delta changes what it names and nothing else, and only on its base state.

use crate::common::restoring;

use std::sync::Arc;

use crate::common::{World, at, new};
use bytes::{Bytes, BytesMut};
use cellar_volume::{
    Error, Restore, RestoreMode, StateId, StoreSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VnodeId, VolumeId};
use rand::{Rng, SeedableRng, rngs::StdRng};
use restoring::*;

const TARGET: VolumeId = VolumeId(90);

fn state(epoch: u64) -> StateId {
    StateId {
        lineage: [5; 16],
        epoch,
    }
}

/// A target that received the volume's contents as state 1.
fn received(world: &World, volume: &Volume, kind: VolumeKind) -> Contents {
    let wanted = contents(volume);
    empty_volume(&world.partition, TARGET, kind);
    let mut restore = world
        .partition
        .begin_restore(TARGET, RestoreMode::Full)
        .unwrap();
    for item in in_order(&wanted) {
        put(&mut restore, item).unwrap();
    }
    commit(restore, 1);
    wanted
}

fn commit(restore: Restore, epoch: u64) -> Arc<Volume> {
    let mut info = info_of(restore.volume());
    info.received = Some(state(epoch));
    restore.commit(info).unwrap().wait().unwrap()
}

fn begin(world: &World, epoch: u64) -> cellar_volume::Result<Restore> {
    let base = state(epoch);
    world
        .partition
        .begin_restore(TARGET, RestoreMode::Delta { base })
}

fn make(volume: &Volume, name: &str, bytes: Bytes) -> Fid {
    let made = volume.create_file(volume.root(), name.as_bytes(), &new(), at(10));
    let fid = made.unwrap().outcome.status.fid;
    let _ = volume
        .store(fid, &StoreSpec::at(0), &[bytes], at(11))
        .unwrap();
    fid
}

#[test]
fn a_delta_builds_on_what_was_received_and_on_nothing_else() {
    let world = World::new();
    let volume = world.volume();
    let file = make(&volume, "file", Bytes::from(vec![1; 100_000]));
    let old = received(&world, &volume, VolumeKind::ReadWrite);
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    assert_eq!(target.received().unwrap(), Some(state(1)));
    assert!(matches!(begin(&world, 2), Err(Error::WrongBase(_))));
    let mut restore = begin(&world, 1).unwrap();
    let mut image = old[&file.vnode.0].image.clone();
    image.mode = 0o600;
    restore.patch(&image).unwrap();
    restore.skip(50_000).unwrap();
    restore.push(Bytes::from(vec![2; 10])).unwrap();
    restore.skip(49_990).unwrap();
    let target = commit(restore, 2);
    assert_eq!(target.received().unwrap(), Some(state(2)));
    let there = fid(&target, file.vnode.0, file.uniquifier.0);
    assert_eq!(target.status(there).unwrap().mode, 0o600);
    let mut expected = vec![1; 100_000];
    expected[50_000..50_010].fill(2);
    assert_eq!(target.read(there, 0, 200_000).unwrap(), expected);
    assert!(matches!(begin(&world, 1), Err(Error::WrongBase(_))));
    // After the undo, the state is the same as before.
    begin(&world, 2).unwrap().abort().unwrap();
    assert_eq!(target.received().unwrap(), Some(state(2)));
    let world = world.reopen();
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    assert_eq!(target.received().unwrap(), Some(state(2)));
    let made = target.create_file(target.root(), b"own", &new(), at(20));
    made.unwrap().wait().unwrap();
    assert_eq!(target.received().unwrap(), None);
    assert!(matches!(begin(&world, 2), Err(Error::WrongBase(_))));
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn directories_are_patched_page_by_page_and_vnodes_removed() {
    let world = World::new();
    let volume = world.volume();
    for n in 0..300 {
        make(&volume, &format!("a-name-of-some-length-{n}"), Bytes::new());
    }
    let old = received(&world, &volume, VolumeKind::ReadOnly);
    let gone = volume
        .lookup(volume.root(), b"a-name-of-some-length-7")
        .unwrap();
    let name = b"a-name-of-some-length-7";
    let _ = volume.remove_file(volume.root(), name, at(30)).unwrap();
    make(&volume, "fresh", Bytes::from(vec![3; 5000]));
    let new = contents(&volume);
    let mut restore = begin(&world, 1).unwrap();
    restore.remove(gone.vnode).unwrap();
    let (before, after) = (&old[&1].bytes, &new[&1].bytes);
    restore.patch(&new[&1].image).unwrap();
    let mut pages = 0;
    for (index, page) in after.chunks(2048).enumerate() {
        if before.get(index * 2048..(index + 1) * 2048) == Some(page) {
            restore.skip(2048).unwrap();
        } else {
            restore.push(Bytes::copy_from_slice(page)).unwrap();
            pages += 1;
        }
    }
    assert!(pages < after.len() / 2048);
    for (vnode, item) in &new {
        if !old.contains_key(vnode) {
            put(&mut restore, item).unwrap();
        }
    }
    let target = commit(restore, 2);
    assert!(contents(&target) == new);
    assert_eq!(target.info().files, volume.info().files);
    assert_eq!(target.info().blocks_used, volume.info().blocks_used);
    drop(target);
    world.partition.reap_now().unwrap();
    world.reopen().check_clean();
}

/// Patches a file at random; returns its expected bytes.
fn random_patch(random: &mut StdRng, restore: &mut Restore, old: &[u8], length: usize) -> Vec<u8> {
    let mut model = old.to_vec();
    model.resize(length, 0);
    let mut at = 0;
    while at < length {
        let sizes = [1, 100, 4096, 5000, 8192, 70_000, 300_000, 1_100_000];
        let mut size = sizes[random.random_range(0..sizes.len())];
        if random.random_bool(0.5) {
            // To the end of a block.
            size = (at + size).next_multiple_of(4096) - at;
        }
        let size = size.min(length - at);
        match random.random_range(0..4) {
            0 => {
                let byte = random.random_range(0..3);
                let mut bytes = BytesMut::zeroed(size);
                bytes.fill(byte);
                restore.push(bytes.freeze()).unwrap();
                model[at..at + size].fill(byte);
            }
            1 => {
                restore.zeros(size as u64).unwrap();
                model[at..at + size].fill(0);
            }
            _ => restore.skip(size as u64).unwrap(),
        }
        at += size;
    }
    model
}

/// Patches and removes vnodes, and undoes it.
fn undo_some(
    random: &mut StdRng,
    world: &World,
    epoch: u64,
    models: &[(VnodeId, Vec<u8>)],
    images: &Contents,
) {
    let mut restore = begin(world, epoch).unwrap();
    for (vnode, model) in models {
        let mut image = images[&vnode.0].image.clone();
        match random.random_range(0..3) {
            0 => restore.remove(*vnode).unwrap(),
            1 => {
                image.length = random.random_range(0..1_000_000);
                restore.patch(&image).unwrap();
                random_patch(random, &mut restore, model, image.length as usize);
            }
            _ => {}
        }
    }
    restore.abort().unwrap();
    world.check();
}

#[test]
fn patched_files_are_what_a_model_says() {
    let mut random = StdRng::seed_from_u64(4);
    let lengths = [
        0, 1, 2000, 4096, 4097, 10_000, 262_144, 262_145, 600_000, 2_000_000,
    ];
    for round in 0..6 {
        let world = World::with_capacity(256 << 20);
        let spec = VolumeSpec::new(VolumeId(77), "source", ViceId(1), AfsTime(1));
        let volume = world.partition.create_volume(&spec).unwrap().outcome;
        let mut models = Vec::new();
        for n in 0..12 {
            let length = lengths[random.random_range(0..lengths.len())];
            let bytes: Vec<u8> = (0..length)
                .map(|at| if at / 9000 % 3 == 0 { 0 } else { 1 + n as u8 })
                .collect();
            let fid = make(&volume, &format!("f{n}"), bytes.clone().into());
            models.push((fid.vnode, bytes));
        }
        let kind = if round % 2 == 0 {
            VolumeKind::ReadOnly
        } else {
            VolumeKind::ReadWrite
        };
        let mut images = received(&world, &volume, kind);
        // Clones keep their contents, whatever is patched in the volume.
        let mut clones = Vec::new();
        for epoch in 1..8 {
            if random.random_bool(0.5) {
                undo_some(&mut random, &world, epoch, &models, &images);
            }
            let mut restore = begin(&world, epoch).unwrap();
            for (vnode, model) in &mut models {
                if random.random_bool(0.3) {
                    continue;
                }
                let image = &mut images.get_mut(&vnode.0).unwrap().image;
                let length = lengths[random.random_range(0..lengths.len())];
                if random.random_bool(0.6) {
                    image.length = length as u64;
                }
                let length = image.length as usize;
                restore.patch(image).unwrap();
                *model = random_patch(&mut random, &mut restore, model, length);
            }
            let target = commit(restore, epoch + 1);
            let shown = contents(&target);
            for (vnode, model) in &models {
                assert!(
                    shown[&vnode.0].bytes == model[..],
                    "round {round}, epoch {epoch}, {vnode}"
                );
            }
            world.check();
            if random.random_bool(0.4) {
                let clone = world.clone_of(&target, 100 + epoch as u32, VolumeKind::Backup);
                clones.push((clone, shown));
            }
            drop(target);
            if random.random_bool(0.5) {
                world.partition.reap_now().unwrap();
            }
            for (clone, shown) in &clones {
                assert!(contents(clone) == *shown);
            }
        }
        drop(clones);
        world.partition.reap_now().unwrap();
        world.check_clean();
        let world = world.reopen();
        world.check_clean();
        let target = world.partition.volume(TARGET).unwrap().unwrap();
        let shown = contents(&target);
        for (vnode, model) in &models {
            assert!(shown[&vnode.0].bytes == model[..]);
        }
    }
}

#[test]
fn a_patch_of_nothing_is_refused() {
    let world = World::new();
    let volume = world.volume();
    let file = make(&volume, "file", Bytes::from(vec![1; 10]));
    let old = received(&world, &volume, VolumeKind::ReadOnly);
    let mut restore = begin(&world, 1).unwrap();
    let mut image = old[&file.vnode.0].image.clone();
    image.vnode = VnodeId(4000);
    assert!(matches!(restore.patch(&image), Err(Error::WrongBase(_))));
    let image = &old[&file.vnode.0].image;
    restore.patch(image).unwrap();
    restore.push(Bytes::from_static(b"five5")).unwrap();
    assert!(matches!(finish(restore), Err(Error::Invalid(_))));
    world.partition.reap_now().unwrap();
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    assert!(contents(&target) == old);
    drop(target);
    world.check_clean();
}
