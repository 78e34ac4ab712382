//! A ledger kept by the test: mixed operations on several connections, cancelled, dropped and
//! leaked in every state, under seeded faults and one `kill -9`. Every posted operation is seen to
//! end exactly once, and every payload arrives as it was sent.
//!
//! `TOKIO_FABRIC_SEED=n` replays a campaign's choices. `TOKIO_FABRIC_DEEP=1` posts 5,000,000
//! operations on each backend instead of 25,000; use it with `--release`.
//! `TOKIO_FABRIC_OPERATIONS=n` is the number of each backend's operations instead.

mod book;
mod lane;
mod payload;
mod pending;
mod side;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::child::PeerProcess;
use lane::Totals;
use side::{Habits, LedgerEndpoint};
use tokio_fabric::testing::{FaultPlan, Net};
use tokio_fabric::{Backend, Event, RemoteRegion};

/// Operations of one backend's campaign.
fn operations() -> usize {
    if let Ok(text) = std::env::var("TOKIO_FABRIC_OPERATIONS") {
        return text.parse().expect("TOKIO_FABRIC_OPERATIONS is a number");
    }
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => 5_000_000,
        _ => 25_000,
    }
}

/// The networks of a campaign, one per lane: none is as bad as another.
fn networks(make: impl Fn() -> Net, seed: u64) -> Vec<(Net, Habits)> {
    let micros = Duration::from_micros;
    let plan = |lane: u64| FaultPlan::seeded(seed ^ (lane << 32));
    let careful = Habits {
        leaks_receives: false,
    };
    let careless = Habits {
        leaks_receives: true,
    };
    let net = |plan| make().faults(plan);
    vec![
        (make(), careful),
        (net(plan(1).short_io(0.2)), careful),
        (
            net(plan(2).short_io(0.1).delay(micros(0)..=micros(300))),
            careful,
        ),
        (
            net(plan(3).short_io(0.1).cut_after_bytes(100_000..=6_000_000)),
            careful,
        ),
        (
            net(plan(4)
                .delay(micros(0)..=micros(200))
                .cut_after_bytes(0..=4_000_000)),
            careful,
        ),
        (net(plan(5).short_io(0.05)), careless),
    ]
}

async fn campaign(make: impl Fn() -> Net, seed: u64) -> Totals {
    let networks = networks(make, seed);
    let each = operations().div_ceil(networks.len());
    let mut lanes = tokio::task::JoinSet::new();
    for (number, (net, habits)) in (1..).zip(networks) {
        lanes.spawn(lane::run(net, number, seed, each, habits));
    }
    let mut totals = Totals::default();
    while let Some(lane) = lanes.join_next().await {
        totals.add(lane.expect("a lane ends in order"));
    }
    totals
}

/// Some campaigns: how often a state is met depends on the moment, over sockets, and one campaign
/// may meet the rarest too seldom.
async fn campaigns(make: impl Fn() -> Net, seed: u64) -> Totals {
    let mut totals = Totals::default();
    for further in 0..4 {
        totals.add(campaign(&make, seed.wrapping_add(further)).await);
        match seldom(&totals) {
            None => break,
            Some(what) => println!("another campaign, for {what}"),
        }
    }
    totals
}

fn check(totals: &Totals, took: Duration) {
    println!("{totals:#?}, {took:?}");
    assert!(totals.posted >= operations());
    assert!(totals.lost > 2, "faults cut connections");
    assert!(totals.compared > totals.posted / 10);
    assert_eq!(seldom(totals), None);
}

/// What has not been met often enough: every state is, by each kind of interference.
fn seldom(totals: &Totals) -> Option<String> {
    let states = ["waiting", "queued", "moving", "awaiting peer", "ended"];
    let met = ["cancel", "drop", "leak"].map(|what| {
        let least = if what == "leak" { 5 } else { 25 };
        states.map(|state| ((what, state), least))
    });
    let queued = ["cancel queued", "drop queued", "leak queued"];
    let queued = queued.map(|what| ((what, "waiting"), 20));
    let all = met.into_iter().flatten().chain(queued);
    let all = all.chain([(("time out", "any"), 101)]);
    let mut counts = all.map(|(met, least)| {
        let count = totals.touched.get(&met).copied().unwrap_or(0);
        (count < least).then(|| format!("{met:?}: only {count}"))
    });
    counts.find_map(|it| it)
}

/// Every accepted operation "ends exactly once: done, peer gone, cancelled, or refused with a
/// reason", whatever happens to its future and its connection; payloads arrive as they were sent.
#[test]
fn every_operation_ends_exactly_once_over_loopback() {
    let seed = crate::common::seed::seed("ledger over loopback");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let started = Instant::now();
    // Time stands still while anything can be done: this limit is met by a hang alone.
    let limit = Duration::from_secs(24 * 3600);
    let totals = runtime
        .block_on(async {
            tokio::time::timeout(limit, campaigns(|| Net::on(Backend::Loopback), seed)).await
        })
        .expect("the campaign hangs");
    check(&totals, started.elapsed());
}

/// The same over sockets, on a runtime with several threads.
#[test]
fn every_operation_ends_exactly_once_over_sockets() {
    over_sockets(
        || Net::on(Backend::Epoll),
        crate::common::seed::seed("ledger over sockets"),
    );
}

/// The same where the kernel moves the bytes by itself: what is cancelled, dropped or leaked may be
/// in its hands.
#[test]
fn every_operation_ends_exactly_once_over_io_uring() {
    if crate::common::backends().contains(&Backend::IoUring) {
        over_sockets(
            || Net::on(Backend::IoUring),
            crate::common::seed::seed("ledger over io_uring"),
        );
    }
}

