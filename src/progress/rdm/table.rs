//! The ports of an endpoint, and its peers as senders in its receive context.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, PeerAddr};
use crate::limits::{RDM_STRANGERS_MAX, RDM_UNPIN_MIN};
use crate::proto::{ConnectionId, HostShares, SourceId, host_of};
use crate::stats::EndpointStats;
use crate::sync::{Waiters, WakeList};

use super::super::engine::Engine;
use super::super::port::Port;
use super::sources::SourceAddresses;

/// The states of the endpoint.
///
/// ```text
///   Open ── begin_close ──▶ Closing ── no port is left ──▶ Ended
///    └────────────────────────┴── driver or task gone ──▶ Gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointState {
    Open,
    /// No operation is accepted any more; ports end in order.
    Closing,
    Ended,
    /// The driver or the task ended before the endpoint was closed; everything has ended with it.
    Gone,
}

state_machine! { EndpointState {
    Open => [Closing, Gone],
    Closing => [Ended, Gone],
    Ended => [],
    Gone => [],
}}

#[derive(Debug)]
pub(super) struct Table {
    entries: HashMap<PeerAddr, PeerEntry>,
    addresses: Arc<SourceAddresses>,
    /// All ports that have not ended.
    ports: BTreeMap<ConnectionId, Arc<Port>>,
    /// Addresses whose port has ended, and that the application has not asked for.
    departed: HostShares<(u64, PeerAddr), IpAddr>,
    next_departed: u64,
    /// The endpoint, which its connections' ids name.
    endpoint: EndpointId,
    next_connection: u64,
    /// Number of pinned entries, and the number at which the table looks for pinned entries whose
    /// address was removed from the vector.
    pinned: usize,
    unpin_at: usize,
    state: EndpointState,
    /// The reason why the task ended before the endpoint was closed.
    gone: Option<Error>,
    /// The wakers of futures that await the end.
    close_waiters: Waiters,
    /// Statistics of ports that have ended.
    ended: EndpointStats,
}

#[derive(Debug)]
struct PeerEntry {
    /// The port to post to.
    port: Option<(Arc<Port>, ConnectionId)>,
    /// True if the application has asked for the peer, and may keep its source id while the address
    /// vector has the address.
    pinned: bool,
    /// Its number among the departed.
    departed: Option<u64>,
    /// True if a connection with it was up.
    was_connected: bool,
}

