//! A server with twenty good clients at work, for a hostile one to meet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Backend, Endpoint, Event, EventQueue, MemoryRegion, PassiveEndpoint, RemoteRegion,
    ep::PassiveEndpointBuilder, eq::ConnRequest,
};

use crate::common::raw::EVIL;

pub const GOOD: usize = 20;
/// The regions' length.
pub const REGION_LEN: u64 = 64 << 10;

/// What the server does with endpoints of hostile peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// One receive is posted, and nothing else.
    OneReceive,
    /// Receives are always posted.
    Receives,
    /// No receive is ever posted.
    NoReceive,
}

pub struct Scene {
    pub address: SocketAddr,
    /// Open to peers in both ways, in one, and in the other.
    pub shared: MemoryRegion<Vec<u8>>,
    pub readable: MemoryRegion<Vec<u8>>,
    pub writable: MemoryRegion<Vec<u8>>,
    /// Endpoints of hostile peers report here.
    pub evil_events: EventQueue,
    pub requests: Arc<AtomicUsize>,
    good_events: EventQueue,
    good_endpoints: Arc<AtomicUsize>,
    rounds: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    clients: JoinSet<()>,
    tasks: JoinSet<()>,
    _listener: PassiveEndpoint,
    _server: Peer,
}

impl Scene {
    /// A server, and its good clients at work.
    pub async fn set(
        manners: Manners,
        listener: impl FnOnce(PassiveEndpointBuilder) -> PassiveEndpointBuilder,
    ) -> Scene {
        let server = Net::on(Backend::Epoll).peer().unwrap();
        let requests = server.fabric.event_queue().open().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let builder = server.fabric.passive_endpoint(&requests);
        let listener = listener(builder).listen_at(any).unwrap();
        let region = |access| {
            server
                .domain
                .register(vec![7; REGION_LEN as usize])
                .access(access)
                .now()
                .unwrap()
        };
        let mut scene = Scene {
            address: listener.local_addr(),
            shared: region(Access::REMOTE_READ | Access::REMOTE_WRITE),
            readable: region(Access::REMOTE_READ),
            writable: region(Access::REMOTE_WRITE),
            evil_events: server.fabric.event_queue().open().unwrap(),
            requests: Arc::default(),
            good_events: server.fabric.event_queue().open().unwrap(),
            good_endpoints: Arc::default(),
            rounds: Arc::default(),
            over: Arc::default(),
            clients: JoinSet::new(),
            tasks: JoinSet::new(),
            _listener: listener,
            _server: server.clone(),
        };
        let serving = Serving {
            server,
            remote: scene.shared.remote(),
            manners,
            evil_events: scene.evil_events.clone(),
            good_events: scene.good_events.clone(),
            good_endpoints: Arc::clone(&scene.good_endpoints),
            requests: Arc::clone(&scene.requests),
        };
        scene.tasks.spawn(serving.serve(requests));
        for number in 0..GOOD {
            scene.add_client(number);
        }
        scene
    }

