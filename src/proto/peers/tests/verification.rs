//! What an unproven request can do: nothing to the peer's connection, and
//! little to one that is to come.

use super::*;
use crate::limits::{
    RDM_CHECK_TIMEOUT, RDM_CLAIM_TIMEOUT, RDM_RECONNECT_PAUSE_MAX, RDM_RECONNECT_PAUSE_MIN,
    RDM_UNREACHABLE_MAX,
};

impl Endpoint {
    #[track_caller]
    fn verifications(&mut self, peer: u16) -> AttemptId {
        match self.peers.poll_command() {
            Some(Command::Verify { peer: to, attempt }) if to == at(peer) => attempt,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the connection is up, and that another claim is rejected.
    #[track_caller]
    fn stays_up(&mut self, peer: u16, attempt: AttemptId) {
        assert_eq!(self.peers.poll_command(), None);
        self.peers.handle_ending(at(peer), attempt, self.now);
        self.peers.handle_closed(at(peer), attempt, true, self.now);
        self.pass(RDM_RECONNECT_PAUSE_MAX);
        assert_eq!(self.peers.len(), 0, "it was up until now");
    }
}

/// "A claim counts only when proven ... without keys by a connection back to the claimed address":
/// the claim itself is rejected, and what else is at the address ends nothing either.
#[test]
fn a_claim_ends_no_connection() {
    for answer in [None, Some(1)] {
        let mut endpoint = Endpoint::new(settings());
        let good = endpoint.up(GREATER, 1);
        assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
        let check = endpoint.verifications(GREATER);
        // One check at a time, however many requests claim to be the peer.
        for incarnation in 3..1000 {
            assert_eq!(
                endpoint.request_unproven(GREATER, incarnation),
                Answer::Reject
            );
        }
        assert_eq!(endpoint.peers.poll_command(), None);
        endpoint
            .peers
            .handle_verification_failed(at(GREATER), check, answer, endpoint.now);
        endpoint.peers.check();
        endpoint.stays_up(GREATER, good);
    }
    // The peer itself answers: the connection of the check is closed, in order.
    let mut endpoint = Endpoint::new(settings());
    let good = endpoint.up(GREATER, 1);
    assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
    let check = endpoint.verifications(GREATER);
    let end = (endpoint.peers).handle_verified(at(GREATER), check, 1, endpoint.now);
    assert_eq!(end, VerificationOutcome::Drop);
    endpoint.stays_up(GREATER, good);
}

/// A request of the incarnation that is connected, proven or not: the connection is in doubt, and
/// goes on if it is not lost. If it is, the next request is accepted.
#[test]
fn a_request_of_the_same_incarnation_puts_the_connection_in_doubt() {
    for is_proven in [false, true] {
        let mut endpoint = Endpoint::new(settings());
        let old = endpoint.up(GREATER, 1);
        let again = |endpoint: &mut Endpoint| match is_proven {
            true => endpoint.request(GREATER, 1),
            false => endpoint.request_unproven(GREATER, 1),
        };
        assert_eq!(again(&mut endpoint), Answer::Reject);
        endpoint.doubts(GREATER, old);
        let peer = at(GREATER);
        let mut lost = endpoint;
        lost.pass(RDM_RECONNECT_PAUSE_MAX);
        lost.peers.handle_closed(peer, old, false, lost.now);
        lost.pass(RDM_RECONNECT_PAUSE_MAX);
        assert!(matches!(again(&mut lost), Answer::Accept(_)));
    }
}

/// Checks cost the peer something too: after each that found nothing the next waits longer, a
/// second at most; and one without an answer ends in time.
#[test]
fn claims_do_not_have_a_peer_checked_all_the_time() {
    let mut endpoint = Endpoint::new(settings());
    let good = endpoint.up(GREATER, 1);
    let mut verifications = 0;
    let begun = endpoint.now;
    while endpoint.now - begun < Duration::from_secs(20) {
        assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
        if let Some(Command::Verify { attempt, .. }) = endpoint.peers.poll_command() {
            verifications += 1;
            endpoint
                .peers
                .handle_verification_failed(at(GREATER), attempt, None, endpoint.now);
        }
        endpoint.pass(Duration::from_millis(1));
    }
    assert!(verifications < 30, "{verifications} verifications in 20 s");
    assert!(
        verifications > 15,
        "{verifications} verifications: one that is true waits a second at most"
    );
    endpoint.pass(RDM_RECONNECT_PAUSE_MAX);
    assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
    let check = endpoint.verifications(GREATER);
    let over = Command::EndVerification { attempt: check };
    assert_eq!(endpoint.next(), (RDM_CHECK_TIMEOUT, over));
    let late = (endpoint.peers).handle_verified(at(GREATER), check, 2, endpoint.now);
    assert_eq!(late, VerificationOutcome::Drop, "it was given up");
    endpoint.stays_up(GREATER, good);
}

/// "a genuine restarted peer must still be recognised promptly": another life at the address takes
/// the place of the old connection; so it does if it rejects us, as long as it says who it is.
#[test]
fn a_restarted_peer_is_recognised_at_its_address() {
    let mut endpoint = Endpoint::new(settings());
    let old = endpoint.up(GREATER, 1);
    assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
    let check = endpoint.verifications(GREATER);
    let end = (endpoint.peers).handle_verified(at(GREATER), check, 2, endpoint.now);
    assert_eq!(end, VerificationOutcome::Promote);
    // The end of the old connection changes nothing now.
    endpoint
        .peers
        .handle_closed(at(GREATER), old, false, endpoint.now);
    assert_eq!(endpoint.peers.poll_command(), None);
    endpoint.stays_up(GREATER, check);

    // The old connection ends, or has ended, while the check goes on.
    for has_ended in [false, true] {
        let mut endpoint = Endpoint::new(settings());
        let old = endpoint.up(GREATER, 1);
        assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
        let check = endpoint.verifications(GREATER);
        endpoint.peers.handle_ending(at(GREATER), old, endpoint.now);
        if has_ended {
            endpoint
                .peers
                .handle_closed(at(GREATER), old, true, endpoint.now);
        }
        let end = (endpoint.peers).handle_verified(at(GREATER), check, 2, endpoint.now);
        assert_eq!(
            end,
            VerificationOutcome::Promote,
            "it is the connection now"
        );
        endpoint
            .peers
            .handle_closed(at(GREATER), old, true, endpoint.now);
        endpoint.stays_up(GREATER, check);
    }

    let mut endpoint = Endpoint::new(settings());
    let old = endpoint.up(GREATER, 1);
    assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
    let check = endpoint.verifications(GREATER);
    (endpoint.peers).handle_verification_failed(at(GREATER), check, Some(2), endpoint.now);
    let (peer, why) = (at(GREATER), Close::Restarted);
    let close = Command::Close {
        peer,
        attempt: old,
        why,
    };
    assert_eq!(endpoint.peers.poll_command(), Some(close));
    endpoint
        .peers
        .handle_closed(at(GREATER), old, false, endpoint.now);
    assert!(matches!(
        endpoint.request_unproven(GREATER, 2),
        Answer::Accept(_)
    ));
}

/// A sender that claims to be a peer and then is silent delays the operations that wait for the
/// peer by two seconds, and only once: the peer is dialled then, and no claim disturbs that.
#[test]
fn a_silent_request_delays_no_operation_for_long() {
    let mut endpoint = Endpoint::new(settings());
    let Answer::Accept(claimed) = endpoint.request_unproven(GREATER, 2) else {
        panic!("not accepted")
    };
    endpoint.peers.want(at(GREATER), endpoint.now);
    let (peer, attempt) = (at(GREATER), claimed);
    assert_eq!(
        endpoint.next(),
        (RDM_CLAIM_TIMEOUT, Command::Retract { peer, attempt })
    );
    endpoint
        .peers
        .handle_failed(peer, claimed, Failure::Passing, endpoint.now);
    let (pause, command) = endpoint.next();
    assert!(pause <= RDM_RECONNECT_PAUSE_MIN);
    let Command::Dial { attempt, .. } = command else {
        panic!("{command:?}")
    };
    for incarnation in 3..100 {
        assert_eq!(
            endpoint.request_unproven(GREATER, incarnation),
            Answer::Reject
        );
    }
    endpoint
        .peers
        .handle_connected(peer, attempt, 1, endpoint.now);
    endpoint.stays_up(GREATER, attempt);
}

/// Time in which this side is late does not count as the peer's: a peer whose first frame lies
/// unread meanwhile, or that this side keeps waiting, is not given up. A silent one is, two seconds
/// later.
#[test]
fn an_unproven_peer_is_not_given_up_because_this_side_is_late() {
    let crossing = || {
        let mut endpoint = Endpoint::new(settings());
        endpoint.dialled(GREATER);
        // The peer's request crosses ours, and wins.
        let Answer::Accept(claimed) = endpoint.request_unproven(GREATER, 2) else {
            panic!("not accepted")
        };
        (endpoint, claimed)
    };
    for late in [3, 5, 10, 29].map(Duration::from_secs) {
        let (mut endpoint, claimed) = crossing();
        endpoint.pass(late);
        assert_eq!(endpoint.peers.poll_command(), None, "late by {late:?}");
        (endpoint.peers).handle_connected(at(GREATER), claimed, 2, endpoint.now);
        endpoint.stays_up(GREATER, claimed);
    }
    // This side is late again and again; then it is in time, and the peer has sent nothing.
    let (mut endpoint, attempt) = crossing();
    for _ in 0..10 {
        endpoint.pass(RDM_CLAIM_TIMEOUT / 2);
        assert_eq!(endpoint.peers.poll_command(), None);
    }
    let peer = at(GREATER);
    assert_eq!(
        endpoint.next(),
        (RDM_CLAIM_TIMEOUT, Command::Retract { peer, attempt })
    );
}

/// If two claim to be the same peer, the first is not given up for the second, and has two seconds.
#[test]
fn one_claim_does_not_displace_another() {
    let mut endpoint = Endpoint::new(settings());
    let Answer::Accept(first) = endpoint.request_unproven(GREATER, 2) else {
        panic!("not accepted")
    };
    assert_eq!(endpoint.request_unproven(GREATER, 3), Answer::Reject);
    assert_eq!(endpoint.request_unproven(GREATER, 2), Answer::Reject);
    let (peer, attempt) = (at(GREATER), first);
    assert_eq!(
        endpoint.next(),
        (RDM_CLAIM_TIMEOUT, Command::Retract { peer, attempt })
    );
    endpoint
        .peers
        .handle_failed(peer, first, Failure::Passing, endpoint.now);
    // During the pause the peer is not dialled, and afterwards it is forgotten.
    assert_eq!(endpoint.request_unproven(GREATER, 3), Answer::Reject);
    assert_eq!(endpoint.peers.poll_command(), None);
    endpoint.pass(RDM_RECONNECT_PAUSE_MAX);
    assert_eq!(endpoint.peers.len(), 0);
    assert!(matches!(
        endpoint.request_unproven(GREATER, 3),
        Answer::Accept(_)
    ));
}

/// A peer whose address the application knows is not made undialable by an unproven request.
#[test]
fn a_claim_makes_no_known_peer_undialable() {
    let mut endpoint = Endpoint::new(settings());
    let known = Request {
        undialable: true,
        is_known: true,
        ..from_host(1, 9)
    };
    let Answer::Accept(attempt) = endpoint.ask(known) else {
        panic!("not accepted")
    };
    endpoint
        .peers
        .handle_failed(known.from, attempt, Failure::Passing, endpoint.now);
    endpoint.pass(RDM_RECONNECT_PAUSE_MAX);
    endpoint.peers.want(known.from, endpoint.now);
    assert!(matches!(
        endpoint.peers.poll_command(),
        Some(Command::Dial { .. })
    ));
}

/// Issue: "4,096 requests that say they cannot be dialled ... and every ordinary peer is rejected
/// from then on". Those that have gone keep no other out, and are forgotten when there are too
/// many, first those of the host that sends the most; one that the application knows is always let
/// in.
#[test]
fn undialable_strangers_that_have_gone_keep_no_other_out() {
    let mut endpoint = Endpoint::new(settings());
    let come_and_go = |endpoint: &mut Endpoint, request: Request| {
        // Not by `ask`, which checks all peers each time.
        let answer = endpoint.peers.handle_request(&request, endpoint.now);
        let Answer::Accept(attempt) = answer else {
            panic!("{} is not accepted", request.from)
        };
        (endpoint.peers).handle_connected(request.from, attempt, 1, endpoint.now);
        (endpoint.peers).handle_closed(request.from, attempt, true, endpoint.now);
    };
    let undialable = |host, port| Request {
        undialable: true,
        ..from_host(host, port)
    };
    come_and_go(&mut endpoint, undialable(2, 7));
    for port in 1..RDM_UNREACHABLE_MAX as u16 + 500 {
        come_and_go(&mut endpoint, undialable(1, port));
        assert!(endpoint.peers.len() <= RDM_UNREACHABLE_MAX);
    }
    endpoint.peers.check();
    come_and_go(&mut endpoint, from_host(1, 60_000));
    // One host's storm has not made another's peer forgotten.
    endpoint.peers.want(undialable(2, 7).from, endpoint.now);
    let (peer, why) = (undialable(2, 7).from, GiveUp::Undialable);
    assert_eq!(
        endpoint.peers.poll_command(),
        Some(Command::GiveUp { peer, why })
    );

    // No stranger is let in; a peer that the application knows is let in all the same.
    let mut endpoint = Endpoint::new(PeerSettings {
        strangers_max: 0,
        ..settings()
    });
    let more = from_host(3, 9999);
    assert_eq!(endpoint.ask(more), Answer::Reject);
    let known = Request {
        is_known: true,
        ..more
    };
    assert!(matches!(endpoint.ask(known), Answer::Accept(_)));
}
