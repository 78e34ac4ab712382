//! C peers and extended peers at one listener, at the same time, with every byte of the C peers'
//! connections kept and read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Backend, Endpoint, Event, EventQueue, MemoryRegion, RemoteRegion, eq::ConnRequest,
};

use crate::harness::libfabric;
use crate::ours::session::Session;
use crate::ours::{connections, memory, messages};
use crate::plain::{self, Author, Endpoints, StreamContents};
use crate::proxy::{Capture, Proxy};
use crate::stage::play;

/// Private data of the peers that have the extension.
const EXTENDED: &[u8] = b"extended";
const CLIENTS: usize = 3;
const REGION_LEN: usize = 4096;

/// What an offer of version 1 begins with, capabilities aside.
const OFFER: &[u8] = b"tofa\x01\0";
/// The first byte of a HELLO's operation, which no C peer knows.
const HELLO: u8 = 0x80;

/// Scenarios that end in order, whose frames are all there are: those of a `cargo test`, and the
/// others. C takes a while to start.
const BRIEF: [&str; 6] = ["reject", "many", "write", "write.swap", "read", "read.swap"];
const MORE: [&str; 16] = [
    "data",
    "data.swap",
    "data-max",
    "data-max.swap",
    "reject.swap",
    "shutdown",
    "shutdown.swap",
    "vectors",
    "vectors.swap",
    "inject",
    "inject.swap",
    "many.swap",
    "writedata",
    "writedata.swap",
    "delivery",
    "delivery.swap",
];

fn scenarios() -> Vec<&'static str> {
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => [&BRIEF[..], &MORE].concat(),
        _ => BRIEF.to_vec(),
    }
}

