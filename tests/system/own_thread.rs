//! The application's future on the thread that sleeps in its domain's ring, or epoll:
//! `local::block_on`, for domains with `Driver::Local`.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures::channel::mpsc as channel;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{
    Access, Backend, Driver, Endpoint, EndpointType, Error, ErrorKind, Event, Hints, local,
};

use crate::common::backends;
use crate::common::peers::any;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The end of `body`, on a thread of its own.
fn on_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(body()).is_ok());
    match ended.recv_timeout(PATIENCE) {
        Ok(ended) => ended,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("it has sent"),
        },
    }
}

fn local_peer(net: &Net) -> Peer {
    let peer = net.clone().driver(Driver::Local).peer().unwrap();
    assert_eq!(peer.domain.driver(), Driver::Local);
    peer
}

/// A peer whose driver is a thread of its own.
fn other_peer(net: &Net) -> Peer {
    net.clone().driver(Driver::Thread).peer().unwrap()
}

/// Runs the test over each backend, in the `block_on` of a domain, on a thread of its own.
fn within<F, Fut>(test: F)
where
    F: Fn(Net, Peer) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = ()>,
{
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            let peer = local_peer(&net);
            local::block_on(&peer.domain.clone(), test(net, peer)).unwrap();
            assert!(!local::is_here());
        });
    }
}

/// A message each way.
async fn talk(a: &Endpoint, b: &Endpoint) {
    for (from, to) in [(a, b), (b, a)] {
        let receiving = to.recv(vec![0; 16]).post().unwrap();
        from.send("hello").await.unwrap();
        let (received, bytes) = receiving.await.unwrap();
        assert_eq!(&bytes[..received.len], b"hello");
    }
}

/// The error of an operation.
fn kind_of<T, B>(ended: Result<T, tokio_fabric::Failed<B>>) -> ErrorKind {
    ended.err().expect("it fails").into_error().kind()
}

/// The guide, 12: messages, memory, registrations and connections "of its domain" are awaited
/// there, in both roles.
#[test]
fn all_operations_of_the_domain_work_there() {
    within(|net, near| async move {
        let far = other_peer(&net);
        for (one, two) in [(&near, &far), (&far, &near)] {
            let (a, b) = connect(one, two).await.unwrap();
            talk(&a, &b).await;
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let region = two.domain.register(vec![0; 1 << 20]).access(access);
            let region = region.await.unwrap();
            let bytes: Vec<u8> = (0..region.len()).map(|at| (at * 7) as u8).collect();
            let written = a.write(bytes.clone(), region.remote()).delivery_complete();
            written.await.unwrap();
            let (_, there) = a.read(vec![0; 1 << 20], region.remote()).await.unwrap();
            assert!(there == bytes);
            assert_eq!(region.deregister().await.unwrap(), bytes);
        }
    });
}

/// The guide, 12: connectionless endpoints too, whose listeners have threads.
#[test]
fn connectionless_endpoints_work_there() {
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            let hints = || Hints::new().endpoint(EndpointType::Rdm);
            let open = |driver| {
                let fabric = net.fabric_with(hints()).unwrap();
                fabric.domain().driver(driver).open().unwrap()
            };
            let (near, far) = (open(Driver::Local), open(Driver::Thread));
            // Opened before, or within.
            let a = near.rdm_endpoint().listen_at(any()).open().unwrap();
            local::block_on(&near, async {
                let b = far.rdm_endpoint().listen_at(any()).open().unwrap();
                let c = near.rdm_endpoint().listen_at(any()).open().unwrap();
                for here in [&a, &c] {
                    let (to_b, from_b) = (here.insert(b.local_addr()), b.insert(here.local_addr()));
                    here.send_tagged("hello", to_b.unwrap(), 7).await.unwrap();
                    let (received, bytes) = b.recv_tagged(vec![0; 16], 7).await.unwrap();
                    assert_eq!(&bytes[..received.len], b"hello");
                    b.send_tagged("hi", from_b.unwrap(), 8).await.unwrap();
                    let (received, bytes) = here.recv_tagged(vec![0; 16], 8).await.unwrap();
                    assert_eq!(&bytes[..received.len], b"hi");
                }
            })
            .unwrap();
        });
    }
}

