//! Calls over a changing set of servers.

use std::collections::BTreeMap;
use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::mpsc::unbounded;
use tokio::time::{Instant, sleep, timeout};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    Balance, Call, Channel, Code, Cx, LayeredPath, Lend, Listening, Pull, Result, Server, Status,
    retry, service,
};
use tower::ServiceBuilder;
use tower::discover::Change;
use tower::retry::Retry;
use tower_service::Service;

use super::moving::Table;

#[service]
trait Work {
    #[rpc(idempotent)]
    async fn work(&self, cx: &Cx, millis: u64) -> Result<u64>;
    async fn sum(&self, cx: &Cx, bytes: Pull) -> Result<u64>;
}

/// A server that fails if it is set to.
#[derive(Clone, Default)]
struct Worker {
    fails: Arc<AtomicBool>,
    started: Arc<AtomicU64>,
}

impl Worker {
    fn started(&self) -> u64 {
        self.started.swap(0, Ordering::Relaxed)
    }
}

impl Work for Worker {
    async fn work(&self, _: &Cx, millis: u64) -> Result<u64> {
        self.started.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(Status::new(Code::Internal, "as it was set to"));
        }
        sleep(Duration::from_millis(millis)).await;
        Ok(millis)
    }

    async fn sum(&self, _: &Cx, bytes: Pull) -> Result<u64> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes.read(1 << 20).await?;
        Ok(bytes.iter().map(|it| u64::from(*it)).sum())
    }
}

/// A server in the network, and what it has done.
struct Member {
    worker: Worker,
    server: Listening,
}

