//! The answers of a mock, one method's at a time.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// Gives an answer to arguments.
type Answer<A, R> = dyn Fn(A) -> Pin<Box<dyn Future<Output = R> + Send>> + Send + Sync;

/// A method of a mock that `#[service]` writes; its arguments are a tuple.
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
    /// Without answers.
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

    /// What is not in the script is answered so.
    pub fn on<F>(&self, answer: impl Fn(A) -> F + Send + Sync + 'static)
    where
        F: Future<Output = R> + Send + 'static,
    {
        self.lock().answer = Some(Arc::new(move |arguments| Box::pin(answer(arguments))));
    }

    /// Adds to the script: answers that are given once each, in this order.
    pub fn script(&self, answers: impl IntoIterator<Item = R>) {
        self.lock().script.extend(answers);
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// A call.
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
