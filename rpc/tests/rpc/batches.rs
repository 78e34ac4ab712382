//! Several frames in one message.

use std::future::IntoFuture;
use std::time::Duration;

use futures::future::join_all;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tokio_fabric::testing::Net;
use tokio_fabric::{Backend, Endpoint};
use tokio_fabric_rpc::limits::FIRST_BATCH_FRAMES;
use tokio_fabric_rpc::{Code, Server, Started, testing};

use super::hostile::{frame, hello_with, raw_client, raw_server, request};
use super::{Handlers, ProbeClient, ProbeServer, expect};

pub fn batch(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![9, 0, 0, 0];
    for frame in frames {
        message.extend_from_slice(&(frame.len() as u16).to_le_bytes());
        message.extend_from_slice(frame);
    }
    message
}

/// The kinds and the calls of the frames of the next message.
async fn next_frames(endpoint: &Endpoint) -> Vec<(u8, u32)> {
    let (received, message) = endpoint.recv(vec![0; 1 << 16]).await.unwrap();
    let message = &message[..received.len];
    let head = |frame: &[u8]| {
        (
            frame[0],
            u32::from_le_bytes(frame[4..8].try_into().unwrap()),
        )
    };
    let Some((&[9, 0, 0, 0], mut rest)) = message.split_first_chunk() else {
        return vec![head(message)];
    };
    let mut frames = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at(u16::from_le_bytes(*len).into());
        frames.push(head(frame));
        rest = after;
    }
    frames
}

/// Calls that come together are answered together, those refused too; one that waits is no part of
/// that, and a large answer goes alone, in its place.
#[tokio::test(start_paused = true)]
async fn answers_to_calls_that_come_together_are_one_message() {
    let net = Net::new(50);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(0)).await;
    let calls = [
        request(0, "Probe/nothing", 0, &[]),
        request(1, "Probe/unknown", 0, &[]),
        // 5 ms.
        request(2, "Probe/wait", 0, &[1, 5]),
        request(3, "Probe/nothing", 0, &[]),
        // 40,000 bytes.
        request(4, "Probe/large", 0, &[0xc0, 0xb8, 0x02]),
        request(5, "Probe/nothing", 0, &[]),
    ];
    endpoint.send(batch(&calls)).await.unwrap();
    let mut frames = Vec::new();
    while frames.len() < 3 {
        frames.push(next_frames(&endpoint).await);
    }
    assert_eq!(frames[0], [(2, 0), (2, 1), (2, 3)]);
    assert_eq!(frames[1..], [[(2, 4)], [(2, 5)]]);
    assert_eq!(next_frames(&endpoint).await, [(2, 2)]);
    assert_eq!(server.stats().violations, 0);
}

/// A call that is answered at once leaves its place to the next of its message, unless the server
/// had none for it: what is always answered makes no room for others.
#[tokio::test(start_paused = true)]
async fn calls_that_come_together_have_no_more_places_than_the_server() {
    let net = Net::new(51);
    let server = Server::new().calls_max(1);
    let server = server.add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(0)).await;
    let counts = || (server.stats().started, server.stats().refused);
    let calls = [
        request(0, "Probe/nothing", 0, &[]),
        request(1, "Probe/nothing", 0, &[]),
        // 5 ms.
        request(2, "Probe/wait", 0, &[1, 5]),
        request(3, "Probe/nothing", 0, &[]),
        request(4, "fabric-rpc/check", 0, &[]),
        request(5, "Probe/nothing", 0, &[]),
    ];
    endpoint.send(batch(&calls)).await.unwrap();
    assert_eq!(next_frames(&endpoint).await.len(), 5);
    assert_eq!(counts(), (4, 2));
    assert_eq!(next_frames(&endpoint).await, [(2, 2)]);
    assert_eq!(server.stats().running, 0);
    endpoint
        .send(request(1 << 16, "Probe/nothing", 0, &[]))
        .await
        .unwrap();
    assert_eq!(next_frames(&endpoint).await, [(2, 1 << 16)]);
    assert_eq!((counts(), server.stats().running), ((5, 2), 0));
}

/// More than the first few of a turn.
const CALLS: u32 = 40;

/// So many calls in one message, in the slots from the first on.
async fn call_together(endpoint: &Endpoint, turn: u32) {
    let call = |slot| request(turn << 16 | slot, "Probe/nothing", 0, &[]);
    let calls: Vec<_> = (0..CALLS).map(call).collect();
    endpoint.send(batch(&calls)).await.unwrap();
}

