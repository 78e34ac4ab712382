//! Manual progress: tasks that wait for progress also make it.
//!
//! Driven tasks (the drivers of a domain, its listeners: [`ProgressTask`]) run neither in a runtime
//! nor on a thread of their own. Tasks that wait for their results poll them ([`ProgressWaiter`]),
//! and so do callers that ask for a turn ([`ManualProgress::turn`]). A task that reads an object
//! drives the progress of its domain, and of all domains and listeners that use the object
//! ([`ProgressList`]).
//!
//! ```text
//!   Parked ──it is woken──▶ Woken ──a waiter begins──▶ Driving ──it is woken──▶ DrivingWoken
//!   Parked ──a turn is asked for──▶ Driving ◀──the turn polls what has come── DrivingWoken
//!   Parked ◀──nothing is left── Driving ──what was waited for is there──▶ Woken
//!   Woken ◀──the turn ends── DrivingWoken
//! ```
//!
//! To *ask* a waiter is to wake its task, so that it drives at its next poll. The waiter that was
//! polled last is asked first: its task is the active one, so a message wakes the task that it is
//! for. Four steps ensure that no waiter is left without a driver (checked by `manual/models.rs`):
//! a waiter that leaves while one is asked asks the next; a waiter that comes while work is due is
//! asked itself, or drives at once if there is no other waiter or one was asked in vain; the end of
//! a turn asks again if work came during the turn; and if the task of an asked waiter does not poll
//! it (a future that was polled once and is kept), an alarm asks all other waiters at once. Asking
//! them one by one would take the alarm's time for each such future.

mod list;
#[cfg(loom)]
pub(super) mod models;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use smallvec::SmallVec;

use super::wake::wake_caught;
use super::{AtomicUsize, Lock, Ordering};
use crate::limits::MANUAL_END_TURNS;
pub(crate) use list::ProgressList;
use state::{AskedWaiter, ProgressPhase, ProgressState};

/// A waker that wakes no task. A waiter that drives polls `ready` with it, because progress made in
/// its turn must not wake the task that runs the turn. So does one that looks for the first time:
/// if there is nothing, it polls `ready` with the task's waker before it waits. There is one static
/// for all, since two results of `Waker::noop` may not be equal.
pub(crate) static NO_TASK: &Waker = Waker::noop();

/// A task that makes progress when it is polled, and ends when its work is over.
pub(crate) trait ProgressTask: Future<Output = ()> + Send + Unpin {
    /// Checks for events that no waker reports, such as timers and sockets whose reactor does not
    /// run, and may handle them. Returns true if the task must be polled.
    fn is_due(&mut self) -> bool;

    /// Returns whether anything has moved since the last call.
    fn has_moved(&mut self) -> bool;
}

/// Source of readiness of sockets for driven tasks, besides the reactor of a runtime.
pub(crate) trait ReadinessSource: Send + Sync {
    /// Processes the sockets that are ready now, and wakes their tasks. Never blocks. Returns false
    /// if nothing is ready.
    fn poll_now(&self) -> bool {
        false
    }

    /// Called when a waiter is about to sleep until something is ready.
    fn watch(&self) {}

    /// Called when no waiter sleeps: a caller that polls by itself must not be disturbed.
    fn unwatch(&self) {}

    /// [Abandons](ManualProgress::abandon) this progress once the source can report nothing any
    /// more.
    fn watch_end(&self, _progress: &Arc<ManualProgress>) {}

    /// Wakes `_alarm` once the time that an asked waiter has to answer is over. The alarm is set
    /// again only after it has woken.
    fn set_alarm(&self, _alarm: &Waker) {}
}

/// A turn, owned by the thread that drives.
struct Turn {
    tasks: Vec<TaskSlot>,
    /// True once the tasks were polled; if false, all work is still to be done.
    has_driven: bool,
    /// True if no task waited when the turn began.
    is_alone: bool,
}

/// A driven task, with the waker with which any waiter polls it.
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
        // An exchange, as in `TaskSlot::poll`: the models do not order plain stores between
        // exchanges.
        self.is_woken.swap(1, Ordering::AcqRel);
        if let Some(progress) = self.of.upgrade() {
            progress.wake();
        }
    }
}

