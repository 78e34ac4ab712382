//! Sources of readiness for objects that the application drives by hand ([`ManualProgress`]).
//!
//! A reactor wakes a waiter that sleeps until something is ready. It is the reactor of the runtime
//! in which the domain was opened or, outside of a runtime, a reactor of our own, run by a thread
//! only while a waiter sleeps. A caller that asks for a turn depends on neither reactor: sockets
//! are also registered with a [`Poller`], which can be polled at any time, even in a task that
//! never yields to its runtime's reactor. (Completions of a ring, and bytes within the process, are
//! found without the poller.)
//!
//! Before a waiter drives, it polls with a waker that wakes no task, since results of its own turn
//! must not wake its task again. Reading without waiting, and `Domain::progress`, take one turn
//! that checks for readiness: in an epoll descriptor of our own (`epoll/watched.rs`), since the
//! reactor of a runtime does not run while a task does not yield; and if that descriptor has
//! nothing, in the socket of the last port, the ring's queue and the timers. The runtime's reactor
//! wakes sleepers directly: nesting our descriptor in that reactor would cost one more system call
//! per message. A task that reads an object is a waiter of each domain and listener that uses the
//! object. Threads still look up names and fault in pages; they do no other work.
//!
//! When the runtime of a domain ends, its sockets and timers report nothing any more. All driven
//! objects end with the runtime ([`RuntimeEnd`]), as a task there would.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::clock::TokioClock;
use super::epoll::{Poller, TimerClock};
use super::select::runtime_for;
use super::{Backend, Clock};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MANUAL_ANSWER_MAX;
use crate::sync::{ManualProgress, ReadinessSource};

/// The manual progress of the application, and the reactor of its sockets. The shards and the
/// listeners of a domain share one.
pub(crate) struct ManualReactor {
    progress: Arc<ManualProgress>,
    runtime: Handle,
    /// Set if the runtime is the application's.
    life: Option<Arc<RuntimeLife>>,
    /// Set if there are sockets of epoll.
    poller: Option<Arc<Poller>>,
}

impl ManualReactor {
    /// Opens the reactor on the current runtime, if that has the I/O or time that the backend
    /// needs; otherwise on a runtime of its own.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when no descriptor or thread is left.
    pub(crate) fn open(backend: Option<Backend>) -> Result<Arc<Self>> {
        let backend = backend.unwrap_or(Backend::Epoll);
        let (runtime, sleeper) = match runtime_for(backend) {
            Ok(runtime) => (runtime, None),
            Err(error) if error.kind() == ErrorKind::NoRuntime => {
                let what = "starting the thread fabric-reactor";
                let sleeper = Sleeper::start().map_err(|error| out_of(what, &error))?;
                (sleeper.runtime.clone(), Some(sleeper))
            }
            Err(error) => return Err(error),
        };
        let life = sleeper.is_none().then(Arc::<RuntimeLife>::default);
        let clock: Box<dyn Clock> = match backend {
            Backend::Loopback => Box::new(TokioClock::new(runtime.clone(), life.clone())),
            Backend::Epoll | Backend::IoUring => {
                let _runtime = runtime.enter();
                Box::new(TimerClock::new()?)
            }
        };
        let poller = (backend == Backend::Epoll).then(Poller::new).transpose();
        let poller = poller.map_err(|error| out_of("opening an epoll", &error))?;
        let readiness = ManualReadiness {
            poller: poller.clone(),
            sleeper,
            clock: Mutex::new(clock),
            watch: life.clone().map(|life| RuntimeWatch::new(&runtime, life)),
        };
        Ok(Arc::new(ManualReactor {
            progress: ManualProgress::new(Box::new(readiness)),
            runtime,
            life,
            poller,
        }))
    }

    pub(crate) fn progress(&self) -> &Arc<ManualProgress> {
        &self.progress
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the application's runtime, if the reactor runs on it.
    pub(super) fn current_runtime(&self) -> Option<&Handle> {
        self.life.is_some().then_some(&self.runtime)
    }

    /// Returns the life of the application's runtime.
    pub(super) fn life(&self) -> Option<&Arc<RuntimeLife>> {
        self.life.as_ref()
    }

    pub(super) fn poller(&self) -> Option<&Arc<Poller>> {
        self.poller.as_ref()
    }
}

impl fmt::Debug for ManualReactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualReactor")
            .field("progress", &self.progress)
            .field("is_current", &self.life.is_some())
            .finish_non_exhaustive()
    }
}

/// The state of the application's runtime: whether it still has its reactor and its time.
#[derive(Debug, Default)]
pub(super) struct RuntimeLife {
    has_ended: Mutex<bool>,
}

impl RuntimeLife {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.has_ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a guard that keeps the runtime from ending. `None`: the runtime is ending.
    pub(super) fn alive(&self) -> Option<MutexGuard<'_, bool>> {
        Some(self.lock()).filter(|has_ended| !**has_ended)
    }
}

/// Ends all driven objects when the application's runtime ends.
struct RuntimeWatch {
    runtime: Handle,
    life: Arc<RuntimeLife>,
    /// A task that never ends by itself, and has a [`RuntimeEnd`].
    task: OnceLock<AbortHandle>,
}

impl RuntimeWatch {
    fn new(runtime: &Handle, life: Arc<RuntimeLife>) -> Self {
        RuntimeWatch {
            runtime: runtime.clone(),
            life,
            task: OnceLock::new(),
        }
    }

    fn begin(&self, progress: &Arc<ManualProgress>) {
        let end = RuntimeEnd {
            life: Arc::clone(&self.life),
            progress: Arc::downgrade(progress),
        };
        let task = async move {
            let _end = end;
            std::future::pending::<()>().await;
        };
        let task = self.runtime.spawn(task).abort_handle();
        self.task.get_or_init(|| task);
    }
}

impl Drop for RuntimeWatch {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Ends the driven objects when its task is dropped, which is before the runtime's reactor and
/// timers.
struct RuntimeEnd {
    life: Arc<RuntimeLife>,
    progress: Weak<ManualProgress>,
}

impl Drop for RuntimeEnd {
    fn drop(&mut self) {
        *self.life.lock() = true;
        if let Some(progress) = self.progress.upgrade() {
            progress.abandon();
        }
    }
}

fn out_of(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::LimitReached, format!("{what}: {error}"))
}

struct ManualReadiness {
    /// Set if there are sockets of epoll.
    poller: Option<Arc<Poller>>,
    /// Set if the application has no runtime.
    sleeper: Option<Sleeper>,
    clock: Mutex<Box<dyn Clock>>,
    /// Set if the application has a runtime.
    watch: Option<RuntimeWatch>,
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

    fn watch_end(&self, progress: &Arc<ManualProgress>) {
        if let Some(watch) = &self.watch {
            watch.begin(progress);
        }
    }

    fn set_alarm(&self, alarm: &Waker) {
        let is_over = {
            let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
            let now = clock.now();
            let at = now + MANUAL_ANSWER_MAX;
            // Outside of Tokio's cooperative budget, which belongs to the calling task.
            let over = poll_fn(|cx| clock.poll_deadline(at, now, cx));
            let over = pin!(tokio::task::unconstrained(over));
            over.poll(&mut Context::from_waker(alarm)).is_ready()
        };
        if is_over {
            alarm.wake_by_ref();
        }
    }
}

/// A runtime of our own with a thread that runs its reactor. The thread sleeps in the reactor only
/// while a waiter sleeps: waking the thread for each message would disturb callers that ask for
/// turns without ever sleeping.
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
