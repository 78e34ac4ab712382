//! Events of a connection, which its owner publishes.

use bytes::Bytes;

use crate::buf::Payload;
use crate::error::{Error, OperationKind};
use crate::proto::op::Operation;
use crate::sync::OwnedRecord;

/// One event to publish, in order.
#[derive(Debug)]
pub(crate) enum ConnEvent<T> {
    /// The handshake succeeded. `data` is the acceptor's; empty on the acceptor's side.
    Connected { data: Bytes },
    /// The handshake failed; `error` carries the data of a rejection.
    ConnectFailed { error: Error },
    /// An operation has completed; its record has the result.
    Completed(OwnedRecord<Operation<T>>),
    /// The completion slot of a peer's write with CQ data is free: the write was refused after all,
    /// since it could not be made persistent.
    RemoteDataVoid,
    /// A peer's write has landed in `memory`, or an answer to a peer's read has left it. For an
    /// answer in several frames, `memory` has only the regions that count accesses. A completion
    /// slot is reserved for an access with CQ data; other accesses are only counted.
    RemoteAccess {
        operation: OperationKind,
        data: Option<u64>,
        memory: Payload,
    },
    /// A peer's fetching atomic operation has changed regions; its answer is counted as a read.
    /// `memory` has only the regions that count accesses.
    RemoteUpdate { memory: Payload },
    /// The connection has ended; all its operations ended before. `connected`: the connection had
    /// been established. `lost`: the reason, unless this side closed the connection or both sides
    /// agreed to end it.
    Closed {
        connected: bool,
        lost: Option<Error>,
    },
}
