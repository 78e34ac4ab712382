//! Tokio's cooperative budget: a task for which everything has always ended already by the time it
//! awaits it starves no other task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{backends, on_threads};
use tokio_fabric::error::Phase;
use tokio_fabric::testing::{Net, connect_endpoints};

/// More than Tokio lets a task do before others have their turn.
const MANY: usize = 300;

/// Whether another task of the same thread has a turn while this work is done.
async fn others_have_a_turn(work: impl Future<Output = ()>) -> bool {
    let turn = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&turn);
    let other = tokio::spawn(async move { theirs.store(true, Ordering::Release) });
    work.await;
    let had = turn.load(Ordering::Acquire);
    other.await.unwrap();
    had
}

/// Operations that have ended before they are awaited.
#[test]
fn awaiting_ended_operations_lets_others_run() {
    // One thread: with more of them others may run, and need not yet.
    for backend in backends() {
        on_threads(0, backend, async |net| {
            let (a, b) = net.pair().await.unwrap();
            let mut posted = Vec::new();
            for _ in 0..MANY {
                let receive = b.recv(vec![0; 8]).post().unwrap();
                posted.push(a.send(vec![7; 8]).post().unwrap());
                while receive.phase() != Phase::Ended
                    || posted.last().unwrap().phase() != Phase::Ended
                {
                    tokio::task::yield_now().await;
                }
            }
            tokio::task::yield_now().await;
            let awaited = others_have_a_turn(async {
                for operation in posted {
                    operation.await.unwrap();
                }
            });
            assert!(awaited.await);
        });
    }
}

/// Operations that are accepted at once, whose ends are for a queue.
#[tokio::test]
async fn awaiting_acceptance_lets_others_run() {
    let net = Net::loopback();
    let peer = net.peer().unwrap();
    let queue = peer.domain.completion_queue().size(2 * MANY);
    let queue = queue.open().unwrap();
    let other = net.peer().unwrap();
    let endpoint = peer.domain.endpoint().receive_size(2 * MANY);
    let endpoint = endpoint.completion_queue(&queue).open().unwrap();
    let theirs = other.domain.endpoint().open().unwrap();
    connect_endpoints(&endpoint, &theirs, &other.fabric)
        .await
        .unwrap();
    let awaited = others_have_a_turn(async {
        for context in 0..MANY {
            let receive = endpoint.recv(vec![0; 8]);
            receive.queue(context as u64).await.unwrap();
        }
    });
    assert!(awaited.await);
}

/// Registrations without anything to wait for.
#[tokio::test]
async fn registering_lets_others_run() {
    let peer = Net::loopback().peer().unwrap();
    let domain = peer.fabric.domain().open().unwrap();
    let registered = others_have_a_turn(async {
        for _ in 0..MANY {
            domain.register(vec![0; 64]).await.unwrap();
        }
    });
    assert!(registered.await);
}

/// Addresses, whose insertion waits for nothing.
#[tokio::test]
async fn inserting_addresses_lets_others_run() {
    let peer = Net::loopback().peer().unwrap();
    let vector = peer.domain.address_vector().open().unwrap();
    let inserted = others_have_a_turn(async {
        for port in (1u16..).take(MANY) {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            vector.insert(address).await.unwrap();
        }
    });
    assert!(inserted.await);
}
