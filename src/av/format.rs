//! The addresses that a vector accepts: addresses of peers, in the domain's format (`addr_format`
//! of `fi_getinfo(3)`).

use std::net::SocketAddr;

use crate::error::{Error, ErrorKind, Result};
use crate::id::canonical;
use crate::info::AddressFormat;

#[derive(Clone, Copy, Debug)]
pub(super) struct Format(AddressFormat);

impl Format {
    pub(super) fn new(format: AddressFormat) -> Self {
        Format(format)
    }

    /// Returns whether the address belongs to the domain's own family.
    pub(super) fn prefers(self, address: SocketAddr) -> bool {
        match self.0 {
            AddressFormat::SockaddrIn => canonical(address).is_ipv4(),
            AddressFormat::SockaddrIn6 => canonical(address).is_ipv6(),
            _ => true,
        }
    }

    /// Returns the address in its canonical form, if a peer can have it. In a `sockaddr_in6`, IPv4
    /// has the form `::ffff:a.b.c.d`, so a domain of that format accepts both forms.
    pub(super) fn check(self, address: SocketAddr) -> Result<SocketAddr> {
        let address = canonical(address);
        let invalid = |why: &str| {
            let message = format!("address: {address} {why}");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        };
        if address.ip().is_unspecified() {
            return invalid("is a wildcard: pass an address at which the peer can be reached");
        }
        if address.port() == 0 {
            return invalid("has no port: pass the one at which the peer listens");
        }
        if matches!(self.0, AddressFormat::SockaddrIn) && address.is_ipv6() {
            return invalid("is not an IPv4 address, as the domain's are");
        }
        Ok(address)
    }
}
