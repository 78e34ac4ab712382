//! The attributes of a fabric, a domain, an endpoint and its two contexts, in the order of the
//! manual pages. In a result, every attribute states what is provided, which is at least what was
//! requested.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use super::kinds::{
    ApiVersion, AvType, ContextCount, Driver, EndpointType, Persistence, Progress, Protocol,
    ResourceManagement, Threading, TrafficClass,
};
use super::weak_domain::WeakDomain;

/// The attributes of a fabric, a subnet whose endpoints can reach each other (`struct
/// fi_fabric_attr` of `fi_fabric(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().node("127.0.0.1"))?;
/// let attr = &fabric.infos()[0].fabric;
/// assert_eq!((&attr.name[..], &attr.provider[..]), ("127.0.0.0/8", "tcp"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FabricAttr {
    /// The subnet, for example `10.0.0.0/24`.
    pub name: String,
    /// The C provider whose protocol this library speaks: `tcp`, or `udp` for datagram endpoints.
    pub provider: String,
    /// The version of this crate.
    pub provider_version: ApiVersion,
    /// The interface version that the hints requested; 1.17 by default.
    pub api_version: ApiVersion,
}

/// The attributes of a domain (`struct fi_domain_attr` of `fi_domain(3)`).
///
/// `ep_cnt` limits how many endpoints can be open at the same time. The other counts are advice
/// (`fi_domain(3)`: "the optimal number"), and limits in a domain that is opened with
/// [`limit`](crate::domain::DomainBuilder::limit). Beyond a limit, opening fails with
/// [`LimitReached`](crate::ErrorKind::LimitReached). The counts are those that the hints requested;
/// the defaults are so large that the system's limits on memory and descriptors are reached first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{ErrorKind, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().domain(|hints| hints.cq_cnt(1)))?;
/// let domain = fabric.domain().limit().open()?;
/// assert_eq!(domain.info().domain.cq_cnt, 1);
/// let _first = domain.completion_queue().open()?;
/// let refused = domain.completion_queue().open().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::LimitReached);
/// # Ok(()) }
/// ```
#[doc(alias = "fi_domain_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainAttr {
    /// The open domain that this result describes: the one that the hints requested, otherwise the
    /// first that the program opened under this name and still has open. `None` if there is none.
    pub domain: Option<WeakDomain>,
    /// The network interface, for example `eth0`.
    pub name: String,
    /// The application's promise about threads; [`Threading::Safe`] unless the hints say otherwise.
    pub threading: Threading,
    /// The mode of progress of control operations: registration and connection management.
    pub control_progress: Progress,
    /// The mode of progress of data transfers.
    pub data_progress: Progress,
    /// The driver. In an open domain it is the one in use. In a result of
    /// [`discover`](crate::discover) it is [`Driver::Manual`] if the hints request manual progress,
    /// otherwise [`Driver::Task`].
    pub driver: Driver,
    /// Always [`ResourceManagement::Enabled`].
    pub resource_mgmt: ResourceManagement,
    /// The type of address vectors that can be opened, if the hints request one; otherwise both.
    /// Connected endpoints use none.
    pub av_type: AvType,
    /// The registration rules that the domain enforces.
    ///
    /// The library itself needs no modes. It keeps only `BASIC` of the modes that the application
    /// supports (hint [`mr_mode`](super::DomainHints::mr_mode)), as `fi_mr(3)` requires, and adds
    /// those that [`required_mr_mode`](super::DomainHints::required_mr_mode) requests.
    /// [`MrMode::in_force`] translates the old names.
    pub mr_mode: MrMode,
    /// Bytes of a region's key: 8, or 32 with [`MrMode::RAW`]. An application that chooses its keys
    /// may use all 64 bits.
    pub mr_key_size: usize,
    /// Bytes of immediate data (remote CQ data) that an operation can carry: 8. 0 for datagram
    /// endpoints.
    pub cq_data_size: usize,
    /// Completion queues. Like all counts but [`ep_cnt`](Self::ep_cnt), this is advice, unless the
    /// domain is opened with a [limit](crate::domain::DomainBuilder::limit).
    pub cq_cnt: usize,
    /// Endpoints that can be open at the same time.
    pub ep_cnt: usize,
    /// Transmit contexts of all endpoints together. Each endpoint that can transmit has one; a
    /// [scalable](crate::rdm::ScalableEndpoint) endpoint has several.
    pub tx_ctx_cnt: usize,
    /// Receive contexts of all endpoints together. Each endpoint that peers can reach has one; a
    /// scalable endpoint has several.
    pub rx_ctx_cnt: usize,
    /// Transmit contexts per endpoint; 1 unless endpoints are connectionless.
    pub max_ep_tx_ctx: usize,
    /// Receive contexts per endpoint; 1 unless endpoints are connectionless.
    pub max_ep_rx_ctx: usize,
    /// Endpoints that can share a transmit context. Always 0: this is not supported.
    pub max_ep_stx_ctx: usize,
    /// Endpoints that can share a receive context
    /// ([`Domain::receive_context`](crate::Domain::receive_context),
    /// [`Domain::rdm_receive_context`](crate::Domain::rdm_receive_context)); 0 for datagrams.
    pub max_ep_srx_ctx: usize,
    /// Completion counters.
    pub cntr_cnt: usize,
    /// Buffers per memory region.
    pub mr_iov_limit: usize,
    /// The capabilities of the domain: [`Caps::LOCAL_COMM`], [`Caps::REMOTE_COMM`] (unless the
    /// interface is the loopback interface or the backend works within the process), and those of
    /// its address vectors.
    pub caps: Caps,
    /// Always empty: the library imposes no modes.
    pub mode: Mode,
    /// The default authorization key of the domain's endpoints and regions.
    pub auth_key: Option<AuthKey>,
    /// Largest error data of an event, in bytes.
    pub max_err_data: usize,
    /// Memory regions; those bound to each endpoint with [`MrMode::ENDPOINT`].
    pub mr_cnt: usize,
    /// The default traffic class of the domain's endpoints.
    pub traffic_class: TrafficClass,
    /// The way in which writes with `FI_COMMIT_COMPLETE` are made persistent.
    pub persistence: Persistence,
    /// Authorization keys per connectionless endpoint.
    pub max_ep_auth_key: usize,
}

