//! Where an operation reports: to its future, to a completion queue, or nowhere (ruling 2).

use std::cell::RefCell;
use std::mem;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use crate::cq::{CompletionFlags, CompletionQueue, CqSlot};
use crate::id::UserContext;
use crate::limits::CELLS_PER_THREAD_MAX;
use crate::proto::OpResult;
use crate::sync::{Mutex, MutexGuard, NO_TASK, WakeList, thread_local};

use super::receive_context::{MultiReceive, TimedReport};

thread_local! {
    /// Cells of operations that are over, to be used again.
    static FREE_CELLS: RefCell<Vec<Arc<OpCell>>> = const { RefCell::new(Vec::new()) };
}

/// Where the result of an operation meets the future that awaits it.
#[derive(Debug)]
pub(crate) struct OpCell {
    state: Mutex<CellState>,
}

#[derive(Debug)]
struct CellState {
    phase: CellPhase,
    /// Of an operation that has completed, until the future fetches it; else empty.
    result: OpResult,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
enum CellPhase {
    Pending,
    /// A waiting operation that reports to a queue was accepted: the queue has its completion.
    Accepted,
    /// Until the future fetches it.
    Completed,
    Taken,
    /// The future was dropped before the completion: the operation was withdrawn, or is to be.
    Abandoned,
    /// The operation goes on, and no future awaits it.
    Detached,
}

/// What became of an operation's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The future has it.
    Delivered,
    /// The future was dropped: a message goes back to where it came from.
    Abandoned,
    /// The future was detached: nothing of the result is needed any more.
    Detached,
}

impl CellState {
    /// A waker that is replaced goes to `stale`, to be dropped after unlocking: the last waker of a
    /// task may run its destructor.
    #[inline]
    fn poll<R>(
        &mut self,
        waker: &Waker,
        stale: &mut Option<Waker>,
        fetch: impl FnOnce(&mut OpResult) -> R,
    ) -> Poll<R> {
        match self.phase {
            CellPhase::Pending => {
                *stale = self.register(waker);
                Poll::Pending
            }
            CellPhase::Completed => {
                let fetched = fetch(&mut self.result);
                self.result = OpResult::empty();
                self.phase = CellPhase::Taken;
                Poll::Ready(fetched)
            }
            CellPhase::Accepted | CellPhase::Taken | CellPhase::Abandoned | CellPhase::Detached => {
                panic!("an operation's future was polled after it ended")
            }
        }
    }

    fn register(&mut self, waker: &Waker) -> Option<Waker> {
        let held = self.waker.as_ref();
        if waker.will_wake(NO_TASK) {
            self.waker.take()
        } else if !held.is_some_and(|held| held.will_wake(waker)) {
            self.waker.replace(waker.clone())
        } else {
            None
        }
    }

    /// The task that polled last is woken when `wakes` is dropped.
    fn wake(&mut self, wakes: &mut WakeList) {
        if let Some(waker) = self.waker.take() {
            wakes.push(waker);
        }
    }
}

impl OpCell {
    pub(crate) fn new() -> Arc<Self> {
        let free = FREE_CELLS.try_with(|cells| cells.borrow_mut().pop());
        free.ok().flatten().unwrap_or_else(|| {
            Arc::new(OpCell {
                state: Mutex::new(CellState {
                    phase: CellPhase::Pending,
                    result: OpResult::empty(),
                    waker: None,
                }),
            })
        })
    }

    /// Puts a cell whose result was fetched, or that was detached, on this thread's free list,
    /// unless another handle of it is left.
    pub(crate) fn recycle(mut cell: Arc<Self>) {
        let Some(OpCell { state }) = Arc::get_mut(&mut cell) else {
            return;
        };
        let state = state.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(
            matches!(state.phase, CellPhase::Taken | CellPhase::Detached),
            "nothing awaits its result"
        );
        state.phase = CellPhase::Pending;
        state.waker = None;
        // A thread that is ending has no free list any more.
        let _ = FREE_CELLS.try_with(|cells| {
            let mut cells = cells.borrow_mut();
            if cells.len() < CELLS_PER_THREAD_MAX {
                cells.push(cell);
            }
        });
    }

