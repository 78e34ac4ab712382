//! Enumerated attributes with libfabric's names, and version numbers.

use std::fmt;

/// The type of an endpoint (`type` of `fi_endpoint(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?;
/// assert_eq!(fabric.infos()[0].endpoint.endpoint_type, EndpointType::Rdm);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointType {
    /// No preference; the other hints determine the choice.
    #[default]
    Unspec,
    /// Reliable and connected; message boundaries are preserved ([`Endpoint`](crate::Endpoint)).
    Msg,
    /// Unreliable and connectionless ([`DgramEndpoint`](crate::DgramEndpoint)).
    Dgram,
    /// Reliable and connectionless ([`RdmEndpoint`](crate::RdmEndpoint)).
    Rdm,
    /// A byte stream. Not offered.
    SockStream,
    /// Datagrams with the semantics of a UDP socket. Not offered.
    SockDgram,
}

/// The promise of an application about calls from several threads (`threading` of `fi_domain(3)`).
///
/// Any promise is accepted, and the library is memory-safe with each of them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::Threading;
/// use tokio_fabric::{Fabric, Hints};
///
/// let hints = Hints::new().domain(|hints| hints.threading(Threading::Domain));
/// assert_eq!(Fabric::open(hints)?.infos()[0].domain.threading, Threading::Domain);
/// # Ok(()) }
/// ```
#[doc(alias(
    "FI_THREAD_SAFE",
    "FI_THREAD_UNSPEC",
    "FI_THREAD_FID",
    "FI_THREAD_ENDPOINT",
    "FI_THREAD_COMPLETION",
    "FI_THREAD_DOMAIN"
))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Threading {
    /// No promise; the result is [`Safe`](Self::Safe).
    #[default]
    Unspec,
    /// None: any thread may make any call at any time.
    Safe,
    /// Each object is used by one thread at a time.
    Fid,
    /// All objects of a domain are used by one thread at a time.
    Domain,
    /// All objects that share a completion queue or counter are used by one thread at a time.
    Completion,
    /// Each endpoint, with all its contexts, is used by one thread at a time.
    Endpoint,
}

/// The mode of progress of accepted operations (`control_progress` and `data_progress` of
/// `fi_domain(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::Progress;
/// use tokio_fabric::{Driver, Fabric, Hints};
///
/// let hints = Hints::new().domain(|hints| hints.data_progress(Progress::Manual));
/// assert_eq!(Fabric::open(hints)?.infos()[0].domain.driver, Driver::Manual);
/// # Ok(()) }
/// ```
#[doc(alias = "FI_PROGRESS_UNSPEC")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// No preference.
    #[default]
    Unspec,
    /// The library makes progress without calls by the application.
    Auto,
    /// The application makes progress when it reads or awaits queues, counters or operations.
    Manual,
    /// As [`Manual`](Self::Manual), and the application ensures that control and data calls do not
    /// overlap. For control progress only, with manual data progress.
    ControlUnified,
}

