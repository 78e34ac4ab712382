//! Receives into the capacity of an empty buffer (`IoBufMut`).

use bytes::BytesMut;
use tokio_fabric::{ErrorKind, UserContext};

use crate::common::on_every_backend;

/// "An *empty* `Vec<u8>` or `BytesMut` offers its whole capacity instead, and comes back with what
/// was received as its length", whatever it held before; a message that was there before it too.
#[test]
fn an_empty_buffer_comes_back_with_what_was_received() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let mut kept = vec![0xEE; 3 << 20];
        for len in [0, 1, 127, 128, 4096, 70_000, 3 << 20] {
            for is_unexpected in [false, true] {
                kept.clear();
                let sent: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
                if is_unexpected {
                    // What is behind it is here when it is.
                    let send = a.send(sent.clone()).post().unwrap();
                    let receive = b.recv(kept);
                    let (received, back) = receive.await.unwrap();
                    send.await.unwrap();
                    assert_eq!((received.len, &back), (len, &sent));
                    kept = back;
                } else {
                    let receive = b.recv(kept).post().unwrap();
                    a.send(sent.clone()).await.unwrap();
                    let (received, back) = receive.await.unwrap();
                    assert_eq!((received.len, &back), (len, &sent));
                    kept = back;
                }
                assert!(kept.capacity() >= 3 << 20);
            }
        }
        let receive = b.recv(BytesMut::with_capacity(64)).post().unwrap();
        a.send("bytes").await.unwrap();
        assert_eq!(&receive.await.unwrap().1[..], b"bytes");
        let two = [Vec::<u8>::with_capacity(3), Vec::with_capacity(3)];
        let receive = b.recv(two).post().unwrap();
        a.send("in order").await.unwrap();
        let failed = receive.await.unwrap_err();
        assert_eq!(
            (failed.kind(), failed.received_len()),
            (ErrorKind::Truncated, 6)
        );
        let [first, second] = failed.into_parts().1.unwrap();
        assert_eq!((&first[..], &second[..]), (&b"in "[..], &b"ord"[..]));
        // By a queue, without its type.
        b.recv(Vec::<u8>::with_capacity(64))
            .queue(3u64)
            .await
            .unwrap();
        a.send("queued").await.unwrap();
        let mut completion = b.receive_queue().next().await.unwrap();
        assert_eq!((completion.context, completion.len), (UserContext(3), 6));
        let buffer = completion.take_buffer().unwrap();
        assert_eq!((&*buffer, buffer.len()), (&b"queued"[..], 6));
        assert_eq!(buffer.downcast::<Vec<u8>>().unwrap(), b"queued");
    });
}

/// The same of what failed: length 0.
#[test]
fn an_empty_buffer_comes_back_empty_from_what_received_nothing() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let mut used = vec![0xEE; 64];
        used.clear();
        let canceled = b.recv(used).post().unwrap();
        assert!(canceled.cancel());
        let failed = canceled.await.unwrap_err();
        let back = failed.into_parts().1.unwrap();
        assert_eq!((back.len(), back.capacity()), (0, 64));
        let receive = b.recv(back).queue(1u64).post().unwrap();
        let closing = b.recv(BytesMut::with_capacity(64)).post().unwrap();
        receive.await.unwrap();
        drop(a);
        let failed = closing.await.unwrap_err();
        assert_eq!(failed.received_len(), 0);
        assert!(failed.into_parts().1.unwrap().is_empty());
        let mut completion = b.receive_queue().next().await.unwrap();
        assert!(completion.result.is_err());
        assert!(completion.take_buffer().unwrap().is_empty());
    });
}

/// A dropped receive loses no message (ruling 4), and the next one takes it into its capacity.
#[test]
fn a_message_of_a_dropped_receive_lands_in_the_capacity_of_the_next() {
    on_every_backend(|net| async move {
        let (x, y) = net.rdm_pair().unwrap();
        for len in [5, 40_000, 200_000] {
            let sent = vec![len as u8; len];
            let dropped = y
                .endpoint
                .recv(Vec::<u8>::with_capacity(len))
                .post()
                .unwrap();
            let send = x.endpoint.send(sent.clone(), x.other).post().unwrap();
            drop(dropped);
            let (received, back) = y
                .endpoint
                .recv(Vec::<u8>::with_capacity(len + 1))
                .await
                .unwrap();
            send.await.unwrap();
            assert_eq!((received.len, back), (len, sent));
        }
    });
}

/// Reads, tagged and claimed messages; and what many messages land in comes back empty, to be
/// posted again.
#[test]
fn reads_claims_and_buffers_for_many_messages_take_capacity() {
    on_every_backend(|net| async move {
        let (x, y) = net.rdm_pair().unwrap();
        let (a, b) = (&x.endpoint, &y.endpoint);
        let region = y.peer.domain.register(vec![7u8; 1000]).await.unwrap();
        let back = a.read(Vec::<u8>::with_capacity(1000), x.other, region.remote());
        assert_eq!(back.await.unwrap(), (1000, vec![7; 1000]));
        let refused = a.read(Vec::<u8>::with_capacity(1001), x.other, region.remote());
        let failed = refused.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidArgument);
        assert!(failed.into_parts().1.unwrap().is_empty());

        a.send_tagged("claimed", x.other, 1)
            .delivery_complete()
            .await
            .unwrap();
        let claim = b.peek_tagged(1).claim().unwrap();
        assert_eq!(
            claim.recv(Vec::<u8>::with_capacity(32)).await.unwrap().1,
            b"claimed"
        );
        a.send_tagged("tagged", x.other, 2).await.unwrap();
        assert_eq!(
            b.recv_tagged(Vec::<u8>::with_capacity(32), 2)
                .await
                .unwrap()
                .1,
            b"tagged"
        );

        let mut pool: Vec<u8> = Vec::with_capacity(100);
        for round in 0..3u8 {
            b.multi_recv(pool)
                .min_free(50)
                .queue(u64::from(round))
                .await
                .unwrap();
            a.send(vec![round; 60], x.other).await.unwrap();
            let mut completion = b.receive_queue().next().await.unwrap();
            let piece = completion.take_buffer().unwrap();
            assert_eq!(&*piece, &[round; 60]);
            b.receive_queue().next().await.unwrap().result.unwrap();
            pool = piece.into_whole().unwrap().downcast().unwrap();
            assert_eq!((pool.len(), pool.capacity()), (0, 100));
        }
    });
}
