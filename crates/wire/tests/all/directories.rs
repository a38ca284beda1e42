//! Tests directories against pages that OpenAFS wrote, and against a model.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use cellar_wire::dir::{
    Corruption, DirError, Directory, Entry, NAME_MAX, PAGES_MAX, Page, VnodeRef, hash, slots,
};
use cellar_wire::{Uniquifier, VnodeId};

use crate::seeded;
use crate::seeded::Random;

fn target(vnode: u32, uniquifier: u32) -> VnodeRef {
    VnodeRef {
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(uniquifier),
    }
}

fn sample(name: &str) -> Vec<Page> {
    let path = format!(
        "{}/../../testdata/directories/{name}.bin",
        env!("CARGO_MANIFEST_DIR")
    );
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (pages, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    pages.to_vec()
}

fn create(this: VnodeRef, parent: VnodeRef) -> Directory<Vec<Page>> {
    Directory::create(Vec::new(), this, parent).expect("an empty directory")
}

fn insert_all(directory: &mut Directory<Vec<Page>>, names: &[(&str, u32, u32)]) {
    for (name, vnode, uniquifier) in names {
        let entered = directory.insert(name.as_bytes(), target(*vnode, *uniquifier));
        entered.expect("a name that fits");
    }
}

/// Compares page by page, so that a failure shows the place.
fn assert_same(ours: Directory<Vec<Page>>, theirs: &str) {
    let (ours, theirs) = (ours.into_pages(), sample(theirs));
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let differs = ours.iter().zip(theirs).position(|(a, b)| a != b);
        assert_eq!(differs, None, "byte of page {index}");
    }
}

const SAMPLES: [(&str, usize); 8] = [
    ("samp-root", 6),
    ("samp-d1", 8),
    ("samp-sub", 2),
    ("samp-later-root", 7),
    ("samp-later-d1", 7),
    ("samp-later-d2", 2),
    ("fragmented", 103),
    ("145-pages", 1302),
];

#[test]
fn samples_are_sound_and_every_name_is_found() {
    for (name, entries) in SAMPLES {
        let directory = Directory::new(sample(name));
        assert_eq!(directory.check().unwrap().entries, entries, "{name}");
        let listed = directory.entries().unwrap();
        assert_eq!(listed.len(), entries);
        for (entry, target) in &listed {
            assert_eq!(directory.lookup(entry), Ok(Some(*target)), "{name}");
        }
        for absent in [&b"absent"[..], b"", b"...", &[b'n'; 300]] {
            assert_eq!(directory.lookup(absent), Ok(None), "{name}");
        }
        assert_eq!(directory.is_empty(), Ok(entries == 2), "{name}");
    }
}

#[test]
fn same_steps_make_the_same_bytes() {
    let root = target(1, 1);
    assert_same(create(target(5, 3), target(3, 2)), "samp-sub");
    assert_same(create(target(7, 13), root), "samp-later-d2");

    let mut directory = create(root, root);
    insert_all(
        &mut directory,
        &[
            ("d1", 3, 2),
            ("hello.txt", 2, 4),
            ("empty", 4, 5),
            ("mtpt", 16, 11),
        ],
    );
    assert_same(directory.clone(), "samp-root");
    insert_all(&mut directory, &[("d2", 7, 13)]);
    assert_same(directory, "samp-later-root");

    let mut directory = create(target(3, 2), root);
    let (long_n, long_m) = ("n".repeat(47), "m".repeat(48));
    insert_all(
        &mut directory,
        &[
            ("sub", 5, 3),
            ("f15name_abcdefg", 6, 6),
            ("f16name_abcdefgh", 8, 7),
            (&long_n, 10, 8),
            (&long_m, 12, 9),
            ("link", 14, 10),
        ],
    );
    assert_same(directory.clone(), "samp-d1");
    assert_eq!(directory.remove(b"f15name_abcdefg"), Ok(target(6, 6)));
    insert_all(&mut directory, &[("new.txt", 6, 12)]);
    assert_eq!(directory.remove(b"sub"), Ok(target(5, 3)));
    assert_same(directory, "samp-later-d1");
}

#[test]
fn same_steps_make_the_same_fragments() {
    let mut directory = create(target(5, 1303), target(1, 1));
    for i in 0..200 {
        directory
            .insert(
                format!("f{i:03}").as_bytes(),
                target(2602 + 2 * i, 1304 + i),
            )
            .unwrap();
    }
    for i in (0..200).step_by(2) {
        directory.remove(format!("f{i:03}").as_bytes()).unwrap();
    }
    // Only behind the last entry are two adjacent slots free, so no hole is used.
    assert_eq!(directory.insert(&[b'L'; 40], target(2602, 1504)), Ok(218));
    assert_same(directory, "fragmented");
}

#[test]
fn same_steps_make_the_same_145_pages() {
    let mut directory = create(target(3, 2), target(1, 1));
    for i in 0..1300 {
        let name = format!("{i:05}{}", "n".repeat(200));
        directory
            .insert(name.as_bytes(), target(2 + 2 * i, 3 + i))
            .unwrap();
    }
    assert_same(directory, "145-pages");
}

