//! The liveness of one connection's peer as a pure machine: time is an argument, the knowledge of
//! the connection and the system comes as [`LivenessInputs`], and the result is a
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
//! A heartbeat judges nothing if it is late, or while this side does not read: the answer may be
//! among the unread bytes. A plain peer answers no probes: it is judged only by whether its system
//! confirms our bytes. The system of a program that is stopped, or does not read, still answers.

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

/// The state of the liveness of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum LivenessState {
    /// There is no heartbeat: nothing is outstanding, and nothing is owed.
    Suspended,
    /// There is a heartbeat per interval.
    Watching,
    /// A probe was sent that has not been answered.
    Probing,
    /// The connection is to be reset: the peer will never take bytes that were not sent.
    Dead,
}

state_machine! { LivenessState {
    Suspended => [Watching],
    Watching => [Suspended, Probing, Dead],
    Probing => [Watching, Suspended, Dead],
    Dead => [],
}}

/// The interval within which the peer must be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbeInterval {
    /// `idle_interval`: only receives are posted.
    Idle,
    /// `interval`: something awaits the peer, or this side does not see its probes.
    Active,
}

/// The inputs of a heartbeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct LivenessInputs {
    /// True if the connection is up, and neither side is ending it.
    pub(super) is_up: bool,
    /// True if the peer answers probes (the extension).
    pub(super) answers_probes: bool,
    /// True if this side reads, so that it sees what the peer sends.
    pub(super) is_reading: bool,
    /// The interval that outstanding operations need; `None`: none is outstanding.
    pub(super) outstanding: Option<ProbeInterval>,
    /// True if all frames have been handed to the system, including the last probe.
    pub(super) is_transmit_idle: bool,
    /// The knowledge of other connections about the same domain; Unknown, unless this connection is
    /// idle.
    pub(super) domain: PeerStatus,
    /// Silence in milliseconds after which the peer probes; 0: never. `None`: the peer did not
    /// announce it.
    pub(super) peer_probes_after_ms: Option<u32>,
    /// Time since the last byte was received; `None`: the system does not know.
    pub(super) silent: Option<Duration>,
    /// Time for which the peer's system has left bytes or probes of ours unanswered.
    pub(super) unanswered: Duration,
    /// Number of bytes of ours that the peer's system has confirmed, and that it has not.
    pub(super) confirmed: u64,
    pub(super) unconfirmed: u64,
}

/// The action after a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessAction {
    None,
    /// Send a probe (PING).
    Probe,
    /// Send an answer (PONG) unasked, since the peer's probes are not read.
    Answer,
    /// Declare the peer dead.
    Dead(DeathReason),
}

/// The reason why a peer is declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeathReason {
    /// It did not answer a probe, and nothing has come from it for at least this time.
    Silent(Duration),
    /// Its system has not reacted to what was sent to it for this time.
    SystemSilent(Duration),
}

/// The result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) action: LivenessAction,
    /// Time at which the next heartbeat is due; `None`: when it is asked for again.
    pub(super) next: Option<Instant>,
    /// The system's new probing configuration, if it changes.
    pub(super) keep_alive: Option<KeepAliveConfig>,
    /// Bytes came from the peer at this time or later.
    pub(super) heard_since: Option<Instant>,
}

/// A probe that has not been answered.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    /// Number of bytes that the peer's system had confirmed at the last heartbeat.
    confirmed: u64,
    /// Number of bytes that the peer's system will have confirmed once it has the probe; `None`
    /// while the probe waits for room.
    with_probe: Option<u64>,
    /// Number of intervals missed since the probe.
    missed: u32,
}

