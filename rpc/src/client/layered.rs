//! A client whose calls pass through layers of `tower`.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::{Call, FailedCall, LendingCall, Loan};
use crate::drive::within_runtime;
use crate::limits::LAYERS_GRACE;
#[cfg(doc)]
use crate::status::Code;
use crate::status::{CallFailure, Status};

/// The path by which a generated client sends its calls: directly over its channel
/// ([`DirectPath`]), or through a service ([`LayeredPath`]).
///
/// Sealed.
pub trait CallPath: Clone + sealed::Sealed {
    /// The value that a method returns for a call of type `C`.
    type CallOf<C>;

    #[doc(hidden)]
    fn make<C>(&self, call: C) -> Self::CallOf<C>;
}

/// A call that has not begun: a [`Call`] or a [`LendingCall`]. Sealed.
pub trait CallDescription: sealed::Description {}

impl<T, E: From<Status>> CallDescription for Call<T, E> {}
impl<T, E: From<Status> + CallFailure, L: Loan> CallDescription for LendingCall<T, E, L> {}

macro_rules! forward {
    ($call:ident) => {
        fn runtime(&self) -> &Handle {
            $call::runtime(self)
        }

        #[cfg(feature = "tower")]
        fn attempt_again(&mut self, begun: Instant, started: crate::status::Started) {
            $call::attempt_again(self, begun, started);
        }

        #[cfg(feature = "tower")]
        fn can_be_made_again(&self) -> bool {
            $call::can_be_made_again(self)
        }

        #[cfg(feature = "tower")]
        fn method(&self) -> &'static crate::method::Method {
            $call::method(self)
        }

        #[cfg(feature = "tower")]
        fn domain(&self) -> &tokio_fabric::Domain {
            $call::domain(self)
        }
    };
}

impl<T, E: From<Status>> sealed::Description for Call<T, E> {
    type Error = E;

    fn fix_deadline(&mut self, begun: Instant) -> Option<Instant> {
        Call::fix_deadline(self, begun)
    }

    fn fail_late(mut self, what: &'static str, begun: Instant) -> E {
        self.late(what, begun).into()
    }

    fn overdue(&self) -> sealed::Overdue<E> {
        sealed::Overdue {
            record: self.record(),
            fail: E::from,
        }
    }

    forward!(Call);
}

impl<T, E: From<Status> + CallFailure, L: Loan> sealed::Description for LendingCall<T, E, L> {
    type Error = FailedCall<L::Buffers, E>;

    fn fix_deadline(&mut self, begun: Instant) -> Option<Instant> {
        LendingCall::fix_deadline(self, begun)
    }

    fn fail_late(self, what: &'static str, begun: Instant) -> Self::Error {
        LendingCall::fail_late(self, what, begun)
    }

    /// A layer has the call, and its memory with it; the layer frees the memory.
    fn overdue(&self) -> sealed::Overdue<Self::Error> {
        sealed::Overdue {
            record: self.record(),
            fail: |status| FailedCall::without_buffers(status.into()),
        }
    }

    forward!(LendingCall);
}

mod sealed {
    use tokio::runtime::Handle;
    use tokio::time::Instant;

    use crate::client::request::CallRecord;
    use crate::status::{Code, Status};

    pub trait Description {
        type Error;

        /// Returns the runtime of the call's channel.
        fn runtime(&self) -> &Handle;
        /// Fixes the deadline, counted from `begun`, and returns it.
        fn fix_deadline(&mut self, begun: Instant) -> Option<Instant>;
        /// Ends the call, which has waited since `begun` until its deadline and was not sent.
        fn fail_late(self, what: &'static str, begun: Instant) -> Self::Error;
        /// Returns the value that fails the call when layers keep it beyond its deadline.
        fn overdue(&self) -> Overdue<Self::Error>;
        /// Makes the call and its clones a further attempt. `begun`: when the first attempt began;
        /// `started`: whether the last attempt started.
        #[cfg(feature = "tower")]
        fn attempt_again(&mut self, begun: Instant, started: crate::status::Started);
        /// Returns whether a clone can make the call again: a stream can be sent only once.
        #[cfg(feature = "tower")]
        fn can_be_made_again(&self) -> bool;
        #[cfg(feature = "tower")]
        fn method(&self) -> &'static crate::method::Method;
        /// Returns the domain of the call's channel.
        #[cfg(feature = "tower")]
        fn domain(&self) -> &tokio_fabric::Domain;
    }

    /// The parts of a call that are needed to fail it while a layer holds the call.
    #[allow(missing_debug_implementations, reason = "it is not public")]
    pub struct Overdue<E> {
        pub(in crate::client) record: CallRecord,
        pub(in crate::client) fail: fn(Status) -> E,
    }

    impl<E> Overdue<E> {
        pub(in crate::client) fn fail(mut self, begun: Instant, deadline: Instant) -> E {
            self.record.begun = Some(begun);
            let what = "the layers kept it";
            let late = Status::maybe_ran(Code::DeadlineExceeded, what);
            let mut late = self.record.late(late);
            self.record.describe(&mut late, None, None, Some(deadline));
            (self.fail)(late)
        }
    }

