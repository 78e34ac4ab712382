//! What somebody who merely says that it is a peer can do: nothing to that peer's connection, and
//! little to one that is to come.

use super::*;

impl Alone {
    #[track_caller]
    fn checks(&mut self, peer: u16) -> AttemptId {
        match self.peers.poll() {
            Some(Command::Check { peer: to, attempt }) if to == at(peer) => attempt,
            other => panic!("{other:?}"),
        }
    }

    /// The connection is up: it can be looked at, and another claim is rejected.
    #[track_caller]
    fn stays_up(&mut self, peer: u16, attempt: AttemptId) {
        assert_eq!(self.peers.poll(), None);
        self.peers.ending(at(peer), attempt, self.now);
        self.peers.closed(at(peer), attempt, true, self.now);
        self.pass(PAUSE_MAX);
        assert_eq!(self.peers.len(), 0, "it was up until now");
    }
}

/// "A claim counts only when proven ... without keys by a connection back to the claimed address":
/// the claim itself is rejected, and whoever else is at the address ends nothing either.
#[test]
fn a_claim_ends_no_connection() {
    for answer in [None, Some(1)] {
        let mut alone = Alone::new(settings());
        let good = alone.up(GREATER, 1);
        assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
        let check = alone.checks(GREATER);
        // One check at a time, however many claim.
        for incarnation in 3..1000 {
            assert_eq!(alone.claim(GREATER, incarnation), Answer::Reject);
        }
        assert_eq!(alone.peers.poll(), None);
        alone
            .peers
            .check_failed(at(GREATER), check, answer, alone.now);
        alone.peers.check();
        alone.stays_up(GREATER, good);
    }
    // The peer itself answers: the connection of the check is closed, in order.
    let mut alone = Alone::new(settings());
    let good = alone.up(GREATER, 1);
    assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
    let check = alone.checks(GREATER);
    let end = (alone.peers).check_connected(at(GREATER), check, 1, alone.now);
    assert_eq!(end, CheckEnd::Drop);
    alone.stays_up(GREATER, good);
}

/// Checks cost the peer something too: after each that found nothing the next waits longer, a
/// second at most; and one that nobody answers is over in time.
#[test]
fn claims_do_not_have_a_peer_checked_all_the_time() {
    let mut alone = Alone::new(settings());
    let good = alone.up(GREATER, 1);
    let mut checks = 0;
    let begun = alone.now;
    while alone.now - begun < Duration::from_secs(20) {
        assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
        if let Some(Command::Check { attempt, .. }) = alone.peers.poll() {
            checks += 1;
            alone
                .peers
                .check_failed(at(GREATER), attempt, None, alone.now);
        }
        alone.pass(Duration::from_millis(1));
    }
    assert!(checks < 30, "{checks} checks in 20 s");
    assert!(
        checks > 15,
        "{checks} checks: one that is true waits a second at most"
    );
    alone.pass(PAUSE_MAX);
    assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
    let check = alone.checks(GREATER);
    let over = Command::EndCheck { attempt: check };
    assert_eq!(alone.next(), (CHECK_TIMEOUT, over));
    let late = (alone.peers).check_connected(at(GREATER), check, 2, alone.now);
    assert_eq!(late, CheckEnd::Drop, "it was given up");
    alone.stays_up(GREATER, good);
}

/// "a genuine restarted peer must still be recognised promptly": another life at the address takes
/// the place of the old connection; so it does if it rejects us, as long as it says who it is.
#[test]
fn a_restarted_peer_is_recognised_at_its_address() {
    let mut alone = Alone::new(settings());
    let old = alone.up(GREATER, 1);
    assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
    let check = alone.checks(GREATER);
    let end = (alone.peers).check_connected(at(GREATER), check, 2, alone.now);
    assert_eq!(end, CheckEnd::Promote);
    // What the old one says now is no news.
    alone.peers.closed(at(GREATER), old, false, alone.now);
    assert_eq!(alone.peers.poll(), None);
    alone.stays_up(GREATER, check);

    // The old one ends, or has ended, while the check goes on.
    for has_ended in [false, true] {
        let mut alone = Alone::new(settings());
        let old = alone.up(GREATER, 1);
        assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
        let check = alone.checks(GREATER);
        alone.peers.ending(at(GREATER), old, alone.now);
        if has_ended {
            alone.peers.closed(at(GREATER), old, true, alone.now);
        }
        let end = (alone.peers).check_connected(at(GREATER), check, 2, alone.now);
        assert_eq!(end, CheckEnd::Promote, "it is the connection now");
        alone.peers.closed(at(GREATER), old, true, alone.now);
        alone.stays_up(GREATER, check);
    }

    let mut alone = Alone::new(settings());
    let old = alone.up(GREATER, 1);
    assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
    let check = alone.checks(GREATER);
    (alone.peers).check_failed(at(GREATER), check, Some(2), alone.now);
    let (peer, why) = (at(GREATER), Close::Restarted);
    let close = Command::Close {
        peer,
        attempt: old,
        why,
    };
    assert_eq!(alone.peers.poll(), Some(close));
    alone.peers.closed(at(GREATER), old, false, alone.now);
    assert!(matches!(alone.claim(GREATER, 2), Answer::Accept(_)));
}

