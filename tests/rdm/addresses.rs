//! Connectionless endpoints by their addresses: the one that is announced, and names that several
//! processes share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{left_out, on_every_backend, on_every_backend_at_once};
use futures::FutureExt;
use tokio_fabric::info::AddressFormat;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Domain, EndpointType, ErrorKind, Fabric, Hints, RdmEndpoint, Result};

fn open_at(peer: &Peer, host: u8, port: u16) -> Result<RdmEndpoint> {
    let address = SocketAddr::from(([127, 0, 0, host], port));
    peer.domain.rdm_endpoint().listen_at(address).open()
}

/// fi_av(3), and `RdmEndpointBuilder::listen_at`: "Peers know the endpoint by this address, and its
/// connections are made from it": of the IP address and the port, neither alone is who a peer is.
#[test]
fn an_endpoint_is_known_by_the_address_and_port_it_announces() {
    on_every_backend(|net| async move {
        let peers: Vec<_> = (0..4).map(|_| net.peer().unwrap()).collect();
        let y = open_at(&peers[0], 1, 0).unwrap();
        // Of one port at two addresses, and of two ports at one.
        let (first, second) = loop {
            let first = open_at(&peers[1], 2, 0).unwrap();
            match open_at(&peers[2], 3, first.local_addr().port()) {
                Ok(second) => break (first, second),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddressInUse),
            }
        };
        let third = open_at(&peers[3], 2, 0).unwrap();
        let all = [&first, &second, &third];
        let known = all.map(|it| y.insert(it.local_addr()).unwrap());
        for (it, known) in all.iter().zip(known) {
            let to_y = it.insert(y.local_addr()).unwrap();
            it.send("hello", to_y).await.unwrap();
            let (received, _) = y.recv(vec![0u8; 8]).await.unwrap();
            assert_eq!(received.source_addr, Some(it.local_addr()));
            assert_eq!(received.source, Some(known));
        }
        for (it, known) in all.iter().zip(known) {
            let answer = it.local_addr().to_string();
            y.send(answer.clone(), known).await.unwrap();
            let (received, bytes) = it.recv(vec![0u8; 32]).await.unwrap();
            assert_eq!(&bytes[..received.len], answer.as_bytes());
            assert_eq!(received.source_addr, Some(y.local_addr()));
        }
    });
}

