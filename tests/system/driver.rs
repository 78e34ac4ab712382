//! Who makes the progress: a task of the application's runtime, or a thread of the domain's own.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use crate::common::backends;
use crate::common::peers::{any, request};
use futures::executor::block_on;
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{
    Access, Backend, Domain, Driver, Endpoint, ErrorKind, Fabric, Hints, RemoteRegion,
    domain::DomainBind, info::MrMode,
};

const DRIVERS: [Driver; 2] = [Driver::Task, Driver::Thread];
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

/// The future's end, on this runtime.
fn on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime
        .block_on(async { tokio::time::timeout(PATIENCE, future).await })
        .expect("it hangs")
}

/// The future's end, on no runtime at all.
fn by_itself<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(block_on(future)));
    ended.recv_timeout(PATIENCE).expect("it hangs, or panics")
}

/// Whether a peer's reads are served while the thread that opened the domain, the only one of its
/// runtime, computes.
fn serves_while_computing(net: &Net, driver: Driver, patience: Duration) -> bool {
    let (sender, addresses) = mpsc::channel();
    let (done, served) = mpsc::channel();
    let reader = {
        let net = net.clone();
        std::thread::spawn(move || {
            on(&runtime(0), async {
                let peer = net.peer().unwrap();
                let endpoint = peer.domain.endpoint().open().unwrap();
                let remote = endpoint.connect(addresses.recv().unwrap()).await.unwrap();
                let remote = RemoteRegion::from_bytes(&remote).unwrap();
                // More than a driver serves before the task that accepts is polled.
                for _ in 0..1000 {
                    let read = endpoint.read(vec![0; 8], remote.slice(0..8).unwrap());
                    let (count, bytes) = read.await.unwrap();
                    assert_eq!((count, &bytes[..]), (8, &[7; 8][..]));
                }
                done.send(()).unwrap();
            });
        })
    };
    let is_served = on(&runtime(0), async {
        let fabric = net.fabric().unwrap();
        let events = fabric.event_queue().open().unwrap();
        let listener = fabric.passive_endpoint(&events).listen_at(any()).unwrap();
        let domain = fabric.domain().driver(driver).open().unwrap();
        let region = domain
            .register(vec![7u8; 4096])
            .access(Access::REMOTE_READ)
            .await
            .unwrap();
        sender.send(listener.local_addr()).unwrap();
        let accepting = request(&events).await.accept(&domain);
        let _endpoint = accepting.data(region.remote().to_bytes()).await.unwrap();
        // No `await`: nothing else runs on this thread until the peer says that it is served.
        let is_served = served.recv_timeout(patience).is_ok();
        if !is_served {
            while served.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        is_served
    });
    reader.join().unwrap();
    is_served
}

/// Ruling 10: "Progress is automatic: by a task on the runtime in which the domain was opened (the
/// default), or by a thread of the domain". "Code that blocks a `current_thread` runtime also
/// blocks a driver that is a task".
/// fi_domain(3): "forcing the use of FI_PROGRESS_AUTO may result in threads being allocated below
/// the fabric interfaces."
#[test]
fn a_thread_serves_peers_while_the_application_computes() {
    for backend in backends() {
        let net = Net::on(backend);
        assert!(
            serves_while_computing(&net, Driver::Thread, PATIENCE),
            "{backend}"
        );
        let a_while = Duration::from_millis(100);
        assert!(
            !serves_while_computing(&net, Driver::Task, a_while),
            "{backend}: then this test shows nothing"
        );
    }
}

/// Ruling 10: the domain and its Info name the driver.
#[test]
fn the_domain_names_its_driver() {
    runtime(0).block_on(async {
        let fabric = Net::on(Backend::Epoll).fabric().unwrap();
        let driver_of = |domain: Domain| {
            assert_eq!(domain.info().domain.driver, domain.driver());
            domain.driver()
        };
        assert_eq!(driver_of(fabric.domain().open().unwrap()), Driver::Task);
        for driver in DRIVERS {
            let domain = fabric.domain().driver(driver).open().unwrap();
            assert_eq!(driver_of(domain), driver);
            // An Info is an answer and a wish alike; the builder's call beats it.
            let mut info = fabric.infos()[0].clone();
            info.domain.driver = driver;
            let asked = fabric.domain().info(info.clone()).open().unwrap();
            assert_eq!(driver_of(asked), driver);
            let overruled = fabric.domain().driver(Driver::Task).info(info);
            assert_eq!(driver_of(overruled.open().unwrap()), Driver::Task);
        }
    });
}

/// A region that the library backs with memory, registered asynchronously.
async fn registers(net: &Net) {
    let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
    let target = crate::common::peers::peer_with(net, hints, DomainBind::REG_MR);
    let many = (0..5u64).map(|number| {
        let registering = target.domain.register(vec![number as u8; 1 << 16]);
        registering.context(number).into_future()
    });
    for region in futures::future::join_all(many).await {
        assert_eq!(region.unwrap().len(), 1 << 16);
    }
    assert_eq!(target.events.len(), 5);
}

/// A message each way, and a large write.
async fn talk(a: &Endpoint, b: &Endpoint, region: &tokio_fabric::MemoryRegion<Vec<u8>>) {
    for (from, to) in [(a, b), (b, a)] {
        let receiving = to.recv(vec![0; 16]).post().unwrap();
        from.send("hello").await.unwrap();
        let (received, bytes) = receiving.await.unwrap();
        assert_eq!(&bytes[..received.len], b"hello");
    }
    let bytes: Vec<u8> = (0..region.len()).map(|at| (at * 7) as u8).collect();
    let written = a.write(bytes.clone(), region.remote()).delivery_complete();
    written.await.unwrap();
    let mut there = vec![0; bytes.len()];
    region.read_at(0, &mut there).unwrap();
    assert!(there == bytes);
}

/// Two connected endpoints, a region of the second's domain, and what they live in.
async fn scene(
    net: &Net,
) -> (
    Peer,
    Peer,
    Endpoint,
    Endpoint,
    tokio_fabric::MemoryRegion<Vec<u8>>,
) {
    let (near, far) = (net.peer().unwrap(), net.peer().unwrap());
    let (a, b) = connect(&near, &far).await.unwrap();
    let region = far.domain.register(vec![0; 1 << 20]).await.unwrap();
    (near, far, a, b, region)
}

/// The guide, 10: "A domain and a listener that both have `.driver(Driver::Thread)` need no Tokio
/// runtime".
#[test]
fn a_thread_needs_no_runtime() {
    for backend in backends() {
        let net = Net::on(backend).driver(Driver::Thread);
        by_itself(async move {
            let (_near, _far, a, b, region) = scene(&net).await;
            talk(&a, &b, &region).await;
            registers(&net).await;
            let fabric = net.fabric().unwrap();
            let error = fabric.domain().driver(Driver::Task).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoRuntime);
        });
    }
}

