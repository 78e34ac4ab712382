//! A connection that has been at work for a while asks nothing of the allocator.

use bytes::Bytes;
use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Access, Backend, Endpoint, MemoryRegion};

use crate::counting::allocations;
use crate::{ALONE, common, runtime};

const WARM_UP: usize = 200;
const ROUNDS: usize = 1000;
/// Within `ROUNDS`, each of them three messages, a write and a read: a list may still grow.
const ALLOCATIONS_MAX: usize = ROUNDS / 10;

struct Setup {
    a: Endpoint,
    b: Endpoint,
    region: MemoryRegion<Vec<u8>>,
    _peers: [Peer; 2],
}

impl Setup {
    async fn new(backend: Backend) -> Setup {
        let net = Net::on(backend);
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        // Without heartbeats: a connection that one finds idle gives its lists back, on a slow
        // machine between any two rounds.
        let off = Liveness::OFF;
        let a = us.domain.endpoint().liveness(off).open().unwrap();
        let b = them.domain.endpoint().liveness(off).open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let region = them.domain.register(vec![0; 4096]);
        let region = region.access(Access::all()).await.unwrap();
        Setup {
            a,
            b,
            region,
            _peers: [us, them],
        }
    }

    /// A message there and one back, injected or sent, one more that no future awaits, then a write
    /// and a read.
    async fn round(&self, buffers: &mut [Vec<u8>; 3]) {
        let [here, there, large] = buffers.each_mut().map(std::mem::take);
        let received = self.b.recv(there).post().unwrap();
        self.a.inject(&here).unwrap();
        let (_, there) = received.await.unwrap();
        let received = self.a.recv(here).post().unwrap();
        let (_, there) = self.b.send(there).await.unwrap();
        let (_, here) = received.await.unwrap();
        let received = self.a.recv(here).post().unwrap();
        let detached = self.b.send(Bytes::from_static(&[4; 64])).detach();
        detached.unwrap();
        let (_, here) = received.await.unwrap();
        let (_, large) = self.a.write(large, self.region.remote()).await.unwrap();
        let (_, large) = self.a.read(large, self.region.remote()).await.unwrap();
        *buffers = [here, there, large];
    }
}

/// docs/performance.md: "Messages and RMA do not allocate, at either end, once a connection has
/// warmed up". Of the backends with sockets: what passes between two ends in a process is allocated
/// in pieces.
#[test]
fn a_message_or_an_rma_asks_nothing_of_the_allocator() {
    let _alone = ALONE.lock();
    let backends = common::backends().into_iter();
    for backend in backends.filter(|it| *it != Backend::Loopback) {
        runtime(0).block_on(async {
            let setup = Setup::new(backend).await;
            let mut buffers = [vec![1; 64], vec![2; 64], vec![3; 4096]];
            for _ in 0..WARM_UP {
                setup.round(&mut buffers).await;
            }
            let before = allocations();
            for _ in 0..ROUNDS {
                setup.round(&mut buffers).await;
            }
            let count = allocations() - before;
            assert!(count <= ALLOCATIONS_MAX, "{backend}: {count} in {ROUNDS}");
        });
    }
}