/// The guide, 12: "A future there may await anything": timers, tasks and sockets of Tokio's, its
/// blocking threads, `select!`, and what another thread wakes.
#[test]
fn what_is_tokios_works_there() {
    within(|net, near| async move {
        let far = other_peer(&net);
        let (a, b) = connect(&near, &far).await.unwrap();
        // 1. Timers, by themselves and beside an operation that never ends.
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(begun.elapsed() >= Duration::from_millis(20));
        tokio::select! {
            received = a.recv(vec![0; 8]) => panic!("{received:?}"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        let limit = Duration::from_millis(5);
        assert!(tokio::time::timeout(limit, pending::<()>()).await.is_err());
        // 2. Tasks elsewhere, which may use the domain too.
        let c = a.clone();
        let there = tokio::spawn(async move {
            c.send("from a task").await.unwrap();
            tokio::task::yield_now().await;
            7
        });
        let (received, bytes) = b.recv(vec![0; 16]).await.unwrap();
        assert_eq!(&bytes[..received.len], b"from a task");
        assert_eq!(there.await.unwrap(), 7);
        assert_eq!(tokio::task::spawn_blocking(|| 8).await.unwrap(), 8);
        // 3. Foreign sockets.
        let listener = tokio::net::TcpListener::bind(any()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = local::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await.unwrap();
            }
        });
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        for round in 0..100u32 {
            stream.write_all(&round.to_ne_bytes()).await.unwrap();
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await.unwrap();
            assert_eq!(u32::from_ne_bytes(bytes), round);
            talk(&a, &b).await;
        }
        drop(stream);
        echo.await.unwrap();
    });
}

/// A wake from another thread is never lost, whether this one sleeps, is about to, or polls.
#[test]
fn no_wake_from_another_thread_is_lost() {
    within(|net, near| async move {
        let far = other_peer(&net);
        let (a, b) = connect(&near, &far).await.unwrap();
        let (mut there, mut asked) = channel::channel::<u32>(1);
        let (mut back, mut answers) = channel::channel::<u32>(1);
        let answering = std::thread::spawn(move || {
            futures::executor::block_on(async {
                while let Some(number) = asked.next().await {
                    back.send(number).await.unwrap();
                }
            });
        });
        for number in 0..20_000 {
            there.send(number).await.unwrap();
            assert_eq!(answers.next().await, Some(number));
            if number % 1000 == 0 {
                talk(&a, &b).await;
            }
        }
        drop(there);
        answering.join().unwrap();
    });
}

/// The guide, 12: tasks of `local::spawn` run on the same thread, need not be `Send`, and talk with
/// each other; one that panics harms no other.
#[test]
fn tasks_share_the_thread() {
    within(|net, near| async move {
        let here = std::thread::current().id();
        let far = other_peer(&net);
        let shared = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..50u32 {
            let (near, far, shared) = (near.clone(), far.clone(), Rc::clone(&shared));
            tasks.push(local::spawn(async move {
                assert!(local::is_here());
                let (a, b) = connect(&near, &far).await.unwrap();
                talk(&a, &b).await;
                assert_eq!(std::thread::current().id(), here);
                shared.borrow_mut().push(number);
                assert_ne!(number, 13, "on purpose");
            }));
        }
        let mut panics = 0;
        for task in tasks {
            panics += usize::from(task.await.is_err_and(|error| error.is_panic()));
        }
        assert_eq!((panics, shared.borrow().len()), (1, 50));
    });
}

/// The guide, 12: "Tokio's cooperative budget holds there": what always has something to do does
/// not keep the driver from running, nor its tasks.
#[test]
fn a_future_that_never_waits_does_not_stop_the_driver() {
    within(|net, near| async move {
        let far = other_peer(&net);
        let (a, b) = connect(&near, &far).await.unwrap();
        let is_done = Rc::new(Cell::new(false));
        let (done, counted) = (Rc::clone(&is_done), a.clone());
        let task = local::spawn(async move {
            let (received, _) = counted.recv(vec![0; 8]).await.unwrap();
            assert_eq!(received.len, 3);
            done.set(true);
        });
        b.send("now").await.unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        while !is_done.get() {
            sender.send(()).unwrap();
            receiver.recv().await.unwrap();
        }
        task.await.unwrap();
    });
}