/// The guide, 10: "The application cannot stall it; dropping the domain stops it".
#[test]
fn a_thread_outlives_the_applications_runtime() {
    for backend in backends() {
        let net = Net::on(backend).driver(Driver::Thread);
        let application = runtime(0);
        let (near, far, a, b, region) = on(&application, scene(&net));
        let receiving = b.recv(vec![0; 3]).post().unwrap();
        drop(application);
        by_itself(async move {
            a.send("bye").delivery_complete().await.unwrap();
            assert_eq!(receiving.await.unwrap().1, b"bye");
            talk(&a, &b, &region).await;
            registers(&net).await;
            drop((near, far));
        });
    }
}

/// `Domain` is `Sync`: any thread may post, cancel and drop, while another one drives.
#[test]
fn a_domain_of_a_thread_is_used_from_many_threads() {
    for backend in backends() {
        let net = Net::on(backend).driver(Driver::Thread);
        let (near, far) = (net.peer().unwrap(), net.peer().unwrap());
        let users: Vec<_> = (0..4)
            .map(|number| {
                let (near, far) = (near.clone(), far.clone());
                std::thread::spawn(move || {
                    by_itself(async move { user(&near, &far, number).await })
                })
            })
            .collect();
        for user in users {
            user.join().unwrap();
        }
    }
}

/// One of several who talk within the same two domains.
async fn user(near: &Peer, far: &Peer, number: usize) {
    let (a, b) = connect(near, far).await.unwrap();
    let region = far.domain.register(vec![0; 300_000]).await.unwrap();
    for round in 0..8 {
        talk(&a, &b, &region).await;
        // Taken back by this thread while the other one has it in hand.
        let unwanted = b.recv(vec![0; 1 << 16]).post().unwrap();
        if (number + round).is_multiple_of(2) {
            unwanted.cancel();
        }
        drop(unwanted);
    }
    let write = a.write(vec![1; 300_000], region.remote()).post().unwrap();
    region.revoke().await;
    drop((write, a, b));
}

/// A waker whose program is broken.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("by a waker, on purpose");
    }
}

