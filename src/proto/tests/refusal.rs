//! Refused operations on a connection that lives on: what each side reports, in which order, and
//! what a peer that gets it wrong gains.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::pair::{PLAIN, Pair, REMOTE, Rng, TestConnection, memory_of, segments, sizes};
use crate::error::{ErrorKind, OperationKind, Refusal};
use crate::info::{Caps, SideCaps};
use crate::limits::{DIRECT_RECEIVE_MIN, REFUSALS_MAX};
use crate::mr::Access;
use crate::proto::{ExtensionParams, OFFERED, Sizes};
use crate::wire::{ByteOrder, FrameHeader};

const PAGE: &str = include_str!("../../../docs/extension.md");

/// Two machines that agreed to tolerate so many refusals.
pub(super) fn living_with(refusals_max: u32) -> Pair {
    let params = ExtensionParams {
        capabilities: OFFERED,
        incarnation: 1,
        probes_after_ms: 0,
        refusals_max,
    };
    let mut pair = Pair::idle_with(sizes(), params, params);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair
}

/// Why the operation was refused.
#[track_caller]
pub(super) fn refusal_of(side: &mut TestConnection, token: u64) -> Option<Refusal> {
    let end = side.ended.remove(&token).expect("the operation has ended");
    let error = end.end.result.clone().expect_err("it was refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied);
    error.refusal()
}

/// Hands frames from `side` to `wire` until it has no more.
pub(super) fn flush(side: &mut TestConnection, wire: &mut VecDeque<u8>) {
    loop {
        side.hand_out();
        if side.move_out(usize::MAX, wire) == 0 {
            break;
        }
    }
}

/// The frames' bytes of one side in this exchange of the page.
pub(super) fn exchange(name: &str, of: char) -> Vec<u8> {
    let begin = format!("```{name}\n");
    let (_, block) = PAGE.split_once(&begin).expect("the exchange");
    let (block, _) = block.split_once("```").expect("its end");
    let mut bytes = Vec::new();
    for line in block.lines().filter(|line| line.starts_with(of)) {
        let (_, hex) = line.split_once(':').expect("a side and its bytes");
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        for pair in digits.chunks(2) {
            let pair = std::str::from_utf8(pair).expect("digits");
            bytes.push(u8::from_str_radix(pair, 16).expect("hexadecimal"));
        }
    }
    bytes
}

/// docs/extension.md, section 10: the exchange of the page is what the two sides say.
#[cfg(target_endian = "little")]
#[test]
fn the_exchange_of_the_page_is_what_two_machines_say() {
    let mut pair = living_with(8);
    pair.b.host.region(7, b"0123".to_vec(), REMOTE);
    pair.a.write_with(1, b"ab", None, false, &[(7, 1, 2)]);
    pair.a.write(2, b"cd", &[(9, 0, 2)]);
    pair.a.read(3, 4, &[(7, 0, 4)]);
    pair.a.read(4, 1, &[(7, 4, 1)]);
    flush(&mut pair.a, &mut pair.b.wire);
    let said: Vec<u8> = pair.b.wire.iter().copied().collect();
    assert_eq!(said, exchange("exchange", 'a'));
    while pair.b.move_in(usize::MAX) {}
    flush(&mut pair.b, &mut pair.a.wire);
    let said: Vec<u8> = pair.a.wire.iter().copied().collect();
    assert_eq!(said, exchange("exchange", 'b'));
    pair.run();
    assert_eq!(pair.a.end_of(1), (Ok(2), b"ab".to_vec()));
    assert_eq!(refusal_of(&mut pair.a, 2), Some(Refusal::UnknownKey));
    assert_eq!(pair.a.end_of(3), (Ok(4), b"0ab3".to_vec()));
    assert_eq!(refusal_of(&mut pair.a, 4), Some(Refusal::OutOfBounds));
}

/// docs/extension.md: "A refused operation fails at its initiator with the reason", each in its
/// place among good ones, and nothing of it is written.
#[test]
fn each_reason_reaches_the_initiator_and_good_operations_around_it_are_done() {
    for most in [7, 1000, usize::MAX] {
        let mut pair = living_with(100);
        let region = pair.b.host.region(1, vec![5; 64], REMOTE);
        pair.b.host.region(2, vec![5; 64], Access::REMOTE_READ);
        pair.b.host.region(3, vec![5; 64], Access::REMOTE_WRITE);
        let revoked = pair.b.host.region(4, vec![5; 64], REMOTE);
        revoked.gate().revoke();
        let held = pair.b.host.region(5, vec![5; 64], REMOTE);
        held.gate().begin_quiesce().unwrap();
        let wrong = |write: bool| {
            let denied = if write { 2 } else { 3 };
            [
                ([(99, 0, 8)], Refusal::UnknownKey),
                ([(1, 57, 8)], Refusal::OutOfBounds),
                ([(1, u64::MAX, 8)], Refusal::OutOfBounds),
                ([(denied, 0, 8)], Refusal::AccessDenied),
                ([(4, 0, 8)], Refusal::Revoked),
                ([(5, 0, 8)], Refusal::Held),
            ]
        };
        pair.b.receive(1, 3);
        pair.a.send_acked(1, b"one");
        let mut token = 1;
        let mut expected = Vec::new();
        for write in [true, false] {
            for (to, reason) in wrong(write) {
                token += 2;
                if write {
                    pair.a.write(token, &[9; 8], &to);
                    pair.a.write(token + 1, &[token as u8], &[(1, token, 1)]);
                } else {
                    pair.a.read(token, 8, &to);
                    pair.a.read(token + 1, 1, &[(1, token - 12, 1)]);
                }
                expected.push((token, reason));
            }
        }
        pair.run_in_pieces(most);
        let order: Vec<u64> = pair.a.order.clone();
        assert!(order.is_sorted(), "answers come in order: {order:?}");
        for (token, reason) in expected {
            assert_eq!(refusal_of(&mut pair.a, token), Some(reason));
            assert_eq!(pair.a.end_of(token + 1).0, Ok(1), "operation {token}");
        }
        let mut bytes = vec![0; 64];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte != 5).count(), 5);
        let accesses = |operation| {
            let all = pair.b.remote_accesses.iter();
            all.filter(|it| **it == operation).count()
        };
        assert_eq!(accesses(OperationKind::RemoteWrite), 6);
        assert_eq!(accesses(OperationKind::RemoteRead), 6);
        assert!(pair.a.machine.fault().is_none() && pair.b.machine.fault().is_none());
    }
}

