use super::*;
use crate::edges::EdgeCoverage;
use crate::random::SplitMix;

const NONE: LinkInputs = LinkInputs {
    is_up: false,
    is_attempt: false,
    has_fault: false,
    is_flushed: true,
    is_close_exchanged: false,
    is_eof_in_order: false,
    is_limit_exceeded: false,
    awaits_ended_peer: false,
    has_carry_over: false,
    is_link_busy: false,
    is_receive_armed: false,
    has_link: false,
    work: 0,
};

/// A connection that is up, to a peer that knows CLOSE, and reads.
const UP: LinkInputs = LinkInputs {
    is_up: true,
    is_flushed: false,
    is_link_busy: true,
    is_receive_armed: true,
    has_link: true,
    ..NONE
};

fn flushing(now: Instant) -> LinkLife {
    let mut life = LinkLife::new();
    assert!(life.request_close());
    assert_eq!(life.on_tick(now, &UP), LinkAction::None);
    life
}

/// Ends the life once everything was taken back from the link, from `Draining` on.
fn drain(life: &mut LinkLife, now: Instant, inputs: LinkInputs) -> LinkAction {
    assert_eq!(life.state(), Draining);
    assert_eq!(
        life.on_tick(now, &inputs),
        LinkAction::None,
        "the link is busy"
    );
    let empty = LinkInputs {
        is_link_busy: false,
        is_receive_armed: false,
        ..inputs
    };
    life.on_tick(now, &empty)
}

/// docs/extension.md, section 7: CLOSE both ways, then both ends of stream: there is nothing to
/// linger for.
#[test]
fn an_agreed_end_closes_at_the_peers_end_of_stream() {
    let now = Instant::now();
    for peer_began in [false, true] {
        let mut life = match peer_began {
            true => LinkLife::new(),
            false => flushing(now),
        };
        let exchanged = LinkInputs {
            is_close_exchanged: true,
            ..UP
        };
        assert_eq!(life.on_tick(now, &exchanged), LinkAction::FinishStream);
        assert!(!life.may_send() && life.may_receive());
        assert_eq!(life.on_tick(now, &exchanged), LinkAction::None);
        let eof = LinkInputs {
            is_eof_in_order: true,
            ..exchanged
        };
        assert_eq!(life.on_tick(now, &eof), LinkAction::TakeBack);
        let ended = drain(&mut life, now, eof);
        assert_eq!(
            ended,
            LinkAction::EndOperations {
                finish_stream: false
            }
        );
        assert_eq!(life.on_tick(now, &eof), LinkAction::Close);
        assert_eq!(life.on_tick(now, &NONE), LinkAction::None);
        assert_eq!(life.state(), Closed);
    }
}

/// Messages that the peer had no receive for go over the next connection.
#[test]
fn what_is_carried_over_begins_another_connection() {
    let now = Instant::now();
    let mut life = LinkLife::new();
    let eof = LinkInputs {
        is_close_exchanged: true,
        is_eof_in_order: true,
        has_carry_over: true,
        ..UP
    };
    assert_eq!(life.on_tick(now, &eof), LinkAction::FinishStream);
    assert_eq!(life.on_tick(now, &eof), LinkAction::Reconnect);
    life.retract();
    assert!(life.may_post() && !life.may_send());
    assert_eq!(
        life.on_tick(now, &eof),
        LinkAction::None,
        "the link is busy"
    );
    assert_eq!(life.on_tick(now, &NONE), LinkAction::BeginAgain);
    assert!(life.is_open());
}

