//! Opening an endpoint and binding it (`fi_endpoint`, `fi_ep_bind`; `fi_endpoint(3)`).

use std::sync::Arc;

use crate::cntr::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::eq::EventQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::id::Context;
use crate::info::AuthKey;
use crate::limits::{CONTEXT_SIZE_DEFAULT, RECEIVE_SIZE_MAX, TRANSMIT_SIZE_MAX};
use crate::progress::{Bindings, CounterSet, Extending, Liveness, Port, PortSizes, SendOrder};

use super::{Endpoint, Inner, OnRefusal};

/// Opens an endpoint; made by [`Domain::endpoint`]. What an endpoint is bound to is said here,
/// before it is opened, so that no binding can come too late.
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct EndpointBuilder {
    domain: Domain,
    transmit_queue: Option<CompletionQueue>,
    receive_queue: Option<CompletionQueue>,
    events: Option<EventQueue>,
    counters: CounterSet,
    context: Option<Context>,
    sizes: PortSizes,
    extending: Extending,
    on_refusal: OnRefusal,
    auth_key: Option<AuthKey>,
}

impl Domain {
    /// Starts an endpoint of this domain (`fi_endpoint`).
    pub fn endpoint(&self) -> EndpointBuilder {
        let info = self.info();
        EndpointBuilder {
            domain: self.clone(),
            transmit_queue: None,
            receive_queue: None,
            events: None,
            counters: CounterSet::default(),
            context: None,
            sizes: PortSizes {
                tx_size: if info.tx.size == 0 {
                    CONTEXT_SIZE_DEFAULT
                } else {
                    info.tx.size
                },
                rx_size: if info.rx.size == 0 {
                    CONTEXT_SIZE_DEFAULT
                } else {
                    info.rx.size
                },
                unexpected_bytes: info.rx.total_buffered_recv,
                send_order: SendOrder::of(info.tx.msg_order),
            },
            extending: Extending::default(),
            on_refusal: OnRefusal::default(),
            auth_key: info.endpoint.auth_key.clone(),
        }
    }
}

impl EndpointBuilder {
    /// The queue for operations posted with `.queue(context)` that transmit or read
    /// (`FI_TRANSMIT`).
    pub fn transmit_queue(mut self, queue: &CompletionQueue) -> Self {
        self.transmit_queue = Some(queue.clone());
        self
    }

