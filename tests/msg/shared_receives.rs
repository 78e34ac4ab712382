//! Receives that connected endpoints share (`fi_srx_context` of fi_endpoint(3)).

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::common::peers::{listener, open_region, peer_with, request, write};
use crate::common::raw::{self, Raw};
use crate::common::{on, on_every_backend, on_sockets_at_once};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Backend, Endpoint, ErrorKind, Hints, UserContext,
    cq::CompletionFlags,
    domain::DomainBind,
    ep::{SharedReceiveContext, SharedReceiveContextBuilder},
    info::ContextCount,
};

const MSG: CompletionFlags = CompletionFlags::RECV.union(CompletionFlags::MSG);

/// A server with connections that share a receive context, and their clients.
struct Shared {
    server: Peer,
    context: SharedReceiveContext,
    /// Each client's end and the server's.
    connections: Vec<(Endpoint, Endpoint)>,
    _client: Peer,
}

impl Shared {
    async fn open(net: &Net, connections: usize) -> Shared {
        Shared::open_with(net, connections, |builder| builder).await
    }

    async fn open_with(
        net: &Net,
        connections: usize,
        build: impl FnOnce(SharedReceiveContextBuilder) -> SharedReceiveContextBuilder,
    ) -> Shared {
        Shared::open_in(&net.peer().unwrap(), net, connections, build).await
    }

    /// The context is this peer's.
    async fn open_in(
        server: &Peer,
        net: &Net,
        connections: usize,
        build: impl FnOnce(SharedReceiveContextBuilder) -> SharedReceiveContextBuilder,
    ) -> Shared {
        let (client, server) = (net.peer().unwrap(), server.clone());
        let context = build(server.domain.receive_context()).open().unwrap();
        let mut shared = Shared {
            server,
            context,
            connections: Vec::new(),
            _client: client,
        };
        for _ in 0..connections {
            let client = shared._client.domain.endpoint().open().unwrap();
            shared.connect(client).await;
        }
        shared
    }

    async fn connect(&mut self, client: Endpoint) {
        let domain = &self.server.domain;
        let server = domain.endpoint().receive_context(&self.context);
        let server = server.open().unwrap();
        connect_endpoints(&client, &server, &self.server.fabric)
            .await
            .unwrap();
        self.connections.push((client, server));
    }
}

/// fi_endpoint(3): "Users post receive buffers directly to a shared receive context, with the
/// buffers usable by any endpoint bound to the shared receive context."
/// fi_endpoint(3): `fi_srx_context`, function
#[test]
fn a_shared_receive_takes_the_next_message_of_any_endpoint() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 3).await;
        for round in 0..6_u8 {
            let (client, server) = &shared.connections[usize::from(round) % 3];
            let early = round % 2 == 0;
            let receive = match early {
                false => Some(shared.context.recv(vec![0; 16]).post().unwrap()),
                true => None,
            };
            let sent = client.send(vec![round; 5]).imm(u64::from(round));
            sent.delivery_complete().await.unwrap();
            let receive = match receive {
                Some(receive) => receive,
                None => shared.context.recv(vec![0; 16]).post().unwrap(),
            };
            let (received, bytes) = receive.await.unwrap();
            assert_eq!((received.len, &bytes[..5]), (5, &[round; 5][..]));
            assert_eq!(received.data, Some(u64::from(round)));
            assert_eq!(received.endpoint, Some(server.id()));
        }
        assert_eq!(shared.context.unexpected_bytes(), 0);
    });
}

/// A completion is the context's queue's, and names the endpoint; the context's counter counts it.
#[test]
fn completions_of_shared_receives_name_the_endpoint() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let counter = peer.domain.counter().unwrap();
        let counted = |builder: SharedReceiveContextBuilder| builder.receive_counter(&counter);
        let shared = Shared::open_in(&peer, &net, 4, counted).await;
        let queue = shared.context.receive_queue().clone();
        for context in 0..8_u64 {
            let receive = shared.context.recv(vec![0; 8]);
            receive.queue(context).await.unwrap();
        }
        for (at, (client, _)) in shared.connections.iter().enumerate() {
            for number in 0..2_u8 {
                client.send(vec![at as u8, number]).await.unwrap();
            }
        }
        let mut numbers = HashMap::new();
        for context in 0..8_u64 {
            let mut told = queue.next().await.unwrap();
            told.result.as_ref().unwrap();
            assert_eq!((told.context, told.flags), (UserContext(context), MSG));
            let bytes = told.take_buffer().unwrap();
            let (_, server) = &shared.connections[usize::from(bytes[0])];
            assert_eq!(told.endpoint, server.id());
            let number = numbers.entry(bytes[0]).or_insert(0);
            assert_eq!(bytes[1], *number, "a sender's messages stay in order");
            *number += 1;
        }
        assert_eq!(counter.read(), 8);
        let (_, server) = &shared.connections[0];
        assert!(
            server.receive_queue().is_empty(),
            "the same queue, by default"
        );
    });
}

