//! The end of a connection, as both sides know it (`docs/extension.md`, section 7).

use std::time::Duration;

use crate::common::gone::is_loss;
use crate::common::{on, on_every_backend};
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect, connect_endpoints};
use tokio_fabric::{Access, Backend, Error, ErrorKind, Event, UserContext};

/// How the connection of `peer` ended: the error of its one Shutdown.
async fn shutdown_of(peer: &Peer) -> Option<Error> {
    loop {
        match peer.events.next().await {
            Some(Event::Connected { .. }) => {}
            Some(Event::Shutdown { error, .. }) => return error,
            other => panic!("{other:?}"),
        }
    }
}

/// docs/extension.md: "what was accepted goes out, and its answers are awaited", of both sides: a
/// close loses nothing that either side has accepted.
#[test]
fn nothing_accepted_is_lost_by_a_close() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connect(&a, &b).await.unwrap();
        let here = a.domain.register(vec![1; 1 << 20]).access(Access::all());
        let there = b.domain.register(vec![2; 1 << 20]).access(Access::all());
        let (here, there) = (here.await.unwrap(), there.await.unwrap());
        let receives: Vec<_> = (0..20)
            .map(|_| y.recv(vec![0; 100_000]).post().unwrap())
            .collect();
        let sends: Vec<_> = (0..20_u8)
            .map(|at| x.send(vec![at; 100_000]).post().unwrap())
            .collect();
        let read = x.read(vec![0; 1 << 20], there.remote()).post().unwrap();
        let write = y.write(vec![9; 1 << 20], here.remote()).post().unwrap();
        x.shutdown().await.unwrap();
        for send in sends {
            send.await.unwrap();
        }
        assert_eq!(read.await.unwrap().1, vec![2; 1 << 20]);
        for (at, receive) in (0..).zip(receives) {
            assert_eq!(receive.await.unwrap().1, vec![at; 100_000]);
        }
        write.await.unwrap();
        let mut written = vec![0; 1 << 20];
        here.read_at(0, &mut written).unwrap();
        assert_eq!(written, vec![9; 1 << 20]);
        assert!(shutdown_of(&a).await.is_none());
        assert!(shutdown_of(&b).await.is_none());
    });
}

/// "Both sides may begin at once."
#[test]
fn both_sides_may_close_at_once() {
    on_every_backend(|net| async move {
        for _ in 0..20 {
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let (x, y) = connect(&a, &b).await.unwrap();
            let send = x.send("last").post().unwrap();
            let back = y.send("words").post().unwrap();
            let (one, other) = tokio::join!(x.shutdown(), y.shutdown());
            one.unwrap();
            other.unwrap();
            send.await.unwrap();
            back.await.unwrap();
            assert!(shutdown_of(&a).await.is_none());
            assert!(shutdown_of(&b).await.is_none());
        }
    });
}

/// "An end of the stream before that is a loss": a reset, and a plain peer's end, which looks
/// like one.
#[test]
fn an_end_that_was_not_agreed_on_is_reported_as_a_loss() {
    on(Backend::Epoll, |net| async move {
        let cut = Net::on(net.backend()).faults(FaultPlan::seeded(1).cut_after_bytes(5000..=5000));
        let (a, b) = (cut.peer().unwrap(), cut.peer().unwrap());
        let (x, _y) = connect(&a, &b).await.unwrap();
        let _ = x.send(vec![0; 100_000]).delivery_complete().await;
        assert!(shutdown_of(&a).await.is_some());
        assert!(shutdown_of(&b).await.is_some());
    });
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a.domain.endpoint().extension(false).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        x.shutdown().await.unwrap();
        assert!(shutdown_of(&a).await.is_none(), "this side closed it");
        let lost = shutdown_of(&b).await.expect("no later event");
        assert_eq!(lost.kind(), ErrorKind::PeerClosed);
    });
}

