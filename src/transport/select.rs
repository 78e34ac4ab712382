//! Choosing a backend, checking that it can run here, and opening its transport.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::Handle;

use super::caller::WaitingDriver;
use super::epoll::{self, EpollTransport};
#[cfg(any(test, feature = "test-util"))]
use super::fault::{FaultInjector, Faults};
#[cfg(any(test, feature = "test-util"))]
use super::loopback::Host;
use super::loopback::{LoopbackNet, LoopbackTransport};
use super::manual::ManualReactor;
use super::run::{Executor, thread_runtime};
#[cfg(feature = "tls")]
use super::tls::TlsTransport;
use super::{Backend, PortRange, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::LOCAL_TRAFFIC_MIN;
use crate::path::LocalPath;
use crate::random::RandomSource;
#[cfg(feature = "tls")]
use crate::tls::TlsConfig;

/// Options from which a transport is made.
#[derive(Clone, Debug)]
pub(crate) struct TransportOptions {
    /// The requested backend. `None`: epoll; but if the driver runs on the thread of a future, a
    /// ring, if the system permits one.
    pub(crate) backend: Option<Backend>,
    /// The ports that listeners on port 0 choose from; `None` leaves the choice to the system.
    pub(crate) ports: Option<PortRange>,
    /// The network for loopback connections; `None`: the network that the process shares.
    pub(crate) net: Option<Arc<LoopbackNet>>,
    /// The host, in that network, that the transport belongs to.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) host: Option<Host>,
    /// Faults to inject.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) faults: Option<Faults>,
    /// Configuration of secure connections.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsConfig>,
    /// Source of keys, incarnations and the like.
    pub(crate) random: RandomSource,
    /// The place where the transport's driver runs.
    pub(crate) runner: Runner,
    /// Whether connections to peers on the same host may go through shared memory.
    pub(crate) local_path: LocalPath,
    /// How often a connection has sent and received before it asks for shared memory.
    pub(crate) local_after: u64,
}

/// The place where a transport's driver runs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Runner {
    /// A task on the current runtime.
    #[default]
    Task,
    /// A thread of its own.
    Thread,
    /// The thread that runs the application's future.
    Caller(Arc<WaitingDriver>),
    /// The application's tasks that wait for progress.
    Manual(Arc<ManualReactor>),
}

impl Runner {
    /// Returns where the driver of a listener runs. The thread of a future sleeps in one reactor,
    /// that of its domain, so the listener has a thread of its own.
    pub(crate) fn for_listener(self) -> Self {
        match self {
            Runner::Caller(_) => Runner::Thread,
            other => other,
        }
    }

    /// Returns the reactor of manual progress, if the application drives by hand.
    pub(crate) fn manual(&self) -> Option<&Arc<ManualReactor>> {
        match self {
            Runner::Manual(reactor) => Some(reactor),
            Runner::Task | Runner::Thread | Runner::Caller(_) => None,
        }
    }
}

impl Default for TransportOptions {
    fn default() -> Self {
        TransportOptions {
            backend: None,
            ports: None,
            net: None,
            #[cfg(any(test, feature = "test-util"))]
            host: None,
            #[cfg(any(test, feature = "test-util"))]
            faults: None,
            #[cfg(feature = "tls")]
            tls: None,
            random: RandomSource::default(),
            runner: Runner::Task,
            local_path: LocalPath::default(),
            local_after: local_after(),
        }
    }
}

/// How often a connection has sent and received before it asks for shared memory. In test programs
/// an environment variable sets it, so that all their connections can use shared memory.
fn local_after() -> u64 {
    #[cfg(any(test, feature = "test-util"))]
    if let Some(Ok(set)) = std::env::var("TOKIO_FABRIC_LOCAL_AFTER")
        .ok()
        .map(|it| it.parse())
    {
        return set;
    }
    LOCAL_TRAFFIC_MIN
}

/// A transport, and the executor of its driver.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) transport: Arc<dyn Transport>,
    /// Runs the future that drives the transport.
    pub(crate) executor: Executor,
}

