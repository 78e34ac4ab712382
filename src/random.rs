//! The source of random numbers: the operating system. Only the test kit (feature `test-util`) can
//! replace the system by a seed, so that a test repeats.

#[cfg(any(test, feature = "test-util"))]
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// A source of random numbers, for keys, incarnations, proofs and pauses. Clones draw from the same
/// source.
#[derive(Clone, Default)]
pub(crate) struct RandomSource {
    #[cfg(any(test, feature = "test-util"))]
    seeded: Option<Arc<Mutex<SplitMix>>>,
}

impl RandomSource {
    /// Creates a source that repeats with this seed.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn seeded(seed: u64) -> Self {
        RandomSource {
            seeded: Some(Arc::new(Mutex::new(SplitMix(seed)))),
        }
    }

    /// Returns whether the numbers come from a seed. With a seed, work that otherwise runs on other
    /// threads runs in a task, since a seed does not determine the order in which threads finish.
    pub(crate) fn is_seeded(&self) -> bool {
        #[cfg(any(test, feature = "test-util"))]
        return self.seeded.is_some();
        #[cfg(not(any(test, feature = "test-util")))]
        false
    }

    /// Fills `bytes` with random numbers. The error names the `purpose`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the operating system returns none.
    pub(crate) fn fill(&self, bytes: &mut [u8], purpose: &str) -> Result<()> {
        #[cfg(any(test, feature = "test-util"))]
        if let Some(seeded) = &self.seeded {
            let mut seeded = seeded.lock().unwrap_or_else(PoisonError::into_inner);
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&seeded.next().to_le_bytes()[..chunk.len()]);
            }
            return Ok(());
        }
        getrandom::fill(bytes).map_err(|error| {
            let message = format!("the system gave no random bytes for {purpose}: {error}");
            Error::new(ErrorKind::System, message)
        })
    }

    /// Returns a random number. The error names the `purpose`.
    ///
    /// # Errors
    /// As [`RandomSource::fill`].
    pub(crate) fn number(&self, purpose: &str) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes, purpose)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl std::fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.is_seeded() {
            true => "Seeded",
            false => "System",
        })
    }
}

/// The SplitMix64 generator: small, and good enough for tests.
#[cfg(any(test, feature = "test-util"))]
pub(crate) struct SplitMix(pub(crate) u64);

#[cfg(any(test, feature = "test-util"))]
impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, or `low` if the range is empty. The bias of the
    /// remainder is far below what a test could notice.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(count) => low + self.next() % count,
            None => self.next(),
        }
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // The upper 53 bits make a float of at least 0 and less than 1.
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs for seed 0 in its author's reference program.
        let mut random = SplitMix(0);
        assert_eq!(random.next(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.next(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn draws_stay_in_range() {
        let mut random = SplitMix(7);
        for _ in 0..1000 {
            assert!((3..=9).contains(&random.within(3, 9)));
            assert!(!random.chance(0.0));
            assert!(random.chance(1.0));
        }
        assert_eq!(random.within(5, 5), 5);
        assert_eq!(random.within(5, 2), 5);
        random.within(0, u64::MAX);
    }

    /// Without a seed, keys come from the operating system.
    #[test]
    fn a_seed_repeats_and_the_system_does_not() {
        let draw =
            |source: RandomSource| (0..3).map(|_| source.number("a test").unwrap()).collect();
        let seeded = |seed| -> Vec<u64> { draw(RandomSource::seeded(seed)) };
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
        let system = || -> Vec<u64> { draw(RandomSource::default()) };
        assert_ne!(system(), system());
        assert!(!RandomSource::default().is_seeded());
    }
}
