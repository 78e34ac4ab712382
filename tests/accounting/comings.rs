//! Objects that come and go while those they were opened from stay: nothing of them is left.

use std::net::SocketAddr;
use std::time::Duration;

use tokio_fabric::buf::SharedBuffer;
use tokio_fabric::domain::RegistrationCache;
use tokio_fabric::mr::CacheWatch;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, AddressVector, Backend, CompletionQueue, Domain, Endpoint, EndpointType, EventQueue,
    Hints, RdmEndpoint, dgram::DgramEndpoint,
};

use crate::common::ticks::Ticks;
use crate::counting::bytes_in_use;
use crate::{ALONE, common, runtime};

/// Before they are counted: lists and maps have by then the size that one life after the other
/// needs.
const WARM_UP: usize = 20;
const LIVES: usize = 32;
/// Of a round, in bytes: less than 8 of each life, and so less than anything that a life leaves.
const LEFT_MAX: isize = 8 * LIVES as isize;

fn left_max(kind: &str) -> isize {
    match kind {
        // An endpoint remembers so many addresses that have connected by themselves that this test
        // does not come to their end.
        "peer that comes and goes" => 1024 * LIVES as isize,
        _ => LEFT_MAX,
    }
}
/// What each life leaves something of grows in every round; a list grows in one, and what is kept
/// to be used again has its limit.
const ROUNDS: usize = 6;
/// Of the test's own process, for what ends in the background.
const PATIENCE: Duration = Duration::from_secs(2);

const KINDS: &[&str] = &[
    "fabric",
    "domain",
    "event queue",
    "listener",
    "listener that waits for room",
    "connected endpoint",
    "connection that is shut down",
    "connection that is dropped",
    "connection that is refused",
    "connection that waits for room",
    "connection whose peer's write waits for room",
    "connectionless endpoint that waits for room",
    "datagram endpoint that waits for room",
    "shared receive context",
    "completion queue",
    "counter",
    "region",
    "revoked region",
    "cached region",
    "cache",
    "watched cache",
    "address vector",
    "address",
    "connectionless endpoint that is shut down",
    "connectionless endpoint that is dropped",
    "connectionless endpoint of a shared vector",
    "scalable endpoint",
    "peer that comes and goes",
    "peer that is dialled and goes",
    "peer that is not there",
    "datagram endpoint",
    "receive that times out",
    "receive that is withdrawn",
    "wait that is dropped",
];

