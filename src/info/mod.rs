//! Hints and attributes (`fi_getinfo(3)`).
//!
//! [`Hints`] say what a program needs; each [`Info`] is one way to meet them, the best first. If
//! nothing fits, the error names the hint that could not be met, the value asked for and the values
//! offered. The result depends on values only: the machine's interfaces are passed in as a list,
//! the caller looks names up, and nothing in this module opens a socket or reads a variable or a
//! clock.

#![forbid(unsafe_code)]

mod address;
mod atomic;
mod attr;
mod caps;
mod check;
mod hints;
mod kinds;
mod offer;
mod resolve;
mod sides;
#[cfg(test)]
mod tests;
mod weak_domain;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) use address::{address_of_text, look_up};
pub use atomic::{AtomicAttr, AtomicOp, AtomicType, CompareOp};
pub use attr::{AuthKey, DomainAttr, EndpointAttr, FabricAttr, RxAttr, TxAttr};
pub use caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
pub use hints::{DomainHints, EndpointHints, FabricHints, Hints, RxHints, TxHints};
pub use kinds::{
    AddressFormat, ApiVersion, AvType, ContextCount, Driver, EndpointType, Persistence, Progress,
    Protocol, ResourceManagement, Threading, TrafficClass,
};
pub(crate) use resolve::resolve;
pub(crate) use sides::SideCaps;
pub use weak_domain::WeakDomain;

/// One way to communicate that matches the hints (`struct fi_info` of `fi_getinfo(3)`): a network
/// interface, its address, and the attributes of a fabric, a domain and an endpoint on it.
///
/// An `Info` is a plain value: keep it, clone it, and open any number of domains and endpoints with
/// it.
///
/// ```
/// use tokio_fabric::{EndpointType, Hints, discover};
///
/// # fn main() -> tokio_fabric::Result<()> {
/// for info in discover(&Hints::new().endpoint(EndpointType::Msg))? {
///     println!("{}: {:?}", info.interface.name, info.caps);
/// }
/// # Ok(()) }
/// ```
#[doc(alias("fi_info", "fi_dupinfo", "fi_freeinfo"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The capabilities of endpoints: the primary capabilities that the hints requested (all that
    /// are offered, if none were requested) with their directions, and secondary ones. A call that
    /// needs another capability fails with [`NoCapability`](crate::ErrorKind::NoCapability), and a
    /// peer's access with [`Refusal::NoCapability`](crate::error::Refusal::NoCapability). Endpoints
    /// of another type have those of the requested capabilities that their type offers.
    pub caps: Caps,
    /// The obligations of the application. Always empty: the library imposes none.
    pub mode: Mode,
    /// The format of [`source`](Self::source) and [`dest`](Self::dest): IPv4 or IPv6.
    pub address_format: AddressFormat,
    /// The local address of endpoints. With port 0 the system chooses a port. `None`: the
    /// destination is not on this interface's subnet and no hint names a local address, so routing
    /// determines the address when the endpoint connects.
    pub source: Option<SocketAddr>,
    /// The peer's address, if the hints contain a numeric one.
    pub dest: Option<SocketAddr>,
    /// The fabric (`fi_fabric(3)`).
    pub fabric: FabricAttr,
    /// The domain (`fi_domain(3)`).
    pub domain: DomainAttr,
    /// The endpoint (`fi_endpoint(3)`).
    pub endpoint: EndpointAttr,
    /// The endpoint's transmit context (`fi_endpoint(3)`).
    pub tx: TxAttr,
    /// The endpoint's receive context (`fi_endpoint(3)`).
    pub rx: RxAttr,
    /// The network interface of the domain (in place of `fi_nic(3)`).
    pub interface: Interface,
    /// The I/O backend that the hints requested; `None`: `epoll`. Whether it is available is
    /// determined when a domain is opened.
    pub backend: Option<String>,
    /// The capabilities that the hints asked for, from which the capabilities of endpoints of other
    /// kinds in a domain of this Info are computed.
    pub(crate) asked: Caps,
}

