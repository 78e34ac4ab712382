//! The engine over in-process pipes, with time paused: cases that once stood still, or spun.
//!
//! Paused time passes only while every task sleeps, so a driver that spins stops these tests as one
//! that hangs does.

mod budgets;
mod idle;
mod listen;
mod shutdown;
mod turns;

use std::future::{Future, IntoFuture};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::eq::{Event, EventQueue};
use crate::error::ErrorKind;
use crate::mr::Access;
use crate::progress::Port;
use crate::testing::{Net, Peer, connect_endpoints};

/// Runs the test in paused time, on a thread of its own that is given up after a while.
#[track_caller]
fn run<F: Future<Output = ()>>(test: impl FnOnce(Net) -> F + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let limited = tokio::time::timeout(Duration::from_secs(600), test(Net::loopback()));
            limited.await.expect("the test stands still");
        });
        let _ = done.send(());
    });
    // Long enough for a busy machine: a test that spins never ends.
    match ended.recv_timeout(Duration::from_secs(240)) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("something spins: time does not pass"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread
                .join()
                .expect_err("it ends without a word only by a panic");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Two connected endpoints with contexts of one operation, and no room for unexpected messages. The
/// sender does not know of that: it would be the extension's credit.
async fn narrow(net: &Net) -> (Peer, Peer, Endpoint, Endpoint) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let near = a.domain.endpoint().transmit_size(1).open().unwrap();
    let far = b
        .domain
        .endpoint()
        .receive_size(1)
        .unexpected_bytes(0)
        .extension(false)
        .open()
        .unwrap();
    connect_endpoints(&near, &far, &b.fabric).await.unwrap();
    (a, b, near, far)
}

/// The connections of this peer's domain.
fn ports(peer: &Peer) -> Vec<Arc<Port>> {
    let ports = peer.domain.engine_for_endpoint().lock_ports();
    let all = ports.keys().into_iter().map(|key| ports.get(key).cloned());
    all.filter_map(|pollable| pollable?.connection()).collect()
}

async fn until_shutdown(events: &EventQueue) {
    while !matches!(events.next().await, Some(Event::Shutdown { .. })) {}
}

/// Lets every task and driver run until nothing moves.
async fn run_all() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Ruling 3: "`post` and `.await` wait in one FIFO per context": all of them are admitted without
/// any further call.
#[test]
fn operations_that_wait_for_a_context_all_get_in() {
    run(|net| async move {
        let (_a, _b, near, far) = narrow(&net).await;
        let receives: Vec<_> = (0..20)
            .map(|_| far.recv(vec![0; 9]).post().unwrap())
            .collect();
        let sends: Vec<_> = (0..20)
            .map(|at| near.send(vec![at; 9]).post().unwrap())
            .collect();
        for (at, send) in sends.into_iter().enumerate() {
            assert_eq!(send.await.unwrap().1, [at as u8; 9]);
        }
        for (at, receive) in receives.into_iter().enumerate() {
            assert_eq!(receive.await.unwrap().1, [at as u8; 9]);
        }
    });
}

/// The same for receives that wait while messages are in the staging buffer already.
#[test]
fn receives_that_wait_for_a_context_take_what_is_staged() {
    run(|net| async move {
        let (_a, _b, near, far) = narrow(&net).await;
        for at in 0..20 {
            near.send(vec![at; 9]).await.unwrap();
        }
        run_all().await;
        let receives: Vec<_> = (0..20)
            .map(|_| far.recv(vec![0; 9]).post().unwrap())
            .collect();
        for (at, receive) in receives.into_iter().enumerate() {
            assert_eq!(receive.await.unwrap().1, [at as u8; 9]);
        }
    });
}

/// An operation that waits for a slot in its completion queue is accepted when it has one.
#[test]
fn an_operation_that_waits_for_a_completion_slot_is_accepted_when_it_has_one() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().size(1).open().unwrap();
        let near = a.domain.endpoint().transmit_queue(&queue).open().unwrap();
        let far = b.domain.endpoint().open().unwrap();
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        near.send(vec![1]).queue(1u64).await.unwrap();
        let second = near.send(vec![2]).queue(2u64).post().unwrap();
        let third = near.send(vec![3]).queue(3u64).post().unwrap();
        let behind = near.send(vec![4]).post().unwrap();
        run_all().await; // The driver looks for a place, and finds none.
        assert!(!second.is_accepted());
        assert_eq!(queue.next().await.unwrap().context.0, 1);
        second.await.unwrap();
        // An operation that needs no slot is admitted when the one before it goes away.
        run_all().await;
        drop(third);
        behind.await.unwrap();
        assert_eq!(queue.next().await.unwrap().context.0, 2);
    });
}

