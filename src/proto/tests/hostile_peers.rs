//! Peers of a connectionless endpoint that mean no good: random and damaged streams of tags and
//! announcements, and what is asked of a machine when it is too late.

use super::model::depth;
use super::pair::{REMOTE, Rng, TestConnection, segments};
use super::receives::{Setup, announced, extended, plain, tagged};
use crate::error::ErrorKind;
use crate::limits::{DIRECT_RECEIVE_MIN, UNEXPECTED_OVERHEAD};
use crate::proto::{LongMessages, MatchCriteria};
use crate::wire::{ByteOrder, FrameHeader};

const PROMISED: u64 = 3000;

/// A connected machine with some of everything under way, whose peer is the test.
fn victim(rng: &mut Rng) -> (TestConnection, Vec<u64>) {
    let setup = Setup {
        promised: PROMISED,
        long_messages: [
            announced(100),
            announced(10_000),
            LongMessages::Refused { max: 300 },
        ][rng.below(3)],
        ..[plain(), extended()][rng.below(2)]
    };
    let mut pair = setup.connected();
    pair.b.host.region(1, vec![0; 4096], REMOTE);
    let mut tokens = Vec::new();
    for token in 0..rng.below(6) as u64 {
        pair.b
            .receive_tagged(token, rng.below(3) as u64, rng.below(400));
        let wanted = MatchCriteria::Message;
        pair.b.receive_any(10 + token, wanted, rng.below(400));
        let bytes = vec![1; rng.below(300)];
        pair.b
            .post(20 + token, tagged(5, &bytes, None, rng.chance(50)));
        tokens.extend([token, 10 + token, 20 + token]);
    }
    if rng.chance(80) {
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut pair.a.wire);
    }
    (pair.b, tokens)
}

fn some_frame(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(200) as u64;
    let data = rng.chance(30).then(|| rng.next());
    let ack = rng.chance(30);
    let index = 1 + rng.below(4) as u8;
    let tag = rng.below(4) as u64;
    let header = match rng.below(12) {
        0 | 1 => FrameHeader::Tagged {
            data,
            tag,
            ack,
            len,
        },
        2 => FrameHeader::Message { data, ack, len },
        3..6 => FrameHeader::Rts {
            index,
            tag: rng.chance(80).then_some(tag),
            data,
            ack,
            len: if rng.chance(80) { 50 } else { rng.next() },
        },
        6 | 7 => FrameHeader::Cts { index },
        8..10 => FrameHeader::Data {
            index,
            has_data: data.is_some(),
            ack,
            len: if rng.chance(80) { 50 } else { len },
        },
        10 => FrameHeader::Ack,
        _ => FrameHeader::Write {
            data: None,
            ack: true,
            commit: false,
            segments: segments(&[(1, 7, len)]),
        },
    };
    let mut bytes = header.encode(ByteOrder::Native, 0).to_vec();
    bytes.extend(rng.bytes(header.payload_len() as usize));
    bytes
}

/// Random streams end in a fault or keep the machine's order; what is kept stays within the
/// promise; everything that was posted ends once, or is still posted.
#[test]
fn no_stream_of_a_peer_breaks_the_machine() {
    let (mut faults, mut fine) = (0, 0);
    for seed in 0..10_000 * depth() {
        let rng = &mut Rng(seed);
        let (mut victim, tokens) = victim(rng);
        let mut stream: Vec<u8> = Vec::new();
        for _ in 0..1 + rng.below(12) {
            stream.extend(some_frame(rng));
        }
        if rng.chance(50) {
            let at = rng.below(stream.len());
            stream[at] ^= 1 << rng.below(8);
        }
        victim.wire.extend(stream);
        victim.finished = rng.chance(30);
        for _ in 0..60 {
            victim.nudge();
            victim.move_in(1 + rng.below(300));
            victim.machine.check();
            assert!(victim.shared().held_bytes() <= PROMISED, "seed {seed}");
            if rng.chance(20) {
                victim.hand_out();
                victim.move_out(rng.below(400), &mut Default::default());
            }
            if rng.chance(5) {
                let token = 100 + rng.next() % 1000;
                if victim.ended.contains_key(&token) || tokens.contains(&token) {
                    continue;
                }
                victim.receive_tagged(token, 2, 10);
                victim.withdraw_shared(token);
                victim.order.retain(|it| *it != token);
                victim.ended.remove(&token);
            }
            victim.watch();
        }
        match victim.machine.fault().map(|error| error.kind()) {
            None => fine += 1,
            Some(ErrorKind::ProtocolViolation | ErrorKind::PeerClosed) => faults += 1,
            Some(ErrorKind::AccessDenied | ErrorKind::TooLarge) => faults += 1,
            Some(kind) => panic!("seed {seed}: {kind:?}"),
        }
        victim.cut();
        assert!(victim.machine.lifecycle().is_closed());
        assert!(victim.shared().is_at_rest(), "seed {seed}");
        for token in tokens {
            let posted = victim.shared().posted_tokens();
            let posted = posted.iter().filter(|it| **it == token).count();
            let ended = usize::from(victim.ended.contains_key(&token));
            assert_eq!(posted + ended, 1, "seed {seed}: {token}");
        }
    }
    assert!(faults > 1000 && fine > 500, "{faults}, {fine}");
}

