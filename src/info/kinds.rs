//! Choices of one among several, with libfabric's names; and version numbers.

use std::fmt;

/// The kind of communication (`type` of `fi_endpoint(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointType {
    /// No wish; the library chooses by the other hints.
    #[default]
    Unspec,
    /// Reliable, connected, keeps message boundaries.
    Msg,
    /// Unreliable, connectionless.
    Dgram,
    /// Reliable, connectionless.
    Rdm,
    /// A stream of bytes.
    SockStream,
    /// Datagrams with the manners of a UDP socket.
    SockDgram,
}

/// What an application promises about calls from several threads (`threading` of `fi_domain(3)`).
/// Asking for less than [`Safe`](Self::Safe) is a promise of the application's; it is never
/// refused.
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
    /// No wish; the answer is the model with the most parallelism.
    #[default]
    Unspec,
    /// Any thread calls anything at any time.
    Safe,
    /// One thread at a time for each object.
    Fid,
    /// One thread at a time for all objects of a domain.
    Domain,
    /// One thread at a time for all objects that share a completion queue or counter.
    Completion,
    /// One thread at a time for each endpoint, with all its contexts.
    Endpoint,
}

/// What makes accepted operations progress (`control_progress` and `data_progress` of
/// `fi_domain(3)`).
#[doc(alias = "FI_PROGRESS_UNSPEC")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// No wish.
    #[default]
    Unspec,
    /// The library, without any call by the application.
    Auto,
    /// The application, by reading or awaiting queues and counters.
    Manual,
    /// The application, which also sees to it that control and data calls do not meet. Control
    /// progress only, beside [`Manual`](Self::Manual) data progress.
    ControlUnified,
}

/// What makes a domain's progress: one of its own ([`Progress::Auto`]), or the application
/// ([`Progress::Manual`]).
///
/// Wakers are woken on the driver, and buffers of detached operations are dropped there: code of
/// either that blocks stops the domain.
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
    /// A task on the Tokio runtime that the domain is opened in: no thread more, and no hand-over
    /// between threads on a `current_thread` runtime. Code that blocks such a runtime stops the
    /// driver; the domain's operations end with the runtime.
    #[default]
    Task,
    /// A thread of the domain's own, whatever the application's threads and runtimes do: peers are
    /// served while the application computes, and no runtime is needed. Each message that the
    /// application waits for costs a wake from thread to thread. The in-process backend then lives
    /// in real time, since there is no runtime whose time it could follow.
    Thread,
    /// The application, as it reads or awaits: nothing moves but within its calls. The way of the
    /// lowest latency, since a message wakes the task that it is for, and no other.
    ///
    /// Who awaits an operation, a queue, a counter or anything else of the domain drives all of
    /// it meanwhile. Reading a completion queue or an event queue that is empty, and reading a
    /// counter, drive for one turn, and so does [`Domain::progress`](crate::Domain::progress).
    /// So a target of RMA has to do one of these too, and waiting for anything outside of this
    /// library moves nothing. Peers take a side that does not drive for seconds, while they wait
    /// for it, for dead ([`Liveness`](crate::ep::Liveness)).
    ///
    /// It works on any executor. In a Tokio runtime with what the backend needs it is woken by
    /// that runtime's reactor; outside, a thread of the domain's own waits for sockets while
    /// one of them sleeps, and moves nothing. A future that was polled and is neither polled again
    /// when it is woken nor dropped is passed over after some milliseconds: others that wait for
    /// the domain drive then. When the last handle of the domain and its endpoints is dropped, what
    /// sockets do not take at once is lost: [`Domain::close`](crate::Domain::close) waits for an
    /// orderly end.
    #[doc(alias("FI_PROGRESS_MANUAL", "FI_PROGRESS_CONTROL_UNIFIED"))]
    Manual,
}

/// Whether queues are protected against overruns (`resource_mgmt` of `fi_domain(3)`). Protection
/// costs nothing here, so it is always on.
#[doc(alias("FI_RM_ENABLED", "FI_RM_UNSPEC", "FI_RM_DISABLED"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceManagement {
    /// No wish.
    #[default]
    Unspec,
    /// The application takes care itself.
    Disabled,
    /// The library takes care.
    Enabled,
}

/// The kind of address vector (`av_type` of `fi_domain(3)`, `type` of `fi_av(3)`). Connected
/// endpoints use none.
#[doc(alias("FI_AV_MAP", "FI_AV_TABLE", "FI_AV_UNSPEC"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AvType {
    /// Either. A vector that is opened so is a table.
    #[default]
    Unspec,
    /// Addresses are named by opaque values.
    Map,
    /// Addresses are named by values with an index in them that can be foretold.
    Table,
}

