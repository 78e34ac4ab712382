//! The target of a channel, and the resolution of names to addresses.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::pin::Pin;
use std::sync::Arc;

/// The target of a [`Channel`](crate::Channel): addresses, or a name, which is looked up whenever
/// the channel connects.
///
/// Text that parses as an address with a port is an address; other text is a name, such as
/// `cache-2:7901`. The channel's [resolver](Resolve) defines what names mean; by default a name is
/// a host and a port.
///
/// ```
/// use tokio_fabric_rpc::Target;
///
/// assert_eq!(Target::from("[::1]:7901"), Target::from(("::1", 7901)));
/// assert_eq!(Target::from(("cache-2", 7901)).to_string(), "cache-2:7901");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target(TargetKind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum TargetKind {
    Addresses(Arc<[SocketAddr]>),
    Name(Arc<str>),
}

impl Target {
    /// Returns the name, unless the target consists of addresses.
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            TargetKind::Addresses(_) => None,
            TargetKind::Name(name) => Some(name),
        }
    }

    /// Returns the host for spans: the host of the name, or of the first address.
    pub(crate) fn host(&self) -> impl fmt::Display + '_ {
        TargetHost(self)
    }

    /// Returns the port for spans.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.0 {
            TargetKind::Addresses(addresses) => addresses.first().map(|it| it.port()),
            TargetKind::Name(name) => name.rsplit_once(':').and_then(|it| it.1.parse().ok()),
        }
    }

    /// Returns the target's addresses, or the present addresses of its name.
    pub(super) async fn look_up(&self, resolver: &dyn DynResolve) -> io::Result<Vec<SocketAddr>> {
        match &self.0 {
            TargetKind::Addresses(addresses) => Ok(addresses.to_vec()),
            TargetKind::Name(name) => resolver.resolve(name).await,
        }
    }
}

struct TargetHost<'a>(&'a Target);

impl fmt::Display for TargetHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.0 {
            TargetKind::Addresses(addresses) => match addresses.first() {
                Some(address) => address.ip().fmt(f),
                None => Ok(()),
            },
            TargetKind::Name(name) => match name.rsplit_once(':') {
                Some((host, port)) if port.parse::<u16>().is_ok() => f.write_str(host),
                _ => f.write_str(name),
            },
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TargetKind::Name(name) => f.write_str(name),
            TargetKind::Addresses(addresses) => {
                for (at, address) in addresses.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{address}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Target {
        match text.parse::<SocketAddr>() {
            Ok(address) => address.into(),
            Err(_) => Target(TargetKind::Name(text.into())),
        }
    }
}

impl From<String> for Target {
    fn from(text: String) -> Target {
        text.as_str().into()
    }
}

impl From<&String> for Target {
    fn from(text: &String) -> Target {
        text.as_str().into()
    }
}

/// A host, which is a name or an IP address, and a port.
impl From<(&str, u16)> for Target {
    fn from((host, port): (&str, u16)) -> Target {
        match host.parse::<IpAddr>() {
            Ok(ip) => (ip, port).into(),
            Err(_) => Target(TargetKind::Name(format!("{host}:{port}").into())),
        }
    }
}

impl From<(String, u16)> for Target {
    fn from((host, port): (String, u16)) -> Target {
        (host.as_str(), port).into()
    }
}

macro_rules! from_address {
    ($($of:ty),*) => { $(
        impl From<$of> for Target {
            fn from(address: $of) -> Target {
                [SocketAddr::from(address)].into()
            }
        }
    )* };
}

from_address!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl From<&SocketAddr> for Target {
    fn from(address: &SocketAddr) -> Target {
        [*address].into()
    }
}

impl<const N: usize> From<[SocketAddr; N]> for Target {
    fn from(addresses: [SocketAddr; N]) -> Target {
        Target(TargetKind::Addresses(addresses.into()))
    }
}

impl From<&[SocketAddr]> for Target {
    fn from(addresses: &[SocketAddr]) -> Target {
        Target(TargetKind::Addresses(addresses.into()))
    }
}

impl From<Vec<SocketAddr>> for Target {
    fn from(addresses: Vec<SocketAddr>) -> Target {
        Target(TargetKind::Addresses(addresses.into()))
    }
}

/// Finds the addresses of a name, for channels ([`ChannelBuilder::resolver`]): an application's own
/// service discovery.
///
/// A channel resolves the name whenever it connects, so that it follows a server whose address
/// changes, when [`Channel::refresh`] is called, and again if no address answers.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::io;
/// use std::net::SocketAddr;
/// use std::sync::{Arc, Mutex};
///
/// use tokio_fabric_rpc::{Channel, Resolve, Result, Server};
///
/// /// A table that other parts of the program keep up to date.
/// #[derive(Clone, Default)]
/// struct Table(Arc<Mutex<BTreeMap<String, SocketAddr>>>);
///
/// impl Resolve for Table {
///     async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
///         Ok(self.0.lock().unwrap().get(name).copied().into_iter().collect())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let (table, server) = (Table::default(), Server::new().bind("127.0.0.1:0").await?);
/// table.0.lock().unwrap().insert("shard 7".into(), server.local_addr());
/// let channel = Channel::builder().resolver(table).connect("shard 7").await?;
/// assert!(channel.is_ready());
/// # Ok(()) }
/// ```
///
/// [`Channel::refresh`]: crate::Channel::refresh
/// [`ChannelBuilder::resolver`]: crate::ChannelBuilder::resolver
pub trait Resolve: Send + Sync + 'static {
    /// Returns the present addresses of a name, the preferred address first, or an [`io::Error`].
    /// The channel's connect limit applies.
    ///
    /// # Errors
    /// The reason why the name has no addresses now. A channel that has connected before then tries
    /// the addresses that it knows.
    ///
    /// # Cancel safety
    /// The future is dropped if the attempt to connect is given up.
    fn resolve(&self, name: &str) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;
}

/// A [`Resolve`] behind a pointer.
pub(super) trait DynResolve: Send + Sync {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

impl<R: Resolve> DynResolve for R {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(Resolve::resolve(self, name))
    }
}

/// The operating system: its file of hosts, and DNS.
pub(super) struct SystemResolver;

impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host(name).await?.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_address_is_a_name() {
        for name in ["cache-2:7901", "localhost:80", "shard 7", "1.2.3.4", ""] {
            assert_eq!(Target::from(name).name(), Some(name));
        }
        for address in ["1.2.3.4:5", "[::1]:5"] {
            let target = Target::from(address.to_owned());
            assert_eq!((target.name(), target.to_string()), (None, address.into()));
        }
        let two: [SocketAddr; 2] = [([1, 2, 3, 4], 5).into(), ([1, 2, 3, 4], 6).into()];
        assert_eq!(Target::from(two).to_string(), "1.2.3.4:5, 1.2.3.4:6");
    }
}
