//! The peers of one connectionless endpoint: who is dialled, whose request is accepted, when to try
//! again and when to give up. Time and chance come from outside; connections are only named here.
//!
//! Two endpoints that dial each other at once agree on one connection without a word: the one that
//! the *greater* address began survives. A peer that comes back with another incarnation has
//! restarted, whatever its old connection still seems to be.
//!
//! Who sends a request only *claims* to be a peer, unless it has proven a key. A claim ends
//! nothing: where there is a connection, the claimed address is dialled on the side (a *check*),
//! and what answers there decides. Nor does it hold up anything for long: an attempt of one that
//! claims is given up when something waits for the peer, or another claims to be it too, and the
//! peer counts as contested then: it is dialled, and no request of it accepted, until it is
//! connected.
//!
//! ```text
//!              want                      connected
//!   Away ───────────────▶ Dialling ─────────────────▶ Up ──ending──▶ Ending
//!    ▲ │    request                    connected      ▲               │
//!    │ └─────────────────▶ Accepting ─────────────────┘               │
//!    └── failed, rejected ──┴── (again after a while, if wanted) ─────┴── closed
//! ```
//!
//! Every attempt has a number of its own, so that what is told of one that has been given up
//! meanwhile changes nothing.

mod address;
mod claims;
mod shares;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub(crate) use address::{canonical, host_of};
pub(crate) use claims::CheckEnd;
use claims::Verdict;
pub(crate) use shares::HostShares;
use state::{Peer, State};

/// The socket address of a peer, within one receive context; never reused for another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SourceId(pub(crate) u64);

/// One connection of a receive context; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// One attempt at a connection, and the connection it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptId(u64);

/// Rejections in a row after which a peer counts as unreachable: with the pauses between them some
/// ten seconds, in which a peer that still holds an old connection of ours will have seen its end.
const REJECTIONS_MAX: u32 = 16;
/// The first pause before dialling again, on average three quarters of it; each next is twice as
/// long, up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Peers that came by themselves and that nothing has been posted to: in all, and of one host,
/// which may claim to listen at every port it likes.
const UNINVITED_MAX: usize = 65_536;
const UNINVITED_OF_HOST_MAX: usize = 4096;
/// Peers that cannot be dialled and are not connected: they are remembered, so that what is posted
/// to them ends at once, while there is room.
const GONE_MAX: usize = 4096;
/// How long an attempt of somebody who only claims to be a peer may take while something waits for
/// that peer, or another claims to be it: a handshake takes two round trips.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a check may take, and how many may be under way.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
const CHECKS_MAX: usize = 64;
/// How often a connection is looked at while it is idle, per idle time.
const IDLE_LOOKS: u32 = 4;

/// What one endpoint wants of its peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSettings {
    /// Tells this life of the endpoint from others.
    pub(crate) incarnation: u32,
    /// How long a peer may be wanted in vain.
    pub(crate) connect_deadline: Duration,
    /// Connections that are idle for so long are closed; `None`: never.
    pub(crate) idle: Option<Duration>,
}

/// A peer's request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Who asks: where it comes from, and the port that it says it listens at.
    pub(crate) from: SocketAddr,
    /// Our address, as it knows it.
    pub(crate) to: SocketAddr,
    /// Tells its lives apart.
    pub(crate) incarnation: u32,
    /// It cannot be dialled (the firewall bit).
    pub(crate) undialable: bool,
    /// It has proven the endpoint's key.
    pub(crate) is_proven: bool,
    /// The application knows its address: it is always let in.
    pub(crate) is_known: bool,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Reject,
    /// Accept; what was under way toward this peer is given up for it.
    Accept(AttemptId),
    /// Accept a connection of our own, which we began, and which only receives at this end.
    AcceptAside,
}

/// Why an attempt came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It may go better another time.
    Passing,
    /// The peer said no.
    Rejected,
    /// It never will go.
    Final,
}

/// Why a peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// It was wanted for as long as the deadline says.
    Deadline,
    /// It said no as often as it may.
    Rejected,
    /// No attempt will ever succeed.
    Final,
    /// It cannot be dialled, and is not connected.
    Undialable,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// It is idle: in order.
    Idle,
    /// The peer has restarted, and knows nothing of it.
    Restarted,
}

