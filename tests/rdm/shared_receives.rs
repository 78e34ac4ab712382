//! Receives that connectionless endpoints share (`fi_srx_context` of fi_endpoint(3)).

use std::collections::HashSet;
use std::time::Duration;

use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Backend, Caps, Driver, EndpointType, ErrorKind, Hints, RdmEndpoint, UserContext,
    av::FabricAddr,
    cq::CompletionFlags,
    ep::{SharedReceiveContext, SharedReceiveContextBuilder},
    info::{AuthKey, ContextCount},
};

use crate::common::peers::any;
use crate::common::{on, on_every_backend};

/// A client, and the address of each server in its vector.
struct Client {
    endpoint: RdmEndpoint,
    servers: Vec<FabricAddr>,
    /// Its address in the vector of the servers.
    name: FabricAddr,
}

/// Two servers that share receives, and two clients of both.
struct Shared {
    context: SharedReceiveContext,
    servers: Vec<RdmEndpoint>,
    clients: Vec<Client>,
    server: Peer,
    _client: Peer,
}

impl Shared {
    fn open(net: &Net) -> Shared {
        Shared::open_with(net, |builder| builder)
    }

    fn open_with(
        net: &Net,
        build: impl FnOnce(SharedReceiveContextBuilder) -> SharedReceiveContextBuilder,
    ) -> Shared {
        let (server, client) = (net.peer().unwrap(), net.peer().unwrap());
        Shared::open_in(server, client, build)
    }

    fn open_in(
        server: Peer,
        client: Peer,
        build: impl FnOnce(SharedReceiveContextBuilder) -> SharedReceiveContextBuilder,
    ) -> Shared {
        let context = build(server.domain.rdm_receive_context()).open().unwrap();
        let servers: Vec<_> = (0..2).map(|_| open_server(&server, &context)).collect();
        let clients = (0..2).map(|_| {
            let endpoint = client.rdm_endpoint().unwrap();
            let insert = |server: &RdmEndpoint| endpoint.insert(server.local_addr()).unwrap();
            Client {
                servers: servers.iter().map(insert).collect(),
                name: servers[0].insert(endpoint.local_addr()).unwrap(),
                endpoint,
            }
        });
        Shared {
            clients: clients.collect(),
            context,
            servers,
            server,
            _client: client,
        }
    }
}

fn open_server(peer: &Peer, context: &SharedReceiveContext) -> RdmEndpoint {
    let builder = peer.domain.rdm_endpoint().receive_context(context);
    builder.listen_at(any()).open().unwrap()
}

/// fi_endpoint(3): "Users post receive buffers directly to a shared receive context, with the
/// buffers usable by any endpoint bound to the shared receive context."
#[test]
fn a_shared_receive_takes_the_next_message_of_any_rdm_endpoint() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net);
        for round in 0..16_u8 {
            let (at, tag) = (usize::from(round) % 2, u64::from(round) << 32);
            let (client, to) = (&shared.clients[at], usize::from(round) / 2 % 2);
            let (early, tagged) = (round & 4 != 0, round & 8 != 0);
            let post = || match tagged {
                true => shared.context.recv_tagged(vec![0; 16], tag).post().unwrap(),
                false => shared.context.recv(vec![0; 16]).post().unwrap(),
            };
            let receive = (!early).then(post);
            let (endpoint, peer) = (&client.endpoint, client.servers[to]);
            let send = match tagged {
                true => endpoint.send_tagged(vec![round; 5], peer, tag),
                false => endpoint.send(vec![round; 5], peer),
            };
            send.delivery_complete().await.unwrap();
            let (received, bytes) = receive.unwrap_or_else(post).await.unwrap();
            assert_eq!((received.len, &bytes[..5]), (5, &[round; 5][..]));
            assert_eq!(received.endpoint, Some(shared.servers[to].id()));
            assert_eq!(received.source, Some(client.name));
            assert_eq!(received.source_addr, Some(endpoint.local_addr()));
        }
        assert_eq!(shared.context.unexpected_bytes(), 0);
        let operations = shared.servers.iter().map(|it| it.stats().operations);
        let completed: u64 = operations.map(|it| it.receives.succeeded).sum();
        assert_eq!(completed, 16);
    });
}