/// An orderly end does not wait indefinitely for a peer that does not read.
#[test]
fn shutdown_ends_although_the_peer_does_not_read() {
    run(|net| async move {
        let (a, _b, near, _far) = narrow(&net).await;
        let stuck = near.send(vec![0; 4 << 20]).post().unwrap();
        let waiting = near.send(vec![0; 10]).post().unwrap();
        run_all().await;
        near.shutdown().await.unwrap();
        assert_eq!(stuck.await.unwrap_err().error().kind(), ErrorKind::Canceled);
        assert_eq!(
            waiting.await.unwrap_err().error().kind(),
            ErrorKind::Canceled
        );
        until_shutdown(&a.events).await;
    });
}

/// An orderly close first sends operations that wait for room in the context too.
#[test]
fn shutdown_sends_what_waits_first() {
    run(|net| async move {
        let (_a, _b, near, far) = narrow(&net).await;
        let receives: Vec<_> = (0..5)
            .map(|_| far.recv(vec![0; 9]).post().unwrap())
            .collect();
        let sends: Vec<_> = (0..5)
            .map(|at| near.send(vec![at; 9]).post().unwrap())
            .collect();
        near.shutdown().await.unwrap();
        for send in sends {
            send.await.unwrap();
        }
        for receive in receives {
            receive.await.unwrap();
        }
    });
}

/// "Idle costs no CPU": also while a closed connection waits for its peer's end and its domain is
/// gone.
#[test]
fn a_domain_that_ends_waits_without_spinning() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let near = a.domain.endpoint().open().unwrap();
        let far = b.domain.endpoint().unexpected_bytes(0).extension(false);
        let far = far.open().unwrap();
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        near.send(vec![1; 100]).await.unwrap(); // Stays unread, so the other side never closes.
        run_all().await;
        drop((near, a));
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

/// "Idle costs no CPU": also if a peer has ended its stream while its last write waits for a slot
/// in a completion queue; the write is delivered when there is one.
#[test]
fn a_paused_connection_whose_peer_has_ended_waits_without_spinning() {
    run(|net| async move {
        // With the payload of the waiting write in the staging buffer, and without.
        for len in [8, 0] {
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let queue = b.domain.completion_queue().size(1).open().unwrap();
            let near = a.domain.endpoint().open().unwrap();
            let far = b.domain.endpoint().receive_queue(&queue).open().unwrap();
            connect_endpoints(&near, &far, &b.fabric).await.unwrap();
            let region = b
                .domain
                .register(vec![0; 8])
                .access(Access::REMOTE_WRITE)
                .await
                .unwrap();
            let writes: Vec<_> = (0..2)
                .map(|at| near.write(vec![1; len], region.remote()).imm(at).post())
                .collect();
            near.shutdown().await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            for at in 0..2 {
                assert_eq!(queue.next().await.unwrap().data, Some(at));
            }
            until_shutdown(&b.events).await;
            drop(writes);
        }
    });
}

/// The peer's end is seen while reading is paused, also after a region was closed meanwhile.
#[test]
fn closing_a_region_does_not_hide_the_end_of_a_paused_connection() {
    run(|net| async move {
        let (_a, b, near, _far) = narrow(&net).await;
        let region = b
            .domain
            .register(vec![0; 8])
            .access(Access::REMOTE_WRITE)
            .await
            .unwrap();
        near.send(vec![1; 100]).await.unwrap();
        run_all().await;
        region.deregister().await.unwrap();
        run_all().await;
        near.shutdown().await.unwrap();
        until_shutdown(&b.events).await;
    });
}

/// `Shutdown` reports the end of a connection; without one there is no such event.
#[test]
fn an_endpoint_that_was_never_connected_reports_no_shutdown() {
    run(|net| async move {
        let peer = net.peer().unwrap();
        peer.domain
            .endpoint()
            .open()
            .unwrap()
            .shutdown()
            .await
            .unwrap();
        run_all().await;
        assert!(peer.events.try_next().is_none());
    });
}

