//! Opening a connectionless endpoint and binding it (`fi_endpoint`, `fi_ep_bind`;
//! `fi_endpoint(3)`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::RdmEndpoint;
use super::opening::{ContextParts, PreparedContext, open_contexts};
use super::peer_keys::VectorKeys;
use crate::av::AddressVector;
use crate::domain::Domain;
use crate::endpoint::SharedReceiveContext;
use crate::endpoint::binding::{Binding, binding_setters, endpoint_name, key_without_extension};
use crate::endpoint::sources::SourceNames;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{Caps, EndpointType};
use crate::limits::{
    MULTI_RECV_FREE_MIN_DEFAULT, RDM_CONNECT_DEADLINE_DEFAULT, RDM_STRANGERS_MAX_DEFAULT,
    RENDEZVOUS_MIN_DEFAULT, UNEXPECTED_BYTES_PER_PEER_DEFAULT,
};
use crate::progress::{
    IdlePolicy, LongMessages, RdmBindings, RdmConfig, ReceiveConfig, ReceiveContext,
    SourceAddresses,
};

/// Opens an [`RdmEndpoint`].
///
/// You get one from [`Domain::rdm_endpoint`]. Queues, counters and the address vector are passed to
/// the builder, before the endpoint is opened (`fi_ep_bind`).
///
/// ```
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let builder = domain.rdm_endpoint().address_vector(&peers);
/// let endpoint = builder.listen_at(([127, 0, 0, 1], 0).into()).open()?;
/// assert_ne!(endpoint.local_addr().port(), 0); // The system has chosen one.
/// # Ok(()) }
/// ```
#[doc(alias = "fi_ep_bind")]
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct RdmEndpointBuilder {
    pub(super) binding: Binding,
    pub(super) vector: Option<AddressVector>,
    pub(super) listen_at: Option<SocketAddr>,
    pub(super) shared: Option<SharedReceiveContext>,
    unexpected_bytes_per_peer: usize,
    rendezvous_min: usize,
    max_message_size: Option<usize>,
    idle: IdlePolicy,
    connect_deadline: Duration,
    strangers_max: usize,
    free_min: usize,
}

impl Domain {
    /// Starts building a connectionless endpoint of this domain (`fi_endpoint` with `FI_EP_RDM`).
    ///
    /// A domain whose Info is not for connectionless endpoints can have them too. They then have
    /// the capabilities that an Info for connectionless endpoints would have for the same hints:
    /// all available ones, if the hints did not ask for any.
    pub fn rdm_endpoint(&self) -> RdmEndpointBuilder {
        RdmEndpointBuilder {
            binding: Binding::new(self, EndpointType::Rdm),
            vector: None,
            listen_at: None,
            shared: None,
            unexpected_bytes_per_peer: UNEXPECTED_BYTES_PER_PEER_DEFAULT,
            rendezvous_min: RENDEZVOUS_MIN_DEFAULT,
            max_message_size: None,
            idle: IdlePolicy::default(),
            connect_deadline: RDM_CONNECT_DEADLINE_DEFAULT,
            strangers_max: RDM_STRANGERS_MAX_DEFAULT,
            free_min: MULTI_RECV_FREE_MIN_DEFAULT,
        }
    }
}

binding_setters!(RdmEndpointBuilder);

impl RdmEndpointBuilder {
    /// The address vector that contains its peers (`fi_ep_bind`). Several endpoints may share one.
    /// Default: a vector of its own.
    pub fn address_vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// The address at which it listens; port 0 lets the system choose. Peers know the endpoint by
    /// this address, and its connections are made from it, so it should be one that they can reach.
    /// With a wildcard (`0.0.0.0`) the routing table determines the address that each peer sees.
    /// An IPv6 address other than `[::]` needs a domain whose addresses are IPv6
    /// ([`Hints::address_format`](crate::Hints::address_format)); an endpoint of such a domain at
    /// `[::]` reaches peers of either version. Default: the source of the domain's Info, with any
    /// port.
    #[doc(alias = "fi_setname")]
    pub fn listen_at(mut self, address: SocketAddr) -> Self {
        self.listen_at = Some(address);
        self
    }

    /// The receive context whose receives take this endpoint's messages (`fi_ep_bind` with an
    /// object opened by `fi_srx_context`). The endpoint uses the context's address vector, and the
    /// context's settings for receives and for unexpected and long messages instead of its own;
    /// [`RdmEndpoint::recv`] then fails. Endpoints of one context have the same authorization key.
    /// Default: receives of its own.
    pub fn receive_context(mut self, context: &SharedReceiveContext) -> Self {
        self.shared = Some(context.clone());
        self
    }

