//! The choice of keys for regions (ruling 23).

use crate::buf::MappedBuffer;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{KEY_DRAWS_MAX, KEY_POOL_LEN};
use crate::random::RandomSource;

/// The value in place of a key if there is none (`FI_KEY_NOTAVAIL` of `fi_mr(3)`): the registration
/// has not completed, or the region is addressed by its raw key. No key has this value.
pub const KEY_NOT_AVAILABLE: u64 = u64::MAX;

/// The side that chooses keys in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPolicy {
    /// The application may ask for keys of this many bytes, 1 to 8 (`mr_key_size`); otherwise the
    /// library chooses.
    Application { key_size: usize },
    /// The library chooses every key (`FI_MR_PROV_KEY`).
    Provider,
}

impl KeyPolicy {
    /// The largest valid key.
    #[inline]
    fn key_max(self) -> u64 {
        match self {
            // A size of zero would leave no key at all; it counts as one.
            KeyPolicy::Application { key_size } if key_size < 8 => (1 << (8 * key_size.max(1))) - 1,
            _ => KEY_NOT_AVAILABLE - 1,
        }
    }

    /// Checks a key that the application requests; the table checks whether it is in use.
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

    /// Chooses a free key (`is_taken` returns false) of random bits, so that no peer can guess it.
    /// Never zero, which C programs use for "no key".
    pub(super) fn choose(
        self,
        mut draw: impl FnMut() -> Result<u64>,
        is_taken: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        let key_max = self.key_max();
        // With 8 bytes the first drawn key is almost always free. A small key space may be nearly
        // full, so after some draws the keys above the last drawn one are tried in turn.
        let mut drawn = 0;
        for _ in 0..KEY_DRAWS_MAX {
            drawn = draw()?;
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

/// Random keys, fetched several at a time from the operating system's random source: a system call
/// for each key takes longer than a registration. A key is zeroed when it is given out.
///
/// The kernel zeroes the pool in a forked child, so that the child finds it empty and fetches keys
/// of its own.
pub(super) struct KeyPool {
    source: RandomSource,
    /// The first word holds the number of keys left, in its first byte; the other words are the
    /// keys. `None` where the kernel zeroes no memory on fork (before Linux 4.14): each key is a
    /// system call then.
    words: Option<MappedBuffer>,
}

impl KeyPool {
    pub(super) fn new(source: RandomSource) -> Self {
        KeyPool {
            source,
            words: MappedBuffer::zeroed_on_fork(8 * (1 + KEY_POOL_LEN)).ok(),
        }
    }

    pub(super) fn is_seeded(&self) -> bool {
        self.source.is_seeded()
    }

    /// Takes a key out of the pool, and refills the pool first if it is empty.
    pub(super) fn draw(&mut self) -> Result<u64> {
        let Some(words) = &mut self.words else {
            return self.source.number("a key");
        };
        if words[0] == 0 {
            self.source.fill(&mut words[8..], "a key")?;
            words[0] = KEY_POOL_LEN as u8;
        }
        let at = 8 * usize::from(words[0]);
        words[0] -= 1;
        let mut key = [0; 8];
        key.swap_with_slice(&mut words[at..at + 8]);
        Ok(u64::from_le_bytes(key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Ruling 23: keys are random: none comes twice, no two pools agree, every bit is as often set
    /// as not; and what has been given is not kept.
    #[test]
    fn drawn_keys_are_random_and_given_once() {
        let pool = || KeyPool::new(RandomSource::default());
        let mut pools = [pool(), pool()];
        let count = 250 * KEY_POOL_LEN;
        let mut seen = HashSet::new();
        let mut set = [0usize; 64];
        for _ in 0..count {
            for pool in &mut pools {
                let key = pool.draw().unwrap();
                assert!(seen.insert(key));
                let (words, _) = pool.words.as_ref().unwrap().as_chunks::<8>();
                assert!(!words.contains(&key.to_le_bytes()));
                for (at, set) in set.iter_mut().enumerate() {
                    *set += (key >> at & 1) as usize;
                }
            }
        }
        // Ten standard deviations.
        let off = 10.0 * (2.0 * count as f64).sqrt() / 2.0;
        let is_even = |set: &usize| (*set as f64 - count as f64).abs() < off;
        assert!(set.iter().all(is_even), "{set:?}");
    }

    /// A kernel that zeroes no memory on fork costs a system call per key, and nothing else.
    #[test]
    fn keys_are_drawn_one_by_one_where_no_pool_is_to_be_had() {
        let source = RandomSource::seeded(7);
        let mut pool = KeyPool {
            source: source.clone(),
            words: None,
        };
        assert_ne!(pool.draw().unwrap(), pool.draw().unwrap());
    }
}
