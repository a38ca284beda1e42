//! Random operations compared with a model in memory, with clones, reopenings and power cuts.
//!
//! The model is a map of paths to contents; clones are copies of it. After every few operations all
//! volumes are compared with their models, byte for byte, and everything is checked. The seed is
//! printed; `MODEL_SEED` repeats a run and `MODEL_STEPS` makes it longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use cellar_volume::{Error, FileType, Partition, StoreOutcome, StoreSpec, Volume, VolumeKind};
use cellar_wire::ids::{Fid, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The contents of paths: the bytes of a file, or `None` for a directory.
type Tree = BTreeMap<Vec<String>, Option<Vec<u8>>>;

struct Run {
    world: World,
    random: StdRng,
    tree: Tree,
    clones: BTreeMap<u32, Tree>,
    seed: u64,
    step: u64,
}

fn resolve(volume: &Volume, path: &[String]) -> Fid {
    path.iter().fold(volume.root(), |dir, name| {
        volume.lookup(dir, name.as_bytes()).unwrap()
    })
}

fn collect(volume: &Volume, dir: Fid, path: &[String], tree: &mut Tree) {
    for entry in volume.entries(dir).unwrap() {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        if name == "." || name == ".." {
            continue;
        }
        let fid = Fid {
            volume: dir.volume,
            vnode: entry.vnode,
            uniquifier: entry.uniquifier,
        };
        let mut path = path.to_vec();
        path.push(name);
        let status = volume.status(fid).unwrap();
        if status.kind == FileType::Directory {
            tree.insert(path.clone(), None);
            collect(volume, fid, &path, tree);
        } else {
            let bytes = volume.read(fid, 0, 16 << 20).unwrap();
            assert_eq!(bytes.len() as u64, status.length);
            tree.insert(path, Some(bytes.to_vec()));
        }
    }
}

impl Run {
    fn pick(&mut self, directory: bool) -> Option<Vec<String>> {
        let paths: Vec<_> = self
            .tree
            .iter()
            .filter(|(_, content)| content.is_none() == directory)
            .map(|(path, _)| path.clone())
            .collect();
        if directory && self.random.random_bool(0.4) {
            return Some(Vec::new());
        }
        (!paths.is_empty()).then(|| paths[self.random.random_range(0..paths.len())].clone())
    }

    fn new_path(&mut self) -> Vec<String> {
        let mut path = self.pick(true).unwrap_or_default();
        path.push(format!("n{}", self.random.random_range(0..40)));
        path
    }

    fn step(&mut self) {
        self.step += 1;
        let volume = self.world.volume();
        match self.random.random_range(0..100) {
            0..25 => self.create(&volume),
            25..60 => self.store(&volume),
            60..72 => self.remove(&volume),
            72..84 => self.rename(&volume),
            84..90 => self.snapshot(&volume),
            90..94 => self.delete_clone(),
            94..96 => self.world.partition.reap_now().unwrap(),
            _ => self.world.partition.flush().unwrap(),
        }
    }

    fn create(&mut self, volume: &Volume) {
        let path = self.new_path();
        let (name, dir) = path.split_last().unwrap();
        let dir = resolve(volume, dir);
        let directory = self.random.random_bool(0.2);
        let result = if directory {
            volume.make_dir(dir, name.as_bytes(), &new(), at(1))
        } else {
            volume.create_file(dir, name.as_bytes(), &new(), at(1))
        };
        match result {
            Ok(created) => {
                created.wait().unwrap();
                let content = (!directory).then(Vec::new);
                assert!(self.tree.insert(path, content).is_none());
            }
            Err(Error::Exists) => assert!(self.tree.contains_key(&path)),
            Err(other) => panic!("{other}"),
        }
    }

    fn store(&mut self, volume: &Arc<Volume>) {
        let Some(path) = self.pick(false) else { return };
        let fid = resolve(volume, &path);
        let old = self.tree[&path].clone().unwrap();
        let near = |random: &mut StdRng, around: usize| {
            let spread = [10, 5000, 70_000, 600_000][random.random_range(0..4)];
            random.random_range(0..around + spread)
        };
        let position = match self.random.random_range(0..3) {
            0 => 0,
            1 => old.len(),
            _ => near(&mut self.random, old.len()),
        };
        let length = match self.random.random_range(0..5) {
            0 => 0,
            1..4 => self.random.random_range(0..6000),
            _ => self.random.random_range(0..700_000),
        };
        let file_length = match self.random.random_range(0..3) {
            0 => usize::MAX >> 1,
            1 => position + length,
            _ => near(&mut self.random, old.len()),
        };
        let salt: u8 = self.random.random();
        let data: Vec<u8> = (0..length).map(|n| (n / 3) as u8 ^ salt).collect();
        let spec = StoreSpec {
            file_length: file_length as u64,
            ..StoreSpec::at(position as u64)
        };
        let changed = if self.random.random_bool(0.5) {
            volume
                .store(fid, &spec, &[data.clone().into()], at(2))
                .unwrap()
        } else {
            let begun = volume.begin_store(fid, &spec, length as u64).unwrap();
            let mut store = begun.expect("the file is here");
            for chunk in data.chunks(self.random.random_range(1000..300_000)) {
                store.push(Bytes::copy_from_slice(chunk)).unwrap();
            }
            match store.commit(at(2)).unwrap() {
                StoreOutcome::Stored(changed) => changed,
                StoreOutcome::InObjects(_) => panic!("the file is here"),
            }
        };
        changed.wait().unwrap();
        let mut after = old;
        after.truncate(file_length);
        if after.len() < position + length {
            after.resize(position + length, 0);
        }
        after[position..position + length].copy_from_slice(&data);
        self.tree.insert(path, Some(after));
    }

    fn remove(&mut self, volume: &Volume) {
        let directory = self.random.random_bool(0.3);
        let Some(path) = self.pick(directory) else {
            return;
        };
        let Some((name, dir)) = path.split_last() else {
            return;
        };
        let dir = resolve(volume, dir);
        let result = if directory {
            volume.remove_dir(dir, name.as_bytes(), at(3))
        } else {
            volume.remove_file(dir, name.as_bytes(), at(3))
        };
        let below = self
            .tree
            .keys()
            .any(|other| other.len() > path.len() && other.starts_with(&path));
        match result {
            Ok(removed) => {
                removed.wait().unwrap();
                assert!(!below);
                self.tree.remove(&path);
            }
            Err(Error::NotEmpty) => assert!(below),
            Err(other) => panic!("{other}"),
        }
    }

    fn rename(&mut self, volume: &Volume) {
        let directory = self.random.random_bool(0.3);
        let Some(from) = self.pick(directory).filter(|path| !path.is_empty()) else {
            return;
        };
        let to = self.new_path();
        let (old, old_dir) = from.split_last().unwrap();
        let (new, new_dir) = to.split_last().unwrap();
        let (old_dir, new_dir) = (resolve(volume, old_dir), resolve(volume, new_dir));
        let result = volume.rename(old_dir, old.as_bytes(), new_dir, new.as_bytes(), at(4));
        match result {
            Ok(renamed) => {
                renamed.wait().unwrap();
                self.tree.remove(&to);
                let moved: Vec<_> = self
                    .tree
                    .keys()
                    .filter(|path| path.starts_with(&from))
                    .cloned()
                    .collect();
                for path in moved {
                    let content = self.tree.remove(&path).unwrap();
                    let mut new_path = to.clone();
                    new_path.extend_from_slice(&path[from.len()..]);
                    self.tree.insert(new_path, content);
                }
            }
            Err(
                Error::Loop
                | Error::Invalid(_)
                | Error::IsDirectory
                | Error::NotDirectory
                | Error::NotEmpty,
            ) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn snapshot(&mut self, volume: &Volume) {
        let id = self.random.random_range(20..24);
        let _ = self.world.clone_of(volume, id, VolumeKind::ReadOnly);
        self.clones.insert(id, self.tree.clone());
    }

    fn delete_clone(&mut self) {
        let Some(&id) = self.clones.keys().next() else {
            return;
        };
        self.world
            .partition
            .delete_volume(VolumeId(id))
            .unwrap()
            .wait()
            .unwrap();
        self.clones.remove(&id);
    }

    fn compare(&self) {
        let all = std::iter::once((VOLUME.0, &self.tree))
            .chain(self.clones.iter().map(|(id, tree)| (*id, tree)));
        for (id, expected) in all {
            let volume = self.world.partition.volume(VolumeId(id)).unwrap().unwrap();
            let mut tree = Tree::new();
            collect(&volume, volume.root(), &[], &mut tree);
            let place = format!("seed {} step {} volume {id}", self.seed, self.step);
            assert_eq!(
                tree.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{place}"
            );
            for (path, content) in &tree {
                assert!(content == &expected[path], "{place} {path:?}");
            }
        }
        self.world.check();
    }

    /// The power fails; every acknowledged change must be there.
    fn power_cut(self) -> Self {
        let disk = self.world.disk.power_cut(Some(self.seed + self.step));
        let partition = Partition::open(Arc::new(disk.clone()), options()).unwrap();
        Self {
            world: World { disk, partition },
            ..self
        }
    }
}

#[test]
fn random_operations_match_the_model() {
    let given = std::env::var("MODEL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let steps = std::env::var("MODEL_STEPS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400u64);
    let seeds = given.map_or_else(
        || vec![rand::random::<u64>() >> 32, 1, 2],
        |seed| vec![seed],
    );
    for seed in seeds {
        println!("MODEL_SEED={seed}");
        let mut run = Run {
            world: World::with_capacity(512 << 20),
            random: StdRng::seed_from_u64(seed),
            tree: Tree::new(),
            clones: BTreeMap::new(),
            seed,
            step: 0,
        };
        while run.step < steps {
            for _ in 0..40 {
                run.step();
            }
            run.compare();
            if run.random.random_bool(0.5) {
                run = run.power_cut();
                run.compare();
            }
        }
        for id in run.clones.clone().into_keys() {
            run.world
                .partition
                .delete_volume(VolumeId(id))
                .unwrap()
                .wait()
                .unwrap();
        }
        run.clones.clear();
        run.world.partition.reap_now().unwrap();
        run.compare();
        run.world.check_clean();
    }
}
