//! Receives whose futures were dropped, and the messages matched with them.

use super::*;

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages": before
/// those that came later, and those of one sender in the order in which they were sent, whichever
/// is dropped first.
#[test]
fn messages_of_dropped_receives_go_back_in_order() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let unposted = fixture.post(MatchCriteria::Message, 8);
    fixture.withdraw(unposted);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_unexpected(None, bytes);
    }
    let (first, second) = (
        fixture.post(MatchCriteria::Message, 8),
        fixture.post(MatchCriteria::Message, 8),
    );
    fixture.withdraw(first);
    fixture.withdraw(second);
    assert_eq!(sender.receives.held_messages(), 3);
    for bytes in [b"1", b"2", b"3"] {
        assert_eq!(
            bytes_of(&fixture.post(MatchCriteria::Message, 8).end()),
            bytes
        );
    }
}

/// The same for a receive that is dropped while its message comes: the message comes back,
/// counted once.
#[test]
fn a_message_whose_receive_is_dropped_goes_to_the_next_receive() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let dropped = fixture.post(MatchCriteria::Message, 8);
    let met = sender.meet(None, 4);
    assert_eq!(fixture.context.phase(dropped.key), Phase::Moving);
    fixture.withdraw(dropped);
    let next = fixture.post(MatchCriteria::Message, 8);
    sender.end(met, b"lost");
    assert_eq!(bytes_of(&next.end()), b"lost");
    assert_eq!(fixture.counter.read(), 1);
}

/// A receive ends with TimedOut when its time limit has passed, in every state; a message that is
/// being received into it is kept for the next one.
#[test]
fn receives_end_when_their_time_has_passed() {
    let mut fixture = Fixture::new(1, 1 << 16, 4);
    let timeout = Duration::from_secs(1);
    let timed = PostOptions {
        timeout: Some(timeout),
        ..WAIT
    };
    let posted = fixture.post_with(tagged(1), 8, timed).unwrap();
    let waiting = fixture.post_with(tagged(1), 8, timed).unwrap();
    assert!(fixture.driver.take(), "the driver starts its clock");
    assert_eq!(fixture.expire(), Some(fixture.now + timeout));
    let mut sender = fixture.sender(1, 1);
    let met = sender.meet(Some(1), 4);
    fixture.now += timeout;
    // The next time only checks whether memory can be freed.
    let next = fixture.expire();
    assert!(next.is_none_or(|next| next > fixture.now));
    for receive in [&posted, &waiting] {
        assert_eq!(kind_of(&receive.end()), ErrorKind::TimedOut);
    }
    assert_eq!(fixture.counter.read_error(), 2);
    sender.end(met, b"late");
    assert_eq!(bytes_of(&fixture.post(tagged(1), 8).end()), b"late");
    assert_eq!(
        (fixture.counter.read(), fixture.counter.read_error()),
        (1, 2)
    );
}
