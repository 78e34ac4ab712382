//! Signs of life: which connections are looked at, when, and what silence means (ruling 13).
//!
//! A port is on the driver's list of visits while operations of it are outstanding, or while it
//! does not read and so owes its peer a sign of life; posting puts it there, a visit takes it off.
//! The hot path costs a flag per received batch. Idle connections are not on the list: their
//! systems ask each other (keepalive), which costs this process nothing.
//!
//! ```text
//!          heard                bytes ahead of the question are being taken
//!        +------+                +-------+
//!        v      |                v       |
//!   Quiet -- silent: PING --> Asked(0) -- silent --> Asked(k+1) -- k = rounds --> dead
//!     ^                          |                       |
//!     +--------- heard ----------+-----------------------+
//! ```
//!
//! A visit says nothing if it comes late or while this side does not read. What has come is taken
//! in before each visit, and the system is asked what it has that nobody took.
//!
//! Toward a plain peer there is nobody to ask but its system: keepalive asks while nothing of ours
//! is under way, and bytes or probes of ours that its system leaves unanswered tell the rest. A
//! program that is stopped, or does not read, has a system that answers.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::proto::Lifecycle;
use crate::transport::{KeepAlive, Vitals};

use super::port::{Closing, Port, PortState};

/// Shortest interval: the system counts its silence in steps of up to ten milliseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
const ROUNDS_MAX: u32 = 100;
const IDLE_MIN: Duration = Duration::from_secs(1);
const IDLE_MAX: Duration = Duration::from_secs(32_767);
/// What the system's clocks may be off by.
const SLACK: Duration = Duration::from_millis(10);
/// The interval of a peer that does not tell its own.
const PEER_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// When a silent peer counts as dead; see
/// [`EndpointBuilder::liveness`](crate::EndpointBuilder::liveness).
///
/// While an operation is outstanding, the connection is looked at once per
/// [`interval`](Self::interval). Silent for one, the peer is asked for a sign of life; silent for
/// [`rounds`](Self::rounds) more, it is dead: [`found_within`](Self::found_within) says how long
/// that takes. The default finds it within 4.5 s.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric::Liveness;
///
/// let patient = Liveness::default().interval(Duration::from_secs(5)).rounds(6);
/// assert_eq!(patient.found_within(), Some(Duration::from_secs(40)));
/// assert_eq!(Liveness::OFF.found_within(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Liveness {
    interval: Duration,
    /// 0 in `OFF` only.
    rounds: u32,
    idle_interval: Duration,
}

impl Default for Liveness {
    /// Every 750 ms, four rounds; idle connections after 60 s.
    fn default() -> Self {
        Liveness {
            interval: Duration::from_millis(750),
            rounds: 4,
            idle_interval: Duration::from_secs(60),
        }
    }
}

impl Liveness {
    /// Silence means nothing, for ever. What the peer asks is answered all the same.
    pub const OFF: Liveness = Liveness {
        interval: Duration::ZERO,
        rounds: 0,
        idle_interval: Duration::ZERO,
    };

    /// From one look at a connection with outstanding operations to the next, 50 ms to an hour.
    /// Default 750 ms. Toward peers that know nothing of the extension the system asks, in whole
    /// seconds.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Silent intervals after the question that make a peer dead, 1 to 100. Default 4. Few of them
    /// kill peers that are only busy: a peer whose runtime is blocked for all of them is dead.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// The silence after which the system looks for the peer of a connection with nothing
    /// outstanding (keepalive), 1 s to 32,767 s in whole seconds. Default 60 s.
    pub fn idle_interval(mut self, idle_interval: Duration) -> Self {
        self.idle_interval = idle_interval;
        self
    }

    /// A peer that dies without a word while an operation is outstanding is found dead within this
    /// time. `None`: [`Liveness::OFF`].
    pub fn found_within(&self) -> Option<Duration> {
        // One interval in which it was still heard, one of silence, then the rounds.
        (!self.is_off()).then(|| self.interval * (self.rounds + 2))
    }

    fn is_off(&self) -> bool {
        self.rounds == 0
    }

    pub(crate) fn check(&self) -> Result<()> {
        if *self == Liveness::OFF {
            return Ok(());
        }
        let wrong = if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&self.interval) {
            format!("interval is {:?}, it may be 50 ms to 1 h", self.interval)
        } else if !(1..=ROUNDS_MAX).contains(&self.rounds) {
            format!("rounds is {}, it may be 1 to {ROUNDS_MAX}", self.rounds)
        } else if !(IDLE_MIN..=IDLE_MAX).contains(&self.idle_interval) {
            let idle = self.idle_interval;
            format!("idle_interval is {idle:?}, it may be 1 s to {IDLE_MAX:?}")
        } else {
            return Ok(());
        };
        let message = format!("liveness: {wrong}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// What the peer is told.
    pub(super) fn asks_after_ms(&self) -> u32 {
        u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX)
    }

