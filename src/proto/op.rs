//! Operations: the one record that the connection keeps of each, from its post until its result has
//! been delivered.
//!
//! ```text
//! Waiting ──room──▶ Queued ──handed out──▶ Moving ──all moved──▶ AwaitingPeer ──▶ Ended
//!    └─────cancel─────┴──▶ Ended (Canceled)      └──nothing to await──▶ Ended
//! ```
//! A receive is Queued while posted and Moving while a message lands in it.
//!
//! Queues, fences and lists of awaited answers hold only the key of an operation: the frame's
//! header is encoded from the record when the frame goes out, and the memory leaves the record only
//! while the transport has it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::buf::{AccessError, Payload};
use crate::error::{Error, ErrorKind, OperationKind, Phase, Refusal};
use crate::proto::atomic::Atomic;
use crate::proto::matching::{Arrival, ReceivedMessage};
use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::Key;
use crate::sync::OwnedRecord;
use crate::wire::{AtomicCall, AtomicForm, FrameHeader, Segments};

/// Key of an operation within its connection.
pub(crate) type OpKey = Key;

/// The kind of an operation, with all parameters except its memory.
#[derive(Debug)]
pub(crate) enum OpKind {
    /// A message. `ack`: the send completes when the message is in the peer's memory.
    Send {
        data: Option<u64>,
        ack: bool,
        /// The tag of a tagged message.
        tag: Option<u64>,
    },
    /// A message whose bytes were copied; its end is not reported.
    Inject { data: Option<u64>, tag: Option<u64> },
    /// A buffer for one message.
    Receive,
    /// Writes bytes to the peer's regions.
    Write {
        data: Option<u64>,
        ack: bool,
        /// The write completes when it is persistent.
        commit: bool,
        segments: Segments,
    },
    /// Reads bytes from the peer's regions.
    Read { segments: Segments },
    /// Changes numbers in the peer's regions atomically. Boxed, so that other operations do not
    /// become larger.
    Atomic(Box<AtomicRequest>),
}

impl OpKind {
    pub(crate) fn operation(&self) -> OperationKind {
        match self {
            OpKind::Send { .. } => OperationKind::Send,
            OpKind::Inject { .. } => OperationKind::Inject,
            OpKind::Receive => OperationKind::Receive,
            OpKind::Write { .. } => OperationKind::Write,
            OpKind::Read { .. } => OperationKind::Read,
            OpKind::Atomic(request) if request.fetches() => OperationKind::FetchAtomic,
            OpKind::Atomic(_) => OperationKind::Atomic,
        }
    }

    /// Cuts the remote memory to `len` bytes, the length of the local memory; fails if the remote
    /// memory is shorter.
    pub(crate) fn cut_remote_to(&mut self, len: usize) -> Result<(), Error> {
        let segments = match self {
            OpKind::Write { segments, .. } | OpKind::Read { segments } => segments,
            OpKind::Atomic(request) => &mut request.segments,
            OpKind::Send { .. } | OpKind::Inject { .. } | OpKind::Receive => return Ok(()),
        };
        let lacks = segments.cut_to(len as u64);
        if lacks > 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the remote ranges are {lacks} bytes smaller than the local buffers"),
            ));
        }
        match self {
            OpKind::Atomic(request) => request.check_ranges(),
            _ => Ok(()),
        }
    }

    /// Copies the kind, without the operands of an atomic operation, which were handed out.
    fn handed_out(&self) -> OpKind {
        match self {
            OpKind::Send { data, ack, tag } => OpKind::Send {
                data: *data,
                ack: *ack,
                tag: *tag,
            },
            OpKind::Inject { data, tag } => OpKind::Inject {
                data: *data,
                tag: *tag,
            },
            OpKind::Receive => OpKind::Receive,
            OpKind::Write {
                data,
                ack,
                commit,
                segments,
            } => OpKind::Write {
                data: *data,
                ack: *ack,
                commit: *commit,
                segments: segments.clone(),
            },
            OpKind::Read { segments } => OpKind::Read {
                segments: segments.clone(),
            },
            OpKind::Atomic(request) => OpKind::Atomic(Box::new(AtomicRequest {
                call: request.call,
                segments: request.segments.clone(),
                operands: None,
            })),
        }
    }

    /// Adds remote CQ data to a message or a write.
    pub(crate) fn set_data(&mut self, sent: u64) {
        match self {
            OpKind::Send { data, .. } | OpKind::Inject { data, .. } => *data = Some(sent),
            OpKind::Write { data, .. } => *data = Some(sent),
            OpKind::Receive | OpKind::Read { .. } | OpKind::Atomic(_) => {}
        }
    }

    /// Sets when a message or a write completes. `delivered`: when the peer has it; `persistent`:
    /// when it is persistent there; neither: when its buffers may be reused.
    pub(crate) fn set_level(&mut self, delivered: bool, persistent: bool) {
        match self {
            OpKind::Send { ack, .. } => *ack = delivered,
            OpKind::Write { ack, commit, .. } => (*ack, *commit) = (delivered, persistent),
            _ => {}
        }
    }
}

