//! A registration at work: what it does, where, and how its end is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::buf::{Draft, Few, RegionMemory};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::UserContext;
use crate::info::MrMode;
use crate::mr::{KEY_NOT_AVAILABLE, NotMade, prepare, unprepare};
use crate::sync::WakeList;

use super::Domain;
use super::available;
use super::handle::Made;
use super::request::Request;
use super::workers::Workers;

/// Bytes faulted in between two looks at whether the registration is still wanted, and before
/// others get their turn.
pub(super) const FAULT_PIECE: usize = 16 << 20;

pub(super) type Outcome<R> = Result<R, NotMade>;

/// A registration at work, shared by its future and the thread that does the work.
pub(super) struct Job<R> {
    abandoned: AtomicBool,
    state: Mutex<JobState<R>>,
}

struct JobState<R> {
    slot: Option<EventSlot>,
    context: Option<UserContext>,
    /// Somebody awaits the result; else the event alone carries it.
    awaited: bool,
    result: Option<Outcome<R>>,
    finished: bool,
    waker: Option<Waker>,
}

impl<R: Made> Job<R> {
    pub(super) fn new(
        slot: Option<EventSlot>,
        context: Option<UserContext>,
        awaited: bool,
    ) -> Self {
        Job {
            abandoned: AtomicBool::new(false),
            state: Mutex::new(JobState {
                slot,
                context,
                awaited,
                result: None,
                finished: false,
                waker: None,
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JobState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The future goes away: what is done already is undone, what is not will not be.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let mut state = self.lock();
        // Dropping the region takes its key back. Its event, if any, was written before.
        let undone = state.result.take();
        drop(state);
        drop(undone);
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Outcome<R>> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let stale = state.waker.replace(waker.clone());
                // With the lock released: the last waker of a task may run its destructor.
                drop(state);
                drop(stale);
                Poll::Pending
            }
        }
    }

    /// The key of the region it has made, if it has and nobody has taken that yet.
    pub(super) fn key(&self) -> u64 {
        match &self.lock().result {
            Some(Ok(region)) => region.key_made(),
            _ => KEY_NOT_AVAILABLE,
        }
    }

    pub(super) fn finish(&self, outcome: Outcome<R>) {
        let mut wakes = WakeList::new();
        let mut state = self.lock();
        state.finished = true;
        let outcome = if self.is_abandoned() {
            Err(alone(canceled()))
        } else {
            outcome
        };
        let event = state.context.and_then(|context| match &outcome {
            Ok(region) => region.event(context),
            Err(refused) => {
                let failed = EventError::new(refused.0.clone()).with_context(Some(context));
                Some(Event::Error(failed))
            }
        });
        if state.awaited {
            state.result = Some(outcome);
        }
        if let (Some(slot), Some(event)) = (state.slot.take(), event) {
            slot.fill(event, &mut wakes);
        }
        if let Some(waker) = state.waker.take() {
            wakes.push(waker);
        }
        drop(state);
        drop(wakes);
    }
}

fn canceled() -> Error {
    Error::new(ErrorKind::Canceled, "the registration was dropped")
}

/// Without buffers: they are gone, or nobody waits for them.
fn alone(error: Error) -> NotMade {
    Box::new((error, Few::None))
}

pub(super) fn start_job<R: Made>(domain: Domain, draft: Draft, request: Request, job: Arc<Job<R>>) {
    if !domain.looks_at_pages(&request) {
        job.finish(make_region(domain, draft, &request));
        return;
    }
    let memory = match prepare(draft) {
        Ok(memory) => memory,
        Err(refused) => return job.finish(Err(refused)),
    };
    let workers = domain.inner.workers.clone();
    let work = Work {
        end: FinishGuard(Some(job)),
        memory,
        ready: 0,
        domain,
        request,
    };
    do_in_pieces(&workers, work);
}

/// A piece each in the order of asking: a short registration does not wait for the end of a long
/// one.
fn do_in_pieces<R: Made>(workers: &Workers, work: Work<R>) {
    let again = workers.clone();
    workers.run(move || {
        // The result comes through the job; workers that go away drop the work instead, and with
        // it the guard.
        if let Some(rest) = work.step() {
            do_in_pieces(&again, rest);
        }
    });
}

/// Tells the job of its end even if the work is dropped before it is done.
struct FinishGuard<R: Made>(Option<Arc<Job<R>>>);

impl<R: Made> FinishGuard<R> {
    fn finish(mut self, outcome: Outcome<R>) {
        if let Some(job) = self.0.take() {
            job.finish(outcome);
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|job| !job.is_abandoned())
    }
}

impl<R: Made> Drop for FinishGuard<R> {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            job.finish(Err(alone(crate::progress::Engine::gone_error())));
        }
    }
}

