//! Info is a contract for connectionless endpoints too, whatever kind it is of.

use crate::common::peers::{open_region, peer_with};
use crate::common::{on_each_at_once, on_every_backend};
use tokio_fabric::error::Refusal;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Caps, EndpointType, Error, ErrorKind, Hints, RdmEndpoint, RemoteRegion, av::FabricAddr,
    domain::DomainBind, info::OpFlags,
};

fn peer(net: &Net, kind: EndpointType, caps: Caps) -> Peer {
    let hints = Hints::new().endpoint(kind).caps(caps);
    peer_with(net, hints, DomainBind::empty())
}

/// An endpoint of `one`, which knows that of `other`.
fn pair(one: &Peer, other: &Peer) -> (RdmEndpoint, FabricAddr, RdmEndpoint) {
    let (x, y) = (one.rdm_endpoint().unwrap(), other.rdm_endpoint().unwrap());
    let to_y = x.insert(y.local_addr()).unwrap();
    (x, to_y, y)
}

#[track_caller]
fn assert_lacks(error: impl Into<Error>, name: &str) {
    let error = error.into();
    assert_eq!(
        (error.kind(), error.fi_errno()),
        (ErrorKind::NoCapability, 95)
    );
    assert!(error.to_string().contains(name), "{error}");
}

/// fi_getinfo(3): "Primary capabilities must explicitly be requested by an application". In a
/// domain whose Info is of connected endpoints, a connectionless one has those that the hints asked
/// for and no others.
#[test]
fn an_endpoint_of_another_kind_has_the_capabilities_that_were_asked_for() {
    on_every_backend(|net| async move {
        let other = net.peer().unwrap();
        let region = open_region(&other, vec![7u8; 8]).await;
        let one = peer(&net, EndpointType::Msg, Caps::MSG | Caps::RMA | Caps::READ);
        let (x, to_y, y) = pair(&one, &other);
        let bytes = || vec![0u8; 8];
        assert_lacks(x.send_tagged("", to_y, 1).post().unwrap_err(), "TAGGED");
        assert_lacks(x.inject_tagged(b"", to_y, 1).unwrap_err(), "TAGGED");
        assert_lacks(x.recv_tagged(bytes(), 1).post().unwrap_err(), "TAGGED");
        assert_lacks(x.peek_tagged(1).now().unwrap_err(), "TAGGED");
        assert_lacks(x.peek_tagged(1).queue(1u64).unwrap_err(), "TAGGED");
        let directed = x.recv(bytes()).from(to_y).post();
        assert_lacks(directed.unwrap_err(), "DIRECTED_RECV");
        let many = x.multi_recv(bytes()).queue(1u64).try_post();
        assert_lacks(many.unwrap_err(), "MULTI_RECV");
        let write = x.write(bytes(), to_y, region.remote()).post();
        assert_lacks(write.unwrap_err(), "WRITE");
        assert_lacks(
            x.inject_write(&[1], to_y, region.remote()).unwrap_err(),
            "WRITE",
        );
        let (_, read) = x.read(bytes(), to_y, region.remote()).await.unwrap();
        assert_eq!(read, [7; 8]);
        let (sent, received) = tokio::join!(x.send("hello", to_y), y.recv(bytes()));
        sent.unwrap();
        assert_eq!(received.unwrap().0.len, 5);
        // Without capabilities among the hints it has all there are.
        let (x, to_y, y) = pair(&net.peer().unwrap(), &other);
        let tagged = y.recv_tagged(bytes(), 1);
        let (sent, received) = tokio::join!(x.send_tagged("hello", to_y, 1), tagged);
        sent.unwrap();
        assert_eq!(received.unwrap().0.tag, Some(1));
    });
}

/// A peer's access that the endpoint was not opened for is refused with that reason.
#[test]
fn a_peers_access_that_the_endpoint_does_not_admit_is_refused() {
    on_every_backend(|net| async move {
        let caps = Caps::MSG | Caps::RMA | Caps::WRITE | Caps::REMOTE_READ;
        let (one, other) = (net.peer().unwrap(), peer(&net, EndpointType::Rdm, caps));
        let region = other.domain.register(vec![7u8; 8]);
        let region = region.access(Access::REMOTE_READ).await.unwrap();
        let (x, to_y, _y) = pair(&one, &other);
        // A peer that makes up what it was not handed out.
        let claimed = RemoteRegion::new(0, 8, region.key());
        let written = x.write(vec![1u8; 8], to_y, claimed).await;
        let error = written.unwrap_err().into_error();
        assert_eq!(error.refusal(), Some(Refusal::NoCapability), "{error}");
        let read = x.read(vec![1u8; 8], to_y, region.remote()).await;
        assert_eq!(read.unwrap().1, [7; 8]);
    });
}