/// One bad segment refuses the whole operation, "before a byte is written".
#[test]
fn one_bad_segment_refuses_the_whole_operation() {
    let mut pair = living_with(100);
    let region = pair.b.host.region(1, vec![0; 8], REMOTE);
    pair.a
        .write(1, b"abcdef", &[(1, 0, 2), (1, 2, 2), (1, 7, 2)]);
    pair.a.read(2, 6, &[(1, 0, 2), (8, 2, 2), (1, 0, 2)]);
    pair.run_in_pieces(9);
    assert_eq!(refusal_of(&mut pair.a, 1), Some(Refusal::OutOfBounds));
    let end = pair.a.ended.remove(&2).unwrap();
    assert_eq!(memory_of(&end), [0; 6], "its memory is back");
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

/// fi_domain(3): "Any operations which have not already completed will fail and be discarded." But
/// the refused one ends first, and with its own reason.
#[test]
fn by_default_the_initiator_ends_its_connection_after_the_refused_operation() {
    for (ours, theirs) in [(0, 0), (5, 0), (0, 5)] {
        let params = |refusals_max| ExtensionParams {
            capabilities: OFFERED,
            incarnation: 1,
            probes_after_ms: 0,
            refusals_max,
        };
        for read in [false, true] {
            let sizes = Sizes {
                unexpected_bytes: 0,
                ..sizes()
            };
            let mut pair = Pair::idle_with(sizes, params(ours), params(theirs));
            pair.handshake(ByteOrder::Native, b"", b"");
            pair.a.receive(1, 10);
            match read {
                true => pair.a.read(2, 8, &[(9, 0, 8)]),
                false => pair.a.write(2, b"a", &[(9, 0, 1)]),
            };
            pair.a.send_acked(3, b"no receive awaits this");
            pair.run();
            assert_eq!(pair.a.order, [2]);
            assert_eq!(refusal_of(&mut pair.a, 2), Some(Refusal::UnknownKey));
            let fault = pair.a.machine.fault().map(|error| error.kind());
            assert_eq!(fault, Some(ErrorKind::Canceled));
            assert!(pair.b.machine.fault().is_none(), "the target goes on");
            assert!(!pair.b.machine.is_ending_for_cause());
            pair.a.close();
            assert_eq!(pair.a.order, [2, 1, 3]);
            assert_eq!(pair.a.end_kind(1), ErrorKind::Canceled);
            assert_eq!(pair.a.end_kind(3), ErrorKind::Canceled);
        }
    }
}

/// docs/extension.md: "After `n` refusals for reasons 1 to 3 within a minute the target closes it"
/// with all of them answered; "Other reasons are not counted".
#[test]
fn after_so_many_guesses_the_target_ends_the_connection() {
    for limit in [1, 3] {
        let mut pair = living_with(limit);
        let gone = pair.b.host.region(1, vec![0; 8], REMOTE);
        gone.gate().revoke();
        for token in 0..20 {
            pair.a.read(token, 8, &[(1, 0, 8)]);
            pair.a.write(100 + token, b"x", &[(1, 0, 1)]);
        }
        pair.run();
        assert_eq!(pair.a.ended.len(), 40);
        assert!(!pair.b.machine.is_ending_for_cause());
        pair.a.receive(99, 1);
        for token in 200..210 {
            match token % 2 {
                0 => pair.a.read(token, 8, &[(9, 0, 8)]),
                _ => pair.a.write(token, b"x", &[(1, 9, 1)]),
            };
        }
        // A revoked region refuses first, whatever the range.
        pair.run();
        let guesses = pair.a.ended.values().filter(|end| {
            let error = end.end.result.as_ref().expect_err("all are refused");
            error.refusal() == Some(Refusal::UnknownKey)
        });
        assert_eq!(guesses.count(), limit as usize);
        assert!(pair.b.machine.is_ending_for_cause() && pair.b.is_paused());
        assert!(pair.b.machine.is_transmit_drained(), "all were answered");
        // Each side says how many there were, in how long, and what to do.
        pair.a.close();
        let theirs = pair.a.end_of_error(99);
        assert_eq!(theirs.kind(), ErrorKind::PeerClosed);
        pair.b.receive(1, 1);
        pair.b.close();
        let ours = pair.b.end_of_error(1);
        assert_eq!(ours.kind(), ErrorKind::AccessDenied);
        assert_eq!(pair.b.events.last().unwrap(), "closed: AccessDenied");
        for error in [ours, theirs] {
            let said = error.to_string();
            let count = format!("{limit} within 0.0ns");
            for fact in [&count[..], "within 60 s", "OnRefusal", "RemoteRegion"] {
                assert!(said.contains(fact), "{fact}: {said}");
            }
        }
    }
}

/// docs/extension.md: "After `n` refusals for reasons 1 to 3 within a minute"; "when it is over,
/// counting begins again".
#[test]
fn guesses_are_counted_by_the_minute() {
    let begin = Instant::now();
    let guesses_at = |times: &[u64]| {
        let mut pair = living_with(3);
        for (token, seconds) in times.iter().enumerate() {
            let now = begin + Duration::from_secs(*seconds);
            pair.a.machine.handle_time(now);
            pair.b.machine.handle_time(now);
            pair.a.read(token as u64, 8, &[(9, 0, 8)]);
            pair.run();
        }
        pair
    };
    let pair = guesses_at(&[0, 30, 60, 90, 120, 150, 180, 3600]);
    assert!(!pair.b.machine.is_ending_for_cause(), "two in each minute");
    let mut pair = guesses_at(&[0, 30, 60, 61, 72]);
    assert!(
        pair.b.machine.is_ending_for_cause(),
        "three in the second one"
    );
    let fault = pair.a.machine.fault().expect("the peer has said why");
    assert_eq!(fault.kind(), ErrorKind::PeerClosed);
    assert!(fault.to_string().contains("3 within 12.0s"), "{fault}");
    pair.b.receive(7, 1);
    pair.b.close();
    let said = pair.b.end_of_error(7).to_string();
    assert!(said.contains("3 within 12.0s"), "{said}");
}

/// docs/extension.md: "Whatever the limits, a target closes the connection" of a peer that guesses
/// on.
#[test]
fn guesses_are_bounded_whatever_was_agreed() {
    for limit in [0, u32::MAX] {
        let mut pair = living_with(limit);
        let guess = FrameHeader::ReadRequest {
            segments: segments(&[(9, 0, 1)]),
        };
        let guess = guess.encode(ByteOrder::Native, 0);
        let mut nowhere = VecDeque::new();
        for at in 0..REFUSALS_MAX + 10 {
            assert_eq!(pair.b.machine.is_ending_for_cause(), at >= REFUSALS_MAX);
            pair.b.wire.extend(guess.iter());
            pair.b.move_in(usize::MAX);
            pair.b.move_in(usize::MAX);
            flush(&mut pair.b, &mut nowhere);
        }
        // With an answer to each, and the CLOSE that says why.
        assert_eq!(nowhere.len(), (REFUSALS_MAX as usize + 1) * 16);
    }
}

/// A destination that is revoked, or quiesced, while a write lands takes no further byte, and says
/// so; the next write is good.
#[test]
fn a_destination_that_refuses_in_mid_payload_drops_the_rest_and_answers() {
    for len in [100, DIRECT_RECEIVE_MIN * 3] {
        for (quiesce, reason) in [(false, Refusal::Revoked), (true, Refusal::Held)] {
            let mut pair = living_with(1);
            let region = pair.b.host.region(1, vec![0; len], Access::REMOTE_WRITE);
            let next = pair.b.host.region(2, vec![0; 4], Access::REMOTE_WRITE);
            pair.b.host.slots = 1;
            pair.a
                .write_with(1, &vec![1; len], Some(5), true, &[(1, 0, len as u64)]);
            pair.a.write_with(2, b"next", Some(6), true, &[(2, 0, 4)]);
            pair.a.hand_out();
            pair.a.move_out(48 + 30, &mut pair.b.wire);
            while pair.b.move_in(50) {}
            pair.b.move_in(0); // An armed direct receive comes back empty.
            match quiesce {
                true => region.gate().begin_quiesce().unwrap(),
                false => region.gate().revoke(),
            }
            pair.run_in_pieces(1000);
            assert!(pair.b.machine.fault().is_none());
            assert_eq!(refusal_of(&mut pair.a, 1), Some(reason));
            assert_eq!(pair.a.end_of(2), (Ok(4), b"next".to_vec()));
            assert_eq!(pair.b.remote_data, [(6, 4)]);
            assert_eq!((pair.b.host.slots, pair.b.host.unasked), (1, 0));
            let mut bytes = [0; 4];
            next.read_at(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"next");
            if !quiesce {
                let mut bytes = vec![0; len];
                region.read_at(0, &mut bytes).unwrap();
                assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 30);
            }
        }
    }
}

