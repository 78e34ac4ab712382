//! The liveness of one connection's peer as a pure machine: time is an argument, what the
//! connection and the system know of it comes as [`Vitals`], and what is to be done is an
//! [`Action`].
//!
//! ```text
//!                something is outstanding                 silent: Probe
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
//! in what was not read. Toward a plain peer there is nobody to probe but its system, whose silence
//! about bytes of ours is all that counts; a program that is stopped, or does not read, has a
//! system that answers.

use std::time::{Duration, Instant};

use super::config::{INTERVAL_MAX, INTERVAL_MIN, Liveness};
use super::peers::PeerStatus;
use super::timer::HeartbeatTimer;
use crate::limits::SHARED_INTERVALS_MAX;
use crate::transport::KeepAlive;

/// What the system's clocks may be off by.
const SLACK: Duration = Duration::from_millis(10);
/// The interval of a peer that does not tell its own.
const PEER_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// What is known of the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::progress) enum LivenessState {
    /// No heartbeat: nothing is outstanding, and nothing is owed.
    Suspended,
    /// A heartbeat per interval.
    Watching,
    /// A probe was sent that has not been answered.
    Probing,
    /// The connection is reset: nobody will take what was not sent.
    Dead,
}

impl LivenessState {
    /// Every legal edge; all others are bugs of ours.
    pub(super) const EDGES: [(LivenessState, LivenessState); 7] = [
        (LivenessState::Suspended, LivenessState::Watching),
        (LivenessState::Watching, LivenessState::Suspended),
        (LivenessState::Watching, LivenessState::Probing),
        (LivenessState::Watching, LivenessState::Dead),
        (LivenessState::Probing, LivenessState::Watching),
        (LivenessState::Probing, LivenessState::Suspended),
        (LivenessState::Probing, LivenessState::Dead),
    ];
}

/// How often the peer has to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbeInterval {
    /// Once per `idle_interval`: only receives are posted.
    Idle,
    /// Once per `interval`: something awaits the peer, or this side owes it signs of life.
    Active,
}

/// What a heartbeat goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vitals {
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
    /// Silence in milliseconds that the peer bears before it probes; 0: any. `None`: it did not
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
pub(super) enum Action {
    None,
    /// Ask the peer for a sign of life.
    Probe,
    /// Give the peer one unasked, since its probes are not read.
    Sign,
    /// The peer is dead; it was silent for so long.
    Dead(Duration),
}

