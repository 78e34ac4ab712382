use super::*;
use crate::edges::EdgeCoverage;
use crate::random::SplitMix;

const PERIOD: Duration = Duration::from_millis(750);
const ROUNDS: u32 = 4;
const IDLE: Duration = Duration::from_secs(60);

/// A connection that is up and reads, to an extended peer that an operation awaits, and whose
/// system knows nothing.
const AWAITING: LivenessInputs = LivenessInputs {
    is_up: true,
    answers_probes: true,
    is_reading: true,
    outstanding: Some(ProbeInterval::Active),
    is_transmit_idle: true,
    domain: PeerStatus::Unknown,
    peer_probes_after_ms: None,
    silent: None,
    unanswered: Duration::ZERO,
    confirmed: 0,
    unconfirmed: 0,
};

/// A machine, and the driver that gives it its heartbeats.
struct Fixture {
    machine: LivenessMachine,
    timer: HeartbeatTimer,
    begin: Instant,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        let now = Instant::now();
        Fixture {
            machine: LivenessMachine::new(Liveness::default(), 0.0),
            timer: HeartbeatTimer::new(now),
            begin: now,
            now,
        }
    }

    /// A fixture that is watching, after its first heartbeat.
    fn watched(inputs: &LivenessInputs) -> Self {
        let mut it = Fixture::new();
        let interval = inputs.outstanding.unwrap_or(ProbeInterval::Active);
        assert!(it.machine.watch(interval), "a first heartbeat is due");
        it.tick(inputs);
        it
    }

    /// Runs the next heartbeat, when it is due.
    fn tick(&mut self, inputs: &LivenessInputs) -> LivenessAction {
        self.now = self.machine.next().unwrap_or(self.now);
        self.tick_now(inputs)
    }

    fn tick_now(&mut self, inputs: &LivenessInputs) -> LivenessAction {
        let beat = self.machine.on_tick(self.now, self.timer, inputs);
        assert_eq!(beat.next, self.machine.next());
        let has_next = matches!(
            self.state(),
            LivenessState::Watching | LivenessState::Probing
        );
        assert_eq!(beat.next.is_some(), has_next, "{:?}", self.state());
        beat.action
    }

    fn state(&self) -> LivenessState {
        self.machine.state
    }
}

/// A connection in doubt: nothing was outstanding, or only receives, which are checked once per
/// minute. The peer is probed at once, and its silence is detected as if an operation awaited it;
/// an answer ends the doubt. Bytes from before the doubt are no answer.
#[test]
fn a_peer_in_doubt_is_probed_at_once() {
    for outstanding in [None, Some(ProbeInterval::Idle)] {
        let inputs = LivenessInputs {
            outstanding,
            ..AWAITING
        };
        let in_doubt = || {
            let mut it = match outstanding {
                Some(_) => Fixture::watched(&inputs),
                None => Fixture::new(),
            };
            it.machine.on_received();
            assert!(it.machine.doubt(), "a heartbeat is due now");
            assert!(!it.machine.doubt(), "one doubt at a time");
            assert_eq!(it.tick_now(&inputs), LivenessAction::Probe);
            it
        };
        let mut silent = in_doubt();
        for _ in 1..ROUNDS {
            assert_eq!(silent.tick(&inputs), LivenessAction::None);
        }
        let dead = silent.tick(&inputs);
        assert!(matches!(dead, LivenessAction::Dead(_)), "{dead:?}");
        let mut alive = in_doubt();
        alive.machine.on_received();
        assert_eq!(alive.tick(&inputs), LivenessAction::None);
        for _ in 0..4 * ROUNDS {
            if alive.state() == LivenessState::Suspended {
                break;
            }
            alive.machine.on_received();
            assert_eq!(alive.tick(&inputs), LivenessAction::None);
        }
        assert!(!alive.machine.is_active(), "all is as before");
    }
}

/// docs/extension.md: "the endpoint probes when nothing has arrived for an interval", and after the
/// configured number of missed intervals the peer is dead, within the documented time.
#[test]
fn a_silent_peer_is_probed_and_found_dead_in_time() {
    let mut it = Fixture::watched(&AWAITING);
    assert_eq!(it.state(), LivenessState::Watching);
    assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
    for _ in 1..ROUNDS {
        assert_eq!(it.tick(&AWAITING), LivenessAction::None);
    }
    let dead = it.tick(&AWAITING);
    let silent = it.now - it.begin;
    assert_eq!(dead, LivenessAction::Dead(DeathReason::Silent(silent)));
    assert!(silent > ROUNDS * PERIOD);
    assert!(it.machine.is_dead());
    let within = Liveness::default().found_within().expect("it is on");
    assert!(it.now - it.begin <= within, "{:?}", it.now - it.begin);
    // A dead peer stays dead.
    it.machine.on_received();
    assert!(!it.machine.watch(ProbeInterval::Active));
    assert_eq!(it.tick_now(&AWAITING), LivenessAction::None);
    assert!(it.machine.is_dead());
}

