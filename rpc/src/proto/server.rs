//! The server's end of a connection: the slots of the calls that are not answered yet.
//!
//! ```text
//! idle --REQUEST--> Running --answer--> idle
//!   \--REQUEST, refused: answered at once--> idle
//! Running --answer by reference--> Lent --TAKEN--> idle
//!                                    \--its time is over--> Revoked --TAKEN--> idle
//! ```
//!
//! The first answer ends the call; later ones have no effect. A CANCEL, ITEM or CREDIT that crosses
//! the answer finds the slot without a call, which is not a violation.
//!
//! Invariant: `running` is the number of slots that are Running or Lent; `bytes` is the size of the
//! requests in Running slots.

use super::flow::{Inflow, ItemBody, Outflow};
use crate::wire::{CallId, Credit, Item, Streams, Violation, Window};

#[derive(Debug)]
struct Slot<R, W> {
    /// Generation of the last call.
    generation: u16,
    /// Size of the last call's request.
    bytes: u32,
    state: SlotState<R, W>,
}

#[derive(Debug)]
enum SlotState<R, W> {
    Idle,
    Running {
        handler: R,
        flows: Option<Box<Flows<W>>>,
    },
    /// The client is reading the answer from this side's memory.
    Lent(R),
    /// The client was too slow to read the answer; its TAKEN is still awaited.
    Revoked,
}

#[derive(Debug)]
struct Flows<W> {
    received: Option<Inflow>,
    sent: Option<Outflow>,
    /// The waker of the task that waits for an item.
    reader: Option<W>,
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The call may run: call [`ServerMachine::start`], or answer it.
    Admitted,
    /// This side drains: answer the call with `Draining`.
    Draining,
}

/// The next item of a call's stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ItemRead {
    /// No item has arrived yet.
    Pending,
    /// An item, and the credit to grant to the client.
    Item(ItemBody, Option<Credit>),
    /// All items were read, and the stream has ended.
    Over,
    /// The call was answered, or its connection has ended.
    Gone,
}

/// Whether an item can be sent now, later, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemSend {
    /// The item must be sent now, before anything else of the call.
    Now,
    /// The item can be sent once the client has read more.
    Later,
    /// The call was answered, or its connection has ended.
    Gone,
}

/// The server's protocol machine; see the module. `R` reaches the handler of a call, `W` wakes a
/// reader of the call's items.
#[derive(Debug)]
pub struct ServerMachine<R, W> {
    slots: Vec<Slot<R, W>>,
    /// The largest announced window: a client learns of a smaller one later.
    calls_max: u32,
    bytes_max: u64,
    bytes: u64,
    running: usize,
    is_draining: bool,
    has_ended: bool,
}

impl<R, W> ServerMachine<R, W> {
    /// Creates a machine for a client that may have `calls_max` open calls, whose requests have at
    /// most `bytes_max` bytes.
    pub fn new(calls_max: u32, bytes_max: u64) -> Self {
        ServerMachine {
            slots: Vec::new(),
            calls_max,
            bytes_max,
            bytes: 0,
            running: 0,
            is_draining: false,
            has_ended: false,
        }
    }

    /// Returns how many calls a client may have open under the largest announced window.
    pub fn calls_max(&self) -> u32 {
        self.calls_max
    }

    /// Returns the number of calls that are not over: calls without an answer, or with an answer
    /// that the client has not read yet.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Applies a window that is about to be announced.
    pub fn widen(&mut self, window: Window) {
        self.calls_max = self.calls_max.max(window.calls);
        self.bytes_max = self.bytes_max.max(window.bytes.into());
    }

    /// Handles a REQUEST of `len` bytes. Does not start the call.
    ///
    /// # Errors
    /// The client exceeds its window, or uses an id twice.
    #[inline]
    pub fn handle_request(&mut self, call: CallId, len: usize) -> Result<Admission, Violation> {
        if u32::from(call.slot) >= self.calls_max {
            return Err(Violation("more calls than the window allows"));
        }
        let at = usize::from(call.slot);
        while self.slots.len() <= at {
            // So the slot's first call has generation 0.
            self.slots.push(Slot {
                generation: u16::MAX,
                bytes: 0,
                state: SlotState::Idle,
            });
        }
        let slot = &mut self.slots[at];
        if !matches!(slot.state, SlotState::Idle) {
            return Err(Violation("a call in the slot of one that is not over"));
        }
        if call.generation != slot.generation.wrapping_add(1) {
            return Err(Violation("a call under a name that is not the next"));
        }
        if self.bytes + len as u64 > self.bytes_max {
            return Err(Violation("more bytes of requests than the window allows"));
        }
        slot.generation = call.generation;
        slot.bytes = u32::try_from(len).unwrap_or(u32::MAX);
        Ok(match self.is_draining {
            true => Admission::Draining,
            false => Admission::Admitted,
        })
    }

