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
//! goes away while one is asked asks the next; one that comes while something is to be done is
//! asked itself, or drives at once if no other waits or one was asked in vain; the end of a turn
//! asks again for what came during it; and where one is asked whose task does not poll it (a future
//! that was polled once and is kept), an alarm asks all the others at once. One by one, each of
//! many such futures would take its time.

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

use super::wake::wake_caught;
use super::{AtomicUsize, Lock, Ordering};
use crate::limits::MANUAL_END_TURNS;
use state::{AskedWaiter, ProgressPhase, ProgressState};

/// The waker of none, by which those that drive poll what they wait for: what their own turn ends
/// must not wake the task that runs it. One for all, since two of `Waker::noop` may not be alike.
pub(crate) static NO_TASK: &Waker = Waker::noop();

/// What makes progress when it is polled, and ends when its work is over.
pub(crate) trait ProgressTask: Future<Output = ()> + Send + Unpin {
    /// Looks for what no waker reports, as timers and sockets whose reactor does not run, and may
    /// serve what it finds. True if it is to be polled.
    fn is_due(&mut self) -> bool;

    /// Whether anything has moved since this was last asked.
    fn has_moved(&mut self) -> bool;
}

/// Where what is driven learns that sockets are ready, besides the reactor of a runtime.
pub(crate) trait ReadinessSource: Send + Sync {
    /// Takes in what is ready now, which wakes whom it is for. Never blocks. False: nothing is.
    fn poll_now(&self) -> bool {
        false
    }

    /// From here on a waiter sleeps until something is ready.
    fn watch(&self) {}

    /// No waiter sleeps: who polls for itself is not to be disturbed.
    fn unwatch(&self) {}

    /// From here on it [abandons](ManualProgress::abandon) this once it reports nothing any more.
    fn watch_end(&self, _progress: &Arc<ManualProgress>) {}

    /// Wakes this once a task that was asked has had its time to answer. It is asked for again
    /// when it has woken, and not before.
    fn set_alarm(&self, _alarm: &Waker) {}
}

/// The part of the one that drives.
struct Turn {
    tasks: Vec<TaskSlot>,
    /// What is driven was polled; if not, all is left to be done.
    has_driven: bool,
    /// None waited as it began.
    is_alone: bool,
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

/// Asks the other waiters where one does not answer.
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

/// Progress that is made by those who wait for it.
pub(crate) struct ManualProgress {
    state: Lock<ProgressState>,
    readiness: Box<dyn ReadinessSource>,
    /// Itself, for the wakers of what is driven.
    itself: Weak<ManualProgress>,
    /// That of an [`AnswerAlarm`].
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

    /// Adds what is to be driven from now on. After the end it is dropped at once.
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

    /// One bounded turn, beside those who wait. True if anything moved; false also while another
    /// thread drives. Never blocks.
    pub(crate) fn turn(&self) -> bool {
        let Some(mut turn) = self.begin() else {
            return false;
        };
        let moved = self.look_and_drive(&mut turn);
        self.end_turn(turn, &mut None, None);
        moved
    }

    /// One more that has handles of what is driven. Those who add one have one.
    pub(crate) fn hold(self: &Arc<Self>) -> ProgressHold {
        self.state.lock("hold progress").holds += 1;
        ProgressHold(Arc::clone(self))
    }

    /// The handles of one that was driven have gone: what goes without waiting goes. With the last
    /// of them all ends.
    fn release(&self) {
        let mut state = self.state.lock("release progress");
        state.holds -= 1;
        let is_last = state.holds == 0;
        drop(state);
        let mut turn = self.begin();
        if let Some(turn) = &mut turn {
            for _ in 0..MANUAL_END_TURNS {
                if !self.look_and_drive(turn) {
                    break;
                }
            }
        }
        if is_last {
            self.abandon();
        }
        if let Some(turn) = turn {
            self.end_turn(turn, &mut None, None);
        }
    }

    /// What reports readiness and time has ended with its runtime, or the last handle has gone: all
    /// that is driven is dropped, as the tasks of a runtime are.
    pub(crate) fn abandon(&self) {
        let driven = {
            let mut state = self.state.lock("abandon progress");
            state.ended = true;
            // A thread that drives now has the others, and drops them as its turn ends.
            std::mem::take(&mut state.tasks)
        };
        driven.into_iter().for_each(drop_quietly);
    }

    /// A turn that is asked for. The source of readiness comes first, so that who always finds
    /// something by itself holds none up, and what is found by that is not held up by the question.
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

    /// Makes the caller the driver, unless there is one.
    fn begin(&self) -> Option<Turn> {
        let mut state = self.state.lock("begin to drive");
        let may_begin = matches!(state.phase, ProgressPhase::Woken | ProgressPhase::Parked);
        (may_begin && !state.ended).then(|| state.begin())
    }

