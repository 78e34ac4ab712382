//! The future of a registration.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::eq::EventSlot;
use crate::error::{Error, ErrorKind, Result};
use crate::mr::{KEY_NOT_AVAILABLE, MemoryRegion};
use crate::op_error::Failed;

use super::Domain;
use super::handle::RegionHandle;
use super::job::{Job, register_now, start_job};
use super::request::{Buffers, Request, give_buffers, take_buffers};

/// The future of a registration.
///
/// # Cancel safety
/// Dropped before its end, the registration is undone: the region's key stops working, the buffers
/// are freed, and if a context was given one Canceled error event carries it. Once it has ended,
/// its `MrComplete` event holds the region too: that must be read or dropped as well.
#[must_use = "a registration that is dropped is undone"]
pub struct Registration<B: Buffers, R: RegionHandle = MemoryRegion> {
    state: State<B, R>,
}

enum State<B, R> {
    /// Synchronous: ends at its first poll.
    Now(Option<(Domain, B, Request)>),
    /// Waits for a slot in the event queue.
    AwaitSlot {
        reserve: Pin<Box<dyn Future<Output = Option<EventSlot>> + Send>>,
        parts: Option<(Domain, B, Request)>,
    },
    /// The job runs.
    Running(Arc<Job<R>>),
    /// There was nothing to wait for, or it could not be submitted.
    Ended(Option<Result<R, Failed<B>>>),
    Done,
}

impl<B: Buffers, R: RegionHandle> Registration<B, R> {
    /// Ends at its first poll: the domain registers synchronously.
    pub(super) fn at_first_poll(domain: Domain, buffers: B, request: Request) -> Self {
        Registration {
            state: State::Now(Some((domain, buffers, request))),
        }
    }

    /// Submits; the work runs beside the runtime.
    pub(super) fn begin(domain: Domain, buffers: B, request: Request) -> Self {
        Registration {
            state: Self::submit(domain, buffers, request),
        }
    }

    fn submit(domain: Domain, buffers: B, request: Request) -> State<B, R> {
        // Without a context, or with nobody left to read it, there is no event.
        let Some(events) = request.context.and_then(|_| domain.event_queue()) else {
            return Self::run(domain, buffers, request, None);
        };
        match events.try_reserve() {
            Some(slot) => Self::run(domain, buffers, request, Some(slot)),
            None => {
                let reserve = events.reserve();
                State::AwaitSlot {
                    reserve: Box::pin(reserve),
                    parts: Some((domain, buffers, request)),
                }
            }
        }
    }

    fn run(domain: Domain, buffers: B, request: Request, slot: Option<EventSlot>) -> State<B, R> {
        match take_buffers(&domain, buffers, &request) {
            // There is no work, and no event to be written.
            Ok(held) if slot.is_none() && !domain.looks_at_pages(&request) => {
                let made = register_now(&domain, held, &request);
                State::Ended(Some(made.map_err(give_buffers)))
            }
            Ok(held) => {
                let job = Arc::new(Job::new(slot, request.context, true));
                start_job(domain, held, request, Arc::clone(&job));
                State::Running(job)
            }
            // The slot goes back unused: a submission that fails writes no event.
            Err(failed) => State::Ended(Some(Err(failed))),
        }
    }
}

impl<B: Buffers, R: RegionHandle> Registration<B, R> {
    /// The key of the region, once the registration has completed; until then, and in a domain with
    /// [`MrMode::RAW`](crate::MrMode::RAW), [`KEY_NOT_AVAILABLE`].
    pub fn key(&self) -> u64 {
        match &self.state {
            State::Running(job) => job.key(),
            State::Ended(Some(Ok(region))) => region.region_key(),
            _ => KEY_NOT_AVAILABLE,
        }
    }
}

impl<B: Buffers, R: RegionHandle> Future for Registration<B, R> {
    type Output = Result<R, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Now(parts) => {
                    let (domain, buffers, request) = parts
                        .take()
                        .expect("a synchronous registration is polled once");
                    this.state = State::Done;
                    let result = take_buffers(&domain, buffers, &request).and_then(|held| {
                        register_now(&domain, held, &request).map_err(give_buffers)
                    });
                    return Poll::Ready(result);
                }
                State::AwaitSlot { reserve, parts } => {
                    let Poll::Ready(slot) = reserve.as_mut().poll(cx) else {
                        return Poll::Pending;
                    };
                    let (domain, buffers, request) =
                        parts.take().expect("the parts wait for the slot");
                    let Some(slot) = slot else {
                        let error = Error::new(ErrorKind::BadState, "the event queue was closed");
                        this.state = State::Done;
                        return Poll::Ready(Err(Failed::new(error, Some(buffers))));
                    };
                    this.state = Self::run(domain, buffers, request, Some(slot));
                }
                State::Running(job) => {
                    let Poll::Ready(result) = job.poll(cx.waker()) else {
                        return Poll::Pending;
                    };
                    this.state = State::Done;
                    return Poll::Ready(result.map_err(give_buffers));
                }
                State::Ended(result) => {
                    let result = result.take().expect("it is polled once after its end");
                    this.state = State::Done;
                    return Poll::Ready(result);
                }
                State::Done => panic!("a registration was polled after it ended"),
            }
        }
    }
}

impl<B: Buffers, R: RegionHandle> Drop for Registration<B, R> {
    fn drop(&mut self) {
        if let State::Running(job) = &self.state {
            job.abandon();
        }
    }
}

// Nothing in a registration is pinned: the boxed future is on its own.
impl<B: Buffers, R: RegionHandle> Unpin for Registration<B, R> {}

impl<B: Buffers, R: RegionHandle> fmt::Debug for Registration<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}
