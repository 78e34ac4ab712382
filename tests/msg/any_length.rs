//! Receiving messages whose length is unknown before they come (`FI_VARIABLE_MSG` of fi_msg(3)).

use crate::common::on_every_backend;
use crate::common::peers::peer_with;
use bytes::Bytes;
use tokio_fabric::testing::connect_endpoints;
use tokio_fabric::{ErrorKind, Hints, domain::DomainBind, info::MrMode};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7) as u8).collect()
}

const LENS: [usize; 6] = [0, 1, 64, 5_000, 70_000, 3 << 20];

/// fi_msg(3): "Variable length messages, or simply variable messages, are transfers where the size
/// of the message is unknown to the receiver prior to the message being sent."
/// fi_msg(3): "Buffered receives indicate that the networking layer allocates and manages the data
/// buffers used to receive network data transfers."
#[test]
fn a_message_of_any_length_gets_memory_of_its_length() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for len in LENS {
            // Before its receive as far as there is room, then behind it.
            let early = a.send(pattern(len)).imm(len as u64).post().unwrap();
            let (received, bytes) = b.recv_any(4 << 20).await.unwrap();
            assert_eq!((received.len, received.data), (len, Some(len as u64)));
            assert!(bytes == pattern(len), "of {len} bytes");
            early.await.unwrap();

            let receive = b.recv_any(4 << 20).post().unwrap();
            a.send(pattern(len)).await.unwrap();
            let (received, bytes) = receive.await.unwrap();
            assert_eq!(received.len, len);
            assert!(bytes == pattern(len), "of {len} bytes");
        }
    });
}

/// A message that is longer than the limit is cut off there, and the connection goes on.
#[test]
fn the_limit_bounds_what_is_allocated() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for (len, max) in [(100, 10), (100, 0), (200_000, 70_000), (200_000, 5)] {
            for early in [true, false] {
                let receive = (!early).then(|| b.recv_any(max).post().unwrap());
                let send = a.send(pattern(len)).post().unwrap();
                let receive = match receive {
                    Some(receive) => receive,
                    None => {
                        // An answer behind it has come: it is here.
                        let sent = send.await;
                        sent.unwrap();
                        let failed = b.recv_any(max).await.unwrap_err();
                        cut(failed, len, max);
                        continue;
                    }
                };
                cut(receive.await.unwrap_err(), len, max);
                send.await.unwrap();
            }
        }
        a.send("next").await.unwrap();
        assert_eq!(b.recv_any(64).await.unwrap().1, "next");
    });
}

#[track_caller]
fn cut(failed: tokio_fabric::Failed<Bytes>, len: usize, max: usize) {
    assert_eq!(failed.kind(), ErrorKind::Truncated);
    assert_eq!(
        (failed.received_len(), failed.overflow_len()),
        (max, len - max)
    );
    let (_, bytes) = failed.into_parts();
    assert_eq!(bytes.unwrap(), pattern(len)[..max]);
}

/// Through a queue, the completion has the bytes.
#[test]
fn a_queue_gets_messages_of_any_length() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for len in LENS {
            b.recv_any(4 << 20).queue(len).await.unwrap();
            a.send(pattern(len)).await.unwrap();
            let mut told = b.receive_queue().next().await.unwrap();
            told.result.as_ref().unwrap();
            assert_eq!((told.context.0, told.len), (len as u64, len));
            let bytes = told.take_buffer().unwrap().downcast::<Bytes>().unwrap();
            assert!(bytes == pattern(len));
        }
    });
}

/// Of a receive that is dropped while its message comes, or afterwards, the message goes to the
/// next, whatever buffer that has.
#[test]
fn a_dropped_receive_of_any_length_gives_its_message_back() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        for (round, len) in [10, 5_000, 300_000]
            .into_iter()
            .cycle()
            .take(30)
            .enumerate()
        {
            let receive = b.recv_any(1 << 20).post().unwrap();
            let send = a.send(pattern(len)).post().unwrap();
            for _ in 0..round % 4 {
                tokio::task::yield_now().await;
            }
            drop(receive);
            if round % 2 == 0 {
                let (received, bytes) = b.recv_any(1 << 20).await.unwrap();
                assert!(received.len == len && bytes == pattern(len));
            } else {
                let (received, bytes) = b.recv(vec![0; 300_000]).await.unwrap();
                assert!(received.len == len && bytes[..len] == pattern(len));
            }
            send.await.unwrap();
        }
        let receive = b.recv_any(64).post().unwrap();
        assert!(receive.cancel());
        assert_eq!(receive.await.unwrap_err().kind(), ErrorKind::Canceled);
    });
}

/// With `FI_MR_LOCAL` messages land in registered memory only.
#[test]
fn local_registration_refuses_memory_of_no_region() {
    on_every_backend(|net| async move {
        let a = net.peer().unwrap();
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let b = peer_with(&net, hints, DomainBind::empty());
        let (x, y) = (a.domain.endpoint(), b.domain.endpoint());
        let (x, y) = (x.open().unwrap(), y.open().unwrap());
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let refused = y.recv_any(64).post().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    });
}
