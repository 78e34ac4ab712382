//! The peers of one connectionless endpoint: which are dialled, whose request is accepted, when to
//! try again and when to give up. Time and randomness come from outside; connections are only ids.
//!
//! Two endpoints that dial each other at once agree on one connection without an exchange: the
//! connection that the *greater* address began survives. A peer that comes back with another
//! incarnation has restarted, whatever state its old connection seems to be in. A peer that comes
//! back with the same incarnation may have given up a connection that is up here, after a partition
//! that only the peer has noticed: this connection is *in doubt*, and its peer is probed at once.
//! If the connection is lost, the peer's next request is accepted.
//!
//! A request without the proof of a key is *unproven*: its sender may not be the peer that it
//! names. It ends no connection: if one is up, the peer's address is dialled by a second connection
//! (a *verification*), and the answer from there decides. Nor does it block the peer for long: an
//! unproven attempt is retracted when an operation waits for the peer, or when a second unproven
//! request names the peer. The peer then counts as contested: until it is connected, it is dialled,
//! and unproven requests in its name are not accepted. By then the peer may consider itself
//! connected, and have sent. So the attempt's time is counted in parts, and a part does not count
//! if this side is late at its end; and the owner retracts the attempt only once it has read the
//! bytes that came on it.
//!
//! ```text
//!                  an operation waits           connected
//!   Disconnected ─────────────────▶ Dialling ────────────▶ Up ──closing──▶ Ending
//!    ▲  │              a request       │  its request wins  ▲ │              │ │
//!    │  ├──────────────────────────────┼─────▶ Accepting ───┘ │              │ │
//!    │  │                              │         ▲ ▲ │        │ restarted    │ │ restarted
//!    │  │                              │         │ └─┼────────┴──────────────┘ │
//!    └──┴── failed, rejected ──────────┴─────────┼───┴── closed, lost ─────────┘
//!                                                └── a request of another incarnation
//! ```
//! A verified or late connection leads from any state to Up ([`Peers::adopt_connection`]). A wanted
//! peer whose attempt has failed is dialled again after a pause.
//!
//! Every attempt has its own id, so that a late event of an attempt that was given up has no
//! effect.

mod address;
mod command;
mod schedule;
mod shares;
mod state;
mod strangers;
#[cfg(test)]
mod tests;
mod verification;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub(crate) use address::host_of;
pub(crate) use command::{Answer, Close, Command, Failure, GiveUp, PeerSettings, Request};
use schedule::pause_after;
pub(crate) use shares::HostShares;
use state::{Peer, PeerState, RequestProof};
use verification::Verdict;
pub(crate) use verification::VerificationOutcome;

use crate::id::{EndpointId, PeerAddr};
use crate::limits::{RDM_RECONNECT_PAUSE_MAX, RDM_REJECTIONS_MAX, RDM_UNREACHABLE_MAX};

/// Identifies a peer within one receive context, by its socket address and by the authorization key
/// that it has proven, if the endpoint has several (fi_av(3): addresses "map to endpoint address
/// against the specified authorization keys"); never reused for another address. A second form
/// identifies all peers of one key, for a receive that is directed at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SourceId(pub(crate) u64);

impl SourceId {
    /// Position of the key's number, above the peer's number.
    const KEY_SHIFT: u32 = 48;
    /// No peer has this number: there are never so many peers.
    const ALL: u64 = (1 << Self::KEY_SHIFT) - 1;

    /// Returns the peer with this number, by the key with this number; key 0: no key, or the
    /// endpoint's only one.
    pub(crate) fn of_peer(number: u64, key: u16) -> Self {
        debug_assert!(number < Self::ALL);
        SourceId(u64::from(key) << Self::KEY_SHIFT | number)
    }

    /// Returns all peers of this key.
    pub(crate) fn all_of_key(key: u16) -> Self {
        SourceId(u64::from(key) << Self::KEY_SHIFT | Self::ALL)
    }

