//! Handlers that call others: what ends with them, and what their callers learn of it.

use std::future::IntoFuture;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::{FutureExt, stream};
use tokio_fabric_rpc::{
    Code, Cx, Listening, Pull, Result, Server, Started, Status, Streaming, service, testing,
};

use super::{ProbeClient, Seen, expect, probe_with, until_closed_calls};

#[service]
trait Front {
    /// Calls `Probe/wait`, and has no end before that.
    async fn wait(&self, cx: &Cx) -> Result<()>;
    /// The same in a task that goes on.
    async fn wait_shielded(&self, cx: &Cx, millis: u64) -> Result<()>;
    /// Says `Probe/nothing`, and passes on how that ends.
    async fn pass(&self, cx: &Cx) -> Result<()>;
    /// The same as the error of a stream.
    async fn pass_stream(&self, cx: &Cx) -> Result<Streaming<u64>>;
    async fn sum(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<u64>;
    /// The sum of what is lent, times each number.
    async fn scale(&self, cx: &Cx, data: Pull, by: Streaming<u64>) -> Result<Vec<u64>>;
}

struct Proxy {
    back: OnceLock<ProbeClient>,
    seen: Arc<Seen>,
}

impl Proxy {
    fn back(&self) -> &ProbeClient {
        self.back.get().expect("set before the first call")
    }
}

impl Front for Arc<Proxy> {
    async fn wait(&self, _: &Cx) -> Result<()> {
        self.back().wait(None).no_deadline().await
    }

    async fn wait_shielded(&self, cx: &Cx, millis: u64) -> Result<()> {
        let (back, seen) = (self.back().clone(), Arc::clone(&self.seen));
        let part = async move {
            let end = back.wait(Some(millis)).await;
            seen.add(&seen.ended);
            end
        };
        cx.shield(part).await
    }

    async fn pass(&self, _: &Cx) -> Result<()> {
        self.seen.add(&self.seen.started);
        self.back().nothing().await
    }

    async fn pass_stream(&self, _: &Cx) -> Result<Streaming<u64>> {
        let refused = self.back().nothing().await.unwrap_err();
        Ok(Streaming::new(stream::iter([Ok(1), Err(refused)])))
    }

    async fn sum(&self, _: &Cx, mut numbers: Streaming<u64>) -> Result<u64> {
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += number?;
        }
        Ok(sum)
    }

    async fn scale(&self, _: &Cx, data: Pull, mut by: Streaming<u64>) -> Result<Vec<u64>> {
        let mut scaled = Vec::new();
        while let Some(number) = by.next().await {
            let bytes = data.read(1 << 20).await?;
            let sum: u64 = bytes.iter().map(|it| u64::from(*it)).sum();
            scaled.push(sum * number?);
        }
        Ok(scaled)
    }
}

struct Chain {
    client: FrontClient,
    proxy: Arc<Proxy>,
    /// What the handlers behind have seen.
    seen: Arc<Seen>,
    servers: [Listening; 2],
}

/// A proxy before this server.
async fn chain(back: Server) -> Chain {
    let (behind, seen, back) = probe_with(back).await;
    let proxy = Arc::new(Proxy {
        back: OnceLock::new(),
        seen: Arc::default(),
    });
    assert!(proxy.back.set(behind).is_ok());
    let front = FrontServer::new(Arc::clone(&proxy));
    let (channel, front) = testing::pair(front).await.unwrap();
    Chain {
        client: FrontClient::over(channel),
        proxy,
        seen,
        servers: [front, back],
    }
}

