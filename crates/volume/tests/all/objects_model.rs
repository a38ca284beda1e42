//! Random operations on objects compared with a model in memory, with reopenings and power cuts.
//!
//! The model has the bytes of every version. Every few operations all versions are compared byte
//! for byte and everything is checked. The seeds are fixed; `MODEL_SEED` runs another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::options;
use bytes::Bytes;
use cellar_volume::disk::SimDisk;
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Error, Ticket};
use cellar_wire::List;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::Needed;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const OBJECTS: u32 = 6;
const LENGTH_MAX: usize = 1_500_000;

fn id(serial: u32) -> ObjectId {
    ObjectId {
        volume: VolumeId(7 + serial % 2),
        vnode: VnodeId(4),
        uniquifier: Uniquifier(1),
        serial,
    }
}

#[derive(Default)]
struct Object {
    removed: bool,
    versions: BTreeMap<u64, Vec<u8>>,
}

struct Run {
    disk: SimDisk,
    store: ObjectStore,
    random: StdRng,
    objects: BTreeMap<u32, Object>,
    /// Serial numbers and versions are not used twice.
    serial: u32,
    version: u64,
    what: String,
}

impl Run {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(256 << 20);
        Self {
            store: ObjectStore::open(Arc::new(disk.clone()), options()).unwrap(),
            disk,
            random: StdRng::seed_from_u64(seed),
            objects: BTreeMap::new(),
            serial: 0,
            version: 0,
            what: format!("seed {seed}"),
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let seed: u8 = self.random.random();
        (0..length)
            .map(|n| (n / 5) as u8 ^ (n >> 9) as u8 ^ seed)
            .collect()
    }

    /// A position and a length; small ones are as likely as large ones.
    fn range(&mut self) -> (usize, usize) {
        let mut any = |max: usize| {
            let bits = self.random.random_range(1..=max.ilog2());
            self.random.random_range(0..1_usize << bits)
        };
        (any(LENGTH_MAX / 2), any(LENGTH_MAX / 2))
    }

    /// An existing object, or a new one.
    fn pick(&mut self) -> u32 {
        let present = self.objects.iter().filter(|(_, object)| !object.removed);
        let present: Vec<u32> = present.map(|(serial, _)| *serial).collect();
        if self.objects.len() < OBJECTS as usize && self.random.random_bool(0.3)
            || present.is_empty()
        {
            self.serial += 1;
            self.objects.insert(self.serial, Object::default());
            return self.serial;
        }
        present[self.random.random_range(0..present.len())]
    }

    /// Makes a version from any of the existing ones, or from none.
    fn store(&mut self) {
        let serial = self.pick();
        let object = &self.objects[&serial];
        let bases: Vec<u64> = object.versions.keys().copied().collect();
        // Mostly the newest: an older base removes the versions between the two.
        let base = match self.random.random_range(0..10) {
            _ if bases.is_empty() => 0,
            0 => bases[self.random.random_range(0..bases.len())],
            1 => 0,
            _ => *bases.last().unwrap(),
        };
        self.version += self.random.random_range(1..5);
        let version = self.version;
        let mut whole = self.objects[&serial]
            .versions
            .get(&base)
            .cloned()
            .unwrap_or_default();
        for _ in 0..self.random.random_range(1..4) {
            if self.random.random_bool(0.25) {
                let (length, _) = self.range();
                let length = length.min(whole.len() + 300_000);
                let cut = self
                    .store
                    .truncate(id(serial), base, version, length as u64);
                cut.unwrap().wait().unwrap();
                whole.resize(length, 0);
                continue;
            }
            let (position, length) = self.range();
            let bytes = self.bytes(length);
            self.write(serial, base, version, position, &bytes);
            if length > 0 {
                whole.resize(whole.len().max(position + length), 0);
                whole[position..position + length].copy_from_slice(&bytes);
            }
        }
        let object = self.objects.get_mut(&serial).unwrap();
        object.versions.retain(|known, _| *known <= base);
        object.versions.insert(version, whole);
        let late = self.store.write(id(serial), 0, version - 1, 0, &[]);
        let expected = matches!(late, Err(Error::Superseded(_) | Error::Invalid(_)));
        assert!(expected, "{}: {late:?}", self.what);
    }

