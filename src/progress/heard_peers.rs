//! Which domains of peers were heard lately, on whatever connection. What drives one connection of
//! a domain drives them all, so idle connections to one and the same life of a domain ask it one
//! question together, not one each: ten thousand of them cost what one does.
//!
//! Who vouches for whom: connections to one host, of one incarnation (HELLO), with the same
//! authorization key or none. That a connection's own way is still there, its system asks
//! (keepalive); without such a system each connection asks for itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::mr::AuthSecret;

/// Until so many are kept, nobody looks which of them are of no more use.
const KEPT_MIN: usize = 64;

/// One life of a domain, at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerLife {
    pub(super) host: IpAddr,
    pub(super) incarnation: u64,
}

/// What is known of a life without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It gave a sign of life lately.
    Alive,
    /// Another connection has asked, and its answer may be on the way.
    Asked,
    /// Nothing: whoever wants to know has to ask.
    None,
}

#[derive(Debug)]
struct Known {
    /// Connections with this key alone are believed, and vouched for.
    key: Option<AuthSecret>,
    /// Something has come since.
    heard: Option<Instant>,
    asked: Option<Instant>,
    /// Of no more use then.
    until: Instant,
}

/// The lives that a driver's ports have heard or asked.
#[derive(Debug, Default)]
pub(super) struct HeardPeers {
    known: HashMap<PeerLife, Known>,
    kept_max: usize,
}

impl HeardPeers {
    /// Something has come from it since `since`, which counts for `lasts`.
    pub(super) fn heard(
        &mut self,
        life: PeerLife,
        key: Option<&AuthSecret>,
        since: Instant,
        lasts: Duration,
    ) {
        let known = self.entry(life, key, since);
        known.heard = known.heard.max(Some(since));
        known.until = known.until.max(since + lasts);
    }

    /// A question goes out to it now; its answer may take as long as `takes`.
    pub(super) fn asked(
        &mut self,
        life: PeerLife,
        key: Option<&AuthSecret>,
        now: Instant,
        takes: Duration,
    ) {
        let known = self.entry(life, key, now);
        known.asked = Some(now);
        known.until = known.until.max(now + takes);
    }

    /// What a connection with this key may take as known: signs of life no older than `fresh`,
    /// questions no older than `takes`.
    pub(super) fn word(
        &self,
        life: PeerLife,
        key: Option<&AuthSecret>,
        now: Instant,
        fresh: Duration,
        takes: Duration,
    ) -> Word {
        let is_within = |at: Option<Instant>, time: Duration| {
            at.is_some_and(|at| now.saturating_duration_since(at) < time)
        };
        match self.known.get(&life).filter(|it| it.key.as_ref() == key) {
            Some(known) if is_within(known.heard, fresh) => Word::Alive,
            Some(known) if is_within(known.asked, takes) => Word::Asked,
            _ => Word::None,
        }
    }

    fn entry(&mut self, life: PeerLife, key: Option<&AuthSecret>, now: Instant) -> &mut Known {
        if self.known.len() > self.kept_max {
            self.known.retain(|_, known| known.until > now);
            self.kept_max = KEPT_MIN.max(2 * self.known.len());
        }
        let fresh = || Known {
            key: key.cloned(),
            heard: None,
            asked: None,
            until: now,
        };
        let known = self.known.entry(life).or_insert_with(fresh);
        // Whoever has another key may only say that it is the same.
        if known.key.as_ref() != key {
            *known = fresh();
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FRESH: Duration = Duration::from_secs(30);
    const TAKES: Duration = Duration::from_secs(2);

    fn life(incarnation: u64) -> PeerLife {
        PeerLife {
            host: Ipv4Addr::LOCALHOST.into(),
            incarnation,
        }
    }

    fn word(peers: &HeardPeers, key: Option<&AuthSecret>, at: Instant) -> Word {
        peers.word(life(1), key, at, FRESH, TAKES)
    }

    /// docs/extension.md: "a sign of life on one is a sign of life on all": for as long as it is
    /// fresh, and a question of one saves the others theirs for as long as its answer may take.
    #[test]
    fn a_sign_of_life_counts_while_it_is_fresh() {
        let (mut peers, begin) = (HeardPeers::default(), Instant::now());
        assert_eq!(word(&peers, None, begin), Word::None);
        peers.asked(life(1), None, begin, TAKES);
        assert_eq!(word(&peers, None, begin + TAKES / 2), Word::Asked);
        assert_eq!(word(&peers, None, begin + TAKES), Word::None);
        peers.heard(life(1), None, begin, FRESH);
        assert_eq!(word(&peers, None, begin + FRESH / 2), Word::Alive);
        assert_eq!(word(&peers, None, begin + FRESH), Word::None);
        // What an older connection heard before says nothing new.
        peers.heard(life(1), None, begin + TAKES, FRESH);
        peers.heard(life(1), None, begin, FRESH);
        assert_eq!(word(&peers, None, begin + FRESH), Word::Alive);
    }

    /// docs/extension.md: "with the same authorization key or none": who merely claims an
    /// incarnation vouches for nobody that has proven a key, nor the other way about.
    #[test]
    fn nobody_is_vouched_for_by_another_key() {
        let (mut peers, begin) = (HeardPeers::default(), Instant::now());
        let [ours, theirs] = [b"ours", b"else"].map(|key| AuthSecret::of(key));
        peers.heard(life(1), Some(&ours), begin, FRESH);
        assert_eq!(word(&peers, Some(&ours), begin), Word::Alive);
        assert_eq!(word(&peers, Some(&theirs), begin), Word::None);
        assert_eq!(word(&peers, None, begin), Word::None);
        peers.heard(life(1), None, begin, FRESH);
        assert_eq!(word(&peers, Some(&ours), begin), Word::None);
    }

    /// Peers come and go for ever: what is kept of them does not grow with that.
    #[test]
    fn those_that_have_gone_are_forgotten() {
        let (mut peers, begin) = (HeardPeers::default(), Instant::now());
        for number in 0..10_000 {
            let at = begin + Duration::from_secs(1) * number;
            peers.heard(life(number.into()), None, at, FRESH);
        }
        assert!(peers.known.len() <= 2 * KEPT_MIN, "{}", peers.known.len());
    }
}
