//! Messages between connected endpoints.

mod messages;
mod spare;

use crate::common::on_every_backend;
use futures::FutureExt;
use tokio_fabric::testing::{Net, connect_endpoints};
use tokio_fabric::{
    ErrorKind, UserContext,
    cq::CompletionFlags,
    error::{OperationKind, Phase},
    info::ResourceManagement,
};

/// fi_msg(3): a message arrives as it was sent, and both buffers come back.
#[test]
fn a_message_arrives_and_the_buffers_come_back() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for len in [0, 1, 127, 128, 4096, 70_000, 3 << 20] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let receive = b.recv(vec![0; len + 3]).post().unwrap();
            let (sent, back) = a.send(bytes.clone()).await.unwrap();
            let (received, buffer) = receive.await.unwrap();
            assert_eq!((sent, &back), (len, &bytes));
            assert_eq!((received.len, received.data), (len, None));
            assert_eq!(&buffer[..len], &bytes[..]);
        }
    });
}

/// fi_sendv(3), fi_recvv(3): one to four buffers are one message, and split where the receiver's
/// buffers do; five are refused.
#[test]
fn vectors_of_one_to_four_are_one_message() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for (from, into) in (1..=4).flat_map(|from| (1..=4).map(move |into| (from, into))) {
            let pieces: Vec<Vec<u8>> = (0..from).map(|at| vec![at as u8; 30 + at]).collect();
            let total: usize = pieces.iter().map(Vec::len).sum();
            let shapes: Vec<Vec<u8>> = (0..into)
                .map(|at| vec![0xff; total / into + at * 3])
                .collect();
            let receive = b.recv(shapes.clone()).post().unwrap();
            let (sent, back) = a.send(pieces.clone()).await.unwrap();
            assert_eq!((sent, &back), (total, &pieces));
            let (received, buffers) = receive.await.unwrap();
            assert_eq!(received.len, total);
            let got: Vec<u8> = buffers.concat().into_iter().take(total).collect();
            assert_eq!(got, pieces.concat(), "{from} into {into}");
            assert!(buffers.iter().map(Vec::len).eq(shapes.iter().map(Vec::len)));
        }
        let five = vec![vec![1u8; 2]; 5];
        let refused = a.send(five.clone()).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::TooLarge, Some(five.clone()))
        );
        let refused = b.recv(five.clone()).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::TooLarge, Some(five))
        );
        assert!(a.is_connected());
    });
}

/// fi_inject(3): the bytes are copied, 128 at most, in order with sends; nothing is reported.
#[test]
fn injected_messages_are_copied_and_limited() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let mut bytes = [0u8; 128];
        for number in 0..30u8 {
            bytes.fill(number);
            a.inject(&bytes[..number as usize * 4]).unwrap();
            a.inject_data(&bytes[..128], number.into()).unwrap();
        }
        let refused = a.inject(&[0; 129]).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.fi_errno()),
            (ErrorKind::TooLarge, 90)
        );
        assert_eq!(a.domain().info().tx.inject_size, 128);
        for number in 0..30u8 {
            let (received, buffer) = b.recv(vec![0u8; 200]).await.unwrap();
            assert_eq!((received.len, received.data), (number as usize * 4, None));
            assert!(buffer[..received.len].iter().all(|byte| *byte == number));
            let (received, buffer) = b.recv(vec![0u8; 200]).await.unwrap();
            assert_eq!((received.len, received.data), (128, Some(number.into())));
            assert!(buffer[..128].iter().all(|byte| *byte == number));
        }
    });
}

/// fi_msg(3), FI_DELIVERY_COMPLETE: the send ends when the message is in the peer's memory, not
/// before.
/// fi_domain(3): `FI_DELIVERY_COMPLETE`, flag (completion model).
/// fi_domain(3): `FI_TRANSMIT_COMPLETE`, flag (completion model).
#[test]
fn delivery_complete_waits_for_the_peer_and_transmit_complete_does_not() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        // Room for one message that no receive awaits, with its 128 bytes of bookkeeping.
        let room = 128 + "transmitted".len();
        for extended in [true, false] {
            let x = a.domain.endpoint().extension(extended).open().unwrap();
            let y = b.domain.endpoint().unexpected_bytes(room).open().unwrap();
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            // Nothing takes the messages, so only the plain one ends.
            x.send("transmitted").await.unwrap();
            let mut delivered = x.send("delivered").delivery_complete().post().unwrap();
            let mut plain = x.send("plain").post().unwrap();
            if extended {
                // Neither has left: the peer, whose room is known, has none.
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                assert!((&mut plain).now_or_never().is_none());
            } else {
                // Both have left, of which one has nothing more to wait for.
                (&mut plain).await.unwrap();
            }
            assert!((&mut delivered).now_or_never().is_none());
            for _ in 0..3 {
                y.recv(vec![0u8; 16]).await.unwrap();
            }
            delivered.await.unwrap();
            if extended {
                plain.await.unwrap();
            }
        }
    });
}

