//! What an endpoint of any kind is bound to, as its builder collects it (`fi_ep_bind`;
//! `fi_endpoint(3)`).

use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{AuthKey, EndpointType, OpFlags, SideCaps, TrafficClass};
use crate::limits::{CONTEXT_SIZE_DEFAULT, RECEIVE_SIZE_MAX, TRANSMIT_SIZE_MAX};
use crate::progress::{CounterSet, ExtensionConfig, PortSizes, SendOrder};
use crate::transport::TrafficMark;

use super::OnRefusal;
use super::common::Common;
use super::defaults::{Defaults, SelectiveQueues};

/// What builders of endpoints have in common.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) domain: Domain,
    /// What it can do, by its kind and the domain's Info.
    pub(super) caps: SideCaps,
    /// Its default flags, likewise, of both sides.
    pub(super) op_flags: (OpFlags, OpFlags),
    pub(super) selective: SelectiveQueues,
    pub(super) transmit_queue: Option<CompletionQueue>,
    pub(super) receive_queue: Option<CompletionQueue>,
    pub(super) counters: CounterSet,
    pub(super) context: Option<UserContext>,
    pub(super) sizes: PortSizes,
    pub(super) extension: ExtensionConfig,
    pub(super) on_refusal: OnRefusal,
    pub(super) auth_key: Option<AuthKey>,
    pub(super) traffic_class: TrafficClass,
    /// It is a context of an endpoint that has others, and not the first of them.
    pub(super) is_further_context: bool,
}

impl Binding {
    /// Nothing is bound; capabilities and sizes are those of the domain's Info.
    pub(super) fn new(domain: &Domain, kind: EndpointType) -> Self {
        let info = domain.info();
        let or_default = |size| {
            if size == 0 {
                CONTEXT_SIZE_DEFAULT
            } else {
                size
            }
        };
        Binding {
            domain: domain.clone(),
            caps: info.caps_of(kind),
            op_flags: info.op_flags_of(kind),
            selective: SelectiveQueues::default(),
            transmit_queue: None,
            receive_queue: None,
            counters: CounterSet::default(),
            context: None,
            sizes: PortSizes {
                tx_size: or_default(info.tx.size),
                rx_size: or_default(info.rx.size),
                unexpected_bytes: info.rx.total_buffered_recv,
                send_order: SendOrder::of(info.tx.msg_order),
            },
            extension: ExtensionConfig::default(),
            on_refusal: OnRefusal::default(),
            auth_key: info.endpoint.auth_key.clone(),
            traffic_class: info.tx.traffic_class,
            is_further_context: false,
        }
    }

    /// What is offered to peers beyond the plain protocol, once all that was asked for is judged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] names what is out of range, or asks for a key without what
    /// proves it; [`ErrorKind::Unsupported`] for keys of an address vector.
    pub(super) fn judged(&self) -> Result<ExtensionConfig> {
        self.domain.check_endpoint_key(self.auth_key.as_ref())?;
        let auth_key = self.domain.auth_secret(self.auth_key.as_ref());
        if auth_key.is_some() && !self.extension.offered {
            return Err(key_without_extension());
        }
        Ok(ExtensionConfig {
            auth_key,
            ..self.judged_without_key()?
        })
    }

    /// The same, of an endpoint whose peers have keys of their own.
    pub(super) fn judged_without_key(&self) -> Result<ExtensionConfig> {
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
        self.extension.liveness.check()?;
        Ok(ExtensionConfig {
            refusals_max: self.on_refusal.refusals_max()?,
            ..self.extension.clone()
        })
    }

    /// The mark of what the endpoint sends.
    pub(super) fn traffic(&self) -> Result<Option<TrafficMark>> {
        traffic_mark(self.traffic_class, &self.domain)
    }