    pub trait Sealed {}
    impl Sealed for super::DirectPath {}
    impl<S> Sealed for super::LayeredPath<S> {}
}

/// Calls are sent over the client's channel, without a service in between.
#[derive(Clone, Copy, Debug)]
pub struct DirectPath;

impl CallPath for DirectPath {
    type CallOf<C> = C;

    fn make<C>(&self, call: C) -> C {
        call
    }
}

/// Calls pass through a `tower_service::Service`, such as [`ChannelService`](crate::ChannelService)
/// in layers of `tower`; set by a client's `layered(service)`.
///
/// The service decides which channel sends them.
///
/// ```
/// use tokio_fabric_rpc::retry;
/// use tower::ServiceBuilder;
/// # use std::time::Duration;
/// # use tokio_fabric_rpc::{Cx, Result, service, testing};
/// # #[service] trait Double { async fn double(&self, cx: &Cx, number: u32) -> Result<u32>; }
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// let service = ServiceBuilder::new()
///     .concurrency_limit(16)
///     .retry(retry::NotStarted::new())
///     .service(channel.service());
/// let client = DoubleClient::over(channel).layered(service);
/// assert_eq!(client.double(21).await?, 42);
/// let soon = client.double(4).with(|call| call.deadline(Duration::from_millis(50)));
/// assert_eq!(soon.await?, 8);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LayeredPath<S>(S);

impl<S> LayeredPath<S> {
    #[doc(hidden)]
    pub fn new(service: S) -> LayeredPath<S> {
        LayeredPath(service)
    }
}

impl<S: Clone> CallPath for LayeredPath<S> {
    type CallOf<C> = LayeredCall<S, C>;

    fn make<C>(&self, call: C) -> LayeredCall<S, C> {
        LayeredCall {
            service: self.0.clone(),
            call,
        }
    }
}

impl<S> fmt::Debug for LayeredPath<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredPath").finish_non_exhaustive()
    }
}

/// A call that will pass through a service.
///
/// Awaiting it waits until a clone of the service is ready, makes the call, and returns the
/// service's response. The call's deadline runs from the first poll, so that it covers the wait. If
/// the service is not ready by then, the call fails with [`Code::DeadlineExceeded`], as not
/// started; the error names the server of the client's own channel, and why that channel is not
/// connected if it is not. A call that layers keep beyond its deadline, for instance in a queue,
/// ends 100 ms later, as possibly run; memory that the call lends is then freed, and does not come
/// back.
///
/// # Cancel safety
/// Dropping the future cancels the call, unless a layer runs the call elsewhere.
#[must_use = "nothing is called until this is awaited"]
pub struct LayeredCall<S, C> {
    service: S,
    call: C,
}

impl<S, C> LayeredCall<S, C> {
    /// Configures the call, which is a [`Call`](crate::Call) or a
    /// [`LendingCall`](crate::LendingCall): its deadline, its metadata. A service must take the
    /// kind of call that the method returns. Layers that may make a call twice take a `LendingCall`
    /// only if its memory can be cloned, such as `Bytes` lent for reading.
    pub fn with(mut self, set: impl FnOnce(C) -> C) -> Self {
        self.call = set(self.call);
        self
    }
}

impl<S, C> IntoFuture for LayeredCall<S, C>
where
    S: Service<C> + Send + 'static,
    S::Future: Send,
    S::Error: From<C::Error>,
    C: CallDescription + Send + 'static,
{
    type Output = Result<S::Response, S::Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Waits until the service is ready, then makes the call.
    fn into_future(self) -> Self::IntoFuture {
        let LayeredCall {
            mut service,
            mut call,
        } = self;
        Box::pin(async move {
            let begun = Instant::now();
            let deadline = call.fix_deadline(begun);
            let runtime = call.runtime().clone();
            let ready = poll_fn(|task| service.poll_ready(task));
            let is_ready = match deadline {
                Some(deadline) => {
                    let ready = async { timeout_at(deadline, ready).await };
                    match within_runtime(runtime.clone(), ready).await {
                        Ok(ready) => ready.map(|()| true),
                        Err(_) => Ok(false),
                    }
                }
                None => ready.await.map(|()| true),
            };
            if !is_ready? {
                let what = "it waited for a service that is ready";
                return Err(call.fail_late(what, begun).into());
            }
            let overdue = deadline.map(|deadline| (deadline, call.overdue()));
            let end = service.call(call);
            let Some((deadline, overdue)) = overdue else {
                return end.await;
            };
            let last = deadline.checked_add(LAYERS_GRACE).unwrap_or(deadline);
            let end = async { timeout_at(last, end).await };
            match within_runtime(runtime, end).await {
                Ok(end) => end,
                Err(_) => Err(overdue.fail(begun, deadline).into()),
            }
        })
    }
}

impl<S, C: fmt::Debug> fmt::Debug for LayeredCall<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LayeredCall").field(&self.call).finish()
    }
}
