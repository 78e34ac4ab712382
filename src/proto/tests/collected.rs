//! Receives that are shared with a limit for messages: a message takes one only as a whole.

use super::pair::{Pair, TestConnection};
use super::receives::{Setup, announced, extended, plain, tagged};
use super::refusal::only;
use crate::error::ErrorKind;
use crate::info::Caps;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::{Lifecycle, LongMessages, MatchCriteria};
use crate::wire::{ByteOrder, ControlFrame, ControlKind, FrameHeader, PeerData};

const MAX: usize = 50_000;

fn limited(setup: Setup) -> Setup {
    Setup {
        long_messages: LongMessages::Refused { max: MAX as u64 },
        ..setup
    }
}

/// Pairs whose second side has such receives: with and without the extension, of connected and of
/// connectionless endpoints.
fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for setup in [plain(), extended()].map(limited) {
        let mut pair = setup.sharing();
        pair.handshake(ByteOrder::Native, b"asked", b"answered");
        pairs.push(pair);
        pairs.push(setup.connected());
    }
    pairs
}

/// Moves up to `most` bytes, and lets the second side process them.
fn move_some(pair: &mut Pair, most: usize) {
    pair.a.hand_out();
    pair.a.move_out(most, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
}

/// A peer announces a tagged message all the same.
fn an_announcement_is_a_violation(side: &mut TestConnection) {
    let announcement = FrameHeader::Rts {
        index: 1,
        tag: Some(5),
        data: None,
        ack: false,
        len: 100,
    };
    side.wire.extend(announcement.encode(ByteOrder::Native, 1));
    while side.move_in(usize::MAX) {}
    let fault = side.machine.fault().map(|error| error.kind());
    assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
}

/// Every part of each message but the last byte has come, and all receives are still there for
/// others. The header may come in parts, too.
#[test]
fn a_message_takes_a_shared_receive_only_as_a_whole() {
    for mut pair in pairs() {
        for (token, len) in [(1, 1), (2, 2), (3, 900), (4, 20_000), (5, MAX)] {
            pair.b.receive_any(token, MatchCriteria::Message, len);
            let bytes: Vec<u8> = (0..len).map(|at| (at + len) as u8).collect();
            pair.a.send(token, &bytes);
            for piece in [1, 14, 1 + len / 2] {
                move_some(&mut pair, piece.min(14 + len));
            }
            let moved = 15 + 1 + len / 2;
            move_some(&mut pair, (15 + len).saturating_sub(moved));
            assert_eq!(pair.b.shared().posted.len(), 1, "{len}");
            assert!(!pair.b.ended.contains_key(&token));
            pair.run();
            assert_eq!(pair.b.end_of(token), (Ok(len), bytes), "{len}");
        }
    }
}

/// A message that came as a whole and finds neither a receive nor room waits for one of the two, in
/// order with the messages behind it; also when its sender has ended the stream.
#[test]
fn a_whole_message_waits_for_its_receive() {
    for ends in [false, true] {
        for setup in [plain(), extended()].map(limited) {
            let setup = Setup {
                promised: UNEXPECTED_OVERHEAD as u64,
                ..setup
            };
            let mut pair = setup.connected();
            pair.a.send(1, &[1; 3000]);
            pair.a.send(2, &[2; 100]);
            pair.run_in_pieces(1000);
            assert!(pair.b.is_paused());
            if ends {
                pair.b.machine.handle_last_bytes(116, &mut pair.b.host);
            }
            assert!(pair.b.machine.fault().is_none(), "it is here as a whole");
            for token in [1, 2] {
                pair.b.receive_any(token, MatchCriteria::Message, 3000);
                pair.run();
            }
            assert_eq!(pair.b.end_of(1), (Ok(3000), vec![1; 3000]));
            let (len, bytes) = pair.b.end_of(2);
            assert_eq!((len, &bytes[..100]), (Ok(100), &[2; 100][..]));
            assert_eq!(pair.b.shared().held_bytes(), 0);
        }
    }
}

/// The end of the connection frees what had come, and no receive is lost by it.
#[test]
fn a_message_that_never_is_whole_costs_no_receive() {
    for mut pair in pairs() {
        pair.b.receive_any(1, MatchCriteria::Message, MAX);
        pair.a.send(1, &[1; 3000]);
        move_some(&mut pair, 2000);
        pair.b.cut();
        assert!(!pair.b.ended.contains_key(&1), "it waits for another");
        assert_eq!(pair.b.shared().posted.len(), 1);
        assert_eq!(pair.b.shared().held_bytes(), 0);
    }
}

/// A message over the limit ends its connection before a receive is taken, and both sides say why;
/// a peer with the plain protocol sees only the end.
#[test]
fn a_message_over_the_limit_ends_its_connection() {
    for mut pair in pairs() {
        pair.b.receive_any(1, MatchCriteria::Message, 2 * MAX);
        pair.a.send(1, &vec![1; MAX + 1]);
        pair.a.send_acked(2, b"behind it");
        pair.run();
        assert_eq!(pair.b.shared().posted.len(), 1);
        match pair.b.machine.fault() {
            Some(fault) => assert_eq!(fault.kind(), ErrorKind::TooLarge),
            None => {
                let fault = pair.a.machine.fault().expect("its last frame says why");
                assert_eq!(fault.kind(), ErrorKind::TooLarge);
                assert!(fault.is_connection_lost());
                pair.a.close();
                pair.b.close();
                assert_eq!(pair.a.end_kind(2), ErrorKind::TooLarge);
                let ended = pair.b.events.last().expect("it says why");
                assert_eq!(ended, "closed: TooLarge");
            }
        }
    }
}

/// Nothing is announced to a side with a limit, and an announcement breaks the protocol: a receive
/// that is matched with one would wait for its sender.
#[test]
fn nothing_is_announced_where_messages_have_a_limit() {
    for limited_side in [[true, false], [false, true], [true, true]] {
        for setup in [plain(), extended()] {
            let setup = Setup {
                long_messages: announced(100),
                ..setup
            };
            let [mut pair, other] = [setup, limited(setup)].map(Setup::idle);
            let Pair { a, b } = other;
            for (is_limited, side, limited) in [
                (limited_side[0], &mut pair.a, a),
                (limited_side[1], &mut pair.b, b),
            ] {
                if is_limited {
                    *side = limited;
                }
            }
            pair.handshake_peers(ByteOrder::Native);
            for (token, operation) in [
                (1, tagged(5, &[5; 4000], None, false)),
                (2, tagged(6, &[6; 4000], None, true)),
            ] {
                pair.a.post(token, operation);
                pair.run();
                assert!(pair.a.ended.contains_key(&token), "it went out at once");
            }
            an_announcement_is_a_violation(&mut pair.b);
        }
    }
}

/// An acceptor that agrees to what was not asked for may not announce either.
#[test]
fn who_dials_with_a_limit_takes_no_announcements_whatever_is_answered() {
    let mut pair = limited(plain()).idle();
    pair.a.machine.begin_connect_peer();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    let mut response = PeerData::read(pair.request().data())
        .expect("our own")
        .plain();
    response[0] = 0x81;
    let response = ControlFrame::new(ControlKind::Response, response.to_vec().into());
    pair.a.wire.extend(response.expect("eight bytes").encode());
    while pair.a.move_in(usize::MAX) {}
    assert_eq!(pair.a.machine.lifecycle(), Lifecycle::Connected);
    pair.a.receive_tagged(1, 5, 100);
    an_announcement_is_a_violation(&mut pair.a);
    assert_eq!(pair.a.shared().posted.len(), 1);
}

/// docs/extension.md: a side awaits its peer while "a frame [...] has begun to arrive": that holds
/// for a message that is collected, although no receive is taken yet. A whole message that waits
/// for a receive does not await the peer.
#[test]
fn a_message_that_is_collected_awaits_its_peer() {
    let setup = Setup {
        promised: UNEXPECTED_OVERHEAD as u64,
        ..limited(extended())
    };
    let mut pair = setup.connected();
    pair.a.send(1, &[1; 3000]);
    move_some(&mut pair, 2000);
    assert!(pair.b.machine.awaits_peer());
    assert!(!pair.b.machine.may_end_idle());
    pair.run();
    assert!(pair.b.is_paused() && !pair.b.machine.awaits_peer());
}

/// An endpoint that receives no messages refuses one by its header.
#[test]
fn nothing_is_collected_for_who_receives_no_messages() {
    let mut pair = limited(extended()).connected();
    pair.b.host.caps = only(Caps::RMA | Caps::REMOTE_WRITE);
    pair.a.send(1, &[1; 3000]);
    move_some(&mut pair, 2000);
    assert!(pair.b.machine.is_ending_for_cause());
}

/// The limit counts, whatever is set besides.
#[test]
fn a_limit_is_a_limit_whatever_is_announced_without() {
    let limited = LongMessages::new(Some(5), 100);
    assert_eq!(limited, LongMessages::Refused { max: 5 });
    assert_eq!(LongMessages::new(None, 100), announced(100));
}
