//! Tagged messages (`fi_tagged(3)`): tags and masks, directed receives, peek, claim and discard.

use crate::common::on_every_backend;
use crate::common::peers::rdm_with_queue;
use futures::FutureExt;
use tokio_fabric::testing::RdmSide;
use tokio_fabric::{
    ErrorKind, RdmEndpoint, UserContext, av::FabricAddr, cq::CompletionFlags, error::OperationKind,
    op::Received,
};

/// The message a receive of this tag gets, in full.
async fn tagged(endpoint: &RdmEndpoint, tag: u64, ignore: u64) -> (Received, Vec<u8>) {
    let receive = endpoint.recv_tagged(vec![0u8; 1024], tag).ignore(ignore);
    let (received, mut bytes) = receive.await.unwrap();
    bytes.truncate(received.len);
    (received, bytes)
}

/// Messages that have come in full to the other side's store, in this order.
async fn send_unexpected(from: &RdmSide, messages: &[(u64, &'static str)]) {
    for &(tag, text) in messages {
        let send = from.endpoint.send_tagged(text, from.other, tag);
        send.delivery_complete().await.unwrap();
    }
}

/// fi_tagged(3): "transfers the data contained in the user-specified data buffer to a remote
/// endpoint, with message boundaries being maintained."
/// fi_tagged(3): "Destination address for connectionless transfers."
/// fi_tagged(3): "Mask of bits to ignore applied to the tag for receive operations."
/// fi_tagged(3): "Tag associated with the message."
/// fi_tagged(3): `fi_trecv`
/// fi_tagged(3): `fi_tsend`
/// fi_tagged(3): "send_tag & ~ignore == recv_tag & ~ignore"
/// fi_tagged(3): "The tag is used at the receiving endpoint to match the incoming message with a
/// corresponding receive buffer."
/// fi_tagged(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends."
/// fi_tagged(3): "In general, message tags are checked against receive buffers in the order in which
/// messages have been posted to the endpoint."
#[test]
fn tags_match_in_all_bits_that_are_not_ignored() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        // Posted first.
        let mask = y
            .recv_tagged(vec![0u8; 8], 0xab00)
            .ignore(0xff)
            .post()
            .unwrap();
        let exact = y.recv_tagged(vec![0u8; 8], 0xab07).post().unwrap();
        let mut other = y.recv_tagged(vec![0u8; 8], 1 << 63).post().unwrap();
        let any = y
            .recv_tagged(vec![0u8; 8], 0)
            .ignore(u64::MAX)
            .post()
            .unwrap();
        for (text, tag) in [("1", 0xab07), ("2", 0xab07), ("3", 0xab07)] {
            x.send_tagged(text, a.other, tag).await.unwrap();
        }
        for (receive, text) in [(mask, "1"), (exact, "2"), (any, "3")] {
            let (received, bytes) = receive.await.unwrap();
            assert_eq!((received.tag, &bytes[..1]), (Some(0xab07), text.as_bytes()));
            assert_eq!(received.source, Some(b.other));
        }
        assert!((&mut other).now_or_never().is_none());
        x.send_tagged("top", a.other, 1 << 63).await.unwrap();
        assert_eq!(other.await.unwrap().0.tag, Some(1 << 63));
        // Sent first.
        let came = [
            (7, "seven"),
            (0, "zero"),
            (7, "again"),
            (u64::MAX, "ones"),
            (0x107, "far"),
        ];
        send_unexpected(&a, &came).await;
        assert_eq!(tagged(y, u64::MAX, 0).await.1, b"ones");
        assert_eq!(tagged(y, 0x1ff, 0xff).await.1, b"far");
        assert_eq!(tagged(y, 7, 0).await.1, b"seven");
        assert_eq!(tagged(y, 0xffff, u64::MAX).await.1, b"zero");
        assert_eq!(tagged(y, 7, 0).await.1, b"again");
        assert_eq!(y.unexpected_bytes(), 0);
    });
}

