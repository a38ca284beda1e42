//! fcrypt, the cipher of rxkad, and its mode of use.
//!
//! A Feistel cipher of 16 rounds over 64-bit blocks with 56 bits of key, from the early days of
//! AFS. It stops a casual eavesdropper, but not an attacker with hardware. It is here because every
//! client uses it.
//!
//! 1. The key without its parity bits is rotated to give the sixteen subkeys, 32 bits each.
//! 2. A round is four table look-ups. The tables hold 32-bit words that include the round's final
//!    rotation, so a round is loads and exclusive ors. The tables take 4 KiB.
//! 3. A round depends on the round before it, so independent work must fill the wait. In the mode,
//!    each block is mixed with the plain and sealed forms of the block before it. That chains the
//!    *inputs* of encryption, but only the *outputs* of decryption. So decryption processes several
//!    blocks of one packet at a time, and encryption processes one block each of several packets.

#![expect(
    clippy::indexing_slicing,
    reason = "tables of 256 words are indexed by bytes, and lanes by their number"
)]

mod tables;

use std::ops::Range;

use zeroize::Zeroizing;

use tables::{S0, S1, S2, S3};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 8;
/// Blocks that are processed at a time.
const LANES: usize = 4;

const fn spread(table: &[u8; 256], shift: u32) -> [u32; 256] {
    let mut words = [0; 256];
    let mut at = 0;
    while at < 256 {
        words[at] = ((table[at] as u32) << shift).rotate_right(5);
        at += 1;
    }
    words
}

/// A table for each byte of the input, highest first, with the position of its output. All are in
/// one array, so that one register reaches all of them.
static TABLES: [[u32; 256]; 4] = [
    spread(&S0, 8),
    spread(&S1, 0),
    spread(&S2, 16),
    spread(&S3, 24),
];

#[inline(always)]
fn mix(word: u32) -> u32 {
    let [b0, b1, b2, b3] = word.to_be_bytes();
    TABLES[0][usize::from(b0)]
        ^ TABLES[1][usize::from(b1)]
        ^ TABLES[2][usize::from(b2)]
        ^ TABLES[3][usize::from(b3)]
}

/// A block in the form of the cipher.
pub(crate) type Block = [u32; 2];

