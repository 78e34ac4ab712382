//! The steps of a registration, within the call or a chunk at a time on a blocking thread, and the
//! delivery of its result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::buf::{OwnedBuffers, RegionMemory};
use crate::edges::{check_edge, state_machine};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::UserContext;
use crate::limits::FAULT_CHUNK;
use crate::mr::{KEY_NOT_AVAILABLE, RegisterError, prepare};
use crate::progress::Engine;
use crate::sync::WakeList;

use super::Domain;
use super::available::MemoryLimits;
use super::blocking::BlockingPool;
use super::handle::RegistrationOutput;
use super::request::{PageWork, Request};

pub(super) type RegisterResult<R> = Result<R, Box<RegisterError>>;

/// Registers within this call.
pub(super) fn register_now<R: RegistrationOutput>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: Request,
) -> RegisterResult<R> {
    // 1. The buffers become one range of memory, which has no other owner yet.
    let mut unfinished = UnfinishedRegion::new(domain, buffers, request)?;
    // 2. Its pages are faulted in, or recorded, if the request or the domain asks for that.
    while unfinished.has_pages_left() {
        if let Err(error) = unfinished.prepare_chunk() {
            return Err(unfinished.fail(error));
        }
    }
    // 3. It is entered into the domain's table under a key, by which peers find it from now on.
    unfinished.enter()
}

/// Memory that is being registered.
struct UnfinishedRegion {
    domain: Domain,
    request: Request,
    memory: Arc<RegionMemory>,
    page_work: PageWork,
    limits: MemoryLimits,
    /// Bytes whose pages have been faulted in or recorded, from the start.
    ready: usize,
}

impl UnfinishedRegion {
    fn new(domain: Domain, buffers: OwnedBuffers, request: Request) -> RegisterResult<Self> {
        let memory = prepare(buffers, domain.traits(&request))?;
        let page_work = match memory.has_pages() {
            true => domain.page_work(&request),
            false => PageWork::None,
        };
        Ok(UnfinishedRegion {
            domain,
            request,
            memory,
            page_work,
            limits: MemoryLimits::default(),
            ready: 0,
        })
    }

    fn has_pages_left(&self) -> bool {
        self.page_work != PageWork::None && self.ready < self.memory.len()
    }

    /// Does the next chunk of pages.
    fn prepare_chunk(&mut self) -> Result<()> {
        let memory = &self.memory;
        let step = FAULT_CHUNK.min(memory.len() - self.ready);
        let touches = self.request.pinned || self.page_work == PageWork::FaultIn;
        // A region of one chunk is small beside what a system has.
        if touches && memory.len() > FAULT_CHUNK && !memory.is_kernel_only() {
            self.limits.check(step, memory.len())?;
        }
        if self.request.pinned {
            memory.pin(self.ready, step)?;
        }
        match self.page_work {
            PageWork::None | PageWork::Pin => {}
            PageWork::Record => memory.record_pages(self.ready, step)?,
            PageWork::FaultIn => memory.fault_in_and_record(self.ready, step)?,
        }
        self.ready += step;
        self.request.add_ready(step);
        Ok(())
    }

    fn enter<R: RegistrationOutput>(self) -> RegisterResult<R> {
        let left = self.memory.len() - self.ready;
        let parts = self.domain.prepared_region(self.memory, &self.request);
        let region = R::create(parts).map_err(|mut refused| {
            refused.error = refused.error.with_phase(Phase::Ended);
            refused
        })?;
        self.request.add_ready(left);
        Ok(region)
    }

    fn fail(self, error: Error) -> Box<RegisterError> {
        RegisterError::of_memory(error, &self.memory)
    }
}

/// A registration in progress, shared by its future and the thread that does the work.
pub(super) struct RegisterTask<R> {
    state: Mutex<TaskState<R>>,
}

