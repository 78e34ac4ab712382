//! Methods that every server answers in addition to its services: its health, and its description.

use std::future::ready;
use std::sync::{OnceLock, Weak};

use serde::{Deserialize, Serialize};

use super::listening::{ServerShared, ServerStats};
use super::service::{Handling, Incoming, Reply, Service};
use crate::codec::Postcard;
use crate::method::Method;
use crate::observe::MethodStats;
use crate::status::{Code, Result, Status};
use crate::wire::{CodecName, method_id};

pub(crate) static METHODS: [Method; 2] = [
    described("fabric-rpc/check"),
    described("fabric-rpc/describe"),
];

const fn described(name: &'static str) -> Method {
    Method {
        name,
        // So the id depends on the name alone, and peers of any version can call these methods.
        signature: String::new(),
        id: method_id(name),
        to_end: false,
        idempotent: true,
        spawn: false,
    }
}

/// A server's load and limits; the result of [`Channel::check`](crate::Channel::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHealth {
    /// Counts of connections and calls.
    pub stats: ServerStats,
    /// The number of calls that may run at the same time.
    pub calls_max: u64,
    /// The limit of connections.
    pub connections_max: u64,
}

/// A server's methods and limits; the result of [`Channel::describe`](crate::Channel::describe).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerDescription {
    /// The codec of the server's services; empty if no service uses a codec.
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
    /// The types of its arguments and results as the codec sees them, such as `(u64,str)->[u8]`.
    pub signature: String,
    /// True if the handler of a cancelled call continues to its end.
    pub to_end: bool,
    /// True if a call may be retried even if it may have run.
    pub idempotent: bool,
    /// Counts of the method's calls.
    pub stats: MethodStats,
}

/// The service of the methods `check` and `describe`. It encodes bodies with postcard, whatever the
/// server's codec is.
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
