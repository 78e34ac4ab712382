//! How operations and connections end, each way once.

use std::sync::Arc;

use super::pair::{Pair, QUEUED, REMOTE, TINY, TestConnection, memory_of, operation};
use crate::buf::{Payload, RegionUse};
use crate::error::{Error, ErrorKind, Phase};
use crate::limits::DIRECT_RECEIVE_MIN;
use crate::mr::Access;
use crate::proto::{OpKind, Operation, ReadCount, SendOrder, Sizes, Withdrawn};

/// After the peer's FIN, a message that waits for a receive is kept whatever the budget says, and
/// a receive posted after the end still takes it.
#[test]
fn what_came_in_full_before_the_end_can_still_be_received() {
    let mut pair = Pair::with(TINY);
    for token in 0..3 {
        pair.a.send(token, b"last words");
        pair.run();
    }
    assert!(pair.b.is_paused());
    pair.b.finished = true;
    pair.b.watch();
    pair.run();
    assert_eq!(
        pair.b.machine.fault().map(|error| error.kind()),
        Some(ErrorKind::PeerClosed)
    );
    pair.b.close();
    for token in 0..3 {
        pair.b.receive(token, 10);
        assert_eq!(pair.b.end_of(token), (Ok(10), b"last words".to_vec()));
    }
    let payload = Payload::from_vec(vec![0; 3]);
    let late = pair
        .b
        .try_post(9, operation(OpKind::Receive, payload), true)
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::PeerClosed);
}

/// A message of which the peer sent only a part before its FIN ends the connection.
#[test]
fn half_a_message_before_the_end_is_a_failure() {
    let mut pair = Pair::with(TINY);
    pair.a.send(1, &[1; 100]);
    pair.a.hand_out();
    pair.a.move_out(50, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    assert!(pair.b.is_paused());
    pair.b.finished = true;
    pair.b.watch();
    assert_eq!(
        pair.b.machine.fault().map(|error| error.kind()),
        Some(ErrorKind::PeerClosed)
    );
    pair.b.close();
    assert_eq!(
        pair.b.events.last().map(String::as_str),
        Some("closed: PeerClosed")
    );
    assert_eq!(pair.b.machine.unexpected_bytes(), 0);
}

/// fi_cancel(3), ruling 4: what has not started ends as Canceled with its memory, what has runs on.
#[test]
fn cancel_and_withdraw_in_each_phase() {
    let mut pair = Pair::with(Sizes {
        tx_size: 2,
        rx_size: 1,
        unexpected_bytes: 0,
        send_order: SendOrder::Free,
    });
    let moving = pair.a.send(1, b"moving");
    pair.a.hand_out();
    let queued = pair.a.send(2, b"queued");
    let waiting = pair.a.send(3, b"waiting");
    let phases = [moving, queued, waiting].map(|key| pair.a.machine.phase(key));
    assert_eq!(
        phases,
        [
            Some(Phase::Moving),
            Some(Phase::Queued),
            Some(Phase::Waiting)
        ]
    );
    assert_eq!(pair.a.machine.cancel(waiting), Withdrawn::Ended);
    assert_eq!(pair.a.machine.cancel(queued), Withdrawn::Ended);
    assert_eq!(pair.a.machine.cancel(moving), Withdrawn::Running);
    pair.a.take_events();
    assert_eq!(
        pair.a.end_of(3),
        (Err(ErrorKind::Canceled), b"waiting".to_vec())
    );
    assert_eq!(
        pair.a.end_of(2),
        (Err(ErrorKind::Canceled), b"queued".to_vec())
    );
    assert_eq!(pair.a.machine.cancel(queued), Withdrawn::Gone);

    let posted = pair.b.receive(1, 6);
    let behind = pair.b.receive(2, 6);
    assert_eq!(pair.b.machine.withdraw(posted), Withdrawn::Ended);
    pair.run();
    assert_eq!(
        pair.b.end_of(2),
        (Ok(6), b"moving".to_vec()),
        "it took the place that came free"
    );
    assert_eq!(pair.b.end_of(1), (Err(ErrorKind::Canceled), vec![0; 6]));
    assert_eq!(pair.b.machine.withdraw(behind), Withdrawn::Gone);
    assert_eq!(pair.a.end_of(1), (Ok(6), b"moving".to_vec()));

    // A read that awaits its answer cannot be withdrawn, one that is queued can.
    let awaiting = pair.a.send_acked(4, b"acked!");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.a.machine.phase(awaiting), Some(Phase::AwaitingPeer));
    assert_eq!(pair.a.machine.withdraw(awaiting), Withdrawn::Running);
    let read = pair.a.read(5, 3, &[(1, 0, 3)]);
    assert_eq!(pair.a.machine.cancel(read), Withdrawn::Ended);
    pair.a.take_events();
    assert_eq!(pair.a.end_of(5), (Err(ErrorKind::Canceled), vec![0; 3]));
    pair.a.machine.check();
    pair.b.machine.check();
}

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages."
#[test]
fn the_message_of_a_dropped_receive_goes_to_the_next_one() {
    for receive_is_there in [false, true] {
        let mut pair = Pair::connected();
        let dropped = pair.b.receive(1, 100);
        pair.a.send(1, b"first");
        pair.a.send(2, b"second");
        pair.a.hand_out();
        pair.a.move_out(18, &mut pair.b.wire);
        while pair.b.move_in(usize::MAX) {}
        assert_eq!(pair.b.machine.phase(dropped), Some(Phase::Moving));
        assert_eq!(pair.b.machine.withdraw(dropped), Withdrawn::Running);
        if receive_is_there {
            pair.b.receive(2, 10);
            pair.run();
        } else {
            pair.run();
            pair.b.receive(2, 10);
        }
        pair.b.receive(3, 10);
        assert_eq!(pair.b.end_kind(1), ErrorKind::Canceled);
        assert_eq!(pair.b.end_of(2), (Ok(5), b"first\0\0\0\0\0".to_vec()));
        assert_eq!(pair.b.end_of(3), (Ok(6), b"second\0\0\0\0".to_vec()));
    }
}

