//! Where readiness comes from for what the application drives by hand ([`ManualProgress`]).
//!
//! Who sleeps until something is ready is woken by a reactor: that of the runtime in which the
//! domain was opened, or, outside of a runtime, one of its own, on a thread that does nothing but
//! wait for it, and only while a waiter sleeps. Who asks for a turn instead does not depend on
//! either: sockets are registered with a [`Poller`] as well, which can be asked at any time, also
//! in a task that never yields to its runtime's reactor. (Completions of a ring, and what is within
//! the process, are found without it.)
//!
//! Before it drives, a waiter polls with a waker that wakes no task, since what its own turn ends
//! must not wake its task again. Reading without waiting, and `Domain::progress`, take one turn
//! that looks: at an epoll descriptor of our own (`epoll/watched.rs`), since the reactor of a
//! runtime does not run while a task does not yield, and, where that has nothing, at the socket of
//! the last port, at the ring's queue and at timers. The runtime's reactor wakes sleepers directly:
//! one that had ours inside would cost a system call more per message. An event queue drives what
//! reports to it: its reader is a waiter of each. Threads still look names up and fault pages in;
//! they move nothing else.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use super::clock::TokioClock;
use super::epoll::{Poller, TimerClock};
use super::select::runtime_for;
use super::{Backend, Clock};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MANUAL_ANSWER_MAX;
use crate::sync::{ManualProgress, ReadinessSource};

/// The progress that the application makes by hand, and the reactor of its sockets: shared by the
/// shards and the listeners of a domain.
pub(crate) struct ManualReactor {
    progress: Arc<ManualProgress>,
    runtime: Handle,
    /// The runtime is the application's.
    is_current: bool,
    poller: Option<Arc<Poller>>,
}

impl ManualReactor {
    /// On the current runtime, if there is one that has what the backend needs.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when no descriptor or thread is left.
    pub(crate) fn open(backend: Option<Backend>) -> Result<Arc<Self>> {
        let backend = backend.unwrap_or(Backend::Epoll);
        let out_of = |what: &str, error: std::io::Error| {
            Error::new(ErrorKind::LimitReached, format!("{what}: {error}"))
        };
        let poller = match backend {
            Backend::Epoll => Some(Poller::new().map_err(|it| out_of("opening an epoll", it))?),
            Backend::IoUring | Backend::Loopback => None,
        };
        let (runtime, sleeper) = match runtime_for(backend) {
            Ok(runtime) => (runtime, None),
            Err(error) if error.kind() == ErrorKind::NoRuntime => {
                let sleeper = Sleeper::start()
                    .map_err(|error| out_of("starting the thread fabric-reactor", error))?;
                (sleeper.runtime.clone(), Some(sleeper))
            }
            Err(error) => return Err(error),
        };
        let is_current = sleeper.is_none();
        let clock: Box<dyn Clock> = match backend {
            Backend::Loopback => Box::new(TokioClock::new(runtime.clone())),
            Backend::Epoll | Backend::IoUring => {
                let _runtime = runtime.enter();
                Box::new(TimerClock::new()?)
            }
        };
        let readiness = ManualReadiness {
            poller: poller.clone(),
            sleeper,
            clock: Mutex::new(clock),
        };
        Ok(Arc::new(ManualReactor {
            progress: ManualProgress::new(Box::new(readiness)),
            runtime,
            is_current,
            poller,
        }))
    }

    pub(crate) fn progress(&self) -> &Arc<ManualProgress> {
        &self.progress
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The runtime, if it is the application's.
    pub(super) fn current_runtime(&self) -> Option<&Handle> {
        self.is_current.then_some(&self.runtime)
    }

    pub(super) fn poller(&self) -> Option<&Arc<Poller>> {
        self.poller.as_ref()
    }
}

impl fmt::Debug for ManualReactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualReactor")
            .field("progress", &self.progress)
            .field("is_current", &self.is_current)
            .finish_non_exhaustive()
    }
}

struct ManualReadiness {
    poller: Option<Arc<Poller>>,
    /// Where there is no runtime of the application's.
    sleeper: Option<Sleeper>,
    clock: Mutex<Box<dyn Clock>>,
}

impl ReadinessSource for ManualReadiness {
    fn poll_now(&self) -> bool {
        (self.poller.as_ref()).is_some_and(|poller| poller.poll_now())
    }

    fn watch(&self) {
        if let Some(sleeper) = &self.sleeper {
            sleeper.set_watching(true);
        }
    }

    fn unwatch(&self) {
        if let Some(sleeper) = &self.sleeper {
            sleeper.set_watching(false);
        }
    }

    fn set_alarm(&self, alarm: &Waker) {
        let is_over = {
            let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
            let now = clock.now();
            let at = now + MANUAL_ANSWER_MAX;
            // Outside of Tokio's cooperative budget, which belongs to the task that asks. Tokio
            // says by a panic that the runtime is ending: then nothing is driven any more.
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let over = poll_fn(|cx| clock.poll_deadline(at, now, cx));
                pin!(tokio::task::unconstrained(over)).poll(&mut Context::from_waker(alarm))
            }));
            polled.is_ok_and(|polled| polled.is_ready())
        };
        if is_over {
            alarm.wake_by_ref();
        }
    }
}

/// A runtime of our own whose reactor is run by a thread, which sleeps in it while it is watched,
/// and otherwise sleeps outside of it: a thread that is woken for each message would disturb who
/// asks for turns without ever sleeping.
struct Sleeper {
    runtime: Handle,
    shared: Arc<SleeperShared>,
}

#[derive(Default)]
struct SleeperShared {
    state: Mutex<SleeperState>,
    changed: Condvar,
    /// Ends the sleep in the reactor.
    interrupt: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SleeperState {
    #[default]
    Idle,
    Watching,
    Ended,
}

impl SleeperShared {
    fn lock(&self) -> MutexGuard<'_, SleeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleeper {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::<SleeperShared>::default();
        let seen = Arc::clone(&shared);
        let body = move || {
            loop {
                let mut state = seen.lock();
                while *state == SleeperState::Idle {
                    let waited = seen.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                if *state == SleeperState::Ended {
                    break;
                }
                drop(state);
                runtime.block_on(seen.interrupt.notified());
            }
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("fabric-reactor".to_owned())
            .spawn(body)?;
        Ok(Sleeper {
            runtime: handle,
            shared,
        })
    }

    fn set_watching(&self, is_watching: bool) {
        let wanted = match is_watching {
            true => SleeperState::Watching,
            false => SleeperState::Idle,
        };
        let mut state = self.shared.lock();
        if *state == wanted {
            return;
        }
        *state = wanted;
        drop(state);
        self.notify();
    }

    fn notify(&self) {
        self.shared.changed.notify_one();
        self.shared.interrupt.notify_one();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        *self.shared.lock() = SleeperState::Ended;
        self.notify();
    }
}
