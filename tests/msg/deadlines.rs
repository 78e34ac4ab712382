//! Operations with a time limit of their own: `.timeout(..)` of every operation builder.

use std::time::{Duration, Instant};

use crate::common::on_every_backend_at_once;
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Endpoint, ErrorKind, MemoryRegion,
    error::{OperationKind, Phase},
};

const SHORT: Duration = Duration::from_millis(60);
const LONG: Duration = Duration::from_secs(30);

/// Two connected plain endpoints; the second keeps no unexpected messages, so without a receive it
/// does not read.
async fn deaf(net: &Net) -> (Peer, Peer, Endpoint, Endpoint) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let queue = a.domain.completion_queue().open().unwrap();
    let builder = a.domain.endpoint().transmit_size(4);
    let x = builder.completion_queue(&queue).open().unwrap();
    let y = b.domain.endpoint().unexpected_bytes(0).extension(false);
    let y = y.open().unwrap();
    connect_endpoints(&x, &y, &b.fabric).await.unwrap();
    (a, b, x, y)
}

async fn region(peer: &Peer, len: usize) -> MemoryRegion<Vec<u8>> {
    let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
    let registered = peer.domain.register(bytes).access(Access::all());
    registered.await.unwrap()
}

/// A receive whose time passes is not there any more: a message that comes later is the next one's.
#[test]
fn a_receive_that_nothing_comes_for_ends() {
    on_every_backend_at_once(|net| async move {
        let (x, y) = net.pair().await.unwrap();
        let begun = Instant::now();
        let failed = y.recv(vec![7; 10]).timeout(SHORT).await.unwrap_err();
        assert!(begun.elapsed() >= SHORT);
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert_eq!(failed.error().operation(), Some(OperationKind::Receive));
        assert_eq!(failed.error().phase(), Some(Phase::Queued));
        let (_, buffer) = failed.into_parts();
        assert_eq!(buffer, Some(vec![7; 10]));
        x.send("later").await.unwrap();
        let receive = y.recv(vec![0; 5]).timeout(LONG).await.unwrap();
        assert_eq!(receive.1, b"later");
        assert!(x.is_connected() && y.is_connected());
    });
}

/// An operation that waits for room, or is queued behind others, is withdrawn, with the buffer;
/// those behind it go on.
#[test]
fn what_has_not_started_is_withdrawn() {
    on_every_backend_at_once(|net| async move {
        // Of the four places one is that of the message which moves: behind it those with a time
        // limit are queued, or three without one are, and those with one wait for room.
        for (queued, late, phase) in [(0, 3, Phase::Queued), (3, 5, Phase::Waiting)] {
            let (_a, _b, x, y) = deaf(&net).await;
            let send = |byte, len| x.send(vec![byte; len]);
            let moving = send(1, 20 << 20).post().unwrap();
            let mut kept: Vec<_> = (0..queued).map(|_| send(8, 8).post().unwrap()).collect();
            let late: Vec<_> = (0..late)
                .map(|at| send(at, 100).timeout(SHORT).post().unwrap())
                .collect();
            kept.push(send(9, 9).post().unwrap());
            for (at, op) in late.into_iter().enumerate() {
                let failed = op.await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::TimedOut);
                assert_eq!(failed.error().phase(), Some(phase));
                assert_eq!(failed.into_parts().1, Some(vec![at as u8; 100]));
            }
            y.recv(vec![0; 20 << 20]).await.unwrap();
            moving.await.unwrap();
            for (at, op) in kept.into_iter().enumerate() {
                let byte = if at < queued { 8 } else { 9 };
                let (received, buffer) = y.recv(vec![0; 100]).await.unwrap();
                assert_eq!(buffer[..received.len], vec![byte; byte.into()]);
                op.await.unwrap();
            }
        }
    });
}

