//! What requests by reference hold of a server, and who gives way to whom.
//!
//! A client that asks the server to read its memory, and then does not serve that, holds a call's
//! place and room for the body at no cost to itself. So as long as no handler has seen a request,
//! it holds both only until others need them that have less: where nothing is left, the
//! connection that has most loses its oldest request, as not started. Bodies that handlers have
//! are out of reach; of these a connection has no more than it leaves to all others.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::connection::ServerConnection;
use super::listening::{CallPermit, ServerShared};
use super::ranking::Ranking;
use crate::limits::{BODIES_PER_SERVER, FRAME_MAX};

/// What a connection has of that; written under the lock of all.
#[derive(Debug, Default)]
pub(super) struct BodyShare {
    /// Bytes, those of handlers included.
    bytes: AtomicUsize,
}

/// The requests of a server whose bodies are on their way, and the room for all bodies.
pub(super) struct FetchTable(Mutex<Fetches>);

struct Fetches {
    /// Bytes that no body has.
    free: usize,
    /// In the order in which they came, of each connection.
    under_way: Ranking<Entry>,
    next: u64,
}

/// A request until its body is whole.
struct Entry {
    connection: Arc<ServerConnection>,
    /// Bytes that it has room for; 0 before its turn.
    bytes: usize,
    permit: CallPermit,
    /// Dropped, the request is given up.
    _wanted: oneshot::Sender<Infallible>,
}

/// The request of one call in the table, until this is dropped.
pub(super) struct FetchTicket {
    server: Arc<ServerShared>,
    /// The key of its connection.
    owner: usize,
    number: u64,
}

/// Ready once others have what a request held.
pub(super) type GivenUp = oneshot::Receiver<Infallible>;

/// Room for a body, until this is dropped.
pub(super) struct BodyPermit {
    connection: Arc<ServerConnection>,
    bytes: usize,
}

impl FetchTable {
    pub(super) fn new() -> FetchTable {
        FetchTable(Mutex::new(Fetches {
            free: BODIES_PER_SERVER,
            under_way: Ranking::new(),
            next: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Fetches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has been admitted, and its body is to be read.
    pub(super) fn insert(
        connection: &Arc<ServerConnection>,
        route: usize,
        permit: CallPermit,
    ) -> (FetchTicket, GivenUp) {
        let (wanted, given_up) = oneshot::channel();
        let mut fetches = connection.server.fetches.lock();
        let (owner, number) = (key_of(connection), fetches.next);
        fetches.next += 1;
        let entry = Entry {
            connection: Arc::clone(connection),
            bytes: 0,
            permit,
            _wanted: wanted,
        };
        let held = connection.share.bytes.load(Ordering::Relaxed);
        let under_way = &mut fetches.under_way;
        under_way.insert(owner, held, number, route, entry);
        let ticket = FetchTicket {
            server: Arc::clone(&connection.server),
            owner,
            number,
        };
        (ticket, given_up)
    }

    /// Makes a place for a call of a connection that has so many: true if another has more, and
    /// one of these is not read yet. `of_method`: it has to be one of that method.
    pub(super) fn give_place(&self, calls: usize, of_method: Option<usize>) -> bool {
        let given_up = {
            let mut fetches = self.lock();
            let oldest = fetches.under_way.oldest_of_most(calls, of_method);
            oldest.and_then(|it| fetches.give_up(it))
        };
        // Dropped without the lock, as its waker is.
        given_up.is_some()
    }
}

/// It is there as long as an entry of it is.
fn key_of(connection: &Arc<ServerConnection>) -> usize {
    Arc::as_ptr(connection).addr()
}

impl Fetches {
    /// Takes a request, and gives its room back.
    fn give_up(&mut self, (owner, number): (usize, u64)) -> Option<Entry> {
        let entry = self.under_way.remove(owner, number)?;
        self.give_back(&entry.connection, entry.bytes);
        Some(entry)
    }

    fn give_back(&mut self, connection: &Arc<ServerConnection>, bytes: usize) {
        self.free += bytes;
        let before = connection.share.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.under_way.set_sum(key_of(connection), before - bytes);
    }
}

impl FetchTicket {
    /// Room for so many bytes, which others may have to give up. False: there is none, or this
    /// request was given up itself.
    pub(super) fn reserve(&self, len: u64) -> bool {
        // A client that means it has sent what is smaller in its frame.
        let bytes = usize::try_from(len).unwrap_or(usize::MAX).max(FRAME_MAX);
        let mut given_up = Vec::new();
        let mut fetches = self.server.fetches.lock();
        let Some(entry) = fetches.under_way.value_mut(self.owner, self.number) else {
            return false;
        };
        let connection = Arc::clone(&entry.connection);
        let held = || connection.share.bytes.load(Ordering::Relaxed);
        // With this, it leaves as much to others as it has.
        while held() + 2 * bytes > fetches.free {
            let Some(oldest) = fetches.under_way.oldest_of_largest(held() + bytes) else {
                break;
            };
            given_up.extend(fetches.give_up(oldest));
        }
        let has_room = held() + 2 * bytes <= fetches.free;
        let under_way = &mut fetches.under_way;
        if has_room && let Some(entry) = under_way.value_mut(self.owner, self.number) {
            entry.bytes = bytes;
            let before = connection.share.bytes.fetch_add(bytes, Ordering::Relaxed);
            under_way.count_in(self.owner, self.number);
            under_way.set_sum(self.owner, before + bytes);
            fetches.free -= bytes;
        }
        drop(fetches);
        has_room
    }

    /// The body is whole, or there will be none: what the call goes on with, unless others have it.
    pub(super) fn end(&self) -> Option<CallPermit> {
        let mut fetches = self.server.fetches.lock();
        let removed = fetches.under_way.remove(self.owner, self.number);
        drop(fetches);
        let Entry {
            connection,
            bytes,
            mut permit,
            ..
        } = removed?;
        permit.hold(BodyPermit { connection, bytes });
        Some(permit)
    }
}

/// Of a call whose task ends with the runtime.
impl Drop for FetchTicket {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        let mut fetches = self.connection.server.fetches.lock();
        fetches.give_back(&self.connection, self.bytes);
    }
}
