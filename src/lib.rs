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
//! A [`Fabric`] is what everything is opened from; [`Hints`] say what it must offer. A [`Domain`]
//! holds memory regions and endpoints, and owns the [`Driver`] that moves their bytes: progress
//! needs no call of yours. An [`EventQueue`] is a stream of connection requests, connections,
//! registrations and failures. An operation is a future, or it reports to a [`CompletionQueue`]; a
//! [`Counter`] counts.
//!
//! - **Posting** is synchronous and never blocks. Every accepted operation ends exactly once.
//! - **Buffers** belong to an operation until it ends, and come back with its result ([`Failed`]
//!   has them on error).
//! - **Dropping** the future of an operation withdraws it if it has not started. If it has, its
//!   memory lives as long as anything may touch it. [`detach`](op::Op::detach) lets it go on.
//! - **Peers** reach memory that is registered, with the key that they were sent, until it is
//!   revoked or deregistered.
//! - **Queues** are bounded. What finds no room waits, or is refused with its buffer
//!   ([`ErrorKind::Again`]).
//!
//! | you want to | start at |
//! |---|---|
//! | serve clients, each over a connection | [`PassiveEndpoint`], [`Endpoint`] |
//! | send to any of many peers, by tags | [`RdmEndpoint`], [`AddressVector`] |
//! | send datagrams, to groups too | [`DgramEndpoint`] |
//! | let a peer use your memory | [`Domain::register`], [`MemoryRegion`], [`RemoteRegion`] |
//! | receive messages as a stream | [`Endpoint::messages`], [`RdmEndpoint::messages`] |
//! | know what failed, and what to do | [`Error`], [`ErrorKind`], [`Failed`] |
//! | choose who makes progress | [`Driver`] |
//! | test with partitions and crashes | the module `testing`, of the feature `test-util` |
//! | call methods of a remote service | the crate `tokio-fabric-rpc` |
//!
//! The words are libfabric's: the docs name the call or structure each item answers to, as
//! `fi_mr(3)`. A search here for a name of libfabric's (`fi_mr_reg`) finds the item, and the
//! module `features` has a row for each name. A guide in ten chapters is in `docs/guide` of the
//! package.
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
//! An [`RdmEndpoint`] listens from the moment it is opened, and connects by its first operation to
//! a peer; what a peer is called is an entry of its [`AddressVector`].
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
//! What a program starts with is here; the rest is in a module per object: [`mr`] (regions and
//! rights), [`domain`] (registration and its cache), [`buf`] (buffers), [`eq`], [`cq`], [`cntr`],
//! [`av`], [`ep`], [`rdm`] and [`dgram`] (endpoints), [`op`] (operations), [`info`] (attributes and
//! hints), [`error`]; [`limits`] has every bound, [`stats`] what each object counts.
//!
//! # Features
//!
//! - `io-uring`, the only one on by default: builds [`Backend::IoUring`].
//! - `serde`: `Serialize` and `Deserialize` for [`RemoteRegion`] (its fixed byte encoding is always
//!   there), `Serialize` for [`stats`].
//! - `metrics`: records [`stats`] by the facade `metrics`, with the time of one operation in 64.
//! - `tls`: connections of TLS 1.3 (module [`tls`]).
//! - `test-util`: the module `testing`: in-process networks that a seed repeats, nodes by name,
//!   partitions, crashes, faults.
//!
//! # Environment variables
//!
//! A builder's call beats the variable.
//!
//! - `FI_MR_CACHE_MAX_SIZE`, `FI_MR_CACHE_MAX_COUNT`, `FI_MR_CACHE_MERGE_REGIONS`: the bounds of a
//!   [`RegistrationCache`](domain::RegistrationCache), and whether it merges regions.
//! - `FI_TCP_IFACE`: the only network interface to offer.
//! - `FI_TCP_PORT_LOW_RANGE`, `FI_TCP_PORT_HIGH_RANGE`: where listeners without a port of their own
//!   look for one.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[macro_use]
mod debug;

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
#[cfg(loom)]
#[doc(hidden)]
pub mod models;
pub mod mr;
mod op_error;
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

/// Connected endpoints (`FI_EP_MSG`): opening, listening, connecting, accepting.
pub mod ep {
    pub use crate::endpoint::{
        Accept, Connect, Endpoint, EndpointBuilder, OnRefusal, PassiveEndpoint,
        PassiveEndpointBuilder, RegionEndpoint, Reject, SharedReceiveContext,
        SharedReceiveContextBuilder,
    };
    pub use crate::progress::Liveness;
}

/// Reliable endpoints without connections (`FI_EP_RDM`).
pub mod rdm {
    pub use crate::endpoint::{
        PeerEvent, Peers, RdmEndpoint, RdmEndpointBuilder, ScalableEndpoint,
        ScalableEndpointBuilder,
    };
    pub use crate::progress::{IdlePolicy, PeerEventKind};
}

/// Datagram endpoints (`FI_EP_DGRAM`).
pub mod dgram {
    pub use crate::endpoint::{DgramEndpoint, DgramEndpointBuilder, Join, MulticastGroup};
}

/// Operations: described by a builder, posted, awaited or reported to a queue.
pub mod op {
    pub use crate::endpoint::{
        Atomic, AtomicMemory, AtomicResults, AtomicValue, ClaimedMessage, FetchAtomic, Message,
        MessageInfo, Messages, MultiRecv, NumbersOf, Op, OpOutput, Operands, Peek, PostedAtomic,
        PostingAtomic, Queued, QueuedOp, Received, Recv, RecvClaimed, RecvDatagram, RecvFrom,
        RecvTagged, RemoteRegions, RmaRead, RmaWrite, SendDatagram, SendMessage,
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
pub use mr::{Access, MemoryRegion, RemoteRegion};
pub use op_error::Failed;
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
}

/// Programs that must not build, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../tests/compile_fail.md")]
struct CompileFail;
