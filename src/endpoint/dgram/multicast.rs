//! Multicast groups (`fi_join`, `fi_mc_addr`; `fi_cm(3)`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{DgramEndpoint, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{FabricAddr, canonical};
use crate::info::Caps;
use crate::transport::Membership;

impl DgramEndpoint {
    /// Joins a multicast group (`fi_join`), once the returned [`Join`] is started with
    /// [`Join::now`]. The group's address includes the port that its datagrams are sent to. To
    /// receive them, the endpoint must be bound to that port of all addresses.
    #[doc(alias = "fi_join")]
    pub fn join(&self, group: SocketAddr) -> Join {
        Join {
            endpoint: self.clone(),
            group: canonical(group),
            interface: None,
            hears: true,
        }
    }
}

/// A multicast group to be joined; see [`DgramEndpoint::join`].
///
/// ```no_run
/// # // It needs an interface that multicasts.
/// # async fn join(endpoint: tokio_fabric::DgramEndpoint) -> tokio_fabric::Result<()> {
/// use std::net::Ipv4Addr;
///
/// let group = (Ipv4Addr::new(239, 1, 2, 3), 7471).into();
/// let membership = endpoint.join(group).send_only().now()?;
/// endpoint.send("to all members", membership.addr()).await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is joined until `now`"]
pub struct Join {
    endpoint: DgramEndpoint,
    group: SocketAddr,
    interface: Option<IpAddr>,
    hears: bool,
}

impl Join {
    /// Joins for sending only (`FI_SEND`). Default: for both directions.
    pub fn send_only(mut self) -> Self {
        self.hears = false;
        self
    }

    /// The interface, given by one of its IPv4 addresses. Default: the interface of the local
    /// address that the hints chose, otherwise the system's choice. The interface of an IPv6 group
    /// is the zone of its address (`ff02::1%2`).
    pub fn interface(mut self, address: IpAddr) -> Self {
        self.interface = Some(address.to_canonical());
        self
    }

    /// Joins the group immediately: there is no FI_JOIN_COMPLETE to wait for. The group's address
    /// is inserted into the endpoint's address vector, unless it is there already. (If the vector
    /// inserts asynchronously or with user ids, insert the address before.)
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an address that is not a multicast address or has another
    /// IP version, and for an endpoint that is bound to one address and so cannot receive from a
    /// group; [`ErrorKind::AddressInUse`] if the endpoint is already a member;
    /// [`ErrorKind::NoCapability`] if it was opened without [`Caps::MULTICAST`], or without the
    /// direction.
    pub fn now(self) -> Result<MulticastGroup> {
        let inner = &self.endpoint.inner;
        if !self.group.ip().is_multicast() {
            let what = format!("group: {} is no multicast address", self.group.ip());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let direction = match self.hears {
            true => Caps::RECV,
            false => Caps::SEND,
        };
        inner.common.caps.check(Caps::MULTICAST)?;
        inner.common.caps.check(Caps::MSG | direction)?;
        let chosen = inner.common.domain.source().map(|source| source.ip());
        let usable = |ip: &IpAddr| {
            ip.is_ipv4() && self.group.is_ipv4() && !ip.is_unspecified() && !ip.is_multicast()
        };
        let bound = self.endpoint.local_addr().ip();
        let membership = Membership {
            group: self.group.ip(),
            interface: self.interface.or_else(|| {
                let candidates = [Some(bound), chosen];
                candidates.into_iter().flatten().find(usable)
            }),
            scope_id: match self.group {
                SocketAddr::V6(group) => group.scope_id(),
                SocketAddr::V4(_) => 0,
            },
        };
        inner.port.join_group(membership, self.hears)?;
        let known = inner.vector.fabric_addr(self.group);
        let address = match known.map_or_else(|| inner.vector.insert(self.group).now(), Ok) {
            Ok(address) => address,
            Err(error) => {
                if self.hears {
                    // The membership has just been made, so it can be ended.
                    let _ = inner.port.leave_group(membership);
                }
                return Err(error);
            }
        };
        Ok(MulticastGroup {
            endpoint: Arc::clone(inner),
            membership: self.hears.then_some(membership),
            group: self.group,
            address,
            inserted: known.is_none(),
        })
    }
}

debug_fields!(Join, self => endpoint: self.endpoint.id(), group: self.group);

/// The membership of an endpoint in a multicast group (`struct fid_mc`).
///
/// Dropping it leaves the group (`fi_close`), and removes the group's address from the vector if
/// joining inserted it.
///
/// ```no_run
/// # // It needs an interface that multicasts.
/// # async fn listen(endpoint: tokio_fabric::DgramEndpoint) -> tokio_fabric::Result<()> {
/// let group = (std::net::Ipv4Addr::new(239, 1, 2, 3), 7471).into();
/// let membership = endpoint.join(group).now()?;
/// let (received, bytes) = endpoint.recv(vec![0; 1500]).await?;
/// println!("{:?} to {}", &bytes[..received.len], membership.group());
/// drop(membership); // Leaves the group.
/// # Ok(()) }
/// ```
#[doc(alias = "fi_mc_addr")]
#[must_use = "dropping it leaves the group"]
pub struct MulticastGroup {
    endpoint: Arc<Inner>,
    membership: Option<Membership>,
    group: SocketAddr,
    address: FabricAddr,
    inserted: bool,
}

impl MulticastGroup {
    /// The address to send to in order to reach the group (`fi_mc_addr`).
    pub fn addr(&self) -> FabricAddr {
        self.address
    }

    /// The group's address.
    pub fn group(&self) -> SocketAddr {
        self.group
    }
}

impl Drop for MulticastGroup {
    fn drop(&mut self) {
        if let Some(membership) = self.membership {
            // Fails only if the interface no longer exists, and with it the membership.
            let _ = self.endpoint.port.leave_group(membership);
        }
        if self.inserted {
            // Fails only if the application has removed the address itself.
            let _ = self.endpoint.vector.remove(self.address);
        }
    }
}

debug_fields!(MulticastGroup, self => group: self.group, address: self.address);
