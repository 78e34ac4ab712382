//! The server's end of a connection: which slots have a call that is not answered.
//!
//! ```text
//! idle --REQUEST--> Running --answer--> idle
//!   \--REQUEST, refused: answered at once--> idle
//! Running --answer by reference--> Lent --TAKEN--> idle
//!                                    \--its time is over--> Revoked --TAKEN--> idle
//! ```
//!
//! Who answers first ends the call; what comes later has nothing to answer. What has crossed the
//! answer (a CANCEL, an ITEM, a CREDIT) finds the slot without a call, which is no violation.
//!
//! Invariant: `running` slots are Running or Lent; `bytes` are those of requests in Running ones.

use super::flow::{Inflow, ItemBody, Outflow};
use crate::wire::{CallId, Credit, Item, Streams, Violation, Window};

#[derive(Debug)]
struct Slot<R, W> {
    /// Of the last call.
    generation: u16,
    /// Of its request.
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
    /// The client reads the answer out of this side's memory.
    Lent(R),
    /// It was too slow for that, and has not said so far that it has noticed.
    Revoked,
}

/// The streams of a call.
#[derive(Debug)]
struct Flows<W> {
    received: Option<Inflow>,
    sent: Option<Outflow>,
    /// Who waits for an item.
    reader: Option<W>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may run; [`ServerMachine::start`], or answer it.
    Admitted,
    /// This side drains: answer it so.
    Draining,
}

/// What there is to read of a call's stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ItemRead {
    /// Nothing yet.
    Pending,
    /// An item, and what the client may send more.
    Item(ItemBody, Option<Credit>),
    /// All was read.
    Over,
    /// The call was answered, or its connection has ended.
    Gone,
}

/// Whether an item can be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemSend {
    /// Now, before anything else of the call.
    Now,
    /// Once the client has read more.
    Later,
    /// The call was answered, or its connection has ended.
    Gone,
}

/// See the module. `R` is what the handler of a call is reached by, `W` what a reader of its items
/// is woken by.
#[derive(Debug)]
pub struct ServerMachine<R, W> {
    slots: Vec<Slot<R, W>>,
    /// The largest windows that were announced: a client learns of a smaller one later.
    calls_max: u32,
    bytes_max: u64,
    bytes: u64,
    running: usize,
    is_draining: bool,
    has_ended: bool,
}

impl<R, W> ServerMachine<R, W> {
    /// Of a client that may have so many calls open, and bytes of their requests.
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

    /// Calls that a client may have open, by the largest window that was announced.
    pub fn calls_max(&self) -> u32 {
        self.calls_max
    }

    /// Calls that are not over: not answered, or by an answer that is not read.
    pub fn running(&self) -> usize {
        self.running
    }

    /// A window that is to be announced.
    pub fn widen(&mut self, window: Window) {
        self.calls_max = self.calls_max.max(window.calls);
        self.bytes_max = self.bytes_max.max(window.bytes.into());
    }

    /// A REQUEST of so many bytes. It has started nothing yet.
    ///
    /// # Errors
    /// The client has more under way than it may, or uses a name twice.
    #[inline]
    pub fn handle_request(&mut self, call: CallId, len: usize) -> Result<Admission, Violation> {
        if u32::from(call.slot) >= self.calls_max {
            return Err(Violation("more calls than the window allows"));
        }
        let at = usize::from(call.slot);
        while self.slots.len() <= at {
            // The first call of a slot has generation 0.
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

    /// An admitted call runs. `false`: the connection has ended meanwhile.
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

    /// The call is answered. If this is the first answer and the connection is there, the answer is
    /// to be sent, and who is to be woken is said, if anybody is.
    pub fn answer(&mut self, call: CallId) -> Option<Option<W>> {
        self.end_running(call, |_| SlotState::Idle)
    }

    /// The same with an answer that the client has to read; the call is over when it has.
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

    /// The client was too slow to read the answer.
    pub fn revoke(&mut self, call: CallId) {
        let slot = self.slot_mut(call);
        if let Some(slot) = slot.filter(|it| matches!(it.state, SlotState::Lent(_))) {
            slot.state = SlotState::Revoked;
            self.running -= 1;
        }
    }

    /// A TAKEN: who waits for it.
    ///
    /// # Errors
    /// There is no such answer.
    pub fn handle_taken(&mut self, call: CallId) -> Result<Option<R>, Violation> {
        let none = Violation("an answer was taken that was not by reference");
        let slot = self.slot_mut(call).ok_or(none)?;
        match std::mem::replace(&mut slot.state, SlotState::Idle) {
            SlotState::Lent(handler) => {
                self.running -= 1;
                Ok(Some(handler))
            }
            SlotState::Revoked => Ok(None),
            // The connection is about to end for this.
            other @ (SlotState::Idle | SlotState::Running { .. }) => {
                slot.state = other;
                Err(none)
            }
        }
    }

    /// A CANCEL: the handler to be reached, if the call still runs.
    ///
    /// # Errors
    /// There was no such call.
    pub fn handle_cancel(&mut self, call: CallId) -> Result<Option<&R>, Violation> {
        let slot = self.slot_mut(call);
        let slot = slot.ok_or(Violation("a cancellation of no call"))?;
        Ok(match &slot.state {
            SlotState::Running { handler, .. } => Some(handler),
            _ => None,
        })
    }

    /// An ITEM: who is to be woken.
    ///
    /// # Errors
    /// There was no such call, or it takes no items, or not this one.
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

    /// A CREDIT: the handler to be reached.
    ///
    /// # Errors
    /// There was no such call, or it sends no items, or not so many.
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

    /// What is given out when there is an item to be read; the last one comes back. Of a call that
    /// is over, this one does.
    pub fn watch_items(&mut self, call: CallId, reader: W) -> Option<W> {
        match self.flows(call) {
            Some(flows) => flows.reader.replace(reader),
            None => Some(reader),
        }
    }

    /// True if there is no reader to be woken for an item, or not such a one.
    pub fn is_unwatched(&mut self, call: CallId, is_such: impl FnOnce(&W) -> bool) -> bool {
        let reader = self.flows(call).and_then(|it| it.reader.as_ref());
        !reader.is_some_and(is_such)
    }

    /// The next item of the client's.
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

    /// An item with so many bytes is there to be sent.
    pub fn send_item(&mut self, call: CallId, len: usize) -> ItemSend {
        let sent = self.flows(call).and_then(|it| it.sent.as_mut());
        match sent.map(|it| it.take(len)) {
            Some(true) => ItemSend::Now,
            Some(false) => ItemSend::Later,
            None => ItemSend::Gone,
        }
    }

    /// True as long as the call is not answered and the connection is there.
    pub fn is_running(&self, call: CallId) -> bool {
        let slot = self.slots.get(usize::from(call.slot));
        slot.is_some_and(|it| {
            it.generation == call.generation && matches!(it.state, SlotState::Running { .. })
        })
    }

    /// From now on calls are refused.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// The handlers of all calls that are not over.
    pub fn all_running(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().filter_map(|it| match &it.state {
            SlotState::Running { handler, .. } | SlotState::Lent(handler) => Some(handler),
            SlotState::Idle | SlotState::Revoked => None,
        })
    }

    /// The connection has ended, and all its calls with it: their handlers, and who waits for
    /// items.
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

    /// The slot of the call, if it is its last one.
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

    /// What holds after every step.
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
