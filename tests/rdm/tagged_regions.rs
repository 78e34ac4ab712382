//! Registered memory in tagged messages (`fi_mr(3)`, `fi_tagged(3)`).

use crate::common::on_every_backend;
use tokio_fabric::{Access, ErrorKind};

/// fi_mr(3): "This includes fi_msg and fi_tagged send operations."
/// fi_mr(3): "This includes fi_msg and fi_tagged receive operations."
#[test]
fn the_rights_to_send_and_receive_hold_for_tagged_messages_too() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for granted in [Access::SEND, Access::RECV, Access::SEND | Access::RECV] {
            let registered = |domain: &tokio_fabric::Domain, byte| {
                let register = domain.register(vec![byte; 4]).access(granted);
                register.now().unwrap()
            };
            let from = registered(&a.peer.domain, 7u8);
            let into = registered(&b.peer.domain, 0u8);
            let (from, into) = (|| from.slice(..).unwrap(), || into.slice(..).unwrap());
            let refused = |right: Access, kind: Option<ErrorKind>| {
                let expected = (!granted.contains(right)).then_some(ErrorKind::AccessDenied);
                assert_eq!(kind, expected, "{right:?} of {granted:?}");
            };

            let tagged = b.endpoint.recv_tagged(into(), 5).post();
            let tagged = tagged.map_err(|failed| failed.kind());
            refused(Access::RECV, tagged.as_ref().err().copied());
            let message = b.endpoint.recv(into()).post();
            let message = message.map_err(|failed| failed.kind());
            refused(Access::RECV, message.as_ref().err().copied());

            let sent = a.endpoint.send_tagged(from(), a.other, 5).await;
            refused(Access::SEND, sent.err().map(|failed| failed.kind()));
            let sent = a.endpoint.send(from(), a.other).await;
            refused(Access::SEND, sent.err().map(|failed| failed.kind()));

            for receive in [tagged, message].into_iter().flatten() {
                if granted.contains(Access::SEND) {
                    let (received, slice) = receive.await.unwrap();
                    assert_eq!((received.len, slice.to_vec().unwrap()), (4, vec![7; 4]));
                }
            }
            if !granted.contains(Access::RECV) {
                // What was sent is taken, so that the next round finds nothing of it.
                b.endpoint.recv_tagged(vec![0u8; 4], 5).await.unwrap();
                b.endpoint.recv(vec![0u8; 4]).await.unwrap();
            }
        }
    });
}

/// fi_mr(3): "as well as buffers posted for receive and tagged receive operations."
#[test]
fn buffers_of_tagged_messages_need_no_registration() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let receive = b.endpoint.recv(vec![0u8; 4]).post().unwrap();
        let tagged = b.endpoint.recv_tagged(vec![0u8; 4], 5).post().unwrap();
        a.endpoint.send(vec![1u8; 4], a.other).await.unwrap();
        let send = a.endpoint.send_tagged(vec![2u8; 4], a.other, 5);
        send.await.unwrap();
        assert_eq!(receive.await.unwrap().1, [1; 4]);
        assert_eq!(tagged.await.unwrap().1, [2; 4]);
    });
}
