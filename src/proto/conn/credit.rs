//! Credit for messages: what a sender may send that no receive awaits, and when a receiver tells
//! how many receives have been posted. `docs/extension.md`, section 6, is the specification.
//!
//! Invariant: messages that were sent while no receive was known for them, and of which none is
//! known yet, cost at most the peer's budget together.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::Host;
use crate::wire::{Capabilities, FrameHeader, MessageCredit};

use super::Connection;
use super::rx::{Rx, Target};
use super::side::OwnReceives;

/// Messages on their way to no receive that are accounted for one by one; who has so many waits,
/// whatever the peer's budget.
const UNCOVERED_MAX: usize = 1 << 16;

/// The sender's half.
#[derive(Clone, Debug)]
pub(super) struct SendCredit {
    budget_bytes: u64,
    overhead_bytes: u64,
    /// Receives posted, as told last.
    posted: u64,
    /// Messages handed out.
    sent: u64,
    /// The number and cost of messages for which no receive was told yet.
    uncovered: VecDeque<(u64, u64)>,
    uncovered_cost: u64,
    /// The peer was told that a message waits, since it last told of receives.
    stall_told: bool,
}

impl SendCredit {
    pub(super) fn new(credit: MessageCredit) -> Self {
        SendCredit {
            budget_bytes: credit.budget_bytes,
            overhead_bytes: u64::from(credit.overhead_bytes),
            posted: credit.posted,
            sent: 0,
            uncovered: VecDeque::new(),
            uncovered_cost: 0,
            stall_told: false,
        }
    }

    fn cost(&self, len: u64) -> u64 {
        len.saturating_add(self.overhead_bytes)
    }

    /// The longest message that is ever sent without a receive for it.
    pub(super) fn kept_max(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.overhead_bytes)
    }

    /// True if a message of this length may be sent now.
    pub(super) fn allows(&self, len: u64) -> bool {
        self.sent < self.posted
            || self.uncovered.len() < UNCOVERED_MAX
                && self
                    .uncovered_cost
                    .checked_add(self.cost(len))
                    .is_some_and(|cost| cost <= self.budget_bytes)
    }

    /// Accounts for a message that is handed out.
    pub(super) fn take(&mut self, len: u64) {
        if self.sent >= self.posted {
            let cost = self.cost(len);
            self.uncovered.push_back((self.sent, cost));
            self.uncovered_cost = self.uncovered_cost.saturating_add(cost);
        }
        self.sent += 1;
    }

    /// The peer tells how many receives it has posted.
    fn told(&mut self, posted: u64) {
        self.posted = posted;
        self.stall_told = false;
        while let Some(&(number, cost)) = self.uncovered.front()
            && number < posted
        {
            self.uncovered.pop_front();
            self.uncovered_cost = self.uncovered_cost.saturating_sub(cost);
        }
    }

    /// What to tell the peer of a message that waits, once for each time it tells of receives.
    pub(super) fn stall(&mut self) -> Option<FrameHeader> {
        let is_news = !std::mem::replace(&mut self.stall_told, true);
        is_news.then_some(FrameHeader::Stalled { sent: self.sent })
    }
}

/// The receiver's half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiveCredit {
    /// Messages taken in, to their end or not yet.
    arrived: u64,
    /// Receives posted, as the peer was told last.
    told: u64,
    /// What the messages that came since then cost.
    cost_since: u64,
    /// The peer has said that a message waits.
    stalled: bool,
}

impl ReceiveCredit {
    /// Accounts for a message that is taken in.
    pub(super) fn arrive(&mut self, len: u64) {
        self.arrived += 1;
        let cost = len.saturating_add(UNEXPECTED_OVERHEAD as u64);
        self.cost_since = self.cost_since.saturating_add(cost);
    }
}

impl<T> Connection<T> {
    /// Receives that were given a message, and those posted now. Messages that wait for a receive
    /// and receives that wait for a message are never there both.
    fn receives_posted(&self, host: &mut impl Host<T>) -> u64 {
        if let Some(shared) = host.shared() {
            // Of shared receives none is this peer's before its message has come.
            return self.receive_credit.arrived.saturating_sub(shared.held());
        }
        self.own_receives_posted()
    }

    fn own_receives_posted(&self) -> u64 {
        let landing = matches!(
            &self.rx,
            Rx::Payload(landing) if matches!(landing.target, Target::Early { .. })
        );
        let Some(OwnReceives { matcher, .. }) = self.own() else {
            return self.receive_credit.arrived; // Of shared receives each was its message's.
        };
        let early = matcher.early_len() as u64 + u64::from(landing);
        let matched = self.receive_credit.arrived.saturating_sub(early);
        matched + matcher.posted_len() as u64
    }

    /// What goes into our HELLO.
    pub(super) fn first_credit(&mut self) -> MessageCredit {
        let posted = self.own_receives_posted();
        self.receive_credit.told = posted;
        MessageCredit {
            budget_bytes: self.budget_bytes(),
            overhead_bytes: UNEXPECTED_OVERHEAD as u32,
            posted,
        }
    }

    pub(super) fn handle_credit(&mut self, posted: u64) {
        if let Some(credit) = &mut self.tx.credit {
            credit.told(posted);
        }
    }

    pub(super) fn handle_stalled(&mut self, host: &mut impl Host<T>) {
        self.receive_credit.stalled = true;
        if let Some(shared) = host.shared() {
            shared.awaits_credit();
        }
    }

    /// True if the peer holds a message back for which there is a receive now.
    pub(crate) fn wants_credit(&self) -> bool {
        self.receive_credit.stalled && self.own_receives_posted() != self.receive_credit.told
    }

    /// Queues a CREDIT when one is due.
    pub(super) fn tell_credit(&mut self, host: &mut impl Host<T>) {
        if !self.agreed().contains(Capabilities::CREDIT) {
            return;
        }
        let budget = self.budget_bytes();
        let ReceiveCredit {
            arrived,
            told,
            cost_since,
            stalled,
        } = self.receive_credit;
        let may_be_due = stalled || cost_since >= budget / 4;
        if self.shares_receives() && (arrived == told || !may_be_due) {
            return; // So that who shares receives is asked only when it matters.
        }
        let posted = self.receives_posted(host);
        let ReceiveCredit {
            told,
            cost_since,
            stalled,
            ..
        } = &mut self.receive_credit;
        let is_due = *stalled || *cost_since >= budget / 4 || posted < *told;
        if posted == *told || !is_due {
            return;
        }
        (*told, *cost_since, *stalled) = (posted, 0, false);
        self.tx
            .push_control(FrameHeader::Credit { posted }, Payload::empty());
    }
}
