//! Listening for connection requests (`fi_passive_ep`, `fi_listen`; `fi_endpoint(3)`, `fi_cm(3)`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::runner_of;
use crate::eq::EventQueue;
use crate::error::{OperationKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{Driver, Info};
use crate::limits::{HALF_OPEN_MAX_DEFAULT, HANDSHAKE_TIMEOUT_DEFAULT};
use crate::progress::{EventHandler, ListenConfig, ListenHandle};
use crate::stats::ListenerStats;
use crate::sync::{Dependence, Keep, ManualProgress};
use crate::transport::{self, TransportOptions};

/// Opens a [`PassiveEndpoint`]. You get one from
/// [`Fabric::passive_endpoint`](crate::Fabric::passive_endpoint).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new())?;
/// let events = fabric.event_queue().open()?;
/// let builder = fabric.passive_endpoint(&events).handshake_timeout(Duration::from_secs(2));
/// let listener = builder.listen_at(([127, 0, 0, 1], 0).into())?;
/// assert!(listener.is_listening());
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `listen`"]
#[derive(Debug)]
pub struct PassiveEndpointBuilder {
    info: Info,
    transport: TransportOptions,
    events: EventQueue,
    fabric: Keep,
    dependence: Option<Dependence>,
    half_open_max: usize,
    handshake_timeout: Duration,
    context: Option<UserContext>,
}

impl PassiveEndpointBuilder {
    pub(crate) fn new(
        info: Info,
        transport: TransportOptions,
        events: EventQueue,
        fabric: Keep,
        dependence: Option<Dependence>,
    ) -> Self {
        PassiveEndpointBuilder {
            info,
            transport,
            events,
            fabric,
            dependence,
            half_open_max: HALF_OPEN_MAX_DEFAULT,
            handshake_timeout: HANDSHAKE_TIMEOUT_DEFAULT,
            context: None,
        }
    }

    /// The largest number of connections that are not waiting for the application's decision: their
    /// request is incomplete, or they have been rejected. Further connections wait in the kernel's
    /// backlog. If no request arrives for half of the
    /// [`handshake_timeout`](Self::handshake_timeout) while connections wait, then for five minutes
    /// each new connection closes the oldest connection of the host that has the most. Default:
    /// 1024.
    pub fn half_open_max(mut self, peers: usize) -> Self {
        self.half_open_max = peers.max(1);
        self
    }

    /// How long a peer may take to send its request and, after it was accepted, to complete the
    /// handshake. Default: 10 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// The place where connections are accepted and their requests read: in a task on the current
    /// runtime, on the listener's own thread (also with [`Driver::Local`]), or in the application's
    /// calls that read the event queue or await an [`accept`](crate::eq::ConnRequest::accept).
    /// Default: as in the fabric's Info, which is [`Driver::Task`] unless the hints ask for manual
    /// progress.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.info.domain.set_driver(driver);
        self
    }

    /// The context that requests of this listener carry. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Listens at the address of the fabric's Info (`.source(..)` or `.node(..)` of the hints), or
    /// at any address and port if it has none.
    ///
    /// # Errors
    /// As for [`listen_at`](Self::listen_at).
    #[doc(alias = "fi_listen")]
    pub fn listen(self) -> Result<PassiveEndpoint> {
        let address = self.info.listen_address();
        self.listen_at(address)
    }

    /// Listens at this address (`fi_setname`, `fi_listen`); port 0 lets the system choose.
    ///
    /// The system takes some milliseconds to free the port of a process that was killed while it
    /// used io_uring, so a program that restarts such a process immediately should retry.
    ///
    /// # Errors
    /// [`ErrorKind::AddressInUse`](crate::ErrorKind::AddressInUse),
    /// [`ErrorKind::AddressNotAvailable`](crate::ErrorKind::AddressNotAvailable),
    /// [`ErrorKind::NoRuntime`](crate::ErrorKind::NoRuntime) outside of a Tokio runtime, unless the
    /// listener has a thread of its own.
    #[doc(alias = "fi_listen")]
    pub fn listen_at(self, address: SocketAddr) -> Result<PassiveEndpoint> {
        let mut options = self.transport;
        options.runner = runner_of(self.info.domain.driver, options.backend)?.for_listener();
        let manual = options.runner.manual();
        let progress = manual.map(|reactor| Arc::clone(reactor.progress()));
        let name = "passive endpoint".into();
        let dependence = self.events.depend(name, progress.as_ref())?;
        let selection = transport::open(&options)?;
        let id = EndpointId::next();
        let config = ListenConfig {
            transport: selection.transport,
            address,
            half_open_max: self.half_open_max,
            handshake_timeout: self.handshake_timeout,
        };
        let handler = EventHandler::new(&self.events, id, self.context, progress.clone());
        let listening = ListenHandle::bind(config)
            .and_then(|(listening, bound)| {
                bound.start(selection.executor, handler)?;
                Ok(listening)
            })
            .map_err(|error| error.with_operation(OperationKind::Listen))?;
        let inner = Inner {
            listening,
            progress,
            id,
            context: self.context,
            _fabric: self.fabric,
            _dependences: [Some(dependence), self.dependence],
        };
        Ok(PassiveEndpoint {
            inner: Arc::new(inner),
        })
    }
}

/// A listener (`struct fid_pep`).
///
/// Connection requests arrive at its event queue as
/// [`Event::ConnRequest`](crate::Event::ConnRequest).
///
/// The listener runs on the Tokio runtime in which it was opened, or on its own thread. While the
/// event queue has no free slot, the listener accepts nothing more, and peers wait in the kernel's
/// backlog. Dropping the last handle stops listening; requests already reported can still be
/// accepted. Dropping the last handle of the event queue also stops listening: waiting requests are
/// rejected, and the kernel refuses later ones.
///
/// ```
/// use tokio_fabric::{Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new())?;
/// let events = fabric.event_queue().open()?;
/// let listener = fabric.passive_endpoint(&events).listen_at(([127, 0, 0, 1], 0).into())?;
/// assert_ne!(listener.local_addr().port(), 0); // The system has chosen one.
/// # Ok(()) }
/// ```
#[doc(alias = "fid_pep")]
#[derive(Clone)]
pub struct PassiveEndpoint {
    inner: Arc<Inner>,
}

struct Inner {
    listening: ListenHandle,
    /// The progress, if it is manual.
    progress: Option<Arc<ManualProgress>>,
    id: EndpointId,
    context: Option<UserContext>,
    _fabric: Keep,
    _dependences: [Option<Dependence>; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.listening.stop();
        if let Some(progress) = &self.progress {
            progress.turn();
        }
    }
}

impl PassiveEndpoint {
    /// The address at which it listens, with the port that was chosen (`fi_getname`).
    #[doc(alias = "fi_getname")]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.listening.local_addr()
    }

    /// The id of this listener in connection requests.
    pub fn id(&self) -> EndpointId {
        self.inner.id
    }

    /// The context that was given when it was opened.
    pub fn context(&self) -> Option<UserContext> {
        self.inner.context
    }

    /// Statistics of its requests.
    pub fn stats(&self) -> ListenerStats {
        self.inner.listening.stats()
    }

    /// True while it listens; false once its runtime has ended, its socket has failed, or the last
    /// handle of its event queue has been dropped.
    pub fn is_listening(&self) -> bool {
        !self.inner.listening.is_gone()
    }
}

debug_fields!(PassiveEndpoint, self => local_addr: self.local_addr());
