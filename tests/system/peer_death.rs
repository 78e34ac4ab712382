//! What is left of a connection when its peer dies: every operation ends with a typed error, then
//! one Shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::child::PeerProcess;
use crate::common::{on, on_every_backend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Backend, Completion, CompletionQueue, Endpoint, ErrorKind, Event, RemoteRegion,
    error::{OperationKind, Phase},
};

/// The kinds of errors for the loss of a peer.
fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset)
}

/// Long enough for a busy machine.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: nothing comes"))
}

/// The endpoint, with its queue for everything, of one side. Without message credit, so that unread
/// messages fill the connection.
fn endpoint(peer: &Peer) -> (Endpoint, CompletionQueue) {
    let queue = peer.domain.completion_queue().open().unwrap();
    let endpoint = peer
        .domain
        .endpoint()
        .completion_queue(&queue)
        .extension(false)
        .open()
        .unwrap();
    (endpoint, queue)
}

/// Shutdown is reported once, after Connected and after all completions.
async fn one_shutdown(peer: &Peer, endpoint: &Endpoint) {
    let shutdown = async {
        loop {
            match peer.events.next().await {
                Some(Event::Connected { .. }) => {}
                Some(Event::Shutdown { endpoint, .. }) => return endpoint,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(soon("Shutdown", shutdown).await, endpoint.id());
    assert!(peer.events.is_empty(), "something follows Shutdown");
}

/// Operations of every kind, in both ways to complete, that a peer which does nothing leaves
/// outstanding: all end with a typed loss, the completions before Shutdown.
async fn everything_outstanding(
    peer: &Peer,
    endpoint: Endpoint,
    queue: CompletionQueue,
    remote: RemoteRegion,
    die: impl FnOnce(),
) {
    let large = vec![5; 32 << 20];
    let receive = endpoint.recv(vec![0; 100]).post().unwrap();
    let receives = endpoint
        .recv([vec![0; 100], vec![0; 10]])
        .queue(1_u64)
        .post()
        .unwrap();
    // Behind 32 MiB that are not read, everything waits.
    let moving = endpoint.send(large).post().unwrap();
    let acked = endpoint
        .send("acked")
        .delivery_complete()
        .imm(7)
        .post()
        .unwrap();
    let sends = endpoint.send("queued").queue(2_u64).post().unwrap();
    let write = endpoint
        .write(vec![1; 10], remote.slice(..10).unwrap())
        .imm(1)
        .post()
        .unwrap();
    let writes = endpoint
        .write(vec![1; 10], remote.slice(..10).unwrap())
        .delivery_complete();
    let writes = writes.queue(3_u64).post().unwrap();
    let read = endpoint
        .read(vec![0; 10], remote.slice(..10).unwrap())
        .post()
        .unwrap();
    let reads = endpoint.read([vec![0; 5], vec![0; 5]], remote.slice(..10).unwrap());
    let reads = reads.queue(4_u64).post().unwrap();
    endpoint.inject(b"injected").unwrap();
    let waiting: Vec<_> = (0..300)
        .map(|_| endpoint.send(vec![0; 20]).post().unwrap())
        .collect();
    assert_eq!(waiting.last().unwrap().phase(), Phase::Waiting);
    for accepted in [
        sends.is_accepted(),
        writes.is_accepted(),
        reads.is_accepted(),
        receives.is_accepted(),
    ] {
        assert!(accepted);
    }
    die();
    let kind = soon("a receive", receive).await.unwrap_err().kind();
    assert!(is_loss(kind), "{kind:?}");
    let failed = soon("a send", moving).await.unwrap_err();
    assert!(is_loss(failed.kind()), "{failed:?}");
    assert_eq!(failed.error().operation(), Some(OperationKind::Send));
    assert_eq!(failed.error().peer(), endpoint.peer_addr());
    let (_, buffer) = failed.into_parts();
    assert!(
        buffer.is_some_and(|buffer| buffer.len() == 32 << 20),
        "the buffer comes back"
    );
    assert!(is_loss(
        soon("an acked send", acked).await.unwrap_err().kind()
    ));
    assert!(is_loss(soon("a write", write).await.unwrap_err().kind()));
    assert!(is_loss(soon("a read", read).await.unwrap_err().kind()));
    for op in waiting {
        assert!(is_loss(
            soon("a waiting send", op).await.unwrap_err().kind()
        ));
    }
    one_shutdown(peer, &endpoint).await;
    // Shutdown is last: whatever else had to end has ended.
    let mut completions: Vec<Completion> = Vec::new();
    queue.read_batch(&mut completions, 100);
    let mut contexts: Vec<_> = completions
        .iter()
        .map(|completion| completion.context.0)
        .collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2, 3, 4]);
    for completion in &completions {
        let failed = completion
            .result
            .as_ref()
            .expect_err("the peer did nothing");
        assert!(is_loss(failed.error.kind()), "{failed}");
    }
    let late = endpoint.send("late").await.unwrap_err();
    assert!(is_loss(late.kind()), "posting says why, too: {late}");
    assert!(is_loss(endpoint.recv(vec![0; 4]).await.unwrap_err().kind()));
}

/// "After `kill -9` of the peer everything bound to it ends at once", with operations of all kinds
/// outstanding, on the accepting and on the connecting side.
#[test]
fn a_killed_peer_ends_everything_on_both_roles() {
    on(Backend::Epoll, |net| async move {
        let us = net.peer().unwrap();
        for connecting in [true, false] {
            let (ours, queue) = endpoint(&us);
            let requests = us.fabric.event_queue().open().unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = us
                .fabric
                .passive_endpoint(&requests)
                .listen_at(any)
                .unwrap();
            let dial = if connecting {
                String::new()
            } else {
                listener.local_addr().to_string()
            };
            let (mut peer, address) = tokio::task::spawn_blocking(move || {
                PeerProcess::start(
                    "peer_death::the_peer_that_is_killed",
                    &[("TOKIO_FABRIC_DIAL", dial)],
                )
            })
            .await
            .unwrap();
            let remote = if connecting {
                ours.connect(address.parse().unwrap()).await.unwrap()
            } else {
                let Some(Event::ConnRequest(request)) = requests.next().await else {
                    panic!()
                };
                let data = request.data().clone();
                ours.accept(request).await.unwrap();
                data
            };
            let remote = RemoteRegion::from_bytes(&remote).unwrap();
            everything_outstanding(&us, ours, queue, remote, || peer.kill()).await;
        }
    });
}

/// The other process: takes a connection, or makes one, and reads no more than it must: no receive
/// is posted, and large messages do not fit its store.
#[test]
#[ignore = "the other process of another test"]
fn the_peer_that_is_killed() {
    crate::common::child::end_with_the_parent();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let us = Net::on(Backend::Epoll).peer().unwrap();
        let region = us
            .domain
            .register(vec![0; 100])
            .access(Access::all())
            .await
            .unwrap();
        let data = region.remote().to_bytes();
        let endpoint = us.domain.endpoint().open().unwrap();
        match std::env::var("TOKIO_FABRIC_DIAL")
            .unwrap()
            .parse::<SocketAddr>()
        {
            Ok(address) => {
                crate::common::child::say("dials");
                endpoint.connect(address).data(data).await.unwrap();
            }
            Err(_) => {
                let requests = us.fabric.event_queue().open().unwrap();
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let listener = us
                    .fabric
                    .passive_endpoint(&requests)
                    .listen_at(any)
                    .unwrap();
                crate::common::child::say(listener.local_addr());
                let Some(Event::ConnRequest(request)) = requests.next().await else {
                    panic!()
                };
                endpoint.accept(request).data(data).await.unwrap();
            }
        }
        std::future::pending().await
    })
}

