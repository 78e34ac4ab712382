//! Admission control of unexpected messages: how many bytes each connection may store.
//!
//! The store reserves a number of bytes for each connection that attaches: the connection's
//! promise. The smallest promise lets a peer send at least a few small messages, so the promises of
//! very many connections together may exceed the store. Bytes that are not promised are free for
//! any connection, up to the budget of its peer.
//!
//! Invariants: `held` ≤ total, except for requeued messages and those of a peer that has sent its
//! last byte; `committed` is the sum of max(promised, held) over the attached connections, plus the
//! bytes of messages of detached connections.

use std::collections::HashMap;

use crate::limits::{UNEXPECTED_SHARE_DIVISOR, UNEXPECTED_SHARE_MIN};
use crate::proto::peers::{ConnectionId, SourceId};

use super::Arrival;

/// Larger budgets are reduced to this value, so that the sum of the held bytes, the promised bytes
/// and the length of one more message, which a peer chooses, never overflows a `u64`.
const TOTAL_MAX: u64 = 1 << 62;

/// The limits of the bytes of unexpected messages that may be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnexpectedBudget {
    /// For all peers in total.
    pub(crate) total_bytes: u64,
    /// For one peer.
    pub(crate) peer_bytes: u64,
}

/// The decision whether the store admits a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    /// The budget of the message's sender is used up.
    OverQuota,
    /// The connection's promise covers the message, but the store is full of bytes promised to
    /// others.
    Overcommitted,
    /// The store is full, or its rest is promised to others.
    StoreFull,
    /// The message is larger than any budget, and is never admitted.
    TooLarge,
}

/// The promise of one attached connection, and its use.
#[derive(Debug)]
struct ConnectionQuota {
    source: SourceId,
    promised: u64,
    held: u64,
    messages: u64,
    /// Bytes released since the connection was last woken because of released bytes.
    freed: u64,
    /// The peer holds a message back: the next release wakes the connection.
    awaits_credit: bool,
}

impl ConnectionQuota {
    fn committed(&self) -> u64 {
        self.promised.max(self.held)
    }
}

#[derive(Debug)]
pub(super) struct AdmissionControl {
    budget: UnexpectedBudget,
    held: u64,
    committed: u64,
    connections: HashMap<ConnectionId, ConnectionQuota>,
    /// Bytes held per peer, including those of its detached connections.
    sources: HashMap<SourceId, u64>,
}

impl AdmissionControl {
    pub(super) fn new(budget: UnexpectedBudget) -> Self {
        AdmissionControl {
            budget: UnexpectedBudget {
                total_bytes: budget.total_bytes.min(TOTAL_MAX),
                peer_bytes: budget.peer_bytes.min(TOTAL_MAX),
            },
            held: 0,
            committed: 0,
            connections: HashMap::new(),
            sources: HashMap::new(),
        }
    }

    /// Returns the bytes of all stored messages.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Attaches a connection; returns the bytes promised to it.
    pub(super) fn attach(&mut self, connection: ConnectionId, source: SourceId) -> u64 {
        let left = self.budget.total_bytes.saturating_sub(self.committed);
        let most = self.budget.peer_bytes.min(left / UNEXPECTED_SHARE_DIVISOR);
        let promised = most.max(UNEXPECTED_SHARE_MIN);
        let quota = ConnectionQuota {
            source,
            promised,
            held: 0,
            messages: 0,
            freed: 0,
            awaits_credit: false,
        };
        let before = self.connections.insert(connection, quota);
        debug_assert!(before.is_none(), "a connection attaches once");
        self.committed += promised;
        promised
    }

    /// Detaches a connection; returns its peer.
    pub(super) fn detach(&mut self, connection: ConnectionId) -> Option<SourceId> {
        let quota = self.connections.remove(&connection)?;
        self.committed -= quota.committed() - quota.held;
        Some(quota.source)
    }

    /// Returns the number of stored messages of a connection.
    pub(super) fn messages_of(&self, connection: ConnectionId) -> u64 {
        self.connections
            .get(&connection)
            .map_or(0, |it| it.messages)
    }

