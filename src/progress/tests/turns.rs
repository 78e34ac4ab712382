//! How much one connection may move before others have their turn, in bytes.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;

use crate::buf::SharedBuffer;
use crate::endpoint::Endpoint;
use crate::error::ErrorKind;
use crate::limits::{DIRECT_PIECE_MAX, GATHER_FRAMES_ENOUGH, GATHER_FRAMES_FIRST, TURN_BYTES_MAX};
use crate::mr::Access;
use crate::progress::Port;
use crate::progress::inline_send::PeerProcessor;
use crate::testing::{FaultPlan, Net, Peer, connect_endpoints};
use crate::transport::Backend;

const BULK: usize = 8 << 20;
/// The received and the sent bytes of a turn may each exceed the budget by a piece.
const MOVED_MAX: u64 = (TURN_BYTES_MAX + 2 * DIRECT_PIECE_MAX) as u64;

/// The only port of a domain.
fn port(peer: &Peer) -> Arc<Port> {
    let ports = peer.domain.engine_for_endpoint().lock_ports();
    let key = ports.keys()[0];
    ports.get(key).cloned().unwrap().connection().unwrap()
}

/// Returns the bytes that were sent, and the bytes that were received for reads.
fn moved(port: &Port) -> (u64, u64) {
    let state = port.lock("count");
    (state.liveness.sent, state.machine.work())
}

/// Awaits `bulk`, and returns the most bytes that each of these ports has moved either way from one
/// turn of another task to that task's next.
async fn most_at_a_time(ports: &[Arc<Port>], bulk: impl IntoFuture) -> u64 {
    let before = ports.iter().map(|it| moved(it)).collect::<Vec<_>>();
    let mut seen = before.clone();
    let mut most = 0;
    let mut bulk = pin!(bulk.into_future());
    loop {
        let ended = futures::poll!(bulk.as_mut()).is_ready();
        for (port, seen) in ports.iter().zip(&mut seen) {
            let now = moved(port);
            most = most.max(now.0 - seen.0).max(now.1 - seen.1);
            *seen = now;
        }
        if ended {
            break;
        }
        tokio::task::yield_now().await;
    }
    let sent: u64 = seen
        .iter()
        .zip(&before)
        .map(|(now, then)| now.0 - then.0)
        .sum();
    assert!(sent >= BULK as u64, "{sent} bytes were counted");
    most
}

async fn on_each_net(test: impl AsyncFn(Net, Peer, Peer, Endpoint, Endpoint)) {
    let epoll = Net::on(Backend::Epoll);
    let nets = [Net::loopback(), epoll, Net::on(Backend::IoUring)];
    for net in nets {
        let (a, b) = match (net.peer(), net.peer()) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                continue;
            }
        };
        let near = a.domain.endpoint().open().unwrap();
        let far = b.domain.endpoint().open().unwrap();
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        test(net, a, b, near, far).await;
    }
}

/// `TURN_BYTES_MAX`: "Bytes that a driver moves before other ready connections, other tasks of its
/// runtime and the reactor get their turn".
#[tokio::test]
async fn others_have_their_turn_between_the_pieces_of_a_bulk_send() {
    on_each_net(async |net, a, b, near, far| {
        let receive = far.recv(vec![0; BULK]).post().unwrap();
        let ports = [port(&a), port(&b)];
        let before = moved(&ports[0]).0;
        let send = near.send(vec![7; BULK]).post().unwrap();
        let at_once = moved(&ports[0]).0 - before;
        assert!(
            at_once <= MOVED_MAX,
            "{net:?}: {at_once} bytes within a call"
        );
        let most = most_at_a_time(&ports, async { tokio::join!(send, receive) }).await;
        assert!(most <= MOVED_MAX, "{net:?}: {most} bytes");
    })
    .await;
}

