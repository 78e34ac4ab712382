//! Manual progress: nothing moves but within calls of the application, and who awaits drives.

mod many;
mod workload;

use std::future::{IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::join;
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{Access, Backend, Domain, Driver, Endpoint, Event, Fabric, Hints, RemoteRegion};

use crate::common::backends;
use crate::common::peers::{any, listener, request};
use workload::workload;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let builder = builder.worker_threads(threads.max(1)).enable_all();
    builder.build().expect("a runtime")
}

/// The future's end on a runtime.
fn on<T>(threads: usize, future: impl Future<Output = T>) -> T {
    let limited = async { tokio::time::timeout(PATIENCE, future).await };
    runtime(threads).block_on(limited).expect("it hangs")
}

/// What this gives in a plain thread, which knows of no runtime.
fn plainly<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    ended.recv_timeout(PATIENCE).expect("it hangs, or panics")
}

fn by_hand(backend: Backend) -> Net {
    Net::on(backend).driver(Driver::Manual)
}

/// Gives this what it waits for, by nothing but turns: the future is polled by a waker that wakes
/// no task, and no reactor of a runtime runs.
fn by_turns<T>(domains: &[&Domain], future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let begun = Instant::now();
    loop {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        for domain in domains {
            domain.progress();
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "turns do not bring it to its end"
        );
    }
}

/// fi_domain(3): "the provider requires the use of an application thread to complete an asynchronous
/// request."
/// One workload of connected, connectionless and datagram endpoints, over each backend
/// and each driver: a task's, a thread's, and the application's own.
#[test]
fn one_workload_with_each_driver_on_each_backend() {
    for backend in backends() {
        for driver in [Driver::Task, Driver::Thread, Driver::Manual] {
            on(0, workload(Net::on(backend).driver(driver)));
        }
        on(2, workload(by_hand(backend)));
    }
}

/// `Driver::Manual`: "It works on any executor", also where there is no runtime of Tokio's.
#[test]
fn it_works_on_an_executor_without_tokio() {
    for backend in backends() {
        plainly(move || block_on(workload(by_hand(backend))));
    }
}

/// `Domain::progress`: "A program that calls this in a loop needs no `.await` and no running
/// runtime", in a plain thread and within a task that never yields.
#[test]
fn turns_alone_bring_everything_to_its_end() {
    for backend in backends() {
        let all = move || {
            let (a, b) = (by_hand(backend).peer(), by_hand(backend).peer());
            drop((a, b));
            let net = by_hand(backend);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let domains = [&a.domain, &b.domain];
            let (listening, requests) = listener(&b);
            let (x, y) = (a.domain.endpoint().open(), b.domain.endpoint().open());
            let (x, y) = (x.unwrap(), y.unwrap());
            let mut connecting = x.connect(listening.local_addr()).into_future();
            let begun = Instant::now();
            // The listener belongs to no domain: reading its queue drives it.
            let asked = loop {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(connecting.as_mut().poll(&mut cx).is_pending());
                let _moved = domains.map(|domain| domain.progress());
                match requests.try_next() {
                    Some(Event::ConnRequest(asked)) => break asked,
                    Some(other) => panic!("{other:?}"),
                    None => assert!(begun.elapsed() < PATIENCE, "no request"),
                }
            };
            let mut accepting = y.accept(asked).into_future();
            let accepted = poll_fn(|cx| {
                requests.try_next();
                accepting.as_mut().poll(cx)
            });
            let (connected, accepted) = by_turns(&domains, join(connecting, accepted));
            connected.and(accepted.map(drop)).unwrap();
            let len = 1 << 20;
            let (sent, received) = by_turns(
                &domains,
                join(
                    x.send(vec![7; len]).into_future(),
                    y.recv(vec![0; len]).into_future(),
                ),
            );
            sent.unwrap();
            assert_eq!(received.unwrap().1, vec![7; len]);
            for domain in domains {
                // What is left, as acks, comes to an end: then a turn has nothing to move.
                while domain.progress() {}
            }
        };
        plainly(all);
        plainly(move || runtime(0).block_on(async move { all() }));
    }
}

