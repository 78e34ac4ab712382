//! Messages as a stream (`Endpoint::messages`, `RdmEndpoint::messages`).

use std::collections::HashSet;

use futures::StreamExt;
use futures::stream::FusedStream;
use tokio_fabric::testing::{FaultPlan, connect_endpoints};
use tokio_fabric::{ErrorKind, error::Phase, op::Messages};

use crate::common::on_every_backend;

/// The numbers that come until the stream ends in order.
async fn numbers(messages: &mut Messages) -> Vec<u32> {
    let mut numbers = Vec::new();
    while let Some(message) = messages.next().await {
        numbers.push(u32::from_le_bytes(message.unwrap()[..].try_into().unwrap()));
    }
    numbers
}

/// "It ends with `None` when the connection has ended in order", of either side's will, and after
/// every message; "its memory is used again".
#[test]
fn a_stream_gives_all_messages_until_the_orderly_end() {
    on_every_backend(|net| async move {
        for depth in [1, 4, 1000] {
            let (a, b) = net.pair().await.unwrap();
            let send = async {
                for number in 0..300_u32 {
                    a.send(number.to_le_bytes().to_vec()).await.unwrap();
                }
                a.shutdown().await.unwrap();
            };
            let mut messages = b.messages(64, depth);
            let ((), received) = tokio::join!(send, numbers(&mut messages));
            assert_eq!(received, (0..300).collect::<Vec<_>>());
            assert!(messages.is_terminated());
            assert!(messages.next().await.is_none());
        }
        // As futures' Stream; this side shuts down.
        let (a, b) = net.pair().await.unwrap();
        let mut places = HashSet::new();
        let mut messages = b.messages(64, 2);
        for number in 0..50_u32 {
            a.send(number.to_le_bytes().to_vec()).detach().unwrap();
            let message = StreamExt::next(&mut messages).await.unwrap().unwrap();
            assert_eq!(message.received().len, 4);
            places.insert(message.as_ptr());
            assert_eq!(message[..], number.to_le_bytes());
        }
        assert!(places.len() <= 3, "{} buffers", places.len());
        let (end, none) = tokio::join!(b.shutdown(), messages.next());
        end.unwrap();
        assert!(none.is_none(), "{none:?}");
        assert!(b.messages(64, 2).next().await.is_none());
    });
}

/// "Otherwise it gives the reason, once, then `None`."
#[test]
fn a_lost_connection_is_reported_once() {
    on_every_backend(|net| async move {
        let cut = FaultPlan::seeded(7).cut_after_bytes(50_000..=60_000);
        let (a, b) = net.faults(cut).pair().await.unwrap();
        let send = async { while a.send(vec![1; 1000]).await.is_ok() {} };
        let receive = async {
            let mut messages = b.messages(1000, 8);
            let mut lost = Vec::new();
            while let Some(message) = messages.next().await {
                lost.extend(message.err());
            }
            assert_eq!(lost.len(), 1, "{lost:?}");
            assert!(lost[0].is_connection_lost(), "{lost:?}");
        };
        tokio::join!(send, receive);
        let mut late = b.messages(1000, 8);
        assert!(late.next().await.unwrap().is_err());
        assert!(late.next().await.is_none());
    });
}

/// "At most `depth` messages are taken from the endpoint ahead of its reader"; "dropping the stream
/// withdraws its receives: messages that were matched to them go back to the endpoint".
#[test]
fn a_stream_that_is_not_read_holds_the_peer_back_and_dropped_loses_nothing() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let a = us.domain.endpoint().open().unwrap();
        let b = them.domain.endpoint().unexpected_bytes(0).open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let mut messages = b.messages(64, 2);
        assert!(futures::poll!(StreamExt::next(&mut messages)).is_pending());
        let mut sends = std::collections::VecDeque::new();
        for number in 0..10_u32 {
            let send = a.send(number.to_le_bytes().to_vec());
            sends.push_back(send.delivery_complete().post().unwrap());
        }
        let taken = async |count: usize, sends: &mut std::collections::VecDeque<_>| {
            for _ in 0..count {
                let send: tokio_fabric::op::Op<Vec<u8>> = sends.pop_front().unwrap();
                send.await.unwrap();
            }
            // Both drivers have had their turns when this is through.
            b.send("mark").delivery_complete().detach().unwrap();
            a.recv(vec![0; 4]).await.unwrap();
            let left = sends.iter();
            assert!(left.into_iter().all(|send| send.phase() != Phase::Ended));
        };
        taken(2, &mut sends).await;
        drop(messages.next().await.unwrap().unwrap());
        // The next is posted when the stream is asked again.
        let second = messages.next().await.unwrap().unwrap();
        assert_eq!(second.into_vec(), 1_u32.to_le_bytes());
        taken(1, &mut sends).await;
        drop(messages);
        for number in 2..10_u32 {
            let (received, bytes) = b.recv(vec![0; 8]).await.unwrap();
            assert_eq!(bytes[..received.len], number.to_le_bytes());
        }
    });
}

