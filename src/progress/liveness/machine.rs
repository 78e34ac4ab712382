//! The liveness of one connection's peer as a pure machine: time is an argument, what the
//! connection and the system know of it comes as [`LivenessInputs`], and what is to be done is a
//! [`LivenessAction`].
//!
//! ```text
//!          something is outstanding, or in doubt     silent, or in doubt: Probe
//!   Suspended ─────────────────────────────▶ Watching ─────────────────▶ Probing ──┐
//!     ▲   ▲                                  │  │   ▲                    │  │  ▲   │ silent, or
//!     │   └── nothing needs a heartbeat ─────┘  │   └─ heard, or cannot ─┘  │  └───┘ bytes ahead
//!     │                                         │      hear its answer      │        are taken
//!     └───────── nothing needs a heartbeat ─────┼───────────────────────────┤
//!                                               ▼                           ▼
//!       the peer's system leaves bytes of     Dead ◀── silent for `rounds` intervals
//!       ours unanswered, twice in a row
//! ```
//!
//! A heartbeat judges nothing if it is late, or while this side does not read: the answer may lie
//! in what was not read. A plain peer answers no probes: only the silence of its system about bytes
//! of ours counts. A program that is stopped, or does not read, has a system that answers.

use std::time::{Duration, Instant};

use super::config::Liveness;
use super::peers::PeerStatus;
use super::timer::HeartbeatTimer;
use crate::edges::{check_edge, state_machine};
use crate::limits::{
    LIVENESS_CLOCK_SLACK, LIVENESS_INTERVAL_MAX, LIVENESS_INTERVAL_MIN,
    LIVENESS_PEER_INTERVAL_DEFAULT, SHARED_INTERVALS_MAX,
};
use crate::transport::KeepAliveConfig;

/// What is known of the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum LivenessState {
    /// No heartbeat: nothing is outstanding, and nothing is owed.
    Suspended,
    /// A heartbeat per interval.
    Watching,
    /// A probe was sent that has not been answered.
    Probing,
    /// The connection is reset: what was not sent will never be taken.
    Dead,
}

state_machine! { LivenessState {
    Suspended => [Watching],
    Watching => [Suspended, Probing, Dead],
    Probing => [Watching, Suspended, Dead],
    Dead => [],
}}

/// How often the peer has to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbeInterval {
    /// Once per `idle_interval`: only receives are posted.
    Idle,
    /// Once per `interval`: something awaits the peer, or this side does not see its probes.
    Active,
}

/// What a heartbeat goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct LivenessInputs {
    /// The connection is up, and neither side is ending it.
    pub(super) is_up: bool,
    /// The peer answers probes (the extension).
    pub(super) answers_probes: bool,
    /// This side reads: what the peer says is heard.
    pub(super) is_reading: bool,
    /// What operations of this side ask for; `None`: none is outstanding.
    pub(super) outstanding: Option<ProbeInterval>,
    /// All frames have been handed to the system, the last probe among them.
    pub(super) is_transmit_idle: bool,
    /// What other connections know of the same domain; nothing, unless this one is idle.
    pub(super) domain: PeerStatus,
    /// Silence in milliseconds after which the peer probes; 0: it never does. `None`: it did not
    /// say.
    pub(super) peer_probes_after_ms: Option<u32>,
    /// For how long nothing has come; `None`: the system does not know.
    pub(super) silent: Option<Duration>,
    /// For how long the peer's system has left bytes or probes of ours unanswered.
    pub(super) unanswered: Duration,
    /// Bytes of ours that the peer's system has confirmed, and has not.
    pub(super) confirmed: u64,
    pub(super) unconfirmed: u64,
}

/// What is to be done after a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessAction {
    None,
    /// Send a probe (PING).
    Probe,
    /// Send an answer (PONG) unasked, since the peer's probes are not read.
    Answer,
    /// The peer is dead.
    Dead(DeathReason),
}

/// Why a peer counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeathReason {
    /// It did not answer a probe, and nothing has come from it for so long, if not longer.
    Silent(Duration),
    /// Its system has not reacted to what was sent to it for so long.
    SystemSilent(Duration),
}

/// The result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) action: LivenessAction,
    /// When the next one is due; `None`: when it is asked for again.
    pub(super) next: Option<Instant>,
    /// How the system is to probe from now on, if that changes.
    pub(super) keep_alive: Option<KeepAliveConfig>,
    /// Bytes came from the peer, then or later.
    pub(super) heard_since: Option<Instant>,
}

