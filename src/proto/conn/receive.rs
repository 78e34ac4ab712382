//! From received bytes to frames, and from frames to placed payloads.
//!
//! This file consumes bytes; [`frame`] dispatches headers; [`payload`] completes what a payload
//! belongs to when it is whole. A message is matched in `messages.rs`; [`access`] resolves the
//! memory that a peer's RMA names.
//!
//! The driver asks the machine for a `ReceivePlan` after each outcome: *stage* (read into a
//! 64 KiB buffer and feed it to the machine), *direct* (read straight into the posted buffer or the
//! region, for what is large), or *paused* (there is no room: the socket fills, and the peer
//! stops). A header is checked in full by `wire` before a field of it is used.
//!
//! A message lands in the oldest posted receive, or in the bounded store of unexpected messages. A
//! peer of this library sends no more than that takes (`credit.rs`), and its RMA overtakes the
//! messages that it holds back. A write or read names a key: `mr/table.rs` finds the region or
//! refuses. The region's gate (`sync/gate.rs`) is entered for each system call or copy, not for the
//! whole transfer, so revoking a region does not depend on the peer.
//!
//! Between two endpoints of this library every write is answered, by an ack or by its refusal; the
//! acks of a turn are one frame. A read's answer goes out in parts (`answer.rs`). A part whose
//! region was revoked is completed with zeros, and the end of the answer says why.

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

/// Where the transport is to place the next bytes of the connection.
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
        // Bytes for a device are staged: only its owner copies to it.
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
    /// HELLO, and what follows it only once it is connected (ruling 9).
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
            Lifecycle::Idle | Lifecycle::Closed => false,
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

    /// Processes staged bytes; returns how many were consumed. Fewer than given means that the
    /// connection pauses and takes the rest later, that it is faulty, or that its events [are to be
    /// published first](Self::publishes_first).
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

    /// True if events are to be published before more bytes are processed: a shared receive is
    /// reported as soon as its message has come, and not before what came earlier.
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
            let decoded = self.partial.decode(&input[at..], self.byte_order)?;
            // 2. Fast path: small messages that are here with their payloads complete receives, or
            // go to a stream. Any peer may send messages, until it has sent its CLOSE.
            if let Decoded::Frame {
                header: FrameHeader::Message { data, ack, len },
                header_len,
                ..
            } = decoded
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
                0 => self.consume_any_header(decoded, input, host),
                at => Ok(at),
            };
        }
    }

    /// Dispatches a decoded header, or collects the bytes of one that is split. Out of line, so
    /// that the fast path does not move headers about.
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

    /// Begins a frame, if the peer may send it now. `here` bytes behind its header have come.
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

    /// Copies the bytes of the payload in progress to its destination, and drops what does not fit.
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

    /// Drops the rest of a payload whose memory has failed and is that of an operation of ours, so
    /// that only this operation ends. Returns false if it is that of a region.
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

    /// Processes what has changed outside: receives that were matched with announced messages, and
    /// the frame that a pause holds back, which may now find a posted receive, room in a completion
    /// queue, or room in the queue of answers.
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

    /// The peer has sent its last byte; `unread` bytes wait in the socket and in the staging
    /// buffer. A stalled message is stored from now on even beyond the budget, since `unread`
    /// bounds it; a message that can never be whole ends the connection.
    pub(crate) fn handle_last_bytes(&mut self, unread: u64, host: &mut impl Host<T>) {
        self.last_bytes = Some(unread);
        self.resume(host);
        self.judge_stalled();
    }

    /// Ends the connection if its message has stalled and cannot become whole, because the peer's
    /// stream has ended: nothing else reports that end while reading is paused. Called whenever a
    /// message may have stalled.
    fn judge_stalled(&mut self) {
        let (Some(unread), ReceiveState::AwaitReceive { header }) = (self.last_bytes, &self.rx)
        else {
            return;
        };
        // With shared receives a whole message waits for a receive, here or in the socket.
        let is_whole = header.payload_len() <= unread || self.has_collected();
        if self.shares_receives() && is_whole && !matches!(header, FrameHeader::Rts { .. }) {
            return;
        }
        let what = "in the middle of a message";
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }

    /// True while reading is paused although the peer's stream has ended, and something waits for
    /// the peer: an operation of this side, whose answer may lie behind the pause, or a frame of
    /// the peer, for room in the queue of answers.
    pub(crate) fn awaits_ended_peer(&self) -> bool {
        let is_waiting = || match self.rx {
            ReceiveState::AwaitReceive { .. } | ReceiveState::AwaitReport(_) => self.is_sending(),
            ReceiveState::AwaitRoom { .. } => true,
            _ => false,
        };
        self.last_bytes.is_some() && is_waiting()
    }

    /// The stream ended (the peer's FIN).
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
