//! Datagram endpoints: receives that are taken back, ends, floods and faults.

use super::{DgramDomain, HERE, pair, until};
use crate::common::{backends, on, on_every_backend};
use std::time::Duration;
use tokio_fabric::testing::{FaultPlan, Net};
use tokio_fabric::{Backend, ErrorKind};

/// Ruling 4: "`cancel()` requests cancellation, and the operation's own result says whether it was
/// cancelled"; and the place of a receive that was cancelled, or whose time has passed, is the next
/// one's.
#[test]
fn receives_are_taken_back() {
    on_every_backend(|net| async move {
        let (a, b) = (DgramDomain::new(&net), DgramDomain::new(&net));
        let from = a.open();
        let queue = b.domain.completion_queue().open().unwrap();
        let to = b.builder().receive_queue(&queue).open().unwrap();
        let name = a.knows(&to);
        let cancelled = to.recv(vec![0; 8]).post().unwrap();
        let queued = to.recv(vec![0; 8]).queue(9u64).try_post().unwrap();
        let late = to
            .recv(vec![0; 8])
            .timeout(Duration::from_millis(5))
            .post()
            .unwrap();
        let kept = to.recv(vec![0; 8]).post().unwrap();
        assert!(cancelled.cancel());
        assert_eq!(cancelled.await.unwrap_err().kind(), ErrorKind::Canceled);
        assert!(to.cancel(queued) && !to.cancel(queued));
        let completion = queue.next().await.unwrap();
        assert_eq!(
            completion.result.unwrap_err().error.kind(),
            ErrorKind::Canceled
        );
        let failed = late.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert_eq!(failed.into_parts().1.unwrap().len(), 8);
        from.send("kept", name).await.unwrap();
        assert_eq!(kept.await.unwrap().0.len, 4);
    });
}

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages."
#[test]
fn a_dropped_receive_loses_no_datagram() {
    on_every_backend(|net| async move {
        let (_a, from, _b, to, name) = pair(&net);
        drop(to.recv(vec![0; 8]).post().unwrap());
        let dropped = to.recv(vec![0; 8]).post().unwrap();
        from.send("first", name).await.unwrap();
        until("it is matched", || {
            dropped.phase() == tokio_fabric::error::Phase::Ended
        })
        .await;
        from.send("second", name).await.unwrap();
        until("the next is kept", || to.unexpected_bytes() > 0).await;
        drop(dropped);
        assert_eq!(&to.recv(vec![0; 8]).await.unwrap().1[..5], b"first");
        assert_eq!(&to.recv(vec![0; 8]).await.unwrap().1[..6], b"second");
    });
}

/// Decision 7: every accepted operation ends exactly once, also when its endpoint is closed.
#[test]
fn closing_ends_what_is_posted() {
    on_every_backend(|net| async move {
        let (_a, from, b, to, name) = pair(&net);
        let receive = to.recv(vec![0; 8]).post().unwrap();
        to.shutdown().await.unwrap();
        let failed = receive.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Canceled);
        assert_eq!(failed.into_parts().1.unwrap().len(), 8);
        assert_eq!(
            to.recv(vec![0; 8]).post().unwrap_err().kind(),
            ErrorKind::BadState
        );
        // What was sent before the end goes out.
        let address = to.local_addr();
        drop(to);
        let to = b.builder().bind(address).open().unwrap();
        let held: Vec<_> = (0..5)
            .map(|_| from.send("out", name).more().post().unwrap())
            .collect();
        from.shutdown().await.unwrap();
        for held in held {
            held.await.unwrap();
            assert_eq!(to.recv(vec![0; 8]).await.unwrap().0.len, 3);
        }
    });
}

/// Ruling 11: "If the runtime stops, every pending and later operation fails with `DriverGone`."
#[test]
fn the_end_of_the_runtime_ends_operations() {
    for backend in backends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (endpoint, receive) = runtime.block_on(async {
            let endpoint = DgramDomain::new(&Net::on(backend)).open();
            let receive = endpoint.recv(vec![0; 8]).post().unwrap();
            tokio::task::yield_now().await;
            (endpoint, receive)
        });
        drop(runtime);
        let failed = futures::executor::block_on(receive).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::DriverGone);
        let refused = endpoint.recv(vec![0; 8]).post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DriverGone);
    }
}

/// fi_close(3) of ruling 22: "Closing an object that others depend on fails with Busy and their
/// names."
#[test]
fn an_open_endpoint_keeps_what_it_is_bound_to() {
    on(Backend::Epoll, |net| async move {
        let side = DgramDomain::new(&net);
        let endpoint = side.open();
        assert_eq!(
            side.peers.close().await.unwrap_err().kind(),
            ErrorKind::Busy
        );
        let busy = side.domain.close().await.unwrap_err();
        assert!(busy.to_string().contains("datagram endpoint"), "{busy}");
        drop(endpoint);
        side.peers.close().await.unwrap();
    });
}

/// A flood without receives harms no other endpoint: a connection of the same domain goes on.
#[test]
fn a_flood_without_receives_blocks_nothing_else() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (near, far) = tokio_fabric::testing::connect(&a, &b).await.unwrap();
        let peers = b.domain.address_vector().open().unwrap();
        let flooded = (b.domain.dgram_endpoint())
            .address_vector(&peers)
            .bind(HERE.into())
            .unexpected_bytes(1000)
            .open()
            .unwrap();
        let targets = a.domain.address_vector().open().unwrap();
        let source = (a.domain.dgram_endpoint())
            .address_vector(&targets)
            .bind(HERE.into())
            .open()
            .unwrap();
        let name = targets.insert(flooded.local_addr()).now().unwrap();
        for _ in 0..50 {
            for _ in 0..40 {
                source.send(vec![0; 900], name).await.unwrap();
            }
            let receive = far.recv(vec![0; 8]).post().unwrap();
            near.send("ping").await.unwrap();
            receive.await.unwrap();
        }
        until("all is accounted for", || flooded.dropped() == 2000).await;
    });
}

/// Under loss, doubling and reordering every datagram that comes is whole, and every send has ended
/// well: neither end learns what happens on the way.
#[test]
fn faults_on_the_way_are_no_errors() {
    let plan = FaultPlan::seeded(4711)
        .lose(0.2)
        .duplicate(0.2)
        .reorder(0.2);
    let net = Net::loopback().faults(plan.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_a, from, _b, to, name) = pair(&net);
        for number in 0..500u32 {
            from.send(number.to_le_bytes().repeat(8), name)
                .await
                .unwrap();
        }
        let mut seen = Vec::new();
        loop {
            let receive = to.recv(vec![0; 64]).timeout(Duration::from_secs(1)).await;
            let Ok((got, bytes)) = receive else { break };
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(got.len, 32, "{plan:?}");
            assert!(bytes[..32] == number.to_le_bytes().repeat(8));
            seen.push(number);
        }
        let mut once = seen.clone();
        once.sort_unstable();
        once.dedup();
        assert!(
            once.len() < 480 && once.len() > 320,
            "some are lost: {}",
            once.len()
        );
        assert!(
            seen.len() > once.len() + 20,
            "some come twice: {}",
            seen.len()
        );
        assert!(
            seen.windows(2).any(|pair| pair[0] > pair[1]),
            "some are overtaken"
        );
    });
}
