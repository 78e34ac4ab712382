//! Remote memory access (`fi_rma(3)`): write and read the peer's regions.

use std::time::Duration;

use crate::buf::{IoBufs, IoBufsMut, Payload};
use crate::cq::CompletionFlags;
use crate::error::{OperationKind, Result};
use crate::id::FabricAddr;
use crate::info::Caps;
use crate::progress::PostOptions;

use super::common::{Common, check_inject};
use super::defaults::CompletionLevel;
use super::msg::fence_caps;
use super::post::{OpBuilder, OpSpec, posting_forms};
use super::remote::RemoteRegions;
use super::target::{PostTarget, Scope};
use super::{Endpoint, RdmEndpoint};

impl Endpoint {
    /// Writes one to four buffers into one to four ranges of the peer's memory, which must be at
    /// least as long (`fi_write`, `fi_writev`, `fi_writemsg`, `fi_writedata`). If the peer uses
    /// this library, the write completes when the bytes are in the peer's memory, or fails if the
    /// peer refuses them. With other peers it completes when the buffers may be reused; see
    /// [`delivery_complete`](RmaWrite::delivery_complete).
    ///
    /// A write that the peer refuses fails with
    /// [`ErrorKind::AccessDenied`](crate::ErrorKind::AccessDenied) and its
    /// [reason](crate::Error::refusal). Nothing has been written then, unless the region was
    /// revoked or quiesced in the middle of the write.
    /// [`on_refusal`](crate::ep::EndpointBuilder::on_refusal) determines whether the connection is
    /// closed. A peer without this library's extension can refuse only by closing the connection.
    #[doc(alias("fi_write", "fi_writev", "fi_writemsg", "fi_writedata"))]
    pub fn write<B: IoBufs>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaWrite<B> {
        RmaWrite::new(
            PostTarget::new(&self.inner, Scope::Connection),
            buffers,
            remote.into(),
        )
    }

    /// Reads the peer's memory (`fi_read`, `fi_readv`, `fi_readmsg`) into one to four buffers, as
    /// many bytes as they hold.
    ///
    /// A read that the peer refuses, or interrupts because the region is revoked or quiesced, fails
    /// as [`write`](Self::write) does; the contents of the buffers are then unspecified.
    #[doc(alias("fi_read", "fi_readv", "fi_readmsg"))]
    pub fn read<B: IoBufsMut>(&self, buffers: B, remote: impl Into<RemoteRegions>) -> RmaRead<B> {
        RmaRead::new(
            PostTarget::new(&self.inner, Scope::Connection),
            buffers,
            remote.into(),
        )
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
        inject_write(
            PostTarget::new(&self.inner, Scope::Connection),
            bytes,
            data,
            remote,
        )
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
        RmaWrite::new(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            remote.into(),
        )
    }

    /// Reads a peer's memory, as [`Endpoint::read`] does.
    #[doc(alias("fi_read", "fi_readv", "fi_readmsg"))]
    pub fn read<B: IoBufsMut>(
        &self,
        buffers: B,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> RmaRead<B> {
        RmaRead::new(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            remote.into(),
        )
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
        inject_write(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            bytes,
            data,
            remote,
        )
    }
}

/// Posts a write of copied bytes.
fn inject_write(
    target: PostTarget,
    bytes: &[u8],
    data: Option<u64>,
    remote: RemoteRegions,
) -> Result<()> {
    check_inject(bytes)?;
    let spec = OpSpec::Write {
        remote,
        data,
        ack: false,
        commit: false,
    };
    target.post_injected(Caps::RMA | Caps::WRITE, spec, Payload::copied(bytes))
}

/// An RMA write that has not been posted yet; see [`Endpoint::write`] and [`RdmEndpoint::write`].
///
/// Await it, or [`post`](Self::post) it and await it later.
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
#[must_use = "nothing is written until this is awaited or posted"]
pub struct RmaWrite<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    remote: RemoteRegions,
    data: Option<u64>,
    /// `None`: the endpoint's default.
    level: Option<CompletionLevel>,
    more: bool,
    fence: bool,
    timeout: Option<Duration>,
}

impl<B: IoBufs> RmaWrite<B> {
    fn new(target: PostTarget, buffers: B, remote: RemoteRegions) -> Self {
        RmaWrite {
            target,
            buffers,
            remote,
            data: None,
            level: None,
            more: false,
            fence: false,
            timeout: None,
        }
    }