/// A plain peer: queued frames are sent, then its last bytes are read and discarded, for a while.
#[test]
fn a_plain_peer_is_lingered_for() {
    let now = Instant::now();
    for ends_by in ["peer", "bytes", "time"] {
        let mut life = flushing(now);
        assert_eq!(
            life.on_tick(now, &UP),
            LinkAction::None,
            "frames are queued"
        );
        let drained = LinkInputs {
            is_flushed: true,
            ..UP
        };
        assert_eq!(life.on_tick(now, &drained), LinkAction::TakeBack);
        let ended = drain(&mut life, now, drained);
        assert_eq!(
            ended,
            LinkAction::EndOperations {
                finish_stream: true
            }
        );
        let idle = LinkInputs {
            is_receive_armed: false,
            is_link_busy: false,
            ..drained
        };
        assert_eq!(life.on_tick(now, &idle), LinkAction::Discard);
        assert_eq!(life.on_tick(now, &drained), LinkAction::None);
        match ends_by {
            "peer" => life.on_peer_gone(),
            "bytes" => {
                life.on_discarded(LINGER_BYTES_MAX - 1);
                assert_eq!(life.state(), Lingering);
                life.on_discarded(1);
            }
            _ => {
                let late = life.deadline().expect("it does not linger for ever");
                assert_eq!(life.on_tick(late, &drained), LinkAction::Close);
            }
        }
        assert_eq!(life.state(), Closed, "{ends_by}");
    }
}

/// Flushing may take its time as long as operations make progress; when none does, it ends.
#[test]
fn a_flush_without_progress_ends() {
    let mut now = Instant::now();
    let mut life = flushing(now);
    for work in 1..100 {
        now += FLUSH_TIMEOUT - Duration::from_millis(1);
        let gets_on = LinkInputs { work, ..UP };
        assert_eq!(life.on_tick(now, &gets_on), LinkAction::None);
    }
    let stuck = LinkInputs { work: 99, ..UP };
    now = life.deadline().expect("it does not wait for ever");
    assert_eq!(life.on_tick(now, &stuck), LinkAction::TakeBack);
}

/// Bytes that the peer sent before its end may be taken slowly; once no more are taken, operations
/// that wait for the peer fail. If none waits for it, there is no time limit.
#[test]
fn what_waits_for_an_ended_peer_fails_when_nothing_is_taken() {
    let mut now = Instant::now();
    let mut life = LinkLife::new();
    let idle = LinkInputs {
        is_receive_armed: false,
        ..UP
    };
    assert_eq!(life.on_tick(now, &idle), LinkAction::None);
    assert_eq!(life.deadline(), None);
    for work in 1..100 {
        let waits = LinkInputs {
            awaits_ended_peer: true,
            work,
            ..idle
        };
        assert_eq!(life.on_tick(now, &waits), LinkAction::None);
        now += FLUSH_TIMEOUT - Duration::from_millis(1);
    }
    // Everything was taken: the time limit is void, and begins again.
    now += FLUSH_TIMEOUT;
    assert_eq!(life.on_tick(now, &idle), LinkAction::None);
    assert_eq!(life.deadline(), None);
    let stuck = LinkInputs {
        awaits_ended_peer: true,
        ..idle
    };
    assert_eq!(life.on_tick(now, &stuck), LinkAction::None);
    now = life.deadline().expect("it does not wait without end");
    assert_eq!(life.on_tick(now, &stuck), LinkAction::FailUnread);
}

/// An attempt that fails, or takes too long, is given up; operations stay.
#[test]
fn an_attempt_that_fails_is_given_up() {
    let now = Instant::now();
    let mut life = LinkLife::new();
    let attempt = LinkInputs {
        is_attempt: true,
        is_up: false,
        ..UP
    };
    life.limit_connect(FLUSH_TIMEOUT);
    assert_eq!(life.deadline(), None, "only the driver has a clock");
    life.start_limit(now);
    assert_eq!(life.on_tick(now, &attempt), LinkAction::None);
    assert_eq!(
        life.on_tick(now + FLUSH_TIMEOUT, &attempt),
        LinkAction::FailConnect
    );
    let failed = LinkInputs {
        has_fault: true,
        ..attempt
    };
    assert_eq!(life.on_tick(now, &failed), LinkAction::GiveUpAttempt);
    life.retract();
    assert_eq!(
        life.on_tick(now, &failed),
        LinkAction::None,
        "the link is busy"
    );
    // Once the connection is up, the limit is void.
    assert_eq!(life.on_tick(now, &NONE), LinkAction::BeginAgain);
    life.limit_connect(FLUSH_TIMEOUT);
    life.start_limit(now);
    life.on_connected();
    assert_eq!(life.deadline(), None);
    assert_eq!(life.on_tick(now + 2 * FLUSH_TIMEOUT, &UP), LinkAction::None);
}

