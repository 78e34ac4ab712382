//! Where an operation reports: to its future, to a completion queue, or nowhere (ruling 2).

use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use crate::cq::{CompletionFlags, CompletionQueue, CqSlot};
use crate::id::UserContext;
use crate::proto::End;
use crate::sync::{Mutex, MutexGuard, WakeList, thread_local};

use super::receive_context::{ManyReceive, TimedReport};

/// Cells that a thread keeps at most: operations are posted and fetched where they are awaited,
/// mostly, so that few serve many.
const KEPT_MAX: usize = 256;

thread_local! {
    /// Cells of operations that have ended and were fetched, to be used again.
    static KEPT: RefCell<Vec<Arc<OpCell>>> = const { RefCell::new(Vec::new()) };
}

/// The meeting place of an operation's end and the future that awaits it.
#[derive(Debug)]
pub(crate) struct OpCell {
    state: Mutex<CellState>,
}

#[derive(Debug)]
struct CellState {
    stage: Stage,
    waker: Option<Waker>,
    /// An end of nothing, but between the end and the moment in which it is fetched.
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pending,
    /// A waiting operation that reports to a queue was accepted: the queue has its end.
    Accepted,
    Ended,
    Taken,
    /// The future was dropped before the end: the operation was withdrawn, or is to be.
    Abandoned,
    /// The operation goes on to its end, which nobody awaits.
    Detached,
}

/// What became of an operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The future has it.
    Delivered,
    /// The future was dropped: a message goes back to where it came from.
    Abandoned,
    /// The future was detached: nothing of the end is needed any more.
    Detached,
}

impl CellState {
    /// A waker that is replaced goes to `stale`, to be dropped after unlocking: the last waker of a
    /// task may run its destructor.
    fn poll<R>(
        &mut self,
        waker: &Waker,
        stale: &mut Option<Waker>,
        fetch: impl FnOnce(&mut End) -> R,
    ) -> Poll<R> {
        match self.stage {
            Stage::Pending => {
                if !self
                    .waker
                    .as_ref()
                    .is_some_and(|held| held.will_wake(waker))
                {
                    *stale = self.waker.replace(waker.clone());
                }
                Poll::Pending
            }
            Stage::Ended => {
                self.stage = Stage::Taken;
                Poll::Ready(fetch(&mut self.end))
            }
            Stage::Accepted | Stage::Taken | Stage::Abandoned | Stage::Detached => {
                panic!("an operation's future was polled after it ended")
            }
        }
    }

    /// Whoever waits is woken when `wakes` is dropped.
    fn wake(&mut self, wakes: &mut WakeList) {
        if let Some(waker) = self.waker.take() {
            wakes.push(waker);
        }
    }
}

