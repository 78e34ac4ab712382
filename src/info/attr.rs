//! The attributes of a fabric, a domain, an endpoint and its two contexts, field by field as the
//! man pages list them. In an answer every field says what is provided, which is at least what was
//! asked for.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use super::kinds::{
    ApiVersion, AvType, ContextCount, Driver, EndpointType, Persistence, Progress, Protocol,
    ResourceManagement, Threading, TrafficClass,
};
use super::weak_domain::WeakDomain;

/// A fabric: a subnet on which endpoints reach each other (`struct fi_fabric_attr`,
/// `fi_fabric(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FabricAttr {
    /// The subnet, written `10.0.0.0/24`.
    pub name: String,
    /// The name of the C provider whose protocol this library speaks: `tcp`, or `udp` for datagram
    /// endpoints.
    pub provider: String,
    /// The version of this crate.
    pub provider_version: ApiVersion,
    /// The interface version that was asked for.
    pub api_version: ApiVersion,
}

/// A domain: a network interface with all objects opened on it (`struct fi_domain_attr`,
/// `fi_domain(3)`). Counts say how many can be open at a time: one more is refused with
/// [`LimitReached`](crate::ErrorKind::LimitReached). They are what the hints asked for, by default
/// so large that the system's limits on memory and descriptors are met first.
#[doc(alias = "fi_domain_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainAttr {
    /// The domain that the hints asked for, or else the one of this name that the program opened
    /// first of those it has open; `None` if it has none.
    pub domain: Option<WeakDomain>,
    /// The interface's name, for example `eth0`.
    pub name: String,
    /// What the application promises about threads: as asked, else [`Threading::Safe`].
    pub threading: Threading,
    /// What makes control operations progress (registration, connection management).
    pub control_progress: Progress,
    /// What makes data transfers progress.
    pub data_progress: Progress,
    /// What makes progress: [`Driver::Task`], or [`Driver::Manual`] where the hints ask for manual
    /// progress, in an answer of `discover`; in an opened domain the one that serves it.
    pub driver: Driver,
    /// Always [`ResourceManagement::Enabled`].
    pub resource_mgmt: ResourceManagement,
    /// As asked: address vectors of this type alone can be opened, or any. Connected endpoints use
    /// none.
    pub av_type: AvType,
    /// The rules of registration that the domain will hold the application to.
    ///
    /// The library itself needs none, so of the modes that the application can cope with (hint
    /// [`mr_mode`](super::DomainHints::mr_mode)), only `BASIC` remains here, as `fi_mr(3)` wants.
    /// What [`required_mr_mode`](super::DomainHints::required_mr_mode) asks for remains here too.
    /// [`MrMode::in_force`] spells the old names out.
    pub mr_mode: MrMode,
    /// Bytes of a region's key: 8, or 32 with [`MrMode::RAW`]. An application may choose any key of
    /// 8 bytes that fits.
    pub mr_key_size: usize,
    /// Bytes of remote CQ data; 0 of datagram endpoints, whose messages have no room for it.
    pub cq_data_size: usize,
    /// Completion queues.
    pub cq_cnt: usize,
    /// Endpoints.
    pub ep_cnt: usize,
    /// Transmit contexts of all endpoints together: one of each that can transmit, more of a
    /// [scalable](crate::rdm::ScalableEndpoint) one.
    pub tx_ctx_cnt: usize,
    /// Receive contexts of all endpoints together: one of each that peers can reach, more of a
    /// scalable one.
    pub rx_ctx_cnt: usize,
    /// Transmit contexts of one endpoint, at most; 1 of other endpoints than connectionless ones.
    pub max_ep_tx_ctx: usize,
    /// Receive contexts of one endpoint, at most; 1 of other endpoints than connectionless ones.
    pub max_ep_rx_ctx: usize,
    /// Endpoints that may share a transmit context; 0 while there are none.
    pub max_ep_stx_ctx: usize,
    /// Endpoints that may share a receive context
    /// ([`Domain::receive_context`](crate::Domain::receive_context)); 0 of other endpoints than
    /// connected ones.
    pub max_ep_srx_ctx: usize,
    /// Completion counters.
    pub cntr_cnt: usize,
    /// Pieces of memory that one region may consist of, at most.
    pub mr_iov_limit: usize,
    /// Local and remote communication: remote not on the loopback interface, and not in the
    /// in-process backend. And what address vectors can do.
    pub caps: Caps,
    /// Always empty.
    pub mode: Mode,
    /// The key that endpoints and regions of the domain carry, unless they have their own.
    pub auth_key: Option<AuthKey>,
    /// Bytes of data that come with an error event, at most.
    pub max_err_data: usize,
    /// Memory regions.
    pub mr_cnt: usize,
    /// The class of traffic of endpoints that choose none.
    pub traffic_class: TrafficClass,
    /// How writes are made persistent that are to be (`FI_COMMIT_COMPLETE`).
    pub persistence: Persistence,
    /// Authorization keys of one connectionless endpoint, at most.
    pub max_ep_auth_key: usize,
}

impl DomainAttr {
    /// Has the progress made by this driver.
    pub(crate) fn set_driver(&mut self, driver: Driver) {
        self.driver = driver;
        let is_manual = driver == Driver::Manual;
        if is_manual != (self.data_progress == Progress::Manual) {
            let progress = match is_manual {
                true => Progress::Manual,
                false => Progress::Auto,
            };
            (self.control_progress, self.data_progress) = (progress, progress);
        }
    }
}