/// Asks the other waiters if the asked waiter does not answer.
struct AnswerAlarm {
    of: Weak<ManualProgress>,
}

impl Wake for AnswerAlarm {
    fn wake(self: Arc<Self>) {
        if let Some(progress) = self.of.upgrade()
            && progress.ask_others()
        {
            progress.readiness.set_alarm(&progress.alarm);
        }
    }
}

/// The progress made by the tasks that wait for it.
pub(crate) struct ManualProgress {
    state: Lock<ProgressState>,
    readiness: Box<dyn ReadinessSource>,
    /// Weak reference to itself, for the wakers of driven tasks.
    itself: Weak<ManualProgress>,
    /// The waker of an [`AnswerAlarm`].
    alarm: Waker,
}

impl ManualProgress {
    pub(crate) fn new(readiness: Box<dyn ReadinessSource>) -> Arc<Self> {
        let progress = Arc::new_cyclic(|itself| ManualProgress {
            state: Lock::new(ProgressState::default()),
            readiness,
            itself: Weak::clone(itself),
            alarm: Waker::from(Arc::new(AnswerAlarm {
                of: Weak::clone(itself),
            })),
        });
        progress.readiness.watch_end(&progress);
        progress
    }

    /// Adds a task to be driven from now on. If the progress has ended, the task is dropped at
    /// once.
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
        let mut state = self.state.lock("add what is driven");
        if state.ended {
            drop(state);
            return drop_quietly(task_slot);
        }
        state.tasks.push(task_slot);
        drop(state);
        self.wake();
    }

    /// Runs one bounded turn for a caller that is no waiter. Returns true if anything moved; false
    /// also while another thread drives. Never blocks.
    pub(crate) fn turn(&self) -> bool {
        let Some(mut turn) = self.begin() else {
            return false;
        };
        let moved = self.look_and_drive(&mut turn);
        self.end_turn(turn, &mut None, None);
        moved
    }

    /// Ends the progress, since the last handle is dropped. First does all work that needs no
    /// waiting.
    pub(crate) fn end(&self) {
        let mut turn = self.begin();
        if let Some(turn) = &mut turn {
            for _ in 0..MANUAL_END_TURNS {
                if !self.look_and_drive(turn) {
                    break;
                }
            }
        }
        self.abandon();
        if let Some(turn) = turn {
            self.end_turn(turn, &mut None, None);
        }
    }

    /// Drops all driven tasks, as a runtime that ends drops its tasks: the source of readiness and
    /// time has ended with its runtime, or the last handle was dropped. Wakes the waiters: those
    /// that also wait for other progress continue without this one, and release it.
    pub(crate) fn abandon(&self) {
        let (driven, waiters) = {
            let mut state = self.state.lock("abandon progress");
            state.ended = true;
            // A thread that drives now has the other tasks, and drops them as its turn ends.
            (std::mem::take(&mut state.tasks), state.waiters.take_all())
        };
        driven.into_iter().for_each(drop_quietly);
        waiters.into_iter().for_each(ask_by);
    }

    fn has_ended(&self) -> bool {
        self.state.lock("ask whether it has ended").ended
    }

    /// Runs a requested turn. The source of readiness is polled first, so that a task that always
    /// finds work by itself does not delay other tasks, and checks for more work do not delay the
    /// work that the source finds.
    fn look_and_drive(&self, turn: &mut Turn) -> bool {
        if turn.is_alone {
            self.readiness.unwatch();
        }
        if self.readiness.poll_now() {
            let mut state = self.state.lock("serve what was found");
            if state.phase == ProgressPhase::DrivingWoken {
                state.go(ProgressPhase::Driving);
            }
        }
        turn.drive(true)
    }

    /// Called when a driven task must be polled: asks the first waiter, unless work was due already
    /// or a thread drives.
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

    /// Makes the caller the driver, unless there is one.
    fn begin(&self) -> Option<Turn> {
        let mut state = self.state.lock("begin to drive");
        let may_begin = matches!(state.phase, ProgressPhase::Woken | ProgressPhase::Parked);
        (may_begin && !state.ended).then(|| state.begin())
    }

    /// Makes the caller the driver, if work is due and there is no driver. Otherwise registers the
    /// caller with `waker` as the first waiter to ask, or removes it if `waker` is `None`. A caller
    /// that has just posted and joins other waiters is only asked, and drives at its next poll:
    /// other callers may be about to post, and one turn should serve them all. If a waiter was
    /// asked in vain, this caller may not be polled again either, so it drives now.
    fn begin_or_wait(&self, place: &mut Option<u64>, waker: Option<&Waker>) -> Option<Turn> {
        let _stale; // Declared before the guard, so the waker is dropped after it.
        let mut state = self.state.lock("begin to drive, or wait");
        let is_due = state.phase == ProgressPhase::Woken && !state.ended;
        let comes_to_others = place.is_none() && waker.is_some() && state.waiters.len() > 0;
        if is_due && (!comes_to_others || state.asked_in_vain) {
            return Some(state.begin());
        }
        _stale = state.waiters.update(place, waker);
        let asked = if is_due { state.first() } else { None };
        drop(state);
        self.ask(asked);
        None
    }

    /// Ends a turn. Its waiter continues to wait with `waker`, or is removed. If nothing was driven
    /// in the turn, all work remains, and the first waiter is asked to do it.
    fn end_turn(&self, mut turn: Turn, place: &mut Option<u64>, waker: Option<&Waker>) {
        let _stale; // As above.
        let mut state = self.state.lock("end a turn");
        _stale = state.waiters.update(place, waker);
        turn.tasks.append(&mut state.tasks);
        if state.ended {
            drop(state);
            // The progress has ended: no task is driven again.
            return turn.tasks.into_iter().for_each(drop_quietly);
        }
        state.tasks = turn.tasks;
        let asked = if turn.has_driven && state.phase == ProgressPhase::Driving {
            state.go(ProgressPhase::Parked);
            None
        } else {
            state.go(ProgressPhase::Woken);
            state.first()
        };
        drop(state);
        self.ask(asked);
    }

    /// Removes a waiter that has ended or is dropped. If work is due, the next waiter is asked.
    fn remove_waiter(&self, place: &mut Option<u64>, is_dropped: bool) {
        let _gone; // As above.
        let mut state = self.state.lock("wait no longer");
        _gone = state.waiters.remove(place);
        state.asked_in_vain |= is_dropped && state.phase == ProgressPhase::Woken;
        let asked = match state.phase {
            ProgressPhase::Woken => state.first(),
            _ => None,
        };
        drop(state);
        self.ask(asked);
    }

    /// Asks a waiter, and sets the alarm that asks the others. Called with no lock held, by code
    /// that wakes driven tasks: other tasks, or the reactor of a runtime, which a panicking waker
    /// must not unwind.
    fn ask(&self, asked: Option<AskedWaiter>) {
        let Some(AskedWaiter { waker, sets_alarm }) = asked else {
            return;
        };
        ask_by(waker);
        if sets_alarm {
            self.readiness.set_alarm(&self.alarm);
        }
    }

    /// Called when the time of an asked waiter is over. Unless a turn has begun since, asks all
    /// other waiters, and the next caller drives. Returns true if another waiter was asked since,
    /// which must have its time too.
    fn ask_others(&self) -> bool {
        let mut others = Vec::new();
        let mut state = self.state.lock("ask the others");
        let has_driven = std::mem::take(&mut state.has_driven);
        let is_left = !state.ended && state.phase == ProgressPhase::Woken;
        if is_left && !has_driven {
            state.asked_in_vain = true;
            others.extend(state.waiters.all_but_first().cloned());
        }
        state.has_alarm = is_left && has_driven;
        let has_alarm = state.has_alarm;
        drop(state);
        others.into_iter().for_each(ask_by);
        has_alarm
    }
}

