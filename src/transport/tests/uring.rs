//! Cases that only the ring can do or get wrong.

use super::*;
use crate::buf::{RegionMemory, RegionTraits, RegionUse};
use crate::transport::epoll::EpollTransport;
use crate::transport::select::runtime_for;
use crate::transport::uring::UringTransport;

/// Makes a transport on a ring with queues of these sizes, driven; `None` if the kernel refuses.
pub(super) fn ring(
    submissions: u32,
    completions: u32,
) -> Option<(TestTransport, Arc<UringTransport>)> {
    let runtime = runtime_for(Backend::IoUring).expect("a runtime");
    let made = UringTransport::with_sizes(runtime, None, submissions, completions);
    let (world, transport) = self::made(made)?;
    drive(Arc::clone(&world.transport));
    Some((world, transport))
}

/// A transport that is not driven yet.
pub(super) fn made(made: Result<UringTransport>) -> Option<(TestTransport, Arc<UringTransport>)> {
    let transport = match made {
        Ok(transport) => Arc::new(transport),
        Err(error) => {
            super::say_left_out(&error);
            return None;
        }
    };
    let world = TestTransport {
        transport: Arc::clone(&transport) as Arc<dyn Transport>,
        name: "io-uring",
        local: None,
        drives: None,
    };
    Some((world, transport))
}

/// Makes a transport on the ring of a thread, which ends with it.
fn thread_ring(submissions: u32, completions: u32) -> Option<(TestTransport, Arc<UringTransport>)> {
    let made = UringTransport::for_thread_with_sizes(None, submissions, completions);
    let (ring, reactor) = match made {
        Ok((transport, reactor)) => (Arc::new(transport), reactor),
        Err(error) => {
            super::say_left_out(&error);
            return None;
        }
    };
    let transport = Arc::clone(&ring) as Arc<dyn Transport>;
    let drives = drive_on(Executor::Thread(Box::new(reactor)), &transport).expect("a thread");
    let world = TestTransport {
        transport,
        name: "io-uring on a thread",
        local: None,
        drives: Some(drives),
    };
    Some((world, ring))
}

fn usual() -> Option<(TestTransport, Arc<UringTransport>)> {
    ring(64, 1024)
}

/// Lets the driver run until `done`.
pub(super) async fn until(done: impl Fn() -> bool) {
    let waited = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited)
        .await
        .expect("it comes to pass");
}

/// A payload of a region, as a peer's operation uses it, and that region.
pub(super) fn remote(len: usize) -> (Payload, Arc<RegionMemory>) {
    let memory =
        RegionMemory::new(vec![vec![1; len].into()], RegionTraits::plain(u64::MAX)).unwrap();
    let part = RegionUse::remote(Arc::clone(&memory), 0, len);
    (Payload::from_region_uses(vec![part]), memory)
}

/// Receives enough one-byte messages that a multishot receive is armed.
async fn warm_up(near: &mut Peer, far: &mut Peer) {
    for at in 0..20 {
        near.send_all(plain(&[at])).await;
        assert_eq!(far.receive_staged(1).await, [at]);
    }
}

#[tokio::test]
async fn a_dropped_link_gives_its_lease_back_when_the_kernel_is_done() {
    let Some((world, ring)) = usual() else { return };
    let (_near, mut far) = world.pair().await;
    let (payload, memory) = remote(64);
    far.link.receive(Receive::Direct(direct(payload, 0, 64)));
    assert!(far.link.poll_outcome().is_none());
    tokio::task::yield_now().await;
    assert_eq!(ring.in_flight(), 1);
    drop(far);
    until(|| ring.in_flight() == 0).await;
    assert_eq!(Arc::strong_count(&memory), 1, "the payload is freed");
}

/// Makes a link on this transport, with a plain socket at its other end.
fn by_hand(world: &TestTransport) -> (std::net::TcpStream, Peer) {
    let listener = std::net::TcpListener::bind(localhost()).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (fd, peer) = listener.accept().unwrap();
    let local = fd.local_addr().unwrap();
    let fd = fd.into();
    let raw = RawLink::Socket(RawSocket {
        fd,
        peer,
        local,
        counts: ByteCounts::default(),
    });
    (stream, Peer::new(|waker| world.transport.adopt(raw, waker)))
}

