//! The receives of a connected endpoint that shares none, matched in FIFO order. Their records are
//! operations of the connection.

use crate::buf::{AccessError, Payload, try_copied};
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::event::ConnEvent;
use crate::proto::matching::fifo::FifoMatcher;
use crate::proto::matching::inbox::{InboxId, Inboxes};
use crate::proto::matching::{Arrival, ArrivalOutcome, ReceivedMessage};
use crate::proto::op::{OpKey, Operation};
use crate::slab::Slab;
use crate::sync::OwnedRecord;

use super::receive_side::ReceiveSide;
use super::receive_state::PayloadTarget;
use super::{Connection, ContextQueue};

/// The receives of a connected endpoint that shares none.
#[derive(Debug)]
pub(super) struct OwnReceives {
    pub(super) context: ContextQueue,
    pub(super) matcher: FifoMatcher,
    /// Inboxes take messages for which no receive is posted.
    pub(super) inboxes: Inboxes,
}

impl OwnReceives {
    /// Returns how many of the receives that wait for room keep waiting after a loss: as many as
    /// messages are left for them.
    pub(super) fn served_after_loss(&self) -> usize {
        match self.context.ignores_backlog {
            true => 0,
            false => self.matcher.unexpected_len(),
        }
    }
}

/// The connection's own receives, and the parts of the connection that they use.
pub(super) struct OwnView<'a, T> {
    own: &'a mut OwnReceives,
    ops: &'a mut Slab<OwnedRecord<Operation<T>>>,
    events: &'a mut Vec<ConnEvent<T>>,
    work: &'a mut u64,
    /// Number of unread bytes of the peer, once the peer has sent its last byte.
    last_bytes: Option<u64>,
}

