//! Keys of regions that were deregistered lately: a peer that uses one was told of it, and has not
//! guessed (ruling 15).
//!
//! A ring of [`RECENT_KEYS_MAX`] entries, the oldest of which makes room. It is searched linearly,
//! and only for a key that no region has: about a microsecond if it is full.

use crate::id::EndpointId;
use crate::limits::RECENT_KEYS_MAX;

use super::auth::Through;
use super::table::{Claim, Demands};

#[derive(Default)]
pub(super) struct RecentKeys {
    keys: Vec<u64>,
    /// The peers that each region was there for, in the same order; `None`: all.
    audiences: Vec<Option<Box<Audience>>>,
    /// The entry that is overwritten next, once the ring is full.
    oldest: usize,
}

/// The peers that a region was there for.
pub(super) struct Audience {
    /// What they have to prove, if anything.
    pub(super) demands: Option<Box<Demands>>,
    /// The endpoints they come through; `None`: all.
    pub(super) endpoints: Option<Box<[EndpointId]>>,
}

impl Audience {
    fn includes(&self, claim: &Claim, through: &Through<'_>) -> bool {
        let is_bound = |endpoints: &[EndpointId]| endpoints.contains(&through.endpoint);
        self.demands
            .as_ref()
            .is_none_or(|it| it.are_met(claim, through))
            && self.endpoints.as_deref().is_none_or(is_bound)
    }
}

impl RecentKeys {
    #[inline]
    pub(super) fn push(&mut self, key: u64, audience: Audience) {
        let is_all = audience.demands.is_none() && audience.endpoints.is_none();
        let audience = (!is_all).then(|| Box::new(audience));
        if self.keys.len() < RECENT_KEYS_MAX {
            self.keys.push(key);
            self.audiences.push(audience);
            return;
        }
        self.keys[self.oldest] = key;
        self.audiences[self.oldest] = audience;
        self.oldest = (self.oldest + 1) % RECENT_KEYS_MAX;
    }

    /// True if a region had the key of this claim lately, and was there for this peer.
    #[cold]
    pub(super) fn contains(&self, claim: &Claim, through: &Through<'_>) -> bool {
        (self.keys.iter().zip(&self.audiences))
            .filter(|(key, _)| **key == claim.key)
            .any(|(_, audience)| {
                audience
                    .as_ref()
                    .is_none_or(|it| it.includes(claim, through))
            })
    }
}
