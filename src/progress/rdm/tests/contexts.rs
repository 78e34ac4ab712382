//! Several contexts of one endpoint: their drivers, their connections, and refused requests.

use super::*;
use crate::av::AddressVector;
use crate::domain::Domain;
use crate::endpoint::ScalableEndpoint;
use crate::info::{EndpointType, Hints};
use crate::wire::{Capabilities, ExtensionOffer, NamedContexts};

const ANY: &str = "127.0.0.1:0";

/// Makes a peer whose domain has the Info of connectionless endpoints: only those have contexts.
fn peer_of(net: &Net) -> Peer {
    let hints = Hints::new().endpoint(EndpointType::Rdm);
    Peer::of(net.fabric_with(hints).unwrap()).unwrap()
}

fn vector(peer: &Peer) -> AddressVector {
    let vector = peer.domain.address_vector().rx_ctx_bits(2);
    vector.open().unwrap()
}

fn scalable(domain: &Domain, vector: &AddressVector, contexts: usize) -> ScalableEndpoint {
    let builder = domain.scalable_endpoint().contexts(contexts);
    let builder = builder.address_vector(vector);
    builder.listen_at(ANY.parse().unwrap()).open().unwrap()
}

/// "each context on a progress shard of its own", and more contexts than shards share them.
#[test]
fn each_context_has_a_driver_of_its_own_as_far_as_there_are_so_many() {
    run(|net| async move {
        let domain = peer_of(&net)
            .fabric
            .domain()
            .progress_shards(2)
            .open()
            .unwrap();
        let endpoint = domain.scalable_endpoint().contexts(3);
        let endpoint = endpoint.listen_at(ANY.parse().unwrap()).open().unwrap();
        let engine = |index: usize| &endpoint.contexts()[index].rdm().engine;
        assert!(!Arc::ptr_eq(engine(0), engine(1)));
        assert!(Arc::ptr_eq(engine(0), engine(2)));
        let at = endpoint.contexts().iter().map(RdmEndpoint::local_addr);
        assert!(at.into_iter().all(|at| at == endpoint.local_addr()));
    });
}

/// A connection of one context that is blocked, as by a thread in the middle of a post, keeps no
/// thread from posting to another: they have no lock in common.
#[test]
fn who_posts_to_one_context_waits_for_no_other() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let to = b.rdm_endpoint().unwrap();
        let endpoint = scalable(&a.domain, &vector(&a), 2);
        let peer = endpoint.contexts()[0].insert(to.local_addr()).unwrap();
        for context in endpoint.contexts() {
            context.send("connects", peer).await.unwrap();
        }
        let rdm = endpoint.contexts()[0].rdm();
        let port = rdm.port_of(to.local_addr().into()).unwrap();
        let held = port.lock("a post under way");
        let second = endpoint.contexts()[1].clone();
        let posting = std::thread::spawn(move || second.inject(b"meanwhile", peer));
        posting.join().unwrap().unwrap();
        drop(held);
        for expected in ["connects", "connects", "meanwhile"] {
            let (received, bytes) = to.recv(vec![0; 9]).await.unwrap();
            assert_eq!(&bytes[..received.len], expected.as_bytes());
        }
    });
}

