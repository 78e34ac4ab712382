//! Injected messages, which go out together and whose completions are only counted.

use super::extension::EXTENDED;
use super::pair::{Pair, REMOTE, Rng, operation, segments, sizes};
use super::refusal::{flush, living_with};
use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::proto::{InjectedEnds, OpKind, PostOptions, Sizes};
use crate::wire::{ByteOrder, Decoded, FrameHeader, decode};

fn sent(sent: usize) -> InjectedEnds {
    InjectedEnds { sent, failed: 0 }
}

/// fi_msg(3), fi_inject: messages come in the order of their posts, with other sends between them;
/// each ends once, whatever pieces the link sends of what it is given.
#[test]
fn injected_messages_keep_their_order_and_end_once() {
    for seed in 0..200 {
        let rng = &mut Rng(seed);
        let mut pair = Pair::connected();
        let (mut expected, mut injected, mut ended) = (Vec::new(), 0, 0);
        for token in 0..60 {
            let len = rng.below(130);
            let bytes = rng.bytes(len);
            pair.b.receive(token, 130);
            if rng.chance(70) {
                injected += 1;
                let data = rng.chance(30).then_some(token);
                pair.a.machine.inject(&bytes, data).unwrap();
            } else {
                pair.a.send(token, &bytes);
            }
            expected.push(bytes);
            if rng.chance(20) {
                pair.a.hand_out();
                pair.a.move_out(rng.below(2000), &mut pair.b.wire);
            }
            ended += pair.a.machine.take_injected_ends().sent;
            pair.a.machine.check();
        }
        pair.run_in_pieces(1 + rng.below(300));
        ended += pair.a.machine.take_injected_ends().sent;
        assert_eq!(ended, injected);
        for (token, bytes) in expected.into_iter().enumerate() {
            let (len, buffer) = pair.b.end_of(token as u64);
            assert_eq!(len, Ok(bytes.len()));
            assert_eq!(buffer[..bytes.len()], bytes);
        }
        pair.a.machine.check();
        assert!(pair.a.machine.is_transmit_drained());
    }
}

/// fi_domain(3): "When RM is enabled, attempting to submit a request will fail if the context is
/// full", and what is injected takes its place there until it has gone.
#[test]
fn injected_messages_take_room_until_they_have_gone() {
    let mut pair = Pair::with(Sizes {
        tx_size: 3,
        ..sizes()
    });
    for _ in 0..3 {
        pair.a.machine.inject(b"in", None).unwrap();
    }
    let again = pair.a.machine.inject(b"out", None).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Again);
    let waiting = pair.a.send(1, b"waits");
    pair.a.hand_out();
    pair.a.move_out(20, &mut pair.b.wire);
    assert!(!pair.a.machine.wants_admission(), "a run ends as a whole");
    pair.run();
    assert_eq!(pair.a.machine.take_injected_ends(), sent(3));
    assert_eq!(pair.a.machine.phase(waiting), None);
    pair.a.machine.check();
}

/// fi_endpoint(3), FI_FENCE: the operation is deferred until all that were posted before have
/// completed, those among them that were injected; and those injected behind it stay behind it.
#[test]
fn a_fence_stands_between_injected_messages() {
    let mut pair = Pair::connected();
    pair.a.machine.inject(b"one", None).unwrap();
    pair.a.machine.inject(b"two", None).unwrap();
    let fenced = operation(
        OpKind::Send {
            data: None,
            ack: false,
            tag: None,
        },
        Payload::from_vec(b"fence".to_vec()),
    );
    let flags = PostOptions {
        wait: true,
        fence: true,
        ..PostOptions::default()
    };
    pair.a.try_post_with(1, fenced, flags).unwrap();
    pair.a.machine.inject(b"three", None).unwrap();
    pair.a.hand_out();
    assert_eq!(pair.a.move_out(usize::MAX, &mut pair.b.wire), 2 * (16 + 3));
    assert_eq!(pair.a.machine.take_injected_ends(), sent(2));
    pair.a.hand_out();
    let both = (16 + 5) + (16 + 5);
    assert_eq!(pair.a.move_out(usize::MAX, &mut pair.b.wire), both);
    assert_eq!(pair.a.machine.take_injected_ends(), sent(1));
    for (token, bytes) in [&b"one"[..], b"two", b"fence", b"three"].iter().enumerate() {
        pair.b.receive(token as u64, 5);
        pair.run();
        let (len, buffer) = pair.b.end_of(token as u64);
        assert_eq!((len, &buffer[..bytes.len()]), (Ok(bytes.len()), *bytes));
    }
    pair.a.machine.check();
}

/// Ruling 2, "Counters count both": what has not gone when the connection ends has failed, once.
#[test]
fn injected_messages_fail_with_their_connection() {
    for broken in [false, true] {
        let mut pair = Pair::connected();
        for _ in 0..3 {
            pair.a.machine.inject(b"goes", None).unwrap();
        }
        pair.a.hand_out();
        pair.a.machine.inject(b"stays", None).unwrap();
        if broken {
            pair.a.move_out(30, &mut pair.b.wire);
            pair.a.cut();
        } else {
            pair.a.close();
        }
        let ends = pair.a.machine.take_injected_ends();
        assert_eq!((ends.sent, ends.failed), (0, 4));
        assert_eq!(pair.a.machine.take_injected_ends(), InjectedEnds::default());
        pair.a.machine.check();
    }
}

