//! What a connectionless endpoint is bound to: one address vector, queues by the kind of operation,
//! counters; and what its Info promises of its operations.

use crate::common::on_every_backend;
use tokio_fabric::testing::connect;
use tokio_fabric::{ErrorKind, UserContext, cq::CompletionFlags, info::MsgOrder};

/// fi_endpoint(3): "Connectionless endpoints must be bound to an address vector."
/// fi_endpoint(3): "Connectionless endpoints must be bound to a single address vector."
/// Who names none has one of its own; who names one shares its addresses with others.
#[test]
fn an_endpoint_has_one_address_vector() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let shared = one.domain.address_vector().open().unwrap();
        let open = || {
            let builder = one.domain.rdm_endpoint().address_vector(&shared);
            builder
                .listen_at(crate::common::peers::any())
                .open()
                .unwrap()
        };
        let (x, y, alone) = (open(), open(), one.rdm_endpoint().unwrap());
        let far = two.rdm_endpoint().unwrap();
        let to_far = x.insert(far.local_addr()).unwrap();
        assert_eq!(y.insert(far.local_addr()).unwrap(), to_far);
        assert_eq!((shared.len(), alone.address_vector().len()), (1, 0));
        for (endpoint, text) in [(&x, "of x"), (&y, "of y")] {
            endpoint.send(text, to_far).await.unwrap();
            let (received, bytes) = far.recv(vec![0u8; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], text.as_bytes());
            assert_eq!(received.source_addr, Some(endpoint.local_addr()));
        }
        // What another vector's name is, this one's is not.
        let refused = alone.send("unmatched", to_far).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
}

/// fi_domain(3): "Address vectors are only used by connectionless endpoints."
/// A connected one needs none and heeds none, whatever is in it; a connectionless one does.
#[test]
fn connected_endpoints_have_no_address_vector() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = connect(&one, &two).await.unwrap();
        let exchange = async || {
            x.send("to y").await.unwrap();
            let received = y.recv(vec![0u8; 16]).await.unwrap().0;
            assert_eq!((received.len, received.source), (4, None));
            y.send("to x").await.unwrap();
            let received = x.recv(vec![0u8; 16]).await.unwrap().0;
            assert_eq!((received.len, received.source), (4, None));
        };
        exchange().await;
        // The peer's address comes into the vector and goes, as does the vector.
        let vector = two.domain.address_vector().open().unwrap();
        let builder = two.domain.rdm_endpoint().address_vector(&vector);
        let using = builder.listen_at(crate::common::peers::any()).open();
        let using = using.unwrap();
        let other = one.rdm_endpoint().unwrap();
        let names = [y.peer_addr(), Some(other.local_addr())];
        let names = names.map(|it| vector.insert(it.unwrap()).now().unwrap());
        exchange().await;
        let to_using = other.insert(using.local_addr()).unwrap();
        other.send("hello", to_using).await.unwrap();
        let received = using.recv(vec![0u8; 16]).await.unwrap().0;
        assert_eq!(received.source, Some(names[1]), "it names by its vector");
        for name in names {
            vector.remove(name).unwrap();
        }
        exchange().await;
        let busy = vector.close().await.unwrap_err();
        assert!(
            busy.is_busy(),
            "the connectionless endpoint uses it: {busy}"
        );
        using.shutdown().await.unwrap();
        drop(using);
        vector.close().await.expect("no endpoint uses it");
        exchange().await;
    });
}

/// fi_endpoint(3): "An active endpoint may direct asynchronous completions to different CQs, based
/// on the type of operation."
/// fi_endpoint(3), FI_RECV: "Directs the notification of inbound data transfers to the specified
/// completion queue."
/// fi_endpoint(3), FI_TRANSMIT: "Directs the completion of outbound data transfer requests to the
/// specified completion queue."
#[test]
fn completions_go_to_the_queue_of_their_direction() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let out = one.domain.completion_queue().open().unwrap();
        let into = one.domain.completion_queue().open().unwrap();
        let builder = one
            .domain
            .rdm_endpoint()
            .listen_at(crate::common::peers::any());
        let builder = builder.transmit_queue(&out).receive_queue(&into);
        let (x, y) = (builder.open().unwrap(), two.rdm_endpoint().unwrap());
        let (to_y, to_x) = (
            x.insert(y.local_addr()).unwrap(),
            y.insert(x.local_addr()).unwrap(),
        );
        let region = crate::common::peers::open_region(&two, vec![0u8; 4]).await;
        x.send("a", to_y).queue(1u64).await.unwrap();
        x.send_tagged("b", to_y, 5).queue(2u64).await.unwrap();
        x.write("cccc", to_y, region.remote())
            .queue(3u64)
            .await
            .unwrap();
        x.recv(vec![0u8; 4]).queue(4u64).await.unwrap();
        x.recv_tagged(vec![0u8; 4], 6).queue(5u64).await.unwrap();
        y.send("d", to_x).delivery_complete().await.unwrap();
        y.send_tagged("e", to_x, 6).await.unwrap();
        let mut sent = Vec::new();
        for _ in 0..3 {
            let completion = out.next().await.unwrap();
            assert!(!completion.flags.contains(CompletionFlags::RECV));
            sent.push(completion.context);
        }
        sent.sort();
        assert_eq!(sent, [1u64, 2, 3].map(UserContext));
        for context in [4, 5] {
            let completion = into.next().await.unwrap();
            assert!(completion.flags.contains(CompletionFlags::RECV));
            assert_eq!(completion.context, UserContext(context));
        }
        assert!(out.is_empty() && into.is_empty());
    });
}