/// What is left to do of a registration that faults its pages in. Dropping it tells the job that
/// the runtime is gone.
struct Work<R: Made> {
    end: FinishGuard<R>,
    memory: Arc<RegionMemory>,
    /// Bytes that are there already.
    ready: usize,
    domain: Domain,
    request: Request,
}

impl<R: Made> Work<R> {
    /// One piece; gives what is left after it. What ends here is freed here too, beside the
    /// runtime.
    fn step(mut self) -> Option<Self> {
        let outcome = if self.end.is_wanted() {
            match look_at_piece(&self.domain, &self.memory, &mut self.ready, &self.request) {
                Ok(()) if self.ready < self.memory.len() => return Some(self),
                Ok(()) => create(self.domain, self.memory, &self.request),
                Err(error) => Err(unprepare(error, &self.memory)),
            }
        } else {
            Err(unprepare(canceled(), &self.memory))
        };
        self.end.finish(outcome);
        None
    }
}

/// What is to be pinned is made present by that. With FI_MR_MMU_NOTIFY, what has pages now is
/// remembered; with FI_MR_ALLOCATED, or by default beside the runtime, all gets them.
fn look_at_piece(
    domain: &Domain,
    memory: &RegionMemory,
    ready: &mut usize,
    request: &Request,
) -> Result<()> {
    let step = FAULT_PIECE.min(memory.len() - *ready);
    if request.pinned {
        memory.pin(*ready, step)?;
    }
    if domain.faults_in(request) {
        // A region of one piece is small beside what a system has.
        if memory.len() > FAULT_PIECE && !memory.is_kernel_only() {
            available::check(step, memory.len())?;
        }
        memory.find_pages(*ready, step)?;
    } else if domain.inner.mr_mode.contains(MrMode::MMU_NOTIFY) {
        memory.note_pages(*ready, step)?;
    }
    *ready += step;
    request.tell_ready(step);
    Ok(())
}

#[inline]
pub(super) fn register_now<R: Made>(domain: Domain, draft: Draft, request: &Request) -> Outcome<R> {
    if !domain.looks_at_pages(request) {
        return make_region(domain, draft, request);
    }
    let memory = prepare(draft)?;
    let mut ready = 0;
    while ready < memory.len() {
        if let Err(error) = look_at_piece(&domain, &memory, &mut ready, request) {
            return Err(unprepare(error, &memory));
        }
    }
    create(domain, memory, request)
}

#[inline]
fn make_region<R: Made>(domain: Domain, draft: Draft, request: &Request) -> Outcome<R> {
    let memory = prepare(draft)?;
    let len = memory.len();
    let made = create(domain, memory, request);
    if made.is_ok() {
        request.tell_ready(len);
    }
    made
}

#[inline]
fn create<R: Made>(domain: Domain, memory: Arc<RegionMemory>, request: &Request) -> Outcome<R> {
    match R::make(domain.new_region(memory, request)) {
        Ok(region) => Ok(region),
        Err(refused) => {
            let (error, held) = *refused;
            Err(Box::new((error.with_phase(Phase::Ended), held)))
        }
    }
}