/// The same holds for a receive that had ended, but whose owner never looked.
#[test]
fn a_message_whose_receive_is_dropped_is_the_next_one_again() {
    let mut pair = Pair::connected();
    pair.b.receive(1, 3);
    pair.a.send(1, b"first");
    pair.a.send(2, b"second");
    pair.run();
    let end = pair.b.ended.remove(&1).unwrap();
    pair.b.machine.requeue_message(&end);
    pair.b.receive(2, 10);
    pair.b.receive(3, 10);
    assert_eq!(
        pair.b.ended[&2].end.overflow, 2,
        "what the first one lost is lost"
    );
    assert_eq!(
        pair.b.end_of(2),
        (Err(ErrorKind::Truncated), b"fir\0\0\0\0\0\0\0".to_vec())
    );
    assert_eq!(pair.b.end_of(3).0, Ok(6));
}

/// Ruling 4: messages return "to the head of the unexpected messages", in the order in which they
/// came, in whatever order their receives are dropped, and before what came later.
#[test]
fn messages_whose_receives_are_dropped_keep_their_order() {
    for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1], [3, 2, 1]] {
        let mut pair = Pair::connected();
        for token in [1, 2, 3] {
            pair.b.receive(token, 1);
        }
        for byte in 1..=4 {
            pair.a.send(u64::from(byte), &[byte]);
        }
        pair.run();
        for token in order {
            let op = pair.b.ended.remove(&token).unwrap();
            pair.b.machine.requeue_message(&op);
        }
        for token in 11..=14 {
            pair.b.receive(token, 1);
            assert_eq!(pair.b.end_of(token), (Ok(1), vec![token as u8 - 10]));
        }
    }
}

