//! Credit for messages: docs/extension.md, section 6.

use super::extension::EXTENDED;
use super::pair::{Pair, REMOTE, Rng, sizes};
use crate::error::ErrorKind;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::{ExtensionParams, SendOrder, Sizes, Withdrawn};
use crate::wire::{ByteOrder, FrameHeader};

fn pair_with(unexpected_bytes: usize, send_order: SendOrder) -> Pair {
    pair_of(EXTENDED, unexpected_bytes, send_order)
}

fn pair_of(params: ExtensionParams, unexpected_bytes: usize, send_order: SendOrder) -> Pair {
    let sizes = Sizes {
        unexpected_bytes,
        send_order,
        ..sizes()
    };
    let mut pair = Pair::idle_with(sizes, params, params);
    pair.handshake(ByteOrder::Native, b"", b"");
    pair
}

/// docs/extension.md: "The sender holds back a message that meets neither condition, and all
/// messages behind it, and nothing else: RMA, acknowledgements, probes and their answers are sent."
#[test]
fn a_held_message_holds_up_messages_only() {
    let mut pair = pair_with(0, SendOrder::Free);
    let region = pair.b.host.region(7, vec![0; 16], REMOTE);
    for token in 0..5 {
        pair.a.send_acked(token, &[token as u8; 10]);
    }
    pair.a.write(10, b"12345678", &[(7, 0, 8)]);
    pair.a.read(11, 3, &[(7, 2, 3)]);
    pair.run();
    assert_eq!(pair.a.order, [10, 11], "RMA has passed");
    assert_eq!(pair.a.end_of(11), (Ok(3), b"345".to_vec()));
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"12345678");
    assert!(!pair.b.is_paused());
    assert_eq!(pair.b.machine.unexpected_bytes(), 0);
    for token in 0..5 {
        pair.b.receive(token, 10);
        pair.run();
        let expected = vec![token as u8; 10];
        assert_eq!(pair.b.end_of(token), (Ok(10), expected.clone()));
        assert_eq!(pair.a.end_of(token), (Ok(10), expected));
    }
}

/// FI_ORDER_WAS, FI_ORDER_RAS: "lets RMA wait behind a held message".
#[test]
fn who_asked_for_order_behind_sends_gets_it() {
    let mut pair = pair_with(0, SendOrder::Strict);
    pair.b.host.region(7, vec![0; 16], REMOTE);
    pair.a.write(1, b"before", &[(7, 0, 6)]);
    pair.a.send(2, b"held");
    pair.a.write(3, b"behind", &[(7, 0, 6)]);
    pair.run();
    assert_eq!(pair.a.order, [1]);
    pair.b.receive(1, 4);
    pair.run();
    assert_eq!(pair.a.order, [1, 2, 3]);
}

/// A message never passes RMA that was posted before it (FI_ORDER_SAW), also behind held ones.
#[test]
fn messages_never_pass_rma() {
    let mut pair = pair_with(0, SendOrder::Free);
    pair.b.host.region(7, vec![0; 16], REMOTE);
    pair.a.send_acked(1, b"held");
    pair.a.write(2, b"first", &[(7, 0, 5)]);
    pair.a.send_acked(3, b"second");
    pair.b.receive(1, 4);
    pair.b.receive(2, 6);
    pair.run();
    let at = |token| pair.a.order.iter().position(|ended| *ended == token);
    assert!(at(2) < at(3), "{:?}", pair.a.order);
}

/// "A sender that holds a message back says STALLED, once until the next CREDIT."
#[test]
fn a_stall_is_announced_once_and_answered_by_the_next_receive() {
    let mut pair = pair_with(0, SendOrder::Free);
    pair.a.send(1, b"held");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    let stalled = FrameHeader::Stalled { sent: 0 };
    let sent: Vec<u8> = pair.b.wire.iter().copied().collect();
    assert_eq!(sent, *stalled.encode(ByteOrder::Native, 1));
    pair.a.send(2, b"held too");
    pair.a.hand_out();
    assert!(pair.a.sending.is_none(), "nothing more to say");
    pair.run();
    assert!(!pair.b.machine.wants_credit(), "nothing is posted");
    pair.b.receive(1, 4);
    assert!(pair.b.machine.wants_credit());
    pair.run();
    assert_eq!(pair.b.end_of(1), (Ok(4), b"held".to_vec()));
}