impl Selection {
    fn new(transport: impl Transport + 'static, executor: Executor) -> Self {
        let transport = Arc::new(transport);
        Selection {
            transport,
            executor,
        }
    }
}

/// Makes a transport, on the current runtime or for a thread of its own.
///
/// # Errors
/// [`ErrorKind::NoRuntime`] as for [`runtime_for`], unless the driver gets a thread;
/// [`ErrorKind::Unsupported`] when io_uring is requested by name and not available;
/// [`ErrorKind::LimitReached`] when no descriptor is left.
pub(crate) fn open(options: &TransportOptions) -> Result<Selection> {
    let selection = match (options.backend, &options.runner) {
        (None, Runner::Caller(_)) => match io_uring(options) {
            Err(error) if error.kind() == ErrorKind::Unsupported => epoll(options)?,
            opened => opened?,
        },
        (None | Some(Backend::Epoll), _) => epoll(options)?,
        (Some(Backend::IoUring), _) => io_uring(options)?,
        (Some(Backend::Loopback), _) => loopback(options)?,
    };
    #[cfg(any(test, feature = "test-util"))]
    let selection = match &options.faults {
        Some(faults) => {
            let transport = FaultInjector::new(selection.transport, faults.clone());
            Selection::new(transport, selection.executor)
        }
        None => selection,
    };
    // Injected faults affect TLS records, so TLS wraps the fault injector.
    #[cfg(feature = "tls")]
    let selection = match &options.tls {
        Some(tls) => {
            let transport = TlsTransport::new(selection.transport, tls.clone());
            Selection::new(transport, selection.executor)
        }
        None => selection,
    };
    Ok(selection)
}

/// Returns the executor for the driver of a transport that needs Tokio's reactor or time, and that
/// runtime.
fn runtime_of(options: &TransportOptions, backend: Backend) -> Result<(Executor, Handle)> {
    match &options.runner {
        Runner::Thread => {
            let (reactor, runtime) = thread_runtime(backend, false)?;
            Ok((Executor::Thread(reactor), runtime))
        }
        Runner::Caller(waiting) => {
            let (reactor, runtime) = thread_runtime(backend, true)?;
            Ok((Executor::Caller(Arc::clone(waiting), reactor), runtime))
        }
        Runner::Task => {
            let runtime = runtime_for(backend)?;
            Ok((Executor::Task(runtime.clone()), runtime))
        }
        Runner::Manual(reactor) => {
            let runtime = reactor.runtime().clone();
            Ok((Executor::Manual(Arc::clone(reactor)), runtime))
        }
    }
}

fn epoll(options: &TransportOptions) -> Result<Selection> {
    let (executor, runtime) = runtime_of(options, Backend::Epoll)?;
    let poller = (options.runner.manual()).and_then(|reactor| reactor.poller().cloned());
    let transport = EpollTransport::new(runtime, options.ports).with_poller(poller);
    Ok(Selection::new(transport, executor))
}

fn loopback(options: &TransportOptions) -> Result<Selection> {
    let (executor, runtime) = runtime_of(options, Backend::Loopback)?;
    let net = options.net.clone().unwrap_or_else(LoopbackNet::global);
    let life = (options.runner.manual()).and_then(|reactor| reactor.life().cloned());
    let transport = LoopbackTransport::new(net, runtime, options.ports).with_life(life);
    #[cfg(any(test, feature = "test-util"))]
    if let Some(host) = &options.host {
        return hosted(transport, executor, host.clone());
    }
    Ok(Selection::new(transport, executor))
}

/// Makes a transport of one host, whose driver stops and ends with the host.
#[cfg(any(test, feature = "test-util"))]
fn hosted(transport: LoopbackTransport, executor: Executor, host: Host) -> Result<Selection> {
    host.check_up()?;
    let Executor::Task(runtime) = executor else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "a node of a testing::Net is driven by tasks: nothing else can be stopped",
        ));
    };
    let transport = transport.at(host.clone());
    Ok(Selection::new(transport, Executor::Hosted(runtime, host)))
}

