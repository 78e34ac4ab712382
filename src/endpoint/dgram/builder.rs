//! Opening a datagram endpoint and binding it (`fi_endpoint`, `fi_ep_bind`; `fi_endpoint(3)`).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
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
use crate::id::EndpointId;
use crate::info::{AddressFormat, Caps, EndpointType, TrafficClass};
use crate::limits::{CONTEXT_SIZE_DEFAULT, RECEIVE_SIZE_MAX, TRANSMIT_SIZE_MAX};
use crate::progress::{CounterSet, DgramConfig, DgramPort, DgramSizes};
use crate::transport::DatagramOptions;

/// Opens a datagram endpoint; made by [`Domain::dgram_endpoint`]. What an endpoint is bound to is
/// said here, before it is opened, so that no binding can come too late.
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
    /// Starts a datagram endpoint of this domain (`fi_endpoint` with `FI_EP_DGRAM`).
    ///
    /// A domain of any Info can have them. One whose Info is for [`EndpointType::Dgram`] gives them
    /// its attributes; in others they have those that an Info of its interface would have.
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
    /// The peers it talks to (`fi_ep_bind` with an address vector). Must be given.
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

    /// Counts sends that ended (`FI_SEND`), injected ones included.
    pub fn send_counter(mut self, counter: &Counter) -> Self {
        self.counters.send = Some(counter.clone());
        self
    }

    /// Counts receives that ended (`FI_RECV`).
    pub fn receive_counter(mut self, counter: &Counter) -> Self {
        self.counters.receive = Some(counter.clone());
        self
    }

    /// The local address (`fi_setname`); port 0 lets the system choose. Default: the source address
    /// of the domain's Info, or any. All addresses (`0.0.0.0`, `::`) are what hears multicast
    /// groups.
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Others who ask for this too may have the same address; each of them then gets the datagrams
    /// of groups it has joined, and one of them those for the address itself. Default: no.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sends the transmit context holds, 1 to 4,096 (`tx_attr->size`). Default: the Info's, 256.
    /// Further posts wait, or end with Again.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.sizes.tx_size = operations;
        self
    }

    /// Receives the receive context holds, 1 to 65,536 (`rx_attr->size`). Default: the Info's, 256.
    pub fn receive_size(mut self, operations: usize) -> Self {
        self.sizes.rx_size = operations;
        self
    }

    /// Bytes of datagrams kept while no receive is posted for them. Default 1 MiB. Each counts 128
    /// bytes of bookkeeping besides its own. Beyond it, datagrams are dropped; with 0 every one
    /// that finds no receive.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.sizes.unexpected_bytes = bytes;
        self
    }

    /// Bytes that the system keeps for the socket, each way, until the driver takes them in: what a
    /// burst needs. Default: the system's, some 200 KiB. It gives no more than `rmem_max` and
    /// `wmem_max` of `net.core` allow.
    pub fn socket_buffer(mut self, bytes: usize) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// How the network shall treat what the endpoint sends (`tclass` of `fi_endpoint(3)`). Default,
    /// and for [`TrafficClass::Unspec`]: the Info's, which is the domain's unless the hints say
    /// otherwise.
    pub fn traffic_class(mut self, class: TrafficClass) -> Self {
        self.traffic_class = class;
        self
    }

    /// Opens the endpoint: from now on datagrams are taken in.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without an address vector, or for a size out of range;
    /// [`ErrorKind::AddressInUse`], [`ErrorKind::AddressNotAvailable`] for the local address;
    /// [`ErrorKind::Unsupported`] in a domain with an authorization key;
    /// [`ErrorKind::BadState`] if the domain, the address vector, a queue or a counter is closed;
    /// [`ErrorKind::DriverGone`] if the domain's runtime has ended.
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
        let keep = domain.keep_endpoint("datagram endpoint", caps)?;
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => domain.internal_queue()?,
        };
        let id = EndpointId::next();
        let name = format!("{id:?}");
        let mut dependences = vec![
            vector.depend(name.clone())?,
            receive_queue.depend(name.clone())?,
        ];
        if let Some(queue) = &self.transmit_queue {
            dependences.push(queue.depend(name.clone())?);
        }
        for counter in self.counters.all() {
            dependences.push(counter.depend(name.clone())?);
        }
        let (message_max, inject_size) = limits(&domain);
        let mut sizes = self.sizes;
        if !caps.has(Caps::MSG | Caps::RECV) {
            // Nothing can ask for what comes: it is dropped, and counted.
            sizes.unexpected_bytes = 0;
        }
        let any = match domain.info().address_format {
            AddressFormat::SockaddrIn6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        };
        let config = DgramConfig {
            socket: DatagramOptions {
                bind: self.bind.or(domain.info().source).unwrap_or(any),
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

/// Bytes of a message, and of an injected one.
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