/// An acknowledgement that comes too late is swallowed in its turn, and the next one is its own.
#[test]
fn a_late_acknowledgement_ends_no_other_operation() {
    on_every_backend_at_once(|net| async move {
        let (_a, b, x, y) = deaf(&net).await;
        let region = region(&b, 100).await;
        let first = x.send("first").delivery_complete().timeout(SHORT);
        let first = first.post().unwrap();
        let write = x.write(vec![5; 4], region.remote().slice(..4).unwrap());
        let write = write.delivery_complete().timeout(SHORT).post().unwrap();
        let third = x.send("third").delivery_complete().post().unwrap();
        let failed = first.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert_eq!(failed.error().phase(), Some(Phase::AwaitingPeer));
        assert_eq!(failed.into_parts().1, Some("first"));
        let (error, buffer) = write.await.unwrap_err().into_parts();
        assert_eq!(
            (error.kind(), buffer),
            (ErrorKind::TimedOut, Some(vec![5; 4]))
        );
        // Two of the four places are left to answers under way, one is taken.
        let fourth = x.send("fourth").delivery_complete().try_post().unwrap();
        let full = x.send("fifth").delivery_complete().try_post();
        assert_eq!(full.unwrap_err().kind(), ErrorKind::Again);
        assert_eq!(y.recv(vec![0; 5]).await.unwrap().1, b"first");
        assert_eq!(third.phase(), Phase::AwaitingPeer);
        assert_eq!(y.recv(vec![0; 5]).await.unwrap().1, b"third");
        third.await.unwrap();
        assert_eq!(y.recv(vec![0; 6]).await.unwrap().1, b"fourth");
        fourth.await.unwrap();
        let mut bytes = [0; 4];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 4], "a timed out write may be carried out");
        for _ in 0..9 {
            let receive = y.recv(vec![0; 2]).post().unwrap();
            x.send("on")
                .delivery_complete()
                .timeout(LONG)
                .await
                .unwrap();
            receive.await.unwrap();
        }
    });
}

/// A read's answer that comes too late is dropped, whatever its size, and the next one is its own.
#[test]
fn a_late_read_response_is_dropped() {
    on_every_backend_at_once(|net| async move {
        let (_a, b, x, y) = deaf(&net).await;
        let region = region(&b, 3 << 20).await;
        // Nothing behind this is looked at until it is received.
        x.send("in front").await.unwrap();
        let small = x.read(vec![0; 10], region.remote().slice(..10).unwrap());
        let small = small.timeout(SHORT).post().unwrap();
        let large = x.read(vec![0; 3 << 20], region.remote());
        let large = large.timeout(SHORT).post().unwrap();
        let kept = x.read(vec![0; 8], region.remote().slice(16..24).unwrap());
        let kept = kept.post().unwrap();
        let (error, buffer) = small.await.unwrap_err().into_parts();
        assert_eq!(
            (error.kind(), buffer),
            (ErrorKind::TimedOut, Some(vec![0; 10]))
        );
        let (error, buffer) = large.await.unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(buffer.is_some_and(|buffer| buffer.iter().all(|byte| *byte == 0)));
        assert_eq!(y.recv(vec![0; 8]).await.unwrap().1, b"in front");
        assert_eq!(kept.await.unwrap().1, [16, 17, 18, 19, 20, 21, 22, 23]);
        let whole = x.read(vec![0; 3 << 20], region.remote()).timeout(LONG);
        assert_eq!(whole.await.unwrap().0, 3 << 20);
    });
}

