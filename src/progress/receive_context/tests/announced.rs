//! Messages that are announced before they come.

use super::*;
use crate::proto::ClearToSend;

/// A receive that matches a stored announcement is queued for the announcement's connection, which
/// is woken to ask for the message; if that is gone, the receive is requeued in its place and
/// takes the next one.
#[test]
fn a_receive_whose_announced_message_is_gone_is_posted_again() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    assert!(matches!(
        sender.announce(5, 1 << 30, 1),
        ArrivalOutcome::Store
    ));
    assert!(sender.receives.poll_clear_to_send().is_none());
    let receive = fixture.post(tagged(5), 8);
    assert!(sender.woken.take(), "it is to ask");
    assert_eq!(fixture.context.phase(receive.key), Phase::Moving);
    let later = fixture.post(tagged(5), 8);
    let clear_to_send = sender.receives.poll_clear_to_send().expect("it matches");
    assert_eq!(clear_to_send.announcement.index, 1);
    assert!(sender.receives.poll_clear_to_send().is_none(), "once");
    let gone = || Error::new(ErrorKind::PeerClosed, "");
    (sender.receives).requeue_receive(clear_to_send.receive, None, gone());
    assert_eq!(fixture.context.phase(receive.key), Phase::Queued);
    let met = sender.meet(Some(5), 1);
    assert_eq!(met.receive, receive.key, "in its place");
    assert_eq!(fixture.context.cancel(later.key), Withdrawn::Ended);
}

/// Receives matched with the announcements of a connection that ends before its turn are posted
/// again, for any sender.
#[test]
fn a_receive_that_was_matched_for_a_connection_that_ends_is_posted_again() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), ArrivalOutcome::Store));
    let receive = fixture.post(tagged(5), 8);
    let canceled = fixture.post(tagged(6), 8);
    let taken = sender.announce(6, 9, 2);
    assert!(matches!(taken, ArrivalOutcome::Matched(_)));
    sender.receives.detach();
    assert!(receive.is_pending() && canceled.is_pending());
    assert_eq!(fixture.context.phase(receive.key), Phase::Queued);
    let met = fixture.sender(2, 2).meet(Some(5), 1);
    assert_eq!(met.receive, receive.key);
}

/// The older of two receives that lose their connection gets the message of another one, whichever
/// was matched first.
#[test]
fn receives_that_lose_their_connection_are_posted_again_in_their_order() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let (mut breaks, mut other) = (fixture.sender(1, 1), fixture.sender(2, 2));
    let first = fixture.post(tagged(5), 8);
    let second = fixture.post(tagged(5), 8);
    let announced = breaks.announce(5, 9, 1);
    assert!(matches!(announced, ArrivalOutcome::Matched(key) if key == first.key));
    let met = breaks.meet(Some(5), 4);
    assert_eq!(met.receive, second.key);
    other.send_unexpected(Some(5), b"other");
    let lost = vec![(met.receive, Some(met.payload)), (first.key, None)];
    let error = Error::new(ErrorKind::PeerClosed, "");
    breaks.receives.fail_receives(lost, &error);
    assert_eq!(bytes_of(&first.end()), b"other");
    assert_eq!(fixture.context.phase(second.key), Phase::Queued);
}

/// The end of a receive for one peer's messages alone names that peer.
#[test]
fn a_receive_for_one_peer_ends_with_its_connection() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let peer = "192.0.2.1:7".parse().unwrap();
    sender.receives.set_peer(Some(peer));
    let selector = ReceiveSelector {
        wanted: tagged(5),
        source: Some(SourceId(1)),
    };
    let (record, awaited) = OwnedRecord::awaited(receive_of(8, Report::Future, WAIT));
    let posted = fixture.context.post(selector, record).unwrap();
    let met = sender.meet(Some(5), 4);
    let error = Error::new(ErrorKind::PeerClosed, "");
    (sender.receives).fail_receives(vec![(met.receive, Some(met.payload))], &error);
    let end = Receive::new(posted.key, awaited).end();
    let error = end.end.result.as_ref().unwrap_err();
    assert_eq!(
        (error.kind(), error.peer()),
        (ErrorKind::PeerClosed, Some(peer))
    );
}

/// A receive that is admitted from the backlog while a port is locked may match another port's
/// announcement: that port asks for the message in its own turn.
#[test]
fn announcements_matched_under_a_lock_are_answered_by_their_own_connection() {
    let fixture = Fixture::new(1, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), ArrivalOutcome::Store));
    let _posted = fixture.post(tagged(4), 8);
    let waiting = fixture.post(tagged(5), 8);
    let mut other = fixture.sender(2, 2);
    drop(other.meet(Some(4), 1)); // Makes room for it.
    assert!(
        !sender.woken.take(),
        "its wakers are woken without the lock"
    );
    other.unlock();
    assert!(sender.woken.take());
    let clear_to_send = sender.receives.poll_clear_to_send();
    let Some(ClearToSend { receive, .. }) = clear_to_send else {
        panic!("nothing to ask for");
    };
    assert_eq!(receive, waiting.key);
}