    /// The silence of a peer's system that is none of a living one.
    fn silence_max(&self) -> Duration {
        self.interval * self.rounds
    }

    /// How the system asks on a connection with nothing outstanding.
    fn when_idle(&self) -> KeepAlive {
        KeepAlive {
            idle: self.idle_interval,
            interval: self.interval,
            count: self.rounds,
        }
    }

    /// How the system asks a plain peer while something is outstanding: so that it is found dead in
    /// time, in the kernel's whole seconds.
    fn when_watched(&self) -> KeepAlive {
        let second = Duration::from_secs(1);
        let step = self.interval.max(second);
        let rounds = self.silence_max().as_secs() / step.as_secs();
        KeepAlive {
            idle: step,
            interval: step,
            count: u32::try_from(rounds).unwrap_or(u32::MAX).max(1),
        }
    }
}

/// What a port knows of its peer's life.
#[derive(Debug)]
pub(super) struct Life {
    config: Liveness,
    /// On the driver's list of visits, or about to be.
    listed: bool,
    /// Something has come since the last visit.
    pub(super) heard: bool,
    /// Bytes handed to the transport's system so far.
    pub(super) sent: u64,
    last_visit: Option<Instant>,
    next_visit: Option<Instant>,
    asked: Option<Asked>,
    /// Silent visits since it was asked.
    missed: u32,
    /// Visits that found the peer's system silent for too long.
    unanswered: u32,
    questions: u64,
    /// The system was told to ask as often as for outstanding operations.
    hurried: bool,
    /// Found dead: the connection is reset, since nobody will take what was not sent.
    pub(super) dead: bool,
}

/// A question that awaits its answer.
#[derive(Debug)]
struct Asked {
    /// Bytes that the peer's system had confirmed at the last visit.
    confirmed: u64,
    /// How many it will have when it has the question; not known while that waits for room.
    with_question: Option<u64>,
}

impl Life {
    pub(super) fn new(config: Liveness) -> Self {
        Life {
            config,
            listed: false,
            heard: false,
            sent: 0,
            last_visit: None,
            next_visit: None,
            asked: None,
            missed: 0,
            unanswered: 0,
            questions: 0,
            hurried: false,
            dead: false,
        }
    }

    fn is_alive(&mut self) {
        self.asked = None;
        self.missed = 0;
    }

    fn leave(&mut self) {
        self.is_alive();
        self.listed = false;
        self.heard = false;
        self.unanswered = 0;
        self.last_visit = None;
        self.next_visit = None;
    }

    /// A silent visit, after which `vitals` are what the system knows. True if the peer is dead.
    fn judge_silence(&mut self, is_question_out: bool, vitals: Option<Vitals>) -> bool {
        let confirmed = vitals.map_or(self.sent, |vitals| vitals.confirmed);
        let under_way = vitals.map_or(0, |vitals| vitals.unconfirmed);
        let Some(asked) = &mut self.asked else {
            return false;
        };
        if asked.with_question.is_none() && is_question_out {
            asked.with_question = Some(confirmed + under_way);
        }
        let taken = confirmed > asked.confirmed;
        asked.confirmed = confirmed;
        if taken && asked.with_question.is_none_or(|all| confirmed < all) {
            // What lies ahead of the question is being taken, so the question is on its way.
            self.missed = 0;
            return false;
        }
        self.missed += 1;
        self.missed >= self.config.rounds
    }
}

impl Port {
    /// The connection is up.
    pub(super) fn begin_life(&self, state: &mut PortState) {
        if state.life.config.is_off() {
            return;
        }
        let idle = state.life.config.when_idle();
        if let Some(link) = &mut state.link {
            link.keep_alive(idle);
        }
        if state.machine.outstanding() > 0 {
            self.watch_life(state);
        }
    }

    /// An operation is outstanding: from now on the peer must show signs of life.
    pub(super) fn watch_life(&self, state: &mut PortState) {
        let life = &mut state.life;
        if !life.listed
            && !life.config.is_off()
            && state.machine.lifecycle() == Lifecycle::Connected
        {
            life.listed = true;
            self.enlist();
        }
    }