/// Regions revoked at any moment, with reads and writes of all sizes under way in pieces of all
/// sizes: each operation ends once, in order, good ones with the right bytes, and both sides live.
#[test]
fn whenever_regions_are_revoked_every_operation_ends_and_the_connection_lives() {
    for seed in 0..60 * super::model::depth() {
        let rng = &mut Rng(seed);
        let mut pair = living_with(1);
        let len = DIRECT_RECEIVE_MIN * 2;
        let regions: Vec<_> = (0..4)
            .map(|key| pair.b.host.region(key, vec![key as u8; len], REMOTE))
            .collect();
        let mut count = 0;
        for _ in 0..300 {
            match rng.below(10) {
                0 | 1 if count < 64 => {
                    let bytes = if rng.chance(20) { len } else { rng.below(300) };
                    let key = rng.below(4) as u64;
                    let split = rng.below(bytes + 1) as u64;
                    let rest = bytes as u64 - split;
                    let to = [(key, 0, split), (key, split, rest)];
                    match rng.chance(50) {
                        true => pair.a.read(count, bytes, &to),
                        false => pair.a.write(count, &vec![key as u8; bytes], &to),
                    };
                    count += 1;
                }
                2 if rng.chance(5) => {
                    // What is with the transport is taken back, as the engine does.
                    pair.b.move_out(0, &mut pair.a.wire);
                    regions[rng.below(4)].gate().revoke();
                }
                3 | 4 => pair.a.hand_out(),
                5 | 6 => pair.b.hand_out(),
                _ => {
                    let (most, less) = (1 + rng.below(9000), rng.below(9000));
                    let Pair { a, b } = &mut pair;
                    a.move_out(most, &mut b.wire);
                    b.move_out(less, &mut a.wire);
                    b.move_in(most);
                    a.move_in(less);
                }
            }
            pair.a.machine.check();
            pair.b.machine.check();
        }
        pair.run_in_pieces(1 + rng.below(20_000));
        assert_eq!(pair.a.ended.len() as u64, count, "seed {seed}");
        for end in pair.a.ended.values() {
            match &end.end.result {
                Ok(()) => assert!(memory_of(end).iter().all(|byte| *byte < 4)),
                Err(error) => assert_eq!(error.refusal(), Some(Refusal::Revoked)),
            }
        }
        assert!(pair.a.machine.fault().is_none() && pair.b.machine.fault().is_none());
    }
}