#[test]
fn hashes_and_sizes_are_those_of_peers() {
    for (name, chain) in [
        (".", 46),
        ("..", 68),
        ("d1", 69),
        ("hello.txt", 18),
        ("empty", 83),
        ("mtpt", 9),
        ("sub", 30),
        ("link", 46),
        ("f15name_abcdefg", 60),
        ("f16name_abcdefgh", 17),
    ] {
        assert_eq!(hash(name.as_bytes()), chain, "{name}");
    }
    assert_eq!(hash(&[b'n'; 47]), 122);
    assert_eq!(hash(&[b'm'; 48]), 80);
    for (len, count) in [
        (1, 1),
        (15, 1),
        (16, 2),
        (47, 2),
        (48, 3),
        (79, 3),
        (80, 4),
        (111, 4),
    ] {
        assert_eq!(slots(len), count, "{len}");
    }
    assert_eq!(
        (slots(208), slots(239), slots(240), slots(255)),
        (8, 8, 9, 9)
    );
}

#[test]
fn a_new_parent_keeps_its_place() {
    let mut directory = create(target(3, 2), target(1, 1));
    directory.insert(b"a", target(2, 3)).unwrap();
    directory.set_parent(target(9, 8)).unwrap();
    assert_eq!(directory.lookup(b".."), Ok(Some(target(9, 8))));
    directory.check().unwrap();
    let mut order = Vec::new();
    directory
        .for_each(0, |entry| {
            order.push((entry.slot, entry.name.to_vec()));
            ControlFlow::<()>::Continue(())
        })
        .unwrap();
    assert_eq!(
        order,
        [
            (13, b".".to_vec()),
            (14, b"..".to_vec()),
            (15, b"a".to_vec())
        ]
    );
}

#[test]
fn names_that_cannot_be_are_refused_and_change_nothing() {
    let mut directory = create(target(3, 2), target(1, 1));
    directory.insert(b"a", target(2, 3)).unwrap();
    let before = directory.clone().into_pages();
    let long = [b'x'; NAME_MAX + 1];
    for (name, error) in [
        (&b""[..], DirError::BadName),
        (b"a\0b", DirError::BadName),
        (&long, DirError::NameTooLong),
        (b"a", DirError::Exists),
        (b".", DirError::Exists),
        (b"..", DirError::Exists),
    ] {
        assert_eq!(directory.insert(name, target(4, 4)), Err(error));
    }
    for (name, error) in [
        (&b""[..], DirError::BadName),
        (b".", DirError::BadName),
        (b"..", DirError::BadName),
        (b"b", DirError::NotFound),
        (&long, DirError::NotFound),
    ] {
        assert_eq!(directory.remove(name), Err(error));
    }
    assert_eq!(before, directory.into_pages());
}

#[test]
fn grows_to_1023_pages_and_no_further() {
    let mut directory = create(target(1, 1), target(1, 1));
    let name = |i: u32| format!("{i:05}{}", "z".repeat(235)).into_bytes();
    let fits = 5 + 7 * 1022;
    for i in 0..fits {
        directory.insert(&name(i), target(2, i)).unwrap();
    }
    assert_eq!(directory.pages().len(), PAGES_MAX);
    let before = directory.check().unwrap();
    assert_eq!(before.entries as u32, fits + 2);
    assert_eq!(
        directory.insert(&name(fits), target(2, 2)),
        Err(DirError::Full)
    );
    assert_eq!(directory.check(), Ok(before));
    // Short names still fit, first into page 0 and last into page 1022.
    assert_eq!(
        directory
            .insert(b"short", target(2, 2))
            .map(|slot| slot / 64),
        Ok(0)
    );
    directory.remove(&name(fits - 1)).unwrap();
    directory.remove(&name(fits - 2)).unwrap();
    assert_eq!(
        directory
            .insert(&name(fits), target(2, 2))
            .map(|slot| slot / 64),
        Ok(1022)
    );
    directory.check().unwrap();
}

#[test]
fn agrees_with_a_model() {
    let seed = seeded::seed();
    let mut random = Random::new(seed);
    for round in 0..20 {
        let mut directory = create(target(3, 2), target(1, 1));
        let mut model = BTreeMap::new();
        model.insert(b".".to_vec(), target(3, 2));
        model.insert(b"..".to_vec(), target(1, 1));
        let names = 1 << (round % 10);
        for step in 0..600 {
            let number = random.below(names);
            let len = [1, 15, 16, 47, 48, 200, 239, 240, 250][number as usize % 9];
            let mut name = vec![b'a' + (number % 26) as u8; len];
            name.extend_from_slice(number.to_string().as_bytes());
            let entry = target(random.draw() as u32, random.draw() as u32);
            let known = model.contains_key(&name);
            match random.below(5) {
                0..3 => {
                    let expected = if known { Err(DirError::Exists) } else { Ok(()) };
                    assert_eq!(directory.insert(&name, entry).map(drop), expected);
                    model.entry(name).or_insert(entry);
                }
                3 => {
                    let expected = model.remove(&name).ok_or(DirError::NotFound);
                    assert_eq!(directory.remove(&name), expected);
                }
                _ if step % 7 == 0 => {
                    directory.set_parent(entry).unwrap();
                    model.insert(b"..".to_vec(), entry);
                }
                _ => assert_eq!(directory.lookup(&name), Ok(model.get(&name).copied())),
            }
        }
        let summary = directory.check().unwrap();
        assert_eq!(summary.entries, model.len());
        let listed: BTreeMap<_, _> = directory.entries().unwrap().into_iter().collect();
        assert_eq!(listed, model, "seed {seed}");
        let mut sum = 0;
        let cookies = |from| {
            let mut next = None;
            let look = |entry: Entry<'_>| {
                next = Some(entry.slot + 1);
                ControlFlow::Break(())
            };
            directory.for_each(from, look).unwrap();
            next
        };
        let mut from = 0;
        while let Some(next) = cookies(from) {
            (from, sum) = (next, sum + 1);
        }
        assert_eq!(sum, model.len(), "walked by cookie, seed {seed}");
    }
}