/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages.": of connected endpoints too.
#[test]
fn one_buffer_takes_the_messages_of_many_connections() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 8).await;
        let (context, queue) = (&shared.context, shared.context.receive_queue());
        let post = || {
            let pool = context.multi_recv(vec![0_u8; 4096]).min_free(512);
            // The queue may be full of messages: then it waits for its turn.
            pool.queue(7_u64).post().unwrap().detach();
        };
        post();
        post();
        const EACH: u32 = 40;
        let sending = shared.connections.iter().map(|(client, _)| async move {
            for number in 0..EACH {
                let mut bytes = vec![number as u8; 4 + number as usize % 500];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                client.send(bytes).await.unwrap();
            }
        });
        let receiving = async {
            let mut expected: HashMap<_, u32> = HashMap::new();
            let mut messages = 0;
            while messages < 8 * EACH {
                let mut told = queue.next().await.unwrap();
                told.result.as_ref().unwrap();
                assert_eq!(told.context, UserContext(7));
                if told.flags == CompletionFlags::MULTI_RECV {
                    assert_eq!(told.endpoint, context.id(), "released by no endpoint");
                    post();
                    continue;
                }
                let bytes = told.take_buffer().unwrap();
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                let next = expected.entry(told.endpoint).or_default();
                assert_eq!((number, told.len), (*next, 4 + number as usize % 500));
                assert!(bytes[4..told.len].iter().all(|it| *it == number as u8));
                *next += 1;
                messages += 1;
            }
            assert_eq!(expected.len(), 8);
        };
        futures::future::join(futures::future::join_all(sending), receiving).await;
    });
}

/// docs/extension.md: a peer of this library announces what the store has no room for, and goes on
/// with everything else.
#[test]
fn large_messages_for_shared_receives_wait_at_their_sender() {
    on_every_backend(|net| async move {
        let shared = Shared::open_with(&net, 2, |it| it.unexpected_bytes(8192)).await;
        let region = open_region(&shared.server, vec![0; 64]).await;
        let [(one, first), (two, second)] = &shared.connections[..] else {
            unreachable!("two were asked for");
        };
        let large = one
            .send(vec![1; 1 << 20])
            .delivery_complete()
            .post()
            .unwrap();
        let small: Vec<_> = (0..200_u8)
            .map(|at| two.send(vec![at; 100]).post().unwrap())
            .collect();
        for client in [one, two] {
            write(client, region.remote(), 9).await.unwrap();
        }
        // Each connection is promised eight messages' overhead at least.
        let most = 8192 + 2 * 1024;
        assert!(shared.context.unexpected_bytes() <= most);
        let mut seen = 0;
        let mut next = 0;
        while seen < 201 {
            let (received, bytes) = shared.context.recv(vec![0; 1 << 20]).await.unwrap();
            seen += 1;
            if received.endpoint == Some(first.id()) {
                assert_eq!(received.len, 1 << 20);
                assert!(bytes.iter().all(|byte| *byte == 1));
                continue;
            }
            assert_eq!((received.endpoint, received.len), (Some(second.id()), 100));
            assert!(bytes[..100].iter().all(|byte| *byte == next));
            next += 1;
        }
        large.await.unwrap();
        for send in small {
            send.await.unwrap();
        }
    });
}

