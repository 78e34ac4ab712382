//! The matcher of all connections of an endpoint, or of endpoints that share receives, by the rules
//! of fi_tagged(3) and fi_msg(3): a message goes to the oldest receive that takes it, a receive
//! gets the oldest message that it takes, and the messages of one sender stay in order.
//!
//! A message that the store has no room for stalls its connection, which stops reading. The matcher
//! wakes the connection ([`SharedMatcher::poll_wake`]) when a receive takes the message, or when
//! there is room; the connection then asks again. Messages that wait for room are admitted in
//! order, before later messages that exceed the promise of their connection.
//!
//! Invariants: no stored message matches a posted receive. A stalled message matches a posted
//! receive only while a woken connection has not asked again.

mod claims;
mod stalled;

use std::collections::{HashMap, VecDeque};

use crate::buf::{BufferCursor, Payload};
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::op::OpKey;
use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::{Key, Slab};

use super::admission::{Admission, AdmissionControl, UnexpectedBudget};
use super::message_index::{ListKey, MessageBody, MessageEntry, MessageIndex};
use super::posted::PostedReceives;
use super::{
    Announcement, Arrival, ArrivalOutcome, MatchCriteria, MatchedReceive, PostedReceive,
    ReceivedMessage,
};
use claims::ClaimedEntry;
pub(crate) use claims::{ClaimKey, ClaimedReceive};
use stalled::{StalledSender, stall_list};

/// Key of a posted receive.
pub(crate) type ReceiveKey = Key;

/// The matcher's decision about a receive.
#[derive(Debug)]
pub(crate) enum MatchResult {
    /// No stored message matches: the receive is posted.
    Posted(ReceiveKey),
    /// The receive takes this message from the store.
    Unexpected(ReceivedMessage),
    /// The receive takes this announced message, whose payload has to be requested.
    Announced(PostedReceive, Announcement),
}

/// The matcher's decision about a multi-receive buffer that is armed.
#[derive(Debug)]
pub(crate) enum ArmOutcome {
    /// No stored message matches: the buffer waits for one.
    Posted,
    Unexpected(MatchedReceive, ReceivedMessage),
    Announced(MatchedReceive, Announcement),
    /// The buffer is consumed, and has to be canceled.
    Consumed,
}

/// The matcher of all connections of one endpoint.
#[derive(Debug)]
pub(crate) struct SharedMatcher {
    posted: PostedReceives,
    /// Messages that have come in full, and announcements.
    unexpected: MessageIndex,
    /// Messages that wait in their connections for a receive or for room.
    stalled: MessageIndex,
    stalled_senders: HashMap<ConnectionId, StalledSender>,
    claims: Slab<ClaimedEntry>,
    admission: AdmissionControl,
    receives: u64,
    arrivals: u64,
    wakes: VecDeque<ConnectionId>,
}

impl SharedMatcher {
    pub(crate) fn new(budget: UnexpectedBudget) -> Self {
        SharedMatcher {
            posted: PostedReceives::new(),
            unexpected: MessageIndex::new(),
            stalled: MessageIndex::new(),
            stalled_senders: HashMap::new(),
            claims: Slab::new(),
            admission: AdmissionControl::new(budget),
            receives: 0,
            arrivals: 0,
            wakes: VecDeque::new(),
        }
    }

    // Getters.

    /// Returns the number of messages of this connection in the store, including announcements and
    /// messages that are being received.
    pub(crate) fn held_of(&self, connection: ConnectionId) -> u64 {
        self.admission.messages_of(connection)
    }

