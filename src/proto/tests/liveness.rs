//! Heartbeats on the wire: PING, PONG, and a PONG without a PING.

use super::extension::EXTENDED;
use super::pair::{Pair, sizes};
use crate::wire::{ByteOrder, FrameHeader};

fn pair() -> Pair {
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair
}

/// docs/extension.md: a PING "is answered with a PONG that carries its token, at once, before
/// anything queued": ahead of messages and of other answers.
#[test]
fn an_answer_overtakes_what_is_queued() {
    let mut pair = pair();
    pair.b.send(1, b"queued");
    pair.a.machine.queue_probe(9);
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    let pong = FrameHeader::Pong { token: 9 };
    let sent: Vec<u8> = pair.a.wire.iter().copied().collect();
    assert_eq!(sent[..24], *pong.encode(ByteOrder::Native, 1));
    assert!(sent.len() > 24, "the message follows");
}

/// docs/extension.md: "of several unanswered probes only the last is answered": a peer that probes
/// and does not read makes nothing grow.
#[test]
fn questions_of_a_peer_that_does_not_read_make_nothing_grow() {
    let mut pair = pair();
    for token in 0..10_000_u64 {
        let ping = FrameHeader::Ping { token };
        pair.b.wire.extend(ping.encode(ByteOrder::Native, 0).iter());
    }
    while pair.b.move_in(usize::MAX) {}
    assert_eq!(pair.b.machine.queued_answers(), 0);
    assert!(!pair.b.machine.is_read_paused());
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    let pong = FrameHeader::Pong { token: 9_999 };
    let sent: Vec<u8> = pair.a.wire.iter().copied().collect();
    assert_eq!(sent, *pong.encode(ByteOrder::Native, 1));
}

/// Ruling 13: "within seconds while an operation waits for the peer, and once per `idle_interval`
/// while only receives are posted": a receive awaits nothing until a frame has begun, a send until
/// it is gone or answered.
#[test]
fn a_receive_awaits_the_peer_in_the_middle_of_a_frame_only() {
    let mut pair = pair();
    pair.a.receive(1, 100);
    assert!(!pair.a.machine.awaits_peer());
    pair.b.send_acked(2, &[7; 90]);
    assert!(pair.b.machine.awaits_peer(), "queued");
    pair.b.hand_out();
    pair.b.move_out(40, &mut pair.a.wire);
    while pair.a.move_in(usize::MAX) {}
    assert!(pair.a.machine.awaits_peer(), "a frame that stops");
    pair.run();
    assert!(!pair.a.machine.awaits_peer() && !pair.b.machine.awaits_peer());
}

/// docs/extension.md: "A side that does not read sees no probes. It sends PONG frames without being
/// asked": it does not take the place of an answer, and is not one that the other side must have
/// asked for.
#[test]
fn a_sign_unasked_is_no_violation() {
    let mut pair = pair();
    pair.a.machine.queue_unasked_answer();
    pair.a.machine.queue_unasked_answer();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.b.wire.len(), 24, "one is enough");
    pair.run();
    assert!(pair.b.machine.fault().is_none());
    let ping = FrameHeader::Ping { token: 5 };
    pair.a.wire.extend(ping.encode(ByteOrder::Native, 0).iter());
    while pair.a.move_in(usize::MAX) {}
    pair.a.machine.queue_unasked_answer();
    pair.a.hand_out();
    let mut sent = Default::default();
    pair.a.move_out(usize::MAX, &mut sent);
    let pong = FrameHeader::Pong { token: 5 };
    assert_eq!(sent.make_contiguous(), &*pong.encode(ByteOrder::Native, 2));
}

/// docs/extension.md: HELLO's value 4, "milliseconds of silence after which the sender probes".
#[test]
fn each_side_knows_when_the_other_asks() {
    let pair = pair();
    for side in [&pair.a.machine, &pair.b.machine] {
        assert_eq!(side.peer_probes_after_ms(), Some(750));
    }
}
