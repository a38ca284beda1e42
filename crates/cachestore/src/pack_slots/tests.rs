//! Small files in slots of packs: their use, growth and removal, and a full disk.

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::rxafs::{AfsFetchStatus, FileType};

use cellar_wire::rxafs::AfsStoreStatus;

use super::*;
use crate::backing_store::{ROOM, SYNCS};
use crate::body::{Body, STORE_BYTES, Space};
use crate::cache_index::{Index, unstored_in};

const BOOT: [u8; 16] = [1; 16];

fn packs(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory.join(PACKS)).expect("packs");
    let name = |file: io::Result<std::fs::DirEntry>| file.expect("a file").file_name();
    let mut names: Vec<_> = files
        .map(|file| name(file).into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn own_files(directory: &Path) -> usize {
    let parts = (0..4).map(|part| directory.join(format!("{part:02x}")));
    parts
        .map(|part| std::fs::read_dir(part).expect("a part").count())
        .sum()
}

fn index(directory: &Path) -> (Arc<Index>, Arc<Space>) {
    let space = Arc::<Space>::default();
    let index = Index::open(directory, BOOT, space.clone()).expect("opens");
    (Arc::new(index), space)
}

fn body(cache: &(Arc<Index>, Arc<Space>), number: u32, length: u64) -> Body {
    let mut body = unasked(cache, number);
    body.apply_status(&status(length));
    body
}

/// Before the server was asked about it.
fn unasked((index, space): &(Arc<Index>, Arc<Space>), number: u32) -> Body {
    let fid = Fid {
        volume: VolumeId(5),
        vnode: VnodeId(2 * number),
        uniquifier: Uniquifier(9),
    };
    Body::on_disk(index, ("test.cell".into(), fid), space.clone())
}

fn status(length: u64) -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        length,
        data_version: 4,
        ..AfsFetchStatus::failed(AbortCode(0))
    }
}

fn fill(body: &mut Body, bytes: &[u8]) {
    let length = bytes.len() as u64;
    let pieces = [Bytes::copy_from_slice(bytes)];
    let filled = body.fill(&status(length), 0..length, &pieces);
    assert!(filled.expect("fills"));
}

/// A file that is at rest in its slot; answers its number.
fn one_left(cache: &(Arc<Index>, Arc<Space>)) -> u64 {
    let mut small = body(cache, 0, 100);
    fill(&mut small, &[3; 100]);
    small.number().expect("a number")
}

#[test]
fn a_pack_goes_with_the_last_of_its_slots() {
    let directory = tempfile::tempdir().expect("a directory");
    let slots = Slots::open(directory.path()).expect("opens");
    assert!(slots.work(), "tests need a file system that makes holes");
    let put = |number: u64| {
        let (file, base) = slots.hold(number).expect("a pack");
        file.write_all_at(&[number as u8 + 1; 100], base)
            .expect("written");
    };
    let get = |slots: &Slots, number: u64| {
        let (file, base) = slots.hold(number).expect("a pack");
        let mut byte = [0];
        file.read_exact_at(&mut byte, base + 99).expect("read");
        byte[0]
    };
    [0, 2, 3, 5].into_iter().for_each(put);
    assert_eq!(packs(directory.path()), ["0", "1"]);
    slots.free(3);
    assert!(!slots.has(3) && slots.has(2));
    slots.free(5);
    assert_eq!(packs(directory.path()), ["0"]);
    drop(slots);
    std::fs::write(directory.path().join("small/x"), b"nothing of ours").expect("written");
    let slots = Slots::open(directory.path()).expect("opens");
    let mut numbers = slots.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 2]);
    assert_eq!((get(&slots, 0), get(&slots, 2)), (1, 3));
    assert_eq!(slots.are_written(2, 0, 100).ok(), Some(true));
    slots.clear(2, 50, SLOT).expect("a hole");
    assert_eq!((get(&slots, 2), slots.has(2)), (0, true));
    assert_eq!(slots.are_written(3, 0, 1).ok(), Some(false));
    [0, 2].into_iter().for_each(|number| slots.free(number));
    assert!(packs(directory.path()).is_empty());
}

#[test]
fn small_files_share_one_and_who_grows_leaves_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let mut bodies: Vec<_> = (0..3)
        .map(|number| body(&cache, number, 1_000 + u64::from(number)))
        .collect();
    for (number, body) in bodies.iter_mut().enumerate() {
        fill(body, &vec![number as u8 + 1; 1_000 + number]);
    }
    assert_eq!(packs(directory.path()), ["0"]);
    assert_eq!(own_files(directory.path()), 0);
    // Longer than a slot from the beginning.
    let mut large = body(&cache, 3, SLOT + 1);
    fill(&mut large, &vec![9; SLOT as usize + 1]);
    assert_eq!(own_files(directory.path()), 1);
    assert!(large.lend().is_some() && bodies[0].lend().is_none());
    // By what a program writes.
    bodies[1]
        .write(SLOT, b"end", AfsTime(7))
        .expect("written behind the slot");
    assert_eq!(own_files(directory.path()), 2);
    assert!(bodies[1].read(0, 1_001).expect("read") == [2; 1_001]);
    drop((bodies, large));
    drop(cache);
    let cache = index(directory.path());
    for (number, length) in [(0, 1_000), (2, 1_002), (3, SLOT + 1)] {
        assert_eq!(body(&cache, number, length).gaps(0, length), []);
    }
    let mut grown = body(&cache, 1, 1_001);
    assert_eq!(grown.gaps(0, SLOT + 3), []);
    let bytes = grown.read(0, SLOT + 3).expect("read");
    assert!(bytes.starts_with(&[2; 1_001]) && bytes.ends_with(b"\0end"));
    drop(grown);
    // Room that is made takes the pack, too.
    cache.0.evict(0);
    assert!(packs(directory.path()).is_empty());
    assert_eq!(own_files(directory.path()), 1, "what is to be stored");
}

