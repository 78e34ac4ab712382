//! Calls of tokio-fabric-rpc between two ends on one runtime's thread: all that both do outside of
//! the kernel, the runtime's part included.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder};
use metrics::{SharedString, Unit};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio_fabric::LocalPath;
use tokio_fabric_rpc::{Cx, Result, Server, TraceContext, service};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

/// Bytes of a request, and of its answer.
const LEN: usize = 64;

#[service]
trait Echo {
    async fn echo(&self, cx: &Cx, request: Bytes) -> Result<Bytes>;
}

struct EchoService;

impl Echo for EchoService {
    async fn echo(&self, _: &Cx, request: Bytes) -> Result<Bytes> {
        Ok(request)
    }
}

/// So many calls, of so many callers that make one after the other.
async fn call_all(client: EchoClient, callers: usize, calls: usize, trace: Option<TraceContext>) {
    let left = Arc::new(AtomicUsize::new(calls));
    let mut all = JoinSet::new();
    for _ in 0..callers {
        let (client, left) = (client.clone(), Arc::clone(&left));
        all.spawn(async move {
            let request = Bytes::from_static(&[7; LEN]);
            while left.fetch_sub(1, Relaxed).cast_signed() > 0 {
                let mut call = client.echo(request.clone());
                if let Some(trace) = trace {
                    call = call.trace(trace);
                }
                assert_eq!(call.await.expect("an answer"), request);
            }
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.expect("no caller panics");
    }
}

/// Has `counted` count so many calls, of so many callers.
pub fn calls(callers: usize, calls: usize, counted: fn(&mut dyn FnMut())) {
    traced_calls(callers, calls, None, counted);
}

/// The same with a trace, spans that are kept, and times that are.
pub fn observed_calls(callers: usize, calls: usize, counted: fn(&mut dyn FnMut())) {
    // With a layer, without which a registry keeps spans that have ended.
    let subscriber = tracing_subscriber::registry().with(LevelFilter::INFO);
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    metrics::set_global_recorder(Times::default()).expect("the first");
    let trace = TraceContext {
        trace_id: [1; 16],
        span_id: [2; 8],
        flags: 1,
    };
    traced_calls(callers, calls, Some(trace), counted);
}

fn traced_calls(
    callers: usize,
    calls: usize,
    trace: Option<TraceContext>,
    counted: fn(&mut dyn FnMut()),
) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (client, _listening) = runtime.block_on(async {
        let server = Server::new().add(EchoServer::new(EchoService));
        // Not through shared memory, as between hosts.
        let server = server.domain(|domain| domain.local_path(LocalPath::Off));
        let listening = server.bind("127.0.0.1:0").await.expect("it listens");
        let client = EchoClient::connect(listening.local_addr()).await;
        (client.expect("a connection"), listening)
    });
    let call = |calls| {
        // In a task of its own: the runtime polls what it blocks on in other turns than tasks.
        let all = runtime.spawn(call_all(client.clone(), callers, calls, trace));
        runtime.block_on(all).expect("it does not panic");
    };
    // What is made once.
    call(20 * callers);
    // Time takes no part: what is gathered would depend on how slow valgrind is.
    runtime.block_on(async { tokio::time::pause() });
    counted(&mut || call(calls));
}

/// Finds histograms as recorders do.
#[derive(Default)]
struct Times(Mutex<HashMap<Key, Arc<Sum>>>);

#[derive(Default)]
struct Sum(AtomicU64);

impl HistogramFn for Sum {
    fn record(&self, seconds: f64) {
        self.0.fetch_add((seconds * 1e9) as u64, Relaxed);
    }
}

impl Recorder for Times {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut all = self.0.lock().expect("no thread panics");
        Histogram::from_arc(Arc::clone(all.entry(key.clone()).or_default()))
    }
}
