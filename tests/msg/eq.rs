//! Event queues with real events in them (`fi_eq(3)`, rulings 6 to 9).

use crate::common::on_every_backend;
use crate::common::peers::{any, listener, listening, request};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio_fabric::testing::{connect, connect_endpoints};
use tokio_fabric::{ErrorKind, Event, UserContext};

fn code(event: Option<Event>) -> u32 {
    match event {
        Some(Event::User { code, .. }) => code,
        other => panic!("{other:?} instead of an event of ours"),
    }
}

/// Ruling 6: "`EventQueue: Stream<Item = Event>`": one connection's life as a stream, contexts
/// included, with the application's own event in line.
#[test]
fn a_connections_life_is_a_stream() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let mut events = a.fabric.event_queue().writable().open().unwrap();
        let x = a
            .domain
            .endpoint()
            .event_queue(&events)
            .context(1u64)
            .open()
            .unwrap();
        let (listener, requests) = listener(&b);
        let connecting = x.connect(listener.local_addr()).context(2u64).into_future();
        let accepting = request(&requests)
            .await
            .accept(&b.domain)
            .data("yes")
            .into_future();
        let (_, y) = futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
        events.write(9, Bytes::from_static(b"mine")).unwrap();
        let peeked = events.peek(|event| matches!(event, Event::Connected { .. }));
        assert_eq!((peeked, events.len()), (Some(true), 2));
        match StreamExt::next(&mut events).await {
            Some(Event::Connected {
                endpoint,
                context,
                data,
                ..
            }) => {
                assert_eq!((endpoint, context), (x.id(), Some(UserContext(2))));
                assert_eq!(&data[..], b"yes");
            }
            other => panic!("{other:?} instead of Connected"),
        }
        assert_eq!(code(events.try_next()), 9);
        drop(y);
        match StreamExt::next(&mut events).await {
            Some(Event::Shutdown {
                endpoint, context, ..
            }) => {
                assert_eq!((endpoint, context), (x.id(), Some(UserContext(1))));
            }
            other => panic!("{other:?} instead of Shutdown"),
        }
        drop(x);
        assert!(
            events.next().now_or_never().is_none(),
            "Shutdown comes once and last"
        );
        events.close().await.unwrap();
        assert!(StreamExt::next(&mut events).await.is_none());
    });
}

/// Ruling 8: "A listener without a free slot stops accepting. No event is lost": ten peers, one
/// slot.
#[test]
fn a_full_queue_stops_the_listener_and_loses_nothing() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().size(1).writable().open().unwrap();
        let listener = b
            .fabric
            .passive_endpoint(&requests)
            .listen_at(any())
            .unwrap();
        requests.write(1, Bytes::new()).unwrap();
        let connecting: Vec<_> = (0..10u8)
            .map(|number| {
                let x = a.domain.endpoint().open().unwrap();
                let connect = x
                    .connect(listener.local_addr())
                    .data([number])
                    .into_future();
                tokio::spawn(async move { (number, connect.await, x) })
            })
            .collect();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!((requests.len(), code(requests.next().await)), (1, 1));
        let mut seen = Vec::new();
        let mut held = Vec::new();
        for _ in 0..10 {
            let asked = request(&requests).await;
            seen.push(asked.data()[0]);
            let answer = asked.data().clone();
            held.push(asked.accept(&b.domain).data(answer).await.unwrap());
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..10));
        for task in connecting {
            let (number, answer, _x) = task.await.unwrap();
            assert_eq!(&answer.unwrap()[..], [number]);
        }
    });
}

/// Ruling 9: "`Connected` precedes every completion of its endpoint; `Shutdown` is reported once,
/// after all of them."
#[test]
fn connected_comes_first_and_shutdown_last() {
    on_every_backend(|net| async move {
        for cut in [false, true] {
            let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
            let queue = b.domain.completion_queue().open().unwrap();
            let y = b.domain.endpoint().completion_queue(&queue).open().unwrap();
            for number in 0..4u64 {
                y.recv(vec![0u8; 8]).queue(number).try_post().unwrap();
            }
            let x = a.domain.endpoint().open().unwrap();
            let first = {
                let queue = queue.clone();
                let events = b.events.clone();
                tokio::spawn(async move {
                    let completion = queue.next().await.unwrap();
                    // With the completion, Connected is in the event queue already.
                    (
                        completion.context,
                        matches!(events.try_next(), Some(Event::Connected { .. })),
                    )
                })
            };
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            x.send("first").await.unwrap();
            assert_eq!(first.await.unwrap(), (UserContext(0), true));
            let futures: Vec<_> = (0..3)
                .map(|_| y.recv(vec![0u8; 8]).post().unwrap())
                .collect();
            if cut {
                drop(x);
            } else {
                let y = y.clone();
                tokio::spawn(async move { y.shutdown().await.unwrap() });
            }
            match b.events.next().await {
                Some(Event::Shutdown { endpoint, .. }) => assert_eq!(endpoint, y.id()),
                other => panic!("{other:?} instead of Shutdown"),
            }
            // All of it has ended by now, in the queue and in futures.
            assert_eq!(queue.len(), 3);
            let kind = if cut {
                ErrorKind::PeerClosed
            } else {
                ErrorKind::Canceled
            };
            for number in 1..4u64 {
                let mut completion = queue.try_next().unwrap();
                assert_eq!(completion.context, UserContext(number));
                assert_eq!(completion.result.as_ref().unwrap_err().error.kind(), kind);
                assert_eq!(completion.take_buffer().map(|buffer| buffer.len()), Some(8));
            }
            for future in futures {
                let ended = future.now_or_never().expect("ended before Shutdown");
                assert_eq!(ended.unwrap_err().kind(), kind);
            }
            drop(y);
            tokio::task::yield_now().await;
            assert!(b.events.is_empty());
        }
    });
}

