//! The steps of a registration, within the call or a chunk at a time on a blocking thread, and the
//! delivery of its result.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::buf::{OwnedBuffers, RegionMemory};
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::UserContext;
use crate::limits::FAULT_CHUNK;
use crate::mr::{PreparedRegion, RegisterError, prepare};
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

/// The destinations to which the end of a registration is reported: its future, an event, or both.
/// Reports `DriverGone` if it is dropped without a report.
pub(super) struct RegisterEnd<R> {
    /// `None` if no future awaits the registration, or once it was reported.
    future: Option<oneshot::Sender<RegisterResult<R>>>,
    event: Option<EndEvent<R>>,
}

struct EndEvent<R> {
    slot: EventSlot,
    context: UserContext,
    /// Makes the event of a registration that succeeded.
    complete: fn(&R, UserContext) -> Event,
}

impl<R> RegisterEnd<R> {
    /// Creates the end of a registration that a future awaits. The future gets the result from the
    /// receiver; dropping the receiver undoes the registration.
    pub(super) fn awaited() -> (Self, oneshot::Receiver<RegisterResult<R>>) {
        let (future, result) = oneshot::channel();
        let end = RegisterEnd {
            future: Some(future),
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
        (self.future.as_ref()).is_none_or(|future| !future.is_closed())
    }

    fn finish(mut self, outcome: RegisterResult<R>) {
        self.report(outcome);
    }

    /// Writes the event before the future is ready: a task that awaited it finds the event.
    fn report(&mut self, outcome: RegisterResult<R>) {
        let mut wakes = WakeList::new();
        let is_wanted = self.is_wanted();
        if let Some(EndEvent {
            slot,
            context,
            complete,
        }) = self.event.take()
        {
            let event = match &outcome {
                _ if !is_wanted => failure(canceled(), context),
                Ok(region) => complete(region, context),
                Err(refused) => failure(refused.error.clone(), context),
            };
            slot.fill(event, &mut wakes);
        }
        // If the future was dropped, the region is dropped here, which removes its key.
        let _unwanted = self.future.take().map(|future| future.send(outcome));
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

/// Runs a registration, on a blocking thread if there is work with its pages.
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
/// one. A pool whose runtime has ended drops the work, whose end reports that.
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
    use futures::FutureExt;

    use super::*;

    fn kind(result: RegisterResult<u8>) -> ErrorKind {
        result.unwrap_err().error.kind()
    }

    /// `RegisterEnd`: it is reported once, however it comes to its end.
    #[test]
    fn a_future_gets_the_end_of_its_registration() {
        let (end, mut result) = RegisterEnd::awaited();
        assert!((&mut result).now_or_never().is_none() && end.is_wanted());
        end.finish(Ok(7));
        assert!(matches!(result.now_or_never(), Some(Ok(Ok(7)))));
        let (end, result) = RegisterEnd::awaited();
        drop(end);
        let ended = result.now_or_never().unwrap().unwrap();
        assert_eq!(kind(ended), ErrorKind::DriverGone);
        let (end, result) = RegisterEnd::awaited();
        drop(result);
        assert!(!end.is_wanted());
        end.finish(Ok(7));
    }
}
