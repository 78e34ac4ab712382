//! Opening a connectionless endpoint and binding it (`fi_endpoint`, `fi_ep_bind`;
//! `fi_endpoint(3)`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::RdmEndpoint;
use super::opening::{ContextRest, PreparedContext, open_contexts};
use super::peer_keys::VectorKeys;
use super::sources::SourceNames;
use crate::av::AddressVector;
use crate::domain::Domain;
use crate::endpoint::binding::{Binding, binding_setters, key_without_extension};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, UserContext};
use crate::info::{Caps, EndpointType};
use crate::limits::{
    MULTI_RECV_FREE_MIN_DEFAULT, RDM_CONNECT_DEADLINE_DEFAULT, RENDEZVOUS_MIN_DEFAULT,
    UNEXPECTED_BYTES_PER_PEER_DEFAULT,
};
use crate::progress::{
    IdlePolicy, RdmBindings, RdmConfig, ReceiveConfig, ReceiveContext, SourceAddresses,
};

/// Opens a connectionless endpoint; made by [`Domain::rdm_endpoint`]. What it is bound to is said
/// here, before it is opened, so that no binding can come too late.
#[doc(alias("fi_ep_bind", "fi_enable"))]
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct RdmEndpointBuilder {
    pub(super) binding: Binding,
    pub(super) vector: Option<AddressVector>,
    pub(super) listen_at: Option<SocketAddr>,
    unexpected_bytes_per_peer: usize,
    rendezvous_min: usize,
    idle: IdlePolicy,
    connect_deadline: Duration,
    free_min: usize,
}

impl Domain {
    /// Starts a connectionless endpoint of this domain (`fi_endpoint` with `FI_EP_RDM`).
    ///
    /// A domain whose Info is not of connectionless endpoints can have them too; they then have
    /// the capabilities that an Info of theirs would have for the same hints: all there are, if the
    /// hints asked for none.
    pub fn rdm_endpoint(&self) -> RdmEndpointBuilder {
        RdmEndpointBuilder {
            binding: Binding::new(self, EndpointType::Rdm),
            vector: None,
            listen_at: None,
            unexpected_bytes_per_peer: UNEXPECTED_BYTES_PER_PEER_DEFAULT,
            rendezvous_min: RENDEZVOUS_MIN_DEFAULT,
            idle: IdlePolicy::default(),
            connect_deadline: RDM_CONNECT_DEADLINE_DEFAULT,
            free_min: MULTI_RECV_FREE_MIN_DEFAULT,
        }
    }
}

binding_setters!(RdmEndpointBuilder);

impl RdmEndpointBuilder {
    /// The address vector whose peers it talks to (`fi_ep_bind`). Several endpoints may share one.
    /// Default: one of its own.
    pub fn address_vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// Where it listens; port 0 lets the system choose. Peers know the endpoint by this address,
    /// and its connections leave from it, so it should be one that they can reach; with a wildcard
    /// (`0.0.0.0`) routing chooses the address that each peer sees. Default: the source of the
    /// domain's Info, any port of it.
    #[doc(alias = "fi_setname")]
    pub fn listen_at(mut self, address: SocketAddr) -> Self {
        self.listen_at = Some(address);
        self
    }