/// A random walk: the connection and the link act in any order, and are asked to end. In every case
/// each life ends its operations once, after the link has returned everything; once a close was
/// requested it ends in time; and every edge is taken.
#[test]
fn a_random_walk_always_ends_and_takes_every_edge() {
    let coverage = EdgeCoverage::begin("LinkState");
    for seed in 0..4000_u64 {
        let mut random = SplitMix(seed);
        let mut below = |bound: u64| random.within(0, bound - 1);
        let mut now = Instant::now();
        let mut life = LinkLife::new();
        let mut inputs = UP;
        let knows_close = below(2) == 0;
        (inputs.is_up, inputs.is_attempt) = (below(3) > 0, below(2) == 0);
        inputs.is_attempt &= !inputs.is_up;
        let mut ended = 0;
        let mut finished = 0;
        let mut asked_at = None;
        for step in 0..400 {
            let trace = format!("seed {seed}, step {step}: {life:?}, {inputs:?}");
            // An event of the connection.
            match below(13) {
                0 if !knows_close => inputs.is_flushed = true,
                1 if inputs.is_up && knows_close => inputs.is_close_exchanged = true,
                2 if inputs.is_close_exchanged => inputs.is_eof_in_order = true,
                3 if below(6) == 0 => inputs.has_fault = true,
                4 if below(4) == 0 => inputs.is_limit_exceeded = true,
                5 => inputs.has_carry_over = below(2) == 0,
                6 if below(3) == 0 => {
                    life.request_close();
                    asked_at.get_or_insert(now);
                }
                7 if below(8) == 0 => {
                    // An abort has a fault as its reason, unless an attempt is being given up.
                    inputs.has_fault |= life.state() != Retracting;
                    life.abort();
                }
                8 if life.state() == Lingering => match below(2) {
                    0 => life.on_discarded(LINGER_BYTES_MAX / 2),
                    _ => life.on_peer_gone(),
                },
                9 if inputs.is_attempt => (inputs.is_up, inputs.is_attempt) = (true, false),
                10 if life.is_open() && inputs.is_attempt => life.retract(),
                11 if inputs.is_link_busy && !life.may_receive() => {
                    (inputs.is_link_busy, inputs.is_receive_armed) = (false, false);
                }
                12 => inputs.awaits_ended_peer = inputs.is_up && below(2) == 0,
                _ => {}
            }
            now += Duration::from_millis(below(1000));
            // A turn: actions, until there is none.
            for action in 0.. {
                assert!(action < 8, "no end of actions: {trace}");
                let next = life.on_tick(now, &inputs);
                match next {
                    LinkAction::None => break,
                    LinkAction::FailConnect | LinkAction::FailEof | LinkAction::FailUnread => {
                        inputs.has_fault = true;
                    }
                    LinkAction::GiveUpAttempt | LinkAction::Reconnect => life.retract(),
                    LinkAction::BeginAgain => {
                        assert!(!inputs.is_link_busy, "{trace}");
                        inputs = LinkInputs {
                            is_attempt: true,
                            is_up: false,
                            ..UP
                        };
                        finished = 0;
                    }
                    LinkAction::FinishStream => finished += 1,
                    LinkAction::TakeBack => {}
                    LinkAction::EndOperations { finish_stream } => {
                        assert!(!inputs.is_link_busy, "{trace}");
                        ended += 1;
                        finished += u32::from(finish_stream);
                    }
                    LinkAction::Discard => {
                        (inputs.is_link_busy, inputs.is_receive_armed) = (true, true);
                    }
                    LinkAction::Close => inputs.has_link = false,
                }
            }
            assert!(ended <= 1 && finished <= 1, "{ended}, {finished}: {trace}");
            assert_eq!(ended == 1, life.state() > Draining, "{trace}");
            if life.state() == Closed {
                assert!(!inputs.has_link, "{trace}");
                break;
            }
            if life.state() != Retracting
                && life.state() != Draining
                && let Some(asked_at) = asked_at
                && !life.is_open()
            {
                // Without progress: flushing, the peer's end and lingering, each within its time.
                let within = 2 * FLUSH_TIMEOUT + LINGER_TIMEOUT + Duration::from_secs(120);
                assert!(now - asked_at < within, "{trace}");
            }
        }
    }
    coverage.expect_all();
}
