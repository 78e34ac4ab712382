//! libfabric's model for Tokio: domains, awaited memory registration, event streams, messages and
//! remote memory access, over TCP, on any Linux machine.

#![deny(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod buf;
mod cntr;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod error;
mod fabric;
mod id;
mod info;
pub mod limits;
mod mr;
mod op_error;
mod progress;
mod proto;
mod slab;
mod sync;
#[cfg(feature = "test-util")]
pub mod testing;
mod transport;
mod wire;

pub use cntr::{Counter, CounterError, CounterWait};
pub use cq::{Completion, CompletionError, CompletionFlags, CompletionQueue, CompletionQueueBuilder};
pub use domain::{Domain, DomainBind, DomainBuilder, Register, RegisterReadOnly, Registration};
pub use endpoint::{
    Accept, Connect, Endpoint, EndpointBuilder, Op, PassiveEndpoint, PassiveEndpointBuilder, Queued,
    QueuedOp, Read, Received, Recv, Reject, RemoteRegions, Send, Write,
};
pub use eq::{ConnRequest, Event, EventError, EventQueue, EventQueueBuilder};
pub use error::{Error, ErrorKind, OperationKind, Phase, Result};
pub use fabric::{Fabric, discover};
pub use id::{Context, EndpointId, OperationId};
pub use info::*;
pub use mr::{Access, MemoryRegion, Quiesced, ReadOnlyRegion, RegionSlice, RemoteRegion};
pub use op_error::Failed;
pub use transport::Backend;
pub use buf::{Buffer, IoBuf, IoBufMut, IoBufs, IoBufsMut, ReadOnlyBuf, RegionBuf, RegionBufs};

/// Programs that must not build, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../tests/compile_fail.md")]
struct CompileFail;
