//! A connectionless endpoint: one listener, one task, one port per peer. A scalable endpoint has
//! several contexts behind its one listener (`contexts.rs`): each is an [`Rdm`] with its own
//! engine, peers and receives, and has one port per context of a peer.
//!
//! A post gets the peer's port from [`Rdm::port_to`], which makes the port at first use; the port
//! takes posts before its connection is up. The endpoint's task (`task.rs`), which the listener's
//! task polls, runs the commands of the state machine in `proto/peers`. That machine decides which
//! peer is dialled, whose request is accepted, when to retry and when to give up.
//!
//! Locks: the lock of the peer table is never held together with a port's. Ports queue notices and
//! report to the peer feed under their own lock; the locks of the queue and the feed are taken
//! last.

#![allow(
    clippy::result_large_err,
    reason = "a receive that is not taken goes back whole, and by no allocation"
)]

mod attachment;
mod attempt;
mod contexts;
mod notice;
mod peer_changes;
mod peer_feed;
mod peer_keys;
mod requests;
mod sources;
mod table;
mod task;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::av::AddressVector;
use crate::cq::Completion;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, PeerAddr};
use crate::info::SideCaps;
use crate::mr::AuthSecret;
use crate::proto::{ConnIds, ConnectionId, ExtensionParams, LongMessages, SourceId};
use crate::stats::{EndpointStats, ListenerStats};
use crate::sync::{Lock, MutexGuard, Ring, Waiters};
use crate::transport::{Executor, TrafficMark};
use crate::wire::{Capabilities, NamedContexts};

use super::closed::CloseWatch;
use super::engine::Engine;
use super::listen::{ListenConfig, ListenHandle};
use super::port::{CounterSet, ExtensionConfig, Port, PortSizes};
use super::posting::check_ip_version;
use super::receive_context::ReceiveContext;
pub(super) use attachment::{RdmAttachment, SupersededFlag};
use contexts::{ContextTasks, ListenerShare};
use notice::{Notice, NoticeQueue};
pub use peer_changes::PeerEventKind;
use peer_feed::PeerFeed;
pub(crate) use peer_feed::PeerReader;
pub(crate) use peer_keys::{ListedKey, PeerKeys};
pub(crate) use sources::SourceAddresses;
use table::Table;
use task::RdmTask;

/// The policy of an endpoint for an idle connection
/// ([`RdmEndpointBuilder::idle`](crate::rdm::RdmEndpointBuilder::idle)).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio_fabric::rdm::IdlePolicy;
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let builder = domain.rdm_endpoint().listen_at(([127, 0, 0, 1], 0).into());
/// let endpoint = builder.idle(IdlePolicy::CloseAfter(Duration::from_secs(60))).open()?;
/// # drop(endpoint);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdlePolicy {
    /// It stays open until either side closes its endpoint.
    #[default]
    Keep,
    /// The connection is closed gracefully when nothing has been transferred over it for this time
    /// and nothing is outstanding; the next operation reconnects. A connection with a peer without
    /// this library's extension stays open, because closing it could lose a message that is in
    /// flight.
    CloseAfter(Duration),
}

/// The bindings of all ports of one endpoint.
#[derive(Clone)]
pub(crate) struct RdmBindings {
    /// Queue for completions without a posted operation.
    pub(crate) receive_queue: Ring<Completion>,
    /// Capabilities of the endpoint, which limit its peers' operations.
    pub(crate) caps: SideCaps,
    pub(crate) counters: CounterSet,
    /// True if peers' accesses are counted for the regions too (`FI_RMA_EVENT`).
    pub(crate) rma_events: bool,
    /// Traffic mark of the ports' sockets.
    pub(crate) traffic: Option<TrafficMark>,
}

pub(crate) struct RdmConfig {
    /// The endpoint's identifier in completions, shared by all its ports.
    pub(crate) id: EndpointId,
    pub(crate) sizes: PortSizes,
    pub(crate) extension: ExtensionConfig,
    /// The keys of an endpoint whose peers have keys of their own; they replace the one key of
    /// `extension`.
    pub(crate) peer_keys: Option<Box<dyn PeerKeys>>,
    pub(crate) bindings: RdmBindings,
    pub(crate) receives: Arc<ReceiveContext>,
    /// True if other endpoints share the receives, whose time limits and end are not the
    /// endpoint's.
    pub(crate) shares_receives: bool,
    /// The addresses of senders, which the table of peers keeps up to date.
    pub(crate) addresses: Arc<SourceAddresses>,
    pub(crate) long_messages: LongMessages,
    pub(crate) idle: IdlePolicy,
    /// How long a peer may stay unreachable before the operations posted to it end.
    pub(crate) connect_deadline: Duration,
    /// Maximum number of connected peers that the application has not asked for.
    pub(crate) strangers_max: usize,
    /// The peers that the application knows.
    pub(crate) vector: AddressVector,
}

