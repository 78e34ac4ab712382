//! Credit for messages: how much a sender may send beyond the receives that the peer has reported,
//! and when a receiver reports its receives. `docs/extension.md`, section 6, is the specification.
//!
//! Invariant: the messages that were sent without a reported receive, and for which no receive has
//! been reported since, cost at most the peer's budget in total.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::limits::{UNCOVERED_MESSAGES_MAX, UNEXPECTED_OVERHEAD};
use crate::proto::Host;
use crate::wire::{Capabilities, FrameHeader, MessageCredit};

use super::Connection;
use super::own_receives::OwnReceives;
use super::receive_state::{PayloadTarget, ReceiveState};

/// The credit of a sender.
#[derive(Clone, Debug)]
pub(super) struct SendCredit {
    budget_bytes: u64,
    overhead_bytes: u64,
    /// Receives posted, by the peer's last report.
    posted: u64,
    /// Messages handed out.
    sent: u64,
    /// The number and cost of each message for which no receive was reported yet.
    uncovered: VecDeque<(u64, u64)>,
    uncovered_cost: u64,
    /// A STALLED was sent since the peer's last report.
    stall_reported: bool,
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
            stall_reported: false,
        }
    }

    /// Returns how much of the budget is left for messages that are sent without a reported
    /// receive.
    pub(super) fn left(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.uncovered_cost)
    }

    fn cost(&self, len: u64) -> u64 {
        len.saturating_add(self.overhead_bytes)
    }

    /// Length of the longest message that may ever be sent without a reported receive.
    pub(super) fn stored_max(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.overhead_bytes)
    }

    /// True if a message of this length may be sent now.
    pub(super) fn allows(&self, len: u64) -> bool {
        self.sent < self.posted
            || self.uncovered.len() < UNCOVERED_MESSAGES_MAX
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

    /// Takes back the cost of the last message, which is not handed out after all.
    pub(super) fn give_back(&mut self, len: u64) {
        self.sent -= 1;
        let cost = self.cost(len);
        if self
            .uncovered
            .back()
            .is_some_and(|last| last.0 == self.sent)
        {
            self.uncovered.pop_back();
            self.uncovered_cost = self.uncovered_cost.saturating_sub(cost);
        }
    }

    /// Handles the peer's report of how many receives it has posted.
    fn handle_report(&mut self, posted: u64) {
        self.posted = posted;
        self.stall_reported = false;
        while let Some(&(number, cost)) = self.uncovered.front()
            && number < posted
        {
            self.uncovered.pop_front();
            self.uncovered_cost = self.uncovered_cost.saturating_sub(cost);
        }
    }

    /// Returns the STALLED frame for a message that waits, once per report of the peer.
    pub(super) fn stall(&mut self) -> Option<FrameHeader> {
        let was_reported = std::mem::replace(&mut self.stall_reported, true);
        (!was_reported).then_some(FrameHeader::Stalled { sent: self.sent })
    }
}

/// The credit that a receiver grants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiveCredit {
    /// Messages that have begun to arrive.
    arrived: u64,
    /// Receives posted, by the last report to the peer.
    reported: u64,
    /// The cost of the messages that have arrived since the last report.
    cost_since: u64,
    /// The peer has reported that a message waits.
    stalled: bool,
}

impl ReceiveCredit {
    /// Accounts for a message that begins to arrive.
    pub(super) fn count_message(&mut self, len: u64) {
        self.arrived += 1;
        let cost = len.saturating_add(UNEXPECTED_OVERHEAD as u64);
        self.cost_since = self.cost_since.saturating_add(cost);
    }
}

impl<T> Connection<T> {
    /// Returns the number of receives that were matched with a message, plus those posted now.
    /// Unexpected messages and posted receives never wait at the same time.
    fn receives_posted(&self, host: &mut impl Host<T>) -> u64 {
        if let Some(shared) = host.shared() {
            // A shared receive counts for this peer only once the peer's message has come.
            return self
                .receive_credit
                .arrived
                .saturating_sub(shared.held_messages());
        }
        self.own_receives_posted()
    }

    fn own_receives_posted(&self) -> u64 {
        let is_storing = match &self.rx {
            ReceiveState::Payload(transfer) => {
                matches!(transfer.target, PayloadTarget::Unexpected { .. })
            }
            _ => false,
        };
        let Some(OwnReceives {
            matcher, inboxes, ..
        }) = self.own()
        else {
            return self.receive_credit.arrived;
        };
        let unexpected = matcher.unexpected_len() as u64 + u64::from(is_storing);
        let matched = self.receive_credit.arrived.saturating_sub(unexpected);
        let posted = matched + matcher.posted_len() as u64;
        posted.saturating_add(inboxes.places())
    }

    /// The credit that our HELLO reports.
    pub(super) fn first_credit(&mut self) -> MessageCredit {
        let posted = self.own_receives_posted();
        self.receive_credit.reported = posted;
        MessageCredit {
            budget_bytes: self.budget_bytes(),
            overhead_bytes: UNEXPECTED_OVERHEAD as u32,
            posted,
        }
    }

    pub(super) fn handle_credit(&mut self, posted: u64) {
        if let Some(credit) = &mut self.tx.credit {
            credit.handle_report(posted);
        }
    }

    pub(super) fn handle_stalled(&mut self, host: &mut impl Host<T>) {
        self.receive_credit.stalled = true;
        if let Some(shared) = host.shared() {
            shared.request_credit_wake();
        }
    }

    /// True if the peer holds a message back for which a receive is posted now.
    pub(crate) fn wants_credit(&self) -> bool {
        self.receive_credit.stalled && self.own_receives_posted() != self.receive_credit.reported
    }

    /// Queues a CREDIT if one is due: the peer has reported a stall, or a quarter of its budget has
    /// been used since the last CREDIT.
    pub(super) fn queue_credit(&mut self, host: &mut impl Host<T>) {
        if !self.agreed().contains(Capabilities::CREDIT) {
            return;
        }
        let budget = self.budget_bytes();
        let ReceiveCredit {
            arrived,
            reported,
            cost_since,
            stalled,
        } = self.receive_credit;
        let may_be_due = stalled || cost_since >= budget / 4;
        if self.shares_receives() && (arrived == reported || !may_be_due) {
            return; // Without taking the lock of the shared receives.
        }
        let posted = self.receives_posted(host);
        let ReceiveCredit {
            reported,
            cost_since,
            stalled,
            ..
        } = &mut self.receive_credit;
        let is_due = *stalled || *cost_since >= budget / 4 || posted < *reported;
        if posted == *reported || !is_due {
            return;
        }
        (*reported, *cost_since, *stalled) = (posted, 0, false);
        self.tx
            .push_control(FrameHeader::Credit { posted }, Payload::empty());
    }
}
