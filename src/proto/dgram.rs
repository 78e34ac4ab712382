//! Datagram endpoints without I/O: the posted operations, the sends that wait, and the matching of
//! datagrams with receives.
//!
//! There is no protocol: a datagram is its payload, as a whole (docs/datagrams.md).
//! Nothing is ever half sent, so an operation is queued or has ended.
//!
//! Invariants: no datagram is kept that a posted receive would take; bytes kept ≤ budget, except
//! datagrams that a dropped receive gave back.

mod posted;
mod stats;

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::buf::{AccessError, Payload};
use crate::error::{Error, ErrorKind, Phase};
use crate::limits::{STALE_ENTRIES_MIN, UNEXPECTED_OVERHEAD};
use crate::slab::Slab;
use crate::sync::OwnedRecord;

use super::Withdrawn;
use super::op::{MessageOrigin, OpKey, Operation, RefusedPost};
use posted::DatagramReceives;

/// The bounds of a datagram endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DgramSizes {
    /// Sends that may be queued.
    pub(crate) tx_size: usize,
    /// Receives that may be posted.
    pub(crate) rx_size: usize,
    /// Bytes of datagrams kept while no receive takes them.
    pub(crate) unexpected_bytes: usize,
}

/// An operation (a send, an injected send, or a receive) and its peer.
#[derive(Debug)]
struct DgramOp<T> {
    operation: OwnedRecord<Operation<T>>,
    /// The copy that is sent in place of device memory.
    copy: Option<Payload>,
    /// Destination of a send, or the only source whose datagrams a receive takes.
    peer: Option<SocketAddr>,
}

/// One direction: how many operations it holds, and which ones wait for room.
#[derive(Debug)]
struct Context {
    size: usize,
    used: usize,
    backlog: VecDeque<OpKey>,
}

impl Context {
    fn new(size: usize) -> Self {
        Context {
            size,
            used: 0,
            backlog: VecDeque::new(),
        }
    }
}

/// A datagram that came before a receive for it.
#[derive(Debug)]
struct UnexpectedDatagram {
    from: SocketAddr,
    payload: Payload,
    len: usize,
    /// Bytes that were lost in a receive that was too small and has been dropped since.
    overflow: usize,
}

impl UnexpectedDatagram {
    fn cost(&self) -> usize {
        self.len + UNEXPECTED_OVERHEAD
    }
}

/// A datagram endpoint's operations. `T` is the owner's note of where an operation reports.
#[derive(Debug)]
pub(crate) struct Dgram<T> {
    ops: Slab<DgramOp<T>>,
    transmit: Context,
    receive: Context,
    /// Sends, in order, and the stale keys of withdrawn sends.
    queue: VecDeque<OpKey>,
    posted: DatagramReceives,
    unexpected: VecDeque<UnexpectedDatagram>,
    held_bytes: usize,
    budget_bytes: usize,
    dropped: u64,
    /// Operations whose results are to be delivered.
    completed: VecDeque<OwnedRecord<Operation<T>>>,
    closed: Option<Error>,
}

/// Copies all bytes of a send whose memory only a device's owner can copy: a datagram is never half
/// sent.
fn copy_of_device<T>(operation: &Operation<T>) -> Result<Option<Payload>, AccessError> {
    let sent = operation
        .payload
        .as_ref()
        .filter(|it| !operation.is_receive() && it.is_of_device());
    let Some(payload) = sent else { return Ok(None) };
    let mut bytes = vec![0; payload.len()];
    payload.copy_out(0, &mut bytes)?;
    Ok(Some(Payload::from_vec(bytes)))
}

impl<T> Dgram<T> {
    pub(crate) fn new(sizes: DgramSizes) -> Self {
        Dgram {
            ops: Slab::new(),
            transmit: Context::new(sizes.tx_size),
            receive: Context::new(sizes.rx_size),
            queue: VecDeque::new(),
            posted: DatagramReceives::default(),
            unexpected: VecDeque::new(),
            held_bytes: 0,
            budget_bytes: sizes.unexpected_bytes,
            dropped: 0,
            completed: VecDeque::new(),
            closed: None,
        }
    }

