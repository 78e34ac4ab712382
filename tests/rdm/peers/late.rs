//! Endpoints whose process stands still while they connect.

use std::time::Duration;

use futures::future::join;
use tokio::time::sleep;
use tokio_fabric::testing::{Net, Node, Peer};
use tokio_fabric::{RdmEndpoint, av::FabricAddr};

const STEP: Duration = Duration::from_millis(50);
/// On the way to the other node.
const LATENCY: Duration = Duration::from_millis(300);
/// Longer than an unproven request may hold up an operation, and too short for liveness.
const STANDSTILL: Duration = Duration::from_millis(2_400);

fn open(node: &Node) -> (Peer, RdmEndpoint) {
    let peer = node.peer().unwrap();
    let builder = peer.domain.rdm_endpoint();
    let endpoint = builder.listen_at(([127, 0, 0, 1], 700).into()).open();
    (peer, endpoint.unwrap())
}

async fn exchange(endpoint: &RdmEndpoint, other: FabricAddr) {
    let send = endpoint.send("hello", other).delivery_complete();
    let receive = endpoint.recv(vec![0u8; 8]);
    let (sent, received) = join(send.into_future(), receive.into_future()).await;
    sent.unwrap();
    assert_eq!(received.unwrap().0.len, 5);
}

/// Both sides send at once, and the one that accepts the other's request, or both, stand still for
/// longer than a peer has to prove itself, from any moment on: the peer, which may count as
/// connected and have sent, is not given up when time goes on.
#[tokio::test(start_paused = true)]
async fn who_stands_still_while_it_connects_loses_nothing() {
    for begin in (0..40).map(|step| STEP * step) {
        for who in [&["first"][..], &["first", "second"]] {
            let net = Net::new(7);
            let (first, second) = (net.node("first"), net.node("second"));
            net.link("first", "second").latency(LATENCY);
            let ((_first, x), (_second, y)) = (open(&first), open(&second));
            assert!(x.local_addr() < y.local_addr(), "it accepts");
            let to_y = x.insert(y.local_addr()).unwrap();
            let to_x = y.insert(x.local_addr()).unwrap();
            let standstill = async {
                sleep(begin).await;
                who.iter().for_each(|node| net.hang(node));
                sleep(STANDSTILL).await;
                who.iter().for_each(|node| net.resume(node));
            };
            let exchanged = join(exchange(&x, to_y), exchange(&y, to_x));
            eprintln!("{who:?} from {begin:?} on");
            join(standstill, exchanged).await;
        }
    }
}
