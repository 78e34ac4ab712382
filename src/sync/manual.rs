//! Manual progress: those who wait drive.
//!
//! What is to be driven (the drivers of a domain, its listeners: [`ProgressTask`]) is no task of a
//! runtime and has no thread. It is polled by those who wait for something of it
//! ([`ProgressWaiter`]), and by those who ask for a turn ([`ManualProgress::turn`]).
//!
//! ```text
//!   Parked ──it is woken──▶ Woken ──a waiter begins──▶ Driving ──it is woken──▶ DrivingWoken
//!   Parked ──a turn is asked for──▶ Driving ◀──the turn polls what has come── DrivingWoken
//!   Parked ◀──nothing is left── Driving ──what was waited for is there──▶ Woken
//!   Woken ◀──the turn ends── DrivingWoken
//! ```
//!
//! The waiter that was polled last is asked first: its task is the one that is at work, so a
//! message wakes the task that it is for. Who is asked drives at its next poll. Four steps see to
//! it that none is left without a driver, and the models beside this file show it: a waiter that
//! goes away while one is asked asks the next; one that registers while none could be asked asks
//! itself; the end of a turn asks again for what came during it; and where one is asked whose task
//! does not poll it (a future that was polled once and is kept), an alarm asks the next.

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::{AtomicUsize, Lock, MutexGuard, Ordering};
use crate::edges::{MachineState, check_edge};
use crate::limits::MANUAL_END_TURNS;

/// What makes progress when it is polled, and ends when its work is over.
pub(crate) trait ProgressTask: Future<Output = ()> + Send + Unpin {
    /// Looks for what no waker reports, as timers and sockets whose reactor does not run. True if
    /// it is to be polled.
    fn is_due(&mut self) -> bool;

    /// Whether anything has moved since this was last asked.
    fn has_moved(&mut self) -> bool;
}

/// Where what is driven learns that sockets are ready, besides the reactor of a runtime.
pub(crate) trait ReadinessSource: Send + Sync {
    /// Takes in what is ready now, which wakes whom it is for. Never blocks.
    fn poll_now(&self) {}

    /// From here on a waiter sleeps until something is ready.
    fn watch(&self) {}

    /// No waiter sleeps: who polls for itself is not to be disturbed.
    fn unwatch(&self) {}

    /// Wakes this once a task that was asked has had its time to answer. It is asked for again
    /// when it has woken, and not before.
    fn set_alarm(&self, _alarm: &Waker) {}
}

/// What is known of the need to drive, and of who does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgressPhase {
    /// Nothing is to be done.
    Parked,
    /// Something is, and the first waiter, if there is one, has been asked.
    Woken,
    /// A thread drives.
    Driving,
    /// A thread drives, and more has come.
    DrivingWoken,
}

impl MachineState for ProgressPhase {
    const EDGES: &'static [(ProgressPhase, ProgressPhase)] = {
        use ProgressPhase::*;
        &[
            (Parked, Woken),
            (Parked, Driving),
            (Woken, Driving),
            (Driving, DrivingWoken),
            (Driving, Parked),
            (Driving, Woken),
            (DrivingWoken, Driving),
            (DrivingWoken, Woken),
        ]
    };
}

struct State {
    phase: ProgressPhase,
    /// Those who wait, by the order in which they were last polled.
    waiters: BTreeMap<u64, Waker>,
    next_place: u64,
    /// The place of the waiter that was asked last.
    asked: u64,
    /// The alarm is set. It is while something is to be done and several wait.
    has_alarm: bool,
    /// A turn has begun since the alarm was set.
    has_driven: bool,
    /// What was added since the last turn.
    added: Vec<TaskSlot>,
    /// The last handle of what is driven has gone.
    ended: bool,
}

impl State {
    fn go(&mut self, to: ProgressPhase) {
        check_edge(self.phase, to);
        self.phase = to;
    }

    /// The waiter that is asked first.
    fn first(&mut self) -> Option<AskedWaiter> {
        self.asked = u64::MAX;
        let waker = self.next()?;
        let sets_alarm = !self.has_alarm && self.waiters.len() > 1;
        if sets_alarm {
            self.has_alarm = true;
            self.has_driven = false;
        }
        Some(AskedWaiter { waker, sets_alarm })
    }

    /// The waker of the one behind that which was asked last.
    fn next(&mut self) -> Option<Waker> {
        let (place, waker) = self.waiters.range(..self.asked).next_back()?;
        self.asked = *place;
        Some(waker.clone())
    }

