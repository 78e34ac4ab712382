//! Liveness: which connections have heartbeats, when, and what silence means (ruling 13).
//!
//! [`machine`] decides, without I/O or clock; this file carries out its actions. A port has
//! heartbeats while it has operations outstanding, and always if it shares its receives. A port
//! that does not read has heartbeats too, and sends answers (PONG) unasked. Posting registers the
//! port with the driver's timer; a heartbeat that finds nothing to watch suspends the port's
//! heartbeats. The message path only sets a flag per received batch. Other connections with nothing
//! outstanding have no heartbeats: the peers' systems probe each other (keepalive), which costs
//! this process nothing.
//!
//! The interval is short while an operation awaits the peer, and long ([`ProbeInterval::Idle`])
//! while at most receives are posted, the normal state of a server. For idle connections to the
//! same domain of a peer, bytes received on one count for all (`peers.rs`), so that one of them
//! probes for all.
//!
//! Heartbeats of idle ports are spread over their interval, and share their times (`timer.rs`). An
//! idle port gives back the memory that its queues keep.

mod config;
mod machine;
mod peers;
mod timer;

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::log::hold_event;
use crate::proto::Lifecycle;

use super::port::{Port, PortState};

pub use config::Liveness;
use machine::{DeathReason, Heartbeat, LivenessAction, LivenessInputs, ProbeInterval};
pub(super) use machine::{LivenessMachine, spread};
pub(super) use peers::PeerLiveness;
use peers::{PeerDomain, PeerStatus};
pub(super) use timer::HeartbeatTimer;

/// The liveness of a port's peer, and the inputs of its machine.
#[derive(Debug)]
pub(super) struct PortLiveness {
    pub(super) machine: LivenessMachine,
    /// Number of bytes handed to the transport's system so far.
    pub(super) sent: u64,
    /// Number of probes sent so far: the token of the last one.
    pub(super) probes: u64,
    /// True if this system probes the peer's (keepalive) when the connection has long been silent.
    pub(super) kept_alive: bool,
}

impl PortLiveness {
    pub(super) fn new(config: Liveness, spread: f64) -> Self {
        PortLiveness {
            machine: LivenessMachine::new(config, spread),
            sent: 0,
            probes: 0,
            kept_alive: false,
        }
    }
}

/// When a port's next heartbeat is due, as the last one decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHeartbeat {
    /// The same heartbeat is repeated after a turn of its port.
    AfterTurn,
    /// At this time; `None`: when it is registered again.
    At(Option<Instant>),
}

impl Port {
    /// Begins liveness: the connection is up.
    pub(super) fn begin_liveness(&self, state: &mut PortState) {
        let config = state.liveness.machine.config();
        if config.is_off() {
            return;
        }
        if let Some(link) = &mut state.io.link {
            state.liveness.kept_alive = link.set_keep_alive(config.when_idle());
        }
        self.watch_peer(state);
    }

    /// Registers heartbeats for the outstanding operations, after a post or the beginning of a
    /// frame.
    pub(super) fn watch_peer(&self, state: &mut PortState) {
        // The common case first: nothing changes. What is enough for an active peer is enough for
        // any.
        let machine = &state.liveness.machine;
        if machine.is_watched_enough(ProbeInterval::Active) {
            return;
        }
        let most = match state.machine.awaits_peer() {
            true => ProbeInterval::Active,
            false => ProbeInterval::Idle,
        };
        if !state.liveness.machine.is_watched_enough(most)
            && is_up(state)
            && let Some(interval) = outstanding(state)
        {
            self.register_heartbeat(state, interval);
        }
    }

    /// Registers heartbeats that answer the peer's probes unasked: reading has stopped, so the
    /// probes are not seen.
    pub(super) fn register_unasked_answers(&self, state: &mut PortState) {
        if state.machine.answers_probes() {
            self.register_heartbeat(state, ProbeInterval::Active);
        }
    }

    /// Probes the peer now, whatever is outstanding: the peer may have given up this connection.
    pub(in crate::progress) fn doubt_peer(&self) {
        let mut state = self.lock("doubt the peer");
        if is_up(&state) && state.liveness.machine.doubt() {
            tracing::debug!("the peer asks for another connection: does it still have this one?");
            self.engine.register_heartbeat(self.key());
        }
    }

    fn register_heartbeat(&self, state: &mut PortState, interval: ProbeInterval) {
        if state.liveness.machine.watch(interval) {
            self.engine.register_heartbeat(self.key());
        }
    }

    /// Returns the time for which the next heartbeat is registered.
    pub(super) fn next_heartbeat(&self) -> Option<Instant> {
        self.lock("next heartbeat").liveness.machine.next()
    }