/// An atomic operation.
#[derive(Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) call: AtomicCall,
    pub(crate) segments: Segments,
    /// The operands of a fetching operation, and after them the numbers to compare, until they go
    /// out; the operation's memory then receives the former numbers. `None`: the operation's memory
    /// holds the operands.
    pub(crate) operands: Option<Payload>,
}

impl AtomicRequest {
    /// Refuses remote ranges that end within a number.
    fn check_ranges(&self) -> Result<(), Error> {
        let size = Atomic::of(self.call).map_or(1, |atomic| atomic.size() as u64);
        let mut lens = self.segments.as_slice().iter().map(|segment| segment.len);
        if lens.any(|len| len % size != 0) {
            let message = "a remote range ends within a number";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(())
    }

    /// True if the operation fetches the former numbers.
    pub(crate) fn fetches(&self) -> bool {
        self.call.form != AtomicForm::Update
    }
}

/// The options of a post.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PostOptions {
    /// The operation waits for room in a full context, instead of failing with Again.
    pub(crate) wait: bool,
    /// The operation is held back for the next post (`FI_MORE`).
    pub(crate) more: bool,
    /// The operation goes out only after all transmit operations that were posted before have ended
    /// (`FI_FENCE`), and nothing overtakes it.
    pub(crate) fence: bool,
    /// The operation is a message that ends only when a receive has been matched with it, or when
    /// it was discarded (`FI_MATCH_COMPLETE`).
    pub(crate) matched: bool,
    /// The operation ends when this time has passed.
    pub(crate) timeout: Option<Duration>,
}

/// The reason why a post was not admitted, and the operation as it was posted.
#[derive(Debug)]
pub(crate) struct RefusedPost<T> {
    pub(crate) error: Error,
    pub(crate) operation: OwnedRecord<Operation<T>>,
}

impl<T> RefusedPost<T> {
    #[cold]
    pub(crate) fn new(error: Error, operation: OwnedRecord<Operation<T>>) -> Box<Self> {
        let error = error.with_operation(operation.operation());
        Box::new(RefusedPost { error, operation })
    }

    /// Returns the error and the memory.
    pub(crate) fn into_parts(self) -> (Error, Payload) {
        let RefusedPost {
            error,
            mut operation,
        } = self;
        (error, operation.take_payload())
    }
}

/// The origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageOrigin {
    /// A peer, over this connection.
    Peer {
        source: SourceId,
        connection: ConnectionId,
    },
    /// The sender of a datagram.
    Address(SocketAddr),
}

/// The result of an operation. Each field is written into the record when it is known.
#[derive(Debug)]
pub(crate) struct OpEnd {
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
    /// Origin of the message that a shared receive got, or of a datagram.
    pub(crate) origin: Option<MessageOrigin>,
    /// Sequence number of a received message among those of the connection, or of all connections
    /// that share receives. Needed if the message is given back.
    pub(crate) order: u64,
}