    /// Makes a waiter the first to be asked. A waker that this replaces comes back.
    fn put_first(&mut self, place: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        // A task that waits for several things keeps their places while it is the first.
        let is_ours = |held: Option<&Waker>| held.is_some_and(|held| held.will_wake(waker));
        let held = place.and_then(|place| self.waiters.get(&place));
        if is_ours(held) && is_ours(self.waiters.values().next_back()) {
            return None;
        }
        let stale = self.remove(place);
        self.waiters.insert(self.next_place, waker.clone());
        *place = Some(self.next_place);
        self.next_place += 1;
        stale
    }

    /// Takes a waiter out; its waker comes back.
    fn remove(&mut self, place: &mut Option<u64>) -> Option<Waker> {
        self.waiters.remove(&place.take()?)
    }
}

/// A waiter that is to be asked.
struct AskedWaiter {
    waker: Waker,
    /// There are others, and nothing sees to it yet that one of them is asked if this one does not
    /// answer.
    sets_alarm: bool,
}

/// What is driven, with the waker that it is polled with, by any waiter.
struct TaskSlot {
    driven: Box<dyn ProgressTask>,
    wake: Arc<TaskWake>,
    waker: Waker,
}

/// Notes that its task was woken, and asks a waiter to drive.
struct TaskWake {
    is_woken: AtomicUsize,
    of: Weak<ManualProgress>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Exchanged, as where it is taken: the models know no order of stores between exchanges.
        self.is_woken.swap(1, Ordering::AcqRel);
        if let Some(progress) = self.of.upgrade() {
            progress.wake();
        }
    }
}

/// Asks the next waiter where one does not answer.
struct AnswerAlarm {
    of: Weak<ManualProgress>,
}

impl Wake for AnswerAlarm {
    fn wake(self: Arc<Self>) {
        if let Some(progress) = self.of.upgrade()
            && progress.ask_next()
        {
            progress.readiness.set_alarm(&progress.alarm);
        }
    }
}

/// Progress that is made by those who wait for it.
pub(crate) struct ManualProgress {
    state: Lock<State>,
    /// Locked by the thread that drives.
    tasks: Lock<Vec<TaskSlot>>,
    readiness: Box<dyn ReadinessSource>,
    /// Itself, for the wakers of what is driven.
    itself: Weak<ManualProgress>,
    /// That of an [`AnswerAlarm`].
    alarm: Waker,
}

impl ManualProgress {
    pub(crate) fn new(readiness: Box<dyn ReadinessSource>) -> Arc<Self> {
        Arc::new_cyclic(|itself| ManualProgress {
            state: Lock::new(State {
                phase: ProgressPhase::Parked,
                waiters: BTreeMap::new(),
                next_place: 0,
                asked: 0,
                has_alarm: false,
                has_driven: false,
                added: Vec::new(),
                ended: false,
            }),
            tasks: Lock::new(Vec::new()),
            readiness,
            itself: Weak::clone(itself),
            alarm: Waker::from(Arc::new(AnswerAlarm {
                of: Weak::clone(itself),
            })),
        })
    }

    /// Adds what is to be driven from now on.
    pub(crate) fn add(&self, driven: Box<dyn ProgressTask>) {
        let wake = Arc::new(TaskWake {
            is_woken: AtomicUsize::new(1),
            of: Weak::clone(&self.itself),
        });
        let task_slot = TaskSlot {
            driven,
            waker: Waker::from(Arc::clone(&wake)),
            wake,
        };
        self.state.lock("add what is driven").added.push(task_slot);
        self.wake();
    }

    /// One bounded turn, beside those who wait. True if anything moved; false also while another
    /// thread drives. Never blocks.
    pub(crate) fn turn(&self) -> bool {
        if !self.begin(true) {
            return false;
        }
        let moved = self.poll_and_drive();
        self.update_waiter(Some(true), &mut None, None);
        moved
    }

    /// The last handle of what is driven has gone: what goes without waiting goes, then all ends.
    pub(crate) fn end(&self) {
        if !self.begin(true) {
            // The thread that drives now ends it.
            self.state.lock("end progress").ended = true;
            return;
        }
        for _ in 0..MANUAL_END_TURNS {
            if !self.poll_and_drive() {
                break;
            }
        }
        self.state.lock("end progress").ended = true;
        self.update_waiter(Some(true), &mut None, None);
    }

    fn poll_and_drive(&self) -> bool {
        self.readiness.poll_now();
        let mut state = self.state.lock("a turn is asked for");
        // What was found is served by this turn.
        if state.phase == ProgressPhase::DrivingWoken {
            state.go(ProgressPhase::Driving);
        }
        let nobody_waits = state.waiters.is_empty();
        self.take_added(state);
        if nobody_waits {
            self.readiness.unwatch();
        }
        self.drive(true)
    }

