//! The exchange of CLOSE: each side sends everything that it has accepted, gets its answers, and
//! sends CLOSE. After both CLOSEs it ends its stream; the end of the peer's stream then proves that
//! the peer has received everything. `docs/extension.md`, section 7, is the specification.
//!
//! ```text
//!             CLOSE sent             CLOSE received
//!   None ─────────────────▶ Sent ────────────────────┐
//!     │    CLOSE received             CLOSE sent     ▼         peer's end of stream
//!     └──────────────────▶ Received ───────────▶ Exchanged ──────────────────────────▶ InOrder
//! ```
//! Our CLOSE is due once this side has requested the end, or the peer's CLOSE has come. A new
//! connection begins with None again.

use crate::buf::Payload;
use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::op::OpKey;
use crate::wire::{Capabilities, CloseReason, FrameHeader};

use super::{Connection, Lifecycle, violation};

/// The progress of the exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proto) enum CloseExchange {
    #[default]
    None,
    /// Our CLOSE is queued, or has gone out.
    Sent,
    /// The peer's CLOSE has come: the peer posts no more operations.
    Received,
    /// Our CLOSE is queued or has gone out, and the peer's CLOSE has come.
    Exchanged,
    /// The peer has ended its stream after both CLOSEs.
    InOrder,
}

state_machine! { CloseExchange {
    None => [Sent, Received],
    Sent => [Exchanged],
    Received => [Exchanged],
    Exchanged => [InOrder],
    InOrder => [],
}}

/// The state of the exchange, and whether this side wants the end.
#[derive(Debug, Default)]
pub(super) struct CloseState {
    exchange: CloseExchange,
    /// This side has requested the end, even if the peer's CLOSE came first.
    is_requested: bool,
}

impl CloseState {
    /// Notes that this side wants to end.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    pub(super) fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Notes that our CLOSE is queued.
    fn on_sent(&mut self) {
        debug_assert!(self.is_due(), "it is requested, by either side");
        self.go(match self.exchange {
            CloseExchange::Received => CloseExchange::Exchanged,
            _ => CloseExchange::Sent,
        });
    }

    /// Notes that the peer's CLOSE has come.
    fn on_received(&mut self) {
        self.go(match self.exchange {
            CloseExchange::Sent => CloseExchange::Exchanged,
            _ => CloseExchange::Received,
        });
    }

    /// True if our CLOSE is to be sent as soon as nothing is outstanding.
    fn is_due(&self) -> bool {
        (self.is_requested || self.is_received()) && !self.is_sent()
    }

    /// True if our CLOSE is queued, or has gone out.
    pub(super) fn is_sent(&self) -> bool {
        use CloseExchange::{Exchanged, InOrder, Sent};
        matches!(self.exchange, Sent | Exchanged | InOrder)
    }

    /// True if the peer posts no more operations.
    pub(super) fn is_received(&self) -> bool {
        use CloseExchange::{Exchanged, InOrder, Received};
        matches!(self.exchange, Received | Exchanged | InOrder)
    }

    fn is_exchanged(&self) -> bool {
        self.is_sent() && self.is_received()
    }

    /// True if both sides have received everything from each other.
    pub(super) fn is_in_order(&self) -> bool {
        self.exchange == CloseExchange::InOrder
    }

    /// Moves along a legal edge.
    fn go(&mut self, to: CloseExchange) {
        check_edge(&self.exchange, &to);
        self.exchange = to;
    }
}

impl<T> Connection<T> {
    /// Requests the end: no more operations are posted for transmission, and messages that waited
    /// for the next connection end.
    pub(crate) fn request_close(&mut self) {
        self.close.request();
        for key in self.tx.drain_carried_over() {
            self.fail_unreceived(key);
        }
    }

    /// Ends an operation that the closing peer will not take: a message, or an operation that may
    /// not overtake a message.
    pub(super) fn fail_unreceived(&mut self, key: OpKey) {
        let error = match self.ops.get(key).is_some_and(|op| op.is_message()) {
            true => no_receive(),
            false => Error::new(ErrorKind::PeerClosed, "before it had come to this"),
        };
        self.complete_unsent(key, error);
    }

    /// Ends an operation whose frame does not go out.
    pub(super) fn complete_unsent(&mut self, key: OpKey, error: Error) {
        self.complete(key, Err(error), 0);
    }

    /// True if the closing peer has no receive for some messages. They go over the next connection
    /// ([`reset_attempt`](Self::reset_attempt)), with all that is posted from now on.
    pub(crate) fn has_carried_over(&self) -> bool {
        self.tx.carried_over().is_some()
    }

    /// Progress counter: grows while the operations accepted here come nearer to their ends. No
    /// action that a peer can repeat without end increases it.
    pub(crate) fn work(&self) -> u64 {
        self.tx.work + self.work
    }

    /// True if the peer takes part in the exchange of CLOSE.
    pub(crate) fn knows_close(&self) -> bool {
        self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
            && !self.is_ending_for_cause()
    }

