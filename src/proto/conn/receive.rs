//! Decodes received bytes to frames, and places the payloads of frames.
//!
//! This file consumes bytes; [`frame`] dispatches headers; [`payload`] completes an operation or a
//! peer's access when its payload is complete. `messages.rs` matches messages; [`access`] resolves
//! the memory that a peer's RMA names.
//!
//! The driver asks the machine for a `ReceivePlan` after each outcome: *stage* (read into a 64 KiB
//! buffer and feed it to the machine), *direct* (read large payloads straight into the posted
//! buffer or the region), or *paused* (there is no room: the socket fills, and the peer stops).
//! `wire` checks a header in full before any field is used.
//!
//! A message lands in the oldest posted receive, or in the bounded store of unexpected messages. A
//! peer of this library sends no more than these can take (`credit.rs`), and its RMA overtakes the
//! messages that wait for credit. A write or read names a key: `mr/table.rs` finds the region or
//! refuses. The region's gate (`sync/gate.rs`) is entered for each system call or copy, not for the
//! whole transfer, so revoking a region does not depend on the peer.
//!
//! Between two endpoints of this library every write is answered, by an ack or by its refusal; the
//! acks of a turn go out as one frame. The answer to a read goes out in parts (`answer.rs`). A part
//! whose region was revoked is filled up with zeros, and the end of the answer gives the reason.

mod access;
mod frame;
mod payload;

use tracing::Level;

use crate::buf::{AccessError, Leases, Payload};
use crate::error::{Error, ErrorKind};
use crate::limits::{DIRECT_PIECE_MAX, DIRECT_RECEIVE_MIN};
use crate::log::{hold_event, is_logged};
use crate::proto::Host;
use crate::wire::{Capabilities, Decoded, FrameHeader};

use super::receive_state::{PayloadTarget, ReceiveState};
use super::{Connection, Lifecycle};
pub(super) use access::resolve_all;
use access::taken_away;
pub(super) use frame::is_received;

/// The place for the next bytes of the connection, chosen for the transport.
#[derive(Debug)]
pub(crate) enum ReceivePlan {
    /// The connection does not read now.
    Paused,
    /// Into a staging buffer, for [`Connection::handle_stage`].
    Stage,
    /// Into the destination itself: `len` bytes at `offset` of the payload.
    Direct {
        payload: Payload,
        offset: usize,
        len: usize,
        leases: Leases,
        /// Bytes of the frame's payload.
        frame_len: u64,
        /// Bytes of the frame's payload that have not been received.
        frame_left: u64,
    },
}

impl<T> Connection<T> {
    /// Returns where the next bytes are to be placed. Called only when no receive is armed and no
    /// staged bytes are left.
    pub(crate) fn poll_receive(&mut self) -> ReceivePlan {
        if !self.is_reading() || self.fault.is_some() || self.rx.is_paused() {
            return ReceivePlan::Paused;
        }
        let refusals = self.has_refusals();
        let ReceiveState::Payload(transfer) = &mut self.rx else {
            return ReceivePlan::Stage;
        };
        let wanted = usize::try_from(transfer.wanted()).unwrap_or(usize::MAX);
        if wanted < DIRECT_RECEIVE_MIN {
            return ReceivePlan::Stage;
        }
        // Bytes for device memory are staged: only the device's owner copies to it.
        if transfer.payload.as_ref().is_some_and(Payload::is_of_device) {
            return ReceivePlan::Stage;
        }
        let Some(payload) = transfer.payload.take() else {
            return ReceivePlan::Paused;
        };
        match payload.lease() {
            Ok(leases) => {
                let offset = usize::try_from(transfer.done).expect("done ≤ capacity, a usize");
                ReceivePlan::Direct {
                    payload,
                    offset,
                    len: wanted.min(DIRECT_PIECE_MAX),
                    leases,
                    frame_len: transfer.len,
                    frame_left: transfer.len - transfer.done,
                }
            }
            Err(closed) if refusals => {
                transfer.refuse(closed.into());
                ReceivePlan::Stage
            }
            Err(closed) => {
                transfer.payload = Some(payload);
                self.fail(taken_away(closed.into()));
                ReceivePlan::Paused
            }
        }
    }