impl Turn {
    /// Polls the tasks that were woken, and with `looks` also those that find work due. Returns
    /// true if anything moved.
    fn drive(&mut self, looks: bool) -> bool {
        self.has_driven = true;
        let mut moved = false;
        let mut at = 0;
        while let Some(task_slot) = self.tasks.get_mut(at) {
            // A panic (of a waker, or the drop of a buffer) ends the driven task.
            let polled = catch_unwind(AssertUnwindSafe(|| task_slot.poll(looks)));
            let ended = polled.unwrap_or_else(|_| {
                tracing::error!("what was driven by hand panicked, and ends");
                true
            });
            moved |= ended || task_slot.driven.has_moved();
            match ended {
                true => drop_quietly(self.tasks.swap_remove(at)),
                false => at += 1,
            }
        }
        moved
    }
}

impl TaskSlot {
    /// Polls the task if it was woken, or with `looks` finds work due. Returns true once it has
    /// ended.
    fn poll(&mut self, looks: bool) -> bool {
        let is_woken = self.wake.is_woken.swap(0, Ordering::AcqRel) == 1;
        let is_due = is_woken || looks && self.driven.is_due();
        if !is_due {
            return false;
        }
        // Outside of Tokio's cooperative budget, which belongs to the waiting task.
        let driven = tokio::task::unconstrained(Pin::new(&mut self.driven));
        let mut cx = Context::from_waker(&self.waker);
        pin!(driven).poll(&mut cx).is_ready()
    }
}