/// A completion is the context's queue's; it names the endpoint and the sender, even when both
/// endpoints have been closed. The context's counter counts it.
#[test]
fn completions_of_receives_that_rdm_endpoints_share_name_both_ends() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let counter = peer.domain.counter().unwrap();
        let count = |builder: SharedReceiveContextBuilder| builder.receive_counter(&counter);
        let shared = Shared::open_in(peer, net.peer().unwrap(), count);
        let queue = shared.context.receive_queue().clone();
        for tag in 0..4 {
            let receive = shared.context.recv_tagged(vec![0; 16], tag);
            receive.queue(tag).await.unwrap();
        }
        for tag in 0..4 {
            let client = &shared.clients[tag as usize / 2];
            let send = (client.endpoint).send_tagged("text", client.servers[tag as usize % 2], tag);
            send.delivery_complete().await.unwrap();
        }
        counter.wait_for(4).await.unwrap();
        let ids: Vec<_> = shared.servers.iter().map(|it| it.id()).collect();
        for server in shared.servers {
            server.shutdown().await.unwrap();
        }
        for _ in 0..4 {
            let completion = queue.next().await.unwrap();
            let tag = completion.tag.unwrap();
            assert_eq!(completion.context, UserContext::from(tag));
            let client = &shared.clients[tag as usize / 2];
            assert_eq!(completion.endpoint, ids[tag as usize % 2]);
            assert_eq!(completion.source(), Some(client.name));
            assert_eq!(completion.source_addr(), Some(client.endpoint.local_addr()));
        }
    });
}

/// A receive from one peer takes its messages to every endpoint that shares the context, and only
/// these, whether they come before it or after it.
#[test]
fn a_shared_receive_from_one_peer_takes_its_messages_to_any_endpoint() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net);
        let [one, other] = &shared.clients[..] else {
            unreachable!()
        };
        for to in [0, 1] {
            for early in [true, false] {
                let post = || {
                    let receive = shared.context.recv(vec![0; 8]).from(one.name);
                    receive.post().unwrap()
                };
                let receive = (!early).then(post);
                let send = other.endpoint.send("other", other.servers[to]);
                send.delivery_complete().await.unwrap();
                let send = one.endpoint.send("one", one.servers[to]);
                send.delivery_complete().await.unwrap();
                let (received, bytes) = receive.unwrap_or_else(post).await.unwrap();
                assert_eq!(&bytes[..received.len], b"one");
                assert_eq!(received.endpoint, Some(shared.servers[to].id()));
                let (received, bytes) = shared.context.recv(vec![0; 8]).await.unwrap();
                assert_eq!(&bytes[..received.len], b"other");
                assert_eq!(received.source, Some(other.name));
            }
        }
        // A peer that has never sent anything.
        let stranger = shared.server.rdm_endpoint().unwrap();
        let name = shared.servers[1].insert(stranger.local_addr()).unwrap();
        let receive = shared.context.recv(vec![0; 8]).from(name).post().unwrap();
        let server = stranger.insert(shared.servers[1].local_addr()).unwrap();
        stranger.send("stranger", server).await.unwrap();
        assert_eq!(receive.await.unwrap().0.source, Some(name));
    });
}