/// A probe that has not been answered.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    /// Bytes that the peer's system had confirmed at the last heartbeat.
    confirmed: u64,
    /// How many it will have confirmed when it has the probe; not known while that waits for room.
    with_probe: Option<u64>,
    /// Intervals missed since.
    missed: u32,
}

/// See the module.
#[derive(Debug)]
pub(in crate::progress) struct LivenessMachine {
    config: Liveness,
    state: LivenessState,
    /// Of use unless suspended.
    interval: ProbeInterval,
    /// Bytes have come since the last heartbeat.
    heard: bool,
    /// The heartbeat by which the last byte had come: one that found bytes, or the first one.
    silent_since: Option<Instant>,
    last: Option<Instant>,
    next: Option<Instant>,
    /// Of use while probing.
    probe: Probe,
    /// Intervals in which a probe was not answered, of all probes.
    misses: u64,
    /// Heartbeats in a row that found the peer's system silent for too long.
    unanswered: u32,
    /// Intervals in a row in which what came on another connection counted for this one.
    shared: u32,
    /// The system probes a plain peer's as often as outstanding operations ask for.
    fast_probing: bool,
    /// For so many heartbeats the peer is watched, and probed at once, whatever is outstanding.
    doubts: u32,
    /// Where in an idle interval its heartbeats fall, and how soon it probes for itself: 0 to 1.
    spread: f64,
}

impl LivenessMachine {
    pub(in crate::progress) fn new(config: Liveness, spread: f64) -> Self {
        LivenessMachine {
            config,
            state: LivenessState::Suspended,
            interval: ProbeInterval::Idle,
            heard: false,
            silent_since: None,
            last: None,
            next: None,
            probe: Probe::default(),
            misses: 0,
            unanswered: 0,
            // Connections that began together do not probe for themselves together.
            shared: (spread * f64::from(SHARED_INTERVALS_MAX)) as u32,
            fast_probing: false,
            doubts: 0,
            spread,
        }
    }

    pub(super) fn config(&self) -> &Liveness {
        &self.config
    }

    /// True while its heartbeats come at the short interval.
    pub(super) fn is_active(&self) -> bool {
        self.interval == ProbeInterval::Active && self.state != LivenessState::Suspended
    }

    /// True if nothing that is outstanding can need more heartbeats than there are.
    pub(super) fn is_watched_enough(&self) -> bool {
        self.is_active() || self.config.is_off()
    }

    /// Intervals in which a probe was not answered.
    pub(in crate::progress) fn misses(&self) -> u64 {
        self.misses
    }

    pub(in crate::progress) fn is_dead(&self) -> bool {
        self.state == LivenessState::Dead
    }

    /// When the next heartbeat is due, if one is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    #[cfg(test)]
    pub(in crate::progress) fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Something has come. This is all of it that is on the path of a message.
    pub(in crate::progress) fn on_received(&mut self) {
        self.heard = true;
    }

    /// The peer has to be heard this often from now on. True if a heartbeat must follow at once, to
    /// begin that.
    pub(super) fn watch(&mut self, interval: ProbeInterval) -> bool {
        match self.state {
            LivenessState::Dead | LivenessState::Probing => return false,
            LivenessState::Watching if self.interval >= interval => return false,
            LivenessState::Suspended => self.go(LivenessState::Watching),
            LivenessState::Watching => {}
        }
        self.interval = interval;
        self.last = None;
        true
    }

    /// The peer may be gone: what came before says nothing of it. True if a heartbeat must follow
    /// at once, which probes it.
    pub(super) fn doubt(&mut self) -> bool {
        if self.config.is_off() || self.doubts > 0 || self.state == LivenessState::Dead {
            return false;
        }
        // A plain peer is probed by the system, which counts in whole seconds.
        self.doubts = 3 * self.config.rounds;
        let begins = self.state != LivenessState::Probing;
        if begins {
            if self.state == LivenessState::Suspended {
                self.go(LivenessState::Watching);
            }
            self.interval = ProbeInterval::Active;
            (self.heard, self.last) = (false, None);
        }
        begins
    }

    /// True if the next heartbeat will judge the peer's silence: what has come is to be read first,
    /// and the system is to be asked.
    pub(super) fn will_judge(&self, domain: PeerStatus) -> bool {
        (self.last.is_some() || self.doubts > 0) && !self.heard && !self.is_shared(domain)
    }