/// fi_domain(3): "Providers may either truncate the message and report a successful completion, or
/// fail the operation."
/// fi_domain(3): "send operations may complete successfully, yet be truncated at the receive side."
/// fi_domain(3): "This can occur when the target side buffers received data until an application
/// buffer is made available."
/// fi_domain(3): `Rx Buf Overrun, RDM/MSG EP-with RM: truncate or error`, cell of the resource
/// management table.
#[test]
fn a_message_that_does_not_fit_is_truncated_and_the_connection_lives() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = b.domain.completion_queue().open().unwrap();
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().completion_queue(&queue).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        for (posted_first, len) in [(true, 10), (false, 10), (true, 200_000), (false, 200_000)] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let fits = len / 3;
            let early = posted_first.then(|| y.recv(vec![0u8; fits]).post().unwrap());
            // The sender's operation ends well, delivery included.
            x.send(bytes.clone()).delivery_complete().await.unwrap();
            let receive = early.unwrap_or_else(|| y.recv(vec![0u8; fits]).post().unwrap());
            let truncated = receive.await.unwrap_err();
            assert_eq!(
                (truncated.kind(), truncated.error().fi_errno()),
                (ErrorKind::Truncated, 265)
            );
            let words = truncated.to_string();
            assert!(
                words.contains(&len.to_string()) && words.contains(&fits.to_string()),
                "{words}"
            );
            assert_eq!(truncated.into_parts().1.unwrap(), bytes[..fits]);
            // Both lengths stand in a queued completion.
            y.recv(vec![0u8; fits]).queue(4u64).try_post().unwrap();
            x.send(bytes.clone()).await.unwrap();
            let mut completion = queue.next().await.unwrap();
            let failed = completion.result.as_ref().unwrap_err();
            assert_eq!((completion.len, failed.overflow_len), (fits, len - fits));
            assert!(failed.error.is_truncated());
            assert_eq!(completion.take_buffer().unwrap()[..], bytes[..fits]);
        }
        x.send("alive").await.unwrap();
        assert_eq!(y.recv(vec![0u8; 5]).await.unwrap().0.len, 5);
    });
}

/// Early messages are kept within the budget, then the peer is held back, then all of it flows
/// again, in order and whole.
/// fi_domain(3): "If RM is enabled, the provider will internally retry the operation."
/// fi_domain(3): `No Rx Buffer, RDM/MSG EP-with RM: retried`, cell of the resource management
/// table.
/// fi_domain(3): "the target endpoint's receive queue, posted receive buffers (no Rx buffers), the
/// receive side completion queue"
/// fi_domain(3): "internally retrying requests (which will be hidden from the application)."
/// fi_domain(3): `FI_RM_ENABLED`, enumeration value.
/// fi_domain(3): "Resource management is enabled for this provider domain."
/// fi_domain(3): "some level of protection against overrunning provider queues and local and remote
/// data buffers."
/// fi_domain(3): "provider and protocol support to protect against overrunning local and remote
/// resources."
/// fi_domain(3): "local and remote transmit contexts, receive contexts, completion queues, and
/// source and target data buffers."
/// fi_domain(3): `Target EP, RDM/MSG EP-with RM: retried`, cell of the resource management table.
#[test]
fn unexpected_messages_are_kept_within_a_budget_then_held_back() {
    on_every_backend(|net| async move {
        // A peer with the extension holds back by itself; from any other nothing more is read.
        for extended in [true, false] {
            held_back_beyond_a_budget(&net, extended).await;
        }
    });
}

