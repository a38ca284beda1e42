//! Single cases: what a cache directory that an earlier process left is worth.

use super::*;

#[test]
fn changes_of_others_are_not_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    world.take().write(3, b"abc", NOW).expect("writes");
    drop(world);
    server.version = 5;
    let mut world = World::open(directory.path(), server, BOOT);
    assert_eq!(world.view(), b"0123456789");
    assert!(!world.take().is_changed());
    let [about] = &aside(directory.path())[..] else {
        panic!("one is put aside");
    };
    let text = std::fs::read_to_string(about).expect("a text");
    assert!(
        text.contains("fid 5.2.9") && text.contains("version 5"),
        "{text}"
    );
    // It is nothing of the cache's any more.
    drop(world);
    let (unstored, aside) = unstored_in(directory.path()).expect("a cache");
    assert_eq!((unstored.len(), aside.len()), (0, 1));
}

#[test]
fn a_damaged_index_starts_empty_and_puts_aside() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    let pieces = [Bytes::from(server.bytes.clone())];
    world
        .take()
        .fill(&server.status(), 0..10, &pieces)
        .expect("fills");
    drop(world);
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    assert_eq!(world.space.used.load(Ordering::Relaxed), 10);
    assert_eq!(world.take().gaps(0, 10), []);
    world.take().write(3, b"abc", NOW).expect("writes");
    world.take().write(9, b"xyz", NOW).expect("writes");
    world.take().write(0, b"0", NOW).expect("writes");
    drop(world);
    let log = directory.path().join("index");
    let mut bytes = std::fs::read(&log).expect("a log");
    // In the second of the three.
    let at = bytes.len() - 100;
    bytes[at] ^= 4;
    std::fs::write(&log, bytes).expect("written");
    let mut world = World::open(directory.path(), server, BOOT);
    assert_eq!(world.space.used.load(Ordering::Relaxed), 0);
    assert_eq!(world.view(), b"0123456789");
    assert_eq!(aside(directory.path()).len(), 1);
}

/// A file that only records behind the damage mention.
#[test]
fn dirty_bytes_hidden_by_damage_are_put_aside() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    world.take().write(3, b"abc", NOW).expect("writes");
    let log = directory.path().join("index");
    let damaged = std::fs::metadata(&log).expect("a log").len() as usize - 1;
    let mut other = Body::on_disk(&world.index, place(2), world.space.clone());
    other.apply_status(&server.status());
    other.write(5, b"xyz", NOW).expect("writes");
    drop((other, world));
    let mut bytes = std::fs::read(&log).expect("a log");
    bytes[damaged] ^= 4;
    std::fs::write(&log, bytes).expect("written");
    let mut world = World::open(directory.path(), server, BOOT);
    assert_eq!(world.view(), b"0123456789");
    let mut other = Body::on_disk(&world.index, place(2), world.space.clone());
    other.apply_status(&world.server.status());
    let [about] = &aside(directory.path())[..] else {
        panic!("one is put aside");
    };
    let bytes = std::fs::read(about.with_extension("")).expect("bytes");
    assert_eq!(&bytes[5..8], b"xyz");
}

/// A program cut the file to rewrite it, and the machine crashed before the log recorded that.
#[test]
fn synced_bytes_that_are_not_there_are_no_zeros() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    world.take().write(3, b"abc", NOW).expect("writes");
    assert!(world.sync());
    let number = world.take().number().expect("a number");
    drop(world);
    let slots = Slots::open(directory.path()).expect("opens");
    assert_eq!(slots.are_written(number, 3, 6).ok(), Some(true));
    slots.clear(number, 0, SLOT).expect("cut");
    let mut world = World::open(directory.path(), server, [2; 16]);
    assert_eq!(world.view(), b"0123456789");
    assert!(!world.take().is_changed());
    assert_eq!(aside(directory.path()).len(), 1);
}

#[test]
fn a_later_file_put_aside_replaces_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    for count in 1..=3 {
        let mut world = World::open(directory.path(), server.clone(), BOOT);
        world.take().write(3, b"abc", NOW).expect("writes");
        drop(world);
        server.version += 1;
        let mut world = World::open(directory.path(), server.clone(), BOOT);
        assert_eq!(world.view(), b"0123456789");
        assert_eq!(aside(directory.path()).len(), count);
    }
}

/// Another client stored once, and the bytes of our store in progress were there before.
#[test]
fn bytes_that_another_client_may_have_stored_are_fetched() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    for range in [0..5, 5..10] {
        let part = range.start as usize..range.end as usize;
        let pieces = [Bytes::copy_from_slice(&server.bytes[part])];
        let filled = world.take().fill(&server.status(), range, &pieces);
        assert!(filled.expect("fills"));
    }
    world.take().write(3, b"3", NOW).expect("writes");
    world.take().next_piece(STORE_BYTES).expect("a piece");
    drop(world);
    server = Server {
        version: 5,
        bytes: b"by another".to_vec(),
    };
    server.bytes[3] = b'3';
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    assert_eq!(world.view(), server.bytes);
    assert!(aside(directory.path()).is_empty());
}

#[test]
fn a_log_that_cannot_be_rewritten_grows() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server {
        version: 4,
        bytes: Vec::new(),
    };
    let mut world = World::open(directory.path(), server, BOOT);
    let next = directory.path().join("index.new");
    std::fs::create_dir(&next).expect("in the way");
    for at in 0..1_500 {
        world.take().write(at, b"x", NOW).expect("writes");
    }
    drop(world);
    std::fs::remove_dir(&next).expect("removed");
    let (unstored, _) = unstored_in(directory.path()).expect("a cache");
    assert_eq!(unstored[0].bytes, 1_500);
}

