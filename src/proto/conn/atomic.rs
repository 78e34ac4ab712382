//! A peer's atomic operations on our regions (`docs/extension.md`, section 11). All operands of an
//! operation are collected first; then each number is changed atomically, in the order in which the
//! operations came. An operation that only changes numbers is answered like a write, one that
//! fetches numbers like a read.
//!
//! ```text
//!   header --judged--> operands land --> done, or refused --> ack       (or its refusal)
//!                                                         --> results   (or the refusal's reason)
//! ```

use crate::buf::{ConvertMany, Payload};
use crate::error::{Error, ErrorKind, OperationKind, Refusal};
use crate::info::Caps;
use crate::limits::ATOMIC_SIZE_MAX;
use crate::proto::Host;
use crate::proto::atomic::Atomic;
use crate::proto::event::ConnEvent;
use crate::wire::{AtomicCall, AtomicForm, Capabilities, Segments};

use super::receive::resolve_all;
use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use super::{Connection, violation};

/// A peer's operation whose operands are being received.
#[derive(Debug)]
pub(super) struct AskedAtomic {
    form: AtomicForm,
    /// The operation and the memory it changes, or why it is refused.
    judged: Result<(Atomic, Payload), Refusal>,
}

/// Error of an atomic operation with a peer that supports none.
pub(super) fn not_agreed() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the peer has no atomic operations, which libfabric's protocol does not carry",
    )
}

impl<T> Connection<T> {
    /// True if atomic operations are answered on this connection.
    pub(super) fn has_atomics(&self) -> bool {
        self.agreed().contains(Capabilities::ATOMICS)
    }

    /// True if this side has offered atomic operations, or will.
    pub(super) fn offers_atomics(&self) -> bool {
        let ours = self.extension.params.capabilities;
        ours.contains(Capabilities::ATOMICS)
    }

    /// Ends the atomic operations that were posted before the connection was up, if the peer
    /// supports none.
    pub(super) fn end_unsupported_atomics(&mut self) {
        if self.has_atomics() {
            return;
        }
        let ops = &self.ops;
        let is_atomic = |key| ops.get(key).is_some_and(|op| op.is_atomic());
        for key in self.tx.drain_rma(is_atomic) {
            self.complete_unsent(key, not_agreed());
        }
    }

    pub(super) fn begin_atomic(
        &mut self,
        call: AtomicCall,
        segments: &Segments,
        len: u64,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let judged = match Atomic::of(call) {
            None => Err(Refusal::Unsupported),
            Some(atomic) => {
                let size = atomic.size() as u64;
                let is_whole = segments.as_slice().iter().all(|it| it.len % size == 0);
                if !is_whole || atomic.only_reads() != (len == 0) {
                    return Err(violation(
                        "an atomic operation without its operands, or on parts of numbers",
                    ));
                }
                let found =
                    resolve_all(segments, Caps::ATOMIC, atomic.need(call.form), false, host);
                let memory = found.and_then(|it| it.check_atomics(atomic.size()).map(|()| it));
                memory.map(|memory| (atomic, memory))
            }
        };
        let capacity = if judged.is_ok() { len } else { 0 };
        let form = call.form;
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target: PayloadTarget::Atomic(Box::new(AskedAtomic { form, judged })),
            payload: Some(room(capacity as usize)), // at most two arrays, as the wire has checked
            capacity,
            len,
            done: 0,
            ack: false,
        }));
        Ok(())
    }

    /// Performs an operation whose operands have come, and queues its answer.
    pub(super) fn atomic_landed(&mut self, asked: AskedAtomic, operands: Payload) {
        let AskedAtomic { form, judged } = asked;
        let done = judged.and_then(|(atomic, memory)| {
            let results = perform(&atomic, form, &memory, operands)?;
            Ok((atomic, memory, results))
        });
        match (form, done) {
            (AtomicForm::Update, Ok((_, memory, _))) => {
                self.tx.push_ack(true);
                self.events.push(ConnEvent::RemoteAccess {
                    operation: OperationKind::RemoteWrite,
                    data: None,
                    memory,
                });
            }
            (AtomicForm::Update, Err(reason)) => self.answer_refused(reason),
            (_, Ok((atomic, memory, results))) => {
                let counting = memory.counting_regions();
                if counting.buffer_count() > 0 && !atomic.only_reads() {
                    let memory = memory.counting_regions();
                    self.events.push(ConnEvent::RemoteUpdate { memory });
                }
                self.tx.read_answers.give_values(results, counting);
            }
            (_, Err(reason)) => {
                self.tx.read_answers.refuse(reason);
                self.count_refusal(reason);
            }
        }
    }
}

/// Memory for the operands: at most two arrays, as the wire has checked.
fn room(len: usize) -> Payload {
    debug_assert!(len <= 2 * ATOMIC_SIZE_MAX);
    Payload::from_vec(vec![0; len])
}

/// Performs the operation on every number, and returns the former values if it fetches. A refused
/// operation changes nothing.
fn perform(
    atomic: &Atomic,
    form: AtomicForm,
    memory: &Payload,
    operands: Payload,
) -> Result<Payload, Refusal> {
    let (size, total) = (atomic.size(), memory.len());
    let given = Vec::from_payload(operands).unwrap_or_default();
    let number_at = |at: usize| {
        let mut bytes = [0; 8];
        if let Some(number) = given.get(at..at + size) {
            bytes[..size].copy_from_slice(number);
        }
        bytes
    };
    let mut results = match form {
        AtomicForm::Update => Vec::new(),
        AtomicForm::Fetch | AtomicForm::Compare => vec![0; total],
    };
    memory.update_each(size, |at, seen| {
        // If `update_each` offers a number again, its result is overwritten.
        if let Some(result) = results.get_mut(at..at + size) {
            result.copy_from_slice(&atomic.swapped(seen)[..size]);
        }
        atomic.apply(seen, number_at(at), number_at(total + at))
    })?;
    Ok(Payload::from_vec(results))
}
