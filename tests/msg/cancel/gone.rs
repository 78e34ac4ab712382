//! Runtimes that end under operations in flight, and what is left of a process's descriptors.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::testing::{FaultPlan, Net, connect};
use tokio_fabric::{
    Access, Backend, Endpoint, ErrorKind, Event, Hints, RemoteRegion, domain::DomainBind,
    error::Phase, info::MrMode,
};

use crate::common::alone::alone;
use crate::common::backends;

fn runtime(threads: usize) -> Runtime {
    match threads {
        0 => Builder::new_current_thread().enable_all().build().unwrap(),
        n => Builder::new_multi_thread()
            .worker_threads(n)
            .enable_all()
            .build()
            .unwrap(),
    }
}

/// On a runtime that has nothing to do with the one that ended.
fn elsewhere<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(20);
    let limited = runtime(0).block_on(async { tokio::time::timeout(limit, future).await });
    limited.unwrap_or_else(|_| panic!("{what} hangs"))
}

type FailingFuture = Pin<Box<dyn Future<Output = ErrorKind>>>;

/// Operations of all kinds in all states, as futures of the error they end by.
async fn in_flight(a: &Endpoint, remote: RemoteRegion) -> Vec<(&'static str, FailingFuture)> {
    fn failing<T, E: Into<tokio_fabric::Error>>(
        what: &'static str,
        future: impl Future<Output = Result<T, E>> + 'static,
    ) -> (&'static str, FailingFuture) {
        let kind = future.map(|result| match result {
            Ok(_) => panic!("it cannot have ended well"),
            Err(error) => error.into().kind(),
        });
        (what, Box::pin(kind))
    }
    let acked = a.send("acked").delivery_complete().post().unwrap();
    let read = a.read(vec![0; 8], remote).post().unwrap();
    while acked.phase() != Phase::AwaitingPeer || read.phase() != Phase::AwaitingPeer {
        tokio::task::yield_now().await;
    }
    let moving = a.send(vec![1; 24 << 20]).post().unwrap();
    tokio::task::yield_now().await;
    let write = a
        .write(vec![1; 8], remote)
        .delivery_complete()
        .post()
        .unwrap();
    let waiting: Vec<_> = (0..10).map(|_| a.send("waits").post().unwrap()).collect();
    assert_eq!(waiting[9].phase(), Phase::Waiting);
    let receives: Vec<_> = (0..10)
        .map(|_| a.recv(vec![0; 8]).post().unwrap())
        .collect();
    std::mem::forget(a.recv(vec![0; 8]).post().unwrap());
    let mut all = vec![
        failing("an acked send", acked),
        failing("a read", read),
        failing("a moving send", moving),
        failing("a write", write),
    ];
    all.extend(waiting.into_iter().map(|op| failing("a waiting send", op)));
    all.extend(receives.into_iter().map(|op| failing("a receive", op)));
    all
}

/// Ruling 11: "every pending and later operation fails with `DriverGone`", and none hangs:
/// operations, connects, accepts, registrations, `shutdown` and `close`.
#[test]
fn a_runtime_that_ends_ends_everything_with_it() {
    for backend in backends() {
        for (threads, delayed) in [(0, false), (2, false), (0, true)] {
            let plain = Net::on(backend);
            let net = match delayed {
                false => plain,
                // Outcomes are withheld: the transport has batches and buffers when it all ends.
                true => plain.faults(
                    FaultPlan::seeded(1).delay(Duration::from_millis(1)..=Duration::from_millis(2)),
                ),
            };
            ends_with_its_runtime(&net, threads);
        }
    }
}

