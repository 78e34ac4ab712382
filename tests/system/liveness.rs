//! Dead peers are found, living ones are left alone (ruling 13; `docs/extension.md`, section 5).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::child::PeerProcess;
use crate::common::ticks::Ticks;
use crate::common::{on_each_at_once, on_every_backend_at_once, on_sockets_at_once};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Backend, Completion, Driver, Endpoint, ErrorKind, Event, MemoryRegion, RemoteRegion,
    ep::Liveness, error::OperationKind,
};

/// Quick enough for a test, slow enough for a busy machine: 1.2 s.
fn quick() -> Liveness {
    let interval = Duration::from_millis(200);
    let quick = Liveness::default().interval(interval).rounds(4);
    quick.idle_interval(interval)
}

fn limit() -> Duration {
    quick().found_within().expect("it is on")
}

/// For peers that are to live on threads of their own, which a busy machine keeps waiting.
fn patient() -> Liveness {
    quick().rounds(15)
}

/// Long enough for a busy machine, which delays what it does not falsify.
async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future.into_future())
        .await
        .unwrap_or_else(|_| panic!("{what}: nothing comes"))
}

fn endpoint(peer: &Peer, liveness: Liveness) -> Endpoint {
    let queue = peer.domain.completion_queue().open().unwrap();
    let builder = peer.domain.endpoint().completion_queue(&queue);
    builder.liveness(liveness).open().unwrap()
}

async fn shutdown_is_reported(peer: &Peer) {
    let shutdown = async {
        loop {
            match peer.events.next().await {
                Some(Event::Connected { .. }) => {}
                Some(Event::Shutdown { .. }) => return,
                other => panic!("{other:?}"),
            }
        }
    };
    soon("Shutdown", shutdown).await;
    assert!(peer.events.is_empty(), "something follows Shutdown");
}

/// A connection to another process, with the region that it offers.
struct Other {
    process: PeerProcess,
    us: Peer,
    endpoint: Endpoint,
    remote: RemoteRegion,
}

/// Connects to a process that does what `role` says, as the connecting or as the accepting side.
async fn other(net: &Net, role: &str, connecting: bool, liveness: Liveness) -> Other {
    let us = net.peer().unwrap();
    let requests = us.fabric.event_queue().open().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let builder = us.fabric.passive_endpoint(&requests);
    let listener = builder.listen_at(any).unwrap();
    let dial = match connecting {
        true => String::new(),
        false => listener.local_addr().to_string(),
    };
    let variables = [
        ("TOKIO_FABRIC_ROLE", role.to_owned()),
        ("TOKIO_FABRIC_DIAL", dial),
        ("TOKIO_FABRIC_BACKEND", net.backend().to_string()),
    ];
    let started = tokio::task::spawn_blocking(move || {
        PeerProcess::start("liveness::the_other_process", &variables)
    });
    let (process, address) = started.await.unwrap();
    let endpoint = endpoint(&us, liveness);
    let data = if connecting {
        endpoint.connect(address.parse().unwrap()).await.unwrap()
    } else {
        let Some(Event::ConnRequest(request)) = requests.next().await else {
            panic!()
        };
        let data = request.data().clone();
        endpoint.accept(request).await.unwrap();
        data
    };
    let remote = RemoteRegion::from_bytes(&data).unwrap();
    Other {
        process,
        us,
        endpoint,
        remote,
    }
}