/// memory-model 4: "`revoke().await` ends within the kernel's cancel time even if the peer stalls
/// in mid-payload": also if the kernel is just processing the peer's last bytes, and so misses the
/// receive that it is asked to cancel.
#[tokio::test]
async fn a_receive_is_cancelled_although_bytes_come_just_then() {
    const LEN: usize = 1 << 20;
    const ROUNDS: usize = 200;
    for (world, _ring) in [usual(), thread_ring(64, 1024)].into_iter().flatten() {
        for _ in 0..ROUNDS {
            let (mut stream, mut far) = by_hand(&world);
            let writing = std::thread::spawn(move || {
                // Bytes that come after the cancellation are not received.
                let _ = std::io::Write::write_all(&mut stream, &vec![7; LEN / 4]);
                stream
            });
            until(|| far.link.unread_bytes() > 0).await;
            let into = Payload::from_vec(vec![0; LEN]);
            far.link.receive(Receive::Direct(direct(into, 0, LEN)));
            far.link.cancel_receive();
            match far.received().await {
                Received::Cancelled { returned: Some(_) } | Received::Direct { .. } => {}
                other => panic!("expected the receive back, found {other:?}"),
            }
            drop(far);
            let _stalled = writing.join().unwrap();
        }
    }
}

#[tokio::test]
async fn a_leaked_link_leaves_its_memory_with_the_kernel() {
    let Some((world, ring)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    let (payload, memory) = remote(8);
    far.link.receive(Receive::Direct(direct(payload, 0, 8)));
    tokio::task::yield_now().await;
    std::mem::forget(far);
    near.send_all(plain(b"too late")).await;
    until(|| ring.in_flight() == 0).await;
    let mut bytes = [0; 8];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"too late");
}

#[tokio::test]
async fn operations_of_a_thread_that_has_exited_are_submitted_again() {
    let Some((world, ring)) = usual() else { return };
    for staged in [true, false] {
        let (mut near, mut far) = world.pair().await;
        far.link.receive(if staged {
            Receive::Stage
        } else {
            Receive::Direct(direct(Payload::from_vec(vec![0; 4]), 0, 4))
        });
        let submitting = Arc::clone(&ring);
        let exited = std::thread::spawn(move || {
            let _ = submitting.poll_drive(&mut Context::from_waker(Waker::noop()));
        });
        exited.join().unwrap();
        near.send_all(plain(b"data")).await;
        match far.received().await {
            Received::Stage(stage) => assert_eq!(&*stage, b"data"),
            Received::Direct { direct, len } => {
                assert_eq!(contents(&direct.payload)[..len], b"data"[..len]);
            }
            other => panic!("expected bytes, found {other:?}"),
        }
    }
}

#[tokio::test]
async fn more_than_all_buffers_hold_arrives_in_order() {
    const LEN: usize = 5 << 20;
    let Some((world, _)) = usual() else { return };
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let (mut near, mut far) = world.pair().await;
        warm_up(&mut near, &mut far).await;
        pairs.push((near, far));
    }
    let all = pairs
        .iter_mut()
        .enumerate()
        .map(|(salt, (near, far))| async move {
            let bytes = pattern(LEN, salt);
            let receive = async {
                // The receiver begins late, so that the kernel runs ahead of it.
                tokio::time::sleep(Duration::from_millis(30)).await;
                far.receive_staged(LEN).await
            };
            let ((), got) = tokio::join!(near.send_all(plain(&bytes)), receive);
            assert!(got == bytes, "all bytes, in order");
        });
    futures::future::join_all(all).await;
}

