//! Credit for messages between endpoints of this library: a receiver that stalls stops its peer's
//! messages and nothing else (`docs/extension.md`, section 6).

use crate::common::on_every_backend;
use tokio_fabric::testing::connect_endpoints;
use tokio_fabric::{Access, Hints, error::Phase, info::MsgOrder};

/// Bytes of unexpected messages that the receiver keeps.
const BUDGET: usize = 10_000;

/// docs/extension.md: "The sender holds back a message that meets neither condition, and all
/// messages behind it, and nothing else: RMA, acknowledgements, probes and their answers are sent."
#[test]
fn a_stalled_receiver_stops_messages_and_never_rma() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().unexpected_bytes(BUDGET).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = b
            .domain
            .register(vec![0; 1 << 20])
            .access(Access::all())
            .await
            .unwrap();
        // Far more than the budget, and one that is larger than all of it.
        let mut sends: Vec<_> = (0..100_u8)
            .map(|at| x.send(vec![at; 1000]).post().unwrap())
            .collect();
        sends.push(x.send(vec![100; 10 * BUDGET]).post().unwrap());
        for round in 0..20_u8 {
            let bytes = vec![round; 1 << 20];
            x.write(bytes, region.remote()).await.unwrap();
            let (_, read) = x.read(vec![0; 1 << 20], region.remote()).await.unwrap();
            assert!(read.iter().all(|byte| *byte == round));
            assert!(y.unexpected_bytes() <= BUDGET);
        }
        assert_eq!(sends[100].phase(), Phase::Queued, "held back here");
        // The other direction is not concerned.
        let back = x.recv(vec![0; 4]).post().unwrap();
        y.send("back").await.unwrap();
        assert_eq!(back.await.unwrap().1, b"back");
        for at in 0..=100_u8 {
            let (received, bytes) = y.recv(vec![0; 10 * BUDGET]).await.unwrap();
            let len = if at == 100 { 10 * BUDGET } else { 1000 };
            assert_eq!(received.len, len);
            assert!(bytes[..len].iter().all(|byte| *byte == at), "in order");
        }
        for send in sends {
            send.await.unwrap();
        }
    });
}

/// fi_endpoint(3): FI_ORDER_WAS, "write after send": kept by who asks for it.
#[test]
fn who_asks_for_writes_after_sends_gets_them() {
    on_every_backend(|net| async move {
        let hints = Hints::new().tx(|tx| tx.msg_order(MsgOrder::WAS));
        let fabric = net.fabric_with(hints).unwrap();
        let domain = fabric.domain().open().unwrap();
        let b = net.peer().unwrap();
        let x = domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let region = b
            .domain
            .register(vec![0; 8])
            .access(Access::all())
            .await
            .unwrap();
        let send = x.send("first").post().unwrap();
        let write = x.write(vec![1; 8], region.remote()).post().unwrap();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(write.phase(), Phase::Queued, "behind the message");
        assert_eq!(y.recv(vec![0; 5]).await.unwrap().1, b"first");
        send.await.unwrap();
        write.await.unwrap();
    });
}

/// Receives that time out over and over take their promises along, and nothing is lost.
#[test]
fn receives_that_give_up_lose_nothing() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().unexpected_bytes(500).open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let sender = tokio::spawn(async move {
            for at in 0..200_u8 {
                x.send(vec![at; 300]).await.unwrap();
                if at % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            x
        });
        let mut next = 0;
        while next < 200 {
            let receive = y.recv(vec![0; 300]);
            let given_up = tokio::task::yield_now();
            tokio::select! {
                biased;
                received = receive.into_future() => {
                    assert_eq!(received.unwrap().1, [next; 300]);
                    next += 1;
                }
                () = given_up => {}
            }
        }
        sender.await.unwrap();
    });
}
