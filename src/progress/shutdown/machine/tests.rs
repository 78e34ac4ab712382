use std::collections::HashSet;

use super::*;

const NONE: Facts = Facts {
    is_up: false,
    is_attempt: false,
    has_fault: false,
    knows_close: false,
    is_drained: true,
    is_close_exchanged: false,
    is_eof_in_order: false,
    is_limit_exceeded: false,
    has_carry_over: false,
    is_link_busy: false,
    is_receive_armed: false,
    has_link: false,
    work: 0,
};

/// A connection that is up, to a peer that knows CLOSE, and reads.
const UP: Facts = Facts {
    is_up: true,
    knows_close: true,
    is_link_busy: true,
    is_receive_armed: true,
    has_link: true,
    ..NONE
};

/// The whole table, so that a change of the machine shows in a review.
#[test]
fn only_the_drawn_edges_exist() {
    let all = [
        Open,
        Flushing,
        AwaitingEof,
        Retracting,
        Draining,
        Lingering,
        Closed,
    ];
    let mut table = String::new();
    for from in all {
        for to in all {
            if ShutdownState::EDGES.contains(&(from, to)) {
                table.push_str(&format!("{from:?}>{to:?} "));
            }
        }
    }
    assert_eq!(
        table.trim(),
        "Open>Flushing Open>AwaitingEof Open>Retracting Open>Draining Flushing>AwaitingEof \
         Flushing>Draining AwaitingEof>Retracting AwaitingEof>Draining Retracting>Open \
         Retracting>Draining Draining>Lingering Draining>Closed Lingering>Closed"
    );
}

fn flushing(now: Instant) -> Shutdown {
    let mut shutdown = Shutdown::new();
    assert!(shutdown.request_close());
    assert_eq!(shutdown.on_tick(now, &UP), Action::None);
    shutdown
}

/// Ends with what was taken back from the link, from `Draining` on.
fn drain(shutdown: &mut Shutdown, now: Instant, facts: Facts) -> Action {
    assert_eq!(shutdown.state(), Draining);
    assert_eq!(
        shutdown.on_tick(now, &facts),
        Action::None,
        "the link is busy"
    );
    let empty = Facts {
        is_link_busy: false,
        is_receive_armed: false,
        ..facts
    };
    shutdown.on_tick(now, &empty)
}

/// docs/extension.md, section 7: CLOSE both ways, then both ends of stream: nothing to linger for.
#[test]
fn an_agreed_end_closes_at_the_peers_end_of_stream() {
    let now = Instant::now();
    for peer_began in [false, true] {
        let mut shutdown = match peer_began {
            true => Shutdown::new(),
            false => flushing(now),
        };
        let exchanged = Facts {
            is_close_exchanged: true,
            ..UP
        };
        assert_eq!(shutdown.on_tick(now, &exchanged), Action::FinishStream);
        assert!(!shutdown.may_send() && shutdown.may_receive());
        assert_eq!(shutdown.on_tick(now, &exchanged), Action::None);
        let eof = Facts {
            is_eof_in_order: true,
            ..exchanged
        };
        assert_eq!(shutdown.on_tick(now, &eof), Action::TakeBack);
        let ended = drain(&mut shutdown, now, eof);
        assert_eq!(
            ended,
            Action::EndOperations {
                finish_stream: false
            }
        );
        assert_eq!(shutdown.on_tick(now, &eof), Action::Close);
        assert_eq!(shutdown.on_tick(now, &NONE), Action::None);
        assert_eq!(shutdown.state(), Closed);
    }
}

/// What the peer had no receive for goes over the next connection.
#[test]
fn what_is_carried_over_begins_another_connection() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new();
    let eof = Facts {
        is_close_exchanged: true,
        is_eof_in_order: true,
        has_carry_over: true,
        ..UP
    };
    assert_eq!(shutdown.on_tick(now, &eof), Action::FinishStream);
    assert_eq!(shutdown.on_tick(now, &eof), Action::Reconnect);
    shutdown.retract();
    assert!(shutdown.may_post() && !shutdown.may_send());
    assert_eq!(
        shutdown.on_tick(now, &eof),
        Action::None,
        "the link is busy"
    );
    assert_eq!(shutdown.on_tick(now, &NONE), Action::BeginAgain);
    assert!(shutdown.is_open());
}