/// The other process: connects or listens, then does as its role says.
///
/// - `silent`: nothing; no receive is posted, and there is no room for messages.
/// - `echo`: sends back what it gets.
/// - `flood`: sends as much as goes, and reads nothing of ours.
/// - a leading `plain-`: the same without the extension.
#[test]
#[ignore = "the other process of other tests"]
fn the_other_process() {
    crate::common::child::end_with_the_parent();
    let role = std::env::var("TOKIO_FABRIC_ROLE").unwrap();
    let dial = std::env::var("TOKIO_FABRIC_DIAL").unwrap();
    let backend: Backend = std::env::var("TOKIO_FABRIC_BACKEND")
        .unwrap()
        .parse()
        .unwrap();
    let plain = role.strip_prefix("plain-");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let us = Net::on(backend).peer().unwrap();
        let region = open_region(&us).await;
        let data = region.remote().to_bytes();
        let builder = us.domain.endpoint().unexpected_bytes(0);
        let builder = builder.extension(plain.is_none()).liveness(Liveness::OFF);
        let endpoint = builder.open().unwrap();
        match dial.parse::<SocketAddr>() {
            Ok(address) => {
                crate::common::child::say("dials");
                endpoint.connect(address).data(data).await.unwrap();
            }
            Err(_) => {
                let requests = us.fabric.event_queue().open().unwrap();
                let address = std::env::var("TOKIO_FABRIC_LISTEN");
                let address = address.as_deref().unwrap_or("127.0.0.1:0").parse().unwrap();
                let builder = us.fabric.passive_endpoint(&requests);
                let listener = builder.listen_at(address).unwrap();
                crate::common::child::say(listener.local_addr());
                let Some(Event::ConnRequest(request)) = requests.next().await else {
                    panic!()
                };
                endpoint.accept(request).data(data).await.unwrap();
            }
        }
        match plain.unwrap_or(&role) {
            "silent" => std::future::pending().await,
            "flood" => loop {
                endpoint.send(vec![7; 1 << 20]).await.unwrap();
            },
            _ => loop {
                let (received, mut bytes) = endpoint.recv(vec![0; 1 << 16]).await.unwrap();
                bytes.truncate(received.len);
                endpoint.send(bytes).await.unwrap();
            },
        }
    })
}

async fn open_region(peer: &Peer) -> MemoryRegion<Vec<u8>> {
    let registered = peer.domain.register(vec![0; 100]).access(Access::all());
    registered.await.unwrap()
}

/// Ruling 13: "Peers that use this library are probed": a stopped process is found dead in time,
/// with operations of every kind outstanding, in either role; all end by TimedOut, then comes
/// Shutdown.
#[test]
fn a_stopped_peer_is_found_dead_with_everything_outstanding() {
    on_sockets_at_once(|net| async move {
        for connecting in [true, false] {
            let cells = [true, false].map(|blocked| found_dead(&net, connecting, blocked));
            futures::future::join_all(cells).await;
        }
    });
}

/// `blocked`: with more to send than there is room for, so that no question can go out.
async fn found_dead(net: &Net, connecting: bool, blocked: bool) {
    let other = other(net, "silent", connecting, quick()).await;
    let (x, remote) = (&other.endpoint, &other.remote);
    let queue = x.receive_queue().clone();
    other.process.stop();
    let (begun, ticks) = (Instant::now(), Ticks::start());
    let receive = x.recv(vec![0; 100]).post().unwrap();
    let receives = x.recv(vec![0; 100]).queue(1_u64).post().unwrap();
    let moving = blocked.then(|| x.send(vec![5; 32 << 20]).post().unwrap());
    let read = x.read(vec![0; 10], remote.slice(..10).unwrap());
    let read = read.post().unwrap();
    let reads = x.read(vec![0; 10], remote.slice(..10).unwrap());
    let reads = reads.queue(2_u64).post().unwrap();
    let write = x.write(vec![1; 10], remote.slice(..10).unwrap());
    let write = write.delivery_complete().post().unwrap();
    let writes = x.write(vec![1; 10], remote.slice(..10).unwrap());
    let writes = writes.delivery_complete().queue(3_u64).post().unwrap();
    let acked = x.send("acked").delivery_complete().imm(7).post().unwrap();
    let sends = x.send("acked").delivery_complete().queue(4_u64);
    let sends = sends.post().unwrap();
    x.inject(b"injected").unwrap();
    let waiting: Vec<_> = (0..300)
        .map(|_| x.send("waits").delivery_complete().post().unwrap())
        .collect();
    let timed_out = |kind: ErrorKind| assert_eq!(kind, ErrorKind::TimedOut);
    timed_out(soon("a receive", receive).await.unwrap_err().kind());
    let took = begun.elapsed();
    assert!(took >= limit() / 3, "after {took:?}");
    let took = ticks.elapsed();
    assert!(took < limit() + Duration::from_secs(3), "after {took:?}");
    if let Some(moving) = moving {
        let failed = soon("a send", moving).await.unwrap_err();
        assert_eq!(failed.error().operation(), Some(OperationKind::Send));
        assert_eq!(failed.error().peer(), x.peer_addr());
        assert!(
            failed.to_string().contains("the peer is silent"),
            "{failed}"
        );
        assert!(failed.error().is_connection_lost(), "{failed}");
        timed_out(failed.kind());
        let (_, buffer) = failed.into_parts();
        assert!(buffer.is_some_and(|buffer| buffer.len() == 32 << 20));
    }
    timed_out(soon("a read", read).await.unwrap_err().kind());
    timed_out(soon("a write", write).await.unwrap_err().kind());
    timed_out(soon("a send", acked).await.unwrap_err().kind());
    for op in waiting {
        timed_out(soon("a send that waits", op).await.unwrap_err().kind());
    }
    for accepted in [receives, reads].map(|op| op.is_accepted()) {
        assert!(accepted);
    }
    assert!(writes.is_accepted() && sends.is_accepted());
    shutdown_is_reported(&other.us).await;
    let mut completions: Vec<Completion> = Vec::new();
    queue.read_batch(&mut completions, 100);
    let mut contexts: Vec<_> = completions.iter().map(|it| it.context.0).collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2, 3, 4]);
    for completion in completions {
        timed_out(completion.result.unwrap_err().error.kind());
    }
    let late = x.send("late").await.unwrap_err();
    timed_out(late.kind());
}

