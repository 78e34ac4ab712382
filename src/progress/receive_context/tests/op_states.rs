//! The states of a receive in its context.

use super::*;
use crate::edges::EdgeCoverage;

/// Every drawn edge is walked.
#[test]
fn every_edge_of_a_receives_states_is_walked() {
    let fixture = Fixture::new(1, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let gone = || Error::new(ErrorKind::PeerClosed, "");
    let coverage = EdgeCoverage::begin("ReceiveOpState");

    // Posted and canceled; in the backlog and canceled.
    let posted = fixture.post(tagged(1), 8);
    let backlogged = fixture.post(tagged(1), 8);
    assert_eq!(fixture.context.cancel(backlogged.key), Withdrawn::Ended);
    assert_eq!(fixture.context.cancel(posted.key), Withdrawn::Ended);

    // Matched; requeued, with another announcement there and without; completed.
    let receive = fixture.post(tagged(2), 8);
    let met = sender.meet(Some(2), 1);
    assert!(matches!(sender.announce(2, 9, 1), ArrivalOutcome::Store));
    (sender.receives).requeue_receive(met.receive, Some(met.payload), gone());
    let clear_to_send = sender.receives.poll_clear_to_send().expect("it matches");
    (sender.receives).requeue_receive(clear_to_send.receive, None, gone());
    assert_eq!(fixture.context.phase(receive.key), Phase::Queued);
    let met = sender.meet(Some(2), 1);
    sender.end(met, b"2");
    sender.unlock();

    // Matched with a stored announcement, and canceled.
    assert!(matches!(sender.announce(3, 9, 2), ArrivalOutcome::Store));
    let canceled = fixture.post(tagged(3), 8);
    assert_eq!(fixture.context.cancel(canceled.key), Withdrawn::Running);
    let clear_to_send = sender.receives.poll_clear_to_send().expect("it matches");
    (sender.receives).requeue_receive(clear_to_send.receive, None, gone());
    assert_eq!(kind_of(&canceled.end()), ErrorKind::Canceled);

    // A multi-receive buffer.
    let selector = ReceiveSelector {
        wanted: tagged(4),
        source: None,
    };
    let record = OwnedRecord::new(receive_of(64, fixture.queued(9), WAIT));
    let multi = fixture.context.post_multi(selector, record, 8);
    let key = multi.unwrap_or_else(|(error, _)| panic!("{error}")).key;
    assert_eq!(fixture.context.cancel(key), Withdrawn::Ended);

    // A claimed message.
    sender.send_unexpected(Some(4), b"claimed");
    let (claim, _) = fixture.context.claim(selector).expect("it is stored");
    let record = OwnedRecord::new(receive_of(8, Report::Counted, WAIT));
    let claimed = fixture.context.receive_claimed(claim, record);
    assert!(claimed.is_ok());

    coverage.expect_all();
}