#[cfg(all(feature = "io-uring", target_os = "linux"))]
fn io_uring(options: &TransportOptions) -> Result<Selection> {
    use super::uring::UringTransport;
    let for_thread = || UringTransport::for_thread(options.ports);
    let (transport, executor) = match &options.runner {
        Runner::Thread => {
            let (transport, reactor) = for_thread()?;
            (transport, Executor::Thread(Box::new(reactor)))
        }
        Runner::Caller(waiting) => {
            let (transport, reactor) = for_thread()?;
            let executor = Executor::Caller(Arc::clone(waiting), Box::new(reactor));
            (transport, executor)
        }
        Runner::Task | Runner::Manual(_) => {
            let (executor, runtime) = runtime_of(options, Backend::IoUring)?;
            let transport = UringTransport::new(runtime, options.ports)?;
            let transport = match options.runner.manual() {
                Some(_) => transport.sending_at_once(),
                None => transport,
            };
            (transport, executor)
        }
    };
    Ok(Selection::new(transport, executor))
}

#[cfg(not(all(feature = "io-uring", target_os = "linux")))]
fn io_uring(_: &TransportOptions) -> Result<Selection> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build is without the feature io-uring",
    ))
}

/// Returns the current Tokio runtime, if it has what the backend needs: I/O for sockets, time for
/// loopback.
///
/// # Errors
/// [`ErrorKind::NoRuntime`] outside of a runtime, or in a runtime that was built without I/O or
/// time. A process without any epoll descriptor has no runtime with I/O, which is detected without
/// Tokio. In other processes Tokio reports missing I/O only by a panic, as it always does missing
/// time. The panic is caught here, but the process's panic hook has run by then, and a program
/// built with `panic = "abort"` ends. [`ErrorKind::LimitReached`] when no descriptor is left for
/// the probe.
pub(crate) fn runtime_for(backend: Backend) -> Result<Handle> {
    let handle = Handle::try_current().map_err(|error| {
        Error::new(
            ErrorKind::NoRuntime,
            format!("the {backend} backend needs a Tokio runtime: {error}"),
        )
    })?;
    if backend != Backend::Loopback && !has_reactor() {
        return Err(needs(backend));
    }
    let probe = || match backend {
        Backend::Epoll | Backend::IoUring => epoll::probe_reactor(),
        Backend::Loopback => {
            // Creating a sleep looks up the runtime's timer; dropping it unpolled costs nothing.
            drop(tokio::time::sleep(std::time::Duration::ZERO));
            Ok(())
        }
    };
    // The probe owns everything it touches, and Tokio looks up its driver before it changes
    // anything.
    match catch_unwind(AssertUnwindSafe(probe)) {
        Ok(probed) => probed.map(|()| handle),
        Err(_) => Err(needs(backend)),
    }
}

/// Makes the error that names the missing part of the current runtime, I/O or time.
fn needs(backend: Backend) -> Error {
    let (needs, call) = match backend {
        Backend::Epoll | Backend::IoUring => ("I/O", "enable_io"),
        Backend::Loopback => ("time", "enable_time"),
    };
    let message = format!(
        "the {backend} backend needs a Tokio runtime with {needs} enabled \
         (Builder::{call} or enable_all)"
    );
    Error::new(ErrorKind::NoRuntime, message)
}

