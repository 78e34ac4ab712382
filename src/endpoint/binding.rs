//! The objects that an endpoint of any kind is bound to, as its builder collects them
//! (`fi_ep_bind`; `fi_endpoint(3)`).

use std::sync::Arc;

use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{AuthKey, Caps, ContextCount, EndpointType, OpFlags, SideCaps, TrafficClass};
use crate::limits::{CONTEXT_SIZE_DEFAULT, RECEIVE_SIZE_MAX, TRANSMIT_SIZE_MAX};
use crate::progress::{CounterSet, ExtensionConfig, PortSizes, SendOrder};
use crate::transport::TrafficMark;

use super::common::Common;
use super::defaults::{Defaults, SelectiveQueues};
use super::{OnRefusal, SharedReceiveContext};

/// The settings that builders of all kinds of endpoints have in common.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) domain: Domain,
    /// Capabilities, which follow from the endpoint's kind and the domain's Info.
    pub(super) caps: SideCaps,
    /// Default flags of the transmit side and of the receive side, which also follow from the kind
    /// and the Info.
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
    /// Whether this is a further context of an endpoint, not its first.
    pub(super) is_additional_context: bool,
}

impl Binding {
    /// Creates a binding to nothing, with the capabilities and sizes of the domain's Info.
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
            is_additional_context: false,
        }
    }

    /// Checks the settings and returns what to offer peers beyond the plain protocol.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a setting that is out of range, which the message names,
    /// or for a key without the extension, which proves it; [`ErrorKind::Unsupported`] for keys of
    /// an address vector.
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

    /// As `judged`, for an endpoint whose peers have keys of their own.
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

    /// Binds an endpoint of this kind to the counter and the queue of the receives that it shares,
    /// if it shares any.
    pub(super) fn bind_receives(
        &mut self,
        receives: Option<&SharedReceiveContext>,
        kind: EndpointType,
    ) -> Result<()> {
        let invalid = |what| Err(Error::new(ErrorKind::InvalidArgument, what));
        let Some(receives) = receives else {
            return match self.domain.info().endpoint.rx_ctx_cnt {
                ContextCount::Shared if self.domain.info().endpoint.endpoint_type == kind => {
                    invalid(
                        "receive_context: the domain's Info has endpoints share theirs \
                         (FI_SHARED_CONTEXT), give it one",
                    )
                }
                _ => Ok(()),
            };
        };
        if receives.is_connectionless() != (kind == EndpointType::Rdm) {
            return invalid(match kind {
                EndpointType::Rdm => {
                    "receive_context: it is for connected endpoints, see Domain::rdm_receive_context"
                }
                _ => {
                    "receive_context: it is for connectionless endpoints, see \
                      Domain::receive_context"
                }
            });
        }
        for caps in [Caps::TAGGED, Caps::SOURCE, Caps::DIRECTED_RECV] {
            let caps = Caps::RECV | caps;
            if self.caps.has(caps) {
                let of_context = receives.inner.common.caps.check(caps);
                of_context.map_err(|error| {
                    Error::new(
                        ErrorKind::InvalidArgument,
                        format!(
                            "receive_context: it has fewer capabilities than the endpoint: {error}"
                        ),
                    )
                })?;
            }
        }
        if self.counters.receive.is_some() {
            return invalid(
                "receive_counter: receives are the receive context's, whose counter counts them",
            );
        }
        // The receive context counts; the counter is bound so that awaiting it drives the endpoint.
        self.counters.receive = receives.receive_counter().cloned();
        let queue = &mut self.receive_queue;
        queue.get_or_insert_with(|| receives.receive_queue().clone());
        Ok(())
    }

    /// Returns the mark of the packets that the endpoint sends.
    pub(super) fn traffic(&self) -> Result<Option<TrafficMark>> {
        traffic_mark(self.traffic_class, &self.domain)
    }

    /// Binds the endpoint of this name to its queues and counters. If it was given no receive
    /// queue, opens one for completions without a posted operation.
    pub(super) fn bind(self, id: EndpointId, name: &Arc<str>) -> Result<Common> {
        let keep = match self.is_additional_context {
            false => self.domain.keep_endpoint(name, self.caps)?,
            true => self.domain.keep_context(name, self.caps)?,
        };
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => self.domain.internal_queue()?,
        };
        let scope = self.domain.scope();
        let mut dependences = vec![receive_queue.depend(scope, Arc::clone(name))?];
        let other = self.transmit_queue.as_ref();
        if let Some(queue) = other.filter(|queue| !queue.is_same(&receive_queue)) {
            dependences.push(queue.depend(scope, Arc::clone(name))?);
        }
        for counter in self.counters.all() {
            dependences.push(counter.depend(scope, Arc::clone(name))?);
        }
        Ok(Common {
            id,
            regions: self.domain.endpoint_regions(),
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

/// Returns the endpoint's name in the Busy errors of the objects that it depends on.
pub(super) fn endpoint_name(id: EndpointId) -> Arc<str> {
    format!("endpoint {id:?}").into()
}

/// Returns the mark of this traffic class, or of the domain's class for `Unspec`. `None`: the
/// system's default.
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

/// Defines the setters of a builder that has a [`Binding`].
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
            /// remote CQ data needs a slot too. The queue should therefore have more slots than the
            /// receives posted to it: if a write finds no slot, nothing more is read from that peer
            /// until one is free.
            pub fn receive_queue(mut self, queue: &crate::CompletionQueue) -> Self {
                self.binding.receive_queue = Some(queue.clone());
                self
            }

            /// One queue for both directions. It should have more slots than both contexts have
            /// operations: if the slots reserved for acknowledged sends leave none for a peer's
            /// remote CQ data, the endpoint stops reading. If this happens on both sides at once,
            /// neither reads the acknowledgements that would free a slot.
            pub fn completion_queue(self, queue: &crate::CompletionQueue) -> Self {
                self.transmit_queue(queue).receive_queue(queue)
            }

            /// Binds the transmit queue selectively (`FI_TRANSMIT | FI_SELECTIVE_COMPLETION`): of
            /// the operations posted with `.queue(context)`, it reports those that fail and those
            /// that [request a report](crate::op::Queued::completion), or all of them if the Info's
            /// `tx.op_flags` contain [`OpFlags::COMPLETION`](crate::info::OpFlags::COMPLETION). If
            /// an operation succeeds without a report, its buffers are freed; counters count it.
            /// Each operation reserves a slot of the queue while it is outstanding, so a failure
            /// can always be reported. Default: all operations are reported.
            pub fn selective_transmit(mut self) -> Self {
                self.binding.selective.transmit = true;
                self
            }

            /// Binds the receive queue selectively (`FI_RECV | FI_SELECTIVE_COMPLETION`). This is
            /// useful for messages that are received into regions, because other buffers are freed
            /// together with their message. Completions without a posted operation, and buffers for
            /// several messages, are always reported.
            pub fn selective_receive(mut self) -> Self {
                self.binding.selective.receive = true;
                self
            }

            /// Counts completed sends (`FI_SEND`), including injected ones.
            pub fn send_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.send = Some(counter.clone());
                self
            }

            /// Counts completed receives (`FI_RECV`).
            pub fn receive_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.receive = Some(counter.clone());
                self
            }

            /// Counts completed reads (`FI_READ`).
            pub fn read_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.read = Some(counter.clone());
                self
            }

            /// Counts completed writes (`FI_WRITE`).
            pub fn write_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.write = Some(counter.clone());
                self
            }

            /// Counts peers' reads of this side's regions (`FI_REMOTE_READ`), when they are
            /// answered.
            pub fn remote_read_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.remote_read = Some(counter.clone());
                self
            }

            /// Counts peers' writes into this side's regions (`FI_REMOTE_WRITE`), when their data
            /// is in memory.
            pub fn remote_write_counter(mut self, counter: &crate::Counter) -> Self {
                self.binding.counters.remote_write = Some(counter.clone());
                self
            }

            /// The number of receives that the receive context holds, 1 to 65,536
            /// (`rx_attr->size`). Default: the Info's, 256.
            pub fn receive_size(mut self, operations: usize) -> Self {
                self.binding.sizes.rx_size = operations;
                self
            }

            /// How the network is asked to treat the endpoint's traffic (`tclass` of
            /// `fi_endpoint(3)`). Default, and for
            /// [`TrafficClass::Unspec`](crate::info::TrafficClass::Unspec): the Info's, which is
            /// the domain's unless the hints specify another.
            pub fn traffic_class(mut self, class: crate::info::TrafficClass) -> Self {
                self.binding.traffic_class = class;
                self
            }

            /// Whether the endpoint offers this library's extension of the protocol to peers.
            /// Default: yes. A peer that does not know the extension is not affected; the
            /// connection then has no typed refusals, heartbeats, message credit and coordinated
            /// shutdown.
            pub fn extension(mut self, offered: bool) -> Self {
                self.binding.extension.offered = offered;
                self
            }

            /// When a silent peer is considered dead. Default: within 4.5 s while the endpoint
            /// waits for anything from the peer, and within about two minutes while only receives
            /// are posted; [`Liveness`](crate::progress::Liveness) has the details. The connection
            /// then fails with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), together with
            /// everything bound to it.
            ///
            /// Every byte received shows that the peer is alive, so a slow peer is not considered
            /// dead, nor is one that posts no receives. A peer whose process is stopped or whose
            /// runtime is blocked is: if a peer computes for seconds on a `current_thread` runtime,
            /// allow more rounds, or give it a runtime for the computation.
            ///
            /// For a peer without this library's extension the operating systems probe each other.
            /// Such a peer is considered dead when its machine is down or unreachable; a stopped
            /// program on a running machine cannot be distinguished from a slow one.
            pub fn liveness(mut self, liveness: crate::progress::Liveness) -> Self {
                self.binding.extension.liveness = liveness;
                self
            }

            /// The effect of a refused RMA operation on its connection. Default:
            /// [`OnRefusal::Disconnect`](crate::ep::OnRefusal::Disconnect). With a peer without the
            /// extension there is no choice: an operation can only be refused by closing the
            /// connection.
            pub fn on_refusal(mut self, on_refusal: crate::endpoint::OnRefusal) -> Self {
                self.binding.on_refusal = on_refusal;
                self
            }

            /// Restricts communication to peers whose endpoint has the same key (`auth_key` of
            /// `fi_endpoint(3)`). Default, and for an empty key: the Info's key, otherwise the
            /// domain's. Ignored before version 1.5 of the interface.
            ///
            /// Each side proves that it has the key before anything else is exchanged; the key
            /// itself is never sent. A peer that does not prove the same key is refused, as is one
            /// that cannot, such as a C program. No connection is made, and the attempt fails with
            /// [`ErrorKind::NotAuthorized`](crate::ErrorKind::NotAuthorized), or, on a side that is
            /// rejected before the proof, with
            /// [`ErrorKind::ConnectionRefused`](crate::ErrorKind::ConnectionRefused).
            ///
            /// The key does not encrypt or protect the data that follows: an attacker on the
            /// network can still read and change it.
            pub fn auth_key(mut self, key: crate::info::AuthKey) -> Self {
                self.binding.auth_key = Some(key);
                self
            }
        }
    };
}
pub(super) use binding_setters;
