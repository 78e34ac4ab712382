//! Services whose methods, arguments and types are called like what `#[service]` generates: that
//! this compiles is most of the test.

#![allow(
    clippy::wrong_self_convention,
    reason = "it is about methods that are called like constructors"
)]

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_fabric_rpc::{
    Channel, Cx, LayeredPath, Lend, Pull, Push, Result, Server, Streaming, service, testing,
};

/// Methods that are called like functions of what is generated.
#[service]
trait Functions {
    async fn connect(&self, cx: &Cx, user: String) -> Result<String>;
    async fn over(&self, cx: &Cx, user: String) -> Result<String>;
    async fn channel(&self, cx: &Cx, number: u32) -> Result<u32>;
    async fn layered(&self, cx: &Cx) -> Result<u32>;
    async fn new(&self, cx: &Cx) -> Result<u32>;
    async fn from(&self, cx: &Cx) -> Result<u32>;
    async fn clone(&self, cx: &Cx) -> Result<u32>;
    async fn call(&self, cx: &Cx) -> Result<u32>;
    async fn methods(&self, cx: &Cx) -> Result<u32>;
    async fn codec(&self, cx: &Cx) -> Result<u32>;
    async fn listen(&self, cx: &Cx) -> Result<u32>;
    async fn on_new(&self, cx: &Cx) -> Result<u32>;
    async fn r#type(&self, cx: &Cx, r#fn: u32) -> Result<u32>;
}

struct Named;

impl Functions for Named {
    async fn connect(&self, _: &Cx, user: String) -> Result<String> {
        Ok(user)
    }

    async fn over(&self, _: &Cx, user: String) -> Result<String> {
        Ok(user)
    }

    async fn channel(&self, _: &Cx, number: u32) -> Result<u32> {
        Ok(number)
    }

    async fn layered(&self, _: &Cx) -> Result<u32> {
        Ok(1)
    }

    async fn new(&self, _: &Cx) -> Result<u32> {
        Ok(2)
    }

    async fn from(&self, _: &Cx) -> Result<u32> {
        Ok(3)
    }

    async fn clone(&self, _: &Cx) -> Result<u32> {
        Ok(4)
    }

    async fn call(&self, _: &Cx) -> Result<u32> {
        Ok(5)
    }

    async fn methods(&self, _: &Cx) -> Result<u32> {
        Ok(6)
    }

    async fn codec(&self, _: &Cx) -> Result<u32> {
        Ok(7)
    }

    async fn listen(&self, _: &Cx) -> Result<u32> {
        Ok(8)
    }

    async fn on_new(&self, _: &Cx) -> Result<u32> {
        Ok(9)
    }

    async fn r#type(&self, _: &Cx, r#fn: u32) -> Result<u32> {
        Ok(r#fn)
    }
}

#[tokio::test(start_paused = true)]
async fn methods_are_called_like_functions_of_the_client() {
    let (channel, server) = testing::pair(FunctionsServer::new(Named)).await.unwrap();
    let client: FunctionsClient = channel.clone().into();
    assert_eq!(client.connect("a".into()).await.unwrap(), "a");
    assert_eq!(client.over("b".into()).await.unwrap(), "b");
    assert_eq!(client.channel(7).await.unwrap(), 7);
    let called = [
        client.layered().await,
        client.new().await,
        client.from().await,
        client.clone().await,
        client.call().await,
        client.methods().await,
        client.codec().await,
        client.listen().await,
        client.on_new().await,
        client.r#type(10).await,
    ];
    let numbers: Vec<u32> = called.into_iter().map(Result::unwrap).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    // What the functions would do.
    let own: &Channel = client.as_ref();
    let path = LayeredPath::new(own.service());
    let layered: FunctionsClient<_> = (channel, path).into();
    assert_eq!(layered.layered().await.unwrap(), 1);
    // The wire has the name without what makes it one in Rust.
    let mut names = server.method_stats().map(|(name, _)| name);
    assert!(names.any(|name| name == "Functions/type"));
}

