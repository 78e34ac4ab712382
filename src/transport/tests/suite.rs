//! Requirements for every backend.

use super::*;
use crate::limits::{DIRECT_PIECE_MAX, LOCAL_RING_LEN_MIN as SMALL};

/// Runs each of these tests on every backend.
macro_rules! on_every_backend {
    ($($test:ident),* $(,)?) => {
        mod epoll {
            $(#[tokio::test] async fn $test() {
                super::$test(super::TestTransport::epoll()).await
            })*
        }
        mod local {
            $(#[tokio::test] async fn $test() {
                super::$test(super::TestTransport::epoll().through_rings(super::SMALL)).await
            })*
        }
        mod local_with_faults {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::epoll_with(super::faults());
                super::$test(world.through_rings(super::SMALL)).await
            })*
        }
        mod local_on_many_threads {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $test() {
                super::$test(super::TestTransport::epoll().through_rings(super::SMALL)).await
            })*
        }
        mod local_on_io_uring {
            $(#[tokio::test] async fn $test() {
                if let Some(world) = super::TestTransport::io_uring() {
                    super::$test(world.through_rings(super::SMALL)).await
                }
            })*
        }
        mod local_on_io_uring_with_faults {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::io_uring_with(super::faults());
                if let Some(world) = world {
                    super::$test(world.through_rings(super::SMALL)).await
                }
            })*
        }
        mod local_on_io_uring_on_a_thread_with_faults {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::thread_with(super::faults());
                if let Some(world) = world {
                    super::$test(world.through_rings(super::SMALL)).await
                }
            })*
        }
        mod loopback {
            $(#[tokio::test] async fn $test() {
                super::$test(super::TestTransport::loopback()).await
            })*
        }
        mod epoll_with_faults {
            $(#[tokio::test] async fn $test() {
                super::$test(super::TestTransport::epoll_with(super::faults())).await
            })*
        }
        mod loopback_with_faults {
            // Time is paused: a delay costs nothing, and lasts exactly as long as it was drawn.
            $(#[tokio::test(start_paused = true)] async fn $test() {
                super::$test(super::TestTransport::loopback_with(super::faults())).await
            })*
        }
        mod epoll_on_many_threads {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $test() {
                super::$test(super::TestTransport::epoll()).await
            })*
        }
        mod io_uring {
            $(#[tokio::test] async fn $test() {
                if let Some(world) = super::TestTransport::io_uring() { super::$test(world).await }
            })*
        }
        mod io_uring_with_faults {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::io_uring_with(super::faults());
                if let Some(world) = world { super::$test(world).await }
            })*
        }
        mod io_uring_on_many_threads {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $test() {
                if let Some(world) = super::TestTransport::io_uring() { super::$test(world).await }
            })*
        }
        mod io_uring_on_a_thread {
            $(#[tokio::test] async fn $test() {
                if let Some(world) = super::TestTransport::thread() { super::$test(world).await }
            })*
        }
        #[cfg(feature = "tls")]
        mod tls_on_epoll {
            $(#[tokio::test] async fn $test() {
                super::$test(super::TestTransport::epoll_tls()).await
            })*
        }
        #[cfg(feature = "tls")]
        mod tls_on_loopback_with_faults {
            $(#[tokio::test(start_paused = true)] async fn $test() {
                super::$test(super::TestTransport::loopback_tls_with(super::faults())).await
            })*
        }
        #[cfg(feature = "tls")]
        mod tls_on_io_uring {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::io_uring_tls();
                if let Some(world) = world { super::$test(world).await }
            })*
        }
        mod io_uring_on_a_thread_with_faults {
            $(#[tokio::test] async fn $test() {
                let world = super::TestTransport::thread_with(super::faults());
                if let Some(world) = world { super::$test(world).await }
            })*
        }
    };
}