/// fi_av(3): "Opens an AV for read-only access." An endpoint whose process only reads a named
/// vector reaches the peers that others insert, by the names that they have, and never another one
/// in the place of one that they removed.
#[test]
fn an_endpoint_follows_the_named_vector_that_others_change() {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    on_every_backend(|net| async move {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rdm/{}/{number}", std::process::id());
        let peers: Vec<_> = (0..3).map(|_| net.peer().unwrap()).collect();
        let owner = peers[1].domain.address_vector().name(&name).open().unwrap();
        let joining = peers[0].domain.address_vector().name(&name);
        let reader = joining.read_only().open().unwrap();
        let opened = peers[0].domain.rdm_endpoint().address_vector(&reader);
        let x = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let y = peers[1].rdm_endpoint().unwrap();
        let z = peers[2].rdm_endpoint().unwrap();
        let refused = x.insert(y.local_addr()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        let to_y = owner.insert(y.local_addr()).now().unwrap();
        // Found, which needs no right to insert.
        assert_eq!(x.insert(y.local_addr()).unwrap(), to_y);
        let resolved = x.resolve(&y.local_addr().to_string()).await;
        assert_eq!(resolved.unwrap(), to_y);
        x.send("to y", to_y).delivery_complete().await.unwrap();
        owner.remove(to_y).unwrap();
        let to_z = owner.insert(z.local_addr()).now().unwrap();
        assert_eq!(to_y.index(), to_z.index(), "the place is taken again");
        let refused = x.send("to y", to_y).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        x.send("to z", to_z).delivery_complete().await.unwrap();
        assert_eq!(&z.recv(vec![0u8; 4]).await.unwrap().1, b"to z");
        assert_eq!(&y.recv(vec![0u8; 4]).await.unwrap().1, b"to y");
        let nothing = z.recv(vec![0u8; 4]).into_future().now_or_never();
        assert!(nothing.is_none());
        // Senders are named by what the vector has now.
        for (from, known) in [(&y, None), (&z, Some(to_z))] {
            let to_x = from.insert(x.local_addr()).unwrap();
            from.send("to x", to_x).await.unwrap();
            let (received, _) = x.recv(vec![0u8; 4]).await.unwrap();
            assert_eq!(received.source, known);
            assert_eq!(received.source_addr, Some(from.local_addr()));
        }
    });
}

/// A domain at all IPv6 addresses.
fn open_at_ipv6(net: &Net, kind: EndpointType) -> Option<Domain> {
    let hints = Hints::new().endpoint(kind);
    match net.fabric_with(hints.source("[::]:0".parse().unwrap())) {
        Ok(fabric) => Some(fabric.domain().open().unwrap()),
        Err(error) => {
            left_out(format!("IPv6: {error}"));
            None
        }
    }
}

fn here(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// An endpoint at all IPv6 addresses hears IPv4 peers too: an address that a message comes from can
/// be inserted, is answered to, and names the same peer in each of its forms.
#[test]
fn an_endpoint_at_all_ipv6_addresses_answers_ipv4_peers() {
    on_every_backend_at_once(|net| async move {
        let Some(domain) = open_at_ipv6(&net, EndpointType::Rdm) else {
            return;
        };
        let x = domain.rdm_endpoint().open().unwrap();
        let peer = net.peer().unwrap();
        let [y, z] = [(); 2].map(|()| peer.rdm_endpoint().unwrap());
        let x_here = here(x.local_addr().port());
        let to_x = y.insert(x_here).unwrap();
        y.send("hello", to_x).delivery_complete().await.unwrap();
        let (received, _) = x.recv(vec![0; 8]).await.unwrap();
        assert_eq!(received.source_addr, Some(y.local_addr()));
        let to_y = x.insert(y.local_addr()).unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{}", y.local_addr().port());
        assert_eq!(x.insert(mapped.parse().unwrap()).unwrap(), to_y);
        assert_eq!(x.address_vector().lookup(to_y).unwrap(), y.local_addr());
        x.send("answer", to_y).delivery_complete().await.unwrap();
        let (received, _) = y.recv(vec![0; 8]).from(to_x).await.unwrap();
        assert_eq!(received.source_addr, Some(x_here));
        // It dials as well.
        let to_z = x.insert(z.local_addr()).unwrap();
        x.send("first", to_z).delivery_complete().await.unwrap();
        let (received, _) = z.recv(vec![0; 8]).await.unwrap();
        assert_eq!(received.source_addr, Some(x_here));
        let to_x = z.insert(x_here).unwrap();
        z.send("back", to_x).await.unwrap();
        let (received, _) = x.recv(vec![0; 8]).from(to_z).await.unwrap();
        assert_eq!(received.source_addr, Some(z.local_addr()));
    });
}

/// The same with datagrams.
#[test]
fn a_datagram_endpoint_at_all_ipv6_addresses_answers_ipv4_peers() {
    on_every_backend_at_once(|net| async move {
        let Some(six) = open_at_ipv6(&net, EndpointType::Dgram) else {
            return;
        };
        let four = Hints::new().endpoint(EndpointType::Dgram).source(here(0));
        let four = net.fabric_with(four).unwrap().domain().open().unwrap();
        let open = |domain: &Domain| {
            let peers = domain.address_vector().open().unwrap();
            let endpoint = domain.dgram_endpoint().address_vector(&peers);
            (endpoint.open().unwrap(), peers)
        };
        let ((x, x_peers), (y, y_peers)) = (open(&six), open(&four));
        let to_x = y_peers.insert(here(x.local_addr().port())).await.unwrap();
        y.send("hello", to_x).await.unwrap();
        let (received, _) = x.recv(vec![0; 8]).await.unwrap();
        assert_eq!(received.source_addr, Some(y.local_addr()));
        let to_y = x_peers.insert(y.local_addr()).await.unwrap();
        x.send("answer", to_y).await.unwrap();
        let (received, _) = y.recv(vec![0; 8]).await.unwrap();
        assert_eq!(received.source, Some(to_x));
    });
}

/// Either side may dial, so a peer must have an address of a version that the endpoint has too.
#[test]
fn a_peer_of_another_ip_version_is_refused_and_the_error_says_why() {
    on_every_backend_at_once(|net| async move {
        let Some(domain) = open_at_ipv6(&net, EndpointType::Rdm) else {
            return;
        };
        let at = "[::1]:0".parse().unwrap();
        let x = domain.rdm_endpoint().listen_at(at).open().unwrap();
        let to = x.insert(here(9)).unwrap();
        let error = x.send("hello", to).await.unwrap_err().into_error();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("open it at [::]"), "{error}");
    });
}

/// The system reads the zone of a link's address only: any other is the same address without.
#[test]
fn a_zone_that_an_address_does_not_need_names_no_other_peer() {
    on_every_backend_at_once(|net| async move {
        let Some(domain) = open_at_ipv6(&net, EndpointType::Rdm) else {
            return;
        };
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let open = || (domain.rdm_endpoint().listen_at(at("[::1]:0"))).open();
        let (x, y) = (open().unwrap(), open().unwrap());
        let zoned = at(&format!("[::1%1]:{}", y.local_addr().port()));
        let to_y = x.insert(zoned).unwrap();
        assert_eq!(x.address_vector().lookup(to_y).unwrap(), y.local_addr());
        let to_x = y.insert(x.local_addr()).unwrap();
        y.send("hello", to_x).delivery_complete().await.unwrap();
        let (received, _) = x.recv(vec![0; 8]).from(to_y).await.unwrap();
        assert_eq!(received.source, Some(to_y));
        x.send("answer", to_y).delivery_complete().await.unwrap();
        assert_eq!((x.stats().connections, y.stats().connections), (1, 1));
    });
}

/// `RdmEndpointBuilder::listen_at`: "An IPv6 address needs a domain whose addresses are IPv6", and
/// the error says what to set.
#[tokio::test]
async fn an_ipv4_domain_refuses_to_listen_at_an_ipv6_address() {
    let loopback: SocketAddr = "[::1]:0".parse().unwrap();
    for (hints, is_v6) in [
        (Hints::new(), false),
        (
            Hints::new().address_format(AddressFormat::SockaddrIn),
            false,
        ),
        (
            Hints::new().address_format(AddressFormat::SockaddrIn6),
            true,
        ),
        (Hints::new().node("::1"), true),
    ] {
        let fabric = Fabric::open(hints.endpoint(EndpointType::Rdm)).unwrap();
        let domain = fabric.domain().open().unwrap();
        let opened = domain.rdm_endpoint().listen_at(loopback).open();
        if is_v6 {
            let (one, other) = (opened.unwrap(), domain.rdm_endpoint().listen_at(loopback));
            let other = other.open().unwrap();
            let to = one.insert(other.local_addr()).unwrap();
            one.send("six", to).await.unwrap();
            let (received, bytes) = other.recv(vec![0; 8]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"six");
            continue;
        }
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        let remedy = "Hints::address_format(AddressFormat::SockaddrIn6)";
        assert!(text.contains("[::1]:0") && text.contains(remedy), "{text}");
    }
}
