//! Tagged messages (`fi_tagged(3)`): sent with a tag, received by it.

use bytes::Bytes;

use crate::buf::{IoBufs, IoBufsMut};
use crate::error::Result;
use crate::id::FabricAddr;
use crate::proto::MatchCriteria;

use super::RdmEndpoint;
use super::kind::RecvTaggedKind;
use super::msg::{SendMessage, send};
use super::post::Posting;
use super::target::{PostTarget, Scope};

impl RdmEndpoint {
    /// Sends a message with a tag (`fi_tsend`, `fi_tsendv`, `fi_tsenddata`), which
    /// [`recv_tagged`](Self::recv_tagged) receives. Otherwise as [`send`](Self::send).
    #[doc(alias("fi_tsend", "fi_tsendv", "fi_tsendmsg", "fi_tsenddata"))]
    pub fn send_tagged<B: IoBufs>(&self, buffers: B, peer: FabricAddr, tag: u64) -> SendMessage<B> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        send(target, buffers, Some(tag))
    }

    /// Receives one message with this tag (`fi_trecv`, `fi_trecvv`), or with one that differs only
    /// in [ignored](Posting::ignore) bits; from any peer, or from one
    /// ([`from`](Posting::from)).
    ///
    /// A message goes to the first-posted receive that matches it. If it is longer than the
    /// buffers, the receive fails with [`Truncated`](crate::ErrorKind::Truncated); the buffers
    /// contain the part that fits, and the connection stays open.
    #[doc(alias("fi_trecv", "fi_trecvv", "fi_trecvmsg"))]
    pub fn recv_tagged<B: IoBufsMut>(&self, buffers: B, tag: u64) -> RecvTagged<B> {
        let target = self.receive_target(MatchCriteria::Tagged { tag, ignore: 0 });
        RecvTagged::receive(target, buffers, None)
    }

    /// Receives one message with this tag of at most `max` bytes whose length is unknown
    /// (`FI_VARIABLE_MSG`); as [`recv_tagged`](Self::recv_tagged) and
    /// [`Endpoint::recv_any`](crate::Endpoint::recv_any).
    pub fn recv_any_tagged(&self, tag: u64, max: usize) -> RecvTagged<Bytes> {
        let target = self.receive_target(MatchCriteria::Tagged { tag, ignore: 0 });
        RecvTagged::receive(target, Bytes::new(), Some(max))
    }

    /// Copies and sends at most 128 bytes with a tag, without a completion (`fi_tinject`).
    ///
    /// # Errors
    /// As for [`inject`](Self::inject).
    #[doc(alias("fi_tinject", "fi_tinjectdata"))]
    pub fn inject_tagged(&self, bytes: &[u8], peer: FabricAddr, tag: u64) -> Result<()> {
        self.inject_message(bytes, peer, Some(tag), None)
    }

    /// As [`inject_tagged`](Self::inject_tagged), with remote CQ data (`fi_tinjectdata`).
    ///
    /// # Errors
    /// As for [`inject`](Self::inject).
    pub fn inject_tagged_data(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        tag: u64,
        data: u64,
    ) -> Result<()> {
        self.inject_message(bytes, peer, Some(tag), Some(data))
    }
}

/// A receive of a tagged message that has not been posted yet; see [`RdmEndpoint::recv_tagged`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send_tagged("hello", a.other, 0x7001).await?;
/// // Any tag whose upper bits are 0x7.
/// let (received, _) = b.endpoint.recv_tagged(vec![0; 8], 0x7000).ignore(0xfff).await?;
/// assert_eq!((received.len, received.tag), (5, Some(0x7001)));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// As for [`Op`](crate::op::Op): dropping the future of a receive loses no message.
pub type RecvTagged<B> = Posting<B, RecvTaggedKind>;

impl<B: IoBufs> RecvTagged<B> {
    /// Bits of the tag that are ignored: a message matches if its tag and the receive's are equal
    /// in all other bits (`ignore`). Default: 0; `u64::MAX` matches every tagged message.
    ///
    /// A receive finds a kept message by its tag at once. With ignored bits it checks the kept
    /// messages one after the other, which takes 36 µs for 4,000 messages.
    pub fn ignore(mut self, mask: u64) -> Self {
        self.target.select(|it| it.ignore(mask));
        self
    }
}
