//! Liveness: which connections have heartbeats, when, and what silence means (ruling 13).
//!
//! [`machine`] decides, without I/O or clock; this file does what it says. A port has heartbeats
//! while operations of it are outstanding, or while it does not read and so owes its peer signs of
//! life; posting registers it with the driver's timer, a heartbeat that finds nothing to watch
//! suspends it. On the path of a message this costs a flag per received batch. Connections with
//! nothing outstanding have no heartbeats: their systems probe each other (keepalive), which costs
//! this process nothing.
//!
//! The interval is short while something awaits the peer, and long ([`ProbeInterval::Idle`]) while
//! only receives are posted, the normal state of a server. Idle connections to the same domain of a
//! peer take each other's signs of life for their own (`peers.rs`), so that one of them probes for
//! all.

mod config;
mod machine;
mod peers;
mod timer;

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::proto::Lifecycle;

use super::arming::PeerStream;
use super::port::{Port, PortState};

pub use config::Liveness;
pub(super) use machine::LivenessMachine;
use machine::{Action, Heartbeat, ProbeInterval, Vitals};
pub(super) use peers::PeerLiveness;
use peers::{PeerDomain, PeerStatus};
pub(super) use timer::HeartbeatTimer;

/// The liveness of a port's peer, and what the machine of it is told.
#[derive(Debug)]
pub(super) struct PortLiveness {
    pub(super) machine: LivenessMachine,
    /// Bytes handed to the transport's system so far.
    pub(super) sent: u64,
    /// Probes sent so far: the token of the last one.
    pub(super) probes: u64,
    /// The system probes the peer's when the connection has long been silent.
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

impl Port {
    /// The connection is up.
    pub(super) fn begin_liveness(&self, state: &mut PortState) {
        let config = state.liveness.machine.config();
        if config.is_off() {
            return;
        }
        if let Some(link) = &mut state.link {
            state.liveness.kept_alive = link.keep_alive(config.when_idle());
        }
        self.watch_peer(state);
    }

    /// Something was posted, or a frame has begun: from now on the peer must be heard as often as
    /// that asks for.
    pub(super) fn watch_peer(&self, state: &mut PortState) {
        // First what is the case at most calls: nothing changes.
        if !state.liveness.machine.is_watched_enough()
            && is_up(state)
            && let Some(interval) = outstanding(state)
        {
            self.register_heartbeat(state, interval);
        }
    }

    /// Reading has stopped: the peer's probes are not seen, so it gets signs of life unasked.
    pub(super) fn owe_signs(&self, state: &mut PortState) {
        if state.machine.gives_signs() {
            self.register_heartbeat(state, ProbeInterval::Active);
        }
    }

    fn register_heartbeat(&self, state: &mut PortState, interval: ProbeInterval) {
        if state.liveness.machine.watch(interval) {
            self.enlist();
        }
    }

    /// What the driver does before a heartbeat, be it due or the first of an interval: the time at
    /// which its timer has it, and whether what has come is to be taken in before.
    pub(super) fn before_heartbeat(
        &self,
        now: Instant,
        peers: &PeerLiveness,
    ) -> (Option<Instant>, bool) {
        let state = &*self.lock("before a heartbeat");
        let machine = &state.liveness.machine;
        let domain = self.domain_status(state, now, peers);
        (machine.next(), machine.will_judge(domain))
    }

    /// A heartbeat; gives the time of the next, if there is to be one.
    pub(super) fn heartbeat(
        &self,
        now: Instant,
        timer: HeartbeatTimer,
        peers: &mut PeerLiveness,
    ) -> Option<Instant> {
        let mut guard = self.lock("heartbeat");
        let state = &mut *guard;
        let vitals = self.vitals(state, now, peers);
        let Heartbeat {
            action,
            next,
            keep_alive,
            heard_since,
        } = state.liveness.machine.on_tick(now, timer, &vitals);
        if let (Some(since), Some((domain, fresh))) = (heard_since, self.peer_domain(state)) {
            peers.heard(domain, since, fresh);
        }
        if let (Some(keep_alive), Some(link)) = (keep_alive, &mut state.link) {
            link.keep_alive(keep_alive);
        }
        match action {
            Action::None => {}
            Action::Probe => {
                state.liveness.probes += 1;
                state.machine.ask_for_sign(state.liveness.probes);
                self.transmit_now(state);
                if let Some((domain, _)) = self.peer_domain(state) {
                    peers.probed(&domain, now);
                }
            }
            Action::Sign => {
                state.machine.give_sign();
                self.transmit_now(state);
            }
            Action::Dead(silent) => {
                let what = format!("no sign of life for {:.1} s", silent.as_secs_f32());
                self.fail(state, Error::new(ErrorKind::TimedOut, what));
            }
        }
        self.settle(state);
        if !state.liveness.machine.is_active() {
            shrink(state);
        }
        next
    }

    fn vitals(&self, state: &PortState, now: Instant, peers: &PeerLiveness) -> Vitals {
        let domain = self.domain_status(state, now, peers);
        // The system is asked only if what it says counts: that is a system call.
        let will_judge = state.liveness.machine.will_judge(domain);
        let link = state.link.as_ref().filter(|_| will_judge);
        let system = link.and_then(|link| link.vitals());
        Vitals {
            is_up: is_up(state),
            answers_probes: state.machine.gives_signs(),
            is_reading: state.recv.is_armed(),
            outstanding: outstanding(state),
            is_transmit_idle: state.machine.is_transmit_idle(),
            domain,
            peer_probes_after_ms: state.machine.peer_asks_after_ms(),
            silent: system.map(|system| system.silent),
            unanswered: system.map_or(Duration::ZERO, |system| system.unanswered),
            confirmed: system.map_or(state.liveness.sent, |system| system.confirmed),
            unconfirmed: system.map_or(0, |system| system.unconfirmed),
        }
    }

    /// The domain at the other end, and how long its signs of life count for all connections to it;
    /// `None`: this connection is on its own.
    fn peer_domain(&self, state: &PortState) -> Option<(PeerDomain, Duration)> {
        let fresh = state.liveness.machine.config().shared()?;
        let domain = PeerDomain {
            host: state.peer?.ip(),
            incarnation: state.machine.peer_hello()?.incarnation,
            auth_key: self.auth_key().cloned(),
        };
        Some((domain, fresh))
    }

    /// What other connections know of this one's peer, if this one is idle. Where no system probes
    /// whether this connection is there, the others say nothing about it.
    fn domain_status(&self, state: &PortState, now: Instant, peers: &PeerLiveness) -> PeerStatus {
        let is_idle = state.recv.is_armed() && outstanding(state) == Some(ProbeInterval::Idle);
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

/// True while signs of life are of use.
fn is_up(state: &PortState) -> bool {
    state.machine.lifecycle() == Lifecycle::Connected
        && state.machine.fault().is_none()
        && state.shutdown.is_open()
        // Whoever has ended its stream may have left: a byte now would reset the connection under
        // what it sent before.
        && state.peer_stream == PeerStream::Open
}

/// Gives back what is kept for what may be queued soon.
fn shrink(state: &mut PortState) {
    state.machine.shrink();
    if let Some(link) = &mut state.link {
        link.shrink();
    }
}

/// How often the peer must be heard for what this side has outstanding; `None`: it need not.
fn outstanding(state: &PortState) -> Option<ProbeInterval> {
    let machine = &state.machine;
    if machine.awaits_peer() {
        Some(ProbeInterval::Active)
    } else if machine.outstanding() > 0 && machine.gives_signs() {
        Some(ProbeInterval::Idle)
    } else {
        None
    }
}
