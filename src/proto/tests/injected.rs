//! Injected messages, which go out together and whose completions are only counted.

use super::extension::EXTENDED;
use super::pair::{Pair, REMOTE, Rng, operation, segments, sizes};
use super::refusal::{flush, living_with};
use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::proto::{InjectedEnds, OpKind, PostOptions, Sizes};
use crate::wire::{ByteOrder, Decoded, FrameHeader, decode};

/// Checks that `sent` messages have ended since the last call, all of them sent.
#[track_caller]
fn expect_sent(connection: &mut super::side::TestConnection, sent: usize) {
    let ends = connection.machine.take_injected_ends();
    assert_eq!((ends.sent, ends.failed), (sent, 0));
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
/// full", and what is injected takes its place there until its last byte has gone, whatever goes
/// along with it.
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
    pair.a.move_out(17, &mut pair.b.wire);
    assert!(
        !pair.a.machine.wants_admission(),
        "a byte of the first is left"
    );
    pair.a.hand_out();
    pair.a.move_out(3, &mut pair.b.wire);
    assert!(
        pair.a.machine.wants_admission(),
        "two bytes of the second have gone"
    );
    expect_sent(&mut pair.a, 1);
    pair.run();
    expect_sent(&mut pair.a, 2);
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
    expect_sent(&mut pair.a, 2);
    pair.a.hand_out();
    let both = (16 + 5) + (16 + 5);
    assert_eq!(pair.a.move_out(usize::MAX, &mut pair.b.wire), both);
    expect_sent(&mut pair.a, 1);
    for (token, bytes) in [&b"one"[..], b"two", b"fence", b"three"].iter().enumerate() {
        pair.b.receive(token as u64, 5);
        pair.run();
        let (len, buffer) = pair.b.end_of(token as u64);
        assert_eq!((len, &buffer[..bytes.len()]), (Ok(bytes.len()), *bytes));
    }
    pair.a.machine.check();
}

/// Ruling 2, "Counters count both": messages that have not gone when the connection ends have
/// failed, once.
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
        // Of 30 bytes the first 20 were a message, which the system has.
        let sent = usize::from(broken);
        let ends = pair.a.machine.take_injected_ends();
        assert_eq!((ends.sent, ends.failed), (sent, 4 - sent));
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
    expect_sent(&mut pair.a, 2);
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

/// Returns the frame counters and headers in the bytes that a side has sent.
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

/// Returns the ends of the awaited messages that were copied, with numbers below `count`.
fn ends_of(connection: &mut super::side::TestConnection, count: u64) -> Vec<Option<ErrorKind>> {
    let unsent = connection.machine.take_unsent();
    let before = connection.machine.injected_ended_before();
    let end = |number: u64| {
        let failed = unsent.iter().find(|it| it.numbers.contains(&number));
        assert!(
            failed.is_some() || number < before,
            "{number} has not ended"
        );
        failed.map(|it| it.error.kind())
    };
    (0..count).map(end).collect()
}

/// Ruling 4: an awaited message of which no byte was handed out is withdrawn, wherever it stands in
/// the queue, its neighbours go out whole, and its place is free. What was handed out goes on.
#[test]
fn a_copied_message_is_withdrawn_until_it_is_handed_out() {
    for seed in 0..200 {
        let rng = &mut Rng(seed);
        let mut pair = Pair::connected();
        let (mut numbers, mut expected) = (Vec::new(), Vec::new());
        for token in 0..20 {
            let len = rng.below(129);
            let bytes = rng.bytes(len);
            if rng.chance(20) {
                pair.a.send(token, &bytes);
                expected.push((None, bytes));
            } else {
                let number = pair.a.machine.inject_awaited(&bytes, None).unwrap();
                numbers.push(number.expect("there is room"));
                expected.push((number, bytes));
            }
            if rng.chance(20) {
                pair.a.hand_out();
                pair.a.move_out(rng.below(500), &mut pair.b.wire);
            }
            if rng.chance(30) && !numbers.is_empty() {
                let number = numbers.swap_remove(rng.below(numbers.len()));
                let phase = pair.a.machine.injected_phase(number);
                let withdrawn = pair.a.machine.cancel_injected(number, rng.chance(50));
                let is_queued = phase == Some(crate::error::Phase::Queued);
                assert_eq!(withdrawn == crate::proto::Withdrawn::Ended, is_queued);
                if is_queued {
                    expected.retain(|(of, _)| *of != Some(number));
                }
            }
            pair.a.machine.check();
        }
        pair.run_in_pieces(1 + rng.below(300));
        for (token, (_, bytes)) in expected.into_iter().enumerate() {
            pair.b.receive(token as u64, 130);
            let (len, buffer) = pair.b.end_of(token as u64);
            assert_eq!(len, Ok(bytes.len()), "seed {seed}");
            assert_eq!(buffer[..bytes.len()], bytes);
        }
        pair.a.machine.check();
        assert!(pair.a.machine.is_transmit_drained());
    }
}

/// A message that was handed to the system has been sent, whatever becomes of the connection; the
/// others fail, each for the reason that came first.
#[test]
fn awaited_copies_fail_for_the_first_reason_and_only_if_they_were_not_sent() {
    let mut pair = Pair::connected();
    for _ in 0..3 {
        pair.a.machine.inject_awaited(b"goes", None).unwrap();
    }
    pair.a.hand_out();
    for _ in 0..2 {
        pair.a.machine.inject_awaited(b"stays", None).unwrap();
    }
    pair.a.machine.cancel_injected(4, false);
    pair.a.move_out(30, &mut pair.b.wire);
    pair.a.cut();
    let lost = pair.a.machine.fault().map(|fault| fault.kind());
    let canceled = Some(ErrorKind::Canceled);
    assert_eq!(ends_of(&mut pair.a, 5), [None, lost, lost, lost, canceled]);
    assert!(lost.is_some());
}

/// Without room a message waits as an operation, behind which nothing is copied.
#[test]
fn no_copied_message_overtakes_one_that_waits_for_room() {
    let mut pair = Pair::with(Sizes {
        tx_size: 1,
        ..sizes()
    });
    assert_eq!(pair.a.machine.inject_awaited(b"in", None).unwrap(), Some(0));
    assert_eq!(pair.a.machine.inject_awaited(b"out", None).unwrap(), None);
    pair.a.send(1, b"waits");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.a.machine.inject_awaited(b"out", None).unwrap(), None);
    pair.run();
    assert!(
        pair.a
            .machine
            .inject_awaited(b"in", None)
            .unwrap()
            .is_some()
    );
}
