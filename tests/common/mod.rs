//! One helper for all integration tests: run this test over every backend, on both kinds of
//! runtime, within a time limit.

#![allow(dead_code, reason = "not every test program needs every helper")]

pub mod alone;
pub mod caches;
pub mod child;
pub mod device;
pub mod gone;
pub mod matrix;
pub mod pages;
pub mod peers;
pub mod proof;
pub mod raw;
pub mod seed;
pub mod ticks;
#[cfg(feature = "tls")]
pub mod tls;
pub mod wire;

use std::fmt::Debug;
use std::io::Write;
use std::sync::Once;
use std::time::Duration;

use tokio_fabric::testing::Net;
use tokio_fabric::{Backend, Driver};

/// Long enough for a machine that ten others keep busy; a test takes seconds, so more is a hang.
const LIMIT: Duration = Duration::from_secs(240);

/// True in the heavy campaigns (docs/deep.md).
pub fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// The heavy campaigns take as long as they take; an hour is a hang.
fn limit() -> Duration {
    if is_deep() { 60 * LIMIT } else { LIMIT }
}

/// Says what this machine cannot do and a test therefore leaves out. Not by `println!`, which the
/// test runner keeps to itself when a test passes.
///
/// # Panics
///
/// With `TOKIO_FABRIC_REQUIRE_SYSTEM=1`, for machines that are meant to have everything.
pub fn left_out(what: impl std::fmt::Display) {
    const REQUIRE: &str = "TOKIO_FABRIC_REQUIRE_SYSTEM";
    let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    assert!(!required, "{REQUIRE}=1 forbids leaving out: {what}");
    let _ = writeln!(std::io::stderr(), "left out: {what}");
}

/// Every backend that can be used here; says so where io_uring was built and cannot.
pub fn backends() -> Vec<Backend> {
    static SAID: Once = Once::new();
    let mut backends = vec![Backend::Loopback, Backend::Epoll];
    match refusal_of_io_uring() {
        None => backends.push(Backend::IoUring),
        Some(why) if cfg!(feature = "io-uring") => {
            SAID.call_once(|| left_out(format_args!("io-uring: {why}")));
        }
        Some(_) => {}
    }
    backends
}

/// Why io_uring cannot be used here, if so.
fn refusal_of_io_uring() -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    runtime.block_on(async {
        let opened = Net::on(Backend::IoUring)
            .fabric()
            .and_then(|fabric| fabric.domain().open());
        opened.err().map(|error| error.to_string())
    })
}

/// Opens what has a ring. The kernel counts the memory of a user's rings against `RLIMIT_MEMLOCK`
/// until it has taken them apart, a while after they were closed. So where that limit holds (not
/// for who is privileged), a test that opens many waits for those that it closed, which their
/// drivers do that share its thread.
///
/// # Panics
///
/// When there is still no room after some time, and at any other error.
pub async fn with_room<T>(mut open: impl FnMut() -> tokio_fabric::Result<T>) -> T {
    let mut looks = 10_000;
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) if error.os_error() == Some(libc::ENOMEM) && looks > 0 => looks -= 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs the test over each backend, on a `current_thread` and on a `multi_thread` runtime; and over
/// sockets with drivers that have threads of their own.
pub fn on_every_backend<F, T>(test: F)
where
    F: Fn(Net) -> T,
    T: Future<Output = ()>,
{
    for backend in backends() {
        for threads in [0, 2] {
            run(threads, Net::on(backend), &test);
        }
        if backend != Backend::Loopback {
            run(0, Net::on(backend).driver(Driver::Thread), &test);
        }
    }
}

/// As [`on_every_backend`], all at the same time: for tests that mostly wait.
pub fn on_every_backend_at_once<F, T>(test: F)
where
    F: Fn(Net) -> T + Sync,
    T: Future<Output = ()>,
{
    at_once(
        |cells| {
            for backend in backends() {
                for threads in [0, 2] {
                    cells.push((threads, Net::on(backend)));
                }
                if backend != Backend::Loopback {
                    cells.push((0, Net::on(backend).driver(Driver::Thread)));
                }
            }
        },
        &test,
    );
}

/// As [`on_each_at_once`], over the backends that have sockets.
pub fn on_sockets_at_once<F, T>(test: F)
where
    F: Fn(Net) -> T + Sync,
    T: Future<Output = ()>,
{
    let sockets = backends().into_iter().filter(|it| *it != Backend::Loopback);
    at_once(
        |cells| cells.extend(sockets.map(|it| (0, Net::on(it)))),
        &test,
    );
}

/// Runs the test over each backend, on `current_thread` runtimes, at the same time.
pub fn on_each_at_once<F, T>(test: F)
where
    F: Fn(Net) -> T + Sync,
    T: Future<Output = ()>,
{
    let backends = backends().into_iter();
    at_once(
        |cells| cells.extend(backends.map(|it| (0, Net::on(it)))),
        &test,
    );
}

fn at_once<F, T>(fill: impl FnOnce(&mut Vec<(usize, Net)>), test: &F)
where
    F: Fn(Net) -> T + Sync,
    T: Future<Output = ()>,
{
    let mut cells = Vec::new();
    fill(&mut cells);
    std::thread::scope(|scope| {
        let running: Vec<_> = cells
            .into_iter()
            .map(|(threads, net)| scope.spawn(move || run(threads, net, test)))
            .collect();
        for cell in running {
            if let Err(panic) = cell.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// Runs the test over each of these networks, on `current_thread` runtimes, at the same time.
pub fn run_at_once<F, T>(nets: Vec<Net>, test: F)
where
    F: Fn(Net) -> T + Sync,
    T: Future<Output = ()>,
{
    at_once(
        |cells| cells.extend(nets.into_iter().map(|it| (0, it))),
        &test,
    );
}

/// Runs the test over one backend on a `current_thread` runtime.
pub fn on<F, T>(backend: Backend, test: F)
where
    F: Fn(Net) -> T,
    T: Future<Output = ()>,
{
    run(0, Net::on(backend), &test);
}

/// Runs the test over one backend on a runtime of so many threads; 0: `current_thread`.
pub fn on_threads(threads: usize, backend: Backend, test: impl AsyncFn(Net)) {
    run(threads, Net::on(backend), &|net| test(net));
}

/// Runs the test at this place on a runtime of so many threads; 0: `current_thread`.
pub fn run<P, F, T>(threads: usize, place: P, test: &F)
where
    P: Debug,
    F: Fn(P) -> T,
    T: Future<Output = ()>,
{
    let runtime = match threads {
        0 => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build(),
        n => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(n)
            .enable_all()
            .build(),
    }
    .expect("a runtime");
    runtime.block_on(async {
        let name = format!("{place:?}");
        let limited = tokio::time::timeout(limit(), test(place));
        if limited.await.is_err() {
            panic!("the test hangs on {name} with {threads} worker threads");
        }
    });
}