/// Long messages are announced, and sent when a receive of the context wants them; with a limit
/// none is.
#[test]
fn long_messages_find_receives_that_rdm_endpoints_share() {
    on_every_backend(|net| async move {
        for limit in [None, Some(300_000)] {
            let shared = Shared::open_with(&net, |builder| match limit {
                None => builder.rendezvous_min(10_000),
                Some(max) => builder.max_message_size(max).unexpected_bytes(1 << 20),
            });
            for early in [true, false] {
                let sends = shared.clients.iter().enumerate().map(|(at, client)| {
                    let (bytes, tag) = (vec![at as u8; 250_000], at as u64);
                    let send = client.endpoint.send_tagged(bytes, client.servers[at], tag);
                    send.post().unwrap()
                });
                let sends: Vec<_> = match early {
                    true => sends.collect(),
                    false => Vec::new(),
                };
                if early {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let receives: Vec<_> = (0..2)
                    .map(|tag| {
                        let receive = shared.context.recv_tagged(vec![9; 250_000], tag);
                        receive.post().unwrap()
                    })
                    .collect();
                let late: Vec<_> = match early {
                    true => Vec::new(),
                    false => (shared.clients.iter().enumerate())
                        .map(|(at, client)| {
                            let (bytes, tag) = (vec![at as u8; 250_000], at as u64);
                            let send = client.endpoint.send_tagged(bytes, client.servers[at], tag);
                            send.post().unwrap()
                        })
                        .collect(),
                };
                for (at, receive) in receives.into_iter().enumerate() {
                    let (received, bytes) = receive.await.unwrap();
                    assert_eq!(received.endpoint, Some(shared.servers[at].id()));
                    assert!(bytes.iter().all(|byte| *byte == at as u8));
                }
                for send in sends.into_iter().chain(late) {
                    send.await.unwrap();
                }
            }
        }
    });
}

/// What one endpoint has brought stays when it is closed, and so do the receives.
#[test]
fn the_receives_outlive_an_endpoint_that_shares_them() {
    on_every_backend(|net| async move {
        let mut shared = Shared::open(&net);
        let waiting = shared.context.recv_tagged(vec![0; 8], 7).post().unwrap();
        let client = &shared.clients[0];
        for text in ["one", "two"] {
            let send = client.endpoint.send(text, client.servers[0]);
            send.delivery_complete().await.unwrap();
        }
        let busy = shared.context.close().unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let gone = shared.servers.remove(0);
        let id = gone.id();
        gone.shutdown().await.unwrap();
        drop(gone);
        for text in ["one", "two"] {
            let (received, bytes) = shared.context.recv(vec![0; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], text.as_bytes());
            assert_eq!(
                (received.endpoint, received.source),
                (Some(id), Some(client.name))
            );
        }
        let send = client.endpoint.send_tagged("kept", client.servers[1], 7);
        send.await.unwrap();
        assert_eq!(waiting.await.unwrap().0.len, 4);
        // A further endpoint takes its place.
        let next = open_server(&shared.server, &shared.context);
        let to = client.endpoint.insert(next.local_addr()).unwrap();
        client.endpoint.send("next", to).await.unwrap();
        let received = shared.context.recv(vec![0; 8]).await.unwrap().0;
        assert_eq!(
            (received.endpoint, received.source),
            (Some(next.id()), Some(client.name))
        );
        // The context can be closed when all of them have been.
        let left = shared.context.recv(vec![0; 8]).post().unwrap();
        for server in shared.servers.drain(..).chain([next]) {
            server.shutdown().await.unwrap();
        }
        shared.context.close().unwrap();
        assert_eq!(left.await.unwrap_err().kind(), ErrorKind::Canceled);
        let refused = shared.context.recv(vec![0; 8]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Canceled);
    });
}

/// A peer that dies in the middle of its message costs no receive: the receive waits for the next
/// message, in its old place.
#[tokio::test(start_paused = true)]
async fn a_peer_that_dies_in_its_message_costs_no_receive_that_rdm_endpoints_share() {
    let net = Net::new(7);
    let (server, dying, other) = (net.node("server"), net.node("dying"), net.node("other"));
    net.link("server", "dying").bandwidth(1 << 20);
    let peer = server.peer().unwrap();
    let context = peer.domain.rdm_receive_context().open().unwrap();
    let open = |port| {
        let builder = peer.domain.rdm_endpoint().receive_context(&context);
        builder
            .listen_at(([127, 0, 0, 1], port).into())
            .open()
            .unwrap()
    };
    let servers = [open(1), open(2)];
    let client = |node: &tokio_fabric::testing::Node| {
        let peer = node.peer().unwrap();
        let endpoint = peer
            .domain
            .rdm_endpoint()
            .listen_at(([127, 0, 0, 1], 1).into());
        let endpoint = endpoint.open().unwrap();
        let to = servers
            .each_ref()
            .map(|it| endpoint.insert(it.local_addr()).unwrap());
        (endpoint, to)
    };
    let ((lost, to), (living, to_living)) = (client(&dying), client(&other));
    let name = servers[0].insert(lost.local_addr()).unwrap();
    let long = lost.send(vec![1; 4 << 20], to[0]).post().unwrap();
    while context.peek().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let first = context.recv(vec![0; 4 << 20]).post().unwrap();
    let second = context.recv(vec![0; 4 << 20]).post().unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await; // An eighth of it has come.
    let of_lost = context.recv(vec![0; 8]).from(name).post().unwrap();
    assert_eq!(
        context.stats().receives.posted,
        2,
        "the first one is being filled"
    );
    net.crash("dying");
    while context.stats().receives.posted < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (receive, text) in [(first, "one"), (second, "two")] {
        living.send(text, to_living[1]).await.unwrap();
        let (received, bytes) = receive.await.unwrap();
        assert_eq!(&bytes[..received.len], text.as_bytes());
        assert_eq!(received.endpoint, Some(servers[1].id()));
    }
    drop(long);
    assert!(of_lost.cancel(), "it waits for the peer's next connection");
    let canceled = of_lost.await.unwrap_err();
    assert_eq!(canceled.kind(), ErrorKind::Canceled);
}

/// The context keeps the time limits of its receives.
#[test]
fn receives_that_rdm_endpoints_share_have_time_limits() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net);
        let short = Duration::from_millis(20);
        let late = shared.context.recv(vec![0; 8]).timeout(short).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
        let name = shared.clients[1].name;
        let late = shared
            .context
            .recv_tagged(vec![0; 8], 1)
            .from(name)
            .timeout(short);
        let error = late.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(
            error.error().peer(),
            Some(shared.clients[1].endpoint.local_addr())
        );
    });
}

