//! How long a peer may be silent before it is declared dead, and the intervals that follow from
//! that.

use std::time::Duration;

use super::machine::ProbeInterval;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    LIVENESS_IDLE_INTERVAL_DEFAULT, LIVENESS_IDLE_INTERVAL_MAX, LIVENESS_INTERVAL_DEFAULT,
    LIVENESS_INTERVAL_MAX, LIVENESS_INTERVAL_MIN, LIVENESS_ROUNDS_DEFAULT, LIVENESS_ROUNDS_MAX,
    LIVENESS_SHARED_RATIO_MIN,
};
use crate::transport::KeepAliveConfig;

/// The settings that determine when a silent peer is declared dead; see
/// [`EndpointBuilder::liveness`](crate::ep::EndpointBuilder::liveness).
///
/// While anything on a connection waits for the peer (unsent bytes, an incomplete frame, credit, an
/// acknowledgement, a response), the connection is checked once per [`interval`](Self::interval). A
/// peer that was silent for one interval is sent a probe; if it stays silent for
/// [`rounds`](Self::rounds) more, it is declared dead, and the operations fail.
/// [`found_within`](Self::found_within) is the time this takes at most: 4.5 s by default.
///
/// Posted receives alone do not count as waiting: a server may keep thousands of them posted for
/// hours. A connection with only receives, or with shared ones (of a receive context, or of a
/// connectionless endpoint), is checked once per [`idle_interval`](Self::idle_interval), and is
/// watched as above only after a probe. An application that must know early that no message will
/// come sets `idle_interval` to the same value as `interval`, or gives the receive a time limit.
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
    /// 0 only in `OFF`.
    pub(super) rounds: u32,
    pub(super) idle_interval: Duration,
}

impl Default for Liveness {
    /// Checks every 750 ms, four rounds; every 60 s where only receives are posted.
    fn default() -> Self {
        Liveness {
            interval: LIVENESS_INTERVAL_DEFAULT,
            rounds: LIVENESS_ROUNDS_DEFAULT,
            idle_interval: LIVENESS_IDLE_INTERVAL_DEFAULT,
        }
    }
}

impl Liveness {
    /// A silent peer is never declared dead. The peer's own probes are still answered.
    pub const OFF: Liveness = Liveness {
        interval: Duration::ZERO,
        rounds: 0,
        idle_interval: Duration::ZERO,
    };

    /// The time between two checks of a connection that waits for the peer, 50 ms to 1 h. Default:
    /// 750 ms. Peers without the extension are probed by the kernel's keepalive, which counts in
    /// whole seconds.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Silent intervals after a probe until the peer is declared dead, 1 to 100. Default: 4. With
    /// few rounds, a peer that is merely busy may be declared dead: one whose runtime is blocked
    /// for all the rounds.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// The time between two checks of a connection on which only receives are posted, 50 ms to
    /// 32,767 s; a value below [`interval`](Self::interval) counts as `interval`. Default: 60 s. A
    /// peer that was silent for one idle interval is sent a probe, and is then checked once per
    /// `interval`. So a peer that is gone, stopped or hung is declared dead within two idle
    /// intervals and `rounds` intervals.
    ///
    /// In addition the kernel's keepalive probes the peer's system after the same time, in whole
    /// seconds: for peers without the extension, and for connections on which nothing is
    /// outstanding.
    ///
    /// Connections to the same domain of a peer share one probe and its answer if the idle interval
    /// is at least eight times the interval: a probe takes 30 to 55 µs of processor time, both
    /// sides together. The kernel's keepalive checks whether such a connection still exists; after
    /// 64 consecutive idle intervals the connection sends a probe of its own.
    pub fn idle_interval(mut self, idle_interval: Duration) -> Self {
        self.idle_interval = idle_interval;
        self
    }

    /// The time within which a peer that dies silently is declared dead, if anything waits for it;
    /// at most [`Duration::MAX`]. `None` with [`Liveness::OFF`].
    pub fn found_within(&self) -> Option<Duration> {
        // One interval in which the peer was still heard, one of silence, then the rounds.
        let intervals = self.rounds.saturating_add(2);
        (!self.is_off()).then(|| self.interval.saturating_mul(intervals))
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

    /// Returns how long bytes on one connection count as received on the others to the same domain:
    /// half of the idle interval, so that the promised times still hold. `None`: the idle interval
    /// is too short, and nothing is shared.
    pub(super) fn shared(&self) -> Option<Duration> {
        (self.idle_interval >= self.interval * LIVENESS_SHARED_RATIO_MIN)
            .then_some(self.idle_interval / 2)
    }

    /// Returns the time from one heartbeat to the next.
    pub(super) fn step(&self, interval: ProbeInterval) -> Duration {
        match interval {
            ProbeInterval::Idle => self.idle_interval.max(self.interval),
            ProbeInterval::Active => self.interval,
        }
    }

    /// Returns the interval that the HELLO announces to the peer.
    pub(in crate::progress) fn probes_after_ms(&self) -> u32 {
        u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX)
    }

    /// Returns the silence after which a peer's system counts as dead.
    pub(super) fn silence_max(&self) -> Duration {
        self.interval * self.rounds
    }

    /// Returns how the system probes on a connection with nothing outstanding.
    pub(super) fn when_idle(&self) -> KeepAliveConfig {
        KeepAliveConfig {
            idle: self.idle_interval,
            interval: self.interval,
            count: self.rounds,
        }
    }

    /// Returns how the system probes a plain peer while something is outstanding: it finds the peer
    /// dead in time, up to the kernel's whole seconds.
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
