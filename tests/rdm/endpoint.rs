//! Connectionless endpoints (`FI_EP_RDM`): messages, senders, peers that come and go.

mod completion;

use std::time::Duration;

use crate::common::on_every_backend;
use crate::common::peers::crowd;
use futures::FutureExt;
use futures::future::join_all;
use tokio_fabric::{
    Caps, Completion, EndpointType, Error, ErrorKind, Hints, RdmEndpoint, error::Phase,
};

async fn next(endpoint: &RdmEndpoint) -> Completion {
    endpoint.receive_queue().next().await.expect("it is open")
}

/// fi_endpoint(3): "Provides a reliable, connectionless data transfer service with flow control
/// that maintains message boundaries."
/// fi_endpoint(3): `FI_EP_RDM`
/// fi_msg(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message."
/// fi_msg(3): "Destination address for connectionless transfers."
/// fi_msg(3): `fi_recvv`
/// fi_msg(3): `fi_recv`
/// fi_msg(3): `fi_sendv`
/// fi_msg(3): `fi_send`
/// fi_msg(3): "The call fi_send transfers the data contained in the user-specified data buffer to a
/// remote endpoint, with message boundaries being maintained."
/// fi_endpoint(3): "Connectionless data transfers with reliability"
#[test]
fn messages_go_both_ways_and_the_buffers_come_back() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for round in 0..20usize {
            let len = [0, 1, 100, 5_000][round % 4];
            let message = vec![round as u8; len];
            let sending = a.endpoint.send(message.clone(), a.other).post().unwrap();
            let (received, buffer) = b.endpoint.recv(vec![0u8; 8_000]).await.unwrap();
            assert_eq!((received.len, &buffer[..len]), (len, &message[..]));
            assert_eq!(sending.await.unwrap(), (len, message.clone()));
            let [one, two] = [message[..len / 2].to_vec(), message[len / 2..].to_vec()];
            b.endpoint.send([one, two], b.other).await.unwrap();
            let into = [vec![0u8; len / 3], vec![0u8; 8_000]];
            let (received, [first, second]) = a.endpoint.recv(into).await.unwrap();
            assert_eq!(received.len, len);
            assert_eq!([&first[..], &second[..len - len / 3]].concat(), message);
        }
    });
}

/// fi_endpoint(3): "order applies only between a single source and destination endpoint pair."
/// fi_endpoint(3): `FI_ORDER_SAS`
/// fi_endpoint(3): "FI_ORDER_SAS"; fi_tagged(3): "In general, message tags are checked against
/// receive buffers in the order in which messages have been posted to the endpoint."
#[test]
fn messages_of_one_sender_keep_their_order() {
    on_every_backend(|net| async move {
        const COUNT: u32 = 500;
        let crowd = crowd(&net, 4);
        let sending = crowd[1..]
            .iter()
            .enumerate()
            .map(|(sender, (_, from, known))| {
                let to = known[0];
                async move {
                    for number in 0..COUNT {
                        let bytes = [sender as u32, number].map(u32::to_le_bytes).concat();
                        from.send(bytes, to).await.unwrap();
                    }
                }
            });
        let receiving = async {
            let mut expected = [0; 3];
            for _ in 0..3 * COUNT {
                let (received, bytes) = crowd[0].1.recv(vec![0u8; 8]).await.unwrap();
                let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                let (sender, number) = (word(0) as usize, word(4));
                assert_eq!((received.len, number), (8, expected[sender]), "of {sender}");
                assert_eq!(received.source, Some(crowd[0].2[sender + 1]));
                expected[sender] += 1;
            }
        };
        futures::future::join(join_all(sending), receiving).await;
    });
}

