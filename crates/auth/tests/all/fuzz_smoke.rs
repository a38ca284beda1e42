//! A short run of the checks in `fuzz/`: good files, tickets and messages with random changes, from
//! a printed seed.

use cellar_auth::fuzzing::{handshake, key_files, ticket, ticket_content};

/// A small generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// Runs `check` on changed copies of `seeds`.
fn change(seeds: &[Vec<u8>], rounds: usize, check: impl Fn(&[u8])) {
    let seed = std::env::var("CELLAR_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("to repeat: CELLAR_SEED={seed}");
    let mut random = Random(seed);
    seeds.iter().for_each(|bytes| check(bytes));
    for _ in 0..rounds {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            let lengths = [0x00, 0x01, 0x7f, 0x80, 0x81, 0x82, 0x84, 0xff];
            match random.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.below(256) as u8),
                2 if at < bytes.len() => bytes[at] = lengths[random.below(lengths.len())],
                3 if at < bytes.len() => {
                    bytes.remove(at);
                }
                _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                _ => {}
            }
        }
        check(&bytes);
    }
}

fn hex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len() / 2).map(|at| &text[2 * at..2 * at + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap_or(0))
        .collect()
}

fn tickets() -> Vec<Vec<u8>> {
    include_str!("../../../../testdata/tickets/mit-krb5.txt")
        .lines()
        .filter_map(|line| line.strip_prefix("ticket "))
        .map(hex)
        .collect()
}

#[test]
fn tickets_with_changes() {
    change(&tickets(), 3_000, ticket);
}

#[test]
fn contents_with_changes() {
    // The fields that localauth seals: flags, key, empty realm, `afs`, times.
    let content = hex(
        "63693067a00703050000080000a1133011a003020101a10a04080101010101010101a2021b00a310\
         300ea003020101a10730051b03616673a40b3009a003020100a1020400a511180f31393730303130\
         313030303030305aa711180f32303338303131393033313430375a",
    );
    let mut seeds = tickets();
    seeds.push(content);
    change(&seeds, 30_000, ticket_content);
}

#[test]
fn handshakes_with_changes() {
    let challenge = hex("00000002034fccac0000000000000000");
    let mut response = hex(
        "0000000200000000b2a287c286c075d60d7a87ac6ae0e8ecc1fa61e63e455cc191e6611d73af6036\
         71ef487f0b2b1f100000000300000020",
    );
    response.extend_from_slice(&[7; 32]);
    change(&[challenge, response], 30_000, handshake);
}

#[test]
fn key_files_with_changes() {
    let mut ext = hex("000000010000001000000002000000070000001200000020");
    ext.extend_from_slice(&[7; 32]);
    let keytab = include_bytes!("../../../../testdata/tickets/mit-krb5.keytab").to_vec();
    change(&[ext, keytab], 30_000, key_files);
}
