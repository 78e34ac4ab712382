//! Announcements that their senders take back: docs/extension.md, section 8.

use super::pair::{Pair, TestConnection, memory_of, operation, step};
use super::receives::{extended, plain, tagged};
use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::proto::{MatchCriteria, OpKind, Withdrawn};
use crate::wire::{ByteOrder, Capabilities, CloseReason, FrameHeader, PeerData};

/// Returns the bytes of the next batch that a side sends.
fn said(side: &mut TestConnection) -> Vec<u8> {
    let mut wire = Default::default();
    side.hand_out();
    side.move_out(usize::MAX, &mut wire);
    wire.into_iter().collect()
}

/// Hands bytes to a side, and lets it look at them.
fn hear(side: &mut TestConnection, bytes: &[u8]) {
    side.wire.extend(bytes);
    while side.move_in(usize::MAX) {}
}

/// An announced message of which `b` knows.
fn announced(tag: u64) -> (Pair, crate::proto::OpKey) {
    let mut pair = extended().connected();
    let key = pair.a.send_tagged(1, tag, &[1; 5000]);
    pair.run();
    assert_eq!(pair.b.shared().kept.len(), 1);
    (pair, key)
}

/// A message that is given up is withdrawn at the peer too: its memory comes back in that moment,
/// its name is free, what it cost the peer is free, and no later receive meets it.
#[test]
fn what_is_given_up_leaves_nothing_behind() {
    let mut pair = extended().connected();
    for token in 0..1000 {
        let key = pair.a.send_tagged(token, token, &[1; 5000]);
        pair.run();
        let withdrawn = match token % 3 {
            0 => pair.a.machine.cancel(key),
            1 => pair.a.machine.withdraw(key),
            _ => pair.a.machine.expire(key, None),
        };
        assert_eq!(withdrawn, Withdrawn::Ended);
        pair.a.take_events();
        let end = pair.a.ended.remove(&token).unwrap();
        assert_eq!(memory_of(&end).len(), 5000);
        let error = end.end.result.clone().unwrap_err().to_string();
        assert!(error.contains("had no receive for it"), "{error}");
        pair.run();
        assert_eq!(pair.b.shared().held_bytes(), 0);
    }
    pair.b.receive_tagged(1, 1, 5000);
    pair.a.send_tagged(2000, 2000, &[2; 5000]);
    pair.run();
    assert!(pair.b.ended.is_empty(), "nothing of the tag 1 is left");
    pair.b.receive_tagged(2000, 2000, 5000);
    pair.run();
    assert_eq!(pair.b.end_of(2000), (Ok(5000), vec![2; 5000]));
    assert!(pair.a.end_of(2000).0.is_ok());
}

/// "the two cross: the CTS is void": the receive is posted again, in its place.
#[test]
fn a_receive_that_crosses_a_withdrawal_takes_the_next_message() {
    let (mut pair, key) = announced(1);
    pair.b.receive_tagged(1, 1, 5000);
    pair.b.receive_tagged(2, 1, 5000);
    let clear = said(&mut pair.b);
    assert_eq!(pair.a.machine.expire(key, None), Withdrawn::Ended);
    hear(&mut pair.a, &clear);
    pair.run();
    assert!(pair.b.ended.is_empty());
    assert_eq!(pair.b.shared().posted.len(), 2);
    for token in [3, 4] {
        pair.a.send_tagged(token, 1, &[token as u8; 5000]);
        pair.run();
    }
    assert_eq!(pair.b.end_of(1), (Ok(5000), vec![3; 5000]));
    assert_eq!(pair.b.end_of(2), (Ok(5000), vec![4; 5000]));
}

