//! Info is a contract: what an endpoint was not opened for it does not do, and its peers cannot
//! make it.

use crate::common::peers::{open_region, peer_with};
use crate::common::{on_each_at_once, on_every_backend};
use tokio_fabric::ep::OnRefusal;
use tokio_fabric::error::{OperationKind, Refusal};
use tokio_fabric::info::AtomicOp;
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Access, Caps, Endpoint, EndpointType, Error, ErrorKind, Hints, RemoteRegion, domain::DomainBind,
};

fn peer(net: &Net, caps: Caps) -> Peer {
    let hints = Hints::new().endpoint(EndpointType::Msg).caps(caps);
    peer_with(net, hints, DomainBind::empty())
}

/// What a call says that takes a capability the endpoint does not have.
#[track_caller]
fn assert_lacks(error: Error, operation: OperationKind, names: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::NoCapability, "{error}");
    assert_eq!((error.fi_errno(), error.operation()), (95, Some(operation)));
    for name in names {
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// The error of every call of an endpoint that transmits or receives, in an order of its own; a
/// receive that is accepted is withdrawn.
async fn refusals(x: &Endpoint, remote: RemoteRegion) -> Vec<(&'static str, Option<Error>)> {
    let bytes = || vec![0u8; 8];
    let word = remote.slice(..8).unwrap();
    vec![
        ("send", x.send(bytes()).await.err().map(Error::from)),
        ("inject", x.inject(b"12345678").err()),
        ("recv", x.recv(bytes()).post().err().map(Error::from)),
        ("write", x.write(bytes(), word).await.err().map(Error::from)),
        ("inject_write", x.inject_write(b"12345678", word).err()),
        ("read", x.read(bytes(), word).await.err().map(Error::from)),
        ("atomic", x.atomic(AtomicOp::Sum, 1u64, word).await.err()),
        (
            "fetch",
            x.fetch_atomic(AtomicOp::Sum, 1u64, word).await.err(),
        ),
        (
            "load",
            x.fetch_atomic(AtomicOp::Read, 1u64, word).await.err(),
        ),
        (
            "inject_atomic",
            x.inject_atomic(AtomicOp::Sum, 1u64, word).err(),
        ),
    ]
}

/// fi_getinfo(3): "a provider must enable support for only those primary capabilities which were
/// selected." Each call that takes another one is refused as it is posted, by a name; all others go
/// on.
#[test]
fn a_call_without_its_capability_is_refused_at_the_post() {
    use Caps as C;
    on_every_backend(|net| async move {
        let target = net.peer().unwrap();
        let region = open_region(&target, vec![0u8; 64]).await;
        for (caps, allowed) in [
            (C::MSG | C::SEND, &["send", "inject"][..]),
            (C::MSG | C::RECV, &["recv"]),
            (C::RMA | C::READ, &["read"]),
            (C::RMA | C::WRITE, &["write", "inject_write"]),
            (C::RMA | C::REMOTE_WRITE, &[]),
            (C::ATOMIC | C::READ, &["load"]),
            (C::ATOMIC | C::WRITE, &["atomic", "inject_atomic"]),
            (C::ATOMIC, &["atomic", "fetch", "load", "inject_atomic"]),
            (
                C::MSG | C::RMA,
                &["send", "inject", "recv", "write", "inject_write", "read"],
            ),
        ] {
            let one = peer(&net, caps);
            let (x, _y) = connect(&one, &target).await.unwrap();
            for (call, refused) in refusals(&x, region.remote()).await {
                let is_allowed = allowed.contains(&call);
                assert_eq!(
                    refused.is_none(),
                    is_allowed,
                    "{caps:?} {call}: {refused:?}"
                );
                if let Some(error) = refused {
                    assert_eq!(error.kind(), ErrorKind::NoCapability, "{call}: {error}");
                }
            }
        }
    });
}

/// The refusal names what is missing and gives the buffers back; nothing was sent, so the
/// connection goes on.
#[test]
fn a_refused_post_names_the_capability_and_gives_its_buffers_back() {
    on_every_backend(|net| async move {
        let (one, other) = (peer(&net, Caps::MSG | Caps::RMA), net.peer().unwrap());
        let region = open_region(&other, vec![0u8; 8]).await;
        let (x, y) = connect(&one, &other).await.unwrap();
        let failed = x.send("hello").fence().await.unwrap_err();
        let (error, buffers) = failed.into_parts();
        assert_eq!(buffers, Some("hello"));
        assert_lacks(error, OperationKind::Send, &["FENCE"]);
        let write = x.write(vec![1u8; 8], region.remote()).commit_complete();
        let error = write.post().unwrap_err().into_error();
        assert_lacks(error, OperationKind::Write, &["RMA_PMEM"]);
        let (sent, received) = tokio::join!(x.send("hello"), y.recv(vec![0u8; 8]));
        sent.unwrap();
        assert_eq!(received.unwrap().0.len, 5);
    });
}

/// A stream of messages says why it has none.
#[test]
fn a_stream_of_messages_of_an_endpoint_that_receives_none_gives_the_reason() {
    on_each_at_once(|net| async move {
        let (one, other) = (peer(&net, Caps::MSG | Caps::SEND), net.peer().unwrap());
        let (x, _y) = connect(&one, &other).await.unwrap();
        let mut messages = x.messages(64, 2);
        let error = messages.next().await.unwrap().unwrap_err();
        assert_lacks(error, OperationKind::Receive, &["RECV"]);
        assert!(messages.next().await.is_none());
    });
}

/// fi_getinfo(3): "Applications can use the FI_READ, FI_WRITE, FI_REMOTE_READ, and FI_REMOTE_WRITE
/// flags to restrict the types of RMA operations supported by an endpoint." A peer's access that
/// the endpoint does not admit is refused with that reason, and touches nothing.
#[test]
fn a_peers_access_that_the_endpoint_does_not_admit_is_refused() {
    on_every_backend(|net| async move {
        for (caps, atomics) in [(Caps::RMA, false), (Caps::ATOMIC, true)] {
            let (initiator, target) = (net.peer().unwrap(), peer(&net, caps));
            let register = target.domain.register(vec![0u8; 64]).access(Access::REMOTE);
            let region = register.await.unwrap();
            let living = OnRefusal::Continue { limit: 1 };
            let x = initiator.domain.endpoint().on_refusal(living);
            let y = target.domain.endpoint().on_refusal(living);
            let (x, y) = (x.open().unwrap(), y.open().unwrap());
            connect_endpoints(&x, &y, &target.fabric).await.unwrap();
            let word = region.remote().slice(..8).unwrap();
            // More often than a peer may guess: this is no guess.
            for _ in 0..3 {
                let written = x.write(vec![1u8; 8], word).await.err().map(Error::from);
                let read = x.read(vec![1u8; 8], word).await.err().map(Error::from);
                let changed = x.atomic(AtomicOp::Sum, 1u64, word).await.err();
                let fetched = x.fetch_atomic(AtomicOp::Sum, 1u64, word).await.err();
                let (admitted, refused) = match atomics {
                    true => ([changed, fetched], [written, read]),
                    false => ([written, read], [changed, fetched]),
                };
                assert!(admitted.iter().all(Option::is_none), "{admitted:?}");
                for error in refused {
                    let error = error.expect("it is refused");
                    assert_eq!(error.refusal(), Some(Refusal::NoCapability), "{error}");
                    assert_eq!(error.kind(), ErrorKind::AccessDenied);
                }
            }
            assert!(x.is_connected());
        }
    });
}

/// A peer without the extension is refused as the wire permits: the connection ends, at this side
/// with the reason.
#[test]
fn a_plain_peer_is_refused_by_the_end_of_its_connection() {
    on_every_backend(|net| async move {
        for read in [false, true] {
            let (initiator, target) = (net.peer().unwrap(), peer(&net, Caps::MSG | Caps::ATOMIC));
            let register = target.domain.register(vec![0u8; 64]).access(Access::REMOTE);
            let region = register.await.unwrap();
            let x = initiator.domain.endpoint().extension(false).open().unwrap();
            let y = target.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &target.fabric).await.unwrap();
            let waits = y.recv(vec![0u8; 8]).post().unwrap();
            let word = region.remote().slice(..8).unwrap();
            let error: Error = match read {
                true => x.read(vec![0u8; 8], word).await.unwrap_err().into(),
                false => {
                    let write = x.write(vec![1u8; 8], word).delivery_complete();
                    write.await.unwrap_err().into()
                }
            };
            assert!(error.is_connection_lost(), "{error}");
            let error = waits.await.unwrap_err().into_error();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            assert!(error.to_string().contains("capability"), "{error}");
        }
    });
}

