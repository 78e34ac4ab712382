//! Messages that are claimed before they are received.

use super::*;

/// fi_tagged(3): "Claimed messages can only be retrieved using a subsequent, paired receive
/// operation with the FI_CLAIM flag set"; FI_DISCARD: "the message is discarded by the provider".
#[test]
fn claimed_messages_are_for_their_claims() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_early(Some(1), bytes);
    }
    let sought = Sought {
        wanted: tagged(1),
        source: None,
    };
    let (first, arrival) = world.context.claim(sought).unwrap();
    assert_eq!(world.context.peek(sought).unwrap().order, arrival.order + 1);
    assert_eq!(world.context.discard(sought).unwrap().len, 1);
    assert_eq!(bytes_of(&world.post(tagged(1), 8).end()), b"3");
    assert!(world.context.peek(sought).is_none());
    let cell = OpCell::new();
    let report = Report::Future(Arc::clone(&cell));
    let payload = Payload::from_vec(vec![0; 8]);
    let posted = world
        .context
        .receive_claimed(first, payload, report, None)
        .unwrap();
    let receive = Receive {
        key: posted.key,
        cell,
    };
    assert_eq!(bytes_of(&receive.end()), b"1");
    assert!(!world.context.discard_claimed(first), "once");
    assert_eq!(sender.receives.held(), 0);
}

/// What a claim stood for may go with its connection; who asks for it then is told.
#[test]
fn a_claim_whose_sender_has_gone_is_void() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), Arrived::Store));
    let sought = Sought {
        wanted: tagged(5),
        source: None,
    };
    let (claimed, _) = world.context.claim(sought).unwrap();
    sender.receives.leave();
    let payload = Payload::from_vec(vec![0; 8]);
    let refused = world
        .context
        .receive_claimed(claimed, payload, Report::Nowhere, None);
    let (error, payload) = refused.err().unwrap();
    assert_eq!((error.kind(), payload.len()), (ErrorKind::NoMessage, 8));
}