    /// True if what other connections know counts for this one.
    fn is_shared(&self, domain: PeerStatus) -> bool {
        domain != PeerStatus::Unknown
            && self.state == LivenessState::Watching
            && self.interval == ProbeInterval::Idle
            && self.unanswered == 0
            && self.shared < SHARED_INTERVALS_MAX
    }

    /// A heartbeat.
    pub(super) fn on_tick(
        &mut self,
        now: Instant,
        timer: HeartbeatTimer,
        inputs: &LivenessInputs,
    ) -> Heartbeat {
        let watched = match self.doubts {
            0 => inputs.outstanding.filter(|_| !self.config.is_off()),
            _ => Some(ProbeInterval::Active),
        };
        let owes_answers = inputs.answers_probes && !inputs.is_reading;
        if self.state == LivenessState::Dead || !inputs.is_up || watched.is_none() && !owes_answers
        {
            return self.suspend();
        }
        if self.state == LivenessState::Suspended {
            self.go(LivenessState::Watching);
        }
        let last = self.last.replace(now);
        let due = self.next.take();
        let heard = std::mem::take(&mut self.heard);
        if heard || self.silent_since.is_none() {
            self.silent_since = Some(now);
        }
        let begins_in_doubt = last.is_none() && !heard && self.doubts > 0;
        self.doubts = self.doubts.saturating_sub(1);
        let is_shared = last.is_some() && !heard && self.is_shared(inputs.domain);
        let mut action = match (last, due) {
            _ if is_shared => {
                self.shared += u32::from(inputs.domain == PeerStatus::Alive);
                LivenessAction::None
            }
            _ if heard => {
                self.on_heard();
                LivenessAction::None
            }
            (Some(last), Some(due)) => self.on_silence(now, last, due, watched.is_some(), inputs),
            _ if begins_in_doubt && inputs.is_reading && inputs.answers_probes => {
                self.probe(inputs)
            }
            _ => LivenessAction::None,
        };
        if let LivenessAction::Dead(_) = action {
            return Heartbeat {
                action,
                ..self.suspend()
            };
        }
        if owes_answers {
            action = LivenessAction::Answer;
        }
        let next = match is_shared && inputs.domain == PeerStatus::ProbeInFlight {
            // The answer is looked for soon.
            true => timer.at(now + self.config.interval, self.config.interval),
            false => self.next_after(now, timer, last.is_none(), watched, inputs),
        };
        self.next = Some(next);
        // The system of a plain peer probes as often as this side would itself.
        let was_fast = std::mem::replace(&mut self.fast_probing, !inputs.answers_probes);
        let turns_fast = self.fast_probing && !was_fast;
        Heartbeat {
            action,
            next: Some(next),
            keep_alive: turns_fast.then(|| self.config.when_watched()),
            heard_since: last.filter(|_| heard),
        }
    }

    /// Nothing has come since the last heartbeat.
    fn on_silence(
        &mut self,
        now: Instant,
        last: Instant,
        due: Instant,
        is_watched: bool,
        inputs: &LivenessInputs,
    ) -> LivenessAction {
        let elapsed = now.saturating_duration_since(last);
        if is_watched && inputs.unanswered >= self.config.silence_max() {
            self.unanswered += 1;
        } else {
            self.unanswered = 0;
        }
        if self.unanswered > 1 {
            self.go(LivenessState::Dead);
            return LivenessAction::Dead(DeathReason::SystemSilent(inputs.unanswered));
        }
        let can_hear = is_watched && inputs.is_reading && inputs.answers_probes;
        // The system has bytes that this side has not read. What came shortly before the last
        // heartbeat is not among them: else a connection that is idle from its beginning would
        // not be probed in its first interval, nor would one of those that share its answer.
        let has_come =
            (inputs.silent).is_some_and(|silent| silent + LIVENESS_CLOCK_SLACK < elapsed);
        let is_late = now.saturating_duration_since(due) > self.config.interval / 2;
        if !can_hear || has_come {
            self.is_alive();
        } else if self.state == LivenessState::Watching {
            return self.probe(inputs);
        } else if !is_late && self.is_missed(inputs) {
            self.go(LivenessState::Dead);
            let seen = self.silent_since.unwrap_or(last);
            let silent = now.saturating_duration_since(seen);
            return LivenessAction::Dead(DeathReason::Silent(inputs.silent.unwrap_or(silent)));
        }
        LivenessAction::None
    }

