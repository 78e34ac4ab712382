//! Traffic classes, as the sockets have them (`tclass` of `fi_domain(3)` and `fi_endpoint(3)`).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::common::on_every_backend;
use crate::common::peers::peer_with;
use socket2::{Domain, SockRef, Type};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{Backend, ErrorKind, Hints, domain::DomainBind, info::TrafficClass};

/// Code point and priority of the socket of this kind and process that is bound to, and connected
/// to, such addresses: another test's socket of the other kind may have the same port.
fn marks_of(
    kind: Type,
    is_it: impl Fn(SocketAddr, Option<SocketAddr>) -> bool,
) -> Option<(u32, u32)> {
    let open = std::fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    open.flatten().find_map(|entry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: only asked for its addresses and options, within this call; a descriptor that
        // another test closes meanwhile, or uses anew, has others.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = SockRef::from(&fd);
        let address = |it: std::io::Result<socket2::SockAddr>| it.ok()?.as_socket();
        let is_it = is_it(address(socket.local_addr())?, address(socket.peer_addr()));
        if !is_it || socket.r#type().ok()? != kind {
            return None;
        }
        let octet = match socket.domain().ok()? {
            Domain::IPV6 => socket.tclass_v6(),
            _ => socket.tos_v4(),
        };
        Some((octet.ok()? >> 2, socket.priority().ok()?))
    })
}

/// A peer whose domain has this class of traffic.
fn of_class(net: &Net, class: TrafficClass) -> Peer {
    let hints = Hints::new().domain(|domain| domain.traffic_class(class));
    peer_with(net, hints, DomainBind::empty())
}

/// fi_domain(3): "the default traffic class that will be associated any endpoints created within
/// the domain.": the sockets of connected endpoints have its code point and its priority, those that
/// connect and those that are accepted; an endpoint's own class goes before it.
#[test]
fn the_sockets_of_an_endpoint_have_its_traffic_class_or_its_domains() {
    use TrafficClass::{
        BestEffort, BulkData, DedicatedAccess, Dscp, LowLatency, Scavenger, Unspec,
    };
    on_every_backend(|net| async move {
        let classes = [
            (LowLatency, Unspec, (18, 4)),
            (LowLatency, BestEffort, (0, 0)),
            (Unspec, DedicatedAccess, (46, 6)),
            (BulkData, Scavenger, (1, 1)),
            (BulkData, Unspec, (10, 2)),
            (BestEffort, TrafficClass::NetworkCtrl, (48, 6)),
            (BestEffort, Dscp(34), (34, 4)),
            (Unspec, Unspec, (0, 0)),
        ];
        for (domain, own, expected) in classes {
            let (a, b) = (of_class(&net, domain), net.peer().unwrap());
            let open = |class| a.domain.endpoint().traffic_class(class).open().unwrap();
            let (x, y) = (open(own), b.domain.endpoint().open().unwrap());
            let (back, z) = (open(own), b.domain.endpoint().open().unwrap());
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            connect_endpoints(&z, &back, &a.fabric).await.unwrap();
            if a.domain.backend() == Backend::Loopback {
                continue;
            }
            for (endpoint, expected) in [(&x, expected), (&back, expected), (&y, (0, 0))] {
                let ends = (endpoint.local_addr().unwrap(), endpoint.peer_addr());
                let marks = marks_of(Type::STREAM, |local, peer| (local, peer) == ends);
                assert_eq!(marks, Some(expected), "{domain:?}, {own:?}");
            }
        }
        let a = net.peer().unwrap();
        let wrong = a
            .domain
            .endpoint()
            .traffic_class(Dscp(64))
            .open()
            .unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
    });
}

/// The same of connectionless endpoints: of all their connections, and of datagrams.
#[test]
fn the_sockets_of_connectionless_endpoints_have_a_traffic_class_too() {
    on_every_backend(|net| async move {
        let (a, b) = (of_class(&net, TrafficClass::BulkData), net.peer().unwrap());
        let (x, y) = (a.rdm_endpoint().unwrap(), b.rdm_endpoint().unwrap());
        let to_y = x.insert(y.local_addr()).unwrap();
        x.send("hello", to_y).await.unwrap();
        y.recv(vec![0; 8]).await.unwrap();
        let local = a.rdm_endpoint().unwrap().local_addr();
        let vector = a.domain.address_vector().open().unwrap();
        let datagrams = |class| {
            let builder = a.domain.dgram_endpoint().address_vector(&vector);
            let at = SocketAddr::new(local.ip(), 0);
            builder.bind(at).traffic_class(class).open().unwrap()
        };
        if a.domain.backend() == Backend::Loopback {
            return;
        }
        // That which it has dialled, and that which the other has accepted.
        let ours = marks_of(Type::STREAM, |_, peer| peer == Some(y.local_addr()));
        let theirs = marks_of(Type::STREAM, |local, peer| {
            local == y.local_addr() && peer.is_some()
        });
        assert_eq!((ours, theirs), (Some((10, 2)), Some((0, 0))));
        for (class, expected) in [
            (TrafficClass::Unspec, (10, 2)),
            (TrafficClass::Scavenger, (1, 1)),
        ] {
            let endpoint = datagrams(class);
            let marks = marks_of(Type::DGRAM, |local, _| local == endpoint.local_addr());
            assert_eq!(marks, Some(expected));
        }
    });
}
