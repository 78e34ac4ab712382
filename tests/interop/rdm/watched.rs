//! The same scenarios through a proxy, with every byte read.

use tokio_fabric::testing::Net;

use super::session::{Role, play_with};
use super::{memory, messages};
use crate::plain::{self, Author, Endpoints, StreamContents};
use crate::proxy::{Capture, Proxy};

/// Bytes of libfabric's private data.
const PLAIN: usize = 8;
/// What an offer of version 1 behind them begins with: the magic, 4 bytes of values, the version.
const OFFER: &[u8] = b"tofa\0\x04\x01\0";

/// What each scenario leaves behind: one connection, made by either side.
pub async fn all(net: Net, role: Role) {
    let captures = [
        play_with(net.clone(), "messages", role, true, messages::messages).await,
        play_with(net.clone(), "tagged", role, true, messages::tagged).await,
        play_with(net.clone(), "many", role, true, messages::many).await,
        play_with(net.clone(), "rma", role, true, memory::rma).await,
    ]
    .concat();
    let mut frames = [0; 5];
    for (number, capture) in captures.iter().enumerate() {
        let found = read(&format!("connection {number}"), capture, role);
        for found in [found.0, found.1] {
            frames
                .iter_mut()
                .zip(found.frames)
                .for_each(|(all, of)| *all += of);
        }
    }
    if captures.is_empty() {
        return; // Left out.
    }
    assert_eq!(captures.len(), 4, "one connection per scenario");
    // Messages, tagged, reads, answers, writes.
    let at_least = [1000, 1000, 2, 2, 5];
    let enough = frames.iter().zip(at_least).all(|(got, due)| *got >= due);
    assert!(enough, "{frames:?} are not all that passed");
}

fn read(what: &str, capture: &Capture, role: Role) -> (StreamContents, StreamContents) {
    let (dialer, listener) = match role {
        Role::Initiator => (Author::Ours, Author::C),
        Role::Target => (Author::C, Author::Ours),
    };
    let read = |stream: &[u8], author| {
        plain::read(stream, Endpoints::Connectionless, author)
            .unwrap_or_else(|wrong| panic!("{what}, {author:?}: {wrong}"))
    };
    let asked = read(&capture.dialer, dialer);
    let answered = read(&capture.listener, listener);
    assert_eq!([asked.conn_id, answered.conn_id], [[0; 8]; 2], "{what}");
    assert_eq!(answered.private.len(), PLAIN, "{what}: the answer");
    assert_eq!(
        answered.private[2..4],
        asked.private[2..4],
        "{what}: the port"
    );
    match role {
        Role::Initiator => {
            assert_eq!(asked.private[..2], [1, 0], "{what}: the highest version");
            assert!(
                asked.private[PLAIN..].starts_with(OFFER),
                "{what}: an offer"
            );
            assert_eq!(answered.private[0], 1, "{what}: net 1.17 echoes");
        }
        Role::Target => {
            assert_eq!(asked.private.len(), PLAIN, "{what}: a C peer's request");
            assert_eq!(asked.private[..2], [0, 0], "{what}: of version 0");
            assert_eq!(answered.private[..2], [0, 0], "{what}: 0 is answered by 0");
            assert_ne!(answered.private[4..8], [0; 4], "{what}: an incarnation");
        }
    }
    (asked, answered)
}

/// What passes between two endpoints of this library is found not to be the protocol alone: the
/// captures above would show it.
pub async fn the_reading_finds_the_extension(net: Net) {
    for extended in [false, true] {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let any = ([127, 0, 0, 1], 0).into();
        let open = |peer: &tokio_fabric::testing::Peer| {
            let builder = peer.domain.rdm_endpoint().listen_at(any);
            builder.extension(extended).open().unwrap()
        };
        let (x, y) = (open(&a), open(&b));
        let proxy = Proxy::to(y.local_addr()).await;
        let to_y = x.insert(proxy.address()).unwrap();
        let sent = x.send("hello", to_y).delivery_complete().post().unwrap();
        y.recv(vec![0; 8]).await.unwrap();
        sent.await.unwrap();
        x.shutdown().await.unwrap();
        let capture = &proxy.captures()[0];
        for stream in [&capture.dialer, &capture.listener] {
            let found = plain::read(stream, Endpoints::Connectionless, Author::Ours);
            match extended {
                true => assert!(found.is_err(), "{found:?}"),
                false => assert_eq!(found.unwrap().private.len(), PLAIN),
            }
        }
    }
}