async fn serve(net: &Net, node: &str) -> Member {
    let node = net.node(node);
    let worker = Worker::default();
    loop {
        let server = Server::new().connections_max(8);
        let server = server.add(WorkServer::new(worker.clone()));
        let server = server.fabric(&node.fabric().unwrap());
        match server.bind(node.addr(7000)).await {
            Ok(server) => return Member { worker, server },
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

async fn serve_all(net: &Net, nodes: &[&str]) -> (Vec<Member>, Vec<Channel>) {
    let (mut members, mut channels) = (Vec::new(), Vec::new());
    for node in nodes {
        let member = serve(net, node).await;
        channels.push(lazy(net, &member));
        members.push(member);
    }
    (members, channels)
}

fn lazy(net: &Net, member: &Member) -> Channel {
    let fabric = net.node("client").fabric().unwrap();
    let builder = Channel::builder().fabric(&fabric);
    builder.connect_lazy(member.server.local_addr()).unwrap()
}

fn balanced(channels: &[Channel]) -> (WorkClient<LayeredPath<Balance>>, Balance) {
    let balance = Balance::over(channels.iter().cloned());
    let client = WorkClient::over(channels[0].clone()).layered(balance.clone());
    (client, balance)
}

/// Makes calls one after the other, and counts how many fail.
async fn call(client: &WorkClient<LayeredPath<Balance>>, count: u32) -> u32 {
    let mut failed = 0;
    for _ in 0..count {
        failed += u32::from(client.work(1).await.is_err());
    }
    failed
}

fn started(members: &[Member]) -> Vec<u64> {
    members.iter().map(|it| it.worker.started()).collect()
}

/// "Least outstanding of two picks."
#[tokio::test(start_paused = true)]
async fn the_member_with_fewer_calls_gets_the_next() {
    let net = Net::new(60);
    let (members, channels) = serve_all(&net, &["one", "two"]).await;
    let (client, balance) = balanced(&channels);
    channels[0].ready().await;
    channels[1].ready().await;
    let other = WorkClient::over(channels[0].clone());
    let held: Vec<_> = (0..10)
        .map(|_| tokio::spawn(other.work(1000).into_future()))
        .collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(started(&members), [10, 0]);
    let calls: Vec<_> = (0..16)
        .map(|_| tokio::spawn(client.work(500).into_future()))
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // Ten make both equal, and the other six are shared.
    assert_eq!(started(&members), [3, 13]);
    assert_eq!(balance.stats().connected, 2);
    for call in held {
        call.await.unwrap().unwrap();
    }
    // Of many members each gets its part, by chance.
    let (members, channels) = serve_all(&net, &["a", "b", "c", "d"]).await;
    let (client, _) = balanced(&channels);
    for channel in &channels {
        channel.ready().await;
    }
    call(&client, 400).await;
    assert!(started(&members).iter().all(|it| (60..140).contains(it)));
}

/// "One that is draining gets nothing new", and no call fails.
#[tokio::test(start_paused = true)]
async fn a_member_that_drains_gets_nothing_new() {
    let net = Net::new(61);
    let (mut members, channels) = serve_all(&net, &["one", "two"]).await;
    let (client, balance) = balanced(&channels);
    channels[0].ready().await;
    channels[1].ready().await;
    let calls: Vec<_> = (0..8)
        .map(|_| tokio::spawn(client.work(100).into_future()))
        .collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(started(&members), [4, 4]);
    let drained = members.remove(0);
    let worker = drained.worker.clone();
    let draining = tokio::spawn(drained.server.drain(Duration::from_secs(5)));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(balance.stats().connected, 1);
    assert_eq!(call(&client, 100).await, 0);
    assert_eq!((worker.started(), members[0].worker.started()), (0, 100));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    draining.await.unwrap();
}

/// "Ejection of members that fail", for a time that doubles.
#[tokio::test(start_paused = true)]
async fn a_member_that_fails_is_ejected_and_comes_back() {
    let net = Net::new(62);
    let (members, channels) = serve_all(&net, &["one", "two", "three"]).await;
    let (client, balance) = balanced(&channels);
    for channel in &channels {
        channel.ready().await;
    }
    assert_eq!(call(&client, 100).await, 0);
    started(&members);
    members[1].worker.fails.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    assert_eq!(call(&client, 200).await, 5);
    assert_eq!(members[1].worker.started(), 5);
    assert_eq!((balance.stats().ejected, balance.stats().ejections), (1, 1));
    // It fails again when it is back, and is ejected for twice as long.
    while balance.stats().ejections == 1 {
        call(&client, 10).await;
    }
    assert!(
        begin.elapsed() > Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(members[1].worker.started(), 5);
    members[1].worker.fails.store(false, Ordering::Relaxed);
    let begin = Instant::now();
    while balance.stats().ejected == 1 {
        client.work(50).await.unwrap();
    }
    let took = begin.elapsed().as_millis();
    assert!((9_800..10_200).contains(&took), "{took} ms");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(call(&client, 100).await, 0);
    assert!(members[1].worker.started() > 10, "it has calls again");
}

/// At most half are ejected, and one that is alone is not.
#[tokio::test(start_paused = true)]
async fn half_of_the_members_are_kept_although_they_fail() {
    for (count, ejected) in [(1, 0), (2, 1), (3, 1), (4, 2)] {
        let net = Net::new(63);
        let nodes = &["one", "two", "three", "four"][..count];
        let (members, channels) = serve_all(&net, nodes).await;
        let (client, balance) = balanced(&channels);
        for member in &members {
            member.worker.fails.store(true, Ordering::Relaxed);
        }
        assert_eq!(call(&client, 100).await, 100);
        assert_eq!(balance.stats().ejected, ejected, "of {count}");
        // An ejected one is better than none.
        let last = members.iter().map(|it| it.worker.started());
        let first = last.collect::<Vec<_>>();
        let (ejected, kept): (Vec<_>, Vec<_>) = (0..count).partition(|at| first[*at] == 5);
        for (at, member) in members.into_iter().enumerate() {
            match kept.contains(&at) && !ejected.is_empty() {
                true => drop(member.server.drain(Duration::ZERO).await),
                false => std::mem::forget(member),
            }
        }
        let answer = timeout(Duration::from_secs(1), client.work(1).into_future());
        assert_eq!(answer.await.unwrap().unwrap_err().code(), Code::Internal);
    }
}

/// All calls of a connection fail by its loss: this is one failure of the member.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_one_failure() {
    let net = Net::new(64);
    let (_members, channels) = serve_all(&net, &["one", "two"]).await;
    let (client, balance) = balanced(&channels);
    channels[0].ready().await;
    channels[1].ready().await;
    let calls: Vec<_> = (0..40)
        .map(|_| tokio::spawn(client.work(100).into_future()))
        .collect();
    sleep(Duration::from_millis(10)).await;
    net.crash("one");
    let mut lost = 0;
    for call in calls {
        lost += u32::from(call.await.unwrap().is_err());
    }
    assert_eq!((lost, balance.stats().ejections), (20, 0));
    assert_eq!(call(&client, 10).await, 0);
}

/// "Slow start": a member that joins gets a tenth of its share at first, and all of it in the end.
#[tokio::test(start_paused = true)]
async fn the_share_of_a_member_that_joins_grows() {
    for (slow_start, expected) in [
        (10, [0.005..0.07, 0.07..0.25, 0.25..0.42]),
        (0, [0.25..0.42, 0.25..0.42, 0.25..0.42]),
    ] {
        let net = Net::new(65);
        let (mut members, channels) = serve_all(&net, &["one", "two"]).await;
        let (changes, discovered) = unbounded::<Result<_, Status>>();
        let balance = Balance::new(discovered).slow_start(Duration::from_secs(slow_start));
        let client = WorkClient::over(channels[0].clone()).layered(balance);
        for (at, channel) in channels.iter().enumerate() {
            let insert = Change::Insert(at, channel.clone());
            changes.unbounded_send(Ok(insert)).unwrap();
            channel.ready().await;
        }
        call(&client, 20).await;
        sleep(Duration::from_secs(10)).await;
        members.push(serve(&net, "three").await);
        let third = lazy(&net, &members[2]);
        changes
            .unbounded_send(Ok(Change::Insert(2, third.clone())))
            .unwrap();
        third.ready().await;
        let begin = Instant::now();
        call(&client, 20).await;
        for (second, expected) in [0, 4, 11].into_iter().zip(expected) {
            tokio::time::sleep_until(begin + Duration::from_secs(second)).await;
            started(&members);
            call(&client, 400).await;
            let share = members[2].worker.started() as f64 / 400.0;
            assert!(expected.contains(&share), "{share} after {second} s");
        }
    }
}

/// "Over a changing set": members come, go, and are replaced; calls that are outstanding go on.
#[tokio::test(start_paused = true)]
async fn the_set_changes_under_load() {
    let net = Net::new(66);
    let (members, channels) = serve_all(&net, &["one", "two", "three"]).await;
    let (changes, discovered) = unbounded::<Result<_, Status>>();
    let balance = Balance::new(discovered).slow_start(Duration::ZERO);
    let client = WorkClient::over(channels[0].clone()).layered(balance.clone());
    let change = |change| changes.unbounded_send(Ok(change)).unwrap();
    // Without members a call waits, and an error of the stream changes nothing.
    changes
        .unbounded_send(Err(Status::new(Code::Internal, "no list")))
        .unwrap();
    let first = tokio::spawn(client.work(200).into_future());
    sleep(Duration::from_secs(2)).await;
    assert!(!first.is_finished());
    change(Change::Insert("a", channels[0].clone()));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(started(&members), [1, 0, 0]);
    change(Change::Insert("b", channels[1].clone()));
    change(Change::Remove("a"));
    change(Change::Remove("unknown"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(call(&client, 50).await, 0);
    assert_eq!(started(&members), [0, 50, 0]);
    first.await.unwrap().unwrap();
    change(Change::Insert("b", channels[2].clone()));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(call(&client, 50).await, 0);
    assert_eq!(started(&members), [0, 0, 50]);
    assert_eq!(balance.stats().members, 1);
    // Once nothing will change any more, the set stays.
    drop(changes);
    assert_eq!(call(&client, 1).await, 0);
}

/// Each clone reserves room for its own calls, and a full window makes calls wait.
#[tokio::test(start_paused = true)]
async fn clones_reserve_room_of_their_own() {
    let net = Net::new(67);
    let (members, channels) = serve_all(&net, &["one"]).await;
    let (client, balance) = balanced(&channels);
    channels[0].ready().await;
    members[0].server.set_window(2, 1 << 20);
    sleep(Duration::from_millis(10)).await;
    let mut clones: Vec<_> = (0..3).map(|_| balance.clone()).collect();
    let mut poll = |at: usize| {
        let clone = &mut clones[at];
        let ready = poll_fn(|cx| Service::<Call<u64>>::poll_ready(clone, cx)).now_or_never();
        ready.map_or(Poll::Pending, Poll::Ready).is_ready()
    };
    assert_eq!([0, 1, 2, 0].map(&mut poll), [true, true, false, true]);
    drop(clones);
    let calls = (0..6).map(|_| client.work(10).into_future());
    let begin = Instant::now();
    assert!(
        futures::future::join_all(calls)
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert!(
        begin.elapsed() >= Duration::from_millis(30),
        "two at a time"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_that_lend_are_balanced_too() {
    let net = Net::new(68);
    let (members, channels) = serve_all(&net, &["one", "two"]).await;
    let (client, _) = balanced(&channels);
    for _ in 0..100 {
        let (sum, bytes) = client.sum(Lend::read(vec![1; 1000])).await.unwrap();
        assert_eq!((sum, bytes.len()), (1000, 1000));
    }
    assert!(started(&members).iter().all(|it| *it > 20));
    let (sum, _) = client
        .sum(Lend::read(Bytes::from_static(&[3])))
        .await
        .unwrap();
    assert_eq!(sum, 3);
}

type Retried = WorkClient<LayeredPath<Retry<retry::NotStarted, Balance>>>;

/// "A rolling restart of three servers behind names that change address under load: no failed
/// call." Each server drains, and its name moves to another address, where its successor starts a
/// while later. The same seed gives the same times of all calls.
#[test]
fn a_rolling_restart_behind_names_that_move_fails_no_call() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(restart_all(seed))
    };
    let mut times = run(69);
    assert_eq!(times, run(69));
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    println!("{} calls, p99 {p99:?}, max {:?}", times.len(), times.last());
    assert!(times.len() > 5_000, "{}", times.len());
    assert!(p99 <= Duration::from_millis(10), "{p99:?}");
}

/// Returns how long each call took.
async fn restart_all(seed: u64) -> Vec<Duration> {
    const NAMES: [&str; 3] = ["store-0", "store-1", "store-2"];
    let net = Net::new(seed);
    let table = Table::default();
    let mut members = BTreeMap::new();
    let mut channels = Vec::new();
    for name in NAMES {
        let member = serve(&net, &format!("{name}.0")).await;
        table.set(name, &[member.server.local_addr()]);
        members.insert(name, member);
        let fabric = net.node("client").fabric().unwrap();
        let builder = Channel::builder().fabric(&fabric).resolver(table.clone());
        channels.push(builder.connect_lazy(name).unwrap());
    }
    let balance = Balance::over(channels.iter().cloned());
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(balance);
    let client: Retried = WorkClient::over(channels[0].clone()).layered(service);
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..12_u64)
        .map(|caller| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    client.work(3 + caller % 4).await.expect("no call fails");
                    times.push(begin.elapsed());
                }
                times
            })
        })
        .collect();
    for round in 1..=2 {
        for name in NAMES {
            sleep(Duration::from_millis(500)).await;
            let last = members.remove(name).unwrap();
            let node = format!("{name}.{round}");
            table.set(name, &[net.node(&node).addr(7000)]);
            last.server.drain(Duration::from_secs(5)).await;
            sleep(Duration::from_millis(200)).await;
            members.insert(name, serve(&net, &node).await);
        }
    }
    sleep(Duration::from_millis(500)).await;
    assert!(members.values().all(|it| it.worker.started() > 0));
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    let connections: Vec<_> = channels.iter().map(|it| it.stats().connections).collect();
    assert_eq!(connections, [3, 3, 3]);
    times
}