/// A message to an endpoint that was not opened to receive any would never find a receive, and hold
/// up what is behind it: it ends the connection, with the reason at both sides.
/// fi_domain(3): "return an error completion with the error code FI_ENORX for that transmit
/// operation so that it can be retried."
/// fi_domain(3): `FI_ENORX`
#[test]
fn a_message_to_an_endpoint_that_receives_none_ends_the_connection() {
    on_every_backend(|net| async move {
        for extension in [true, false] {
            let (one, other) = (net.peer().unwrap(), peer(&net, Caps::RMA));
            let x = one.domain.endpoint().extension(extension).open().unwrap();
            let y = other.domain.endpoint().open().unwrap();
            connect_endpoints(&x, &y, &other.fabric).await.unwrap();
            let waits = x.recv(vec![0u8; 8]).post().unwrap();
            let error = x.send("hello").delivery_complete().await.unwrap_err();
            if extension {
                let (kind, number) = (error.kind(), error.error().fi_errno());
                assert_eq!((kind, number), (ErrorKind::NoReceive, 269), "{error}");
            }
            let error = waits.await.unwrap_err().into_error();
            assert!(error.is_connection_lost(), "{error}");
            let ended = loop {
                let event = other.events.next().await.expect("an open queue");
                if let tokio_fabric::Event::Shutdown { error, .. } = event {
                    break error;
                }
            };
            let error = ended.expect("not in order");
            assert_eq!(error.kind(), ErrorKind::NoCapability, "{error}");
        }
    });
}