    /// Binds the endpoint of this name to its queues and counters, and opens a queue for what
    /// no operation posted if it was given none.
    pub(super) fn bind(self, id: EndpointId) -> Result<Common> {
        let keep = match self.is_further_context {
            false => self.domain.keep_endpoint("endpoint", self.caps)?,
            true => self.domain.keep_context("context", self.caps)?,
        };
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => self.domain.internal_queue()?,
        };
        let name = format!("{id:?}");
        let mut dependences = vec![receive_queue.depend(name.clone())?];
        let other = self.transmit_queue.as_ref();
        if let Some(queue) = other.filter(|queue| !queue.is_same(&receive_queue)) {
            dependences.push(queue.depend(name.clone())?);
        }
        for counter in self.counters.all() {
            dependences.push(counter.depend(name.clone())?);
        }
        Ok(Common {
            id,
            domain: self.domain,
            caps: self.caps,
            defaults: Defaults::new(self.op_flags, self.selective),
            transmit_queue: self.transmit_queue,
            receive_queue,
            _keep: keep,
            dependences,
        })
    }
}

/// The mark of this class of traffic, of the domain's if it is none; `None`: the system's own.
pub(super) fn traffic_mark(class: TrafficClass, domain: &Domain) -> Result<Option<TrafficMark>> {
    let class = match class {
        TrafficClass::Unspec => domain.info().tx.traffic_class,
        TrafficClass::Dscp(point @ 64..) => {
            let what = format!("traffic_class: a code point has 6 bits, {point} is too large");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        class => class,
    };
    let (dscp, priority) = (class.dscp(), class.priority());
    Ok((dscp > 0 || priority > 0).then_some(TrafficMark { dscp, priority }))
}

pub(super) fn key_without_extension() -> Error {
    let what = "an authorization key is proven by the extension, which is not offered";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// The setters of a builder that has a [`Binding`].
macro_rules! binding_setters {
    ($builder:ident) => {
        impl $builder {
            /// The queue for operations posted with `.queue(context)` that transmit or read
            /// (`FI_TRANSMIT`).
            pub fn transmit_queue(mut self, queue: &crate::CompletionQueue) -> Self {
                self.binding.transmit_queue = Some(queue.clone());
                self
            }

            /// The queue for receives posted with `.queue(context)` and for completions without a
            /// post (`FI_RECV`). Default: a small queue of the endpoint's own.
            ///
            /// Each queued receive reserves a slot while it is posted, and a peer's write with
            /// remote CQ data needs one too: a queue should hold more than the receives that are
            /// posted to it, or a write that comes before their messages finds no slot, and reading
            /// from that peer stops until one is free.
            pub fn receive_queue(mut self, queue: &crate::CompletionQueue) -> Self {
                self.binding.receive_queue = Some(queue.clone());
                self
            }

            /// One queue for both directions. It should hold more than the operations of both
            /// contexts: when slots reserved for acknowledged sends leave none for a peer's remote
            /// CQ data, reading stops, and on both sides at once neither reads the acknowledgements
            /// that would free one.
            pub fn completion_queue(self, queue: &crate::CompletionQueue) -> Self {
                self.transmit_queue(queue).receive_queue(queue)
            }

            /// Binds the transmit queue selectively (`FI_TRANSMIT | FI_SELECTIVE_COMPLETION`): of
            /// the operations posted with `.queue(context)` it reports those that fail, and of
            /// others those that [ask for it](crate::op::Queued::completion), or all if
            /// [`OpFlags::COMPLETION`](crate::info::OpFlags::COMPLETION) is among the Info's
            /// `tx.op_flags`. The buffers of one that ends well unreported are freed; counters
            /// count it. Each still keeps a slot of the queue while it is under way, so a failure
            /// always finds one. Default: all are reported.
            pub fn selective_transmit(mut self) -> Self {
                self.binding.selective.transmit = true;
                self
            }

            /// The same of the receive queue (`FI_RECV | FI_SELECTIVE_COMPLETION`) and receives: of
            /// use where messages come into regions, since other buffers are freed with what came.
            /// Completions that no operation was posted for, and buffers for several messages, are
            /// reported in any case.
            pub fn selective_receive(mut self) -> Self {
                self.binding.selective.receive = true;
                self
            }

            /// Counts sends that ended (`FI_SEND`), injected ones included.
            pub fn send_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.send = Some(counter.clone());
                self
            }

            /// Counts receives that ended (`FI_RECV`).
            pub fn receive_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.receive = Some(counter.clone());
                self
            }

            /// Counts reads that ended (`FI_READ`).
            pub fn read_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.read = Some(counter.clone());
                self
            }

            /// Counts writes that ended (`FI_WRITE`).
            pub fn write_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.write = Some(counter.clone());
                self
            }

            /// Counts peers' reads of regions here (`FI_REMOTE_READ`), as they are answered.
            pub fn remote_read_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.remote_read = Some(counter.clone());
                self
            }

            /// Counts peers' writes into regions here (`FI_REMOTE_WRITE`), as they have landed.
            pub fn remote_write_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.remote_write = Some(counter.clone());
                self
            }

            /// Receives the receive context holds, 1 to 65,536 (`rx_attr->size`). Default: the
            /// Info's, 256.
            pub fn receive_size(mut self, operations: usize) -> Self {
                self.binding.sizes.rx_size = operations;
                self
            }

            /// How the network shall treat what the endpoint sends (`tclass` of `fi_endpoint(3)`).
            /// Default, and for [`TrafficClass::Unspec`](crate::info::TrafficClass::Unspec): the
            /// Info's, which is the domain's unless the hints say otherwise.
            pub fn traffic_class(mut self, class: crate::info::TrafficClass) -> Self {
                self.binding.traffic_class = class;
                self
            }

            /// Whether this library's extension of the protocol is offered to peers. Default: yes.
            /// A peer that does not know it is not disturbed, and the connection is then a plain
            /// one: without typed refusals, heartbeats, message credit and an agreed end.
            pub fn extension(mut self, offered: bool) -> Self {
                self.binding.extension.offered = offered;
                self
            }

            /// When a silent peer counts as dead. Default: within 4.5 s while anything awaits the
            /// peer, within some two minutes while only receives are posted;
            /// [`Liveness`](crate::progress::Liveness) says how. The connection then ends by
            /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and everything bound to it with
            /// it.
            ///
            /// Any byte is a sign of life, so a slow peer is not a dead one, nor one that does not
            /// receive. But one whose process is stopped is, and so is one whose runtime is
            /// blocked: a peer that computes for seconds on a `current_thread` runtime must be
            /// given more rounds, or a runtime for itself.
            ///
            /// A peer without this library's extension is asked by the system, and its system
            /// answers. It is dead when its machine is, or cannot be reached; a stopped program on
            /// a living machine cannot be distinguished from a slow one.
            pub fn liveness(mut self, liveness: crate::progress::Liveness) -> Self {
                self.binding.extension.liveness = liveness;
                self
            }

            /// What one refused RMA operation does to its connection. Default:
            /// [`OnRefusal::Disconnect`](crate::ep::OnRefusal::Disconnect). Toward a peer without
            /// the extension there is no choice: refusing an operation takes closing the
            /// connection.
            pub fn on_refusal(mut self, on_refusal: crate::endpoint::OnRefusal) -> Self {
                self.binding.on_refusal = on_refusal;
                self
            }

            /// Who may communicate with the endpoint: only peers whose endpoint has the same key
            /// (`auth_key` of `fi_endpoint(3)`). Default, and for a key without bytes: the Info's,
            /// else the domain's. In use since version 1.5 of the interface, and ignored before.
            ///
            /// Each side proves its key to the other before anything else is said, and no byte of
            /// it goes over the wire. A peer that does not prove the same, or cannot, as a C
            /// program cannot, is refused: there is no connection, and what was to make one fails
            /// with [`ErrorKind::NotAuthorized`](crate::ErrorKind::NotAuthorized), or, at a peer
            /// that was rejected before it could prove anything, with
            /// [`ErrorKind::ConnectionRefused`](crate::ErrorKind::ConnectionRefused).
            ///
            /// What follows is as plain as ever: those who can read or change the bytes between the
            /// peers still can.
            pub fn auth_key(mut self, key: crate::info::AuthKey) -> Self {
                self.binding.auth_key = Some(key);
                self
            }
        }
    };
}
pub(super) use binding_setters;