impl Info {
    /// Returns the address at which an endpoint listens by default: the source, or any address.
    pub(crate) fn listen_address(&self) -> SocketAddr {
        let any = match self.address_format {
            AddressFormat::SockaddrIn6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        self.source.unwrap_or_else(|| SocketAddr::new(any, 0))
    }

    /// Removes the capability to reach other machines, for a domain whose transport works within
    /// this process.
    pub(crate) fn reaches_this_process_only(&mut self) {
        self.caps.remove(Caps::REMOTE_COMM);
        self.domain.caps.remove(Caps::REMOTE_COMM);
    }
}

impl Info {
    /// Returns whether the keys of the domain's endpoints are those of address vectors
    /// (`FI_AV_AUTH_KEY`).
    pub(crate) fn has_keys_of_vectors(&self) -> bool {
        let key = self.domain.auth_key.as_ref();
        self.fabric.api_version.counts_auth_keys() && key.is_some_and(AuthKey::is_of_address_vector)
    }
}

/// Shows one line: endpoint type, interface and addresses.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (provider, kind) = (&self.fabric.provider, self.endpoint.endpoint_type);
        write!(
            f,
            "{provider} {kind:?} on {} ({})",
            self.domain.name, self.fabric.name
        )?;
        if let Some(source) = self.source {
            write!(f, " from {source}")?;
        }
        if let Some(dest) = self.dest {
            write!(f, " to {dest}")?;
        }
        Ok(())
    }
}

/// One address of a network interface of this machine.
///
/// An interface with several addresses is listed once for each of them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().node("127.0.0.1"))?;
/// let interface = &fabric.infos()[0].interface;
/// assert!(interface.loopback && interface.contains([127, 0, 0, 2].into()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// The system's name of the interface, for example `eth0`.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Length of the subnet's prefix in bits: at most 32 for IPv4, 128 for IPv6.
    pub prefix_len: u8,
    /// The zone of a link-local IPv6 address, which is the index of the interface. 0 for all other
    /// addresses.
    pub scope_id: u32,
    /// Link speed in megabits per second, if the system knows it.
    pub speed_mbps: Option<u64>,
    /// True for the loopback interface, which reaches only this machine.
    pub loopback: bool,
    /// Largest packet in bytes (MTU), if the system knows it.
    pub mtu: Option<u32>,
}

impl Interface {
    /// Returns the size in bytes of the largest UDP datagram that this interface sends as one
    /// packet.
    pub(crate) fn datagram_max(&self) -> usize {
        /// The usual MTU of Ethernet.
        const MTU_USUAL: u32 = 1500;
        const UDP_HEADER: u32 = 8;
        // Length fields have 16 bits; the one of IPv4 also counts the IP header.
        let (ip_header, max) = match self.address {
            IpAddr::V4(_) => (20, 0xffff - 20 - UDP_HEADER),
            IpAddr::V6(_) => (40, 0xffff - UDP_HEADER),
        };
        let room = (self.mtu.unwrap_or(MTU_USUAL)).saturating_sub(ip_header + UDP_HEADER);
        room.min(max) as usize
    }

    /// The subnet of this address, for example `10.0.0.0/24`; it is the name of the fabric.
    pub fn subnet(&self) -> String {
        let (network, prefix_len) = match self.address {
            IpAddr::V4(v4) => {
                let bits = v4.to_bits() & mask_v4(self.prefix_len);
                (
                    IpAddr::V4(Ipv4Addr::from_bits(bits)),
                    self.prefix_len.min(32),
                )
            }
            IpAddr::V6(v6) => {
                let bits = v6.to_bits() & mask_v6(self.prefix_len);
                (
                    IpAddr::V6(Ipv6Addr::from_bits(bits)),
                    self.prefix_len.min(128),
                )
            }
        };
        format!("{network}/{prefix_len}")
    }

    /// True if the address is in the subnet of this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask_v4(self.prefix_len) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask_v6(self.prefix_len) == 0
            }
            _ => false,
        }
    }
}

// `checked_shl` refuses a shift by the full width, which means that no bit of the address counts.
fn mask_v4(prefix_len: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix_len.min(32)))
        .unwrap_or(0)
}

fn mask_v6(prefix_len: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(prefix_len.min(128)))
        .unwrap_or(0)
}