/// Announcements are bounded by their indices and by the store, whatever lengths they name.
#[test]
fn a_flood_of_announcements_takes_no_memory() {
    for setup in [plain(), extended()] {
        let setup = Setup {
            promised: 200 * UNEXPECTED_OVERHEAD as u64,
            ..setup
        };
        let mut pair = setup.connected();
        for index in 1..=254 {
            let rts = FrameHeader::Rts {
                index,
                tag: Some(1),
                data: None,
                ack: true,
                len: u64::MAX - u64::from(index),
            };
            pair.b
                .wire
                .extend(rts.encode(ByteOrder::Native, 0).iter().copied());
        }
        while pair.b.move_in(1 << 16) {}
        assert!(pair.b.is_paused(), "there is room for 200");
        assert_eq!(pair.b.shared().kept.len(), 200);
        // A receive takes one, which makes room for one more.
        pair.b.receive_tagged(1, 1, 10);
        pair.b.nudge();
        while pair.b.move_in(1 << 16) {}
        assert!(pair.b.is_paused());
        assert_eq!(pair.b.shared().kept.len(), 200);
        pair.b.cut();
        assert_eq!(
            pair.b.shared().posted.len(),
            1,
            "the next peer's message may have it"
        );
        assert_eq!(pair.b.shared().kept.len(), 0);
    }
}

/// A peer that has gone after a whole message leaves it readable: it waits in the socket until a
/// receive takes it. One that was cut, or only announced, never comes.
#[test]
fn what_a_peer_said_before_it_finished_is_heard() {
    let frame = |header: FrameHeader, len: usize| {
        let mut bytes = header.encode(ByteOrder::Native, 0).to_vec();
        bytes.extend(vec![7; len]);
        bytes
    };
    let message = FrameHeader::Tagged {
        data: None,
        tag: 1,
        ack: false,
        len: 500,
    };
    let rts = FrameHeader::Rts {
        index: 1,
        tag: Some(1),
        data: None,
        ack: false,
        len: 0,
    };
    for (what, bytes, heard) in [
        ("whole", frame(message.clone(), 500), true),
        ("cut", frame(message, 499), false),
        ("announced", frame(rts, 0), false),
    ] {
        let setup = Setup {
            promised: 0,
            ..plain()
        };
        let mut pair = setup.connected();
        pair.b.wire.extend(bytes);
        while pair.b.move_in(usize::MAX) {}
        assert!(pair.b.is_paused(), "{what}");
        pair.b.finished = true;
        pair.b.watch();
        assert_eq!(pair.b.machine.fault().is_none(), heard, "{what}");
        if heard {
            pair.b.receive_tagged(1, 1, 500);
            pair.b.nudge();
            while pair.b.move_in(usize::MAX) {}
            assert_eq!(pair.b.end_of(1), (Ok(500), vec![7; 500]));
            let fault = pair.b.machine.fault().map(|error| error.kind());
            assert_eq!(fault, Some(ErrorKind::PeerClosed));
        }
    }
}

/// No room is kept for a message that was being stored when its connection ended, also when the
/// link took its memory along.
#[test]
fn half_a_message_is_not_kept() {
    for len in [500, 3 * DIRECT_RECEIVE_MIN] {
        for is_link_gone in [false, true] {
            let mut pair = plain().connected();
            let message = FrameHeader::Tagged {
                data: None,
                tag: 1,
                ack: false,
                len: len as u64,
            };
            let header = message.encode(ByteOrder::Native, 0);
            pair.b.wire.extend(header.iter().copied());
            pair.b.wire.extend(vec![7; 300]);
            for _ in 0..3 {
                pair.b.move_in(usize::MAX);
            }
            assert_eq!(pair.b.shared().kept.len(), 1);
            if is_link_gone {
                pair.b.machine.forget_submitted();
                pair.b.machine.handle_closed(&mut pair.b.host);
            } else {
                pair.b.cut();
            }
            assert_eq!(pair.b.shared().kept.len(), 0);
        }
    }
}
