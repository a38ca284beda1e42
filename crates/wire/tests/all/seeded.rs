//! Random numbers from a seed. The seed is printed, so that a failure can be repeated:
//! `CELLAR_SEED=... cargo test -p cellar-wire`.

/// The seed of this run: `CELLAR_SEED`, or a fixed one for repeatable results.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("CELLAR_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(0x0a_f5_ce_11);
    println!("CELLAR_SEED={seed}");
    seed
}

/// A small generator (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}
