//! Requests and answers that are larger than a frame.

use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use tokio::time::sleep;
use tokio_fabric::testing::Net;
use tokio_fabric::{Access, Endpoint, RemoteRegion};
use tokio_fabric_rpc::{Channel, Code, Server, Started, testing};

use super::hostile::{frame, hello_with, raw_client};
use super::{Handlers, ProbeClient, ProbeServer, expect, probe, probe_with, until_closed_calls};

fn bytes(len: usize) -> Bytes {
    (0..len).map(|it| (it ^ it >> 8) as u8).collect()
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
                        drop(tokio::time::timeout(Duration::from_micros(micros), call).await);
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

/// The number of `Probe/large`, as the page says how it is made.
fn method(name: &str) -> u32 {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, hash)
}

fn request(call: u32, name: &str, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = frame(1, call, body);
    bytes[1] = flags;
    bytes[8..12].copy_from_slice(&method(name).to_le_bytes());
    bytes
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