/// fi_domain(3): "the provider will attempt to advance an asynchronous operation forward when the
/// application attempts to wait on or read"
/// fi_domain(3): "an event queue, completion queue, or counter where the completed operation will be
/// reported."
/// Reading without waiting, that is.
#[test]
fn reading_a_queue_or_a_counter_moves_what_it_reports() {
    for backend in backends() {
        plainly(move || {
            let net = by_hand(backend);
            let (a, b, x, y) = connected(&net);
            let queue = y.receive_queue().clone();
            let until = |what: &str, mut is_there: Box<dyn FnMut() -> bool + '_>| {
                let begun = Instant::now();
                while !is_there() {
                    // The peer's side, which is not what this is about.
                    a.domain.progress();
                    assert!(begun.elapsed() < PATIENCE, "{what}");
                }
            };
            for context in 0..2 {
                drop(y.recv(vec![0; 8]).queue(context).post().unwrap());
                x.inject(b"message").unwrap();
                until(
                    "a completion queue",
                    Box::new(|| match context {
                        0 => queue.try_next().is_some(),
                        _ => queue.read_batch(&mut Vec::new(), 8) == 1,
                    }),
                );
            }
            let count = b.domain.counter().unwrap();
            let counted = b.domain.endpoint().receive_counter(&count).open().unwrap();
            let z = a.domain.endpoint().open().unwrap();
            block_on(connect_endpoints(&z, &counted, &b.fabric)).unwrap();
            counted.recv(vec![0; 8]).detach().unwrap();
            z.inject(b"counted").unwrap();
            until("a counter", Box::new(|| count.read() == 1));
            // An event queue: the end of a connection, which nothing else reports.
            while b.events.try_next().is_some() {}
            drop(z);
            until(
                "an event queue",
                Box::new(|| match b.events.try_next() {
                    None => false,
                    Some(Event::Shutdown { endpoint, .. }) => endpoint == counted.id(),
                    Some(other) => panic!("{other:?} instead of its end"),
                }),
            );
            // A counter of the domain drives all of it, whatever it counts.
            x.inject(b"early").unwrap();
            until(
                "a counter moves what is not counted too",
                Box::new(|| {
                    count.read();
                    y.unexpected_bytes() > 0
                }),
            );
        });
    }
}

/// Two connected endpoints of two domains, by a plain thread.
fn connected(net: &Net) -> (Peer, Peer, Endpoint, Endpoint) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let (x, y) = block_on(connect(&a, &b)).unwrap();
    (a, b, x, y)
}

/// fi_domain(3): "Only wait operations defined by the fabric interface will result in an operation
/// progressing."
/// fi_domain(3): "Operating system or external wait functions, such as select, poll, or pthread
/// routines, cannot."
/// fi_domain(3): "not only apply to endpoints that initiate transmit operations, but also to endpoints
/// that may be the target"
/// fi_domain(3): "holds true even if the target endpoint will not generate completion events for the
/// operations."
/// fi_domain(3): "an endpoint that acts purely as the target of RMA or atomic operations that uses
/// manual progress may still need"
#[test]
fn a_wait_of_the_operating_systems_moves_nothing_and_a_turn_does() {
    for backend in backends() {
        let net = Net::on(backend);
        let (sender, addresses) = mpsc::channel();
        let (is_read, read) = (Arc::<AtomicBool>::default(), mpsc::channel());
        let (done, served) = read;
        let (begin, begins) = mpsc::channel();
        let reader = {
            let (net, is_read) = (net.clone(), Arc::clone(&is_read));
            thread::spawn(move || {
                on(0, async {
                    let peer = net.driver(Driver::Thread).peer().unwrap();
                    let endpoint = peer.domain.endpoint().open().unwrap();
                    let remote = endpoint.connect(addresses.recv().unwrap()).await.unwrap();
                    let remote = RemoteRegion::from_bytes(&remote).unwrap();
                    begins.recv().unwrap();
                    let (_, bytes) = endpoint.read(vec![0; 64], remote).await.unwrap();
                    assert_eq!(bytes, vec![7; 64]);
                    is_read.store(true, Ordering::SeqCst);
                    done.send(()).unwrap();
                    // The target ends the connection once it has seen that.
                    let _ = endpoint.recv(vec![0; 8]).await;
                });
            })
        };
        plainly(move || {
            let target = net.driver(Driver::Manual).peer().unwrap();
            let (listening, requests) = listener(&target);
            sender.send(listening.local_addr()).unwrap();
            let endpoint = block_on(async {
                let region = target.domain.register(vec![7u8; 64]);
                let region = region.access(Access::REMOTE_READ).await.unwrap();
                let accepting = request(&requests).await.accept(&target.domain);
                let accepting = accepting.data(region.remote().to_bytes());
                (accepting.await.unwrap(), region)
            });
            // The system's own wait, on a descriptor, while the peer's request is in our socket.
            let never = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            begin.send(()).unwrap();
            let mut waited = [rustix::event::PollFd::new(
                &never,
                rustix::event::PollFlags::IN,
            )];
            let a_while = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            rustix::event::poll(&mut waited, Some(&a_while)).unwrap();
            assert!(!is_read.load(Ordering::SeqCst), "{backend}: it was served");
            let begun = Instant::now();
            let mut moved = false;
            while served.try_recv().is_err() {
                moved |= target.domain.progress();
                assert!(begun.elapsed() < PATIENCE, "{backend}: it is not served");
            }
            assert!(moved, "{backend}: a turn says that something moved");
            drop(endpoint);
        });
        reader.join().unwrap();
    }
}

