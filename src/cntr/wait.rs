//! Waiting for a counter (`fi_cntr_wait` of `fi_cntr(3)`).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::Shared;
use crate::error::{Error, ErrorKind};
use crate::sync::ProgressWaiter;

/// The reason why a wait for a counter ended before its threshold was reached.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::cntr::CounterError;
/// use tokio_fabric::testing::Net;
///
/// let counter = Net::loopback().peer()?.domain.counter()?;
/// let waiting = counter.wait_for(10);
/// counter.add_error(1); // As a failed operation would.
/// assert_eq!(waiting.await, Err(CounterError::Failed { value: 0, errors: 1 }));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterError {
    /// The error value changed while waiting, which usually means that an operation failed
    /// (`FI_EAVAIL`).
    Failed {
        /// The value at that time, below the threshold.
        value: u64,
        /// The error value at that time.
        errors: u64,
    },
    /// The counter was closed.
    Closed,
}

impl CounterError {
    fn kind(&self) -> ErrorKind {
        match self {
            CounterError::Failed { .. } => ErrorKind::ErrorAvailable,
            CounterError::Closed => ErrorKind::BadState,
        }
    }

    /// The positive libfabric number (`fi_errno(3)`).
    pub fn fi_errno(&self) -> i32 {
        self.kind().fi_errno()
    }
}

impl fmt::Display for CounterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CounterError::Failed { value, errors } => write!(
                f,
                "the counter's error value changed to {errors}, at a value of {value}"
            ),
            CounterError::Closed => f.write_str("the counter is closed"),
        }
    }
}

impl std::error::Error for CounterError {}

impl From<CounterError> for Error {
    fn from(error: CounterError) -> Self {
        Error::new(error.kind(), error.to_string())
    }
}

/// A future that waits for a counter to reach a threshold.
///
/// You get one from [`Counter::wait_for`](super::Counter::wait_for), which describes its errors and
/// cancel safety. It owns a handle of the counter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let counter = Net::loopback().peer()?.domain.counter()?;
/// let errors = counter.read_error();
/// counter.add(3);
/// // An error that was counted since `read_error` would end this wait.
/// assert_eq!(counter.wait_for(3).errors_seen(errors).await?, 3);
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct CounterWait {
    shared: Arc<Shared>,
    threshold: u64,
    /// `State::error_changes` when the wait began; `None` if the caller had seen an error value
    /// that differed from the current one, which counts as a change.
    changes_seen: Option<u64>,
    /// The key of the entry in `State::waiting`, if there was one; a wake removes the entry.
    key: Option<u64>,
    waiter: ProgressWaiter,
}

impl CounterWait {
    pub(super) fn new(shared: Arc<Shared>, threshold: u64) -> Self {
        let changes_seen = Some(shared.state.lock("begin to wait").error_changes);
        CounterWait {
            waiter: ProgressWaiter::default(),
            shared,
            threshold,
            changes_seen,
            key: None,
        }
    }

    /// Sets the error value that the caller has seen: the wait ends if the current one differs.
    /// This closes the gap between reading the error value and starting to wait.
    pub fn errors_seen(mut self, errors: u64) -> Self {
        if self.shared.state.lock("compare errors").errors != errors {
            self.changes_seen = None;
        }
        self
    }
}

impl Future for CounterWait {
    type Output = Result<u64, CounterError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let CounterWait {
            shared,
            threshold,
            changes_seen,
            key,
            waiter,
        } = self.get_mut();
        waiter.poll_reading(&shared.driven, cx, |cx| {
            let budget = ready!(coop::poll_proceed(cx));
            let _stale; // Declared before the guard, so a replaced waker is dropped after it.
            let mut state = shared.state.lock("wait for a counter");
            let ended = if state.value >= *threshold {
                Some(Ok(state.value))
            } else if *changes_seen != Some(state.error_changes) {
                Some(Err(CounterError::Failed {
                    value: state.value,
                    errors: state.errors,
                }))
            } else if state.closed {
                Some(Err(CounterError::Closed))
            } else {
                None
            };
            if let Some(ended) = ended {
                budget.made_progress();
                return Poll::Ready(ended);
            }
            _stale = state.register(key, *threshold, cx.waker());
            Poll::Pending
        })
    }
}

impl Drop for CounterWait {
    fn drop(&mut self) {
        if self.key.is_none() {
            return;
        }
        let _stale; // Declared before the guard, so the waker is dropped after it.
        let mut state = self.shared.state.lock("stop waiting for a counter");
        let place = state
            .waiting
            .iter()
            .position(|waiting| Some(waiting.key) == self.key);
        if let Some(index) = place {
            _stale = state.waiting.swap_remove(index);
        }
    }
}

debug_fields!(CounterWait, self => threshold: self.threshold);
