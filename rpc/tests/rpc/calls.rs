//! Calls that end by themselves.

use tokio_fabric_rpc::{
    CallError, Channel, Code, Cx, Result, Server, Started, TraceContext, service, testing,
};

use super::{Handlers, ProbeServer, Refusal, expect, probe};

#[tokio::test(start_paused = true)]
async fn a_call_gives_its_result() {
    let (client, _, _server) = probe().await;
    client.nothing().await.unwrap();
    let words = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(client.join(words, '-').await.unwrap(), "a-b");
    assert_eq!(client.check(12).await.unwrap(), 12);
    assert_eq!(client.reverse("abc".into()).await.unwrap(), "cba");
    assert_eq!(client.reverse("".into()).await.unwrap(), "");
    // Of every size that a frame has room for, small ones and others.
    for len in [1, 111, 112, 113, 4096, 65_520] {
        let bytes: bytes::Bytes = (0..len).map(|it| it as u8).collect();
        let reversed: bytes::Bytes = bytes.iter().rev().copied().collect();
        assert_eq!(
            client.reverse(bytes).await.unwrap(),
            reversed,
            "{len} bytes"
        );
    }
    assert_eq!(client.channel().open_calls(), 0);
}

/// Over the sockets of each backend, on several threads, many at a time.
#[test]
fn calls_work_over_sockets_and_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let client = super::ProbeClient::connect(server.local_addr())
            .await
            .unwrap();
        let calls = (0..1000_u32).map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.check(number % 99).await.unwrap() == number % 99 })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap());
        }
        assert_eq!(server.stats().started, 1000);
    });
}