    fn add_client(&mut self, number: usize) {
        let (rounds, over) = (Arc::clone(&self.rounds), Arc::clone(&self.over));
        let address = self.address;
        self.clients.spawn(async move {
            let us = Net::on(Backend::Epoll).peer().unwrap();
            let endpoint = us.domain.endpoint().open().unwrap();
            let remote = endpoint
                .connect(address)
                .await
                .expect("a good client is let in");
            let remote = RemoteRegion::from_bytes(&remote).unwrap();
            for round in 0.. {
                work(&endpoint, remote, number, round).await;
                rounds.fetch_add(1, Ordering::AcqRel);
                if over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
    }

    pub fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Acquire)
    }

    /// The next hostile endpoint has ended: Shutdown, and nothing else, after Connected.
    pub async fn evil_shutdown(&self, what: &str) {
        let ended = async {
            loop {
                match self.evil_events.next().await {
                    Some(Event::Connected { .. }) => {}
                    Some(Event::Shutdown { .. }) => return,
                    other => panic!("{what}: {other:?}"),
                }
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        assert!(ended.is_ok(), "{what}: no Shutdown was reported");
    }

    /// All good clients, and as many new ones, finish what they do, and nothing was lost.
    pub async fn end(mut self) {
        for number in 0..GOOD {
            self.add_client(GOOD + number);
        }
        let before = self.rounds();
        while self.rounds() < before + 4 * GOOD {
            tokio::task::yield_now().await;
        }
        let endpoints = self.good_endpoints.load(Ordering::Acquire);
        let mut connected = 0;
        while let Some(event) = self.good_events.try_next() {
            match event {
                Event::Connected { .. } => connected += 1,
                other => panic!("a good client has lost its connection: {other:?}"),
            }
        }
        assert!(connected >= GOOD && endpoints >= connected);
        self.over.store(true, Ordering::Release);
        while let Some(client) = self.clients.join_next().await {
            client.expect("a good client loses no operation");
        }
        self.tasks.abort_all();
        while let Some(task) = self.tasks.join_next().await {
            assert!(
                task.is_err_and(|error| error.is_cancelled()),
                "the server ended early"
            );
        }
    }
}

/// One round of a good client: a message there and back, a write, a read of what was written.
async fn work(endpoint: &Endpoint, remote: RemoteRegion, number: usize, round: usize) {
    let sent: Vec<u8> = (0..600)
        .map(|at| (at + round + 31 * number) as u8)
        .collect();
    let echo = endpoint.recv(vec![0; 1000]).post().unwrap();
    let message = endpoint.send(sent.clone()).delivery_complete();
    let at = (number % 40) as u64 * 1024;
    let place = remote.slice(at..at + 600).unwrap();
    let write = endpoint.write(sent.clone(), place).delivery_complete();
    let (message, write) = (message.post().unwrap(), write.post().unwrap());
    assert_eq!(message.await.expect("a good message").0, 600);
    assert_eq!(write.await.expect("a good write").0, 600);
    let (len, back) = endpoint
        .read(vec![0; 600], place)
        .await
        .expect("a good read");
    assert!(
        len == 600 && back == sent,
        "client {number} reads what it has not written"
    );
    let (received, back) = echo.await.expect("a good echo");
    assert!(
        back[..received.len] == sent,
        "client {number} has a bad echo"
    );
}

struct Serving {
    server: Peer,
    remote: RemoteRegion,
    manners: Manners,
    evil_events: EventQueue,
    good_events: EventQueue,
    good_endpoints: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Serving {
    async fn serve(self, requests: EventQueue) {
        let mut served = JoinSet::new();
        while let Some(event) = requests.next().await {
            let Event::ConnRequest(request) = event else {
                panic!("{event:?}")
            };
            self.requests.fetch_add(1, Ordering::AcqRel);
            if request.data() == EVIL {
                served.spawn(suffer(self.open(&self.evil_events), request, self.manners));
            } else {
                self.good_endpoints.fetch_add(1, Ordering::AcqRel);
                served.spawn(echo(self.open(&self.good_events), request, self.remote));
            }
            while let Some(done) = served.try_join_next() {
                done.expect("a server task ends in order");
            }
        }
    }

    fn open(&self, events: &EventQueue) -> Endpoint {
        self.server
            .domain
            .endpoint()
            .event_queue(events)
            .open()
            .expect("an endpoint")
    }
}

/// Serves a good client until it goes.
async fn echo(endpoint: Endpoint, request: ConnRequest, remote: RemoteRegion) {
    endpoint
        .accept(request)
        .data(remote.to_bytes())
        .await
        .expect("a good client waits");
    while let Ok((received, mut buffer)) = endpoint.recv(vec![0; 1000]).await {
        buffer.truncate(received.len);
        if endpoint.send(buffer).await.is_err() {
            break;
        }
    }
}

/// Has a hostile client until the connection is closed.
async fn suffer(endpoint: Endpoint, request: ConnRequest, manners: Manners) {
    if endpoint.accept(request).await.is_err() {
        return; // It went before it was accepted.
    }
    match manners {
        Manners::NoReceive => std::future::pending().await,
        Manners::OneReceive => {
            let _ = endpoint.recv(vec![0; 100]).await;
            std::future::pending().await
        }
        Manners::Receives => while endpoint.recv(vec![0; 100]).await.is_ok() {},
    }
}