/// fi_cq(3): "requires that the source address already have been inserted into the address vector
/// associated with the receiving endpoint."
/// fi_cq(3): `fi_cq_readfrom`
/// fi_cq(3): "Returned source addressing data is converted from the native address used by the
/// underlying fabric into an fi_addr_t, which may be used in transmit operations."
/// fi_cq(3): "source addresses which cannot be mapped to a usable fi_addr_t will be reported as
/// FI_ADDR_NOTAVAIL."
/// fi_cq(3): "In no case do providers insert addresses into an AV separate from an application
/// calling fi_av_insert or similar call."
/// fi_av(3): "This flag associates a user-assigned identifier with each AV entry that is returned
/// with any completion entry in place of the AV’s address." Here it comes beside the address.
/// fi_av(3): "the fi_addr_t value reported by a completion event is replaced with a user-specified
/// value instead."
#[test]
fn the_sender_is_named_if_the_vector_has_it() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let to_y = x.insert(y.local_addr()).unwrap();
        x.send("who", to_y).await.unwrap();
        let (received, _) = y.recv(vec![0u8; 8]).await.unwrap();
        assert_eq!((received.source, received.source_user_id), (None, None));
        assert_eq!(received.source_addr, Some(x.local_addr()));
        assert!(y.address_vector().is_empty(), "it was not inserted");
        // The same through a queue, where the address is looked up when it is asked for.
        y.recv(vec![0u8; 8]).queue(1u64).await.unwrap();
        x.send("it is", to_y).await.unwrap();
        let completion = next(&y).await;
        assert_eq!(
            (completion.source(), completion.source_addr()),
            (None, Some(x.local_addr()))
        );
        let to_x = y.insert(completion.source_addr().unwrap()).unwrap();
        assert_eq!(completion.source(), Some(to_x));
        // The answer needs no other address.
        y.send("you", to_x).await.unwrap();
        assert_eq!(x.recv(vec![0u8; 8]).await.unwrap().0.source, Some(to_y));
        y.address_vector().remove(to_x).unwrap();
        assert_eq!(completion.source(), None);
        let by_user = y.address_vector().insert(x.local_addr()).user_id(77);
        let to_x = by_user.now().unwrap();
        x.send("me", to_y).await.unwrap();
        let (received, _) = y.recv(vec![0u8; 8]).await.unwrap();
        assert_eq!(received.source, Some(to_x));
        assert_eq!(received.source_user_id, Some(77));
        assert_eq!(completion.source_user_id(), Some(77));
    });
}

/// fi_cq(3): "the source address will be set to FI_ADDR_NOTAVAIL."
/// fi_cq(3): "Source address data is only available for those endpoints configured with FI_SOURCE
/// capability."
/// fi_msg(3): "Applies only to connectionless endpoints with the FI_DIRECTED_RECV capability
/// enabled, otherwise this field is ignored." Here it is refused, so that no receive gets a message
/// of another peer than was asked for.
#[test]
fn source_and_direction_are_capabilities() {
    on_every_backend(|net| async move {
        let rdm = Hints::new().endpoint(EndpointType::Rdm);
        let plain = rdm.caps(Caps::MSG | Caps::TAGGED | Caps::MULTI_RECV);
        let one = net.peer().unwrap();
        let two =
            crate::common::peers::peer_with(&net, plain, tokio_fabric::domain::DomainBind::empty());
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let to_y = x.insert(y.local_addr()).unwrap();
        let (_held, address) = crate::common::peers::reserved();
        let absent = y.insert(address).unwrap();
        y.insert(x.local_addr()).unwrap();
        x.send("all the same", to_y).await.unwrap();
        let refused = [
            y.recv(vec![0u8; 16])
                .from(absent)
                .await
                .unwrap_err()
                .into_error(),
            y.recv(vec![0u8; 16])
                .from(absent)
                .post()
                .unwrap_err()
                .into_error(),
            y.recv_tagged(vec![0u8; 16], 1)
                .from(absent)
                .await
                .unwrap_err()
                .into_error(),
            y.multi_recv(vec![0u8; 16])
                .from(absent)
                .queue(1u64)
                .await
                .unwrap_err()
                .into_error(),
            y.peek_tagged(1).from(absent).now().unwrap_err(),
            y.peek_tagged(1).from(absent).claim().unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::NoCapability, "{error}");
            assert!(error.to_string().contains("DIRECTED_RECV"), "{error}");
        }
        let (received, _) = y.recv(vec![0u8; 16]).await.unwrap();
        assert_eq!((received.len, received.source), (12, None));
        assert_eq!(received.source_addr, None);
    });
}

/// fi_msg(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends."
/// fi_msg(3): "If set to FI_ADDR_UNSPEC, any source address may match."
/// fi_msg(3): "Source address to receive from for connectionless transfers."
/// fi_msg(3): "For connectionless endpoints, the src_addr parameter can be used to indicate that a
/// buffer should be posted to receive incoming data from a specific remote endpoint."
#[test]
fn a_directed_receive_takes_one_peers_messages() {
    on_every_backend(|net| async move {
        let crowd = crowd(&net, 3);
        let (_, me, known) = &crowd[0];
        let mut from_second = me.recv(vec![0u8; 16]).from(known[2]).post().unwrap();
        let from_any = me.recv(vec![0u8; 16]).post().unwrap();
        crowd[1].1.send("first", crowd[1].2[0]).await.unwrap();
        let (received, bytes) = from_any.await.unwrap();
        assert_eq!(
            (received.source, &bytes[..5]),
            (Some(known[1]), &b"first"[..])
        );
        assert!((&mut from_second).now_or_never().is_none());
        crowd[2].1.send("second", crowd[2].2[0]).await.unwrap();
        let (received, bytes) = from_second.await.unwrap();
        assert_eq!(
            (received.source, &bytes[..6]),
            (Some(known[2]), &b"second"[..])
        );
        // Early ones too: the first of that peer's, past others'.
        for (peer, text) in [(1, "a"), (2, "b"), (1, "c"), (2, "d")] {
            let (_, from, to) = &crowd[peer];
            from.send(text, to[0]).delivery_complete().await.unwrap();
        }
        for (peer, text) in [(2, "b"), (2, "d"), (1, "a"), (1, "c")] {
            let (received, bytes) = me.recv(vec![0u8; 1]).from(known[peer]).await.unwrap();
            assert_eq!(
                (received.source, &bytes[..]),
                (Some(known[peer]), text.as_bytes())
            );
        }
    });
}