    /// Something driven is to be polled: asks the first waiter, unless it is known already.
    fn wake(&self) {
        let asked = {
            let mut state = self.state.lock("wake a driver");
            match state.phase {
                ProgressPhase::Parked => {
                    state.go(ProgressPhase::Woken);
                    state.first()
                }
                ProgressPhase::Driving => {
                    state.go(ProgressPhase::DrivingWoken);
                    None
                }
                ProgressPhase::Woken | ProgressPhase::DrivingWoken => None,
            }
        };
        self.ask(asked);
    }

    /// Makes the caller the driver, if anything is to be done or it insists; unless there is one.
    fn begin(&self, insists: bool) -> bool {
        let mut state = self.state.lock("begin to drive");
        let begins = match state.phase {
            _ if state.ended => false,
            ProgressPhase::Woken => true,
            ProgressPhase::Parked => insists,
            ProgressPhase::Driving | ProgressPhase::DrivingWoken => false,
        };
        if begins {
            state.go(ProgressPhase::Driving);
            state.has_driven = true;
            self.take_added(state);
        }
        begins
    }

    /// What was added is driven from now on. Called by the driver.
    fn take_added(&self, mut state: MutexGuard<'_, State>) {
        if !state.added.is_empty() {
            let added = std::mem::take(&mut state.added);
            drop(state);
            self.tasks.lock("add what is driven").extend(added);
        }
    }

    /// Polls what was woken, and with `looks` also what finds that it is due. True if anything
    /// moved. Called by the driver.
    fn drive(&self, looks: bool) -> bool {
        let mut tasks = self.tasks.lock("drive");
        let mut moved = false;
        let mut at = 0;
        while let Some(task_slot) = tasks.get_mut(at) {
            // A panic (a waker's, a buffer's drop) ends what is driven as the end of a task would.
            let polled = catch_unwind(AssertUnwindSafe(|| task_slot.poll(looks)));
            let ended = polled.unwrap_or_else(|_| {
                tracing::error!("what was driven by hand panicked, and ends");
                true
            });
            moved |= ended || task_slot.driven.has_moved();
            match ended {
                true => drop_quietly(tasks.swap_remove(at)),
                false => at += 1,
            }
        }
        moved
    }

    /// Has the caller wait on (`waker`), as the first to be asked, or no longer. If it has a turn,
    /// that ends: one in which nothing was driven leaves all to be done. What is to be done then is
    /// for the first waiter.
    fn update_waiter(
        &self,
        has_driven: Option<bool>,
        place: &mut Option<u64>,
        waker: Option<&Waker>,
    ) {
        let _stale; // Declared before the guard, so the waker is dropped after it.
        let mut state = self.state.lock("wait for progress");
        _stale = match waker {
            Some(waker) => state.put_first(place, waker),
            None => state.remove(place),
        };
        match has_driven {
            None => {}
            Some(_) if state.ended => return self.drop_driven(state),
            Some(true) if state.phase == ProgressPhase::Driving => state.go(ProgressPhase::Parked),
            Some(_) => state.go(ProgressPhase::Woken),
        }
        let asked = match state.phase {
            ProgressPhase::Woken => state.first(),
            _ => None,
        };
        drop(state);
        self.ask(asked);
    }

    /// All is over: none drives again.
    #[cold]
    fn drop_driven(&self, mut state: MutexGuard<'_, State>) {
        let added = std::mem::take(&mut state.added);
        drop(state);
        let tasks = std::mem::take(&mut *self.tasks.lock("end what is driven"));
        tasks.into_iter().chain(added).for_each(drop_quietly);
    }

    /// Called with no lock held.
    fn ask(&self, asked: Option<AskedWaiter>) {
        let Some(AskedWaiter { waker, sets_alarm }) = asked else {
            return;
        };
        waker.wake();
        if sets_alarm {
            self.readiness.set_alarm(&self.alarm);
        }
    }

    /// A waiter that was asked has had its time: the next one is asked, unless one has driven.
    /// False: that is no more to be seen to.
    fn ask_next(&self) -> bool {
        let mut state = self.state.lock("ask the next");
        let has_driven = std::mem::take(&mut state.has_driven);
        let next = match state.phase {
            ProgressPhase::Woken if !has_driven => state.next(),
            _ => None,
        };
        // When all have been asked, the next that waits asks itself.
        let goes_on = next.is_some() || has_driven && state.phase == ProgressPhase::Woken;
        state.has_alarm = goes_on;
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        goes_on
    }
}

impl TaskSlot {
    /// True once it has ended.
    fn poll(&mut self, looks: bool) -> bool {
        let is_woken = self.wake.is_woken.swap(0, Ordering::AcqRel) == 1;
        let is_due = is_woken || looks && self.driven.is_due();
        if !is_due {
            return false;
        }
        // Outside of Tokio's cooperative budget, which belongs to the task that waits.
        let driven = tokio::task::unconstrained(Pin::new(&mut self.driven));
        let mut cx = Context::from_waker(&self.waker);
        pin!(driven).poll(&mut cx).is_ready()
    }
}

