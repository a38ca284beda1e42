//! Decodes mutated bytes for about ten seconds (`CELLAR_FUZZ_SECONDS`). Nothing may panic. If bytes
//! decode to a message, its encoding must decode to the same message. The targets in `fuzz/` run
//! the same checks for longer.

use std::time::{Duration, Instant};

use cellar_wire::acl::text::AclText;
use cellar_wire::acl::{ACL_SIZE, AccessList, ByteOrder};
use cellar_wire::dir::{Directory, Page, VnodeRef};
use cellar_wire::{Uniquifier, VnodeId};

use crate::seeded;

use crate::packages::{Message, all_messages};
use crate::seeded::Random;

/// A third of the time, for each of the three targets.
fn share() -> Duration {
    let seconds = std::env::var("CELLAR_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_millis(seconds.unwrap_or(10) * 1000 / 3)
}

/// Changes a few bytes: flips, interesting words, cuts, repeats.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            bytes.extend_from_slice(&random.draw().to_be_bytes());
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.draw() as u8,
            2 => bytes.truncate(at),
            3 if bytes.len() < 20_000 => {
                let copy = bytes[at..].to_vec();
                bytes.extend_from_slice(&copy);
            }
            _ => {
                let at = at & !3;
                let word = [
                    0,
                    1,
                    2,
                    255,
                    256,
                    65_536,
                    0x7fff_ffff,
                    0x8000_0000,
                    u32::MAX,
                ][random.below(9) as usize];
                if let Some(slot) = bytes.get_mut(at..at + 4) {
                    slot.copy_from_slice(&word.to_be_bytes());
                }
            }
        }
    }
}

fn check_message(message: &Message, bytes: &[u8]) {
    let Ok(decoded) = message.decode(bytes) else {
        return;
    };
    let again = message.decode(&decoded.canonical);
    let again = again.unwrap_or_else(|error| panic!("{}: {error}", message.name()));
    assert_eq!(again.canonical, decoded.canonical, "{}", message.name());
}

#[test]
fn messages() {
    let mut random = Random::new(seeded::seed());
    let messages = all_messages();
    let corpus: Vec<_> = messages
        .iter()
        .map(|message| message.samples(&mut random, 4))
        .collect();
    let end = Instant::now() + share();
    let mut runs = 0u64;
    while Instant::now() < end {
        for (message, samples) in messages.iter().zip(&corpus) {
            let mut bytes = samples[random.below(4) as usize].to_vec();
            mutate(&mut random, &mut bytes);
            check_message(message, &bytes);
            // The bytes of another procedure are the most frequent mistake.
            let other = &messages[random.below(messages.len() as u64) as usize];
            check_message(other, &bytes);
            runs += 2;
        }
    }
    println!("{runs} messages");
}

#[test]
fn directories() {
    let mut random = Random::new(seeded::seed());
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/directories/fragmented.bin"
    );
    let sample = std::fs::read(path).expect("the sample");
    let end = Instant::now() + share();
    let mut runs = 0u64;
    while Instant::now() < end {
        let mut bytes = sample.clone();
        mutate(&mut random, &mut bytes);
        directory(&bytes);
        runs += 1;
    }
    println!("{runs} directories");
}

fn directory(bytes: &[u8]) {
    let pages: Vec<Page> = bytes.as_chunks().0.to_vec();
    let mut directory = Directory::new(pages);
    let sound = directory.check();
    let entries = directory.entries();
    let target = VnodeRef {
        vnode: VnodeId(2),
        uniquifier: Uniquifier(2),
    };
    let _ = directory.set_parent(target);
    let inserted = directory.insert(b"a name of two slots", target);
    let _ = directory.remove(b"f001");
    if let (Ok(_), Ok(_), Ok(entries)) = (sound, inserted, entries) {
        directory.check().expect("a sound directory stays sound");
        assert_eq!(directory.lookup(b"a name of two slots"), Ok(Some(target)));
        for (name, _) in entries.iter().filter(|(name, _)| name != b"f001") {
            assert!(directory.lookup(name).is_ok_and(|found| found.is_some()));
        }
    }
}

#[test]
fn access_lists() {
    let mut random = Random::new(seeded::seed());
    let texts = [
        &b"2\n1\nsystem:anyuser\t9\nalice\t63\nbob\t1\n\0"[..],
        b"1 dfs:3 example.org\n0\nalice 127\n",
    ];
    let end = Instant::now() + share();
    let mut runs = 0u64;
    while Instant::now() < end {
        let mut text = texts[random.below(2) as usize].to_vec();
        mutate(&mut random, &mut text);
        if let Ok(list) = AclText::parse(&text) {
            let again = AclText::parse(list.to_text().as_bytes());
            assert_eq!(again.as_ref(), Ok(&list), "{}", text.escape_ascii());
        }
        let mut bytes = AccessList::administrators_only().to_bytes().to_vec();
        mutate(&mut random, &mut bytes);
        bytes.resize(ACL_SIZE, 0);
        let bytes: [u8; ACL_SIZE] = bytes.try_into().expect("192 bytes");
        if let Ok(list) = AccessList::from_bytes(&bytes, ByteOrder::Network) {
            let again = AccessList::from_bytes(&list.to_bytes(), ByteOrder::Network);
            assert_eq!(again, Ok(list));
        }
        runs += 1;
    }
    println!("{runs} access lists");
}
