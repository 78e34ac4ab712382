//! What servers and channels say of themselves.

use std::future::IntoFuture;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio_fabric_rpc::{
    CallError, Code, Cx, MethodStats, Result, Server, Started, TraceContext, service, testing,
};
use tower::ServiceBuilder;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::{Handlers, ProbeClient, ProbeServer, Refusal, expect, probe, probe_with};

fn stats_of(server: &tokio_fabric_rpc::Listening, method: &str) -> MethodStats {
    let mut all = server.method_stats();
    all.find(|it| it.0 == method).unwrap().1
}

/// Programs end without a word: what awaited nothing has lost nothing, and a server over which
/// clients come and go counts no losses. One that dies in the middle of a call is one.
#[test]
fn a_client_that_ends_with_its_process_is_lost_if_it_was_calling() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let handlers = Handlers::default();
    let server = Server::new().add(ProbeServer::new(handlers.clone()));
    let server = ours.block_on(server.bind("127.0.0.1:0")).unwrap();
    let connect = || theirs.block_on(ProbeClient::connect(server.local_addr()));
    let idle = connect().unwrap();
    theirs.block_on(idle.nothing().into_future()).unwrap();
    let ends = |clients, lost| {
        let since = std::time::Instant::now();
        loop {
            let stats = server.stats();
            if (stats.connections, stats.connections_lost) == (clients, lost) {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "{stats:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    ends(1, 0);
    let busy = runtime();
    let calling = busy.block_on(ProbeClient::connect(server.local_addr()));
    let calling = calling.unwrap();
    busy.spawn(calling.wait(None).into_future());
    ours.block_on(handlers.0.wait_for(&handlers.0.started, 1));
    ends(2, 0);
    drop((theirs, idle));
    ends(1, 0);
    drop((busy, calling));
    ends(0, 1);
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_once_by_how_they_end() {
    let (client, seen, server) = probe_with(Server::new().calls_max(1)).await;
    client.fail(1).await.unwrap_err();
    client.wait(Some(1000)).await.unwrap();
    client
        .wait(None)
        .deadline(Duration::from_secs(1))
        .await
        .unwrap_err();
    let running = tokio::spawn(client.wait(Some(5000)).into_future());
    seen.wait_for(&seen.started, 3).await;
    client.wait(Some(1)).await.unwrap_err();
    assert!(client.nothing().into_future().now_or_never().is_none());
    running.await.unwrap().unwrap();
    client.panic().await.unwrap_err();
    let wait = stats_of(&server, "Probe/wait");
    assert_eq!((wait.started, wait.succeeded, wait.failed), (3, 2, 0));
    assert_eq!((wait.cancelled, wait.refused), (1, 1));
    assert!(wait.time >= Duration::from_secs(7), "{wait:?}");
    let failed = stats_of(&server, "Probe/fail");
    assert_eq!((failed.started, failed.failed), (1, 1));
    assert_eq!(stats_of(&server, "Probe/panic").failed, 1);
    let channel = client.channel().stats();
    assert_eq!((channel.begun, channel.succeeded), (7, 2));
    assert_eq!((channel.failed, channel.not_started), (3, 1));
    assert_eq!((channel.dropped, channel.connections), (1, 1));
}

#[service(name = "Probe")]
trait Stranger {
    #[rpc(signature = "u32->u32!|TooOld{by:u32}")]
    async fn check(&self, cx: &Cx, age: String) -> Result<u32, Refusal>;
    #[rpc(signature = "u64->[u8]")]
    async fn large(&self, cx: &Cx, len: usize) -> Result<Option<u8>>;
    async fn none(&self, cx: &Cx) -> Result<()>;
}

/// What the client gets is what is counted: an answer that it does not take is a failure.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_has_failed() {
    let (client, _, server) = probe().await;
    let ledger = testing::Ledger::open(&server, [client.channel()]);
    let beyond = client.large(17 << 20).await.map(drop).unwrap_err();
    expect(&beyond, Code::TooLarge, Started::Ran);
    client.large(1 << 20).await.unwrap();
    let large = stats_of(&server, "Probe/large");
    assert_eq!((large.started, large.succeeded, large.failed), (2, 1, 1));
    ledger.close().await;
}

/// A result that the caller cannot decode is none.
#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_decoded_has_failed() {
    let (client, _, server) = probe().await;
    let stranger = StrangerClient::over(client.channel().clone());
    let undecodable = stranger.large(300).await.unwrap_err();
    expect(&undecodable, Code::Internal, Started::Ran);
    let stats = client.channel().stats();
    assert_eq!((stats.begun, stats.succeeded, stats.failed), (1, 0, 1));
    assert_eq!(stats_of(&server, "Probe/large").succeeded, 1);
}

/// `started` are those whose handlers began: what cannot be decoded is refused, in a frame or by
/// reference, and so is what a layer refuses.
#[tokio::test(start_paused = true)]
async fn what_no_handler_has_seen_is_refused() {
    let layer = ServiceBuilder::new().load_shed().concurrency_limit(1);
    for server in [Server::new(), Server::new().layer(layer)] {
        let (client, _, server) = probe_with(server).await;
        let ledger = testing::Ledger::open(&server, [client.channel()]);
        let stranger = StrangerClient::over(client.channel().clone());
        for len in [5, 100_000] {
            let CallError::Rpc(wrong) = stranger.check("x".repeat(len)).await.unwrap_err() else {
                panic!("no number is so long")
            };
            expect(&wrong, Code::BadRequest, Started::NotStarted);
        }
        let unknown = stranger.none().await.unwrap_err();
        expect(&unknown, Code::Unimplemented, Started::NotStarted);
        client.check(1).await.unwrap();
        let check = stats_of(&server, "Probe/check");
        assert_eq!((check.started, check.succeeded, check.refused), (1, 1, 2));
        assert_eq!((check.failed, check.cancelled), (0, 0));
        let stats = server.stats();
        assert_eq!((stats.started, stats.refused), (1, 3));
        ledger.close().await;
    }
}

/// The same of calls that a layer has when their time is over, or their connection lost.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_layer_holds_has_not_started() {
    for is_lost in [false, true] {
        let layer = ServiceBuilder::new().concurrency_limit(1);
        let (client, seen, server) = probe_with(Server::new().layer(layer)).await;
        let shared = testing::Ledger::open(&server, [client.channel()]);
        let running = tokio::spawn(client.wait(None).no_deadline().into_future());
        seen.wait_for(&seen.started, 1).await;
        let held = tokio::spawn(client.nothing().no_deadline().into_future());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(stats_of(&server, "Probe/nothing").started, 0);
        let (running, held) = match is_lost {
            false => {
                server.drain(Duration::from_millis(100)).await;
                (running.await.unwrap(), held.await.unwrap())
            }
            true => {
                client.channel().close().await;
                let ends = (running.await.unwrap(), held.await.unwrap());
                while server.stats().running > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(stats_of(&server, "Probe/nothing").refused, 1);
                assert_eq!(stats_of(&server, "Probe/wait").cancelled, 1);
                ends
            }
        };
        let (code, of_held) = match is_lost {
            false => (Code::Draining, Started::NotStarted),
            // It was sent, and the client knows no more.
            true => (Code::ConnectionLost, Started::MaybeRan),
        };
        expect(&running.unwrap_err(), code, Started::MaybeRan);
        expect(&held.unwrap_err(), code, of_held);
        shared.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_ends_its_calls_as_cancelled() {
    let (client, seen, server) = probe().await;
    let lost = tokio::spawn(client.wait(None).into_future());
    seen.wait_for(&seen.started, 1).await;
    client.channel().close().await;
    expect(
        &lost.await.unwrap().unwrap_err(),
        Code::ConnectionLost,
        Started::MaybeRan,
    );
    seen.wait_for(&seen.dropped, 1).await;
    let wait = stats_of(&server, "Probe/wait");
    assert_eq!((wait.started, wait.cancelled), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_says_how_it_is_and_what_it_serves() {
    let (client, seen, _server) = probe_with(Server::new().calls_max(1)).await;
    let running = tokio::spawn(client.wait(Some(1000)).into_future());
    seen.wait_for(&seen.started, 1).await;
    // A full server answers this.
    let health = client.channel().check().await.unwrap();
    assert_eq!((health.calls_max, health.stats.connections), (1, 1));
    assert_eq!((health.stats.running, health.stats.refused), (2, 0));
    let described = client.channel().describe().await.unwrap();
    assert_eq!(
        (described.codec.as_str(), described.window),
        ("postcard", 256)
    );
    let wait = described
        .methods
        .iter()
        .find(|it| it.name == "Probe/wait")
        .unwrap();
    assert_eq!(wait.stats.started, 1);
    assert_eq!(wait.signature, "?u64->()");
    assert!(
        described
            .methods
            .iter()
            .any(|it| it.name == "Probe/insist" && it.to_end)
    );
    assert!(
        described
            .methods
            .iter()
            .any(|it| it.name == "fabric-rpc/check")
    );
    running.await.unwrap().unwrap();
}

/// The program, over sockets.
#[test]
fn the_command_prints_it_for_people_and_programs() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(async {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        server.bind("127.0.0.1:0").await.unwrap()
    });
    let address = server.local_addr().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabric-rpc"));
        let output = command.args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, out, _) = run(&[&address, "check"]);
    assert_eq!(code, Some(0));
    assert!(
        out.starts_with("serving: 1 of 4096 calls, 1 of 10240"),
        "{out}"
    );
    let (code, out, _) = run(&[&address, "describe"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("codec postcard, 256 calls open"), "{out}");
    assert!(
        out.lines()
            .any(|it| it.starts_with("Probe/insist ") && it.ends_with("to_end"))
    );
    let (_, out, _) = run(&["--json", &address, "describe"]);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["codec"], "postcard");
    assert!(value["methods"].as_array().unwrap().len() > 10);
    let (code, _, err) = run(&[&address, "explain"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--json"));
    drop(server);
    let (code, _, err) = run(&[&address, "check"]);
    assert_eq!(code, Some(1), "{err}");
}

/// The same of a server that only known clients reach.
#[cfg(feature = "tls")]
#[test]
fn the_command_speaks_tls_and_has_authorization_keys() {
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use rustls::server::WebPkiClientVerifier;
    use tokio_fabric::tls::TlsConfig;
    use tokio_fabric::{Fabric, Hints};

    let node = rcgen::generate_simple_self_signed(["cache.example".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let certificate = file("certificate", node.cert.pem().as_bytes());
    let key = file("key", node.signing_key.serialize_pem().as_bytes());
    let (secret, other) = (file("secret", b"a secret"), file("other", b"another one"));

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(async {
        let own = CertificateDer::from(node.cert.der().to_vec());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build();
        let config = rustls::ServerConfig::builder().with_client_cert_verifier(clients.unwrap());
        let own_key = PrivatePkcs8KeyDer::from(node.signing_key.serialize_der());
        let config = config.with_single_cert(vec![own], own_key.into()).unwrap();
        let tls = TlsConfig::new().server(Arc::new(config));
        let fabric = Fabric::open(Hints::new().tls(tls)).unwrap();
        let key = tokio_fabric_rpc::AuthKey::new(&b"a secret"[..]);
        let server = Server::new().fabric(&fabric).named_auth_key("red", key);
        server.bind("127.0.0.1:0").await.unwrap()
    });
    let address = server.local_addr().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabric-rpc"));
        let command = command.args([&address, "check"]).args(arguments);
        let output = command.output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), err)
    };
    let named = ["--server-name", "cache.example"];
    let tls = [&["--ca", &certificate][..], &named].concat();
    let mutual = [&tls[..], &["--cert", &certificate, "--key", &key]].concat();
    let keyed = |file: &str, name: &str| {
        let more = ["--auth-key", file, "--auth-key-name", name];
        let all = mutual.iter().copied().chain(more).map(str::to_owned);
        all.collect::<Vec<_>>()
    };
    let run_keyed = |file: &str, name: &str| {
        let all = keyed(file, name);
        run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(run_keyed(&secret, "red"), (Some(0), String::new()));
    for refused in [
        run_keyed(&other, "red"),
        run_keyed(&secret, "blue"),
        run(&mutual),
        run(&[&tls[..], &["--auth-key", &secret, "--auth-key-name", "red"]].concat()),
        run(&["--auth-key", &secret, "--auth-key-name", "red"]),
        run(&["--ca", &certificate]),
    ] {
        assert_eq!(refused.0, Some(1), "{refused:?}");
    }
    let (code, err) = run(&["--ca", &folder.path().join("none").to_string_lossy()]);
    assert!(code == Some(1) && err.contains("none: "), "{err}");
    // What has no effect without another is not as the usage says.
    for incomplete in [
        &["--auth-key-name", "red"][..],
        &["--cert", &certificate, "--key", &key],
        &["--ca", &certificate, "--cert", &certificate],
        &["--auth-key"],
    ] {
        assert_eq!(run(incomplete).0, Some(2), "{incomplete:?}");
    }
}

/// Spans by name with what was recorded, as they close.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl<S> Layer<S> for Spans
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, cx: Context<'_, S>) {
        let span = cx.span(id).unwrap();
        let mut fields = Fields(span.name().to_owned());
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, cx: Context<'_, S>) {
        let span = cx.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_close(&self, id: span::Id, cx: Context<'_, S>) {
        let span = cx.span(&id).unwrap();
        let fields = span.extensions_mut().remove::<Fields>().unwrap();
        if fields.0.starts_with("rpc.") {
            self.0.lock().unwrap().push(fields.0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn spans_have_the_names_of_the_conventions_and_the_trace_of_the_caller() {
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber);
    let (client, _, _server) = probe().await;
    // Other tests register the callsites beside this one, perhaps with what they knew before.
    let recorded = || spans.0.lock().unwrap().len();
    let has_seen = |name: &str| {
        let spans = spans.0.lock().unwrap();
        spans.iter().any(|it| it.starts_with(name))
    };
    while !has_seen("rpc.client") || !has_seen("rpc.server") {
        tracing::callsite::rebuild_interest_cache();
        client.nothing().await.unwrap();
    }
    let before = recorded();
    let trace = TraceContext {
        trace_id: [0xab; 16],
        span_id: [1; 8],
        flags: 1,
    };
    client.nothing().trace(trace).await.unwrap();
    client.fail(3).await.unwrap_err();
    client
        .wait(None)
        .deadline(Duration::from_millis(5))
        .await
        .unwrap_err();
    let all_closed = async {
        while recorded() < before + 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let within = Duration::from_secs(60);
    tokio::time::timeout(within, all_closed).await.unwrap();
    let spans = spans.0.lock().unwrap().split_off(before);
    let of = |name: &str, method: &str| {
        let method = format!("rpc.method=\"{method}\"");
        let is_it = |it: &&String| it.starts_with(name) && it.contains(&method);
        spans.iter().find(is_it).unwrap().clone()
    };
    for name in ["rpc.client", "rpc.server"] {
        let good = of(name, "Probe/nothing");
        assert!(
            good.contains("rpc.system.name=\"tokio-fabric-rpc\""),
            "{good}"
        );
        assert!(good.contains("rpc.response.status_code=\"OK\""), "{good}");
        assert!(
            good.contains(&format!("trace_id={}", "ab".repeat(16))),
            "{good}"
        );
        assert!(!good.contains("error.type"), "{good}");
        let failed = of(name, "Probe/fail");
        assert!(failed.contains("error.type=\"APPLICATION\""), "{failed}");
    }
    let late = of("rpc.client", "Probe/wait");
    assert!(late.contains("error.type=\"DEADLINE_EXCEEDED\""), "{late}");
}

#[cfg(feature = "metrics")]
mod metrics {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    use ::metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Label, Metadata,
        Recorder, SharedString, Unit,
    };
    use tokio_fabric::testing::Net;
    use tokio_fabric_rpc::{Channel, Server};

    use crate::{Handlers, ProbeClient, ProbeServer, probe};

    /// What was recorded, and how often a histogram was asked for.
    #[derive(Clone, Default)]
    struct Values(Arc<Mutex<Vec<(String, f64)>>>, Arc<AtomicUsize>);

    struct Handle(Values, String);

    impl HistogramFn for Handle {
        fn record(&self, value: f64) {
            self.0.0.lock().unwrap().push((self.1.clone(), value));
        }
    }

    impl CounterFn for Handle {
        fn increment(&self, value: u64) {
            self.record(value as f64);
        }
        fn absolute(&self, value: u64) {
            self.record(value as f64);
        }
    }

    impl GaugeFn for Handle {
        fn increment(&self, _: f64) {}
        fn decrement(&self, _: f64) {}
        fn set(&self, value: f64) {
            self.record(value);
        }
    }

    impl Recorder for Values {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Handle(self.clone(), key.to_string())))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::new(Handle(self.clone(), key.to_string())))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.1.fetch_add(1, SeqCst);
            Histogram::from_arc(Arc::new(Handle(self.clone(), key.to_string())))
        }
    }

    /// "Two duration histograms, in seconds."
    #[tokio::test(start_paused = true)]
    async fn durations_are_recorded_in_seconds() {
        let values = Values::default();
        let _guard = ::metrics::set_default_local_recorder(&values);
        let (client, _, _server) = probe().await;
        client.wait(Some(2000)).await.unwrap();
        client.fail(1).await.unwrap_err();
        let recorded = values.0.lock().unwrap().clone();
        for side in ["server", "client"] {
            let name = format!("rpc.{side}.call.duration");
            let of = |code: &str| {
                let is_it = |it: &&(String, f64)| it.0.contains(&name) && it.0.contains(code);
                recorded.iter().find(is_it).unwrap().1
            };
            assert!((2.0..2.2).contains(&of("OK")), "{recorded:?}");
            assert!(of("APPLICATION") < 0.1);
        }
    }

    /// What operators are to see of channels and servers: lost connections among it, which are not
    /// those that were closed.
    #[tokio::test(start_paused = true)]
    async fn statistics_of_channels_and_servers_are_recorded_with_lost_connections() {
        let net = Net::new(7);
        let (at_server, at_client) = (net.node("server"), net.node("client"));
        let server = Server::new().fabric(&at_server.fabric().unwrap());
        let server = server.add(ProbeServer::new(Handlers::default()));
        let server = server.bind(at_server.addr(7000)).await.unwrap();
        let connect = || {
            let builder = Channel::builder().fabric(&at_client.fabric().unwrap());
            builder.connect(server.local_addr())
        };
        let (lost, closed) = (connect().await.unwrap(), connect().await.unwrap());
        let client = ProbeClient::over(lost.clone());
        client.nothing().await.unwrap();
        client.fail(1).await.unwrap_err();
        closed.close().await;
        net.partition("server", "client");
        // Until both sides have noticed that no answer comes.
        let noticed = async {
            while server.stats().connections_lost == 0 || lost.stats().connections_lost == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        let within = std::time::Duration::from_secs(600);
        tokio::time::timeout(within, noticed).await.unwrap();
        assert_eq!(closed.stats().connections_lost, 0);
        let values = Values::default();
        let label = [Label::new("service", "probe")];
        ::metrics::with_local_recorder(&values, || {
            tokio_fabric_rpc::describe_metrics();
            lost.stats().record_metrics(&label);
            server.stats().record_metrics(&label);
            for (method, stats) in server.method_stats() {
                stats.record_metrics(method, &label);
            }
        });
        let recorded = values.0.lock().unwrap().clone();
        let value = |name: &str, of: &str| {
            let mut all = recorded.iter();
            let found = all.find(|(key, _)| {
                let is_it = key.contains(&format!("Key({name}, "));
                is_it && key.contains(of) && key.contains("service = probe")
            });
            found
                .unwrap_or_else(|| panic!("{name} of {of}: {recorded:#?}"))
                .1
        };
        assert_eq!(value("rpc.client.connections.lost", ""), 1.0);
        assert_eq!(value("rpc.client.connections.established", ""), 1.0);
        assert_eq!(value("rpc.client.calls", "outcome = succeeded"), 1.0);
        assert_eq!(value("rpc.client.calls", "outcome = failed"), 1.0);
        assert_eq!(value("rpc.server.connections.lost", ""), 1.0);
        assert_eq!(value("rpc.server.connections", ""), 0.0);
        assert_eq!(value("rpc.server.violations", ""), 0.0);
        assert_eq!(value("rpc.server.unauthorized", "kind = call"), 0.0);
        let failed = recorded.iter().filter(|(key, _)| {
            let is_it = key.contains("Probe/fail") && key.contains("outcome = failed");
            is_it && key.contains("Key(rpc.server.calls, ")
        });
        assert_eq!(failed.map(|it| it.1).collect::<Vec<_>>(), [1.0]);
        // The domain is the one of the connections.
        assert!(server.domain().stats().driver.wakes > 0);
    }

    /// "The histograms of a method's results are kept": a recorder finds them by their labels,
    /// which takes as long as a fifth of a call.
    #[tokio::test(start_paused = true)]
    async fn a_recorder_is_asked_once_for_the_times_of_a_method() {
        let values = Values::default();
        let _guard = ::metrics::set_default_local_recorder(&values);
        let (client, _, _server) = probe().await;
        for _ in 0..10 {
            client.nothing().await.unwrap();
            client.check(1).await.unwrap();
        }
        // At both ends, of two methods.
        assert_eq!(values.1.load(SeqCst), 4);
        assert_eq!(values.0.lock().unwrap().len(), 40);
    }
}