/// docs/extension.md, section 7: what the peer has no room for when it says CLOSE fails, and what
/// it has room for goes out.
#[test]
fn injected_messages_that_wait_for_credit_fail_when_the_peer_closes() {
    let small = Sizes {
        unexpected_bytes: 2 * (128 + 10),
        ..sizes()
    };
    let mut pair = Pair::idle_with(small, EXTENDED, EXTENDED);
    pair.handshake(ByteOrder::Native, b"", b"");
    for byte in 0..5 {
        pair.a.machine.inject(&[byte; 10], None).unwrap();
    }
    let send = pair.a.send(7, b"behind them");
    let region = pair.b.host.region(1, vec![0; 8], REMOTE);
    let write = operation(
        OpKind::Write {
            data: None,
            ack: true,
            commit: false,
            segments: segments(&[(1, 0, 7)]),
        },
        Payload::from_vec(b"through".to_vec()),
    );
    let flags = PostOptions {
        wait: true,
        fence: true,
        ..PostOptions::default()
    };
    pair.a.try_post_with(8, write, flags).unwrap();
    pair.run();
    assert_eq!(pair.a.ended.len(), 0, "it waits for what is before it");
    assert_eq!(pair.a.machine.take_injected_ends(), sent(2));
    pair.b.machine.request_close();
    pair.run();
    let ends = pair.a.machine.take_injected_ends();
    assert_eq!((ends.sent, ends.failed), (0, 3));
    assert_eq!(pair.a.machine.phase(send), None);
    assert_eq!(pair.a.end_kind(7), ErrorKind::NoReceive);
    // Nothing is left that a fence waits for, and there is always room for a write.
    assert_eq!(pair.a.end_of(8).0, Ok(7));
    let mut bytes = [0; 7];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, *b"through");
    for token in 0..2 {
        pair.b.receive(token, 10);
        assert_eq!(pair.b.end_of(token), (Ok(10), vec![token as u8; 10]));
    }
    pair.a.machine.check();
}

/// The frame counters and headers of what a side has said.
fn said(mut bytes: &[u8]) -> Vec<(u8, FrameHeader)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let Ok(Decoded::Frame {
            header, header_len, ..
        }) = decode(bytes, ByteOrder::Native)
        else {
            panic!("no frame: {bytes:?}");
        };
        let id = bytes[7];
        bytes = &bytes[header_len + header.payload_len() as usize..];
        frames.push((id, header));
    }
    frames
}

/// Byte 7 of each header counts the frames, "which debug builds of libfabric insist on": also that
/// of an answer's end that is written anew, since a region was revoked, with a run behind it.
#[test]
fn frames_are_counted_through_when_an_answer_ends_otherwise() {
    let mut pair = living_with(1);
    let region = pair.b.host.region(1, vec![1; 100], REMOTE);
    pair.a.read(1, 100, &[(1, 0, 100)]);
    flush(&mut pair.a, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.b.send(2, b"between");
    for _ in 0..3 {
        pair.b.machine.inject(b"run", None).unwrap();
    }
    pair.b.hand_out();
    pair.b.move_out(0, &mut pair.a.wire);
    region.gate().revoke();
    let mut wire = std::collections::VecDeque::new();
    flush(&mut pair.b, &mut wire);
    let frames = said(wire.make_contiguous());
    let kinds = frames.iter().map(|(_, header)| match header {
        FrameHeader::ReadData { .. } => 'd',
        FrameHeader::ReadEnd { refused: Some(_) } => 'e',
        FrameHeader::Message { .. } => 'm',
        _ => '?',
    });
    assert_eq!(kinds.collect::<String>(), "dmemmm");
    let first = frames[0].0;
    for (at, (id, header)) in frames.iter().enumerate() {
        assert_eq!(*id, first.wrapping_add(at as u8), "{header}");
    }
}

/// "Byte 7 of each header counts the frames of this direction in transmission order, which debug
/// builds of libfabric insist on", of injected messages too, which are written before.
#[test]
fn frames_of_injected_messages_are_numbered_as_they_go_out() {
    let mut pair = Pair::connected();
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    pair.b.wire.clear();
    let mut next = None;
    for round in 0..3 {
        pair.a.machine.inject(b"one", None).unwrap();
        pair.a.machine.inject(b"two", Some(7)).unwrap();
        pair.a.send(round, b"between");
        pair.a.machine.inject(b"", None).unwrap();
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        let bytes: Vec<u8> = pair.b.wire.drain(..).collect();
        let (mut rest, mut seen) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let Ok(Decoded::Frame {
                header,
                header_len,
                id,
            }) = decode(rest, ByteOrder::Native)
            else {
                panic!("a header");
            };
            assert_eq!(next.unwrap_or(id), id);
            next = Some(id.wrapping_add(1));
            seen.push((header.payload_len(), header.data()));
            rest = &rest[header_len + header.payload_len() as usize..];
        }
        assert_eq!(seen, [(3, None), (3, Some(7)), (7, None), (0, None)]);
    }
}

/// Reads and messages share the transmit context. A side with fewer reads in flight than it
/// has places can always send a control message; one that fills it gets an error that names them.
#[test]
fn a_context_full_of_reads_says_so_and_one_kept_free_takes_control_messages() {
    let mut pair = living_with(1);
    pair.b.host.region(1, vec![5; 8], REMOTE);
    let size = sizes().tx_size as u64;
    for token in 1..size {
        pair.a.read(token, 8, &[(1, 0, 8)]);
    }
    pair.a.machine.inject(b"control", None).unwrap();
    pair.a.hand_out();
    let refused = pair.a.machine.inject(b"control", None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Again);
    let said = refused.to_string();
    let full = format!("transmit context is full: {size} of {size} places are taken");
    let reads = format!("{} by reads", size - 1);
    assert!(said.contains(&full) && said.contains(&reads), "{said}");
    pair.run();
    pair.a.machine.inject(b"control", None).unwrap();
}
