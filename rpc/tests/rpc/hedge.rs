//! Second attempts of calls that take long, and memory of attempts that are given up.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join;
use tokio::time::{Instant, sleep, timeout};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::limits::LAYERS_GRACE;
use tokio_fabric_rpc::{
    Balance, Channel, Code, Cx, FailedCall, Hedge, HedgeLayer, LayeredPath, Lend, Listening, Pull,
    Push, Result, Server, Started, Status, retry, service, testing,
};
use tower::ServiceBuilder;
use tower::retry::budget::TpsBudget;

use super::expect;

#[service]
trait Store {
    #[rpc(idempotent)]
    async fn read(&self, cx: &Cx) -> Result<u64>;
    async fn write(&self, cx: &Cx) -> Result<u64>;
    #[rpc(idempotent)]
    async fn sum(&self, cx: &Cx, bytes: Pull) -> Result<u64>;
    async fn fill(&self, cx: &Cx, into: Push) -> Result<()>;
}

/// A server whose handlers take a time that the test sets, and may fail then.
#[derive(Clone, Default)]
struct Worker {
    millis: Arc<AtomicU64>,
    fails: Arc<AtomicU64>,
    started: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

/// Counts handlers that are dropped before their end.
struct Guard<'a>(Option<&'a AtomicU64>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(dropped) = self.0 {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Worker {
    async fn work(&self) -> Result<u64> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let mut guard = Guard(Some(&self.dropped));
        let millis = self.millis.load(Ordering::Relaxed);
        sleep(Duration::from_millis(millis)).await;
        guard.0 = None;
        match self.fails.load(Ordering::Relaxed) {
            0 => Ok(millis),
            number => Err(Status::application(number as u32, "as it was set to")),
        }
    }
}

impl Store for Worker {
    async fn read(&self, _: &Cx) -> Result<u64> {
        self.work().await
    }
    async fn write(&self, _: &Cx) -> Result<u64> {
        self.work().await
    }
    async fn sum(&self, _: &Cx, bytes: Pull) -> Result<u64> {
        self.work().await?;
        let bytes = bytes.read(1 << 20).await?;
        Ok(bytes.iter().map(|it| u64::from(*it)).sum())
    }
    async fn fill(&self, _: &Cx, into: Push) -> Result<()> {
        self.work().await?;
        into.write(vec![9; into.len() as usize]).await.map(drop)
    }
}

type Hedged = StoreClient<LayeredPath<Hedge<Balance>>>;

/// Two servers, of which the first takes a second.
struct Pair {
    client: Hedged,
    workers: [Worker; 2],
    channels: [Channel; 2],
    _servers: [Listening; 2],
}

async fn pair(layer: HedgeLayer) -> Pair {
    let (slow, fast) = (Worker::default(), Worker::default());
    slow.millis.store(1000, Ordering::Relaxed);
    fast.millis.store(1, Ordering::Relaxed);
    let (one, first) = testing::pair(StoreServer::new(slow.clone())).await.unwrap();
    let (two, second) = testing::pair(StoreServer::new(fast.clone())).await.unwrap();
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(Balance::over([one.clone(), two.clone()]));
    Pair {
        client: StoreClient::over(one.clone()).layered(service),
        workers: [slow, fast],
        channels: [one, two],
        _servers: [first, second],
    }
}

impl Pair {
    fn started(&self) -> [u64; 2] {
        [&self.workers[0], &self.workers[1]].map(|it| it.started.swap(0, Ordering::Relaxed))
    }
}

fn unlimited() -> Arc<TpsBudget> {
    Arc::new(TpsBudget::new(Duration::from_secs(10), 1000, 1.0))
}

const DELAY: Duration = Duration::from_millis(20);

/// "A second attempt after a delay", which overtakes the first, whose handler is dropped.
#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_is_overtaken_by_a_second_attempt() {
    let pair = pair(HedgeLayer::after(DELAY).budget(unlimited())).await;
    for _ in 0..40 {
        let begin = Instant::now();
        assert_eq!(pair.client.read().await.unwrap(), 1);
        assert!(begin.elapsed() < DELAY + Duration::from_millis(5));
    }
    let [slow, fast] = pair.started();
    assert_eq!(fast, 40);
    assert!(slow > 5, "{slow}");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(pair.workers[0].dropped.load(Ordering::Relaxed), slow);
    // What may not be made twice is made once.
    let begin = Instant::now();
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begin = Instant::now();
        pair.client.write().await.unwrap();
        slowest = slowest.max(begin.elapsed());
    }
    assert!(slowest >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(pair.started().iter().sum::<u64>(), 20);
}

