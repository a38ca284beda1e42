//! The changes between two states of a volume are right, even if the volumes that saw these states
//! are gone.
//!
//! Random changes are made, with clones made, replaced and removed, with background removals at
//! random, and with restarts. Every state is recorded completely. Later, each state that is read is
//! compared with all earlier ones that the store still supports. These are brought up to date by
//! the changes that the store lists, and by a plain incremental dump, and compared byte for byte.
//! The seed is printed; `MODEL_SEED` repeats a run and `MODEL_STEPS` makes it longer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use cellar_volume::disk::SimDisk;
use cellar_volume::{
    Content, Durability, Error, Frozen, LayoutChange, Listed, Options, Partition, Since,
    SnapshotSpec, StateId, StoreSpec, Volume, VolumeKind,
};
use cellar_wire::ids::{AfsTime, Fid, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The contents of a volume: of each vnode its uniquifier, its whole record, and its bytes.
type Contents = BTreeMap<u32, (u32, String, Vec<u8>)>;

fn read(frozen: &Frozen, listed: &Listed, since: Option<u64>, body: &mut Vec<u8>) {
    let image = listed.whole();
    if image.layout.is_some() {
        // The image has everything that is in this store.
        assert!(matches!(
            frozen.body(listed, since),
            Err(Error::InObjects(_))
        ));
        body.clear();
        return;
    }
    let length = image.length;
    let mut parts = frozen.body(listed, since).unwrap();
    let kept = parts.kept_length().min(body.len() as u64);
    body.truncate(kept as usize);
    body.resize(length as usize, 0);
    let mut at = 0;
    while let Some(part) = parts.next(8192).unwrap() {
        assert!(part.at >= at, "parts go back");
        assert!(since.is_some() || part.at == at, "a gap");
        let range = part.at as usize..(part.at + part.length()) as usize;
        at = range.end as u64;
        match part.content {
            Content::Bytes(bytes) => body[range].copy_from_slice(&bytes),
            Content::Hole(_) => body[range].fill(0),
        }
    }
    assert!(since.is_some() || at == length);
}

fn all(mut vnodes: cellar_volume::Vnodes) -> Vec<Listed> {
    let mut list: Vec<Listed> = Vec::new();
    while let Some(listed) = vnodes.next().unwrap() {
        if let Some(last) = list.last() {
            let order = |listed: &Listed| (!listed.vnode.is_directory(), listed.vnode);
            assert!(order(last) < order(&listed), "not in a dump's order");
        }
        list.push(listed);
    }
    list
}

fn contents(frozen: &Frozen) -> Contents {
    let mut contents = Contents::new();
    for listed in all(frozen.vnodes(Since::Everything).unwrap()) {
        let mut body = Vec::new();
        read(frozen, &listed, None, &mut body);
        let image = format!("{:?}", listed.image.as_ref().unwrap());
        contents.insert(listed.vnode.0, (listed.uniquifier.0, image, body));
    }
    contents
}

/// `base`, with the changes since its epoch applied.
fn by_delta(frozen: &Frozen, base: &Contents, epoch: u64) -> Contents {
    let mut contents = base.clone();
    for vnode in frozen.removed(epoch).unwrap() {
        assert!(contents.remove(&vnode.0).is_some(), "{vnode} was not there");
    }
    for listed in all(frozen.vnodes(Since::Epoch(epoch)).unwrap()) {
        let image = format!("{:?}", listed.image.as_ref().unwrap());
        let mut body = match contents.remove(&listed.vnode.0) {
            Some((uniquifier, _, body)) if uniquifier == listed.uniquifier.0 => body,
            _ => Vec::new(),
        };
        read(frozen, &listed, Some(epoch), &mut body);
        contents.insert(listed.vnode.0, (listed.uniquifier.0, image, body));
    }
    contents
}

/// `base`, with a plain incremental dump from its date applied.
fn by_date(frozen: &Frozen, base: &Contents, date: AfsTime) -> Contents {
    let mut contents = Contents::new();
    for listed in all(frozen.vnodes(Since::Date(date)).unwrap()) {
        let known = base.get(&listed.vnode.0);
        let entry = match &listed.image {
            None => known.expect("unchanged and unknown").clone(),
            Some(image) => {
                let mut body = Vec::new();
                read(frozen, &listed, None, &mut body);
                (listed.uniquifier.0, format!("{image:?}"), body)
            }
        };
        assert_eq!(entry.0, listed.uniquifier.0);
        contents.insert(listed.vnode.0, entry);
    }
    contents
}

struct Run {
    world: World,
    random: StdRng,
    seed: u64,
    now: u32,
    /// Every state that had a name, with the date of its end.
    states: BTreeMap<u64, (StateId, AfsTime, Contents)>,
    /// Numbers of pairs of states: compared by deltas, and no longer supported.
    compared: (u32, u32),
}

impl Run {
    fn volume(&self) -> Arc<Volume> {
        self.world.volume()
    }

    fn at(&mut self) -> cellar_volume::Context {
        self.now += 1;
        at(self.now)
    }

    /// A random directory or file, found by a walk from the root.
    fn any(&mut self, directory: bool) -> Option<(Fid, Vec<u8>, Fid)> {
        let volume = self.volume();
        let mut dir = volume.root();
        for _ in 0..4 {
            let entries = volume.entries(dir).unwrap();
            let wanted: Vec<_> = entries
                .iter()
                .filter(|entry| entry.name != ".." && entry.name != ".")
                .collect();
            if wanted.is_empty() {
                return None;
            }
            let entry = wanted[self.random.random_range(0..wanted.len())];
            let fid = volume.lookup(dir, &entry.name).unwrap();
            if fid.vnode.is_directory() == directory && self.random.random_bool(0.7) {
                return Some((dir, entry.name.to_vec(), fid));
            }
            if fid.vnode.is_directory() {
                dir = fid;
            }
        }
        None
    }

    fn dir(&mut self) -> Fid {
        let found = self.any(true).map(|(_, _, fid)| fid);
        found.unwrap_or_else(|| self.volume().root())
    }

    fn change(&mut self) {
        let volume = self.volume();
        let now = self.at();
        let name = format!("n{}", self.random.random_range(0..200u32)).into_bytes();
        match self.random.random_range(0..100) {
            0..25 => {
                let dir = self.dir();
                let made = if self.random.random_bool(0.3) {
                    volume.make_dir(dir, &name, &new(), now)
                } else if self.random.random_bool(0.2) {
                    volume.symlink(dir, &name, b"somewhere", &new(), now)
                } else {
                    volume.create_file(dir, &name, &new(), now)
                };
                match made {
                    Ok(_) | Err(Error::Exists) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            25..65 => {
                let Some((_, _, fid)) = self.any(false) else {
                    return;
                };
                if volume.status(fid).unwrap().kind != cellar_volume::FileType::File {
                    return;
                }
                self.store(&volume, fid, now);
            }
            65..80 => {
                let Some((dir, name, fid)) = self.any(self.now.is_multiple_of(3)) else {
                    return;
                };
                let removed = if fid.vnode.is_directory() {
                    volume.remove_dir(dir, &name, now)
                } else {
                    volume.remove_file(dir, &name, now)
                };
                match removed {
                    Ok(_) | Err(Error::NotEmpty) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            80..90 => {
                let Some((dir, old, _)) = self.any(self.now.is_multiple_of(3)) else {
                    return;
                };
                let to = self.dir();
                let _ = volume.rename(dir, &old, to, &name, now);
            }
            _ => {
                let Some((_, _, fid)) = self.any(self.now.is_multiple_of(2)) else {
                    return;
                };
                let set = cellar_volume::SetStatus {
                    mode: Some(self.random.random_range(0..0o1000)),
                    ..Default::default()
                };
                // The mode of a link cannot be set.
                let _ = volume.set_status(fid, &set, now);
            }
        }
    }

    fn store(&mut self, volume: &Arc<Volume>, fid: Fid, now: cellar_volume::Context) {
        let status = volume.status(fid).unwrap();
        if self.random.random_bool(0.15) {
            let length = self.random.random_range(0..1 << 30);
            let change = LayoutChange::new(layout(u64::from(self.now)), length);
            let (before, expected) = (status.data_version, status.data_version + 1);
            let stale = volume.set_layout(fid, expected, &change, now);
            assert!(matches!(stale, Err(Error::Stale(_))));
            let set = volume.set_layout(fid, before, &change, now).unwrap();
            assert_eq!(set.outcome.data_version, expected);
            return;
        }
        // Most stores into a file in objects would be refused.
        let old = match volume.layout(fid).unwrap() {
            None => status.length as usize,
            Some(_) => 0,
        };
        let spread = [10, 5000, 70_000, 300_000][self.random.random_range(0..4)];
        let position = self.random.random_range(0..old + spread);
        let length = match self.random.random_range(0..8) {
            0 => 0,
            1..7 => self.random.random_range(0..9000),
            _ => self.random.random_range(0..200_000),
        };
        let mut spec = StoreSpec::at(position as u64);
        match self.random.random_range(0..4) {
            0 => spec.file_length = self.random.random_range(0..old as u64 + 1),
            1 if self.random.random_bool(0.3) => {
                spec = StoreSpec {
                    file_length: 0,
                    ..spec
                }
            }
            _ => {}
        }
        let salt: u8 = self.random.random();
        let data: Vec<u8> = (0..length).map(|n| (n / 3) as u8 ^ salt).collect();
        let is_away = volume.layout(fid).unwrap().is_some();
        let kept = status.length.min(spec.file_length);
        let replaces = kept == 0 || (spec.position == 0 && length as u64 >= kept);
        match volume.store(fid, &spec, &[data.into()], now) {
            Ok(_) => assert!(!is_away || replaces),
            Err(Error::InObjects(_)) => assert!(is_away && !replaces),
            Err(other) => panic!("{other}"),
        }
    }

    fn snapshot(&mut self) {
        let id = self.random.random_range(20..24);
        let spec = SnapshotSpec::new(
            VOLUME,
            VolumeId(id),
            format!("clone{id}"),
            VolumeKind::ReadOnly,
            AfsTime(self.now),
        );
        self.world
            .partition
            .snapshot(&spec)
            .unwrap()
            .wait()
            .unwrap();
    }

    fn clones(&self) -> Vec<Arc<Volume>> {
        let ids = 20..24;
        ids.filter_map(|id| self.world.partition.volume(VolumeId(id)).unwrap())
            .collect()
    }

    fn delete_clone(&mut self) {
        let clones = self.clones();
        if !clones.is_empty() {
            let id = clones[self.random.random_range(0..clones.len())].id();
            let deleted = self.world.partition.delete_volume(id).unwrap();
            deleted.wait().unwrap();
        }
    }

    /// Freezes the volume or a clone of it, makes more changes, and compares.
    fn compare(&mut self) {
        let mut volumes = self.clones();
        volumes.push(self.volume());
        let chosen = Arc::clone(&volumes[self.random.random_range(0..volumes.len())]);
        drop(volumes);
        let frozen = chosen.freeze().unwrap();
        let is_head = chosen.id() == VOLUME;
        drop(chosen);
        let state = frozen.state().unwrap();
        let ended = AfsTime(self.now);
        for _ in 0..self.random.random_range(0..60) {
            self.change();
        }
        if !is_head && self.random.random_bool(0.3) {
            self.delete_clone();
            self.world.partition.reap_now().unwrap();
        }
        let now = contents(&frozen);
        if let Some((known, _, before)) = self.states.get(&state.epoch) {
            assert_eq!(*known, state);
            assert!(*before == now, "seed {}: a state has changed", self.seed);
        }
        let place = |epoch: u64| format!("seed {}: from {epoch} to {state:?}", self.seed);
        for (epoch, (known, date, base)) in self.states.range(..state.epoch) {
            let Some(since) = frozen.since(known) else {
                self.compared.1 += 1;
                continue;
            };
            assert_eq!(since, Since::Epoch(*epoch));
            self.compared.0 += 1;
            same(&by_delta(&frozen, base, *epoch), &now, &place(*epoch));
            same(&by_date(&frozen, base, *date), &now, &place(*epoch));
        }
        if is_head {
            self.states.insert(state.epoch, (state, ended, now));
            if self.states.len() > 6 {
                let nth = self.random.random_range(0..6);
                let epoch = *self.states.keys().nth(nth).unwrap();
                self.states.remove(&epoch);
            }
        }
    }

    fn restart(&mut self) {
        let cut = self
            .world
            .disk
            .power_cut(Some(self.seed + u64::from(self.now)));
        let partition = Partition::open(Arc::new(cut.clone()), options()).unwrap();
        self.world = World {
            disk: cut,
            partition,
        };
        // Changes that were not waited for may be gone, with numbers and dates; no state with them
        // had been named.
    }

    fn step(&mut self) {
        for _ in 0..self.random.random_range(1..40) {
            self.change();
        }
        match self.random.random_range(0..10) {
            0..3 => self.snapshot(),
            3 => self.delete_clone(),
            4 => self.world.partition.reap_now().unwrap(),
            5 if self.random.random_bool(0.3) => self.restart(),
            _ => self.compare(),
        }
    }
}

fn same(found: &Contents, expected: &Contents, place: &str) {
    let keys = |contents: &Contents| contents.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(found), keys(expected), "{place}");
    for (vnode, (uniquifier, image, body)) in expected {
        let (known, was, bytes) = &found[vnode];
        assert_eq!((known, was), (uniquifier, image), "{place}");
        let differs = bytes.iter().zip(body).position(|(a, b)| a != b);
        assert!(
            bytes.len() == body.len() && differs.is_none(),
            "{place}: vnode {vnode} differs at {differs:?}, {} and {} bytes",
            bytes.len(),
            body.len()
        );
    }
}

#[test]
fn every_known_state_is_brought_up_to_date_by_what_changed() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let steps = number("MODEL_STEPS").unwrap_or(30);
    let seeds = match number("MODEL_SEED") {
        Some(seed) => vec![seed],
        None => vec![rand::random::<u64>() >> 32, 1, 2],
    };
    let alone = seeds.len() == 1;
    let mut compared = 0;
    for seed in seeds {
        println!("MODEL_SEED={seed}");
        let mut run = Run {
            world: World::with_capacity(512 << 20),
            random: StdRng::seed_from_u64(seed),
            seed,
            now: 1000,
            states: BTreeMap::new(),
            compared: (0, 0),
        };
        for _ in 0..steps {
            run.step();
        }
        println!("{:?} pairs compared and refused", run.compared);
        compared += run.compared.0;
        run.world.check();
        for clone in run.clones() {
            let deleted = run.world.partition.delete_volume(clone.id()).unwrap();
            deleted.wait().unwrap();
        }
        run.world.partition.reap_now().unwrap();
        run.world.check_clean();
    }
    assert!(alone || compared > 30, "{compared} pairs are too few");
}

fn fill(volume: &Arc<Volume>, files: usize) -> Vec<Fid> {
    let mut made = Vec::with_capacity(files);
    let mut dir = volume.root();
    for n in 0..files {
        if n.is_multiple_of(1000) {
            let name = format!("d{n}");
            let created = volume.make_dir(volume.root(), name.as_bytes(), &new(), at(1));
            dir = created.unwrap().outcome.status.fid;
        }
        let name = format!("f{n}");
        let created = volume.create_file(dir, name.as_bytes(), &new(), at(1));
        made.push(created.unwrap().outcome.status.fid);
    }
    made
}

fn overwrite(volume: &Volume, file: Fid, byte: u8) {
    let data = vec![byte; 20_000];
    let stored = volume.store(file, &StoreSpec::at(0), &[data.into()], at(2));
    stored.unwrap().wait().unwrap();
}

/// The offset from which the bytes of a vnode of that epoch are void, and the number of new bytes.
fn changes_of(frozen: &Frozen, listed: &Listed, epoch: u64) -> (u64, usize) {
    let mut body = frozen.body(listed, Some(epoch)).unwrap();
    let mut bytes = 0;
    while let Some(part) = body.next(1 << 20).unwrap() {
        if let Content::Bytes(part) = part.content {
            bytes += part.len();
        }
    }
    (body.kept_length(), bytes)
}

/// The changes of `frozen` since `state`, listed and read: numbers of vnodes, removals and bytes.
fn changes(frozen: &Frozen, state: &StateId) -> (usize, usize, usize) {
    let since = frozen.since(state).unwrap();
    let Since::Epoch(epoch) = since else {
        panic!("{since:?}");
    };
    let listed = all(frozen.vnodes(since).unwrap());
    let bytes = listed.iter();
    let bytes = bytes.map(|listed| changes_of(frozen, listed, epoch).1);
    let bytes = bytes.sum();
    (listed.len(), frozen.removed(epoch).unwrap().len(), bytes)
}

/// One small change of one file and one removal are listed. The number of table entries that this
/// reads does not depend on the size of the volume.
#[test]
fn telling_one_change_costs_the_same_in_a_large_volume() {
    let mut costs = Vec::new();
    for files in [500, 20_000] {
        let world = World::with_capacity(1 << 30);
        let volume = world.volume();
        let made = fill(&volume, files);
        let large = made[files / 2];
        let body = vec![7u8; 2 << 20];
        let stored = volume.store(large, &StoreSpec::at(0), &[body.into()], at(2));
        stored.unwrap().wait().unwrap();
        let state = volume.freeze().unwrap().state().unwrap();
        let patch = vec![8u8; 10 << 10];
        let stored = volume.store(large, &StoreSpec::at(1_000_000), &[patch.into()], at(3));
        stored.unwrap().wait().unwrap();
        let dir = volume.lookup(volume.root(), b"d0").unwrap();
        let _ = volume.remove_file(dir, b"f7", at(3)).unwrap();
        world.partition.reap_now().unwrap();
        world.partition.flush().unwrap();
        let before = world.partition.counters().reads;
        let frozen = volume.freeze().unwrap();
        let counted = changes(&frozen, &state);
        costs.push(world.partition.counters().reads - before);
        // The file, its directory's one page, and whole blocks around 10 KiB.
        assert_eq!(counted, (2, 1, 3 * 4096 + 2048), "{files} files");
        let again = frozen.state().unwrap();
        assert_eq!(changes(&volume.freeze().unwrap(), &again), (0, 0, 0));
    }
    println!("{costs:?} entries looked at");
    assert!(costs[1] <= costs[0] + 8 && costs[1] < 100, "{costs:?}");
}

/// Removals are recorded for receivers of an earlier state, but not forever.
#[test]
fn a_history_of_removals_is_bounded() {
    let world = World::with_capacity(1 << 30);
    let volume = world.volume();
    let mut states = Vec::new();
    for round in 0..12 {
        let dir = volume.make_dir(volume.root(), format!("d{round}").as_bytes(), &new(), at(1));
        let dir = dir.unwrap().outcome.status.fid;
        for n in 0..800 {
            let name = format!("f{n}");
            let _ = volume
                .create_file(dir, name.as_bytes(), &new(), at(1))
                .unwrap();
        }
        states.push(volume.freeze().unwrap().state().unwrap());
        for n in 0..800 {
            let _ = volume
                .remove_file(dir, format!("f{n}").as_bytes(), at(2))
                .unwrap();
        }
        world.partition.reap_now().unwrap();
    }
    let frozen = volume.freeze().unwrap();
    let known = states.iter().filter(|state| frozen.since(state).is_some());
    let known = known.count();
    assert!((2..=6).contains(&known), "{known} states of 12 are known");
    assert!(frozen.since(&states[0]).is_none());
    assert!(matches!(
        frozen.removed(states[0].epoch),
        Err(Error::Invalid(_))
    ));
    let last = states.last().unwrap();
    let (_, removed, _) = changes(&frozen, last);
    assert_eq!(removed, 800);
    // A list that was begun before the history was shortened does not end incomplete.
    assert_eq!(frozen.removed(last.epoch).unwrap().len(), 800);
    drop(frozen);
    world.partition.reap_now().unwrap();
    world.check_clean();
    let world = world.reopen();
    let frozen = world.volume().freeze().unwrap();
    assert_eq!(changes(&frozen, last).1, 800);
    assert!(frozen.since(&states[0]).is_none());
}

/// A frozen volume ends with the process; the next background removal removes the versions that
/// only it saw.
#[test]
fn a_crash_forgets_what_was_frozen() {
    let world = World::new();
    let volume = world.volume();
    let files = fill(&volume, 20);
    let write = |file: Fid, byte: u8| overwrite(&volume, file, byte);
    files.iter().for_each(|file| write(*file, 1));
    let frozen = volume.freeze().unwrap();
    let before = contents(&frozen);
    files.iter().for_each(|file| write(*file, 2));
    world.partition.reap_now().unwrap();
    same(&contents(&frozen), &before, "held");
    let report = world.partition.check().unwrap();
    assert!(report.unseen > 0, "nothing was held");
    let disk = world.disk.power_cut(Some(3));
    let partition = Partition::open(Arc::new(disk.clone()), options()).unwrap();
    let after = World { disk, partition };
    after.partition.reap_now().unwrap();
    after.check_clean();
    drop(frozen);
    world.partition.reap_now().unwrap();
    world.check_clean();
}

/// A background removal that runs before anything has changed leaves the job for later. Otherwise
/// the versions that are kept for the frozen volume would stay forever, and would be taken for the
/// present ones when it ends.
#[test]
fn versions_kept_for_a_frozen_volume_are_found_at_its_end() {
    let world = World::new();
    let volume = world.volume();
    let files = fill(&volume, 3);
    let dir = volume.lookup(volume.root(), b"d0").unwrap();
    let write = |file: Fid, byte: u8| overwrite(&volume, file, byte);
    files.iter().for_each(|file| write(*file, 1));
    let frozen = volume.freeze().unwrap();
    world.partition.reap_now().unwrap();
    let before = contents(&frozen);
    write(files[0], 2);
    write(files[1], 2);
    let _ = volume.remove_file(dir, b"f1", at(3)).unwrap();
    let _ = volume.remove_file(dir, b"f2", at(3)).unwrap();
    same(&contents(&frozen), &before, "held");
    drop(frozen);
    let _ = volume.remove_file(dir, b"f0", at(4)).unwrap();
    assert!(matches!(volume.status(files[0]), Err(Error::NoVnode(_))));
    world.partition.reap_now().unwrap();
    world.check_clean();
    let world = world.reopen();
    let volume = world.volume();
    for file in files {
        assert!(matches!(volume.status(file), Err(Error::NoVnode(_))));
    }
    world.check_clean();
}

/// Bytes that were cut off are gone, and a receiver that has them is told where to cut.
#[test]
fn bytes_that_were_cut_off_do_not_come_back() {
    let world = World::new();
    let volume = world.volume();
    let file = fill(&volume, 1)[0];
    let store = |position: u64, length: usize, file_length: u64| {
        let spec = StoreSpec {
            file_length,
            ..StoreSpec::at(position)
        };
        let data = vec![position as u8 | 1; length];
        let stored = volume.store(file, &spec, &[data.into()], at(2));
        stored.unwrap().wait().unwrap();
    };
    store(0, 1_000_000, u64::MAX >> 1);
    let first = volume.freeze().unwrap();
    let (state, base) = (first.state().unwrap(), contents(&first));
    drop(first);
    store(0, 0, 100_001);
    store(900_000, 10, u64::MAX >> 1);
    let second = volume.freeze().unwrap();
    let listed = second.vnode(file.vnode).unwrap().unwrap();
    let (kept, bytes) = changes_of(&second, &listed, state.epoch);
    assert_eq!(kept, 100_001);
    // The block at the cut, and the one that was written.
    assert!(bytes <= 2 * 4096, "{bytes}");
    let now = contents(&second);
    same(
        &by_delta(&second, &base, state.epoch),
        &now,
        "cut and extended",
    );
    let (next, base) = (second.state().unwrap(), now);
    store(500_000, 0, 0);
    store(700_000, 0, u64::MAX >> 1);
    let third = volume.freeze().unwrap();
    let listed = third.vnode(file.vnode).unwrap().unwrap();
    assert_eq!(changes_of(&third, &listed, next.epoch), (0, 0));
    same(
        &by_delta(&third, &base, next.epoch),
        &contents(&third),
        "a hole",
    );
}

/// The name of a state that was given out never names another state, however little of the newest
/// data is on the disk.
#[test]
fn a_named_state_survives_a_power_cut_in_the_relaxed_mode() {
    let relaxed = Options {
        durability: Durability::Relaxed(Duration::from_secs(3600)),
        ..options()
    };
    let disk = SimDisk::new(64 << 20);
    let partition = Partition::open(Arc::new(disk.clone()), relaxed.clone()).unwrap();
    create_volume(&partition);
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    fill(&volume, 30);
    let frozen = volume.freeze().unwrap();
    let (state, before) = (frozen.state().unwrap(), contents(&frozen));
    let more = volume.make_dir(volume.root(), b"more", &new(), at(5));
    let _ = more.unwrap();
    let cut = disk.power_cut(None);
    let after = Partition::open(Arc::new(cut), relaxed).unwrap();
    let again = after.volume(VOLUME).unwrap().unwrap().freeze().unwrap();
    assert_eq!(again.since(&state), Some(Since::Epoch(state.epoch)));
    same(
        &by_delta(&again, &before, state.epoch),
        &contents(&again),
        "after the cut",
    );
    // On a partition that accepts no writes, the contents can be read, but they have no name.
    partition.close().unwrap();
    let last = volume.freeze().unwrap();
    assert!(last.state().is_none());
    assert_eq!(contents(&last).len(), before.len() + 1);
}
