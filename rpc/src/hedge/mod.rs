//! A second attempt of calls that take long, for layers of `tower` (feature `tower`).

mod latencies;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::time::{Instant, timeout};
use tower::retry::budget::{Budget, TpsBudget};
use tower_layer::Layer;
use tower_service::Service;

use crate::client::{CallDescription, until};
use crate::drive::within_runtime;
use crate::limits::{HEDGE_BUDGET_PER_SECOND, HEDGE_BUDGET_SHARE, RETRY_BUDGET_TIME};
use crate::status::Started;

use latencies::Latencies;

/// A layer that makes a call a second time if its answer takes long, and returns the first result:
/// hedging, against the latency of the slowest of many servers.
///
/// It hedges calls of `#[rpc(idempotent)]` methods that send no stream and can be cloned: calls
/// that lend nothing, or lend [`Bytes`](bytes::Bytes) or other shared memory for reading. All other
/// calls pass through. Both attempts end by the call's deadline. The result of the attempt that
/// succeeds first is returned, and the other attempt is cancelled: its handler is dropped, and its
/// server can no longer access memory lent to it. If both fail, the error of the first attempt is
/// returned.
///
/// A second attempt of a call that writes sends its bytes again: make the calls that are worth
/// hedging, such as reads, over a separate client with these layers (`layered`). Without a second
/// server the second attempt uses the same connection.
///
/// A budget, which clones share, limits the load that hedging adds: by default a tenth of the
/// calls, plus one per second. Over a [`Balance`](crate::Balance) the second attempt usually goes
/// to another server, since the first server has an outstanding call.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric_rpc::{Balance, HedgeLayer};
/// use tower::ServiceBuilder;
/// # use tokio_fabric_rpc::{Cx, Result, service, testing};
/// # #[service] trait Double {
/// #     #[rpc(idempotent)]
/// #     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
/// # }
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (one, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// # let (other, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// let service = ServiceBuilder::new()
///     .layer(HedgeLayer::after(Duration::from_millis(20)))
///     .service(Balance::over([one.clone(), other]));
/// let client = DoubleClient::over(one).layered(service);
/// assert_eq!(client.double(21).await?, 42);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct HedgeLayer(Arc<Shared>);

/// The state that all clones share.
struct Shared {
    delay: Delay,
    budget: Arc<TpsBudget>,
    /// The times of the calls of each method.
    latencies: Mutex<BTreeMap<u32, Latencies>>,
}

/// The delay from the first attempt to the second.
#[derive(Clone, Copy)]
enum Delay {
    After(Duration),
    Percentile(f64),
}

impl HedgeLayer {
    /// Makes the second attempt this long after the first.
    pub fn after(delay: Duration) -> HedgeLayer {
        HedgeLayer::new(Delay::After(delay))
    }

    /// Makes the second attempt after the time in which this share of the method's calls ends, 0 to
    /// 1, such as 0.95. The share is measured over the last 10 to 20 s; methods with fewer than 20
    /// calls in this time are not hedged.
    ///
    /// # Panics
    /// If the share is not from 0 to 1.
    pub fn percentile(share: f64) -> HedgeLayer {
        assert!((0.0..=1.0).contains(&share), "a share of {share}: 0 to 1");
        HedgeLayer::new(Delay::Percentile(share))
    }

    fn new(delay: Delay) -> HedgeLayer {
        let budget = TpsBudget::new(
            RETRY_BUDGET_TIME,
            HEDGE_BUDGET_PER_SECOND,
            HEDGE_BUDGET_SHARE,
        );
        HedgeLayer(Arc::new(Shared {
            delay,
            budget: Arc::new(budget),
            latencies: Mutex::default(),
        }))
    }

    /// Sets the budget.
    pub fn budget(self, budget: Arc<TpsBudget>) -> HedgeLayer {
        HedgeLayer(Arc::new(Shared {
            delay: self.0.delay,
            budget,
            latencies: Mutex::default(),
        }))
    }
}

impl fmt::Debug for HedgeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HedgeLayer");
        match self.0.delay {
            Delay::After(delay) => shown.field("after", &delay),
            Delay::Percentile(share) => shown.field("percentile", &share),
        };
        shown.finish_non_exhaustive()
    }
}

impl<S> Layer<S> for HedgeLayer {
    type Service = Hedge<S>;

    fn layer(&self, inner: S) -> Hedge<S> {
        Hedge {
            inner,
            shared: Arc::clone(&self.0),
        }
    }
}

impl Shared {
    /// Returns the delay of a second attempt for this method, if any.
    fn delay(&self, method: u32) -> Option<Duration> {
        match self.delay {
            Delay::After(delay) => Some(delay),
            Delay::Percentile(share) => {
                let latencies = self.latencies.lock();
                let latencies = latencies.unwrap_or_else(PoisonError::into_inner);
                latencies.get(&method)?.percentile(share)
            }
        }
    }

    fn record(&self, method: u32, took: Duration) {
        self.budget.deposit();
        if let Delay::Percentile(_) = self.delay {
            let latencies = self.latencies.lock();
            let mut latencies = latencies.unwrap_or_else(PoisonError::into_inner);
            let of_method = latencies.entry(method).or_default();
            of_method.record(took, Instant::now());
        }
    }
}

/// The service of a [`HedgeLayer`].
#[derive(Clone)]
pub struct Hedge<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for Hedge<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hedge").field(&self.inner).finish()
    }
}

type Attempt<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, C> Service<C> for Hedge<S>
where
    S: Service<C> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    C: CallDescription + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Attempt<S::Response, S::Error>;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: C) -> Self::Future {
        let is_hedged = call.method().idempotent && call.can_be_made_again();
        let begun = Instant::now();
        let again = is_hedged.then(|| {
            let deadline = call.fix_deadline(begun);
            let mut second = call.clone();
            second.attempt_again(begun, Started::MaybeRan);
            (self.inner.clone(), second, deadline)
        });
        let (method, runtime) = (call.method().id, call.runtime().clone());
        let first = self.inner.call(call);
        let Some((mut other, call, deadline)) = again else {
            return Box::pin(first);
        };
        let shared = Arc::clone(&self.shared);
        let second = async move {
            match until(deadline, poll_fn(|cx| other.poll_ready(cx))).await {
                Some(Ok(())) => Some(other.call(call).await),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            }
        };
        Box::pin(within_runtime(runtime, async move {
            let end = hedge(first, second, shared.delay(method), &shared.budget).await;
            if end.is_ok() {
                shared.record(method, begun.elapsed());
            }
            end
        }))
    }
}

/// Begins the second attempt after the delay, and returns the result of the attempt that succeeds
/// first. `second` returns `None` if it found no service in time.
async fn hedge<R, E>(
    first: impl Future<Output = Result<R, E>>,
    second: impl Future<Output = Option<Result<R, E>>>,
    delay: Option<Duration>,
    budget: &TpsBudget,
) -> Result<R, E> {
    let mut first = pin!(first);
    let Some(delay) = delay else {
        return first.await;
    };
    if let Ok(end) = timeout(delay, &mut first).await {
        return end;
    }
    if !budget.withdraw() {
        return first.await;
    }
    match select(first, pin!(second)).await {
        Either::Left((Err(error), second)) => match second.await {
            Some(Ok(response)) => Ok(response),
            _ => Err(error),
        },
        Either::Right((Some(Ok(response)), _)) => Ok(response),
        Either::Right((_, first)) => first.await,
        Either::Left((end, _)) => end,
    }
}
