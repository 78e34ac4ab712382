//! Requests and answers that are larger than a frame.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread::ThreadId;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::{sleep, timeout};
use tokio_fabric::testing::Net;
use tokio_fabric::{Access, Driver, Endpoint, RemoteRegion};
use tokio_fabric_rpc::limits::{BODIES_PER_SERVER, DECODED_IN_TASK_MAX};
use tokio_fabric_rpc::{Channel, Code, Cx, Server, Started, testing};

use super::hostile::{frame, hello_with, raw_client, request};
use super::{Handlers, ProbeClient, ProbeServer, expect, probe, probe_with, until_closed_calls};

fn bytes(len: usize) -> Bytes {
    (0..len).map(|it| (it ^ it >> 8) as u8).collect()
}

/// The threads on which arguments were decoded, by the arguments' lengths.
static DECODED_ON: Mutex<Vec<(usize, ThreadId)>> = Mutex::new(Vec::new());

/// Text that notes where it is decoded.
#[derive(Serialize)]
struct Noted(Vec<String>);

impl<'de> Deserialize<'de> for Noted {
    fn deserialize<D: Deserializer<'de>>(bytes: D) -> Result<Self, D::Error> {
        let noted = Noted(Vec::deserialize(bytes)?);
        let here = (noted.0.len(), std::thread::current().id());
        DECODED_ON.lock().unwrap().push(here);
        Ok(noted)
    }
}

#[tokio_fabric_rpc::service]
trait Count {
    async fn count(&self, cx: &Cx, words: Noted) -> tokio_fabric_rpc::Result<u64>;
}

struct Counter;

impl Count for Counter {
    async fn count(&self, _: &Cx, words: Noted) -> tokio_fabric_rpc::Result<u64> {
        Ok(words.0.len() as u64)
    }
}

/// SECURITY.md: "Longer requests are decoded on blocking threads": a client cannot hold up the calls
/// of others by a request that takes long to decode. Others are decoded where they were read.
#[tokio::test]
async fn long_requests_are_decoded_on_blocking_threads() {
    let server = Server::new().add(CountServer::new(Counter));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let client = CountClient::connect(server.local_addr()).await.unwrap();
    let here = std::thread::current().id();
    for words in [
        1,
        70_000,
        DECODED_IN_TASK_MAX - 8,
        DECODED_IN_TASK_MAX,
        1 << 20,
    ] {
        let counted = client.count(Noted(vec![String::new(); words])).await;
        assert_eq!(counted.unwrap(), words as u64);
        let decoded = DECODED_ON.lock().unwrap().pop().unwrap();
        assert_eq!(decoded.0, words);
        // A byte for each word, and the count before them.
        assert_eq!(decoded.1 != here, words >= DECODED_IN_TASK_MAX, "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_of_every_size_go_there_and_back() {
    let (client, _, server) = probe().await;
    // At the edges of a frame, of a chunk, and at the largest.
    for len in [65_520, 65_521, 524_288, 524_289, 3_000_000, 16 << 20] {
        let body = bytes(len);
        let reversed = client.reverse(body.clone()).await.unwrap();
        let is_whole = reversed.len() == len && reversed[..100].iter().rev().eq(&body[len - 100..]);
        assert!(is_whole && reversed[len - 1] == body[0], "{len} bytes");
    }
    // The frame has metadata beside it.
    let small = client.reverse(bytes(65_500)).meta("name", vec![1; 900]);
    assert_eq!(small.await.unwrap().len(), 65_500);
    assert_eq!(client.channel().open_calls(), 0);
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
}

#[test]
fn large_bodies_work_over_sockets_and_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let client = ProbeClient::connect(server.local_addr()).await.unwrap();
        let callers = (0..16_usize).map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..12_usize {
                    let body = bytes(100_000 + 70_000 * (number % 5));
                    let call = client.reverse(body.clone()).into_future();
                    if number % 3 == 1 {
                        let micros = ((caller * 131 + number * 61) % 2000) as u64;
                        drop(timeout(Duration::from_micros(micros), call).await);
                        continue;
                    }
                    let reversed = call.await.unwrap();
                    assert!(reversed.iter().rev().eq(body.iter()));
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        until_closed_calls(client.channel()).await;
        while server.stats().running > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            (server.stats().connections, server.stats().violations),
            (1, 0)
        );
    });
}

/// "An overloaded server refuses before a bulk byte moves."
#[tokio::test(start_paused = true)]
async fn a_full_server_refuses_a_large_request_by_its_head() {
    let (client, seen, server) = probe_with(Server::new().calls_max(1)).await;
    let running = client.wait(None).into_future().shared();
    assert!(running.clone().now_or_never().is_none());
    seen.wait_for(&seen.started, 1).await;
    let refused = client.reverse(bytes(1 << 20)).await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    drop(running);
    seen.wait_for(&seen.dropped, 1).await;
    client.reverse(bytes(1 << 20)).await.unwrap();
    assert_eq!(server.stats().violations, 0);
}

