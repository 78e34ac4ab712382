//! Messages that are claimed before they are received.

use super::*;

/// fi_tagged(3): "Claimed messages can only be retrieved using a subsequent, paired receive
/// operation with the FI_CLAIM flag set"; FI_DISCARD: "the message is discarded by the provider".
#[test]
fn claimed_messages_are_for_their_claims() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_unexpected(Some(1), bytes);
    }
    let selector = ReceiveSelector {
        wanted: tagged(1),
        source: None,
    };
    let (first, arrival) = fixture.context.claim(selector).unwrap();
    assert_eq!(
        fixture.context.peek(selector).unwrap().order,
        arrival.order + 1
    );
    assert_eq!(fixture.context.discard(selector).unwrap().len, 1);
    assert_eq!(bytes_of(&fixture.post(tagged(1), 8).end()), b"3");
    assert!(fixture.context.peek(selector).is_none());
    let (record, awaited) = OwnedRecord::awaited(receive_of(8, Report::Future, WAIT));
    let posted = fixture.context.receive_claimed(first, record).unwrap();
    let receive = Receive::new(posted.key, awaited);
    assert_eq!(bytes_of(&receive.end()), b"1");
    assert!(!fixture.context.discard_claimed(first), "once");
    assert_eq!(sender.receives.held_messages(), 0);
}

/// A claimed message may be lost with its connection; a receive of it then ends with an error.
#[test]
fn a_claim_whose_sender_has_gone_is_void() {
    let fixture = Fixture::new(8, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), ArrivalOutcome::Store));
    let selector = ReceiveSelector {
        wanted: tagged(5),
        source: None,
    };
    let (claimed, _) = fixture.context.claim(selector).unwrap();
    sender.receives.detach();
    let record = OwnedRecord::new(receive_of(8, Report::Nowhere, WAIT));
    let refused = fixture.context.receive_claimed(claimed, record);
    let (error, payload) = refused.err().unwrap();
    assert_eq!((error.kind(), payload.len()), (ErrorKind::NoMessage, 8));
}
