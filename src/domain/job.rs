//! A registration at work: what it does, where, and how its end is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::buf::{Held, RegionMemory};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::Context;
use crate::mr::{MemoryRegion, prepare, unprepare};
use crate::sync::WakeList;

use super::Domain;
use super::request::Request;

/// Bytes faulted in between two looks at whether the registration is still wanted.
const FAULT_PIECE: usize = 16 << 20;

pub(super) type Outcome = Result<MemoryRegion, (Error, Vec<Held>)>;

/// A registration at work, shared by its future and the thread that does the work.
pub(super) struct Job {
    abandoned: AtomicBool,
    state: Mutex<JobState>,
}

struct JobState {
    slot: Option<EventSlot>,
    context: Option<Context>,
    /// Somebody awaits the result; else the event alone carries it.
    awaited: bool,
    result: Option<Outcome>,
    finished: bool,
    waker: Option<Waker>,
}

impl Job {
    pub(super) fn new(slot: Option<EventSlot>, context: Option<Context>, awaited: bool) -> Self {
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

    fn lock(&self) -> std::sync::MutexGuard<'_, JobState> {
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

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        let mut wakes = WakeList::new();
        let mut state = self.lock();
        state.finished = true;
        let outcome = if self.is_abandoned() {
            Err((
                Error::new(ErrorKind::Canceled, "the registration was dropped"),
                Vec::new(),
            ))
        } else {
            outcome
        };
        let event = state.context.map(|context| match &outcome {
            Ok(region) => Event::MrComplete {
                context,
                region: region.clone(),
            },
            Err((error, _)) => {
                Event::Error(EventError::new(error.clone()).with_context(Some(context)))
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

pub(super) fn start_job(domain: Domain, held: Vec<Held>, request: Request, job: Arc<Job>) {
    if !domain.faults_in() {
        job.finish(make_region(&domain, held, &request));
        return;
    }
    let worker = Arc::clone(&job);
    let guard = FinishGuard(Some(job));
    let workers = domain.inner.workers.clone();
    // A runtime that shuts down drops the guard instead.
    workers.run(move || {
        let outcome = fault_in_and_register(&domain, held, &request, &worker);
        guard.finish(outcome);
    });
}

/// Tells the job of its end even if the work is dropped before it runs.
struct FinishGuard(Option<Arc<Job>>);

impl FinishGuard {
    fn finish(mut self, outcome: Outcome) {
        if let Some(job) = self.0.take() {
            job.finish(outcome);
        }
    }
}

impl Drop for FinishGuard {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            job.finish(Err((crate::progress::Engine::gone_error(), Vec::new())));
        }
    }
}

fn fault_in_and_register(
    domain: &Domain,
    held: Vec<Held>,
    request: &Request,
    job: &Job,
) -> Outcome {
    let memory = prepare(held, request.access)?;
    let mut at = 0;
    while at < memory.len() {
        if job.is_abandoned() {
            let error = Error::new(ErrorKind::Canceled, "the registration was dropped");
            return Err((error, unprepare(&memory)));
        }
        let step = FAULT_PIECE.min(memory.len() - at);
        if let Err(error) = memory.fault_in(at, step) {
            return Err((error, unprepare(&memory)));
        }
        at += step;
        request.tell_ready(step);
    }
    create(domain, memory, request)
}

pub(super) fn register_now(domain: &Domain, held: Vec<Held>, request: &Request) -> Outcome {
    if domain.faults_in() {
        let job = Job::new(None, None, false);
        return fault_in_and_register(domain, held, request, &job);
    }
    make_region(domain, held, request)
}

fn make_region(domain: &Domain, held: Vec<Held>, request: &Request) -> Outcome {
    let memory = prepare(held, request.access)?;
    let len = memory.len();
    let made = create(domain, memory, request);
    if made.is_ok() {
        request.tell_ready(len);
    }
    made
}

fn create(domain: &Domain, memory: Arc<RegionMemory>, request: &Request) -> Outcome {
    let keep = match domain.keep_open("memory region") {
        Ok(keep) => keep,
        Err(error) => return Err((error, unprepare(&memory))),
    };
    MemoryRegion::create(domain.new_region(memory, request, keep))
        .map_err(|(error, held)| (error.with_phase(Phase::Ended), held))
}
