//! The receive side of a connection: from bytes to frames to where their payload shall land.
//!
//! ```text
//!              ┌─────── whole ────────┐
//!              ▼    it has a payload  │
//!   ┌──────▶ Header ──────────────▶ Payload
//!   │          │ │ └─ a write that is to be persistent has landed ──▶ AwaitCommit ─┐
//!   │          │ └─ no receive, and no room to keep it ──▶ AwaitReceive ────────────┤
//!   │          └─ no room for its completion or answer ──▶ AwaitRoom ───────────────┤
//!   └──────────────────────── what was awaited is there ────────────────────────────┘
//!
//!   each ──▶ Closed: the connection ends, or the peer is heard no more
//! ```
//! A frame that waited is looked at anew, from its header on.
//!
//! Invariants: payload_done ≤ payload_len; bytes are consumed exactly once and in order; while
//! paused nothing is consumed.

use crate::buf::Payload;
use crate::error::Refusal;
use crate::limits::HEADER_SIZE_MAX;
use crate::proto::matching::Arrival;
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, Decoded, FrameHeader, WireError, decode};

use super::atomic::AskedAtomic;

/// Where a payload lands, and what its end means.
#[derive(Debug)]
pub(super) enum Target {
    /// A posted receive. `capacity` bytes fit; the rest of the message is discarded.
    Receive {
        op: OpKey,
        data: Option<u64>,
        tag: Option<u64>,
        /// Its place among the messages of the connection, or of all that share receives.
        order: u64,
    },
    /// The store of early messages.
    Early { data: Option<u64>, order: u64 },
    /// The store that is shared with other connections.
    Stored { arrival: Arrival },
    /// The peer's write into our regions.
    Region { data: Option<u64>, commit: bool },
    /// The answer to our oldest read.
    Read { op: OpKey },
    /// A part of the answer to our oldest read.
    ReadData { op: OpKey },
    /// The operands of the peer's atomic operation. Boxed: it is more than what all others keep.
    Atomic(Box<AskedAtomic>),
    /// Nowhere: the peer's write is refused, from its beginning or on its way. `reserved`: there is
    /// a slot for its CQ data.
    Refused { reason: Refusal, reserved: bool },
}

/// A payload on its way in.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) target: Target,
    /// `None` while the transport has it.
    pub(super) payload: Option<Payload>,
    /// Bytes that fit the destination.
    pub(super) capacity: u64,
    pub(super) len: u64,
    pub(super) done: u64,
    pub(super) ack: bool,
}

impl Landing {
    /// Bytes of the destination still to fill.
    pub(super) fn wanted(&self) -> u64 {
        self.capacity.min(self.len).saturating_sub(self.done)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.len
    }
}

/// What the receive side is doing.
#[derive(Debug)]
pub(super) enum Rx {
    /// Collecting a header ([`PartialHeader`]).
    Header,
    /// A payload is landing.
    Payload(Landing),
    /// A message waits in the socket: no receive is posted and the store has no room for it.
    AwaitReceive { header: FrameHeader },
    /// A frame waits for room in a completion queue, or in the queue of read responses.
    AwaitRoom { header: FrameHeader },
    /// A write has landed, and is being made persistent (`FI_COMMIT_COMPLETE`). Its memory is with
    /// whoever does that, once they have taken it.
    AwaitCommit {
        data: Option<u64>,
        memory: Option<Payload>,
    },
    /// Nothing is read any more.
    Closed,
}

/// The states of [`Rx`], without what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::proto) enum RxState {
    Header,
    Payload,
    AwaitReceive,
    AwaitRoom,
    AwaitCommit,
    Closed,
}

impl RxState {
    /// Every legal edge; all others are bugs of ours. An attempt that is given up begins with a new
    /// [`Rx`].
    pub(in crate::proto) const EDGES: [(RxState, RxState); 13] = {
        use RxState::*;
        [
            (Header, Payload),
            (Header, AwaitReceive),
            (Header, AwaitRoom),
            (Header, AwaitCommit),
            (Payload, Header),
            (AwaitReceive, Header),
            (AwaitRoom, Header),
            (AwaitCommit, Header),
            (Header, Closed),
            (Payload, Closed),
            (AwaitReceive, Closed),
            (AwaitRoom, Closed),
            (AwaitCommit, Closed),
        ]
    };
}

impl Rx {
    fn state(&self) -> RxState {
        match self {
            Rx::Header => RxState::Header,
            Rx::Payload(_) => RxState::Payload,
            Rx::AwaitReceive { .. } => RxState::AwaitReceive,
            Rx::AwaitRoom { .. } => RxState::AwaitRoom,
            Rx::AwaitCommit { .. } => RxState::AwaitCommit,
            Rx::Closed => RxState::Closed,
        }
    }

    /// Moves along a legal edge; gives what was there.
    pub(super) fn go(&mut self, to: Rx) -> Rx {
        let edge = (self.state(), to.state());
        debug_assert!(RxState::EDGES.contains(&edge), "no edge {edge:?}");
        #[cfg(test)]
        super::walked::note(format!("{:?} -> {:?}", edge.0, edge.1));
        std::mem::replace(self, to)
    }

    /// Reads no more, whatever the state; gives what was there.
    pub(super) fn close(&mut self) -> Rx {
        match self {
            Rx::Closed => Rx::Closed,
            _ => self.go(Rx::Closed),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        matches!(
            self,
            Rx::AwaitReceive { .. } | Rx::AwaitRoom { .. } | Rx::AwaitCommit { .. } | Rx::Closed
        )
    }
}

/// The bytes of a header of which the rest has not come.
#[derive(Debug)]
pub(super) struct PartialHeader {
    bytes: [u8; HEADER_SIZE_MAX],
    have: usize,
}

impl PartialHeader {
    /// Nothing has come.
    pub(super) fn new() -> Self {
        PartialHeader {
            bytes: [0; HEADER_SIZE_MAX],
            have: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Decodes the header at the front of `input`, in its place: the usual case, in which nothing
    /// of it has come before.
    #[inline]
    pub(super) fn decode(&self, input: &[u8], order: ByteOrder) -> Result<Decoded, WireError> {
        match self.have {
            0 => decode(input, order),
            _ => Ok(Decoded::Need(0)),
        }
    }

    /// Takes from `input` what belongs to the header. Returns the bytes taken, and the header when
    /// whole.
    pub(super) fn collect(
        &mut self,
        input: &[u8],
        order: ByteOrder,
    ) -> Result<(usize, Option<FrameHeader>), WireError> {
        let mut taken = 0;
        loop {
            match decode(&self.bytes[..self.have], order)? {
                Decoded::Frame { header, .. } => {
                    self.have = 0;
                    return Ok((taken, Some(header)));
                }
                Decoded::Need(total) => {
                    let step = total.saturating_sub(self.have).min(input.len() - taken);
                    if step == 0 {
                        return Ok((taken, None));
                    }
                    let room = &mut self.bytes[self.have..self.have + step];
                    room.copy_from_slice(&input[taken..taken + step]);
                    self.have += step;
                    taken += step;
                }
            }
        }
    }
}
