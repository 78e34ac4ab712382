//! Addresses of machines that this one is not: in networks of the test's own, with few ports,
//! without IPv4 at IPv6 sockets, with names of both kinds, and with addresses of a link.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::alone::alone_in_namespaces;
use crate::common::on_sockets_at_once;
use crate::common::peers::request;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Backend, EndpointType, ErrorKind, Hints, RdmEndpoint, discover};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The networks of backends are apart, by their ports.
fn base_of(net: &Net) -> u16 {
    match net.backend() {
        Backend::IoUring => 8000,
        _ => 7000,
    }
}

fn rdm_endpoint(peer: &Peer, address: SocketAddr) -> RdmEndpoint {
    let builder = peer.domain.rdm_endpoint().listen_at(address);
    let builder = builder.connect_deadline(Duration::from_millis(500));
    builder.open().unwrap()
}

/// A source address given to a connection takes no port from other destinations. Where none is
/// left, the error names that, and not the peer, who has nothing to do with it.
#[test]
fn source_ports_are_of_a_destination_and_their_end_is_named() {
    alone_in_namespaces(
        "addresses::few_source_ports",
        "echo 40000 40007 > /proc/sys/net/ipv4/ip_local_port_range",
    );
}

#[test]
#[ignore = "in a network with eight source ports"]
fn few_source_ports() {
    const PEERS: u16 = 24;
    on_sockets_at_once(|net| async move {
        let base = base_of(&net);
        let peer = net.peer().unwrap();
        let events = peer.fabric.event_queue().open().unwrap();
        let mut kept = Vec::new();
        for number in 0..PEERS {
            let listener = peer.fabric.passive_endpoint(&events);
            let listener = listener.listen_at(local(base + number)).unwrap();
            let near = peer.domain.endpoint().open().unwrap();
            let connecting = near.connect(listener.local_addr()).from(local(0));
            let far = async { request(&events).await.accept(&peer.domain).await };
            let (near, far) = tokio::join!(connecting, far);
            near.unwrap_or_else(|error| panic!("connection {number}: {error}"));
            kept.push((listener, far.unwrap()));
        }
        let hub = rdm_endpoint(&peer, local(base + 99));
        for number in 0..PEERS {
            let other = rdm_endpoint(&peer, local(base + 100 + number));
            let to = hub.insert(other.local_addr()).unwrap();
            let sent = hub.send("hello", to).delivery_complete().await;
            sent.unwrap_or_else(|failed| panic!("peer {number}: {failed}"));
            other.recv(vec![0; 8]).await.unwrap();
        }
        // All ports toward one destination are taken.
        let listener = TcpListener::bind(local(base + 500)).unwrap();
        let to = listener.local_addr().unwrap();
        let taken: Vec<_> = (0..).map_while(|_| TcpStream::connect(to).ok()).collect();
        assert!(taken.len() <= 8);
        for from in [None, Some(local(0))] {
            let endpoint = peer.domain.endpoint().open().unwrap();
            let connecting = endpoint.connect(to);
            let connecting = match from {
                Some(from) => connecting.from(from),
                None => connecting,
            };
            let error = connecting.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
            assert!(error.to_string().contains("no source port"), "{error}");
        }
        let to = hub.insert(to).unwrap();
        let limited = hub.send("hello", to).timeout(Duration::from_millis(100));
        for (sending, kind) in [
            (limited, ErrorKind::TimedOut),
            (hub.send("hello", to), ErrorKind::LimitReached),
        ] {
            let error = sending.await.unwrap_err().into_error();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("no source port"), "{error}");
        }
    });
}

/// `[::]` is all addresses, also on a machine whose IPv6 sockets leave IPv4 out unless asked.
#[test]
fn all_ipv6_addresses_have_ipv4_whatever_the_systems_default() {
    alone_in_namespaces(
        "addresses::only_ipv6_by_default",
        "echo 1 > /proc/sys/net/ipv6/bindv6only",
    );
}

#[test]
#[ignore = "in a network whose IPv6 sockets have no IPv4 by default"]
fn only_ipv6_by_default() {
    on_sockets_at_once(|net| async move {
        let peer = net.peer().unwrap();
        let listener = peer.fabric.passive_endpoint(&peer.events);
        let listener = listener.listen_at(at("[::]:0")).unwrap();
        let to = local(listener.local_addr().port());
        let endpoint = peer.domain.endpoint().open().unwrap();
        let far = async { request(&peer.events).await.accept(&peer.domain).await };
        let (near, far) = tokio::join!(endpoint.connect(to), far);
        near.unwrap();
        assert_eq!(far.unwrap().local_addr(), Some(to));
        let [hub, other] = ["[::]:0", "127.0.0.1:0"].map(|it| rdm_endpoint(&peer, at(it)));
        let to = other.insert(local(hub.local_addr().port())).unwrap();
        other.send("hello", to).delivery_complete().await.unwrap();
        let datagrams = Hints::new().endpoint(EndpointType::Dgram);
        let datagrams = datagrams.source(at("[::]:0"));
        let datagrams = net.fabric_with(datagrams).unwrap();
        let domain = datagrams.domain().open().unwrap();
        let vector = domain.address_vector().open().unwrap();
        let endpoint = domain.dgram_endpoint().address_vector(&vector);
        let endpoint = endpoint.open().unwrap();
        let itself = local(endpoint.local_addr().port());
        let itself = vector.insert(itself).await.unwrap();
        endpoint.send("hello", itself).await.unwrap();
        endpoint.recv(vec![0; 8]).await.unwrap();
    });
}

