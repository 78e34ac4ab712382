//! A server's services as one `tower_service::Service`, and the layers around it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tower_layer::Layer;
use tower_service::Service;

use super::connection::ServerConnection;
use super::service::{Handling, Incoming, IncomingBody, Reply, Routes};
use crate::cx::Cx;
use crate::method::Method;
use crate::status::{Code, Result, Status};
use crate::wire::{LentRegions, Streams};

/// The boxed error that a layer of a server may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A call on its way through a server's layers to its handler, with encoded arguments.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// use tokio_fabric_rpc::{Request, Server};
///
/// let log = tower::util::MapRequestLayer::new(|request: Request| {
///     println!("{} calls {}", request.cx().peer(), request.cx().method());
///     request
/// });
/// let server = Server::new().layer(log);
/// # }
/// ```
#[derive(Clone)]
pub struct Request {
    cx: Cx,
    body: Bytes,
    lent: LentRegions,
    streams: Streams,
    connection: Arc<ServerConnection>,
}

impl Request {
    /// The call's context.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    /// The method that is called.
    pub fn method(&self) -> &'static Method {
        self.cx.call().method
    }

    /// The arguments, encoded.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("cx", &self.cx)
            .field("len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The services of a server as a `tower_service::Service`: the innermost service in the layers of
/// [`Server::layer`](super::Server::layer).
///
/// It is always ready. It fails if a call is refused before its handler starts; the result or error
/// of a handler is a [`Reply`].
#[derive(Clone)]
pub struct Route(Arc<Routes>);

impl Service<Request> for Route {
    type Response = Reply;
    type Error = Status;
    type Future = RouteFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> RouteFuture {
        let Request {
            cx,
            body,
            lent,
            streams,
            connection,
        } = request;
        let mut incoming = Incoming {
            cx: &cx,
            body: IncomingBody::Own(body),
            lent: &lent,
            streams,
            connection: &connection,
            spare: None,
        };
        RouteFuture(self.0.handle(&mut incoming).map_err(Some))
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.0).finish()
    }
}

/// The future of a call that [`Route`] handles.
///
/// # Cancel safety
/// Dropping the future drops the handler.
pub struct RouteFuture(Result<Handling, Option<Status>>);

impl Future for RouteFuture {
    type Output = Result<Reply>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Result<Reply>> {
        match &mut self.get_mut().0 {
            Ok(handling) => handling.poll(task).map(Ok),
            Err(status) => {
                let refused = status.take();
                Poll::Ready(Err(refused.expect("not polled after its end")))
            }
        }
    }
}

impl fmt::Debug for RouteFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RouteFuture").field(&self.0.is_ok()).finish()
    }
}

/// The services of a server with its layers.
pub(crate) trait Stack: Send + Sync {
    /// Passes a call through the layers.
    fn pass(&self, request: Request) -> Handling;
}

/// Builds the stack around the services once the services are known.
pub(crate) type MakeStack = Box<dyn FnOnce(Arc<Routes>) -> Box<dyn Stack> + Send>;

struct Layered<S>(Mutex<S>);

pub(crate) fn layered<L>(layer: L) -> MakeStack
where
    L: Layer<Route> + Send + 'static,
    L::Service: Service<Request, Response = Reply> + Clone + Send + 'static,
    <L::Service as Service<Request>>::Error: Into<BoxError>,
    <L::Service as Service<Request>>::Future: Send,
{
    Box::new(move |routes| Box::new(Layered(Mutex::new(layer.layer(Route(routes))))))
}

impl<S> Stack for Layered<S>
where
    S: Service<Request, Response = Reply> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    fn pass(&self, request: Request) -> Handling {
        // Each call has its own clone of the service, so that readiness belongs to one call.
        let mut service = {
            let service = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            service.clone()
        };
        Handling::new(async move {
            let cx = request.cx.clone();
            let ready = poll_fn(|task| service.poll_ready(task).map_err(Into::into)).await;
            if let Err(error) = ready {
                return Reply::refusal(&status_of(error, &cx));
            }
            let passed = service.call(request).await;
            passed.unwrap_or_else(|error| Reply::refusal(&status_of(error.into(), &cx)))
        })
    }
}

/// Returns the status of a call whose layer failed. This server determines whether a handler has
/// begun, whatever the layer's error claims.
fn status_of(error: BoxError, cx: &Cx) -> Status {
    let of_layer = match error.downcast::<Status>() {
        Ok(status) => *status,
        Err(error) => Status::new(code_of(&error, cx), error.to_string()),
    };
    match cx.has_started() {
        true if of_layer.is_not_started() => {
            Status::maybe_ran(of_layer.code(), of_layer.message().to_owned())
        }
        true => of_layer,
        false => of_layer.with_started(crate::status::Started::NotStarted),
    }
}

/// Returns the code for a layer's error. A layer that fails after the handler has begun cancels the
/// handler.
fn code_of(error: &BoxError, cx: &Cx) -> Code {
    match code_of_layer(error) {
        Code::Internal if cx.has_started() => Code::Cancelled,
        code => code,
    }
}

#[cfg(feature = "tower")]
fn code_of_layer(error: &BoxError) -> Code {
    if error.is::<tower::load_shed::error::Overloaded>() {
        Code::Overloaded
    } else if error.is::<tower::timeout::error::Elapsed>() {
        Code::DeadlineExceeded
    } else {
        Code::Internal
    }
}

#[cfg(not(feature = "tower"))]
fn code_of_layer(_: &BoxError) -> Code {
    Code::Internal
}

impl Request {
    pub(crate) fn new(incoming: &mut Incoming<'_>) -> Request {
        Request {
            cx: incoming.cx.clone(),
            body: incoming.body.kept(),
            lent: incoming.lent.iter().copied().collect(),
            streams: incoming.streams,
            connection: Arc::clone(incoming.connection),
        }
    }
}