/// A connection that is cut in mid-stream, at any byte, is a loss on both sides, and no more: all
/// operations end, one Shutdown each.
#[test]
fn a_cut_connection_ends_everything_on_both_sides() {
    on_every_backend(|net| async move {
        for cut in [1, 31, 32, 40, 64, 65, 90, 300, 5000, 70_000] {
            let plan = FaultPlan::seeded(cut).cut_after_bytes(cut..=cut);
            let net = Net::on(net.backend()).faults(plan);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let (ours, theirs) = (
                a.domain.endpoint().open().unwrap(),
                b.domain.endpoint().open().unwrap(),
            );
            let connected = soon(
                "the handshake",
                connect_endpoints(&ours, &theirs, &b.fabric),
            )
            .await;
            let count = if connected.is_ok() { 20 } else { 0 };
            let ops = (0..count).map(|_| {
                let receive = theirs.recv(vec![0; 9000]).post();
                let send = ours.send(vec![1; 9000]).delivery_complete().post();
                (send, receive)
            });
            let ops: Vec<_> = ops.collect();
            let mut lost = 0;
            for (send, receive) in ops {
                let failed = match send {
                    Ok(send) => soon("a send", send).await.err(),
                    Err(failed) => Some(failed),
                };
                lost += usize::from(failed.is_some_and(|failed| is_loss(failed.kind())));
                if let Ok(receive) = receive {
                    let _ = soon("a receive", receive).await;
                }
            }
            assert!(connected.is_err() || lost > 0, "cut after {cut} bytes");
            for (peer, endpoint) in [(&a, &ours), (&b, &theirs)] {
                soon("the end", endpoint.shutdown()).await.unwrap();
                match peer.events.try_next() {
                    Some(Event::Connected { .. }) => one_shutdown(peer, endpoint).await,
                    // One side may still be about to learn of it when it is closed.
                    Some(Event::Error(failed)) => assert!(
                        is_loss(failed.error.kind())
                            || connected.is_err() && failed.error.is_canceled(),
                        "{failed}"
                    ),
                    None => assert!(connected.is_err(), "cut after {cut} bytes"),
                    other => panic!("{other:?} after {cut} bytes"),
                }
                assert!(peer.events.is_empty(), "something follows the end");
            }
        }
    });
}