    /// Returns all peers with the same key as this peer.
    pub(crate) fn all_alike(self) -> Self {
        SourceId(self.0 | Self::ALL)
    }

    /// True if the id stands for all peers of a key.
    pub(crate) fn is_all(self) -> bool {
        self.0 & Self::ALL == Self::ALL
    }
}

/// Id of a connection of a receive context, which several endpoints may share; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId {
    pub(crate) endpoint: EndpointId,
    /// Its number among the connections of the endpoint.
    pub(crate) number: u64,
}

impl ConnectionId {
    /// The id of a connection with its own receives.
    pub(crate) const NONE: ConnectionId = ConnectionId {
        endpoint: EndpointId::LAST,
        number: u64::MAX,
    };

    /// Returns the id of a connection of an endpoint that does not exist.
    #[cfg(any(test, loom, feature = "__instructions"))]
    pub(crate) fn numbered(number: u64) -> Self {
        ConnectionId {
            endpoint: EndpointId::LAST,
            number,
        }
    }
}

/// Id of an attempt at a connection, and of the connection that it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptId(u64);

/// All peers of one endpoint.
#[derive(Debug)]
pub(crate) struct Peers {
    settings: PeerSettings,
    peers: HashMap<PeerAddr, Peer>,
    /// The timers of all peers, sorted: at most one per peer, its `timer`.
    timers: BTreeSet<(Instant, PeerAddr)>,
    commands: VecDeque<Command>,
    /// Number of peers that the application has not asked for, in total and per host.
    unsolicited: usize,
    unsolicited_of: HashMap<IpAddr, usize>,
    /// Disconnected peers that cannot be dialled, remembered in the order of their retirement.
    retired: HostShares<(u64, PeerAddr), IpAddr>,
    next_retired: u64,
    /// Verifications in progress.
    verifications: usize,
    next_attempt: u64,
    rng_state: u64,
    /// Set once the endpoint closes: peers that are still wanted at this time are given up, other
    /// peers are not accepted.
    closing: Option<Instant>,
}

impl Peers {
    pub(crate) fn new(settings: PeerSettings, seed: u64) -> Self {
        Peers {
            settings,
            peers: HashMap::new(),
            timers: BTreeSet::new(),
            commands: VecDeque::new(),
            unsolicited: 0,
            unsolicited_of: HashMap::new(),
            retired: HostShares::new(RDM_UNREACHABLE_MAX),
            next_retired: 0,
            verifications: 0,
            next_attempt: 0,
            rng_state: seed,
            closing: None,
        }
    }

    /// Notes that an operation was posted to a peer without a connection.
    pub(crate) fn want(&mut self, at: PeerAddr, now: Instant) {
        let peer = self.peers.entry(at).or_insert_with(|| Peer::new(now));
        peer.wanted.get_or_insert(now);
        self.recall(at);
        if let Some(peer) = self.peers.get_mut(&at)
            && std::mem::take(&mut peer.unsolicited)
        {
            self.count_unsolicited(at, -1);
        }
        self.update(at, now);
    }

