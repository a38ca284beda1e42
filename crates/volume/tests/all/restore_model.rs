//! Random changes, clones, restores, undone restores, deletions and conversions. A change of one
//! volume is not visible in another, and is completely visible in its own volume or not at all.

use crate::common;
use crate::common::restoring;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{World, at, new};
use bytes::Bytes;
use cellar_volume::{Error, RestoreMode, SnapshotSpec, StoreSpec, Volume, VolumeKind, VolumeSpec};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VolumeId};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use restoring::*;

/// Contents of all volumes by id.
type Model = BTreeMap<u32, Contents>;

struct Test {
    world: World,
    random: StdRng,
    model: Model,
    next: u32,
    /// Contents for restores: those of any volume at any time.
    known: Vec<Contents>,
    restored: u32,
    undone: u32,
    converted: u32,
}

impl Test {
    fn new(seed: u64) -> Self {
        let world = World::with_capacity(512 << 20);
        let first = contents(&world.volume());
        Self {
            world,
            random: StdRng::seed_from_u64(seed),
            model: Model::from([(common::VOLUME.0, first.clone())]),
            next: 100,
            known: vec![first],
            restored: 0,
            undone: 0,
            converted: 0,
        }
    }

    fn volume(&self, id: u32) -> Arc<Volume> {
        self.world.partition.volume(VolumeId(id)).unwrap().unwrap()
    }

    fn any(&mut self) -> u32 {
        let ids: Vec<u32> = self.model.keys().copied().collect();
        *ids.choose(&mut self.random).unwrap()
    }

    fn fresh_id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Changes a volume as clients do.
    fn change(&mut self, id: u32) {
        let volume = self.volume(id);
        if !volume.is_writable() {
            return;
        }
        if volume.is_restoring() {
            // A restore is being undone.
            self.world.partition.reap_now().unwrap();
        }
        for _ in 0..self.random.random_range(1..8) {
            let name = format!("n{}", self.random.random_range(0..12));
            self.change_name(&volume, volume.root(), name.as_bytes());
        }
        self.model.insert(id, contents(&volume));
    }

