//! How connections end with peers that do not cooperate: in every state, on every backend, the
//! driver waits for an event and does not poll repeatedly.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::ports;
use crate::endpoint::Endpoint;
use crate::eq::{Event, EventQueue};
use crate::mr::Access;
use crate::progress::Liveness;
use crate::progress::link_life::LinkState;
use crate::progress::port::Port;
use crate::proto::OFFERED;
use crate::testing::{Net, Peer};
use crate::transport::{Backend, Link, Outcome, Receive, Received, SendBatch};
use crate::wire::{
    ByteOrder, CloseReason, ControlFrame, ControlKind, ExtensionOffer, FrameHeader, Hello,
    MessageCredit, RemoteSegment, Segments,
};

/// Bytes of the region that hostile peers read.
const REGION: usize = 4 << 20;
const KEY: u64 = 12;
/// Turns of a port from its set-up to its end, some ten seconds later, if each has a reason. A port
/// that spins has thousands in a second.
const TURNS_MAX: u64 = 80;

/// The request of a peer before it falls silent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Nothing,
    /// To read many bytes, none of which it receives.
    Reads,
    /// To receive a message, for which there is neither a receive nor room.
    Message,
}

/// One connection, and the actions of its two sides.
#[derive(Clone, Copy, Debug)]
struct Scene {
    extended: bool,
    asks: Asks,
    /// This side has an operation outstanding that the peer never answers.
    awaits: bool,
    /// This side ends the connection, before the peer does its part.
    shuts_down: bool,
    says_close: bool,
    ends_stream: bool,
}

fn scenes() -> Vec<Scene> {
    let mut all = Vec::new();
    for bits in 0..32 {
        for asks in [Asks::Nothing, Asks::Reads, Asks::Message] {
            let bit = |at: u32| bits >> at & 1 == 1;
            let scene = Scene {
                extended: bit(0),
                asks,
                awaits: bit(1),
                shuts_down: bit(2),
                says_close: bit(3),
                ends_stream: bit(4),
            };
            if scene.extended || !scene.says_close {
                all.push(scene);
            }
        }
    }
    all
}

/// A peer that sends raw bytes, over a link of any backend.
struct Raw {
    link: Box<dyn Link>,
    rings: Arc<tokio::sync::Notify>,
    id: u8,
}

struct Ring(Arc<tokio::sync::Notify>);

impl std::task::Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Raw {
    async fn connect(peer: &Peer, to: SocketAddr) -> Raw {
        let rings = Arc::new(tokio::sync::Notify::new());
        let waker = Arc::new(Ring(Arc::clone(&rings))).into();
        let transport = peer.domain.engine_for_endpoint().transport();
        let link = transport.connect(to, None, waker).unwrap();
        let mut raw = Raw { link, rings, id: 0 };
        assert!(matches!(raw.outcome().await, Outcome::Connected));
        raw
    }

    async fn outcome(&mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.link.poll_outcome() {
                return outcome;
            }
            self.rings.notified().await;
        }
    }

    async fn send(&mut self, bytes: Vec<u8>) {
        let mut batch = Box::<SendBatch>::default();
        batch.push_bytes(bytes, 0);
        while batch.remaining() > 0 {
            self.link.send(batch);
            let Outcome::Sent {
                batch: back,
                result,
            } = self.outcome().await
            else {
                panic!("the end of a send");
            };
            batch = back;
            batch.drop_sent(result.unwrap());
        }
    }

    async fn say(&mut self, header: FrameHeader) {
        let mut bytes = header.encode(ByteOrder::Native, self.id).to_vec();
        self.id = self.id.wrapping_add(1);
        bytes.resize(bytes.len() + header.payload_len() as usize, 7);
        self.send(bytes).await;
    }

    /// Reads at least this many bytes, and then never again.
    async fn take(&mut self, least: usize) {
        let mut taken = 0;
        while taken < least {
            self.link.receive(Receive::Stage);
            let Outcome::Received(Received::Stage(stage)) = self.outcome().await else {
                panic!("bytes");
            };
            taken += stage.len();
        }
    }

    async fn shake_hands(&mut self, extended: bool) {
        let request = ControlFrame::new(ControlKind::Request, Bytes::new()).unwrap();
        let offer = extended.then(|| ExtensionOffer::new(OFFERED));
        self.send(request.with_offer(offer).encode()).await;
        if !extended {
            return self.take(32).await;
        }
        self.take(32 + 16 + 12).await;
        let hello = Hello {
            incarnation: 7,
            messages: MessageCredit {
                budget_bytes: 0,
                overhead_bytes: 128,
                posted: 1 << 30,
            },
            refusals_max: 0,
            probes_after_ms: None,
            announce_min: None,
            local: None,
        };
        let bytes = hello.encode(ByteOrder::Native, 0, |_| None);
        self.id = 1;
        self.send(bytes).await;
    }

    async fn ask(&mut self, asks: Asks) {
        match asks {
            Asks::Nothing => {}
            Asks::Reads => {
                for _ in 0..4 {
                    let whole = RemoteSegment {
                        addr: 0,
                        len: REGION as u64,
                        key: KEY,
                    };
                    let segments = Segments::new(&[whole]).unwrap();
                    self.say(FrameHeader::ReadRequest { segments }).await;
                }
            }
            Asks::Message => {
                let (data, ack) = (None, false);
                self.say(FrameHeader::Message { data, ack, len: 9 }).await;
            }
        }
    }
}