/// fi_endpoint(3), FI_SEND: "Sent messages include both tagged and normal message operations."
/// fi_endpoint(3), FI_RECV: "Received messages include both tagged and normal message operations."
#[test]
fn counters_count_tagged_and_untagged_messages_alike() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (sent, got) = (one.domain.counter().unwrap(), two.domain.counter().unwrap());
        let (written, read) = (one.domain.counter().unwrap(), one.domain.counter().unwrap());
        let builder = one
            .domain
            .rdm_endpoint()
            .listen_at(crate::common::peers::any());
        let builder = builder.send_counter(&sent).write_counter(&written);
        let x = builder.read_counter(&read).open().unwrap();
        let builder = two
            .domain
            .rdm_endpoint()
            .listen_at(crate::common::peers::any());
        let y = builder.receive_counter(&got).open().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        for round in 0..3u64 {
            x.send("message", to_y).await.unwrap();
            x.send_tagged("message", to_y, round).await.unwrap();
            y.recv(vec![0u8; 8]).await.unwrap();
            y.recv_tagged(vec![0u8; 8], round).await.unwrap();
        }
        sent.wait_for(6).await.unwrap();
        got.wait_for(6).await.unwrap();
        assert_eq!((sent.read(), got.read()), (6, 6));
        assert_eq!((written.read(), read.read()), (0, 0));
    });
}

/// fi_endpoint(3): `FI_ORDER_SAW`, `FI_ORDER_WAW`, `FI_ORDER_RAW`: the Info says so, and what is
/// sent behind a write, tagged or not, means that its bytes are there.
#[test]
fn operations_to_one_peer_keep_their_order_behind_writes() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let promised = a.peer.domain.info().tx.msg_order;
        assert!(promised.contains(MsgOrder::SAW | MsgOrder::WAW | MsgOrder::RAW));
        let (x, to) = (&a.endpoint, a.other);
        let region = crate::common::peers::open_region(&b.peer, vec![0u8; 200_000]).await;
        for round in 1..30u8 {
            let len = [8, 3_000, 200_000][usize::from(round) % 3];
            let remote = region.remote().slice(..len as u64).unwrap();
            let first = x.write(vec![0xff; len], to, remote).post().unwrap();
            let second = x.write(vec![round; len], to, remote).post().unwrap();
            let (send, read) = match round % 2 {
                0 => (x.send("written", to).post().unwrap(), None),
                _ => {
                    let read = x.read(vec![0u8; len], to, remote).post().unwrap();
                    let send = x.send_tagged("written", to, 1).post().unwrap();
                    (send, Some(read))
                }
            };
            match round % 2 {
                0 => drop(b.endpoint.recv(vec![0u8; 8]).await.unwrap()),
                _ => drop(b.endpoint.recv_tagged(vec![0u8; 8], 1).await.unwrap()),
            }
            let mut bytes = vec![0; len];
            region.read_at(0, &mut bytes).unwrap();
            assert!(bytes == vec![round; len], "round {round}");
            if let Some(read) = read {
                assert!(read.await.unwrap().1 == vec![round; len], "round {round}");
            }
            send.await.unwrap();
            for written in [first, second] {
                assert_eq!(written.await.unwrap().0, len);
            }
        }
    });
}

/// fi_endpoint(3): "No specific entry related to fi_cancel itself will be posted."
/// fi_endpoint(3): "The cancel operation is asynchronous, but will complete within a bounded period
/// of time."
#[test]
fn a_cancelled_operation_has_one_entry() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let x = peer.rdm_endpoint().unwrap();
        let receive = x.recv(vec![0u8; 4]).queue(1u64).try_post().unwrap();
        let tagged = x.recv_tagged(vec![0u8; 4], 9).queue(2u64).try_post();
        let tagged = tagged.unwrap();
        assert!(x.cancel(receive) && x.cancel(tagged));
        assert!(!x.cancel(receive) && !x.cancel(tagged));
        for context in [1, 2] {
            let completion = x.receive_queue().next().await.unwrap();
            assert_eq!(completion.context, UserContext(context));
            assert_eq!(
                completion.result.unwrap_err().error.kind(),
                ErrorKind::Canceled
            );
        }
        assert!(x.receive_queue().is_empty());
    });
}

/// fi_endpoint(3): "This is the maximum size data transfer that can be associated with an inject
/// operation" fi_endpoint(3): "This is the maximum number of IO vectors (scatter-gather elements)
/// that a single posted operation may reference."
#[test]
fn the_info_has_the_limits_of_operations() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y, to) = (&a.endpoint, &b.endpoint, a.other);
        let limits = &a.peer.domain.info().tx;
        x.inject_tagged(&vec![1; limits.inject_size], to, 1)
            .unwrap();
        let (received, _) = y.recv_tagged(vec![0u8; 4_096], 1).await.unwrap();
        assert_eq!(received.len, limits.inject_size);
        let refused = x.inject_tagged(&vec![1; limits.inject_size + 1], to, 1);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
        let pieces = |count: usize| vec![vec![1u8; 2]; count];
        x.send(pieces(limits.iov_limit), to).await.unwrap();
        let (received, _) = y.recv(vec![0u8; 64]).await.unwrap();
        assert_eq!(received.len, 2 * limits.iov_limit);
        let refused = x.send(pieces(limits.iov_limit + 1), to).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        let refused = y.recv(pieces(limits.iov_limit + 1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
    });
}