/// The result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) action: Action,
    /// When the next one is due; `None`: when it is asked for again.
    pub(super) next: Option<Instant>,
    /// What the system is to be told.
    pub(super) keep_alive: Option<KeepAlive>,
    /// The peer was heard, then or later.
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
    /// Something has come since the last heartbeat.
    heard: bool,
    last: Option<Instant>,
    next: Option<Instant>,
    /// Of use while probing.
    probe: Probe,
    /// Heartbeats in a row that found the peer's system silent for too long.
    unanswered: u32,
    /// Intervals in a row in which another connection's sign of life counted for this one.
    shared: u32,
    /// The system of a plain peer is probed as often as outstanding operations ask for.
    fast_probing: bool,
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
            last: None,
            next: None,
            probe: Probe::default(),
            unanswered: 0,
            // Connections that began together do not probe for themselves together.
            shared: (spread * f64::from(SHARED_INTERVALS_MAX)) as u32,
            fast_probing: false,
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

    /// True if the next heartbeat will judge the peer's silence: what has come is to be read first,
    /// and the system is to be asked.
    pub(super) fn will_judge(&self, domain: PeerStatus) -> bool {
        self.last.is_some() && !self.heard && !self.is_shared(domain)
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
        vitals: &Vitals,
    ) -> Heartbeat {
        let watched = vitals.outstanding.filter(|_| !self.config.is_off());
        let owes_signs = vitals.answers_probes && !vitals.is_reading;
        if self.state == LivenessState::Dead || !vitals.is_up || watched.is_none() && !owes_signs {
            return self.suspend();
        }
        if self.state == LivenessState::Suspended {
            self.go(LivenessState::Watching);
        }
        let last = self.last.replace(now);
        let due = self.next.take();
        let heard = std::mem::take(&mut self.heard);
        let is_shared = last.is_some() && !heard && self.is_shared(vitals.domain);
        let mut action = match (last, due) {
            _ if is_shared => {
                self.shared += u32::from(vitals.domain == PeerStatus::Alive);
                Action::None
            }
            _ if heard => {
                self.on_heard();
                Action::None
            }
            (Some(last), Some(due)) => self.on_silence(now, last, due, watched.is_some(), vitals),
            _ => Action::None,
        };
        if let Action::Dead(_) = action {
            return Heartbeat {
                action,
                ..self.suspend()
            };
        }
        if owes_signs {
            action = Action::Sign;
        }
        let next = match is_shared && vitals.domain == PeerStatus::ProbeInFlight {
            // The answer is looked for soon.
            true => timer.at(now + self.config.interval, self.config.interval),
            false => self.next_after(now, timer, last.is_none(), watched, vitals),
        };
        self.next = Some(next);
        // The system of a plain peer probes as often as this side would itself.
        let was_fast = std::mem::replace(&mut self.fast_probing, !vitals.answers_probes);
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
        vitals: &Vitals,
    ) -> Action {
        let elapsed = now.saturating_duration_since(last);
        if is_watched && vitals.unanswered >= self.config.silence_max() {
            self.unanswered += 1;
        } else {
            self.unanswered = 0;
        }
        if self.unanswered > 1 {
            return self.on_dead(elapsed, vitals);
        }
        let can_hear = is_watched && vitals.is_reading && vitals.answers_probes;
        // The system has what nobody has read.
        let has_come = (vitals.silent).is_some_and(|silent| silent < elapsed + SLACK);
        let is_late = now.saturating_duration_since(due) > self.config.interval / 2;
        if !can_hear || has_come {
            self.is_alive();
        } else if self.state == LivenessState::Watching {
            self.go(LivenessState::Probing);
            self.probe = Probe {
                confirmed: vitals.confirmed,
                ..Probe::default()
            };
            return Action::Probe;
        } else if !is_late && self.is_missed(vitals) {
            return self.on_dead(elapsed, vitals);
        }
        Action::None
    }

    /// An interval without an answer has passed. True if it was the last.
    fn is_missed(&mut self, vitals: &Vitals) -> bool {
        let probe = &mut self.probe;
        if probe.with_probe.is_none() && vitals.is_transmit_idle {
            probe.with_probe = Some(vitals.confirmed + vitals.unconfirmed);
        }
        let taken = vitals.confirmed > probe.confirmed;
        probe.confirmed = vitals.confirmed;
        if taken && probe.with_probe.is_none_or(|all| vitals.confirmed < all) {
            // What lies ahead of the probe is being taken, so the probe is on its way.
            probe.missed = 0;
            return false;
        }
        probe.missed += 1;
        probe.missed >= self.config.rounds
    }

    fn on_dead(&mut self, elapsed: Duration, vitals: &Vitals) -> Action {
        let missed = match self.state {
            LivenessState::Probing => self.probe.missed,
            _ => 0,
        };
        self.go(LivenessState::Dead);
        Action::Dead(vitals.silent.unwrap_or(elapsed * (missed + 1)))
    }

    fn on_heard(&mut self) {
        self.is_alive();
        self.unanswered = 0;
        self.shared = 0;
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
        (self.last, self.next) = (None, None);
        let was_fast = std::mem::take(&mut self.fast_probing);
        Heartbeat {
            action: Action::None,
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
        vitals: &Vitals,
    ) -> Instant {
        let awaits_answer = self.state == LivenessState::Probing || self.unanswered > 0;
        let is_idle = watched == Some(ProbeInterval::Idle) && vitals.is_reading && !awaits_answer;
        if !is_idle {
            self.interval = ProbeInterval::Active;
            let every = self.active_interval(vitals);
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
    fn active_interval(&self, vitals: &Vitals) -> Duration {
        let ours = self.config;
        if vitals.is_reading {
            return ours.interval;
        }
        let theirs = match vitals.peer_probes_after_ms {
            Some(0) => INTERVAL_MAX,
            Some(ms) => Duration::from_millis(ms.into()).max(INTERVAL_MIN),
            None => PEER_INTERVAL_DEFAULT,
        };
        if ours.is_off() {
            theirs
        } else {
            theirs.min(ours.interval)
        }
    }

    /// Moves along a legal edge.
    fn go(&mut self, to: LivenessState) {
        debug_assert!(
            LivenessState::EDGES.contains(&(self.state, to)),
            "no edge from {:?} to {to:?}",
            self.state
        );
        self.state = to;
    }
}

/// Until the first heartbeat of an idle connection: what becomes idle together is spread evenly
/// over half of the interval, and so it stays. The two sides of a connection differ, so that one of
/// them probes first, and the other has heard it.
fn first_idle_heartbeat_after(every: Duration, spread: f64) -> Duration {
    every / 2 + (every / 2).mul_f64(spread)
}

#[cfg(test)]
mod tests;
