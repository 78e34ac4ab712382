//! What an application says of how long a peer may be silent, and what follows from it.

use std::time::Duration;

use super::machine::ProbeInterval;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    LIVENESS_IDLE_INTERVAL_DEFAULT, LIVENESS_IDLE_INTERVAL_MAX, LIVENESS_INTERVAL_DEFAULT,
    LIVENESS_INTERVAL_MAX, LIVENESS_INTERVAL_MIN, LIVENESS_ROUNDS_DEFAULT, LIVENESS_ROUNDS_MAX,
    LIVENESS_SHARED_RATIO_MIN,
};
use crate::transport::KeepAliveConfig;

/// When a silent peer counts as dead; see
/// [`EndpointBuilder::liveness`](crate::ep::EndpointBuilder::liveness).
///
/// While anything awaits the peer (bytes to be taken or that stop in the middle of a frame, credit,
/// an acknowledgement, an answer), the connection has a heartbeat once per
/// [`interval`](Self::interval). A peer that was silent for one is probed; silent for
/// [`rounds`](Self::rounds) more, it is dead: [`found_within`](Self::found_within) says how long
/// that takes. The default finds it within 4.5 s.
///
/// A posted receive awaits nothing in particular: a server may have thousands of them posted for
/// hours. A connection with receives alone has a heartbeat once per
/// [`idle_interval`](Self::idle_interval), and only after a probe is it watched as above. An
/// application that must know soon that a message will not come sets that as low as `interval`, or
/// gives the receive a time limit.
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
            interval: LIVENESS_INTERVAL_DEFAULT,
            rounds: LIVENESS_ROUNDS_DEFAULT,
            idle_interval: LIVENESS_IDLE_INTERVAL_DEFAULT,
        }
    }
}

impl Liveness {
    /// Silence never means anything. The peer's probes are answered all the same.
    pub const OFF: Liveness = Liveness {
        interval: Duration::ZERO,
        rounds: 0,
        idle_interval: Duration::ZERO,
    };

    /// From one heartbeat of a connection where something awaits the peer to the next, 50 ms to an
    /// hour. Default 750 ms; the answer to a probe is looked for as often. Peers that know nothing
    /// of the extension are probed by the system (keepalive), in whole seconds.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Silent intervals after the probe that make a peer dead, 1 to 100. Default 4. Few of them
    /// kill peers that are only busy: a peer whose runtime is blocked for all of them is dead.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// From one heartbeat to the next of a connection where nothing awaits the peer, but receives
    /// are posted, 50 ms to 32,767 s; less than [`interval`](Self::interval) counts as that.
    /// Default 60 s. A peer that was silent for one is probed, and the answer looked for once per
    /// `interval`: one that is gone, stopped or hung is dead within two of these and `rounds`
    /// intervals.
    ///
    /// After so much silence, in whole seconds, the system probes the peer's too (keepalive): of
    /// peers that know nothing of the extension, and where nothing at all is outstanding.
    ///
    /// Connections to the same domain of a peer share one probe and its answer, if the time is
    /// eight intervals or more: 30 to 55 us of processor time of both sides together were measured
    /// for one, by backend and machine. Whether such a connection itself is still there, its system
    /// probes; after 64 idle intervals in a row the connection probes for itself.
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
        let wrong = if !(LIVENESS_INTERVAL_MIN..=LIVENESS_INTERVAL_MAX).contains(&self.interval) {
            format!("interval is {:?}, it may be 50 ms to 1 h", self.interval)
        } else if !(1..=LIVENESS_ROUNDS_MAX).contains(&self.rounds) {
            format!(
                "rounds is {}, it may be 1 to {LIVENESS_ROUNDS_MAX}",
                self.rounds
            )
        } else if !(LIVENESS_INTERVAL_MIN..=LIVENESS_IDLE_INTERVAL_MAX)
            .contains(&self.idle_interval)
        {
            let idle = self.idle_interval;
            format!("idle_interval is {idle:?}, it may be 50 ms to {LIVENESS_IDLE_INTERVAL_MAX:?}")
        } else {
            return Ok(());
        };
        let message = format!("liveness: {wrong}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// How long bytes on one connection count as received on the others to the same domain: half of
    /// the idle interval, which keeps what is promised; where that is short, nothing is shared.
    pub(super) fn shared(&self) -> Option<Duration> {
        (self.idle_interval >= self.interval * LIVENESS_SHARED_RATIO_MIN)
            .then_some(self.idle_interval / 2)
    }

    /// From one heartbeat to the next.
    pub(super) fn step(&self, interval: ProbeInterval) -> Duration {
        match interval {
            ProbeInterval::Idle => self.idle_interval.max(self.interval),
            ProbeInterval::Active => self.interval,
        }
    }

    /// What the peer gets to know, in the HELLO.
    pub(in crate::progress) fn probes_after_ms(&self) -> u32 {
        u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX)
    }

    /// The silence of a peer's system that is none of a living one.
    pub(super) fn silence_max(&self) -> Duration {
        self.interval * self.rounds
    }

    /// How the system probes on a connection with nothing outstanding.
    pub(super) fn when_idle(&self) -> KeepAliveConfig {
        KeepAliveConfig {
            idle: self.idle_interval,
            interval: self.interval,
            count: self.rounds,
        }
    }

    /// How the system probes a plain peer while something is outstanding: so that it is found dead
    /// in time, in the kernel's whole seconds.
    pub(super) fn when_watched(&self) -> KeepAliveConfig {
        let second = Duration::from_secs(1);
        let step = self.interval.max(second);
        let rounds = self.silence_max().as_secs() / step.as_secs();
        KeepAliveConfig {
            idle: step,
            interval: step,
            count: u32::try_from(rounds).unwrap_or(u32::MAX).max(1),
        }
    }
}