/// What the owner must now do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Dial {
        peer: SocketAddr,
        attempt: AttemptId,
    },
    /// Look whether anything goes over this connection, and tell by [`Peers::looked_at`].
    LookAt {
        peer: SocketAddr,
        attempt: AttemptId,
    },
    Close {
        peer: SocketAddr,
        attempt: AttemptId,
        why: Close,
    },
    /// Dial the peer's address on the side, without its port, and tell what answers by
    /// [`Peers::check_connected`] or [`Peers::check_failed`].
    Check {
        peer: SocketAddr,
        attempt: AttemptId,
    },
    /// A check has taken too long.
    EndCheck { attempt: AttemptId },
    /// Give up an attempt that the peer's request began, if it is not connected: it has failed.
    Retract {
        peer: SocketAddr,
        attempt: AttemptId,
    },
    /// What waits for this peer ends. An attempt that is under way is given up.
    GiveUp { peer: SocketAddr, why: GiveUp },
}

/// All peers of one endpoint.
#[derive(Debug)]
pub(crate) struct Peers {
    settings: PeerSettings,
    peers: HashMap<SocketAddr, Peer>,
    /// When to look at which peer: one entry per peer at most, its `alarm`.
    alarms: BTreeSet<(Instant, SocketAddr)>,
    commands: VecDeque<Command>,
    uninvited: usize,
    uninvited_of: HashMap<IpAddr, usize>,
    /// Peers that are remembered because they cannot be dialled, by when they went.
    gone: HostShares<(u64, SocketAddr), IpAddr>,
    next_gone: u64,
    /// Checks that are under way.
    checks: usize,
    next_attempt: u64,
    chance: u64,
    /// Whoever is still wanted then is given up; nobody else is accepted.
    closing: Option<Instant>,
}

impl Peers {
    pub(crate) fn new(settings: PeerSettings, seed: u64) -> Self {
        Peers {
            settings,
            peers: HashMap::new(),
            alarms: BTreeSet::new(),
            commands: VecDeque::new(),
            uninvited: 0,
            uninvited_of: HashMap::new(),
            gone: HostShares::new(GONE_MAX),
            next_gone: 0,
            checks: 0,
            next_attempt: 0,
            chance: seed,
            closing: None,
        }
    }

    /// Something was posted to a peer without a connection that it could go over.
    pub(crate) fn want(&mut self, at: SocketAddr, now: Instant) {
        let peer = self.peers.entry(at).or_insert_with(|| Peer::new(now));
        peer.wanted.get_or_insert(now);
        self.recall(at);
        if let Some(peer) = self.peers.get_mut(&at)
            && std::mem::take(&mut peer.uninvited)
        {
            self.count_uninvited(at, -1);
        }
        self.review(at, now);
    }

    /// A peer asks for a connection. Commands that come of it are to be carried out before the
    /// answer.
    pub(crate) fn request(&mut self, request: &Request, now: Instant) -> Answer {
        if request.from == request.to {
            return self.request_of_oneself(request);
        }
        let at = request.from;
        match self.judge(request) {
            Verdict::Accept => {}
            Verdict::Reject => return Answer::Reject,
            Verdict::Check => {
                self.check_claim(at, now);
                return Answer::Reject;
            }
            Verdict::Contest => {
                if let Some(peer) = self.peers.get_mut(&at) {
                    peer.contested = true;
                }
                self.set_alarm(at, now);
                return Answer::Reject;
            }
            Verdict::Dial => {
                // During a pause it is not, however many ask.
                let state = self.peers.get(&at).map(|peer| peer.state);
                if matches!(state, Some(State::Away { until }) if until <= now) {
                    self.dial(at);
                    self.set_alarm(at, now);
                }
                return Answer::Reject;
            }
        }
        if !self.peers.contains_key(&at) {
            self.count_uninvited(at, 1);
            let peer = Peer {
                uninvited: true,
                ..Peer::new(now)
            };
            self.peers.insert(at, peer);
        }
        self.recall(at);
        let attempt = self.new_attempt();
        let Some(peer) = self.peers.get_mut(&at) else {
            return Answer::Reject;
        };
        if let State::Up { attempt, .. } = peer.state {
            self.commands.push_back(Command::Close {
                peer: at,
                attempt,
                why: Close::Restarted,
            });
        }
        // Somebody's word does not make a peer that is known one that cannot be dialled.
        peer.undialable =
            request.undialable && (request.is_proven || !request.is_known || peer.undialable);
        peer.state = State::Accepting {
            attempt,
            incarnation: request.incarnation,
            since: now,
            is_proven: request.is_proven,
        };
        self.set_alarm(at, now);
        Answer::Accept(attempt)
    }