/// All contexts of two endpoints connect to all of both at once: each pair ends with one
/// connection, whichever side began, and so do pairs within one endpoint.
#[test]
fn each_pair_of_contexts_ends_with_one_connection() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let sides = [&a, &b].map(|side| {
            let vector = vector(side);
            (scalable(&side.domain, &vector, 2), vector)
        });
        let all = [sides[0].0.local_addr(), sides[1].0.local_addr()];
        let mut sends = Vec::new();
        for (from, (endpoint, vector)) in sides.iter().enumerate() {
            for (index, context) in endpoint.contexts().iter().enumerate() {
                for peer in all {
                    let peer = context.insert(peer).unwrap();
                    for to in 0..2 {
                        let peer = vector.rx_addr(peer, to).unwrap();
                        let text = format!("{from}.{index}");
                        sends.push(context.send(text, peer).post().unwrap());
                    }
                }
            }
        }
        for (endpoint, vector) in &sides {
            for context in endpoint.contexts() {
                let mut heard = Vec::new();
                for _ in 0..4 {
                    let (received, bytes) = context.recv(vec![0; 3]).await.unwrap();
                    let source = received.source.expect("the vector has it");
                    let side = all
                        .iter()
                        .position(|it| Some(*it) == vector.lookup(source).ok());
                    let named = format!("{}.{}", side.unwrap(), vector.context_of(source));
                    assert_eq!(bytes, named.into_bytes(), "the source is a context");
                    heard.push(bytes);
                }
                heard.sort();
                assert_eq!(heard, [b"0.0", b"0.1", b"1.0", b"1.1"]);
            }
        }
        for send in sends {
            send.await.unwrap();
        }
        run_other_tasks().await;
        for (endpoint, _) in &sides {
            // To itself a context has two connections: messages are sent over one, and received
            // over the other.
            let count = endpoint.contexts().iter().map(ports);
            assert_eq!(count.collect::<Vec<_>>(), [5, 5]);
        }
    });
}

/// docs/extension.md, section 8: a request for a context that does not exist is rejected with that
/// reason; one that names contexts wrongly is no request. Neither has an effect on others.
#[test]
fn requests_for_contexts_that_are_not_there_are_rejected() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let (them, vector) = (scalable(&b.domain, &vector(&b), 2), vector(&a));
        let us = scalable(&a.domain, &vector, 1);
        let peer = us.contexts()[0].insert(them.local_addr()).unwrap();
        us.contexts()[0].send("before", peer).await.unwrap();

        let offer = ExtensionOffer::new(Capabilities::CREDIT | Capabilities::CONTEXTS);
        let request = PeerData::request(9, NonZeroU32::MIN, Some(offer));
        let ask = async |data: Vec<u8>| {
            let endpoint = a.domain.endpoint().extension(false).open().unwrap();
            let refused = endpoint.connect(them.local_addr()).data(data).await;
            let refused = refused.expect_err("there is no such context");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            refused.data().clone()
        };
        for to in [2, 3, 64, 0xffff] {
            let asked = request.between(NamedContexts { from: 0, to });
            let answer = ask(asked.encode()).await;
            let incarnation = them.contexts()[0].rdm().incarnation;
            assert_eq!(answer, asked.reject_context(incarnation));
        }
        let named = request.between(NamedContexts { from: 1, to: 1 }).encode();
        let mut long = named.clone();
        long[13] = 11;
        let mut longest = named.clone();
        longest[12..14].fill(0xff);
        let mut short = named.clone();
        short[13] = 9;
        for wrong in [&named[..named.len() - 1], &long, &longest, &short] {
            assert!(ask(wrong.to_vec()).await.is_empty());
        }

        // Our endpoint reports it to the operation, and continues.
        let third = vector.rx_addr(peer, 2).unwrap();
        let refused = us.contexts()[0].send("none", third).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddressNotAvailable);
        assert!(refused.to_string().contains("context 2"), "{refused}");
        us.contexts()[0].send("after", peer).await.unwrap();
        for expected in ["before", "after"] {
            let (received, bytes) = them.contexts()[0].recv(vec![0; 9]).await.unwrap();
            assert_eq!(&bytes[..received.len], expected.as_bytes());
        }
    });
}

/// A peer that speaks libfabric's own protocol only is reached between the contexts 0; between
/// others it is refused with the reason, since the peer would take any context for its one
/// endpoint.
#[test]
fn peers_without_contexts_are_reached_from_context_0_alone() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let plain = b.domain.rdm_endpoint().extension(false);
        let plain = plain.listen_at(ANY.parse().unwrap()).open().unwrap();
        let vector = vector(&a);
        let us = scalable(&a.domain, &vector, 2);
        let peer = us.contexts()[0].insert(plain.local_addr()).unwrap();
        let second = vector.rx_addr(peer, 1).unwrap();
        for (context, peer) in [(0, second), (1, peer), (1, second)] {
            let refused = us.contexts()[context].send("lost", peer).await.unwrap_err();
            let kinds = [ErrorKind::Incompatible, ErrorKind::AddressNotAvailable];
            assert!(kinds.contains(&refused.kind()), "{refused}");
        }
        us.contexts()[0].send("heard", peer).await.unwrap();
        assert_eq!(plain.recv(vec![0; 5]).await.unwrap().1, b"heard");
        // An endpoint that does not offer the extension cannot name contexts either.
        let vector = self::vector(&b);
        let plain = b.domain.rdm_endpoint().extension(false);
        let plain = plain.address_vector(&vector).open().unwrap();
        let second = vector
            .rx_addr(plain.insert(us.local_addr()).unwrap(), 1)
            .unwrap();
        let refused = plain.send("none", second).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let first = plain.insert(us.local_addr()).unwrap();
        plain.send("of one", first).await.unwrap();
        assert_eq!(
            us.contexts()[0].recv(vec![0; 6]).await.unwrap().1,
            b"of one"
        );
    });
}

