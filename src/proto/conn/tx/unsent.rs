//! Operations that were queued and do not go out: they are withdrawn, get no room from a peer that
//! closes, are kept for the next connection, or end with this one.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::error::{Error, Phase};
use crate::proto::op::OpKey;

use super::super::SendOrder;
use super::super::credit::SendCredit;
use super::Tx;
use super::handed_out::FrameOwner;
use super::lane::{Lane, Queued};

impl Tx {
    /// Takes back an operation that was never handed out. False: it was handed out.
    pub(in crate::proto::conn) fn withdraw(&mut self, op: OpKey) -> bool {
        let withdrawn = self.messages.withdraw(op);
        let withdrawn = withdrawn.or_else(|| self.others.withdraw(op));
        let withdrawn = withdrawn.or_else(|| self.withdraw_carried_over(op));
        if let Some(queued) = withdrawn {
            self.fences.gone(queued.number);
        }
        withdrawn.is_some()
    }

    fn withdraw_carried_over(&mut self, op: OpKey) -> Option<Queued> {
        let carried_over = self.carried_over.as_mut()?;
        let at = carried_over.iter().position(|queued| queued.op == op)?;
        carried_over.remove(at)
    }

    /// The number of the first message that waits for credit, or would have to be announced.
    fn first_waiting(&self) -> Option<u64> {
        let mut credit = self.credit.clone();
        let announcements = self.announcements.as_ref();
        let stored_max = (credit.as_ref()).map_or(u64::MAX, SendCredit::stored_max);
        let queued = self.messages.queue.iter();
        let queued = queued.map(|queued| {
            let is_announced =
                announcements.is_some_and(|it| it.needs_announcement(queued, stored_max));
            (queued.number, queued.len as u64, is_announced)
        });
        let injected = self.injected.queued();
        let injected = injected.map(|(number, len)| (number, len, false));
        let mut all: Vec<_> = queued.chain(injected).collect();
        all.sort_unstable();
        let waits = |(_, len, is_announced): &(u64, u64, bool)| {
            if *is_announced {
                return true;
            }
            let Some(credit) = &mut credit else {
                return false;
            };
            let is_allowed = credit.allows(*len);
            credit.take(*len);
            !is_allowed
        };
        let at = all.iter().position(waits)?;
        Some(all[at].0)
    }

    /// Takes back the messages that would have to wait for credit or for the peer's request, and
    /// all later messages: the peer gives no more credit, and requests no more messages. Returns
    /// also how many injected messages have failed with `error`.
    pub(in crate::proto::conn) fn drain_waiting(&mut self, error: Error) -> (Vec<OpKey>, usize) {
        let Some(first) = self.first_waiting() else {
            return (Vec::new(), 0);
        };
        let waiting = self.messages.split_off(first);
        let injected = self.injected.drop_from(first, error);
        for number in &injected {
            self.fences.ended(*number);
        }
        (self.never_sent(waiting), injected.len())
    }

    /// Takes back an injected message that was never handed out. False: it was handed out.
    pub(in crate::proto::conn) fn withdraw_injected(&mut self, number: u64) -> bool {
        let is_withdrawn = self.injected.withdraw(number);
        if is_withdrawn {
            self.fences.ended(number);
        }
        is_withdrawn
    }

    /// Fails an awaited message that was withdrawn.
    pub(in crate::proto::conn) fn fail_injected(&mut self, number: u64, error: Error) {
        (self.injected).note_unsent(number..number + 1, error, Phase::Queued);
    }

    /// Returns the numbers of the injected messages that are queued and awaited.
    pub(in crate::proto::conn) fn awaited_injected(&self) -> Vec<u64> {
        self.injected.awaited()
    }

    /// Takes back the queued RMA and atomic operations that are `wanted`.
    pub(in crate::proto::conn) fn drain_rma(
        &mut self,
        wanted: impl Fn(OpKey) -> bool,
    ) -> Vec<OpKey> {
        let taken = self.others.extract(|queued| wanted(queued.op));
        self.never_sent(taken)
    }

    /// Takes back the messages that end only when they are matched, if the peer takes no
    /// announcements of their kind.
    pub(in crate::proto::conn) fn drain_unmatchable(&mut self) -> Vec<OpKey> {
        let announcements = self.announcements.as_ref();
        let takes = |queued: &Queued| announcements.is_some_and(|it| it.takes(queued.kind));
        let taken = (self.messages).extract(|queued| queued.matched && !takes(queued));
        self.never_sent(taken)
    }

    /// Takes back the announced messages that the peer has not asked for, and that are older than
    /// the last message sent: over the next connection they would come after that message.
    pub(in crate::proto::conn) fn drain_overtaken(&mut self) -> Vec<Queued> {
        match (&mut self.announcements, self.last_message) {
            (Some(announcements), Some(last)) => announcements.drain_before(last),
            _ => Vec::new(),
        }
    }

    /// Keeps for the next connection the messages that are announced or have to wait, with all
    /// operations that may not overtake them. Calls `each` for every operation whose announcement
    /// ends by this. False: there are no such messages.
    pub(in crate::proto::conn) fn carry_over(&mut self, mut each: impl FnMut(OpKey)) -> bool {
        let announced = self.announcements.as_mut();
        let mut carried_over = announced.map(|it| it.drain()).unwrap_or_default();
        carried_over.iter().for_each(|queued| each(queued.op));
        let waiting = self.first_waiting();
        if carried_over.is_empty() && waiting.is_none() {
            return false;
        }
        let numbers = carried_over.iter().map(|queued| queued.number);
        let first = numbers.chain(waiting).min();
        let fence = self.fences.first();
        if let Some(from) = first.into_iter().chain(fence).min() {
            carried_over.extend(self.messages.split_off(from));
        }
        let first = first.filter(|_| self.send_order == SendOrder::Strict);
        if let Some(from) = first.into_iter().chain(fence).min() {
            carried_over.extend(self.others.split_off(from));
        }
        carried_over.sort_unstable_by_key(|queued| queued.number);
        self.carried_over = Some(carried_over.into());
        true
    }

    /// Number of operations that go over the next connection; `None`: no operations do.
    pub(in crate::proto::conn) fn carried_over(&self) -> Option<usize> {
        self.carried_over.as_ref().map(VecDeque::len)
    }

    /// Takes back the operations for the next connection, since there will be none.
    pub(in crate::proto::conn) fn drain_carried_over(&mut self) -> Vec<OpKey> {
        let carried_over = self.carried_over.take().unwrap_or_default();
        self.never_sent(carried_over)
    }

    /// Notes that these operations do not go out, and returns their keys.
    fn never_sent(&mut self, queued: VecDeque<Queued>) -> Vec<OpKey> {
        let forget = |queued: Queued| {
            self.fences.gone(queued.number);
            queued.op
        };
        queued.into_iter().map(forget).collect()
    }

    /// Drops everything that was not sent, since the connection ends. Returns the operations of
    /// frames that were handed out, with their memory.
    pub(in crate::proto::conn) fn drain(&mut self) -> Vec<(OpKey, Payload)> {
        let mut handed_out = self.batch.out.take().unwrap_or_default();
        let frames = handed_out.drain();
        let memory = frames.filter_map(|(token, payload)| match FrameOwner::of(token) {
            FrameOwner::Operation(op) => Some((op, payload)),
            _ => None,
        });
        let memory = memory.collect();
        self.read_answers.clear();
        self.control.clear();
        if let Some(announcements) = &mut self.announcements {
            announcements.drain();
        }
        self.carried_over = None;
        self.messages = Lane::default();
        self.others = Lane::default();
        self.requested.clear();
        memory
    }
}