    /// Number of datagrams dropped because there was neither a receive nor room to keep them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes of kept datagrams, each with its overhead.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(crate) fn phase(&self, key: OpKey) -> Option<Phase> {
        self.ops.get(key).map(|op| op.operation.phase)
    }

    /// Returns the record of an operation that has not ended.
    pub(crate) fn record_mut(&mut self, key: OpKey) -> Option<&mut OwnedRecord<Operation<T>>> {
        self.ops.get_mut(key).map(|op| &mut op.operation)
    }

    /// True if a send waits for the socket.
    pub(crate) fn has_queued(&self) -> bool {
        self.transmit.used > 0
    }

    /// How many sends wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        self.transmit.used
    }

    /// True if there is room for a waiting operation.
    pub(crate) fn wants_admission(&self) -> bool {
        [&self.transmit, &self.receive]
            .iter()
            .any(|context| context.used < context.size && !context.backlog.is_empty())
    }

    fn context(&mut self, is_receive: bool) -> &mut Context {
        match is_receive {
            true => &mut self.receive,
            false => &mut self.transmit,
        }
    }

    /// Admits an operation. If its context is full, the operation waits or is refused with Again,
    /// as its options say. Nothing overtakes a waiting operation of the same context. `peer`: the
    /// destination of a send, or the only source whose datagrams a receive takes.
    pub(crate) fn post(
        &mut self,
        mut operation: OwnedRecord<Operation<T>>,
        peer: Option<SocketAddr>,
        mut reserve: impl FnMut(&mut OwnedRecord<Operation<T>>) -> bool,
    ) -> Result<OpKey, Box<RefusedPost<T>>> {
        if let Some(error) = &self.closed {
            return Err(RefusedPost::new(error.clone(), operation));
        }
        let is_receive = operation.is_receive();
        let context = self.context(is_receive);
        let free = context.used < context.size && context.backlog.is_empty();
        let is_admitted = free && reserve(&mut operation);
        if !is_admitted && !operation.options.wait {
            let (used, size) = (context.used, context.size);
            let what = match used < size && context.backlog.is_empty() {
                true => "the completion queue that the operation reports to is full".to_owned(),
                false => format!(
                    "the endpoint's context for this is full: {used} of {size} places are taken, \
                     and {} operations wait; await one, or open it larger",
                    context.backlog.len()
                ),
            };
            return Err(RefusedPost::new(
                Error::new(ErrorKind::Again, what),
                operation,
            ));
        }
        let copy = match copy_of_device(&operation) {
            Ok(copy) => copy,
            Err(failed) => {
                let error = failed.error("a datagram was sent");
                return Err(RefusedPost::new(error, operation));
            }
        };
        let key = self.ops.insert(DgramOp {
            operation,
            copy,
            peer,
        });
        if is_admitted {
            self.admit(key);
        } else {
            self.context(is_receive).backlog.push_back(key);
        }
        self.invariants();
        Ok(key)
    }

    /// Admits waiting operations, as far as there is room.
    pub(crate) fn admit_waiting(
        &mut self,
        mut reserve: impl FnMut(&mut OwnedRecord<Operation<T>>) -> bool,
    ) {
        for is_receive in [false, true] {
            loop {
                let context = self.context(is_receive);
                if context.used >= context.size {
                    break;
                }
                let Some(&key) = context.backlog.front() else {
                    break;
                };
                // A withdrawn operation leaves its key behind.
                if let Some(op) = self.ops.get_mut(key) {
                    if !reserve(&mut op.operation) {
                        break;
                    }
                    self.admit(key);
                }
                self.context(is_receive).backlog.pop_front();
            }
        }
        self.invariants();
    }

    fn admit(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.operation.phase = Phase::Queued;
        let (is_receive, peer) = (op.operation.is_receive(), op.peer);
        self.context(is_receive).used += 1;
        if !is_receive {
            self.queue.push_back(key);
            return;
        }
        let takes =
            |unexpected: &UnexpectedDatagram| peer.is_none_or(|peer| peer == unexpected.from);
        match self.unexpected.iter().position(takes) {
            Some(at) => {
                if let Some(unexpected) = self.unexpected.remove(at) {
                    self.held_bytes = self.held_bytes.saturating_sub(unexpected.cost());
                    self.deliver_unexpected(key, unexpected);
                }
            }
            None => self.posted.push(key, peer),
        }
    }

    /// Completes a receive with a datagram that was kept.
    fn deliver_unexpected(&mut self, key: OpKey, unexpected: UnexpectedDatagram) {
        let Some(into) = self.payload_mut(key) else {
            return;
        };
        let len = unexpected.len.min(into.len());
        let copied = into.copy_from(&unexpected.payload, len);
        match copied {
            Ok(()) => self.received(
                key,
                unexpected.from,
                unexpected.len + unexpected.overflow,
                len,
            ),
            Err(denied) => {
                self.dropped += 1;
                self.complete(key, Err(denied.error("a datagram was delivered")), 0);
            }
        }
    }

    fn payload_mut(&mut self, key: OpKey) -> Option<&mut Payload> {
        self.ops.get_mut(key)?.operation.payload.as_mut()
    }

    /// Completes a receive with a datagram of `total` bytes; `len` of them are in its memory.
    fn received(&mut self, key: OpKey, from: SocketAddr, total: usize, len: usize) {
        let overflow = total - len;
        let result = if overflow == 0 {
            Ok(())
        } else {
            let what = format!("a datagram of {total} bytes, a buffer of {len}");
            Err(Error::new(ErrorKind::Truncated, what))
        };
        if let Some(DgramOp { operation, .. }) = self.ops.get_mut(key) {
            operation.end.overflow = overflow;
            operation.end.origin = Some(MessageOrigin::Address(from));
        }
        self.complete(key, result, len);
    }

    /// Completes an operation: its record gets the result, and its key becomes invalid.
    fn complete(&mut self, key: OpKey, result: Result<(), Error>, len: usize) {
        let Some(op) = self.ops.remove(key) else {
            return;
        };
        let DgramOp {
            mut operation,
            peer,
            ..
        } = op;
        if operation.phase != Phase::Waiting {
            self.context(operation.is_receive()).used -= 1;
        }
        let result = result.map_err(|error| match peer {
            Some(peer) => error.with_peer(peer),
            None => error,
        });
        operation.set_end(result, len);
        self.completed.push_back(operation);
    }

    /// Takes the next operation that has completed.
    pub(crate) fn pop_completed(&mut self) -> Option<OwnedRecord<Operation<T>>> {
        self.completed.pop_front()
    }

    // Departures.

    /// Returns the sends that go next, at most `max`, in order.
    pub(crate) fn departing(&mut self, max: usize) -> impl Iterator<Item = (SocketAddr, &Payload)> {
        let ops = &self.ops;
        // Keys of withdrawn sends are dropped at the front; those further back wait for their turn.
        while self
            .queue
            .front()
            .is_some_and(|key| ops.get(*key).is_none())
        {
            self.queue.pop_front();
        }
        let sends = self.queue.iter().filter_map(|key| ops.get(*key));
        sends.take(max).filter_map(|op| {
            Some((
                op.peer?,
                op.copy.as_ref().or(op.operation.payload.as_ref())?,
            ))
        })
    }

    /// Completes the first [`departing`](Self::departing) sends with these results.
    pub(crate) fn departed(&mut self, ended: impl IntoIterator<Item = Result<(), Error>>) {
        for result in ended {
            let next = loop {
                match self.queue.pop_front() {
                    Some(key) if self.ops.get(key).is_none() => {}
                    next => break next,
                }
            };
            let Some(key) = next else {
                debug_assert!(false, "only what departs has departed");
                return;
            };
            let len = self.ops.get(key).map_or(0, |op| op.operation.len);
            let len = if result.is_ok() { len } else { 0 };
            self.complete(key, result, len);
        }
        self.invariants();
    }

    // Arrivals.

    /// Takes the buffers of the next receives that take any peer's datagrams, at most `max`.
    /// Returns none while a receive takes only one peer's datagrams: which receive matches then
    /// depends on the sender. Each buffer goes back by [`landed`](Self::landed),
    /// [`faulted`](Self::faulted) or [`put_back`](Self::put_back).
    pub(crate) fn destinations(&mut self, max: usize) -> Vec<(OpKey, Payload)> {
        let ops = &mut self.ops;
        let keys = self
            .posted
            .first_of_anyone(max, |key| ops.get(key).is_some());
        // Only a device's owner copies to its memory: a receive into device memory, and those after
        // it, get their datagrams from a staging buffer.
        let is_of_device = |key: OpKey| {
            let op = ops.get(key);
            op.is_some_and(|it| {
                it.operation
                    .payload
                    .as_ref()
                    .is_some_and(Payload::is_of_device)
            })
        };
        let count = keys.iter().take_while(|key| !is_of_device(**key)).count();
        keys.into_iter()
            .take(count)
            .filter_map(|key| {
                let op = ops.get_mut(key)?;
                Some((key, op.operation.take_payload()))
            })
            .collect()
    }

    /// Takes back a buffer without a datagram: the receive stays where it was.
    pub(crate) fn put_back(&mut self, key: OpKey, payload: Payload) {
        if let Some(op) = self.ops.get_mut(key) {
            op.operation.payload = Some(payload);
        }
    }

    /// Completes the receive of this buffer, in which a datagram of `total` bytes has landed.
    pub(crate) fn landed(&mut self, key: OpKey, payload: Payload, from: SocketAddr, total: usize) {
        let len = total.min(payload.len());
        self.put_back(key, payload);
        self.received(key, from, total, len);
    }

    /// Ends the receive of this buffer, whose memory is not there: the datagram is lost.
    pub(crate) fn faulted(&mut self, key: OpKey, payload: Payload) {
        self.put_back(key, payload);
        self.dropped += 1;
        let error = Error::new(ErrorKind::BadAddress, "memory of the receive is not there");
        self.complete(key, Err(error), 0);
    }

    /// Handles a datagram that has not landed in a receive yet: it goes to the first receive that
    /// takes it, is kept, or is dropped.
    pub(crate) fn arrived(&mut self, from: SocketAddr, bytes: &[u8]) {
        let ops = &self.ops;
        let taker = self.posted.take(from, |key| ops.get(key).is_some());
        if let Some(key) = taker
            && let Some(into) = self.payload_mut(key)
        {
            let len = bytes.len().min(into.len());
            match into.copy_in(0, &bytes[..len]) {
                Ok(()) => self.received(key, from, bytes.len(), len),
                Err(denied) => {
                    self.dropped += 1;
                    self.complete(key, Err(denied.error("a datagram landed")), 0);
                }
            }
        } else if bytes.len() + UNEXPECTED_OVERHEAD <= self.room() {
            self.keep(from, bytes);
        } else {
            self.dropped += 1;
        }
        self.invariants();
    }

    fn room(&self) -> usize {
        self.budget_bytes.saturating_sub(self.held_bytes)
    }

    fn keep(&mut self, from: SocketAddr, bytes: &[u8]) {
        let unexpected = UnexpectedDatagram {
            from,
            payload: Payload::copied(bytes),
            len: bytes.len(),
            overflow: 0,
        };
        self.held_bytes += unexpected.cost();
        self.unexpected.push_back(unexpected);
    }

    // Withdrawals.

    /// Ends an operation with Canceled, unless it has ended.
    pub(crate) fn cancel(&mut self, key: OpKey) -> Withdrawn {
        self.withdraw(key, Error::new(ErrorKind::Canceled, ""))
    }

    /// Ends an operation whose time has passed.
    pub(crate) fn expire(&mut self, key: OpKey) -> Withdrawn {
        self.withdraw(key, Error::new(ErrorKind::TimedOut, ""))
    }

    fn withdraw(&mut self, key: OpKey, error: Error) -> Withdrawn {
        let Some(op) = self.ops.get(key) else {
            return Withdrawn::Gone;
        };
        let (is_receive, phase) = (op.operation.is_receive(), op.operation.phase);
        self.complete(key, Err(error), 0);
        let ops = &self.ops;
        let live = |key: OpKey| ops.get(key).is_some();
        let line = match (is_receive, phase) {
            (true, Phase::Queued) => {
                self.posted.withdrawn(live);
                return Withdrawn::Ended;
            }
            (false, Phase::Queued) => &mut self.queue,
            (true, _) => &mut self.receive.backlog,
            (false, _) => &mut self.transmit.backlog,
        };
        if line.len() > STALE_ENTRIES_MIN.max(2 * ops.len()) {
            line.retain(|key| live(*key));
        }
        Withdrawn::Ended
    }

    /// Takes back the datagram of a receive that has ended and whose owner never read the result.
    /// The datagram goes to the next receive that takes it, or to the head of the kept datagrams.
    /// It is copied, since kept datagrams lie in memory of this library.
    pub(crate) fn give_back(
        &mut self,
        payload: &Payload,
        len: usize,
        overflow: usize,
        from: SocketAddr,
    ) {
        if self.closed.is_some() {
            return;
        }
        // If the region was taken away, its datagram is lost.
        let Ok(payload) = payload.copy_front(len) else {
            return;
        };
        let unexpected = UnexpectedDatagram {
            from,
            payload,
            len,
            overflow,
        };
        let ops = &self.ops;
        match self.posted.take(from, |key| ops.get(key).is_some()) {
            Some(key) => self.deliver_unexpected(key, unexpected),
            None => {
                self.held_bytes += unexpected.cost();
                self.unexpected.push_front(unexpected);
            }
        }
    }

    /// Ends all operations with `error`, in the order in which they were posted. Later posts are
    /// refused with `later`.
    pub(crate) fn close(&mut self, error: Error, later: Error) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(later);
        for key in self.ops.keys_by_age() {
            self.complete(key, Err(error.clone()), 0);
        }
        self.queue.clear();
        self.posted = DatagramReceives::default();
        self.unexpected.clear();
        self.held_bytes = 0;
        self.transmit.backlog.clear();
        self.receive.backlog.clear();
    }

    fn invariants(&self) {
        debug_assert!(self.transmit.used <= self.transmit.size);
        debug_assert!(self.receive.used <= self.receive.size);
        debug_assert!(
            self.unexpected
                .iter()
                .map(UnexpectedDatagram::cost)
                .sum::<usize>()
                == self.held_bytes
        );
    }
}