#[tokio::test(start_paused = true)]
async fn a_mock_has_methods_that_are_called_like_functions_of_it() {
    let mock = FunctionsMock::new();
    mock.script_new([Ok(1)]);
    mock.on_on_new(|| async { Ok(2) });
    mock.on_type(|number| async move { Ok(number) });
    let (channel, _server) = testing::pair(FunctionsServer::new(mock)).await.unwrap();
    let client: FunctionsClient = channel.into();
    assert_eq!(client.new().await.unwrap(), 1);
    assert_eq!(client.on_new().await.unwrap(), 2);
    assert_eq!(client.r#type(3).await.unwrap(), 3);
}

/// A type that is called like a parameter of what is generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct B0(u32);

/// Arguments that are called like what generated functions have in themselves.
#[service]
trait Arguments {
    async fn plain(&self, cx: &Cx, arguments: u32, decode: u32, call: u32) -> Result<u32>;
    async fn bare(&self, cx: &Cx, arguments: Bytes) -> Result<Bytes>;
    async fn one(&self, cx: &Cx, call: Pull) -> Result<u64>;
    async fn two(&self, cx: &Cx, b: B0, call: Pull, decode: Push) -> Result<B0>;
    async fn sent(&self, cx: &Cx, call: Streaming<u32>, index: u32) -> Result<u32>;
    async fn both(&self, cx: &Cx, call: Streaming<u32>, answer: u32) -> Result<Streaming<u32>>;
    async fn names(&self, cx: &Cx, cx_: u32, path: u32, handler: u32, value: u32) -> Result<u32>;
    async fn more(&self, cx: &Cx, channel: u32, method: u32, error: u32, this: u32) -> Result<u32>;
}

struct Adder;

impl Arguments for Adder {
    async fn plain(&self, _: &Cx, arguments: u32, decode: u32, call: u32) -> Result<u32> {
        Ok(arguments + decode + call)
    }

    async fn bare(&self, _: &Cx, arguments: Bytes) -> Result<Bytes> {
        Ok(arguments)
    }

    async fn one(&self, _: &Cx, call: Pull) -> Result<u64> {
        Ok(call.len())
    }

    async fn two(&self, _: &Cx, b: B0, call: Pull, decode: Push) -> Result<B0> {
        Ok(B0(b.0 + call.len() as u32 + decode.len() as u32))
    }

    async fn sent(&self, _: &Cx, mut call: Streaming<u32>, index: u32) -> Result<u32> {
        let mut sum = index;
        while let Some(number) = call.next().await {
            sum += number?;
        }
        Ok(sum)
    }

    async fn both(&self, _: &Cx, call: Streaming<u32>, _: u32) -> Result<Streaming<u32>> {
        Ok(call)
    }

    async fn names(&self, _: &Cx, a: u32, b: u32, c: u32, d: u32) -> Result<u32> {
        Ok(a + b + c + d)
    }

    async fn more(&self, _: &Cx, a: u32, b: u32, c: u32, d: u32) -> Result<u32> {
        Ok(a + b + c + d)
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_are_called_like_what_generated_functions_have() {
    let (channel, _server) = testing::pair(ArgumentsServer::new(Adder)).await.unwrap();
    let client = ArgumentsClient::over(channel);
    assert_eq!(client.plain(1, 2, 3).await.unwrap(), 6);
    assert_eq!(client.bare("x".into()).await.unwrap(), "x");
    assert_eq!(client.one(Lend::read(vec![1; 3])).await.unwrap().0, 3);
    let lent = (Lend::read(vec![1; 3]), Lend::write(vec![0; 4]));
    assert_eq!(client.two(B0(1), lent.0, lent.1).await.unwrap().0, B0(8));
    assert_eq!(client.sent(Streaming::of(0..4), 1).await.unwrap(), 7);
    let mut both = client.both(Streaming::of([5]), 0).await.unwrap();
    assert_eq!(both.next().await.unwrap().unwrap(), 5);
    assert_eq!(client.names(1, 2, 3, 4).await.unwrap(), 10);
    assert_eq!(client.more(1, 2, 3, 4).await.unwrap(), 10);
    let mock = ArgumentsMock::new();
    mock.on_both(|_, answer| async move { Ok(Streaming::of([answer])) });
}

/// Methods that are there or not, between others.
#[service]
trait Configured {
    #[cfg(any())]
    async fn before(&self, cx: &Cx, gone: Gone) -> Result<Gone>;
    async fn first(&self, cx: &Cx) -> Result<Bytes>;
    #[cfg(any())]
    async fn between(&self, cx: &Cx, gone: Gone) -> Result<Gone>;
    #[cfg(unix)]
    async fn second(&self, cx: &Cx) -> Result<Bytes>;
    #[cfg(any())]
    async fn after(&self, cx: &Cx, gone: Gone) -> Result<Gone>;
}

struct Whole;

impl Configured for Whole {
    async fn first(&self, _: &Cx) -> Result<Bytes> {
        Ok("first".into())
    }

    async fn second(&self, _: &Cx) -> Result<Bytes> {
        Ok("second".into())
    }
}

#[tokio::test(start_paused = true)]
async fn methods_that_are_configured_out_are_nowhere() {
    let (channel, server) = testing::pair(ConfiguredServer::new(Whole)).await.unwrap();
    let client = ConfiguredClient::over(channel.clone());
    assert_eq!(client.first().await.unwrap(), "first");
    assert_eq!(client.second().await.unwrap(), "second");
    let own = |name: &&str| name.starts_with("Configured/");
    let names = server.method_stats().map(|(name, _)| name).filter(own);
    assert_eq!(names.count(), 2);
    // What would have been encoded is not there either.
    assert_eq!(channel.describe().await.unwrap().codec, "");
    let mock = ConfiguredMock::new();
    mock.script_second([Ok(Bytes::new())]);
}

/// Methods that do something by default.
#[service]
trait Versioned {
    async fn version(&self, _: &Cx) -> Result<u32> {
        Ok(1)
    }

    async fn twice(&self, cx: &Cx, mut number: u32) -> Result<u32> {
        number += self.version(cx).await?;
        tokio::task::yield_now().await;
        Ok(2 * number)
    }
}

struct First;

impl Versioned for First {}

struct Second;

impl Versioned for Second {
    async fn version(&self, _: &Cx) -> Result<u32> {
        Ok(2)
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_does_what_its_trait_says_by_default() {
    let net = tokio_fabric::testing::Net::new(3);
    let servers = [
        (Server::new().add(VersionedServer::new(First)), 22),
        (Server::new().add(VersionedServer::new(Second)), 24),
    ];
    for (server, expected) in servers {
        let (channel, _server) = testing::connect(&net, server).await.unwrap();
        let client = VersionedClient::over(channel);
        assert_eq!(client.twice(10).await.unwrap(), expected);
    }
}

/// Names that a program has shadowed are not what is generated from.
mod shadowed {
    #![allow(
        dead_code,
        non_camel_case_types,
        reason = "it shadows what is generated from"
    )]

    use ::tokio_fabric_rpc::{Cx, Result, service, testing};

    struct Option;
    struct Some;
    struct None;
    struct Ok;
    struct Vec;
    struct String;
    trait Clone {}
    trait Debug {}
    trait Send {}
    trait From {}
    trait Into {}
    trait Future {}
    mod core {}
    mod std {}
    mod tokio_fabric_rpc {}

    #[service]
    trait Plain {
        async fn size(&self, cx: &Cx, name: u32) -> Result<u64>;
    }

    struct Sizes;

    impl Plain for Sizes {
        async fn size(&self, _: &Cx, name: u32) -> Result<u64> {
            Result::Ok(name.into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_a_program_has_shadowed_are_not_used() {
        let (channel, _server) = testing::pair(PlainServer::new(Sizes)).await.unwrap();
        assert_eq!(PlainClient::over(channel).size(3).await.unwrap(), 3);
    }
}

/// The error of a method that the server does not have, or has in another version,
/// names what the client has called, with its version, and what the server has.
#[tokio::test(start_paused = true)]
async fn a_service_or_version_that_is_missing_names_those_of_both_sides() {
    use tokio_fabric_rpc::{Code, Cx, Result, Server, service, testing};

    mod newer {
        use super::{Cx, Result, service};

        #[service]
        pub trait Store {
            #[rpc(version = "2")]
            async fn put(&self, cx: &Cx, number: u64) -> Result<()>;
        }
    }
    #[service]
    trait Store {
        #[rpc(version = "1")]
        async fn put(&self, cx: &Cx, number: u64) -> Result<()>;
        async fn raw(&self, cx: &Cx, bytes: bytes::Bytes) -> Result<bytes::Bytes>;
    }
    let net = tokio_fabric::testing::Net::new(5);
    let server = Server::new().add(StoreServer::new(StoreMock::new()));
    let (channel, _server) = testing::connect(&net, server).await.unwrap();
    let missing = newer::StoreClient::over(channel).put(1).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented);
    let text = missing.to_string();
    assert!(text.starts_with("Store/put#2 at "), "{text}");
    assert!(text.ends_with("it has `Store`, `Store/put#1`"), "{text}");

    let net = tokio_fabric::testing::Net::new(6);
    let (channel, _server) = testing::connect(&net, Server::new()).await.unwrap();
    let store = StoreClient::over(channel);
    let missing = store.raw(bytes::Bytes::new()).await.unwrap_err();
    let text = missing.to_string();
    assert!(text.starts_with("Store/raw at "), "{text}");
    assert!(text.ends_with("it has no services"), "{text}");
    let text = store.put(1).await.unwrap_err().to_string();
    assert!(
        text.contains("the server has no service with a codec"),
        "{text}"
    );
}