fn ends_with_its_runtime(net: &Net, threads: usize) {
    let ending = runtime(threads);
    let other = runtime(2);
    let them = other.block_on(async { net.peer().unwrap() });
    let region = other.block_on(async {
        them.domain
            .register(vec![0; 8])
            .access(Access::all())
            .await
            .unwrap()
    });
    let (us, ours, theirs, ops, queue, connecting, accepting, registering, dead_listener) = ending
        .block_on(async {
            let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
            let fabric = net.fabric_with(hints).unwrap();
            let events = fabric.event_queue().open().unwrap();
            let domain = fabric.domain().open().unwrap();
            domain.bind(&events, DomainBind::REG_MR).unwrap();
            let queue = domain.completion_queue().open().unwrap();
            let ours = domain
                .endpoint()
                .transmit_size(6)
                .receive_size(4)
                .completion_queue(&queue)
                .open()
                .unwrap();
            // Plain, so that it reads nothing behind a message that nothing awaits.
            let theirs = them.domain.endpoint().unexpected_bytes(0).extension(false);
            let theirs = theirs.open().unwrap();
            tokio_fabric::testing::connect_endpoints(&ours, &theirs, &them.fabric)
                .await
                .unwrap();
            ours.recv(vec![0; 8])
                .queue(9_u64)
                .post()
                .unwrap()
                .await
                .unwrap();
            let ops = in_flight(&ours, region.remote()).await;
            // A connect that is not answered, an accept that has not begun, a long registration.
            let requests = fabric.event_queue().open().unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = fabric.passive_endpoint(&requests).listen_at(any).unwrap();
            let connecting = domain.endpoint().open().unwrap();
            let connecting = connecting.connect(listener.local_addr()).into_future();
            let Some(Event::ConnRequest(request)) = requests.next().await else {
                panic!()
            };
            let accepting = request.accept(&domain);
            let registering = domain.register(vec![0; 256 << 20]).into_future();
            (
                domain,
                ours,
                theirs,
                ops,
                queue,
                connecting,
                accepting,
                registering,
                listener,
            )
        });
    drop(ending);
    for (what, op) in ops {
        let kind = elsewhere(what, op);
        assert_eq!(kind, ErrorKind::DriverGone, "{what}");
    }
    let completion = elsewhere("the queue", queue.next()).unwrap();
    let error = completion.result.unwrap_err().error;
    let place = format!("{:?}, {threads} threads", net.backend());
    assert_eq!(error.kind(), ErrorKind::DriverGone, "{place}: {error}");
    let kind = elsewhere("connect", connecting).unwrap_err().kind();
    // With several threads its listener, of the same runtime, may be gone before its driver.
    let by_listener =
        threads > 0 && matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset);
    assert!(kind == ErrorKind::DriverGone || by_listener, "{kind:?}");
    assert!(elsewhere("accept", accepting.into_future()).is_err());
    // The work may have been done before the end, or may not.
    if let Err(failed) = elsewhere("registration", registering) {
        assert_eq!(failed.kind(), ErrorKind::DriverGone);
    }
    assert!(!dead_listener.is_listening());
    // Later ones.
    let later = |what, result: Result<(), ErrorKind>| {
        assert_eq!(result, Err(ErrorKind::DriverGone), "{what}")
    };
    later(
        "send",
        elsewhere("send", ours.send("late").into_future())
            .map(drop)
            .map_err(|f| f.kind()),
    );
    later(
        "receive",
        elsewhere("recv", ours.recv(vec![0; 8]).into_future())
            .map(drop)
            .map_err(|f| f.kind()),
    );
    later("inject", ours.inject(b"late").map_err(|error| error.kind()));
    later(
        "endpoint",
        us.endpoint().open().map(drop).map_err(|error| error.kind()),
    );
    elsewhere("shutdown", ours.shutdown()).unwrap();
    // The peer, on its own runtime, sees a peer that died.
    let kind = other.block_on(async {
        let limit = Duration::from_secs(20);
        let lost = async {
            loop {
                if let Err(failed) = theirs.recv(vec![0; 8]).await
                    && failed.kind() != ErrorKind::Truncated
                {
                    return failed.kind();
                }
            }
        };
        tokio::time::timeout(limit, lost)
            .await
            .unwrap_or_else(|_| panic!("{:?}, {threads} threads: unnoticed", net.backend()))
    });
    assert!(
        matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset),
        "{kind:?}"
    );
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connections that end in all ways leave no descriptor behind. In a process of its own, where
/// no other test opens any.
#[test]
fn no_descriptor_is_left_behind() {
    alone("cancel::gone::descriptors_come_back");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn descriptors_come_back() {
    let cycle = |threads: usize, deed: usize| {
        let runtime = runtime(threads);
        let left = runtime.block_on(async {
            let net = Net::on(Backend::Epoll);
            let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
            let region = them
                .domain
                .register(vec![0; 8])
                .access(Access::all())
                .await
                .unwrap();
            let mut left = Vec::new();
            for _ in 0..4 {
                let (a, b) = connect(&us, &them).await.unwrap();
                let send = a.send(vec![1; 8 << 20]).post().unwrap();
                let read = a.read(vec![0; 8], region.remote()).post().unwrap();
                let receive = b.recv(vec![0; 8]).post().unwrap();
                match deed {
                    0 => drop((send, read, receive)),
                    1 => a.shutdown().await.unwrap(),
                    _ => left.push((send, read, receive)),
                }
            }
            left
        });
        drop(runtime);
        drop(left);
    };
    for deed in 0..3 {
        cycle(0, deed); // Whatever is opened once is open now.
    }
    let before = descriptors();
    for threads in [0, 2] {
        for deed in 0..3 {
            cycle(threads, deed);
            assert_eq!(descriptors(), before, "{threads} threads, way {deed}");
        }
    }
}
