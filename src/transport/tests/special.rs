//! Requirements for single backends, the clocks and the fault injector.

use std::time::Instant;

use super::*;
use crate::buf::{RegionMemory, RegionTraits, RegionUse, Stage};
use crate::limits::{LOCAL_RING_LEN_MIN, STAGE_SIZE};
use crate::transport::epoll::EpollTransport;
use crate::transport::select::runtime_for;

async fn until(clock: &mut dyn Clock, at: Instant) {
    std::future::poll_fn(|cx| clock.poll_deadline(at, clock.now(), cx)).await;
}

#[tokio::test(start_paused = true)]
async fn sockets_live_in_real_time_even_when_tokios_is_paused() {
    let mut clock = TestTransport::epoll().transport.open_clock().unwrap();
    let start = Instant::now();
    assert!(clock.now() >= start);
    let wait = Duration::from_millis(30);
    until(&mut *clock, start + wait).await;
    assert!(start.elapsed() >= wait);
    // A deadline that has passed is ready at once, and a new one can be set after it.
    until(&mut *clock, start).await;
    let again = Instant::now();
    until(&mut *clock, again + wait).await;
    assert!(again.elapsed() >= wait);
}

#[tokio::test]
async fn a_deadline_can_be_moved_both_ways() {
    let mut clock = TestTransport::epoll().transport.open_clock().unwrap();
    let start = Instant::now();
    let counting = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counting));
    let mut cx = Context::from_waker(&waker);
    let far = start + Duration::from_secs(3600);
    assert!(
        clock
            .poll_deadline(far, Instant::now(), &mut cx)
            .is_pending()
    );
    let near = start + Duration::from_millis(20);
    assert!(
        clock
            .poll_deadline(near, Instant::now(), &mut cx)
            .is_pending()
    );
    counting.notify.notified().await;
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(
        clock
            .poll_deadline(far, Instant::now(), &mut cx)
            .is_pending()
    );
    assert!(
        clock
            .poll_deadline(near, Instant::now(), &mut cx)
            .is_ready()
    );
}

#[tokio::test(start_paused = true)]
async fn loopback_lives_in_tokios_time() {
    let mut clock = TestTransport::loopback().transport.open_clock().unwrap();
    let (start, real) = (clock.now(), Instant::now());
    until(&mut *clock, start + Duration::from_secs(3600)).await;
    assert!(clock.now() >= start + Duration::from_secs(3600));
    assert!(real.elapsed() < Duration::from_secs(60));
    until(&mut *clock, start).await;
}

#[tokio::test]
async fn an_idle_connection_holds_no_staging_buffer() {
    let runtime = runtime_for(Backend::Epoll).unwrap();
    let world = TestTransport {
        transport: Arc::new(EpollTransport::new(runtime, None)),
        name: "epoll",
        local: None,
        drives: None,
    };
    let (mut near, mut far) = world.pair().await;
    far.link.receive(Receive::Stage);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(far.link.poll_outcome().is_none());
    assert_eq!(Stage::idle_count(), 0, "none was ever needed");

    near.send_all(plain(b"hello")).await;
    let Received::Stage(stage) = far.received().await else {
        panic!("expected bytes");
    };
    assert_eq!(&*stage, b"hello");
    drop(stage);
    assert_eq!(Stage::idle_count(), 1);
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    assert_eq!(Stage::idle_count(), 1, "it went back to the pool");
}

#[tokio::test]
async fn idle_links_are_not_woken() {
    for world in TestTransport::all() {
        let (mut near, mut far) = world.pair().await;
        far.link.receive(Receive::Stage);
        near.link.watch();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(far.link.poll_outcome().is_none());
        assert!(near.link.poll_outcome().is_none());
        let before = (near.waker.wakes(), far.waker.wakes());
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!(
            (near.waker.wakes(), far.waker.wakes()),
            before,
            "{}",
            world.name
        );
    }
}

