//! What programs give to a server may panic: that ends a call, and no other.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::timeout;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    BodyBuf, Call, Code, Codec, CodecOf, Cx, Result, Server, Started, service, testing,
};

use super::expect;

/// Bytes as they are; some cannot be decoded.
struct Fragile;

impl Codec for Fragile {
    const NAME: &'static str = "fragile";
}

impl CodecOf<Vec<u8>> for Fragile {
    fn encode(value: &Vec<u8>, body: &mut BodyBuf) -> Result<(), String> {
        body.extend_from_slice(value);
        Ok(())
    }

    fn decode(body: &[u8]) -> Result<Vec<u8>, String> {
        match body.first() {
            Some(13) => panic!("as the peer has asked it to"),
            _ => Ok(body.to_vec()),
        }
    }
}

#[service(codec = Fragile)]
trait Echo {
    async fn echo(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>>;
}

struct Echoes;

impl Echo for Echoes {
    async fn echo(&self, _: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }
}

/// What panics does so where the frames of all connections are read, or, of a request by
/// reference, in a task of its own.
#[tokio::test(start_paused = true)]
async fn what_panics_before_a_handler_ends_its_call_alone() {
    let server = Server::new().add(EchoServer::new(Echoes));
    let server = server.authorize(|call: &Cx| match call.metadata().is_empty() {
        true => Ok(()),
        false => panic!("as the peer has asked it to"),
    });
    let (channel, server) = testing::connect(&Net::new(3), server).await.unwrap();
    let client = EchoClient::over(channel.clone());
    let answer = async |call: Call<Vec<u8>>| {
        let answered = timeout(Duration::from_secs(5), call.into_future());
        answered.await.expect("it is answered")
    };
    let refused = async |call: Call<Vec<u8>>| {
        let status = answer(call).await.unwrap_err();
        expect(&status, Code::Internal, Started::NotStarted);
    };
    for len in [1, 100_000] {
        refused(client.echo(vec![13; len])).await;
        refused(client.echo(vec![1; len]).meta("token", "any")).await;
        assert_eq!(answer(client.echo(vec![1; len])).await.unwrap().len(), len);
    }
    assert_eq!(channel.open_calls(), 0);
    assert_eq!(server.stats().running, 0);
}

/// What the handlers panic with.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as it was asked to");
    }
}

#[service]
trait Throws {
    async fn throw(&self, cx: &Cx) -> Result<()>;
    async fn answer(&self, cx: &Cx) -> Result<u32>;
}

struct Thrower;

impl Throws for Thrower {
    async fn throw(&self, _: &Cx) -> Result<()> {
        std::panic::panic_any(PanicsWhenDropped)
    }
    async fn answer(&self, _: &Cx) -> Result<u32> {
        Ok(7)
    }
}

/// A handler's panic ends its call alone, also if what it panics with does so when it is dropped.
#[tokio::test(start_paused = true)]
async fn what_a_handler_panics_with_may_panic() {
    let (channel, _server) = testing::pair(ThrowsServer::new(Thrower)).await.unwrap();
    let client = ThrowsClient::over(channel);
    let status = client.throw().await.unwrap_err();
    expect(&status, Code::HandlerPanicked, Started::MaybeRan);
    assert_eq!(client.answer().await.unwrap(), 7);
}
