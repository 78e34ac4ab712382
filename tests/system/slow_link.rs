//! Over a slow link the bytes of a large payload stay in the socket for a while, since few of them
//! are not worth a wake-up. Nothing that judges the peer may take that for its silence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_fabric::limits::FLUSH_TIMEOUT;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Backend, Endpoint, ErrorKind, LocalPath, ep::Liveness, op::Op, op::Received};

use crate::common::peers::{listener, open_region, request};
use crate::common::run_at_once;
use crate::common::ticks::Ticks;

const LEN: usize = 8 << 20;
const TICK: Duration = Duration::from_millis(20);

/// Passes on this many bytes per [`TICK`] to the side that connected, and everything to the other.
#[derive(Clone)]
struct Link(Arc<AtomicUsize>);

impl Link {
    const FAST: usize = usize::MAX;
    /// In the times that tests wait, less of a payload of [`LEN`] comes than is worth a wake-up.
    const SLOW: usize = 500;

    async fn to(target: SocketAddr) -> (Link, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let link = Link(Arc::new(AtomicUsize::new(Self::FAST)));
        let paced = link.clone();
        tokio::spawn(async move {
            let (mut near, mut from_near) = listener.accept().await.unwrap().0.into_split();
            let far = TcpStream::connect(target).await.unwrap();
            let (mut from_far, mut to_far) = far.into_split();
            let forth = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut near, &mut to_far).await;
                let _ = to_far.shutdown().await;
            });
            let mut bytes = vec![0; 64 << 10];
            loop {
                let per_tick = paced.0.load(Ordering::Relaxed);
                if per_tick != Self::FAST {
                    tokio::time::sleep(TICK).await;
                }
                if per_tick == 0 {
                    continue;
                }
                let most = per_tick.min(bytes.len());
                match from_far.read(&mut bytes[..most]).await {
                    Ok(len @ 1..) if from_near.write_all(&bytes[..len]).await.is_ok() => {}
                    _ => break,
                }
            }
            let _ = from_near.shutdown().await;
            let _ = forth.await;
        });
        (link, address)
    }

    fn set(&self, per_tick: usize) {
        self.0.store(per_tick, Ordering::Relaxed);
    }
}

/// Runs the test over sockets, plain and with TLS.
fn on_slow_links<T: Future<Output = ()>>(test: impl Fn(Net) -> T + Sync) {
    // Through the link, and not around it.
    let plain = Net::on(Backend::Epoll).local_path(LocalPath::Off);
    #[cfg(feature = "tls")]
    let nets = vec![
        plain,
        Net::on(Backend::Epoll).tls(crate::common::tls::Node::new().config()),
    ];
    #[cfg(not(feature = "tls"))]
    let nets = vec![plain];
    run_at_once(nets, test);
}

/// The end that connects over the link, and the end that accepts, which judges no peer.
async fn connected(net: &Net, liveness: Liveness) -> (Link, [Peer; 2], [Endpoint; 2]) {
    let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
    let (listener, requests) = listener(&b);
    let (link, address) = Link::to(listener.local_addr()).await;
    let x = a.domain.endpoint().event_queue(&a.events);
    let x = x.liveness(liveness).open().unwrap();
    let y = b.domain.endpoint().event_queue(&b.events);
    let y = y.liveness(Liveness::OFF).open().unwrap();
    let accepting = async { y.accept(request(&requests).await).await };
    let (connected, accepted) = tokio::join!(x.connect(address), accepting);
    connected.unwrap();
    accepted.unwrap();
    (link, [a, b], [x, y])
}

/// 1.2 s until a peer is dead.
fn quick() -> Liveness {
    let interval = Duration::from_millis(200);
    let quick = Liveness::default().interval(interval).rounds(4);
    quick.idle_interval(interval)
}

/// Waits until the first bytes of a payload have come.
async fn has_begun(x: &Endpoint, before: u64) {
    while x.stats().bytes_received == before {
        tokio::time::sleep(TICK).await;
    }
}

/// A message of [`LEN`] bytes to `x` over the link, which is slow from now on: its receive and its
/// send, once its first bytes have come.
async fn begun(link: &Link, [x, y]: &[Endpoint; 2]) -> (Op<Vec<u8>, Received>, Op<Vec<u8>>) {
    let receive = x.recv(vec![0; LEN]).post().unwrap();
    let before = x.stats().bytes_received;
    link.set(Link::SLOW);
    let send = y.send(vec![7; LEN]).post().unwrap();
    has_begun(x, before).await;
    (receive, send)
}

/// `EndpointBuilder::liveness`: a peer whose payload comes slowly is no dead one.
#[test]
fn a_payload_over_a_slow_link_is_a_sign_of_life() {
    on_slow_links(|net| async move {
        let (link, _peers, ends) = connected(&net, quick()).await;
        let (receive, send) = begun(&link, &ends).await;
        let x = &ends[0];
        let begun = x.stats().bytes_received;
        tokio::time::sleep(quick().found_within().unwrap() * 5 / 2).await;
        let read = x.stats().bytes_received - begun;
        assert!(read < 32 << 10, "{read} bytes are no reason to wake");
        assert!(x.is_connected());
        link.set(Link::FAST);
        assert!(receive.await.unwrap().1 == vec![7; LEN]);
        send.await.unwrap();
    });
}

/// `Liveness::found_within`: one that falls silent within a payload is found as soon as any.
#[test]
fn a_peer_that_falls_silent_within_a_payload_is_found_in_time() {
    on_slow_links(|net| async move {
        let (link, _peers, ends) = connected(&net, quick()).await;
        let (receive, send) = begun(&link, &ends).await;
        let x = &ends[0];
        tokio::time::sleep(quick().found_within().unwrap()).await;
        assert!(x.is_connected());
        link.set(0);
        let ticks = Ticks::start();
        let failed = receive.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
        let (took, limit) = (ticks.elapsed(), quick().found_within().unwrap());
        assert!(took < limit + Duration::from_secs(3), "after {took:?}");
        drop(send);
    });
}

/// `limits::FLUSH_TIMEOUT`: "How long a graceful close waits without any progress": bytes of what is
/// read are progress, however slowly they come.
#[test]
fn a_close_waits_for_a_read_over_a_slow_link() {
    on_slow_links(|net| async move {
        let (link, peers, [x, _y]) = connected(&net, Liveness::OFF).await;
        let region = open_region(&peers[1], vec![5; LEN]).await;
        let before = x.stats().bytes_received;
        link.set(Link::SLOW);
        let read = x.read(vec![0; LEN], region.remote()).post().unwrap();
        has_begun(&x, before).await;
        let closing = x.shutdown().into_future();
        let faster = async {
            tokio::time::sleep(FLUSH_TIMEOUT + 2 * Duration::from_secs(1)).await;
            link.set(Link::FAST);
        };
        let (closed, ()) = tokio::join!(closing, faster);
        closed.unwrap();
        assert!(read.await.unwrap().1 == vec![5; LEN]);
    });
}
