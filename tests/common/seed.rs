//! Seeds of campaigns: printed, and replayed by `TOKIO_FABRIC_SEED`.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The seed of this run: `TOKIO_FABRIC_SEED`, or a fresh one. Printed either way, so that a failure
/// is replayed in one line.
pub fn seed(of: &str) -> u64 {
    let seed = match std::env::var("TOKIO_FABRIC_SEED") {
        Ok(text) => text.parse().expect("TOKIO_FABRIC_SEED is a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("{of}: TOKIO_FABRIC_SEED={seed}");
    seed
}

/// SplitMix64: small, seeded, good enough to choose what a test does next.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number from `low` up to, not with, `high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
