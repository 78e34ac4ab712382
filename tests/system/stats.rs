//! What objects count and hold (`tokio_fabric::stats`): every field moves by what it is for.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio_fabric::ep::{Liveness, OnRefusal};
use tokio_fabric::info::AtomicOp;
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Access, EndpointType, ErrorKind, Event, Hints, RemoteRegion, UserContext, av::FabricAddr,
    domain::Domain, stats::EndpointStats,
};

use crate::common::on_every_backend_at_once;
use crate::common::peers::{any, no_listener, request};

/// Waits for what is to come in time that passes at once.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// `succeeded`, `canceled`, `failed`, bytes.
macro_rules! counts {
    ($counts:expr) => {{
        let it = $counts;
        [it.succeeded, it.canceled, it.failed, it.bytes]
    }};
}

#[test]
fn an_endpoint_counts_operations_by_kind_and_outcome() {
    on_every_backend_at_once(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let (a, b) = connect(&us, &them).await.unwrap();
        assert_eq!((a.stats().connects, a.stats().connections), (1, 1));
        let region = them.domain.register(vec![0u8; 4096]);
        let region = region.access(Access::all()).await.unwrap();
        let remote = region.remote();

        let receive = b.recv(vec![0; 64]).post().unwrap();
        a.send(vec![1; 10]).await.unwrap();
        receive.await.unwrap();
        let receive = b.recv(vec![0; 64]).post().unwrap();
        a.inject(&[1; 5]).unwrap();
        receive.await.unwrap();
        // The completion is counted when the frame has gone, which the other side's does not show.
        until("the injected message has gone", || {
            a.stats().operations.sends.succeeded == 2
        })
        .await;
        a.write(vec![2; 4096], remote).await.unwrap();
        a.read(vec![0; 100], remote).await.unwrap();
        let word = remote.slice(..8).unwrap();
        a.fetch_atomic(AtomicOp::Sum, 3u64, word).await.unwrap();

        // A message that does not fit, and a receive that is taken back.
        let short = b.recv(vec![0; 1]).post().unwrap();
        a.send(vec![1; 2]).await.unwrap();
        assert_eq!(short.await.unwrap_err().kind(), ErrorKind::Truncated);
        let receive = b.recv(vec![0; 1]).post().unwrap();
        assert_eq!(b.stats().receives.posted, 1);
        assert!(b.cancel(receive.id()));
        receive.await.unwrap_err();
        assert_eq!(b.stats().receives.posted, 0);

        // An access that is refused.
        let past = RemoteRegion {
            len: 9000,
            ..remote
        };
        let refused = a.read(vec![0; 9000], past).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);

        let (a, b) = (a.stats(), b.stats());
        assert_eq!(counts!(a.operations.sends), [3, 0, 0, 17]);
        assert_eq!(counts!(a.operations.writes), [1, 0, 0, 4096]);
        assert_eq!(counts!(a.operations.reads), [1, 0, 1, 100]);
        assert_eq!(counts!(a.operations.atomics), [1, 0, 0, 8]);
        assert_eq!(counts!(b.operations.receives), [2, 1, 1, 15]);
        assert_eq!(b.accesses, 3);
        assert_eq!((b.refusals.out_of_bounds, b.refusals.total()), (1, 1));
        assert_eq!(a.accesses + a.refusals.total(), 0);
        // All that one has sent the other has got, more than the payloads.
        assert!(
            a.bytes_sent > 4113 && b.bytes_received >= 4113,
            "{a:?} {b:?}"
        );
        assert!(b.bytes_sent > 108 && a.bytes_received > 108, "{a:?} {b:?}");
        assert!(a.backend_sends >= 6 && a.backend_receives >= 3, "{a:?}");

        // The objects around it.
        let stats = region.stats();
        assert_eq!((stats.accesses, stats.refused), (3, 1));
        assert_eq!(stats.bytes, 4096 + 100 + 8);
        let domain = them.domain.stats();
        assert_eq!((domain.endpoints, domain.regions), (1, 1));
        assert_eq!((domain.registrations, domain.accesses), (1, 3));
        assert!(
            domain.driver.wakes > 0 && domain.driver.turns > 0,
            "{domain:?}"
        );
        assert!(domain.driver.completions > 0, "{domain:?}");
        region.deregister().await.unwrap();
        let domain = them.domain.stats();
        assert_eq!((domain.regions, domain.registrations), (0, 1));
    });
}