/// A receive for one peer alone whose time passes says which peer it was that sent nothing, posted
/// or still in the line for room.
#[test]
fn a_directed_receive_that_times_out_names_its_peer() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let me = a.domain.rdm_endpoint().receive_size(1).open().unwrap();
        let other = b.rdm_endpoint().unwrap();
        let (silent, address) = (me.insert(other.local_addr()).unwrap(), other.local_addr());
        let short = Duration::from_millis(20);
        let receive = || {
            me.recv(vec![0u8; 8])
                .from(silent)
                .timeout(short)
                .into_future()
        };
        let (posted, waiting) = (receive(), receive());
        for ended in [posted.await, waiting.await] {
            let error = Error::from(ended.unwrap_err());
            assert_eq!(
                (error.kind(), error.peer()),
                (ErrorKind::TimedOut, Some(address))
            );
        }
        let anybodys = Error::from(me.recv(vec![0u8; 8]).timeout(short).await.unwrap_err());
        assert_eq!(
            (anybodys.kind(), anybodys.peer()),
            (ErrorKind::TimedOut, None)
        );
    });
}

/// fi_cq(3): "how many data bytes were placed into the associated receive buffer"
/// fi_cq(3): "The olen specifies the amount of data that did not fit into the available receive
/// buffer and was discarded."
#[test]
fn truncation_reports_both_lengths_and_the_connection_lives() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        // Small, eager and is_unexpected; and large enough to be announced.
        for len in [10usize, 40_000, 300_000] {
            for is_unexpected in [false, true] {
                let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let send = a.endpoint.send(message.clone(), a.other);
                let failed = if is_unexpected {
                    let sending = send.post().unwrap();
                    let behind = a.endpoint.send("behind", a.other).post().unwrap();
                    while len == 10 && b.endpoint.unexpected_bytes() == 0 {
                        tokio::task::yield_now().await;
                    }
                    let failed = b.endpoint.recv(vec![0u8; 7]).await.unwrap_err();
                    sending.await.unwrap();
                    behind.await.unwrap();
                    failed
                } else {
                    let receiving = b.endpoint.recv(vec![0u8; 7]).post().unwrap();
                    send.await.unwrap();
                    a.endpoint.send("behind", a.other).await.unwrap();
                    receiving.await.unwrap_err()
                };
                assert_eq!(
                    (failed.kind(), failed.error().fi_errno()),
                    (ErrorKind::Truncated, 265)
                );
                assert_eq!((failed.received_len(), failed.overflow_len()), (7, len - 7));
                assert_eq!(failed.into_parts().1.unwrap(), message[..7]);
                assert_eq!(b.endpoint.recv(vec![0u8; 8]).await.unwrap().0.len, 6);
            }
        }
        // The completion says both too.
        b.endpoint.recv(vec![0u8; 2]).queue(1u64).await.unwrap();
        a.endpoint.send("seven..", a.other).imm(3).await.unwrap();
        let completion = next(&b.endpoint).await;
        let error = completion.result.as_ref().unwrap_err();
        assert_eq!(
            (completion.len, error.overflow_len, completion.data),
            (2, 5, Some(3))
        );
        assert_eq!(completion.source(), Some(b.other));
    });
}

/// Ruling 4: "A receive that is dropped, or whose time limit passes, is removed from the queue; a
/// message that was already matched to it returns to the head of the unexpected messages." One
/// whose bytes were asked for by the dropped receive comes back when they are there.
#[test]
fn a_dropped_receive_loses_no_message() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for round in 0..60usize {
            let len = [3, 20_000, 200_000][round % 3];
            let receive = b.endpoint.recv(vec![0u8; len]).post().unwrap();
            let send = a
                .endpoint
                .send(vec![round as u8; len], a.other)
                .post()
                .unwrap();
            let behind = a.endpoint.send(vec![0xff], a.other).post().unwrap();
            for _ in 0..round / 3 {
                tokio::task::yield_now().await;
            }
            drop(receive);
            let mut got = Vec::new();
            for _ in 0..2 {
                let (received, mut bytes) = b.endpoint.recv(vec![0u8; len]).await.unwrap();
                assert_eq!(received.source, Some(b.other));
                bytes.truncate(received.len);
                got.push(bytes);
            }
            if len == 200_000 {
                got.sort(); // Announced: the other may be there before its bytes.
            }
            assert!(got == [vec![round as u8; len], vec![0xff]], "round {round}");
            send.await.unwrap();
            behind.await.unwrap();
        }
    });
}

