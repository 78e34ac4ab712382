//! tonic: unary calls over one HTTP/2 connection, with bytes as they are for messages.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, StdError, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::super::{payload, say, server_of};
use super::{Caller, bulk_of, check, message};
use crate::job::{EndConfig, Job};

/// Messages are bytes, in and out: nothing is encoded.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let len = from.remaining();
        Ok(Some(from.copy_to_bytes(len)))
    }
}

/// Answers with the request, and the bulk behind it.
#[derive(Clone, Debug)]
struct Echo {
    job: Job,
    bulk: Bytes,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Boxed<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (job, bulk) = (self.job.clone(), self.bulk.clone());
        Box::pin(async move {
            let request = request.into_inner();
            let bulk = bulk.slice(..bulk_of(&job, request.len()));
            if bulk.is_empty() {
                return Ok(Response::new(request));
            }
            Ok(Response::new([request, bulk].concat().into()))
        })
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "bench.Echo";
}

impl<B> Service<http::Request<B>> for Echo
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let echo = self.clone();
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(echo, request).await) })
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let listener = TcpListener::bind(config.job.any_port()).await?;
    say("PORT", listener.local_addr()?.port());
    let echo = Echo {
        job: config.job.clone(),
        bulk: payload(config.job.bulk).into(),
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().add_service(echo);
    Ok(server.serve_with_incoming(incoming).await?)
}

#[derive(Debug)]
struct Grpc {
    channel: Channel,
    size: usize,
}

impl Caller for Grpc {
    async fn call(&mut self, number: u64) -> Result<()> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await?;
        let request = Request::new(Bytes::from(message(number, self.size)));
        let path = PathAndQuery::from_static("/bench.Echo/Call");
        let answer = client.unary(request, path, Raw).await?;
        check(answer.get_ref(), number)
    }
}

pub async fn call(config: EndConfig) -> Result<()> {
    let server = Endpoint::from_shared(format!("http://{}", server_of(&config)))?;
    let channel = server.tcp_nodelay(true).connect().await?;
    let caller = |_, size| Grpc {
        channel: channel.clone(),
        size,
    };
    super::call(&config, caller).await
}