/// A receive that was matched with an announcement whose name has another message by then does not
/// get that one.
#[test]
fn a_name_that_is_used_again_is_another_message() {
    let (mut pair, key) = announced(1);
    let old = match &pair.b.shared().kept[0] {
        super::receives::Kept::Announced(announcement) => *announcement,
        other => panic!("{other:?}"),
    };
    assert_eq!(pair.a.machine.cancel(key), Withdrawn::Ended);
    pair.run();
    pair.a.send_tagged(2, 2, &[2; 5000]);
    pair.run();
    pair.b.receive_tagged(9, 9, 10);
    let receive = pair.b.shared().posted.pop().unwrap();
    pair.b.shared().offers.push((receive, old));
    pair.b.answer_offers();
    assert_eq!(pair.b.shared().posted.len(), 1, "it is posted again");
    assert!(said(&mut pair.b).is_empty(), "and no clear-to-send is sent");
}

/// A peer sends none of the messages that it has announced behind its CLOSE: a receive that matches
/// one of them is posted again.
#[test]
fn a_message_that_is_announced_before_a_close_takes_no_receive_behind_it() {
    let (mut pair, _) = announced(1);
    let reason = CloseReason::Done;
    let close = FrameHeader::Close { reason }.encode(ByteOrder::Native, 1);
    hear(&mut pair.b, &close);
    pair.b.receive_tagged(1, 1, 5000);
    assert!(pair.b.shared().awaiting.is_empty());
    assert_eq!(pair.b.shared().posted_tokens(), [1]);
    pair.b.cut();
    assert_eq!(pair.b.shared().posted_tokens(), [1]);
}

/// A side that closes has withdrawn before; one that has said CLOSE takes what crosses it.
#[test]
fn withdrawals_and_closes_may_cross() {
    for closes_first in [false, true] {
        let (mut pair, key) = announced(1);
        pair.b.machine.request_close();
        let close = said(&mut pair.b);
        if closes_first {
            hear(&mut pair.a, &close);
        }
        assert_eq!(pair.a.machine.cancel(key), Withdrawn::Ended);
        pair.a.take_events();
        if !closes_first {
            let withdraw = said(&mut pair.a);
            hear(&mut pair.a, &close);
            hear(&mut pair.b, &withdraw);
        }
        pair.run();
        assert!(pair.a.machine.is_close_exchanged() && pair.b.machine.is_close_exchanged());
        assert!(!pair.a.machine.has_carried_over() || closes_first);
    }
}

/// What only hostile peers send ends the connection.
#[test]
fn wrong_withdrawals_are_violations() {
    let native = |header: FrameHeader| header.encode(ByteOrder::Native, 0).to_vec();
    let rts = native(FrameHeader::Rts {
        index: 3,
        tag: Some(9),
        data: None,
        ack: false,
        len: 5,
    });
    let withdraw = || native(FrameHeader::Withdraw { index: 3 });
    let data = native(FrameHeader::Data {
        index: 3,
        has_data: false,
        ack: false,
        len: 5,
    });
    let close = native(FrameHeader::Close {
        reason: CloseReason::Done,
    });
    let streams = [
        ("of nothing", vec![withdraw()], false),
        ("twice", vec![rts.clone(), withdraw(), withdraw()], false),
        (
            "behind its data",
            vec![rts.clone(), data.clone(), vec![0; 5], withdraw()],
            true,
        ),
        ("and then data", vec![rts.clone(), withdraw(), data], true),
        (
            "no data before the end",
            vec![rts.clone(), close.clone()],
            true,
        ),
        ("behind the end", vec![rts, close, withdraw()], false),
        (
            "word that nothing awaits",
            vec![native(FrameHeader::Withdrawn { index: 3 })],
            false,
        ),
        (
            "no name",
            vec![{
                let mut frame = withdraw();
                frame[4] = 255;
                frame
            }],
            false,
        ),
    ];
    for (what, stream, has_receive) in streams {
        let mut pair = extended().connected();
        if has_receive {
            pair.b.receive_tagged(1, 9, 100);
        }
        hear(&mut pair.b, &stream.concat());
        let fault = pair.b.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation), "{what}");
        pair.b.close();
        let left = pair.b.shared().posted.len() + usize::from(pair.b.ended.contains_key(&1));
        assert_eq!(left, usize::from(has_receive), "{what}: one end");
        assert_eq!(pair.b.shared().kept.len(), 0, "{what}");
    }
    // A second clear-to-send of a message that is withdrawn.
    let (mut pair, key) = announced(1);
    pair.a.machine.cancel(key);
    let clear = native(FrameHeader::Cts { index: 1 });
    hear(&mut pair.a, &clear);
    assert!(pair.a.machine.fault().is_none(), "the first may cross");
    hear(&mut pair.a, &clear);
    assert!(pair.a.machine.fault().is_some());
}