/// G9: "bounded memory per connection", also where handlers keep what they were sent; and G8: that
/// leaves room for others.
#[tokio::test(start_paused = true)]
async fn handlers_that_stand_still_hold_so_many_bytes_of_requests_at_most() {
    let net = Net::new(44);
    let handlers = Handlers::default();
    let seen = handlers.0.clone();
    let server = Server::new().add(ProbeServer::new(handlers));
    let (channel, server) = testing::connect(&net, server).await.unwrap();
    let (client, body) = (ProbeClient::over(channel), bytes(16 << 20));
    let most = BODIES_PER_SERVER / 2 / body.len();
    let held: Vec<_> = (0..most)
        .map(|_| tokio::spawn(client.hold(body.clone()).no_deadline().into_future()))
        .collect();
    seen.wait_for(&seen.started, most).await;
    let beyond = client.reverse(bytes(100_000)).await.unwrap_err();
    expect(&beyond, Code::Overloaded, Started::NotStarted);
    client.nothing().await.unwrap();
    let other = Channel::builder().fabric(&net.fabric().unwrap());
    let other = ProbeClient::over(other.connect(server.local_addr()).await.unwrap());
    assert_eq!(other.reverse(body).await.unwrap().len(), 16 << 20);
    held.iter().for_each(|it| it.abort());
    until_closed_calls(client.channel()).await;
    client.reverse(bytes(100_000)).await.unwrap();
}

/// A client that asks a server to read its memory, and never serves that: it is not driven.
pub async fn stranger(net: &Net, to: SocketAddr, asks: Vec<Vec<u8>>) -> Endpoint {
    let fabric = net.fabric().unwrap();
    let domain = fabric.domain().driver(Driver::Manual).open().unwrap();
    let endpoint = domain.endpoint().open().unwrap();
    endpoint.connect(to).data(hello_with(0)).await.unwrap();
    for ask in asks {
        endpoint.inject(&ask).unwrap();
    }
    domain.progress();
    endpoint
}

/// A request of so many bytes that are not served.
fn unserved(call: u32, len: u64) -> Vec<u8> {
    let region = RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, len, 0x1234_5678)
    };
    request(call, "Probe/reverse", 1 << 4, &region.to_bytes())
}

/// What strangers do not serve they hold as long as no other client needs it: the room for bodies,
/// the places of all calls, and those of the method.
#[tokio::test(start_paused = true)]
async fn clients_that_serve_no_body_hold_up_no_other() {
    for of_method in [280, 4096] {
        let net = Net::new(46);
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        let server = server
            .calls_max(300)
            .method_calls_max("Probe/reverse", of_method);
        let (channel, server) = testing::connect(&net, server).await.unwrap();
        let client = ProbeClient::over(channel);
        // First all of the room, then the rest of it in small pieces, then all places.
        let mut strangers = Vec::new();
        for number in 0..40 {
            let asks = match number {
                0..16 => vec![unserved(0, 16 << 20)],
                16..32 => vec![unserved(0, 8 << 20), unserved(1, 1 << 20), unserved(2, 1)],
                _ => (0..40).map(|call| unserved(call, 1)).collect(),
            };
            strangers.push(stranger(&net, server.local_addr(), asks).await);
        }
        let full = async {
            while server.stats().running < of_method.min(300) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let full = timeout(Duration::from_secs(5), full).await;
        full.expect("they have all places");
        for len in [100_000, 1 << 20] {
            assert_eq!(client.reverse(bytes(len)).await.unwrap().len(), len);
            client.nothing().await.unwrap();
        }
        let many = (0..16).map(|_| client.reverse(bytes(200_000)).into_future());
        for reversed in join_all(many).await {
            assert_eq!(reversed.unwrap().len(), 200_000);
        }
        // They are gone, and their places are free.
        drop(strangers);
        while server.stats().connections > 1 || server.stats().running > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.stats().violations, 0);
    }
}

