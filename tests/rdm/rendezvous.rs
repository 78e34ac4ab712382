//! Messages that are announced before they are sent, at sizes around every threshold.

use std::time::Duration;

use crate::common::on_every_backend;
use tokio_fabric::testing::Net;
use tokio_fabric::{ErrorKind, RdmEndpoint, av::FabricAddr, error::Phase};

/// Where the announcement begins, here.
const MIN: usize = 4_096;

struct Two {
    x: RdmEndpoint,
    y: RdmEndpoint,
    to_y: FabricAddr,
    _peers: [tokio_fabric::testing::Peer; 2],
}

fn two(net: &Net, extension: bool) -> Two {
    two_that_announce(net, extension, [MIN, MIN])
}

/// From these lengths on.
fn two_that_announce(net: &Net, extension: bool, min: [usize; 2]) -> Two {
    let (one, other) = (net.peer().unwrap(), net.peer().unwrap());
    let open = |peer: &tokio_fabric::testing::Peer, min: usize| {
        let builder = peer.domain.rdm_endpoint().rendezvous_min(min);
        let builder = builder
            .unexpected_bytes_per_peer(16_384)
            .extension(extension);
        let builder = builder.transmit_size(1_024);
        builder
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap()
    };
    let (x, y) = (open(&one, min[0]), open(&other, min[1]));
    let to_y = x.insert(y.local_addr()).unwrap();
    Two {
        x,
        y,
        to_y,
        _peers: [one, other],
    }
}

fn message(len: usize) -> Vec<u8> {
    // Of a period that no power of two divides, so that bytes at a wrong place are seen.
    let period: Vec<u8> = (0..1_021).map(|at| (at * 7 + len) as u8).collect();
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    bytes
}

/// Sizes on both sides of what decides how a message goes: whether it is announced, whether it fits
/// what the peer keeps without a receive, whether it is received straight into its place, and in
/// pieces.
fn sizes() -> Vec<usize> {
    let edges = [MIN, 16_384 - 128, 16_384, 65_536, 1 << 20];
    let around = |edge: usize| [edge - 1, edge, edge + 1];
    let mut sizes = vec![0, 1];
    sizes.extend(edges.into_iter().flat_map(around));
    sizes.push(3 << 20);
    sizes
}

/// fi_tagged(3) and fi_msg(3) do not say how a message goes: announced or not, with and without CQ
/// data, acknowledged or not, expected or not, it arrives whole.
#[test]
fn messages_of_every_size_arrive_whole_however_they_go() {
    on_every_backend(|net| async move {
        for extension in [true, false] {
            let Two { x, y, to_y, .. } = &two(&net, extension);
            for (number, len) in sizes().into_iter().enumerate() {
                let whole = message(len);
                for kind in 0..16 {
                    let [tag, expected, data, ack] = [1, 2, 4, 8].map(|bit| kind & bit != 0);
                    let send = match tag {
                        true => x.send_tagged(whole.clone(), *to_y, number as u64),
                        false => x.send(whole.clone(), *to_y),
                    };
                    let send = if data { send.imm(len as u64) } else { send };
                    let send = if ack { send.delivery_complete() } else { send };
                    let receive = async {
                        match tag {
                            true => y.recv_tagged(vec![0u8; len], number as u64).await,
                            false => y.recv(vec![0u8; len]).await,
                        }
                    };
                    let (sent, got) = match expected {
                        true => {
                            let sending = async { send.await };
                            let (got, sent) = futures::future::join(receive, sending).await;
                            (sent, got)
                        }
                        false => {
                            let sending = send.post().unwrap();
                            tokio::task::yield_now().await;
                            let got = receive.await;
                            (sending.await, got)
                        }
                    };
                    let what = format!("{len} bytes, kind {kind}, extension {extension}");
                    let (received, bytes) = got.unwrap();
                    assert!(bytes == whole, "{what}");
                    assert_eq!(received.len, len, "{what}");
                    assert_eq!(received.data, data.then_some(len as u64), "{what}");
                    assert_eq!(received.tag, tag.then_some(number as u64), "{what}");
                    assert_eq!(sent.unwrap().0, len, "{what}");
                }
            }
        }
    });
}

/// docs/extension.md, section 7, and the protocol: a side that agreed takes what is announced, also
/// if it never announces itself: the least length is the sender's own affair.
#[test]
fn what_is_announced_is_taken_by_who_announces_nothing() {
    on_every_backend(|net| async move {
        for extension in [true, false] {
            let mins = [0, usize::MAX];
            let Two { x, y, to_y, .. } = &two_that_announce(&net, extension, mins);
            let to_x = y.insert(x.local_addr()).unwrap();
            for len in [1, 3_000, 300_000] {
                for is_unexpected in [false, true] {
                    let receive = y.recv_tagged(vec![0u8; len], 1);
                    let there = x.send_tagged(message(len), *to_y, 1).delivery_complete();
                    let receive = match is_unexpected {
                        true => None,
                        false => Some(receive.post().unwrap()),
                    };
                    let there = there.post().unwrap();
                    let receive = match receive {
                        Some(posted) => posted,
                        None => y.recv_tagged(vec![0u8; len], 1).post().unwrap(),
                    };
                    assert!(receive.await.unwrap().1 == message(len), "{len}");
                    there.await.unwrap();
                }
                // What it says itself goes as it is.
                let back = y.send_tagged(message(len), to_x, 2).post().unwrap();
                let (received, bytes) = x.recv_tagged(vec![0u8; len], 2).await.unwrap();
                assert!(received.len == len && bytes == message(len), "{len}");
                back.await.unwrap();
            }
        }
    });
}

