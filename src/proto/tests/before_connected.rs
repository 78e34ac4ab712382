//! Operations that are posted before the connection is up, attempts that are given up, and what the
//! handshake of connectionless endpoints says.

use super::pair::{Pair, REMOTE, operation, segments};
use super::receives::{extended, plain, tagged};
use crate::buf::Payload;
use crate::error::{Error, ErrorKind};
use crate::proto::{Lifecycle, MatchCriteria, OpKind, Operation, Withdrawn};
use crate::wire::{ByteOrder, Capabilities, ControlFrame, ControlKind, ExtensionOffer, PeerData};

fn untagged(bytes: &[u8]) -> Operation<u64> {
    operation(
        OpKind::Send {
            data: None,
            ack: false,
            tag: None,
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

fn write(bytes: &[u8]) -> Operation<u64> {
    operation(
        OpKind::Write {
            data: None,
            ack: false,
            commit: false,
            segments: segments(&[(7, 0, bytes.len() as u64)]),
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

/// Posts one operation of each kind, the second with an unknown key if `bad`.
fn post_some(pair: &mut Pair, bad: bool) {
    pair.b.host.region(7, vec![0; 8], REMOTE);
    pair.a.post(1, untagged(b"first"));
    let key = if bad { 9 } else { 7 };
    let payload = Payload::from_vec(b"bytes".to_vec());
    pair.a.post(
        2,
        operation(
            OpKind::Write {
                data: None,
                ack: false,
                commit: false,
                segments: segments(&[(key, 0, 5)]),
            },
            payload,
        ),
    );
    pair.a.post(3, tagged(4, &[3; 5000], None, true));
    pair.a.read(4, 8, &[(7, 0, 8)]);
}

fn check_some(pair: &mut Pair) {
    pair.b.receive_any(1, MatchCriteria::Message, 5);
    pair.b.receive_tagged(3, 4, 5000);
    pair.run();
    assert_eq!(pair.b.end_of(1), (Ok(5), b"first".to_vec()));
    assert_eq!(pair.b.end_of(3), (Ok(5000), vec![3; 5000]));
    assert_eq!(pair.a.end_of(1).0, Ok(5));
    assert_eq!(pair.a.end_of(2).0, Ok(5));
    assert_eq!(pair.a.end_of(3).0, Ok(5000));
    assert_eq!(pair.a.end_of(4), (Ok(8), b"bytes\0\0\0".to_vec()));
}

/// What is posted before the connection is up goes out when it is, and not before; whichever side
/// dials.
#[test]
fn posts_before_connected_go_out_when_it_is_up() {
    for setup in [plain(), extended()] {
        for accepts in [false, true] {
            let mut pair = setup.idle();
            post_some(&mut pair, false);
            pair.a.hand_out();
            assert!(pair.a.sending.is_none(), "no peer to send to");
            if accepts {
                std::mem::swap(&mut pair.a, &mut pair.b);
            }
            pair.handshake_peers(ByteOrder::Native);
            if accepts {
                std::mem::swap(&mut pair.a, &mut pair.b);
            }
            assert_eq!(pair.a.events, [r#"connected b"""#]);
            check_some(&mut pair);
        }
    }
}

/// docs/extension.md, section 4: "With REFUSAL every write wants an ack", those included that were
/// posted before anybody knew.
#[test]
fn a_write_before_connected_is_answered_if_refusals_are_agreed_on() {
    let mut pair = extended().idle();
    post_some(&mut pair, true);
    pair.handshake_peers(ByteOrder::Native);
    pair.b.receive_any(1, MatchCriteria::Message, 5);
    pair.b.receive_tagged(3, 4, 5000);
    pair.run();
    assert_eq!(pair.a.end_kind(2), ErrorKind::AccessDenied);
    assert_eq!(pair.a.end_of(3).0, Ok(5000));
    assert_eq!(pair.a.end_of(4).0, Ok(8));
}

/// A post before the connection is up can be withdrawn, times out with its memory, and ends with
/// the connection.
#[test]
fn posts_before_connected_end_as_others_do() {
    let mut pair = plain().idle();
    let first = pair.a.post(1, untagged(b"one"));
    let second = pair.a.post(2, write(b"two"));
    pair.a.post(3, tagged(3, b"three", None, false));
    assert_eq!(pair.a.machine.cancel(first), Withdrawn::Ended);
    assert_eq!(pair.a.machine.expire(second, None), Withdrawn::Ended);
    pair.a.machine.begin_connect_peer();
    pair.a.machine.fail(Error::new(ErrorKind::Unreachable, ""));
    pair.a.close();
    assert_eq!(
        pair.a.end_of(1),
        (Err(ErrorKind::Canceled), b"one".to_vec())
    );
    assert_eq!(
        pair.a.end_of(2),
        (Err(ErrorKind::TimedOut), b"two".to_vec())
    );
    assert_eq!(
        pair.a.end_of(3),
        (Err(ErrorKind::Unreachable), b"three".to_vec())
    );
}

/// A full context makes such posts wait, or is Again, as ever.
#[test]
fn posts_before_connected_take_places_of_the_context() {
    let mut setup = plain();
    setup.sizes.tx_size = 2;
    let mut pair = setup.idle();
    for token in 1..=3 {
        pair.a.post(token, tagged(token, b"x", None, false));
    }
    let again = pair.a.try_post(4, untagged(b"x"), false).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Again);
    pair.handshake_peers(ByteOrder::Native);
    pair.run();
    assert_eq!(pair.a.order, [1, 2, 3]);
}

/// Whatever ends an attempt, at whatever point: the operations that are posted survive it, in their
/// order, and so do those that are posted in between.
#[test]
fn an_attempt_that_is_given_up_loses_nothing() {
    for setup in [plain(), extended()] {
        for point in 0..6 {
            for dials_again in [true, false] {
                let mut pair = setup.idle();
                post_some(&mut pair, false);
                let offered = setup.params.capabilities | Capabilities::RENDEZVOUS;
                let offer = Some(ExtensionOffer::new(offered));
                let request = PeerData::request(5, 5.try_into().unwrap(), offer);
                match point {
                    // Nothing has been sent.
                    0 => pair.a.machine.begin_connect_peer(),
                    // The request is with the link, and comes back.
                    1 => {
                        pair.a.machine.begin_connect_peer();
                        pair.a.hand_out();
                        pair.a.move_out(11, &mut pair.b.wire);
                    }
                    // Rejected.
                    2 => {
                        pair.a.machine.begin_connect_peer();
                        pair.a.hand_out();
                        pair.a.move_out(usize::MAX, &mut pair.b.wire);
                        let data = pair.request().into_data();
                        let reject = ControlFrame::new(ControlKind::Reject, data).unwrap();
                        pair.a.wire.extend(reject.encode());
                        pair.a.move_in(usize::MAX);
                        pair.a.move_in(usize::MAX);
                        let fault = pair.a.machine.fault().map(|error| error.kind());
                        assert_eq!(fault, Some(ErrorKind::ConnectionRefused));
                    }
                    // Half of the response has come, and then the end.
                    3 => {
                        pair.a.machine.begin_connect_peer();
                        pair.a.hand_out();
                        pair.a.move_out(usize::MAX, &mut pair.b.wire);
                        let asked = PeerData::read(pair.request().data()).unwrap();
                        pair.b
                            .machine
                            .begin_accept_peer(&asked, ByteOrder::Native, None);
                        pair.b.hand_out();
                        pair.b.move_out(35, &mut pair.a.wire);
                        pair.a.move_in(usize::MAX);
                        pair.a.move_in(usize::MAX);
                        pair.a.machine.handle_end();
                        pair.b = setup.idle().b;
                        pair.b.host.region(7, vec![0; 8], REMOTE);
                    }
                    // The response of an accepted request is on its way.
                    4 => {
                        pair.a
                            .machine
                            .begin_accept_peer(&request, ByteOrder::Big, None);
                        pair.a.hand_out();
                        pair.a.move_out(7, &mut pair.b.wire);
                    }
                    _ => pair
                        .a
                        .machine
                        .fail(Error::new(ErrorKind::ConnectionRefused, "")),
                }
                // Another post, while it is known to have failed.
                pair.a.post(5, tagged(6, b"in between", None, false));
                assert!(pair.a.sending.is_none());
                pair.a.wire.clear();
                pair.b.wire.clear();
                pair.a.forget_stage();
                pair.a.machine.reset_attempt();
                assert_eq!(pair.a.machine.lifecycle(), Lifecycle::Idle);
                assert!(pair.a.ended.is_empty() && pair.a.events.is_empty());
                if !dials_again {
                    std::mem::swap(&mut pair.a, &mut pair.b);
                }
                pair.handshake_peers(ByteOrder::Native);
                if !dials_again {
                    std::mem::swap(&mut pair.a, &mut pair.b);
                }
                check_some(&mut pair);
                pair.b.receive_tagged(5, 6, 10);
                assert_eq!(pair.b.end_of(5), (Ok(10), b"in between".to_vec()));
                assert_eq!(pair.a.events, [r#"connected b"""#]);
            }
        }
    }
}

/// Each side knows what the other said: its listening port and its incarnation.
#[test]
fn each_side_knows_who_the_other_is() {
    for setup in [plain(), extended()] {
        let pair = setup.connected();
        let (to_a, to_b) = (pair.b.machine.peer_data(), pair.a.machine.peer_data());
        let (request, response) = (to_a.expect("a request"), to_b.expect("a response"));
        assert_eq!((request.port(), request.incarnation()), (0x1001, 2));
        assert_eq!((response.port(), response.incarnation()), (0x1001, 3));
        assert!(response.agrees_to_announcements());
        assert_eq!(
            response.offer().is_some(),
            !setup.params.capabilities.is_empty()
        );
    }
}

/// A response that is not a connectionless endpoint's ends the attempt.
#[test]
fn a_short_response_is_none() {
    for len in 0..8 {
        let mut pair = plain().idle();
        pair.a.machine.begin_connect_peer();
        let data = bytes::Bytes::copy_from_slice(&[0x81, 0, 0, 0, 0, 0, 0, 1][..len]);
        let response = ControlFrame::new(ControlKind::Response, data).unwrap();
        pair.a.wire.extend(response.encode());
        while pair.a.move_in(usize::MAX) {}
        let fault = pair.a.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::Incompatible));
    }
}