impl Table {
    pub(super) fn new(endpoint: EndpointId, addresses: Arc<SourceAddresses>) -> Self {
        Table {
            entries: HashMap::new(),
            addresses,
            ports: BTreeMap::new(),
            departed: HostShares::new(RDM_STRANGERS_MAX),
            next_departed: 0,
            endpoint,
            next_connection: 0,
            pinned: 0,
            unpin_at: RDM_UNPIN_MIN,
            state: EndpointState::Open,
            gone: None,
            close_waiters: Waiters::default(),
            ended: EndpointStats::default(),
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.state {
            EndpointState::Open => Ok(()),
            EndpointState::Closing | EndpointState::Ended => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            EndpointState::Gone => Err(self.gone.clone().unwrap_or_else(Engine::gone_error)),
        }
    }

    pub(super) fn state(&self) -> EndpointState {
        self.state
    }

    pub(super) fn begin_close(&mut self) {
        if self.state == EndpointState::Open {
            self.go(EndpointState::Closing);
        }
    }

    /// Moves along a legal edge.
    fn go(&mut self, to: EndpointState) {
        check_edge(&self.state, &to);
        self.state = to;
    }

    /// Ends the endpoint; returns the wakers of the tasks that wait for the end.
    #[must_use]
    pub(super) fn end(&mut self, to: EndpointState, why: &Error) -> WakeList {
        self.go(to);
        self.gone = (to == EndpointState::Gone).then(|| why.clone());
        let mut wakes = WakeList::new();
        self.close_waiters.take_all(&mut wakes);
        wakes
    }

    /// Returns whether the endpoint has ended, and the wakers of futures that await the end.
    pub(super) fn end_and_waiters(&mut self) -> (bool, &mut Waiters) {
        let has_ended = matches!(self.state, EndpointState::Ended | EndpointState::Gone);
        (has_ended, &mut self.close_waiters)
    }

    /// Returns the port to post to, if it takes posts.
    pub(super) fn current(&self, peer: PeerAddr) -> Option<Arc<Port>> {
        let (port, _) = self.entries.get(&peer)?.port.as_ref()?;
        (!port.is_superseded()).then(|| Arc::clone(port))
    }

    fn entry(&mut self, peer: PeerAddr) -> &mut PeerEntry {
        self.entries.entry(peer).or_insert_with(|| {
            self.addresses.hold(peer);
            PeerEntry {
                port: None,
                pinned: false,
                departed: None,
                was_connected: false,
            }
        })
    }

    /// Returns the source id of this peer with the key that has this number.
    pub(super) fn source_of(&mut self, peer: PeerAddr, key: u16) -> SourceId {
        self.entry(peer);
        self.addresses.source_of(peer, key)
    }

    /// Returns the peer's source id for the application, which may keep the id.
    pub(super) fn pin(&mut self, peer: PeerAddr, key: u16) -> SourceId {
        self.pin_entry(peer);
        self.source_of(peer, key)
    }

    fn pin_entry(&mut self, peer: PeerAddr) {
        let was_pinned = std::mem::replace(&mut self.entry(peer).pinned, true);
        self.pinned += usize::from(!was_pinned);
    }

    /// Unpins peers that are no longer known. All are checked whenever their number has doubled, so
    /// the cost for each is small.
    pub(super) fn unpin_removed(&mut self, is_known: impl Fn(PeerAddr) -> bool) {
        if self.pinned < self.unpin_at {
            return;
        }
        let pinned = self.entries.iter().filter(|(_, entry)| entry.pinned);
        let removed = pinned
            .map(|(peer, _)| *peer)
            .filter(|peer| !is_known(*peer));
        // Sorted, so that their order does not depend on hashes.
        let removed: BTreeSet<_> = removed.collect();
        for peer in removed {
            self.entry(peer).pinned = false;
            self.pinned -= 1;
            self.note_departed(peer);
        }
        self.unpin_at = RDM_UNPIN_MIN.max(2 * self.pinned);
    }

    pub(super) fn next_connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId {
            endpoint: self.endpoint,
            number: self.next_connection,
        }
    }

    pub(super) fn keep(&mut self, connection: ConnectionId, port: &Arc<Port>) {
        self.ports.insert(connection, Arc::clone(port));
    }

    /// Makes this the port to post to, unless there is one already, which is returned.
    pub(super) fn enter(
        &mut self,
        peer: PeerAddr,
        port: &Arc<Port>,
        connection: ConnectionId,
        pinned: bool,
    ) -> Option<Arc<Port>> {
        if let Some(other) = self.current(peer) {
            return Some(other);
        }
        if pinned {
            self.pin_entry(peer);
        }
        let entry = self.entry(peer);
        entry.port = Some((Arc::clone(port), connection));
        None
    }

    /// Makes this the port to post to; returns the previous one.
    #[must_use]
    pub(super) fn replace(
        &mut self,
        peer: PeerAddr,
        port: &Arc<Port>,
        connection: ConnectionId,
    ) -> Option<Arc<Port>> {
        let entry = self.entry(peer);
        let old = entry.port.replace((Arc::clone(port), connection));
        old.map(|(old, _)| old)
    }

    pub(super) fn port(&self, connection: ConnectionId) -> Option<Arc<Port>> {
        self.ports.get(&connection).cloned()
    }

    pub(super) fn all_ports(&self) -> Vec<Arc<Port>> {
        self.ports.values().cloned().collect()
    }

    /// Returns the statistics of ports that have ended.
    pub(super) fn ended_stats(&self) -> EndpointStats {
        self.ended
    }

    /// Notes that a connection with this peer is up.
    pub(super) fn connected(&mut self, peer: PeerAddr) {
        let was_connected = &mut self.entry(peer).was_connected;
        let is_again = std::mem::replace(was_connected, true);
        self.ended.reconnects += u64::from(is_again);
    }