/// "A message that is longer than `size` is Truncated, an error after which the stream goes on."
#[test]
fn a_message_that_is_too_long_costs_itself_only() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let mut messages = b.messages(4, 2);
        let send = async {
            for text in ["one", "three", "two"] {
                a.send(text).await.unwrap();
            }
            a.shutdown().await.unwrap();
        };
        let receive = async {
            assert_eq!(messages.next().await.unwrap().unwrap()[..], *b"one");
            let long = messages.next().await.unwrap().unwrap_err();
            assert_eq!(long.kind(), ErrorKind::Truncated);
            assert_eq!(messages.next().await.unwrap().unwrap()[..], *b"two");
            assert!(messages.next().await.is_none());
        };
        tokio::join!(send, receive);
    });
}

/// "So does one that the system has no memory for": also where the message came before the stream,
/// and where it does not come at once; and room for any number of messages is a number like others.
#[test]
fn a_size_that_no_memory_is_there_for_truncates() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        a.send("early").delivery_complete().await.unwrap();
        let mut messages = b.messages(usize::MAX, usize::MAX);
        assert!(b.stats().receives.posted > 0);
        let send = async {
            a.send("short").await.unwrap();
            a.send(vec![1; 1 << 20]).await.unwrap();
            a.send("").await.unwrap();
            a.shutdown().await.unwrap();
        };
        let receive = async {
            for _ in 0..3 {
                let error = messages.next().await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Truncated);
            }
            assert!(messages.next().await.unwrap().unwrap().is_empty());
            assert!(messages.next().await.is_none());
        };
        tokio::join!(send, receive);
        let (here, there) = net.rdm_pair().unwrap();
        let mut messages = there.endpoint.messages(usize::MAX, 2);
        for _ in 0..3 {
            here.endpoint.send("one", here.other).await.unwrap();
            let error = messages.next().await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Truncated);
        }
    });
}

/// "Takes the messages that no receive is posted for"; "of several streams of an endpoint, the one
/// that was opened first takes a message if it has room"; and each message is counted once where
/// receives are.
#[test]
fn a_stream_takes_what_no_receive_takes_and_counts_it() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let a = us.domain.endpoint().open().unwrap();
        let counter = them.domain.counter().unwrap();
        let b = them.domain.endpoint().receive_counter(&counter);
        let b = b.open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let mut first = b.messages(4, 1);
        let mut second = b.messages(8, 8);
        let receive = b.recv(vec![0; 8]).post().unwrap();
        for text in ["receive", "one", "two", "three"] {
            a.send(text).delivery_complete().await.unwrap();
        }
        assert_eq!(receive.await.unwrap().1[..7], *b"receive");
        assert_eq!(second.next().await.unwrap().unwrap()[..], *b"two");
        assert_eq!(first.next().await.unwrap().unwrap()[..], *b"one");
        assert_eq!(second.next().await.unwrap().unwrap()[..], *b"three");
        assert!(futures::poll!(StreamExt::next(&mut first)).is_pending());
        a.send("too long").await.unwrap();
        let long = first.next().await.unwrap().unwrap_err();
        assert_eq!(long.kind(), ErrorKind::Truncated);
        assert_eq!(counter.read(), 4);
        assert_eq!(counter.read_error(), 1);
        let counts = b.stats().operations.receives;
        assert_eq!((counts.succeeded, counts.failed, counts.bytes), (4, 1, 18));
        drop((first, second));
        assert_eq!(b.stats().receives.posted, 0);
    });
}

/// "Of a connectionless endpoint it goes on as long as the endpoint does, whatever becomes of a
/// peer", and names the sender of each message.
#[test]
fn a_stream_of_all_peers_outlives_each_of_them() {
    on_every_backend(|net| async move {
        let here = net.peer().unwrap().rdm_endpoint().unwrap();
        let mut messages = here.messages(64, 4);
        for round in 0..3_u32 {
            let there = net.peer().unwrap();
            let peer = there.rdm_endpoint().unwrap();
            let to = peer.insert(here.local_addr()).unwrap();
            let sending = peer.send(round.to_le_bytes().to_vec(), to);
            let (sent, message) = tokio::join!(
                std::future::IntoFuture::into_future(sending),
                messages.next()
            );
            sent.unwrap();
            let message = message.unwrap().unwrap();
            assert_eq!(message[..], round.to_le_bytes());
            assert_eq!(message.received().source_addr, Some(peer.local_addr()));
        }
        let (end, none) = tokio::join!(here.shutdown(), messages.next());
        end.unwrap();
        assert!(none.is_none(), "{none:?}");
    });
}