/// What stays.
struct Stage {
    backend: Backend,
    peer: Peer,
    other: Peer,
    rdm: Domain,
    hub: RdmEndpoint,
    vector: AddressVector,
    datagrams: Domain,
    cache: RegistrationCache,
    memory: SharedBuffer,
    /// It is full, and stays so.
    full: EventQueue,
    /// So are these, of the connected, the connectionless and the datagram endpoint's domain, which
    /// those have filled.
    full_queues: [CompletionQueue; 3],
    _have_filled: (Endpoint, RdmEndpoint, DgramEndpoint),
}

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Stage {
    async fn open(backend: Backend) -> Stage {
        let net = Net::on(backend);
        let domain_of = |kind| {
            let fabric = net.fabric_with(Hints::new().endpoint(kind)).unwrap();
            fabric.domain().open().unwrap()
        };
        let rdm = domain_of(EndpointType::Rdm);
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let full = peer.fabric.event_queue().size(1).open().unwrap();
        let datagrams = domain_of(EndpointType::Dgram);
        let full_queues = [&peer.domain, &rdm, &datagrams]
            .map(|domain| domain.completion_queue().size(1).open().unwrap());
        let [of_connected, of_connectionless, of_datagrams] = &full_queues;
        let connected = peer.domain.endpoint().receive_queue(of_connected);
        let connected = connected.open().unwrap();
        let connectionless = rdm.rdm_endpoint().receive_queue(of_connectionless);
        let connectionless = connectionless.listen_at(local()).open().unwrap();
        let peers = datagrams.address_vector().open().unwrap();
        let datagram = datagrams.dgram_endpoint().receive_queue(of_datagrams);
        let datagram = datagram.address_vector(&peers).bind(local());
        let datagram = datagram.open().unwrap();
        connected.recv(vec![0; 8]).queue(0_u64).try_post().unwrap();
        (connectionless.recv(vec![0; 8]).queue(0_u64).try_post()).unwrap();
        datagram.recv(vec![0; 8]).queue(0_u64).try_post().unwrap();
        let stage = Stage {
            backend,
            hub: rdm
                .rdm_endpoint()
                .listen_at(local())
                .connect_deadline(Duration::from_millis(300))
                .open()
                .unwrap(),
            vector: rdm.address_vector().open().unwrap(),
            datagrams,
            cache: peer.domain.cache().max_count(4).open().unwrap(),
            memory: SharedBuffer::new(vec![0; 1 << 20]),
            full,
            full_queues,
            _have_filled: (connected, connectionless, datagram),
            rdm,
            peer,
            other,
        };
        stage.request_to(&stage.full).await;
        until(|| stage.full.stats().len == 1).await;
        stage
    }

    /// A listener that reports to this queue, and a request for a connection to it.
    async fn request_to(&self, events: &EventQueue) {
        let listener = self.peer.fabric.passive_endpoint(events);
        let listener = listener.listen_at(local()).unwrap();
        let client = self.other.domain.endpoint().open().unwrap();
        let connecting = client.connect(listener.local_addr()).into_future();
        let connecting = tokio::spawn(connecting);
        until(|| listener.stats().requests == 1).await;
        connecting.abort();
        let _ = connecting.await;
    }

    fn rdm_endpoint(&self) -> RdmEndpoint {
        let builder = self.rdm.rdm_endpoint();
        builder.listen_at(local()).open().unwrap()
    }

    /// One life of an object of this kind, to its end.
    async fn live_and_end(&self, kind: &str, number: usize) {
        self.live(kind, number).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        for events in [&self.peer.events, &self.other.events] {
            while events.try_next().is_some() {}
        }
    }

    /// The bytes that so many lives have left.
    async fn round(&self, kind: &str, round: usize, ticks: &Ticks) -> isize {
        let before = settled().await;
        for number in 0..LIVES {
            self.live_and_end(kind, WARM_UP + round * LIVES + number)
                .await;
        }
        let begun = ticks.elapsed();
        while bytes_in_use() - before > left_max(kind) && ticks.elapsed() - begun < PATIENCE {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bytes_in_use() - before
    }

    async fn live(&self, kind: &str, number: usize) {
        let domain = &self.peer.domain;
        match kind {
            "fabric" => drop(Net::on(self.backend).fabric().unwrap()),
            "domain" => {
                let domain = self.peer.fabric.domain().open().unwrap();
                drop(domain.register(vec![0; 64]).now().unwrap());
            }
            "event queue" => drop(self.peer.fabric.event_queue().open().unwrap()),
            "listener" => {
                let builder = self.peer.fabric.passive_endpoint(&self.peer.events);
                drop(builder.listen_at(local()).unwrap());
            }
            "listener that waits for room" => self.request_to(&self.full).await,
            "connected endpoint" => drop(domain.endpoint().open().unwrap()),
            "connection that is shut down" | "connection that is dropped" => {
                let a = domain.endpoint().open().unwrap();
                let b = self.other.domain.endpoint().open().unwrap();
                connect_endpoints(&a, &b, &self.other.fabric).await.unwrap();
                if kind.ends_with("shut down") {
                    a.send("hello").await.unwrap();
                    let (a, b) = tokio::join!(a.shutdown(), b.shutdown());
                    a.and(b).unwrap();
                } else {
                    drop(a.send("hello").post().unwrap());
                }
            }
            "connection that is refused" => {
                let endpoint = domain.endpoint().open().unwrap();
                // A port that was the test's own a moment ago and has no listener.
                let gone = self.rdm_endpoint();
                let to = gone.local_addr();
                gone.shutdown().await.unwrap();
                endpoint.connect(to).await.unwrap_err();
            }
            "connection that waits for room" => {
                let builder = domain.endpoint().receive_queue(&self.full_queues[0]);
                let endpoint = builder.open().unwrap();
                let waits = endpoint.recv(vec![0; 8]).queue(1_u64).post().unwrap();
                match number % 3 {
                    0 => {
                        endpoint.shutdown().await.unwrap();
                        waits.await.unwrap_err();
                    }
                    1 => waits.detach(),
                    _ => drop(waits),
                }
            }
            "connection whose peer's write waits for room" => {
                let queue = &self.full_queues[0];
                // Plain peers do not agree on their end, which the write would delay.
                let ours = domain.endpoint().extension(false).receive_queue(queue);
                let ours = ours.open().unwrap();
                let theirs = self.other.domain.endpoint().extension(false);
                let theirs = theirs.open().unwrap();
                connect_endpoints(&theirs, &ours, &self.peer.fabric)
                    .await
                    .unwrap();
                let region = domain.register(vec![0; 8]).access(Access::all());
                let region = region.await.unwrap();
                let wanted = queue.stats().full;
                let write = theirs.write(vec![1; 8], region.remote()).imm(1);
                write.detach().unwrap();
                until(|| queue.stats().full > wanted).await;
                drop(theirs);
                ours.shutdown().await.unwrap();
            }
            "connectionless endpoint that waits for room" => {
                let builder = self.rdm.rdm_endpoint().receive_queue(&self.full_queues[1]);
                let endpoint = builder.listen_at(local()).open().unwrap();
                let waits = endpoint.recv(vec![0; 8]).queue(1_u64).post().unwrap();
                // Its task has to have begun to wait.
                tokio::task::yield_now().await;
                let also = endpoint.recv(vec![0; 8]).queue(2_u64).post().unwrap();
                if number.is_multiple_of(2) {
                    endpoint.shutdown().await.unwrap();
                    waits.await.unwrap_err();
                    also.await.unwrap_err();
                }
            }
            "datagram endpoint that waits for room" => {
                let vector = self.datagrams.address_vector().open().unwrap();
                let builder = self.datagrams.dgram_endpoint().address_vector(&vector);
                let builder = builder.receive_queue(&self.full_queues[2]);
                let endpoint = builder.bind(local()).open().unwrap();
                let waits = endpoint.recv(vec![0; 8]).queue(1_u64).post().unwrap();
                if number.is_multiple_of(2) {
                    endpoint.shutdown().await.unwrap();
                    waits.await.unwrap_err();
                }
            }
            "shared receive context" => drop(domain.receive_context().open().unwrap()),
            "completion queue" => drop(domain.completion_queue().open().unwrap()),
            "counter" => drop(domain.counter().unwrap()),
            "region" => {
                let region = domain.register(vec![0u8; 64]);
                let region = region.access(Access::REMOTE_READ).await.unwrap();
                region.deregister().await.unwrap();
            }
            "revoked region" => {
                let region = domain.register(vec![0u8; 64]);
                let region = region.access(Access::REMOTE_READ).await.unwrap();
                region.revoke_now();
            }
            "cached region" => {
                let start = (number * 4096) % (1 << 20);
                let region = self.cache.register(&self.memory, start..start + 4096);
                drop(region.access(Access::REMOTE_READ).await.unwrap());
            }
            "cache" | "watched cache" => {
                let watch = match kind {
                    "cache" => CacheWatch::Caller,
                    _ => CacheWatch::System,
                };
                let cache = domain.cache().watch(watch).open().unwrap();
                drop(cache.register(&self.memory, ..4096).await.unwrap());
            }
            "address vector" => {
                let vector = self.rdm.address_vector().open().unwrap();
                vector.insert(([10, 0, 0, 1], 1).into()).await.unwrap();
            }
            "address" => {
                let address = ([10, 0, 0, 1], 1 + number as u16).into();
                let addr = self.vector.insert(address).await.unwrap();
                self.vector.remove(addr).unwrap();
            }
            "connectionless endpoint that is shut down" => {
                self.rdm_endpoint().shutdown().await.unwrap();
            }
            "connectionless endpoint that is dropped" => drop(self.rdm_endpoint()),
            "connectionless endpoint of a shared vector" => {
                let builder = self.rdm.rdm_endpoint().address_vector(&self.vector);
                let endpoint = builder.listen_at(local()).open().unwrap();
                endpoint.shutdown().await.unwrap();
            }
            "scalable endpoint" => {
                let builder = self.rdm.scalable_endpoint().contexts(2);
                let endpoint = builder.listen_at(local()).open().unwrap();
                endpoint.shutdown().await.unwrap();
            }
            "peer that comes and goes" => {
                let peer = self.rdm_endpoint();
                let hub = peer.insert(self.hub.local_addr()).unwrap();
                let sending = peer.send("hello", hub).delivery_complete();
                let (sent, received) = tokio::join!(sending, self.hub.recv(vec![0; 8]));
                sent.unwrap();
                received.unwrap();
                peer.shutdown().await.unwrap();
            }
            "peer that is dialled and goes" => {
                let peer = self.rdm_endpoint();
                let to = self.hub.insert(peer.local_addr()).unwrap();
                let sending = self.hub.send("hello", to).delivery_complete();
                let (sent, received) = tokio::join!(sending, peer.recv(vec![0; 8]));
                sent.unwrap();
                received.unwrap();
                self.hub.disconnect(to).unwrap();
                self.hub.address_vector().remove(to).unwrap();
                peer.shutdown().await.unwrap();
            }
            "peer that is not there" => {
                let gone = self.rdm_endpoint();
                let to = self.hub.insert(gone.local_addr()).unwrap();
                gone.shutdown().await.unwrap();
                drop(self.hub.send("hello", to).post().unwrap());
                self.hub.address_vector().remove(to).unwrap();
            }
            "datagram endpoint" => {
                let vector = self.datagrams.address_vector().open().unwrap();
                let builder = self.datagrams.dgram_endpoint().address_vector(&vector);
                let endpoint = builder.bind(local()).open().unwrap();
                let itself = vector.insert(endpoint.local_addr()).await.unwrap();
                endpoint.send("hello", itself).await.unwrap();
                endpoint.recv(vec![0; 8]).await.unwrap();
                endpoint.shutdown().await.unwrap();
            }
            "receive that times out" => {
                let receive = self.hub.recv_tagged(vec![0; 8], 7);
                let receive = receive.timeout(Duration::from_millis(1));
                receive.await.unwrap_err();
            }
            "receive that is withdrawn" => {
                drop(self.hub.recv_tagged(vec![0; 8], 7).post().unwrap());
            }
            "wait that is dropped" => {
                let waits = async {
                    let received = self.hub.receive_queue().next();
                    tokio::join!(self.peer.events.next(), received, self.peer.fabric.closed())
                };
                let _ = tokio::time::timeout(Duration::from_micros(1), waits).await;
            }
            _ => unreachable!("{kind}"),
        }
    }
}

/// A process that runs for months opens and closes everything again and again: whatever stays, what
/// has gone leaves nothing on the heap, by each way to go.
#[test]
fn what_comes_and_goes_leaves_nothing_on_the_heap() {
    let _alone = ALONE.lock();
    let mut leaks = Vec::new();
    for backend in common::backends() {
        runtime(0).block_on(async {
            let stage = Stage::open(backend).await;
            let ticks = Ticks::start();
            for kind in KINDS {
                for number in 0..WARM_UP {
                    stage.live_and_end(kind, number).await;
                }
                let mut left = Vec::new();
                for round in 0..ROUNDS {
                    left.push(stage.round(kind, round, &ticks).await);
                    if left.last() <= Some(&left_max(kind)) {
                        break;
                    }
                }
                println!("{backend}, {kind}: {left:?} bytes of {LIVES}");
                if left.last() > Some(&left_max(kind)) {
                    leaks.push(format!("{backend}, {kind}: {left:?} bytes of {LIVES}"));
                }
            }
        });
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
}

/// The bytes in use once what ends in the background has ended.
async fn settled() -> isize {
    let mut least = bytes_in_use();
    let mut unchanged = 0;
    while unchanged < 10 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = bytes_in_use();
        unchanged = match now < least {
            true => 0,
            false => unchanged + 1,
        };
        least = least.min(now);
    }
    least
}