/// fi_tagged(3): "Tagged messages are data transfers which carry a key or tag with the message
/// buffer."
/// Messages with and without a tag never meet each other's receives.
#[test]
fn tagged_and_untagged_messages_never_meet() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        let mut plain = y.recv(vec![0u8; 8]).post().unwrap();
        x.send_tagged("tagged", a.other, 0)
            .delivery_complete()
            .await
            .unwrap();
        assert!((&mut plain).now_or_never().is_none());
        let any = y.recv_tagged(vec![0u8; 8], 0).ignore(u64::MAX);
        let (received, bytes) = any.await.unwrap();
        assert_eq!((received.tag, &bytes[..6]), (Some(0), &b"tagged"[..]));
        let any = y
            .recv_tagged(vec![0u8; 8], 0)
            .ignore(u64::MAX)
            .post()
            .unwrap();
        x.send("plain", a.other).await.unwrap();
        let (received, bytes) = plain.await.unwrap();
        assert_eq!((received.tag, &bytes[..5]), (None, &b"plain"[..]));
        x.send("early", a.other).delivery_complete().await.unwrap();
        x.send_tagged("after", a.other, 3).await.unwrap();
        assert_eq!(any.await.unwrap().0.tag, Some(3));
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.tag, None);
    });
}

/// fi_tagged(3): "Source address to receive from for connectionless transfers."
/// fi_tagged(3): "If set to FI_ADDR_UNSPEC, any source address may match."
#[test]
fn a_directed_receive_takes_one_peers_tags() {
    on_every_backend(|net| async move {
        let sides: Vec<_> = (0..3).map(|_| net.peer().unwrap()).collect();
        let ends: Vec<_> = sides.iter().map(|it| it.rdm_endpoint().unwrap()).collect();
        let me = &ends[0];
        let known: Vec<FabricAddr> = (ends.iter())
            .map(|it| me.insert(it.local_addr()).unwrap())
            .collect();
        let second = me
            .recv_tagged(vec![0u8; 8], 1)
            .from(known[2])
            .post()
            .unwrap();
        let wide = me
            .recv_tagged(vec![0u8; 8], 0)
            .ignore(u64::MAX)
            .from(known[1]);
        let wide = wide.post().unwrap();
        let any = me.recv_tagged(vec![0u8; 8], 1).post().unwrap();
        let to_me: Vec<_> = ends[1..]
            .iter()
            .map(|it| it.insert(me.local_addr()).unwrap())
            .collect();
        for (from, text) in [(1, "wide"), (1, "any"), (2, "second")] {
            let send = ends[from].send_tagged(text, to_me[from - 1], 1);
            send.delivery_complete().await.unwrap();
        }
        for (receive, from, text) in [(second, 2, "second"), (wide, 1, "wide"), (any, 1, "any")] {
            let (received, bytes) = receive.await.unwrap();
            assert_eq!(received.source, Some(known[from]));
            assert_eq!(&bytes[..received.len], text.as_bytes());
        }
    });
}

/// fi_tagged(3): `FI_INJECT`
/// fi_tagged(3): `FI_REMOTE_CQ_DATA`
/// fi_tagged(3): `fi_tinjectdata`
/// fi_tagged(3): `fi_tinject`
/// fi_tagged(3): `fi_tsenddata`
/// fi_tagged(3): "The tagged inject call is an optimized version of fi_tsend."
/// fi_tagged(3): "The tagged send data call is similar to fi_tsend, but allows for the sending of
/// remote CQ data (see FI_REMOTE_CQ_DATA flag) as part of the transfer."
/// fi_tagged(3): "The tagged inject data call is similar to fi_tinject, but allows for the sending
/// of remote CQ data (see FI_REMOTE_CQ_DATA flag) as part of the transfer."
#[test]
fn tags_go_with_inject_and_with_data() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        x.inject_tagged(b"one", a.other, 1).unwrap();
        x.inject_tagged_data(b"two", a.other, 2, 22).unwrap();
        x.send_tagged("three", a.other, 3).imm(33).await.unwrap();
        let (received, bytes) = tagged(y, 3, 0).await;
        assert_eq!(
            (received.tag, received.data, &bytes[..]),
            (Some(3), Some(33), &b"three"[..])
        );
        let (received, bytes) = tagged(y, 2, 0).await;
        assert_eq!(
            (received.tag, received.data, &bytes[..]),
            (Some(2), Some(22), &b"two"[..])
        );
        let (received, bytes) = tagged(y, 1, 0).await;
        assert_eq!(
            (received.tag, received.data, &bytes[..]),
            (Some(1), None, &b"one"[..])
        );
        let refused = x.inject_tagged(&[0; 129], a.other, 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
    });
}