/// `Driver::Manual`: "a message wakes only the task that waits for it". The task that is at work
/// drives, though another has waited for longer.
#[test]
fn a_message_wakes_the_task_that_it_is_for_and_no_other() {
    const ROUNDS: usize = 10;
    for backend in backends().into_iter().filter(|it| *it != Backend::Loopback) {
        let net = Net::on(backend);
        let (sender, addresses) = mpsc::channel();
        let echoes = {
            let net = net.clone();
            thread::spawn(move || {
                on(0, async {
                    let peer = net.peer().unwrap();
                    let address = addresses.recv().unwrap();
                    let [idle, busy] = [(); 2].map(|()| peer.domain.endpoint().open().unwrap());
                    idle.connect(address).await.unwrap();
                    busy.connect(address).await.unwrap();
                    loop {
                        let (received, bytes) = busy.recv(vec![0; 8]).await.unwrap();
                        let bytes = bytes[..received.len].to_vec();
                        let ends = bytes == b"end";
                        busy.inject(&bytes).unwrap();
                        if ends {
                            break;
                        }
                    }
                    let (a, b) = join(idle.shutdown(), busy.shutdown()).await;
                    a.and(b).unwrap();
                });
            })
        };
        on(0, async {
            let here = net.driver(Driver::Manual).peer().unwrap();
            let (listening, requests) = listener(&here);
            sender.send(listening.local_addr()).unwrap();
            let idle = request(&requests).await.accept(&here.domain).await.unwrap();
            let busy = request(&requests).await.accept(&here.domain).await.unwrap();
            let polls = Arc::<AtomicUsize>::default();
            let waits = {
                let (idle, polls) = (idle.clone(), Arc::clone(&polls));
                tokio::spawn(async move {
                    let mut receive = pin!(idle.recv(vec![0; 8]).into_future());
                    poll_fn(|cx| {
                        polls.fetch_add(1, Ordering::SeqCst);
                        receive.as_mut().poll(cx)
                    })
                    .await
                })
            };
            while polls.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            // Its own first wait may leave the role with it for one event.
            round_trip(&busy, b"hello").await;
            // A turn that has spent its time, on a machine that has none, leaves the rest to it.
            // That happens now and then; what wakes it for each message does so each time.
            let mut least = usize::MAX;
            for _ in 0..100 {
                let before = polls.load(Ordering::SeqCst);
                for _ in 0..ROUNDS {
                    round_trip(&busy, b"ping").await;
                }
                least = least.min(polls.load(Ordering::SeqCst) - before);
                if least < ROUNDS / 2 {
                    break;
                }
            }
            assert!(least < ROUNDS / 2, "{backend}: {least} of {ROUNDS}");
            round_trip(&busy, b"end").await;
            // Who is left drives: it hears of the end.
            let (ended, _) = join(waits, busy.shutdown()).await;
            ended.unwrap().unwrap_err();
        });
        echoes.join().unwrap();
    }
}