/// "Shutdown comes once and last", of a connection: an endpoint that never had one reports none.
#[test]
fn an_endpoint_that_was_never_connected_reports_no_shutdown() {
    on_every_backend(|net| async move {
        let us = net.peer().unwrap();
        let (ours, _) = endpoint(&us);
        let receive = ours.recv(vec![0; 8]).post().unwrap();
        ours.shutdown().await.unwrap();
        assert_eq!(receive.await.unwrap_err().kind(), ErrorKind::Canceled);
        assert!(us.events.is_empty());
    });
}

/// A raw peer that has been accepted by an endpoint of ours.
async fn raw_peer(us: &Peer, endpoint: &Endpoint) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 32];
        stream.read_exact(&mut request).await.unwrap();
        request[1] = 1;
        request[8..16].fill(0); // It knows nothing beyond the protocol.
        stream.write_all(&request).await.unwrap();
        stream
    };
    let (connected, stream) = tokio::join!(
        endpoint
            .connect(listener.local_addr().unwrap())
            .into_future(),
        answer
    );
    connected.unwrap();
    assert!(matches!(
        us.events.try_next(),
        Some(Event::Connected { .. })
    ));
    stream
}

/// The header of a message frame of this whole length.
fn message(flags: u8, frame_len: u64) -> Vec<u8> {
    let mut header = vec![3, 0, flags, 0, 0, 0, 16, 0];
    header.extend(frame_len.to_ne_bytes());
    header
}

/// The peer's stream ends in the middle of a frame, or the peer resets it: a typed loss.
#[test]
fn an_end_in_mid_frame_and_a_reset_are_losses() {
    on(Backend::Epoll, |net| async move {
        for reset in [false, true] {
            for len in [0, 7, 16, 30, 100] {
                let us = net.peer().unwrap();
                let (ours, _) = endpoint(&us);
                let mut stream = raw_peer(&us, &ours).await;
                let receive = ours.recv(vec![0; 200]).post().unwrap();
                let mut frame = message(0, 116);
                frame.extend([9; 84]);
                frame.truncate(len);
                stream.write_all(&frame).await.unwrap();
                if reset {
                    stream.set_zero_linger().unwrap();
                }
                drop(stream);
                let kind = soon("the receive", receive).await.unwrap_err().kind();
                assert!(is_loss(kind), "{kind:?} after {len} bytes");
                if !reset {
                    assert_eq!(kind, ErrorKind::PeerClosed);
                }
                one_shutdown(&us, &ours).await;
            }
        }
    });
}