/// Ruling 3: "`post` and `.await` wait in one FIFO per context, and nothing overtakes a waiter."
#[test]
fn waiting_posts_are_accepted_in_order_and_none_overtakes() {
    let mut pair = Pair::with(Sizes {
        unexpected_bytes: 1 << 20,
        ..TINY
    });
    for token in 0..5 {
        pair.a.send(token, &[token as u8]);
    }
    let payload = || Payload::from_vec(vec![9]);
    let inject = |payload| {
        operation(
            OpKind::Inject {
                data: None,
                tag: None,
            },
            payload,
        )
    };
    let again = pair.a.try_post(9, inject(payload()), false).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Again);
    pair.run();
    assert_eq!(pair.a.order, [0, 1, 2, 3, 4]);
    for token in 0..5 {
        pair.b.receive(token, 1);
        assert_eq!(pair.b.end_of(token), (Ok(1), vec![token as u8]));
    }
}

/// A slot of the completion queue is reserved when an operation is accepted, not before.
#[test]
fn an_operation_without_a_completion_slot_waits_and_blocks_those_behind_it() {
    let mut pair = Pair::connected();
    pair.a.host.slots = 1;
    pair.a.send(1 | QUEUED, b"a");
    let second = pair.a.send(2 | QUEUED, b"b");
    let third = pair.a.send(3, b"c");
    assert_eq!(pair.a.machine.phase(second), Some(Phase::Waiting));
    assert_eq!(pair.a.machine.phase(third), Some(Phase::Waiting));
    assert_eq!(pair.a.machine.cancel(second), Withdrawn::Ended);
    assert!(
        pair.a.machine.wants_admission(),
        "the third one needs no slot"
    );
    pair.run();
    assert_eq!(
        pair.a.host.slots, 1,
        "the cancelled one had none to give back"
    );
    assert_eq!(pair.a.order, [2 | QUEUED, 1 | QUEUED, 3]);
}

