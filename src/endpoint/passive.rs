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
use crate::transport::{self, Runner, TransportOptions};

/// Opens a listener; made by `Fabric::passive_endpoint`.
#[doc(alias("fi_pep_bind", "fi_listen"))]
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

    /// Connections that may be open without a verdict of the application to wait for: their request
    /// has not come in full, or their rejection is on its way. When there are more, the oldest of
    /// the host that has the most is closed. Default 1024.
    pub fn half_open_max(mut self, peers: usize) -> Self {
        self.half_open_max = peers.max(1);
        self
    }

    /// How long a peer may take to send its request, and, once that is accepted, to say what else
    /// belongs to the handshake. Default 10 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Who accepts connections and reads their requests: a task on the current runtime, a thread of
    /// the listener's own, or who reads the event queue or awaits an
    /// [`accept`](crate::eq::ConnRequest::accept). Default: what the fabric's Info says, which is
    /// [`Driver::Task`] unless the hints ask for manual progress.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.info.domain.set_driver(driver);
        self
    }

    /// The value that requests of this listener carry. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Listens at the address of the fabric's Info (`.source(..)` or `.node(..)` of the hints), or
    /// at any address and port if it has none.
    ///
    /// # Errors
    /// As for [`listen_at`](Self::listen_at).
    pub fn listen(self) -> Result<PassiveEndpoint> {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = self.info.source.unwrap_or(any);
        self.listen_at(address)
    }

    /// Listens at this address (`fi_setname`, `fi_listen`); port 0 lets the system choose.
    ///
    /// The system takes some milliseconds to free the port of a process that was killed while its
    /// ring was at work: who restarts one at once tries again.
    ///
    /// # Errors
    /// [`ErrorKind::AddressInUse`](crate::ErrorKind::AddressInUse),
    /// [`ErrorKind::AddressNotAvailable`](crate::ErrorKind::AddressNotAvailable),
    /// [`ErrorKind::NoRuntime`](crate::ErrorKind::NoRuntime) outside of a Tokio runtime, unless it
    /// gets a thread of its own.
    pub fn listen_at(self, address: SocketAddr) -> Result<PassiveEndpoint> {
        let dependence = self.events.depend("passive endpoint".to_owned())?;
        let mut options = self.transport;
        options.runner = runner_of(self.info.domain.driver, options.backend)?;
        let progress = match &options.runner {
            Runner::Manual(reactor) => Some(Arc::clone(reactor.progress())),
            Runner::Task | Runner::Thread => None,
        };
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
        self.events.add_driven(progress.as_ref());
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

/// A listener (`struct fid_pep`): connection requests come to its event queue as
/// [`Event::ConnRequest`](crate::Event::ConnRequest).
///
/// It runs on the Tokio runtime it was opened in, or on a thread of its own. While the event queue
/// has no free slot it accepts nothing more; peers then wait in the system's backlog. Dropping the
/// last handle stops listening; requests already reported can still be accepted. So does dropping
/// the last handle of the event queue, since nothing could be accepted then: requests that wait are
/// rejected, and later ones are refused by the system.
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
#[doc(alias("fi_passive_ep", "fid_pep"))]
#[derive(Clone)]
pub struct PassiveEndpoint {
    inner: Arc<Inner>,
}

struct Inner {
    listening: ListenHandle,
    /// Where the application makes it by hand.
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
    /// The address listened at, with the port that was chosen (`fi_getname`).
    #[doc(alias = "fi_getname")]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.listening.local_addr()
    }

    /// The name of this listener in connection requests.
    pub fn id(&self) -> EndpointId {
        self.inner.id
    }

    /// The context given when it was opened.
    pub fn context(&self) -> Option<UserContext> {
        self.inner.context
    }

    /// What has come to it.
    pub fn stats(&self) -> ListenerStats {
        self.inner.listening.stats()
    }

    /// True while it listens; false once its runtime has ended, its socket has failed, or the last
    /// handle of its event queue was dropped.
    pub fn is_listening(&self) -> bool {
        !self.inner.listening.is_gone()
    }
}

debug_fields!(PassiveEndpoint, self => local_addr: self.local_addr());
