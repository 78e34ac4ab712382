//! The transport of the messages: a connection, a reliable endpoint and one of its peers, or
//! datagrams.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{
    DgramEndpoint, Domain, Endpoint, RdmEndpoint,
    av::FabricAddr,
    buf::IoBufs,
    op::{Op, Received, SendMessage},
};

use super::TransmitMode;

/// The tag of all tagged messages of the C program.
const TAG: u64 = 1234;
/// libfabric's `udp` provider accepts no longer messages, whatever the interface. This side leaves
/// out the sizes that the C program leaves out.
const C_DATAGRAM_MAX: usize = 1472;

/// This end's transport to the other end.
#[derive(Clone, Debug)]
pub enum Link {
    Connection(Endpoint),
    Peer {
        endpoint: RdmEndpoint,
        peer: FabricAddr,
        tag: Option<u64>,
    },
    Datagrams {
        endpoint: DgramEndpoint,
        /// The other end, once it has sent its name.
        peer: Option<FabricAddr>,
    },
}

impl Link {
    pub fn to_peer(endpoint: RdmEndpoint, peer: SocketAddr, mode: TransmitMode) -> Result<Link> {
        Ok(Link::Peer {
            peer: endpoint.insert(peer)?,
            endpoint,
            tag: (mode == TransmitMode::Tagged).then_some(TAG),
        })
    }

    /// Opens an end for datagrams at any address of this machine.
    pub fn datagrams(domain: &Domain, any: SocketAddr) -> Result<Link> {
        let peers = domain.address_vector().open()?;
        let endpoint = (domain.dgram_endpoint())
            .address_vector(&peers)
            .bind(any)
            .open()?;
        Ok(Link::Datagrams {
            endpoint,
            peer: None,
        })
    }

    /// The port at which datagrams arrive.
    pub fn port(&self) -> Option<u16> {
        match self {
            Link::Connection(_) | Link::Peer { .. } => None,
            Link::Datagrams { endpoint, .. } => Some(endpoint.local_addr().port()),
        }
    }

    /// Sets the address of the other end of datagrams.
    pub fn meet(&mut self, other: SocketAddr) -> Result<()> {
        if let Link::Datagrams { endpoint, peer } = self {
            *peer = Some(endpoint.address_vector().insert(other).now()?);
        }
        Ok(())
    }

    /// The longest message, if there is a limit.
    pub fn message_max(&self) -> usize {
        match self {
            Link::Connection(_) | Link::Peer { .. } => usize::MAX,
            Link::Datagrams { endpoint, .. } => endpoint.max_message_size().min(C_DATAGRAM_MAX),
        }
    }

    pub fn receive(&self, buffer: Vec<u8>) -> Result<Op<Vec<u8>, Received>> {
        Ok(match self {
            Link::Connection(endpoint) => endpoint.recv(buffer).post()?,
            Link::Peer { endpoint, tag, .. } => match tag {
                None => endpoint.recv(buffer).post()?,
                Some(tag) => endpoint.recv_tagged(buffer, *tag).post()?,
            },
            Link::Datagrams { endpoint, .. } => endpoint.recv(buffer).post()?,
        })
    }

    /// Sends a message, and returns its memory.
    pub async fn send(&self, message: Vec<u8>) -> Result<Vec<u8>> {
        if message.len() < INJECT_SIZE_MAX {
            self.inject(&message)?;
            return Ok(message);
        }
        if let Link::Datagrams { endpoint, peer } = self {
            let peer = peer.context("no peer yet")?;
            return Ok(endpoint.send(message, peer).await?.1);
        }
        Ok(self.reliable(message)?.await?.1)
    }

    fn inject(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Link::Connection(endpoint) => endpoint.inject(bytes)?,
            Link::Peer {
                endpoint,
                peer,
                tag,
            } => match tag {
                None => endpoint.inject(bytes, *peer)?,
                Some(tag) => endpoint.inject_tagged(bytes, *peer, *tag)?,
            },
            Link::Datagrams { endpoint, peer } => {
                endpoint.inject(bytes, peer.context("no peer yet")?)?;
            }
        }
        Ok(())
    }

    fn reliable<B: IoBufs>(&self, message: B) -> Result<SendMessage<B>> {
        Ok(match self {
            Link::Connection(endpoint) => endpoint.send(message),
            Link::Peer {
                endpoint,
                peer,
                tag,
            } => match tag {
                None => endpoint.send(message, *peer),
                Some(tag) => endpoint.send_tagged(message, *peer, *tag),
            },
            Link::Datagrams { .. } => anyhow::bail!("datagrams are not reliable"),
        })
    }

    /// Sends the last message, and waits until it has arrived, except for a datagram.
    pub async fn send_last(&self, message: &'static [u8]) -> Result<()> {
        if let Link::Datagrams { endpoint, peer } = self {
            let peer = peer.context("no peer yet")?;
            endpoint.send(message, peer).await?;
        } else {
            self.reliable(message)?.delivery_complete().await?;
        }
        Ok(())
    }

    pub async fn shutdown(&self) -> Result<()> {
        match self {
            Link::Connection(endpoint) => endpoint.shutdown().await?,
            Link::Peer { endpoint, .. } => endpoint.shutdown().await?,
            Link::Datagrams { endpoint, .. } => endpoint.shutdown().await?,
        }
        Ok(())
    }
}

/// Returns the address of this machine that a peer sees, with port 0. Looks up the route; sends
/// nothing.
pub fn local_toward(peer: SocketAddr) -> Result<SocketAddr> {
    let any = match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}