/// The place where a domain makes progress: its own task or thread ([`Progress::Auto`]), or the
/// application's calls ([`Progress::Manual`]).
///
/// The driver calls wakers and drops the buffers of detached operations: if their code blocks, the
/// domain makes no progress.
///
/// ```
/// use tokio_fabric::{Driver, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new())?;
/// let domain = fabric.domain().driver(Driver::Thread).open()?;
/// assert_eq!(domain.driver(), Driver::Thread);
/// # Ok(()) }
/// ```
#[doc(alias = "FI_PROGRESS_AUTO")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// A task on the Tokio runtime in which the domain is opened. It needs no additional thread,
    /// and on a `current_thread` runtime no hand-over between threads. Code that blocks such a
    /// runtime stops the driver; when the runtime shuts down, the domain's operations fail.
    #[default]
    Task,
    /// A thread of the domain. Peers are served while the application computes, and no runtime is
    /// needed. Each message that the application waits for costs a wake-up from thread to thread.
    /// With this driver the in-process backend uses real time, because there is no runtime whose
    /// time it could follow.
    Thread,
    /// The thread that calls [`local::block_on`](crate::local::block_on), which sleeps in the
    /// domain's ring: the application's futures run there, and the driver runs between them. A
    /// message reaches the future that waits for it without a wake-up of a task or a thread. The
    /// domain makes no progress before that call, and its operations fail after the call.
    Local,
    /// The application's calls: data moves only while the application reads or awaits. This has the
    /// lowest latency, because a message wakes only the task that waits for it.
    ///
    /// A task that awaits an operation, a queue, a counter or anything else of the domain, or an
    /// object of another domain that endpoints of this one use
    /// ([`peer_of`](crate::domain::DomainBuilder::peer_of)), drives the whole domain meanwhile.
    /// Reading an empty completion queue or event queue, reading a
    /// counter, and [`Domain::progress`](crate::Domain::progress) each drive for one turn. A target
    /// of RMA must do one of these too; waiting for anything outside this library makes no
    /// progress. If a side does not drive its domain for seconds, peers that wait for it declare it
    /// dead ([`Liveness`](crate::ep::Liveness)).
    ///
    /// It works on any executor. In a Tokio runtime that provides what the backend needs, that
    /// runtime's reactor wakes the waiting tasks. Otherwise a thread of the domain waits for the
    /// sockets while a task sleeps; it moves no data. When the runtime in which a domain was opened
    /// shuts down, the domain's operations fail. A future that was woken and is neither polled
    /// again nor dropped is skipped after some milliseconds: then all other tasks that wait for the
    /// domain are woken, and the first of them drives it. When the last handle of the domain and
    /// its endpoints is dropped, data that the sockets do not accept at once is lost;
    /// [`Domain::close`](crate::Domain::close) closes gracefully.
    #[doc(alias("FI_PROGRESS_MANUAL", "FI_PROGRESS_CONTROL_UNIFIED"))]
    Manual,
}

/// The protection of queues against overruns (`resource_mgmt` of `fi_domain(3)`).
///
/// Protection is always enabled; it costs nothing here.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::ResourceManagement;
/// use tokio_fabric::{Fabric, Hints};
///
/// let info = Fabric::open(Hints::new())?.infos()[0].clone();
/// assert_eq!(info.domain.resource_mgmt, ResourceManagement::Enabled);
/// # Ok(()) }
/// ```
#[doc(alias("FI_RM_ENABLED", "FI_RM_UNSPEC", "FI_RM_DISABLED"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceManagement {
    /// No preference.
    #[default]
    Unspec,
    /// The application prevents overruns.
    Disabled,
    /// The library prevents overruns.
    Enabled,
}

/// The type of an address vector (`av_type` of `fi_domain(3)`, `type` of `fi_av(3)`).
///
/// Connected endpoints use none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AvType;
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// assert_eq!(domain.address_vector().open()?.av_type(), AvType::Table);
/// assert_eq!(domain.address_vector().av_type(AvType::Map).open()?.av_type(), AvType::Map);
/// # Ok(()) }
/// ```
#[doc(alias("FI_AV_MAP", "FI_AV_TABLE", "FI_AV_UNSPEC"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AvType {
    /// No preference; an address vector that is opened with this type is a table.
    #[default]
    Unspec,
    /// Addresses are named by opaque values.
    Map,
    /// Addresses are named by values that contain a predictable index.
    Table,
}

/// The format of addresses (ADDRESSING FORMATS of `fi_getinfo(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AddressFormat;
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().node("127.0.0.1"))?;
/// assert_eq!(fabric.infos()[0].address_format, AddressFormat::SockaddrIn);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressFormat {
    /// No preference.
    #[default]
    Unspec,
    /// Any socket address.
    Sockaddr,
    /// IPv4 address and port.
    SockaddrIn,
    /// IPv6 address and port.
    SockaddrIn6,
    /// IPv4 or IPv6 address and port (libfabric 2).
    SockaddrIp,
    /// Text such as `fi_sockaddr://10.0.0.1:7471`. A node may have this form whatever the format.
    Str,
}

