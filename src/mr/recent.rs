//! Keys of regions that were deregistered lately: a peer that uses such a key was given it earlier,
//! and has not guessed it (ruling 15).
//!
//! A queue of [`RECENT_KEYS_MAX`] places. A key takes one place, and one more for each endpoint
//! that its region was bound to; the oldest keys are evicted. The queue is searched linearly, and
//! only for a key that no region has, which takes some microseconds if it is full.
//!
//! Invariant: `taken` is the number of places of all entries, and at most [`RECENT_KEYS_MAX`].

use std::collections::VecDeque;

use crate::id::EndpointId;
use crate::limits::RECENT_KEYS_MAX;

use super::auth::AccessContext;
use super::table::{AccessRequest, RequiredProof};

#[derive(Default)]
pub(super) struct RecentKeys {
    /// Oldest first. `None`: all peers were permitted.
    keys: VecDeque<(u64, Option<Box<Audience>>)>,
    taken: usize,
}

/// The places that a key with this audience takes.
fn places_of(audience: Option<&Audience>) -> usize {
    let endpoints = audience.and_then(|it| it.endpoints.as_deref());
    1 + endpoints.map_or(0, <[EndpointId]>::len)
}

/// The peers that were permitted to access a region.
pub(super) struct Audience {
    /// The proof that these peers have to show, if any.
    pub(super) proof: Option<Box<RequiredProof>>,
    /// The endpoints through which they may access the region; `None`: all.
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
    /// Remembers a key, unless its region was bound to more endpoints than there are places.
    pub(super) fn push(&mut self, key: u64, audience: Audience) {
        let is_all = audience.proof.is_none() && audience.endpoints.is_none();
        let audience = (!is_all).then(|| Box::new(audience));
        let places = places_of(audience.as_deref());
        if places > RECENT_KEYS_MAX {
            return;
        }
        while self.taken + places > RECENT_KEYS_MAX {
            let Some((_, oldest)) = self.keys.pop_front() else {
                break;
            };
            self.taken -= places_of(oldest.as_deref());
        }
        self.taken += places;
        self.keys.push_back((key, audience));
    }

    /// True if a region that this peer was permitted to access had this key lately.
    #[cold]
    pub(super) fn contains(&self, request: &AccessRequest, context: &AccessContext<'_>) -> bool {
        let same = self.keys.iter().filter(|(key, _)| *key == request.key);
        same.map(|(_, audience)| audience.as_ref())
            .any(|audience| audience.is_none_or(|it| it.includes(request, context)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::Access;

    fn bound_to(endpoints: &[EndpointId]) -> Audience {
        Audience {
            proof: None,
            endpoints: (!endpoints.is_empty()).then(|| endpoints.into()),
        }
    }

    fn is_known(recent: &RecentKeys, key: u64, endpoint: EndpointId) -> bool {
        let request = AccessRequest {
            key,
            tag: None,
            addr: 0,
            len: 1,
            need: Access::REMOTE_READ,
            persistent: false,
        };
        recent.contains(&request, &endpoint.into())
    }

    /// Whatever regions come and go, what a domain remembers of them is bounded: the oldest are
    /// forgotten first, and a list of endpoints counts by its length.
    #[test]
    fn what_is_remembered_of_deregistered_regions_is_bounded() {
        let (one, other) = (EndpointId::next(), EndpointId::next());
        let mut recent = RecentKeys::default();
        let all = 0..RECENT_KEYS_MAX as u64;
        all.for_each(|key| recent.push(key, bound_to(&[])));
        assert!(is_known(&recent, 0, one) && is_known(&recent, RECENT_KEYS_MAX as u64 - 1, one));
        recent.push(1 << 32, bound_to(&[one, one]));
        assert!(!is_known(&recent, 2, one) && is_known(&recent, 3, one));
        assert!(is_known(&recent, 1 << 32, one) && !is_known(&recent, 1 << 32, other));
        let half = vec![other; RECENT_KEYS_MAX / 2];
        for key in 1..=9 {
            recent.push(key << 40, bound_to(&half));
            let places = recent.keys.iter().map(|it| places_of(it.1.as_deref()));
            assert_eq!(places.sum::<usize>(), recent.taken);
            assert!(recent.taken <= RECENT_KEYS_MAX);
        }
        assert!(is_known(&recent, 9 << 40, other) && !is_known(&recent, 8 << 40, other));
        // A key that does not fit takes no other key's place.
        let too_many = vec![other; RECENT_KEYS_MAX];
        recent.push(7, bound_to(&too_many));
        assert!(!is_known(&recent, 7, other) && is_known(&recent, 9 << 40, other));
    }
}