/// A stream of a context yields the messages to all of its endpoints.
#[test]
fn a_stream_yields_the_messages_of_all_endpoints_of_a_context() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net);
        let mut messages = shared.context.messages(64, 4);
        for round in 0..20 {
            let client = &shared.clients[round % 2];
            let to = client.servers[round / 2 % 2];
            client
                .endpoint
                .send(vec![round as u8; round], to)
                .await
                .unwrap();
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!(&message[..], &vec![round as u8; round][..]);
            let received = message.received();
            assert_eq!(received.endpoint, Some(shared.servers[round / 2 % 2].id()));
            assert_eq!(received.source, Some(client.name));
        }
    });
}

/// Messages that have come before their receive are looked at, claimed and discarded in the
/// context, and one buffer takes several of them.
#[test]
fn messages_of_all_endpoints_are_looked_at_in_their_context() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net);
        for (at, client) in shared.clients.iter().enumerate() {
            let send = client
                .endpoint
                .send_tagged("peek", client.servers[at], at as u64);
            send.delivery_complete().await.unwrap();
        }
        for (at, client) in shared.clients.iter().enumerate() {
            let found = shared.context.peek_tagged(at as u64).await.unwrap();
            assert_eq!(found.endpoint, Some(shared.servers[at].id()));
            assert_eq!((found.source, found.len), (Some(client.name), 4));
            let other = shared.clients[1 - at].name;
            let none = shared.context.peek_tagged(at as u64).from(other).await;
            assert_eq!(none.unwrap_err().kind(), ErrorKind::NoMessage);
        }
        let claimed = shared.context.peek_tagged(0).claim().unwrap();
        let rest = shared.context.recv_tagged(vec![0; 8], 0).ignore(u64::MAX);
        assert_eq!(rest.await.unwrap().0.tag, Some(1));
        assert_eq!(claimed.recv(vec![0; 8]).await.unwrap().0.tag, Some(0));
        // At an endpoint there is nothing to be seen.
        let own = shared.servers[0].peek_tagged(0).await.unwrap_err();
        assert_eq!(own.kind(), ErrorKind::InvalidArgument);

        let pool = shared.context.multi_recv(vec![0_u8; 4096]).min_free(512);
        pool.queue(5).await.unwrap();
        let mut endpoints = HashSet::new();
        for (at, client) in shared.clients.iter().enumerate() {
            client
                .endpoint
                .send("many", client.servers[at])
                .await
                .unwrap();
            let mut completion = shared.context.receive_queue().next().await.unwrap();
            assert!(completion.flags.contains(CompletionFlags::MSG));
            assert_eq!(&completion.take_buffer().unwrap()[..], b"many");
            assert_eq!(completion.source(), Some(client.name));
            endpoints.insert(completion.endpoint);
        }
        assert_eq!(endpoints, shared.servers.iter().map(|it| it.id()).collect());
    });
}