    fn change_name(&mut self, volume: &Volume, dir: Fid, name: &[u8]) {
        let sizes = [0, 10, 3000, 5000, 100_000, 400_000];
        let size = *sizes.choose(&mut self.random).unwrap();
        match volume.lookup(dir, name) {
            Err(Error::NotFound) if self.random.random_bool(0.2) => {
                let made = volume.make_dir(dir, name, &new(), at(self.next)).unwrap();
                let below = made.outcome.status.fid;
                self.change_name(volume, below, b"inside");
            }
            Err(Error::NotFound) => {
                let made = volume.create_file(dir, name, &new(), at(self.next));
                let fid = made.unwrap().outcome.status.fid;
                self.store(volume, fid, 0, size);
            }
            Ok(fid) if fid.vnode.is_directory() => {
                if self.random.random_bool(0.3) && volume.remove_dir(dir, name, at(1)).is_ok() {
                    return;
                }
                self.change_name(volume, fid, b"inside");
            }
            Ok(_) if self.random.random_bool(0.3) => {
                let _ = volume.remove_file(dir, name, at(self.next)).unwrap();
            }
            Ok(fid) => {
                let position = self.random.random_range(0..200_000);
                self.store(volume, fid, position, size);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn store(&mut self, volume: &Volume, fid: Fid, position: u64, size: usize) {
        let bytes = Bytes::from(vec![self.random.random_range(1..=255); size]);
        let mut spec = StoreSpec::at(position);
        if self.random.random_bool(0.2) {
            spec.file_length = self.random.random_range(0..300_000);
        }
        let _ = volume.store(fid, &spec, &[bytes], at(self.next)).unwrap();
    }

    fn clone(&mut self, source: u32) {
        let replaced = self.any();
        let id = if self.random.random_bool(0.3) {
            replaced
        } else {
            self.fresh_id()
        };
        let (from, to) = (VolumeId(source), VolumeId(id));
        let kind = VolumeKind::ReadOnly;
        let spec = SnapshotSpec::new(from, to, format!("c{id}"), kind, AfsTime(50));
        match self.world.partition.snapshot(&spec) {
            Ok(made) => {
                made.wait().unwrap();
                let shown = self.model[&source].clone();
                self.model.insert(id, shown);
            }
            // The target is of another group or the head of its own group, or a restore into it is
            // being undone.
            Err(Error::VolumeExists(_) | Error::Invalid(_) | Error::Busy(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Restores known contents over a volume, or begins to.
    fn restore(&mut self, id: u32) {
        let wanted = self.known.choose(&mut self.random).unwrap().clone();
        let mode = match self.random.random_bool(0.3) {
            true => RestoreMode::Full,
            false => RestoreMode::Incremental,
        };
        let begun = self.world.partition.begin_restore(VolumeId(id), mode);
        let mut restore = match begun {
            Ok(restore) => restore,
            // A clone beside its head, or one older than another clone; or a restore is being
            // undone.
            Err(Error::Invalid(_) | Error::Busy(_)) => return,
            Err(other) => panic!("{other}"),
        };
        let old = &self.model[&id];
        let stops = self.random.random_bool(0.4);
        let items = in_order(&wanted);
        let steps = match stops {
            true => self.random.random_range(0..=items.len()),
            false => items.len(),
        };
        for item in &items[..steps] {
            let vnode = item.image.vnode;
            if mode == RestoreMode::Incremental && old.get(&vnode.0) == Some(item) {
                restore.keep(vnode, item.image.uniquifier).unwrap();
            } else {
                put(&mut restore, item).unwrap();
            }
        }
        if stops {
            self.undone += 1;
            match self.random.random_bool(0.5) {
                true => restore.abort().unwrap(),
                false => drop(restore),
            }
            return;
        }
        finish(restore).unwrap();
        self.restored += 1;
        self.model.insert(id, wanted);
    }

    fn convert(&mut self, id: u32) {
        let parent = self.volume(id).info().parent;
        match self.world.partition.convert_to_rw(VolumeId(id), 0) {
            Ok(made) => {
                made.wait().unwrap();
                self.converted += 1;
                let shown = self.model.remove(&id).unwrap();
                self.model.insert(parent.0, shown);
            }
            Err(Error::VolumeExists(_) | Error::Invalid(_) | Error::Busy(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn create(&mut self) {
        let id = self.fresh_id();
        let kind = match self.random.random_bool(0.5) {
            true => VolumeKind::ReadOnly,
            false => VolumeKind::ReadWrite,
        };
        let parent = VolumeId(if kind == VolumeKind::ReadOnly { 10 } else { id });
        let spec = VolumeSpec {
            kind,
            parent,
            ..VolumeSpec::new(VolumeId(id), format!("v{id}"), ViceId(1), AfsTime(5))
        };
        let made = self.world.partition.create_volume(&spec).unwrap();
        let shown = contents(&made.wait().unwrap());
        self.model.insert(id, shown);
    }

    fn step(&mut self) {
        let id = self.any();
        match self.random.random_range(0..100) {
            0..30 => self.change(id),
            30..45 => self.clone(id),
            45..70 => self.restore(id),
            70..78 if self.model.len() > 1 => {
                let deleted = self.world.partition.delete_volume(VolumeId(id));
                deleted.unwrap().wait().unwrap();
                self.model.remove(&id);
            }
            78..84 => self.convert(id),
            84..90 => self.create(),
            90..96 => self.world.partition.reap_now().unwrap(),
            _ => {
                let shown = self.model[&id].clone();
                self.known.push(shown);
            }
        }
        while self.model.len() > 10 {
            let id = self.any();
            let deleted = self.world.partition.delete_volume(VolumeId(id));
            deleted.unwrap().wait().unwrap();
            self.model.remove(&id);
        }
    }

    fn compare(&self, when: &str) {
        for (id, shown) in &self.model {
            assert!(contents(&self.volume(*id)) == *shown, "{when}: volume {id}");
        }
    }
}

#[test]
fn every_volume_shows_what_was_done_to_it() {
    let mut done = (0, 0, 0);
    for seed in 0..12 {
        let mut test = Test::new(seed);
        for step in 0..250 {
            test.step();
            let when = format!("seed {seed}, step {step}");
            let one = test.any();
            assert!(contents(&test.volume(one)) == test.model[&one], "{when}");
            if step % 25 == 24 {
                test.compare(&when);
                test.world.check();
            }
            if step % 60 == 59 {
                test.world = test.world.reopen();
                test.compare(&when);
            }
        }
        test.world.partition.reap_now().unwrap();
        test.world.check_clean();
        test.world = test.world.reopen();
        test.compare("at the end");
        done.0 += test.restored;
        done.1 += test.undone;
        done.2 += test.converted;
    }
    println!("{done:?} restored, undone, converted");
    assert!(done.0 > 100 && done.1 > 50 && done.2 > 0);
}
