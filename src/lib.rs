//! libfabric's model for Tokio: domains, awaited memory registration, event streams, messages and
//! remote memory access, over TCP, on any Linux machine.
//!
//! # The model
//!
//! ```text
//!   process A                                         process B
//!  ┌ Fabric ───────────────────────────┐             ┌ Fabric ────────────────────┐
//!  │ ┌ Domain ───────────────────────┐ │             │ ┌ Domain ────────────────┐ │
//!  │ │ Driver: moves the bytes       │ │     TCP     │ │ Driver                 │ │
//!  │ │ Endpoint ◀── messages ────────┼─┼─────────────┼─┼──▶ Endpoint            │ │
//!  │ │    read, write ───────────────┼─┼─────────────┼─┼──▶ MemoryRegion        │ │
//!  │ └───────┬───────────────┬───────┘ │  with a key │ └────────────────────────┘ │
//!  │    EventQueue    CompletionQueue  │             └────────────────────────────┘
//!  │    connections   or .await        │
//!  └───────────────────────────────────┘
//! ```
//!
//! You open a [`Fabric`] first, with [`Hints`] that say what it must offer; all other objects are
//! opened from it. A [`Domain`] holds memory regions and endpoints. It owns the [`Driver`] that
//! moves their bytes, so progress needs no call from you. An [`EventQueue`] is a stream of
//! connection requests, connections, registrations and failures. An operation is a future, or it
//! reports to a [`CompletionQueue`]; a [`Counter`] counts completed operations.
//!
//! - **Posting** an operation is synchronous and never blocks. Every accepted operation completes
//!   exactly once, with a result or an error.
//! - **Buffers** belong to an operation until it completes. They are returned with the result, or
//!   in the error ([`Failed`]).
//! - **Dropping** the future of an operation cancels an operation that has not started. One that
//!   has started keeps its memory alive as long as the kernel or a peer may access it.
//!   [`detach`](op::Op::detach) drops the future without cancelling.
//! - **Peers** can access registered memory with the key you sent them, until you revoke or
//!   deregister it.
//! - **Queues** are bounded. If a queue is full, `.await` waits, and `try_post` fails with
//!   [`ErrorKind::Again`] and returns the buffers.
//!
//! | to | start at |
//! |---|---|
//! | serve clients, each over a connection | [`PassiveEndpoint`], [`Endpoint`] |
//! | send to any of many peers, by tags | [`RdmEndpoint`], [`AddressVector`] |
//! | send datagrams, to groups too | [`DgramEndpoint`] |
//! | let a peer use your memory | [`Domain::register`], [`MemoryRegion`], [`RemoteRegion`] |
//! | receive messages as a stream | [`Endpoint::messages`], [`RdmEndpoint::messages`] |
//! | find out what failed, and what to do | [`Error`], [`ErrorKind`], [`Failed`] |
//! | choose whether a task, a thread or your own calls make progress | [`Driver`] |
//! | run futures on the thread that sleeps in the ring | [`local`] |
//! | test with partitions and crashes | the module `testing` (feature `test-util`) |
//! | call methods of a remote service | the crate `tokio-fabric-rpc` |
//!
//! The terms are libfabric's, and each item names the corresponding C call, structure or manual
//! page, such as `fi_mr(3)`. Searching this documentation for a libfabric name (`fi_mr_reg`) finds
//! the item. The module `features` lists libfabric's flags and attributes with their status. The
//! folder `docs/guide` of the package has a guide in ten chapters, and tables for programmers who
//! come from libfabric, verbs or gRPC.
//!
//! # Quick start
//!
//! ```
//! use tokio_fabric::{Access, Event, Fabric, Hints, RemoteRegion};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
//! let fabric = Fabric::open(Hints::new())?;
//!
//! // One side listens, and lets its peer write to a region.
//! let events = fabric.event_queue().open()?;
//! let listener = fabric.passive_endpoint(&events).listen_at(([127, 0, 0, 1], 0).into())?;
//! let address = listener.local_addr();
//! let domain = fabric.domain().open()?;
//! let region = domain.register(vec![0u8; 4096]).access(Access::REMOTE_WRITE).await?;
//! let serving = tokio::spawn(async move {
//!     match events.next().await {
//!         Some(Event::ConnRequest(request)) => {
//!             let accepted = request.accept(&domain).data(region.remote().to_bytes()).await;
//!             accepted.map(|endpoint| (endpoint, region))
//!         }
//!         other => panic!("{other:?} instead of a request"),
//!     }
//! });
//!
//! // The other connects, and writes.
//! let endpoint = fabric.domain().open()?.endpoint().open()?;
//! let remote = RemoteRegion::from_bytes(&endpoint.connect(address).await?)?;
//! let write = endpoint.write(b"hello".to_vec(), remote.slice(0..5)?).delivery_complete();
//! let (count, buffer) = write.await?;
//! assert_eq!((count, &buffer[..]), (5, &b"hello"[..]));
//!
//! let (_endpoint, region) = serving.await.expect("the server does not panic")?;
//! let mut bytes = [0; 5];
//! region.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(()) }
//! ```
//!
//! # Without connections
//!
//! An [`RdmEndpoint`] listens from the moment it is opened, and connects to a peer when you post
//! the first operation to it. Peers are named by the entries of its [`AddressVector`].
//!
//! ```
//! use tokio_fabric::{EndpointType, Fabric, Hints};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
//! let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?;
//! let domain = fabric.domain().open()?;
//! let open = || domain.rdm_endpoint().listen_at(([127, 0, 0, 1], 0).into()).open();
//! let (a, b) = (open()?, open()?);
//!
//! let to_b = a.insert(b.local_addr())?;
//! a.send_tagged("hello", to_b, 7).await?;
//! let (received, bytes) = b.recv_tagged(vec![0; 16], 7).await?;
//! assert_eq!(&bytes[..received.len], b"hello");
//! assert_eq!(received.source_addr, Some(a.local_addr()));
//! # Ok(()) }
//! ```
//!
//! # Modules
//!
//! The crate root exports the types that most programs start with. The others are in one module per
//! object: [`mr`] (regions and rights), [`domain`] (registration and its cache), [`buf`] (buffers),
//! [`eq`] (events), [`cq`] (completions), [`cntr`] (counters), [`av`] (address vectors), [`ep`],
//! [`rdm`] and [`dgram`] (endpoints), [`op`] (operations), [`info`] (attributes and hints),
//! [`error`]. [`limits`] lists all limits, [`stats`] the statistics of each object.
//!
//! # Features
//!
//! - `io-uring` (default): builds [`Backend::IoUring`].
//! - `serde`: `Serialize` and `Deserialize` for [`RemoteRegion`] (whose fixed byte encoding needs
//!   no feature), `Serialize` for [`stats`].
//! - `metrics`: records [`stats`] with the crate `metrics`, and times one operation in 64.
//! - `tls`: connections over TLS 1.3 (module [`tls`]).
//! - `test-util`: the module `testing`: deterministic networks within the process (same seed, same
//!   run), with named nodes, partitions, crashes and injected faults.
//!
//! # Environment variables
//!
//! Builder settings override these variables.
//!
//! - `FI_MR_CACHE_MAX_SIZE`, `FI_MR_CACHE_MAX_COUNT`: the limits of a
//!   [`RegistrationCache`](domain::RegistrationCache); `FI_MR_CACHE_MERGE_REGIONS`: whether it
//!   merges regions.
//! - `FI_TCP_IFACE`: the only network interface to offer.
//! - `FI_TCP_PORT_LOW_RANGE`, `FI_TCP_PORT_HIGH_RANGE`: the range of ports for listeners that are
//!   opened without a port.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc(test(attr(deny(unused_must_use))))]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[macro_use]
mod debug;

