//! Addresses as names of peers.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::id::PeerAddr;

/// Returns the host for whose share of a table an address counts: its IPv4 address, or the /64
/// network of its IPv6 address, since a host may have every address of that network.
pub(crate) fn host_of(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// Returns whether `theirs` survives when `theirs` and `ours` dial each other at once. The bytes of
/// the addresses decide, then those of the ports, in network order, and between contexts of one
/// endpoint their numbers: the connection that the greater side began stays.
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
