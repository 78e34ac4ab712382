//! The listening side: one task per passive or connectionless endpoint. The task accepts
//! connections, reads connection requests under a deadline and a cap, passes them to a
//! [`RequestHandler`], and carries out the handler's decisions.
//!
//! A complete request waits here until the handler has room for it (ruling 8); while one waits,
//! nothing more is accepted. A connection is half open until its request is passed on, and again
//! while its key is being proven. While too many are half open, accepting pauses, so that new
//! connections wait in the system's backlog. If peers connect and stay silent, so that pausing does
//! not help, each new connection evicts the oldest one of the host that has the most: silent peers
//! keep no others out.
//!
//! `task.rs` is the task; `handshake.rs` takes one peer from its TCP connection to the decision;
//! `half_open.rs` keeps the deadlines of half-open connections; `pause.rs` decides whether
//! accepting pauses; `events.rs` is the handler of a passive endpoint.
//!
//! The decision comes back through a one-shot ticket (`sync/ticket.rs`). An acceptance names the
//! port to which the listener's task hands the raw connection over (`establish.rs`), and both sides
//! see `Connected`; rejecting or dropping the request sends a rejection. A listener closes when the
//! last handle of its event queue is dropped. Endpoints with an authorization key prove it to each
//! other before their HELLOs (`proto/conn/auth.rs`).
//!
//! Tables that unauthenticated peers can fill (half-open connections, peers that cannot be dialled,
//! names of senders) are shared by host (`proto/peers/shares.rs`): the host that has the most
//! entries makes room.

mod events;
mod half_open;
mod handshake;
mod pause;
mod spare;
mod task;
mod wake;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::eq::{AcceptedLink, ConnectParams, Verdict};
use crate::error::{Error, Result};
use crate::id::canonical;
use crate::identity::PeerIdentity;
use crate::mr::AuthSecret;
use crate::proto::{Challenge, ProvenKey};
use crate::stats::ListenerStats;
use crate::sync::TicketHolder;
use crate::transport::{Clock, Executor, Listener, RawLink, Transport};

pub(crate) use events::EventHandler;
use task::ListenTask;
use wake::ListenWake;

pub(crate) struct ListenConfig {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) address: SocketAddr,
    pub(crate) half_open_max: usize,
    pub(crate) handshake_timeout: Duration,
}

impl ListenConfig {
    fn accepted(&self, raw: RawLink, params: ConnectParams) -> AcceptedLink {
        AcceptedLink {
            raw,
            params,
            timeout: self.handshake_timeout,
        }
    }
}

/// Decides about requests. All methods run in the listener's task.
pub(crate) trait RequestHandler: Send + Unpin + 'static {
    /// A request that the handler has accepted at once, kept until its connection is handed over.
    type Accepted;

    /// Decides about a complete request.
    fn on_request(
        &mut self,
        request: &IncomingRequest<'_>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> RequestDecision<Self::Accepted>;

    /// Takes the connection of a request that was accepted at once; `None`: the connection broke.
    fn hand_over(&mut self, accepted: Self::Accepted, handover: Option<Handover>, now: Instant);

    /// Returns true once requests have no reader any more, and the task stops listening; the task
    /// is woken when that happens.
    fn is_gone(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

    /// Reports that the listener broke. Returns false if there is no room for the report; the task
    /// tries again in its next poll.
    fn on_broken(&mut self, error: &Error, cx: &mut Context<'_>) -> bool;

    /// Returns true if peers are refused while the process has no descriptors for long; otherwise
    /// they wait until it has some.
    fn refuses_when_exhausted(&self) -> bool {
        false
    }

    /// Does the handler's own work, in each poll of the task; returns the time at which work is due
    /// next.
    fn poll(&mut self, _now: Instant, _cx: &mut Context<'_>) -> Option<Instant> {
        None
    }

    /// Returns true once the handler lets the task end.
    fn is_over(&self) -> bool {
        true
    }
}

/// A request that has been received completely.
pub(crate) struct IncomingRequest<'a> {
    /// The address the peer connected from.
    pub(crate) peer: SocketAddr,
    /// The local address the peer connected to.
    pub(crate) local: SocketAddr,
    pub(crate) data: &'a Bytes,
    pub(crate) params: ConnectParams,
    /// The identity of the peer, on a secure connection.
    pub(crate) identity: Option<&'a PeerIdentity>,
    /// The key that the peer has proven, if [`RequestDecision::Challenge`] asked for it.
    pub(crate) proven: Option<&'a AuthSecret>,
}

/// A handler's decision about a request.
pub(crate) enum RequestDecision<A> {
    /// The handler has no room for the request now, and wakes the task when it has.
    NoRoom,
    /// The verdict will come through this ticket.
    Deferred(TicketHolder<Verdict>),
    /// The request is rejected with this data (256 bytes at most).
    Reject(Bytes),
    /// The peer must prove its key first: these bytes are sent, and [`RequestHandler::on_request`]
    /// is called again once it has.
    Challenge(Box<Challenge>, Vec<u8>),
    /// The request is accepted: [`RequestHandler::hand_over`] takes the connection now.
    Accept(A),
}

/// An accepted connection on its way from the listener to the handler.
pub(crate) struct Handover {
    pub(crate) link: AcceptedLink,
    /// The key, if the peer has proven one already; our response has then been sent.
    pub(crate) proven: Option<ProvenKey>,
}

/// The handle of a listening task; dropping it closes the listener. Requests already reported can
/// still be accepted.
#[derive(Debug)]
pub(crate) struct ListenHandle {
    local_addr: SocketAddr,
    shared: Arc<ListenWake>,
}

impl ListenHandle {
    /// Binds a listener. Connections wait in the system's backlog until [`BoundListener::start`].
    pub(crate) fn bind(config: ListenConfig) -> Result<(ListenHandle, BoundListener)> {
        let address = canonical(config.address);
        let listener =
            (config.transport.listen(address)).map_err(|error| error.listening_at(address))?;
        let shared = Arc::new(ListenWake::default());
        let listening = ListenHandle {
            local_addr: listener.local_addr(),
            shared: Arc::clone(&shared),
        };
        tracing::info!(local = %listening.local_addr, "listening");
        let bound = BoundListener {
            clock: config.transport.open_clock()?,
            listener,
            shared,
            config,
        };
        Ok((listening, bound))
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        self.shared.lock().stats
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }

    /// Closes the listener, as dropping this does.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
    }
}

/// A bound listener whose task has not been started.
pub(crate) struct BoundListener {
    listener: Box<dyn Listener>,
    clock: Box<dyn Clock>,
    shared: Arc<ListenWake>,
    config: ListenConfig,
}

impl BoundListener {
    /// Starts the task, in which `handler` decides about requests.
    pub(crate) fn start(self, executor: Executor, handler: impl RequestHandler) -> Result<()> {
        executor.start("fabric-listener", ListenTask::new(self, handler))
    }
}

impl Drop for ListenHandle {
    fn drop(&mut self) {
        self.stop();
    }
}