/// The end of a connection ends every operation once, in the order of their posts, and each gives
/// its memory back, also when it has no bytes.
#[test]
fn close_ends_everything_once_in_order_with_its_memory() {
    for broken in [false, true] {
        let mut pair = Pair::with(Sizes {
            tx_size: 5,
            rx_size: 2,
            unexpected_bytes: 1000,
            send_order: SendOrder::Free,
        });
        pair.b.host.region(1, vec![3; 64], REMOTE);
        pair.a.send_acked(1, b"awaits its ack");
        pair.a.read(2, 64, &[(1, 0, 64)]);
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        pair.a.send(3, b"is moving");
        pair.a.hand_out();
        pair.a.receive(4, 40);
        pair.a.send(5, b"");
        pair.a.read(6, 5, &[(1, 0, 5)]);
        pair.a.write(7, b"waits", &[(1, 0, 5)]);
        pair.a.receive(8, 8);
        pair.a.receive(9, 9);
        pair.b.send(1, b"lands in the first receive");
        pair.b.hand_out();
        pair.b.move_out(20, &mut pair.a.wire);
        while pair.a.move_in(usize::MAX) {}
        if broken {
            pair.a.cut()
        } else {
            pair.a.close()
        }
        let kind = if broken {
            ErrorKind::ConnectionReset
        } else {
            ErrorKind::Canceled
        };
        assert_eq!(pair.a.order, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let lens = [14, 64, 9, 40, 0, 5, 5, 8, 9];
        for (token, len) in (1..).zip(lens) {
            let end = &pair.a.ended[&token];
            let has_memory = end
                .payload
                .as_ref()
                .is_some_and(|it| it.buffer_count() == 1);
            assert_eq!(
                (memory_of(end).len(), has_memory),
                (len, true),
                "operation {token}"
            );
            assert_eq!(end.end.result.as_ref().unwrap_err().kind(), kind);
            assert!(end.end.result.as_ref().unwrap_err().phase().is_some());
        }
        assert_eq!(memory_of(&pair.a.ended[&7]), b"waits");
        let why = if broken {
            "closed: ConnectionReset"
        } else {
            "closed: in order"
        };
        assert_eq!(pair.a.events.last().unwrap(), why);
        pair.a.machine.handle_closed(&mut pair.a.host);
        pair.a.take_events();
        assert_eq!(pair.a.order.len(), 9, "a second close changes nothing");
        assert!(pair.a.machine.lifecycle().is_closed());
    }
}

/// A message that is acknowledged is in this side's memory, and has its receive whenever that is
/// posted: before the connection breaks, while the transport gives memory back, and after that.
#[test]
fn an_acknowledged_message_is_received_at_any_moment_of_a_loss() {
    let mut pair = Pair::connected();
    for token in 1..=3 {
        pair.a.send_acked(token, &[token as u8; 8]);
    }
    pair.run();
    for token in 1..=3 {
        assert_eq!(pair.a.end_of(token).0, Ok(8));
    }
    pair.b.receive(1, 8);
    let broken = Error::new(ErrorKind::ConnectionReset, "by the test");
    pair.b.machine.fail(broken);
    pair.b.receive(2, 8);
    pair.b.close();
    pair.b.receive(3, 8);
    for token in 1..=3 {
        assert_eq!(pair.b.end_of(token), (Ok(8), vec![token as u8; 8]));
    }
    let refused = pair.b.try_post(4, receive_of(8), true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
}

/// Three messages have come, and four receives are posted for them, three of which report to a full
/// queue: at the moments of the test above.
fn waiting_at_a_full_queue(moment: usize) -> Pair {
    let mut pair = Pair::connected();
    for token in 1..=3 {
        pair.a.send_acked(token, &[token as u8; 8]);
    }
    pair.run();
    pair.b.host.slots = 0;
    let post = |pair: &mut Pair| {
        for token in [1 | QUEUED, 2, 3 | QUEUED, 4 | QUEUED] {
            let refused = pair.b.try_post(token, receive_of(8), true).err();
            // Of the last it is known after the break that it has no message.
            let is_known = moment > 0 && token == 4 | QUEUED;
            assert_eq!(refused.is_some(), is_known, "moment {moment}, {token}");
        }
    };
    if moment == 0 {
        post(&mut pair);
    }
    let broken = Error::new(ErrorKind::ConnectionReset, "by the test");
    pair.b.machine.fail(broken);
    if moment == 1 {
        post(&mut pair);
    }
    pair.b.close();
    if moment == 2 {
        post(&mut pair);
    }
    if moment == 0 {
        let ended = pair.b.end_of(4 | QUEUED);
        assert_eq!(ended, (Err(ErrorKind::ConnectionReset), vec![0; 8]));
    }
    assert!(pair.b.ended.is_empty(), "messages wait for them");
    assert!(pair.b.machine.serves_receives());
    pair.b.machine.check();
    pair
}

/// So it has a receive that waits for room in its completion queue, in the order of the posts.
#[test]
fn a_receive_that_waits_for_room_has_its_message_after_a_loss() {
    for moment in 0..3 {
        let mut pair = waiting_at_a_full_queue(moment);
        for wait in [true, false] {
            let refused = pair.b.try_post(5, receive_of(8), wait).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "none is left");
        }
        for expected in [vec![1 | QUEUED, 2], vec![3 | QUEUED]] {
            pair.b.host.slots = 1;
            pair.b.order.clear();
            pair.b.machine.admit_waiting(&mut pair.b.host);
            pair.b.take_events();
            assert_eq!(pair.b.order, expected);
            for token in expected {
                let bytes = vec![(token & !QUEUED) as u8; 8];
                assert_eq!(pair.b.end_of(token), (Ok(8), bytes));
            }
        }
        assert!(!pair.b.machine.serves_receives());
        assert!(
            pair.b.machine.has_served_receives(),
            "it needs no more turns"
        );
    }
}

/// Where nothing will admit them, or the messages go elsewhere, they end by the reason of the loss,
/// and none waits any more.
#[test]
fn receives_that_wait_for_room_after_a_loss_end_with_what_they_wait_for() {
    for moment in 0..3 {
        for is_read_otherwise in [false, true] {
            let mut pair = waiting_at_a_full_queue(moment);
            pair.b.order.clear();
            if is_read_otherwise {
                let TestConnection { machine, host, .. } = &mut pair.b;
                machine
                    .open_inbox(8, 3, ReadCount::default(), host)
                    .unwrap();
            } else {
                pair.b.machine.end_service();
            }
            pair.b.take_events();
            assert_eq!(pair.b.order, [1 | QUEUED, 2, 3 | QUEUED]);
            for token in [1 | QUEUED, 2, 3 | QUEUED] {
                let ended = pair.b.end_of(token);
                assert_eq!(ended, (Err(ErrorKind::ConnectionReset), vec![0; 8]));
            }
            assert!(!pair.b.machine.serves_receives());
            pair.b.machine.check();
            if is_read_otherwise {
                continue;
            }
            // The messages are there, for who has room for them now.
            let refused = pair.b.try_post(5 | QUEUED, receive_of(8), true);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Again);
            pair.b.receive(6, 8);
            assert_eq!(pair.b.end_of(6), (Ok(8), vec![1; 8]));
        }
    }
}

