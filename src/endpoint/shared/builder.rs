//! Opening a receive context that endpoints share (`fi_srx_context`; `fi_endpoint(3)`).

use std::sync::Arc;

use crate::av::AddressVector;
use crate::cntr::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::endpoint::common::Common;
use crate::endpoint::defaults::{Defaults, SelectiveQueues};
use crate::endpoint::sources::SourceNames;
use crate::error::{Error, ErrorKind, Result};
use crate::id::EndpointId;
use crate::info::{Caps, EndpointType};
use crate::limits::{
    CONTEXT_SIZE_DEFAULT, MULTI_RECV_FREE_MIN_DEFAULT, RECEIVE_SIZE_MAX, RENDEZVOUS_MIN_DEFAULT,
    UNEXPECTED_BYTES_PER_PEER_DEFAULT,
};
use crate::progress::{
    LongMessages, ReceiveConfig, SharedContext, SharedContextConfig, SourceAddresses,
};
use crate::sync::{Dependents, ProgressList};

use super::{ContextInner, SharedReceiveContext};

/// Opens a [`SharedReceiveContext`]. You get one from [`Domain::receive_context`] or
/// [`Domain::rdm_receive_context`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let context = domain.receive_context().size(1024).unexpected_bytes(4 << 20).open()?;
/// let endpoint = domain.endpoint().receive_context(&context).open()?;
/// assert_eq!(endpoint.domain().stats().endpoints, 1);
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct SharedReceiveContextBuilder {
    domain: Domain,
    kind: EndpointType,
    vector: Option<AddressVector>,
    receive_queue: Option<CompletionQueue>,
    receive_counter: Option<Counter>,
    size: usize,
    unexpected_bytes: usize,
    unexpected_bytes_per_peer: usize,
    rendezvous_min: usize,
    max_message_size: Option<usize>,
    free_min: usize,
}

impl Domain {
    /// Starts building a receive context that connected endpoints of this domain share
    /// (`fi_srx_context`).
    #[doc(alias = "fi_srx_context")]
    pub fn receive_context(&self) -> SharedReceiveContextBuilder {
        SharedReceiveContextBuilder::new(self, EndpointType::Msg)
    }

    /// Starts building a receive context that connectionless endpoints of this domain share
    /// (`fi_srx_context`).
    #[doc(alias = "fi_srx_context")]
    pub fn rdm_receive_context(&self) -> SharedReceiveContextBuilder {
        SharedReceiveContextBuilder::new(self, EndpointType::Rdm)
    }
}

impl SharedReceiveContextBuilder {
    fn new(domain: &Domain, kind: EndpointType) -> Self {
        let rx = &domain.info().rx;
        SharedReceiveContextBuilder {
            domain: domain.clone(),
            kind,
            vector: None,
            receive_queue: None,
            receive_counter: None,
            size: match rx.size {
                0 => CONTEXT_SIZE_DEFAULT,
                size => size,
            },
            unexpected_bytes: rx.total_buffered_recv,
            unexpected_bytes_per_peer: UNEXPECTED_BYTES_PER_PEER_DEFAULT,
            rendezvous_min: RENDEZVOUS_MIN_DEFAULT,
            max_message_size: None,
            free_min: MULTI_RECV_FREE_MIN_DEFAULT,
        }
    }