impl OpCell {
    pub(crate) fn new() -> Arc<Self> {
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop());
        kept.ok().flatten().unwrap_or_else(|| {
            Arc::new(OpCell {
                state: Mutex::new(CellState {
                    stage: Stage::Pending,
                    waker: None,
                    end: End::empty(),
                }),
            })
        })
    }

    /// Keeps a cell for the next operation that this thread posts, if nobody else has it.
    pub(crate) fn keep(mut cell: Arc<Self>) {
        let Some(OpCell { state }) = Arc::get_mut(&mut cell) else {
            return;
        };
        let state = state.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(state.stage, Stage::Taken, "its end was fetched");
        state.stage = Stage::Pending;
        state.waker = None;
        state.end.result = Ok(());
        // A thread that is ending keeps nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(cell);
            }
        });
    }

    /// Frees what this thread keeps.
    #[cfg(feature = "test-util")]
    pub(crate) fn drop_kept() {
        let _ = KEPT.try_with(RefCell::take);
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the end, and leaves one of nothing; the future is woken when `wakes` is dropped.
    /// Of an operation that nobody awaits, the end stays where it is.
    pub(super) fn complete(&self, end: &mut End, wakes: &mut WakeList) -> Delivery {
        let mut state = self.lock();
        match state.stage {
            Stage::Pending => {
                state.wake(wakes);
                state.stage = Stage::Ended;
                std::mem::swap(&mut state.end, end);
                Delivery::Delivered
            }
            Stage::Abandoned => Delivery::Abandoned,
            Stage::Detached => Delivery::Detached,
            // It has ended before, which is not to be undone.
            Stage::Accepted | Stage::Ended | Stage::Taken => Delivery::Delivered,
        }
    }

    /// The future is dropped: its end if there is one; else whoever brings the end gets it back.
    pub(crate) fn abandon(&self) -> Option<End> {
        self.leave(Stage::Abandoned)
    }

    /// The operation goes on, and nobody awaits it: its end if there is one.
    pub(crate) fn detach(&self) -> Option<End> {
        self.leave(Stage::Detached)
    }

    /// Goes to this stage, and gives the end if there is one. The waker of whoever waited is
    /// dropped with the cell unlocked.
    fn leave(&self, to: Stage) -> Option<End> {
        let _waker; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        _waker = state.waker.take();
        let was = std::mem::replace(&mut state.stage, to);
        (was == Stage::Ended).then(|| state.end.take())
    }

    /// A waiting operation is accepted now and will end elsewhere.
    pub(crate) fn accept(&self, wakes: &mut WakeList) {
        let mut state = self.lock();
        if state.stage == Stage::Pending {
            state.wake(wakes);
            state.stage = Stage::Accepted;
        }
    }

    /// For a waiting operation that reports to a queue: `Ok` once it is accepted, its end if it was
    /// never accepted.
    pub(crate) fn poll_accepted(&self, waker: &Waker) -> Poll<Result<(), End>> {
        let mut stale = None; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        match state.stage {
            Stage::Accepted => Poll::Ready(Ok(())),
            _ => state.poll(waker, &mut stale, End::take).map(Err),
        }
    }

    /// Fetches the end, once, where it lies: `fetch` takes no lock.
    #[inline]
    pub(crate) fn poll<R>(&self, waker: &Waker, fetch: impl FnOnce(&mut End) -> R) -> Poll<R> {
        let mut stale = None; // Declared before the guard, and so dropped after it.
        let mut state = self.lock();
        state.poll(waker, &mut stale, fetch)
    }

    /// The end if there is one, for a future that is being dropped.
    pub(crate) fn take(&self) -> Option<End> {
        self.leave(Stage::Taken)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().stage != Stage::Pending
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
        context: UserContext,
        /// Of which interface the operation is: what its completion's flags say beside the
        /// direction.
        kind: CompletionFlags,
        slot: Option<CqSlot>,
        waiting: Option<Arc<OpCell>>,
    },
    /// To whoever takes it first: the connection that brings the message, or the clock.
    Timed(Arc<TimedReport>),
    /// One message of a buffer for many, to a completion queue.
    Piece {
        many: Arc<ManyReceive>,
        slot: CqSlot,
    },
    /// To counters only: injected, or its owner went away.
    Nowhere,
    /// Nowhere, and counted already: its owner was told that its time had passed.
    Counted,
}

impl Report {
    /// True if it is the future of this cell that is told.
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

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    /// The waker of a task that has the cell's own future too, say, and asks for it as it goes.
    struct Last(Arc<OpCell>, mpsc::Sender<()>);

    impl Wake for Last {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Last {
        fn drop(&mut self) {
            self.0.has_ended();
            let _ = self.1.send(());
        }
    }

    /// A cell that was polled by a task, which has nothing left but that waker; `then` is what
    /// lets the waker go.
    #[track_caller]
    fn waker_goes(then: fn(&OpCell)) {
        let (told, gone) = mpsc::channel();
        // On a thread of its own, so that a deadlock fails the test instead of holding it up.
        std::thread::spawn(move || {
            let cell = OpCell::new();
            let waker = Waker::from(Arc::new(Last(Arc::clone(&cell), told)));
            assert!(cell.poll(&waker, End::take).is_pending());
            drop(waker);
            then(&cell);
        });
        let waited = gone.recv_timeout(Duration::from_secs(10));
        waited.expect("the cell was locked while the waker was dropped");
    }

    /// ARCHITECTURE.md: under a lock "nothing is copied, told or woken", nor dropped: the last
    /// waker of a task drops what the task has, which may be operations of the same connection.
    #[test]
    fn a_waker_that_is_not_wanted_any_more_is_dropped_with_the_cell_unlocked() {
        waker_goes(|cell| assert!(cell.poll(Waker::noop(), End::take).is_pending()));
        waker_goes(|cell| assert!(cell.poll_accepted(Waker::noop()).is_pending()));
        waker_goes(|cell| assert!(cell.take().is_none()));
        waker_goes(|cell| assert!(cell.abandon().is_none()));
        waker_goes(|cell| assert!(cell.detach().is_none()));
    }
}