/// Twenty thousand operations that wait end as fast as they can be counted.
#[test]
fn the_end_of_many_waiting_operations_takes_no_square_of_them() {
    let mut pair = Pair::with(TINY);
    pair.a.hand_out();
    for token in 0..20_000 {
        pair.a.send(token, b"x");
    }
    let started = std::time::Instant::now();
    pair.a.cut();
    assert_eq!(pair.a.ended.len(), 20_000);
    // The square takes half a minute in a debug build; this takes some ten milliseconds.
    assert!(
        started.elapsed().as_secs() < 5,
        "took {:?}",
        started.elapsed()
    );
}

/// A region that is revoked while its bytes are queued to be read out ends the connection: towards
/// a peer without the extension, nothing else can be said.
#[test]
fn a_source_revoked_before_its_bytes_leave_is_a_fault() {
    let mut pair = Pair::connected();
    let region = pair.b.host.region(1, vec![1; 100], REMOTE);
    pair.a.read(1, 100, &[(1, 0, 100)]);
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    region.gate().revoke();
    pair.b.hand_out();
    assert_eq!(
        pair.b.machine.fault().map(|error| error.kind()),
        Some(ErrorKind::AccessDenied)
    );
    pair.b.close();
    pair.a.cut();
    assert_eq!(
        pair.a.end_of(1),
        (Err(ErrorKind::ConnectionReset), vec![0; 100])
    );
}

/// A destination that is revoked while a peer's write lands takes no further byte.
#[test]
fn a_destination_revoked_in_mid_payload_takes_no_further_byte() {
    for len in [100, DIRECT_RECEIVE_MIN * 3] {
        let mut pair = Pair::connected();
        let region = pair.b.host.region(1, vec![0; len], Access::REMOTE_WRITE);
        pair.a.write(1, &vec![1; len], &[(1, 0, len as u64)]);
        pair.a.hand_out();
        pair.a.move_out(40 + 30, &mut pair.b.wire);
        while pair.b.move_in(50) {}
        pair.b.move_in(0); // An armed direct receive comes back empty.
        region.gate().revoke();
        pair.run_in_pieces(1000);
        assert_eq!(
            pair.b.machine.fault().map(|error| error.kind()),
            Some(ErrorKind::AccessDenied)
        );
        let mut bytes = vec![0; len];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 30);
        pair.b.close();
    }
}

/// A receive whose memory has failed in the middle of its message says so, also if the connection
/// is lost before the rest of the message has come.
#[test]
fn a_receive_whose_memory_has_failed_says_so_after_a_loss() {
    let mut pair = Pair::connected();
    let region = pair.b.host.region(1, vec![0; 100], Access::RECV);
    // Of a region that is revoked, this use fails.
    let memory = RegionUse::remote(Arc::clone(&region), 0, 100);
    let memory = Payload::from_region_uses(vec![memory]);
    pair.b.post(1, operation(OpKind::Receive, memory));
    pair.a.send(1, &[1; 100]);
    pair.a.hand_out();
    pair.a.move_out(50, &mut pair.b.wire);
    while pair.b.move_in(30) {}
    region.gate().revoke();
    pair.a.hand_out();
    pair.a.move_out(20, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    pair.b.cut();
    assert_eq!(pair.b.end_of_error(1).kind(), ErrorKind::AccessDenied);
}

pub(super) fn receive_of(len: usize) -> Operation<u64> {
    operation(OpKind::Receive, Payload::from_vec(vec![0; len]))
}