/// A name with addresses of both versions is that of a peer by which the endpoint can reach it,
/// whichever comes first.
#[test]
fn a_name_is_resolved_to_an_address_that_the_endpoint_reaches() {
    alone_in_namespaces(
        "addresses::names_of_two_versions",
        "names=$(mktemp)\n\
         printf '::1 six\\n127.0.0.1 six\\n127.0.0.1 four\\n::1 four\\n' > $names\n\
         mount --bind $names /etc/hosts\n\
         rm $names",
    );
}

#[test]
#[ignore = "with names of its own"]
fn names_of_two_versions() {
    on_sockets_at_once(|net| async move {
        for version in ["127.0.0.1:0", "[::1]:0"].map(at) {
            let hints = Hints::new().endpoint(EndpointType::Rdm).source(version);
            let fabric = net.fabric_with(hints).unwrap();
            let domain = fabric.domain().open().unwrap();
            let open = || domain.rdm_endpoint().open().unwrap();
            for name in ["six", "four"] {
                let (x, y) = (open(), open());
                let port = y.local_addr().port();
                let to = x.resolve(&format!("{name}:{port}")).await.unwrap();
                assert_eq!(x.address_vector().lookup(to).unwrap(), y.local_addr());
                x.send("hello", to).delivery_complete().await.unwrap();
                let vector = domain.address_vector().open().unwrap();
                let service = port.to_string();
                let to = vector.insert_service(name, service.as_str()).await.unwrap();
                assert_eq!(vector.lookup(to).unwrap(), y.local_addr());
            }
        }
        let any = Hints::new().node("six").service("7471");
        let offered = discover(&any.endpoint(EndpointType::Rdm)).unwrap();
        assert_eq!(offered[0].dest, Some(at("[::1]:7471")));
    });
}

/// Addresses of a link are offered, behind all others, and used with their zone.
#[test]
fn addresses_of_a_link_are_offered_and_used() {
    alone_in_namespaces(
        "addresses::of_a_link",
        "ip link add near type veth peer name far\n\
         ip addr add fe80::1234/64 dev near nodad\n\
         ip addr add 169.254.7.7/16 dev near\n\
         ip link set near up\n\
         ip link set far up",
    );
}

#[test]
#[ignore = "in a network with a link that has no other addresses"]
fn of_a_link() {
    on_sockets_at_once(|net| async move {
        let ips = ["fe80::1234", "169.254.7.7"].map(|it| it.parse::<IpAddr>().unwrap());
        // The system finds a link up a moment after it was made.
        let offered = loop {
            let offered = discover(&Hints::new()).unwrap();
            let has = |ip: &IpAddr| offered.iter().any(|it| it.interface.address == *ip);
            if ips.iter().all(has) {
                break offered;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(offered[0].interface.loopback, "{:?}", offered[0].source);
        for ip in ips {
            let info = offered
                .iter()
                .find(|it| it.interface.address == ip)
                .unwrap();
            let source = info.source.unwrap();
            let has_zone = source.to_string().contains('%');
            assert_eq!((source.ip(), has_zone), (ip, ip.is_ipv6()));
            // The hint names no zone.
            let hints = || Hints::new().source(SocketAddr::new(ip, 0));
            let peer = Peer::of(net.fabric_with(hints()).unwrap()).unwrap();
            let listener = peer.fabric.passive_endpoint(&peer.events).listen().unwrap();
            let to = listener.local_addr();
            assert_eq!(SocketAddr::new(ip, to.port()).ip(), to.ip());
            let endpoint = peer.domain.endpoint().open().unwrap();
            let far = async { request(&peer.events).await.accept(&peer.domain).await };
            let (near, far) = tokio::join!(endpoint.connect(to), far);
            near.unwrap();
            assert_eq!(far.unwrap().peer_addr(), endpoint.local_addr());
            let hints = hints().endpoint(EndpointType::Rdm);
            let fabric = net.fabric_with(hints).unwrap();
            let domain = fabric.domain().open().unwrap();
            let [x, y] = [(); 2].map(|()| domain.rdm_endpoint().open().unwrap());
            let to_y = x.insert(y.local_addr()).unwrap();
            x.send("hello", to_y).delivery_complete().await.unwrap();
            let (received, _) = y.recv(vec![0; 8]).await.unwrap();
            assert_eq!(received.source_addr, Some(x.local_addr()));
            if ip.is_ipv6() {
                let named = format!("[{ip}%near]:{}", y.local_addr().port());
                assert_eq!(x.resolve(&named).await.unwrap(), to_y);
            }
        }
    });
}