/// A link may be tried any number of times: it returns bytes without the reactor's report, and
/// failed tries lose no wake.
#[tokio::test]
async fn a_look_brings_what_is_there_and_loses_no_wake() {
    let world = TestTransport::epoll();
    let (mut near, mut far) = world.pair().await;
    assert!(far.link.try_receive().is_none(), "nothing is armed");
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    assert!(far.link.try_receive().is_none());
    near.send_all(plain(b"sent")).await;
    assert!(matches!(far.received().await, Received::Stage(stage) if *stage == *b"sent"));

    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    near.send_all(plain(b"seen")).await;
    // This thread's reactor has had no turn since.
    let Some(Outcome::Received(Received::Stage(stage))) = far.link.try_receive() else {
        panic!("it is there");
    };
    assert_eq!(*stage, *b"seen");
    assert!(far.link.try_receive().is_none(), "nothing is armed");
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    assert!(far.link.try_receive().is_none());
    near.send_all(plain(b"more")).await;
    assert!(matches!(far.received().await, Received::Stage(stage) if *stage == *b"more"));
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    near.link.finish();
    assert!(matches!(far.received().await, Received::End { .. }));
}

/// Whatever a peer stores in the memory that both share: the connection ends, by a reset and an
/// error that says why.
#[tokio::test]
async fn a_peer_that_lies_in_shared_memory_loses_its_connection() {
    let worlds = [TestTransport::epoll()].into_iter();
    let worlds = worlds
        .chain(TestTransport::io_uring())
        .chain(TestTransport::thread());
    for world in worlds {
        for (what, lie) in crate::transport::local::LIES {
            let (mut near, mut liar) = world.pair().await;
            let [ours, mut theirs] = crate::transport::local::parts_of_len(LOCAL_RING_LEN_MIN);
            near.link.localize(ours, &*world.transport).unwrap();
            liar.send_all(plain(b"honest")).await;
            assert_eq!(near.receive_staged(6).await, b"honest");
            near.link.receive(Receive::Stage);
            assert!(near.link.poll_outcome().is_none());
            lie(&mut theirs);
            theirs.ring_peer();
            near.link.send(plain(b"to the ring"));
            let error = loop {
                match near.outcome().await {
                    Outcome::Sent { result: Ok(_), .. } => {}
                    Outcome::Sent {
                        result: Err(error), ..
                    }
                    | Outcome::Received(Received::Failed { error, .. }) => break error,
                    other => panic!("{what}: {other:?}"),
                }
            };
            assert_eq!(
                error.kind(),
                ErrorKind::ProtocolViolation,
                "{what}: {error}"
            );
            let end = loop {
                liar.link.receive(Receive::Stage);
                match liar.received().await {
                    Received::Stage(_) => {}
                    end => break end,
                }
            };
            assert!(matches!(end, Received::Failed { .. }), "{what}: {end:?}");
        }
    }
}

#[tokio::test]
async fn a_full_stage_is_followed_by_the_rest() {
    for world in TestTransport::all() {
        let (mut near, mut far) = world.pair().await;
        let bytes = pattern(STAGE_SIZE * 2 + 1, 3);
        near.send_all(plain(&bytes)).await;
        assert!(far.receive_staged(bytes.len()).await == bytes);
    }
}

#[tokio::test]
async fn an_inline_send_ends_within_the_call() {
    for world in TestTransport::all() {
        let (mut near, _far) = world.pair().await;
        let rung = near.waker.wakes();
        near.link.send(plain(b"quick"));
        assert!(
            matches!(near.link.poll_outcome(), Some(Outcome::Sent { .. })),
            "{}",
            world.name
        );
        assert_eq!(near.waker.wakes(), rung, "its caller need not be woken");
    }
}

