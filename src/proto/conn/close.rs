//! The agreed end of a connection: each side sends all it has accepted, hears what became of it,
//! and says CLOSE; after both it ends its stream. The peer's end of stream then proves that it has
//! seen everything. `docs/extension.md`, section 7, is the specification.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::op::OpKey;
use crate::wire::{Capabilities, CloseReason, FrameHeader};

use super::{Connection, Lifecycle, violation};

/// How far the agreed end has come.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// This side wants to end.
    wanted: bool,
    /// Our CLOSE is on its way.
    ours: bool,
    /// The peer's CLOSE has come.
    theirs: bool,
    /// The peer's stream has ended after both.
    done: bool,
    /// Bytes that reads of ours have got, and operations that have ended.
    pub(super) work: u64,
}

impl Ending {
    /// This side began, or began too.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Our CLOSE is on its way, or has gone.
    pub(super) fn is_said(&self) -> bool {
        self.ours
    }

    /// Both sides have seen everything of each other.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Another connection follows this one.
    pub(super) fn begin_again(&mut self) {
        *self = Ending {
            work: self.work,
            ..Ending::default()
        };
    }

    /// The peer posts nothing any more.
    pub(super) fn is_peer_closing(&self) -> bool {
        self.theirs
    }
}

impl<T> Connection<T> {
    /// This side wants to end: nothing is posted for transmission any more.
    pub(crate) fn begin_end(&mut self) {
        self.ending.wanted = true;
        for key in self.tx.drain_carried_over() {
            self.end_untaken(key);
        }
    }

    /// Ends a message that the peer, who closes, will not take.
    pub(super) fn end_untaken(&mut self, key: OpKey) {
        let error = Error::new(ErrorKind::PeerClosed, "before it had a receive for this");
        self.end_unsent(key, error);
    }

    /// Ends an operation whose frame does not go out.
    pub(super) fn end_unsent(&mut self, key: OpKey, error: Error) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let payload = op.take_payload();
        self.end_op(key, Err(error), 0, payload);
    }

    /// True if there are messages that the peer, who closes, has no receive for: they go over the
    /// next connection ([`begin_again`](Self::begin_again)), with all that is posted from now on.
    pub(crate) fn has_carried_over(&self) -> bool {
        self.tx.carried_over().is_some()
    }

    /// Grows as long as the operations accepted here come nearer to their ends, and by nothing that
    /// a peer can go on with for ever.
    pub(crate) fn work(&self) -> u64 {
        self.tx.work + self.ending.work
    }

    /// True if the peer knows an agreed end.
    pub(crate) fn knows_end(&self) -> bool {
        self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
            && !self.has_had_enough()
    }

    /// Both sides have said CLOSE, and ours is out: the stream is to be ended.
    pub(crate) fn is_end_agreed(&self) -> bool {
        self.ending.ours && self.ending.theirs && self.tx.is_idle()
    }

    /// The peer has ended its stream after that: nothing is left to be said or heard.
    pub(crate) fn is_end_done(&self) -> bool {
        self.ending.done
    }

    /// The peer posts nothing any more, and this side may not either.
    pub(crate) fn is_peer_closing(&self) -> bool {
        self.ending.theirs
    }

    /// The stream ended. `true`: as it should, behind both CLOSEs. The peer cannot have ours before
    /// it was handed out.
    pub(super) fn end_is_in_order(&mut self) -> bool {
        let is_said = self.ending.ours && !self.tx.has_queued_close();
        self.ending.done = is_said && self.ending.theirs;
        self.ending.done
    }

    pub(super) fn handle_close(&mut self) -> Result<(), Error> {
        if self.awaits_data() {
            return Err(violation("a last frame before data that was asked for"));
        }
        self.ending.theirs = true;
        for overtaken in self.tx.drain_overtaken() {
            self.end_untaken(overtaken.op);
        }
        self.sort_out_waiting();
        Ok(())
    }

    /// Of what is queued, the peer that closes takes in what it has room for, and asks for nothing
    /// more: the rest goes over the next connection, or ends. Called at its CLOSE, and for all that
    /// is admitted from then on.
    pub(super) fn sort_out_waiting(&mut self) {
        if self.has_carried_over() {
            return; // What has been admitted since has joined it.
        }
        // It may be idle only.
        let may_carry_over = self.shares_receives() && !self.ending.wanted;
        let ops = &mut self.ops;
        let put_back = |key| {
            if let Some(op) = ops.get_mut(key) {
                op.phase = Phase::Queued;
            }
        };
        if may_carry_over && self.tx.carry_over(put_back) {
            return;
        }
        let (waiting, injected) = self.tx.drain_waiting();
        self.injected_ended(injected);
        for key in waiting {
            self.end_untaken(key);
        }
        self.end_announced();
    }

    /// Refuses what may not follow a CLOSE.
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
        if self.ending.theirs && asks {
            return Err(violation("a frame behind the last one"));
        }
        Ok(())
    }

    /// True if our CLOSE is due: this side wants to end, or the peer does, and nothing is
    /// outstanding.
    pub(crate) fn wants_end(&self) -> bool {
        let is_due = (self.ending.wanted || self.ending.theirs) && !self.ending.ours;
        is_due
            && self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
            && match self.tx.carried_over() {
                None => self.transmit.used == 0 && self.is_transmit_drained(),
                Some(carried_over) => self.transmit.used == carried_over && self.tx.is_idle(),
            }
    }

    /// Queues our CLOSE when it is due.
    pub(super) fn tell_end(&mut self, host: &mut impl Host<T>) {
        if self.owes_reason() && self.tx.is_idle() {
            self.push_close(CloseReason::Refusals);
            self.refusals.is_reason_sent = true;
        }
        if !self.wants_end() || self.has_had_enough() {
            return;
        }
        // What the peer has announced and nothing awaits: it ends that when it sees our CLOSE.
        if let Some(binding) = self.binding_mut() {
            binding.incoming.forget_kept();
        }
        if let Some(shared) = host.shared() {
            shared.forget_announcements();
        }
        self.ending.ours = true;
        self.push_close(CloseReason::Done);
    }

    /// Not a user frame: a fence that goes over the next connection must not hold it back.
    fn push_close(&mut self, reason: CloseReason) {
        let header = FrameHeader::Close { reason };
        self.tx.push_control(header, Payload::empty());
    }
}