#[test]
fn files_at_rest_go_first_used_least_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let space = Arc::<Space>::default();
    let open = |space: &Arc<Space>| {
        let opened = Index::open(directory.path(), BOOT, space.clone());
        Arc::new(opened.expect("opens"))
    };
    let index = open(&space);
    let fill = |index: &Arc<Index>, space: &Arc<Space>, number| {
        let mut body = Body::on_disk(index, place(number), space.clone());
        body.apply_status(&status(1, 100));
        body.fill(&status(1, 100), 0..100, &[Bytes::from(vec![3; 100])])
            .expect("fills");
        body
    };
    drop((1..=4).map(|n| fill(&index, &space, n)).collect::<Vec<_>>());
    assert_eq!(space.used.load(Ordering::Relaxed), 400);
    // The first is used again.
    drop(fill(&index, &space, 1));
    index.close(&[]);
    drop(index);
    let space = Arc::<Space>::default();
    let index = open(&space);
    assert_eq!(space.used.load(Ordering::Relaxed), 400);
    index.evict(200);
    assert_eq!(space.used.load(Ordering::Relaxed), 200);
    let here: Vec<_> = (1..=4)
        .filter(|n| index.take(&place(*n)).is_some())
        .collect();
    assert_eq!(here, [1, 4]);
    assert_eq!(space.used.load(Ordering::Relaxed), 0);
}

#[test]
fn lent_bytes_do_not_change() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().expect("a directory");
    let old = (0..100_000_u32).map(|i| i as u8).collect::<Vec<_>>();
    let server = Server {
        version: 4,
        bytes: old.clone(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    let fill = |world: &mut World, range: std::ops::Range<u64>| {
        let status = world.server.status();
        let part = &world.server.bytes[range.start as usize..range.end as usize];
        let pieces = [Bytes::copy_from_slice(part)];
        let body = world.take();
        assert!(body.fill(&status, range, &pieces).expect("written"));
    };
    fill(&mut world, 0..60_000);
    assert!(world.take().lend().is_none(), "half of it");
    fill(&mut world, 60_000..100_000);
    let (file, lent) = world.take().lend().expect("all of it");
    let is_old = |file: &std::fs::File| {
        let mut bytes = vec![0; old.len()];
        file.read_exact_at(&mut bytes, 0).expect("read");
        bytes == old && file.metadata().expect("metadata").len() == old.len() as u64
    };
    // No room is made in it.
    world.take().forget_range(0..50_000).expect("works");
    assert!(world.take().is_lent() && world.take().lend().is_some());
    // Another version, and what is forgotten, are other files.
    let before = world.take().content_generation();
    world.server = Server {
        version: 5,
        bytes: vec![7; 120_000],
    };
    let status = world.server.status();
    world.take().apply_status(&status);
    fill(&mut world, 0..120_000);
    assert!(is_old(&file) && !world.take().is_lent());
    assert_ne!(world.take().content_generation(), before);
    let (second, _lent) = world.take().lend().expect("the new one");
    let before = world.take().content_generation();
    world.take().forget_clean();
    assert_ne!(
        world.take().content_generation(),
        before,
        "flushed while it is lent"
    );
    fill(&mut world, 0..120_000);
    assert!(is_old(&file));
    assert_eq!(second.metadata().expect("metadata").len(), 120_000);
    drop(lent);
    // A file that programs of this machine changed cannot be lent.
    world.take().write(3, b"abc", NOW).expect("written");
    assert!(world.take().lend().is_none());
    // Bytes of an earlier process are compared first.
    world.take().abandon();
    world.take().apply_status(&status);
    fill(&mut world, 0..120_000);
    let path = world.take().number().map(|number| world.index.path(number));
    drop(world.body.take());
    let kept = std::fs::OpenOptions::new()
        .write(true)
        .open(path.expect("a number"));
    kept.expect("a file")
        .write_all_at(b"x", 70_000)
        .expect("damaged");
    assert!(world.take().lend().is_none(), "damaged bytes");
}

#[test]
fn a_cache_of_a_newer_release_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server {
        version: 4,
        bytes: b"0123456789".to_vec(),
    };
    let mut world = World::open(directory.path(), server.clone(), BOOT);
    world.take().write(3, b"abc", NOW).expect("writes");
    drop(world);
    let log = directory.path().join("index");
    let good = std::fs::read(&log).expect("the index");
    let newer = [b"cellar cache index 2\n", &good[21..]].concat();
    std::fs::write(&log, &newer).expect("written");
    let opened = Index::open(directory.path(), BOOT, Arc::default());
    let refused = opened.map(drop).expect_err("newer").to_string();
    assert!(
        refused.contains("a newer release wrote this cache"),
        "{refused}"
    );
    assert_eq!(std::fs::read(&log).expect("the index"), newer);
    assert!(unstored_in(directory.path()).is_err());
    // The newer release, or this one with its own index, still has the bytes.
    std::fs::write(&log, &good).expect("written");
    let mut world = World::open(directory.path(), server, BOOT);
    assert_eq!(world.view(), b"012abc6789");
    assert!(aside(directory.path()).is_empty());
}
