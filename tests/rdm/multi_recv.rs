//! Buffers that take several messages (`FI_MULTI_RECV`).

use crate::common::on_every_backend;
use crate::common::peers::{any, peer_with};
use tokio_fabric::{
    EndpointType, ErrorKind, Hints, RdmEndpoint, UserContext, cq::CompletionFlags,
    domain::DomainBind, info::MrMode, info::OpFlags,
};

const MSG: CompletionFlags = CompletionFlags::RECV.union(CompletionFlags::MSG);

/// The next message of a buffer.
async fn piece(endpoint: &RdmEndpoint, context: u64) -> Vec<u8> {
    let mut completion = endpoint.receive_queue().next().await.unwrap();
    completion.result.as_ref().unwrap();
    assert_eq!(
        (completion.context, completion.flags),
        (UserContext(context), MSG)
    );
    match completion.take_buffer() {
        Some(buffer) => buffer[..completion.len].to_vec(),
        None => Vec::new(),
    }
}

/// The end of a buffer, by itself.
async fn release(endpoint: &RdmEndpoint, context: u64) {
    let completion = endpoint.receive_queue().next().await.unwrap();
    completion.result.as_ref().unwrap();
    let flags = CompletionFlags::MULTI_RECV;
    assert_eq!(
        (completion.context, completion.flags),
        (UserContext(context), flags)
    );
    assert_eq!((completion.len, completion.source_addr()), (0, None));
}

/// fi_cq(3): "buf points to the starting location where the receive data was placed."
/// fi_msg(3): `fi_recvmsg`
/// fi_cq(3): "or may generate a separate completion that indicates that the buffer has been
/// released."
/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages."
/// fi_msg(3): "Received messages will be packed into the receive buffer until the buffer has been
/// consumed."
/// fi_msg(3): "Use of this flag may cause a single posted receive operation to generate multiple
/// events as messages are placed into the buffer."
/// fi_cq(3): "This completion flag indicates that the original receive buffer referenced by the
/// completion has been consumed and was released by the provider."
#[test]
fn one_buffer_takes_messages_until_it_is_consumed() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        let pool = y.multi_recv(vec![0u8; 1_000]).min_free(300).queue(7u64);
        pool.await.unwrap();
        let mut held = Vec::new();
        for round in 1..=8u8 {
            x.send(vec![round; 100], a.other)
                .imm(u64::from(round))
                .await
                .unwrap();
            let mut completion = y.receive_queue().next().await.unwrap();
            completion.result.as_ref().unwrap();
            assert_eq!(completion.flags, MSG | CompletionFlags::REMOTE_CQ_DATA);
            assert_eq!((completion.context, completion.len), (UserContext(7), 100));
            assert_eq!(
                (completion.data, completion.source()),
                (Some(u64::from(round)), Some(b.other))
            );
            assert_eq!(completion.offset, usize::from(round - 1) * 100);
            held.push(completion.take_buffer().unwrap());
        }
        release(y, 7).await;
        // What was received stays as it is, whatever comes later.
        for (round, bytes) in held.iter().enumerate() {
            assert_eq!(bytes[..100], [round as u8 + 1; 100]);
        }
        // The next message waits for another receive.
        x.send("next", a.other).delivery_complete().await.unwrap();
        assert!(y.receive_queue().is_empty());
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 4);
    });
}