    /// Frees what this thread's free list holds.
    #[cfg(feature = "test-util")]
    pub(crate) fn drop_kept() {
        let _ = FREE_CELLS.try_with(RefCell::take);
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result, and leaves an empty one; the future's task is woken when `wakes` is
    /// dropped. A result that no future awaits stays where it is.
    pub(super) fn complete(&self, result: &mut OpResult, wakes: &mut WakeList) -> Delivery {
        let mut state = self.lock();
        match state.phase {
            CellPhase::Pending => {
                state.wake(wakes);
                // Its own is empty. Swapped, since it is large.
                mem::swap(&mut state.result, result);
                state.phase = CellPhase::Completed;
                Delivery::Delivered
            }
            CellPhase::Abandoned => Delivery::Abandoned,
            CellPhase::Detached => Delivery::Detached,
            // It has completed before, which is not to be undone.
            CellPhase::Accepted | CellPhase::Completed | CellPhase::Taken => Delivery::Delivered,
        }
    }

    /// The future is dropped: its result if there is one. Else the completion finds it abandoned.
    pub(crate) fn abandon(&self) -> Option<OpResult> {
        self.set_phase(CellPhase::Abandoned)
    }

    /// The operation goes on without a future: its result if there is one.
    pub(crate) fn detach(cell: Arc<Self>) -> Option<OpResult> {
        let ended = cell.set_phase(CellPhase::Detached);
        OpCell::recycle(cell);
        ended
    }

    /// Goes to this state, and gives the result if there is one. The waker is dropped with the cell
    /// unlocked.
    fn set_phase(&self, to: CellPhase) -> Option<OpResult> {
        let _waker; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        _waker = state.waker.take();
        match mem::replace(&mut state.phase, to) {
            CellPhase::Completed => Some(state.result.take()),
            _ => None,
        }
    }

    /// A waiting operation is accepted now and will complete elsewhere.
    pub(crate) fn accept(&self, wakes: &mut WakeList) {
        let mut state = self.lock();
        if matches!(state.phase, CellPhase::Pending) {
            state.wake(wakes);
            state.phase = CellPhase::Accepted;
        }
    }

    /// For a waiting operation that reports to a queue: `Ok` once it is accepted, its result if it
    /// was never accepted.
    pub(crate) fn poll_accepted(&self, waker: &Waker) -> Poll<Result<(), OpResult>> {
        let mut stale = None; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        match state.phase {
            CellPhase::Accepted => Poll::Ready(Ok(())),
            _ => state.poll(waker, &mut stale, OpResult::take).map(Err),
        }
    }

    /// Fetches the result, once, where it lies: `fetch` takes no lock.
    #[inline]
    pub(crate) fn poll<R>(&self, waker: &Waker, fetch: impl FnOnce(&mut OpResult) -> R) -> Poll<R> {
        let mut stale = None; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        state.poll(waker, &mut stale, fetch)
    }

    /// The result if there is one, for a future that is being dropped.
    pub(crate) fn take(&self) -> Option<OpResult> {
        self.set_phase(CellPhase::Taken)
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.lock().phase, CellPhase::Pending)
    }
}

/// Where one operation reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// To the future that holds the other end of this cell.
    Future(Arc<OpCell>),
    /// To a completion queue; the slot is there once the operation is accepted. Until then the
    /// future of its acceptance reads the cell.
    Queue {
        queue: CompletionQueue,
        context: UserContext,
        /// Of which interface the operation is: what its completion's flags say beside the
        /// direction.
        flags: CompletionFlags,
        /// It is reported only if it fails (`FI_SELECTIVE_COMPLETION`).
        errors_only: bool,
        slot: Option<CqSlot>,
        waiting: Option<Arc<OpCell>>,
    },
    /// To the one that takes it first: the connection that brings the message, or the clock.
    Timed(Arc<TimedReport>),
    /// One message of a buffer for many, to a completion queue.
    Piece {
        multi: Arc<MultiReceive>,
        slot: CqSlot,
    },
    /// To counters only: injected, or its owner went away.
    Nowhere,
    /// Nowhere, and counted already: it was reported as timed out.
    Counted,
}

impl Report {
    /// True if it reports to the future of this cell.
    pub(super) fn is_awaited_in(&self, cell: &OpCell) -> bool {
        match self {
            Report::Future(held) => std::ptr::eq(Arc::as_ptr(held), cell),
            Report::Timed(timed) => {
                (timed.with(|report| report.is_awaited_in(cell))).unwrap_or_default()
            }
            _ => false,
        }
    }

    /// True if it is this that the connection and the clock take their report from.
    pub(super) fn is_taken_from(&self, timed: &Arc<TimedReport>) -> bool {
        matches!(self, Report::Timed(held) if Arc::ptr_eq(held, timed))
    }
}

impl Report {
    /// Reserves the slot of an operation that reports to a queue, and wakes the future of its
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
        *slot = queue.reserve_or_wake(waker);
        if slot.is_none() {
            return false; // It goes on waiting.
        }
        if let Some(cell) = waiting.take() {
            cell.accept(wakes);
        }
        true
    }
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    /// The waker of a task that has the cell's own future too, say, and asks for it as it goes.
    struct PollingWaker(Arc<OpCell>, mpsc::Sender<()>);

    impl Wake for PollingWaker {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for PollingWaker {
        fn drop(&mut self) {
            self.0.has_ended();
            let _ = self.1.send(());
        }
    }

    /// A cell that was polled by a task, which has nothing left but that waker; `then` is what
    /// lets the waker go.
    #[track_caller]
    fn waker_goes(then: fn(Arc<OpCell>)) {
        let (dropped, gone) = mpsc::channel();
        // On a thread of its own, so that a deadlock fails the test instead of holding it up.
        std::thread::spawn(move || {
            let cell = OpCell::new();
            let waker = Waker::from(Arc::new(PollingWaker(Arc::clone(&cell), dropped)));
            assert!(cell.poll(&waker, OpResult::take).is_pending());
            drop(waker);
            then(cell);
        });
        let waited = gone.recv_timeout(Duration::from_secs(10));
        waited.expect("the cell was locked while the waker was dropped");
    }

    /// Nothing is dropped under a lock: the last waker of a task drops what the task has, which may
    /// be operations of the same connection.
    #[test]
    fn a_waker_that_is_not_wanted_any_more_is_dropped_with_the_cell_unlocked() {
        waker_goes(|cell| assert!(cell.poll(Waker::noop(), OpResult::take).is_pending()));
        waker_goes(|cell| assert!(cell.poll_accepted(Waker::noop()).is_pending()));
        waker_goes(|cell| assert!(cell.take().is_none()));
        waker_goes(|cell| assert!(cell.abandon().is_none()));
        waker_goes(|cell| assert!(OpCell::detach(cell).is_none()));
    }
}
