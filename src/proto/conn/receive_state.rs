//! The receive side of a connection as a state machine: bytes become headers, then payloads.
//!
//! ```text
//!              ┌─────── whole ────────┐
//!              ▼    it has a payload  │
//!   ┌──────▶ Header ──────────────▶ Payload
//!   │         │ │ │ │ └─ a message that takes no receive before it is whole ──▶ Collecting ─┐
//!   │         │ │ │ └─ the payload of a persistent write is placed ──▶ AwaitCommit ─┤
//!   │         │ │ └─ a write is placed, and no room for its completion ──▶ AwaitReport ─┤
//!   │         │ └─ no receive, and no room to store it ──▶ AwaitReceive ────────────┤
//!   │         └─ no room for its answer ──▶ AwaitRoom ──────────────────────────────┤
//!   └──────────────────────── what was awaited is there ────────────────────────────┘
//!
//!   each ──▶ Closed: the connection ends, or stops reading for good
//! ```
//! A frame that waited is processed again, from its header on.
//!
//! Invariants: payload_done ≤ payload_len; bytes are consumed exactly once and in order; while
//! paused nothing is consumed.

use crate::buf::{AccessError, Payload};
use crate::edges::{check_edge, state_machine};
use crate::error::Refusal;
use crate::limits::HEADER_SIZE_MAX;
use crate::proto::matching::Arrival;
use crate::proto::matching::inbox::InboxId;
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, Decoded, FrameHeader, WireError, decode};

use super::atomic::AskedAtomic;

/// The destination of a payload; the target is completed when the payload is complete.
#[derive(Debug)]
pub(super) enum PayloadTarget {
    /// A receive. `capacity` bytes fit; the rest of the message is discarded.
    Receive {
        receive: OpKey,
        arrival: Arrival,
        /// Set if a copy to the receive's memory failed: the rest of the message is dropped.
        failed: Option<AccessError>,
    },
    /// An inbox. `capacity` bytes fit; the rest of the message is discarded.
    Inbox { inbox: InboxId, arrival: Arrival },
    /// The store of unexpected messages.
    Unexpected { arrival: Arrival },
    /// The peer's write into our regions.
    Region { data: Option<u64>, commit: bool },
    /// The answer to our oldest read.
    Read { op: OpKey },
    /// A part of the answer to our oldest read.
    ReadData { op: OpKey },
    /// The operands of the peer's atomic operation. Boxed, since it is the largest variant.
    Atomic(Box<AskedAtomic>),
    /// No memory: the peer's write was refused, at its beginning or midway, and its bytes are
    /// dropped.
    Refused { reason: Refusal },
}

impl PayloadTarget {
    /// The receive that a message was matched with.
    pub(super) fn of_receive(receive: OpKey, arrival: Arrival) -> Self {
        PayloadTarget::Receive {
            receive,
            arrival,
            failed: None,
        }
    }
}

/// A payload that is being received.
#[derive(Debug)]
pub(super) struct PayloadInProgress {
    pub(super) target: PayloadTarget,
    /// `None` while the transport has the memory.
    pub(super) payload: Option<Payload>,
    /// Bytes that fit into the destination; the rest is dropped.
    pub(super) capacity: u64,
    pub(super) len: u64,
    /// Bytes received so far.
    pub(super) done: u64,
    /// The peer asked for an ack.
    pub(super) ack: bool,
}

