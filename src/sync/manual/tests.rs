use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::Wake;

use super::state::WaiterList;
use super::*;
use crate::edges::EdgeCoverage;

/// A waker that counts its wakes.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Task {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Counts its polls, keeps its waker, and does what its test asks.
#[derive(Default)]
struct Work {
    polls: AtomicUsize,
    waker: Mutex<Option<Waker>>,
    is_due: AtomicBool,
    moves: AtomicBool,
    /// Number of times that the source of readiness was asked.
    asks: AtomicUsize,
    is_found: AtomicBool,
    /// Number of times that it wakes itself when it is polled.
    wakes_itself: AtomicUsize,
    panics: AtomicBool,
    dropped: AtomicBool,
    /// The waker of the alarm, which wakes it once.
    alarm: Mutex<Option<Waker>>,
}

impl Work {
    fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap().clone();
        waker.expect("it was polled").wake();
    }
}

struct Worker(Arc<Work>);

impl Future for Worker {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let work = &self.0;
        work.polls.fetch_add(1, Ordering::SeqCst);
        *work.waker.lock().unwrap() = Some(cx.waker().clone());
        let take = |left: usize| left.checked_sub(1);
        if (work.wakes_itself)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_ok()
        {
            cx.waker().wake_by_ref();
        }
        assert!(!work.panics.load(Ordering::SeqCst), "on purpose");
        Poll::Pending
    }
}

impl ProgressTask for Worker {
    fn is_due(&mut self) -> bool {
        self.0.is_due.load(Ordering::SeqCst)
    }

    fn has_moved(&mut self) -> bool {
        self.0.moves.load(Ordering::SeqCst)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::SeqCst);
    }
}

fn progress() -> (Arc<ManualProgress>, Arc<Work>) {
    let work = Arc::<Work>::default();
    let progress = ManualProgress::new(Box::new(FoundReadiness(Arc::clone(&work))));
    progress.add(Box::new(Worker(Arc::clone(&work))));
    (progress, work)
}

/// Finds work, if the test says so.
struct FoundReadiness(Arc<Work>);

impl ReadinessSource for FoundReadiness {
    fn poll_now(&self) -> bool {
        self.0.asks.fetch_add(1, Ordering::SeqCst);
        let is_found = self.0.is_found.load(Ordering::SeqCst);
        if is_found {
            self.0.wake();
        }
        is_found
    }

    fn set_alarm(&self, alarm: &Waker) {
        let before = self.0.alarm.lock().unwrap().replace(alarm.clone());
        assert!(before.is_none(), "it is set already");
    }
}

fn poll_pending(waiter: &mut ProgressWaiter, task: &Arc<Task>) {
    let waker = Waker::from(Arc::clone(task));
    let polled = waiter.poll(&mut Context::from_waker(&waker), |_| Poll::<()>::Pending);
    assert!(polled.is_pending());
}

fn phase(progress: &ManualProgress) -> ProgressPhase {
    progress.state.lock("test").phase
}

/// "a message wakes the task that it is for": of two waiters, the one that was polled last.
#[test]
fn the_waiter_that_was_polled_last_is_asked_alone() {
    let (progress, work) = progress();
    let (first, last) = (Arc::<Task>::default(), Arc::<Task>::default());
    let mut waiters = [(); 2].map(|()| ProgressWaiter::new(Some(&progress)));
    poll_pending(&mut waiters[1], &last);
    poll_pending(&mut waiters[0], &first);
    poll_pending(&mut waiters[1], &last);
    assert_eq!(work.polls(), 1, "nothing was to be done since");
    for round in 1..=3 {
        work.wake();
        work.wake();
        assert_eq!((first.times(), last.times()), (0, round));
        poll_pending(&mut waiters[1], &last);
        assert_eq!(work.polls(), 1 + round);
    }
}

/// "one that comes while work is due is asked itself, or drives at once if no other waits": so that
/// one turn serves all that come before the first of them is polled again.
#[test]
fn those_who_come_one_after_the_other_share_a_turn() {
    let (progress, work) = progress();
    let tasks = [(); 4].map(|()| Arc::<Task>::default());
    let mut waiters = [(); 4].map(|()| ProgressWaiter::new(Some(&progress)));
    poll_pending(&mut waiters[0], &tasks[0]);
    assert_eq!((work.polls(), tasks[0].times()), (1, 0), "it is alone");
    for at in 1..4 {
        work.wake();
        poll_pending(&mut waiters[at], &tasks[at]);
        assert_eq!((work.polls(), tasks[at].times()), (1, 1), "it is asked");
    }
    for at in [2, 1, 3] {
        poll_pending(&mut waiters[at], &tasks[at]);
        assert_eq!((work.polls(), phase(&progress)), (2, ProgressPhase::Parked));
    }
}

