//! TLS around a transport: its links carry records of TLS 1.3, and nothing else, over another
//! transport's links. Like every transport, it does not know the meaning of the bytes; its users do
//! not notice that the bytes are sealed.
//!
//! A connection is up once the handshake is done. The listening side starts the handshake as soon
//! as a connection is adopted, in the task of half-open connections (`progress/listen`) and within
//! its limits: a handshake counts there as an incomplete request.
//!
//! `session.rs` is TLS without I/O: rustls' handshake, then records under the keys that it derives.
//! `channel.rs` moves bytes between the session and the inner link; `stream.rs` is the outer link,
//! which the transport's users call. A transport in which the kernel seals records would fit in the
//! same place: it would take keys from [`TlsEnd`].

mod channel;
mod errors;
mod handshake;
mod keys;
mod open_session;
mod opener;
mod record;
mod sealer;
mod session;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::for_tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::stream::StreamLink;
use super::wrapped::leave_to_inner;
use super::{DatagramOptions, DatagramSocket, Link, Listener, RawLink, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::tls::TlsConfig;
use channel::{Channel, ChannelParts};
use errors::no_server;
use session::Session;
use stream::TlsStream;

/// Makes TLS links over the links of another transport.
pub(super) struct TlsTransport {
    inner: Arc<dyn Transport>,
    config: TlsConfig,
}

impl TlsTransport {
    pub(super) fn new(inner: Arc<dyn Transport>, config: TlsConfig) -> Self {
        TlsTransport { inner, config }
    }
}

impl Transport for TlsTransport {
    leave_to_inner!();

    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>> {
        if self.config.server.is_none() {
            return Err(no_server());
        }
        Ok(Box::new(TlsListener(self.inner.listen(address)?)))
    }

    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        let session = Session::client(&self.config, to)?;
        let link = self.inner.connect(to, from, waker.clone())?;
        let (local, peer) = (link.local_addr(), link.peer_addr());
        let stream = TlsStream::new(Channel::new(link, ChannelParts::connecting(session)));
        Ok(Box::new(StreamLink::connecting(stream, local, peer, waker)))
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        let RawLink::Tls(end) = raw else {
            let what = "the connection is without TLS, which is demanded here (Hints::tls)";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let TlsEnd { raw, parts } = *end;
        let parts = match parts {
            Some(parts) => parts,
            None => ChannelParts::accepted(Session::server(&self.config)?),
        };
        let link = self.inner.adopt(*raw, waker.clone())?;
        let (local, peer) = (link.local_addr(), link.peer_addr());
        let stream = TlsStream::new(Channel::new(link, parts));
        Ok(Box::new(StreamLink::connected(stream, local, peer, waker)))
    }

    fn open_datagrams(&self, _: &DatagramOptions, _: Waker) -> Result<Box<dyn DatagramSocket>> {
        let what = "datagrams go without TLS (there is no DTLS here), which the hints demand";
        Err(Error::new(ErrorKind::Unsupported, what))
    }
}

debug_fields!(TlsTransport, self => inner: self.inner);

/// A TLS connection that belongs to no runtime yet.
pub(crate) struct TlsEnd {
    raw: Box<RawLink>,
    /// `None`: the connection has just been accepted, and the handshake has not begun.
    parts: Option<ChannelParts>,
}

#[cfg(test)]
impl TlsEnd {
    pub(super) fn raw(&self) -> &RawLink {
        &self.raw
    }
}

impl fmt::Debug for TlsEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsEnd")
            .field("raw", &self.raw)
            .field("is_open", &self.parts.is_some())
            .finish()
    }
}

/// Accepts connections whose first bytes must be a TLS handshake.
struct TlsListener(Box<dyn Listener>);

impl Listener for TlsListener {
    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>> {
        let accepted = self.0.poll_accept(cx);
        accepted.map_ok(|raw| {
            RawLink::Tls(Box::new(TlsEnd {
                raw: Box::new(raw),
                parts: None,
            }))
        })
    }
}
