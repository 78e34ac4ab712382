//! Peeking at unexpected messages, claiming them and discarding them (`FI_PEEK`, `FI_CLAIM`,
//! `FI_DISCARD` of fi_tagged(3)).

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind};
use crate::progress::port::PostedOp;
use crate::progress::report::{OpRecord, Report};
use crate::proto::{
    Arrival, ClaimedReceive, MatchCriteria, OpKey, OpKind, Operation, PostOptions, PostedReceive,
};
use crate::sync::OwnedRecord;

use super::deferred::DeferredWork;
use super::op_state::ReceiveOpState;
use super::state::{ContextState, reserve};
use super::{ClaimId, ReceiveContext, ReceiveSelector};

impl ReceiveContext {
    /// Returns the oldest message that a receive with this selector would take (`FI_PEEK`), whether
    /// stored, announced, or stalled in its connection.
    pub(crate) fn peek(&self, selector: ReceiveSelector) -> Option<Arrival> {
        self.lock("peek")
            .matcher
            .peek(selector.wanted, selector.source)
    }

    /// Claims the message that [`ReceiveContext::peek`] finds: only a receive that names the claim
    /// gets the message (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(&self, selector: ReceiveSelector) -> Option<(ClaimId, Arrival)> {
        self.with_state("claim", |state, _| {
            let (claim, arrival) = state.matcher.claim(selector.wanted, selector.source)?;
            Some((ClaimId(claim), arrival))
        })
    }

    /// Receives the claimed message (`FI_CLAIM`).
    ///
    /// Fails with Again if the completion queue has no free slot: the claim stays valid. Fails with
    /// `NoMessage` if the sender's connection ended before the message was complete.
    pub(crate) fn receive_claimed(
        &self,
        claimed: ClaimId,
        mut record: OpRecord,
    ) -> Result<PostedOp, (Error, Payload)> {
        let received = self.with_state("receive claimed", |state, deferred| {
            if let Some(error) = state.closed.clone() {
                return Err((error, record));
            }
            if !reserve(state.driver.as_ref(), &mut record, deferred) {
                let error = Error::new(ErrorKind::Again, "the completion queue is full");
                return Err((error, record));
            }
            let timeout = record.options.timeout;
            let key = state
                .take_claimed(claimed, record, deferred)
                .map_err(|it| {
                    let error = Error::new(ErrorKind::NoMessage, "its sender is gone");
                    (error, it)
                })?;
            state.start_timeout(key, timeout, deferred);
            Ok(PostedOp { key, waiting: None })
        });
        // Dropped without the lock: freeing the record's slot wakes tasks.
        received.map_err(|(error, mut record)| {
            let error = error.with_operation(OperationKind::Receive);
            (error, record.take_payload())
        })
    }

    /// Discards the claimed message (`FI_CLAIM | FI_DISCARD`). Returns false if the message is
    /// gone.
    pub(crate) fn discard_claimed(&self, claimed: ClaimId) -> bool {
        self.with_state("discard claimed", |state, deferred| {
            state.drop_claimed(claimed, deferred)
        })
    }

    /// Releases the claim: the message is matched again, in its order.
    pub(crate) fn release_claimed(&self, claimed: ClaimId) {
        self.with_state("release claimed", |state, deferred| {
            match state.matcher.release(claimed.0) {
                None | Some(ClaimedReceive::Pending) => {}
                Some(ClaimedReceive::Unexpected(matched, message)) => {
                    let key = matched.receive.key;
                    state.give(matched, message, deferred);
                    state.arm_next(key, deferred);
                }
                Some(ClaimedReceive::Announced(matched, announcement)) => {
                    let key = matched.receive.key;
                    state.queue_clear_to_send(matched, announcement, deferred);
                    state.arm_next(key, deferred);
                }
            }
        });
    }

    /// Discards the oldest message that a receive with this selector would take
    /// (`FI_PEEK | FI_DISCARD`).
    pub(crate) fn discard(&self, selector: ReceiveSelector) -> Option<Arrival> {
        self.with_state("discard", |state, deferred| {
            let (claim, arrival) = state.matcher.claim(selector.wanted, selector.source)?;
            state.drop_claimed(ClaimId(claim), deferred);
            Some(arrival)
        })
    }
}

impl ContextState {
    /// Matches a claimed message with this receive, and returns the receive's key. `Err` returns
    /// the receive: the message does not come.
    fn take_claimed(
        &mut self,
        claimed: ClaimId,
        record: OpRecord,
        deferred: &mut DeferredWork<'_>,
    ) -> Result<OpKey, OpRecord> {
        let key = self.receives.insert(record, ReceiveOpState::Claimed);
        let receive = PostedReceive {
            wanted: MatchCriteria::Message,
            source: None,
            order: 0,
            key,
        };
        match self.matcher.take_claimed(claimed.0, receive) {
            None => {
                let receive = self.receives.remove(key).expect("it was just entered");
                return Err(receive.record);
            }
            Some(ClaimedReceive::Unexpected(matched, message)) => {
                self.give(matched, message, deferred);
            }
            Some(ClaimedReceive::Announced(matched, announcement)) => {
                self.queue_clear_to_send(matched, announcement, deferred);
            }
            Some(ClaimedReceive::Pending) => {}
        }
        Ok(key)
    }

    /// Receives a claimed message into an empty buffer, without a report. A message that has not
    /// come yet is received too, since its sender waits.
    fn drop_claimed(&mut self, claimed: ClaimId, deferred: &mut DeferredWork<'_>) -> bool {
        let options = PostOptions::default();
        let sink = Operation::new(OpKind::Receive, Payload::empty(), Report::Counted, options);
        self.take_claimed(claimed, OwnedRecord::new(sink), deferred)
            .is_ok()
    }
}
