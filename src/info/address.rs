//! The addresses that the hints stand for, and the interfaces that match the hints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use super::Interface;
use super::check::{each_once, invalid, no_match};
use super::hints::Hints;
use super::kinds::AddressFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::id::canonical;

/// An interface that matches, with the addresses that an endpoint has on it.
pub(super) struct Route<'a> {
    pub(super) interface: &'a Interface,
    pub(super) source: Option<SocketAddr>,
    pub(super) dest: Option<SocketAddr>,
}

/// A source or destination that the hints give in numeric form.
#[derive(Clone, Copy)]
struct AddressHint {
    /// Name of the hint that it came from, for messages.
    hint: &'static str,
    /// `None`: only the port was given.
    ip: Option<IpAddr>,
    port: u16,
    scope_id: u32,
}

/// Returns the routes that match the hints, best first.
pub(super) fn routes<'a>(hints: &Hints, offers: &'a [Interface]) -> Result<Vec<Route<'a>>> {
    let (source, dest) = address_hints(hints)?;
    if offers.is_empty() {
        return Err(Error::new(
            ErrorKind::NoMatch,
            "no network interface has an address",
        ));
    }
    let mut left: Vec<&Interface> = offers.iter().collect();
    if let Some(name) = &hints.interface {
        keep(&mut left, "interface", name, by_name, |offer| {
            offer.name == *name
        })?;
    }
    if let Some(format) = hints.address_format {
        keep(
            &mut left,
            "address_format",
            &format!("{format:?}"),
            by_address,
            |offer| match format {
                AddressFormat::SockaddrIn => offer.address.is_ipv4(),
                AddressFormat::SockaddrIn6 => offer.address.is_ipv6(),
                AddressFormat::Str => false,
                _ => true,
            },
        )?;
    }
    if let Some(name) = &hints.domain.name {
        keep(&mut left, "domain.name", name, by_name, |offer| {
            offer.name == *name
        })?;
    }
    if let Some(name) = &hints.fabric.name {
        keep(&mut left, "fabric.name", name, Interface::subnet, |offer| {
            offer.subnet() == *name
        })?;
    }
    if let Some(side @ AddressHint { ip: Some(ip), .. }) = source {
        keep(&mut left, side.hint, &side.show(), by_address, |offer| {
            may_bind(offer, ip) && side.is_in_zone_of(offer)
        })?;
    }
    if let Some(side) = dest {
        keep(&mut left, side.hint, &side.show(), by_address, |offer| {
            may_reach(offer, side) && side.is_in_zone_of(offer)
        })?;
    }

    // The sort is stable: equal interfaces stay in the order in which the system lists them.
    left.sort_by_key(|offer| {
        let near = dest
            .and_then(|side| side.ip)
            .is_none_or(|ip| offer.contains(ip));
        let speed = offer.speed_mbps.unwrap_or(0);
        // Link-local addresses, which only one link reaches, come after all others of the same
        // distance.
        (
            !near,
            is_link_local(offer.address),
            offer.loopback,
            std::cmp::Reverse(speed),
        )
    });
    let chosen =
        hints.interface.is_some() || hints.domain.name.is_some() || hints.fabric.name.is_some();
    Ok(left
        .into_iter()
        .map(|interface| Route {
            interface,
            source: local_address(interface, source, dest, chosen),
            dest: dest.map(|side| side.on(interface, loopback_like(interface.address))),
        })
        .collect())
}

/// Returns source and destination, by the rules of `fi_getinfo(3)` on the precedence of the hints
/// for node, service and addresses.
fn address_hints(hints: &Hints) -> Result<(Option<AddressHint>, Option<AddressHint>)> {
    let given = |hint, address: Option<SocketAddr>| {
        address.map(|address| AddressHint {
            hint,
            ip: Some(address.ip().to_canonical()),
            port: address.port(),
            scope_id: match address {
                SocketAddr::V6(v6) => v6.scope_id(),
                SocketAddr::V4(_) => 0,
            },
        })
    };
    let named = hints.node.is_some() || hints.service.is_some();
    if hints.node_is_source && !named {
        return Err(invalid(
            "node_is_source: neither a node nor a service was given",
        ));
    }
    let by_name = named_address(hints)?;
    let (source, dest) = match (hints.node_is_source, named) {
        (true, _) => (by_name, given("dest", hints.dest)),
        (false, true) => (given("source", hints.source), by_name),
        (false, false) => (given("source", hints.source), given("dest", hints.dest)),
    };
    if dest
        .and_then(|side| side.ip)
        .is_some_and(|ip| ip.is_unspecified())
    {
        return Err(invalid("dest: a wildcard address names no peer"));
    }
    Ok((source, dest))
}

