//! What connections do: they attach, bring messages and disconnect.

use super::*;

impl Model {
    pub(super) fn arrive(&mut self, rng: &mut Rng) {
        let at = rng.below(self.peers.len());
        let peer = &self.peers[at];
        if peer.stalled.is_none() || peer.woken || rng.chance(10) {
            self.arrive_at(at, rng);
        }
    }

    pub(super) fn arrive_at(&mut self, at: usize, rng: &mut Rng) {
        let (connection, source) = (self.peers[at].id, self.peers[at].source);
        let busy =
            |it: &Message| it.arrival.connection == connection && it.state == State::Receiving;
        if self.messages.iter().any(busy) {
            return;
        }
        let again = self.peers[at].stalled;
        let (mut arrival, index) = again.unwrap_or_else(|| {
            let kind = MessageKind::of((!rng.chance(20)).then(|| rng.below(6) as u64));
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
        let next = rng.chance(50);
        let arrived = match index {
            None => self.matcher.begin_message(&mut arrival, |_| next),
            Some(index) => {
                let mut announcement = Announcement { arrival, index };
                let arrived = self.matcher.begin_announcement(&mut announcement, |_| next);
                arrival = announcement.arrival;
                arrived
            }
        };
        let peer = &mut self.peers[at];
        peer.woken = false;
        self.woken.remove(&connection);
        if peer.claim.is_some() {
            assert!(
                matches!(arrived, ArrivalOutcome::Stalled),
                "its receive has not come"
            );
            return;
        }
        peer.stalled = None;
        if let Some(token) = peer.given.take() {
            let ArrivalOutcome::Matched(receive) = arrived else {
                panic!("the claim's receive is for it");
            };
            assert_eq!(receive.receive.key, Key::from_bits(token));
            self.count("claimed while waiting");
            return;
        }
        let promised = peer.promised;
        let (own, held) = (self.own(connection), self.held());
        match arrived {
            ArrivalOutcome::Matched(receive) => {
                let at = self.receive_for(&arrival).expect("one takes it");
                self.given_and_armed(at, &receive, arrival.len, next);
                self.count("expected");
            }
            ArrivalOutcome::Store => {
                assert!(self.receive_for(&arrival).is_none());
                assert!(held + cost <= TOTAL, "bytes held never pass the total");
                let shares = own + cost <= promised || self.of_source(source) + cost <= PER_PEER;
                assert!(shares, "nor a peer's budget");
                let state = index.map_or(State::Receiving, State::Announced);
                let claim = None;
                self.messages.push(Message {
                    arrival,
                    state,
                    claim,
                    cost,
                });
                self.count("kept");
            }
            ArrivalOutcome::Stalled => {
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

    pub(super) fn land(&mut self, rng: &mut Rng) {
        let landing = |it: &Message| it.state == State::Receiving;
        let Some(at) = self.messages.iter().position(landing) else {
            return;
        };
        let arrival = self.messages[at].arrival;
        if rng.chance(10) {
            self.messages.remove(at);
            self.matcher.abort_message(&arrival);
            return;
        }
        let len = arrival.len as usize;
        let payload = Payload::empty();
        let overflow = 0;
        let unexpected = ReceivedMessage {
            arrival,
            payload,
            len,
            overflow,
        };
        let expected = self.receive_for(&arrival);
        match (self.matcher.store_message(unexpected), expected) {
            (None, None) => self.messages[at].state = State::Stored,
            (Some((receive, unexpected)), Some(receive_at)) => {
                self.messages.remove(at);
                self.given(receive_at, &receive, arrival.len);
                self.delivered.push(unexpected);
                self.count("posted while it landed");
            }
            (got, _) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    /// Requeues a message whose receive's owner never looked at it.
    pub(super) fn requeue_message(&mut self, rng: &mut Rng) {
        if self.delivered.is_empty() || self.held() > TOTAL / 2 {
            return;
        }
        let unexpected = self.delivered.swap_remove(rng.below(self.delivered.len()));
        let (arrival, len) = (unexpected.arrival, unexpected.len as u64);
        let expected = self.receive_for(&arrival);
        match (self.matcher.requeue_message(unexpected), expected) {
            (None, None) => {
                let before = |it: &Message| it.arrival.order < arrival.order;
                let at = self.messages.partition_point(before);
                let message = Message {
                    arrival,
                    state: State::Stored,
                    claim: None,
                    cost: OVERHEAD + len,
                };
                self.messages.insert(at, message);
                self.count("given back");
            }
            (Some((receive, unexpected)), Some(at)) => {
                self.given(at, &receive, len);
                self.delivered.push(unexpected);
            }
            (got, _) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    pub(super) fn join(&mut self, rng: &mut Rng) {
        let id = ConnectionId::numbered(self.fresh());
        let number = rng.below(4) as u64;
        let source = SourceId::of_peer(number, number as u16 % 2);
        let before = self.committed();
        let promised = self.matcher.attach(id, source);
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

    pub(super) fn disconnect(&mut self, rng: &mut Rng) {
        let peer = self.peers.remove(rng.below(self.peers.len()));
        let of_it = |it: &&Message| it.arrival.connection == peer.id;
        let landing = self
            .messages
            .iter()
            .filter(of_it)
            .find(|it| it.state == State::Receiving);
        if let Some(arrival) = landing.map(|it| it.arrival) {
            self.matcher.abort_message(&arrival);
        }
        let gone = self.matcher.detach(peer.id);
        assert_eq!(gone.map(|it| it.key), peer.given.map(Key::from_bits));
        self.messages
            .retain(|it| it.arrival.connection != peer.id || it.state == State::Stored);
        self.woken.remove(&peer.id);
    }
}
