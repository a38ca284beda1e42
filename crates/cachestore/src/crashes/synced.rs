//! The machine crashed some time after a sync. The index on the disk ends at any record since its
//! last sync. The bytes are as they were, except in unsynced files of their own.

use super::*;
use crate::backing_store::SYNCS;

/// Kinds of steps, and the one that fetches what is missing.
const KINDS: u64 = 10;
const FILL: u64 = 7;

/// The simulated disk.
struct Disk<'a> {
    directory: &'a Path,
    world: World,
    /// How long the index is at least.
    log: u64,
    /// How long it was when it said that all was synced.
    said: u64,
    /// There is a file of its own, and it was not synced.
    lost: bool,
    /// Once everything was synced: what programs saw then and since.
    seen: Vec<Vec<u8>>,
}

impl Disk<'_> {
    fn log_length(&self) -> u64 {
        let log = std::fs::metadata(self.directory.join("index"));
        log.expect("a log").len()
    }

    fn own(&mut self) -> Option<PathBuf> {
        let number = self.world.take().number()?;
        Some(self.world.index.path(number)).filter(|path| path.exists())
    }

    fn step(&mut self, random: &mut Random, kind: u64) {
        let had_own = self.own().is_some();
        SYNCS.set((0, u64::MAX));
        let server = self.world.server.clone();
        let body = self.world.take();
        let shortens = match kind {
            0..4 => {
                let at = random.below(LENGTHS);
                let count = 1 + random.below(1_500);
                let bytes = random.bytes(count);
                body.write(at, &bytes, NOW).expect("writes");
                let end = at as usize + bytes.len();
                let model = &mut self.world.model;
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&bytes);
                false
            }
            4..6 => {
                let length = random.below(LENGTHS);
                body.set_length(length, NOW).expect("sets");
                self.world.model.resize(length as usize, 0);
                true
            }
            6 => {
                self.world.set_mode(random);
                false
            }
            FILL => {
                for (start, end) in body.gaps(0, LENGTHS * 2) {
                    let bytes = &server.bytes[start as usize..end as usize];
                    let pieces = [Bytes::copy_from_slice(bytes)];
                    let filled = body.fill(&server.status(), start..end, &pieces);
                    assert!(filled.expect("fills"));
                }
                false
            }
            8 => {
                if let Some(piece) = body.next_piece(STORE_BYTES) {
                    body.not_stored(&piece);
                }
                false
            }
            _ => {
                body.forget_clean();
                false
            }
        };
        let (syncs, _) = SYNCS.get();
        if shortens && syncs > 0 {
            self.log = self.log_length();
        }
        if self.own().is_some() && !had_own {
            self.lost = syncs < 2;
        }
        if !self.seen.is_empty() {
            self.seen.push(self.world.model.clone());
        }
    }

    /// With something that happens meanwhile, perhaps.
    fn sync(&mut self, random: &mut Random) {
        let Some((_, _, changes)) = self.world.take().unsynced().expect("a file") else {
            return;
        };
        let log = self.log_length();
        self.lost = false;
        match random.below(4) {
            0 => {}
            1 => self.step(random, FILL),
            _ => {
                let kind = random.below(KINDS);
                self.step(random, kind);
            }
        }
        self.log = self.log.max(log);
        self.world.take().synced(changes);
        if self.world.take().unsynced().expect("a file").is_none() {
            self.seen = vec![self.world.model.clone()];
            self.said = self.log_length();
        }
    }

    fn may_be(&self, at: usize, byte: u8) -> bool {
        let mut seen = self.seen.iter();
        seen.any(|model| model.get(at) == Some(&byte))
    }
}

#[test]
fn synced_bytes_are_there_after_a_crash() {
    let (mut kept, mut put_aside) = (0, 0);
    for seed in 0..500 {
        let mut random = Random(seed);
        let directory = tempfile::tempdir().expect("a directory");
        let length = 1 + random.below(LENGTHS);
        let server = Server {
            version: 3,
            bytes: random.bytes(length),
        };
        let mut disk = Disk {
            directory: directory.path(),
            world: World::open(directory.path(), server, BOOT),
            log: 0,
            said: 0,
            lost: false,
            seen: Vec::new(),
        };
        disk.log = disk.log_length();
        for _ in 0..3 {
            for _ in 0..=random.below(4) {
                let kind = random.below(KINDS);
                disk.step(&mut random, kind);
            }
            if random.below(2) == 0 {
                disk.sync(&mut random);
            }
        }
        let own = disk.own();
        // The present bytes stay.
        disk.world.body = None;
        if let Some(own) = own.filter(|own| disk.lost && own.exists()) {
            std::fs::write(own, b"").expect("lost");
        }
        let log = std::fs::OpenOptions::new()
            .write(true)
            .open(directory.path().join("index"));
        let (least, most) = (disk.log, disk.log_length());
        let end = match random.below(2) {
            0 => least.max(disk.said),
            _ => least + random.below(most - least + 1),
        };
        log.expect("a log").set_len(end).expect("cut");
        let what = format!("seed {seed}, the index cut at {end} of {least} to {most}");
        let server = disk.world.server.clone();
        let mut world = World::open(directory.path(), server, [2; 16]);
        if disk.seen.is_empty() {
            assert!(
                !world.take().is_changed() || world.take().unstored_bytes() == 0,
                "{what}"
            );
            continue;
        }
        let view = world.view();
        if let [about] = &aside(directory.path())[..] {
            put_aside += 1;
            let text = std::fs::read_to_string(about).expect("a text");
            let bytes = std::fs::read(about.with_extension("")).unwrap_or_default();
            let written = text
                .lines()
                .filter_map(|line| line.strip_prefix("written "));
            for line in written {
                let (start, end) = line.split_once(' ').expect("two numbers");
                let range = start.parse().expect("start")..end.parse().expect("end");
                for at in range {
                    let byte = bytes.get(at).copied().unwrap_or(0);
                    assert!(disk.may_be(at, byte), "{what}: byte {at} aside is {byte}");
                }
            }
        } else if world.take().is_changed() {
            kept += 1;
            for (at, byte) in view.iter().enumerate() {
                assert!(disk.may_be(at, *byte), "{what}: byte {at} is {byte}");
            }
        }
    }
    assert!(kept > 50 && put_aside > 50, "{kept}, {put_aside}");
}
