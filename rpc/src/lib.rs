//! Remote calls over [`tokio_fabric`], for services that move memory: deadlines, cancellation that
//! reaches the handler, overload and drain that are answered, and memory that is lent to a call.
//!
//! # What is promised
//!
//! - A call ends exactly once at each side, and is sent at most once.
//! - A call that fails says by [`Status::started`] whether its handler can have run.
//! - Dropping a call cancels it: its handler is dropped at its next await, with the calls and
//!   transfers that it has made.
//! - Memory that is [lent](Lend) to a call is read and written by RMA, and shut to every peer when
//!   the call ends, however it does.
//! - What is streamed in either direction waits for its own reader, and for no other.
//! - Every call has a deadline, 10 s unless it says otherwise; calls that a handler makes inherit
//!   the remaining time.
//! - An overloaded or draining server answers so at once, and nothing has run.
//! - What a peer sends leads to a status or to the end of its connection, and to nothing else.
//!
//! # Quick start
//!
//! ```
//! use tokio_fabric_rpc::{Cx, Result, Server, service};
//!
//! #[service]
//! pub trait Hello {
//!     async fn hello(&self, cx: &Cx, name: String) -> Result<String>;
//! }
//!
//! struct Greeter;
//!
//! impl Hello for Greeter {
//!     async fn hello(&self, _: &Cx, name: String) -> Result<String> {
//!         Ok(format!("Hello, {name}!"))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! let server = Server::new().add(HelloServer::new(Greeter)).bind("127.0.0.1:0").await?;
//! let hello = HelloClient::connect(server.local_addr()).await?;
//! assert_eq!(hello.hello("world".into()).await?, "Hello, world!");
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

// What the macro writes names this crate; so do its own tests.
extern crate self as tokio_fabric_rpc;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../tests/compile_fail.md")]
mod compile_fail {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/7-calls.md")]
mod guide {}

mod client;
mod codec;
mod cx;
mod drive;
mod lend;
pub mod limits;
mod observe;
mod proto;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod retry;
mod server;
mod status;
mod streaming;
#[cfg(feature = "test-util")]
pub mod testing;
mod wire;

pub use client::{Call, CallFuture, Channel, ChannelBuilder, ChannelService};
#[cfg(feature = "prost")]
pub use codec::Prost;
#[cfg(feature = "rkyv")]
pub use codec::Rkyv;
pub use codec::{BodyBuf, Codec, CodecOf, Postcard};
pub use cx::{CancelReason, Cx, TraceContext};
pub use lend::{
    BulkSource, Chunk, Chunks, FailedCall, Lend, LendBuf, LendBufMut, LendingCall, LendingFuture,
    LentRead, LentWrite, Loan, Pull, Push,
};
pub use observe::{ChannelStats, MethodStats};
pub use server::{
    Authorize, BoxError, Listening, Method, MethodDescription, Reply, Request, Route, RouteFuture,
    Server, ServerDescription, ServerHealth, ServerStats, Service,
};
pub use status::{CallError, Code, Result, Started, Status};
pub use streaming::Streaming;
pub use tokio::net::ToSocketAddrs;
pub use tokio_fabric::info::AuthKey;
pub use tokio_fabric_rpc_macros::service;
pub use wire::Metadata;

/// What `#[service]` writes for tests is there with the feature `test-util` of this crate, which a
/// program's own features do not say.
#[cfg(feature = "test-util")]
#[doc(hidden)]
#[macro_export]
macro_rules! if_test_util {
    ($($item:item)*) => { $($item)* };
}

/// See the other one.
#[cfg(not(feature = "test-util"))]
#[doc(hidden)]
#[macro_export]
macro_rules! if_test_util {
    ($($item:item)*) => {};
}

/// What `#[service]` writes is made of; nothing in it is for programs.
#[doc(hidden)]
pub mod generated {
    pub use crate::client::received;
    pub use crate::codec::{
        Arguments, bytes_from, bytes_result, codec_name, empty_stream, result, typed_bytes,
        typed_empty_stream, typed_result,
    };
    pub use crate::server::{Handling, Incoming};
    pub use crate::wire::{CodecName, method_id};
    pub use bytes::Bytes;
}