    /// Makes the caller the driver, if something is to be done and there is none; else has it wait
    /// on (`waker`), as the first to be asked, or no longer. Who has just posted comes to those who
    /// wait already: others like it may be about to post, and one turn is to serve them all, so it
    /// is asked and drives at its next poll. If there was none for the last that was asked, there
    /// may be none for it either, and it drives now.
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

    /// A turn ends, and its waiter waits on (`waker`), or no longer. A turn in which nothing was
    /// driven leaves all to be done. What is to be done then is for the first waiter.
    fn end_turn(&self, mut turn: Turn, place: &mut Option<u64>, waker: Option<&Waker>) {
        let _stale; // As above.
        let mut state = self.state.lock("end a turn");
        _stale = state.waiters.update(place, waker);
        turn.tasks.append(&mut state.tasks);
        if state.ended {
            drop(state);
            // All is over: none drives again.
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

    /// A waiter goes away: it has ended, or is dropped. What is to be done is for the next.
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

    /// Called with no lock held, by whatever wakes what is driven: other tasks, or the reactor of
    /// a runtime, which a waker that panics must not take along. The alarm asks the others.
    fn ask(&self, asked: Option<AskedWaiter>) {
        let Some(AskedWaiter { waker, sets_alarm }) = asked else {
            return;
        };
        ask_by(waker);
        if sets_alarm {
            self.readiness.set_alarm(&self.alarm);
        }
    }

    /// A waiter that was asked has had its time: all others are asked, and the next that comes
    /// drives, unless one has driven. True: one was asked since, which is to have its time too.
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
    /// Polls what was woken, and with `looks` also what finds that it is due. True if anything
    /// moved.
    fn drive(&mut self, looks: bool) -> bool {
        self.has_driven = true;
        let mut moved = false;
        let mut at = 0;
        while let Some(task_slot) = self.tasks.get_mut(at) {
            // A panic (a waker's, a buffer's drop) ends what is driven as the end of a task would.
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

fn ask_by(waker: Waker) {
    if wake_caught(waker).is_some() {
        tracing::error!("the waker of a task that is to drive panicked");
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

/// Of one that has handles of what is driven: with the last of these the progress ends.
#[derive(Debug)]
pub(crate) struct ProgressHold(Arc<ManualProgress>);

impl Drop for ProgressHold {
    fn drop(&mut self) {
        self.0.release();
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

    /// Has a turn if something is to be done, else waits on.
    fn begin(&mut self, waker: Option<&Waker>) -> Option<Turn> {
        let progress = self.progress.as_ref()?;
        let turn = progress.begin_or_wait(&mut self.place, waker);
        if turn.is_none() && waker.is_some() {
            progress.readiness.watch();
        }
        turn
    }

    /// Its turn ends; it waits on, or no longer.
    fn end_turn(&mut self, turn: Turn, waker: Option<&Waker>) {
        let Some(progress) = &self.progress else {
            return;
        };
        progress.end_turn(turn, &mut self.place, waker);
        if waker.is_some() {
            progress.readiness.watch();
        }
    }

    /// Waits no longer: what it waited for is there, or it is dropped.
    fn stop_waiting(&mut self, is_dropped: bool) {
        if let (Some(progress), Some(_)) = (&self.progress, self.place) {
            progress.remove_waiter(&mut self.place, is_dropped);
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
        self.stop_waiting(true);
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
struct WaiterTurn<'a> {
    waiter: &'a mut ProgressWaiter,
    /// Until its end.
    turn: Option<Turn>,
    /// With which the waiter waits on then.
    waker: Option<&'a Waker>,
}

impl Drop for WaiterTurn<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.waiter.end_turn(turn, self.waker);
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
    let mut polled = Poll::Pending;
    let is_ready = &mut |cx: &mut Context<'_>| {
        polled = ready(cx);
        polled.is_ready()
    };
    drive_until(waiters, cx, is_ready);
    polled
}

fn drive_until(
    waiters: &mut [ProgressWaiter],
    cx: &mut Context<'_>,
    is_ready: &mut dyn FnMut(&mut Context<'_>) -> bool,
) {
    // A waker that wakes no task cannot be asked: who has one polls on by itself.
    let waker = Some(cx.waker()).filter(|waker| !waker.will_wake(Waker::noop()));
    let mut last = None;
    let mut ended = false;
    for waiter in &mut *waiters {
        let Some(turn) = waiter.begin(waker) else {
            continue;
        };
        // The turn before it ends, if there was one.
        let begun = last.insert(WaiterTurn {
            waiter,
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
        waiters.iter_mut().for_each(|it| it.stop_waiting(false));
    }
}
