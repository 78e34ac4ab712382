//! From received bytes to frames, and from a frame to where its payload lands.
//!
//! This file takes bytes in, [`frame`] tells what each frame means, [`payload`] ends what a payload
//! belongs to when it is whole. What a message is matched with is in [`message`] (receives of the
//! connection's own) and in `shared.rs` (those that the connections of an endpoint share);
//! [`access`] resolves the memory that a peer's RMA names.

mod access;
mod frame;
mod message;
mod payload;

use crate::buf::{Leases, Payload};
use crate::error::{Error, ErrorKind};
use crate::limits::{DIRECT_PIECE_MAX, DIRECT_RECEIVE_MIN};
use crate::proto::Host;
use crate::wire::{Capabilities, Decoded, FrameHeader};

use super::rx::{Rx, Target};
use super::{Connection, Lifecycle};
pub(super) use access::resolve_all;
use access::taken_away;
pub(super) use message::zeroed;

/// Where the next bytes of the connection shall go.
#[derive(Debug)]
pub(crate) enum ReceivePlan {
    /// Nowhere: the connection does not read now.
    Paused,
    /// Into a staging buffer, to be fed to [`Connection::handle_stage`].
    Stage,
    /// Straight into memory: `len` bytes at `offset` of the payload.
    Direct {
        payload: Payload,
        offset: usize,
        len: usize,
        leases: Leases,
    },
}

impl<T> Connection<T> {
    /// Where the next bytes shall land. Called only when nothing is armed and no staged bytes are
    /// left.
    pub(crate) fn poll_receive(&mut self) -> ReceivePlan {
        if !self.is_reading() || self.fault.is_some() || self.rx.is_paused() {
            return ReceivePlan::Paused;
        }
        let refusals = self.has_refusals();
        let Rx::Payload(landing) = &mut self.rx else {
            return ReceivePlan::Stage;
        };
        let wanted = usize::try_from(landing.wanted()).unwrap_or(usize::MAX);
        if wanted < DIRECT_RECEIVE_MIN {
            return ReceivePlan::Stage;
        }
        let Some(payload) = landing.payload.take() else {
            return ReceivePlan::Paused;
        };
        match payload.lease() {
            Ok(leases) => {
                let offset = usize::try_from(landing.done).expect("done ≤ capacity, a usize");
                ReceivePlan::Direct {
                    payload,
                    offset,
                    len: wanted.min(DIRECT_PIECE_MAX),
                    leases,
                }
            }
            Err(closed) if refusals => {
                landing.refuse(closed.into());
                ReceivePlan::Stage
            }
            Err(closed) => {
                landing.payload = Some(payload);
                self.fail(taken_away(closed.into()));
                ReceivePlan::Paused
            }
        }
    }

    /// True while bytes of the peer are looked at. An acceptor waits for its HELLO, and looks at
    /// nothing behind it until it is connected (ruling 9).
    fn is_reading(&self) -> bool {
        // Behind the end of the stream comes only that end again, for ever.
        if self.fault.is_some() || self.ending.is_done() || self.rx.is_paused() {
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

    /// The transport gives a direct receive back after `len` more bytes landed (0: cancelled).
    pub(crate) fn handle_direct(&mut self, payload: Payload, len: usize, host: &mut impl Host<T>) {
        if let Rx::Payload(landing) = &mut self.rx {
            debug_assert!(len as u64 <= landing.wanted());
            landing.payload = Some(payload);
            landing.done += len as u64;
            let ours = matches!(
                landing.target,
                Target::Read { .. } | Target::ReadData { .. }
            );
            if ours {
                self.ending.work += len as u64;
            }
            self.count_read(len);
        }
        self.finish_landing(host);
        self.invariants();
    }

    /// Feeds received bytes; returns how many were consumed. Fewer than given means that the
    /// connection pauses (or is faulty) and wants the rest later.
    pub(crate) fn handle_stage(&mut self, input: &[u8], host: &mut impl Host<T>) -> usize {
        let mut at = 0;
        while at < input.len() && self.is_reading() {
            match self.consume(&input[at..], host) {
                Ok(n) => at += n,
                Err(error) => self.fail(error),
            }
        }
        self.count_read(at);
        self.invariants();
        at
    }

    fn count_read(&mut self, n: usize) {
        if let Some(left) = &mut self.last_bytes {
            *left = left.saturating_sub(n as u64);
        }
    }

    /// Takes what comes next from the front of `input`; tells how many bytes that was.
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
            Rx::Header => self.consume_header(input, host),
            Rx::Payload(_) => self.consume_payload(input, host),
            Rx::AwaitReceive { .. }
            | Rx::AwaitRoom { .. }
            | Rx::AwaitCommit { .. }
            | Rx::Closed => Ok(0),
        }
    }