/// The guide, 10: "the driver stops as if its runtime had shut down": `DriverGone` for all.
#[test]
fn a_driver_that_panics_is_gone_for_all_operations() {
    for backend in backends() {
        for driver in DRIVERS {
            for threads in [0, 2] {
                let net = Net::on(backend);
                let panicked = async {
                    let near = net.clone().driver(driver).peer().unwrap();
                    let far = net.clone().driver(Driver::Thread).peer().unwrap();
                    let (a, b) = connect(&near, &far).await.unwrap();
                    let (c, _d) = connect(&near, &far).await.unwrap();
                    let mut victim = pin!(a.recv(vec![0; 8]).into_future());
                    let broken = Waker::from(Arc::new(Broken));
                    assert!(
                        victim
                            .as_mut()
                            .poll(&mut Context::from_waker(&broken))
                            .is_pending()
                    );
                    let others = (a.recv(vec![0; 8]), c.recv(vec![0; 8]));
                    let others = (others.0.post().unwrap(), others.1.post().unwrap());
                    b.send("now").await.unwrap();
                    for error in [
                        others.0.await.unwrap_err().into_error(),
                        others.1.await.unwrap_err().into_error(),
                        c.send("no").await.unwrap_err().into_error(),
                        near.domain.endpoint().open().unwrap_err(),
                    ] {
                        assert_eq!(error.kind(), ErrorKind::DriverGone, "{error}");
                    }
                };
                runtime(threads)
                    .block_on(async { tokio::time::timeout(PATIENCE, panicked).await })
                    .unwrap_or_else(|_| panic!("a caller waits on {backend}, {driver:?}"));
            }
        }
    }
}

/// `busy_poll` changes when things are seen, never what.
#[test]
fn a_driver_that_spins_does_the_same_work() {
    let busy = Duration::from_millis(2);
    for backend in backends() {
        for driver in DRIVERS {
            for threads in [0, 2] {
                let net = Net::on(backend);
                let open = |fabric: &Fabric| {
                    let domain = fabric.domain().driver(driver).busy_poll(busy);
                    domain.open().unwrap()
                };
                let spinning = async {
                    let peer = || {
                        let mut peer = net.peer().unwrap();
                        peer.domain = open(&peer.fabric);
                        peer.domain.bind(&peer.events, DomainBind::empty()).unwrap();
                        peer
                    };
                    let (near, far) = (peer(), peer());
                    let (a, b) = connect(&near, &far).await.unwrap();
                    let region = far.domain.register(vec![0; 1 << 20]).await.unwrap();
                    for round in 0..6 {
                        talk(&a, &b, &region).await;
                        if round == 3 {
                            tokio::time::sleep(2 * busy).await; // It sleeps, and wakes.
                        }
                    }
                };
                runtime(threads)
                    .block_on(async { tokio::time::timeout(PATIENCE, spinning).await })
                    .unwrap_or_else(|_| panic!("it hangs on {backend}, {driver:?}, {threads}"));
            }
        }
    }
}

/// Threads of this process with this name, and the processor time they have used.
fn threads_named(name: &str) -> (usize, Duration) {
    let mut found = (0, Duration::ZERO);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread may end in between.
        let Ok(called) = std::fs::read_to_string(task.join("comm")) else {
            continue;
        };
        let Ok(schedstat) = std::fs::read_to_string(task.join("schedstat")) else {
            continue;
        };
        if called.trim_end() == name {
            let nanos = schedstat.split_whitespace().next().unwrap();
            found.0 += 1;
            found.1 += Duration::from_nanos(nanos.parse().unwrap());
        }
    }
    found
}

/// The guide, 10: it spins "for `duration` after the last activity before it sleeps".
/// fi_domain(3): "progress threads cannot be blocked when communication is idle, which results in
/// threads spinning in progress functions." These sleep, a thread's and a task's alike.
#[test]
fn a_driver_that_spins_rests_after_a_while() {
    alone("driver::spinning_ends");
}