/// Our end of a scenario, as the listener or as the connector.
fn script(scenario: &str, session: Session) -> Pin<Box<dyn Future<Output = ()>>> {
    let name = scenario.trim_end_matches(".swap");
    let initiator = session.is_listener() == scenario.ends_with(".swap");
    match name {
        "data" => Box::pin(connections::data(session, initiator)),
        "data-max" => Box::pin(connections::data_max(session, initiator)),
        "reject" => Box::pin(connections::reject(session, initiator)),
        "shutdown" => Box::pin(connections::shutdown(session, initiator)),
        "vectors" => Box::pin(messages::vectors(session, initiator)),
        "inject" => Box::pin(messages::inject(session, initiator)),
        "many" => Box::pin(messages::many(session, initiator)),
        "write" => Box::pin(memory::write(session, initiator)),
        "writedata" => Box::pin(memory::writedata(session, initiator)),
        "read" => Box::pin(memory::read(session, initiator)),
        "delivery" => Box::pin(memory::delivery(session, initiator)),
        _ => unreachable!("{name} is no scenario"),
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// One listener, and extended clients at work with it.
struct House {
    peer: Peer,
    /// To the listener, for each sort of peers.
    c: Proxy,
    extended: Proxy,
    /// What the extended clients have done.
    rounds: watch::Sender<usize>,
    over: Arc<AtomicBool>,
    clients: JoinSet<()>,
    /// Of the server's ends of the extended clients' connections.
    events: EventQueue,
    /// Where the requests of others go: to the session of the scenario that is on.
    sessions: watch::Sender<Option<UnboundedSender<ConnRequest>>>,
    _server: JoinSet<()>,
}

impl House {
    async fn open(backend: Backend) -> House {
        let peer = Net::on(backend).peer().unwrap();
        let requests = peer.fabric.event_queue().open().unwrap();
        let any = ([127, 0, 0, 1], 0).into();
        let listener = peer.fabric.passive_endpoint(&requests);
        let listener = listener.listen_at(any).unwrap();
        let events = peer.fabric.event_queue().open().unwrap();
        let region = peer.domain.register(vec![0; REGION_LEN * CLIENTS]);
        let region = region.access(Access::REMOTE).await.unwrap();
        let (sessions, session) = watch::channel(None);
        let mut house = House {
            c: Proxy::to(listener.local_addr()).await,
            extended: Proxy::to(listener.local_addr()).await,
            rounds: watch::Sender::new(0),
            over: Arc::default(),
            clients: JoinSet::new(),
            events: events.clone(),
            sessions,
            _server: JoinSet::new(),
            peer: peer.clone(),
        };
        house._server.spawn(async move {
            let mut served = JoinSet::new();
            let _listener = listener;
            while let Some(Event::ConnRequest(request)) = requests.next().await {
                if request.data() == EXTENDED {
                    let endpoint = peer.domain.endpoint().event_queue(&events).open();
                    served.spawn(serve(endpoint.unwrap(), request, region.clone()));
                } else if let Some(session) = &*session.borrow() {
                    session.send(request).expect("a scenario is on");
                }
            }
        });
        for number in 0..CLIENTS {
            let (to, rounds) = (house.extended.address(), house.rounds.clone());
            let over = Arc::clone(&house.over);
            house.clients.spawn(async move {
                let us = Net::on(backend).peer().unwrap();
                let endpoint = us.domain.endpoint().open().unwrap();
                let remote = endpoint.connect(to).data(EXTENDED).await.unwrap();
                let remote = RemoteRegion::from_bytes(&remote).unwrap();
                assert!(endpoint.peer_incarnation().is_some(), "the extension is on");
                while !over.load(Ordering::Acquire) {
                    work(&endpoint, remote, number).await;
                    rounds.send_modify(|rounds| *rounds += 1);
                    // The C peer spins, and there may be two cores only.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                endpoint.shutdown().await.unwrap();
            });
        }
        house.work_goes_on().await;
        house
    }

    /// A scenario's listening end.
    fn session(&self) -> Session {
        let (sender, requests) = unbounded_channel();
        self.sessions.send_replace(Some(sender));
        Session::share(self.peer.clone(), requests)
    }

    /// The extended clients have all got on.
    async fn work_goes_on(&self) {
        let enough = *self.rounds.borrow() + 2 * CLIENTS;
        let mut rounds = self.rounds.subscribe();
        let got_on = rounds.wait_for(|rounds| *rounds >= enough).await;
        got_on.expect("the house has the other end");
    }

    /// Ends the clients' work, in which nothing was lost. Gives what passed on each sort's
    /// connections.
    async fn close(mut self) -> (Vec<Capture>, Vec<Capture>) {
        self.work_goes_on().await;
        self.over.store(true, Ordering::Release);
        while let Some(client) = self.clients.join_next().await {
            client.expect("an extended client loses nothing");
        }
        for _ in 0..CLIENTS {
            let event = self.events.next().await;
            assert!(matches!(event, Some(Event::Connected { .. })), "{event:?}");
        }
        (self.c.captures(), self.extended.captures())
    }
}

/// Sends back what comes, until the client goes.
async fn serve(endpoint: Endpoint, request: ConnRequest, region: MemoryRegion<Vec<u8>>) {
    let accepting = endpoint.accept(request).data(region.remote().to_bytes());
    accepting.await.expect("the client waits");
    while let Ok((received, mut buffer)) = endpoint.recv(vec![0; 1000]).await {
        buffer.truncate(received.len);
        if endpoint.send(buffer).await.is_err() {
            break;
        }
    }
}

/// A message there and back, a write, and a read of what was written.
async fn work(endpoint: &Endpoint, remote: RemoteRegion, number: usize) {
    let echo = endpoint.recv(vec![0; 1000]).post().unwrap();
    endpoint.send(vec![number as u8; 500]).await.unwrap();
    let at = (number * REGION_LEN) as u64;
    let place = remote.slice(at..at + REGION_LEN as u64).unwrap();
    let bytes = vec![number as u8; REGION_LEN];
    let write = endpoint.write(bytes.clone(), place).delivery_complete();
    write.await.unwrap();
    let (_, back) = endpoint.read(vec![0; REGION_LEN], place).await.unwrap();
    assert!(
        back == bytes,
        "client {number} reads what it has not written"
    );
    let (received, back) = echo.await.unwrap();
    assert_eq!(back[..received.len], bytes[..500]);
}

/// Both directions of a connection with a C peer. `we_dialed`: our request may carry an offer, in
/// the one word that C does not read.
fn read_capture(
    what: &str,
    capture: &Capture,
    we_dialed: bool,
) -> (StreamContents, StreamContents) {
    let (dialer, listener) = match we_dialed {
        true => (Author::Ours, Author::C),
        false => (Author::C, Author::Ours),
    };
    let read = |stream: &[u8], author| {
        plain::read(stream, Endpoints::Connected, author)
            .unwrap_or_else(|wrong| panic!("{what}, {author:?}: {wrong}"))
    };
    let (asked, answered) = (
        read(&capture.dialer, dialer),
        read(&capture.listener, listener),
    );
    assert_eq!(
        answered.conn_id, [0; 8],
        "{what}: the answer to or of a C peer"
    );
    if we_dialed {
        assert!(asked.conn_id.starts_with(OFFER), "{what}: an offer");
    } else {
        assert_eq!(asked.conn_id, [0; 8], "{what}: a C peer's request");
    }
    (asked, answered)
}

/// C peers dial the house, in all scenarios, from either end.
pub fn c_dials(backend: Backend) {
    let Some(peer) = libfabric().or_left_out("a C peer next to extended ones") else {
        return;
    };
    let runtime = runtime();
    let house = runtime.block_on(House::open(backend));
    for scenario in scenarios() {
        let session = house.session();
        let c = peer.connect(scenario, house.c.address());
        play(&runtime, c, async || {
            tokio::join!(script(scenario, session), house.work_goes_on());
        });
    }
    let (plain, extended) = runtime.block_on(house.close());
    // "reject" takes two connections.
    let (all, is_reject) = (scenarios(), |name: &&&str| name.starts_with("reject"));
    assert_eq!(
        plain.len(),
        all.len() + all.iter().filter(is_reject).count()
    );
    let mut frames = 0;
    for (number, capture) in plain.iter().enumerate() {
        let (c, ours) = read_capture(&format!("connection {number}"), capture, false);
        frames += c.frame_count() + ours.frame_count();
    }
    assert!(frames > 2000, "{frames} frames are not all that passed");
    println!(
        "{} connections, {frames} data frames: {backend}",
        plain.len()
    );
    for capture in extended {
        assert_eq!(
            capture.dialer[8..14],
            *OFFER,
            "the clients offer the extension"
        );
        let response_len = 32 + RemoteRegion::ENCODED_LEN;
        assert_eq!(capture.listener[8..14], *OFFER);
        assert_eq!(capture.listener[response_len + 1], HELLO);
    }
}

/// C listens, in all scenarios, from either end; we dial.
pub fn c_listens() {
    let Some(peer) = libfabric().or_left_out("a C peer that is offered the extension") else {
        return;
    };
    let runtime = runtime();
    for scenario in scenarios() {
        let c = peer.listen(scenario);
        let proxy = runtime.block_on(Proxy::to(c.address()));
        play(&runtime, c, async || {
            script(scenario, Session::connect(proxy.address())).await;
        });
        for capture in proxy.captures() {
            read_capture(scenario, &capture, true);
        }
    }
}

/// What passes between extended peers is not libfabric's protocol, and is found not to be: the
/// captures above would show it.
pub fn the_reading_finds_the_extension() {
    runtime().block_on(async {
        for extended in [false, true] {
            let net = Net::on(Backend::Epoll);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let requests = b.fabric.event_queue().open().unwrap();
            let listener = b.fabric.passive_endpoint(&requests);
            let listener = listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap();
            let proxy = Proxy::to(listener.local_addr()).await;
            let ours = a.domain.endpoint().extension(extended).open().unwrap();
            let accepting = async {
                let Some(Event::ConnRequest(request)) = requests.next().await else {
                    panic!("no request")
                };
                request.accept(&b.domain).await
            };
            let connecting = ours.connect(proxy.address()).into_future();
            let (connected, accepted) = tokio::join!(connecting, accepting);
            let (_, theirs) = (connected.unwrap(), accepted.unwrap());
            let sent = ours.send("hello").delivery_complete().post().unwrap();
            theirs.recv(vec![0; 8]).await.unwrap();
            sent.await.unwrap();
            ours.shutdown().await.unwrap();
            let capture = &proxy.captures()[0];
            for stream in [&capture.dialer, &capture.listener] {
                let read = plain::read(stream, Endpoints::Connected, Author::Ours);
                assert_eq!(read.is_err(), extended, "{read:?}");
            }
        }
    });
}
