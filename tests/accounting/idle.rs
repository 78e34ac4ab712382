//! What a connection that does nothing keeps of the heap.

use std::time::Duration;

use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Backend, CompletionQueue, Endpoint};

use crate::counting::bytes_in_use;
use crate::{ALONE, common, runtime};

const CONNECTIONS: usize = 64;
/// Of each end, without receives; what is in flight in a ring has a place there.
fn end_bytes_max(backend: Backend) -> isize {
    match backend {
        Backend::IoUring => 4160,
        _ => 3960,
    }
}

/// The endpoints of a peer share a queue, as those of a server do.
struct IdlePeer {
    peer: Peer,
    queue: CompletionQueue,
}

impl IdlePeer {
    fn open(net: &Net) -> IdlePeer {
        let peer = net.peer().unwrap();
        let queue = peer.domain.completion_queue().open().unwrap();
        IdlePeer { peer, queue }
    }

    async fn connect_to(&self, other: &IdlePeer) -> [Endpoint; 2] {
        let [a, b] = [self, other].map(|it| {
            let builder = it.peer.domain.endpoint();
            builder.receive_queue(&it.queue).open().unwrap()
        });
        let fabric = &other.peer.fabric;
        connect_endpoints(&a, &b, fabric).await.unwrap();
        [a, b]
    }
}

/// docs/performance.md: "heap of an idle connection".
#[test]
fn an_idle_connection_takes_little_of_the_heap() {
    let _alone = ALONE.lock();
    let backends = common::backends().into_iter();
    for backend in backends.filter(|it| *it != Backend::Loopback) {
        runtime(0).block_on(async {
            let net = Net::on(backend).local_after(64);
            let (us, them) = (IdlePeer::open(&net), IdlePeer::open(&net));
            // What is made once.
            let _first = us.connect_to(&them).await;
            let before = bytes_in_use();
            let mut idle = Vec::with_capacity(CONNECTIONS);
            for _ in 0..CONNECTIONS {
                idle.push(us.connect_to(&them).await);
            }
            let each = (bytes_in_use() - before) / (2 * CONNECTIONS as isize);
            println!("{backend:?}: {each} bytes at each end");
            let most = end_bytes_max(backend);
            assert!(each <= most, "{backend:?}: {each} bytes, at most {most}");
        });
    }
}

/// A connection that has been idle gives its memory back, and goes on with new.
#[test]
fn an_idle_connection_in_shared_memory_keeps_little_of_it() {
    let _alone = ALONE.lock();
    let sockets = common::backends()
        .into_iter()
        .filter(|it| *it != Backend::Loopback);
    for backend in sockets {
        runtime(0).block_on(async {
            let (a, b) = Net::on(backend).local_after(0).pair().await.unwrap();
            for round in 0..2 {
                while !a.path().is_local() || !b.path().is_local() {
                    a.send(vec![1]).await.unwrap();
                    b.recv(vec![0]).await.unwrap();
                }
                for (from, to) in [(&a, &b), (&b, &a)] {
                    for _ in 0..3 {
                        let receive = to.recv(vec![0; 1 << 20]).post().unwrap();
                        from.send(vec![7; 1 << 20]).await.unwrap();
                        assert_eq!(receive.await.unwrap().0.len, 1 << 20);
                    }
                }
                let busy = shared_memory();
                assert!(busy > 512 << 10, "{round}: {busy}");
                let mut left = busy;
                for _ in 0..200 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    left = shared_memory();
                    if left <= 20 << 10 {
                        break;
                    }
                }
                assert!(left <= 20 << 10, "{round}: {left} of {busy} bytes are kept");
            }
        });
    }
}

/// Bytes of shared rings that this process has: of two ends in it, each page once.
fn shared_memory() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ring = false;
    let mut bytes = 0.0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Pss:") if is_ring => {
                bytes += words.next().unwrap().parse::<f64>().unwrap() * 1024.0;
            }
            Some(first) if !first.ends_with(':') => {
                is_ring = line.contains("memfd:tokio-fabric");
            }
            _ => {}
        }
    }
    bytes as usize
}