/// docs/extension.md: "If it only has receives posted, it probes after an idle interval": a stopped
/// process is found then, and no sooner; within `interval`s once something else is outstanding.
#[test]
fn a_lone_receive_is_watched_at_the_idle_interval() {
    let second = Duration::from_secs(1);
    on_sockets_at_once(|net| async move {
        let idle = other(&net, "silent", true, quick().idle_interval(second));
        let busy = other(&net, "silent", true, quick().idle_interval(60 * second));
        let (idle, busy) = (idle.await, busy.await);
        for other in [&idle, &busy] {
            other.process.stop();
        }
        let (begun, ticks) = (Instant::now(), Ticks::start());
        let receives = [&idle, &busy].map(|other| {
            let receive = other.endpoint.recv(vec![0; 100]);
            receive.post().unwrap()
        });
        let [idle_receive, busy_receive] = receives;
        let failed = soon("an idle receive", idle_receive).await.unwrap_err();
        let took = begun.elapsed();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        let rounds = 4 * Duration::from_millis(200);
        assert!(took >= second / 2 + rounds, "after {took:?}");
        let took = ticks.elapsed();
        assert!(took < 2 * second + limit() + 3 * second, "after {took:?}");
        assert!(busy.endpoint.is_connected());
        let begun = ticks.elapsed();
        let read = busy
            .endpoint
            .read(vec![0; 10], busy.remote.slice(..10).unwrap());
        let failed = soon("a read", read).await.unwrap_err();
        let took = ticks.elapsed() - begun;
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert!(took < limit() + 3 * second, "after {took:?}");
        soon("a receive beside it", busy_receive).await.unwrap_err();
    });
}