    /// True if the connection may be closed for being idle. A message that crosses the CLOSE is
    /// then not lost, since a sender without credit keeps it for the next connection.
    pub(crate) fn may_end_idle(&self) -> bool {
        let agreed = self.agreed().contains(Capabilities::CREDIT);
        self.knows_close() && agreed && self.is_at_boundary() && !self.awaits_data()
    }

    /// True if both CLOSEs have been sent and ours is out: the owner is to end the stream.
    pub(crate) fn is_close_exchanged(&self) -> bool {
        self.close.is_exchanged() && self.tx.is_idle()
    }

    /// True if the peer has ended its stream after both CLOSEs: neither side has anything left to
    /// send.
    pub(crate) fn is_closed_in_order(&self) -> bool {
        self.close.is_in_order()
    }

    /// True if the peer posts no more operations, so that this side may not post any either.
    pub(crate) fn is_peer_closing(&self) -> bool {
        self.close.is_received()
    }

    /// Handles the end of the peer's stream; returns whether it came in order, after both CLOSEs.
    /// An end before our CLOSE was handed out is not in order: the peer cannot have our CLOSE yet.
    pub(super) fn on_end_of_stream(&mut self) -> bool {
        if self.close.exchange == CloseExchange::Exchanged && !self.tx.has_queued_close() {
            self.close.go(CloseExchange::InOrder);
        }
        self.close.is_in_order()
    }

    pub(super) fn handle_close(&mut self) -> Result<(), Error> {
        if self.awaits_data() {
            return Err(violation("a last frame before data that was asked for"));
        }
        self.close.on_received();
        for overtaken in self.tx.drain_overtaken() {
            self.fail_unreceived(overtaken.op);
        }
        self.sort_out_waiting();
        Ok(())
    }

    /// Sorts the operations that are queued for a closing peer. The peer takes those that it has
    /// room for, and asks for no others. The others go over the next connection, or end. Called at
    /// the peer's CLOSE, and for every operation that is admitted after it.
    pub(super) fn sort_out_waiting(&mut self) {
        if self.has_carried_over() {
            return; // Operations admitted since have joined the carried-over ones.
        }
        // The peer may have closed because it was idle.
        let may_carry_over = self.is_connectionless() && !self.close.is_requested();
        let ops = &mut self.ops;
        let put_back = |key| {
            if let Some(op) = ops.get_mut(key) {
                op.phase = Phase::Queued;
            }
        };
        if may_carry_over && self.tx.carry_over(put_back) {
            return;
        }
        let (waiting, injected) = self.tx.drain_waiting(no_receive());
        self.injected_ended(injected);
        for key in waiting {
            self.fail_unreceived(key);
        }
        self.end_announced();
    }

    /// Refuses frames that may not follow a CLOSE.
    pub(super) fn check_closing(&self, header: &FrameHeader) -> Result<(), Error> {
        let asks = matches!(
            header,
            FrameHeader::Message { .. }
                | FrameHeader::Tagged { .. }
                | FrameHeader::Rts { .. }
                | FrameHeader::Cts { .. }
                | FrameHeader::Data { .. }
                | FrameHeader::Withdraw { .. }
                | FrameHeader::ReadRequest { .. }
                | FrameHeader::Write { .. }
                | FrameHeader::Atomic { .. }
                | FrameHeader::Stalled { .. }
                | FrameHeader::Close { .. }
        );
        if self.close.is_received() && asks {
            return Err(violation("a frame behind the last one"));
        }
        Ok(())
    }

    /// True if the next frame is a CLOSE, which is not queued yet.
    pub(crate) fn wants_close(&self) -> bool {
        match self.is_ending_for_cause() {
            true => self.owes_reason() && self.tx.is_idle(),
            false => self.is_close_due(),
        }
    }

    /// True if our CLOSE is due: either side wants to end, and nothing is outstanding.
    fn is_close_due(&self) -> bool {
        self.close.is_due()
            && self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
            && match self.tx.carried_over() {
                None => self.tx_context.used == 0 && self.is_transmit_drained(),
                Some(carried_over) => self.tx_context.used == carried_over && self.tx.is_idle(),
            }
    }

    /// Queues our CLOSE when it is due.
    pub(super) fn queue_close_if_due(&mut self, host: &mut impl Host<T>) {
        if !self.wants_close() {
            return;
        }
        if self.is_ending_for_cause() {
            self.push_close(self.close_reason());
            self.refusals.is_reason_sent = true;
            return;
        }
        // At our CLOSE the peer ends its announced messages that no receive awaits.
        if let Some(binding) = self.binding_mut() {
            binding.incoming.forget_announced();
        }
        if let Some(shared) = host.shared() {
            shared.forget_announcements();
        }
        self.close.on_sent();
        self.push_close(CloseReason::Done);
    }

    /// Queues a CLOSE. It is not a user frame, since a fence that goes over the next connection
    /// must not hold the CLOSE back.
    fn push_close(&mut self, reason: CloseReason) {
        let header = FrameHeader::Close { reason };
        self.tx.push_control(header, Payload::empty());
    }
}

/// Error of a message that the closing peer does not take.
fn no_receive() -> Error {
    Error::new(ErrorKind::NoReceive, "the peer closed before it had one")
}