/// A message that was acknowledged is received, also by a receive that waits for room in its
/// completion queue when the connection ends, or is posted behind that end; none overtakes another.
/// Those without a message fail, and so do all once the endpoint has gone.
#[test]
fn a_receive_that_waits_for_room_gets_what_came_before_the_end() {
    on_every_backend(|net| async move {
        for (in_order, is_dropped) in [(true, false), (false, false), (false, true)] {
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let queue = b.domain.completion_queue().size(1).open().unwrap();
            // A plain peer's end is a loss.
            let x = a.domain.endpoint().extension(in_order).open().unwrap();
            let failures = b.domain.counter().unwrap();
            let y = b.domain.endpoint().receive_queue(&queue);
            let y = y.receive_counter(&failures).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            for number in 0..5_u8 {
                x.send(vec![number; 8]).delivery_complete().await.unwrap();
            }
            let post = |context: u64| y.recv(vec![0; 8]).queue(context).post();
            post(0).unwrap().detach();
            let first = post(1).unwrap();
            let second = y.recv(vec![0; 8]).post().unwrap();
            x.shutdown().await.unwrap();
            assert_eq!(shutdown_of(&b).await.is_some(), !in_order);
            let (third, fourth) = (post(3).unwrap(), post(4).unwrap());
            let is_of_the_end = |kind| matches!(kind, ErrorKind::PeerClosed);
            assert!(is_of_the_end(post(5).unwrap_err().kind()), "no message");
            assert!(!first.is_accepted() && !third.is_accepted());
            if is_dropped {
                // Their futures are handles too.
                second.detach();
                for waiting in [first, third, fourth] {
                    waiting.detach();
                }
                drop(y);
                while failures.read_error() < 4 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                continue;
            }
            for context in [0_u8, 1, 3, 4] {
                let mut completion = queue.next().await.unwrap();
                assert_eq!(completion.context, UserContext(context.into()));
                completion.result.as_ref().unwrap();
                assert_eq!(completion.take_buffer().unwrap()[..], [context; 8]);
            }
            assert_eq!(second.await.unwrap().1, [2; 8]);
            for accepted in [first, third, fourth] {
                accepted.await.unwrap();
            }
            assert!(is_of_the_end(post(6).unwrap_err().kind()));
        }
    });
}

/// A peer that never says CLOSE is waited for in vain, for a bounded time, and that is reported.
#[test]
fn a_peer_that_does_not_agree_is_waited_for_a_bounded_time() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::loopback();
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = b.domain.completion_queue().size(1).open().unwrap();
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().receive_queue(&queue).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = b.domain.register(vec![0; 8]).access(Access::all());
        let region = region.await.unwrap();
        // The second write finds no slot for its data, so the peer reads nothing behind it.
        let writes: Vec<_> = (0..2)
            .map(|data| {
                x.write(vec![1; 8], region.remote())
                    .imm(data)
                    .post()
                    .unwrap()
            })
            .collect();
        let limited = tokio::time::timeout(Duration::from_secs(60), x.shutdown());
        limited.await.expect("a bounded time").unwrap();
        let mut results = Vec::new();
        for write in writes {
            results.push(write.await.map_err(|failed| failed.kind()).map(drop));
        }
        assert_eq!(results, [Ok(()), Err(ErrorKind::Canceled)]);
        let lost = shutdown_of(&a).await.expect("it was not agreed on");
        assert_eq!(lost.kind(), ErrorKind::TimedOut);
    });
}

/// `Endpoint::abort`: "so that the peer takes it for a loss".
#[test]
fn an_aborted_connection_is_no_graceful_end_for_the_peer() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let mut messages = b.messages(64, 4);
        a.send("first").await.unwrap();
        assert_eq!(&*messages.next().await.unwrap().unwrap(), b"first");
        let waits = a.recv(vec![0; 8]).post().unwrap();
        a.abort();
        let own = waits.await.unwrap_err();
        assert_eq!(own.kind(), ErrorKind::Canceled, "{own}");
        let seen = messages.next().await.expect("no end").unwrap_err();
        assert!(is_loss(seen.kind()), "{seen}");
        assert!(messages.next().await.is_none());
        a.abort(); // It has ended.
    });
}
