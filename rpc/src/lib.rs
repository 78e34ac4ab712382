//! Remote calls over [`tokio_fabric`], for services that move memory: deadlines, cancellation that
//! reaches the handler, prompt refusals by overloaded or draining servers, and memory that is lent
//! to a call.
//!
//! # Guarantees
//!
//! - A call ends exactly once at each side, and is sent at most once.
//! - When a call fails, [`Status::started`] says whether its handler may have run.
//! - Dropping a call cancels it: its handler is dropped at its next await, and with it the calls
//!   and transfers that it is making.
//! - Memory that is [lent](Lend) to a call is read and written by RMA. No peer can access it after
//!   the call has ended, however it ends.
//! - Each stream waits only for its own reader, in either direction.
//! - Every call has a deadline, 10 s by default; calls that a handler makes inherit the remaining
//!   time.
//! - An overloaded or draining server refuses a call at once, before anything has run.
//! - Malformed input from a peer fails a call or closes the connection, and does nothing else.
//!
//! # Where to find what
//!
//! | for | see |
//! |---|---|
//! | methods and their settings | [`service`] |
//! | memory that is lent, and how a handler accesses it | [`Lend`], [`Pull`], [`Push`] |
//! | streams of values | [`Streaming`] |
//! | errors: this library's, and a method's own | [`Status`], [`CallError`] |
//! | deadlines, metadata and traces of a call; what a handler knows of it | [`Call`], [`Cx`] |
//! | connections, and what happens when they end | [`Channel`] |
//! | limits, windows, draining, layers, authorization | [`Server`], [`Listening`], [`Authorize`] |
//! | `tower` layers around calls | [`ChannelService`], [`LayeredPath`] |
//! | servers that move, several addresses | [`Target`], [`Resolve`], [`Backoff`] |
//! | retries, balancing (feature `tower`) | the module `retry`, `Balance`, `HedgeLayer` |
//! | codecs | [`Codec`] |
//! | counts | [`Listening::method_stats`], [`Channel::stats`], [`Channel::describe`] |
//! | tests (feature `test-util`) | the module `testing` |
//!
//! A `tracing` subscriber gets the spans `rpc.client` and `rpc.server`, with OpenTelemetry's names
//! and the trace of the caller; without a subscriber they cost nothing. With the feature `metrics`,
//! `rpc.client.call.duration` and `rpc.server.call.duration` are histograms in seconds, and
//! `rpc.server.refused_calls` counts refused calls by code; `record_metrics` of the statistics
//! records connections and calls. Install the recorder before the first call: the histogram of a
//! method's results is looked up once and then kept. With the feature `opentelemetry`, the span of
//! a call is the parent of its server's span in another process.
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
#![doc(test(attr(deny(unused_must_use))))]

// Code that the macro generates names this crate, also in the crate's own tests.
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

#[cfg(doctest)]
#[doc = include_str!("../../docs/rpc-evolution.md")]
mod evolution {}

#[cfg(feature = "tower")]
mod balance;
mod call_info;
mod caught;
mod client;
mod codec;
mod cx;
mod drive;
#[cfg(feature = "tower")]
mod hedge;
mod lend;
pub mod limits;
mod method;
mod observe;
mod peer;
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

#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub use balance::{Balance, BalanceStats, BalancedCall};
pub use call_info::CallInfo;
pub use client::{
    Backoff, Call, CallDescription, CallPath, Channel, ChannelBuilder, ChannelService, DirectPath,
    FailedCall, LayeredCall, LayeredPath, LendingCall, LendingFuture, Loan, Resolve, Target,
};
#[cfg(feature = "prost")]
pub use codec::Prost;
#[cfg(feature = "rkyv")]
pub use codec::Rkyv;
pub use codec::{BodyBuf, Codec, CodecOf, Postcard};
pub use cx::{CancelReason, Cx};
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub use hedge::{Hedge, HedgeLayer};
pub use lend::{
    BulkSource, Chunk, Chunks, Lend, LendBuf, LendBufMut, LentRead, LentWrite, Pull, Push,
};
pub use method::Method;
#[cfg(feature = "metrics")]
pub use observe::metrics::describe_metrics;
pub use observe::{ChannelStats, MethodStats};
pub use peer::Extensions;
pub use server::{
    Authorize, BoxError, Listening, MethodDescription, Reply, Request, Route, RouteFuture, Server,
    ServerDescription, ServerHealth, ServerStats, Service,
};
pub use status::{CallError, CallFailure, Code, Result, Started, Status};
pub use streaming::Streaming;
pub use tokio::net::ToSocketAddrs;
pub use tokio_fabric::info::AuthKey;
pub use tokio_fabric::tls::PeerCertificates;
/// Turns a trait into a service.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service(name = "counter")]
/// trait Counter {
///     #[rpc(idempotent)]
///     async fn read(&self, cx: &Cx) -> Result<u64>;
///     #[rpc(version = "2")]
///     async fn add(&self, cx: &Cx, count: u64) -> Result<u64>;
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let mock = CounterMock::new();
/// mock.script_add([Ok(5)]);
/// let (channel, _server) = testing::pair(CounterServer::new(mock)).await?;
/// assert_eq!(CounterClient::over(channel).add(5).await?, 5);
/// # Ok(()) }
/// ```
pub use tokio_fabric_rpc_macros::service;
pub use wire::{Metadata, TraceContext};

/// Emits the code that `#[service]` generates for tests. It depends on the feature `test-util` of
/// this crate, which the features of a program do not show.
#[cfg(feature = "test-util")]
#[doc(hidden)]
#[macro_export]
macro_rules! if_test_util {
    ($($item:item)*) => { $($item)* };
}

/// Expands to nothing without the feature `test-util`.
#[cfg(not(feature = "test-util"))]
#[doc(hidden)]
#[macro_export]
macro_rules! if_test_util {
    ($($item:item)*) => {};
}

/// The items that the code generated by `#[service]` uses. Programs must not use them.
#[doc(hidden)]
pub mod generated {
    pub use crate::client::received;
    pub use crate::codec::{
        Arguments, bytes_result, codec_name, result, shape, typed_bytes, typed_result,
    };
    pub use crate::method::{Signature, described};
    pub use crate::server::{Handling, Incoming};
    pub use crate::streaming::{empty_stream, typed_empty_stream};
    pub use crate::wire::CodecName;
    pub use bytes::Bytes;
}
