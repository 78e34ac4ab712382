//! The addresses that a node and a service stand for (`fi_av_insertsvc`, `fi_av_insertsym`;
//! `fi_av(3)`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::{Error, ErrorKind, Result};
use crate::id::FabricAddr;
use crate::info::{self, address_of_text};

/// A node. Together with each port of the insertion it gives one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A numeric address, whose port is not set yet.
    Known(SocketAddr),
    /// A name to be looked up.
    Named(String),
}

/// All combinations of the nodes and the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) nodes: Vec<Node>,
    pub(super) ports: Vec<u16>,
}

impl Grid {
    /// Combines one node and one service; or takes an address in libfabric's text form, without a
    /// service.
    pub(super) fn service(node: &str, service: Option<&str>) -> Result<Grid> {
        if !node.starts_with("fi_sockaddr") {
            let service = service.ok_or_else(|| invalid("service: the node has no port".into()))?;
            return Grid::symmetric(node, 1, service, 1);
        }
        if service.is_some() {
            let message = "service: the node is an address with its own port";
            return Err(invalid(message.into()));
        }
        let address = address_of_text(node)?;
        Ok(Grid {
            nodes: vec![Node::Known(address)],
            ports: vec![address.port()],
        })
    }

    /// Combines the ranges {node, node + nodes - 1} and {service, service + services - 1}.
    pub(super) fn symmetric(
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Result<Grid> {
        let count = nodes.checked_mul(services);
        if count.is_none_or(|count| count > FabricAddr::INDEX_COUNT as usize) {
            let max = FabricAddr::INDEX_COUNT;
            let message = format!(
                "{nodes} nodes with {services} services each, an address vector holds {max}"
            );
            return Err(Error::new(ErrorKind::LimitReached, message));
        }
        if count == Some(0) {
            return Ok(Grid {
                nodes: Vec::new(),
                ports: Vec::new(),
            });
        }
        Ok(Grid {
            nodes: match node.parse::<IpAddr>() {
                Ok(ip) => numeric_nodes(ip, nodes)?,
                Err(_) => named_nodes(node, nodes)?,
            },
            ports: ports(service, services)?,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len() * self.ports.len()
    }

    /// Returns the addresses in the order of insertion, if no name has to be looked up: "All
    /// service addresses for a node will be inserted before the next node is inserted."
    pub(super) fn known(&self) -> Option<Vec<SocketAddr>> {
        let nodes: Option<Vec<SocketAddr>> = self.nodes.iter().map(Node::known).collect();
        let with_ports = |node: SocketAddr| self.ports.iter().map(move |port| at(node, *port));
        Some(nodes?.into_iter().flat_map(with_ports).collect())
    }
}

impl Node {
    fn known(&self) -> Option<SocketAddr> {
        match self {
            Node::Known(address) => Some(*address),
            Node::Named(_) => None,
        }
    }
}

/// Returns the node with this port.
pub(super) fn at(mut node: SocketAddr, port: u16) -> SocketAddr {
    node.set_port(port);
    node
}

fn ports(service: &str, services: usize) -> Result<Vec<u16>> {
    let Ok(first) = service.parse::<u16>() else {
        let message = format!("service: {service:?} is not a port number");
        return Err(invalid(message));
    };
    let left = usize::from(u16::MAX - first) + 1;
    if services > left {
        let message = format!("service: {services} ports from {first} on end above 65535");
        return Err(invalid(message));
    }
    Ok((first..=u16::MAX).take(services).collect())
}

fn numeric_nodes(first: IpAddr, nodes: usize) -> Result<Vec<Node>> {
    let step = |by: usize| match first {
        IpAddr::V4(v4) => {
            let ip = u32::try_from(by).ok()?.checked_add(v4.to_bits())?;
            Some(IpAddr::V4(Ipv4Addr::from_bits(ip)))
        }
        IpAddr::V6(v6) => {
            let ip = v6.to_bits().checked_add(by as u128)?;
            Some(IpAddr::V6(Ipv6Addr::from_bits(ip)))
        }
    };
    let nodes_found: Option<Vec<Node>> = (0..nodes)
        .map(|by| step(by).map(|ip| Node::Known(SocketAddr::new(ip, 0))))
        .collect();
    nodes_found.ok_or_else(|| {
        let message = format!("node: {nodes} addresses from {first} on do not exist");
        invalid(message)
    })
}

/// Counts up the number at the end of a host's name, and keeps its width: host09, host10. A domain
/// may follow the host's name.
fn named_nodes(first: &str, nodes: usize) -> Result<Vec<Node>> {
    if first.is_empty() {
        return Err(invalid("node: an empty name".into()));
    }
    if nodes == 1 {
        return Ok(vec![Node::Named(first.to_owned())]);
    }
    let host_len = match first.ends_with(|last: char| last.is_ascii_digit()) {
        true => first.len(),
        false => first.find('.').unwrap_or(first.len()),
    };
    let (host, domain) = first.split_at(host_len);
    let stem = host.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let suffix = &host[stem.len()..];
    let number = match suffix.parse::<u64>() {
        // The zone of an IPv6 address is not the number of a host.
        Ok(number) if !first.contains('%') => number,
        _ => {
            let message = format!("node: {first:?} has no number at its end to count up from");
            return Err(invalid(message));
        }
    };
    let width = suffix.len();
    let named = |by: usize| {
        let number = number.checked_add(by as u64)?;
        Some(Node::Named(format!("{stem}{number:0width$}{domain}")))
    };
    let nodes: Option<Vec<Node>> = (0..nodes).map(named).collect();
    nodes.ok_or_else(|| {
        invalid(format!(
            "node: the number at the end of {first:?} is too large"
        ))
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Asks the system's resolver, and blocks until it answers. Returns the first address that fits,
/// otherwise the first one.
pub(crate) fn look_up(name: &str, fits: impl Fn(SocketAddr) -> bool) -> Result<SocketAddr> {
    let found = info::look_up(name, 0)?;
    let fitting = found.iter().copied().find(|address| fits(*address));
    let first = found.first().copied();
    Ok(fitting
        .or(first)
        .expect("a name without an address is an error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(first: &str, nodes: usize) -> Vec<String> {
        let nodes = named_nodes(first, nodes).unwrap();
        let shown = nodes.into_iter().map(|node| match node {
            Node::Named(name) => name,
            Node::Known(_) => unreachable!(),
        });
        shown.collect()
    }

    /// fi_av(3): "If node is a non-numeric string, such as a hostname, it must contain a numeric
    /// suffix if nodecnt > 1."
    #[test]
    fn host_names_count_up_by_their_numeric_suffix() {
        assert_eq!(names("host10", 2), ["host10", "host11"]);
        assert_eq!(names("n098", 3), ["n098", "n099", "n100"]);
        assert_eq!(
            names("n1.rack.example", 2),
            ["n1.rack.example", "n2.rack.example"]
        );
        assert_eq!(names("localhost", 1), ["localhost"]);
        for wrong in [
            "localhost",
            "",
            "fe80::1%2",
            "a.b",
            "n99999999999999999999999",
        ] {
            let refused = named_nodes(wrong, 2).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
        let largest = format!("n{}", u64::MAX);
        assert_eq!(names(&largest, 1), [largest.as_str()]);
        assert!(named_nodes(&largest, 2).is_err());
    }

    /// Ranges that do not exist are refused whole, whatever their size.
    #[test]
    fn ranges_beyond_the_last_address_or_port_are_refused() {
        let kind = |grid: Result<Grid>| grid.map(|grid| grid.len()).map_err(|error| error.kind());
        let invalid = Err(ErrorKind::InvalidArgument);
        assert_eq!(kind(Grid::symmetric("10.0.0.1", 2, "65535", 1)), Ok(2));
        assert_eq!(kind(Grid::symmetric("10.0.0.1", 1, "65535", 2)), invalid);
        assert_eq!(kind(Grid::symmetric("255.255.255.255", 2, "1", 1)), invalid);
        assert_eq!(kind(Grid::symmetric("10.0.0.1", 1, "http", 1)), invalid);
        assert_eq!(kind(Grid::symmetric("10.0.0.1", 0, "1", 5)), Ok(0));
        let many = [(1 << 30, 1), (usize::MAX, 2), (1 << 14, 1 << 14)];
        for (nodes, services) in many {
            let refused = Grid::symmetric("::1", nodes, "1", services);
            assert_eq!(kind(refused), Err(ErrorKind::LimitReached));
        }
    }
}