    /// The queue for receives posted with `.queue(context)` and for completions nobody posted
    /// (`FI_RECV`). Default: a small queue of the endpoint's own.
    ///
    /// Each queued receive reserves a slot while it is posted, and a peer's write with remote CQ
    /// data needs one too: a queue should hold more than the receives that are posted to it, or a
    /// write that comes before their messages finds no slot, and reading stops until one is free.
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.receive_queue = Some(queue.clone());
        self
    }

    /// One queue for both directions. It should hold more than the operations of both contexts:
    /// when slots reserved for acknowledged sends leave none for a peer's remote CQ data, reading
    /// stops, and on both sides at once neither reads the acknowledgements that would free one.
    pub fn completion_queue(self, queue: &CompletionQueue) -> Self {
        self.transmit_queue(queue).receive_queue(queue)
    }

    /// The queue for this endpoint's Connected, Shutdown and errors. Default: the one its domain is
    /// bound to, if any.
    pub fn event_queue(mut self, events: &EventQueue) -> Self {
        self.events = Some(events.clone());
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

    /// Counts reads that ended (`FI_READ`).
    pub fn read_counter(mut self, counter: &Counter) -> Self {
        self.counters.read = Some(counter.clone());
        self
    }

    /// Counts writes that ended (`FI_WRITE`).
    pub fn write_counter(mut self, counter: &Counter) -> Self {
        self.counters.write = Some(counter.clone());
        self
    }

    /// Counts the peer's reads of regions here (`FI_REMOTE_READ`), as they are answered.
    pub fn remote_read_counter(mut self, counter: &Counter) -> Self {
        self.counters.remote_read = Some(counter.clone());
        self
    }

    /// Counts the peer's writes into regions here (`FI_REMOTE_WRITE`), as they have landed.
    pub fn remote_write_counter(mut self, counter: &Counter) -> Self {
        self.counters.remote_write = Some(counter.clone());
        self
    }

    /// The value in this endpoint's Shutdown event. Default: none.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Operations the transmit context holds, 1 to 4,096 (`tx_attr->size`). Default: the Info's,
    /// 256. Further posts wait, or are told Again.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.sizes.tx_size = operations;
        self
    }

    /// Receives the receive context holds, 1 to 65,536 (`rx_attr->size`). Default: the Info's, 256.
    pub fn receive_size(mut self, operations: usize) -> Self {
        self.sizes.rx_size = operations;
        self
    }

    /// Bytes of early messages kept before the peer is to hold further ones back. Default 1 MiB.
    /// Each message counts 128 bytes of bookkeeping besides its own. 0 keeps none.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.sizes.unexpected_bytes = bytes;
        self
    }

    /// Whether this library's extension of the protocol is offered to the peer. Default: yes. A
    /// peer that does not know it is not disturbed, and the connection is then a plain one: without
    /// typed refusals, signs of life, message credit and an agreed end.
    pub fn extension(mut self, offered: bool) -> Self {
        self.extending.offered = offered;
        self
    }

    /// When a silent peer counts as dead. Default: within 4.5 s while anything awaits the peer,
    /// within some two minutes while only receives are posted; [`Liveness`] tells how. The
    /// connection then ends by [`ErrorKind::TimedOut`], and everything bound to it with it.
    ///
    /// Any byte is a sign of life, so a slow peer is not a dead one, nor one that does not receive.
    /// But one whose process is stopped is, and so is one whose runtime is blocked: a peer that
    /// computes for seconds on a `current_thread` runtime must be given more rounds, or a runtime
    /// for itself.
    ///
    /// A peer without this library's extension is asked by the system, and its system answers. It
    /// is dead when its machine is, or cannot be reached; a stopped program on a living machine
    /// cannot be told from a slow one.
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.extending.liveness = liveness;
        self
    }

    /// What one refused RMA operation does to the connection. Default:
    /// [`OnRefusal::Disconnect`]. Toward a peer without the extension there is no choice: refusing
    /// an operation takes closing the connection.
    pub fn on_refusal(mut self, on_refusal: OnRefusal) -> Self {
        self.on_refusal = on_refusal;
        self
    }

    /// Who may communicate with the endpoint: only peers whose endpoint has the same key
    /// (`auth_key` of `fi_endpoint(3)`). Default, and for a key without bytes: the Info's, else the
    /// domain's. In use since version 1.5 of the interface, and ignored before.
    ///
    /// Each side proves its key to the other before anything else is said, and no byte of it goes
    /// over the wire. A peer that does not prove the same, or cannot, as a C program cannot, is
    /// refused: connecting and accepting fail with [`ErrorKind::NotAuthorized`], or, at a peer that
    /// was rejected before it could prove anything, with [`ErrorKind::ConnectionRefused`].
    ///
    /// What follows is as plain as ever: whoever can read or change the bytes between the peers
    /// still can.
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Opens the endpoint.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size, a limit or [`Liveness`] out of range, and for an
    /// authorization key without the [`extension`](Self::extension), which proves it,
    /// [`ErrorKind::Unsupported`] for keys of an address vector,
    /// [`ErrorKind::BadState`] if the domain, a queue or a counter is closed,
    /// [`ErrorKind::Again`] if the event queue has no two slots free, which the endpoint reserves
    /// for its Connected and Shutdown, [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    pub fn open(self) -> Result<Endpoint> {
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
        self.extending.liveness.check()?;
        let mut extending = self.extending;
        extending.refusals_max = self.on_refusal.refusals_max()?;
        let domain = self.domain;
        domain.check_auth_key(self.auth_key.as_ref())?;
        extending.auth_key = domain.auth_secret(self.auth_key.as_ref());
        if extending.auth_key.is_some() && !extending.offered {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "an authorization key is proven by the extension, which is not offered",
            ));
        }
        let keep = domain.keep_open("endpoint")?;
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => domain.internal_queue()?,
        };
        let events = self.events.or_else(|| domain.event_queue());
        let mut dependences = Vec::new();
        let port = Port::open(domain.engine(), self.sizes, extending, |id| {
            let name = format!("{id:?}");
            dependences.push(receive_queue.depend(name.clone())?);
            if let Some(queue) = &self.transmit_queue {
                dependences.push(queue.depend(name.clone())?);
            }
            for counter in self.counters.all() {
                dependences.push(counter.depend(name.clone())?);
            }
            let (connected, shutdown) = match &events {
                None => (None, None),
                Some(events) => {
                    dependences.push(events.depend(name)?);
                    let full = || {
                        Error::new(
                            ErrorKind::Again,
                            "the event queue has no room for this endpoint",
                        )
                    };
                    let connected = events.try_reserve().ok_or_else(full)?;
                    (
                        Some(connected),
                        Some(events.try_reserve().ok_or_else(full)?),
                    )
                }
            };
            Ok(Bindings {
                receive_queue: receive_queue.clone(),
                counters: self.counters.clone(),
                rma_events: domain.counts_rma_events(),
                connected,
                shutdown,
                context: self.context,
            })
        })?;
        let inner = Inner {
            port,
            transmit_queue: self.transmit_queue,
            receive_queue,
            domain,
            _keep: keep,
            _dependences: dependences,
        };
        Ok(Endpoint {
            inner: Arc::new(inner),
        })
    }
}
