//! Low-level interfaces of an endpoint's connection (`fi_open_ops`; `fi_domain(3)`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Endpoint;
use crate::domain::{OpenOps, OpenSeal};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Port;
use crate::transport::{Backend, TcpInfo, tcp_info};

impl Endpoint {
    /// Opens a low-level interface of the endpoint (`fi_open_ops`): [`TcpOps`]. The interface is
    /// chosen by its type, where C has a name.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the domain's backend does not have this interface.
    #[doc(alias = "fi_open_ops")]
    pub fn ops<O: OpenOps<Endpoint>>(&self) -> Result<O> {
        O::open_ops(self, OpenSeal)
    }
}

/// Access to the TCP socket of a connected endpoint, with the backends that have one.
/// [`Endpoint::ops`] opens this interface, whether or not the endpoint is connected. It does not
/// keep the endpoint open.
///
/// With TLS the socket carries TLS records, and the kernel's numbers count their bytes. A
/// connectionless endpoint has no such interface: its connections are opened, replaced and closed
/// while it is used.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::os::fd::AsRawFd;
/// use tokio_fabric::ep::TcpOps;
/// use tokio_fabric::testing::Net;
///
/// let (a, _b) = Net::on(tokio_fabric::Backend::Epoll).pair().await?;
/// let tcp = a.ops::<TcpOps>()?;
/// assert!(tcp.info()?.send_segment_size > 0);
/// let number = tcp.with_fd(|fd| fd.as_raw_fd())?; // For getsockopt and setsockopt.
/// assert!(number > 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TcpOps {
    port: Arc<Port>,
}

#[allow(private_interfaces, reason = "as in the trait")]
impl OpenOps<Endpoint> for TcpOps {
    fn open_ops(endpoint: &Endpoint, _: OpenSeal) -> Result<Self> {
        let backend = endpoint.domain().backend();
        if backend == Backend::Loopback {
            let what = format!("TcpOps: the backend {backend} has no sockets");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let port = Arc::clone(&endpoint.inner.port);
        Ok(TcpOps { port })
    }
}

impl TcpOps {
    /// The kernel's statistics of the connection: round-trip time, congestion window, segments that
    /// were sent again.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] before there is a connection and after its end.
    pub fn info(&self) -> Result<TcpInfo> {
        self.port.ask_socket(tcp_info)
    }

    /// True if the peer runs on the same processor as this endpoint's driver: then it is of no use
    /// to let the peer begin before this side is done.
    ///
    /// The driver checks this when the connection begins and after every 65 turns, for peers at a
    /// loopback address. False for other peers, and where the system does not report it.
    pub fn peer_shares_processor(&self) -> bool {
        self.port.shares_processor()
    }

    /// Calls `run` with the socket, for example to get or set an option of it.
    ///
    /// The descriptor is a duplicate that is closed when `run` returns, and no lock is held
    /// meanwhile: `run` may take its time and use the endpoint, but until it returns the system
    /// does not close the connection. The stream belongs to the library: reading from the socket,
    /// writing to it or shutting it down breaks the connection, and so may a change of the options
    /// that the library sets itself (`TCP_NODELAY`, `SO_KEEPALIVE`, `SO_RCVLOWAT`, `SO_LINGER`, and
    /// whether it blocks).
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] before there is a connection and after its end,
    /// [`ErrorKind::LimitReached`] if no descriptor is left.
    pub fn with_fd<R>(&self, run: impl FnOnce(BorrowedFd<'_>) -> R) -> Result<R> {
        let socket = self.port.ask_socket(|fd| fd.try_clone_to_owned())?;
        Ok(run(socket.as_fd()))
    }
}

debug_fields!(TcpOps, self => peer: self.port.peer_addr());
