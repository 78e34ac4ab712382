//! What every server answers besides its services: how it is, and what it serves.

use std::future::ready;
use std::sync::{OnceLock, Weak};

use serde::{Deserialize, Serialize};

use super::listening::{ServerShared, ServerStats};
use super::service::{Handling, Incoming, Method, Reply, Service};
use crate::client::{Call, Channel};
use crate::codec::{self, Arguments, Postcard};
use crate::observe::MethodStats;
use crate::status::{Code, Result, Status};
use crate::wire::{CodecName, method_id};

const CHECK: Method = described("fabric-rpc/check");
const DESCRIBE: Method = described("fabric-rpc/describe");
static METHODS: [Method; 2] = [CHECK, DESCRIBE];

const fn described(name: &'static str) -> Method {
    Method {
        name,
        id: method_id(name),
        to_end: false,
        idempotent: true,
        spawn: false,
    }
}

/// A server's load and limits; the result of [`Channel::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHealth {
    /// Counts of connections and calls.
    pub stats: ServerStats,
    /// The number of calls that may run at the same time.
    pub calls_max: u64,
    /// The limit of connections.
    pub connections_max: u64,
}

/// A server's methods and limits; the result of [`Channel::describe`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerDescription {
    /// The codec of its services; empty if none of them uses a codec.
    pub codec: String,
    /// Load and limits.
    pub health: ServerHealth,
    /// The number of calls that a client may have open on a connection.
    pub window: u32,
    /// Bytes of a frame, which contains a request or a response.
    pub frame_max: u32,
    /// The methods, sorted by name.
    pub methods: Vec<MethodDescription>,
}

/// A method in a [`ServerDescription`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodDescription {
    /// `Service/method`, with `#version` if it has one.
    pub name: String,
    /// The method's number on the wire.
    pub id: u32,
    /// True if the handler of a cancelled call continues to its end.
    pub to_end: bool,
    /// True if a call may be retried even if it may have run.
    pub idempotent: bool,
    /// Counts of the method's calls.
    pub stats: MethodStats,
}

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

/// The service of these methods; its bodies are postcard, whatever the server's codec is.
#[derive(Debug, Default)]
pub(super) struct Builtin {
    /// Set before anything listens.
    pub(super) server: OnceLock<Weak<ServerShared>>,
}

impl Service for Builtin {
    fn methods(&self) -> &'static [Method] {
        &METHODS
    }

    fn codec(&self) -> Option<CodecName> {
        None
    }

    fn call(&self, method: usize, call: &mut Incoming<'_>) -> Result<Handling> {
        call.lends(0)?;
        call.no_arguments()?;
        let server = self.server.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::not_started(Code::Unavailable, "it ends"))?;
        let reply = match method {
            0 => Reply::value::<Postcard, _>(&server.health()),
            _ => Reply::value::<Postcard, _>(&server.describe()),
        };
        Ok(call.handling(ready(reply)))
    }
}