/// An announced message that its sender gives up is forgotten, and the receive that was matched
/// with it takes the next.
#[test]
fn a_message_that_is_withdrawn_leaves_the_shared_receive() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 2).await;
        let [(one, _), (two, second)] = &shared.connections[..] else {
            unreachable!("two were asked for");
        };
        let large = one.send(vec![1; 1 << 20]).post().unwrap();
        // Its announcement is out when something behind it has been answered.
        let region = open_region(&shared.server, vec![0; 8]).await;
        write(one, region.remote(), 1).await.unwrap();
        assert!(large.cancel());
        let failed = large.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Canceled);
        let receive = shared.context.recv(vec![0; 8]).post().unwrap();
        two.send("next").await.unwrap();
        let (received, _) = receive.await.unwrap();
        assert_eq!(received.endpoint, Some(second.id()));
    });
}

/// A peer without the extension cannot know what there is room for: the endpoint stops reading from
/// it, and from no other.
#[test]
fn a_plain_peer_without_a_receive_stalls_itself_alone() {
    on_every_backend(|net| async move {
        let mut shared = Shared::open_with(&net, 1, |it| it.unexpected_bytes(4096)).await;
        let plain = shared._client.domain.endpoint().extension(false);
        shared.connect(plain.open().unwrap()).await;
        let [(one, first), (plain, second)] = &shared.connections[..] else {
            unreachable!("two were asked for");
        };
        let large = plain.send(vec![2; 1 << 20]).post().unwrap();
        let small = one.send("small").delivery_complete();
        small.await.unwrap();
        let mut endpoints = Vec::new();
        for _ in 0..2 {
            let (received, _) = shared.context.recv(vec![0; 1 << 20]).await.unwrap();
            endpoints.push((received.endpoint, received.len));
        }
        endpoints.sort_by_key(|(_, len)| *len);
        let expected = [(Some(first.id()), 5), (Some(second.id()), 1 << 20)];
        assert_eq!(endpoints, expected);
        large.await.unwrap();
    });
}

/// A message that breaks off with its connection ends no receive: it is posted again, in its place.
#[test]
fn a_connection_killed_in_mid_message_leaves_its_receive_to_others() {
    on_sockets_at_once(|net| async move {
        let mut shared = Shared::open(&net, 1).await;
        let (listener, requests) = listener(&shared.server);
        let accepting = async {
            let request = request(&requests).await;
            let domain = &shared.server.domain;
            let endpoint = domain.endpoint().receive_context(&shared.context);
            endpoint.open().unwrap().accept(request).await.unwrap()
        };
        let (mut stream, broken) =
            futures::future::join(raw::accepted(listener.local_addr()), accepting).await;
        // One of a single message, then a buffer for several.
        let receive = shared.context.recv(vec![0; 100_000]).post().unwrap();
        let half = |len: u64| {
            let begun = Raw {
                frame_len: Some(16 + len),
                payload: vec![7; 1000],
                ..Raw::new(0)
            };
            begun.bytes()
        };
        stream.write_all(&half(90_000)).await.unwrap();
        while receive.phase() != tokio_fabric::error::Phase::Moving {
            tokio::task::yield_now().await;
        }
        drop(stream);
        while broken.is_connected() {
            tokio::task::yield_now().await;
        }
        let (client, server) = &shared.connections[0];
        client.send("whole").await.unwrap();
        let (received, bytes) = receive.await.unwrap();
        assert_eq!(
            (received.endpoint, &bytes[..5]),
            (Some(server.id()), &b"whole"[..])
        );
        assert_eq!(received.len, 5);

        let accepting = async {
            let request = request(&requests).await;
            let domain = &shared.server.domain;
            let endpoint = domain.endpoint().receive_context(&shared.context);
            endpoint.open().unwrap().accept(request).await.unwrap()
        };
        let (mut stream, broken) =
            futures::future::join(raw::accepted(listener.local_addr()), accepting).await;
        let pool = shared.context.multi_recv(vec![0_u8; 100_000]);
        pool.queue(3_u64).await.unwrap();
        stream.write_all(&half(90_000)).await.unwrap();
        drop(stream);
        while broken.is_connected() {
            tokio::task::yield_now().await;
        }
        // All of the buffer is there for the next.
        client.send(vec![5; 95_000]).await.unwrap();
        let mut told = shared.context.receive_queue().next().await.unwrap();
        told.result.as_ref().unwrap();
        assert_eq!((told.endpoint, told.len), (server.id(), 95_000));
        assert!(told.take_buffer().unwrap().iter().all(|byte| *byte == 5));
        shared.connections.clear();
    });
}