    /// A request from our own address: what we send to ourselves goes out over the connection that
    /// we dialled, and comes in over the same, accepted.
    fn request_of_oneself(&mut self, request: &Request) -> Answer {
        let state = self.peers.get(&request.from).map(|peer| &peer.state);
        if !self.is_request_of_oneself(request, state) {
            return Answer::Reject;
        }
        if let Some(peer) = self.peers.get_mut(&request.from)
            && let State::Dialling { aside, .. } = &mut peer.state
        {
            *aside = true;
        }
        Answer::AcceptAside
    }

    fn is_request_of_oneself(&self, request: &Request, state: Option<&State>) -> bool {
        matches!(state, Some(State::Dialling { aside: false, .. }))
            && request.incarnation == self.settings.incarnation
    }

    /// A connection is up; `incarnation` is what the peer said of itself.
    pub(crate) fn connected(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) {
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        if matches!(peer.state, State::Up { .. } | State::Ending { .. }) {
            return;
        }
        peer.wanted = None;
        peer.rejections = 0;
        peer.contested = false;
        peer.checks_in_vain = 0;
        peer.check_after = None;
        peer.state = State::Up {
            attempt,
            incarnation,
            since: now,
            activity: None,
            quiet_since: now,
            look_at: None,
        };
        self.plan_look(at, now);
        self.set_alarm(at, now);
    }

    /// An attempt had succeeded before it could be given up: its connection is there.
    pub(crate) fn stays(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) {
        let peer = self.peers.entry(at).or_insert_with(|| Peer::new(now));
        peer.state = State::Accepting {
            attempt,
            incarnation,
            since: now,
            is_proven: true,
        };
        self.connected(at, attempt, incarnation, now);
    }

    /// An attempt came to nothing.
    pub(crate) fn failed(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        failure: Failure,
        now: Instant,
    ) {
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        peer.failures = peer.failures.saturating_add(1);
        match failure {
            Failure::Passing => {}
            Failure::Rejected => {
                peer.rejections += 1;
                if peer.rejections >= REJECTIONS_MAX {
                    return self.give_up(at, GiveUp::Rejected, now);
                }
            }
            Failure::Final => return self.give_up(at, GiveUp::Final, now),
        }
        self.pause(at, now);
    }

    /// A connection has begun to end: nothing is posted to it any more.
    pub(crate) fn ending(&mut self, at: SocketAddr, attempt: AttemptId, now: Instant) {
        if let Some(peer) = self.peer_in(at, attempt)
            && let State::Up { since, .. } = peer.state
        {
            peer.state = State::Ending { attempt, since };
            self.set_alarm(at, now);
        }
    }

    /// A connection has ended, in order or not.
    pub(crate) fn closed(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        in_order: bool,
        now: Instant,
    ) {
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        let lasted = match peer.state {
            State::Up { since, .. } | State::Ending { since, .. } => {
                now.saturating_duration_since(since)
            }
            _ => Duration::ZERO,
        };
        if in_order || lasted > PAUSE_MAX {
            peer.failures = 0;
            peer.state = State::Away { until: now };
            self.review(at, now);
        } else {
            // Connections that break as soon as they are made are no reason to make them faster.
            peer.failures = peer.failures.saturating_add(1);
            self.pause(at, now);
        }
    }

    /// What [`Command::LookAt`] asked for. `activity` grows with whatever goes over the connection;
    /// `None`: something is outstanding, or it cannot be closed in order.
    pub(crate) fn looked_at(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        activity: Option<u64>,
        now: Instant,
    ) {
        let idle = self.settings.idle;
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        let State::Up {
            activity: seen,
            quiet_since,
            ..
        } = &mut peer.state
        else {
            return;
        };
        if activity.is_none() || *seen != activity {
            *seen = activity;
            *quiet_since = now;
        }
        let is_idle = idle.is_some_and(|idle| now.saturating_duration_since(*quiet_since) >= idle);
        if is_idle {
            self.commands.push_back(Command::Close {
                peer: at,
                attempt,
                why: Close::Idle,
            });
        }
        self.plan_look(at, now);
        self.set_alarm(at, now);
    }