    /// Starts an admitted call. `false`: the connection has ended.
    pub fn start(&mut self, call: CallId, handler: R, streams: Streams) -> bool {
        if self.has_ended {
            return false;
        }
        let flows = (streams != Streams::default()).then(|| {
            Box::new(Flows {
                received: streams.sends.then(Inflow::new),
                sent: streams.receives.then(Outflow::new),
                reader: None,
            })
        });
        let slot = &mut self.slots[usize::from(call.slot)];
        slot.state = SlotState::Running { handler, flows };
        self.bytes += u64::from(slot.bytes);
        self.running += 1;
        true
    }

    /// Ends a call by an answer. `Some` for the first answer, if the connection exists: the answer
    /// must then be sent, and the contained reader, if any, woken.
    pub fn answer(&mut self, call: CallId) -> Option<Option<W>> {
        self.end_running(call, |_| SlotState::Idle)
    }

    /// Like `answer`, with an answer that the client must read; the call is over once the client
    /// has.
    pub fn answer_by_reference(&mut self, call: CallId) -> Option<Option<W>> {
        let reader = self.end_running(call, SlotState::Lent)?;
        self.running += 1;
        Some(reader)
    }

    fn end_running(
        &mut self,
        call: CallId,
        next: impl FnOnce(R) -> SlotState<R, W>,
    ) -> Option<Option<W>> {
        let slot = self.slot_mut(call)?;
        match std::mem::replace(&mut slot.state, SlotState::Idle) {
            SlotState::Running { handler, flows } => {
                slot.state = next(handler);
                let bytes = slot.bytes;
                self.bytes -= u64::from(bytes);
                self.running -= 1;
                Some(flows.and_then(|it| it.reader))
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Revokes an answer that the client was too slow to read.
    pub fn revoke(&mut self, call: CallId) {
        let slot = self.slot_mut(call);
        if let Some(slot) = slot.filter(|it| matches!(it.state, SlotState::Lent(_))) {
            slot.state = SlotState::Revoked;
            self.running -= 1;
        }
    }

    /// Handles a TAKEN; returns the handler that waits for this.
    ///
    /// # Errors
    /// No such answer is lent.
    pub fn handle_taken(&mut self, call: CallId) -> Result<Option<R>, Violation> {
        let none = Violation("an answer was taken that was not by reference");
        let slot = self.slot_mut(call).ok_or(none)?;
        match std::mem::replace(&mut slot.state, SlotState::Idle) {
            SlotState::Lent(handler) => {
                self.running -= 1;
                Ok(Some(handler))
            }
            SlotState::Revoked => Ok(None),
            // The violation is about to end the connection.
            other @ (SlotState::Idle | SlotState::Running { .. }) => {
                slot.state = other;
                Err(none)
            }
        }
    }

    /// Handles a CANCEL; returns the handler, if the call is still running.
    ///
    /// # Errors
    /// The slot had no such call.
    pub fn handle_cancel(&mut self, call: CallId) -> Result<Option<&R>, Violation> {
        let slot = self.slot_mut(call);
        let slot = slot.ok_or(Violation("a cancellation of no call"))?;
        Ok(match &slot.state {
            SlotState::Running { handler, .. } => Some(handler),
            _ => None,
        })
    }

    /// Handles an ITEM; returns the reader to wake.
    ///
    /// # Errors
    /// The slot had no such call, the call takes no items, or the item exceeds the credit or
    /// follows the end of the stream.
    pub fn handle_item(&mut self, call: CallId, item: Item<'_>) -> Result<Option<W>, Violation> {
        let slot = self.slot_mut(call);
        let slot = slot.ok_or(Violation("an item of no call"))?;
        let SlotState::Running { flows, .. } = &mut slot.state else {
            return Ok(None);
        };
        let none = Violation("an item of a call without a stream");
        let flows = flows.as_deref_mut().ok_or(none)?;
        let received = flows.received.as_mut().ok_or(none)?;
        match item {
            Item::Body(body) => received.handle_item(body)?,
            Item::Last => received.handle_last()?,
            Item::Begun => return Err(Violation("a client whose stream begins")),
        }
        Ok(flows.reader.take())
    }

    /// Handles a CREDIT; returns the handler to wake.
    ///
    /// # Errors
    /// The slot has no such call, the call sends no items, or the credit exceeds the items or bytes
    /// sent.
    pub fn handle_credit(&mut self, call: CallId, more: Credit) -> Result<Option<&R>, Violation> {
        let slot = self.slot_mut(call);
        let slot = slot.ok_or(Violation("credit of no call"))?;
        let SlotState::Running { handler, flows } = &mut slot.state else {
            return Ok(None);
        };
        let sent = flows.as_mut().and_then(|it| it.sent.as_mut());
        let sent = sent.ok_or(Violation("credit of a call without a stream"))?;
        sent.handle_credit(more)?;
        Ok(Some(handler))
    }

    /// Sets the reader to wake for an item. Returns the previous reader, or `reader` itself if the
    /// call is over.
    pub fn watch_items(&mut self, call: CallId, reader: W) -> Option<W> {
        match self.flows(call) {
            Some(flows) => flows.reader.replace(reader),
            None => Some(reader),
        }
    }

    /// Returns whether no reader for which `is_such` is true waits for an item.
    pub fn is_unwatched(&mut self, call: CallId, is_such: impl FnOnce(&W) -> bool) -> bool {
        let reader = self.flows(call).and_then(|it| it.reader.as_ref());
        !reader.is_some_and(is_such)
    }

    /// Reads the next item that the client has sent.
    pub fn read_item(&mut self, call: CallId) -> ItemRead {
        let Some(flows) = self.flows(call) else {
            return ItemRead::Gone;
        };
        let Some(received) = &mut flows.received else {
            return ItemRead::Over;
        };
        if let Some((body, credit)) = received.read() {
            return ItemRead::Item(body, credit);
        }
        match received.is_over() {
            true => ItemRead::Over,
            false => ItemRead::Pending,
        }
    }

    /// Takes the credit for an item of `len` bytes that is about to be sent.
    pub fn send_item(&mut self, call: CallId, len: usize) -> ItemSend {
        let sent = self.flows(call).and_then(|it| it.sent.as_mut());
        match sent.map(|it| it.take(len)) {
            Some(true) => ItemSend::Now,
            Some(false) => ItemSend::Later,
            None => ItemSend::Gone,
        }
    }

    /// Returns whether the call is not answered and the connection exists.
    pub fn is_running(&self, call: CallId) -> bool {
        let slot = self.slots.get(usize::from(call.slot));
        slot.is_some_and(|it| {
            it.generation == call.generation && matches!(it.state, SlotState::Running { .. })
        })
    }

    /// Refuses calls from now on.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Returns the handlers of all calls that are not over.
    pub fn all_running(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().filter_map(|it| match &it.state {
            SlotState::Running { handler, .. } | SlotState::Lent(handler) => Some(handler),
            SlotState::Idle | SlotState::Revoked => None,
        })
    }

    /// Ends all calls, because the connection has ended. Returns their handlers, and the readers
    /// that wait for items.
    pub fn handle_end(&mut self) -> (Vec<R>, Vec<W>) {
        self.has_ended = true;
        (self.running, self.bytes) = (0, 0);
        let (mut handlers, mut readers) = (Vec::new(), Vec::new());
        for slot in self.slots.drain(..) {
            match slot.state {
                SlotState::Running { handler, flows } => {
                    handlers.push(handler);
                    readers.extend(flows.and_then(|it| it.reader));
                }
                SlotState::Lent(handler) => handlers.push(handler),
                SlotState::Idle | SlotState::Revoked => {}
            }
        }
        (handlers, readers)
    }

    /// Returns the slot of the call, if it is the last call in it.
    fn slot_mut(&mut self, call: CallId) -> Option<&mut Slot<R, W>> {
        let slot = self.slots.get_mut(usize::from(call.slot));
        slot.filter(|it| it.generation == call.generation)
    }

    fn flows(&mut self, call: CallId) -> Option<&mut Flows<W>> {
        match &mut self.slot_mut(call)?.state {
            SlotState::Running { flows, .. } => flows.as_deref_mut(),
            _ => None,
        }
    }

    /// Checks the invariants that hold after every step.
    #[cfg(test)]
    pub fn invariants(&self) {
        let (mut running, mut bytes) = (0, 0);
        for slot in &self.slots {
            let is_running = matches!(slot.state, SlotState::Running { .. });
            running += usize::from(is_running || matches!(slot.state, SlotState::Lent(_)));
            bytes += if is_running { u64::from(slot.bytes) } else { 0 };
        }
        assert_eq!((running, bytes), (self.running, self.bytes));
    }
}