/// A context that endpoints are bound to is not closed, and says by whom it is used.
#[test]
fn a_context_is_busy_while_endpoints_are_bound_to_it() {
    on_every_backend(|net| async move {
        let mut shared = Shared::open(&net, 1).await;
        let receive = shared.context.recv(vec![0; 8]).post().unwrap();
        let busy = shared.context.close().unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let (client, server) = shared.connections.pop().unwrap();
        let name = format!("{:?}", server.id());
        assert!(busy.to_string().contains(&name), "{busy}");
        client.send("still").await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 5);

        let left = shared.context.recv(vec![0; 8]).post().unwrap();
        server.shutdown().await.unwrap();
        drop(server);
        shared.context.close().unwrap();
        assert_eq!(left.await.unwrap_err().kind(), ErrorKind::Canceled);
        let refused = shared.context.recv(vec![0; 8]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Canceled);
        let builder = shared.server.domain.endpoint();
        let refused = builder.receive_context(&shared.context).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
    });
}

/// The context outlives its handle as long as an endpoint is bound to it, and a domain waits for
/// it.
#[test]
fn a_context_ends_with_its_last_handle_and_endpoint() {
    on_every_backend(|net| async move {
        let Shared {
            server,
            context,
            mut connections,
            ..
        } = Shared::open(&net, 1).await;
        let busy = server.domain.close().await.unwrap_err();
        assert!(busy.to_string().contains("receive context"), "{busy}");
        let receive = context.recv(vec![0; 8]).post().unwrap();
        drop(context);
        let (client, bound) = connections.pop().unwrap();
        client.send("held").await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 4);
        drop((client, bound));
        server.domain.closed().await;
    });
}

/// What a shared receive context does not take, and says why.
/// fi_endpoint(3): "Endpoints associated with a shared receive context must use a subset of the
/// receive context’s attributes."
#[test]
fn what_does_not_fit_a_shared_context_is_refused() {
    on(Backend::Loopback, |net| async move {
        let shared = Shared::open_with(&net, 1, |builder| builder.size(1)).await;
        let (_, server) = &shared.connections[0];
        let own = server.recv(vec![0; 8]).post().unwrap_err();
        assert_eq!(own.kind(), ErrorKind::InvalidArgument);
        let held = shared.context.recv(vec![0; 8]).try_post().unwrap();
        let full = shared.context.recv(vec![0; 8]).try_post().unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Again);
        let waiting = shared.context.recv(vec![0; 8]).post().unwrap();
        assert!(held.cancel() && waiting.cancel());
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Canceled);

        let domain = &shared.server.domain;
        for size in [0, 65_537] {
            let refused = domain.receive_context().size(size).open().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
        let counter = domain.counter().unwrap();
        let counted = domain.endpoint().receive_counter(&counter);
        let refused = counted.receive_context(&shared.context).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let other = shared._client.domain.endpoint();
        let refused = other.receive_context(&shared.context).open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
}

/// A receive that is dropped, or whose time passes, when its message has begun to come gives it to
/// the next.
#[test]
fn the_message_of_a_dropped_shared_receive_goes_to_the_next() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 1).await;
        let (client, server) = &shared.connections[0];
        for _ in 0..50 {
            let receive = shared.context.recv(vec![0; 50_000]).post().unwrap();
            let send = client.send(vec![1; 50_000]).post().unwrap();
            tokio::task::yield_now().await;
            drop(receive);
            let (received, bytes) = shared.context.recv(vec![0; 50_000]).await.unwrap();
            assert_eq!(
                (received.len, received.endpoint),
                (50_000, Some(server.id()))
            );
            assert!(bytes.iter().all(|byte| *byte == 1));
            send.await.unwrap();
        }
        let short = Duration::from_millis(5);
        let late = shared.context.recv(vec![0; 8]).timeout(short).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
        client.send("next").await.unwrap();
        assert_eq!(shared.context.recv(vec![0; 8]).await.unwrap().0.len, 4);
    });
}

