//! Receiving: opens records from the link into the receive of the outer link.

use super::{Channel, ChannelPhase, LinkLoss, LinkReceive};
use crate::buf::{AccessError, Stage};
use crate::error::{Error, ErrorKind};
use crate::limits::TLS_WAKE_BYTES_MIN;
use crate::transport::Receive;
use crate::transport::stream::Submissions;

impl Channel {
    /// Opens records into the armed receive until it is full or no record is left.
    pub(super) fn open_into(&mut self, io: &mut Submissions) {
        if io.armed().is_none() || self.phase == ChannelPhase::Shaking || !self.has_received() {
            return;
        }
        let size_max = io.sizes.receive;
        let mut stage = None;
        let (mut len, mut refused) = (0, None);
        loop {
            if self.session.opened_len() == 0 {
                if !self.session.has_bytes() || self.phase != ChannelPhase::Open {
                    break;
                }
                self.take_in();
                continue;
            }
            if len == 0 && io.armed_direct().is_none() && self.session.opened_len() <= size_max {
                stage = self.session.take_opened();
                if let Some(stage) = &stage {
                    len = stage.len();
                    break;
                }
            }
            let opened = self.session.opened();
            let copied = match io.armed_direct() {
                Some(direct) => {
                    let count = opened.len().min(size_max.min(direct.len as usize) - len);
                    let at = direct.offset + len;
                    let copied = direct.payload.copy_in(at, &opened[..count]);
                    copied.map(|()| count)
                }
                None => {
                    let stage = stage.get_or_insert_with(Stage::take);
                    let room = stage.spare();
                    let count = opened.len().min(room.len()).min(size_max - len);
                    room[..count].copy_from_slice(&opened[..count]);
                    stage.fill(count);
                    Ok(count)
                }
            };
            match copied {
                Ok(0) => break,
                Ok(count) => {
                    self.session.consume(count);
                    len += count;
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        match (len, refused) {
            (0, None) => self.end_receive(io),
            // Bytes that were not taken stay in the session.
            (0, Some(AccessError::Closed(_))) => io.end_cancelled(),
            (0, Some(fault)) => io.fail_receive(fault.error("receiving")),
            (len, _) => io.end_receive(len, stage),
        }
    }

    /// Ends the armed receive, for which there are no bytes, if none will come.
    fn end_receive(&mut self, io: &mut Submissions) {
        if self.phase == ChannelPhase::Open && self.session.is_peer_closed() {
            io.end_stream();
        } else if let Some(error) = self.lost() {
            io.fail_receive(error);
        }
    }

    /// Ends a watch if the peer's end is known already.
    pub(super) fn end_watch(&mut self, io: &mut Submissions) {
        if !io.is_watching() {
            return;
        }
        match &self.loss {
            Some(LinkLoss::Broken(error)) => io.end_watch(error.clone()),
            // A watch reports any end of the stream; a receive finds out whether the peer's session
            // has ended it.
            None if !self.session.is_peer_closed() => {}
            _ => io.end_watch(Error::new(ErrorKind::PeerClosed, "it ended its stream")),
        }
    }

    /// Returns true if a receive can make progress without new bytes from the link.
    pub(in super::super) fn has_received(&self) -> bool {
        self.session.has_bytes()
            || self.loss.is_some()
            || self.session.is_peer_closed()
            || self.session.opened_len() > 0
    }

    /// Registers the waker for a receive or a watch that was submitted, or wakes it.
    pub(in super::super) fn arm(&mut self, io: &Submissions) {
        match self.recv == LinkReceive::Armed || self.has_received() {
            true => io.notify(),
            false => self.arm_link(io),
        }
    }

    /// Submits to the link the receive or watch for which the outer link waits.
    pub(super) fn arm_link(&mut self, io: &Submissions) {
        if self.recv == LinkReceive::Armed || self.loss.is_some() {
            return;
        }
        let wants_bytes = match self.phase {
            ChannelPhase::Shaking => true,
            ChannelPhase::Open => io.armed().is_some(),
            ChannelPhase::Dialing | ChannelPhase::Failed => return,
        };
        if wants_bytes && !self.has_received() {
            self.recv = LinkReceive::Armed;
            self.link.receive(self.link_receive(io));
        } else if io.is_watching() && self.recv == LinkReceive::Idle {
            self.recv = LinkReceive::Watching;
            self.link.watch();
        }
    }

    /// Returns the receive for the link. Sealed bytes are longer than their plaintext, so at least
    /// as many bytes will come as a payload lacks, minus the bytes of a record that are held
    /// already. That holds even if the outer receive is taken back meanwhile; this receive is not.
    fn link_receive(&self, io: &Submissions) -> Receive {
        match io.armed() {
            Some(Receive::Direct(direct))
                if self.phase == ChannelPhase::Open && direct.wake_bytes >= TLS_WAKE_BYTES_MIN =>
            {
                let held = self.session.unread_len() as u32;
                let wake_bytes = direct.wake_bytes.saturating_sub(held).max(1);
                Receive::StageOf { wake_bytes }
            }
            _ => Receive::Stage,
        }
    }

    /// Tries the link's receive without asking for readiness.
    pub(in super::super) fn try_receive(&mut self, io: &mut Submissions) {
        if let Some(outcome) = self.link.try_receive() {
            self.handle_outcome(outcome, io);
            self.open_into(io);
            self.arm_link(io);
            if self.session.has_records() {
                // The session has its own answer to send. The next poll sends it.
                io.notify();
            }
        }
    }

    /// Returns the number of bytes that no receive has taken; sealed bytes are counted with the
    /// overhead of their records.
    pub(in super::super) fn unread_bytes(&self) -> usize {
        self.link.unread_bytes() + self.session.unread_len()
    }

    /// Returns the error of a receive for which no more bytes come.
    pub(super) fn lost(&self) -> Option<Error> {
        if let LinkLoss::Broken(error) = self.loss.as_ref()? {
            return Some(error.clone());
        }
        let (kind, what) = match self.phase {
            ChannelPhase::Open => (
                ErrorKind::ConnectionReset,
                "TLS: the stream was cut: its end is not the peer's word (close_notify)",
            ),
            _ => (
                ErrorKind::PeerClosed,
                "TLS: the peer ended the connection within the handshake, as one without TLS does",
            ),
        };
        Some(Error::new(kind, what))
    }
}
