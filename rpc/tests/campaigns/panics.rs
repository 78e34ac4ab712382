//! What a program gives to the layer panics, at its k-th call, for every k: every call ends, and
//! the server goes on with other calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ::metrics::{Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata};
use ::metrics::{Recorder, SharedString, Unit};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    BodyBuf, Codec, CodecOf, Cx, Reply, Request, Result, Server, Status, Streaming, service,
    testing,
};

/// Of all calls of one kind, so many are tried here.
const SAMPLES: u64 = 12;
/// No call has more time; the clock is stopped while anything can go on.
const PATIENCE: Duration = Duration::from_secs(3600);
/// More than a frame has room for.
const LARGE: usize = 100_000;

/// What of the program panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Encoder,
    Decoder,
    Handler,
    Hook,
    Layer,
    Source,
    Waker,
    Subscriber,
    Recorder,
}

const ALL: [Given; 9] = [
    Given::Encoder,
    Given::Decoder,
    Given::Handler,
    Given::Hook,
    Given::Layer,
    Given::Source,
    Given::Waker,
    Given::Subscriber,
    Given::Recorder,
];

/// Counts the calls of one kind, and panics at one of them.
#[derive(Clone)]
struct Injector(Arc<Injection>);

struct Injection {
    what: Given,
    calls: AtomicU64,
    panics_at: u64,
}

thread_local! {
    /// For codecs, which have no value.
    static CURRENT: std::cell::RefCell<Option<Injector>> = const { std::cell::RefCell::new(None) };
}

impl Injector {
    fn called(&self, what: Given) {
        // Two panics that meet end the process, in whatever code the second is.
        if what == self.0.what && !std::thread::panicking() {
            let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
            assert!(call != self.0.panics_at, "injected at call {call}");
        }
    }

    fn called_of_current(what: Given) {
        let current = CURRENT.with_borrow(Clone::clone);
        current.expect("it is set").called(what);
    }
}

struct Injected;

impl Codec for Injected {
    const NAME: &'static str = "injected";
}

impl CodecOf<Vec<u8>> for Injected {
    fn encode(value: &Vec<u8>, body: &mut BodyBuf) -> Result<(), String> {
        body.extend_from_slice(value);
        Injector::called_of_current(Given::Encoder);
        Ok(())
    }

    fn decode(body: &[u8]) -> Result<Vec<u8>, String> {
        Injector::called_of_current(Given::Decoder);
        Ok(body.to_vec())
    }
}