#[test]
#[ignore = "the other process of another test"]
fn spinning_ends() {
    const BUSY: Duration = Duration::from_millis(300);
    for backend in backends() {
        for driver in DRIVERS {
            let net = Net::on(backend);
            // The runtime of a task has a thread of its own here, so that the test can identify it.
            let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel::<()>();
            let (begin, begun) = mpsc::channel();
            let spinning = std::thread::Builder::new().name("spinning".to_owned());
            let spinning = spinning.spawn(move || {
                runtime(0).block_on(async {
                    let fabric = net.fabric().unwrap();
                    let domain = fabric.domain().driver(driver).busy_poll(BUSY);
                    let domain = domain.open().unwrap();
                    while asked.recv().await.is_some() {
                        // Something happens, once.
                        let endpoint = domain.endpoint().open().unwrap();
                        let absent = endpoint.connect(([127, 0, 0, 1], 1).into()).await;
                        assert!(absent.is_err());
                        begin.send(()).unwrap();
                    }
                });
            });
            let spinning = spinning.unwrap();
            let name = match driver {
                Driver::Thread => "fabric-driver",
                _ => "spinning",
            };
            let once = || {
                sender.send(()).unwrap();
                begun.recv().unwrap();
                let (count, before) = threads_named(name);
                assert_eq!(count, 1, "{backend} {driver:?}");
                std::thread::sleep(BUSY);
                threads_named(name).1 - before
            };
            // Little, where others want the processor: it lets them have it. Now and then they all
            // want it for the whole time.
            let least = Duration::from_micros(500);
            let mut rounds = (0..20).map(|_| once());
            let spun = rounds.find(|&spun| spun > least);
            assert!(spun.is_some(), "{backend} {driver:?}: it does not spin");
            // Closing an endpoint that failed is activity too, and a loaded machine is slow.
            std::thread::sleep(2 * BUSY);
            let before = threads_named(name).1;
            std::thread::sleep(BUSY);
            let idle = threads_named(name).1 - before;
            println!("{backend} {driver:?}: {spun:?} spun, {idle:?} idle");
            assert!(
                idle < BUSY / 20,
                "{backend} {driver:?}: {idle:?} while idle"
            );
            drop(sender);
            spinning.join().unwrap();
        }
    }
}

/// memory-model rule 7: "Driver drop: stop submitting, cancel, reap every completion, then free".
#[test]
fn nothing_is_left_of_a_domain_of_a_thread() {
    alone("driver::many_threads_end");
}

#[test]
#[ignore = "the other process of another test"]
fn many_threads_end() {
    for backend in backends() {
        let round = |orderly: bool| {
            let net = Net::on(backend).driver(Driver::Thread).local_after(0);
            let (near, far, a, b, region) = by_itself(async move {
                let (near, far, a, b, region) = scene(&net).await;
                talk(&a, &b, &region).await;
                let shares_memory = backend != Backend::Loopback;
                let since = Instant::now();
                while shares_memory && !(a.path().is_local() && b.path().is_local()) {
                    assert!(since.elapsed() < PATIENCE, "{backend}: {}", a.path());
                    talk(&a, &b, &region).await;
                }
                (near, far, a, b, region)
            });
            // With the kernel, queued behind that, and held back by the peer.
            let waiting = (b.recv(vec![0; 1 << 20]), b.recv(vec![0; 16]));
            let waiting = (waiting.0.post().unwrap(), waiting.1.post().unwrap());
            let early = a.send(vec![1; 8 << 20]).post().unwrap();
            if orderly {
                drop((a, b, region, waiting, early));
                by_itself(async move {
                    near.domain.close().await.unwrap();
                    far.domain.close().await.unwrap();
                });
            } else {
                drop((near, far, region, a, b));
                drop((waiting, early));
            }
        };
        let count = |what| std::fs::read_dir(what).unwrap().count();
        let open = || (count("/proc/self/fd"), count("/proc/self/task"));
        // What a process has once is there after the first: the thread that shares memory.
        round(true);
        // This one, the test's and that.
        let are_gone = || count("/proc/self/task") == 2 + threads_named("fabric-local").0;
        let since = Instant::now();
        while !are_gone() {
            assert!(since.elapsed() < PATIENCE, "{backend}: the first is left");
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = open();
        for at in 0..8 {
            round(at % 2 == 0);
        }
        // Threads are not joined: they end once the peers have read the last of each other.
        let since = Instant::now();
        while open() != before {
            assert!(
                since.elapsed() < PATIENCE,
                "{backend}: {before:?}, {:?}",
                open()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(are_gone());
    }
}

/// `ErrorKind::NoRuntime`: a runtime without I/O is an error also in a program that a panic ends.
#[test]
fn a_runtime_without_io_is_found_without_a_panic() {
    let test = "driver::in_a_program_that_a_panic_ends";
    let arguments = ["--exact", test, "--ignored", "--test-threads=1"];
    let program = std::env::current_exe().expect("the test's own path");
    let child = std::process::Command::new(program).args(arguments).output();
    let output = child.expect("the test binary runs again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by a_runtime_without_io_is_found_without_a_panic, in a process of its own"]
fn in_a_program_that_a_panic_ends() {
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let opened = runtime.unwrap().block_on(async {
        let fabric = tokio_fabric::Fabric::open(Hints::new())?;
        fabric.domain().open().map(drop)
    });
    if opened.map_err(|error| error.kind()) != Err(ErrorKind::NoRuntime) {
        std::process::abort();
    }
}