    /// Handles a peer's request for a connection. The caller runs the commands that follow before
    /// it sends the answer.
    pub(crate) fn handle_request(&mut self, request: &Request, now: Instant) -> Answer {
        if request.from == request.to {
            return self.request_of_oneself(request);
        }
        let at = request.from;
        match self.evaluate(request) {
            Verdict::Accept => {}
            Verdict::Reject => return Answer::Reject,
            Verdict::Verify => {
                self.begin_verification(at, now);
                return Answer::Reject;
            }
            Verdict::Doubt => {
                let state = self.peers.get(&at).map(|peer| peer.state);
                if let Some(attempt) = state.and_then(|state| state.attempt()) {
                    self.commands
                        .push_back(Command::Doubt { peer: at, attempt });
                }
                return Answer::Reject;
            }
            Verdict::Contest => {
                if let Some(peer) = self.peers.get_mut(&at) {
                    peer.contested = true;
                }
                self.set_timer(at, now);
                return Answer::Reject;
            }
            Verdict::Dial => {
                // No dial during a pause, however many requests come.
                let state = self.peers.get(&at).map(|peer| peer.state);
                if matches!(state, Some(PeerState::Disconnected { until }) if until <= now) {
                    self.dial(at);
                    self.set_timer(at, now);
                }
                return Answer::Reject;
            }
        }
        if !self.peers.contains_key(&at) {
            let unsolicited = !request.is_known;
            self.count_unsolicited(at, isize::from(unsolicited));
            let peer = Peer {
                unsolicited,
                ..Peer::new(now)
            };
            self.peers.insert(at, peer);
        }
        self.recall(at);
        let attempt = self.new_attempt();
        let Some(peer) = self.peers.get_mut(&at) else {
            return Answer::Reject;
        };
        if let PeerState::Up { attempt, .. } = peer.state {
            self.commands.push_back(Command::Close {
                peer: at,
                attempt,
                why: Close::Restarted,
            });
        }
        // An unproven request does not make a known peer undialable.
        peer.undialable =
            request.undialable && (request.is_proven || !request.is_known || peer.undialable);
        peer.go(PeerState::Accepting {
            attempt,
            incarnation: request.incarnation,
            proof: RequestProof::of_request(request.is_proven, now),
        });
        self.set_timer(at, now);
        Answer::Accept(attempt)
    }

    /// Handles a request from our own address: messages to ourselves go out over the connection
    /// that we dialled, and come in over its accepted side.
    fn request_of_oneself(&mut self, request: &Request) -> Answer {
        let state = self.peers.get(&request.from).map(|peer| &peer.state);
        if !self.is_request_of_oneself(request, state) {
            return Answer::Reject;
        }
        if let Some(peer) = self.peers.get_mut(&request.from)
            && let PeerState::Dialling {
                is_self_accepted, ..
            } = &mut peer.state
        {
            *is_self_accepted = true;
        }
        Answer::AcceptSelf
    }

    fn is_request_of_oneself(&self, request: &Request, state: Option<&PeerState>) -> bool {
        matches!(
            state,
            Some(PeerState::Dialling {
                is_self_accepted: false,
                ..
            })
        ) && request.incarnation == self.settings.incarnation
    }

    /// Notes that a connection is up; `incarnation` is the peer's.
    pub(crate) fn handle_connected(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) {
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        if matches!(peer.state, PeerState::Up { .. } | PeerState::Ending { .. }) {
            return;
        }
        peer.connected(attempt, incarnation, now);
        self.schedule_idle_check(at, now);
        self.set_timer(at, now);
    }

    /// Takes over a connection that is up but is not the peer's current attempt: an attempt that
    /// had succeeded before it could be given up, or a verification.
    pub(crate) fn adopt_connection(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) {
        let peer = self.peers.entry(at).or_insert_with(|| Peer::new(now));
        peer.connected(attempt, incarnation, now);
        self.schedule_idle_check(at, now);
        self.set_timer(at, now);
    }

