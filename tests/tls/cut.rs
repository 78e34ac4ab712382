//! A connection that ends at each of its records, from the first of the handshake to the last of a
//! transfer.

use std::time::Duration;

use futures::future::join3;
use tokio_fabric::testing::Net;
use tokio_fabric::tls::TlsConfig;
use tokio_fabric::{Backend, Error, ErrorKind, Event};

use crate::certificates::Authority;
use crate::common::on;
use crate::common::peers::{listener, open_region, read, request, write};
use crate::relay::Relay;
use crate::sessions::peer;

/// What takes longer than this does not end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whatever is outstanding ends, with an error that says that the connection is lost; what has
/// succeeded has taken effect; and the listener accepts the next connection.
#[test]
fn a_connection_may_end_at_any_record() {
    let tls = Authority::new().config();
    on(Backend::Epoll, move |net| {
        let tls = tls.clone();
        async move {
            let mut cut = 0;
            while !tokio::time::timeout(PATIENCE, passes(&net, &tls, cut))
                .await
                .unwrap_or_else(|_| panic!("cut after {cut} records: something does not end"))
            {
                cut += 1;
            }
            assert!(
                cut > 20,
                "a handshake and a transfer are more than {cut} records"
            );
        }
    });
}

/// Does everything over a connection that is cut after this many records. True if it was not cut
/// before everything was done.
async fn passes(net: &Net, tls: &TlsConfig, records: usize) -> bool {
    let (a, b) = (peer(net, tls), peer(net, tls));
    let (listener, requests) = listener(&b);
    let mut left = records;
    let relay = Relay::changing(listener.local_addr(), move |_, record| {
        left = left.checked_sub(1)?;
        Some(record)
    });
    let relay = relay.await;
    let [x, y, z] = [&a, &b, &b].map(|peer| {
        let endpoint = peer.domain.endpoint();
        endpoint.event_queue(&peer.events).open().unwrap()
    });
    let mut accepting = Box::pin(async { y.accept(request(&requests).await).await });
    let connecting = x.connect(relay.address).into_future();
    let mut accepted = None;
    let connected = tokio::select! {
        biased;
        connected = connecting => connected,
        // It may end after the request has come.
        never = async {
            accepted = Some((&mut accepting).await);
            std::future::pending().await
        } => never,
    };
    if let Err(error) = connected {
        assert!(is_loss(&error), "{records}: {error}");
        drop(accepting);
        // The listener is none the worse for it.
        let again = a.domain.endpoint().open().unwrap();
        let serving = async {
            loop {
                // What the lost connection asked for may come first.
                if z.accept(request(&requests).await).await.is_ok() {
                    return;
                }
            }
        };
        let again = again.connect(listener.local_addr()).into_future();
        let (again, ()) = futures::future::join(again, serving).await;
        again.unwrap();
        return false;
    }
    let accepted = match accepted {
        Some(accepted) => accepted,
        None => accepting.await,
    };
    let region = open_region(&b, vec![1u8; 100_000]).await;
    let received = async {
        match &accepted {
            Ok(_) => Some(y.recv(vec![0; 70_000]).await.map(|(_, bytes)| bytes)),
            // Its receives wait for another connection.
            Err(_) => None,
        }
    };
    let sent = x.send(vec![7; 70_000]).delivery_complete().into_future();
    let written = write(&x, region.remote(), 9);
    let (sent, received, written) = join3(sent, received, written).await;
    let read = read(&x, region.remote()).await;
    if let Some(Ok(bytes)) = &received {
        assert!(*bytes == [7; 70_000], "{records}");
    }
    if let Ok(bytes) = &read {
        assert!(*bytes == [9; 100_000], "{records}");
    }
    assert!(
        sent.is_err() || matches!(received, Some(Ok(_))),
        "{records}: sent, and not received"
    );
    let errors: Vec<Error> = [
        accepted.err(),
        sent.err().map(Error::from),
        received.and_then(Result::err).map(Error::from),
        written.err(),
        read.err(),
    ]
    .into_iter()
    .flatten()
    .collect();
    for error in &errors {
        assert!(is_loss(error), "{records}: {error}");
    }
    if errors.is_empty() {
        return true;
    }
    // One event says so.
    loop {
        if let Some(Event::Shutdown { error, .. }) = a.events.next().await {
            let error = error.expect("no graceful end");
            assert!(is_loss(&error), "{records}: {error}");
            return false;
        }
    }
}

fn is_loss(error: &Error) -> bool {
    error.is_connection_lost() || error.kind() == ErrorKind::PeerClosed
}