    fn write(&mut self, serial: u32, base: u64, version: u64, position: usize, bytes: &[u8]) {
        let mut writer = self
            .store
            .writer(
                id(serial),
                base,
                version,
                position as u64,
                bytes.len() as u64,
            )
            .unwrap();
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = self.random.random_range(1..=rest.len());
            writer.push(Bytes::copy_from_slice(&rest[..count])).unwrap();
            rest = &rest[count..];
        }
        writer.finish().unwrap().wait().unwrap();
    }

    fn prune(&mut self) {
        let serial = self.pick();
        let object = self.objects.get_mut(&serial).unwrap();
        let random = &mut self.random;
        let keep = object
            .versions
            .keys()
            .copied()
            .filter(|_| random.random_bool(0.6));
        let keep: Vec<u64> = keep.collect();
        let below = random.random_range(0..=self.version + 1);
        object
            .versions
            .retain(|version, _| *version >= below || keep.contains(version));
        let needed = Needed {
            object: id(serial),
            keep: List::from_iter_cut(keep),
            below,
        };
        let before = self.allocated(serial);
        let (freed, ticket) = self.store.prune(&[needed]).unwrap();
        ticket.wait().unwrap();
        assert_eq!(self.allocated(serial), before - freed, "{}", self.what);
        let is_there = self.store.examine(id(serial)).is_ok();
        let has_versions = !self.objects[&serial].versions.is_empty();
        assert_eq!(is_there, has_versions, "{}", self.what);
    }

    fn allocated(&self, serial: u32) -> u64 {
        let info = self.store.examine(id(serial));
        info.map_or(0, |info| info.allocated)
    }

    fn remove(&mut self) {
        let serial = self.pick();
        if self.objects[&serial].versions.is_empty() {
            // Never written, or removed with its last version.
            self.objects.remove(&serial);
            let (_, ticket) = self.store.remove(&[id(serial)], false).unwrap();
            return ticket.wait().unwrap();
        }
        let soft = self.random.random();
        let done = |(count, ticket): (u32, Ticket)| {
            ticket.wait().unwrap();
            count
        };
        assert_eq!(done(self.store.remove(&[id(serial)], soft).unwrap()), 1);
        if soft {
            self.objects.get_mut(&serial).unwrap().removed = true;
        } else {
            self.objects.remove(&serial);
        }
        let removed: Vec<u32> = {
            let removed = self.objects.iter().filter(|(_, object)| object.removed);
            removed.map(|(serial, _)| *serial).collect()
        };
        if removed.len() < 2 {
            return;
        }
        if self.random.random() {
            let ids: Vec<_> = removed.iter().map(|serial| id(*serial)).collect();
            assert_eq!(done(self.store.undelete(&ids).unwrap()), ids.len() as u32);
            self.objects
                .values_mut()
                .for_each(|object| object.removed = false);
        } else {
            assert_eq!(
                done(self.store.purge(u64::MAX).unwrap()),
                removed.len() as u32
            );
            self.objects.retain(|_, object| !object.removed);
        }
    }

    /// Opens the store again, after a clean end or a power cut.
    fn reopen(&mut self) {
        let disk = match self.random.random_range(0..3) {
            0 => {
                self.store.close().unwrap();
                self.disk.clone()
            }
            1 => self.disk.power_cut(None),
            _ => self.disk.power_cut(Some(self.random.random())),
        };
        let store = ObjectStore::open(Arc::new(disk.clone()), options()).unwrap();
        // The old store must not write to a disk that the new one uses.
        let before = std::mem::replace(&mut self.store, store);
        drop(before);
        self.disk = disk;
    }

    fn compare(&self) {
        let what = &self.what;
        for (serial, object) in &self.objects {
            let info = match self.store.examine(id(*serial)) {
                Ok(info) => info,
                Err(error) => {
                    assert!(object.versions.is_empty(), "{what}: {serial}: {error}");
                    continue;
                }
            };
            assert_eq!(info.removed != 0, object.removed, "{what}");
            let known = info
                .versions
                .iter()
                .map(|known| (known.version, known.length as usize));
            let wanted = object
                .versions
                .iter()
                .map(|(version, bytes)| (*version, bytes.len()));
            let (known, wanted): (Vec<_>, Vec<_>) = (known.collect(), wanted.collect());
            assert_eq!(known, wanted, "{what}: object {serial}");
            for (version, bytes) in &object.versions {
                let read = self.store.read(id(*serial), *version, 0, LENGTH_MAX * 2);
                if object.removed {
                    assert!(matches!(read, Err(Error::NoObject(_))), "{what}");
                } else {
                    assert!(
                        read.unwrap() == bytes,
                        "{what}: object {serial} version {version}"
                    );
                }
            }
        }
        let listed: Vec<_> = [7, 8]
            .into_iter()
            .flat_map(|volume| self.store.list(volume, id(0), 100, false).unwrap().0)
            .map(|info| info.object.serial)
            .collect();
        let present = self.objects.iter();
        let present = present.filter(|(_, object)| !object.removed && !object.versions.is_empty());
        for (serial, _) in present {
            assert!(listed.contains(serial), "{what}: {serial} in {listed:?}");
        }
        let report = self.store.check().unwrap();
        assert!(report.faults.is_empty(), "{what}: {:#?}", report.faults);
        let scrubbed = self
            .store
            .scrub(0, &mut |_| std::ops::ControlFlow::Continue(()));
        assert!(scrubbed.unwrap().damaged.is_empty(), "{what}");
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for step in 0..60 {
        run.what = format!("seed {seed} step {step}");
        match run.random.random_range(0..100) {
            0..60 => run.store(),
            60..80 => run.prune(),
            80..92 => run.remove(),
            _ => run.reopen(),
        }
        if step % 5 == 4 {
            run.compare();
        }
    }
    // At the end nothing is left of the removed objects.
    let all: Vec<_> = run.objects.keys().map(|serial| id(*serial)).collect();
    run.store.remove(&all, false).unwrap().1.wait().unwrap();
    run.store.reap_now().unwrap();
    let report = run.store.check().unwrap();
    assert!(
        report.faults.is_empty(),
        "seed {seed}: {:#?}",
        report.faults
    );
    assert_eq!((report.volumes, report.blocks, report.unseen), (0, 0, 0));
}

