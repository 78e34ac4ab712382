//! A small pool for work that blocks: registrations that fault pages in, and lookups of names. It
//! uses the blocking threads of the driver's runtime, or, where the driver has a thread of its own,
//! threads that end when the queue is empty.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use tokio::runtime::Handle;

use crate::limits::{BLOCKING_THREADS_MAX, BLOCKING_TURN_MAX};
use crate::log::emit_held;
use crate::progress::run_blocking_on;

#[derive(Clone)]
pub(super) struct BlockingPool {
    /// `None`: the pool has threads of its own.
    runtime: Option<Handle>,
    /// Tasks of the runtime do the work, in the order of the calls, so that a seed determines the
    /// order of events.
    as_tasks: bool,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
}

type Work = Box<dyn FnOnce() + Send>;

impl BlockingPool {
    pub(super) fn of_runtime(runtime: Handle) -> Self {
        BlockingPool {
            runtime: Some(runtime),
            as_tasks: false,
            queue: Arc::default(),
        }
    }

    pub(super) fn tasks(runtime: Handle) -> Self {
        BlockingPool {
            as_tasks: true,
            ..BlockingPool::of_runtime(runtime)
        }
    }

    pub(super) fn threads() -> Self {
        BlockingPool {
            runtime: None,
            as_tasks: false,
            queue: Arc::default(),
        }
    }

    /// Returns a pool of the same kind with a queue of its own.
    pub(super) fn others(&self) -> Self {
        BlockingPool {
            runtime: self.runtime.clone(),
            as_tasks: self.as_tasks,
            queue: Arc::default(),
        }
    }

    /// Queues the work. If the runtime ends before the work has run, it is dropped.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let (Some(runtime), true) = (&self.runtime, self.as_tasks) {
            drop(runtime.spawn(async move { work() }));
            return;
        }
        {
            let mut queue = self.lock();
            queue.waiting.push_back(Box::new(work));
            if queue.threads == BLOCKING_THREADS_MAX {
                return;
            }
            queue.threads += 1;
        }
        self.start_thread();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that `threads` counts already.
    fn start_thread(&self) {
        let Some(runtime) = &self.runtime else {
            let pool = self.clone();
            let thread = thread::Builder::new().name("fabric-worker".to_owned());
            if let Err(error) = thread.spawn(move || pool.run_queued()) {
                tracing::warn!(%error, "no thread for blocking work, so the caller runs it");
                self.run_queued();
            }
            return;
        };
        let turn = ThreadTurn(Some(self.clone()));
        run_blocking_on(runtime, || turn.run());
        emit_held();
    }

    /// Runs queued work until the queue is empty or the thread's turn is over.
    fn run_queued(&self) {
        let begin = Instant::now();
        loop {
            let work = {
                let mut queue = self.lock();
                match queue.waiting.pop_front() {
                    Some(work) => work,
                    None => {
                        queue.threads -= 1;
                        return;
                    }
                }
            };
            // If the work panics, dropping the values it owns reports the failure.
            let _ = catch_unwind(AssertUnwindSafe(work));
            if self.runtime.is_some() && begin.elapsed() > BLOCKING_TURN_MAX {
                return self.start_thread();
            }
        }
    }
}

/// One run of a blocking thread. If the runtime drops it, because the runtime has ended or has no
/// thread for it, all queued work is dropped too, and dropping the values it owns reports the
/// failure.
struct ThreadTurn(Option<BlockingPool>);

impl ThreadTurn {
    fn run(mut self) {
        if let Some(pool) = self.0.take() {
            pool.run_queued();
        }
    }
}

impl Drop for ThreadTurn {
    fn drop(&mut self) {
        if let Some(pool) = self.0.take() {
            let dropped = {
                let mut queue = pool.lock();
                queue.threads -= 1;
                std::mem::take(&mut queue.waiting)
            };
            drop(dropped);
        }
    }
}
