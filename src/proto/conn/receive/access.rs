//! Reads and writes of our regions by the peer, and the responses to our reads.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Phase, Refusal};
use crate::info::Caps;
use crate::mr::{Access, AccessRequest, Tag};
use crate::proto::Host;
use crate::proto::conn::acks::AwaitedRead;
use crate::proto::conn::receive_state::{
    PayloadInProgress, PayloadTarget, PlacedWrite, ReceiveState,
};
use crate::proto::conn::{Connection, violation};
use crate::proto::event::ConnEvent;
use crate::wire::{FrameHeader, RemoteSegment, Segments};

impl<T> Connection<T> {
    /// Begins a peer's write: resolves our regions, and receives the payload there.
    pub(super) fn begin_write(
        &mut self,
        data: Option<u64>,
        ack: bool,
        commit: bool,
        segments: Segments,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let answered = ack || commit;
        if self.has_refusals() && !answered {
            return Err(violation("a write that wants no answer"));
        }
        let len = segments.total();
        match resolve_all(&segments, Caps::RMA, Access::REMOTE_WRITE, commit, host) {
            Ok(memory) => {
                self.rx.go(ReceiveState::Payload(PayloadInProgress {
                    target: PayloadTarget::Region { data, commit },
                    payload: Some(memory),
                    capacity: len,
                    len,
                    done: 0,
                    // A commit is answered later, when the bytes are persistent.
                    ack: answered && !commit,
                }));
            }
            Err(reason) if self.has_refusals() => self.refuse_write(reason, len),
            Err(reason) => return Err(self.denied(reason)),
        }
        Ok(())
    }

    /// Finishes a placed write: reports it once there is room for its completion, and acknowledges
    /// it.
    pub(super) fn finish_write(&mut self, write: PlacedWrite, host: &mut impl Host<T>) {
        if write.data.is_some() && !host.reserve_remote_completion() {
            self.rx.go(ReceiveState::AwaitReport(write));
            return;
        }
        let PlacedWrite {
            data,
            commit,
            ack,
            memory,
        } = write;
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        if commit {
            let memory = Some(memory);
            self.rx.go(ReceiveState::AwaitCommit { data, memory });
            return;
        }
        self.events.push(ConnEvent::RemoteAccess {
            operation: OperationKind::RemoteWrite,
            data,
            memory,
        });
    }

    /// Begins a peer's read: resolves our regions, and queues the response.
    pub(super) fn begin_read(
        &mut self,
        segments: &Segments,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        match resolve_all(segments, Caps::RMA, Access::REMOTE_READ, false, host) {
            Ok(memory) if self.has_refusals() => self.tx.read_answers.give(memory),
            Ok(memory) => {
                let len = segments.total();
                self.tx
                    .push_control(FrameHeader::ReadResponse { len }, memory);
            }
            Err(reason) if self.has_refusals() => {
                self.tx.read_answers.refuse(reason);
                self.count_refusal(reason);
            }
            Err(reason) => return Err(self.denied(reason)),
        }
        Ok(())
    }

    /// Begins to receive the response to our oldest read, which comes in one frame from a peer
    /// without the REFUSAL capability.
    pub(super) fn begin_read_response(&mut self, len: u64) -> Result<(), Error> {
        if self.has_refusals() {
            return Err(violation("a read response where READ_DATA was agreed on"));
        }
        let Some(&AwaitedRead { op, len: asked, .. }) = self.awaited_reads.front() else {
            return Err(violation("a read response that nothing awaits"));
        };
        if asked != len {
            return Err(violation(
                "a read response of another length than the request's",
            ));
        }
        self.awaited_reads.pop_front();
        // If the read has timed out, its bytes are dropped.
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::AwaitingPeer;
            entry.payload.take()
        });
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target: PayloadTarget::Read { op },
            capacity: if payload.is_some() { len } else { 0 },
            payload: Some(payload.unwrap_or_else(Payload::empty)),
            len,
            done: 0,
            ack: false,
        }));
        Ok(())
    }

    /// Counts a refusal, and returns the error that ends the connection: the peer has no REFUSAL
    /// capability.
    #[cold]
    fn denied(&mut self, reason: Refusal) -> Error {
        self.count_refusal(reason);
        let what = format!("the peer was refused: {reason}");
        Error::new(kind_of(reason), what)
    }
}

const _: () = assert!(Access::REMOTE_READ.bits() == Caps::REMOTE_READ.bits());
const _: () = assert!(Access::REMOTE_WRITE.bits() == Caps::REMOTE_WRITE.bits());

/// Resolves the segments of a peer's access to memory, in order, if the endpoint has the capability
/// for this access.
pub(in crate::proto::conn) fn resolve_all<T>(
    segments: &Segments,
    capability: Caps,
    need: Access,
    persistent: bool,
    host: &mut impl Host<T>,
) -> Result<Payload, Refusal> {
    // Rights that peers need have the same bits as the directions of capabilities.
    if !host.admits(capability | Caps::from_bits_retain(need.bits())) {
        return Err(Refusal::NoCapability);
    }
    let mut memory = Payload::empty();
    let mut rest = segments.as_slice().iter();
    let tagged = host.demands_tags();
    while let Some(segment) = rest.next() {
        let tag = if tagged {
            rest.next().and_then(tag_of)
        } else {
            None
        };
        memory.push_region(host.resolve(&AccessRequest {
            key: segment.key,
            tag,
            addr: segment.addr,
            len: segment.len,
            need,
            persistent,
        })?);
    }
    Ok(memory)
}

/// Returns the tag in an empty segment, which proves the segment before it (`FI_MR_RAW`).
fn tag_of(segment: &RemoteSegment) -> Option<Tag> {
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&segment.addr.to_le_bytes());
    tag[8..].copy_from_slice(&segment.key.to_le_bytes());
    (segment.len == 0).then_some(tag)
}

/// Makes the error of a connection whose peer was writing to memory when access to the memory was
/// refused.
pub(super) fn taken_away(reason: Refusal) -> Error {
    let what = format!("while the peer wrote to it, {reason}");
    Error::new(kind_of(reason), what)
}

fn kind_of(reason: Refusal) -> ErrorKind {
    match reason {
        Refusal::Fault => ErrorKind::BadAddress,
        _ => ErrorKind::AccessDenied,
    }
}
