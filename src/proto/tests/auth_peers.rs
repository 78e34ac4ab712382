//! Proving an authorization key on connections of connectionless endpoints: posts come before the
//! proof, and an attempt may be given up and begun again.

use super::extension::EXTENDED;
use super::pair::{Pair, TestConnection};
use super::receives::{extended, plain};
use crate::error::{Error, ErrorKind};
use crate::mr::{AuthSecret, Sealed};
use crate::proto::{Challenge, ChallengeResult, Lifecycle, MatchCriteria};
use crate::wire::{
    AuthHello, ByteOrder, Capabilities, ExtensionOffer, PeerData, Proof, ProofDecoded,
    ProofDecoder, transcript,
};

const KEY: &[u8] = b"tokio-fabric key";

fn demand(side: &mut TestConnection, key: &[u8], first: u8) {
    let nonce = std::array::from_fn(|at| first.wrapping_add(at as u8));
    side.machine.demand_key(AuthSecret::of(key), nonce);
}

/// A pair of which both sides have a key, and `a` has posted.
fn keyed(a: &[u8], b: &[u8]) -> Pair {
    let mut pair = extended().idle();
    demand(&mut pair.a, a, 0x20);
    demand(&mut pair.b, b, 0);
    pair.a.send(1, b"hello");
    pair
}

/// Moves all bytes that one side has to send now to the other.
fn pass(from: &mut TestConnection, to: &mut TestConnection) {
    from.nudge();
    from.hand_out();
    from.move_out(usize::MAX, &mut to.wire);
    while to.move_in(usize::MAX) {}
}

/// Returns all bytes that one side sends now.
fn say(side: &mut TestConnection) -> Vec<u8> {
    let mut said = std::collections::VecDeque::new();
    side.nudge();
    side.hand_out();
    side.move_out(usize::MAX, &mut said);
    said.into()
}

fn fault(side: &TestConnection) -> Option<ErrorKind> {
    side.machine.fault().map(Error::kind)
}

