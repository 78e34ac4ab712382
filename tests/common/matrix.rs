//! What regions are tested over: both kinds of reliable endpoint, each backend, each driver.

use std::pin::Pin;

use tokio_fabric::av::FabricAddr;
use tokio_fabric::buf::{IoBufs, IoBufsMut};
use tokio_fabric::domain::DomainBind;
use tokio_fabric::ep::OnRefusal;
use tokio_fabric::eq::EndpointId;
use tokio_fabric::op::{
    Op, Received, Recv, RecvFrom, RemoteRegions, RmaRead, RmaWrite, SendMessage,
};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Backend, Domain, Driver, Endpoint, EndpointType, Failed, Hints, MemoryRegion, RdmEndpoint,
    RemoteRegion, Result,
};

use super::{backends, peers, run};

/// One combination: endpoints of this type, in domains on this backend with this driver.
#[derive(Clone, Debug)]
pub struct Combination {
    net: Net,
    pub endpoint: EndpointType,
}

use Driver::{Manual, Task, Thread};

/// Runs the test over all combinations of endpoint type, backend and driver.
///
/// With manual progress each peer of a combination has a task that waits for what never comes: it
/// drives the peer's domain, as an application's own tasks do, while the test waits for the other.
pub fn over_all_combinations<F, T>(test: F)
where
    F: Fn(Combination) -> T,
    T: Future<Output = ()>,
{
    over(
        EndpointType::Msg,
        &[(Task, 0), (Task, 2), (Thread, 0), (Manual, 0)],
        &test,
    );
    over(
        EndpointType::Rdm,
        &[(Task, 0), (Thread, 0), (Manual, 2)],
        &test,
    );
}

/// As [`over_all_combinations`], for tests that need one kind of endpoint or none.
pub fn over_all_drivers<F, T>(test: F)
where
    F: Fn(Combination) -> T,
    T: Future<Output = ()>,
{
    over(
        EndpointType::Msg,
        &[(Task, 2), (Thread, 0), (Manual, 0)],
        &test,
    );
}

/// On each backend, with each of these drivers on a runtime of so many threads.
fn over<F, T>(endpoint: EndpointType, drivers: &[(Driver, usize)], test: &F)
where
    F: Fn(Combination) -> T,
    T: Future<Output = ()>,
{
    for backend in backends() {
        for (driver, threads) in drivers {
            let combination = Combination {
                net: Net::on(backend).driver(*driver),
                endpoint,
            };
            run(*threads, combination, test);
        }
    }
}

/// Drives the domain for as long as the runtime lives, if that is the application's to do.
pub fn drive(domain: &Domain) {
    if domain.driver() == Driver::Manual {
        let queue = domain.completion_queue().open().expect("a queue");
        tokio::spawn(async move { queue.next().await });
    }
}

/// What peers are opened in: a network, or a combination that has one.
pub trait Opens {
    /// As [`peers::peer_with`].
    fn peer_with(&self, hints: Hints, flags: DomainBind) -> Peer;
}

impl Opens for Net {
    fn peer_with(&self, hints: Hints, flags: DomainBind) -> Peer {
        peers::peer_with(self, hints, flags)
    }
}

impl Opens for Combination {
    fn peer_with(&self, hints: Hints, flags: DomainBind) -> Peer {
        let peer = self.undriven(hints, flags);
        drive(&peer.domain);
        peer
    }
}

impl Combination {
    pub fn peer(&self) -> Result<Peer> {
        let peer = self.net.peer()?;
        drive(&peer.domain);
        Ok(peer)
    }

    /// As [`peer_with`](Opens::peer_with), which with manual progress only the test's own waits
    /// drive: for what has to find the domain without an open object.
    pub fn undriven(&self, hints: Hints, flags: DomainBind) -> Peer {
        peers::peer_with(&self.net, hints, flags)
    }

    pub fn net(&self) -> &Net {
        &self.net
    }

    pub fn backend(&self) -> Backend {
        self.net.backend()
    }

    /// As [`peers::toward`].
    pub async fn toward(&self, hints: Hints) -> (Peer, Peer, ReliableEndpoint, ReliableEndpoint) {
        let initiator = self.peer().expect("a peer");
        let target = self.peer_with(hints, DomainBind::empty());
        let (x, y) = self.connect(&initiator, &target).await.expect("endpoints");
        (initiator, target, x, y)
    }

    /// Two endpoints that reach each other.
    pub async fn connect(
        &self,
        a: &Peer,
        b: &Peer,
    ) -> Result<(ReliableEndpoint, ReliableEndpoint)> {
        self.connect_with(a, b, OnRefusal::default()).await
    }

    /// As [`connect`](Self::connect), of endpoints that live with refusals.
    pub async fn connect_patient(
        &self,
        a: &Peer,
        b: &Peer,
        limit: u32,
    ) -> Result<(ReliableEndpoint, ReliableEndpoint)> {
        self.connect_with(a, b, OnRefusal::Continue { limit }).await
    }

