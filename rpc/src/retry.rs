//! A retry policy for calls, to be used with `Retry` of `tower` (feature `tower`).

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::BoxError;
use tower::load_shed::error::Overloaded;
use tower::retry::Policy;
use tower::retry::budget::{Budget, TpsBudget};

use crate::client::{Call, CallDescription, FailedCall, LendingCall, Loan, random_of, shorten};
use crate::limits::{
    BACKOFF_JITTER, BACKOFF_MAX, BACKOFF_MIN, RETRIES_MAX, RETRY_BUDGET_PER_SECOND,
    RETRY_BUDGET_SHARE, RETRY_BUDGET_TIME,
};
use crate::status::{CallFailure, Code, Started, Status};

/// A policy for `tower`'s `Retry`.
///
/// It retries calls that have not started, and calls of `#[rpc(idempotent)]` methods that may have
/// run. The pause grows with each retry; if the server recommends a longer pause, that is used. The
/// call's deadline runs from the first attempt, and covers all attempts and pauses. A budget, which
/// clones share, limits the load that retries add within 10 s: by default to a fifth of the calls
/// that have succeeded, plus a reserve of 1,030, which is more than the calls in flight on a
/// connection (1,024 at most, 256 by default). So all these calls can be retried when a server
/// restarts; a policy for several servers that may restart together needs a
/// [`budget`](Self::budget) with a larger reserve. A call that exceeds the budget, or that has no
/// retry left, ends with its error, whose text says so.
///
/// Errors that another attempt would not change are passed on: a request that cannot be decoded or
/// is too large, or a caller that is not authorized. So is the error of a call that sends a stream,
/// since a stream can be read only once. Calls that lend memory are retried if the memory is shared
/// (`Bytes`, `Arc<[u8]>`, or static, lent for reading); other buffers come back with the error.
///
/// ```
/// use tokio_fabric_rpc::retry;
/// use tower::{ServiceBuilder, ServiceExt};
/// # use tokio_fabric_rpc::{Cx, Result, service, testing};
/// # #[service] trait Double { async fn double(&self, cx: &Cx, number: u32) -> Result<u32>; }
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// let client = DoubleClient::over(channel.clone());
/// let service = ServiceBuilder::new()
///     .retry(retry::NotStarted::new())
///     .service(channel.service());
/// assert_eq!(service.oneshot(client.double(21)).await?, 42);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct NotStarted {
    budget: Arc<TpsBudget>,
    /// Retries left for this call; the following fields belong to this call too.
    left: u32,
    /// The longest pause before the next retry.
    pause: Duration,
    /// The time of the first attempt.
    begun: Option<Instant>,
}

impl Default for NotStarted {
    fn default() -> Self {
        NotStarted::new()
    }
}

impl NotStarted {
    /// The policy with the default budget.
    pub fn new() -> NotStarted {
        let budget = TpsBudget::new(
            RETRY_BUDGET_TIME,
            RETRY_BUDGET_PER_SECOND,
            RETRY_BUDGET_SHARE,
        );
        NotStarted {
            budget: Arc::new(budget),
            left: RETRIES_MAX,
            pause: BACKOFF_MIN,
            begun: None,
        }
    }

    /// Sets the budget, for instance `TpsBudget::new(Duration::from_secs(10), 500, 0.2)`, whose
    /// reserve is 5,000 retries in 10 s.
    pub fn budget(mut self, budget: Arc<TpsBudget>) -> NotStarted {
        self.budget = budget;
        self
    }

    /// The number of retries per call. Default: 8.
    pub fn retries_max(mut self, retries: u32) -> NotStarted {
        self.left = retries;
        self
    }

    /// The pause before the first retry of a call. It doubles with each further retry, up to 5 s,
    /// and is shortened at random by up to half. Zero: only the pause that the server recommends.
    /// Default: 10 ms.
    pub fn pause(mut self, first: Duration) -> NotStarted {
        self.pause = first;
        self
    }

    /// Decides whether and when to repeat a failed call. `failed`: its status; `None`: a layer has
    /// refused the call.
    fn decide(
        &mut self,
        call: &mut impl CallDescription,
        failed: Option<&mut Status>,
    ) -> Option<Pause> {
        let (started, after) = match &failed {
            Some(status) => (status.started(), status.retry_after()),
            None => (Started::NotStarted, None),
        };
        let may = match started {
            Started::NotStarted => true,
            Started::MaybeRan => call.method().idempotent,
            Started::Ran => false,
        };
        if !may {
            return None;
        }
        if self.left == 0 {
            if let Some(status) = failed {
                status.add_to_message("no retry is left");
            }
            return None;
        }
        let now = Instant::now();
        let own = shorten(self.pause, BACKOFF_JITTER, random_of(call.domain()));
        let pause = after.map_or(own, |it| it.max(own));
        let deadline = call.fix_deadline(self.begun.unwrap_or(now));
        let is_late = deadline.is_some_and(|it| now.checked_add(pause).is_none_or(|at| it <= at));
        if is_late {
            return None;
        }
        if !self.budget.withdraw() {
            if let Some(status) = failed {
                status.add_to_message("the retry budget is used up");
            }
            return None;
        }
        self.left -= 1;
        call.attempt_again(self.begun.unwrap_or(now), started);
        self.pause = self.pause.saturating_mul(2).min(BACKOFF_MAX);
        Some(Pause(match pause.is_zero() {
            true => None,
            false => {
                // The timer belongs to the channel's runtime, whichever runtime polls it.
                let _entered = call.runtime().enter();
                Some(Box::pin(sleep(pause)))
            }
        }))
    }
}

