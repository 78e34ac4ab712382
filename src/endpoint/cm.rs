//! Connecting, accepting, rejecting (`fi_cm(3)`).

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::domain::Domain;
use crate::eq::{ConnRequest, LinkTaker, Verdict};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{UserContext, canonical};
use crate::limits::{CM_DATA_SIZE_MAX, CONNECT_TIMEOUT_DEFAULT};
use crate::sync::{ProgressWaiter, await_driving};

use super::Endpoint;

pub(super) fn check_data(data: &[u8]) -> Result<()> {
    if data.len() > CM_DATA_SIZE_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} bytes of private data, at most {CM_DATA_SIZE_MAX} go along",
                data.len()
            ),
        ));
    }
    Ok(())
}

impl Endpoint {
    /// Connects to a listener (`fi_connect`). Awaiting it returns the private data of the acceptor.
    #[doc(alias = "fi_connect")]
    pub fn connect(&self, to: SocketAddr) -> Connect {
        let to = canonical(to);
        // A source of the other IP version cannot reach the peer; then the system chooses.
        let source = self.domain().source().and_then(at_any_port);
        Connect {
            endpoint: self.clone(),
            to,
            from: source.filter(|source| source.is_ipv4() == to.is_ipv4()),
            data: Bytes::new(),
            context: None,
            timeout: CONNECT_TIMEOUT_DEFAULT,
        }
    }

    /// Accepts a connection request on this endpoint (`fi_accept`). Receives that were posted
    /// before are ready for the peer's first message.
    pub fn accept(&self, request: ConnRequest) -> Accept {
        Accept {
            endpoint: Ok(self.clone()),
            request,
            data: Bytes::new(),
            context: None,
        }
    }
}

