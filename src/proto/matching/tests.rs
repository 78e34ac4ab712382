//! The shared matcher against a plain model: lists of receives and messages that are looked through
//! from the front.

mod connections;
mod receives;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::buf::BufferCursor;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::tests::{Rng, depth};
use crate::slab::{Key, Slab};

const OVERHEAD: u64 = UNEXPECTED_OVERHEAD as u64;
const TOTAL: u64 = 24 * OVERHEAD;
const PER_PEER: u64 = 12 * OVERHEAD;

/// A posted receive.
struct Receive {
    /// Its place in the order of posts.
    place: u64,
    key: Key,
    wanted: MatchCriteria,
    source: Option<SourceId>,
    /// For a multi-receive buffer: the bytes left, the least it goes on with, and whether it is
    /// armed.
    many: Option<(usize, usize, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Receiving,
    Stored,
    Announced(u8),
}

/// A message that is kept, oldest first.
#[derive(Clone, Copy, Debug)]
struct Message {
    arrival: Arrival,
    state: State,
    claim: Option<ClaimKey>,
    cost: u64,
}

struct Peer {
    id: ConnectionId,
    source: SourceId,
    promised: u64,
    /// The message, or announcement, that it was stalled with.
    stalled: Option<(Arrival, Option<u8>)>,
    /// The claim of its waiting message, and the receive that was given to it.
    claim: Option<ClaimKey>,
    given: Option<u64>,
    woken: bool,
}

struct Model {
    matcher: SharedMatcher,
    receives: Vec<Receive>,
    messages: Vec<Message>,
    peers: Vec<Peer>,
    /// Messages that were given to receives.
    delivered: Vec<ReceivedMessage>,
    next: u64,
    woken: BTreeSet<ConnectionId>,
    seen: BTreeMap<&'static str, u64>,
}

fn takes(wanted: MatchCriteria, from: Option<SourceId>, arrival: &Arrival) -> bool {
    let kind = match (wanted, arrival.kind) {
        (MatchCriteria::Message, MessageKind::Message) => true,
        (MatchCriteria::Tagged { tag, ignore }, MessageKind::Tagged { tag: sent }) => {
            (tag ^ sent) & !ignore == 0
        }
        _ => false,
    };
    let key = |source: SourceId| source.0 >> 48;
    kind && from.is_none_or(|from| match from.is_all() {
        true => key(from) == key(arrival.source),
        false => from == arrival.source,
    })
}

impl Model {
    fn new() -> Self {
        let budget = UnexpectedBudget {
            total_bytes: TOTAL,
            peer_bytes: PER_PEER,
        };
        Model {
            matcher: SharedMatcher::new(budget),
            receives: Vec::new(),
            messages: Vec::new(),
            peers: Vec::new(),
            delivered: Vec::new(),
            next: 0,
            woken: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn held(&self) -> u64 {
        self.messages.iter().map(|it| it.cost).sum()
    }

    fn own(&self, connection: ConnectionId) -> u64 {
        let own = self.messages.iter();
        let own = own.filter(|it| it.arrival.connection == connection);
        own.map(|it| it.cost).sum()
    }

    fn of_source(&self, source: SourceId) -> u64 {
        let own = self
            .messages
            .iter()
            .filter(|it| it.arrival.source == source);
        own.map(|it| it.cost).sum()
    }

    /// Returns the bytes that are promised to connections, or held by them.
    fn committed(&self) -> u64 {
        let living: u64 = self.peers.iter().map(|it| self.own(it.id)).sum();
        let most = self.peers.iter().map(|it| self.own(it.id).max(it.promised));
        most.sum::<u64>() + self.held() - living
    }

    fn receive_for(&self, arrival: &Arrival) -> Option<usize> {
        self.receives.iter().position(|it| {
            it.many.is_none_or(|(.., armed)| armed) && takes(it.wanted, it.source, arrival)
        })
    }

    fn message_for(&self, wanted: MatchCriteria, source: Option<SourceId>) -> Option<usize> {
        self.messages.iter().position(|it| {
            it.claim.is_none() && it.state != State::Receiving && takes(wanted, source, &it.arrival)
        })
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn step(&mut self, rng: &mut Rng) {
        let before: BTreeMap<_, _> = self
            .peers
            .iter()
            .map(|it| (it.id, self.own(it.id)))
            .collect();
        let eager = rng
            .chance(50)
            .then(|| self.peers[rng.below(self.peers.len())].id);
        if let Some(eager) = eager {
            self.matcher.request_credit_wake(eager);
        }
        match rng.below(100) {
            0..30 => self.arrive(rng),
            30..50 => self.land(rng),
            50..75 => self.post(rng),
            75..81 => self.cancel(rng),
            81..85 => self.peek(rng),
            85..90 => self.claim(rng),
            90..95 => self.use_claim(rng),
            95..98 => self.requeue_message(rng),
            98 => self.join(rng),
            _ => {}
        }
        if self.peers.len() > 6 || rng.chance(1) && self.peers.len() > 1 {
            self.disconnect(rng);
        }
        if self.receives.len() > 12 {
            self.cancel(rng);
        }
        self.wakes(eager.filter(|it| before.get(it) > Some(&self.own(*it))));
    }

    fn wakes(&mut self, expected: Option<ConnectionId>) {
        let mut woken = BTreeSet::new();
        while let Some(connection) = self.matcher.poll_wake() {
            woken.insert(connection);
            if let Some(peer) = self.peers.iter_mut().find(|it| it.id == connection) {
                peer.woken = peer.stalled.is_some();
                if peer.woken {
                    self.woken.insert(connection);
                }
            }
        }
        if let Some(expected) = expected
            && self.peers.iter().any(|it| it.id == expected)
        {
            assert!(woken.contains(&expected), "its peer gets credit");
            self.count("woken for room");
        }
    }

    /// Lets every woken connection ask again: none waits for what is there.
    fn ask_again(&mut self, rng: &mut Rng) {
        while let Some(&connection) = self.woken.first() {
            let at = self.peers.iter().position(|it| it.id == connection);
            self.arrive_at(at.expect("it has not left"), rng);
            self.wakes(None);
        }
        let stalled: Vec<_> = self
            .peers
            .iter()
            .filter(|it| it.claim.is_none() && it.given.is_none())
            .filter_map(|it| it.stalled.map(|(arrival, index)| (it, arrival, index)))
            .collect();
        let (mut fits, mut wants) = (0, 0);
        // Of the messages that wait within a promise, only the first may be too long.
        let (mut promised, mut overbooked) = (0, 0);
        // Of each sender with several connections, whether one of its messages does not fit.
        let mut blocked: BTreeMap<SourceId, bool> = BTreeMap::new();
        for (peer, arrival, index) in stalled {
            assert!(self.receive_for(&arrival).is_none(), "a receive takes it");
            let cost = OVERHEAD + if index.is_some() { 0 } else { arrival.len };
            let own = self.own(peer.id);
            let free = self.held() + cost <= TOTAL;
            if own + cost <= peer.promised {
                overbooked += u64::from(!free);
                promised += u64::from(free);
                continue;
            }
            if cost > PER_PEER {
                continue; // It is never admitted.
            }
            let more = (own + cost).max(peer.promised) - own.max(peer.promised);
            let is_within_quota = self.of_source(peer.source) + cost <= PER_PEER;
            let has_room = free && self.committed() + more <= TOTAL;
            let alike = |it: &&Peer| it.source == peer.source && it.stalled.is_some();
            if self.peers.iter().filter(alike).count() > 1 {
                // It may wait behind another of the same sender, of which the first does not fit.
                let blocked = blocked.entry(peer.source).or_insert(false);
                *blocked |= !is_within_quota || !has_room;
                continue;
            }
            if !is_within_quota {
                continue; // It waits for room of its own.
            }
            wants += 1;
            fits += u64::from(has_room);
        }
        assert!(
            blocked.into_values().all(|blocked| blocked),
            "the first of a sender that waits for room gets it"
        );
        assert!(promised == 0 || overbooked > 0, "what was promised is kept");
        assert!(
            fits < wants || wants == 0,
            "the first that waits for room gets it"
        );
    }

    fn check(&mut self, rng: &mut Rng) {
        self.ask_again(rng);
        self.matcher.check();
        assert_eq!(self.matcher.held_bytes(), self.held());
        for peer in &self.peers {
            let of_it = |it: &&Message| it.arrival.connection == peer.id;
            let held = self.messages.iter().filter(of_it).count();
            assert_eq!(self.matcher.held_of(peer.id), held as u64);
        }
        assert_eq!(self.matcher.posted_len(), self.receives.len());
    }
}

fn run(seed: u64, steps: usize) -> BTreeMap<&'static str, u64> {
    let rng = &mut Rng(seed);
    let mut model = Model::new();
    model.join(rng);
    for step in 0..steps {
        model.step(rng);
        if step % 16 == 0 {
            model.check(rng);
        }
    }
    model.seen
}

/// fi_tagged(3): "message tags are checked against receive buffers in the order in which messages
/// have been posted to the endpoint"; whatever the order of posts, arrivals, cancellations, peeks,
/// claims and departures, the matcher does what two plain lists do, within its budgets.
#[test]
fn random_steps_agree_with_a_plain_model() {
    let mut seen = BTreeMap::new();
    for seed in 0..20 * depth() {
        println!("seed {seed}");
        for (what, count) in run(seed, 25_000) {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    println!("{seen:?}");
    assert_eq!(seen.len(), 15, "every way was taken: {seen:?}");
}

/// A peer says any length, and an application may set any budget: neither is added up beyond what
/// a number holds.
#[test]
fn a_boundless_budget_bears_any_length() {
    let (connection, source) = (ConnectionId::numbered(1), SourceId(1));
    let mut matcher = SharedMatcher::new(UnexpectedBudget {
        total_bytes: u64::MAX,
        peer_bytes: u64::MAX,
    });
    matcher.attach(connection, source);
    let mut arrive = |len| {
        let mut arrival = Arrival {
            source,
            connection,
            kind: MessageKind::Message,
            len,
            data: None,
            order: 0,
        };
        matcher.begin_message(&mut arrival, |_| false)
    };
    assert!(matches!(arrive(100), ArrivalOutcome::Store));
    for len in [u64::MAX, u64::MAX - OVERHEAD, u64::MAX / 2] {
        assert!(matches!(arrive(len), ArrivalOutcome::Stalled));
    }
    assert!(matches!(arrive(100), ArrivalOutcome::Store));
    matcher.check();
}

/// A peer may have connections to several endpoints that share the receives. When the first of its
/// stalled messages leaves, by a receive, by a claim or with its connection, the next one may fit.
#[test]
fn a_stalled_message_behind_another_of_its_sender_is_not_forgotten() {
    let source = SourceId(1);
    let arrival = |connection: u64, tag: u64, cost: u64| Arrival {
        source,
        connection: ConnectionId::numbered(connection),
        kind: MessageKind::Tagged { tag },
        len: cost - OVERHEAD,
        data: None,
        order: 0,
    };
    // The first connection is woken too, since its peer gets credit.
    let next_stalled = |matcher: &mut SharedMatcher| {
        let mut woken = std::iter::from_fn(|| matcher.poll_wake());
        woken.find(|it| *it != ConnectionId::numbered(1))
    };
    let wanted = |tag: u64| MatchCriteria::Tagged { tag, ignore: 0 };
    for leaves in ["by a receive", "by a claim", "with its connection"] {
        let mut matcher = SharedMatcher::new(UnexpectedBudget {
            total_bytes: 128 * OVERHEAD,
            peer_bytes: 20 * OVERHEAD,
        });
        let mut keys = Slab::new();
        let mut receive = |tag| PostedReceive {
            wanted: wanted(tag),
            source: None,
            order: 0,
            key: keys.insert(()),
        };
        for connection in 1..=3 {
            matcher.attach(ConnectionId::numbered(connection), source);
        }
        // 1. Eighteen of the peer's twenty units are held; messages of eleven and of nine stall.
        for (tag, cost) in [(1, 8), (2, 10)] {
            let mut arrival = arrival(1, tag, cost * OVERHEAD);
            let begun = matcher.begin_message(&mut arrival, |_| false);
            assert!(matches!(begun, ArrivalOutcome::Store), "{begun:?}");
            let message = ReceivedMessage {
                arrival,
                payload: Payload::empty(),
                len: arrival.len as usize,
                overflow: 0,
            };
            assert!(matcher.store_message(message).is_none());
        }
        let mut first = arrival(2, 3, 11 * OVERHEAD);
        let mut second = arrival(3, 4, 9 * OVERHEAD);
        for stalled in [&mut first, &mut second] {
            let begun = matcher.begin_message(stalled, |_| false);
            assert!(matches!(begun, ArrivalOutcome::Stalled), "{begun:?}");
        }
        // 2. Eight units are free, of which the first needs nine.
        let taken = matcher.post(receive(1));
        assert!(matches!(taken, MatchResult::Unexpected(_)), "{taken:?}");
        assert_eq!(next_stalled(&mut matcher), None);
        // 3. The first leaves.
        match leaves {
            "by a receive" => {
                matcher.post(receive(3));
                assert_eq!(next_stalled(&mut matcher), Some(first.connection));
                let begun = matcher.begin_message(&mut first, |_| false);
                assert!(matches!(begun, ArrivalOutcome::Matched(_)), "{begun:?}");
            }
            "by a claim" => assert!(matcher.claim(wanted(3), None).is_some()),
            _ => assert!(matcher.detach(first.connection).is_none()),
        }
        assert_eq!(
            next_stalled(&mut matcher),
            Some(second.connection),
            "{leaves}"
        );
        let begun = matcher.begin_message(&mut second, |_| false);
        assert!(matches!(begun, ArrivalOutcome::Store), "{begun:?}");
        matcher.check();
    }
}