    /// An application value that is stored with the endpoint. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.binding.context = Some(context.into());
        self
    }

    /// The number of operations that may be outstanding to one peer, 1 to 4,096 (`tx_attr->size`).
    /// Default: the Info's, 256. Further posts to that peer wait, or fail with Again; other peers
    /// are not affected.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.binding.sizes.tx_size = operations;
        self
    }

    /// The number of bytes of unexpected messages that are kept for all peers together. Default:
    /// the Info's, 1 MiB. Each message counts 128 bytes for bookkeeping in addition to its own
    /// length. 0 keeps none.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.binding.sizes.unexpected_bytes = bytes;
        self
    }

    /// The number of bytes of unexpected messages that are kept for one peer, at most as much as
    /// for [all peers](Self::unexpected_bytes). Default: 128 KiB.
    pub fn unexpected_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.unexpected_bytes_per_peer = bytes;
        self
    }

    /// Messages longer than this are announced first, and sent when a receive requests them
    /// (rendezvous). The peer then need not store them before, at the cost of one round trip.
    /// Default: 64 KiB. Such messages are sent directly to peers that do not support rendezvous.
    pub fn rendezvous_min(mut self, bytes: usize) -> Self {
        self.rendezvous_min = bytes;
        self
    }

    /// The longest message in bytes that peers may send. A longer one ends its connection, with
    /// [`ErrorKind::TooLarge`] at both ends; a peer without the extension only sees the end.
    /// Default: no limit (`FI_OPT_MAX_MSG_SIZE`, `FI_OPT_MAX_TAGGED_SIZE`).
    ///
    /// [`max_message_size`](crate::ep::SharedReceiveContextBuilder::max_message_size) of receive
    /// contexts explains when to use a limit, and its cost. Connections of such an endpoint are not
    /// closed for being [idle](Self::idle), since a message that crosses the close would be lost.
    #[doc(alias("FI_OPT_MAX_MSG_SIZE", "FI_OPT_MAX_TAGGED_SIZE"))]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.max_message_size = Some(bytes);
        self
    }

    /// The policy for connections that are not used. Default: they stay open.
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// How long a peer may be unreachable before the operations posted to it fail with
    /// [`Unreachable`](ErrorKind::Unreachable) (`FI_EHOSTUNREACH`). Until then the endpoint retries
    /// at increasing intervals. Default: 30 s.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// The number of peers that may be connected without being in the address vector; each takes a
    /// descriptor and some memory. Further ones are rejected. One host may have only as many as
    /// remain free for all other hosts, so at most half of them. Default: 65,536; 0 admits only
    /// peers in the vector.
    pub fn strangers_max(mut self, peers: usize) -> Self {
        self.strangers_max = peers;
        self
    }

    /// A buffer for several messages is released when it has less room than this for the next one
    /// (`FI_OPT_MIN_MULTI_RECV`). At least 1; default: 64 bytes.
    /// [`MultiRecv::min_free`](crate::op::Posting::min_free) sets it for one buffer.
    #[doc(alias("FI_OPT_MIN_MULTI_RECV", "fi_getopt", "fi_setopt"))]
    pub fn min_multi_recv(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Opens the endpoint, which listens from now on.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`] for a size, a limit or a [`Liveness`](crate::ep::Liveness)
    ///   that is out of range, for a queue, a counter or an address vector of another domain,
    ///   unless this domain is a [peer](crate::domain::DomainBuilder::peer_of) of that one, and for
    ///   an authorization key without the [`extension`](Self::extension), which is needed to prove
    ///   it; for a receive context of connected endpoints, of another domain or of endpoints with
    ///   another key, or together with a receive counter or an address vector that is not the
    ///   context's; for no receive context if the domain's Info requires a shared one.
    /// - [`ErrorKind::Unsupported`] for the keys of an address vector in a domain that was opened
    ///   without them, if the vector has none, or together with a receive context.
    /// - [`ErrorKind::LimitReached`] if the vector has more keys than the domain's
    ///   `max_ep_auth_key`.
    /// - [`ErrorKind::BadState`] if the domain, the address vector, the receive context, a queue or
    ///   a counter is closed.
    /// - [`ErrorKind::AddressInUse`] and [`ErrorKind::AddressNotAvailable`] for the address to
    ///   listen at.
    /// - [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    #[doc(alias = "fi_enable")]
    pub fn open(self) -> Result<RdmEndpoint> {
        let (domain, listen_at) = (self.binding.domain.clone(), self.listen_at);
        let prepared = self.prepare()?;
        let engine = Arc::clone(domain.engine_for_endpoint());
        let mut opened = open_contexts(&domain, listen_at, [engine], vec![prepared])?;
        Ok(opened.remove(0))
    }

    /// Checks the settings and binds the context to be opened.
    pub(super) fn prepare(mut self) -> Result<PreparedContext> {
        (self.binding).bind_receives(self.shared.as_ref(), EndpointType::Rdm)?;
        let by_vector = (self.binding.domain).has_keys_of_vector(self.binding.auth_key.as_ref());
        let extension = match by_vector {
            true => self.binding.judged_without_key()?,
            false => self.binding.judged()?,
        };
        let traffic = self.binding.traffic()?;
        let (sizes, counters) = (self.binding.sizes, self.binding.counters.clone());
        if self.connect_deadline.is_zero() {
            let message = "connect_deadline is 0, a peer takes some time to be reached";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let id = EndpointId::next();
        let name = endpoint_name(id);
        let scope = self.binding.domain.scope();
        let depend = |shared: &SharedReceiveContext| shared.depend(scope, Arc::clone(&name));
        let depends = self.shared.as_ref().map(depend).transpose()?;
        let mut common = self.binding.bind(id, &name)?;
        common.dependences.extend(depends);
        let domain = common.domain.clone();
        let of_context = self.shared.as_ref().and_then(|it| it.names());
        let vector = match (self.vector, of_context) {
            (Some(vector), Some(names)) if !vector.is_same(&names.vector) => {
                let what = "address_vector: the receive context has another";
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
            (_, Some(names)) => names.vector.clone(),
            (Some(vector), None) => vector,
            (None, None) => domain.internal_vector()?,
        };
        common
            .dependences
            .push(vector.depend(domain.scope(), Arc::clone(&name))?);
        let max = domain.info().domain.max_ep_auth_key;
        let mut peer_keys = None;
        let mut key_names = Box::default();
        if by_vector && self.shared.is_some() {
            let what = "receive_context: the peers have keys of their own (FI_AV_AUTH_KEY)";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if by_vector {
            let (keys, dependences) = VectorKeys::enable(&vector, &name, max)?;
            if !extension.offered && keys.has_any() {
                return Err(key_without_extension());
            }
            common.dependences.extend(dependences);
            key_names = keys.names().into();
            peer_keys = Some(keys);
        }
        let caps = common.caps;
        let (receives, names, long_messages) = match (&self.shared, of_context) {
            (Some(shared), Some(names)) => {
                let context = shared.context();
                context.check_key(extension.auth_key.as_ref())?;
                let receives = Arc::clone(context.receives());
                (receives, Arc::clone(names), context.long_messages())
            }
            _ => {
                let addresses = Arc::<SourceAddresses>::default();
                let names = Arc::new(SourceNames {
                    addresses: Arc::clone(&addresses),
                    vector: vector.clone(),
                    are_reported: caps.has(Caps::SOURCE),
                });
                let per_peer = self.unexpected_bytes_per_peer;
                let receives = ReceiveContext::new(ReceiveConfig {
                    endpoint: id,
                    size: sizes.rx_size,
                    unexpected_bytes: sizes.unexpected_bytes,
                    unexpected_bytes_per_peer: per_peer.min(sizes.unexpected_bytes),
                    addresses,
                    counter: counters.receive.clone(),
                    sources: names.for_completions(),
                });
                let long_messages = LongMessages::new(self.max_message_size, self.rendezvous_min);
                (receives, names, long_messages)
            }
        };
        let config = RdmConfig {
            id,
            sizes,
            extension,
            peer_keys: peer_keys.map(|keys| Box::new(keys) as _),
            bindings: RdmBindings {
                receive_queue: common.receive_queue.places(),
                caps,
                counters,
                rma_events: caps.has(Caps::RMA_EVENT),
                traffic,
            },
            receives: Arc::clone(&receives),
            shares_receives: self.shared.is_some(),
            addresses: Arc::clone(&names.addresses),
            long_messages,
            idle: self.idle,
            connect_deadline: self.connect_deadline,
            strangers_max: self.strangers_max,
            vector,
        };
        let rest = ContextParts {
            receives,
            shared: self.shared,
            names,
            free_min: self.free_min,
            key_names,
            common,
        };
        Ok(PreparedContext { config, rest })
    }
}