/// "Any byte from the peer counts as its answer", also a byte that the system has and this side has
/// not read.
#[test]
fn any_byte_ends_a_probe() {
    let has_come = LivenessInputs {
        silent: Some(PERIOD / 2),
        ..AWAITING
    };
    for by_system in [false, true] {
        let mut it = Fixture::watched(&AWAITING);
        assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
        it.tick(&AWAITING);
        match by_system {
            true => assert_eq!(it.tick(&has_come), LivenessAction::None),
            false => {
                it.machine.on_received();
                assert_eq!(it.tick(&AWAITING), LivenessAction::None);
            }
        }
        assert_eq!(it.state(), LivenessState::Watching);
        // The next probe begins from zero.
        assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
        assert_eq!(it.machine.probe.missed, 0);
    }
}

/// A connection that is idle from its beginning was silent for its first interval, and is probed:
/// bytes that came a moment before that interval do not count as unread.
#[test]
fn a_connection_that_is_idle_from_its_beginning_probes_after_its_first_interval() {
    let idle = LivenessInputs {
        outstanding: Some(ProbeInterval::Idle),
        ..AWAITING
    };
    let mut it = Fixture::watched(&idle);
    let next = it.machine.next().expect("a heartbeat is due");
    let silent = LivenessInputs {
        silent: Some(next - it.now + Duration::from_millis(3)),
        ..idle
    };
    assert_eq!(it.tick(&silent), LivenessAction::Probe);
}

/// "An interval counts as missed only if we were reading all the time", and a side that does not
/// read answers unasked.
#[test]
fn a_side_that_does_not_read_judges_nothing_and_answers_unasked() {
    let paused = LivenessInputs {
        is_reading: false,
        ..AWAITING
    };
    let mut it = Fixture::watched(&AWAITING);
    assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
    for _ in 0..10 * ROUNDS {
        assert_eq!(it.tick(&paused), LivenessAction::Answer);
        assert_eq!(it.state(), LivenessState::Watching);
    }
    // Also with nothing outstanding, when silence means nothing.
    let paused = LivenessInputs {
        outstanding: None,
        peer_probes_after_ms: Some(100),
        ..paused
    };
    let mut off = Fixture::new();
    off.machine = LivenessMachine::new(Liveness::OFF, 0.0);
    assert!(off.machine.watch(ProbeInterval::Active));
    for _ in 0..10 {
        let before = off.now;
        assert_eq!(off.tick(&paused), LivenessAction::Answer);
        assert!(off.now - before <= Duration::from_millis(120));
    }
}

/// "... our own timer was not late".
#[test]
fn a_late_heartbeat_counts_nothing() {
    let mut it = Fixture::watched(&AWAITING);
    assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
    for _ in 0..10 * ROUNDS {
        it.now = it.machine.next().expect("it is probing") + PERIOD;
        assert_eq!(it.tick_now(&AWAITING), LivenessAction::None);
    }
    assert_eq!(it.state(), LivenessState::Probing);
}

/// "As long as the peer's system confirms bytes ahead of the probe, the probe is on its way and the
/// interval is not missed."
#[test]
fn bytes_ahead_of_the_probe_are_waited_for() {
    let mut inputs = LivenessInputs {
        is_transmit_idle: false,
        unconfirmed: 1000,
        ..AWAITING
    };
    let mut it = Fixture::watched(&inputs);
    assert_eq!(it.tick(&inputs), LivenessAction::Probe);
    for _ in 0..10 * ROUNDS {
        inputs.confirmed += 10;
        assert_eq!(it.tick(&inputs), LivenessAction::None);
        assert_eq!(it.machine.probe.missed, 0);
    }
    // The system has the probe, behind 50 bytes; the interval counts once those are taken.
    (inputs.is_transmit_idle, inputs.unconfirmed) = (true, 50);
    it.tick(&inputs);
    (inputs.confirmed, inputs.unconfirmed) = (inputs.confirmed + 50, 0);
    it.tick(&inputs);
    assert!(it.machine.probe.missed > 0);
    while it.state() == LivenessState::Probing {
        it.tick(&inputs);
    }
    assert!(it.machine.is_dead());
}

