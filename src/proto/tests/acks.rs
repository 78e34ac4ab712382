//! Answers to several frames in one: what goes out, and what a peer may say.

use std::collections::VecDeque;

use super::pair::{PLAIN, Pair, REMOTE, Rng, TestConnection, sizes};
use crate::error::{ErrorKind, Refusal};
use crate::limits::READ_REQUESTS_MAX;
use crate::proto::{ExtensionParams, OFFERED};
use crate::wire::{ByteOrder, Capabilities, FrameHeader};

/// Two machines that tolerate refusals, the second with a region of 8 bytes under the key 1.
fn pair() -> Pair {
    let params = ExtensionParams {
        capabilities: OFFERED,
        incarnation: 1,
        probes_after_ms: 0,
        refusals_max: 100,
    };
    let mut pair = Pair::idle_with(sizes(), params, params);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair.b.host.region(1, vec![0; 8], REMOTE);
    pair
}

/// Hands frames from `side` to `wire` until it has no more.
fn flush(side: &mut TestConnection, wire: &mut VecDeque<u8>) {
    loop {
        side.hand_out();
        if side.move_out(usize::MAX, wire) == 0 {
            break;
        }
    }
}

/// Returns what `b` answers to all that `a` has posted, taken in as one turn.
fn answers(pair: &mut Pair) -> Vec<u8> {
    flush(&mut pair.a, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    flush(&mut pair.b, &mut pair.a.wire);
    pair.a.wire.iter().copied().collect()
}

/// Encodes these frames, numbered from `id` on.
fn encoded(headers: &[FrameHeader], id: u8) -> Vec<u8> {
    let numbered = (id..).zip(headers);
    numbered
        .flat_map(|(id, header)| header.encode(ByteOrder::Native, id).to_vec())
        .collect()
}

/// docs/extension.md: "An ACKS frame stands for as many acknowledgements as its word says".
#[test]
fn what_one_turn_takes_in_is_acknowledged_by_one_frame() {
    let mut pair = pair();
    for token in 0..64 {
        match token % 4 {
            3 => pair.a.send_acked(token, b"m"),
            _ => pair.a.write(token, b"w", &[(1, 0, 1)]),
        };
    }
    let said = answers(&mut pair);
    assert_eq!(said, encoded(&[FrameHeader::Acks { count: 64 }], 1));
    pair.run();
    assert_eq!(pair.a.order, (0..64).collect::<Vec<_>>());
    assert!(pair.a.ended.values().all(|end| end.end.result.is_ok()));
    // A single ack needs no count.
    pair.a.write(64, b"w", &[(1, 0, 1)]);
    assert_eq!(answers(&mut pair), encoded(&[FrameHeader::Ack], 2));
}

/// docs/extension.md: "Where an operation is refused, REFUSED takes its place in the sequence,
/// between the acknowledgements before it and those after it."
#[test]
fn a_refusal_keeps_its_place_between_counts() {
    let mut pair = pair();
    let reason = Refusal::UnknownKey;
    pair.a.write(1, b"w", &[(1, 0, 1)]);
    pair.a.send_acked(2, b"m");
    pair.a.write(3, b"w", &[(9, 0, 1)]);
    pair.a.write(4, b"w", &[(9, 0, 1)]);
    pair.a.write(5, b"w", &[(1, 0, 1)]);
    pair.a.write(6, b"w", &[(9, 0, 1)]);
    for token in 7..10 {
        pair.a.write(token, b"w", &[(1, 0, 1)]);
    }
    let expected = [
        FrameHeader::Acks { count: 2 },
        FrameHeader::Refused { reason },
        FrameHeader::Refused { reason },
        FrameHeader::Ack,
        FrameHeader::Refused { reason },
        FrameHeader::Acks { count: 3 },
    ];
    assert_eq!(answers(&mut pair), encoded(&expected, 1));
    pair.run();
    assert_eq!(pair.a.order, (1..10).collect::<Vec<_>>());
    for (token, end) in &pair.a.ended {
        let refused = end
            .end
            .result
            .as_ref()
            .err()
            .and_then(|error| error.refusal());
        let expected = [3, 4, 6].contains(token).then_some(reason);
        assert_eq!(refused, expected, "{token}");
    }
}

/// docs/extension.md: "at most as many as are awaited; any other number breaks the protocol."
#[test]
fn counts_of_nothing_and_of_more_than_await_an_answer_are_violations() {
    for (written, count) in [(0, 0), (0, 1), (3, 0), (3, 4), (3, u64::MAX), (64, 65)] {
        let mut pair = pair();
        for token in 0..written {
            pair.a.write(token, b"w", &[(1, 0, 1)]);
        }
        flush(&mut pair.a, &mut VecDeque::new());
        pair.a
            .wire
            .extend(encoded(&[FrameHeader::Acks { count }], 1));
        while pair.a.move_in(usize::MAX) {}
        let fault = pair.a.machine.fault().map(|error| error.kind());
        assert_eq!(
            fault,
            Some(ErrorKind::ProtocolViolation),
            "{written} {count}"
        );
        assert!(pair.a.ended.is_empty(), "none is taken for done");
        pair.a.cut();
        assert_eq!(pair.a.ended.len() as u64, written);
    }
}

/// docs/extension.md, section 3: "A side that sends a frame of the extension without the agreement
/// that the table requires [...] breaks the protocol"; and no side gets ACKS that did not agree on
/// REFUSAL.
#[test]
fn peers_without_refusals_neither_say_nor_hear_counts() {
    let params = ExtensionParams {
        capabilities: OFFERED - Capabilities::REFUSAL,
        incarnation: 1,
        probes_after_ms: 0,
        refusals_max: 0,
    };
    for (params, id) in [(PLAIN, 0), (params, 1)] {
        let mut pair = Pair::idle_with(sizes(), params, params);
        pair.handshake(ByteOrder::Native, b"", b"");
        pair.a.send_acked(1, b"m");
        pair.a.send_acked(2, b"m");
        let plain = [FrameHeader::Ack, FrameHeader::Ack];
        assert_eq!(answers(&mut pair), encoded(&plain, id));
        pair.run();
        assert_eq!(pair.a.order, [1, 2]);
        pair.a.send_acked(3, b"m");
        flush(&mut pair.a, &mut VecDeque::new());
        let count = FrameHeader::Acks { count: 1 };
        pair.a.wire.extend(encoded(&[count], 0));
        pair.run();
        let fault = pair.a.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
    }
}

/// Acks that the peer does not take are one frame, however many they become.
#[test]
fn acks_that_the_peer_does_not_read_need_no_room() {
    let mut pair = pair();
    let write = FrameHeader::Write {
        data: None,
        ack: true,
        commit: false,
        segments: super::pair::segments(&[(1, 0, 0)]),
    };
    let write = encoded(&[write], 0);
    for _ in 0..READ_REQUESTS_MAX * 2 {
        pair.b.wire.extend(&write);
    }
    while pair.b.move_in(1 << 16) {}
    assert!(!pair.b.is_paused());
    assert_eq!(pair.b.machine.queued_answers(), 1);
    let mut nowhere = VecDeque::new();
    flush(&mut pair.b, &mut nowhere);
    let count = READ_REQUESTS_MAX as u64 * 2;
    let nowhere: Vec<u8> = nowhere.into();
    assert_eq!(nowhere, encoded(&[FrameHeader::Acks { count }], 1));
}

/// Answers in any mix of forms, in pieces of any size, while frames are still with the transport:
/// each is for the oldest frame that awaits one.
#[test]
fn any_mix_of_answers_ends_operations_in_their_order() {
    for seed in 0..200 * super::model::depth() {
        let rng = &mut Rng(seed);
        let mut pair = pair();
        let mut expected = VecDeque::new();
        for token in 0..1 + rng.below(60) as u64 {
            let is_write = rng.chance(60);
            match is_write {
                true => pair.a.write(token, b"w", &[(1, 0, 1)]),
                false => pair.a.send_acked(token, b"m"),
            };
            expected.push_back((token, is_write && rng.chance(30)));
        }
        let is_late = rng.chance(50);
        if is_late {
            pair.a.hand_out(); // The answers come before the transport gives the frames back.
        } else {
            flush(&mut pair.a, &mut VecDeque::new());
        }
        let reason = Refusal::Held;
        let mut at = 0;
        while at < expected.len() {
            let good = expected.range(at..).take_while(|(_, bad)| !bad).count();
            let count = rng.below(good + 1) as u64;
            let header = match count {
                0 if good == 0 => FrameHeader::Refused { reason },
                0 => FrameHeader::Ack,
                count => FrameHeader::Acks { count },
            };
            at += (count as usize).max(1);
            pair.a.wire.extend(encoded(&[header], 0));
        }
        while pair.a.move_in(1 + rng.below(100)) {
            pair.a.machine.check();
        }
        if is_late {
            assert!(pair.a.ended.is_empty(), "seed {seed}");
            flush(&mut pair.a, &mut VecDeque::new());
        }
        let tokens: Vec<u64> = expected.iter().map(|(token, _)| *token).collect();
        assert_eq!(pair.a.order, tokens, "seed {seed}");
        for (token, is_refused) in expected {
            let end = pair.a.ended.remove(&token).expect("it has ended");
            assert_eq!(end.end.result.is_err(), is_refused, "seed {seed}");
        }
    }
}
