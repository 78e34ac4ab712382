//! Who may connect, and who may call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{AuthKey, Channel, Code, Cx, Result, Server, Started, Status, service};

use super::{Handlers, ProbeClient, ProbeServer, expect, probe_with};

/// "An `Authorize` hook before the body is decoded."
#[tokio::test(start_paused = true)]
async fn a_hook_sees_method_peer_and_metadata_before_anything_is_decoded() {
    let server = Server::new().authorize(|call: &Cx| {
        assert!(call.peer().ip().is_loopback());
        match call.metadata().value("token") {
            Some(b"good") if call.method() == "Probe/check" => Ok(()),
            Some(_) => Err(Status::new(Code::PermissionDenied, call.method())),
            None => Err(Status::new(Code::Unauthenticated, "")),
        }
    });
    let (client, _, server) = probe_with(server).await;
    let unknown = client.fail(1).await.unwrap_err();
    expect(&unknown, Code::Unauthenticated, Started::NotStarted);
    let denied = client.nothing().meta("token", "good").await.unwrap_err();
    expect(&denied, Code::PermissionDenied, Started::NotStarted);
    assert_eq!(denied.message(), "Probe/nothing");
    assert_eq!(client.check(7).meta("token", "good").await.unwrap(), 7);
    // What cannot be decoded is refused by name all the same.
    let newer = super::calls::NewerClient::over(client.channel().clone());
    let denied = newer.check(1, "x".into()).await.unwrap_err();
    expect(&denied, Code::Unauthenticated, Started::NotStarted);
    let stats: Vec<_> = server
        .method_stats()
        .filter(|it| it.1.refused > 0)
        .collect();
    assert_eq!(stats.len(), 3, "{stats:?}");
    // The built-in methods too are asked for.
    let health = client.channel().check().await.unwrap_err();
    expect(&health, Code::Unauthenticated, Started::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_key_connects() {
    let net = Net::new(11);
    let key = |bytes: &[u8]| AuthKey::new(bytes);
    let server = Server::new()
        .add(ProbeServer::new(Handlers::default()))
        .auth_key(key(b"secret"))
        .fabric(&net.fabric().unwrap());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let connect = |key: Option<AuthKey>| {
        let builder = Channel::builder().fabric(&net.fabric().unwrap());
        let builder = match key {
            Some(key) => builder.auth_key(key),
            None => builder,
        };
        builder.connect(server.local_addr())
    };
    for wrong in [None, Some(key(b"secreT"))] {
        let refused = connect(wrong).await.unwrap_err();
        expect(&refused, Code::Unauthenticated, Started::NotStarted);
    }
    let channel = connect(Some(key(b"secret"))).await.unwrap();
    ProbeClient::over(channel).nothing().await.unwrap();
}

/// A wrong key is not an outage: calls say so at once, whatever waits for a connection; and the
/// server is not asked many times a second.
#[tokio::test(start_paused = true)]
async fn calls_of_a_channel_with_a_wrong_key_are_unauthenticated() {
    let net = Net::new(14);
    let serve = async |key: &'static [u8]| {
        let node = net.node("server");
        let server = Server::new()
            .add(ProbeServer::new(Handlers::default()))
            .auth_key(AuthKey::new(key))
            .fabric(&node.fabric().unwrap());
        server.bind(node.addr(7000)).await.unwrap()
    };
    let server = serve(b"secret").await;
    let connect = |key: &'static [u8]| {
        let fabric = net.node("client").fabric().unwrap();
        let builder = Channel::builder().fabric(&fabric);
        let builder = builder.auth_key(AuthKey::new(key));
        builder.connect_lazy(server.local_addr()).unwrap()
    };
    let channel = connect(b"wrong");
    let client = ProbeClient::over(channel.clone());
    let begun = Instant::now();
    for waits in [false, true, false, true] {
        let call = client.nothing();
        let call = if waits { call.wait_for_ready() } else { call };
        let refused = call.await.unwrap_err();
        expect(&refused, Code::Unauthenticated, Started::NotStarted);
        #[cfg(feature = "tower")]
        {
            let layered = tower::ServiceBuilder::new()
                .retry(tokio_fabric_rpc::retry::NotStarted::new())
                .service(channel.service());
            let refused = client.clone().layered(layered).nothing().await;
            expect(
                &refused.unwrap_err(),
                Code::Unauthenticated,
                Started::NotStarted,
            );
        }
    }
    assert!(begun.elapsed() < Duration::from_millis(100));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = server.stats().unauthorized_connections;
    assert!((5..=25).contains(&asked), "{asked}");
    // Once the server has the key, the channel is found to be in order.
    drop(server);
    net.crash("server");
    net.restart("server");
    let _server = serve(b"wrong").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    client.nothing().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_server_lacks_is_refused() {
    let net = Net::new(12);
    let server = Server::new().fabric(&net.fabric().unwrap());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let builder = Channel::builder().fabric(&net.fabric().unwrap());
    let builder = builder.auth_key(AuthKey::new(&b"secret"[..]));
    let refused = builder.connect(server.local_addr()).await.unwrap_err();
    expect(&refused, Code::Unauthenticated, Started::NotStarted);
}

/// The server has a key for each tenant. The hook hands on what it finds out.
#[tokio::test(start_paused = true)]
async fn a_call_knows_the_key_that_its_caller_has_proven() {
    #[derive(Clone)]
    struct Tenant(String);

    #[service]
    trait Who {
        async fn am_i(&self, cx: &Cx) -> Result<String>;
    }
    struct Answers;
    impl Who for Answers {
        async fn am_i(&self, cx: &Cx) -> Result<String> {
            let Tenant(name) = cx.extensions().get().expect("it is authorized");
            assert_eq!(cx.connection_extensions().get::<Tenant>().unwrap().0, name);
            Ok(name)
        }
    }

    let net = Net::new(13);
    let key = |bytes: &[u8]| AuthKey::new(bytes);
    let server = Server::new()
        .add(WhoServer::new(Answers))
        .named_auth_key("a", key(b"secret of a"))
        .named_auth_key("b", key(b"secret of b"))
        .authorize(|call: &Cx| {
            let name = call.auth_key_name().expect("every client has a key");
            assert!(
                call.extensions().get::<Tenant>().is_none(),
                "of the last call"
            );
            call.connection_extensions().insert(Tenant(name.to_owned()));
            call.extensions().insert(Tenant(name.to_owned()));
            Ok(())
        })
        .fabric(&net.fabric().unwrap());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let connect = |name: &str, bytes: &[u8]| {
        let builder = Channel::builder().fabric(&net.fabric().unwrap());
        let builder = builder.named_auth_key(name, key(bytes));
        builder.connect(server.local_addr())
    };
    for (name, bytes) in [("a", b"secret of a"), ("b", b"secret of b")] {
        let who = WhoClient::over(connect(name, bytes).await.unwrap());
        for _ in 0..3 {
            assert_eq!(who.am_i().await.unwrap(), name);
        }
    }
    assert_eq!(server.stats().unauthorized_connections, 0);
    // A tenant cannot pose as another, and there are no others.
    for (name, bytes) in [("a", b"secret of b"), ("c", b"secret of a")] {
        let refused = connect(name, bytes).await.unwrap_err();
        expect(&refused, Code::Unauthenticated, Started::NotStarted);
    }
    let unnamed = Channel::builder().fabric(&net.fabric().unwrap());
    let unnamed = unnamed
        .auth_key(key(b"secret of a"))
        .connect(server.local_addr());
    expect(
        &unnamed.await.unwrap_err(),
        Code::Unauthenticated,
        Started::NotStarted,
    );
    while server.stats().unauthorized_connections < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let long = "x".repeat(33);
    expect(
        &connect(&long, b"secret of a").await.unwrap_err(),
        Code::Internal,
        Started::NotStarted,
    );
    let named = Server::new().named_auth_key("", key(b"secret"));
    let failed = named
        .fabric(&net.fabric().unwrap())
        .bind("127.0.0.1:0")
        .await;
    expect(&failed.unwrap_err(), Code::Internal, Started::NotStarted);
}

/// A value that belongs to a call is dropped with the call, though its context is used again.
#[tokio::test(start_paused = true)]
async fn what_a_call_was_given_ends_with_the_call() {
    let token = Arc::new(());
    let held = Arc::clone(&token);
    let server = Server::new().authorize(move |call: &Cx| {
        call.extensions().insert(Arc::clone(&held));
        Ok(())
    });
    let (client, _, _server) = probe_with(server).await;
    client.nothing().await.unwrap();
    assert_eq!(Arc::strong_count(&token), 2);
    client.wait(Some(1)).await.unwrap();
    while Arc::strong_count(&token) > 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Counts the events at level info with this text.
struct Events(&'static str, Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Text<'t>(&'t str, bool);
        impl tracing::field::Visit for Text<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.1 |= field.name() == "message" && format!("{value:?}") == self.0;
            }
        }
        let mut text = Text(self.0, false);
        event.record(&mut text);
        if text.1 && *event.metadata().level() == tracing::Level::INFO {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// "Failed authorizations are logged at `info` (rate-limited), counted in stats."
#[tokio::test(start_paused = true)]
async fn calls_that_are_not_authorized_are_counted_and_logged_at_a_bounded_rate() {
    use tracing_subscriber::layer::SubscriberExt;

    let logged = Arc::new(AtomicUsize::new(0));
    let events = Events("a call is not authorized", Arc::clone(&logged));
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(events));
    let refuse = |_: &Cx| Err(Status::new(Code::PermissionDenied, "no"));
    let (client, _, server) = probe_with(Server::new().authorize(refuse)).await;
    // Other tests may come to the event beside this one, with what they knew before.
    client.nothing().await.unwrap_err();
    tracing::callsite::rebuild_interest_cache();
    tokio::time::sleep(Duration::from_secs(1)).await;
    logged.store(0, Ordering::SeqCst);
    for _ in 0..50 {
        let denied = client.nothing().await.unwrap_err();
        expect(&denied, Code::PermissionDenied, Started::NotStarted);
    }
    let stats = server.stats();
    assert_eq!((stats.unauthorized_calls, stats.refused), (51, 51));
    let most = tokio_fabric_rpc::limits::LOGGED_PER_SECOND as usize;
    assert_eq!(logged.load(Ordering::SeqCst), most);
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.nothing().await.unwrap_err();
    assert_eq!(logged.load(Ordering::SeqCst), most + 1);
}