/// Ruling 11: "every pending and later operation fails with `DriverGone`", whatever it was doing.
#[test]
fn everything_ends_with_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (peers, near, sends, receive) = runtime.block_on(async {
        let (a, b, near, far) = narrow(&Net::loopback()).await;
        let receive = near.recv(vec![0; 7]).post().unwrap();
        let sends: Vec<_> = (0..3)
            .map(|_| near.send(vec![0; 1 << 20]).post().unwrap())
            .collect();
        tokio::task::yield_now().await;
        ((a, b, far), near, sends, receive)
    });
    drop(runtime);
    futures::executor::block_on(async {
        for send in sends {
            let failed = send.await.unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::DriverGone);
        }
        assert_eq!(
            receive.await.unwrap_err().error().kind(),
            ErrorKind::DriverGone
        );
        assert_eq!(
            near.send(vec![1]).await.unwrap_err().error().kind(),
            ErrorKind::DriverGone
        );
        near.shutdown().await.unwrap();
        until_shutdown(&peers.0.events).await;
    });
}

/// A deadline that the clock cannot represent is no deadline.
#[test]
fn a_listener_takes_any_handshake_timeout() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let listener = b
            .fabric
            .passive_endpoint(&b.events)
            .handshake_timeout(Duration::MAX);
        let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let near = a.domain.endpoint().open().unwrap();
        let connecting = near
            .connect(listener.local_addr())
            .timeout(Duration::MAX)
            .into_future();
        let Some(Event::ConnRequest(request)) = b.events.next().await else {
            panic!("no request")
        };
        let _far = request.accept(&b.domain).await.unwrap();
        connecting.await.unwrap();
    });
}

/// Ruling 8: "A listener without a free slot stops accepting", and continues when there is one.
#[test]
fn a_listener_goes_on_when_its_queue_has_room_again() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().size(1).open().unwrap();
        let listener = b.fabric.passive_endpoint(&requests);
        let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut ends = Vec::new();
        for at in 0..6u8 {
            let near = a.domain.endpoint().open().unwrap();
            let connecting = near.connect(listener.local_addr()).data([at]).into_future();
            ends.push((near, connecting));
        }
        run_all().await;
        for (at, (_near, connecting)) in ends.into_iter().enumerate() {
            let Some(Event::ConnRequest(request)) = requests.next().await else {
                panic!("no request")
            };
            assert_eq!(request.data()[..], [at as u8]);
            if at % 2 == 0 {
                let _far = request.accept(&b.domain).await.unwrap();
                connecting.await.unwrap();
            } else {
                request.reject().data("no").send().unwrap();
                let refused = connecting.await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
                assert_eq!(refused.data()[..], *b"no");
            }
        }
    });
}

/// Peers that connect and stay silent keep no others out: the oldest of too many is closed, and the
/// others when their deadline passes.
#[test]
fn silent_peers_keep_no_others_out() {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpStream;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::on(crate::transport::Backend::Epoll);
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let listener = b.fabric.passive_endpoint(&b.events).half_open_max(2);
        let listener = listener.handshake_timeout(Duration::from_millis(300));
        let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(TcpStream::connect(listener.local_addr()).await.unwrap());
        }
        let started = std::time::Instant::now();
        assert_eq!(silent.remove(0).read(&mut [0; 8]).await.unwrap_or(0), 0);
        let near = a.domain.endpoint().open().unwrap();
        let connecting = near.connect(listener.local_addr()).into_future();
        let Some(Event::ConnRequest(request)) = b.events.next().await else {
            panic!("no request")
        };
        let _far = request.accept(&b.domain).await.unwrap();
        connecting.await.unwrap();
        for mut peer in silent {
            assert_eq!(peer.read(&mut [0; 8]).await.unwrap_or(0), 0);
        }
        assert!(
            started.elapsed() < Duration::from_secs(9),
            "it was the timeout that was set"
        );
    });
}