/// One connectionless endpoint, or one context of a scalable one, shared by its handles and its
/// task. The endpoint's last handle calls [`Rdm::begin_close`] when it is dropped.
pub(crate) struct Rdm {
    engine: Arc<Engine>,
    /// Random number by which peers recognise that the endpoint was reopened.
    incarnation: NonZeroU32,
    /// Its index among the contexts of the endpoint.
    context: u16,
    config: RdmConfig,
    table: Lock<Table>,
    notices: Arc<NoticeQueue>,
    peer_feed: Arc<PeerFeed>,
    listening: ListenerShare,
}

impl CloseWatch for Rdm {
    fn with_end<R>(&self, run: impl FnOnce(bool, &mut Waiters) -> R) -> R {
        let mut table = self.lock_table("closed");
        let (has_ended, waiters) = table.end_and_waiters();
        run(has_ended, waiters)
    }
}

impl Rdm {
    /// Opens the contexts of an endpoint, in order; an endpoint that is not scalable has one. It
    /// listens from now on, in a task that alone drives the listener's transport (the engines drive
    /// the peers' connections).
    pub(crate) fn open_contexts(
        listen: ListenConfig,
        executor: Executor,
        contexts: Vec<(Arc<Engine>, RdmConfig)>,
    ) -> Result<Vec<Arc<Rdm>>> {
        let seeds = contexts.iter().map(|(engine, _)| {
            engine.check_alive()?;
            engine.random.number("a connectionless endpoint")
        });
        let seeds: Vec<u64> = seeds.collect::<Result<_>>()?;
        let random = seeds.first().copied().unwrap_or_default();
        let incarnation = NonZeroU32::new(random as u32).unwrap_or(NonZeroU32::MIN);
        let (listening, bound) = ListenHandle::bind(listen)?;
        let shares = ListenerShare::divide(listening, contexts.len());
        let contexts = contexts.into_iter().zip(shares).zip(0..);
        let contexts = contexts.map(|(((engine, config), listening), context)| {
            Arc::new(Rdm {
                engine,
                incarnation,
                context,
                table: Lock::new(Table::new(config.id, Arc::clone(&config.addresses))),
                config,
                notices: Arc::default(),
                peer_feed: Arc::default(),
                listening,
            })
        });
        let contexts: Vec<_> = contexts.collect();
        let tasks = contexts.iter().zip(seeds);
        let tasks = tasks.map(|(rdm, seed)| RdmTask::new(Arc::clone(rdm), seed));
        bound.start(executor, ContextTasks::new(incarnation, tasks))?;
        Ok(contexts)
    }

