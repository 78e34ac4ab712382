//! The listening side: a task of its own per passive or connectionless endpoint. It accepts, reads
//! connection requests under a deadline and a cap, passes them to a [`RequestHandler`], and carries
//! out its decisions.
//!
//! A request that has come in full waits here until the handler has room for it (ruling 8); while
//! one waits, nothing more is accepted. A connection is half open until its request is passed on,
//! and while its key is to be proven. While too many are, accepting pauses, so that those that come
//! wait in the system's backlog. If that does not help, because peers connect and stay silent, the
//! oldest of the host that has the most is evicted for each that comes, so that they keep no others
//! out.
//!
//! `task.rs` is the task; `handshake.rs` takes one peer from its TCP connection to the decision;
//! `half_open.rs` keeps their deadlines; `pause.rs` decides whether accepting pauses; `events.rs`
//! is the handler of a passive endpoint.
//!
//! The decision comes back through a one-shot ticket (`sync/ticket.rs`): with accept it says where
//! the listener's task hands the raw connection over, to the port of the endpoint (`establish.rs`);
//! reject (or dropping the request) sends a rejection. Both sides see `Connected`. A listener whose
//! event queue has lost its last handle closes. Endpoints with an authorization key prove it to
//! each other before their HELLOs (`proto/conn/auth.rs`).
//!
//! What strangers can fill (half-open connections, peers that cannot be dialled, names of senders)
//! is shared by host (`proto/peers/shares.rs`): the host that has the most makes room.

mod events;
mod half_open;
mod handshake;
mod pause;
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

/// What a listener is opened with.
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

/// Decides about requests. All of it runs in the listener's task.
pub(crate) trait RequestHandler: Send + Unpin + 'static {
    /// A request that it accepts at once, until the connection is there.
    type Accepted;

    /// A request has come in full.
    fn on_request(
        &mut self,
        request: &IncomingRequest<'_>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> RequestDecision<Self::Accepted>;

    /// The connection of a request that was accepted at once; `None`: it broke.
    fn hand_over(&mut self, accepted: Self::Accepted, handover: Option<Handover>, now: Instant);

    /// True once requests have no reader any more, so that the task stops listening; until then the
    /// task is woken when that changes.
    fn is_gone(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

    /// The listener broke. False: there is no room for the report; the task tries again in its next
    /// poll.
    fn on_broken(&mut self, error: &Error, cx: &mut Context<'_>) -> bool;

    /// Work of the handler's own, in each poll of the task; returns when it is due next.
    fn poll(&mut self, _now: Instant, _cx: &mut Context<'_>) -> Option<Instant> {
        None
    }

    /// True once the task may end, as far as the handler is concerned.
    fn is_over(&self) -> bool {
        true
    }
}

/// A request that has come in full.
pub(crate) struct IncomingRequest<'a> {
    /// Where the peer comes from.
    pub(crate) peer: SocketAddr,
    /// Where it found us.
    pub(crate) local: SocketAddr,
    pub(crate) data: &'a Bytes,
    pub(crate) params: ConnectParams,
    /// Who the peer is, on a secure connection.
    pub(crate) identity: Option<&'a PeerIdentity>,
    /// What it has proven of the keys that [`RequestDecision::Challenge`] asks for.
    pub(crate) proven: Option<&'a AuthSecret>,
}

/// What the handler says to a request.
pub(crate) enum RequestDecision<A> {
    /// It has no room for it now, and wakes the task when it has.
    NoRoom,
    /// The verdict will be here.
    Deferred(TicketHolder<Verdict>),
    /// No, with this data (256 bytes at most).
    Reject(Bytes),
    /// First the key: these bytes go out, and [`RequestHandler::on_request`] is called again if it
    /// is proven.
    Challenge(Box<Challenge>, Vec<u8>),
    /// Yes: [`RequestHandler::hand_over`] takes the connection now.
    Accept(A),
}

/// An accepted connection on its way from the listener to the handler.
pub(crate) struct Handover {
    pub(crate) link: AcceptedLink,
    /// The key, if the peer has proven it already; our response has gone out then.
    pub(crate) proven: Option<ProvenKey>,
}

/// The handle of a listening task; dropping it closes the listener. Requests already reported
/// remain open to be accepted.
#[derive(Debug)]
pub(crate) struct ListenHandle {
    local_addr: SocketAddr,
    shared: Arc<ListenWake>,
}

impl ListenHandle {
    /// Listens. What comes waits for [`BoundListener::start`].
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

/// A listener without a task that answers requests.
pub(crate) struct BoundListener {
    listener: Box<dyn Listener>,
    clock: Box<dyn Clock>,
    shared: Arc<ListenWake>,
    config: ListenConfig,
}

impl BoundListener {
    /// Starts the task that lets `handler` answer requests.
    pub(crate) fn start(self, executor: Executor, handler: impl RequestHandler) -> Result<()> {
        executor.start("fabric-listener", ListenTask::new(self, handler))
    }
}

impl Drop for ListenHandle {
    fn drop(&mut self) {
        self.stop();
    }
}
