//! Scalable endpoints: one address, several contexts, each with a driver, queues and counters of
//! its own (`fi_scalable_ep`, `fi_rx_addr`; `fi_av(3)`, `fi_domain(3)`, `fi_endpoint(3)`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::common::child::{PeerProcess, end_with_the_parent, say};
use crate::common::peers::any;
use crate::common::{on, on_every_backend};
use futures::executor::block_on;
use futures::future::join;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    AddressVector, Backend, Caps, Driver, EndpointType, ErrorKind, Hints,
    av::FabricAddr,
    domain::DomainBind,
    info::{AuthKey, ContextCount, Threading},
    limits::{EP_CONTEXTS_MAX, RX_CTX_BITS_MAX},
    rdm::{PeerEventKind, ScalableEndpoint},
};

fn rdm() -> Hints {
    Hints::new().endpoint(EndpointType::Rdm)
}

/// A peer that fits these hints, and whose domain has two drivers.
fn peer_with(net: &Net, hints: Hints) -> Peer {
    let fabric = net.fabric_with(hints).unwrap();
    let events = fabric.event_queue().open().unwrap();
    let domain = fabric.domain().progress_shards(2).open().unwrap();
    domain.bind(&events, DomainBind::empty()).unwrap();
    Peer {
        fabric,
        domain,
        events,
    }
}

fn scalable(peer: &Peer, contexts: usize) -> (ScalableEndpoint, AddressVector) {
    scalable_at(peer, contexts, any())
}

fn scalable_at(
    peer: &Peer,
    contexts: usize,
    address: SocketAddr,
) -> (ScalableEndpoint, AddressVector) {
    let vector = peer.domain.address_vector().rx_ctx_bits(2).open().unwrap();
    let builder = peer.domain.scalable_endpoint().contexts(contexts);
    let builder = builder.address_vector(&vector).listen_at(address);
    (builder.open().unwrap(), vector)
}

/// The contexts of one peer, by index.
fn contexts_of(vector: &AddressVector, peer: FabricAddr, count: usize) -> Vec<FabricAddr> {
    let named = (0..count).map(|index| vector.rx_addr(peer, index).unwrap());
    named.collect()
}

/// fi_domain(3): `fi_scalable_ep_bind`, function (named under fi_domain_bind).
/// fi_domain(3): "an endpoint may be configured with multiple transmit contexts."
/// fi_domain(3): "an endpoint may be configured with multiple receive contexts."
/// What is sent to one context is received, reported and counted there.
#[test]
fn each_context_of_one_address_receives_and_reports_by_itself() {
    const CONTEXTS: usize = 3;
    on_every_backend(|net| async move {
        let (one, two) = (peer_with(&net, rdm()), peer_with(&net, rdm()));
        let open = || (0..CONTEXTS).map(|_| two.domain.completion_queue().open().unwrap());
        let queues: Vec<_> = open().collect();
        let counters: Vec<_> = (0..CONTEXTS)
            .map(|_| two.domain.counter().unwrap())
            .collect();
        let vector = two.domain.address_vector().rx_ctx_bits(2).open().unwrap();
        let bound = (queues.clone(), counters.clone());
        let builder = two.domain.scalable_endpoint().contexts(CONTEXTS);
        let builder = builder.address_vector(&vector).listen_at(any());
        let builder = builder.each(move |index, context| {
            let context = context.completion_queue(&bound.0[index]);
            context.receive_counter(&bound.1[index])
        });
        let server = builder.open().unwrap();
        assert_eq!(server.contexts().len(), CONTEXTS);
        let (client, to) = scalable(&one, 2);
        let peer = client.contexts()[0].insert(server.local_addr()).unwrap();
        for (index, context) in server.contexts().iter().enumerate() {
            for round in 0..=index as u64 {
                context.recv(vec![0; 16]).queue(round).await.unwrap();
            }
        }
        let mut sent = Vec::new();
        for (index, context) in contexts_of(&to, peer, CONTEXTS).into_iter().enumerate() {
            for round in 0..=index {
                let text = format!("{index}, {round}");
                // From either context of ours; those from one arrive in order.
                sent.push(
                    client.contexts()[index % 2]
                        .send(text, context)
                        .post()
                        .unwrap(),
                );
            }
        }
        for send in sent {
            send.await.unwrap();
        }
        let us = server.contexts()[0].insert(client.local_addr()).unwrap();
        for (index, queue) in queues.iter().enumerate() {
            counters[index].wait_for(index as u64 + 1).await.unwrap();
            for round in 0..=index {
                let mut completion = queue.next().await.unwrap();
                assert_eq!(completion.endpoint, server.contexts()[index].id());
                assert!(completion.result.is_ok(), "{completion:?}");
                let bytes = completion.take_buffer().unwrap();
                let text = format!("{index}, {round}");
                assert_eq!(bytes[..completion.len], *text.as_bytes());
                let from = vector.rx_addr(us, index % 2).unwrap();
                assert_eq!(completion.source(), Some(from));
                assert_eq!(completion.source_addr(), Some(client.local_addr()));
            }
            assert!(queue.try_next().is_none(), "nothing of another context");
            assert_eq!(counters[index].read(), index as u64 + 1);
        }
    });
}