    fn consume_header(&mut self, input: &[u8], host: &mut impl Host<T>) -> Result<usize, Error> {
        // 1. The header, mostly whole in the input; what is there of another is kept.
        let (taken, header) = match self.partial.decode(input, self.order)? {
            Decoded::Frame {
                header, header_len, ..
            } => (header_len, header),
            Decoded::Need(_) => match self.partial.collect(input, self.order)? {
                (taken, Some(header)) => (taken, header),
                (taken, None) => return Ok(taken),
            },
        };
        tracing::trace!(%header, "received");
        // 2. Whether the peer may say this now.
        self.check_agreed(&header)?;
        if self.ending.is_peer_closing() {
            self.check_closing(&header)?;
        }
        // 3. A small message is there with its bytes, and ends its receive.
        if let FrameHeader::Message { data, ack, len } = header
            && let Some(landed) = self.take_whole_message(data, ack, len, &input[taken..])?
        {
            return Ok(taken + landed);
        }
        // 4. Anything else takes further steps.
        self.begin_frame(header, host)?;
        Ok(taken)
    }

    /// Copies what belongs to the payload in progress to where it shall land, and drops what does
    /// not fit there.
    fn consume_payload(&mut self, input: &[u8], host: &mut impl Host<T>) -> Result<usize, Error> {
        let refusals = self.has_refusals();
        let Rx::Payload(landing) = &mut self.rx else {
            return Ok(0);
        };
        let left = landing.len - landing.done;
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let wanted = usize::try_from(landing.wanted()).unwrap_or(usize::MAX);
        let fits = wanted.min(take);
        if fits > 0 {
            let offset = usize::try_from(landing.done).expect("done ≤ capacity, a usize");
            let payload = landing.payload.as_mut();
            let payload = payload.expect("no direct receive is out while staging");
            match payload.copy_in(offset, &input[..fits]) {
                Ok(()) => {}
                Err(closed) if refusals && landing.is_refusable() => landing.refuse(closed.into()),
                Err(closed) => return Err(taken_away(closed.into())),
            }
        }
        landing.done += take as u64;
        self.finish_landing(host);
        Ok(take)
    }

    /// Takes up what happened outside since: receives that were matched with announced messages,
    /// and what a pause waits for: a posted receive, room in a completion queue, room in the queue
    /// of answers.
    pub(crate) fn resume(&mut self, host: &mut impl Host<T>) {
        self.answer_announcements(host);
        let waits = matches!(&self.rx, Rx::AwaitReceive { .. } | Rx::AwaitRoom { .. });
        if !waits || self.fault.is_some() {
            return;
        }
        let (Rx::AwaitReceive { header } | Rx::AwaitRoom { header }) = self.rx.go(Rx::Header)
        else {
            return;
        };
        if let Err(error) = self.begin_frame(header, host) {
            self.fail(error);
        }
    }

    /// True while reading is paused for want of a receive or of room.
    pub(crate) fn is_read_paused(&self) -> bool {
        self.lifecycle == Lifecycle::Connected && self.rx.is_paused()
    }

    /// The peer has sent its last byte, and `unread` bytes of it wait in the socket and in staging.
    /// A message that waits for a receive is now kept whatever the budget says, since what the
    /// socket holds bounds it; one that can never be whole ends the connection.
    pub(crate) fn handle_last_bytes(&mut self, unread: u64, host: &mut impl Host<T>) {
        self.last_bytes = Some(unread);
        self.resume(host);
        if let Rx::AwaitReceive { header } = &self.rx {
            // Where receives are shared one that is whole waits for its own, in the socket.
            let is_whole = header.payload_len() <= unread;
            if self.shares_receives() && is_whole && !matches!(header, FrameHeader::Rts { .. }) {
                return;
            }
            self.fail(Error::new(
                ErrorKind::PeerClosed,
                "in the middle of a message",
            ));
        }
    }

    /// The stream ended (the peer's FIN).
    pub(crate) fn handle_end(&mut self) {
        if self.end_is_in_order() {
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
