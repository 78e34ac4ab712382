//! Who may connect, and who may call.

use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{AuthKey, Channel, Code, Cx, Server, Started, Status};

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