/// Announced and other messages of one sender are matched in the order in which they were sent.
#[test]
fn announced_messages_keep_their_place() {
    on_every_backend(|net| async move {
        let Two { x, y, to_y, .. } = &two(&net, true);
        let len_of = |number: usize| [10, 5_000, 100, 60_000][number % 4];
        let sends: Vec<_> = (0..80)
            .map(|number| {
                let mut bytes = message(len_of(number));
                bytes[0] = number as u8;
                x.send(bytes, *to_y).post().unwrap()
            })
            .collect();
        for number in 0..80usize {
            let (received, bytes) = y.recv(vec![0u8; 60_000]).await.unwrap();
            assert_eq!((received.len, bytes[0]), (len_of(number), number as u8));
        }
        for sent in sends {
            sent.await.unwrap();
        }
    });
}

/// More announcements than there are names for (254 a direction): the rest wait for theirs.
#[test]
fn more_announcements_than_names_wait_their_turn() {
    on_every_backend(|net| async move {
        let Two { x, y, to_y, .. } = &two(&net, true);
        const COUNT: usize = 600;
        let sends: Vec<_> = (0..COUNT)
            .map(|number| {
                let mut bytes = message(MIN + 1);
                bytes[..2].copy_from_slice(&(number as u16).to_le_bytes());
                x.send_tagged(bytes, *to_y, (number % 7) as u64)
                    .post()
                    .unwrap()
            })
            .collect();
        for number in 0..COUNT {
            let receive = y.recv_tagged(vec![0u8; MIN + 1], (number % 7) as u64);
            let (received, bytes) = receive.await.unwrap();
            assert_eq!(received.len, MIN + 1);
            assert_eq!(bytes[..2], (number as u16).to_le_bytes());
        }
        for sent in sends {
            sent.await.unwrap();
        }
    });
}

/// Every operation ends, and once: with an announced message without a receive, and a fenced one
/// behind it, a peer that disconnects is connected to again, and both arrive there.
#[test]
fn a_fenced_message_behind_an_announced_one_survives_a_disconnect() {
    on_every_backend(|net| async move {
        let Two { x, y, to_y, .. } = &two(&net, true);
        let to_x = y.insert(x.local_addr()).unwrap();
        let announced = x.send_tagged(message(MIN + 1), *to_y, 7).post().unwrap();
        let fenced = x.send_tagged("fenced", *to_y, 7).fence().post().unwrap();
        // So that the connection is up, and the announcement there.
        while y.peek_tagged(7).now().is_err() {
            tokio::task::yield_now().await;
        }
        y.disconnect(to_x).unwrap();
        let receives = [0; 2].map(|_| y.recv_tagged(vec![0; MIN + 1], 7).post().unwrap());
        announced.await.unwrap();
        fenced.await.unwrap();
        let mut lens = Vec::new();
        for receive in receives {
            lens.push(receive.await.unwrap().0.len);
        }
        assert_eq!(lens, [MIN + 1, 6]);
    });
}

/// Announced messages that their senders give up, more than there are names: their memory comes
/// back, the peer keeps nothing, a later receive does not meet them, and others pass.
#[test]
fn announced_messages_that_are_given_up_are_withdrawn_at_the_peer() {
    on_every_backend(|net| async move {
        let Two { x, y, to_y, .. } = &two(&net, true);
        // End by their time, by a request, or with their owners.
        for round in 0..3_u64 {
            let sends: Vec<_> = (0..100)
                .map(|tag| {
                    let send = x.send_tagged(message(MIN + 1), *to_y, tag);
                    match round {
                        0 => send.timeout(Duration::from_millis(20)).post().unwrap(),
                        _ => send.post().unwrap(),
                    }
                })
                .collect();
            let last = || y.peek_tagged(99).now().is_err() && round != 0;
            while last() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if round == 1 {
                assert_eq!(x.cancel_all(*to_y).unwrap(), 100);
            }
            if round == 2 {
                drop(sends);
            } else {
                for send in sends {
                    let (error, buffer) = send.await.unwrap_err().into_parts();
                    let kinds = [ErrorKind::TimedOut, ErrorKind::Canceled];
                    assert_eq!(error.kind(), kinds[round as usize]);
                    assert_eq!(buffer.expect("its memory"), message(MIN + 1));
                }
            }
            while y.unexpected_bytes() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let receive = y.recv_tagged(vec![0; MIN + 1], 7).post().unwrap();
        let other = x.send_tagged(message(MIN + 2), *to_y, 1000).post().unwrap();
        let (received, bytes) = y.recv_tagged(vec![0; MIN + 2], 1000).await.unwrap();
        assert_eq!((received.len, bytes), (MIN + 2, message(MIN + 2)));
        other.await.unwrap();
        assert!(receive.phase() != Phase::Ended, "no peer sends it that");
        x.send_tagged("at last", *to_y, 7).await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 7);
    });
}

/// `FI_CLAIM`: "the message is gone" when its sender has withdrawn it, and no other is received.
#[test]
fn a_claimed_message_that_is_withdrawn_is_none() {
    on_every_backend(|net| async move {
        let Two { x, y, to_y, .. } = &two(&net, true);
        let send = x.send_tagged(message(MIN + 1), *to_y, 1).post().unwrap();
        while y.peek_tagged(1).now().is_err() {
            tokio::task::yield_now().await;
        }
        let claimed = y.peek_tagged(1).claim().unwrap();
        drop(send);
        while y.unexpected_bytes() > 0 {
            tokio::task::yield_now().await;
        }
        x.send_tagged("another", *to_y, 1).await.unwrap();
        let failed = claimed.recv(vec![0; 8]).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::NoMessage);
        y.recv_tagged(vec![0; 8], 1).await.unwrap();
    });
}