/// The guide, 12: cancel safety there is as elsewhere: a receive that loses a `select!` has
/// received nothing, and the next one gets the message.
#[test]
fn a_receive_that_loses_a_select_loses_no_message() {
    within(|net, near| async move {
        let far = other_peer(&net);
        let (a, b) = connect(&near, &far).await.unwrap();
        let sending = async {
            for number in 0..200u32 {
                b.send(number.to_ne_bytes().to_vec()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let receiving = async {
            let mut next = 0u32;
            let mut receive = Box::pin(a.recv(vec![0; 4]).into_future());
            while next < 200 {
                tokio::select! {
                    biased;
                    ended = &mut receive => {
                        let (_, bytes) = ended.unwrap();
                        assert_eq!(u32::from_ne_bytes(bytes.try_into().unwrap()), next);
                        next += 1;
                        receive = Box::pin(a.recv(vec![0; 4]).into_future());
                    }
                    () = tokio::time::sleep(Duration::from_micros(200)) => {}
                }
            }
        };
        futures::future::join(sending, receiving).await;
        // Dropped before anything came, ten times.
        for _ in 0..10 {
            tokio::select! {
                received = a.recv(vec![0; 8]) => panic!("{received:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        talk(&a, &b).await;
    });
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// `local::block_on`: "When the future has ended, the tasks of `spawn` are dropped, and then the
/// driver ends as with the end of a runtime": operations fail, and the peer sees a loss.
/// "A panic of the future leaves this call, once tasks and driver have ended."
#[test]
fn the_end_of_the_future_is_that_of_a_runtime() {
    for backend in backends() {
        for panics in [false, true] {
            on_thread(move || {
                let net = Net::on(backend);
                let (near, far) = (local_peer(&net), other_peer(&net));
                let drops = Arc::<AtomicUsize>::default();
                let kept = RefCell::new(None);
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    local::block_on(&near.domain, async {
                        let (a, b) = connect(&near, &far).await.unwrap();
                        talk(&a, &b).await;
                        let (counted, held) = (Counted(Arc::clone(&drops)), a.clone());
                        local::spawn(async move {
                            let _counted = counted;
                            let _ = held.recv(vec![0; 8]).await;
                        });
                        tokio::task::yield_now().await;
                        let receive = a.recv(vec![0; 8]).post().unwrap();
                        *kept.borrow_mut() = Some((a, b, receive));
                        assert!(!panics, "on purpose");
                        5
                    })
                }));
                assert_eq!(drops.load(Ordering::SeqCst), 1, "the task is dropped");
                match panics {
                    true => assert_eq!(
                        ended.unwrap_err().downcast_ref::<&str>(),
                        Some(&"on purpose")
                    ),
                    false => assert_eq!(ended.unwrap().unwrap(), 5),
                }
                let (a, b, receive) = kept.take().unwrap();
                futures::executor::block_on(async {
                    assert_eq!(kind_of(receive.await), ErrorKind::DriverGone);
                    assert_eq!(kind_of(a.send("no").await), ErrorKind::DriverGone);
                    let opened = near.domain.endpoint().open();
                    assert_eq!(opened.unwrap_err().kind(), ErrorKind::DriverGone);
                    let lost = b.recv(vec![0; 8]).await.unwrap_err().into_error();
                    assert!(lost.is_connection_lost(), "{lost}");
                });
            });
        }
    }
}

/// The guide, 12: "To close gracefully, await `domain.close()`"; the future goes on without the
/// driver, with its timers and tasks.
#[test]
fn the_future_goes_on_after_its_domain_is_closed() {
    within(|net, near| async move {
        let far = other_peer(&net);
        let (a, b) = connect(&near, &far).await.unwrap();
        talk(&a, &b).await;
        drop(a);
        near.domain.close().await.unwrap();
        while let Some(event) = far.events.next().await {
            if let Event::Shutdown { error, .. } = event {
                assert!(error.is_none(), "{error:?}");
                break;
            }
        }
        let task = local::spawn(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            7
        });
        assert_eq!(task.await.unwrap(), 7);
        let (sender, receiver) = futures::channel::oneshot::channel();
        std::thread::spawn(move || sender.send(8));
        assert_eq!(receiver.await.unwrap(), 8);
        tokio::task::yield_now().await;
    });
}

/// `local::block_on`: its errors, each of which leaves the domain as it was.
#[test]
fn misuse_is_refused_with_a_typed_error() {
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            // 1. Another driver.
            let error = local::block_on(&other_peer(&net).domain, async {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("Driver::Local"), "{error}");
            // 2. Several drivers.
            let fabric = net.fabric().unwrap();
            let shards = fabric.domain().driver(Driver::Local).progress_shards(2);
            assert_eq!(
                shards.open().unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
            // 3. Within another one, of whatever domain.
            let (near, second) = (local_peer(&net), local_peer(&net));
            let within = local::block_on(&near.domain, async {
                [&near, &second].map(|it| local::block_on(&it.domain, async {}))
            });
            for error in within.unwrap().map(|it| it.unwrap_err()) {
                assert_eq!(error.kind(), ErrorKind::BadState);
                assert!(error.to_string().contains("within another"), "{error}");
            }
            // 4. Once more.
            let error = local::block_on(&near.domain, async {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadState);
            assert_eq!(local::block_on(&second.domain, async { 7 }).unwrap(), 7);
        });
    }
}

/// `local::block_on`: "Panics: In asynchronous code of Tokio's, as Tokio's own `block_on`; the
/// domain is untouched then"; not where Tokio may be blocked. And Tokio's `block_on` within it.
#[test]
fn within_tokio_it_panics_as_tokios_own() {
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            let (near, second) = (local_peer(&net), local_peer(&net));
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let panicked = runtime.block_on(async {
                catch_unwind(AssertUnwindSafe(|| local::block_on(&near.domain, async {})))
            });
            assert!(panicked.is_err());
            let blocking = runtime.spawn_blocking({
                let domain = second.domain.clone();
                move || local::block_on(&domain, async { 6 })
            });
            assert_eq!(runtime.block_on(blocking).unwrap().unwrap(), 6);
            let ended = local::block_on(&near.domain, async {
                let nested = AssertUnwindSafe(|| runtime.block_on(async {}));
                assert!(catch_unwind(nested).is_err());
                7
            });
            assert_eq!(ended.unwrap(), 7);
        });
    }
}

