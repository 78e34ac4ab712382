//! The part of a registration that takes time, and how its result is delivered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::buf::{OwnedBuffers, RegionMemory};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::UserContext;
use crate::info::MrMode;
use crate::mr::{KEY_NOT_AVAILABLE, RegisterError, prepare};
use crate::sync::WakeList;

use super::Domain;
use super::available;
use super::blocking::BlockingPool;
use super::handle::RegistrationOutput;
use super::request::Request;
use crate::limits::FAULT_CHUNK;

pub(super) type Outcome<R> = Result<R, Box<RegisterError>>;

/// A registration that runs, shared by its future and the thread that does the work.
pub(super) struct RegisterTask<R> {
    abandoned: AtomicBool,
    state: Mutex<TaskState<R>>,
}

struct TaskState<R> {
    slot: Option<EventSlot>,
    context: Option<UserContext>,
    /// The result goes to a future; else the event alone carries it.
    awaited: bool,
    result: Option<Outcome<R>>,
    finished: bool,
    waker: Option<Waker>,
}

impl<R: RegistrationOutput> RegisterTask<R> {
    pub(super) fn new(
        slot: Option<EventSlot>,
        context: Option<UserContext>,
        awaited: bool,
    ) -> Self {
        RegisterTask {
            abandoned: AtomicBool::new(false),
            state: Mutex::new(TaskState {
                slot,
                context,
                awaited,
                result: None,
                finished: false,
                waker: None,
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TaskState<R>> {
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
            Some(Ok(region)) => region.key(),
            _ => KEY_NOT_AVAILABLE,
        }
    }

    pub(super) fn finish(&self, outcome: Outcome<R>) {
        let mut wakes = WakeList::new();
        let mut state = self.lock();
        state.finished = true;
        let outcome = if self.is_abandoned() {
            Err(without_buffers(canceled()))
        } else {
            outcome
        };
        let event = state.context.and_then(|context| match &outcome {
            Ok(region) => region.event(context),
            Err(refused) => {
                let failed = EventError::new(refused.error.clone()).with_context(Some(context));
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
fn without_buffers(error: Error) -> Box<RegisterError> {
    RegisterError::new(error, OwnedBuffers::new())
}

/// Runs a registration, on a blocking thread if its pages are faulted in.
pub(super) fn start_task<R: RegistrationOutput>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: Request,
    task: Arc<RegisterTask<R>>,
) {
    if !domain.looks_at_pages(&request) {
        task.finish(register_now(domain, buffers, &request));
        return;
    }
    let memory = match prepare(buffers, domain.traits(&request)) {
        Ok(memory) => memory,
        Err(refused) => return task.finish(Err(refused)),
    };
    let pool = domain.inner.blocking.clone();
    let work = Work {
        end: FinishGuard(Some(task)),
        memory,
        ready: 0,
        domain,
        request,
    };
    run_in_chunks(&pool, work);
}

/// Queues one chunk at a time, so that a short registration does not wait for the end of a long
/// one.
fn run_in_chunks<R: RegistrationOutput>(pool: &BlockingPool, work: Work<R>) {
    let again = pool.clone();
    pool.run(move || {
        // A pool whose runtime has ended drops the work, and with it the guard, which finishes the
        // task.
        if let Some(rest) = work.step() {
            run_in_chunks(&again, rest);
        }
    });
}

/// Finishes the task even if the work is dropped before it is done.
struct FinishGuard<R: RegistrationOutput>(Option<Arc<RegisterTask<R>>>);

impl<R: RegistrationOutput> FinishGuard<R> {
    fn finish(mut self, outcome: Outcome<R>) {
        if let Some(task) = self.0.take() {
            task.finish(outcome);
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|task| !task.is_abandoned())
    }
}

impl<R: RegistrationOutput> Drop for FinishGuard<R> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.finish(Err(without_buffers(crate::progress::Engine::gone_error())));
        }
    }
}

/// The rest of a registration that faults its pages in. Dropping it finishes the task with
/// `DriverGone`.
struct Work<R: RegistrationOutput> {
    end: FinishGuard<R>,
    memory: Arc<RegionMemory>,
    /// Bytes that are there already.
    ready: usize,
    domain: Domain,
    request: Request,
}

impl<R: RegistrationOutput> Work<R> {
    /// Does one chunk and returns the rest, if any. What ends here is freed here too, on the
    /// blocking thread.
    fn step(mut self) -> Option<Self> {
        let outcome = if self.end.is_wanted() {
            match look_at_chunk(&self.domain, &self.memory, &mut self.ready, &self.request) {
                Ok(()) if self.ready < self.memory.len() => return Some(self),
                Ok(()) => create(self.domain, self.memory, &self.request),
                Err(error) => Err(RegisterError::of_memory(error, &self.memory)),
            }
        } else {
            Err(RegisterError::of_memory(canceled(), &self.memory))
        };
        self.end.finish(outcome);
        None
    }
}

/// What is to be pinned is made present by that. With FI_MR_MMU_NOTIFY, what has pages now is
/// remembered; with FI_MR_ALLOCATED, or by default beside the runtime, all gets them.
fn look_at_chunk(
    domain: &Domain,
    memory: &RegionMemory,
    ready: &mut usize,
    request: &Request,
) -> Result<()> {
    let step = FAULT_CHUNK.min(memory.len() - *ready);
    if request.pinned {
        memory.pin(*ready, step)?;
    }
    if domain.faults_in(request) {
        // A region of one chunk is small beside what a system has.
        if memory.len() > FAULT_CHUNK && !memory.is_kernel_only() {
            available::check(step, memory.len())?;
        }
        memory.find_pages(*ready, step)?;
    } else if domain.inner.mr_mode.contains(MrMode::MMU_NOTIFY) {
        memory.note_pages(*ready, step)?;
    }
    *ready += step;
    request.add_ready(step);
    Ok(())
}

/// Registers within this call.
pub(super) fn register_now<R: RegistrationOutput>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: &Request,
) -> Outcome<R> {
    // 1. The buffers become one range of memory, which nobody else knows of yet.
    let memory = prepare(buffers, domain.traits(request))?;
    // 2. Its pages are made present, or looked for, if the request or the domain asks for that.
    let mut ready = 0;
    if domain.looks_at_pages(request) {
        while ready < memory.len() {
            if let Err(error) = look_at_chunk(&domain, &memory, &mut ready, request) {
                return Err(RegisterError::of_memory(error, &memory));
            }
        }
    }
    // 3. It is entered into the domain's table, under a key, from where on peers find it.
    let left = memory.len() - ready;
    let region = create(domain, memory, request)?;
    request.add_ready(left);
    Ok(region)
}

fn create<R: RegistrationOutput>(
    domain: Domain,
    memory: Arc<RegionMemory>,
    request: &Request,
) -> Outcome<R> {
    R::create(domain.prepared_region(memory, request)).map_err(|mut refused| {
        refused.error = refused.error.with_phase(Phase::Ended);
        refused
    })
}
