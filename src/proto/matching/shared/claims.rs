//! Claims of messages (`FI_PEEK | FI_CLAIM`): a claimed message leaves the store, and only a
//! receive that names the claim gets it.

use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::Key;

use super::super::message_index::{MessageBody, MessageEntry};
use super::super::{
    Announcement, Arrival, MatchCriteria, MatchedReceive, PostedReceive, ReceivedMessage,
};
use super::SharedMatcher;
use super::stalled::StalledSender;

/// Key of a claimed message.
pub(crate) type ClaimKey = Key;

/// The result for a receive of a claimed message.
#[derive(Debug)]
pub(crate) enum ClaimedReceive {
    Unexpected(MatchedReceive, ReceivedMessage),
    Announced(MatchedReceive, Announcement),
    /// The message is stalled in its connection; the connection is woken and takes the receive.
    Pending,
}

/// A claimed message, and its order in its former index.
#[derive(Debug)]
pub(super) struct ClaimedEntry {
    order: u64,
    pub(super) entry: MessageEntry,
}

impl SharedMatcher {
    /// Claims the oldest message, stored or stalled, that a receive with these criteria would take
    /// (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(
        &mut self,
        wanted: MatchCriteria,
        source: Option<SourceId>,
    ) -> Option<(ClaimKey, Arrival)> {
        let removed = match self.unexpected.find(wanted, source) {
            Some(at) => self.unexpected.remove(at),
            None => self.stalled.remove(self.stalled.find(wanted, source)?),
        };
        let (order, entry) = removed?;
        let arrival = entry.arrival;
        if let MessageBody::Stalled(_) = entry.body {
            self.stalled_senders
                .insert(arrival.connection, StalledSender::Claimed);
            self.wake_for_space(Some(arrival.source)); // Messages behind it may be admitted now.
        }
        Some((self.claims.insert(ClaimedEntry { order, entry }), arrival))
    }

    /// Matches a claimed message with this receive, which is not posted. `None`: the message's
    /// connection ended before the message had come.
    pub(crate) fn take_claimed(
        &mut self,
        claim: ClaimKey,
        mut receive: PostedReceive,
    ) -> Option<ClaimedReceive> {
        let ClaimedEntry { entry, .. } = self.claims.remove(claim)?;
        receive.order = self.next_receive();
        let arrival = entry.arrival;
        Some(match entry.body {
            MessageBody::Stalled(_) => {
                self.stalled_senders
                    .insert(arrival.connection, StalledSender::Assigned(receive));
                self.wakes.push_back(arrival.connection);
                ClaimedReceive::Pending
            }
            MessageBody::Buffered(message) => {
                self.release_charge(&arrival, entry.cost);
                ClaimedReceive::Unexpected(receive.into(), message)
            }
            MessageBody::Announced(announcement) => {
                self.release_charge(&arrival, entry.cost);
                ClaimedReceive::Announced(receive.into(), announcement)
            }
        })
    }

    /// Releases a claim: the message goes back to the store in its order, or to a receive that was
    /// posted meanwhile.
    pub(crate) fn release(&mut self, claim: ClaimKey) -> Option<ClaimedReceive> {
        let ClaimedEntry { order, entry } = self.claims.remove(claim)?;
        let arrival = entry.arrival;
        let receive = self.posted.find(&arrival);
        if let MessageBody::Stalled(_) = entry.body {
            let key = self.stalled.insert(order, entry);
            self.stalled_senders
                .insert(arrival.connection, StalledSender::Queued(key));
            if receive.is_some() {
                self.wake(arrival.connection, receive);
            }
            self.recheck_admission(arrival.connection);
            self.wake_for_space(Some(arrival.source));
            return None;
        }
        let Some(at) = receive else {
            self.unexpected.insert(order, entry);
            return None;
        };
        let receive = self.posted.take(at, arrival.len);
        self.release_charge(&arrival, entry.cost);
        match entry.body {
            MessageBody::Buffered(message) => Some(ClaimedReceive::Unexpected(receive, message)),
            MessageBody::Announced(announcement) => {
                Some(ClaimedReceive::Announced(receive, announcement))
            }
            MessageBody::Stalled(_) => unreachable!("a stalled message was requeued above"),
        }
    }

    /// Removes a claimed announcement. A receive that names its claim finds no message from now on.
    pub(super) fn take_claimed_announcement(&mut self, arrival: &Arrival) -> Option<MessageEntry> {
        let is_it = |claim: &ClaimedEntry| {
            let is_announced = matches!(claim.entry.body, MessageBody::Announced(_));
            is_announced && claim.entry.arrival == *arrival
        };
        let found = self.claims.iter().find(|(_, claim)| is_it(claim));
        let key = found.map(|(key, _)| key)?;
        self.claims.remove(key).map(|claim| claim.entry)
    }

    /// Removes the claimed messages of a connection that are not complete.
    pub(super) fn drop_claims(&mut self, connection: ConnectionId) {
        let of_it = |claim: &ClaimedEntry| {
            let is_here = matches!(claim.entry.body, MessageBody::Buffered(_));
            claim.entry.arrival.connection == connection && !is_here
        };
        let claims = self.claims.iter();
        let void: Vec<Key> = claims
            .filter_map(|(key, claim)| of_it(claim).then_some(key))
            .collect();
        for key in void {
            if let Some(ClaimedEntry { entry, .. }) = self.claims.remove(key)
                && let MessageBody::Announced(_) = entry.body
            {
                self.release_charge(&entry.arrival, entry.cost);
            }
        }
    }
}