/// Bytes of a message that move when its time passes: it ends without the buffer, once, and the
/// message goes on.
#[test]
fn a_message_under_way_goes_on_without_its_owner() {
    on_every_backend_at_once(|net| async move {
        let (_a, _b, x, y) = deaf(&net).await;
        let moving = x.send(vec![1; 20 << 20]).timeout(SHORT).post().unwrap();
        let queued = x.send(vec![2; 30]).timeout(4 * SHORT).queue(5_u64);
        let queued = queued.post().unwrap();
        let failed = moving.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert_eq!(failed.error().phase(), Some(Phase::Moving));
        assert_eq!(failed.into_parts().1, None, "the system still reads it");
        let completion = x.receive_queue().next().await.unwrap();
        assert_eq!(completion.context.0, 5);
        assert!(queued.is_accepted());
        assert!(completion.result.unwrap_err().error.is_timed_out());
        let (received, bytes) = y.recv(vec![0; 20 << 20]).await.unwrap();
        assert_eq!(received.len, 20 << 20);
        assert!(bytes.iter().all(|byte| *byte == 1));
        x.send("next").await.unwrap();
        assert_eq!(y.recv(vec![0; 4]).await.unwrap().1, b"next");
        assert!(x.receive_queue().is_empty(), "each ends once");
    });
}

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages": none is
/// lost.
#[test]
fn a_message_that_lands_too_late_is_the_next_receives() {
    on_every_backend_at_once(|net| async move {
        let slow = Duration::from_millis(40)..=Duration::from_millis(41);
        let net = Net::on(net.backend()).faults(FaultPlan::seeded(4).delay(slow));
        let (x, y) = net.pair().await.unwrap();
        let sent: Vec<u8> = (0..8 << 20).map(|at| (at % 251) as u8).collect();
        let receive = y.recv(vec![0; 8 << 20]).post().unwrap();
        let send = x.send(sent.clone()).post().unwrap();
        while receive.phase() != Phase::Moving {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(receive);
        let second = x.send("second").post().unwrap();
        // The first of these takes it up, and loses it as well.
        let failed = y.recv(vec![0; 3]).timeout(Duration::ZERO).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::TimedOut);
        let (received, bytes) = y.recv(vec![0; 8 << 20]).await.unwrap();
        assert_eq!(received.len, 8 << 20);
        assert!(bytes == sent);
        assert_eq!(y.recv(vec![0; 6]).await.unwrap().1, b"second");
        send.await.unwrap();
        second.await.unwrap();
    });
}

/// The same while it lands: it ends without its buffer, and the message is whole for the next.
#[test]
fn a_receive_that_a_message_lands_in_ends_without_its_buffer() {
    on_every_backend_at_once(|net| async move {
        let slow = Duration::from_millis(40)..=Duration::from_millis(41);
        let net = Net::on(net.backend()).faults(FaultPlan::seeded(4).delay(slow));
        let (x, y) = net.pair().await.unwrap();
        let sent: Vec<u8> = (0..8 << 20).map(|at| (at % 251) as u8).collect();
        // It takes at least two delays to land, since no socket holds it whole. On a busy machine
        // it may not have begun to land in time, or has landed before anybody looks at the clock.
        let (send, failed) = loop {
            let send = x.send(sent.clone()).post().unwrap();
            let ended = loop {
                let ended = y.recv(vec![0; 8 << 20]).timeout(SHORT).await;
                let phase = ended
                    .as_ref()
                    .err()
                    .and_then(|failed| failed.error().phase());
                if phase != Some(Phase::Queued) {
                    break ended;
                }
            };
            match ended {
                Err(failed) => break (send, failed),
                Ok(_) => drop(send.await.unwrap()),
            }
        };
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        assert_eq!(failed.error().phase(), Some(Phase::Moving));
        assert_eq!(failed.into_parts().1, None);
        let (received, bytes) = y.recv(vec![0; 8 << 20]).await.unwrap();
        assert_eq!(received.len, 8 << 20);
        assert!(bytes == sent);
        send.await.unwrap();
    });
}

/// Each timed out operation is counted once, as an error; those that end in time are not.
#[test]
fn a_timed_out_operation_is_counted_once() {
    on_every_backend_at_once(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let counter = a.domain.counter().unwrap();
        let builder = a.domain.endpoint().send_counter(&counter);
        let x = builder.open().unwrap();
        let y = b.domain.endpoint().unexpected_bytes(0).extension(false);
        let y = y.open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let moving = x.send(vec![1; 20 << 20]).timeout(SHORT).post().unwrap();
        let queued = x.send("queued").timeout(SHORT).post().unwrap();
        let waits = x.send("waits").timeout(LONG).post().unwrap();
        moving.await.unwrap_err();
        queued.await.unwrap_err();
        y.recv(vec![0; 20 << 20]).await.unwrap();
        y.recv(vec![0; 20]).await.unwrap();
        waits.await.unwrap();
        assert_eq!((counter.read(), counter.read_error()), (1, 2));
    });
}
