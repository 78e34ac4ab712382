//! Opening a datagram endpoint and binding it (`fi_endpoint`, `fi_ep_bind`; `fi_endpoint(3)`).

use std::net::SocketAddr;
use std::sync::Arc;

use super::{DgramEndpoint, Inner};
use crate::av::AddressVector;
use crate::cntr::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::endpoint::binding::traffic_mark;
use crate::endpoint::common::Common;
use crate::endpoint::defaults::{Defaults, SelectiveQueues};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, canonical};
use crate::info::{Caps, EndpointType, TrafficClass};
use crate::limits::{CONTEXT_SIZE_DEFAULT, RECEIVE_SIZE_MAX, TRANSMIT_SIZE_MAX};
use crate::progress::{CounterSet, DgramConfig, DgramPort, DgramSizes};
use crate::transport::DatagramOptions;

/// Opens a [`DgramEndpoint`].
///
/// You get one from [`Domain::dgram_endpoint`]. Queues, counters and the address vector are passed
/// to the builder, before the endpoint is opened (`fi_ep_bind`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let builder = domain.dgram_endpoint().address_vector(&peers);
/// let endpoint = builder.bind(([127, 0, 0, 1], 0).into()).unexpected_bytes(1 << 16).open()?;
/// assert_ne!(endpoint.local_addr().port(), 0); // The system has chosen one.
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct DgramEndpointBuilder {
    domain: Domain,
    vector: Option<AddressVector>,
    transmit_queue: Option<CompletionQueue>,
    receive_queue: Option<CompletionQueue>,
    counters: CounterSet,
    selective: SelectiveQueues,
    sizes: DgramSizes,
    bind: Option<SocketAddr>,
    shared: bool,
    buffer_bytes: Option<usize>,
    traffic_class: TrafficClass,
}

impl Domain {
    /// Starts building a datagram endpoint of this domain (`fi_endpoint` with `FI_EP_DGRAM`).
    ///
    /// Every domain can have datagram endpoints. A domain whose Info is for [`EndpointType::Dgram`]
    /// gives them its attributes; in other domains they have the attributes that an Info for
    /// datagrams on the same interface would have.
    pub fn dgram_endpoint(&self) -> DgramEndpointBuilder {
        let info = self.info();
        let size = |size: usize| {
            if size == 0 {
                CONTEXT_SIZE_DEFAULT
            } else {
                size
            }
        };
        DgramEndpointBuilder {
            domain: self.clone(),
            vector: None,
            transmit_queue: None,
            receive_queue: None,
            counters: CounterSet::default(),
            selective: SelectiveQueues::default(),
            sizes: DgramSizes {
                tx_size: size(info.tx.size),
                rx_size: size(info.rx.size),
                unexpected_bytes: info.rx.total_buffered_recv,
            },
            bind: None,
            shared: false,
            buffer_bytes: None,
            traffic_class: info.tx.traffic_class,
        }
    }
}

impl DgramEndpointBuilder {
    /// The address vector that contains its peers (`fi_ep_bind` with an address vector). Required.
    pub fn address_vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// The queue for sends posted with `.queue(context)` (`FI_TRANSMIT`).
    pub fn transmit_queue(mut self, queue: &CompletionQueue) -> Self {
        self.transmit_queue = Some(queue.clone());
        self
    }

