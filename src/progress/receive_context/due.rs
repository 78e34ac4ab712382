//! What is to be done once the lock of a receive context is released: messages are copied to their
//! receives, ends are told, wakers woken.

use std::sync::Arc;

use crate::buf::{BufferCursor, Payload};
use crate::cq::CqSlot;
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::progress::publish::{CompletionContext, Undelivered};
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, ClearToSend, EarlyMessage, End, Found, Kind, OpKey, PostedReceive,
};
use crate::sync::WakeList;

use super::many::ManyReceive;
use super::{AttachedPort, Op, ReceiveContext, State, lock_cleared};

/// What one or several calls have left to do.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) delivered: Vec<(PostedReceive<Report>, EarlyMessage)>,
    pub(super) ended: Vec<(Report, End)>,
    pub(super) ended_many: Vec<(Arc<ManyReceive>, Result<(), Error>, BufferCursor)>,
    /// Places in queues that are not needed: freeing one wakes those who wait for it.
    places: Vec<CqSlot>,
    /// Of connections that have gone: their wakers are dropped with no lock held.
    pub(super) ports: Vec<AttachedPort>,
    pub(super) wakes: WakeList,
    pub(super) leftovers: Vec<Payload>,
}

impl Due {
    /// The token of a part that no message got.
    pub(super) fn put_away(&mut self, unused: Report) {
        match unused {
            Report::Piece { slot, .. } => self.places.push(slot),
            other => debug_assert!(false, "the token of a part: {other:?}"),
        }
    }

    fn is_done(&self) -> bool {
        self.delivered.is_empty() && self.ended.is_empty() && self.ended_many.is_empty()
    }
}

/// The end of a receive that got no message.
pub(super) fn ended(payload: Payload, error: Error, phase: Phase) -> End {
    let error = error.with_operation(OperationKind::Receive);
    End {
        operation: OperationKind::Receive,
        result: Err(error.with_phase(phase)),
        len: 0,
        overflow: 0,
        data: None,
        tag: None,
        source: None,
        connection: None,
        order: 0,
        from: None,
        payload,
    }
}

/// The message whose receive ended so, if it is one of a context.
pub(in crate::progress) fn message_of(end: End) -> Result<EarlyMessage, Payload> {
    let (Some(source), Some(connection)) = (end.source, end.connection) else {
        return Err(end.payload);
    };
    // A region is not where a message waits: its owner writes there, and may take it away. One that
    // is taken away already took the message along.
    let Ok(payload) = end.payload.apart_from_regions(end.len) else {
        return Err(Payload::empty());
    };
    let arrival = Arrival {
        source,
        connection,
        kind: Kind::of(end.tag),
        len: (end.len as u64).saturating_add(end.overflow as u64),
        data: end.data,
        order: end.order,
    };
    Ok(EarlyMessage {
        arrival,
        payload,
        len: end.len,
        overflow: end.overflow,
    })
}

/// Copies a message to its receive.
fn deliver(receive: PostedReceive<Report>, early: EarlyMessage) -> (Report, End) {
    let PostedReceive {
        token, mut payload, ..
    } = receive;
    let arrival = early.arrival;
    let len = early.len.min(payload.len());
    let overflow = early.overflow + (early.len - len);
    let (result, len) = match payload.copy_from(&early.payload, len) {
        Err(denied) => (Err(denied.error("a message was copied to it")), 0),
        Ok(()) if overflow == 0 => (Ok(()), len),
        Ok(()) => {
            let message = format!("{} bytes came, {len} fit", len + overflow);
            (Err(Error::new(ErrorKind::Truncated, message)), len)
        }
    };
    let result = result.map_err(|error| {
        let error = error.with_operation(OperationKind::Receive);
        error.with_phase(Phase::Moving)
    });
    let end = End {
        operation: OperationKind::Receive,
        result,
        len,
        overflow,
        data: arrival.data,
        tag: arrival.kind.tag(),
        source: Some(arrival.source),
        connection: Some(arrival.connection),
        order: arrival.order,
        from: None,
        payload,
    };
    (token, end)
}

