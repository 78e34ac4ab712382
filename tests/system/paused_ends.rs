//! Peers that end, or die, while this side does not read: what waits for them ends all the same.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::on_sockets_at_once;
use crate::common::raw::control;
use futures::future::join_all;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Access, Endpoint, ErrorKind, Event, RemoteRegion, limits::FLUSH_TIMEOUT};

/// Long enough for a busy machine.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    let ended = tokio::time::timeout(limit, future).await;
    ended.unwrap_or_else(|_| panic!("{what}: nothing comes"))
}

/// How the peer goes.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It ends its stream.
    Fin,
    /// It ends its stream, and then resets the connection.
    FinThenReset,
    Reset,
}

/// The header of a message of this length, and some bytes of it.
fn message(len: u64, sent: usize) -> Vec<u8> {
    let mut frame = vec![3, 0, 0, 0, 0, 0, 16, 0];
    frame.extend((16 + len).to_ne_bytes());
    frame.resize(16 + sent, 7);
    frame
}

/// The HELLO of a peer that has the extension but for credit: identity, probes and CLOSE.
fn hello() -> Vec<u8> {
    let mut values: Vec<u8> = vec![0, 1, 0, 8];
    values.extend(7_u64.to_be_bytes());
    let mut frame = vec![3, 0x80, 0, 0, 0, 0, 16, 0];
    frame.extend((16 + values.len() as u64).to_ne_bytes());
    frame.extend(values);
    frame
}

/// Dials, with the extension or without.
fn dial(to: SocketAddr, extended: bool) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    let mut request = control(3, 0, 0, 1_u64.to_ne_bytes(), b"");
    if extended {
        request[8..16].copy_from_slice(&[b't', b'o', b'f', b'a', 1, 0, 0, 0b0000_1111]);
    }
    stream.write_all(&request).unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).unwrap();
    if extended {
        stream.write_all(&hello()).unwrap();
    }
    stream
}

/// An endpoint without room for messages, and a peer by hand that dialled it.
async fn with_peer(us: &Peer, extended: bool) -> (Endpoint, TcpStream) {
    let listener = us.fabric.passive_endpoint(&us.events);
    let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr();
    let dialled = tokio::task::spawn_blocking(move || dial(to, extended));
    let Some(Event::ConnRequest(request)) = us.events.next().await else {
        panic!("no request");
    };
    let endpoint = us.domain.endpoint().unexpected_bytes(5000).open().unwrap();
    endpoint.accept(request).await.unwrap();
    (endpoint, dialled.await.unwrap())
}

/// One peer: its first message has no room, and its stream ends so many bytes behind it.
async fn dies(net: &Net, extended: bool, seen_before: bool, behind: usize, end: Loss) {
    let what = format!("extended {extended}, seen before {seen_before}, {behind} behind, {end:?}");
    let us = net.peer().unwrap();
    let (ours, stream) = with_peer(&us, extended).await;
    let read = ours.read(vec![0; 64], RemoteRegion::new(0, 64, 1));
    let read = read.post().unwrap();
    let send = ours.send(vec![1; 64]).delivery_complete().post().unwrap();
    let before = ours.stats().bytes_received;
    let mut frames = message(70_000, 70_000);
    let mut second = message(300_000, 1000);
    second.truncate(behind);
    frames.extend(second);
    (&stream).write_all(&frames).unwrap();
    if seen_before {
        finish(&stream, end);
    }
    // Of what comes first, only the header can be taken.
    while ours.stats().bytes_received < before + 16 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    finish(&stream, end);
    drop(stream);
    let failed = soon(&what, read).await.unwrap_err();
    assert!(is_loss(failed.kind()), "{what}: {failed}");
    let failed = soon(&what, send).await.unwrap_err();
    assert!(is_loss(failed.kind()), "{what}: {failed}");
    assert!(!ours.is_connected(), "{what}");
}

fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset)
}

fn finish(stream: &TcpStream, end: Loss) {
    if !matches!(end, Loss::Reset) {
        // The second time it fails.
        let _ = stream.shutdown(Shutdown::Write);
    }
    if !matches!(end, Loss::Fin) {
        let socket = socket2::SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// "A peer's death is always found", also while reading is paused for want of a receive and of
/// room, with whatever part of another message behind the one that waits.
#[test]
fn a_peer_that_is_gone_is_found_while_reading_is_paused() {
    on_sockets_at_once(|net| async move {
        let mut cases = Vec::new();
        for extended in [false, true] {
            for seen_before in [false, true] {
                for behind in [0, 5, 16, 1016] {
                    for end in [Loss::Fin, Loss::FinThenReset, Loss::Reset] {
                        cases.push(dies(&net, extended, seen_before, behind, end));
                    }
                }
            }
        }
        join_all(cases).await;
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
