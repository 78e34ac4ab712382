//! Which domains of peers were heard lately, on whatever connection. What drives one connection of
//! a domain drives them all, so idle connections to one and the same life of a domain ask it one
//! question together, not one each: ten thousand of them cost what one does.
//!
//! Who vouches for whom: connections to one host, of one incarnation (HELLO), with the same
//! authorization key or none. That a connection's own way is still there, its system asks
//! (keepalive); without such a system each connection asks for itself.
//!
//! Connections that are vouched for rest: nobody looks at them. When the last sign of their peer's
//! life gets old, one of them is looked at, and asks for all; when that brings no answer in time,
//! all are, spread over a while.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::mr::AuthSecret;
use crate::slab::Key;

/// Until so many are kept, nobody looks which of them are of no more use.
const KEPT_MIN: usize = 64;

/// One life of a domain, at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Of no more use then, unless somebody rests.
    until: Instant,
    resting: Resting,
}

/// Connections that nobody looks at while their peer gives signs of life.
#[derive(Debug, Default)]
struct Resting {
    ports: BTreeSet<Key>,
    /// When to see whether that is still so.
    due: Option<Instant>,
    /// How long the most impatient takes a sign for one, and waits for an answer.
    fresh: Duration,
    takes: Duration,
}

/// What is to be done about connections that rest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: their peer has given a sign, or is about to.
    GoesOn,
    /// This one looks for all.
    Wakes(Key),
    /// Each looks for itself, within this time.
    Ends(BTreeSet<Key>, Duration),
}

/// The lives that a driver's ports have heard or asked.
#[derive(Debug, Default)]
pub(super) struct HeardPeers {
    known: HashMap<PeerLife, Known>,
    kept_max: usize,
    /// Whose connections rest until when.
    due: BTreeSet<(Instant, PeerLife)>,
    /// Those that rested with somebody whom another one claims to be.
    strays: BTreeSet<Key>,
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

    /// A connection with this key rests as long as its peer is [`Word::Alive`], which it is now.
    pub(super) fn rest(
        &mut self,
        life: PeerLife,
        key: Option<&AuthSecret>,
        port: Key,
        fresh: Duration,
        takes: Duration,
    ) {
        let Some(known) = (self.known.get_mut(&life)).filter(|it| it.key.as_ref() == key) else {
            debug_assert!(false, "nobody vouches for it");
            return;
        };
        let (resting, heard) = (&mut known.resting, known.heard);
        if resting.ports.is_empty() {
            (resting.fresh, resting.takes) = (fresh, takes);
        }
        resting.ports.insert(port);
        resting.fresh = resting.fresh.min(fresh);
        resting.takes = resting.takes.max(takes);
        let due = heard.map(|heard| heard + resting.fresh);
        if resting.due.is_none() || due < resting.due {
            self.due.extend(due.map(|at| (at, life)));
            if let Some(was) = std::mem::replace(&mut resting.due, due) {
                self.due.remove(&(was, life));
            }
        }
    }

    /// A connection rests no more.
    pub(super) fn rise(&mut self, life: PeerLife, port: Key) {
        self.strays.remove(&port);
        let Some(known) = self.known.get_mut(&life) else {
            return;
        };
        let resting = &mut known.resting;
        if resting.ports.remove(&port)
            && resting.ports.is_empty()
            && let Some(was) = resting.due.take()
        {
            self.due.remove(&(was, life));
        }
    }

    /// When to ask what is to be done about those that rest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What is to be done about those for whom it is time.
    pub(super) fn rest_over(&mut self, now: Instant) -> Rest {
        let Some((_, life)) = self.due.pop_first() else {
            return Rest::GoesOn;
        };
        let Some(known) = self.known.get_mut(&life) else {
            return Rest::GoesOn;
        };
        let (asked, heard, resting) = (known.asked, known.heard, &mut known.resting);
        let next = [
            heard.map(|at| at + resting.fresh),
            asked.map(|at| at + resting.takes),
        ];
        let next = next.into_iter().flatten().max().filter(|at| *at > now);
        let (rest, next) = match next {
            Some(next) => (Rest::GoesOn, Some(next)),
            // It was asked since, in vain.
            None if asked > heard => {
                let ports = std::mem::take(&mut resting.ports);
                (Rest::Ends(ports, resting.fresh), None)
            }
            None => match resting.ports.pop_first() {
                Some(port) => (Rest::Wakes(port), Some(now)),
                None => (Rest::GoesOn, None),
            },
        };
        resting.due = next.filter(|_| !resting.ports.is_empty());
        self.due.extend(resting.due.map(|at| (at, life)));
        rest
    }