impl ReceiveContext {
    pub(super) fn completion_context(&self) -> CompletionContext<'_> {
        CompletionContext {
            endpoint: self.config.endpoint,
            counter: self.config.counter.as_ref(),
            sources: self.config.sources.as_ref(),
            sender: None,
        }
    }

    /// Does what is due, with the context's lock released. What is left of it is to be woken and
    /// dropped with no lock held.
    pub(super) fn carry_out(&self, mut due: Due) -> Due {
        while !due.is_done() {
            self.tell(&mut due);
        }
        due
    }

    fn tell(&self, due: &mut Due) {
        let completion_context = self.completion_context();
        for (receive, early) in std::mem::take(&mut due.delivered) {
            due.ended.push(deliver(receive, early));
        }
        for (mut report, mut end) in std::mem::take(&mut due.ended) {
            match completion_context.deliver(&mut report, &mut end, &mut due.wakes) {
                Undelivered::Nothing => {}
                Undelivered::Memory => due.leftovers.push(end.payload),
                Undelivered::Message => match message_of(end) {
                    Ok(early) => self.keep_again(early, due),
                    Err(payload) => due.leftovers.push(payload),
                },
            }
        }
        for (many, result, carving) in std::mem::take(&mut due.ended_many) {
            many.finish(result, carving, &completion_context, &mut due.wakes);
        }
    }

    /// Ruling 4: "a message already matched to it goes back to the head of the early messages".
    pub(super) fn keep_again(&self, early: EarlyMessage, due: &mut Due) {
        let mut state = self.lock("give back");
        if state.closed.is_some() {
            due.leftovers.push(early.payload);
            return;
        }
        if let Some((receive, early)) = state.matcher.give_back(early) {
            state.matched(receive.key, due);
            due.delivered.push((receive, early));
        }
        state.settle(due);
    }
}

impl State {
    /// The receive of this name, or a part of it, has got a message.
    pub(super) fn matched(&mut self, key: OpKey, due: &mut Due) {
        match self.ops.get(key) {
            Some(Op::Many(..)) => self.arm(key, due),
            _ => drop(self.ops.remove(key)),
        }
    }

    /// The connection that has taken the receive tells its end.
    pub(super) fn finished(&mut self, key: OpKey) {
        if let Some(Op::Taken { .. } | Op::Claiming) = self.ops.get(key) {
            self.ops.remove(key);
        }
    }

    pub(super) fn put_back(
        &mut self,
        receive: PostedReceive<Report>,
        due: &mut Due,
        completion_context: &CompletionContext<'_>,
        gone: Error,
    ) {
        let PostedReceive {
            key,
            token,
            payload,
            ..
        } = receive;
        let error = match (&token, self.ops.get(key), &self.closed) {
            (Report::Piece { .. }, ..) => {
                if let Report::Piece { many, slot } = token {
                    due.places.push(slot);
                    let unused = match self.ops.get(key) {
                        Some(Op::Many(receive, _)) => self.matcher.put_part_back(*receive, payload),
                        _ => Some(payload),
                    };
                    due.leftovers.extend(unused);
                    many.let_go(completion_context, &mut due.wakes);
                }
                return;
            }
            // The receive of a claimed message, or of one that nobody wants.
            (_, None | Some(Op::Claiming), _) => gone,
            (_, _, Some(error)) => error.clone(),
            (_, Some(Op::Taken { canceled: true }), _) => Error::new(ErrorKind::Canceled, ""),
            _ => {
                let receive = PostedReceive {
                    token,
                    payload,
                    ..receive
                };
                let found = self.matcher.give_back_receive(receive);
                self.found(key, found, due);
                return;
            }
        };
        self.ops.remove(key);
        due.ended
            .push((token, ended(payload, error, Phase::Queued)));
    }

    /// A receive was matched with an announced message: the connection asks for that in its turn.
    pub(super) fn clear(
        &mut self,
        receive: PostedReceive<Report>,
        announcement: Announcement,
        due: &mut Due,
    ) {
        let port = self.ports.get(&announcement.arrival.connection);
        // A connection that leaves has its announcements forgotten under the same lock.
        let port = port.expect("the connection of a kept announcement is attached");
        lock_cleared(&port.cleared).push_back(ClearToSend {
            receive,
            announcement,
        });
        due.wakes.push(port.waker.clone());
    }

    /// A receive was posted, or was matched at once.
    pub(super) fn found(&mut self, key: OpKey, found: Found<Report>, due: &mut Due) {
        let op = match found {
            Found::Nothing(receive) => Op::Posted(receive),
            Found::Announced(receive, announcement) => {
                self.clear(receive, announcement, due);
                Op::Taken { canceled: false }
            }
            Found::Early(receive, early) => {
                due.delivered.push((receive, early));
                self.ops.remove(key);
                return;
            }
        };
        if let Some(at) = self.ops.get_mut(key) {
            *at = op;
        }
    }
}