    /// The endpoint closes: nobody is accepted who is not wanted, and who is wanted and not there
    /// by `until` is given up.
    pub(crate) fn close(&mut self, until: Instant, now: Instant) {
        self.closing = Some(until);
        // In an order that no hash decides: it is the order of what follows.
        let all: BTreeSet<_> = self.peers.keys().copied().collect();
        for at in all {
            self.review(at, now);
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        while let Some(&(alarm, at)) = self.alarms.first()
            && alarm <= now
        {
            self.review(at, now);
        }
    }

    /// When [`Peers::tick`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The next thing to do.
    pub(crate) fn poll(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// True while something waits for a connection with this peer.
    pub(crate) fn is_wanted(&self, at: SocketAddr) -> bool {
        (self.peers.get(&at)).is_some_and(|peer| peer.wanted.is_some())
    }

    /// Peers that anything is remembered of.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// The peer, if this is what it is at now.
    fn peer_in(&mut self, at: SocketAddr, attempt: AttemptId) -> Option<&mut Peer> {
        let peer = self.peers.get_mut(&at)?;
        (peer.state.attempt() == Some(attempt)).then_some(peer)
    }

    fn new_attempt(&mut self) -> AttemptId {
        self.next_attempt += 1;
        AttemptId(self.next_attempt)
    }

    /// Does what is due for a peer, and sees when something will be next.
    fn review(&mut self, at: SocketAddr, now: Instant) {
        let deadline = self.deadline_of(at);
        if deadline.is_some_and(|deadline| deadline <= now) {
            return self.give_up(at, GiveUp::Deadline, now);
        }
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        if let Some(check) = peer.check
            && check.until <= now
        {
            self.commands.push_back(Command::EndCheck {
                attempt: check.attempt,
            });
            self.end_check(at, check.attempt);
            return self.checked_in_vain(at, now);
        }
        let is_wanted = peer.wanted.is_some();
        match peer.state {
            State::Accepting { attempt, .. }
                if peer.claim_deadline().is_some_and(|until| until <= now) =>
            {
                peer.contested = true;
                peer.retracted = Some(attempt);
                self.commands
                    .push_back(Command::Retract { peer: at, attempt });
            }
            // Whoever is at its address is being dialled already.
            State::Away { .. } if peer.check.is_some() => {}
            State::Away { .. } if is_wanted && peer.undialable => {
                return self.give_up(at, GiveUp::Undialable, now);
            }
            State::Away { until } if until <= now => {
                if is_wanted {
                    self.dial(at);
                } else if !peer.undialable {
                    return self.forget(at);
                } else {
                    return self.retire(at);
                }
            }
            State::Up {
                attempt,
                look_at: Some(look_at),
                ..
            } if look_at <= now => {
                self.commands
                    .push_back(Command::LookAt { peer: at, attempt });
                self.plan_look(at, now);
            }
            _ => {}
        }
        self.set_alarm(at, now);
    }

    fn dial(&mut self, at: SocketAddr) {
        let attempt = self.new_attempt();
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.state = State::Dialling {
                attempt,
                aside: false,
            };
            self.commands.push_back(Command::Dial { peer: at, attempt });
        }
    }

    /// Nothing more is tried for what is wanted now; what is wanted later begins anew, after a
    /// pause.
    fn give_up(&mut self, at: SocketAddr, why: GiveUp, now: Instant) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let was_wanted = peer.wanted.take().is_some();
        peer.rejections = 0;
        let ends = !matches!(peer.state, State::Up { .. } | State::Ending { .. });
        if was_wanted {
            self.commands.push_back(Command::GiveUp { peer: at, why });
        }
        if ends {
            self.pause(at, now);
        } else {
            self.set_alarm(at, now);
        }
    }

    /// Nothing is under way for a while.
    fn pause(&mut self, at: SocketAddr, now: Instant) {
        // Between half of it and all: two that failed together do not meet again and again.
        let share = 0.5 + 0.5 * self.random();
        if let Some(peer) = self.peers.get_mut(&at) {
            let pause = pause_after(peer.failures.saturating_sub(1));
            let until = now + pause.mul_f64(share);
            peer.state = State::Away { until };
        }
        self.set_alarm(at, now);
    }

    /// When a peer that is wanted is given up.
    fn deadline_of(&self, at: SocketAddr) -> Option<Instant> {
        let since = self.peers.get(&at)?.wanted?;
        let deadline = since.checked_add(self.settings.connect_deadline);
        deadline.into_iter().chain(self.closing).min()
    }

    fn plan_look(&mut self, at: SocketAddr, now: Instant) {
        let idle = self.settings.idle;
        if let Some(peer) = self.peers.get_mut(&at)
            && let State::Up { look_at, .. } = &mut peer.state
        {
            *look_at = idle.and_then(|idle| now.checked_add((idle / IDLE_LOOKS).max(PAUSE_MIN)));
        }
    }

