//! One scenario each, step by step.

use super::pair::{Pair, REMOTE, operation, segments, sizes};
use crate::buf::Payload;
use crate::error::{ErrorKind, OperationKind};
use crate::limits::{DIRECT_RECEIVE_MIN, READ_REQUESTS_MAX};
use crate::proto::{OpKind, Sizes};
use crate::wire::{ByteOrder, ControlFrame, ControlKind, FrameHeader};

/// Both sides report the connection once; the connecting one gets the acceptor's data.
#[test]
fn a_handshake_is_reported_once_to_both_sides() {
    for order in [ByteOrder::Native, ByteOrder::Big] {
        let mut pair = Pair::idle(sizes());
        pair.handshake(order, b"may I", b"welcome");
        assert_eq!(pair.a.events, [r#"connected b"welcome""#]);
        assert_eq!(pair.b.events, [r#"connected b"""#]);
        let region = pair.b.host.region(7, vec![0; 8], REMOTE);
        pair.b.receive(1, 5);
        pair.a.send(1, b"hello");
        pair.a.write(2, b"12345678", &[(7, 0, 8)]);
        pair.a.read(3, 3, &[(7, 2, 3)]);
        pair.run_in_pieces(3);
        assert_eq!(pair.b.end_of(1), (Ok(5), b"hello".to_vec()));
        assert_eq!(pair.a.end_of(3), (Ok(3), b"345".to_vec()));
        let mut bytes = [0; 8];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"12345678");
    }
}

/// What the acceptor sends right behind its response is not lost, whatever pieces it comes in.
#[test]
fn data_behind_the_response_is_data() {
    for most in [1, 31, 33, 40, usize::MAX] {
        let mut pair = Pair::idle(sizes());
        pair.a.receive(1, 3);
        pair.a.machine.begin_connect(b"");
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        pair.request();
        pair.b.machine.begin_accept(b"xyz", ByteOrder::Native, None);
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut pair.a.wire);
        pair.b.send(1, b"abc");
        pair.run_in_pieces(most);
        assert_eq!(pair.a.events, [r#"connected b"xyz""#]);
        assert_eq!(pair.a.end_of(1), (Ok(3), b"abc".to_vec()));
    }
}

/// A rejection carries its data, and receives posted before end with it.
#[test]
fn rejection_ends_the_attempt_with_the_words_of_the_other_side() {
    let mut pair = Pair::idle(sizes());
    pair.a.receive(1, 3);
    pair.a.machine.begin_connect(b"");
    let words = bytes::Bytes::from_static(b"not today");
    let reject = ControlFrame::new(ControlKind::Reject, words)
        .unwrap()
        .encode();
    pair.a.wire.extend(reject);
    pair.run();
    assert_eq!(
        pair.a.machine.fault().map(|error| error.kind()),
        Some(ErrorKind::ConnectionRefused)
    );
    pair.a.close();
    assert_eq!(
        pair.a.events,
        [r#"not connected: ConnectionRefused b"not today""#]
    );
    assert_eq!(
        pair.a.end_of(1),
        (Err(ErrorKind::ConnectionRefused), vec![0; 3])
    );
}

/// The whole table of what may be posted when.
#[test]
fn only_receives_may_be_posted_before_the_connection_is_up() {
    let mut pair = Pair::idle(sizes());
    let send = || {
        operation(
            OpKind::Send {
                data: None,
                ack: false,
                tag: None,
            },
            Payload::from_vec(vec![1]),
        )
    };
    let receive = || operation(OpKind::Receive, Payload::from_vec(vec![1]));
    let mut table = Vec::new();
    let mut look = |pair: &mut Pair, token: u64| {
        let sent = pair
            .a
            .try_post(token, send(), true)
            .map(|_| ())
            .map_err(|error| error.kind());
        let received = pair
            .a
            .try_post(token + 1, receive(), true)
            .map(|_| ())
            .map_err(|error| error.kind());
        table.push(format!(
            "{:?} send {sent:?} receive {received:?}",
            pair.a.machine.lifecycle()
        ));
    };
    look(&mut pair, 10);
    pair.a.machine.begin_connect(b"");
    look(&mut pair, 20);
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    pair.request();
    pair.b.machine.begin_accept(b"", ByteOrder::Native, None);
    pair.run();
    look(&mut pair, 30);
    pair.a.close();
    look(&mut pair, 40);
    assert_eq!(
        table,
        [
            "Idle send Err(NotConnected) receive Ok(())",
            "Connecting send Err(NotConnected) receive Ok(())",
            "Connected send Ok(()) receive Ok(())",
            "Closed { in_order: true } send Err(BadState) receive Err(BadState)",
        ]
    );
}

/// fi_msg(3): messages match receives in order, whichever side was first, also when empty.
#[test]
fn messages_meet_receives_in_order_before_and_after() {
    let mut pair = Pair::connected();
    pair.b.receive(1, 4);
    for (token, bytes) in [b"one".as_slice(), b"", b"three"].into_iter().enumerate() {
        pair.a.send(token as u64, bytes);
    }
    pair.run_in_pieces(5);
    assert_eq!(pair.b.end_of(1), (Ok(3), b"one\0".to_vec()));
    assert!(
        pair.b.machine.unexpected_bytes() >= 5,
        "the others are kept"
    );
    pair.b.receive(2, 0);
    pair.b.receive(3, 5);
    assert_eq!(pair.b.end_of(2), (Ok(0), Vec::new()));
    assert_eq!(pair.b.end_of(3), (Ok(5), b"three".to_vec()));
    assert_eq!(pair.b.machine.unexpected_bytes(), 0);
    assert_eq!(pair.a.order, [0, 1, 2]);
}

/// A message longer than its receive is cut; the stream goes on behind it, staged or direct.
#[test]
fn a_long_message_is_cut_and_the_next_one_is_whole() {
    for len in [10, DIRECT_RECEIVE_MIN * 4] {
        let mut pair = Pair::connected();
        let long: Vec<u8> = (0..len).map(|at| at as u8).collect();
        pair.b.receive(1, len / 2);
        pair.b.receive(2, 4);
        pair.a.send(1, &long);
        pair.a.send(2, b"next");
        pair.run_in_pieces(1000);
        assert_eq!(pair.b.ended[&1].end.overflow, len - len / 2);
        assert_eq!(
            pair.b.end_of(1),
            (Err(ErrorKind::Truncated), long[..len / 2].to_vec())
        );
        assert_eq!(pair.b.end_of(2), (Ok(4), b"next".to_vec()));
        // The same for an unexpected one.
        pair.a.send(3, b"early");
        pair.run();
        pair.b.receive(3, 2);
        assert_eq!(pair.b.ended[&3].end.overflow, 3);
        assert_eq!(pair.b.end_kind(3), ErrorKind::Truncated);
    }
}

/// Acks complete sends in order, and only once the message is in the peer's memory.
#[test]
fn acks_come_in_order_and_not_before_the_message_is_in_memory() {
    let mut pair = Pair::with(Sizes {
        unexpected_bytes: 0,
        ..sizes()
    });
    pair.a.send_acked(1, b"one");
    pair.a.send(2, b"two");
    pair.a.send_acked(3, b"three");
    pair.run();
    assert_eq!(
        pair.a.order,
        [2],
        "no receive is posted: nothing has landed"
    );
    pair.b.receive(1, 3);
    pair.run();
    assert_eq!(pair.a.order, [2, 1]);
    pair.b.receive(2, 3);
    pair.b.receive(3, 2);
    pair.run();
    assert_eq!(pair.a.order, [2, 1, 3], "a cut message is acked too");
}

/// Acks and read responses overtake queued frames but never split one.
#[test]
fn answers_overtake_but_never_split_a_frame() {
    let mut pair = Pair::connected();
    let big = vec![7; 50_000];
    pair.b.receive(10, 10);
    pair.a.receive(11, big.len());
    pair.a.receive(12, 3);
    pair.b.send(21, &big);
    pair.b.hand_out();
    pair.b.move_out(100, &mut pair.a.wire);
    pair.b.send(22, b"two");
    pair.a.send_acked(31, b"ping");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.run_in_pieces(4096);
    assert_eq!(
        pair.a.order,
        [11, 31, 12],
        "the ack came between the two messages"
    );
    assert_eq!(pair.a.end_of(11), (Ok(big.len()), big));
    assert_eq!(pair.a.end_of(12), (Ok(3), b"two".to_vec()));
}

/// A hasty ack, before the transport has given the frame back, ends the operation once.
#[test]
fn an_ack_before_the_frame_is_back_counts() {
    let mut pair = Pair::connected();
    pair.a.send_acked(1, b"x");
    pair.a.hand_out();
    pair.a
        .wire
        .extend(FrameHeader::Ack.encode(ByteOrder::Native, 0).iter());
    while pair.a.move_in(usize::MAX) {}
    assert!(
        pair.a.ended.is_empty(),
        "its memory is still with the transport"
    );
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.a.end_of(1), (Ok(1), b"x".to_vec()));
}

/// Reads end in the order of their requests, gathered from and scattered to several pieces.
#[test]
fn reads_end_in_order_with_the_bytes_of_all_segments() {
    let mut pair = Pair::connected();
    let bytes: Vec<u8> = (0..200).collect();
    pair.b.host.region(1, bytes.clone(), REMOTE);
    pair.a.read(1, 10, &[(1, 0, 10)]);
    pair.a.read(2, 0, &[(1, 200, 0)]);
    pair.a
        .read(3, 6, &[(1, 100, 1), (1, 50, 2), (1, 20, 0), (1, 197, 3)]);
    pair.run_in_pieces(7);
    assert_eq!(pair.a.order, [1, 2, 3]);
    assert_eq!(pair.a.end_of(1), (Ok(10), bytes[..10].to_vec()));
    assert_eq!(pair.a.end_of(2), (Ok(0), Vec::new()));
    assert_eq!(pair.a.end_of(3), (Ok(6), vec![100, 50, 51, 197, 198, 199]));
    assert_eq!(pair.b.remote_accesses, [OperationKind::RemoteRead; 3]);
}

/// A read is counted when it has been answered, not when it was asked.
#[test]
fn a_remote_read_counts_once_its_answer_has_left() {
    let mut pair = Pair::connected();
    pair.b.host.region(1, vec![5; 40], REMOTE);
    pair.a.read(1, 40, &[(1, 0, 40)]);
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.b.hand_out();
    pair.b.move_out(30, &mut pair.a.wire);
    assert_eq!(pair.b.remote_accesses, []);
    pair.run();
    assert_eq!(pair.b.remote_accesses, [OperationKind::RemoteRead]);
}

/// Writes land in their segments, large ones directly; a write without data is counted, one with
/// data is reported.
#[test]
fn writes_scatter_over_their_segments() {
    let mut pair = Pair::connected();
    let first = pair.b.host.region(1, vec![0; 100_000], REMOTE);
    let second = pair.b.host.region(2, vec![0; 10], REMOTE);
    let bytes: Vec<u8> = (0..60_010).map(|at| (at * 7) as u8).collect();
    pair.a
        .write(1, &bytes, &[(2, 5, 5), (1, 1000, 60_000), (2, 0, 5)]);
    pair.a.write_with(2, b"", Some(99), false, &[(1, 0, 0)]);
    pair.run_in_pieces(5000);
    let mut got = vec![0; 60_000];
    first.read_at(1000, &mut got).unwrap();
    assert_eq!(got, bytes[5..60_005]);
    let mut got = [0; 10];
    second.read_at(0, &mut got).unwrap();
    assert_eq!((&got[5..], &got[..5]), (&bytes[..5], &bytes[60_005..]));
    assert_eq!(pair.b.remote_accesses, [OperationKind::RemoteWrite]);
    assert_eq!(pair.b.remote_data, [(99, 0)]);
    assert_eq!(pair.a.end_of(1), (Ok(60_010), bytes));
}

/// Ruling 3: "For a completion without an operation the engine stops reading the connection until a
/// slot is free. Nothing is dropped."
#[test]
fn nothing_is_read_behind_remote_data_that_waits_for_a_slot() {
    let mut pair = Pair::connected();
    let region = pair.b.host.region(1, vec![0; 8], REMOTE);
    pair.b.host.slots = 0;
    pair.a.write_with(1, b"data", Some(5), true, &[(1, 0, 4)]);
    pair.a.write_with(2, b"next", None, true, &[(1, 4, 4)]);
    pair.run();
    assert!(pair.b.is_paused());
    let mut got = [9; 8];
    region.read_at(0, &mut got).unwrap();
    assert_eq!((&got, pair.a.ended.len()), (b"data\0\0\0\0", 0));
    pair.b.host.slots = 1;
    pair.run();
    assert_eq!(pair.b.remote_data, [(5, 4)]);
    assert_eq!([1, 2].map(|token| pair.a.end_of(token).0), [Ok(4), Ok(4)]);
}

/// A completion queue may be that of many connections: peers that stop in the middle of writes with
/// CQ data leave its room to the others.
#[test]
fn a_write_that_is_not_whole_holds_no_slot() {
    for len in [100, DIRECT_RECEIVE_MIN * 2] {
        let mut pair = Pair::connected();
        pair.b.host.region(1, vec![0; len], REMOTE);
        pair.b.host.slots = 1;
        pair.a
            .write_with(1, &vec![1; len], Some(5), true, &[(1, 0, len as u64)]);
        pair.a.hand_out();
        pair.a.move_out(40 + len - 1, &mut pair.b.wire);
        while pair.b.move_in(usize::MAX) {}
        assert_eq!((pair.b.host.slots, pair.b.host.unasked), (1, 0));
        pair.run();
        assert_eq!(pair.b.remote_data, [(5, len)]);
        assert_eq!(pair.a.end_of(1).0, Ok(len));
    }
}

/// The store is bounded: beyond the budget the machine stops reading until a receive is posted.
#[test]
fn beyond_the_budget_reading_pauses_until_a_receive_is_posted() {
    let mut pair = Pair::with(Sizes {
        unexpected_bytes: 300,
        ..sizes()
    });
    for token in 0..4 {
        pair.a.send(token, &[token as u8; 100]);
    }
    pair.run();
    assert!(pair.b.is_paused());
    assert_eq!(
        pair.b.machine.unexpected_bytes(),
        228,
        "one message and its bookkeeping"
    );
    for token in 0..4 {
        pair.b.receive(token, 100);
        pair.run();
        assert_eq!(pair.b.end_of(token), (Ok(100), vec![token as u8; 100]));
    }
    assert_eq!(pair.b.machine.unexpected_bytes(), 0);
}

/// A peer that asks and asks but never takes the answers is not read any further.
#[test]
fn answers_that_the_peer_does_not_read_are_bounded_and_reading_goes_on_after() {
    let mut pair = Pair::connected();
    pair.b.host.region(1, vec![1; 1], REMOTE);
    let request = FrameHeader::ReadRequest {
        segments: segments(&[(1, 0, 1)]),
    };
    let request = request.encode(ByteOrder::Native, 0);
    for _ in 0..READ_REQUESTS_MAX * 2 {
        pair.b.wire.extend(request.iter());
    }
    while pair.b.move_in(1 << 16) {}
    assert!(pair.b.is_paused());
    assert!(pair.b.machine.queued_answers() <= READ_REQUESTS_MAX + 1);
    let mut nowhere = Default::default();
    for _ in 0..READ_REQUESTS_MAX * 4 {
        pair.b.nudge();
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut nowhere);
        pair.b.move_in(1 << 16);
    }
    assert_eq!(
        nowhere.len(),
        READ_REQUESTS_MAX * 2 * 17,
        "all were answered"
    );
}
