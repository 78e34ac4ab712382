//! Connection management (`fi_cm(3)`).

mod accepting;

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::peers::{any, listener, listening, no_listener, request};
use crate::common::{on, on_every_backend};
use futures::FutureExt;
use tokio_fabric::testing::connect_endpoints;
use tokio_fabric::{Backend, ErrorKind, Event, UserContext, error::OperationKind};

/// Issue: "`Listen: address in use: listening: Address already in use (os error 98)` says one thing
/// three times and not the address; the same for Connect".
#[test]
fn errors_of_listening_and_connecting_say_where_and_what_to_do() {
    on(Backend::Epoll, |net| async move {
        let (a, b, listener, requests) = listening(&net);
        let taken = listener.local_addr();
        let again = b.fabric.passive_endpoint(&requests).listen_at(taken);
        assert_eq!(
            again.unwrap_err().to_string(),
            format!(
                "Listen: address in use: {taken}: another socket has it: close that one, or take \
                 another port (0: any)"
            )
        );
        drop((listener, requests));
        let absent = no_listener();
        let refused = a.domain.endpoint().open().unwrap().connect(absent).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!(
                "Connect: connection refused: no listener at that address: start the peer first, or \
                 check the address (peer {absent})"
            )
        );
    });
}

/// A source address that cannot lead to the peer is refused, not passed over; the endpoint can then
/// connect from another.
#[test]
fn a_source_of_another_ip_version_is_refused() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let x = a.domain.endpoint().open().unwrap();
        let to = listener.local_addr();
        for from in ["[::1]:0", "[::]:0"] {
            let error = x.connect(to).from(from.parse().unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("from"), "{error}");
        }
        let connecting = x.connect(to).from(([127, 0, 0, 1], 0).into());
        let accepting = async { request(&requests).await.accept(&b.domain).await };
        let (connected, _accepted) = tokio::join!(connecting, accepting);
        connected.unwrap();
    });
}

/// fi_cm(3): private data goes along with connect, accept and reject, from nothing to 256 bytes.
#[test]
fn private_data_arrives_whole_both_ways() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        for len in [0, 1, 255, 256] {
            let ask: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let answer: Vec<u8> = ask.iter().rev().map(|byte| !byte).collect();
            let x = a.domain.endpoint().open().unwrap();
            let connecting = x.connect(listener.local_addr()).data(&ask).into_future();
            let asked = request(&requests).await;
            assert_eq!(
                (asked.data(), asked.listener()),
                (&ask.clone().into(), listener.id())
            );
            assert_eq!(asked.local_addr().port(), listener.local_addr().port());
            let accepting = asked.accept(&b.domain).data(&answer).into_future();
            let (got, y) = futures::future::try_join(connecting, accepting)
                .await
                .unwrap();
            assert_eq!(got, answer);
            assert!(x.is_connected() && y.is_connected());
            assert_eq!(
                x.peer_addr().map(|addr| addr.port()),
                y.local_addr().map(|addr| addr.port())
            );
            // And with a rejection.
            let x = a.domain.endpoint().open().unwrap();
            let connecting = x.connect(listener.local_addr()).data(&ask).into_future();
            request(&requests)
                .await
                .reject()
                .data(&answer)
                .send()
                .unwrap();
            let refused = connecting.await.unwrap_err();
            assert_eq!(
                (refused.kind(), refused.fi_errno()),
                (ErrorKind::ConnectionRefused, 111)
            );
            assert_eq!(refused.data(), &answer);
            assert_eq!(refused.operation(), Some(OperationKind::Connect));
        }
    });
}

/// Limit: 257 bytes of private data are refused in all three places.
#[test]
fn too_much_private_data_is_refused() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let much = [7u8; 257];
        let x = a.domain.endpoint().open().unwrap();
        let refused = x
            .connect(listener.local_addr())
            .data(much)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        // The endpoint is as it was.
        let connecting = x.connect(listener.local_addr()).into_future();
        let refused = request(&requests)
            .await
            .accept(&b.domain)
            .data(much)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        assert_eq!(
            connecting.await.unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        let x = a.domain.endpoint().open().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        let refused = request(&requests)
            .await
            .reject()
            .data(much)
            .send()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        assert_eq!(
            connecting.await.unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
    });
}