/// What waits: operations behind full queues, messages without a receive, senders without credit.
#[tokio::test(start_paused = true)]
async fn an_endpoint_shows_what_waits() {
    let net = Net::new(1);
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let a = us.domain.endpoint().transmit_size(8).open().unwrap();
    let b = (them.domain.endpoint())
        .unexpected_bytes(1000)
        .open()
        .unwrap();
    connect_endpoints(&a, &b, &them.fabric).await.unwrap();
    let credit = a.stats().credit_bytes;
    assert!(credit > 0, "the HELLO of the peer says so");

    let sends: Vec<_> = (0..10)
        .map(|_| a.send(vec![0; 100]).post().unwrap())
        .collect();
    until("the peer holds what fits", || {
        b.stats().receives.unexpected_bytes > 500
    })
    .await;
    until("the next one waits", || a.stats().stalls == 1).await;
    let (here, there) = (a.stats(), b.stats());
    let held = there.receives.unexpected_messages;
    assert!((1..10).contains(&held), "{there:?}");
    assert!(here.credit_bytes < credit, "{here:?}");
    assert_eq!(here.in_flight + here.waiting, 10 - held, "{here:?}");
    assert_eq!(there.receives.unexpected_bytes, b.unexpected_bytes());

    let crowd: Vec<_> = (0..5)
        .map(|_| a.send(vec![0; 100]).post().unwrap())
        .collect();
    assert!(a.stats().waiting > 0 && a.stats().in_flight == 8);
    for _ in 0..15 {
        b.recv(vec![0; 100]).await.unwrap();
    }
    for send in sends.into_iter().chain(crowd) {
        send.await.unwrap();
    }
    let (here, there) = (a.stats(), b.stats());
    assert_eq!((here.in_flight, here.waiting), (0, 0));
    assert_eq!(there.receives.unexpected_messages, 0);
    let small = them.domain.endpoint().receive_size(1).open().unwrap();
    let posted = [(); 3].map(|()| small.recv(vec![0; 8]).post().unwrap());
    assert_eq!(
        (
            small.stats().receives.posted,
            small.stats().receives.waiting
        ),
        (1, 2)
    );
    drop(posted);
}