    /// Handles the failure of an attempt.
    pub(crate) fn handle_failed(
        &mut self,
        at: PeerAddr,
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
                if peer.rejections >= RDM_REJECTIONS_MAX {
                    return self.give_up(at, GiveUp::Rejected, now);
                }
            }
            Failure::Final => return self.give_up(at, GiveUp::Final, now),
        }
        self.pause(at, now);
    }

    /// Handles a connection that has begun to end, and takes no posts.
    pub(crate) fn handle_ending(&mut self, at: PeerAddr, attempt: AttemptId, now: Instant) {
        if let Some(peer) = self.peer_in(at, attempt)
            && let PeerState::Up { since, .. } = peer.state
        {
            peer.go(PeerState::Ending { attempt, since });
            self.set_timer(at, now);
        }
    }

    /// Handles a connection that has ended, in order or lost.
    pub(crate) fn handle_closed(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        in_order: bool,
        now: Instant,
    ) {
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        let lasted = match peer.state {
            PeerState::Up { since, .. } | PeerState::Ending { since, .. } => {
                now.saturating_duration_since(since)
            }
            _ => Duration::ZERO,
        };
        if in_order || lasted > RDM_RECONNECT_PAUSE_MAX {
            peer.failures = 0;
            peer.go(PeerState::Disconnected { until: now });
            self.update(at, now);
        } else {
            // A connection that breaks at once counts as a failed attempt, and a pause follows.
            peer.failures = peer.failures.saturating_add(1);
            self.pause(at, now);
        }
    }

    /// Handles the answer to [`Command::CheckIdle`]. `activity` grows with all traffic of the
    /// connection; `None`: an operation is outstanding, or the connection cannot be closed in
    /// order.
    pub(crate) fn handle_activity(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        activity: Option<u64>,
        now: Instant,
    ) {
        let idle = self.settings.idle;
        let Some(peer) = self.peer_in(at, attempt) else {
            return;
        };
        let PeerState::Up {
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
        self.schedule_idle_check(at, now);
        self.set_timer(at, now);
    }

    /// Begins to close the endpoint: only wanted peers are accepted, and peers that are not
    /// connected by `until` are given up.
    pub(crate) fn begin_close(&mut self, until: Instant, now: Instant) {
        self.closing = Some(until);
        // Sorted, so that the order of the commands does not depend on hashes.
        let all: BTreeSet<_> = self.peers.keys().copied().collect();
        for at in all {
            self.update(at, now);
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Updates all peers whose timer has expired.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(timer, at)) = self.timers.first()
            && timer <= now
        {
            self.update(at, now);
        }
    }

    /// Returns when [`Peers::handle_timeout`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the next command for the owner.
    pub(crate) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// True while an operation waits for a connection with this peer.
    pub(crate) fn is_wanted(&self, at: PeerAddr) -> bool {
        (self.peers.get(&at)).is_some_and(|peer| peer.wanted.is_some())
    }

    /// Returns the number of peers in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns the peer, if this is its current attempt.
    fn peer_in(&mut self, at: PeerAddr, attempt: AttemptId) -> Option<&mut Peer> {
        let peer = self.peers.get_mut(&at)?;
        (peer.state.attempt() == Some(attempt)).then_some(peer)
    }

    fn new_attempt(&mut self) -> AttemptId {
        self.next_attempt += 1;
        AttemptId(self.next_attempt)
    }

    /// Checks all that must hold between two calls.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let timers: BTreeSet<_> = (self.peers.iter())
            .filter_map(|(at, peer)| peer.timer.map(|timer| (timer, *at)))
            .collect();
        assert_eq!(timers, self.timers, "one timer per peer, the peer's");
        let is_counted = |peer: &&Peer| peer.unsolicited && peer.retired.is_none();
        let unsolicited = self.peers.values().filter(is_counted).count();
        let retired = self.peers.values().filter(|peer| peer.retired.is_some());
        assert_eq!(retired.count(), self.retired.len());
        let verifications = self
            .peers
            .values()
            .filter(|peer| peer.verification.is_some());
        assert_eq!(verifications.count(), self.verifications);
        assert_eq!(unsolicited, self.unsolicited);
        assert_eq!(self.unsolicited_of.values().sum::<usize>(), unsolicited);
        for (at, peer) in &self.peers {
            let waits =
                matches!(peer.state, PeerState::Disconnected { .. }) && peer.retired.is_none();
            assert!(
                peer.timer.is_some() || !(waits || peer.wanted.is_some()),
                "{at}: no timer for {peer:?}"
            );
        }
    }
}