struct TaskState<R> {
    registration: RegisterState<R>,
    /// The event that reports its end.
    event: Option<(EventSlot, UserContext)>,
    /// A future takes the result; else the event alone has it.
    is_awaited: bool,
}

/// ```text
///   Running ──finish──> Finished ──poll──> Taken
///      └─────────drop of the future──┴───> Abandoned
/// ```
/// What no future awaits goes from Running to Taken.
enum RegisterState<R> {
    /// With the waker of its future, once that has been polled.
    Running(Option<Waker>),
    Finished(RegisterResult<R>),
    Taken,
    /// The work ends before its next chunk, and reports that it was canceled.
    Abandoned,
}

state_machine! { RegisterState<R> {
    Running => [Finished, Taken, Abandoned],
    Finished => [Taken, Abandoned],
    Taken => [],
    Abandoned => [],
}}

impl<R> RegisterState<R> {
    /// Moves along a legal edge, and returns the state that is left.
    fn go(&mut self, to: Self) -> Self {
        check_edge(self, &to);
        std::mem::replace(self, to)
    }
}

impl<R: RegistrationOutput> RegisterTask<R> {
    /// Of a future, which also has an event if the application asked for one.
    pub(super) fn awaited(event: Option<(EventSlot, UserContext)>) -> Arc<Self> {
        RegisterTask::new(event, true)
    }

    /// Reported by an event alone.
    pub(super) fn submitted(slot: EventSlot, context: UserContext) -> Arc<Self> {
        RegisterTask::new(Some((slot, context)), false)
    }

    fn new(event: Option<(EventSlot, UserContext)>, is_awaited: bool) -> Arc<Self> {
        let state = TaskState {
            registration: RegisterState::Running(None),
            event,
            is_awaited,
        };
        Arc::new(RegisterTask {
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TaskState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_abandoned(&self) -> bool {
        matches!(self.lock().registration, RegisterState::Abandoned)
    }

    /// The future is dropped: a finished registration is undone, a running one ends early.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        if let RegisterState::Taken = state.registration {
            return;
        }
        let undone = state.registration.go(RegisterState::Abandoned);
        drop(state);
        // Dropping the region removes its key. Its event, if any, was written before.
        drop(undone);
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<RegisterResult<R>> {
        let mut state = self.lock();
        match &mut state.registration {
            RegisterState::Running(registered) => {
                let stale = registered.replace(waker.clone());
                // With the lock released: the last waker of a task may run its destructor.
                drop(state);
                drop(stale);
                Poll::Pending
            }
            registration => match registration.go(RegisterState::Taken) {
                RegisterState::Finished(result) => Poll::Ready(result),
                _ => unreachable!("a registration is polled until its end, and not after"),
            },
        }
    }

    /// The key of the region, while its future has not taken that.
    pub(super) fn key(&self) -> u64 {
        match &self.lock().registration {
            RegisterState::Finished(Ok(region)) => region.key(),
            _ => KEY_NOT_AVAILABLE,
        }
    }

    /// Stores the result, then writes the event, then wakes.
    pub(super) fn finish(&self, outcome: RegisterResult<R>) {
        // Declared before the guard, so that they are dropped after it.
        let mut wakes = WakeList::new();
        let _undelivered;
        let mut guard = self.lock();
        let state = &mut *guard;
        let event = state.event.take();
        let event = event.and_then(|(slot, context)| {
            let event = match (&state.registration, &outcome) {
                (RegisterState::Abandoned, _) => Some(failure(canceled(), context)),
                (_, Ok(region)) => region.event(context),
                (_, Err(refused)) => Some(failure(refused.error.clone(), context)),
            };
            Some((slot, event?))
        });
        let next = match (&mut state.registration, state.is_awaited) {
            (RegisterState::Running(waker), true) => {
                wakes.extend(waker.take());
                Some(RegisterState::Finished(outcome))
            }
            (RegisterState::Running(_), false) => {
                _undelivered = outcome;
                Some(RegisterState::Taken)
            }
            _ => {
                _undelivered = outcome;
                None
            }
        };
        if let Some(next) = next {
            state.registration.go(next);
        }
        if let Some((slot, event)) = event {
            slot.fill(event, &mut wakes);
        }
    }
}

fn failure(error: Error, context: UserContext) -> Event {
    Event::Error(EventError::new(error).with_context(Some(context)))
}

fn canceled() -> Error {
    Error::new(ErrorKind::Canceled, "the registration was dropped")
}

/// Runs a registration, on a blocking thread if there is work with its pages.
pub(super) fn start_task<R: RegistrationOutput>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: Request,
    task: Arc<RegisterTask<R>>,
) {
    let pool = domain.inner.blocking.clone();
    match UnfinishedRegion::new(domain, buffers, request) {
        Ok(unfinished) if !unfinished.has_pages_left() => task.finish(unfinished.enter()),
        Ok(unfinished) => {
            let end = FinishGuard(Some(task));
            run_in_chunks(&pool, Work { unfinished, end });
        }
        Err(refused) => task.finish(Err(refused)),
    }
}

/// Queues one chunk at a time, so that a short registration does not wait for the end of a long
/// one. A pool whose runtime has ended drops the work, and with it the guard, which finishes the
/// task.
fn run_in_chunks<R: RegistrationOutput>(pool: &BlockingPool, work: Work<R>) {
    let again = pool.clone();
    pool.run(move || {
        if let Some(rest) = work.step() {
            run_in_chunks(&again, rest);
        }
    });
}

/// Finishes the task with `DriverGone` if the work is dropped before its end.
struct FinishGuard<R: RegistrationOutput>(Option<Arc<RegisterTask<R>>>);

impl<R: RegistrationOutput> FinishGuard<R> {
    fn finish(mut self, outcome: RegisterResult<R>) {
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
            task.finish(Err(RegisterError::new(
                Engine::gone_error(),
                OwnedBuffers::new(),
            )));
        }
    }
}

