//! Accepting, and crowds that ask to be accepted.

use crate::common::on_every_backend;
use crate::common::peers::{any, listening, request};
use futures::FutureExt;
use futures::future::Either;
use tokio_fabric::{Driver, ErrorKind, Event, UserContext};

/// fi_domain(3): "make forward progress on an asynchronous operation without further intervention
/// by the application." An acceptance that has begun needs no look at its future.
#[test]
fn accepting_goes_on_while_its_future_is_not_polled() {
    on_every_backend(|net| async move {
        for driver in [Driver::Task, Driver::Thread] {
            let net = net.clone().driver(driver);
            let (a, b, listener, requests) = listening(&net);
            let x = a.domain.endpoint().open().unwrap();
            let connecting = x.connect(listener.local_addr()).into_future();
            let y = b.domain.endpoint().open().unwrap();
            let accepting = y
                .accept(request(&requests).await)
                .data(b"yes")
                .into_future();
            assert_eq!(connecting.await.unwrap(), "yes");
            let event = b.events.next().await;
            assert!(matches!(event, Some(Event::Connected { .. })), "{event:?}");
            assert!(accepting.await.unwrap().is_connected());
        }
    });
}

/// "Dropping the future does not withdraw the acceptance": its peer connects each time, whenever
/// the future is dropped. An endpoint of which there is a handle stays connected; another closes
/// then. What was not begun is rejected.
#[test]
fn a_dropped_future_of_an_acceptance_withdraws_nothing() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        for polled in [false, true] {
            for is_kept in [true, false] {
                let x = a.domain.endpoint().open().unwrap();
                let connecting = x.connect(listener.local_addr()).into_future();
                let asked = request(&requests).await;
                let kept = is_kept.then(|| b.domain.endpoint().open().unwrap());
                let mut accepting = match &kept {
                    Some(y) => y.accept(asked).context(7u64).into_future(),
                    None => asked.accept(&b.domain).into_future(),
                };
                if polled {
                    // It may have connected by now.
                    let _ = (&mut accepting).now_or_never();
                }
                drop(accepting);
                connecting.await.unwrap();
                if let Some(y) = kept {
                    // Behind what those report that nothing has a handle of.
                    while !matches!(
                        b.events.next().await.expect("it is open"),
                        Event::Connected {
                            context: Some(UserContext(7)),
                            ..
                        }
                    ) {}
                    y.send("hello").await.unwrap();
                    x.recv(vec![0; 8]).await.unwrap();
                    y.shutdown().await.unwrap();
                    let _ = b.events.next().await;
                } else {
                    let end = x.recv(vec![0; 8]).await.unwrap_err();
                    assert_eq!(end.kind(), ErrorKind::PeerClosed, "{end}");
                }
            }
        }
        let x = a.domain.endpoint().open().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        drop(request(&requests).await.accept(&b.domain));
        let refused = connecting.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// An endpoint that accepts is in use, and what cannot be accepted says so; its request is rejected
/// then.
#[test]
fn an_endpoint_accepts_one_request_at_a_time() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let y = b.domain.endpoint().open().unwrap();
        let [first, second] = [(); 2].map(|()| a.domain.endpoint().open().unwrap());
        let first = first.connect(listener.local_addr()).into_future();
        let accepting = y.accept(request(&requests).await).into_future();
        let second = second.connect(listener.local_addr()).into_future();
        let again = y.accept(request(&requests).await).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyConnected);
        let elsewhere = y.connect(listener.local_addr()).await.unwrap_err();
        assert_eq!(elsewhere.kind(), ErrorKind::AlreadyConnected);
        let refused = second.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        futures::future::try_join(first, accepting).await.unwrap();
    });
}

/// A crowd that connects at once is no attack: those that are too many wait in the backlog, those
/// that are rejected read why, and none is closed.
#[test]
fn more_clients_at_once_than_may_be_half_open_are_all_answered() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().open().unwrap();
        let builder = b.fabric.passive_endpoint(&requests).half_open_max(2);
        let listener = builder.listen_at(any()).unwrap();
        const CROWD: u8 = 40;
        let connecting = (0..CROWD).map(|number| {
            let endpoint = a.domain.endpoint().open().unwrap();
            let connecting = endpoint.connect(listener.local_addr()).data([number]);
            let connecting = connecting.into_future();
            async move { connecting.await.map(|_| endpoint) }
        });
        let connecting = futures::future::join_all(connecting);
        let answering = async {
            let mut accepted = Vec::new();
            loop {
                let asked = request(&requests).await;
                match asked.data()[0] % 4 {
                    0 => asked.reject().data(b"no room").send().unwrap(),
                    _ => accepted.push(asked.accept(&b.domain).into_future()),
                }
            }
        };
        let both = futures::future::select(Box::pin(connecting), Box::pin(answering));
        let Either::Left((connected, _answering)) = both.await;
        for (number, result) in connected.into_iter().enumerate() {
            match (number % 4, result) {
                (0, Err(error)) => assert_eq!(error.data(), "no room", "{error}"),
                (_, result) => assert!(result.unwrap().is_connected()),
            }
        }
        let stats = listener.stats();
        assert_eq!((stats.evicted, stats.timed_out), (0, 0));
    });
}