impl OpEnd {
    const NONE: OpEnd = OpEnd {
        result: Ok(()),
        len: 0,
        overflow: 0,
        data: None,
        tag: None,
        origin: None,
        order: 0,
    };

    /// Returns the sender of a message that a shared receive got.
    pub(crate) fn source(&self) -> Option<SourceId> {
        match self.origin {
            Some(MessageOrigin::Peer { source, .. }) => Some(source),
            _ => None,
        }
    }

    /// Returns the connection that brought the message of a shared receive.
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        match self.origin {
            Some(MessageOrigin::Peer { connection, .. }) => Some(connection),
            _ => None,
        }
    }

    /// Returns the sender's address of a received datagram.
    pub(crate) fn sender_address(&self) -> Option<SocketAddr> {
        match self.origin {
            Some(MessageOrigin::Address(address)) => Some(address),
            _ => None,
        }
    }
}

/// The one record of an operation, from its post until its result has been read. The record stays
/// where it was written; the component that works on the operation holds it ([`OwnedRecord`]). `T`
/// is the owner's note of where the operation reports.
#[derive(Debug)]
pub(crate) struct Operation<T> {
    pub(crate) token: T,
    pub(crate) kind: OpKind,
    pub(crate) options: PostOptions,
    pub(crate) phase: Phase,
    /// The memory that goes back to the operation's owner. `None` while the transport has the
    /// memory, or while a message is landing in it.
    pub(crate) payload: Option<Payload>,
    /// Number of bytes that the operation moves, at most.
    pub(crate) len: usize,
    /// Sequence number of an admitted transmit operation.
    pub(crate) number: u64,
    /// The peer's answer, if it came before the transport said that the frame was sent.
    pub(crate) answer: Option<Result<(), Refusal>>,
    /// The owner of a receive was dropped while a message was landing in the receive.
    pub(crate) detached: bool,
    /// Set if a copy to the operation's memory failed: the remaining bytes are dropped, and the
    /// operation ends with this error.
    pub(crate) failed: Option<AccessError>,
    /// The operation's result, if it has ended.
    pub(crate) end: OpEnd,
}

impl<T> Operation<T> {
    /// An operation that has not been admitted.
    #[inline]
    pub(crate) fn new(kind: OpKind, payload: Payload, token: T, options: PostOptions) -> Self {
        let len = match &kind {
            // The length was checked before: at most one array.
            OpKind::Atomic(request) => request.segments.total() as usize,
            _ => payload.len(),
        };
        Operation {
            token,
            kind,
            options,
            phase: Phase::Waiting,
            payload: Some(payload),
            len,
            number: 0,
            answer: None,
            detached: false,
            failed: None,
            end: OpEnd::NONE,
        }
    }

    /// Records how the operation has ended; its memory is in the record.
    #[inline]
    pub(crate) fn set_end(&mut self, result: Result<(), Error>, len: usize) {
        self.end.result = result.map_err(|error| {
            let error = error.with_operation(self.operation());
            error.with_phase(self.phase)
        });
        self.end.len = len;
    }

    /// Copies a complete message to a receive, and ends the receive.
    #[inline]
    pub(crate) fn end_with_bytes(&mut self, arrival: &Arrival, bytes: &[u8]) {
        let buffer = self.payload.as_mut();
        let buffer = buffer.expect("a receive that is matched has its buffer");
        let fits = buffer.room_for(bytes.len() as u64);
        let (len, failed) = match buffer.copy_in(0, &bytes[..fits]) {
            Ok(()) => (fits, None),
            Err(denied) => (0, Some(denied)),
        };
        self.set_message_end(arrival, len, bytes.len() - len, failed);
    }