// First, so that the documentation of regions begins with their own methods.
pub mod mr;

#[cfg(doc)]
#[doc = include_str!("../docs/features.md")]
pub mod features {}

#[cfg(feature = "__instructions")]
#[doc(hidden)]
#[path = "instructions.rs"]
#[allow(missing_docs)]
pub mod __instructions;
pub mod av;
pub mod buf;
pub mod cntr;
pub mod cq;
pub mod domain;
mod edges;
mod endpoint;
pub mod eq;
pub mod error;
mod fabric;
mod id;
mod identity;
pub mod info;
pub mod limits;
pub mod local;
mod log;
#[cfg(loom)]
#[doc(hidden)]
pub mod models;
mod op_error;
mod path;
mod progress;
mod proto;
mod random;
mod slab;
pub mod stats;
mod sync;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod tls;
mod transport;
mod wire;

/// Connected endpoints (`FI_EP_MSG`): opening, listening, connecting, accepting, and receives that
/// several endpoints share.
pub mod ep {
    pub use crate::endpoint::{
        Accept, Connect, Endpoint, EndpointBuilder, OnRefusal, PassiveEndpoint,
        PassiveEndpointBuilder, RegionEndpoint, Reject, SharedReceiveContext,
        SharedReceiveContextBuilder, TcpOps,
    };
    pub use crate::progress::Liveness;
    pub use crate::transport::TcpInfo;
}