/// fi_endpoint(3): "If the count is set to the value FI_SHARED_CONTEXT, the endpoint will be
/// configured to use a shared receive context, if supported by the provider."
/// fi_domain(3): "The maximum number of endpoints that may be associated with a shared receive
/// context."
#[test]
fn discovery_offers_shared_receive_contexts() {
    on(Backend::Loopback, |net| async move {
        let hints = || Hints::new().endpoint_attr(|it| it.rx_ctx_cnt(ContextCount::Shared));
        let peer = peer_with(&net, hints(), DomainBind::empty());
        let info = peer.domain.info();
        assert_eq!(info.endpoint.rx_ctx_cnt, ContextCount::Shared);
        assert_eq!(info.domain.max_ep_srx_ctx, info.domain.ep_cnt);
        let missing = peer.domain.endpoint().open().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::InvalidArgument);
        assert!(missing.to_string().contains("receive_context"), "{missing}");
        let context = peer.domain.receive_context().open().unwrap();
        let bound = peer.domain.endpoint().receive_context(&context).open();
        bound.unwrap();
        // As many as the attribute says share one, of which hints can ask for so many at most.
        let max = info.domain.max_ep_srx_ctx;
        let beyond = hints().domain(|domain| domain.max_ep_srx_ctx(max + 1));
        let beyond = net.fabric_with(beyond).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::NoMatch, "{beyond}");
        let most = peer_with(
            &net,
            hints().domain(|domain| domain.max_ep_srx_ctx(max)),
            DomainBind::empty(),
        );
        let context = most.domain.receive_context().open().unwrap();
        let many: Vec<_> = (0..max.min(100))
            .map(|_| {
                let builder = most.domain.endpoint().receive_context(&context);
                builder.open().unwrap()
            })
            .collect();
        // The first and the last of them receive through it.
        for own in [&many[0], &many[many.len() - 1]] {
            let client = peer.domain.endpoint().receive_context(&context_of(&peer));
            let client = client.open().unwrap();
            connect_endpoints(&client, own, &most.fabric).await.unwrap();
            client.send("shared").await.unwrap();
            let received = context.recv(vec![0u8; 8]).await.unwrap().0;
            assert_eq!((received.len, received.endpoint), (6, Some(own.id())));
        }
    });
}

fn context_of(peer: &Peer) -> SharedReceiveContext {
    peer.domain.receive_context().open().unwrap()
}

/// The stream of a shared context's messages.
#[test]
fn messages_of_all_connections_are_one_stream() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 3).await;
        let mut messages = shared.context.messages(64, 4);
        for round in 0..30_u8 {
            let (client, server) = &shared.connections[usize::from(round) % 3];
            client.send(vec![round; 3]).await.unwrap();
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!(&message[..], [round; 3]);
            assert_eq!(message.received().endpoint, Some(server.id()));
        }
        let mut messages = messages.fuse();
        drop(shared.connections);
        shared.context.close().unwrap();
        assert!(messages.next().await.is_none(), "it ends with its context");
    });
}

/// Messages that wait for a shared receive are looked at, claimed and dropped, and received
/// whatever their length.
#[test]
fn messages_of_all_connections_are_looked_at() {
    on_every_backend(|net| async move {
        let shared = Shared::open(&net, 2).await;
        let [(one, first), (two, second)] = &shared.connections[..] else {
            unreachable!("two were asked for");
        };
        let context = &shared.context;
        assert_eq!(
            context.peek().await.unwrap_err().kind(),
            ErrorKind::NoMessage
        );
        one.send(vec![1; 300]).delivery_complete().await.unwrap();
        two.send(vec![2; 400]).delivery_complete().await.unwrap();
        let found = context.peek().await.unwrap();
        assert_eq!((found.len, found.endpoint), (300, Some(first.id())));
        let claimed = context.peek().claim().unwrap();
        assert_eq!(context.peek().await.unwrap().endpoint, Some(second.id()));
        let (received, bytes) = context.recv_any(1 << 20).await.unwrap();
        assert_eq!((received.endpoint, bytes.len()), (Some(second.id()), 400));
        let (received, bytes) = claimed.recv_any(1 << 20).await.unwrap();
        assert_eq!((received.endpoint, bytes.len()), (Some(first.id()), 300));
        let refused = context.multi_recv(vec![0_u8; 64]).min_free(0).queue(1_u64);
        assert_eq!(
            refused.post().unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        // They are for the messages of all.
        let vector = shared.server.domain.address_vector().open().unwrap();
        let other = vector.insert(([127, 0, 0, 1], 9).into()).now().unwrap();
        let refused = context.multi_recv(vec![0_u8; 64]).from(other).queue(1_u64);
        let refused = refused.post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoCapability);
        assert!(refused.to_string().contains("DIRECTED_RECV"), "{refused}");
    });
}