impl PayloadInProgress {
    /// Bytes of the destination still to fill.
    pub(super) fn wanted(&self) -> u64 {
        self.capacity.min(self.len).saturating_sub(self.done)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// True if the payload goes into a receive.
    pub(super) fn is_for_receive(&self) -> bool {
        matches!(self.target, PayloadTarget::Receive { .. })
    }

    /// Drops the rest of the payload.
    pub(super) fn drop_rest(&mut self) {
        self.capacity = self.done;
    }
}

/// A peer's write whose payload is placed.
#[derive(Debug)]
pub(super) struct PlacedWrite {
    pub(super) data: Option<u64>,
    pub(super) commit: bool,
    /// The write has to be acknowledged.
    pub(super) ack: bool,
    pub(super) memory: Payload,
}

/// The activity of the receive side.
#[derive(Debug)]
pub(super) enum ReceiveState {
    /// Collecting a header ([`PartialHeader`]).
    Header,
    /// Receiving a payload.
    Payload(PayloadInProgress),
    /// Receiving a message into the connection's own memory ([`collected`]). The message takes a
    /// shared receive only when it is complete, and is then processed from its header on.
    ///
    /// [`collected`]: super::receive_side::SharedBinding::collected
    Collecting { header: FrameHeader },
    /// A message waits, in the socket or collected: no receive takes it, and the store has no room.
    AwaitReceive { header: FrameHeader },
    /// A frame waits for room in the queue of answers.
    AwaitRoom { header: FrameHeader },
    /// A write with CQ data waits for room in the completion queue. Only complete writes take room,
    /// so that a peer that stops in the middle of one holds none.
    AwaitReport(PlacedWrite),
    /// A placed write is being made persistent (`FI_COMMIT_COMPLETE`). `memory` is `None` once the
    /// committing thread has taken it.
    AwaitCommit {
        data: Option<u64>,
        memory: Option<Payload>,
    },
    /// Nothing is read any more.
    Closed,
}

// An attempt that is given up begins with a new [`ReceiveState`].
state_machine! { ReceiveState {
    Header => [Payload, Collecting, AwaitReceive, AwaitRoom, AwaitReport, AwaitCommit, Closed],
    Payload => [Header, Closed],
    Collecting => [Header, Closed],
    AwaitReceive => [Header, Closed],
    AwaitRoom => [Header, Closed],
    AwaitReport => [Header, Closed],
    AwaitCommit => [Header, Closed],
    Closed => [],
}}

impl ReceiveState {
    /// Moves along a legal edge; returns the state before.
    pub(super) fn go(&mut self, to: ReceiveState) -> ReceiveState {
        check_edge(self, &to);
        std::mem::replace(self, to)
    }

    /// Moves to [`ReceiveState::Closed`] from any state; returns the state before.
    pub(super) fn close(&mut self) -> ReceiveState {
        match self {
            ReceiveState::Closed => ReceiveState::Closed,
            _ => self.go(ReceiveState::Closed),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        matches!(
            self,
            ReceiveState::AwaitReceive { .. }
                | ReceiveState::AwaitRoom { .. }
                | ReceiveState::AwaitReport(_)
                | ReceiveState::AwaitCommit { .. }
                | ReceiveState::Closed
        )
    }
}

/// The first bytes of a header whose rest has not come: at most [`HEADER_SIZE_MAX`]. The memory is
/// kept for the next header until the connection is idle.
#[derive(Debug, Default)]
pub(super) struct PartialHeader(Vec<u8>);

impl PartialHeader {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Frees the memory, if the buffer is empty.
    pub(super) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Decodes the header at the front of `input` without a copy: the usual case, in which no part
    /// of the header came before.
    #[inline]
    pub(super) fn decode(&self, input: &[u8], order: ByteOrder) -> Result<Decoded, WireError> {
        match self.is_empty() {
            true => decode(input, order),
            false => Ok(Decoded::Need(0)),
        }
    }

    /// Collects the header's bytes from `input`. Returns the number of bytes taken, and the header
    /// once it is complete.
    pub(super) fn collect(
        &mut self,
        input: &[u8],
        order: ByteOrder,
    ) -> Result<(usize, Option<FrameHeader>), WireError> {
        let mut taken = 0;
        loop {
            match decode(&self.0, order)? {
                Decoded::Frame { header, .. } => {
                    self.0.clear();
                    return Ok((taken, Some(header)));
                }
                Decoded::Need(total) => {
                    let have = self.0.len();
                    let step = total.saturating_sub(have).min(input.len() - taken);
                    if step == 0 {
                        return Ok((taken, None));
                    }
                    self.0.reserve_exact(HEADER_SIZE_MAX.saturating_sub(have));
                    self.0.extend_from_slice(&input[taken..taken + step]);
                    taken += step;
                }
            }
        }
    }
}
