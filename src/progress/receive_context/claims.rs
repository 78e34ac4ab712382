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
use super::state::ContextState;
use super::{ClaimId, ReceiveContext, ReceiveSelector};

impl ReceiveContext {
    /// Returns the oldest message that such a receive would take (`FI_PEEK`), whether stored,
    /// announced, or stalled in its connection.
    pub(crate) fn peek(&self, selector: ReceiveSelector) -> Option<Arrival> {
        self.lock("peek")
            .matcher
            .peek(selector.wanted, selector.source)
    }

    /// Claims that message: only a receive that names the claim gets it (`FI_PEEK | FI_CLAIM`).
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
            if !state.reserve(&mut record, deferred) {
                let error = Error::new(ErrorKind::Again, "the completion queue is full");
                return Err((error, record));
            }
            let key = state.receives.insert(ReceiveOpState::Claimed);
            state.start_timeout(key, record.options.timeout, deferred);
            let receive = receive_of(key, record);
            state
                .take_claimed(claimed, receive, deferred)
                .map_err(|refused| {
                    state.receives.remove(key);
                    let error = Error::new(ErrorKind::NoMessage, "its sender is gone");
                    (error, refused.record)
                })?;
            Ok(PostedOp { key, waiting: None })
        });
        // Dropped without the lock: freeing the record's slot wakes tasks.
        received.map_err(|(error, mut record)| {
            let error = error.with_operation(OperationKind::Receive);
            (error, record.take_payload())
        })
    }

    /// Discards the claimed message (`FI_CLAIM | FI_DISCARD`). Returns false if it is gone.
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
                Some(ClaimedReceive::Unexpected(receive, message)) => {
                    state.complete_match(receive.key, deferred);
                    deferred.deliveries.push((receive, message));
                }
                Some(ClaimedReceive::Announced(receive, announcement)) => {
                    state.mark_matched(receive.key, deferred);
                    state.queue_clear_to_send(receive, announcement, deferred);
                }
            }
        });
    }

    /// Discards the oldest message that such a receive would take (`FI_PEEK | FI_DISCARD`).
    pub(crate) fn discard(&self, selector: ReceiveSelector) -> Option<Arrival> {
        self.with_state("discard", |state, deferred| {
            let (claim, arrival) = state.matcher.claim(selector.wanted, selector.source)?;
            state.drop_claimed(ClaimId(claim), deferred);
            Some(arrival)
        })
    }
}

impl ContextState {
    fn take_claimed(
        &mut self,
        claimed: ClaimId,
        receive: PostedReceive<Report>,
        deferred: &mut DeferredWork<'_>,
    ) -> Result<(), PostedReceive<Report>> {
        match self.matcher.take_claimed(claimed.0, receive)? {
            ClaimedReceive::Unexpected(receive, message) => {
                self.receives.remove(receive.key);
                deferred.deliveries.push((receive, message));
            }
            ClaimedReceive::Announced(receive, announcement) => {
                self.queue_clear_to_send(receive, announcement, deferred)
            }
            ClaimedReceive::Pending => {}
        }
        Ok(())
    }

    /// Receives a claimed message into an empty buffer, without a report. A message that has not
    /// come yet is received too, since its sender waits for that.
    fn drop_claimed(&mut self, claimed: ClaimId, deferred: &mut DeferredWork<'_>) -> bool {
        let no_key = OpKey::from_bits(u64::MAX);
        let options = PostOptions::default();
        let sink = Operation::new(OpKind::Receive, Payload::empty(), Report::Counted, options);
        let sink = receive_of(no_key, OwnedRecord::new(sink));
        self.take_claimed(claimed, sink, deferred).is_ok()
    }

    /// Marks a receive, or a part of a multi-receive buffer, as matched with a message that has not
    /// come yet.
    pub(super) fn mark_matched(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        match self.receives.get(key) {
            Some(ReceiveOpState::Multi(receive, _)) => {
                if !self.matcher.is_armed(*receive) {
                    self.arm(key, deferred);
                }
            }
            None | Some(ReceiveOpState::Claimed) => {}
            Some(_) => self.receives.set(key, ReceiveOpState::Matched),
        }
    }
}

/// Makes a receive that is not posted: it takes a claimed message and no other.
fn receive_of(key: OpKey, record: OpRecord) -> PostedReceive<Report> {
    PostedReceive {
        record,
        wanted: MatchCriteria::Message,
        source: None,
        order: 0,
        key,
    }
}
