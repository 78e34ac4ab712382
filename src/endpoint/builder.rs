//! Opening a connected endpoint and binding it (`fi_endpoint`, `fi_ep_bind`; `fi_endpoint(3)`).

use std::sync::Arc;

use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{Caps, EndpointType};
use crate::progress::{Bindings, Port};

use super::binding::{Binding, binding_setters, endpoint_name};
use super::{Endpoint, Inner, SharedReceiveContext};

/// Opens an [`Endpoint`].
///
/// You get one from [`Domain::endpoint`]. Queues and counters are passed to the builder, before the
/// endpoint is opened (`fi_ep_bind`).
///
/// ```
/// use tokio_fabric::{Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let queue = domain.completion_queue().open()?;
/// let endpoint = domain.endpoint().transmit_queue(&queue).receive_queue(&queue).open()?;
/// assert!(endpoint.peer_addr().is_none()); // It is not connected yet.
/// # Ok(()) }
/// ```
#[doc(alias = "fi_ep_bind")]
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct EndpointBuilder {
    binding: Binding,
    events: Option<EventQueue>,
    receives: Option<SharedReceiveContext>,
}

impl Domain {
    /// Starts an endpoint of this domain (`fi_endpoint`).
    #[doc(alias("fi_endpoint", "fi_endpoint2"))]
    pub fn endpoint(&self) -> EndpointBuilder {
        EndpointBuilder {
            binding: Binding::new(self, EndpointType::Msg),
            events: None,
            receives: None,
        }
    }
}

binding_setters!(EndpointBuilder);

impl EndpointBuilder {
    /// The queue for this endpoint's Connected, Shutdown and Error events. Default: the one that
    /// its domain is bound to, if any.
    pub fn event_queue(mut self, events: &EventQueue) -> Self {
        self.events = Some(events.clone());
        self
    }

    /// The receive context whose receives take this endpoint's messages (`fi_ep_bind` with an
    /// object opened by `fi_srx_context`). [`Endpoint::recv`] then fails. Default: a receive
    /// context of its own.
    pub fn receive_context(mut self, context: &SharedReceiveContext) -> Self {
        self.receives = Some(context.clone());
        self
    }

    /// The context of this endpoint's Shutdown event. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.binding.context = Some(context.into());
        self
    }

    /// The number of operations that the transmit context holds, 1 to 4,096 (`tx_attr->size`).
    /// Default: the Info's, 256. Further posts wait, or fail with Again.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.binding.sizes.tx_size = operations;
        self
    }

    /// The number of bytes of unexpected messages that are kept before the peer has to hold back
    /// further ones. Default: 1 MiB. Each message counts 128 bytes for bookkeeping in addition to
    /// its own length. 0 keeps none.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.binding.sizes.unexpected_bytes = bytes;
        self
    }

    /// Opens the endpoint.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`] for a size, a limit or a [`Liveness`](crate::ep::Liveness)
    ///   that is out of range; for a queue, a counter or a receive context of another domain,
    ///   unless this domain is a [peer](crate::domain::DomainBuilder::peer_of) of that one; for a
    ///   receive context together with a receive counter; for no receive context if the domain's
    ///   Info requires a shared one; and for an authorization key without the
    ///   [`extension`](Self::extension), which is needed to prove it.
    /// - [`ErrorKind::Unsupported`] for the keys of an address vector.
    /// - [`ErrorKind::BadState`] if the domain, the receive context, a queue or a counter is
    ///   closed.
    /// - [`ErrorKind::Again`] if the event queue does not have the two free slots that the endpoint
    ///   reserves for its Connected and Shutdown events.
    /// - [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    #[doc(alias = "fi_enable")]
    pub fn open(self) -> Result<Endpoint> {
        let EndpointBuilder {
            mut binding,
            events,
            receives,
        } = self;
        let extension = binding.judged()?;
        binding.bind_receives(receives.as_ref(), EndpointType::Msg)?;
        let (sizes, context) = (binding.sizes, binding.context);
        let traffic = binding.traffic()?;
        let counters = binding.counters.clone();
        let id = EndpointId::next();
        let name = endpoint_name(id);
        let scope = binding.domain.scope();
        let depend = |receives: &SharedReceiveContext| receives.depend(scope, Arc::clone(&name));
        let depends = receives.as_ref().map(depend).transpose()?;
        let mut common = binding.bind(id, &name)?;
        common.dependences.extend(depends);
        let events = events.or_else(|| common.domain.event_queue());
        let (connected, shutdown) = match &events {
            None => (None, None),
            Some(events) => {
                let progress = common.domain.progress_by_hand();
                common.dependences.push(events.depend(name, progress)?);
                let full = || {
                    let message = format!(
                        "the event queue of {} places is full: an endpoint reserves two of them, \
                         for its Connected and its Shutdown; read events, or open the queue larger",
                        events.capacity()
                    );
                    Error::new(ErrorKind::Again, message)
                };
                let connected = events.try_reserve().ok_or_else(full)?;
                let shutdown = events.try_reserve().ok_or_else(full)?;
                (Some(connected), Some(shutdown))
            }
        };
        let bindings = Bindings {
            receive_queue: common.receive_queue.places(),
            caps: common.caps,
            counters: counters.boxed(),
            rma_events: common.caps.has(Caps::RMA_EVENT),
            traffic,
            connected,
            shutdown,
            events: events.as_ref().map(EventQueue::downgrade),
            context,
        };
        let engine = common.domain.engine_for_endpoint();
        let port = match &receives {
            None => Port::open(engine, id, sizes, extension, bindings)?,
            Some(receives) => {
                let context = receives.context();
                context.open_port(engine, id, sizes, extension, bindings)?
            }
        };
        Ok(Endpoint {
            inner: Arc::new(Inner {
                common,
                port,
                _receives: receives,
            }),
        })
    }
}
