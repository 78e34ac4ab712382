//! Traces that pass through processes.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio_fabric_rpc::{Cx, Result, Server, TraceContext, service};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

#[service]
trait Relay {
    /// Passes the call on to this server itself, so many times.
    async fn pass(&self, cx: &Cx, hops: u32) -> Result<u32>;
    async fn fail(&self, cx: &Cx) -> Result<()>;
    /// The state of the trace that comes with the call.
    async fn state(&self, cx: &Cx) -> Result<Option<Vec<u8>>>;
}

#[derive(Default)]
struct Itself(OnceLock<SocketAddr>);

impl Relay for &'static Itself {
    async fn pass(&self, _: &Cx, hops: u32) -> Result<u32> {
        if hops == 0 {
            return Ok(0);
        }
        let next = RelayClient::connect(self.0.get().unwrap()).await?;
        Ok(next.pass(hops - 1).await? + 1)
    }

    async fn fail(&self, _: &Cx) -> Result<()> {
        panic!("as asked")
    }

    async fn state(&self, cx: &Cx) -> Result<Option<Vec<u8>>> {
        Ok(cx.metadata().value("tracestate").map(<[u8]>::to_vec))
    }
}

/// What this process is to do; the test itself has nothing set.
const ROLE: &str = "TOKIO_FABRIC_TRACES";

/// A caller of which only HTTP's headers are known.
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const STATE: &str = "rojo=00f067aa0ba902b7";

/// What a program with spans sets nevertheless.
const SET: TraceContext = TraceContext {
    trace_id: [0xef; 16],
    span_id: [0x12; 8],
    flags: 1,
};

fn child(role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "traces::spans_of_two_processes_are_of_one_trace";
    command.args(["--exact", name, "--nocapture"]);
    command.env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a part in a process whose spans go to OpenTelemetry, then prints them.
fn exported(part: impl Future<Output = ()>) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(part);
    for span in exporter.get_finished_spans().unwrap() {
        println!("SPAN {}", line_of(&span));
    }
}

fn line_of(span: &SpanData) -> String {
    let context = &span.span_context;
    let mut line = format!(
        "name={} kind={:?} trace={} span={} parent={} state={} ",
        span.name,
        span.span_kind,
        context.trace_id(),
        context.span_id(),
        span.parent_span_id,
        context.trace_state().header(),
    );
    line += match &span.status {
        opentelemetry::trace::Status::Error { .. } => "status=error",
        _ => "status=none",
    };
    for it in &span.attributes {
        line += &format!(" {}={}", it.key, it.value);
    }
    line
}

async fn serve() {
    // The panic that a call asks for is expected.
    std::panic::set_hook(Box::new(|_| ()));
    let itself: &'static Itself = Box::leak(Box::default());
    let server = Server::new().add(RelayServer::new(itself));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    itself.0.set(server.local_addr()).unwrap();
    println!("AT {}", server.local_addr());
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await.unwrap().unwrap();
    server.drain(std::time::Duration::from_secs(10)).await;
}

async fn call(server: &str) {
    let client = RelayClient::connect(server).await.unwrap();
    let request = tracing::info_span!("request");
    // As a front does for a request by HTTP.
    let trace = TraceContext::from_traceparent(TRACE).unwrap();
    let remote = SpanContext::new(
        TraceId::from_bytes(trace.trace_id),
        SpanId::from_bytes(trace.span_id),
        opentelemetry::TraceFlags::new(trace.flags),
        true,
        STATE.parse().unwrap(),
    );
    let remote = opentelemetry::Context::new().with_remote_span_context(remote);
    request.set_parent(remote).unwrap();
    let calls = async {
        assert_eq!(client.pass(1).await.unwrap(), 1);
        client.fail().await.unwrap_err();
    };
    calls.instrument(request).await;
    // A trace that the program sets comes before the span that the call is in.
    let other = client.state().meta("tracestate", STATE).trace(SET);
    let other = other.into_future();
    other
        .instrument(tracing::info_span!("other"))
        .await
        .unwrap();
}

type Fields = HashMap<String, String>;

