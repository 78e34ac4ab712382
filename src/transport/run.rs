//! Executors of the future that drives a transport: a task of the application's runtime, a thread
//! of its own, or the tasks that wait for it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread;

use futures::FutureExt;
use tokio::runtime::{Handle, Runtime};

use super::Backend;
#[cfg(any(test, feature = "test-util"))]
use super::loopback::Host;
use super::manual::ManualReactor;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::ProgressTask;

/// Runs the one driver of a transport.
pub(crate) enum Executor {
    Task(Handle),
    /// A task of a host of a test's network.
    #[cfg(any(test, feature = "test-util"))]
    Hosted(Handle, Host),
    Thread(Box<dyn Reactor>),
    /// The tasks that wait for it.
    Manual(Arc<ManualReactor>),
}

/// What the driver's thread sleeps in while its future has nothing to do.
pub(crate) trait Reactor: Send {
    /// Called once, on the thread, before anything else.
    fn begin(&mut self) -> Result<()>;

    /// Runs the future to its end.
    fn block_on(&mut self, future: Pin<&mut (dyn Future<Output = ()> + Send)>);
}

type CaughtFuture = Pin<Box<dyn Future<Output = Result<(), Box<dyn Any + Send>>> + Send>>;

impl Executor {
    /// Starts the future; a thread gets the name `name`.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when no thread can be had.
    pub(crate) fn start<F>(self, name: &str, future: F) -> Result<()>
    where
        F: ProgressTask + 'static,
    {
        if let Executor::Manual(reactor) = &self {
            reactor.progress().add(Box::new(future));
            return Ok(());
        }
        // Unconstrained: a driver bounds its own turns; Tokio's budget would only make socket
        // readiness look absent in the middle of one.
        let future = tokio::task::unconstrained(future);
        let mut reactor = match self {
            Executor::Task(runtime) => {
                runtime.spawn(future);
                return Ok(());
            }
            #[cfg(any(test, feature = "test-util"))]
            Executor::Hosted(runtime, host) => {
                runtime.spawn(host.govern(future));
                return Ok(());
            }
            Executor::Thread(reactor) => reactor,
            Executor::Manual(_) => unreachable!("seen above"),
        };
        let guarded: CaughtFuture = Box::pin(AssertUnwindSafe(future).catch_unwind());
        let (sender, begun) = mpsc::sync_channel(1);
        let body = move || {
            let begins = reactor.begin();
            let is_begun = begins.is_ok();
            // Fails only if the receiver was dropped.
            let _ = sender.send(begins);
            if is_begun {
                run_to_end(&mut *reactor, guarded);
            }
        };
        // Its end is not awaited: it comes when the driver has nothing left to drive, and has
        // dropped what it holds.
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| {
                Error::new(
                    ErrorKind::LimitReached,
                    format!("starting the thread {name}: {error}"),
                )
            })?;
        begun.recv().unwrap_or_else(|_| {
            let what = "the driver's thread ended before it began";
            Err(Error::new(ErrorKind::DriverGone, what))
        })
    }

    /// Returns the application's runtime, if it drives, or wakes the tasks that do.
    pub(crate) fn runtime(&self) -> Option<&Handle> {
        match self {
            Executor::Task(runtime) => Some(runtime),
            #[cfg(any(test, feature = "test-util"))]
            Executor::Hosted(runtime, _) => Some(runtime),
            Executor::Thread(_) => None,
            Executor::Manual(reactor) => reactor.current_runtime(),
        }
    }
}

/// Runs the driver to its end. A panic ends it as the end of its runtime would: by its drop, which
/// ends its ports.
fn run_to_end(reactor: &mut dyn Reactor, mut guarded: CaughtFuture) {
    let ends = async {
        if guarded.as_mut().await.is_err() {
            tracing::error!("the driver panicked, and ends");
        }
    };
    reactor.block_on(std::pin::pin!(ends));
    // Dropped on this thread: only it may take back what it gave to the kernel.
    if catch_unwind(AssertUnwindSafe(|| drop(guarded))).is_err() {
        tracing::error!("the driver panicked as it ended");
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Executor::Task(_) => "Task",
            #[cfg(any(test, feature = "test-util"))]
            Executor::Hosted(..) => "Hosted",
            Executor::Thread(_) => "Thread",
            Executor::Manual(_) => "Manual",
        })
    }
}

/// A Tokio runtime of the thread's own, for backends that need Tokio's reactor or time.
struct ThreadRuntime {
    runtime: Option<Runtime>,
}

/// Makes an executor with a runtime of its own, and returns that runtime's handle.
///
/// # Errors
/// [`ErrorKind::LimitReached`] when the system has no descriptor left for it.
pub(super) fn thread_runtime(backend: Backend) -> Result<(Executor, Handle)> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    match backend {
        Backend::Epoll | Backend::IoUring => builder.enable_io(),
        Backend::Loopback => builder.enable_time(),
    };
    let runtime = builder.build().map_err(|error| {
        Error::new(
            ErrorKind::LimitReached,
            format!("making the driver's reactor: {error}"),
        )
    })?;
    let handle = runtime.handle().clone();
    let own = ThreadRuntime {
        runtime: Some(runtime),
    };
    Ok((Executor::Thread(Box::new(own)), handle))
}

impl Reactor for ThreadRuntime {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn block_on(&mut self, future: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(future);
        }
    }
}

impl Drop for ThreadRuntime {
    /// Shuts down in the background: a runtime's own drop panics in async code, and that is where
    /// it is dropped if the thread could not be started.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
