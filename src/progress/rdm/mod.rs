//! A connectionless endpoint's engine room: one listener, one port per peer.
//!
//! Whoever posts asks [`Rdm::port_to`] for the peer's port, which is made at first use and takes
//! posts before its connection is up. A task beside the listener carries out what the machine of
//! `proto/peers.rs` decides: who is dialled, whose request is accepted, when to try again and when
//! to give up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::cq::{CompletionQueue, Sources};
use crate::error::Result;
use crate::id::EndpointId;
use crate::proto::SourceId;
use crate::transport::{Runner, Transport};

use super::engine::Engine;
use super::port::{CounterSet, Extending, Port, PortSizes};
use super::receive_context::ReceiveContext;

/// What becomes of a connection over which nothing goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdlePolicy {
    /// It stays until either side closes its endpoint.
    #[default]
    Keep,
    /// It is closed, by agreement with the peer, when nothing has gone over it for so long and
    /// nothing is outstanding; the next operation connects again. A peer without this library's
    /// extension cannot agree: its connection stays, since closing it could lose a message that is
    /// on its way.
    CloseAfter(Duration),
}

/// What all ports of one endpoint are bound to.
#[derive(Clone)]
pub(crate) struct RdmBindings {
    /// Takes completions that nobody posted.
    pub(crate) receive_queue: CompletionQueue,
    pub(crate) counters: CounterSet,
    /// Knows who sent what was received, if completions are to tell (`FI_SOURCE`).
    pub(crate) sources: Option<Arc<dyn Sources>>,
    /// Peers' accesses are counted for the regions too (`FI_RMA_EVENT`).
    pub(crate) rma_events: bool,
}

/// What a connectionless endpoint is opened with.
pub(crate) struct RdmConfig {
    /// The endpoint's name in completions, and that of all its ports.
    pub(crate) id: EndpointId,
    /// Where to listen; port 0 lets the system choose.
    pub(crate) listen: SocketAddr,
    pub(crate) sizes: PortSizes,
    pub(crate) extending: Extending,
    pub(crate) bindings: RdmBindings,
    pub(crate) receives: Arc<ReceiveContext>,
    /// Messages longer than this are announced before they are sent.
    pub(crate) rendezvous_min: usize,
    pub(crate) idle: IdlePolicy,
    /// How long a peer may stay unreachable before what was posted to it ends.
    pub(crate) connect_deadline: Duration,
    pub(crate) handshake_timeout: Duration,
    pub(crate) half_open_max: usize,
}

/// One connectionless endpoint, as its handles and its task share it. Whoever opened it calls
/// [`Rdm::begin_close`] when its last handle goes.
pub(crate) struct Rdm {
    local_addr: SocketAddr,
}

impl Rdm {
    /// Listens, and starts the task, which alone drives `transport` (the listener's; the peers'
    /// connections are the engine's).
    pub(crate) fn open(
        engine: &Arc<Engine>,
        transport: Arc<dyn Transport>,
        runner: Runner,
        config: RdmConfig,
    ) -> Result<Arc<Rdm>> {
        let _ = (engine, transport, runner, config);
        todo!()
    }

    /// The address listened at, with the port that was chosen (`fi_getname`).
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The port of this peer, to be posted to at once; made and dialled if there is none.
    ///
    /// A connection may end between this and the post, which then fails with `PeerClosed`:
    /// [`Rdm::has_moved`] tells whether to ask again.
    pub(crate) fn port_to(&self, peer: SocketAddr) -> Result<Arc<Port>> {
        let _ = peer;
        todo!()
    }

    /// The port of this peer, if there is one.
    pub(crate) fn port_of(&self, peer: SocketAddr) -> Option<Arc<Port>> {
        let _ = peer;
        todo!()
    }

    /// True if `port` is not the one to post to any more: its connection ends or has ended, and
    /// nothing of the refused post has been done. Ask [`Rdm::port_to`] again.
    pub(crate) fn has_moved(&self, peer: SocketAddr, port: &Arc<Port>) -> bool {
        let _ = (peer, port);
        todo!()
    }

    /// The name of this address in the receive context; the same for as long as the endpoint lives.
    pub(crate) fn source_of(&self, peer: SocketAddr) -> SourceId {
        let _ = peer;
        todo!()
    }

    /// The address that has this name.
    pub(crate) fn address_of(&self, source: SourceId) -> Option<SocketAddr> {
        let _ = source;
        todo!()
    }

    /// Ends the connection with this peer in order; the next use dials again.
    pub(crate) fn disconnect(&self, peer: SocketAddr) {
        let _ = peer;
        todo!()
    }

    /// Begins the orderly end: nothing is accepted any more, each connection ends as
    /// [`Port::begin_close`] says.
    pub(crate) fn begin_close(&self) {
        todo!()
    }

    /// Ready once all connections have ended, and the listener with them.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        let _ = waker;
        todo!()
    }
}

impl std::fmt::Debug for Rdm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rdm")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}
