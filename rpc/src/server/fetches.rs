//! Requests by reference at a server: the resources that they hold, and which of them is given up.
//!
//! A client that asks the server to read its memory, and then does not serve the reads, holds a
//! call's place and room for the body at no cost to itself. So until a handler has the request, the
//! request holds both only while no connection that holds less needs them: if nothing is left, the
//! connection that holds most loses its oldest request, as not started. Bodies that handlers have
//! cannot be taken back; a connection has at most as many bytes of them as it leaves to all others.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::connection::ServerConnection;
use super::listening::{CallPermit, ServerShared};
use super::ranking::Ranking;
use crate::limits::{BODIES_PER_SERVER, FRAME_MAX};

/// A connection's share of the room for bodies. Written under the lock of the whole table.
#[derive(Debug, Default)]
pub(super) struct BodyShare {
    /// Bytes, including those that handlers have.
    bytes: AtomicUsize,
}

/// A server's requests whose bodies are being read, and the room for all bodies.
pub(super) struct FetchTable(Mutex<Fetches>);

struct Fetches {
    /// Bytes that are free.
    free: usize,
    /// The requests of each connection, in the order in which they arrived.
    under_way: Ranking<Entry>,
    next: u64,
}

/// A request until its body is complete.
struct Entry {
    connection: Arc<ServerConnection>,
    /// Bytes of room that the request holds; 0 before its turn.
    bytes: usize,
    permit: CallPermit,
    /// Dropped to notify the request that it was given up.
    _wanted: oneshot::Sender<Infallible>,
}

/// A call's entry in the table; dropping it removes the entry.
pub(super) struct FetchTicket {
    server: Arc<ServerShared>,
    /// Key of the call's connection.
    owner: usize,
    number: u64,
}

/// Becomes ready when the request is given up and its resources go to others.
pub(super) type GivenUp = oneshot::Receiver<Infallible>;

/// Room for a body, until it is dropped.
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

    /// Inserts an admitted request whose body must be read.
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

    /// Frees a place for a call of a connection that has `calls` calls: gives up a request that is
    /// not read yet, of another connection that has more calls. `of_method`: the request must be of
    /// this method. Returns whether a request was given up.
    pub(super) fn give_place(&self, calls: usize, of_method: Option<usize>) -> bool {
        let given_up = {
            let mut fetches = self.lock();
            let oldest = fetches.under_way.oldest_of_most(calls, of_method);
            oldest.and_then(|it| fetches.give_up(it))
        };
        // The entry and its waker are dropped without the lock.
        given_up.is_some()
    }
}

/// Returns the key of a connection, which is valid as long as an entry of the connection exists.
fn key_of(connection: &Arc<ServerConnection>) -> usize {
    Arc::as_ptr(connection).addr()
}

impl Fetches {
    /// Removes a request, and frees its room.
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
    /// Reserves room for `len` bytes; this may give up other requests. False: there is no room, or
    /// this request itself was given up.
    pub(super) fn reserve(&self, len: u64) -> bool {
        // An honest client sends a smaller body in its frame.
        let bytes = usize::try_from(len).unwrap_or(usize::MAX).max(FRAME_MAX);
        let mut given_up = Vec::new();
        let mut fetches = self.server.fetches.lock();
        let Some(entry) = fetches.under_way.value_mut(self.owner, self.number) else {
            return false;
        };
        let connection = Arc::clone(&entry.connection);
        let held = || connection.share.bytes.load(Ordering::Relaxed);
        // Gives up requests until this body leaves at least as many bytes free as the connection
        // then holds.
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

    /// Ends the reading, with or without a body. Returns the permit to continue the call, unless
    /// the request was given up.
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

/// Removes the entry of a call whose task ends with the runtime.
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