#[tokio::test]
async fn a_spent_cooperative_budget_stops_no_link() {
    let (mut near, mut far) = TestTransport::epoll().pair().await;
    near.send_all(plain(b"while the budget lasts")).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    far.link.receive(Receive::Stage);
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    (0..1000).for_each(|at| sender.send(at).unwrap());
    while receiver.poll_recv(&mut cx).is_ready() {}
    assert!(!tokio::task::coop::has_budget_remaining());
    let rung = near.waker.wakes();
    near.link.send(plain(b"and after it"));
    assert!(matches!(
        near.link.poll_outcome(),
        Some(Outcome::Sent { .. })
    ));
    assert!(matches!(
        far.link.poll_outcome(),
        Some(Outcome::Received(_))
    ));
    assert_eq!(near.waker.wakes(), rung);
}

fn io_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap()
}

#[tokio::test]
async fn an_accepted_socket_moves_to_another_runtime_and_outlives_its_listeners() {
    let (listening, serving) = (io_runtime(), io_runtime());
    let transport_of =
        |runtime: &tokio::runtime::Runtime| EpollTransport::new(runtime.handle().clone(), None);
    // No runtime is entered for these: the transport has its own handle.
    let (mut listener, near, adopting) = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let listener = transport_of(&listening).listen(localhost()).unwrap();
                let to = listener.local_addr();
                let connecting = transport_of(&serving);
                let near = Peer::new(|waker| connecting.connect(to, None, waker));
                (listener, near, connecting)
            })
            .join()
            .unwrap()
    });
    let mut near = near;
    assert!(matches!(near.outcome().await, Outcome::Connected));
    let raw = accept(&mut *listener).await.unwrap();
    assert_eq!(raw.peer_addr(), near.link.local_addr());
    assert_eq!(raw.local_addr(), near.link.peer_addr());
    let mut far = Peer::new(|waker| adopting.adopt(raw, waker));
    drop(listener);
    listening.shutdown_background();
    near.send_all(plain(b"still here")).await;
    assert_eq!(far.receive_staged(10).await, b"still here");

    // Without its own runtime it fails, and does not hang.
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    serving.shutdown_background();
    match far.received().await {
        Received::Failed { error, .. } => assert_eq!(error.kind(), ErrorKind::DriverGone),
        other => panic!("expected a failure, found {other:?}"),
    }
}

#[tokio::test]
async fn a_listener_whose_runtime_is_gone_says_so() {
    let runtime = io_runtime();
    let transport = EpollTransport::new(runtime.handle().clone(), None);
    let mut listener = transport.listen(localhost()).unwrap();
    runtime.shutdown_background();
    let error = accept(&mut *listener).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DriverGone);
}

#[tokio::test]
async fn nothing_is_made_on_a_runtime_that_is_gone() {
    let runtime = io_runtime();
    let transport = EpollTransport::new(runtime.handle().clone(), None);
    // Waits for the runtime to be down, which is not allowed within another.
    std::thread::spawn(|| drop(runtime)).join().unwrap();
    let error = transport.listen(localhost()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::DriverGone);
    let error = transport.open_clock().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::DriverGone);
}