on_every_backend! {
    frames_arrive_cut_at_every_offset,
    direct_receives_land_where_they_should,
    large_payloads_scatter_and_gather,
    a_cancelled_receive_returns_its_memory_and_loses_nothing,
    a_cancelled_send_returns_its_batch_and_loses_nothing,
    the_end_of_the_stream_follows_its_bytes,
    a_dropped_link_ends_the_stream,
    a_reset_is_seen_by_both_sides,
    sending_to_one_who_left_fails_and_returns_the_batch,
    connecting_without_a_listener_is_refused,
    a_socket_is_not_connected_to_itself,
    a_submission_during_a_failing_connect_comes_back,
    watching_reports_that_the_peer_finished,
    watching_does_not_eat_bytes,
    a_watch_ends_by_a_receive,
    both_directions_move_at_once,
    many_small_messages_arrive_in_order,
    a_wake_comes_for_a_receive_armed_outside_of_the_loop,
    a_listeners_address_is_taken,
}

/// Faults: half of all operations short, all of them late.
fn faults() -> FaultPlan {
    FaultPlan::seeded(0xFAB)
        .short_io(0.5)
        .delay(Duration::ZERO..=Duration::from_micros(300))
}

/// Moves all of `batch` from one peer to the other, which receives with `next`, until `next`
/// returns `None`. Returns the bytes in order.
async fn transfer(
    from: &mut Peer,
    to: &mut Peer,
    mut batch: Box<SendBatch>,
    mut next: impl FnMut(usize) -> Receive,
) -> Vec<u8> {
    let total = batch.remaining();
    let send = async {
        while batch.remaining() > 0 {
            from.link.send(batch);
            let (back, result) = from.sent().await;
            batch = back;
            let count = result.expect("sent");
            assert!((1..=DIRECT_PIECE_MAX).contains(&count));
            assert!(batch.frames().all(|frame| frame.token() == 7));
            batch.drop_sent(count);
        }
        assert!(batch.is_empty(), "what is sent has left the batch");
    };
    let receive = async {
        let mut bytes = Vec::new();
        while bytes.len() < total {
            to.link.receive(next(bytes.len()));
            match to.received().await {
                Received::Stage(stage) => bytes.extend_from_slice(&stage),
                Received::Direct { direct, len } => {
                    assert!((1..=DIRECT_PIECE_MAX.min(direct.len as usize)).contains(&len));
                    let start = direct.offset;
                    bytes.extend_from_slice(&contents(&direct.payload)[start..start + len]);
                }
                other => panic!("expected bytes, found {other:?}"),
            }
        }
        bytes
    };
    let ((), bytes) = tokio::join!(send, receive);
    bytes
}

async fn frames_arrive_cut_at_every_offset(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let header = pattern(24, 1);
    let pieces = [pattern(5, 2), pattern(1, 3), pattern(17, 4)];
    let whole = [header.clone(), pieces.concat()].concat();
    for cut in 1..=whole.len() {
        let frames = || batch([frame(&header, pieces.to_vec()), frame(&header, Vec::new())]);
        let expected = [whole.clone(), header.clone()].concat();
        near.link.set_io_sizes(IoSizes {
            send: cut,
            receive: 1,
        });
        far.link.set_io_sizes(IoSizes {
            send: 1,
            receive: DIRECT_PIECE_MAX,
        });
        let got = transfer(&mut near, &mut far, frames(), |_| Receive::Stage).await;
        assert_eq!(got, expected, "sent in pieces of {cut}");
        near.link.set_io_sizes(IoSizes::default());
        far.link.set_io_sizes(IoSizes {
            send: 1,
            receive: cut,
        });
        let got = transfer(&mut near, &mut far, frames(), |_| Receive::Stage).await;
        assert_eq!(got, expected, "received in pieces of {cut}");
    }
}