/// "drives at once if no other waits or one was asked in vain": futures that are polled once each,
/// as by `poll_immediate`, beside one that is kept.
#[test]
fn those_who_come_and_are_dropped_drive_although_another_is_kept() {
    let (progress, work) = progress();
    let tasks = [(); 3].map(|()| Arc::<Task>::default());
    let [mut kept, mut first, mut second] = [(); 3].map(|()| ProgressWaiter::new(Some(&progress)));
    poll_pending(&mut kept, &tasks[0]);
    work.wake();
    poll_pending(&mut first, &tasks[1]);
    assert_eq!(work.polls(), 1, "it leaves the turn to its next poll");
    drop(first);
    poll_pending(&mut second, &tasks[2]);
    assert_eq!((work.polls(), phase(&progress)), (2, ProgressPhase::Parked));
    // After that turn it is as before.
    work.wake();
    poll_pending(&mut ProgressWaiter::new(Some(&progress)), &tasks[1]);
    assert_eq!(work.polls(), 2);
}

/// The same if all futures are kept: the alarm finds that none has answered.
#[test]
fn who_comes_after_all_were_asked_in_vain_drives() {
    let (progress, work) = progress();
    let task = Arc::<Task>::default();
    let mut waiters = [(); 3].map(|()| ProgressWaiter::new(Some(&progress)));
    poll_pending(&mut waiters[0], &task);
    poll_pending(&mut waiters[1], &task);
    work.wake();
    while let Some(alarm) = { work.alarm.lock().unwrap().take() } {
        alarm.wake();
    }
    assert_eq!((work.polls(), phase(&progress)), (1, ProgressPhase::Woken));
    poll_pending(&mut waiters[2], &task);
    assert_eq!((work.polls(), phase(&progress)), (2, ProgressPhase::Parked));
}

/// "a waiter that goes away while one is asked asks the next", whether it is dropped or has ended.
#[test]
fn a_waiter_that_was_asked_and_goes_away_asks_the_next() {
    for ends in [false, true] {
        let (progress, work) = progress();
        let (first, last) = (Arc::<Task>::default(), Arc::<Task>::default());
        let mut waiters = [(); 2].map(|()| ProgressWaiter::new(Some(&progress)));
        poll_pending(&mut waiters[0], &first);
        poll_pending(&mut waiters[1], &last);
        work.wake();
        assert_eq!((first.times(), last.times()), (0, 1));
        let [mut remaining, mut asked] = waiters;
        if ends {
            let mut cx = Context::from_waker(Waker::noop());
            let polled = asked.poll(&mut cx, |_| Poll::Ready(()));
            assert!(polled.is_ready());
        }
        drop(asked);
        assert_eq!((first.times(), last.times()), (1, 1));
        poll_pending(&mut remaining, &first);
        assert_eq!(work.polls(), 2);
    }
}

/// "if an asked waiter is not polled by its task ..., an alarm asks all the others at once", unless
/// one has driven. A single waiter has no others to ask.
#[test]
fn a_waiter_that_does_not_answer_is_passed_over() {
    let (progress, work) = progress();
    let tasks = [(); 3].map(|()| Arc::<Task>::default());
    let times = || [0, 1, 2].map(|at: usize| tasks[at].times());
    let is_set = || work.alarm.lock().unwrap().is_some();
    let rings = || {
        let alarm = work.alarm.lock().unwrap().take();
        alarm.expect("it is set").wake();
    };
    let mut waiters = [(); 3].map(|()| ProgressWaiter::new(Some(&progress)));
    poll_pending(&mut waiters[0], &tasks[0]);
    work.wake();
    assert!(!is_set(), "there is no other");
    poll_pending(&mut waiters[0], &tasks[0]);
    for at in [1, 2] {
        poll_pending(&mut waiters[at], &tasks[at]);
    }
    // The first one, then all the others, and none twice.
    work.wake();
    assert_eq!(times(), [1, 0, 1]);
    rings();
    assert_eq!((times(), is_set()), ([2, 1, 1], false));
    // A waiter that answers is the first from then on; work that comes before the alarm starts its
    // time again.
    let polls = work.polls();
    poll_pending(&mut waiters[0], &tasks[0]);
    assert_eq!(work.polls(), polls + 1);
    work.wake();
    assert_eq!((times(), is_set()), ([3, 1, 1], true));
    poll_pending(&mut waiters[0], &tasks[0]);
    work.wake();
    assert_eq!(times(), [4, 1, 1]);
    rings();
    assert_eq!((times(), is_set()), ([4, 1, 1], true));
    rings();
    assert_eq!((times(), is_set()), ([4, 2, 2], false));
    // No alarm is set: one answers in time, and no work is due.
    poll_pending(&mut waiters[0], &tasks[0]);
    work.wake();
    poll_pending(&mut waiters[0], &tasks[0]);
    rings();
    assert_eq!((times(), is_set()), ([5, 2, 2], false));
}

