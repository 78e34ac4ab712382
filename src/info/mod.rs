//! What is offered and what is asked for: `fi_getinfo(3)`.
//!
//! [`Hints`] say what a program wants; each [`Info`] is one way to have it, best first. The answer
//! is worked out from values alone: the machine's interfaces come in as a list, names are looked
//! up by the caller, and nothing here opens a socket, reads a variable or a clock. When nothing
//! fits, the error names the hint that could not be met, what was asked and what is offered.

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

pub(crate) use address::address_of_text;
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

/// One way to communicate that fits the hints: a network interface, the address on it, and every
/// attribute of the fabric, domain and endpoint to be had there (`struct fi_info` of
/// `fi_getinfo(3)`). An `Info` is a plain value: keep it, clone it, open any number of domains
/// and endpoints with it.
#[doc(alias("fi_info", "fi_dupinfo", "fi_freeinfo"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// What an endpoint opened with this can do: the primary capabilities that were asked for (all
    /// that are offered, if none were) with their directions, and secondary ones on top. A call
    /// that takes another one is refused with [`NoCapability`](crate::ErrorKind::NoCapability), and
    /// a peer's access with [`Refusal::NoCapability`](crate::error::Refusal::NoCapability). An
    /// endpoint of another kind has what its kind offers of the same hints.
    pub caps: Caps,
    /// What the application must do in its calls. Always empty: no mode makes this library faster.
    pub mode: Mode,
    /// The form of [`source`](Self::source) and [`dest`](Self::dest): IPv4 or IPv6.
    pub address_format: AddressFormat,
    /// The address that a local endpoint binds. Port 0 leaves the choice to the system. `None`:
    /// the destination is not on this interface's subnet and no hint chose a local side, so
    /// routing chooses the address when the endpoint connects.
    pub source: Option<SocketAddr>,
    /// The peer's address, when the hints gave one in numbers.
    pub dest: Option<SocketAddr>,
    /// The fabric (`fi_fabric(3)`).
    pub fabric: FabricAttr,
    /// The domain (`fi_domain(3)`).
    pub domain: DomainAttr,
    /// The endpoint (`fi_endpoint(3)`).
    pub endpoint: EndpointAttr,
    /// Its transmit context (`fi_endpoint(3)`).
    pub tx: TxAttr,
    /// Its receive context (`fi_endpoint(3)`).
    pub rx: RxAttr,
    /// The interface behind the domain (stands for `fi_nic(3)`).
    pub interface: Interface,
    /// The I/O backend the hints named. Whether it can be had is found out when a domain is
    /// opened; `None` is `epoll`.
    pub backend: Option<String>,
    /// The capabilities that the hints asked for: what endpoints of other kinds get in a domain of
    /// this Info.
    pub(crate) asked: Caps,
}

impl Info {
    /// The domain moves bytes within this process, whatever interface it is named by.
    pub(crate) fn reaches_this_process_only(&mut self) {
        self.caps.remove(Caps::REMOTE_COMM);
        self.domain.caps.remove(Caps::REMOTE_COMM);
    }
}

impl Info {
    /// True if the keys of the domain's endpoints are those of address vectors (`FI_AV_AUTH_KEY`).
    pub(crate) fn has_keys_of_vectors(&self) -> bool {
        let key = self.domain.auth_key.as_ref();
        self.fabric.api_version.counts_auth_keys() && key.is_some_and(AuthKey::is_of_address_vector)
    }
}

/// One line: endpoint type, interface and addresses.
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

/// One address of one network interface of this machine. An interface with several addresses is
/// listed once for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// The system's name for it, for example `eth0`.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Bits of the address that name its subnet: at most 32 for IPv4, 128 for IPv6.
    pub prefix_len: u8,
    /// The zone of a link-local IPv6 address, which is the interface's index. 0 for all others.
    pub scope_id: u32,
    /// Link speed in megabits per second, if the system knows it.
    pub speed_mbps: Option<u64>,
    /// True for the interface that reaches only this machine.
    pub loopback: bool,
    /// Bytes of the largest packet, if the system knows it.
    pub mtu: Option<u32>,
}

impl Interface {
    /// Bytes of the largest UDP datagram that goes as one packet by this interface.
    pub(crate) fn datagram_max(&self) -> usize {
        /// The usual MTU of an Ethernet.
        const MTU_USUAL: u32 = 1500;
        const UDP_HEADER: u32 = 8;
        // A length field has 16 bits: that of IPv4 counts its own header too.
        let (ip_header, max) = match self.address {
            IpAddr::V4(_) => (20, 0xffff - 20 - UDP_HEADER),
            IpAddr::V6(_) => (40, 0xffff - UDP_HEADER),
        };
        let room = (self.mtu.unwrap_or(MTU_USUAL)).saturating_sub(ip_header + UDP_HEADER);
        room.min(max) as usize
    }

    /// The subnet of this address, written `10.0.0.0/24`; the fabric's name.
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

    /// True if the address lies in this interface's subnet.
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

// A shift by the full width is what `checked_shl` refuses; it means "no bit of the address counts".
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
