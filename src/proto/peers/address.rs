//! Addresses as names of peers.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::id::PeerAddr;

/// Returns the host whose share of a table an address uses: its IPv4 address, or the /64 network of
/// its IPv6 address, since a host may have every address of that network.
pub(crate) fn host_of(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// Returns whether the connection of `theirs` survives when `theirs` and `ours` dial each other at
/// once: the connection of the greater side does. The bytes of the addresses decide, then those of
/// the ports, in network order, then, between contexts of one endpoint, the context numbers.
pub(crate) fn wins(theirs: PeerAddr, ours: PeerAddr) -> bool {
    let contexts = theirs.context.cmp(&ours.context);
    let (theirs, ours) = (theirs.socket, ours.socket);
    let ordering = match (theirs.ip(), ours.ip()) {
        (IpAddr::V4(theirs), IpAddr::V4(ours)) => theirs.octets().cmp(&ours.octets()),
        (IpAddr::V6(theirs), IpAddr::V6(ours)) => theirs.octets().cmp(&ours.octets()),
        (IpAddr::V4(_), IpAddr::V6(_)) => Ordering::Less,
        (IpAddr::V6(_), IpAddr::V4(_)) => Ordering::Greater,
    };
    let ports = || theirs.port().to_be_bytes().cmp(&ours.port().to_be_bytes());
    ordering.then_with(ports).then(contexts) == Ordering::Greater
}
