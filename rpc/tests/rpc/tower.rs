//! Layers around a server, and around channels.

use std::future::IntoFuture;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_fabric_rpc::{Code, Reply, Request, Route, RouteFuture, Server, Started, Status};
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;
use tower_service::Service;

use super::{expect, probe_with};

/// "Overload is answered before a body is decoded", by a layer too.
#[tokio::test(start_paused = true)]
async fn layers_of_a_server_limit_and_shed() {
    let layers = ServiceBuilder::new().load_shed().concurrency_limit(2);
    let (client, seen, server) = probe_with(Server::new().layer(layers)).await;
    let running: Vec<_> = (0..2)
        .map(|_| tokio::spawn(client.wait(Some(1000)).into_future()))
        .collect();
    seen.wait_for(&seen.started, 2).await;
    let refused = client.nothing().await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    // What is built in is beside the layers.
    assert_eq!(client.channel().check().await.unwrap().stats.running, 3);
    for call in running {
        call.await.unwrap().unwrap();
    }
    client.nothing().await.unwrap();
    assert_eq!(server.stats().running, 0);
}

/// Its error comes when the handler has begun.
#[tokio::test(start_paused = true)]
async fn a_layer_that_gives_up_says_that_the_handler_may_have_run() {
    let layer = TimeoutLayer::new(Duration::from_secs(1));
    let (client, seen, _server) = probe_with(Server::new().layer(layer)).await;
    let late = client.wait(None).await.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::Ran);
    assert_eq!(seen.dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    client.nothing().await.unwrap();
}

/// Refuses the method of a name.
#[derive(Clone)]
struct Forbids(Route, &'static str);

impl Service<Request> for Forbids {
    type Response = Reply;
    type Error = Status;
    type Future = futures::future::Either<RouteFuture, std::future::Ready<Result<Reply, Status>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if request.method().name == self.1 {
            let denied = Status::new(Code::PermissionDenied, "by a layer");
            return futures::future::Either::Right(std::future::ready(Err(denied)));
        }
        assert!(request.cx().peer().ip().is_loopback());
        futures::future::Either::Left(self.0.call(request))
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_ones_own_refuses_what_it_likes() {
    let layer = tower::layer::layer_fn(|route| Forbids(route, "Probe/nothing"));
    let (client, _, server) = probe_with(Server::new().layer(layer)).await;
    let denied = client.nothing().await.unwrap_err();
    expect(&denied, Code::PermissionDenied, Started::NotStarted);
    assert_eq!(
        client
            .join(vec!["a".into(), "b".into()], '-')
            .await
            .unwrap(),
        "a-b"
    );
    let fails = client.fail(3).await.unwrap_err();
    expect(&fails, Code::Application(3), Started::Ran);
    assert_eq!(server.stats().running, 0);
}