/// docs/extension.md, section 9: what was posted before goes out to a peer that has proven the key.
#[test]
fn posts_wait_for_the_proof_and_then_go_out() {
    let mut pair = keyed(KEY, KEY);
    pair.handshake_peers(ByteOrder::Native);
    pair.b.receive_any(2, MatchCriteria::Message, 5);
    assert_eq!(pair.a.events, [r#"connected b"""#]);
    assert_eq!(pair.b.end_of(2), (Ok(5), b"hello".to_vec()));
    assert!(pair.a.ended.contains_key(&1));
}

/// docs/extension.md, section 9: a peer with another key is refused, even by a side with posts
/// waiting, and those stay.
#[test]
fn a_wrong_key_is_refused_whatever_is_posted() {
    let mut pair = keyed(KEY, b"another key");
    pair.b.send(2, b"not for you");
    pair.handshake_peers(ByteOrder::Native);
    for side in [&pair.a, &pair.b] {
        assert_eq!(fault(side), Some(ErrorKind::NotAuthorized));
        assert!(side.ended.is_empty() && side.events.is_empty());
    }
}

/// docs/extension.md, section 9: a side with a key connects with no peer without one, nor with a
/// plain peer.
#[test]
fn who_has_no_key_is_refused_from_either_side() {
    for other in [extended(), plain()] {
        for dials in [true, false] {
            let mut pair = other.idle();
            pair.a = extended().idle().a;
            demand(&mut pair.a, KEY, 0x20);
            if !dials {
                std::mem::swap(&mut pair.a, &mut pair.b);
            }
            pair.handshake_peers(ByteOrder::Native);
            let keyed = if dials { &pair.a } else { &pair.b };
            assert_eq!(fault(keyed), Some(ErrorKind::NotAuthorized));
            assert!(pair.a.events.is_empty() && pair.b.events.iter().all(|it| it != "connected"));
        }
    }
}

/// Another attempt proves the key anew, whichever side dials it, and however far the first had
/// come.
#[test]
fn an_attempt_that_begins_again_proves_the_key_again() {
    for rounds in 0..6 {
        for dials_again in [true, false] {
            let mut pair = keyed(KEY, KEY);
            pair.a.machine.begin_connect_peer();
            pair.a.hand_out();
            pair.a.move_out(usize::MAX, &mut pair.b.wire);
            let asked = PeerData::read(pair.request().data()).unwrap();
            pair.b
                .machine
                .begin_accept_peer(&asked, ByteOrder::Native, None);
            for _ in 0..rounds {
                let Pair { a, b } = &mut pair;
                pass(b, a);
                pass(a, b);
            }
            if pair.a.machine.lifecycle() == Lifecycle::Connected {
                break;
            }
            pair.b = keyed(KEY, KEY).b;
            pair.a.wire.clear();
            pair.a.forget_stage();
            pair.a.machine.reset_attempt();
            demand(&mut pair.a, KEY, 0x77);
            if !dials_again {
                std::mem::swap(&mut pair.a, &mut pair.b);
            }
            pair.handshake_peers(ByteOrder::Native);
            let to = if dials_again {
                &mut pair.b
            } else {
                &mut pair.a
            };
            to.receive_any(2, MatchCriteria::Message, 5);
            pair.run();
            let to = if dials_again {
                &mut pair.b
            } else {
                &mut pair.a
            };
            assert_eq!(to.end_of(2), (Ok(5), b"hello".to_vec()));
        }
    }
}

/// docs/extension.md, sections 8 and 9: a peer that announces no messages is not agreed with on
/// credit, and that is no sign of a man in the middle.
#[test]
fn a_peer_without_announcements_proves_its_key_like_others() {
    let old = Capabilities::CREDIT | Capabilities::CLOSE | Capabilities::AUTH;
    let mut pair = extended().idle();
    demand(&mut pair.b, KEY, 0);
    pair.a.machine.begin_connect_peer();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    let mut data = pair.request().into_data().to_vec();
    data[17] = old.bits() as u8;
    let asked = PeerData::read(&data).unwrap();
    pair.b
        .machine
        .begin_accept_peer(&asked, ByteOrder::Native, None);
    let agreed = pair.b.machine.agreed();
    assert_eq!(agreed, Capabilities::CLOSE | Capabilities::AUTH);

    let said = say(&mut pair.b);
    // The challenge is the last that was said: a header of 16 bytes, and the auth_hello.
    let mut decoder = ProofDecoder::new(ByteOrder::Native);
    let Ok(ProofDecoded::Proof { proof, .. }) = decoder.feed(&said[said.len() - 52..]) else {
        panic!("no proof");
    };
    let Proof::Challenge(theirs) = proof else {
        panic!("no challenge");
    };
    let ours = AuthHello::new(ExtensionOffer::new(old), [7; 32]);
    let session = AuthSecret::of(KEY).session(
        &transcript(ExtensionOffer::new(agreed), &theirs, &ours),
        None,
    );
    let seal = session.seal(Sealed::InitiatorProof, &[]);
    let answer = Proof::Answer(ours, seal).encode(ByteOrder::Native, 0);
    pair.b.wire.extend(&answer);
    while pair.b.move_in(usize::MAX) {}
    let answer = say(&mut pair.b);
    assert_eq!(
        (fault(&pair.b), answer[1], answer[4]),
        (None, 0x81, 3),
        "its own proof"
    );
}

/// An attempt for which the key was not demanded again fails.
#[test]
fn an_attempt_that_begins_again_without_its_key_fails() {
    for dials in [true, false] {
        let mut pair = keyed(KEY, KEY);
        pair.a.machine.reset_attempt();
        if !dials {
            std::mem::swap(&mut pair.a, &mut pair.b);
        }
        pair.handshake_peers(ByteOrder::Native);
        let forgetful = if dials { &pair.a } else { &pair.b };
        assert_eq!(fault(forgetful), Some(ErrorKind::NotAuthorized));
    }
}

/// docs/extension.md, section 9: an endpoint whose peers have keys of their own judges an answer by
/// each of its keys, and knows by which it was given. No bit of the proof can be changed.
#[test]
fn an_answer_is_judged_by_each_of_several_keys() {
    let keys: [&[u8]; 3] = [b"one key", KEY, b"a third key"];
    let secrets = || keys.map(AuthSecret::of).to_vec();
    // The answer of an initiator with this key to the challenge of an acceptor with all keys.
    let exchange = |key: &[u8]| {
        let mut pair = extended().idle();
        demand(&mut pair.a, key, 0x20);
        pair.a.machine.begin_connect_peer();
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        let asked = PeerData::read(pair.request().data()).unwrap();
        let life = std::num::NonZeroU32::MIN;
        let asked = (&asked, ByteOrder::Native);
        let (challenge, bytes) =
            Challenge::new(EXTENDED, secrets(), ([0; 32], None), life, asked).unwrap();
        pair.a.wire.extend(&bytes);
        while pair.a.move_in(usize::MAX) {}
        (challenge, say(&mut pair.a))
    };
    for key in keys {
        let (mut challenge, answer) = exchange(key);
        let Ok(ChallengeResult::Proven(proven)) = challenge.feed(&answer) else {
            panic!("it is one of the keys");
        };
        assert!(*proven.secret() == AuthSecret::of(key));
        // Behind the header of the frame.
        for bit in 16 * 8..answer.len() * 8 {
            let (mut challenge, mut answer) = exchange(key);
            answer[bit / 8] ^= 1 << (bit % 8);
            let judged = challenge.feed(&answer);
            assert!(
                !matches!(judged, Ok(ChallengeResult::Proven(_))),
                "bit {bit}"
            );
        }
    }
    let (mut challenge, answer) = exchange(b"none of them");
    let refused = challenge.feed(&answer);
    assert!(matches!(refused, Ok(ChallengeResult::Refused(_))));
}