/// A peer that knows no credit is not held back; its messages wait in the socket, as before.
#[test]
fn a_plain_peer_sends_and_stops_the_connection() {
    let mut pair = pair_of(super::pair::PLAIN, 0, SendOrder::Free);
    pair.a.send(1, b"at once");
    pair.run();
    assert_eq!(pair.a.end_of(1).0, Ok(7));
    assert!(pair.b.is_paused());
}

/// Whatever is posted when: an honest sender's messages never make the receiver stop reading,
/// nothing is lost or stuck, and unexpected messages stay within the budget.
#[test]
fn credit_keeps_the_receiver_reading() {
    for seed in 0..300 {
        let rng = &mut Rng(seed);
        let budget = [0, 200, 1000, 20_000][rng.below(4)];
        let mut pair = pair_with(budget, [SendOrder::Free, SendOrder::Strict][rng.below(2)]);
        let (mut sent, mut received) = (0_u64, 0_u64);
        for _ in 0..400 {
            match rng.below(8) {
                0 | 1 if sent < received + 60 => {
                    let len = [rng.below(50), rng.below(2000)][rng.below(2)];
                    pair.a.send(sent, &vec![sent as u8; len]);
                    sent += 1;
                }
                2 if received < sent + 60 => {
                    pair.b.receive(received, 2000);
                    received += 1;
                }
                3 => {
                    pair.a.hand_out();
                    let most = rng.below(3000);
                    pair.a.move_out(most, &mut pair.b.wire);
                }
                4 => {
                    pair.b.hand_out();
                    let most = rng.below(3000);
                    pair.b.move_out(most, &mut pair.a.wire);
                }
                5 => {
                    pair.a.move_in(1 + rng.below(3000));
                }
                _ => {
                    pair.b.move_in(1 + rng.below(3000));
                }
            }
            assert!(!pair.b.is_paused(), "seed {seed}");
            assert!(pair.b.machine.unexpected_bytes() <= budget, "seed {seed}");
        }
        while received < sent {
            pair.b.receive(received, 2000);
            received += 1;
            pair.run_in_pieces(1 + rng.below(5000));
        }
        pair.run();
        for token in 0..sent {
            let (result, bytes) = pair.b.end_of(token);
            let len = result.expect("a message");
            assert_eq!(bytes[..len], vec![token as u8; len], "seed {seed}");
        }
    }
}

/// A receive that is withdrawn takes its promise along, at the latest with the next frame.
#[test]
fn a_withdrawn_receive_takes_its_credit_back() {
    let mut pair = pair_with(UNEXPECTED_OVERHEAD + 4, SendOrder::Free);
    let key = pair.b.receive(1, 4);
    // Small messages never make a CREDIT due by themselves here; the sender stalls first.
    pair.a.send(1, b"abcd");
    pair.a.send(2, b"efgh");
    pair.run();
    assert_eq!(pair.b.machine.cancel(key), Withdrawn::Gone);
    let again = pair.b.receive(2, 4);
    pair.run();
    assert_eq!(pair.b.machine.cancel(again), Withdrawn::Gone);
    let third = pair.b.receive(3, 4);
    pair.a.send(3, b"ijkl");
    pair.run();
    assert_eq!(pair.b.machine.cancel(third), Withdrawn::Gone);
    let fourth = pair.b.receive(4, 4);
    assert_eq!(pair.b.machine.cancel(fourth), Withdrawn::Ended);
    pair.b.take_events();
    pair.a.send(4, b"mnop");
    pair.run();
    assert!(!pair.b.is_paused(), "it fits the budget");
    pair.b.receive(5, 4);
    pair.run();
    assert_eq!(pair.b.end_of(5), (Ok(4), b"mnop".to_vec()));
}