/// Of calls that come together the first few are answered while the others are handled, so that the
/// caller's side works meanwhile; likewise the next calls of callers that are woken together.
#[tokio::test(start_paused = true)]
async fn the_first_frames_of_a_turn_leave_before_the_others() {
    let net = Net::new(52);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(0)).await;
    for turn in 0..2 {
        call_together(&endpoint, turn).await;
        assert_eq!(next_frames(&endpoint).await.len(), FIRST_BATCH_FRAMES);
        let others = CALLS as usize - FIRST_BATCH_FRAMES;
        assert_eq!(next_frames(&endpoint).await.len(), others);
    }

    let (_peer, endpoint, channel) = raw_server(&Net::new(53), hello_with(0)).await;
    let client = ProbeClient::over(channel);
    let callers = (0..CALLS).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..3 {
                client.nothing().await.unwrap();
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for call in 0..CALLS {
        assert_eq!(next_frames(&endpoint).await, [(1, call)]);
    }
    let mut calls: Vec<_> = (0..CALLS).collect();
    for _ in 0..2 {
        let answers: Vec<_> = calls.iter().map(|call| frame(2, *call, &[])).collect();
        endpoint.send(batch(&answers)).await.unwrap();
        let mut first = next_frames(&endpoint).await;
        assert_eq!(first.len(), FIRST_BATCH_FRAMES);
        first.extend(next_frames(&endpoint).await);
        calls = first.into_iter().map(|(_, call)| call).collect();
        assert_eq!(calls.len(), CALLS as usize);
    }
    let answers: Vec<_> = calls.iter().map(|call| frame(2, *call, &[])).collect();
    endpoint.send(batch(&answers)).await.unwrap();
    join_all(callers)
        .await
        .into_iter()
        .for_each(|it| it.unwrap());
}

/// To a peer on the same processor, which could not work meanwhile, all of them leave together.
#[test]
fn on_one_processor_the_frames_of_a_turn_leave_together() {
    // In a thread of its own, which stays where it is.
    let pinned = std::thread::spawn(|| {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let net = Net::on(Backend::Epoll);
            let server = Server::new().add(ProbeServer::new(Handlers::default()));
            let (_channel, server) = testing::connect(&net, server).await.unwrap();
            let (_peer, endpoint) = raw_client(&net, server.local_addr(), hello_with(0)).await;
            for turn in 0..2 {
                call_together(&endpoint, turn).await;
                assert_eq!(next_frames(&endpoint).await.len(), CALLS as usize);
            }
        });
    });
    pinned.join().unwrap();
}

/// Callers whose answers come together are woken together, and call together; one alone does not
/// wait for others. What they cancel goes behind what they have called.
#[tokio::test(start_paused = true)]
async fn callers_that_are_woken_together_call_in_one_message() {
    let (_peer, endpoint, channel) = raw_server(&Net::new(51), hello_with(0)).await;
    let client = ProbeClient::over(channel);
    let callers: Vec<_> = (0..4_u64)
        .map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                client.nothing().await.unwrap();
                let second = client.nothing().into_future();
                match caller {
                    3 => drop(tokio::time::timeout(Duration::ZERO, second).await),
                    _ => second.await.unwrap(),
                }
            })
        })
        .collect();
    for call in 0..4 {
        assert_eq!(
            next_frames(&endpoint).await,
            [(1, call)],
            "at first each goes alone"
        );
    }
    let answers: Vec<_> = (0..4).map(|call| frame(2, call, &[])).collect();
    endpoint.send(batch(&answers)).await.unwrap();
    // The slot that was freed last is the next to be used.
    let next = [3, 2, 1, 0].map(|slot| (1, 1 << 16 | slot));
    let mut frames = next_frames(&endpoint).await;
    if frames.len() == 4 {
        // The last caller's time is over by now, or a little later.
        frames.extend(next_frames(&endpoint).await);
    }
    assert_eq!(frames[..4], next);
    assert_eq!(frames[4..], [(3, 1 << 16)]);
    let answers = next.map(|(_, call)| frame(2, call, &[]));
    for answer in answers {
        endpoint.send(answer).await.unwrap();
    }
    join_all(callers).await.into_iter().for_each(Result::unwrap);
    let alone = tokio::spawn(client.nothing().into_future());
    assert_eq!(next_frames(&endpoint).await, [(1, 2 << 16)]);
    // A batch whose second frame breaks the rules has ended the call of the first.
    let wrong = batch(&[frame(2, 2 << 16, &[]), frame(1, 0, &[])]);
    endpoint.send(wrong).await.unwrap();
    alone.await.unwrap().unwrap();
    let lost = client.nothing().await.unwrap_err();
    expect(&lost, Code::Unavailable, Started::NotStarted);
}