    /// Moves or copies a message to a receive, and ends the receive.
    pub(crate) fn end_with_message(&mut self, message: ReceivedMessage) {
        let buffer = self.payload.as_mut();
        let buffer = buffer.expect("a receive that is matched has its buffer");
        let (len, failed) = match buffer.take_message(message.payload, message.len) {
            Ok(len) => (len, None),
            Err(denied) => (0, Some(denied)),
        };
        let overflow = message.overflow + (message.len - len);
        self.set_message_end(&message.arrival, len, overflow, failed);
    }

    /// Ends a receive with the message in its buffer. `failed`: the copy to the buffer failed.
    pub(crate) fn end_with_placed(
        &mut self,
        message: ReceivedMessage,
        failed: Option<AccessError>,
    ) {
        self.payload = Some(message.payload);
        self.set_message_end(&message.arrival, message.len, message.overflow, failed);
    }

    #[inline]
    fn set_message_end(
        &mut self,
        arrival: &Arrival,
        len: usize,
        overflow: usize,
        failed: Option<AccessError>,
    ) {
        let result = match failed {
            Some(denied) => Err(denied.error("a message was copied to it")),
            None if overflow == 0 => Ok(()),
            None => Err(truncated(len, overflow)),
        };
        self.phase = Phase::Moving;
        self.set_end(result, len);
        let end = &mut self.end;
        end.overflow = overflow;
        end.data = arrival.data;
        end.tag = arrival.kind.tag();
        end.origin = arrival.origin();
        end.order = arrival.order;
    }

    /// True for a receive that got a message, in full or truncated.
    pub(crate) fn is_message_received(&self) -> bool {
        let arrived = |error: &Error| error.kind() == ErrorKind::Truncated;
        self.is_receive() && self.end.result.as_ref().err().is_none_or(arrived)
    }

    /// Splits the record of an operation whose bytes are moving. The returned record has ended with
    /// `error` and has no memory, so that its end can be reported. The operation goes on in a new
    /// record, with `token`.
    pub(crate) fn part(
        record: &mut OwnedRecord<Self>,
        token: T,
        error: Error,
    ) -> OwnedRecord<Self> {
        let rest = Operation {
            token,
            kind: record.kind.handed_out(),
            options: record.options,
            phase: record.phase,
            payload: record.payload.take(),
            len: record.len,
            number: record.number,
            answer: record.answer.take(),
            // A message that lands in this receive goes to the next receive.
            detached: record.is_receive(),
            failed: record.failed.take(),
            end: OpEnd::NONE,
        };
        let mut parted = std::mem::replace(record, OwnedRecord::new(rest));
        parted.payload = Some(Payload::empty());
        parted.set_end(Err(error), 0);
        parted
    }

    pub(crate) fn operation(&self) -> OperationKind {
        self.kind.operation()
    }

