//! io_uring refused, and running out of descriptors or locked memory. All are states of a whole
//! process, so each test runs a second one of itself.

#[path = "../../src/transport/uring/filter.rs"]
pub(crate) mod filter;
mod refused_enter;

use std::future::IntoFuture;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::alone::alone;
use tokio_fabric::testing::{Net, connect};
use tokio_fabric::{Backend, Driver, ErrorKind, Event, Fabric, Hints};

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The guide, 10: "Requesting a backend that is not available fails with an error that says why";
/// who names none is not concerned.
#[test]
fn where_a_filter_forbids_io_uring_epoll_serves() {
    let printed = alone("uring::under_a_filter");
    assert!(printed.contains("refused: not supported"), "{printed}");
}

#[test]
#[ignore = "the other process of another test"]
fn under_a_filter() {
    forbid_io_uring();
    runtime().block_on(async {
        for driver in [Driver::Task, Driver::Thread] {
            let fabric = Net::on(Backend::IoUring).fabric().unwrap();
            let error = fabric.domain().driver(driver).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            println!("refused: {error}");
            let net = Net::on(Backend::Epoll).driver(driver);
            let (a, b) = net.pair().await.unwrap();
            a.send("hello").await.unwrap();
            let (received, bytes) = b.recv(vec![0; 16]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"hello");
            let fabric = Fabric::open(Hints::new()).unwrap();
            let domain = fabric.domain().driver(driver).open().unwrap();
            assert_eq!(domain.backend(), Backend::Epoll);
        }
    });
}

/// The limit on locked memory is named, not just met: a ring's memory counts against it for who may
/// not lock any.
#[test]
fn without_locked_memory_the_error_names_the_limit() {
    let printed = alone("uring::without_locked_memory");
    assert!(printed.contains("io_uring:"), "{printed}");
}

#[test]
#[ignore = "the other process of another test"]
fn without_locked_memory() {
    let before = refusal();
    // Rights that lift the limit go first; a user who has none keeps what it is.
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a plain structure that outlives the call, and plain numbers: a user without rights.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none), 0);
        let _ = libc::setresgid(65534, 65534, 65534);
        let _ = libc::setresuid(65534, 65534, 65534);
    }
    let after = refusal();
    println!("io_uring: {after:?}");
    match after {
        Some(refused) if before.is_none() => {
            assert!(refused.contains("RLIMIT_MEMLOCK"), "{refused}");
        }
        // Refused for another reason already, or a kernel that counts no ring's memory.
        after => assert_eq!(after, before),
    }
}

/// Why io_uring cannot be had, if it cannot.
fn refusal() -> Option<String> {
    runtime().block_on(async {
        let fabric = Net::on(Backend::IoUring).fabric().unwrap();
        let opened = fabric.domain().open();
        opened.err().map(|error| error.to_string())
    })
}

/// From now on the three calls of io_uring fail with `EPERM` in this thread and its children.
fn forbid_io_uring() {
    const CALLS: [libc::c_long; 3] = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    filter::refuse(&CALLS, libc::EPERM).expect("a filter");
}

/// "EMFILE (pause accepting, resume by itself)".
#[test]
fn accepting_pauses_without_descriptors_and_resumes_by_itself() {
    for name in [
        "uring::without_descriptors_on_epoll",
        "uring::without_descriptors_on_io_uring",
    ] {
        let printed = alone(name);
        let paused = printed.contains("accepting pauses") || printed.contains("left out");
        assert!(paused, "{name}: {printed}");
    }
}

#[test]
#[ignore = "the other process of another test"]
fn without_descriptors_on_epoll() {
    without_descriptors(Backend::Epoll);
}

#[test]
#[ignore = "the other process of another test"]
fn without_descriptors_on_io_uring() {
    match crate::common::backends().contains(&Backend::IoUring) {
        true => without_descriptors(Backend::IoUring),
        false => println!("left out: there is no io_uring here, or in this build"),
    }
}

/// memory-model.md rule 7: "Driver drop: stop submitting, cancel, reap every completion, then
/// free".
#[test]
fn a_runtime_that_ends_leaves_no_descriptor_and_no_thread() {
    alone("uring::many_runtimes_end");
}

#[test]
#[ignore = "the other process of another test"]
fn many_runtimes_end() {
    if !crate::common::backends().contains(&Backend::IoUring) {
        return;
    }
    let round = || {
        let runtime = runtime();
        let ends = runtime.block_on(async {
            let (a, b) = Net::on(Backend::IoUring).pair().await.unwrap();
            a.send("hello").await.unwrap();
            // One operation ends, one is in the kernel, one waits behind it.
            let (received, bytes) = b.recv(vec![0; 16]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"hello");
            let waiting = (b.recv(vec![0; 1 << 20]), b.recv(vec![0; 16]));
            (a, b, waiting)
        });
        drop(runtime);
        drop(ends);
    };
    let count = |what| std::fs::read_dir(what).unwrap().count();
    let open = || (count("/proc/self/fd"), count("/proc/self/task"));
    round();
    let before = open();
    for _ in 0..50 {
        round();
    }
    assert_eq!(open(), before);
}

