//! Links that wait in the reactor while few are at work, and in the ring while many are.

use super::uring::{made, until};
use super::*;
use crate::buf::StagePool;
use crate::transport::select::runtime_for;
use crate::transport::uring::UringTransport;

/// What a fabric gets that asks for io_uring.
fn usual() -> Option<(World, Arc<UringTransport>)> {
    let runtime = runtime_for(Backend::IoUring).expect("a runtime");
    let (world, ring) = made(UringTransport::new(runtime, None, StagePool::new(4)))?;
    // Whoever drives is polled for what comes, wherever that is waited for.
    let driven = Arc::clone(&ring);
    tokio::spawn(async move {
        loop {
            std::future::poll_fn(|cx| {
                let _ = driven.poll_drive(cx);
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
    });
    Some((world, ring))
}

/// Pairs, of which the first end waits for bytes.
async fn pairs(world: &World, count: usize) -> Vec<(Peer, Peer)> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let (mut near, far) = world.pair().await;
        near.link.receive(Receive::Stage);
        assert!(near.link.poll_outcome().is_none());
        pairs.push((near, far));
    }
    pairs
}

/// Each of the second ends sends its bytes, in pieces; each of the first takes what comes, with a
/// receive armed all the time.
async fn converse(pairs: &mut [(Peer, Peer)], round: u8) {
    let bytes = [round, round.wrapping_add(1), round.wrapping_add(2)];
    for (_, far) in &mut *pairs {
        far.send_all(plain(&bytes[..1])).await;
        far.send_all(plain(&bytes[1..])).await;
    }
    for (near, _) in pairs {
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            match near.received().await {
                Received::Stage(stage) => got.extend_from_slice(&stage),
                other => panic!("expected bytes, found {other:?}"),
            }
            near.link.receive(Receive::Stage);
        }
        assert_eq!(got, bytes);
        assert!(near.link.poll_outcome().is_none());
    }
}

/// ARCHITECTURE, "Backends": "few wait for bytes in Tokio's reactor, as with `epoll`, and many in
/// the ring"; no byte is lost or changes its place on the way there and back.
#[tokio::test]
async fn many_connections_wait_in_the_ring_and_few_do_not() {
    const MANY: usize = 16;
    let Some((world, ring)) = usual() else { return };
    let mut pairs = pairs(&world, MANY).await;
    let idle = ring.in_flight();
    assert_eq!(idle, 0, "a connection alone has nothing in the ring");
    for _ in 0..2 {
        let mut round = 0;
        while ring.in_flight() < MANY {
            converse(&mut pairs, round).await;
            round = round.wrapping_add(1);
            assert!(round < 200, "{} in the ring", ring.in_flight());
        }
        // Bytes come while these are there, and while they leave.
        let few = &mut pairs[..2];
        round = 0;
        while ring.in_flight() > MANY - few.len() {
            converse(few, round).await;
            round = round.wrapping_add(1);
            assert!(round < 200, "{} in the ring", ring.in_flight());
        }
    }
}

/// The same of the end of the stream, and of a connection that breaks: told wherever it waits.
#[tokio::test]
async fn a_connection_ends_where_it_waits() {
    const MANY: usize = 16;
    let Some((world, ring)) = usual() else { return };
    let mut pairs = pairs(&world, MANY).await;
    let mut round = 0;
    while ring.in_flight() < MANY {
        converse(&mut pairs, round).await;
        round = round.wrapping_add(1);
        assert!(round < 200, "{} in the ring", ring.in_flight());
    }
    // One that never was there.
    pairs.push(world.pair().await);
    if let Some((near, _)) = pairs.last_mut() {
        near.link.receive(Receive::Stage);
    }
    for (at, (near, far)) in pairs.iter_mut().enumerate() {
        far.link.send(plain(b"last"));
        assert!(matches!(far.sent().await, (_, Ok(4))));
        far.link.finish();
        match near.received().await {
            Received::Stage(stage) => assert_eq!(&*stage, b"last", "of {at}"),
            other => panic!("expected bytes, found {other:?}"),
        }
        near.link.receive(Receive::Stage);
        assert!(matches!(near.received().await, Received::End { .. }));
    }
    drop(pairs);
    until(|| ring.in_flight() == 0).await;
}