/// docs/extension.md: "every write wants an ack"; one that does not breaks the protocol.
#[test]
fn a_write_that_wants_no_answer_is_a_violation() {
    let mut pair = living_with(9);
    pair.b.host.region(1, vec![0; 4], REMOTE);
    let header = FrameHeader::Write {
        data: None,
        ack: false,
        commit: false,
        segments: segments(&[(1, 0, 0)]),
    };
    pair.b
        .wire
        .extend(header.encode(ByteOrder::Native, 0).iter());
    pair.run();
    let fault = pair.b.machine.fault().map(|error| error.kind());
    assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
}

/// A refusal that comes before its frame has left waits for the frame's memory, and is reported
/// also if the connection ends first.
#[test]
fn a_refusal_before_the_frame_is_back_is_the_operations_end() {
    for close in [false, true] {
        let mut pair = living_with(9);
        pair.a.write(1, b"x", &[(1, 0, 1)]);
        pair.a.hand_out();
        let reason = Refusal::Other(99);
        let answer = FrameHeader::Refused { reason };
        pair.a
            .wire
            .extend(answer.encode(ByteOrder::Native, 0).iter());
        while pair.a.move_in(usize::MAX) {}
        assert!(pair.a.ended.is_empty(), "its memory is with the transport");
        if close {
            pair.a.cut();
        } else {
            pair.a.move_out(usize::MAX, &mut VecDeque::new());
        }
        assert_eq!(refusal_of(&mut pair.a, 1), Some(reason));
    }
}