    pub(super) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Removes a port that has ended, with its statistics; the caller drops it with no lock held.
    #[must_use]
    pub(super) fn remove(
        &mut self,
        peer: PeerAddr,
        connection: ConnectionId,
        ended: &EndpointStats,
    ) -> Option<Arc<Port>> {
        let port = self.ports.remove(&connection);
        self.ended.add(ended);
        if let Some(entry) = self.entries.get_mut(&peer) {
            entry.port.take_if(|(_, current)| *current == connection);
        }
        self.note_departed(peer);
        port
    }

    /// Remembers a peer without a port, while there is room.
    fn note_departed(&mut self, peer: PeerAddr) {
        let number = self.next_departed;
        let Some(entry) = self.entries.get_mut(&peer) else {
            return;
        };
        if let Some(before) = entry.departed.take() {
            self.departed.remove((before, peer), host_of(peer.socket));
        }
        if entry.pinned || entry.port.is_some() {
            return;
        }
        self.next_departed += 1;
        entry.departed = Some(number);
        if let Some((_, evicted)) = self.departed.insert((number, peer), host_of(peer.socket)) {
            self.forget(evicted);
        }
    }

    /// Forgets a departed peer, unless it has come back.
    fn forget(&mut self, peer: PeerAddr) {
        let Some(entry) = self.entries.get_mut(&peer) else {
            return;
        };
        entry.departed = None;
        if entry.port.is_none() && !entry.pinned {
            self.addresses.release(peer);
            self.entries.remove(&peer);
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.addresses.release_later(self.entries.keys().copied());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Source ids are kept for senders that come again: a host that connects from thousands of
    /// ports loses its own ids, and no id is lost that the application has asked for.
    #[test]
    fn one_hosts_storm_makes_no_others_name_forgotten() {
        let at = |host: u8, port: u16| PeerAddr::from(SocketAddr::from(([10, 0, 0, host], port)));
        let mut table = Table::new(EndpointId::next(), Arc::default());
        let came_and_left = |table: &mut Table, peer| {
            let source = table.source_of(peer, 0);
            let connection = table.next_connection();
            assert!(
                table
                    .remove(peer, connection, &EndpointStats::default())
                    .is_none()
            );
            source
        };
        let other = came_and_left(&mut table, at(2, 1));
        let asked_for = table.pin(at(1, 0), 0);
        came_and_left(&mut table, at(1, 0));
        for port in 1..=u16::MAX {
            came_and_left(&mut table, at(1, port));
            assert!(table.entries.len() <= RDM_STRANGERS_MAX + 1);
        }
        // A sender that comes again and again takes one place.
        for _ in 0..2 * RDM_STRANGERS_MAX {
            came_and_left(&mut table, at(3, 1));
        }
        assert_eq!(table.addresses.len(), table.entries.len());
        assert_eq!(table.departed.len(), RDM_STRANGERS_MAX);
        assert_eq!(table.addresses.get(other), Some(at(2, 1)));
        assert_eq!(table.addresses.get(asked_for), Some(at(1, 0)));
        assert_eq!(table.source_of(at(2, 1), 0), other);
    }

    /// Addresses that are used once and removed leave no more behind than strangers do; addresses
    /// that are still in the vector keep their source ids.
    #[test]
    fn removed_addresses_are_let_go_of() {
        let at = |host: u8, port: u16| PeerAddr::from(SocketAddr::from(([10, 0, 0, host], port)));
        let mut table = Table::new(EndpointId::next(), Arc::default());
        let is_known = |peer: PeerAddr| peer.socket.ip() == at(2, 0).socket.ip();
        let mut kept = Vec::new();
        for port in 1..=u16::MAX {
            table.unpin_removed(is_known);
            table.pin(at(1, port), 0);
            if port % 100 == 0 {
                kept.push((at(2, port), table.pin(at(2, port), 0)));
            }
            assert!(table.pinned <= 2 * kept.len() + RDM_UNPIN_MIN);
        }
        assert!(table.entries.len() <= RDM_STRANGERS_MAX + table.pinned);
        for (peer, source) in kept {
            assert_eq!(table.source_of(peer, 0), source);
        }
    }
}
