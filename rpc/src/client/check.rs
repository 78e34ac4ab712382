//! Methods that every server answers.

use super::{Call, Channel};
use crate::codec::{self, Arguments, Postcard};
use crate::server::{METHODS, ServerDescription, ServerHealth};

impl Channel {
    /// Asks the server for its load and limits. The call bypasses the server's layers and its limit
    /// of calls, so that a server that is full can answer; a draining server refuses it like any
    /// call.
    pub fn check(&self) -> Call<ServerHealth> {
        let decode = codec::result::<Postcard, ServerHealth>;
        self.call(&METHODS[0], Arguments::of_bytes(&[], None), decode)
    }

    /// Asks the server for its methods, with their numbers and statistics, and for its limits.
    ///
    /// ```
    /// use tokio_fabric_rpc::{Cx, Result, service, testing};
    ///
    /// #[service]
    /// trait Double {
    ///     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<()> {
    /// let (channel, _server) = testing::pair(DoubleServer::new(DoubleMock::new())).await?;
    /// let server = channel.describe().await?;
    /// assert!(server.methods.iter().any(|method| method.name == "Double/double"));
    /// assert_eq!((&server.codec[..], server.health.stats.connections), ("postcard", 1));
    /// # Ok(()) }
    /// ```
    pub fn describe(&self) -> Call<ServerDescription> {
        let decode = codec::result::<Postcard, ServerDescription>;
        self.call(&METHODS[1], Arguments::of_bytes(&[], None), decode)
    }
}