async fn held_back_beyond_a_budget(net: &Net, extended: bool) {
    const BUDGET: usize = 64 << 10;
    const LEN: usize = 10_000;
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    assert_eq!(
        b.domain.info().domain.resource_mgmt,
        ResourceManagement::Enabled
    );
    let x = a.domain.endpoint().extension(extended).open().unwrap();
    let y = b.domain.endpoint().unexpected_bytes(BUDGET).open().unwrap();
    connect_endpoints(&x, &y, &b.fabric).await.unwrap();
    let sends: Vec<_> = (0..200u8)
        .map(|number| {
            x.send(vec![number; LEN])
                .delivery_complete()
                .post()
                .unwrap()
        })
        .collect();
    // Delivered as far as the budget goes: six of 10,128 bytes.
    let mut sends = sends.into_iter();
    for _ in 0..6 {
        sends.next().unwrap().await.unwrap();
    }
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let held = y.unexpected_bytes();
    assert!((6 * LEN..=BUDGET).contains(&held), "{held} bytes are held");
    let mut seventh = sends.next().unwrap();
    assert!((&mut seventh).now_or_never().is_none());
    for number in 0..200u8 {
        let (received, buffer) = y.recv(vec![0u8; LEN]).await.unwrap();
        assert_eq!(
            (received.len, buffer[0], buffer[LEN - 1]),
            (LEN, number, number)
        );
    }
    seventh.await.unwrap();
    for send in sends {
        send.await.unwrap();
    }
    assert_eq!(y.unexpected_bytes(), 0);
    // A message larger than any budget waits for its receive as well.
    let large = x
        .send(vec![7u8; 4 * BUDGET])
        .delivery_complete()
        .post()
        .unwrap();
    assert_eq!(
        y.recv(vec![0u8; 4 * BUDGET]).await.unwrap().0.len,
        4 * BUDGET
    );
    large.await.unwrap();
}

/// fi_endpoint(3), FI_ORDER_SAS: messages arrive in the order in which they were posted, whatever
/// their form and size.
#[test]
fn messages_keep_their_order() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let receiver = tokio::spawn(async move {
            for number in 0..600u64 {
                let (received, buffer) = b.recv(vec![0u8; 50_000]).await.unwrap();
                assert!(received.len >= 8);
                assert_eq!(buffer[..8], number.to_le_bytes());
            }
            b
        });
        let mut sends = Vec::new();
        for number in 0..600u64 {
            let mut bytes = number.to_le_bytes().to_vec();
            match number % 4 {
                0 => {
                    while a.inject(&bytes).is_err() {
                        tokio::task::yield_now().await;
                    }
                }
                1 => sends.push(a.send(bytes).more().post().unwrap()),
                2 => {
                    bytes.resize(40_000, 1);
                    sends.push(a.send(bytes).post().unwrap());
                }
                _ => drop(a.send(bytes).await.unwrap()),
            }
        }
        for send in sends {
            send.await.unwrap();
        }
        receiver.await.unwrap();
    });
}

