//! Scenarios about connections: private data, rejection, shutdown, a peer that goes away.

use tokio_fabric::{ErrorKind, Event};

use super::session::{Session, await_done, await_message, pattern, post_done, post_receive};

pub async fn data(mut session: Session, initiator: bool) {
    let (request, reply) = (b"hello from client", b"welcome");
    session.begin_with(request).await;
    session.complete_with(request, reply).await;
    session.close(initiator).await;
}

pub async fn data_max(mut session: Session, initiator: bool) {
    let (request, reply) = (pattern(256, 0x01), pattern(256, 0x02));
    session.begin_with(&request).await;
    session.complete_with(&request, &reply).await;
    session.close(initiator).await;
}

pub async fn reject(mut session: Session, initiator: bool) {
    if session.is_listener() {
        let request = session.request(b"first").await;
        request.reject().data(b"no room").send().unwrap();
    } else {
        let to = session.address_of_peer();
        let endpoint = session.begin().await;
        let error = endpoint.connect(to).data(b"first").await.unwrap_err();
        assert_eq!(
            (error.kind(), error.fi_errno()),
            (ErrorKind::ConnectionRefused, 111)
        );
        assert_eq!(error.data(), "no room");
        match session.peer.events.next().await {
            Some(Event::Error(failed)) => {
                assert_eq!(failed.endpoint, Some(endpoint.id()));
                assert_eq!(failed.error.fi_errno(), 111);
                assert_eq!(failed.data, "no room");
            }
            other => panic!("{other:?} instead of an error event"),
        }
    }
    session.begin_with(b"again").await;
    session.complete_with(b"again", b"come in").await;
    session.close(initiator).await;
}

pub async fn shutdown(mut session: Session, initiator: bool) {
    let endpoint = session.begin().await;
    let done = post_done(&endpoint);
    let left = [post_receive(&endpoint, 64), post_receive(&endpoint, 64)];
    session.complete().await;
    if initiator {
        session.send_done().await;
        await_done(done).await;
        endpoint.shutdown().await.unwrap();
    } else {
        await_done(done).await;
        session.send_done().await;
    }
    session.shutdown_seen().await;
    for receive in left {
        let (error, buffer) = receive.await.unwrap_err().into_parts();
        // The side that did not close gets the peer's close as the reason.
        let due = if initiator {
            ErrorKind::Canceled
        } else {
            ErrorKind::PeerClosed
        };
        assert_eq!(error.kind(), due);
        assert_eq!(buffer.unwrap(), [0xEE; 64]);
    }
}

/// Our end as the one that stays while the other goes away.
pub async fn left_behind(mut session: Session) {
    let endpoint = session.begin().await;
    let receive = post_receive(&endpoint, 64);
    session.complete().await;
    endpoint.send("go").await.unwrap();
    let send = endpoint
        .send(pattern(1000, 0xB1))
        .delivery_complete()
        .post()
        .unwrap();
    session.shutdown_seen().await;
    let error = receive.await.unwrap_err().into_error();
    assert!(error.is_connection_lost(), "{error}");
    // libfabric acknowledges nothing that it has no receive for.
    let (error, buffer) = send.await.unwrap_err().into_parts();
    assert!(error.is_connection_lost(), "{error}");
    assert_eq!(buffer.unwrap(), pattern(1000, 0xB1));
}

/// Our end as the one that goes away, in a process of its own. Returns, with everything
/// open, when it is to go.
pub async fn going_away(mut session: Session) -> Session {
    let endpoint = session.begin().await;
    let go = post_receive(&endpoint, 4);
    session.complete().await;
    println!("READY");
    await_message("go", go, b"go", None).await;
    // The 1000 bytes come after it, and there is no receive for them.
    while endpoint.unexpected_bytes() < 1000 {
        tokio::task::yield_now().await;
    }
    session
}
