//! Keys of regions that were deregistered lately: a peer that uses one was given it before, and has
//! not guessed (ruling 15).
//!
//! A queue of [`RECENT_KEYS_MAX`] entries, the oldest of which makes room. It is searched linearly,
//! and only for a key that no region has: some microseconds if it is full.

use std::collections::VecDeque;

use crate::id::EndpointId;
use crate::limits::RECENT_KEYS_MAX;

use super::auth::AccessContext;
use super::table::{AccessRequest, RequiredProof};

#[derive(Default)]
pub(super) struct RecentKeys {
    /// Oldest first. `None`: all peers were permitted.
    keys: VecDeque<(u64, Option<Box<Audience>>)>,
}

/// The peers that were permitted to access a region.
pub(super) struct Audience {
    /// What they have to prove, if anything.
    pub(super) proof: Option<Box<RequiredProof>>,
    /// The endpoints through which they may; `None`: all.
    pub(super) endpoints: Option<Box<[EndpointId]>>,
}

impl Audience {
    fn includes(&self, request: &AccessRequest, context: &AccessContext<'_>) -> bool {
        let is_bound = |endpoints: &[EndpointId]| endpoints.contains(&context.endpoint);
        self.proof
            .as_ref()
            .is_none_or(|it| it.is_shown_by(request, context))
            && self.endpoints.as_deref().is_none_or(is_bound)
    }
}

impl RecentKeys {
    pub(super) fn push(&mut self, key: u64, audience: Audience) {
        if self.keys.len() == RECENT_KEYS_MAX {
            self.keys.pop_front();
        }
        let is_all = audience.proof.is_none() && audience.endpoints.is_none();
        self.keys
            .push_back((key, (!is_all).then(|| Box::new(audience))));
    }

    /// True if a region that this peer was permitted to access had this key lately.
    #[cold]
    pub(super) fn contains(&self, request: &AccessRequest, context: &AccessContext<'_>) -> bool {
        let same = self.keys.iter().filter(|(key, _)| *key == request.key);
        same.map(|(_, audience)| audience.as_ref())
            .any(|audience| audience.is_none_or(|it| it.includes(request, context)))
    }
}
