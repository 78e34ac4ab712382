//! Clients that stop within a frame.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_fabric::ep::OnRefusal;
use tokio_fabric::testing::Peer;
use tokio_fabric::{Endpoint, Fabric, Hints};
use tokio_fabric_rpc::Server;

use super::hostile::{frame, hello_with};
use super::{Handlers, ProbeClient, ProbeServer};

/// Bytes of the longest frame.
const FRAME_MAX: u64 = 64 << 10;
/// As many such frames as the parts of all buffers of a server.
const PARTS: usize = 16;

/// Longer than a call takes that nothing holds up.
const WAIT: Duration = Duration::from_secs(9);

/// Passes on what comes in either direction, until it is to begin a message of so many bytes, all
/// of which come but the last. Says so to `begun`.
async fn relay(
    to: SocketAddr,
    begin: Arc<Notify>,
    len: u64,
    begun: mpsc::UnboundedSender<()>,
) -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut near_in, mut near_out) = socket.accept().await.unwrap().0.into_split();
        let (mut far_in, mut far_out) = TcpStream::connect(to).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut far_in, &mut near_out).await });
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = tokio::select! {
                read = near_in.read(&mut bytes) => read.unwrap(),
                () = begin.notified() => break,
            };
            far_out.write_all(&bytes[..read]).await.unwrap();
        }
        let mut message = vec![3, 0, 0, 0, 0, 0, 16, 1];
        message.extend_from_slice(&(16 + len).to_le_bytes());
        message.resize(16 + len as usize - 1, 0);
        // A server that ends the connection does not read it to its end.
        let _ = far_out.write_all(&message).await;
        begun.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    address
}

/// A client that has made one call, and then begins a message of so many bytes.
async fn stalled(
    server: SocketAddr,
    len: u64,
    begun: mpsc::UnboundedSender<()>,
) -> (Peer, Endpoint) {
    let begin = Arc::new(Notify::new());
    let to = relay(server, Arc::clone(&begin), len, begun).await;
    let peer = Peer::of(Fabric::open(Hints::new()).unwrap()).unwrap();
    let endpoint = peer.domain.endpoint();
    let endpoint = endpoint.on_refusal(OnRefusal::Continue { limit: 4096 });
    let endpoint = endpoint.open().unwrap();
    endpoint.connect(to).data(hello_with(0)).await.unwrap();
    endpoint.send(frame(1, 0, &[])).await.unwrap();
    let answer = endpoint.recv(vec![0; 256]).into_future();
    let answer = timeout(WAIT, answer).await;
    answer.expect("a call is answered").unwrap();
    begin.notify_one();
    (peer, endpoint)
}

/// Frames that do not come whole are as many as fit all buffers of the server, and others are
/// longer than any frame may be. Who is honest notices nothing.
#[tokio::test]
async fn clients_that_stop_within_a_frame_hold_up_themselves_alone() {
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let honest = ProbeClient::connect(server.local_addr()).await.unwrap();
    let (begun, mut all_begun) = mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for len in [FRAME_MAX, 8 * FRAME_MAX].repeat(PARTS) {
        clients.push(stalled(server.local_addr(), len, begun.clone()).await);
    }
    for _ in &clients {
        let begun = timeout(WAIT, all_begun.recv()).await;
        begun.expect("a server reads what comes").unwrap();
    }
    for number in 0..100 {
        let answered = timeout(WAIT, honest.nothing().into_future()).await;
        answered
            .unwrap_or_else(|_| panic!("call {number} is held up"))
            .unwrap();
    }
    // One connection each of those that stop, and the honest one's; the others have ended.
    while server.stats().connections != PARTS + 1 {
        tokio::task::yield_now().await;
    }
}