fn ask_by(waker: Waker) {
    if wake_caught(waker).is_some() {
        tracing::error!("the waker of a task that is to drive panicked");
    }
}

/// Drops a task. Whatever made it panic may panic again in its drop.
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

/// The places of a waiting future in the waiter lists of the progress that it depends on; empty if
/// the progress is automatic. A future keeps one for its whole life.
#[derive(Debug, Default)]
pub(crate) struct ProgressWaiter {
    places: WaiterPlaces,
}

/// Small, since every operation and every handle of a queue has one.
#[derive(Debug, Default)]
enum WaiterPlaces {
    #[default]
    Nowhere,
    One(WaiterPlace),
    Many(Box<PlaceList>),
}

#[derive(Debug, Default)]
struct PlaceList {
    places: SmallVec<[WaiterPlace; 1]>,
    /// The version of the [`ProgressList`] that `places` was made from, if there was one.
    version: usize,
}

impl ProgressWaiter {
    #[inline]
    pub(crate) fn new(progress: Option<&Arc<ManualProgress>>) -> Self {
        let places = progress.map(WaiterPlace::new).map(WaiterPlaces::One);
        ProgressWaiter {
            places: places.unwrap_or_default(),
        }
    }

    /// Makes one waiter for all of these.
    pub(crate) fn of_all<'a>(all: impl IntoIterator<Item = &'a Arc<ManualProgress>>) -> Self {
        ProgressWaiter::of_list(all, 0)
    }

    fn of_list<'a>(all: impl IntoIterator<Item = &'a Arc<ManualProgress>>, version: usize) -> Self {
        let places = all.into_iter().map(WaiterPlace::new).collect();
        ProgressWaiter {
            places: WaiterPlaces::Many(Box::new(PlaceList { places, version })),
        }
    }

    /// Polls `ready`, and drives while it is pending. `ready` may be polled more than once.
    #[inline]
    pub(crate) fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut ready: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let places = match &mut self.places {
            WaiterPlaces::Nowhere => return ready(cx),
            WaiterPlaces::One(place) => std::slice::from_mut(place),
            WaiterPlaces::Many(list) => &mut list.places[..],
        };
        let mut polled = Poll::Pending;
        let is_ready = &mut |cx: &mut Context<'_>| {
            polled = ready(cx);
            polled.is_ready()
        };
        drive_until(places, cx, is_ready);
        polled
    }

    /// As [`poll`](Self::poll), for a reader of an object, which drives the progress on the
    /// object's list. The object wakes its readers when progress is [added](ProgressList::add).
    #[inline]
    pub(crate) fn poll_reading<R>(
        &mut self,
        list: &ProgressList,
        cx: &mut Context<'_>,
        ready: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let version = list.version();
        if version > 0 || !matches!(self.places, WaiterPlaces::Nowhere) {
            self.follow(list, version);
        }
        let polled = self.poll(cx, ready);
        // Progress that was added meanwhile found no reader to wake.
        if polled.is_pending() && list.version() != version {
            cx.waker().wake_by_ref();
        }
        polled
    }

    /// Waits for all progress on the list that has not ended.
    fn follow(&mut self, list: &ProgressList, version: usize) {
        match &mut self.places {
            _ if version == 0 => *self = ProgressWaiter::default(),
            WaiterPlaces::Many(held) if held.version == version => {
                held.places.retain(|it| !it.progress.has_ended());
            }
            _ => {
                let all = list.all();
                *self = ProgressWaiter::of_list(all.iter().filter(|it| !it.has_ended()), version);
            }
        }
    }
}

