//! What a connection that does nothing keeps of the heap.

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
            let net = Net::on(backend);
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
