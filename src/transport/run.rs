//! Executors of the future that drives a transport: a task of the application's runtime, a thread
//! of its own, the thread of the application's future ([`caller`](super::caller)), or the tasks
//! that wait for its progress.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;

use tokio::runtime::{Handle, Runtime};

use super::Backend;
use super::caller::WaitingDriver;
#[cfg(any(test, feature = "test-util"))]
use super::loopback::Host;
use super::manual::ManualReactor;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::ProgressTask;

/// The executor of a transport's one driver.
pub(crate) enum Executor {
    Task(Handle),
    /// A task of a host of a simulated network.
    #[cfg(any(test, feature = "test-util"))]
    Hosted(Handle, Host),
    Thread(Box<dyn Reactor>),
    /// The thread that will call [`WaitingDriver::block_on`].
    Caller(Arc<WaitingDriver>, Box<dyn Reactor>),
    /// The application's tasks that wait for progress.
    Manual(Arc<ManualReactor>),
}

/// The reactor in which the driver's thread sleeps while the driver has nothing to do.
pub(crate) trait Reactor: Send {
    /// Called once, on the driver's thread, before the other methods.
    fn begin(&mut self) -> Result<()>;

    /// Runs the driver to its end.
    fn block_on(&mut self, driver: CaughtDriver);

    /// Runs the application's future to its end, within a Tokio runtime, and the driver meanwhile.
    /// The driver is dropped before this returns, on this thread.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when no thread or descriptor is left for that runtime.
    fn block_on_both(
        &mut self,
        driver: CaughtDriver,
        application: Pin<&mut dyn Future<Output = ()>>,
    ) -> Result<()>;
}

/// A driver that is dropped if it panics, as if its runtime had ended. Dropping it ends its ports.
pub(crate) struct CaughtDriver {
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl CaughtDriver {
    fn new(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        CaughtDriver {
            driver: Some(Box::pin(driver)),
        }
    }
}

impl Future for CaughtDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(driver) = &mut self.driver else {
            return Poll::Ready(());
        };
        catch_unwind(AssertUnwindSafe(|| driver.as_mut().poll(cx))).unwrap_or_else(|_| {
            tracing::error!("the driver panicked, and ends");
            Poll::Ready(())
        })
    }
}

impl Drop for CaughtDriver {
    fn drop(&mut self) {
        let driver = self.driver.take();
        if catch_unwind(AssertUnwindSafe(|| drop(driver))).is_err() {
            tracing::error!("the driver panicked as it ended");
        }
    }
}

impl Executor {
    /// Starts the future. A thread is named `name`.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when the system has no thread left.
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
        let reactor = match self {
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
            Executor::Caller(waiting, reactor) => {
                waiting.put(reactor, CaughtDriver::new(future));
                return Ok(());
            }
            Executor::Manual(_) => unreachable!("seen above"),
        };
        Self::start_thread(name, reactor, CaughtDriver::new(future))
    }

    fn start_thread(name: &str, mut reactor: Box<dyn Reactor>, driver: CaughtDriver) -> Result<()> {
        let (sender, begun) = mpsc::sync_channel(1);
        let body = move || {
            let begins = reactor.begin();
            let is_begun = begins.is_ok();
            // Fails only if the receiver was dropped.
            let _ = sender.send(begins);
            if is_begun {
                reactor.block_on(driver);
            }
        };
        // The thread is not joined: it ends when the driver has nothing left to drive and is
        // dropped.
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

    /// Returns the application's runtime, if it runs the driver or wakes the tasks that drive.
    pub(crate) fn runtime(&self) -> Option<&Handle> {
        match self {
            Executor::Task(runtime) => Some(runtime),
            #[cfg(any(test, feature = "test-util"))]
            Executor::Hosted(runtime, _) => Some(runtime),
            Executor::Thread(_) | Executor::Caller(..) => None,
            Executor::Manual(reactor) => reactor.current_runtime(),
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Executor::Task(_) => "Task",
            #[cfg(any(test, feature = "test-util"))]
            Executor::Hosted(..) => "Hosted",
            Executor::Thread(_) => "Thread",
            Executor::Caller(..) => "Caller",
            Executor::Manual(_) => "Manual",
        })
    }
}

/// A Tokio runtime of the thread's own, for backends that need Tokio's reactor or time.
struct ThreadRuntime {
    runtime: Option<Runtime>,
}

/// Makes the reactor of a thread that has a runtime of its own, and returns that runtime's handle.
/// `for_application`: the runtime also runs the application's future.
///
/// # Errors
/// [`ErrorKind::LimitReached`] when the system has no descriptor left for the runtime.
pub(super) fn thread_runtime(
    backend: Backend,
    for_application: bool,
) -> Result<(Box<dyn Reactor>, Handle)> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    match backend {
        _ if for_application => builder.enable_all(),
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
    Ok((Box::new(own), handle))
}

impl Reactor for ThreadRuntime {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn block_on(&mut self, driver: CaughtDriver) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(driver);
        }
    }

    fn block_on_both(
        &mut self,
        driver: CaughtDriver,
        application: Pin<&mut dyn Future<Output = ()>>,
    ) -> Result<()> {
        if let Some(runtime) = self.runtime.take() {
            // Spawned as a task, since waking a task from this thread costs no system call.
            runtime.spawn(driver);
            runtime.block_on(application);
            // Ends the driver and other tasks, and waits for blocking ones, as in any program.
            drop(runtime);
        }
        Ok(())
    }
}

impl Drop for ThreadRuntime {
    /// Shuts down in the background. A runtime's own drop panics in async code, and this value is
    /// dropped there if the thread could not be started.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