/// The spans that a process has printed.
fn spans_in(printed: &str) -> Vec<Fields> {
    let lines = printed.lines().filter_map(|it| it.split_once("SPAN "));
    let field = |it: &str| {
        let (name, value) = it.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let fields = lines.map(|(_, line)| line.split(' ').filter(|it| it.contains('=')));
    fields.map(|it| it.map(field).collect()).collect()
}

fn of(spans: &[Fields], is_it: impl Fn(&Fields) -> bool) -> &Fields {
    let mut all = spans.iter().filter(|it| is_it(it));
    let one = all.next().unwrap_or_else(|| panic!("none in {spans:#?}"));
    assert!(all.next().is_none(), "more than one in {spans:#?}");
    one
}

/// "The caller's span is the parent of the server's span in another process", of its call's span
/// there, and so on; what is malformed is ignored, and refuses nothing.
#[test]
fn spans_of_two_processes_are_of_one_trace() {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => return exported(serve()),
        Ok(server) => return exported(call(server)),
        Err(_) => {}
    }
    let mut server = child("server");
    let mut of_server = BufReader::new(server.stdout.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(of_server.read_line(&mut line).unwrap() > 0, "it has ended");
        if let Some((_, address)) = line.trim_end().split_once("AT ") {
            break address.to_owned();
        }
    };
    let of_client = child(&address).wait_with_output().unwrap();
    assert!(of_client.status.success());
    let by_hand = TraceContext {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        flags: 1,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(without_spans(&address, by_hand));
    drop(server.stdin.take());
    let mut printed = String::new();
    of_server.read_to_string(&mut printed).unwrap();
    assert!(server.wait().unwrap().success());

    let printed_there = String::from_utf8(of_client.stdout).unwrap();
    let (here, there) = (spans_in(&printed_there), spans_in(&printed));
    let trace = |it: &Fields| it["trace"] == "0af7651916cd43dd8448eb211c80319c";
    let request = of(&here, |it| it["name"] == "request");
    assert_eq!(request["parent"], "b7ad6b7169203331");
    let child_of = |spans, parent: &Fields, name: &str| {
        let is_it = |it: &Fields| it["parent"] == parent["span"] && it["name"] == name;
        let found = of(spans, is_it).clone();
        assert!(trace(&found), "{found:?}");
        assert_eq!(found["state"], STATE, "{found:?}");
        found
    };
    let first = child_of(&here, request, "Relay/pass");
    let served = child_of(&there, &first, "Relay/pass");
    let second = child_of(&there, &served, "Relay/pass");
    let last = child_of(&there, &second, "Relay/pass");
    for (span, kind) in [(&first, "Client"), (&served, "Server")] {
        assert_eq!(span["kind"], kind);
        assert_eq!(span["rpc.system.name"], "tokio-fabric-rpc");
        assert_eq!(span["rpc.method"], "Relay/pass");
        assert_eq!(span["rpc.response.status_code"], "OK");
        assert_eq!(span["status"], "none");
    }
    let port = address.rsplit_once(':').unwrap().1;
    assert_eq!((&*second["kind"], &*last["kind"]), ("Client", "Server"));
    assert_eq!(first["server.address"], "127.0.0.1");
    assert_eq!(first["server.port"], port);
    assert_eq!(served["network.peer.address"], "127.0.0.1");
    let failed = child_of(&here, request, "Relay/fail");
    let panicked = child_of(&there, &failed, "Relay/fail");
    for span in [failed, panicked] {
        assert_eq!(span["error.type"], "HANDLER_PANICKED");
        assert_eq!(span["status"], "error");
    }
    let set = of(&here, |it| it["name"] == "Relay/state");
    assert_eq!(
        (&*set["trace"], &*set["parent"]),
        (&*"ef".repeat(16), &*"12".repeat(8))
    );
    let served = of(&there, |it| it["parent"] == set["span"]);
    assert_eq!(
        (&served["trace"], &*served["state"]),
        (&set["trace"], STATE)
    );
    // Those of the caller without spans: one in a trace, and the others in their own.
    let states = there.iter().filter(|it| it["name"] == "Relay/state");
    let states = states.filter(|it| it["trace"] != set["trace"]);
    let (joined, alone): (Vec<_>, Vec<_>) = states.partition(|it| it["trace"] == "ab".repeat(16));
    assert_eq!((joined.len(), alone.len()), (3, 1));
    let parents = joined.iter().map(|it| &*it["parent"]);
    assert!(parents.into_iter().all(|it| it == "cd".repeat(8)));
    assert_eq!(alone[0]["parent"], "0".repeat(16));
    let with_state = joined.iter().filter(|it| it["state"] == STATE);
    assert_eq!(with_state.count(), 1);
}

/// Calls of a process without a subscriber, which sets what it sends itself.
async fn without_spans(server: &str, trace: TraceContext) {
    let client = RelayClient::connect(server).await.unwrap();
    let call = || client.state().meta("tracestate", STATE);
    let state = call().trace(trace).await.unwrap();
    assert_eq!(state.as_deref(), Some(STATE.as_bytes()));
    let none = TraceContext {
        trace_id: [0; 16],
        ..trace
    };
    call().trace(none).await.unwrap();
    for malformed in [&b"\xff,=,"[..], &b"a=".repeat(300)] {
        let call = client.state().meta("tracestate", malformed);
        call.trace(trace).await.unwrap();
    }
}

/// "`None`: it is malformed, and must be ignored."
#[test]
fn a_traceparent_is_read_as_the_recommendation_says() {
    let trace = TraceContext::from_traceparent(TRACE).unwrap();
    assert_eq!(trace.to_traceparent(), TRACE);
    let later = TRACE.replacen("00-", "cc-", 1) + "-what-will-be-next";
    assert_eq!(TraceContext::from_traceparent(&later), Some(trace));
    let zero_span = TRACE.replace("b7ad6b7169203331", &"0".repeat(16));
    for malformed in [
        "",
        "00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-02",
        "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
        "00-é0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        &zero_span,
    ] {
        let read = TraceContext::from_traceparent(malformed);
        assert_eq!(read, None, "{malformed}");
    }
}