/// What made something panic may do it again as it is dropped.
fn drop_quietly(task_slot: TaskSlot) {
    if catch_unwind(AssertUnwindSafe(|| drop(task_slot))).is_err() {
        tracing::error!("what was driven by hand panicked as it ended");
    }
}

impl fmt::Debug for ManualProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock("show progress");
        f.debug_struct("ManualProgress")
            .field("phase", &state.phase)
            .field("waiters", &state.waiters.len())
            .finish_non_exhaustive()
    }
}

/// The part that a waiter has in the progress it waits for; none where progress is made without it.
/// A future has one for its life.
#[derive(Debug, Default)]
pub(crate) struct ProgressWaiter {
    progress: Option<Arc<ManualProgress>>,
    place: Option<u64>,
}

impl ProgressWaiter {
    #[inline]
    pub(crate) fn new(progress: Option<&Arc<ManualProgress>>) -> Self {
        ProgressWaiter {
            progress: progress.cloned(),
            place: None,
        }
    }

    /// Polls `ready`, and drives while it is pending. `ready` may be polled more than once.
    #[inline]
    pub(crate) fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut ready: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        match self.progress {
            None => ready(cx),
            Some(_) => poll_driving(std::slice::from_mut(self), cx, ready),
        }
    }

    /// One turn, for who reads without waiting.
    #[inline]
    pub(crate) fn turn(&self) {
        if let Some(progress) = &self.progress {
            progress.turn();
        }
    }

    /// Waits on, or no longer; its turn ends, if it has one.
    fn update(&mut self, has_driven: Option<bool>, waker: Option<&Waker>) {
        let Some(progress) = &self.progress else {
            return;
        };
        if has_driven.is_some() || waker.is_some() || self.place.is_some() {
            progress.update_waiter(has_driven, &mut self.place, waker);
        }
        if waker.is_some() {
            progress.readiness.watch();
        }
    }
}

impl Clone for ProgressWaiter {
    /// A waiter of the same progress that does not wait yet.
    fn clone(&self) -> Self {
        ProgressWaiter::new(self.progress.as_ref())
    }
}

impl Drop for ProgressWaiter {
    fn drop(&mut self) {
        self.update(None, None);
    }
}

/// Awaits a future that depends on this progress, and drives meanwhile. It must not be one that
/// drives by itself: a waiter within a waiter would be asked by a waker that is not its task's.
pub(crate) async fn await_driving<F: Future>(
    progress: Option<&Arc<ManualProgress>>,
    future: F,
) -> F::Output {
    let mut future = pin!(future);
    let mut waiter = ProgressWaiter::new(progress);
    std::future::poll_fn(|cx| waiter.poll(cx, |cx| future.as_mut().poll(cx))).await
}

/// The turn of a waiter, which ends also when what is waited for panics.
struct Turn {
    /// `None` once its waiter sees to its end.
    progress: Option<Arc<ManualProgress>>,
    has_driven: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.update_waiter(Some(self.has_driven), &mut None, None);
        }
    }
}

/// The one place where a waiter drives, and registers to be asked: polls `ready`, which depends on
/// all of these.
pub(crate) fn poll_driving<R>(
    waiters: &mut [ProgressWaiter],
    cx: &mut Context<'_>,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<R>,
) -> Poll<R> {
    let mut turn = None;
    let mut polled = Poll::Pending;
    for (at, waiter) in waiters.iter().enumerate() {
        let Some(progress) = waiter.progress.as_ref().filter(|it| it.begin(false)) else {
            continue;
        };
        let begun = Turn {
            progress: Some(Arc::clone(progress)),
            has_driven: false,
        };
        // The turn before it ends, if there was one.
        let (_, turn) = turn.insert((at, begun));
        // Without the task's waker: what this turn ends must not wake the task that runs it.
        polled = ready(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            break;
        }
        turn.has_driven = true;
        progress.drive(false);
    }
    if polled.is_pending() {
        polled = ready(cx);
    }
    // A waker that wakes no task cannot be asked: who has one polls on by itself.
    let waits = polled.is_pending() && !cx.waker().will_wake(Waker::noop());
    for (at, waiter) in waiters.iter_mut().enumerate() {
        // The last turn ends as its waiter is updated.
        let turn = turn.as_mut().filter(|(of, _)| *of == at).map(|(_, turn)| {
            turn.progress = None;
            turn.has_driven
        });
        waiter.update(turn, waits.then(|| cx.waker()));
    }
    polled
}
