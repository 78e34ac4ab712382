//! Which ports an endpoint has, and how addresses are called in its receive context.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::proto::{ConnectionId, SourceId};

use super::super::engine::Engine;
use super::super::port::Port;

/// Addresses without a port that nobody here has asked for, and that are remembered all the same,
/// so that whoever connects again is called the same.
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

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<SocketAddr, Entry>,
    addresses: HashMap<SourceId, SocketAddr>,
    /// All ports that have not ended.
    ports: BTreeMap<ConnectionId, Arc<Port>>,
    /// Addresses whose port has ended, oldest first; some are in use again.
    left: VecDeque<SocketAddr>,
    next_source: u64,
    next_connection: u64,
    stage: Stage,
    end_wakers: Vec<Waker>,
}

#[derive(Debug)]
struct Entry {
    source: SourceId,
    /// The port that is posted to.
    port: Option<(Arc<Port>, ConnectionId)>,
    /// Somebody here has asked for it, and may keep its name.
    pinned: bool,
}

impl Table {
    pub(super) fn check_open(&self) -> Result<()> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Closing | Stage::Ended => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            Stage::Gone => Err(Engine::gone_error()),
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
    pub(super) fn end(&mut self, stage: Stage) -> Vec<Waker> {
        self.stage = stage;
        std::mem::take(&mut self.end_wakers)
    }

    pub(super) fn poll_ended(&mut self, waker: &Waker) -> Poll<()> {
        if matches!(self.stage, Stage::Ended | Stage::Gone) {
            return Poll::Ready(());
        }
        if !self.end_wakers.iter().any(|held| held.will_wake(waker)) {
            self.end_wakers.push(waker.clone());
        }
        Poll::Pending
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

    pub(super) fn address_of(&self, source: SourceId) -> Option<SocketAddr> {
        self.addresses.get(&source).copied()
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
            if !entry.pinned {
                self.left.push_back(peer);
            }
        }
        while self.left.len() > STRANGERS_MAX {
            self.forget_oldest();
        }
        port
    }

    fn forget_oldest(&mut self) {
        let Some(peer) = self.left.pop_front() else {
            return;
        };
        let is_idle = |entry: &Entry| entry.port.is_none() && !entry.pinned;
        if self.entries.get(&peer).is_some_and(is_idle)
            && let Some(entry) = self.entries.remove(&peer)
        {
            self.addresses.remove(&entry.source);
        }
    }
}
