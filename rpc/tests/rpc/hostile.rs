//! Peers that lie: it costs them their connection, and no other connection anything.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio_fabric::ep::OnRefusal;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Access, Endpoint, Event, RemoteRegion};
use tokio_fabric_rpc::{Channel, Code, Cx, Result, Server, Started, Streaming};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::{Handlers, ProbeClient, ProbeServer, expect};

/// `Hello::default()`, as the page has it.
fn hello() -> Vec<u8> {
    hello_with(16 << 20)
}

/// The same of a client that takes so many bytes by reference.
pub fn hello_with(body_max: u64) -> Vec<u8> {
    let mut bytes = b"TFRP\x01\x01\0\0".to_vec();
    bytes.extend_from_slice(&256_u32.to_le_bytes());
    bytes.extend_from_slice(&65_536_u32.to_le_bytes());
    bytes.extend_from_slice(&(4_u64 << 20).to_le_bytes());
    bytes.extend_from_slice(&(1_u64 << 40).to_le_bytes());
    bytes.extend_from_slice(&body_max.to_le_bytes());
    bytes.extend_from_slice(b"postcard");
    bytes
}

pub fn frame(kind: u8, call: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend_from_slice(&call.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(rest);
    bytes
}

/// The call of a method, by the number that the page gives it.
pub fn request(call: u32, method: &str, flags: u8, body: &[u8]) -> Vec<u8> {
    let hash = |text: &str| {
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        text.bytes().fold(0x811c_9dc5, fold)
    };
    let signature = match method {
        "Probe/nothing" => "()->()",
        "Probe/wait" => "?u64->()",
        "Probe/insist" => "u64->()",
        "Probe/large" => "u64->[u8]",
        "Probe/reverse" => "bytes->bytes",
        _ => "",
    };
    let of_signature = match signature {
        "" => 0,
        text => hash(text) >> 16 ^ hash(text) & 0xffff,
    };
    let number = hash(method) ^ of_signature;
    let mut bytes = frame(1, call, body);
    bytes[1] = flags;
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Frames of a message: one, or those of a batch.
fn frame_count(message: &[u8]) -> usize {
    let Some((&[9, 0, 0, 0], mut rest)) = message.split_first_chunk() else {
        return 1;
    };
    let mut count = 0;
    while let Some((len, after)) = rest.split_first_chunk() {
        (rest, count) = (&after[u16::from_le_bytes(*len).into()..], count + 1);
    }
    count
}

pub async fn raw_client(net: &Net, to: std::net::SocketAddr, hello: Vec<u8>) -> (Peer, Endpoint) {
    let peer = net.peer().unwrap();
    let endpoint = peer.domain.endpoint();
    let endpoint = endpoint.on_refusal(OnRefusal::Continue { limit: 4096 });
    let endpoint = endpoint.open().unwrap();
    endpoint.connect(to).data(hello).await.unwrap();
    (peer, endpoint)
}

/// A client whose server is the endpoint, by hand.
pub async fn raw_server(net: &Net, hello: Vec<u8>) -> (Peer, Endpoint, Channel) {
    let peer = net.peer().unwrap();
    let passive = peer.fabric.passive_endpoint(&peer.events);
    let listener = passive.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let builder = Channel::builder().fabric(&net.fabric().unwrap());
    let connecting = tokio::spawn(builder.connect(listener.local_addr()));
    let Some(Event::ConnRequest(asked)) = peer.events.next().await else {
        panic!()
    };
    let accepting = asked.accept(&peer.domain).data(hello);
    let endpoint = accepting.await.unwrap();
    let channel = connecting.await.unwrap().unwrap();
    (peer, endpoint, channel)
}

/// Waits for the end of the endpoint's connection.
pub async fn shutdown(peer: &Peer) {
    let ended =
        async { while !matches!(peer.events.next().await, Some(Event::Shutdown { .. })) {} };
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn frames_that_break_the_rules_cost_their_connection_only() {
    let net = Net::new(11);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let honest = ProbeClient::over(channel);
    let wrong: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("no header", vec![1; 15]),
        ("an unknown kind", frame(99, 0, &[])),
        ("a response", frame(2, 0, &[])),
        ("a farewell", frame(7, 0, &[])),
        ("an item of no call", frame(4, 0, &[1])),
        ("a credit of no call", numbers(frame(5, 0, &[]), 1, 0)),
        ("a window", numbers(frame(6, 0, &[]), 100, 1 << 20)),
        ("an answer taken of no call", frame(8, 0, &[])),
        ("a body of 17 MiB", by_reference(17 << 20)),
        ("a slot beyond the window", frame(1, 256, &[])),
        ("a generation beyond the next", frame(1, 1 << 16, &[])),
        ("a cancellation of no call", frame(3, 7, &[])),
        ("a frame that is too long", vec![0; 65_537]),
        ("a batch of nothing", vec![9, 0, 0, 0]),
        ("a batch that is cut off", vec![9, 0, 0, 0, 16, 0, 1]),
        ("a batch of a batch", vec![9, 0, 0, 0, 4, 0, 9, 0, 0, 0]),
        (
            "a batch of lengths alone",
            [&[9, 0, 0, 0][..], &[0; 600]].concat(),
        ),
        ("a batch with a flag", vec![9, 1, 0, 0, 0, 0]),
        ("a megabyte", vec![1; 1 << 20]),
    ];
    for (at, (what, bytes)) in wrong.into_iter().enumerate() {
        let (peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
        let _ = endpoint.send(bytes).await;
        shutdown(&peer).await;
        assert_eq!(server.stats().violations, at as u64 + 1, "{what}");
        honest.nothing().await.unwrap();
    }
    assert_eq!(server.stats().connections, 1);
}

pub fn numbers(mut frame: Vec<u8>, first: u32, second: u32) -> Vec<u8> {
    frame[8..12].copy_from_slice(&first.to_le_bytes());
    frame[12..16].copy_from_slice(&second.to_le_bytes());
    frame
}

fn by_reference(len: u64) -> Vec<u8> {
    let region = RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, len, 7)
    };
    let mut bytes = frame(1, 0, &region.to_bytes());
    bytes[1] = 1 << 4;
    bytes
}

/// A request of a stream's method, then what breaks its rules.
#[tokio::test(start_paused = true)]
async fn streams_beyond_their_credit_cost_the_connection() {
    let net = Net::new(15);
    let server = Server::new().add(FeedServer::new(Unread));
    let (_channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let last = |mut frame: Vec<u8>, flag| {
        frame[1] = flag;
        frame
    };
    let item = || frame(4, 0, &[1]);
    let lies: Vec<(&str, u8, Vec<Vec<u8>>)> = vec![
        ("a seventeenth item", 1 << 5, vec![item(); 17]),
        ("too many bytes", 1 << 5, vec![frame(4, 0, &[1; 60_000]); 5]),
        (
            "an item behind the last",
            1 << 5,
            vec![last(frame(4, 0, &[]), 1), item()],
        ),
        (
            "a client's stream that begins",
            1 << 5,
            vec![last(frame(4, 0, &[]), 2)],
        ),
        (
            "credit for what was not sent",
            1 << 5,
            vec![numbers(frame(5, 0, &[]), 1, 1)],
        ),
    ];
    for (at, (what, flags, frames)) in lies.into_iter().enumerate() {
        let (peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
        let request = request(0, "Feed/stall", flags, &[]);
        endpoint.send(request).await.unwrap();
        for frame in frames {
            let _ = endpoint.send(frame).await;
        }
        shutdown(&peer).await;
        assert_eq!(server.stats().violations, at as u64 + 1, "{what}");
    }
    assert_eq!(server.stats().running, 0);
}

#[tokio_fabric_rpc::service(signature = "")]
trait Feed {
    async fn stall(&self, cx: &Cx, items: Streaming<u8>) -> Result<()>;
}

struct Unread;

impl Feed for Unread {
    async fn stall(&self, _: &Cx, items: Streaming<u8>) -> Result<()> {
        std::future::pending::<()>().await;
        drop(items);
        Ok(())
    }
}

/// The names of calls: each once, and each slot for one at a time.
#[tokio::test(start_paused = true)]
async fn a_call_under_a_used_name_is_a_violation() {
    let net = Net::new(12);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let (peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    // An unknown method: answered as not started, under its name.
    endpoint.send(frame(1, 0, &[])).await.unwrap();
    let (received, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!(answer[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert!(received.len > 20, "with its reason");
    endpoint.send(frame(1, 0, &[])).await.unwrap();
    shutdown(&peer).await;
    assert_eq!(server.stats().violations, 1);
}

/// After 65,536 calls of a slot its names come again: a handler that went on to its end, though its
/// call was cancelled, answers no other call by then.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_no_other_calls() {
    let net = Net::new(17);
    let handlers = Handlers::default();
    let seen = handlers.0.clone();
    let server = Server::new().add(ProbeServer::new(handlers));
    let (_channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    // 5,000 ms.
    let insist = request(0, "Probe/insist", 0, &[0x88, 0x27]);
    endpoint.send(insist).await.unwrap();
    endpoint.send(frame(3, 0, &[])).await.unwrap();
    endpoint.recv(vec![0; 256]).await.unwrap();
    let asks = async {
        for generation in 1..=0xffff {
            endpoint.inject(&frame(1, generation << 16, &[])).unwrap();
            tokio::task::yield_now().await;
        }
    };
    let reads = async {
        let mut answers = 0;
        while answers < 0xffff {
            let (received, message) = endpoint.recv(vec![0; 1 << 16]).await.unwrap();
            answers += frame_count(&message[..received.len]);
        }
    };
    tokio::join!(asks, reads);
    endpoint
        .send(request(0, "Probe/wait", 0, &[0]))
        .await
        .unwrap();
    seen.wait_for(&seen.ended, 1).await;
    let answer = endpoint.recv(vec![0; 256]).into_future();
    let waiting = tokio::time::timeout(Duration::from_secs(5), answer).await;
    assert!(waiting.is_err(), "it waits, and is answered: {waiting:?}");
    assert_eq!((server.stats().running, server.stats().violations), (1, 0));
}

/// `Server::deadline_max`: "whatever deadline its client sets, also if it sets none".
#[tokio::test(start_paused = true)]
async fn clients_that_set_no_deadline_hold_places_for_a_bounded_time() {
    let net = Net::new(19);
    let most = Duration::from_secs(30);
    let server = Server::new().calls_max(2).deadline_max(most);
    let server = server.add(ProbeServer::new(Handlers::default()));
    let (channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let honest = ProbeClient::over(channel);
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    // Handlers that never end, one with the longest deadline that there is.
    let never = request(0, "Probe/wait", 0, &[0]);
    let mut late = request(1, "Probe/wait", 0, &[0]);
    late[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    for call in [never, late] {
        endpoint.send(call).await.unwrap();
    }
    while server.stats().running < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refused = honest.nothing().await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    tokio::time::sleep(most).await;
    honest.nothing().await.unwrap();
    assert_eq!(server.stats().running, 0);
    let long = honest.wait(None).no_deadline().await.unwrap_err();
    expect(&long, Code::DeadlineExceeded, Started::MaybeRan);
}

/// The answers of one that reads none would fill the server's memory.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_answer_loses_its_connection() {
    let net = Net::new(16);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let (peer, endpoint) = raw_client(&net, server.local_addr(), hello()).await;
    // Each in the slot of the one before, as if that had been answered.
    for number in 0..20_000_u32 {
        let call = number << 16;
        if endpoint.send(frame(1, call, &[])).await.is_err() {
            break;
        }
    }
    shutdown(&peer).await;
    assert_eq!(server.stats().violations, 1);
    ProbeClient::over(channel).nothing().await.unwrap();
}

/// A server that answers what was not asked.
#[tokio::test(start_paused = true)]
async fn a_lying_server_loses_its_client_and_calls_end() {
    for lie in [
        frame(2, 5, &[]),
        frame(2, 1 << 16, &[]),
        frame(4, 0, &[1]),
        numbers(frame(5, 0, &[]), 1, 0),
        numbers(frame(6, 0, &[]), 0, 1 << 20),
        frame(8, 0, &[]),
        frame(1, 0, &[]),
        vec![],
    ] {
        let net = Net::new(13);
        let peer = net.peer().unwrap();
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = peer
            .fabric
            .passive_endpoint(&peer.events)
            .listen_at(any)
            .unwrap();
        let address = listener.local_addr();
        let lying = async {
            let Some(Event::ConnRequest(request)) = peer.events.next().await else {
                panic!()
            };
            let endpoint = request.accept(&peer.domain).data(hello()).await.unwrap();
            endpoint.recv(vec![0; 256]).await.unwrap();
            let _ = endpoint.send(lie).await;
            endpoint
        };
        let calling = async {
            let builder = Channel::builder().fabric(&net.fabric().unwrap());
            let client = ProbeClient::over(builder.connect(address).await.unwrap());
            let lost = client.nothing().await.unwrap_err();
            expect(&lost, Code::ConnectionLost, Started::MaybeRan);
            assert!(lost.message().contains("broke the protocol"), "{lost}");
            assert!(client.nothing().await.unwrap_err().is_not_started());
        };
        tokio::join!(lying, calling);
    }
}

/// Counts what is logged as a warning.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_warning = *event.metadata().level() == tracing::Level::WARN;
        let is_ours = event.metadata().target().starts_with("tokio_fabric_rpc");
        self.0.fetch_add(usize::from(is_warning && is_ours), SeqCst);
    }
}

/// What a server sends without end fills no client's log.
#[tokio::test(start_paused = true)]
async fn a_server_that_goes_on_to_lie_is_logged_once() {
    let warnings = Warnings::default();
    let subscriber = tracing_subscriber::registry().with(warnings.clone());
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber);
    let (_peer, endpoint, channel) = raw_server(&Net::new(18), hello()).await;
    for _ in 0..100 {
        endpoint.send(frame(1, 0, &[])).detach().unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!channel.is_ready());
    // And once that there is no other connection.
    assert_eq!(warnings.0.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_rejected_in_words() {
    let net = Net::new(14);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = tokio_fabric_rpc::testing::connect(&net, server)
        .await
        .unwrap();
    let endpoint = net.peer().unwrap().domain.endpoint().open().unwrap();
    let refused = endpoint
        .connect(server.local_addr())
        .data(b"hello?")
        .await
        .unwrap_err();
    let words = String::from_utf8_lossy(refused.data()).into_owned();
    assert!(
        words.starts_with("TFRP") && words.contains("not a peer"),
        "{words}"
    );
}