async fn round_trip(endpoint: &Endpoint, bytes: &[u8]) {
    endpoint.inject(bytes).unwrap();
    let (received, answer) = endpoint.recv(vec![0; 8]).await.unwrap();
    assert_eq!(&answer[..received.len], bytes);
}

/// `Driver::Manual`: "Who awaits ... drives": when the waiter that drives is dropped, as by
/// `select!`, another takes over, whatever the order in which they began to wait.
#[test]
fn a_driving_waiter_that_is_dropped_leaves_nobody_behind() {
    for backend in backends() {
        for dropped_last in [false, true] {
            on(0, async {
                let net = by_hand(backend);
                let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
                let (x, y) = connect(&a, &b).await.unwrap();
                let (v, w) = connect(&a, &b).await.unwrap();
                let begun = Arc::<AtomicUsize>::default();
                let waits = |endpoint: &Endpoint| {
                    let (endpoint, begun) = (endpoint.clone(), Arc::clone(&begun));
                    tokio::spawn(async move {
                        let mut receive = pin!(endpoint.recv(vec![0; 8]).into_future());
                        poll_fn(|cx| {
                            let polled = receive.as_mut().poll(cx);
                            begun.fetch_add(1, Ordering::SeqCst);
                            polled
                        })
                        .await
                    })
                };
                let have_begun = async |count: usize| {
                    while begun.load(Ordering::SeqCst) < count {
                        tokio::task::yield_now().await;
                    }
                };
                let (first, second) = match dropped_last {
                    true => (&y, &w),
                    false => (&w, &y),
                };
                let first = waits(first);
                have_begun(1).await;
                let second = waits(second);
                have_begun(2).await;
                let (stays, goes) = match dropped_last {
                    true => (first, second),
                    false => (second, first),
                };
                // The message is there, and a waiter has been asked, when the waiter goes.
                x.send("for it").await.unwrap();
                goes.abort();
                let (received, bytes) = stays.await.unwrap().unwrap();
                assert_eq!(&bytes[..received.len], b"for it");
                drop(v);
            });
        }
    }
}

/// `Driver::Manual`: "A future that was woken and is neither polled again nor dropped is skipped
/// after some milliseconds": its task waits for another, which is the one that gets the message.
#[test]
fn a_waiter_that_is_kept_unpolled_holds_nobody_up() {
    for backend in backends() {
        // Tasks of one runtime, and plain threads that know of none.
        on(0, async {
            let net = Net::on(backend);
            let (a, b) = (
                net.peer().unwrap(),
                net.driver(Driver::Manual).peer().unwrap(),
            );
            let (_v, kept) = connect(&a, &b).await.unwrap();
            let (x, y) = connect(&a, &b).await.unwrap();
            for _ in 0..3 {
                let begun = Arc::<AtomicUsize>::default();
                let waits = tokio::spawn(counted(y.clone(), Arc::clone(&begun)));
                while begun.load(Ordering::SeqCst) == 0 {
                    tokio::task::yield_now().await;
                }
                let mut unpolled = pin!(kept.recv(vec![0; 8]).into_future());
                assert!(futures::poll!(&mut unpolled).is_pending());
                x.inject(b"for it").unwrap();
                waits.await.unwrap();
            }
        });
        plainly(move || {
            let net = Net::on(backend).driver(Driver::Thread);
            let a = net.peer().unwrap();
            let b = net.driver(Driver::Manual).peer().unwrap();
            let (x, y) = block_on(connect(&a, &b)).unwrap();
            let kept = b.domain.rdm_endpoint().listen_at(any()).open().unwrap();
            for _ in 0..3 {
                let (begun, y) = (Arc::<AtomicUsize>::default(), y.clone());
                let waits = {
                    let begun = Arc::clone(&begun);
                    thread::spawn(move || block_on(counted(y, begun)))
                };
                while begun.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                let mut unpolled = pin!(kept.recv(vec![0; 8]).into_future());
                let waker = futures::task::waker(Arc::new(Unanswered));
                let polled = unpolled.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
                x.inject(b"for it").unwrap();
                waits.join().unwrap();
            }
        });
    }
}