#[tokio::test]
async fn a_full_completion_queue_loses_nothing() {
    for made in [ring(2, 4), thread_ring(2, 4)] {
        let Some((world, ring)) = made else { return };
        let mut pairs = Vec::new();
        for _ in 0..20 {
            let (mut near, mut far) = world.pair().await;
            warm_up(&mut near, &mut far).await;
            far.link.receive(Receive::Stage);
            pairs.push((near, far));
        }
        until(|| ring.in_flight() == 20).await;
        for (near, _) in &mut pairs {
            // Without a pause, so that no harvest comes in between.
            near.link.send(plain(b"one of many"));
        }
        // Gathered sends go through the ring, and complete with more entries than the queue has
        // room for.
        for (near, _) in &mut pairs {
            assert_eq!(near.sent().await.1.unwrap(), b"one of many".len());
        }
        for (_, far) in &mut pairs {
            match far.received().await {
                Received::Stage(stage) => assert_eq!(&*stage, b"one of many"),
                other => panic!("expected bytes, found {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_direct_receive_takes_up_where_a_multishot_one_ends() {
    const LEN: usize = 3 << 20;
    let Some((world, _)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    let bytes = pattern(LEN, 5);
    let receive = async {
        let mut got = Vec::new();
        let mut round = 0;
        while got.len() < LEN {
            round += 1;
            // Long runs of one kind, so that each kind finds the other in flight.
            if (round / 12) % 2 == 0 {
                far.link.receive(Receive::Stage);
            } else {
                let len = (LEN - got.len()).min(1000 * round);
                let payload = Payload::from_vec(vec![0; len]);
                far.link.receive(Receive::Direct(direct(payload, 0, len)));
            }
            match far.received().await {
                Received::Stage(stage) => got.extend_from_slice(&stage),
                Received::Direct { direct, len } => {
                    got.extend_from_slice(&contents(&direct.payload)[..len]);
                }
                other => panic!("expected bytes, found {other:?}"),
            }
        }
        got
    };
    let send = async {
        for part in bytes.chunks(3000) {
            near.send_all(plain(part)).await;
            tokio::task::yield_now().await;
        }
    };
    let ((), got) = tokio::join!(send, receive);
    assert!(got == bytes, "all bytes, in order");
}

#[tokio::test]
async fn a_cancelled_receive_reports_what_it_has_moved() {
    let Some((world, ring)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    let (payload, memory) = remote(100);
    far.link.receive(Receive::Direct(direct(payload, 0, 100)));
    assert!(far.link.poll_outcome().is_none());
    until(|| ring.in_flight() == 1).await;
    near.send_all(plain(&[7; 40])).await;
    // The kernel gathers: the first part is there, and its receive continues.
    until(|| {
        let mut bytes = [0; 40];
        memory.read_at(0, &mut bytes).unwrap();
        bytes == [7; 40]
    })
    .await;
    assert!(far.link.poll_outcome().is_none());
    far.link.cancel_receive();
    match far.received().await {
        Received::Direct { len: 40, .. } => {}
        other => panic!("expected the part, found {other:?}"),
    }
    near.send_all(plain(&[8; 10])).await;
    assert_eq!(far.receive_staged(10).await, [8; 10]);
    let mut bytes = [0; 100];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes[40..], [1; 60], "nothing is written after the end");
}

#[tokio::test]
async fn a_connection_leaves_its_ring_without_loss() {
    let Some((world, ring)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    warm_up(&mut near, &mut far).await;
    far.link.receive(Receive::Stage);
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    let raw = far.link.take_raw().expect("nothing is submitted");
    drop(far);
    until(|| ring.in_flight() == 0).await;
    let runtime = runtime_for(Backend::Epoll).unwrap();
    let epoll = EpollTransport::new(runtime, None);
    let mut far = Peer::new(|waker| epoll.adopt(raw, waker));
    near.send_all(plain(b"over there")).await;
    assert_eq!(far.receive_staged(10).await, b"over there");
}

#[tokio::test]
async fn a_connection_with_bytes_not_yet_harvested_stays() {
    let Some((world, _)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    warm_up(&mut near, &mut far).await;
    far.link.receive(Receive::Stage);
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    near.send_all(plain(b"unread")).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(far.link.unread_bytes(), 6);
    assert!(far.link.take_raw().is_none());
    assert_eq!(far.receive_staged(6).await, b"unread");
}

#[tokio::test]
async fn a_paused_connection_takes_in_no_more_than_a_bit() {
    let Some((world, _)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    warm_up(&mut near, &mut far).await;
    // No receive is armed, and the multishot receive is still in flight. The bytes come little by
    // little, so that it does not end by running out of buffers.
    let mut moved = 0;
    let mut is_full = false;
    while !is_full && moved < 64 << 20 {
        near.link.send(plain(&[3; 10_000]));
        let waited = tokio::time::timeout(Duration::from_millis(200), near.sent()).await;
        is_full = waited.is_err();
        let (_, result) = match waited {
            Ok(sent) => sent,
            Err(_) => {
                near.link.cancel_send();
                near.sent().await
            }
        };
        moved += result.expect("sent");
        tokio::task::yield_now().await;
    }
    assert!(moved < 32 << 20, "{moved} bytes were taken");
    assert_eq!(far.receive_staged(moved).await.len(), moved);
}

#[test]
fn a_ring_ends_after_its_runtime_with_its_last_link() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let Some((ring, memory, links)) = runtime.block_on(async {
        let (world, ring) = usual()?;
        let (mut near, mut far) = world.pair().await;
        warm_up(&mut near, &mut far).await;
        let (payload, memory) = remote(64);
        far.link.receive(Receive::Direct(direct(payload, 0, 64)));
        until(|| ring.in_flight() == 1).await;
        Some((ring.ring(), memory, (near, far)))
    }) else {
        return;
    };
    drop(runtime);
    assert!(ring.upgrade().is_some(), "its links hold it");
    assert_eq!(Arc::strong_count(&memory), 3, "the kernel has it still");
    drop(links);
    assert!(ring.upgrade().is_none());
    assert_eq!(Arc::strong_count(&memory), 1, "the payload is freed");
}

/// Memory-model rule 7 if a thread that has exited submitted the operations: they end later than
/// the call that cancels them, and no driver polls any more.
#[tokio::test]
async fn without_its_driver_a_ring_ends_what_is_in_flight() {
    let Some((world, ring)) = usual() else { return };
    for drop_first in [false, true] {
        let (_near, mut far) = world.pair().await;
        until(|| ring.in_flight() == 0).await;
        let (payload, memory) = remote(64);
        far.link.receive(Receive::Direct(direct(payload, 0, 64)));
        let submitting = Arc::clone(&ring);
        let exited = std::thread::spawn(move || {
            let _ = submitting.poll_drive(&mut Context::from_waker(Waker::noop()));
        });
        exited.join().unwrap();
        assert_eq!(ring.in_flight(), 1);
        // The driver of this test is not polled from here to the end of the loop.
        if drop_first {
            drop(far);
            world.transport.shutdown();
        } else {
            world.transport.shutdown();
            drop(far);
        }
        assert_eq!(ring.in_flight(), 0);
        assert_eq!(Arc::strong_count(&memory), 1, "the payload is freed");
    }
}

/// docs/rulings.md, 5: "while many connections of a ring are active, one call sends for all"
#[tokio::test]
async fn what_many_connections_send_goes_out_in_one_drive() {
    let Some((world, ring)) = usual() else { return };
    let mut pairs = Vec::new();
    for _ in 0..8 {
        let (mut near, mut far) = world.pair().await;
        warm_up(&mut near, &mut far).await;
        far.link.receive(Receive::Stage);
        pairs.push((near, far));
    }
    until(|| ring.in_flight() == 8).await;
    for (near, _) in &mut pairs {
        near.link.send(plain(b"one of many"));
        let sent = near.link.poll_outcome();
        assert!(matches!(sent, Some(Outcome::Sent { .. })), "found {sent:?}");
    }
    for (_, far) in &mut pairs {
        assert!(matches!(far.received().await, Received::Stage(_)));
    }
    for (_, far) in &mut pairs {
        assert!(ring.batches_sends());
        far.link.send(plain(b"together"));
        assert!(far.link.poll_outcome().is_none());
    }
    assert_eq!(ring.in_flight(), 16, "eight receives and eight sends");
    let _ = ring.poll_drive(&mut Context::from_waker(Waker::noop()));
    for (near, far) in &mut pairs {
        match far.link.poll_outcome() {
            Some(Outcome::Sent { result: Ok(8), .. }) => {}
            other => panic!("expected the end of a send, found {other:?}"),
        }
        assert_eq!(near.receive_staged(8).await, b"together");
    }
    // After some drives with only one active connection sends are no longer gathered.
    let (near, far) = &mut pairs[0];
    for _ in 0..4 {
        near.send_all(plain(b"alone")).await;
        assert_eq!(far.receive_staged(5).await, b"alone");
    }
    assert!(!ring.batches_sends());
}

/// A completion wakes the thread that submitted its operation; on a runtime of several threads that
/// thread may be asleep while another one harvests. A receive moves to the thread that drives.
#[tokio::test]
async fn a_receive_moves_to_the_thread_that_harvests_it() {
    let Some((world, ring)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    // The next receive is multishot.
    for at in 0..8 {
        near.send_all(plain(&[at])).await;
        assert_eq!(far.receive_staged(1).await, [at]);
    }
    until(|| ring.in_flight() == 0).await;
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    let submitting = Arc::clone(&ring);
    let (started, is_started) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let sleeper = std::thread::spawn(move || {
        let _ = submitting.poll_drive(&mut Context::from_waker(Waker::noop()));
        started.send(()).unwrap();
        let _ = ended.recv();
    });
    is_started.recv().unwrap();
    assert_eq!((ring.in_flight(), ring.armed_here()), (1, 0));
    for at in 0..20 {
        near.send_all(plain(&[at])).await;
        match far.received().await {
            Received::Stage(stage) => assert_eq!(&*stage, [at]),
            other => panic!("expected bytes, found {other:?}"),
        }
        far.link.receive(Receive::Stage);
    }
    until(|| (ring.in_flight(), ring.armed_here()) == (1, 1)).await;
    drop(end);
    sleeper.join().unwrap();
}

/// In a ring of a thread everything completes in that thread: no receive is submitted again to move
/// it.
#[tokio::test]
async fn a_receive_of_a_thread_stays_armed() {
    let Some((world, ring)) = thread_ring(64, 1024) else {
        return;
    };
    let (mut near, mut far) = world.pair().await;
    warm_up(&mut near, &mut far).await;
    until(|| ring.in_flight() == 1).await;
    let armed = ring.ops();
    warm_up(&mut near, &mut far).await;
    assert_eq!(ring.ops(), armed);
}

/// A parked driver is woken by submissions of others, and not by its own.
#[tokio::test]
async fn a_driver_is_woken_only_while_it_is_parked() {
    let Some((world, _)) = usual() else { return };
    let (mut near, mut far) = world.pair().await;
    let counting = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counting));
    // The driver of this test is not polled from here on.
    let drive = || {
        let _ = (world.transport).poll_drive(&mut Context::from_waker(&waker));
    };
    drive();
    assert!(world.transport.try_park(&waker));
    drive();
    near.link.receive(Receive::Stage);
    assert!(near.link.poll_outcome().is_none());
    assert_eq!(counting.wakes(), 0, "it is awake");
    assert!(
        !world.transport.try_park(&waker),
        "a receive is to be submitted"
    );
    drive();
    assert!(world.transport.try_park(&waker));
    far.link.receive(Receive::Stage);
    assert!(far.link.poll_outcome().is_none());
    assert_eq!(counting.wakes(), 1);
}

/// Memory-model rule 7 on a ring of a thread, if another thread drops its links: that one cannot
/// ask the kernel for anything itself.
#[tokio::test]
async fn a_link_dropped_by_another_thread_gives_its_lease_back() {
    let Some((world, ring)) = thread_ring(64, 1024) else {
        return;
    };
    let (mut near, mut far) = world.pair().await;
    until(|| ring.in_flight() == 0).await;
    let (payload, memory) = remote(64);
    far.link.receive(Receive::Direct(direct(payload, 0, 64)));
    assert!(far.link.poll_outcome().is_none());
    // The kernel has the receive: some bytes have arrived.
    near.send_all(plain(&[7; 40])).await;
    let mut bytes = [0; 40];
    until(|| memory.read_at(0, &mut [0; 40]).is_ok() && ring.in_flight() == 1).await;
    while bytes != [7; 40] {
        tokio::time::sleep(Duration::from_millis(1)).await;
        memory.read_at(0, &mut bytes).unwrap();
    }
    drop(far);
    until(|| Arc::strong_count(&memory) == 1).await;
    assert_eq!(ring.in_flight(), 0);
}

/// The same after the thread has ended: its operations in flight have ended with it, and the kernel
/// never gets later submissions.
#[tokio::test]
async fn a_thread_leaves_nothing_in_flight() {
    let Some((mut world, ring)) = thread_ring(64, 1024) else {
        return;
    };
    let (mut near, mut far) = world.pair().await;
    let (before, early) = remote(64);
    far.link.receive(Receive::Direct(direct(before, 0, 64)));
    until(|| ring.in_flight() == 1).await;
    drop(world.drives.take());
    until(|| ring.in_flight() == 0).await;
    let (after, late) = remote(64);
    near.link.receive(Receive::Direct(direct(after, 0, 64)));
    near.link.cancel_receive();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let ring = {
        let weak = ring.ring();
        drop(ring);
        weak
    };
    drop((near, far));
    assert_eq!(Arc::strong_count(&early), 1, "the payload is freed");
    assert_eq!(Arc::strong_count(&late), 1, "the payload is freed");
    drop(world);
    // The thread itself ends last.
    until(|| ring.upgrade().is_none()).await;
}