/// Polling the awaited result may panic: the next waiter drives all the same.
#[test]
fn a_panic_of_what_is_waited_for_ends_the_turn() {
    let (progress, work) = progress();
    let task = Arc::<Task>::default();
    let panics = || {
        let mut waiter = ProgressWaiter::new(Some(&progress));
        let mut cx = Context::from_waker(Waker::noop());
        waiter.poll(&mut cx, |_| -> Poll<()> { panic!("on purpose") })
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let mut waiter = ProgressWaiter::new(Some(&progress));
    poll_pending(&mut waiter, &task);
    assert_eq!(work.polls(), 1);
}

/// A driven task that panics ends, as a task of a runtime would, and no other does.
#[test]
fn a_panic_of_what_is_driven_ends_that_alone() {
    let (progress, work) = progress();
    let other = Arc::<Work>::default();
    progress.add(Box::new(Worker(Arc::clone(&other))));
    work.panics.store(true, Ordering::SeqCst);
    assert!(progress.turn(), "something has ended");
    assert!(work.dropped.load(Ordering::SeqCst) && !other.dropped.load(Ordering::SeqCst));
    other.wake();
    progress.turn();
    assert_eq!((work.polls(), other.polls()), (1, 2));
}

/// A turn polls tasks that were woken, and tasks that find work due by themselves; no others.
#[test]
fn a_turn_polls_what_is_due() {
    let (progress, work) = progress();
    progress.turn();
    progress.turn();
    assert_eq!(work.polls(), 1);
    work.is_due.store(true, Ordering::SeqCst);
    progress.turn();
    assert_eq!(work.polls(), 2);
}

/// "The source of readiness is polled first, so that a task that always finds work by itself holds
/// up no other": each turn asks it, and serves what it finds.
#[test]
fn who_always_finds_something_holds_none_up() {
    let (progress, work) = progress();
    progress.turn();
    let asks = || work.asks.load(Ordering::SeqCst);
    assert_eq!((asks(), work.polls()), (1, 1));
    work.moves.store(true, Ordering::SeqCst);
    for is_due in [true, false] {
        work.is_due.store(is_due, Ordering::SeqCst);
        work.is_found.store(!is_due, Ordering::SeqCst);
        let (seen, polls) = (asks(), work.polls());
        for turn in 1..=3 {
            assert!(progress.turn());
            assert_eq!((asks(), work.polls()), (seen + turn, polls + turn));
        }
    }
}

/// The list of waiters keeps their order as some go, and has no more empty places than others.
#[test]
fn the_list_of_waiters_is_as_a_simple_one() {
    let wakers = [(); 8].map(|()| Waker::from(Arc::<Task>::default()));
    let (mut list, mut model) = (WaiterList::default(), Vec::new());
    let mut places = [None; 8];
    let mut random = 1u32;
    for _ in 0..2000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (at, goes) = ((random >> 20) as usize % 8, random >> 30 == 0);
        model.retain(|it| *it != at);
        match goes {
            true => drop(list.remove(&mut places[at])),
            false => {
                list.put_first(&mut places[at], &wakers[at]);
                model.push(at);
            }
        }
        let all = list.all_but_first().chain(list.first());
        let number = |waker| wakers.iter().position(|it| it.will_wake(waker)).unwrap();
        let listed: Vec<usize> = all.map(number).collect();
        assert_eq!((&listed, list.len()), (&model, model.len()));
        assert!(list.places.len() <= 2 * list.len());
    }
}

/// After the end nothing is driven or kept. What is due is done before.
#[test]
fn the_end_drops_what_was_driven() {
    let (progress, work) = progress();
    progress.end();
    assert!(work.polls() > 0 && work.dropped.load(Ordering::SeqCst));
    let late = Arc::<Work>::default();
    progress.add(Box::new(Worker(Arc::clone(&late))));
    assert!(late.dropped.load(Ordering::SeqCst));
    assert!(!progress.turn());
    assert_eq!(late.polls(), 0);
}

