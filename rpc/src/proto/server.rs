//! The server's end of a connection: which slots have a call that is not answered.
//!
//! ```text
//! idle --REQUEST--> Running --answer--> idle
//!   \--REQUEST, refused: answered at once--> idle
//! ```
//!
//! Who answers first ends the call; what comes later has nothing to answer. A CANCEL that has
//! crossed the answer finds the slot idle, which is no violation.

use crate::wire::{CallId, Violation};

#[derive(Debug)]
struct Slot<R> {
    /// Of the last call.
    generation: u16,
    running: Option<R>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may run; [`ServerMachine::start`], or answer it.
    Admitted,
    /// This side drains: answer it so.
    Draining,
}

/// See the module. `R` is what the handler of a call is reached by.
#[derive(Debug)]
pub struct ServerMachine<R> {
    slots: Vec<Slot<R>>,
    calls_max: u32,
    running: usize,
    is_draining: bool,
    has_ended: bool,
}

impl<R> ServerMachine<R> {
    /// Of a client that may have so many calls open.
    pub fn new(calls_max: u32) -> Self {
        ServerMachine {
            slots: Vec::new(),
            calls_max,
            running: 0,
            is_draining: false,
            has_ended: false,
        }
    }

    /// Calls that are not answered.
    pub fn running(&self) -> usize {
        self.running
    }

    /// A REQUEST. It has started nothing yet.
    ///
    /// # Errors
    /// The client has more calls open than it may, or uses a name twice.
    pub fn handle_request(&mut self, call: CallId) -> Result<Admission, Violation> {
        if u32::from(call.slot) >= self.calls_max {
            return Err(Violation("more calls than the window allows"));
        }
        let at = usize::from(call.slot);
        while self.slots.len() <= at {
            // The first call of a slot has generation 0.
            self.slots.push(Slot {
                generation: u16::MAX,
                running: None,
            });
        }
        let slot = &mut self.slots[at];
        if slot.running.is_some() {
            return Err(Violation("a call in the slot of one that is not answered"));
        }
        if call.generation != slot.generation.wrapping_add(1) {
            return Err(Violation("a call under a name that is not the next"));
        }
        slot.generation = call.generation;
        Ok(match self.is_draining {
            true => Admission::Draining,
            false => Admission::Admitted,
        })
    }

    /// An admitted call runs. `false`: the connection has ended meanwhile.
    pub fn start(&mut self, call: CallId, running: R) -> bool {
        if self.has_ended {
            return false;
        }
        self.slots[usize::from(call.slot)].running = Some(running);
        self.running += 1;
        true
    }

    /// The call is answered, if this is the first answer and the connection is there: `true`, and
    /// the answer is to be sent.
    pub fn answer(&mut self, call: CallId) -> bool {
        let slot = self.slots.get_mut(usize::from(call.slot));
        let Some(slot) = slot.filter(|it| it.generation == call.generation) else {
            return false;
        };
        let answered = slot.running.take().is_some();
        self.running -= usize::from(answered);
        answered
    }

    /// A CANCEL: the handler to be reached, if the call still runs.
    ///
    /// # Errors
    /// There was no such call.
    pub fn handle_cancel(&mut self, call: CallId) -> Result<Option<&R>, Violation> {
        let slot = self.slots.get(usize::from(call.slot));
        let slot = slot.filter(|it| it.generation == call.generation);
        let slot = slot.ok_or(Violation("a cancellation of no call"))?;
        Ok(slot.running.as_ref())
    }

    /// From now on calls are refused.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// The handlers of all calls that are not answered.
    pub fn all_running(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().filter_map(|it| it.running.as_ref())
    }

    /// The connection has ended, and all its calls with it: their handlers.
    pub fn handle_end(&mut self) -> Vec<R> {
        self.has_ended = true;
        self.running = 0;
        self.slots
            .iter_mut()
            .filter_map(|it| it.running.take())
            .collect()
    }
}