/// fi_domain(3): "Multiple threads may initiate transfers on different transmit contexts of the
/// same endpoint without serializing"
/// fi_domain(3): "It is recommended that providers which support scalable endpoints also support
/// this threading model."
/// What two threads post each to its own context arrives in its
/// order, and RMA reaches the one region through either.
#[test]
fn threads_use_contexts_side_by_side() {
    const EACH: u32 = 200;
    on_every_backend(|net| async move {
        let promised = rdm().domain(|domain| domain.threading(Threading::Completion));
        let (one, two) = (peer_with(&net, promised), peer_with(&net, rdm()));
        assert_eq!(one.domain.info().domain.threading, Threading::Completion);
        let ((client, to), (server, _)) = (scalable(&one, 2), scalable(&two, 2));
        let peer = client.contexts()[0].insert(server.local_addr()).unwrap();
        let region = crate::common::peers::open_region(&two, vec![0; 2 * 8]).await;
        let contexts = contexts_of(&to, peer, 2);
        let threads = contexts.into_iter().enumerate().map(|(index, peer)| {
            let context = client.contexts()[index].clone();
            let remote = region
                .remote()
                .slice(8 * index as u64..8 * index as u64 + 8);
            let remote = remote.unwrap();
            thread::spawn(move || {
                for number in 0..EACH {
                    let text = number.to_be_bytes().to_vec();
                    block_on(context.send(text, peer).into_future()).unwrap();
                }
                let write = context.write(vec![index as u8 + 1; 8], peer, remote);
                block_on(write.delivery_complete().into_future()).unwrap();
            })
        });
        let threads: Vec<_> = threads.collect();
        for context in server.contexts() {
            for number in 0..EACH {
                let (received, bytes) = context.recv(vec![0; 8]).await.unwrap();
                assert_eq!(bytes[..received.len], number.to_be_bytes());
            }
        }
        for thread in threads {
            tokio::task::spawn_blocking(|| thread.join().unwrap())
                .await
                .unwrap();
        }
        let expected = [[1; 8], [2; 8]].concat();
        assert_eq!(crate::common::peers::bytes_of(&region), expected);
    });
}

