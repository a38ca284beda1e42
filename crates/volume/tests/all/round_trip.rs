//! One volume is frozen and restored into another: once completely, then only the changes, as
//! releases and moves between Cellar's servers do.

use crate::common::restoring;

use std::sync::Arc;

use crate::common::{World, at, new};
use bytes::Bytes;
use cellar_volume::{
    Content, Error, Frozen, Listed, Partition, Restore, RestoreMode, RestoredInfo, Since,
    StoreSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VolumeId};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use restoring::*;

const SITE: VolumeId = VolumeId(90);

/// Sends a vnode completely, or its changes after an epoch. Returns the bytes of its parts.
fn send(frozen: &Frozen, listed: &Listed, since: Option<u64>, restore: &mut Restore) -> usize {
    let image = listed.whole();
    let since = since.filter(|&epoch| !listed.is_new_since(epoch));
    let mut body = frozen.body(listed, since).unwrap();
    let kept = body.kept_length().min(image.length);
    if since.is_some() && kept > 0 {
        restore.patch(&image).unwrap();
    } else {
        restore.put(&image).unwrap();
    }
    let (mut position, mut bytes) = (0, 0);
    while let Some(part) = body.next(50_000).unwrap() {
        pass(restore, position, part.at, kept);
        position = part.at + part.length();
        match part.content {
            Content::Bytes(sent) => {
                bytes += sent.len();
                restore.push(sent).unwrap();
            }
            Content::Hole(length) => restore.zeros(length).unwrap(),
        }
    }
    pass(restore, position, image.length, kept);
    bytes
}

/// Between parts the old bytes stay as far as they are kept.
fn pass(restore: &mut Restore, from: u64, to: u64, kept: u64) {
    let stays = kept.min(to).saturating_sub(from);
    if stays > 0 {
        restore.skip(stays).unwrap();
    }
    let rest = to - from - stays;
    if rest > 0 {
        restore.zeros(rest).unwrap();
    }
}

