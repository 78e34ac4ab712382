//! The future of an insertion.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::AddressVector;
use super::insert::{Inserted, Sealed};
use super::insertion_task::{InsertionTask, Request};
use crate::eq::EventReserveMany;
use crate::error::{Error, ErrorKind, Result};
use crate::id::FabricAddr;
use crate::sync::{ProgressWaiter, WaiterKey};

/// The future of an insertion, which you get by awaiting an [`Insert`](super::Insert) or by its
/// `into_future`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::future::IntoFuture;
/// use tokio_fabric::av::{FabricAddr, Insertion};
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let insertion: Insertion<FabricAddr> = peers.insert_service("localhost", "7471").into_future();
/// let peer = insertion.await?; // The name was looked up on a blocking thread.
/// assert_eq!(peers.lookup(peer)?.port(), 7471);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// If the future is dropped before it completes, the insertion is undone and no address is
/// inserted. If an asynchronous vector was given a context, an error event for each address
/// ([`ErrorKind::Canceled`]) and the `AvComplete` event carry it. Once these events are written,
/// the addresses stay.
#[must_use = "an insertion that is dropped is undone"]
pub struct Insertion<T: Inserted> {
    /// `None` if the insertion could not begin.
    vector: Option<AddressVector>,
    state: State,
    waiter: ProgressWaiter,
    /// The key of the insertion among those that wait.
    key: Option<WaiterKey>,
    _answer: PhantomData<fn() -> T>,
}

enum State {
    /// Waits for slots of the event queue.
    AwaitSlots {
        reserve: EventReserveMany,
        parts: Option<(AddressVector, Request)>,
    },
    /// Lookups are running, or the result is available.
    Running(Arc<InsertionTask>),
    /// The insertion could not begin.
    Refused(Error),
    Done,
}

impl<T: Inserted> Insertion<T> {
    pub(super) fn begin(checked: Result<(AddressVector, Request)>) -> Self {
        let vector = checked.as_ref().map(|(vector, _)| vector.clone()).ok();
        let state = match checked {
            Ok((vector, request)) => submit(vector, request),
            Err(error) => State::Refused(error),
        };
        Insertion {
            vector,
            state,
            waiter: ProgressWaiter::default(),
            key: None,
            _answer: PhantomData,
        }
    }
}

fn submit(vector: AddressVector, request: Request) -> State {
    let wanted = match vector.events_of(&request) {
        Ok(wanted) => wanted,
        Err(error) => return State::Refused(error),
    };
    // Without a context, or without a handle of the queue, there are no events.
    let wanted = wanted.and_then(|wanted| Some((wanted.queue?, wanted.count)));
    let Some((events, count)) = wanted.filter(|_| request.context.is_some()) else {
        return start(vector, request, Vec::new());
    };
    match events.try_reserve_many(count) {
        Some(slots) => start(vector, request, slots),
        None => State::AwaitSlots {
            reserve: events.reserve_many(count),
            parts: Some((vector, request)),
        },
    }
}

fn start(vector: AddressVector, request: Request, slots: Vec<crate::eq::EventSlot>) -> State {
    match InsertionTask::start(vector, request, slots, true) {
        Ok(task) => State::Running(task),
        Err(error) => State::Refused(error),
    }
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Result<FabricAddr>>>> {
        loop {
            *self = match self {
                State::AwaitSlots { reserve, parts } => {
                    let slots = ready!(Pin::new(reserve).poll(cx));
                    let (vector, request) = parts.take().expect("the parts wait for the slots");
                    match slots {
                        Some(slots) => start(vector, request, slots),
                        None => {
                            let message = "the event queue was closed";
                            State::Refused(Error::new(ErrorKind::BadState, message))
                        }
                    }
                }
                State::Running(task) => return task.poll(cx.waker()).map(Ok),
                State::Refused(error) => return Poll::Ready(Err(error.clone())),
                State::Done => panic!("an insertion was polled after it ended"),
            };
        }
    }
}

impl<T: Inserted> Future for Insertion<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let Insertion {
            vector,
            state,
            waiter,
            key,
            ..
        } = &mut *self;
        let results = ready!(match vector {
            None => state.poll(cx),
            Some(vector) => waiter.poll_reading(&vector.inner.driven, cx, |cx| {
                let polled = state.poll(cx);
                if polled.is_pending() {
                    vector.inner.wait(key, cx.waker());
                }
                polled
            }),
        });
        budget.made_progress();
        self.state = State::Done;
        Poll::Ready(results.and_then(|results| T::of(results, Sealed)))
    }
}

impl<T: Inserted> Drop for Insertion<T> {
    fn drop(&mut self) {
        if let Some(vector) = &self.vector {
            vector.inner.wait_no_longer(&mut self.key);
        }
        if let State::Running(task) = &self.state {
            task.abandon();
        }
    }
}

impl<T: Inserted> fmt::Debug for Insertion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insertion").finish_non_exhaustive()
    }
}

const _: fn() = || {
    fn is_unpin<T: Unpin>() {}
    is_unpin::<Insertion<FabricAddr>>();
};