    /// A value of the application's that belongs to the endpoint. Default: none.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.binding.context = Some(context.into());
        self
    }

    /// Operations that may be in flight to one peer, 1 to 4,096 (`tx_attr->size`). Default: the
    /// Info's, 256. Further posts to that peer wait, or get Again; other peers' are not
    /// concerned.
    pub fn transmit_size(mut self, operations: usize) -> Self {
        self.binding.sizes.tx_size = operations;
        self
    }

    /// Bytes of unexpected messages kept, of all peers together. Default: the Info's, 1 MiB. Each
    /// message counts 128 bytes of bookkeeping besides its own. 0 keeps none.
    pub fn unexpected_bytes(mut self, bytes: usize) -> Self {
        self.binding.sizes.unexpected_bytes = bytes;
        self
    }

    /// Bytes of unexpected messages kept of one peer, at most [all peers'](Self::unexpected_bytes).
    /// Default 128 KiB.
    pub fn unexpected_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.unexpected_bytes_per_peer = bytes;
        self
    }

    /// Messages longer than this are announced first, and go out when a receive asks for them
    /// (rendezvous): the peer stores nothing of them before, at the price of one exchange. Default
    /// 64 KiB. Peers that know no rendezvous are sent them as they are.
    pub fn rendezvous_min(mut self, bytes: usize) -> Self {
        self.rendezvous_min = bytes;
        self
    }

    /// What becomes of connections over which nothing goes. Default: they stay.
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// How long a peer may stay out of reach before what was posted to it ends as
    /// [`Unreachable`](ErrorKind::Unreachable) (`FI_EHOSTUNREACH`). Until then it is tried again
    /// and again, ever less often. Default 30 s.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// The space that is left for the next message in a buffer for several: with less the buffer is
    /// released (`FI_OPT_MIN_MULTI_RECV`). At least 1, default 64 bytes;
    /// [`MultiRecv::min_free`](crate::op::MultiRecv::min_free) is that of one buffer.
    #[doc(alias("FI_OPT_MIN_MULTI_RECV", "fi_getopt", "fi_setopt"))]
    pub fn min_multi_recv(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Opens the endpoint, which listens from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a size, a limit or [`Liveness`](crate::ep::Liveness) out
    /// of range, and for an authorization key without the [`extension`](Self::extension), which
    /// proves it, [`ErrorKind::Unsupported`] for keys of an address vector in a domain that was
    /// opened without them or for a vector that has none, [`ErrorKind::LimitReached`] for more keys
    /// in the vector than `max_ep_auth_key` of the domain, [`ErrorKind::BadState`] if the domain,
    /// the address vector, a queue or a counter is closed,
    /// [`ErrorKind::AddressInUse`] and [`ErrorKind::AddressNotAvailable`] for where it is to
    /// listen, [`ErrorKind::DriverGone`] if the domain's runtime has ended.
    pub fn open(self) -> Result<RdmEndpoint> {
        let (domain, listen_at) = (self.binding.domain.clone(), self.listen_at);
        let prepared = self.prepare()?;
        let engine = Arc::clone(domain.engine_for_endpoint());
        let mut opened = open_contexts(&domain, listen_at, [engine], vec![prepared])?;
        Ok(opened.remove(0))
    }

    /// Binds what is to be opened, and checks it.
    pub(super) fn prepare(self) -> Result<PreparedContext> {
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
        let mut common = self.binding.bind(id)?;
        let domain = common.domain.clone();
        let vector = match self.vector {
            Some(vector) => vector,
            None => domain.internal_vector()?,
        };
        common.dependences.push(vector.depend(format!("{id:?}"))?);
        let max = domain.info().domain.max_ep_auth_key;
        let mut peer_keys = None;
        let mut key_names = Box::default();
        if by_vector {
            let (keys, dependences) = VectorKeys::enable(&vector, &format!("{id:?}"), max)?;
            if !extension.offered && keys.has_any() {
                return Err(key_without_extension());
            }
            common.dependences.extend(dependences);
            key_names = keys.names().into();
            peer_keys = Some(keys);
        }
        let caps = common.caps;
        let addresses = Arc::<SourceAddresses>::default();
        let names = Arc::new(SourceNames {
            addresses: Arc::clone(&addresses),
            vector: vector.clone(),
        });
        let sources = caps.has(Caps::SOURCE).then(|| Arc::clone(&names) as _);
        let receives = ReceiveContext::new(ReceiveConfig {
            endpoint: id,
            names_connections: false,
            size: sizes.rx_size,
            unexpected_bytes: sizes.unexpected_bytes,
            unexpected_bytes_per_peer: (self.unexpected_bytes_per_peer).min(sizes.unexpected_bytes),
            addresses: Arc::clone(&addresses),
            queue: common.receive_queue.clone(),
            counter: counters.receive.clone(),
            sources: Option::clone(&sources),
        });
        let config = RdmConfig {
            id,
            sizes,
            extension,
            peer_keys: peer_keys.map(|keys| Box::new(keys) as _),
            bindings: RdmBindings {
                receive_queue: common.receive_queue.clone(),
                caps,
                counters,
                sources,
                rma_events: caps.has(Caps::RMA_EVENT),
                traffic,
            },
            receives: Arc::clone(&receives),
            addresses,
            rendezvous_min: self.rendezvous_min,
            idle: self.idle,
            connect_deadline: self.connect_deadline,
        };
        let rest = ContextRest {
            receives,
            vector,
            sources: names,
            free_min: self.free_min,
            key_names,
            common,
        };
        Ok(PreparedContext { config, rest })
    }
}