    /// Sends 64 bits of remote CQ data with the write (`fi_writedata`): the peer's completion queue
    /// reports the write when all of it is in memory.
    #[doc(alias("fi_writedata", "FI_REMOTE_CQ_DATA"))]
    pub fn imm(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Completes when the buffers may be reused (`FI_INJECT_COMPLETE`), unless both sides have the
    /// extension, with which every write is answered. This is the default, unless the Info's
    /// `tx.op_flags` specify another.
    pub fn inject_complete(mut self) -> Self {
        self.level = Some(CompletionLevel::Injected);
        self
    }

    /// Completes only when the write no longer depends on the network and on this side
    /// (`FI_TRANSMIT_COMPLETE`). Over TCP that is when the peer has acknowledged it, as for
    /// [`delivery_complete`](Self::delivery_complete).
    pub fn transmit_complete(self) -> Self {
        self.delivery_complete()
    }

    /// Completes only when the bytes are in the peer's memory (`FI_DELIVERY_COMPLETE`).
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    pub fn delivery_complete(mut self) -> Self {
        self.level = Some(CompletionLevel::Acknowledged);
        self
    }

    /// Completes only when the bytes are persistent at the peer (`FI_COMMIT_COMPLETE`): on the
    /// device of the file that is mapped there. The peer refuses it unless the region was
    /// registered with [`MrFlags::RMA_PMEM`](crate::mr::MrFlags::RMA_PMEM); both sides need
    /// [`Caps::RMA_PMEM`](crate::Caps::RMA_PMEM). Later frames of the connection wait for it.
    #[doc(alias = "FI_COMMIT_COMPLETE")]
    pub fn commit_complete(mut self) -> Self {
        self.level = Some(CompletionLevel::Persistent);
        self
    }

    /// Announces more operations: this one may be held back, to be sent together with the next
    /// posts (`FI_MORE`).
    pub fn more(mut self) -> Self {
        self.more = true;
        self
    }

    /// Sends the write only when all operations posted to the same peer before have completed, and
    /// before any that is posted later (`FI_FENCE`).
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}

impl<B: IoBufs> RmaWrite<B> {
    #[inline]
    fn level(&self) -> CompletionLevel {
        self.level.unwrap_or(self.target.common().defaults.writes)
    }
}

impl<B: IoBufs> OpBuilder<B> for RmaWrite<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Write
    }

    fn completion_flags(&self) -> CompletionFlags {
        CompletionFlags::RMA
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    #[inline]
    fn caps(&self) -> Caps {
        let commit = match self.level() {
            CompletionLevel::Persistent => Caps::RMA_PMEM,
            _ => Caps::empty(),
        };
        Caps::RMA | Caps::WRITE | fence_caps(self.fence) | commit
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            more: self.more,
            fence: self.fence,
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        let level = self.level();
        let spec = OpSpec::Write {
            remote: self.remote,
            data: self.data,
            ack: level == CompletionLevel::Acknowledged,
            commit: level == CompletionLevel::Persistent,
        };
        (self.target, self.buffers, spec)
    }
}

posting_forms!(RmaWrite, IoBufs, usize);

/// An RMA read that has not been posted yet; see [`Endpoint::read`] and [`RdmEndpoint::read`].
///
/// Await it, or [`post`](Self::post) it and await it later.
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
#[must_use = "nothing is read until this is awaited or posted"]
pub struct RmaRead<B: IoBufsMut> {
    target: PostTarget,
    buffers: B,
    remote: RemoteRegions,
    fence: bool,
    timeout: Option<Duration>,
}

impl<B: IoBufsMut> RmaRead<B> {
    fn new(target: PostTarget, buffers: B, remote: RemoteRegions) -> Self {
        RmaRead {
            target,
            buffers,
            remote,
            fence: false,
            timeout: None,
        }
    }

    /// Sends the read only when all operations posted to the same peer before have completed, and
    /// before any that is posted later (`FI_FENCE`).
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}

impl<B: IoBufsMut> OpBuilder<B> for RmaRead<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Read
    }

    fn completion_flags(&self) -> CompletionFlags {
        CompletionFlags::RMA
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    #[inline]
    fn caps(&self) -> Caps {
        Caps::RMA | Caps::READ | fence_caps(self.fence)
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            fence: self.fence,
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        let spec = OpSpec::Read {
            remote: self.remote,
        };
        (self.target, self.buffers, spec)
    }
}

posting_forms!(RmaRead, IoBufsMut, usize);
