//! Peers that end, or die, while this side does not read: what waits for them ends all the same.

use std::time::Duration;

use crate::common::gone::{Loss, Pause, cases, is_loss};
use crate::common::on_sockets_at_once;
use futures::future::join_all;
use tokio_fabric::testing::{Net, connect_endpoints};
use tokio_fabric::{Access, ErrorKind, limits::FLUSH_TIMEOUT};

/// "A peer's death is always found", also while reading is paused for want of a receive and of
/// room, or for a copy into a device's memory, with whatever part of another message behind the one
/// that waits.
#[test]
fn a_peer_that_is_gone_is_found_while_reading_is_paused() {
    let ends = [Loss::Fin, Loss::FinThenReset, Loss::Reset, Loss::Silence];
    on_sockets_at_once(|net| async move {
        for pause in Pause::ALL {
            join_all(cases(&net, pause, None, &ends)).await;
        }
    });
}

/// A runtime with paused time, which goes on when nothing runs.
fn with_paused_time(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

/// What is sent before a peer's end waits for the application, as long as the application takes
/// something now and then; once it takes nothing, what waits for the peer fails.
#[test]
fn what_waits_for_a_peer_that_has_ended_has_a_time_limit() {
    for takes in [0, 1, 3] {
        for is_shared in [true, false] {
            with_paused_time(async {
                let net = Net::loopback();
                let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
                let region = b.domain.register(vec![0; 8]).access(Access::all());
                let region = region.await.unwrap();
                let queue = b.domain.completion_queue().size(1).open().unwrap();
                let receives = b.domain.receive_context().unexpected_bytes(0);
                let receives = receives.open().unwrap();
                let theirs = a.domain.endpoint().extension(false).unexpected_bytes(0);
                let theirs = theirs.open().unwrap();
                let ours = match is_shared {
                    true => b.domain.endpoint().receive_context(&receives).open(),
                    false => b.domain.endpoint().receive_queue(&queue).open(),
                };
                let ours = ours.unwrap();
                connect_endpoints(&theirs, &ours, &b.fabric).await.unwrap();
                // The peer has no receive for this, and never acknowledges it.
                let unread = ours.send("unread").delivery_complete().post().unwrap();
                for data in 0..4 {
                    match is_shared {
                        true => theirs.send(vec![0; 8]).await.map(drop).unwrap(),
                        false => {
                            let write = theirs.write(vec![0; 8], region.remote());
                            write.imm(data).await.map(drop).unwrap();
                        }
                    }
                }
                theirs.shutdown().await.unwrap();
                for _ in 0..takes {
                    tokio::time::sleep(FLUSH_TIMEOUT - Duration::from_secs(1)).await;
                    assert!(ours.is_connected(), "something was taken");
                    match is_shared {
                        true => _ = receives.recv(vec![0; 8]).await.unwrap(),
                        false => _ = queue.next().await.unwrap(),
                    }
                }
                let waits_since = tokio::time::Instant::now();
                let failed = unread.await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::PeerClosed, "{failed}");
                let waited = waits_since.elapsed();
                assert!(
                    waited <= FLUSH_TIMEOUT + Duration::from_secs(1),
                    "{waited:?}"
                );
                assert!(!ours.is_connected());
            });
        }
    }
}

/// The time limit begins also with what is posted after the peer's end was seen.
#[test]
fn what_is_posted_after_a_peers_end_has_a_time_limit() {
    with_paused_time(async {
        let net = Net::loopback();
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let receives = b.domain.receive_context().unexpected_bytes(0);
        let receives = receives.open().unwrap();
        let theirs = a.domain.endpoint().extension(false).unexpected_bytes(0);
        let theirs = theirs.open().unwrap();
        let ours = b.domain.endpoint().receive_context(&receives);
        let ours = ours.open().unwrap();
        connect_endpoints(&theirs, &ours, &b.fabric).await.unwrap();
        theirs.send("first").await.unwrap();
        theirs.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(ours.is_connected(), "nothing waits for the peer");
        let late = ours.send("late").delivery_complete().await;
        let kind = late.unwrap_err().kind();
        assert!(is_loss(kind), "{kind:?}");
    });
}