/// Messages that no receive can be posted for end their connection, announced ones too; others of
/// the endpoint's peers go on.
#[test]
fn messages_that_an_endpoint_does_not_receive_end_their_connection() {
    on_each_at_once(|net| async move {
        for (caps, len) in [(Caps::MSG | Caps::RMA, 5), (Caps::MSG, 1 << 20)] {
            let other = peer(&net, EndpointType::Rdm, caps);
            let one = net.peer().unwrap();
            let (x, to_y, y) = pair(&one, &other);
            let z = net.peer().unwrap().rdm_endpoint().unwrap();
            let to_y_of_z = z.insert(y.local_addr()).unwrap();
            z.send("before", to_y_of_z).await.unwrap();
            let sent = x.send_tagged(vec![1u8; len], to_y, 1).delivery_complete();
            let error = sent.await.unwrap_err().into_error();
            assert!(error.is_connection_lost(), "{error}");
            z.send("behind", to_y_of_z)
                .delivery_complete()
                .post()
                .unwrap()
                .detach();
            for expected in ["before", "behind"] {
                let (received, bytes) = y.recv(vec![0u8; 8]).await.unwrap();
                assert_eq!(&bytes[..received.len], expected.as_bytes());
            }
        }
    });
}

/// fi_getinfo(3): `FI_MULTICAST`, and the directions of datagrams.
#[test]
fn datagram_endpoints_do_what_they_were_opened_for() {
    on_each_at_once(|net| async move {
        let open = |caps| {
            let one = peer(&net, EndpointType::Dgram, caps);
            let vector = one.domain.address_vector().open().unwrap();
            let builder = one.domain.dgram_endpoint().address_vector(&vector);
            let endpoint = builder.bind(crate::common::peers::any()).open().unwrap();
            (one, endpoint)
        };
        let (_one, sender) = open(Caps::MSG | Caps::SEND);
        let (_other, receiver) = open(Caps::MSG | Caps::RECV);
        let insert = |address| sender.address_vector().insert(address).now().unwrap();
        let to = insert(receiver.local_addr());
        let group = insert("239.1.2.3:7471".parse().unwrap());
        assert_lacks(sender.recv(vec![0u8; 8]).post().unwrap_err(), "RECV");
        assert_lacks(sender.send("", group).post().unwrap_err(), "MULTICAST");
        let join = sender.join("239.1.2.3:7471".parse().unwrap());
        assert_lacks(join.send_only().now().unwrap_err(), "MULTICAST");
        let back = receiver.address_vector().insert(sender.local_addr());
        let back = back.now().unwrap();
        assert_lacks(receiver.send("", back).post().unwrap_err(), "SEND");
        assert_lacks(receiver.inject(b"", back).unwrap_err(), "SEND");
        let directed = receiver.recv(vec![0u8; 8]).from(back).post();
        assert_lacks(directed.unwrap_err(), "DIRECTED_RECV");
        let received = receiver.recv(vec![0u8; 8]).post().unwrap();
        sender.send("hello", to).await.unwrap();
        assert_eq!(received.await.unwrap().0.len, 5);
    });
}

/// fi_endpoint(3), FI_MULTICAST: "Any fi_addr_t passed into a data transfer operation will be
/// treated as a multicast address." What is none is refused.
#[test]
fn by_default_flags_datagrams_go_to_groups_only() {
    on_each_at_once(|net| async move {
        let hints = Hints::new().endpoint(EndpointType::Dgram);
        let hints = hints.tx(|tx| tx.op_flags(OpFlags::MULTICAST));
        let one = peer_with(&net, hints, DomainBind::empty());
        let vector = one.domain.address_vector().open().unwrap();
        let builder = one.domain.dgram_endpoint().address_vector(&vector);
        let endpoint = builder.bind(crate::common::peers::any()).open().unwrap();
        let itself = vector.insert(endpoint.local_addr()).now().unwrap();
        let error = endpoint.send("", itself).post().unwrap_err().into_error();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("multicast"), "{error}");
    });
}
