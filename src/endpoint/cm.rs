//! Connecting, accepting, rejecting (`fi_cm(3)`).

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;

use crate::domain::Domain;
use crate::eq::{ConnRequest, Verdict};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::UserContext;
use crate::limits::{CM_DATA_SIZE_MAX, CONNECT_TIMEOUT_DEFAULT};
use crate::progress::accept_ticket;
use crate::sync::{ProgressWaiter, await_driving, poll_driving};

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
    /// Connects to a listener (`fi_connect`). Awaited, it gives the private data of the acceptor.
    #[doc(alias = "fi_connect")]
    pub fn connect(&self, to: SocketAddr) -> Connect {
        Connect {
            endpoint: self.clone(),
            to,
            from: self
                .domain()
                .source()
                .filter(|from| !from.ip().is_unspecified())
                .map(|from| SocketAddr::new(from.ip(), 0)),
            data: Bytes::new(),
            context: None,
            timeout: CONNECT_TIMEOUT_DEFAULT,
        }
    }

    /// Accepts a connection request on this endpoint (`fi_accept`). Receives posted before are
    /// there for the peer's first message.
    pub fn accept(&self, request: ConnRequest) -> Accept {
        Accept {
            endpoint: Ok(self.clone()),
            request,
            data: Bytes::new(),
            context: None,
        }
    }
}

/// A connection being made; see [`Endpoint::connect`].
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

    /// How long the peer may take to answer. Default 60 s: a C listener answers only when its
    /// program looks.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The local address to connect from. Default: the one that the hints chose, any port of it;
    /// else routing decides.
    pub fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(from);
        self
    }
}

impl IntoFuture for Connect {
    type Output = Result<Bytes>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

    /// Starts to connect at once; polling only waits.
    ///
    /// Ends with the acceptor's private data. Fails with [`ErrorKind::ConnectionRefused`] (nothing
    /// listens, or the application said no: [`Error::data`] has its words),
    /// [`ErrorKind::TimedOut`], [`ErrorKind::Unreachable`] and other reasons. What was posted has
    /// ended by the same reason then, and the endpoint is as it was opened: it can try again, there
    /// or elsewhere, or accept. ([`ErrorKind::Again`] if its event queue has no slot free for the
    /// Connected of another try, since the last one's has the failure.)
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the connection; its end still comes as an event.
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
        let port = &self.endpoint.inner.port;
        // The source of another family cannot reach the peer; the system chooses then.
        let from = self.from.filter(|from| from.is_ipv4() == self.to.is_ipv4());
        port.connect(self.to, from, &self.data, self.context, self.timeout)?;
        Ok(self.endpoint)
    }
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

    /// Rejects, with private data to follow (`fi_reject`). Dropping a request rejects it without.
    #[doc(alias = "fi_reject")]
    pub fn reject(self) -> Reject {
        Reject {
            request: self,
            data: Bytes::new(),
        }
    }
}

/// A request being accepted.
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

    /// Ends with the endpoint once the response is on its way. Fails if the peer has gone, the
    /// listener's runtime has ended, or the endpoint cannot be opened or is in use.
    ///
    /// # Cancel safety
    /// Dropped before the listener has handed the connection over, the connection closes; later it
    /// closes with the endpoint.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let accepted = self.run().await;
            accepted.map_err(|error| error.with_operation(OperationKind::Accept))
        })
    }
}

impl Accept {
    async fn run(self) -> Result<Endpoint> {
        let Accept {
            endpoint,
            request,
            data,
            context,
        } = self;
        let endpoint = endpoint?;
        check_data(&data)?;
        let peer = request.peer_addr();
        // Only who has a key has one to prove. Dropping the request rejects it.
        let what = match (endpoint.inner.port.auth_key(), request.has_auth_key()) {
            (Some(_), false) => Some("the peer has no authorization key"),
            (None, true) => Some("the peer has an authorization key, this endpoint has none"),
            _ => None,
        };
        if let Some(what) = what {
            return Err(Error::new(ErrorKind::NotAuthorized, what).with_peer(peer));
        }
        let gone = || Error::new(ErrorKind::PeerClosed, "before it was accepted").with_peer(peer);
        let progress = endpoint.domain().progress_by_hand();
        // The listener passes the connection on, which may be driven by hand as well.
        let mut waiters = [progress, request.progress()].map(ProgressWaiter::new);
        let mut holder = accept_ticket(request.take_ticket()).ok_or_else(gone)?;
        let handover =
            |cx: &mut Context<'_>| poll_driving(&mut waiters, cx, |cx| holder.poll_verdict(cx));
        let handover = std::future::poll_fn(handover).await;
        let handover = handover.ok_or_else(gone)?;
        let port = &endpoint.inner.port;
        port.accept(handover, &data, context)?;
        let established = std::future::poll_fn(|cx| port.poll_established(cx.waker()));
        await_driving(progress, established).await?;
        Ok(endpoint)
    }
}

/// A request being rejected.
#[must_use = "`send` rejects with the data; dropped, the request is rejected without"]
pub struct Reject {
    request: ConnRequest,
    data: Bytes,
}

impl Reject {
    /// Private data for the connecting side, at most 256 bytes; it finds them in its error
    /// ([`Error::data`]).
    pub fn data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.data = Bytes::copy_from_slice(data.as_ref());
        self
    }

    /// Rejects. Does not wait for the peer to read it.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for more than 256 bytes of data (the request is then rejected
    /// without), [`ErrorKind::PeerClosed`] if the peer or the listener has gone already.
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
