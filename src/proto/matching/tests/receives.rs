//! What the application does: posts, takes back, looks and claims.

use super::*;

impl Model {
    pub(super) fn some_wanted(&self, rng: &mut Rng) -> (MatchCriteria, Option<SourceId>) {
        let wanted = if rng.chance(20) {
            MatchCriteria::Message
        } else {
            MatchCriteria::Tagged {
                tag: rng.below(6) as u64,
                ignore: [0, 0, 0, 0, 1, 6, !0][rng.below(7)],
            }
        };
        let number = rng.below(4) as u64;
        let key = number as u16 % 2;
        let source = match rng.below(10) {
            0..3 => Some(SourceId::of_peer(number, key)),
            3 => Some(SourceId::all_of_key(key)),
            _ => None,
        };
        (wanted, source)
    }

    pub(super) fn post(&mut self, rng: &mut Rng) {
        let (wanted, source) = self.some_wanted(rng);
        let token = self.fresh();
        if rng.chance(10) {
            let (left, min) = (rng.below(900), rng.below(200));
            let cursor =
                BufferCursor::new(Payload::from_vec(vec![0; left]), min).expect("a buffer");
            let key = self
                .matcher
                .post_multi(cursor, wanted, source, Key::from_bits(token));
            let many = Some((left, min, false));
            let receive = Receive {
                place: token,
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
            wanted,
            source,
            order: 0,
            key: Key::from_bits(token),
        };
        let found = self.matcher.post(receive);
        self.found(found, token, wanted, source, rng);
    }

    pub(super) fn found(
        &mut self,
        found: MatchResult,
        token: u64,
        wanted: MatchCriteria,
        source: Option<SourceId>,
        rng: &mut Rng,
    ) {
        let expected = self.message_for(wanted, source);
        let expected = expected.map(|at| self.messages.remove(at));
        match (found, expected) {
            (MatchResult::Posted(key), None) => {
                let receive = Receive {
                    place: token,
                    key,
                    wanted,
                    source,
                    many: None,
                };
                self.receives.push(receive);
                // A receive that was given back has its old place.
                self.receives.sort_by_key(|it| it.place);
            }
            (MatchResult::Unexpected(unexpected), Some(message)) => {
                assert_eq!(
                    unexpected.arrival, message.arrival,
                    "the oldest that it takes"
                );
                self.count("found unexpected");
                self.delivered.push(unexpected);
            }
            (MatchResult::Announced(receive, announcement), Some(message)) => {
                assert_eq!(receive.key, Key::from_bits(token));
                assert_eq!(announcement.arrival, message.arrival);
                assert_eq!(State::Announced(announcement.index), message.state);
                self.count("found announced");
                if rng.chance(30) {
                    // The connection of the message turns out to be gone.
                    let found = self.matcher.requeue_receive(receive);
                    self.found(found, token, wanted, source, rng);
                }
            }
            (found, expected) => panic!("{found:?} where {expected:?} was expected"),
        }
    }

    /// Notes that the receive at this place has got a message of this length.
    pub(super) fn given(&mut self, at: usize, got: &MatchedReceive, len: u64) {
        let receive = &mut self.receives[at];
        let (place, taken) = (Key::from_bits(receive.place), got.receive);
        assert_eq!(taken.key, place, "the oldest that takes it");
        let wanted = match receive.wanted {
            MatchCriteria::Message => MatchCriteria::Message,
            MatchCriteria::Tagged { tag, ignore } => MatchCriteria::Tagged {
                tag: tag & !ignore,
                ignore,
            },
        };
        assert_eq!((taken.wanted, taken.source), (wanted, receive.source));
        let Some((left, _, armed)) = &mut receive.many else {
            assert!(got.part.is_none());
            self.receives.remove(at);
            return;
        };
        let part = (*left).min(len as usize);
        assert_eq!(
            got.part.as_ref().map(Payload::len),
            Some(part),
            "a part as long as the message, if it fits"
        );
        *left -= part;
        *armed = false;
        self.rearm(at);
    }

    /// Does the same where the rest of a buffer may have been armed again at once.
    pub(super) fn given_and_armed(
        &mut self,
        at: usize,
        got: &MatchedReceive,
        len: u64,
        next: bool,
    ) {
        let (key, many) = (self.receives[at].key, self.receives[at].many);
        let rest = many.map(|(left, min, _)| (left - left.min(len as usize), min.max(1)));
        let stays = next && rest.is_some_and(|(left, min)| left >= min);
        assert_eq!(self.matcher.is_armed(key), stays);
        let (true, Some((left, min, _))) = (stays, many) else {
            return self.given(at, got, len);
        };
        let receive = &mut self.receives[at];
        let part = left.min(len as usize);
        assert_eq!(got.receive.key, Key::from_bits(receive.place));
        assert_eq!(got.part.as_ref().map(Payload::len), Some(part));
        receive.many = Some((left - part, min, true));
        self.count("stays armed");
    }

    /// Lets the rest of a buffer take the next messages.
    pub(super) fn rearm(&mut self, at: usize) {
        loop {
            let receive = &self.receives[at];
            let (wanted, source) = (receive.wanted, receive.source);
            let Some((left, min, false)) = receive.many else {
                return;
            };
            let expected = self.message_for(wanted, source);
            let place = receive.place;
            let armed = self.matcher.arm(receive.key);
            if left < min.max(1) {
                assert!(matches!(armed, ArmOutcome::Consumed));
                let receive = self.receives.remove(at);
                assert!(self.matcher.cancel(receive.key).is_some());
                self.count("consumed");
                return;
            }
            let (part, order) = match armed {
                ArmOutcome::Posted => {
                    assert!(expected.is_none(), "a message that came earlier is taken");
                    self.receives[at].many = Some((left, min, true));
                    return;
                }
                ArmOutcome::Unexpected(part, unexpected) => (part, unexpected.arrival.order),
                ArmOutcome::Announced(part, announcement) => (part, announcement.arrival.order),
                ArmOutcome::Consumed => panic!("there is room"),
            };
            let message = self.messages.remove(expected.expect("one was found"));
            assert_eq!(order, message.arrival.order, "the oldest that it takes");
            let taken = left.min(message.arrival.len as usize);
            assert_eq!(part.receive.key, Key::from_bits(place));
            assert_eq!(part.part.as_ref().map(Payload::len), Some(taken));
            self.receives[at].many = Some((left - taken, min, false));
            self.count("part of a buffer");
        }
    }

    pub(super) fn cancel(&mut self, rng: &mut Rng) {
        if self.receives.is_empty() {
            return;
        }
        let receive = self.receives.remove(rng.below(self.receives.len()));
        let rest = self.matcher.cancel(receive.key);
        assert_eq!(rest.is_some(), receive.many.is_some());
        assert!(self.matcher.cancel(receive.key).is_none(), "once");
    }

    /// Peeks for a kept message that such a receive takes, or else one that waits.
    pub(super) fn peek(&mut self, rng: &mut Rng) {
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

    pub(super) fn claim(&mut self, rng: &mut Rng) {
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
    pub(super) fn use_claim(&mut self, rng: &mut Rng) {
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
                    Some(
                        ClaimedReceive::Unexpected(receive, _)
                        | ClaimedReceive::Announced(receive, _),
                    ),
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
            wanted: MatchCriteria::Message,
            source: None,
            order: 0,
            key: Key::from_bits(token),
        };
        let answer = self
            .matcher
            .take_claimed(claim, receive)
            .expect("it is there");
        match (answer, peer, message) {
            (ClaimedReceive::Pending, Some(peer), None) => {
                self.peers[peer].claim = None;
                self.peers[peer].given = Some(token);
            }
            (ClaimedReceive::Unexpected(_, unexpected), None, Some(at)) => {
                assert_eq!(unexpected.arrival, self.messages.remove(at).arrival);
            }
            (ClaimedReceive::Announced(_, announcement), None, Some(at)) => {
                assert_eq!(announcement.arrival, self.messages.remove(at).arrival);
            }
            (answer, ..) => panic!("{answer:?}"),
        }
    }
}
