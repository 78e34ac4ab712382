//! What was queued and does not go out: withdrawn, refused room by a peer that closes, kept for the
//! next connection, or ended with this one.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

use super::super::SendOrder;
use super::super::announce::Announcements;
use super::super::credit::SendCredit;
use super::handed_out::op_of;
use super::{Queued, Tx};

impl Tx {
    /// Takes a frame back that was never handed out.
    pub(in crate::proto::conn) fn withdraw(&mut self, op: OpKey) -> Option<Payload> {
        let withdrawn = self.messages.withdraw(op);
        let withdrawn = withdrawn.or_else(|| self.others.withdraw(op));
        let (number, payload) = withdrawn.or_else(|| self.withdraw_staying(op))?;
        self.fences.gone(number);
        Some(payload)
    }

    fn withdraw_staying(&mut self, op: OpKey) -> Option<(u64, Payload)> {
        let staying = self.staying.as_mut()?;
        let at = (staying.iter()).position(|(_, queued)| queued.op == Some(op))?;
        let (number, queued) = staying.remove(at)?;
        Some((number, queued.payload))
    }

    /// The number of the first message that waits for credit, or would have to be announced.
    fn first_waiting(&self) -> Option<u64> {
        let mut credit = self.credit.clone();
        let announcements = self.announcements.as_ref();
        let kept_max = (credit.as_ref()).map_or(u64::MAX, SendCredit::kept_max);
        let queued = self.messages.queue.iter();
        let queued = queued.map(|(number, queued)| {
            let is_announced = announcements.is_some_and(|it| it.wants(&queued.header, kept_max));
            (*number, queued.header.payload_len(), is_announced)
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

    /// The peer gives no more credit, and asks for nothing that is announced from now on: takes
    /// back the messages that would have to wait for either, and those behind them; and says how
    /// many injected ones have failed by that.
    pub(in crate::proto::conn) fn drain_waiting(
        &mut self,
    ) -> (Vec<(Option<OpKey>, Payload)>, usize) {
        let Some(first) = self.first_waiting() else {
            return (Vec::new(), 0);
        };
        let waiting = self.messages.split_off(first);
        let injected = self.injected.drop_from(first);
        for number in &injected {
            self.fences.ended(*number);
        }
        (self.take_back(waiting), injected.len())
    }

    /// Takes back the atomic operations that were queued before the connection was up.
    pub(in crate::proto::conn) fn drain_atomics(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let atomics = self
            .others
            .extract(|queued| matches!(queued.header, FrameHeader::Atomic { .. }));
        self.take_back(atomics)
    }

    /// Takes back what was announced, and not asked for, before a message that went out: what goes
    /// over the next connection comes behind that one.
    pub(in crate::proto::conn) fn drain_overtaken(&mut self) -> Vec<(u64, Queued)> {
        match (&mut self.announcements, self.last_message) {
            (Some(announcements), Some(last)) => announcements.drain_before(last),
            _ => Vec::new(),
        }
    }

    /// The same, but it goes over the next connection, with all that may not pass it. Tells `each`
    /// operation that was announced and is not any more. False: there is nothing such.
    pub(in crate::proto::conn) fn stay(&mut self, mut each: impl FnMut(OpKey)) -> bool {
        let announced = self.announcements.as_mut();
        let mut staying = announced.map(Announcements::drain).unwrap_or_default();
        staying
            .iter()
            .filter_map(|(_, queued)| queued.op)
            .for_each(&mut each);
        let waiting = self.first_waiting();
        if staying.is_empty() && waiting.is_none() {
            return false;
        }
        let numbers = staying.iter().map(|(number, _)| *number);
        let first = numbers.chain(waiting).min();
        let fence = self.fences.first();
        if let Some(from) = first.into_iter().chain(fence).min() {
            staying.extend(self.messages.split_off(from));
        }
        let first = first.filter(|_| self.order == SendOrder::Strict);
        if let Some(from) = first.into_iter().chain(fence).min() {
            staying.extend(self.others.split_off(from));
        }
        staying.sort_unstable_by_key(|(number, _)| *number);
        self.staying = Some(staying.into());
        true
    }

    /// Operations that go over the next connection; `None`: nothing does.
    pub(in crate::proto::conn) fn staying(&self) -> Option<usize> {
        self.staying.as_ref().map(VecDeque::len)
    }

    /// Takes back what was to go over the next connection: there will be none.
    pub(in crate::proto::conn) fn drain_staying(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let staying = self.staying.take().unwrap_or_default();
        self.take_back(staying)
    }

    /// None of these frames goes out.
    fn take_back(&mut self, frames: VecDeque<(u64, Queued)>) -> Vec<(Option<OpKey>, Payload)> {
        let take_back = |(number, queued): (u64, Queued)| {
            self.fences.gone(number);
            (queued.op, queued.payload)
        };
        frames.into_iter().map(take_back).collect()
    }

    /// Everything that was not sent, as the connection ends.
    pub(in crate::proto::conn) fn drain(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let mut all = Vec::new();
        for frame in self.carry.drain(..) {
            let token = frame.token();
            all.push((op_of(token), frame.into_payload()));
        }
        self.reads.clear();
        let announced = self.announcements.as_mut();
        let announced = announced.map(Announcements::drain).unwrap_or_default();
        let staying = self.staying.take().into_iter().flatten();
        for (_, queued) in announced.into_iter().chain(staying) {
            all.push((queued.op, queued.payload));
        }
        let lanes = [
            std::mem::take(&mut self.messages),
            std::mem::take(&mut self.others),
            std::mem::take(&mut self.data),
        ];
        let user = lanes.into_iter().flat_map(|lane| lane.queue);
        for queued in self.control.drain(..).chain(user.map(|(_, queued)| queued)) {
            all.push((queued.op, queued.payload));
        }
        all
    }
}
