//! Inflicts damage on a file: missing, cut off, bits flipped, a sector of zeros. A seed chooses the
//! places.

use cellar_volume::disk::{Disk, SimDisk};

/// Number of lengths to which a file is cut.
const CUTS: u64 = 20;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    Missing,
    Cut(u64),
    /// Bits flipped: offset of the byte, and the mask of bits.
    Bits(u64, u8),
    /// A sector of zeros.
    Sector(u64),
}

impl Damage {
    pub(crate) fn inflict(self, disk: &SimDisk, name: &str) {
        let file = || disk.open(name).unwrap();
        match self {
            Damage::Missing => disk.remove(name).unwrap(),
            Damage::Cut(length) => file().set_length(length).unwrap(),
            Damage::Bits(at, bits) => {
                for bit in (0..8).filter(|bit| bits >> bit & 1 == 1) {
                    disk.flip_bit(name, at, bit);
                }
            }
            Damage::Sector(at) => file().write_at(&[0; 512], at).unwrap(),
        }
    }
}

/// Numbers from a seed, which is printed.
pub(crate) struct Random(u64);

impl Random {
    /// `CELLAR_SEED=n` runs another seed.
    pub(crate) fn from_environment() -> Self {
        let seed = std::env::var("CELLAR_SEED").ok();
        let seed: u64 = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("CELLAR_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// An offset in a file; three times out of four in a sector that is not all zeros.
fn place(contents: &[u8], random: &mut Random) -> u64 {
    let blocks = contents.chunks(512).enumerate();
    let used: Vec<u64> = blocks
        .filter(|(_, block)| block.iter().any(|&byte| byte != 0))
        .map(|(n, _)| n as u64 * 512)
        .collect();
    if used.is_empty() || random.below(4) == 0 {
        return random.below(contents.len() as u64);
    }
    let block = used[random.below(used.len() as u64) as usize];
    (block + random.below(512)).min(contents.len() as u64 - 1)
}

fn is_full() -> bool {
    std::env::var("CELLAR_DAMAGE").is_ok_and(|form| form == "full")
}

/// The number of single bits of a file that are flipped, each in a case of its own.
pub(crate) fn bits() -> usize {
    if is_full() { 2000 } else { 24 }
}

/// The cases of damage for a file: few in an ordinary run of the tests, many with
/// `CELLAR_DAMAGE=full`.
pub(crate) fn damages(contents: &[u8], random: &mut Random) -> Vec<Damage> {
    let more = if is_full() { 500 } else { 8 };
    let length = contents.len() as u64;
    let mut damages = vec![Damage::Missing];
    damages.extend((0..=CUTS).map(|cut| Damage::Cut(length * cut / (CUTS + 1))));
    if length > 0 {
        for _ in 0..bits() {
            let at = place(contents, random);
            damages.push(Damage::Bits(at, 1 << random.below(8)));
        }
        for _ in 0..more {
            let at = place(contents, random);
            damages.push(Damage::Bits(at, 0x41));
            damages.push(Damage::Sector(at & !511));
        }
    }
    damages
}