#[tokio::test]
async fn links_of_one_backend_are_refused_by_the_other() {
    let (epoll, loopback) = (TestTransport::epoll(), TestTransport::loopback());
    for (world, other) in [(&epoll, &loopback), (&loopback, &epoll)] {
        let mut listener = world.transport.listen(localhost()).unwrap();
        let to = listener.local_addr();
        let _near = Peer::new(|waker| world.transport.connect(to, None, waker));
        let raw = accept(&mut *listener).await.unwrap();
        let error = other.transport.adopt(raw, Waker::noop().clone());
        assert_eq!(error.err().unwrap().kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn a_listener_without_a_port_takes_one_of_the_range() {
    for world in TestTransport::all() {
        let backend = world.transport.backend();
        let ports = PortRange::new(42_000..=42_999).unwrap();
        let options = TransportOptions {
            backend: Some(backend),
            ports: Some(ports),
            net: Some(LoopbackNet::new()),
            ..TransportOptions::default()
        };
        let transport = open(&options).unwrap().transport;
        for _ in 0..3 {
            let listener = transport.listen(localhost()).unwrap();
            assert!((42_000..=42_999).contains(&listener.local_addr().port()));
        }
    }
}

#[tokio::test]
async fn the_source_address_is_as_asked_for() {
    for world in TestTransport::all() {
        let mut listener = world.transport.listen(localhost()).unwrap();
        let to = listener.local_addr();
        let from = (std::net::Ipv4Addr::new(127, 0, 0, 9), 0).into();
        let mut near = Peer::new(|waker| world.transport.connect(to, Some(from), waker));
        assert!(matches!(near.outcome().await, Outcome::Connected));
        let raw = accept(&mut *listener).await.unwrap();
        assert_eq!(raw.peer_addr().ip(), from.ip());
        assert_eq!(raw.peer_addr(), near.link.local_addr());
    }
}

#[tokio::test]
async fn a_wildcard_listener_is_reached_by_any_address() {
    for world in TestTransport::all() {
        let any = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        let mut listener = world.transport.listen(any).unwrap();
        let to = (std::net::Ipv4Addr::LOCALHOST, listener.local_addr().port()).into();
        let _near = Peer::new(|waker| world.transport.connect(to, None, waker));
        let raw = accept(&mut *listener).await.unwrap();
        assert_eq!(raw.local_addr(), to);
    }
}

#[tokio::test]
async fn private_networks_do_not_see_each_other() {
    let (one, other) = (TestTransport::loopback(), TestTransport::loopback());
    let listener = one.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    let mut near = Peer::new(|waker| other.transport.connect(to, None, waker));
    assert!(matches!(near.outcome().await, Outcome::Failed(_)));
    assert!(Arc::ptr_eq(&LoopbackNet::global(), &LoopbackNet::global()));
}

#[tokio::test]
async fn connections_not_accepted_are_reset_with_their_listener() {
    for world in TestTransport::all() {
        let listener = world.transport.listen(localhost()).unwrap();
        let to = listener.local_addr();
        let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
        assert!(matches!(near.outcome().await, Outcome::Connected));
        drop(listener);
        near.link.receive(Receive::Stage);
        match near.received().await {
            Received::Failed { error, .. } => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
            other => panic!("expected a reset, found {other:?}"),
        }
    }
}

/// A payload of a region, as a peer's operation uses it, and that region.
fn remote(len: usize) -> (Payload, Arc<RegionMemory>) {
    let memory =
        RegionMemory::new(vec![vec![1; len].into()], RegionTraits::plain(u64::MAX)).unwrap();
    let part = RegionUse::remote(Arc::clone(&memory), 0, len);
    (Payload::from_region_uses(vec![part]), memory)
}

#[tokio::test]
async fn a_copying_backend_touches_no_region_that_refuses() {
    let (mut near, mut far) = TestTransport::loopback().pair().await;
    let (payload, memory) = remote(8);
    far.link.receive(Receive::Direct(direct(payload, 0, 8)));
    memory.gate().revoke();
    near.send_all(plain(b"trespass")).await;
    match far.received().await {
        Received::Cancelled { returned: Some(_) } => {}
        other => panic!("expected the receive back, found {other:?}"),
    }
    let mut bytes = [0; 8];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
    assert_eq!(far.receive_staged(8).await, b"trespass", "not lost");

    let (payload, memory) = remote(8);
    let leases = payload.lease().unwrap();
    memory.gate().revoke();
    let mut both = batch([(&b"one"[..], Payload::empty()), (b"two", payload)]);
    both.leases.push(leases);
    near.link.send(both);
    let (mut back, result) = near.sent().await;
    back.drop_sent(result.unwrap());
    assert_eq!(back.len(), 1, "the frame before it went out");
    near.link.send(back);
    let (_, result) = near.sent().await;
    assert_eq!(result.unwrap(), 0);
    assert_eq!(far.receive_staged(3).await, b"one");
}

#[tokio::test]
#[should_panic(expected = "the regions of a receive are leased")]
async fn a_receive_into_a_region_without_a_lease_is_a_bug() {
    let (_near, mut far) = TestTransport::epoll().pair().await;
    let mut direct = direct(remote(8).0, 0, 8);
    direct.leases = Leases::none();
    far.link.receive(Receive::Direct(direct));
}

#[tokio::test]
#[should_panic(expected = "one receive is armed at a time")]
async fn a_second_receive_is_a_bug() {
    let (_near, mut far) = TestTransport::loopback().pair().await;
    far.link.receive(Receive::Stage);
    far.link.receive(Receive::Stage);
}

#[tokio::test]
async fn a_batch_of_more_pieces_than_one_call_takes_goes_out_in_several() {
    for world in TestTransport::all() {
        let (mut near, mut far) = world.pair().await;
        let heads: Vec<[u8; 16]> = (0..100).map(|at| [at; 16]).collect();
        let parts = |head: &[u8; 16]| vec![vec![head[0]; 3], vec![head[0]; 5]];
        let frames = heads.iter().map(|head| frame(head, parts(head)));
        near.send_all(batch(frames)).await;
        let expected: Vec<u8> = (0..100).flat_map(|at| [at; 24]).collect();
        assert_eq!(far.receive_staged(2400).await, expected);
    }
}

/// Returns what one end sees of a connection that is cut somewhere within 1000 to 2000 bytes.
async fn until_cut(world: &TestTransport) -> (usize, Vec<usize>) {
    let (mut near, mut far) = world.pair().await;
    let mut sizes = Vec::new();
    loop {
        near.link.send(plain(&[7; 500]));
        match near.sent().await {
            (_, Ok(count)) => sizes.push(count),
            (_, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
        }
    }
    far.link.receive(Receive::Stage);
    loop {
        match far.received().await {
            Received::Stage(_) => far.link.receive(Receive::Stage),
            Received::Failed { error, .. } => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
            other => panic!("expected bytes or a reset, found {other:?}"),
        }
    }
    (sizes.iter().sum(), sizes)
}

#[tokio::test]
async fn a_seed_repeats_its_faults() {
    let plan = |seed| {
        FaultPlan::seeded(seed)
            .short_io(0.7)
            .cut_after_bytes(1000..=2000)
    };
    let mut seen = Vec::new();
    for world in [TestTransport::loopback_with, TestTransport::epoll_with] {
        for seed in [1, 1, 2] {
            let world = world(plan(seed));
            let first = until_cut(&world).await;
            assert!((1000..=2000).contains(&first.0));
            let second = until_cut(&world).await;
            assert_ne!(first, second, "links differ from each other");
            seen.push((first, second));
        }
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
    // If everything fits into the buffers, only the plan determines the cut, whatever the backend.
    assert_eq!(seen[..3], seen[3..]);
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_late_as_planned() {
    let plan = FaultPlan::seeded(3).delay(Duration::from_secs(10)..=Duration::from_secs(20));
    let world = TestTransport::loopback_with(plan);
    // Longer than the helpers' timeout, so the test waits here itself.
    let start = tokio::time::Instant::now();
    let mut listener = world.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
    accept(&mut *listener).await.unwrap();
    assert!(near.link.poll_outcome().is_none());
    loop {
        near.waker.notify.notified().await;
        if let Some(outcome) = near.link.poll_outcome() {
            assert!(matches!(outcome, Outcome::Connected));
            break;
        }
    }
    let late = start.elapsed();
    assert!(late >= Duration::from_secs(10) && late < Duration::from_secs(21));
    assert!(format!("{:?}", world.transport).contains("seed: 3"));
}