/// fi_av(3): `fi_rx_addr`, function.
/// fi_av(3): `fi_av_attr.rx_ctx_bits`, structure field.
/// fi_av(3): "the number of bits reserved in a returned fi_addr_t, which will be used to identify a
/// specific target receive context."
#[test]
fn an_address_names_a_context_in_the_bits_that_are_kept_for_it() {
    on_every_backend(|net| async move {
        let peer = peer_with(&net, rdm());
        let vector = peer.domain.address_vector().rx_ctx_bits(3).open().unwrap();
        let at = "127.0.0.1:7471".parse().unwrap();
        let addr = vector.insert(at).await.unwrap();
        assert_eq!((vector.rx_ctx_bits(), addr.to_bits() >> 61), (3, 0));
        for index in 0..8 {
            let context = vector.rx_addr(addr, index).unwrap();
            // As fi_rx_addr of rdma/fi_domain.h computes it.
            assert_eq!(context.to_bits(), (index as u64) << 61 | addr.to_bits());
            assert_eq!(vector.context_of(context), index);
            assert_eq!(vector.lookup(context).unwrap(), at);
            assert_eq!(vector.rx_addr(context, 0).unwrap(), addr);
        }
        let invalid = |addr, index| vector.rx_addr(addr, index).unwrap_err().kind();
        assert_eq!(invalid(addr, 8), ErrorKind::InvalidArgument);
        assert_eq!(invalid(addr, usize::MAX), ErrorKind::InvalidArgument);
        vector.remove(addr).unwrap();
        assert_eq!(invalid(addr, 1), ErrorKind::InvalidArgument);
        // A vector that keeps none names the peer itself.
        let plain = peer.domain.address_vector().open().unwrap();
        let addr = plain.insert(at).await.unwrap();
        assert_eq!(plain.rx_addr(addr, 0).unwrap(), addr);
        let refused = plain.rx_addr(addr, 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("rx_ctx_bits"), "{refused}");
        let builder = || peer.domain.address_vector();
        let refused = builder()
            .rx_ctx_bits(RX_CTX_BITS_MAX + 1)
            .open()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let named = builder()
            .rx_ctx_bits(1)
            .name("contexts")
            .open()
            .unwrap_err();
        assert_eq!(named.kind(), ErrorKind::Unsupported);
    });
}

/// fi_domain(3): "The maximum number of transmit contexts that may be associated with an endpoint."
/// fi_domain(3): "The maximum number of receive contexts that may be associated with an endpoint."
/// `ScalableEndpointBuilder::contexts`: "at most `max_ep_tx_ctx` and `max_ep_rx_ctx` of the domain",
/// and each counts as a context of the domain's, all of them as one endpoint.
#[test]
fn one_context_more_than_there_may_be_is_refused_with_the_number() {
    on_every_backend(|net| async move {
        let peer = peer_with(&net, rdm());
        let open = |peer: &Peer, contexts| {
            let builder = peer.domain.scalable_endpoint().contexts(contexts);
            builder.listen_at(any()).open()
        };
        let beyond = open(&peer, EP_CONTEXTS_MAX + 1).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::LimitReached);
        assert!(beyond.to_string().contains("max_ep_tx_ctx"), "{beyond}");
        let none = open(&peer, 0).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidArgument);

        // What the hints ask for is what is opened unasked, and no more than it.
        let two = rdm().endpoint_attr(|endpoint| endpoint.rx_ctx_cnt(ContextCount::Own(2)));
        let two = two.domain(|domain| domain.max_ep_rx_ctx(2).ep_cnt(1).tx_ctx_cnt(3));
        let peer = peer_with(&net, two);
        let endpoint = peer.domain.scalable_endpoint().listen_at(any()).open();
        let endpoint = endpoint.unwrap();
        assert_eq!(endpoint.contexts().len(), 2);
        let beyond = open(&peer, 3).unwrap_err();
        assert!(beyond.to_string().contains("max_ep_rx_ctx"), "{beyond}");
        let second = open(&peer, 1).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::LimitReached);
        assert!(second.to_string().contains("ep_cnt"), "{second}");
        drop(endpoint);
        while let Err(busy) = open(&peer, 2) {
            assert_eq!(busy.kind(), ErrorKind::LimitReached, "{busy}");
            tokio::task::yield_now().await;
        }
        // Three transmit contexts in all.
        let mut four = peer_with(&net, rdm().domain(|domain| domain.tx_ctx_cnt(3)));
        assert_eq!(open(&four, 4).unwrap().contexts().len(), 4, "it is advice");
        four.domain = four.fabric.domain().limit().open().unwrap();
        let beyond = open(&four, 4).unwrap_err();
        assert!(beyond.to_string().contains("tx_ctx_cnt is 3"), "{beyond}");
    });
}