/// The form of addresses (ADDRESSING FORMATS of `fi_getinfo(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressFormat {
    /// No wish.
    #[default]
    Unspec,
    /// Any socket address.
    Sockaddr,
    /// IPv4 and port.
    SockaddrIn,
    /// IPv6 and port.
    SockaddrIn6,
    /// IPv4 or IPv6 and port (libfabric 2).
    SockaddrIp,
    /// Text such as `fi_sockaddr://10.0.0.1:7471`. As a node it is always understood.
    Str,
}

/// The protocol between two endpoints (`protocol` of `fi_endpoint(3)`), with libfabric's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protocol(pub u32);

impl Protocol {
    /// No wish (`FI_PROTO_UNSPEC`).
    pub const UNSPEC: Protocol = Protocol(0);
    /// UDP datagrams (`FI_PROTO_UDP`).
    pub const UDP: Protocol = Protocol(5);
    /// libfabric's `tcp` provider, connected endpoints (`FI_PROTO_SOCK_TCP`).
    pub const SOCK_TCP: Protocol = Protocol(6);
    /// Connectionless over connected endpoints (`FI_PROTO_RXM`).
    pub const RXM: Protocol = Protocol(11);
    /// Reliable over datagrams (`FI_PROTO_RXD`).
    pub const RXD: Protocol = Protocol(12);
    /// libfabric's `tcp` provider, connectionless endpoints (`FI_PROTO_XNET`).
    pub const XNET: Protocol = Protocol(25);
}

/// How many contexts of one direction an endpoint has (`tx_ctx_cnt` and `rx_ctx_cnt` of
/// `struct fi_ep_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContextCount {
    /// This many of its own. As a hint, 0 is no wish; in an answer, 0 says that the capabilities
    /// leave nothing to do in this direction.
    Own(usize),
    /// One that it shares with other endpoints (`FI_SHARED_CONTEXT`).
    Shared,
}

/// How a peer's write to a region registered with
/// [`MrFlags::RMA_PMEM`](crate::mr::MrFlags::RMA_PMEM) is made persistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Persistence {
    /// The kernel writes the pages back to the mapped file and waits for its device (`msync`); for
    /// a file on persistent memory, mapped directly, it flushes the processor's caches instead.
    #[default]
    Synchronize,
}

/// How the network shall treat the traffic (`tclass` of `fi_endpoint(3)`).
///
/// The sockets of an endpoint mark what they send with a differentiated services code point
/// ([`dscp`](Self::dscp); `IP_TOS`, `IPV6_TCLASS`), which routers and switches may heed, and with a
/// priority in the queues of this machine's interfaces ([`priority`](Self::priority);
/// `SO_PRIORITY`). The packets that open a TCP connection go before that, without a mark. The
/// in-process backend has no network, and any class.
#[doc(alias("fi_tc_dscp_get", "fi_tc_dscp_set"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// No wish; an endpoint takes its domain's class.
    #[default]
    Unspec,
    /// Shares the network fairly; the default.
    BestEffort,
    /// Small, urgent messages.
    LowLatency,
    /// Above all but network control.
    DedicatedAccess,
    /// Large, lasting transfers.
    BulkData,
    /// Whatever others leave.
    Scavenger,
    /// Management of the network itself.
    NetworkCtrl,
    /// A differentiated services code point, 0 to 63.
    Dscp(u8),
}

impl TrafficClass {
    /// The differentiated services code point of the class, as RFC 4594 and RFC 8622 advise: low
    /// latency is their low-latency data (AF21), dedicated access their telephony (EF), bulk data
    /// their high-throughput data (AF11), scavenger their lower effort (LE), network control CS6.
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

    /// The priority of the class in the queues of this machine's interfaces: those that Linux names
    /// filler, bulk, interactive bulk and interactive. The highest, 7, takes a privilege, so 6 is
    /// the highest here. Of a code point it is the upper three bits, its class selector.
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

    /// libfabric's number for the class; for a code point, what `fi_tc_dscp_set` makes of it.
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

/// A version of libfabric's interface (`FI_VERSION(major, minor)` of `fi_getinfo(3)`). It decides
/// what old hints mean, see [`MrMode`](super::MrMode).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiVersion(u32);

impl ApiVersion {
    /// The oldest version there is.
    pub const OLDEST: ApiVersion = ApiVersion::new(1, 0);
    /// The newest version whose pages this crate answers to.
    pub const NEWEST: ApiVersion = ApiVersion::new(2, 6);
    /// From here on an empty `mr_mode` means scalable, and authorization keys count.
    pub(super) const MODE_BITS: ApiVersion = ApiVersion::new(1, 5);

    /// Whether authorization keys are looked at.
    pub(crate) fn counts_auth_keys(self) -> bool {
        self >= ApiVersion::MODE_BITS
    }

    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        ApiVersion((major as u32) << 16 | minor as u32)
    }

    /// The number before the dot.
    pub fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The number after the dot.
    pub fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The number that C programs pass.
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
