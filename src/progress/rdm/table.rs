//! Which ports an endpoint has, and how addresses are called in its receive context.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::proto::{ConnectionId, HostShares, SourceId, host_of};
use crate::sync::WakeList;

use super::super::ended::EndState;
use super::super::engine::Engine;
use super::super::port::Port;
use super::sources::SourceAddresses;

/// Addresses without a port that nobody here has asked for, and that are remembered all the same,
/// so that whoever connects again is called the same. Those of one host make room first if it has
/// the most.
const STRANGERS_MAX: usize = 16_384;

/// How far the endpoint's life has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Open,
    Closing,
    Ended,
    /// The task has gone before its time.
    Gone,
}

#[derive(Debug)]
pub(super) struct Table {
    entries: HashMap<SocketAddr, Entry>,
    addresses: Arc<SourceAddresses>,
    /// All ports that have not ended.
    ports: BTreeMap<ConnectionId, Arc<Port>>,
    /// Addresses whose port has ended, and that nobody here has asked for.
    left: HostShares<(u64, SocketAddr), IpAddr>,
    next_left: u64,
    next_source: u64,
    next_connection: u64,
    stage: Stage,
    /// Why it has gone before its time.
    gone: Option<Error>,
    end: EndState,
}

#[derive(Debug)]
struct Entry {
    source: SourceId,
    /// The port that is posted to.
    port: Option<(Arc<Port>, ConnectionId)>,
    /// Somebody here has asked for it, and may keep its name.
    pinned: bool,
    /// Its place among those that have left.
    left: Option<u64>,
}

impl Table {
    pub(super) fn new(addresses: Arc<SourceAddresses>) -> Self {
        Table {
            entries: HashMap::new(),
            addresses,
            ports: BTreeMap::new(),
            left: HostShares::new(STRANGERS_MAX),
            next_left: 0,
            next_source: 0,
            next_connection: 0,
            stage: Stage::Open,
            gone: None,
            end: EndState::default(),
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Closing | Stage::Ended => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            Stage::Gone => Err(self.gone.clone().unwrap_or_else(Engine::gone_error)),
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) fn begin_close(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Closing;
        }
    }

    /// The endpoint has ended; who waits for that is to be woken.
    #[must_use]
    pub(super) fn end(&mut self, stage: Stage, why: &Error) -> WakeList {
        self.stage = stage;
        self.gone = (stage == Stage::Gone).then(|| why.clone());
        let mut wakes = WakeList::new();
        self.end.set_ended(&mut wakes);
        wakes
    }

    pub(super) fn end_state(&mut self) -> &mut EndState {
        &mut self.end
    }

    /// The port to post to, if it takes posts.
    pub(super) fn current(&self, peer: SocketAddr) -> Option<Arc<Port>> {
        let (port, _) = self.entries.get(&peer)?.port.as_ref()?;
        (!port.has_moved()).then(|| Arc::clone(port))
    }

    fn entry(&mut self, peer: SocketAddr) -> &mut Entry {
        self.entries.entry(peer).or_insert_with(|| {
            let source = SourceId(self.next_source);
            self.next_source += 1;
            self.addresses.insert(source, peer);
            Entry {
                source,
                port: None,
                pinned: false,
                left: None,
            }
        })
    }

    pub(super) fn source_of(&mut self, peer: SocketAddr) -> SourceId {
        self.entry(peer).source
    }

    /// The same, for somebody who may keep it.
    pub(super) fn pin(&mut self, peer: SocketAddr) -> SourceId {
        let entry = self.entry(peer);
        entry.pinned = true;
        entry.source
    }