/// A process that is stopped, and goes on in time, is no dead one.
#[test]
fn a_peer_that_goes_on_in_time_lives() {
    on_sockets_at_once(|net| async move {
        let patient = quick().rounds(20);
        let other = other(&net, "echo", true, patient).await;
        let receive = other.endpoint.recv(vec![0; 100]).post().unwrap();
        for _ in 0..2 {
            other.process.stop();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert!(other.endpoint.is_connected());
            other.process.go_on();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        other.endpoint.send("hello").await.unwrap();
        let (received, _) = soon("the echo", receive).await.unwrap();
        assert_eq!(received.len, 5);
    });
}

/// docs/extension.md: "A side that does not read sees no probes. It sends PONG frames without being
/// asked": a side that does not receive is not dead, on either side, and both at once.
#[test]
fn a_peer_that_does_not_receive_lives() {
    on_every_backend_at_once(|net| async move {
        let net = &net;
        let cells = [false, true].map(async |both| {
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let [x, y] = [&a, &b].map(|peer| {
                let builder = peer.domain.endpoint().unexpected_bytes(0);
                builder.liveness(patient()).open().unwrap()
            });
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            let sends = [x.send(vec![1; 20 << 20]).post(), x.send(vec![3; 4]).post()];
            let back = both.then(|| y.send(vec![2; 20 << 20]).post().unwrap());
            tokio::time::sleep(2 * patient().found_within().unwrap()).await;
            assert!(x.is_connected() && y.is_connected());
            let received = soon("a receive", y.recv(vec![0; 20 << 20])).await.unwrap();
            assert!(received.1.iter().all(|byte| *byte == 1));
            soon("a receive", y.recv(vec![0; 20])).await.unwrap();
            if let Some(back) = back {
                soon("a receive", x.recv(vec![0; 20 << 20])).await.unwrap();
                soon("a send", back).await.unwrap();
            }
            for send in sends {
                soon("a send", send.unwrap()).await.unwrap();
            }
        });
        futures::future::join_all(cells).await;
    });
}

/// A peer whose runtime, with the driver on it, is blocked for longer than the limit is dead, by
/// design; for less it is not. (One that a thread drives would go on giving signs.)
#[test]
fn a_peer_with_a_blocked_runtime_is_dead_after_the_limit() {
    on_every_backend_at_once(|net| async move {
        let net = &net;
        let cells = [(2, true), (60, false)].map(async |(rounds, dies)| {
            let us = net.peer().unwrap();
            let x = endpoint(&us, quick().rounds(rounds));
            let requests = us.fabric.event_queue().open().unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let builder = us.fabric.passive_endpoint(&requests);
            let listener = builder.listen_at(any).unwrap();
            let (address, their_net) = (listener.local_addr(), net.clone().driver(Driver::Task));
            let (end, is_over) = std::sync::mpsc::channel::<()>();
            let blocked = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let them = their_net.peer().unwrap();
                    let y = endpoint(&them, Liveness::OFF);
                    y.connect(address).await.unwrap();
                    // Who is to be found dead stays so until that has happened.
                    let _ = match dies {
                        true => is_over.recv_timeout(Duration::from_secs(60)),
                        false => is_over.recv_timeout(Duration::from_millis(1800)),
                    };
                    let _ = y.send("awake").await;
                    y.shutdown().await
                })
            });
            let Some(Event::ConnRequest(request)) = requests.next().await else {
                panic!()
            };
            x.accept(request).await.unwrap();
            let received = soon("an end", x.recv(vec![0; 10])).await;
            drop(end);
            match received {
                Ok(_) => assert!(!dies),
                Err(failed) => {
                    assert!(dies, "{failed}");
                    assert_eq!(failed.kind(), ErrorKind::TimedOut);
                }
            }
            let joined = tokio::task::spawn_blocking(move || blocked.join());
            joined.await.unwrap().unwrap().unwrap();
        });
        futures::future::join_all(cells).await;
    });
}

/// docs/extension.md: "each connection probes for itself. The times above hold": of a domain
/// that falls silent, all idle connections to it end, although they share their probes.
#[test]
fn all_idle_connections_to_a_domain_that_falls_silent_end() {
    const CONNECTIONS: usize = 5;
    let idle = Duration::from_secs(2);
    on_every_backend_at_once(|net| async move {
        let us = net.peer().unwrap();
        let requests = us.fabric.event_queue().open().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let builder = us.fabric.passive_endpoint(&requests);
        let listener = builder.listen_at(any).unwrap();
        let (address, their_net) = (listener.local_addr(), net.clone().driver(Driver::Task));
        let (silence, is_silent) = tokio::sync::oneshot::channel::<()>();
        let (end, is_over) = std::sync::mpsc::channel::<()>();
        let silent = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let them = their_net.peer().unwrap();
                let mut all = Vec::new();
                for _ in 0..CONNECTIONS {
                    let y = endpoint(&them, Liveness::OFF);
                    y.connect(address).await.unwrap();
                    all.push(y);
                }
                is_silent.await.unwrap();
                // From now on the driver, a task of this runtime, answers nothing.
                let _ = is_over.recv();
            });
        });
        let mut receives = Vec::new();
        let mut ours = Vec::new();
        for _ in 0..CONNECTIONS {
            let Some(Event::ConnRequest(request)) = requests.next().await else {
                panic!()
            };
            let x = endpoint(&us, patient().idle_interval(idle));
            x.accept(request).await.unwrap();
            receives.push(x.recv(vec![0; 10]).post().unwrap());
            ours.push(x);
        }
        // Long enough for a question that all of them share to be asked and answered.
        tokio::time::sleep(2 * idle).await;
        assert!(ours.iter().all(|x| x.is_connected()));
        silence.send(()).unwrap();
        let ticks = Ticks::start();
        for receive in receives {
            let failed = soon("an idle receive", receive).await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::TimedOut);
        }
        let took = ticks.elapsed();
        let limit = patient().found_within().unwrap();
        assert!(took < 2 * idle + limit + 3 * (idle / 2), "after {took:?}");
        drop(end);
        tokio::task::spawn_blocking(move || silent.join())
            .await
            .unwrap()
            .unwrap();
    });
}