/// A plain peer: what is queued goes out, then its last bytes are read and dropped, for a while.
#[test]
fn a_plain_peer_is_lingered_for() {
    let now = Instant::now();
    let plain = Facts {
        knows_close: false,
        is_drained: false,
        ..UP
    };
    for ends_by in ["peer", "bytes", "time"] {
        let mut shutdown = flushing(now);
        assert_eq!(shutdown.on_tick(now, &plain), Action::None);
        let drained = Facts {
            is_drained: true,
            ..plain
        };
        assert_eq!(shutdown.on_tick(now, &drained), Action::TakeBack);
        let ended = drain(&mut shutdown, now, drained);
        assert_eq!(
            ended,
            Action::EndOperations {
                finish_stream: true
            }
        );
        let idle = Facts {
            is_receive_armed: false,
            is_link_busy: false,
            ..drained
        };
        assert_eq!(shutdown.on_tick(now, &idle), Action::Discard);
        assert_eq!(shutdown.on_tick(now, &drained), Action::None);
        match ends_by {
            "peer" => shutdown.on_peer_gone(),
            "bytes" => {
                shutdown.on_discarded(LINGER_BYTES_MAX - 1);
                assert_eq!(shutdown.state(), Lingering);
                shutdown.on_discarded(1);
            }
            _ => {
                let late = shutdown.deadline().expect("it does not linger for ever");
                assert_eq!(shutdown.on_tick(late, &drained), Action::Close);
            }
        }
        assert_eq!(shutdown.state(), Closed, "{ends_by}");
    }
}

/// As long as operations get on, flushing may take its time; when nothing does, it ends.
#[test]
fn a_flush_without_progress_ends() {
    let mut now = Instant::now();
    let mut shutdown = flushing(now);
    for work in 1..100 {
        now += FLUSH_TIMEOUT - Duration::from_millis(1);
        let gets_on = Facts { work, ..UP };
        assert_eq!(shutdown.on_tick(now, &gets_on), Action::None);
    }
    let stuck = Facts { work: 99, ..UP };
    now = shutdown.deadline().expect("it does not wait for ever");
    assert_eq!(shutdown.on_tick(now, &stuck), Action::TakeBack);
}

/// An attempt that fails, or takes too long, is given up; operations stay.
#[test]
fn an_attempt_that_fails_is_given_up() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new();
    let attempt = Facts {
        is_attempt: true,
        is_up: false,
        ..UP
    };
    shutdown.limit_connect(FLUSH_TIMEOUT);
    assert_eq!(shutdown.deadline(), None, "only the driver has a clock");
    shutdown.start_limit(now);
    assert_eq!(shutdown.on_tick(now, &attempt), Action::None);
    assert_eq!(
        shutdown.on_tick(now + FLUSH_TIMEOUT, &attempt),
        Action::FailConnect
    );
    let failed = Facts {
        has_fault: true,
        ..attempt
    };
    assert_eq!(shutdown.on_tick(now, &failed), Action::GiveUpAttempt);
    shutdown.retract();
    assert_eq!(
        shutdown.on_tick(now, &failed),
        Action::None,
        "the link is busy"
    );
    // Once up, the limit is void.
    assert_eq!(shutdown.on_tick(now, &NONE), Action::BeginAgain);
    shutdown.limit_connect(FLUSH_TIMEOUT);
    shutdown.start_limit(now);
    shutdown.on_connected();
    assert_eq!(shutdown.deadline(), None);
    assert_eq!(shutdown.on_tick(now + 2 * FLUSH_TIMEOUT, &UP), Action::None);
}

