//! Tests of the crashes that a cache directory survives. The process is killed at every write, the
//! machine crashes and loses any part of the written bytes, or files are damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, FileType};

use crate::backing_store::WRITES_LEFT;
use crate::body::{Body, STORE_BYTES, Space};
use crate::cache_index::{Index, unstored_in};
use crate::index_entry::FileKey;
use crate::pack_slots::{SLOT, Slots};
use crate::recovery_notes::checksums;

mod recovery;
mod synced;

const NOW: AfsTime = AfsTime(7);
const BOOT: [u8; 16] = [1; 16];
/// Lengths are below this.
const LENGTHS: u64 = 6_000;

fn place(number: u32) -> FileKey {
    let fid = Fid {
        volume: VolumeId(5),
        vnode: VnodeId(2 * number),
        uniquifier: Uniquifier(9),
    };
    ("test.cell".into(), fid)
}

fn status(version: u64, length: usize) -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        length: length as u64,
        data_version: version,
        ..AfsFetchStatus::failed(AbortCode(0))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| 1 + self.below(255) as u8).collect()
    }
}

/// A file as its server has it.
#[derive(Clone, Debug)]
struct Server {
    version: u64,
    bytes: Vec<u8>,
}

impl Server {
    fn status(&self) -> AfsFetchStatus {
        status(self.version, self.bytes.len())
    }
}

/// A cache with one file, a server, and what programs must see.
struct World {
    index: Arc<Index>,
    space: Arc<Space>,
    body: Option<Body>,
    server: Server,
    model: Vec<u8>,
    before: Vec<u8>,
    /// The mode at the server, and what programs must see: before what was under way, and after.
    mode: u32,
    modes: [u32; 2],
    /// It is synced now and then.
    syncs: bool,
}

impl World {
    fn open(directory: &Path, server: Server, boot: [u8; 16]) -> Self {
        let space = Arc::<Space>::default();
        let index = Index::open(directory, boot, space.clone()).expect("opens");
        Self {
            index: Arc::new(index),
            space,
            body: None,
            model: server.bytes.clone(),
            before: server.bytes.clone(),
            server,
            mode: 0,
            modes: [0; 2],
            syncs: false,
        }
    }

    /// The file's body; what was left of it is recovered as `recovery.rs` of the client does.
    fn take(&mut self) -> &mut Body {
        if self.body.is_none() {
            let mut body = Body::on_disk(&self.index, place(1), self.space.clone());
            if let Some((start, end, cut)) = body.recovered().and_then(|left| left.in_doubt) {
                let has = self.server.bytes.get(start as usize..end as usize);
                if self.server.version == body.version() + 1
                    && start < end
                    && body.truncated_to() == cut
                    && end <= body.length()
                    && self.server.bytes.len() as u64 <= body.length()
                    && has == Some(&body.read(start, end).expect("reads")[..])
                {
                    body.confirm_stored_piece(self.server.version);
                }
            }
            body.apply_status(&self.server.status());
            self.body = Some(body);
        }
        self.body.as_mut().expect("just made")
    }

    fn killed() -> bool {
        WRITES_LEFT.get().1
    }

    fn step(&mut self, random: &mut Random) {
        self.before.clone_from(&self.model);
        self.modes[0] = self.modes[1];
        let server = self.server.clone();
        match random.below(14 + u64::from(self.syncs)) {
            0..4 => {
                let at = random.below(LENGTHS);
                let count = 1 + random.below(1_500);
                let bytes = random.bytes(count);
                self.take().write(at, &bytes, NOW).expect("writes");
                let end = at as usize + bytes.len();
                if self.model.len() < end {
                    self.model.resize(end, 0);
                }
                self.model[at as usize..end].copy_from_slice(&bytes);
            }
            4 => {
                let length = random.below(LENGTHS);
                self.take().set_length(length, NOW).expect("sets");
                self.model.resize(length as usize, 0);
            }
            5..7 => self.store(random),
            7 => {
                // A store that fails.
                let body = self.take();
                if let Some(piece) = body.next_piece(STORE_BYTES) {
                    body.not_stored(&piece);
                }
            }
            8 => {
                let body = self.take();
                for (start, end) in body.gaps(0, LENGTHS * 2) {
                    let bytes = &server.bytes[start as usize..end as usize];
                    let pieces = [Bytes::copy_from_slice(bytes)];
                    let filled = body.fill(&server.status(), start..end, &pieces);
                    assert!(filled.expect("fills"));
                }
            }
            9 => {
                // Another client stores.
                if self.take().is_changed() || Self::killed() {
                    return;
                }
                let length = random.below(LENGTHS);
                self.server = Server {
                    version: server.version + 1 + random.below(2),
                    bytes: random.bytes(length),
                };
                self.model.clone_from(&self.server.bytes);
                self.before.clone_from(&self.model);
                let status = self.server.status();
                self.take().apply_status(&status);
            }
            10 => self.take().forget_clean(),
            11..13 => {
                self.set_mode(random);
            }
            13 if self.syncs => {
                self.sync();
            }
            _ => {
                let body = self.take();
                if !body.is_changed() {
                    self.body = None;
                    let room = self.space.used.load(Ordering::Relaxed);
                    self.index.evict(room / 2 * random.below(3));
                }
            }
        }
    }

