//! libfabric's other connectionless protocol, which `tcp` has before 1.18, at our listener.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_fabric::testing::Net;

use super::lives::echo;
use super::session::{Role, port_of, rdm_peer, start_c};
use crate::harness::{PATIENCE, PingPong, PingPongKind, fi_pingpong};
use crate::proxy::{Capture, Proxy};

/// Control frames before the private data.
const CONTROL: usize = 32;
/// How RXM's private data begin: version, little-endian, two more versions.
const RXM: &[u8] = &[1, 2, 4, 3];
/// More than one: RXM takes a reject as a reason to try again, without end.
const ATTEMPTS: usize = 3;

/// RXM gets its own reject, as often as it asks; a peer that speaks our protocol is served.
pub async fn is_rejected(net: Net) {
    let Some(pingpong) = fi_pingpong().or_left_out("rxm") else {
        return;
    };
    let Some(program) = rdm_peer().or_left_out("rxm") else {
        return;
    };
    let peer = net.peer().unwrap();
    let x = peer.rdm_endpoint().unwrap();
    let proxy = Proxy::to(x.local_addr()).await;
    let side = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = PingPong {
        kind: PingPongKind::Rxm,
        size: "64".into(),
        ..PingPong::default()
    };
    let mut rxm = pingpong.client(&options, side.local_addr().unwrap());
    let _side = tokio::time::timeout(PATIENCE, invite(&side, proxy.address())).await;
    let refused = async {
        while proxy.captures().iter().filter(|it| is_over(it)).count() < ATTEMPTS {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .unwrap_or_else(|_| panic!("no {ATTEMPTS} attempts\n{rxm}"));
    for capture in proxy.captures().iter().filter(|it| is_over(it)) {
        assert_eq!(capture.dialer[..4], [3, 0, 0, 24], "a request");
        assert!(capture.dialer[CONTROL..].starts_with(RXM), "of RXM");
        let mut reject = vec![3, 6, 0, 2];
        reject.resize(CONTROL, 0);
        reject.extend([1, 1]);
        assert_eq!(capture.listener, reject);
    }
    let mut c = start_c(program, "echo", Role::Initiator, x.local_addr());
    let to_c = x.insert(port_of(&mut c).await).unwrap();
    echo(&x, to_c, Role::Initiator).await;
    assert!(rxm.try_status().is_none(), "it goes on trying\n{rxm}");
    rxm.kill();
}

/// The attempt was answered, in full.
fn is_over(capture: &Capture) -> bool {
    capture.listener.len() >= CONTROL + 2
}

/// The side channel of `fi_pingpong`, up to its first message to this address.
async fn invite(side: &TcpListener, to: SocketAddr) -> tokio::net::TcpStream {
    let (mut stream, _) = side.accept().await.unwrap();
    let SocketAddr::V4(address) = to else {
        unreachable!("the proxy is at an IPv4 address")
    };
    let mut name = Vec::new();
    name.extend(16_u32.to_be_bytes());
    name.extend(2_u32.to_ne_bytes());
    name.extend(2_u16.to_ne_bytes());
    name.extend(address.port().to_be_bytes());
    name.extend(address.ip().octets());
    name.extend([0; 8]);
    stream.write_all(&name).await.unwrap();
    // Its own name, and its word that it is ready.
    stream.read_exact(&mut [0; 24 + 2]).await.unwrap();
    stream.write_all(b"a\0").await.unwrap();
    stream
}