/// Dropping a request rejects it without data, wherever it is dropped.
#[test]
fn a_dropped_request_is_rejected() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        for how in 0..3 {
            let x = a.domain.endpoint().open().unwrap();
            let connecting = x.connect(listener.local_addr()).into_future();
            let asked = request(&requests).await;
            match how {
                0 => drop(asked),
                1 => drop(asked.accept(&b.domain)),
                _ => drop(asked.reject().data("never sent")),
            }
            let refused = connecting.await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
            assert!(refused.data().is_empty());
        }
    });
}

/// The ways in which connecting fails have kinds of their own.
#[test]
fn failures_to_connect_are_typed() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a.domain.endpoint().open().unwrap();
        let refused = x.connect(no_listener()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        let (listener, requests) = listener(&b);
        let x = a.domain.endpoint().open().unwrap();
        let connect = x
            .connect(listener.local_addr())
            .timeout(Duration::from_millis(40));
        let connecting = connect.context(8u64).into_future();
        let asked = request(&requests).await;
        let late = connecting.await.unwrap_err();
        assert_eq!(
            (late.kind(), late.is_timed_out()),
            (ErrorKind::TimedOut, true),
            "{late}"
        );
        assert_eq!(late.peer(), Some(listener.local_addr()));
        // The listener's side learns it, too.
        let mut limit = 1000;
        while !asked.is_withdrawn() && limit > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            limit -= 1;
        }
        assert!(asked.is_withdrawn());
        let gone = asked.accept(&b.domain).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::PeerClosed, "{gone}");
        assert_eq!(gone.operation(), Some(OperationKind::Accept));
        let two = a
            .fabric
            .passive_endpoint(&requests)
            .listen_at(listener.local_addr());
        assert_eq!(two.unwrap_err().kind(), ErrorKind::AddressInUse);
    });
}

/// `Connect`: "Posted operations then fail for the same reason, and the endpoint is again in the
/// state in which it was opened: it can try to connect again, to the same or another address, or
/// accept a request"; each try has an event.
#[test]
fn an_endpoint_whose_connect_failed_can_try_again() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let x = a.domain.endpoint().open().unwrap();
        for context in [1, 2] {
            let early = x.recv(vec![0; 8]).post().unwrap();
            let refused = x.connect(no_listener()).context(context).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
            let failed = early.await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(failed.into_parts().1, Some(vec![0; 8]));
            let Some(Event::Error(failed)) = a.events.next().await else {
                panic!("no event of the failure")
            };
            assert_eq!(failed.context, Some(context.into()));
            let unconnected = x.send("unconnected").post().unwrap_err();
            assert_eq!(unconnected.kind(), ErrorKind::NotConnected);
        }
        // The application on the other side says no, then is too slow, then accepts.
        let connecting = x.connect(listener.local_addr()).into_future();
        request(&requests).await.reject().data("no").send().unwrap();
        assert_eq!(&connecting.await.unwrap_err().data()[..], b"no");
        assert!(matches!(a.events.next().await, Some(Event::Error(_))));
        let hurried = x.connect(listener.local_addr());
        let hurried = hurried.timeout(Duration::from_millis(20)).into_future();
        let ignored = request(&requests).await;
        assert_eq!(hurried.await.unwrap_err().kind(), ErrorKind::TimedOut);
        drop(ignored);
        assert!(matches!(a.events.next().await, Some(Event::Error(_))));
        let receive = x.recv(vec![0; 8]).post().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        let accepting = request(&requests).await.accept(&b.domain).into_future();
        let (_, y) = futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
        let connected = a.events.next().await;
        assert!(
            matches!(connected, Some(Event::Connected { .. })),
            "{connected:?}"
        );
        y.send("at last").delivery_complete().await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 7);
        x.send("and back").delivery_complete().detach().unwrap();
        y.recv(vec![0; 8]).await.unwrap();
        x.shutdown().await.unwrap();
        assert!(matches!(
            a.events.next().await,
            Some(Event::Shutdown { error: None, .. })
        ));
        // One that is not tried again ends by its shutdown, or with its domain, without an event.
        let z = a.domain.endpoint().open().unwrap();
        assert!(z.connect(no_listener()).await.is_err());
        assert!(matches!(a.events.next().await, Some(Event::Error(_))));
        z.shutdown().await.unwrap();
        assert_eq!(
            z.connect(no_listener()).await.unwrap_err().kind(),
            ErrorKind::BadState
        );
        drop((x, z));
        a.domain.close().await.unwrap();
        assert!(a.events.is_empty());
    });
}