    fn set_mode(&mut self, random: &mut Random) {
        let mode = 1 + random.below(0o777) as u32;
        self.modes[1] = mode;
        let set = AfsStoreStatus {
            unix_mode: Some(mode),
            ..AfsStoreStatus::default()
        };
        self.take().set_attributes(&set, NOW);
    }

    fn store(&mut self, random: &mut Random) {
        loop {
            let Some(piece) = self.take().next_piece(STORE_BYTES) else {
                let set = self.take().unstored_attributes();
                if !Self::killed() {
                    self.mode = set.unix_mode.unwrap_or(self.mode);
                    self.take().attributes_stored(&set, None);
                }
                return;
            };
            let (start, end) = (piece.start as usize, piece.end as usize);
            let bytes = self.take().read(piece.start, piece.end).expect("reads");
            // A program that was killed before it could note the store has not sent it either.
            if Self::killed() {
                return;
            }
            let server = &mut self.server;
            server.bytes.truncate(piece.file_length as usize);
            if server.bytes.len() < end {
                server.bytes.resize(end, 0);
            }
            server.bytes[start..end].copy_from_slice(&bytes);
            server.version += 1;
            let status = server.status();
            if random.below(3) == 0 {
                // While it was under way.
                let at = random.below(LENGTHS);
                let new = random.bytes(100);
                self.before.clone_from(&self.model);
                self.take().write(at, &new, NOW).expect("writes");
                let last = at as usize + new.len();
                if self.model.len() < last {
                    self.model.resize(last, 0);
                }
                self.model[at as usize..last].copy_from_slice(&new);
            }
            if random.below(3) == 0 {
                self.set_mode(random);
                if !Self::killed() {
                    // It was answered: nothing but it may be seen from now on.
                    self.modes[0] = self.modes[1];
                }
            }
            let sums = checksums(piece.start, &bytes);
            let others = self.take().stored(&piece, &status, &sums);
            assert!(!others, "nobody else stored");
            // As the server applies them: with the bytes.
            self.mode = piece.set.unix_mode.unwrap_or(self.mode);
            let mut shown = self.server.status();
            shown.unix_mode = self.mode;
            self.take().attributes_stored(&piece.set, Some(&shown));
            if Self::killed() {
                return;
            }
        }
    }

    /// The mode that programs see.
    fn shown_mode(&mut self) -> u32 {
        let mode = self.mode;
        let status = AfsFetchStatus {
            unix_mode: mode,
            ..self.server.status()
        };
        self.take().with_local_changes(status).unix_mode
    }

    /// Answers whether there was anything to sync.
    fn sync(&mut self) -> bool {
        let body = self.take();
        let Some((_, _, changes)) = body.unsynced().expect("a file") else {
            return false;
        };
        body.synced(changes);
        assert!(body.unsynced().expect("a file").is_none());
        true
    }

    /// The contents that programs see, including the bytes that must be fetched.
    fn view(&mut self) -> Vec<u8> {
        let server = self.server.bytes.clone();
        let body = self.take();
        let mut view = body.read(0, body.length()).expect("reads");
        for (start, end) in body.gaps(0, body.length()) {
            let part = start as usize..end as usize;
            let theirs = server
                .get(part.clone())
                .expect("only what it has is missing");
            view[part].copy_from_slice(theirs);
        }
        view
    }

