//! What is on the wire.

use socket2::SockRef;
use tokio_fabric::Backend;
use tokio_fabric::ep::TcpOps;
use tokio_fabric::testing::connect;

use crate::certificates::Authority;
use crate::common::peers::{listener, open_region, read, request, write};
use crate::common::{on_sockets_at_once, on_threads};
use crate::relay::{APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, Relay};
use crate::sessions::peer;

const WORDS: &[u8] = b"words that only the two peers may read";

/// Low-level access reaches the socket below TLS, on each backend that has sockets: the kernel
/// counts records, of which there are more bytes than of the message.
#[test]
fn the_socket_below_tls_is_reached_by_type() {
    const LEN: usize = 1 << 20;
    let tls = Authority::new().config();
    on_sockets_at_once(|net| {
        let tls = tls.clone();
        async move {
            let (a, b) = (peer(&net, &tls), peer(&net, &tls));
            let (x, y) = connect(&a, &b).await.unwrap();
            let (sent, received) = tokio::join!(
                x.send(vec![1; LEN]).delivery_complete().into_future(),
                y.recv(vec![0; LEN]).into_future(),
            );
            sent.unwrap();
            received.unwrap();
            let tcp = x.ops::<TcpOps>().unwrap();
            let info = tcp.info().unwrap();
            assert!(info.acknowledged_bytes > LEN as u64, "{info:?}");
            let far = y.ops::<TcpOps>().unwrap().info().unwrap();
            assert!(far.received_bytes > LEN as u64, "{far:?}");
            let local = tcp.with_fd(|fd| SockRef::from(&fd).local_addr().unwrap().as_socket());
            assert_eq!(local.unwrap(), x.local_addr());
        }
    });
}

/// Everything on the wire is a record of TLS, the first ones a handshake, and in none of them is a
/// byte of the fabric's: not the private data of the request, nor messages, nor what is written and
/// read.
#[test]
fn no_fabric_byte_is_in_a_capture() {
    let tls = Authority::new().config();
    on_threads(0, Backend::Epoll, async |net| {
        let (a, b) = (peer(&net, &tls), peer(&net, &tls));
        let (listener, requests) = listener(&b);
        let relay = Relay::to(listener.local_addr()).await;
        let x = a.domain.endpoint().open().unwrap();
        let accepting = async {
            let request = request(&requests).await;
            assert_eq!(&request.data()[..], WORDS);
            request.accept(&b.domain).data(WORDS).await.unwrap()
        };
        let connecting = x.connect(relay.address).data(WORDS).into_future();
        let (connected, y) = futures::future::join(connecting, accepting).await;
        assert_eq!(connected.unwrap(), WORDS);

        let received = y.recv(vec![0; WORDS.len()]).post().unwrap();
        x.send(WORDS).await.unwrap();
        assert_eq!(received.await.unwrap().1, WORDS);
        let region = open_region(&b, WORDS.to_vec()).await;
        assert_eq!(read(&x, region.remote()).await.unwrap(), WORDS);
        write(&x, region.remote(), b'#').await.unwrap();

        let seen = relay.seen();
        assert!(seen.len() > 10, "all of it has passed: {}", seen.len());
        let mut is_sealed = [false; 2];
        for (direction, record) in seen {
            let sealed = &mut is_sealed[direction as usize];
            match record[0] {
                HANDSHAKE => assert!(!*sealed, "the handshake is over"),
                CHANGE_CIPHER_SPEC => assert_eq!(record[5..], [1]),
                APPLICATION_DATA => *sealed = true,
                other => panic!("a record of type {other}"),
            }
            assert!(!contains(&record, &WORDS[..8]) && !contains(&record, b"########"));
            let key = region.remote().key.to_be_bytes();
            assert!(
                !contains(&record, &key) && !contains(&record, &region.remote().key.to_le_bytes())
            );
        }
        assert_eq!(is_sealed, [true; 2]);
    });
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
