//! Opening a receive context that connected endpoints share (`fi_srx_context`; `fi_endpoint(3)`).

use std::sync::Arc;

use crate::cntr::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::endpoint::common::Common;
use crate::endpoint::defaults::{Defaults, SelectiveQueues};
use crate::error::{Error, ErrorKind, Result};
use crate::id::EndpointId;
use crate::info::EndpointType;
use crate::limits::{
    CONTEXT_SIZE_DEFAULT, MULTI_RECV_FREE_MIN_DEFAULT, RECEIVE_SIZE_MAX, RENDEZVOUS_MIN_DEFAULT,
    UNEXPECTED_BYTES_PER_PEER_DEFAULT,
};
use crate::progress::{ReceiveConfig, SharedContext, SharedContextConfig};
use crate::sync::Dependents;

use super::{ContextInner, SharedReceiveContext};

/// Opens a receive context that connected endpoints share; made by [`Domain::receive_context`].
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct SharedReceiveContextBuilder {
    domain: Domain,
    receive_queue: Option<CompletionQueue>,
    receive_counter: Option<Counter>,
    size: usize,
    unexpected_bytes: usize,
    unexpected_bytes_per_peer: usize,
    rendezvous_min: usize,
    free_min: usize,
}

impl Domain {
    /// Starts a receive context that connected endpoints of this domain share (`fi_srx_context`).
    #[doc(alias = "fi_srx_context")]
    pub fn receive_context(&self) -> SharedReceiveContextBuilder {
        let rx = &self.info().rx;
        SharedReceiveContextBuilder {
            domain: self.clone(),
            receive_queue: None,
            receive_counter: None,
            size: match rx.size {
                0 => CONTEXT_SIZE_DEFAULT,
                size => size,
            },
            unexpected_bytes: rx.total_buffered_recv,
            unexpected_bytes_per_peer: UNEXPECTED_BYTES_PER_PEER_DEFAULT,
            rendezvous_min: RENDEZVOUS_MIN_DEFAULT,
            free_min: MULTI_RECV_FREE_MIN_DEFAULT,
        }
    }
}

impl SharedReceiveContextBuilder {
    /// The queue for receives posted with `.queue(context)`. Default: a small queue of its own.
    /// Endpoints that are opened with the context, and without a queue of theirs, use it too.
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.receive_queue = Some(queue.clone());
        self
    }

    /// Counts receives that ended (`FI_RECV`). Default: none does.
    pub fn receive_counter(mut self, counter: &Counter) -> Self {
        self.receive_counter = Some(counter.clone());
        self
    }

    /// Receives the context holds, 1 to 65,536 (`rx_attr->size`). Default: the Info's, 256. A
    /// buffer for several messages is one.
    pub fn size(mut self, operations: usize) -> Self {
        self.size = operations;
        self
    }

    /// Bytes of unexpected messages kept, of all connections together. Default: the Info's, 1 MiB.
    /// Each message counts 128 bytes of bookkeeping besides its own. Whatever this says, a
    /// connection is promised 1 KiB, so that its peer can send a few small messages unasked.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.unexpected_bytes = bytes;
        self
    }

    /// Bytes of unexpected messages kept of one connection, at most
    /// [all connections'](Self::unexpected_bytes). Default 128 KiB.
    pub fn unexpected_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.unexpected_bytes_per_peer = bytes;
        self
    }

    /// Peers announce messages longer than this, and send them when a receive asks for them
    /// (rendezvous): nothing of them is stored before, at the price of one exchange. Default 64
    /// KiB. Peers that know no rendezvous send them as they are.
    pub fn rendezvous_min(mut self, bytes: usize) -> Self {
        self.rendezvous_min = bytes;
        self
    }

    /// The space that is left for the next message in a buffer for several: with less the buffer is
    /// released (`FI_OPT_MIN_MULTI_RECV`). At least 1, default 64 bytes;
    /// [`MultiRecv::min_free`](crate::op::MultiRecv::min_free) is that of one buffer.
    pub fn min_multi_recv(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Opens the context.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size out of range, [`ErrorKind::BadState`] if the
    /// domain, the queue or the counter is closed, [`ErrorKind::DriverGone`] if the domain's
    /// runtime has ended.
    pub fn open(self) -> Result<SharedReceiveContext> {
        if !(1..=RECEIVE_SIZE_MAX).contains(&self.size) {
            let message = format!("size is {}, it may be 1 to {RECEIVE_SIZE_MAX}", self.size);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let domain = self.domain;
        let info = domain.info();
        let kind = EndpointType::Msg;
        let defaults = Defaults::new(info.op_flags_of(kind), SelectiveQueues::default());
        let caps = info.caps_of(kind).with_multi_recv();
        let keep = domain.keep_open("receive context")?;
        let receive_queue = match self.receive_queue {
            Some(queue) => queue,
            None => domain.internal_queue()?,
        };
        let id = EndpointId::next();
        let name = format!("receive context {id:?}");
        let mut dependences = vec![receive_queue.depend(name.clone())?];
        if let Some(counter) = &self.receive_counter {
            dependences.push(counter.depend(name)?);
        }
        let config = SharedContextConfig {
            receives: ReceiveConfig {
                endpoint: id,
                names_connections: true,
                size: self.size,
                unexpected_bytes: self.unexpected_bytes,
                unexpected_bytes_per_peer: self
                    .unexpected_bytes_per_peer
                    .min(self.unexpected_bytes),
                addresses: Arc::default(),
                queue: receive_queue.clone(),
                counter: self.receive_counter.clone(),
                sources: None,
            },
            rendezvous_min: self.rendezvous_min as u64,
        };
        let inner = ContextInner {
            context: SharedContext::open(domain.engine_for_endpoint(), config)?,
            dependents: Dependents::new(),
            free_min: self.free_min,
            receive_counter: self.receive_counter,
            common: Common {
                id,
                caps,
                defaults,
                domain,
                transmit_queue: None,
                receive_queue,
                _keep: keep,
                dependences,
            },
        };
        Ok(SharedReceiveContext {
            inner: Arc::new(inner),
        })
    }
}
