//! Answers to reads that are cut up: in which order their parts go out, and what ends one.

use std::collections::VecDeque;

use super::pair::{Pair, REMOTE, memory_of, segments, step};
use super::refusal::{flush, living_with, refusal_of};
use crate::error::{ErrorKind, OperationKind, Refusal};
use crate::limits::{READ_DATA_MAX, READ_REQUESTS_MAX};
use crate::wire::{ByteOrder, FrameHeader};

/// docs/extension.md: "revoked on the way: READ_DATA, the rest of that frame is zeros, READ_END
/// reason"; the reads behind it are answered.
#[test]
fn a_source_that_is_revoked_on_the_way_ends_its_answer_with_zeros() {
    for len in [100, 70_000, READ_DATA_MAX, READ_DATA_MAX * 2 + 5] {
        for moved in [0, 10, 16, 60] {
            let mut pair = living_with(1);
            let region = pair.b.host.region(1, vec![1; len], REMOTE);
            pair.b.host.region(2, vec![2; 8], REMOTE);
            pair.a.read(1, len, &[(1, 0, len as u64)]);
            pair.a.read(2, 8, &[(1, 0, 8)]);
            pair.a.read(3, 8, &[(2, 0, 8)]);
            flush(&mut pair.a, &mut pair.b.wire);
            while pair.b.move_in(usize::MAX) {}
            pair.b.hand_out();
            pair.b.move_out(moved, &mut pair.a.wire);
            region.gate().revoke();
            pair.run_in_pieces(100_000);
            assert_eq!(pair.a.order, [1, 2, 3], "{len} {moved}");
            let end = pair.a.ended.remove(&1).unwrap();
            assert_eq!(
                end.end.result.clone().unwrap_err().refusal(),
                Some(Refusal::Revoked),
                "{len} {moved}"
            );
            let bytes = memory_of(&end);
            let came = bytes.iter().filter(|byte| **byte == 1).count();
            assert_eq!(
                came,
                moved.saturating_sub(16),
                "no byte of it is read any more"
            );
            assert_eq!(refusal_of(&mut pair.a, 2), Some(Refusal::Revoked));
            assert_eq!(pair.a.end_of(3), (Ok(8), vec![2; 8]));
            let read = [OperationKind::RemoteRead];
            assert_eq!(pair.b.remote_accesses, read, "only the good one counts");
            let most = 16 * 8 + 8 + len.min(READ_DATA_MAX) as u64 + 200;
            assert!(pair.b.sent_bytes < most, "{} bytes sent", pair.b.sent_bytes);
        }
    }
}

/// Frames of section 4 that nothing asked for, or of the wrong length, are violations.
#[test]
fn answers_to_nothing_and_of_the_wrong_length_are_violations() {
    let reason = Refusal::UnknownKey;
    let data = |len| FrameHeader::ReadData { len };
    let end = |refused| FrameHeader::ReadEnd { refused };
    // With a read of ten bytes and an acknowledged message outstanding, and without.
    let cases: [(bool, &[FrameHeader]); 13] = [
        (false, &[FrameHeader::Refused { reason }]),
        (false, &[FrameHeader::Ack]),
        (false, &[data(1)]),
        (false, &[end(None)]),
        (false, &[end(Some(reason))]),
        (true, &[FrameHeader::Refused { reason }]),
        (true, &[FrameHeader::ReadResponse { len: 10 }]),
        (true, &[data(0)]),
        (true, &[data(11)]),
        (true, &[data(u64::MAX - 120)]),
        (true, &[data(6), data(5)]),
        (true, &[data(6), end(None)]),
        (true, &[end(Some(reason)), end(Some(reason))]),
    ];
    for (asked, frames) in cases {
        let mut pair = living_with(9);
        if asked {
            pair.a.read(1, 10, &[(1, 0, 10)]);
            pair.a.send_acked(2, b"x");
            flush(&mut pair.a, &mut VecDeque::new());
        }
        for header in frames {
            pair.a
                .wire
                .extend(header.encode(ByteOrder::Native, 0).iter());
            let payload = header.payload_len().min(100) as usize;
            pair.a.wire.extend(std::iter::repeat_n(7, payload));
        }
        pair.run();
        let fault = pair.a.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation), "{frames:?}");
        pair.a.close();
        if asked {
            assert_eq!(memory_of(&pair.a.ended[&1]).len(), 10, "its memory is back");
        }
    }
}

