//! Where work that blocks is done, as registrations that fault pages in and lookups of names: on
//! the blocking threads of the driver's runtime, or, where the driver has a thread of its own, on
//! threads that live as long as there is work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Works that are done at the same time, as the registrations of one domain that fault pages in:
/// enough to keep one core of a small machine busy without taking the blocking threads from
/// everybody else.
const JOBS_AT_ONCE: usize = 2;

#[derive(Clone)]
pub(super) enum Workers {
    Runtime {
        runtime: Handle,
        permits: Arc<Semaphore>,
    },
    Threads(Arc<Mutex<Queue>>),
}

#[derive(Default)]
pub(super) struct Queue {
    works: VecDeque<Work>,
    threads: usize,
}

type Work = Box<dyn FnOnce() + Send>;

impl Workers {
    pub(super) fn of_runtime(runtime: Handle) -> Self {
        Workers::Runtime {
            runtime,
            permits: Arc::new(Semaphore::new(JOBS_AT_ONCE)),
        }
    }

    pub(super) fn threads() -> Self {
        Workers::Threads(Arc::default())
    }

    /// Others of the same kind, which do not wait for these.
    pub(super) fn others(&self) -> Self {
        match self {
            Workers::Runtime { runtime, .. } => Workers::of_runtime(runtime.clone()),
            Workers::Threads(_) => Workers::threads(),
        }
    }

    /// Does the work some time. A runtime that ends before that drops it.
    pub(super) fn run(self, work: impl FnOnce() + Send + 'static) {
        match self {
            Workers::Runtime { runtime, permits } => {
                runtime.spawn(async move {
                    let Ok(permit) = permits.acquire_owned().await else {
                        return;
                    };
                    let work = move || {
                        // Lives until the work has ended, whoever waits for that.
                        let _permit = permit;
                        work();
                    };
                    let _ = tokio::task::spawn_blocking(work).await;
                });
            }
            Workers::Threads(queue) => run_in_thread(queue, Box::new(work)),
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_in_thread(queue: Arc<Mutex<Queue>>, work: Work) {
    {
        let mut queue = lock(&queue);
        queue.works.push_back(work);
        if queue.threads == JOBS_AT_ONCE {
            return;
        }
        queue.threads += 1;
    }
    let shared = Arc::clone(&queue);
    let spawned = thread::Builder::new()
        .name("fabric-worker".to_owned())
        .spawn(move || work_off(&shared));
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for work that blocks, the caller waits for it");
        work_off(&queue);
    }
}

/// Works until nothing is left.
fn work_off(queue: &Mutex<Queue>) {
    loop {
        let work = {
            let mut queue = lock(queue);
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
    }
}
