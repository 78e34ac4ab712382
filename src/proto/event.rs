//! Events of a connection, which its owner publishes.

use bytes::Bytes;

use crate::buf::Payload;
use crate::error::{Error, OperationKind};
use crate::proto::op::Operation;
use crate::sync::OwnedRecord;

/// One event to publish, in order.
#[derive(Debug)]
pub(crate) enum ConnEvent<T> {
    /// The handshake succeeded. `data` is what the acceptor sent; empty on the acceptor's side.
    Connected { data: Bytes },
    /// The handshake failed; the reason carries a rejection's data.
    ConnectFailed { error: Error },
    /// An operation has completed: its record, which has the result.
    Completed(OwnedRecord<Operation<T>>),
    /// The slot that was reserved for a peer's write with CQ data is free: the write was refused
    /// after all, since it could not be made persistent.
    RemoteDataVoid,
    /// A peer's write has landed in this memory, or an answer to its read has left it; of an answer
    /// that was cut up, only the regions that count are given. A slot was reserved for an access
    /// with CQ data; others are only counted.
    RemoteAccess {
        operation: OperationKind,
        data: Option<u64>,
        memory: Payload,
    },
    /// A peer's operation that is counted as a read of these regions, once it is answered, has
    /// changed them too: only the regions are given.
    RemoteUpdate { memory: Payload },
    /// The connection is over, for this reason; all operations ended before. `connected`: it had
    /// been established.
    /// `lost` if neither this side closed it nor both agreed.
    Closed {
        connected: bool,
        lost: Option<Error>,
    },
}