#[test]
fn objects_are_what_the_model_says() {
    if let Ok(seed) = std::env::var("MODEL_SEED") {
        return run(seed.parse().unwrap());
    }
    for seed in 1..=8 {
        run(seed);
    }
}

#[test]
fn writers_of_one_version_keep_out_of_each_others_way() {
    let disk = SimDisk::new(256 << 20);
    let store = ObjectStore::open(Arc::new(disk.clone()), options()).unwrap();
    let old: Vec<u8> = (0..2_000_000).map(|n| (n / 3) as u8).collect();
    let written = store.write(id(1), 0, 5, 0, &[Bytes::from(old.clone())]);
    written.unwrap().wait().unwrap();
    // Ranges that end within blocks, which two writers share.
    const RANGE: usize = 100_003;
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let store = store.clone();
            scope.spawn(move || {
                for n in (lane..16).step_by(4) {
                    let bytes = Bytes::from(vec![n as u8 + 1; RANGE]);
                    let written = store.write(id(1), 5, 9, (n * RANGE) as u64, &[bytes]);
                    written.unwrap().wait().unwrap();
                }
            });
        }
    });
    let mut new = old.clone();
    for (n, range) in new[..16 * RANGE].chunks_mut(RANGE).enumerate() {
        range.fill(n as u8 + 1);
    }
    let store = {
        store.close().unwrap();
        drop(store);
        ObjectStore::open(Arc::new(disk), options()).unwrap()
    };
    assert!(store.read(id(1), 5, 0, 3_000_000).unwrap() == old);
    assert!(store.read(id(1), 9, 0, 3_000_000).unwrap() == new);
    let report = store.check().unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
}

#[test]
fn volumes_and_objects_are_not_taken_for_each_other() {
    let disk = SimDisk::new(64 << 20);
    let store = ObjectStore::open(Arc::new(disk.clone()), options()).unwrap();
    store.close().unwrap();
    drop(store);
    let opened = cellar_volume::Partition::open(Arc::new(disk), options());
    assert!(matches!(opened, Err(Error::Format(_))), "{opened:?}");
    let disk = SimDisk::new(64 << 20);
    cellar_volume::Partition::open(Arc::new(disk.clone()), options())
        .unwrap()
        .close()
        .unwrap();
    let opened = ObjectStore::open(Arc::new(disk), options());
    assert!(matches!(opened, Err(Error::Format(_))), "{opened:?}");
}
