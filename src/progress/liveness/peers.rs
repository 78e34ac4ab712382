//! Records when each peer domain was last heard, on any connection. One process drives all
//! connections of a domain, so idle connections to it share the answer to one probe.
//!
//! Connections belong to one domain if its host, its incarnation (HELLO) and the authorization key
//! that both sides have proven are the same. The incarnation is only what the peer claims, so this
//! is a hint, and [`SHARED_INTERVALS_MAX`](crate::limits::SHARED_INTERVALS_MAX) bounds the damage
//! that a false one can do.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::limits::STALE_ENTRIES_MIN;
use crate::mr::AuthSecret;

/// One incarnation of a domain, at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerDomain {
    pub(super) host: IpAddr,
    pub(super) incarnation: u64,
    pub(super) auth_key: Option<AuthSecret>,
}

impl Hash for PeerDomain {
    /// Omits the key: few domains differ in the key alone, since they would claim the same
    /// incarnation.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.host, self.incarnation).hash(state);
    }
}

/// The knowledge of other connections about a peer domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStatus {
    /// The domain was heard lately.
    Alive,
    /// Another connection has probed the domain, and may get the answer at any moment.
    ProbeInFlight,
    Unknown,
}

#[derive(Debug)]
struct Entry {
    heard: Instant,
    stale_at: Instant,
    /// Time of the first probe since it was heard. A second probe does not change it, so that no
    /// connection waits twice.
    probed: Option<Instant>,
}

/// The peer domains that a driver's connections have heard.
#[derive(Debug, Default)]
pub(in crate::progress) struct PeerLiveness {
    domains: HashMap<PeerDomain, Entry>,
    kept_max: usize,
}

impl PeerLiveness {
    /// Records that bytes came from the domain `at` this time or later, which count for `fresh`.
    /// Stale entries are dropped when they make up half of all, which costs a constant per call on
    /// average.
    pub(super) fn heard(&mut self, domain: PeerDomain, at: Instant, fresh: Duration) {
        if self.domains.len() > self.kept_max {
            self.domains.retain(|_, entry| entry.stale_at > at);
            self.kept_max = STALE_ENTRIES_MIN.max(2 * self.domains.len());
        }
        let stale_at = at + fresh;
        let entry = self.domains.entry(domain).or_insert(Entry {
            heard: at,
            stale_at,
            probed: None,
        });
        if entry.heard <= at {
            (entry.heard, entry.stale_at) = (at, entry.stale_at.max(stale_at));
            entry.probed = None;
        }
    }

    /// Records that a connection to the domain probes it now.
    pub(super) fn probed(&mut self, domain: &PeerDomain, now: Instant) {
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.probed.get_or_insert(now);
        }
    }

    /// Returns whether the domain was heard within the last `fresh`, or probed within
    /// `answer_within`.
    pub(super) fn status(
        &self,
        domain: &PeerDomain,
        now: Instant,
        fresh: Duration,
        answer_within: Duration,
    ) -> PeerStatus {
        let is_within = |at: Instant, time| now.saturating_duration_since(at) < time;
        match self.domains.get(domain) {
            Some(entry) if is_within(entry.heard, fresh) => PeerStatus::Alive,
            Some(Entry {
                probed: Some(at), ..
            }) if is_within(*at, answer_within) => PeerStatus::ProbeInFlight,
            _ => PeerStatus::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FRESH: Duration = Duration::from_secs(30);
    const ANSWER: Duration = Duration::from_secs(2);

    fn domain(incarnation: u64, key: Option<&[u8]>) -> PeerDomain {
        PeerDomain {
            host: Ipv4Addr::LOCALHOST.into(),
            incarnation,
            auth_key: key.map(AuthSecret::of),
        }
    }

    fn status(peers: &PeerLiveness, domain: &PeerDomain, at: Instant) -> PeerStatus {
        peers.status(domain, at, FRESH, ANSWER)
    }

    /// docs/extension.md: "for half an idle interval, bytes received on one count as received on
    /// all".
    #[test]
    fn what_was_heard_counts_while_it_is_fresh() {
        let (mut peers, begin) = (PeerLiveness::default(), Instant::now());
        let one = domain(1, None);
        assert_eq!(status(&peers, &one, begin), PeerStatus::Unknown);
        peers.heard(one.clone(), begin + FRESH, FRESH);
        // An older time on another connection changes nothing.
        peers.heard(one.clone(), begin, FRESH);
        let stale = begin + 2 * FRESH;
        let before = stale - Duration::from_nanos(1);
        assert_eq!(status(&peers, &one, before), PeerStatus::Alive);
        assert_eq!(status(&peers, &one, stale), PeerStatus::Unknown);
    }

    /// Other connections wait for the answer to one probe too, and only once: if there is none,
    /// each probes for itself, and no later probe makes another one wait again.
    #[test]
    fn the_answer_to_a_probe_is_waited_for_once() {
        let (mut peers, begin) = (PeerLiveness::default(), Instant::now());
        let one = domain(1, None);
        peers.heard(one.clone(), begin, FRESH);
        let probed = begin + FRESH;
        peers.probed(&one, probed);
        assert_eq!(status(&peers, &one, probed), PeerStatus::ProbeInFlight);
        peers.probed(&one, probed + ANSWER / 2);
        let late = probed + ANSWER;
        assert_eq!(status(&peers, &one, late), PeerStatus::Unknown);
        peers.heard(one.clone(), late, FRESH);
        assert_eq!(status(&peers, &one, late), PeerStatus::Alive);
        peers.probed(&one, late + FRESH);
        assert_eq!(
            status(&peers, &one, late + FRESH),
            PeerStatus::ProbeInFlight
        );
    }

    /// docs/extension.md: "with the same authorization key or none".
    #[test]
    fn connections_with_another_key_share_nothing() {
        let (mut peers, begin) = (PeerLiveness::default(), Instant::now());
        let ours = domain(1, Some(b"ours"));
        peers.heard(ours.clone(), begin, FRESH);
        assert_eq!(status(&peers, &ours, begin), PeerStatus::Alive);
        for key in [None, Some(&b"else"[..])] {
            assert_eq!(status(&peers, &domain(1, key), begin), PeerStatus::Unknown);
        }
    }

    /// Peers come and go: their entries do not accumulate.
    #[test]
    fn those_that_have_gone_are_forgotten() {
        let (mut peers, begin) = (PeerLiveness::default(), Instant::now());
        for number in 0..10_000 {
            let at = begin + Duration::from_secs(1) * number;
            peers.heard(domain(number.into(), None), at, FRESH);
        }
        let kept = peers.domains.len();
        assert!(kept <= 2 * STALE_ENTRIES_MIN, "{kept}");
    }
}