    /// Handles a heartbeat, which is due or the first of an interval. If the heartbeat would judge
    /// the peer's silence, it asks for a turn first, unless the port `had_turn`: the link may have
    /// unread bytes.
    pub(super) fn heartbeat(
        &self,
        now: Instant,
        timer: HeartbeatTimer,
        peers: &mut PeerLiveness,
        had_turn: bool,
    ) -> NextHeartbeat {
        let _entered = self.span.enter();
        let mut guard = self.lock("heartbeat");
        let state = &mut *guard;
        // 1. The usual heartbeat of an idle connection needs only this step and the next: something
        // was received on it, or on another connection to the same domain.
        let domain = self.domain_status(state, now, peers);
        if !had_turn && state.liveness.machine.will_judge(domain) {
            return NextHeartbeat::AfterTurn;
        }
        // 2. The machine decides.
        let inputs = liveness_inputs(state, domain);
        let Heartbeat {
            action,
            next,
            keep_alive,
            heard_since,
        } = state.liveness.machine.on_tick(now, timer, &inputs);
        // 3. Share what this connection received with other connections to the domain.
        if let (Some(since), Some((domain, fresh))) = (heard_since, self.peer_domain(state)) {
            peers.heard(domain, since, fresh);
        }
        if let (Some(keep_alive), Some(link)) = (keep_alive, &mut state.io.link) {
            link.set_keep_alive(keep_alive);
        }
        // 4. Carry out the machine's action.
        match action {
            LivenessAction::None => {}
            LivenessAction::Probe => {
                state.liveness.probes += 1;
                hold_event(|| tracing::debug!("the peer is asked whether it is alive"));
                state.machine.queue_probe(state.liveness.probes);
                self.transmit_now(state);
                if let Some((domain, _)) = self.peer_domain(state) {
                    peers.probed(&domain, now);
                }
            }
            LivenessAction::Answer => {
                state.machine.queue_unasked_answer();
                self.transmit_now(state);
            }
            LivenessAction::Dead(reason) => {
                self.fail(state, Error::new(ErrorKind::TimedOut, reason.to_string()));
            }
        }
        self.publish_and_wake(state);
        // 5. Free the memory that the queues of an idle connection keep.
        if !state.liveness.machine.is_active() {
            shrink(state);
        }
        NextHeartbeat::At(next)
    }

    /// Returns the peer's domain, and the time for which received bytes count for all connections
    /// to that domain. `None`: this connection shares nothing.
    fn peer_domain(&self, state: &PortState) -> Option<(PeerDomain, Duration)> {
        let fresh = state.liveness.machine.config().shared()?;
        let domain = PeerDomain {
            host: state.io.peer?.ip(),
            incarnation: state.machine.peer_hello()?.incarnation,
            auth_key: self.auth_key().cloned(),
        };
        Some((domain, fresh))
    }

    /// Returns what other connections know of this connection's peer. Unknown unless this
    /// connection is idle and has keepalive, which alone shows that it still exists.
    fn domain_status(&self, state: &PortState, now: Instant, peers: &PeerLiveness) -> PeerStatus {
        let is_idle =
            state.io.submitted().receive && outstanding(state) == Some(ProbeInterval::Idle);
        let domain = self.peer_domain(state);
        match domain.filter(|_| is_idle && state.liveness.kept_alive) {
            Some((domain, fresh)) => {
                let answer_within = 2 * state.liveness.machine.config().interval;
                peers.status(&domain, now, fresh, answer_within)
            }
            None => PeerStatus::Unknown,
        }
    }
}

/// Collects the inputs of the machine.
fn liveness_inputs(state: &PortState, domain: PeerStatus) -> LivenessInputs {
    // The system is asked only if its answer counts: asking is a system call.
    let will_judge = state.liveness.machine.will_judge(domain);
    let link = state.io.link.as_ref().filter(|_| will_judge);
    let system = link.and_then(|link| link.stats());
    LivenessInputs {
        is_up: is_up(state),
        answers_probes: state.machine.answers_probes(),
        is_reading: state.io.submitted().receive,
        outstanding: outstanding(state),
        is_transmit_idle: state.machine.is_transmit_idle(),
        domain,
        peer_probes_after_ms: state.machine.peer_probes_after_ms(),
        silent: system.map(|system| system.silent),
        unanswered: system.map_or(Duration::ZERO, |system| system.unanswered),
        confirmed: system.map_or(state.liveness.sent, |system| system.confirmed),
        unconfirmed: system.map_or(0, |system| system.unconfirmed),
    }
}

impl fmt::Display for DeathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeathReason::Silent(silent) => write!(
                f,
                "the peer is silent: it answers no probe, and nothing has come from it for {:.1} s",
                silent.as_secs_f32()
            ),
            DeathReason::SystemSilent(unanswered) => write!(
                f,
                "the peer is silent: its system has not reacted for {:.1} s to what was sent to it",
                unanswered.as_secs_f32()
            ),
        }
    }
}

/// Returns true while probes and answers are of use.
fn is_up(state: &PortState) -> bool {
    state.machine.lifecycle() == Lifecycle::Connected
        && state.machine.fault().is_none()
        && state.life.is_open()
        // A peer that has ended its stream may have left: a byte sent now would reset the
        // connection before this side has read what the peer sent earlier.
        && state.machine.may_hear_end()
}

/// Frees the spare memory of the connection's queues and of its link.
fn shrink(state: &mut PortState) {
    state.machine.shrink();
    if let Some(link) = &mut state.io.link {
        link.shrink();
    }
}

/// Returns the interval within which the outstanding operations require the peer to be heard;
/// `None`: no limit.
fn outstanding(state: &PortState) -> Option<ProbeInterval> {
    let machine = &state.machine;
    if machine.awaits_peer() {
        Some(ProbeInterval::Active)
    } else if machine.may_await_message() && machine.answers_probes() {
        Some(ProbeInterval::Idle)
    } else {
        None
    }
}