    /// Returns the bytes held by the store, each message with its overhead.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.admission.held()
    }

    /// Number of messages in the store, including announcements.
    pub(crate) fn held_messages(&self) -> usize {
        self.unexpected.len()
    }

    /// Activity counter: grows with every receive and every message.
    pub(crate) fn activity(&self) -> u64 {
        self.receives + self.arrivals
    }

    /// Number of posted receives.
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the oldest message that a receive with these criteria would take (`FI_PEEK`).
    pub(crate) fn peek(&self, wanted: MatchCriteria, source: Option<SourceId>) -> Option<Arrival> {
        let oldest =
            |index: &MessageIndex| index.get(index.find(wanted, source)?).map(|it| it.arrival);
        oldest(&self.unexpected).or_else(|| oldest(&self.stalled))
    }

    // Called for the application.

    /// Assigns an order to a receive, and matches it with a stored message or posts it.
    pub(crate) fn post(&mut self, mut receive: PostedReceive) -> MatchResult {
        receive.order = self.next_receive();
        self.requeue_receive(receive)
    }

    /// Matches or posts a receive again, in its order: the message that it was matched with did not
    /// come.
    pub(crate) fn requeue_receive(&mut self, receive: PostedReceive) -> MatchResult {
        let (wanted, source) = (receive.wanted, receive.source);
        match self.take_unexpected(wanted, source) {
            Some(MessageBody::Buffered(message)) => MatchResult::Unexpected(message),
            Some(MessageBody::Announced(announcement)) => {
                MatchResult::Announced(receive, announcement)
            }
            Some(MessageBody::Stalled(_)) => unreachable!("a stalled message is not in the store"),
            None => {
                let key = self.posted.insert(receive, None);
                self.wake_for(key);
                MatchResult::Posted(key)
            }
        }
    }

    /// Posts a multi-receive buffer, which takes no message before it is [armed](Self::arm).
    pub(crate) fn post_multi(
        &mut self,
        cursor: BufferCursor,
        wanted: MatchCriteria,
        source: Option<SourceId>,
        key: OpKey,
    ) -> ReceiveKey {
        let receive = PostedReceive {
            wanted,
            source,
            order: self.next_receive(),
            key,
        };
        self.posted.insert(receive, Some(cursor))
    }

    /// Arms a multi-receive buffer for its next message.
    pub(crate) fn arm(&mut self, receive: ReceiveKey) -> ArmOutcome {
        let Some((wanted, source)) = self.posted.arm(receive) else {
            return ArmOutcome::Consumed;
        };
        match self.take_unexpected(wanted, source) {
            Some(MessageBody::Buffered(message)) => {
                ArmOutcome::Unexpected(self.posted.take(receive, message.len as u64), message)
            }
            Some(MessageBody::Announced(announcement)) => {
                let part = self.posted.take(receive, announcement.arrival.len);
                ArmOutcome::Announced(part, announcement)
            }
            Some(MessageBody::Stalled(_)) => unreachable!("a stalled message is not in the store"),
            None => {
                self.wake_for(receive);
                ArmOutcome::Posted
            }
        }
    }

    /// True if a posted receive takes the next message that it matches: always, except for
    /// multi-receive buffers.
    #[cfg(test)]
    pub(crate) fn is_armed(&self, receive: ReceiveKey) -> bool {
        self.posted.is_armed(receive)
    }

    /// Gives an unused part of a multi-receive buffer back to the buffer. If a later part is in
    /// use, returns the part to the caller instead.
    pub(crate) fn return_part(&mut self, receive: ReceiveKey, part: Payload) -> Option<Payload> {
        self.posted.return_part(receive, part)
    }

    /// Returns the only source whose messages a posted receive takes, if there is one.
    pub(crate) fn source_of(&self, receive: ReceiveKey) -> Option<SourceId> {
        self.posted.source_of(receive)
    }

    /// Cancels a posted receive; returns the rest of a multi-receive buffer.
    pub(crate) fn cancel(&mut self, receive: ReceiveKey) -> Option<BufferCursor> {
        self.posted.cancel(receive)
    }

    /// Empties the store, claimed messages included, and returns the messages that had come in
    /// full.
    pub(crate) fn drain(&mut self) -> Vec<ReceivedMessage> {
        let stored = self.unexpected.keys().into_iter();
        let stored: Vec<_> = stored
            .filter_map(|key| self.unexpected.remove(key))
            .collect();
        let claims = self.claims.keys().into_iter();
        let claims: Vec<_> = claims.filter_map(|key| self.claims.remove(key)).collect();
        let claims = claims.into_iter().map(|claim| claim.entry);
        let mut messages = Vec::new();
        for entry in stored.into_iter().map(|(_, entry)| entry).chain(claims) {
            match entry.body {
                MessageBody::Buffered(message) => messages.push(message),
                MessageBody::Announced(_) => {}
                MessageBody::Stalled(_) => continue,
            }
            self.admission.release(&entry.arrival, entry.cost);
        }
        messages
    }

    /// Frees spare capacity.
    pub(crate) fn shrink(&mut self) {
        self.posted.shrink();
        self.unexpected.shrink();
        self.stalled.shrink();
        self.stalled_senders.shrink_to_fit();
        self.claims.shrink();
        self.admission.shrink();
        self.wakes.shrink_to_fit();
    }

    // Called by connections.

    /// Attaches a connection; returns the bytes of the store that are promised to it.
    pub(crate) fn attach(&mut self, connection: ConnectionId, source: SourceId) -> u64 {
        self.admission.attach(connection, source)
    }

    /// Detaches a connection: its announcements are void, its complete messages stay. Returns the
    /// receive of a claimed message that had not come yet.
    pub(crate) fn detach(&mut self, connection: ConnectionId) -> Option<PostedReceive> {
        self.forget_announcements(connection);
        let source = self.admission.detach(connection);
        let mut assigned = None;
        match self.stalled_senders.remove(&connection) {
            Some(StalledSender::Queued(key)) => drop(self.stalled.remove(key)),
            // The receive that the connection was woken for may match another stalled message.
            Some(StalledSender::Woken(_, Some(receive))) => self.wake_for(receive),
            Some(StalledSender::Woken(_, None)) => {}
            Some(StalledSender::Claimed) => self.drop_claims(connection),
            Some(StalledSender::Assigned(receive)) => assigned = Some(receive),
            None => {}
        }
        self.wake_for_space(source);
        assigned
    }

    /// Begins a message: matches it, admits it to the store, or stalls it. Assigns its order. A
    /// matched multi-receive buffer stays armed for the next message if `may_arm` agrees.
    pub(crate) fn begin_message(
        &mut self,
        arrival: &mut Arrival,
        may_arm: impl FnOnce(OpKey) -> bool,
    ) -> ArrivalOutcome<MatchedReceive> {
        self.match_or_admit(arrival, cost_of(arrival.len), may_arm)
    }

    /// Begins an announced message, like [`begin_message`](Self::begin_message).
    pub(crate) fn begin_announcement(
        &mut self,
        announcement: &mut Announcement,
        may_arm: impl FnOnce(OpKey) -> bool,
    ) -> ArrivalOutcome<MatchedReceive> {
        let outcome = self.match_or_admit(&mut announcement.arrival, cost_of(0), may_arm);
        if let ArrivalOutcome::Store = outcome {
            let entry = MessageEntry {
                arrival: announcement.arrival,
                cost: cost_of(0),
                body: MessageBody::Announced(*announcement),
            };
            self.unexpected.insert(announcement.arrival.order, entry);
        }
        outcome
    }

    /// Matches, admits or stalls a message; a stored message is charged `cost`.
    fn match_or_admit(
        &mut self,
        arrival: &mut Arrival,
        cost: u64,
        may_arm: impl FnOnce(OpKey) -> bool,
    ) -> ArrivalOutcome<MatchedReceive> {
        let connection = arrival.connection;
        let mut woken_for = None;
        // 1. A stalled connection asks again; `stalled_order` is its place among those that wait.
        // Usually no connection is stalled, and the hash lookup is skipped.
        let stalled = match self.stalled_senders.is_empty() {
            true => None,
            false => self.stalled_senders.remove(&connection),
        };
        let stalled_order = match stalled {
            None => None,
            Some(StalledSender::Queued(key)) => self.stalled.remove(key).map(|(order, _)| order),
            Some(StalledSender::Woken(order, receive)) => {
                woken_for = receive;
                Some(order)
            }
            Some(StalledSender::Assigned(receive)) => {
                arrival.order = self.next_arrival();
                return ArrivalOutcome::Matched(receive.into());
            }
            Some(StalledSender::Claimed) => {
                self.stalled_senders
                    .insert(connection, StalledSender::Claimed);
                return ArrivalOutcome::Stalled;
            }
        };
        // 2. Match the message with the oldest posted receive: one hash lookup per mask class.
        if let Some(at) = self.posted.find(arrival) {
            arrival.order = self.next_arrival();
            let receive = self.posted.take_and_arm(at, arrival.len, may_arm);
            // The room that the connection was woken for is free for other stalled connections, and
            // so is the rest of a buffer.
            if stalled_order.is_some() {
                self.wake_for_space(Some(arrival.source));
            }
            if let Some(woken_for) = woken_for.filter(|key| *key != at) {
                self.wake_for(woken_for);
            }
            self.wake_for(at);
            return ArrivalOutcome::Matched(receive);
        }
        // 3. Admit the message to the store, unless another message has waited longer for room.
        let first = self.stalled.first_stalled(ListKey::StalledOnTotal);
        let first = first.map(|key| self.stalled.order(key));
        let queued = first.is_some_and(|first| stalled_order.is_none_or(|order| first < order));
        let list = match self.admission.evaluate(arrival, cost, queued) {
            Admission::Granted => {
                arrival.order = self.next_arrival();
                self.admission.charge(arrival, cost);
                return ArrivalOutcome::Store;
            }
            refused => stall_list(refused, arrival),
        };
        // 4. Stall the connection; its message keeps its order.
        let order = stalled_order.unwrap_or_else(|| self.next_arrival());
        let entry = MessageEntry {
            arrival: *arrival,
            cost,
            body: MessageBody::Stalled(list),
        };
        let key = self.stalled.insert(order, entry);
        self.stalled_senders
            .insert(connection, StalledSender::Queued(key));
        ArrivalOutcome::Stalled
    }

    /// Stores a complete admitted message, or matches it with a receive that was posted meanwhile.
    pub(crate) fn store_message(
        &mut self,
        message: ReceivedMessage,
    ) -> Option<(MatchedReceive, ReceivedMessage)> {
        let arrival = message.arrival;
        let cost = cost_of(arrival.len);
        if let Some(at) = self.posted.find(&arrival) {
            self.release_charge(&arrival, cost);
            return Some((self.posted.take(at, message.len as u64), message));
        }
        self.insert(message, cost);
        None
    }

    /// Releases an admitted message that will not be complete.
    pub(crate) fn abort_message(&mut self, arrival: &Arrival) {
        self.release_charge(arrival, cost_of(arrival.len));
    }

    /// Removes a withdrawn announcement, if no receive has been matched with it.
    pub(crate) fn withdraw_announcement(&mut self, arrival: &Arrival) {
        let found = self.unexpected.announced(arrival.connection, arrival.order);
        let entry = match found.and_then(|at| self.unexpected.remove(at)) {
            Some((_, entry)) => Some(entry),
            None => self.take_claimed_announcement(arrival),
        };
        if let Some(entry) = entry {
            self.release_charge(&entry.arrival, entry.cost);
        }
    }

    /// Removes all announcements of a connection, which will request none of these messages.
    pub(crate) fn forget_announcements(&mut self, connection: ConnectionId) {
        while let Some(at) = self.unexpected.first_announced(connection)
            && let Some((_, entry)) = self.unexpected.remove(at)
        {
            self.release_charge(&entry.arrival, entry.cost);
        }
        self.drop_claims(connection);
    }

    /// Requeues a message whose receive was dropped: matches it again, or stores it in its order,
    /// even beyond the budget.
    pub(crate) fn requeue_message(
        &mut self,
        message: ReceivedMessage,
    ) -> Option<(MatchedReceive, ReceivedMessage)> {
        if let Some(at) = self.posted.find(&message.arrival) {
            return Some((self.posted.take(at, message.len as u64), message));
        }
        let cost = cost_of(message.len as u64);
        self.admission.charge(&message.arrival, cost);
        self.insert(message, cost);
        None
    }

    /// Notes that the peer of this connection holds a message back until it gets credit: the
    /// connection is woken when any of its messages leaves the store.
    pub(crate) fn request_credit_wake(&mut self, connection: ConnectionId) {
        self.admission.request_credit_wake(connection);
    }

    // Helpers.

    fn next_receive(&mut self) -> u64 {
        self.receives += 1;
        self.receives
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn insert(&mut self, message: ReceivedMessage, cost: u64) {
        let arrival = message.arrival;
        let entry = MessageEntry {
            arrival,
            cost,
            body: MessageBody::Buffered(message),
        };
        self.unexpected.insert(arrival.order, entry);
    }

    /// Takes the oldest stored message for a receive with these criteria.
    fn take_unexpected(
        &mut self,
        wanted: MatchCriteria,
        source: Option<SourceId>,
    ) -> Option<MessageBody> {
        let (_, entry) = self
            .unexpected
            .remove(self.unexpected.find(wanted, source)?)?;
        self.release_charge(&entry.arrival, entry.cost);
        Some(entry.body)
    }

    /// Releases the bytes charged for a message, and wakes connections that may use the room.
    fn release_charge(&mut self, arrival: &Arrival, cost: u64) {
        if self.admission.release(arrival, cost) {
            self.wakes.push_back(arrival.connection);
        }
        self.recheck_admission(arrival.connection);
        self.wake_for_space(Some(arrival.source));
    }

    /// The number of lists that memory is allocated for.
    #[cfg(test)]
    pub(crate) fn lists_kept(&self) -> usize {
        self.unexpected.lists_kept()
    }

    /// Checks all that must hold between two calls.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.posted.check();
        self.unexpected.check();
        self.stalled.check();
        self.admission.check();
        for (_, entry) in self.unexpected.iter() {
            assert_eq!(
                self.posted.find(&entry.arrival),
                None,
                "what fits is matched"
            );
        }
        let asks = |stall: &StalledSender| matches!(stall, StalledSender::Woken(..));
        if !self.stalled_senders.values().any(asks) {
            for (_, entry) in self.stalled.iter() {
                let found = self.posted.find(&entry.arrival);
                assert_eq!(found, None, "what waits for a receive is woken by it");
            }
        }
        let waits = |stall: &StalledSender| matches!(stall, StalledSender::Queued(_));
        let stalled = self
            .stalled_senders
            .values()
            .filter(|stall| waits(stall))
            .count();
        assert_eq!(
            stalled,
            self.stalled.len(),
            "every queued message has a stalled sender"
        );
        let kept = self.unexpected.iter().map(|(_, entry)| entry.cost);
        assert!(
            kept.sum::<u64>() <= self.admission.held(),
            "every stored message is charged"
        );
    }
}

/// Returns the bytes charged for a message of this length.
fn cost_of(len: u64) -> u64 {
    len.saturating_add(UNEXPECTED_OVERHEAD as u64)
}
