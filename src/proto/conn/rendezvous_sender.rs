//! Rendezvous, the sender's half: a message for which the receiver cannot promise room is announced
//! (RTS), and its payload stays here until the receiver has matched a receive with it (CTS).
//!
//! ```text
//!                 CTS              DATA is handed out
//!   Free ──RTS──▶ Announced ──▶ Requested ──▶ Free
//!                  │ │ │           ▲
//!                  │ │ │ given up, and the peer has no WITHDRAW
//!                  │ │ └─▶ GivenUp ┘ CTS
//!                  │ │ WITHDRAW
//!                  │ └─▶ Withdrawn ──WITHDRAWN──▶ Free
//!                  │         └──a CTS crossed it──▶ Crossed ──WITHDRAWN──▶ Free
//!                  │  Requested ──WITHDRAW: its memory fails──▶ Crossed
//!                  └─▶ Free: the peer closes; GivenUp likewise
//! ```
//! A message that is given up is withdrawn, and its memory is free at once. A peer without the
//! WITHDRAW capability still gets the message when it asks for it.
//!
//! Invariant: an index names one message from its RTS until its DATA is handed out, or until the
//! peer has confirmed the withdrawal.

use crate::buf::Payload;
use crate::edges::{check_edge, state_machine};
use crate::error::Error;
use crate::proto::op::OpKey;
use crate::wire::{FrameHeader, INDEX_MAX, INDEX_MIN};

use super::tx::{Queued, QueuedKind};
use super::{Connection, violation};

/// The policy that decides which messages are announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct RendezvousPolicy {
    /// The peer takes announcements of tagged messages.
    pub(super) tagged: bool,
    /// The peer takes announcements of untagged messages.
    pub(super) untagged: bool,
    /// The peer takes withdrawals.
    pub(super) withdraws: bool,
    /// Messages longer than this are announced.
    pub(super) min: u64,
}

/// The message of one rendezvous index.
#[derive(Clone, Copy, Debug)]
enum OutgoingMessage {
    Free,
    Announced(Queued),
    GivenUp(Queued),
    Requested,
    Withdrawn,
    Crossed,
}

// A new attempt begins with new [`OutgoingAnnouncements`].
state_machine! { OutgoingMessage {
    Free => [Announced],
    Announced => [Requested, GivenUp, Withdrawn, Free],
    GivenUp => [Requested, Free],
    Requested => [Free, Crossed],
    Withdrawn => [Crossed, Free],
    Crossed => [Free],
}}

impl OutgoingMessage {
    /// Moves along a legal edge.
    fn go(&mut self, to: OutgoingMessage) {
        check_edge(self, &to);
        *self = to;
    }

    /// The message, while the peer may still ask for it.
    fn announced(&self) -> Option<&Queued> {
        match self {
            OutgoingMessage::Announced(message) | OutgoingMessage::GivenUp(message) => {
                Some(message)
            }
            _ => None,
        }
    }
}

/// The announced messages of a connection, by index. At most 254, the number of indices.
#[derive(Debug)]
pub(super) struct OutgoingAnnouncements {
    policy: RendezvousPolicy,
    /// The messages by index, from [`INDEX_MIN`] on.
    messages: Vec<OutgoingMessage>,
}

impl OutgoingAnnouncements {
    pub(super) fn new(policy: RendezvousPolicy) -> Self {
        OutgoingAnnouncements {
            policy,
            messages: Vec::new(),
        }
    }

    /// True if this message has to be announced. `stored_max`: length of the longest unexpected
    /// message that the peer stores.
    pub(super) fn needs_announcement(&self, message: &Queued, stored_max: u64) -> bool {
        let is_long = message.len as u64 > self.policy.min.min(stored_max);
        (is_long || message.matched) && self.takes(message.kind)
    }

    /// True if the peer takes announcements of messages of this kind.
    pub(super) fn takes(&self, kind: QueuedKind) -> bool {
        match kind {
            QueuedKind::Message => self.policy.untagged,
            QueuedKind::Tagged => self.policy.tagged,
            QueuedKind::Rma => false,
        }
    }

    fn find_free(&self) -> Option<usize> {
        let is_free = |it: &OutgoingMessage| matches!(it, OutgoingMessage::Free);
        let at = self.messages.iter().position(is_free);
        let at = at.unwrap_or(self.messages.len());
        (at <= usize::from(INDEX_MAX - INDEX_MIN)).then_some(at)
    }

    /// True if an index is free.
    pub(super) fn has_room(&self) -> bool {
        self.find_free().is_some()
    }

    /// True if messages that were given up occupy indices, perhaps until the connection ends.
    pub(super) fn has_given_up(&self) -> bool {
        let is_given_up = |it: &OutgoingMessage| matches!(it, OutgoingMessage::GivenUp(_));
        self.messages.iter().any(is_given_up)
    }

    /// Returns the position of this operation's message, while the peer may still ask for it.
    /// Searches all indices.
    fn find(&self, op: OpKey) -> Option<usize> {
        let is_it = |it: &OutgoingMessage| it.announced().is_some_and(|it| it.op == op);
        self.messages.iter().position(is_it)
    }