/// The same within TLS: what goes wrong on the wire goes wrong with its records.
#[cfg(feature = "tls")]
#[test]
fn every_operation_ends_exactly_once_over_tls() {
    let tls = crate::common::tls::Node::new().config();
    let backends = crate::common::backends().into_iter();
    for backend in backends.filter(|it| *it != Backend::Loopback) {
        over_sockets(
            || Net::on(backend).tls(tls.clone()),
            crate::common::seed::seed("ledger over TLS"),
        );
    }
}

fn over_sockets(make: impl Fn() -> Net, seed: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let started = Instant::now();
    // Long enough for a busy machine: more is a hang.
    let limit = Duration::from_secs(240 + operations() as u64 / 400);
    let totals = runtime
        .block_on(async { tokio::time::timeout(limit, campaigns(make, seed)).await })
        .expect("the campaign hangs");
    check(&totals, started.elapsed());
}

const CONNECTIONS: u64 = 4;

/// `kill -9` of a peer in the middle of everything: "After `kill -9` of the peer everything bound
/// to it ends at once", each operation once, then one Shutdown per endpoint.
#[test]
fn every_operation_ends_exactly_once_when_the_peer_is_killed() {
    killed_in_the_middle(&[], Net::on(Backend::Epoll));
}

/// The same within TLS, whose stream then ends without the peer's word.
#[cfg(feature = "tls")]
#[test]
fn every_operation_ends_exactly_once_when_a_tls_peer_is_killed() {
    use crate::common::tls::{Node, VARIABLE};
    let node = Node::new();
    let net = Net::on(Backend::Epoll).tls(node.config());
    killed_in_the_middle(&[(VARIABLE, node.to_text())], net);
}

fn killed_in_the_middle(variables: &[(&str, String)], net: Net) {
    let seed = crate::common::seed::seed("ledger with kill -9");
    let seeded = [("TOKIO_FABRIC_SEED", seed.to_string())];
    let variables: Vec<_> = seeded.into_iter().chain(variables.to_vec()).collect();
    let (peer, address) = PeerProcess::start("ledger::the_peer_that_is_killed", &variables);
    let address: SocketAddr = address.parse().unwrap();
    let peer = Arc::new(std::sync::Mutex::new(peer));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ours = net.peer().unwrap();
        let running = Arc::new(AtomicUsize::new(0));
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..CONNECTIONS {
            let habits = Habits {
                leaks_receives: lane == 3,
            };
            let mut side = LedgerEndpoint::open(&ours, lane << 48, seed, habits).unwrap();
            let (peer, running) = (Arc::clone(&peer), Arc::clone(&running));
            lanes.spawn(async move {
                let data = side.region.remote().to_bytes();
                let theirs = side.endpoint.connect(address).data(data).await.unwrap();
                side.meet(RemoteRegion::from_bytes(&theirs).unwrap(), None);
                assert!(side.run(1000).await, "no process was killed yet");
                if running.fetch_add(1, Ordering::AcqRel) + 1 == CONNECTIONS as usize {
                    peer.lock().unwrap().kill();
                }
                assert!(
                    !side.run(usize::MAX).await,
                    "a dead peer takes no operations"
                );
                // Its end is reported without another call to the endpoint.
                let end = async {
                    side.close_account().await;
                    while !side.events.is_empty() {
                        match side.events.next().await {
                            Some(Event::Shutdown { endpoint, .. }) => return endpoint,
                            Some(Event::Connected { .. }) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                    panic!("operations have ended, and no Shutdown came")
                };
                let endpoint = tokio::time::timeout(Duration::from_secs(20), end)
                    .await
                    .unwrap();
                assert_eq!(endpoint, side.endpoint.id());
                assert!(side.events.is_empty());
                let mut totals = Totals::default();
                totals.take(&side);
                totals
            });
        }
        let mut totals = Totals::default();
        while let Some(lane) = lanes.join_next().await {
            totals.add(lane.expect("a lane ends in order"));
        }
        println!("{totals:#?}");
        assert!(totals.posted >= 4000 && totals.compared > 400);
    });
}

/// The other process: takes part until it is killed.
#[test]
#[ignore = "the other process of another test"]
fn the_peer_that_is_killed() {
    crate::common::child::end_with_the_parent();
    let seed = crate::common::seed::seed("the peer that is killed");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::on(Backend::Epoll);
        #[cfg(feature = "tls")]
        let net = match crate::common::tls::Node::of_the_parent() {
            Some(node) => net.tls(node.config()),
            None => net,
        };
        let ours = net.peer().unwrap();
        let requests = ours.fabric.event_queue().open().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = ours
            .fabric
            .passive_endpoint(&requests)
            .listen_at(any)
            .unwrap();
        crate::common::child::say(listener.local_addr());
        for lane in 0.. {
            let Some(Event::ConnRequest(request)) = requests.next().await else {
                panic!()
            };
            let theirs = RemoteRegion::from_bytes(request.data()).unwrap();
            let habits = Habits {
                leaks_receives: false,
            };
            let mut side =
                LedgerEndpoint::open(&ours, (lane << 48) | (1 << 47), seed, habits).unwrap();
            side.meet(theirs, None);
            tokio::spawn(async move {
                let data = side.region.remote().to_bytes();
                side.endpoint.accept(request).data(data).await.unwrap();
                side.run(usize::MAX).await;
            });
        }
    });
}