/// A task that awaits a shared receive drives the domain of each endpoint, of which one may be a
/// peer of the context's.
#[test]
fn awaiting_a_receive_that_rdm_endpoints_share_drives_them_by_hand() {
    let net = Net::on(Backend::Epoll).driver(Driver::Manual);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, client) = (net.peer().unwrap(), net.peer().unwrap());
        let next_to = server.fabric.domain().driver(Driver::Manual);
        let next_to = next_to.peer_of(&server.domain).open().unwrap();
        let context = server.domain.rdm_receive_context().open().unwrap();
        for domain in [&server.domain, &next_to] {
            let endpoint = domain.rdm_endpoint().receive_context(&context);
            let endpoint = endpoint.listen_at(any()).open().unwrap();
            let client = client.rdm_endpoint().unwrap();
            let name = endpoint.insert(client.local_addr()).unwrap();
            let to = client.insert(endpoint.local_addr()).unwrap();
            let receive = context.recv(vec![0; 8]).from(name).into_future();
            // A task that drives nothing but what the receive does.
            let sending = client.send("by hand", to).into_future();
            let (sent, received) = tokio::join!(sending, receive);
            sent.unwrap();
            assert_eq!(received.unwrap().0.endpoint, Some(endpoint.id()));
        }
    });
}

/// Messages that no receive can take any more are not taken in, so that no sender counts them as
/// delivered.
#[test]
fn messages_to_a_context_whose_runtime_has_ended_are_not_delivered() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let (ending, living) = (runtime().unwrap(), runtime().unwrap());
    let net = Net::on(Backend::Epoll);
    let context = ending.block_on(async {
        net.peer()
            .unwrap()
            .domain
            .rdm_receive_context()
            .open()
            .unwrap()
    });
    living.block_on(async {
        let fabric = net.fabric_with(Hints::new()).unwrap();
        let domain = fabric.domain().peer_of(context.domain()).open().unwrap();
        let endpoint = domain.rdm_endpoint().receive_context(&context);
        let endpoint = endpoint.listen_at(any()).open().unwrap();
        let client = net.peer().unwrap().rdm_endpoint().unwrap();
        let to = client.insert(endpoint.local_addr()).unwrap();
        client.send("first", to).await.unwrap();
        assert_eq!(context.recv(vec![0; 8]).await.unwrap().0.len, 5);
        let waiting = context.recv(vec![0; 8]).post().unwrap();
        ending.shutdown_background();
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::DriverGone);
        for len in [1, 1 << 20] {
            let send = client.send(vec![1; len], to).delivery_complete();
            let sent = send.timeout(Duration::from_millis(200)).await;
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::TimedOut, "{len} bytes");
        }
        let refused = context.recv(vec![0; 8]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DriverGone);
    });
}

