//! Remote memory access (`fi_rma(3)`): write and read the peer's regions.

use crate::buf::{IoBufs, IoBufsMut};
use crate::error::{OperationKind, Result};
use crate::id::FabricAddr;
use crate::mr::Access;
use crate::proto::OpKind;

use super::common::check_inject;
use super::defaults::CompletionLevel;
use super::kind::{ReadKind, WriteKind};
use super::post::{Posting, inject};
use super::remote::RemoteRegions;
use super::target::{PostTarget, Scope};
use super::{Endpoint, RdmEndpoint};

impl Endpoint {
    /// Writes one to four buffers into one to four ranges of the peer's memory, which must be at
    /// least as long (`fi_write`, `fi_writev`, `fi_writemsg`, `fi_writedata`). If the peer uses
    /// this library, the write completes when the bytes are in the peer's memory, or fails if the
    /// peer refuses them. With other peers it completes when the buffers may be reused; see
    /// [`delivery_complete`](Posting::delivery_complete).
    ///
    /// A write that the peer refuses fails with
    /// [`ErrorKind::AccessDenied`](crate::ErrorKind::AccessDenied) and its
    /// [reason](crate::Error::refusal). Nothing has been written then, unless the region was
    /// revoked or quiesced in the middle of the write.
    /// [`on_refusal`](crate::ep::EndpointBuilder::on_refusal) determines whether the connection is
    /// closed. A peer without this library's extension can refuse only by closing the connection.
    #[doc(alias("fi_write", "fi_writev", "fi_writemsg", "fi_writedata"))]
    pub fn write<B: IoBufs>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaWrite<B> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        write(target, buffers, &remote.into())
    }

    /// Reads the peer's memory (`fi_read`, `fi_readv`, `fi_readmsg`) into one to four buffers, as
    /// many bytes as they hold.
    ///
    /// A read that the peer refuses, or interrupts because the region is revoked or quiesced, fails
    /// as [`write`](Self::write) does; the contents of the buffers are then unspecified.
    #[doc(alias("fi_read", "fi_readv", "fi_readmsg"))]
    pub fn read<B: IoBufsMut>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaRead<B> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        read(target, buffers, &remote.into())
    }

    /// Copies at most 128 bytes and writes them without a completion (`fi_inject_write`). Counters
    /// count it.
    ///
    /// # Errors
    /// As for [`inject`](Self::inject), and for [`write`](Self::write).
    #[doc(alias("fi_inject_write", "fi_inject_writedata"))]
    pub fn inject_write(&self, bytes: &[u8], remote: impl Into<RemoteRegions>) -> Result<()> {
        self.inject_write_message(bytes, None, remote.into())
    }

    /// As [`inject_write`](Self::inject_write), with remote CQ data (`fi_inject_writedata`).
    ///
    /// # Errors
    /// As for [`inject_write`](Self::inject_write).
    pub fn inject_write_data(
        &self,
        bytes: &[u8],
        data: u64,
        remote: impl Into<RemoteRegions>,
    ) -> Result<()> {
        self.inject_write_message(bytes, Some(data), remote.into())
    }

    fn inject_write_message(
        &self,
        bytes: &[u8],
        data: Option<u64>,
        remote: RemoteRegions,
    ) -> Result<()> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        inject_write(target, bytes, data, &remote)
    }
}

impl RdmEndpoint {
    /// Writes into a peer's memory, as [`Endpoint::write`] does.
    #[doc(alias("fi_write", "fi_writev", "fi_writemsg", "fi_writedata"))]
    pub fn write<B: IoBufs>(
        &self,
        buffers: B,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> RmaWrite<B> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        write(target, buffers, &remote.into())
    }

    /// Reads a peer's memory, as [`Endpoint::read`] does.
    #[doc(alias("fi_read", "fi_readv", "fi_readmsg"))]
    pub fn read<B: IoBufsMut>(
        &self,
        buffers: B,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> RmaRead<B> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        read(target, buffers, &remote.into())
    }