    /// Whether a byte at a place is the one before or after what was under way.
    fn may_be(&self, at: usize, byte: u8) -> bool {
        let is = |model: &[u8]| model.get(at).copied().unwrap_or(0) == byte;
        is(&self.before) || is(&self.model)
    }
}

fn aside(directory: &Path) -> Vec<PathBuf> {
    unstored_in(directory).expect("a cache").1
}

/// Runs steps until the process is killed after so many writes; `false`: it was not.
fn run(directory: &Path, seed: u64, steps: u32, kill_after: u64) -> (World, bool) {
    let mut random = Random(seed);
    let server = Server {
        version: 3,
        bytes: random.bytes(3_000),
    };
    let mut world = World::open(directory, server, BOOT);
    world.syncs = kill_after < u64::MAX;
    WRITES_LEFT.set((kill_after, false));
    let mut killed = false;
    for _ in 0..steps {
        world.step(&mut random);
        if World::killed() {
            killed = true;
            break;
        }
    }
    // Nothing that happens to it now comes to the disk.
    WRITES_LEFT.set((0, true));
    world.body = None;
    WRITES_LEFT.set((u64::MAX, false));
    (world, killed)
}

#[test]
fn killed_at_every_write_nothing_answered_is_lost() {
    let mut kills = 0;
    let mut put_aside = 0;
    for seed in 0..5 {
        for kill_after in 0.. {
            let directory = tempfile::tempdir().expect("a directory");
            let (old, killed) = run(directory.path(), seed, 30, kill_after);
            let mut world = World::open(directory.path(), old.server.clone(), BOOT);
            (world.model, world.before) = (old.model, old.before);
            (world.mode, world.modes) = (old.mode, old.modes);
            let view = world.view();
            let what = format!("seed {seed}, killed after {kill_after} writes");
            let kept = aside(directory.path());
            if let [about] = &kept[..] {
                // A store was under way, of a length, or of bytes that were written over meanwhile.
                put_aside += 1;
                assert_eq!(view, world.server.bytes, "{what}");
                let text = std::fs::read_to_string(about).expect("a text");
                // Of a length alone there are none.
                let bytes = std::fs::read(about.with_extension("")).unwrap_or_default();
                for line in text
                    .lines()
                    .filter_map(|line| line.strip_prefix("written "))
                {
                    let (start, end) = line.split_once(' ').expect("two numbers");
                    let range = start.parse().expect("start")..end.parse().expect("end");
                    for at in range {
                        let byte: u8 = bytes.get(at).copied().unwrap_or(0);
                        assert!(world.may_be(at, byte), "{what}: byte {at} aside");
                    }
                }
            } else {
                assert!(kept.is_empty(), "{what}");
                let mode = world.shown_mode();
                assert!(world.modes.contains(&mode), "{what}: mode {mode:o}");
                assert!(
                    [world.before.len(), world.model.len()].contains(&view.len()),
                    "{what}: length {}",
                    view.len()
                );
                for (at, byte) in view.iter().enumerate() {
                    assert!(world.may_be(at, *byte), "{what}: byte {at} is {byte}");
                }
            }
            // And it goes on.
            world.model.clone_from(&view);
            world.modes[1] = world.shown_mode();
            let mut random = Random(seed + 1_000);
            for _ in 0..10 {
                world.step(&mut random);
                let (view, model) = (world.view(), world.model.clone());
                assert!(view == model, "{what}, afterwards");
                assert_eq!(world.shown_mode(), world.modes[1], "{what}, afterwards");
            }
            if !killed {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 150, "{kills}");
    assert!(put_aside < kills / 4, "{put_aside} of {kills}");
}

#[test]
fn a_fetch_is_one_write_and_one_index_entry() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = Random(5).bytes(300_000);
    let server = Server {
        version: 3,
        bytes: bytes.clone(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    // As datagrams bring it; more pieces than one call of the kernel takes.
    let pieces: Vec<_> = bytes.chunks(100).map(Bytes::copy_from_slice).collect();
    let status = server.status();
    world.take();
    WRITES_LEFT.set((100, false));
    let filled = world.take().fill(&status, 0..bytes.len() as u64, &pieces);
    let (left, _) = WRITES_LEFT.get();
    WRITES_LEFT.set((u64::MAX, false));
    assert!(filled.expect("fills"));
    assert_eq!(100 - left, 2);
    assert_eq!(world.take().gaps(0, bytes.len() as u64), []);
    assert!(world.view() == bytes);
}

/// After a crash of the machine any part of what was not synced may be missing.
#[test]
fn a_crash_of_the_machine_serves_nothing_wrong() {
    let mut kept_bytes = 0;
    for seed in 0..100 {
        let directory = tempfile::tempdir().expect("a directory");
        let (old, _) = run(directory.path(), seed, 25, u64::MAX);
        let mut random = Random(seed + 77);
        let log = directory.path().join("index");
        if random.below(2) == 0 {
            let length = std::fs::metadata(&log).expect("a log").len();
            let file = std::fs::OpenOptions::new().write(true).open(&log);
            let cut = random.below(length + 1);
            file.expect("a log").set_len(cut).expect("cut");
        }
        for part in std::fs::read_dir(directory.path()).expect("parts") {
            let part = part.expect("a part").path();
            if !part.is_dir() || part.ends_with("aside") {
                continue;
            }
            for file in std::fs::read_dir(part).expect("files") {
                let path = file.expect("a file").path();
                let mut bytes = std::fs::read(&path).expect("a file");
                match random.below(4) {
                    0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                    1 if !bytes.is_empty() => {
                        let at = random.below(bytes.len() as u64) as usize;
                        let end = (at + 512).min(bytes.len());
                        bytes[at..end].fill(0);
                    }
                    2 => {
                        std::fs::remove_file(&path).expect("removed");
                        continue;
                    }
                    _ => {}
                }
                std::fs::write(&path, bytes).expect("written");
            }
        }
        let mut world = World::open(directory.path(), old.server, [2; 16]);
        let body = world.take();
        assert!(
            !body.is_changed(),
            "seed {seed}: what may be torn is not stored"
        );
        kept_bytes += body.length()
            - body
                .gaps(0, LENGTHS * 2)
                .iter()
                .map(|(s, e)| e - s)
                .sum::<u64>();
        assert!(world.view() == world.server.bytes, "seed {seed}");
    }
    assert!(kept_bytes > 5_000, "{kept_bytes}: nothing survives at all");
}

#[test]
fn synced_bytes_survive_a_crash_of_the_machine_and_others_are_put_aside() {
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    for (synced, boot) in [(true, [2; 16]), (false, BOOT), (false, [2; 16])] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut world = World::open(directory.path(), server.clone(), BOOT);
        world.take().set_writer(1_000);
        world.take().write(3, b"abc", NOW).expect("writes");
        if synced {
            world.sync();
        }
        let (unstored, _) = unstored_in(directory.path()).expect("a cache");
        assert_eq!((unstored[0].bytes, unstored[0].writer), (3, 1_000));
        drop(world);
        let mut world = World::open(directory.path(), server.clone(), boot);
        let left = world.index.dirty_files();
        assert_eq!(left, [place(1)]);
        let view = world.view();
        if synced || boot == BOOT {
            assert_eq!(view, b"012abc6789");
            assert!(world.take().is_changed());
            assert!(aside(directory.path()).is_empty());
        } else {
            assert_eq!(view, b"0123456789");
            let [about] = &aside(directory.path())[..] else {
                panic!("one is put aside");
            };
            let bytes = std::fs::read(about.with_extension("")).expect("bytes");
            assert_eq!(&bytes[3..6], b"abc");
        }
    }
}

#[test]
fn remains_of_a_killed_process_survive_a_crash_of_the_machine() {
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    world.take().write(3, b"abc", NOW).expect("writes");
    drop(world);
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    // No program has it open, and it could not be stored either.
    world.take().close();
    assert!(world.sync());
    drop(world);
    let mut world = World::open(directory.path(), server, [2; 16]);
    assert!(!world.sync(), "it is synced already");
    assert_eq!(world.view(), b"012abc6789");
    assert!(world.take().is_changed());
}