    /// The queue for receives posted with `.queue(context)` (`FI_RECV`). Default: a small queue of
    /// the endpoint's own.
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.receive_queue = Some(queue.clone());
        self
    }

    /// One queue for both directions.
    pub fn completion_queue(self, queue: &CompletionQueue) -> Self {
        self.transmit_queue(queue).receive_queue(queue)
    }

    /// Binds the transmit queue selectively, as
    /// [`EndpointBuilder::selective_transmit`](crate::ep::EndpointBuilder::selective_transmit).
    pub fn selective_transmit(mut self) -> Self {
        self.selective.transmit = true;
        self
    }

    /// Binds the receive queue selectively, as
    /// [`EndpointBuilder::selective_receive`](crate::ep::EndpointBuilder::selective_receive).
    pub fn selective_receive(mut self) -> Self {
        self.selective.receive = true;
        self
    }

    /// Counts completed sends (`FI_SEND`), including injected ones.
    pub fn send_counter(mut self, counter: &Counter) -> Self {
        self.counters.send = Some(counter.clone());
        self
    }

    /// Counts completed receives (`FI_RECV`).
    pub fn receive_counter(mut self, counter: &Counter) -> Self {
        self.counters.receive = Some(counter.clone());
        self
    }

    /// The local address (`fi_setname`); port 0 lets the system choose. Default: the source address
    /// of the domain's Info, or any. To receive from multicast groups, the endpoint must be bound
    /// to all addresses (`0.0.0.0`, `::`).
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Allows other sockets that also request it to have the same address. Each of them receives
    /// the datagrams of the groups that it has joined; only one of them receives those for the
    /// address itself. Default: no.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// The number of sends that the transmit context holds, 1 to 4,096 (`tx_attr->size`). Default:
    /// the Info's, 256. Further posts wait, or fail with Again.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.sizes.tx_size = operations;
        self
    }

    /// The number of receives that the receive context holds, 1 to 65,536 (`rx_attr->size`).
    /// Default: the Info's, 256.
    pub fn receive_size(mut self, operations: usize) -> Self {
        self.sizes.rx_size = operations;
        self
    }

    /// The number of bytes of datagrams that are kept while no receive is posted for them. Default:
    /// 1 MiB. Each datagram counts 128 bytes for bookkeeping in addition to its own length. Beyond
    /// this limit datagrams are dropped; 0 drops every datagram that finds no receive.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.sizes.unexpected_bytes = bytes;
        self
    }

    /// The size in bytes of the system's buffers of the socket, in each direction, which must hold
    /// a burst until the driver reads it. Default: the system's, about 200 KiB. The system limits
    /// it to `rmem_max` and `wmem_max` of `net.core`.
    pub fn socket_buffer(mut self, bytes: usize) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// How the network is asked to treat the endpoint's traffic (`tclass` of `fi_endpoint(3)`).
    /// Default, and for [`TrafficClass::Unspec`]: the Info's, which is the domain's unless the
    /// hints specify another.
    pub fn traffic_class(mut self, class: TrafficClass) -> Self {
        self.traffic_class = class;
        self
    }

    /// Opens the endpoint, which receives datagrams from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without an address vector, for a size out of range, or for an
    /// address vector, a queue or a counter of another domain, unless this domain is a
    /// [peer](crate::domain::DomainBuilder::peer_of) of that one; [`ErrorKind::AddressInUse`] and
    /// [`ErrorKind::AddressNotAvailable`] for the local address; [`ErrorKind::Unsupported`] in a
    /// domain with an authorization key; [`ErrorKind::BadState`] if the domain, the address vector,
    /// a queue or a counter is closed; [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    pub fn open(self) -> Result<DgramEndpoint> {
        for (size, max, name) in [
            (self.sizes.tx_size, TRANSMIT_SIZE_MAX, "transmit_size"),
            (self.sizes.rx_size, RECEIVE_SIZE_MAX, "receive_size"),
        ] {
            if !(1..=max).contains(&size) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{name} is {size}, it may be 1 to {max}"),
                ));
            }
        }
        let Some(vector) = self.vector else {
            let what = "address_vector: a datagram endpoint has none of its own, give it one";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let domain = self.domain;
        if domain.auth_secret(None).is_some() || domain.has_keys_of_vector(None) {
            let what = "the domain has an authorization key, which no datagram can prove";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let caps = domain.info().caps_of(EndpointType::Dgram);
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => domain.internal_queue()?,
        };
        let id = EndpointId::next();
        let name: Arc<str> = format!("datagram endpoint {id:?}").into();
        let keep = domain.keep_endpoint(&name, caps)?;
        let scope = domain.scope();
        let mut dependences = vec![
            vector.depend(scope, Arc::clone(&name))?,
            receive_queue.depend(scope, Arc::clone(&name))?,
        ];
        if let Some(queue) = &self.transmit_queue {
            dependences.push(queue.depend(scope, Arc::clone(&name))?);
        }
        for counter in self.counters.all() {
            dependences.push(counter.depend(scope, Arc::clone(&name))?);
        }
        let (message_max, inject_size) = limits(&domain);
        let mut sizes = self.sizes;
        if !caps.has(Caps::MSG | Caps::RECV) {
            // No receive can ask for datagrams that arrive: they are dropped, and counted.
            sizes.unexpected_bytes = 0;
        }
        let config = DgramConfig {
            socket: DatagramOptions {
                bind: canonical(self.bind.unwrap_or_else(|| domain.info().listen_address())),
                shared: self.shared,
                buffer_bytes: self.buffer_bytes,
                traffic: traffic_mark(self.traffic_class, &domain)?,
            },
            sizes,
            message_max,
            vector: vector.clone(),
            counters: self.counters,
        };
        let inner = Inner {
            port: DgramPort::open(domain.engine_for_endpoint(), id, config)?,
            vector,
            inject_size,
            common: Common {
                id,
                regions: domain.endpoint_regions(),
                caps,
                defaults: Defaults::new(
                    domain.info().op_flags_of(EndpointType::Dgram),
                    self.selective,
                ),
                domain,
                transmit_queue: self.transmit_queue,
                receive_queue,
                _keep: keep,
                dependences,
            },
        };
        Ok(DgramEndpoint {
            inner: Arc::new(inner),
        })
    }
}

/// Returns the largest size in bytes of a message, and of an injected one.
fn limits(domain: &Domain) -> (usize, usize) {
    let info = domain.info();
    match info.endpoint.endpoint_type {
        EndpointType::Dgram => {
            let max = usize::try_from(info.endpoint.max_msg_size).unwrap_or(usize::MAX);
            (max, info.tx.inject_size)
        }
        _ => {
            let max = info.interface.datagram_max();
            (max, max)
        }
    }
}
