//! `fi_pingpong`'s side channel: one TCP connection over which the two ends find each other and
//! synchronize. The C program reads each item by one call that must return all of it, so every item
//! is sent by one write.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tracing::debug;

/// The server's default port.
pub const PORT: u16 = 47592;

/// `FI_SOCKADDR_IN` and `FI_SOCKADDR_IN6` of `fi_getinfo(3)`, each with its structure's size and
/// its family (of Linux).
const FORMAT_IPV4: (u32, usize, u16) = (2, 16, 2);
const FORMAT_IPV6: (u32, usize, u16) = (3, 28, 10);

const READY: [u8; 2] = *b"q\0";
const READY_TOO: [u8; 2] = *b"a\0";
const COUNT_LEN: usize = 10;
const COUNT_TAKEN: [u8; 7] = *b"cnt ok\0";

#[derive(Debug)]
pub struct SideChannel {
    stream: TcpStream,
}

impl SideChannel {
    /// Listens and accepts the first client.
    pub async fn accept(at: SocketAddr) -> Result<Self> {
        let listen = || -> std::io::Result<_> {
            let socket = socket_for(at)?;
            socket.set_reuseaddr(true)?;
            socket.bind(at)?;
            socket.listen(1)
        };
        let listener =
            listen().with_context(|| format!("listening at control port {}", at.port()))?;
        debug!(%at, "waiting for a client");
        let (stream, client) = listener.accept().await.context("waiting for a client")?;
        debug!(%client, "side channel open");
        SideChannel::over(stream)
    }

    pub async fn connect(server: &str, port: u16, from: SocketAddr) -> Result<Self> {
        let what = || format!("server {server}, control port {port}");
        let mut found = lookup_host((server, port)).await.with_context(what)?;
        let to = found
            .find(|to| to.is_ipv6() == from.is_ipv6())
            .ok_or_else(|| anyhow!("no address of this IP version"))
            .with_context(what)?;
        let connect = async {
            let socket = socket_for(from)?;
            if from.port() != 0 {
                socket.set_reuseaddr(true)?;
                socket.bind(from)?;
            }
            socket.connect(to).await
        };
        let stream = connect.await.with_context(what)?;
        debug!(%to, "side channel open");
        SideChannel::over(stream)
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(SideChannel { stream })
    }

    /// This side's address.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    /// Returns, with the reason, when the other side disconnects without having sent more.
    pub async fn closed(&self) -> anyhow::Error {
        match self.stream.peek(&mut [0]).await {
            Ok(0) => gone(),
            Ok(_) => std::future::pending().await,
            Err(error) => error.into(),
        }
    }

    /// Sends the address of this side's endpoint.
    pub async fn send_name(&mut self, address: SocketAddr) -> Result<()> {
        debug!(%address, "send our name");
        self.write(&encode_name(address)).await
    }

    /// Reads the address of the other side's endpoint.
    pub async fn learn_name(&mut self) -> Result<SocketAddr> {
        let [len, format] = [
            u32::from_be_bytes(self.read().await?),
            u32::from_ne_bytes(self.read().await?),
        ];
        let known = [FORMAT_IPV4, FORMAT_IPV6]
            .into_iter()
            .find(|known| known.0 == format);
        let Some((format, size, _)) = known.filter(|known| known.1 == len as usize) else {
            bail!(
                "the other side listens at an address of {len} bytes of format {format}, which is no IP address"
            );
        };
        let mut name = vec![0; size];
        self.fill(&mut name).await?;
        decode_name(format, &name)
    }

    /// Waits until both sides are ready for the next size.
    pub async fn sync(&mut self, client: bool) -> Result<()> {
        if client {
            self.write(&READY).await?;
            self.expect(READY_TOO).await
        } else {
            self.expect(READY).await?;
            self.write(&READY_TOO).await
        }
    }

    /// Sends the client's number of answers to the server.
    pub async fn send_count(&mut self, count: u64) -> Result<()> {
        let text = count.to_string();
        let mut item = [0; COUNT_LEN];
        item.get_mut(..text.len())
            .context("the count is too long to send")?
            .copy_from_slice(text.as_bytes());
        self.write(&item).await?;
        self.expect(COUNT_TAKEN).await
    }

    /// Reads how many answers the client got.
    pub async fn learn_count(&mut self) -> Result<u64> {
        let item: [u8; COUNT_LEN] = self.read().await?;
        let text = String::from_utf8_lossy(&item);
        let text = text.trim_end_matches('\0');
        let count = text
            .parse()
            .with_context(|| format!("the client's count is {text:?}"))?;
        self.write(&COUNT_TAKEN).await?;
        Ok(count)
    }

    async fn write(&mut self, item: &[u8]) -> Result<()> {
        self.stream.write_all(item).await.context("side channel")
    }

    async fn expect<const N: usize>(&mut self, expected: [u8; N]) -> Result<()> {
        let item: [u8; N] = self.read().await?;
        if item != expected {
            bail!(
                "side channel: the other side said {:?} instead of {:?}; were both given the same options?",
                String::from_utf8_lossy(&item),
                String::from_utf8_lossy(&expected)
            );
        }
        Ok(())
    }

    async fn read<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut item = [0; N];
        self.fill(&mut item).await?;
        Ok(item)
    }

    async fn fill(&mut self, item: &mut [u8]) -> Result<()> {
        match self.stream.read_exact(item).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(gone()),
            Err(error) => Err(error).context("side channel"),
        }
    }
}

fn gone() -> anyhow::Error {
    anyhow!("side channel: the other side has gone")
}

fn socket_for(address: SocketAddr) -> std::io::Result<TcpSocket> {
    if address.is_ipv6() {
        TcpSocket::new_v6()
    } else {
        TcpSocket::new_v4()
    }
}

/// Encodes length (big-endian), format, and the socket address in the C structure's memory layout.
fn encode_name(address: SocketAddr) -> Vec<u8> {
    let (format, size, family) = if address.is_ipv4() {
        FORMAT_IPV4
    } else {
        FORMAT_IPV6
    };
    let mut bytes = Vec::with_capacity(8 + size);
    bytes.extend((size as u32).to_be_bytes());
    bytes.extend(format.to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => bytes.extend(v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes.resize(8 + size, 0);
    bytes
}

/// Decodes a socket address. `name` must have the size that belongs to the format.
fn decode_name(format: u32, name: &[u8]) -> Result<SocketAddr> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    if format == FORMAT_IPV4.0 {
        let octets: [u8; 4] = name[4..8].try_into()?;
        return Ok((Ipv4Addr::from(octets), port).into());
    }
    let octets: [u8; 16] = name[8..24].try_into()?;
    let flowinfo = u32::from_be_bytes(name[4..8].try_into()?);
    let scope_id = u32::from_ne_bytes(name[24..28].try_into()?);
    Ok(SocketAddrV6::new(Ipv6Addr::from(octets), port, flowinfo, scope_id).into())
}