impl DomainAttr {
    /// Sets the driver, and the progress that goes with it.
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

/// The attributes of an endpoint (`struct fi_ep_attr` of `fi_endpoint(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?;
/// assert_eq!(fabric.infos()[0].endpoint.endpoint_type, EndpointType::Rdm);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointAttr {
    /// The type of the endpoint.
    pub endpoint_type: EndpointType,
    /// The protocol. Both peers must use the same.
    pub protocol: Protocol,
    /// The protocol's version.
    pub protocol_version: u32,
    /// Largest transfer, in bytes.
    pub max_msg_size: u64,
    /// Bytes of header room that message buffers must begin with. Always 0.
    pub msg_prefix_size: usize,
    /// Largest transfer, in bytes, for which a read sees the data of earlier writes. `u64::MAX`:
    /// any size.
    pub max_order_raw_size: u64,
    /// Largest transfer, in bytes, for which a write does not affect earlier reads. Always 0: not
    /// guaranteed.
    pub max_order_war_size: u64,
    /// Largest transfer, in bytes, for which the later of two writes determines the data.
    /// `u64::MAX`: any size.
    pub max_order_waw_size: u64,
    /// The fields of a tag, as the hints requested; 0 without tagged messages.
    pub mem_tag_format: u64,
    /// Transmit contexts of the endpoint if it is opened as a
    /// [scalable](crate::rdm::ScalableEndpoint) endpoint; any other endpoint has one.
    pub tx_ctx_cnt: ContextCount,
    /// Receive contexts of the endpoint if it is opened as a scalable endpoint; any other endpoint
    /// has one.
    pub rx_ctx_cnt: ContextCount,
    /// The authorization key that peers of the endpoint must prove. `None`: the domain's.
    pub auth_key: Option<AuthKey>,
}

