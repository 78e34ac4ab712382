//! Messages between connected endpoints.

mod common;

use common::on_every_backend;

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