/// A peer that does not know withdrawals hears of none: C peers, and this library of earlier.
/// It is owed what was announced, and with no name left messages go as they are.
#[test]
fn a_peer_without_withdrawals_is_owed_what_was_announced() {
    let mut setup = plain();
    setup.sizes.tx_size = 1000;
    let mut pair = setup.connected();
    for token in 0..254 {
        let key = pair.a.send_tagged(token, token, &[1; 1500]);
        pair.run();
        assert_eq!(pair.a.machine.expire(key, None), Withdrawn::Running);
        assert!(pair.a.machine.is_announced(key));
    }
    pair.a.send_tagged(1000, 1000, &[2; 1500]);
    pair.b.receive_tagged(1000, 1000, 1500);
    pair.run();
    assert_eq!(pair.b.end_of(1000), (Ok(1500), vec![2; 1500]));
    pair.b.receive_tagged(7, 7, 1500);
    pair.run();
    assert_eq!(pair.b.end_of(7), (Ok(1500), vec![1; 1500]));
    assert_eq!(pair.a.end_of(7).0, Ok(1500));

    // An older one of ours does not answer the offer.
    let mut pair = extended().idle();
    pair.a.machine.begin_connect_peer();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    let mut data = pair.request().into_data().to_vec();
    data[16] = 0;
    let asked = PeerData::read(&data).unwrap();
    pair.b
        .machine
        .begin_accept_peer(&asked, ByteOrder::Native, None);
    pair.run();
    let agreed = pair.a.machine.agreed();
    assert!(agreed.contains(Capabilities::RENDEZVOUS) && !agreed.contains(Capabilities::WITHDRAW));
    let key = pair.a.post(1, tagged(1, &[1; 5000], None, false));
    pair.run();
    assert_eq!(pair.a.machine.cancel(key), Withdrawn::Running);
    assert!(said(&mut pair.a).is_empty());
}

/// "A receive of a connectionless endpoint does not end because one peer's connection did": it
/// waits again as the oldest, wherever in its message the connection ends; one for that peer alone
/// ends with the reason.
#[test]
fn a_receive_outlives_the_connection_that_was_to_fill_it() {
    for setup in [plain(), extended()] {
        // Sent at once, and announced first.
        for len in [900, 5000] {
            for directed in [false, true] {
                let mut pair = setup.connected();
                let source = pair.b.machine.ids().unwrap().source;
                match directed {
                    true => pair.b.receive_from(1, source, 5000),
                    false => pair.b.receive_any(1, MatchCriteria::Message, 5000),
                }
                pair.b.receive_any(2, MatchCriteria::Message, 5000);
                let send = operation(
                    OpKind::Send {
                        data: None,
                        ack: true,
                        tag: None,
                    },
                    Payload::from_vec(vec![7; len]),
                );
                pair.a.post(1, send);
                while pair.b.shared().posted.len() == 2 || pair.b.shared().awaiting.is_empty() {
                    assert!(
                        step(&mut pair.a, &mut pair.b, 100) | step(&mut pair.b, &mut pair.a, 100)
                    );
                }
                pair.b.cut();
                let posted = pair.b.shared().posted_tokens();
                if directed {
                    assert_eq!(posted, [2]);
                    assert_eq!(pair.b.ended[&1].end.len, 0);
                    assert_eq!(pair.b.end_kind(1), ErrorKind::ConnectionReset);
                } else {
                    assert_eq!(posted, [1, 2], "in its place");
                    assert!(pair.b.ended.is_empty());
                }
                assert!(pair.b.shared().awaiting.is_empty());
            }
        }
    }
}
