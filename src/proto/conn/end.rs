//! The end of a connection: all its operations end once, with the reason.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::event::ConnEvent;
use crate::proto::op::OpKey;

use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use super::{Connection, Lifecycle};

impl<T> Connection<T> {
    /// Notes why the connection must end. The owner sees [`Connection::fault`], takes all memory
    /// back from the transport and then calls [`Connection::handle_closed`].
    pub(crate) fn fail(&mut self, error: Error) {
        if self.fault.is_none() && !self.lifecycle.is_closed() {
            self.fault = Some(match self.lifecycle {
                Lifecycle::Connected => error.ending_connection(),
                _ => error,
            });
        }
    }

    /// Gives up the memory that the transport holds, since the transport is gone: the operations
    /// concerned end without their memory. Called only when the progress driver ends.
    pub(crate) fn forget_submitted(&mut self) {
        self.tx.forget_submitted();
        // A message ends with the connection, without its memory.
        let is_message = |target: &PayloadTarget| {
            matches!(
                target,
                PayloadTarget::Unexpected { .. } | PayloadTarget::Receive { .. }
            )
        };
        let is_gone = |transfer: &PayloadInProgress| {
            transfer.payload.is_none() && !is_message(&transfer.target)
        };
        if matches!(&self.rx, ReceiveState::Payload(transfer) if is_gone(transfer)) {
            self.rx.close();
        }
    }

    /// Ends all operations, in the order in which they were posted, then the connection itself. The
    /// transport holds none of the connection's memory any more.
    pub(crate) fn handle_closed(&mut self, host: &mut impl Host<T>) {
        if self.lifecycle.is_closed() {
            return;
        }
        if self.close.is_in_order() && !self.close.is_requested() {
            self.fail(Error::new(ErrorKind::PeerClosed, "in order"));
        }
        let error = self.why_ended();
        let lost = self.why_lost();
        let was = self.lifecycle;
        let never_up = matches!(was, Lifecycle::Connecting | Lifecycle::Accepting);
        self.lifecycle.go(Lifecycle::Closed {
            in_order: !never_up && lost.is_none(),
        });
        self.handshake = None;
        self.complete_all(&error, host);
        self.admit_from(true, host);
        let closing = match never_up {
            true => ConnEvent::ConnectFailed { error },
            false => ConnEvent::Closed {
                connected: was == Lifecycle::Connected,
                lost,
            },
        };
        self.events.push(closing);
        self.invariants();
    }

    /// Ends a failed attempt, and all operations in the order in which they were posted. The
    /// transport holds no memory of the attempt any more. Another attempt may follow, as after
    /// [`reset_attempt`](Self::reset_attempt).
    pub(crate) fn handle_attempt_failed(&mut self, host: &mut impl Host<T>) {
        let canceled = || Error::new(ErrorKind::Canceled, "the attempt was given up");
        let error = self.fault.clone().unwrap_or_else(canceled);
        self.complete_all(&error, host);
        self.reset_attempt();
        self.events.push(ConnEvent::ConnectFailed { error });
    }

    /// Returns the error of operations that end with the connection.
    pub(crate) fn why_ended(&self) -> Error {
        let why = self.fault.clone().or_else(|| self.cause_error());
        why.unwrap_or_else(|| Error::new(ErrorKind::Canceled, "the endpoint was closed"))
    }

    fn complete_all(&mut self, error: &Error, host: &mut impl Host<T>) {
        self.collect_memory(error, host);
        let injected = self.tx.injected.fail_all(error);
        self.injected_ended(injected);
        // Receives that wait for room keep waiting if there are complete messages for them.
        let mut served = self.own().map_or(0, |own| own.context.backlog.len());
        for key in self.ops.keys_by_age() {
            if served > 0 && self.is_waiting_receive(key) {
                served -= 1;
                continue;
            }
            if let Some(op) = self.ops.get_mut(key) {
                op.payload.get_or_insert_with(Payload::empty);
            }
            match self.ops.get(key).and_then(|op| op.answer) {
                Some(answer) => self.complete_answered(key, answer),
                None => self.complete(key, Err(error.clone()), 0),
            }
        }
        self.awaited_acks.clear();
        self.awaited_reads.clear();
        self.tx_context.used -= std::mem::take(&mut self.tx_context.abandoned);
    }