/// A connection attempt that has not started yet; see [`Endpoint::connect`].
///
/// It starts when it is awaited, or turned into its future.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::Event;
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let listener = server.fabric.passive_endpoint(&server.events).listen()?;
/// let endpoint = client.domain.endpoint().open()?;
/// let attempt = endpoint.connect(listener.local_addr());
/// let attempt = attempt.data("may I?").timeout(Duration::from_secs(5));
/// let server = async {
///     let Some(Event::ConnRequest(request)) = server.events.next().await else { panic!() };
///     request.accept(&server.domain).data("welcome").await
/// };
/// let (answer, _server_endpoint) = tokio::try_join!(attempt, server)?;
/// assert_eq!(answer, "welcome");
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::ConnectionRefused`] if nothing listens at the address, or the application rejected
/// the request ([`Error::data`] contains its answer); [`ErrorKind::TimedOut`];
/// [`ErrorKind::Unreachable`]; and others. Posted operations then fail for the same reason, and the
/// endpoint is again in the state in which it was opened: it can try to connect again, to the same
/// or another address, or accept a request. ([`ErrorKind::Again`] if its event queue has no free
/// slot for the Connected event of another attempt, because the unread failure event of the last
/// attempt occupies it.)
///
/// # Cancel safety
/// Dropping the future does not stop the attempt; its result is still reported as an event.
#[must_use = "nothing is connected until this is awaited"]
pub struct Connect {
    endpoint: Endpoint,
    to: SocketAddr,
    from: Option<SocketAddr>,
    data: Bytes,
    context: Option<UserContext>,
    timeout: Duration,
}

impl Connect {
    /// Private data for the listener, at most 256 bytes. Default: none.
    pub fn data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.data = Bytes::copy_from_slice(data.as_ref());
        self
    }

    /// The context of the Connected event, or of the error event. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// How long the peer may take to answer. Default: 60 s, because a C listener answers only when
    /// its program polls.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The local address to connect from, of the peer's IP version
    /// ([`ErrorKind::InvalidArgument`] otherwise). Default: the one that the hints chose, with any
    /// port, if it is of that version; otherwise the routing table decides.
    pub fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(canonical(from));
        self
    }
}

impl IntoFuture for Connect {
    type Output = Result<Bytes>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

    /// Starts to connect immediately; polling only waits. Returns the acceptor's private data.
    fn into_future(self) -> Self::IntoFuture {
        let started = self.start();
        Box::pin(async move {
            let endpoint = started.map_err(|error| error.with_operation(OperationKind::Connect))?;
            let port = &endpoint.inner.port;
            let established = std::future::poll_fn(|cx| port.poll_established(cx.waker()));
            let progress = endpoint.domain().progress_by_hand();
            let result = await_driving(progress, established).await;
            result.map_err(|error| error.with_operation(OperationKind::Connect))
        })
    }
}

impl Connect {
    fn start(self) -> Result<Endpoint> {
        check_data(&self.data)?;
        if let Some(from) = self.from
            && from.is_ipv4() != self.to.is_ipv4()
        {
            let what = format!("from: {from} is of another IP version than the peer");
            return Err(Error::new(ErrorKind::InvalidArgument, what).with_peer(self.to));
        }
        let port = &self.endpoint.inner.port;
        port.connect(self.to, self.from, &self.data, self.context, self.timeout)?;
        Ok(self.endpoint)
    }
}

/// Returns this address with any port; `None` if the address is unspecified.
fn at_any_port(mut address: SocketAddr) -> Option<SocketAddr> {
    address.set_port(0);
    (!address.ip().is_unspecified()).then_some(address)
}

impl ConnRequest {
    /// Accepts on a fresh endpoint of `domain` (`fi_endpoint` and `fi_accept` in one). To post
    /// receives first, or to bind queues, open the endpoint and use [`Endpoint::accept`].
    #[doc(alias = "fi_accept")]
    pub fn accept(self, domain: &Domain) -> Accept {
        Accept {
            endpoint: domain.endpoint().open(),
            request: self,
            data: Bytes::new(),
            context: None,
        }
    }

    /// Rejects the request, optionally with private data (`fi_reject`). Dropping a request rejects
    /// it without data.
    #[doc(alias = "fi_reject")]
    pub fn reject(self) -> Reject {
        Reject {
            request: self,
            data: Bytes::new(),
        }
    }
}

/// The acceptance of a connection request, which starts when it is awaited, or turned into its
/// future; from then on it needs no further call.
///
/// You get one from [`ConnRequest::accept`](crate::eq::ConnRequest::accept) or
/// [`Endpoint::accept`]. It returns the endpoint once the response is on its way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::Event;
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let listener = server.fabric.passive_endpoint(&server.events).listen()?;
/// let endpoint = client.domain.endpoint().open()?;
/// let accepting = async {
///     let Some(Event::ConnRequest(request)) = server.events.next().await else { panic!() };
///     request.accept(&server.domain).data("welcome").context(1u64).await
/// };
/// let (_, accepted) = tokio::try_join!(endpoint.connect(listener.local_addr()), accepting)?;
/// assert!(accepted.is_connected());
/// # Ok(()) }
/// ```
///
/// # Errors
/// The peer is gone, the listener's runtime has ended, or the endpoint cannot be opened or is in
/// use.
///
/// # Cancel safety
/// Dropping the future does not withdraw the acceptance; its result is still reported as an event.
/// The future of [`ConnRequest::accept`] may hold the only handle of its endpoint: if it is dropped
/// early, the connection is made and then closed in order.
#[must_use = "nothing is accepted until this is awaited; dropped, the request is rejected"]
pub struct Accept {
    endpoint: Result<Endpoint>,
    request: ConnRequest,
    data: Bytes,
    context: Option<UserContext>,
}

impl Accept {
    /// Private data for the connecting side, at most 256 bytes. Default: none.
    pub fn data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.data = Bytes::copy_from_slice(data.as_ref());
        self
    }

    /// The context of the Connected event. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }
}

impl IntoFuture for Accept {
    type Output = Result<Endpoint>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Endpoint>> + Send>>;