/// Receives posted before the connection are there for its first message, on both sides.
/// fi_msg(3): "For connected endpoints, receive buffers may be posted prior to connect or accept
/// being called on the endpoint."
#[test]
fn receives_may_be_posted_before_the_connection() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let x = a.domain.endpoint().open().unwrap();
        let y = b.domain.endpoint().unexpected_bytes(0).open().unwrap();
        let receive = y.recv(vec![0u8; 8]).post().unwrap();
        let back = x.recv(vec![0u8; 8]).post().unwrap();
        let early = x.send("early").await.unwrap_err();
        assert_eq!(
            (early.kind(), early.error().fi_errno()),
            (ErrorKind::NotConnected, 107)
        );
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        x.send("first").await.unwrap();
        assert_eq!(receive.await.unwrap().0.len, 5);
        y.send("second").await.unwrap();
        assert_eq!(back.await.unwrap().0.len, 6);
    });
}

/// Clones are the same endpoint: the connection ends with the last of them.
#[test]
fn a_connection_ends_with_the_last_clone() {
    on_every_backend(|net| async move {
        let (x, y) = net.pair().await.unwrap();
        let clone = x.clone();
        assert_eq!(clone.id(), x.id());
        drop(x);
        clone.send("on").await.unwrap();
        assert_eq!(y.recv(vec![0u8; 2]).await.unwrap().0.len, 2);
        let left = y.recv(vec![0u8; 2]).post().unwrap();
        drop(clone);
        let closed = left.await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::PeerClosed, "{closed}");
        assert_eq!(closed.into_parts().1, Some(vec![0u8; 2]));
    });
}

/// `fi_endpoint(3)`: a connected endpoint connects once; another connection takes another endpoint.
#[test]
fn an_endpoint_connects_once() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = tokio_fabric::testing::connect(&a, &b).await.unwrap();
        let (listener, requests) = listener(&b);
        let again = x.connect(listener.local_addr()).await.unwrap_err();
        assert_eq!(
            (again.kind(), again.fi_errno()),
            (ErrorKind::AlreadyConnected, 106)
        );
        let z = a.domain.endpoint().open().unwrap();
        let connecting = z.connect(listener.local_addr()).into_future();
        let busy = y.accept(request(&requests).await).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::AlreadyConnected, "{busy}");
        assert!(connecting.await.is_err());
        x.send("untouched").await.unwrap();
        x.shutdown().await.unwrap();
        let over = x.connect(listener.local_addr()).await.unwrap_err();
        assert_eq!(over.kind(), ErrorKind::BadState);
        let fresh = a.domain.endpoint().open().unwrap();
        let connecting = fresh.connect(listener.local_addr()).into_future();
        let accepting = request(&requests).await.accept(&b.domain).into_future();
        futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
    });
}