    async fn connect_with(
        &self,
        a: &Peer,
        b: &Peer,
        on_refusal: OnRefusal,
    ) -> Result<(ReliableEndpoint, ReliableEndpoint)> {
        if self.endpoint == EndpointType::Msg {
            let open = |peer: &Peer| peer.domain.endpoint().on_refusal(on_refusal).open();
            let (x, y) = (open(a)?, open(b)?);
            connect_endpoints(&x, &y, &b.fabric).await?;
            return Ok((ReliableEndpoint::Msg(x), ReliableEndpoint::Msg(y)));
        }
        let open = |peer: &Peer| {
            let builder = peer.domain.rdm_endpoint().on_refusal(on_refusal);
            builder.listen_at(peers::any()).open()
        };
        let (x, y) = (open(a)?, open(b)?);
        let (to_y, to_x) = (x.insert(y.local_addr())?, y.insert(x.local_addr())?);
        Ok((
            ReliableEndpoint::Rdm(x, to_y),
            ReliableEndpoint::Rdm(y, to_x),
        ))
    }
}

/// An endpoint and the peer it reaches: connected, or with the peer's name in its vector.
#[derive(Clone, Debug)]
pub enum ReliableEndpoint {
    Msg(Endpoint),
    Rdm(RdmEndpoint, FabricAddr),
}

use ReliableEndpoint::{Msg, Rdm};

impl ReliableEndpoint {
    pub fn id(&self) -> EndpointId {
        match self {
            Msg(endpoint) => endpoint.id(),
            Rdm(endpoint, _) => endpoint.id(),
        }
    }

    pub fn domain(&self) -> &Domain {
        match self {
            Msg(endpoint) => endpoint.domain(),
            Rdm(endpoint, _) => endpoint.domain(),
        }
    }

    /// The connection is there; a connectionless endpoint has one whenever it needs it.
    pub fn is_connected(&self) -> bool {
        match self {
            Msg(endpoint) => endpoint.is_connected(),
            Rdm(..) => true,
        }
    }

    /// The endpoint of a connection, for what only those promise.
    pub fn connected(&self) -> Option<&Endpoint> {
        match self {
            Msg(endpoint) => Some(endpoint),
            Rdm(..) => None,
        }
    }

    pub fn send<B: IoBufs>(&self, buffers: B) -> SendMessage<B> {
        match self {
            Msg(endpoint) => endpoint.send(buffers),
            Rdm(endpoint, peer) => endpoint.send(buffers, *peer),
        }
    }

    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> Receive<B> {
        match self {
            Msg(endpoint) => Receive::Connected(endpoint.recv(buffers)),
            Rdm(endpoint, _) => Receive::Connectionless(endpoint.recv(buffers)),
        }
    }

    pub fn write<B: IoBufs>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaWrite<B> {
        match self {
            Msg(endpoint) => endpoint.write(buffers, remote),
            Rdm(endpoint, peer) => endpoint.write(buffers, *peer, remote),
        }
    }

    pub fn read<B: IoBufsMut>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaRead<B> {
        match self {
            Msg(endpoint) => endpoint.read(buffers, remote),
            Rdm(endpoint, peer) => endpoint.read(buffers, *peer, remote),
        }
    }

    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Msg(endpoint) => endpoint.inject(bytes),
            Rdm(endpoint, peer) => endpoint.inject(bytes, *peer),
        }
    }

    pub fn inject_write(&self, bytes: &[u8], remote: RemoteRegion) -> Result<()> {
        match self {
            Msg(endpoint) => endpoint.inject_write(bytes, remote),
            Rdm(endpoint, peer) => endpoint.inject_write(bytes, *peer, remote),
        }
    }

    pub fn bind_to<B: 'static>(&self, region: &MemoryRegion<B>) -> Result<()> {
        match self {
            Msg(endpoint) => region.bind_endpoint(endpoint),
            Rdm(endpoint, _) => region.bind_endpoint(endpoint),
        }
    }

    pub async fn shutdown(&self) -> Result<()> {
        match self {
            Msg(endpoint) => endpoint.shutdown().await,
            Rdm(endpoint, _) => endpoint.shutdown().await,
        }
    }
}

impl From<&ReliableEndpoint> for ReliableEndpoint {
    fn from(endpoint: &ReliableEndpoint) -> Self {
        endpoint.clone()
    }
}

impl From<&Endpoint> for ReliableEndpoint {
    fn from(endpoint: &Endpoint) -> Self {
        Msg(endpoint.clone())
    }
}

/// A receive that has not been posted yet.
pub enum Receive<B: IoBufsMut> {
    Connected(Recv<B>),
    Connectionless(RecvFrom<B>),
}

impl<B: IoBufsMut> Receive<B> {
    pub fn post(self) -> Result<Op<B, Received>, Failed<B>> {
        match self {
            Receive::Connected(receive) => receive.post(),
            Receive::Connectionless(receive) => receive.post(),
        }
    }
}

impl<B: IoBufsMut> IntoFuture for Receive<B> {
    type Output = Result<(Received, B), Failed<B>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        let posted = self.post();
        Box::pin(async { posted?.await })
    }
}
