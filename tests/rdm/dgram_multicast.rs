//! Multicast of datagram endpoints (`fi_join`, `fi_mc_addr`; fi_cm(3)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::common::{left_out, on, on_every_backend};
use tokio_fabric::testing::Net;
use tokio_fabric::{
    AddressVector, Backend, DgramEndpoint, Domain, EndpointType, ErrorKind, Hints,
    dgram::MulticastGroup, discover, info::AddressFormat,
};

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Member {
    endpoint: DgramEndpoint,
    peers: AddressVector,
    group: Option<MulticastGroup>,
    _domain: Domain,
}

impl Member {
    /// An endpoint that hears what comes to this port, whatever the address.
    fn open(net: &Net, any: SocketAddr) -> Member {
        let format = match any {
            SocketAddr::V4(_) => AddressFormat::SockaddrIn,
            SocketAddr::V6(_) => AddressFormat::SockaddrIn6,
        };
        let hints = Hints::new()
            .endpoint(EndpointType::Dgram)
            .address_format(format);
        let domain = net.fabric_with(hints).unwrap().domain().open().unwrap();
        let peers = domain.address_vector().open().unwrap();
        let endpoint = (domain.dgram_endpoint())
            .address_vector(&peers)
            .bind(any)
            .shared(true)
            .open()
            .unwrap();
        Member {
            endpoint,
            peers,
            group: None,
            _domain: domain,
        }
    }

    fn join(&mut self, group: SocketAddr) {
        let mut join = self.endpoint.join(group);
        if group.is_ipv4() {
            join = join.interface(LO);
        }
        self.group = Some(join.now().unwrap());
    }
}

/// Groups of one machine and port each, so that tests beside each other do not meet.
fn members(net: &Net, any: IpAddr) -> (Member, Member, Member, u16) {
    let first = Member::open(net, SocketAddr::new(any, 0));
    let port = first.endpoint.local_addr().port();
    let here = SocketAddr::new(any, port);
    let (second, third) = (Member::open(net, here), Member::open(net, here));
    (first, second, third, port)
}

async fn a_group_hears(mut one: Member, mut two: Member, outsider: Member, group: SocketAddr) {
    one.join(group);
    two.join(group);
    let address = one.group.as_ref().unwrap().addr();
    assert_eq!(one.peers.lookup(address).unwrap(), group);
    let heard = [&one, &two].map(|it| it.endpoint.recv(vec![0; 16]).post().unwrap());
    one.endpoint.send("to all", address).await.unwrap();
    for heard in heard {
        let (got, bytes) = heard.await.unwrap();
        assert_eq!(&bytes[..got.len], b"to all");
        assert_eq!(got.source_addr.unwrap().port(), group.port());
    }
    assert_eq!(outsider.endpoint.unexpected_bytes(), 0, "it has not joined");

    // Who has left hears no more, and the group has no name there.
    let left = two.group.take().unwrap();
    let name = left.addr();
    drop(left);
    assert_eq!(
        two.peers.lookup(name).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    one.endpoint.send("again", address).await.unwrap();
    assert_eq!(one.endpoint.recv(vec![0; 16]).await.unwrap().0.len, 5);
    let nothing = two
        .endpoint
        .recv(vec![0; 16])
        .timeout(Duration::from_millis(30));
    assert_eq!(nothing.await.unwrap_err().kind(), ErrorKind::TimedOut);
}

/// fi_cm(3): "This call attaches an endpoint to a multicast group." IPv4.
/// fi_msg(3): `FI_MULTICAST`, flag of fi_sendmsg: the address says it here.
#[test]
fn members_of_a_group_hear_it() {
    on_every_backend(|net| async move {
        let (one, two, outsider, port) = members(&net, Ipv4Addr::UNSPECIFIED.into());
        let group = SocketAddr::from((Ipv4Addr::new(239, 255, 71, 1), port));
        a_group_hears(one, two, outsider, group).await;
    });
}

/// The number of an interface that carries IPv6 multicast, which the loopback interface does not.
fn zone() -> Option<u32> {
    let infos = discover(&Hints::new().endpoint(EndpointType::Dgram)).unwrap();
    let mut zones = infos.iter().map(|info| info.interface.scope_id);
    zones.find(|zone| *zone > 0)
}

/// fi_cm(3): "This call attaches an endpoint to a multicast group." IPv6, on the interface that the
/// zone of the group's address names.
#[test]
fn members_of_an_ipv6_group_hear_it() {
    let test = |net: Net, zone: u32| async move {
        let (one, two, outsider, port) = members(&net, Ipv6Addr::UNSPECIFIED.into());
        let group = SocketAddrV6::new("ff01::7471:1".parse().unwrap(), port, 0, zone);
        a_group_hears(one, two, outsider, group.into()).await;
    };
    match zone() {
        Some(zone) => on_every_backend(|net| test(net, zone)),
        None => {
            left_out("IPv6 multicast on sockets: no interface has a link-local IPv6 address");
            // In process it needs an address of that kind, and nothing that carries it.
            let hints = Hints::new().endpoint(EndpointType::Dgram);
            if discover(&hints.address_format(AddressFormat::SockaddrIn6)).is_ok() {
                on(Backend::Loopback, |net| test(net, 0));
            }
        }
    }
}

/// fi_cm(3), `FI_SEND` of fi_join: "join the multicast group as a send only member". An endpoint of
/// one address cannot hear groups, and says so when it is to.
#[test]
fn a_send_only_member_hears_nothing() {
    on_every_backend(|net| async move {
        let (mut hears, _, _, port) = members(&net, Ipv4Addr::UNSPECIFIED.into());
        let group = SocketAddr::from((Ipv4Addr::new(239, 255, 71, 2), port));
        hears.join(group);
        let sends = Member::open(&net, (Ipv4Addr::LOCALHOST, 0).into());
        let refused = sends.endpoint.join(group).now().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let member = sends.endpoint.join(group).send_only().now().unwrap();
        assert_eq!(member.group(), group);
        let heard = hears.endpoint.recv(vec![0; 16]).post().unwrap();
        sends.endpoint.send("hear", member.addr()).await.unwrap();
        let (got, _) = heard.await.unwrap();
        assert_eq!(
            (got.len, got.source_addr),
            (4, Some(sends.endpoint.local_addr()))
        );
        assert_eq!(sends.endpoint.unexpected_bytes(), 0);
    });
}

/// What is no group, or a group already, is refused.
#[test]
fn what_cannot_be_joined_is_refused() {
    on(Backend::Epoll, |net| async move {
        let (mut member, _, _, port) = members(&net, Ipv4Addr::UNSPECIFIED.into());
        let group = SocketAddr::from((Ipv4Addr::new(239, 255, 71, 3), port));
        member.join(group);
        let again = member.endpoint.join(group).interface(LO).now().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AddressInUse);
        let single = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let six: SocketAddr = "[ff01::7471:3]:9".parse().unwrap();
        for refused in [single, six] {
            let refused = member.endpoint.join(refused).now().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    });
}