    /// Copies at most 128 bytes and writes them without a completion (`fi_inject_write`). Counters
    /// count it.
    ///
    /// # Errors
    /// As for [`inject`](Self::inject), and for [`write`](Self::write).
    pub fn inject_write(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> Result<()> {
        self.inject_write_message(bytes, peer, None, remote.into())
    }

    /// As [`inject_write`](Self::inject_write), with remote CQ data (`fi_inject_writedata`).
    ///
    /// # Errors
    /// As for [`inject_write`](Self::inject_write).
    pub fn inject_write_data(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        data: u64,
        remote: impl Into<RemoteRegions>,
    ) -> Result<()> {
        self.inject_write_message(bytes, peer, Some(data), remote.into())
    }

    fn inject_write_message(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        data: Option<u64>,
        remote: RemoteRegions,
    ) -> Result<()> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        inject_write(target, bytes, data, &remote)
    }
}

/// Describes a write that completes at the endpoint's default level for writes.
fn write<B: IoBufs>(target: PostTarget, buffers: B, remote: &RemoteRegions) -> RmaWrite<B> {
    let common = target.common();
    let level = common.defaults.writes;
    let segments = remote.segments(Access::REMOTE_WRITE, &common.domain);
    let operation = segments.map(|segments| OpKind::Write {
        data: None,
        ack: level == CompletionLevel::Acknowledged,
        commit: level == CompletionLevel::Persistent,
        segments,
    });
    RmaWrite::new(target, buffers, named(operation, OperationKind::Write))
}

fn read<B: IoBufsMut>(target: PostTarget, buffers: B, remote: &RemoteRegions) -> RmaRead<B> {
    let segments = remote.segments(Access::REMOTE_READ, &target.common().domain);
    let operation = segments.map(|segments| OpKind::Read { segments });
    RmaRead::new(target, buffers, named(operation, OperationKind::Read))
}

/// Posts a write of copied bytes.
fn inject_write(
    target: PostTarget,
    bytes: &[u8],
    data: Option<u64>,
    remote: &RemoteRegions,
) -> Result<()> {
    check_inject(bytes)?;
    let operation = OpKind::Write {
        data,
        ack: false,
        commit: false,
        segments: remote.segments(Access::REMOTE_WRITE, &target.common().domain)?,
    };
    inject(target, operation, bytes)
}

fn named(operation: Result<OpKind>, kind: OperationKind) -> Result<OpKind> {
    operation.map_err(|error| error.with_operation(kind))
}

/// An RMA write that has not been posted yet; see [`Endpoint::write`] and [`RdmEndpoint::write`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, at_server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 5]).await?;
/// endpoint.write("hello", region.remote()).imm(7).await?;
/// let completion = at_server.receive_queue().next().await.expect("it is open");
/// assert_eq!((completion.data, completion.len), (Some(7), 5)); // The server sees the write.
/// assert_eq!(region.deregister().await?, b"hello");
/// # Ok(()) }
/// ```
pub type RmaWrite<B> = Posting<B, WriteKind>;

impl<B: IoBufs> RmaWrite<B> {
    /// Completes only when the bytes are persistent at the peer (`FI_COMMIT_COMPLETE`): on the
    /// device of the file that is mapped there. The peer refuses it unless the region was
    /// registered with [`MrFlags::RMA_PMEM`](crate::mr::MrFlags::RMA_PMEM); both sides need
    /// [`Caps::RMA_PMEM`](crate::Caps::RMA_PMEM). Later frames of the connection wait for it.
    #[doc(alias = "FI_COMMIT_COMPLETE")]
    pub fn commit_complete(mut self) -> Self {
        self.edit(|operation| operation.set_level(false, true));
        self
    }
}

/// An RMA read that has not been posted yet; see [`Endpoint::read`] and [`RdmEndpoint::read`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(b"hello".to_vec()).await?;
/// let (count, buffer) = endpoint.read(vec![0; 5], region.remote()).await?;
/// assert_eq!((count, buffer), (5, b"hello".to_vec()));
/// # Ok(()) }
/// ```
pub type RmaRead<B> = Posting<B, ReadKind>;
