//! Which addresses a vector takes: peers', in the form of the domain's (`addr_format` of
//! `fi_getinfo(3)`).

use std::net::SocketAddr;

use crate::error::{Error, ErrorKind, Result};
use crate::info::AddressFormat;

#[derive(Clone, Copy, Debug)]
pub(super) struct Format(AddressFormat);

impl Format {
    pub(super) fn new(format: AddressFormat) -> Self {
        Format(format)
    }

    pub(super) fn takes(self, address: SocketAddr) -> bool {
        match self.0 {
            AddressFormat::SockaddrIn => address.ip().to_canonical().is_ipv4(),
            AddressFormat::SockaddrIn6 => address.is_ipv6(),
            _ => true,
        }
    }

    /// The address as it is kept.
    pub(super) fn check(self, mut address: SocketAddr) -> Result<SocketAddr> {
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
        if !self.takes(address) {
            return invalid(match self.0 {
                AddressFormat::SockaddrIn => "is not an IPv4 address, as the domain's are",
                _ => "is not an IPv6 address, as the domain's are",
            });
        }
        if matches!(self.0, AddressFormat::SockaddrIn) {
            address.set_ip(address.ip().to_canonical());
        }
        Ok(address)
    }
}