/// Who claims and then says nothing holds up what waits for the peer for two seconds, and once: the
/// peer is dialled then, and no claim disturbs that.
#[test]
fn a_silent_claim_keeps_nobody_waiting_for_long() {
    let mut alone = Alone::new(settings());
    let Answer::Accept(claimed) = alone.claim(GREATER, 2) else {
        panic!("not accepted")
    };
    alone.peers.want(at(GREATER), alone.now);
    let (peer, attempt) = (at(GREATER), claimed);
    assert_eq!(
        alone.next(),
        (CLAIM_TIMEOUT, Command::Retract { peer, attempt })
    );
    alone
        .peers
        .failed(peer, claimed, Failure::Passing, alone.now);
    let (pause, command) = alone.next();
    assert!(pause <= PAUSE_MIN);
    let Command::Dial { attempt, .. } = command else {
        panic!("{command:?}")
    };
    for incarnation in 3..100 {
        assert_eq!(alone.claim(GREATER, incarnation), Answer::Reject);
    }
    alone.peers.connected(peer, attempt, 1, alone.now);
    alone.stays_up(GREATER, attempt);
}

/// Two claim to be the same peer: the first is not given up for the second, and has two seconds.
#[test]
fn one_claim_does_not_displace_another() {
    let mut alone = Alone::new(settings());
    let Answer::Accept(first) = alone.claim(GREATER, 2) else {
        panic!("not accepted")
    };
    assert_eq!(alone.claim(GREATER, 3), Answer::Reject);
    assert_eq!(alone.claim(GREATER, 2), Answer::Reject);
    let (peer, attempt) = (at(GREATER), first);
    assert_eq!(
        alone.next(),
        (CLAIM_TIMEOUT, Command::Retract { peer, attempt })
    );
    alone.peers.failed(peer, first, Failure::Passing, alone.now);
    // During the pause nobody is dialled, and afterwards it is forgotten.
    assert_eq!(alone.claim(GREATER, 3), Answer::Reject);
    assert_eq!(alone.peers.poll(), None);
    alone.pass(PAUSE_MAX);
    assert_eq!(alone.peers.len(), 0);
    assert!(matches!(alone.claim(GREATER, 3), Answer::Accept(_)));
}

/// Whose address the application knows is not made one that cannot be dialled by somebody's word.
#[test]
fn a_claim_makes_no_known_peer_undialable() {
    let mut alone = Alone::new(settings());
    let known = Request {
        undialable: true,
        is_known: true,
        ..from_host(1, 9)
    };
    let Answer::Accept(attempt) = alone.ask(known) else {
        panic!("not accepted")
    };
    alone
        .peers
        .failed(known.from, attempt, Failure::Passing, alone.now);
    alone.pass(PAUSE_MAX);
    alone.peers.want(known.from, alone.now);
    assert!(matches!(alone.peers.poll(), Some(Command::Dial { .. })));
}

/// Issue: "4,096 requests that say they cannot be dialled ... and every ordinary peer is rejected
/// from then on". Those that have gone keep nobody out, and are forgotten when there are too many,
/// first those of the host that sends the most; one that the application knows is always let in.
#[test]
fn undialable_strangers_that_have_gone_keep_nobody_out() {
    let mut alone = Alone::new(settings());
    let come_and_go = |alone: &mut Alone, request: Request| {
        let Answer::Accept(attempt) = alone.ask(request) else {
            panic!("{} is not accepted", request.from)
        };
        (alone.peers).connected(request.from, attempt, 1, alone.now);
        (alone.peers).closed(request.from, attempt, true, alone.now);
    };
    let undialable = |host, port| Request {
        undialable: true,
        ..from_host(host, port)
    };
    come_and_go(&mut alone, undialable(2, 7));
    for port in 1..3 * GONE_MAX as u16 {
        come_and_go(&mut alone, undialable(1, port));
        assert!(alone.peers.len() <= GONE_MAX);
    }
    come_and_go(&mut alone, from_host(1, 60_000));
    // One host's storm has not made another's peer forgotten.
    alone.peers.want(undialable(2, 7).from, alone.now);
    let (peer, why) = (undialable(2, 7).from, GiveUp::Undialable);
    assert_eq!(alone.peers.poll(), Some(Command::GiveUp { peer, why }));

    // A host's share is full of connections: whom the application knows is let in all the same.
    for port in 0..UNINVITED_OF_HOST_MAX as u16 {
        assert!(matches!(alone.ask(from_host(3, port)), Answer::Accept(_)));
    }
    let more = from_host(3, 9999);
    assert_eq!(alone.ask(more), Answer::Reject);
    let known = Request {
        is_known: true,
        ..more
    };
    assert!(matches!(alone.ask(known), Answer::Accept(_)));
}