/// The protocol between two endpoints (`protocol` of `fi_endpoint(3)`), with libfabric's numbers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::Protocol;
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?;
/// assert_eq!(fabric.infos()[0].endpoint.protocol, Protocol::XNET);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protocol(pub u32);

impl Protocol {
    /// No preference (`FI_PROTO_UNSPEC`).
    pub const UNSPEC: Protocol = Protocol(0);
    /// UDP datagrams (`FI_PROTO_UDP`).
    pub const UDP: Protocol = Protocol(5);
    /// libfabric's `tcp` provider with connected endpoints (`FI_PROTO_SOCK_TCP`).
    pub const SOCK_TCP: Protocol = Protocol(6);
    /// Connectionless endpoints over connected ones (`FI_PROTO_RXM`). Not offered.
    pub const RXM: Protocol = Protocol(11);
    /// Reliable endpoints over datagrams (`FI_PROTO_RXD`). Not offered.
    pub const RXD: Protocol = Protocol(12);
    /// libfabric's `tcp` provider with connectionless endpoints (`FI_PROTO_XNET`).
    pub const XNET: Protocol = Protocol(25);
}

/// The number of contexts of an endpoint for one direction (`tx_ctx_cnt` and `rx_ctx_cnt` of
/// `struct fi_ep_attr`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::ContextCount;
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Rdm);
/// let hints = hints.endpoint_attr(|hints| hints.tx_ctx_cnt(ContextCount::Own(4)));
/// let domain = Fabric::open(hints.node("127.0.0.1"))?.domain().open()?;
/// assert_eq!(domain.scalable_endpoint().open()?.contexts().len(), 4);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContextCount {
    /// Contexts that belong to the endpoint. 0 means no preference in hints; in results, that the
    /// endpoint has no capability for this direction.
    Own(usize),
    /// One context, shared with other endpoints (`FI_SHARED_CONTEXT`).
    Shared,
}

/// The way in which a peer's write to a region registered with
/// [`MrFlags::RMA_PMEM`](crate::mr::MrFlags::RMA_PMEM) is made persistent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::Persistence;
/// use tokio_fabric::{Fabric, Hints};
///
/// let info = Fabric::open(Hints::new())?.infos()[0].clone();
/// assert_eq!(info.domain.persistence, Persistence::Synchronize);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Persistence {
    /// The kernel writes the pages back to the mapped file and waits for the storage device
    /// (`msync`). For a file on persistent memory that is mapped directly, it flushes the
    /// processor's caches instead.
    #[default]
    Synchronize,
}

/// The priority that the network should give to the traffic (`tclass` of `fi_endpoint(3)`).
///
/// An endpoint's sockets mark their packets with a differentiated services code point
/// ([`dscp`](Self::dscp); `IP_TOS`, `IPV6_TCLASS`), which routers and switches may respect, and
/// with a priority for the queues of this machine's interfaces ([`priority`](Self::priority);
/// `SO_PRIORITY`). The packets that open a TCP connection are sent earlier and are not marked. The
/// in-process backend accepts every class and ignores it.
///
/// ```
/// use tokio_fabric::info::TrafficClass;
///
/// assert_eq!(TrafficClass::LowLatency.dscp(), 18); // AF21
/// assert_eq!(TrafficClass::Dscp(46).dscp(), 46);
/// ```
#[doc(alias("fi_tc_dscp_get", "fi_tc_dscp_set"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// No preference; an endpoint takes its domain's class.
    #[default]
    Unspec,
    /// Fair share of the network; the default of domains.
    BestEffort,
    /// Small, urgent messages.
    LowLatency,
    /// Precedence over everything except network control.
    DedicatedAccess,
    /// Large, long-lasting transfers.
    BulkData,
    /// Only capacity that other traffic does not use.
    Scavenger,
    /// Management of the network itself.
    NetworkCtrl,
    /// A specific differentiated services code point, 0 to 63.
    Dscp(u8),
}