/// Between the rename and the hole there are both.
#[test]
fn a_separate_file_overrides_the_slot() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let number = one_left(&cache);
    std::fs::write(cache.0.path(number), [3; 100]).expect("written");
    drop(cache);
    let cache = index(directory.path());
    assert!(packs(directory.path()).is_empty());
    let mut small = body(&cache, 0, 100);
    assert_eq!(small.gaps(0, 100), []);
    assert!(small.lend().is_some());
}

#[test]
fn an_unanswered_change_is_not_hidden_by_an_answered_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let number = one_left(&cache);
    drop(cache);
    let slots = Slots::open(directory.path()).expect("opens");
    let (pack, base) = slots.hold(number).expect("a pack");
    pack.write_all_at(&[4; 200], base + 100).expect("written");
    drop((pack, slots));
    let cache = index(directory.path());
    let mut small = body(&cache, 0, 100);
    small.set_length(300, AfsTime(7)).expect("longer");
    assert_eq!(small.gaps(0, 300), []);
    let bytes = small.read(0, 300).expect("read");
    assert!(bytes[..100] == [3; 100] && bytes[100..] == [0; 200]);
}

const NOW: AfsTime = AfsTime(7);
const ANOTHER_BOOT: [u8; 16] = [2; 16];

fn sync(body: &mut Body) {
    let (_, _, changes) = body.unsynced().expect("a file").expect("to be synced");
    body.synced(changes);
    assert!(body.unsynced().expect("a file").is_none());
}

fn set_mode(body: &mut Body) {
    let set = AfsStoreStatus {
        unix_mode: Some(0o640),
        ..AfsStoreStatus::default()
    };
    body.set_attributes(&set, NOW);
}

fn syncs(change: impl FnOnce()) -> u64 {
    SYNCS.set((0, u64::MAX));
    change();
    SYNCS.get().0
}

/// After a crash, the index may end at any record since its last sync.
#[test]
fn a_synced_file_leaves_its_slot_synced() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let mut small = body(&cache, 0, 100);
    fill(&mut small, &[3; 100]);
    assert_eq!(syncs(|| small.set_length(90, NOW).expect("shorter")), 0);
    small.write(10, b"synced", NOW).expect("written");
    sync(&mut small);
    let log = std::fs::read(directory.path().join("index")).expect("a log");
    set_mode(&mut small);
    let grows = || small.write(SLOT, b"end", NOW).expect("written");
    assert_eq!(syncs(grows), 2, "the file, and its name");
    drop((small, cache));
    std::fs::write(directory.path().join("index"), log).expect("written");
    let space = Arc::<Space>::default();
    let index = Index::open(directory.path(), ANOTHER_BOOT, space.clone()).expect("opens");
    let mut small = body(&(Arc::new(index), space), 0, 100);
    assert!(small.is_changed());
    assert_eq!(small.read(10, 16).expect("read"), b"synced");
}

#[test]
fn a_synced_file_is_not_shorter_than_the_index_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let mut small = body(&cache, 0, 0);
    small.write(0, &[1; 800], NOW).expect("written");
    sync(&mut small);
    small.write(0, b"x", NOW).expect("written");
    let shorter = || small.set_length(500, NOW).expect("shorter");
    assert_eq!(syncs(shorter), 1, "the index");
}

#[test]
fn a_host_that_left_its_slot_does_not_continue_in_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let mut small = body(&cache, 0, 100);
    fill(&mut small, &[3; 100]);
    small.write(10, b"synced", NOW).expect("written");
    sync(&mut small);
    let number = small.number().expect("a number");
    let both = |slot: bool, own: bool| {
        let slots = Slots::open(directory.path()).expect("opens");
        assert_eq!(
            (slots.has(number), cache.0.path(number).exists()),
            (slot, own)
        );
    };
    // The bytes cannot be synced: nothing has happened.
    SYNCS.set((0, 0));
    let failed = small.write(SLOT, b"end", NOW);
    assert!(failed.is_err() && own_files(directory.path()) == 0);
    both(true, false);
    // The name cannot: what is written from now on is not in the slot, which stays.
    SYNCS.set((0, 1));
    small.write(SLOT, b"end", NOW).expect("written");
    both(true, true);
    small.write(10, b"second", NOW).expect("written");
    // Nothing is synced before the name is.
    SYNCS.set((0, 0));
    assert!(small.unsynced().is_err());
    SYNCS.set((0, u64::MAX));
    drop((small, cache));
    let cache = index(directory.path());
    assert!(packs(directory.path()).is_empty());
    let mut small = body(&cache, 0, 100);
    assert_eq!(small.read(10, 16).expect("read"), b"second");
    assert_eq!(small.read(SLOT, SLOT + 3).expect("read"), b"end");
}