/// The same toward a listener that accepts every request and knows no offers, as C peers do.
#[test]
fn a_response_that_names_no_contexts_is_for_the_first_ones() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let (accepting, mut accepted) = tokio::sync::mpsc::unbounded_channel();
        let address = listener(&b, move |request| drop(accepting.send(request))).await;
        let us = scalable(&a.domain, &vector(&a), 2);
        let context = us.contexts()[1].clone();
        let peer = context.insert(address).unwrap();
        let sent = tokio::spawn(async move { context.send("lost", peer).await });
        let request = accepted.recv().await.unwrap();
        let asked = PeerData::read(request.data()).unwrap();
        assert_eq!(asked.contexts(), NamedContexts { from: 1, to: 0 });
        let plain = b.domain.endpoint().extension(false).open().unwrap();
        let response = asked.response(NonZeroU32::MIN, None).encode();
        let _ = plain.accept(request).data(response).await;
        let refused = sent.await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Incompatible);
    });
}

/// A C peer's rejection is not reported as temporary: it accepts no request for another context
/// than 0.
#[test]
fn a_reject_without_an_offer_is_of_a_peer_without_contexts() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let count = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&count);
        let address = listener(&b, move |request| {
            counting.fetch_add(1, Ordering::Relaxed);
            let asked = PeerData::read(request.data()).unwrap();
            let data = asked.plain().to_vec();
            assert_eq!(data[2..4], [0, 0], "no endpoint that it knows");
            request.reject().data(data).send().unwrap();
        })
        .await;
        let us = scalable(&a.domain, &vector(&a), 2);
        let context = &us.contexts()[1];
        let peer = context.insert(address).unwrap();
        let refused = context.send("lost", peer).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Incompatible);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    });
}

/// One context closes by itself: the others continue, peers learn that it does not exist, and the
/// address is free when the last has closed.
#[test]
fn a_context_closes_alone_and_the_last_one_closes_the_address() {
    run(|net| async move {
        let (a, b) = (peer_of(&net), peer_of(&net));
        let vector = vector(&a);
        let us = scalable(&a.domain, &vector, 1);
        let them = scalable(&b.domain, &self::vector(&b), 2);
        let first = us.contexts()[0].insert(them.local_addr()).unwrap();
        let second = vector.rx_addr(first, 1).unwrap();
        let us = &us.contexts()[0];
        for peer in [first, second] {
            us.send("up", peer).await.unwrap();
        }
        them.contexts()[1].shutdown().await.unwrap();
        let late = them.contexts()[1].recv(vec![0; 2]).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Canceled);
        // The old connection may be about to end.
        let refused = loop {
            let refused = us.send("gone", second).await.unwrap_err();
            if refused.kind() != ErrorKind::PeerClosed {
                break refused;
            }
        };
        assert_eq!(refused.kind(), ErrorKind::AddressNotAvailable);
        us.send("still", first).await.unwrap();
        for expected in ["up", "still"] {
            let (received, bytes) = them.contexts()[0].recv(vec![0; 9]).await.unwrap();
            assert_eq!(&bytes[..received.len], expected.as_bytes());
        }
        let address = them.local_addr();
        them.shutdown().await.unwrap();
        let again = b.domain.rdm_endpoint().listen_at(address).open().unwrap();
        assert_eq!(again.local_addr(), address);
    });
}