impl fmt::Debug for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotStarted")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// The pause before a call is retried.
#[derive(Debug)]
pub struct Pause(Option<Pin<Box<tokio::time::Sleep>>>);

impl Future for Pause {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        match &mut self.get_mut().0 {
            Some(sleep) => sleep.as_mut().poll(task),
            None => std::task::Poll::Ready(()),
        }
    }
}

impl NotStarted {
    /// Decides by the result of a call.
    fn decide_by<R, E: CallFailure>(
        &mut self,
        call: &mut impl CallDescription,
        end: &mut Result<R, E>,
    ) -> Option<Pause> {
        let Err(error) = end else {
            self.budget.deposit();
            return None;
        };
        let status = error.status_mut().filter(|it| may_change(it))?;
        self.decide(call, Some(status))
    }

    /// Like [`decide_by`](Self::decide_by), for a layer that boxes its errors.
    fn decide_by_boxed<R, E: CallFailure + Error + 'static>(
        &mut self,
        call: &mut impl CallDescription,
        end: &mut Result<R, BoxError>,
    ) -> Option<Pause> {
        let Err(error) = end else {
            self.budget.deposit();
            return None;
        };
        if error.is::<Overloaded>() {
            return self.decide(call, None);
        }
        let status = error.downcast_mut::<E>()?.status_mut();
        let status = status.filter(|it| may_change(it))?;
        self.decide(call, Some(status))
    }

    fn clone_of<C: CallDescription + Clone>(&mut self, call: &C) -> Option<C> {
        self.begun.get_or_insert_with(Instant::now);
        call.can_be_made_again().then(|| call.clone())
    }
}

/// Returns whether another attempt may have another result.
fn may_change(status: &Status) -> bool {
    use Code::{BadRequest, PermissionDenied, TooLarge, Unauthenticated};
    ![BadRequest, PermissionDenied, TooLarge, Unauthenticated].contains(&status.code())
}

impl<T, E: CallFailure + From<Status>> Policy<Call<T, E>, T, E> for NotStarted {
    type Future = Pause;

    fn retry(&mut self, call: &mut Call<T, E>, end: &mut Result<T, E>) -> Option<Pause> {
        self.decide_by(call, end)
    }

    fn clone_request(&mut self, call: &Call<T, E>) -> Option<Call<T, E>> {
        self.clone_of(call)
    }
}

/// Supports layers that box their errors.
impl<T, E> Policy<Call<T, E>, T, BoxError> for NotStarted
where
    E: CallFailure + From<Status> + Error + 'static,
{
    type Future = Pause;

    fn retry(&mut self, call: &mut Call<T, E>, end: &mut Result<T, BoxError>) -> Option<Pause> {
        self.decide_by_boxed::<_, E>(call, end)
    }

    fn clone_request(&mut self, call: &Call<T, E>) -> Option<Call<T, E>> {
        self.clone_of(call)
    }
}

impl<T, E, L> Policy<LendingCall<T, E, L>, (T, L::Buffers), FailedCall<L::Buffers, E>>
    for NotStarted
where
    E: CallFailure + From<Status>,
    L: Loan + Clone,
{
    type Future = Pause;

    fn retry(
        &mut self,
        call: &mut LendingCall<T, E, L>,
        end: &mut Result<(T, L::Buffers), FailedCall<L::Buffers, E>>,
    ) -> Option<Pause> {
        self.decide_by(call, end)
    }

    fn clone_request(&mut self, call: &LendingCall<T, E, L>) -> Option<LendingCall<T, E, L>> {
        self.clone_of(call)
    }
}

/// Supports layers that box their errors.
impl<T, E, L> Policy<LendingCall<T, E, L>, (T, L::Buffers), BoxError> for NotStarted
where
    E: CallFailure + From<Status> + fmt::Debug + fmt::Display + 'static,
    L: Loan + Clone,
    L::Buffers: 'static,
{
    type Future = Pause;

    fn retry(
        &mut self,
        call: &mut LendingCall<T, E, L>,
        end: &mut Result<(T, L::Buffers), BoxError>,
    ) -> Option<Pause> {
        self.decide_by_boxed::<_, FailedCall<L::Buffers, E>>(call, end)
    }

    fn clone_request(&mut self, call: &LendingCall<T, E, L>) -> Option<LendingCall<T, E, L>> {
        self.clone_of(call)
    }
}