    /// Withdraws a message that the peer has not asked for; returns its index, for the WITHDRAW.
    /// `None`: the peer takes no withdrawals, or has asked for the message.
    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<u8> {
        let at = self.find(op)?;
        let slot = self.messages.get_mut(at)?;
        if self.policy.withdraws {
            slot.go(OutgoingMessage::Withdrawn);
            return Some(INDEX_MIN + at as u8); // at most INDEX_MAX
        }
        if let OutgoingMessage::Announced(message) = *slot {
            slot.go(OutgoingMessage::GivenUp(message));
        }
        None
    }

    /// Assigns an index to an announced message. Call [`has_room`](Self::has_room) before.
    pub(super) fn announce(&mut self, message: Queued) -> u8 {
        let at = self.find_free().expect("the caller has checked for room");
        if at == self.messages.len() {
            self.messages.push(OutgoingMessage::Free);
        }
        self.messages[at].go(OutgoingMessage::Announced(message));
        INDEX_MIN + at as u8 // at most INDEX_MAX
    }

    fn slot(&mut self, index: u8) -> Option<&mut OutgoingMessage> {
        let at = usize::from(index.checked_sub(INDEX_MIN)?);
        self.messages.get_mut(at)
    }

    /// Handles the peer's request for a message, and returns the message's operation; `None`: the
    /// message is withdrawn. `Err`: the index names no message that can be asked for.
    fn request(&mut self, index: u8) -> Result<Option<OpKey>, Error> {
        let stray = || violation("a clear-to-send that nothing awaits");
        let slot = self.slot(index).ok_or_else(stray)?;
        match *slot {
            OutgoingMessage::Announced(message) | OutgoingMessage::GivenUp(message) => {
                slot.go(OutgoingMessage::Requested);
                Ok(Some(message.op))
            }
            OutgoingMessage::Withdrawn => {
                slot.go(OutgoingMessage::Crossed);
                Ok(None)
            }
            OutgoingMessage::Free | OutgoingMessage::Requested | OutgoingMessage::Crossed => {
                Err(stray())
            }
        }
    }

    /// Frees the index of a message whose DATA is handed out.
    pub(super) fn data_handed_out(&mut self, index: u8) {
        if let Some(slot) = self.slot(index) {
            slot.go(OutgoingMessage::Free);
        }
    }

    /// Withdraws a message that the peer has asked for and whose DATA is not handed out. The peer
    /// sees it as if the withdrawal had crossed its CTS. Returns false if the peer takes no
    /// withdrawals.
    pub(super) fn withdraw_requested(&mut self, index: u8) -> bool {
        let withdraws = self.policy.withdraws;
        match self.slot(index).filter(|_| withdraws) {
            Some(slot) => slot.go(OutgoingMessage::Crossed),
            None => return false,
        }
        true
    }

    /// Takes back all messages that the peer has not asked for.
    pub(super) fn drain(&mut self) -> Vec<Queued> {
        self.drain_before(u64::MAX)
    }

    /// Takes back the messages that the peer has not asked for and that were posted before `end`.
    pub(super) fn drain_before(&mut self, end: u64) -> Vec<Queued> {
        let mut drained = Vec::new();
        for slot in &mut self.messages {
            if let Some(&message) = slot.announced()
                && message.number < end
            {
                slot.go(OutgoingMessage::Free);
                drained.push(message);
            }
        }
        drained
    }
}

impl<T> Connection<T> {
    /// Handles the peer's request for an announced message: queues its DATA.
    pub(super) fn handle_cts(&mut self, index: u8) -> Result<(), Error> {
        let Some(announcements) = &mut self.tx.announcements else {
            return Err(violation("a clear-to-send that nothing awaits"));
        };
        if let Some(op) = announcements.request(index)? {
            self.tx.push_announced(op, index);
        }
        Ok(())
    }

    /// Handles the peer's confirmation of a withdrawal: frees the index.
    pub(super) fn handle_withdrawn(&mut self, index: u8) -> Result<(), Error> {
        let announcements = self.tx.announcements.as_mut();
        match announcements.and_then(|it| it.slot(index)) {
            Some(slot @ (OutgoingMessage::Withdrawn | OutgoingMessage::Crossed)) => {
                slot.go(OutgoingMessage::Free);
                Ok(())
            }
            _ => Err(violation("word of a withdrawal that nothing awaits")),
        }
    }

    /// Withdraws an announced message that the peer has not asked for, and notifies the peer.
    /// False: the peer has asked for the message, or takes no withdrawals.
    pub(super) fn withdraw_announced(&mut self, key: OpKey) -> bool {
        let announcements = self.tx.announcements.as_mut();
        let Some(index) = announcements.and_then(|it| it.withdraw(key)) else {
            return false;
        };
        let header = FrameHeader::Withdraw { index };
        self.tx.push_control(header, Payload::empty());
        true
    }

    /// True if this operation's message is announced, and the peer has not asked for it.
    pub(crate) fn is_announced(&self, key: OpKey) -> bool {
        let announcements = self.tx.announcements.as_ref();
        announcements.is_some_and(|it| it.find(key).is_some())
    }

    /// Ends the announced messages, which found no receive: the peer will ask for no more messages.
    pub(super) fn end_announced(&mut self) {
        let announcements = self.tx.announcements.as_mut();
        let untaken = announcements.map(|it| it.drain());
        for message in untaken.unwrap_or_default() {
            self.fail_unreceived(message.op);
        }
    }
}