    fn probe(&mut self, inputs: &LivenessInputs) -> LivenessAction {
        self.go(LivenessState::Probing);
        self.probe = Probe {
            confirmed: inputs.confirmed,
            ..Probe::default()
        };
        LivenessAction::Probe
    }

    /// An interval without an answer has passed. True if it was the last.
    fn is_missed(&mut self, inputs: &LivenessInputs) -> bool {
        let probe = &mut self.probe;
        if probe.with_probe.is_none() && inputs.is_transmit_idle {
            probe.with_probe = Some(inputs.confirmed + inputs.unconfirmed);
        }
        let taken = inputs.confirmed > probe.confirmed;
        probe.confirmed = inputs.confirmed;
        if taken && probe.with_probe.is_none_or(|all| inputs.confirmed < all) {
            // What lies ahead of the probe is being taken, so the probe is on its way.
            probe.missed = 0;
            return false;
        }
        probe.missed += 1;
        self.misses += 1;
        probe.missed >= self.config.rounds
    }

    fn on_heard(&mut self) {
        self.is_alive();
        self.unanswered = 0;
        self.shared = 0;
        self.doubts = 0;
    }

    fn is_alive(&mut self) {
        if self.state == LivenessState::Probing {
            self.go(LivenessState::Watching);
        }
    }

    /// No heartbeat is needed; the system probes no more often than an idle connection.
    fn suspend(&mut self) -> Heartbeat {
        if !matches!(self.state, LivenessState::Suspended | LivenessState::Dead) {
            self.go(LivenessState::Suspended);
        }
        self.heard = false;
        self.unanswered = 0;
        self.doubts = 0;
        (self.last, self.next, self.silent_since) = (None, None, None);
        let was_fast = std::mem::take(&mut self.fast_probing);
        Heartbeat {
            action: LivenessAction::None,
            next: None,
            keep_alive: was_fast.then(|| self.config.when_idle()),
            heard_since: None,
        }
    }

    fn next_after(
        &mut self,
        now: Instant,
        timer: HeartbeatTimer,
        is_first: bool,
        watched: Option<ProbeInterval>,
        inputs: &LivenessInputs,
    ) -> Instant {
        let awaits_answer = self.state == LivenessState::Probing || self.unanswered > 0;
        let is_idle = watched == Some(ProbeInterval::Idle) && inputs.is_reading && !awaits_answer;
        if !is_idle {
            self.interval = ProbeInterval::Active;
            let every = self.active_interval(inputs);
            return timer.at(now + every, every);
        }
        let was = std::mem::replace(&mut self.interval, ProbeInterval::Idle);
        let every = self.config.step(ProbeInterval::Idle);
        let after = match is_first || was != ProbeInterval::Idle {
            true => first_idle_heartbeat_after(every, self.spread),
            false => every,
        };
        timer.at(now + after, every)
    }

    /// Our own interval, or, of a side that does not read, the peer's if that is shorter.
    fn active_interval(&self, inputs: &LivenessInputs) -> Duration {
        let ours = self.config;
        if inputs.is_reading {
            return ours.interval;
        }
        let theirs = match inputs.peer_probes_after_ms {
            Some(0) => LIVENESS_INTERVAL_MAX,
            Some(ms) => Duration::from_millis(ms.into()).max(LIVENESS_INTERVAL_MIN),
            None => LIVENESS_PEER_INTERVAL_DEFAULT,
        };
        if ours.is_off() {
            theirs
        } else {
            theirs.min(ours.interval)
        }
    }

    /// Moves along a legal edge.
    fn go(&mut self, to: LivenessState) {
        check_edge(&self.state, &to);
        self.state = to;
    }
}

/// A fraction in [0, 1): those of successive numbers lie evenly, from where `seed` says.
pub(in crate::progress) fn spread(number: u64, seed: u64) -> f64 {
    // 2^64 divided by the golden ratio: its multiples never crowd.
    let golden = 0x9E37_79B9_7F4A_7C15_u64;
    let at = number.wrapping_mul(golden).wrapping_add(seed);
    (at >> 32) as f64 / (1_u64 << 32) as f64
}

/// Until the first heartbeat of an idle connection: what becomes idle together is spread evenly
/// over half of the interval, and so it stays. The two sides of a connection differ, so that one of
/// them probes first, and the other has heard it.
fn first_idle_heartbeat_after(every: Duration, spread: f64) -> Duration {
    every / 2 + (every / 2).mul_f64(spread)
}

#[cfg(test)]
mod tests;