/// A peer that asks and asks but never takes the answers is not read any further, whether its reads
/// are good or refused.
#[test]
fn answers_in_parts_that_the_peer_does_not_read_are_bounded() {
    for key in [1, 2] {
        let mut pair = living_with(0);
        pair.b.host.region(1, vec![1; 1], REMOTE);
        let gone = pair.b.host.region(2, vec![1; 1], REMOTE);
        gone.gate().revoke();
        let request = FrameHeader::ReadRequest {
            segments: segments(&[(key, 0, 1)]),
        };
        let request = request.encode(ByteOrder::Native, 0);
        for _ in 0..READ_REQUESTS_MAX * 2 {
            pair.b.wire.extend(request.iter());
        }
        while pair.b.move_in(1 << 16) {}
        assert!(pair.b.is_paused());
        assert_eq!(pair.b.machine.queued_answers(), READ_REQUESTS_MAX + 1);
        let mut nowhere = VecDeque::new();
        for _ in 0..READ_REQUESTS_MAX * 4 {
            pair.b.nudge();
            flush(&mut pair.b, &mut nowhere);
            pair.b.move_in(1 << 16);
        }
        let answer = if key == 1 { 16 + 1 + 16 } else { 16 };
        assert_eq!(nowhere.len(), READ_REQUESTS_MAX * 2 * answer);
    }
}

/// Acks overtake the parts of a large answer, so that a read does not hold up writes.
#[test]
fn an_ack_overtakes_the_parts_of_an_answer() {
    let mut pair = living_with(1);
    let len = READ_DATA_MAX * 3;
    pair.b.host.region(1, vec![3; len], REMOTE);
    pair.a.read(1, len, &[(1, 0, len as u64)]);
    pair.a.write(2, b"x", &[(1, 0, 1)]);
    pair.run_in_pieces(100_000);
    assert_eq!(pair.a.order, [2, 1]);
    let (result, bytes) = pair.a.end_of(1);
    assert_eq!(result, Ok(len));
    assert!(bytes[1..].iter().all(|byte| *byte == 3));
}

/// docs/extension.md: "READ_DATA and READ_END alternate with queued messages and RMA": operations
/// that are posted here, injected or not, go out though the peer always has reads outstanding, and
/// the reads are answered too.
#[test]
fn a_peer_that_reads_for_ever_holds_up_no_message() {
    let mut pair = living_with(1);
    let len = READ_DATA_MAX / 64;
    pair.b.host.region(1, vec![3; len], REMOTE);
    let (mut asked, mut got) = (0, 0);
    let mut turn = |pair: &mut Pair| {
        while asked < got + 8 {
            pair.a.read(1_000 + asked, len, &[(1, 0, len as u64)]);
            asked += 1;
        }
        step(&mut pair.a, &mut pair.b, usize::MAX);
        step(&mut pair.b, &mut pair.a, 50_000);
        got = pair.a.ended.range(1_000..).count() as u64;
        assert!(got < 1_000, "messages wait for the reads");
    };
    for _ in 0..20 {
        turn(&mut pair);
    }
    for token in 0..20 {
        pair.a.receive(100 + token, 10);
        match token % 2 {
            0 => drop(pair.b.send(token, b"message")),
            _ => pair.b.machine.inject(b"message", None).unwrap(),
        }
    }
    while pair.a.ended.range(100..1_000).count() < 20 {
        turn(&mut pair);
    }
    pair.run();
    assert_eq!(pair.a.ended.range(1_000..).count() as u64, asked);
}
