//! Connections of connected endpoints whose receives are shared: what their peers announce, and
//! what they do not.

use std::collections::VecDeque;

use super::pair::{Pair, operation};
use super::receives::{Setup, extended, plain, tagged};
use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::mr::Access;
use crate::proto::{ConnectionId, MatchCriteria, OpKind};
use crate::wire::{ByteOrder, FrameHeader};

fn connected(setup: Setup) -> Pair {
    let mut pair = setup.sharing();
    pair.handshake(ByteOrder::Native, b"asked", b"answered");
    pair
}

fn hear(pair: &mut Pair, frame: &FrameHeader) {
    let frame = frame.encode(ByteOrder::Native, 1);
    pair.b.wire.extend(frame);
    while pair.b.move_in(usize::MAX) {}
}

/// Small messages and announced ones, with a receive and without, arrive whole; each end names the
/// connection.
#[test]
fn messages_of_all_sizes_reach_shared_receives() {
    for setup in [plain(), extended()] {
        for len in [0, 1, 999, 1000, 1001, 70_000, 200_000] {
            for is_expected in [true, false] {
                let mut pair = connected(setup);
                let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
                if is_expected {
                    pair.b.receive_any(1, MatchCriteria::Message, len);
                }
                pair.a.send(1, &bytes);
                pair.run_in_pieces(1 + len / 3);
                if !is_expected {
                    pair.b.receive_any(1, MatchCriteria::Message, len);
                    pair.run_in_pieces(1 + len / 3);
                }
                let end = &pair.b.ended[&1];
                assert_eq!(end.end.connection(), Some(ConnectionId::numbered(12)));
                assert_eq!(pair.b.end_of(1), (Ok(len), bytes.clone()));
                assert_eq!(pair.a.end_of(1), (Ok(len), bytes));
            }
        }
    }
}

/// docs/extension.md: "messages of more bytes are to be announced": so nothing of a large one is
/// stored, and what is small is held back when the promise is used up.
#[test]
fn what_no_shared_receive_takes_waits_at_its_sender() {
    let promised = 4 * UNEXPECTED_OVERHEAD as u64;
    let setup = Setup {
        promised,
        ..extended()
    };
    let mut pair = connected(setup);
    pair.a.send(1, &[1; 50_000]);
    for token in 2..20 {
        pair.a.send(token, &[token as u8; 10]);
    }
    pair.run();
    let shared = pair.b.host.shared.as_ref().expect("it shares");
    assert!(shared.held_bytes() <= promised);
    assert!(!pair.b.is_paused(), "everything else passes");
    pair.b.receive_any(1, MatchCriteria::Message, 50_000);
    for token in 2..20 {
        pair.b.receive_any(token, MatchCriteria::Message, 10);
        pair.run();
    }
    assert_eq!(pair.b.end_of(1), (Ok(50_000), vec![1; 50_000]));
    for token in 2..20 {
        assert_eq!(pair.b.end_of(token), (Ok(10), vec![token as u8; 10]));
    }
}

/// Messages of the other direction are not announced: their receives are the connection's own.
#[test]
fn each_direction_is_for_itself() {
    let mut pair = connected(extended());
    pair.b.send(1, &[7; 50_000]);
    pair.run();
    pair.a.receive(1, 50_000);
    pair.run();
    assert_eq!(pair.a.end_of(1), (Ok(50_000), vec![7; 50_000]));
    assert_eq!(pair.b.end_of(1), (Ok(50_000), vec![7; 50_000]));
}

/// The end of the connection ends the announced messages. It ends no shared receive; one whose
/// message had been asked for is posted again.
#[test]
fn the_end_of_a_connection_leaves_shared_receives() {
    let mut pair = connected(extended());
    pair.a.send(1, &[1; 50_000]);
    pair.run();
    pair.b.receive_any(1, MatchCriteria::Message, 50_000);
    pair.b.nudge();
    pair.b.cut();
    pair.a.cut();
    assert!(!pair.b.ended.contains_key(&1), "it waits for another");
    let shared = pair.b.host.shared.as_ref().expect("it shares");
    assert_eq!((shared.posted.len(), shared.held_bytes()), (1, 0));
    assert_eq!(pair.a.end_kind(1), ErrorKind::ConnectionReset);
}

/// docs/extension.md: "to any other connected endpoint an RTS breaks the protocol", and so do tags.
#[test]
fn what_only_others_take_is_a_violation() {
    let untagged = FrameHeader::Rts {
        index: 1,
        tag: None,
        data: None,
        ack: false,
        len: 10,
    };
    let with_tag = FrameHeader::Rts {
        index: 1,
        tag: Some(5),
        data: None,
        ack: false,
        len: 10,
    };
    let clear_to_send = FrameHeader::Cts { index: 1 };
    let mut own = Pair::idle_with(extended().sizes, extended().params, extended().params);
    own.handshake(ByteOrder::Native, b"", b"");
    hear(&mut own, &untagged);
    let mut shared = connected(extended());
    hear(&mut shared, &with_tag);
    let mut stray = connected(extended());
    hear(&mut stray, &clear_to_send);
    for pair in [own, shared, stray] {
        let fault = pair.b.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
    }
}

/// A shared receive is reported at once, and so only when the events before its message have been
/// published: that the connection is up, a write with CQ data.
#[test]
fn what_came_before_a_message_is_published_before_it() {
    let mut pair = connected(extended());
    let region = pair.b.host.region(7, vec![0; 8], Access::REMOTE_WRITE);
    pair.b.receive_any(1, MatchCriteria::Message, 8);
    pair.a.write_with(1, &[9; 8], Some(5), true, &[(7, 0, 8)]);
    pair.a.send(2, b"written");
    let mut wire = VecDeque::new();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut wire);
    let wire: Vec<u8> = wire.into();
    let taken = pair.b.machine.handle_stage(&wire, &mut pair.b.host);
    assert!(taken < wire.len() && pair.b.machine.publishes_first());
    assert!(pair.b.host.shared.as_ref().unwrap().ended.is_empty());
    pair.b.take_events();
    assert_eq!(pair.b.remote_data, [(5, 8)]);
    let rest = &wire[taken..];
    assert_eq!(
        pair.b.machine.handle_stage(rest, &mut pair.b.host),
        rest.len()
    );
    pair.b.take_events();
    assert_eq!(pair.b.end_of(1).0, Ok(7));
    drop(region);
}

/// Receives are posted to the context, not to the connection, and tags are of no connected
/// endpoint.
#[test]
fn what_is_posted_to_the_wrong_place_is_refused() {
    let mut pair = connected(extended());
    let receive = operation(OpKind::Receive, Payload::from_vec(vec![0; 8]));
    for post in [receive, tagged(3, b"tag", None, false)] {
        let refused = pair.b.try_post(1, post, true).err();
        let kind = refused.map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::InvalidArgument));
    }
}