    pub(super) fn next_connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        ConnectionId(self.next_connection)
    }

    pub(super) fn keep(&mut self, connection: ConnectionId, port: &Arc<Port>) {
        self.ports.insert(connection, Arc::clone(port));
    }

    /// Makes a port the one to post to, unless there is one, which is returned then.
    pub(super) fn enter(
        &mut self,
        peer: SocketAddr,
        port: &Arc<Port>,
        connection: ConnectionId,
        pinned: bool,
    ) -> Option<Arc<Port>> {
        if let Some(other) = self.current(peer) {
            return Some(other);
        }
        let entry = self.entry(peer);
        entry.pinned |= pinned;
        entry.port = Some((Arc::clone(port), connection));
        None
    }

    /// Makes a port the one to post to, in the place of another, which is returned.
    #[must_use]
    pub(super) fn replace(
        &mut self,
        peer: SocketAddr,
        port: &Arc<Port>,
        connection: ConnectionId,
    ) -> Option<Arc<Port>> {
        let entry = self.entry(peer);
        let old = entry.port.replace((Arc::clone(port), connection));
        old.map(|(old, _)| old)
    }

    /// True if somebody here has asked for this address.
    pub(super) fn is_known(&self, peer: SocketAddr) -> bool {
        self.entries.get(&peer).is_some_and(|entry| entry.pinned)
    }

    pub(super) fn port(&self, connection: ConnectionId) -> Option<Arc<Port>> {
        self.ports.get(&connection).cloned()
    }

    pub(super) fn all_ports(&self) -> Vec<Arc<Port>> {
        self.ports.values().cloned().collect()
    }

    pub(super) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// A port has ended. It is returned, to be dropped with no lock held.
    #[must_use]
    pub(super) fn remove(
        &mut self,
        peer: SocketAddr,
        connection: ConnectionId,
    ) -> Option<Arc<Port>> {
        let port = self.ports.remove(&connection);
        if let Some(entry) = self.entries.get_mut(&peer) {
            entry.port.take_if(|(_, current)| *current == connection);
        }
        self.has_left(peer);
        port
    }

    /// A peer without a port is remembered, while there is room.
    fn has_left(&mut self, peer: SocketAddr) {
        let number = self.next_left;
        let Some(entry) = self.entries.get_mut(&peer) else {
            return;
        };
        if let Some(before) = entry.left.take() {
            self.left.remove((before, peer), host_of(peer));
        }
        if entry.pinned || entry.port.is_some() {
            return;
        }
        self.next_left += 1;
        entry.left = Some(number);
        if let Some((_, evicted)) = self.left.insert((number, peer), host_of(peer)) {
            self.forget(evicted);
        }
    }

    /// Forgets one that has left, unless it has come back.
    fn forget(&mut self, peer: SocketAddr) {
        let Some(entry) = self.entries.get_mut(&peer) else {
            return;
        };
        entry.left = None;
        if entry.port.is_none() && !entry.pinned {
            self.addresses.remove(entry.source);
            self.entries.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of senders are kept for those who come again: a host that comes by thousands of ports
    /// loses its own, and nobody loses a name that somebody here has asked for.
    #[test]
    fn one_hosts_storm_makes_no_others_name_forgotten() {
        let at = |host: u8, port: u16| SocketAddr::from(([10, 0, 0, host], port));
        let mut table = Table::new(Arc::default());
        let came_and_left = |table: &mut Table, peer| {
            let source = table.source_of(peer);
            let connection = table.next_connection();
            assert!(table.remove(peer, connection).is_none());
            source
        };
        let other = came_and_left(&mut table, at(2, 1));
        let asked_for = table.pin(at(1, 0));
        came_and_left(&mut table, at(1, 0));
        for port in 1..=u16::MAX {
            came_and_left(&mut table, at(1, port));
            assert!(table.entries.len() <= STRANGERS_MAX + 1);
        }
        // One that comes again and again takes one place.
        for _ in 0..2 * STRANGERS_MAX {
            came_and_left(&mut table, at(3, 1));
        }
        assert_eq!(table.addresses.len(), table.entries.len());
        assert_eq!(table.left.len(), STRANGERS_MAX);
        assert_eq!(table.addresses.get(other), Some(at(2, 1)));
        assert_eq!(table.addresses.get(asked_for), Some(at(1, 0)));
        assert_eq!(table.source_of(at(2, 1)), other);
    }
}