/// The waker of a task that polls something else when it is woken.
struct Unanswered;

impl futures::task::ArcWake for Unanswered {
    fn wake_by_ref(_: &Arc<Self>) {}
}

/// Receives a message, and counts its polls.
async fn counted(endpoint: Endpoint, polls: Arc<AtomicUsize>) {
    let mut receive = pin!(endpoint.recv(vec![0; 8]).into_future());
    let received = poll_fn(|cx| {
        let polled = receive.as_mut().poll(cx);
        polls.fetch_add(1, Ordering::SeqCst);
        polled
    });
    let (received, bytes) = received.await.unwrap();
    assert_eq!(&bytes[..received.len], b"for it");
}

/// `Driver::Manual`: "When the last handle of the domain and its endpoints is dropped, data that the
/// sockets do not accept at once is lost", and nothing is kept: the peer sees the end.
#[test]
fn with_its_last_handle_a_domain_ends_although_nobody_drives() {
    for backend in backends() {
        on(0, async {
            let net = Net::on(backend);
            let there = net.peer().unwrap();
            let (listening, requests) = listener(&there);
            let here = net.clone().driver(Driver::Manual).peer().unwrap();
            let queue = here.domain.completion_queue().open().unwrap();
            let builder = here.domain.endpoint().completion_queue(&queue);
            let x = builder.open().unwrap();
            let accepting = async { request(&requests).await.accept(&there.domain).await };
            let connecting = x.connect(listening.local_addr()).into_future();
            let (connected, accepted) = join(connecting, accepting).await;
            connected.unwrap();
            let y = accepted.unwrap();
            x.recv(vec![0; 8]).queue(1).await.unwrap();
            x.send("the last").detach().unwrap();
            let Peer { fabric, domain, .. } = here;
            drop((x, domain));
            let (received, bytes) = y.recv(vec![0; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"the last");
            y.recv(vec![0; 8]).await.unwrap_err();
            // The queue of what was posted keeps its domain, but no progress.
            assert!(queue.next().await.unwrap().result.is_err());
            drop(queue);
            fabric.close().unwrap();
        });
    }
}

/// fi_domain(3): `FI_PROGRESS_MANUAL`, enumeration value.
/// fi_domain(3): "Setting control=FI_PROGRESS_CONTROL_UNIFIED, data=FI_PROGRESS_MANUAL, and
/// threading=FI_THREAD_DOMAIN/FI_THREAD_COMPLETION allows Libfabric"
/// Info says what an opened domain does.
#[test]
fn what_hints_ask_for_is_what_a_domain_does() {
    use tokio_fabric::info::{Progress, Threading};
    let hints = Hints::new().domain(|domain| {
        let domain = domain.control_progress(Progress::ControlUnified);
        domain
            .data_progress(Progress::Manual)
            .threading(Threading::Completion)
    });
    let domain = Fabric::open(hints).unwrap().domain().open().unwrap();
    assert_eq!(domain.driver(), Driver::Manual);
    let told = &domain.info().domain;
    assert_eq!(told.control_progress, Progress::ControlUnified);
    assert_eq!(told.data_progress, Progress::Manual);
    assert_eq!(told.threading, Threading::Completion);
    // A builder's call beats the Info, which says so.
    for (driver, progress) in [
        (Driver::Manual, Progress::Manual),
        (Driver::Thread, Progress::Auto),
    ] {
        let fabric = Fabric::open(Hints::new()).unwrap();
        let domain = fabric.domain().driver(driver).open().unwrap();
        assert_eq!(domain.info().domain.data_progress, progress);
        assert_eq!(domain.info().domain.control_progress, progress);
        assert!(!domain.progress(), "there is nothing to do");
    }
}
