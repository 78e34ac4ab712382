//! Looking at early messages, claiming them and dropping them (`FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`
//! of fi_tagged(3)).

use std::sync::Arc;
use std::time::Duration;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind};
use crate::progress::port::Posted;
use crate::progress::report::Report;
use crate::proto::{Arrival, Fetched, OpKey, PostedReceive, Wanted};

use super::due::Due;
use super::{Claimed, Op, ReceiveContext, Sought, State, TimedReport};

impl ReceiveContext {
    /// The first message that such a receive would take (`FI_PEEK`), be it here, announced, or
    /// waiting in its connection for want of room.
    pub(crate) fn peek(&self, sought: Sought) -> Option<Arrival> {
        self.lock("peek").matcher.peek(sought.wanted, sought.source)
    }

    /// The same, and only who has the claim gets it (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(&self, sought: Sought) -> Option<(Claimed, Arrival)> {
        let mut due = Due::default();
        let mut state = self.lock("claim");
        let (claim, arrival) = state.matcher.claim(sought.wanted, sought.source)?;
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        Some((Claimed(claim), arrival))
    }

    /// Receives the claimed message (`FI_CLAIM`).
    ///
    /// Again if there is no place in the completion queue: the claim is still good. `NoMessage` if
    /// the message is gone, since the connection of its sender ended before it was here.
    pub(crate) fn receive_claimed(
        &self,
        claimed: Claimed,
        payload: Payload,
        mut report: Report,
        timeout: Option<Duration>,
    ) -> Result<Posted, (Error, Payload)> {
        let refuse =
            |error: Error, payload| Err((error.with_operation(OperationKind::Receive), payload));
        let mut due = Due::default();
        let mut state = self.lock("receive claimed");
        if let Some(error) = state.closed.clone() {
            return refuse(error, payload);
        }
        if !state.reserve(&mut report, &mut due) {
            return refuse(
                Error::new(ErrorKind::Again, "the completion queue is full"),
                payload,
            );
        }
        let key = state.ops.insert(Op::Claiming);
        if let Some(timeout) = timeout {
            let timed = TimedReport::new(report);
            state.times.add(key, timeout, Arc::clone(&timed));
            report = Report::Timed(timed);
            state.wake_driver(&mut due);
        }
        let receive = receive_of(key, payload, report);
        if let Err(receive) = state.take_claimed(claimed, receive, &mut due) {
            state.ops.remove(key);
            drop(state);
            let error = Error::new(ErrorKind::NoMessage, "its sender is gone");
            return refuse(error, receive.payload);
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        Ok(Posted { key, waiting: None })
    }

    /// Drops the claimed message (`FI_CLAIM | FI_DISCARD`). False if it is gone.
    pub(crate) fn discard_claimed(&self, claimed: Claimed) -> bool {
        let mut due = Due::default();
        let mut state = self.lock("discard claimed");
        let is_there = state.drop_claimed(claimed, &mut due);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        is_there
    }

    /// Gives up the claim: the message is matched again, in its place.
    pub(crate) fn release_claimed(&self, claimed: Claimed) {
        let mut due = Due::default();
        let mut state = self.lock("release claimed");
        match state.matcher.release(claimed.0) {
            None | Some(Fetched::Coming) => {}
            Some(Fetched::Early(receive, early)) => {
                state.matched(receive.key, &mut due);
                due.delivered.push((receive, early));
            }
            Some(Fetched::Announced(receive, announcement)) => {
                state.take(receive.key, &mut due);
                state.clear(receive, announcement, &mut due);
            }
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    /// Drops the first message that such a receive would take (`FI_PEEK | FI_DISCARD`).
    pub(crate) fn discard(&self, sought: Sought) -> Option<Arrival> {
        let mut due = Due::default();
        let mut state = self.lock("discard");
        let (claim, arrival) = state.matcher.claim(sought.wanted, sought.source)?;
        state.drop_claimed(Claimed(claim), &mut due);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        Some(arrival)
    }
}

impl State {
    fn take_claimed(
        &mut self,
        claimed: Claimed,
        receive: PostedReceive<Report>,
        due: &mut Due,
    ) -> Result<(), PostedReceive<Report>> {
        match self.matcher.take_claimed(claimed.0, receive)? {
            Fetched::Early(receive, early) => {
                self.ops.remove(receive.key);
                due.delivered.push((receive, early));
            }
            Fetched::Announced(receive, announcement) => self.clear(receive, announcement, due),
            Fetched::Coming => {}
        }
        Ok(())
    }

    /// Lets a claimed message go where nobody sees it: one that has yet to come must come, since
    /// its sender waits for that.
    fn drop_claimed(&mut self, claimed: Claimed, due: &mut Due) -> bool {
        let nobody = OpKey::from_bits(u64::MAX);
        let sink = receive_of(nobody, Payload::empty(), Report::Counted);
        self.take_claimed(claimed, sink, due).is_ok()
    }

    /// A receive, or a part of one, was matched with a message that has not come.
    pub(super) fn take(&mut self, key: OpKey, due: &mut Due) {
        match self.ops.get_mut(key) {
            Some(Op::Many(..)) => self.arm(key, due),
            Some(Op::Claiming) => {} // It takes no other message should this one not come.
            None => {}
            Some(op) => *op = Op::Taken { canceled: false },
        }
    }
}

/// A receive that was not posted: it gets a claimed message and no other.
fn receive_of(key: OpKey, payload: Payload, token: Report) -> PostedReceive<Report> {
    PostedReceive {
        token,
        payload,
        wanted: Wanted::Message,
        source: None,
        order: 0,
        key,
    }
}