/// docs/rulings.md, 5: "while many connections of a ring are active, one call sends for all":
/// every message arrives once and in order all the same, posted one at a time
/// or in bursts.
#[test]
fn what_a_crowd_sends_arrives_in_order() {
    const ROUNDS: usize = 40;
    crate::common::on_every_backend(|net| async move {
        let (here, there) = (net.peer().unwrap(), net.peer().unwrap());
        let mut echoes = tokio::task::JoinSet::new();
        for connection in 0..12 {
            let (a, b) = connect(&here, &there).await.unwrap();
            let window = if connection % 2 == 0 { 1 } else { 6 };
            echoes.spawn(async move {
                for _ in 0..ROUNDS * window {
                    let (received, mut bytes) = b.recv(vec![0; 16]).await.unwrap();
                    bytes.truncate(received.len);
                    b.send(bytes).await.unwrap();
                }
            });
            echoes.spawn(async move {
                for round in 0..ROUNDS {
                    let message = |at| format!("{connection} {round} {at}").into_bytes();
                    let answers: Vec<_> = (0..window)
                        .map(|_| a.recv(vec![0; 16]).post().unwrap())
                        .collect();
                    let sends: Vec<_> = (0..window)
                        .map(|at| a.send(message(at)).post().unwrap())
                        .collect();
                    for send in sends {
                        send.await.unwrap();
                    }
                    for (at, answer) in answers.into_iter().enumerate() {
                        let (received, bytes) = answer.await.unwrap();
                        assert_eq!(bytes[..received.len], message(at));
                    }
                }
            });
        }
        while let Some(ended) = echoes.join_next().await {
            ended.unwrap();
        }
    });
}

/// A listener without descriptors for longer refuses who waits, and says why.
#[test]
fn peers_of_a_listener_that_stays_without_descriptors_are_refused_with_the_reason() {
    alone("uring::long_without_descriptors_on_epoll");
    alone("uring::long_without_descriptors_on_io_uring");
}

#[test]
#[ignore = "the other process of another test"]
fn long_without_descriptors_on_epoll() {
    long_without_descriptors(Backend::Epoll);
}

#[test]
#[ignore = "the other process of another test"]
fn long_without_descriptors_on_io_uring() {
    if crate::common::backends().contains(&Backend::IoUring) {
        long_without_descriptors(Backend::IoUring);
    }
}

fn long_without_descriptors(backend: Backend) {
    runtime().block_on(async {
        let fabric = Net::on(backend).fabric().unwrap();
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric.passive_endpoint(&events);
        let listener = listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap();
        let (here, there) = (
            fabric.domain().open().unwrap(),
            fabric.domain().open().unwrap(),
        );
        let [first, second, third] = [(); 3].map(|()| there.endpoint().open().unwrap());
        let address = listener.local_addr();
        let most = limit_descriptors();
        for endpoint in [first, second] {
            // One socket more can be made, which is the caller's; the accepting side has none.
            let mut plugs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok())
                .take(most)
                .collect();
            plugs.pop();
            let connecting = endpoint.connect(address).into_future();
            let connected = tokio::time::timeout(Duration::from_secs(20), connecting).await;
            let error = connected.expect("it is refused").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains("no descriptors"), "{error}");
        }
        let connected = tokio::spawn(async move { third.connect(address).await.map(|_| third) });
        let Some(Event::ConnRequest(request)) = events.next().await else {
            panic!("a request was expected");
        };
        let _accepted = request.accept(&here).await.unwrap();
        connected.await.unwrap().unwrap();
    });
}

fn without_descriptors(backend: Backend) {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .init();
    runtime().block_on(async {
        let fabric = Net::on(backend).fabric().unwrap();
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric
            .passive_endpoint(&events)
            .listen_at(([127, 0, 0, 1], 0).into())
            .unwrap();
        let here = fabric.domain().open().unwrap();
        let there = fabric.domain().open().unwrap();
        let endpoint = there.endpoint().open().unwrap();
        // One socket more can be made, which is the caller's; the accepting side has none.
        let mut plugs: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok())
            .take(limit_descriptors())
            .collect();
        plugs.pop();
        let address = listener.local_addr();
        let connecting = tokio::spawn(async move { endpoint.connect(address).await.map(|_| ()) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!connecting.is_finished());
        drop(plugs);
        let served = async {
            let Some(Event::ConnRequest(request)) = events.next().await else {
                panic!("a request was expected");
            };
            let _accepted = request.accept(&here).await.unwrap();
            connecting.await.unwrap().unwrap();
            // Still listening, as ever.
            drop(TcpStream::connect(address).unwrap());
        };
        tokio::time::timeout(Duration::from_secs(20), served)
            .await
            .expect("accepting resumes");
    });
}

/// Lowers the limit to what leaves room for a few; returns more than that few.
fn limit_descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let limit = libc::rlimit {
        rlim_cur: open as u64 + 8,
        rlim_max: open as u64 + 8,
    };
    // SAFETY: a plain structure that outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(result, 0);
    64
}