async fn direct_receives_land_where_they_should(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let bytes = pattern(100, 9);
    near.send_all(plain(&bytes)).await;
    let mut payload = scattered(vec![vec![0xEE; 30], vec![0xEE; 60], vec![0xEE; 30]]);
    let mut done = 0;
    while done < bytes.len() {
        far.link
            .receive(Receive::Direct(direct(payload, 10 + done, 100 - done)));
        match far.received().await {
            Received::Direct { direct, len } => {
                payload = direct.payload;
                done += len;
            }
            other => panic!("expected bytes, found {other:?}"),
        }
    }
    let got = contents(&payload);
    assert_eq!(got[..10], [0xEE; 10]);
    assert_eq!(got[10..110], bytes);
    assert_eq!(got[110..], [0xEE; 10]);
}

async fn large_payloads_scatter_and_gather(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let pieces = [1 << 20, 7, (1 << 20) + 3, 1 << 19].map(|len| pattern(len, len));
    let whole = [pattern(16, 5), pieces.concat()].concat();
    let sent = batch([frame(&pattern(16, 5), pieces.to_vec())]);
    let total = whole.len();
    let got = transfer(&mut near, &mut far, sent, |done| {
        let left = total - done;
        let pieces = [left.div_ceil(4); 4].map(|len| vec![0; len]).to_vec();
        Receive::Direct(direct(scattered(pieces), 0, left))
    })
    .await;
    assert!(got == whole, "all bytes, in order");
}

async fn a_cancelled_receive_returns_its_memory_and_loses_nothing(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let payload = scattered(vec![vec![3; 50], vec![4; 50]]);
    far.link.receive(Receive::Direct(direct(payload, 0, 100)));
    assert!(far.link.poll_outcome().is_none());
    far.link.cancel_receive();
    let Received::Cancelled {
        returned: Some(returned),
    } = far.received().await
    else {
        panic!("expected the receive back");
    };
    assert_eq!(
        contents(&returned.payload),
        [[3; 50], [4; 50]].concat(),
        "untouched"
    );
    far.link.receive(Receive::Stage);
    far.link.cancel_receive();
    match far.received().await {
        Received::Cancelled { returned: None } => {}
        other => panic!("expected a cancelled stage, found {other:?}"),
    }
    // No receive is armed now, so this has no effect.
    far.link.cancel_receive();
    near.send_all(plain(b"after all")).await;
    assert_eq!(far.receive_staged(9).await, b"after all");
}

async fn a_cancelled_send_returns_its_batch_and_loses_nothing(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let bytes = pattern(16 << 20, 1);
    let mut left = plain(&bytes);
    let mut moved = 0;
    // The other side does not read, so the buffers fill up at some point.
    let mut blocked = loop {
        near.link.send(left);
        let Ok(outcome) = tokio::time::timeout(Duration::from_millis(100), near.outcome()).await
        else {
            near.link.cancel_send();
            let (mut back, result) = near.sent().await;
            // Bytes that are sealed already are sent.
            let count = result.expect("no failure");
            assert!(count == 0 || world.name.starts_with("tls"));
            moved += count;
            back.drop_sent(count);
            break back;
        };
        let Outcome::Sent { batch, result } = outcome else {
            panic!("expected the end of a send, found {outcome:?}");
        };
        left = batch;
        let count = result.expect("sent");
        moved += count;
        left.drop_sent(count);
    };
    assert_eq!(blocked.remaining(), bytes.len() - moved);
    near.link.cancel_send();
    assert!(near.link.poll_outcome().is_none(), "nothing is submitted");

    tokio::select! {
        received = far.receive_staged(moved) => assert!(received == bytes[..moved]),
        () = near.idle() => {}
    }
    let all_but_ten = blocked.remaining() - 10;
    blocked.drop_sent(all_but_ten);
    near.send_all(blocked).await;
    assert_eq!(far.receive_staged(10).await, bytes[bytes.len() - 10..]);
}

async fn the_end_of_the_stream_follows_its_bytes(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    near.send_all(plain(b"the last words")).await;
    near.link.finish();
    assert_eq!(far.receive_staged(100).await, b"the last words");
    let returned = direct(Payload::from_vec(vec![0; 9]), 0, 9);
    far.link.receive(Receive::Direct(returned));
    match far.received().await {
        Received::End { returned: Some(_) } => {}
        other => panic!("expected the end and the memory, found {other:?}"),
    }
    // The other direction continues.
    far.send_all(plain(b"an answer")).await;
    assert_eq!(near.receive_staged(9).await, b"an answer");
}

