//! Messages that are announced before they are sent: the sender's half. A message of which its
//! receiver cannot promise that it has room stays here, until a receive has been matched to its
//! announcement.
//!
//! ```text
//!   queued --RTS--> Kept --CTS--> Asked --DATA--> the name is free again
//!                    | |                            ^
//!                    | +--WITHDRAW--> Withdrawn --WITHDRAWN
//!                    |                   | ^
//!                    |                   +-+ a CTS that crossed it: void
//!                    +-- the peer's CLOSE: nothing will take it
//! ```
//! A message whose sender gives it up is withdrawn, and its memory is free at once. A peer that
//! does not know that is owed the message until it asks, or until the connection ends.
//!
//! Invariant: a name is one message's from its RTS until its DATA is handed out, or until the peer
//! has said that it is withdrawn.

use crate::buf::Payload;
use crate::error::Error;
use crate::proto::op::OpKey;
use crate::wire::{FrameHeader, INDEX_MAX, INDEX_MIN};

use super::tx::{Queued, QueuedKind};
use super::{Connection, violation};

/// Which messages are to be announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcing {
    /// The peer takes announcements of tagged messages.
    pub(super) tagged: bool,
    /// The peer takes announcements of others.
    pub(super) untagged: bool,
    /// The peer lets announcements be withdrawn.
    pub(super) withdraws: bool,
    /// Messages longer than this are announced.
    pub(super) min: u64,
}

#[derive(Clone, Copy, Debug)]
enum Announced {
    Free,
    Kept {
        message: Queued,
        /// Nobody here waits for its end, but the peer may ask for it.
        is_given_up: bool,
    },
    Asked,
    /// The peer's word that it has forgotten the message is awaited.
    Withdrawn {
        /// It had asked for it before it heard of that.
        is_asked: bool,
    },
}

/// The messages that are announced.
#[derive(Debug)]
pub(super) struct Announcements {
    rule: Announcing,
    /// By their names, from the lowest.
    named: Vec<Announced>,
}

impl Announcements {
    pub(super) fn new(rule: Announcing) -> Self {
        Announcements {
            rule,
            named: Vec::new(),
        }
    }

    /// True if this message is to be announced, to a peer that keeps early messages of up to
    /// `kept_max` bytes.
    pub(super) fn wants(&self, message: &Queued, kept_max: u64) -> bool {
        let may = match message.kind {
            QueuedKind::Message => self.rule.untagged,
            QueuedKind::Tagged => self.rule.tagged,
            QueuedKind::Rma => false,
        };
        may && message.len as u64 > self.rule.min.min(kept_max)
    }

    fn free(&self) -> Option<usize> {
        let free = |announced: &Announced| matches!(announced, Announced::Free);
        let at = self.named.iter().position(free).unwrap_or(self.named.len());
        (at <= usize::from(INDEX_MAX - INDEX_MIN)).then_some(at)
    }

    /// True if there is a name left.
    pub(super) fn has_room(&self) -> bool {
        self.free().is_some()
    }

    /// True if names belong to messages that were given up, maybe for as long as the connection
    /// lasts.
    pub(super) fn has_given_up(&self) -> bool {
        let given_up =
            |it: &Announced| matches!(it, Announced::Kept { is_given_up, .. } if *is_given_up);
        self.named.iter().any(given_up)
    }

    /// True if this operation's message is announced, and not asked for.
    pub(super) fn is_kept(&self, op: OpKey) -> bool {
        self.kept(op).is_some()
    }

    fn kept(&self, op: OpKey) -> Option<usize> {
        let is_it =
            |it: &Announced| matches!(it, Announced::Kept { message, .. } if message.op == op);
        self.named.iter().position(is_it)
    }

    /// Takes an announced message back that was not asked for; gives its name, of which the peer is
    /// to be told. `None`: the peer cannot be, or has asked for it.
    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<u8> {
        let at = self.kept(op)?;
        let place = self.named.get_mut(at)?;
        if !self.rule.withdraws {
            if let Announced::Kept { is_given_up, .. } = place {
                *is_given_up = true;
            }
            return None;
        }
        *place = Announced::Withdrawn { is_asked: false };
        Some(INDEX_MIN + at as u8) // at most INDEX_MAX
    }

