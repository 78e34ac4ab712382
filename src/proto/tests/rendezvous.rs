//! Announced messages: one scenario each, step by step.

mod ends;

use super::pair::{Pair, REMOTE, Rng, TestConnection, memory_of, operation};
use super::receives::{EXTENDED, Setup, announced, extended, plain, tagged};
use crate::buf::Payload;
use crate::error::{ErrorKind, Phase};
use crate::limits::DIRECT_RECEIVE_MIN;
use crate::proto::{
    ExtensionParams, MatchCriteria, OpKind, Operation, SendOrder, Sizes, SourceId, Withdrawn,
};
use crate::wire::{ByteOrder, Capabilities, FrameHeader};

/// The bytes that a side sends next.
fn said(side: &mut TestConnection) -> Vec<u8> {
    let mut wire = Default::default();
    side.hand_out();
    side.move_out(usize::MAX, &mut wire);
    wire.into_iter().collect()
}

/// Hands bytes to a side, which processes them.
fn hear(side: &mut TestConnection, bytes: &[u8]) {
    side.wire.extend(bytes);
    while side.move_in(usize::MAX) {}
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair));
    pairs
        .map(|pair| u8::from_str_radix(pair.expect("ascii"), 16).expect("hex"))
        .collect()
}

fn untagged(bytes: &[u8], data: Option<u64>, ack: bool) -> Operation<u64> {
    operation(
        OpKind::Send {
            data,
            ack,
            tag: None,
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

/// The exchange that was captured of libfabric 2.6 with FI_TCP_MAX_SAVED_SIZE=100: 20,000 bytes
/// with the tag 1.
#[cfg(target_endian = "little")]
#[test]
fn the_captured_exchange_is_what_two_machines_say() {
    let setup = Setup {
        long_messages: announced(100),
        ..plain()
    };
    let mut pair = setup.connected();
    let message: Vec<u8> = (0..20_000).map(|at| at as u8).collect();
    pair.a.send_tagged(1, 1, &message);
    let rts = said(&mut pair.a);
    assert_eq!(
        rts,
        bytes_of("03050000010020002000000000000000 0100000000000000 204e000000000000")
    );
    hear(&mut pair.b, &rts);
    assert!(said(&mut pair.b).is_empty(), "nothing wants it yet");
    pair.b.receive_tagged(1, 1, 20_000);
    let cts = said(&mut pair.b);
    assert_eq!(cts, bytes_of("03060000010010001000000000000000"));
    hear(&mut pair.a, &cts);
    let mut data = said(&mut pair.a);
    data[7] = 0; // the frame counter, which release builds of libfabric leave unset
    assert_eq!(data[..16], bytes_of("0307000001001000304e000000000000"));
    assert_eq!(data[16..], message);
    hear(&mut pair.b, &data);
    assert_eq!(pair.a.end_of(1), (Ok(20_000), message.clone()));
    let end = &pair.b.ended[&1];
    assert_eq!(
        (end.end.tag, end.end.source()),
        (Some(1), Some(SourceId(2)))
    );
    assert_eq!(pair.b.end_of(1), (Ok(20_000), message));
}

/// Expected and not, with and without CQ data and delivery-complete, with a tag and without, at
/// sizes around the threshold and those at which bytes land directly, in pieces of all sizes.
#[test]
fn announced_messages_arrive_whole_at_all_sizes() {
    let sizes = [
        0,
        1,
        99,
        100,
        101,
        4096,
        DIRECT_RECEIVE_MIN - 1,
        DIRECT_RECEIVE_MIN * 3,
    ];
    for setup in [plain(), extended()] {
        for (number, len) in sizes.into_iter().enumerate() {
            for kind in 0..16 {
                let setup = Setup {
                    long_messages: announced([100, 0][usize::from(kind & 8 != 0)]),
                    ..setup
                };
                let mut pair = setup.connected();
                let bytes = Rng(number as u64).bytes(len);
                let data = (kind & 1 != 0).then_some(77);
                let ack = kind & 2 != 0;
                let is_expected = kind & 4 != 0;
                if is_expected {
                    pair.b.receive_tagged(1, 5, len);
                    pair.b.receive_any(2, MatchCriteria::Message, len);
                }
                pair.a.post(1, tagged(5, &bytes, data, ack));
                pair.a.post(2, untagged(&bytes, data, ack));
                pair.run_in_pieces(7 + len / 3);
                if !is_expected {
                    pair.b.receive_any(2, MatchCriteria::Message, len);
                    pair.b.receive_tagged(1, 5, len);
                    pair.run_in_pieces(7 + len / 3);
                }
                for (token, tag) in [(1, Some(5)), (2, None)] {
                    let end = &pair.b.ended[&token];
                    assert_eq!(
                        (end.end.data, end.end.tag, end.end.overflow),
                        (data, tag, 0)
                    );
                    assert_eq!(pair.b.end_of(token), (Ok(len), bytes.clone()));
                    assert_eq!(pair.a.end_of(token), (Ok(len), bytes.clone()));
                }
                assert_eq!(pair.b.shared().kept.len(), 0);
            }
        }
    }
}

/// docs/extension.md: "several are open at once, and DATA come in the order of the CTS". Acks have
/// no names, so they answer the data, not the announcements.
#[test]
fn several_are_open_and_come_in_the_order_in_which_they_are_asked_for() {
    let mut pair = extended().connected();
    for token in 0..20 {
        let bytes = vec![token as u8; 2000 + token as usize];
        pair.a
            .post(token, tagged(token, &bytes, None, token % 3 != 0));
    }
    pair.run();
    assert!(
        pair.a.order.is_empty(),
        "their receiver has no room for them"
    );
    assert_eq!(pair.b.shared().kept.len(), 20);
    let asked = [13, 2, 19, 0, 1, 18, 7];
    for token in asked {
        pair.b.receive_tagged(token, token, 3000);
    }
    pair.run();
    assert_eq!(pair.b.order, asked);
    let mut ended = pair.a.order.clone();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 7, 13, 18, 19]);
    let acked: Vec<u64> = asked.into_iter().filter(|token| token % 3 != 0).collect();
    let acked_order: Vec<u64> = (pair.a.order.iter().copied())
        .filter(|token| token % 3 != 0)
        .collect();
    assert_eq!(acked_order, acked);
}

/// fi_msg(3), FI_ETRUNC: a receive that is too small gets what fits; the rest is dropped, its
/// sender succeeds, and the connection lives.
#[test]
fn a_small_receive_gets_the_front_and_the_stream_goes_on() {
    for setup in [plain(), extended()] {
        let mut pair = setup.connected();
        pair.b.receive_tagged(1, 5, 1500);
        pair.a.post(1, tagged(5, &[7; 100_000], None, true));
        pair.a.send_tagged(2, 6, b"behind");
        pair.run_in_pieces(4000);
        assert_eq!(pair.b.ended[&1].end.overflow, 98_500);
        assert_eq!(pair.b.end_of(1), (Err(ErrorKind::Truncated), vec![7; 1500]));
        assert_eq!(pair.a.end_of(1).0, Ok(100_000));
        pair.b.receive_tagged(2, 6, 6);
        assert_eq!(pair.b.end_of(2), (Ok(6), b"behind".to_vec()));
    }
}

/// There are 254 indices; a message that finds none waits in its lane, RMA passes, and nothing is
/// lost.
#[test]
fn without_a_name_a_message_waits_and_rma_passes() {
    for order in [SendOrder::Free, SendOrder::Strict] {
        let mut setup = plain();
        setup.sizes.tx_size = 1000;
        setup.sizes.send_order = order;
        let mut pair = setup.connected();
        pair.b.host.region(7, vec![0; 8], REMOTE);
        for token in 0..300 {
            pair.a.send_tagged(token, token, &vec![token as u8; 1001]);
        }
        pair.a.write(1000, b"passing", &[(7, 0, 7)]);
        pair.run();
        assert_eq!(pair.b.shared().kept.len(), 254);
        let passed: &[u64] = match order {
            SendOrder::Free => &[1000],
            SendOrder::Strict => &[],
        };
        assert_eq!(pair.a.order, passed);
        for token in 0..300 {
            pair.b.receive_tagged(token, token, 1001);
            pair.run();
            assert_eq!(pair.b.end_of(token), (Ok(1001), vec![token as u8; 1001]));
        }
        assert_eq!(pair.a.order.len(), 301);
    }
}

/// A message that costs more than is promised can only be announced, whatever the setting says.
#[test]
fn what_the_promise_never_covers_is_announced() {
    let setup = Setup {
        promised: 600,
        long_messages: announced(u64::MAX),
        ..extended()
    };
    let mut pair = setup.connected();
    pair.a.post(1, untagged(&[1; 500], None, false));
    pair.a.post(2, tagged(2, &[2; 500], None, false));
    pair.a.post(3, untagged(&[3; 50], None, false));
    pair.run();
    assert!(!pair.b.is_paused());
    assert!(pair.b.shared().held_bytes() <= 600);
    assert_eq!(pair.b.shared().kept.len(), 3);
    for (token, wanted) in [
        (3, MatchCriteria::Message),
        (2, MatchCriteria::Tagged { tag: 2, ignore: 0 }),
        (1, MatchCriteria::Message),
    ] {
        pair.b.receive_any(token, wanted, 500);
    }
    pair.run();
    assert_eq!(pair.b.end_of(3), (Ok(500), vec![1; 500]));
    assert_eq!(pair.b.end_of(2), (Ok(500), vec![2; 500]));
    assert_eq!(pair.b.end_of(1).0, Ok(50));
}

/// "Never rendezvous frames to a peer that did not agree": not to one of version 0, nor, since
/// those of libfabric mistake them, to one of another byte order; and untagged ones to ours only.
#[test]
fn who_did_not_agree_gets_no_announcement() {
    // Version 0: the response says so.
    let mut pair = plain().idle();
    pair.a.machine.begin_connect_peer();
    let request = said(&mut pair.a);
    assert_eq!(request[32], 1);
    let mut response = bytes_of("03010008 00000000 0000000000000000 0000000000000000");
    response.extend(1_u64.to_ne_bytes());
    response.extend(bytes_of("01 00 1001 00000009")); // echoed, without bit 7
    hear(&mut pair.a, &response);
    assert_eq!(pair.a.events, [r#"connected b"""#]);
    pair.a.send_tagged(1, 1, &[1; 5000]);
    assert_eq!(said(&mut pair.a)[..2], [3, 1]);
    // Its own are then none either.
    hear(&mut pair.a, &bytes_of("03060000010010001000000000000000"));
    let fault = pair.a.machine.fault().map(|error| error.kind());
    assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
    // Another byte order.
    let mut pair = plain().idle();
    pair.handshake_peers(ByteOrder::Big);
    pair.a.send_tagged(1, 1, &[1; 5000]);
    assert_eq!(said(&mut pair.a)[..2], [3, 1]);
    // Without the extension, no untagged ones.
    let mut pair = plain().connected();
    pair.a.post(1, untagged(&[1; 5000], None, false));
    assert_eq!(said(&mut pair.a)[..2], [3, 0]);
    let mut pair = extended().connected();
    pair.a.post(1, untagged(&[1; 5000], None, false));
    assert_eq!(said(&mut pair.a)[..2], [3, 0x8b]);
}

/// A request of version 0 is answered by 0, and then neither side announces.
#[test]
fn a_peer_of_version_0_neither_gets_nor_may_send_announcements() {
    let mut pair = plain().idle();
    let asked = crate::wire::PeerData::read(&bytes_of("0000896d00004562")).unwrap();
    pair.b
        .machine
        .begin_accept_peer(&asked, ByteOrder::Native, None);
    let response = said(&mut pair.b);
    assert_eq!(response[32..], bytes_of("0000896d00000003"));
    pair.b.send_tagged(1, 1, &[1; 5000]);
    assert_eq!(said(&mut pair.b)[..2], [3, 1]);
    let rts = FrameHeader::Rts {
        index: 1,
        tag: Some(1),
        data: None,
        ack: false,
        len: 10,
    };
    hear(&mut pair.b, &rts.encode(ByteOrder::Native, 0));
    let fault = pair.b.machine.fault().map(|error| error.kind());
    assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
}

/// CREDIT without RENDEZVOUS would leave large messages nowhere to go: it is not agreed on.
#[test]
fn credit_is_agreed_on_with_rendezvous_only() {
    let mut pair = extended().idle();
    let old = ExtensionParams {
        capabilities: Capabilities::CREDIT | Capabilities::CLOSE,
        ..EXTENDED
    };
    pair.a.machine.begin_connect_peer();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    let mut data = pair.request().into_data().to_vec();
    data[17] = old.capabilities.bits() as u8;
    let asked = crate::wire::PeerData::read(&data).unwrap();
    pair.b
        .machine
        .begin_accept_peer(&asked, ByteOrder::Native, None);
    assert_eq!(pair.b.machine.agreed(), Capabilities::CLOSE);
}

/// What only hostile peers send ends the connection, and says why.
#[test]
fn wrong_names_and_lengths_are_violations() {
    let native = |header: FrameHeader| header.encode(ByteOrder::Native, 0).to_vec();
    let rts = |index, len| {
        native(FrameHeader::Rts {
            index,
            tag: Some(9),
            data: None,
            ack: false,
            len,
        })
    };
    let data = |index, len: usize| {
        let mut frame = native(FrameHeader::Data {
            index,
            has_data: false,
            ack: false,
            len: len as u64,
        });
        frame.extend(vec![0; len]);
        frame
    };
    let cts = |index| native(FrameHeader::Cts { index });
    let streams: [(&str, Vec<u8>); 8] = [
        ("a name that is in use", [rts(3, 5), rts(3, 6)].concat()),
        (
            "a name in use by one asked for",
            [rts(1, 10), rts(1, 10)].concat(),
        ),
        ("data of nothing", data(1, 5)),
        ("data not asked for", [rts(3, 5), data(3, 5)].concat()),
        ("shorter data", [rts(1, 10), data(1, 9)].concat()),
        ("longer data", [rts(1, 10), data(1, 11)].concat()),
        (
            "data twice",
            [rts(1, 10), data(1, 10), data(1, 10)].concat(),
        ),
        ("a stray clear-to-send", cts(7)),
    ];
    for setup in [plain(), extended()] {
        for (what, stream) in &streams {
            let mut pair = setup.connected();
            // The first tag 9 is wanted, others are not.
            if *what != "data not asked for" && *what != "a name that is in use" {
                pair.b.receive_tagged(1, 9, 100);
            }
            hear(&mut pair.b, stream);
            let fault = pair.b.machine.fault().map(|error| error.kind());
            assert_eq!(fault, Some(ErrorKind::ProtocolViolation), "{what}");
            pair.b.close();
            let posted = pair.b.shared().posted.len();
            let ends = usize::from(pair.b.ended.contains_key(&1));
            let wanted = !matches!(*what, "data not asked for" | "a name that is in use");
            assert_eq!(posted + ends, usize::from(wanted), "{what}: one end");
        }
        // A second clear-to-send of a message that is on its way.
        let mut pair = setup.connected();
        pair.a.send_tagged(1, 1, &[1; 5000]);
        assert_eq!(said(&mut pair.a)[4], 1);
        hear(&mut pair.a, &[cts(1), cts(1)].concat());
        let fault = pair.a.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
        pair.a.close();
        assert_eq!(pair.a.end_kind(1), ErrorKind::ProtocolViolation);
    }
}

/// A connected endpoint has neither tags nor announcements.
#[test]
fn a_connected_endpoint_takes_none_of_these_frames() {
    let frames = [
        FrameHeader::Tagged {
            data: None,
            tag: 1,
            ack: false,
            len: 0,
        },
        FrameHeader::Rts {
            index: 1,
            tag: Some(1),
            data: None,
            ack: false,
            len: 5,
        },
        FrameHeader::Rts {
            index: 1,
            tag: None,
            data: None,
            ack: false,
            len: 5,
        },
        FrameHeader::Cts { index: 1 },
        FrameHeader::Data {
            index: 1,
            has_data: false,
            ack: false,
            len: 0,
        },
    ];
    for frame in frames {
        let mut pair = Pair::connected();
        pair.b.receive(1, 5);
        hear(&mut pair.b, &frame.encode(ByteOrder::Native, 0));
        let fault = pair.b.machine.fault().map(|error| error.kind());
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation), "{frame}");
    }
    let mut pair = Pair::connected();
    let refused = pair.a.try_post(1, tagged(1, b"x", None, false), true);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