    /// True while the connection processes bytes of the peer. An acceptor processes the peer's
    /// HELLO at once, but later frames only once it is connected (ruling 9).
    fn is_reading(&self) -> bool {
        // After the end of the stream the socket only reports that end again.
        if self.fault.is_some() || self.close.is_in_order() || self.rx.is_paused() {
            return false;
        }
        match self.lifecycle {
            Lifecycle::Connected => true,
            _ if self.extension.is_refusing() => false,
            Lifecycle::Connecting => true,
            Lifecycle::Accepting => self.extension.is_opening(),
            Lifecycle::Idle | Lifecycle::Closed { .. } => false,
        }
    }

    /// Takes back the buffer of a direct receive, with `len` more bytes (0: canceled).
    pub(crate) fn handle_direct(&mut self, payload: Payload, len: usize, host: &mut impl Host<T>) {
        if let ReceiveState::Payload(transfer) = &mut self.rx {
            debug_assert!(len as u64 <= transfer.wanted());
            transfer.payload = Some(payload);
            transfer.done += len as u64;
            let ours = matches!(
                transfer.target,
                PayloadTarget::Read { .. } | PayloadTarget::ReadData { .. }
            );
            if ours {
                self.work += len as u64;
            }
            self.count_read(len);
        }
        self.complete_payload(host);
        self.invariants();
    }

    /// Processes staged bytes; returns how many were consumed. If fewer than given, the connection
    /// pauses and takes the rest later, has a fault, or its events [are to be published
    /// first](Self::publishes_first).
    pub(crate) fn handle_stage(&mut self, input: &[u8], host: &mut impl Host<T>) -> usize {
        let mut at = 0;
        while at < input.len() && self.is_reading() && !self.publishes_first() {
            match self.consume(&input[at..], host) {
                Ok(n) => at += n,
                Err(error) => self.fail(error),
            }
        }
        self.count_read(at);
        self.invariants();
        at
    }

    /// True if events have to be published before more bytes are processed: a shared receive is
    /// reported as soon as its message has come, but after all earlier events.
    #[inline]
    pub(crate) fn publishes_first(&self) -> bool {
        self.shares_receives() && self.has_events()
    }

    fn count_read(&mut self, n: usize) {
        if let Some(left) = &mut self.last_bytes {
            *left = left.saturating_sub(n as u64);
            self.work += n as u64;
            self.judge_stalled();
        }
    }

    /// Consumes one header, or one piece of a payload, at the front of `input`; returns its length.
    fn consume(&mut self, input: &[u8], host: &mut impl Host<T>) -> Result<usize, Error> {
        if self.lifecycle != Lifecycle::Connected {
            if self.handshake.is_some() {
                return self.consume_handshake(input);
            }
            if self.extension.is_opening() {
                return self.consume_opening(input);
            }
        }
        match &self.rx {
            ReceiveState::Header => self.consume_header(input, host),
            ReceiveState::Payload(_) => self.consume_payload(input, host),
            ReceiveState::Collecting { header } => {
                let len = header.payload_len();
                self.collect_message(len, input, host)
            }
            ReceiveState::AwaitReceive { .. }
            | ReceiveState::AwaitRoom { .. }
            | ReceiveState::AwaitReport(_)
            | ReceiveState::AwaitCommit { .. }
            | ReceiveState::Closed => Ok(0),
        }
    }