/// fi_cq(3): "Indicates that the completion was for a receive operation."
/// fi_cq(3): "Indicates that the completion was for a send operation."
/// fi_tagged(3): `FI_COMPLETION`
/// fi_tagged(3): `fi_tsendmsg`
/// fi_cq(3): "Indicates that a tagged message operation completed. This flag may be combined with
/// an FI_SEND or FI_RECV flag."
/// fi_cq(3): "This field contains the tag that was included with the received message. The tag will
/// be in host byte order."
#[test]
fn completions_have_tags() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, queue) = rdm_with_queue(&one);
        let y = two.rdm_endpoint().unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let to_x = y.insert(x.local_addr()).unwrap();
        x.send_tagged("sent", to_y, 5).queue(1u64).await.unwrap();
        let sent = queue.next().await.unwrap();
        assert_eq!(sent.flags, CompletionFlags::SEND | CompletionFlags::TAGGED);
        let receive = x.recv_tagged(vec![0u8; 8], 0x10).ignore(0xf);
        receive.queue(2u64).await.unwrap();
        y.send_tagged("back", to_x, 0x1c).await.unwrap();
        let completion = queue.next().await.unwrap();
        assert_eq!(
            completion.flags,
            CompletionFlags::RECV | CompletionFlags::TAGGED
        );
        assert_eq!(
            (completion.context, completion.tag, completion.len),
            (UserContext(2), Some(0x1c), 4)
        );
        assert_eq!(completion.source(), Some(to_y));
        // Failed ones are of the same kind.
        let waits = x
            .recv_tagged(vec![0u8; 8], 1)
            .queue(3u64)
            .try_post()
            .unwrap();
        assert!(x.cancel(waits));
        let completion = queue.next().await.unwrap();
        assert_eq!(
            completion.flags,
            CompletionFlags::RECV | CompletionFlags::TAGGED
        );
        assert_eq!(
            completion.result.unwrap_err().error.kind(),
            ErrorKind::Canceled
        );
    });
}

/// fi_tagged(3): "the CQ entry len field will reference the size of the message, not necessarily
/// the size of the returned data."
/// fi_tagged(3): `FI_ENOMSG`
/// fi_tagged(3): "the results of the peek operation are available in the completion queue
/// associated with the endpoint."
/// fi_tagged(3): "a receive operation with the FI_PEEK flag set does not remain queued with the
/// provider after the peek completes successfully."
/// fi_tagged(3): `fi_trecvmsg`
/// fi_tagged(3): "The peek flag may be used to see if a specified message has arrived."
/// fi_tagged(3): "The returned completion data will indicate the meta-data associated with the
/// message, such as the message length, completion flags, available CQ data, tag, and source
/// address."
/// fi_tagged(3): "If no message is found matching the tags specified in the peek request, then a
/// completion queue error entry with err field set to FI_ENOMSG will be available."
#[test]
fn a_peek_finds_a_message_and_leaves_it() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        let none = y.peek_tagged(4).await.unwrap_err();
        assert_eq!((none.kind(), none.fi_errno()), (ErrorKind::NoMessage, 42));
        x.send("no tag", a.other).delivery_complete().await.unwrap();
        let send = x.send_tagged("tag 4", a.other, 4).imm(44);
        send.delivery_complete().await.unwrap();
        send_unexpected(&a, &[(5, "five")]).await;
        let info = y.peek_tagged(4).await.unwrap();
        assert_eq!((info.len, info.tag, info.data), (5, Some(4), Some(44)));
        assert_eq!(
            (info.source, info.source_addr),
            (Some(b.other), Some(x.local_addr()))
        );
        assert_eq!(y.peek_tagged(0xff).ignore(u64::MAX).now().unwrap(), info);
        assert_eq!(y.peek_tagged(5).from(b.other).await.unwrap().len, 4);
        let itself = y.insert(y.local_addr()).unwrap();
        let none = y.peek_tagged(4).from(itself).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NoMessage);
        // By the queue.
        y.peek_tagged(4).queue(1u64).unwrap();
        let completion = y.receive_queue().try_next().unwrap();
        completion.result.as_ref().unwrap();
        let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
        assert_eq!(completion.flags, flags | CompletionFlags::REMOTE_CQ_DATA);
        assert_eq!(
            (
                completion.context,
                completion.len,
                completion.tag,
                completion.data
            ),
            (UserContext(1), 5, Some(4), Some(44))
        );
        assert_eq!(
            (completion.source(), completion.operation),
            (Some(b.other), OperationKind::Receive)
        );
        y.peek_tagged(6).queue(2u64).unwrap();
        let completion = y.receive_queue().try_next().unwrap();
        assert_eq!(completion.result.unwrap_err().error.fi_errno(), 42);
        // It was there all the time.
        assert_eq!(tagged(y, 4, 0).await.1, b"tag 4");
        assert_eq!(
            y.peek_tagged(4).await.unwrap_err().kind(),
            ErrorKind::NoMessage
        );
    });
}