/// A peer that offers the extension and then stays silent keeps the side that accepted it waiting
/// no longer than the listener's handshakes may take.
#[test]
fn who_accepts_a_silent_peer_waits_as_long_as_the_listener_does() {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::on(crate::transport::Backend::Epoll);
        let b = net.peer().unwrap();
        let listener = b.fabric.passive_endpoint(&b.events);
        let listener = listener.handshake_timeout(Duration::from_millis(300));
        let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut silent = TcpStream::connect(listener.local_addr()).await.unwrap();
        let mut request = [0; 32];
        request[0] = 3;
        request[8..16].copy_from_slice(b"tofa\x01\0\0\x03");
        request[24..].copy_from_slice(&1u64.to_ne_bytes());
        silent.write_all(&request).await.unwrap();
        let Some(Event::ConnRequest(request)) = b.events.next().await else {
            panic!("no request")
        };
        let started = std::time::Instant::now();
        let error = request.accept(&b.domain).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            started.elapsed() < Duration::from_secs(9),
            "it was the timeout that was set"
        );
    });
}

/// A connection may be accepted in a domain of another runtime than its listener's, and survives
/// when the listener's runtime ends.
#[test]
fn a_connection_is_accepted_in_another_runtime() {
    for backend in [
        crate::transport::Backend::Loopback,
        crate::transport::Backend::Epoll,
    ] {
        let net = Net::on(backend);
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        };
        let (listening, serving) = (runtime(), runtime());
        let (a, listener) = listening.block_on(async {
            let a = net.peer().unwrap();
            let listener = a.fabric.passive_endpoint(&a.events);
            (
                a.clone(),
                listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap(),
            )
        });
        let (near, far) = serving.block_on(async {
            let (b, c) = (net.peer().unwrap(), net.peer().unwrap());
            let near = c.domain.endpoint().open().unwrap();
            let connecting = near.connect(listener.local_addr()).into_future();
            let Some(Event::ConnRequest(request)) = a.events.next().await else {
                panic!("no request")
            };
            let far = request.accept(&b.domain).await.unwrap();
            connecting.await.unwrap();
            (near, far)
        });
        drop(listening);
        assert!(!listener.is_listening());
        serving.block_on(async {
            near.send("still here").await.unwrap();
            assert_eq!(far.recv(vec![0; 10]).await.unwrap().1, b"still here");
        });
    }
}

/// Ruling 13, and idle connections cost nearly nothing: minutes pass over connections with and
/// without outstanding operations, and over one that does not read.
#[test]
fn minutes_pass_over_living_connections() {
    run(|net| async move {
        let (_a, _b, near, far) = narrow(&net).await;
        let (_c, _d, idle, _other) = narrow(&net).await;
        let receive = near.recv(vec![0; 10]).post().unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        let unread = near.send("unreceived").post().unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(near.is_connected() && idle.is_connected());
        let (_, bytes) = far.recv(vec![0; 10]).await.unwrap();
        assert_eq!(bytes, b"unreceived");
        unread.await.unwrap();
        far.send("back").await.unwrap();
        receive.await.unwrap();
    });
}

/// Ruling 12: an operation's time limit runs by the backend's clock: here time passes while all
/// tasks sleep, and an operation ends exactly when its own limit has passed.
#[test]
fn operations_end_when_their_time_has_passed() {
    run(|net| async move {
        let (_a, _b, near, far) = narrow(&net).await;
        let begun = tokio::time::Instant::now();
        let mut waiting = Vec::new();
        for seconds in [7, 3, 90, 5] {
            let limit = Duration::from_secs(seconds);
            let op = near.send("unreceived").delivery_complete();
            waiting.push((limit, op.timeout(limit).post().unwrap()));
        }
        waiting.sort_by_key(|(limit, _)| *limit);
        for (limit, op) in waiting {
            let (error, buffer) = op.await.unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert_eq!(buffer, Some("unreceived"));
            let late = begun.elapsed() - limit;
            assert!(late < Duration::from_millis(20), "{late:?} after {limit:?}");
        }
        assert!(near.is_connected() && far.is_connected());
    });
}

/// The deadlines of operations that end sooner do not pile up.
#[test]
fn times_of_ended_operations_are_forgotten() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let [near, far] = [&a, &b].map(|peer| peer.domain.endpoint().open().unwrap());
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        for _ in 0..2000 {
            let limit = Duration::from_secs(500);
            let receive = far.recv(vec![0; 4]).timeout(limit).post().unwrap();
            near.send("ping").timeout(limit).await.unwrap();
            receive.await.unwrap();
        }
        for port in [near.port(), far.port()] {
            let kept = port.lock("test").timers.deadlines.kept_len();
            assert!(kept <= 200, "{kept} are kept");
        }
    });
}