#[test]
fn a_slot_moved_during_a_sync_is_not_synced() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = index(directory.path());
    let length = SLOT + 10;
    let mut moves = body(&cache, 0, length);
    moves.write(10, b"dirty", NOW).expect("written");
    let (_, _, changes) = moves.unsynced().expect("a file").expect("to be synced");
    fill(&mut moves, &vec![3; length as usize]);
    assert_eq!(own_files(directory.path()), 1);
    moves.synced(changes);
    let again = moves.unsynced().expect("a file");
    assert!(again.is_some(), "what was synced is where it was");
    drop((moves, cache));
    let open = Index::open(directory.path(), ANOTHER_BOOT, Arc::default());
    drop(open.expect("opens"));
    let (unstored, _) = unstored_in(directory.path()).expect("a cache");
    assert!(unstored[0].torn);
}

/// As [`an_unanswered_change_is_not_hidden_by_an_answered_one`], of files whose mode waits to be
/// stored.
#[test]
fn an_unanswered_change_is_not_hidden_by_attributes() {
    for length in [100, SLOT + 100] {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = index(directory.path());
        let mut file = body(&cache, 0, length);
        fill(&mut file, &vec![3; length as usize]);
        set_mode(&mut file);
        let number = file.number().expect("a number");
        drop(file);
        let (place, base) = match length > SLOT {
            true => (Arc::new(open(&cache.0.path(number)).expect("a file")), 0),
            false => {
                let slots = Slots::open(directory.path()).expect("opens");
                slots.hold(number).expect("a pack")
            }
        };
        place
            .write_all_at(&[4; 200], base + length)
            .expect("written");
        drop(cache);
        let cache = index(directory.path());
        let mut file = body(&cache, 0, length);
        assert_eq!(file.unstored_attributes().unix_mode, Some(0o640));
        file.set_length(length + 200, NOW).expect("longer");
        assert_eq!(file.gaps(0, length + 200), []);
        let bytes = file.read(0, length + 200).expect("read");
        let (before, behind) = bytes.split_at(length as usize);
        assert!(before.iter().all(|byte| *byte == 3));
        assert!(behind.iter().all(|byte| *byte == 0));
    }
}

/// Nor is what the server had there before.
#[test]
fn a_name_forgotten_during_a_request_is_gone() {
    for killed in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut cache = index(directory.path());
        let mut file = body(&cache, 0, 100);
        fill(&mut file, &[3; 100]);
        set_mode(&mut file);
        let shorter = AfsFetchStatus {
            data_version: 5,
            ..status(50)
        };
        file.apply_status(&shorter);
        if killed {
            drop((file, cache));
            cache = index(directory.path());
            file = body(&cache, 0, 100);
            file.apply_status(&shorter);
        }
        assert_eq!(file.unstored_attributes().unix_mode, Some(0o640));
        file.set_length(100, NOW).expect("longer");
        assert_eq!(file.gaps(0, 100), [(0, 50)]);
        assert_eq!(file.read(50, 100).expect("read"), [0; 50]);
    }
}

/// The disk is full in the midst of a write, of bytes that are being stored.
#[test]
fn a_half_written_range_is_not_taken_for_fetched_bytes() {
    for length in [60, SLOT + 60] {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = index(directory.path());
        let mut file = body(&cache, 0, length);
        fill(&mut file, &vec![3; length as usize]);
        file.write(0, &[4; 40], NOW).expect("written");
        let piece = file.next_piece(STORE_BYTES).expect("a piece");
        assert_eq!((piece.start, piece.end), (0, 40));
        ROOM.set(10);
        let failed = file.write(20, &vec![5; length as usize], NOW);
        ROOM.set(usize::MAX);
        assert!(failed.is_err());
        assert_eq!(file.gaps(0, length), [(40, length)], "what is clean");
        let stored = AfsFetchStatus {
            data_version: 5,
            ..status(length)
        };
        assert!(!file.stored(&piece, &stored, &[]));
        // After a kill, too.
        drop((file, cache));
        let cache = index(directory.path());
        let mut file = unasked(&cache, 0);
        file.apply_status(&stored);
        let piece = file.next_piece(STORE_BYTES).expect("another piece");
        assert_eq!((piece.start, piece.end), (20, 40));
        let now = file.read(20, 40).expect("read");
        assert!(now[..10] == [5; 10] && now[10..] == [4; 10]);
        file.set_length(length + 100, NOW).expect("longer");
        let behind = file.read(length, length + 100).expect("read");
        assert_eq!(behind, [0; 100]);
    }
}
