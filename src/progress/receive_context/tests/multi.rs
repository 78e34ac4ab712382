//! Multi-receive buffers.

use super::*;

fn post_multi(fixture: &Fixture, len: usize, free_min: usize) -> PostedOp {
    let selector = ReceiveSelector {
        wanted: MatchCriteria::Message,
        source: None,
    };
    let record = OwnedRecord::new(receive_of(len, fixture.queued(9), WAIT));
    let posted = fixture.context.post_multi(selector, record, free_min);
    posted.unwrap()
}

/// fi_msg(3): "Received messages will be packed into the receive buffer until the buffer has been
/// consumed", and it "will be released by the provider when the available buffer space falls below
/// the specified minimum". fi_cq(3) lets a completion of its own say so; here it comes last.
#[test]
fn many_messages_land_in_one_buffer() {
    let fixture = Fixture::new(8, 1 << 16, 8);
    let mut sender = fixture.sender(1, 1);
    let mut other = fixture.sender(2, 2);
    sender.send_unexpected(None, b"first");
    post_multi(&fixture, 16, 4);
    let slow = other.meet(None, 4);
    let quick = sender.meet(None, 5);
    sender.end(quick, b"quick");
    // 2 bytes are left: fewer than 4.
    assert!(matches!(sender.begin(None, 1).1, ArrivalOutcome::Store));
    let mut pieces = Vec::new();
    for bytes in [&b"first"[..], b"quick"] {
        let mut completion = fixture.queue.try_next().unwrap();
        assert_eq!(
            completion.flags,
            CompletionFlags::RECV | CompletionFlags::MSG
        );
        assert_eq!(completion.context, UserContext(9));
        let piece = completion.take_buffer().unwrap();
        assert_eq!(*piece, *bytes);
        pieces.push(piece);
    }
    assert!(fixture.queue.try_next().is_none(), "one is still landing");
    other.end(slow, b"slow");
    let mut last = fixture.queue.try_next().unwrap();
    assert_eq!(*last.take_buffer().unwrap(), *b"slow");
    let end = fixture.queue.try_next().unwrap();
    assert_eq!(
        (end.flags, end.context),
        (CompletionFlags::MULTI_RECV, UserContext(9))
    );
    assert!(end.result.is_ok());
    assert!(
        pieces.pop().unwrap().into_whole().is_none(),
        "another is left"
    );
    let whole = pieces.pop().unwrap().into_whole().expect("the last one");
    assert_eq!(whole[..14], *b"firstslowquick");
    assert_eq!(fixture.counter.read(), 3);
}

/// An announced message that is gone before its sender could be asked for it uses up nothing of a
/// multi-receive buffer.
#[test]
fn an_announcement_that_is_gone_uses_up_nothing_of_a_buffer() {
    let fixture = Fixture::new(8, 1 << 16, 8);
    let mut sender = fixture.sender(1, 1);
    let announcement = Announcement {
        arrival: sender.arrival(None, 40),
        index: 1,
    };
    let kept = sender
        .receives
        .begin_announcement(&mut announcement.clone());
    assert!(matches!(kept, ArrivalOutcome::Store), "{kept:?}");
    post_multi(&fixture, 64, 1);
    assert!(fixture.queue.try_next().is_none());
    let clear_to_send = sender.receives.poll_clear_to_send().expect("it matches");
    let gone = Error::new(ErrorKind::PeerClosed, "");
    (sender.receives).requeue_receive(clear_to_send.receive, None, gone);
    let whole = sender.meet(None, 64);
    assert_eq!(whole.payload.len(), 64);
    sender.end(whole, &[7; 64]);
    let mut piece = fixture.queue.try_next().unwrap();
    assert_eq!(*piece.take_buffer().unwrap(), [7; 64]);
    let end = fixture.queue.try_next().unwrap();
    assert_eq!(end.flags, CompletionFlags::MULTI_RECV);
}

/// Ruling 4: "A receive that accepts messages only of that peer fails with the cause", and so does a
/// part of a buffer, though it is the last one.
#[test]
fn a_part_for_one_peer_fails_with_its_connection() {
    let fixture = Fixture::new(8, 1 << 16, 8);
    let mut sender = fixture.sender(1, 1);
    let selector = ReceiveSelector {
        wanted: MatchCriteria::Message,
        source: Some(SourceId(1)),
    };
    let record = OwnedRecord::new(receive_of(100, fixture.queued(9), WAIT));
    assert!(fixture.context.post_multi(selector, record, 60).is_ok());
    let met = sender.meet(None, 50);
    let error = Error::new(ErrorKind::PeerClosed, "");
    (sender.receives).fail_receives(vec![(met.receive, Some(met.payload))], &error);
    let part = fixture.queue.try_next().unwrap();
    let failed = part.result.as_ref().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::PeerClosed);
    let end = fixture.queue.try_next().unwrap();
    assert_eq!(end.flags, CompletionFlags::MULTI_RECV);
}

/// Ruling 3: "For a completion without an operation the engine stops reading the connection until a
/// slot is free": a buffer without a slot for the next completion takes nothing, and goes on, in
/// order, when the queue is read.
#[test]
fn a_buffer_for_many_waits_for_room_in_its_queue() {
    let fixture = Fixture::new(8, 1 << 16, 2);
    let mut sender = fixture.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_unexpected(None, bytes);
    }
    let posted = post_multi(&fixture, 64, 1);
    for bytes in [b"1", b"2", b"3"] {
        let mut completion = fixture.queue.try_next().unwrap();
        assert_eq!(*completion.take_buffer().unwrap(), *bytes);
        assert!(fixture.queue.try_next().is_none());
        assert!(fixture.driver.take(), "the driver hears of the room");
        fixture.expire();
    }
    assert_eq!(fixture.context.cancel(posted.key), Withdrawn::Ended);
    let mut end = fixture.queue.try_next().unwrap();
    assert_eq!(
        end.result.as_ref().unwrap_err().error.kind(),
        ErrorKind::Canceled
    );
    let whole: Vec<u8> = end.take_buffer().unwrap().downcast().unwrap();
    assert_eq!(whole[..4], *b"123\0");
}