/// A call with a large body is given up before it is sent, while its body moves, and later.
#[tokio::test(start_paused = true)]
async fn given_up_at_any_time_it_leaves_nothing_behind() {
    let (client, _, server) = probe().await;
    let body = bytes(1 << 20);
    for polls in 0..40 {
        let mut call = client.reverse(body.clone()).into_future();
        for _ in 0..polls {
            if (&mut call).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
    }
    until_closed_calls(client.channel()).await;
    while server.stats().running > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    client.nothing().await.unwrap();
    assert_eq!(
        (server.stats().connections, server.stats().violations),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_until_an_answer_was_read() {
    let (client, _, server) = probe().await;
    let (answer, ()) = tokio::join!(async { client.large(8 << 20).await }, async {
        sleep(Duration::from_millis(1)).await;
        server.drain(Duration::from_secs(5)).await;
    });
    assert_eq!(answer.unwrap().len(), 8 << 20);
}

/// Whatever was under way, it ends once, and says so.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_a_call_whose_body_moves() {
    let mut lost = 0;
    let body = bytes(4 << 20);
    for polls in 1..6 {
        let net = Net::new(41);
        let fabric = net.node("server").fabric().unwrap();
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        let address = net.node("server").addr(7000);
        let server = server.fabric(&fabric).bind(address).await.unwrap();
        let fabric = net.node("client").fabric().unwrap();
        let channel = Channel::builder().fabric(&fabric);
        let client = ProbeClient::over(channel.connect(server.local_addr()).await.unwrap());
        let mut call = client.reverse(body.clone()).into_future();
        let mut end = None;
        for _ in 0..polls {
            end = end.or_else(|| (&mut call).now_or_never());
            tokio::task::yield_now().await;
        }
        net.crash("server");
        let end = match end {
            Some(end) => end,
            None => call.await,
        };
        if let Err(status) = end {
            expect(&status, Code::ConnectionLost, Started::MaybeRan);
            lost += 1;
        }
        assert_eq!(client.channel().open_calls(), 0);
    }
    assert!(lost > 0, "none was under way");
}

/// Calls `Probe/large` for 100,000 bytes by hand: where they are.
async fn large(endpoint: &Endpoint, call: u32) -> RemoteRegion {
    // As postcard has the number.
    endpoint
        .send(request(call, "Probe/large", 0, &[0xa0, 0x8d, 0x06]))
        .await
        .unwrap();
    let (received, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!((received.len, &answer[..2]), (48, &[2, 2][..]));
    RemoteRegion::from_bytes(&answer[16..48]).unwrap()
}

/// A client that does not read its answer loses that, not the server its memory.
#[tokio::test(start_paused = true)]
async fn an_answer_is_there_for_ten_seconds() {
    let net = Net::new(42);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(16 << 20)).await;
    let region = large(&endpoint, 0).await;
    assert_eq!((region.len, region.access), (100_003, Access::REMOTE_READ));
    sleep(Duration::from_secs(9)).await;
    let (_, read) = endpoint.read(vec![0; 100_003], region).await.unwrap();
    assert_eq!(read[3..6], [7, 7, 7]);
    endpoint.send(frame(8, 0, &[])).await.unwrap();
    let region = large(&endpoint, 1 << 16).await;
    sleep(Duration::from_secs(11)).await;
    let late = endpoint.read(vec![0; 100_003], region).await.unwrap_err();
    assert!(late.error().refusal().is_some(), "{late}");
    endpoint.send(frame(8, 1 << 16, &[])).await.unwrap();
    large(&endpoint, 2 << 16).await;
    assert_eq!(server.stats().violations, 0);
}

/// Each call ends once in the counts, though its answer was not read when the connection ended.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_not_read_counts_once() {
    let net = Net::new(44);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(1 << 20)).await;
    large(&endpoint, 0).await;
    endpoint.shutdown().await.unwrap();
    while server.stats().connections > 1 {
        sleep(Duration::from_millis(1)).await;
    }
    let mut stats = server.method_stats();
    let (_, stats) = stats.find(|it| it.0 == "Probe/large").unwrap();
    assert_eq!((stats.started, stats.succeeded), (1, 1));
    assert_eq!((stats.failed, stats.cancelled), (0, 0));
}

/// An answer that waits for its turn to be read has its call's place: what bounds calls bounds what
/// clients that do not read have a server hold.
#[tokio::test(start_paused = true)]
async fn a_large_answer_that_waits_counts_as_a_call_that_runs() {
    let net = Net::new(45);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server.calls_max(2)).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(16 << 20)).await;
    // 16 MiB without the head of a sequence: the first is lent, the others wait for its room.
    for call in 0..3 {
        let large = request(call, "Probe/large", 0, &[0xf0, 0xff, 0xff, 0x07]);
        endpoint.send(large).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!(answer[..2], [2, 2]);
    endpoint
        .send(request(3, "Probe/nothing", 0, &[]))
        .await
        .unwrap();
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    // Overloaded, not started.
    assert_eq!((&answer[..5], answer[8]), (&[2, 1, 0, 0, 3][..], 3));
    endpoint.send(frame(8, 0, &[])).await.unwrap();
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!(
        answer[..5],
        [2, 2, 0, 0, 1],
        "the next is lent, and gives its place back"
    );
    endpoint
        .send(request(3 | 1 << 16, "Probe/nothing", 0, &[]))
        .await
        .unwrap();
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!((&answer[..5], answer[8]), (&[2, 0, 0, 0, 3][..], 0));
}

/// What a client names and does not have ends its call, not started.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_there_is_a_call_that_has_not_started() {
    let net = Net::new(43);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(0)).await;
    let nowhere = RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, 100_000, 0x1234_5678)
    };
    let lie = request(0, "Probe/reverse", 1 << 4, &nowhere.to_bytes());
    endpoint.send(lie).await.unwrap();
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    // LentRefused, not started.
    assert_eq!((&answer[..2], answer[8]), (&[2, 1][..], 12));
    // It takes no answer by reference.
    endpoint
        .send(request(1 << 16, "Probe/large", 0, &[0xa0, 0x8d, 0x06]))
        .await
        .unwrap();
    let (_, answer) = endpoint.recv(vec![0; 256]).await.unwrap();
    assert_eq!((&answer[..2], answer[8]), (&[2, 0][..], 9));
    assert_eq!(server.stats().violations, 0);
}