/// What of a context is the scalable endpoint's is refused at the context; and an endpoint that was
/// opened without NAMED_RX_CTX names none.
#[test]
fn what_a_context_may_not_be_is_refused_by_name() {
    on_every_backend(|net| async move {
        let peer = peer_with(&net, rdm().caps(Caps::MSG));
        let builder = || peer.domain.scalable_endpoint().contexts(2).listen_at(any());
        let (vector, at) = (peer.domain.address_vector().open().unwrap(), any());
        let refused = [
            (builder().each(|_, it| it.extension(false)), "extension"),
            (builder().each(move |_, it| it.listen_at(at)), "listen_at"),
            (
                builder().each(move |_, it| it.address_vector(&vector)),
                "address_vector",
            ),
        ];
        for (builder, what) in refused {
            let error = builder.open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(what), "{error}");
        }
        let ((endpoint, vector), (other, _)) = (scalable(&peer, 2), scalable(&peer, 2));
        let first = endpoint.contexts()[0].insert(other.local_addr()).unwrap();
        let second = vector.rx_addr(first, 1).unwrap();
        let refused = endpoint.contexts()[0].send("", second).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoCapability);
        assert!(refused.to_string().contains("NAMED_RX_CTX"), "{refused}");
        endpoint.contexts()[0].send("heard", first).await.unwrap();
        let (_, bytes) = other.contexts()[0].recv(vec![0; 5]).await.unwrap();
        assert_eq!(bytes, b"heard");
    });
}

/// Whatever makes the progress of a domain makes that of the contexts in it, to their end.
#[test]
fn every_driver_serves_contexts() {
    for driver in [Driver::Task, Driver::Thread, Driver::Manual] {
        on(Backend::Epoll, move |net| async move {
            let net = net.driver(driver);
            let (one, two) = (peer_with(&net, rdm()), peer_with(&net, rdm()));
            // An address of no other test, which could listen at the same port by the time that
            // nothing is expected to listen there.
            let own = SocketAddr::from(([127, 0, 0, 2], 0));
            let ((client, to), (server, _)) = (scalable(&one, 2), scalable_at(&two, 2, own));
            let peer = client.contexts()[0].insert(server.local_addr()).unwrap();
            for (index, to) in contexts_of(&to, peer, 2).into_iter().enumerate() {
                let (from, at) = (&client.contexts()[1 - index], &server.contexts()[index]);
                let message = vec![index as u8; 300_000];
                let received = at.recv(vec![0; 300_000]);
                let (sent, received) = join(
                    from.send(message.clone(), to).into_future(),
                    received.into_future(),
                )
                .await;
                sent.unwrap();
                assert_eq!(received.unwrap().1, message);
            }
            let address = server.local_addr();
            join(server.contexts()[0].shutdown(), client.shutdown())
                .await
                .0
                .unwrap();
            server.shutdown().await.unwrap();
            // A child that another test is just starting holds each descriptor until its exec.
            let refused = loop {
                match tokio::net::TcpStream::connect(address).await {
                    Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(refused) => break refused,
                }
            };
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        });
    }
}