async fn a_dropped_link_ends_the_stream(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    near.send_all(plain(b"bye")).await;
    drop(near);
    assert_eq!(far.receive_staged(4).await, b"bye");
}

async fn a_reset_is_seen_by_both_sides(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let armed = direct(Payload::from_vec(vec![0; 9]), 0, 9);
    near.link.receive(Receive::Direct(armed));
    far.link.receive(Receive::Stage);
    assert!(near.link.poll_outcome().is_none());
    assert!(far.link.poll_outcome().is_none());
    near.link.reset();
    for (peer, returns) in [(&mut near, true), (&mut far, false)] {
        match peer.received().await {
            Received::Failed { error, returned } => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                assert!(error.peer().is_some());
                assert_eq!(returned.is_some(), returns);
            }
            other => panic!("expected a failure, found {other:?}"),
        }
    }
    // Later submissions end as well, and at once.
    near.link.send(plain(b"too late"));
    let (back, result) = near.sent().await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(back.remaining(), 8);
    near.link.watch();
    match near.outcome().await {
        Outcome::PeerGone(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        other => panic!("expected the peer to be gone, found {other:?}"),
    }
}

async fn sending_to_one_who_left_fails_and_returns_the_batch(world: TestTransport) {
    let (mut near, far) = world.pair().await;
    drop(far);
    // The system may still accept the first bytes.
    for _ in 0..1000 {
        near.link.send(plain(&pattern(10_000, 0)));
        let (back, result) = near.sent().await;
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            assert_eq!(back.remaining(), 10_000);
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("sending into the void goes on");
}

async fn connecting_without_a_listener_is_refused(world: TestTransport) {
    let listener = world.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    drop(listener);
    let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
    match near.outcome().await {
        Outcome::Failed(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(error.peer(), Some(to));
        }
        other => panic!("expected to be refused, found {other:?}"),
    }
    assert!(near.link.poll_outcome().is_none());
}

async fn a_socket_is_not_connected_to_itself(world: TestTransport) {
    let listener = world.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    drop(listener);
    let mut near = Peer::new(|waker| world.transport.connect(to, Some(to), waker));
    match near.outcome().await {
        Outcome::Failed(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        other => panic!("expected to be refused, found {other:?}"),
    }
}

async fn a_submission_during_a_failing_connect_comes_back(world: TestTransport) {
    let listener = world.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    drop(listener);
    let mut near = Peer::new(|waker| world.transport.connect(to, None, waker));
    near.link.send(plain(b"early"));
    let armed = direct(Payload::from_vec(vec![0; 9]), 0, 9);
    near.link.receive(Receive::Direct(armed));
    let (mut failed, mut batch_back, mut memory_back) = (false, false, false);
    for _ in 0..3 {
        match near.outcome().await {
            Outcome::Failed(_) => failed = true,
            Outcome::Sent { batch, result } => {
                assert!(result.is_err());
                batch_back = batch.remaining() == 5;
            }
            Outcome::Received(Received::Failed { returned, .. }) => {
                memory_back = returned.is_some();
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(failed && batch_back && memory_back);
}

async fn watching_reports_that_the_peer_finished(world: TestTransport) {
    let (near, mut far) = world.pair().await;
    far.link.watch();
    assert!(far.link.poll_outcome().is_none());
    drop(near);
    match far.outcome().await {
        Outcome::PeerGone(error) => assert_eq!(error.kind(), ErrorKind::PeerClosed),
        other => panic!("expected the peer to be gone, found {other:?}"),
    }
    assert!(far.link.poll_outcome().is_none(), "it is reported once");

    let (mut near, mut far) = world.pair().await;
    far.link.watch();
    assert!(far.link.poll_outcome().is_none());
    near.link.reset();
    match far.outcome().await {
        Outcome::PeerGone(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        other => panic!("expected the peer to be gone, found {other:?}"),
    }
    far.link.receive(Receive::Stage);
    match far.received().await {
        Received::Failed { error, .. } => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        other => panic!("expected a failure, found {other:?}"),
    }
}

async fn watching_does_not_eat_bytes(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    far.link.watch();
    near.send_all(plain(b"unread ")).await;
    for _ in 0..5 {
        assert!(far.link.poll_outcome().is_none(), "bytes are no news");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    near.send_all(plain(b"for now")).await;
    drop(near);
    match far.outcome().await {
        Outcome::PeerGone(error) => assert_eq!(error.kind(), ErrorKind::PeerClosed),
        other => panic!("expected the peer to be gone, found {other:?}"),
    }
    assert_eq!(far.receive_staged(100).await, b"unread for now");
}

async fn a_watch_ends_by_a_receive(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    far.link.watch();
    near.send_all(plain(b"seen already")).await;
    // The readiness for these bytes has come and gone before the receive is armed.
    for _ in 0..5 {
        assert!(far.link.poll_outcome().is_none());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(far.receive_staged(12).await, b"seen already");
    far.link.watch();
    assert!(far.link.poll_outcome().is_none());
    far.link.cancel_receive();
    drop(near);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(far.link.poll_outcome().is_none(), "the watch was cancelled");
}

async fn both_directions_move_at_once(world: TestTransport) {
    const TOTAL: usize = 4 << 20;
    let (mut near, mut far) = world.pair().await;
    let ends = [(&mut near, 1, 2), (&mut far, 2, 1)].map(|(peer, own, others)| async move {
        let mut left = plain(&pattern(TOTAL, own));
        let mut got = Vec::new();
        peer.link.send(left);
        peer.link.receive(Receive::Stage);
        let mut sending = true;
        while sending || got.len() < TOTAL {
            match peer.outcome().await {
                Outcome::Sent { batch, result } => {
                    left = batch;
                    left.drop_sent(result.expect("sent"));
                    sending = left.remaining() > 0;
                    if sending {
                        peer.link.send(left);
                    }
                }
                Outcome::Received(Received::Stage(stage)) => {
                    got.extend_from_slice(&stage);
                    if got.len() < TOTAL {
                        peer.link.receive(Receive::Stage);
                    }
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        assert!(got == pattern(TOTAL, others), "all bytes, in order");
    });
    let [near, far] = ends;
    tokio::join!(near, far);
}

async fn many_small_messages_arrive_in_order(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    let count = if world.is_faulty() { 200 } else { 3000 };
    let message = |at: usize| pattern(1 + at % 90, at);
    let send = async {
        for at in 0..count {
            near.send_all(plain(&message(at))).await;
        }
    };
    let expected: Vec<u8> = (0..count).flat_map(message).collect();
    let ((), got) = tokio::join!(send, far.receive_staged(expected.len()));
    assert!(got == expected, "all bytes, in order");
}

async fn a_wake_comes_for_a_receive_armed_outside_of_the_loop(world: TestTransport) {
    let (mut near, mut far) = world.pair().await;
    assert!(far.link.poll_outcome().is_none());
    near.send_all(plain(b"waiting")).await;
    // The bytes are there, and the link was not polled since.
    tokio::time::sleep(Duration::from_millis(20)).await;
    far.waker.notify.notify_one();
    far.waker.notify.notified().await;
    far.link.receive(Receive::Stage);
    let woken = tokio::time::timeout(PATIENCE, far.waker.notify.notified()).await;
    assert!(woken.is_ok(), "arming a receive announces what is there");
    match far.received().await {
        Received::Stage(stage) => assert!(b"waiting".starts_with(&stage)),
        other => panic!("expected bytes, found {other:?}"),
    }
}

async fn a_listeners_address_is_taken(world: TestTransport) {
    let listener = world.transport.listen(localhost()).unwrap();
    let error = world.transport.listen(listener.local_addr()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddressInUse);
    drop(listener);
}
