//! What the messages go over: a connection, or datagrams.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{DgramEndpoint, Domain, Endpoint, FabricAddr, Op, Received};

/// libfabric's `udp` provider takes no longer messages, whatever the interface: what the other side
/// leaves out of its list of sizes is left out here too.
const C_DATAGRAM_MAX: usize = 1472;

/// One end of the test.
#[derive(Clone, Debug)]
pub enum Line {
    Connected(Endpoint),
    Datagrams {
        endpoint: DgramEndpoint,
        /// The other end, once it has said its name.
        peer: Option<FabricAddr>,
    },
}

impl Line {
    /// An end that takes datagrams at any address of this machine.
    pub fn datagrams(domain: &Domain, any: SocketAddr) -> Result<Line> {
        let peers = domain.address_vector().open()?;
        let endpoint = (domain.dgram_endpoint())
            .address_vector(&peers)
            .bind(any)
            .open()?;
        Ok(Line::Datagrams {
            endpoint,
            peer: None,
        })
    }

    /// The port that datagrams come to.
    pub fn port(&self) -> Option<u16> {
        match self {
            Line::Connected(_) => None,
            Line::Datagrams { endpoint, .. } => Some(endpoint.local_addr().port()),
        }
    }

    /// Learns where the other end is.
    pub fn meet(&mut self, other: SocketAddr) -> Result<()> {
        if let Line::Datagrams { endpoint, peer } = self {
            *peer = Some(endpoint.address_vector().insert(other).now()?);
        }
        Ok(())
    }

    /// The longest message, if there is a limit.
    pub fn message_max(&self) -> usize {
        match self {
            Line::Connected(_) => usize::MAX,
            Line::Datagrams { endpoint, .. } => endpoint.max_message_size().min(C_DATAGRAM_MAX),
        }
    }

    pub fn recv(&self, buffer: Vec<u8>) -> Result<Op<Vec<u8>, Received>> {
        Ok(match self {
            Line::Connected(endpoint) => endpoint.recv(buffer).post()?,
            Line::Datagrams { endpoint, .. } => endpoint.recv(buffer).post()?,
        })
    }

    /// Sends, and gives the message back.
    pub async fn send(&self, message: Vec<u8>) -> Result<Vec<u8>> {
        if message.len() < INJECT_SIZE_MAX {
            match self {
                Line::Connected(endpoint) => endpoint.inject(&message)?,
                Line::Datagrams { endpoint, peer } => {
                    endpoint.inject(&message, peer.context("no peer yet")?)?;
                }
            }
            return Ok(message);
        }
        Ok(match self {
            Line::Connected(endpoint) => endpoint.send(message).await?.1,
            Line::Datagrams { endpoint, peer } => {
                let peer = peer.context("no peer yet")?;
                endpoint.send(message, peer).await?.1
            }
        })
    }

    /// Sends the last message; over a connection, until it has arrived.
    pub async fn send_last(&self, message: &'static [u8]) -> Result<()> {
        match self {
            Line::Connected(endpoint) => {
                endpoint.send(message).delivery_complete().await?;
            }
            Line::Datagrams { endpoint, peer } => {
                let peer = peer.context("no peer yet")?;
                endpoint.send(message, peer).await?;
            }
        }
        Ok(())
    }

    pub async fn close(&self) -> Result<()> {
        match self {
            Line::Connected(endpoint) => endpoint.shutdown().await?,
            Line::Datagrams { endpoint, .. } => endpoint.shutdown().await?,
        }
        Ok(())
    }
}