/// Updates a site to the contents of a volume. Returns whether it was a delta, and the bytes of
/// bodies sent.
fn release(source: &Arc<Volume>, partition: &Partition, site: VolumeId) -> (bool, usize) {
    let frozen = source.freeze().unwrap();
    let target = partition.volume(site).unwrap().unwrap();
    let base = target.received().unwrap();
    let known = base.and_then(|base| Some((base, frozen.since(&base)?)));
    let (mode, since) = match known {
        Some((base, since)) => (RestoreMode::Delta { base }, since),
        None => (RestoreMode::Incremental, Since::Everything),
    };
    let mut restore = loop {
        match partition.begin_restore(site, mode) {
            Ok(restore) => break restore,
            Err(Error::Busy(_)) => partition.reap_now().unwrap(),
            Err(other) => panic!("{other}"),
        }
    };
    let epoch = match since {
        Since::Epoch(epoch) => Some(epoch),
        _ => None,
    };
    let mut bytes = 0;
    let mut vnodes = frozen.vnodes(since).unwrap();
    while let Some(listed) = vnodes.next().unwrap() {
        bytes += send(&frozen, &listed, epoch, &mut restore);
    }
    if let Some(epoch) = epoch {
        for vnode in frozen.removed(epoch).unwrap() {
            match restore.remove(vnode) {
                // It was made and removed since.
                Ok(()) | Err(Error::WrongBase(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    let mut info = target.info();
    info.updated = frozen.info().updated;
    let restored = RestoredInfo {
        info,
        next_uniquifier: frozen.next_uniquifier().0,
        received: frozen.state(),
    };
    restore.commit(restored).unwrap().wait().unwrap();
    (epoch.is_some(), bytes)
}

struct Source {
    volume: Arc<Volume>,
    random: StdRng,
    clock: u32,
}

impl Source {
    /// Changes a random name.
    fn change(&mut self) {
        let root = self.volume.root();
        let name = format!("n{}", self.random.random_range(0..20));
        self.clock += 1;
        match self.volume.lookup(root, name.as_bytes()) {
            Err(_) if self.random.random_bool(0.2) => {
                let made = self
                    .volume
                    .make_dir(root, name.as_bytes(), &new(), at(self.clock));
                let dir = made.unwrap().outcome.status.fid;
                for n in 0..self.random.random_range(0..90) {
                    let name = format!("with-a-longer-name-{n}");
                    self.make(dir, &name);
                }
            }
            Err(_) => self.make(root, &name),
            Ok(fid) if fid.vnode.is_directory() => {
                let entries = self.volume.entries(fid).unwrap();
                let entry = entries.choose(&mut self.random).unwrap().name.clone();
                if entry.starts_with(b"with") {
                    let gone = self.volume.remove_file(fid, &entry, at(self.clock));
                    let _ = gone.unwrap();
                }
            }
            Ok(_) if self.random.random_bool(0.3) => {
                let gone = self
                    .volume
                    .remove_file(root, name.as_bytes(), at(self.clock));
                let _ = gone.unwrap();
            }
            Ok(fid) => self.store(fid),
        }
    }

    fn make(&mut self, dir: Fid, name: &str) {
        let made = self
            .volume
            .create_file(dir, name.as_bytes(), &new(), at(self.clock));
        let fid = made.unwrap().outcome.status.fid;
        if self.random.random_bool(0.6) {
            self.store(fid);
        }
    }

    fn store(&mut self, fid: Fid) {
        let sizes = [0, 1, 100, 4096, 9000, 300_000];
        let size = *sizes.choose(&mut self.random).unwrap();
        let bytes = Bytes::from(vec![self.random.random_range(0..=255); size]);
        let mut spec = StoreSpec::at(self.random.random_range(0..600_000));
        if self.random.random_bool(0.3) {
            spec.position = 0;
        }
        if self.random.random_bool(0.3) {
            spec.file_length = self.random.random_range(0..500_000);
        }
        let stored = self.volume.store(fid, &spec, &[bytes], at(self.clock));
        let _ = stored.unwrap();
    }
}

#[test]
fn a_site_follows_a_volume_by_what_changed_also_after_a_move() {
    for seed in 0..6 {
        // Two servers.
        let here = World::with_capacity(512 << 20);
        let there = World::with_capacity(512 << 20);
        let mut source = Source {
            volume: here.volume(),
            random: StdRng::seed_from_u64(seed),
            clock: 100,
        };
        empty_volume(&there.partition, SITE, VolumeKind::ReadOnly);
        for _ in 0..30 {
            source.change();
        }
        assert!(!release(&source.volume, &there.partition, SITE).0);
        for round in 0..12 {
            for _ in 0..source.random.random_range(0..6) {
                source.change();
            }
            if round == 6 {
                // To a third volume, and onwards from there.
                let moved = VolumeId(500);
                let spec = VolumeSpec {
                    root: false,
                    ..VolumeSpec::new(moved, "moved", ViceId(1), AfsTime(5))
                };
                there
                    .partition
                    .create_volume(&spec)
                    .unwrap()
                    .wait()
                    .unwrap();
                assert!(!release(&source.volume, &there.partition, moved).0);
                // The site is brought to exactly the state that was moved.
                assert!(release(&source.volume, &there.partition, SITE).0);
                source.volume = there.partition.volume(moved).unwrap().unwrap();
                continue;
            }
            let (delta, _) = release(&source.volume, &there.partition, SITE);
            assert!(delta, "seed {seed}, round {round}");
            let site = there.partition.volume(SITE).unwrap().unwrap();
            assert!(
                contents(&site) == contents(&source.volume),
                "seed {seed}, round {round}"
            );
            let (is, was) = (site.info(), source.volume.info());
            assert_eq!((is.files, is.blocks_used), (was.files, was.blocks_used));
            if source.random.random_bool(0.4) {
                drop(site);
                there.partition.reap_now().unwrap();
                here.partition.reap_now().unwrap();
                there.check();
            }
        }
        // Nothing changed: nothing is sent.
        assert_eq!(release(&source.volume, &there.partition, SITE), (true, 0));
        drop(source);
        for world in [here, there] {
            world.partition.reap_now().unwrap();
            world.check_clean();
        }
    }
}