/// G6: "dropping a call reaches the handler, its nested calls".
#[tokio::test(start_paused = true)]
async fn a_dropped_call_reaches_what_its_handler_has_called() {
    let chain = chain(Server::new()).await;
    let call = tokio::spawn(chain.client.wait().no_deadline().into_future());
    chain.seen.wait_for(&chain.seen.started, 1).await;
    call.abort();
    chain.seen.wait_for(&chain.seen.dropped, 1).await;
    until_closed_calls(chain.client.channel()).await;
    until_closed_calls(chain.proxy.back().channel()).await;
    // So does the deadline of the first of them.
    let late = chain.client.wait().deadline(Duration::from_millis(10));
    expect(
        &late.await.unwrap_err(),
        Code::DeadlineExceeded,
        Started::MaybeRan,
    );
    chain.seen.wait_for(&chain.seen.dropped, 2).await;
    until_closed_calls(chain.proxy.back().channel()).await;
    let running = chain.servers.each_ref().map(|it| it.stats().running);
    assert_eq!(running, [0, 0]);
}

/// `shield`: "lets a part go on".
#[tokio::test(start_paused = true)]
async fn what_is_shielded_goes_on_when_its_handler_is_dropped() {
    let chain = chain(Server::new()).await;
    let call = tokio::spawn(chain.client.wait_shielded(500).into_future());
    chain.seen.wait_for(&chain.seen.started, 1).await;
    call.abort();
    until_closed_calls(chain.client.channel()).await;
    assert_eq!(chain.servers[0].stats().running, 0, "the handler has gone");
    let seen = &chain.proxy.seen;
    seen.wait_for(&seen.ended, 1).await;
    assert_eq!(
        chain.seen.dropped.load(std::sync::atomic::Ordering::SeqCst),
        0,
        "what it has called was not cancelled"
    );
}

/// G3: a handler that passes on "not started" of another call has run itself.
#[tokio::test(start_paused = true)]
async fn a_handler_that_passes_on_a_refusal_has_run() {
    let chain = chain(Server::new().calls_max(0)).await;
    let refused = chain.proxy.back().nothing().await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    let passed_on = chain.client.pass().await.unwrap_err();
    expect(&passed_on, Code::Overloaded, Started::Ran);
    assert!(passed_on.retry_after().is_some());
    chain
        .proxy
        .seen
        .wait_for(&chain.proxy.seen.started, 1)
        .await;
    let mut items = chain.client.pass_stream().await.unwrap();
    assert_eq!(items.next().await.unwrap().unwrap(), 1);
    let passed_on = items.next().await.unwrap().unwrap_err();
    expect(&passed_on, Code::Overloaded, Started::Ran);
    // At the client too: what it sends ends so, and its own call was sent before.
    let failing = stream::iter([Ok(1), Err(refused)]);
    let failed = chain.client.sum(Streaming::new(failing)).await.unwrap_err();
    expect(&failed, Code::Overloaded, Started::MaybeRan);
}

/// A call that lends sends a stream as others do; its memory comes back with its result.
#[tokio::test(start_paused = true)]
async fn a_call_that_lends_may_send_a_stream() {
    let chain = chain(Server::new()).await;
    let (lent, by) = (
        tokio_fabric_rpc::Lend::read(vec![1; 1000]),
        Streaming::of(1..4),
    );
    let (scaled, back) = chain.client.scale(lent, by).await.unwrap();
    assert_eq!((scaled, back.len()), (vec![1000, 2000, 3000], 1000));
    let lent = tokio_fabric_rpc::Lend::read(vec![2; 10]);
    let failing = Streaming::new(stream::iter([Err(Status::application(3, "of the client"))]));
    let failed = chain.client.scale(lent, failing).await.unwrap_err();
    expect(failed.error(), Code::Application(3), Started::MaybeRan);
    assert_eq!(failed.into_parts().1.unwrap(), [2; 10]);
    assert!(
        chain
            .client
            .scale(
                tokio_fabric_rpc::Lend::read("x"),
                Streaming::new(stream::pending())
            )
            .into_future()
            .now_or_never()
            .is_none(),
        "given up at once"
    );
    until_closed_calls(chain.client.channel()).await;
    assert_eq!(chain.client.channel().domain().region_count(), 0);
}