/// A registration that faults its pages in on blocking threads.
struct Work<R: RegistrationOutput> {
    unfinished: UnfinishedRegion,
    end: FinishGuard<R>,
}

impl<R: RegistrationOutput> Work<R> {
    /// Does one chunk and returns the rest, if any. What ends here is freed here too, on the
    /// blocking thread.
    fn step(mut self) -> Option<Self> {
        let prepared = match self.end.is_wanted() {
            true => self.unfinished.prepare_chunk(),
            false => Err(canceled()),
        };
        let outcome = match prepared {
            Ok(()) if self.unfinished.has_pages_left() => return Some(self),
            Ok(()) => self.unfinished.enter(),
            Err(error) => Err(self.unfinished.fail(error)),
        };
        self.end.finish(outcome);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::EdgeCoverage;
    use crate::mr::MemoryRegion;

    fn failed() -> RegisterResult<MemoryRegion> {
        let error = Error::new(ErrorKind::LimitReached, "");
        Err(RegisterError::new(error, OwnedBuffers::new()))
    }

    #[test]
    fn a_registration_moves_along_every_edge() {
        let coverage = EdgeCoverage::begin("RegisterState");
        let taken = RegisterTask::awaited(None);
        assert!(taken.poll(Waker::noop()).is_pending());
        taken.finish(failed());
        assert!(taken.poll(Waker::noop()).is_ready());
        taken.abandon();
        for finish_first in [true, false] {
            let abandoned = RegisterTask::awaited(None);
            if finish_first {
                abandoned.finish(failed());
            }
            abandoned.abandon();
            assert!(abandoned.is_abandoned());
            abandoned.finish(failed());
            assert!(abandoned.is_abandoned());
        }
        let submitted = RegisterTask::<MemoryRegion>::new(None, false);
        submitted.finish(failed());
        coverage.expect_all();
    }
}