    fn is_waiting_receive(&self, key: OpKey) -> bool {
        let op = self.ops.get(key);
        op.is_some_and(|op| op.phase == Phase::Waiting && op.is_receive())
    }

    /// Returns true while messages are left that came before the connection was lost: a receive for
    /// such a message may have to wait for room, and a later turn admits it.
    pub(crate) fn serves_receives(&self) -> bool {
        self.fault.is_some() && self.own().is_some_and(|own| own.served_after_loss() > 0)
    }

    /// Returns true once the last message from before the loss has been taken: turns are useless
    /// then.
    pub(crate) fn has_served_receives(&self) -> bool {
        let own = self.own().filter(|own| !own.context.ignores_backlog);
        self.lifecycle.is_closed() && own.is_some_and(|own| own.served_after_loss() == 0)
    }

    /// Ends the receives that wait for room, since no more turns follow.
    pub(crate) fn end_service(&mut self) {
        if let Some(own) = self.own_mut() {
            own.context.ignores_backlog = true;
            self.end_unserved();
        }
    }

    /// Ends the receives that wait for room after the end, and for which no message is left.
    pub(super) fn end_unserved(&mut self) {
        if !self.lifecycle.is_closed() {
            return;
        }
        let Some(own) = self.own_mut() else { return };
        let served = own.served_after_loss().min(own.context.backlog.len());
        let unserved = own.context.backlog.split_off(served);
        if unserved.is_empty() {
            return;
        }
        let error = self.why_ended();
        for key in unserved {
            self.complete(key, Err(error.clone()), 0);
        }
    }

    /// Returns why the connection did not end in order, if it did not.
    fn why_lost(&self) -> Option<Error> {
        if self.close.is_in_order() {
            return None;
        }
        let why = self.fault.clone().or_else(|| self.cause_error());
        why.or_else(|| {
            let what = "the peer did not agree to the end in time";
            self.knows_close()
                .then(|| Error::new(ErrorKind::TimedOut, what).ending_connection())
        })
    }

    /// Empties the queues. Memory in frames, and memory that is being filled, goes back to its
    /// operations; memory that the transport never gave back (its driver is gone) is missing. Ends
    /// shared receives with this error.
    fn collect_memory(&mut self, error: &Error, host: &mut impl Host<T>) {
        for (key, payload) in self.tx.drain() {
            self.give_memory(key, payload);
        }
        self.tx_context.backlog.clear();
        let mut matched = Vec::new();
        if let ReceiveState::Payload(transfer) = self.rx.close() {
            match (transfer.target, transfer.payload) {
                (PayloadTarget::Read { op } | PayloadTarget::ReadData { op }, Some(payload)) => {
                    self.give_memory(op, payload)
                }
                (
                    PayloadTarget::Receive {
                        receive, failed, ..
                    },
                    buffer,
                ) => {
                    if self.own().is_some() {
                        if let Some(op) = self.ops.get_mut(receive) {
                            op.failed = failed;
                            op.payload = buffer;
                        }
                    } else {
                        matched.push((receive, buffer));
                    }
                }
                (PayloadTarget::Unexpected { arrival }, _) => self.abort_message(&arrival, host),
                _ => {}
            }
        }
        if let Some(binding) = self.binding_mut() {
            binding.collected = Vec::new();
            matched.extend(binding.incoming.awaiting().map(|receive| (receive, None)));
            binding.incoming.clear();
        }
        if let Some(shared) = host.shared() {
            // Forgotten first, so that a receive that is posted again matches no announcement.
            shared.forget_announcements();
            shared.fail_receives(matched, error);
        }
        let is_closed_here = self.fault.is_none();
        if let Some(own) = self.own_mut() {
            own.inboxes.abort();
            own.matcher.clear_posted();
            if is_closed_here {
                own.matcher.clear();
            }
            let served = own.served_after_loss();
            own.context.backlog.truncate(served);
        }
    }

    /// Returns memory to its operation. An operation that is answered with bytes still has its
    /// owner's memory: its frame carried no memory, or operands.
    fn give_memory(&mut self, key: OpKey, payload: Payload) {
        if let Some(op) = self.ops.get_mut(key)
            && op.payload.is_none()
        {
            op.payload = Some(payload);
        }
    }
}
