//! Writes that end when they are persistent (`FI_COMMIT_COMPLETE`). The payload lands as usual,
//! then the connection's owner makes the memory persistent, and then the write is acknowledged. The
//! connection reads nothing meanwhile, so acknowledgements keep their order.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Refusal};
use crate::proto::event::ConnEvent;
use crate::wire::FrameHeader;

use super::Connection;
use super::receive_state::ReceiveState;

impl<T> Connection<T> {
    /// True if [`Connection::poll_commit`] may return memory.
    #[inline]
    pub(crate) fn wants_commit(&self) -> bool {
        matches!(self.rx, ReceiveState::AwaitCommit { .. })
    }

    /// Returns the memory of a write that is to be made persistent, once for each such write.
    pub(crate) fn poll_commit(&mut self) -> Option<Payload> {
        match &mut self.rx {
            ReceiveState::AwaitCommit { memory, .. } if self.fault.is_none() => memory.take(),
            _ => None,
        }
    }

    /// Takes back the memory that [`Connection::poll_commit`] returned: the memory is persistent,
    /// or cannot be made so.
    pub(crate) fn handle_committed(&mut self, memory: Payload, result: Result<(), Error>) {
        let ReceiveState::AwaitCommit { data, memory: None } = self.rx else {
            return; // The connection has ended meanwhile.
        };
        self.rx.go(ReceiveState::Header);
        match result {
            Ok(()) => {
                self.tx.push_control(FrameHeader::Ack, Payload::empty());
                self.events.push(ConnEvent::RemoteAccess {
                    operation: OperationKind::RemoteWrite,
                    data,
                    memory,
                });
            }
            Err(error) if self.has_refusals() && error.kind() == ErrorKind::BadAddress => {
                if data.is_some() {
                    self.events.push(ConnEvent::RemoteDataVoid);
                }
                self.answer_refused(Refusal::Fault);
            }
            Err(error) => self.fail(error),
        }
        self.invariants();
    }
}
