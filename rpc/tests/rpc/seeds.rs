//! The same seed, the same run: the layer draws nothing that the network's seed does not decide.

use std::fmt::Debug;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_fabric::testing::{FaultPlan, Net};
use tokio_fabric_rpc::{
    Channel, Cx, Lend, Listening, Pull, Result, Server, Streaming, retry, service,
};
use tower::ServiceBuilder;

/// How many seeds are run, each twice, and how many in the campaigns (`docs/deep.md`).
const SEEDS: u64 = 50;
const SEEDS_DEEP: u64 = 200;
/// When the server crashes, and when it is back.
const CRASHES: [(u64, u64); 2] = [(40, 70), (260, 600)];
const CALLERS: u64 = 3;
/// More than a frame, more than is decoded in the task that reads, and less than both.
const LARGE: [usize; 3] = [70_000, 270_000, 5_000];

#[service]
trait Traced {
    #[rpc(idempotent)]
    async fn wait(&self, cx: &Cx, caller: u64, millis: u64) -> Result<u64>;
    async fn take(&self, cx: &Cx, caller: u64, bytes: Bytes) -> Result<usize>;
    async fn pull(&self, cx: &Cx, caller: u64, bytes: Pull) -> Result<usize>;
    async fn count(&self, cx: &Cx, caller: u64, to: u64) -> Result<Streaming<u64>>;
}

/// What has happened, with the virtual time.
#[derive(Clone)]
struct Trace {
    begin: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    fn add(&self, who: impl Debug, what: impl Debug) {
        let line = format!("{:?} {who:?}: {what:?}", self.begin.elapsed());
        self.lines.lock().unwrap().push(line);
    }
}

struct Handlers(Trace);

impl Traced for Handlers {
    async fn wait(&self, cx: &Cx, caller: u64, millis: u64) -> Result<u64> {
        let left = cx.deadline().map(|it| it - Instant::now());
        self.0.add(("wait", caller), left);
        sleep(Duration::from_millis(millis)).await;
        Ok(millis)
    }

    async fn take(&self, _: &Cx, caller: u64, bytes: Bytes) -> Result<usize> {
        self.0.add(("take", caller), bytes.len());
        Ok(bytes.len())
    }

    async fn pull(&self, _: &Cx, caller: u64, bytes: Pull) -> Result<usize> {
        let bytes = bytes.read(1 << 20).await?;
        self.0.add(("pull", caller), bytes.len());
        Ok(bytes.len())
    }

    async fn count(&self, _: &Cx, caller: u64, to: u64) -> Result<Streaming<u64>> {
        self.0.add(("count", caller), to);
        Ok(Streaming::of(0..to))
    }
}

async fn listen(net: &Net, trace: &Trace) -> Listening {
    let node = net.node("server");
    loop {
        let server = Server::new()
            .connections_max(8)
            .add(TracedServer::new(Handlers(trace.clone())));
        match server
            .fabric(&node.fabric().unwrap())
            .bind(node.addr(7000))
            .await
        {
            Ok(listening) => return listening,
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Makes calls of all kinds, some of them through the policy that retries.
async fn call(channel: Channel, caller: u64, trace: Trace) {
    let direct = TracedClient::over(channel.clone());
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let retried = direct.clone().layered(service);
    for turn in 0..4 {
        let who = (caller, turn);
        trace.add(who, retried.wait(caller, 3 + turn % 5).await);
        let at = if caller == 0 { turn } else { 2 };
        let large = Bytes::from(vec![1; LARGE[(at as usize).min(2)]]);
        trace.add(who, retried.take(caller, large).await);
        let lent = direct.pull(caller, Lend::read(vec![2; 6_000]));
        let pulled = lent.into_future().await;
        trace.add(who, pulled.map(|(len, bytes)| (len, bytes.len())));
        match direct.count(caller, 40).wait_for_ready().await {
            Ok(mut items) => {
                let mut sum = Ok(0);
                while let Some(item) = items.next().await {
                    sum = sum.and_then(|sum: u64| item.map(|item| sum + item));
                }
                trace.add(who, sum);
            }
            Err(status) => trace.add(who, status),
        }
        sleep(Duration::from_millis(40 + 20 * caller)).await;
    }
}

fn run(seed: u64) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let trace = Trace {
        begin: runtime.block_on(async { Instant::now() }),
        lines: Arc::default(),
    };
    runtime.block_on(crash_and_restart(seed, trace.clone()));
    drop(runtime);
    Arc::into_inner(trace.lines).map_or(vec![], |it| it.into_inner().unwrap())
}

async fn crash_and_restart(seed: u64, trace: Trace) {
    let faults = FaultPlan::seeded(seed).short_io(0.02);
    let net = Net::new(seed).faults(faults);
    let mut server = listen(&net, &trace).await;
    let fabric = net.node("client").fabric().unwrap();
    let to = net.node("server").addr(7000);
    let channel = loop {
        match Channel::builder().fabric(&fabric).connect(to).await {
            Ok(channel) => break channel,
            Err(status) => trace.add("connect", status),
        }
    };
    let calls: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(call(channel.clone(), caller, trace.clone())))
        .collect();
    for (crash, back) in CRASHES {
        tokio::time::sleep_until(trace.begin + Duration::from_millis(crash)).await;
        trace.add("server", server.method_stats().collect::<Vec<_>>());
        net.crash("server");
        drop(server);
        tokio::time::sleep_until(trace.begin + Duration::from_millis(back)).await;
        net.restart("server");
        server = listen(&net, &trace).await;
        channel.ready().await;
        trace.add("client", "connected anew");
    }
    for call in calls {
        call.await.unwrap();
    }
    trace.add("channel", channel.stats());
    trace.add("server", server.method_stats().collect::<Vec<_>>());
}

/// "All randomness and time under `testing::Net` come from its seed": a server crashes and comes
/// back while calls of all kinds are under way, twice with each seed.
#[test]
fn a_crash_and_a_restart_run_twice_are_the_same_run() {
    let is_deep = std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0");
    let seeds = if is_deep { SEEDS_DEEP } else { SEEDS };
    let mut first = None;
    let mut differ = 0;
    for seed in 0..seeds {
        let (one, again) = (run(seed), run(seed));
        assert!(one.len() > 60, "{one:#?}");
        for (one, again) in one.iter().zip(&again) {
            assert_eq!(one, again, "seed {seed}");
        }
        assert_eq!(one.len(), again.len(), "seed {seed}");
        differ += u64::from(first.get_or_insert_with(|| one.clone()) != &one);
    }
    // Another seed is another run.
    assert!(differ > seeds / 2, "{differ}");
}