#[derive(Debug)]
pub(in crate::progress) struct LivenessMachine {
    config: Liveness,
    state: LivenessState,
    /// Meaningful unless suspended.
    interval: ProbeInterval,
    /// True if bytes have come since the last heartbeat.
    heard: bool,
    /// Time of the last heartbeat that found bytes, or of the first one: the last byte had come by
    /// then.
    silent_since: Option<Instant>,
    last: Option<Instant>,
    next: Option<Instant>,
    /// Meaningful while probing.
    probe: Probe,
    /// Number of intervals in which a probe was not answered, over all probes.
    misses: u64,
    /// Number of heartbeats in a row that found the peer's system silent for too long.
    unanswered: u32,
    /// Number of intervals in a row in which bytes on another connection counted for this one.
    shared: u32,
    /// True if the system probes a plain peer as often as outstanding operations need.
    fast_probing: bool,
    /// Number of heartbeats for which the peer is watched, and probed at once, whatever is
    /// outstanding.
    doubts: u32,
    /// Position of the heartbeats within an idle interval, from 0 to 1. Also determines after how
    /// many shared intervals the connection first probes for itself.
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
            // Connections that began together must not all probe for themselves at the same time.
            shared: (spread * f64::from(SHARED_INTERVALS_MAX)) as u32,
            fast_probing: false,
            doubts: 0,
            spread,
        }
    }

    pub(super) fn config(&self) -> &Liveness {
        &self.config
    }

    /// Returns true while heartbeats come at the short interval.
    pub(super) fn is_active(&self) -> bool {
        self.interval == ProbeInterval::Active && self.state != LivenessState::Suspended
    }

    /// Returns true if operations that need heartbeats at this interval need no more than there
    /// are.
    pub(super) fn is_watched_enough(&self, interval: ProbeInterval) -> bool {
        let is_watched = self.state != LivenessState::Suspended && self.interval >= interval;
        is_watched || self.config.is_off()
    }

    /// Returns the number of intervals in which a probe was not answered.
    pub(in crate::progress) fn misses(&self) -> u64 {
        self.misses
    }

    pub(in crate::progress) fn is_dead(&self) -> bool {
        self.state == LivenessState::Dead
    }

    /// Returns when the next heartbeat is due, if one is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    #[cfg(test)]
    pub(in crate::progress) fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Records that something was received: the machine's only work on the path of a message.
    pub(in crate::progress) fn on_received(&mut self) {
        self.heard = true;
    }

    /// Requires the peer to be heard within this interval from now on. Returns true if a heartbeat
    /// must follow at once, to begin the interval.
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

    /// Suspects that the peer is gone: bytes that it sent before prove nothing. Returns true if a
    /// heartbeat must follow at once, which probes the peer.
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

    /// Returns true if the next heartbeat will judge the peer's silence: received bytes must be
    /// read first, and the system must be asked.
    pub(super) fn will_judge(&self, domain: PeerStatus) -> bool {
        (self.last.is_some() || self.doubts > 0) && !self.heard && !self.is_shared(domain)
    }

    /// Returns true if the knowledge of other connections counts for this one.
    fn is_shared(&self, domain: PeerStatus) -> bool {
        domain != PeerStatus::Unknown
            && self.state == LivenessState::Watching
            && self.interval == ProbeInterval::Idle
            && self.unanswered == 0
            && self.shared < SHARED_INTERVALS_MAX
    }

    /// Handles a heartbeat.
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
            // Check for the answer after a short interval.
            true => timer.at(now + self.config.interval, self.config.interval),
            false => self.next_after(now, timer, last.is_none(), watched, inputs),
        };
        self.next = Some(next);
        // The system probes a plain peer as often as this side would.
        let was_fast = std::mem::replace(&mut self.fast_probing, !inputs.answers_probes);
        let turns_fast = self.fast_probing && !was_fast;
        Heartbeat {
            action,
            next: Some(next),
            keep_alive: turns_fast.then(|| self.config.when_watched()),
            heard_since: last.filter(|_| heard),
        }
    }

    /// Handles an interval in which nothing has come since the last heartbeat.
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
        // True if the system has bytes that this side has not read. Bytes that came shortly before
        // the last heartbeat are not counted: otherwise a connection that is idle from its
        // beginning, or one of several that share an answer, would not be probed in its first
        // interval.
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

    /// Counts an interval without an answer. Returns true if it was the last that is allowed.
    fn is_missed(&mut self, inputs: &LivenessInputs) -> bool {
        let probe = &mut self.probe;
        if probe.with_probe.is_none() && inputs.is_transmit_idle {
            probe.with_probe = Some(inputs.confirmed + inputs.unconfirmed);
        }
        let taken = inputs.confirmed > probe.confirmed;
        probe.confirmed = inputs.confirmed;
        if taken && probe.with_probe.is_none_or(|all| inputs.confirmed < all) {
            // Bytes ahead of the probe are being taken, so the probe is on its way.
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

    /// Suspends heartbeats; the system probes only as often as on an idle connection.
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

    /// Returns our own interval; if this side does not read, the peer's if that is shorter.
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

/// Returns a fraction in [0, 1): successive numbers give evenly spread fractions, beginning at one
/// that `seed` determines.
pub(in crate::progress) fn spread(number: u64, seed: u64) -> f64 {
    // 2^64 divided by the golden ratio: its multiples never cluster.
    let golden = 0x9E37_79B9_7F4A_7C15_u64;
    let at = number.wrapping_mul(golden).wrapping_add(seed);
    (at >> 32) as f64 / (1_u64 << 32) as f64
}

/// Returns the time until the first heartbeat of an idle connection. Connections that become idle
/// together get heartbeats that are spread evenly over half of the interval, now and later. The two
/// sides of a connection differ, so that one side probes first and the other side hears the probe.
fn first_idle_heartbeat_after(every: Duration, spread: f64) -> Duration {
    every / 2 + (every / 2).mul_f64(spread)
}

#[cfg(test)]
mod tests;