/// A context has the authorization key that it is bound to, and proves it as any endpoint does
/// (docs/extension.md, section 9).
#[test]
fn each_context_proves_its_own_key() {
    on_every_backend(|net| async move {
        let sides = [(); 2].map(|()| {
            let peer = peer_with(&net, rdm());
            let vector = peer.domain.address_vector().rx_ctx_bits(1).open().unwrap();
            let builder = peer.domain.scalable_endpoint().contexts(2);
            let builder = builder.address_vector(&vector).listen_at(any());
            let key = |index| AuthKey::new(format!("the key of context {index}").as_bytes());
            let builder = builder.each(move |index, it| it.auth_key(key(index)));
            (builder.open().unwrap(), vector, peer)
        });
        let [(client, vector, _peer), (server, ..)] = &sides;
        let peer = client.contexts()[0].insert(server.local_addr()).unwrap();
        for (index, to) in contexts_of(vector, peer, 2).into_iter().enumerate() {
            client.contexts()[index].send("proven", to).await.unwrap();
            let received = server.contexts()[index].recv(vec![0; 6]).await.unwrap();
            assert_eq!(received.1, b"proven");
            let refused = client.contexts()[1 - index]
                .send("not", to)
                .await
                .unwrap_err();
            let kinds = [ErrorKind::NotAuthorized, ErrorKind::ConnectionRefused];
            assert!(kinds.contains(&refused.kind()), "{refused}");
        }
    });
}

/// After `kill -9` of a peer with two contexts the operations on each end with their reason, and
/// each of ours reports that it is down.
#[test]
fn a_killed_peer_ends_what_is_posted_to_each_of_its_contexts() {
    on(Backend::Epoll, |net| async move {
        let us = peer_with(&net, rdm());
        let (endpoint, vector) = scalable(&us, 2);
        let starting = tokio::task::spawn_blocking(|| {
            PeerProcess::start("contexts::the_peer_with_two_contexts", &[])
        });
        let (mut child, address) = starting.await.unwrap();
        let peer = endpoint.contexts()[0]
            .insert(address.parse().unwrap())
            .unwrap();
        let mut waiting = Vec::new();
        let mut feeds = Vec::new();
        for (context, to) in endpoint
            .contexts()
            .iter()
            .zip(contexts_of(&vector, peer, 2))
        {
            feeds.push((context.peers(), to));
            context.send("are you there?", to).await.unwrap();
            let answer = context.recv(vec![0; 1]).from(to).await.unwrap();
            assert_eq!(answer.1, [vector.context_of(to) as u8]);
            // Nothing there takes them any more.
            waiting.push(context.send(vec![1; 32 << 20], to).post().unwrap());
            let tagged = context.send_tagged(vec![2; 1 << 20], to, 7);
            waiting.push(tagged.delivery_complete().post().unwrap());
        }
        child.kill();
        for operation in waiting {
            let lost = tokio::time::timeout(Duration::from_secs(30), operation);
            let lost = lost.await.expect("it ends").unwrap_err();
            let kind = lost.kind();
            let is_loss = matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset);
            assert!(is_loss, "{lost}");
            assert_eq!(lost.error().peer(), Some(address.parse().unwrap()));
        }
        for (mut feed, to) in feeds {
            let down = loop {
                let event = feed.next().await.expect("ours are open");
                assert_eq!(
                    (event.fabric_addr, event.context),
                    (Some(to), vector.context_of(to))
                );
                if let PeerEventKind::Down { error } = event.kind {
                    break error;
                }
            };
            assert!(down.is_some(), "not in order");
        }
    });
}

/// The other process: each context answers its first message with its index, and takes no other.
#[test]
#[ignore = "the other process of another test"]
fn the_peer_with_two_contexts() {
    end_with_the_parent();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let us = peer_with(&Net::on(Backend::Epoll), rdm());
        let (endpoint, vector) = scalable(&us, 2);
        say(endpoint.local_addr());
        let mut clients: HashMap<_, FabricAddr> = HashMap::new();
        for (index, context) in endpoint.contexts().iter().enumerate() {
            let (received, _) = context.recv(vec![0; 16]).await.unwrap();
            let address = received.source_addr.unwrap();
            let client = clients
                .entry(address)
                .or_insert_with(|| context.insert(address).unwrap());
            let from = vector.rx_addr(*client, index).unwrap();
            context.send(vec![index as u8], from).await.unwrap();
        }
        std::future::pending().await
    })
}