/// The block at the beginning of `bytes`.
#[inline(always)]
pub(crate) fn block_of(bytes: &[u8; BLOCK]) -> Block {
    let [a, b, c, d, e, f, g, h] = *bytes;
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

/// The bytes of a block.
#[inline(always)]
pub(crate) fn bytes_of(block: Block) -> [u8; BLOCK] {
    let ([a, b, c, d], [e, f, g, h]) = (block[0].to_be_bytes(), block[1].to_be_bytes());
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn xor(a: Block, b: Block) -> Block {
    [a[0] ^ b[0], a[1] ^ b[1]]
}

#[inline(always)]
fn load(data: &[u8], place: usize) -> Block {
    let bytes = data.get(place..).and_then(<[u8]>::first_chunk);
    bytes.map_or([0; 2], block_of)
}

#[inline(always)]
fn store(data: &mut [u8], place: usize, block: Block) {
    if let Some(bytes) = data.get_mut(place..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = bytes_of(block);
    }
}

/// The subkeys of a key.
#[derive(Clone)]
pub(crate) struct Schedule(Zeroizing<[u32; 16]>);

impl Schedule {
    pub(crate) fn new(key: &[u8; BLOCK]) -> Self {
        const BITS: u32 = 56;
        let mut bits = key
            .iter()
            .fold(0u64, |bits, byte| (bits << 7) | u64::from(byte >> 1));
        let mut subkeys = Zeroizing::new([0; 16]);
        for subkey in subkeys.iter_mut() {
            #[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
            {
                *subkey = bits as u32;
            }
            bits = ((bits >> 11) | (bits << (BITS - 11))) & ((1 << BITS) - 1);
        }
        Self(subkeys)
    }

    /// Encrypts one block.
    pub(crate) fn encrypt(&self, block: Block) -> Block {
        self.encrypt_lanes([block])[0]
    }

    /// Decrypts one block.
    pub(crate) fn decrypt(&self, block: Block) -> Block {
        self.decrypt_lanes([block])[0]
    }

    #[inline(always)]
    fn encrypt_lanes<const N: usize>(&self, mut blocks: [Block; N]) -> [Block; N] {
        for [even, odd] in self.0.as_chunks().0 {
            for block in &mut blocks {
                block[0] ^= mix(even ^ block[1]);
            }
            for block in &mut blocks {
                block[1] ^= mix(odd ^ block[0]);
            }
        }
        blocks
    }

    #[inline(always)]
    fn decrypt_lanes<const N: usize>(&self, mut blocks: [Block; N]) -> [Block; N] {
        for [even, odd] in self.0.as_chunks().0.iter().rev() {
            for block in &mut blocks {
                block[1] ^= mix(odd ^ block[0]);
            }
            for block in &mut blocks {
                block[0] ^= mix(even ^ block[1]);
            }
        }
        blocks
    }

    /// Encrypts whole blocks in the chained mode, starting with `iv`. A rest of less than a block
    /// stays unchanged.
    pub(crate) fn seal(&self, iv: Block, data: &mut [u8]) {
        let mut chain = iv;
        for bytes in data.as_chunks_mut().0 {
            let plain = block_of(bytes);
            let sealed = self.encrypt(xor(plain, chain));
            *bytes = bytes_of(sealed);
            chain = xor(plain, sealed);
        }
    }

    /// Like [`Self::seal`], for several ranges of `data`, each starting with `iv`.
    pub(crate) fn seal_all(&self, iv: Block, data: &mut [u8], stretches: &[Range<usize>]) {
        let (groups, rest) = stretches.as_chunks::<LANES>();
        for group in groups {
            let blocks = group.iter().map(|stretch| stretch.len() / BLOCK);
            let common = blocks.min().unwrap_or(0);
            let mut chains = [iv; LANES];
            let mut places = group.each_ref().map(|stretch| stretch.start);
            for _ in 0..common {
                let plain = places.map(|place| load(data, place));
                let mut inputs = plain;
                for (input, chain) in inputs.iter_mut().zip(chains) {
                    *input = xor(*input, chain);
                }
                let sealed = self.encrypt_lanes(inputs);
                for (lane, place) in places.iter_mut().enumerate() {
                    store(data, *place, sealed[lane]);
                    chains[lane] = xor(plain[lane], sealed[lane]);
                    *place += BLOCK;
                }
            }
            for ((stretch, place), chain) in group.iter().zip(places).zip(chains) {
                if let Some(longer) = data.get_mut(place..stretch.end) {
                    self.seal(chain, longer);
                }
            }
        }
        for stretch in rest {
            if let Some(body) = data.get_mut(stretch.clone()) {
                self.seal(iv, body);
            }
        }
    }

    /// Reverses [`Self::seal`].
    pub(crate) fn open(&self, iv: Block, data: &mut [u8]) {
        let mut chain = iv;
        let (groups, rest) = data.as_chunks_mut().0.as_chunks_mut::<LANES>();
        for group in groups {
            let sealed = group.map(|bytes: [u8; BLOCK]| block_of(&bytes));
            let mut opened = self.decrypt_lanes(sealed);
            for (opened, sealed) in opened.iter_mut().zip(sealed) {
                *opened = xor(*opened, chain);
                chain = xor(*opened, sealed);
            }
            *group = opened.map(bytes_of);
        }
        for bytes in rest {
            let sealed = block_of(bytes);
            let opened = xor(self.decrypt(sealed), chain);
            *bytes = bytes_of(opened);
            chain = xor(opened, sealed);
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    fn one(key: [u8; 8], plain: [u8; 8], sealed: [u8; 8]) {
        let schedule = Schedule::new(&key);
        assert_eq!(bytes_of(schedule.encrypt(block_of(&plain))), sealed);
        assert_eq!(bytes_of(schedule.decrypt(block_of(&sealed))), plain);
    }

    #[test]
    fn blocks_have_their_known_answers() {
        one([0; 8], [0; 8], hex!("0e0900c73ef7ed41"));
        one(
            hex!("114477aadd003366"),
            hex!("123456789abcdef0"),
            hex!("d8ed787477ec0680"),
        );
    }

    #[test]
    fn subkeys_have_their_known_answers() {
        let schedule = Schedule::new(&hex!("114477aadd003366"));
        assert_eq!(
            schedule.0[..4],
            [0x5dc0_0cb3, 0x3bab_b801, 0x4227_7577, 0x5988_44ee]
        );
        let schedule = Schedule::new(&hex!("58e0c8d910d6a7a2"));
        assert_eq!(schedule.0[0], 0xc11a_e9d1);
        assert_eq!(schedule.0[15], 0x08d7_4e8a);
    }

    #[test]
    fn the_chained_mode_has_its_known_answers() {
        let text = b"The quick brown fox jumps over the lazy dogs.\0\0\0";
        let cases = [
            (
                hex!("f0e1d2c3b4a59687"),
                hex!("fedcba9876543210"),
                hex!(
                    "00f00e1175e62382eeac98624451e484c359d8aa6460aef7d2d9137972a34503
                     23b562d70cf527d1f8913cac442292ef"
                ),
            ),
            (
                hex!("fedcba9876543210"),
                hex!("f0e1d2c3b4a59687"),
                hex!(
                    "ca90f59dcbd4d23c01887f3e316e629dd8e057a3063a42582a28fe72522fdde0
                     1989091c2a8e8c94fcc768e488aade0f"
                ),
            ),
        ];
        for (key, iv, sealed) in cases {
            let schedule = Schedule::new(&key);
            let mut data = *text;
            schedule.seal(block_of(&iv), &mut data);
            assert_eq!(data, sealed);
            schedule.open(block_of(&iv), &mut data);
            assert_eq!(&data, text);
        }
    }

    #[test]
    fn several_stretches_are_sealed_as_each_alone() {
        let schedule = Schedule::new(&hex!("58e0c8d910d6a7a2"));
        for count in 0..14 {
            let mut data: Vec<u8> = (0..4000).map(|at| (at * 7 + 1) as u8).collect();
            let mut begin = 3;
            let stretches: Vec<_> = (0..count)
                .map(|n| {
                    let stretch = begin..begin + 8 * (n * 5 % 13);
                    begin = stretch.end + 28;
                    stretch
                })
                .collect();
            let mut expected = data.clone();
            for stretch in &stretches {
                schedule.seal([3, 4], &mut expected[stretch.clone()]);
            }
            schedule.seal_all([3, 4], &mut data, &stretches);
            assert_eq!(data, expected, "{count}");
        }
    }

    #[test]
    fn every_length_opens_again() {
        let schedule = Schedule::new(&hex!("58e0c8d910d6a7a2"));
        for blocks in 0..40 {
            let plain: Vec<u8> = (0..blocks * 8).map(|at| (at * 7 + 1) as u8).collect();
            let mut data = plain.clone();
            schedule.seal([1, 2], &mut data);
            assert!(blocks == 0 || data != plain);
            schedule.open([1, 2], &mut data);
            assert_eq!(data, plain);
        }
    }
}
