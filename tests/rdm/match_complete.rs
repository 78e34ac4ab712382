//! Messages that end when they are matched (`FI_MATCH_COMPLETE`, fi_tagged(3)).

use std::time::Duration;

use crate::common::on_every_backend;
use tokio::time::timeout;
use tokio_fabric::testing::{Net, connect_endpoints};
use tokio_fabric::{ErrorKind, RdmEndpoint, av::FabricAddr};

const A_WHILE: Duration = Duration::from_millis(20);

async fn peek(y: &RdmEndpoint, tag: u64) {
    while y.peek_tagged(tag).await.is_err() {
        tokio::task::yield_now().await;
    }
}

async fn open(net: &Net) -> (RdmEndpoint, RdmEndpoint, FabricAddr) {
    let (a, b) = net.rdm_pair().unwrap();
    (a.endpoint, b.endpoint, a.other)
}

/// fi_tagged(3): `FI_MATCH_COMPLETE`: only "after the message has either been matched with a tagged
/// buffer or was discarded by the target application." Of an empty message, of one that would
/// have been stored, and of one that is announced anyway.
#[test]
fn a_message_ends_when_it_is_matched_or_discarded() {
    on_every_backend(|net| async move {
        let (x, y, to_y) = open(&net).await;
        for len in [0, 5, 200_000] {
            let message = vec![7u8; len];
            // It has come, and no receive is there.
            let send = x.send_tagged(message.clone(), to_y, 1).match_complete();
            let mut send = send.post().unwrap();
            peek(&y, 1).await;
            assert!(timeout(A_WHILE, &mut send).await.is_err(), "{len}");
            // Others are not held up by it.
            x.send_tagged("other", to_y, 2).await.unwrap();
            y.recv_tagged(vec![0; 8], 2).await.unwrap();
            let (received, bytes) = y.recv_tagged(vec![0; 200_000], 1).await.unwrap();
            assert_eq!((received.len, &bytes[..len]), (len, &message[..]));
            send.await.unwrap();
            // Discarded.
            let send = x.send_tagged(message.clone(), to_y, 1).match_complete();
            let mut send = send.post().unwrap();
            peek(&y, 1).await;
            assert!(timeout(A_WHILE, &mut send).await.is_err(), "{len}");
            y.peek_tagged(1).discard().unwrap();
            send.await.unwrap();
            // One without a tag likewise; it can be cancelled as long as it is not matched.
            let send = x.send(message.clone(), to_y).match_complete();
            let receive = y.recv(vec![0; 200_000]).post().unwrap();
            send.await.unwrap();
            assert_eq!(receive.await.unwrap().0.len, len);
            let send = x.send_tagged(message, to_y, 3).match_complete();
            let send = send.post().unwrap();
            peek(&y, 3).await;
            send.cancel();
            assert_eq!(send.await.unwrap_err().kind(), ErrorKind::Canceled);
            while y.peek_tagged(3).await.is_ok() {
                tokio::task::yield_now().await;
            }
        }
    });
}

/// A peer that takes no announcements cannot say it: a connected one without shared receives,
/// before and after it is known.
#[test]
fn where_a_match_is_not_reported_it_cannot_be_asked_for() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (
            a.domain.endpoint().open().unwrap(),
            b.domain.endpoint().open().unwrap(),
        );
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let refused = x.send("hello").match_complete().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let plain = |peer: &tokio_fabric::testing::Peer| {
            let builder = peer.domain.rdm_endpoint().extension(false);
            builder
                .listen_at(crate::common::peers::any())
                .open()
                .unwrap()
        };
        let (x, y) = (plain(&a), plain(&b));
        let to_y = x.insert(y.local_addr()).unwrap();
        // libfabric's own protocol announces messages with a tag.
        for _ in 0..2 {
            let refused = x.send("hello", to_y).match_complete().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            let send = x
                .send_tagged("hello", to_y, 1)
                .match_complete()
                .post()
                .unwrap();
            peek(&y, 1).await;
            y.recv_tagged(vec![0; 8], 1).await.unwrap();
            send.await.unwrap();
        }
    });
}