    #[inline]
    pub(crate) fn is_receive(&self) -> bool {
        matches!(self.kind, OpKind::Receive)
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.kind, OpKind::Atomic(_))
    }

    /// True for a message, which uses the peer's credit.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.kind, OpKind::Send { .. } | OpKind::Inject { .. })
    }

    /// The tag of a message that has one.
    pub(crate) fn tag(&self) -> Option<u64> {
        match self.kind {
            OpKind::Send { tag, .. } | OpKind::Inject { tag, .. } => tag,
            _ => None,
        }
    }

    /// True if the peer answers the operation with bytes.
    #[inline]
    pub(crate) fn is_answered_with_bytes(&self) -> bool {
        match &self.kind {
            OpKind::Read { .. } => true,
            OpKind::Atomic(request) => request.fetches(),
            _ => false,
        }
    }

    /// True if the peer answers the operation with an acknowledgement or a refusal.
    #[inline]
    pub(crate) fn is_acknowledged(&self) -> bool {
        match &self.kind {
            OpKind::Send { ack, .. } => *ack,
            OpKind::Write { ack, commit, .. } => *ack || *commit,
            OpKind::Atomic(request) => !request.fetches(),
            OpKind::Inject { .. } | OpKind::Receive | OpKind::Read { .. } => false,
        }
    }

    /// Makes a write ask for an answer, which is required where refusals are agreed on.
    pub(crate) fn want_answer(&mut self) {
        if let OpKind::Write { ack, .. } = &mut self.kind {
            *ack = true;
        }
    }

    /// Length of the frame's payload.
    pub(crate) fn frame_len(&self) -> usize {
        match &self.kind {
            OpKind::Send { .. } | OpKind::Inject { .. } | OpKind::Write { .. } => self.len,
            OpKind::Receive | OpKind::Read { .. } => 0,
            OpKind::Atomic(request) => {
                let operands = request.operands.as_ref().or(self.payload.as_ref());
                operands.map_or(0, Payload::len)
            }
        }
    }

    /// Returns the header of the operation's frame.
    #[inline]
    pub(crate) fn header(&self) -> FrameHeader {
        match &self.kind {
            OpKind::Send { data, ack, tag } => message(*tag, *data, *ack, self.len as u64),
            OpKind::Inject { data, tag } => message(*tag, *data, false, self.len as u64),
            OpKind::Write {
                data,
                ack,
                commit,
                segments,
            } => FrameHeader::Write {
                data: *data,
                ack: *ack,
                commit: *commit,
                segments: segments.clone(),
            },
            OpKind::Read { segments } => FrameHeader::ReadRequest {
                segments: segments.clone(),
            },
            OpKind::Atomic(request) => FrameHeader::Atomic {
                call: request.call,
                segments: request.segments.clone(),
                len: self.frame_len() as u64,
            },
            OpKind::Receive => unreachable!("a receive has no frame"),
        }
    }

    /// True if the frame's payload lies in device memory.
    #[inline]
    pub(crate) fn goes_out_of_device(&self) -> bool {
        matches!(self.kind, OpKind::Send { .. } | OpKind::Write { .. })
            && self.payload.as_ref().is_some_and(Payload::is_of_device)
    }

    /// Takes the frame's payload.
    #[inline]
    pub(crate) fn take_outgoing(&mut self) -> Payload {
        match &mut self.kind {
            OpKind::Read { .. } => Payload::empty(),
            OpKind::Atomic(request) if request.fetches() => {
                request.operands.take().unwrap_or_else(Payload::empty)
            }
            _ => self.take_payload(),
        }
    }

    /// Returns the frame that announces the message under this index.
    pub(crate) fn announcement(&self, index: u8) -> FrameHeader {
        FrameHeader::Rts {
            index,
            tag: self.tag(),
            data: self.data(),
            ack: self.is_acknowledged(),
            len: self.len as u64,
        }
    }

    /// Returns the header of a message that was announced under this index and requested.
    pub(crate) fn announced(&self, index: u8) -> FrameHeader {
        FrameHeader::Data {
            index,
            has_data: self.data().is_some(),
            ack: self.is_acknowledged(),
            len: self.len as u64,
        }
    }

    fn data(&self) -> Option<u64> {
        match self.kind {
            OpKind::Send { data, .. } | OpKind::Inject { data, .. } => data,
            OpKind::Write { data, .. } => data,
            _ => None,
        }
    }

    /// Takes the memory that is in the record, if any.
    #[inline]
    pub(crate) fn take_payload(&mut self) -> Payload {
        self.payload.take().unwrap_or_else(Payload::empty)
    }
}

/// Error of a receive whose message was too long: `len` bytes fit, `overflow` did not.
#[cold]
pub(crate) fn truncated(len: usize, overflow: usize) -> Error {
    let what = format!("{} bytes came, {len} fit", len + overflow);
    Error::new(ErrorKind::Truncated, what)
}

/// The header of a message.
#[inline]
pub(super) fn message(tag: Option<u64>, data: Option<u64>, ack: bool, len: u64) -> FrameHeader {
    match tag {
        None => FrameHeader::Message { data, ack, len },
        Some(tag) => FrameHeader::Tagged {
            data,
            tag,
            ack,
            len,
        },
    }
}