/// 200 peers at once: each gets its own answer.
#[test]
fn many_connect_at_the_same_time() {
    on_every_backend(|net| async move {
        const MANY: u64 = 200;
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = a
            .fabric
            .event_queue()
            .size(2 * MANY as usize)
            .open()
            .unwrap();
        let (listener, requests) = listener(&b);
        let to = listener.local_addr();
        let server = tokio::spawn(async move {
            let mut held = Vec::new();
            let events = b
                .fabric
                .event_queue()
                .size(2 * MANY as usize)
                .open()
                .unwrap();
            for _ in 0..MANY {
                let asked = request(&requests).await;
                let answer = asked.data().clone();
                let y = b.domain.endpoint().event_queue(&events).open().unwrap();
                held.push(tokio::spawn(async move {
                    y.accept(asked).data(answer).await.unwrap()
                }));
            }
            futures::future::join_all(held).await
        });
        let connecting = (0..MANY).map(|number| {
            let x = a.domain.endpoint().event_queue(&queue).open().unwrap();
            let connect = x.connect(to).data(number.to_le_bytes()).context(number);
            async move { (number, connect.await.unwrap(), x) }
        });
        let connected = futures::future::join_all(connecting).await;
        for (number, answer, _x) in &connected {
            assert_eq!(answer.as_ref(), number.to_le_bytes());
        }
        let mut contexts: Vec<u64> = (0..MANY)
            .map(|_| match queue.try_next() {
                Some(Event::Connected {
                    context: Some(UserContext(number)),
                    ..
                }) => number,
                other => panic!("{other:?} instead of Connected"),
            })
            .collect();
        contexts.sort_unstable();
        assert!(contexts.into_iter().eq(0..MANY));
        drop(server.await.unwrap());
    });
}

/// Dropping connect's future does not stop the connection; its end comes as an event.
#[test]
fn a_dropped_connect_goes_on() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let x = a.domain.endpoint().open().unwrap();
        drop(x.connect(listener.local_addr()).context(3u64).into_future());
        let y = request(&requests)
            .await
            .accept(&b.domain)
            .data("hello")
            .await
            .unwrap();
        match a.events.next().await {
            Some(Event::Connected {
                endpoint,
                context,
                data,
                ..
            }) => {
                assert_eq!((endpoint, context), (x.id(), Some(UserContext(3))));
                assert_eq!(&data[..], b"hello");
            }
            other => panic!("{other:?} instead of Connected"),
        }
        y.send("works").await.unwrap();
        assert_eq!(x.recv(vec![0u8; 5]).await.unwrap().0.len, 5);
    });
}

/// Ruling on listeners: dropping the listener stops listening; requests already reported can still
/// be accepted.
#[test]
fn a_reported_request_outlives_its_listener() {
    on_every_backend(|net| async move {
        let (a, b, listener, requests) = listening(&net);
        let x = a.domain.endpoint().open().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        let asked = request(&requests).await;
        drop(listener);
        let accepting = asked.accept(&b.domain).into_future();
        let (_, _y) = futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
        assert!(x.is_connected());
    });
}

/// Issue: "with the last handle of its event queue gone, a listener takes connections that cannot
/// be accepted: callers hang 60 s and `is_listening()` is true". It stops listening: requests that
/// wait in the queue, or for room in it, are rejected, and later callers are refused at once.
#[test]
fn a_listener_stops_with_the_last_handle_of_its_event_queue() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().size(1).open().unwrap();
        let clone = requests.clone();
        let builder = b.fabric.passive_endpoint(&requests);
        let listener = builder.listen_at(any()).unwrap();
        let address = listener.local_addr();
        let connect = || {
            let endpoint = a.domain.endpoint().open().unwrap();
            let connecting = endpoint.connect(address).into_future();
            async move { (connecting.await.unwrap_err().kind(), endpoint) }
        };
        // One is reported, and one finds no room.
        let connecting = tokio::spawn(connect());
        let waits = tokio::spawn(connect());
        while requests.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(requests);
        assert!(listener.is_listening(), "there is another handle");
        drop(clone);
        let (refused, _) = connecting.await.unwrap();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        let (waits, _) = waits.await.unwrap();
        assert!(
            matches!(
                waits,
                // Its request may not have been taken from the system yet.
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::PeerClosed
            ),
            "{waits:?}"
        );
        assert!(!listener.is_listening());
        let (late, _) = connect().await;
        assert_eq!(late, ErrorKind::ConnectionRefused);
    });
}

