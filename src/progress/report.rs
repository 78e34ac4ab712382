//! Where an operation reports: to its future, to a completion queue, or nowhere (ruling 2).

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::cq::{CompletionQueue, CqSlot};
use crate::id::Context;
use crate::proto::End;
use crate::sync::WakeList;

/// The meeting place of an operation's end and the future that awaits it.
#[derive(Debug)]
pub(crate) struct OpCell {
    state: Mutex<CellState>,
}

#[derive(Debug)]
enum CellState {
    Pending(Option<Waker>),
    /// A waiting operation that reports to a queue was accepted: the queue has its end.
    Accepted,
    Ended(Box<End>),
    Taken,
}

impl CellState {
    fn poll(&mut self, waker: &Waker) -> Poll<End> {
        match self {
            CellState::Pending(held) => {
                match held {
                    Some(held) => held.clone_from(waker),
                    None => *held = Some(waker.clone()),
                }
                Poll::Pending
            }
            CellState::Ended(_) => match std::mem::replace(self, CellState::Taken) {
                CellState::Ended(end) => Poll::Ready(*end),
                _ => unreachable!("matched above"),
            },
            CellState::Accepted | CellState::Taken => {
                panic!("an operation's future was polled after it ended")
            }
        }
    }
}

impl OpCell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(OpCell {
            state: Mutex::new(CellState::Pending(None)),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the end; the future is woken when `wakes` is dropped.
    pub(crate) fn complete(&self, end: End, wakes: &mut WakeList) {
        let mut state = self.lock();
        if let CellState::Pending(waker) = &mut *state {
            if let Some(waker) = waker.take() {
                wakes.push(waker);
            }
            *state = CellState::Ended(Box::new(end));
        }
    }

    /// A waiting operation is accepted now and will end elsewhere.
    pub(crate) fn accept(&self, wakes: &mut WakeList) {
        let mut state = self.lock();
        if let CellState::Pending(waker) = &mut *state {
            if let Some(waker) = waker.take() {
                wakes.push(waker);
            }
            *state = CellState::Accepted;
        }
    }

    /// For a waiting operation that reports to a queue: `Ok` once it is accepted, its end if it was
    /// never accepted.
    pub(crate) fn poll_accepted(&self, waker: &Waker) -> Poll<Result<(), End>> {
        let mut state = self.lock();
        match &*state {
            CellState::Accepted => Poll::Ready(Ok(())),
            _ => state.poll(waker).map(Err),
        }
    }

    /// The end, once.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<End> {
        self.lock().poll(waker)
    }

    /// The end if there is one, for a future that is being dropped.
    pub(crate) fn take(&self) -> Option<End> {
        match std::mem::replace(&mut *self.lock(), CellState::Taken) {
            CellState::Ended(end) => Some(*end),
            _ => None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(&*self.lock(), CellState::Pending(_))
    }
}

/// Where one operation reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// To the future that holds the other end of this cell.
    Future(Arc<OpCell>),
    /// To a completion queue; the slot is there once the operation is accepted. Until then whoever
    /// waits for its acceptance reads the cell.
    Queue {
        queue: CompletionQueue,
        context: Context,
        slot: Option<CqSlot>,
        waiting: Option<Arc<OpCell>>,
    },
    /// To counters only: injected, or its owner went away.
    Nowhere,
    /// Nowhere, and counted already: its owner was told that its time had passed.
    Told,
}

impl Report {
    /// Reserves the slot of an operation that reports to a queue, and tells whoever waits for its
    /// acceptance. `false`: there is none now; the waker is woken when there is room.
    pub(super) fn reserve(&mut self, waker: &Waker, wakes: &mut WakeList) -> bool {
        let Report::Queue {
            queue,
            slot,
            waiting,
            ..
        } = self
        else {
            return true;
        };
        if slot.is_some() {
            return true;
        }
        *slot = queue.try_reserve();
        if slot.is_none() {
            // Register, then look again: a slot freed in between would not be told.
            queue.on_room(waker);
            *slot = queue.try_reserve();
        }
        if slot.is_none() {
            return false; // Whoever waits goes on waiting.
        }
        if let Some(cell) = waiting.take() {
            cell.accept(wakes);
        }
        true
    }
}