/// fi_cq(3): `FI_CLAIM`
/// fi_tagged(3): "if the peek request completes successfully – indicating that a matching message
/// was located – the message is claimed by caller."
/// fi_tagged(3): "Claimed messages can only be retrieved using a subsequent, paired receive
/// operation with the FI_CLAIM flag set."
/// fi_tagged(3): "A receive operation with the FI_CLAIM flag set, but FI_PEEK not set is used to
/// retrieve a previously claimed message."
#[test]
fn a_claimed_message_goes_to_its_claimant_only() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let y = &b.endpoint;
        send_unexpected(&a, &[(1, "first"), (1, "second"), (1, "third")]).await;
        let first = y.peek_tagged(1).claim().unwrap();
        assert_eq!((first.info().len, first.info().tag), (5, Some(1)));
        assert_eq!(tagged(y, 1, 0).await.1, b"second");
        let third = y.peek_tagged(1).claim().unwrap();
        assert_eq!(
            y.peek_tagged(1).claim().unwrap_err().kind(),
            ErrorKind::NoMessage
        );
        let mut waits = y.recv_tagged(vec![0u8; 8], 1).post().unwrap();
        let (received, bytes) = third.recv(vec![0u8; 8]).await.unwrap();
        assert_eq!((received.tag, &bytes[..5]), (Some(1), &b"third"[..]));
        assert_eq!(received.source, Some(b.other));
        assert!((&mut waits).now_or_never().is_none());
        // Through the queue, where the flag says what it was; and short.
        first.recv(vec![0u8; 2]).queue(9u64).await.unwrap();
        let mut completion = y.receive_queue().next().await.unwrap();
        let flags = CompletionFlags::RECV | CompletionFlags::TAGGED | CompletionFlags::CLAIM;
        assert_eq!(
            (completion.context, completion.flags, completion.len),
            (UserContext(9), flags, 2)
        );
        assert_eq!(completion.result.as_ref().unwrap_err().overflow_len, 3);
        assert_eq!(&completion.take_buffer().unwrap()[..], b"fi");
        send_unexpected(&a, &[(1, "fourth")]).await;
        assert_eq!(waits.await.unwrap().0.len, 6);
    });
}

/// A claim that is given up, by itself or with the receive that was to use it, gives the message
/// back to its place.
#[test]
fn a_claim_that_is_dropped_is_given_up() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let y = &b.endpoint;
        send_unexpected(&a, &[(1, "first"), (1, "second")]).await;
        let claim = y.peek_tagged(1).claim().unwrap();
        assert_eq!(y.peek_tagged(1).await.unwrap().len, 6);
        drop(claim);
        assert_eq!(y.peek_tagged(1).await.unwrap().len, 5);
        drop(y.peek_tagged(1).claim().unwrap().recv(vec![0u8; 8]));
        assert_eq!(tagged(y, 1, 0).await.1, b"first");
        // A receive that waits gets what is given up.
        let claim = y.peek_tagged(1).claim().unwrap();
        let waits = y.recv_tagged(vec![0u8; 8], 1).post().unwrap();
        drop(claim);
        assert_eq!(waits.await.unwrap().0.len, 6);
    });
}

/// fi_tagged(3): "the message is discarded by the provider, as the data is not needed by the
/// application."
/// fi_tagged(3): "This flag may also be used in conjunction with FI_CLAIM in order to discard a
/// message previously claimed using an FI_PEEK + FI_CLAIM request."
#[test]
fn messages_may_be_discarded() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let y = &b.endpoint;
        send_unexpected(&a, &[(1, "one"), (2, "two"), (1, "uno")]).await;
        assert_eq!(y.peek_tagged(1).discard().unwrap().len, 3);
        let claim = y.peek_tagged(2).claim().unwrap();
        claim.discard();
        assert_eq!(
            y.peek_tagged(2).discard().unwrap_err().kind(),
            ErrorKind::NoMessage
        );
        assert_eq!(tagged(y, 0, u64::MAX).await.1, b"uno");
        assert_eq!(y.unexpected_bytes(), 0);
        // What was discarded leaves room: a sender that waited for it goes on.
        let opened = b.peer.domain.rdm_endpoint().unexpected_bytes(4_000);
        let z = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let to_z = a.endpoint.insert(z.local_addr()).unwrap();
        let sends: Vec<_> = (0..20)
            .map(|_| a.endpoint.send_tagged(vec![1u8; 1_000], to_z, 1).post())
            .collect();
        let last = a.endpoint.send_tagged("last", to_z, 2).post().unwrap();
        let mut discarded = 0;
        while discarded < 20 {
            match z.peek_tagged(1).discard() {
                Ok(info) => {
                    assert_eq!(info.len, 1_000);
                    discarded += 1;
                }
                Err(none) => assert_eq!(none.kind(), ErrorKind::NoMessage),
            }
            tokio::task::yield_now().await;
        }
        last.await.unwrap();
        assert_eq!(tagged(&z, 2, 0).await.1, b"last");
        for sent in sends {
            sent.unwrap().await.unwrap();
        }
    });
}

