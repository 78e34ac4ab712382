//! What a connection tells its owner to publish.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::buf::Payload;
use crate::error::{Error, OperationKind};

/// The end of one operation.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) operation: OperationKind,
    /// Ok, or the typed reason.
    pub(crate) result: Result<(), Error>,
    /// Bytes moved.
    pub(crate) len: usize,
    /// Bytes of a received message that did not fit.
    pub(crate) overflow: usize,
    /// CQ data that came with a received message.
    pub(crate) data: Option<u64>,
    /// Where a received datagram came from.
    pub(crate) from: Option<SocketAddr>,
    /// The operation's memory, back.
    pub(crate) payload: Payload,
}

/// One thing to publish, in order.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// The handshake succeeded. `data` is what the acceptor sent; empty on the acceptor's side.
    Connected { data: Bytes },
    /// The handshake failed; the reason carries a rejection's data.
    ConnectFailed { error: Error },
    /// A posted operation ended.
    Ended { token: T, end: End },
    /// The slot that was reserved for a peer's write with CQ data is free: the write was refused on
    /// its way.
    RemoteDataVoid,
    /// A peer's write has landed in this memory, or an answer to its read has left it; of an answer
    /// that was cut up, only the regions that count are told. A slot was reserved for what comes
    /// with CQ data; the rest is only counted.
    RemoteAccess {
        operation: OperationKind,
        data: Option<u64>,
        memory: Payload,
    },
    /// The connection is over, for this reason; all operations ended before. `connected`: it had
    /// been established.
    /// `lost` if neither this side closed it nor both agreed.
    Closed {
        connected: bool,
        lost: Option<Error>,
    },
}