impl<T> OwnView<'_, T> {
    /// Begins a message, and assigns its order: a receive or an inbox takes it into its buffer, or
    /// it is stored. A message that stalls skips a sequence number.
    pub(super) fn begin_message(
        &mut self,
        arrival: &mut Arrival,
    ) -> ArrivalOutcome<(PayloadTarget, Payload)> {
        let matcher = &mut self.own.matcher;
        arrival.order = matcher.next_order();
        if let Some(key) = matcher.take_posted() {
            let op = self.ops.get_mut(key);
            let op = op.expect("a posted receive is in the table");
            op.phase = Phase::Moving;
            let target = PayloadTarget::of_receive(key, *arrival);
            ArrivalOutcome::Matched((target, op.take_payload()))
        } else if let Some((inbox, buffer)) = self.own.inboxes.begin() {
            let arrival = *arrival;
            let target = PayloadTarget::Inbox { inbox, arrival };
            ArrivalOutcome::Matched((target, Payload::from_vec(buffer)))
        } else if matcher.has_room(arrival.len)
            || self.last_bytes.is_some_and(|left| arrival.len <= left)
        {
            matcher.begin_unexpected(arrival.len);
            ArrivalOutcome::Store
        } else {
            ArrivalOutcome::Stalled
        }
    }

    /// Takes the oldest posted receive, for the complete message that is next.
    #[inline]
    pub(super) fn take_posted(&mut self) -> Option<OpKey> {
        self.own.matcher.take_posted()
    }

    /// Ends a receive that was [taken](Self::take_posted) with its complete message.
    #[inline]
    pub(super) fn end_posted(&mut self, key: OpKey, data: Option<u64>, bytes: &[u8]) {
        let order = self.own.matcher.next_order();
        let op = self.ops.remove(key);
        let mut op = op.expect("a posted receive is in the table");
        op.end_with_bytes(&Arrival::for_own(bytes.len() as u64, data, order), bytes);
        self.report(op);
    }

    /// Gives a complete message to an inbox. `false`: no inbox takes it.
    #[inline]
    pub(super) fn push_to_inbox(&mut self, data: Option<u64>, bytes: &[u8]) -> bool {
        let OwnReceives {
            matcher, inboxes, ..
        } = self.own;
        !inboxes.is_empty() && inboxes.push(bytes, data, || matcher.next_order())
    }

    /// Stores a complete message. `false`: there is no room for it.
    pub(super) fn store_whole(&mut self, data: Option<u64>, bytes: &[u8]) -> bool {
        let order = self.own.matcher.next_order();
        let arrival = Arrival::for_own(bytes.len() as u64, data, order);
        if !self.own.matcher.has_room(arrival.len) {
            return false;
        }
        let Some(payload) = try_copied(bytes) else {
            return false;
        };
        self.own.matcher.begin_unexpected(arrival.len);
        self.store_message(ReceivedMessage {
            arrival,
            payload,
            len: bytes.len(),
            overflow: 0,
        });
        true
    }

    /// Stores a complete message, or gives it to a receive that was posted meanwhile, or to an
    /// inbox whose reader has made room.
    pub(super) fn store_message(&mut self, message: ReceivedMessage) {
        if let Some((key, message)) = self.own.matcher.complete_unexpected(message) {
            self.give(key, message);
        }
        self.fill_inboxes();
    }

    /// Moves unexpected messages to inboxes that have a place for them.
    pub(super) fn fill_inboxes(&mut self) {
        let OwnReceives {
            matcher, inboxes, ..
        } = self.own;
        inboxes.look_up_reads();
        while inboxes.has_place()
            && let Some(message) = matcher.take_unexpected()
        {
            inboxes.insert(message);
        }
    }

    /// Requeues a message whose receive or inbox is gone, in its order.
    pub(super) fn requeue_message(&mut self, message: ReceivedMessage) {
        let OwnReceives {
            matcher, inboxes, ..
        } = self.own;
        if matcher.posted_len() == 0 && inboxes.has_place() {
            inboxes.insert(message);
        } else if let Some((key, message)) = matcher.requeue(message) {
            self.give(key, message);
        }
    }

    /// Stores a message that an inbox had a place for when it began.
    pub(super) fn end_in_inbox(&mut self, inbox: InboxId, message: ReceivedMessage) {
        if let Some(message) = self.own.inboxes.complete(inbox, message) {
            self.requeue_message(message);
        }
    }

    /// Ends a matched receive whose message is in its buffer. `failed`: the copy to the buffer
    /// failed.
    pub(super) fn end_receive(
        &mut self,
        key: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
    ) {
        let Some(mut op) = self.ops.remove(key) else {
            return;
        };
        if !op.detached {
            op.end_with_placed(message, failed);
            return self.report(op);
        }
        // The owner is gone: the receive ends as canceled, and the message is requeued at once, so
        // that no later message is matched first.
        let copy = message.payload.copy_front(message.len);
        op.payload = Some(message.payload);
        op.set_end(Err(Error::new(ErrorKind::Canceled, "")), 0);
        self.report(op);
        if let Ok(payload) = copy {
            self.requeue_message(ReceivedMessage { payload, ..message });
        }
    }

    /// Ends a receive with an unexpected message.
    pub(super) fn give(&mut self, key: OpKey, message: ReceivedMessage) {
        if let Some(mut op) = self.ops.remove(key) {
            op.end_with_message(message);
            self.report(op);
        }
    }

    /// Reports an admitted receive that has ended, and frees its place.
    #[inline]
    fn report(&mut self, op: OwnedRecord<Operation<T>>) {
        *self.work += 1;
        self.events.push(ConnEvent::Completed(op));
        self.own.context.free(1);
    }
}

impl<T> Connection<T> {
    /// Returns a view of the connection's own receives; `None` if the connection shares receives.
    #[inline]
    pub(super) fn own_view(&mut self) -> Option<OwnView<'_, T>> {
        let ReceiveSide::Own(own) = &mut self.side else {
            return None;
        };
        Some(OwnView {
            own,
            ops: &mut self.ops,
            events: &mut self.events,
            work: &mut self.work,
            last_bytes: self.last_bytes,
        })
    }

    /// Requeues a message of the connection's own receives. Drops it if this side has closed: no
    /// receive will be posted for it.
    pub(super) fn requeue_own(&mut self, message: ReceivedMessage) {
        if self.lifecycle.is_closed() && self.fault.is_none() {
            return;
        }
        if let Some(mut own) = self.own_view() {
            own.requeue_message(message);
        }
    }
}