/// A paused reader cannot see the end of a stream behind bytes that it does not read; what it says
/// to the dead is refused, and so it learns of it.
#[test]
fn a_side_that_does_not_read_learns_of_a_killed_peer() {
    on_sockets_at_once(|net| async move {
        let mut other = other(&net, "flood", true, quick()).await;
        // Until nothing more finds room: the end of the stream does not either.
        tokio::time::sleep(Duration::from_millis(600)).await;
        other.process.kill();
        shutdown_is_reported(&other.us).await;
    });
}

/// Ruling 13: a stopped (SIGSTOP) C peer looks like a slow one: a peer without the
/// extension that has no room, stopped or not, lives, since its system answers every probe.
#[test]
fn a_plain_peer_that_does_not_read_lives() {
    on_sockets_at_once(|net| async move {
        let second = Liveness::default().interval(Duration::from_millis(300));
        let other = other(&net, "plain-echo", true, second.rounds(3)).await;
        let x = &other.endpoint;
        assert_eq!(x.peer_incarnation(), None);
        other.process.stop();
        let receive = x.recv(vec![0; 1 << 16]).post().unwrap();
        let sends: Vec<_> = (0..200)
            .map(|_| x.send(vec![5; 1 << 16]).post().unwrap())
            .collect();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(x.is_connected());
        assert_ne!(
            sends.last().unwrap().phase(),
            tokio_fabric::error::Phase::Ended
        );
        other.process.go_on();
        soon("the echo", receive).await.unwrap();
        drop(sends);
    });
}

/// "A machine busy for seconds must not kill peers": hundreds of connections, all cores busy, and
/// no peer is taken for dead.
#[test]
fn a_storm_ends_no_connection() {
    let campaign = std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0");
    let (connections, lasts) = match campaign {
        true => (1000, Duration::from_secs(120)),
        false => (200, Duration::from_secs(6)),
    };
    let over = Arc::new(AtomicBool::new(false));
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let busy: Vec<_> = (0..2 * cores)
        .map(|_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    on_each_at_once(|net| storm(net, connections, lasts));
    over.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
}

async fn storm(net: Net, connections: usize, lasts: Duration) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let events = [&a, &b].map(|peer| {
        let queue = peer.fabric.event_queue().size(2 * connections);
        queue.open().unwrap()
    });
    let mut pairs = Vec::new();
    for _ in 0..connections {
        let [x, y] = [(&a, &events[0]), (&b, &events[1])].map(|(peer, events)| {
            let builder = peer.domain.endpoint().event_queue(events);
            builder.liveness(quick()).open().unwrap()
        });
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        pairs.push((x, y));
    }
    let awaited: Vec<_> = pairs
        .iter()
        .map(|(x, y)| {
            let receives = [x.recv(vec![0; 64]), y.recv(vec![0; 64])];
            receives.map(|receive| receive.post().unwrap())
        })
        .collect();
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        // This thread is one of the busy ones, and its runtime has the drivers.
        let pause = Instant::now() + Duration::from_millis(300);
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for ((x, y), receives) in pairs.iter().zip(awaited) {
        x.send("x").await.unwrap();
        y.send("y").await.unwrap();
        for receive in receives {
            soon("a message", receive).await.unwrap();
        }
    }
}