/// The attributes of an endpoint's transmit context (`struct fi_tx_attr` of `fi_endpoint(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().tx(|tx| tx.size(1024)))?;
/// let tx = &fabric.infos()[0].tx;
/// assert_eq!((tx.size, tx.inject_size), (1024, 128));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxAttr {
    /// The capabilities of the transmit context: a subset of the endpoint's.
    pub caps: Caps,
    /// Always empty: the library imposes no modes.
    pub mode: Mode,
    /// Flags of operations whose call does not specify otherwise.
    pub op_flags: OpFlags,
    /// The order in which operations are processed at the peer.
    pub msg_order: MsgOrder,
    /// The order in which operations complete. Empty: any order.
    pub comp_order: CompOrder,
    /// Largest injected message or write, in bytes.
    pub inject_size: usize,
    /// Operations that can be outstanding.
    pub size: usize,
    /// Local buffers per operation.
    pub iov_limit: usize,
    /// Remote segments per operation.
    pub rma_iov_limit: usize,
    /// The traffic class.
    pub traffic_class: TrafficClass,
}

/// The attributes of an endpoint's receive context (`struct fi_rx_attr` of `fi_endpoint(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().rx(|rx| rx.size(1024)))?;
/// assert_eq!(fabric.infos()[0].rx.size, 1024);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RxAttr {
    /// The capabilities of the receive context: a subset of the endpoint's.
    pub caps: Caps,
    /// Always empty: the library imposes no modes.
    pub mode: Mode,
    /// Flags of receives whose call does not specify otherwise.
    pub op_flags: OpFlags,
    /// The order in which peers' operations are processed.
    pub msg_order: MsgOrder,
    /// The order in which receives complete.
    pub comp_order: CompOrder,
    /// Bytes of unexpected messages that are kept; beyond this limit the endpoint stops reading
    /// from its peer.
    pub total_buffered_recv: usize,
    /// Receives that can be posted.
    pub size: usize,
    /// Buffers per receive.
    pub iov_limit: usize,
}

/// An authorization key (`auth_key` of `fi_domain(3)`, `fi_endpoint(3)` and `fi_mr(3)`).
///
/// An endpoint with a key communicates only with peers that prove that they have the same key. Use
/// at least 16 random bytes: after an endpoint with a key connects to a peer, the peer can test
/// guesses of the key offline.
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
/// `Debug` shows only the length. The bytes are zeroed when the last clone is dropped, and keys are
/// compared in constant time.
#[doc(alias = "auth_key")]
#[derive(Clone)]
pub struct AuthKey(Source);

#[derive(Clone)]
enum Source {
    Bytes(Arc<Zeroizing<Box<[u8]>>>),
    AddressVector,
}

impl AuthKey {
    /// A key with these bytes.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        AuthKey(Source::Bytes(Arc::new(Zeroizing::new(bytes.into()))))
    }

    /// Each peer has the key of its entry in the address vector (`FI_AV_AUTH_KEY`).
    #[doc(alias = "FI_AV_AUTH_KEY")]
    pub fn of_address_vector() -> Self {
        AuthKey(Source::AddressVector)
    }

    /// The length in bytes (`auth_key_size`); 0 for [`of_address_vector`](Self::of_address_vector).
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Bytes(bytes) => bytes.len(),
            Source::AddressVector => 0,
        }
    }

    /// True for a key without bytes, which is the same as no key. False for
    /// [`of_address_vector`](Self::of_address_vector).
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Bytes(bytes) if bytes.is_empty())
    }

    /// Returns the bytes of the key, if it has any.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.as_ref().as_ref()).filter(|it| !it.is_empty()),
            Source::AddressVector => None,
        }
    }

    /// Returns whether the keys are those of the address vector.
    pub(crate) fn is_of_address_vector(&self) -> bool {
        matches!(self.0, Source::AddressVector)
    }
}

impl PartialEq for AuthKey {
    /// Takes the same time wherever the two keys differ.
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