/// Ruling 4, a receive "whose time limit passes": a message that is landing when the time of its
/// receive passes keeps its place before those behind it.
#[test]
fn a_receive_that_times_out_keeps_the_order() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let late = |round: u32| Duration::from_micros(u64::from(round % 40) * 10);
        for round in 0..400 {
            let len = [3_000, 60_000][round as usize % 2];
            let receive = b.endpoint.recv(vec![0u8; len]).timeout(late(round));
            let receive = receive.post().unwrap();
            let sends = [vec![1; len], vec![2], vec![3]].map(|bytes| {
                let send = a.endpoint.send(bytes, a.other);
                send.post().unwrap()
            });
            let mut got = Vec::new();
            let first = receive.await;
            for _ in 0..2 + usize::from(first.is_err()) {
                let (received, bytes) = b.endpoint.recv(vec![0u8; len]).await.unwrap();
                got.push((received.len, bytes[0]));
            }
            let order = [(len, 1), (1, 2), (1, 3)];
            match first {
                Ok((received, bytes)) => got.insert(0, (received.len, bytes[0])),
                Err(failed) => assert_eq!(failed.kind(), ErrorKind::TimedOut),
            }
            assert_eq!(got, order, "round {round}");
            for send in sends {
                send.await.unwrap();
            }
        }
    });
}

/// fi_av(3): "When closing the address vector, there must be no opened endpoints associated with
/// the AV."
/// fi_endpoint(3): an endpoint has what it is bound to for as long as it lives.
#[test]
fn what_an_endpoint_is_bound_to_cannot_be_closed() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let vector = peer.domain.address_vector().open().unwrap();
        let opened = peer.domain.rdm_endpoint().address_vector(&vector);
        let x = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        assert_eq!(vector.close().await.unwrap_err().kind(), ErrorKind::Busy);
        let busy = peer.domain.close().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        x.shutdown().await.unwrap();
        drop(x);
        vector.close().await.unwrap();
        let closed = peer.domain.rdm_endpoint().address_vector(&vector);
        let refused = closed
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
        for sizes in [(0, 1), (1, 0)] {
            let builder = peer
                .domain
                .rdm_endpoint()
                .listen_at(crate::common::peers::any());
            let builder = builder.transmit_size(sizes.0).receive_size(sizes.1);
            assert_eq!(
                builder.open().unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
        }
    });
}

/// Names and numbers, and an address that is known already.
#[test]
fn peers_are_resolved_once() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let by_number = x.resolve(&y.local_addr().to_string()).await.unwrap();
        assert_eq!(x.insert(y.local_addr()).unwrap(), by_number);
        assert_eq!(x.address_vector().len(), 1);
        let refused = x.resolve("no port").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            x.insert(([0, 0, 0, 0], 1).into()).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        x.send("hello", by_number).await.unwrap();
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
    });
}

/// fi_msg(3): "the operation may be retried after additional resources become available."
/// fi_msg(3): "Full processing queues may be a temporary state"; other peers' contexts are not
/// concerned.
#[test]
fn a_full_context_says_again_for_that_peer_only() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let opened = one.domain.rdm_endpoint().transmit_size(2).receive_size(2);
        let x = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let y = two.rdm_endpoint().unwrap();
        let (_held, address) = crate::common::peers::reserved();
        let absent = x.insert(address).unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let waits: Vec<_> = (0..2)
            .map(|_| x.send("waits", absent).try_post().unwrap())
            .collect();
        let again = x.send("again", absent).try_post().unwrap_err();
        assert_eq!(
            (again.kind(), again.into_parts().1),
            (ErrorKind::Again, Some("again"))
        );
        assert_eq!(
            x.inject(b"again", absent).unwrap_err().kind(),
            ErrorKind::Again
        );
        for _ in 0..5 {
            x.send("goes", to_y).await.unwrap();
            assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 4);
        }
        let line = x.send("in line", absent).post().unwrap();
        assert_eq!(line.phase(), Phase::Waiting);
        assert!(line.cancel());
        drop(waits);
        // Of receives there is one context for all.
        let waits: Vec<_> = (0..2)
            .map(|_| x.recv(vec![0u8; 8]).try_post().unwrap())
            .collect();
        let again = x.recv(vec![0u8; 8]).try_post().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Again);
        let line = x.recv(vec![0u8; 8]).post().unwrap();
        let to_x = y.insert(x.local_addr()).unwrap();
        for _ in 0..3 {
            y.send("to all", to_x).await.unwrap();
        }
        for receive in waits.into_iter().chain([line]) {
            assert_eq!(receive.await.unwrap().0.len, 6);
        }
    });
}
