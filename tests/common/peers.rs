//! Peers with hints, listeners, and short words for what tests of promises look at.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{
    Access, CompletionQueue, Endpoint, Error, Event, EventQueue, Hints, MemoryRegion,
    PassiveEndpoint, RdmEndpoint, RemoteRegion, av::FabricAddr, buf::RegionBufs,
    domain::DomainBind, eq::ConnRequest,
};

use super::matrix::ReliableEndpoint;

/// Any port of this machine.
pub fn any() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// A peer whose domain fits these hints, bound to its event queue with these flags.
pub fn peer_with(net: &Net, hints: Hints, flags: DomainBind) -> Peer {
    let fabric = net.fabric_with(hints).expect("the hints can be met");
    let events = fabric.event_queue().open().expect("an event queue");
    let domain = fabric.domain().open().expect("a domain");
    domain
        .bind(&events, flags)
        .expect("a fresh domain is not bound");
    Peer {
        fabric,
        domain,
        events,
    }
}

/// A peer whose domain has so many drivers.
pub fn sharded(net: &Net, drivers: usize) -> Peer {
    let fabric = net.fabric().expect("no hints");
    let events = fabric.event_queue().open().expect("an event queue");
    let domain = fabric.domain().progress_shards(drivers).open();
    let domain = domain.expect("a domain");
    domain
        .bind(&events, DomainBind::empty())
        .expect("a fresh domain is not bound");
    Peer {
        fabric,
        domain,
        events,
    }
}

/// An initiator without hints, connected to a target with these.
pub async fn toward(net: &Net, hints: Hints) -> (Peer, Peer, Endpoint, Endpoint) {
    let initiator = net.peer().expect("a peer");
    let target = peer_with(net, hints, DomainBind::empty());
    let (a, b) = connect(&initiator, &target).await.expect("a connection");
    (initiator, target, a, b)
}

/// Two peers, the second of which listens.
pub fn listening(net: &Net) -> (Peer, Peer, PassiveEndpoint, EventQueue) {
    let [a, b] = [net.peer(), net.peer()].map(|peer| peer.expect("a peer"));
    let (listener, requests) = listener(&b);
    (a, b, listener, requests)
}

/// A listener with an event queue of its own.
pub fn listener(peer: &Peer) -> (PassiveEndpoint, EventQueue) {
    let requests = peer.fabric.event_queue().open().expect("an event queue");
    let listener = peer
        .fabric
        .passive_endpoint(&requests)
        .listen_at(any())
        .expect("a listener");
    (listener, requests)
}

/// The next event, which has to be a connection request.
pub async fn request(events: &EventQueue) -> ConnRequest {
    match events.next().await {
        Some(Event::ConnRequest(request)) => request,
        other => panic!("{other:?} instead of a connection request"),
    }
}

/// A region of the target that peers may do anything to.
pub async fn open_region<B: RegionBufs>(peer: &Peer, bytes: B) -> MemoryRegion<B> {
    let registered = peer
        .domain
        .register(bytes)
        .access(Access::REMOTE | Access::LOCAL)
        .await;
    registered
        .map_err(|failed| failed.into_error())
        .expect("a region")
}

/// Fills what is remote with one byte; ends when it is there.
pub async fn write(
    x: impl Into<ReliableEndpoint>,
    remote: RemoteRegion,
    byte: u8,
) -> Result<(), Error> {
    let written = x.into().write(vec![byte; remote.len as usize], remote);
    written
        .delivery_complete()
        .await
        .map(|_| ())
        .map_err(Error::from)
}

/// The bytes of what is remote.
pub async fn read(x: impl Into<ReliableEndpoint>, remote: RemoteRegion) -> Result<Vec<u8>, Error> {
    let read = x.into().read(vec![0; remote.len as usize], remote).await;
    read.map(|(_, bytes)| bytes).map_err(Error::from)
}

/// All bytes of a region.
pub fn bytes_of<B: 'static>(region: &MemoryRegion<B>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("within the region");
    bytes
}

/// An address of this machine where no process listens, nor will while this process lives.
pub fn no_listener() -> SocketAddr {
    static HELD: LazyLock<(tokio::net::TcpSocket, SocketAddr)> = LazyLock::new(reserved);
    HELD.1
}

/// A connectionless endpoint of this peer, bound to a completion queue.
pub fn rdm_with_queue(peer: &Peer) -> (RdmEndpoint, CompletionQueue) {
    let queue = peer.domain.completion_queue().open().expect("a queue");
    let builder = peer.domain.rdm_endpoint().completion_queue(&queue);
    (builder.listen_at(any()).open().expect("an endpoint"), queue)
}

/// So many endpoints in domains of their own, each with all in its address vector, itself too.
pub fn crowd(net: &Net, count: usize) -> Vec<(Peer, RdmEndpoint, Vec<FabricAddr>)> {
    let opened: Vec<_> = (0..count)
        .map(|_| {
            let peer = net.peer().unwrap();
            let endpoint = peer.rdm_endpoint().unwrap();
            (peer, endpoint)
        })
        .collect();
    let addresses: Vec<_> = opened.iter().map(|it| it.1.local_addr()).collect();
    let with_addresses = opened.into_iter().map(|(peer, endpoint)| {
        let known = addresses.iter().map(|at| endpoint.insert(*at).unwrap());
        let known = known.collect();
        (peer, endpoint, known)
    });
    with_addresses.collect()
}

/// An address of this machine where no process listens, and only one that is given the address
/// will: other tests get ports of their own. For as long as the socket is held.
pub fn reserved() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .set_reuseaddr(true)
        .expect("an option of every socket");
    socket.bind(any()).expect("a port");
    let address = socket.local_addr().expect("a bound address");
    (socket, address)
}