    fn consume_header(&mut self, input: &[u8], host: &mut impl Host<T>) -> Result<usize, Error> {
        let mut at = 0;
        loop {
            // 1. Decode the header where it lies.
            let decoded = self.partial.decode(&input[at..], self.byte_order);
            // 2. Fast path: a small message whose payload is here completes a receive, or goes to a
            // stream. Any peer may send messages, until it has sent its CLOSE.
            if let Ok(Decoded::Frame {
                header: FrameHeader::Message { data, ack, len },
                header_len,
                ..
            }) = decoded
                && !self.close.is_received()
                && let Some(len) =
                    self.take_own_message((data, ack, len), &input[at + header_len..], host)
            {
                at += header_len + len;
                if at < input.len() {
                    continue;
                }
            }
            // 3. Any other frame.
            return match at {
                0 => self.consume_any_header(decoded?, input, host),
                at => Ok(at),
            };
        }
    }

    /// Dispatches a decoded header, or collects the bytes of a split one. Out of line, so that the
    /// fast path does not move headers.
    #[inline(never)]
    fn consume_any_header(
        &mut self,
        decoded: Decoded,
        input: &[u8],
        host: &mut impl Host<T>,
    ) -> Result<usize, Error> {
        match decoded {
            Decoded::Frame {
                header, header_len, ..
            } => {
                let behind = &input[header_len..];
                if let Some(len) = self.take_shared_message(&header, behind, host) {
                    return Ok(header_len + len);
                }
                self.dispatch(header, behind.len(), host)?;
                Ok(header_len)
            }
            Decoded::Need(_) => {
                let (taken, header) = self.partial.collect(input, self.byte_order)?;
                if let Some(header) = header {
                    self.dispatch(header, input.len() - taken, host)?;
                }
                Ok(taken)
            }
        }
    }

    /// Begins a frame, if the peer may send it now. `here`: bytes that have come after its header.
    fn dispatch(
        &mut self,
        header: FrameHeader,
        here: usize,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        if is_logged(Level::TRACE) {
            let header = header.clone();
            hold_event(move || tracing::trace!(%header, "received"));
        }
        self.check_agreed(&header)?;
        if self.close.is_received() {
            self.check_closing(&header)?;
        }
        if self.is_collected(&header, here, host) {
            self.rx.go(ReceiveState::Collecting { header });
            return Ok(());
        }
        self.begin_frame(header, host)
    }

    /// Copies bytes of the payload in progress to their destination, and drops those that do not
    /// fit.
    pub(super) fn consume_payload(
        &mut self,
        input: &[u8],
        host: &mut impl Host<T>,
    ) -> Result<usize, Error> {
        let refusals = self.has_refusals();
        let ReceiveState::Payload(transfer) = &mut self.rx else {
            return Ok(0);
        };
        let left = transfer.len - transfer.done;
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let wanted = usize::try_from(transfer.wanted()).unwrap_or(usize::MAX);
        let fits = wanted.min(take);
        if fits > 0 {
            let offset = usize::try_from(transfer.done).expect("done ≤ capacity, a usize");
            let payload = transfer.payload.as_mut();
            let payload = payload.expect("no direct receive is out while staging");
            match payload.copy_in(offset, &input[..fits]) {
                Ok(()) => {}
                Err(closed) if refusals && transfer.is_refusable() => {
                    transfer.refuse(closed.into())
                }
                Err(failed) => {
                    if !self.drop_failed(failed) {
                        return Err(taken_away(failed.into()));
                    }
                }
            }
        }
        if let ReceiveState::Payload(transfer) = &mut self.rx {
            transfer.done += take as u64;
        }
        self.complete_payload(host);
        Ok(take)
    }

    /// Drops the rest of a payload whose memory has failed and belongs to an operation of this
    /// side, so that only this operation ends. Returns false if the memory belongs to a region.
    pub(super) fn drop_failed(&mut self, error: AccessError) -> bool {
        let ReceiveState::Payload(transfer) = &mut self.rx else {
            return false;
        };
        match &mut transfer.target {
            PayloadTarget::Read { op } | PayloadTarget::ReadData { op } => {
                if let Some(op) = self.ops.get_mut(*op) {
                    op.failed = Some(error);
                }
            }
            PayloadTarget::Receive { failed, .. } => *failed = Some(error),
            _ => return false,
        }
        transfer.drop_rest();
        true
    }