    /// Keeps a message, and gives the name by which it is announced.
    pub(super) fn keep(&mut self, message: Queued) -> u8 {
        let at = self.free().expect("whoever calls has looked");
        let kept = Announced::Kept {
            message,
            is_given_up: false,
        };
        match self.named.get_mut(at) {
            Some(place) => *place = kept,
            None => self.named.push(kept),
        }
        INDEX_MIN + at as u8 // at most INDEX_MAX
    }

    fn named(&mut self, index: u8) -> Option<&mut Announced> {
        self.named
            .get_mut(usize::from(index.checked_sub(INDEX_MIN)?))
    }

    /// The peer asks for this message; `None`: it is withdrawn by now. `Err`: nothing of
    /// this name can be asked for.
    fn ask(&mut self, index: u8) -> Result<Option<OpKey>, Error> {
        let stray = || violation("a clear-to-send that nothing awaits");
        let place = self.named(index).ok_or_else(stray)?;
        match place {
            Announced::Kept { message, .. } => {
                let op = message.op;
                *place = Announced::Asked;
                Ok(Some(op))
            }
            Announced::Withdrawn { is_asked } if !*is_asked => {
                *is_asked = true;
                Ok(None)
            }
            _ => Err(stray()),
        }
    }

    /// The data of this message is handed out.
    pub(super) fn sent(&mut self, index: u8) {
        if let Some(place) = self.named(index) {
            *place = Announced::Free;
        }
    }

    /// Takes all messages back that the peer has not asked for.
    pub(super) fn drain(&mut self) -> Vec<Queued> {
        self.drain_before(u64::MAX)
    }

    /// The same, of those that were posted before this one.
    pub(super) fn drain_before(&mut self, end: u64) -> Vec<Queued> {
        let mut all = Vec::new();
        for place in &mut self.named {
            if let Announced::Kept { message, .. } = *place
                && message.number < end
            {
                *place = Announced::Free;
                all.push(message);
            }
        }
        all
    }
}

impl<T> Connection<T> {
    /// The peer has a receive for a message that was announced to it.
    pub(super) fn handle_cts(&mut self, index: u8) -> Result<(), Error> {
        let Some(announced) = &mut self.tx.announcements else {
            return Err(violation("a clear-to-send that nothing awaits"));
        };
        if let Some(op) = announced.ask(index)? {
            self.tx.push_announced(op, index);
        }
        Ok(())
    }

    /// The peer has forgotten a message that was withdrawn.
    pub(super) fn handle_withdrawn(&mut self, index: u8) -> Result<(), Error> {
        let announced = self.tx.announcements.as_mut();
        match announced.and_then(|announced| announced.named(index)) {
            Some(place @ Announced::Withdrawn { .. }) => {
                *place = Announced::Free;
                Ok(())
            }
            _ => Err(violation("word of a withdrawal that nothing awaits")),
        }
    }

    /// Takes a message back that was announced and not asked for, and tells the peer.
    /// False: it has been asked for, or the peer does not know withdrawals.
    pub(super) fn withdraw_announced(&mut self, key: OpKey) -> bool {
        let announced = self.tx.announcements.as_mut();
        let Some(index) = announced.and_then(|announced| announced.withdraw(key)) else {
            return false;
        };
        let header = FrameHeader::Withdraw { index };
        self.tx.push_control(header, Payload::empty());
        true
    }

    /// True if this operation's message is announced, and the peer has not asked for it.
    pub(crate) fn is_announced(&self, key: OpKey) -> bool {
        let announced = self.tx.announcements.as_ref();
        announced.is_some_and(|announced| announced.is_kept(key))
    }

    /// The peer asks for nothing any more: what was announced to it has no receive.
    pub(super) fn end_announced(&mut self) {
        let announced = self.tx.announcements.as_mut();
        let kept = announced.map(Announcements::drain).unwrap_or_default();
        for kept in kept {
            self.end_untaken(kept.op);
        }
    }
}