/// Other endpoints' events keep the queue's memory, not its listener.
#[test]
fn an_endpoint_of_the_same_event_queue_keeps_no_listener_open() {
    on_every_backend(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().open().unwrap();
        let bound = b.domain.endpoint().event_queue(&requests).open().unwrap();
        let builder = b.fabric.passive_endpoint(&requests);
        let listener = builder.listen_at(any()).unwrap();
        drop(requests);
        let endpoint = a.domain.endpoint().open().unwrap();
        let refused = endpoint.connect(listener.local_addr()).await.unwrap_err();
        assert!(
            matches!(
                refused.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
            ),
            "{refused}"
        );
        assert!(!listener.is_listening());
        drop(bound);
    });
}

/// End of the stream seen by a plain socket within the limit, off the runtime.
async fn ends(mut socket: TcpStream) -> bool {
    let read = move || {
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        match socket.read(&mut [0u8; 1]) {
            Ok(0) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            Ok(_) => false,
        }
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// A peer that connects and stays silent is closed at the handshake's deadline.
#[test]
fn a_silent_peer_is_closed_at_the_deadline() {
    on(Backend::Epoll, |net| async move {
        let b = net.peer().unwrap();
        let requests = b.fabric.event_queue().open().unwrap();
        let builder = b.fabric.passive_endpoint(&requests);
        let listener = builder
            .handshake_timeout(Duration::from_millis(50))
            .listen_at(any())
            .unwrap();
        let silent = TcpStream::connect(listener.local_addr()).unwrap();
        let mut talks_half = TcpStream::connect(listener.local_addr()).unwrap();
        std::io::Write::write_all(&mut talks_half, &[1, 0]).unwrap();
        assert!(ends(silent).await);
        assert!(ends(talks_half).await);
        assert!(requests.is_empty(), "the application hears nothing of them");
    });
}

/// More half-open peers than allowed, and all silent: after a while the oldest are closed, and good
/// ones come through.
#[test]
fn too_many_half_open_peers_evict_the_oldest() {
    on(Backend::Epoll, |net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = b.fabric.event_queue().open().unwrap();
        let builder = b.fabric.passive_endpoint(&requests).half_open_max(2);
        let builder = builder.handshake_timeout(Duration::from_secs(3));
        let listener = builder.listen_at(any()).unwrap();
        let silent: Vec<_> = (0..4)
            .map(|_| TcpStream::connect(listener.local_addr()).unwrap())
            .collect();
        let x = a.domain.endpoint().open().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        let accepting = request(&requests).await.accept(&b.domain).into_future();
        futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
        let mut silent = silent.into_iter();
        assert!(ends(silent.next().unwrap()).await, "the oldest");
        assert!(ends(silent.next().unwrap()).await, "the next");
        let newest = silent.next_back().unwrap();
        newest.set_nonblocking(true).unwrap();
        let open = newest.peek(&mut [0u8; 1]).map_err(|error| error.kind());
        assert_eq!(
            open,
            Err(std::io::ErrorKind::WouldBlock),
            "the newest is still open"
        );
    });
}

/// What is not the protocol is closed at once, and does not keep good peers out.
#[test]
fn garbage_is_closed_and_harms_no_peer() {
    on(Backend::Epoll, |net| async move {
        let (a, b, listener, requests) = listening(&net);
        let mut sockets = Vec::new();
        for garbage in [&[0xff; 64][..], b"GET / HTTP/1.1\r\n\r\n", &[0; 600]] {
            let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
            std::io::Write::write_all(&mut socket, garbage).unwrap();
            sockets.push(socket);
        }
        for socket in sockets {
            assert!(ends(socket).await);
        }
        let x = a.domain.endpoint().open().unwrap();
        let connecting = x.connect(listener.local_addr()).into_future();
        let accepting = request(&requests).await.accept(&b.domain).into_future();
        futures::future::try_join(connecting, accepting)
            .await
            .unwrap();
        assert!(requests.next().now_or_never().is_none());
    });
}
