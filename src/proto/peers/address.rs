//! Addresses as names of peers.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The form in which an address names a peer: IPv4 as such, and an IPv6 address without what says
/// nothing of who it is.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(ip), SocketAddr::V6(v6)) => {
            SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into()
        }
        (ip, _) => SocketAddr::new(ip, address.port()),
    }
}

/// When `theirs` and `ours` dial each other at once: whether theirs survives. The bytes of the
/// addresses decide, then those of the ports, as they go over a network: the connection that the
/// greater one began stays.
pub(crate) fn wins(theirs: SocketAddr, ours: SocketAddr) -> bool {
    let ordering = match (theirs.ip(), ours.ip()) {
        (IpAddr::V4(theirs), IpAddr::V4(ours)) => theirs.octets().cmp(&ours.octets()),
        (IpAddr::V6(theirs), IpAddr::V6(ours)) => theirs.octets().cmp(&ours.octets()),
        (IpAddr::V4(_), IpAddr::V6(_)) => Ordering::Less,
        (IpAddr::V6(_), IpAddr::V4(_)) => Ordering::Greater,
    };
    let ports = || theirs.port().to_be_bytes().cmp(&ours.port().to_be_bytes());
    ordering.then_with(ports) == Ordering::Greater
}