/// Refusals by reason: what the owner took away is another one than what never was.
#[tokio::test(start_paused = true)]
async fn refusals_are_counted_by_reason() {
    let net = Net::new(2);
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let open = |peer: &Peer| {
        let builder = peer.domain.endpoint();
        builder
            .on_refusal(OnRefusal::Continue { limit: 10 })
            .open()
            .unwrap()
    };
    let (a, b) = (open(&us), open(&them));
    connect_endpoints(&a, &b, &them.fabric).await.unwrap();
    let region = them.domain.register(vec![0u8; 64]);
    let region = region.access(Access::REMOTE_READ).await.unwrap();
    let remote = region.remote();
    let unknown = RemoteRegion {
        key: remote.key ^ 1,
        ..remote
    };
    a.read(vec![0; 64], unknown).await.unwrap_err();
    let writable = RemoteRegion {
        access: Access::all(),
        ..remote
    };
    a.write(vec![0; 64], writable).await.unwrap_err();
    region.deregister().await.unwrap();
    a.read(vec![0; 64], remote).await.unwrap_err();
    until("all are answered", || b.stats().refusals.total() == 3).await;
    let refusals = b.stats().refusals;
    assert_eq!(
        (
            refusals.unknown_key,
            refusals.access_denied,
            refusals.revoked
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (region.stats().refused, them.domain.stats().accesses),
        (0, 0)
    );
}

/// A peer that stops is probed, missed and lost.
#[tokio::test(start_paused = true)]
async fn probes_misses_and_losses_are_counted() {
    let net = Net::new(3);
    let (here, there) = (net.node("here"), net.node("there"));
    let (us, them) = (here.peer().unwrap(), there.peer().unwrap());
    let quick = Liveness::default()
        .interval(Duration::from_millis(100))
        .rounds(3);
    let a = us.domain.endpoint().liveness(quick).open().unwrap();
    let b = them.domain.endpoint().open().unwrap();
    let requests = them.fabric.event_queue().open().unwrap();
    let listener = them.fabric.passive_endpoint(&requests);
    let listener = listener.listen_at(there.addr(7471)).unwrap();
    let connecting = tokio::spawn(a.connect(listener.local_addr()).into_future());
    b.accept(request(&requests).await).await.unwrap();
    connecting.await.unwrap().unwrap();

    let region = them.domain.register(vec![0u8; 8]);
    let region = region.access(Access::REMOTE_READ).await.unwrap();
    net.hang("there");
    a.read(vec![0; 8], region.remote()).await.unwrap_err();
    let stats = a.stats();
    assert_eq!((stats.connections, stats.losses), (0, 1));
    assert!(stats.probes >= 1 && stats.probe_misses >= 3, "{stats:?}");
}

/// An RDM endpoint keeps the counts of connections that have ended, and counts those that came
/// again.
#[tokio::test(start_paused = true)]
async fn a_connectionless_endpoint_counts_over_its_connections() {
    let net = Net::new(4);
    let (a, b) = net.rdm_pair().unwrap();
    let (x, y) = (&a.endpoint, &b.endpoint);
    for round in 1..=3 {
        x.send_tagged("hello", a.other, 7).await.unwrap();
        until("it waits in the store", || {
            y.stats().receives.unexpected_messages == 1
        })
        .await;
        y.recv_tagged(vec![0; 16], 7).await.unwrap();
        let receive = y.recv_tagged(vec![0; 16], 8).post().unwrap();
        assert_eq!(y.stats().receives.posted, 1);
        x.send_tagged("there", a.other, 8).await.unwrap();
        receive.await.unwrap();
        let stats = x.stats();
        assert_eq!((stats.connections, stats.connects), (1, round));
        assert_eq!(stats.reconnects, round - 1);
        x.disconnect(a.other).unwrap();
        until("it has ended", || {
            x.stats().connections + y.stats().connections == 0
        })
        .await;
        assert_eq!(
            counts!(x.stats().operations.sends),
            [2 * round, 0, 0, 10 * round]
        );
        assert_eq!(
            counts!(y.stats().operations.receives),
            [2 * round, 0, 0, 10 * round]
        );
        assert_eq!(y.stats().receives, Default::default());
    }
    let listener = y.listener_stats();
    assert_eq!(
        (listener.incoming, listener.requests, listener.accepted),
        (3, 3, 3)
    );
    let receive = y.recv_tagged(vec![0; 16], 9).post().unwrap();
    assert!(y.cancel(receive.id()));
    receive.await.unwrap_err();
    assert_eq!(counts!(y.stats().operations.receives), [6, 1, 0, 30]);
    let vector = x.address_vector().stats();
    assert_eq!((vector.addresses, vector.inserted), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn endpoints_count_the_messages_that_shared_receives_get() {
    let net = Net::new(5);
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let context = them.domain.receive_context().open().unwrap();
    let a = us.domain.endpoint().open().unwrap();
    let b = (them.domain.endpoint())
        .receive_context(&context)
        .open()
        .unwrap();
    connect_endpoints(&a, &b, &them.fabric).await.unwrap();
    a.send("waits").await.unwrap();
    until("it waits", || {
        context.stats().receives.unexpected_messages == 1
    })
    .await;
    context.recv(vec![0; 8]).await.unwrap();
    let receive = context.recv(vec![0; 8]).post().unwrap();
    assert_eq!(context.stats().receives.posted, 1);
    a.send("direct").await.unwrap();
    receive.await.unwrap();
    assert_eq!(counts!(b.stats().operations.receives), [2, 0, 0, 11]);
    assert_eq!(counts!(context.stats().ended), [0, 0, 0, 0]);
    let receive = context.recv(vec![0; 8]).post().unwrap();
    assert!(context.cancel(receive.id()));
    receive.await.unwrap_err();
    assert_eq!(counts!(context.stats().ended), [0, 1, 0, 0]);
}

#[test]
fn datagrams_are_counted() {
    on_every_backend_at_once(|net| async move {
        let hints = || {
            let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
            hints.source((Ipv4Addr::LOCALHOST, 0).into())
        };
        let domain = || -> Domain {
            let fabric = net.fabric_with(hints()).unwrap();
            fabric.domain().open().unwrap()
        };
        let (a, b) = (domain(), domain());
        let vector = a.address_vector().open().unwrap();
        let from = a.dgram_endpoint().address_vector(&vector).open().unwrap();
        let others = b.address_vector().open().unwrap();
        let builder = b
            .dgram_endpoint()
            .address_vector(&others)
            .unexpected_bytes(200);
        let to = builder.receive_size(1).open().unwrap();
        let name: FabricAddr = vector.insert(to.local_addr()).await.unwrap();
        let receive = to.recv(vec![0; 64]).post().unwrap();
        assert_eq!(to.stats().receives.posted, 1);
        from.send("hello", name).await.unwrap();
        receive.await.unwrap();
        from.send("kept", name).await.unwrap();
        until("it is kept", || {
            to.stats().receives.unexpected_messages == 1
        })
        .await;
        assert_eq!(to.stats().receives.unexpected_bytes, to.unexpected_bytes());
        from.send("too much", name).await.unwrap();
        until("it is dropped", || to.stats().dropped == 1).await;
        let (here, there) = (from.stats(), to.stats());
        assert_eq!(counts!(here.operations.sends), [3, 0, 0, 17]);
        assert_eq!(counts!(there.operations.receives), [1, 0, 0, 5]);
        assert!(here.backend_sends >= 3 && there.backend_receives >= 1);
        assert_eq!((here.in_flight, here.waiting), (0, 0));
        to.recv(vec![0; 64]).await.unwrap();
        let posted = [(); 2].map(|()| to.recv(vec![0; 8]).post().unwrap());
        let receives = to.stats().receives;
        assert_eq!((receives.posted, receives.waiting), (1, 1));
        drop(posted);
    });
}

/// What is sent within a call has gone when it returns; here nothing goes, since the driver is
/// never polled.
#[tokio::test]
async fn sends_of_datagrams_wait_visibly() {
    let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
    let hints = hints.source((Ipv4Addr::LOCALHOST, 0).into());
    let domain = Net::new(6)
        .fabric_with(hints)
        .unwrap()
        .domain()
        .open()
        .unwrap();
    let vector = domain.address_vector().open().unwrap();
    let from = domain.dgram_endpoint().address_vector(&vector);
    let from = from.transmit_size(2).open().unwrap();
    let to = vector.insert(from.local_addr()).await.unwrap();
    let sends = [(); 4].map(|()| from.send("x", to).post().unwrap());
    let stats = from.stats();
    assert_eq!(
        stats.in_flight + stats.waiting + stats.operations.sends.ended() as usize,
        4
    );
    assert!(stats.in_flight > 0 && stats.waiting > 0, "{stats:?}");
    drop(sends);
}

#[tokio::test(start_paused = true)]
async fn a_listener_counts_what_comes_to_it() {
    let net = Net::new(7);
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let requests = them.fabric.event_queue().size(1).open().unwrap();
    let listener = them
        .fabric
        .passive_endpoint(&requests)
        .listen_at(any())
        .unwrap();
    let dial = || {
        let endpoint = us.domain.endpoint().open().unwrap();
        tokio::spawn(endpoint.connect(listener.local_addr()).into_future())
    };
    let (first, second) = (dial(), dial());
    // The queue has one place, so the second request waits.
    until("one is reported, one waits", || {
        listener.stats().waiting == 1
    })
    .await;
    assert_eq!(requests.stats().delivered, 1);
    let accepted = request(&requests).await.accept(&them.domain).await.unwrap();
    request(&requests).await.reject().send().unwrap();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(first.is_ok() != second.is_ok());
    let stats = listener.stats();
    assert_eq!((stats.incoming, stats.requests, stats.waiting), (2, 2, 0));
    assert_eq!((stats.accepted, stats.rejected), (1, 1));
    assert_eq!((stats.invalid, stats.timed_out, stats.evicted), (0, 0, 0));
    drop(accepted);
    let fabric = them.fabric.stats();
    assert_eq!((fabric.domains, fabric.passive_endpoints), (1, 1));
    drop(listener);
    until("it is closed", || {
        them.fabric.stats().passive_endpoints == 0
    })
    .await;
}

/// Strangers: bytes that are no request, none at all, and too many of them.
#[tokio::test]
async fn a_listener_counts_strangers() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let net = Net::on(tokio_fabric::Backend::Epoll);
    let them = net.peer().unwrap();
    let requests = them.fabric.event_queue().open().unwrap();
    let builder = them.fabric.passive_endpoint(&requests).half_open_max(2);
    let builder = builder.handshake_timeout(Duration::from_secs(3));
    let listener = builder.listen_at(any()).unwrap();
    let stranger = || tokio::net::TcpStream::connect(listener.local_addr());
    let mut wrong = stranger().await.unwrap();
    wrong.write_all(&[b'x'; 64]).await.unwrap();
    let _ = wrong.read(&mut [0; 8]).await;
    until("it is closed", || listener.stats().invalid == 1).await;
    let silent = [stranger().await, stranger().await, stranger().await];
    until("one has made room", || listener.stats().evicted == 1).await;
    assert!(listener.stats().half_open <= 2);
    until("the others took too long", || {
        listener.stats().timed_out == 2
    })
    .await;
    assert_eq!(listener.stats().incoming, 4);
    until("none is half open", || listener.stats().half_open == 0).await;
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn queues_and_vectors_count_their_entries() {
    let net = Net::new(8);
    let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
    let queue = us.domain.completion_queue().size(2).open().unwrap();
    let counter = us.domain.counter().unwrap();
    let a = us
        .domain
        .endpoint()
        .completion_queue(&queue)
        .open()
        .unwrap();
    let b = them.domain.endpoint().open().unwrap();
    connect_endpoints(&a, &b, &them.fabric).await.unwrap();
    let open = us.domain.stats();
    assert_eq!((open.completion_queues, open.counters), (1, 1));
    let receives = [(); 2].map(|()| a.recv(vec![0; 8]).queue(UserContext(1)).post().unwrap());
    let stats = queue.stats();
    assert_eq!((stats.capacity, stats.reserved, stats.len), (2, 2, 0));
    let third = a.recv(vec![0; 8]).queue(UserContext(2)).post().unwrap();
    assert!(!third.is_accepted());
    drop(third);
    assert!(queue.stats().full >= 1);
    b.send("x").await.unwrap();
    until("it is delivered", || queue.stats().delivered == 1).await;
    assert_eq!((queue.stats().reserved, queue.stats().len), (1, 1));
    queue.next().await.unwrap();
    assert_eq!((queue.stats().delivered, queue.stats().len), (1, 0));
    drop((receives, counter));

    let vector = us.domain.address_vector().open().unwrap();
    let one = vector.insert(any_at(1)).await.unwrap();
    vector.insert(any_at(2)).await.unwrap();
    vector.insert(any_at(2)).await.unwrap_err();
    vector.remove(one).unwrap();
    let stats = vector.stats();
    assert_eq!((stats.addresses, stats.inserted), (1, 2));
    assert_eq!((stats.failed, stats.removed), (1, 1));
}

fn any_at(port: u16) -> std::net::SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// An attempt that fails is a loss too, and time that a turn takes is seen.
#[tokio::test]
async fn failed_attempts_and_the_time_of_turns_are_counted() {
    let net = Net::on(tokio_fabric::Backend::Epoll);
    let us = net.peer().unwrap();
    let a = us.domain.endpoint().open().unwrap();
    a.connect(no_listener()).await.unwrap_err();
    assert_eq!(a.stats().losses, 1);
    assert!(matches!(us.events.next().await, Some(Event::Error(_))));
    let driver = us.domain.stats().driver;
    assert!(driver.turn_time >= driver.longest_turn && driver.longest_turn > Duration::ZERO);
    assert_eq!(us.domain.shard_stats(), [us.domain.stats().driver]);
    let EndpointStats { connects, .. } = a.stats();
    assert_eq!(connects, 0);
    assert_eq!(driver.ports, 1);
}
