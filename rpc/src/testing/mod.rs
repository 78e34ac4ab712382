//! A client and a server in one process, without sockets (feature `test-util`).
//!
//! `#[service]` writes a mock of each trait, which answers by a script or by closures, and
//! [`Ledger`] has the accounts of calls and memory that have to come out even.
//!
//! In a `current_thread` runtime with `start_paused`, deadlines pass in no time, and the same seed
//! gives the same run. Faults, partitions and crashes are those of the library's
//! [`Net`].
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

/// A server of this in a network of its own, and a channel to it.
///
/// # Errors
/// Whatever listening or connecting meets.
pub async fn pair(service: impl Service) -> Result<(Channel, Listening)> {
    connect(&Net::new(0), Server::new().add(service)).await
}

/// The same in a network with faults: short sends and receives, delays, connections that are cut
/// after some bytes, all of the plan's seed.
///
/// # Errors
/// Whatever listening or connecting meets, which a plan that cuts early may be.
pub async fn pair_with_faults(
    service: impl Service,
    faults: FaultPlan,
) -> Result<(Channel, Listening)> {
    connect(&Net::new(0).faults(faults), Server::new().add(service)).await
}

/// This server at some address of the network, and a channel to it.
///
/// # Errors
/// Whatever listening or connecting meets.
pub async fn connect(net: &Net, server: Server) -> Result<(Channel, Listening)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listening = server.fabric(&net.fabric()?).bind(any).await?;
    let channel = Channel::builder().fabric(&net.fabric()?);
    let channel = channel.connect(listening.local_addr()).await?;
    Ok((channel, listening))
}
