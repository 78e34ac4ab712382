//! Operations that go on without being awaited, and what becomes of those that are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_fabric::testing::connect_endpoints;
use tokio_fabric::{Access, Endpoint, error::Phase, info::AtomicOp};

use super::{counted, held_up, until};
use crate::common::on_every_backend;

/// The numbers that come until the connection ends.
async fn numbers(endpoint: &Endpoint) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok((received, bytes)) = endpoint.recv(vec![0; 8]).await {
        assert_eq!(received.len, 8);
        numbers.push(u64::from_le_bytes(bytes.try_into().unwrap()));
    }
    numbers
}

/// `Op::detach`: "A detached send is delivered as long as the connection lives, also during a
/// `shutdown` or when the endpoint is dropped", whether or not it has to wait for its turn.
#[test]
fn what_is_detached_is_delivered() {
    on_every_backend(|net| async move {
        for (transmits, shut) in [(256, true), (256, false), (8, true), (8, false)] {
            let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
            let a = us.domain.endpoint().transmit_size(transmits);
            let a = a.open().unwrap();
            let b = them.domain.endpoint().open().unwrap();
            connect_endpoints(&a, &b, &them.fabric).await.unwrap();
            let freed = Arc::new(AtomicUsize::new(0));
            for number in 0..100_u64 {
                let send = a.send(counted(&number.to_le_bytes(), &freed));
                match number % 2 {
                    0 => send.post().unwrap().detach(),
                    _ => send.detach().unwrap(),
                }
            }
            let end = async {
                if shut {
                    a.shutdown().await.unwrap();
                }
                drop(a);
            };
            let (numbers, ()) = tokio::join!(numbers(&b), end);
            let all: Vec<u64> = (0..100).collect();
            assert_eq!(numbers, all, "of {transmits} at once, shut down: {shut}");
            let freed_all = || freed.load(Ordering::Acquire) == 100;
            until("freed buffers", freed_all).await;
        }
    });
}

/// Ruling 4: of sends whose futures are dropped those come that had started, and no memory stays.
#[test]
fn what_is_dropped_is_delivered_if_it_had_started() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let freed = Arc::new(AtomicUsize::new(0));
        let mut started = Vec::new();
        for number in 0..100_u64 {
            let send = a.send(counted(&number.to_le_bytes(), &freed));
            let send = send.post().unwrap();
            if send.phase() > Phase::Queued {
                started.push(number);
            }
            drop(send);
        }
        let (numbers, end) = tokio::join!(numbers(&b), a.shutdown());
        end.unwrap();
        assert!(!started.is_empty(), "the first is sent within the call");
        for number in started {
            assert!(numbers.contains(&number), "{number} had started");
        }
        let freed_all = || freed.load(Ordering::Acquire) == 100;
        until("freed buffers", freed_all).await;
    });
}

/// Every kind of operation that is awaited can be detached: it does what it does, counters count
/// it, and its memory is freed at its end. A receive takes its message.
#[test]
fn every_kind_of_operation_can_be_detached() {
    on_every_backend(|net| async move {
        let (us, a, them, b) = held_up(&net, 8).await;
        let region = them.domain.register(vec![0; 64]).access(Access::all());
        let region = region.await.unwrap();
        let freed = Arc::new(AtomicUsize::new(0));
        let local = us.domain.register(vec![0; 8]).await.unwrap();
        // Nothing starts before the first message has been received.
        let blocker = a.send(vec![1; super::LARGE]).post().unwrap();
        let to = region.remote();
        a.write(counted(&[9; 8], &freed), to.slice(0..8).unwrap())
            .detach()
            .unwrap();
        a.read(local.slice(0..8).unwrap(), to.slice(0..8).unwrap())
            .detach()
            .unwrap();
        let queued = a.send(counted(b"queued", &freed)).queue(1);
        assert!(queued.post().is_err(), "there is no queue");
        b.recv(vec![0; super::LARGE]).await.unwrap();
        blocker.await.unwrap();
        a.send(counted(b"taken", &freed)).detach().unwrap();
        b.recv(vec![0; 8]).detach().unwrap();
        a.send("next").delivery_complete().detach().unwrap();
        let (next, bytes) = b.recv(vec![0; 8]).await.unwrap();
        assert_eq!(&bytes[..next.len], b"next");
        let read = || {
            let mut here = [0; 8];
            local.read_at(0, &mut here).unwrap();
            here == [9; 8]
        };
        until("the bytes read", read).await;
        until("freed buffers", || freed.load(Ordering::Acquire) == 3).await;
    });
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let memory = b.peer.domain.register(vec![0; 8]).access(Access::all());
        let memory = memory.await.unwrap();
        let op = a.endpoint.send_tagged("taken", a.other, 1).post().unwrap();
        op.detach();
        a.endpoint
            .atomic(AtomicOp::Sum, 5_u64, a.other, memory.remote())
            .detach()
            .unwrap();
        a.endpoint.send("last", a.other).detach().unwrap();
        b.endpoint.recv_tagged(vec![0; 8], 1).detach().unwrap();
        b.endpoint.recv(vec![0; 8]).await.unwrap();
        let added = || {
            let mut here = [0; 8];
            memory.read_at(0, &mut here).unwrap();
            u64::from_ne_bytes(here) == 5
        };
        until("the sum", added).await;
        // Detached when it has ended already, its message is gone, too.
        a.endpoint.send("gone", a.other).await.unwrap();
        let ended = b.endpoint.recv(vec![0; 8]).post().unwrap();
        until("its end", || ended.phase() == Phase::Ended).await;
        ended.detach();
        a.endpoint.send("left", a.other).detach().unwrap();
        let (left, bytes) = b.endpoint.recv(vec![0; 8]).await.unwrap();
        assert_eq!(&bytes[..left.len], b"left");
    });
}

/// `QueuedOp::detach`: one that waits for room goes on, and the queue has its end.
#[test]
fn a_queued_operation_that_is_detached_is_not_withdrawn() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = us.domain.completion_queue().size(1).open().unwrap();
        let a = us.domain.endpoint().transmit_queue(&queue).open().unwrap();
        let b = them.domain.endpoint().open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let fills = a.send("fills the queue").queue(1).post().unwrap();
        assert!(fills.is_accepted());
        let waits = a.send("waits").queue(2_u64).post().unwrap();
        assert!(!waits.is_accepted());
        waits.detach();
        for context in [1, 2] {
            assert_eq!(queue.next().await.unwrap().context.0, context);
            b.recv(vec![0; 20]).await.unwrap();
        }
    });
}
