//! What the messages go over: a connection, or a connectionless endpoint and one of its peers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::Result;
use tokio_fabric::{Endpoint, FabricAddr, IoBufs, Op, RdmEndpoint, Received, Send};

use super::TransmitMode;

/// The tag of all tagged messages of the C program.
const TAG: u64 = 1234;

/// This end's way to the other.
#[derive(Clone, Debug)]
pub enum Link {
    Connection(Endpoint),
    Peer {
        endpoint: RdmEndpoint,
        peer: FabricAddr,
        tag: Option<u64>,
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

    pub fn receive(&self, buffer: Vec<u8>) -> Result<Op<Vec<u8>, Received>> {
        Ok(match self {
            Link::Connection(endpoint) => endpoint.recv(buffer).post()?,
            Link::Peer { endpoint, tag, .. } => match tag {
                None => endpoint.recv(buffer).post()?,
                Some(tag) => endpoint.recv_tagged(buffer, *tag).post()?,
            },
        })
    }

    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        Ok(match self {
            Link::Connection(endpoint) => endpoint.inject(bytes)?,
            Link::Peer {
                endpoint,
                peer,
                tag,
            } => match tag {
                None => endpoint.inject(bytes, *peer)?,
                Some(tag) => endpoint.inject_tagged(bytes, *peer, *tag)?,
            },
        })
    }

    pub fn send<B: IoBufs>(&self, message: B) -> Send<B> {
        match self {
            Link::Connection(endpoint) => endpoint.send(message),
            Link::Peer {
                endpoint,
                peer,
                tag,
            } => match tag {
                None => endpoint.send(message, *peer),
                Some(tag) => endpoint.send_tagged(message, *peer, *tag),
            },
        }
    }

    pub async fn shutdown(&self) -> Result<()> {
        match self {
            Link::Connection(endpoint) => endpoint.shutdown().await?,
            Link::Peer { endpoint, .. } => endpoint.shutdown().await?,
        }
        Ok(())
    }
}

/// The address of this machine that a peer sees; port 0. Looks the way up, sends nothing.
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