    /// Returns the address listened at, with the port that was chosen (`fi_getname`).
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.listening.local_addr()
    }

    /// Returns the port with this key ([`Port::key`], as bits).
    pub(crate) fn port_named(&self, name: u64) -> Option<Arc<Port>> {
        self.engine.port(name)
    }

    /// Returns the port of this peer, to post to at once; if there is none, makes one that the task
    /// dials.
    ///
    /// The connection may end between this call and the post, which is then refused:
    /// [`Port::is_superseded`] says whether to ask again.
    pub(crate) fn port_to(self: &Arc<Self>, peer: PeerAddr) -> Result<Arc<Port>> {
        self.check_reachable(peer)?;
        let found = {
            let table = self.lock_table("port to");
            table.check_open()?;
            table.current(peer)
        };
        let key = self.key_to(peer)?;
        match found {
            Some(port) if port.auth_key() == key.as_ref() => Ok(port),
            Some(other) => {
                other.end_now(rekeyed(peer));
                self.new_port(peer, key, true)
            }
            None => self.new_port(peer, key, true),
        }
    }

    /// Returns the port of this peer, if there is one.
    pub(crate) fn port_of(&self, peer: PeerAddr) -> Option<Arc<Port>> {
        self.lock_table("port of").current(peer)
    }

    /// Returns the statistics of its connections, including those that have ended.
    pub(crate) fn stats(&self) -> EndpointStats {
        let (mut stats, ports) = {
            let table = self.lock_table("stats");
            (table.ended_stats(), table.all_ports())
        };
        ports.iter().for_each(|port| stats.add(&port.stats()));
        stats
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn take_latencies(&self) -> Vec<crate::stats::LatencySample> {
        let ports = self.lock_table("take latencies").all_ports();
        ports
            .iter()
            .flat_map(|port| port.take_latencies())
            .collect()
    }

    pub(crate) fn listener_stats(&self) -> ListenerStats {
        self.listening.stats()
    }

    /// Opens a reader of the peer feed, which begins with the peers that are up.
    pub(crate) fn read_peers(&self) -> PeerReader {
        let (reader, is_first) = self.peer_feed.open();
        if is_first {
            let ports = self.lock_table("present peers").all_ports();
            ports.iter().for_each(|port| port.present_peer());
        }
        reader
    }

    /// Returns the receive context's source id for this address and the key that it must prove. The
    /// id stays the same as long as the endpoint lives.
    pub(crate) fn source_of(&self, peer: PeerAddr) -> Result<SourceId> {
        let number = self.key_number(self.key_to(peer)?.as_ref());
        let mut table = self.lock_table("source of");
        table.unpin_removed(|peer| self.is_known(peer));
        Ok(table.pin(peer, number))
    }

    /// Returns true if the address vector has this address.
    fn is_known(&self, peer: PeerAddr) -> bool {
        self.config.vector.find(peer).is_some()
    }

    /// Closes the connection with this peer in order, if it is up; the next use dials again.
    pub(crate) fn disconnect(&self, peer: PeerAddr) {
        if let Some(port) = self.port_of(peer) {
            port.disconnect();
        }
    }

    /// Begins the orderly close: requests are no longer accepted, and each connection ends as with
    /// [`Port::begin_close`]. Operations that wait for a connection get a few seconds.
    pub(crate) fn begin_close(&self) {
        self.lock_table("begin close").begin_close();
        self.listening.give_back();
        self.notices.wake();
    }

    /// Returns true once the orderly close has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.lock_table("ask whether open").check_open().is_err()
    }

    /// Returns the peer's port with this key, which the peer has proven, or makes one. For the
    /// task.
    fn current_or_new(
        self: &Arc<Self>,
        peer: PeerAddr,
        key: Option<AuthSecret>,
    ) -> Result<Arc<Port>> {
        let current = self.lock_table("current port").current(peer);
        match current {
            Some(port) if port.auth_key() == key.as_ref() => Ok(port),
            Some(other) => {
                other.end_now(rekeyed(peer));
                self.new_port(peer, key, false)
            }
            None => self.new_port(peer, key, false),
        }
    }

    /// Makes the peer's port, unless another thread has made it meanwhile. `wanted`: an operation
    /// will be posted to it, so it must be dialled.
    fn new_port(
        self: &Arc<Self>,
        peer: PeerAddr,
        key: Option<AuthSecret>,
        wanted: bool,
    ) -> Result<Arc<Port>> {
        let (port, connection) = self.unlisted_port(peer, key)?;
        let mut table = self.lock_table("new port");
        // The task has already ended the ports of a closing endpoint.
        let found = match table.check_open() {
            Err(error) if wanted => Err(error),
            _ => {
                table.unpin_removed(|peer| self.is_known(peer));
                Ok(table.enter(peer, &port, connection, wanted))
            }
        };
        let task = match &found {
            Ok(None) if wanted => self.notices.push(Notice::Want { peer }),
            _ => None,
        };
        drop(table);
        if let Some(task) = task {
            task.wake();
        }
        match found {
            Ok(None) => Ok(port),
            Ok(Some(other)) => {
                port.end_now(Error::new(ErrorKind::Canceled, "there is another"));
                Ok(other)
            }
            Err(error) => {
                port.end_now(error.clone());
                Err(error)
            }
        }
    }

    /// Makes a port that is not the peer's port for posts.
    fn unlisted_port(
        self: &Arc<Self>,
        peer: PeerAddr,
        key: Option<AuthSecret>,
    ) -> Result<(Arc<Port>, ConnectionId)> {
        let number = self.key_number(key.as_ref());
        let ids = {
            let mut table = self.lock_table("name a connection");
            ConnIds {
                source: table.source_of(peer, number),
                connection: table.next_connection(),
            }
        };
        let port = Port::open_to(&self.engine, self, peer, key, ids)?;
        let connection = ids.connection;
        self.lock_table("keep a port").keep(connection, &port);
        Ok((port, connection))
    }

    /// Returns the names of this context and of the peer's.
    fn contexts_with(&self, peer: PeerAddr) -> NamedContexts {
        NamedContexts {
            from: self.context,
            to: peer.context,
        }
    }

    /// Returns the offer to the peer that goes beyond libfabric's own protocol.
    fn extension_params(&self, peer: PeerAddr) -> ExtensionParams {
        let mut params = self.config.extension.params(&self.engine);
        if self.config.extension.offered && self.contexts_with(peer) != NamedContexts::FIRST {
            params.capabilities |= Capabilities::CONTEXTS;
        }
        params
    }

    /// Refuses an unreachable peer. A context other than the first is reachable only with the
    /// extension.
    fn check_reachable(&self, peer: PeerAddr) -> Result<()> {
        check_ip_version(self.local_addr(), peer.socket)?;
        if self.config.extension.offered || self.contexts_with(peer) == NamedContexts::FIRST {
            return Ok(());
        }
        let what = "contexts are named by the extension, which the endpoint does not offer";
        Err(Error::new(ErrorKind::Unsupported, what).with_peer(peer.socket))
    }

    fn lock_table(&self, purpose: &'static str) -> MutexGuard<'_, Table> {
        self.table.lock(purpose)
    }
}

debug_fields!(Rdm, self => local_addr: self.local_addr());

/// Makes the error of a connection whose peer has since been inserted, or has connected, with
/// another key.
fn rekeyed(peer: PeerAddr) -> Error {
    let what = "the peer is known by another authorization key now";
    Error::new(ErrorKind::NotAuthorized, what).with_peer(peer.socket)
}