    fn set_alarm(&mut self, at: SocketAddr, now: Instant) {
        let deadline = self.deadline_of(at);
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let of_state = match peer.state {
            State::Away { until } if peer.gone.is_none() && peer.check.is_none() => {
                Some(until.max(now))
            }
            State::Up { look_at, .. } => look_at,
            State::Accepting { .. } => peer.claim_deadline(),
            _ => None,
        };
        let of_check = peer.check.map(|check| check.until);
        let alarm = of_state.into_iter().chain(deadline).chain(of_check).min();
        if alarm == peer.alarm {
            return;
        }
        if let Some(old) = std::mem::replace(&mut peer.alarm, alarm) {
            self.alarms.remove(&(old, at));
        }
        self.alarms.extend(alarm.map(|alarm| (alarm, at)));
    }

    fn forget(&mut self, at: SocketAddr) {
        self.recall(at);
        if let Some(peer) = self.peers.remove(&at) {
            if let Some(alarm) = peer.alarm {
                self.alarms.remove(&(alarm, at));
            }
            self.checks -= usize::from(peer.check.is_some());
            if peer.uninvited {
                self.count_uninvited(at, -1);
            }
        }
    }

    /// The peer is away, nothing waits for it and it cannot be dialled: it is remembered, but not
    /// counted any more, until there are too many of those.
    fn retire(&mut self, at: SocketAddr) {
        let number = self.next_gone;
        let Some(peer) = self.peers.get_mut(&at).filter(|peer| peer.gone.is_none()) else {
            return;
        };
        self.next_gone += 1;
        peer.gone = Some(number);
        if let Some(alarm) = peer.alarm.take() {
            self.alarms.remove(&(alarm, at));
        }
        if peer.uninvited {
            self.count_uninvited(at, -1);
        }
        if let Some((_, evicted)) = self.gone.insert((number, at), host_of(at)) {
            self.forget(evicted);
        }
    }

    /// The peer is not gone any more.
    fn recall(&mut self, at: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        if let Some(number) = peer.gone.take() {
            let is_uninvited = peer.uninvited;
            self.gone.remove((number, at), host_of(at));
            if is_uninvited {
                self.count_uninvited(at, 1);
            }
        }
    }

    fn has_room_for(&self, at: SocketAddr) -> bool {
        let of_host = self.uninvited_of.get(&host_of(at)).copied().unwrap_or(0);
        self.closing.is_none() && self.uninvited < UNINVITED_MAX && of_host < UNINVITED_OF_HOST_MAX
    }

    fn count_uninvited(&mut self, at: SocketAddr, by: isize) {
        self.uninvited = self.uninvited.saturating_add_signed(by);
        let of_host = self.uninvited_of.entry(host_of(at)).or_default();
        *of_host = of_host.saturating_add_signed(by);
        if *of_host == 0 {
            self.uninvited_of.remove(&host_of(at));
        }
    }

    /// In [0, 1) (SplitMix64).
    fn random(&mut self) -> f64 {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// All that must hold between two calls.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let alarms: BTreeSet<_> = (self.peers.iter())
            .filter_map(|(at, peer)| peer.alarm.map(|alarm| (alarm, *at)))
            .collect();
        assert_eq!(alarms, self.alarms, "one alarm per peer, the peer's");
        let is_counted = |peer: &&Peer| peer.uninvited && peer.gone.is_none();
        let uninvited = self.peers.values().filter(is_counted).count();
        let gone = self.peers.values().filter(|peer| peer.gone.is_some());
        assert_eq!(gone.count(), self.gone.len());
        let checks = self.peers.values().filter(|peer| peer.check.is_some());
        assert_eq!(checks.count(), self.checks);
        assert_eq!(uninvited, self.uninvited);
        assert_eq!(self.uninvited_of.values().sum::<usize>(), uninvited);
        for (at, peer) in &self.peers {
            let waits = matches!(peer.state, State::Away { .. }) && peer.gone.is_none();
            assert!(
                peer.alarm.is_some() || !(waits || peer.wanted.is_some()),
                "{at}: nothing would ever happen to {peer:?}"
            );
        }
    }
}

/// What follows so many failures in a row, on average three quarters of it.
fn pause_after(failures: u32) -> Duration {
    let pause = PAUSE_MIN.saturating_mul(1 << failures.min(16));
    pause.min(PAUSE_MAX)
}