#[test]
fn damage_is_named() {
    let sound = sample("samp-d1");
    let damaged = |change: &dyn Fn(&mut Vec<Page>)| {
        let mut pages = sound.clone();
        change(&mut pages);
        Directory::new(pages).check().map(drop)
    };
    let corrupt = |corruption| Err(DirError::Corrupt(corruption));
    assert_eq!(damaged(&|_| {}), Ok(()));
    assert_eq!(
        damaged(&|pages| pages.clear()),
        corrupt(Corruption::Size(0))
    );
    assert_eq!(
        damaged(&|pages| pages[0][2] = 0),
        corrupt(Corruption::Magic(0))
    );
    assert_eq!(
        damaged(&|pages| pages.push([0; 2048])),
        corrupt(Corruption::PageCount { said: 1, has: 2 })
    );
    assert_eq!(
        damaged(&|pages| pages[0][5] = 0xfe),
        corrupt(Corruption::Bitmap(0))
    );
    assert_eq!(
        damaged(&|pages| pages[0][32] = 7),
        corrupt(Corruption::FreeCount(0))
    );
    assert_eq!(
        damaged(&|pages| pages[0][15 * 32] = 0),
        corrupt(Corruption::NotAnEntry(15))
    );
    assert_eq!(
        damaged(&|pages| pages[0][15 * 32 + 12] = 0),
        corrupt(Corruption::Name(15))
    );
    assert_eq!(
        damaged(&|pages| pages[0][15 * 32 + 12] = b'x'),
        corrupt(Corruption::WrongChain(15))
    );
    // `f069` renamed in place to `f111`, which is in the same chain. Found by fuzzing.
    let mut twice = sample("fragmented");
    twice[1][684..][..4].copy_from_slice(b"f111");
    let twice = Directory::new(twice).check().map(drop);
    assert_eq!(twice, corrupt(Corruption::Duplicate(85)));
    // `link` leads to `.` in the same chain. If it leads to itself instead, the chain never ends.
    let loops = |pages: &mut Vec<Page>| pages[0][24 * 32 + 3] = 24;
    assert_eq!(damaged(&loops), corrupt(Corruption::Overlap(24)));
    let mut pages = sound.clone();
    loops(&mut pages);
    let directory = Directory::new(pages);
    assert_eq!(
        directory.lookup(b"."),
        corrupt(Corruption::Chain(46)).map(|()| None)
    );
    assert_eq!(directory.lookup(b"link"), Ok(Some(target(14, 10))));
}

/// A bitmap that declares the slots of page 0's map and chains free. Found by the mutating test.
#[test]
fn an_insert_never_takes_the_pages_own_slots() {
    let mut pages = sample("samp-root");
    pages[0][5..7].copy_from_slice(&[0x01, 0xe0]);
    let mut directory = Directory::new(pages);
    assert_eq!(directory.insert(b"x", target(2, 2)), Ok(19));
    assert_eq!(directory.lookup(b"x"), Ok(Some(target(2, 2))));
}

/// Random bytes are written over sound directories. Every operation returns, and none panics or
/// loops.
#[test]
fn damage_never_panics() {
    let seed = seeded::seed();
    let mut random = Random::new(seed);
    for (name, _) in SAMPLES.iter().take(7) {
        let sound = sample(name);
        for _ in 0..2000 {
            let mut pages = sound.clone();
            for _ in 0..=random.below(6) {
                let page = random.below(pages.len() as u64) as usize;
                let at = match random.below(3) {
                    0 => random.below(32),
                    1 => random.below(416),
                    _ => random.below(2048),
                } as usize;
                pages[page][at] = random.draw() as u8;
            }
            let mut directory = Directory::new(pages);
            let _ = directory.check();
            let _ = directory.entries();
            let _ = directory.is_empty();
            for name in [&b"."[..], b"link", b"f199", b"sub"] {
                let _ = directory.lookup(name);
            }
            let _ = directory.set_parent(target(7, 7));
            let _ = directory.remove(b"link");
            let _ = directory.remove(b"f199");
            let _ = directory.insert(b"something", target(7, 7));
            let _ = directory.insert(&[b'y'; 100], target(7, 7));
        }
    }
}