    /// Those that can rest no more, since whom they rested with is in doubt.
    pub(super) fn take_strays(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.strays)
    }

    fn entry(&mut self, life: PeerLife, key: Option<&AuthSecret>, now: Instant) -> &mut Known {
        if self.known.len() > self.kept_max {
            let is_of_use = |known: &Known| known.until > now || !known.resting.ports.is_empty();
            self.known.retain(|_, known| is_of_use(known));
            self.kept_max = KEPT_MIN.max(2 * self.known.len());
        }
        let fresh = || Known {
            key: key.cloned(),
            heard: None,
            asked: None,
            until: now,
            resting: Resting::default(),
        };
        let known = self.known.entry(life).or_insert_with(fresh);
        // Whoever has another key may only say that it is the same.
        if known.key.as_ref() != key {
            let was = std::mem::replace(known, fresh());
            self.strays.extend(was.resting.ports);
            if let Some(at) = was.resting.due {
                self.due.remove(&(at, life));
            }
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

    fn ports(count: usize) -> Vec<Key> {
        let mut slab = crate::slab::Slab::new();
        (0..count).map(|_| slab.insert(())).collect()
    }

    fn rest(peers: &mut HeardPeers, port: Key) {
        peers.rest(life(1), None, port, FRESH, TAKES);
    }

    /// docs/extension.md: "Connections that are vouched for rest": while signs come, for ever; then
    /// one asks, and with its answer the others go on.
    #[test]
    fn one_of_those_that_rest_asks_for_all() {
        let (mut peers, begin, ports) = (HeardPeers::default(), Instant::now(), ports(3));
        peers.heard(life(1), None, begin, FRESH);
        ports.iter().for_each(|port| rest(&mut peers, *port));
        assert_eq!(peers.due(), Some(begin + FRESH));
        peers.heard(life(1), None, begin + FRESH / 2, FRESH);
        assert_eq!(peers.rest_over(begin + FRESH), Rest::GoesOn);
        let late = begin + FRESH / 2 + FRESH;
        assert_eq!(peers.due(), Some(late));
        let Rest::Wakes(first) = peers.rest_over(late) else {
            panic!("somebody must ask")
        };
        // One that cannot ask leaves it to the next.
        assert_eq!(peers.due(), Some(late));
        let Rest::Wakes(second) = peers.rest_over(late) else {
            panic!("somebody must ask")
        };
        assert_ne!(first, second);
        peers.asked(life(1), None, late, TAKES);
        assert_eq!(peers.rest_over(late), Rest::GoesOn);
        assert_eq!(peers.due(), Some(late + TAKES));
        peers.heard(life(1), None, late, FRESH);
        assert_eq!(peers.rest_over(late + TAKES), Rest::GoesOn);
        assert_eq!(peers.due(), Some(late + FRESH));
        // The last one gone, nothing is due.
        for port in ports {
            peers.rise(life(1), port);
        }
        assert_eq!(peers.due(), None);
    }

    /// docs/extension.md: "Unanswered, each asks for itself too".
    #[test]
    fn a_question_in_vain_ends_the_rest_of_all() {
        let (mut peers, begin, ports) = (HeardPeers::default(), Instant::now(), ports(3));
        peers.heard(life(1), None, begin, FRESH);
        ports.iter().for_each(|port| rest(&mut peers, *port));
        let late = begin + FRESH;
        assert!(matches!(peers.rest_over(late), Rest::Wakes(_)));
        peers.asked(life(1), None, late, TAKES);
        assert_eq!(peers.rest_over(late), Rest::GoesOn);
        match peers.rest_over(late + TAKES) {
            Rest::Ends(woken, FRESH) => assert_eq!(woken.len(), 2),
            other => panic!("{other:?}"),
        }
        assert_eq!(peers.due(), None);
    }

    /// Who claims to be somebody else's peer ends the rest of those who knew that one, and they are
    /// not forgotten while they rest.
    #[test]
    fn those_that_rest_are_not_forgotten() {
        let (mut peers, begin, ports) = (HeardPeers::default(), Instant::now(), ports(3));
        peers.heard(life(1), None, begin, FRESH);
        ports.iter().for_each(|port| rest(&mut peers, *port));
        for number in 2..1000 {
            let at = begin + FRESH * 2 + Duration::from_secs(1) * number;
            peers.heard(life(number.into()), None, at, FRESH);
        }
        assert_eq!(peers.due(), Some(begin + FRESH));
        let other = AuthSecret::of(b"else");
        peers.heard(life(1), Some(&other), begin + FRESH, FRESH);
        assert_eq!(peers.take_strays(), ports.into_iter().collect());
        assert_eq!(peers.due(), None);
    }
}
