//! A client and a server in one process, without sockets (feature `test-util`).
//!
//! `#[service]` generates a mock of each trait, with scripted answers or closures. [`Ledger`]
//! checks that every call ended once at each side, and that all lent memory was returned.
//!
//! In a `current_thread` runtime with `start_paused`, deadlines take no real time, and the same
//! seed gives the same run. [`Net`] provides faults, partitions and crashes.
//!
//! ```
//! use std::time::Duration;
//! use tokio_fabric_rpc::{Code, Cx, Result, service, testing};
//!
//! #[service]
//! trait Slow {
//!     async fn wait(&self, cx: &Cx, seconds: u64) -> Result<()>;
//! }
//! struct Sleeper;
//! impl Slow for Sleeper {
//!     async fn wait(&self, _: &Cx, seconds: u64) -> Result<()> {
//!         tokio::time::sleep(Duration::from_secs(seconds)).await;
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<()> {
//!     let (channel, _server) = testing::pair(SlowServer::new(Sleeper)).await?;
//!     let slow = SlowClient::over(channel);
//!     slow.wait(9).await?;
//!     let late = slow.wait(11).await.unwrap_err(); // Calls have 10 s by default.
//!     assert_eq!(late.code(), Code::DeadlineExceeded);
//!     Ok(())
//! }
//! ```

mod ledger;
mod mock;

use std::net::{Ipv4Addr, SocketAddr};

use tokio_fabric::testing::{FaultPlan, Net};

use crate::client::Channel;
use crate::server::{Listening, Server, Service};
use crate::status::Result;

pub use ledger::Ledger;
pub use mock::MockMethod;

/// Starts a server with this service in its own network, and connects a channel to it.
///
/// # Errors
/// The errors of listening and connecting.
///
/// # Cancel safety
/// Dropping the future closes what it has opened.
pub async fn pair(service: impl Service) -> Result<(Channel, Listening)> {
    connect(&Net::new(0), Server::new().add(service)).await
}

/// As [`pair`], with faults that the plan's seed determines: short sends and receives, delays, and
/// connections that are cut after a number of bytes.
///
/// ```
/// use tokio_fabric::testing::FaultPlan;
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service]
/// trait Double {
///     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let mock = DoubleMock::new();
/// mock.on_double(|number| async move { Ok(2 * number) });
/// let faults = FaultPlan::seeded(7).short_io(0.5);
/// let (channel, _server) = testing::pair_with_faults(DoubleServer::new(mock), faults).await?;
/// assert_eq!(DoubleClient::over(channel).double(21).await?, 42);
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of listening and connecting, for instance because the plan cuts the connection early.
///
/// # Cancel safety
/// Dropping the future closes what it has opened.
pub async fn pair_with_faults(
    service: impl Service,
    faults: FaultPlan,
) -> Result<(Channel, Listening)> {
    connect(&Net::new(0).faults(faults), Server::new().add(service)).await
}

/// Starts this server in the network, and connects a channel to it.
///
/// ```
/// use tokio_fabric::testing::Net;
/// use tokio_fabric_rpc::{Result, Server, testing};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let net = Net::new(0);
/// let (channel, _server) = testing::connect(&net, Server::new().calls_max(1)).await?;
/// assert_eq!(channel.check().await?.calls_max, 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of listening and connecting.
///
/// # Cancel safety
/// Dropping the future closes what it has opened.
pub async fn connect(net: &Net, server: Server) -> Result<(Channel, Listening)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listening = server.fabric(&net.fabric()?).bind(any).await?;
    let channel = Channel::builder().fabric(&net.fabric()?);
    let channel = channel.connect(listening.local_addr()).await?;
    Ok((channel, listening))
}
