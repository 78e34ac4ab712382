//! What an application says of how long a peer may be silent, and what follows from it.

use std::time::Duration;

use super::machine::ProbeInterval;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::KeepAlive;

/// Shortest interval: the system counts its silence in steps of up to ten milliseconds.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(50);
pub(super) const INTERVAL_MAX: Duration = Duration::from_secs(3600);
const ROUNDS_MAX: u32 = 100;
const IDLE_MAX: Duration = Duration::from_secs(32_767);
/// Idle intervals of at least so many intervals are shared among connections to the same domain.
const SHARED_MIN: u32 = 8;

/// When a silent peer counts as dead; see
/// [`EndpointBuilder::liveness`](crate::ep::EndpointBuilder::liveness).
///
/// While anything awaits the peer (bytes to be taken or that stop in the middle of a frame, credit,
/// an acknowledgement, an answer), the connection is looked at once per
/// [`interval`](Self::interval). Silent for one, the peer is asked for a sign of life; silent for
/// [`rounds`](Self::rounds) more, it is dead: [`found_within`](Self::found_within) says how long
/// that takes. The default finds it within 4.5 s.
///
/// A posted receive awaits nothing in particular: a server may have thousands of them posted for
/// hours. A connection with receives alone is looked at once per
/// [`idle_interval`](Self::idle_interval), and only after a question is it watched as above. Who
/// must know soon that a message will not come sets that as low as `interval`, or gives the
/// receive a time limit.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric::ep::Liveness;
///
/// let patient = Liveness::default().interval(Duration::from_secs(5)).rounds(6);
/// assert_eq!(patient.found_within(), Some(Duration::from_secs(40)));
/// assert_eq!(Liveness::OFF.found_within(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Liveness {
    pub(super) interval: Duration,
    /// 0 in `OFF` only.
    pub(super) rounds: u32,
    pub(super) idle_interval: Duration,
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

    /// From one look at a connection where something awaits the peer to the next, 50 ms to an hour.
    /// Default 750 ms; what follows a question is looked for as often. Toward peers that know
    /// nothing of the extension the system asks, in whole seconds.
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

    /// From one look to the next at a connection where nothing awaits the peer, but receives are
    /// posted, 50 ms to 32,767 s; less than [`interval`](Self::interval) counts as that. Default
    /// 60 s. Silent for one, the peer is asked, then looked for at `interval`: one that is gone,
    /// stopped or hung is dead within two of these and `rounds` intervals.
    ///
    /// After so much silence, in whole seconds, the system looks for the peer too (keepalive):
    /// toward peers that know nothing of the extension, and where nothing at all is outstanding.
    ///
    /// Connections to the same domain of a peer share the question and its answer, if the time is
    /// eight intervals or more: 30 to 55 us of processor time of both sides together were measured
    /// for one, by backend and machine. That such a connection itself is still there, its system
    /// asks; after 32 idle intervals in a row it asks for itself.
    pub fn idle_interval(mut self, idle_interval: Duration) -> Self {
        self.idle_interval = idle_interval;
        self
    }

    /// A peer that dies without a word while anything awaits it is found dead within this time.
    /// `None`: [`Liveness::OFF`].
    pub fn found_within(&self) -> Option<Duration> {
        // One interval in which it was still heard, one of silence, then the rounds.
        (!self.is_off()).then(|| self.interval * (self.rounds + 2))
    }

    pub(super) fn is_off(&self) -> bool {
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
        } else if !(INTERVAL_MIN..=IDLE_MAX).contains(&self.idle_interval) {
            let idle = self.idle_interval;
            format!("idle_interval is {idle:?}, it may be 50 ms to {IDLE_MAX:?}")
        } else {
            return Ok(());
        };
        let message = format!("liveness: {wrong}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// How long a sign of life on one connection counts for the others to the same domain. What is
    /// promised leaves room for half of the idle interval; where that is short, nothing is shared.
    pub(super) fn shared(&self) -> Option<Duration> {
        (self.idle_interval >= self.interval * SHARED_MIN).then_some(self.idle_interval / 2)
    }

    /// From one heartbeat to the next.
    pub(super) fn step(&self, interval: ProbeInterval) -> Duration {
        match interval {
            ProbeInterval::Idle => self.idle_interval.max(self.interval),
            ProbeInterval::Active => self.interval,
        }
    }

    /// What the peer is told.
    pub(in crate::progress) fn asks_after_ms(&self) -> u32 {
        u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX)
    }

    /// The silence of a peer's system that is none of a living one.
    pub(super) fn silence_max(&self) -> Duration {
        self.interval * self.rounds
    }

    /// How the system asks on a connection with nothing outstanding.
    pub(super) fn when_idle(&self) -> KeepAlive {
        KeepAlive {
            idle: self.idle_interval,
            interval: self.interval,
            count: self.rounds,
        }
    }

    /// How the system asks a plain peer while something is outstanding: so that it is found dead in
    /// time, in the kernel's whole seconds.
    pub(super) fn when_watched(&self) -> KeepAlive {
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
