//! The feed of a connectionless endpoint's peers: each reader has its own unread changes, coalesced
//! per peer. Without a reader the feed keeps nothing.
//!
//! Ports report under their locks, when their connection is up and after its operations have ended;
//! the feed's own lock is taken last and alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::Error;
use crate::id::PeerAddr;
use crate::sync::WakeList;

use super::peer_changes::{PeerChange, PeerChanges, PeerEventKind};

/// The feed, shared by its readers and by the endpoint's ports.
#[derive(Debug, Default)]
pub(super) struct PeerFeed {
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    /// Peers with a connection, in an order that does not depend on a hash.
    up: BTreeMap<PeerAddr, UpPeer>,
    readers: BTreeMap<u64, Reader>,
    next_reader: u64,
    /// Incremented when the last reader is dropped: connections counted before are no longer in
    /// `up`.
    epoch: u64,
    /// True once the endpoint has ended: no change follows.
    ended: bool,
}

#[derive(Debug)]
struct UpPeer {
    /// Number of connections. Two exist for a moment when the peer has restarted, or is being
    /// verified.
    connections: usize,
    /// The incarnation of the latest connection.
    incarnation: Option<u32>,
}

#[derive(Debug, Default)]
struct Reader {
    changes: PeerChanges,
    waker: Option<Waker>,
}

/// The state of a port's connection in the feed.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The incarnation that the peer reported, while the connection is up.
    pub(super) connected: Option<Option<u32>>,
    /// The epoch in which the feed counted the connection.
    counted: Option<u64>,
    /// True if the endpoint has given up the peer, which was not connected: the feed reports that
    /// too.
    pub(super) is_given_up: bool,
}

impl PeerFeed {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a reader, whose first changes are the peers that are up. Returns true if it is the
    /// only one: all ports must then [present](Self::present) their connections.
    pub(super) fn open(self: &Arc<Self>) -> (PeerReader, bool) {
        let mut state = self.lock();
        let id = state.next_reader;
        state.next_reader += 1;
        let mut reader = Reader::default();
        for (&peer, up) in &state.up {
            reader.changes.push(PeerChange {
                peer,
                kind: PeerEventKind::Up,
                incarnation: up.incarnation,
            });
        }
        let is_first = state.readers.is_empty();
        state.readers.insert(id, reader);
        let feed = Arc::clone(self);
        (PeerReader { feed, id }, is_first)
    }

    /// Reports that a connection with the peer is up.
    pub(super) fn connected(
        &self,
        presence: &mut Presence,
        peer: PeerAddr,
        incarnation: Option<u32>,
        wakes: &mut WakeList,
    ) {
        presence.connected = Some(incarnation);
        self.present(presence, peer, wakes);
    }

    /// Counts the port's connection, if it is up and has not been counted.
    pub(super) fn present(&self, presence: &mut Presence, peer: PeerAddr, wakes: &mut WakeList) {
        let Some(incarnation) = presence.connected else {
            return;
        };
        let mut state = self.lock();
        if state.readers.is_empty() || state.ended || presence.counted == Some(state.epoch) {
            return;
        }
        presence.counted = Some(state.epoch);
        let kind = match state.up.get_mut(&peer) {
            None => {
                let up = UpPeer {
                    connections: 1,
                    incarnation,
                };
                state.up.insert(peer, up);
                PeerEventKind::Up
            }
            Some(up) => {
                up.connections += 1;
                if std::mem::replace(&mut up.incarnation, incarnation) == incarnation {
                    return;
                }
                PeerEventKind::Restarted
            }
        };
        state.push(peer, kind, incarnation, wakes);
    }

    /// Reports that the port's connection, or its attempt at one, has ended with all its
    /// operations.
    pub(super) fn closed(
        &self,
        presence: &mut Presence,
        peer: PeerAddr,
        error: Option<Error>,
        wakes: &mut WakeList,
    ) {
        let presence = std::mem::take(presence);
        let mut state = self.lock();
        if state.readers.is_empty() || state.ended {
            return;
        }
        let mut incarnation = None;
        if presence.counted == Some(state.epoch) {
            let Some(up) = state.up.get_mut(&peer) else {
                return;
            };
            up.connections -= 1;
            if up.connections > 0 {
                return;
            }
            incarnation = up.incarnation;
            state.up.remove(&peer);
        } else if !presence.is_given_up || state.up.contains_key(&peer) {
            return;
        }
        state.push(peer, PeerEventKind::Down { error }, incarnation, wakes);
    }

    /// Ends the feed with the endpoint: reports all peers that are up as down, for this reason.
    pub(super) fn end(&self, error: &Error) {
        let mut wakes = WakeList::new();
        let mut state = self.lock();
        for (peer, up) in std::mem::take(&mut state.up) {
            let kind = PeerEventKind::Down {
                error: Some(error.clone()),
            };
            state.push(peer, kind, up.incarnation, &mut wakes);
        }
        state.ended = true;
        state.wake(&mut wakes);
        drop(state);
    }
}

impl FeedState {
    fn push(
        &mut self,
        peer: PeerAddr,
        kind: PeerEventKind,
        incarnation: Option<u32>,
        wakes: &mut WakeList,
    ) {
        for reader in self.readers.values_mut() {
            reader.changes.push(PeerChange {
                peer,
                kind: kind.clone(),
                incarnation,
            });
        }
        self.wake(wakes);
    }

