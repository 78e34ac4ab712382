//! One workload of connected, connectionless and datagram endpoints, for each driver.

use std::future::{IntoFuture, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;

use futures::future::join;
use tokio_fabric::testing::Net;
use tokio_fabric::{EndpointType, Event, Hints, info::AtomicOp};

use crate::common::peers::{listener, open_region, request};

/// Everything that connected endpoints do, once.
async fn connected_workload(net: &Net) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let queue = b.domain.completion_queue().open().unwrap();
    let sends = a.domain.counter().unwrap();
    let (listening, requests) = listener(&b);
    let x = a.domain.endpoint().send_counter(&sends).open().unwrap();
    let y = b.domain.endpoint().completion_queue(&queue).open().unwrap();
    let accepting = async { y.accept(request(&requests).await).await.unwrap() };
    let connecting = x.connect(listening.local_addr()).into_future();
    let (connected, _) = join(connecting, accepting).await;
    connected.unwrap();
    for events in [&a.events, &b.events] {
        assert!(matches!(events.next().await, Some(Event::Connected { .. })));
    }
    // Messages: small and large, to a future, to a queue, counted.
    for len in [8, 1 << 20] {
        let (sent, received) = join(
            x.send(vec![7; len]).into_future(),
            y.recv(vec![0; len]).into_future(),
        )
        .await;
        sent.unwrap();
        assert_eq!(received.unwrap().1, vec![7; len]);
    }
    y.recv(vec![0; 8]).queue(5).await.unwrap();
    let (_, completion) = join(x.send("by queue").into_future(), queue.next()).await;
    assert_eq!(completion.unwrap().context, 5.into());
    assert!(sends.wait_for(3).await.unwrap() >= 3);
    // RMA and atomics: the target has nothing to await but the end.
    let region = open_region(&b, vec![1u8; 4096]).await;
    let remote = region.remote();
    let (done, mut ended) = tokio::sync::oneshot::channel();
    let initiates = async {
        let (_, bytes) = x.read(vec![0; 4096], remote).await.unwrap();
        assert_eq!(bytes, vec![1; 4096]);
        let write = x.write(vec![2; 8], remote.slice(0..8).unwrap());
        write.delivery_complete().await.unwrap();
        let add = x.atomic(AtomicOp::Sum, [1u64], remote.slice(8..16).unwrap());
        add.await.unwrap();
        done.send(()).unwrap();
    };
    let mut target = y.recv(vec![0; 8]).post().unwrap();
    let serves = poll_fn(|cx| {
        assert!(pin!(&mut target).poll(cx).is_pending(), "nothing is sent");
        pin!(&mut ended).poll(cx)
    });
    join(initiates, serves).await.1.unwrap();
    drop(target);
    drop(region.deregister().await.unwrap());
    let (a_ends, b_ends) = join(x.shutdown(), y.shutdown()).await;
    a_ends.and(b_ends).unwrap();
    drop((x, y, queue, sends));
    join(a.domain.closed(), b.domain.closed()).await;
}

async fn connectionless_workload(net: &Net) {
    let (a, b) = net.rdm_pair().unwrap();
    let port = b.endpoint.local_addr().port();
    let name = format!("localhost:{port}");
    // The name may be of another family than the endpoint: it is found either way.
    a.endpoint.resolve(&name).await.unwrap();
    for len in [8, 1 << 20] {
        let (sent, received) = join(
            a.endpoint
                .send_tagged(vec![3; len], a.other, 9)
                .into_future(),
            b.endpoint.recv_tagged(vec![0; len], 9).into_future(),
        )
        .await;
        sent.unwrap();
        assert_eq!(received.unwrap().1, vec![3; len]);
    }
    let (a_ends, b_ends) = join(a.endpoint.shutdown(), b.endpoint.shutdown()).await;
    a_ends.and(b_ends).unwrap();
}

async fn datagram_workload(net: &Net) {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let hints = || {
        Hints::new()
            .endpoint(EndpointType::Dgram)
            .interface("lo")
            .source(here)
    };
    let domains = [(); 2].map(|()| net.fabric_with(hints()).unwrap().domain().open().unwrap());
    let vectors = [0, 1].map(|at: usize| domains[at].address_vector().open().unwrap());
    let [a, b] = [0, 1].map(|at: usize| {
        let builder = domains[at].dgram_endpoint().address_vector(&vectors[at]);
        builder.bind(here).open().unwrap()
    });
    let to_b = vectors[0].insert(b.local_addr()).await.unwrap();
    let (sent, received) = join(
        a.send("by hand", to_b).into_future(),
        b.recv(vec![0; 16]).into_future(),
    )
    .await;
    sent.unwrap();
    let (received, bytes) = received.unwrap();
    assert_eq!(&bytes[..received.len], b"by hand");
    let (a_ends, b_ends) = join(a.shutdown(), b.shutdown()).await;
    a_ends.and(b_ends).unwrap();
}

/// Everything that endpoints of each type do, once, and their orderly end.
pub async fn workload(net: Net) {
    connected_workload(&net).await;
    connectionless_workload(&net).await;
    datagram_workload(&net).await;
}
