//! The shared matcher against a plain model: lists of receives and messages that are looked through
//! from the front.

use std::collections::{BTreeMap, BTreeSet};

use super::shared::Fetched;
use super::*;
use crate::buf::Carving;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::tests::{Rng, depth};
use crate::slab::Key;

const OVERHEAD: u64 = UNEXPECTED_OVERHEAD as u64;
const TOTAL: u64 = 24 * OVERHEAD;
const PER_PEER: u64 = 12 * OVERHEAD;

/// A posted receive.
struct Receive {
    /// Its place.
    place: u64,
    token: u64,
    key: Key,
    wanted: Wanted,
    source: Option<SourceId>,
    /// Of a buffer for many messages: what is left, and whether it takes one now.
    many: Option<(usize, usize, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Landing,
    Here,
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
    /// It was told to wait with this message, or announcement.
    stalled: Option<(Arrival, Option<u8>)>,
    /// Its waiting message is claimed, and the receive for it.
    claim: Option<ClaimKey>,
    given: Option<u64>,
    woken: bool,
}

struct Model {
    matcher: SharedMatcher<u64>,
    receives: Vec<Receive>,
    messages: Vec<Message>,
    peers: Vec<Peer>,
    /// Messages that were given to receives.
    delivered: Vec<EarlyMessage>,
    next: u64,
    woken: BTreeSet<ConnectionId>,
    seen: BTreeMap<&'static str, u64>,
}

fn takes(wanted: Wanted, from: Option<SourceId>, arrival: &Arrival) -> bool {
    let kind = match (wanted, arrival.kind) {
        (Wanted::Message, Kind::Message) => true,
        (Wanted::Tagged { tag, ignore }, Kind::Tagged { tag: sent }) => (tag ^ sent) & !ignore == 0,
        _ => false,
    };
    kind && from.is_none_or(|from| from == arrival.source)
}

impl Model {
    fn new() -> Self {
        let budget = Budget {
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

    /// What is promised or held of all connections.
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

    fn message_for(&self, wanted: Wanted, source: Option<SourceId>) -> Option<usize> {
        self.messages.iter().position(|it| {
            it.claim.is_none() && it.state != State::Landing && takes(wanted, source, &it.arrival)
        })
    }

    fn some_wanted(&self, rng: &mut Rng) -> (Wanted, Option<SourceId>) {
        let wanted = if rng.chance(20) {
            Wanted::Message
        } else {
            Wanted::Tagged {
                tag: rng.below(6) as u64,
                ignore: [0, 0, 0, 0, 1, 6, !0][rng.below(7)],
            }
        };
        let source = rng.chance(30).then(|| SourceId(rng.below(4) as u64));
        (wanted, source)
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The receive at this place has got a message of this length.
    fn given(&mut self, at: usize, got: &PostedReceive<u64>, len: u64) {
        let receive = &mut self.receives[at];
        assert_eq!(got.token, receive.token, "the oldest that takes it");
        assert_eq!((got.wanted, got.source), (receive.wanted, receive.source));
        let Some((left, _, armed)) = &mut receive.many else {
            self.receives.remove(at);
            return;
        };
        let part = (*left).min(len as usize);
        assert_eq!(
            got.payload.len(),
            part,
            "a part as long as the message, if it fits"
        );
        *left -= part;
        *armed = false;
        self.rearm(at);
    }

    /// Lets the rest of a buffer take the next messages.
    fn rearm(&mut self, at: usize) {
        loop {
            let token = self.fresh();
            let receive = &self.receives[at];
            let (wanted, source) = (receive.wanted, receive.source);
            let Some((left, min, false)) = receive.many else {
                return;
            };
            let expected = self.message_for(wanted, source);
            let armed = self.matcher.arm(receive.key, token);
            if left < min.max(1) {
                assert!(matches!(armed, Armed::Consumed(it) if it == token));
                let receive = self.receives.remove(at);
                let withdrawn = self.matcher.withdraw(receive.key);
                assert!(matches!(withdrawn, Some(WithdrawnReceive::Carved(_, None))));
                self.count("consumed");
                return;
            }
            self.receives[at].token = token;
            let (part, order) = match armed {
                Armed::Nothing => {
                    assert!(expected.is_none(), "a message that came earlier is taken");
                    self.receives[at].many = Some((left, min, true));
                    return;
                }
                Armed::Early(part, early) => (part, early.arrival.order),
                Armed::Announced(part, announcement) => (part, announcement.arrival.order),
                Armed::Consumed(_) => panic!("there is room"),
            };
            let message = self.messages.remove(expected.expect("one was found"));
            assert_eq!(order, message.arrival.order, "the oldest that it takes");
            let taken = left.min(message.arrival.len as usize);
            assert_eq!((part.token, part.payload.len()), (token, taken));
            self.receives[at].many = Some((left - taken, min, false));
            self.count("part of a buffer");
        }
    }

    fn post(&mut self, rng: &mut Rng) {
        let (wanted, source) = self.some_wanted(rng);
        let token = self.fresh();
        if rng.chance(10) {
            let (left, min) = (rng.below(900), rng.below(200));
            let carving = Carving::new(Payload::from_vec(vec![0; left]), min).expect("a buffer");
            let key = self
                .matcher
                .post_many(carving, wanted, source, Key::from_bits(token));
            let many = Some((left, min, false));
            let place = token;
            let receive = Receive {
                place,
                token,
                key,
                wanted,
                source,
                many,
            };
            self.receives.push(receive);
            self.rearm(self.receives.len() - 1);
            return;
        }
        let receive = PostedReceive {
            token,
            payload: Payload::empty(),
            wanted,
            source,
            order: 0,
            key: Key::from_bits(token),
        };
        let found = self.matcher.post(receive);
        self.found(found, token, wanted, source, rng);
    }

    fn found(
        &mut self,
        found: Found<u64>,
        token: u64,
        wanted: Wanted,
        source: Option<SourceId>,
        rng: &mut Rng,
    ) {
        let expected = self.message_for(wanted, source);
        let expected = expected.map(|at| self.messages.remove(at));
        match (found, expected) {
            (Found::Nothing(key), None) => {
                let many = None;
                let place = token;
                let receive = Receive {
                    place,
                    token,
                    key,
                    wanted,
                    source,
                    many,
                };
                self.receives.push(receive);
                // One that was given back has its old place.
                self.receives.sort_by_key(|it| it.place);
            }
            (Found::Early(receive, early), Some(message)) => {
                assert_eq!(receive.token, token);
                assert_eq!(early.arrival, message.arrival, "the oldest that it takes");
                self.count("found early");
                self.delivered.push(early);
            }
            (Found::Announced(receive, announcement), Some(message)) => {
                assert_eq!(announcement.arrival, message.arrival);
                assert_eq!(State::Announced(announcement.index), message.state);
                self.count("found announced");
                if rng.chance(30) {
                    // Its connection turns out to be gone.
                    let found = self.matcher.give_back_receive(receive);
                    self.found(found, token, wanted, source, rng);
                }
            }
            (found, expected) => panic!("{found:?} where {expected:?} was expected"),
        }
    }

    fn arrive(&mut self, rng: &mut Rng) {
        let at = rng.below(self.peers.len());
        let peer = &self.peers[at];
        if peer.stalled.is_none() || peer.woken || rng.chance(10) {
            self.arrive_at(at, rng);
        }
    }

    fn arrive_at(&mut self, at: usize, rng: &mut Rng) {
        let (connection, source) = (self.peers[at].id, self.peers[at].source);
        let busy = |it: &Message| it.arrival.connection == connection && it.state == State::Landing;
        if self.messages.iter().any(busy) {
            return;
        }
        let again = self.peers[at].stalled;
        let (mut arrival, index) = again.unwrap_or_else(|| {
            let kind = Kind::of((!rng.chance(20)).then(|| rng.below(6) as u64));
            let len = [rng.below(40), rng.below(400), rng.below(4000)][rng.below(3)] as u64;
            let index = rng.chance(25).then_some(1 + rng.below(254) as u8);
            let (data, order) = (None, 0);
            let arrival = Arrival {
                source,
                connection,
                kind,
                len,
                data,
                order,
            };
            (arrival, index)
        });
        let cost = OVERHEAD + if index.is_some() { 0 } else { arrival.len };
        let arrived = match index {
            None => self.matcher.arrive(&mut arrival),
            Some(index) => {
                let mut announcement = Announcement { arrival, index };
                let arrived = self.matcher.announce(&mut announcement);
                arrival = announcement.arrival;
                arrived
            }
        };
        let peer = &mut self.peers[at];
        peer.woken = false;
        self.woken.remove(&connection);
        if peer.claim.is_some() {
            assert!(
                matches!(arrived, Arrived::NoRoom),
                "its receive has not come"
            );
            return;
        }
        peer.stalled = None;
        if let Some(token) = peer.given.take() {
            let Arrived::Receive(receive) = arrived else {
                panic!("the claim's receive is for it");
            };
            assert_eq!(receive.token, token);
            self.count("claimed while waiting");
            return;
        }
        let promised = peer.promised;
        let (own, held) = (self.own(connection), self.held());
        match arrived {
            Arrived::Receive(receive) => {
                let at = self.receive_for(&arrival).expect("one takes it");
                self.given(at, &receive, arrival.len);
                self.count("expected");
            }
            Arrived::Store => {
                assert!(self.receive_for(&arrival).is_none());
                assert!(held + cost <= TOTAL, "bytes held never pass the total");
                let shares = own + cost <= promised || self.of_source(source) + cost <= PER_PEER;
                assert!(shares, "nor a peer's budget");
                let state = index.map_or(State::Landing, State::Announced);
                let claim = None;
                self.messages.push(Message {
                    arrival,
                    state,
                    claim,
                    cost,
                });
                self.count("kept");
            }
            Arrived::NoRoom => {
                assert!(self.receive_for(&arrival).is_none());
                let fits = own + cost <= promised && held + cost <= TOTAL;
                assert!(!fits, "what was promised is kept");
                self.peers[at].stalled = Some((
                    Arrival {
                        order: 0,
                        ..arrival
                    },
                    index,
                ));
                self.count("no room");
            }
        }
    }

    fn land(&mut self, rng: &mut Rng) {
        let landing = |it: &Message| it.state == State::Landing;
        let Some(at) = self.messages.iter().position(landing) else {
            return;
        };
        let arrival = self.messages[at].arrival;
        if rng.chance(10) {
            self.messages.remove(at);
            self.matcher.abandoned(&arrival);
            return;
        }
        let len = arrival.len as usize;
        let payload = Payload::empty();
        let overflow = 0;
        let early = EarlyMessage {
            arrival,
            payload,
            len,
            overflow,
        };
        let expected = self.receive_for(&arrival);
        match (self.matcher.landed(early), expected) {
            (None, None) => self.messages[at].state = State::Here,
            (Some((receive, early)), Some(receive_at)) => {
                self.messages.remove(at);
                self.given(receive_at, &receive, arrival.len);
                self.delivered.push(early);
                self.count("posted while it landed");
            }
            (got, _) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    fn cancel(&mut self, rng: &mut Rng) {
        if self.receives.is_empty() {
            return;
        }
        let receive = self.receives.remove(rng.below(self.receives.len()));
        match self.matcher.withdraw(receive.key) {
            Some(WithdrawnReceive::Whole(_, token)) => assert_eq!(token, receive.token),
            Some(WithdrawnReceive::Carved(_, token)) => assert_eq!(token, Some(receive.token)),
            None => panic!("it was posted"),
        }
        assert!(self.matcher.withdraw(receive.key).is_none(), "once");
    }

    /// A kept message that such a receive takes, or else one that waits.
    fn peek(&mut self, rng: &mut Rng) {
        let (wanted, source) = self.some_wanted(rng);
        let kept = self.message_for(wanted, source);
        let kept = kept.map(|at| self.messages[at].arrival);
        let peeked = self.matcher.peek(wanted, source);
        match kept {
            Some(arrival) => assert_eq!(peeked, Some(arrival)),
            None => {
                let Some(arrival) = peeked else { return };
                self.count("peeked at one that waits");
                assert!(takes(wanted, source, &arrival));
                let waits = |it: &&Peer| it.id == arrival.connection && it.claim.is_none();
                let peer = self.peers.iter().find(waits).expect("it is there");
                assert_eq!(peer.stalled.map(|it| it.0.kind), Some(arrival.kind));
            }
        }
    }

    fn claim(&mut self, rng: &mut Rng) {
        let (wanted, source) = self.some_wanted(rng);
        let kept = self.message_for(wanted, source);
        let claimed = self.matcher.claim(wanted, source);
        match (kept, claimed) {
            (Some(at), Some((claim, arrival))) => {
                assert_eq!(arrival, self.messages[at].arrival);
                self.messages[at].claim = Some(claim);
                self.count("claimed");
            }
            (None, Some((claim, arrival))) => {
                assert!(takes(wanted, source, &arrival));
                let waits = |it: &&mut Peer| it.id == arrival.connection;
                let peer = self.peers.iter_mut().find(waits).expect("it is there");
                assert!(peer.stalled.is_some() && peer.claim.is_none());
                peer.claim = Some(claim);
            }
            (None, None) => {}
            (Some(_), None) => panic!("a message is there"),
        }
    }

    /// Receives or drops a claimed message, or gives it up.
    fn use_claim(&mut self, rng: &mut Rng) {
        let of_messages = self.messages.iter().filter_map(|it| it.claim);
        let of_peers = self.peers.iter().filter_map(|it| it.claim);
        let claims: Vec<ClaimKey> = of_messages.chain(of_peers).collect();
        if claims.is_empty() {
            return;
        }
        let claim = claims[rng.below(claims.len())];
        let message = self.messages.iter().position(|it| it.claim == Some(claim));
        let peer = self.peers.iter().position(|it| it.claim == Some(claim));
        if rng.chance(30) {
            let answer = self.matcher.release(claim);
            if let Some(peer) = peer {
                assert!(answer.is_none());
                self.peers[peer].claim = None;
                return;
            }
            let at = message.expect("one of the two");
            self.messages[at].claim = None;
            let arrival = self.messages[at].arrival;
            let expected = self.receive_for(&arrival);
            match (answer, expected) {
                (None, None) => {}
                (
                    Some(Fetched::Early(receive, _) | Fetched::Announced(receive, _)),
                    Some(receive_at),
                ) => {
                    self.messages.remove(at);
                    self.given(receive_at, &receive, arrival.len);
                }
                (answer, _) => panic!("{answer:?} where {expected:?} was expected"),
            }
            self.count("given up");
            return;
        }
        let token = self.fresh();
        let receive = PostedReceive {
            token,
            payload: Payload::empty(),
            wanted: Wanted::Message,
            source: None,
            order: 0,
            key: Key::from_bits(token),
        };
        let answer = self
            .matcher
            .take_claimed(claim, receive)
            .expect("it is there");
        match (answer, peer, message) {
            (Fetched::Coming, Some(peer), None) => {
                self.peers[peer].claim = None;
                self.peers[peer].given = Some(token);
            }
            (Fetched::Early(_, early), None, Some(at)) => {
                assert_eq!(early.arrival, self.messages.remove(at).arrival);
            }
            (Fetched::Announced(_, announcement), None, Some(at)) => {
                assert_eq!(announcement.arrival, self.messages.remove(at).arrival);
            }
            (answer, ..) => panic!("{answer:?}"),
        }
    }

    /// The owner of a receive never looked at its message.
    fn give_back(&mut self, rng: &mut Rng) {
        if self.delivered.is_empty() || self.held() > TOTAL / 2 {
            return;
        }
        let early = self.delivered.swap_remove(rng.below(self.delivered.len()));
        let (arrival, len) = (early.arrival, early.len as u64);
        let expected = self.receive_for(&arrival);
        match (self.matcher.give_back(early), expected) {
            (None, None) => {
                let before = |it: &Message| it.arrival.order < arrival.order;
                let at = self.messages.partition_point(before);
                let message = Message {
                    arrival,
                    state: State::Here,
                    claim: None,
                    cost: OVERHEAD + len,
                };
                self.messages.insert(at, message);
                self.count("given back");
            }
            (Some((receive, early)), Some(at)) => {
                self.given(at, &receive, len);
                self.delivered.push(early);
            }
            (got, _) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    fn join(&mut self, rng: &mut Rng) {
        let id = ConnectionId(self.fresh());
        let source = SourceId(rng.below(4) as u64);
        let before = self.committed();
        let promised = self.matcher.join(id, source);
        let left = TOTAL.saturating_sub(before);
        assert!(
            promised <= left.max(8 * OVERHEAD),
            "what is left, or the smallest promise"
        );
        assert!(promised > OVERHEAD, "a peer can always say something");
        self.peers.push(Peer {
            id,
            source,
            promised,
            stalled: None,
            claim: None,
            given: None,
            woken: false,
        });
    }

    fn leave(&mut self, rng: &mut Rng) {
        let peer = self.peers.remove(rng.below(self.peers.len()));
        let of_it = |it: &&Message| it.arrival.connection == peer.id;
        let landing = self
            .messages
            .iter()
            .filter(of_it)
            .find(|it| it.state == State::Landing);
        if let Some(arrival) = landing.map(|it| it.arrival) {
            self.matcher.abandoned(&arrival);
        }
        let gone = self.matcher.leave(peer.id);
        assert_eq!(gone.receive.map(|it| it.token), peer.given);
        self.messages
            .retain(|it| it.arrival.connection != peer.id || it.state == State::Here);
        self.woken.remove(&peer.id);
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
            self.matcher.awaits_credit(eager);
        }
        match rng.below(100) {
            0..30 => self.arrive(rng),
            30..50 => self.land(rng),
            50..75 => self.post(rng),
            75..81 => self.cancel(rng),
            81..85 => self.peek(rng),
            85..90 => self.claim(rng),
            90..95 => self.use_claim(rng),
            95..98 => self.give_back(rng),
            98 => self.join(rng),
            _ => {}
        }
        if self.peers.len() > 6 || rng.chance(1) && self.peers.len() > 1 {
            self.leave(rng);
        }
        if self.receives.len() > 12 {
            self.cancel(rng);
        }
        self.wakes(eager.filter(|it| before.get(it) > Some(&self.own(*it))));
    }

    fn wakes(&mut self, expected: Option<ConnectionId>) {
        let mut told = BTreeSet::new();
        while let Some(connection) = self.matcher.poll_wake() {
            told.insert(connection);
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
            assert!(told.contains(&expected), "its peer hears of the room");
            self.count("told of room");
        }
    }

    /// Everybody who was woken has asked again: nobody waits for what is there.
    fn settle(&mut self, rng: &mut Rng) {
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
        // Of those that wait for what they were promised, the first may be too long.
        let (mut promised, mut overbooked) = (0, 0);
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
            let alike = |it: &&Peer| it.source == peer.source && it.stalled.is_some();
            if cost > PER_PEER
                || self.of_source(peer.source) + cost > PER_PEER
                || self.peers.iter().filter(alike).count() > 1
            {
                continue; // It waits for room of its own, or behind another of the same sender.
            }
            let more = (own + cost).max(peer.promised) - own.max(peer.promised);
            wants += 1;
            fits += u64::from(free && self.committed() + more <= TOTAL);
        }
        assert!(promised == 0 || overbooked > 0, "what was promised is kept");
        assert!(
            fits < wants || wants == 0,
            "the first that waits for room gets it"
        );
    }

    fn check(&mut self, rng: &mut Rng) {
        self.settle(rng);
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
    assert_eq!(seen.len(), 14, "every way was taken: {seen:?}");
}