    /// Judges whether a message of this cost may be stored. `queued`: another message has waited
    /// longer for unpromised bytes.
    pub(super) fn evaluate(&self, arrival: &Arrival, cost: u64, queued: bool) -> Admission {
        let UnexpectedBudget {
            total_bytes,
            peer_bytes,
        } = self.budget;
        // 1. A message that does not fit even an empty store.
        let (promised, own) = match self.connections.get(&arrival.connection) {
            Some(quota) => (quota.promised, quota.held),
            None => (0, 0),
        };
        if cost > total_bytes || cost > peer_bytes.max(promised) {
            return Admission::TooLarge;
        }
        // 2. Within the connection's promise, only the physical size limits the message.
        let fits = self.held + cost <= total_bytes;
        if own + cost <= promised {
            return if fits {
                Admission::Granted
            } else {
                Admission::Overcommitted
            };
        }
        // 3. Beyond the promise, it needs uncommitted bytes within its peer's budget, in turn.
        let of_source = self.sources.get(&arrival.source).copied().unwrap_or(0);
        if of_source + cost > peer_bytes {
            return Admission::OverQuota;
        }
        let more = (own + cost).max(promised) - own.max(promised);
        if fits && !queued && self.committed + more <= total_bytes {
            Admission::Granted
        } else {
            Admission::StoreFull
        }
    }

    /// True if at least this many bytes of the store are free.
    pub(super) fn is_free(&self, bytes: u64) -> bool {
        self.held + bytes <= self.budget.total_bytes
    }

    /// Accounts for a message that is stored from now on.
    pub(super) fn charge(&mut self, arrival: &Arrival, cost: u64) {
        self.held += cost;
        *self.sources.entry(arrival.source).or_default() += cost;
        match self.connections.get_mut(&arrival.connection) {
            Some(quota) => {
                self.committed -= quota.committed();
                quota.held += cost;
                quota.messages += 1;
                self.committed += quota.committed();
            }
            None => self.committed += cost,
        }
    }

    /// Accounts for a message that leaves the store. True if its connection has to be woken to give
    /// its peer credit: at once if the peer waits, else once per quarter of the promise.
    pub(super) fn release(&mut self, arrival: &Arrival, cost: u64) -> bool {
        self.held -= cost;
        if let Some(of_source) = self.sources.get_mut(&arrival.source) {
            *of_source -= cost;
            if *of_source == 0 {
                self.sources.remove(&arrival.source);
            }
        }
        let Some(quota) = self.connections.get_mut(&arrival.connection) else {
            self.committed -= cost;
            return false;
        };
        self.committed -= quota.committed();
        quota.held -= cost;
        quota.messages -= 1;
        self.committed += quota.committed();
        quota.freed += cost;
        let wakes = quota.awaits_credit || quota.freed >= quota.promised / 4;
        if wakes {
            quota.freed = 0;
            quota.awaits_credit = false;
        }
        wakes
    }

    /// Frees spare capacity.
    pub(super) fn shrink(&mut self) {
        self.connections.shrink_to_fit();
        self.sources.shrink_to_fit();
    }

    /// Notes that the peer of this connection holds a message back until it gets credit.
    pub(super) fn request_credit_wake(&mut self, connection: ConnectionId) {
        if let Some(quota) = self.connections.get_mut(&connection) {
            quota.awaits_credit = true;
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let of_living: u64 = self
            .connections
            .values()
            .map(ConnectionQuota::committed)
            .sum();
        let of_gone = self.held - self.connections.values().map(|it| it.held).sum::<u64>();
        assert_eq!(
            self.committed,
            of_living + of_gone,
            "nothing is committed twice"
        );
        assert_eq!(
            self.sources.values().sum::<u64>(),
            self.held,
            "every held byte belongs to a peer"
        );
        for quota in self.connections.values() {
            let of_source = self.sources.get(&quota.source).copied().unwrap_or(0);
            assert!(quota.held <= of_source);
        }
    }
}