/// Registration judges rights by what the domain was opened for: one that nothing could use is
/// refused by its name, and by default a region has those that something can.
#[test]
fn rights_that_no_capability_uses_are_refused() {
    on_each_at_once(|net| async move {
        let reader = peer(&net, Caps::MSG | Caps::RMA | Caps::REMOTE_READ);
        let register = |access| reader.domain.register(vec![0u8; 8]).access(access);
        for (access, name) in [
            (Access::REMOTE_WRITE, "REMOTE_WRITE"),
            (Access::REMOTE, "REMOTE_WRITE"),
            (Access::READ | Access::SEND, "READ"),
        ] {
            let (error, buffers) = register(access).now().unwrap_err().into_parts();
            assert_lacks(error, OperationKind::Register, &[name]);
            assert_eq!(buffers.map(|it| it.len()), Some(8));
            let error = register(access).await.unwrap_err().into_error();
            assert_eq!(error.kind(), ErrorKind::NoCapability);
        }
        register(Access::REMOTE_READ | Access::SEND | Access::RECV)
            .now()
            .unwrap();
        let by_default = reader.domain.register(vec![0u8; 8]).now().unwrap();
        let expected = Access::REMOTE_READ | Access::SEND | Access::RECV;
        assert_eq!(by_default.access(), expected);
        let all = net.peer().unwrap();
        let open = all.domain.register(vec![0u8; 8]).now().unwrap();
        assert_eq!(open.access(), Access::all());
    });
}
