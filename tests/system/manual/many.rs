//! Many that wait at the same time.

use std::future::IntoFuture;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::{join_all, poll_immediate};
use futures::poll;
use tokio::task::JoinSet;
use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{Driver, Endpoint};

use super::{by_hand, on, plainly, round_trip};
use crate::common::backends;

/// fi_domain(3): "the user will synchronize progressing the data and control operations themselves"
/// That is not needed: tasks, and plain threads, that wait at the same time for connections of
/// one domain.
#[test]
fn who_waits_at_the_same_time_all_get_their_messages() {
    const ROUNDS: u64 = 200;
    async fn pairs(net: &Net) -> (Vec<(Endpoint, Endpoint)>, [Peer; 2]) {
        let peers = [net.peer().unwrap(), net.peer().unwrap()];
        let mut pairs = Vec::new();
        for _ in 0..2 {
            pairs.push(connect(&peers[0], &peers[1]).await.unwrap());
        }
        (pairs, peers)
    }
    for backend in backends() {
        on(2, async {
            let (pairs, _peers) = pairs(&by_hand(backend)).await;
            let both = |(x, y)| {
                [
                    tokio::spawn(talk(x, true, ROUNDS)),
                    tokio::spawn(talk(y, false, ROUNDS)),
                ]
            };
            let tasks = pairs.into_iter().flat_map(both);
            for ended in join_all(tasks).await {
                ended.unwrap();
            }
        });
        plainly(move || {
            let (pairs, _peers) = block_on(pairs(&by_hand(backend)));
            thread::scope(|scope| {
                for (x, y) in pairs {
                    scope.spawn(|| block_on(talk(x, true, ROUNDS)));
                    scope.spawn(|| block_on(talk(y, false, ROUNDS)));
                }
            });
        });
    }
}

/// One turn serves all tasks that have posted since the last, as a turn of a driver's task does.
#[test]
fn a_turn_serves_all_that_have_posted() {
    const TASKS: u64 = 32;
    const ROUNDS: u64 = 50;
    for backend in backends() {
        on(0, async {
            let net = by_hand(backend);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let (x, y) = connect(&a, &b).await.unwrap();
            let (mut asking, mut answering) = (JoinSet::new(), JoinSet::new());
            let before = a.domain.stats().driver.turns;
            for _ in 0..TASKS {
                asking.spawn(talk(x.clone(), true, ROUNDS));
                answering.spawn(talk(y.clone(), false, u64::MAX));
            }
            asking.join_all().await;
            let turns = a.domain.stats().driver.turns - before;
            let messages = TASKS * ROUNDS;
            assert!(
                turns < messages / 4,
                "{backend}: {turns} turns for {messages} messages"
            );
        });
    }
}

/// `Driver::Manual`: "A task that awaits an operation, ... drives the whole domain meanwhile", also
/// one that polls each of its futures once only, while another task keeps a future unpolled.
#[test]
fn futures_that_are_polled_once_get_their_messages_beside_one_that_is_kept() {
    for backend in backends() {
        on(0, async {
            let net = by_hand(backend);
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let (_v, kept) = connect(&a, &b).await.unwrap();
            let (x, y) = connect(&a, &b).await.unwrap();
            let mut unpolled = pin!(kept.recv(vec![0; 8]).into_future());
            assert!(poll!(&mut unpolled).is_pending());
            let polls_once = tokio::spawn(async move {
                loop {
                    let receive = y.recv(vec![0; 8]).into_future();
                    if let Some(received) = poll_immediate(receive).await {
                        return received;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            x.inject(b"for it").unwrap();
            let (received, bytes) = polls_once.await.unwrap().unwrap();
            assert_eq!(&bytes[..received.len], b"for it");
        });
    }
}

/// `Driver::Manual`: what is posted leaves at once where its socket has room, also when nothing
/// waits in its domain afterwards, and however many connections were at work before.
#[test]
fn what_is_posted_leaves_without_one_that_waits() {
    const CONNECTIONS: usize = 8;
    for backend in backends() {
        on(0, async {
            let net = by_hand(backend);
            let here = net.peer().unwrap();
            let there = net.driver(Driver::Task).peer().unwrap();
            let mut pairs = Vec::new();
            for _ in 0..CONNECTIONS {
                pairs.push(connect(&here, &there).await.unwrap());
            }
            for _ in 0..3 {
                for (_, theirs) in &pairs {
                    theirs.inject(b"question").unwrap();
                }
                // All of them have come, and are taken in one turn.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let received = pairs
                    .iter()
                    .map(|(ours, _)| ours.recv(vec![0; 8]).into_future());
                for received in join_all(received).await {
                    received.unwrap();
                }
                for (ours, _) in &pairs {
                    ours.inject(b"answer").unwrap();
                }
                for (_, theirs) in &pairs {
                    theirs.recv(vec![0; 8]).await.unwrap();
                }
            }
        });
    }
}

/// Begins round trips, or answers them.
async fn talk(endpoint: Endpoint, begins: bool, rounds: u64) {
    for _ in 0..rounds {
        if begins {
            round_trip(&endpoint, b"message").await;
        } else {
            let (received, bytes) = endpoint.recv(vec![0; 8]).await.unwrap();
            endpoint.inject(&bytes[..received.len]).unwrap();
        }
    }
}