    /// Reading has stopped: the peer's questions are not seen, so it is told unasked.
    pub(super) fn owe_signs(&self, state: &mut PortState) {
        if !state.life.listed && state.machine.gives_signs() {
            state.life.listed = true;
            self.enlist();
        }
    }

    /// True if what has come is to be taken in before the visit that is due.
    pub(super) fn must_listen(&self) -> bool {
        let life = &self.lock("listen").life;
        life.last_visit.is_some() && !life.heard
    }

    /// Looks at the connection; gives the time of the next visit, if there is to be one.
    pub(super) fn visit(&self, now: Instant) -> Option<Instant> {
        let mut guard = self.lock("visit");
        let state = &mut *guard;
        let next = self.look(state, now);
        match next {
            Some(_) => state.life.next_visit = next,
            None => {
                if std::mem::take(&mut state.life.hurried)
                    && let Some(link) = &mut state.link
                {
                    link.keep_alive(state.life.config.when_idle());
                }
                state.life.leave();
            }
        }
        self.settle(state);
        next
    }

    fn look(&self, state: &mut PortState, now: Instant) -> Option<Instant> {
        let gives_signs = state.machine.gives_signs();
        let is_reading = state.receive_armed;
        let config = state.life.config;
        let is_watched = !config.is_off() && state.machine.outstanding() > 0;
        let is_up = state.machine.lifecycle() == Lifecycle::Connected
            && state.machine.fault().is_none()
            && state.closing == Closing::No
            // Whoever has ended its stream may have left: a byte now would reset the connection
            // under what it sent before.
            && !state.peer_finished;
        if !is_up || !is_watched && (is_reading || !gives_signs) {
            return None;
        }
        let heard = std::mem::take(&mut state.life.heard);
        let last_visit = state.life.last_visit.replace(now);
        let wanted = state.life.next_visit.take();
        if is_watched && !gives_signs && !std::mem::replace(&mut state.life.hurried, true) {
            let link = state.link.as_mut()?;
            link.keep_alive(config.when_watched());
        }
        if !is_reading && gives_signs {
            state.machine.give_sign();
            self.transmit(state);
        }
        let next = now + next_interval(state, is_reading);
        let (Some(last_visit), Some(wanted)) = (last_visit, wanted) else {
            return Some(next);
        };
        if heard {
            state.life.is_alive();
            state.life.unanswered = 0;
            return Some(next);
        }
        let vitals = state.link.as_ref()?.vitals();
        let unanswered = vitals.map_or(Duration::ZERO, |vitals| vitals.unanswered);
        if is_watched && unanswered >= config.silence_max() {
            state.life.unanswered += 1;
        } else {
            state.life.unanswered = 0;
        }
        let elapsed = now.saturating_duration_since(last_visit);
        let has_come = vitals.is_some_and(|vitals| vitals.silent < elapsed + SLACK);
        let is_late = now.saturating_duration_since(wanted) > config.interval / 2;
        let mut is_dead = state.life.unanswered > 1;
        if !is_reading || !gives_signs || !is_watched || has_come {
            state.life.is_alive();
        } else if state.life.asked.is_none() {
            self.ask(state, vitals);
        } else if !is_late {
            let is_question_out = state.machine.is_transmit_idle();
            is_dead |= state.life.judge_silence(is_question_out, vitals);
        }
        if is_dead {
            let silent = vitals.map_or(elapsed * (state.life.missed + 1), |vitals| vitals.silent);
            self.found_dead(state, silent);
            return None;
        }
        Some(next)
    }

    fn ask(&self, state: &mut PortState, vitals: Option<Vitals>) {
        state.life.questions += 1;
        state.machine.ask_for_sign(state.life.questions);
        state.life.asked = Some(Asked {
            confirmed: vitals.map_or(state.life.sent, |vitals| vitals.confirmed),
            with_question: None,
        });
        self.transmit(state);
    }

    fn found_dead(&self, state: &mut PortState, silent: Duration) {
        let what = format!("no sign of life for {:.1} s", silent.as_secs_f32());
        state.life.dead = true;
        self.fail(state, Error::new(ErrorKind::TimedOut, what));
    }
}

/// Until the next visit: our own interval, or, of a side that does not read, the peer's if that is
/// shorter.
fn next_interval(state: &PortState, is_reading: bool) -> Duration {
    let ours = state.life.config;
    if is_reading {
        return ours.interval;
    }
    let theirs = match state.machine.peer_asks_after_ms() {
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
