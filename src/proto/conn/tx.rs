//! The transmit side of a connection: what goes out, in which order.
//!
//! Control frames (acks, read responses) overtake queued user frames but never split one; a frame
//! once handed out keeps its place until its last byte is gone. Byte 7 of each header counts the
//! frames of this direction in transmission order, which debug builds of libfabric insist on.
//!
//! Invariants: sent ≤ handed out ≤ queued; at most one batch is with the transport; while one is,
//! nothing else is handed out.

use std::collections::VecDeque;

use crate::buf::{Frame, Leases, Payload};
use crate::error::{Error, ErrorKind};
use crate::limits::{GATHER_BYTES_MAX, GATHER_FRAMES_MAX};
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, FrameHeader};

use super::liveness::Signs;

/// A frame not yet handed out.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) header: FrameHeader,
    pub(super) payload: Payload,
    /// The operation it belongs to; none for acks and read responses.
    pub(super) op: Option<OpKey>,
}

impl Queued {
    fn sign(header: FrameHeader) -> Self {
        Queued {
            header,
            payload: Payload::empty(),
            op: None,
        }
    }
}

/// Frames for the transport, with the leases that keep their regions open while it has them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) leases: Vec<Leases>,
}

/// Who is told of a frame's fate: the operation's key, or nobody in particular.
const NO_OP: u64 = u64::MAX;
/// The same of frames of the handshake, of whose fate nobody is told. No key has these values,
/// since a slab never has an entry of the highest index.
pub(super) const RAW: u64 = u64::MAX - 1;

#[derive(Debug)]
pub(super) struct Tx {
    control: VecDeque<Queued>,
    user: VecDeque<Queued>,
    signs: Signs,
    /// Handed out before, not sent in full: goes first, as it is.
    carry: VecDeque<Frame>,
    out: bool,
    next_id: u8,
    /// Payload bytes of `user`.
    user_bytes: usize,
}

impl Tx {
    pub(super) fn new() -> Self {
        Tx {
            control: VecDeque::new(),
            user: VecDeque::new(),
            signs: Signs::default(),
            carry: VecDeque::new(),
            out: false,
            next_id: 0,
            user_bytes: 0,
        }
    }

    pub(super) fn push_control(&mut self, header: FrameHeader, payload: Payload) {
        self.control.push_back(Queued {
            header,
            payload,
            op: None,
        });
    }

    pub(super) fn push_user(&mut self, header: FrameHeader, payload: Payload, op: Option<OpKey>) {
        self.user_bytes += payload.len();
        self.user.push_back(Queued {
            header,
            payload,
            op,
        });
    }

    /// A control frame of the handshake: goes out as it is, before everything else.
    pub(super) fn push_raw(&mut self, frame: Frame) {
        self.carry.push_back(frame);
    }

    /// The first data frame, already encoded as such.
    pub(super) fn push_hello(&mut self, frame: Frame) {
        debug_assert_eq!(self.next_id, 0, "a hello is the first data frame");
        self.next_id = 1;
        self.push_raw(frame);
    }

    /// Takes a frame back that was never handed out.
    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<Payload> {
        let at = self.user.iter().position(|queued| queued.op == Some(op))?;
        let payload = self.user.remove(at).map(|queued| queued.payload)?;
        self.user_bytes -= payload.len();
        Some(payload)
    }

    /// Nothing queued and nothing with the transport: a new frame may go out at once.
    pub(super) fn is_idle(&self) -> bool {
        !self.out && self.is_drained()
    }

    /// Nothing left to hand out.
    pub(super) fn is_drained(&self) -> bool {
        self.carry.is_empty()
            && self.signs.is_empty()
            && self.control.is_empty()
            && self.user.is_empty()
    }

    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// Enough is queued for one vectored send.
    pub(super) fn is_gathered(&self) -> bool {
        self.user.len() >= GATHER_FRAMES_MAX || self.user_bytes >= GATHER_BYTES_MAX
    }