/// fi_cq(3): "The olen specifies the amount of data that did not fit into the available receive
/// buffer and was discarded."
/// fi_tagged(3), and fi_cq(3): "the amount of data that did not fit into the available receive
/// buffer and was discarded."
#[test]
fn truncation_keeps_the_tag_and_the_connection() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for len in [9usize, 70_000, 400_000] {
            let receive = b.endpoint.recv_tagged(vec![0u8; 4], 6).queue(1u64);
            receive.await.unwrap();
            a.endpoint
                .send_tagged(vec![len as u8; len], a.other, 6)
                .await
                .unwrap();
            let completion = b.endpoint.receive_queue().next().await.unwrap();
            assert_eq!((completion.len, completion.tag), (4, Some(6)));
            let error = completion.result.as_ref().unwrap_err();
            assert_eq!((error.error.fi_errno(), error.overflow_len), (265, len - 4));
            a.endpoint.send_tagged("next", a.other, 7).await.unwrap();
            assert_eq!(tagged(&b.endpoint, 7, 0).await.1, b"next");
        }
    });
}

/// fi_tagged(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message."
/// fi_tagged(3): `fi_trecvv`
/// fi_tagged(3): `fi_tsendv`
/// fi_tagged(3): one message of several buffers, into several.
#[test]
fn tagged_messages_may_be_of_several_buffers() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for count in 1..=4usize {
            let parts: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8; 3 * at + 1]).collect();
            let whole = parts.concat();
            a.endpoint.send_tagged(parts, a.other, 1).await.unwrap();
            let into = vec![vec![0u8; whole.len()]; 2];
            let (received, got) = b.endpoint.recv_tagged(into, 1).await.unwrap();
            assert_eq!(
                (received.len, &got.concat()[..whole.len()]),
                (whole.len(), &whole[..])
            );
        }
        let five = a
            .endpoint
            .send_tagged(vec![vec![0u8; 1]; 5], a.other, 1)
            .await;
        assert_eq!(five.unwrap_err().kind(), ErrorKind::TooLarge);
    });
}

/// fi_tagged(3): `FI_INJECT_COMPLETE` fi_endpoint(3), FI_INJECT_COMPLETE: "when the source
/// buffer(s) may be reused": a tagged send gives its buffer back though no receive has its tag, and
/// what that gets next is another message.
#[test]
fn a_tagged_send_ends_when_its_buffer_may_be_reused() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let mut buffer = vec![0u8; 1000];
        let place = buffer.as_ptr();
        for tag in 1..=20u8 {
            buffer.fill(tag);
            let sent = a.endpoint.send_tagged(buffer, a.other, tag.into()).await;
            buffer = sent.unwrap().1;
            assert_eq!(buffer.as_ptr(), place);
        }
        buffer.fill(99);
        for tag in (1..=20u8).rev() {
            let (_, bytes) = tagged(&b.endpoint, tag.into(), 0).await;
            assert!(bytes.len() == 1000 && bytes.iter().all(|byte| *byte == tag));
        }
    });
}

/// fi_tagged(3): `FI_FENCE`
/// fi_tagged(3): `FI_TRANSMIT_COMPLETE`
/// fi_tagged(3): `FI_MORE`
/// FI_MORE, FI_FENCE and the levels of completion are for tagged messages what they are for others.
#[test]
fn tagged_sends_are_gathered_and_fenced() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, to) = (&a.endpoint, a.other);
        let gathered = x.send_tagged("1", to, 1).more().post().unwrap();
        let acked = x
            .send_tagged("2", to, 2)
            .delivery_complete()
            .post()
            .unwrap();
        let fenced = x.send_tagged("3", to, 3).fence().post().unwrap();
        for tag in [3, 1, 2] {
            assert_eq!(tagged(&b.endpoint, tag, 0).await.0.tag, Some(tag));
        }
        for sent in [gathered, acked, fenced] {
            assert_eq!(sent.await.unwrap().0, 1);
        }
    });
}