/// Toward a plain peer only the silence of its system about our bytes counts, twice in a row.
#[test]
fn a_plain_peer_is_judged_by_its_system() {
    let plain = LivenessInputs {
        answers_probes: false,
        ..AWAITING
    };
    let unanswered = LivenessInputs {
        unanswered: Liveness::default().silence_max(),
        silent: Some(Duration::from_secs(5)),
        ..plain
    };
    let mut it = Fixture::watched(&plain);
    for _ in 0..10 * ROUNDS {
        assert_eq!(it.tick(&plain), LivenessAction::None);
        assert_eq!(it.tick(&unanswered), LivenessAction::None);
    }
    assert_eq!(it.tick(&plain), LivenessAction::None);
    it.tick(&unanswered);
    let reason = DeathReason::SystemSilent(unanswered.unanswered);
    assert_eq!(it.tick(&unanswered), LivenessAction::Dead(reason));
}

/// The system probes a plain peer faster while something is outstanding, and no longer.
#[test]
fn the_system_probes_fast_while_something_is_outstanding() {
    let plain = LivenessInputs {
        answers_probes: false,
        ..AWAITING
    };
    let mut it = Fixture::new();
    it.machine.watch(ProbeInterval::Active);
    let config = Liveness::default();
    let first = it.machine.on_tick(it.now, it.timer, &plain);
    assert_eq!(first.keep_alive, Some(config.when_watched()));
    it.now = first.next.expect("it is watched");
    let second = it.machine.on_tick(it.now, it.timer, &plain);
    assert_eq!(second.keep_alive, None);
    let idle = LivenessInputs {
        outstanding: None,
        ..plain
    };
    it.now = second.next.expect("it is watched");
    let last = it.machine.on_tick(it.now, it.timer, &idle);
    assert_eq!(last.keep_alive, Some(config.when_idle()));
    assert_eq!(it.state(), LivenessState::Suspended);
}

/// No heartbeat is needed in any state if nothing is outstanding; posting begins again.
#[test]
fn it_is_suspended_while_nothing_is_outstanding() {
    let none = LivenessInputs {
        outstanding: None,
        ..AWAITING
    };
    let down = LivenessInputs {
        is_up: false,
        ..AWAITING
    };
    for (ends, probes) in [(none, false), (none, true), (down, false), (down, true)] {
        let mut it = Fixture::watched(&AWAITING);
        if probes {
            assert_eq!(it.tick(&AWAITING), LivenessAction::Probe);
        }
        assert_eq!(it.tick(&ends), LivenessAction::None);
        assert_eq!(it.state(), LivenessState::Suspended);
        assert!(it.machine.watch(ProbeInterval::Active));
        assert_eq!(it.state(), LivenessState::Watching);
    }
}

/// docs/extension.md: "a connection with only receives posted detects a dead peer within two idle
/// intervals and the rounds", also if other connections have heard the domain meanwhile.
#[test]
fn an_idle_connection_finds_a_dead_peer_within_two_idle_intervals_and_the_rounds() {
    let idle = LivenessInputs {
        outstanding: Some(ProbeInterval::Idle),
        ..AWAITING
    };
    for heard_by_others_for in [Duration::ZERO, IDLE / 2, IDLE - PERIOD / 2] {
        let mut it = Fixture::watched(&idle);
        // The peer dies just after the first heartbeat at which it is heard.
        it.machine.on_received();
        it.tick(&idle);
        let died = it.now;
        while !it.machine.is_dead() {
            let next = it.machine.next().expect("it is watched");
            let inputs = LivenessInputs {
                domain: match next - died {
                    after if after < heard_by_others_for => PeerStatus::Alive,
                    // Then one of them probes it, in vain.
                    after if after < heard_by_others_for + 2 * PERIOD => PeerStatus::ProbeInFlight,
                    _ => PeerStatus::Unknown,
                },
                ..idle
            };
            it.tick(&inputs);
        }
        let within = 2 * IDLE + (ROUNDS + 1) * PERIOD;
        assert!(it.now - died <= within, "{:?}", it.now - died);
    }
}

/// An idle peer's silence is counted from its last byte, not from the probe, if no system knows it.
#[test]
fn the_silence_of_a_dead_peer_is_counted_from_its_last_byte() {
    let idle = LivenessInputs {
        outstanding: Some(ProbeInterval::Idle),
        ..AWAITING
    };
    let mut it = Fixture::watched(&idle);
    it.machine.on_received();
    it.tick(&idle);
    let last_byte = it.now;
    loop {
        match it.tick(&idle) {
            LivenessAction::Dead(reason) => {
                let silent = it.now - last_byte;
                assert_eq!(reason, DeathReason::Silent(silent));
                assert!(silent >= IDLE + ROUNDS * PERIOD, "{silent:?}");
                return;
            }
            action => assert!(!it.machine.is_dead(), "{action:?}"),
        }
    }
}