impl TrafficClass {
    /// The differentiated services code point of the class, following RFC 4594 and RFC 8622: AF21
    /// (low-latency data) for [`LowLatency`](Self::LowLatency), EF (telephony) for
    /// [`DedicatedAccess`](Self::DedicatedAccess), AF11 (high-throughput data) for
    /// [`BulkData`](Self::BulkData), LE (lower effort) for [`Scavenger`](Self::Scavenger), CS6 for
    /// [`NetworkCtrl`](Self::NetworkCtrl).
    pub fn dscp(self) -> u8 {
        match self {
            TrafficClass::Unspec | TrafficClass::BestEffort => 0,
            TrafficClass::LowLatency => 18,
            TrafficClass::DedicatedAccess => 46,
            TrafficClass::BulkData => 10,
            TrafficClass::Scavenger => 1,
            TrafficClass::NetworkCtrl => 48,
            TrafficClass::Dscp(point) => point,
        }
    }

    /// The priority of the class in the queues of this machine's interfaces: Linux's priorities
    /// filler (1), bulk (2), interactive bulk (4) and interactive (6). Priority 7 requires a
    /// privilege and is not used. For a code point it is the upper three bits (the class selector),
    /// at most 6.
    pub fn priority(self) -> u8 {
        match self {
            TrafficClass::Unspec | TrafficClass::BestEffort => 0,
            TrafficClass::LowLatency => 4,
            TrafficClass::DedicatedAccess | TrafficClass::NetworkCtrl => 6,
            TrafficClass::BulkData => 2,
            TrafficClass::Scavenger => 1,
            TrafficClass::Dscp(point) => (point >> 3).min(6),
        }
    }

    /// libfabric's number of the class; for a code point, the result of `fi_tc_dscp_set`.
    pub fn to_bits(self) -> u32 {
        match self {
            TrafficClass::Unspec => 0,
            TrafficClass::BestEffort => 0x200,
            TrafficClass::LowLatency => 0x201,
            TrafficClass::DedicatedAccess => 0x202,
            TrafficClass::BulkData => 0x203,
            TrafficClass::Scavenger => 0x204,
            TrafficClass::NetworkCtrl => 0x205,
            TrafficClass::Dscp(point) => 0x100 | u32::from(point),
        }
    }
}

/// A version of libfabric's interface (`FI_VERSION(major, minor)` of `fi_getinfo(3)`).
///
/// It determines how older hints are interpreted; see [`MrMode`](super::MrMode).
///
/// ```
/// use tokio_fabric::info::ApiVersion;
///
/// assert!(ApiVersion::new(1, 4) < ApiVersion::new(1, 5));
/// let version = ApiVersion::new(1, 17);
/// assert_eq!((version.major(), version.minor()), (1, 17));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiVersion(u32);

impl ApiVersion {
    /// The oldest version.
    pub const OLDEST: ApiVersion = ApiVersion::new(1, 0);
    /// The newest version whose manual pages this crate follows.
    pub const NEWEST: ApiVersion = ApiVersion::new(2, 6);
    /// From this version on an empty `mr_mode` means scalable, and authorization keys are in force.
    pub(super) const MODE_BITS: ApiVersion = ApiVersion::new(1, 5);

    /// Returns whether authorization keys are in force in this version.
    pub(crate) fn counts_auth_keys(self) -> bool {
        self >= ApiVersion::MODE_BITS
    }

    /// The version `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        ApiVersion((major as u32) << 16 | minor as u32)
    }

    /// The major number.
    pub fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The minor number.
    pub fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The number that C programs pass (`FI_VERSION`).
    pub fn to_bits(self) -> u32 {
        self.0
    }
}

/// 1.17, the version that most of the pages quoted here belong to.
impl Default for ApiVersion {
    fn default() -> Self {
        ApiVersion::new(1, 17)
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

impl fmt::Debug for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