/// A random walk: the connection and the link do what they please, in any order, and are asked to
/// end. Whatever they do, each life ends its operations once, after the link has given everything
/// back; once a close was requested it comes to its end in time; and every edge is taken.
#[test]
fn a_random_walk_always_ends_and_takes_every_edge() {
    let mut edges = HashSet::new();
    for seed in 0..4000_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut now = Instant::now();
        let mut shutdown = Shutdown::new();
        let mut facts = UP;
        facts.knows_close = below(2) == 0;
        (facts.is_up, facts.is_attempt) = (below(3) > 0, below(2) == 0);
        facts.is_attempt &= !facts.is_up;
        let mut ended = 0;
        let mut finished = 0;
        let mut asked_at = None;
        for step in 0..400 {
            let told = format!("seed {seed}, step {step}: {shutdown:?}, {facts:?}");
            let mut before = shutdown.state();
            let mut note = |before: &mut ShutdownState, now: ShutdownState| {
                if *before != now {
                    edges.insert((*before, now));
                    *before = now;
                }
            };
            // What happens to the connection.
            match below(12) {
                0 => facts.is_drained = true,
                1 if facts.is_up && facts.knows_close => facts.is_close_exchanged = true,
                2 if facts.is_close_exchanged => facts.is_eof_in_order = true,
                3 if below(6) == 0 => facts.has_fault = true,
                4 if below(4) == 0 => facts.is_limit_exceeded = true,
                5 => facts.has_carry_over = below(2) == 0,
                6 if below(3) == 0 => {
                    shutdown.request_close();
                    asked_at.get_or_insert(now);
                }
                7 if below(8) == 0 => {
                    // Who aborts has a reason, but for who closes while an attempt is given up.
                    facts.has_fault |= shutdown.state() != Retracting;
                    shutdown.abort();
                }
                8 if shutdown.state() == Lingering => match below(2) {
                    0 => shutdown.on_discarded(LINGER_BYTES_MAX / 2),
                    _ => shutdown.on_peer_gone(),
                },
                9 if facts.is_attempt => (facts.is_up, facts.is_attempt) = (true, false),
                10 if shutdown.is_open() && facts.is_attempt => shutdown.retract(),
                11 if facts.is_link_busy && !shutdown.may_receive() => {
                    (facts.is_link_busy, facts.is_receive_armed) = (false, false);
                }
                _ => {}
            }
            note(&mut before, shutdown.state());
            now += Duration::from_millis(below(1000));
            // A turn: actions, until there is none.
            for action in 0.. {
                assert!(action < 8, "no end of actions: {told}");
                let next = shutdown.on_tick(now, &facts);
                note(&mut before, shutdown.state());
                match next {
                    Action::None => break,
                    Action::FailConnect | Action::FailEof => facts.has_fault = true,
                    Action::GiveUpAttempt | Action::Reconnect => shutdown.retract(),
                    Action::BeginAgain => {
                        assert!(!facts.is_link_busy, "{told}");
                        facts = Facts {
                            is_attempt: true,
                            is_up: false,
                            knows_close: facts.knows_close,
                            ..UP
                        };
                        finished = 0;
                    }
                    Action::FinishStream => finished += 1,
                    Action::TakeBack => {}
                    Action::EndOperations { finish_stream } => {
                        assert!(!facts.is_link_busy, "{told}");
                        ended += 1;
                        finished += u32::from(finish_stream);
                    }
                    Action::Discard => {
                        (facts.is_link_busy, facts.is_receive_armed) = (true, true);
                    }
                    Action::Close => facts.has_link = false,
                }
                note(&mut before, shutdown.state());
            }
            assert!(ended <= 1 && finished <= 1, "{ended}, {finished}: {told}");
            assert_eq!(ended == 1, shutdown.state() > Draining, "{told}");
            if shutdown.state() == Closed {
                assert!(!facts.has_link, "{told}");
                break;
            }
            if shutdown.state() != Retracting
                && shutdown.state() != Draining
                && let Some(asked_at) = asked_at
                && !shutdown.is_open()
            {
                // Nothing gets on: flush, the peer's end and lingering, each within its time.
                let within = 2 * FLUSH_TIMEOUT + LINGER_TIMEOUT + Duration::from_secs(120);
                assert!(now - asked_at < within, "{told}");
            }
        }
    }
    assert_eq!(edges, HashSet::from(ShutdownState::EDGES));
}
