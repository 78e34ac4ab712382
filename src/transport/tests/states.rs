//! Every edge of the state machines of links, and of the ring, is walked, and no other.

use super::*;
use crate::edges::EdgeCoverage;

fn receive_into(len: usize) -> Receive {
    Receive::Direct(direct(Payload::from_vec(vec![0; len]), 0, len))
}

/// A connection that is reset; one that is reset before the connect was reported; a refused one.
async fn walk_connection(world: &TestTransport) {
    let (mut near, _far) = world.pair().await;
    near.link.reset();
    let listener = world.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
    near.link.reset();
    drop(listener);
    let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
    assert!(matches!(near.outcome().await, Outcome::Failed(_)));
}

/// Sends until there is no room, then lets one send end by room, and takes the next one back.
async fn walk_send(world: &TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let mut moved = 0;
    for cancels in [false, true] {
        let mut left = plain(&vec![1; 16 << 20]);
        loop {
            near.link.send(left);
            let Some(outcome) = near.link.poll_outcome() else {
                break;
            };
            let Outcome::Sent { batch, result } = outcome else {
                panic!("expected the end of a send, found {outcome:?}");
            };
            left = batch;
            let count = result.expect("sent");
            moved += count;
            left.drop_sent(count);
        }
        // The driver's next poll submits the operations of the ring.
        tokio::time::sleep(Duration::from_millis(5)).await;
        if cancels {
            near.link.cancel_send();
            near.sent().await.1.expect("no failure");
        } else {
            let receive = far.receive_staged(moved);
            let ((_, result), _) = tokio::join!(near.sent(), receive);
            result.expect("sent");
        }
    }
}

/// Receives that end with bytes, by a cancellation, and after a watch; watches that the peer ends.
async fn walk_receive(world: &TestTransport) {
    let (mut near, mut far) = world.pair().await;
    far.link.receive(receive_into(4));
    assert!(far.link.poll_outcome().is_none());
    tokio::time::sleep(Duration::from_millis(5)).await;
    near.send_all(plain(b"data")).await;
    assert!(matches!(far.received().await, Received::Direct { .. }));
    far.link.receive(receive_into(4));
    assert!(far.link.poll_outcome().is_none());
    tokio::time::sleep(Duration::from_millis(5)).await;
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    far.link.watch();
    far.link.cancel_receive();
    far.link.watch();
    far.link.receive(Receive::Stage);
    far.link.cancel_receive();
    assert!(matches!(far.received().await, Received::Cancelled { .. }));
    far.link.watch();
    drop(near);
    assert!(matches!(far.outcome().await, Outcome::PeerGone(_)));
    // The end of a watch that is not taken before the next receive.
    let (_near, mut far) = world.pair().await;
    far.link.watch();
    far.link.reset();
    far.link.receive(Receive::Stage);
    assert!(matches!(far.received().await, Received::Failed { .. }));
}

/// Without a ring nothing is in flight; all other edges are walked on every backend.
#[tokio::test]
async fn every_edge_of_a_link_is_walked() {
    let conn = EdgeCoverage::begin("ConnPhase");
    let send = EdgeCoverage::begin("SendSlot");
    let recv = EdgeCoverage::begin("RecvSlot");
    let ring = TestTransport::io_uring();
    let has_ring = ring.is_some();
    let worlds = [TestTransport::epoll(), TestTransport::loopback()];
    for world in worlds.into_iter().chain(ring) {
        walk_connection(&world).await;
        walk_send(&world).await;
        walk_receive(&world).await;
    }
    conn.expect_all();
    if has_ring {
        send.expect_all();
        recv.expect_all();
    }
}

/// The operations of the ring, and its life: driven to its end, dropped without a driver, refused
/// while it is driven, and refused as it ends.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
#[test]
fn every_edge_of_a_ring_is_walked() {
    use super::uring::{made, until};
    use crate::transport::select::runtime_for;
    use crate::transport::uring::UringTransport;
    use crate::transport::uring::filter::refuse;

    /// A ring with a receive in flight, after one that was cancelled.
    async fn busy() -> Option<(TestTransport, Arc<UringTransport>, (Peer, Peer))> {
        let runtime = runtime_for(Backend::IoUring).expect("a runtime");
        let (world, ring) = made(UringTransport::new(runtime, None))?;
        drive(Arc::clone(&world.transport));
        let (near, mut far) = world.pair().await;
        far.link.receive(receive_into(4));
        until(|| ring.in_flight() == 1).await;
        far.link.cancel_receive();
        assert!(matches!(far.received().await, Received::Cancelled { .. }));
        far.link.receive(receive_into(4));
        assert!(far.link.poll_outcome().is_none());
        until(|| ring.in_flight() == 1).await;
        Some((world, ring, (near, far)))
    }

    let thread = std::thread::spawn(|| {
        let ops = EdgeCoverage::begin("OpSlot");
        let rings = EdgeCoverage::begin("RingPhase");
        for shuts_down in [true, false] {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let Some((world, ring, links)) = runtime.block_on(busy()) else {
                return;
            };
            if shuts_down {
                world.transport.shutdown();
            }
            drop((runtime, links, world, ring));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let [Some(one), Some(other)] = [busy().await, busy().await] else {
                panic!("the kernel gave two rings before");
            };
            refuse(&[libc::SYS_io_uring_enter], libc::EPERM).unwrap();
            one.0.transport.shutdown();
            let (_world, ring, (mut near, _far)) = other;
            near.link.receive(Receive::Stage);
            assert!(near.link.poll_outcome().is_none());
            until(|| ring.in_flight() == 0).await;
        });
        ops.expect_all();
        rings.expect_all();
    });
    thread.join().unwrap();
}
