//! The application's mutators of a connection: posts, cancellations and withdrawals.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::matching::ReceivedMessage;
use crate::proto::op::{OpKey, OpKind, Operation, RefusedPost, message};
use crate::sync::OwnedRecord;
use crate::wire::Capabilities;

use super::atomic::not_agreed;
use super::rdm_binding::not_matched;
use super::receive_side::ReceiveSide;
use super::tx::QueuedKind;
use super::{Connection, ContextQueue, Lifecycle, Withdrawn};

impl<T> Connection<T> {
    /// Admits an operation. If its context is full, the operation waits or is refused with Again,
    /// as its options say. Nothing overtakes a waiting operation of the same context.
    #[inline]
    pub(crate) fn post(
        &mut self,
        mut operation: OwnedRecord<Operation<T>>,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Box<RefusedPost<T>>> {
        // 1. Check the operation and the state of the connection.
        let is_receive = operation.is_receive();
        if let Err(error) = self.check_post(&operation) {
            return self.post_not_open(operation, error, host);
        }
        // 2. Take a place in the context, and reserve a completion slot.
        let context = match &mut self.side {
            ReceiveSide::Own(own) if is_receive => &mut own.context,
            _ => &mut self.tx_context,
        };
        let is_free = context.used < context.size && context.backlog.is_empty();
        let is_admitted = is_free && host.reserve(&mut operation);
        if !is_admitted && !operation.options.wait {
            return Err(RefusedPost::new(self.full(is_receive), operation));
        }
        // 3. Enter the record, which stays in the table until its result has been delivered.
        let key = self.ops.insert(operation);
        match is_admitted {
            true => self.admit(key, host),
            false => context.backlog.push_back(key),
        }
        self.invariants();
        Ok(key)
    }

    /// Admits a message whose bytes are copied, or refuses it with Again if its context is full.
    /// Its end is only counted ([`Connection::take_injected_ends`]). Not for a connectionless
    /// endpoint's connection, where a message may have to be announced or to wait for the next
    /// connection.
    pub(crate) fn inject(&mut self, bytes: &[u8], data: Option<u64>) -> Result<(), Error> {
        self.check_open(false)?;
        if !self.has_transmit_room() {
            return Err(self.full(false));
        }
        self.push_injected(bytes, data, false);
        Ok(())
    }

    /// Like [`Connection::inject`], for a message that is awaited. Returns the message's number,
    /// for [`Connection::injected_ended_before`] and [`Connection::take_unsent`]. `None`: there is
    /// no room, and the message has to wait as an operation.
    pub(crate) fn inject_awaited(
        &mut self,
        bytes: &[u8],
        data: Option<u64>,
    ) -> Result<Option<u64>, Error> {
        self.check_open(false)?;
        let has_room = self.has_transmit_room();
        Ok(has_room.then(|| self.push_injected(bytes, data, true)))
    }

    fn has_transmit_room(&self) -> bool {
        self.tx_context.used < self.tx_context.size && self.tx_context.backlog.is_empty()
    }

    fn push_injected(&mut self, bytes: &[u8], data: Option<u64>, is_awaited: bool) -> u64 {
        debug_assert!(!self.is_connectionless(), "of a connected endpoint");
        self.tx_context.used += 1;
        let header = message(None, data, false, bytes.len() as u64);
        let number = (self.tx).push_injected(header, bytes, self.byte_order, is_awaited);
        self.invariants();
        number
    }

    /// Ends an awaited message early if no byte of it was handed out. The message then fails with
    /// Canceled, unless it is `forgotten`, because its future was dropped.
    pub(crate) fn cancel_injected(&mut self, number: u64, forgotten: bool) -> Withdrawn {
        if !self.tx.withdraw_injected(number) {
            return match self.injected_phase(number) {
                Some(_) => Withdrawn::Running,
                None => Withdrawn::Gone,
            };
        }
        self.injected_ended(1);
        if !forgotten {
            let error = Error::new(ErrorKind::Canceled, "");
            self.tx.fail_injected(number, error);
        }
        Withdrawn::Ended
    }

    /// Error of a post that may not wait: states which queue is full, its size, and its content.
    #[cold]
    fn full(&self, is_receive: bool) -> Error {
        let (name, queue) = match &self.side {
            ReceiveSide::Own(own) if is_receive => ("receive", &own.context),
            _ => ("transmit", &self.tx_context),
        };
        let waiting = queue.backlog.len();
        let what = if waiting > 0 {
            format!(
                "{waiting} operations wait for room in the endpoint's {name} context (its size is \
                 {}), and nothing overtakes them",
                queue.size
            )
        } else if queue.used < queue.size {
            "the completion queue that the operation reports to is full: read completions, or open \
             it larger"
                .to_owned()
        } else {
            let held = match is_receive {
                true => String::new(),
                false => format!(
                    ", {} by reads and {} by others that await the peer's answer",
                    self.awaited_reads.len(),
                    self.awaited_acks.len()
                ),
            };
            format!(
                "the endpoint's {name} context is full: {} of {} places are taken{held}; await one \
                 of the operations, post this one by an await, which waits for room, or open the \
                 endpoint with a larger {name}_size",
                queue.used, queue.size
            )
        };
        Error::new(ErrorKind::Again, what)
    }

    /// Handles a post that fails its check. A receive is still admitted if a message that came in
    /// full before the end is left for it; it may have to wait for room for its completion. This
    /// also holds while the transport still returns memory: an error would mean that no message is
    /// left.
    #[cold]
    fn post_not_open(
        &mut self,
        mut operation: OwnedRecord<Operation<T>>,
        error: Error,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Box<RefusedPost<T>>> {
        let ReceiveSide::Own(own) = &mut self.side else {
            return Err(RefusedPost::new(error, operation));
        };
        // The waiting receives get the first messages.
        let waiting = own.context.backlog.len();
        if !(operation.is_receive() && own.matcher.unexpected_len() > waiting) {
            return Err(RefusedPost::new(error, operation));
        }
        if waiting > 0 || !host.reserve(&mut operation) {
            if operation.options.wait && !own.context.ignores_backlog {
                let key = self.ops.insert(operation);
                own.context.backlog.push_back(key);
                return Ok(key);
            }
            let error = Error::new(ErrorKind::Again, "the completion queue is full");
            return Err(RefusedPost::new(error, operation));
        }
        operation.phase = Phase::Queued;
        own.context.used += 1;
        let key = self.ops.insert(operation);
        let unexpected = own.matcher.take_unexpected().expect("seen above");
        if let Some(mut own) = self.own_view() {
            own.give(key, unexpected);
        }
        Ok(key)
    }

    /// True if an unexpected message waits.
    fn has_unexpected(&self) -> bool {
        self.own().is_some_and(|own| own.matcher.has_unexpected())
    }

    fn check_post(&self, operation: &Operation<T>) -> Result<(), Error> {
        let is_of_peer = self.is_connectionless();
        let is_receive = match &operation.kind {
            OpKind::Receive if self.shares_receives() => return Err(not_of_this_kind()),
            OpKind::Receive => true,
            OpKind::Send { tag, .. } | OpKind::Inject { tag, .. } => {
                if tag.is_some() && !is_of_peer {
                    return Err(not_of_this_kind());
                }
                if operation.options.matched && !self.may_match(QueuedKind::of(&operation.kind)) {
                    return Err(not_matched());
                }
                false
            }
            OpKind::Write { segments, .. } | OpKind::Read { segments } => {
                if segments.total() != operation.len as u64 {
                    return Err(of_other_length(segments.total(), operation.len));
                }
                false
            }
            OpKind::Atomic(_) if !self.may_have_atomics() => return Err(not_agreed()),
            OpKind::Atomic(_) => false,
        };
        self.check_open(is_receive)
    }

    /// Checks that the connection's state allows a post.
    #[inline]
    fn check_open(&self, is_receive: bool) -> Result<(), Error> {
        let is_up = self.lifecycle == Lifecycle::Connected && self.fault.is_none();
        if is_up && !self.close.is_received() {
            return Ok(());
        }
        self.check_not_up(is_receive)
    }

    fn check_not_up(&self, is_receive: bool) -> Result<(), Error> {
        let is_of_peer = self.is_connectionless();
        match (self.lifecycle, &self.fault) {
            // Another attempt may follow a failed one.
            (Lifecycle::Idle | Lifecycle::Connecting | Lifecycle::Accepting, _) if is_of_peer => {
                Ok(())
            }
            (_, Some(error)) => Err(error.clone()),
            (Lifecycle::Connected, None)
                if self.close.is_received()
                    && !self.has_carried_over()
                    && !(is_receive && self.has_unexpected()) =>
            {
                Err(Error::new(ErrorKind::PeerClosed, "it is closing"))
            }
            (Lifecycle::Closed { .. }, None) => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            (Lifecycle::Connected, None) => Ok(()),
            (Lifecycle::Idle | Lifecycle::Connecting | Lifecycle::Accepting, None)
                if is_receive =>
            {
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::NotConnected,
                "connect or accept with the endpoint first",
            )),
        }
    }

    /// False if the peer, or this side, is known to have no atomic operations.
    fn may_have_atomics(&self) -> bool {
        match self.lifecycle {
            Lifecycle::Connected => self.has_atomics(),
            _ => self.offers_atomics(),
        }
    }

    /// Admits waiting operations, as far as there is room.
    #[inline]
    pub(crate) fn admit_waiting(&mut self, host: &mut impl Host<T>) {
        let receives = self.own().map(|own| &own.context);
        let waits = |context: &ContextQueue| !context.backlog.is_empty();
        if waits(&self.tx_context) || receives.is_some_and(waits) || self.close.is_received() {
            self.admit_some(host);
        }
    }

    #[inline(never)]
    fn admit_some(&mut self, host: &mut impl Host<T>) {
        for receive in [false, true] {
            self.admit_from(receive, host);
        }
        if self.close.is_received() {
            self.sort_out_waiting();
        }
    }

    /// Admits the operations that wait in one of the contexts.
    pub(super) fn admit_from(&mut self, receive: bool, host: &mut impl Host<T>) {
        while let Some(queue) = self.context(receive) {
            queue.freed = false;
            if queue.used >= queue.size {
                break;
            }
            let Some(&key) = queue.backlog.front() else {
                break;
            };
            let op = self
                .ops
                .get_mut(key)
                .expect("a waiting operation is in the table");
            if !host.reserve(op) {
                break;
            }
            self.context(receive).expect("as above").backlog.pop_front();
            self.admit(key, host);
        }
    }

    /// Queues an operation that has a place in the context and a completion slot; matches a
    /// receive.
    #[inline]
    fn admit(&mut self, key: OpKey, host: &mut impl Host<T>) {
        let may_have_atomics = self.may_have_atomics();
        let Some(op) = self.ops.get_mut(key) else {
            debug_assert!(false, "who is admitted is in the table");
            return;
        };
        if op.is_receive() {
            op.phase = Phase::Queued;
            if let Some(own) = self.own_mut() {
                own.context.used += 1;
                if let Some(message) = own.matcher.post(key)
                    && let Some(mut own) = self.own_view()
                {
                    own.give(key, message);
                }
            }
            return self.resume(host);
        }
        if op.is_atomic() && !may_have_atomics {
            // The operation waited for a place until the connection was up.
            return self.complete_unsent(key, not_agreed());
        }
        if op.options.matched {
            let kind = QueuedKind::of(&op.kind);
            return self.admit_matched(key, kind);
        }
        op.phase = Phase::Queued;
        // With refusals, every write is answered, so that the peer's answer decides its end.
        if self.extension.agreed.contains(Capabilities::REFUSAL) {
            op.want_answer();
        }
        self.tx_context.used += 1;
        self.tx.push(key, op);
    }

    /// Admits a message that ends only when it is matched.
    #[cold]
    fn admit_matched(&mut self, key: OpKey, kind: QueuedKind) {
        if !self.may_match(kind) {
            return self.complete_unsent(key, not_matched());
        }
        if let Some(op) = self.ops.get_mut(key) {
            op.phase = Phase::Queued;
            self.tx_context.used += 1;
            self.tx.push(key, op);
        }
    }

    /// Cancels an operation: it ends with Canceled if no byte of it has moved.
    pub(crate) fn cancel(&mut self, key: OpKey) -> Withdrawn {
        match self.take_unstarted(key) {
            Some(payload) => {
                let error = Error::new(ErrorKind::Canceled, self.why_unstarted(key));
                self.put_back(key, payload);
                self.complete(key, Err(error), 0);
                Withdrawn::Ended
            }
            None if self.ops.get(key).is_some() => Withdrawn::Running,
            None => Withdrawn::Gone,
        }
    }

    /// Cancels all transmit operations; returns how many of them have ended.
    pub(crate) fn cancel_all(&mut self) -> usize {
        let transmits = |op: &Operation<T>| !op.is_receive();
        let posted = self.ops.iter().filter(|(_, op)| transmits(op));
        let keys: Vec<OpKey> = posted.map(|(key, _)| key).collect();
        let injected = self.tx.awaited_injected();
        let ended = keys
            .iter()
            .filter(|key| self.cancel(**key) == Withdrawn::Ended);
        let ended = ended.count();
        for number in &injected {
            self.cancel_injected(*number, false);
        }
        ended + injected.len()
    }

    /// Withdraws an operation whose owner went away, if it has not started. If a message is landing
    /// in a receive, marks the receive, so that the message survives. The end is still an event.
    pub(crate) fn withdraw(&mut self, key: OpKey) -> Withdrawn {
        let withdrawn = self.cancel(key);
        if withdrawn == Withdrawn::Running
            && let Some(op) = self.ops.get_mut(key)
        {
            op.detached = op.is_receive();
        }
        withdrawn
    }

    /// Requeues the message of a completed receive whose owner never read the result: the message
    /// goes back to the head, in its order.
    pub(crate) fn requeue_message(&mut self, receive: &Operation<T>) {
        if let Some(message) = ReceivedMessage::of_receive(receive) {
            self.requeue_own(message);
        }
    }

    /// Takes back the memory of an operation that has not started, and withdraws the operation;
    /// `None`: the operation has started.
    pub(super) fn take_unstarted(&mut self, key: OpKey) -> Option<Payload> {
        let op = self.ops.get(key)?;
        let is_receive = op.is_receive();
        let is_taken = match op.phase {
            Phase::Waiting => (self.context(is_receive)).is_some_and(|it| it.withdraw(key)),
            Phase::Queued if is_receive => {
                (self.own_mut()).is_some_and(|own| own.matcher.cancel(key))
            }
            Phase::Queued => self.tx.withdraw(key),
            Phase::Moving if !is_receive => self.withdraw_announced(key),
            _ => false,
        };
        is_taken
            .then(|| self.ops.get_mut(key).map(|op| op.take_payload()))
            .flatten()
    }

    /// Returns why an operation was [not started](Self::take_unstarted), or an empty string.
    pub(super) fn why_unstarted(&self, key: OpKey) -> &'static str {
        match self.phase(key) {
            Some(Phase::Moving) => {
                "it was announced, but the peer had no receive for it; it is withdrawn there"
            }
            _ => "",
        }
    }
}

/// Error of an operation that only the other kind of endpoint has.
#[cold]
pub(super) fn not_of_this_kind() -> Error {
    let what =
        "tags are a connectionless endpoint's, and shared receives are posted to their context";
    Error::new(ErrorKind::InvalidArgument, what)
}

#[cold]
fn of_other_length(remote: u64, local: usize) -> Error {
    let what = format!("the remote segments hold {remote} bytes, the local buffers {local}");
    Error::new(ErrorKind::InvalidArgument, what)
}