#[service(codec = Injected)]
trait Steps {
    /// At once.
    async fn echo(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>>;
    /// Later.
    async fn wait(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>>;
    async fn fail(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>>;
    async fn double(&self, cx: &Cx, items: Streaming<Vec<u8>>) -> Result<Streaming<Vec<u8>>>;
}

struct Handlers(Injector);

impl Steps for Handlers {
    async fn echo(&self, _: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.0.called(Given::Handler);
        Ok(bytes)
    }

    async fn wait(&self, _: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.0.called(Given::Handler);
        Ok(bytes)
    }

    async fn fail(&self, _: &Cx, _: Vec<u8>) -> Result<Vec<u8>> {
        self.0.called(Given::Handler);
        Err(Status::application(1, ""))
    }

    async fn double(&self, _: &Cx, items: Streaming<Vec<u8>>) -> Result<Streaming<Vec<u8>>> {
        let of_handler = self.0.clone();
        Ok(Streaming::new(futures::StreamExt::map(items, move |it| {
            of_handler.called(Given::Handler);
            it
        })))
    }
}

struct InjectedWaker {
    task: Waker,
    injector: Injector,
}

impl Wake for InjectedWaker {
    fn wake(self: Arc<Self>) {
        self.task.wake_by_ref();
        self.injector.called(Given::Waker);
    }
}

/// A future whose waker is injected.
struct Woken<F>(Pin<Box<F>>, Injector);

impl<F: Future> Future for Woken<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let (task, injector) = (cx.waker().clone(), self.1.clone());
        let waker = Waker::from(Arc::new(InjectedWaker { task, injector }));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Of the layer's own events and spans: those of the library below end its driver.
struct InjectedSubscriber(Injector);

impl tracing::Subscriber for InjectedSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_fabric_rpc")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.0.called(Given::Subscriber);
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {
        self.0.called(Given::Subscriber);
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.called(Given::Subscriber);
    }

    fn enter(&self, _: &tracing::span::Id) {
        self.0.called(Given::Subscriber);
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.0.called(Given::Subscriber);
    }

    fn try_close(&self, _: tracing::span::Id) -> bool {
        self.0.called(Given::Subscriber);
        true
    }
}

struct InjectedRecorder(Injector);

struct InjectedValue(Injector);

impl HistogramFn for InjectedValue {
    fn record(&self, _: f64) {
        self.0.called(Given::Recorder);
    }
}

impl CounterFn for InjectedValue {
    fn increment(&self, _: u64) {
        self.0.called(Given::Recorder);
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for InjectedRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.0.called(Given::Recorder);
        Counter::from_arc(Arc::new(InjectedValue(self.0.clone())))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.0.called(Given::Recorder);
        Histogram::from_arc(Arc::new(InjectedValue(self.0.clone())))
    }
}

/// One program; what of it has not ended.
struct Program {
    injector: Injector,
    calls: Vec<(String, JoinHandle<()>)>,
}

impl Program {
    /// In a task, which has ended if it panicked, too.
    fn go<F: Future<Output: Send> + Send + 'static>(&mut self, name: String, call: F) {
        let call = Box::pin(async move { drop(call.await) });
        let call = tokio::spawn(Woken(call, self.injector.clone()));
        self.calls.push((name, call));
    }

    fn call_all(&mut self, client: &StepsClient) {
        for len in [1, 60, LARGE] {
            let of = |name: &str| format!("{name} of {len}");
            let bytes = vec![1; len];
            // What is encoded as the call is made is encoded in its task.
            let (it, sent) = (client.clone(), bytes.clone());
            self.go(of("echo"), async move { it.echo(sent).no_deadline().await });
            let (it, sent) = (client.clone(), bytes.clone());
            self.go(of("wait"), async move { it.wait(sent).no_deadline().await });
            let (it, sent) = (client.clone(), bytes.clone());
            self.go(of("fail"), async move { it.fail(sent).no_deadline().await });
            let (it, sent) = (client.clone(), bytes);
            let late = Duration::from_micros(100);
            self.go(
                of("late"),
                async move { it.wait(sent).deadline(late).await },
            );
        }
        for at in 0..2 {
            let (client, source) = (client.clone(), self.injector.clone());
            self.go(format!("double {at}"), async move {
                let items = (0..20).map(|it| Ok(vec![it; 10]));
                let items = futures::stream::iter(items);
                let items = futures::StreamExt::inspect(items, move |_| {
                    source.called(Given::Source);
                });
                let call = client.double(Streaming::new(items)).no_deadline();
                let mut doubled = call.await?;
                while let Some(item) = doubled.next().await {
                    item?;
                }
                Ok::<_, Status>(())
            });
        }
    }
}

async fn run(injector: Injector) -> Vec<String> {
    let mut program = Program {
        injector: injector.clone(),
        calls: Vec::new(),
    };
    let (of_hook, of_layer) = (injector.clone(), injector.clone());
    let layer = tower::util::MapRequestLayer::new(move |request: Request| {
        of_layer.called(Given::Layer);
        request
    });
    let of_reply = injector.clone();
    let reply_layer = tower::util::MapResponseLayer::new(move |reply: Reply| {
        of_reply.called(Given::Layer);
        reply
    });
    let server = Server::new().add(StepsServer::new(Handlers(injector.clone())));
    let server = server.authorize(move |_: &Cx| {
        of_hook.called(Given::Hook);
        Ok(())
    });
    let layers = tower::ServiceBuilder::new().layer(layer).layer(reply_layer);
    let server = server.layer(layers).window(8).calls_max(10);
    let (channel, server) = testing::connect(&Net::new(5), server).await.unwrap();
    let client = StepsClient::over(channel.clone());
    let mut left = Vec::new();
    for _ in 0..2 {
        program.call_all(&client);
        let deadline = Instant::now() + PATIENCE;
        for (name, call) in std::mem::take(&mut program.calls) {
            if timeout_at(deadline, call).await.is_err() {
                left.push(name);
            }
        }
    }
    // It goes on, over the same channel: nothing of the above ends a connection.
    let has_panicked = injector.0.calls.load(Ordering::Relaxed) > injector.0.panics_at;
    let it = client.clone();
    let again = tokio::spawn(async move { it.echo(vec![7]).no_deadline().await });
    let again = again.await;
    if has_panicked && !matches!(again, Ok(Ok(_))) {
        left.push(format!("another call: {again:?}"));
    }
    if channel.stats().connections != 1 {
        left.push(format!("one connection: {:?}", channel.stats()));
    }
    let stats = channel.stats();
    let ended = stats.succeeded + stats.failed + stats.not_started + stats.dropped;
    if stats.begun != ended || channel.open_calls() > 0 {
        left.push(format!("calls of the channel: {stats:?}"));
    }
    if server.stats().running > 0 {
        left.push(format!("calls of the server: {:?}", server.stats()));
    }
    let domain = channel.domain().clone();
    server.drain(Duration::from_secs(1)).await;
    channel.close().await;
    drop((channel, client, program));
    if timeout_at(Instant::now() + PATIENCE, domain.closed())
        .await
        .is_err()
    {
        left.push("the domain".to_owned());
    }
    left
}

/// How often this was called, and what was left when it panicked at that call.
fn panics_at(call: u64, what: Given) -> (u64, Vec<String>) {
    let injector = Injector(Arc::new(Injection {
        what,
        calls: AtomicU64::new(0),
        panics_at: call,
    }));
    CURRENT.set(Some(injector.clone()));
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _subscribed = tracing::subscriber::set_default(InjectedSubscriber(injector.clone()));
    let recorder = InjectedRecorder(injector.clone());
    let _recorded = ::metrics::set_default_local_recorder(&recorder);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let left = runtime.block_on(run(injector.clone()));
    (injector.0.calls.load(Ordering::Relaxed), left)
}

#[test]
fn whatever_a_program_gives_panics_every_call_ends_and_others_go_on() {
    for what in ALL {
        let (calls, left) = panics_at(u64::MAX, what);
        assert!(left.is_empty(), "without a panic: {left:?}");
        assert!(calls > 20, "{what:?} is called: {calls}");
        let step = match super::is_deep() {
            true => 1,
            false => calls.div_ceil(SAMPLES),
        };
        for call in (0..calls).step_by(step as usize) {
            let (_, left) = panics_at(call, what);
            let at = format!("{what:?} at {call} of {calls}");
            assert!(left.is_empty(), "{at}: {left:?}");
        }
    }
}