    /// Signs of life that go out before everything else that is queued.
    pub(super) fn signs_mut(&mut self) -> &mut Signs {
        &mut self.signs
    }

    /// Answers that the peer has asked for and not taken yet.
    pub(super) fn queued_answers(&self) -> usize {
        self.control.len()
    }

    /// Frames for the transport, in order, within the gather bounds; each newly handed-out frame of
    /// an operation is told to `started`.
    pub(super) fn poll(
        &mut self,
        order: ByteOrder,
        mut started: impl FnMut(OpKey),
    ) -> Result<Option<Outgoing>, Error> {
        if self.out || self.is_drained() {
            return Ok(None);
        }
        let mut frames = std::mem::take(&mut self.carry);
        let mut bytes: usize = frames.iter().map(Frame::remaining).sum();
        while frames.is_empty() || (bytes < GATHER_BYTES_MAX && frames.len() < GATHER_FRAMES_MAX) {
            let sign = self.signs.pop().map(Queued::sign);
            let queued = sign.or_else(|| self.control.pop_front());
            let Some(queued) = queued.or_else(|| self.pop_user()) else {
                break;
            };
            tracing::trace!(header = %queued.header, "handed out");
            let header = queued.header.encode(order, self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            let token = queued.op.map_or(NO_OP, OpKey::to_bits);
            let frame = Frame::new(&header, queued.payload, token);
            bytes = bytes.saturating_add(frame.remaining());
            frames.push_back(frame);
            if let Some(op) = queued.op {
                started(op);
            }
        }
        let mut leases = Vec::new();
        for frame in &frames {
            match frame.payload().lease() {
                Ok(lease) if lease.is_empty() => {}
                Ok(lease) => leases.push(lease),
                Err(closed) => {
                    // Towards a peer without the extension, closing is all the wire can say.
                    let error = Error::new(
                        ErrorKind::AccessDenied,
                        format!("a region was {closed:?} before its bytes were read out"),
                    );
                    self.carry = frames;
                    return Err(error);
                }
            }
        }
        self.out = true;
        Ok(Some(Outgoing { frames, leases }))
    }

    fn pop_user(&mut self) -> Option<Queued> {
        let queued = self.user.pop_front()?;
        self.user_bytes -= queued.payload.len();
        Some(queued)
    }

    /// The transport moved `sent` bytes of the frames it had and gives them back; each frame that
    /// is gone in full is told to `finished` with its payload.
    pub(super) fn handle_sent(
        &mut self,
        mut frames: VecDeque<Frame>,
        mut sent: usize,
        mut finished: impl FnMut(Option<OpKey>, Payload),
    ) {
        debug_assert!(self.out, "a batch comes back only once");
        self.out = false;
        while let Some(frame) = frames.front_mut() {
            let step = frame.remaining().min(sent);
            frame.advance(step);
            sent -= step;
            if frame.remaining() > 0 {
                break;
            }
            if let Some(frame) = frames.pop_front() {
                let token = frame.token();
                if token == RAW {
                    continue;
                }
                let payload = frame.into_payload();
                finished(op_of(token), payload);
            }
        }
        debug_assert_eq!(sent, 0, "the transport moved more than it had");
        self.carry = frames;
    }

    /// The batch that is with the transport does not come back.
    pub(super) fn forget_submitted(&mut self) {
        self.out = false;
    }

    /// Everything that was not sent, as the connection ends.
    pub(super) fn drain(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let mut all = Vec::new();
        for frame in self.carry.drain(..) {
            let token = frame.token();
            all.push((op_of(token), frame.into_payload()));
        }
        self.user_bytes = 0;
        for queued in self.control.drain(..).chain(self.user.drain(..)) {
            all.push((queued.op, queued.payload));
        }
        all
    }
}

/// The operation that a frame belongs to.
fn op_of(token: u64) -> Option<OpKey> {
    (token != NO_OP && token != RAW).then(|| OpKey::from_bits(token))
}
