//! The agreed end: docs/extension.md, section 7.

use super::extension::EXTENDED;
use super::pair::{Pair, REMOTE, Rng, TestConnection, sizes};
use crate::edges::EdgeCoverage;
use crate::error::ErrorKind;
use crate::proto::{SendOrder, Sizes};
use crate::wire::{ByteOrder, CloseReason, FrameHeader};

const CLOSE: FrameHeader = FrameHeader::Close {
    reason: CloseReason::Done,
};

fn connected() -> Pair {
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair
}

/// Does what a port does once both CLOSEs are out: ends the stream, and closes at the peer's end.
fn finish(pair: &mut Pair) {
    for _ in 0..4 {
        pair.run();
        pair.b.finished |= pair.a.machine.is_close_exchanged();
        pair.a.finished |= pair.b.machine.is_close_exchanged();
    }
    pair.run();
    for side in [&mut pair.a, &mut pair.b] {
        if side.machine.is_closed_in_order() {
            side.close();
        }
    }
}

fn last_event(side: &TestConnection) -> &str {
    side.events.last().expect("an event was reported")
}

/// Whichever side begins: the other's CLOSE follows, then both ends of stream.
#[test]
fn every_edge_of_the_close_exchange_is_walked() {
    let coverage = EdgeCoverage::begin("CloseExchange");
    let mut pair = connected();
    pair.a.machine.request_close();
    finish(&mut pair);
    coverage.expect_all();
}

/// docs/extension.md: "what was accepted goes out, and its answers are awaited", on both sides.
#[test]
fn what_was_accepted_ends_well_before_the_connection_does() {
    for seed in 0..50 {
        let rng = &mut Rng(seed);
        let mut pair = connected();
        for side in [&mut pair.a, &mut pair.b] {
            side.host.region(7, vec![3; 100], REMOTE);
        }
        for side in [&mut pair.a, &mut pair.b] {
            for token in 0..4 {
                side.receive(token, 9);
            }
            side.send_acked(10, b"acked");
            side.write(11, &[1; 50], &[(7, 0, 50)]);
            side.read(12, 50, &[(7, 50, 50)]);
            side.send(13, b"last");
        }
        let both = rng.chance(50);
        pair.a.machine.request_close();
        if both {
            pair.b.machine.request_close();
        }
        for _ in 0..rng.below(20) {
            pair.run_in_pieces(1 + rng.below(40));
        }
        finish(&mut pair);
        for side in [&mut pair.a, &mut pair.b] {
            for token in [10, 11, 12, 13] {
                assert!(side.end_of(token).0.is_ok(), "{token}, seed {seed}");
            }
            assert_eq!(side.end_of(0), (Ok(5), b"acked\0\0\0\0".to_vec()));
            assert_eq!(side.end_of(1), (Ok(4), b"last\0\0\0\0\0".to_vec()));
        }
        assert_eq!(pair.a.end_kind(2), ErrorKind::Canceled, "it closed");
        assert_eq!(last_event(&pair.a), "closed: in order");
        assert_eq!(last_event(&pair.b), "closed: in order");
        let other = if both {
            ErrorKind::Canceled
        } else {
            ErrorKind::PeerClosed
        };
        assert_eq!(pair.b.end_kind(2), other);
    }
}

/// "An end of the stream before that is a loss", after one CLOSE too.
#[test]
fn an_end_of_stream_without_both_closes_is_a_loss() {
    for closes in [false, true] {
        let mut pair = connected();
        if closes {
            pair.a.machine.request_close();
            pair.b.read(1, 5, &[(9, 0, 5)]); // never answered here, so b has something open
            pair.a.hand_out();
            pair.a.move_out(usize::MAX, &mut pair.b.wire);
            while pair.b.move_in(usize::MAX) {}
        }
        pair.b.finished = true;
        while pair.b.move_in(usize::MAX) {}
        pair.b.close();
        assert_eq!(last_event(&pair.b), "closed: PeerClosed");
    }
}

/// "A message that is held back for want of credit when the other side's CLOSE comes ends with
/// FI_ENORX: nothing will take it."
#[test]
fn held_messages_end_when_the_peer_closes() {
    let sizes = Sizes {
        unexpected_bytes: 0,
        send_order: SendOrder::Free,
        ..sizes()
    };
    let mut pair = Pair::idle_with(sizes, EXTENDED, EXTENDED);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair.b.send(1, b"held");
    pair.b.send(2, b"too");
    pair.run();
    pair.a.machine.request_close();
    finish(&mut pair);
    assert_eq!(
        pair.b.end_of(1),
        (Err(ErrorKind::NoReceive), b"held".to_vec())
    );
    assert_eq!(pair.b.end_kind(2), ErrorKind::NoReceive);
    assert_eq!(last_event(&pair.b), "closed: in order");
    assert_eq!(last_event(&pair.a), "closed: in order");
}

/// Nothing can be posted for a peer that has sent CLOSE, but what it sent before can be received.
#[test]
fn what_came_before_the_close_can_still_be_received() {
    let mut pair = connected();
    pair.a.send(1, b"early");
    pair.a.send(2, b"earlier");
    pair.a.machine.request_close();
    finish(&mut pair);
    pair.b.receive(1, 9);
    assert_eq!(pair.b.end_of(1), (Ok(5), b"early\0\0\0\0".to_vec()));
    pair.b.receive(2, 7);
    assert_eq!(pair.b.end_of(2), (Ok(7), b"earlier".to_vec()));
    let none = super::ends::receive_of(1);
    let refused = pair.b.try_post(3, none, true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PeerClosed);
}

/// "CLOSE is the last frame of its direction, but for answers": what asks for something breaks it.
#[test]
fn nothing_that_asks_may_follow_a_close() {
    for frame in [
        CLOSE,
        FrameHeader::Message {
            data: None,
            ack: false,
            len: 0,
        },
        FrameHeader::Stalled { sent: 0 },
    ] {
        let mut pair = connected();
        for header in [CLOSE, frame.clone()] {
            pair.b
                .wire
                .extend(header.encode(ByteOrder::Native, 0).iter());
        }
        while pair.b.move_in(usize::MAX) {}
        assert_eq!(
            pair.b.machine.fault().map(|error| error.kind()),
            Some(ErrorKind::ProtocolViolation),
            "{frame:?}"
        );
    }
    for frame in [
        FrameHeader::Credit { posted: 1 },
        FrameHeader::Pong { token: 0 },
    ] {
        let mut pair = connected();
        for header in [CLOSE, frame.clone()] {
            pair.b
                .wire
                .extend(header.encode(ByteOrder::Native, 0).iter());
        }
        while pair.b.move_in(usize::MAX) {}
        assert!(pair.b.machine.fault().is_none(), "{frame:?}");
    }
}
