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
    }
}

/// How a server is; given by [`Channel::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHealth {
    /// What it has done so far.
    pub stats: ServerStats,
    /// Calls that may run at a time.
    pub calls_max: u64,
    /// Connections that there may be.
    pub connections_max: u64,
}

/// What a server serves; given by [`Channel::describe`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerDescription {
    /// The codec of its services; empty if they have none.
    pub codec: String,
    /// How it is.
    pub health: ServerHealth,
    /// Calls that a client may have open on a connection.
    pub window: u32,
    /// Bytes of a frame: of a request, or of an answer.
    pub frame_max: u32,
    /// Its methods, in order of their names.
    pub methods: Vec<MethodDescription>,
}

/// A method of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodDescription {
    /// `Service/method`, with `#version` if it has one.
    pub name: String,
    /// Its number on the wire.
    pub id: u32,
    /// A call that was cancelled goes on to its end.
    pub to_end: bool,
    /// It may be made again though it may have run.
    pub idempotent: bool,
    /// What has become of its calls.
    pub stats: MethodStats,
}

impl Channel {
    /// Asks the server how it is. It answers beside its layers and its limit of calls: a server
    /// that is full says so, and one that drains refuses this as it does all.
    pub fn check(&self) -> Call<ServerHealth> {
        let decode = codec::result::<Postcard, ServerHealth>;
        self.call(&METHODS[0], Arguments::of_bytes(&[], None), decode)
    }

    /// Asks the server what it serves: methods, numbers, limits, and what has become of calls.
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

    fn call(&self, method: usize, call: Incoming<'_>) -> Result<Handling> {
        call.lends(0)?;
        call.no_arguments()?;
        let server = self.server.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::not_started(Code::Unavailable, "it ends"))?;
        let reply = match method {
            0 => Reply::value::<Postcard, _>(&server.health()),
            _ => Reply::value::<Postcard, _>(&server.describe()),
        };
        Ok(Box::pin(ready(reply)))
    }
}
