//! Remote calls over TLS: the server knows its clients by their certificates.

use std::time::Duration;

use tokio_fabric::Fabric;
use tokio_fabric_rpc::{Channel, Code, Cx, Result, Server, Status, service};

use crate::certificates::{Authority, Identity, both, hints};

#[derive(Clone)]
struct Tenant(&'static str);

#[service]
trait Who {
    async fn am_i(&self, cx: &Cx) -> Result<String>;
}

struct Answers;

impl Who for Answers {
    async fn am_i(&self, cx: &Cx) -> Result<String> {
        let Tenant(name) = cx.extensions().get().expect("it is authorized");
        Ok(name.to_owned())
    }
}

/// Two tenants, each known by its certificate, a stranger with a certificate of the same authority,
/// and one of another authority, which is turned away before it connects.
#[tokio::test]
async fn a_server_knows_its_tenants_by_their_certificates() {
    let authority = Authority::new();
    let fabric = |identity: Identity| {
        let server = authority.strict_server(identity.clone());
        let tls = both(authority.client_as(identity), server);
        Fabric::open(hints(&tls)).unwrap()
    };
    let (a, b, stranger) = (authority.node(), authority.node(), authority.node());
    let known = [(a.certificate.to_vec(), "a"), (b.certificate.to_vec(), "b")];
    let server = Server::new()
        .add(WhoServer::new(Answers))
        .authorize(move |call: &Cx| {
            let chain = call
                .peer_certificates()
                .expect("every client has one")
                .chain();
            let tenant = known
                .iter()
                .find(|(certificate, _)| chain[0] == certificate[..]);
            let Some((_, name)) = tenant else {
                return Err(Status::new(Code::PermissionDenied, "no tenant"));
            };
            call.extensions().insert(Tenant(name));
            Ok(())
        });
    let server = server.fabric(&fabric(authority.node()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let connect = async |fabric: &Fabric| {
        let channel = Channel::builder()
            .fabric(fabric)
            .connect(server.local_addr());
        Ok::<_, Status>(WhoClient::over(channel.await?))
    };
    for (identity, name) in [(a, "a"), (b, "b")] {
        let who = connect(&fabric(identity)).await.unwrap();
        assert_eq!(who.am_i().await.unwrap(), name);
    }
    let who = connect(&fabric(stranger)).await.unwrap();
    assert_eq!(who.am_i().await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(server.stats().unauthorized_connections, 0);

    let other = Authority::new();
    let identity = other.node();
    let tls = both(
        authority.client_as(identity.clone()),
        other.strict_server(identity),
    );
    let refused = connect(&Fabric::open(hints(&tls)).unwrap()).await;
    assert_eq!(refused.err().unwrap().code(), Code::Unauthenticated);
    while server.stats().unauthorized_connections < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stats = server.stats();
    assert_eq!(
        (stats.unauthorized_calls, stats.unauthorized_connections),
        (1, 1)
    );
}