/// Returns false if this process has no epoll descriptor, and so no runtime with I/O. Returns true
/// if the process cannot list its descriptors.
fn has_reactor() -> bool {
    let Ok(mut descriptors) = std::fs::read_dir("/proc/self/fd") else {
        return true;
    };
    descriptors.any(|entry| {
        let target = entry.and_then(|entry| std::fs::read_link(entry.path()));
        target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_runtime_there_is_none() {
        for backend in [Backend::Epoll, Backend::Loopback] {
            let error = runtime_for(backend).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoRuntime);
        }
    }

    #[test]
    fn a_runtime_without_drivers_is_refused_without_a_panic() {
        let bare = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _entered = bare.enter();
        for backend in [Backend::Epoll, Backend::Loopback] {
            let error = runtime_for(backend).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoRuntime);
            assert!(error.to_string().contains("enable_"), "{error}");
        }
    }

    #[test]
    fn each_backend_asks_only_for_what_it_uses() {
        let io = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let entered = io.enter();
        assert!(runtime_for(Backend::Epoll).is_ok());
        drop(entered);
        let time = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _entered = time.enter();
        assert!(runtime_for(Backend::Loopback).is_ok());
    }

    fn of_thread(backend: Option<Backend>) -> TransportOptions {
        TransportOptions {
            backend,
            runner: Runner::Thread,
            ..TransportOptions::default()
        }
    }

    /// The guide, 10: "readiness-based TCP sockets, like Tokio's own | the default".
    #[tokio::test]
    async fn who_names_no_backend_gets_epoll() {
        for options in [TransportOptions::default(), of_thread(None)] {
            let selection = open(&options).unwrap();
            assert_eq!(selection.transport.backend(), Backend::Epoll);
        }
    }

    /// Opens io_uring by name, for a task and for a thread; `refuse` makes rings fail within.
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    fn both() -> [Result<Selection>; 2] {
        let task = TransportOptions {
            backend: Some(Backend::IoUring),
            ..TransportOptions::default()
        };
        [open(&task), open(&of_thread(Some(Backend::IoUring)))]
    }

    /// The guide, 10: "Requesting a backend that is not available fails with an error that says
    /// why", which is the system's reason.
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    #[tokio::test]
    async fn where_io_uring_is_refused_the_error_says_why() {
        use crate::transport::tests::say_left_out;
        use crate::transport::uring::probe::refusal;

        // A kernel that refuses io_uring by itself does so with its own error number.
        if let Err(error) = io_uring(&TransportOptions::default()) {
            return say_left_out(&error);
        }
        for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
            for refused in refusal::with(errno, both) {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert_eq!(error.os_error(), Some(errno));
                let system = std::io::Error::from_raw_os_error(errno).to_string();
                assert!(error.to_string().contains(&system), "{error}");
            }
        }
    }

    /// The guide, 12: without a backend by name, the thread of a future sleeps in epoll where
    /// rings are refused; who names the ring gets the refusal.
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    #[test]
    fn where_io_uring_is_refused_a_future_sleeps_in_epoll() {
        use crate::transport::uring::probe::refusal;

        let of_caller = |backend| TransportOptions {
            backend,
            runner: Runner::Caller(Arc::default()),
            ..TransportOptions::default()
        };
        for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
            let selection = refusal::with(errno, || open(&of_caller(None))).unwrap();
            assert_eq!(selection.transport.backend(), Backend::Epoll);
            let named = of_caller(Some(Backend::IoUring));
            let error = refusal::with(errno, || open(&named)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }

    /// Each operation that is needed is checked, and a missing one is named.
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    #[tokio::test]
    async fn an_operation_that_a_kernel_lacks_is_named() {
        use crate::transport::tests::say_left_out;
        use crate::transport::uring::probe::refusal;

        if let Err(error) = io_uring(&TransportOptions::default()) {
            return say_left_out(&error);
        }
        let mut missing = 0;
        while let Some((name, refused)) = refusal::lacking(missing, both) {
            missing += 1;
            for refused in refused {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert_eq!(error.os_error(), Some(libc::ENOSYS));
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        assert!(missing >= 7, "all that is submitted");
    }

    /// Running out of descriptors is temporary, and has an error kind of its own.
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    #[tokio::test]
    async fn without_descriptors_no_backend_is_opened() {
        use crate::transport::uring::probe::refusal;

        for refused in refusal::with(libc::EMFILE, both) {
            let kind = refused.unwrap_err().kind();
            // A kernel without io_uring refuses before descriptors run out.
            assert!(matches!(
                kind,
                ErrorKind::LimitReached | ErrorKind::Unsupported
            ));
        }
    }

    #[test]
    fn backends_have_names() {
        for backend in [Backend::Epoll, Backend::IoUring, Backend::Loopback] {
            assert_eq!(backend.to_string().parse::<Backend>().unwrap(), backend);
        }
        assert!("EPOLL".parse::<Backend>().is_ok());
        let error = "tcp".parse::<Backend>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