    /// Processes changes outside of the connection: receives that were matched with announced
    /// messages, and the frame that a pause holds back, which may now find a posted receive, room
    /// in a completion queue, or room in the queue of answers.
    #[inline]
    pub(crate) fn resume(&mut self, host: &mut impl Host<T>) {
        if self.shares_receives() {
            self.answer_announcements(host);
        }
        let waits = matches!(
            &self.rx,
            ReceiveState::AwaitReceive { .. }
                | ReceiveState::AwaitRoom { .. }
                | ReceiveState::AwaitReport(_)
        );
        if waits && self.fault.is_none() {
            self.resume_frame(host);
        }
    }

    #[inline(never)]
    fn resume_frame(&mut self, host: &mut impl Host<T>) {
        let header = match self.rx.go(ReceiveState::Header) {
            ReceiveState::AwaitReceive { header } | ReceiveState::AwaitRoom { header } => header,
            ReceiveState::AwaitReport(write) => return self.finish_write(write, host),
            _ => return,
        };
        let begun = self.begin_frame(header, host);
        if let Err(error) = begun.and_then(|()| self.place_collected(host)) {
            self.fail(error);
        }
        self.judge_stalled();
    }

    /// True while the connection does not read, for lack of a receive or of room.
    pub(crate) fn is_read_paused(&self) -> bool {
        self.lifecycle == Lifecycle::Connected && self.rx.is_paused()
    }

    /// True until the end of the peer's stream, or a failure of the connection, is known.
    pub(crate) fn may_hear_end(&self) -> bool {
        self.last_bytes.is_none() && self.fault.is_none()
    }

    /// Notes that the peer has sent its last byte; `unread` bytes wait in the socket and in the
    /// staging buffer. A stalled message is stored from now on even beyond the budget, since
    /// `unread` bounds it; a message that can never be complete ends the connection.
    pub(crate) fn handle_last_bytes(&mut self, unread: u64, host: &mut impl Host<T>) {
        self.last_bytes = Some(unread);
        self.resume(host);
        self.judge_stalled();
    }

    /// Ends the connection if its stalled message can never be complete, because the peer's stream
    /// has ended: nothing else reports that end while reading is paused. Called whenever a message
    /// may have stalled.
    fn judge_stalled(&mut self) {
        let (Some(unread), ReceiveState::AwaitReceive { header }) = (self.last_bytes, &self.rx)
        else {
            return;
        };
        // With shared receives a complete message waits for a receive, here or in the socket.
        let is_whole = header.payload_len() <= unread || self.has_collected();
        if self.shares_receives() && is_whole && !matches!(header, FrameHeader::Rts { .. }) {
            return;
        }
        let what = "in the middle of a message";
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }

    /// True while reading is paused although the peer's stream has ended, and progress needs the
    /// peer: an operation of this side waits, whose answer may come after the paused frame, or a
    /// frame of the peer waits for room in the queue of answers.
    pub(crate) fn awaits_ended_peer(&self) -> bool {
        let is_waiting = || match self.rx {
            ReceiveState::AwaitReceive { .. } | ReceiveState::AwaitReport(_) => self.is_sending(),
            ReceiveState::AwaitRoom { .. } => true,
            _ => false,
        };
        self.last_bytes.is_some() && is_waiting()
    }

    /// Handles the end of the stream (the peer's FIN).
    pub(crate) fn handle_end(&mut self) {
        if self.on_end_of_stream() {
            return;
        }
        let what = if self.handshake.is_some() || self.extension.is_opening() {
            "during the handshake"
        } else if !self.is_at_boundary() {
            "in the middle of a frame"
        } else if self.agreed().contains(Capabilities::CLOSE) {
            "its stream ended without the CLOSE of an orderly end, as when its process ends"
        } else {
            "it ended its stream, which is all that a peer without the extension says"
        };
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }
}