/// fi_domain(3): "When RM is enabled, attempting to submit a request will fail if the context is
/// full." fi_domain(3): `FI_EAGAIN` when a context or queue is full, error code. fi_domain(3): `Tx
/// Ctx, RDM/MSG EP-with RM: EAGAIN`, cell of the resource management table. fi_domain(3): `Rx Ctx,
/// RDM/MSG EP-with RM: EAGAIN`, cell of the resource management table. fi_domain(3): "local and
/// remote transmit contexts, receive contexts, completion queues, and source and target data
/// buffers."
#[test]
fn a_full_context_says_again_and_gives_the_buffers_back() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a
            .domain
            .endpoint()
            .transmit_size(2)
            .receive_size(2)
            .open()
            .unwrap();
        let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let full = |failed: tokio_fabric::Failed<Vec<u8>>, buffer: Vec<u8>| {
            assert_eq!(
                (failed.kind(), failed.error().fi_errno()),
                (ErrorKind::Again, 11)
            );
            assert!(failed.error().is_again());
            assert_eq!(failed.into_parts().1, Some(buffer));
        };
        let _held: Vec<_> = (0..2)
            .map(|_| x.recv(vec![0u8; 4]).try_post().unwrap())
            .collect();
        full(x.recv(vec![3u8; 4]).try_post().unwrap_err(), vec![3u8; 4]);
        let refused = x.recv(vec![0u8; 4]).try_post().unwrap_err().to_string();
        let said = "receive context is full: 2 of 2 places are taken";
        assert!(
            refused.contains(said) && refused.contains("receive_size"),
            "{refused}"
        );
        // Sends without a receive fill the transmit context.
        let first = x.send(vec![1u8]).delivery_complete().try_post().unwrap();
        let second = x.send(vec![2u8]).delivery_complete().try_post().unwrap();
        full(x.send(vec![9u8; 5]).try_post().unwrap_err(), vec![9u8; 5]);
        // It says what is full, how much fits, and what takes it.
        let refused = x.inject(b"x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Again);
        let said = refused.to_string();
        let counts = "transmit context is full: 2 of 2 places are taken";
        assert!(
            said.contains(counts) && said.contains("transmit_size"),
            "{said}"
        );
        // The waiting form waits in its turn, and nothing overtakes it.
        let third = x.send(vec![3u8]).delivery_complete().post().unwrap();
        let fourth = x.send(vec![4u8]).delivery_complete().post().unwrap();
        assert_eq!(
            (third.phase(), first.phase() > Phase::Waiting),
            (Phase::Waiting, true)
        );
        assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [1]);
        first.await.unwrap();
        full(x.send(vec![9u8; 5]).try_post().unwrap_err(), vec![9u8; 5]);
        for number in 2..=4u8 {
            assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [number]);
        }
        futures::future::try_join3(second, third, fourth)
            .await
            .unwrap();
        let fifth = y.recv(vec![0u8; 1]).post().unwrap();
        x.send(vec![5u8]).try_post().unwrap().await.unwrap();
        fifth.await.unwrap();
    });
}

/// fi_domain(3): "failing (returning -FI_EAGAIN) the posting of operations that could result in CQ
/// overruns" fi_domain(3): "Overruns can be avoided by sizing the CQs appropriately or by deferring
/// the posting of a data transfer operation" fi_domain(3): "the provider is not required to reserve
/// an entry in the completion queue to handle the case where the operation fails" fi_domain(3): `Tx
/// CQ, RDM/MSG EP-with RM: EAGAIN`, cell of the resource management table. fi_domain(3): `Rx CQ,
/// RDM/MSG EP-with RM: EAGAIN`, cell of the resource management table. fi_domain(3): "local and
/// remote transmit contexts, receive contexts, completion queues, and source and target data
/// buffers."
#[test]
fn a_full_completion_queue_says_again_before_anything_is_lost() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().size(2).open().unwrap();
        let x = a.domain.endpoint().completion_queue(&queue).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        x.send(vec![1u8]).queue(1u64).try_post().unwrap();
        x.recv(vec![0u8; 4]).queue(2u64).try_post().unwrap();
        for refused in [
            x.send(vec![7u8; 3]).queue(3u64).try_post().unwrap_err(),
            x.recv(vec![7u8; 3]).queue(3u64).try_post().unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Again);
            assert_eq!(refused.into_parts().1, Some(vec![7u8; 3]));
        }
        // The waiting form is accepted when there is a place, in turn; futures need none.
        let mut waits = x.send(vec![4u8]).queue(4u64).post().unwrap();
        assert!(!waits.is_accepted() && (&mut waits).now_or_never().is_none());
        let given_up = x.send(vec![5u8]).queue(5u64).post().unwrap();
        drop(given_up);
        assert_eq!(queue.next().await.unwrap().context, UserContext(1));
        waits.await.unwrap();
        assert_eq!(queue.next().await.unwrap().context, UserContext(4));
        x.send(vec![6u8]).await.unwrap();
        for expected in [1u8, 4, 6] {
            assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [expected]);
        }
        y.send(vec![8u8; 4]).await.unwrap();
        assert_eq!(queue.next().await.unwrap().context, UserContext(2));
    });
}