/// An endpoint (`struct fi_ep_attr`, `fi_endpoint(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointAttr {
    /// The kind of communication.
    pub endpoint_type: EndpointType,
    /// The protocol; peers must have the same.
    pub protocol: Protocol,
    /// Its version.
    pub protocol_version: u32,
    /// Bytes of one transfer, at most.
    pub max_msg_size: u64,
    /// Bytes of header room in front of message buffers; always 0.
    pub msg_prefix_size: usize,
    /// Bytes up to which a read sees what an earlier write wrote. `u64::MAX`: any size.
    pub max_order_raw_size: u64,
    /// Bytes up to which a write leaves an earlier read its old data. 0: never promised.
    pub max_order_war_size: u64,
    /// Bytes up to which the later of two writes wins. `u64::MAX`: any size.
    pub max_order_waw_size: u64,
    /// Fields of a message's tag, as asked for; 0 without tagged messages.
    pub mem_tag_format: u64,
    /// Transmit contexts of the endpoint, if it is opened as a
    /// [scalable](crate::rdm::ScalableEndpoint) one; any other has one.
    pub tx_ctx_cnt: ContextCount,
    /// Receive contexts of the endpoint, likewise.
    pub rx_ctx_cnt: ContextCount,
    /// The key that peers of the endpoint must have. `None`: the domain's.
    pub auth_key: Option<AuthKey>,
}

/// The transmit side of an endpoint (`struct fi_tx_attr`, `fi_endpoint(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxAttr {
    /// What it can do; a subset of the endpoint's capabilities.
    pub caps: Caps,
    /// Always empty.
    pub mode: Mode,
    /// What operations do when their call says nothing.
    pub op_flags: OpFlags,
    /// The order in which operations reach the peer.
    pub msg_order: MsgOrder,
    /// The order in which operations are reported. Empty: as they end.
    pub comp_order: CompOrder,
    /// Bytes of an injected message or write, at most.
    pub inject_size: usize,
    /// Operations that may be in flight before the context is full.
    pub size: usize,
    /// Local buffers of one operation, at most.
    pub iov_limit: usize,
    /// Remote segments of one operation, at most.
    pub rma_iov_limit: usize,
    /// The class of traffic.
    pub traffic_class: TrafficClass,
}

/// The receive side of an endpoint (`struct fi_rx_attr`, `fi_endpoint(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RxAttr {
    /// What it can do; a subset of the endpoint's capabilities.
    pub caps: Caps,
    /// Always empty.
    pub mode: Mode,
    /// What operations do when their call says nothing.
    pub op_flags: OpFlags,
    /// The order in which the peer's operations are processed.
    pub msg_order: MsgOrder,
    /// The order in which receives are reported.
    pub comp_order: CompOrder,
    /// Bytes of messages kept while no receive is posted for them.
    pub total_buffered_recv: usize,
    /// Receives that may be posted before the context is full.
    pub size: usize,
    /// Buffers of one receive, at most.
    pub iov_limit: usize,
}

/// An authorization key (`auth_key` of `fi_domain(3)`, `fi_endpoint(3)` and `fi_mr(3)`): an
/// endpoint with a key communicates only with peers that prove the same. It should be 16 random
/// bytes or more: a peer that an endpoint with a key connects to can try out guesses of it
/// afterwards.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{info::AuthKey, Fabric, Hints};
///
/// # let from_the_launcher = vec![7u8; 32];
/// let job = AuthKey::new(from_the_launcher);
/// // Endpoints of this domain are connected to those of the same job only, and to no C program.
/// let domain = Fabric::open(Hints::new().domain(|domain| domain.auth_key(job)))?.domain().open()?;
/// # assert_eq!(domain.info().domain.auth_key.as_ref().map(AuthKey::len), Some(32));
/// # Ok(()) }
/// ```
///
/// `Debug` shows its length and nothing else. Its bytes are zeroed when the last clone is dropped;
/// keys are compared in constant time.
#[doc(alias = "auth_key")]
#[derive(Clone)]
pub struct AuthKey(Source);

#[derive(Clone)]
enum Source {
    Bytes(Arc<Zeroizing<Box<[u8]>>>),
    AddressVector,
}

impl AuthKey {
    /// A key of these bytes.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        AuthKey(Source::Bytes(Arc::new(Zeroizing::new(bytes.into()))))
    }

    /// Keys are those of the address vector's entries (`FI_AV_AUTH_KEY`).
    #[doc(alias = "FI_AV_AUTH_KEY")]
    pub fn of_address_vector() -> Self {
        AuthKey(Source::AddressVector)
    }

    /// Its length in bytes (`auth_key_size`); 0 when the keys are the address vector's.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Bytes(bytes) => bytes.len(),
            Source::AddressVector => 0,
        }
    }

    /// True for a key without bytes, which is as good as no key. Never true for the address
    /// vector's keys.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Bytes(bytes) if bytes.is_empty())
    }

    /// The bytes of a key that has any.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.as_ref().as_ref()).filter(|it| !it.is_empty()),
            Source::AddressVector => None,
        }
    }

    /// True if keys are those of the address vector.
    pub(crate) fn is_of_address_vector(&self) -> bool {
        matches!(self.0, Source::AddressVector)
    }
}

impl PartialEq for AuthKey {
    /// Takes the same time wherever two keys differ.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::Bytes(one), Source::Bytes(two)) => blake3::hash(one) == blake3::hash(two),
            (Source::AddressVector, Source::AddressVector) => true,
            _ => false,
        }
    }
}

impl Eq for AuthKey {}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Bytes(bytes) => write!(f, "AuthKey({} bytes)", bytes.len()),
            Source::AddressVector => f.write_str("AuthKey(of the address vector)"),
        }
    }
}