/// A connection with its two sides; `None`: no send is outstanding.
struct Set {
    scene: Scene,
    endpoint: Endpoint,
    raw: Raw,
    port: Arc<Port>,
    turns_before: u64,
    closings: BTreeSet<LinkState>,
}

impl Set {
    fn sample(&mut self) {
        self.closings.insert(self.port.lock("test").life.state());
    }

    fn turns(&self) -> u64 {
        self.port.turns.load(Ordering::Relaxed) - self.turns_before
    }
}

async fn accepted(requests: &EventQueue, server: &Peer) -> Endpoint {
    let Some(Event::ConnRequest(request)) = requests.next().await else {
        panic!("a request");
    };
    // Heartbeats are turns with a reason.
    let builder = server.domain.endpoint().liveness(Liveness::OFF);
    let endpoint = builder.unexpected_bytes(0).open().unwrap();
    endpoint.accept(request).await.unwrap();
    endpoint
}

async fn set(scene: Scene, server: &Peer, client: &Peer) -> Set {
    let requests = server.fabric.event_queue().open().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = server
        .fabric
        .passive_endpoint(&requests)
        .listen_at(any)
        .unwrap();
    let known: BTreeSet<_> = ports(server).iter().map(|port| port.key()).collect();
    let dialling = async {
        let mut raw = Raw::connect(client, listener.local_addr()).await;
        raw.shake_hands(scene.extended).await;
        raw
    };
    let (mut raw, endpoint) = tokio::join!(dialling, accepted(&requests, server));
    let port = ports(server)
        .into_iter()
        .find(|port| !known.contains(&port.key()));
    let port = port.expect("it was opened here");
    if scene.awaits {
        let send = endpoint
            .send(vec![0; 8])
            .delivery_complete()
            .post()
            .unwrap();
        tokio::spawn(send.into_future());
    }
    let turns_before = port.turns.load(Ordering::Relaxed);
    let shutdown = endpoint.clone();
    if scene.shuts_down {
        tokio::spawn(async move { shutdown.shutdown().await });
        let is_flushing = || port.lock("test").life.state() != LinkState::Open;
        while !is_flushing() {
            tokio::task::yield_now().await;
        }
    }
    raw.ask(scene.asks).await;
    if scene.says_close {
        raw.say(FrameHeader::Close {
            reason: CloseReason::Done,
        })
        .await;
    }
    if scene.ends_stream {
        raw.link.finish();
    }
    Set {
        scene,
        endpoint,
        raw,
        port,
        turns_before,
        closings: BTreeSet::new(),
    }
}

async fn no_port_spins(net: Net) {
    let (server, client) = match (net.peer(), net.peer()) {
        (Ok(server), Ok(client)) => (server, client),
        (Err(why), _) | (_, Err(why)) if net.backend() == Backend::IoUring => {
            let required = std::env::var_os("TOKIO_FABRIC_REQUIRE_SYSTEM");
            assert!(required.is_none_or(|it| it != "1"), "io-uring: {why}");
            return println!("left out: io-uring: {why}");
        }
        (server, client) => (server.unwrap(), client.unwrap()),
    };
    let region = server.domain.register(vec![0; REGION]).key(KEY);
    let _region = region.access(Access::REMOTE_READ).await.unwrap();
    let mut sets = Vec::new();
    for scene in scenes() {
        sets.push(set(scene, &server, &client).await);
        // On a busy machine the first may have ended before the last is there.
        sets.iter_mut().for_each(Set::sample);
    }
    // Longer than everything that an end may wait for, one after the other.
    let mut closings = BTreeSet::new();
    for _ in 0..150 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        sets.iter_mut().for_each(Set::sample);
    }
    for set in &mut sets {
        let (scene, turns) = (set.scene, set.turns());
        println!(
            "{}: {turns} turns, {:?}: {scene:?}",
            net.backend(),
            set.closings
        );
        assert!(turns <= TURNS_MAX, "{turns} turns of {scene:?}");
        let is_over = set.closings.contains(&LinkState::Closed);
        assert!(is_over || !scene.shuts_down, "{scene:?} ends");
        closings.append(&mut set.closings);
        let _ = (&set.endpoint, &set.raw);
    }
    for state in [
        LinkState::Open,
        LinkState::Flushing,
        LinkState::AwaitingEof,
        LinkState::Lingering,
    ] {
        assert!(closings.contains(&state), "{state:?} was held for a while");
    }
}

/// "No state of a connection may poll without progress".
#[test]
fn no_state_of_a_shutdown_takes_turns_without_progress() {
    let backends = [Backend::Loopback, Backend::Epoll, Backend::IoUring];
    std::thread::scope(|scope| {
        for backend in backends {
            scope.spawn(move || {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                let runtime = builder.enable_all().build().unwrap();
                runtime.block_on(no_port_spins(Net::on(backend)));
            });
        }
    });
}
