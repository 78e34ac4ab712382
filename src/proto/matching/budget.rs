//! Who may keep how many bytes of early messages.
//!
//! Each connection is promised some bytes when it joins. What is promised is kept for it, save that
//! the promises of very many connections may be more than there is: no promise is so small that a
//! peer could say nothing. What nobody was promised, or has left again, is for whoever needs more,
//! up to a peer's budget.
//!
//! Invariant: `held` ≤ total, but for messages that were given back and those of a peer that has
//! sent its last byte; `committed` is the sum of what each connection has or was promised,
//! whichever is more, and of what those have that are gone.

use std::collections::HashMap;

use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::peers::{ConnectionId, SourceId};

use super::Arrival;

/// One connection is promised at most this part of what is left, so that later ones find some.
const PROMISE_PART: u64 = 16;
/// The smallest promise: a few announcements, or small messages.
const PROMISE_MIN: u64 = 8 * UNEXPECTED_OVERHEAD as u64;
/// A budget beyond this is no less boundless. A peer says any length, and what is held or promised
/// and one message that could be kept are added up: so no sum passes what a number holds.
const TOTAL_MAX: u64 = 1 << 62;

/// How many bytes of early messages are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Of all peers together.
    pub(crate) total_bytes: u64,
    /// Of one peer.
    pub(crate) peer_bytes: u64,
}

/// Whether there is room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Yes,
    /// Its sender has its share.
    OwnShare,
    /// It was promised, but others have what they were promised too.
    Overbooked,
    /// All is taken, or promised to others.
    Total,
    /// There never is.
    Never,
}

/// One connection's part.
#[derive(Debug)]
struct Account {
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "what tests hold the sums against")
    )]
    source: SourceId,
    promised: u64,
    held: u64,
    messages: u64,
    /// What has left since the connection was woken for it.
    freed: u64,
    /// Its peer holds a message back.
    awaits_credit: bool,
}

impl Account {
    fn committed(&self) -> u64 {
        self.promised.max(self.held)
    }
}

#[derive(Debug)]
pub(super) struct Accounts {
    budget: Budget,
    held: u64,
    committed: u64,
    connections: HashMap<ConnectionId, Account>,
    /// What is held of each sender, of its connections that are gone too.
    sources: HashMap<SourceId, u64>,
}

impl Accounts {
    pub(super) fn new(budget: Budget) -> Self {
        Accounts {
            budget: Budget {
                total_bytes: budget.total_bytes.min(TOTAL_MAX),
                peer_bytes: budget.peer_bytes.min(TOTAL_MAX),
            },
            held: 0,
            committed: 0,
            connections: HashMap::new(),
            sources: HashMap::new(),
        }
    }

    /// Bytes held, of all messages.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// A connection joins; tells what is promised to it.
    pub(super) fn join(&mut self, connection: ConnectionId, source: SourceId) -> u64 {
        let left = self.budget.total_bytes.saturating_sub(self.committed);
        let most = self.budget.peer_bytes.min(left / PROMISE_PART);
        let promised = most.max(PROMISE_MIN);
        let account = Account {
            source,
            promised,
            held: 0,
            messages: 0,
            freed: 0,
            awaits_credit: false,
        };
        let before = self.connections.insert(connection, account);
        debug_assert!(before.is_none(), "a connection joins once");
        self.committed += promised;
        promised
    }

    pub(super) fn leave(&mut self, connection: ConnectionId) {
        if let Some(account) = self.connections.remove(&connection) {
            self.committed -= account.committed() - account.held;
        }
    }

    /// Messages held of a connection.
    pub(super) fn messages_of(&self, connection: ConnectionId) -> u64 {
        self.connections
            .get(&connection)
            .map_or(0, |it| it.messages)
    }

    /// Whether a message of this cost may be kept. `queued`: others wait for room longer.
    pub(super) fn room(&self, arrival: &Arrival, cost: u64, queued: bool) -> Room {
        let Budget {
            total_bytes,
            peer_bytes,
        } = self.budget;
        let (promised, own) = match self.connections.get(&arrival.connection) {
            Some(account) => (account.promised, account.held),
            None => (0, 0),
        };
        if cost > total_bytes || cost > peer_bytes.max(promised) {
            return Room::Never;
        }
        let fits = self.held + cost <= total_bytes;
        if own + cost <= promised {
            return if fits { Room::Yes } else { Room::Overbooked };
        }
        let of_source = self.sources.get(&arrival.source).copied().unwrap_or(0);
        if of_source + cost > peer_bytes {
            return Room::OwnShare;
        }
        let more = (own + cost).max(promised) - own.max(promised);
        if fits && !queued && self.committed + more <= total_bytes {
            Room::Yes
        } else {
            Room::Total
        }
    }

    /// True if so many bytes are held by nobody.
    pub(super) fn is_free(&self, bytes: u64) -> bool {
        self.held + bytes <= self.budget.total_bytes
    }

    /// A message is kept from now on.
    pub(super) fn keep(&mut self, arrival: &Arrival, cost: u64) {
        self.held += cost;
        *self.sources.entry(arrival.source).or_default() += cost;
        match self.connections.get_mut(&arrival.connection) {
            Some(account) => {
                self.committed -= account.committed();
                account.held += cost;
                account.messages += 1;
                self.committed += account.committed();
            }
            None => self.committed += cost,
        }
    }

    /// A message is kept no more. True if its connection is to be told, so that its peer hears of
    /// the room.
    pub(super) fn free(&mut self, arrival: &Arrival, cost: u64) -> bool {
        self.held -= cost;
        if let Some(of_source) = self.sources.get_mut(&arrival.source) {
            *of_source -= cost;
            if *of_source == 0 {
                self.sources.remove(&arrival.source);
            }
        }
        let Some(account) = self.connections.get_mut(&arrival.connection) else {
            self.committed -= cost;
            return false;
        };
        self.committed -= account.committed();
        account.held -= cost;
        account.messages -= 1;
        self.committed += account.committed();
        account.freed += cost;
        let is_news = account.awaits_credit || account.freed >= account.promised / 4;
        if is_news {
            account.freed = 0;
            account.awaits_credit = false;
        }
        is_news
    }

    /// Gives the memory back that is kept for what may come.
    pub(super) fn shrink(&mut self) {
        self.connections.shrink_to_fit();
        self.sources.shrink_to_fit();
    }

    /// The peer of this connection holds a message back until it is told of room.
    pub(super) fn awaits_credit(&mut self, connection: ConnectionId) {
        if let Some(account) = self.connections.get_mut(&connection) {
            account.awaits_credit = true;
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let of_living: u64 = self.connections.values().map(Account::committed).sum();
        let of_gone = self.held - self.connections.values().map(|it| it.held).sum::<u64>();
        assert_eq!(
            self.committed,
            of_living + of_gone,
            "nothing is committed twice"
        );
        assert_eq!(
            self.sources.values().sum::<u64>(),
            self.held,
            "all is somebody's"
        );
        for account in self.connections.values() {
            let of_source = self.sources.get(&account.source).copied().unwrap_or(0);
            assert!(account.held <= of_source);
        }
    }
}