    /// The address vector of the connectionless endpoints that share the context. Receives
    /// [from](crate::op::Posting::from) one peer and completions name its addresses. Default: a
    /// vector of its own, which those endpoints then use.
    pub fn address_vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// The queue for receives posted with `.queue(context)`. Default: a small queue of its own.
    /// Endpoints that are opened with the context and without a queue use it too.
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.receive_queue = Some(queue.clone());
        self
    }

    /// Counts completed receives (`FI_RECV`). Default: no counter.
    pub fn receive_counter(mut self, counter: &Counter) -> Self {
        self.receive_counter = Some(counter.clone());
        self
    }

    /// The number of receives that the context holds, 1 to 65,536 (`rx_attr->size`). Default: the
    /// Info's, 256. A buffer for several messages counts as one.
    pub fn size(mut self, operations: usize) -> Self {
        self.size = operations;
        self
    }

    /// The number of bytes of unexpected messages that are kept for all connections together.
    /// Default: the Info's, 1 MiB. Each message counts 128 bytes for bookkeeping in addition to its
    /// own length. Each connection is guaranteed 1 KiB in any case, so that its peer can always
    /// send a few small messages.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.unexpected_bytes = bytes;
        self
    }

    /// The number of bytes of unexpected messages that are kept for one peer, at most as much as
    /// for [all connections](Self::unexpected_bytes). Default: 128 KiB. A peer of several
    /// connectionless endpoints is one peer, but each of its connections is guaranteed a share
    /// in any case.
    pub fn unexpected_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.unexpected_bytes_per_peer = bytes;
        self
    }

    /// Peers announce messages longer than this, and send them when a receive requests them
    /// (rendezvous). This side then need not store them before, at the cost of one round trip.
    /// Default: 64 KiB. Peers that do not support rendezvous send such messages directly.
    pub fn rendezvous_min(mut self, bytes: usize) -> Self {
        self.rendezvous_min = bytes;
        self
    }

    /// The longest message in bytes that peers may send. A longer one ends its connection, with
    /// [`ErrorKind::TooLarge`] at both ends; a peer without the extension only sees the end.
    /// Default: no limit (`FI_OPT_MAX_MSG_SIZE`).
    ///
    /// Set it if you do not trust the peers. With a limit, a message takes a receive only when all
    /// of it has arrived: a peer that stops in the middle of a message, or announces one and never
    /// sends it, holds up only its own connection. Without a limit, every such message keeps a
    /// receive, or a part of a multi-receive buffer, until it is complete or its connection ends.
    ///
    /// The price: a message that has not arrived as a whole is kept in memory of its connection, at
    /// most this many bytes, and copied once more. In both directions no message is announced, so
    /// that [`rendezvous_min`](Self::rendezvous_min) has no effect and `match_complete` is not
    /// supported, and no message is held back for lack of a receive: a message that finds neither a
    /// receive nor [room](Self::unexpected_bytes) stops its connection, RMA included, until it
    /// finds one.
    #[doc(alias("FI_OPT_MAX_MSG_SIZE"))]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.max_message_size = Some(bytes);
        self
    }

    /// A buffer for several messages is released when it has less room than this for the next one
    /// (`FI_OPT_MIN_MULTI_RECV`). At least 1; default: 64 bytes.
    /// [`MultiRecv::min_free`](crate::op::Posting::min_free) sets it for one buffer.
    pub fn min_multi_recv(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Opens the context.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size out of range, for an address vector of a context
    /// of connected endpoints, or for a queue, a counter or an address vector of another
    /// domain, unless this domain is a [peer](crate::domain::DomainBuilder::peer_of) of that
    /// one; [`ErrorKind::BadState`] if the domain, the queue, the counter or the address vector
    /// is closed; [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    pub fn open(self) -> Result<SharedReceiveContext> {
        if !(1..=RECEIVE_SIZE_MAX).contains(&self.size) {
            let message = format!("size is {}, it may be 1 to {RECEIVE_SIZE_MAX}", self.size);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let (domain, kind) = (self.domain, self.kind);
        let vector = match (kind, self.vector) {
            (EndpointType::Rdm, Some(vector)) => Some(vector),
            (EndpointType::Rdm, None) => Some(domain.internal_vector()?),
            (_, None) => None,
            (_, Some(_)) => {
                let what = "address_vector: connected endpoints have no address vector";
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        };
        let info = domain.info();
        let defaults = Defaults::new(info.op_flags_of(kind), SelectiveQueues::default());
        let caps = info.caps_of(kind).with_multi_recv();
        let keep = domain.keep("receive context")?;
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => domain.internal_queue()?,
        };
        let id = EndpointId::next();
        let name: Arc<str> = format!("receive context {id:?}").into();
        let scope = domain.scope();
        let mut dependences = vec![receive_queue.depend(scope, Arc::clone(&name))?];
        if let Some(counter) = &self.receive_counter {
            dependences.push(counter.depend(scope, Arc::clone(&name))?);
        }
        if let Some(vector) = &vector {
            dependences.push(vector.depend(scope, name)?);
        }
        let addresses = Arc::<SourceAddresses>::default();
        let names = vector.map(|vector| {
            Arc::new(SourceNames {
                addresses: Arc::clone(&addresses),
                vector,
                are_reported: caps.has(Caps::SOURCE),
            })
        });
        let config = SharedContextConfig {
            receives: ReceiveConfig {
                endpoint: id,
                size: self.size,
                unexpected_bytes: self.unexpected_bytes,
                unexpected_bytes_per_peer: self
                    .unexpected_bytes_per_peer
                    .min(self.unexpected_bytes),
                addresses,
                counter: self.receive_counter.clone(),
                sources: names.as_ref().and_then(SourceNames::for_completions),
            },
            long_messages: LongMessages::new(self.max_message_size, self.rendezvous_min),
        };
        let inner = ContextInner {
            context: SharedContext::open(domain.engine_for_endpoint(), config)?,
            dependents: Dependents::new(),
            driven: ProgressList::new(),
            free_min: self.free_min,
            receive_counter: self.receive_counter,
            names,
            common: Common {
                id,
                regions: domain.endpoint_regions(),
                caps,
                defaults,
                domain,
                transmit_queue: None,
                receive_queue,
                _keep: keep,
                dependences,
            },
        };
        inner.drive(inner.common.domain.scope());
        Ok(SharedReceiveContext {
            inner: Arc::new(inner),
        })
    }
}
