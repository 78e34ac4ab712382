//! Who chooses the keys of regions, and how (ruling 23).

use crate::error::{Error, ErrorKind, Result};

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

    /// A key that `is_taken` denies: from the operating system's random source, so that no peer can
    /// guess it. Never zero, which C programs use for "no key".
    pub(crate) fn choose(self, is_taken: impl Fn(u64) -> bool) -> Result<u64> {
        self.choose_from(&mut RandomBits::default(), is_taken)
    }

    /// As [`KeyPolicy::choose`], of bits that have been drawn ahead.
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

/// Bits of the operating system's random source, drawn ahead: a system call for each key would be
/// half the cost of a registration. Each is given once and not kept.
#[derive(Default)]
pub(super) struct RandomBits {
    ahead: [u64; RandomBits::AHEAD],
    left: usize,
}

impl RandomBits {
    const AHEAD: usize = 32;

    fn draw(&mut self) -> Result<u64> {
        if self.left == 0 {
            let mut bytes = [0; RandomBits::AHEAD * 8];
            getrandom::fill(&mut bytes).map_err(|error| {
                Error::new(
                    ErrorKind::System,
                    format!("random bytes for a key: {error}"),
                )
            })?;
            let (words, _) = bytes.as_chunks();
            for (word, bytes) in self.ahead.iter_mut().zip(words) {
                *word = u64::from_ne_bytes(*bytes);
            }
            self.left = RandomBits::AHEAD;
        }
        self.left -= 1;
        Ok(std::mem::take(&mut self.ahead[self.left]))
    }
}

/// A key of 64 random bits that `is_taken` denies.
pub(super) fn draw_key(is_taken: impl Fn(u64) -> bool) -> Result<u64> {
    KeyPolicy::Provider.choose(is_taken)
}