/// `local::spawn`: "Panics: Outside of `block_on`".
#[test]
fn a_task_outside_is_refused_by_a_panic() {
    assert!(!local::is_here());
    assert!(catch_unwind(|| drop(local::spawn(async {}))).is_err());
}

/// The guide, 12: "Several threads, with a domain each": they talk with each other, and each ends
/// by itself.
#[test]
fn several_threads_have_a_domain_each() {
    const THREADS: usize = 3;
    for backend in backends() {
        let net = Net::on(backend);
        let fabric = net.clone().driver(Driver::Thread).fabric().unwrap();
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric.passive_endpoint(&events).listen_at(any()).unwrap();
        let address = listener.local_addr();
        let (near, far): (Vec<_>, Vec<_>) = (0..THREADS)
            .map(|_| (local_peer(&net), local_peer(&net)))
            .unzip();
        let servers: Vec<_> = far
            .into_iter()
            .map(|far| {
                let events = events.clone();
                std::thread::spawn(move || {
                    on_thread(move || {
                        local::block_on(&far.domain.clone(), async move {
                            let Some(Event::ConnRequest(request)) = events.next().await else {
                                panic!("no request");
                            };
                            let endpoint = request.accept(&far.domain).await.unwrap();
                            for _ in 0..1000 {
                                let (received, mut bytes) =
                                    endpoint.recv(vec![0; 8]).await.unwrap();
                                bytes.truncate(received.len);
                                endpoint.send(bytes).await.unwrap();
                            }
                            drop(endpoint);
                            far.domain.close().await.unwrap();
                        })
                        .unwrap();
                    });
                })
            })
            .collect();
        let clients: Vec<_> = near
            .into_iter()
            .map(|near| {
                std::thread::spawn(move || {
                    on_thread(move || {
                        local::block_on(&near.domain.clone(), async move {
                            let endpoint = near.domain.endpoint().open().unwrap();
                            endpoint.connect(address).await.unwrap();
                            for number in 0..1000u64 {
                                let answer = endpoint.recv(vec![0; 8]).post().unwrap();
                                endpoint.send(number.to_ne_bytes().to_vec()).await.unwrap();
                                let (_, bytes) = answer.await.unwrap();
                                assert_eq!(bytes, number.to_ne_bytes());
                            }
                        })
                        .unwrap();
                    });
                })
            })
            .collect();
        for thread in servers.into_iter().chain(clients) {
            thread.join().unwrap();
        }
    }
}

