//! Who chooses the keys of regions, and how (ruling 23).

use zeroize::{Zeroize, Zeroizing};

use crate::error::{Error, ErrorKind, Result};
use crate::random::RandomSource;
use crate::sync::forks;

/// What takes the place of a key where there is none (`FI_KEY_NOTAVAIL` of `fi_mr(3)`): the
/// registration has not ended, or the region is reached by its raw key. No key has this value.
pub const KEY_NOT_AVAILABLE: u64 = u64::MAX;

/// Who chooses keys in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPolicy {
    /// The application may ask for keys of this many bytes, 1 to 8 (`mr_key_size`); the library
    /// chooses where it does not.
    Application { key_size: usize },
    /// The library does (`FI_MR_PROV_KEY`).
    Provider,
}

impl KeyPolicy {
    /// The largest key there may be.
    #[inline]
    fn key_max(self) -> u64 {
        match self {
            // A size of zero would leave no key at all; it counts as one.
            KeyPolicy::Application { key_size } if key_size < 8 => (1 << (8 * key_size.max(1))) - 1,
            _ => KEY_NOT_AVAILABLE - 1,
        }
    }

    /// Judges a key the application asks for; whether it is taken is the table's to say.
    pub(crate) fn check(self, requested: u64) -> Result<()> {
        let rejected = |message| Err(Error::new(ErrorKind::KeyRejected, message));
        if self == KeyPolicy::Provider {
            return rejected("this domain chooses keys itself (FI_MR_PROV_KEY)");
        }
        if requested > self.key_max() {
            return rejected("requested_key is outside of the range of keys");
        }
        Ok(())
    }

    /// A key that `is_taken` denies, of random bits that no peer can guess. Never zero, which C
    /// programs use for "no key".
    pub(crate) fn choose(
        self,
        source: &RandomSource,
        is_taken: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        self.choose_from(&mut RandomBits::new(source.clone()), is_taken)
    }

    /// As [`KeyPolicy::choose`], of bits that have been drawn ahead.
    #[inline]
    pub(super) fn choose_from(
        self,
        random: &mut RandomBits,
        is_taken: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        let key_max = self.key_max();
        // With 8 bytes the first draw all but always hits; a small space may be nearly full, so
        // after some draws every key above the last is tried in turn.
        let mut drawn = 0;
        for _ in 0..64 {
            drawn = random.draw()?;
            if key_max < KEY_NOT_AVAILABLE - 1 {
                drawn &= key_max;
            }
            if drawn != 0 && drawn <= key_max && !is_taken(drawn) {
                return Ok(drawn);
            }
        }
        let above = drawn.clamp(1, key_max)..=key_max;
        let found = above.chain(1..drawn).find(|key| !is_taken(*key));
        found.ok_or_else(|| Error::new(ErrorKind::LimitReached, "every key is in use"))
    }
}

/// What stands before the seed, so that no other use of BLAKE3 gives the same bits.
const PURPOSE: &[u8] = b"tokio-fabric memory region keys, version 1";

/// Random bits drawn ahead: a system call for each key would cost more than the registration. They
/// are a keyed BLAKE3 stream that begins with a seed of the operating system's random source. Each
/// refill takes the next seed from the stream and forgets the one before, and now and then takes
/// more from the system; so who learns the state learns no key that was given before. Bits are
/// given once and not kept. A forked child begins anew, so that it gives no key that its parent
/// gives too.
pub(super) struct RandomBits {
    source: RandomSource,
    /// Whose they are.
    forks: u32,
    seed: [u8; 32],
    refills: u32,
    ahead: [u64; RandomBits::AHEAD],
    left: usize,
}

impl RandomBits {
    /// With the seed, a whole number of BLAKE3's blocks.
    const AHEAD: usize = 124;
    /// Refills from one look at the system's source to the next.
    const RESEED: u32 = 64;

    pub(super) fn new(source: RandomSource) -> Self {
        RandomBits {
            source,
            forks: forks(),
            seed: [0; 32],
            refills: 0,
            ahead: [0; RandomBits::AHEAD],
            left: 0,
        }
    }

    pub(super) fn is_seeded(&self) -> bool {
        self.source.is_seeded()
    }

    #[inline]
    fn draw(&mut self) -> Result<u64> {
        if self.forks != forks() {
            *self = RandomBits::new(self.source.clone());
        }
        if self.left == 0 {
            self.refill()?;
        }
        self.left -= 1;
        Ok(std::mem::take(&mut self.ahead[self.left]))
    }

    #[cold]
    fn refill(&mut self) -> Result<()> {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(PURPOSE);
        if self.refills.is_multiple_of(Self::RESEED) {
            let mut fresh = Zeroizing::new([0; 32]);
            self.source.fill(&mut *fresh, "a key")?;
            hasher.update(&*fresh);
        }
        self.refills = self.refills.wrapping_add(1);
        let mut stream = hasher.finalize_xof();
        stream.fill(&mut self.seed);
        let mut bytes = Zeroizing::new([0; Self::AHEAD * 8]);
        stream.fill(&mut *bytes);
        // Both know the seed that is forgotten here.
        hasher.zeroize();
        stream.zeroize();
        let (words, _) = bytes.as_chunks();
        for (word, bytes) in self.ahead.iter_mut().zip(words) {
            *word = u64::from_ne_bytes(*bytes);
        }
        self.left = Self::AHEAD;
        Ok(())
    }
}

/// A key of 64 random bits that `is_taken` denies.
pub(super) fn draw_key(source: &RandomSource, is_taken: impl Fn(u64) -> bool) -> Result<u64> {
    KeyPolicy::Provider.choose(source, is_taken)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Ruling 23: keys are random: none comes twice, no two sources agree, every bit is as often
    /// set as not; and what has been given is not kept.
    #[test]
    fn drawn_bits_are_random_and_given_once() {
        let (mut one, mut other) = (
            RandomBits::new(RandomSource::default()),
            RandomBits::new(RandomSource::default()),
        );
        let count = RandomBits::AHEAD * (2 * RandomBits::RESEED as usize + 1);
        let mut seen = HashSet::new();
        let mut set = [0usize; 64];
        for _ in 0..count {
            for random in [&mut one, &mut other] {
                let seed = random.seed;
                let bits = random.draw().unwrap();
                assert!(seen.insert(bits));
                assert!(!random.ahead.contains(&bits));
                // The seed is replaced with every refill.
                assert_eq!(random.left + 1 == RandomBits::AHEAD, random.seed != seed);
                for (at, set) in set.iter_mut().enumerate() {
                    *set += (bits >> at & 1) as usize;
                }
            }
        }
        // Ten standard deviations.
        let off = 10.0 * (2.0 * count as f64).sqrt() / 2.0;
        let is_even = |set: &usize| (*set as f64 - count as f64).abs() < off;
        assert!(set.iter().all(is_even), "{set:?}");
    }
}