    /// Accepts immediately; polling only waits.
    fn into_future(self) -> Self::IntoFuture {
        let started = self.start();
        Box::pin(async move {
            let failed = |error: Error| error.with_operation(OperationKind::Accept);
            let (endpoint, mut waiter) = started.map_err(failed)?;
            let port = &endpoint.inner.port;
            let established =
                std::future::poll_fn(|cx| waiter.poll(cx, |cx| port.poll_established(cx.waker())));
            established.await.map_err(failed)?;
            Ok(endpoint)
        })
    }
}

impl Accept {
    /// Starts to accept. Also returns the waiter that drives the endpoint and the listener if their
    /// progress is manual.
    fn start(self) -> Result<(Endpoint, ProgressWaiter)> {
        let Accept {
            endpoint,
            request,
            data,
            context,
        } = self;
        let endpoint = endpoint?;
        check_data(&data)?;
        let peer = request.peer_addr();
        // Either both sides have a key or neither has. Dropping the request rejects it.
        let what = match (endpoint.inner.port.auth_key(), request.has_auth_key()) {
            (Some(_), false) => Some("the peer has no authorization key"),
            (None, true) => Some("the peer has an authorization key, this endpoint has none"),
            _ => None,
        };
        if let Some(what) = what {
            return Err(Error::new(ErrorKind::NotAuthorized, what).with_peer(peer));
        }
        let port = Arc::clone(&endpoint.inner.port);
        port.begin_accept(peer, context)?;
        let progress = endpoint.domain().progress_by_hand();
        let waiter = ProgressWaiter::of_all(progress.into_iter().chain(request.progress()));
        let taker = LinkTaker::new(move |link| port.take_link(link, &data));
        // If the listener has ended, the verdict comes back, and dropping its taker reports that no
        // connection comes.
        let _ = request.take_ticket().decide(Verdict::Accept(taker));
        Ok((endpoint, waiter))
    }
}

/// The rejection of a connection request, which [`send`](Self::send) performs.
///
/// You get one from [`ConnRequest::reject`](crate::eq::ConnRequest::reject).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{ErrorKind, Event};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let listener = server.fabric.passive_endpoint(&server.events).listen()?;
/// let endpoint = client.domain.endpoint().open()?;
/// let rejecting = async {
///     let Some(Event::ConnRequest(request)) = server.events.next().await else { panic!() };
///     request.reject().data("too many clients").send()
/// };
/// let connecting = async { Ok(endpoint.connect(listener.local_addr()).await) };
/// let (rejected, ()) = tokio::try_join!(connecting, rejecting)?;
/// let error = rejected.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
/// assert_eq!(error.data(), "too many clients");
/// # Ok(()) }
/// ```
#[must_use = "`send` rejects with the data; dropped, the request is rejected without"]
pub struct Reject {
    request: ConnRequest,
    data: Bytes,
}

impl Reject {
    /// Private data for the connecting side, at most 256 bytes, which it gets from [`Error::data`].
    pub fn data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.data = Bytes::copy_from_slice(data.as_ref());
        self
    }

    /// Rejects the request. Does not wait until the peer reads the answer.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for more than 256 bytes of data (the request is then rejected
    /// without data), [`ErrorKind::PeerClosed`] if the peer or the listener is already gone.
    pub fn send(self) -> Result<()> {
        check_data(&self.data)?;
        let peer = self.request.peer_addr();
        self.request
            .take_ticket()
            .decide(Verdict::Reject(self.data))
            .map_err(|_| {
                Error::new(ErrorKind::PeerClosed, "before it was rejected").with_peer(peer)
            })
    }
}

// Private data may be secret, so only its length is shown.

debug_fields!(Connect, self =>
    endpoint: self.endpoint.id(), to: self.to, from: self.from, data_len: self.data.len(),
    context: self.context, timeout: self.timeout
);

debug_fields!(Accept, self =>
    request: self.request, data_len: self.data.len(), context: self.context
);

debug_fields!(Reject, self => request: self.request, data_len: self.data.len());