/// Reports that no peer of ours sends: counts that jump, STALLED without end. Nothing grows or
/// breaks.
#[test]
fn strange_counts_are_only_numbers() {
    for posted in [0, 1, u64::MAX - 1, u64::MAX] {
        let mut pair = pair_with(1000, SendOrder::Free);
        for _ in 0..3 {
            for frame in [
                FrameHeader::Credit { posted },
                FrameHeader::Stalled { sent: posted },
                FrameHeader::Credit { posted: 0 },
                FrameHeader::Stalled { sent: 0 },
            ] {
                pair.b
                    .wire
                    .extend(frame.encode(ByteOrder::Native, 0).iter());
            }
            pair.b.send(posted ^ 5, b"x");
            pair.b.receive(posted ^ 6, 4);
            while pair.b.move_in(usize::MAX) {}
            pair.b.hand_out();
            pair.b.move_out(usize::MAX, &mut Default::default());
            pair.b.close();
            assert!(pair.b.ended.len() >= 2);
            assert_ne!(
                pair.b.machine.fault().map(|error| error.kind()),
                Some(ErrorKind::ProtocolViolation)
            );
            pair = pair_with(1000, SendOrder::Free);
        }
    }
}

/// docs/extension.md, section 8: `posted` is "the number of messages that have arrived on this
/// connection, less those that are kept", so a held message goes when one has left the store, and
/// not before.
#[test]
fn where_receives_are_shared_credit_comes_when_a_message_is_taken() {
    let setup = super::receives::Setup {
        promised: 2 * (UNEXPECTED_OVERHEAD as u64 + 10),
        ..super::receives::extended()
    };
    let mut pair = setup.connected();
    for token in 0..4 {
        pair.a.send_tagged(token, token, &[token as u8; 10]);
    }
    pair.run();
    assert_eq!(pair.a.order, [0, 1], "the others are held back");
    assert_eq!(pair.b.shared().kept.len(), 2);
    assert!(pair.b.shared().is_stalled && pair.b.machine.wants_credit());
    // A receive that takes none of them changes nothing.
    pair.b.receive_tagged(9, 9, 10);
    pair.run();
    assert_eq!(pair.a.order, [0, 1]);
    pair.b.receive_tagged(1, 1, 10);
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    let sent: Vec<u8> = pair.a.wire.iter().copied().collect();
    let credit = FrameHeader::Credit { posted: 1 };
    assert_eq!(sent, *credit.encode(ByteOrder::Native, 1));
    pair.run();
    assert_eq!(pair.a.order, [0, 1, 2]);
    for token in [2, 0, 3] {
        pair.b.receive_tagged(token, token, 10);
        pair.run();
    }
    assert_eq!(pair.a.order, [0, 1, 2, 3]);
    assert_eq!(pair.b.order, [1, 2, 0, 3]);
    assert!(!pair.b.is_paused());
}

/// Messages that are matched as they come need no credit: a stream of messages that all find their
/// receives is never delayed for long, and gets few reports.
#[test]
fn messages_that_find_their_receives_use_up_no_promise() {
    let setup = super::receives::Setup {
        promised: 4000,
        ..super::receives::extended()
    };
    let mut pair = setup.connected();
    for token in 0..1000 {
        pair.b.receive_tagged(token, 1, 10);
        pair.a.send_tagged(token, 1, b"0123456789");
        pair.run();
        assert_eq!(pair.a.order.len() as u64, token + 1);
        assert_eq!(pair.b.order.len() as u64, token + 1);
    }
    assert!(pair.b.sent_bytes < 24 * 1000 / 2, "{}", pair.b.sent_bytes);
}