/// docs/extension.md: "for at most 64 idle intervals in a row": a process that claims to be the
/// peer of other connections cannot hide that peer's death for longer.
#[test]
fn what_came_on_another_connection_counts_for_a_while_only() {
    let shared = LivenessInputs {
        outstanding: Some(ProbeInterval::Idle),
        domain: PeerStatus::Alive,
        ..AWAITING
    };
    let mut it = Fixture::watched(&shared);
    let mut heartbeats = 0;
    while !it.machine.is_dead() {
        it.tick(&shared);
        heartbeats += 1;
    }
    // The shared intervals, one that probes, and the rounds.
    assert_eq!(heartbeats, SHARED_INTERVALS_MAX + 1 + ROUNDS);
    // Once it is heard itself, it begins again; and connections that began together do not probe
    // together.
    let mut it = Fixture::watched(&shared);
    it.machine = LivenessMachine::new(Liveness::default(), 0.5);
    it.machine.watch(ProbeInterval::Idle);
    assert_eq!(it.machine.shared, SHARED_INTERVALS_MAX / 2);
    it.tick(&shared);
    it.machine.on_received();
    it.tick(&shared);
    assert_eq!(it.machine.shared, 0);
}

/// "no thundering herd": if thousands of connections become idle at the same moment, no second sees
/// more than its share of heartbeats.
#[test]
fn idle_heartbeats_are_spread_over_the_interval() {
    let timer = HeartbeatTimer::new(Instant::now());
    let begin = Instant::now();
    let mut heartbeats = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        let after = first_idle_heartbeat_after(IDLE, spread(number, 7));
        *heartbeats.entry(timer.at(begin + after, IDLE)).or_insert(0) += 1;
    }
    assert!(
        heartbeats.len() <= 40,
        "{} wake-ups in 30 s",
        heartbeats.len()
    );
    let most = heartbeats.values().max().copied();
    assert!(most < Some(500), "{most:?} at once");
}

/// A random walk against the definition of death: counted intervals in a row after a probe. It
/// walks every edge.
#[test]
fn a_random_walk_agrees_with_the_definition_and_takes_every_edge() {
    let coverage = EdgeCoverage::begin("LivenessState");
    for seed in 0..400_u64 {
        let mut random = SplitMix(seed);
        let mut below = |bound: u64| random.within(0, bound - 1);
        let mut it = Fixture::new();
        // Silent intervals in a row that count since a probe; `None`: no probe is unanswered.
        let mut missed: Option<u32> = None;
        let mut system_missed = 0;
        for step in 0..200 {
            let mut inputs = AWAITING;
            match below(20) {
                0 => inputs.outstanding = None,
                1 => inputs.is_reading = false,
                2 => inputs.outstanding = Some(ProbeInterval::Idle),
                _ => {}
            }
            let is_stuck = below(8) == 0;
            if is_stuck {
                inputs.unanswered = IDLE;
                inputs.silent = Some(IDLE * 2);
            }
            if it.state() == LivenessState::Suspended {
                it.machine.watch(ProbeInterval::Active);
            }
            let is_first = it.machine.last.is_none();
            let has_heard = below(6) == 0;
            if has_heard {
                it.machine.on_received();
            }
            let is_late = below(10) == 0;
            it.now = it.machine.next().unwrap_or(it.now);
            if is_late {
                it.now += PERIOD;
            }
            let action = it.tick_now(&inputs);
            let needs = inputs.outstanding.is_some() || !inputs.is_reading;
            let mut must_die = false;
            if !needs {
                (missed, system_missed) = (None, 0);
            } else if is_first {
                assert_ne!(action, LivenessAction::Probe);
            } else if has_heard {
                (missed, system_missed) = (None, 0);
            } else {
                let counts = is_stuck && inputs.outstanding.is_some();
                system_missed = if counts { system_missed + 1 } else { 0 };
                must_die = system_missed > 1;
                if !inputs.is_reading || inputs.outstanding.is_none() {
                    missed = None;
                } else if let Some(missed) = &mut missed {
                    *missed += u32::from(!is_late);
                    must_die |= *missed >= ROUNDS;
                } else {
                    missed = Some(0);
                }
            }
            let at = format!("seed {seed}, step {step}: {action:?}, {missed:?}");
            assert_eq!(matches!(action, LivenessAction::Dead(_)), must_die, "{at}");
            if must_die {
                break;
            }
            assert_eq!(
                missed.is_some(),
                it.state() == LivenessState::Probing,
                "{at}"
            );
        }
    }
    coverage.expect_all();
}
