//! The answers of a mock, method by method.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// A function that answers a call.
type Answer<A, R> = dyn Fn(A) -> Pin<Box<dyn Future<Output = R> + Send>> + Send + Sync;

/// One method of a mock that `#[service]` generates.
///
/// `A` is the tuple of the method's arguments, `R` its result. Tests usually use the methods of the
/// mock instead.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service]
/// trait Weather {
///     async fn degrees(&self, cx: &Cx, town: String) -> Result<i32>;
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let mock = WeatherMock::new();
/// mock.script_degrees([Ok(21)]); // The first call. Later ones:
/// mock.on_degrees(|town| async move { Ok(town.len() as i32) });
/// let (channel, _server) = testing::pair(WeatherServer::new(mock)).await?;
/// let weather = WeatherClient::over(channel);
/// assert_eq!(weather.degrees("Oslo".into()).await?, 21);
/// assert_eq!(weather.degrees("Oslo".into()).await?, 4);
/// # Ok(()) }
/// ```
pub struct MockMethod<A, R> {
    name: &'static str,
    state: Mutex<State<A, R>>,
}

struct State<A, R> {
    script: VecDeque<R>,
    answer: Option<Arc<Answer<A, R>>>,
    calls: usize,
}

impl<A, R> MockMethod<A, R> {
    /// A mock method without answers.
    pub fn new(name: &'static str) -> MockMethod<A, R> {
        MockMethod {
            name,
            state: Mutex::new(State {
                script: VecDeque::new(),
                answer: None,
                calls: 0,
            }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<A, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the function that answers calls once the script is used up.
    pub fn on<F>(&self, answer: impl Fn(A) -> F + Send + Sync + 'static)
    where
        F: Future<Output = R> + Send + 'static,
    {
        let answer: Arc<Answer<A, R>> = Arc::new(move |arguments| Box::pin(answer(arguments)));
        // Code of the test is neither called nor dropped under the lock.
        let _last = self.lock().answer.replace(answer);
    }

    /// Appends answers to the script. Each answer is used once, in order.
    pub fn script(&self, answers: impl IntoIterator<Item = R>) {
        let answers: Vec<R> = answers.into_iter().collect();
        self.lock().script.extend(answers);
    }

    /// How often the method was called.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// Answers a call.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn answer(&self, arguments: A) -> R {
        let (scripted, answer) = {
            let mut state = self.lock();
            state.calls += 1;
            (state.script.pop_front(), state.answer.clone())
        };
        match (scripted, answer) {
            (Some(scripted), _) => scripted,
            (None, Some(answer)) => answer(arguments).await,
            (None, None) => panic!("the mock of {} has no answer", self.name),
        }
    }
}

impl<A, R> fmt::Debug for MockMethod<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("MockMethod")
            .field("name", &self.name)
            .field("calls", &state.calls)
            .field("scripted", &state.script.len())
            .finish_non_exhaustive()
    }
}