/// Early messages and later ones, of several senders at once, small and announced ones: each comes
/// whole, once, and a sender's in their order.
#[test]
fn buffers_take_what_several_senders_send_at_once() {
    on_every_backend(|net| async move {
        let target = net.peer().unwrap();
        let queue = target.domain.completion_queue().size(4096).open().unwrap();
        let opened = target.domain.rdm_endpoint().receive_queue(&queue);
        let y = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let senders: Vec<_> = (0..3)
            .map(|_| {
                let peer = net.peer().unwrap();
                let x = peer.rdm_endpoint().unwrap();
                let to_y = x.insert(y.local_addr()).unwrap();
                (peer, x, to_y)
            })
            .collect();
        const EACH: u32 = 60;
        let len_of = |number: u32| [8, 1_000, 100_000][number as usize % 3];
        let sending = senders
            .iter()
            .enumerate()
            .map(|(sender, (_, x, to_y))| async move {
                for number in 0..EACH {
                    let mut bytes = vec![number as u8; len_of(number)];
                    bytes[..8]
                        .copy_from_slice(&[sender as u32, number].map(u32::to_le_bytes).concat());
                    x.send(bytes, *to_y).await.unwrap();
                }
            });
        let receiving = async {
            let post = || {
                let pool = y.multi_recv(vec![0u8; 1 << 20]).min_free(100_000);
                pool.queue(1u64).try_post().unwrap();
            };
            post();
            post();
            let mut expected = [0; 3];
            while expected.iter().sum::<u32>() < 3 * EACH {
                let mut completion = queue.next().await.unwrap();
                completion.result.as_ref().unwrap();
                if completion.flags.contains(CompletionFlags::MULTI_RECV) {
                    post();
                }
                if !completion.flags.contains(CompletionFlags::RECV) {
                    continue;
                }
                let bytes = completion.take_buffer().unwrap();
                let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                let (sender, number) = (word(0) as usize, word(4));
                assert_eq!(number, expected[sender]);
                assert_eq!(completion.len, len_of(number));
                assert!(
                    bytes[8..completion.len]
                        .iter()
                        .all(|byte| *byte == number as u8)
                );
                expected[sender] += 1;
            }
        };
        futures::future::join(futures::future::join_all(sending), receiving).await;
    });
}

/// fi_endpoint(3): "Defines the minimum receive buffer space available when the receive buffer is
/// released by the provider"
/// fi_endpoint(3): `FI_OPT_MIN_MULTI_RECV`
/// fi_endpoint(3): "FI_OPT_MIN_MULTI_RECV"
/// fi_msg(3): "The buffer will be released by the provider when the available buffer space falls
/// below the specified minimum (see FI_OPT_MIN_MULTI_RECV)."
/// fi_msg(3): "Note that an entry to the associated receive completion queue will always be
/// generated when the buffer has been consumed"
#[test]
fn the_minimum_says_when_a_buffer_is_released() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let x = one.rdm_endpoint().unwrap();
        let opened = two.domain.rdm_endpoint().min_multi_recv(50);
        let y = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        for (len, min_free, messages) in [(100, None, 6), (100, Some(1), 10), (100, Some(91), 1)] {
            let pool = y.multi_recv(vec![0u8; len]);
            let pool = match min_free {
                Some(bytes) => pool.min_free(bytes),
                None => pool,
            };
            pool.queue(2u64).await.unwrap();
            for message in 1..=messages {
                x.send(vec![message; 10], to_y).await.unwrap();
                assert_eq!(piece(&y, 2).await, vec![message; 10]);
            }
            release(&y, 2).await;
        }
        let refused = y
            .multi_recv(vec![0u8; 4])
            .min_free(0)
            .queue(3u64)
            .post()
            .unwrap_err();
        assert_eq!(
            (refused.kind(), refused.into_parts().1),
            (ErrorKind::InvalidArgument, Some(vec![0; 4]))
        );
    });
}

/// A slice of a region takes several messages too, as FI_MR_LOCAL asks for. They lie in the region,
/// each where its completion says, and the region is in use until the slice is released.
#[test]
fn a_slice_of_a_region_takes_several_messages() {
    on_every_backend(|net| async move {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let sender = peer_with(&net, hints.clone(), DomainBind::empty());
        let local = hints.domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let receiver = peer_with(&net, local, DomainBind::empty());
        let (x, y) = (
            sender.rdm_endpoint().unwrap(),
            receiver.rdm_endpoint().unwrap(),
        );
        let to_y = x.insert(y.local_addr()).unwrap();
        let region = receiver.domain.register(vec![0; 200_000]).await.unwrap();
        let slice = region.slice(1_000..190_000).unwrap();
        let pool = y.multi_recv(slice).min_free(90_000).queue(4u64);
        pool.await.unwrap();
        let mut expected = vec![0; 200_000];
        let mut at = 0;
        // Injected, staged, and announced.
        for (value, len) in [(1, 8), (2, 5_000), (3, 100_000)] {
            x.send(vec![value; len], to_y).await.unwrap();
            let mut completion = y.receive_queue().next().await.unwrap();
            completion.result.as_ref().unwrap();
            assert_eq!((completion.len, completion.offset), (len, at));
            assert!(completion.take_buffer().is_none());
            expected[1_000 + at..][..len].fill(value);
            at += len;
        }
        release(&y, 4).await;
        let pool = y.multi_recv(region.slice(..10).unwrap()).min_free(1);
        let pool = pool.queue(5u64).try_post().unwrap();
        let back = region.deregister();
        tokio::pin!(back);
        assert!(futures::poll!(&mut back).is_pending(), "a slice is posted");
        assert!(y.cancel(pool));
        assert_eq!(back.await.unwrap(), expected);
    });
}