/// `Driver::Local`: "Nothing moves before that call": a domain that no thread runs ends quietly,
/// and one that was used before is used on.
#[test]
fn a_domain_waits_for_its_thread() {
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            drop(local_peer(&net));
            let unused = local_peer(&net);
            let endpoint = unused.domain.endpoint().open().unwrap();
            drop((unused, endpoint));
            // Connecting begins before the thread does.
            let near = local_peer(&net);
            let fabric = net.clone().driver(Driver::Thread).fabric().unwrap();
            let events = fabric.event_queue().open().unwrap();
            let listener = fabric.passive_endpoint(&events).listen_at(any()).unwrap();
            let endpoint = near.domain.endpoint().open().unwrap();
            let connecting = endpoint.connect(listener.local_addr()).into_future();
            let far = other_peer(&net);
            let accepting = async {
                let Some(Event::ConnRequest(request)) = events.next().await else {
                    panic!("no request");
                };
                request.accept(&far.domain).await.unwrap()
            };
            local::block_on(&near.domain, async {
                let (connected, other) = futures::future::join(connecting, accepting).await;
                connected.unwrap();
                talk(&endpoint, &other).await;
            })
            .unwrap();
        });
    }
}

/// The guide, 12: "Without a backend by name, it is the ring, or epoll where there is none."
#[test]
fn the_ring_is_taken_where_there_is_one() {
    on_thread(|| -> Result<(), Error> {
        let fabric = tokio_fabric::Fabric::open(Hints::new())?;
        let domain = fabric.domain().driver(Driver::Local).open()?;
        let expected = match backends().contains(&Backend::IoUring) {
            true => Backend::IoUring,
            false => Backend::Epoll,
        };
        assert_eq!(domain.backend(), expected);
        local::block_on(&domain, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
        })
    })
    .unwrap();
}

/// `busy_poll`: "So does a `Driver::Local` with the futures of its thread": while the driver spins,
/// they run, and are woken by other threads.
#[test]
fn while_the_driver_spins_the_futures_run() {
    for backend in backends() {
        on_thread(move || {
            let net = Net::on(backend);
            let fabric = net.fabric().unwrap();
            let spinning = fabric.domain().driver(Driver::Local);
            let domain = spinning.busy_poll(PATIENCE).open().unwrap();
            let far = other_peer(&net);
            local::block_on(&domain, async {
                let events = far.fabric.event_queue().open().unwrap();
                let listener = far.fabric.passive_endpoint(&events);
                let listener = listener.listen_at(any()).unwrap();
                let a = domain.endpoint().open().unwrap();
                let accepting = async {
                    let Some(Event::ConnRequest(request)) = events.next().await else {
                        panic!("no request");
                    };
                    request.accept(&far.domain).await.unwrap()
                };
                let connecting = a.connect(listener.local_addr()).into_future();
                let (connected, b) = futures::future::join(connecting, accepting).await;
                connected.unwrap();
                for _ in 0..100 {
                    talk(&a, &b).await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert_eq!(tokio::spawn(async { 7 }).await.unwrap(), 7);
                assert_eq!(local::spawn(async { 8 }).await.unwrap(), 8);
            })
            .unwrap();
        });
    }
}