/// fi_domain(3): `FI_SELECTIVE_COMPLETION`, flag.
/// fi_domain(3): `FI_COMPLETION`, flag.
/// fi_domain(3): "Operations posted to such an endpoint may specify that a successful completion
/// should not generate a entry"
/// fi_domain(3): "the operation leaves the FI_COMPLETION flag unset"
#[test]
fn an_operation_reports_in_exactly_one_place() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a.domain.completion_queue().open().unwrap();
        let x = a.domain.endpoint().completion_queue(&queue).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let id = x.send("queue form").imm(1).queue(10u64).await.unwrap();
        let mut completion = queue.next().await.unwrap();
        assert_eq!(
            (completion.context, completion.operation),
            (UserContext(10), OperationKind::Send)
        );
        assert_eq!(
            completion.flags,
            CompletionFlags::MSG | CompletionFlags::SEND
        );
        assert_eq!(
            (completion.endpoint, completion.result.is_ok()),
            (x.id(), true)
        );
        assert_eq!(
            completion
                .take_buffer()
                .unwrap()
                .downcast::<&str>()
                .unwrap(),
            "queue form"
        );
        assert!(!x.cancel(id), "it has ended");
        x.send("future form").await.unwrap();
        x.inject(b"no form").unwrap();
        for _ in 0..3 {
            y.recv(vec![0u8; 16]).await.unwrap();
        }
        assert!(
            queue.is_empty(),
            "neither the future form nor inject has an entry"
        );
        // An endpoint without a transmit queue cannot queue what it transmits.
        let refused = y.send("nowhere").queue(1u64).post().unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::BadState, Some("nowhere"))
        );
        // Failed ones report there as well.
        let id = x.recv(vec![0u8; 4]).queue(11u64).await.unwrap();
        assert!(x.cancel(id));
        let completion = queue.next().await.unwrap();
        assert!(completion.result.unwrap_err().error.is_canceled());
    });
}

/// fi_cancel(3) and ruling 4: what has not started ends as Canceled; a dropped receive loses no
/// message.
#[test]
fn cancelled_and_dropped_operations_lose_nothing() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let (first, second) = (
            b.recv(vec![1u8; 8]).post().unwrap(),
            b.recv(vec![2u8; 8]).post().unwrap(),
        );
        assert!(first.cancel());
        assert!(!first.cancel(), "it has ended");
        let canceled = first.await.unwrap_err();
        assert_eq!(
            (canceled.kind(), canceled.error().fi_errno()),
            (ErrorKind::Canceled, 125)
        );
        assert_eq!(canceled.into_parts().1, Some(vec![1u8; 8]));
        a.send("one").delivery_complete().await.unwrap();
        // The message was received, and goes back to the head when its owner goes away unlooked.
        drop(second);
        a.send("two").delivery_complete().await.unwrap();
        for expected in ["one", "two"] {
            let (received, buffer) = b.recv(vec![0u8; 8]).await.unwrap();
            assert_eq!(&buffer[..received.len], expected.as_bytes());
        }
        let limit = std::time::Duration::from_millis(5);
        assert!(
            tokio::time::timeout(limit, b.recv(vec![0u8; 8]).into_future())
                .await
                .is_err()
        );
        a.send("three").await.unwrap();
        assert_eq!(b.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
    });
}

/// fi_eq(3), FI_SHUTDOWN: an orderly end delivers what was sent before it. The end itself is agreed
/// upon behind that, and no time limit passes: it would make a loss of it.
#[test]
fn an_orderly_end_delivers_everything_first() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let sends: Vec<_> = (0..100u8)
            .map(|number| a.send(vec![number; 1000]).post().unwrap())
            .collect();
        let shutdown = a.shutdown();
        let receive_all = async {
            for number in 0..100u8 {
                let (received, buffer) = b.recv(vec![0u8; 1000]).await.unwrap();
                assert_eq!((received.len, buffer[999]), (1000, number));
            }
            b.recv(vec![0u8; 1000]).await.unwrap_err()
        };
        let (_, end) = futures::future::join(shutdown, receive_all).await;
        assert_eq!(
            (end.kind(), end.error().fi_errno()),
            (ErrorKind::PeerClosed, 108)
        );
        assert_eq!((a.stats().losses, b.stats().losses), (0, 0));
        for send in sends {
            send.await.unwrap();
        }
    });
}

/// fi_msg(3): "will be deferred until all previous operations targeting the same peer endpoint have
/// completed."
#[test]
fn a_fence_waits_for_what_the_peer_has_yet_to_take() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let first = a.send("first").delivery_complete().post().unwrap();
        let fenced = a.send("fenced").fence().post().unwrap();
        let behind = a.send("behind").post().unwrap();
        for expected in ["first", "fenced", "behind"] {
            let (received, bytes) = b.recv(vec![0u8; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], expected.as_bytes());
        }
        for sent in [first, fenced, behind] {
            sent.await.unwrap();
        }
    });
}