/// A peer that dies while its messages wait unread, for want of receives and of room, is found dead
/// all the same.
#[test]
fn a_reset_is_seen_while_reading_is_paused() {
    on(Backend::Epoll, |net| async move {
        // The pause begins at the first byte received, and in the middle of what was received.
        for unexpected in [0, 20] {
            let us = net.peer().unwrap();
            let ours = us
                .domain
                .endpoint()
                .unexpected_bytes(unexpected * 128)
                .open()
                .unwrap();
            let mut stream = raw_peer(&us, &ours).await;
            // Those that are kept, then one that is not, then more.
            stream
                .write_all(&message(4, 16).repeat(unexpected + 30))
                .await
                .unwrap();
            let mut acks = vec![0; 16 * unexpected];
            soon("acks", stream.read_exact(&mut acks)).await.unwrap();
            let read = ours
                .read(vec![0; 8], RemoteRegion::new(0, 8, 1))
                .post()
                .unwrap();
            let mut request = [0; 40];
            soon("the request", stream.read_exact(&mut request))
                .await
                .unwrap();
            stream.set_zero_linger().unwrap();
            drop(stream);
            let kind = soon("the read", read).await.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::ConnectionReset);
            one_shutdown(&us, &ours).await;
        }
    });
}

/// Messages that came in full before the peer's end can be received after it.
#[test]
fn what_came_before_the_end_is_received_after_it() {
    on(Backend::Epoll, |net| async move {
        let us = net.peer().unwrap();
        // Nothing is kept: all of it waits in the socket.
        let ours = us.domain.endpoint().unexpected_bytes(0).open().unwrap();
        let mut stream = raw_peer(&us, &ours).await;
        let mut frame = message(0, 20);
        frame.extend(b"last");
        stream.write_all(&frame.repeat(3)).await.unwrap();
        drop(stream);
        one_shutdown(&us, &ours).await;
        for _ in 0..3 {
            let (received, buffer) = soon("a message", ours.recv(vec![0; 8]).into_future())
                .await
                .unwrap();
            assert_eq!(&buffer[..received.len], b"last");
        }
        let kind = ours.recv(vec![0; 8]).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::PeerClosed);
    });
}

/// "Idle costs no CPU", also while a dead peer's last frame waits for room in a full queue: time,
/// paused, goes on only when nothing runs.
#[test]
fn waiting_for_room_after_the_peers_end_is_idle() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    // The frame that waits leaves bytes behind it unread, or none.
    for (writes, len) in [(3, 8), (2, 0)] {
        runtime.block_on(async {
            let net = Net::loopback();
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let region = b
                .domain
                .register(vec![0; 8])
                .access(Access::all())
                .await
                .unwrap();
            let queue = b.domain.completion_queue().size(1).open().unwrap();
            // A plain peer: with the extension, what has no room over there is not answered yet.
            let ours = a.domain.endpoint().extension(false).open().unwrap();
            let theirs = b.domain.endpoint().receive_queue(&queue).open().unwrap();
            connect_endpoints(&ours, &theirs, &b.fabric).await.unwrap();
            let remote = region.remote().slice(..len as u64).unwrap();
            for data in 0..writes {
                ours.write(vec![data as u8; len], remote)
                    .imm(data)
                    .await
                    .unwrap();
            }
            ours.shutdown().await.unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            for data in 0..writes {
                assert_eq!(queue.next().await.unwrap().data, Some(data));
            }
            one_shutdown(&b, &theirs).await;
        });
    }
}
