//! What requests by reference hold of a server, and who gives way to whom.
//!
//! A client that asks the server to read its memory, and then does not serve that, holds a call's
//! place and room for the body at no cost to itself. So as long as no handler has seen a request,
//! it holds both only until others need them that have less: where nothing is left, the
//! connection that has most loses its oldest request, as not started. Bodies that handlers have
//! are out of reach; of these a connection has no more than it leaves to all others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::connection::ServerConnection;
use super::listening::{CallPermit, ServerShared};
use crate::limits::{BODIES_PER_SERVER, FRAME_MAX};

/// What a connection has of that; written under the lock of all.
#[derive(Debug, Default)]
pub(super) struct BodyShare {
    /// Bytes, those of handlers included.
    bytes: AtomicUsize,
    /// Requests that are not read to their end.
    fetches: AtomicUsize,
}

/// The requests of a server whose bodies are on their way, and the room for all bodies.
pub(super) struct FetchTable(Mutex<Fetches>);

struct Fetches {
    /// Bytes that no body has.
    free: usize,
    /// In the order in which they came.
    under_way: BTreeMap<u64, Entry>,
    next: u64,
}

/// A request until its body is whole.
struct Entry {
    connection: Arc<ServerConnection>,
    /// Of its method.
    route: usize,
    /// Bytes that it has room for; 0 before its turn.
    bytes: usize,
    permit: CallPermit,
    /// Dropped, the request is given up.
    _wanted: oneshot::Sender<Infallible>,
}

/// The request of one call in the table, until this is dropped.
pub(super) struct FetchTicket {
    server: Arc<ServerShared>,
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
            under_way: BTreeMap::new(),
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
        let number = fetches.next;
        fetches.next += 1;
        connection.share.fetches.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            connection: Arc::clone(connection),
            route,
            bytes: 0,
            permit,
            _wanted: wanted,
        };
        fetches.under_way.insert(number, entry);
        let server = Arc::clone(&connection.server);
        (FetchTicket { server, number }, given_up)
    }

    /// Makes a place for a call of a connection that has so many: true if another has more, and
    /// one of these is not read yet. `of_method`: it has to be one of that method.
    pub(super) fn give_place(&self, calls: usize, of_method: Option<usize>) -> bool {
        let given_up = self.lock().give_up(calls, |it| {
            let is_of_use = of_method.is_none_or(|route| route == it.route);
            let calls = it.connection.share.fetches.load(Ordering::Relaxed);
            if is_of_use { calls } else { 0 }
        });
        // Dropped without the lock, as its waker is.
        given_up.is_some()
    }
}

impl Fetches {
    /// Takes the oldest request of the connection that has most of what is asked for, if that is
    /// more than so much.
    fn give_up(&mut self, more_than: usize, has: impl Fn(&Entry) -> usize) -> Option<Entry> {
        let mut most = (more_than, None);
        for (number, entry) in &self.under_way {
            let has = has(entry);
            if has > most.0 {
                most = (has, Some(*number));
            }
        }
        let entry = self.remove(most.1?)?;
        self.free += entry.bytes;
        let share = &entry.connection.share;
        share.bytes.fetch_sub(entry.bytes, Ordering::Relaxed);
        Some(entry)
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.under_way.remove(&number)?;
        let share = &entry.connection.share;
        share.fetches.fetch_sub(1, Ordering::Relaxed);
        Some(entry)
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
        let Some(entry) = fetches.under_way.get(&self.number) else {
            return false;
        };
        let connection = Arc::clone(&entry.connection);
        let held = || connection.share.bytes.load(Ordering::Relaxed);
        // With this, it leaves as much to others as it has.
        while held() + 2 * bytes > fetches.free {
            let of_others = |it: &Entry| match it.bytes {
                0 => 0,
                _ => it.connection.share.bytes.load(Ordering::Relaxed),
            };
            match fetches.give_up(held() + bytes, of_others) {
                Some(entry) => given_up.push(entry),
                None => break,
            }
        }
        let has_room = held() + 2 * bytes <= fetches.free;
        if has_room && let Some(entry) = fetches.under_way.get_mut(&self.number) {
            entry.bytes = bytes;
            connection.share.bytes.fetch_add(bytes, Ordering::Relaxed);
            fetches.free -= bytes;
        }
        drop(fetches);
        has_room
    }

    /// The body is whole, or there will be none: what the call goes on with, unless others have it.
    pub(super) fn end(&self) -> Option<CallPermit> {
        let removed = self.server.fetches.lock().remove(self.number);
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
        fetches.free += self.bytes;
        let share = &self.connection.share;
        share.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
