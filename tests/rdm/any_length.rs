//! Messages of unknown length: received as they are (`FI_VARIABLE_MSG` of fi_msg(3)), or
//! looked at, claimed or dropped before there is a buffer for them.

use crate::common::on_every_backend;
use tokio_fabric::{CompletionQueue, ErrorKind, UserContext, cq::CompletionFlags};

const UNTAGGED: CompletionFlags = CompletionFlags::RECV.union(CompletionFlags::MSG);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7) as u8).collect()
}

/// fi_msg(3): "Variable length messages, or simply variable messages, are transfers where the size
/// of the message is unknown to the receiver prior to the message being sent."
/// fi_tagged(3): `FI_VARIABLE_MSG`, tagged messages of variable length; "FI_BUFFERED_RECV"
#[test]
fn messages_of_any_length_are_received_from_any_peer() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        for len in [0, 64, 5_000, 70_000, 3 << 20] {
            let send = x.send(pattern(len), a.other).post().unwrap();
            let (received, bytes) = y.recv_any(4 << 20).from(b.other).await.unwrap();
            assert_eq!((received.len, received.source), (len, Some(b.other)));
            assert!(bytes == pattern(len));
            send.await.unwrap();

            let receive = y.recv_any_tagged(5, 4 << 20).ignore(2).post().unwrap();
            x.send_tagged(pattern(len), a.other, 7).await.unwrap();
            let (received, bytes) = receive.await.unwrap();
            assert_eq!((received.len, received.tag), (len, Some(7)));
            assert!(bytes == pattern(len));
        }
        let send = x.send(pattern(200_000), a.other).post().unwrap();
        let failed = y.recv_any(100).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Truncated);
        assert_eq!(failed.into_parts().1.unwrap(), pattern(200_000)[..100]);
        send.await.unwrap();
    });
}

/// Waits until a message is there to be looked at.
async fn arrived(look: impl Fn() -> tokio_fabric::Result<tokio_fabric::op::MessageInfo>) -> u64 {
    loop {
        match look() {
            Ok(found) => return found.len,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoMessage),
        }
        tokio::task::yield_now().await;
    }
}

/// fi_msg(3): "After being notified that a buffered receive has arrived, applications must either
/// claim or discard the message."
/// fi_msg(3): "To claim a message, an application must post a receive operation with the FI_CLAIM
/// flag set."
/// fi_msg(3): `FI_CLAIM` and `FI_DISCARD`, flags of fi_recvmsg
#[test]
fn untagged_messages_are_looked_at_claimed_and_discarded() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (x, y) = (&a.endpoint, &b.endpoint);
        assert_eq!(y.peek().await.unwrap_err().kind(), ErrorKind::NoMessage);
        // The last is announced.
        let lens = [10, 2_000, 300_000];
        let sends = lens.map(|len| {
            x.send(pattern(len), a.other)
                .imm(len as u64)
                .post()
                .unwrap()
        });
        x.send_tagged("of another kind", a.other, 1).await.unwrap();

        assert_eq!(arrived(|| y.peek().now()).await, 10);
        let found = y.peek().from(b.other).await.unwrap();
        assert_eq!((found.len, found.tag, found.data), (10, None, Some(10)));
        assert_eq!(found.source, Some(b.other));
        y.peek().queue(9_u64).unwrap();
        let told = next(y.receive_queue()).await;
        assert_eq!((told.len, told.context), (10, UserContext(9)));
        assert_eq!(told.flags, UNTAGGED | CompletionFlags::REMOTE_CQ_DATA);

        let claimed = y.peek().claim().unwrap();
        assert_eq!(claimed.info().len, 10);
        assert_eq!(
            arrived(|| y.peek().now()).await,
            2_000,
            "the claimed one is kept apart"
        );
        drop(claimed);
        assert_eq!(
            y.peek().discard().unwrap().len,
            10,
            "given up, it is the first again"
        );
        let claimed = y.peek().claim().unwrap();
        assert_eq!(arrived(|| y.peek().now()).await, 300_000);
        let large = y.peek().claim().unwrap();
        large.discard();
        claimed.recv_any(1 << 20).queue(3_u64).await.unwrap();
        let mut told = next(y.receive_queue()).await;
        assert_eq!((told.len, told.data), (2_000, Some(2_000)));
        assert!(told.flags.contains(UNTAGGED | CompletionFlags::CLAIM));
        assert!(told.take_buffer().unwrap()[..] == pattern(2_000));
        for send in sends {
            send.await.unwrap();
        }
        assert_eq!(y.peek().await.unwrap_err().kind(), ErrorKind::NoMessage);
        assert_eq!(y.recv_tagged(vec![0; 32], 1).await.unwrap().0.len, 15);
    });
}

async fn next(queue: &CompletionQueue) -> tokio_fabric::Completion {
    let told = queue.next().await.unwrap();
    told.result.as_ref().unwrap();
    told
}