/// "Budgeted."
#[tokio::test(start_paused = true)]
async fn second_attempts_are_a_small_share_of_the_calls() {
    for (budget, least, most) in [(true, 5, 40), (false, 0, 0)] {
        let layer = HedgeLayer::after(DELAY);
        let none = TpsBudget::new(Duration::from_secs(10), 0, 0.0);
        let pair = pair(if budget {
            layer
        } else {
            layer.budget(Arc::new(none))
        })
        .await;
        for worker in &pair.workers {
            worker.millis.store(50, Ordering::Relaxed);
        }
        for _ in 0..200 {
            pair.client.read().await.unwrap();
        }
        let more = pair.started().iter().sum::<u64>() - 200;
        assert!((least..=most).contains(&more), "{more}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_delay_is_returned_and_a_later_one_is_not_if_the_other_succeeds() {
    let pair = pair(HedgeLayer::after(DELAY).budget(unlimited())).await;
    let [one, two] = &pair.workers;
    // At once.
    for worker in [one, two] {
        worker.millis.store(1, Ordering::Relaxed);
        worker.fails.store(7, Ordering::Relaxed);
    }
    let failed = pair.client.read().await.unwrap_err();
    assert_eq!(failed.code(), Code::Application(7));
    assert_eq!(pair.started().iter().sum::<u64>(), 1);
    // One of the two attempts fails: the first or the second.
    one.millis.store(30, Ordering::Relaxed);
    two.millis.store(60, Ordering::Relaxed);
    two.fails.store(0, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(pair.client.read().await.unwrap(), 60);
    }
    assert_eq!(pair.started(), [10, 10]);
    // Both do.
    two.fails.store(8, Ordering::Relaxed);
    let mut codes: Vec<_> = Vec::new();
    for _ in 0..10 {
        codes.push(pair.client.read().await.unwrap_err().code());
    }
    assert!(codes.contains(&Code::Application(7)) && codes.contains(&Code::Application(8)));
    // The deadline is that of both.
    one.millis.store(1000, Ordering::Relaxed);
    two.millis.store(1000, Ordering::Relaxed);
    let begin = Instant::now();
    let within = Duration::from_millis(100);
    let late = pair.client.read().with(|call| call.deadline(within)).await;
    expect(
        &late.unwrap_err(),
        Code::DeadlineExceeded,
        Started::MaybeRan,
    );
    assert_eq!(begin.elapsed(), within);
}

/// "Or percentile."
#[tokio::test(start_paused = true)]
async fn the_delay_may_be_a_percentile_of_the_calls_of_the_method() {
    let pair = pair(HedgeLayer::percentile(0.9).budget(unlimited())).await;
    let set = |millis: [u64; 2]| {
        for (worker, millis) in pair.workers.iter().zip(millis) {
            worker.millis.store(millis, Ordering::Relaxed);
        }
    };
    for call in 0..25 {
        set([10 + call % 5; 2]);
        pair.client.read().await.unwrap();
    }
    // Of the first 20 calls none was hedged, and of the next few at most the slowest.
    let extra = pair.started().iter().sum::<u64>() - 25;
    assert!(extra <= 1, "{extra}");
    set([1000, 1]);
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(pair.client.read().await.unwrap(), 1);
        let took = begin.elapsed().as_millis();
        assert!(took < 20, "{took} ms");
    }
    assert!(pair.started()[0] > 3);
}

/// Calls that lend shared memory are hedged, and nothing of it stays registered.
#[tokio::test(start_paused = true)]
async fn a_call_that_lends_shared_memory_is_hedged() {
    let pair = pair(HedgeLayer::after(DELAY).budget(unlimited())).await;
    let bytes = Bytes::from(vec![2; 100_000]);
    for _ in 0..20 {
        let begin = Instant::now();
        let (sum, same) = pair.client.sum(Lend::read(bytes.clone())).await.unwrap();
        assert_eq!((sum, same.as_ptr()), (200_000, bytes.as_ptr()));
        assert!(begin.elapsed() < DELAY + Duration::from_millis(5));
    }
    assert!(pair.started()[0] > 3);
    sleep(Duration::from_secs(2)).await;
    for channel in &pair.channels {
        assert_eq!(
            (channel.domain().region_count(), channel.open_calls()),
            (0, 0)
        );
    }
    assert!(bytes.is_unique(), "all clones are back");
}

/// "Retries of calls whose lent memory can be cloned."
#[tokio::test(start_paused = true)]
async fn a_call_that_lends_shared_memory_is_retried() {
    let worker = Worker::default();
    worker.millis.store(30, Ordering::Relaxed);
    let server = Server::new()
        .add(StoreServer::new(worker.clone()))
        .calls_max(1);
    let (channel, _server) = testing::connect(&Net::new(71), server).await.unwrap();
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let direct = StoreClient::over(channel.clone());
    let client = direct.clone().layered(service);
    let holds = tokio::spawn(direct.read().into_future());
    sleep(Duration::from_millis(5)).await;
    let (sum, _) = client
        .sum(Lend::read(Bytes::from(vec![1; 9])))
        .await
        .unwrap();
    assert_eq!(sum, 9);
    holds.await.unwrap().unwrap();
    assert!(channel.stats().not_started >= 1);
}

/// "The deadline of a call covers all its attempts": of one that lends memory too, whatever layers
/// wait for the server that died, and of one that was about to be made again. It may have run.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_made_again_ends_at_its_deadline() {
    let limit = Duration::from_millis(500);
    for layers in 0..4 {
        let net = Net::new(73);
        let node = net.node("server");
        let worker = Worker::default();
        worker.millis.store(200, Ordering::Relaxed);
        let server = Server::new().add(StoreServer::new(worker.clone()));
        let server = server.fabric(&node.fabric().unwrap()).bind(node.addr(7000));
        let server = server.await.unwrap();
        let fabric = net.node("client").fabric().unwrap();
        let builder = Channel::builder().fabric(&fabric);
        let channel = builder.connect(server.local_addr()).await.unwrap();
        let client = StoreClient::over(channel.clone());
        let (again, balance) = (retry::NotStarted::new(), Balance::over([channel.clone()]));
        let hedge = HedgeLayer::after(DELAY).budget(unlimited());
        let builder = ServiceBuilder::new();
        macro_rules! end {
            ($service:expr) => {{
                let client = client.layered($service);
                tokio::spawn(async move {
                    let lends = client.sum(Lend::read(Bytes::from(vec![1; 100_000])));
                    let plain = client.read().with(|it| it.deadline(limit));
                    let lends = lends.with(|it| it.deadline(limit)).into_future();
                    let (lends, plain) = join(lends, plain.into_future()).await;
                    (lends.unwrap_err(), plain.unwrap_err(), Instant::now())
                })
            }};
        }
        let begun = Instant::now();
        let ends = match layers {
            0 => end!(builder.retry(again).service(channel.service())),
            1 => end!(builder.retry(again).service(balance)),
            2 => end!(builder.layer(hedge).service(balance)),
            _ => end!(builder.retry(again).layer(hedge).service(channel.service())),
        };
        sleep(Duration::from_millis(100)).await;
        assert!(worker.started.load(Ordering::Relaxed) >= 2);
        net.crash("server");
        let (lends, plain, ended) = ends.await.unwrap();
        let took = ended - begun;
        assert!(
            took <= limit + Duration::from_millis(2),
            "{layers}: {took:?}"
        );
        for status in [lends.error(), &plain] {
            assert!(!status.is_not_started(), "{layers}: {status}");
        }
        if layers < 2 {
            expect(&plain, Code::DeadlineExceeded, Started::MaybeRan);
            assert!(plain.to_string().contains("connection refused"), "{plain}");
        }
        let buffers = lends.into_parts().1;
        assert_eq!(buffers.map(|it| it.len()), Some(100_000), "{layers}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(channel.domain().region_count(), 0);
    }
}

/// A layer that keeps a call keeps the memory that it lends, and not the caller.
#[tokio::test(start_paused = true)]
async fn a_call_that_layers_keep_ends_soon_after_its_deadline() {
    let net = Net::new(74);
    let fabric = net.node("client").fabric().unwrap();
    let builder = Channel::builder().fabric(&fabric);
    let channel = builder
        .connect_lazy(net.node("nowhere").addr(7000))
        .unwrap();
    let service = ServiceBuilder::new().buffer(4).service(channel.service());
    let client = StoreClient::over(channel).layered(service);
    let begun = Instant::now();
    let lends = client.sum(Lend::read(Bytes::from_static(&[1; 9])));
    let limit = Duration::from_millis(500);
    let failed = lends.with(|it| it.deadline(limit)).await.unwrap_err();
    let failed = failed.downcast::<FailedCall<Bytes>>().unwrap();
    expect(failed.error(), Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(begun.elapsed(), limit + LAYERS_GRACE);
    assert_eq!(failed.into_parts().1, None);
}

/// "`cancel().await` gives lent memory back": the same buffer, which no peer writes to any more.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_gives_its_memory_back() {
    let worker = Worker::default();
    worker.millis.store(100, Ordering::Relaxed);
    let (channel, _server) = testing::pair(StoreServer::new(worker.clone()))
        .await
        .unwrap();
    let client = StoreClient::over(channel.clone());
    let buffer = vec![0; 200_000];
    let at = buffer.as_ptr();
    let mut call = client.fill(Lend::write(buffer)).into_future();
    assert!(timeout(DELAY, &mut call).await.is_err());
    let begin = Instant::now();
    let buffer = call.cancel().await.expect("it is back");
    assert_eq!((begin.elapsed(), buffer.as_ptr()), (Duration::ZERO, at));
    assert_eq!(channel.domain().region_count(), 0);
    sleep(Duration::from_secs(1)).await;
    assert!(buffer.iter().all(|it| *it == 0));
    assert_eq!(worker.dropped.load(Ordering::Relaxed), 1);
    // Before it has begun, and after it has ended.
    let call = client.fill(Lend::write(buffer)).into_future();
    let buffer = call.cancel().await.expect("it was not lent");
    let mut call = client.fill(Lend::write(buffer)).into_future();
    let ((), buffer) = (&mut call).await.unwrap();
    assert_eq!((buffer[0], call.cancel().await), (9, None));
    assert_eq!(worker.started.load(Ordering::Relaxed), 2);
    assert_eq!(channel.stats().dropped, 1);
}

/// The peer need not do anything for that: it may be cut off.
#[tokio::test(start_paused = true)]
async fn memory_comes_back_from_a_peer_that_is_cut_off() {
    let net = Net::new(72);
    let node = net.node("server");
    let worker = Worker::default();
    worker.millis.store(100, Ordering::Relaxed);
    let server = Server::new().add(StoreServer::new(worker));
    let server = server.fabric(&node.fabric().unwrap()).bind(node.addr(7000));
    let server = server.await.unwrap();
    let fabric = net.node("client").fabric().unwrap();
    let channel = Channel::builder()
        .fabric(&fabric)
        .connect(server.local_addr());
    let client = StoreClient::over(channel.await.unwrap());
    let mut call = client.fill(Lend::write(vec![0; 5000])).into_future();
    assert!(timeout(DELAY, &mut call).await.is_err());
    net.partition("server", "client");
    let begin = Instant::now();
    assert_eq!(call.cancel().await, Some(vec![0; 5000]));
    assert!(
        begin.elapsed() < Duration::from_millis(1),
        "{:?}",
        begin.elapsed()
    );
}
