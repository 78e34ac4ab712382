//! The end of remote access, shown by the processor: after `revoke` has returned the pages are
//! protected, and any touch of them is a signal, or an EFAULT that would fail a connection twice.

mod common;
#[path = "common/peers.rs"]
mod peers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use common::on_every_backend;
use peers::{listener, request};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Access, Backend, Endpoint, MemoryRegion, Refusal, RemoteRegion};

const LEN: usize = 1 << 20;
const PAGE: usize = 4096;
const PEERS: usize = 8;

fn rounds() -> usize {
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => 200,
        _ => 10,
    }
}

/// Changes the protection of the whole pages within these bytes.
fn protect(start: usize, len: usize, protection: i32) {
    let first = start.next_multiple_of(PAGE);
    let end = (start + len) / PAGE * PAGE;
    // SAFETY: the pages lie within a live allocation of the test's; nothing may touch them while
    // they are protected, which is what the test is about, and they are opened again before the
    // allocation is given back.
    let answer = unsafe { libc::mprotect(first as *mut libc::c_void, end - first, protection) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// Writes and reads the region until it refuses. Gives how often it did.
async fn hammer(peer: Endpoint, remote: RemoteRegion, number: usize) -> usize {
    let plain = peer.peer_incarnation().is_none();
    let mut done = 0;
    let mut buffer = vec![number as u8; (8 << 10) << (number % 5)];
    loop {
        let range = remote.slice(0..buffer.len() as u64).expect("within it");
        let ended = if (number + done).is_multiple_of(2) {
            peer.write(buffer, range).delivery_complete().await
        } else {
            peer.read(buffer, range).await
        };
        match ended {
            Ok((_, back)) => buffer = back,
            Err(failed) => {
                // A plain peer is told by the end of its connection.
                let expected = (!plain).then_some(Refusal::Revoked);
                assert_eq!(failed.error().refusal(), expected, "{failed}");
                assert!(!plain || failed.error().is_connection_lost(), "{failed}");
                return done;
            }
        }
        done += 1;
    }
}

/// A peer that stops in the middle of the payload of a write, by hand; its connection.
async fn stalled(target: &Peer, region: &MemoryRegion) -> (TcpStream, Endpoint) {
    let (passive, events) = listener(target);
    let address: SocketAddr = passive.local_addr();
    let remote = region.remote();
    let connecting = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("a listener");
        let mut control = [0_u8; 32];
        control[0] = 3;
        control[24..].copy_from_slice(&1_u64.to_ne_bytes());
        stream.write_all(&control).expect("a request");
        stream.read_exact(&mut control).expect("a response");
        assert_eq!(control[1], 1, "accepted");
        let len = 1_u64 << 20;
        let mut header = vec![3, 4, 0, 0, 0, 1, 40, 0];
        for word in [40 + len, remote.addr, len, remote.key] {
            header.extend_from_slice(&word.to_ne_bytes());
        }
        stream.write_all(&header).expect("a header");
        stream
            .write_all(&vec![7; 300 << 10])
            .expect("a part of the payload");
        stream
    });
    let accepted = request(&events).await.accept(&target.domain).await;
    let stream = connecting.await.expect("the peer by hand");
    (stream, accepted.expect("a connection"))
}

async fn round(net: &Net, target: &Peer, initiator: &Peer, number: usize) {
    let bytes = vec![0_u8; LEN];
    let start = bytes.as_ptr() as usize;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = target.domain.register(bytes).access(access).await.unwrap();
    let mut ends = Vec::new();
    let mut hammers = tokio::task::JoinSet::new();
    for peer in 0..PEERS {
        let (a, b) = (initiator.domain.endpoint(), target.domain.endpoint());
        let (a, b) = (
            a.extension(peer % 4 != 3).open().unwrap(),
            b.open().unwrap(),
        );
        connect_endpoints(&a, &b, &target.fabric).await.unwrap();
        hammers.spawn(hammer(a, region.remote(), peer));
        ends.push(b);
    }
    let by_hand = match net.backend() {
        Backend::Loopback => None,
        _ => Some(stalled(target, &region).await),
    };
    for _ in 0..number * 7 % 31 {
        tokio::task::yield_now().await;
    }
    region.revoke().await;
    protect(start, LEN, libc::PROT_NONE);
    while let Some(ended) = hammers.join_next().await {
        ended.expect("a peer ends with an error, not by a signal");
    }
    if let Some((mut stream, _accepted)) = by_hand {
        // More of the payload of a region that is gone: the connection ends, nothing else happens.
        let _ = stream.write_all(&[8; 4096]);
        let closed = tokio::task::spawn_blocking(move || stream.read(&mut [0; 1]));
        assert!(!matches!(closed.await.unwrap(), Ok(1..)), "an answer");
    }
    protect(start, LEN, libc::PROT_READ | libc::PROT_WRITE);
    drop(ends);
    // Nobody else reads the queues that the domains are bound to.
    while initiator.events.try_next().is_some() || target.events.try_next().is_some() {}
}

/// memory-model 4: "`revoke().await` = mark the region refused, cancel the kernel operations on it,
/// await their own ends": once it has returned no byte is touched, with eight peers at work and one
/// stalled in the middle of its payload.
#[test]
fn after_revoke_the_pages_may_be_taken_away() {
    on_every_backend(|net| async move {
        let (target, initiator) = (net.peer().unwrap(), net.peer().unwrap());
        for number in 0..rounds() {
            round(&net, &target, &initiator, number).await;
        }
    });
}
