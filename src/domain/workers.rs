//! Where work that blocks is done, as registrations that fault pages in and lookups of names: on
//! the blocking threads of the driver's runtime, or, where the driver has a thread of its own, on
//! threads that live as long as there is work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::progress::beside_of;

/// Works that are done at the same time, as the registrations of one domain that fault pages in:
/// enough to keep one core of a small machine busy without taking the blocking threads from
/// everybody else.
const JOBS_AT_ONCE: usize = 2;

/// How long a thread goes on with one piece of work after the other before it asks to be called
/// again: a hand-over from thread to thread takes as long as many short ones, and a runtime that
/// ends waits for the threads it has called.
const TURN: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct Workers {
    /// None: threads of their own.
    runtime: Option<Handle>,
    /// Tasks of the runtime do the work, in the order of the calls.
    as_tasks: bool,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    works: VecDeque<Work>,
    threads: usize,
}

type Work = Box<dyn FnOnce() + Send>;

impl Workers {
    pub(super) fn of_runtime(runtime: Handle) -> Self {
        Workers {
            runtime: Some(runtime),
            as_tasks: false,
            queue: Arc::default(),
        }
    }

    /// Work is done by tasks of the runtime, so that a seed decides what happens when.
    pub(super) fn tasks(runtime: Handle) -> Self {
        Workers {
            as_tasks: true,
            ..Workers::of_runtime(runtime)
        }
    }

    pub(super) fn threads() -> Self {
        Workers {
            runtime: None,
            as_tasks: false,
            queue: Arc::default(),
        }
    }

    /// Others of the same kind, which do not wait for these.
    pub(super) fn others(&self) -> Self {
        Workers {
            runtime: self.runtime.clone(),
            as_tasks: self.as_tasks,
            queue: Arc::default(),
        }
    }

    /// Does the work some time. A runtime that ends before that drops it.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let (Some(runtime), true) = (&self.runtime, self.as_tasks) {
            drop(runtime.spawn(async move { work() }));
            return;
        }
        {
            let mut queue = self.lock();
            queue.works.push_back(Box::new(work));
            if queue.threads == JOBS_AT_ONCE {
                return;
            }
            queue.threads += 1;
        }
        self.call_thread();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a thread that has been counted.
    fn call_thread(&self) {
        let Some(runtime) = &self.runtime else {
            let workers = self.clone();
            let thread = thread::Builder::new().name("fabric-worker".to_owned());
            if let Err(error) = thread.spawn(move || workers.work_off()) {
                tracing::warn!(%error, "no thread for work that blocks, the caller waits for it");
                self.work_off();
            }
            return;
        };
        let turn = Turn(Some(self.clone()));
        beside_of(runtime, || turn.work());
    }

    /// Works until nothing is left, or until its turn is over.
    fn work_off(&self) {
        let begin = Instant::now();
        loop {
            let work = {
                let mut queue = self.lock();
                match queue.works.pop_front() {
                    Some(work) => work,
                    None => {
                        queue.threads -= 1;
                        return;
                    }
                }
            };
            // What a panic leaves behind tells of it by its drop.
            let _ = catch_unwind(AssertUnwindSafe(work));
            if self.runtime.is_some() && begin.elapsed() > TURN {
                return self.call_thread();
            }
        }
    }
}

/// A thread of the runtime that has been called. Dropped instead, as by a runtime that has ended,
/// or has no thread, it takes all works with it, and they tell of that by their own drop.
struct Turn(Option<Workers>);

impl Turn {
    fn work(mut self) {
        if let Some(workers) = self.0.take() {
            workers.work_off();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(workers) = self.0.take() {
            let works = {
                let mut queue = workers.lock();
                queue.threads -= 1;
                std::mem::take(&mut queue.works)
            };
            drop(works);
        }
    }
}
