//! A service in production: an HTTP front end, and a back end that it calls. Both have a page for
//! Prometheus, share traces, and end gracefully at SIGTERM.
//!
//! ```text
//! $ cargo run --example service -- back 127.0.0.1:7500 127.0.0.1:7501 &
//! $ cargo run --example service -- front 127.0.0.1:7502 127.0.0.1:7500 &
//! $ curl -X PUT --data hello http://127.0.0.1:7502/items/greeting
//! $ curl http://127.0.0.1:7502/items/greeting; curl http://127.0.0.1:7502/metrics
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use axum::Router;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_fabric_rpc::{Channel, Code, Cx, Server, Status, TraceContext, service};
use tracing::{Instrument, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};

/// How long running calls and requests may continue when the process must end.
const GRACE: Duration = Duration::from_secs(10);

#[service]
trait Items {
    #[rpc(idempotent)]
    async fn read(&self, cx: &Cx, name: String) -> tokio_fabric_rpc::Result<Option<Bytes>>;
    async fn write(&self, cx: &Cx, name: String, item: Bytes) -> tokio_fabric_rpc::Result<()>;
}

#[derive(Default)]
struct Memory(Mutex<HashMap<String, Bytes>>);

impl Items for Memory {
    async fn read(&self, _: &Cx, name: String) -> tokio_fabric_rpc::Result<Option<Bytes>> {
        Ok(self.0.lock().unwrap().get(&name).cloned())
    }

    async fn write(&self, _: &Cx, name: String, item: Bytes) -> tokio_fabric_rpc::Result<()> {
        self.0.lock().unwrap().insert(name, item);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let recorder = PrometheusBuilder::new().install_recorder()?;
    tokio_fabric_rpc::describe_metrics();
    tokio_fabric::stats::describe_metrics();
    // A service would send its spans to a collector (the crate `opentelemetry-otlp`).
    let spans = SdkTracerProvider::builder()
        .with_simple_exporter(Printed)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(spans.tracer("service"));
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(LevelFilter::INFO));
    tracing::subscriber::set_global_default(subscriber)?;

    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["back", at, http] => {
            let server = Server::new().add(ItemsServer::new(Memory::default()));
            let server = Arc::new(server.bind(at).await?);
            let counted = Arc::clone(&server);
            let page = move || {
                counted.stats().record_metrics(&[]);
                for (method, stats) in counted.method_stats() {
                    stats.record_metrics(method, &[]);
                }
                counted.domain().stats().record_metrics(&[]);
                recorder.render()
            };
            serve(
                http,
                Router::new().route("/metrics", get(async move || page())),
            )
            .await?;
            let server = Arc::into_inner(server).expect("no page is left");
            server.drain(GRACE).await;
        }
        ["front", http, back] => {
            // The back end need not be running yet.
            let channel = Channel::builder().connect_lazy(back)?;
            let counted = channel.clone();
            let page = move || {
                counted.stats().record_metrics(&[]);
                counted.domain().stats().record_metrics(&[]);
                recorder.render()
            };
            let pages = Router::new()
                .route("/items/{name}", get(read).put(write))
                .layer(from_fn(traced))
                .route("/metrics", get(async move || page()))
                .with_state(ItemsClient::over(channel.clone()));
            serve(http, pages).await?;
            channel.close().await;
        }
        _ => bail!("service back ADDRESS HTTP_ADDRESS | service front HTTP_ADDRESS BACK"),
    }
    spans.shutdown()?;
    Ok(())
}

/// Serves pages until SIGTERM, then completes the requests that have arrived.
async fn serve(address: &str, pages: Router) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("serving {}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    let end = async move {
        terminated.recv().await;
    };
    axum::serve(listener, pages)
        .with_graceful_shutdown(end)
        .await?;
    Ok(())
}

async fn read(
    State(items): State<ItemsClient>,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let item = items
        .read(name)
        .wait_for_ready()
        .deadline(Duration::from_secs(1));
    Ok(match item.await.map_err(Failure)? {
        Some(item) => item.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

async fn write(
    State(items): State<ItemsClient>,
    Path(name): Path<String>,
    item: Bytes,
) -> Result<StatusCode, Failure> {
    items.write(name, item).await.map_err(Failure)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A failed call, as an HTTP response.
struct Failure(Status);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = match self.0.code() {
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Unavailable | Code::Draining | Code::Overloaded => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::BAD_GATEWAY,
        };
        (code, self.0.to_string()).into_response()
    }
}

/// Creates a span for the request, in the trace that its header names. The span of a call is its
/// child.
async fn traced(path: MatchedPath, request: Request, next: Next) -> Response {
    let name = format!("{} {}", request.method(), path.as_str());
    let span = info_span!("request", otel.name = name, otel.kind = "server");
    let header = request.headers().get("traceparent");
    let header = header.and_then(|it| it.to_str().ok());
    if let Some(trace) = header.and_then(TraceContext::from_traceparent) {
        trace.set_parent_of(&span);
    }
    next.run(request).instrument(span).await
}

#[derive(Debug)]
struct Printed;

impl SpanExporter for Printed {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            let (context, parent) = (&span.span_context, span.parent_span_id);
            let (trace, id) = (context.trace_id(), context.span_id());
            println!(
                "span {trace} {parent} {id} {:?} {}",
                span.span_kind, span.name
            );
        }
        Ok(())
    }
}