/// The same of RMA, at both ends.
#[tokio::test]
async fn others_have_their_turn_between_the_pieces_of_rma() {
    on_each_net(async |net, a, b, near, _far| {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = b.domain.register(vec![1; BULK]).access(access);
        let region = region.await.unwrap();
        let ports = [port(&a), port(&b)];
        let read = near.read(vec![0; BULK], region.remote());
        let most = most_at_a_time(&ports, read).await;
        assert!(most <= MOVED_MAX, "{net:?}: {most} bytes of a read");
        let write = near.write(vec![2; BULK], region.remote());
        let most = most_at_a_time(&ports, write.delivery_complete()).await;
        assert!(most <= MOVED_MAX, "{net:?}: {most} bytes of a write");
    })
    .await;
}

/// `ACKS_WAITING_MAX`: "one ack for several frames saves system calls and wake-ups on both sides".
/// Each receive brings a part of a write, and no time passes.
#[tokio::test(start_paused = true)]
async fn writes_that_come_one_after_another_share_acks() {
    const WRITES: u64 = 64;
    let net = Net::loopback().faults(FaultPlan::seeded(1).short_io(1.0));
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let near = a.domain.endpoint().open().unwrap();
    let far = b.domain.endpoint().open().unwrap();
    connect_endpoints(&near, &far, &b.fabric).await.unwrap();
    let region = b.domain.register(vec![0; 512]).access(Access::REMOTE_WRITE);
    let region = region.await.unwrap();
    let acks = || port(&b).lock("count").counts.backend_sends;
    let before = acks();
    let writes = (0..WRITES).map(|_| {
        let write = near.write(vec![1; 512], region.remote());
        write.delivery_complete().into_future()
    });
    for written in futures::future::join_all(writes).await {
        written.unwrap();
    }
    let sent = acks() - before;
    assert!((1..WRITES).contains(&sent), "{sent} sends");
}

/// `GATHER_FRAMES_FIRST`: "It wakes a peer that sleeps, and the peer works while the rest is
/// posted"; later frames share fewer system calls. "Not for a peer on the same processor, which
/// could not work meanwhile."
#[tokio::test]
async fn the_first_frames_of_a_burst_leave_before_the_rest_is_posted() {
    const MESSAGES: usize = 100;
    for net in [Net::loopback(), Net::on(Backend::Epoll)] {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let near = a.domain.endpoint().open().unwrap();
        let far = b.domain.endpoint().open().unwrap();
        connect_endpoints(&near, &far, &b.fabric).await.unwrap();
        let port = port(&a);
        for is_shared in [false, true, false] {
            port.lock("test").io.peer_processor = PeerProcessor::known(is_shared);
            let receives = (0..=MESSAGES).map(|_| far.recv(vec![0; 64]).post().unwrap());
            let mut receives: Vec<_> = receives.collect();
            // There is credit for a burst once this has arrived.
            near.send(vec![1; 64]).await.unwrap();
            receives.remove(0).await.unwrap();
            let mut sent = Vec::new();
            for number in 1..=MESSAGES {
                let before = moved(&port).0;
                near.send(vec![1; 64]).detach().unwrap();
                if moved(&port).0 > before {
                    sent.push(number);
                }
            }
            // A frame on an idle connection is sent within its call.
            let alone = usize::from(sent.first() == Some(&1));
            let first = alone + GATHER_FRAMES_FIRST;
            match is_shared {
                false => assert_eq!(
                    sent[alone..],
                    [first, first + GATHER_FRAMES_ENOUGH],
                    "{net:?}"
                ),
                true => assert!(sent[alone..].is_empty(), "{net:?}: left to the driver"),
            }
            for receive in receives {
                receive.await.unwrap();
            }
        }
    }
}

/// A registration that is used and released again costs the same with one connection and with
/// thousands: the driver has nothing to take back, and locks no port.
#[tokio::test]
async fn the_last_drop_of_a_cached_region_locks_no_port() {
    on_each_net(async |net, _a, b, _near, _far| {
        let cache = b.domain.cache().open().unwrap();
        let buffer = SharedBuffer::new(vec![0_u8; 4096]);
        let engine = b.domain.engine_for_endpoint();
        engine.take_regions_changed();
        for _ in 0..3 {
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let region = cache.register(&buffer, 0..4096).access(access);
            drop(region.await.unwrap());
            assert!(!engine.take_regions_changed(), "{net:?}");
        }
    })
    .await;
}