/// Reliable connectionless endpoints (`FI_EP_RDM`), which send to any of many peers.
pub mod rdm {
    pub use crate::endpoint::{
        PeerEvent, Peers, RdmEndpoint, RdmEndpointBuilder, ScalableEndpoint,
        ScalableEndpointBuilder,
    };
    pub use crate::progress::{IdlePolicy, PeerEventKind};
}

/// Datagram endpoints (`FI_EP_DGRAM`): unreliable messages over UDP, also to multicast groups.
pub mod dgram {
    pub use crate::endpoint::{DgramEndpoint, DgramEndpointBuilder, Join, MulticastGroup};
}

/// Operations: a builder describes an operation, which you then await, post, or queue.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 16]).post()?; // Posted here, awaited below.
/// let (_, buffer) = a.send(b"hello".to_vec()).delivery_complete().await?;
/// assert_eq!(buffer, b"hello"); // The buffer comes back.
/// let (received, bytes) = receive.await?;
/// assert_eq!(&bytes[..received.len], b"hello");
/// # Ok(()) }
/// ```
pub mod op {
    pub use crate::endpoint::kind;
    pub use crate::endpoint::{
        Atomic, AtomicMemory, AtomicResults, AtomicValue, ClaimedMessage, FetchAtomic, Message,
        MessageInfo, Messages, MultiRecv, NumbersOf, Op, OpOutput, Operands, Peek, PostFuture,
        PostedAtomic, Posting, PostingAtomic, Queued, QueuedOp, Received, Recv, RecvClaimed,
        RecvDatagram, RecvFrom, RecvTagged, RemoteRegions, RmaRead, RmaWrite, SendDatagram,
        SendMessage,
    };
    pub use crate::id::OperationId;
}

pub use av::AddressVector;
pub use buf::Buffer;
pub use cntr::Counter;
pub use cq::{Completion, CompletionQueue};
pub use domain::Domain;
pub use endpoint::{DgramEndpoint, Endpoint, PassiveEndpoint, RdmEndpoint};
pub use eq::{Event, EventQueue};
pub use error::{Error, ErrorKind, Result};
pub use fabric::{Fabric, discover};
pub use id::UserContext;
pub use info::{Caps, Driver, EndpointType, Hints, Info};
// For `tokio-fabric-rpc`, which logs strangers at the same rate.
#[doc(hidden)]
pub use log::LogRate;
pub use mr::{Access, MemoryRegion, RemoteRegion};
pub use op_error::Failed;
pub use path::{LocalPath, NotLocal, Path};
pub use transport::Backend;

/// The guide's programs, compiled and run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../docs/guide/1-first-program.md")]
    struct Chapter1;
    #[doc = include_str!("../docs/guide/2-memory.md")]
    struct Chapter2;
    #[doc = include_str!("../docs/guide/3-connections.md")]
    struct Chapter3;
    #[doc = include_str!("../docs/guide/4-messages.md")]
    struct Chapter4;
    #[doc = include_str!("../docs/guide/5-remote-memory.md")]
    struct Chapter5;
    #[doc = include_str!("../docs/guide/6-rdm.md")]
    struct Chapter6;
    #[doc = include_str!("../docs/guide/8-failures.md")]
    struct Chapter8;
    #[doc = include_str!("../docs/guide/9-testing.md")]
    struct Chapter9;
    #[doc = include_str!("../docs/guide/10-tuning.md")]
    struct Chapter10;
    #[doc = include_str!("../docs/guide/11-one-host.md")]
    struct Chapter11;
    #[doc = include_str!("../docs/guide/12-own-thread.md")]
    struct Chapter12;
}

/// Programs that must not build, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../tests/compile_fail.md")]
struct CompileFail;
