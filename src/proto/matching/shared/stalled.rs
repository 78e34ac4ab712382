//! Stalled senders: a message that is neither matched nor admitted stays with its connection, in
//! the socket or collected, and the connection stops reading until the matcher wakes it.
//!
//! ```text
//!   begin_message ──no room──▶ Queued ──a receive, or room──▶ Woken ──asks again──▶ (not stalled)
//!                               │  ▲
//!                         claim │  │ the claim is released
//!                               ▼  │
//!                             Claimed ──its receive──▶ Assigned ──asks again──▶ matched
//! ```
//! A connection may ask again at any time; its entry is then evaluated again. A connection that
//! detaches leaves any of these states.

use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::Key;

use super::super::admission::Admission;
use super::super::message_index::ListKey;
use super::super::{Arrival, PostedReceive};
use super::{ReceiveKey, SharedMatcher};

/// A connection whose message was stalled, and which has not asked again since.
#[derive(Debug)]
pub(super) enum StalledSender {
    /// The message is in the index of stalled messages.
    Queued(Key),
    /// The connection was woken, for this receive or for room. The number is its message's order.
    Woken(u64, Option<ReceiveKey>),
    /// The message is claimed.
    Claimed,
    /// The message was claimed, and this receive takes it.
    Assigned(PostedReceive),
}

impl SharedMatcher {
    /// Takes the next connection to wake: it may read on, or it owes its peer credit.
    pub(crate) fn poll_wake(&mut self) -> Option<ConnectionId> {
        self.wakes.pop_front()
    }

    /// Evaluates the stalled message of this connection again. A message within the connection's
    /// promise is admitted at once, even if others have waited longer.
    pub(super) fn recheck_admission(&mut self, connection: ConnectionId) {
        if let Some(StalledSender::Queued(key)) = self.stalled_senders.get(&connection)
            && let Some(entry) = self.stalled.get(*key)
        {
            match self.admission.evaluate(&entry.arrival, entry.cost, true) {
                Admission::Granted => self.wake(connection, None),
                refused => {
                    let list = stall_list(refused, &entry.arrival);
                    self.stalled.stall_in(*key, list);
                }
            }
        }
    }

    /// Wakes the connection of the oldest stalled message that this receive takes.
    pub(super) fn wake_for(&mut self, receive: ReceiveKey) {
        if self.stalled.len() > 0
            && let Some((wanted, source)) = self.posted.takes(receive)
            && let Some(at) = self.stalled.find(wanted, source)
            && let Some(entry) = self.stalled.get(at)
        {
            self.wake(entry.arrival.connection, Some(receive));
        }
    }

    /// Wakes stalled connections in order, as far as released bytes of this sender's quota, or of
    /// the store, allow.
    pub(super) fn wake_for_space(&mut self, source: Option<SourceId>) {
        let of_source = source.map(ListKey::StalledOnQuota);
        let of_all = [ListKey::StalledOnPromise, ListKey::StalledOnTotal];
        for list in of_source.into_iter().chain(of_all) {
            // The bytes that connections woken here will be charged when they ask again.
            let mut granted = 0;
            while let Some(key) = self.stalled.first_stalled(list)
                && let Some(entry) = self.stalled.get(key)
            {
                let (arrival, cost) = (entry.arrival, entry.cost);
                let next_list = match self.admission.evaluate(&arrival, cost, false) {
                    Admission::Granted if self.admission.is_free(granted + cost) => {
                        granted += cost;
                        self.wake(arrival.connection, None);
                        continue;
                    }
                    Admission::Granted if list == ListKey::StalledOnPromise => break,
                    Admission::Granted => Some(ListKey::StalledOnTotal),
                    refused => stall_list(refused, &arrival),
                };
                if next_list == Some(list) {
                    break;
                }
                self.stalled.stall_in(key, next_list);
            }
        }
    }

    /// Wakes a connection whose message is queued.
    pub(super) fn wake(&mut self, connection: ConnectionId, receive: Option<ReceiveKey>) {
        if let Some(sender) = self.stalled_senders.get_mut(&connection)
            && let StalledSender::Queued(key) = *sender
            && let Some((order, _)) = self.stalled.remove(key)
        {
            *sender = StalledSender::Woken(order, receive);
            self.wakes.push_back(connection);
        }
    }
}

/// Returns the list in which a refused message waits.
pub(super) fn stall_list(refused: Admission, arrival: &Arrival) -> Option<ListKey> {
    match refused {
        Admission::Granted | Admission::TooLarge => None,
        Admission::OverQuota => Some(ListKey::StalledOnQuota(arrival.source)),
        Admission::Overcommitted => Some(ListKey::StalledOnPromise),
        Admission::StoreFull => Some(ListKey::StalledOnTotal),
    }
}