/// A buffer for several messages that is cancelled is released, and what it had received stays.
#[test]
fn a_buffer_may_be_cancelled() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        let pool = y.multi_recv(vec![0u8; 100]).queue(5u64).try_post().unwrap();
        x.send("taken", a.other).await.unwrap();
        assert_eq!(piece(y, 5).await, b"taken");
        assert!(y.cancel(pool));
        let completion = y.receive_queue().next().await.unwrap();
        assert_eq!(completion.context, UserContext(5));
        assert_eq!(
            completion.result.unwrap_err().error.kind(),
            ErrorKind::Canceled
        );
        assert!(!y.cancel(pool));
        x.send("kept", a.other).await.unwrap();
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 4);
    });
}

/// Directed ones take one peer's messages; tagged messages never come into them.
#[test]
fn a_buffer_may_be_for_one_peer() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let third = net.peer().unwrap();
        let z = third.rdm_endpoint().unwrap();
        let y = &b.endpoint;
        let to_y = z.insert(y.local_addr()).unwrap();
        y.multi_recv(vec![0u8; 100])
            .from(b.other)
            .queue(1u64)
            .await
            .unwrap();
        z.send("other", to_y).delivery_complete().await.unwrap();
        let tagged = a.endpoint.send_tagged("tagged", a.other, 1);
        tagged.delivery_complete().await.unwrap();
        a.endpoint.send("mine", a.other).await.unwrap();
        assert_eq!(piece(y, 1).await, b"mine");
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
        assert_eq!(y.recv_tagged(vec![0u8; 8], 1).await.unwrap().0.len, 6);
    });
}

/// fi_endpoint(3), FI_MULTI_RECV: "Applies to posted receive operations. This flag allows the user
/// to post a single buffer that will receive multiple incoming messages." By default flags that
/// holds of those that report to a queue; one that is awaited ends with its message.
#[test]
fn by_default_flags_receives_take_several_messages() {
    on_every_backend(|net| async move {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let hints = hints.rx(|rx| rx.op_flags(OpFlags::MULTI_RECV));
        let (a, b) = (
            net.peer().unwrap(),
            peer_with(&net, hints, DomainBind::empty()),
        );
        let x = a.rdm_endpoint().unwrap();
        let y = b.domain.rdm_endpoint().listen_at(any()).min_multi_recv(8);
        let y = y.open().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        y.recv(vec![0u8; 16]).queue(7u64).await.unwrap();
        for expected in ["one", "two", "three"] {
            x.send(expected, to_y).await.unwrap();
            assert_eq!(piece(&y, 7).await, expected.as_bytes());
        }
        release(&y, 7).await;
        let awaited = y.recv(vec![0u8; 16]).post().unwrap();
        x.send("four", to_y).await.unwrap();
        let (received, bytes) = awaited.await.unwrap();
        assert_eq!(&bytes[..received.len], b"four");
        // Tagged ones take one message each, wherever they report.
        y.recv_tagged(vec![0u8; 16], 1).queue(8u64).await.unwrap();
        x.send_tagged("five", to_y, 1).await.unwrap();
        let told = y.receive_queue().next().await.unwrap();
        assert!(told.flags.contains(CompletionFlags::TAGGED));
        assert!(y.receive_queue().is_empty());
    });
}