/// Ruling 15: "Towards a peer without the extension the only possible reaction is to close the
/// connection."
#[test]
fn a_refusal_ends_the_connection_of_a_plain_peer() {
    let params = ExtensionParams {
        capabilities: OFFERED,
        incarnation: 1,
        probes_after_ms: 0,
        refusals_max: 100,
    };
    for (a, b) in [(PLAIN, params), (params, PLAIN)] {
        let mut pair = Pair::idle_with(sizes(), a, b);
        pair.handshake(ByteOrder::Native, b"", b"");
        pair.a.write_with(1, b"x", None, false, &[(9, 0, 1)]);
        pair.run();
        assert_eq!(
            pair.a.end_of(1).0,
            Ok(1),
            "a plain write ends when it is sent"
        );
        let fault = pair.b.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::AccessDenied));
    }
}

/// docs/extension.md, section 3: reason 9. The endpoint is asked before any region is looked for,
/// the operation is answered in its place, and the connection lives.
#[test]
fn what_the_endpoint_was_opened_without_is_refused_with_that_reason() {
    let mut pair = living_with(1);
    let region = pair.b.host.region(1, vec![5; 64], REMOTE);
    pair.b.host.caps = only(Caps::RMA | Caps::REMOTE_READ);
    pair.a.write(1, b"12345678", &[(1, 0, 8)]);
    pair.a.read(2, 8, &[(1, 0, 8)]);
    pair.a.write(3, b"12345678", &[(99, 0, 8)]);
    pair.run();
    assert_eq!(refusal_of(&mut pair.a, 1), Some(Refusal::NoCapability));
    assert_eq!(pair.a.end_of(2), (Ok(8), vec![5; 8]));
    // Nor does a peer learn which keys there are; and this is no guess.
    assert_eq!(refusal_of(&mut pair.a, 3), Some(Refusal::NoCapability));
    pair.b.host.caps = only(Caps::RMA | Caps::REMOTE_WRITE);
    pair.a.read(4, 8, &[(1, 0, 8)]);
    pair.a.write(5, b"12345678", &[(1, 0, 8)]);
    pair.run();
    assert_eq!(refusal_of(&mut pair.a, 4), Some(Refusal::NoCapability));
    assert_eq!(pair.a.end_of(5).0, Ok(8));
    let mut bytes = [0; 9];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"12345678\x05");
    assert!(!pair.b.machine.is_ending_for_cause());
}