/// fi_eq(3), err_data: what a peer gave to its reject comes with the error event.
/// fi_domain(3): "The maximum amount of error data, in bytes, that may be returned as part of a
/// completion or event queue error."
/// fi_domain(3): "This value corresponds to the err_data_size field in struct fi_cq_err_entry and
/// struct fi_eq_err_entry."
/// fi_domain(3): `fi_eq_err_entry.err_data_size`, structure field.
#[test]
fn error_events_carry_the_peers_words() {
    on_every_backend(|net| async move {
        let (a, _b, listener, requests) = listening(&net);
        for words in [&b""[..], b"no", &[5; 256]] {
            let x = a.domain.endpoint().open().unwrap();
            drop(x.connect(listener.local_addr()).context(6u64).into_future());
            request(&requests)
                .await
                .reject()
                .data(words)
                .send()
                .unwrap();
            match a.events.next().await {
                Some(Event::Error(failed)) => {
                    assert_eq!(failed.error.kind(), ErrorKind::ConnectionRefused);
                    assert_eq!(
                        (failed.endpoint, failed.context),
                        (Some(x.id()), Some(UserContext(6)))
                    );
                    assert_eq!((&failed.data[..], &failed.error.data()[..]), (words, words));
                    assert!(failed.data.len() <= a.domain.info().domain.max_err_data);
                }
                other => panic!("{other:?} instead of the error"),
            }
        }
        assert_eq!(a.domain.info().domain.max_err_data, 256);
        assert!(a.events.is_empty());
    });
}

/// Several tasks read one queue: each event goes to one of them, none is lost when some give up.
#[test]
fn several_readers_share_a_queue() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let events = peer.fabric.event_queue().size(8).writable().open().unwrap();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let events = events.clone();
                tokio::spawn(async move {
                    let mut seen = Vec::new();
                    loop {
                        // Giving up now and then loses nothing.
                        if let Some(event) = events.next().now_or_never() {
                            seen.extend(event.map(|event| code(Some(event))));
                        }
                        match events.next().await {
                            Some(event) => seen.push(code(Some(event))),
                            None => return seen,
                        }
                    }
                })
            })
            .collect();
        for number in 0..500 {
            while let Err(full) = events.write(number, Bytes::new()) {
                assert_eq!(full.kind(), ErrorKind::Again);
                tokio::task::yield_now().await;
            }
        }
        while !events.is_empty() {
            tokio::task::yield_now().await;
        }
        events.close().await.unwrap();
        let mut seen = Vec::new();
        for reader in readers {
            seen.extend(reader.await.unwrap());
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..500));
    });
}

/// fi_eq(3), fi_close: a queue that endpoints or domains are bound to is busy, and names them.
#[test]
fn a_bound_queue_is_busy() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let own = a.fabric.event_queue().open().unwrap();
        let x = a.domain.endpoint().event_queue(&own).open().unwrap();
        let busy = own.close().await.unwrap_err();
        assert!(
            busy.is_busy() && busy.to_string().contains("EndpointId"),
            "{busy}"
        );
        drop(x);
        let (listener, requests) = listener(&b);
        let busy = requests.close().await.unwrap_err();
        assert!(busy.to_string().contains("passive endpoint"), "{busy}");
        drop(listener);
        requests.close().await.unwrap();
        assert_eq!(b.events.close().await.unwrap_err().kind(), ErrorKind::Busy);
        let (x, _y) = connect(&a, &b).await.unwrap();
        x.send("undisturbed").await.unwrap();
    });
}

/// What was posted before the connection was refused ends with the refusal, its words included.
/// fi_domain(3): `fi_cq_err_entry.err_data_size`, structure field.
/// fi_domain(3): "The maximum amount of error data, in bytes, that may be returned as part of a
/// completion or event queue error."
/// fi_domain(3): "This value corresponds to the err_data_size field in struct fi_cq_err_entry and
/// struct fi_eq_err_entry."
#[test]
fn completions_carry_the_peers_words() {
    on_every_backend(|net| async move {
        let (a, _b, listener, requests) = listening(&net);
        let queue = a.domain.completion_queue().open().unwrap();
        for words in [&b""[..], b"no", &[5; 256]] {
            let x = a.domain.endpoint().completion_queue(&queue).open().unwrap();
            x.recv(vec![0u8; 4]).queue(9u64).await.unwrap();
            drop(x.connect(listener.local_addr()).into_future());
            let request = request(&requests).await;
            request.reject().data(words).send().unwrap();
            let completion = queue.next().await.unwrap();
            assert_eq!(completion.context, UserContext(9));
            let failed = completion.result.unwrap_err().error;
            assert_eq!(failed.kind(), ErrorKind::ConnectionRefused, "{failed}");
            assert_eq!(&failed.data()[..], words);
            assert!(failed.data().len() <= a.domain.info().domain.max_err_data);
        }
    });
}
