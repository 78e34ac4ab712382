//! libfabric, which has no authorization keys, and endpoints of ours that demand one.

use std::future::IntoFuture;

use tokio_fabric::testing::{Net, Peer, connect};
use tokio_fabric::{
    Backend, ErrorKind, Event, EventQueue, Hints, PassiveEndpoint, domain::DomainBind,
    info::AuthKey,
};

use crate::harness::{PATIENCE, libfabric};
use crate::proxy::Proxy;

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let limited = runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await });
    limited.expect("the test hangs");
}

/// A peer whose domain demands a key.
fn demanding() -> Peer {
    let hints = Hints::new().domain(|domain| domain.auth_key(AuthKey::new(*b"a key of ours")));
    let fabric = Net::on(Backend::Epoll).fabric_with(hints).unwrap();
    let events = fabric.event_queue().open().unwrap();
    let domain = fabric.domain().open().unwrap();
    domain.bind(&events, DomainBind::empty()).unwrap();
    Peer {
        fabric,
        domain,
        events,
    }
}

fn listen(peer: &Peer) -> (PassiveEndpoint, EventQueue) {
    let requests = peer.fabric.event_queue().open().unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = peer.fabric.passive_endpoint(&requests).listen_at(any);
    (listener.unwrap(), requests)
}

pub fn c_that_connects() {
    let Some(c) = libfabric().or_left_out("a C peer without a key connects") else {
        return;
    };
    run(async {
        let ours = demanding();
        let (listener, requests) = listen(&ours);
        let proxy = Proxy::to(listener.local_addr()).await;
        let c = c.connect("data", proxy.address());
        let Some(Event::ConnRequest(request)) = requests.next().await else {
            panic!("no request");
        };
        assert!(!request.has_auth_key());
        let accepted = request.accept(&ours.domain).data(b"secret").await;
        let refused = accepted.expect_err("a C peer proves nothing");
        assert_eq!(refused.kind(), ErrorKind::NotAuthorized);
        let outcome = c.finished(PATIENCE).await;
        assert!(!outcome.timed_out && !outcome.success(), "{outcome}");
        let said = outcome.stdout.join("\n");
        assert!(said.contains("refused"), "{outcome}");
        let captured = &proxy.captures()[0];
        assert_eq!((captured.listener.len(), captured.listener[1]), (32, 6));
        // Its own kind is welcome as before.
        let (x, y) = connect(&demanding(), &ours).await.unwrap();
        assert!(x.is_connected() && y.is_connected());
    });
}

pub fn c_that_listens() {
    let Some(c) = libfabric().or_left_out("a C peer without a key listens") else {
        return;
    };
    run(async {
        let ours = demanding();
        let c = c.listen("write");
        let proxy = Proxy::to(c.address()).await;
        let x = ours.domain.endpoint().open().unwrap();
        let refused = x.connect(proxy.address()).into_future().await;
        let refused = refused.expect_err("a C peer proves nothing");
        assert_eq!(refused.kind(), ErrorKind::NotAuthorized);
        let outcome = c.finished(PATIENCE).await;
        assert!(!outcome.success(), "{outcome}");
        assert_eq!(proxy.captures()[0].dialer.len(), 32, "the request alone");
    });
}