#[tokio::test(start_paused = true)]
async fn errors_of_handlers_come_as_they_are() {
    let (client, _, _server) = probe().await;
    match client.check(101).await.unwrap_err() {
        CallError::App(refusal) => assert_eq!(refusal, Refusal::TooOld { by: 2 }),
        CallError::Rpc(status) => panic!("{status}"),
    }
    let failed = client.fail(77).await.unwrap_err();
    expect(&failed, Code::Application(77), Started::Ran);
    assert_eq!(failed.message(), "as it was asked to");
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_call_alone() {
    let (client, _, server) = probe().await;
    let failed = client.panic().await.unwrap_err();
    expect(&failed, Code::HandlerPanicked, Started::MaybeRan);
    client.nothing().await.unwrap();
    assert_eq!(server.stats().running, 0);
}

#[service(name = "Probe")]
pub trait Newer {
    #[rpc(signature = "u32->u32!|TooOld{by:u32}")]
    async fn check(&self, cx: &Cx, age: u32, sex: String) -> Result<u32>;
    #[rpc(version = "2")]
    async fn nothing(&self, cx: &Cx) -> Result<()>;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_know_has_not_started() {
    let (client, _, _server) = probe().await;
    let newer = NewerClient::over(client.channel().clone());
    let unknown = newer.nothing().await.unwrap_err();
    expect(&unknown, Code::Unimplemented, Started::NotStarted);
    let undecodable = newer.check(1, "x".to_owned()).await.unwrap_err();
    expect(&undecodable, Code::BadRequest, Started::NotStarted);
    client.nothing().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_said_so_on_either_side() {
    let (client, _, _server) = probe().await;
    let beyond = 16 << 20;
    let request = client.reverse(vec![0; beyond + 1].into()).await.map(drop);
    expect(&request.unwrap_err(), Code::TooLarge, Started::NotStarted);
    let answer = client.large(beyond).await.map(drop);
    expect(&answer.unwrap_err(), Code::TooLarge, Started::Ran);
    let metadata = client.nothing().meta("x", vec![0; 2000]).await.unwrap_err();
    expect(&metadata, Code::TooLarge, Started::NotStarted);
    assert_eq!(client.large(60_000).await.unwrap().len(), 60_000);
}

#[tokio::test(start_paused = true)]
async fn metadata_goes_along() {
    let (client, _, _server) = probe().await;
    let asked = client
        .metadata("tenant".to_owned())
        .meta("a", "1")
        .meta("tenant", "blue");
    assert_eq!(asked.await.unwrap().as_deref(), Some(&b"blue"[..]));
    assert_eq!(client.metadata("none".to_owned()).await.unwrap(), None);
}

#[service]
trait Front {
    async fn time_left(&self, cx: &Cx, trace: bool) -> Result<(Option<u64>, Option<[u8; 16]>)>;
    async fn pass(&self, cx: &Cx) -> Result<(Option<u64>, Option<[u8; 16]>)>;
}

/// Calls itself over a channel of its own.
struct Proxy(std::sync::OnceLock<FrontClient>);

impl Front for std::sync::Arc<Proxy> {
    async fn time_left(&self, cx: &Cx, _: bool) -> Result<(Option<u64>, Option<[u8; 16]>)> {
        let left = cx.time_left().map(|it| it.as_secs());
        Ok((left, cx.trace().map(|it| it.trace_id)))
    }

    async fn pass(&self, cx: &Cx) -> Result<(Option<u64>, Option<[u8; 16]>)> {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let client = self.0.get().expect("set before the first call").clone();
        // In a task of its own too.
        let spawned = tokio::spawn(cx.scope(async move { client.time_left(true).await }));
        spawned.await.expect("no panic")
    }
}

/// G7: "nested calls inherit the remaining time".
#[tokio::test(start_paused = true)]
async fn nested_calls_inherit_deadline_and_trace() {
    let proxy = std::sync::Arc::new(Proxy(std::sync::OnceLock::new()));
    let (channel, _server) = testing::pair(FrontServer::new(proxy.clone()))
        .await
        .unwrap();
    let client = FrontClient::over(channel);
    assert!(proxy.0.set(client.clone()).is_ok());
    let trace = TraceContext {
        trace_id: [9; 16],
        span_id: [1; 8],
        flags: 1,
    };
    let within = std::time::Duration::from_secs(8);
    let (left, of) = client.pass().deadline(within).trace(trace).await.unwrap();
    assert!(
        matches!(left, Some(4..=5)),
        "{left:?} s are left of 8 after 3"
    );
    assert_eq!(of, Some([9; 16]));
    // The server's own bound is there all the same.
    let (left, of) = client.time_left(false).no_deadline().await.unwrap();
    assert!(matches!(left, Some(3599..=3600)), "{left:?} s of an hour");
    assert_eq!(of, None);
}

#[tokio::test(start_paused = true)]
async fn no_server_is_no_call() {
    let net = tokio_fabric::testing::Net::new(1);
    let fabric = net.fabric().unwrap();
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let failed = Channel::builder()
        .fabric(&fabric)
        .connect(nowhere)
        .await
        .unwrap_err();
    expect(&failed, Code::Unavailable, Started::NotStarted);
    assert!(failed.fabric_error().is_some());
}

#[test]
fn two_methods_of_one_number_are_found() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let twice = runtime.block_on(async {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        server
            .add(ProbeServer::new(Handlers::default()))
            .bind("127.0.0.1:0")
            .await
    });
    assert_eq!(twice.unwrap_err().code(), Code::Internal);
}

/// What a service costs its author: "15 lines a server with the trait, 8 a client".
#[test]
fn hello_is_short() {
    let lines = |text: &str| {
        let is_code = |it: &&str| !it.is_empty() && !it.starts_with("//!");
        text.lines().filter(is_code).count()
    };
    assert!(lines(include_str!("../../examples/hello_server.rs")) <= 15);
    let client = include_str!("../../examples/hello_client.rs");
    let (_, client) = client.split_once("mod hello;\n").unwrap();
    assert!(lines(client) <= 8);
}

#[service]
trait Sums {
    /// Says in which task it runs.
    #[rpc(spawn)]
    async fn task(&self, cx: &Cx) -> Result<String>;
    async fn inline(&self, cx: &Cx) -> Result<String>;
}

struct Tasks;

impl Sums for Tasks {
    async fn task(&self, _: &Cx) -> Result<String> {
        Ok(format!("{:?}", tokio::task::id()))
    }

    async fn inline(&self, cx: &Cx) -> Result<String> {
        self.task(cx).await
    }
}

/// A handler runs where frames are read, unless its method says that it is spawned.
#[tokio::test(start_paused = true)]
async fn a_spawned_handler_has_a_task_of_its_own() {
    let (channel, server) = testing::pair(SumsServer::new(Tasks)).await.unwrap();
    let client = SumsClient::over(channel);
    let reader = client.inline().await.unwrap();
    assert_eq!(client.inline().await.unwrap(), reader);
    let (one, other) = (client.task().await.unwrap(), client.task().await.unwrap());
    assert!(one != reader && other != reader && one != other);
    assert_eq!(server.stats().running, 0);
}

/// The names that the generated code uses are none that a trait would have.
#[tokio::test(start_paused = true)]
async fn a_service_may_have_a_short_name() {
    #[service]
    trait S {
        async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
    }
    struct Handler;
    impl S for Handler {
        async fn double(&self, _: &Cx, number: u32) -> Result<u32> {
            Ok(2 * number)
        }
    }
    let (channel, _server) = testing::pair(SServer::new(Handler)).await.unwrap();
    assert_eq!(SClient::over(channel).double(4).await.unwrap(), 8);
}
