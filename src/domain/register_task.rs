//! The steps of a registration, within the call or a chunk at a time on a blocking thread, and the
//! delivery of its result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::buf::{OwnedBuffers, RegionMemory};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::UserContext;
use crate::limits::FAULT_CHUNK;
use crate::mr::{KEY_NOT_AVAILABLE, PreparedRegion, RegisterError, prepare};
use crate::progress::Engine;
use crate::sync::WakeList;

use super::Domain;
use super::available::MemoryLimits;
use super::blocking::BlockingPool;
use super::handle::RegionHandle;
use super::request::{PageWork, Request};

pub(super) type RegisterResult<R> = Result<R, Box<RegisterError>>;

/// Makes the handle of a region that is ready.
pub(super) type Create<R> = fn(PreparedRegion) -> RegisterResult<R>;

/// Registers within this call.
pub(super) fn register_now<R>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: Request,
    create: Create<R>,
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
    unfinished.enter(create)
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

    /// Pins, records or faults in the next chunk of pages.
    fn prepare_chunk(&mut self) -> Result<()> {
        let memory = &self.memory;
        let step = FAULT_CHUNK.min(memory.len() - self.ready);
        let touches = self.request.pinned || self.page_work == PageWork::FaultIn;
        // A region of one chunk is small compared to any system's memory.
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

    fn enter<R>(self, create: Create<R>) -> RegisterResult<R> {
        let left = self.memory.len() - self.ready;
        let parts = self.domain.prepared_region(self.memory, &self.request);
        let region = create(parts).map_err(|mut refused| {
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

/// The result of a registration, on its way to the future that awaits it. The registration is
/// undone if the future drops its share.
pub(super) struct AwaitedResult<R> {
    result: Mutex<Option<RegisterResult<R>>>,
    waker: AtomicWaker,
}

impl<R> AwaitedResult<R> {
    fn lock(&self) -> MutexGuard<'_, Option<RegisterResult<R>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<RegisterResult<R>> {
        // Registered first: a result that is stored from now on wakes the task.
        self.waker.register(cx.waker());
        let result = self.lock().take();
        result.map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the key of the region that waits for the future to take it.
    pub(super) fn key(&self) -> u64
    where
        R: RegionHandle,
    {
        match &*self.lock() {
            Some(Ok(region)) => region.region_key(),
            _ => KEY_NOT_AVAILABLE,
        }
    }
}

/// The destinations to which the end of a registration is reported: its future, an event, or both.
/// Reports `DriverGone` if it is dropped without a report.
pub(super) struct RegisterEnd<R> {
    /// `None` if no future awaits the registration, or once it was reported.
    future: Option<Arc<AwaitedResult<R>>>,
    event: Option<EndEvent<R>>,
}

struct EndEvent<R> {
    slot: EventSlot,
    context: UserContext,
    /// Makes the event of a registration that succeeded.
    complete: fn(&R, UserContext) -> Event,
}

impl<R> RegisterEnd<R> {
    /// Creates the end of a registration that a future awaits, and the future's share of the
    /// result.
    pub(super) fn awaited() -> (Self, Arc<AwaitedResult<R>>) {
        let result = Arc::new(AwaitedResult {
            result: Mutex::new(None),
            waker: AtomicWaker::new(),
        });
        let end = RegisterEnd {
            future: Some(Arc::clone(&result)),
            event: None,
        };
        (end, result)
    }

    /// Creates the end of a registration that only an event reports.
    pub(super) fn submitted(slot: EventSlot, context: UserContext) -> Self
    where
        R: RegionHandle,
    {
        let end = RegisterEnd {
            future: None,
            event: None,
        };
        end.with_event(slot, context)
    }

    /// Adds an event that reports the end.
    pub(super) fn with_event(mut self, slot: EventSlot, context: UserContext) -> Self
    where
        R: RegionHandle,
    {
        self.event = Some(EndEvent {
            slot,
            context,
            complete: R::complete_event,
        });
        self
    }

    /// Returns true until the future is dropped.
    fn is_wanted(&self) -> bool {
        (self.future.as_ref()).is_none_or(|future| Arc::strong_count(future) > 1)
    }

    fn finish(mut self, outcome: RegisterResult<R>) {
        self.report(outcome);
    }

    /// Stores the result, then writes the event, then wakes (ruling 7).
    fn report(&mut self, outcome: RegisterResult<R>) {
        let mut wakes = WakeList::new();
        let is_wanted = self.is_wanted();
        let event = self.event.take().map(|event| {
            let EndEvent {
                slot,
                context,
                complete,
            } = event;
            let event = match &outcome {
                _ if !is_wanted => failure(canceled(), context),
                Ok(region) => complete(region, context),
                Err(refused) => failure(refused.error.clone(), context),
            };
            (slot, event)
        });
        // Dropping the last handle of a region removes its key. A region whose future is dropped
        // from here on is dropped with the last share of the result.
        let future = self.future.take();
        match &future {
            Some(future) if is_wanted => *future.lock() = Some(outcome),
            _ => drop(outcome),
        }
        if let Some((slot, event)) = event {
            slot.fill(event, &mut wakes);
        }
        wakes.extend(future.and_then(|future| future.waker.take()));
    }
}

impl<R> Drop for RegisterEnd<R> {
    fn drop(&mut self) {
        if self.future.is_some() || self.event.is_some() {
            let gone = RegisterError::new(Engine::gone_error(), OwnedBuffers::new());
            self.report(Err(gone));
        }
    }
}

fn failure(error: Error, context: UserContext) -> Event {
    Event::Error(EventError::new(error).with_context(Some(context)))
}

fn canceled() -> Error {
    Error::new(ErrorKind::Canceled, "the registration was dropped")
}

/// Runs a registration, on a blocking thread if its pages need work.
pub(super) fn start_task<R: Send + 'static>(
    domain: Domain,
    buffers: OwnedBuffers,
    request: Request,
    create: Create<R>,
    end: RegisterEnd<R>,
) {
    let pool = domain.inner.blocking.clone();
    match UnfinishedRegion::new(domain, buffers, request) {
        Ok(unfinished) if !unfinished.has_pages_left() => end.finish(unfinished.enter(create)),
        Ok(unfinished) => run_in_chunks(
            &pool,
            Work {
                unfinished,
                create,
                end,
            },
        ),
        Err(refused) => end.finish(Err(refused)),
    }
}

/// Queues one chunk at a time, so that a short registration does not wait for the end of a long
/// one. A pool whose runtime has ended drops the work, and dropping its `end` reports `DriverGone`.
fn run_in_chunks<R: Send + 'static>(pool: &BlockingPool, work: Work<R>) {
    let again = pool.clone();
    pool.run(move || {
        if let Some(rest) = work.step() {
            run_in_chunks(&again, rest);
        }
    });
}

/// A registration that faults its pages in on blocking threads.
struct Work<R> {
    unfinished: UnfinishedRegion,
    create: Create<R>,
    end: RegisterEnd<R>,
}

impl<R> Work<R> {
    /// Does one chunk and returns the remaining work, if any. Work that ends here is freed here
    /// too, on the blocking thread.
    fn step(mut self) -> Option<Self> {
        let prepared = match self.end.is_wanted() {
            true => self.unfinished.prepare_chunk(),
            false => Err(canceled()),
        };
        let outcome = match prepared {
            Ok(()) if self.unfinished.has_pages_left() => return Some(self),
            Ok(()) => self.unfinished.enter(self.create),
            Err(error) => Err(self.unfinished.fail(error)),
        };
        self.end.finish(outcome);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn kind(result: RegisterResult<u8>) -> ErrorKind {
        result.unwrap_err().error.kind()
    }

    /// `RegisterEnd`: it is reported once, however it comes to its end.
    #[test]
    fn a_future_gets_the_end_of_its_registration() {
        let cx = Context::from_waker(Waker::noop());
        let (end, result) = RegisterEnd::awaited();
        assert!(result.poll(&cx).is_pending() && end.is_wanted());
        end.finish(Ok(7));
        assert!(matches!(result.poll(&cx), Poll::Ready(Ok(7))));
        let (end, result) = RegisterEnd::awaited();
        drop(end);
        match result.poll(&cx) {
            Poll::Ready(ended) => assert_eq!(kind(ended), ErrorKind::DriverGone),
            Poll::Pending => panic!("what is dropped reports that"),
        }
        let (end, result) = RegisterEnd::awaited();
        drop(result);
        assert!(!end.is_wanted());
        end.finish(Ok(7));
    }

    /// Ruling 7: "If the future is dropped, the registration is undone": also one that has ended,
    /// whose result the future did not take, and one that ends later.
    #[test]
    fn a_result_that_no_future_takes_is_dropped() {
        for finish_first in [true, false] {
            let region = Arc::new(());
            let (end, result) = RegisterEnd::awaited();
            let outcome = Ok(Arc::clone(&region));
            if finish_first {
                end.finish(outcome);
                drop(result);
            } else {
                drop(result);
                end.finish(outcome);
            }
            assert_eq!(Arc::strong_count(&region), 1);
        }
    }
}