/// Returns the address that node and service give in numeric form; `None` if one of them is a name
/// or both are missing.
fn named_address(hints: &Hints) -> Result<Option<AddressHint>> {
    let node = hints.node.as_deref();
    if let Some(text) = node.filter(|node| node.starts_with("fi_sockaddr")) {
        return address_text(text, hints.service.is_some()).map(Some);
    }
    let ip = match node.map(str::parse::<IpAddr>) {
        Some(Ok(ip)) => Some(ip.to_canonical()),
        Some(Err(_)) if hints.numeric_host => {
            let node = node.unwrap_or_default();
            return Err(invalid(format!(
                "numeric_host: the node {node:?} is a name"
            )));
        }
        Some(Err(_)) => return Ok(None),
        None => None,
    };
    let port = match hints.service.as_deref() {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse::<u16>().map_err(|_| {
                invalid(format!(
                    "service: {digits} is above the largest port, 65535"
                ))
            })?
        }
        Some(_) => return Ok(None),
        None if ip.is_none() => return Ok(None),
        None => 0,
    };
    let hint = if ip.is_some() { "node" } else { "service" };
    Ok(Some(AddressHint {
        hint,
        ip,
        port,
        scope_id: 0,
    }))
}

/// Parses text such as `fi_sockaddr://10.31.6.12:7471`, with `_in` or `_in6`, the port and a query
/// optional.
fn address_text(text: &str, has_service: bool) -> Result<AddressHint> {
    if has_service {
        return Err(invalid("service: the node is an address with its own port"));
    }
    let wrong = || {
        invalid(format!(
            "node: {text:?} is not an address in libfabric's text form"
        ))
    };
    let (format, rest) = text.split_once("://").ok_or_else(wrong)?;
    let rest = rest.split('?').next().unwrap_or(rest);
    let bare = rest
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(rest);
    let address = rest
        .parse::<SocketAddr>()
        .or_else(|_| bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0)))
        .map_err(|_| wrong())?;
    match (format, address) {
        ("fi_sockaddr", _)
        | ("fi_sockaddr_in", SocketAddr::V4(_))
        | ("fi_sockaddr_in6", SocketAddr::V6(_)) => {}
        _ => return Err(wrong()),
    }
    let scope_id = match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let ip = Some(address.ip().to_canonical());
    Ok(AddressHint {
        hint: "node",
        ip,
        port: address.port(),
        scope_id,
    })
}

/// Parses an address in libfabric's text form (`FI_ADDR_STR` of `fi_getinfo(3)`).
pub(crate) fn address_of_text(text: &str) -> Result<SocketAddr> {
    let side = address_text(text, false)?;
    let ip = side.ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Ok(socket_address(ip, side.port, side.scope_id))
}

impl AddressHint {
    fn show(&self) -> String {
        match self.ip {
            Some(ip) => ip.to_string(),
            None => format!("port {} of the loopback address", self.port),
        }
    }

    /// Returns false for a link-local address of another link than the interface's.
    fn is_in_zone_of(&self, interface: &Interface) -> bool {
        let ip = self.ip.filter(|ip| ip.is_ipv6() && is_link_local(*ip));
        ip.is_none() || [0, interface.scope_id].contains(&self.scope_id)
    }

    /// Returns this side's address on the interface. A link-local address without a zone gets the
    /// interface's.
    fn on(&self, interface: &Interface, otherwise: IpAddr) -> SocketAddr {
        let ip = self.ip.unwrap_or(otherwise);
        let scope_id = match self.scope_id {
            0 if is_link_local(ip) => interface.scope_id,
            given => given,
        };
        socket_address(ip, self.port, scope_id)
    }
}