#[test]
fn what_does_not_fit_a_context_of_rdm_endpoints_is_refused() {
    on(Backend::Loopback, |net| async move {
        let shared = Shared::open_with(&net, |builder| builder.size(1));
        let domain = &shared.server.domain;
        let invalid = |error: tokio_fabric::Error, what: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        let own = shared.servers[0].recv(vec![0; 8]).post().unwrap_err();
        invalid(own.into_error(), "receive context");
        let held = shared.context.recv(vec![0; 8]).try_post().unwrap();
        let full = shared.context.recv_tagged(vec![0; 8], 1).try_post();
        assert_eq!(full.unwrap_err().kind(), ErrorKind::Again);
        drop(held);
        // Contexts of the other kind.
        let connected = domain.receive_context().open().unwrap();
        let tagged = connected.recv_tagged(vec![0; 8], 1).post().unwrap_err();
        assert_eq!(tagged.kind(), ErrorKind::NoCapability);
        let from = connected.recv(vec![0; 8]).from(shared.clients[0].name);
        assert_eq!(from.post().unwrap_err().kind(), ErrorKind::NoCapability);
        let refused = domain.rdm_endpoint().receive_context(&connected).open();
        invalid(refused.unwrap_err(), "rdm_receive_context");
        let refused = domain.endpoint().receive_context(&shared.context).open();
        invalid(refused.unwrap_err(), "connectionless");
        // Another vector, another domain, a counter of its own.
        let vector = domain.address_vector().open().unwrap();
        let refused = domain.receive_context().address_vector(&vector).open();
        invalid(refused.unwrap_err(), "address_vector");
        let bound = domain.rdm_endpoint().receive_context(&shared.context);
        let refused = bound.address_vector(&vector).listen_at(any()).open();
        invalid(refused.unwrap_err(), "address_vector");
        let counter = domain.counter().unwrap();
        let bound = domain.rdm_endpoint().receive_context(&shared.context);
        let refused = bound.receive_counter(&counter).listen_at(any()).open();
        invalid(refused.unwrap_err(), "receive_counter");
        let other = shared._client.domain.rdm_endpoint();
        let refused = other
            .receive_context(&shared.context)
            .listen_at(any())
            .open();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        // Other capabilities, and other keys.
        let poor = net
            .fabric_with(Hints::new().endpoint(EndpointType::Rdm).caps(Caps::MSG))
            .unwrap();
        let poor = poor.domain().peer_of(domain).open().unwrap();
        let poor_context = poor.rdm_receive_context().open().unwrap();
        let bound = domain.rdm_endpoint().receive_context(&poor_context);
        invalid(bound.listen_at(any()).open().unwrap_err(), "TAGGED");
        let bound = domain.rdm_endpoint().receive_context(&shared.context);
        let bound = bound.extension(true).auth_key(AuthKey::new(*b"another"));
        invalid(
            bound.listen_at(any()).open().unwrap_err(),
            "authorization key",
        );
        let scalable = domain.scalable_endpoint().contexts(1);
        let context = shared.context.clone();
        let scalable = scalable.each(move |_, it| it.receive_context(&context));
        invalid(
            scalable.listen_at(any()).open().unwrap_err(),
            "receive_context",
        );
        // The context's own vector may be named.
        let own = shared.context.address_vector().unwrap().clone();
        let bound = domain.rdm_endpoint().receive_context(&shared.context);
        let bound = bound.address_vector(&own).listen_at(any()).open().unwrap();
        assert!(
            (bound.recv(vec![0; 8]).into_future())
                .now_or_never()
                .is_some_and(|it| it.is_err())
        );
    });
}

/// fi_domain(3): "The maximum number of endpoints that may be associated with a shared receive
/// context."
#[test]
fn discovery_offers_shared_receive_contexts_for_rdm_endpoints() {
    on(Backend::Loopback, |net| async move {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let hints = hints.endpoint_attr(|it| it.rx_ctx_cnt(ContextCount::Shared));
        let fabric = net.fabric_with(hints).unwrap();
        let domain = fabric.domain().open().unwrap();
        let info = domain.info();
        assert_eq!(info.endpoint.rx_ctx_cnt, ContextCount::Shared);
        assert_eq!(info.domain.max_ep_srx_ctx, info.domain.ep_cnt);
        let missing = domain.rdm_endpoint().listen_at(any()).open().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::InvalidArgument);
        assert!(missing.to_string().contains("receive_context"), "{missing}");
        let context = domain.rdm_receive_context().open().unwrap();
        let many: Vec<_> = (0..100)
            .map(|_| {
                let builder = domain.rdm_endpoint().receive_context(&context);
                builder.listen_at(any()).open().unwrap()
            })
            .collect();
        // The first and the last of them receive through it.
        let client = net.peer().unwrap().rdm_endpoint().unwrap();
        for own in [&many[0], &many[99]] {
            let to = client.insert(own.local_addr()).unwrap();
            client.send("shared", to).await.unwrap();
            let received = context.recv(vec![0_u8; 8]).await.unwrap().0;
            assert_eq!((received.len, received.endpoint), (6, Some(own.id())));
        }
    });
}