    fn wake(&mut self, wakes: &mut WakeList) {
        for reader in self.readers.values_mut() {
            reader
                .waker
                .take()
                .into_iter()
                .for_each(|it| wakes.push(it));
        }
    }
}

/// One reader of the feed. Dropping it removes its records.
#[derive(Debug)]
pub(crate) struct PeerReader {
    feed: Arc<PeerFeed>,
    id: u64,
}

impl PeerReader {
    /// Takes the oldest unread change; `None` once the endpoint has ended and everything has been
    /// read.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<PeerChange>> {
        let mut state = self.feed.lock();
        let ended = state.ended;
        let Some(reader) = state.readers.get_mut(&self.id) else {
            return Poll::Ready(None);
        };
        if let Some(change) = reader.changes.pop() {
            return Poll::Ready(Some(change));
        }
        if ended {
            return Poll::Ready(None);
        }
        let before = reader.waker.replace(cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for PeerReader {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        let reader = state.readers.remove(&self.id);
        if state.readers.is_empty() {
            state.up.clear();
            state.epoch += 1;
        }
        drop(state);
        drop(reader);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::error::ErrorKind;

    fn peer() -> PeerAddr {
        SocketAddr::from(([10, 0, 0, 1], 1)).into()
    }

    fn next(reader: &mut PeerReader) -> Option<String> {
        let mut cx = Context::from_waker(Waker::noop());
        match reader.poll_next(&mut cx) {
            Poll::Ready(Some(change)) => Some(match change.kind {
                PeerEventKind::Up => format!("up {:?}", change.incarnation),
                PeerEventKind::Restarted => format!("restarted {:?}", change.incarnation),
                PeerEventKind::Down { error } => {
                    let error = error.map(|error| error.kind());
                    format!("down {:?} {error:?}", change.incarnation)
                }
            }),
            Poll::Ready(None) => Some("end".to_owned()),
            Poll::Pending => None,
        }
    }

    fn read(what: &str) -> Option<String> {
        Some(what.to_owned())
    }

    /// A second connection of the same incarnation (a check, or both ends of one to ourselves) is
    /// not reported; one of another incarnation is a restart, and the end of the old one is not
    /// reported any more.
    #[test]
    fn a_peer_is_up_while_any_connection_is() {
        let feed = Arc::new(PeerFeed::default());
        let mut wakes = WakeList::new();
        let (mut reader, is_first) = feed.open();
        assert!(is_first);
        let [mut old, mut check, mut new] = [(); 3].map(|()| Presence::default());
        feed.connected(&mut old, peer(), Some(1), &mut wakes);
        assert_eq!(next(&mut reader), read("up Some(1)"));
        feed.connected(&mut check, peer(), Some(1), &mut wakes);
        feed.closed(&mut check, peer(), None, &mut wakes);
        assert_eq!(next(&mut reader), None);
        feed.connected(&mut new, peer(), Some(2), &mut wakes);
        let lost = Error::new(ErrorKind::ConnectionReset, "");
        feed.closed(&mut old, peer(), Some(lost.clone()), &mut wakes);
        assert_eq!(next(&mut reader), read("restarted Some(2)"));
        assert_eq!(next(&mut reader), None);
        feed.closed(&mut new, peer(), Some(lost), &mut wakes);
        assert_eq!(
            next(&mut reader),
            read("down Some(2) Some(ConnectionReset)")
        );
        // A failed attempt is reported only if an operation waited for it.
        feed.closed(&mut check, peer(), None, &mut wakes);
        assert_eq!(next(&mut reader), None);
        new.is_given_up = true;
        let error = Error::new(ErrorKind::Unreachable, "");
        feed.closed(&mut new, peer(), Some(error), &mut wakes);
        assert_eq!(next(&mut reader), read("down None Some(Unreachable)"));
    }

    /// Without a reader nothing is kept; a connection that was counted for readers that are gone is
    /// counted again for the next one.
    #[test]
    fn without_a_reader_nothing_is_kept() {
        let feed = Arc::new(PeerFeed::default());
        let mut wakes = WakeList::new();
        let mut port = Presence::default();
        feed.connected(&mut port, peer(), Some(1), &mut wakes);
        assert!(feed.lock().up.is_empty());
        for _ in 0..3 {
            let (mut first, is_first) = feed.open();
            assert!(is_first);
            feed.present(&mut port, peer(), &mut wakes);
            feed.present(&mut port, peer(), &mut wakes);
            let (mut second, is_first) = feed.open();
            assert!(!is_first);
            for reader in [&mut first, &mut second] {
                assert_eq!(next(reader), read("up Some(1)"));
                assert_eq!(next(reader), None);
            }
            drop((first, second));
            assert!(feed.lock().up.is_empty() && feed.lock().readers.is_empty());
        }
        // It ends unseen; the next connection is seen.
        feed.closed(&mut port, peer(), None, &mut wakes);
        let (mut reader, _) = feed.open();
        feed.present(&mut port, peer(), &mut wakes);
        assert_eq!(next(&mut reader), None);
        feed.connected(&mut port, peer(), Some(2), &mut wakes);
        feed.end(&Error::new(ErrorKind::DriverGone, ""));
        assert_eq!(next(&mut reader), read("down Some(2) Some(DriverGone)"));
        assert_eq!(next(&mut reader), read("end"));
        assert_eq!(next(&mut feed.open().0), read("end"));
    }
}