/// Returns the address to bind: the given one, otherwise the interface's own. For a peer outside of
/// the subnet the result is `None`, unless a hint chose the interface, since the fastest interface
/// need not be the one that routing takes.
fn local_address(
    interface: &Interface,
    source: Option<AddressHint>,
    dest: Option<AddressHint>,
    chosen: bool,
) -> Option<SocketAddr> {
    if let Some(side) = source {
        return Some(side.on(interface, interface.address));
    }
    let far = dest
        .and_then(|side| side.ip)
        .is_some_and(|ip| !interface.contains(ip));
    if far && !chosen {
        return None;
    }
    Some(socket_address(interface.address, 0, interface.scope_id))
}

fn socket_address(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    canonical(match ip {
        IpAddr::V4(v4) => SocketAddr::from((v4, port)),
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope_id)),
    })
}

/// Returns whether the address can be bound on the interface: its own address, a wildcard of the
/// same family, or, on the loopback interface, any address of its subnet.
fn may_bind(offer: &Interface, ip: IpAddr) -> bool {
    offer.address == ip
        || ip.is_unspecified() && ip.is_ipv4() == offer.address.is_ipv4()
        || offer.loopback && ip.is_loopback() && offer.contains(ip)
}

/// Returns whether the interface can reach the destination: loopback addresses reach only loopback
/// addresses, and other addresses reach only other addresses.
fn may_reach(offer: &Interface, dest: AddressHint) -> bool {
    let loopback = offer.address.is_loopback();
    match dest.ip {
        None => loopback,
        Some(ip) => ip.is_ipv4() == offer.address.is_ipv4() && ip.is_loopback() == loopback,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn loopback_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

fn by_name(offer: &Interface) -> String {
    offer.name.clone()
}

fn by_address(offer: &Interface) -> String {
    format!("{} ({})", offer.address, offer.name)
}

/// Keeps the offers that fit. If none fits, the error lists those that were left before.
fn keep(
    left: &mut Vec<&Interface>,
    hint: &str,
    asked: &str,
    show: impl Fn(&Interface) -> String,
    fits: impl Fn(&Interface) -> bool,
) -> Result<()> {
    let fitting: Vec<&Interface> = left.iter().copied().filter(|offer| fits(offer)).collect();
    if fitting.is_empty() {
        let offered = each_once(left.iter().map(|offer| show(offer)));
        return Err(no_match(hint, asked, offered));
    }
    *left = fitting;
    Ok(())
}

/// Asks the system's resolver for the addresses of a name, and blocks until it answers. Returns at
/// least one address, each with this port.
pub(crate) fn look_up(name: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let failed = |why: &dyn std::fmt::Display| {
        let message = format!("node {name:?}: {why}");
        Error::new(ErrorKind::NoMatch, message)
    };
    let found = (name, port).to_socket_addrs();
    let found: Vec<_> = found
        .map_err(|error| failed(&error))?
        .map(canonical)
        .collect();
    match found.is_empty() {
        true => Err(failed(&"it has no address")),
        false => Ok(found),
    }
}

impl Hints {
    /// Returns whether the hints choose the local side, by address, interface or name.
    pub(crate) fn choose_source(&self) -> bool {
        let names = [&self.interface, &self.domain.name, &self.fabric.name];
        self.source.is_some() || self.node_is_source || names.iter().any(|name| name.is_some())
    }

    /// Returns the node and service as given, if one of them is a name that must be looked up
    /// before the hints can be resolved in full.
    pub(crate) fn unresolved(&self) -> Result<Option<(Option<&str>, Option<&str>)>> {
        let named = self.node.is_some() || self.service.is_some();
        match named && named_address(self)?.is_none() {
            true => Ok(Some((self.node.as_deref(), self.service.as_deref()))),
            false => Ok(None),
        }
    }

    /// Returns the hints with node and service replaced by an address that was found for them.
    pub(crate) fn resolved_to(mut self, address: SocketAddr) -> Self {
        self.node = None;
        self.service = None;
        match std::mem::take(&mut self.node_is_source) {
            true => self.source = Some(address),
            false => self.dest = Some(address),
        }
        self
    }
}