/// When the source of readiness ends, so do all driven tasks, including one that a thread drives at
/// that moment. The waiters are woken, and none is asked any more.
#[test]
fn what_is_abandoned_is_dropped_also_in_the_middle_of_a_turn() {
    let (idle, work) = progress();
    let task = Arc::<Task>::default();
    let mut waiter = ProgressWaiter::new(Some(&idle));
    poll_pending(&mut waiter, &task);
    idle.abandon();
    assert!(work.dropped.load(Ordering::SeqCst));
    assert_eq!(task.times(), 1);
    work.wake();
    assert_eq!(task.times(), 1);

    let (driven, work) = progress();
    let mut waiter = ProgressWaiter::new(Some(&driven));
    let waker = Waker::from(Arc::clone(&task));
    let mut asked = 0;
    let polled = waiter.poll(&mut Context::from_waker(&waker), |_| {
        asked += 1;
        if asked == 2 {
            driven.abandon(); // The turn has begun.
        }
        Poll::<()>::Pending
    });
    assert!(polled.is_pending() && work.dropped.load(Ordering::SeqCst));
    work.wake();
    assert_eq!(task.times(), 1);
}

fn poll_reading(waiter: &mut ProgressWaiter, list: &ProgressList, task: &Arc<Task>) {
    let waker = Waker::from(Arc::clone(task));
    let mut cx = Context::from_waker(&waker);
    let polled = waiter.poll_reading(list, &mut cx, |_| Poll::<()>::Pending);
    assert!(polled.is_pending());
}

/// `ProgressList::add`: a waiter of an object drives what is on its list, once each, until that has
/// ended; then it keeps nothing of it, and the list is as one that was always empty.
#[test]
fn who_reads_an_object_drives_what_is_on_its_list() {
    let list = ProgressList::new();
    let task = Arc::<Task>::default();
    let mut waiter = ProgressWaiter::default();
    poll_reading(&mut waiter, &list, &task);
    assert_eq!(list.version(), 0);
    let (first, first_work) = progress();
    let (second, second_work) = progress();
    let mut wakes = 0;
    for added in [None, Some(&first), Some(&second), Some(&first)] {
        list.add(added, || wakes += 1);
    }
    assert_eq!(wakes, 2, "one for each");
    poll_reading(&mut waiter, &list, &task);
    list.turn();
    for (work, times) in [(&first_work, 1), (&second_work, 2)] {
        assert_eq!(work.polls(), 1);
        work.wake();
        assert_eq!(task.times(), times);
        poll_reading(&mut waiter, &list, &task);
        assert_eq!(work.polls(), 2);
        work.wake();
        list.turn();
        assert_eq!(work.polls(), 3);
        task.0.fetch_sub(1, Ordering::SeqCst);
    }
    let gone = [&first, &second].map(Arc::downgrade);
    for ended in [first, second] {
        let before = task.times();
        ended.end();
        assert_eq!(
            task.times(),
            before + 1,
            "it is woken to drive on without it"
        );
    }
    poll_reading(&mut waiter, &list, &task);
    assert!(
        gone.iter().all(|it| it.strong_count() == 0),
        "it is not kept"
    );
    list.turn();
    assert_eq!(list.version(), 0);
}

/// `ProgressWaiter::poll_reading`: what is added after a reader has looked at the list, and before
/// it waits, finds no reader to wake.
#[test]
fn what_is_added_while_a_reader_looks_is_driven() {
    let list = ProgressList::new();
    let (added, work) = progress();
    let task = Arc::<Task>::default();
    let waker = Waker::from(Arc::clone(&task));
    let mut waiter = ProgressWaiter::default();
    let polled = waiter.poll_reading(&list, &mut Context::from_waker(&waker), |_| {
        list.add(Some(&added), || {});
        Poll::<()>::Pending
    });
    assert!(polled.is_pending());
    assert_eq!((task.times(), work.polls()), (1, 0));
    poll_reading(&mut waiter, &list, &task);
    assert_eq!((task.times(), work.polls()), (1, 1));
}

/// Every edge is walked, and the drawing has no others.
#[test]
fn it_goes_along_the_edges_of_its_drawing() {
    let coverage = EdgeCoverage::begin("ProgressPhase");
    let (progress, work) = progress();
    let task = Arc::<Task>::default();
    let mut waiter = ProgressWaiter::new(Some(&progress));
    // Parked to Woken, to Driving, to Parked.
    poll_pending(&mut waiter, &task);
    assert_eq!(phase(&progress), ProgressPhase::Parked);
    // A turn is asked for: Parked to Driving. A task is woken while driven: to DrivingWoken, to
    // Woken.
    work.is_due.store(true, Ordering::SeqCst);
    work.wakes_itself.store(1, Ordering::SeqCst);
    progress.turn();
    assert_eq!(phase(&progress), ProgressPhase::Woken);
    // The awaited result is there: Driving to Woken.
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiter.poll(&mut cx, |_| Poll::Ready(())).is_ready());
    assert_eq!(phase(&progress), ProgressPhase::Woken);
    // Work that a check finds is served by the same turn: DrivingWoken to Driving.
    work.is_found.store(true, Ordering::SeqCst);
    progress.turn();
    assert_eq!(phase(&progress), ProgressPhase::Parked);
    coverage.expect_all();
}
