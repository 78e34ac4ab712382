//! What a connection tells its owner to publish.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind};
use crate::proto::peers::{ConnectionId, SourceId};

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
    /// The tag of a received message that has one.
    pub(crate) tag: Option<u64>,
    /// Who sent a message that a shared receive got.
    pub(crate) source: Option<SourceId>,
    /// The connection that brought it.
    pub(crate) connection: Option<ConnectionId>,
    /// The place of a received message among those of the connection, or of all that share
    /// receives, in case it is given back.
    pub(crate) order: u64,
    /// Where a received datagram came from.
    pub(crate) from: Option<SocketAddr>,
    /// The operation's memory, back.
    pub(crate) payload: Payload,
}

impl End {
    /// What is where no end is.
    pub(crate) fn empty() -> End {
        End {
            operation: OperationKind::Receive,
            result: Ok(()),
            len: 0,
            overflow: 0,
            data: None,
            tag: None,
            source: None,
            connection: None,
            order: 0,
            from: None,
            payload: Payload::empty(),
        }
    }

    /// The end, which leaves one of nothing in its place: it is told where it lies, and moved once,
    /// by whoever keeps it.
    #[inline]
    pub(crate) fn take(&mut self) -> End {
        End {
            operation: self.operation,
            result: std::mem::replace(&mut self.result, Ok(())),
            len: self.len,
            overflow: self.overflow,
            data: self.data,
            tag: self.tag,
            source: self.source,
            connection: self.connection,
            order: self.order,
            from: self.from,
            payload: self.payload.take(),
        }
    }

    /// True of a receive that got a message, in full or as much as fits.
    pub(crate) fn is_message(&self) -> bool {
        let arrived = |error: &Error| error.kind() == ErrorKind::Truncated;
        self.operation == OperationKind::Receive && self.result.as_ref().err().is_none_or(arrived)
    }
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
    /// A peer's operation that is counted as a read of these regions, once it is answered, has
    /// changed them too: only the regions are told.
    RemoteUpdate { memory: Payload },
    /// The connection is over, for this reason; all operations ended before. `connected`: it had
    /// been established.
    /// `lost` if neither this side closed it nor both agreed.
    Closed {
        connected: bool,
        lost: Option<Error>,
    },
}