/// A plain peer notices a refusal only by the end of the connection.
#[test]
fn a_plain_peer_is_refused_by_the_end_of_the_connection() {
    for read in [false, true] {
        let mut pair = Pair::connected();
        let region = pair.b.host.region(1, vec![5; 8], REMOTE);
        pair.b.host.caps = only(Caps::ATOMIC | Caps::REMOTE_READ | Caps::REMOTE_WRITE);
        match read {
            true => pair.a.read(1, 8, &[(1, 0, 8)]),
            false => pair.a.write(1, b"12345678", &[(1, 0, 8)]),
        };
        flush(&mut pair.a, &mut pair.b.wire);
        while pair.b.move_in(usize::MAX) {}
        let fault = pair.b.machine.fault().expect("it ends the connection");
        assert_eq!(fault.kind(), ErrorKind::AccessDenied);
        assert!(fault.to_string().contains("capability"), "{fault}");
        let mut bytes = [0; 8];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 8]);
    }
}

/// A message that no receive can ever be posted for does not wait for one: it ends the connection,
/// and what comes behind it is not held up.
#[test]
fn a_message_to_an_endpoint_that_receives_none_ends_the_connection() {
    for caps in [
        Caps::RMA | Caps::REMOTE_WRITE,
        Caps::MSG | Caps::SEND,
        Caps::RECV,
    ] {
        let mut pair = living_with(100);
        pair.b.host.caps = only(caps);
        pair.a.send(1, b"hello");
        pair.a.send_acked(2, b"hello");
        pair.run();
        assert!(pair.b.machine.is_ending_for_cause() && pair.b.is_paused());
        let fault = pair.a.machine.fault().expect("its last frame says why");
        assert_eq!(fault.kind(), ErrorKind::NoReceive);
        pair.a.close();
        pair.b.close();
        assert_eq!(pair.a.end_kind(2), ErrorKind::NoReceive);
        let ended = pair.b.events.last().expect("it says why");
        assert_eq!(ended, "closed: NoCapability");
    }
}

/// The capabilities of both sides of an endpoint that has these and no others.
pub(super) fn only(caps: Caps) -> SideCaps {
    SideCaps::of_both(caps)
}