/// A waiter's place among those that wait for one progress.
#[derive(Debug)]
struct WaiterPlace {
    progress: Arc<ManualProgress>,
    place: Option<u64>,
}

impl WaiterPlace {
    #[inline]
    fn new(progress: &Arc<ManualProgress>) -> Self {
        WaiterPlace {
            progress: Arc::clone(progress),
            place: None,
        }
    }

    /// Begins a turn if work is due; otherwise continues to wait.
    fn begin(&mut self, waker: Option<&Waker>) -> Option<Turn> {
        let turn = self.progress.begin_or_wait(&mut self.place, waker);
        if turn.is_none() && waker.is_some() {
            self.progress.readiness.watch();
        }
        turn
    }

    /// Ends the turn of this waiter, which continues to wait if it has a waker.
    fn end_turn(&mut self, turn: Turn, waker: Option<&Waker>) {
        self.progress.end_turn(turn, &mut self.place, waker);
        if waker.is_some() {
            self.progress.readiness.watch();
        }
    }

    /// Stops waiting: the awaited result is there, or the waiter is dropped.
    fn stop_waiting(&mut self, is_dropped: bool) {
        if self.place.is_some() {
            self.progress.remove_waiter(&mut self.place, is_dropped);
        }
    }
}

impl Drop for WaiterPlace {
    fn drop(&mut self) {
        self.stop_waiting(true);
    }
}

/// Awaits a future that depends on this progress, and drives meanwhile. The future must not drive
/// by itself: a waiter within a waiter would be asked through a waker that is not its task's.
pub(crate) async fn await_driving<F: Future>(
    progress: Option<&Arc<ManualProgress>>,
    future: F,
) -> F::Output {
    let mut future = pin!(future);
    let mut waiter = ProgressWaiter::new(progress);
    std::future::poll_fn(|cx| waiter.poll(cx, |cx| future.as_mut().poll(cx))).await
}

/// The turn of a waiter; it also ends if polling the awaited result panics.
struct WaiterTurn<'a> {
    place: &'a mut WaiterPlace,
    /// `None` once the turn has ended.
    turn: Option<Turn>,
    /// The waker with which the waiter continues to wait after the turn.
    waker: Option<&'a Waker>,
}

impl Drop for WaiterTurn<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.place.end_turn(turn, self.waker);
        }
    }
}

/// Polls a result that depends on the progress of all these places. Only in this function does a
/// waiter drive, and register to be asked.
fn drive_until(
    places: &mut [WaiterPlace],
    cx: &mut Context<'_>,
    is_ready: &mut dyn FnMut(&mut Context<'_>) -> bool,
) {
    // A waker that wakes no task cannot be asked: a caller with such a waker polls again by itself.
    let waker = Some(cx.waker()).filter(|waker| !waker.will_wake(Waker::noop()));
    // A result that is there when its future is first polled needs no waiter.
    let is_first = places.iter().all(|it| it.place.is_none());
    if is_first && is_ready(&mut Context::from_waker(NO_TASK)) {
        return;
    }
    let mut last = None;
    let mut ended = false;
    for place in &mut *places {
        let Some(turn) = place.begin(waker) else {
            continue;
        };
        // This ends the previous turn, if there was one.
        let begun = last.insert(WaiterTurn {
            place,
            turn: Some(turn),
            waker,
        });
        ended = is_ready(&mut Context::from_waker(NO_TASK));
        if ended {
            break;
        }
        if let Some(turn) = &mut begun.turn {
            turn.drive(false);
        }
    }
    if ended || is_ready(cx) {
        if let Some(last) = &mut last {
            last.waker = None;
        }
        drop(last);
        places.iter_mut().for_each(|it| it.stop_waiting(false));
    }
}
