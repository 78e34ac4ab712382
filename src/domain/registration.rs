//! The future of a registration.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use crate::eq::EventSlot;
use crate::error::{ErrorKind, Result};
use crate::mr::{KEY_NOT_AVAILABLE, MemoryRegion};
use crate::op_error::Failed;
use crate::sync::ProgressWaiter;

use super::handle::RegionHandle;
use super::register::Register;
use super::register_task::{AwaitedResult, RegisterEnd, start_task};
use super::request::{PageWork, RegisterBufs, give_buffers, take_buffers};

/// The future of a registration.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::future::IntoFuture;
/// use tokio_fabric::domain::Registration;
/// use tokio_fabric::testing::Net;
///
/// let peer = Net::loopback().peer()?;
/// let registration: Registration<Vec<u8>> = peer.domain.register(vec![0u8; 64]).into_future();
/// let region = registration.await?;
/// assert_eq!(region.len(), 64);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// If the future is dropped before the registration has completed, the registration is undone: the
/// region's key becomes invalid, the buffers are freed, and if a context was given, an error event
/// ([`ErrorKind::Canceled`]) carries it. After completion the `MrComplete` event holds the region
/// too, and must be read or dropped as well.
#[must_use = "a registration that is dropped is undone"]
pub struct Registration<B: RegisterBufs, R: RegionHandle = MemoryRegion<B>> {
    /// Small, since a future is moved before it is polled.
    state: State<B, R>,
}

/// ```text
///   Deferred ──first poll──────────────┐
///   AwaitSlot ──slot──> Running ──end──┼──> Done
///                       Ready ──poll───┘
/// ```
/// A registration begins in any of the first four.
enum State<B: RegisterBufs, R: RegionHandle> {
    /// Works on the pages within the first poll.
    Deferred(Box<Register<B, R>>),
    /// Waits for a slot in the event queue.
    AwaitSlot(Box<AwaitSlot<B, R>>),
    /// A task works on the pages, or has only the event to write.
    Running(Box<Running<R>>),
    /// The registration ended within its submission.
    Ready(Result<R, Box<Failed<B>>>),
    Done,
}

struct Running<R: RegionHandle> {
    result: Arc<AwaitedResult<R>>,
    waiter: ProgressWaiter,
}

struct AwaitSlot<B: RegisterBufs, R: RegionHandle> {
    reserve: Pin<Box<dyn Future<Output = Option<EventSlot>> + Send>>,
    register: Register<B, R>,
}

impl<B: RegisterBufs, R: RegionHandle> Registration<B, R> {
    /// Submits the registration.
    pub(super) fn begin(register: Register<B, R>) -> Self {
        let (domain, request) = (&register.domain, &register.request);
        let is_bound = domain.registers_asynchronously();
        let has_event = is_bound && request.context.is_some();
        let state = if !has_event && domain.page_work(request) == PageWork::None {
            // There are no pages to work on and no event to write.
            State::Ready(register.within().map_err(Box::new))
        } else if is_bound {
            Self::submit(register)
        } else {
            State::Deferred(Box::new(register))
        };
        Registration { state }
    }

    #[cold]
    fn submit(register: Register<B, R>) -> State<B, R> {
        // Without a context, or without a handle of the event queue, there is no event.
        let context = register.request.context;
        let Some(events) = context.and_then(|_| register.domain.event_queue()) else {
            return Self::run(register, None);
        };
        match events.try_reserve() {
            Some(slot) => Self::run(register, Some(slot)),
            None => State::AwaitSlot(Box::new(AwaitSlot {
                reserve: Box::pin(events.reserve()),
                register,
            })),
        }
    }

    fn run(register: Register<B, R>, slot: Option<EventSlot>) -> State<B, R> {
        let Register {
            domain,
            buffers,
            request,
            ..
        } = register;
        match take_buffers(&domain, buffers, &request) {
            Ok(owned) => {
                let (mut end, result) = RegisterEnd::awaited();
                if let Some((slot, context)) = slot.zip(request.context) {
                    end = end.with_event(slot, context);
                }
                let waiter = ProgressWaiter::new(domain.progress_by_hand());
                start_task(domain, owned, request, R::create, end);
                State::Running(Box::new(Running { result, waiter }))
            }
            // The slot goes back unused: a submission that fails writes no event.
            Err(failed) => State::Ready(Err(Box::new(failed))),
        }
    }
}

impl<B: RegisterBufs, R: RegionHandle> Registration<B, R> {
    /// The key of the region, once the registration has completed; until then, and in a domain with
    /// [`MrMode::RAW`](crate::info::MrMode::RAW), [`KEY_NOT_AVAILABLE`].
    pub fn key(&self) -> u64 {
        match &self.state {
            State::Running(running) => running.result.key(),
            State::Ready(Ok(region)) => region.region_key(),
            _ => KEY_NOT_AVAILABLE,
        }
    }
}

impl<B: RegisterBufs, R: RegionHandle> Future for Registration<B, R> {
    type Output = Result<R, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let ended = match mem::replace(&mut self.state, State::Done) {
            State::Ready(ended) => ended.map_err(|failed| *failed),
            state => ready!(self.poll_others(state, cx)),
        };
        budget.made_progress();
        Poll::Ready(ended)
    }
}

impl<B: RegisterBufs, R: RegionHandle> Registration<B, R> {
    #[cold]
    fn poll_others(
        &mut self,
        state: State<B, R>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R, Failed<B>>> {
        match state {
            State::Ready(ended) => Poll::Ready(ended.map_err(|failed| *failed)),
            State::Deferred(register) => Poll::Ready(register.within()),
            State::AwaitSlot(mut waiting) => match waiting.reserve.as_mut().poll(cx) {
                Poll::Pending => {
                    self.state = State::AwaitSlot(waiting);
                    Poll::Pending
                }
                Poll::Ready(Some(slot)) => {
                    let state = Self::run(waiting.register, Some(slot));
                    self.poll_others(state, cx)
                }
                Poll::Ready(None) => {
                    let what = "the event queue was closed";
                    let failed = waiting.register.refused(ErrorKind::BadState, what);
                    Poll::Ready(Err(failed))
                }
            },
            State::Running(mut running) => {
                let Running { result, waiter } = &mut *running;
                match waiter.poll(cx, |cx| result.poll(cx)) {
                    Poll::Pending => {
                        self.state = State::Running(running);
                        Poll::Pending
                    }
                    Poll::Ready(result) => Poll::Ready(result.map_err(give_buffers)),
                }
            }
            State::Done => panic!("a registration was polled after it ended"),
        }
    }
}

// Nothing in a registration is pinned: the boxed future has an allocation of its own.
impl<B: RegisterBufs, R: RegionHandle> Unpin for Registration<B, R> {}

impl<B: RegisterBufs, R: RegionHandle> fmt::Debug for Registration<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}
